//! Charging ahead: what a flow in a group is charged for requests behind the first that it has in a queue.
//!
//! Answers: which interval has such a request, out of the lease that the first was charged from? Invariants: it is cut
//! from what is left of that lease alone, so no line that others read is touched.

use super::{FRACTION_MASK, GRAIN_BITS, Interval, Lease, TAG_GRAIN, in_grains};
use crate::cost::Cost;
use crate::flow::group::span_fixed_at;
use crate::vtime::VTime;

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
