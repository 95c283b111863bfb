//! The differences between the running plan and the next, for the client that proposed it.
//!
//! Answers: which lines does a reload print? One for each thing that comes or goes, and one for each key of a thing
//! that stays.

use crate::config::caps::{self, CapOwner};
use crate::config::difference::{Changed, Difference, Names};
use crate::config::goal;
use crate::config::poll;
use crate::config::trust::TrustPlan;
use crate::config::{DevicePlan, ExportPlan, FlowPlan, GroupPlan, Plan, ServerConfig};
use mqfq_blk::GroupId;
use mqfq_blk::PolicyKind;
use mqfq_blk::cap::CapLimits;
use mqfq_blk::slots::Slot;
use mqfq_config::size;
use mqfq_front::front_end::ExportAddress;
use mqfq_front::identity::{Access, Identity};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Something that was changed.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// `None`: it is about the server, or about a cap, which a tenant has on all its devices.
    device: Option<String>,
    /// `None`: it is about the device's policy, or about a group.
    tenant: Option<String>,
    /// The export of the tenant, if each is a flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    export: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    /// A key of the config; or `added` or `removed`, which go from nothing to nothing.
    key: &'static str,
    from: String,
    to: String,
}

impl Change {
    /// A change of a device's `key`.
    fn of(device: &str, key: &'static str, from: impl ToString, to: impl ToString) -> Change {
        Change { device: Some(device.to_owned()), ..Change::of_server(key, from, to) }
    }

    fn of_server(key: &'static str, from: impl ToString, to: impl ToString) -> Change {
        let (from, to) = (from.to_string(), to.to_string());
        Change { device: None, tenant: None, export: None, group: None, key, from, to }
    }

    /// The change in words.
    pub fn sentence(&self) -> String {
        let Change { device, tenant, export, group, key, from, to } = self;
        let of = match (tenant, export, group) {
            (Some(tenant), Some(export), _) => format!("export {export} of tenant {tenant} on "),
            (Some(tenant), ..) => format!("tenant {tenant} on "),
            (.., Some(group)) => format!("group {group} on "),
            _ => String::new(),
        };
        let Some(device) = device else {
            let of = export.as_ref().map(|export| format!("export {export}"));
            let of = of.or(tenant.as_ref().map(|tenant| format!("tenant {tenant}"))).unwrap_or_default();
            let of = if of.is_empty() { "server".to_owned() } else { of };
            return format!("{of}: {key} {from} -> {to}");
        };
        if from.is_empty() && to.is_empty() {
            return format!("{of}device {device}: {key}");
        }
        if from == to {
            return format!("{of}device {device}: {key} {to}, with other settings");
        }
        format!("{of}device {device}: {key} {from} -> {to}")
    }
}

/// A device's policy, and the one of its new plan: a fallback, if the device lacks what the configured one needs.
pub type Policies<'a> = &'a dyn Fn(Slot, &DevicePlan) -> [PolicyKind; 2];

/// All that is different of the plan `old`, whose things are at `names`, once `new` is in force.
pub fn of(old: &Plan, names: &Names, new: &Difference, policies: Policies<'_>) -> Vec<Change> {
    let mut all = Vec::new();
    if let Some(server) = &new.server {
        between_servers(&old.server, server, &mut all);
    }
    if let Some(trust) = &new.trust {
        let mut differs = |key| all.push(Change::of_server(key, "as read before", "as read now"));
        if old.trust.material != trust.material {
            differs("tls");
        }
        let material = |of: &TrustPlan| of.control.as_ref().map(|(_, material)| material.clone());
        if material(&old.trust) != material(trust) {
            differs("control-tls");
        }
    }
    let no_flows = Changed::new();
    for slot in new.devices.keys().chain(new.flows.keys()).copied().collect::<BTreeSet<Slot>>() {
        let section = new.devices.get(&slot);
        let (before, device) = match (old.devices.get(slot), section) {
            (_, Some(None)) => continue,
            (None, _) => {
                all.push(Change::of(&new.device(old, slot).config.name, "added", "", ""));
                continue;
            }
            (Some(before), _) => (before, new.device(old, slot)),
        };
        if before.config.policy != device.config.policy {
            let [from, to] = policies(slot, device).map(PolicyKind::name);
            all.push(Change::of(&device.config.name, "policy", from, to));
        }
        between_devices(before, device, new.flows.get(&slot).unwrap_or(&no_flows), &mut all);
    }
    let after = |export: &ExportPlan, key, from: &str, to: &str| {
        let of = Change::of(&new.device(old, export.device).config.name, key, from, to);
        of_export(new.flow(old, export.device, export.flow), export, of)
    };
    for (slot, export) in new.exports.iter().filter_map(|(slot, export)| Some((slot, export.as_ref()?))) {
        let Some(before) = old.exports.get(*slot) else {
            all.push(after(export, "added", "", ""));
            continue;
        };
        between_exports(before, export, |key, from, to| all.push(after(export, key, &from, &to)));
        // With the front end: two of them write the same socket alike.
        let written = |export: &ExportPlan| export.addresses.iter().map(ExportAddress::key).collect::<BTreeSet<_>>();
        let (from, to) = (written(before), written(export));
        let words = |all: &BTreeSet<String>| all.iter().cloned().collect::<Vec<_>>().join(" and ");
        if from != to {
            all.push(after(export, "addresses", &words(&from), &words(&to)));
        }
    }
    for (slot, _) in new.exports.iter().filter(|(_, export)| export.is_none()) {
        let export = &old.exports[*slot];
        let device = &old.devices[export.device];
        all.push(of_export(&device.flows[export.flow], export, Change::of(&device.config.name, "removed", "", "")));
    }
    for (slot, _) in new.devices.iter().filter(|(_, device)| device.is_none()) {
        all.push(Change::of(&old.devices[*slot].config.name, "removed", "", ""));
    }
    all.extend(between_caps(old, names, new));
    all
}

