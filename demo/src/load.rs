//! Closed-loop load: a tenant's requests, the window in which they are counted, and the counts.
//!
//! # Shape
//! A tenant is `connections` x `depth` requests of one size, always in flight: each completion is followed at once by
//! the next request. Other files carry the requests: [`crate::load_nbd`] over sockets, [`crate::load_inside`] inside a
//! worker. All tenants of a run share one [`Window`]:
//!
//! ```text
//! start          warm_up_ns                        end_ns
//!   |--- warm-up ---|------------ measured ------------|  then: no new request, wait for those in flight
//! ```
//!
//! Bytes and latencies are counted for requests that complete inside the measured part. The byte series covers warm-up
//! too, for the picture.
//!
//! # What closed loop means for the numbers
//! A slow server gets fewer requests, so latencies do not include the waiting of requests that an open loop would have
//! sent meanwhile ("coordinated omission"). This is intended: tenants of the paper are closed loops too, and slowdown
//! is a ratio of bandwidths. Do not read the p99 as that of an open-loop service.

use hdrhistogram::Histogram;
use mqfq_blk::random::Random;

/// Length of one step of the byte series.
pub const SERIES_STEP_NS: u64 = 10_000_000;

/// Largest latency that the histogram tells apart; longer ones count as this.
const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// Where requests go inside the export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Uniformly random, aligned to the request's size.
    Random,
    /// One after the other, each connection in its own part of the export, wrapping around.
    Sequential,
}

/// A step of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A write of the load's size.
    Write,
    /// A flush.
    Flush,
}

/// Steps of a database's commit on a file system with a journal: data and the journal's block, made durable; the
/// journal's commit record, made durable.
pub const COMMIT: &[Step] = &[Step::Write, Step::Write, Step::Flush, Step::Write, Step::Flush];

/// Load of one tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Connections (or, inside a worker, clients): the tenant's queues, at least 1.
    pub connections: u16,
    /// Requests in flight on each, at least 1.
    pub depth: u16,
    /// Size of each request, at least 512.
    pub request_bytes: u32,
    /// Writes in 100 requests.
    pub write_percent: u8,
    /// Where they go.
    pub pattern: Pattern,
    /// Steps that count as one request together, each submitted when the one before has completed. Empty: a request is
    /// a read or a write.
    pub chain: &'static [Step],
    /// Start of the random numbers; the same seed gives the same requests.
    pub seed: u64,
}

impl Load {
    /// Random reads of `request_bytes`.
    pub const fn random_reads(connections: u16, depth: u16, request_bytes: u32) -> Load {
        let (pattern, chain) = (Pattern::Random, &[] as &[Step]);
        Load { connections, depth, request_bytes, write_percent: 0, pattern, chain, seed: 1 }
    }

    /// One commit after the other ([`COMMIT`]), with writes of `request_bytes` at random places.
    pub const fn commits(request_bytes: u32) -> Load {
        Load { write_percent: 100, chain: COMMIT, ..Load::random_reads(1, 1, request_bytes) }
    }

    /// Bytes that a completed request counts for: those of all writes of a chain.
    pub fn counted_bytes(&self) -> u32 {
        match self.chain {
            [] => self.request_bytes,
            steps => self.request_bytes * steps.iter().filter(|step| **step == Step::Write).count() as u32,
        }
    }

    /// Step number `at` of a request, from 0 on. `None`: the request is complete before it.
    pub fn step(&self, at: usize) -> Option<Step> {
        self.chain.get(at).copied()
    }
}

/// When a run warms up and when it is counted, in nanoseconds since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// End of the warm-up.
    pub warm_up_ns: u64,
    /// End of the measured part.
    pub end_ns: u64,
}

impl Window {
    /// Warms up for `warm_up_ms`, then measures for `measured_ms`.
    pub const fn from_ms(warm_up_ms: u64, measured_ms: u64) -> Window {
        Window { warm_up_ns: warm_up_ms * 1_000_000, end_ns: (warm_up_ms + measured_ms) * 1_000_000 }
    }

    /// Length of the measured part, seconds.
    pub fn measured_s(&self) -> f64 {
        (self.end_ns - self.warm_up_ns) as f64 * 1e-9
    }
}

