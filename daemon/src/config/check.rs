//! Do the sections agree with each other and with the machine: [`Config`] in, [`Plan`] out.
//!
//! The plan speaks in slots, so that whoever starts the engine looks nothing up and can fail only for reasons that lie
//! outside the config, and a tenant, export or device is the same one for as long as it is there, wherever its section
//! stands in the file that is read next.

use super::family::{self, Families, GroupPlan, Member};
use super::trust::TrustPlan;
use super::{
    Config, ConfigError, DeviceConfig, ExportConfig, Located, Medium, Place, ServerConfig, addresses, overlap,
};
use crate::files;
use mqfq_blk::cap::CapLimits;
use mqfq_blk::hierarchy::GroupId;
use mqfq_blk::slots::{NoPlace, Slot, Slots};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::{PriorityClass, Weight};
use mqfq_config::text::{did_you_mean, list, quoted, shown};
use mqfq_front::front_end::ExportAddress;
use mqfq_front::identity::Access;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most devices: what the engine takes.
const DEVICES_MAX: u32 = u16::MAX as u32;

/// What to start.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Workers and pinning.
    pub server: ServerConfig,
    /// Devices that at least one export uses, in the file's order. Their places are the engine's `DeviceIndex`.
    pub devices: Slots<DevicePlan>,
    /// Exports, in the file's order.
    pub exports: Slots<ExportPlan>,
    /// Each address with its exports.
    pub listeners: Vec<(ExportAddress, Vec<Slot>)>,
    /// What is encrypted where.
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
    /// All exports here are read-only: it is opened to be read alone.
    pub read_only: bool,
    /// One flow per tenant with an export here, in the order of the tenants' sections; of a tenant whose exports have
    /// weights, one per export. Their places are the engine's
    /// `FlowId`.
    pub flows: Slots<FlowPlan>,
    /// The groups that the flows are in, by `GroupId`; each after the one that it is in.
    pub groups: Vec<GroupPlan>,
}

/// A tenant on one device, or one export of it there.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// The tenant's name.
    pub tenant: String,
    /// The export's name, of a tenant whose exports are flows.
    pub export: Option<String>,
    /// Its weight, or the export's.
    pub weight: Weight,
    /// The group that it is in.
    pub group: Option<GroupId>,
    /// Its priority class.
    pub class: PriorityClass,
    /// What may wait in one worker.
    pub staged: StageLimits,
    /// Payload memory of its connections, bytes; the same on each of its devices, which share it.
    pub memory_bytes: u64,
    /// What its exports may do together; the same on each of its devices.
    pub caps: CapLimits,
}

impl FlowPlan {
    /// As reports call it: the tenant, or tenant and export with a slash between.
    pub fn name(&self) -> String {
        match &self.export {
            Some(export) => format!("{}/{export}", self.tenant),
            None => self.tenant.clone(),
        }
    }
}

/// An export with everything resolved.
#[derive(Clone, Debug)]
pub struct ExportPlan {
    /// Its name.
    pub name: String,
    /// Where its section stands.
    pub place: Place,
    /// Of [`Plan::devices`].
    pub device: Slot,
    /// Of that device's flows.
    pub flow: Slot,
    /// First byte on the device.
    pub offset_bytes: u64,
    /// Length.
    pub size_bytes: u64,
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
    /// What it may do, besides its tenant's caps.
    pub caps: CapLimits,
    /// Who may have it.
    pub clients: Arc<Access>,
    /// Where it is served, as configured.
    pub addresses: Vec<ExportAddress>,
}

/// What the machine says of a path; a trait so that the checks are tested without files.
pub trait Files {
    /// Size of a regular file or block device, bytes.
    ///
    /// # Errors
    /// It is something else, or cannot be opened: why, in words.
    fn size_bytes(&self, path: &Path) -> Result<u64, String>;

    /// Whether this process may write to it.
    ///
    /// # Errors
    /// It may not: why, in words.
    fn writable(&self, path: &Path) -> Result<(), String>;

    /// One spelling per file.
    fn canonical(&self, path: &Path) -> PathBuf;
}

/// The machine's own files.
pub struct RealFiles;

