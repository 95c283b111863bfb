//! The registry of policies: one type for all of them, made from a list with one line each.
//!
//! A policy is a folder: its `mod.rs` has the type, the trait [`Policy`], and an implementation of
//! [`Registered`] that says everything that others must know of it. The list in `policy/mod.rs` names the folder and
//! the type; `policies!` makes of it what could be written by hand:
//!
//! | made | for |
//! |---|---|
//! | `pub mod` and `pub use` | the folder and the type |
//! | [`PolicyKind`] | the name in configs, and what holds of the policy |
//! | [`AnyPolicy`](super::AnyPolicy), [`AnyQueue`](super::AnyQueue), [`AnyDirect`](super::AnyDirect) | the choice is a line in a config and not a type parameter of the block layer |
//! | [`OwnOptions`](super::OwnOptions) | what only one policy looks at |
//!
//! # Cost
//! A match per operation, which the branch predictor has learnt after the first: a device's policy does not change
//! while it runs. The two policies that most devices have come first, so that each is a comparison and not a jump
//! through the table of all.

use super::tunables::Tunables;
use super::{ClassWeights, Policy, PolicyError, PolicyKind, PolicyOptions};
use crate::flow::{FlowId, Weight};
use crate::hierarchy::{EffectiveWeight, GroupId, Tree};
use crate::topology::Topology;
use crate::vtime::VTime;

/// What holds of a policy, for those who choose one and for those who run it.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// The name in configs and tables: lower-case letters, digits and hyphens. The policy's folder is called so with
    /// underscores, and its page in `docs/use/policies` with `.md`.
    pub name: &'static str,
    /// What it does, in a few words without a full stop, for tables.
    pub summary: &'static str,
    /// It bounds the requests on the device: it has a D.
    pub has_depth: bool,
    /// Its D can be changed while it runs ([`Policy::set_depth`]), so a controller can find it.
    pub tunes_depth: bool,
    /// It has a T, and an exact and a relaxed form.
    pub has_window: bool,
    /// It has virtual time, and gives flows shares by their weights.
    pub is_fair: bool,
    /// Its flows can be in groups, with a weight at each level.
    pub has_groups: bool,
    /// It stands where an operating system has its elevator: its D is the depth of the device's queue unless it is set.
    pub is_elevator: bool,
    /// It leaves arbitration to the device: it needs class queues, and stages nothing.
    pub is_direct: bool,
    /// The policy that a config may name for devices that lack what this one needs.
    pub fallback: Option<PolicyKind>,
}

impl Descriptor {
    /// A policy that stages requests and has no D, no T and no virtual time; the rest is said by its fields.
    pub const fn new(name: &'static str, summary: &'static str) -> Descriptor {
        Descriptor {
            name,
            summary,
            has_depth: false,
            tunes_depth: false,
            has_window: false,
            is_fair: false,
            has_groups: false,
            is_elevator: false,
            is_direct: false,
            fallback: None,
        }
    }
}

/// A policy of the registry: what is known of it, and how it is made.
pub trait Registered: Policy + Sized {
    /// What holds of it.
    const ABOUT: Descriptor;

    /// Its own options; [`NoOptions`](super::NoOptions) of a policy without.
    type Options: Tunables;

    /// The policy for the queues of `topology`, and one flow per weight. The options have been validated.
    ///
    /// # Errors
    /// What the policy cannot have of what others can, such as so many flows.
    fn make(options: &PolicyOptions, topology: &Topology, flows: &[Weight]) -> Result<Self, PolicyError>;

    /// Puts its flows into groups, of a policy that says [`Descriptor::has_groups`]. The tree has been validated, and
    /// no flow has been charged yet.
    fn set_tree(&mut self, tree: &Tree) {
        let _ = tree;
    }

    /// The weight at which a flow competes now, of a policy that knows.
    fn effective_weight(&self, flow: FlowId) -> Option<EffectiveWeight> {
        let _ = flow;
        None
    }

    /// The same of a group.
    fn effective_weight_of(&self, group: GroupId) -> Option<EffectiveWeight> {
        let _ = group;
        None
    }

    /// Virtual time, of a policy that has one.
    fn global_vtime(&self) -> Option<VTime> {
        None
    }

    /// Units of D that no request holds, of a policy that has a depth. Negative while a request of several units is
    /// paid off. Exact while no worker is inside the policy.
    fn free_units(&self) -> Option<i64> {
        None
    }

    /// D as it is now, of a policy whose D can be changed.
    fn depth(&self) -> Option<u32> {
        None
    }

