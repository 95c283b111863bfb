//! The difference between two plans: the unit in which a running server changes.
//!
//! ```text
//!   a whole config ─▶ check ──────────────▶ Plan::aligned ─▶ Difference::between ─┐
//!   a section ─▶ check with what it names (cached.rs) ─▶ Plan::difference_of ───────┴─▶ steps over its sets ─▶ exchange
//!                                                                                     (reconcile.rs)
//! ```
//! The cost of a step grows with the difference, not with the plan: a tenant of ten thousand changes alone.

use super::change::{is_same_export, same_device};
use super::model::ServerConfig;
use super::plan::{DevicePlan, ExportPlan, FlowPlan, Plan};
use super::trust::{TlsMode, TrustPlan};
use mqfq_blk::device::file::{BACKINGS_MAX, number_of, region_of};
use mqfq_blk::slots::{Slot, Slots};
use mqfq_front::FRONT_ENDS;
use mqfq_front::front_end::ExportAddress;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Things by slot as they are to be. `None`: the thing goes.
pub type Changed<T> = BTreeMap<Slot, Option<T>>;

/// The changes to a plan, in the plan's slots.
#[derive(Default)]
pub struct Difference {
    /// `[server]`, if it is another one.
    pub server: Option<ServerConfig>,
    /// Certificates, if they are others; its modes mean nothing.
    pub trust: Option<TrustPlan>,
    /// TLS by address, as it is written.
    pub modes: BTreeMap<String, Option<TlsMode>>,
    /// Devices that come, go, or have another section or other groups. A device that comes has its flows, one that
    /// stays has all flows that it is to have.
    pub devices: Changed<DevicePlan>,
    /// Flows, by device that stays.
    pub flows: BTreeMap<Slot, Changed<FlowPlan>>,
    /// Exports.
    pub exports: Changed<ExportPlan>,
    /// Addresses that begin or end to be served, by front end and text.
    pub addresses: BTreeMap<String, Option<ExportAddress>>,
}

/// Slots of a plan's things, by name.
#[derive(PartialEq, Eq, Default, Debug)]
pub struct Names {
    /// Exports, by name.
    pub exports: BTreeMap<String, Slot>,
    /// Flows of each tenant, as device and flow there, and how many exports each has.
    pub flows: BTreeMap<String, BTreeMap<(Slot, Slot), usize>>,
    /// Place in [`Plan::listeners`], by front end and text.
    pub listeners: BTreeMap<String, usize>,
    /// Numbers of backings, by pool.
    pub backings: BTreeMap<Slot, BTreeSet<u16>>,
    /// Exports with a backing, by its path.
    pub paths: BTreeMap<PathBuf, Slot>,
}

impl Names {
    /// The names of `plan`.
    pub fn new(plan: &Plan) -> Names {
        let mut names = Names::default();
        plan.exports.iter().for_each(|(slot, export)| names.add(plan, slot, export));
        names.listeners = plan.listeners.iter().enumerate().map(|(at, (address, _))| (address.key(), at)).collect();
        names
    }

    fn add(&mut self, plan: &Plan, slot: Slot, export: &ExportPlan) {
        self.exports.insert(export.name.clone(), slot);
        if let Some(path) = &export.path {
            self.backings.entry(export.device).or_default().insert(number_of(export.offset_bytes));
            self.paths.insert(path.clone(), slot);
        }
        let tenant = &plan.devices[export.device].flows[export.flow].tenant;
        *self.flows.entry(tenant.clone()).or_default().entry((export.device, export.flow)).or_default() += 1;
    }

    fn remove(&mut self, plan: &Plan, export: &ExportPlan) {
        self.exports.remove(&export.name);
        if let Some(path) = &export.path {
            let numbers = self.backings.entry(export.device).or_default();
            numbers.remove(&number_of(export.offset_bytes));
            if numbers.is_empty() {
                self.backings.remove(&export.device);
            }
            self.paths.remove(path);
        }
        let tenant = &plan.devices[export.device].flows[export.flow].tenant;
        let Some(flows) = self.flows.get_mut(tenant) else { return };
        if let Some(count) = flows.get_mut(&(export.device, export.flow)) {
            *count -= 1;
        }
        flows.retain(|_, count| *count > 0);
        if flows.is_empty() {
            self.flows.remove(tenant);
        }
    }
}

