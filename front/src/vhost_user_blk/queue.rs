//! One queue of a guest's disk, on the worker where it lives.
//!
//! # One turn
//! ```text
//!   kicked, or a look at the ring ─▶ heads ─▶ chain, copied and checked ─▶ requests ─▶ submit ┐
//!   completed ─▶ note the end                                                                 ├─▶ turn_end: status,
//!   room ─▶ go on where it was refused                                                        ┘   used ring, signal
//! ```
//!
//! # Payloads
//! A request's bytes go to the device from where they lie, or to where they shall lie. A request in many small places
//! of the guest's memory goes through a buffer of ours, because the block layer's requests have one buffer each. The
//! longest pieces of both kinds are [`Disk::piece_bytes`] and [`Disk::copy_bytes`]. All pieces of a request end once.
//!
//! # When it takes no heads
//! While a piece was refused because the tenant's staging is full (until [`Client::room`]), while there is no memory
//! for a copy (until an own end, or a while later), and while it stops. Descriptors stay in the ring, which is the
//! guest's memory and not ours.

use super::chain;
use super::disk::{Disk, DiskRequest, status_of};
use super::guest::Span;
use super::poll::Looks;
use super::queue_control::{ExclusiveClient, Order, QueueControl};
use super::rule::Rule;
use super::run::{Handing, Head, Run, header_bytes, lying, spans_bytes};
use super::wire::status;
use super::{NAMES, Own};
use crate::export::Export;
use crate::front_end::{Log, LogLine};
use crate::memory::{Account, Short};
use crate::stats::{Counted, Stats};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::cap::Caps;
use mqfq_blk::client::{Client, Context, Event, Label, Refused};
use mqfq_blk::request::{Completion, Op, Status, Submission};
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// After so long a queue asks again for memory that others held, ns.
const MEMORY_RETRY_NS: u64 = 1_000_000;

/// After so much work a queue leaves the rest to the worker's next turn, so that others have theirs: descriptors that
/// were read, and [`COPIED_PER_WORK`] of bytes that were copied. Some 100 us.
const WORK_MAX: u32 = 4096;

/// Bytes whose copy is as much work as a descriptor.
const COPIED_PER_WORK: u32 = 64;

/// In a cookie: the piece is a copy. The head is below, the piece's place in the request above.
const COPIED: u64 = 1 << 16;

/// Names of the events that it waits for.
pub(super) mod user {
    pub const KICK: u32 = 0;
    pub const ORDER: u32 = 1;
    pub const CALL: u32 = 2;
    pub const ERROR: u32 = 3;
    pub const STATE: u32 = 4;
    pub const MEMORY: u32 = 5;
    pub const POLL: u32 = 6;
}

/// State that all queues of a connection share.
#[derive(Clone)]
pub struct About {
    /// Number of the connection's clients.
    pub number: u64,
    /// Export with the disk's bytes.
    pub export: Arc<Export>,
    /// The disk as the guest sees it.
    pub disk: Disk,
    /// Payload memory of a queue, bytes.
    pub bytes_max: u64,
    /// Counters of the listener.
    pub stats: Arc<Stats>,
    /// Log for lines about broken rings.
    pub log: Option<Log>,
}

/// A queue, running or not.
pub struct Queue {
    about: About,
    control: Arc<QueueControl>,
    _exclusive: Arc<ExclusiveClient>,
    life: Life,
    run: Option<Box<Run>>,
    account: Account,
    counted: Counted,
    looks: Looks,
    /// Work of this turn, see [`WORK_MAX`].
    work: u32,
    /// Heads that were taken in this turn.
    taken: u32,
    /// A timer for memory is running.
    awaits_memory: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    /// It has no ring, or takes no more heads of it and has ended all.
    Parked,
    Running,
    /// Takes no more heads.
    Stopping,
    /// Takes no more heads, and then goes.
    Leaving,
    Gone,
}

impl Queue {
    /// A queue without a ring, which waits for orders on `control`.
    pub fn new(about: About, control: Arc<QueueControl>, exclusive: Arc<ExclusiveClient>) -> Queue {
        let account = Account::new(about.export.memory.clone(), about.bytes_max);
        Queue {
            about,
            control,
            _exclusive: exclusive,
            life: Life::Parked,
            run: None,
            account,
            counted: Counted::new(&NAMES),
            looks: Looks::default(),
            work: 0,
            taken: 0,
            awaits_memory: false,
        }
    }

