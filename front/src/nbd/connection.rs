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
//! While its limits are reached (it waits for its own replies to leave), and while a request is held because the
//! tenant's staging is full (it waits for [`Client::room`]). In both cases whole requests may lie in the inbox, so a
//! receive is in flight only when every whole request was taken. That makes "received in full" exact when the engine
//! drains: what is in the inbox then is executed, what comes later is refused.
//!
//! # How it ends
//! | from | because | what still happens |
//! |---|---|---|
//! | `Open` | client left, disconnected, broke a rule, or all is answered while draining | to `Ending` |
//! | `Ending` | every request is answered and every reply has left | to `Closed`: the socket is shut down |
//! | any | the socket is broken | to `Closed` at once; completions are dropped |
//! | any, in the handshake | its time is over | to `Closed` at once: who does not speak may not read either |

use super::NbdOptions;
use super::inbox::Inbox;
use super::negotiate::{Negotiation, Progress};
use super::places::{Place, Places};
use super::reply::Replies;
use super::rule::{Rule, errno_of_status};
use super::stats::Counted;
use super::transmit::{Limits, Request, Taken, Transmission};
use super::wire::Command;
use crate::export::{Export, ExportTable};
use mqfq_blk::buffer::{ALIGNMENT_BYTES, Buffer};
use mqfq_blk::client::{Client, Context, Event, Refused};
use mqfq_blk::request::{Completion, Op, Status, Submission};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

/// Receive buffer of the handshake, bytes.
const HANDSHAKE_RECEIVE_BYTES: usize = ALIGNMENT_BYTES;

/// First receive buffer after the handshake, bytes: three writes of 4 KiB, or several hundred reads.
const QUIET_RECEIVE_BYTES: usize = 16 << 10;

/// Least missing part of a payload that is received into the request's own buffer, bytes. Below, one receive into the
/// inbox that also brings the next requests is cheaper than a receive that ends with the payload.
const DIRECT_BYTES: usize = 32 << 10;

/// Names of socket operations and of the timer. Only one receive is in flight at a time, whichever it is.
mod user {
    pub const INBOX: u32 = 0;
    pub const PAYLOAD: u32 = 1;
    pub const SEND: u32 = 2;
    /// The time of the handshake is over, wherever the connection is by now.
    pub const HANDSHAKE: u32 = 3;
}

/// One client's connection.
pub struct Connection {
    options: Arc<NbdOptions>,
    /// With the socket.
    place: Place,
    phase: Phase,
    life: Life,
    inbox: Inbox,
    receiving: bool,
    /// A whole request lies in the inbox and does not fit the limits.
    full: bool,
    draining: bool,
    under_way: UnderWay,
    /// Refused for want of room in the tenant's staging. Its place in `under_way` is taken.
    held: Option<Submission>,
    replies: Replies,
    counted: Counted,
}

#[derive(Debug)]
enum Phase {
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
    /// A connection on `socket`, in one of the handshakes' `places`.
    pub fn new(
        socket: OwnedFd,
        exports: Arc<ExportTable>,
        options: Arc<NbdOptions>,
        places: &Arc<Places>,
    ) -> Connection {
        Connection {
            place: places.enter(socket),
            phase: Phase::Negotiating(Negotiation::new(exports)),
            life: Life::Open,
            inbox: Inbox::new(options.receive_buffer_bytes.max(HANDSHAKE_RECEIVE_BYTES)),
            receiving: false,
            full: false,
            draining: false,
            under_way: UnderWay::default(),
            held: None,
            replies: Replies::new(),
            counted: Counted::default(),
            options,
        }
    }

    fn fd(&self) -> RawFd {
        self.place.fd()
    }

