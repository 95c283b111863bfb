//! Requests, and queues, that leave before their turn; and costs that are known at the end.
//!
//! Answers: what remains of a request that is given up, of a worker that is away, and of a wrong estimate? Invariants:
//! P1 to P3 hold after each call, if the caller picks after it as after a `submit`.
//!
//! A worker that is away shows a lead that stays, and so holds virtual time and with it all others. So its queue is
//! emptied for it ([`Mqfq::step_aside`]): its leaf departs, tokens on its path percolate, its places in wheel and ready
//! set are given up, and each request gives back what it was charged. When the worker is back it submits them again,
//! at virtual time or later (I7): it has no credit for the time away, nor pays twice. To the theorem its flows were not
//! backlogged meanwhile. A late kick of an empty queue is answered by a pick (the third race at the head of `mod.rs`):
//! one that no worker will pick for strands the token that it was kicked for, so the caller picks for a queue that
//! stands aside, in the place of its worker.

use super::queue::Queue;
use super::{Mqfq, Structures, VirtualTime};
use crate::cost::Cost;
use crate::flow::{Ahead, FlowId, Interval, Lease};
use crate::policy::{Handle, Kick, Pick, Policy};
use crate::stage_queue::Left;
use crate::sync::Setting;
use crate::vtime::VSpan;

impl<S: Structures> Mqfq<S> {
    /// Charges every flow late, and without leases: a request is charged when it becomes the first of its flow in its
    /// queue, so that a correction and a withdrawal reach those behind. Before the first submit. `is_serial`: there is
    /// one queue, and no call on it is under way beside another or a [`Mqfq::correct`].
    ///
    /// # Panics
    /// If there are groups of flows.
    pub fn charge_late(&mut self, is_serial: bool) {
        self.options.lease = VSpan(0);
        self.lease = Setting::new(0, self.options.window_least.is_some());
        debug_assert!(!is_serial || self.hctx_count == 1, "several queues charge beside one another");
        self.flows.charge_late(is_serial);
    }

    /// Another rate of a flow, of a policy that charges late, as by
    /// [`FlowTable::set_rate`](crate::flow::FlowTable::set_rate).
    ///
    /// # Panics
    /// As that.
    pub fn set_rate(&self, flow: FlowId, units_per_cost: u64) {
        self.flows.set_rate(flow, units_per_cost);
    }

    /// A request that was submitted with the cost `charged` has cost `actual`, 0 or more; a cost above
    /// [`COST_MAX`](crate::cost::COST_MAX) counts as that. Its flow pays the difference, or gets it back, at its weight
    /// now. From any thread, once for each request at most.
    ///
    /// # Panics
    /// If the flow is unknown.
    pub fn correct(&self, flow: FlowId, charged: Cost, actual: Cost) {
        self.flows.correct(flow, charged, actual, self.virtual_time.global_vtime());
    }

    /// Takes a request back that was submitted to this queue with this flow, handle and cost. False: it is not staged
    /// here. The caller picks after it.
    pub fn withdraw(
        &self,
        queue: &mut Queue<S>,
        (flow, handle, cost): (FlowId, Handle, Cost),
        kick: &mut impl Kick,
    ) -> bool {
        let found = queue.stage.withdraw(
            flow,
            |waiting| waiting.handle == handle.0,
            |left, lease| self.take_back((flow, cost), left, lease),
            (
                |flow, cost, lease: &mut Lease| self.promote(flow, cost, lease),
                |at: &Option<Ahead>, cost, lease: &mut Lease| {
                    at.as_ref()?.cut(cost, lease).map(|it| (it.start_tag, it.span))
                },
            ),
            |flow, lease| self.flows.give_back(flow, lease),
        );
        if found {
            self.announce(queue, kick);
        }
        found
    }

    /// Takes back all requests of a queue, those of a flow in the order they came, and leaves the queue idle: nothing
    /// of it holds others up. `each` gets their flow and handle, and returns the cost they were submitted with.
    pub fn step_aside(&self, queue: &mut Queue<S>, mut each: impl FnMut(FlowId, Handle) -> Cost, kick: &mut impl Kick) {
        queue.stage.drain(
            |flow, waiting, left, lease| {
                let cost = each(flow, Handle(waiting.handle));
                self.take_back((flow, cost), left, lease);
            },
            |flow, lease| self.flows.give_back(flow, lease),
        );
        self.announce(queue, kick);
        queue.yields_to = None;
        let picked = self.pick(queue, 0, kick);
        debug_assert_eq!(picked, Pick::Idle, "a queue that was emptied has nothing to dispatch");
    }

    /// As [`Mqfq::step_aside`], for good. Requests that it dispatched and that have not ended give their tokens back
    /// by [`Mqfq::give_back`]. Another queue of the same place may be opened.
    pub fn close(&self, mut queue: Queue<S>, each: impl FnMut(FlowId, Handle) -> Cost, kick: &mut impl Kick) {
        self.step_aside(&mut queue, each, kick);
    }

    /// A request of a queue that was closed has ended: its token goes to any queue, that of `near` first. From any
    /// thread.
    pub fn give_back(&self, near: crate::topology::HctxId, token: super::DispatchToken, kick: &mut impl Kick) {
        use super::Tokens;
        // Ends with the fence of the first table.
        self.tokens.release_root(near, token);
        if self.wake_ready(near, kick) {
            kick.kick(near);
        }
    }

    /// Flow of the request that would be dispatched next.
    pub fn first_flow(&self, queue: &Queue<S>) -> Option<FlowId> {
        queue.stage.peek().map(|first| first.flow)
    }

    fn take_back(&self, (flow, cost): (FlowId, Cost), left: Left, lease: &mut Lease) {
        let Some((start_tag, span)) = left.interval else { return };
        let lease = if self.lease.get() == 0 { None } else { Some(lease) };
        let now = self.virtual_time.global_vtime();
        self.flows.take_back(flow, (cost, Interval { start_tag, span }), left.is_last, lease, now);
    }
}
