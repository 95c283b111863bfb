//! What another config would change of a running one: policies, weights and caps can change while tenants are
//! served, all else cannot.

use super::caps::Whose;
use super::{DeviceConfig, DevicePlan, ExportPlan, GroupPlan, Medium, Plan, PolicyConfig};
use crate::config::check::FlowPlan;
use mqfq_blk::Weight;
use mqfq_blk::cap::CapLimits;
use mqfq_blk::hierarchy::GroupId;
use mqfq_blk::slots::Slot;
use std::collections::{BTreeMap, BTreeSet};

/// What differs and can be changed while serving. Slots are those of the plan that runs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Changes {
    /// Devices whose policy or its settings differ.
    pub policies: Vec<(Slot, PolicyConfig)>,
    /// Flows of devices whose weight differs.
    pub weights: Vec<(Slot, Slot, Weight)>,
    /// Groups on devices whose weight differs.
    pub group_weights: Vec<(Slot, GroupId, Weight)>,
    /// Whose caps differ, and what they are to be.
    pub caps: Vec<(Whose, CapLimits)>,
}

const RESTART: &str =
    "cannot change while serving, allowed is to change policies, their settings and weights, and the rest by a restart";

impl Plan {
    /// What `new` would change. Sections are the same if their names are, wherever in the file they stand.
    ///
    /// # Errors
    /// One sentence: the first thing that differs and that only a restart changes.
    pub fn changes_to(&self, new: &Plan) -> Result<Changes, String> {
        let Plan { server, devices, exports, listeners: _, warnings: _ } = self;
        if *server != new.server {
            return Err(format!("[server] {RESTART}"));
        }
        if devices.len() != new.devices.len() {
            return Err(format!("the number of devices in use {RESTART}"));
        }
        let mut changes = Changes::default();
        let by_name: BTreeMap<&str, Slot> =
            devices.iter().map(|(slot, device)| (device.config.name.as_str(), slot)).collect();
        for new in new.devices.values() {
            let refused = || new.config.place.error(format!("this device {RESTART}")).to_string();
            let slot = *by_name.get(new.config.name.as_str()).ok_or_else(refused)?;
            let old = &devices[slot];
            let flows = same_flows(old, new).filter(|_| same_device(old, new)).ok_or_else(refused)?;
            if old.config.policy != new.config.policy {
                changes.policies.push((slot, new.config.policy));
            }
            let differ = |(flow, new): &(Slot, &FlowPlan)| old.flows[*flow].weight != new.weight;
            let regrouped = || new.config.place.error(format!("which groups are on this device {RESTART}")).to_string();
            changes.group_weights.extend(changed_groups(slot, old, new).ok_or_else(regrouped)?);
            changes.weights.extend(flows.into_iter().filter(differ).map(|(flow, new)| (slot, flow, new.weight)));
        }
        if exports.len() != new.exports.len() {
            return Err(format!("the number of exports {RESTART}"));
        }
        let by_name: BTreeMap<&str, &ExportPlan> =
            exports.values().map(|export| (export.name.as_str(), export)).collect();
        for export in new.exports.values() {
            let old = by_name.get(export.name.as_str());
            if !old.is_some_and(|old| same_export((self, old), (new, export))) {
                return Err(export.place.error(format!("this export {RESTART}")).to_string());
            }
        }
        if self.served_at() != new.served_at() {
            return Err(format!("the addresses of exports {RESTART}"));
        }
        changes.caps = super::caps::changed(self, new);
        Ok(changes)
    }

    /// The policies of `new`, whose devices are the same.
    pub fn take_policies_of(&mut self, new: &Plan) {
        let policies: BTreeMap<&str, PolicyConfig> =
            new.devices.values().map(|device| (device.config.name.as_str(), device.config.policy)).collect();
        for device in self.devices.values_mut() {
            if let Some(policy) = policies.get(device.config.name.as_str()) {
                device.config.policy = *policy;
            }
        }
    }

    /// Which exports each address offers, by how it is written.
    fn served_at(&self) -> BTreeMap<String, BTreeSet<&str>> {
        let named = |slots: &[Slot]| slots.iter().map(|slot| self.exports[*slot].name.as_str()).collect();
        self.listeners.iter().map(|(address, slots)| (address.to_string(), named(slots))).collect()
    }
}

