//! Do the sections agree with each other and with the machine: [`Config`] in, [`Plan`] out.
//!
//! The plan speaks in indices, so that whoever starts the engine looks nothing up and can fail only for reasons that lie
//! outside the config.

use super::{Config, ConfigError, DeviceConfig, ExportConfig, Located, Medium, Place, ServerConfig};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::{PriorityClass, Weight};
use mqfq_front::nbd::Address;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// What to start.
#[derive(Debug)]
pub struct Plan {
    /// Workers and pinning.
    pub server: ServerConfig,
    /// Devices that at least one export uses.
    pub devices: Vec<DevicePlan>,
    /// Exports, in the file's order.
    pub exports: Vec<ExportPlan>,
    /// Each address with its exports, as indices into `exports`.
    pub listeners: Vec<(Address, Vec<usize>)>,
    /// Sentences about sections that are right but do nothing.
    pub warnings: Vec<String>,
}

/// A device and the tenants that use it.
#[derive(Debug)]
pub struct DevicePlan {
    /// Its section.
    pub config: DeviceConfig,
    /// Its size.
    pub size_bytes: u64,
    /// One flow per tenant with an export here, in the order of the tenants' sections; the index is the flow's id.
    pub flows: Vec<FlowPlan>,
}

/// A tenant on one device.
#[derive(Debug)]
pub struct FlowPlan {
    /// The tenant's name.
    pub tenant: String,
    /// Its weight.
    pub weight: Weight,
    /// Its priority class.
    pub class: PriorityClass,
    /// What may wait in one worker.
    pub staged: StageLimits,
    /// Payload memory of its connections, bytes; the same on each of its devices, which share it.
    pub memory_bytes: u64,
}

/// An export with everything resolved.
#[derive(Debug)]
pub struct ExportPlan {
    /// Its name.
    pub name: String,
    /// Where its section stands.
    pub place: Place,
    /// Index into [`Plan::devices`].
    pub device: usize,
    /// Index into that device's flows.
    pub flow: usize,
    /// First byte on the device.
    pub offset_bytes: u64,
    /// Length.
    pub size_bytes: u64,
    /// Clients may not write.
    pub read_only: bool,
    /// Shown to clients that ask.
    pub description: Option<String>,
    /// Largest read or write, bytes, if less than what the device takes.
    pub payload_bytes_max: Option<u32>,
}

/// What the machine says of a path; a trait so that the checks are tested without files.
pub trait Files {
    /// Size of a regular file or block device, bytes.
    ///
    /// # Errors
    /// It cannot be opened.
    fn size_bytes(&self, path: &Path) -> io::Result<u64>;

    /// One spelling per file.
    fn canonical(&self, path: &Path) -> PathBuf;
}

/// The machine's own files.
pub struct RealFiles;

impl Files for RealFiles {
    fn size_bytes(&self, path: &Path) -> io::Result<u64> {
        use std::io::{Seek, SeekFrom};
        // The end of a block device is not in its metadata, but both kinds can be sought to it.
        let mut file = std::fs::File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        file.seek(SeekFrom::End(0))
    }

    fn canonical(&self, path: &Path) -> PathBuf {
        std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
    }
}

