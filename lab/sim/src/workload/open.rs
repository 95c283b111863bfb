//! Open loops: requests come by the clock, whatever has completed. And traces, whose clock was recorded.
//!
//! An open loop that cannot be served fast enough falls behind; its requests keep the times at which they should have
//! come, so their latencies say so.
//!
//! ```text
//!   clock of the bursts   0 ─────── on | 0 ─────── on | ...     the process of arrivals runs on this one
//!   virtual time          0 ─────── on   off   ─────── on  off  ...
//! ```

use super::shape::Shape;
use super::{Ask, Source, Step, Trace, TraceRequest, moves};

/// Requests at a rate.
pub struct Open {
    shape: Shape,
    /// Nothing comes before this.
    start_ns: u64,
    gap_ns: f64,
    poisson: bool,
    bursts: Option<(u64, u64)>,
    /// Requests so far.
    asked: u64,
    /// On the clock of the bursts: with equal gaps, of the first request; else of the next one.
    on_ns: f64,
    next_ns: u64,
}

impl Open {
    /// The first one comes within a gap of the start, at random, so that threads do not march in step.
    pub fn new(mut shape: Shape, start_ns: u64, rate_per_s: f64, poisson: bool, bursts: Option<(u64, u64)>) -> Open {
        let gap_ns = 1e9 / rate_per_s;
        let random = shape.random();
        let on_ns = gap_ns * if poisson { random.exponential() } else { random.unit() };
        let mut open = Open { shape, start_ns, gap_ns, poisson, bursts, asked: 0, on_ns, next_ns: 0 };
        open.next_ns = open.at_ns(on_ns);
        open
    }

    /// Virtual time of a point on the clock of the bursts.
    fn at_ns(&self, on_ns: f64) -> u64 {
        let whole_ns = on_ns as u64;
        self.start_ns
            + match self.bursts {
                None => whole_ns,
                Some((on, off)) => whole_ns / on * (on + off) + whole_ns % on,
            }
    }
}

impl Source for Open {
    fn next(&mut self, now_ns: u64) -> Step {
        let arrived_ns = self.next_ns;
        if now_ns < arrived_ns {
            return Step::WaitUntil(arrived_ns);
        }
        self.asked += 1;
        if self.poisson {
            self.on_ns += self.gap_ns * self.shape.random().exponential();
            self.next_ns = self.at_ns(self.on_ns);
        } else {
            // From the number of requests, not by adding gaps: the rate does not drift.
            self.next_ns = self.at_ns(self.on_ns + self.asked as f64 * self.gap_ns);
        }
        Step::Ask(self.shape.ask(arrived_ns))
    }

    fn completed(&mut self, _now_ns: u64) -> bool {
        true
    }
}

/// Every n-th request of a trace.
pub struct Replay {
    trace: Trace,
    next: usize,
    threads: usize,
    start_ns: u64,
    stretch: f64,
    depth: u32,
    in_flight: u32,
}

impl Replay {
    /// Requests of thread `thread` of `threads`.
    pub fn new(trace: Trace, stretch: f64, depth: Option<u32>, start_ns: u64, thread: u32, threads: u32) -> Replay {
        let depth = depth.unwrap_or(u32::MAX);
        Replay { trace, next: thread as usize, threads: threads as usize, start_ns, stretch, depth, in_flight: 0 }
    }
}

impl Source for Replay {
    fn next(&mut self, now_ns: u64) -> Step {
        let Some(request) = self.trace.requests.get(self.next) else { return Step::Done };
        if self.in_flight == self.depth {
            return Step::WaitForCompletion;
        }
        let TraceRequest { at_ns, is_write, offset_bytes, length_bytes } = *request;
        let at_ns = self.start_ns.saturating_add((at_ns as f64 * self.stretch) as u64);
        if now_ns < at_ns {
            return Step::WaitUntil(at_ns);
        }
        self.next += self.threads;
        self.in_flight += 1;
        let arrived_ns = if self.trace.timed { at_ns } else { now_ns };
        Step::Ask(Ask { op: moves(is_write), offset_bytes, length_bytes, arrived_ns })
    }

    fn completed(&mut self, _now_ns: u64) -> bool {
        self.in_flight -= 1;
        true
    }
}