/// The flows of the new plan, with their slots in the old one, if they are the same but for their weights.
fn same_flows<'new>(old: &DevicePlan, new: &'new DevicePlan) -> Option<Vec<(Slot, &'new FlowPlan)>> {
    let name = |flow: &'_ FlowPlan| (flow.tenant.clone(), flow.export.clone());
    let by_name: BTreeMap<_, Slot> = old.flows.iter().map(|(slot, flow)| (name(flow), slot)).collect();
    let group = |plan: &DevicePlan, flow: &FlowPlan| flow.group.map(|group| line(&plan.groups, group));
    let same = |flow: &'new FlowPlan| {
        let slot = *by_name.get(&name(flow))?;
        let FlowPlan { tenant: _, export: _, weight: _, group: _, class, staged, memory_bytes, caps: _ } =
            &old.flows[slot];
        let is_same = (class, staged, memory_bytes) == (&flow.class, &flow.staged, &flow.memory_bytes)
            && group(old, &old.flows[slot]) == group(new, flow);
        is_same.then_some((slot, flow))
    };
    if old.flows.len() == new.flows.len() { new.flows.values().map(same).collect() } else { None }
}

/// A group and those that it is in, by what they are called.
fn line(groups: &[GroupPlan], group: GroupId) -> Vec<String> {
    let mut line = Vec::new();
    let mut at = Some(group);
    while let Some(group) = at {
        line.push(groups[group.0 as usize].called());
        at = groups[group.0 as usize].parent;
    }
    line
}

/// The groups of a device whose weight differs, by their number in the old plan. `None`: they are not the same groups.
fn changed_groups(device: Slot, old: &DevicePlan, new: &DevicePlan) -> Option<Vec<(Slot, GroupId, Weight)>> {
    let numbered = |groups: &[GroupPlan]| (0..groups.len() as u32).map(GroupId).collect::<Vec<_>>();
    let by_line: BTreeMap<Vec<String>, GroupId> =
        numbered(&old.groups).into_iter().map(|group| (line(&old.groups, group), group)).collect();
    if old.groups.len() != new.groups.len() {
        return None;
    }
    let mut changed = Vec::new();
    for (number, group) in numbered(&new.groups).into_iter().zip(&new.groups) {
        let was = *by_line.get(&line(&new.groups, number))?;
        if old.groups[was.0 as usize].weight != group.weight {
            changed.push((device, was, group.weight));
        }
    }
    Some(changed)
}

/// The same but for the policy and the flows. Every field is named, so that a new one is a decision.
fn same_device(old: &DevicePlan, new: &DevicePlan) -> bool {
    let DevicePlan { config, size_bytes, read_only: _, flows: _, groups: _ } = old;
    let DeviceConfig { name, place: _, medium, policy: _, queue_depth, queues, path, cost, profile: _ } = config;
    let same_medium = match (medium, &new.config.medium) {
        (Medium::File { path, size, direct }, Medium::File { path: new_path, size: new_size, direct: new_direct }) => {
            let size_bytes = |size: &Option<super::Located<u64>>| size.as_ref().map(|size| size.value);
            (&path.value, size_bytes(size), direct) == (&new_path.value, size_bytes(new_size), new_direct)
        }
        (old, new) => old == new,
    };
    (name, queue_depth, queues, path, cost)
        == (&new.config.name, &new.config.queue_depth, &new.config.queues, &new.config.path, &new.config.cost)
        && same_medium
        && *size_bytes == new.size_bytes
}

/// The same, each in its plan: of the same tenant on the same device, whatever their slots are.
fn same_export((old_plan, old): (&Plan, &ExportPlan), (new_plan, new): (&Plan, &ExportPlan)) -> bool {
    let ExportPlan {
        name,
        place: _,
        device,
        flow,
        offset_bytes,
        size_bytes,
        read_only,
        description,
        payload_bytes_max,
        caps: _,
    } = old;
    let whose = |plan: &Plan, device: Slot, flow: Slot| {
        let device = &plan.devices[device];
        (device.config.name.clone(), device.flows[flow].tenant.clone())
    };
    (name, offset_bytes, size_bytes) == (&new.name, &new.offset_bytes, &new.size_bytes)
        && whose(old_plan, *device, *flow) == whose(new_plan, new.device, new.flow)
        && (read_only, description, payload_bytes_max) == (&new.read_only, &new.description, &new.payload_bytes_max)
}