/// The things that are not the same in both.
fn changed<T: Clone>(old: &Slots<T>, new: &Slots<T>, is_same: impl Fn(&T, &T) -> bool) -> Changed<T> {
    let differs = |(slot, thing): &(Slot, &T)| old.get(*slot).is_none_or(|before| !is_same(before, thing));
    let is = new.iter().filter(differs).map(|(slot, thing)| (slot, Some(thing.clone())));
    let gone = old.iter().filter(|(slot, _)| new.get(*slot).is_none()).map(|(slot, _)| (slot, None));
    is.chain(gone).collect()
}

/// The sections say the same, wherever they stand.
fn same_export(old: &ExportPlan, new: &ExportPlan) -> bool {
    *old == ExportPlan { place: old.place.clone(), ..new.clone() }
}

impl Difference {
    /// All differences of `new`, which is in the slots of `old`.
    pub fn between(old: &Plan, new: &Plan) -> Difference {
        let server = (old.server != new.server).then(|| new.server.clone());
        let mut all = Difference { server, ..Difference::default() };
        let certificates = |trust: &TrustPlan| (trust.files.clone(), trust.material.clone(), trust.control.clone());
        all.trust = (certificates(&old.trust) != certificates(&new.trust)).then(|| new.trust.clone());
        let texts = old.trust.modes.keys().chain(new.trust.modes.keys());
        let both = texts.map(|text| (text, [&old.trust, &new.trust].map(|trust| trust.modes.get(text).copied())));
        all.modes = both.filter(|(_, [was, is])| was != is).map(|(text, [_, is])| (text.clone(), is)).collect();
        all.devices = changed(&old.devices, &new.devices, |before, device| {
            let of = |device: &DevicePlan| (device.size_bytes, device.read_only);
            before.config == device.config && before.groups == device.groups && of(before) == of(device)
        });
        for (slot, device) in new.devices.iter() {
            let Some(before) = old.devices.get(slot) else { continue };
            let flows = changed(&before.flows, &device.flows, FlowPlan::eq);
            if flows.is_empty() {
                continue;
            }
            if !before.groups.is_empty() || !device.groups.is_empty() {
                all.devices.insert(slot, Some(device.clone()));
            }
            all.flows.insert(slot, flows);
        }
        all.exports = changed(&old.exports, &new.exports, same_export);
        let addresses = |plan: &Plan| -> BTreeMap<String, ExportAddress> {
            plan.listeners.iter().map(|(address, _)| (address.key(), address.clone())).collect()
        };
        let (mut before, after) = (addresses(old), addresses(new));
        all.addresses = after
            .into_iter()
            .filter(|(key, _)| before.remove(key).is_none())
            .map(|(key, it)| (key, Some(it)))
            .collect();
        all.addresses.extend(before.into_keys().map(|key| (key, None)));
        all
    }

    /// There is no difference.
    pub fn is_empty(&self) -> bool {
        let Difference { server, trust, modes, devices, flows, exports, addresses } = self;
        server.is_none()
            && trust.is_none()
            && modes.is_empty()
            && devices.is_empty()
            && flows.is_empty()
            && exports.is_empty()
            && addresses.is_empty()
    }

    /// A device of `plan` as it is to be; flows of one that stays are not in it.
    pub fn device<'d>(&'d self, plan: &'d Plan, device: Slot) -> &'d DevicePlan {
        self.devices.get(&device).and_then(Option::as_ref).unwrap_or_else(|| &plan.devices[device])
    }

    /// A flow of a device of `plan` as it is to be.
    pub fn flow<'d>(&'d self, plan: &'d Plan, device: Slot, flow: Slot) -> &'d FlowPlan {
        let changed = self.flows.get(&device).and_then(|flows| flows.get(&flow)).and_then(Option::as_ref);
        changed.unwrap_or_else(|| &self.device(plan, device).flows[flow])
    }

    /// New and changed flows, as they are to be.
    pub fn flows_to_be(&self, plan: &Plan) -> impl Iterator<Item = &FlowPlan> {
        let come = self.devices.iter().filter(|(slot, _)| plan.devices.get(**slot).is_none());
        let come = come.filter_map(|(_, device)| device.as_ref()).flat_map(|device| device.flows.values());
        come.chain(self.flows.values().flat_map(BTreeMap::values).flatten())
    }
}

