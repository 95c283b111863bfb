//! Requests of a queue that are under way: the ring that runs, and how their ends are shown to the guest.
//!
//! A request's pieces end in any order, on the device's word. The request ends with the last of them. Ends are shown
//! [`SHOWN_AT_ONCE`] at a time, by one index, so that a guest that polls goes on with the first of a turn's ends while
//! the last are made. A turn signals once at most.

use super::chain::Chain;
use super::disk::{Disk, DiskRequest, Range, Refused};
use super::guest::{GuestMemory, Span};
use super::log::DirtyLog;
use super::ring::Ring;
use super::rule::Rule;
use super::wire::REQUEST_HEADER_BYTES;
use mqfq_blk::client::Context;
use mqfq_blk::passed::Passed;
use mqfq_blk::request::{Op, Submission};
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Parts that a ring needs to run.
pub struct Start {
    /// The ring.
    pub ring: Ring,
    /// A view of the guest's memory, for this queue alone.
    pub memory: GuestMemory,
    /// Writes are to be stable when they end.
    pub is_writethrough: bool,
    /// Says that there are heads.
    pub kick: Arc<Passed>,
    /// Tells the guest of ends, unless it polls.
    pub call: Option<Arc<Passed>>,
    /// Tells the front-end that the ring is broken.
    pub error: Option<Arc<Passed>>,
    /// Where written pages are noted, and the guest's address of the used ring if its are.
    pub log: Option<(DirtyLog, Option<u64>)>,
}

/// A ring that runs.
pub(super) struct Run {
    pub start: Start,
    pub requests: Box<[UnderWay]>,
    /// Heads that were taken and not shown as ended.
    pub taken: usize,
    /// A head whose chain stands in `chain` until there is memory for its spans.
    pub waiting: Option<Head>,
    /// Memory of spans that its requests hold, as far as it is counted, bytes.
    pub spans_bytes: u64,
    /// Memory of spans of requests that were shown as ended, to be given back.
    pub shown_bytes: u64,
    pub handing: Option<Handing>,
    /// Heads that have ended and are not shown.
    pub done: Vec<u16>,
    /// Some ends were shown in this turn.
    has_shown: bool,
    pub chain: Chain,
    /// A signal is under way; another is to follow.
    pub is_signalling: bool,
    pub signal_again: bool,
    pub broken: Option<Rule>,
    /// The front-end has gone, and the area keeps what does not end.
    pub is_given_up: bool,
}

/// A head that was taken, and its request.
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub head: u16,
    pub status_at: Span,
    pub asked: Result<DiskRequest, Refused>,
}

/// A head that was taken.
#[derive(Default)]
pub(super) struct UnderWay {
    /// It was taken and not shown as ended.
    pub is_taken: bool,
    pub is_handed_over: bool,
    /// A piece was given up: its end is not shown.
    pub is_recalled: bool,
    pub op: Option<Op>,
    /// Pieces that have not ended.
    pub pieces: u32,
    pub status: u8,
    pub status_at: Option<Span>,
    /// Spans of its data. Memory of more than [`SPANS_KEPT`] goes with the request.
    pub spans: Vec<Span>,
    /// Ranges of a discard after the one that is handed over; the next one last.
    pub ranges: Vec<Range>,
    /// Written to its memory, the status byte apart.
    pub written_bytes: u32,
}

/// So many spans a head may keep for the next request of its name: a queue of 1024 heads then keeps 192 KiB.
const SPANS_KEPT: usize = 8;

/// Memory of `count` spans that is counted, bytes.
pub(super) fn spans_bytes(count: usize) -> u64 {
    if count > SPANS_KEPT { (count * size_of::<Span>()) as u64 } else { 0 }
}

impl UnderWay {
    /// Its data lie in `spans`.
    pub fn set_spans(&mut self, spans: &[Span]) {
        self.spans.clear();
        // Exact, because long lists come here, too.
        self.spans.reserve_exact(spans.len());
        self.spans.extend_from_slice(spans);
    }

    /// It has ended: only a short list is kept. Memory that was counted, bytes.
    fn forget_spans(&mut self) -> u64 {
        let bytes = spans_bytes(self.spans.len());
        if bytes > 0 {
            self.spans = Vec::new();
        }
        self.ranges = Vec::new();
        bytes
    }
}

/// The request whose pieces are handed over.
pub(super) struct Handing {
    pub head: u16,
    pub op: Op,
    pub offset_bytes: u64,
    pub length_bytes: u64,
    /// Bytes handed over so far.
    pub at_bytes: u64,
    /// A flush has one piece, of nothing.
    pub is_begun: bool,
    /// Piece refused for want of room in the tenant's staging.
    pub held: Option<Submission>,
}

/// So many ends are shown before their turn is over: a line of the used ring.
pub(super) const SHOWN_AT_ONCE: usize = 8;

