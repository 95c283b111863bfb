//! The reports of `serve` when it is ready, and of `check` when it would be.

use super::prepare::Prepared;
use crate::config::family::{self, Relative};
use crate::in_force;
use crate::log_format::{About, Level};
use crate::output::Output;
use crate::upgrade::ReplacedReport;
use mqfq_blk::VSpan;
use mqfq_blk::engine::{Finding, Settled};
use mqfq_config::text::shown;
use mqfq_front::FRONT_ENDS;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The report of `serve` when it is ready, and of `check` when it would be.
#[derive(Serialize)]
struct ReadyReport<'a> {
    ready: bool,
    pid: u32,
    workers: usize,
    devices: Vec<DeviceReady>,
    exports: Vec<ExportReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<&'a ReplacedReport>,
}

/// The findings about a device before the first request.
#[derive(Serialize)]
struct DeviceReady {
    name: String,
    /// The policy that it runs.
    policy: &'static str,
    /// Initial D and T, as a person reads it; `null`: the policy has neither.
    in_force: Option<String>,
    /// Why that is not the policy that the config names.
    fell_back: Option<String>,
    /// `None`: nothing was to be found out, or nothing was found.
    wrr: Option<WrrReport>,
    /// The groups and their members, from the top.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<Relative>,
}

/// The effect of weighted round robin on a device.
#[derive(Serialize)]
struct WrrReport {
    has_effect: bool,
    /// Ratio by high to low weights, as measured, and measured with equal weights.
    expected_ratio: f64,
    weighted_ratio: f64,
    equal_ratio: f64,
    requests: u64,
    elapsed_ns: u64,
}

impl From<Finding> for WrrReport {
    fn from(finding: Finding) -> WrrReport {
        let Finding { expected_ratio, weighted_ratio, equal_ratio, requests, elapsed_ns, .. } = finding;
        let has_effect = finding.has_effect();
        WrrReport { has_effect, expected_ratio, weighted_ratio, equal_ratio, requests, elapsed_ns }
    }
}

#[derive(Serialize)]
struct ExportReport {
    name: String,
    device: String,
    policy: &'static str,
    /// `relaxed` or `exact`; this and the next four: `null` for a policy that has but one form.
    form: Option<&'static str>,
    quantum_bytes: Option<u64>,
    lease_bytes: Option<u64>,
    token_batch: Option<u32>,
    /// Requests of a worker on the device from which on it gives tokens to others.
    token_share: Option<u32>,
    tenant: String,
    weight: u16,
    /// The weight is the export's among those of its tenant.
    #[serde(skip)]
    is_flow: bool,
    class: &'static str,
    offset_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
    size_bytes: u64,
    read_only: bool,
    /// By front end.
    #[serde(flatten)]
    addresses: BTreeMap<&'static str, Vec<String>>,
}

impl Prepared {
    /// Reports the findings about devices, for people.
    pub(super) fn say_settled(&self, settled: &[Settled], output: &Output) {
        for (name, settled) in self.device_names().iter().zip(settled) {
            if let Some(reason) = &settled.fell_back {
                let sentence = format!("device {name}: {reason}; it runs policy {}", settled.policy.kind);
                output.say(Level::Warning, About::device(name), &sentence);
            } else if let Some(finding) = &settled.finding {
                output.say(Level::Notice, About::device(name), &finding.sentence(name));
            }
        }
    }

