//! A policy with the time that the layers around it take, request by request.
//!
//! What a request costs above and below the policy is a parameter of the machine; where it is spent decides who meets whom on a
//! cache line. In the real loop it is spent between the policy's operations, one request after the other, and so here.

use crate::coherence::{Ps, ps};
use crate::cores::core;
use crate::scenario::Latencies;
use mqfq_sched_watched::class::PriorityClass;
use mqfq_sched_watched::cost::Cost;
use mqfq_sched_watched::flow::{FlowId, Weight};
use mqfq_sched_watched::policy::{ClassWeights, DispatchToken, Done, Entry, Kick, Pick, Policy, QueueClass};
use mqfq_sched_watched::topology::HctxId;
use std::sync::Arc;

/// See the file's text.
pub struct Timed<P> {
    policy: Arc<P>,
    submit: Ps,
    dispatch: Ps,
    complete: Ps,
}

impl<P: Policy> Timed<P> {
    /// A policy on a machine. `is_elsewhere`: what a dispatch takes is spent under the one lock of the block layer, or nowhere, because there
    /// is none.
    pub fn new(policy: Arc<P>, latency: &Latencies, is_elsewhere: bool) -> Timed<P> {
        let Latencies { submit_ns, dispatch_ns, complete_ns, .. } = *latency;
        Timed {
            policy,
            submit: ps(submit_ns),
            dispatch: if is_elsewhere { 0 } else { ps(dispatch_ns) },
            complete: ps(complete_ns),
        }
    }
}

impl<P: Policy> Policy for Timed<P> {
    type Queue = P::Queue;

    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> P::Queue {
        self.policy.open_queue(hctx, capacity_requests)
    }

    fn submit(&self, queue: &mut P::Queue, entry: Entry, now_ns: u64, kick: &mut impl Kick) {
        core::compute(self.submit);
        self.policy.submit(queue, entry, now_ns, kick);
    }

    fn pick(&self, queue: &mut P::Queue, now_ns: u64, kick: &mut impl Kick) -> Pick {
        let pick = self.policy.pick(queue, now_ns, kick);
        if matches!(pick, Pick::Dispatch(_)) && self.dispatch > 0 {
            core::compute(self.dispatch);
        }
        pick
    }

    fn complete(&self, queue: &mut P::Queue, done: Done, token: DispatchToken, now_ns: u64, kick: &mut impl Kick) {
        core::compute(self.complete);
        self.policy.complete(queue, done, token, now_ns, kick);
    }

    fn pause(&self, queue: &mut P::Queue, kick: &mut impl Kick) {
        self.policy.pause(queue, kick);
    }

    fn is_direct(&self) -> bool {
        self.policy.is_direct()
    }

    fn class_of(&self, queue: &P::Queue, flow: FlowId, now_ns: u64) -> QueueClass {
        core::compute(self.submit);
        self.policy.class_of(queue, flow, now_ns)
    }

    fn dispatched(&self, queue: &mut P::Queue, flow: FlowId, cost: Cost, class: QueueClass, now_ns: u64) {
        self.policy.dispatched(queue, flow, cost, class, now_ns);
        if self.dispatch > 0 {
            core::compute(self.dispatch);
        }
    }

    fn adjust(&self, queue: &mut P::Queue, now_ns: u64) -> Option<ClassWeights> {
        self.policy.adjust(queue, now_ns)
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) {
        self.policy.set_weight(flow, weight);
    }

    fn set_class(&self, flow: FlowId, class: PriorityClass) {
        self.policy.set_class(flow, class);
    }

    fn staged(&self, queue: &P::Queue) -> usize {
        self.policy.staged(queue)
    }
}
