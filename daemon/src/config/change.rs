//! Another config beside a running one: which things are the same, and what cannot change while tenants are served.
//!
//! Sections are the same if their names are, wherever they stand. A thing that stays keeps its slot, a new one gets a
//! free slot, and a slot is free only after its thing is gone: so running things are found by their slots.

use super::model::{DeviceConfig, Located, Medium, ServerConfig};
use super::plan::{DevicePlan, ExportPlan, FlowPlan, GroupPlan, Plan};
use super::pools::Numbers;
use super::trust::TrustPlan;
use mqfq_blk::GroupId;
use mqfq_blk::slots::{NoPlace, PLACES_MAX, Slot, Slots};
use std::collections::{BTreeMap, BTreeSet};

/// Places that nothing may have yet, because requests of what was there have not ended.
#[derive(Default)]
pub struct TakenPlaces {
    /// Indices of devices.
    pub devices: BTreeSet<usize>,
    /// Pools and numbers of backings.
    pub backings: BTreeSet<(Slot, u16)>,
}

/// The refusal of changes that need a restart.
const RESTART: &str = "cannot change while serving";

impl Plan {
    /// This plan without a device, its exports, and the addresses that then offer nothing.
    pub fn without_device(&self, slot: Slot) -> Plan {
        let mut plan = self.clone();
        plan.devices.remove(slot);
        let gone: BTreeSet<Slot> = self.exports.iter().filter(|(_, it)| it.device == slot).map(|(at, _)| at).collect();
        gone.iter().for_each(|export| drop(plan.exports.remove(*export)));
        plan.listeners.iter_mut().for_each(|(_, exports)| exports.retain(|export| !gone.contains(export)));
        plan.listeners.retain(|(_, exports)| !exports.is_empty());
        plan
    }

    /// `new` in the slots of this one, with the numbers of its backings. Things that come get none of `taken`.
    ///
    /// # Errors
    /// One sentence: the first thing that differs and cannot change while tenants are served.
    pub fn aligned(&self, new: &Plan, taken: &TakenPlaces) -> Result<Plan, String> {
        same_server(&self.server, &new.server)?;
        same_trust(&self.trust, &new.trust)?;
        let mut devices = self.devices.clone();
        let by_name = names(&devices, |device| device.config.name.as_str());
        // Slots of devices and their flows, by those in `new`.
        let mut device_slots: BTreeMap<Slot, (Slot, BTreeMap<Slot, Slot>)> = BTreeMap::new();
        for (new_slot, device) in new.devices.iter() {
            let aligned = match by_name.get(device.config.name.as_str()) {
                Some(slot) => {
                    let (aligned, flows) = align_device(&self.devices[*slot], device)?;
                    devices[*slot] = aligned;
                    (*slot, flows)
                }
                None => {
                    refuse_path_of_another(&self.devices, device)?;
                    let mut insert = || devices.insert(device.clone()).map_err(|NoPlace| no_place(device));
                    let mut slot = insert()?;
                    // Devices at taken places go below, with all others that do not stay.
                    while taken.devices.contains(&slot.place()) {
                        slot = insert()?;
                    }
                    (slot, device.flows.iter().map(|(flow, _)| (flow, flow)).collect())
                }
            };
            device_slots.insert(new_slot, aligned);
        }
        let mut exports = self.exports.clone();
        let by_name = names(&exports, |export| export.name.as_str());
        let mut export_slots: BTreeMap<Slot, Slot> = BTreeMap::new();
        let mut numbers = Numbers::new(self, &taken.backings);
        for (new_slot, export) in new.exports.iter() {
            let (device, flows) = &device_slots[&export.device];
            let export = numbers.place(ExportPlan { device: *device, flow: flows[&export.flow], ..export.clone() })?;
            let same = by_name.get(export.name.as_str()).filter(|slot| is_same_export(&self.exports[**slot], &export));
            // A backing that has become shorter takes nothing from its export: that is a fault, and reported as one.
            let before = same.map_or(0, |slot| self.exports[*slot].size_bytes);
            let least = if export.path.is_some() && !export.has_size { before } else { 0 };
            let export = ExportPlan { size_bytes: export.size_bytes.max(least), ..export };
            let slot = match same {
                Some(slot) => {
                    exports[*slot] = export;
                    *slot
                }
                None => {
                    let place = export.place.clone();
                    let too_many = |NoPlace| {
                        place.error(format!("with those that go there are more than {PLACES_MAX} exports")).to_string()
                    };
                    exports.insert(export).map_err(too_many)?
                }
            };
            export_slots.insert(new_slot, slot);
        }
        keep(&mut exports, &export_slots.values().copied().collect());
        keep(&mut devices, &device_slots.values().map(|(slot, _)| *slot).collect());
        let listeners = new
            .listeners
            .iter()
            .map(|(address, slots)| (address.clone(), slots.iter().map(|slot| export_slots[slot]).collect()));
        let (server, listeners) = (new.server.clone(), listeners.collect());
        let trust = new.trust.clone();
        Ok(Plan { server, devices, exports, listeners, trust, warnings: Vec::new() })
    }
}

