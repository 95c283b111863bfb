//! The seam for policies that do not ship: types that a program with a wider registry adds.
//!
//! A policy implements [`Policy`] and [`Registered`] as those that ship do; [`OtherPolicy::of`] makes of the type what
//! a [`PolicyKind`] holds, and [`DynPolicy`] is implemented for it. Each operation is a virtual
//! call.

use super::tunables::{self, KeyText, Tunable};
use super::{
    ClassWeights, Descriptor, DirectPolicy, DispatchToken, Done, Entry, Kick, OwnOptions, Pick, Policy, PolicyError,
    PolicyKind, PolicyOptions, QueueClass, Registered, WindowTerms, validate_own,
};
use crate::class::PriorityClass;
use crate::cost::Cost;
use crate::flow::{EffectiveWeight, FlowId, GroupId, Tree, Weight};
use crate::topology::{HctxId, Topology};
use crate::vtime::VTime;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::Any;

/// A worker's queue of a [`DynPolicy`].
pub type DynQueue = Box<dyn Any + Send>;

/// Finds a key of a policy's own options by name, and hands it to a function. `false`: there is no such key.
type Tune = fn(&mut OwnOptions, &str, &mut dyn FnMut(Tunable<'_>)) -> bool;

/// Makes a policy for the flows of these weights.
type Make = fn(&PolicyOptions, &Topology, &[Weight]) -> Result<Box<dyn DynPolicy>, PolicyError>;

/// A policy that does not ship, by its type: its properties and its constructor.
pub struct OtherPolicy {
    about: Descriptor,
    fallback: Option<PolicyKind>,
    keys: fn() -> Vec<KeyText>,
    shipped: fn() -> OwnOptions,
    tune: Tune,
    validate: fn(PolicyKind, &OwnOptions) -> Result<(), PolicyError>,
    make: Make,
}

impl OtherPolicy {
    /// The policy `P`.
    pub const fn of<P: Registered + 'static>() -> OtherPolicy {
        OtherPolicy {
            about: P::ABOUT,
            fallback: P::FALLBACK,
            keys: tunables::texts::<P::Options>,
            shipped: OwnOptions::shipped_of::<P::Options>,
            tune: OwnOptions::tune_of::<P::Options>,
            validate: |kind, own| validate_own(kind, &own.get::<P::Options>()),
            make: |options, topology, flows| Ok(Box::new(OnItsLines(P::make(options, topology, flows)?))),
        }
    }

    /// Descriptor of the policy.
    #[inline]
    pub const fn about(&self) -> &Descriptor {
        &self.about
    }

    pub(super) const fn fallback(&self) -> Option<PolicyKind> {
        self.fallback
    }

    pub(super) fn keys(&self) -> Vec<KeyText> {
        (self.keys)()
    }

    pub(super) fn shipped(&self) -> OwnOptions {
        (self.shipped)()
    }

    pub(super) fn tune(&self, own: &mut OwnOptions, key: &str, set: &mut dyn FnMut(Tunable<'_>)) -> bool {
        (self.tune)(own, key, set)
    }

    pub(super) fn validate(&'static self, own: &OwnOptions) -> Result<(), PolicyError> {
        (self.validate)(PolicyKind::Other(self), own)
    }

    pub(super) fn make(
        &self,
        options: &PolicyOptions,
        topology: &Topology,
        flows: &[Weight],
    ) -> Result<Box<dyn DynPolicy>, PolicyError> {
        (self.make)(options, topology, flows)
    }
}

/// [`Policy`], [`DirectPolicy`] and [`Registered`] as one trait without types of its own. Every [`Registered`] policy
/// in its box has it; a queue of another policy is the caller's bug.
#[allow(missing_docs, reason = "each method is the one of the same name in the three traits")]
pub trait DynPolicy: Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> DynQueue;
    fn submit(&self, queue: &mut DynQueue, entry: Entry, now_ns: u64, kick: &mut dyn Kick);
    fn pick(&self, queue: &mut DynQueue, now_ns: u64, kick: &mut dyn Kick) -> Pick;
    fn complete(&self, queue: &mut DynQueue, done: Done, token: DispatchToken, now_ns: u64, kick: &mut dyn Kick);
    fn pause(&self, queue: &mut DynQueue, kick: &mut dyn Kick);
    fn set_weight(&self, flow: FlowId, weight: Weight);
    fn set_group_weight(&self, group: GroupId, weight: Weight);
    fn set_class(&self, flow: FlowId, class: PriorityClass);
    fn retire(&self, flow: FlowId) -> bool;
    fn set_depth(&self, from: HctxId, depth: u32, kick: &mut dyn Kick) -> bool;
    fn set_window(&self, terms: &WindowTerms);
    fn window_terms(&self) -> Option<WindowTerms>;
    fn is_out_of_units(&self) -> bool;
    fn staged_flows(&self, queue: &DynQueue) -> usize;
    fn staged(&self, queue: &DynQueue) -> usize;

    fn class_of(&self, queue: &DynQueue, flow: FlowId, now_ns: u64) -> QueueClass;
    fn dispatched(&self, queue: &mut DynQueue, flow: FlowId, cost: Cost, class: QueueClass, now_ns: u64);
    fn direct(&self, queue: &mut DynQueue, flow: FlowId, cost: Cost, now_ns: u64) -> QueueClass;
    fn ended(&self, queue: &mut DynQueue, flow: FlowId, cost: Cost, now_ns: u64);
    fn adjust(&self, queue: &mut DynQueue, now_ns: u64) -> Option<ClassWeights>;

    fn set_tree(&mut self, tree: &Tree);
    fn effective_weight(&self, flow: FlowId) -> Option<EffectiveWeight>;
    fn effective_weight_of(&self, group: GroupId) -> Option<EffectiveWeight>;
    fn global_vtime(&self) -> Option<VTime>;
    fn free_units(&self) -> Option<i64>;
    fn depth(&self) -> Option<u32>;
    fn class_weights(&self) -> Option<ClassWeights>;
    fn class_bytes(&self, flow: FlowId) -> Option<[u64; 3]>;
}

/// A policy or a queue in a box of its own, which begins a pair of cache lines. The lines that its words share then
/// depend on its type alone, and not on the place that the allocator found, so a simulation repeats to the byte.
#[repr(align(128))]
struct OnItsLines<T>(T);

/// The queue as `P` opened it.
fn own<P: Registered>(queue: &DynQueue) -> &P::Queue {
    let own = queue.downcast_ref::<OnItsLines<P::Queue>>();
    &own.unwrap_or_else(|| panic!("a queue of another policy was given to {}", P::ABOUT.name)).0
}

/// The queue as `P` opened it, to change.
fn own_mut<P: Registered>(queue: &mut DynQueue) -> &mut P::Queue {
    let own = queue.downcast_mut::<OnItsLines<P::Queue>>();
    &mut own.unwrap_or_else(|| panic!("a queue of another policy was given to {}", P::ABOUT.name)).0
}

/// `P` as a policy that stages nothing.
fn direct<P: Registered>(policy: &P) -> P::Direct<'_> {
    policy.as_direct().unwrap_or_else(|| panic!("{} stages its requests and names no class", P::ABOUT.name))
}

