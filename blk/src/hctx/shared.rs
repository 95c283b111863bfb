//! State of all paths of a context: the policy, the table of requests, the commands on the device, the counters.
//!
//! A path decides when a request goes to the device. How it is admitted, becomes a command and completes is the same on
//! every path with a block layer, and is here; [`Ending`] is the one thing that they do differently at a request's end.

use super::counters::Counters;
use super::follow::Follow;
use super::hand_over::Commands;
use super::split::Splitting;
use super::timeout::Expiry;
use super::turn::Turn;
use super::{Full, HwCtxOptions};
use crate::buffer::Buffer;
use crate::device::{Command, QueueFull, Reaped};
use crate::list::{Place, forget_all};
use crate::request::{Completion, Op, Status, Submission};
use crate::stage::Staging;
use crate::table::{Charge, Completed, Owner, RequestTable, State};
use crate::tag::Tag;
use crate::trace::TraceEvent;
use crate::tuning::Meter;
use mqfq_sched::cost::{CostKind, CostModel, CostTerm};
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{DispatchToken, Done, Entry, Grant, Handle, Kick, Policy, QueueClass};
use mqfq_sched::topology::HctxId;
use std::sync::Arc;

/// How a policy is told of a request's end.
pub(super) trait Ending<P: Policy> {
    /// The device finished a request whose token is `token`.
    fn ended(policy: &P, queue: &mut P::Queue, done: Done, token: DispatchToken, now_ns: u64, kick: &mut impl Kick);
}

/// How a submission is charged, by [`Op::index`].
pub(super) struct Charges {
    by_op: [OpCharge; Op::COUNT],
    /// Writing zeroes costs as much as a write.
    zeroes_as_writes: bool,
}

#[derive(Clone, Copy)]
struct OpCharge {
    term: CostTerm,
    kind: CostKind,
    is_sync: bool,
    /// All ones if a staged request holds its payload.
    payload_mask: u32,
}

impl Charges {
    pub(super) fn new(cost: &CostModel, async_writes: bool) -> Charges {
        let of = |kind, is_sync, payload_mask| OpCharge { term: cost.term(kind), kind, is_sync, payload_mask };
        // A client waits for a read, a flush, and for a write unless it is a cache's.
        let read = of(CostKind::Read, true, u32::MAX);
        let write = of(CostKind::Write, !async_writes, u32::MAX);
        let flush = of(CostKind::Flush, true, 0);
        let discard = of(CostKind::Discard, false, 0);
        let zeroes = OpCharge { term: cost.zeroes(), ..discard };
        Charges { by_op: [read, write, flush, discard, zeroes], zeroes_as_writes: cost.write_zeroes.is_none() }
    }

    /// Writes are charged by `term` from now on.
    pub(super) fn set_write(&mut self, term: CostTerm) {
        self.by_op[Op::Write.index()].term = term;
        if self.zeroes_as_writes {
            self.by_op[Op::WriteZeroes { may_unmap: false }.index()].term = term;
        }
    }

    #[inline(always)]
    pub(super) fn of(&self, submission: &Submission) -> Charge {
        let &Submission { op, length_bytes, fua, .. } = submission;
        let &OpCharge { term, kind, is_sync, payload_mask } = &self.by_op[op.index()];
        let (cost, staged_bytes) = (term.cost(u64::from(length_bytes)), length_bytes & payload_mask);
        Charge { cost, kind, is_sync: is_sync | fua, staged_bytes }
    }
}

/// State common to all paths of a context.
pub(super) struct Shared<P: Policy> {
    pub(super) id: HctxId,
    pub(super) policy: Arc<P>,
    pub(super) queue: P::Queue,
    pub(super) charges: Charges,
    pub(super) staging: Staging,
    pub(super) requests: RequestTable,
    pub(super) commands: Commands,
    /// Nothing if no request is ever cut.
    pub(super) splitting: Option<Box<Splitting>>,
    /// Why an end is looked at before its request completes: parts under way, and one if all ends are counted.
    pub(super) apart: usize,
    pub(super) expiry: Expiry,
    pub(super) turn: Turn,
    /// Flows that were refused, have room, and are to be told.
    pub(super) room: Vec<FlowId>,
    pub(super) counters: Counters,
    /// Measurements for figures that are found while the policy runs; off if the figures are numbers.
    pub(super) meter: Meter,
    /// `None`: a write is charged as the cost model says, for good.
    pub(super) follow: Option<Follow>,
}

