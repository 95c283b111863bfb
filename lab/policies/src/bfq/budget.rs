//! How much may a queue use in its next turn?
//!
//! Source: Valente and Checconi 2010, section 5 (feedback); Valente and Avanzini, "Evolution of the BFQ Storage-I/O
//! Scheduler", MST 2015; the constants as measured against in Linux 6.12. Weights hold whatever the budgets are
//! (`service_tree.rs`); a large budget is for throughput, a small one for being served soon.

/// Largest budget until the device's rate is known: 16384 sectors.
pub(super) const DEFAULT_MAX_BYTES: u64 = 16_384 * 512;

/// The smallest budget is the largest over this.
const MIN_PART: u64 = 32;

/// The largest budget is never less than this, so that the smallest one is still a page.
const MAX_LEAST_BYTES: u64 = MIN_PART * 4096;

/// Nor more: virtual time is computed within 64 bits.
const MAX_MOST_BYTES: u64 = 1 << 40;

/// Why a turn ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expiry {
    /// The next request does not fit in what is left of the budget.
    Exhausted,
    /// The queue took longer than the timeout.
    Timeout,
    /// Waiting for the queue was in vain, after its last request on the device was done.
    Idle,
    /// The queue has nothing staged, and is not worth waiting for.
    Empty,
    /// A queue arrived that goes before it.
    Preempted,
}

/// Bounds of a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    pub(super) max_bytes: u64,
}

impl Limits {
    /// `fixed_bytes` as set by hand, or what the device does at its peak rate until a turn times out, or a guess.
    pub(super) fn new(fixed_bytes: u64, peak_bytes_per_s: Option<u64>, timeout_ns: u64) -> Limits {
        let max_bytes = match (fixed_bytes, peak_bytes_per_s) {
            (0, Some(rate)) => (u128::from(rate) * u128::from(timeout_ns) / 1_000_000_000) as u64,
            (0, None) => DEFAULT_MAX_BYTES,
            (fixed, _) => fixed,
        };
        Limits { max_bytes: max_bytes.clamp(MAX_LEAST_BYTES, MAX_MOST_BYTES) }
    }

    /// The smallest budget.
    pub(super) fn min_bytes(self) -> u64 {
        self.max_bytes / MIN_PART
    }

    /// Budget of a queue that has had no turn.
    pub(super) fn first_bytes(self) -> u64 {
        self.max_bytes / 3 * 2
    }

    /// The next budget of a queue that had `budget_bytes`, used `served_bytes`, and whose turn ended so.
    pub(super) fn next_bytes(self, budget_bytes: u64, served_bytes: u64, expiry: Expiry) -> u64 {
        let min = self.min_bytes();
        let next = match expiry {
            // It could have gone on: it reads or writes much, and the longer it is let, the better for throughput.
            Expiry::Exhausted => budget_bytes.saturating_mul(4),
            Expiry::Timeout => budget_bytes.saturating_mul(2),
            // It uses little: with a small budget it is served sooner.
            Expiry::Idle => budget_bytes.saturating_sub(4 * min),
            // The queue needs as much as it used.
            Expiry::Empty => served_bytes,
            Expiry::Preempted => budget_bytes,
        };
        next.clamp(min, self.max_bytes)
    }

    /// Budget of a queue whose weight is raised.
    pub(super) fn raised_bytes(self) -> u64 {
        2 * self.min_bytes()
    }
}

/// Least number of completions in an observation.
const SAMPLES_MIN: u32 = 32;

/// Least time of an observation.
const BUSY_MIN_NS: u64 = 300_000_000;

/// How many bytes per second does the device do at its best?
///
/// Source: Valente and Avanzini 2015 (peak-rate estimation over intervals, with a low-pass filter); 32 samples and 300
/// ms as in Linux 6.12. Ours is simpler than the papers', which must tell sequential from random on disks.
///
/// # Shape
/// An observation covers time during which at least one request is on the device: waiting for a queue's next request
/// (idling) is the scheduler's doing, and no fault of the device. After 300 ms of that and 32 completions it gives a
/// rate, and the next one begins. The estimate is the first such rate; later ones move it by half of the difference
/// upwards and an eighth downwards, because a light load shows less than the device can do and nothing shows more.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct PeakRate {
    bytes_per_s: Option<u64>,
    in_flight: u32,
    /// Since when time is counted, if anything is in flight.
    since_ns: u64,
    busy_ns: u64,
    bytes: u64,
    samples: u32,
}

impl PeakRate {
    /// The estimate, once there is one.
    pub(super) fn bytes_per_s(&self) -> Option<u64> {
        self.bytes_per_s
    }

    /// Requests on the device.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// A request goes to the device.
    pub(super) fn dispatched(&mut self, now_ns: u64) {
        if self.in_flight == 0 {
            self.since_ns = now_ns;
        }
        self.in_flight += 1;
    }

