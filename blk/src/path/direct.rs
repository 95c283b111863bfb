//! The path of a policy that stages nothing: submit is dispatch.
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
//! rung by the [`HwCtx::run`](super::hctx::HwCtx::run) that follows, as for a batch of any other policy.
//!
//! # Full queues
//! The only thing that a request can wait for is a place: without a tag of its class it waits here, behind the others
//! of its class, within the bound of its flow as if it were staged. A class whose queue is full keeps nothing from the
//! other two, which have tags of their own. On a device without class queues all classes are one queue.
//!
//! # Invariants
//! Requests of one flow and class leave in the order they came (I9). A request that waits has no free tag of its class
//! (I4): a tag comes free by a reap, and a run follows each reap that brought something.

use super::complete::Ending;
use super::path_options::Run;
use super::request_path::RequestPath;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{DirectPolicy, DispatchToken, Done, Entry, Grant, Handle, Kick, Policy, QueueClass};
use std::collections::VecDeque;

/// State of this path alone: requests on the way to class queues.
#[derive(Debug)]
pub(super) struct DirectPath {
    /// Requests put into the device's queue since the last doorbell.
    fresh: usize,
    /// Requests without a tag, by class.
    waiting: [VecDeque<Handle>; 3],
}

impl DirectPath {
    /// A path with room for so many requests that wait for tags, of each class.
    pub(super) fn new(staged_max: usize) -> DirectPath {
        DirectPath { fresh: 0, waiting: [(); 3].map(|()| VecDeque::with_capacity(staged_max)) }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// An admitted request goes to the device's queue that the policy names.
    #[inline(always)]
    pub(super) fn submit<P: Policy>(&mut self, shared: &mut RequestPath<P>, entry: Entry, now_ns: u64) {
        let Entry { handle, flow, cost, .. } = entry;
        if self.fresh == 0 {
            // Until now without this one: the run that follows counts from here on.
            shared.account(now_ns);
        }
        let class = direct(&*shared.policy).direct(&mut shared.queue, flow, cost, now_ns);
        let lane = lane(shared, class);
        if shared.commands.refused.is_none()
            && self.waiting[lane].is_empty()
            && let Some(tag) = shared.commands.tags.acquire_of(class)
        {
            self.fresh += shared.dispatch::<false>(tag, granted(handle, flow), class, now_ns);
        } else {
            self.waiting[lane].push_back(handle);
        }
    }

    /// Dispatches waiting requests while there are tags, and rings the doorbell.
    pub(super) fn run<P: Policy>(&mut self, shared: &mut RequestPath<P>, now_ns: u64) -> Run {
        let mut dispatched = std::mem::take(&mut self.fresh);
        dispatched += shared.dispatch_left_over(now_ns);
        for class in QueueClass::ALL {
            let lane = lane(shared, class);
            while shared.commands.refused.is_none()
                && let Some(&handle) = self.waiting[lane].front()
                && let Some(tag) = shared.commands.tags.acquire_of(class)
            {
                self.waiting[lane].pop_front();
                let flow = shared.requests.get_mut(handle).submission.flow;
                dispatched += shared.dispatch::<false>(tag, granted(handle, flow), class, now_ns);
            }
        }
        shared.ring(dispatched, now_ns);
        Run { dispatched, again: false }
    }
}

/// Gives the device the weights of classes that a direct policy wants, after completions.
#[inline(always)]
pub(super) fn adjust<P: Policy>(shared: &mut RequestPath<P>, now_ns: u64) {
    if let Some(weights) = direct(&*shared.policy).adjust(&mut shared.queue, now_ns) {
        shared.commands.device.set_class_weights(weights, now_ns);
    }
}

/// Where requests of a class wait: without class queues they are all behind each other.
#[inline]
fn lane<P: Policy>(shared: &RequestPath<P>, class: QueueClass) -> usize {
    if shared.commands.tags.has_classes() { class.index() } else { 0 }
}

/// Grant of a direct policy, the same for every request but for its names.
fn granted(handle: Handle, flow: FlowId) -> Grant {
    Grant { handle, flow, token: DispatchToken::new(0) }
}

#[inline]
fn direct<P: Policy>(policy: &P) -> P::Direct<'_> {
    policy.as_direct().expect("this path is of a direct policy, which it is for good")
}

impl<P: Policy> Ending<P> for DirectPath {
    #[inline(always)]
    fn ended(policy: &P, queue: &mut P::Queue, done: Done, token: DispatchToken, now_ns: u64, _kick: &mut impl Kick) {
        let units = token.into_units();
        debug_assert_eq!(units, 0, "a direct policy hands out no tokens");
        direct(policy).ended(queue, done.flow, done.cost, now_ns);
    }
}
