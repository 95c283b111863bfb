//! The names of the policies.

use super::{Descriptor, KeyText, OtherPolicy, OwnOptions, PolicyError, Tunable};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::hash::{Hash, Hasher};

/// A policy by its name. Two kinds are equal if their names are.
#[derive(Clone, Copy)]
pub enum PolicyKind {
    /// See [`none`](mod@super::none).
    None,
    /// See [`mqfq`](mod@super::mqfq).
    Mqfq,
    /// A policy that does not ship, of a wider [`Registry`](super::Registry).
    Other(&'static OtherPolicy),
}

impl PolicyKind {
    /// Descriptor of the policy.
    pub const fn about(self) -> &'static Descriptor {
        match self {
            PolicyKind::None => &super::none::about::ABOUT,
            PolicyKind::Mqfq => &super::mqfq::about::ABOUT,
            PolicyKind::Other(other) => other.about(),
        }
    }

    /// The keys that only it has in a config, in the order in which tables show them.
    pub fn keys(self) -> Vec<KeyText> {
        match self {
            PolicyKind::None | PolicyKind::Mqfq => Vec::new(),
            PolicyKind::Other(other) => other.keys(),
        }
    }

    /// The name in configs and tables.
    pub const fn name(self) -> &'static str {
        self.about().name
    }

    /// The policy bounds the requests on the device: it has a D.
    pub const fn has_depth(self) -> bool {
        self.about().has_depth
    }

    /// A controller can find its D while it runs ([`crate::depth`]).
    pub const fn tunes_depth(self) -> bool {
        self.about().tunes_depth
    }

    /// The policy has a T, and an exact and a relaxed form.
    pub const fn has_window(self) -> bool {
        self.about().has_window
    }

    /// Its flows can be in groups.
    pub const fn has_groups(self) -> bool {
        self.about().has_groups
    }

    /// The policy leaves arbitration to the device, whose queues then have classes: requests are not staged.
    pub const fn is_direct(self) -> bool {
        self.about().is_direct
    }

    /// The policy gives flows shares by their weights.
    pub const fn is_fair(self) -> bool {
        self.about().is_fair
    }

    /// It stands where an operating system has its elevator, with the device's queue below: its D is the depth of the
    /// device's queue unless it is set.
    pub const fn is_elevator(self) -> bool {
        self.about().is_elevator
    }

    /// The policy that a config may name for devices that lack what this one needs, if it needs anything.
    pub const fn fallback(self) -> Option<PolicyKind> {
        match self {
            PolicyKind::None | PolicyKind::Mqfq => None,
            PolicyKind::Other(other) => other.fallback(),
        }
    }
}

impl PartialEq for PolicyKind {
    fn eq(&self, other: &PolicyKind) -> bool {
        match (self, other) {
            (PolicyKind::None, PolicyKind::None) | (PolicyKind::Mqfq, PolicyKind::Mqfq) => true,
            (PolicyKind::Other(one), PolicyKind::Other(other)) => one.about().name == other.about().name,
            _ => false,
        }
    }
}

impl Eq for PolicyKind {}

impl Hash for PolicyKind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl fmt::Debug for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl OwnOptions {
    /// Options of a server that chose this policy, unless its config says otherwise.
    pub fn shipped(kind: PolicyKind) -> OwnOptions {
        match kind {
            PolicyKind::None | PolicyKind::Mqfq => OwnOptions::DEFAULT,
            PolicyKind::Other(other) => other.shipped(),
        }
    }

    /// Calls `set` with the option of a key of this policy, and keeps the new value. `None`: the policy has no such
    /// key.
    pub fn tune<R>(&mut self, kind: PolicyKind, key: &str, set: impl FnOnce(Tunable<'_>) -> R) -> Option<R> {
        let PolicyKind::Other(other) = kind else { return None };
        let (mut set, mut answer) = (Some(set), None);
        other.tune(self, key, &mut |tunable| answer = set.take().map(|set| set(tunable)));
        answer
    }

    /// Checks what this policy looks at.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub(super) fn validate(&self, kind: PolicyKind) -> Result<(), PolicyError> {
        match kind {
            PolicyKind::None | PolicyKind::Mqfq => Ok(()),
            PolicyKind::Other(other) => other.validate(self),
        }
    }
}

/// A name that is no policy's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPolicy {
    /// Name as it was written.
    pub name: String,
    /// The names of the policies that there are.
    pub allowed: String,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown policy {:?}, allowed are {}", self.name, self.allowed)
    }
}

impl core::error::Error for UnknownPolicy {}
