//! One hardware context: the data path of one worker on one device, as a function of state and time.
//!
//! # Paths
//! | path | is taken with | submit | run | reap |
//! |---|---|---|---|---|
//! | `StagedPath` | a policy that stages | stages | dispatches what the policy grants, rings | completes |
//! | `DirectPath` | a policy that names class queues | dispatches | rings | completes |
//! | `BypassPath` | no block layer | dispatches | rings | completes, and counts nothing |
//!
//! Each path holds its own state; the rest is `RequestPath`. A context chooses its path when it is made, and again when
//! it gets another policy ([`HwCtx::thaw`]). The path is matched once per call and not per request.
//!
//! No clock, thread or ring: the real worker and the simulator both call these three with their own `now_ns`. A worker
//! must call [`HwCtx::run`] after any `submit`, any `reap` that returned something, and any kick, and again while it
//! answers [`Run::again`]: the policy counts on a queue with a free token and an eligible request being run (I4).

pub use super::fair_intake::CLIENT_BYTES;
pub use super::path_options::{Full, HwCtxOptions, Run};

use super::bypass::BypassPath;
use super::direct::{self, DirectPath};
use super::dispatch::{Commands, StagedPath};
use super::path_options::capacity_requests;
use super::request_path::ContextCounters;
use super::request_path::RequestPath;
use super::write_cost_meter::WriteCostMeter;
use crate::counters::Counters;
use crate::device::DeviceQueue;
use crate::request::{Completion, Submission};
use crate::split::{SplitControl, SplitState};
use crate::stage::StageLimits;
use crate::stats::{HctxStats, Trouble};
use crate::table::{Owner, RequestTable, Swept};
use crate::tag::TagSet;
use crate::trace::{Recorder, Trace, TraceEvent};
use crate::tuning::{Meter, Tuning};
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{Entry, Kick, Policy};
use mqfq_sched::topology::HctxId;
use mqfq_sched::write_cost::WriteCost;
use std::collections::VecDeque;
use std::sync::Arc;

/// The data path of one worker on one device: staged requests, the commands on the device, and their counters.
pub struct HwCtx<P: Policy> {
    pub(super) path: Path,
    pub(super) shared: RequestPath<P>,
    plug: u32,
    /// A submission of so many bytes does not simply go to its path: 0 while the context is frozen, one more than a
    /// part where large requests are cut.
    detour_from_bytes: u32,
    /// Requests admitted while the policy takes none, in order.
    pub(super) frozen: Option<VecDeque<Entry>>,
}

/// Path of requests.
// Looked at by every call: a byte, and not what the compiler finds free in one of the paths.
#[repr(u8)]
pub(super) enum Path {
    Staged(StagedPath),
    Direct(DirectPath),
    Bypass(BypassPath),
}

impl Path {
    /// Path for a policy, with room for so many requests.
    fn of(policy: &impl Policy, staged_max: usize) -> Path {
        match policy.is_direct() {
            true => Path::Direct(DirectPath::new(staged_max)),
            false => Path::Staged(StagedPath::default()),
        }
    }
}

impl<P: Policy> HwCtx<P> {
    /// A context with nothing staged. All of its memory is taken here.
    pub fn new(options: HwCtxOptions<P>) -> HwCtx<P> {
        let path = Path::of(&*options.policy, capacity_requests(&options.limits));
        let (plug, mut shared) = (options.path.plug.max(1), RequestPath::new(options));
        shared.look_at_split(0);
        HwCtx { path, plug, detour_from_bytes: shared.cut_from_bytes(), shared, frozen: None }
    }

    /// Returns this context without counters per flow ([`HwCtx::counters`] has none): 6.1 KB for each flow that
    /// completes something here, which the simulator's 100,000 tenants do not have.
    #[must_use]
    pub fn without_flow_stats(mut self) -> HwCtx<P> {
        self.shared.counters = ContextCounters::new(0);
        self
    }

    /// Returns this context with write costs taken from `cost`, which all contexts of the device share. Without a block
    /// layer nothing is counted, and nothing followed.
    #[must_use]
    pub fn with_write_cost(mut self, cost: Arc<WriteCost>) -> HwCtx<P> {
        self.shared.write_cost = Some(WriteCostMeter::new(cost));
        self
    }

