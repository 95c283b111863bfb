//! Flows: the unit of fairness. Identity, weight, and the finish tag that all queues share.
//!
//! Answers: which interval of virtual time does the next request of this flow get, whichever queue it arrives at?
//! Source: MQFQ section 2 (tags), Figure 2 ("end tag of last submitted request"), section 3.1 (one shared integer per
//! flow, advanced by fetch-and-add).
//!
//! # Shape
//! One cell of two cache lines per flow. The first is written with each charge: `finish` (end tag of the last submitted
//! request), `carry` (what rounding has kept back) and `credit` (see "Leases"). The second is only read: the weight, as
//! a reciprocal, so that no request divides.
//!
//! ```text
//!   start tag  = later(global virtual time, finish)            finish |--r1--|---r2---|-r3-|
//!   finish    := start tag + cost / weight                            ^ start tags tile the axis while backlogged
//! ```
//!
//! Every tag is a multiple of [`TAG_GRAIN`] (64 units, 1/16 byte at the default weight): the mindicator keeps 58 bits
//! of a tag, and a minimum that is rounded differs from the tag that it stands for, which at T = 0 would throttle even
//! the first queue for ever. The fraction that a request loses to the grain is carried to the flow's next request.
//!
//! # Invariants
//! F1. A start tag is never before the global virtual time that was passed in (I7: no credit for idleness).
//! F2. No two requests of one flow get overlapping intervals, on however many queues they arrive (I9). Requests that
//!     arrive at one queue get them in that order; without leases requests at different queues do too.
//! F3. The spans of any run of requests of one flow, at constant weight, sum to cost / weight within one grain.
//! F4. A finish tag is never more than a quarter of the circle behind global virtual time:
//!     [`FlowTable::refresh_if_due`].
//!
//! # Why "max, then add" in two steps is enough
//! | step | A submits, global virtual time 100     | B submits, same flow, global virtual time 140 | finish |
//! |------|----------------------------------------|-----------------------------------------------|--------|
//! |  1   | finish := max(finish, 100)             |                                               |   100  |
//! |  2   |                                        | finish := max(finish, 140)                    |   140  |
//! |  3   |                                        | start tag := fetch_add(finish, 10) = 140      |   150  |
//! |  4   | start tag := fetch_add(finish, 10) = 150 |                                             |   160  |
//! Between A's two steps others can only raise `finish`, so A still starts at or after 100 (F1), and the add hands each
//! interval to exactly one caller (F2). The pair behaves as if it happened at the add.
//!
//! A lease that goes back does lower `finish`, but not below a virtual time that a thread has read: the queue gives it
//! back before its lead moves, and a thread that reads the virtual time that came of the move also sees the lowered
//! `finish` (`Mindicator::query` carries it by Release and Acquire).
//!
//! # Leases
//! A flow that submits on many queues makes its finish tag the one line that all of them write. The paper leaves this
//! open (MQFQ section 3.1, end). Here a queue may take a piece of the flow's virtual time, a [`Lease`], with one add,
//! and cut the intervals of the flow's next requests from it alone.
//!
//! ```text
//!   finish    :  s         s+L       s+2L           queue 1 has leased [s, s+L), queue 2 [s+L, s+2L)
//!   queue 1   :  |r1|r2|r3·|                        three requests staged, room for one more
//!   queue 2   :            |r4|########|            leaves after one request; # is a hole
//! ```
//! When the flow leaves the queue, and no queue has taken from the flow since, `finish` goes back to where the lease
//! was used up to. Else the rest is a hole in the flow's axis: the flow was charged for service that it did not use.
//! Its length is added to the flow's `credit`, and the queue that takes the next lease takes credit first, as a
//! *refund*: as long as it lasts, requests are cut from it, which do not move the start tag, and the lease is shorter
//! by as much. So leases tile the axis as requests do without them, and the cost of holes is given back where a queue
//! takes next.
//!
//! Let L be the length of a lease, or of the longest since the flow was last idle, and k the number of queues that the
//! flow is on.
//!
//! L1. credit + what is in hand (unused parts and refunds of all leases) <= k L. A queue that takes a lease gets L in
//!     all, of which as much as possible, but for one grain, is credit: either no credit is left, and what is in hand
//!     is at most k L, or one grain is taken from the axis, and the request that the lease is taken for uses at least
//!     that. Use lowers the sum; going back to `finish` too; turning a hole or a refund into credit keeps it.
//! L2. For any point x of the axis, (holes before x) - (refunds used before x) lies in 0..=k L. Leases are taken in the
//!     order of the axis. Look at the moment when the last one that begins before x was taken: every hole before x is
//!     in credit, was refunded, or is still in hand as an unused part; every refund given until then is used before x
//!     or still in hand, and every one after it is used after x. So the difference is at most credit and what is in
//!     hand, and L1 applies. It is not negative, because holes lie before the place where they are refunded.
//!     Hence what the requests of the flow between two points of the axis cost differs from the points' distance by at
//!     most k L, however long the history. On one queue no other takes in between, there are no holes, and it is 0.
//! L3. A queue that takes a place at the end of the axis takes at least a grain of it. So no queue can move `finish`
//!     back before a start tag that another queue has, and the start tags in one queue do not go back (I9).
//! L4. A lease is used only while a request of the flow is staged in its queue, behind that request; so what is cut
//!     from it starts at or after global virtual time (F1), as the staged request does.
//!
//! The first request of a flow in a queue takes its own interval, as without leases, and only if that is shorter than a
//! grain a grain: a flow that never has two requests staged in one queue pays one add, not two.
//!
//! # Groups
//! A flow in a group (`flow/group.rs`) is charged at its effective weight, and later: when its request is the first of
//! the flow in its queue ([`FlowTable::charge_alone`]). Its intervals tile the axis as any other's, in the order of
//! these moments, and F1 to F4 hold.
//!
//! # Corrections
//! A request may turn out to have cost more or less than it was charged for ([`FlowTable::correct`]), or leave before
//! it was dispatched ([`FlowTable::take_back`]). The difference, at the weight in force then, is
//!
//! * a *debt*: it uses up credit, and the rest moves `finish` on, as if another queue had taken that piece of the axis;
//! * or *credit*: the next charges take that much less of the axis, and each at least a grain (L3).
//!
//! A flow that virtual time has passed has neither: F1 and I7 hold as without corrections. Leases in hand go on past a
//! debt, and a flow charged at once uses credit only where a queue takes a lease. So costs that are often wrong want a
//! table that charges late ([`FlowTable::charge_late`]) and has no leases: there each charge meets all corrections made
//! before it. Let n be the most requests of such a flow that are charged and not ended (D, and one per queue), e the
//! largest difference of one of them and l its largest request, in virtual time. Debts that are not on the axis yet are
//! at most n e, refunds that are not credit yet too, and credit at most n e + l: a request that is charged while
//! there is credit for all of it takes from the credit at least what it will give back. So between two points of the
//! axis the actual cost of a flow's requests differs from their distance by at most `3 n e + l`, in the place of k L.
//!
//! # Orderings
//! Relaxed throughout: each word is only ever changed by atomic read-modify-write (in a serial table, see
//! [`FlowTable::charge_late`], by one call at a time) and no other memory is published through it. Submissions that are
//! ordered by happens-before are ordered in `finish` by coherence.
//!
//! # Cost
//! Without a lease: one load and one add on a line that is shared only by the queues that serve this flow, and a
//! multiplication; a second add when cost / weight has a fraction. From a lease: no shared line is written, the line of
//! the weight is read. A new lease: two loads and one read-modify-write (with credit to use: two). Giving one back: one
//! read-modify-write, a second if there is a fraction, none if nothing is left. Refresh: one pass over all flows each
//! time global virtual time crosses an eighth of the circle (2.3e18 units: 9 days at 3 GB/s and default weight, 4
//! minutes at 100 GB/s and weight 1).

