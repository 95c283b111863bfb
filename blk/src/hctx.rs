//! One hardware context: the data path of one worker on one device, as a function of state and time.
//!
//! ```text
//!   submit ──▶ admit ──▶ policy.submit                              (stage)
//!   run    ──▶ policy.pick ──▶ tag ──▶ device.submit … ring_doorbell (dispatch)
//!   reap   ──▶ device.reap ──▶ policy.complete ──▶ Completion        (complete)
//! ```
//!
//! No clock, thread or ring: the real worker and the simulator both call these three with their own `now_ns`. A worker
//! must call [`HwCtx::run`] after any `submit`, any `reap` that returned something, and any kick, and again while it
//! answers [`Run::again`]: the policy counts on a queue with a free token and an eligible request being run (I4).
//!
//! | file | answers |
//! |---|---|
//! | `hctx/bypass.rs` | what if there is no block layer |
//! | `hctx/direct.rs` | what if the policy stages nothing |
//! | `hctx/hand_over.rs` | how does a command get to the device queue, and again |
//! | `hctx/in_flight.rs` | what is a tag used for, and is this end that of its present use |
//! | `hctx/merge.rs` | which requests share a command, and what becomes of them if it ends badly |
//! | `hctx/timeout.rs` | what becomes of a command that the device does not end |

mod bypass;
mod direct;
mod hand_over;
mod in_flight;
mod merge;
mod timeout;

use crate::buffer::Buffer;
use crate::device::{Command, DeviceQueue, Reaped};
use crate::path::PathOptions;
use crate::queues::RawPath;
use crate::request::{Completion, Op, Status, Submission};
use crate::stage::{StageLimits, Staging};
use crate::stats::{FlowStats, HctxStats};
use crate::table::{Owner, Request, RequestTable, State};
use crate::tag::TagSet;
use crate::trace::{Recorder, Trace, TraceEvent};
use direct::Direct;
use in_flight::InFlight;
use merge::Merging;
use mqfq_sched::cost::{CostKind, CostModel};
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{Done, Entry, Grant, Handle, Kick, Pick, Policy};
use mqfq_sched::topology::HctxId;
use std::collections::VecDeque;
use std::sync::Arc;
use timeout::Expiry;

/// Most requests that one [`HwCtx::run`] dispatches: bounds how long a worker stays away from its sockets. 64 is the
/// depth D of the paper's drive (MQFQ section 4), so one batch can fill it.
const BATCH_MAX: usize = 64;

/// What a context is made of.
pub struct HwCtxOptions<P: Policy> {
    /// Which it is.
    pub id: HctxId,
    /// The device's policy, shared with the other workers.
    pub policy: Arc<P>,
    /// This worker's queue of the device.
    pub device: Box<dyn DeviceQueue>,
    /// Commands on the device queue at once, 1..=65535; the device queue must be as deep.
    pub queue_depth: u16,
    /// How much each flow may stage here, by [`FlowId`].
    pub limits: Vec<StageLimits>,
    /// What requests cost.
    pub cost: CostModel,
    /// What is done to requests besides scheduling them.
    pub path: PathOptions,
}

/// How a [`HwCtx::run`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Requests handed to the device.
    pub dispatched: usize,
    /// There may be more to dispatch: call again before sleeping.
    pub again: bool,
}

/// Why a submission came back.
#[derive(Debug)]
pub struct Full(pub Submission);

/// The data path of one worker on one device: staged requests, the commands on the device, and their counters.
pub struct HwCtx<P: Policy> {
    id: HctxId,
    policy: Arc<P>,
    queue: P::Queue,
    device: Box<dyn DeviceQueue>,
    tags: TagSet,
    by_tag: Vec<InFlight>,
    /// A command that the device queue did not take although we had a tag for it; goes first next time.
    refused: Option<Command>,
    is_held_back: bool,
    merging: Merging,
    direct: Direct,
    expiry: Expiry,
    plug: u32,
    /// Requests with tokens that go to the device again, each alone.
    resend: VecDeque<Handle>,
    /// When the policy wants to be asked again, if it holds back what is staged.
    later_ns: Option<u64>,
    /// While the policy takes nothing in: what was admitted since, in order.
    frozen: Option<VecDeque<Entry>>,
    requests: RequestTable,
    staging: Staging,
    cost: CostModel,
    async_writes: bool,
    reaped: Vec<Reaped>,
    room: Vec<FlowId>,
    /// There is no block layer: everything between client and device is this.
    raw: Option<Box<RawPath>>,
    /// By flow; 100 KB each, so they come into being with a flow's first completion here.
    flow_stats: Vec<Option<Box<FlowStats>>>,
    stats: HctxStats,
    /// Since when `stats` counts the time that commands spend on the device.
    accounted_ns: u64,
    trace: Option<Box<Recorder>>,
}

