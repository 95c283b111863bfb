//! One connection: its socket, its half-read requests, its unsent replies, on the worker where it lives.
//!
//! # One turn
//! ```text
//! received ─▶ take requests ─▶ submit each ┐
//! completed ─▶ gather its reply            ├─▶ turn_end: send all replies at once, at most one send in flight
//! sent ─▶ free its requests, take more     ┘
//! ```
//!
//! # When it stops reading
//! While its limits are reached (it waits for its own replies to leave), while others hold the memory that it needs (it
//! asks again after a while), while a request is held because the tenant's staging is full (it waits for
//! [`Client::room`]), and while as many pieces of large requests are under way as may be. In all cases whole requests
//! may lie in the inbox, so a receive is in flight only when every whole request was taken. That makes "received in
//! full" exact when the engine drains: a request in the inbox is executed and answered, one that comes later is never
//! read. Its client gets no error but the end of the connection, after which QEMU and the kernel ask again elsewhere.
//!
//! # Large requests
//! A request longer than a piece is handed over in pieces (`large.rs`), a write as its pieces come, any other as those
//! before it end. They hold one of the connection's requests, and memory for the pieces that are under way. A turn of
//! the worker's loop receives one piece of a connection at most, and so takes as long for a client of 32 MiB requests
//! as for one of 128 KiB.
//!
//! # How it ends
//! | from | because | what still happens |
//! |---|---|---|
//! | `Open` | client left, disconnected, broke a rule, or would be received from while draining | to `Ending` |
//! | `Ending` | every request is answered and every reply has left | to `Closed`: the socket is shut down |
//! | any | the socket is broken, or the time to drain is over | to `Closed` at once; completions are dropped |
//! | any, in the handshake | its time is over | to `Closed` at once: a client that does not speak may not read either |
//! | any, after it | the client takes nothing, or stops in the middle of a request (`connection/stall.rs`) | the same |
//!
//! How it holds still and goes on in another process: `connection/handover.rs`. How it speaks under TLS:
//! `connection/secure.rs`.

mod finish;
mod handover;
mod secure;
mod stall;
mod under_way;

use super::channel::{Channel, STANDING_BYTES};
use super::inbox::Inbox;
use super::large::{Large, PIECES_EACH, RANGE_PIECE_BYTES};
use super::negotiate::{Negotiation, Progress};
use super::options::{HANDSHAKE_RECEIVE_BYTES, NAMES, NbdOptions};
use super::reply::{Form, Replies};
use super::rule::{Rule, errno_of};
use super::transmit::{Piece, Request, Taken, Transmission};
use super::wire::Command;
use crate::connection_slots::ConnectionSlot;
use crate::export::{Export, ExportTable};
use crate::front_end::{LogLine, next_client};
use crate::memory::Short;
use crate::stats::Counted;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Client, Context, Event, Label, PackedClient, Refused};
use mqfq_blk::extents::SHEET_BYTES;
use mqfq_blk::request::{Completion, Op, Status, Submission};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use under_way::{PendingRequest, UnderWay};

/// First receive buffer after the handshake, bytes: three writes of 4 KiB, or several hundred reads.
const QUIET_RECEIVE_BYTES: usize = 16 << 10;

/// Least missing part of a payload that is received into the request's own buffer, bytes. Below, one receive into the
/// inbox that also brings the next requests is cheaper than a receive that ends with the payload.
const DIRECT_BYTES: usize = 32 << 10;

/// After so long a connection asks again for memory that others held, ns: short beside what a user notices, long beside
/// the looks of a thousand connections that wait.
const MEMORY_RETRY_NS: u64 = 1_000_000;

/// Names of socket operations and of timers. Only one receive is in flight at a time, whichever it is.
mod user {
    pub const INBOX: u32 = 0;
    pub const PAYLOAD: u32 = 1;
    pub const SEND: u32 = 2;
    /// The time of the handshake is over, wherever the connection is by now.
    pub const HANDSHAKE: u32 = 3;
    /// Others may have given memory back.
    pub const MEMORY: u32 = 4;
    /// Bytes under TLS.
    pub const WIRE: u32 = 5;
    /// Another turn, in which a TLS handshake goes on, or more requests are taken.
    pub const TURN: u32 = 6;
    /// Another process has waited long enough for the end of a session under TLS.
    pub const SESSION_END: u32 = 7;
    /// The client may have had its time to get on.
    pub const STALL: u32 = 8;
}

