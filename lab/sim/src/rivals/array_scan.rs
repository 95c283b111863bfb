//! Smallest lead of all queues by looking at all of them: what the mindicator is compared with.
//!
//! Source: MQFQ sections 3.1 and 4.3.1, "iterating over an array of queue-local minima after each request dispatch".
//!
//! # Shape
//! ```text
//!   lead of queue 0 | queue 1 | ... | queue n-1        written by their owners, read by every query
//!   global virtual time                                raised by the query that found a later minimum
//! ```
//! A slot holds the lead in grains of 64 units and, in the freed low bits, whether the queue is occupied: what a leaf
//! of the mindicator shows. `SLOTS` of them lie side by side on one padded pair of lines. With 1, a write disturbs
//! no other slot; with 16, a scan reads an eighth of the lines (of 64 bytes) and a write disturbs seven
//! neighbours. Which is faster depends on the number of queues, so both are measured.
//!
//! # Invariants
//! A1. Global virtual time never goes back, and keeps its value while no queue is present.
//! A2. `query` never passes a lead whose `publish` returned before the query began, unless it had passed it before.
//! A3. No raise is lost: if each caller calls `query` after its `publish` or `depart`, global virtual time is the
//!     smallest lead when all have returned.
//!
//! A2 is weaker than the mindicator's M1: a scan takes time, and a lead that arrives while it is under way may be
//! missed. To close that gap, a scan would have to be repeated until it finds nothing changed. That is not done, in
//! favour of the array. The policy takes it as it takes any late, low lead: virtual time does not go back, the leaf
//! shows virtual time instead, and the request may go at once.
//!
//! # Cost
//! `publish`: a store and a fence. `query`: a load of every slot, and a compare-and-exchange if virtual time moves.

use super::word::{Padded, Word};
use mqfq_sched_watched::policy::structures::VirtualTime;
use mqfq_sched_watched::topology::HctxId;
use mqfq_sched_watched::vtime::VTime;
use std::sync::atomic::Ordering;

/// The low bits of a lead that are dropped, as the mindicator does.
const GRAIN_MASK: u64 = 63;
/// A slot of a queue with something staged.
const OCCUPIED: u64 = 1;

/// Leads in an array. See the module's text.
pub struct ArrayScan<W, const SLOTS: usize> {
    lines: Box<[Padded<[W; SLOTS]>]>,
    queues: usize,
    global_vtime: Padded<W>,
}

impl<W: Word, const SLOTS: usize> ArrayScan<W, SLOTS> {
    /// No queue present, virtual time at `start`.
    pub fn new(queues: usize, start: VTime) -> Self {
        let line = |_| Padded(std::array::from_fn(|_| W::new(0)));
        let lines = (0..queues.div_ceil(SLOTS)).map(line).collect();
        ArrayScan { lines, queues, global_vtime: Padded(W::new(start.raw())) }
    }

    /// The lead of `queue` is `lead` now. Only its owner may call this; call [`ArrayScan::query`] afterwards.
    pub fn publish(&self, queue: usize, lead: VTime) {
        self.write(queue, lead.raw() & !GRAIN_MASK | OCCUPIED);
    }

    /// `queue` has nothing staged any more. Call [`ArrayScan::query`] afterwards.
    pub fn depart(&self, queue: usize) {
        self.write(queue, 0);
    }

    /// Moves global virtual time up to the smallest lead, if that is later, and returns it.
    pub fn query(&self) -> VTime {
        let mut now = self.global_vtime();
        // The distance to the smallest lead; leads are less than half the circle from virtual time. A lead that arrived
        // late lies before it and moves nothing.
        let mut nearest = i64::MAX;
        for line in &self.lines {
            for slot in &line.0 {
                // Acquire: pairs with the Release in `write`: a thread that sees a lead sees what was staged before it.
                // (A load on x86-64 is one anyhow.)
                let word = slot.load(Ordering::Acquire);
                let lead = VTime::from_raw(word & !GRAIN_MASK);
                nearest = nearest.min(if word & OCCUPIED == 0 { i64::MAX } else { lead.since(now) });
            }
        }
        if nearest == i64::MAX || nearest <= 0 {
            return now;
        }
        let smallest = VTime::from_raw(now.raw().wrapping_add_signed(nearest));
        while now.is_before(smallest) {
            // AcqRel, Acquire on failure: pair with each other and with `global_vtime`, so that a thread that sees a
            // virtual time also sees the leads that it came from.
            let raised =
                self.global_vtime.compare_exchange_weak(now.raw(), smallest.raw(), Ordering::AcqRel, Ordering::Acquire);
            match raised {
                Ok(_) => return smallest,
                Err(actual) => now = VTime::from_raw(actual),
            }
        }
        now
    }