use super::group::{Hierarchy, Member, Tree};
use super::weight::{FRACTION_BITS, FlowId, Weight, units_per_cost};
use crate::cost::{COST_MAX, Cost};
use crate::sync::{AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::vtime::{VSpan, VTime};
use alloc::boxed::Box;

/// Every start and finish tag is a multiple of this many units, and so must be the virtual time that a scheduler starts
/// at. Equals the resolution of a mindicator node.
pub const TAG_GRAIN: VSpan = VSpan(64);

/// log2 of the grain, in the fixed point of `carry`.
const GRAIN_BITS: u32 = FRACTION_BITS + TAG_GRAIN.0.trailing_zeros();

const _: () = assert!(TAG_GRAIN.0.is_power_of_two());
// The longest interval, 1 TiB at weight 1, is below 2^57 units: a 64th of what compares.
const _: () = assert!((COST_MAX.0 as u128 * units_per_cost(Weight::MIN) as u128) >> FRACTION_BITS < 1 << 57);

/// The part of the circle that a point lies in, 0..=7.
const fn octant(point: VTime) -> u64 {
    point.raw() >> 61
}

/// A request's interval of virtual time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// Its start: the request's place in its queue.
    pub start_tag: VTime,
    /// Its length.
    pub span: VSpan,
}