/// One client's connection.
pub struct Connection {
    options: Arc<NbdOptions>,
    /// Number in its label.
    number: u64,
    /// Its place, which holds the socket.
    place: ConnectionSlot,
    phase: ProtocolPhase,
    life: Life,
    inbox: Inbox,
    /// TLS channel, from STARTTLS on.
    channel: Option<Box<Channel>>,
    /// A TLS handshake, or the next requests, wait for another turn.
    awaits_turn: bool,
    /// Requests that were taken in this turn.
    taken: u32,
    receiving: bool,
    waits: stall::Waits,
    /// A request or piece lies in the inbox and does not fit the limits.
    full: bool,
    /// A timer for memory is running.
    awaits_memory: bool,
    draining: bool,
    /// Another process may take it: it neither takes nor sends anything.
    paused: bool,
    /// The time of the handshake was over while it was paused.
    is_late: bool,
    /// Nothing was said yet, in this process or another.
    is_fresh: bool,
    under_way: UnderWay,
    /// The large write whose pieces come.
    writing: Option<u32>,
    /// Other large requests of which pieces are left to hand over, first come first.
    issuing: VecDeque<u32>,
    /// Pieces of large requests on their way to the device or back: as [`Large::may_have_more`] allows, and one of a
    /// write that was being received when others reached it.
    pieces_out: usize,
    /// Refused for want of room in the tenant's staging. Its place in `under_way` is taken.
    held: Option<Submission>,
    /// Given back, because another process may go on with them; handed over again when the connection goes on.
    recalled: VecDeque<Request>,
    /// Ended before they were handed over: their export is not what it was when they came.
    late: Vec<Completion>,
    replies: Replies,
    counted: Counted,
}

#[derive(Debug)]
enum ProtocolPhase {
    Negotiating(Negotiation),
    Transmitting(Transmission),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Open,
    Ending,
    Closed,
}

impl Connection {
    /// A connection on the socket of `place`, at the beginning of its handshake.
    pub fn new(place: ConnectionSlot, exports: Arc<ExportTable>, options: Arc<NbdOptions>) -> Connection {
        let negotiation = Negotiation::new(exports).with(secure::offered(&options), place.peer());
        Connection {
            number: next_client(),
            place,
            phase: ProtocolPhase::Negotiating(negotiation),
            life: Life::Open,
            inbox: Inbox::new(options.receive_bytes_max()),
            channel: None,
            awaits_turn: false,
            taken: 0,
            receiving: false,
            waits: stall::Waits::default(),
            full: false,
            awaits_memory: false,
            draining: false,
            paused: false,
            is_late: false,
            is_fresh: true,
            under_way: UnderWay::default(),
            writing: None,
            issuing: VecDeque::new(),
            pieces_out: 0,
            held: None,
            recalled: VecDeque::new(),
            late: Vec::new(),
            replies: Replies::new(),
            counted: Counted::new(&NAMES),
            options,
        }
    }

    fn fd(&self) -> RawFd {
        self.place.fd()
    }

    /// Uses what lies in the inbox, then receives more, as far as the limits allow.
    fn pump(&mut self, context: &mut dyn Context) {
        if self.paused {
            return;
        }
        self.full = false;
        self.issue(context);
        while self.life == Life::Open && self.held.is_none() && !self.receiving && !self.full && !self.awaits_turn {
            if let Some(place) = self.writing
                && let large = self.under_way.large(place)
                && !large.may_have_more(self.pieces_out)
                && large.failed().is_none()
            {
                return;
            }
            match &mut self.phase {
                ProtocolPhase::Negotiating(_) if self.replies.handshake_backs_up() => return,
                ProtocolPhase::Negotiating(negotiation) => {
                    let unread = self.inbox.unread();
                    let admit = &mut |export: &Export| self.place.choose(export);
                    let (used, progress) = self.replies.append(|out| negotiation.advance(unread, out, admit));
                    self.inbox.consume(used);
                    self.negotiated(context, progress);
                }
                ProtocolPhase::Transmitting(transmission)
                    if !context.takes_more(transmission.session().export.device, self.taken) =>
                {
                    self.await_turn(context);
                }
                ProtocolPhase::Transmitting(transmission) => {
                    let (used, taken) = transmission.advance(self.inbox.unread());
                    self.inbox.consume(used);
                    self.taken(context, taken);
                }
            }
        }
    }