fn names<T>(things: &Slots<T>, name: impl Fn(&T) -> &str) -> BTreeMap<String, Slot> {
    things.iter().map(|(slot, thing)| (name(thing).to_owned(), slot)).collect()
}

/// Takes the others out.
fn keep<T>(things: &mut Slots<T>, stay: &BTreeSet<Slot>) {
    let all: Vec<Slot> = things.iter().map(|(slot, _)| slot).collect();
    all.into_iter().filter(|slot| !stay.contains(slot)).for_each(|slot| drop(things.remove(slot)));
}

fn no_place(device: &DevicePlan) -> String {
    device.config.place.error("with those that go there are more devices than there can be").to_string()
}

/// Every field is named, so that a new one is a decision.
fn same_server(old: &ServerConfig, new: &ServerConfig) -> Result<(), String> {
    let ServerConfig {
        workers,
        pin,
        spin_us,
        connections_max: _,
        socket_mode: _,
        handshake_s: _,
        stall_s: _,
        drain_s: _,
        memory_bytes: _,
        connection_memory_bytes: _,
        upgrade,
        privilege,
    } = old;
    let same = [
        ("workers", *workers == new.workers),
        ("pin", *pin == new.pin),
        ("spin-us", *spin_us == new.spin_us),
        ("upgrade", *upgrade == new.upgrade),
        ("sandbox, paths, user or group", *privilege == new.privilege),
    ];
    match same.iter().find(|(_, is_same)| !is_same) {
        None => Ok(()),
        Some((key, _)) => Err(format!(
            "server.{key} {RESTART}, allowed are connections, connection-memory, drain-s, handshake-s, memory, \
             socket-mode and stall-s, and the rest by a restart"
        )),
    }
}

/// Refuses another use of TLS. Every field is named, so that a new one is a decision. Files and contents may differ.
fn same_trust(old: &TrustPlan, new: &TrustPlan) -> Result<(), String> {
    let TrustPlan { files: _, material, modes, control: _ } = old;
    if material.is_some() != new.material.is_some() {
        return Err(format!("tls {RESTART}, allowed are other files, and other contents of them"));
    }
    match modes.iter().find(|(address, mode)| new.modes.get(*address).is_some_and(|other| other != *mode)) {
        None => Ok(()),
        Some((address, _)) => Err(format!("address.{address}.tls {RESTART}, allowed is another address")),
    }
}

