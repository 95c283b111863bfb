//! Telling a front-end that the disk's config space is another one: by a message of ours on the channel that it gave
//! for such (SET_BACKEND_REQ_FD).
//!
//! Source: the vhost-user specification, "Back-end message types". Where REPLY_ACK was negotiated, an answer is asked
//! for, and nothing more is said before it has come. A change in the meantime is told after it, once.
//!
//! ```text
//!   quiet ── another config space ─▶ saying ── REPLY_ACK ─▶ hearing ── the answer ─▶ quiet
//!                                      └───── without ──────────────────────────────▶ quiet
//! ```
//!
//! The channel is the front-end's: one that takes no message, or answers nonsense, is let go, and the disk goes on.

use super::connection::user;
use super::disk::{CONFIG_BYTES, Disk};
use super::session::Session;
use super::wire::{BACKEND_CONFIG_CHANGE, FLAG_NEED_REPLY, FLAG_REPLY, HEADER_BYTES, Header, message};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Context, Part};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// An answer, bytes: a header and a number.
const ANSWER_BYTES: usize = HEADER_BYTES + 8;

/// What a front-end was told of its disk's config space.
pub struct Notice {
    /// The config space that the front-end knows, or is being told of.
    told: [u8; CONFIG_BYTES],
    step: Step,
    /// Of what is under way, open until that has ended.
    channel: Option<Arc<OwnedFd>>,
    /// It failed: another one may be given.
    is_broken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Quiet,
    Saying,
    /// Bytes of the answer that have come.
    Hearing(usize),
}

impl Notice {
    /// Of a front-end that will read the config space of `disk`.
    pub fn new(disk: &Disk) -> Notice {
        let told = disk.config(true);
        Notice { told, step: Step::Quiet, channel: None, is_broken: false }
    }

    /// The front-end reads the config space by itself.
    pub fn read(&mut self, disk: &Disk) {
        self.told = disk.config(true);
    }

    /// Tells the front-end, if `disk` shows another config space than it knows and there is a channel.
    pub fn look(&mut self, context: &mut dyn Context, session: &Session, disk: &Disk) {
        let Some(channel) = session.backend().filter(|_| session.has_config()) else { return };
        if self.is_broken && self.channel.as_ref().is_some_and(|broken| Arc::ptr_eq(broken, channel)) {
            return;
        }
        let now = disk.config(true);
        if self.step != Step::Quiet || self.told == now {
            return;
        }
        (self.told, self.step, self.is_broken) = (now, Step::Saying, false);
        self.channel = Some(channel.clone());
        let flags = if session.acknowledges() { FLAG_NEED_REPLY } else { 0 };
        let parts = vec![Part::Bytes(message(BACKEND_CONFIG_CHANGE, flags, &[]))];
        context.send(channel.as_raw_fd(), parts, user::NOTICE);
    }

    /// What was said has left, or has not.
    pub fn sent(&mut self, context: &mut dyn Context, session: &Session, result: Result<(), i32>) {
        if result.is_err() {
            return self.broke();
        }
        if !session.acknowledges() {
            self.step = Step::Quiet;
            return;
        }
        self.hear(context, Buffer::new(ANSWER_BYTES), 0);
    }

    fn hear(&mut self, context: &mut dyn Context, buffer: Buffer, have: usize) {
        self.step = Step::Hearing(have);
        if let Some(channel) = &self.channel {
            context.receive(channel.as_raw_fd(), buffer, have, ANSWER_BYTES, user::NOTICE);
        }
    }

    /// Some of the answer has come, or the end of the channel.
    pub fn received(&mut self, context: &mut dyn Context, buffer: Buffer, result: Result<usize, i32>) {
        let Step::Hearing(have) = self.step else { return };
        match result {
            Ok(count) if count > 0 && have + count < ANSWER_BYTES => self.hear(context, buffer, have + count),
            Ok(count) if count > 0 => {
                let header = Header::read(buffer.as_slice()).expect("a buffer is longer than a header");
                let is_answer = header.request == BACKEND_CONFIG_CHANGE && header.flags & FLAG_REPLY != 0;
                // Whether it liked the message is its own affair.
                if is_answer && header.size == 8 {
                    self.step = Step::Quiet;
                } else {
                    self.broke();
                }
            }
            Ok(_) | Err(_) => self.broke(),
        }
    }

    fn broke(&mut self) {
        (self.step, self.is_broken) = (Step::Quiet, true);
    }

    /// The connection ends: what is under way on the channel ends soon.
    pub fn end(&mut self, context: &mut dyn Context) {
        if let (Step::Saying | Step::Hearing(_), Some(channel)) = (self.step, &self.channel) {
            context.shutdown(channel.as_raw_fd());
        }
    }
}
