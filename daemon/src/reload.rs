//! SIGHUP: the config is read again, and what of it can be changed while serving is changed.

use crate::config::{Config, Plan, RealFiles};
use crate::output::Output;
use mqfq_blk::engine::Engine;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Something that was changed.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Change {
    device: String,
    /// `None`: it is about the device's policy, or about a group.
    tenant: Option<String>,
    /// Which export of the tenant, if each is a flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    export: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    /// `policy` or `weight`.
    key: &'static str,
    from: String,
    to: String,
}

impl Change {
    /// In words.
    pub fn sentence(&self) -> String {
        let Change { device, tenant, export, group, key, from, to } = self;
        let of = match (tenant, export, group) {
            (Some(tenant), Some(export), _) => format!("export {export} of tenant {tenant} on "),
            (Some(tenant), ..) => format!("tenant {tenant} on "),
            (.., Some(group)) => format!("group {group} on "),
            _ => String::new(),
        };
        if from == to {
            return format!("{of}device {device}: {key} {to}, with other settings");
        }
        format!("{of}device {device}: {key} {from} -> {to}")
    }
}

/// Reads the config at `path` again and changes `engine`, which runs `plan`, accordingly; `plan` is what it runs then.
/// What was changed is pushed to `done`, also if something that came after could not be.
///
/// # Errors
/// One sentence: what is wrong with the config or cannot be changed while serving (then nothing was changed), or a
/// device that did not let go of its requests (then it and those after it are as before).
pub fn reload(
    path: &Path,
    plan: &mut Plan,
    engine: &Engine,
    output: &Output,
    done: &mut Vec<Change>,
) -> Result<(), String> {
    let mut new = Config::read(path)?.check(&RealFiles).map_err(|error| error.to_string())?;
    new.warnings.drain(..).for_each(|warning| output.note(&warning));
    let changes = plan.changes_to(&new)?;
    for (device, flow, weight) in changes.weights {
        engine.set_weight(device.place(), flow.into(), weight);
        let device = &mut plan.devices[device];
        let old = &mut device.flows[flow];
        let (from, to) = (old.weight.get().to_string(), weight.get().to_string());
        old.weight = weight;
        let (tenant, export) = (Some(old.tenant.clone()), old.export.clone());
        done.push(Change { device: device.config.name.clone(), tenant, export, group: None, key: "weight", from, to });
    }
    for (device, group, weight) in changes.group_weights {
        engine.set_group_weight(device.place(), group, weight);
        let device = &mut plan.devices[device];
        let old = &mut device.groups[group.0 as usize];
        let (from, to) = (old.weight.get().to_string(), weight.get().to_string());
        old.weight = weight;
        let (tenant, group) =
            if old.is_tenant { (Some(old.name.clone()), None) } else { (None, Some(old.name.clone())) };
        done.push(Change { device: device.config.name.clone(), tenant, export: None, group, key: "weight", from, to });
    }
    let patience = Duration::from_secs(plan.server.drain_s);
    for (slot, policy) in changes.policies {
        let device = slot.place();
        let (from, wanted) = (engine.policy(device).kind, policy.options(engine.workers()));
        // What would start on it now.
        let fallback = policy.fallback(engine.workers()).filter(|_| !engine.has_class_queues(device));
        let options = fallback.filter(|_| wanted.kind.is_direct()).unwrap_or(wanted);
        engine.set_policy(device, options, patience)?;
        let config = &mut plan.devices[slot].config;
        config.policy = policy;
        let (from, to) = (from.name().to_owned(), options.kind.name().to_owned());
        done.push(Change {
            device: config.name.clone(),
            tenant: None,
            export: None,
            group: None,
            key: "policy",
            from,
            to,
        });
    }
    Ok(())
}
