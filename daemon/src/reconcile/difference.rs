//! What is different between what runs and what is to run, for those who asked for it.
//!
//! Answers: which lines does a reload print? One for each thing that comes or goes, and one for each key of a thing
//! that stays; both plans are in the same slots (`config/change.rs`).

use crate::config::caps::{self, Whose};
use crate::config::{DevicePlan, ExportPlan, FlowPlan, GroupPlan, Plan, ServerConfig};
use mqfq_blk::cap::CapLimits;
use mqfq_blk::hierarchy::GroupId;
use mqfq_blk::slots::Slot;
use mqfq_blk::{PolicyKind, Weight};
use mqfq_config::size;
use mqfq_front::identity::{Access, Identity};
use serde::Serialize;
use std::collections::BTreeSet;

/// Something that was changed.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// `None`: it is about the server, or about a cap, which a tenant has on all its devices.
    device: Option<String>,
    /// `None`: it is about the device's policy, or about a group.
    tenant: Option<String>,
    /// Which export of the tenant, if each is a flow.
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
    /// A device's `key` is another one.
    fn of(device: &str, key: &'static str, from: impl ToString, to: impl ToString) -> Change {
        Change { device: Some(device.to_owned()), ..Change::of_server(key, from, to) }
    }

    fn of_server(key: &'static str, from: impl ToString, to: impl ToString) -> Change {
        let (from, to) = (from.to_string(), to.to_string());
        Change { device: None, tenant: None, export: None, group: None, key, from, to }
    }

    /// In words.
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

/// What a device runs, and what it is to run by its new plan: a fallback, if it has not what the configured one needs.
pub type Policies<'a> = &'a dyn Fn(Slot, &DevicePlan) -> [PolicyKind; 2];

/// All that is different in `new`.
pub fn between(old: &Plan, new: &Plan, policies: Policies<'_>) -> Vec<Change> {
    let mut all = Vec::new();
    let (server, other) = (&old.server, &new.server);
    let mut of_server = |key, from: String, to: String| {
        if from != to {
            all.push(Change::of_server(key, from, to));
        }
    };
    of_server("connections", server.connections_max.to_string(), other.connections_max.to_string());
    of_server("memory", size::display(server.memory_bytes), size::display(other.memory_bytes));
    let memory = |server: &ServerConfig| size::display(server.connection_memory_bytes);
    of_server("connection-memory", memory(server), memory(other));
    of_server("handshake-s", server.handshake_s.to_string(), other.handshake_s.to_string());
    of_server("stall-s", server.stall_s.to_string(), other.stall_s.to_string());
    let mode = |server: &ServerConfig| format!("{:o}", server.socket_mode);
    of_server("socket-mode", mode(server), mode(other));
    of_server("drain-s", server.drain_s.to_string(), other.drain_s.to_string());
    if old.trust.material != new.trust.material {
        of_server("tls", "as read before".to_owned(), "as read now".to_owned());
    }
    let of_control = |plan: &Plan| plan.trust.control.as_ref().map(|(_, material)| material.clone());
    if of_control(old) != of_control(new) {
        of_server("control-tls", "as read before".to_owned(), "as read now".to_owned());
    }
    for (slot, device) in new.devices.iter() {
        match old.devices.get(slot) {
            None => all.push(Change::of(&device.config.name, "added", "", "")),
            Some(before) => {
                if before.config.policy != device.config.policy {
                    let [from, to] = policies(slot, device).map(PolicyKind::name);
                    all.push(Change::of(&device.config.name, "policy", from, to));
                }
                between_devices(before, device, &mut all);
            }
        }
    }
    for (slot, export) in new.exports.iter() {
        let of = |change| of_export(new, export, change);
        let name = &new.devices[export.device].config.name;
        match old.exports.get(slot) {
            None => all.push(of(Change::of(name, "added", "", ""))),
            Some(before) => {
                let mut keys = Vec::new();
                between_exports(before, export, |key, from, to| keys.push(of(Change::of(name, key, from, to))));
                all.append(&mut keys);
            }
        }
        if let Some(before) = old.exports.get(slot).filter(|before| before.addresses != export.addresses) {
            // With the front end: two of them write the same socket alike.
            let written = |export: &ExportPlan| {
                export.addresses.iter().map(|address| format!("{address:?}")).collect::<BTreeSet<_>>()
            };
            let (from, to) = (written(before), written(export));
            let words = |all: &BTreeSet<String>| all.iter().cloned().collect::<Vec<_>>().join(" and ");
            if from != to {
                all.push(of(Change::of(name, "addresses", words(&from), words(&to))));
            }
        }
    }
    for (_, export) in old.exports.iter().filter(|(slot, _)| new.exports.get(*slot).is_none()) {
        all.push(of_export(old, export, Change::of(&old.devices[export.device].config.name, "removed", "", "")));
    }
    for (_, device) in old.devices.iter().filter(|(slot, _)| new.devices.get(*slot).is_none()) {
        all.push(Change::of(&device.config.name, "removed", "", ""));
    }
    for (whose, from, to) in caps::changed(old, new) {
        all.push(of_caps(whose, from, to));
    }
    all
}