impl Plan {
    /// The difference once the sections of `part` are in force, which has them and those that they name, and once the
    /// export `gone` is gone. Backings that come get none of the numbers that are `taken`. `None`: it is about more
    /// than flows, exports and addresses; nothing is said.
    pub fn difference_of(
        &self,
        names: &Names,
        part: Option<&Plan>,
        gone: Option<&str>,
        taken: &BTreeSet<(Slot, u16)>,
    ) -> Option<Difference> {
        let mut all = Difference::default();
        let mut numbers = BTreeSet::new();
        // By slots in the part.
        let mut flows = BTreeMap::new();
        for (part_slot, device) in part.into_iter().flat_map(|part| part.devices.iter()) {
            let (slot, before) = self.devices.iter().find(|(_, known)| known.config.name == device.config.name)?;
            let is_open = !before.read_only || device.read_only;
            let is_same = same_device(before, device) && before.config.policy == device.config.policy && is_open;
            if !is_same || !before.groups.is_empty() {
                return None;
            }
            let mut next = before.flows.next();
            for (part_flow, flow) in device.flows.iter() {
                let known = names.flows.get(&flow.tenant).and_then(|flows| flows.keys().find(|(at, _)| *at == slot));
                let place = match known {
                    Some((_, place)) => *place,
                    None => next.take()?,
                };
                if before.flows.get(place) != Some(flow) {
                    all.flows.entry(slot).or_default().insert(place, Some(flow.clone()));
                }
                flows.insert((part_slot, part_flow), (slot, place));
            }
        }
        let mut next = self.exports.next();
        for export in part.into_iter().flat_map(|part| part.exports.values()) {
            let (device, flow) = flows[&(export.device, export.flow)];
            let mut export = ExportPlan { device, flow, ..export.clone() };
            if let Some(path) = &export.path {
                match names.paths.get(path).map(|slot| &self.exports[*slot]) {
                    Some(before) if (&before.name, before.read_only) == (&export.name, export.read_only) => {
                        export.offset_bytes = before.offset_bytes;
                        // See `Plan::aligned`.
                        let least = if export.has_size { 0 } else { before.size_bytes };
                        export.size_bytes = export.size_bytes.max(least);
                    }
                    Some(_) => return None,
                    None => {
                        let used = names.backings.get(&device);
                        let is_used = |number: &u16| {
                            used.is_some_and(|used| used.contains(number))
                                || taken.contains(&(device, *number))
                                || numbers.contains(&(device, *number))
                        };
                        // Numbers without a gap need no search.
                        let is_dense =
                            |used: &&BTreeSet<u16>| used.last().map(|last| usize::from(*last) + 1) == Some(used.len());
                        let first = used.filter(is_dense).map_or(0, |used| used.len() as u16);
                        let number = (first..BACKINGS_MAX).find(|number| !is_used(number))?;
                        numbers.insert((device, number));
                        export.offset_bytes = region_of(number);
                    }
                }
            }
            let slot = match names.exports.get(&export.name) {
                Some(slot) if is_same_export(&self.exports[*slot], &export) => *slot,
                other => {
                    all.exports.extend(other.map(|slot| (*slot, None)));
                    next.take()?
                }
            };
            if self.exports.get(slot).is_none_or(|before| !same_export(before, &export)) {
                all.exports.insert(slot, Some(export));
            }
        }
        if let Some(name) = gone {
            all.exports.insert(*names.exports.get(name)?, None);
        }
        self.add_emptied(names, &mut all);
        let modes = part.into_iter().flat_map(|part| &part.trust.modes);
        let new_modes = modes.filter(|(text, mode)| self.trust.modes.get(*text) != Some(mode));
        all.modes.extend(new_modes.map(|(text, mode)| (text.clone(), Some(*mode))));
        Some(all)
    }

