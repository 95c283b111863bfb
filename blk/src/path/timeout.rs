//! Commands that the device does not end.
//!
//! # A command's way
//! ```text
//!             dispatched
//!                 │
//!                 ▼            ends by itself
//!             ON THE DEVICE ─────────────────────────────────────────▶ its own status
//!                 │ timeout: counted, told, `DeviceQueue::abort`           ▲
//!                 ▼            ends by itself after all                    │
//!             ABORTED ─────────────────────────────────────────────────────┤
//!                 │ └── the device gives it up ──▶ TimedOut, once          │
//!                 │ another timeout: `DeviceQueue::reset`                  │
//!                 ├── the device cannot ─▶ STUCK: counted, told, waits on ─┘
//!                 ▼
//!             GIVEN BACK with all others of the queue: the timed out ones fail with TimedOut; others are replayed,
//!                        at most `retries` times, then they fail with TimedOut. Never both.
//! ```
//!
//! # Replays
//! A replayed request may have been carried out before the reset, and is then carried out twice. That breaks no
//! promise: all of the requests are such that doing one twice is doing it once, and until it has completed, its order
//! with others under way is open. A flush that was acknowledged covers what had completed before it; none of that is
//! replayed. A request that failed is never carried out after its failure was told, so a client may write again what it
//! was told is not written.
//!
//! # Parts of a device
//! A backing of a pool may hang for ever while the others go on. So there a command that times out gives its token back
//! at once, and keeps its tag, its buffer and its request until it ends: what hangs holds depth for one timeout.
//!
//! Such a backing refuses further commands with TimedOut. A request that went in parts may have some on the device
//! then and others still in the policy's queue, since D had room for no more. It was under way before, so it waits as a
//! whole: a part that is refused is *held*, without a token, and goes again at each look, and when a command that had
//! timed out ends.
//! ```text
//!   64 KiB in parts of 16 KiB, D = 9 units of 4 KiB
//!     parts 1, 2   on the device ──▶ timed out, tokens back ────────────────▶ the backing answers: Ok
//!     parts 3, 4   wait for D ─────▶ granted ──▶ refused: held ──▶ … ──▶ sent again ──▶ Ok: one answer, Ok
//! ```
//!
//! # Late ends
//! An end that comes after the command was given back has the number of an earlier use of its tag (`InFlight`):
//! ignored, counted.
//!
//! # When it is looked
//! When a command goes to an idle device, a look is due one timeout later. It looks at every tag, and sets the next one
//! to when the oldest command expires, but not nearer than an eighth of the timeout: so a command is noticed at most
//! that much late. Cost on the path: a comparison per run and one per reap. Off, no look is ever due.

use super::complete::Ending;
use super::dispatch::InFlight;
use super::request_path::RequestPath;
use crate::buffer::Buffer;
use crate::device::Reaped;
use crate::path_options::PathOptions;
use crate::request::{Completion, Status};
use crate::stats::{HctxStats, Trouble};
use crate::table::{Owner, State};
use crate::tag::Tag;
use crate::trace::TraceEvent;
use mqfq_sched::policy::{DispatchToken, Handle, Kick, Policy};

/// No look is due.
const NEVER: u64 = u64::MAX;

/// Where a command is that is not simply on the device since it was dispatched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CommandState {
    /// On the device, for a second time or later than its dispatch.
    Again,
    /// The device was asked to give it up.
    Aborted,
    /// Neither abort nor reset helped.
    Stuck,
}

#[derive(Clone, Copy, Debug)]
struct Special {
    tag: Tag,
    generation: u32,
    since_ns: u64,
    state: CommandState,
}

#[derive(Debug)]
pub(super) struct Expiry {
    /// 0: off.
    timeout_ns: u64,
    retries: u8,
    look_ns: u64,
    specials: Vec<Special>,
    /// Requests on the device whose tokens are back.
    without_token: Vec<Handle>,
    /// Parts that the device refused, which go to it again.
    held: Vec<Handle>,
    trouble: Option<Trouble>,
}

impl Expiry {
    pub(super) fn new(path: &PathOptions) -> Expiry {
        let &PathOptions { timeout_ns, retries, .. } = path;
        let (specials, without_token, held) = (Vec::new(), Vec::new(), Vec::new());
        Expiry { timeout_ns, retries, look_ns: NEVER, specials, without_token, held, trouble: None }
    }

    /// Commands went to the device.
    #[inline(always)]
    pub(super) fn arm(&mut self, now_ns: u64) {
        if self.look_ns == NEVER && self.timeout_ns > 0 {
            self.look_ns = now_ns.saturating_add(self.timeout_ns);
        }
    }