impl<P: Policy> Shared<P> {
    pub(super) fn new(options: HwCtxOptions<P>) -> Shared<P> {
        let HwCtxOptions { id, policy, device, queue_depth, limits, cost, path } = options;
        let staged_max = super::capacity_requests(&limits);
        let staging = Staging::new(&limits);
        let places = staged_max + queue_depth as usize;
        let splitting = Splitting::new(path.split, path.block_bytes, places);
        Shared {
            id,
            queue: policy.open_queue(id, staged_max),
            policy,
            charges: Charges::new(&cost, path.async_writes),
            requests: RequestTable::new(places),
            commands: Commands::new(device, queue_depth),
            splitting,
            apart: 0,
            expiry: Expiry::new(&path),
            turn: Turn::default(),
            room: Vec::with_capacity(staging.flows()),
            staging,
            counters: Counters::new(limits.len()),
            meter: Meter::off(),
            follow: None,
        }
    }

    /// Takes in a request that is within the bounds of its flow.
    #[inline(always)]
    pub(super) fn admit(&mut self, owner: Owner, submission: Submission, now_ns: u64) -> Result<Entry, Full> {
        let charge = self.charges.of(&submission);
        let &Submission { flow, offset_bytes, length_bytes, .. } = &submission;
        if !self.staging.admit(flow, charge.staged_bytes) {
            self.counters.stats().refused.add(1);
            return Err(Full(submission));
        }
        let Charge { cost, kind, is_sync, .. } = charge;
        // The table has a place for each staged request of each flow, for each tag, so `admit` is the
        // only bound.
        let Some(place) = self.requests.vacant() else { panic_table_full(self.id) };
        let handle = place.fill(owner, submission, charge, now_ns);
        Ok(Entry { flow, cost, handle, kind, is_sync, offset_bytes, length_bytes })
    }

    /// Makes a granted request a command. Returns requests handed to the device. `IS_METERED`: as of
    /// [`Shared::complete`].
    #[inline(always)]
    pub(super) fn dispatch<const IS_METERED: bool>(
        &mut self,
        tag: Tag,
        grant: Grant,
        class: QueueClass,
        now_ns: u64,
    ) -> usize {
        let Grant { handle, flow, token } = grant;
        let request = self.requests.get_mut(handle);
        debug_assert_eq!(request.submission.flow, flow, "the policy granted {handle:?} to another flow");
        if IS_METERED {
            self.meter.dispatched(token.units());
        }
        request.state = State::Dispatched { tag, token };
        request.dispatched_ns = now_ns;
        if self.staging.leave(flow, request.charge.staged_bytes) {
            self.room.push(flow);
        }
        let command = self.commands.of(tag, handle, class, request);
        usize::from(self.offer(command))
    }

    /// Counts a request that was dispatched while flows compete. True: it ends the turn.
    #[cold]
    #[inline(never)]
    pub(super) fn ends_turn(&mut self, handle: Handle) -> bool {
        let request = self.requests.get_mut(handle);
        let (owner, flow, bytes) = (request.owner, request.submission.flow, request.submission.length_bytes);
        let given = self.turn.give(owner, bytes);
        if given.is_worth_a_look() && self.staging.staged(flow) == 1 && self.staging.hold_back(flow) {
            self.turn.end_for(flow);
        } else if given.is_all() {
            self.turn.end();
        }
        self.turn.is_over()
    }

    /// Notes that the sockets were looked at, and the requests read are staged.
    pub(super) fn looked(&mut self, flow: FlowId) {
        if let Some(flow) = self.turn.take_held_back() {
            self.staging.held_back(flow);
        }
        let staged = self.policy.staged(&self.queue);
        // With nothing staged there need not even be a flow.
        if staged > 0 && staged > self.staging.staged(flow) {
            self.turn.compete();
        }
    }

    /// Rings the doorbell if commands were handed over.
    #[inline(always)]
    pub(super) fn ring(&mut self, dispatched: usize, now_ns: u64) {
        if dispatched > 0 {
            self.commands.device.ring_doorbell(now_ns);
            self.expiry.arm(now_ns);
            self.counters.stats().doorbells.add(1);
            self.counters.stats().dispatched.add(dispatched as u64);
        }
    }

    /// Completes all that the device has finished, on path `E`.
    #[inline(always)]
    pub(super) fn complete_all<E: Ending<P>>(
        &mut self,
        now_ns: u64,
        kick: &mut impl Kick,
        out: &mut Vec<(Owner, Completion)>,
    ) {
        self.account(now_ns);
        // Where nothing is measured, requests do not pay for it; nor where each is known to be of one unit.
        let is_metered = self.meter.is_on();
        if is_metered && !self.are_ones(now_ns) {
            return self.complete_metered::<E>(now_ns, kick, out);
        }
        let before = out.len();
        self.complete_each::<E, false>(now_ns, kick, out);
        if is_metered {
            self.meter.completed_ones(&out[before..]);
        }
    }

    /// Whether all requests on the device are of one unit, and each end now was carried out.
    #[inline(always)]
    fn are_ones(&self, now_ns: u64) -> bool {
        // No request is of less than a unit, and one without a tag has a unit, too.
        self.meter.has_out(self.commands.tags.in_use() as u64)
            && self.apart == 0
            && self.commands.recalls.is_none()
            && !self.expiry.is_due(now_ns)
    }

