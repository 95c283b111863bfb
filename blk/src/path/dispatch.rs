//! The way of admitted requests to the device queue: the next one, its command, and its waits.
//!
//! The path of a policy that stages: admitted requests wait in the policy's queue until the policy grants them.
//!
//! ```text
//!   submit ──▶ admit ──▶ policy.submit                              (stage)
//!   run    ──▶ policy.pick ──▶ tag ──▶ device.submit … ring_doorbell (dispatch)
//!   reap   ──▶ device.reap ──▶ policy.complete ──▶ Completion        (complete)
//! ```

use super::complete::Ending;
use super::path_options::{BATCH_MAX, Run};
use super::recall::{Nowhere, Recall};
use super::request_path::RequestPath;
use crate::device::{Command, DeviceQueue, QueueFull, Reaped};
use crate::request::Submission;
use crate::table::{Request, State};
use crate::tag::{Tag, TagSet};
use crate::trace::TraceEvent;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{DispatchToken, Done, Grant, Handle, Kick, Pick, Policy, QueueClass};
use mqfq_sched::topology::HctxId;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

/// State of this path alone: why the last run ended.
#[derive(Debug, Default)]
pub(super) struct StagedPath {
    /// The policy held back the staged requests until another worker goes on.
    pub(super) is_held_back: bool,
    /// Time at which the policy wants to be asked again, if it holds back the staged requests.
    pub(super) later_ns: Option<u64>,
}

impl StagedPath {
    /// Dispatches what the policy grants, at most a batch.
    #[inline(always)]
    pub(super) fn run<P: Policy>(&mut self, shared: &mut RequestPath<P>, now_ns: u64, kick: &mut impl Kick) -> Run {
        // Without competition or measurement, requests do not pay for it.
        if shared.intake.is_watched() {
            return self.run_watched(shared, now_ns, kick);
        }
        if shared.meter.is_on() {
            return self.run_metered(shared, now_ns, kick);
        }
        self.run_as::<P, false, false>(shared, now_ns, kick)
    }

    /// [`StagedPath::run`] while flows compete.
    #[inline(never)]
    fn run_watched<P: Policy>(&mut self, shared: &mut RequestPath<P>, now_ns: u64, kick: &mut impl Kick) -> Run {
        self.run_as::<P, true, true>(shared, now_ns, kick)
    }

    /// [`StagedPath::run`] where something is measured.
    #[inline(never)]
    fn run_metered<P: Policy>(&mut self, shared: &mut RequestPath<P>, now_ns: u64, kick: &mut impl Kick) -> Run {
        self.run_as::<P, false, true>(shared, now_ns, kick)
    }

    #[inline(always)]
    fn run_as<P: Policy, const IS_WATCHED: bool, const IS_METERED: bool>(
        &mut self,
        shared: &mut RequestPath<P>,
        now_ns: u64,
        kick: &mut impl Kick,
    ) -> Run {
        let mut kicks = 0;
        let mut counting = |hctx: HctxId| {
            kicks += 1;
            kick.kick(hctx);
        };
        let mut again = false;
        let mut full = false;
        let mut is_waiting = false;
        if self.is_held_back {
            shared.counters.end_hold_back(now_ns);
        }
        *self = StagedPath::default();
        let batch_max = if IS_WATCHED && shared.intake.is_over() { 0 } else { BATCH_MAX };
        let mut dispatched = shared.dispatch_left_over(now_ns);
        while shared.commands.refused.is_none() {
            if dispatched >= batch_max {
                again = true;
                break;
            }
            // Without a tag there is no point in picking: commands of ours fill the device queue, and the reap of the
            // first of them leads here again.
            let Some(tag) = shared.commands.tags.acquire() else {
                full = true;
                break;
            };
            match shared.policy.pick(&mut shared.queue, now_ns, &mut counting) {
                Pick::Dispatch(grant) => {
                    let handle = grant.handle;
                    dispatched += shared.dispatch::<IS_METERED>(tag, grant, QueueClass::default(), now_ns);
                    if IS_WATCHED && shared.ends_turn(handle) {
                        again = true;
                        break;
                    }
                    continue;
                }
                Pick::Throttled => {
                    // The queue that virtual time waits for has no token, and no kick tells this one when it could go.
                    is_waiting = IS_METERED && shared.meter.finds_depth() && shared.policy.is_out_of_units();
                    self.hold_back(shared, TraceEvent::Throttled, now_ns);
                }
                Pick::NoToken => {
                    is_waiting = true;
                    self.hold_back(shared, TraceEvent::NoToken, now_ns);
                }
                Pick::Later(at_ns) => self.wait(shared, at_ns, now_ns),
                Pick::Idle => shared.counters.stats().idle.add(1),
            }
            shared.commands.tags.release(tag);
            break;
        }
        if full || shared.commands.refused.is_some() {
            shared.policy.pause(&mut shared.queue, &mut counting);
        }
        if IS_METERED && shared.meter.is_on() {
            let waiting_flows = if self.is_held_back { shared.policy.staged_flows(&shared.queue) } else { 0 };
            shared.meter.picked(is_waiting, waiting_flows as u64);
        }
        shared.ring(dispatched, now_ns);
        if kicks > 0 {
            shared.intake.compete();
            shared.counters.stats().kicks.add(kicks);
        }
        Run { dispatched, again }
    }

