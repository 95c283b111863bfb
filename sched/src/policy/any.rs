//! One type for every policy, so that the choice is a line in a config and not a type parameter of the block layer.
//!
//! A match per operation, which the branch predictor has learnt after the first: a device's policy does
//! not change while it runs.

use super::{
    Bfq, CentralQueue, ClassWeights, D2fq, D2fqQueue, DispatchToken, Done, Entry, Fifo, FifoQueue, Kick, Kyber,
    KyberQueue, MqDeadline, Mqfq, MqfqQueue, MqfqSerial, Pick, Policy, PolicyError, PolicyKind, PolicyOptions,
    QueueClass, Sfqd,
};
use crate::class::PriorityClass;
use crate::cost::Cost;
use crate::flow::{FlowId, Weight};
use crate::topology::{HctxId, Topology};
use crate::vtime::VTime;

/// A policy chosen at run time.
#[allow(clippy::large_enum_variant, reason = "one per device, never moved on the path")]
pub enum AnyPolicy {
    /// `none`
    None(Fifo),
    /// `mqfq`
    Mqfq(Mqfq),
    /// `mqfq-serial`
    MqfqSerial(MqfqSerial),
    /// `sfqd`
    Sfqd(Sfqd),
    /// `mq-deadline`
    MqDeadline(MqDeadline),
    /// `kyber`
    Kyber(Kyber),
    /// `bfq`
    Bfq(Bfq),
    /// `d2fq`
    D2fq(D2fq),
}

/// A worker's queue of an [`AnyPolicy`].
#[allow(clippy::large_enum_variant, reason = "one per hctx, never moved on the path")]
pub enum AnyQueue {
    /// A worker's queue of `none`.
    Fifo(FifoQueue),
    /// A worker's queue of `mqfq` or `mqfq-serial`.
    Mqfq(MqfqQueue),
    /// A worker's access to the one queue of `sfqd`, `mq-deadline` or `bfq`.
    Central(CentralQueue),
    /// A worker's queue of `kyber`.
    Kyber(KyberQueue),
    /// A worker's queue of `d2fq`.
    D2fq(D2fqQueue),
}

impl AnyPolicy {
    /// Builds the policy that the options name, for the queues of `topology` and one flow per weight.
    ///
    /// # Errors
    /// The first thing wrong with the options or the number of flows.
    pub fn new(options: &PolicyOptions, topology: &Topology, flows: &[Weight]) -> Result<AnyPolicy, PolicyError> {
        options.validate_for(flows)?;
        Ok(match options.kind {
            PolicyKind::None => AnyPolicy::None(Fifo),
            PolicyKind::Mqfq => AnyPolicy::Mqfq(Mqfq::new(options, topology, flows)),
            PolicyKind::MqfqSerial => AnyPolicy::MqfqSerial(MqfqSerial::new(options, topology, flows)),
            PolicyKind::Sfqd => AnyPolicy::Sfqd(Sfqd::new(options, topology.hctx_count(), flows)),
            PolicyKind::MqDeadline => {
                AnyPolicy::MqDeadline(MqDeadline::new(options, topology.hctx_count(), flows.len()))
            }
            PolicyKind::Kyber => AnyPolicy::Kyber(Kyber::new(options, topology.hctx_count())),
            PolicyKind::Bfq => AnyPolicy::Bfq(Bfq::new(options, topology.hctx_count(), flows)),
            PolicyKind::D2fq => AnyPolicy::D2fq(D2fq::new(options, topology.hctx_count(), flows)?),
        })
    }

    /// Which policy it is.
    pub fn kind(&self) -> PolicyKind {
        match self {
            AnyPolicy::None(_) => PolicyKind::None,
            AnyPolicy::Mqfq(_) => PolicyKind::Mqfq,
            AnyPolicy::MqfqSerial(_) => PolicyKind::MqfqSerial,
            AnyPolicy::Sfqd(_) => PolicyKind::Sfqd,
            AnyPolicy::MqDeadline(_) => PolicyKind::MqDeadline,
            AnyPolicy::Kyber(_) => PolicyKind::Kyber,
            AnyPolicy::Bfq(_) => PolicyKind::Bfq,
            AnyPolicy::D2fq(_) => PolicyKind::D2fq,
        }
    }

