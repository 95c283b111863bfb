//! What another config would change of a running one: policies and weights can change while tenants are served, all
//! else cannot.

use super::{DeviceConfig, DevicePlan, ExportPlan, Medium, Plan};
use crate::config::check::FlowPlan;

/// What differs and can be changed while serving.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Devices, by index, whose policy or its settings differ.
    pub policies: Vec<usize>,
    /// Tenants whose weight differs: indices of the device and of its flow.
    pub weights: Vec<(usize, usize)>,
}

impl Plan {
    /// What `new` would change.
    ///
    /// # Errors
    /// One sentence: the first thing that differs and that only a restart changes.
    pub fn changes_to(&self, new: &Plan) -> Result<Changes, String> {
        const RESTART: &str = "cannot change while serving, allowed is to change policies, their settings and weights, and the rest by a restart";
        let Plan { server, devices, exports, listeners, warnings: _ } = self;
        if *server != new.server {
            return Err(format!("[server] {RESTART}"));
        }
        if devices.len() != new.devices.len() {
            return Err(format!("the number of devices in use {RESTART}"));
        }
        let mut changes = Changes::default();
        for (index, (old, new)) in devices.iter().zip(&new.devices).enumerate() {
            if !same_device(old, new) {
                return Err(new.config.place.error(format!("this device {RESTART}")).to_string());
            }
            if old.config.policy != new.config.policy {
                changes.policies.push(index);
            }
            let flows = old.flows.iter().zip(&new.flows).enumerate();
            changes
                .weights
                .extend(flows.filter(|(_, (old, new))| old.weight != new.weight).map(|(flow, _)| (index, flow)));
        }
        if exports.len() != new.exports.len() {
            return Err(format!("the number of exports {RESTART}"));
        }
        if let Some((_, export)) = exports.iter().zip(&new.exports).find(|(old, new)| !same_export(old, new)) {
            return Err(export.place.error(format!("this export {RESTART}")).to_string());
        }
        if *listeners != new.listeners {
            return Err(format!("the addresses of exports {RESTART}"));
        }
        Ok(changes)
    }
}

/// The same but for the policy and weights. Every field is named, so that a new one is a decision.
fn same_device(old: &DevicePlan, new: &DevicePlan) -> bool {
    let DevicePlan { config, size_bytes, read_only: _, flows } = old;
    let DeviceConfig { name, place: _, medium, policy: _, queue_depth, queues, path, cost } = config;
    let same_flow = |(old, new): (&FlowPlan, &FlowPlan)| {
        let FlowPlan { tenant, weight: _, class, staged, memory_bytes } = old;
        (tenant, class, staged, memory_bytes) == (&new.tenant, &new.class, &new.staged, &new.memory_bytes)
    };
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
        && flows.len() == new.flows.len()
        && flows.iter().zip(&new.flows).all(same_flow)
}

fn same_export(old: &ExportPlan, new: &ExportPlan) -> bool {
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
    } = old;
    (name, device, flow, offset_bytes, size_bytes)
        == (&new.name, &new.device, &new.flow, &new.offset_bytes, &new.size_bytes)
        && (read_only, description, payload_bytes_max) == (&new.read_only, &new.description, &new.payload_bytes_max)
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
        let policy = Changes { policies: vec![0], ..Changes::default() };
        assert_eq!(changes("\"none\"", "\"mqfq\""), Ok(policy.clone()));
        assert_eq!(changes("\"none\"", "\"none\"\ndepth = 5"), Ok(policy));
        assert_eq!(changes("weight = 7", "weight = 8"), Ok(Changes { weights: vec![(0, 1)], ..Changes::default() }));
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