    fn take_orders(&mut self, context: &mut dyn Context) {
        while let Some(order) = self.control.take() {
            match order {
                // It stops by itself already.
                Order::Start(_) if matches!(self.life, Life::Leaving | Life::Gone) => {}
                Order::Start(start) => {
                    // A guest looks at its disk before it starts a queue.
                    self.about.disk = Disk::new(&self.about.export);
                    self.run = Some(Run::new(*start));
                    self.life = Life::Running;
                    self.looks = Looks::default();
                    self.count_kicks(context);
                    // Take heads that were offered before the queue listened.
                    self.pump(context);
                }
                Order::Stop => self.stop(context, Life::Stopping),
                Order::Leave => self.leave(context),
                Order::GiveUp => self.give_up(context),
            }
        }
    }

    fn leave(&mut self, context: &mut dyn Context) {
        // A queue that goes does not wait for a cap; a drain does not know requests that came late to it.
        context.cap_by(&Caps::none());
        self.stop(context, Life::Leaving);
        self.pump(context);
    }

    /// Ends what the device has, and leaves the rest in the area, as a kill would. Without an area all end.
    fn give_up(&mut self, context: &mut dyn Context) {
        let Some(mut run) = self.run.take_if(|run| run.start.ring.has_area()) else { return self.leave(context) };
        self.stop(context, Life::Leaving);
        run.is_given_up = true;
        self.drop_handing(&mut run);
        self.run = Some(run);
        context.withdraw();
    }

    fn stop(&mut self, context: &mut dyn Context, how: Life) {
        if self.life != Life::Gone && self.life != Life::Leaving {
            context.take_back(user::KICK);
            self.life = how;
        }
    }

    fn count_kicks(&self, context: &mut dyn Context) {
        if let Some(run) = &self.run {
            context.count(run.start.kick.as_raw_fd(), user::KICK);
        }
    }

    /// Takes heads and hands their requests over, until there are none or one has to wait.
    fn pump(&mut self, context: &mut dyn Context) {
        let Some(mut run) = self.run.take() else { return };
        self.about.disk.look_again(&self.about.export);
        run.start.ring.disarm();
        while !run.is_cut() && self.hand_over(&mut run, context) {
            if self.work >= WORK_MAX || !context.takes_more(self.about.export.device, self.taken) {
                self.look_next_turn(context);
                break;
            }
            let takes = self.life == Life::Running;
            let begun = match self.next_head(&mut run, takes) {
                Ok(Some(head)) => {
                    self.begin(&mut run, head, context);
                    Ok(())
                }
                Ok(None) if !takes => break,
                Ok(None) if self.looks_again(context) => break,
                Ok(None) if run.start.ring.arm() => {
                    run.start.ring.disarm();
                    continue;
                }
                Ok(None) => break,
                Err(rule) => Err(rule),
            };
            match begun {
                Ok(()) if run.waiting.is_some() => break,
                Ok(()) => self.looks.has_found(context.now_ns()),
                Err(rule) => self.broke(&mut run, rule, context),
            }
        }
        self.run = Some(run);
    }

    /// The head that waited for memory, else the next one of the ring; with its chain in `run`.
    fn next_head(&mut self, run: &mut Run, takes_new: bool) -> Result<Option<Head>, Rule> {
        if let Some(head) = run.waiting.take() {
            return Ok(Some(head));
        }
        let Run { start, requests, chain, .. } = run;
        let Some(head) = start.ring.take(&start.memory, chain, takes_new)? else { return Ok(None) };
        self.work += chain.descriptors;
        self.taken += 1;
        run.taken += 1;
        requests.get(usize::from(head)).filter(|request| !request.is_taken).ok_or(Rule::BadHead)?;
        let (status_at, asked) = self.about.disk.ask(&start.memory, chain)?;
        Ok(Some(Head { head, status_at, asked }))
    }

    /// The ring is empty, and is looked at in the next turn without being kicked.
    fn looks_again(&mut self, context: &mut dyn Context) -> bool {
        let goes_on = self.looks.goes_on(self.about.export.poll(), context);
        if goes_on {
            self.look_next_turn(context);
        }
        goes_on
    }

    fn look_next_turn(&mut self, context: &mut dyn Context) {
        if !std::mem::replace(&mut self.looks.is_asked, true) {
            context.timer(context.now_ns(), user::POLL);
        }
    }

    /// Hands over no more of a request whose end is never shown.
    fn drop_handing(&mut self, run: &mut Run) {
        if let Some(Handing { held: Some(held), head, .. }) = run.handing.take() {
            run.requests[usize::from(head)].pieces -= 1;
            if held.cookie & COPIED != 0 {
                self.account.give(Buffer::memory_bytes(held.length_bytes));
            }
        }
    }