/// One request to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Next {
    /// First byte, inside the export.
    pub offset_bytes: u64,
    /// A write; otherwise a read.
    pub write: bool,
}

/// Makes the requests of one connection.
#[derive(Clone, Debug)]
pub struct Requests {
    random: Random,
    blocks: u64,
    next_block: u64,
    request_bytes: u32,
    write_percent: u8,
    pattern: Pattern,
}

impl Requests {
    /// The requests of connection number `connection` on an export of `export_bytes`.
    ///
    /// # Errors
    /// One sentence, if not even one request fits in the export.
    pub fn new(load: &Load, connection: u16, export_bytes: u64) -> Result<Requests, String> {
        let blocks = export_bytes / u64::from(load.request_bytes);
        if blocks == 0 {
            return Err(format!("a request of {} bytes does not fit in {export_bytes} bytes", load.request_bytes));
        }
        Ok(Requests {
            random: Random::new(load.seed.wrapping_mul(1 << 16) + u64::from(connection)),
            blocks,
            next_block: blocks * u64::from(connection) / u64::from(load.connections.max(1)),
            request_bytes: load.request_bytes,
            write_percent: load.write_percent,
            pattern: load.pattern,
        })
    }

    /// The next request.
    pub fn advance(&mut self) -> Next {
        let block = match self.pattern {
            Pattern::Random => self.random.below(self.blocks),
            Pattern::Sequential => {
                let block = self.next_block % self.blocks;
                self.next_block = block + 1;
                block
            }
        };
        let write = self.write_percent > 0 && self.random.below(100) < u64::from(self.write_percent);
        Next { offset_bytes: block * u64::from(self.request_bytes), write }
    }
}

/// Fills `bytes` with data that no drive can compress: pseudo-random numbers from `seed` on.
pub fn scramble(bytes: &mut [u8], seed: u64) {
    let mut random = Random::new(seed);
    for piece in bytes.chunks_mut(8) {
        piece.copy_from_slice(&random.next_u64().to_le_bytes()[..piece.len()]);
    }
}

/// Counts of one tenant (or one connection of it; they merge).
#[derive(Clone, Debug)]
pub struct Counted {
    window: Window,
    /// Bytes completed in each [`SERIES_STEP_NS`] since the start, warm-up included.
    pub series_bytes: Vec<u64>,
    /// Bytes completed in the measured part.
    pub bytes: u64,
    /// Requests completed in the measured part.
    pub requests: u64,
    /// Requests that the server failed, at any time.
    pub errors: u64,
    /// Requested to completed, of the requests in the measured part.
    pub total_ns: Histogram<u64>,
}

impl Counted {
    /// Counters at 0, with room for the steps of `window`.
    pub fn new(window: Window) -> Counted {
        let steps = window.end_ns.div_ceil(SERIES_STEP_NS) as usize;
        Counted {
            window,
            series_bytes: vec![0; steps],
            bytes: 0,
            requests: 0,
            errors: 0,
            // Three digits: a quarter of a megabyte, and percentiles to a tenth of a percent.
            total_ns: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("1 ns to 100 s is a valid range"),
        }
    }

    /// Counts a request of `bytes` that took `total_ns` and completed `at_ns` after the start.
    pub fn record(&mut self, at_ns: u64, total_ns: u64, bytes: u32) {
        if let Some(step) = self.series_bytes.get_mut((at_ns / SERIES_STEP_NS) as usize) {
            *step += u64::from(bytes);
        }
        if (self.window.warm_up_ns..self.window.end_ns).contains(&at_ns) {
            self.bytes += u64::from(bytes);
            self.requests += 1;
            self.total_ns.saturating_record(total_ns);
        }
    }

    /// Adds what another connection of the same tenant counted.
    pub fn merge(&mut self, other: &Counted) {
        assert_eq!(self.window, other.window, "only parts of one run add up");
        for (sum, part) in self.series_bytes.iter_mut().zip(&other.series_bytes) {
            *sum += part;
        }
        self.bytes += other.bytes;
        self.requests += other.requests;
        self.errors += other.errors;
        self.total_ns.add(&other.total_ns).expect("both have the same bounds");
    }