    /// The weights of the device's classes now, of a policy that sets them.
    fn class_weights(&self) -> Option<ClassWeights> {
        None
    }

    /// What a flow has submitted to each class since the policy was made, bytes of cost by
    /// [`QueueClass::index`](super::QueueClass::index), of a policy that names classes.
    fn class_bytes(&self, flow: FlowId) -> Option<[u64; 3]> {
        let _ = flow;
        None
    }
}

/// A call on one of the two policies that most devices have, each of which is a comparison; else something else.
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

/// The same call on whichever policy it is, with its queue; a queue of another policy is the caller's bug.
macro_rules! on_each {
    ([$($kind:ident)*], $self:expr, $queue:expr, $policy:ident, $own:ident => $call:expr) => {
        match ($self, $queue) {
            $((AnyPolicy::$kind($policy), AnyQueue::$kind($own)) => $call,)*
            (policy, _) => panic!("a queue of another policy was given to {}", policy.kind()),
        }
    };
}

/// The same of a direct policy, of which there is a variant that has values for each direct policy alone.
macro_rules! on_direct {
    ([$($kind:ident)*], $self:expr, $queue:expr, $policy:ident, $own:ident => $call:expr) => {
        match ($self, $queue) {
            $((AnyDirect::$kind($policy), AnyQueue::$kind($own)) => $call,)*
            _ => panic!("a queue of another policy was given to a direct one"),
        }
    };
}