    /// Returns this context without a block layer: requests go straight to the device queue
    /// ([`PathOptions::bypass`](crate::path_options::PathOptions::bypass)), and a policy that is not direct is never
    /// asked.
    #[must_use]
    pub fn raw(mut self) -> HwCtx<P> {
        self.path = Path::Bypass(BypassPath::new(self.queue_depth(), self.shared.policy.is_direct()));
        self.shared.requests = RequestTable::new(0);
        (self.shared.splitting, self.shared.slow_completions, self.detour_from_bytes) = (None, 0, u32::MAX);
        self.without_flow_stats()
    }

    /// Returns this context on a set of class queues
    /// ([`Device::has_class_queues`](crate::device::Device::has_class_queues)), each as deep as `queue_depth` says.
    ///
    /// # Panics
    /// If that is more than [`TagSet::CLASS_DEPTH_MAX`].
    #[must_use]
    pub fn with_class_queues(mut self) -> HwCtx<P> {
        let depth = self.queue_depth();
        let tags = TagSet::with_classes(depth as u16);
        let all = tags.all();
        match &mut self.path {
            Path::Bypass(bypass) => *bypass = BypassPath::new(all, self.shared.policy.is_direct()),
            Path::Staged(_) | Path::Direct(_) => {
                let places = self.shared.requests.room() + all - depth;
                self.shared.requests = RequestTable::new(places);
                self.shared.splitting.iter_mut().for_each(|splitting| splitting.resize(places));
            }
        }
        HwCtx {
            shared: RequestPath { commands: Commands::with_tags(self.shared.commands.device, tags), ..self.shared },
            ..self
        }
    }

    /// Returns this context with the size of parts decided together with other workers' contexts. Only where
    /// [`PathOptions::split`](crate::path_options::PathOptions::split) is not off; `control` must be of the same
    /// option.
    #[must_use]
    pub fn with_split(mut self, control: Arc<SplitControl>) -> HwCtx<P> {
        self.shared.splitting.iter_mut().for_each(|splitting| splitting.share(control.clone()));
        self.detour_from_bytes = self.shared.cut_from_bytes();
        self
    }

    /// Parts that large requests are cut into now, and why. `None`: this context never cuts any.
    pub fn split_state(&self) -> Option<SplitState> {
        Some(self.shared.splitting.as_ref()?.control().state())
    }

    /// Admits and stages a request, already validated.
    ///
    /// # Errors
    /// [`Full`] with the submission if its flow has its bound staged here; [`HwCtx::take_room`] will name the flow
    /// later.
    pub fn submit(
        &mut self,
        owner: Owner,
        submission: Submission,
        now_ns: u64,
        kick: &mut impl Kick,
    ) -> Result<(), Full> {
        if submission.length_bytes >= self.detour_from_bytes {
            return self.submit_by_detour(owner, submission, now_ns, kick);
        }
        let HwCtx { path, shared, .. } = self;
        match path {
            Path::Staged(_) => {
                let entry = shared.admit(owner, submission, now_ns)?;
                shared.policy.submit(&mut shared.queue, entry, now_ns, kick);
            }
            Path::Direct(direct) => {
                let entry = shared.admit(owner, submission, now_ns)?;
                direct.submit(shared, entry, now_ns);
            }
            Path::Bypass(bypass) => bypass.submit(shared, owner, submission, now_ns)?,
        }
        Ok(())
    }

    /// As `submit`, of a context that is frozen, or where the request may be cut.
    #[inline(never)]
    fn submit_by_detour(
        &mut self,
        owner: Owner,
        submission: Submission,
        now_ns: u64,
        kick: &mut impl Kick,
    ) -> Result<(), Full> {
        let HwCtx { path, shared, frozen, .. } = self;
        // The longest length that there is comes here without anything being cut or frozen.
        if let Path::Bypass(bypass) = path {
            return bypass.submit(shared, owner, submission, now_ns);
        }
        let mut stage = |shared: &mut RequestPath<P>, entry| match frozen {
            Some(held) => held.push_back(entry),
            None => stage_by_detour(path, shared, entry, now_ns, kick),
        };
        match shared.cuts(&submission) {
            Some(cuts) => {
                let mut pending = shared.admit_parts(owner, submission, cuts, now_ns)?;
                while let Some(entry) = shared.next_part(&mut pending) {
                    stage(shared, entry);
                }
            }
            None => {
                let entry = shared.admit(owner, submission, now_ns)?;
                stage(shared, entry);
            }
        }
        Ok(())
    }