#[cfg(test)]
mod tests {
    use super::super::{Config, RealFiles};
    use super::*;
    use mqfq_blk::PolicyKind;

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

    fn plan(text: &str) -> Plan {
        Config::parse("c.toml", text).unwrap().check(&RealFiles).unwrap()
    }

    fn changes(from: &str, to: &str) -> Result<Changes, String> {
        assert!(OLD.contains(from), "{from}");
        plan(OLD).changes_to(&plan(&OLD.replacen(from, to, 1)))
    }

    #[test]
    fn policies_and_weights_change_and_comments_move_lines_without_a_change() {
        assert_eq!(changes("[device", "# a comment\n\n[device"), Ok(Changes::default()));
        let policies = |to: &str| {
            let Changes { policies, weights, group_weights, .. } = changes("\"none\"", to).unwrap();
            assert_eq!((weights, group_weights), (vec![], vec![]));
            policies.into_iter().map(|(device, policy)| (device, policy.options(1).kind)).collect::<Vec<_>>()
        };
        assert_eq!(policies("\"mqfq\""), [(Slot::first(0), PolicyKind::Mqfq)]);
        assert_eq!(policies("\"none\"\ndepth = 5"), [(Slot::first(0), PolicyKind::None)]);
        let weights = vec![(Slot::first(0), Slot::first(1), Weight::new(8).unwrap())];
        assert_eq!(changes("weight = 7", "weight = 8"), Ok(Changes { weights, ..Changes::default() }));
    }

    #[test]
    fn sections_in_another_order_are_the_same_ones() {
        let mut sections: Vec<String> = OLD.split("[").skip(1).map(|section| format!("[{section}")).collect();
        sections.reverse();
        let turned = sections.concat();
        assert_eq!(plan(OLD).changes_to(&plan(&turned)), Ok(Changes::default()), "{turned}");
        // In the file that is read again b comes first, and in the plan that runs it is second.
        let weights = vec![(Slot::first(0), Slot::first(1), Weight::new(8).unwrap())];
        let changed = turned.replace("weight = 7", "weight = 8");
        assert_eq!(plan(OLD).changes_to(&plan(&changed)), Ok(Changes { weights, ..Changes::default() }));
    }

    #[test]
    fn all_else_is_refused_with_the_place() {
        let rest = "cannot change while serving, allowed is to change policies, their settings and weights, and the rest by a restart";
        for (from, to, what) in [
            ("[device", "[server]\nworkers = 3\n[device", "[server]"),
            ("\"1MiB\"", "\"2MiB\"", "c.toml:1: device.fast: this device"),
            ("size = \"1MiB\"", "size = \"1MiB\"\nqueue-depth = 9", "c.toml:1: device.fast: this device"),
            ("[tenant.b]", "[tenant.b]\nstaged-requests = 9", "c.toml:1: device.fast: this device"),
            ("[tenant.b]", "[tenant.b]\nstaged-bytes = \"1MiB\"", "c.toml:1: device.fast: this device"),
            ("[tenant.b]", "[tenant.b]\nclass = \"idle\"", "c.toml:1: device.fast: this device"),
            ("\"none\"", "\"none\"\nmerge = \"back\"", "c.toml:1: device.fast: this device"),
            ("\"none\"", "\"none\"\nretries = 1", "c.toml:1: device.fast: this device"),
            ("\"none\"", "\"none\"\nblock-layer = \"sq\"", "c.toml:1: device.fast: this device"),
            ("\"none\"", "\"none\"\ncost = { write = { per-byte = 2 } }", "c.toml:1: device.fast: this device"),
            ("\"null\"", "\"memory\"", "c.toml:1: device.fast: this device"),
            ("tenant = \"b\"", "tenant = \"b\"\nread-only = true", "c.toml:13: export.b: this export"),
            ("tenant = \"b\"", "tenant = \"b\"\ndescription = \"b's\"", "c.toml:13: export.b: this export"),
            ("\"512KiB\"", "\"576KiB\"", "c.toml:13: export.b: this export"),
            ("[export.a]", "[export.z]", "c.toml:8: export.z: this export"),
            ("\"256KiB\"", "\"128KiB\"", "c.toml:8: export.a: this export"),
            ("\"unix:/b\"", "\"unix:/c\"", "the addresses of exports"),
        ] {
            assert_eq!(changes(from, to), Err(format!("{what} {rest}")), "{from} -> {to}");
        }
    }
}
