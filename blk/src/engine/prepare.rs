//! The seam for devices with other queues than one for each worker: which device does an engine serve, under which
//! policy?
//!
//! A policy that leaves the arbitration to the device needs class queues that the device serves by their weights, so a
//! program that has one finds out before any worker starts, and the result is kept. A device whose workers share queues
//! must know the workers.

use super::{DeviceOptions, Engine};
use crate::worker::clock::Clock;
use mqfq_sched::policy::{PolicyKind, PolicyOptions};
use mqfq_sched::topology::Topology;
use std::sync::Arc;

/// Chooses the first policy of a device that is not in use, for these workers, and may put another device in its place,
/// over its queues. Without a clock nothing is measured. Its error is one sentence that follows "device NAME: ": the
/// device has not what its policy or the queues need.
pub type Prepare = Arc<dyn Fn(&mut DeviceOptions, &Topology, Option<Clock>) -> Result<Settled, String> + Send + Sync>;

/// A device's first policy, and why.
#[derive(Clone, Debug)]
pub struct Settled {
    /// [`DeviceOptions::policy`], or the one in its place if the device lacks what that one needs.
    pub policy: PolicyOptions,
    /// Effect of the class queues' weights, if it was measured.
    pub finding: Option<Finding>,
    /// Reason why it is another policy: half a sentence.
    pub fell_back: Option<String>,
}

impl Settled {
    /// The policy as configured, without a measurement.
    pub fn configured(policy: PolicyOptions) -> Settled {
        Settled { policy, finding: None, fell_back: None }
    }
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
    /// Prepares the device, and decides its first policy.
    pub(super) fn settle(&mut self, topology: &Topology, clock: Option<Clock>) -> Result<Settled, String> {
        match self.prepare.take() {
            Some(prepare) => prepare(self, topology, clock),
            None => Ok(Settled::configured(self.policy)),
        }
    }

    /// Checks that the device, as prepared, can run this policy.
    pub(super) fn check_policy(&self, kind: PolicyKind) -> Result<(), String> {
        if kind.is_direct() && !self.device.has_class_queues() {
            return Err(format!("policy {kind} needs class queues, and the device has none"));
        }
        if self.path.bypass && kind != PolicyKind::None && !kind.is_direct() {
            return Err(format!("policy {kind} stages requests, and this device's path has nowhere to keep them"));
        }
        Ok(())
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
        self.shared_device(device).device.has_class_queues()
    }
}
