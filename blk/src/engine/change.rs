//! Changes while an engine runs: the policy of a device, the weights of its flows, and devices that come and go.
//!
//! # Another policy
//! ```text
//!   engine:   make the policy, open every queue of it
//!             Freeze ─▶ all workers      new requests wait outside the policy; the old ones go on
//!             wait until all are quiet   the old policy and the device have nothing left
//!             Thaw ─▶ all workers        each takes its new queue and stages the waiting requests, in order
//! ```
//! Nothing is lost: a request is in the old policy until the device has completed it, or waits in its context and goes
//! into the new one. Every token of the old policy is back before the new one hands out its first, so the device never
//! has more than the larger D. A worker that thaws before its neighbour may kick it; a kick of a frozen worker does
//! nothing, and it looks for itself when it thaws.
//!
//! A device that does not give its requests back holds the change up. After the time that the caller gives, the workers
//! go on with the old policy and the caller is told.
//!
//! Figures that are found while a policy runs are kept for its return: a search begins at the D found last.
//!
//! Cost: the device runs empty once. Requests meanwhile wait, bounded by the tenants' limits.

use super::flows::{self, FlowCapacity, index};
use super::{Current, DeviceOptions, Engine, Prepared, check_device};
use crate::cap::{Cap, CapLimits};
use crate::client::Remains;
use crate::hctx::HwCtx;
use crate::stage::StageLimits;
use crate::tuning::Tuning;
use crate::worker::host::Mail;
use crate::worker::thread::{Running, SharedDevice};
use mqfq_sched::flow::{FlowId, GroupId, Weight};
use mqfq_sched::policy::{AnyPolicy, Policy, PolicyOptions};
use mqfq_sched::topology::HctxId;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