impl Files for RealFiles {
    fn size_bytes(&self, path: &Path) -> Result<u64, String> {
        files::device_size_bytes(path)
    }

    fn writable(&self, path: &Path) -> Result<(), String> {
        files::writable(path)
    }

    fn canonical(&self, path: &Path) -> PathBuf {
        std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
    }
}

/// The same, for a server that runs a plan: after it has become another user, it need not be allowed to open again
/// what it holds.
pub struct HeldFiles<'p> {
    /// The plan.
    pub plan: &'p Plan,
    /// A device of it that is to be opened again all the same, by name.
    pub but: Option<&'p str>,
}

impl HeldFiles<'_> {
    /// The device whose file this is, if it is there and is not to be opened: `None` if it is not, or is gone.
    fn held(&self, path: &Path) -> Option<(&DevicePlan, std::fs::Metadata)> {
        let is_its = |device: &&DevicePlan| match &device.config.medium {
            Medium::File { path: own, .. } => own.value == path && self.but != Some(device.config.name.as_str()),
            _ => false,
        };
        Some((self.plan.devices.values().find(is_its)?, std::fs::metadata(path).ok()?))
    }
}

impl Files for HeldFiles<'_> {
    fn size_bytes(&self, path: &Path) -> Result<u64, String> {
        let held =
            || self.held(path).map(|(device, about)| if about.is_file() { about.len() } else { device.size_bytes });
        RealFiles.size_bytes(path).or_else(|why| held().ok_or(why))
    }

    fn writable(&self, path: &Path) -> Result<(), String> {
        let is_held = || self.held(path).is_some_and(|(device, _)| !device.read_only);
        RealFiles.writable(path).or_else(|why| if is_held() { Ok(()) } else { Err(why) })
    }

    fn canonical(&self, path: &Path) -> PathBuf {
        RealFiles.canonical(path)
    }
}

impl Config {
    /// The plan, if everything fits together.
    ///
    /// # Errors
    /// A name that no section has, an export past its device's end, exports that overlap, a file that is missing, more
    /// tenants of a device or exports than there may be.
    pub fn check(self, files: &dyn Files) -> Result<Plan, ConfigError> {
        self.check_with(files, true)
    }

