//! Where things of a plan are, by name.
//!
//! Answers: which export, which flows, which listener is meant, without a look at all of them? Made of a plan when the
//! first narrow change after another one asks, and kept by those that follow (`narrow.rs`).
//!
//! Invariant: it says of the plan what [`Names::new`] would say of it.

use crate::config::Plan;
use mqfq_blk::slots::Slot;
use std::collections::{BTreeMap, BTreeSet};

/// A tenant's flow on a device, and how many exports it has there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowOf {
    /// Of the device's flows.
    pub flow: Slot,
    /// Never 0.
    pub exports: usize,
}

/// Of a plan without groups, where each tenant is one flow on each of its devices.
#[derive(PartialEq, Eq, Default, Debug)]
pub struct Names {
    /// By name.
    pub exports: BTreeMap<String, Slot>,
    /// By tenant, then by device.
    pub flows: BTreeMap<String, BTreeMap<Slot, FlowOf>>,
    /// By tenant.
    pub of_tenant: BTreeMap<String, BTreeSet<Slot>>,
    /// By front end and text, the place in [`Plan::listeners`].
    pub listeners: BTreeMap<String, usize>,
}

impl Names {
    /// Those of `plan`. `None`: it has groups.
    pub fn new(plan: &Plan) -> Option<Names> {
        let is_flat = |flow: &crate::config::FlowPlan| flow.export.is_none() && flow.group.is_none();
        if plan.devices.values().any(|device| !device.groups.is_empty() || !device.flows.values().all(is_flat)) {
            return None;
        }
        let mut names = Names::default();
        for (slot, export) in plan.exports.iter() {
            let flow = &plan.devices[export.device].flows[export.flow];
            names.come(&export.name, &flow.tenant, slot, (export.device, export.flow));
        }
        let listeners = plan.listeners.iter().enumerate();
        names.listeners = listeners.map(|(at, (address, _))| (format!("{address:?}"), at)).collect();
        Some(names)
    }

    /// An export of a tenant more, which uses the tenant's `flow` on `device`.
    pub fn come(&mut self, export: &str, tenant: &str, slot: Slot, (device, flow): (Slot, Slot)) {
        self.exports.insert(export.to_owned(), slot);
        let flows = self.flows.entry(tenant.to_owned()).or_default();
        flows.entry(device).or_insert(FlowOf { flow, exports: 0 }).exports += 1;
        self.of_tenant.entry(tenant.to_owned()).or_default().insert(slot);
    }

    /// An export of a tenant on `device` less.
    pub fn go(&mut self, export: &str, tenant: &str, slot: Slot, device: Slot) {
        self.exports.remove(export);
        if let Some(flows) = self.flows.get_mut(tenant) {
            if let Some(flow) = flows.get_mut(&device) {
                flow.exports -= 1;
            }
            flows.retain(|_, flow| flow.exports > 0);
            if flows.is_empty() {
                self.flows.remove(tenant);
            }
        }
        if let Some(exports) = self.of_tenant.get_mut(tenant) {
            exports.remove(&slot);
            if exports.is_empty() {
                self.of_tenant.remove(tenant);
            }
        }
    }
}