    /// The guest broke a rule after which its ring has no meaning.
    fn broke(&mut self, run: &mut Run, rule: Rule, context: &mut dyn Context) {
        // Memory that was lost reads as zeroes, which break any rule.
        let rule = if run.start.memory.is_lost() { Rule::MemoryLost } else { rule };
        run.broken = Some(rule);
        self.drop_handing(run);
        self.about.stats.count_broken(rule);
        if let Some(error) = &run.start.error {
            context.signal(error.as_raw_fd(), user::ERROR);
        }
        if let Some(log) = &self.about.log {
            let name = &self.about.export.name;
            let text = &format!("{}: export {name:?}: a queue stops: {}", NAMES.front_end, rule.name());
            log(LogLine { text, export: Some(name) });
        }
    }

    /// Begins the request of a taken head. If its bytes lie in one place it is handed over at once; if there is no
    /// memory now for its many places, it waits.
    fn begin(&mut self, run: &mut Run, next: Head, context: &mut dyn Context) {
        let Head { head, status_at, asked } = next;
        let Run { start, requests, chain, waiting, spans_bytes: held, .. } = &mut *run;
        let request = &mut requests[usize::from(head)];
        let spans: &[Span] = match asked {
            Ok(DiskRequest::Id | DiskRequest::Io { op: Op::Read, .. }) => &chain.writable,
            Ok(DiskRequest::Io { .. }) => &chain.readable,
            Err(_) => &[],
        };
        let held_bytes = spans_bytes(spans.len());
        if held_bytes > 0 {
            if let Err(short) = self.account.hold(held_bytes) {
                *waiting = Some(next);
                return self.await_memory(short, context);
            }
            *held += held_bytes;
        }
        request.set_spans(spans);
        (request.is_taken, request.is_handed_over, request.pieces, request.op) = (true, true, 0, None);
        std::mem::swap(&mut request.ranges, &mut chain.ranges);
        (request.status, request.status_at, request.written_bytes) = (status::OK, Some(status_at), 0);
        let place = asked.map_or(NAMES.requests.len() - 1, DiskRequest::place);
        self.counted.request(place);
        match asked {
            Err(refused) => {
                request.status = refused.status;
                self.about.stats.count_broken(refused.rule);
                run.done.push(head);
            }
            Ok(DiskRequest::Id) => {
                let id = self.about.disk.id();
                chain::copy_from(&start.memory, &request.spans, 0, id);
                request.written_bytes = id.len() as u32;
                run.done.push(head);
            }
            Ok(DiskRequest::Io { op, offset_bytes, length_bytes }) => {
                (request.op, request.is_handed_over) = (Some(op), false);
                let mut handing =
                    Handing { head, op, offset_bytes, length_bytes, at_bytes: 0, is_begun: false, held: None };
                if matches!(op, Op::Read | Op::Write)
                    && let Some(whole) = self.whole(run, &handing)
                {
                    let request = &mut run.requests[usize::from(head)];
                    match context.submit(self.about.export.device, whole) {
                        Ok(()) => {
                            (request.pieces, request.is_handed_over) = (1, true);
                            return;
                        }
                        Err(Refused::TenantFull(held)) => {
                            request.pieces = 1;
                            (handing.at_bytes, handing.is_begun, handing.held) = (length_bytes, true, Some(held));
                        }
                    }
                }
                run.handing = Some(handing);
            }
        }
    }

    /// All of a read or write that was begun, if it lies in one place and its export has it still.
    fn whole(&self, run: &Run, handing: &Handing) -> Option<Submission> {
        let &Handing { head, op, offset_bytes, length_bytes, .. } = handing;
        // At most u32::MAX: validated.
        let length_bytes = length_bytes as u32;
        let Run { start, requests, .. } = run;
        let span = lying(&requests[usize::from(head)].spans, header_bytes(op), length_bytes, &self.about.disk)?;
        if span.length_bytes != length_bytes || self.about.export.refusal(op, offset_bytes, length_bytes).is_some() {
            return None;
        }
        let (region, offset) = start.memory.memory(&span);
        let buffer = region.buffer(offset, length_bytes as usize);
        let fua = op == Op::Write && start.is_writethrough;
        let flow = self.about.export.flow;
        Some(Submission { flow, op, offset_bytes, length_bytes, fua, buffer, cookie: head.into() })
    }

    /// Hands over the pieces of the request that was begun. False: one has to wait.
    fn hand_over(&mut self, run: &mut Run, context: &mut dyn Context) -> bool {
        if run.handing.is_none() {
            return true;
        }
        self.go_on(run, context)
    }

