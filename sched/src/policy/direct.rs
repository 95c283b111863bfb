//! Interface of a policy that stages nothing.
//!
//! Such a policy leaves arbitration to the device: it names one of three class queues for each request. A policy says
//! once, by [`Policy::as_direct`](super::Policy::as_direct), whether it is one. A policy that stages answers with
//! [`NotDirect`], of which there is no value, so that no caller can ask it for a class.

use super::{ClassWeights, QueueClass};
use crate::cost::Cost;
use crate::flow::FlowId;

/// A policy that names class queues, as a reference to it or the like. `Q` is the part of its state that one worker
/// owns.
pub trait DirectPolicy<Q>: Copy {
    /// The class queue that a request of this flow goes to now.
    fn class_of(self, queue: &Q, flow: FlowId, now_ns: u64) -> QueueClass;

    /// A request of this flow was admitted for the queue that [`DirectPolicy::class_of`] named.
    fn dispatched(self, queue: &mut Q, flow: FlowId, cost: Cost, class: QueueClass, now_ns: u64);

    /// Both in one: [`DirectPolicy::class_of`] now, and [`DirectPolicy::dispatched`] for it.
    #[inline(always)]
    fn direct(self, queue: &mut Q, flow: FlowId, cost: Cost, now_ns: u64) -> QueueClass {
        let class = self.class_of(queue, flow, now_ns);
        self.dispatched(queue, flow, cost, class, now_ns);
        class
    }

    /// The device finished a request of this flow that [`DirectPolicy::dispatched`] was told of on this queue.
    // Not a branch of `Policy::complete`: in the choice among all policies it would take registers that every other
    // policy then had to save.
    fn ended(self, queue: &mut Q, flow: FlowId, cost: Cost, now_ns: u64);

    /// Asked after each reap that brought something: weights that the device's class queues shall have from now on, if
    /// they change.
    fn adjust(self, queue: &mut Q, now_ns: u64) -> Option<ClassWeights>;
}

/// [`Policy::Direct`](super::Policy::Direct) of a policy that stages its requests. It has no value.
#[derive(Clone, Copy, Debug)]
pub enum NotDirect {}

impl<Q> DirectPolicy<Q> for NotDirect {
    fn class_of(self, _queue: &Q, _flow: FlowId, _now_ns: u64) -> QueueClass {
        match self {}
    }

    fn dispatched(self, _queue: &mut Q, _flow: FlowId, _cost: Cost, _class: QueueClass, _now_ns: u64) {
        match self {}
    }

    fn ended(self, _queue: &mut Q, _flow: FlowId, _cost: Cost, _now_ns: u64) {
        match self {}
    }

    fn adjust(self, _queue: &mut Q, _now_ns: u64) -> Option<ClassWeights> {
        match self {}
    }
}
