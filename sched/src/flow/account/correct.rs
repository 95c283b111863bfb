//! Charges that are not a flow's plain one: corrections, of a request that cost more or less than it was charged for or
//! left before it was dispatched; and charges ahead.
//!
//! Answers: what does the flow of a corrected request pay, or get back, and where on the axis? "Corrections" in the
//! file above has the rule and its term in the bound. Invariants: F1, F3 and L3 hold through every correction; the
//! fraction of a grain is carried as a charge's is.

use super::{Charged, FRACTION_MASK, FlowCell, FlowTable, GRAIN_BITS, Interval, Lease, TAG_GRAIN, in_grains};
use crate::cost::{COST_MAX, Cost};
use crate::flow::group::{Member, span_fixed_at};
use crate::flow::weight::FlowId;
use crate::sync::Ordering::Relaxed;
use crate::vtime::{VSpan, VTime};

impl FlowTable {
    /// From now on every flow is charged as one in a group is: when its request becomes the first of the flow in its
    /// queue, or out of the rest of a lease. So a correction reaches requests that are staged already. Before the first
    /// charge. `is_serial`: the caller sees to it that calls which charge, correct or take back come one after another.
    /// A charge then needs no atomic addition: 15 ns in the place of 23.
    ///
    /// # Panics
    /// If there are groups.
    pub fn charge_late(&mut self, is_serial: bool) {
        assert!(self.hierarchy.is_none(), "flows that are charged late are in no group");
        self.is_late = true;
        self.is_serial = is_serial;
        for FlowCell { rate, .. } in &mut self.cells {
            (rate.cost_alone_max, rate.member) = (0, Member::alone(rate.weight()));
        }
    }

    /// See [`FlowTable::charge_late`].
    #[inline]
    pub(crate) fn is_serial(&self) -> bool {
        self.is_serial
    }

    /// As [`FlowTable::charge_promoted`], in a serial table: a store does what an atomic addition does elsewhere.
    #[inline(always)] // into the one place where such requests are charged
    pub(crate) fn charge_serial(&self, flow: FlowId, cost: Cost, global_vtime: VTime) -> Interval {
        let FlowCell { charged, rate } = self.cell(flow);
        let (mut grains, fraction) = rate.grains_in_group(cost);
        // Relaxed, both: no other call is under way, and what orders the calls orders these words.
        let mut start_tag = VTime::from_raw(charged.finish.load(Relaxed));
        let mut credit = charged.credit.load(Relaxed);
        if start_tag.is_before(global_vtime) {
            (start_tag, credit) = (global_vtime, 0);
            // Relaxed: as above.
            charged.credit.store(0, Relaxed);
        }
        if credit > 0 && grains > 1 {
            // At least a grain of the axis (L3).
            let used = credit.min((grains - 1) * TAG_GRAIN.0);
            grains -= used / TAG_GRAIN.0;
            // Relaxed: as above.
            charged.credit.store(credit - used, Relaxed);
        }
        if fraction != 0 {
            // Relaxed, both: as above.
            let carry = (charged.carry.load(Relaxed) & FRACTION_MASK) + fraction;
            charged.carry.store(carry, Relaxed);
            grains += carry >> GRAIN_BITS;
        }
        let interval = Interval { start_tag, span: VSpan(grains * TAG_GRAIN.0) };
        // Relaxed: as above.
        charged.finish.store(interval.finish_tag().raw(), Relaxed);
        interval
    }

    /// Another rate of a flow, in 2^-32ths of a unit of virtual time per unit of cost, 1 to 2^63, from the next charge
    /// on. Its weight as reported stays.
    ///
    /// # Panics
    /// If the flow is unknown, or the table does not charge late.
    pub fn set_rate(&self, flow: FlowId, units_per_cost: u64) {
        assert!(self.is_late, "a rate of its own has a flow that is charged late");
        self.cell(flow).rate.member.set_alone(units_per_cost.clamp(1, 1 << 63));
    }

    /// A request of the flow that was charged for `charged` has cost `actual`. Either counts as [`COST_MAX`] if it is
    /// more; `actual` may be 0.
    ///
    /// # Panics
    /// If the flow is unknown.
    pub fn correct(&self, flow: FlowId, charged: Cost, actual: Cost, global_vtime: VTime) {
        let (before, after) = (charged.min(COST_MAX), actual.min(COST_MAX));
        if before == after {
            return;
        }
        let cell = self.cell(flow);
        if before < after {
            let (grains, fraction) = cell.grains_of(Cost(after.0 - before.0));
            cell.charged.owe((grains + cell.charged.add_carry(fraction)) * TAG_GRAIN.0, global_vtime);
        } else {
            let back = cell.charged.back(cell.grains_of(Cost(before.0 - after.0)));
            cell.charged.credit_unless_passed(back, global_vtime);
        }
    }