/// Kick for a policy: an `impl Kick` has a size, a `dyn Kick` has none.
struct Through<'a>(&'a mut dyn Kick);

impl Kick for Through<'_> {
    fn kick(&mut self, hctx: HctxId) {
        self.0.kick(hctx);
    }
}

impl<P: Registered + 'static> DynPolicy for OnItsLines<P> {
    fn as_any(&self) -> &dyn Any {
        &self.0
    }

    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> DynQueue {
        Box::new(OnItsLines(Policy::open_queue(&self.0, hctx, capacity_requests)))
    }

    fn submit(&self, queue: &mut DynQueue, entry: Entry, now_ns: u64, kick: &mut dyn Kick) {
        Policy::submit(&self.0, own_mut::<P>(queue), entry, now_ns, &mut Through(kick));
    }

    fn pick(&self, queue: &mut DynQueue, now_ns: u64, kick: &mut dyn Kick) -> Pick {
        Policy::pick(&self.0, own_mut::<P>(queue), now_ns, &mut Through(kick))
    }

    fn complete(&self, queue: &mut DynQueue, done: Done, token: DispatchToken, now_ns: u64, kick: &mut dyn Kick) {
        Policy::complete(&self.0, own_mut::<P>(queue), done, token, now_ns, &mut Through(kick));
    }

    fn pause(&self, queue: &mut DynQueue, kick: &mut dyn Kick) {
        Policy::pause(&self.0, own_mut::<P>(queue), &mut Through(kick));
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) {
        Policy::set_weight(&self.0, flow, weight);
    }

    fn set_group_weight(&self, group: GroupId, weight: Weight) {
        Policy::set_group_weight(&self.0, group, weight);
    }

    fn set_class(&self, flow: FlowId, class: PriorityClass) {
        Policy::set_class(&self.0, flow, class);
    }

    fn retire(&self, flow: FlowId) -> bool {
        Policy::retire(&self.0, flow)
    }

    fn set_depth(&self, from: HctxId, depth: u32, kick: &mut dyn Kick) -> bool {
        Policy::set_depth(&self.0, from, depth, &mut Through(kick))
    }

    fn set_window(&self, terms: &WindowTerms) {
        Policy::set_window(&self.0, terms);
    }

    fn window_terms(&self) -> Option<WindowTerms> {
        Policy::window_terms(&self.0)
    }

    fn is_out_of_units(&self) -> bool {
        Policy::is_out_of_units(&self.0)
    }

    fn staged_flows(&self, queue: &DynQueue) -> usize {
        Policy::staged_flows(&self.0, own::<P>(queue))
    }

    fn staged(&self, queue: &DynQueue) -> usize {
        Policy::staged(&self.0, own::<P>(queue))
    }

    fn class_of(&self, queue: &DynQueue, flow: FlowId, now_ns: u64) -> QueueClass {
        direct(&self.0).class_of(own::<P>(queue), flow, now_ns)
    }

    fn dispatched(&self, queue: &mut DynQueue, flow: FlowId, cost: Cost, class: QueueClass, now_ns: u64) {
        direct(&self.0).dispatched(own_mut::<P>(queue), flow, cost, class, now_ns);
    }

    fn direct(&self, queue: &mut DynQueue, flow: FlowId, cost: Cost, now_ns: u64) -> QueueClass {
        direct(&self.0).direct(own_mut::<P>(queue), flow, cost, now_ns)
    }

    fn ended(&self, queue: &mut DynQueue, flow: FlowId, cost: Cost, now_ns: u64) {
        direct(&self.0).ended(own_mut::<P>(queue), flow, cost, now_ns);
    }

    fn adjust(&self, queue: &mut DynQueue, now_ns: u64) -> Option<ClassWeights> {
        direct(&self.0).adjust(own_mut::<P>(queue), now_ns)
    }

    fn set_tree(&mut self, tree: &Tree) {
        Registered::set_tree(&mut self.0, tree);
    }

    fn effective_weight(&self, flow: FlowId) -> Option<EffectiveWeight> {
        Registered::effective_weight(&self.0, flow)
    }

    fn effective_weight_of(&self, group: GroupId) -> Option<EffectiveWeight> {
        Registered::effective_weight_of(&self.0, group)
    }

    fn global_vtime(&self) -> Option<VTime> {
        Registered::global_vtime(&self.0)
    }

    fn free_units(&self) -> Option<i64> {
        Registered::free_units(&self.0)
    }

    fn depth(&self) -> Option<u32> {
        Registered::depth(&self.0)
    }

    fn class_weights(&self) -> Option<ClassWeights> {
        Registered::class_weights(&self.0)
    }

    fn class_bytes(&self, flow: FlowId) -> Option<[u64; 3]> {
        Registered::class_bytes(&self.0, flow)
    }
}