fn between_servers(old: &ServerConfig, new: &ServerConfig, all: &mut Vec<Change>) {
    let mut key = |key, of: &dyn Fn(&ServerConfig) -> String| {
        let (from, to) = (of(old), of(new));
        if from != to {
            all.push(Change::of_server(key, from, to));
        }
    };
    key("connections", &|server| server.connections_max.to_string());
    key("memory", &|server| size::display(server.memory_bytes));
    key("connection-memory", &|server| size::display(server.connection_memory_bytes));
    key("handshake-s", &|server| server.handshake_s.to_string());
    key("stall-s", &|server| server.stall_s.to_string());
    key("socket-mode", &|server| format!("{:o}", server.socket_mode));
    key("drain-s", &|server| server.drain_s.to_string());
}

/// Caps that are others, of tenants and exports that stay.
fn between_caps(old: &Plan, names: &Names, new: &Difference) -> impl Iterator<Item = Change> {
    let tenant = |flow: &FlowPlan| {
        let (device, place) = names.flows.get(&flow.tenant)?.keys().next()?;
        Some((CapOwner::Tenant(flow.tenant.clone()), (old.devices[*device].flows[*place].caps, flow.caps)))
    };
    let export = |export: &ExportPlan| {
        let before = &old.exports[*names.exports.get(&export.name)?];
        Some((CapOwner::Export(export.name.clone()), (before.caps, export.caps)))
    };
    let tenants = new.flows_to_be(old).filter_map(tenant);
    let caps: BTreeMap<CapOwner, _> = tenants.chain(new.exports.values().flatten().filter_map(export)).collect();
    caps.into_iter().filter(|(_, (from, to))| from != to).map(|(owner, (from, to))| of_caps(owner, from, to))
}

/// A tenant's or an export's caps are others.
fn of_caps(owner: CapOwner, from: CapLimits, to: CapLimits) -> Change {
    let (tenant, export) = match owner {
        CapOwner::Tenant(tenant) => (Some(tenant), None),
        CapOwner::Export(export) => (None, Some(export)),
    };
    Change { tenant, export, ..Change::of_server("caps", caps::shown(from), caps::shown(to)) }
}

fn of_export(flow: &FlowPlan, export: &ExportPlan, change: Change) -> Change {
    Change { tenant: Some(flow.tenant.clone()), export: Some(export.name.clone()), ..change }
}