    /// The same; whether the files of `[tls]` are looked at.
    pub(super) fn check_with(self, files: &dyn Files, reads_tls: bool) -> Result<Plan, ConfigError> {
        if self.exports.is_empty() {
            return Err(self.place.error("no [export.NAME] section, at least one is needed"));
        }
        let sizes = device_sizes(&self.devices, files)?;
        let ranges = self.resolve(&sizes)?;
        overlap::refuse(&self.exports, &self.devices, &ranges)?;
        addresses::refuse_collisions(&self.exports, &addresses::own(&self)?)?;
        addresses::refuse_without_root(&self.exports, &self.server.privilege)?;
        let mut warnings = Vec::new();
        let trust = self.trust(reads_tls, &mut warnings)?;
        let clients = self.clients()?;
        let mut used = self.used(&ranges);
        refuse_unwritable(&self.devices, &used, files)?;

        let (tenants_max, exports_max) = (self.server.tenants_max, self.server.exports_max);
        let mut plan = Plan {
            server: self.server,
            devices: Slots::new(DEVICES_MAX),
            exports: Slots::new(exports_max),
            listeners: Vec::new(),
            trust,
            warnings,
        };
        let families = Families::new(&self.groups, &self.tenants, &self.exports, &ranges);
        let mut flow_slots: BTreeMap<(usize, usize, Option<usize>), (Slot, Slot)> = BTreeMap::new();
        for (device_index, config) in self.devices.into_iter().enumerate() {
            let Used { tenants, read_only } = std::mem::take(&mut used[device_index]);
            if tenants.is_empty() {
                plan.warnings.push(config.place.error("no export uses this device, it is not started").to_string());
                continue;
            }
            let mut flows = Slots::new(tenants_max);
            let mut tenant_slots = Vec::new();
            let (groups, members) = families.on(device_index, &tenants);
            family::refuse_unable(&config, &groups)?;
            for Member { tenant: tenant_index, export, group } in members {
                let tenant = &self.tenants[tenant_index];
                let named = export.map(|export| &self.exports[export]);
                let flow = flows.insert(FlowPlan {
                    tenant: tenant.name.clone(),
                    export: named.map(|export| export.name.clone()),
                    weight: named.map_or(tenant.weight, |export| export.weight.unwrap_or_default()),
                    group,
                    class: tenant.class,
                    staged: tenant.staged,
                    memory_bytes: tenant.memory_bytes,
                    caps: tenant.caps,
                });
                let too_many =
                    |NoPlace| config.place.error(format!("more tenants use it than server.tenants-max, {tenants_max}"));
                tenant_slots.push((tenant_index, export, flow.map_err(too_many)?));
            }
            let place = config.place.clone();
            let device = DevicePlan { config, size_bytes: sizes[device_index], read_only, flows, groups };
            let too_many = |NoPlace| place.error(format!("it is one device too many, allowed are {DEVICES_MAX}"));
            let device = plan.devices.insert(device).map_err(too_many)?;
            for (tenant_index, export, flow) in tenant_slots {
                flow_slots.insert((device_index, tenant_index, export), (device, flow));
            }
        }
        // By front end and how an address is written, of which there is one way for each.
        let mut listeners: BTreeMap<String, usize> = BTreeMap::new();
        let is_split = families.split;
        for (index, ((export, range), clients)) in self.exports.into_iter().zip(ranges).zip(clients).enumerate() {
            let own = is_split[range.tenant].then_some(index);
            let (device, flow) = flow_slots[&(range.device, range.tenant, own)];
            let place = export.place.clone();
            let slot = plan.exports.insert(ExportPlan {
                name: export.name,
                place: export.place,
                device,
                flow,
                offset_bytes: range.start,
                size_bytes: range.end - range.start,
                read_only: export.read_only,
                is_shared: export.shared,
                keep_data: export.keep_data,
                description: export.description,
                payload_bytes_max: export.payload_bytes_max,
                caps: export.caps,
                clients,
                addresses: export.addresses.iter().map(|address| address.value.clone()).collect(),
            });
            let too_many =
                |NoPlace| place.error(format!("there are more exports than server.exports-max, {exports_max}"));
            let slot = slot.map_err(too_many)?;
            for Located { value: address, .. } in export.addresses {
                let index = match listeners.entry(format!("{address:?}")) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => {
                        plan.listeners.push((address, Vec::new()));
                        *new.insert(plan.listeners.len() - 1)
                    }
                };
                plan.listeners[index].1.push(slot);
            }
        }
        Ok(plan)
    }

    /// Where each export lies.
    fn resolve(&self, sizes: &[u64]) -> Result<Vec<Range>, ConfigError> {
        let devices = Names::new("device", self.devices.iter().map(|device| device.name.as_str()));
        let tenants = Names::new("tenant", self.tenants.iter().map(|tenant| tenant.name.as_str()));
        let resolve = |export| self.resolve_one(export, &devices, &tenants, sizes);
        self.exports.iter().map(resolve).collect()
    }

    fn resolve_one(
        &self,
        export: &ExportConfig,
        devices: &Names<'_>,
        tenants: &Names<'_>,
        sizes: &[u64],
    ) -> Result<Range, ConfigError> {
        let (device, tenant) = (devices.index_of(&export.device)?, tenants.index_of(&export.tenant)?);
        let (start, device_end) = (export.offset_bytes, sizes[device]);
        let (length, place) = match &export.size {
            Some(size) => (size.value, &size.place),
            None => (device_end.saturating_sub(start), &export.place),
        };
        let end = start.checked_add(length).filter(|end| *end <= device_end && length > 0);
        let past_end = || {
            let what = if export.size.is_some() { format!("{length} bytes") } else { "what remains".into() };
            let name = &self.devices[device].name;
            place.error(format!(
                "{what} from offset {start} ends past the end of device {name}, allowed is up to byte {device_end}"
            ))
        };
        Ok(Range { device, tenant, start, end: end.ok_or_else(past_end)? })
    }

    /// What of each device is used.
    fn used(&self, ranges: &[Range]) -> Vec<Used> {
        let mut used: Vec<Used> = self.devices.iter().map(|_| Used::default()).collect();
        for (export, range) in self.exports.iter().zip(ranges) {
            let Used { tenants, read_only } = &mut used[range.device];
            *read_only = export.read_only && (*read_only || tenants.is_empty());
            tenants.insert(range.tenant);
        }
        used
    }
}