impl Interval {
    /// Its end, where the flow's next request starts if it comes soon enough.
    #[inline]
    pub const fn finish_tag(self) -> VTime {
        self.start_tag.plus(self.span)
    }
}

/// One flow's shared words. Two lines, because processors fetch lines in pairs.
#[repr(align(128))]
struct FlowCell {
    charged: Charged,
    rate: Rate,
}

/// Words that a charge writes.
#[repr(align(64))]
struct Charged {
    finish: AtomicU64,
    /// Sum of the fractions below the grain; only the low `GRAIN_BITS` bits mean something.
    carry: AtomicU64,
    /// Units of virtual time that were leased and not used, and lie before `finish`. A multiple of the grain.
    credit: AtomicU64,
    /// Distance by which virtual time has passed `finish` since the hierarchy's last step, for a flow in a group.
    skipped: AtomicU64,
}

/// Words that a charge only reads: the weight, as a reciprocal.
#[repr(align(64))]
pub struct Rate {
    units_per_cost: AtomicU64,
    /// Largest cost that the weight alone decides about: `COST_MAX`, or 0 of a flow in a group. Constant, and so the
    /// check of the cost is also the look whether there is a group.
    cost_alone_max: u64,
    weight: AtomicU32,
    member: Member,
}

/// A piece of one flow's virtual time that one queue has taken and not used up. See "Leases" in the file's text.
///
/// Its owner alone cuts intervals from it. It must go back by [`FlowTable::give_back`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Start tag of the next request.
    next: VTime,
    end: VTime,
    /// Units that the next requests need not take from the lease. A multiple of the grain.
    refund: u64,
    /// This queue's part of the flow's `carry`, below one grain.
    carry: u64,
}

impl Lease {
    /// Unused length.
    #[inline]
    pub const fn left(&self) -> VSpan {
        VSpan(self.end.since(self.next) as u64)
    }

    #[inline]
    fn cut(&mut self, span: u64) -> Interval {
        let start_tag = self.next;
        self.next = start_tag.plus(VSpan(span));
        Interval { start_tag, span: VSpan(span) }
    }
}

impl Default for Lease {
    fn default() -> Self {
        Lease { next: VTime::ZERO, end: VTime::ZERO, refund: 0, carry: 0 }
    }
}

/// All flows of one scheduler.
pub struct FlowTable {
    cells: Box<[FlowCell]>,
    /// Octant of global virtual time at the last refresh; with groups the one before, so that each look is a reason to
    /// look on.
    refreshed: AtomicU64,
    hierarchy: Option<Box<Hierarchy>>,
    /// All flows are charged late ([`FlowTable::charge_late`]).
    is_late: bool,
    /// Calls that charge, correct or take back come one after another.
    is_serial: bool,
}

impl FlowTable {
    /// Flows `0..weights.len()`, none of which has been served. `start` is rounded down to [`TAG_GRAIN`].
    pub fn new(weights: &[Weight], start: VTime) -> Self {
        let start = align(start);
        let cell = |&weight: &Weight| FlowCell {
            charged: Charged {
                finish: AtomicU64::new(start.raw()),
                carry: AtomicU64::new(0),
                credit: AtomicU64::new(0),
                skipped: AtomicU64::new(0),
            },
            rate: Rate::new(weight),
        };
        let cells = weights.iter().map(cell).collect();
        FlowTable { cells, refreshed: AtomicU64::new(octant(start)), hierarchy: None, is_late: false, is_serial: false }
    }

