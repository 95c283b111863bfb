//! One front-end's connection: messages from the socket, answers to it, and orders to the queues.
//!
//! A message is taken when those before it were answered and the queues that it changes have stopped. So each sees the
//! state that the one before it left, however many are sent at once.
//!
//! ```text
//!   header ─▶ payload ─▶ [the export is free] ─▶ [queues are quiet] ─▶ Session ─▶ answer ─▶ start queues ─┐
//!     ▲                                                                                                   │
//!     └───────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The export has to be free for the first message that leads to a queue ([`Session::is_preamble`] has the others). A
//! front-end that only looks at its disk is answered at once: QEMU from 7.2 on and before 9.1 never speaks to a disk
//! again whose connection was closed before its queues were set up.
//!
//! A header and its payload are received apart, each with exactly its length: descriptors belong to the header that
//! they came with.
//!
//! # How it ends
//! | because | what still happens |
//! |---|---|
//! | the front-end left, or broke a rule; the export or the engine drains | queues take no more heads, end those under way in the guest's memory, and go; then the socket is closed |
//! | half a message came and no more in time, or another front-end has the export all the time | closed |
//!
//! Both times begin with what is waited for, and not with the connection: a hypervisor that sets up one disk says
//! nothing on the others meanwhile, and one that waits for a migration says nothing for hours. Silent connections are
//! bounded by the places of handshakes alone, their descriptors by those and by [`ExclusiveAccess::door`].
//!
//! The next server finds the requests in the guest's rings: a front-end connects again and hands the memory over.

use super::NAMES;
use super::disk::{Disk, QUEUES_MAX};
use super::notice::Notice;
use super::queue::{About, Queue};
use super::queue_control::{self, ExclusiveAccess, ExclusiveClient, Order, QueueControl, State};
use super::rule::Rule;
use super::session::{Answer, Session, Stops};
use super::wire::{
    FLAG_NEED_REPLY, FLAG_REPLY, HEADER_BYTES, Header, Message, PAYLOAD_BYTES_MAX, TABLE_REGIONS_MAX, VERSION,
    VERSION_MASK,
};
use crate::connection_slots::ConnectionSlot;
use crate::export::Export;
use crate::front_end::{ListenOptions, LogLine, next_client};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Client, Context, Event, Label, Part};
use mqfq_blk::passed::Passed;
use mqfq_blk::request::Completion;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Names of the events that it waits for.
pub(super) mod user {
    pub const RECEIVE: u32 = 0;
    pub const SEND: u32 = 1;
    pub const BELL: u32 = 2;
    pub const PATIENCE: u32 = 3;
    pub const ORDER: u32 = 4;
    pub const NOTICE: u32 = 5;
}

/// One front-end's connection.
pub struct Connection {
    place: ConnectionSlot,
    export: Arc<Export>,
    options: Arc<ListenOptions>,
    access: Arc<ExclusiveAccess>,
    exclusive: Option<Arc<ExclusiveClient>>,
    /// Rung by queues, and when the export is free. `None`: no descriptor was left.
    bell: Option<Arc<OwnedFd>>,
    number: u64,
    session: Session,
    /// By number, as far as they were ever started.
    queues: Vec<Option<Arc<QueueControl>>>,
    /// By number: the queue was started and not seen to have stopped.
    running: Vec<bool>,
    step: Step,
    /// Receive buffer; with the receive while one is under way.
    buffer: Option<Buffer>,
    descriptors: Vec<Passed>,
    notice: Notice,
    patience: Patience,
    life: Life,
}

/// Time that the worker waits for the rest of a message, or for the export.
#[derive(Default)]
struct Patience {
    /// Time when the wait began.
    since_ns: Option<u64>,
    /// A timer is running.
    is_timed: bool,
}

/// Progress of the next message.
enum Step {
    /// Bytes of its header that have come.
    Header(usize),
    /// Bytes of its payload that have come.
    Payload(Header, usize),
    /// All of it is here. It waits for the export, or for queues.
    Whole(Header, Vec<u8>),
    /// Its answer is being sent.
    Answering,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Open,
    /// Queues were told to leave.
    Ending,
    Closed,
}