    /// A request of the flow, charged for `cost`, leaves the queue that holds `lease` before it was dispatched.
    /// `is_last`: none of the flow's requests behind it in this queue has an interval. Without a lease its interval
    /// goes back to the axis if it was the last on all queues, else to the credit.
    pub(crate) fn take_back(
        &self,
        flow: FlowId,
        (cost, interval): (Cost, Interval),
        is_last: bool,
        lease: Option<&mut Lease>,
        global_vtime: VTime,
    ) {
        let cell = self.cell(flow);
        let back = cell.charged.back(cell.grains_of(cost));
        let of_axis = back.min(interval.span.0);
        let from = interval.finish_tag().minus(VSpan(of_axis));
        match lease {
            Some(lease) if is_last && lease.next == interval.finish_tag() => {
                lease.next = from;
                lease.refund += back - of_axis;
            }
            Some(lease) => lease.refund += back,
            None => {
                let finish = interval.finish_tag().raw();
                // Relaxed: see the module's text. If it succeeds, no queue holds an interval behind this one, unless of
                // length 0: [`StageQueue`](crate::stage_queue::StageQueue) keeps those in order.
                let is_undone =
                    is_last && cell.charged.finish.compare_exchange(finish, from.raw(), Relaxed, Relaxed).is_ok();
                let credit = if is_undone { back - of_axis } else { back };
                cell.charged.credit_unless_passed(credit, global_vtime);
            }
        }
    }

    /// Grains that a charge of so many takes of the axis: in a table that charges late, less by the flow's credit.
    pub(super) fn less_credit(&self, flow: FlowId, grains: u64) -> u64 {
        if !self.is_late || grains < 2 {
            return grains;
        }
        // At least a grain of the axis (L3).
        grains - self.cell(flow).charged.take_credit((grains - 1) * TAG_GRAIN.0) / TAG_GRAIN.0
    }
}

impl FlowCell {
    /// A cost at the weight in force: grains, and the fraction of one.
    fn grains_of(&self, cost: Cost) -> (u64, u64) {
        let rate = &self.rate;
        in_grains(if rate.cost_alone_max == 0 { rate.member.span_fixed(cost) } else { rate.span_fixed(cost) })
    }
}

impl Charged {
    /// Units that go back for so many grains and a fraction, the fraction through the carry.
    fn back(&self, (grains, fraction): (u64, u64)) -> u64 {
        let grains = if fraction == 0 { grains } else { grains + 1 - self.add_carry((1 << GRAIN_BITS) - fraction) };
        grains * TAG_GRAIN.0
    }

    /// A debt: credit first, then the axis.
    fn owe(&self, units: u64, global_vtime: VTime) {
        if self.is_passed(global_vtime) {
            // Relaxed: as in `raise`.
            self.credit.store(0, Relaxed);
        }
        // Two looks may meet less than there is, where others add; the rest is on the axis, as credit still is.
        let rest = units - self.take_credit(units);
        if rest > 0 {
            // Relaxed: see the module's text.
            self.finish.fetch_add(rest, Relaxed);
        }
    }

    /// Credit, of a flow that has a place on the axis.
    fn credit_unless_passed(&self, units: u64, global_vtime: VTime) {
        if units > 0 && !self.is_passed(global_vtime) {
            // Relaxed: see the module's text.
            self.credit.fetch_add(units, Relaxed);
        }
    }

    /// Virtual time has passed the flow: it has nothing staged (I7).
    fn is_passed(&self, global_vtime: VTime) -> bool {
        // Relaxed: see the module's text.
        VTime::from_raw(self.finish.load(Relaxed)).is_before(global_vtime)
    }
}

// Charging ahead: what a flow in a group is charged for requests behind the first that it has in a queue.
//
// Answers: which interval has such a request, out of the lease that the first was charged from? Invariants: it is cut
// from what is left of that lease alone, so no line that others read is touched.

/// Rate at which a flow in a group is charged at a moment, out of the rest of a lease. So requests of a lease at most
/// are charged at a weight that changes meanwhile.
pub(crate) struct Ahead {
    pub(super) units_per_cost: u64,
    pub(super) global_vtime: VTime,
}

impl Ahead {
    /// An interval for a request whose cost is in range. `None`: too little is left.
    #[inline(always)]
    pub(crate) fn cut(&self, cost: Cost, lease: &mut Lease) -> Option<Interval> {
        let (grains, fraction) = in_grains(span_fixed_at(self.units_per_cost, cost));
        let carry = lease.carry + fraction;
        let span = (grains + (carry >> GRAIN_BITS)) * TAG_GRAIN.0;
        if lease.left().0 < span || lease.refund > 0 || lease.next.is_before(self.global_vtime) {
            return None;
        }
        lease.carry = carry & FRACTION_MASK;
        Some(lease.cut(span))
    }
}
