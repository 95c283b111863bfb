//! One queue: its tags, and its requests to the block layer.
//!
//! A queue has so many tags. Each is either the driver's, which keeps its command until there is a request, or ours,
//! from the command's end until the request is committed; the commit is the tag's next command.
//!
//! ```text
//!            fetch                 a request: descriptor checked              the block layer's end
//!   (start) ───────▶ the driver's ─────────────────────────────▶ under way ────────────────────────┐
//!                        ▲  │                    └ refused ──────────┐  no room: waits its turn    │
//!                        │  └ no more: gone                          ▼                             ▼
//!                        └─────────────────────────────────────── commit ◀─────────────────────────┘
//! ```
//!
//! # How it ends
//! | the device | the queue |
//! |---|---|
//! | goes with its export | serves on until the driver takes every tag back: the block device's last writes are
//! executed |
//! | stays for the next server | executes what is under way, and holds what comes: the driver gives that to the next
//! one |
//! | may stay (a pause) | as above; held requests are begun if no server takes its place |
//! | goes with its export, and the grace time is over | ends what it has not begun, and all that still comes, with an
//! error: the driver's thread and the block device's users wait for that, and the bytes may be another export's |
//!
//! Exactly once (I10): a request that was committed is never given out again, one that was not is given to the next
//! server, and nothing of a request that was held has been executed.
//!
//! Invariant: as many commands are with the driver as tags are not ours, and each tag's room belongs to one of the two.

use super::device::About;
use super::request::{self, Operation, REFUSED, Rule};
use super::{NAMES, Own};
use crate::stats::Counted;
use mqfq_blk::client::{Client, Context, Event, Label, Refused};
use mqfq_blk::command::{Command, CommandFile};
use mqfq_blk::request::{Completion, Op, Status, Submission};
use mqfq_ublk::abi::{Descriptor, io};
use mqfq_ublk::queue::Descriptors;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Source of the driver's descriptors.
pub trait Describe: Send {
    /// A copy of the descriptor of `tag`, which the driver wrote before it ended the tag's command.
    fn describe(&self, tag: u16) -> Descriptor;
}

impl Describe for Descriptors {
    fn describe(&self, tag: u16) -> Descriptor {
        self.read(tag)
    }
}

/// The `user` of the wait for the bell; those below it are tags.
const BELL: u32 = u32::MAX;

/// Parts of a queue.
pub struct Parts<D> {
    /// Its number on the device.
    pub number: u16,
    /// Tags.
    pub depth: u16,
    /// The driver's descriptors of the tags.
    pub descriptors: D,
    /// Rooms for their bytes, or places for their pages, by tag, and where commands go.
    pub file: Arc<CommandFile>,
    /// Operations are ioctl codes.
    pub encoded: bool,
    /// Alignment of offsets and lengths that the device below demands, a power of two: beside the export's, where
    /// payloads stay in the kernel.
    pub align_bytes: u32,
    /// Never rung: a wait for it ends when the grace time of a drain is over.
    pub bell: Arc<OwnedFd>,
}

/// One queue, living on one worker.
pub struct Queue<D> {
    about: Arc<About>,
    parts: Parts<D>,
    counted: Counted,
    /// Commands that the driver has.
    with_driver: usize,
    /// Requests that the block layer has.
    under_way: usize,
    /// Requests that were refused for want of room, in order, each with its tag as its name.
    waiting: VecDeque<Submission>,
    /// Tags whose requests were not begun.
    held: VecDeque<u16>,
    /// Nothing is begun, as long as it is paused.
    is_paused: bool,
    /// Nothing is begun any more: the device is the next server's.
    is_leaving: bool,
    /// The grace time is over.
    is_given_up: bool,
}

impl<D: Describe> Queue<D> {
    /// A queue that has not fetched.
    pub fn new(about: Arc<About>, parts: Parts<D>) -> Queue<D> {
        let depth = usize::from(parts.depth);
        Queue {
            about,
            parts,
            counted: Counted::new(&NAMES),
            with_driver: 0,
            under_way: 0,
            waiting: VecDeque::with_capacity(depth),
            held: VecDeque::with_capacity(depth),
            is_paused: false,
            is_leaving: false,
            is_given_up: false,
        }
    }

    fn give(&mut self, tag: u16, operation: u32, result: i32, context: &mut dyn Context) {
        self.with_driver += 1;
        let Parts { number, ref file, encoded, .. } = self.parts;
        let (head, operation) = (io::head(number, tag, result), io::code(operation, encoded));
        context.command(Command { file: file.clone(), operation, head, room: tag.into() }, tag.into());
    }

    fn commit(&mut self, tag: u16, result: i32, context: &mut dyn Context) {
        self.give(tag, io::COMMIT_AND_FETCH, result, context);
    }

    /// A tag's command ended.
    fn taken(&mut self, tag: u16, result: i32, context: &mut dyn Context) {
        self.with_driver -= 1;
        match result {
            io::OK if self.is_paused || self.is_leaving => {
                self.about.stats.add_own(Own::Held as usize, 1);
                self.held.push_back(tag);
            }
            io::OK => self.begin(tag, context),
            io::ABORT => {}
            // The driver took no tag back: it is gone for this server.
            _ => self.about.stats.count_broken(Rule::TagRefused),
        }
    }