    fn negotiated(&mut self, context: &mut dyn Context, progress: Progress) {
        match progress {
            Progress::More => self.receive(context),
            Progress::Answered { refused } => {
                refused.into_iter().for_each(|rule| self.place.stats().count_broken(rule));
                if refused == Some(Rule::ForbiddenExport) {
                    self.say_forbidden();
                }
            }
            Progress::StartTls => self.start_tls(),
            Progress::Transmit(session) => {
                self.replies.set_form(Form::of(&session));
                context.cap_by(&session.export.caps);
                self.say_admitted(&session.export);
                let limits = self.options.limits(&session.export);
                let mut transmission = Transmission::new(session, limits);
                if self.channel.is_some() {
                    transmission.account().stand(STANDING_BYTES);
                }
                self.phase = ProtocolPhase::Transmitting(transmission);
            }
            Progress::Close { broken } => {
                broken.into_iter().for_each(|rule| self.broke(rule));
                self.life = Life::Ending;
            }
        }
    }

    /// Goes on in the worker's next turn.
    fn await_turn(&mut self, context: &mut dyn Context) {
        self.awaits_turn = true;
        context.timer(context.now_ns(), user::TURN);
    }

    fn taken(&mut self, context: &mut dyn Context, taken: Taken) {
        match taken {
            Taken::More => self.receive(context),
            Taken::Full => self.full = true,
            Taken::NoMemory => {
                self.full = true;
                self.await_memory(context);
            }
            Taken::Request(request) => {
                self.taken += 1;
                self.counted.request(Command::of(request.op) as usize);
                self.submit(context, request);
            }
            Taken::LargeWrite(request) => {
                self.taken += 1;
                self.counted.request(Command::Write as usize);
                self.writing = Some(self.begin_large(request));
            }
            Taken::Piece(piece) => self.write_piece(context, piece),
            Taken::Refused { cookie, offset_bytes, command, rule } => {
                self.taken += 1;
                self.counted.request(command.map_or(Command::ALL.len(), |command| command as usize));
                self.refuse((cookie, offset_bytes), command, rule);
            }
            Taken::Disconnect => {
                self.counted.request(Command::Disconnect as usize);
                self.life = Life::Ending;
            }
            Taken::Broken(rule) => {
                self.broke(rule);
                self.life = Life::Ending;
            }
        }
    }

    fn receive(&mut self, context: &mut dyn Context) {
        self.waits.receives(context.now_ns());
        if self.channel.is_some() {
            return self.receive_sealed(context);
        }
        if self.draining {
            return self.read_no_more();
        }
        let wanted_bytes = match &mut self.phase {
            ProtocolPhase::Negotiating(_) => HANDSHAKE_RECEIVE_BYTES,
            ProtocolPhase::Transmitting(transmission) => {
                if transmission.payload_missing_bytes() >= DIRECT_BYTES
                    && let Some((buffer, from, to)) = transmission.take_payload()
                {
                    self.receiving = true;
                    return context.receive(self.fd(), buffer, from, to, user::PAYLOAD);
                }
                QUIET_RECEIVE_BYTES
            }
        };
        let (buffer, from, to) = self.inbox.lend(wanted_bytes);
        self.receiving = true;
        context.receive(self.fd(), buffer, from, to, user::INBOX);
    }

    fn received(&mut self, context: &mut dyn Context, from: u32, buffer: Buffer, result: Result<usize, i32>) {
        self.receiving = false;
        let received_bytes = result.unwrap_or(0);
        match (&mut self.phase, from) {
            (ProtocolPhase::Transmitting(transmission), user::PAYLOAD) => {
                transmission.put_payload(buffer, received_bytes)
            }
            (_, user::WIRE) => self.channel.as_mut().expect("it has lent it").put_back(buffer, received_bytes),
            _ => self.inbox.put_back(buffer, received_bytes),
        }
        match result {
            _ if self.life != Life::Open => {}
            Ok(0) => self.left(),
            Ok(_) => self.pump(context),
            Err(errno) if errno == Errno::CANCELED.raw_os_error() => self.pump(context),
            Err(_) => self.close(context),
        }
    }