    /// Puts flows into groups, before the first of them is charged. `period`: [`Hierarchy`].
    ///
    /// # Panics
    /// If flows are charged late, or the tree does not fit them.
    pub fn set_tree(&mut self, tree: &Tree, period: VSpan) {
        if tree.is_empty() {
            return;
        }
        assert!(!self.is_late, "flows that are charged late are in no group");
        for (cell, group) in self.cells.iter_mut().zip(&tree.of_flow) {
            if let Some(group) = group {
                (cell.rate.cost_alone_max, cell.rate.member) = (0, Member::of(*group));
            }
        }
        let start = if self.is_empty() { VTime::ZERO } else { self.finish_tag(FlowId(0)) };
        self.refreshed = AtomicU64::new(octant(start).wrapping_sub(1));
        let hierarchy = Hierarchy::new(tree, period, start);
        hierarchy.reweigh(|flow| self.member(flow));
        self.hierarchy = Some(Box::new(hierarchy));
    }

    /// Sets another `period` of the hierarchy, if there is one.
    pub(crate) fn set_step_period(&self, period: VSpan) {
        if let Some(hierarchy) = &self.hierarchy {
            hierarchy.set_period(period);
        }
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Takes the flow's next interval, of length `cost / weight`, at or after `global_vtime`.
    ///
    /// # Panics
    /// If the flow is unknown, or the cost is 0 or more than [`COST_MAX`]: a free request would let a tenant submit
    /// without end at one start tag.
    #[inline]
    pub fn charge(&self, flow: FlowId, cost: Cost, global_vtime: VTime) -> Interval {
        match self.cell(flow).rate.grains(cost) {
            Some(grains) => self.take(flow, grains, global_vtime),
            None => self.charge_in_group(flow, cost, global_vtime),
        }
    }

    /// As [`FlowTable::charge`], of a flow in no group. `None`: it is in one (or the cost is out of range, which is
    /// seen when it is deferred), and its request waits without an interval until it is the first of its flow in the
    /// queue, or the rest of a lease has room for it ([`Ahead`]); then it is charged. So staged requests keep old
    /// effective weights for a lease at most.
    ///
    /// # Panics
    /// As [`FlowTable::charge`].
    #[inline]
    pub fn charge_alone(&self, flow: FlowId, cost: Cost, global_vtime: VTime) -> Option<Interval> {
        let grains = self.cell(flow).rate.grains(cost)?;
        Some(self.take(flow, grains, global_vtime))
    }

    #[inline(always)]
    fn take(&self, flow: FlowId, (mut grains, fraction): (u64, u64), global_vtime: VTime) -> Interval {
        let charged = &self.cell(flow).charged;
        if fraction != 0 {
            grains += charged.add_carry(fraction);
        }
        let span = grains * TAG_GRAIN.0;
        let _ = charged.raise(global_vtime);
        // Relaxed: see the module's table.
        let start_tag = VTime::from_raw(charged.finish.fetch_add(span, Relaxed));
        Interval { start_tag, span: VSpan(span) }
    }

    /// As [`FlowTable::charge`], for a flow that has no request staged in the caller's queue, with a lease for its next
    /// ones: empty, unless the interval is.
    ///
    /// # Panics
    /// As [`FlowTable::charge`].
    pub fn charge_first(&self, flow: FlowId, cost: Cost, global_vtime: VTime) -> (Interval, Lease) {
        match self.cell(flow).rate.grains(cost) {
            Some(grains) => self.take_first(flow, grains, global_vtime),
            None => self.charge_first_in_group(flow, cost, global_vtime),
        }
    }

    #[inline(always)]
    fn take_first(&self, flow: FlowId, (mut grains, fraction): (u64, u64), global_vtime: VTime) -> (Interval, Lease) {
        let charged = &self.cell(flow).charged;
        if fraction != 0 {
            grains += charged.add_carry(fraction);
        }
        let span = grains * TAG_GRAIN.0;
        // At least a grain (L3).
        let taken = span.max(TAG_GRAIN.0);
        let _ = charged.raise(global_vtime);
        // Relaxed: see the module's table.
        let start = VTime::from_raw(charged.finish.fetch_add(taken, Relaxed));
        let mut lease = Lease { next: start, end: start.plus(VSpan(taken)), refund: 0, carry: 0 };
        (lease.cut(span), lease)
    }

    /// As [`FlowTable::charge`], for a flow that has a request staged in the caller's queue, out of the queue's `lease`
    /// on it. If that is used up, it takes a new one of `length` (or as long as this request needs, if that is longer).
    ///
    /// # Panics
    /// As [`FlowTable::charge`].
    pub fn charge_leased(
        &self,
        flow: FlowId,
        cost: Cost,
        global_vtime: VTime,
        lease: &mut Lease,
        length: VSpan,
    ) -> Interval {
        let FlowCell { charged, rate } = self.cell(flow);
        let in_group = || {
            check(cost);
            rate.grains_in_group(cost)
        };
        charged.cut(rate.grains(cost).unwrap_or_else(in_group), global_vtime, lease, length)
    }

    /// As [`FlowTable::charge_leased`], of a flow in no group; `None` as [`FlowTable::charge_alone`].
    ///
    /// # Panics
    /// As [`FlowTable::charge`].
    #[inline(always)] // the common path of `submit`; what is rare in it is not inlined
    pub fn charge_alone_leased(
        &self,
        flow: FlowId,
        cost: Cost,
        global_vtime: VTime,
        lease: &mut Lease,
        length: VSpan,
    ) -> Option<Interval> {
        let FlowCell { charged, rate } = self.cell(flow);
        let grains = rate.grains(cost)?;
        Some(charged.cut(grains, global_vtime, lease, length))
    }

    /// The weight of a flow in a group at a moment, to charge what is behind its first in a queue.
    #[inline(always)]
    pub(crate) fn ahead(&self, flow: FlowId, global_vtime: VTime) -> Ahead {
        Ahead { units_per_cost: self.cell(flow).rate.member.units_per_cost(), global_vtime }
    }

    /// As [`FlowTable::charge_deferred`] of the second request of a flow in a queue, whose first is staged there, so
    /// that no other thread needs to be told: what follows is cut from the same lease.
    #[inline(never)]
    pub(crate) fn charge_second(
        &self,
        flow: FlowId,
        cost: Cost,
        global_vtime: VTime,
        lease: &mut Lease,
        length: VSpan,
    ) -> Interval {
        self.charge_deferred(flow, cost, global_vtime, lease, length)
    }

    /// As [`FlowTable::charge_leased`] of a flow in a group, whose request was deferred and so has a cost in range.
    #[inline(always)] // into the one place where such requests are charged
    pub(crate) fn charge_deferred(
        &self,
        flow: FlowId,
        cost: Cost,
        global_vtime: VTime,
        lease: &mut Lease,
        length: VSpan,
    ) -> Interval {
        let FlowCell { charged, rate } = self.cell(flow);
        // A flow that came while another thread was at the sums is idle to them still. It has requests staged, and no
        // other call wakes it.
        if let Some(hierarchy) = &self.hierarchy {
            hierarchy.wants(&rate.member, rate.weight());
        }
        charged.cut(in_grains(rate.member.span_fixed(cost)), global_vtime, lease, length)
    }

    /// The flow has left the queue that holds `lease`: the unused part goes back.
    ///
    /// # Panics
    /// If the flow is unknown.
    #[inline]
    pub fn give_back(&self, flow: FlowId, lease: Lease) {
        if lease.end != lease.next || lease.refund != 0 || lease.carry != 0 {
            self.put_back(flow, lease);
        }
    }

    #[inline(never)]
    fn put_back(&self, flow: FlowId, mut lease: Lease) {
        let charged = &self.cell(flow).charged;
        if lease.carry != 0 {
            let span = charged.add_carry(lease.carry) * TAG_GRAIN.0;
            if lease.refund >= span {
                lease.refund -= span;
            } else if lease.left().0 >= span {
                let _ = lease.cut(span);
            } else {
                // Relaxed: see the module's text.
                charged.finish.fetch_add(span, Relaxed);
            }
        }
        let left = lease.left().0;
        // Relaxed: see the module's text; the load is only a look. If the exchange succeeds, no queue holds anything of
        // the flow that lies behind `next`.
        let is_last = left > 0
            && charged.finish.load(Relaxed) == lease.end.raw()
            && charged.finish.compare_exchange(lease.end.raw(), lease.next.raw(), Relaxed, Relaxed).is_ok();
        let credit = lease.refund + if is_last { 0 } else { left };
        if credit > 0 {
            charged.credit.fetch_add(credit, Relaxed);
        }
    }

    fn member(&self, flow: FlowId) -> (&Member, Weight) {
        let rate = &self.cell(flow).rate;
        (&rate.member, rate.weight())
    }

    /// As [`FlowTable::charge`] and [`FlowTable::charge_first`] of a flow in a group, which may have nothing staged.
    #[inline(never)]
    fn charge_in_group(&self, flow: FlowId, cost: Cost, global_vtime: VTime) -> Interval {
        check(cost);
        self.charge_promoted(flow, cost, global_vtime)
    }

    /// As [`FlowTable::charge`] of a flow whose requests wait without an interval, as those of a flow in a group do.
    /// The cost is in range.
    #[inline(always)] // into the one place where such requests are charged
    pub(crate) fn charge_promoted(&self, flow: FlowId, cost: Cost, global_vtime: VTime) -> Interval {
        let (grains, fraction) = self.grains_first(flow, cost, global_vtime);
        self.take(flow, (self.less_credit(flow, grains), fraction), global_vtime)
    }

    #[inline(never)]
    fn charge_first_in_group(&self, flow: FlowId, cost: Cost, global_vtime: VTime) -> (Interval, Lease) {
        check(cost);
        let (grains, fraction) = self.grains_first(flow, cost, global_vtime);
        self.take_first(flow, (self.less_credit(flow, grains), fraction), global_vtime)
    }

    #[inline(always)] // into the two that need it
    fn grains_first(&self, flow: FlowId, cost: Cost, global_vtime: VTime) -> (u64, u64) {
        let FlowCell { charged, rate } = self.cell(flow);
        let skipped = charged.raise(global_vtime);
        if skipped != 0 {
            // Relaxed: a sum that the next step takes, or the one after.
            charged.skipped.fetch_add(skipped, Relaxed);
        }
        if let Some(hierarchy) = &self.hierarchy {
            hierarchy.wants(&rate.member, rate.weight());
        }
        rate.grains_in_group(cost)
    }

    /// The weight set last.
    ///
    /// # Panics
    /// If the flow is unknown.
    pub fn weight(&self, flow: FlowId) -> Weight {
        self.cell(flow).rate.weight()
    }

    /// Finish tag of the last request charged.
    ///
    /// # Panics
    /// If the flow is unknown.
    pub fn finish_tag(&self, flow: FlowId) -> VTime {
        // Relaxed: a report.
        VTime::from_raw(self.cell(flow).charged.finish.load(Relaxed))
    }

    /// Keeps idle flows comparable (F4). Call whenever global virtual time was looked at; costs one load unless it has
    /// crossed into the next octant of the circle, and then one caller passes over all flows.
    ///
    /// A flow whose finish tag lies before global virtual time starts at global virtual time anyway, so raising the
    /// finish tag there changes nothing that the flow gets. Left alone, the tag of a flow that sleeps for half a circle
    /// would one day look as if it lay in the future, and the flow would be throttled until virtual time got there.
    pub fn refresh_if_due(&self, global_vtime: VTime) {
        let now = octant(global_vtime);
        // Relaxed: only elects the worker that refreshes. One that sees an old octant tries and loses.
        let seen = self.refreshed.load(Relaxed);
        let ahead = now.wrapping_sub(seen) & 7;
        // 5..=7 ahead is 1..=3 behind: a worker that looked at global virtual time before the one that refreshed last.
        if ahead != 0 && ahead < 5 {
            self.refresh(global_vtime, seen, now);
        }
    }

    #[inline(never)]
    fn refresh(&self, global_vtime: VTime, seen: u64, now: u64) {
        let Some(hierarchy) = &self.hierarchy else {
            // Relaxed: as the look.
            if self.refreshed.compare_exchange(seen, now, Relaxed, Relaxed).is_ok() {
                self.raise_all(global_vtime);
            }
            return;
        };
        let skipped = |flow| {
            // A flow that has wanted nothing starts at global virtual time anyway.
            let charged = &self.cell(flow).charged;
            let skipped = charged.raise(global_vtime);
            // Relaxed, both: see `grains_first`. A flow with an interval that virtual time has not passed came just
            // now.
            let is_ahead = global_vtime.is_before(VTime::from_raw(charged.finish.load(Relaxed)));
            (VSpan(charged.skipped.swap(0, Relaxed) + skipped), is_ahead)
        };
        hierarchy.step_if_due(global_vtime, |flow| self.member(flow), skipped);
        let before = now.wrapping_sub(1);
        // Relaxed: as the look. One ahead is as it should be.
        if now.wrapping_sub(seen) & 7 != 1 && self.refreshed.compare_exchange(seen, before, Relaxed, Relaxed).is_ok() {
            self.raise_all(global_vtime);
        }
    }

    fn raise_all(&self, global_vtime: VTime) {
        for cell in &self.cells {
            let _ = cell.charged.raise(global_vtime);
        }
    }

    #[inline]
    fn cell(&self, flow: FlowId) -> &FlowCell {
        match self.cells.get(flow.0 as usize) {
            Some(cell) => cell,
            None => panic_no_flow(flow, self.cells.len()),
        }
    }
}

#[cold]
#[inline(never)]
fn panic_no_flow(flow: FlowId, count: usize) -> ! {
    panic!("flow {} does not exist, there are {count}", flow.0);
}

const FRACTION_MASK: u64 = (1 << GRAIN_BITS) - 1;

/// The last multiple of [`TAG_GRAIN`] at or before `point`.
pub const fn align(point: VTime) -> VTime {
    VTime::from_raw(point.raw() & !(TAG_GRAIN.0 - 1))
}

impl Rate {
    /// The rate of this weight.
    pub fn new(weight: Weight) -> Self {
        Rate {
            units_per_cost: AtomicU64::new(units_per_cost(weight)),
            cost_alone_max: COST_MAX.0,
            weight: AtomicU32::new(u32::from(weight.get())),
            member: Member::nobody(),
        }
    }

