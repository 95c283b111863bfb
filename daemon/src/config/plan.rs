//! A checked config: every name is resolved to a slot.

use super::model::{DeviceConfig, ServerConfig};
use super::trust::TrustPlan;
use mqfq_blk::GroupId;
use mqfq_blk::cap::CapLimits;
use mqfq_blk::engine::FlowGoal;
use mqfq_blk::slots::{Slot, Slots};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::{PriorityClass, Weight};
use mqfq_config::SourceLocation;
use mqfq_config::text::shown;
use mqfq_front::export::Poll;
use mqfq_front::front_end::ExportAddress;
use mqfq_front::identity::Access;
use std::path::PathBuf;
use std::sync::Arc;

/// A checked config.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Workers and pinning.
    pub server: ServerConfig,
    /// Devices that at least one export uses, in the file's order. Their places are the engine's `DeviceIndex`.
    pub devices: Slots<DevicePlan>,
    /// Exports, in the file's order.
    pub exports: Slots<ExportPlan>,
    /// The addresses, each with its exports.
    pub listeners: Vec<(ExportAddress, Vec<Slot>)>,
    /// TLS by address, and its files.
    pub trust: TrustPlan,
    /// Sentences about sections that are right but do nothing.
    pub warnings: Vec<String>,
}

/// A device and the tenants that use it.
#[derive(Clone, Debug)]
pub struct DevicePlan {
    /// Its section.
    pub config: DeviceConfig,
    /// Its size.
    pub size_bytes: u64,
    /// All exports here are read-only, so the device is opened read-only.
    pub read_only: bool,
    /// One flow per tenant with an export here, in the order of the tenants' sections; of a tenant whose exports have
    /// weights, one per export. Their places are the engine's
    /// `FlowId`.
    pub flows: Slots<FlowPlan>,
    /// The groups of the flows, by `GroupId`; each after its parent.
    pub groups: Vec<GroupPlan>,
}

/// A tenant on one device, or one export of it there.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowPlan {
    /// The tenant's name.
    pub tenant: String,
    /// The export's name, if the tenant's exports are flows.
    pub export: Option<String>,
    /// Its weight, or the export's.
    pub weight: Weight,
    /// The group that it is in.
    pub group: Option<GroupId>,
    /// Its priority class.
    pub class: PriorityClass,
    /// Most that waits in one worker.
    pub staged: StageLimits,
    /// Payload memory of its connections, bytes; the same on each of its devices, which share it.
    pub memory_bytes: u64,
    /// Limits of its exports together; the same on each of its devices.
    pub caps: CapLimits,
    /// Its latency goal: its tenant's, or the nearest group's.
    pub goal: Option<FlowGoal>,
}

impl FlowPlan {
    /// Name in reports: the tenant, or tenant and export with a slash between.
    pub fn name(&self) -> String {
        match &self.export {
            Some(export) => format!("{}/{export}", self.tenant),
            None => self.tenant.clone(),
        }
    }
}

/// An export with everything resolved.
#[derive(Clone, PartialEq, Debug)]
pub struct ExportPlan {
    /// Its name.
    pub name: String,
    /// Place of its section.
    pub place: SourceLocation,
    /// Slot in [`Plan::devices`].
    pub device: Slot,
    /// Slot among that device's flows.
    pub flow: Slot,
    /// First byte on the device; of a pool, of its backing's region.
    pub offset_bytes: u64,
    /// Length.
    pub size_bytes: u64,
    /// The length is configured, and not that of what there is.
    pub has_size: bool,
    /// Its backing, of a pool.
    pub path: Option<PathBuf>,
    /// Clients may not write.
    pub read_only: bool,
    /// Exports that say so too may have the same bytes.
    pub is_shared: bool,
    /// Whether bytes that it gets are shown as they are; `None`: as [`crate::ownership`] says.
    pub keep_data: Option<bool>,
    /// Shown to clients that ask.
    pub description: Option<String>,
    /// Largest read or write, bytes, if less than what the device takes.
    pub payload_bytes_max: Option<u32>,
    /// The time for which a queue looks for its guest's next request.
    pub poll: Poll,
    /// Its limits, besides its tenant's caps.
    pub caps: CapLimits,
    /// The clients that may have it.
    pub clients: Arc<Access>,
    /// Its addresses, as configured.
    pub addresses: Vec<ExportAddress>,
}

/// A group of flows on one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupPlan {
    /// Name of its section: of a `[group.NAME]`, or of a tenant whose exports are flows.
    pub name: String,
    /// It is a tenant.
    pub is_tenant: bool,
    /// Its weight.
    pub weight: Weight,
    /// The group that it is in.
    pub parent: Option<GroupId>,
}

impl GroupPlan {
    /// Name in sentences.
    pub fn called(&self) -> String {
        format!("{} {}", if self.is_tenant { "tenant" } else { "group" }, shown(&self.name))
    }
}

/// The range of an export.
pub(super) struct Range {
    /// Index into the config's devices.
    pub(super) device: usize,
    /// Index into the config's tenants.
    pub(super) tenant: usize,
    /// First byte on the device.
    pub(super) start: u64,
    /// Byte after the last.
    pub(super) end: u64,
}