impl Config {
    /// The plan, if everything fits together.
    ///
    /// # Errors
    /// A name that no section has, an export past its device's end, exports that overlap, a file that is missing.
    pub fn check(self, files: &dyn Files) -> Result<Plan, ConfigError> {
        if self.exports.is_empty() {
            return Err(self.place.error("no [export.NAME] section, at least one is needed"));
        }
        let sizes = device_sizes(&self.devices, files)?;
        let ranges = self.exports.iter().map(|export| self.resolve(export, &sizes)).collect::<Result<Vec<_>, _>>()?;
        refuse_overlaps(&self.exports, &self.devices, &ranges)?;

        let mut plan = Plan {
            server: self.server,
            devices: Vec::new(),
            exports: Vec::new(),
            listeners: Vec::new(),
            warnings: Vec::new(),
        };
        let mut flow_ids: BTreeMap<(usize, usize), (usize, usize)> = BTreeMap::new();
        for (device_index, config) in self.devices.into_iter().enumerate() {
            let used = |tenant: &usize| ranges.iter().any(|r| (r.device, r.tenant) == (device_index, *tenant));
            let tenants: Vec<usize> = (0..self.tenants.len()).filter(used).collect();
            if tenants.is_empty() {
                plan.warnings.push(config.place.error("no export uses this device, it is not started").to_string());
                continue;
            }
            let mut flows = Vec::new();
            for tenant_index in tenants {
                flow_ids.insert((device_index, tenant_index), (plan.devices.len(), flows.len()));
                let tenant = &self.tenants[tenant_index];
                flows.push(FlowPlan {
                    tenant: tenant.name.clone(),
                    weight: tenant.weight,
                    class: tenant.class,
                    staged: tenant.staged,
                    memory_bytes: tenant.memory_bytes,
                });
            }
            plan.devices.push(DevicePlan { config, size_bytes: sizes[device_index], flows });
        }
        for (export, range) in self.exports.into_iter().zip(ranges) {
            let (device, flow) = flow_ids[&(range.device, range.tenant)];
            for address in export.nbd {
                let known = plan.listeners.iter().position(|(known, _)| *known == address);
                let index = known.unwrap_or_else(|| {
                    plan.listeners.push((address, Vec::new()));
                    plan.listeners.len() - 1
                });
                plan.listeners[index].1.push(plan.exports.len());
            }
            plan.exports.push(ExportPlan {
                name: export.name,
                place: export.place,
                device,
                flow,
                offset_bytes: range.start,
                size_bytes: range.end - range.start,
                read_only: export.read_only,
                description: export.description,
                payload_bytes_max: export.payload_bytes_max,
            });
        }
        Ok(plan)
    }

    fn resolve(&self, export: &ExportConfig, sizes: &[u64]) -> Result<Range, ConfigError> {
        let devices: Vec<&str> = self.devices.iter().map(|device| device.name.as_str()).collect();
        let tenants: Vec<&str> = self.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        let device = index_of(&export.device, "device", &devices)?;
        let tenant = index_of(&export.tenant, "tenant", &tenants)?;
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
}

/// Where an export lies.
struct Range {
    /// Index into the config's devices.
    device: usize,
    /// Index into the config's tenants.
    tenant: usize,
    /// First byte.
    start: u64,
    /// Byte after the last.
    end: u64,
}

fn index_of(name: &Located<String>, what: &str, known: &[&str]) -> Result<usize, ConfigError> {
    known.iter().position(|known| *known == name.value).ok_or_else(|| {
        let known =
            if known.is_empty() { "none is defined".into() } else { format!("defined are {}", known.join(", ")) };
        name.place.error(format!("there is no {what} \"{}\", {known}", name.value))
    })
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
                let shown = path.value.display();
                let held = files
                    .size_bytes(&path.value)
                    .map_err(|error| path.place.error(format!("cannot open {shown}: {}", crate::plain(&error))))?;
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

/// Two exports overlap only if both say `shared = true`. The later one in the file is blamed.
fn refuse_overlaps(exports: &[ExportConfig], devices: &[DeviceConfig], ranges: &[Range]) -> Result<(), ConfigError> {
    for (later, (export, range)) in exports.iter().zip(ranges).enumerate() {
        for (other, other_range) in exports.iter().zip(ranges).take(later) {
            let (start, end) = (range.start.max(other_range.start), range.end.min(other_range.end));
            if range.device == other_range.device && start < end && !(export.shared && other.shared) {
                return Err(export.place.error(format!(
                    "overlaps export.{} in bytes {start} to {} of device {}, allowed only if both say shared = true",
                    other.name,
                    end - 1,
                    devices[range.device].name,
                )));
            }
        }
    }
    Ok(())
}
