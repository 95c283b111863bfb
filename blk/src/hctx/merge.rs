//! Neighbours become one command.
//!
//! # When
//! At dispatch. A request was charged, waits its turn and holds a token of its own, whoever it will share a command
//! with: no policy knows of merging, and none is given a different order by it. The command that is being gathered is
//! *open*; when the policy's next grant fits it joins, else the open command goes to the device and the grant opens the
//! next one.
//!
//! ```text
//!   grants    A 0..4K   A 4K..8K   A 8K..12K   B 0..4K   A 12K..16K
//!   commands [A 0..12K                      ] [B 0..4K] [A 12K..16K]      3 for 5 requests; B is not put off
//! ```
//!
//! # What fits
//! | the same | flow, operation, FUA; not a flush, and of at least one byte |
//! |---|---|
//! | next to it | begins where the open command ends (back); or ends where it begins (front) |
//! | within reach | payloads that stay in the kernel ([`crate::pages`]) go alone |
//! | small enough | [`MergeBounds`] of the device; with parts (`split.rs`) no longer than one; room in the table of requests |
//!
//! # Ends
//! One tag, one command with a buffer for each request, one end. Each request completes once, with its own buffer,
//! times and token. A merged command that ends badly is taken apart, and each of its requests goes to the device alone,
//! once: so a bad sector fails only the request that covers it.
//!
//! Cost: off, a branch per dispatch and one per end. On, the comparison above per grant. The lists of buffers are used
//! again: so many are made as there were merged commands under way at once.

use super::shared::{Ending, Shared};
use crate::buffer::Buffer;
use crate::device::segments::{List, Segment};
use crate::device::{Command, Segments};
use crate::path::{Merge, MergeBounds, PathOptions};
use crate::request::{Completion, Op, Status, Submission};
use crate::table::{Owner, Request, RequestTable, State};
use crate::tag::Tag;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{Handle, Kick, Policy, QueueClass};

/// Requests in flight beyond one for each tag, at most: what the table has room for. 64 commands of 64 requests.
const EXTRA_MAX: usize = 4096;

/// The command that is being gathered.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) tag: Tag,
    /// First and last request, in the order of their bytes.
    head: Handle,
    tail: Handle,
    requests: u16,
    flow: FlowId,
    op: Op,
    fua: bool,
    start_bytes: u64,
    end_bytes: u64,
    /// Another may join at all.
    may_grow: bool,
}

/// Where a request joins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Back,
    Front,
}

/// One context's merging.
#[derive(Debug)]
pub(super) struct Merging {
    merge: Merge,
    bounds: MergeBounds,
    pub(super) open: Option<Open>,
    /// Requests in flight beyond one for each command, of which there may be `extra_max`.
    pub(super) extra: usize,
    pub(super) extra_max: usize,
    #[expect(clippy::vec_box, reason = "the box is what a command carries")]
    spare: Vec<Box<List>>,
}

impl Merging {
    pub(super) fn new(path: &PathOptions, queue_depth: u16) -> Merging {
        let bounds = path.bounds;
        let others = usize::from(bounds.segments_max.max(1)) - 1;
        let extra_max = if path.merge == Merge::None { 0 } else { (usize::from(queue_depth) * others).min(EXTRA_MAX) };
        Merging { merge: path.merge, bounds, open: None, extra: 0, extra_max, spare: Vec::new() }
    }

    /// Merging is on, and the device can.
    #[inline(always)]
    pub(super) fn is_on(&self) -> bool {
        self.extra_max > 0
    }

    /// A command of this request, which others may join.
    fn open(&self, tag: Tag, handle: Handle, request: &Request) -> Open {
        let &Submission { flow, op, fua, offset_bytes, length_bytes, .. } = &request.submission;
        Open {
            tag,
            head: handle,
            tail: handle,
            requests: 1,
            flow,
            op,
            fua,
            start_bytes: offset_bytes,
            end_bytes: offset_bytes + u64::from(length_bytes),
            may_grow: self.is_eligible(request),
        }
    }

