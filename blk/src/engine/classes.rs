//! May a device run a policy that leaves the arbitration to it, and what does it run if not?
//!
//! Such a policy needs class queues that the device serves by their weights.

use super::{DeviceOptions, Engine};
use mqfq_sched::policy::PolicyOptions;

/// What a device starts with.
#[derive(Clone, Debug)]
pub struct Settled {
    /// [`DeviceOptions::policy`], or [`DeviceOptions::fallback`] if the device has not what that one needs.
    pub policy: PolicyOptions,
    /// Why it is the fallback: half a sentence.
    pub fell_back: Option<String>,
}

impl DeviceOptions {
    /// Finds out which policy the device can run.
    ///
    /// # Errors
    /// One sentence: the device has not what its policy needs, and there is no fallback.
    pub(super) fn settle(&self) -> Result<Settled, String> {
        let DeviceOptions { name, device, policy, fallback, .. } = self;
        if let Some(fallback) = fallback.filter(|fallback| fallback.kind.is_direct()) {
            return Err(format!(
                "device {name}: policy {} needs what it is to replace: allowed is a policy that schedules by itself",
                fallback.kind
            ));
        }
        if !policy.kind.is_direct() || device.has_class_queues() {
            return Ok(Settled { policy: *policy, fell_back: None });
        }
        let reason = format!(
            "policy {} needs weighted round robin among the device's queues, and this one has none",
            policy.kind
        );
        match *fallback {
            Some(policy) => Ok(Settled { policy, fell_back: Some(reason) }),
            None => Err(format!("device {name}: {reason}; allowed is another policy, or one to fall back to")),
        }
    }
}

impl Engine {
    /// What a device started with, and why.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn settled(&self, device: usize) -> &Settled {
        &self.settled[device]
    }

    /// A device's queues are sets of class queues, so that it can run a policy that needs them.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn has_class_queues(&self, device: usize) -> bool {
        self.shared.devices[device].queues.map().is_of_sets()
    }
}