    #[inline(always)]
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.look_ns
    }

    pub(super) fn look_ns(&self) -> Option<u64> {
        (self.look_ns != NEVER).then_some(self.look_ns)
    }

    /// Parts are held, and go to the device again at the next look.
    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// The time of this command counts from now, not from its dispatch.
    pub(super) fn begins_at(&mut self, tag: Tag, generation: u32, now_ns: u64) {
        if self.timeout_ns > 0 {
            self.set(Special { tag, generation, since_ns: now_ns, state: CommandState::Again });
        }
    }

    #[inline(always)]
    pub(super) fn take_trouble(&mut self) -> Option<Trouble> {
        self.trouble.take()
    }

    fn set(&mut self, special: Special) {
        match self.specials.iter_mut().find(|other| other.tag == special.tag) {
            Some(other) => *other = special,
            None => self.specials.push(special),
        }
    }
}

impl<P: Policy> RequestPath<P> {
    /// Looks at every command on the device.
    #[cold]
    pub(super) fn look<E: Ending<P>>(&mut self, now_ns: u64, kick: &mut impl Kick, out: &mut Vec<(Owner, Completion)>) {
        let Self { expiry, commands, .. } = self;
        // Commands that have ended are no longer special.
        expiry.specials.retain(|special| commands.by_tag[special.tag.0 as usize].generation == special.generation);
        let timeout_ns = expiry.timeout_ns;
        let (before, mut next_ns, mut resets) = (self.counters.stats().read(), NEVER, false);
        for tag in (0..self.commands.by_tag.len() as u16).map(Tag) {
            let slot = self.commands.by_tag[tag.0 as usize];
            // A command that waits for a place in the queue is not on the device yet; its time begins when it gets
            // there.
            if !slot.is_out() || self.commands.refused.as_ref().is_some_and(|command| command.tag == tag) {
                continue;
            }
            let special = self.expiry.specials.iter().find(|special| special.tag == tag).copied();
            let since_ns = special.map_or_else(|| self.requests.get_mut(slot.head).dispatched_ns, |s| s.since_ns);
            let due_ns = since_ns.saturating_add(timeout_ns);
            if now_ns < due_ns {
                next_ns = next_ns.min(due_ns);
                continue;
            }
            match special.map_or(CommandState::Again, |special| special.state) {
                CommandState::Again => self.expire::<E>(tag, slot.head, now_ns, kick),
                CommandState::Aborted => resets = true,
                CommandState::Stuck => {}
            }
        }
        if resets {
            self.reset::<E>(now_ns, kick, out);
        }
        self.release_held(kick);
        self.note_trouble(&before);
        if !self.expiry.specials.is_empty() || self.commands.refused.is_some() || !self.commands.resend.is_empty() {
            next_ns = next_ns.min(now_ns.saturating_add(timeout_ns));
        }
        let soonest_ns = now_ns.saturating_add((timeout_ns / 8).max(1));
        self.expiry.look_ns = if next_ns == NEVER { NEVER } else { next_ns.max(soonest_ns) };
    }

    /// Adds the events that a look counted to the trouble to be told.
    fn note_trouble(&mut self, before: &HctxStats) {
        let after = self.counters.stats().read();
        let (timeouts, resets) = (after.timeouts - before.timeouts, after.resets - before.resets);
        let stuck = after.stuck - before.stuck;
        if timeouts + resets + stuck > 0 {
            let trouble = self.expiry.trouble.get_or_insert_default();
            trouble.timeouts += timeouts;
            trouble.resets += resets;
            trouble.stuck += stuck;
        }
    }

    /// A command has been on the device for too long.
    fn expire<E: Ending<P>>(&mut self, tag: Tag, head: Handle, now_ns: u64, kick: &mut impl Kick) {
        self.counters.stats().timeouts.add(1);
        self.on_timeout(head, now_ns);
        self.counters.stats().aborts.add(u64::from(self.commands.device.abort(tag, now_ns)));
        let generation = self.commands.by_tag[tag.0 as usize].generation;
        self.expiry.set(Special { tag, generation, since_ns: now_ns, state: CommandState::Aborted });
        if self.commands.device.has_parts() {
            self.give_token_back::<E>(head, now_ns, kick);
        }
    }

    /// A request gives its token back before it ends.
    fn give_token_back<E: Ending<P>>(&mut self, head: Handle, now_ns: u64, kick: &mut impl Kick) {
        let request = self.requests.get_mut(head);
        let State::Dispatched { token, .. } = &mut request.state else { return };
        if token.units() == 0 {
            return;
        }
        let token = std::mem::replace(token, DispatchToken::new(0));
        self.meter.given_back(token.units());
        self.slow_completions += 1;
        self.expiry.without_token.push(head);
        let done = self.requests.get_mut(head).done(head);
        E::ended(&self.policy, &mut self.queue, done, token, now_ns, kick);
        // Requests that wait here may have it, and nothing has ended that would lead to them.
        kick.kick(self.id);
    }

