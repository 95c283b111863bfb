//! How a granted request becomes a command and gets to the device queue: at once, when there is a place again, or
//! again.

use super::recall::{Nowhere, Recall};
use super::request_path::RequestPath;
use crate::device::{Command, DeviceQueue, QueueFull, Reaped};
use crate::request::Submission;
use crate::table::{Request, State};
use crate::tag::{Tag, TagSet};
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{Grant, Handle, Policy, QueueClass};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

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
    pub(super) fn hand_over_left(&mut self, now_ns: u64) -> usize {
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
