//! A policy chosen at run time, so that the choice is a line in a config and not a type parameter of the block layer.
//!
//! # Cost
//! The two policies that ship are compared first, and each is a comparison that the branch predictor has learnt after
//! the first operation: a device's policy does not change while it runs. Every other policy is a call through
//! [`DynPolicy`](super::DynPolicy), after both comparisons.

use super::mqfq::{Mqfq, MqfqQueue};
use super::none::{Fifo, FifoQueue};
use super::other::{self, DynQueue};
use super::{
    ClassWeights, DirectPolicy, DispatchToken, Done, Entry, Handle, Kick, OtherPolicy, Pick, Policy, PolicyError,
    PolicyKind, PolicyOptions, QueueClass, Registered, WindowTerms,
};
use crate::class::PriorityClass;
use crate::cost::{Cost, CostKind};
use crate::flow::{EffectiveWeight, FlowId, GroupId, Tree, Weight};
use crate::topology::{HctxId, Topology};
use crate::vtime::VTime;
use alloc::boxed::Box;

/// A policy chosen at run time.
// Each operation reads the discriminant: a byte of its own, and not a niche in one of the policies.
#[repr(u8)]
#[allow(clippy::large_enum_variant, reason = "one per device, never moved on the path")]
pub enum AnyPolicy {
    /// See [`none`](mod@super::none).
    None(Fifo),
    /// See [`mqfq`](mod@super::mqfq).
    Mqfq(Mqfq),
    /// A policy of a wider registry.
    Other(&'static OtherPolicy, Box<dyn other::DynPolicy>),
}

/// A worker's queue of an [`AnyPolicy`].
#[repr(u8)]
#[allow(clippy::large_enum_variant, reason = "one per hctx, never moved on the path")]
pub enum AnyQueue {
    /// A worker's queue of `none`.
    None(FifoQueue),
    /// A worker's queue of `mqfq`.
    Mqfq(MqfqQueue),
    /// A worker's queue of a policy of a wider registry.
    Other(DynQueue),
}

/// An [`AnyPolicy`] that is direct. Neither policy that ships is.
#[derive(Clone, Copy)]
pub struct AnyDirect<'a>(&'a dyn other::DynPolicy);

/// A call that takes no queue, on whichever policy it is.
macro_rules! on_each {
    ($self:expr, $trait:ident::$method:ident($($argument:expr),*)) => {
        match $self {
            AnyPolicy::None(policy) => $trait::$method(policy $(, $argument)*),
            AnyPolicy::Mqfq(policy) => $trait::$method(policy $(, $argument)*),
            AnyPolicy::Other(_, policy) => policy.$method($($argument),*),
        }
    };
}

/// A call on one of the two policies that ship, else `$else`.
macro_rules! on_common {
    ($self:expr, $queue:expr, $policy:ident, $own:ident => $call:expr, $other:pat => $else:expr) => {
        match ($self, $queue) {
            (AnyPolicy::Mqfq($policy), AnyQueue::Mqfq($own)) => $call,
            (policy, queue) => match (policy, queue) {
                (AnyPolicy::None($policy), AnyQueue::None($own)) => $call,
                $other => $else,
            },
        }
    };
}

/// A call on the third kind of policy; a queue of another policy is the caller's bug.
macro_rules! on_other {
    ($self:expr, $queue:expr, $policy:ident, $own:ident => $call:expr) => {
        match ($self, $queue) {
            (AnyPolicy::Other(_, $policy), AnyQueue::Other($own)) => $call,
            (policy, _) => panic!("a queue of another policy was given to {}", policy.kind()),
        }
    };
}

impl AnyPolicy {
    /// Builds the policy that the options name, for the queues of `topology` and one flow per weight.
    ///
    /// # Errors
    /// The first thing wrong with the options or the number of flows.
    pub fn new(options: &PolicyOptions, topology: &Topology, flows: &[Weight]) -> Result<AnyPolicy, PolicyError> {
        options.validate_for(flows)?;
        Ok(match options.kind {
            PolicyKind::None => AnyPolicy::None(Fifo::make(options, topology, flows)?),
            PolicyKind::Mqfq => AnyPolicy::Mqfq(Mqfq::make(options, topology, flows)?),
            PolicyKind::Other(other) => AnyPolicy::Other(other, other.make(options, topology, flows)?),
        })
    }

    /// Builds the policy with its flows in groups.
    ///
    /// # Errors
    /// As [`AnyPolicy::new`], a tree that cannot be built, or a policy that has no groups.
    pub fn with_tree(
        options: &PolicyOptions,
        topology: &Topology,
        flows: &[Weight],
        tree: &Tree,
    ) -> Result<AnyPolicy, PolicyError> {
        let mut policy = AnyPolicy::new(options, topology, flows)?;
        if tree.is_empty() {
            return Ok(policy);
        }
        if !options.kind.has_groups() {
            return Err(PolicyError::NoGroups(options.kind));
        }
        tree.validate(flows.len()).map_err(PolicyError::Tree)?;
        on_each!(&mut policy, Registered::set_tree(tree));
        Ok(policy)
    }

