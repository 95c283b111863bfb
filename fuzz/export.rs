//! The export that a client of a fuzz target has; each target that needs one takes this file in as a module.

use mqfq_blk::FlowId;
use mqfq_blk::cap::Caps;
use mqfq_blk::client::DeviceIndex;
use mqfq_blk::slots::Slot;
use mqfq_front::export::{BlockSizes, Export, ExportId, ExportState, TenantId};
use mqfq_front::memory::TenantMemory;

/// An export of the first device, flow and tenant, without caps, whose name is `a`.
pub fn export(offset_bytes: u64, size_bytes: u64, read_only: bool, block: BlockSizes) -> Export {
    Export {
        id: ExportId(Slot::first(0)),
        name: "a".to_owned(),
        description: String::new(),
        device: DeviceIndex(0),
        flow: FlowId(0),
        tenant: TenantId(Slot::first(0)),
        state: ExportState::default(),
        offset_bytes,
        size_bytes,
        read_only,
        block,
        memory: TenantMemory::unbounded(),
        caps: Caps::none(),
    }
}