    /// Charges at this weight from now on.
    pub fn set(&self, weight: Weight) {
        // Relaxed: two words that no thread reads together; `weight` is only reported.
        self.weight.store(u32::from(weight.get()), Relaxed);
        self.units_per_cost.store(units_per_cost(weight), Relaxed);
        if self.cost_alone_max == 0 && self.member.is_alone() {
            self.member.set_alone(units_per_cost(weight));
        }
    }

    /// The weight set last.
    #[inline]
    pub fn weight(&self) -> Weight {
        // Relaxed: a report.
        Weight(self.weight.load(Relaxed) as u16)
    }

    /// `cost / weight` in 2^-[`FRACTION_BITS`]ths of a unit, of any cost.
    #[inline]
    pub fn span_fixed(&self, cost: Cost) -> u128 {
        // Relaxed: whichever of two concurrent weights we meet, the request is charged at one of them.
        u128::from(cost.0) * u128::from(self.units_per_cost.load(Relaxed))
    }

    /// `cost / weight` in grains, and what is left in 2^-32ths of a unit. `None`: the flow is in a group, or the cost
    /// is out of range.
    #[inline]
    fn grains(&self, cost: Cost) -> Option<(u64, u64)> {
        (cost.0.wrapping_sub(1) < self.cost_alone_max).then(|| in_grains(self.span_fixed(cost)))
    }