    /// A turn of the worker's loop begins. If flows compete it may end before all is dispatched that could be: then
    /// [`HwCtx::run`] dispatches nothing, and answers [`Run::again`], until the next one begins. A context that is
    /// never told of a turn has one without an end; so has a direct policy, which stages nothing.
    pub fn begin_turn(&mut self) {
        self.shared.intake.begin();
    }

    /// Flows compete, or did a few turns ago.
    pub(crate) fn is_contended(&self) -> bool {
        self.shared.intake.is_watched()
    }

    /// All that the look at the sockets brought is staged, and `flow` was any that has submitted.
    pub fn looked(&mut self, flow: FlowId) {
        if let Path::Staged(_) = self.path {
            self.shared.looked(flow);
        }
    }

    /// Dispatches what the policy grants, at most a batch, and nothing once the turn is over.
    pub fn run(&mut self, now_ns: u64, kick: &mut impl Kick) -> Run {
        let HwCtx { path, shared, .. } = self;
        match path {
            Path::Staged(staged) => {
                shared.account(now_ns);
                staged.run(shared, now_ns, kick)
            }
            Path::Direct(direct) => {
                shared.account(now_ns);
                direct.run(shared, now_ns)
            }
            Path::Bypass(bypass) => bypass.run(shared, now_ns),
        }
    }

    /// Collects finished commands and appends the completions to `out`. Returns how many requests ended, and parts that
    /// were not the last of their whole.
    pub fn reap(&mut self, now_ns: u64, kick: &mut impl Kick, out: &mut Vec<(Owner, Completion)>) -> usize {
        let HwCtx { path, shared, .. } = self;
        let before = out.len();
        shared.commands.device.reap(now_ns, &mut shared.commands.reaped);
        match path {
            Path::Staged(_) => {
                shared.complete_all::<StagedPath>(now_ns, kick, out);
                let ended = out.len() - before + shared.ended_parts();
                shared.tune(ended, now_ns, kick);
            }
            Path::Direct(_) => {
                shared.complete_all::<DirectPath>(now_ns, kick, out);
                if out.len() > before || shared.ended_parts() > 0 {
                    direct::adjust(shared, now_ns);
                }
            }
            Path::Bypass(bypass) => {
                bypass.complete_all(shared, now_ns, out);
                return out.len() - before;
            }
        }
        if self.shared.write_cost.is_some() && (out.len() > before || self.shared.ended_parts() > 0) {
            self.meter_writes(&out[before..], now_ns);
        }
        let parts = match self.shared.splitting {
            Some(_) => self.after_reap(now_ns),
            None => 0,
        };
        out.len() - before + parts
    }

    /// The charge of a write by what has completed.
    #[inline(never)]
    fn meter_writes(&mut self, completions: &[(Owner, Completion)], now_ns: u64) {
        let now = [self.staged(), self.in_flight()];
        let RequestPath { id, write_cost, charges, .. } = &mut self.shared;
        if let Some(meter) = write_cost {
            charges.set_write(meter.completed(*id, completions, now, now_ns));
        }
    }

    /// Where requests may be cut: decides anew, if it is time, from how many bytes on. Returns parts that ended since
    /// the last call and were not the last of their whole.
    #[inline(never)]
    fn after_reap(&mut self, now_ns: u64) -> usize {
        self.shared.look_at_split(now_ns);
        if self.frozen.is_none() {
            self.detour_from_bytes = self.shared.cut_from_bytes();
        }
        self.shared.take_ended_parts()
    }

