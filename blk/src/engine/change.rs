//! Changes while an engine runs: the policy of a device, and the weights of its flows.
//!
//! # Another policy
//! ```text
//!   engine:   make the policy, open every queue of it
//!             Freeze ─▶ all workers      new requests wait outside the policy; the old ones go on
//!             wait until all are quiet   the old policy and the device have nothing left
//!             Thaw ─▶ all workers        each takes its new queue and stages what has waited, in its order
//! ```
//! Nothing is lost: a request is in the old policy until the device has completed it, or waits in its context and goes
//! into the new one. Every token of the old policy is back before the new one hands out its first, so the device never
//! has more than the larger D. A worker that thaws before its neighbour may kick it; a kick of a frozen worker does
//! nothing, and it looks for itself when it thaws.
//!
//! A device that does not give its requests back holds the change up. After the time that the caller gives, the workers
//! go on with the old policy and the caller is told.
//!
//! Cost: the device runs empty once. Requests meanwhile wait, bounded by what tenants may stage.

use super::{Current, DeviceOptions, Engine};
use crate::cap::{Cap, CapLimits};
use crate::hctx::HwCtx;
use crate::host::Mail;
use crate::queues::BlockLayer;
use crate::tuning::Tuning;
use crate::worker::thread::Running;
use mqfq_sched::class::PriorityClass;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::hierarchy::GroupId;
use mqfq_sched::policy::{AnyPolicy, Policy, PolicyOptions};
use mqfq_sched::topology::HctxId;
use std::sync::{Arc, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

impl Engine {
    /// Gives a device another policy, or the same with other options, while requests are under way. Every one of them
    /// completes once. Waits until it is done; requests that come meanwhile wait, too.
    ///
    /// # Errors
    /// One sentence, and the device goes on as before: options that no policy can be built from, a policy that the
    /// device's queues do not take ([`QueueLayout::check_policy`](crate::queues::QueueLayout::check_policy), and
    /// [`Engine::has_class_queues`] for those that need them), or requests that the device did not complete within
    /// `patience`.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn set_policy(&self, device: usize, options: PolicyOptions, patience: Duration) -> Result<(), String> {
        let mut current = self.current();
        let DeviceOptions { name, queues, .. } = &self.options.devices[device];
        match queues.layer {
            BlockLayer::Raw => {
                return Err(format!("device {name}: block layer raw asks no policy, so there is none to change"));
            }
            BlockLayer::LowLatency => {
                return Err(format!(
                    "device {name}: block layer low-latency has nowhere to keep requests while a policy changes"
                ));
            }
            BlockLayer::Sq | BlockLayer::Mq => {}
        }
        queues.check_policy(options.kind).map_err(|error| format!("device {name}: {error}"))?;
        if options.kind.is_direct() && !self.has_class_queues(device) {
            let policy = current[device].policy.kind;
            return Err(format!(
                "device {name}: policy {} needs class queues, and they are made at the start, when it is the policy then; it keeps the policy {policy}",
                options.kind
            ));
        }
        let Current { weights, tree, .. } = &current[device];
        let policy = AnyPolicy::with_tree(&options, &self.topology, weights, tree)
            .map_err(|error| format!("device {name}: {error}"))?;
        set_classes(&policy, &current[device].classes);
        let policy = Arc::new(policy);
        let tuning = Tuning::new(&options, self.workers());
        let shared = &self.shared.devices[device];
        let capacity_requests = HwCtx::<AnyPolicy>::capacity_requests(&shared.limits);
        // All of them before the first request: a policy may say so.
        let queues: Vec<_> =
            (0..self.workers()).map(|worker| policy.open_queue(HctxId(worker as u16), capacity_requests)).collect();
        if let Err(reason) = self.freeze(device, patience) {
            (0..self.workers()).for_each(|worker| self.thaw(device, worker, None, None));
            return Err(format!("device {name}: {reason}; it keeps the policy {}", current[device].policy.kind));
        }
        shared.split.set_policy(options.kind.has_depth());
        for (worker, queue) in queues.into_iter().enumerate() {
            self.thaw(device, worker, Some((policy.clone(), queue)), tuning.clone());
        }
        shared.set_running(Running { policy, tuning });
        current[device].policy = options;
        Ok(())
    }

    /// Changes the weight of a flow on a device, at once; requests that are staged keep their tags.
    ///
    /// # Panics
    /// If there is no such device or flow.
    pub fn set_weight(&self, device: usize, flow: FlowId, weight: Weight) {
        let mut current = self.current();
        current[device].weights[flow.0 as usize] = weight;
        self.shared.devices[device].running().policy.set_weight(flow, weight);
    }

    /// Changes the weight of a group of flows on a device, at once; requests that have their tags keep them.
    ///
    /// # Panics
    /// If there is no such device or group.
    pub fn set_group_weight(&self, device: usize, group: GroupId, weight: Weight) {
        let mut current = self.current();
        current[device].tree.groups[group.0 as usize].weight = weight;
        self.shared.devices[device].running().policy.set_group_weight(group, weight);
    }

    /// Changes what a cap allows, at once: who waits for the old limits is let go by the new ones. What is owed is paid
    /// at the new rate.
    pub fn set_cap(&self, cap: &Cap, limits: CapLimits) {
        // So that changes come one after another.
        let current = self.current();
        cap.set(limits, self.clock().now_ns());
        drop(current);
        (0..self.workers()).for_each(|worker| self.shared.send(worker, Mail::CapsChanged));
    }

    /// The policy of a device, and its options.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn policy(&self, device: usize) -> PolicyOptions {
        self.current()[device].policy
    }

    pub(super) fn current(&self) -> MutexGuard<'_, Vec<Current>> {
        // A change that panicked has not touched what the others read.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn freeze(&self, device: usize, patience: Duration) -> Result<(), String> {
        let (quiet, is_quiet) = mpsc::channel();
        for worker in 0..self.workers() {
            self.shared.send(worker, Mail::Freeze { device: index(device), quiet: quiet.clone() });
        }
        drop(quiet);
        let clock = self.clock();
        let until_ns = clock.now_ns().saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        for _ in 0..self.workers() {
            is_quiet.recv_timeout(Duration::from_nanos(until_ns.saturating_sub(clock.now_ns()))).map_err(|error| {
                match error {
                    mpsc::RecvTimeoutError::Timeout => {
                        format!("requests did not come back from it within {} s", patience.as_secs_f64())
                    }
                    mpsc::RecvTimeoutError::Disconnected => "a worker has ended".to_owned(),
                }
            })?;
        }
        Ok(())
    }

    fn thaw(
        &self,
        device: usize,
        worker: usize,
        policy: Option<(Arc<AnyPolicy>, <AnyPolicy as Policy>::Queue)>,
        tuning: Option<Arc<Tuning>>,
    ) {
        self.shared.send(worker, Mail::Thaw { device: index(device), policy, tuning });
    }
}

/// Tells a policy that has just been made which classes its flows have.
pub(super) fn set_classes(policy: &AnyPolicy, classes: &[PriorityClass]) {
    for (&class, flow) in classes.iter().zip(0..) {
        policy.set_class(FlowId(flow), class);
    }
}

fn index(device: usize) -> u16 {
    u16::try_from(device).expect("as many devices as `check` allows")
}