    /// As `grains`, at the effective weight of a flow in a group. The cost is in range.
    #[inline]
    fn grains_in_group(&self, cost: Cost) -> (u64, u64) {
        in_grains(self.member.span_fixed(cost))
    }
}

#[inline]
fn in_grains(span_fixed: u128) -> (u64, u64) {
    ((span_fixed >> GRAIN_BITS) as u64, span_fixed as u64 & FRACTION_MASK)
}

#[inline]
pub(crate) fn check(cost: Cost) {
    assert!(cost.0 >= 1 && cost <= COST_MAX, "cost {} is out of range, allowed is 1 to {}", cost.0, COST_MAX.0);
}

impl Charged {
    /// An interval out of `lease`, or out of a new one of `length`.
    #[inline(always)]
    fn cut(
        &self,
        (mut grains, fraction): (u64, u64),
        global_vtime: VTime,
        lease: &mut Lease,
        length: VSpan,
    ) -> Interval {
        if fraction != 0 {
            lease.carry += fraction;
            grains += lease.carry >> GRAIN_BITS;
            lease.carry &= FRACTION_MASK;
        }
        let span = grains * TAG_GRAIN.0;
        if lease.left().0 < span || lease.refund > 0 || lease.next.is_before(global_vtime) {
            return self.cut_refunded(lease, span, length.0, global_vtime);
        }
        lease.cut(span)
    }