    /// Hands over the rest of a request.
    #[inline(never)]
    fn go_on(&mut self, run: &mut Run, context: &mut dyn Context) -> bool {
        let Some(mut handing) = run.handing.take() else { return true };
        let head = usize::from(handing.head);
        loop {
            let submission = match handing.held.take() {
                Some(held) => held,
                None => {
                    let has_failed = run.requests[head].status != status::OK;
                    if has_failed {
                        break;
                    }
                    if handing.is_begun && handing.at_bytes == handing.length_bytes {
                        let Some(range) = run.requests[head].ranges.pop() else { break };
                        (handing.op, handing.at_bytes) = (range.op, 0);
                        (handing.offset_bytes, handing.length_bytes) = (range.offset_bytes, range.length_bytes);
                    }
                    let Some(piece) = self.piece(run, &mut handing, context) else {
                        run.handing = Some(handing);
                        return false;
                    };
                    run.requests[head].pieces += 1;
                    piece
                }
            };
            // Its export may have become smaller, or read-only, since the guest's request was read (I11).
            let Submission { op, offset_bytes, length_bytes, cookie, .. } = submission;
            if let Some(status) = self.about.export.refusal(op, offset_bytes, length_bytes) {
                if cookie & COPIED != 0 {
                    self.account.give(Buffer::memory_bytes(length_bytes));
                }
                run.requests[head].pieces -= 1;
                run.requests[head].status = status_of(status);
                continue;
            }
            if let Err(Refused::TenantFull(held)) = context.submit(self.about.export.device, submission) {
                handing.held = Some(held);
                run.handing = Some(handing);
                return false;
            }
        }
        run.requests[head].is_handed_over = true;
        run.end_if_over(handing.head);
        true
    }

    /// The next piece. `None`: there is no memory for it now.
    fn piece(&mut self, run: &Run, handing: &mut Handing, context: &mut dyn Context) -> Option<Submission> {
        let disk = &self.about.disk;
        let left = handing.length_bytes - handing.at_bytes;
        let mut cookie = u64::from(handing.head) | handing.at_bytes << 32;
        let (buffer, length_bytes) = match handing.op {
            Op::Flush | Op::Extents => (None, 0),
            Op::Discard | Op::WriteZeroes { .. } | Op::FastZeroes { .. } => {
                (None, left.min(u64::from(disk.range_bytes())) as u32)
            }
            Op::Read | Op::Write => {
                let spans = &run.requests[usize::from(handing.head)].spans;
                let memory = &run.start.memory;
                let at = handing.at_bytes as u32 + header_bytes(handing.op);
                match lying(spans, at, left as u32, disk) {
                    Some(span) => {
                        let (region, offset) = memory.memory(&span);
                        (region.buffer(offset, span.length_bytes as usize), span.length_bytes)
                    }
                    None => {
                        if self.work >= WORK_MAX {
                            self.look_next_turn(context);
                            return None;
                        }
                        let length_bytes = (left as u32).min(disk.copy_bytes());
                        self.work += length_bytes / COPIED_PER_WORK;
                        if let Err(short) = self.account.take(Buffer::memory_bytes(length_bytes)) {
                            self.await_memory(short, context);
                            return None;
                        }
                        let mut buffer = Buffer::new(length_bytes as usize);
                        if handing.op == Op::Write {
                            chain::copy_to(memory, spans, at, &mut buffer.as_mut_slice()[..length_bytes as usize]);
                        }
                        self.about.stats.add_own(Own::CopiedBytes as usize, u64::from(length_bytes));
                        cookie |= COPIED;
                        (Some(buffer), length_bytes)
                    }
                }
            }
        };
        let offset_bytes = handing.offset_bytes + handing.at_bytes;
        handing.at_bytes += u64::from(length_bytes);
        handing.is_begun = true;
        let changes = !matches!(handing.op, Op::Read | Op::Flush);
        let fua = changes && run.start.is_writethrough;
        Some(Submission {
            flow: self.about.export.flow,
            op: handing.op,
            offset_bytes,
            length_bytes,
            fua,
            buffer,
            cookie,
        })
    }

    fn await_memory(&mut self, short: Short, context: &mut dyn Context) {
        // One's own ends are heard of.
        if short == Short::Shared && !std::mem::replace(&mut self.awaits_memory, true) {
            context.timer(context.now_ns() + MEMORY_RETRY_NS, user::MEMORY);
        }
    }