impl Connection {
    /// A connection on the socket of `place`, of a front-end that has said nothing yet.
    pub fn new(
        place: ConnectionSlot,
        export: Arc<Export>,
        access: Arc<ExclusiveAccess>,
        options: Arc<ListenOptions>,
    ) -> Connection {
        let disk = Disk::new(&export);
        Connection {
            place,
            notice: Notice::new(&disk),
            session: Session::new(disk),
            export,
            options,
            access,
            exclusive: None,
            bell: queue_control::bell().map(Arc::new),
            number: next_client(),
            queues: (0..QUEUES_MAX).map(|_| None).collect(),
            running: vec![false; usize::from(QUEUES_MAX)],
            step: Step::Header(0),
            buffer: Some(Buffer::new(PAYLOAD_BYTES_MAX)),
            descriptors: Vec::new(),
            patience: Patience::default(),
            life: Life::Open,
        }
    }

    /// Goes as far as it can with the message that comes.
    fn advance(&mut self, context: &mut dyn Context) {
        while self.life == Life::Open {
            match std::mem::replace(&mut self.step, Step::Answering) {
                Step::Header(HEADER_BYTES) => self.header(context),
                Step::Payload(header, have) if have == header.size as usize => {
                    let buffer = self.buffer.as_ref().expect("no receive is under way");
                    self.step = Step::Whole(header, buffer.as_slice()[..have].to_vec());
                }
                Step::Header(have) => {
                    self.step = Step::Header(have);
                    self.wait(context, have > 0);
                    return self.receive(context, have, HEADER_BYTES);
                }
                Step::Payload(header, have) => {
                    self.step = Step::Payload(header, have);
                    self.wait(context, true);
                    return self.receive(context, have, header.size as usize);
                }
                Step::Whole(header, payload) => {
                    let is_seated = Message::of(header.request).is_some_and(Session::is_preamble) || self.is_seated();
                    if !is_seated || !self.are_quiet(context, &header, &payload) {
                        if self.life == Life::Open {
                            self.step = Step::Whole(header, payload);
                            self.wait(context, !is_seated);
                        }
                        return;
                    }
                    self.take(context, header, &payload);
                }
                Step::Answering => return,
            }
        }
    }

    fn receive(&mut self, context: &mut dyn Context, from: usize, to: usize) {
        // Twice as many are for the front-end that has the export, so that others do not take its connection away.
        if self.access.door().is_full(1 + usize::from(self.exclusive.is_some())) {
            return self.end(context, Some(Rule::TooManyDescriptors));
        }
        if let Some(buffer) = self.buffer.take() {
            context.receive_with_descriptors(self.place.fd(), buffer, from, to, user::RECEIVE);
        }
    }

    /// From the first time on that `is_waiting` without a break in between, the front-end's patience is measured.
    fn wait(&mut self, context: &mut dyn Context, is_waiting: bool) {
        let now_ns = context.now_ns();
        if !is_waiting {
            self.patience.since_ns = None;
        } else if self.patience.since_ns.is_none() {
            self.patience.since_ns = Some(now_ns);
            self.time_patience(context, now_ns);
        }
    }

    fn time_patience(&mut self, context: &mut dyn Context, since_ns: u64) {
        if !std::mem::replace(&mut self.patience.is_timed, true) {
            context.timer(self.deadline_ns(since_ns), user::PATIENCE);
        }
    }

    fn deadline_ns(&self, since_ns: u64) -> u64 {
        let timeout_ns = u64::try_from(self.options.handshake_timeout.as_nanos()).unwrap_or(u64::MAX);
        since_ns.saturating_add(timeout_ns)
    }

    /// The timer's time has come, which may be of something that has long been over.
    fn patience_ends(&mut self, context: &mut dyn Context) {
        self.patience.is_timed = false;
        let Some(since_ns) = self.patience.since_ns.filter(|_| self.life == Life::Open) else { return };
        let now_ns = context.now_ns();
        let waits_for_access = matches!(self.step, Step::Whole(..));
        if waits_for_access && self.access.is_leaving() {
            // The connection that has the export takes nothing more: its requests end, and then the export is free.
            self.patience.since_ns = Some(now_ns);
            return self.time_patience(context, now_ns);
        }
        if now_ns >= self.deadline_ns(since_ns) {
            return self.end(context, Some(Rule::HandshakeTooSlow));
        }
        self.time_patience(context, since_ns);
    }

