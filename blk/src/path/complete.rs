//! The end of a request: its token goes back to the policy, its place is free, its completion goes to the client.
//!
//! [`Ending`] is the one thing that the paths do differently.

use super::parts::{Ended, WholeEnd};
use super::request_path::RequestPath;
use crate::buffer::Buffer;
use crate::device::Reaped;
use crate::edge::list::{VacantEntry, forget_all};
use crate::request::{Completion, Status};
use crate::table::{Completed, Owner, Request, State};
use crate::tag::Tag;
use crate::trace::TraceEvent;
use mqfq_sched::cost::Cost;
use mqfq_sched::policy::{DispatchToken, Done, Handle, Kick, Policy};
use mqfq_sched::topology::HctxId;

/// Form in which a policy learns of a request's end.
pub(super) trait Ending<P: Policy> {
    /// The device finished a request whose token is `token`.
    fn ended(policy: &P, queue: &mut P::Queue, done: Done, token: DispatchToken, now_ns: u64, kick: &mut impl Kick);
}

/// The policy was told of the end before: the token is back.
struct ToldBefore;

impl<P: Policy> Ending<P> for ToldBefore {
    fn ended(_: &P, _: &mut P::Queue, _: Done, token: DispatchToken, _: u64, _: &mut impl Kick) {
        assert_eq!(token.into_units(), 0, "a token is given back once");
    }
}

impl<P: Policy> RequestPath<P> {
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

    /// True if all requests on the device are of one unit, and each end now was carried out.
    #[inline(always)]
    fn are_ones(&self, now_ns: u64) -> bool {
        // No request is of less than a unit, and one without a tag has a unit, too.
        self.meter.has_out(self.commands.tags.in_use() as u64)
            && self.slow_completions == 0
            && self.commands.recalls.is_none()
            && !self.expiry.is_due(now_ns)
    }

