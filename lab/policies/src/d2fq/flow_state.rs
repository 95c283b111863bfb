//! The state of a flow in `d2fq`: its virtual time and whether it is active, shared by the workers, and each worker's
//! own part.
//!
//! Answers: how much has this flow been served for its weight, and does it want anything? Source: D2FQ Figure 10, and
//! section 3.5 on the grace period.
//!
//! # Shape
//! ```text
//!  Flow, two lines, shared                                      QueueFlow, per worker and flow, written by that worker
//!   vt             charged at each completion                    in_flight     requests
//!   busy_queues    workers with something of it in flight        carry         what charging rounded down
//!   idle_since_ns  when the last of them had nothing any more    class_bytes   submitted, by class
//!   activations    how often vt was set to global virtual time
//!   rate           weight, as a reciprocal
//! ```
//! The paper counts the requests in flight of a flow in one word. Here each worker counts its own, and the shared word
//! counts workers that have any: a flow that always has requests in flight at a worker does not write it.
//!
//! # Invariants
//! F1. A flow is active while a worker has something of it in flight, and for the grace period after.
//! F2. A flow that was inactive starts at global virtual time: no credit for idleness, and no debt. It is put there
//!     *before* it counts as active and by compare-and-exchange, so that no charge of another worker is lost or goes to
//!     the old virtual time, which would take global virtual time back.
//! F3. Charges of a run of requests at one worker and one weight sum to cost / weight within a unit: `carry` keeps the
//!     fraction.

use super::gvt::GlobalVtime;
use mqfq_sched::flow::{FRACTION_BITS, Rate, Weight};
use mqfq_sched::policy::QueueClass;
use mqfq_sched::sync::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use mqfq_sched::vtime::{VSpan, VTime};

const _: () = assert!(FRACTION_BITS == u32::BITS, "the carry of a charge is a u32");

/// One flow's shared words. Two lines, because processors fetch lines in pairs.
#[repr(align(128))]
pub(super) struct Flow {
    pub(super) vt: AtomicU64,
    idle_since_ns: AtomicU64,
    busy_queues: AtomicU32,
    /// Times that the flow was put at global virtual time; virtual times before and after a change do not compare.
    pub(super) activations: AtomicU32,
    pub(super) rate: Rate,
}

/// Just past the grace period at time 0.
const fn long_ago(grace_ns: u64) -> u64 {
    (grace_ns + 1).wrapping_neg()
}

impl Flow {
    /// Flow that was never active.
    pub(super) fn new(weight: Weight, start: VTime, grace_ns: u64) -> Flow {
        Flow {
            vt: AtomicU64::new(start.raw()),
            idle_since_ns: AtomicU64::new(long_ago(grace_ns)),
            busy_queues: AtomicU32::new(0),
            activations: AtomicU32::new(0),
            rate: Rate::new(weight),
        }
    }

    #[inline]
    pub(super) fn vtime(&self) -> VTime {
        // Relaxed: a number that others move; whichever of two moments is seen, class or report are of that one.
        VTime::from_raw(self.vt.load(Relaxed))
    }

    /// Nothing in flight anywhere, and past its grace period.
    #[inline]
    pub(super) fn is_inactive(&self, now_ns: u64, grace_ns: u64) -> bool {
        // Acquire: pairs with `leave`, so that a thread that sees no worker sees when the last one left. The clock of
        // another worker may be ahead of ours: then it is not idle yet.
        self.busy_queues.load(Acquire) == 0 && {
            // Relaxed: see above.
            let idle_ns = now_ns.wrapping_sub(self.idle_since_ns.load(Relaxed)) as i64;
            idle_ns > grace_ns as i64
        }
    }

    /// A worker that has nothing of it in flight is about to have: the paper's activation.
    #[inline(never)]
    pub(super) fn enter(&self, now_ns: u64, grace_ns: u64, gvt: &impl GlobalVtime) {
        loop {
            // Acquire: pairs with `charge`. If a charge is in it, the look at activity that follows sees the worker
            // that charged it. One that comes after makes the compare-and-exchange fail.
            let seen = self.vt.load(Acquire);
            if !self.is_inactive(now_ns, grace_ns) {
                break;
            }
            // Relaxed: only the number counts.
            if self.vt.compare_exchange(seen, gvt.now().raw(), Relaxed, Relaxed).is_ok() {
                self.activations.fetch_add(1, Relaxed);
                break;
            }
        }
        // Relaxed: it is the first of the modifications that `leave` ends, and releases nothing.
        self.busy_queues.fetch_add(1, Relaxed);
    }