impl<P: Policy> HwCtx<P> {
    /// A context with nothing staged. All of its memory is taken here, but for what is counted of each flow: that comes
    /// with the flow's first completion.
    pub fn new(options: HwCtxOptions<P>) -> HwCtx<P> {
        let HwCtxOptions { id, policy, device, queue_depth, limits, cost, path } = options;
        let staged_max = Self::capacity_requests(&limits);
        let staging = Staging::new(&limits);
        let merging = Merging::new(&path, queue_depth);
        let direct = Direct::new(policy.is_direct(), staged_max);
        HwCtx {
            id,
            queue: policy.open_queue(id, staged_max),
            policy,
            device,
            tags: TagSet::new(queue_depth),
            by_tag: vec![InFlight::FREE; queue_depth as usize],
            refused: None,
            is_held_back: false,
            later_ns: None,
            frozen: None,
            requests: RequestTable::new(staged_max + queue_depth as usize + merging.extra_max),
            merging,
            direct,
            expiry: Expiry::new(&path),
            plug: path.plug.max(1),
            resend: VecDeque::new(),
            cost,
            async_writes: path.async_writes,
            reaped: Vec::with_capacity(queue_depth as usize),
            room: Vec::with_capacity(staging.flows()),
            staging,
            raw: None,
            flow_stats: vec![None; limits.len()],
            stats: HctxStats::default(),
            accounted_ns: 0,
            trace: None,
        }
    }

    /// The same without counters per flow ([`HwCtx::flow_stats`] is empty): 100 KB for each flow that completes
    /// something here, which the simulator's 100,000 tenants do not have.
    #[must_use]
    pub fn without_flow_stats(self) -> HwCtx<P> {
        HwCtx { flow_stats: Vec::new(), ..self }
    }

    /// The same without a block layer: requests go straight to the device queue, and the policy is never asked
    /// ([`BlockLayer::Raw`](crate::queues::BlockLayer::Raw)).
    #[must_use]
    pub fn raw(self) -> HwCtx<P> {
        HwCtx { raw: Some(Box::new(RawPath::new(self.by_tag.len()))), ..self }.without_flow_stats()
    }

    /// The same on a set of class queues ([`Device::open_class_queues`](crate::device::Device::open_class_queues)),
    /// each as deep as `queue_depth` says.
    ///
    /// # Panics
    /// If that is more than [`TagSet::CLASS_DEPTH_MAX`].
    #[must_use]
    pub fn with_class_queues(self) -> HwCtx<P> {
        let tags = TagSet::with_classes(self.by_tag.len() as u16);
        let all = tags.all();
        let requests = RequestTable::new(self.requests.room() + all - self.by_tag.len());
        let raw = self.raw.map(|_| Box::new(RawPath::new(all)));
        HwCtx { tags, by_tag: vec![InFlight::FREE; all], requests, raw, reaped: Vec::with_capacity(all), ..self }
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
        if self.raw.is_some() {
            return self.submit_raw(owner, submission, now_ns);
        }
        let (flow, length_bytes) = (submission.flow, submission.length_bytes);
        if !self.staging.admit(flow, payload_bytes(submission.op, length_bytes)) {
            self.stats.refused += 1;
            return Err(Full(submission));
        }
        let kind = cost_kind(submission.op);
        let cost = self.cost.cost(kind, u64::from(length_bytes));
        let (is_sync, offset_bytes) = (self.is_sync(submission.op, submission.fua), submission.offset_bytes);
        let handle = self.requests.insert(Request::admit(owner, submission, cost, now_ns));
        // The table has a place for each staged request of each flow, for each tag and for what shares a tag, so
        // `admit` is the only bound.
        let handle = handle.unwrap_or_else(|_| panic!("{:?}: the request table is smaller than its bounds", self.id));
        let entry = Entry { flow, cost, handle, kind, is_sync, offset_bytes, length_bytes };
        match &mut self.frozen {
            None if self.direct.is_on => self.go(handle, flow, cost, now_ns),
            None => self.policy.submit(&mut self.queue, entry, now_ns, kick),
            Some(held) => held.push_back(entry),
        }
        Ok(())
    }