    fn header(&mut self, context: &mut dyn Context) {
        let buffer = self.buffer.as_ref().expect("no receive is under way");
        let header = Header::read(buffer.as_slice()).expect("a buffer is longer than a header");
        if header.flags & VERSION_MASK != VERSION || header.flags & FLAG_REPLY != 0 {
            return self.end(context, Some(Rule::BadHeader));
        }
        if header.size as usize > PAYLOAD_BYTES_MAX {
            return self.end(context, Some(Rule::MessageTooLong));
        }
        self.step = Step::Payload(header, 0);
    }

    /// The export is this front-end's.
    fn is_seated(&mut self) -> bool {
        if self.exclusive.is_some() {
            return true;
        }
        let Some(bell) = &self.bell else { return false };
        self.exclusive = self.access.take(bell);
        self.exclusive.is_some()
    }

    /// The queues that the message changes have stopped. If not, they are told to.
    fn are_quiet(&mut self, context: &mut dyn Context, header: &Header, payload: &[u8]) -> bool {
        let is_served = !self.export.state.is_closed() && (self.exclusive.is_none() || self.place.choose(&self.export));
        if !is_served {
            self.end(context, Some(Rule::NotServed));
            return false;
        }
        let Some(message) = Message::of(header.request) else { return true };
        let stops = self.session.stops(message, payload);
        let mut are_quiet = true;
        for number in 0..QUEUES_MAX {
            let is_meant = stops == Stops::All || stops == Stops::One(number);
            let Some(control) = self.queues[usize::from(number)].as_ref().filter(|_| is_meant) else { continue };
            if !self.running[usize::from(number)] {
                continue;
            }
            match control.state() {
                State::Quiet(base) => {
                    self.running[usize::from(number)] = false;
                    self.session.stopped(number, base);
                }
                State::Busy { is_stopping: true } => are_quiet = false,
                State::Busy { is_stopping: false } => {
                    control.order(Order::Stop);
                    context.signal(control.queue_bell(), user::ORDER);
                    are_quiet = false;
                }
                State::Gone => {
                    // The engine drains, and took it first.
                    self.end(context, None);
                    return false;
                }
            }
        }
        are_quiet
    }

    fn take(&mut self, context: &mut dyn Context, header: Header, payload: &[u8]) {
        let descriptors = std::mem::take(&mut self.descriptors);
        // Its size may be another one since the last message, and whether it may be written to.
        let disk = Disk::new(&self.export);
        if header.request == Message::GetConfig as u32 {
            self.notice.read(&disk);
        }
        self.session.set_disk(disk);
        self.patience.since_ns = None;
        let taken = match Message::of(header.request) {
            Some(message) => self.session.take(message, payload, descriptors),
            None => Err(Rule::UnknownMessage),
        };
        // Also after a message that was refused: queues stopped for it.
        let started = self.start_queues(context);
        let taken = taken.and_then(|answer| started.map(|()| answer));
        self.look_at_disk(context);
        let wants_ack = self.session.acknowledges() && header.flags & FLAG_NEED_REPLY != 0;
        self.step = Step::Header(0);
        match taken {
            Ok(Answer { payload: Some(payload), descriptor }) => {
                self.answer(context, header.reply(&payload), descriptor)
            }
            Ok(_) if wants_ack => self.answer(context, header.reply(&0u64.to_ne_bytes()), None),
            Ok(_) => {}
            Err(rule) if wants_ack => {
                self.say(rule);
                self.answer(context, header.reply(&1u64.to_ne_bytes()), None);
            }
            Err(rule) => self.end(context, Some(rule)),
        }
    }

    fn answer(&mut self, context: &mut dyn Context, bytes: Vec<u8>, descriptor: Option<OwnedFd>) {
        self.step = Step::Answering;
        let parts = vec![Part::Bytes(bytes)];
        match descriptor {
            Some(descriptor) => {
                context.send_with_descriptors(self.place.fd(), parts, vec![descriptor], user::SEND);
            }
            None => context.send(self.place.fd(), parts, user::SEND),
        }
    }

    /// Tells the front-end if its disk is another one.
    fn look_at_disk(&mut self, context: &mut dyn Context) {
        if self.life == Life::Open {
            self.notice.look(context, &self.session, &Disk::new(&self.export));
        }
    }

