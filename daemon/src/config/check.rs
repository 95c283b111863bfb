//! Do the sections agree with each other and with the machine: [`Config`] in, [`Plan`] out.
//!
//! The plan speaks in slots: starting the engine looks nothing up and can fail only for reasons outside the config, and
//! a tenant, export or device keeps its slot for as long as it is there, wherever its section stands in the next file.

use super::family::{self, Families, Member};
use super::machine::Files;
use super::model::{Config, DeviceConfig, ExportConfig, Located, Medium, TenantConfig};
use super::plan::{DevicePlan, ExportPlan, FlowPlan, Plan, Range};
use super::pools::{self, Backing};
use super::{addresses, goal, overlap};
use mqfq_blk::slots::{NoPlace, PLACES_MAX, Slot, Slots};
use mqfq_config::ConfigError;
use mqfq_config::groups::Groups;
use mqfq_config::text::{did_you_mean, list, quoted, shown};
use mqfq_front::identity::Access;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Most devices of an engine.
const DEVICES_MAX: u32 = u16::MAX as u32;

/// A rule about sections whose names were resolved to `ranges`.
type Rule = fn(&Config, &[Range]) -> Result<(), ConfigError>;

/// The rules, in the order in which their faults are reported.
const RULES: [Rule; 3] = [
    |config, ranges| overlap::refuse(&config.exports, &config.devices, ranges),
    |config, _| addresses::refuse_collisions(&config.exports, &addresses::own(config)?),
    |config, _| addresses::refuse_without_root(&config.exports, &config.server.privilege),
];

impl Config {
    /// The plan, if everything fits together.
    ///
    /// # Errors
    /// A name that no section has, an export past its device's end, exports that overlap, a file that is missing, more
    /// tenants of a device or exports than there may be.
    pub fn check(self, files: &dyn Files) -> Result<Plan, ConfigError> {
        self.check_with(files, true)
    }

    /// The plan; `reads_tls`: whether the files of `[tls]` are read.
    pub(super) fn check_with(self, files: &dyn Files, reads_tls: bool) -> Result<Plan, ConfigError> {
        if self.exports.is_empty() {
            return Err(self.place.error("no [export.NAME] section, at least one is needed"));
        }
        let sizes = device_sizes(&self.devices, files)?;
        let backings = pools::backings(&self, files)?;
        let ranges = self.resolve(&sizes, &backings)?;
        RULES.iter().try_for_each(|rule| rule(&self, &ranges))?;
        let mut warnings = Vec::new();
        let trust = self.trust(reads_tls, &mut warnings)?;
        let clients = self.clients()?;
        let used = self.used(&ranges);
        refuse_unwritable(&self.devices, &used, files)?;

        let families = Families::new(&self.groups, &self.tenants, &self.exports, &ranges);
        let is_split = families.split.clone();
        let mut plan = Plan {
            server: self.server,
            devices: Slots::new(DEVICES_MAX),
            exports: Slots::new(PLACES_MAX),
            listeners: Vec::new(),
            trust,
            warnings,
        };
        let mut flows = FlowSlots::new();
        for (index, ((config, used), size_bytes)) in self.devices.into_iter().zip(used).zip(sizes).enumerate() {
            if used.tenants.is_empty() {
                plan.warnings.push(config.place.error("no export uses this device, it is not started").to_string());
                continue;
            }
            let (groups, members) = families.on(index, &used.tenants);
            family::refuse_unable(&config, &groups)?;
            // Each backing of a pool is opened as its export says.
            let read_only = used.read_only && !matches!(config.medium, Medium::Pool { .. });
            let device = DevicePlan { config, size_bytes, read_only, flows: Slots::new(PLACES_MAX), groups };
            add_device(&mut plan, &mut flows, index, device, members, (&self.groups, &self.tenants, &self.exports))?;
        }
        // By front end and how an address is written, of which there is one way for each.
        let mut listeners = BTreeMap::new();
        for (index, ((export, range), clients)) in self.exports.into_iter().zip(ranges).zip(clients).enumerate() {
            let own = is_split[range.tenant].then_some(index);
            let slots = flows[&(range.device, range.tenant, own)];
            add_export(&mut plan, &mut listeners, export, &range, slots, clients)?;
        }
        Ok(plan)
    }