    fn is_eligible(&self, request: &Request) -> bool {
        let &Submission { op, offset_bytes, length_bytes, .. } = &request.submission;
        let misaligned = (offset_bytes | u64::from(length_bytes)) & u64::from(self.bounds.align_bytes - 1);
        // One operation on pages that stay in the kernel names one place.
        let is_here = request.submission.buffer.as_ref().is_none_or(|buffer| buffer.pages().is_none());
        op != Op::Flush && length_bytes > 0 && misaligned == 0 && is_here
    }

    /// Where this request would join the open command, which gets no longer than `part_bytes`, if it may.
    fn side(&self, request: &Request, part_bytes: u32) -> Option<Side> {
        let open = self.open.as_ref()?;
        let &Submission { flow, op, fua, offset_bytes, length_bytes, .. } = &request.submission;
        let side = if offset_bytes == open.end_bytes {
            Side::Back
        } else if self.merge == Merge::Both && offset_bytes + u64::from(length_bytes) == open.start_bytes {
            Side::Front
        } else {
            return None;
        };
        let bytes = open.end_bytes - open.start_bytes + u64::from(length_bytes);
        let fits = open.may_grow
            && (flow, op, fua) == (open.flow, open.op, open.fua)
            && open.requests < self.bounds.segments_max
            && bytes <= u64::from(self.bounds.bytes_max.min(part_bytes))
            && self.extra < self.extra_max
            && self.is_eligible(request);
        fits.then_some(side)
    }

    /// The open command as the device gets it.
    fn seal(&mut self, open: &Open, requests: &mut RequestTable, generation: u32) -> Command {
        let &Open { tag, head, op, fua, start_bytes, end_bytes, .. } = open;
        let first = requests.get_mut(head);
        let (buffer, first_bytes, mut next) =
            (first.submission.buffer.take(), first.submission.length_bytes, first.next);
        let mut more = Segments::NONE;
        if next.is_some() && buffer.is_some() {
            let segments_max = usize::from(self.bounds.segments_max);
            let mut list = self
                .spare
                .pop()
                .unwrap_or_else(|| Box::new(List { first_bytes: 0, rest: Vec::with_capacity(segments_max) }));
            list.first_bytes = first_bytes;
            while let Some(handle) = next {
                let request = requests.get_mut(handle);
                let buffer =
                    request.submission.buffer.take().expect("requests of one command all have a buffer, or none has");
                list.rest.push(Segment { buffer, length_bytes: request.submission.length_bytes });
                next = request.next;
            }
            more = Segments(Some(list));
        }
        let length_bytes = (end_bytes - start_bytes) as u32;
        let class = QueueClass::default();
        Command { tag, op, offset_bytes: start_bytes, length_bytes, fua, buffer, more, generation, class }
    }

    /// Keeps an empty list for the next merged command.
    fn recycle(&mut self, list: Box<List>) {
        debug_assert!(list.rest.is_empty(), "a list is used again with {} buffers in it", list.rest.len());
        self.spare.push(list);
    }
}

impl<P: Policy> Shared<P> {
    /// Joins a granted request to the open command, or hands that to the device and opens another. Returns requests
    /// handed over.
    pub(super) fn gather(&mut self, tag: Tag, handle: Handle) -> usize {
        let Self { merging, requests, commands, splitting, .. } = self;
        let part_bytes = splitting.as_ref().map_or(u32::MAX, |splitting| splitting.control().part_bytes());
        let side = merging.side(requests.get_mut(handle), part_bytes);
        // What goes to another class queue is another command.
        let tags = &mut commands.tags;
        let is_same = merging.open.as_ref().is_some_and(|open| tags.class_of(open.tag) == tags.class_of(tag));
        let Some(side) = side.filter(|_| is_same) else {
            let handed_over = self.close();
            self.merging.open = Some(self.merging.open(tag, handle, self.requests.get_mut(handle)));
            return handed_over;
        };
        tags.release(tag);
        merging.extra += 1;
        self.apart += 1;
        let open = merging.open.as_mut().expect("a request joins what is open");
        open.requests += 1;
        let request = requests.get_mut(handle);
        if let State::Dispatched { tag, .. } = &mut request.state {
            *tag = open.tag;
        }
        match side {
            Side::Back => {
                open.end_bytes += u64::from(request.submission.length_bytes);
                requests.get_mut(std::mem::replace(&mut open.tail, handle)).next = Some(handle);
            }
            Side::Front => {
                open.start_bytes -= u64::from(request.submission.length_bytes);
                request.next = Some(std::mem::replace(&mut open.head, handle));
            }
        }
        self.counters.stats().merged.add(1);
        0
    }