    /// The client sends no more. Many leave without saying so; what they sent in full is executed and answered.
    fn left(&mut self) {
        let is_whole = self.channel.as_ref().is_none_or(|channel| channel.is_between_records());
        let between = is_whole
            && match &self.phase {
                ProtocolPhase::Negotiating(negotiation) => negotiation.between_messages(),
                ProtocolPhase::Transmitting(transmission) => {
                    transmission.between_requests() && self.inbox.unread().is_empty()
                }
            };
        if !between {
            self.place.stats().count_broken(Rule::Truncated);
        }
        self.read_no_more();
    }

    /// Answers all requests that were received in full, then ends. A write of which a part is missing gets no answer.
    fn read_no_more(&mut self) {
        self.cut_write();
        self.life = Life::Ending;
    }

    fn await_memory(&mut self, context: &mut dyn Context) {
        if !std::mem::replace(&mut self.awaits_memory, true) {
            context.timer(context.now_ns() + MEMORY_RETRY_NS, user::MEMORY);
        }
    }

    /// The client broke a rule after which its bytes have no meaning.
    fn broke(&mut self, rule: Rule) {
        self.broke_because(rule, "");
    }

    /// [`Connection::broke`] with the rest of the sentence for the log.
    fn broke_because(&mut self, rule: Rule, why: &str) {
        self.place.stats().count_broken(rule);
        if let Some(log) = &self.options.listen.log {
            let export = match &self.phase {
                ProtocolPhase::Negotiating(_) => None,
                ProtocolPhase::Transmitting(transmission) => Some(transmission.session().export.name.as_str()),
            };
            let whose = export.map_or("in its handshake".to_owned(), |export| format!("of export {export:?}"));
            let text = format!("nbd: closing a connection {whose}: {}: {}{why}", rule.name(), rule.sentence());
            log(LogLine { text: &text, export });
        }
    }

    fn submit(&mut self, context: &mut dyn Context, request: Request) {
        let ProtocolPhase::Transmitting(transmission) = &self.phase else {
            unreachable!("requests come after the handshake")
        };
        let piece_bytes = match request.op {
            Op::Read => transmission.piece_bytes(),
            Op::Discard | Op::WriteZeroes { .. } | Op::FastZeroes { .. } => RANGE_PIECE_BYTES,
            // A large write comes in pieces.
            Op::Write | Op::Flush | Op::Extents => u32::MAX,
        };
        if request.length_bytes > piece_bytes.into() {
            let place = self.begin_large(request);
            self.issuing.push_back(place);
            return self.issue(context);
        }
        self.submit_whole(context, request);
    }

    fn submit_whole(&mut self, context: &mut dyn Context, request: Request) {
        let ProtocolPhase::Transmitting(transmission) = &self.phase else { unreachable!("as in submit") };
        let export = &transmission.session().export;
        let Request { cookie, op, fua, offset_bytes, length_bytes, buffer } = request;
        // No longer than a piece.
        let length_bytes = length_bytes as u32;
        let buffer = if op == Op::Read { Some(Buffer::new(length_bytes as usize)) } else { buffer };
        let submission = Submission {
            flow: export.flow,
            op,
            // A flush has the export's first byte: a device may have parts that are flushed apart.
            offset_bytes: export.offset_bytes + offset_bytes,
            length_bytes,
            fua,
            buffer,
            cookie: u64::from(self.under_way.insert(PendingRequest::Whole { cookie, offset_bytes, fua })),
        };
        self.hand_over(context, submission);
    }

    fn begin_large(&mut self, request: Request) -> u32 {
        let ProtocolPhase::Transmitting(transmission) = &self.phase else { unreachable!("as in submit") };
        let Request { cookie, op, fua, offset_bytes, length_bytes, .. } = request;
        let piece_bytes = match op {
            Op::Read | Op::Write => transmission.piece_bytes(),
            _ => RANGE_PIECE_BYTES,
        };
        let large = Box::new(Large::new(op, fua, offset_bytes, length_bytes, piece_bytes));
        self.under_way.insert(PendingRequest::Large { cookie, large })
    }

