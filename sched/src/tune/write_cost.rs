//! The cost of a write relative to a read's, followed while a device is used.
//!
//! Answers: how many read bytes is a written byte worth, now? A drive that collects garbage makes writes dearer and
//! cheaper again; charged by bytes, two tenants of equal weight then have equal bytes and unequal shares of the device.
//!
//! # Shape
//! ```text
//!  worker's own line                     shared                             every worker
//!  completed read and write units ─┐     a worker that completes one        once per reap:
//!  time with requests waiting     ─┴──▶  when a phase is over: estimate ──▶ cost in force ──▶ what a write is charged
//!                                        (write_cost/estimate.rs)
//! ```
//! A worker counts what it completes in its own line, without a read-modify-write. Every phase one worker, whichever
//! comes first, takes the sums of all to [`Estimate`], whose answer all workers charge from then on. A request keeps
//! the charge that it was admitted with.
//!
//! # Invariants
//! W1. The cost in force is within [`Estimate::RANGE_256THS`] at any time.
//! W2. A phase in which no request waited, or in which nothing ended, changes nothing.

mod estimate;

pub use estimate::{Estimate, Phase};

use crate::cost::{CostKind, CostModel, CostTerm};
use crate::sync::CachePadded;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering::Relaxed};
use crate::topology::HctxId;
use alloc::boxed::Box;
use alloc::vec;

/// Shortest phase, ns. Long enough that the requests under way at its edges do not count, and so short that a change of
/// seconds is followed.
pub const PHASE_NS: u64 = 20_000_000;

/// Counters of one worker's completions. They only grow, and wrap.
#[derive(Default)]
struct CounterLine {
    requests: AtomicU64,
    /// Cost of completed reads, and of completed writes as the model has it.
    read_units: AtomicU64,
    write_units: AtomicU64,
    /// Time with requests staged while others were on the device.
    waited_ns: AtomicU64,
    /// Part of `waited_ns` after which a reap found several requests and left none on the device.
    emptied_ns: AtomicU64,
}

/// The sums at the beginning of a phase, and the estimate.
#[derive(Debug)]
struct Judge {
    estimate: Estimate,
    begun_ns: u64,
    requests: u64,
    read_units: u64,
    write_units: u64,
    /// Times of each worker: `waited_ns` and `emptied_ns`.
    waited_ns: Box<[[u64; 2]]>,
}

/// The cost of writes on one device, shared by its workers.
pub struct WriteCost {
    model: CostModel,
    lines: Box<[CachePadded<CounterLine>]>,
    /// When a phase may end, ns. The worker that moves it on judges.
    due_ns: CachePadded<AtomicU64>,
    /// Cost of a write, in 256ths of the model's.
    in_force_256ths: CachePadded<AtomicU32>,
    /// The estimate, for reports: they take no lock that a worker may want.
    estimate_256ths: CachePadded<AtomicU32>,
    /// State of the judge, the worker that moved `due_ns`.
    judge: Mutex<Judge>,
}

impl WriteCost {
    /// Writes cost what `model` says, to begin with.
    pub fn new(model: CostModel, workers: usize) -> WriteCost {
        let estimate = Estimate::default();
        WriteCost {
            model,
            lines: (0..workers).map(|_| CachePadded::default()).collect(),
            due_ns: CachePadded::new(AtomicU64::new(0)),
            in_force_256ths: CachePadded::new(AtomicU32::new(estimate.in_force_256ths())),
            estimate_256ths: CachePadded::new(AtomicU32::new(estimate.estimate_256ths())),
            judge: Mutex::new(Judge {
                estimate,
                begun_ns: 0,
                requests: 0,
                read_units: 0,
                write_units: 0,
                waited_ns: vec![[0; 2]; workers].into(),
            }),
        }
    }

    /// A request of `kind` and length in bytes ended well on the worker of `hctx`, which alone says so.
    #[inline]
    pub fn count(&self, hctx: HctxId, kind: CostKind, length_bytes: u64) {
        let line = &self.lines[hctx.index()];
        let units = match kind {
            CostKind::Read => &line.read_units,
            CostKind::Write => &line.write_units,
            CostKind::Discard | CostKind::Flush => return,
        };
        add(units, self.model.cost(kind, length_bytes).0);
        add(&line.requests, 1);
    }

