//! The steps of a change on the engine: devices, flows, groups and policies that come, change, or go.
//!
//! Steps that may fail come first and are taken back one by one; things go once their clients are gone.

use super::pending_io::LOOK;
use super::*;
use mqfq_blk::engine::Grouping;

/// A step on the engine that was made, and may have to be taken back.
pub(super) enum Made {
    Device(Slot),
    Flows(Slot),
    Policy(Slot),
}

impl Reconciler {
    /// Gives a device that held still during its change the flows and the policy of the plan.
    pub(super) fn catch_up(&self, slot: Slot) -> Result<(), String> {
        let plan = &self.plan.devices[slot];
        let policy = live::policy(plan, self.engine.workers(), self.engine.has_class_queues(slot.place()));
        let change_policy = || match self.engine.policy(slot.place()) == policy {
            true => Ok(()),
            false => self.engine.set_policy(slot.place(), policy, LOOK),
        };
        // As in `try_engine`.
        if !plan.groups.is_empty() {
            change_policy()?;
        }
        self.engine.set_flows(slot.place(), &live::flows(plan), &live::grouping(plan), LOOK)?;
        if plan.groups.is_empty() { change_policy() } else { Ok(()) }
    }

    /// The steps that may fail: devices and flows that come, and policies. Flows that go are still there after it.
    pub(super) fn try_engine(
        &self,
        new: &Difference,
        devices: &BTreeMap<Slot, Arc<dyn Device>>,
        made: &mut Vec<Made>,
    ) -> Result<(), String> {
        let workers = self.engine.workers();
        for slot in new.devices.keys().chain(new.flows.keys()).copied().collect::<BTreeSet<Slot>>() {
            let section = new.devices.get(&slot).map(Option::as_ref);
            let (before, section) = match (self.plan.devices.get(slot), section) {
                (_, Some(None)) => continue,
                (Some(before), section) => (before, section.flatten()),
                (None, section) => {
                    let device = section.flatten().expect("a device that comes has a section");
                    let options = live::device_options(device, devices[&slot].clone(), workers);
                    self.engine.add_device(slot.place(), &options)?;
                    made.push(Made::Device(slot));
                    continue;
                }
            };
            // A policy with groups comes before groups, and groups go before a policy without them.
            let policy = section.filter(|device| before.config.policy != device.config.policy);
            let change_policy = |has_groups: bool, made: &mut Vec<Made>| {
                let Some(device) = policy.filter(|device| device.groups.is_empty() != has_groups) else {
                    return Ok(());
                };
                let policy = live::policy(device, workers, self.engine.has_class_queues(slot.place()));
                self.engine.set_policy(slot.place(), policy, self.patience())?;
                made.push(Made::Policy(slot));
                Ok::<(), String>(())
            };
            change_policy(true, made)?;
            let come = |(place, flow): (&Slot, &Option<FlowPlan>)| {
                let flow = flow.as_ref()?;
                let is_told = before.flows.get(*place).is_none_or(|before| !same_flow(before, flow));
                is_told.then(|| (place.place(), Some(live::flow(flow))))
            };
            let flows: BTreeMap<_, _> = new.flows.get(&slot).into_iter().flatten().filter_map(come).collect();
            if !flows.is_empty() || section.is_some_and(|device| device.groups != before.groups) {
                let grouping = section.map(|device| live::grouping(&with_those_that_go(before, device)));
                self.engine.change_flows(slot.place(), &flows, grouping.as_ref(), self.patience())?;
                made.push(Made::Flows(slot));
            }
            change_policy(false, made)?;
        }
        Ok(())
    }

    /// Takes a step back. A failure is logged; the device then keeps what it has, which reports show, until a later
    /// proposal finds it moving.
    pub(super) fn take_back(&mut self, step: Made) {
        let patience = self.patience();
        let result = match step {
            Made::Device(slot) => {
                let gone = self.engine.remove_device(slot.place(), patience);
                // If it still hangs, its index stays taken until it has ended.
                self.pending_io.device(slot, gone.is_ok());
                gone
            }
            Made::Flows(slot) => {
                let plan = &self.plan.devices[slot];
                let back = self.engine.set_flows(slot.place(), &live::flows(plan), &live::grouping(plan), patience);
                back.inspect_err(|_| self.pending_io.follow(slot, false))
            }
            Made::Policy(slot) => {
                let has_class_queues = self.engine.has_class_queues(slot.place());
                let policy = live::policy(&self.plan.devices[slot], self.engine.workers(), has_class_queues);
                let back = self.engine.set_policy(slot.place(), policy, patience);
                back.inspect_err(|_| self.pending_io.follow(slot, false))
            }
        };
        self.report_error(result);
    }

    /// Flows and devices that go.
    pub(super) fn remove_from_engine(&mut self, before: &Difference, patience: Duration) {
        for (slot, gone) in &before.devices {
            let Some(gone) = gone.as_ref().filter(|_| self.plan.devices.get(*slot).is_none()) else { continue };
            let removed = self.engine.remove_device(slot.place(), patience);
            self.pending_io.device(*slot, removed.is_ok());
            self.pending_io.follow(*slot, true);
            self.ownership().forget((self.runtime.key_of)(gone).as_ref());
            self.report_error(removed);
        }
        for (slot, flows) in &before.flows {
            let device = &self.plan.devices[*slot];
            let gone = flows.keys().filter(|flow| device.flows.get(**flow).is_none());
            let gone: BTreeMap<_, _> = gone.map(|flow| (flow.place(), None)).collect();
            if !gone.is_empty() {
                let grouping: Option<Grouping> = before.devices.contains_key(slot).then(|| live::grouping(device));
                let gone = self.engine.change_flows(slot.place(), &gone, grouping.as_ref(), patience);
                let gone = gone.inspect_err(|_| self.pending_io.follow(*slot, false));
                self.report_error(gone);
            }
        }
    }
}

/// The engine has nothing to do for a flow that becomes `new`.
fn same_flow(old: &FlowPlan, new: &FlowPlan) -> bool {
    let of = |flow: &FlowPlan| (flow.weight, flow.group, flow.class, flow.staged, flow.goal.clone());
    of(old) == of(new)
}

/// A device with its new flows, and with those that go as they were.
fn with_those_that_go(before: &DevicePlan, plan: &DevicePlan) -> DevicePlan {
    let mut both = before.clone();
    let same_groups = before.groups.len() == plan.groups.len()
        && before
            .groups
            .iter()
            .zip(&plan.groups)
            .all(|(one, other)| (&one.name, one.parent) == (&other.name, other.parent));
    both.groups.clone_from(&plan.groups);
    both.flows = plan.flows.clone();
    let going: Vec<_> = before.flows.iter().filter(|(slot, _)| plan.flows.get(*slot).is_none()).collect();
    for (slot, flow) in going {
        let group = flow.group.filter(|_| same_groups);
        both.flows.put(slot, FlowPlan { group, ..flow.clone() });
    }
    both
}
