//! The running server as a value, and how it becomes another one.
//!
//! Answers: what of a proposal can be had while tenants are served, in which order is it put in force, and what is left
//! if a part of it fails? Everybody who wants something else of a running server proposes a whole [`Plan`]: SIGHUP with
//! the config that it reads again, a control socket with the present one and a change in it. One function takes it
//! ([`Reconciler::propose`]).
//!
//! Invariant: a proposal is applied as a whole or not at all (I12 of `ARCHITECTURE.md`). Its number, its revision, and
//! who has made it are kept by the control plane (`control/src/ledger.rs`).

use crate::config::caps::{self, Whose};
use crate::config::{LiveCaps, Plan};
use mqfq_blk::engine::Engine;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Something that was changed.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// `None`: it is about a cap, which a tenant has on all its devices.
    device: Option<String>,
    /// `None`: it is about the device's policy, or about a group.
    tenant: Option<String>,
    /// Which export of the tenant, if each is a flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    export: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    /// `policy`, `weight` or `caps`.
    key: &'static str,
    from: String,
    to: String,
}

impl Change {
    /// A device's `key` is another one.
    fn of(device: &str, key: &'static str, from: impl ToString, to: impl ToString) -> Change {
        let (device, from, to) = (Some(device.to_owned()), from.to_string(), to.to_string());
        Change { device, tenant: None, export: None, group: None, key, from, to }
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
            return format!("{of}: {key} {from} -> {to}");
        };
        if from == to {
            return format!("{of}device {device}: {key} {to}, with other settings");
        }
        format!("{of}device {device}: {key} {from} -> {to}")
    }
}

/// Why nothing of a proposal was applied: at least one sentence.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Refusals(pub Vec<String>);

/// What runs, and the only one who changes it.
pub struct Reconciler {
    plan: Plan,
    engine: Arc<Engine>,
    caps: LiveCaps,
}

impl Reconciler {
    /// Of an engine that runs `plan`, whose clients pass `caps`.
    pub fn new(plan: Plan, engine: Arc<Engine>, caps: LiveCaps) -> Reconciler {
        Reconciler { plan, engine, caps }
    }

    /// What is in force.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Puts `plan` in force, as a whole or not at all, and says what is different; with `dry_run` it only says what
    /// would be. Blocks until it is in force, which may take as long as `server.drain-s` says.
    ///
    /// # Errors
    /// [`Refusals`]: what cannot be had while tenants are served, or what failed. All is as before.
    pub fn propose(&mut self, plan: &Plan, dry_run: bool) -> Result<Vec<Change>, Refusals> {
        let changes = self.plan.changes_to(plan).map_err(|sentence| Refusals(vec![sentence]))?;
        let mut said = Vec::new();
        let patience = Duration::from_secs(self.plan.server.drain_s);
        // Those that may fail come first, so that what was done of the others need not be taken back.
        let mut before = Vec::new();
        for (slot, policy) in changes.policies {
            let device = slot.place();
            let (was, wanted) = (self.engine.policy(device), policy.options(self.engine.workers()));
            // What would start on it now.
            let fallback = policy.fallback(self.engine.workers());
            let fallback = fallback.filter(|_| wanted.kind.is_direct() && !self.engine.has_class_queues(device));
            let options = fallback.unwrap_or(wanted);
            if !dry_run && let Err(sentence) = self.engine.set_policy(device, options, patience) {
                for (device, was) in before.into_iter().rev() {
                    // It ran a moment ago. A device that does not let go of its requests keeps the new one, which the
                    // sentence about it does not hide: `devices` of a report has what is in force.
                    drop(self.engine.set_policy(device, was, patience));
                }
                return Err(Refusals(vec![sentence]));
            }
            before.push((device, was));
            let config = &self.plan.devices[slot].config;
            said.push(Change::of(&config.name, "policy", was.kind.name(), options.kind.name()));
        }
        for (device, flow, weight) in changes.weights {
            let (name, old) = (&self.plan.devices[device].config.name, &self.plan.devices[device].flows[flow]);
            let change = Change::of(name, "weight", old.weight.get(), weight.get());
            said.push(Change { tenant: Some(old.tenant.clone()), export: old.export.clone(), ..change });
            if !dry_run {
                self.engine.set_weight(device.place(), flow.into(), weight);
                self.plan.devices[device].flows[flow].weight = weight;
            }
        }
        for (device, group, weight) in changes.group_weights {
            let (name, old) =
                (&self.plan.devices[device].config.name, &self.plan.devices[device].groups[group.0 as usize]);
            let change = Change::of(name, "weight", old.weight.get(), weight.get());
            let whose = Some(old.name.clone());
            let (tenant, group_name) = if old.is_tenant { (whose, None) } else { (None, whose) };
            said.push(Change { tenant, group: group_name, ..change });
            if !dry_run {
                self.engine.set_group_weight(device.place(), group, weight);
                self.plan.devices[device].groups[group.0 as usize].weight = weight;
            }
        }
        for (whose, limits) in changes.caps {
            let (from, to) = (caps::shown(self.caps.of_whom(&whose)), caps::shown(limits));
            if !dry_run {
                self.caps.set(&self.engine, &whose, limits);
                self.plan.set_caps(&whose, limits);
            }
            let (tenant, export) = match whose {
                Whose::Tenant(tenant) => (Some(tenant), None),
                Whose::Export(export) => (None, Some(export)),
            };
            said.push(Change { device: None, tenant, export, group: None, key: "caps", from, to });
        }
        if !dry_run && !said.is_empty() {
            self.plan.take_policies_of(plan);
        }
        Ok(said)
    }
}