    /// A worker has nothing of it in flight any more: its grace period begins if that was the last one.
    #[inline(never)]
    pub(super) fn leave(&self, now_ns: u64) {
        // Relaxed, then Release: a thread that sees the count sees the time, and all charges before.
        self.idle_since_ns.store(now_ns, Relaxed);
        self.busy_queues.fetch_sub(1, Release);
    }

    /// Gives the place to another flow, which has been idle for longer than the grace period and so starts at global
    /// virtual time. The caller has seen that nothing of the old flow is in flight.
    pub(super) fn retire(&self, grace_ns: u64) {
        // Relaxed: no request enters or leaves meanwhile.
        self.idle_since_ns.store(long_ago(grace_ns), Relaxed);
    }

    /// Charges so much, and returns the virtual time after it.
    #[inline(always)]
    pub(super) fn charge(&self, span: VSpan) -> VTime {
        // Release: pairs with `enter`.
        VTime::from_raw(self.vt.fetch_add(span.0, Release)).plus(span)
    }

    /// If it is later than `latest`, it is that.
    #[cold]
    pub(super) fn clamp_to(&self, latest: VTime) {
        self.move_to(|seen| latest.is_before(seen).then_some(latest));
    }

    /// If it is before `earliest`, it is that.
    #[cold]
    pub(super) fn raise_to(&self, earliest: VTime) {
        self.move_to(|seen| seen.is_before(earliest).then_some(earliest));
    }

    fn move_to(&self, target: impl Fn(VTime) -> Option<VTime>) {
        // Relaxed: only the number counts.
        let mut seen = self.vt.load(Relaxed);
        while let Some(target) = target(VTime::from_raw(seen)) {
            match self.vt.compare_exchange_weak(seen, target.raw(), Relaxed, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

/// One worker's part of a flow. That worker alone writes it, so its writes are loads and stores; others read
/// `class_bytes`.
pub(super) struct QueueFlow {
    pub(super) in_flight: AtomicU32,
    carry: AtomicU32,
    class_bytes: [AtomicU64; QueueClass::ALL.len()],
}

impl QueueFlow {
    /// A flow that has submitted nothing on this worker.
    pub(super) fn new() -> QueueFlow {
        QueueFlow {
            in_flight: AtomicU32::new(0),
            carry: AtomicU32::new(0),
            class_bytes: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Whole units in a charge of so many 2^-32ths of a unit; the rest is kept for the next charge.
    #[inline(always)]
    pub(super) fn whole(&self, span_fixed: u128) -> u128 {
        // Relaxed: only this worker reads and writes it.
        let sum = span_fixed + u128::from(self.carry.load(Relaxed));
        self.carry.store(sum as u32, Relaxed);
        sum >> FRACTION_BITS
    }

    /// Adds to the bytes submitted to this class.
    #[inline(always)]
    pub(super) fn submitted(&self, class: QueueClass, bytes: u64) {
        let sum = &self.class_bytes[class.index()];
        // Relaxed: only this worker writes it; others read a sum that is as old as they see it.
        sum.store(sum.load(Relaxed).wrapping_add(bytes), Relaxed);
    }

    /// Resets the state for another flow, which has submitted nothing. The caller has seen that this worker has nothing
    /// of the old one in flight.
    pub(super) fn retire(&self) {
        // Relaxed: this worker, which alone writes them, does not before it was told of the next flow.
        self.carry.store(0, Relaxed);
        self.class_bytes.iter().for_each(|bytes| bytes.store(0, Relaxed));
    }

    /// Bytes submitted to each class so far.
    pub(super) fn class_bytes(&self) -> [u64; QueueClass::ALL.len()] {
        // Relaxed: see above.
        [0, 1, 2].map(|class: usize| self.class_bytes[class].load(Relaxed))
    }
}

/// Four of them, on lines of their own: two workers never write one line.
#[repr(align(128))]
pub(super) struct Block(pub(super) [QueueFlow; Block::LEN]);

impl Block {
    pub(super) const LEN: usize = 4;

    /// A block of flows that have submitted nothing on this worker.
    pub(super) fn new() -> Block {
        Block(std::array::from_fn(|_| QueueFlow::new()))
    }
}