/// A device in its present slot, with its flows in theirs; and where each flow of `new` is.
fn align_device(old: &DevicePlan, new: &DevicePlan) -> Result<(DevicePlan, BTreeMap<Slot, Slot>), String> {
    if !same_device(old, new) {
        return Err(new
            .config
            .place
            .error(format!(
                "this device {RESTART}, allowed is another policy; for anything else of it take its exports away, and \
                 add them again with the changed device, or restart"
            ))
            .to_string());
    }
    if old.read_only && !new.read_only {
        let opened =
            format!("whether this device may be written to {RESTART}, all its exports were read-only at first");
        return Err(new.config.place.error(format!("{opened}: allowed is a restart")).to_string());
    }
    let (groups, number) = align_groups(&old.groups, &new.groups);
    let mut flows = old.flows.clone();
    let mut slots = BTreeMap::new();
    let by_name: BTreeMap<(String, Option<String>), Slot> =
        old.flows.iter().map(|(slot, flow)| (key(flow), slot)).collect();
    for (new_slot, flow) in new.flows.iter() {
        let flow = FlowPlan { group: flow.group.map(|group| number[group.0 as usize]), ..flow.clone() };
        let slot = match by_name.get(&key(&flow)) {
            Some(slot) => {
                flows[*slot] = flow;
                *slot
            }
            None => flows.insert(flow).map_err(|NoPlace| {
                let both = format!("with those that go more than {PLACES_MAX} tenants use it");
                new.config.place.error(both).to_string()
            })?,
        };
        slots.insert(new_slot, slot);
    }
    keep(&mut flows, &slots.values().copied().collect());
    Ok((
        DevicePlan { config: new.config.clone(), size_bytes: new.size_bytes, read_only: old.read_only, flows, groups },
        slots,
    ))
}

/// The owner of a flow.
fn key(flow: &FlowPlan) -> (String, Option<String>) {
    (flow.tenant.clone(), flow.export.clone())
}

/// The groups of `new`, by the numbers of `old` if they are the same groups; and by number in `new` which they have.
fn align_groups(old: &[GroupPlan], new: &[GroupPlan]) -> (Vec<GroupPlan>, Vec<GroupId>) {
    let numbers = |groups: &[GroupPlan]| (0..groups.len() as u32).map(GroupId).collect::<Vec<_>>();
    let by_line: BTreeMap<Vec<String>, GroupId> =
        numbers(old).into_iter().map(|group| (line(old, group), group)).collect();
    let same: Option<Vec<GroupId>> =
        numbers(new).iter().map(|group| by_line.get(&line(new, *group)).copied()).collect();
    let Some(same) = same.filter(|same| same.len() == old.len()) else { return (new.to_vec(), numbers(new)) };
    let mut groups = old.to_vec();
    for (group, number) in new.iter().zip(&same) {
        groups[number.0 as usize].weight = group.weight;
    }
    (groups, same)
}

/// Refuses a new device with the file of one that is there.
fn refuse_path_of_another(devices: &Slots<DevicePlan>, new: &DevicePlan) -> Result<(), String> {
    let path_of = |device: &DevicePlan| match &device.config.medium {
        Medium::File { path, .. } => Some(std::fs::canonicalize(&path.value).unwrap_or_else(|_| path.value.clone())),
        _ => None,
    };
    let Some(path) = path_of(new) else { return Ok(()) };
    match devices.values().find(|device| path_of(device).as_ref() == Some(&path)) {
        None => Ok(()),
        Some(other) => {
            let name = &other.config.name;
            let held =
                format!("its file is held by device {name} until that is gone: allowed is one change after the other");
            Err(new.config.place.error(held).to_string())
        }
    }
}

/// Names of a group and of those above it.
fn line(groups: &[GroupPlan], group: GroupId) -> Vec<String> {
    let mut line = Vec::new();
    let mut at = Some(group);
    while let Some(group) = at {
        line.push(groups[group.0 as usize].called());
        at = groups[group.0 as usize].parent;
    }
    line
}