/// Makes the types of all policies. A line is `Name = folder::Type`; tables show policies in the order of the lines.
macro_rules! policies {
    ($($kind:ident = $folder:ident::$policy:ident,)*) => {
        $(
            pub mod $folder;
            pub use $folder::$policy;
        )*

        /// Number of policies.
        pub(crate) const POLICIES: usize = [$(stringify!($kind)),*].len();

        /// The policies of this crate.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum PolicyKind {
            $(
                #[doc = concat!("See [`", stringify!($folder), "`](mod@", stringify!($folder), ").")]
                $kind,
            )*
        }

        impl PolicyKind {
            /// All of them, in the order in which tables show them.
            pub const ALL: [PolicyKind; POLICIES] = [$(PolicyKind::$kind),*];

            /// What holds of it.
            pub const fn about(self) -> &'static Descriptor {
                match self {
                    $(PolicyKind::$kind => &<$policy as Registered>::ABOUT,)*
                }
            }

            /// The keys that only it has in a config, in the order in which tables show them.
            pub fn keys(self) -> Vec<KeyText> {
                match self {
                    $(PolicyKind::$kind => tunables::texts::<<$policy as Registered>::Options>(),)*
                }
            }
        }

        /// What only one policy looks at: the options of each.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct OwnOptions {
            $(
                #[doc = concat!("Of [`", stringify!($folder), "`](mod@", stringify!($folder), ").")]
                pub $folder: <$policy as Registered>::Options,
            )*
        }

        impl OwnOptions {
            /// As the policies are known with.
            pub const DEFAULT: OwnOptions =
                OwnOptions { $($folder: <<$policy as Registered>::Options as Tunables>::DEFAULT),* };

            /// What a server that chose this policy runs with unless its config says otherwise. The options of the
            /// others, which nobody looks at, are their defaults.
            pub fn shipped(kind: PolicyKind) -> OwnOptions {
                let mut own = OwnOptions::DEFAULT;
                match kind {
                    $(PolicyKind::$kind => {
                        own.$folder = <<$policy as Registered>::Options as Tunables>::SHIPPED;
                    })*
                }
                own
            }

            /// What a key of this policy sets, and in which range. `None`: the policy has no such key.
            pub fn tunable(&mut self, kind: PolicyKind, key: &str) -> Option<Tunable<'_>> {
                match kind {
                    $(PolicyKind::$kind => tunables::tunable(&mut self.$folder, key),)*
                }
            }

            /// Checks every field.
            ///
            /// # Errors
            /// The first field that is out of range.
            pub(crate) fn validate(&self) -> Result<(), PolicyError> {
                $(tunables::validate(PolicyKind::$kind, &self.$folder)?;)*
                Ok(())
            }
        }

        /// A policy chosen at run time.
        // Looked at by each operation: a byte, and not what the compiler finds free in one of the policies.
        #[repr(u8)]
        #[allow(clippy::large_enum_variant, reason = "one per device, never moved on the path")]
        pub enum AnyPolicy {
            $(
                #[doc = concat!("See [`", stringify!($folder), "`](mod@", stringify!($folder), ").")]
                $kind($policy),
            )*
        }

        /// A worker's queue of an [`AnyPolicy`].
        #[repr(u8)]
        #[allow(clippy::large_enum_variant, reason = "one per hctx, never moved on the path")]
        pub enum AnyQueue {
            $(
                #[doc = concat!("A worker's queue of [`", stringify!($folder), "`](mod@", stringify!($folder), ").")]
                $kind(<$policy as Policy>::Queue),
            )*
        }

        /// An [`AnyPolicy`] that is direct. Only the variants of direct policies have values.
        #[derive(Clone, Copy)]
        pub enum AnyDirect<'a> {
            $(
                #[doc = concat!("See [`", stringify!($folder), "`](mod@", stringify!($folder), ").")]
                $kind(<$policy as Policy>::Direct<'a>),
            )*
        }

        impl AnyPolicy {
            /// Builds the policy that the options name, for the queues of `topology` and one flow per weight.
            ///
            /// # Errors
            /// The first thing wrong with the options or the number of flows.
            pub fn new(
                options: &PolicyOptions,
                topology: &Topology,
                flows: &[Weight],
            ) -> Result<AnyPolicy, PolicyError> {
                options.validate_for(flows)?;
                Ok(match options.kind {
                    $(PolicyKind::$kind => {
                        AnyPolicy::$kind(<$policy as Registered>::make(options, topology, flows)?)
                    })*
                })
            }

            /// The same with its flows in groups.
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
                if !options.kind.about().has_groups {
                    return Err(PolicyError::NoGroups(options.kind));
                }
                tree.validate(flows.len()).map_err(PolicyError::Tree)?;
                match &mut policy {
                    $(AnyPolicy::$kind(policy) => Registered::set_tree(policy, tree),)*
                }
                Ok(policy)
            }

            /// The weight at which a flow competes now, of a policy that has groups.
            pub fn effective_weight(&self, flow: FlowId) -> Option<EffectiveWeight> {
                match self {
                    $(AnyPolicy::$kind(policy) => Registered::effective_weight(policy, flow),)*
                }
            }

            /// The same of a group.
            pub fn effective_weight_of(&self, group: GroupId) -> Option<EffectiveWeight> {
                match self {
                    $(AnyPolicy::$kind(policy) => Registered::effective_weight_of(policy, group),)*
                }
            }

            /// Which policy it is.
            pub fn kind(&self) -> PolicyKind {
                match self {
                    $(AnyPolicy::$kind(_) => PolicyKind::$kind,)*
                }
            }

            /// Virtual time, of a policy that has one.
            pub fn global_vtime(&self) -> Option<VTime> {
                match self {
                    $(AnyPolicy::$kind(policy) => Registered::global_vtime(policy),)*
                }
            }

            /// The weights of the device's classes now, of a policy that sets them.
            pub fn class_weights(&self) -> Option<ClassWeights> {
                match self {
                    $(AnyPolicy::$kind(policy) => Registered::class_weights(policy),)*
                }
            }

            /// What a flow has submitted to each class since the policy was made, bytes of cost by
            /// [`QueueClass::index`], of a policy that names classes.
            pub fn class_bytes(&self, flow: FlowId) -> Option<[u64; 3]> {
                match self {
                    $(AnyPolicy::$kind(policy) => Registered::class_bytes(policy, flow),)*
                }
            }

            /// D as it is now, of a policy whose D can be changed.
            pub fn depth(&self) -> Option<u32> {
                match self {
                    $(AnyPolicy::$kind(policy) => Registered::depth(policy),)*
                }
            }

            /// Units of D that no request holds, of a policy that has a depth. Negative while a request of several
            /// units is paid off. Exact while no worker is inside the policy.
            pub fn free_units(&self) -> Option<i64> {
                match self {
                    $(AnyPolicy::$kind(policy) => Registered::free_units(policy),)*
                }
            }
        }

        // The common policies look at little of an entry and at nothing of what is done. The others are called, and get
        // what is put together of the fields where it is known whose it is: else it would be put together in memory for
        // the common ones, too.
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
                on_each!([$($kind)*], self, queue, policy, own => policy.submit(own, entry, now_ns, kick));
            }

            #[inline(always)]
            fn pick_elsewhere(&self, queue: &mut AnyQueue, now_ns: u64, kick: &mut impl Kick) -> Pick {
                on_each!([$($kind)*], self, queue, policy, own => policy.pick(own, now_ns, kick))
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
                on_each!([$($kind)*], self, queue, policy, own => policy.complete(own, done, token, now_ns, kick));
            }
        }

        impl Policy for AnyPolicy {
            type Queue = AnyQueue;
            type Direct<'a> = AnyDirect<'a>;

            fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> AnyQueue {
                match self {
                    $(AnyPolicy::$kind(policy) => AnyQueue::$kind(policy.open_queue(hctx, capacity_requests)),)*
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
                    policy.pick_elsewhere(queue, now_ns, kick)
                })
            }

            // By force: the completion of the common policies is less than the call.
            #[inline(always)]
            fn complete(
                &self,
                queue: &mut AnyQueue,
                done: Done,
                token: DispatchToken,
                now_ns: u64,
                kick: &mut impl Kick,
            ) {
                on_common!(self, queue, policy, own => policy.complete(own, done, token, now_ns, kick), (it, queue) => {
                    let Done { flow, handle, kind, is_sync, length_bytes, cost, submitted_ns, dispatched_ns } = done;
                    let parts = (flow, handle, kind, is_sync, length_bytes, cost, submitted_ns, dispatched_ns);
                    it.complete_elsewhere(queue, parts, token, now_ns, kick);
                });
            }

            fn pause(&self, queue: &mut AnyQueue, kick: &mut impl Kick) {
                on_each!([$($kind)*], self, queue, policy, own => policy.pause(own, kick));
            }

            #[inline]
            fn as_direct(&self) -> Option<AnyDirect<'_>> {
                match self {
                    $(AnyPolicy::$kind(policy) => policy.as_direct().map(AnyDirect::$kind),)*
                }
            }

            fn set_weight(&self, flow: FlowId, weight: Weight) {
                match self {
                    $(AnyPolicy::$kind(policy) => policy.set_weight(flow, weight),)*
                }
            }

            fn set_group_weight(&self, group: GroupId, weight: Weight) {
                match self {
                    $(AnyPolicy::$kind(policy) => policy.set_group_weight(group, weight),)*
                }
            }

            fn set_class(&self, flow: FlowId, class: PriorityClass) {
                match self {
                    $(AnyPolicy::$kind(policy) => policy.set_class(flow, class),)*
                }
            }

            fn retire(&self, flow: FlowId) -> bool {
                match self {
                    $(AnyPolicy::$kind(policy) => policy.retire(flow),)*
                }
            }

            fn set_depth(&self, from: HctxId, depth: u32, kick: &mut impl Kick) -> bool {
                match self {
                    $(AnyPolicy::$kind(policy) => policy.set_depth(from, depth, kick),)*
                }
            }

            fn set_window(&self, terms: &WindowTerms) {
                match self {
                    $(AnyPolicy::$kind(policy) => policy.set_window(terms),)*
                }
            }

            fn window_terms(&self) -> Option<WindowTerms> {
                match self {
                    $(AnyPolicy::$kind(policy) => policy.window_terms(),)*
                }
            }

            fn is_out_of_units(&self) -> bool {
                match self {
                    $(AnyPolicy::$kind(policy) => policy.is_out_of_units(),)*
                }
            }

            fn staged_flows(&self, queue: &AnyQueue) -> usize {
                on_each!([$($kind)*], self, queue, policy, own => policy.staged_flows(own))
            }

            fn staged(&self, queue: &AnyQueue) -> usize {
                on_each!([$($kind)*], self, queue, policy, own => policy.staged(own))
            }
        }

        impl DirectPolicy<AnyQueue> for AnyDirect<'_> {
            #[inline]
            fn class_of(self, queue: &AnyQueue, flow: FlowId, now_ns: u64) -> QueueClass {
                on_direct!([$($kind)*], self, queue, policy, own => policy.class_of(own, flow, now_ns))
            }

            #[inline]
            fn dispatched(self, queue: &mut AnyQueue, flow: FlowId, cost: Cost, class: QueueClass, now_ns: u64) {
                on_direct!([$($kind)*], self, queue, policy, own => policy.dispatched(own, flow, cost, class, now_ns));
            }

            #[inline]
            fn direct(self, queue: &mut AnyQueue, flow: FlowId, cost: Cost, now_ns: u64) -> QueueClass {
                on_direct!([$($kind)*], self, queue, policy, own => policy.direct(own, flow, cost, now_ns))
            }

            #[inline(always)]
            fn ended(self, queue: &mut AnyQueue, flow: FlowId, cost: Cost, now_ns: u64) {
                on_direct!([$($kind)*], self, queue, policy, own => policy.ended(own, flow, cost, now_ns));
            }

            #[inline]
            fn adjust(self, queue: &mut AnyQueue, now_ns: u64) -> Option<ClassWeights> {
                on_direct!([$($kind)*], self, queue, policy, own => policy.adjust(own, now_ns))
            }
        }
    };
}