    /// [`RequestPath::complete_all`] where something is measured, and requests may be of several units.
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
            if self.slow_completions == 0 {
                self.complete::<E, IS_METERED>(head, *status, buffer, now_ns, &mut counting, out);
            } else {
                self.complete_slowly::<E>(head, *status, buffer, now_ns, &mut counting, out);
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
        let RequestPath { meter, policy, counters, splitting, .. } = self;
        let is_in_parts = splitting.as_deref().is_some_and(|splitting| splitting.control().is_in_parts());
        if meter.step(is_in_parts, &**policy, now_ns, kick) {
            counters.mark(TraceEvent::Tuned, now_ns);
        }
        if let Some(splitting) = splitting.as_deref() {
            splitting.control().limit(meter.part_bytes());
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
        let place = VacantEntry::behind(out);
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

    /// As `complete`, where the request may be a part, or its end is counted for `"auto"`.
    #[inline(never)]
    pub(super) fn complete_slowly<E: Ending<P>>(
        &mut self,
        handle: Handle,
        status: Status,
        buffer: &mut Option<Buffer>,
        now_ns: u64,
        kick: &mut impl Kick,
        out: &mut Vec<(Owner, Completion)>,
    ) {
        if self.is_without_token(handle) {
            self.stuck_one_ends(handle, kick);
            return self.complete_slow_end::<ToldBefore>(handle, status, buffer, now_ns, kick, out);
        }
        self.complete_slow_end::<E>(handle, status, buffer, now_ns, kick, out);
    }

    fn complete_slow_end<E: Ending<P>>(
        &mut self,
        handle: Handle,
        status: Status,
        buffer: &mut Option<Buffer>,
        now_ns: u64,
        kick: &mut impl Kick,
        out: &mut Vec<(Owner, Completion)>,
    ) {
        if let Some(splitting) = self.splitting.as_deref_mut() {
            if let Some(whole) = splitting.take_whole_of(handle) {
                return self.complete_part::<E>(whole, handle, status, buffer, now_ns, kick, out);
            }
            let &mut Request { ref submission, dispatched_ns, .. } = self.requests.get_mut(handle);
            splitting.note(&Ended::of(submission, status, now_ns.saturating_sub(dispatched_ns)));
        }
        self.complete::<E, true>(handle, status, buffer, now_ns, kick, out);
    }

    /// Ends a request that is staged with [`Status::Recalled`], uncharged. `is_outside`: the policy does not have it.
    /// False: it stays.
    #[cold]
    pub(super) fn withdraw(
        &mut self,
        handle: Handle,
        is_outside: bool,
        now_ns: u64,
        kick: &mut impl Kick,
        out: &mut Vec<(Owner, Completion)>,
    ) -> bool {
        let RequestPath { requests, policy, queue, staging, room, .. } = self;
        let request = requests.get_mut(handle);
        let (flow, cost) = (request.submission.flow, request.charge.cost);
        if !is_outside && !policy.withdraw(queue, (flow, handle, cost), kick) {
            return false;
        }
        if staging.leave(flow, request.charge.staged_bytes) {
            room.push(flow);
        }
        // As one that went to the device without a token and is back.
        request.state = State::Dispatched { tag: Tag(0), token: DispatchToken::new(0) };
        (request.dispatched_ns, request.charge.cost) = (now_ns, Cost(0));
        let mut buffer = request.submission.buffer.take();
        self.complete_slow_end::<ToldBefore>(handle, Status::Recalled, &mut buffer, now_ns, kick, out);
        true
    }

    /// Ends a part of the request `whole`; the last part completes it.
    #[allow(clippy::too_many_arguments, reason = "those of `complete`, and the whole")]
    fn complete_part<E: Ending<P>>(
        &mut self,
        whole: u32,
        handle: Handle,
        status: Status,
        buffer: &mut Option<Buffer>,
        now_ns: u64,
        kick: &mut impl Kick,
        out: &mut Vec<(Owner, Completion)>,
    ) {
        if status == Status::TimedOut && self.hold_part::<E>(whole, handle, buffer, now_ns, kick) {
            return;
        }
        let RequestPath { splitting, requests, counters, slow_completions, meter, .. } = self;
        let Some(splitting) = splitting.as_deref_mut() else { unreachable!("a part of {whole} without parts") };
        *slow_completions -= 1;
        if let Some(trace) = &mut counters.trace {
            trace.completed(requests.get_mut(handle), status, now_ns);
        }
        let Completed { owner, completion, token, request } = requests.take(handle).complete(status, buffer, now_ns);
        let Completion { cookie, op, buffer: part, queued_ns: part_queued_ns, device_ns: part_device_ns, .. } =
            completion;
        // A part took units of its own at its dispatch.
        match status {
            Status::Recalled => meter.given_back(token.units()),
            _ => meter.completed(token.units(), part_queued_ns + part_device_ns),
        }
        // Before the whole is looked at, which is mended when no part has it.
        drop(part);
        if let Some(stats) = counters.of(request.submission.flow) {
            stats.charge(request.charge.cost.0);
        }
        if let Some(ended) = splitting.part_ended(whole, status, request.dispatched_ns) {
            let WholeEnd { status, length_bytes, buffer, submitted_ns, dispatched_ns } = ended;
            let queued_ns = dispatched_ns.saturating_sub(submitted_ns);
            let device_ns = now_ns.saturating_sub(dispatched_ns);
            let flow = request.submission.flow;
            VacantEntry::behind(out)
                .fill((owner, Completion { cookie, status, op, length_bytes, buffer, queued_ns, device_ns }));
            splitting.note(&Ended { flow: flow.0, op, status, length_bytes, device_ns });
            if let Some(stats) = counters.of(flow) {
                stats.count(op, status, length_bytes, queued_ns, device_ns, now_ns);
            }
        }
        E::ended(&self.policy, &mut self.queue, request.done(handle), token, now_ns, kick);
    }
}