/// Compares all but the policy and the flows. Every field is named, so that a new one is a decision.
pub(super) fn same_device(old: &DevicePlan, new: &DevicePlan) -> bool {
    let DevicePlan { config, size_bytes, read_only: _, flows: _, groups: _ } = old;
    let DeviceConfig {
        name,
        place: _,
        medium,
        policy: _,
        queue_depth,
        preparation,
        path,
        cost,
        profile: _,
        floor_thousandths: _,
    } = config;
    let same_medium = match (medium, &new.config.medium) {
        (
            Medium::File { path, size, direct, on_failure },
            Medium::File { path: new_path, size: new_size, direct: new_direct, on_failure: new_on_failure },
        ) => {
            let size_bytes = |size: &Option<Located<u64>>| size.as_ref().map(|size| size.value);
            (&path.value, size_bytes(size), direct, on_failure)
                == (&new_path.value, size_bytes(new_size), new_direct, new_on_failure)
        }
        (old, new) => old == new,
    };
    let wanted = &new.config;
    (name, queue_depth, preparation, path, cost)
        == (&wanted.name, &wanted.queue_depth, &wanted.preparation, &wanted.path, &wanted.cost)
        && same_medium
        && *size_bytes == new.size_bytes
}

/// Clients may keep it: its bytes from the beginning on and its tenant are the same. Both are in the same slots.
pub(super) fn is_same_export(old: &ExportPlan, new: &ExportPlan) -> bool {
    (old.device, old.flow, old.offset_bytes) == (new.device, new.flow, new.offset_bytes)
}

#[cfg(test)]
mod tests {
    use super::super::{Config, RealFiles};
    use super::*;

    const OLD: &str = "[device.fast]
kind = \"null\"
size = \"1MiB\"
policy = \"none\"
[tenant.a]
[tenant.b]
weight = 7
[export.a]
device = \"fast\"
tenant = \"a\"
size = \"256KiB\"
nbd = \"unix:/a\"
[export.b]
device = \"fast\"
tenant = \"b\"
offset = \"512KiB\"
nbd = \"unix:/b\"
";

    impl Plan {
        fn aligned_to(&self, new: &Plan) -> Result<Plan, String> {
            self.aligned(new, &TakenPlaces::default())
        }
    }

    fn plan(text: &str) -> Plan {
        Config::parse("c.toml", text).unwrap().check(&RealFiles).unwrap()
    }

    fn aligned(from: &str, to: &str) -> Result<Plan, String> {
        assert!(OLD.contains(from), "{from}");
        plan(OLD).aligned_to(&plan(&OLD.replacen(from, to, 1)))
    }

    /// Exports by slot, with the slots of device and flow.
    fn slots(plan: &Plan) -> Vec<String> {
        let line = |(slot, export): (Slot, &ExportPlan)| {
            format!("{} {slot:?} of {:?} on {:?}", export.name, export.flow, export.device)
        };
        plan.exports.iter().map(line).collect()
    }

    const STAY: [&str; 2] = ["a 0.0 of 0.0 on 0.0", "b 1.0 of 1.0 on 0.0"];

    #[test]
    fn what_stays_keeps_its_slot_wherever_it_stands() {
        assert_eq!(slots(&plan(OLD)), STAY);
        let mut sections: Vec<String> = OLD.split("[").skip(1).map(|section| format!("[{section}")).collect();
        sections.reverse();
        let turned = plan(OLD).aligned_to(&plan(&sections.concat())).unwrap();
        assert_eq!(slots(&turned), STAY);
        for (from, to) in [
            ("\"none\"", "\"mqfq\""),
            ("weight = 7", "weight = 8"),
            ("\"256KiB\"", "\"128KiB\""),
            ("tenant = \"b\"", "tenant = \"b\"\nread-only = true"),
            ("[tenant.b]", "[tenant.b]\nstaged-requests = 9\nmemory = \"1MiB\""),
            ("\"unix:/b\"", "\"unix:/c\""),
        ] {
            assert_eq!(slots(&aligned(from, to).unwrap()), STAY, "{from} -> {to}");
        }
    }

