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

#[cfg(all(test, not(loom)))]
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
}
