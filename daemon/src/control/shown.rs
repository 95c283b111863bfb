//! The values in force, by the config's keys, for clients of the control plane.

use super::*;
use crate::config::{caps, goal, poll};
use mqfq_blk::PriorityClass;
use mqfq_blk::slots::Slot;

/// The configured and effective values of everything; of nothing without a control plane, where they have no reader.
pub(super) fn state_of(origin: &Origin, ledger: &Ledger, reconciler: &Reconciler, engine: &Engine) -> State {
    if origin.control.is_none() {
        return State { revision: ledger.revision(), things: BTreeMap::new() };
    }
    let in_force = in_force(reconciler, engine);
    ledger.state(|kind, name| in_force.get(&(kind, name.to_owned())).cloned().unwrap_or_default())
}

/// Name of the tenant of an export of this name, as it runs.
pub(super) fn owner(reconciler: &Reconciler, kind: Kind, name: &str) -> Option<String> {
    let plan = reconciler.plan();
    let export = &plan.exports[*reconciler.names().exports.get(name).filter(|_| kind == Kind::Export)?];
    Some(plan.devices[export.device].flows[export.flow].tenant.clone())
}

/// The values in force of a tenant or an export, as in [`in_force`], where no groups compete.
pub(super) fn one_in_force(reconciler: &Reconciler, kind: Kind, name: &str) -> Map<String, Value> {
    let (plan, names) = (reconciler.plan(), reconciler.names());
    let mut keys = Map::new();
    match kind {
        Kind::Tenant => {
            let flows = names.flows.get(name).into_iter().flat_map(BTreeMap::keys);
            flows.for_each(|(device, flow)| flow_in_force(&plan.devices[*device], *flow, &mut keys));
        }
        _ => names.exports.get(name).into_iter().for_each(|slot| export_in_force(reconciler, *slot, &mut keys)),
    }
    keys
}

/// The values in force of everything that an export uses, by the config's keys; sizes in bytes.
pub(super) fn in_force(reconciler: &Reconciler, engine: &Engine) -> BTreeMap<(Kind, String), Map<String, Value>> {
    let plan = reconciler.plan();
    let mut all: BTreeMap<(Kind, String), Map<String, Value>> = BTreeMap::new();
    for (slot, device) in plan.devices.iter() {
        let policy = engine.policy(slot.place());
        let keys = all.entry((Kind::Device, device.config.name.clone())).or_default();
        keys.insert("policy".into(), policy.kind.name().into());
        if !matches!(device.config.medium, Medium::Pool { .. }) {
            keys.insert("size".into(), device.size_bytes.into());
        }
        keys.insert(goal::FLOOR.into(), (f64::from(device.config.floor_thousandths) / 1000.0).into());
        keys.insert("expert".into(), json!({ "queue-depth": device.config.queue_depth }));
        groups_in_force(device, &mut all);
        for (slot, flow) in device.flows.iter() {
            flow_in_force(device, slot, all.entry((Kind::Tenant, flow.tenant.clone())).or_default());
        }
    }
    for (slot, export) in plan.exports.iter() {
        export_in_force(reconciler, slot, all.entry((Kind::Export, export.name.clone())).or_default());
    }
    all
}

/// Adds the values of a tenant on a device.
pub(super) fn flow_in_force(device: &DevicePlan, slot: Slot, keys: &mut Map<String, Value>) {
    let flow = &device.flows[slot];
    if flow.export.is_none() {
        keys.insert("weight".into(), flow.weight.get().into());
        if let Some(group) = flow.group {
            keys.insert("group".into(), device.groups[group.0 as usize].name.clone().into());
        }
    }
    // A key of another program's config, which has further policies.
    if flow.class != PriorityClass::default() {
        keys.insert("class".into(), flow.class.name().into());
    }
    keys.insert("staged-requests".into(), flow.staged.requests_max.into());
    keys.insert("staged-bytes".into(), flow.staged.bytes_max.into());
    keys.insert("memory".into(), flow.memory_bytes.into());
    keys.extend(caps::in_force(flow.caps));
    if let Some(goal) = &flow.goal {
        keys.insert(goal::LATENCY.into(), goal::shown(Some(goal)).into());
    }
}

/// Adds the values of an export.
pub(super) fn export_in_force(reconciler: &Reconciler, slot: Slot, keys: &mut Map<String, Value>) {
    let plan = reconciler.plan();
    let export = &plan.exports[slot];
    let device = &plan.devices[export.device];
    let flow = &device.flows[export.flow];
    keys.insert("device".into(), device.config.name.clone().into());
    keys.insert("tenant".into(), flow.tenant.clone().into());
    match &export.path {
        Some(path) => keys.insert("path".into(), path.display().to_string().into()),
        None => keys.insert("offset".into(), export.offset_bytes.into()),
    };
    keys.insert("size".into(), export.size_bytes.into());
    keys.insert("read-only".into(), export.read_only.into());
    keys.insert(poll::POLL.into(), poll::shown(export.poll).into());
    keys.extend(caps::in_force(export.caps));
    if flow.export.is_some() {
        keys.insert("weight".into(), flow.weight.get().into());
    }
    for (key, value) in lack_in_force(reconciler, slot) {
        keys.insert(key.into(), value);
    }
    for address in &export.addresses {
        let addresses = keys.entry(address.front_end().name()).or_insert_with(|| json!([]));
        addresses.as_array_mut().expect("made as one").push(address.to_string().into());
    }
}

/// Brings what `state` says of exports that lack bytes up to date.
pub(super) fn withheld_in_force(reconciler: &Reconciler, state: &mut State) {
    let exports = state.things.get_mut(Kind::Export.plural());
    for thing in exports.into_iter().flatten().filter(|thing| thing.in_force.contains_key(WITHHELD)) {
        [WITHHELD, ERASED, TO_ERASE].iter().for_each(|key| drop(thing.in_force.remove(*key)));
        let lack = reconciler.names().exports.get(&thing.name).map(|slot| lack_in_force(reconciler, *slot));
        thing.in_force.extend(lack.into_iter().flatten().map(|(key, value)| (key.to_owned(), value)));
    }
}

/// Keys about an export that lacks bytes, for now.
const WITHHELD: &str = "withheld";
const ERASED: &str = "erased-bytes";
const TO_ERASE: &str = "to-erase-bytes";

/// The keys of an export that lacks bytes, for now.
fn lack_in_force(reconciler: &Reconciler, slot: Slot) -> Vec<(&'static str, Value)> {
    let Some(Lack { sentence, erased }) = reconciler.lack(slot) else { return Vec::new() };
    let numbers = erased.map(|(done, all)| [(ERASED, done.into()), (TO_ERASE, all.into())]);
    std::iter::once((WITHHELD, sentence.into())).chain(numbers.into_iter().flatten()).collect()
}

/// Adds the values of groups, and of tenants whose exports are flows.
pub(super) fn groups_in_force(device: &DevicePlan, all: &mut BTreeMap<(Kind, String), Map<String, Value>>) {
    for group in &device.groups {
        let kind = if group.is_tenant { Kind::Tenant } else { Kind::Group };
        let keys = all.entry((kind, group.name.clone())).or_default();
        keys.insert("weight".into(), group.weight.get().into());
        if let Some(parent) = group.parent {
            keys.insert("group".into(), device.groups[parent.0 as usize].name.clone().into());
        }
    }
}