    #[test]
    fn a_device_of_readers_stays_one_and_an_address_keeps_each_of_its_exports() {
        let text = OLD.replace("tenant = ", "read-only = true\ntenant = ").replace("unix:/b", "unix:/a");
        let aligned = plan(&text).aligned_to(&plan(&text)).unwrap();
        assert!(aligned.devices.values().all(|device| device.read_only));
        let offered: Vec<usize> = aligned.listeners.iter().map(|(_, exports)| exports.len()).collect();
        assert_eq!(offered, [2]);
    }

    #[test]
    fn a_device_that_comes_has_no_file_of_one_that_is_there() {
        let folder = mqfq_testing::Folder::new();
        let disk = folder.join("disk");
        std::fs::write(&disk, vec![0; 1 << 20]).unwrap();
        let file = format!("kind = \"file\"\npath = {disk:?}");
        let old = OLD.replacen("kind = \"null\"\nsize = \"1MiB\"", &file, 1);
        let new = old.replace("device.fast", "device.other").replace("\"fast\"", "\"other\"");
        let refusal = plan(&old).aligned_to(&plan(&new)).map(drop).unwrap_err();
        assert!(refusal.contains("its file is held by device fast until that is gone"), "{refusal}");
    }

    #[test]
    fn what_comes_gets_a_slot_of_its_own_and_what_goes_leaves_it_to_the_next() {
        let added = OLD.to_owned()
            + "[export.c]\ndevice = \"fast\"\ntenant = \"b\"\noffset = \"256KiB\"\nsize = \"4KiB\"\nnbd = \"unix:/b\"\n";
        let both = plan(OLD).aligned_to(&plan(&added)).unwrap();
        assert_eq!(slots(&both), [STAY[0], STAY[1], "c 2.0 of 1.0 on 0.0"]);
        let without_a = added.replace("tenant = \"a\"", "tenant = \"b\"");
        let moved = both.aligned_to(&plan(&without_a)).unwrap();
        assert_eq!(
            slots(&moved),
            [STAY[1], "c 2.0 of 1.0 on 0.0", "a 3.0 of 1.0 on 0.0"],
            "another tenant's is another"
        );
        assert_eq!(moved.devices[Slot::first(0)].flows.len(), 1);
        let back = moved.aligned_to(&plan(OLD)).unwrap();
        assert_eq!(format!("{:?}", back.exports.iter().map(|(slot, _)| slot).collect::<Vec<_>>()), "[0.1, 1.0]");
        let offset = aligned("\"512KiB\"", "\"576KiB\"").unwrap();
        assert_eq!(slots(&offset), [STAY[0], "b 2.0 of 1.0 on 0.0"], "other bytes are another export");
    }

    #[test]
    fn what_a_restart_alone_changes_is_refused_with_the_place() {
        for (from, to, what) in [
            (
                "[device",
                "[server]\nworkers = 3\n[device",
                "server.workers cannot change while serving, allowed are connections",
            ),
            ("[device", "[server]\npin = false\n[device", "server.pin cannot change while serving"),
            (
                "\"1MiB\"",
                "\"2MiB\"",
                "c.toml:1: device.fast: this device cannot change while serving, allowed is another",
            ),
            ("size = \"1MiB\"", "size = \"1MiB\"\nexpert.queue-depth = 9", "c.toml:1: device.fast: this device"),
            ("\"none\"", "\"none\"\nexpert.retries = 1", "c.toml:1: device.fast: this device"),
            ("\"none\"", "\"none\"\ncost = { write = { per-byte = 2 } }", "c.toml:1: device.fast: this device"),
            ("\"null\"", "\"memory\"", "c.toml:1: device.fast: this device"),
        ] {
            let refused = aligned(from, to).unwrap_err();
            assert!(refused.starts_with(what), "{from} -> {to}: {refused}");
        }
    }
}