    /// Virtual time, of a policy that has one.
    pub fn global_vtime(&self) -> Option<VTime> {
        match self {
            AnyPolicy::None(_) | AnyPolicy::MqDeadline(_) | AnyPolicy::Kyber(_) | AnyPolicy::Bfq(_) => None,
            AnyPolicy::Mqfq(policy) => Some(policy.global_vtime()),
            AnyPolicy::MqfqSerial(policy) => Some(policy.mqfq().global_vtime()),
            AnyPolicy::Sfqd(policy) => Some(policy.virtual_time()),
            AnyPolicy::D2fq(policy) => Some(policy.global_vtime()),
        }
    }

    /// The weights of the device's classes now, of a policy that sets them.
    pub fn class_weights(&self) -> Option<ClassWeights> {
        match self {
            AnyPolicy::D2fq(policy) => Some(policy.class_weights()),
            _ => None,
        }
    }

    /// What a flow has submitted to each class since the policy was made, bytes of cost by [`QueueClass::index`], of a
    /// policy that names classes.
    pub fn class_bytes(&self, flow: FlowId) -> Option<[u64; 3]> {
        match self {
            AnyPolicy::D2fq(policy) => Some(policy.class_bytes(flow)),
            _ => None,
        }
    }

    /// Units of D that no request holds, of a policy that has a depth. Negative while a request of several units is
    /// paid off. Exact while no worker is inside the policy.
    pub fn free_units(&self) -> Option<i64> {
        match self {
            AnyPolicy::None(_) | AnyPolicy::D2fq(_) => None,
            AnyPolicy::Mqfq(policy) => Some(policy.free_units()),
            AnyPolicy::MqfqSerial(policy) => Some(policy.mqfq().free_units()),
            AnyPolicy::Sfqd(policy) => Some(policy.free_units()),
            AnyPolicy::MqDeadline(policy) => Some(policy.free_units()),
            AnyPolicy::Kyber(policy) => Some(policy.free_units()),
            AnyPolicy::Bfq(policy) => Some(policy.free_units()),
        }
    }
}

/// The same call on whichever policy it is, with its queue; a queue of another policy is the caller's bug.
macro_rules! on_each {
    ($self:expr, $queue:expr, $policy:ident, $own:ident => $call:expr) => {
        match ($self, $queue) {
            // These two by themselves, so that each is a comparison and not a jump through the table of all.
            (AnyPolicy::Mqfq($policy), AnyQueue::Mqfq($own)) => $call,
            (policy, queue) => match (policy, queue) {
                (AnyPolicy::None($policy), AnyQueue::Fifo($own)) => $call,
                (policy, queue) => match (policy, queue) {
                    (AnyPolicy::MqfqSerial($policy), AnyQueue::Mqfq($own)) => $call,
                    (AnyPolicy::Sfqd($policy), AnyQueue::Central($own)) => $call,
                    (AnyPolicy::MqDeadline($policy), AnyQueue::Central($own)) => $call,
                    (AnyPolicy::Kyber($policy), AnyQueue::Kyber($own)) => $call,
                    (AnyPolicy::Bfq($policy), AnyQueue::Central($own)) => $call,
                    (AnyPolicy::D2fq($policy), AnyQueue::D2fq($own)) => $call,
                    (policy, _) => panic!("a queue of another policy was given to {}", policy.kind()),
                },
            },
        }
    };
}

impl Policy for AnyPolicy {
    type Queue = AnyQueue;

    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> AnyQueue {
        match self {
            AnyPolicy::None(policy) => AnyQueue::Fifo(policy.open_queue(hctx, capacity_requests)),
            AnyPolicy::Mqfq(policy) => AnyQueue::Mqfq(policy.open_queue(hctx, capacity_requests)),
            AnyPolicy::MqfqSerial(policy) => AnyQueue::Mqfq(policy.open_queue(hctx, capacity_requests)),
            AnyPolicy::Sfqd(policy) => AnyQueue::Central(policy.open_queue(hctx, capacity_requests)),
            AnyPolicy::MqDeadline(policy) => AnyQueue::Central(policy.open_queue(hctx, capacity_requests)),
            AnyPolicy::Kyber(policy) => AnyQueue::Kyber(policy.open_queue(hctx, capacity_requests)),
            AnyPolicy::Bfq(policy) => AnyQueue::Central(policy.open_queue(hctx, capacity_requests)),
            AnyPolicy::D2fq(policy) => AnyQueue::D2fq(policy.open_queue(hctx, capacity_requests)),
        }
    }

    #[inline]
    fn submit(&self, queue: &mut AnyQueue, entry: Entry, now_ns: u64, kick: &mut impl Kick) {
        on_each!(self, queue, policy, own => policy.submit(own, entry, now_ns, kick));
    }