    /// A request of `bytes` comes back. True if the estimate changed.
    pub(super) fn completed(&mut self, bytes: u64, now_ns: u64) -> bool {
        self.in_flight -= 1;
        self.busy_ns += now_ns.saturating_sub(self.since_ns);
        self.since_ns = now_ns;
        self.bytes += bytes;
        self.samples += 1;
        if self.samples < SAMPLES_MIN || self.busy_ns < BUSY_MIN_NS {
            return false;
        }
        let rate = (u128::from(self.bytes) * 1_000_000_000 / u128::from(self.busy_ns)) as u64;
        (self.bytes, self.busy_ns, self.samples) = (0, 0, 0);
        if rate == 0 {
            // Only flushes and discards came back.
            return false;
        }
        self.bytes_per_s = Some(match self.bytes_per_s {
            None => rate,
            Some(old) if rate > old => old + (rate - old).div_ceil(2),
            Some(old) => old - (old - rate) / 8,
        });
        true
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_feedback_is_as_stated() {
        let limits = Limits::new(0, None, 125_000_000);
        // 16384 sectors; 32 of those parts; two thirds for a new queue.
        assert_eq!((limits.max_bytes, limits.min_bytes(), limits.first_bytes()), (8 << 20, 256 << 10, 5_592_404));
        let next = |budget, expiry| limits.next_bytes(budget, 300 << 10, expiry);
        assert_eq!(next(1 << 20, Expiry::Exhausted), 4 << 20);
        assert_eq!(next(1 << 20, Expiry::Timeout), 2 << 20);
        assert_eq!(next(1 << 20, Expiry::Empty), 300 << 10);
        assert_eq!(next(4 << 20, Expiry::Idle), 3 << 20);
        assert_eq!(next(1 << 20, Expiry::Preempted), 1 << 20);
        // Never outside min and max.
        assert_eq!(next(4 << 20, Expiry::Exhausted), 8 << 20);
        assert_eq!(next(512 << 10, Expiry::Idle), 256 << 10);
        assert_eq!(limits.raised_bytes(), 512 << 10);
    }

    #[test]
    fn the_largest_budget_is_set_or_what_the_device_does_in_a_timeout() {
        // 800 MB/s for 125 ms.
        assert_eq!(Limits::new(0, Some(800_000_000), 125_000_000).max_bytes, 100_000_000);
        assert_eq!(Limits::new(1 << 20, Some(800_000_000), 125_000_000).max_bytes, 1 << 20);
        assert_eq!(Limits::new(1, None, 125_000_000).max_bytes, 128 << 10);
    }

    /// `requests` of `bytes`, one at a time, each taking `device_ns` and followed by `idle_ns` of nothing.
    fn serve(rate: &mut PeakRate, now_ns: &mut u64, requests: u32, bytes: u64, device_ns: u64, idle_ns: u64) {
        for _ in 0..requests {
            rate.dispatched(*now_ns);
            *now_ns += device_ns;
            rate.completed(bytes, *now_ns);
            *now_ns += idle_ns;
        }
    }

    #[test]
    fn no_estimate_before_32_samples_and_300_ms() {
        let (mut rate, mut now) = (PeakRate::default(), 0);
        // 31 of 10 ms: long enough, too few.
        serve(&mut rate, &mut now, 31, 1 << 20, 10_000_000, 0);
        assert_eq!(rate.bytes_per_s(), None);
        serve(&mut rate, &mut now, 1, 1 << 20, 10_000_000, 0);
        // 1 MiB per 10 ms.
        assert_eq!(rate.bytes_per_s(), Some(104_857_600));
        // 1000 of 100 us: enough, too short.
        let (mut rate, mut now) = (PeakRate::default(), 0);
        serve(&mut rate, &mut now, 2999, 4096, 100_000, 0);
        assert_eq!(rate.bytes_per_s(), None);
        serve(&mut rate, &mut now, 1, 4096, 100_000, 0);
        assert_eq!(rate.bytes_per_s(), Some(40_960_000));
    }

    #[test]
    fn pauses_do_not_count_and_the_estimate_converges() {
        let (mut rate, mut now) = (PeakRate::default(), 0);
        // A first impression that is ten times too slow, then 400 MB/s with 8 ms of waiting after each.
        serve(&mut rate, &mut now, 300, 40_000, 1_000_000, 0);
        assert_eq!(rate.bytes_per_s(), Some(40_000_000));
        serve(&mut rate, &mut now, 3000, 400_000, 1_000_000, 8_000_000);
        let up = rate.bytes_per_s().unwrap();
        assert!((399_000_000..=400_000_000).contains(&up), "{up}");
        // A light load for one observation moves it by an eighth of the difference.
        serve(&mut rate, &mut now, 300, 40_000, 1_000_000, 0);
        let down = rate.bytes_per_s().unwrap();
        assert!((354_000_000..=355_500_000).contains(&down), "{down}");
    }
}
