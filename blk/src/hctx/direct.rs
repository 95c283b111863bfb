//! Policies that stage nothing: submit is dispatch.
//!
//! Answers: where does a request go whose policy leaves arbitration to the device? Source: D2FQ section 1 and Figure
//! 1b.
//!
//! ```text
//!   submit ──▶ admit ──▶ policy.direct ──▶ tag of that class ──▶ device.submit        (no arbitration, no token, no throttle)
//!   run    ──▶ ring_doorbell
//! ```
//!
//! The policy names a queue, the request goes. It is put into the device's queue when it is submitted; the doorbell is
//! rung by the [`HwCtx::run`] that follows, as for a batch of any other policy.
//!
//! # Full queues
//! The only thing that a request can wait for is a place: without a tag of its class it waits here, behind the others
//! of its class, within the bound of its flow as if it were staged. A class whose queue is full keeps nothing from the
//! other two, which have tags of their own. On a device without class queues all classes are one queue.
//!
//! # Invariants
//! Requests of one flow and class leave in the order they came (I9). A request that waits has no free tag of its class
//! (I4): a tag comes free by a reap, and a run follows each reap that brought something.

use super::{HwCtx, payload_bytes};
use crate::device::Tag;
use crate::table::State;
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{DispatchToken, Handle, Policy, QueueClass};
use std::collections::VecDeque;

/// One context's requests on the way to class queues.
#[derive(Debug, Default)]
pub(super) struct Direct {
    /// The policy stages nothing.
    pub(super) is_on: bool,
    /// Requests put into the device's queue since the last doorbell.
    fresh: usize,
    /// Requests without a tag, by class.
    waiting: [VecDeque<Handle>; 3],
}

impl Direct {
    /// For a policy that is direct, or is not.
    pub(super) fn new(is_on: bool, staged_max: usize) -> Direct {
        let capacity = if is_on { staged_max } else { 0 };
        Direct { is_on, fresh: 0, waiting: [(); 3].map(|()| VecDeque::with_capacity(capacity)) }
    }

    /// Requests that wait for tags.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }
}

impl<P: Policy> HwCtx<P> {
    /// An admitted request goes to the device's queue that the policy names.
    #[inline(always)]
    pub(super) fn go(&mut self, handle: Handle, flow: FlowId, cost: Cost, now_ns: u64) {
        let class = self.policy.direct(&mut self.queue, flow, cost, now_ns);
        let lane = self.lane(class);
        if self.refused.is_none()
            && self.direct.waiting[lane].is_empty()
            && let Some(tag) = self.tags.acquire_of(class)
        {
            self.direct.fresh += self.put(tag, handle, class, now_ns);
        } else {
            self.direct.waiting[lane].push_back(handle);
        }
    }

    /// Where requests of a class wait: without class queues they are all behind each other.
    fn lane(&self, class: QueueClass) -> usize {
        if self.tags.has_classes() { class.index() } else { 0 }
    }

    /// Puts a request into the device's queue. Returns requests handed over, which with merging may be others than this
    /// one.
    #[inline(always)]
    fn put(&mut self, tag: Tag, handle: Handle, class: QueueClass, now_ns: u64) -> usize {
        let request = self.requests.get_mut(handle);
        request.state = State::Dispatched { tag, token: DispatchToken::new(0) };
        request.dispatched_ns = now_ns;
        let flow = request.flow;
        if self.staging.leave(flow, payload_bytes(request.op, request.length_bytes)) {
            self.room.push(flow);
        }
        if self.merging.is_on() {
            return self.gather(tag, handle);
        }
        let mut command = self.command(tag, handle);
        command.class = class;
        usize::from(self.offer(command))
    }

    /// What [`HwCtx::run`] does then: what waits for tags goes as far as there are any, and the device is told of all.
    pub(super) fn run_direct(&mut self, now_ns: u64) -> usize {
        let mut dispatched = std::mem::take(&mut self.direct.fresh);
        if let Some(command) = self.refused.take() {
            dispatched += self.offer_again(command, now_ns);
        }
        if !self.resend.is_empty() {
            dispatched += self.send_again(now_ns);
        }
        for class in QueueClass::ALL {
            let lane = self.lane(class);
            while self.refused.is_none()
                && let Some(&handle) = self.direct.waiting[lane].front()
                && let Some(tag) = self.tags.acquire_of(class)
            {
                self.direct.waiting[lane].pop_front();
                dispatched += self.put(tag, handle, class, now_ns);
            }
        }
        if self.merging.is_on() && self.refused.is_none() {
            dispatched += self.close();
        }
        dispatched
    }
}