/// Somebody's caps are others.
pub fn of_caps(whose: Whose, from: CapLimits, to: CapLimits) -> Change {
    let (tenant, export) = match whose {
        Whose::Tenant(tenant) => (Some(tenant), None),
        Whose::Export(export) => (None, Some(export)),
    };
    Change { tenant, export, ..Change::of_server("caps", caps::shown(from), caps::shown(to)) }
}

/// A tenant has another weight on a device.
pub fn of_weight(device: &str, tenant: &str, from: Weight, to: Weight) -> Change {
    Change { tenant: Some(tenant.to_owned()), ..Change::of(device, "weight", from.get(), to.get()) }
}

fn of_export(plan: &Plan, export: &ExportPlan, change: Change) -> Change {
    let tenant = plan.devices[export.device].flows[export.flow].tenant.clone();
    Change { tenant: Some(tenant), export: Some(export.name.clone()), ..change }
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
        read_only,
        is_shared: _,
        keep_data,
        description,
        payload_bytes_max,
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
}

/// Who may have an export, in a few words.
fn shown_clients(clients: &Access) -> String {
    let Access { identities, uids, gids } = clients;
    let names = identities.iter().map(Identity::to_string);
    let users = uids.iter().map(|uid| format!("uid:{uid}"));
    let all: Vec<String> = names.chain(users).chain(gids.iter().map(|gid| format!("gid:{gid}"))).collect();
    if all.is_empty() { "anybody".to_owned() } else { all.join(" ") }
}

fn between_devices(old: &DevicePlan, new: &DevicePlan, all: &mut Vec<Change>) {
    let name = new.config.name.as_str();
    for (slot, flow) in new.flows.iter() {
        let of = |change| Change { tenant: Some(flow.tenant.clone()), export: flow.export.clone(), ..change };
        let Some(before) = old.flows.get(slot) else {
            all.push(of(Change::of(name, "added", "", "")));
            continue;
        };
        let mut key = |key, from: String, to: String| {
            if from != to {
                all.push(of(Change::of(name, key, from, to)));
            }
        };
        let FlowPlan { tenant: _, export: _, weight, group, class, staged, memory_bytes, caps: _ } = before;
        key("weight", weight.get().to_string(), flow.weight.get().to_string());
        key("group", called(&old.groups, *group), called(&new.groups, flow.group));
        key("class", class.name().to_owned(), flow.class.name().to_owned());
        key("staged-requests", staged.requests_max.to_string(), flow.staged.requests_max.to_string());
        key("staged-bytes", size::display(staged.bytes_max), size::display(flow.staged.bytes_max));
        key("memory", size::display(*memory_bytes), size::display(flow.memory_bytes));
    }
    for (_, flow) in old.flows.iter().filter(|(slot, _)| new.flows.get(*slot).is_none()) {
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

/// The engine has nothing to do for the flows and groups of `new`.
pub fn same_flows(old: &DevicePlan, new: &DevicePlan) -> bool {
    let same = |one: &FlowPlan, other: &FlowPlan| {
        let of = |flow: &FlowPlan| (flow.weight, flow.group, flow.class, flow.staged);
        of(one) == of(other)
    };
    old.groups == new.groups
        && old.flows.len() == new.flows.len()
        && new.flows.iter().all(|(slot, flow)| old.flows.get(slot).is_some_and(|before| same(before, flow)))
}