    /// The worker of `hctx` had requests staged for `ns` while others of its were on the device. `is_emptied`: it then
    /// found several completions at once, and none of its requests is left on the device.
    #[inline]
    pub fn waited(&self, hctx: HctxId, ns: u64, is_emptied: bool) {
        let line = &self.lines[hctx.index()];
        add(&line.waited_ns, ns);
        if is_emptied {
            add(&line.emptied_ns, ns);
        }
    }

    /// Charge of a write from now on; judges the phase if it is over. Once per reap.
    #[inline]
    pub fn term(&self, now_ns: u64) -> CostTerm {
        // Relaxed: a hint; `judge` decides.
        let due_ns = self.due_ns.load(Relaxed);
        if now_ns >= due_ns {
            self.judge(now_ns, due_ns);
        }
        // Relaxed: any value of it is one that was in force, and nothing else is read by it.
        scaled(self.model.write, self.in_force_256ths.load(Relaxed))
    }

    #[inline(never)]
    fn judge(&self, now_ns: u64, due_ns: u64) {
        // Relaxed: it decides which worker judges, and carries nothing.
        if self.due_ns.compare_exchange(due_ns, now_ns.saturating_add(PHASE_NS), Relaxed, Relaxed).is_err() {
            return;
        }
        // A panic under the lock is a bug of ours that has already been reported; the others need not follow.
        let mut judge = self.judge.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let sum = |of: fn(&CounterLine) -> &AtomicU64| {
            // Relaxed: each counter is right by itself, and one that lags by a reap ends in the next phase.
            self.lines.iter().fold(0_u64, |sum, line| sum.wrapping_add(of(line).load(Relaxed)))
        };
        let requests = sum(|line| &line.requests);
        let ended = requests.wrapping_sub(judge.requests);
        let time_ns = now_ns.saturating_sub(judge.begun_ns);
        if ended < Estimate::PHASE_REQUESTS && time_ns < Estimate::PHASE_NS_MAX {
            // It goes on.
            return;
        }
        let (read_units, write_units) = (sum(|line| &line.read_units), sum(|line| &line.write_units));
        let mut most_ns = [0; 2];
        for (before, at) in judge.waited_ns.iter_mut().zip(0..) {
            for ((most_ns, before), now) in most_ns.iter_mut().zip(before).zip(self.waits_ns(HctxId(at))) {
                *most_ns = now.wrapping_sub(*before).max(*most_ns);
                *before = now;
            }
        }
        let [waited_ns, emptied_ns] = most_ns;
        let phase = Phase {
            requests: ended,
            read_units: read_units.wrapping_sub(judge.read_units),
            write_units: write_units.wrapping_sub(judge.write_units),
            time_ns,
            waited_ns,
            emptied_ns,
        };
        (judge.begun_ns, judge.requests) = (now_ns, requests);
        (judge.read_units, judge.write_units) = (read_units, write_units);
        judge.estimate.phase(phase);
        // Relaxed: as in `term`.
        self.in_force_256ths.store(judge.estimate.in_force_256ths(), Relaxed);
        // Relaxed: a figure of its own, for reports.
        self.estimate_256ths.store(judge.estimate.estimate_256ths(), Relaxed);
    }

    /// Times of the worker of `hctx`: that [`WriteCost::waited`] was told, and the part with `is_emptied`, ns.
    pub fn waits_ns(&self, hctx: HctxId) -> [u64; 2] {
        let line = &self.lines[hctx.index()];
        // Relaxed: figures of their own.
        [&line.waited_ns, &line.emptied_ns].map(|counter| counter.load(Relaxed))
    }

    /// The estimate, for reports: cost of a write, in 256ths of the model's.
    pub fn estimate_256ths(&self) -> u32 {
        // Relaxed: pairs with the store in `judge`, which nothing else hangs on.
        self.estimate_256ths.load(Relaxed)
    }
}

/// Adds to a counter that this worker alone writes.
#[inline]
fn add(counter: &AtomicU64, value: u64) {
    // Relaxed: the judge needs no order among counters, and no other worker writes this one.
    counter.store(counter.load(Relaxed).wrapping_add(value), Relaxed);
}