    /// Notes that the policy holds back the staged requests, for this reason.
    #[inline(never)]
    fn hold_back<P: Policy>(&mut self, shared: &mut RequestPath<P>, why: TraceEvent, now_ns: u64) {
        self.is_held_back = true;
        shared.counters.hold_back(why, now_ns);
    }

    /// The policy holds back the staged requests until `at_ns`, in the hope of a better request.
    #[inline(never)]
    fn wait<P: Policy>(&mut self, shared: &mut RequestPath<P>, at_ns: u64, now_ns: u64) {
        self.later_ns = Some(at_ns);
        shared.counters.stats().later.add(1);
        shared.counters.mark(TraceEvent::Later, now_ns);
    }
}

impl<P: Policy> Ending<P> for StagedPath {
    #[inline(always)]
    fn ended(policy: &P, queue: &mut P::Queue, done: Done, token: DispatchToken, now_ns: u64, kick: &mut impl Kick) {
        policy.complete(queue, done, token, now_ns, kick);
    }
}

/// The device queue, the commands on it, and those on the way there.
pub(super) struct Commands {
    pub(super) device: Box<dyn DeviceQueue>,
    pub(super) tags: TagSet,
    pub(super) by_tag: Box<[InFlight]>,
    /// A command that the device queue did not take although we had a tag for it; goes first next time.
    pub(super) refused: Option<Command>,
    /// Requests with tokens that go to the device again.
    pub(super) resend: VecDeque<Handle>,
    /// Commands that the device has finished, while they are completed.
    pub(super) reaped: Vec<Reaped>,
    /// Set: nothing more gets to the device. `None`: recalls were never asked for.
    pub(super) recalls: Option<Rc<Cell<bool>>>,
}

impl Commands {
    /// No commands on `device`, which takes `depth`.
    pub(super) fn new(device: Box<dyn DeviceQueue>, depth: u16) -> Commands {
        Commands::with_tags(device, TagSet::new(depth))
    }

    /// No commands on `device`, which takes as many as there are tags.
    pub(super) fn with_tags(device: Box<dyn DeviceQueue>, tags: TagSet) -> Commands {
        let (by_tag, reaped) = (vec![InFlight::FREE; tags.all()].into(), Vec::with_capacity(tags.all()));
        Commands { device, tags, by_tag, refused: None, resend: VecDeque::new(), reaped, recalls: None }
    }

    #[inline(always)]
    pub(super) fn of(&mut self, tag: Tag, handle: Handle, class: QueueClass, request: &mut Request) -> Command {
        let generation = self.by_tag[tag.0 as usize].begin(handle);
        let &mut Submission { op, offset_bytes, length_bytes, fua, .. } = &mut request.submission;
        let buffer = request.submission.buffer.take();
        Command { tag, op, offset_bytes, length_bytes, fua, buffer, generation, class }
    }

    /// Switches recalls: on, commands that get here are given back; off, they go to the device again.
    pub(super) fn recall(&mut self, is_on: bool) {
        match &self.recalls {
            Some(recalls) => recalls.set(is_on),
            None if is_on => {
                let recalls = Rc::new(Cell::new(true));
                let device = std::mem::replace(&mut self.device, Box::new(Nowhere));
                self.device = Box::new(Recall::new(device, recalls.clone()));
                self.recalls = Some(recalls);
            }
            None => {}
        }
    }