    /// A line per export. `addresses` are those of the listeners, with the ports that the kernel chose.
    pub(super) fn say(
        &self,
        ready: bool,
        addresses: &[String],
        settled: &[Settled],
        replaced: Option<&ReplacedReport>,
        output: &Output,
    ) {
        let nowhere: BTreeMap<&str, Vec<String>> =
            FRONT_ENDS.iter().map(|front_end| (front_end.name(), Vec::new())).collect();
        let mut served_at = vec![nowhere; self.plan.exports.places()];
        for ((at, slots), address) in self.plan.listeners.iter().zip(addresses) {
            let name = at.front_end().name();
            slots.iter().for_each(|slot| served_at[slot.place()].entry(name).or_default().push(address.clone()));
        }
        let exports = self.plan.exports.iter().map(|(slot, export)| {
            let device = &self.plan.devices[export.device];
            let flow = &device.flows[export.flow];
            let policy = settled[export.device.place()].policy;
            let is_exact = (policy.quantum, policy.lease) == (VSpan(0), VSpan(0));
            let form = policy.kind.has_window().then_some(if is_exact { "exact" } else { "relaxed" });
            ExportReport {
                name: export.name.clone(),
                device: device.config.name.clone(),
                policy: policy.kind.name(),
                form,
                quantum_bytes: form.map(|_| policy.quantum.bytes()),
                lease_bytes: form.map(|_| policy.lease.bytes()),
                token_batch: form.map(|_| policy.token_batch),
                token_share: form.map(|_| policy.token_share),
                tenant: flow.tenant.clone(),
                weight: flow.weight.get(),
                is_flow: flow.export.is_some(),
                class: flow.class.name(),
                offset_bytes: if export.path.is_some() { 0 } else { export.offset_bytes },
                path: export.path.clone(),
                size_bytes: export.size_bytes,
                read_only: export.read_only,
                addresses: std::mem::take(&mut served_at[slot.place()]),
            }
        });
        let devices =
            self.device_names().into_iter().zip(settled).map(|(name, Settled { policy, finding, fell_back })| {
                let wrr = finding.map(WrrReport::from);
                let in_force = in_force::at_start(policy);
                let (fell_back, groups) = (fell_back.clone(), Vec::new());
                DeviceReady { name, policy: policy.kind.name(), in_force, fell_back, wrr, groups }
            });
        let groups = self.plan.devices.values().map(family::relatives);
        let devices = devices.zip(groups).map(|(device, groups)| DeviceReady { groups, ..device });
        let report = ReadyReport {
            ready,
            pid: std::process::id(),
            workers: self.workers,
            devices: devices.collect(),
            exports: exports.collect(),
            replaced,
        };
        if output.is_json() {
            return output.report_json(&report);
        }
        let mut text = String::new();
        for export in &report.exports {
            text += &format!(
                "export {}: {} bytes at {} of device {} ({}{}), tenant {}{} of weight {}{}, on {}\n",
                shown(&export.name),
                export.size_bytes,
                export.offset_bytes,
                export.device,
                export.policy,
                export.form.map_or(String::new(), |form| format!(", {form}")),
                export.tenant,
                if export.is_flow { ", a flow" } else { "" },
                export.weight,
                if export.read_only { ", read-only" } else { "" },
                export.addresses.values().flatten().map(|address| shown(address)).collect::<Vec<_>>().join(" and "),
            );
        }
        for DeviceReady { name, in_force, .. } in &report.devices {
            if let Some(sentence) = in_force {
                text += &format!("device {name}: {sentence}\n");
            }
        }
        for DeviceReady { name, groups, .. } in report.devices.iter().filter(|device| !device.groups.is_empty()) {
            text += &format!("groups of device {}, with their part while everybody competes:\n", shown(name));
            for Relative { name, depth, weight, share } in groups {
                text +=
                    &format!("{:indent$}{name}: weight {weight}, {:.2}%\n", "", share * 100.0, indent = 2 + 2 * depth);
            }
        }
        let (exports, workers) = (report.exports.len(), report.workers);
        if let Some(ReplacedReport { pid, connections, pause_us }) = report.replaced {
            text += &format!("replaced: process {pid}, {connections} connections, which waited {pause_us} us\n");
        }
        text += &if ready {
            format!("ready: {exports} exports, {workers} workers, pid {}\n", report.pid)
        } else {
            format!("good: {exports} exports, {workers} workers\n")
        };
        output.report(text);
    }
}