    /// Bandwidth in the measured part.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.window.measured_s()
    }

    /// Requests per second in the measured part.
    pub fn requests_per_s(&self) -> f64 {
        self.requests as f64 / self.window.measured_s()
    }

    /// 99th percentile of the time from request to completion; 0 if nothing was counted.
    pub fn p99_ns(&self) -> u64 {
        if self.requests == 0 { 0 } else { self.total_ns.value_at_quantile(0.99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const KIB: u32 = 1024;

    #[test]
    fn random_requests_stay_inside_and_reach_everything() {
        let mut requests = Requests::new(&Load::random_reads(1, 1, 4 * KIB), 0, 8 * 4096 + 100).unwrap();
        let mut seen = [0u32; 8];
        for _ in 0..8_000 {
            let next = requests.advance();
            assert_eq!(next.offset_bytes % 4096, 0);
            seen[(next.offset_bytes / 4096) as usize] += 1;
        }
        // 1,000 expected in each, standard deviation 30: five of them is never.
        assert!(seen.iter().all(|&count| (850..1150).contains(&count)), "{seen:?}");
    }

    #[test]
    fn connections_do_not_repeat_each_other() {
        let load = Load::random_reads(2, 1, 4 * KIB);
        let take = |connection| {
            let mut requests = Requests::new(&load, connection, 1 << 30).unwrap();
            (0..64).map(|_| requests.advance().offset_bytes).collect::<Vec<_>>()
        };
        assert_ne!(take(0), take(1));
        assert_eq!(take(0), take(0), "the same seed gives the same requests");
    }

    #[test]
    fn sequential_connections_start_in_their_own_part_and_wrap() {
        let load = Load { pattern: Pattern::Sequential, ..Load::random_reads(2, 1, 4 * KIB) };
        let mut second = Requests::new(&load, 1, 4 * 4096).unwrap();
        let offsets: Vec<u64> = (0..4).map(|_| second.advance().offset_bytes / 4096).collect();
        assert_eq!(offsets, [2, 3, 0, 1]);
    }

    #[test]
    fn a_share_of_the_requests_are_writes() {
        let load = Load { write_percent: 30, ..Load::random_reads(1, 1, 4 * KIB) };
        let mut requests = Requests::new(&load, 0, 1 << 30).unwrap();
        let writes = (0..10_000).filter(|_| requests.advance().write).count();
        // 3,000 expected, standard deviation 46.
        assert!((2_750..3_250).contains(&writes), "{writes}");
    }

    #[test]
    fn a_commit_is_three_writes_and_two_flushes() {
        let load = Load::commits(8 * KIB);
        assert_eq!(load.counted_bytes(), 3 * 8 * KIB);
        let steps: Vec<Step> = (0..).map_while(|at| load.step(at)).collect();
        assert_eq!(steps, [Step::Write, Step::Write, Step::Flush, Step::Write, Step::Flush]);
        let read = Load::random_reads(1, 1, 4 * KIB);
        assert_eq!((read.counted_bytes(), read.step(0)), (4 * KIB, None));
    }

    #[test]
    fn only_the_measured_part_counts_but_the_series_has_all() {
        // Warm-up 20 ms, measured 30 ms: 5 steps of 10 ms.
        let mut counted = Counted::new(Window::from_ms(20, 30));
        for at_ms in [5, 20, 49, 50] {
            counted.record(at_ms * 1_000_000, 1_000_000, 4096);
        }
        assert_eq!(counted.series_bytes, [4096, 0, 4096, 0, 4096], "the one at 50 ms is too late");
        assert_eq!((counted.requests, counted.bytes), (2, 8192), "those at 20 and 49 ms");
        assert!((counted.bytes_per_s() - 8192.0 / 0.030).abs() < 1.0);
        assert!((counted.p99_ns() as f64 / 1e6 - 1.0).abs() < 0.001, "three digits");
    }

    #[test]
    fn an_export_smaller_than_a_request_is_refused() {
        assert!(Requests::new(&Load::random_reads(1, 1, 4096), 0, 4095).is_err());
    }
}