    /// Adds flows and addresses that go with the last of their exports, and addresses that come with a first one.
    fn add_emptied(&self, names: &Names, all: &mut Difference) {
        // Exports that a flow and an address have more.
        let mut flows: BTreeMap<(Slot, Slot), isize> = BTreeMap::new();
        let mut addresses: BTreeMap<String, (&ExportAddress, isize)> = BTreeMap::new();
        for (slot, export) in &all.exports {
            for (export, more) in [(self.exports.get(*slot), -1), (export.as_ref(), 1)] {
                let Some(export) = export else { continue };
                *flows.entry((export.device, export.flow)).or_default() += more;
                export.addresses.iter().for_each(|at| addresses.entry(at.key()).or_insert((at, 0)).1 += more);
            }
        }
        for ((device, flow), more) in flows {
            let Some(tenant) = self.devices[device].flows.get(flow).map(|flow| &flow.tenant) else { continue };
            let had =
                names.flows.get(tenant).and_then(|flows| flows.get(&(device, flow))).map_or(0, |had| *had as isize);
            if had + more == 0 {
                all.flows.entry(device).or_default().insert(flow, None);
            }
        }
        let mut gone = BTreeSet::new();
        for (key, (address, more)) in addresses {
            match names.listeners.get(&key) {
                None if more > 0 => drop(all.addresses.insert(key, Some(address.clone()))),
                Some(at) if self.listeners[*at].1.len() as isize + more == 0 => {
                    gone.insert(address.to_string());
                    all.addresses.insert(key, None);
                }
                _ => {}
            }
        }
        // Two front ends may write theirs alike.
        for text in gone {
            let mut keys = FRONT_ENDS.iter().map(|front_end| ExportAddress::key_of(*front_end, &text));
            let stays = |key: String| match all.addresses.get(&key) {
                Some(address) => address.is_some(),
                None => names.listeners.contains_key(&key),
            };
            if !keys.any(stays) {
                all.modes.insert(text, None);
            }
        }
    }

    /// Exchanges things for those of `new`, and returns the old ones.
    pub fn exchange(&mut self, names: &mut Names, new: Difference) -> Difference {
        let mut old = Difference::default();
        for slot in new.exports.keys() {
            let Some(export) = self.exports.get(*slot) else { continue };
            names.remove(self, export);
            for address in &export.addresses {
                if let Some(at) = names.listeners.get(&address.key()) {
                    self.listeners[*at].1.retain(|other| other != slot);
                }
            }
        }
        old.server = new.server.map(|server| std::mem::replace(&mut self.server, server));
        old.trust = new.trust.map(|trust| {
            let modes = std::mem::take(&mut self.trust.modes);
            std::mem::replace(&mut self.trust, TrustPlan { modes, ..trust })
        });
        for (text, mode) in new.modes {
            let before = match mode {
                Some(mode) => self.trust.modes.insert(text.clone(), mode),
                None => self.trust.modes.remove(&text),
            };
            old.modes.insert(text, before);
        }
        for (slot, device) in new.devices {
            let mut before = self.devices.exchange(slot, device);
            if let (Some(before), Some(device)) = (&mut before, self.devices.get_mut(slot)) {
                // They are exchanged one by one.
                std::mem::swap(&mut before.flows, &mut device.flows);
            }
            old.devices.insert(slot, before);
        }
        for (device, flows) in new.flows {
            let all = &mut self.devices[device].flows;
            let before = flows.into_iter().map(|(slot, flow)| (slot, all.exchange(slot, flow))).collect();
            old.flows.insert(device, before);
        }
        for (key, address) in new.addresses {
            let before = match (address, names.listeners.remove(&key)) {
                (Some(address), None) => {
                    names.listeners.insert(key.clone(), self.listeners.len());
                    self.listeners.push((address, Vec::new()));
                    None
                }
                (_, None) => None,
                (_, Some(at)) => {
                    let (gone, _) = self.listeners.swap_remove(at);
                    if let Some((moved, _)) = self.listeners.get(at) {
                        names.listeners.insert(moved.key(), at);
                    }
                    Some(gone)
                }
            };
            old.addresses.insert(key, before);
        }
        for (slot, export) in new.exports {
            old.exports.insert(slot, self.exports.exchange(slot, export));
            let Some(export) = self.exports.get(slot) else { continue };
            names.add(self, slot, export);
            for address in &export.addresses {
                self.listeners[names.listeners[&address.key()]].1.push(slot);
            }
        }
        old
    }
}