    /// Flows that were refused and have room since the last call.
    pub fn take_room(&mut self) -> std::vec::Drain<'_, FlowId> {
        let RequestPath { staging, room, .. } = &mut self.shared;
        room.iter().for_each(|&flow| staging.told(flow));
        room.drain(..)
    }

    /// Trouble with commands since the last call.
    #[inline(always)]
    pub fn take_trouble(&mut self) -> Option<Trouble> {
        self.shared.expiry.take_trouble()
    }

    /// From now on admitted requests wait outside the policy, until [`HwCtx::thaw`]. Requests in the policy go on to
    /// the device and back.
    pub fn freeze(&mut self, now_ns: u64) {
        let room = self.shared.requests.room();
        self.frozen.get_or_insert_with(|| VecDeque::with_capacity(room));
        self.detour_from_bytes = 0;
        self.shared.counters.mark(TraceEvent::Frozen, now_ns);
    }

    /// On: requests that wait for the device end with [`Status::Recalled`](crate::request::Status::Recalled) as the
    /// policy grants them, and those on the device end normally. Call [`HwCtx::run`] after it.
    pub fn recall(&mut self, is_on: bool) {
        self.shared.commands.recall(is_on);
    }

    /// The client `owner` has gone: its requests that wait for the device end with
    /// [`Status::Recalled`](crate::request::Status::Recalled), and their flow pays nothing for them. A policy that
    /// takes nothing back keeps its requests. Returns the number that ended. [`HwCtx::run`] follows.
    pub fn withdraw(
        &mut self,
        owner: Owner,
        now_ns: u64,
        kick: &mut impl Kick,
        out: &mut Vec<(Owner, Completion)>,
    ) -> usize {
        let HwCtx { path: Path::Staged(_), shared, frozen, .. } = self else { return 0 };
        let (mut from, mut seen, mut ended) = (0, 0, 0);
        while let Some(handle) = shared.requests.staged_of(owner, from, &mut seen) {
            from = handle.0 as usize + 1;
            let held = frozen.as_ref().and_then(|held| held.iter().position(|entry| entry.handle == handle));
            let is_outside = frozen.as_mut().zip(held).is_some_and(|(held, at)| held.remove(at).is_some());
            if shared.withdraw(handle, is_outside, now_ns, kick, out) {
                (seen, ended) = (seen - 1, ended + 1);
            }
        }
        ended
    }

    /// Frozen, and neither the policy nor the device has anything left of this context.
    pub fn is_quiet(&self) -> bool {
        self.frozen.is_some() && self.is_idle()
    }

    /// Neither the policy nor the device has anything of this context, not even a command that was given up.
    pub fn is_idle(&self) -> bool {
        let RequestPath { commands, expiry, .. } = &self.shared;
        self.staged() == 0 && self.in_flight() == 0 && commands.resend.is_empty() && !expiry.has_held()
    }

    /// Goes on, with another policy and this context's queue of it if one is given, and stages what has waited, in its
    /// order. Call [`HwCtx::run`] after it.
    ///
    /// # Panics
    /// If another policy is given while the old one has requests of this context ([`HwCtx::is_quiet`]), or its queue is
    /// smaller than the old one's: their requests and tokens would be lost. If another policy is given without a block
    /// layer, where none is kept through a change.
    pub fn thaw(&mut self, policy: Option<(Arc<P>, P::Queue)>, now_ns: u64, kick: &mut impl Kick) {
        if let Some((policy, queue)) = policy {
            assert!(
                self.is_quiet(),
                "{:?}: the policy has {} requests, the device {}",
                self.shared.id,
                self.staged(),
                self.in_flight()
            );
            assert!(!matches!(self.path, Path::Bypass(_)), "{:?}: no block layer, no change of policy", self.shared.id);
            self.path = Path::of(&*policy, self.shared.requests.room());
            (self.shared.policy, self.shared.queue) = (policy, queue);
        }
        self.shared.counters.mark(TraceEvent::Thawed, now_ns);
        self.detour_from_bytes = self.shared.cut_from_bytes();
        for entry in self.frozen.take().unwrap_or_default() {
            stage_by_detour(&mut self.path, &mut self.shared, entry, now_ns, kick);
        }
    }

    /// From now on counts for what tunes the device's policy, or for nothing. Before the first request, or with another
    /// policy, when all is quiet ([`HwCtx::thaw`]).
    pub fn set_tuning(&mut self, tuning: Option<Arc<Tuning>>, now_ns: u64) {
        tuning.iter().for_each(|tuning| tuning.read_counters(self.shared.id, &self.shared.counters.published));
        self.shared.meter = tuning.map_or(Meter::off(), |tuning| tuning.meter(self.shared.id, now_ns));
    }

    /// Requests that this context's queue of a policy must be able to stage.
    pub fn capacity_requests(limits: &[StageLimits]) -> usize {
        capacity_requests(limits)
    }

    /// When [`HwCtx::run`] and [`HwCtx::reap`] must be called next if nothing else happens.
    pub fn next_event_ns(&self) -> Option<u64> {
        let RequestPath { commands, expiry, .. } = &self.shared;
        if !commands.resend.is_empty() && commands.refused.is_none() && commands.tags.free() > 0 {
            return Some(0);
        }
        let look_ns = if self.in_flight() > 0 || expiry.has_held() { expiry.look_ns() } else { None };
        let later_ns = if let Path::Staged(staged) = &self.path { staged.later_ns } else { None };
        [commands.device.next_event_ns(), later_ns, look_ns].into_iter().flatten().min()
    }

    /// Commands on the device at once, at most, of all class queues if it has them.
    pub fn queue_depth(&self) -> usize {
        self.shared.commands.tags.all()
    }

    /// Calls of clients that gather before a dispatch.
    pub fn plug(&self) -> u32 {
        self.plug
    }

    /// The device queue, for completions that come through the worker's ring.
    pub fn device_mut(&mut self) -> &mut dyn DeviceQueue {
        &mut *self.shared.commands.device
    }

    /// The policy's state of this context, for tests and reports.
    pub fn staged(&self) -> usize {
        let waiting = if let Path::Direct(direct) = &self.path { direct.waiting() } else { 0 };
        self.shared.policy.staged(&self.shared.queue) + waiting
    }

    /// Requests admitted and not completed; of those that were cut, parts that have not ended.
    pub fn admitted(&self) -> usize {
        // Without a block layer a request that was taken is on the device.
        if let Path::Bypass(_) = self.path { self.in_flight() } else { self.shared.requests.len() }
    }

    /// Commands on the device.
    pub fn in_flight(&self) -> usize {
        self.shared.commands.tags.in_use()
    }

    /// A command waits for a place in the device queue.
    pub fn is_blocked(&self) -> bool {
        self.shared.commands.refused.is_some()
    }

    /// The last [`HwCtx::run`] ended because the policy held back the staged requests: another worker will kick this
    /// one.
    pub fn is_held_back(&self) -> bool {
        matches!(&self.path, Path::Staged(staged) if staged.is_held_back)
    }

    /// Counters of this context, for any thread to read. `in_flight` and `staged` of it are 0 ([`HwCtx::sweep`]).
    pub fn counters(&self) -> &Arc<Counters> {
        &self.shared.counters.published
    }

    /// Adds the requests under way in places `from` to `from + places` of the table to `found`, by flow. `None`: those
    /// were the last that had anything.
    pub fn sweep(&self, from: usize, places: usize, found: &mut Swept) -> Option<usize> {
        if from == 0 {
            (found.in_flight, found.staged) = (self.in_flight() as u64, self.staged() as u64);
        }
        self.shared.requests.sweep(from, places, found)
    }

    /// Counters of this context, as of the last [`HwCtx::run`] or [`HwCtx::reap`].
    pub fn stats(&self) -> HctxStats {
        let (in_flight, staged) = (self.in_flight() as u64, self.staged() as u64);
        HctxStats { in_flight, staged, ..self.shared.counters.published.read() }
    }

    /// From now on keeps the last `capacity` requests that complete, and as many marks. Earlier records are dropped.
    pub fn start_trace(&mut self, capacity: usize) {
        self.shared.counters.trace = Some(Box::new(Recorder::new(capacity)));
    }

    /// Stops recording. Returns the records; `None` if it was off.
    pub fn take_trace(&mut self) -> Option<Trace> {
        Some(self.shared.counters.trace.take()?.into_trace(self.shared.requests.iter()))
    }
}

/// An admitted request goes to its path, from where few come.
// Of its own kind of kick, so that the policy's part of `submit` is called in one place, where the compiler puts it.
fn stage_by_detour<P: Policy>(
    path: &mut Path,
    shared: &mut RequestPath<P>,
    entry: Entry,
    now_ns: u64,
    kick: &mut dyn Kick,
) {
    match path {
        Path::Staged(_) => {
            shared.policy.submit(&mut shared.queue, entry, now_ns, &mut |hctx: HctxId| kick.kick(hctx));
        }
        Path::Direct(direct) => direct.submit(shared, entry, now_ns),
        Path::Bypass(_) => unreachable!("without a block layer nothing is frozen or cut"),
    }
}

#[cfg(all(test, not(mqfq_loom)))]
pub(super) mod tests;