    /// Starts the queues that have all that they need and do not run.
    fn start_queues(&mut self, context: &mut dyn Context) -> Result<(), Rule> {
        for number in 0..QUEUES_MAX {
            let place = usize::from(number);
            if self.running[place] {
                continue;
            }
            let Some(start) = self.session.ready(number)? else { continue };
            let Some(bell) = &self.bell else { return Err(Rule::NotServed) };
            let Some(exclusive) = &self.exclusive else { return Ok(()) };
            let control = match &self.queues[place] {
                Some(control) => control.clone(),
                None => {
                    let control = QueueControl::new(bell.clone()).ok_or(Rule::NotServed)?;
                    let (about, exclusive) = (self.about(), exclusive.clone());
                    let queue = Box::new(Queue::new(about, control.clone(), exclusive));
                    context.attach(Box::new(move || queue));
                    self.queues[place] = Some(control.clone());
                    control
                }
            };
            control.order(Order::Start(Box::new(start)));
            context.signal(control.queue_bell(), user::ORDER);
            self.running[place] = true;
        }
        Ok(())
    }

    fn about(&self) -> About {
        About {
            number: self.number,
            export: self.export.clone(),
            disk: Disk::new(&self.export),
            bytes_max: self.options.bytes_in_flight_max,
            stats: self.place.shared_stats(),
            log: self.options.log.clone(),
        }
    }

    fn say(&self, rule: Rule) {
        self.place.stats().count_broken(rule);
        if let Some(log) = &self.options.log {
            let (name, about) = (&self.export.name, rule.about().map(|about| format!(": {about}")).unwrap_or_default());
            let text = &format!("{}: a front-end of export {name:?}: {}{about}", NAMES.front_end, rule.name());
            log(LogLine { text, export: Some(&self.export.name) });
        }
    }

    /// Takes no more messages. Queues end their requests and go.
    fn end(&mut self, context: &mut dyn Context, rule: Option<Rule>) {
        self.end_by(context, rule, || Order::Leave);
    }

    fn end_by(&mut self, context: &mut dyn Context, rule: Option<Rule>, order: fn() -> Order) {
        if let Some(rule) = rule {
            self.say(rule);
        }
        if self.life == Life::Open {
            self.life = Life::Ending;
            self.notice.end(context);
            if self.exclusive.is_some() {
                self.access.leave();
            }
            for control in self.queues.iter().flatten() {
                control.order(order());
                context.signal(control.queue_bell(), user::ORDER);
            }
        }
        self.close_if_alone(context);
    }

    fn close_if_alone(&mut self, context: &mut dyn Context) {
        let is_alone = self.queues.iter().flatten().all(|control| control.state() == State::Gone);
        if self.life == Life::Ending && is_alone {
            self.life = Life::Closed;
            context.shutdown(self.place.fd());
        }
    }

    fn received(&mut self, context: &mut dyn Context, buffer: Buffer, result: Result<usize, i32>) {
        self.buffer = Some(buffer);
        if self.life != Life::Open {
            return;
        }
        match (&mut self.step, result) {
            (Step::Header(have), Ok(0)) => {
                let rule = (*have > 0).then_some(Rule::Truncated);
                self.end_by(context, rule, || Order::GiveUp);
            }
            (Step::Payload(..), Ok(0)) => self.end_by(context, Some(Rule::Truncated), || Order::GiveUp),
            (Step::Header(have) | Step::Payload(_, have), Ok(count)) => {
                *have += count;
                self.advance(context);
            }
            (_, Err(_)) => self.end(context, None),
            (Step::Whole(..) | Step::Answering, Ok(_)) => unreachable!("nothing is received before an answer"),
        }
    }
}

