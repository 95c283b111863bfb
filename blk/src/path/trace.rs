//! The last requests that a context completed, step by step: a flight recorder that is off until it is switched on.
//!
//! # What is kept
//! A [`TraceRecord`] for each request, written when it completes, with the times of all its steps; and a [`TraceMark`]
//! for each thing that happened to the context as a whole (the policy held back, a command timed out). Both in rings of
//! their own that overwrite the oldest: marks of a device that is always full shall not push the requests out.
//!
//! # Cost
//! Off: a branch per completion and one per end of picking, both predicted. On: one record of 72 bytes is stored per
//! request; no memory is taken after the start.

use crate::request::{Op, Status, Submission};
use crate::table::{Owner, Request, State};
use crate::tag::Tag;
use mqfq_sched::flow::FlowId;

/// Most records (and most marks) that a context keeps.
pub const TRACE_RECORDS_MAX: usize = 1 << 22;

/// One request, from admission to completion. Times are the engine's, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceRecord {
    /// Client that submitted it.
    pub owner: Owner,
    /// Flow that was charged.
    pub flow: FlowId,
    /// Operation.
    pub op: Op,
    /// Stable before completion.
    pub fua: bool,
    /// First byte on the device.
    pub offset_bytes: u64,
    /// Length of the request, bytes.
    pub length_bytes: u32,
    /// Time at which it was admitted and staged.
    pub submitted_ns: u64,
    /// Time at which it went to the device. `None`: it never did.
    pub dispatched_ns: Option<u64>,
    /// The device's name for it. `None`: it never went there.
    pub tag: Option<Tag>,
    /// When it was reaped and completed, and how. `None`: it is still under way.
    pub completed: Option<(u64, Status)>,
}

impl TraceRecord {
    /// A request as it is now.
    pub fn of(request: &Request) -> TraceRecord {
        let &Request { owner, submitted_ns, dispatched_ns, .. } = request;
        let &Submission { flow, op, fua, offset_bytes, length_bytes, .. } = &request.submission;
        let tag = match request.state {
            State::Free | State::Staged => None,
            State::Dispatched { tag, .. } => Some(tag),
        };
        let dispatched_ns = tag.map(|_| dispatched_ns);
        let completed = None;
        TraceRecord { owner, flow, op, fua, offset_bytes, length_bytes, submitted_ns, dispatched_ns, tag, completed }
    }
}

/// Event of a context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TraceEvent {
    /// The policy held back the staged requests: the queue's lead is too far ahead.
    Throttled,
    /// The policy held back the staged requests: the device holds D.
    NoToken,
    /// The policy held back the staged requests: it waits for a better one.
    Later,
    /// A command was on the device for longer than its timeout, and was aborted.
    TimedOut,
    /// The device queue was reset.
    Reset,
    /// The policy is being changed.
    Frozen,
    /// It has been changed, or not.
    Thawed,
    /// This worker has put another D in force ([`crate::tuning`]).
    Tuned,
}

impl TraceEvent {
    /// Name of the event in a viewer.
    pub const fn name(self) -> &'static str {
        match self {
            TraceEvent::Throttled => "throttled",
            TraceEvent::NoToken => "no token",
            TraceEvent::Later => "later",
            TraceEvent::TimedOut => "timed out",
            TraceEvent::Reset => "reset",
            TraceEvent::Frozen => "frozen",
            TraceEvent::Thawed => "thawed",
            TraceEvent::Tuned => "tuned",
        }
    }
}

/// An event and its time, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceMark {
    /// Time of the event, nanoseconds since the engine started.
    pub at_ns: u64,
    /// The event.
    pub event: TraceEvent,
}

/// Records of a context, the oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// Requests, in the order of their completion; those that are under way at the end.
    pub records: Vec<TraceRecord>,
    /// Requests that were recorded and overwritten.
    pub records_lost: u64,
    /// Events besides requests, in order.
    pub marks: Vec<TraceMark>,
    /// Marks that were overwritten.
    pub marks_lost: u64,
}

#[derive(Debug)]
struct Last<T> {
    items: Vec<T>,
    capacity: usize,
    /// Place of the oldest, once there are as many as there may be.
    oldest: usize,
    lost: u64,
}

impl<T: Copy> Last<T> {
    fn new(capacity: usize) -> Last<T> {
        Last { items: Vec::with_capacity(capacity), capacity, oldest: 0, lost: 0 }
    }

    fn push(&mut self, item: T) {
        if self.items.len() < self.capacity {
            self.items.push(item);
            return;
        }
        self.items[self.oldest] = item;
        self.oldest = (self.oldest + 1) % self.capacity;
        self.lost += 1;
    }

    fn into_ordered(mut self) -> (Vec<T>, u64) {
        self.items.rotate_left(self.oldest);
        (self.items, self.lost)
    }
}

/// The recorder of one context, while it is on.
#[derive(Debug)]
pub struct Recorder {
    records: Last<TraceRecord>,
    marks: Last<TraceMark>,
}

impl Recorder {
    /// A recorder that keeps the last `capacity` requests and as many marks, clamped to 1 to [`TRACE_RECORDS_MAX`].
    pub fn new(capacity: usize) -> Recorder {
        let capacity = capacity.clamp(1, TRACE_RECORDS_MAX);
        Recorder { records: Last::new(capacity), marks: Last::new(capacity) }
    }

    /// A request is about to be completed.
    pub fn completed(&mut self, request: &Request, status: Status, now_ns: u64) {
        self.records.push(TraceRecord { completed: Some((now_ns, status)), ..TraceRecord::of(request) });
    }

    /// Records an event of the worker at `at_ns`.
    pub fn mark(&mut self, event: TraceEvent, at_ns: u64) {
        self.marks.push(TraceMark { at_ns, event });
    }

    /// Returns the records, and the requests that are under way.
    pub fn into_trace<'a>(self, under_way: impl Iterator<Item = &'a Request>) -> Trace {
        let (mut records, records_lost) = self.records.into_ordered();
        let (marks, marks_lost) = self.marks.into_ordered();
        records.extend(under_way.map(TraceRecord::of));
        Trace { records, records_lost, marks, marks_lost }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_as_large_as_said() {
        assert_eq!(size_of::<TraceRecord>(), 72);
    }

    #[test]
    fn the_last_are_kept_in_order() {
        for pushed in 0..12u64 {
            let mut last = Last::new(4);
            (0..pushed).for_each(|item| last.push(item));
            let (items, lost) = last.into_ordered();
            assert_eq!(lost, pushed.saturating_sub(4));
            assert_eq!(items, (lost..pushed).collect::<Vec<_>>());
        }
    }
}