    /// This use of the tag is over, and the tag is free. Its request; `None`: it was over already.
    #[inline(always)]
    pub(super) fn end(&mut self, tag: Tag, generation: u32) -> Option<Handle> {
        let head = self.by_tag[tag.0 as usize].end(generation)?;
        self.tags.release(tag);
        Some(head)
    }
}

/// The present use of a tag, told apart from earlier ones.
///
/// A tag is used again and again. A device that ends a command twice, or after it has given it back (a late end after
/// an abort or a reset), must not end the one that uses the tag now: its client would be told of data that it never
/// got. So each use has a number, which goes down with the command and comes up with its end. An end of another number
/// is ignored.
///
/// ```text
///   generation   0      1        2      3        4 …         wraps after 2^31 uses of one tag
///                free   out      free   out      free
/// ```
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    /// The first request of its command.
    pub(super) head: Handle,
    /// Odd while the device has the command.
    pub(super) generation: u32,
}

impl InFlight {
    pub(super) const FREE: InFlight = InFlight { head: Handle(u32::MAX), generation: 0 };

    /// The device has a command of this tag, or will have it.
    pub(super) fn is_out(&self) -> bool {
        !self.generation.is_multiple_of(2)
    }

    /// The tag is used for a command that begins with this request. Returns which use it is.
    #[inline(always)]
    pub(super) fn begin(&mut self, head: Handle) -> u32 {
        self.head = head;
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    /// Ends this use of the tag. `None`: it was over already.
    #[inline(always)]
    pub(super) fn end(&mut self, generation: u32) -> Option<Handle> {
        if self.generation != generation {
            return None;
        }
        self.generation = generation.wrapping_add(1);
        Some(self.head)
    }
}

impl<P: Policy> RequestPath<P> {
    /// Makes a granted request a command. Returns requests handed to the device. `IS_METERED`: as of
    /// [`RequestPath::complete`].
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
        let given = self.intake.give(owner, bytes);
        if given.is_worth_a_look() && self.staging.staged(flow) == 1 && self.staging.hold_back(flow) {
            self.intake.end_for(flow);
        } else if given.is_all() {
            self.intake.end();
        }
        self.intake.is_over()
    }

    /// Notes that the sockets were looked at, and the requests read are staged.
    pub(super) fn looked(&mut self, flow: FlowId) {
        if let Some(flow) = self.intake.take_held_back() {
            self.staging.held_back(flow);
        }
        let staged = self.policy.staged(&self.queue);
        // With nothing staged there need not even be a flow.
        if staged > 0 && staged > self.staging.staged(flow) {
            self.intake.compete();
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

    /// Hands over commands from earlier runs: those that the device had no place for, and requests that go again.
    /// Returns requests handed over.
    #[inline(always)]
    pub(super) fn dispatch_left_over(&mut self, now_ns: u64) -> usize {
        let mut handed_over = 0;
        if let Some(command) = self.commands.refused.take() {
            handed_over += self.offer_again(command, now_ns);
        }
        if !self.commands.resend.is_empty() {
            handed_over += self.send_again(now_ns);
        }
        handed_over
    }

    /// Hands over the command that the device had no place for. Returns 1, or 0 if there still is none.
    #[cold]
    fn offer_again(&mut self, command: Command, now_ns: u64) -> usize {
        let (tag, generation) = (command.tag, command.generation);
        if !self.offer_rarely(command) {
            return 0;
        }
        self.expiry.begins_at(tag, generation, now_ns);
        1
    }

    /// Hands over requests that go again, as far as there are tags. They were counted as dispatched before, and have
    /// their tokens.
    #[cold]
    fn send_again(&mut self, now_ns: u64) -> usize {
        let mut handed_over = 0;
        while self.commands.refused.is_none()
            && let Some(&handle) = self.commands.resend.front()
            && let Some(tag) = self.commands.tags.acquire()
        {
            self.commands.resend.pop_front();
            let request = self.requests.get_mut(handle);
            if let State::Dispatched { tag: old, .. } = &mut request.state {
                *old = tag;
            }
            let command = self.commands.of(tag, handle, QueueClass::default(), request);
            self.expiry.begins_at(tag, command.generation, now_ns);
            handed_over += usize::from(self.offer_rarely(command));
        }
        handed_over
    }

    /// As `offer`, for callers with few commands.
    #[inline(never)]
    pub(super) fn offer_rarely(&mut self, command: Command) -> bool {
        self.offer(command)
    }
}