    /// The policy of the type `P`, if it is one of a wider registry.
    pub fn downcast_ref<P: Policy + 'static>(&self) -> Option<&P> {
        match self {
            AnyPolicy::Other(_, policy) => policy.as_any().downcast_ref(),
            _ => None,
        }
    }

    /// The weight at which a flow competes now, of a policy that has groups.
    pub fn effective_weight(&self, flow: FlowId) -> Option<EffectiveWeight> {
        on_each!(self, Registered::effective_weight(flow))
    }

    /// The weight at which a group competes now, of a policy that has groups.
    pub fn effective_weight_of(&self, group: GroupId) -> Option<EffectiveWeight> {
        on_each!(self, Registered::effective_weight_of(group))
    }

    /// Its kind.
    pub fn kind(&self) -> PolicyKind {
        match self {
            AnyPolicy::None(_) => PolicyKind::None,
            AnyPolicy::Mqfq(_) => PolicyKind::Mqfq,
            AnyPolicy::Other(other, _) => PolicyKind::Other(other),
        }
    }

    /// Virtual time, of a policy that has one.
    pub fn global_vtime(&self) -> Option<VTime> {
        on_each!(self, Registered::global_vtime())
    }

    /// The weights of the device's classes now, of a policy that sets them.
    pub fn class_weights(&self) -> Option<ClassWeights> {
        on_each!(self, Registered::class_weights())
    }

    /// Bytes of cost that a flow has submitted to each class since the policy was made, by [`QueueClass::index`], of a
    /// policy that names classes.
    pub fn class_bytes(&self, flow: FlowId) -> Option<[u64; 3]> {
        on_each!(self, Registered::class_bytes(flow))
    }

    /// D as it is now, of a policy whose D can be changed.
    pub fn depth(&self) -> Option<u32> {
        on_each!(self, Registered::depth())
    }

    /// Units of D that no request holds, of a policy that has a depth. Negative while a request of several units is
    /// paid off. Exact while no worker is inside the policy.
    pub fn free_units(&self) -> Option<i64> {
        on_each!(self, Registered::free_units())
    }
}

// The common policies look at little of an entry and at nothing of what is done. The others are called, and get what is
// put together of the fields here: else it would be put together in memory for the common ones, too.
impl AnyPolicy {
    #[inline(always)]
    fn submit_elsewhere(
        &self,
        queue: &mut AnyQueue,
        parts: (FlowId, Cost, Handle, CostKind, bool, u64, u32),
        now_ns: u64,
        kick: &mut impl Kick,
    ) {
        let (flow, cost, handle, kind, is_sync, offset_bytes, length_bytes) = parts;
        let entry = Entry { flow, cost, handle, kind, is_sync, offset_bytes, length_bytes };
        on_other!(self, queue, policy, own => policy.submit(own, entry, now_ns, kick));
    }

    #[inline(always)]
    fn complete_elsewhere(
        &self,
        queue: &mut AnyQueue,
        parts: (FlowId, Handle, CostKind, bool, u32, Cost, u64, u64),
        token: DispatchToken,
        now_ns: u64,
        kick: &mut impl Kick,
    ) {
        let (flow, handle, kind, is_sync, length_bytes, cost, submitted_ns, dispatched_ns) = parts;
        let done = Done { flow, handle, kind, is_sync, length_bytes, cost, submitted_ns, dispatched_ns };
        on_other!(self, queue, policy, own => policy.complete(own, done, token, now_ns, kick));
    }
}

impl Policy for AnyPolicy {
    type Queue = AnyQueue;
    type Direct<'a> = AnyDirect<'a>;

    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> AnyQueue {
        match self {
            AnyPolicy::None(policy) => AnyQueue::None(policy.open_queue(hctx, capacity_requests)),
            AnyPolicy::Mqfq(policy) => AnyQueue::Mqfq(policy.open_queue(hctx, capacity_requests)),
            AnyPolicy::Other(_, policy) => AnyQueue::Other(policy.open_queue(hctx, capacity_requests)),
        }
    }

    #[inline]
    fn submit(&self, queue: &mut AnyQueue, entry: Entry, now_ns: u64, kick: &mut impl Kick) {
        on_common!(self, queue, policy, own => policy.submit(own, entry, now_ns, kick), (policy, queue) => {
            let Entry { flow, cost, handle, kind, is_sync, offset_bytes, length_bytes } = entry;
            let parts = (flow, cost, handle, kind, is_sync, offset_bytes, length_bytes);
            policy.submit_elsewhere(queue, parts, now_ns, kick);
        });
    }