    /// Uses what lies in the inbox, then receives more, as far as the limits allow.
    fn pump(&mut self, context: &mut dyn Context) {
        self.full = false;
        while self.life == Life::Open && self.held.is_none() && !self.receiving && !self.full {
            match &mut self.phase {
                Phase::Negotiating(_) if self.replies.handshake_backs_up() => return,
                Phase::Negotiating(negotiation) => {
                    let unread = self.inbox.unread();
                    let admit = &mut |export: &Export| self.place.choose(export);
                    let (used, progress) = self.replies.append(|out| negotiation.advance(unread, out, admit));
                    self.inbox.consume(used);
                    self.negotiated(context, progress);
                }
                Phase::Transmitting(transmission) => {
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
                refused.into_iter().for_each(|rule| self.place.stats().count_broken(rule))
            }
            Progress::Transmit(session) => {
                self.replies.set_structured(session.structured);
                let limits = Limits {
                    requests_max: self.options.requests_in_flight_max.max(1),
                    bytes_max: self.options.bytes_in_flight_max,
                };
                self.phase = Phase::Transmitting(Transmission::new(session, limits));
            }
            Progress::Close { broken } => {
                broken.into_iter().for_each(|rule| self.broke(rule));
                self.life = Life::Ending;
            }
        }
    }

    fn taken(&mut self, context: &mut dyn Context, taken: Taken) {
        match taken {
            Taken::More => self.receive(context),
            Taken::Full => self.full = true,
            Taken::Request(request) => {
                self.counted.request(Some(command_of(request.op)));
                self.submit(context, request);
            }
            Taken::BlockStatus { cookie, length_bytes } => {
                self.counted.request(Some(Command::BlockStatus));
                self.replies.block_status(cookie, length_bytes);
            }
            Taken::Refused { cookie, command, rule } => {
                self.counted.request(command);
                self.refuse(cookie, command, rule);
            }
            Taken::Disconnect => {
                self.counted.request(Some(Command::Disconnect));
                self.life = Life::Ending;
            }
            Taken::Broken(rule) => {
                self.broke(rule);
                self.life = Life::Ending;
            }
        }
    }

    fn receive(&mut self, context: &mut dyn Context) {
        let wanted_bytes = match &mut self.phase {
            Phase::Negotiating(_) => HANDSHAKE_RECEIVE_BYTES,
            Phase::Transmitting(transmission) => {
                if self.draining {
                    transmission.shut_down();
                }
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
            (Phase::Transmitting(transmission), user::PAYLOAD) => transmission.put_payload(buffer, received_bytes),
            _ => self.inbox.put_back(buffer, received_bytes),
        }
        match result {
            _ if self.life != Life::Open => {}
            Ok(0) => self.left(),
            Ok(_) => self.pump(context),
            Err(_) => self.close(context),
        }
    }

    /// The client sends no more. Many leave without saying so; what they sent in full is executed and answered.
    fn left(&mut self) {
        let between = match &self.phase {
            Phase::Negotiating(negotiation) => negotiation.between_messages(),
            Phase::Transmitting(transmission) => transmission.between_requests() && self.inbox.unread().is_empty(),
        };
        if !between {
            self.place.stats().count_broken(Rule::Truncated);
        }
        self.life = Life::Ending;
    }

    /// The client broke a rule after which its bytes have no meaning.
    fn broke(&mut self, rule: Rule) {
        self.place.stats().count_broken(rule);
        if let Some(log) = &self.options.log {
            let whose = match &self.phase {
                Phase::Negotiating(_) => "in its handshake".to_owned(),
                Phase::Transmitting(transmission) => format!("of export {:?}", transmission.session().export.name),
            };
            log(&format!("nbd: closing a connection {whose}: {}: {}", rule.name(), rule.sentence()));
        }
    }

    fn submit(&mut self, context: &mut dyn Context, request: Request) {
        let Phase::Transmitting(transmission) = &self.phase else { unreachable!("requests come after the handshake") };
        let export = &transmission.session().export;
        let Request { cookie, op, fua, offset_bytes, length_bytes, buffer } = request;
        let buffer = if op == Op::Read { Some(Buffer::new(length_bytes as usize)) } else { buffer };
        let submission = Submission {
            flow: export.flow,
            op,
            offset_bytes: if op == Op::Flush { 0 } else { export.offset_bytes + offset_bytes },
            length_bytes,
            fua,
            buffer,
            cookie: self.under_way.insert(Waiting { cookie, offset_bytes }),
        };
        self.hand_over(context, submission);
    }

    fn hand_over(&mut self, context: &mut dyn Context, submission: Submission) {
        let Phase::Transmitting(transmission) = &self.phase else { unreachable!("as in submit") };
        match context.submit(transmission.session().export.device, submission) {
            Ok(()) => {}
            Err(Refused::TenantFull(submission)) => self.held = Some(submission),
        }
    }

    fn refuse(&mut self, cookie: u64, command: Option<Command>, rule: Rule) {
        let Phase::Transmitting(transmission) = &self.phase else { unreachable!("requests come after the handshake") };
        self.place.stats().count_broken(rule);
        self.replies.error(cookie, rule.errno(command, transmission.session().structured), rule.sentence());
    }

    fn handshake_is_over_time(&mut self, context: &mut dyn Context) {
        if matches!(self.phase, Phase::Negotiating(_)) && self.life != Life::Closed {
            self.broke(Rule::HandshakeTooSlow);
            self.close(context);
        }
    }

    fn close(&mut self, context: &mut dyn Context) {
        self.life = Life::Closed;
        self.replies.abandon();
        if let Some(held) = self.held.take() {
            self.under_way.remove(held.cookie);
        }
        context.shutdown(self.fd());
    }
}

impl Client for Connection {
    fn start(&mut self, context: &mut dyn Context) {
        // Saturating: a limit of centuries is none.
        let timeout_ns = u64::try_from(self.options.handshake_timeout.as_nanos()).unwrap_or(u64::MAX);
        context.timer(context.now_ns().saturating_add(timeout_ns), user::HANDSHAKE);
        self.replies.append(Negotiation::greeting);
        self.pump(context);
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        match event {
            Event::Received { user, buffer, result } => self.received(context, user, buffer, result),
            Event::Sent { parts, result, .. } => {
                let sent = self.replies.end_send(parts);
                if let Phase::Transmitting(transmission) = &mut self.phase {
                    transmission.replied(sent.replies);
                    transmission.bytes_freed(sent.data_bytes);
                }
                match result {
                    _ if self.life == Life::Closed => {}
                    Ok(()) => self.pump(context),
                    Err(_) => self.close(context),
                }
            }
            Event::Timer { .. } => self.handshake_is_over_time(context),
            Event::Accepted { .. } => unreachable!("a connection does not listen"),
        }
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        let Waiting { cookie, offset_bytes } = self.under_way.remove(completion.cookie);
        let Phase::Transmitting(transmission) = &mut self.phase else { unreachable!("as in submit") };
        if self.life == Life::Closed {
            return;
        }
        let Completion { op, status, length_bytes, buffer, .. } = completion;
        if let (Op::Read, Status::Ok, Some(buffer)) = (op, status, buffer) {
            self.counted.read(length_bytes);
            self.replies.data(cookie, offset_bytes, length_bytes, buffer);
        } else {
            if matches!(op, Op::Read | Op::Write) {
                transmission.bytes_freed(u64::from(length_bytes));
            }
            match errno_of_status(status) {
                None => {
                    assert!(op != Op::Read, "a read that ended well came back without its buffer");
                    self.counted.written(if op == Op::Write { length_bytes } else { 0 });
                    self.replies.done(cookie);
                }
                Some(errno) => self.replies.error(cookie, errno, &status.to_string()),
            }
        }
        self.pump(context);
    }

    fn turn_end(&mut self, context: &mut dyn Context) {
        self.counted.add_to(self.place.stats());
        if self.life == Life::Closed {
            return;
        }
        if let Some(parts) = self.replies.begin_send() {
            context.send(self.fd(), parts, user::SEND);
        }
        let answered = self.under_way.is_empty() && !self.full;
        if self.draining && answered {
            self.life = Life::Ending;
        }
        if self.life == Life::Ending && answered && self.replies.is_empty() {
            self.close(context);
        }
    }

    fn room(&mut self, context: &mut dyn Context) {
        if let Some(submission) = self.held.take() {
            self.hand_over(context, submission);
        }
        self.pump(context);
    }

    fn drain(&mut self, _context: &mut dyn Context) {
        self.draining = true;
        match &mut self.phase {
            // An option that comes later would have to be refused; there is nothing to lose by not waiting for it.
            Phase::Negotiating(_) => self.life = self.life.max_ending(),
            Phase::Transmitting(transmission) if self.receiving => transmission.shut_down(),
            Phase::Transmitting(_) => {}
        }
    }

    fn is_done(&self) -> bool {
        self.life == Life::Closed
    }
}

impl Life {
    /// At least ending.
    fn max_ending(self) -> Life {
        if self == Life::Open { Life::Ending } else { self }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counted.add_to(self.place.stats());
    }
}

fn command_of(op: Op) -> Command {
    match op {
        Op::Read => Command::Read,
        Op::Write => Command::Write,
        Op::Flush => Command::Flush,
        Op::Discard => Command::Trim,
        Op::WriteZeroes { .. } => Command::WriteZeroes,
    }
}

/// What a reply needs that a completion does not bring.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The client's name for the request; two requests may have the same.
    cookie: u64,
    offset_bytes: u64,
}

/// Requests handed to the block layer, by the names we give them there: places in a list, used again.
#[derive(Debug, Default)]
struct UnderWay {
    places: Vec<Option<Waiting>>,
    free: Vec<u64>,
}

impl UnderWay {
    fn insert(&mut self, waiting: Waiting) -> u64 {
        match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = Some(waiting);
                place
            }
            None => {
                self.places.push(Some(waiting));
                self.places.len() as u64 - 1
            }
        }
    }

    fn remove(&mut self, place: u64) -> Waiting {
        let waiting = self.places.get_mut(place as usize).and_then(Option::take);
        self.free.push(place);
        waiting.unwrap_or_else(|| panic!("request {place} was answered twice, or never made"))
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
