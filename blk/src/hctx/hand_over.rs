//! How a command gets to the device queue: at once, when there is a place again, or again.

use super::in_flight::InFlight;
use super::recall::{Nowhere, Recall};
use super::shared::Shared;
use crate::device::{Command, DeviceQueue, Reaped};
use crate::request::Submission;
use crate::table::{Request, State};
use crate::tag::{Tag, TagSet};
use mqfq_sched::policy::{Handle, Policy, QueueClass};
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

impl<P: Policy> Shared<P> {
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