    /// Keeps a fraction back, and returns how many grains are full now: 0 or 1.
    fn add_carry(&self, fraction: u64) -> u64 {
        // Relaxed: a sum of which each adder takes the overflow that it caused, in whatever order they come. That the
        // word itself wraps is harmless: 2^64 is a multiple of the grain.
        let before = self.carry.fetch_add(fraction, Relaxed) & FRACTION_MASK;
        (before + fraction) >> GRAIN_BITS
    }

    /// `finish := later(finish, point)`, atomically. If that moves it, the flow has nothing staged and all its leases
    /// lie behind: then it has no credit either (I7). By how much it was moved.
    #[inline]
    fn raise(&self, point: VTime) -> u64 {
        // Relaxed: see the module's text.
        let mut seen = self.finish.load(Relaxed);
        while VTime::from_raw(seen).is_before(point) {
            match self.finish.compare_exchange_weak(seen, point.raw(), Relaxed, Relaxed) {
                Ok(_) => {
                    // Relaxed: a credit that another queue adds meanwhile is within L1, kept or not.
                    if self.credit.load(Relaxed) != 0 {
                        self.credit.store(0, Relaxed);
                    }
                    return point.since(VTime::from_raw(seen)) as u64;
                }
                Err(now) => seen = now,
            }
        }
        0
    }