    /// [`Shared::complete_all`] where something is measured, and requests may be of several units.
    #[inline(never)]
    fn complete_metered<E: Ending<P>>(
        &mut self,
        now_ns: u64,
        kick: &mut impl Kick,
        out: &mut Vec<(Owner, Completion)>,
    ) {
        let are_any = !self.commands.reaped.is_empty();
        self.complete_each::<E, true>(now_ns, kick, out);
        if are_any {
            self.meter.end_run();
        }
    }

    #[inline(always)]
    fn complete_each<E: Ending<P>, const IS_METERED: bool>(
        &mut self,
        now_ns: u64,
        kick: &mut impl Kick,
        out: &mut Vec<(Owner, Completion)>,
    ) {
        let mut kicks = 0;
        let mut counting = |hctx: HctxId| {
            kicks += 1;
            kick.kick(hctx);
        };
        let mut all = std::mem::take(&mut self.commands.reaped);
        // Fields of an end are taken out of their place, and not moved out with all the rest.
        for Reaped { tag, generation, status, buffer } in &mut all {
            let Some(head) = self.commands.end(*tag, *generation) else {
                self.counters.stats().late_completions.add(1);
                drop(buffer.take());
                continue;
            };
            if self.apart == 0 {
                self.complete::<E, IS_METERED>(head, *status, buffer, now_ns, &mut counting, out);
            } else {
                self.complete_part::<E>(head, *status, buffer, now_ns, &mut counting, out);
            }
        }
        debug_assert!(all.iter().all(|ended| ended.buffer.is_none()), "an end keeps its payload");
        forget_all(&mut all);
        self.commands.reaped = all;
        if self.expiry.is_due(now_ns) {
            self.look::<E>(now_ns, &mut counting, out);
        }
        self.counters.stats().kicks.add(kicks);
    }

    /// So many requests were completed: steps what tunes the policy, if anything does and it is time.
    #[inline(always)]
    pub(super) fn tune(&mut self, completed: usize, now_ns: u64, kick: &mut impl Kick) {
        if self.meter.reaped(completed, now_ns) {
            self.step_tuning(now_ns, kick);
        }
    }

    #[inline(never)]
    fn step_tuning(&mut self, now_ns: u64, kick: &mut impl Kick) {
        let Shared { meter, policy, counters, splitting, .. } = self;
        let is_in_parts = splitting.as_deref().is_some_and(|splitting| splitting.control().is_in_parts());
        if meter.step(is_in_parts, &**policy, now_ns, kick) {
            counters.mark(TraceEvent::Tuned, now_ns);
        }
    }

    /// Counts the time since the last call towards the commands that were on the device all the while.
    pub(super) fn account(&mut self, now_ns: u64) {
        self.counters.account(self.commands.tags.in_use() as u64, now_ns);
        self.meter.account(now_ns);
    }

    /// Completes a request that has a token, with the payload in `buffer`. `IS_METERED`: the meter counts it; false
    /// only where the meter is off, or counts all of a reap at once.
    #[inline(always)]
    pub(super) fn complete<E: Ending<P>, const IS_METERED: bool>(
        &mut self,
        handle: Handle,
        status: Status,
        buffer: &mut Option<Buffer>,
        now_ns: u64,
        kick: &mut impl Kick,
        out: &mut Vec<(Owner, Completion)>,
    ) {
        if let Some(trace) = &mut self.counters.trace {
            trace.completed(self.requests.get_mut(handle), status, now_ns);
        }
        let place = Place::behind(out);
        let Completed { owner, completion, token, request } =
            self.requests.take(handle).complete(status, buffer, now_ns);
        let Completion { op, length_bytes, queued_ns, device_ns, .. } = completion;
        // At once: what may call another function first is kept on the stack meanwhile.
        place.fill((owner, completion));
        if let Some(stats) = self.counters.of(request.submission.flow) {
            stats.count(op, status, length_bytes, queued_ns, device_ns, now_ns);
            stats.charge(request.charge.cost.0);
        }
        if IS_METERED {
            match status {
                Status::Recalled => self.meter.given_back(token.units()),
                _ => self.meter.completed(token.units(), queued_ns + device_ns),
            }
        }
        E::ended(&self.policy, &mut self.queue, request.done(handle), token, now_ns, kick);
    }

    /// Hands a command to the device queue; keeps it if there is no place.
    #[inline(always)]
    pub(super) fn offer(&mut self, command: Command) -> bool {
        match self.commands.device.submit(command) {
            Ok(()) => true,
            Err(QueueFull(command)) => {
                self.commands.refused = Some(command);
                false
            }
        }
    }
}

#[cold]
#[inline(never)]
pub(super) fn panic_table_full(id: HctxId) -> ! {
    panic!("{id:?}: the request table is smaller than its bounds");
}