    #[inline]
    fn pick(&self, queue: &mut AnyQueue, now_ns: u64, kick: &mut impl Kick) -> Pick {
        on_common!(self, queue, policy, own => policy.pick(own, now_ns, kick), (policy, queue) => {
            on_other!(policy, queue, policy, own => policy.pick(own, now_ns, kick))
        })
    }

    // By force: the completion of the common policies is less than the call.
    #[inline(always)]
    fn complete(&self, queue: &mut AnyQueue, done: Done, token: DispatchToken, now_ns: u64, kick: &mut impl Kick) {
        on_common!(self, queue, policy, own => policy.complete(own, done, token, now_ns, kick), (it, queue) => {
            let Done { flow, handle, kind, is_sync, length_bytes, cost, submitted_ns, dispatched_ns } = done;
            let parts = (flow, handle, kind, is_sync, length_bytes, cost, submitted_ns, dispatched_ns);
            it.complete_elsewhere(queue, parts, token, now_ns, kick);
        });
    }

    fn pause(&self, queue: &mut AnyQueue, kick: &mut impl Kick) {
        on_common!(self, queue, policy, own => policy.pause(own, kick), (policy, queue) => {
            on_other!(policy, queue, policy, own => policy.pause(own, kick));
        });
    }

    fn withdraw(&self, queue: &mut AnyQueue, name: (FlowId, Handle, Cost), kick: &mut impl Kick) -> bool {
        on_common!(self, queue, policy, own => Policy::withdraw(policy, own, name, kick), _ => false)
    }

    #[inline]
    fn as_direct(&self) -> Option<AnyDirect<'_>> {
        match self {
            AnyPolicy::Other(other, policy) if other.about().is_direct => Some(AnyDirect(&**policy)),
            _ => None,
        }
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) {
        on_each!(self, Policy::set_weight(flow, weight));
    }

    fn set_group_weight(&self, group: GroupId, weight: Weight) {
        on_each!(self, Policy::set_group_weight(group, weight));
    }

    fn set_class(&self, flow: FlowId, class: PriorityClass) {
        on_each!(self, Policy::set_class(flow, class));
    }

    fn retire(&self, flow: FlowId) -> bool {
        on_each!(self, Policy::retire(flow))
    }

    fn set_depth(&self, from: HctxId, depth: u32, kick: &mut impl Kick) -> bool {
        on_each!(self, Policy::set_depth(from, depth, kick))
    }

    fn set_window(&self, terms: &WindowTerms) {
        on_each!(self, Policy::set_window(terms));
    }

    fn window_terms(&self) -> Option<WindowTerms> {
        on_each!(self, Policy::window_terms())
    }

    fn is_out_of_units(&self) -> bool {
        on_each!(self, Policy::is_out_of_units())
    }

    fn staged_flows(&self, queue: &AnyQueue) -> usize {
        on_common!(self, queue, policy, own => policy.staged_flows(own), (policy, queue) => {
            on_other!(policy, queue, policy, own => policy.staged_flows(own))
        })
    }

    fn staged(&self, queue: &AnyQueue) -> usize {
        on_common!(self, queue, policy, own => policy.staged(own), (policy, queue) => {
            on_other!(policy, queue, policy, own => policy.staged(own))
        })
    }
}

/// The part of a policy of a wider registry in a worker's queue.
macro_rules! own {
    ($queue:expr) => {
        match $queue {
            AnyQueue::Other(own) => own,
            _ => panic!("a queue of another policy was given to a direct one"),
        }
    };
}

impl DirectPolicy<AnyQueue> for AnyDirect<'_> {
    fn class_of(self, queue: &AnyQueue, flow: FlowId, now_ns: u64) -> QueueClass {
        self.0.class_of(own!(queue), flow, now_ns)
    }

    fn dispatched(self, queue: &mut AnyQueue, flow: FlowId, cost: Cost, class: QueueClass, now_ns: u64) {
        self.0.dispatched(own!(queue), flow, cost, class, now_ns);
    }

    fn direct(self, queue: &mut AnyQueue, flow: FlowId, cost: Cost, now_ns: u64) -> QueueClass {
        self.0.direct(own!(queue), flow, cost, now_ns)
    }

    fn ended(self, queue: &mut AnyQueue, flow: FlowId, cost: Cost, now_ns: u64) {
        self.0.ended(own!(queue), flow, cost, now_ns);
    }

    fn adjust(self, queue: &mut AnyQueue, now_ns: u64) -> Option<ClassWeights> {
        self.0.adjust(own!(queue), now_ns)
    }
}
