//! May a device run a policy that leaves the arbitration to it, and what does it run if not?
//!
//! Such a policy needs class queues that the device serves by their weights. That a device says so is not enough:
//! drives were sold that take the weights and ignore them, and on those the policy would share nothing out. So it is
//! measured before any worker starts ([`crate::probe`]), when nobody else uses the device, and what was found is kept.

use super::{DeviceOptions, Engine};
use crate::clock::Clock;
use crate::device::{Device, QueueOptions};
use crate::probe::{DEADLINE_NS, Failure, Finding, Probe};
use mqfq_sched::policy::PolicyOptions;
use mqfq_sched::topology::HctxId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a device starts with.
#[derive(Clone, Debug)]
pub struct Settled {
    /// [`DeviceOptions::policy`], or [`DeviceOptions::fallback`] if the device has not what that one needs.
    pub policy: PolicyOptions,
    /// What was found of the device's class queues. `None`: the policy that was asked for needs none, there are none,
    /// or it was believed.
    pub probe: Option<Result<Finding, Failure>>,
    /// Why it is the fallback: half a sentence.
    pub fell_back: Option<String>,
}

impl DeviceOptions {
    /// Finds out which policy the device can run, if need be with some hundreds of reads, which need the clock; without
    /// one the device is believed. Only while nobody else uses it.
    ///
    /// # Errors
    /// One sentence: the device has not what its policy needs, and there is no fallback; or it has no queues for the
    /// measurement.
    pub(super) fn settle(&self, clock: Option<Clock>) -> Result<Settled, String> {
        let DeviceOptions { name, device, policy, fallback, .. } = self;
        if let Some(fallback) = fallback.filter(|fallback| fallback.kind.is_direct()) {
            return Err(format!(
                "device {name}: policy {} needs what it is to replace: allowed is a policy that schedules by itself",
                fallback.kind
            ));
        }
        let kind = policy.kind;
        if !kind.is_direct() || clock.is_none() && device.has_class_queues() {
            return Ok(Settled { policy: *policy, probe: None, fell_back: None });
        }
        let (probe, reason) = if let Some(clock) = clock.filter(|_| device.has_class_queues()) {
            let found = probe(&**device, clock).map_err(|error| format!("device {name}: {error}"))?;
            let reason = match &found {
                Ok(finding) if finding.has_effect() => {
                    return Ok(Settled { policy: *policy, probe: Some(found), fell_back: None });
                }
                Ok(finding) => format!(
                    "on this one it has no effect: high to low weights of {:.0}:1 gave {:.2}:1 over {} reads",
                    finding.expected_ratio, finding.weighted_ratio, finding.requests
                ),
                Err(failure) => format!("whether this one has it could not be measured: {failure}"),
            };
            (Some(found), reason)
        } else {
            (None, "this one has none".to_owned())
        };
        let reason = format!("policy {kind} needs weighted round robin among the device's queues, and {reason}");
        match *fallback {
            Some(policy) => Ok(Settled { policy, probe, fell_back: Some(reason) }),
            None => Err(format!("device {name}: {reason}; allowed is another policy, or one to fall back to")),
        }
    }
}

/// Measures on queues that are gone afterwards.
///
/// A device that interrupts is waited for. One that says when its next event is has no time but what it is told, so it
/// is told that it is then: no look is late, however busy the machine. What it was ahead of the clock at the end is
/// waited for before anybody else uses it.
fn probe(device: &dyn Device, clock: Clock) -> Result<Result<Finding, Failure>, String> {
    let probe = Probe::new(device.info(), device.queue_limits());
    let interrupted = Arc::new(AtomicBool::new(false));
    let seen = interrupted.clone();
    let options = QueueOptions {
        hctx: HctxId(0),
        depth: probe.queue_depth(),
        ring: None,
        // Relaxed: it only says that a look is worth it; what there is to see lies under the device's lock.
        interrupt: Arc::new(move |_| seen.store(true, Ordering::Relaxed)),
    };
    let mut queue = device.open_class_queues(options)?;
    let start_ns = clock.now_ns();
    let mut told_ns = start_ns;
    let wait = |until_ns| {
        if until_ns < start_ns.saturating_add(DEADLINE_NS) {
            told_ns = until_ns;
            return until_ns;
        }
        loop {
            let now_ns = clock.now_ns();
            // Relaxed: as above.
            if now_ns >= until_ns || interrupted.swap(false, Ordering::Relaxed) {
                return now_ns;
            }
            std::hint::spin_loop();
        }
    };
    let found = probe.run(&mut *queue, start_ns, wait);
    drop(queue);
    while clock.now_ns() < told_ns {
        std::thread::yield_now();
    }
    Ok(found)
}

impl Engine {
    /// What a device started with, and why.
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