impl Client for Connection {
    fn start(&mut self, context: &mut dyn Context) {
        let Some(bell) = &self.bell else { return self.end(context, Some(Rule::NotServed)) };
        context.count(bell.as_raw_fd(), user::BELL);
        self.export.state.watch(bell);
        self.advance(context);
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        match event {
            Event::Sent { user: user::NOTICE, result, .. } => {
                self.notice.sent(result);
                self.look_at_disk(context);
            }
            Event::Received { buffer, result, descriptors, .. } => {
                let is_cut = descriptors.is_cut();
                let door = self.access.door();
                self.descriptors.extend(descriptors.into_vec().into_iter().map(|descriptor| door.pass(descriptor)));
                // A message may come byte by byte, and descriptors with each.
                if is_cut || self.descriptors.len() > TABLE_REGIONS_MAX {
                    self.descriptors.clear();
                    return self.end(context, Some(Rule::BadDescriptors));
                }
                self.received(context, buffer, result);
            }
            Event::Sent { result, .. } => {
                if result.is_err() {
                    return self.end(context, None);
                }
                self.step = Step::Header(0);
                self.advance(context);
            }
            Event::Counted { result, .. } => {
                if result.is_err() {
                    // The grace time of a drain is over. Queues whose requests are on the device still, or are staged,
                    // ring when they have gone.
                    self.end(context, None);
                }
                if let Some(bell) = &self.bell {
                    context.count(bell.as_raw_fd(), user::BELL);
                }
                self.close_if_alone(context);
                self.look_at_disk(context);
                self.advance(context);
            }
            Event::Timer { .. } => self.patience_ends(context),
            Event::Signalled { .. } => {}
            other => unreachable!("a connection receives, sends and waits for its bell, yet got {other:?}"),
        }
    }

    fn completed(&mut self, _context: &mut dyn Context, completion: Completion) {
        unreachable!("a connection submits nothing, yet got {completion:?}");
    }

    fn turn_end(&mut self, context: &mut dyn Context) {
        self.close_if_alone(context);
    }

    fn room(&mut self, _context: &mut dyn Context) {}

    fn drain(&mut self, context: &mut dyn Context) {
        self.end(context, None);
    }

    fn is_done(&self) -> bool {
        self.life == Life::Closed
    }