    /// Dispatches what the policy grants, at most a batch.
    pub fn run(&mut self, now_ns: u64, kick: &mut impl Kick) -> Run {
        if self.raw.is_some() {
            return Run { dispatched: self.ring_raw(now_ns), again: false };
        }
        self.account(now_ns);
        if self.direct.is_on {
            let dispatched = self.run_direct(now_ns);
            self.ring(dispatched, now_ns);
            return Run { dispatched, again: false };
        }
        let mut kicks = 0;
        let mut counting = |hctx: HctxId| {
            kicks += 1;
            kick.kick(hctx);
        };
        let mut dispatched = 0;
        let mut again = false;
        let mut full = false;
        self.is_held_back = false;
        self.later_ns = None;
        if let Some(command) = self.refused.take() {
            dispatched += self.offer_again(command, now_ns);
        }
        if !self.resend.is_empty() {
            dispatched += self.send_again(now_ns);
        }
        while self.refused.is_none() {
            if dispatched >= BATCH_MAX {
                again = true;
                break;
            }
            // Without a tag there is no point in picking: commands of ours fill the device queue, and the reap of the
            // first of them leads here again.
            let Some(tag) = self.tags.acquire() else {
                full = true;
                break;
            };
            let grant = match self.policy.pick(&mut self.queue, now_ns, &mut counting) {
                Pick::Dispatch(grant) => grant,
                refusal => {
                    self.tags.release(tag);
                    self.is_held_back = matches!(refusal, Pick::Throttled | Pick::NoToken);
                    let event = match refusal {
                        Pick::Throttled => {
                            self.stats.throttled += 1;
                            TraceEvent::Throttled
                        }
                        Pick::NoToken => {
                            self.stats.no_token += 1;
                            TraceEvent::NoToken
                        }
                        Pick::Later(at_ns) => {
                            self.later_ns = Some(at_ns);
                            self.stats.later += 1;
                            TraceEvent::Later
                        }
                        _ => {
                            self.stats.idle += 1;
                            break;
                        }
                    };
                    if let Some(trace) = &mut self.trace {
                        trace.mark(event, now_ns);
                    }
                    break;
                }
            };
            let Grant { handle, flow, token } = grant;
            let request = self.requests.get_mut(handle);
            debug_assert_eq!(request.flow, flow, "the policy granted {handle:?} to another flow");
            request.state = State::Dispatched { tag, token };
            request.dispatched_ns = now_ns;
            if self.staging.leave(flow, payload_bytes(request.op, request.length_bytes)) {
                self.room.push(flow);
            }
            if self.merging.is_on() {
                dispatched += self.gather(tag, handle);
            } else {
                let command = self.command(tag, handle);
                dispatched += usize::from(self.offer(command));
            }
        }
        if self.merging.is_on() && self.refused.is_none() {
            dispatched += self.close();
        }
        if full || self.refused.is_some() {
            self.policy.pause(&mut self.queue, &mut counting);
        }
        self.ring(dispatched, now_ns);
        self.stats.kicks += kicks;
        Run { dispatched, again }
    }

    /// Tells the device of what was handed over, if anything was.
    #[inline(always)]
    fn ring(&mut self, dispatched: usize, now_ns: u64) {
        if dispatched > 0 {
            self.device.ring_doorbell(now_ns);
            self.expiry.arm(now_ns);
            self.stats.doorbells += 1;
            self.stats.dispatched += dispatched as u64;
        }
    }

