//! Policies that a program can be told to run, and their properties.
//!
//! A policy is a type with the trait [`Policy`], and an implementation of [`Registered`] that says everything that a
//! program must know of it. [`Registry::PRODUCT`] has the two that ship; a program with more has a registry of its own,
//! whose further policies are each a `static` of [`OtherPolicy`](super::OtherPolicy).

use super::tunables::{KeyText, Tunables};
use super::{ClassWeights, Descriptor, Policy, PolicyError, PolicyKind, PolicyOptions, UnknownPolicy};
use crate::flow::{EffectiveWeight, FlowId, GroupId, Tree, Weight};
use crate::topology::Topology;
use crate::vtime::VTime;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// A policy of the registry: its properties and its constructor.
pub trait Registered: Policy + Sized {
    /// Descriptor of the policy.
    const ABOUT: Descriptor;

    /// The policy that a config may name for devices that lack what this one needs.
    const FALLBACK: Option<PolicyKind> = None;

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

    /// The weight at which a group competes now, of a policy that knows.
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

    /// Bytes of cost that a flow has submitted to each class since the policy was made, by
    /// [`QueueClass::index`](super::QueueClass::index), of a policy that names classes.
    fn class_bytes(&self, flow: FlowId) -> Option<[u64; 3]> {
        let _ = flow;
        None
    }
}

/// Policies that a program can be told to run, in the order in which tables show them.
#[derive(Clone, Copy, Debug)]
pub struct Registry(&'static [PolicyKind]);

impl Registry {
    /// Policies that ship.
    pub const PRODUCT: Registry = Registry::new(&[PolicyKind::None, PolicyKind::Mqfq]);

    /// A registry of these policies.
    ///
    /// # Panics
    /// If a descriptor contradicts itself: as a constant it does not compile.
    pub const fn new(kinds: &'static [PolicyKind]) -> Registry {
        let mut at = 0;
        while at < kinds.len() {
            let Descriptor { has_depth, has_window, is_direct, is_elevator, .. } = *kinds[at].about();
            assert!(!is_direct || !has_depth && !has_window, "a direct policy has nothing that waits for a token");
            assert!(!is_elevator || has_depth, "an elevator's depth is that of the device's queue");
            if let Some(other) = kinds[at].fallback() {
                assert!(!other.is_direct(), "a fallback needs nothing of a device");
            }
            at += 1;
        }
        Registry(kinds)
    }

    /// All of them.
    pub const fn kinds(self) -> &'static [PolicyKind] {
        self.0
    }

    /// Names of the policies.
    pub fn names(self) -> Vec<&'static str> {
        self.0.iter().map(|kind| kind.name()).collect()
    }

    /// The policy of this name.
    ///
    /// # Errors
    /// None has it.
    pub fn find(self, name: &str) -> Result<PolicyKind, UnknownPolicy> {
        let unknown = || UnknownPolicy { name: name.to_owned(), allowed: self.names().join(", ") };
        self.0.iter().copied().find(|kind| kind.name() == name).ok_or_else(unknown)
    }

    /// The names of all keys that only some policies have in a config, each once, in the order of the policies.
    pub fn all_keys(self) -> Vec<&'static str> {
        let mut all = Vec::new();
        for KeyText { name, .. } in self.0.iter().flat_map(|kind| kind.keys()) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        all
    }

    /// The names of the policies of which `is_one` holds, in alphabetical order, for a message: `a`, `a and b`,
    /// `a, b and c`.
    pub fn which(self, is_one: impl Fn(PolicyKind) -> bool) -> String {
        let mut names: Vec<&str> = self.0.iter().filter(|kind| is_one(**kind)).map(|kind| kind.name()).collect();
        names.sort_unstable();
        match names.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
            None => "no policy".to_owned(),
        }
    }
}