    fn label(&self) -> Label {
        Label { client: Some(self.number), export: Some(self.export.id.number()) }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(bell) = &self.bell {
            self.access.forget(bell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::disk::tests::export;
    use super::*;
    use crate::connection_slots::ConnectionSlots;
    use crate::export::ExportTable;
    use crate::fake::Peer;
    use crate::stats::Stats;
    use std::os::unix::net::UnixStream;

    fn connection() -> (Peer<Connection>, UnixStream) {
        connection_at(&Arc::default())
    }

    /// Another one at the same address.
    fn connection_at(access: &Arc<ExclusiveAccess>) -> (Peer<Connection>, UnixStream) {
        let (export, options) = (Arc::new(export()), ListenOptions::default());
        let table = ExportTable::new([(*export).clone()]).unwrap();
        let places = ConnectionSlots::new(&table, &options, Stats::new(&NAMES));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let connection = Connection::new(places.enter(ours.into()), export, access.clone(), Arc::new(options));
        (Peer::new(connection, 0), theirs)
    }

    #[test]
    fn a_connection_whose_queue_outlasts_the_grace_time_hears_of_its_end() {
        let (mut peer, _theirs) = connection();
        let control = QueueControl::new(peer.client.bell.clone().unwrap()).unwrap();
        peer.client.queues[0] = Some(control.clone());
        peer.drain();
        let counted = |peer: &mut Peer<Connection>, result| {
            peer.fake.waits.retain(|wait| *wait != user::BELL);
            peer.client.event(&mut peer.fake, Event::Counted { user: user::BELL, result });
            peer.client.turn_end(&mut peer.fake);
            peer.run();
        };
        counted(&mut peer, Err(125));
        assert!(!peer.gone(), "a request of its queue is on the device");
        assert!(peer.fake.waits.contains(&user::BELL));
        control.gone();
        counted(&mut peer, Ok(1));
        assert!(peer.gone());
    }

    #[test]
    fn a_queue_gives_up_what_waits_for_a_front_end_that_has_gone_and_not_for_a_drain() {
        for has_gone in [true, false] {
            let (mut peer, _theirs) = connection();
            let control = QueueControl::new(peer.client.bell.clone().unwrap()).unwrap();
            peer.client.queues[0] = Some(control.clone());
            if has_gone {
                peer.ended = true;
                peer.run();
            } else {
                peer.drain();
            }
            assert_eq!(matches!(control.take(), Some(Order::GiveUp)), has_gone);
        }
    }

    fn said(message: Message, numbers: &[u64]) -> Vec<u8> {
        let payload: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        super::super::wire::message(message as u32, 0, &payload)
    }

    /// The bell of a connection was rung.
    fn rung(peer: &mut Peer<Connection>) {
        peer.fake.waits.retain(|wait| *wait != user::BELL);
        peer.client.event(&mut peer.fake, Event::Counted { user: user::BELL, result: Ok(1) });
        peer.client.turn_end(&mut peer.fake);
        peer.run();
    }

    const S_NS: u64 = 1_000_000_000;

    fn broken(peer: &Peer<Connection>, rule: Rule) -> u64 {
        peer.client.place.stats().counts().broken_rules[rule as usize].1
    }

    #[test]
    fn a_front_end_that_looks_at_its_disk_is_answered_while_another_has_it_and_then_waits_its_whole_time() {
        let access = Arc::default();
        let ((mut first, _one), (mut second, _two)) = (connection_at(&access), connection_at(&access));
        // Silence is not a fault: a hypervisor is busy with another disk.
        for peer in [&mut first, &mut second] {
            peer.pass_ns(3600 * S_NS);
            assert!(!peer.gone());
        }
        first.say(&said(Message::SetFeatures, &[0]));
        assert!(first.client.exclusive.is_some());
        for message in [Message::GetFeatures, Message::GetProtocolFeatures, Message::GetQueueNum] {
            assert_eq!(second.ask(&said(message, &[])).len(), HEADER_BYTES + 8, "{message:?}");
        }
        second.pass_ns(3600 * S_NS);
        second.say(&said(Message::SetFeatures, &[0]));
        second.pass_ns(10 * S_NS - 1);
        assert!(second.client.exclusive.is_none() && !second.gone(), "its time began with the message");
        second.pass_ns(1);
        assert!(second.gone());
        assert_eq!(broken(&second, Rule::HandshakeTooSlow), 1);
        assert!(!first.gone());
    }

    #[test]
    fn a_front_end_whose_place_is_being_left_waits_until_it_is_free() {
        let access = Arc::default();
        let ((mut first, _one), (mut second, _two)) = (connection_at(&access), connection_at(&access));
        first.say(&said(Message::SetFeatures, &[0]));
        // A request of its queue is on the device.
        let control = QueueControl::new(first.client.bell.clone().unwrap()).unwrap();
        first.client.queues[0] = Some(control.clone());
        second.say(&said(Message::SetFeatures, &[0]));
        first.end();
        assert!(!first.gone());
        for _ in 0..100 {
            second.pass_ns(10 * S_NS);
            assert!(!second.gone());
        }
        control.gone();
        rung(&mut first);
        assert!(first.gone());
        drop(first);
        rung(&mut second);
        assert!(second.client.exclusive.is_some());
        second.pass_ns(3600 * S_NS);
        assert!(!second.gone());
    }

    #[test]
    fn half_a_message_is_waited_for_from_its_first_byte_on() {
        let (mut peer, _theirs) = connection();
        let whole = said(Message::SetFeatures, &[0]);
        for _ in 0..3 {
            peer.pass_ns(3600 * S_NS);
            peer.say(&whole[..1]);
            peer.pass_ns(6 * S_NS);
            peer.say(&whole[1..]);
        }
        assert!(!peer.gone());
        // A message that dribbles in is timed from its first byte, too.
        for byte in &whole[..5] {
            peer.say(&[*byte]);
            peer.pass_ns(2 * S_NS);
        }
        assert!(peer.gone());
        assert_eq!(broken(&peer, Rule::HandshakeTooSlow), 1);
    }

    #[test]
    fn a_message_that_comes_byte_by_byte_brings_no_more_descriptors_than_one_that_comes_at_once() {
        let (mut peer, theirs) = connection();
        for byte in 0..TABLE_REGIONS_MAX as u8 {
            peer.incoming_descriptors.push(theirs.try_clone().unwrap().into());
            peer.say(&[if byte == 0 { 5 } else { 0 }]);
            assert!(!peer.gone());
        }
        peer.incoming_descriptors.push(theirs.try_clone().unwrap().into());
        peer.say(&[0]);
        assert!(peer.gone());
    }
}