/// `term`, times so many 256ths. No write costs nothing: a charge is at least 1 ([`CostTerm::cost`]).
fn scaled(term: CostTerm, times_256ths: u32) -> CostTerm {
    let times = |number: u64| u64::try_from(u128::from(number) * u128::from(times_256ths) / 256).unwrap_or(u64::MAX);
    CostTerm {
        base_bytes: times(term.base_bytes),
        per_byte_256ths: u32::try_from(times(term.per_byte_256ths.into())).unwrap_or(u32::MAX),
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    #[test]
    fn a_term_is_scaled_in_both_parts() {
        let term = CostTerm { base_bytes: 1000, per_byte_256ths: 640 };
        assert_eq!(scaled(term, 512), CostTerm { base_bytes: 2000, per_byte_256ths: 1280 });
        assert_eq!(scaled(term, 64), CostTerm { base_bytes: 250, per_byte_256ths: 160 });
        let most = CostTerm { base_bytes: u64::MAX, per_byte_256ths: u32::MAX };
        assert_eq!(scaled(most, 512), most);
    }

    /// Two workers, one reading and one writing, backlogged, on a device of which a read byte takes 1 ns and a written
    /// one `times`: their shares are equal in what is charged.
    fn run(cost: &WriteCost, times: u64, rows: u64, mut now_ns: u64, is_emptied: bool) -> u64 {
        for _ in 0..rows * 1024 {
            let charged = cost.term(now_ns).cost(4 * KIB).0;
            // A write of 4 KiB for as many reads as cost the same, to the nearest of 16ths.
            let reads_16ths = charged * 16 / (4 * KIB);
            cost.count(HctxId(1), CostKind::Write, 4 * KIB);
            cost.count(HctxId(0), CostKind::Read, reads_16ths * KIB / 4);
            let took_ns = 4 * KIB * times + reads_16ths * KIB / 4;
            cost.waited(HctxId(0), took_ns, is_emptied);
            now_ns += took_ns;
        }
        now_ns
    }

    #[test]
    fn whoever_completes_when_a_phase_is_over_judges_it_for_all() {
        let cost = WriteCost::new(CostModel::FLAT, 2);
        assert_eq!(cost.term(0), CostModel::FLAT.write);
        assert_eq!(cost.estimate_256ths(), 256, "nothing was found yet");
        let now_ns = run(&cost, 3, 200, 0, false);
        let found = cost.estimate_256ths();
        assert!(found.abs_diff(3 * 256) < 30, "{found} is not 768");
        let now_ns = run(&cost, 1, 200, now_ns, false);
        let found = cost.estimate_256ths();
        assert!(found.abs_diff(256) < 10, "{found} is not 256");
        // A worker that finds all of its requests ended was away from its core: such phases say nothing.
        run(&cost, 3, 200, now_ns, true);
        assert_eq!(cost.estimate_256ths(), found);
    }

    #[test]
    fn flushes_and_discards_are_not_counted() {
        let cost = WriteCost::new(CostModel::FLAT, 1);
        for at in 0..10_000 {
            cost.count(HctxId(0), CostKind::Flush, 0);
            cost.count(HctxId(0), CostKind::Discard, 4096);
            cost.waited(HctxId(0), PHASE_NS, false);
            assert_eq!(cost.term(at * PHASE_NS), CostModel::FLAT.write, "W2: nothing ended");
        }
    }

    #[test]
    fn a_phase_is_over_after_enough_requests_or_a_second_at_the_next_look() {
        let cost = WriteCost::new(CostModel::FLAT, 2);
        let begun_ns = |now_ns: u64| {
            cost.term(now_ns);
            cost.judge.lock().unwrap().begun_ns
        };
        let count = |requests: u64| (0..requests).for_each(|_| cost.count(HctxId(0), CostKind::Read, 4096));
        // The first look begins the time to the next.
        assert_eq!(begun_ns(0), 0);
        count(Estimate::PHASE_REQUESTS - 1);
        assert_eq!(begun_ns(PHASE_NS), 0, "one is missing");
        count(1);
        cost.waited(HctxId(1), 77, false);
        cost.waited(HctxId(1), 11, true);
        assert_eq!(begun_ns(2 * PHASE_NS - 1), 0, "nobody looks yet");
        assert_eq!(begun_ns(2 * PHASE_NS), 2 * PHASE_NS);
        assert_eq!(*cost.judge.lock().unwrap().waited_ns, [[0, 0], [88, 11]], "from which the next phase counts");
        // Nothing more ends: a second.
        let second = 2 * PHASE_NS + Estimate::PHASE_NS_MAX;
        assert_eq!(begun_ns(second - 1), 2 * PHASE_NS);
        assert_eq!(begun_ns(second - 1 + PHASE_NS), second - 1 + PHASE_NS);
        let next = second - 1 + PHASE_NS + Estimate::PHASE_NS_MAX;
        assert_eq!(begun_ns(next), next, "exactly a second");
    }
}
