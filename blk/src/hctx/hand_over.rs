//! How a command gets to the device queue: at once, when there is a place again, or again and alone.

use super::HwCtx;
use crate::device::{Command, QueueFull, Segments, Tag};
use crate::table::{Request, State};
use mqfq_sched::policy::{Handle, Policy, QueueClass};

impl<P: Policy> HwCtx<P> {
    /// The command of a request alone.
    #[inline(always)]
    pub(super) fn command(&mut self, tag: Tag, handle: Handle) -> Command {
        let generation = self.by_tag[tag.0 as usize].begin(handle);
        let request = self.requests.get_mut(handle);
        let &mut Request { op, offset_bytes, length_bytes, fua, .. } = request;
        let buffer = request.buffer.take();
        let (more, class) = (Segments::NONE, QueueClass::default());
        Command { tag, op, offset_bytes, length_bytes, fua, buffer, more, generation, class }
    }

    /// Hands over what the device had no place for. Returns its requests, or 0 if there still is none.
    #[cold]
    pub(super) fn offer_again(&mut self, command: Command, now_ns: u64) -> usize {
        let (tag, generation) = (command.tag, command.generation);
        let requests = self.requests_of(self.by_tag[tag.0 as usize].head);
        if !self.offer_rarely(command) {
            return 0;
        }
        self.expiry.begins_at(tag, generation, now_ns);
        requests
    }

    /// Hands over requests that go again, as far as there are tags. They were counted as dispatched before, and have
    /// their tokens.
    #[cold]
    pub(super) fn send_again(&mut self, now_ns: u64) -> usize {
        let mut handed_over = 0;
        while self.refused.is_none()
            && let Some(&handle) = self.resend.front()
            && let Some(tag) = self.tags.acquire()
        {
            self.resend.pop_front();
            if let State::Dispatched { tag: old, .. } = &mut self.requests.get_mut(handle).state {
                *old = tag;
            }
            let command = self.command(tag, handle);
            self.expiry.begins_at(tag, command.generation, now_ns);
            handed_over += usize::from(self.offer_rarely(command));
        }
        handed_over
    }

    /// As `offer`, from where few commands come.
    #[inline(never)]
    pub(super) fn offer_rarely(&mut self, command: Command) -> bool {
        self.offer(command)
    }

    /// Hands a command to the device queue; keeps it if there is no place. In line: a command is several words, which
    /// need not be moved.
    #[inline(always)]
    pub(super) fn offer(&mut self, command: Command) -> bool {
        match self.device.submit(command) {
            Ok(()) => {
                self.stats.commands += 1;
                true
            }
            Err(QueueFull(command)) => {
                self.refused = Some(command);
                false
            }
        }
    }
}