    /// Reads what a tag's request is, and hands it over.
    fn begin(&mut self, tag: u16, context: &mut dyn Context) {
        if self.is_given_up {
            return self.commit(tag, errno(Status::Io), context);
        }
        let descriptor = self.parts.descriptors.describe(tag);
        let room_bytes = self.parts.file.room_bytes();
        match request::validate(descriptor, &self.about.export, room_bytes, self.parts.align_bytes) {
            Ok(asked) => {
                self.counted.request(asked.op.index());
                let submission = self.submission(tag, asked);
                if self.waiting.is_empty() {
                    self.submit(submission, context);
                } else {
                    // It waits behind earlier ones.
                    self.waiting.push_back(submission);
                }
            }
            Err(request::Refused { status, rule }) => {
                self.counted.request(REFUSED);
                self.about.stats.count_broken(rule);
                self.commit(tag, errno(status), context);
            }
        }
    }

    fn submission(&self, tag: u16, asked: Operation) -> Submission {
        let Operation { op, offset_bytes, length_bytes, fua } = asked;
        let has_bytes = matches!(op, Op::Read | Op::Write);
        let room = || self.parts.file.buffer(tag.into(), length_bytes as usize).expect("validated: it fits its room");
        let (flow, buffer) = (self.about.export.flow, has_bytes.then(room));
        Submission { flow, op, offset_bytes, length_bytes, fua, buffer, cookie: tag.into() }
    }

    /// Hands a request over, or has it wait at the front. False: it waits.
    fn submit(&mut self, submission: Submission, context: &mut dyn Context) -> bool {
        match context.submit(self.about.export.device, submission) {
            Ok(()) => {
                self.under_way += 1;
                true
            }
            Err(Refused::TenantFull(submission)) => {
                self.waiting.push_front(submission);
                false
            }
        }
    }

    /// Hands over what waits, as far as there is room.
    fn pump(&mut self, context: &mut dyn Context) {
        while let Some(submission) = self.waiting.pop_front() {
            let Submission { op, offset_bytes, length_bytes, cookie, .. } = submission;
            // Its export may have become smaller, or read-only, since it was checked (I11).
            if let Some(status) = self.about.export.refusal(op, offset_bytes, length_bytes) {
                drop(submission);
                self.commit(cookie as u16, errno(status), context);
            } else if !self.submit(submission, context) {
                return;
            }
        }
    }

    /// The grace time of a drain is over. Without its server the block device would never end a request, so a queue
    /// stays until the driver has its tags, and nothing of it reaches the device any more.
    fn give_up(&mut self, context: &mut dyn Context) {
        self.is_given_up = true;
        if !self.about.ends() {
            for submission in std::mem::take(&mut self.waiting) {
                self.commit(submission.cookie as u16, errno(Status::Io), context);
            }
        }
    }

    /// Holds requests that were not handed over: nothing of them has happened.
    fn hold_what_waits(&mut self) {
        let waiting = self.waiting.drain(..).map(|submission| submission.cookie as u16);
        self.held.extend(waiting);
    }
}

/// Result that a commit gives for a failed status.
fn errno(status: Status) -> i32 {
    -(status.errno() as i32)
}

impl<D: Describe> Client for Queue<D> {
    fn start(&mut self, context: &mut dyn Context) {
        context.cap_by(&self.about.export.caps);
        context.count(self.parts.bell.as_raw_fd(), BELL);
        (0..self.parts.depth).for_each(|tag| self.give(tag, io::FETCH, 0, context));
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        match event {
            Event::Commanded { user, result } => self.taken(user as u16, result, context),
            Event::Counted { user: BELL, .. } => self.give_up(context),
            other => unreachable!("a queue waits for requests, yet got {other:?}"),
        }
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        let Completion { cookie, status, op, length_bytes, buffer, .. } = completion;
        // The room is the driver's from the commit on.
        drop(buffer);
        self.under_way -= 1;
        let result = match (status, op) {
            (Status::Ok, Op::Read) => {
                self.counted.read(length_bytes);
                length_bytes as i32
            }
            (Status::Ok, Op::Write) => {
                self.counted.written(length_bytes);
                length_bytes as i32
            }
            (Status::Ok, _) => 0,
            (status, _) => errno(status),
        };
        self.commit(cookie as u16, result, context);
    }

    fn turn_end(&mut self, _context: &mut dyn Context) {
        self.counted.add_to(&self.about.stats);
    }

    fn room(&mut self, context: &mut dyn Context) {
        self.pump(context);
    }

    fn drain(&mut self, _context: &mut dyn Context) {
        if self.about.stays() {
            self.is_leaving = true;
            self.hold_what_waits();
        } else {
            self.about.vacate();
        }
    }

    fn is_done(&self) -> bool {
        let is_over = self.under_way == 0 && self.waiting.is_empty();
        // Held requests are answered when a pause ends.
        let has_no_tag = self.with_driver == 0 && self.held.is_empty();
        is_over && (self.is_leaving || has_no_tag) || self.is_given_up && self.about.ends()
    }

    fn pause(&mut self, _context: &mut dyn Context) {
        self.is_paused = true;
        self.hold_what_waits();
    }

    fn is_paused(&self) -> bool {
        self.is_done() || (self.is_paused && self.under_way == 0)
    }

    fn resume(&mut self, context: &mut dyn Context) {
        self.is_paused = false;
        while let Some(tag) = self.held.pop_front() {
            self.begin(tag, context);
        }
    }

    fn label(&self) -> Label {
        Label { client: Some(self.about.number), export: Some(self.about.export.id.number()) }
    }
}

impl<D> Drop for Queue<D> {
    fn drop(&mut self) {
        self.counted.add_to(&self.about.stats);
        if self.with_driver + self.under_way + self.waiting.len() + self.held.len() > 0 {
            self.parts.file.keep_pages();
        }
        self.about.queue_gone();
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