    /// Hands over pieces of large requests, as far as there is memory for their reads.
    fn issue(&mut self, context: &mut dyn Context) {
        // Each has its own before one has more.
        self.issue_up_to(PIECES_EACH, context);
        self.issue_up_to(usize::MAX, context);
    }

    /// Hands over pieces of large requests, first come first, until each has `each`, no more may be under way, or there
    /// is no memory.
    fn issue_up_to(&mut self, each: usize, context: &mut dyn Context) {
        let mut index = 0;
        while self.held.is_none() && self.life != Life::Closed && index < self.issuing.len() {
            let place = self.issuing[index];
            let large = self.under_way.large(place);
            let may = large.pieces_out() < each && large.may_have_more(self.pieces_out);
            let Some(piece) = large.next().filter(|_| may) else {
                // The next one has its turn; a stream has no next one, or its data would have to wait for those before.
                if large.op == Op::Read && self.is_simple() {
                    return;
                }
                index += 1;
                continue;
            };
            let ProtocolPhase::Transmitting(transmission) = &mut self.phase else { unreachable!("as in submit") };
            let buffer = match large.op {
                Op::Read => match transmission.account().take(Buffer::memory_bytes(piece.length_bytes)) {
                    Ok(()) => Some(Buffer::new(piece.length_bytes as usize)),
                    Err(Short::Connection) => return,
                    Err(Short::Shared) => return self.await_memory(context),
                },
                _ => None,
            };
            self.issue_piece(context, place, buffer);
        }
    }

    fn is_simple(&self) -> bool {
        matches!(&self.phase, ProtocolPhase::Transmitting(transmission) if !transmission.session().structured)
    }

    /// Hands over the next piece of a large request.
    fn issue_piece(&mut self, context: &mut dyn Context, place: u32, buffer: Option<Buffer>) {
        let ProtocolPhase::Transmitting(transmission) = &self.phase else { unreachable!("as in submit") };
        let export = &transmission.session().export;
        let large = self.under_way.large(place);
        let piece = large.next().expect("the caller has looked");
        large.issued(piece);
        self.pieces_out += 1;
        let submission = Submission {
            flow: export.flow,
            op: large.op,
            offset_bytes: export.offset_bytes + piece.offset_bytes,
            length_bytes: piece.length_bytes,
            fua: large.fua,
            buffer,
            cookie: u64::from(piece.place) << 32 | u64::from(place),
        };
        self.hand_over(context, submission);
    }

    /// A piece of a large write has come.
    fn write_piece(&mut self, context: &mut dyn Context, piece: Piece) {
        let Piece { length_bytes, buffer, is_last, .. } = piece;
        let Some(place) = self.writing else {
            // The write was cut before.
            return self.give(length_bytes);
        };
        if is_last {
            self.writing = None;
        }
        let large = self.under_way.large(place);
        if large.failed().is_none() {
            return self.issue_piece(context, place, Some(buffer));
        }
        large.dropped(length_bytes);
        self.give(length_bytes);
        self.finish_if_over(context, place);
    }

    /// The payload memory of `length_bytes` is free.
    fn give(&mut self, length_bytes: u32) {
        let ProtocolPhase::Transmitting(transmission) = &mut self.phase else { unreachable!("as in submit") };
        transmission.account().give(Buffer::memory_bytes(length_bytes));
    }