/// What exports use of a device.
#[derive(Default)]
struct Used {
    /// Indices of the tenants.
    tenants: BTreeSet<usize>,
    /// All of them read-only; meaningless if there is none.
    read_only: bool,
}

/// Where an export lies.
pub(super) struct Range {
    /// Index into the config's devices.
    pub(super) device: usize,
    /// Index into the config's tenants.
    pub(super) tenant: usize,
    /// First byte.
    pub(super) start: u64,
    /// Byte after the last.
    pub(super) end: u64,
}

/// Names of sections of one kind and their indices.
struct Names<'a> {
    kind: &'static str,
    in_order: Vec<&'a str>,
    indices: BTreeMap<&'a str, usize>,
}

impl<'a> Names<'a> {
    fn new(kind: &'static str, names: impl Iterator<Item = &'a str>) -> Names<'a> {
        let in_order: Vec<&str> = names.collect();
        let indices = in_order.iter().enumerate().map(|(index, name)| (*name, index)).collect();
        Names { kind, in_order, indices }
    }

    fn index_of(&self, name: &Located<String>) -> Result<usize, ConfigError> {
        let missing = || {
            let known = match &self.in_order[..] {
                [] => "none is defined".to_owned(),
                names => format!("defined are {}", list(names.iter().copied())),
            };
            let hint = did_you_mean(&name.value, self.in_order.iter().copied());
            name.place.error(format!("there is no {} {}, {known}{hint}", self.kind, quoted(&name.value)))
        };
        self.indices.get(name.value.as_str()).copied().ok_or_else(missing)
    }
}

/// A file that somebody may write to must be writable.
fn refuse_unwritable(devices: &[DeviceConfig], used: &[Used], files: &dyn Files) -> Result<(), ConfigError> {
    for (device, Used { tenants, read_only }) in devices.iter().zip(used) {
        if let Medium::File { path, .. } = &device.medium
            && !tenants.is_empty()
            && !read_only
        {
            files.writable(&path.value).map_err(|why| {
                let shown = shown(&path.value.to_string_lossy());
                path.place.error(format!("cannot write to {shown}: {why}, allowed are exports with read-only = true"))
            })?;
        }
    }
    Ok(())
}

/// Each device's size; a file must exist, hold something, and belong to one device only, since two schedulers on one
/// file would each believe that it has it alone.
fn device_sizes(devices: &[DeviceConfig], files: &dyn Files) -> Result<Vec<u64>, ConfigError> {
    let mut owners: BTreeMap<PathBuf, &str> = BTreeMap::new();
    let mut sizes = Vec::new();
    for device in devices {
        sizes.push(match &device.medium {
            Medium::Null { size_bytes } | Medium::Memory { size_bytes } | Medium::Nvme { size_bytes, .. } => {
                *size_bytes
            }
            Medium::File { path, size, .. } => {
                let shown = shown(&path.value.to_string_lossy());
                let held = files
                    .size_bytes(&path.value)
                    .map_err(|why| path.place.error(format!("cannot open {shown}: {why}")))?;
                if held == 0 {
                    return Err(path
                        .place
                        .error(format!("{shown} is empty, allowed is a file that has its full size")));
                }
                if let Some(owner) = owners.insert(files.canonical(&path.value), &device.name) {
                    return Err(path.place.error(format!("{shown} belongs to device {owner} already")));
                }
                match size {
                    Some(size) if size.value > held => {
                        let message = format!("{} bytes is more than {shown} has, allowed is 1 to {held}", size.value);
                        return Err(size.place.error(message));
                    }
                    Some(size) => size.value,
                    None => held,
                }
            }
        });
    }
    Ok(sizes)
}