    /// Hands the open command to the device. Returns its requests, or 0 if the device has no place for it now.
    pub(super) fn close(&mut self) -> usize {
        let Some(open) = self.merging.open.take() else { return 0 };
        let generation = self.commands.by_tag[open.tag.0 as usize].begin(open.head);
        let mut command = self.merging.seal(&open, &mut self.requests, generation);
        command.class = self.commands.tags.class_of(open.tag);
        if !self.offer_rarely(command) {
            return 0;
        }
        let requests = usize::from(open.requests);
        self.commands.joined += requests - 1;
        requests
    }

    /// Requests of a command, by the first of them.
    pub(super) fn requests_of(&mut self, head: Handle) -> usize {
        let mut count = 1;
        let mut at = head;
        while let Some(next) = self.requests.get_mut(at).next {
            (count, at) = (count + 1, next);
        }
        count
    }

    /// The buffers of a merged command go back to its requests, each of which is alone again.
    pub(super) fn unlink(&mut self, head: Handle, buffer: Option<Buffer>, more: Segments) {
        let Self { merging, requests, apart, .. } = self;
        let mut list = more.0;
        let mut segments = list.as_mut().map(|list| list.rest.drain(..));
        let first = requests.get_mut(head);
        first.submission.buffer = buffer;
        let mut next = first.next.take();
        while let Some(handle) = next {
            let request = requests.get_mut(handle);
            request.submission.buffer = segments.as_mut().and_then(Iterator::next).map(|segment| segment.buffer);
            next = request.next.take();
            merging.extra -= 1;
            *apart -= 1;
        }
        drop(segments);
        if let Some(list) = list {
            merging.recycle(list);
        }
    }

    /// A merged command ended: its requests complete, or go alone.
    #[expect(clippy::too_many_arguments, reason = "a command's end, and what an end is made with")]
    pub(super) fn end_merged<E: Ending<P>>(
        &mut self,
        head: Handle,
        status: Status,
        buffer: Option<Buffer>,
        more: Segments,
        now_ns: u64,
        kick: &mut impl Kick,
        out: &mut Vec<(Owner, Completion)>,
    ) {
        if status != Status::Ok {
            return self.take_apart(head, buffer, more);
        }
        let mut list = more.0;
        let mut segments = list.as_mut().map(|list| list.rest.drain(..));
        let (mut handle, mut buffer) = (head, buffer);
        while let Some(next) = self.requests.get_mut(handle).next {
            self.complete_apart::<E>(handle, status, buffer, now_ns, kick, out);
            self.merging.extra -= 1;
            self.apart -= 1;
            buffer = segments.as_mut().and_then(Iterator::next).map(|segment| segment.buffer);
            handle = next;
        }
        self.complete_apart::<E>(handle, status, buffer, now_ns, kick, out);
        drop(segments);
        if let Some(list) = list {
            self.merging.recycle(list);
        }
    }

    /// A merged command ended badly: each of its requests will go alone.
    #[cold]
    pub(super) fn take_apart(&mut self, head: Handle, buffer: Option<Buffer>, more: Segments) {
        self.counters.stats().taken_apart.add(1);
        let mut next = Some(head);
        while let Some(handle) = next {
            self.commands.resend.push_back(handle);
            next = self.requests.get_mut(handle).next;
        }
        self.unlink(head, buffer, more);
    }
}