/// Least part of a longer request that goes to the device from where it lies, bytes.
const DIRECT_BYTES: u32 = 32 << 10;

impl Run {
    pub fn new(mut start: Start) -> Box<Run> {
        let requests = (0..start.ring.size()).map(|_| UnderWay::default()).collect();
        start.ring.take_over();
        Box::new(Run {
            done: Vec::with_capacity(usize::from(start.ring.size())),
            has_shown: false,
            start,
            requests,
            taken: 0,
            waiting: None,
            spans_bytes: 0,
            shown_bytes: 0,
            handing: None,
            chain: Chain::default(),
            is_signalling: false,
            signal_again: false,
            broken: None,
            is_given_up: false,
        })
    }

    /// Nothing of it is under way, nor left from before.
    pub fn is_over(&self) -> bool {
        if self.is_cut() {
            return self.requests.iter().all(|request| request.pieces == 0);
        }
        self.taken == 0 && self.start.ring.is_caught_up()
    }

    /// Some of its requests are never shown as ended.
    pub fn is_cut(&self) -> bool {
        self.broken.is_some() || self.is_given_up
    }

    /// Drops the lists of requests that are never shown, once no piece is under way: a copy that ends
    /// still needs its list. Returns the memory that was counted, bytes.
    pub fn forget_never_shown(&mut self) -> u64 {
        if self.spans_bytes == 0 || !self.is_over() {
            return 0;
        }
        self.requests.iter_mut().for_each(|request| _ = request.forget_spans());
        std::mem::take(&mut self.spans_bytes)
    }

    /// A request waits for memory, or for room.
    pub fn waits(&self) -> bool {
        self.handing.is_some() || self.waiting.is_some()
    }

    pub fn end_if_over(&mut self, head: u16) {
        let request = &self.requests[usize::from(head)];
        if request.pieces == 0 && request.is_handed_over && !request.is_recalled && self.broken.is_none() {
            self.done.push(head);
            if self.done.len() >= SHOWN_AT_ONCE {
                self.publish();
            }
        }
    }

    pub fn signal(&mut self, context: &mut dyn Context) {
        let Some(call) = &self.start.call else { return };
        if self.is_signalling {
            self.signal_again = true;
            return;
        }
        self.is_signalling = true;
        context.signal(call.as_raw_fd(), super::queue::user::CALL);
    }

    /// Shows all ends of the turn, and signals if the guest wants to hear of one of them. True: there were some.
    pub fn show_ends(&mut self, context: &mut dyn Context) -> bool {
        if !self.done.is_empty() {
            self.publish();
        }
        if self.start.ring.wants_signal() {
            self.signal(context);
        }
        std::mem::take(&mut self.has_shown)
    }

    fn publish(&mut self) {
        let Run { start: Start { ring, memory, log, .. }, requests, done, spans_bytes, shown_bytes, .. } = self;
        let count = done.len() as u16;
        for head in done.drain(..) {
            let request = &mut requests[usize::from(head)];
            let status_at = request.status_at.take().expect("a head that was taken has a status byte");
            memory.write_byte(&status_at, request.status);
            if let Some((log, _)) = log {
                log.mark(&status_at);
                if request.op == Some(Op::Read) || request.written_bytes > 0 {
                    request.spans.iter().for_each(|span| log.mark(span));
                }
            }
            let bytes = request.forget_spans();
            (*spans_bytes, *shown_bytes) = (*spans_bytes - bytes, *shown_bytes + bytes);
            request.is_taken = false;
            ring.push(head, request.written_bytes + 1);
        }
        ring.publish();
        if let Some((log, Some(used))) = log {
            ring.written(count).for_each(|(at, length)| log.mark_range(*used + at, length));
        }
        self.taken -= usize::from(count);
        self.has_shown = true;
    }
}

/// Length of the header before a request's data in its spans.
pub(super) fn header_bytes(op: Op) -> u32 {
    if op == Op::Write { REQUEST_HEADER_BYTES as u32 } else { 0 }
}

/// The piece from byte `at` of `spans` on that goes to the device from where it lies: all that is `left`, or a good
/// part of it. `None`: it is copied.
pub(super) fn lying(spans: &[Span], at: u32, left: u32, disk: &Disk) -> Option<Span> {
    let mut skip = at;
    let span = spans.iter().find(|span| {
        let is_here = skip < span.length_bytes;
        skip -= if is_here { 0 } else { span.length_bytes };
        is_here
    })?;
    let most = (span.length_bytes - skip).min(left).min(disk.piece_bytes());
    // A power of two.
    let length_bytes = most & !(disk.block_bytes() - 1);
    let is_worth_it = length_bytes == left || length_bytes >= DIRECT_BYTES;
    (is_worth_it && length_bytes > 0).then(|| span.part(skip, length_bytes))
}
