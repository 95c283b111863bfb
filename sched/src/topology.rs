//! Which hardware contexts are near each other: data, so that two sockets can be tested on a laptop.

/// Names one hardware context (a device queue and the worker that owns it): an index, 0-based, dense.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HctxId(pub u16);