impl Engine {
    /// Gives a device another policy, or the same with other options, while requests are under way. Every one of them
    /// completes once. Waits until it is done; requests that come meanwhile wait, too.
    ///
    /// # Errors
    /// One sentence, and the device goes on as before: options that no policy can be built from, a policy that needs
    /// class queues where there are none ([`Engine::has_class_queues`]), or requests that the device did not complete
    /// within `patience`.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn set_policy(&self, device: usize, options: PolicyOptions, patience: Duration) -> Result<(), String> {
        let _changing = self.changing();
        self.refuse_without_room_to_wait(device)?;
        let (name, now) = self.of(device, |at| (at.name.clone(), at.policy.kind));
        let named = |error: &dyn std::fmt::Display| format!("device {name}: {error}");
        if options.kind.is_direct() && !self.has_class_queues(device) {
            return Err(format!(
                "device {name}: policy {} needs class queues, and they are made at the start, when it is the policy then; it keeps the policy {now}",
                options.kind
            ));
        }
        let (flows, tree) = self.of(device, |at| (at.flows.clone(), at.grouping.tree.clone()));
        let (policy, capacity) =
            flows::build(&options, &self.topology, &flows, &tree).map_err(|error| named(&error))?;
        let shared = self.shared_device(device);
        let found = shared.running().tuning.and_then(|tuning| tuning.found());
        let found = found.or_else(|| self.of(device, |at| at.found.clone()));
        let tuning = Tuning::resumed(&options, self.workers(), found.clone());
        // While all workers are quiet: the first request that is ordered by the policy is cut as it wants.
        let take_over = |policy: &AnyPolicy| {
            shared.split.set_policy(options.kind.has_depth());
            tuning.iter().for_each(|tuning| tuning.put_in_force(policy));
        };
        self.replace(device, policy, capacity, tuning.clone(), patience, take_over)
            .map_err(|reason| format!("device {name}: {reason}; it keeps the policy {now}"))?;
        self.with(device, |at| (at.policy, at.found) = (options, found));
        Ok(())
    }

    /// Refuses a device without a place for its requests while its policy changes.
    pub(super) fn refuse_without_room_to_wait(&self, device: usize) -> Result<(), String> {
        let (name, bypass) = self.of(device, |at| (at.name.clone(), at.shared.path.bypass));
        match bypass {
            true => Err(format!("device {name}: its path has nowhere to keep requests while a policy changes")),
            false => Ok(()),
        }
    }

    /// Puts another policy in the place of a device's, with room for the flows that it was built for. `take_over` is
    /// called with it when no worker changes the old one any more.
    ///
    /// # Errors
    /// Why not, in half a sentence; then all is as before.
    pub(super) fn replace(
        &self,
        device: usize,
        policy: AnyPolicy,
        capacity: FlowCapacity,
        tuning: Option<Arc<Tuning>>,
        patience: Duration,
        take_over: impl FnOnce(&AnyPolicy),
    ) -> Result<(), String> {
        let policy = Arc::new(policy);
        // Contexts never get smaller: each flow may still be told all the room that they have.
        let capacity = capacity.at_least(&self.of(device, |at| at.capacity.limits.clone()));
        let limits: Arc<[StageLimits]> = capacity.limits.clone().into();
        let capacity_requests = HwCtx::<AnyPolicy>::capacity_requests(&limits);
        // All of them before the first request: a policy may say so.
        let queues: Vec<_> =
            (0..self.workers()).map(|worker| policy.open_queue(HctxId(worker as u16), capacity_requests)).collect();
        if let Err(reason) = self.freeze(device, patience) {
            (0..self.workers()).for_each(|worker| self.thaw(device, worker, None, None));
            return Err(reason);
        }
        take_over(&policy);
        for (worker, queue) in queues.into_iter().enumerate() {
            self.shared.send(worker, Mail::Grow { device: index(device), limits: limits.clone() });
            self.thaw(device, worker, Some((policy.clone(), queue)), tuning.clone());
        }
        self.shared_device(device).set_running(Running { policy, tuning });
        self.with(device, |at| at.capacity = capacity);
        self.put_goals(device);
        Ok(())
    }

    /// Changes the weight of a flow on a device, at once; requests that are staged keep their tags.
    ///
    /// # Panics
    /// If there is no such device or flow.
    pub fn set_weight(&self, device: usize, flow: FlowId, weight: Weight) {
        let _changing = self.changing();
        self.with(device, |at| {
            let flow = at.flows[flow.0 as usize].as_mut();
            flow.expect("nobody has this place").weight = weight;
        });
        self.shared_device(device).running().policy.set_weight(flow, weight);
    }

    /// Changes the weight of a group of flows on a device, at once; requests that have their tags keep them.
    ///
    /// # Panics
    /// If there is no such device or group.
    pub fn set_group_weight(&self, device: usize, group: GroupId, weight: Weight) {
        let _changing = self.changing();
        self.with(device, |at| at.grouping.tree.groups[group.0 as usize].weight = weight);
        self.shared_device(device).running().policy.set_group_weight(group, weight);
    }

    /// Changes a cap's limits, at once: requests that wait for the old limits go by the new ones. Debts are paid at
    /// the new rate.
    pub fn set_cap(&self, cap: &Cap, limits: CapLimits) {
        // So that changes come one after another.
        let changing = self.changing();
        cap.set(limits, self.clock().now_ns());
        drop(changing);
        (0..self.workers()).for_each(|worker| self.shared.send(worker, Mail::CapsChanged));
    }

    /// The policy of a device, and its options.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn policy(&self, device: usize) -> PolicyOptions {
        self.of(device, |at| at.policy)
    }

    pub(super) fn current(&self) -> MutexGuard<'_, Vec<Option<Current>>> {
        // A change that panicked has not touched the state that others read.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A look at a device.
    pub(super) fn of<T>(&self, device: usize, look: impl FnOnce(&Current) -> T) -> T {
        match self.current().get(device) {
            Some(Some(current)) => look(current),
            _ => panic!("there is no device {device}"),
        }
    }

    /// Changes a device's configuration.
    pub(super) fn with(&self, device: usize, change: impl FnOnce(&mut Current)) {
        match self.current().get_mut(device) {
            Some(Some(current)) => change(current),
            _ => panic!("there is no device {device}"),
        }
    }

    pub(super) fn shared_device(&self, device: usize) -> Arc<SharedDevice> {
        self.of(device, |at| at.shared.clone())
    }

    fn freeze(&self, device: usize, patience: Duration) -> Result<(), String> {
        self.ask_all(patience, |quiet| Mail::Freeze { device: index(device), quiet }).map(drop)
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

// Devices come and go while an engine runs.
//
// A device that comes is opened by each worker, on the worker's own ring; clients may name its index when all have.
// A device that goes has no clients any more; each worker drops its queue when the last request has ended, and its
// index is free for another. Clients of other devices notice neither.

impl Engine {
    /// Begins to serve a device as number `device`: a free index, at most the number of devices so far. As at
    /// the start, its class queues are measured first if its policy needs them.
    ///
    /// # Errors
    /// One sentence, and nothing has changed: as [`Engine::start`], or the index is taken.
    pub fn add_device(&self, device: usize, options: &DeviceOptions) -> Result<(), String> {
        let _changing = self.changing();
        check_device(options)?;
        let prepared = Prepared::new(options, &self.topology, Some(self.clock()))?;
        let current = prepared.assemble(self.workers());
        {
            let mut devices = self.current();
            if device > devices.len() || device > usize::from(u16::MAX) {
                return Err(format!(
                    "device {}: {device} is no index for it, there are {}",
                    options.name,
                    devices.len()
                ));
            }
            if let Some(Some(other)) = devices.get(device) {
                return Err(format!("device {}: device {} has not gone yet", options.name, other.name));
            }
            let mut shared = self.shared.devices();
            if device == devices.len() {
                devices.push(None);
                shared.push(None);
            }
            shared[device] = Some(current.shared.clone());
        }
        let opened = self.ask_all(Duration::MAX, |opened| Mail::OpenDevice { device: index(device), opened });
        let opened = opened.and_then(|all| all.into_iter().collect::<Result<Vec<()>, String>>());
        if let Err(error) = opened {
            self.shared.devices()[device] = None;
            // Workers that could not open it have an empty place already, or none.
            let _ = self.ask_all(Duration::MAX, |closed| Mail::CloseDevice { device: index(device), closed });
            return Err(format!("device {}: {error}", options.name));
        }
        self.current()[device] = Some(current);
        Ok(())
    }

    /// Removes a device whose clients are gone. Its index is free when this returns.
    ///
    /// # Errors
    /// One sentence, and the device stays: it did not complete its requests within `patience`. It may be asked again.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn remove_device(&self, device: usize, patience: Duration) -> Result<(), String> {
        let _changing = self.changing();
        let name = self.of(device, |at| at.name.clone());
        self.await_end(device, Remains::All, patience).map_err(|reason| format!("device {name}: {reason}"))?;
        // A worker that has panicked took its queue along.
        let _ = self.ask_all(Duration::MAX, |closed| Mail::CloseDevice { device: index(device), closed });
        self.shared.devices()[device] = None;
        self.current()[device] = None;
        Ok(())
    }

    /// Has every worker use the part of this number of a device as it is now ([`crate::device::DeviceQueue::follow`]).
    ///
    /// # Errors
    /// One sentence: commands of the part before are under way on some worker, which keeps it.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn follow(&self, device: usize, number: u16) -> Result<(), String> {
        let _changing = self.changing();
        let name = self.of(device, |at| at.name.clone());
        let all = self.ask_all(Duration::MAX, |followed| Mail::Follow { device: index(device), number, followed })?;
        all.into_iter().collect::<Result<(), String>>().map_err(|why| format!("device {name}: {why}"))
    }
}