    /// Cuts `span` from the lease's refund and then from the lease, after renewing it if both are too short.
    #[inline(never)]
    fn cut_refunded(&self, lease: &mut Lease, span: u64, length: u64, global_vtime: VTime) -> Interval {
        let passed = global_vtime.since(lease.next);
        if passed > 0 {
            // Virtual time has passed a part of the lease, which only a submit that was stopped half-way can bring
            // about: the part is a hole (F1), refunded at once.
            let hole = lease.left().0.min(passed as u64);
            lease.refund += hole;
            lease.next = global_vtime;
            lease.end = lease.end.later(global_vtime);
        }
        if lease.left().0 + lease.refund < span {
            self.renew(lease, span.max(length), global_vtime);
        }
        let refunded = lease.refund.min(span);
        lease.refund -= refunded;
        lease.cut(span - refunded)
    }

    /// Brings what is in hand to `length`, from the flow's credit and then from its axis.
    fn renew(&self, lease: &mut Lease, length: u64, global_vtime: VTime) {
        let _ = self.raise(global_vtime);
        let left = lease.left().0;
        let wanted = length - left - lease.refund;
        // At least a grain of the axis (L3).
        let credit = self.take_credit(wanted - TAG_GRAIN.0);
        lease.refund += credit;
        // Relaxed: see the module's text.
        let start = VTime::from_raw(self.finish.fetch_add(wanted - credit, Relaxed));
        if start != lease.end {
            // Others have taken since: the rest of the old lease is a hole, refunded at once.
            lease.refund += left;
            lease.next = start;
        }
        lease.end = start.plus(VSpan(wanted - credit));
    }

    /// Takes at most `wanted` of the flow's credit.
    fn take_credit(&self, wanted: u64) -> u64 {
        // Relaxed: see the module's text.
        let mut have = self.credit.load(Relaxed);
        while have > 0 && wanted > 0 {
            let taken = have.min(wanted);
            match self.credit.compare_exchange_weak(have, have - taken, Relaxed, Relaxed) {
                Ok(_) => return taken,
                Err(now) => have = now,
            }
        }
        0
    }
}

mod correct;
mod weights;

pub(crate) use correct::Ahead;

#[cfg(all(test, mqfq_loom))]
mod loom_tests;
#[cfg(all(test, not(mqfq_loom)))]
mod tests;
