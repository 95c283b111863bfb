//! A request as the scheduler sees it, when it comes and when it has ended.

use crate::cost::{Cost, CostKind};
use crate::flow::FlowId;

/// The caller's own name for a staged request (its tag); the policy only hands it back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(pub u32);

/// A request as the scheduler sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Flow that is charged.
    pub flow: FlowId,
    /// Service that it will use.
    pub cost: Cost,
    /// The caller's name for it.
    pub handle: Handle,
    /// Kind of the request.
    pub kind: CostKind,
    /// A caller waits for it: not so for writes of a page cache at its leisure, nor for discards.
    pub is_sync: bool,
    /// Its first byte on the device.
    pub offset_bytes: u64,
    /// Its length; 0 for a flush.
    pub length_bytes: u32,
}

impl Entry {
    /// A read of the device's first bytes, as long as its cost: for callers whose policy looks at flow and cost alone.
    pub const fn read(flow: FlowId, cost: Cost, handle: Handle) -> Entry {
        let length_bytes = if cost.0 > u32::MAX as u64 { u32::MAX } else { cost.0 as u32 };
        Entry { flow, cost, handle, kind: CostKind::Read, is_sync: true, offset_bytes: 0, length_bytes }
    }
}

/// A request that the device finished, as the scheduler sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Flow that was charged.
    pub flow: FlowId,
    /// The caller's name for it, as given at submit. It is free for another request after the call that brings this.
    pub handle: Handle,
    /// As in [`Entry::kind`].
    pub kind: CostKind,
    /// As in [`Entry::is_sync`].
    pub is_sync: bool,
    /// As in [`Entry::length_bytes`].
    pub length_bytes: u32,
    /// As in [`Entry::cost`].
    pub cost: Cost,
    /// When it was submitted to the policy, ns.
    pub submitted_ns: u64,
    /// When it went to the device, ns.
    pub dispatched_ns: u64,
}

impl Done {
    /// The end of an [`Entry::read`], at time 0.
    pub const fn read(flow: FlowId, handle: Handle) -> Done {
        let (kind, cost) = (CostKind::Read, Cost(0));
        Done { flow, handle, kind, is_sync: true, length_bytes: 0, cost, submitted_ns: 0, dispatched_ns: 0 }
    }
}