    /// A piece of a large request ended.
    fn piece_ended(&mut self, context: &mut dyn Context, place: u32, completion: Completion) {
        let Completion { cookie: piece, op, status, length_bytes, buffer, .. } = completion;
        let piece = (piece >> 32) as u32;
        self.pieces_out -= 1;
        let is_simple = self.is_simple();
        let Some(PendingRequest::Large { cookie, large }) = self.under_way.get(place) else {
            unreachable!("the caller looked")
        };
        let offset_bytes = large.ended(piece);
        match (op, status, buffer) {
            (Op::Read, Status::Ok, Some(buffer)) if large.failed().is_none() => {
                self.counted.read(length_bytes);
                if is_simple {
                    large.keep(piece, offset_bytes, length_bytes, buffer);
                    let mut streaming = large.is_streaming();
                    while let Some((length_bytes, buffer, is_last)) = large.next_in_stream() {
                        if !std::mem::replace(&mut streaming, true) {
                            self.replies.begin_stream(*cookie);
                        }
                        self.replies.stream(length_bytes, buffer, is_last);
                    }
                } else {
                    let asked = (*cookie, large.offset_bytes);
                    self.replies.piece(asked, offset_bytes, length_bytes, buffer, large.is_over());
                }
            }
            (op, status, _) => {
                if status != Status::Ok {
                    large.fail(status);
                } else if op == Op::Write {
                    self.counted.written(length_bytes);
                }
                if matches!(op, Op::Read | Op::Write) {
                    self.give(length_bytes);
                }
            }
        }
        self.finish_if_over(context, place);
    }

    fn hand_over(&mut self, context: &mut dyn Context, submission: Submission) {
        let ProtocolPhase::Transmitting(transmission) = &self.phase else { unreachable!("as in submit") };
        let export = &transmission.session().export;
        let Submission { op, offset_bytes, length_bytes, .. } = submission;
        if let Some(status) = export.refusal(op, offset_bytes, length_bytes) {
            let Submission { cookie, buffer, .. } = submission;
            return self.late.push(Completion { cookie, status, op, length_bytes, buffer, queued_ns: 0, device_ns: 0 });
        }
        match context.submit(export.device, submission) {
            Ok(()) => {}
            Err(Refused::TenantFull(submission)) => self.held = Some(submission),
        }
    }

    fn refuse(&mut self, (cookie, offset_bytes): (u64, u64), command: Option<Command>, rule: Rule) {
        let ProtocolPhase::Transmitting(transmission) = &self.phase else {
            unreachable!("requests come after the handshake")
        };
        self.place.stats().count_broken(rule);
        let errno = rule.errno(command, transmission.session().structured);
        self.replies.error(cookie, offset_bytes, errno, rule.sentence());
    }

    fn close(&mut self, context: &mut dyn Context) {
        self.life = Life::Closed;
        self.replies.abandon();
        self.held = None;
        self.recalled.clear();
        context.withdraw();
        context.shutdown(self.fd());
    }
}

impl Client for Connection {
    fn start(&mut self, context: &mut dyn Context) {
        if !std::mem::take(&mut self.is_fresh) {
            return self.start_again(context);
        }
        self.await_handshake(context);
        self.replies.append(Negotiation::greeting);
        self.pump(context);
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        match event {
            Event::Received { user, buffer, result, .. } => self.received(context, user, buffer, result),
            Event::Sent { parts, result, .. } => {
                let sent = self.replies.end_send(parts);
                if let ProtocolPhase::Transmitting(transmission) = &mut self.phase {
                    transmission.replied(sent.replies);
                    transmission.account().give(sent.data_bytes);
                }
                match result {
                    _ if self.life == Life::Closed => {}
                    Ok(()) => self.pump(context),
                    Err(_) => self.close(context),
                }
            }
            Event::SentInPart { parts, sent_bytes, .. } => {
                if self.life != Life::Closed {
                    self.replies.end_send_in_part(&parts, sent_bytes);
                }
            }
            Event::Timer { user: user::MEMORY } => {
                self.awaits_memory = false;
                if self.life != Life::Closed {
                    self.pump(context);
                }
            }
            Event::Timer { user: user::TURN } => {
                self.awaits_turn = false;
                if self.life != Life::Closed {
                    self.pump(context);
                }
            }
            Event::Timer { user: user::SESSION_END } => {
                if self.life != Life::Closed {
                    self.close(context);
                }
            }
            Event::Timer { user: user::STALL } => self.look_at_client(context),
            Event::Timer { user: user::HANDSHAKE } => self.handshake_is_over_time(context),
            other => unreachable!("it asked for nothing that ends like this: {other:?}"),
        }
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        if self.life == Life::Closed {
            return;
        }
        let place = completion.cookie as u32;
        if let Some(PendingRequest::Large { .. }) = self.under_way.get(place) {
            self.piece_ended(context, place, completion);
            return self.pump(context);
        }
        let PendingRequest::Whole { cookie, offset_bytes, fua } = self.under_way.remove(place) else {
            unreachable!("asked above")
        };
        let Completion { op, status, length_bytes, buffer, .. } = completion;
        match (op, status, buffer) {
            (Op::Read, Status::Ok, Some(buffer)) => {
                self.counted.read(length_bytes);
                self.replies.data(cookie, offset_bytes, length_bytes, buffer);
            }
            (Op::Extents, status, buffer) => {
                self.give(SHEET_BYTES);
                self.answer_status(cookie, offset_bytes, length_bytes, status, buffer);
            }
            (_, Status::Recalled, buffer) => {
                let length_bytes = length_bytes.into();
                self.recalled.push_back(Request { cookie, op, fua, offset_bytes, length_bytes, buffer });
                // No process took over, and a recalled request arrives after the end of the pause.
                self.hand_over_recalled(context);
            }
            (op, status, _) => {
                if matches!(op, Op::Read | Op::Write) {
                    self.give(length_bytes);
                }
                match errno_of(op, status) {
                    None => {
                        assert!(op != Op::Read, "a read that ended well came back without its buffer");
                        self.counted.written(if op == Op::Write { length_bytes } else { 0 });
                        self.replies.done(cookie, offset_bytes);
                    }
                    Some(errno) => self.replies.error(cookie, offset_bytes, errno, &status.to_string()),
                }
            }
        }
        self.pump(context);
    }

