//! Properties of a policy, as constants: a program decides by them, and not by the name.

/// Properties of a policy, for its users and for the code that runs it.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// The name in configs and tables: lower-case letters, digits and hyphens. The policy's folder is called so with
    /// underscores, and its page with `.md`.
    pub name: &'static str,
    /// Its behaviour in a few words without a full stop, for tables.
    pub summary: &'static str,
    /// The policy bounds the requests on the device: it has a D.
    pub has_depth: bool,
    /// Its D can be changed while it runs ([`Policy::set_depth`](super::Policy::set_depth)), so a controller can find
    /// it.
    pub tunes_depth: bool,
    /// The policy has a T, and an exact and a relaxed form.
    pub has_window: bool,
    /// The policy gives flows shares by their weights.
    pub is_fair: bool,
    /// Its flows can be in groups, with a weight at each level.
    pub has_groups: bool,
    /// It stands where an operating system has its elevator: its D is the depth of the device's queue unless it is set.
    pub is_elevator: bool,
    /// The policy leaves arbitration to the device: it needs class queues, and stages nothing.
    pub is_direct: bool,
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
        }
    }
}
