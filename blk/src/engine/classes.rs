//! The seam for policies that leave the arbitration to the device: which policy does a device run first?
//!
//! Such a policy needs class queues that the device serves by their weights, so a program that has one finds out before
//! any worker starts, and the result is kept.

use super::{DeviceOptions, Engine};
use crate::clock::Clock;
use mqfq_sched::policy::PolicyOptions;
use std::sync::Arc;

/// Chooses a device's first policy, while the device is not in use. Its error is one sentence: the device has not what
/// its policy needs, or has no queues to measure it with.
pub type FirstPolicy = Arc<dyn Fn(&DeviceOptions, Clock) -> Result<Settled, String> + Send + Sync>;

/// A device's first policy, and why.
#[derive(Clone, Debug)]
pub struct Settled {
    /// [`DeviceOptions::policy`], or the one in its place if the device lacks what that one needs.
    pub policy: PolicyOptions,
    /// Effect of the class queues' weights, if it was measured.
    pub finding: Option<Finding>,
    /// Why it is another policy: half a sentence.
    pub fell_back: Option<String>,
}

/// The ratio, and its quotient by the ratio under equal weights, from which on weights have an effect.
const EFFECT_MIN: f64 = 4.0;

/// Effect of the weights of a device's class queues, as measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Finding {
    /// Reads of the high stream per read of the low one that the weights ask for.
    pub expected_ratio: f64,
    /// Reads of the high stream per read of the low one under these weights. (A low stream without a read counts as one
    /// read.)
    pub weighted_ratio: f64,
    /// Ratio of these reads under equal weights.
    pub equal_ratio: f64,
    /// Reads that each stream kept under way.
    pub depth: u16,
    /// Reads that the device was asked for.
    pub requests: u64,
    /// Time that it took, on the caller's clock.
    pub elapsed_ns: u64,
}

impl Finding {
    /// The verdict.
    pub fn has_effect(&self) -> bool {
        self.weighted_ratio >= EFFECT_MIN * self.equal_ratio.max(1.0)
    }

    /// The finding as one sentence for the user.
    pub fn sentence(&self, device: &str) -> String {
        let Finding { expected_ratio, weighted_ratio, equal_ratio, requests, .. } = self;
        let verdict = if self.has_effect() { "works" } else { "has no effect" };
        format!(
            "device {device}: weighted round robin {verdict} (high:low weights {expected_ratio:.0}:1 gave {weighted_ratio:.2}:1, \
             equal ones {equal_ratio:.2}:1, over {requests} reads)"
        )
    }
}

impl DeviceOptions {
    /// The device's first policy; without a clock the configured one.
    pub(super) fn settle(&self, clock: Option<Clock>) -> Result<Settled, String> {
        match (&self.first_policy, clock) {
            (Some(choose), Some(clock)) => choose(self, clock),
            _ => Ok(Settled { policy: self.policy, finding: None, fell_back: None }),
        }
    }
}

impl Engine {
    /// A device's first policy, and why.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn settled(&self, device: usize) -> Settled {
        self.of(device, |current| current.settled.clone())
    }

    /// A device's queues are sets of class queues, so that it can run a policy that needs them.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn has_class_queues(&self, device: usize) -> bool {
        self.shared_device(device).queues.map().is_of_sets()
    }
}