fn between_exports(old: &ExportPlan, new: &ExportPlan, mut differs: impl FnMut(&'static str, String, String)) {
    // Every field is named, so that a new one is a decision. Device, flow and offset are the same.
    let ExportPlan {
        name: _,
        place: _,
        device: _,
        flow: _,
        offset_bytes: _,
        size_bytes,
        has_size: _,
        path: _,
        read_only,
        is_shared: _,
        keep_data,
        description,
        payload_bytes_max,
        poll,
        caps: _,
        clients,
        addresses: _,
    } = old;
    if *clients != new.clients {
        differs("clients", shown_clients(clients), shown_clients(&new.clients));
    }
    if *size_bytes != new.size_bytes {
        differs("size", size::display(*size_bytes), size::display(new.size_bytes));
    }
    if *read_only != new.read_only {
        differs("read-only", read_only.to_string(), new.read_only.to_string());
    }
    if *keep_data != new.keep_data {
        let words = |keeps: Option<bool>| keeps.map_or("not set".to_owned(), |keeps| keeps.to_string());
        differs("keep-data", words(*keep_data), words(new.keep_data));
    }
    if *description != new.description {
        let words = |text: &Option<String>| format!("\"{}\"", text.as_deref().unwrap_or_default());
        differs("description", words(description), words(&new.description));
    }
    if *payload_bytes_max != new.payload_bytes_max {
        let words = |most: Option<u32>| most.map_or("the device's".to_owned(), |most| size::display(most.into()));
        differs("payload-max", words(*payload_bytes_max), words(new.payload_bytes_max));
    }
    if *poll != new.poll {
        differs(poll::POLL, poll::shown(*poll), poll::shown(new.poll));
    }
}

/// The clients that may have an export, in a few words.
fn shown_clients(clients: &Access) -> String {
    let Access { identities, uids, gids } = clients;
    let names = identities.iter().map(Identity::to_string);
    let users = uids.iter().map(|uid| format!("uid:{uid}"));
    let all: Vec<String> = names.chain(users).chain(gids.iter().map(|gid| format!("gid:{gid}"))).collect();
    if all.is_empty() { "anybody".to_owned() } else { all.join(" ") }
}

/// `flows` of a device become others. `new` has its section and groups.
fn between_devices(old: &DevicePlan, new: &DevicePlan, flows: &Changed<FlowPlan>, all: &mut Vec<Change>) {
    let name = new.config.name.as_str();
    let [from, to] = [old, new].map(|device| goal::shown_floor(device.config.floor_thousandths));
    if from != to {
        all.push(Change::of(name, goal::FLOOR, from, to));
    }
    for (slot, flow) in flows.iter().filter_map(|(slot, flow)| Some((slot, flow.as_ref()?))) {
        let of = |change| Change { tenant: Some(flow.tenant.clone()), export: flow.export.clone(), ..change };
        let Some(before) = old.flows.get(*slot) else {
            all.push(of(Change::of(name, "added", "", "")));
            continue;
        };
        let mut key = |key, from: String, to: String| {
            if from != to {
                all.push(of(Change::of(name, key, from, to)));
            }
        };
        let FlowPlan { tenant: _, export: _, weight, group, class, staged, memory_bytes, caps: _, goal } = before;
        key("weight", weight.get().to_string(), flow.weight.get().to_string());
        key("group", called(&old.groups, *group), called(&new.groups, flow.group));
        key("class", class.name().to_owned(), flow.class.name().to_owned());
        key("staged-requests", staged.requests_max.to_string(), flow.staged.requests_max.to_string());
        key("staged-bytes", size::display(staged.bytes_max), size::display(flow.staged.bytes_max));
        key("memory", size::display(*memory_bytes), size::display(flow.memory_bytes));
        key(goal::LATENCY, goal::shown(goal.as_ref()), goal::shown(flow.goal.as_ref()));
    }
    for (slot, _) in flows.iter().filter(|(_, flow)| flow.is_none()) {
        let flow = &old.flows[*slot];
        let (tenant, export) = (Some(flow.tenant.clone()), flow.export.clone());
        all.push(Change { tenant, export, ..Change::of(name, "removed", "", "") });
    }
    between_groups(old, new, all);
}

fn between_groups(old: &DevicePlan, new: &DevicePlan, all: &mut Vec<Change>) {
    let name = new.config.name.as_str();
    let of = |group: &GroupPlan, change| match group.is_tenant {
        true => Change { tenant: Some(group.name.clone()), ..change },
        false => Change { group: Some(group.name.clone()), ..change },
    };
    let same = |one: &GroupPlan, other: &GroupPlan| (&one.name, one.is_tenant) == (&other.name, other.is_tenant);
    for group in &new.groups {
        let Some(before) = old.groups.iter().find(|before| same(before, group)) else {
            all.push(of(group, Change::of(name, "added", "", "")));
            continue;
        };
        if before.weight != group.weight {
            all.push(of(group, Change::of(name, "weight", before.weight.get(), group.weight.get())));
        }
        let (from, to) = (called(&old.groups, before.parent), called(&new.groups, group.parent));
        if from != to {
            all.push(of(group, Change::of(name, "group", from, to)));
        }
    }
    for group in old.groups.iter().filter(|group| !new.groups.iter().any(|other| same(group, other))) {
        all.push(of(group, Change::of(name, "removed", "", "")));
    }
}

/// A group, as a line says it.
fn called(groups: &[GroupPlan], group: Option<GroupId>) -> String {
    group.map_or("none".to_owned(), |group| groups[group.0 as usize].name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, RealFiles};

    const BASE: &str = "[device.fast]
kind = \"null\"
size = \"1MiB\"
[tenant.a]
max-iops = 500
[tenant.b]
[export.a]
device = \"fast\"
tenant = \"a\"
size = \"256KiB\"
max-bytes-per-s = \"10MiB\"
nbd = \"unix:/a\"
[export.b]
device = \"fast\"
tenant = \"b\"
offset = \"512KiB\"
size = \"256KiB\"
nbd = \"unix:/b\"
";

    fn plan(text: &str) -> Plan {
        Config::parse("c.toml", text).and_then(|config| config.check(&RealFiles)).unwrap()
    }

    /// The lines of a change from one text in the config to another one.
    fn lines(from: &str, to: &str) -> Vec<String> {
        assert!(BASE.contains(from), "{from}");
        lines_between(BASE, &BASE.replacen(from, to, 1))
    }

    fn lines_between(old: &str, new: &str) -> Vec<String> {
        let old = plan(old);
        let new = old.aligned(&plan(new), &crate::config::TakenPlaces::default()).unwrap();
        let new = Difference::between(&old, &new);
        let all = of(&old, &Names::new(&old), &new, &|_, device| {
            [old.devices.values().next().unwrap(), device].map(|it| it.config.policy.options(1).kind)
        });
        all.iter().map(Change::sentence).collect()
    }

    #[test]
    fn a_line_names_each_thing_that_differs_and_no_other() {
        let none: [&str; 0] = [];
        assert_eq!(lines("[device", "# the same\n[device"), none);
        assert_eq!(lines("max-iops = 500", "max-iops = 9"), ["tenant a: caps 500 requests/s -> 9 requests/s"]);
        assert_eq!(lines("max-bytes-per-s = \"10MiB\"\n", ""), ["export a: caps 10MiB/s -> none"]);
        assert_eq!(lines("tenant = \"b\"", "tenant = \"b\"\nmax-iops = 9"), ["export b: caps none -> 9 requests/s"]);
        assert_eq!(lines("[tenant.b]", "[tenant.c]\n[tenant.b]"), none, "a tenant without exports is nowhere");
        assert_eq!(lines("[tenant.b]", "[tenant.b]\nweight = 7"), ["tenant b on device fast: weight 100 -> 7"]);
        assert_eq!(
            lines("size = \"256KiB\"\nmax", "size = \"128KiB\"\nmax"),
            ["export a of tenant a on device fast: size 256KiB -> 128KiB"]
        );
        assert_eq!(
            lines("\"unix:/b\"", "[\"unix:/a\", \"unix:/b\"]"),
            ["export b of tenant b on device fast: addresses nbd at unix:/b -> nbd at unix:/a and nbd at unix:/b"]
        );
        // An export of another tenant is another export; the caps of its name are the same.
        assert_eq!(
            lines("tenant = \"b\"", "tenant = \"a\""),
            [
                "tenant b on device fast: removed",
                "export b of tenant a on device fast: added",
                "export b of tenant b on device fast: removed"
            ]
        );
    }
    #[test]
    fn of_several_things_of_a_kind_each_has_its_line() {
        let two = BASE.replace("[export.b]\ndevice = \"fast\"", "[export.b]\ndevice = \"slow\"");
        let two = two.replacen("[tenant.a]", "[device.slow]\nkind = \"null\"\nsize = \"1MiB\"\n[tenant.a]", 1);
        let none = "[device.new]\nkind = \"null\"\nsize = \"1MiB\"\n[tenant.c]\n[export.c]\ndevice = \"new\"\ntenant = \"c\"\nnbd = \"unix:/c\"\n";
        let gone: Vec<String> =
            lines_between(&two, none).into_iter().filter(|line| line.starts_with("device")).collect();
        assert_eq!(gone, ["device new: added", "device fast: removed", "device slow: removed"]);
        let heavy =
            BASE.replace("[tenant.a]", "[tenant.a]\nweight = 7").replace("[tenant.b]", "[tenant.b]\nweight = 8");
        assert_eq!(
            lines_between(BASE, &heavy),
            ["tenant a on device fast: weight 100 -> 7", "tenant b on device fast: weight 100 -> 8"]
        );
        let grouped = |weights: [u32; 2]| {
            let groups = format!("[group.x]\nweight = {}\n[group.y]\nweight = {}\n[device", weights[0], weights[1]);
            let text = BASE.replacen("[device", &groups, 1).replace("[tenant.a]", "[tenant.a]\ngroup = \"x\"");
            text.replace("[tenant.b]", "[tenant.b]\ngroup = \"y\"")
        };
        let of_groups = |old: &str, new: &str| -> Vec<String> {
            lines_between(old, new).into_iter().filter(|line| line.starts_with("group")).collect()
        };
        let of = |rest: [&str; 2]| {
            ["x", "y"]
                .iter()
                .zip(rest)
                .map(|(name, rest)| format!("group {name} on device fast: {rest}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(of_groups(&grouped([1, 2]), &grouped([3, 4])), of(["weight 1 -> 3", "weight 2 -> 4"]));
        assert_eq!(of_groups(BASE, &grouped([1, 2])), of(["added", "added"]));
        assert_eq!(of_groups(&grouped([1, 2]), BASE), of(["removed", "removed"]));
    }
}