    #[inline]
    fn pick(&self, queue: &mut AnyQueue, now_ns: u64, kick: &mut impl Kick) -> Pick {
        on_each!(self, queue, policy, own => policy.pick(own, now_ns, kick))
    }

    #[inline]
    fn complete(&self, queue: &mut AnyQueue, done: Done, token: DispatchToken, now_ns: u64, kick: &mut impl Kick) {
        on_each!(self, queue, policy, own => policy.complete(own, done, token, now_ns, kick));
    }

    fn pause(&self, queue: &mut AnyQueue, kick: &mut impl Kick) {
        on_each!(self, queue, policy, own => policy.pause(own, kick));
    }

    fn is_direct(&self) -> bool {
        matches!(self, AnyPolicy::D2fq(_))
    }

    #[inline]
    fn class_of(&self, queue: &AnyQueue, flow: FlowId, now_ns: u64) -> QueueClass {
        match (self, queue) {
            (AnyPolicy::D2fq(policy), AnyQueue::D2fq(own)) => policy.class_of(own, flow, now_ns),
            (policy, _) => panic!("{} names no class queues, or the queue is another policy's", policy.kind()),
        }
    }

    #[inline]
    fn dispatched(&self, queue: &mut AnyQueue, flow: FlowId, cost: Cost, class: QueueClass, now_ns: u64) {
        match (self, queue) {
            (AnyPolicy::D2fq(policy), AnyQueue::D2fq(own)) => policy.dispatched(own, flow, cost, class, now_ns),
            (policy, _) => panic!("{} names no class queues, or the queue is another policy's", policy.kind()),
        }
    }

    #[inline]
    fn direct(&self, queue: &mut AnyQueue, flow: FlowId, cost: Cost, now_ns: u64) -> QueueClass {
        match (self, queue) {
            (AnyPolicy::D2fq(policy), AnyQueue::D2fq(own)) => policy.direct(own, flow, cost, now_ns),
            (policy, _) => panic!("{} names no class queues, or the queue is another policy's", policy.kind()),
        }
    }

    #[inline]
    fn ended(&self, queue: &mut AnyQueue, flow: FlowId, cost: Cost, now_ns: u64) {
        match (self, queue) {
            (AnyPolicy::D2fq(policy), AnyQueue::D2fq(own)) => policy.ended(own, flow, cost, now_ns),
            (policy, _) => panic!("{} names no class queues, or the queue is another policy's", policy.kind()),
        }
    }

    #[inline]
    fn adjust(&self, queue: &mut AnyQueue, now_ns: u64) -> Option<ClassWeights> {
        match (self, queue) {
            (AnyPolicy::D2fq(policy), AnyQueue::D2fq(own)) => policy.adjust(own, now_ns),
            _ => None,
        }
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) {
        match self {
            AnyPolicy::None(policy) => policy.set_weight(flow, weight),
            AnyPolicy::Mqfq(policy) => policy.set_weight(flow, weight),
            AnyPolicy::MqfqSerial(policy) => policy.set_weight(flow, weight),
            AnyPolicy::Sfqd(policy) => policy.set_weight(flow, weight),
            AnyPolicy::MqDeadline(policy) => policy.set_weight(flow, weight),
            AnyPolicy::Kyber(policy) => policy.set_weight(flow, weight),
            AnyPolicy::Bfq(policy) => policy.set_weight(flow, weight),
            AnyPolicy::D2fq(policy) => policy.set_weight(flow, weight),
        }
    }

    fn set_class(&self, flow: FlowId, class: PriorityClass) {
        match self {
            AnyPolicy::None(policy) => policy.set_class(flow, class),
            AnyPolicy::Mqfq(policy) => policy.set_class(flow, class),
            AnyPolicy::MqfqSerial(policy) => policy.set_class(flow, class),
            AnyPolicy::Sfqd(policy) => policy.set_class(flow, class),
            AnyPolicy::MqDeadline(policy) => policy.set_class(flow, class),
            AnyPolicy::Kyber(policy) => policy.set_class(flow, class),
            AnyPolicy::Bfq(policy) => policy.set_class(flow, class),
            AnyPolicy::D2fq(policy) => policy.set_class(flow, class),
        }
    }

    fn staged(&self, queue: &AnyQueue) -> usize {
        on_each!(self, queue, policy, own => policy.staged(own))
    }
}