    /// Counts the time since the last call towards the commands that were on the device all the while.
    fn account(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.accounted_ns);
        self.accounted_ns = now_ns;
        let in_flight = self.tags.in_use() as u64;
        self.stats.busy_ns += if in_flight > 0 { elapsed_ns } else { 0 };
        self.stats.in_flight_ns += in_flight * elapsed_ns;
    }

    /// Collects what the device finished and appends the completions to `out`. Returns how many.
    pub fn reap(&mut self, now_ns: u64, kick: &mut impl Kick, out: &mut Vec<(Owner, Completion)>) -> usize {
        self.device.reap(now_ns, &mut self.reaped);
        let before = out.len();
        if self.raw.is_some() {
            self.complete_raw(now_ns, out);
            return out.len() - before;
        }
        self.account(now_ns);
        let mut kicks = 0;
        let mut counting = |hctx: HctxId| {
            kicks += 1;
            kick.kick(hctx);
        };
        let mut all = std::mem::take(&mut self.reaped);
        for Reaped { tag, generation, status, buffer, more } in all.drain(..) {
            let Some(head) = self.by_tag[tag.0 as usize].end(generation) else {
                self.stats.late_completions += 1;
                continue;
            };
            self.tags.release(tag);
            if self.merging.extra > 0 && self.requests.get_mut(head).next.is_some() {
                self.end_merged(head, status, buffer, more, now_ns, &mut counting, out);
            } else {
                self.complete(head, status, buffer, now_ns, &mut counting, out);
            }
        }
        self.reaped = all;
        if self.expiry.is_due(now_ns) {
            self.look(now_ns, &mut counting, out);
        }
        self.stats.kicks += kicks;
        if self.direct.is_on && out.len() > before {
            self.adjust(now_ns);
        }
        out.len() - before
    }

    /// Gives the device the weights of classes that the policy wants.
    #[inline(always)]
    fn adjust(&mut self, now_ns: u64) {
        if let Some(weights) = self.policy.adjust(&mut self.queue, now_ns) {
            self.device.set_class_weights(weights, now_ns);
        }
    }

    /// As `complete`, away from the path of requests that are alone in their command.
    #[inline(never)]
    fn complete_apart(
        &mut self,
        handle: Handle,
        status: Status,
        buffer: Option<Buffer>,
        now_ns: u64,
        kick: &mut impl Kick,
        out: &mut Vec<(Owner, Completion)>,
    ) {
        self.complete(handle, status, buffer, now_ns, kick, out);
    }

    /// Somebody waits for it, as far as one can know here.
    #[inline(always)]
    fn is_sync(&self, op: Op, fua: bool) -> bool {
        fua || match op {
            Op::Read | Op::Flush => true,
            Op::Write => !self.async_writes,
            Op::Discard | Op::WriteZeroes { .. } => false,
        }
    }

    /// A request that the device finished, for the policy.
    #[inline(always)]
    fn done(&self, handle: Handle, request: &Request) -> Done {
        let &Request { flow, op, fua, length_bytes, cost, submitted_ns, dispatched_ns, .. } = request;
        let (kind, is_sync) = (cost_kind(op), self.is_sync(op, fua));
        Done { flow, handle, kind, is_sync, length_bytes, cost, submitted_ns, dispatched_ns }
    }

    /// Completes a request that has a token.
    #[inline(always)]
    fn complete(
        &mut self,
        handle: Handle,
        status: Status,
        buffer: Option<Buffer>,
        now_ns: u64,
        kick: &mut impl Kick,
        out: &mut Vec<(Owner, Completion)>,
    ) {
        let request = self.requests.take(handle);
        let (flow, cost) = (request.flow, request.cost);
        let done = self.done(handle, &request);
        if let Some(trace) = &mut self.trace {
            trace.completed(&request, status, now_ns);
        }
        let (owner, completion, token) = request.complete(status, buffer, now_ns);
        match token {
            Some(token) if self.direct.is_on => {
                let units = token.into_units();
                debug_assert_eq!(units, 0, "a direct policy hands out no tokens");
                self.policy.ended(&mut self.queue, flow, cost, now_ns);
            }
            Some(token) => self.policy.complete(&mut self.queue, done, token, now_ns, kick),
            None => {}
        }
        if let Some(stats) = self.flow_stats.get_mut(flow.0 as usize) {
            stats.get_or_insert_with(first_completion).record(&completion);
        }
        out.push((owner, completion));
    }

    /// Flows that were refused and have room since the last call.
    pub fn take_room(&mut self) -> std::vec::Drain<'_, FlowId> {
        self.room.iter().for_each(|&flow| self.staging.told(flow));
        self.room.drain(..)
    }

    /// From now on admitted requests wait outside the policy, until [`HwCtx::thaw`]. What the policy has goes on to the
    /// device and back.
    pub fn freeze(&mut self, now_ns: u64) {
        let room = self.requests.room();
        self.frozen.get_or_insert_with(|| VecDeque::with_capacity(room));
        if let Some(trace) = &mut self.trace {
            trace.mark(TraceEvent::Frozen, now_ns);
        }
    }

    /// Frozen, and neither the policy nor the device has anything left of this context.
    pub fn is_quiet(&self) -> bool {
        self.frozen.is_some() && self.staged() == 0 && self.in_flight() == 0 && self.resend.is_empty()
    }

    /// Goes on, with another policy and this context's queue of it if one is given, and stages what has waited, in its
    /// order. Call [`HwCtx::run`] after it.
    ///
    /// # Panics
    /// If another policy is given while the old one has requests of this context ([`HwCtx::is_quiet`]), or its queue is
    /// smaller than the old one's: their requests and tokens would be lost.
    pub fn thaw(&mut self, policy: Option<(Arc<P>, P::Queue)>, now_ns: u64, kick: &mut impl Kick) {
        if let Some((policy, queue)) = policy {
            assert!(
                self.is_quiet(),
                "{:?}: the policy has {} requests, the device {}",
                self.id,
                self.staged(),
                self.in_flight()
            );
            self.direct = Direct::new(policy.is_direct(), self.requests.room());
            (self.policy, self.queue) = (policy, queue);
        }
        if let Some(trace) = &mut self.trace {
            trace.mark(TraceEvent::Thawed, now_ns);
        }
        for entry in self.frozen.take().into_iter().flatten() {
            match self.direct.is_on {
                true => self.go(entry.handle, entry.flow, entry.cost, now_ns),
                false => self.policy.submit(&mut self.queue, entry, now_ns, kick),
            }
        }
    }

    /// Requests that this context's queue of a policy must be able to stage.
    pub fn capacity_requests(limits: &[StageLimits]) -> usize {
        // A queue that holds nothing cannot be asked for; where no flow submits, one place is not used.
        limits.iter().map(|limit| limit.requests_max as usize).sum::<usize>().max(1)
    }

    /// When [`HwCtx::run`] and [`HwCtx::reap`] must be called next if nothing else happens.
    pub fn next_event_ns(&self) -> Option<u64> {
        if !self.resend.is_empty() && self.refused.is_none() && self.in_flight() < self.queue_depth() {
            return Some(0);
        }
        let look_ns = if self.in_flight() > 0 { self.expiry.look_ns() } else { None };
        [self.device.next_event_ns(), self.later_ns, look_ns].into_iter().flatten().min()
    }

    /// Commands on the device at once, at most, of all class queues if it has them.
    pub fn queue_depth(&self) -> usize {
        self.by_tag.len()
    }

    /// Calls of clients that gather before a dispatch.
    pub fn plug(&self) -> u32 {
        self.plug
    }

    /// Requests that one reap completes, at most.
    pub fn completions_max(&self) -> usize {
        self.by_tag.len() + self.merging.extra_max
    }

    /// The device queue, for completions that come through the worker's ring.
    pub fn device_mut(&mut self) -> &mut dyn DeviceQueue {
        &mut *self.device
    }

    /// The policy's state of this context, for tests and reports.
    pub fn staged(&self) -> usize {
        self.policy.staged(&self.queue) + self.direct.waiting()
    }

    /// Requests admitted and not completed.
    pub fn admitted(&self) -> usize {
        // Without a block layer a request that was taken is on the device.
        if self.raw.is_some() { self.tags.in_use() } else { self.requests.len() }
    }

    /// Commands on the device.
    pub fn in_flight(&self) -> usize {
        self.tags.in_use()
    }

    /// A command waits for a place in the device queue.
    pub fn is_blocked(&self) -> bool {
        self.refused.is_some()
    }

    /// The last [`HwCtx::run`] ended because the policy held back what is staged: another worker will kick this one.
    pub fn is_held_back(&self) -> bool {
        self.is_held_back
    }

    /// Counters per flow, by [`FlowId`]; none if nothing of the flow has completed here.
    pub fn flow_stats(&mut self) -> &[Option<Box<FlowStats>>] {
        self.flow_stats.iter_mut().flatten().for_each(|stats| stats.settle());
        &self.flow_stats
    }

    /// Counters of this context, as of the last [`HwCtx::run`] or [`HwCtx::reap`].
    pub fn stats(&self) -> HctxStats {
        HctxStats { in_flight: self.in_flight() as u64, staged: self.staged() as u64, ..self.stats }
    }

    /// From now on keeps the last `capacity` requests that complete, and as many marks. What was recorded before is
    /// dropped.
    pub fn start_trace(&mut self, capacity: usize) {
        self.trace = Some(Box::new(Recorder::new(capacity)));
    }

    /// Stops recording. What was recorded; nothing if it was off.
    pub fn take_trace(&mut self) -> Option<Trace> {
        Some(self.trace.take()?.into_trace(self.requests.iter()))
    }
}

#[cold]
fn first_completion() -> Box<FlowStats> {
    Box::default()
}

fn cost_kind(op: Op) -> CostKind {
    match op {
        Op::Read => CostKind::Read,
        Op::Write => CostKind::Write,
        Op::Flush => CostKind::Flush,
        Op::Discard | Op::WriteZeroes { .. } => CostKind::Discard,
    }
}

/// Bytes of memory that a staged request holds.
fn payload_bytes(op: Op, length_bytes: u32) -> u32 {
    match op {
        Op::Read | Op::Write => length_bytes,
        Op::Flush | Op::Discard | Op::WriteZeroes { .. } => 0,
    }
}