    /// Shows the guest the ends, and parks after the last one of a ring that stops.
    fn show_ends(&mut self, context: &mut dyn Context) {
        let (mut has_shown, mut goes_on) = (false, false);
        if let Some(run) = &mut self.run {
            has_shown = run.show_ends(context);
            let shown_bytes = std::mem::take(&mut run.shown_bytes);
            self.account.release(shown_bytes);
            goes_on = shown_bytes > 0 && run.waits();
            if !run.is_cut() && run.start.memory.is_lost() {
                let mut run = self.run.take().expect("looked at just now");
                self.broke(&mut run, Rule::MemoryLost, context);
                self.run = Some(run);
            }
            if let Some(run) = self.run.as_mut().filter(|run| run.is_cut()) {
                self.account.release(run.forget_never_shown());
            }
        }
        let poll = self.about.export.poll();
        let looks = has_shown && self.life == Life::Running && self.looks.has_shown(poll, context.now_ns());
        if looks || goes_on {
            self.look_next_turn(context);
        }
        if !matches!(self.life, Life::Stopping | Life::Leaving) || self.run.as_ref().is_some_and(|run| !run.is_over()) {
            return;
        }
        let base = self.run.take().map_or(0, |run| run.start.ring.base());
        if self.life == Life::Leaving {
            self.life = Life::Gone;
        } else {
            self.life = Life::Parked;
            self.control.quiet(base);
            context.signal(self.control.connection_bell(), user::STATE);
        }
    }
}

impl Client for Queue {
    fn start(&mut self, context: &mut dyn Context) {
        context.cap_by(&self.about.export.caps);
        context.count(self.control.queue_bell(), user::ORDER);
        self.take_orders(context);
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        match event {
            Event::Counted { user: user::KICK, result } => {
                self.about.stats.add_own(Own::Kicks as usize, 1);
                self.looks.kicked(context);
                // An eventfd that is none cannot be waited for: then only orders come.
                let is_whole = self.run.as_ref().is_some_and(|run| run.broken.is_none());
                if result.is_ok() && self.life == Life::Running && is_whole {
                    self.count_kicks(context);
                }
                self.pump(context);
            }
            Event::Counted { user: user::ORDER, result } => {
                if result.is_ok() {
                    context.count(self.control.queue_bell(), user::ORDER);
                } else {
                    // The grace time of a drain is over.
                    self.stop(context, Life::Leaving);
                }
                self.take_orders(context);
            }
            Event::Signalled { user: user::CALL, .. } => {
                if let Some(run) = &mut self.run {
                    run.is_signalling = false;
                    if std::mem::take(&mut run.signal_again) {
                        run.signal(context);
                    }
                }
            }
            Event::Signalled { .. } => {}
            Event::Timer { user: user::POLL } => {
                self.looks.is_asked = false;
                self.about.stats.add_own(Own::Looks as usize, 1);
                self.pump(context);
            }
            Event::Timer { .. } => {
                self.awaits_memory = false;
                self.pump(context);
            }
            other => unreachable!("a queue waits for kicks and orders, yet got {other:?}"),
        }
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        let Completion { cookie, status, op, length_bytes, buffer, .. } = completion;
        let Some(run) = &mut self.run else { unreachable!("a ring stays until its requests have ended") };
        let (head, at) = (cookie as u16, (cookie >> 32) as u32);
        let request = &mut run.requests[usize::from(head)];
        if cookie & COPIED != 0 {
            self.account.give(Buffer::memory_bytes(length_bytes));
            if let Some(buffer) = buffer.filter(|_| op == Op::Read && status == Status::Ok) {
                let bytes = &buffer.as_slice()[..length_bytes as usize];
                chain::copy_from(&run.start.memory, &request.spans, at, bytes);
            }
        }
        request.pieces -= 1;
        match (status, op) {
            (Status::Ok, Op::Read) => {
                request.written_bytes += length_bytes;
                self.counted.read(length_bytes);
            }
            (Status::Ok, Op::Write) => self.counted.written(length_bytes),
            (Status::Ok, _) => {}
            (Status::Recalled, _) => request.is_recalled = true,
            (status, _) => request.status = status_of(status),
        }
        run.end_if_over(head);
        if cookie & COPIED != 0 && run.waits() {
            self.pump(context);
        }
    }

    fn turn_end(&mut self, context: &mut dyn Context) {
        self.show_ends(context);
        self.counted.add_to(&self.about.stats);
        (self.work, self.taken) = (0, 0);
    }

    fn room(&mut self, context: &mut dyn Context) {
        self.pump(context);
    }

    fn drain(&mut self, context: &mut dyn Context) {
        self.stop(context, Life::Leaving);
    }

    fn is_done(&self) -> bool {
        self.life == Life::Gone
    }

    fn label(&self) -> Label {
        Label { client: Some(self.about.number), export: Some(self.about.export.id.number()) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.counted.add_to(&self.about.stats);
        self.control.gone();
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