    fn turn_end(&mut self, context: &mut dyn Context) {
        while let Some(completion) = self.late.pop() {
            self.completed(context, completion);
        }
        self.counted.add_to(self.place.stats());
        self.taken = 0;
        if self.life == Life::Closed || self.paused {
            return;
        }
        let parts = match &mut self.channel {
            None => self.replies.begin_send(),
            Some(channel) => self.replies.begin_sealed_send(|plain| channel.seal(plain)),
        };
        if let Some(parts) = parts {
            self.waits.sends(context.now_ns());
            context.send(self.fd(), parts, user::SEND);
        } else if !self.replies.is_sending()
            && let Some(why) = self.channel.as_mut().and_then(|channel| channel.take_failed())
        {
            // Not even an alert is left to send, so no send will end, and the replies are lost with what they count.
            self.tls_broke(&why);
            return self.close(context);
        }
        if self.life == Life::Ending && self.under_way.is_empty() && self.replies.is_empty() {
            self.end(context);
        }
        self.await_client(context);
    }

    fn room(&mut self, context: &mut dyn Context) {
        if let Some(submission) = self.held.take() {
            self.hand_over(context, submission);
        }
        self.hand_over_recalled(context);
        self.pump(context);
    }

    fn drain(&mut self, _context: &mut dyn Context) {
        self.draining = true;
        // An option that comes later would have to be refused; there is nothing to lose by not waiting for it. A
        // request that comes with the receive in flight is one that was never read.
        let reads_now = self.receiving || matches!(self.phase, ProtocolPhase::Negotiating(_));
        if self.life == Life::Open && reads_now {
            self.read_no_more();
        }
    }

    fn abort(&mut self, context: &mut dyn Context) {
        // A draining connection whose requests are with the device has nothing in flight that would tell it.
        if self.draining && self.life != Life::Closed {
            self.close(context);
        }
    }

    fn is_done(&self) -> bool {
        self.life == Life::Closed
    }

    fn takes_back(&self) -> bool {
        self.keeps_requests()
    }

    fn pause(&mut self, context: &mut dyn Context) {
        self.hold_still(context);
    }

    fn is_paused(&self) -> bool {
        self.is_still()
    }

    fn pack(&self, version: u16) -> io::Result<Option<PackedClient>> {
        self.packed(version)
    }

    fn resume(&mut self, context: &mut dyn Context) {
        self.go_on(context);
    }

    fn label(&self) -> Label {
        let export = match &self.phase {
            ProtocolPhase::Negotiating(_) => None,
            ProtocolPhase::Transmitting(transmission) => Some(transmission.session().export.id.number()),
        };
        Label { client: Some(self.number), export }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counted.add_to(self.place.stats());
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