    /// A request ends. Whether its token is back already.
    pub(super) fn is_without_token(&mut self, handle: Handle) -> bool {
        let Some(place) = self.expiry.without_token.iter().position(|other| *other == handle) else { return false };
        self.expiry.without_token.swap_remove(place);
        self.slow_completions -= 1;
        true
    }

    /// Whether the command of this request, which is over, had timed out.
    fn had_timed_out(&mut self, handle: Handle) -> bool {
        let State::Dispatched { tag, .. } = self.requests.get_mut(handle).state else { return false };
        let generation = self.commands.by_tag[tag.0 as usize].generation.wrapping_sub(1);
        let is_it = |special: &Special| special.tag == tag && special.generation == generation;
        self.expiry.specials.iter().any(|special| is_it(special) && special.state != CommandState::Again)
    }

    /// A part of the request `whole` was refused with TimedOut. Whether it is held: another part is on the device, or
    /// it was held before.
    #[cold]
    pub(super) fn hold_part<E: Ending<P>>(
        &mut self,
        whole: u32,
        handle: Handle,
        buffer: &mut Option<Buffer>,
        now_ns: u64,
        kick: &mut impl Kick,
    ) -> bool {
        if !self.commands.device.has_parts() || self.had_timed_out(handle) {
            return false;
        }
        let dispatched_ns = self.requests.get_mut(handle).dispatched_ns;
        let Self { splitting: Some(splitting), commands, requests, .. } = self else { return false };
        // One that went with this one was refused, too, and its end is still to be looked at.
        let mut is_sibling = |slot: &InFlight| {
            let is_of_it = slot.is_out() && splitting.whole_of[slot.head.0 as usize] == whole;
            is_of_it && requests.get_mut(slot.head).dispatched_ns < dispatched_ns
        };
        if !splitting.wholes[whole as usize].is_held && !commands.by_tag.iter().any(&mut is_sibling) {
            return false;
        }
        splitting.wholes[whole as usize].is_held = true;
        splitting.whole_of[handle.0 as usize] = whole;
        let request = self.requests.get_mut(handle);
        request.submission.buffer = buffer.take();
        let State::Dispatched { token, .. } = &request.state else { unreachable!("{handle:?} was on the device") };
        if token.units() > 0 {
            self.give_token_back::<E>(handle, now_ns, kick);
        } else {
            self.slow_completions += 1;
            self.expiry.without_token.push(handle);
        }
        self.expiry.held.push(handle);
        let look_ns = now_ns.saturating_add((self.expiry.timeout_ns / 8).max(1));
        self.expiry.look_ns = self.expiry.look_ns.min(look_ns);
        true
    }

    /// Held parts go to the device again.
    fn release_held(&mut self, kick: &mut impl Kick) {
        if self.expiry.has_held() {
            self.commands.resend.extend(self.expiry.held.drain(..));
            kick.kick(self.id);
        }
    }

    /// A request ends whose token was back before.
    #[cold]
    pub(super) fn stuck_one_ends(&mut self, handle: Handle, kick: &mut impl Kick) {
        if self.expiry.has_held() && self.had_timed_out(handle) {
            self.release_held(kick);
        }
    }

    /// Called for each command that times out, with its request.
    fn on_timeout(&mut self, _head: Handle, now_ns: u64) {
        self.counters.mark(TraceEvent::TimedOut, now_ns);
    }

    /// Aborting did not help: all commands come back, whatever becomes of them then.
    fn reset<E: Ending<P>>(&mut self, now_ns: u64, kick: &mut impl Kick, out: &mut Vec<(Owner, Completion)>) {
        let mut given_back = Vec::new();
        if !self.commands.device.reset(now_ns, &mut given_back) {
            for special in self.expiry.specials.iter_mut().filter(|special| special.state == CommandState::Aborted) {
                special.state = CommandState::Stuck;
                self.counters.stats().stuck.add(1);
            }
            return;
        }
        self.counters.stats().resets.add(1);
        self.counters.mark(TraceEvent::Reset, now_ns);
        for Reaped { tag, generation, mut buffer, .. } in given_back {
            let Some(head) = self.commands.end(tag, generation) else {
                self.counters.stats().late_completions.add(1);
                continue;
            };
            let has_timed_out =
                self.expiry.specials.iter().any(|special| special.tag == tag && special.state != CommandState::Again);
            let request = self.requests.get_mut(head);
            if has_timed_out || request.retries >= self.expiry.retries {
                self.complete_slowly::<E>(head, Status::TimedOut, &mut buffer, now_ns, kick, out);
            } else {
                request.retries += 1;
                request.submission.buffer = buffer;
                self.commands.resend.push_back(head);
                self.counters.stats().replays.add(1);
            }
        }
        let by_tag = &self.commands.by_tag;
        self.expiry.specials.retain(|special| by_tag[special.tag.0 as usize].generation == special.generation);
    }
}