    /// Ranges of the exports.
    fn resolve(&self, sizes: &[u64], backings: &[Option<Backing>]) -> Result<Vec<Range>, ConfigError> {
        let devices = Names::new("device", self.devices.iter().map(|device| device.name.as_str()));
        let tenants = Names::new("tenant", self.tenants.iter().map(|tenant| tenant.name.as_str()));
        let resolve = |(export, backing): (&ExportConfig, &Option<Backing>)| {
            let tenant = tenants.index_of(&export.tenant);
            match backing {
                Some(Backing { device, range }) => {
                    let (device, start, end) = (*device, range.start, range.end);
                    Ok(Range { device, tenant: tenant?, start, end })
                }
                None => self.resolve_one(export, &devices, tenant, sizes),
            }
        };
        self.exports.iter().zip(backings).map(resolve).collect()
    }

    fn resolve_one(
        &self,
        export: &ExportConfig,
        devices: &Names<'_>,
        tenant: Result<usize, ConfigError>,
        sizes: &[u64],
    ) -> Result<Range, ConfigError> {
        let (device, tenant) = (devices.index_of(&export.device)?, tenant?);
        let (start, device_end) = (export.offset.as_ref().map_or(0, |offset| offset.value), sizes[device]);
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

    /// The use of each device by exports.
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

/// Slots of a device and a flow there, by the indices of device, tenant and, if it is a flow, export.
type FlowSlots = BTreeMap<(usize, usize, Option<usize>), (Slot, Slot)>;

/// Adds `device`, which is the config's `index`-th, with its `members` as flows.
fn add_device(
    plan: &mut Plan,
    slots: &mut FlowSlots,
    index: usize,
    mut device: DevicePlan,
    members: Vec<Member>,
    (groups, tenants, exports): (&Groups, &[TenantConfig], &[ExportConfig]),
) -> Result<(), ConfigError> {
    let place = device.config.place.clone();
    let mut flows = Vec::new();
    for Member { tenant: tenant_index, export, group } in members {
        let tenant = &tenants[tenant_index];
        let named = export.map(|export| &exports[export]);
        let flow = device.flows.insert(FlowPlan {
            tenant: tenant.name.clone(),
            export: named.map(|export| export.name.clone()),
            weight: named.map_or(tenant.weight, |export| export.weight.unwrap_or_default()),
            group,
            class: tenant.class,
            staged: tenant.staged,
            memory_bytes: tenant.memory_bytes,
            caps: tenant.caps,
            goal: goal::of(tenant, groups, device.config.floor_thousandths),
        });
        let too_many = |NoPlace| place.error(format!("more than {PLACES_MAX} tenants use it"));
        flows.push(((index, tenant_index, export), flow.map_err(too_many)?));
    }
    plan.warnings.extend(goal::warning(&device));
    let too_many = |NoPlace| place.error(format!("it is one device too many, allowed are {DEVICES_MAX}"));
    let device = plan.devices.insert(device).map_err(too_many)?;
    slots.extend(flows.into_iter().map(|(key, flow)| (key, (device, flow))));
    Ok(())
}

/// Adds an export to the plan and to the listeners of its addresses, whose positions are in `listeners`.
fn add_export(
    plan: &mut Plan,
    listeners: &mut BTreeMap<String, usize>,
    export: ExportConfig,
    range: &Range,
    (device, flow): (Slot, Slot),
    clients: Arc<Access>,
) -> Result<(), ConfigError> {
    let place = export.place.clone();
    let slot = plan.exports.insert(ExportPlan {
        name: export.name,
        place: export.place,
        device,
        flow,
        offset_bytes: range.start,
        size_bytes: range.end - range.start,
        has_size: export.size.is_some(),
        path: export.path.map(|path| path.value),
        read_only: export.read_only,
        is_shared: export.shared,
        keep_data: export.keep_data,
        description: export.description,
        payload_bytes_max: export.payload_bytes_max,
        poll: export.poll,
        caps: export.caps,
        clients,
        addresses: export.addresses.iter().map(|address| address.value.clone()).collect(),
    });
    let too_many = |NoPlace| place.error(format!("there are more than {PLACES_MAX} exports"));
    let slot = slot.map_err(too_many)?;
    for Located { value: address, .. } in export.addresses {
        let index = *listeners.entry(address.key()).or_insert(plan.listeners.len());
        if index == plan.listeners.len() {
            plan.listeners.push((address, Vec::new()));
        }
        plan.listeners[index].1.push(slot);
    }
    Ok(())
}

/// How exports use a device.
#[derive(Default)]
struct Used {
    /// Indices of the tenants.
    tenants: BTreeSet<usize>,
    /// All exports here are read-only; meaningless without one.
    read_only: bool,
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

/// Refuses a file that exports write to and that is not writable.
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
            Medium::Null { size_bytes } | Medium::Memory { size_bytes } | Medium::Model { size_bytes, .. } => {
                *size_bytes
            }
            Medium::Other(other) => other.size_bytes,
            // Addresses: a backing has some of them.
            Medium::Pool { .. } => i64::MAX as u64,
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
