//! Descriptor of `mqfq`.

use crate::policy::descriptor::Descriptor;

pub const ABOUT: Descriptor = Descriptor {
    has_depth: true,
    tunes_depth: true,
    has_window: true,
    is_fair: true,
    has_groups: true,
    ..Descriptor::new("mqfq", "multi-queue fair queueing, without a lock")
};
