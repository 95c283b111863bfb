//! Requests of flows in groups, which are charged late.
//!
//! Answers: which of a flow's requests in a queue has its interval, when its weight may change until it goes? Source:
//! none; `flow/group.rs` says why it is charged late. Invariants: of a flow in a queue, one lease is charged ahead, and
//! one request; requests behind one without an interval have none.

use super::{Mqfq, Structures, VirtualTime, Waiting};
use crate::cost::Cost;
use crate::flow::{Ahead, FlowId, Interval, Lease, check};
use crate::stage_queue::Behind;
use crate::vtime::{VSpan, VTime};

impl<S: Structures> Mqfq<S> {
    /// Stages a request of a flow in a group, in a form with leases, that has others in this queue: with an interval if
    /// it is the second, or if none waits without one and the lease has room; else without. So of a flow one lease is
    /// staged at most, and one request.
    #[inline(never)]
    pub(super) fn submit_in_group(
        &self,
        mut behind: Behind<'_, Waiting, Lease>,
        flow: FlowId,
        cost: Cost,
        now: VTime,
        payload: Waiting,
    ) {
        check(cost);
        let lease_max = self.lease.get();
        if behind.has_deferred() {
            return behind.defer(cost, payload);
        }
        let lease = behind.kept_mut();
        let interval = match self.flows.ahead(flow, now).cut(cost, lease) {
            None if behind.is_second() => {
                let lease = behind.kept_mut();
                self.flows.charge_second(flow, cost, now, lease, VSpan(lease_max))
            }
            None => return behind.defer(cost, payload),
            Some(interval) => interval,
        };
        behind.push(interval.start_tag, interval.span, payload);
    }

    /// The interval of a request of a flow in a group, which has become its flow's first in its queue, and the rate of
    /// the requests behind it. The request before it is still shown, so global virtual time has not passed the flow's
    /// finish tag.
    #[inline(always)]
    pub(super) fn promote(&self, flow: FlowId, cost: Cost, lease: &mut Lease) -> (VTime, VSpan, Option<Ahead>) {
        let now = self.virtual_time.global_vtime();
        if self.flows.is_serial() {
            let Interval { start_tag, span } = self.flows.charge_serial(flow, cost, now);
            return (start_tag, span, None);
        }
        self.promote_shared(flow, cost, lease, now)
    }

    /// As [`Mqfq::promote`], of a flow that other calls charge meanwhile.
    #[inline(never)]
    fn promote_shared(&self, flow: FlowId, cost: Cost, lease: &mut Lease, now: VTime) -> (VTime, VSpan, Option<Ahead>) {
        let lease_max = self.lease.get();
        if lease_max == 0 {
            let Interval { start_tag, span } = self.flows.charge_promoted(flow, cost, now);
            return (start_tag, span, None);
        }
        let Interval { start_tag, span } = self.flows.charge_deferred(flow, cost, now, lease, VSpan(lease_max));
        (start_tag, span, Some(self.flows.ahead(flow, now)))
    }
}