    /// Global virtual time, as the last `query` left it.
    pub fn global_vtime(&self) -> VTime {
        // Acquire: pairs with the AcqRel in `query`.
        VTime::from_raw(self.global_vtime.load(Ordering::Acquire))
    }

    fn write(&self, queue: usize, word: u64) {
        assert!(queue < self.queues, "queue {queue} of {}", self.queues);
        // Release: pairs with the Acquire in `query`.
        self.lines[queue / SLOTS].0[queue % SLOTS].store(word, Ordering::Release);
        // Pairs with the same fence of any other writer: of two that raise their leads at once, the one whose fence is
        // second sees both leads in the scan that follows. Without it each may still see the other's old lead, and
        // virtual time stops (A3).
        W::fence(Ordering::SeqCst);
    }
}

impl<W: Word, const SLOTS: usize> VirtualTime for ArrayScan<W, SLOTS> {
    fn publish(&self, hctx: HctxId, lead: VTime) {
        self.publish(hctx.index(), lead);
    }

    fn depart(&self, hctx: HctxId) {
        self.depart(hctx.index());
    }

    fn query(&self) -> VTime {
        self.query()
    }

    fn global_vtime(&self) -> VTime {
        self.global_vtime()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_sched_watched::watched::{self, Kind};
    use std::sync::atomic::AtomicU64;

    fn grains(count: u64) -> VTime {
        VTime::from_raw(count * 64)
    }

    fn claims<const SLOTS: usize>() {
        let array = ArrayScan::<AtomicU64, SLOTS>::new(40, grains(5));
        assert_eq!(array.query(), grains(5), "nobody is present");
        array.publish(3, grains(70));
        array.publish(39, grains(55));
        assert_eq!(array.query(), grains(55));
        array.publish(39, grains(90));
        assert_eq!(array.query(), grains(70));
        array.publish(0, grains(20));
        assert_eq!(array.query(), grains(70), "a late, low lead moves nothing back");
        array.depart(0);
        array.depart(3);
        assert_eq!(array.query(), grains(90));
        array.depart(39);
        assert_eq!((array.query(), array.global_vtime()), (grains(90), grains(90)));
    }

    #[test]
    fn it_does_what_the_mindicator_does() {
        claims::<1>();
        claims::<16>();
    }

    #[test]
    fn leads_are_compared_on_a_circle() {
        let before_wrap = VTime::from_raw(0_u64.wrapping_sub(128));
        let array = ArrayScan::<AtomicU64, 1>::new(2, before_wrap);
        array.publish(0, grains(3));
        array.publish(1, VTime::from_raw(0_u64.wrapping_sub(64)));
        assert_eq!(array.query(), VTime::from_raw(0_u64.wrapping_sub(64)));
        array.depart(1);
        assert_eq!(array.query(), grains(3));
    }

    #[test]
    fn a_raise_ends_with_the_fence_that_no_stress_test_can_show_to_be_missing() {
        // The window is a few nanoseconds of a store buffer; two threads that leave together hardly ever hit it.
        let array = ArrayScan::<watched::AtomicU64, 1>::new(2, VTime::ZERO);
        let mut accesses = Vec::new();
        watched::record(&mut accesses, || array.publish(1, grains(3)));
        let kinds: Vec<Kind> = accesses.iter().map(|access| access.kind).collect();
        assert_eq!(kinds, [Kind::Store, Kind::Fence]);
    }
}
