//! Which policy does a scenario name?

use super::scenario::Scenario;
use mqfq_cpu::cfs::{Cfs, CfsOptions};
use mqfq_cpu::scheduler::Scheduler;
use mqfq_cpu::xen_credit::{XenCredit, XenCreditOptions};

/// The policies with their options.
#[derive(Clone, PartialEq, Debug)]
pub enum SchedulerKind {
    /// Linux's.
    Cfs(CfsOptions),
    /// The same for virtual CPUs, which cannot move at once.
    Kvm(CfsOptions),
    /// Xen's.
    XenCredit(XenCreditOptions),
}

impl SchedulerKind {
    /// What a scenario may name.
    pub const NAMES: &[&str] = &["cfs", "kvm", "xen-credit"];

    /// The policy of this name as it is without further options.
    pub fn of(name: &str) -> Option<SchedulerKind> {
        match name {
            "cfs" => Some(SchedulerKind::Cfs(CfsOptions::new())),
            "kvm" => Some(SchedulerKind::Kvm(CfsOptions::kvm())),
            "xen-credit" => Some(SchedulerKind::XenCredit(XenCreditOptions::new())),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            SchedulerKind::Cfs(_) => "cfs",
            SchedulerKind::Kvm(_) => "kvm",
            SchedulerKind::XenCredit(_) => "xen-credit",
        }
    }
}

/// The scenario's policy.
///
/// # Errors
/// One sentence.
pub fn make(scenario: &Scenario) -> Result<Box<dyn Scheduler>, String> {
    let (machine, tasks) = (&scenario.machine, scenario.tasks());
    Ok(match &scenario.scheduler {
        SchedulerKind::Cfs(options) | SchedulerKind::Kvm(options) => Box::new(Cfs::new(machine, &tasks, *options)?),
        SchedulerKind::XenCredit(options) => Box::new(XenCredit::new(machine, &tasks, *options)?),
    })
}
