//! A virtual core as what a worker runs on ([`Host`]): its clock, its bell, its timers, and the sockets of tenants
//! whose requests come through one.
//!
//! An operation on a socket begins when the ring is entered, as with io_uring: the part that can be done then is done
//! there, on the worker's time, and has ended when the next turn looks; the rest waits for the other end, and is done
//! at the first entry after that.

use crate::coherence::{Ps, ps};
use crate::cores::core;
use crate::scenario::{Latencies, Stolen, Unthrottle};
use crate::socket::Socket;
use mqfq_blk_watched::ask::Ask;
use mqfq_blk_watched::buffer::Buffer;
use mqfq_blk_watched::client::{Descriptors, Event, Part};
use mqfq_blk_watched::random::Random;
use mqfq_blk_watched::worker::host::{Ended, Host, HostEvent, Mail};
use mqfq_blkmq_watched::{BlockLayer, Interrupt};
use mqfq_sched_watched::policy::Policy;
use mqfq_sched_watched::sync::{AtomicU64, Ordering};
use mqfq_sched_watched::topology::HctxId;
use mqfq_sched_watched::wake::WakeWord;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// One core's wake word, alone on its lines as the real one is.
#[derive(Default)]
#[repr(align(128))]
pub struct Bell(WakeWord);

/// Costs of the layers above and below the policy, picoseconds.
#[derive(Clone, Copy)]
struct Costs {
    doorbell: Ps,
    turn: Ps,
    timer: Ps,
    /// How long the worker spins before it sleeps.
    patience: Ps,
    /// Times of a request without a block layer, which no other code spends then.
    raw: Option<(Ps, Ps)>,
    receive: Transfer,
    send: Transfer,
}

/// Cost of a system call that moves bytes.
#[derive(Clone, Copy)]
struct Transfer {
    call: Ps,
    /// ns for a byte.
    byte_ns: f64,
}

impl Transfer {
    fn of(self, bytes: u64) -> Ps {
        self.call + ps(self.byte_ns * bytes as f64)
    }
}

/// A socket of this worker, and what was asked of it.
struct Line {
    socket: Rc<RefCell<Socket>>,
    /// A receive: whose, its buffer, how many bytes at most, and its name.
    receive: Option<(u32, Buffer, u64, u32)>,
    /// A send: whose, its parts and its name.
    send: Option<(u32, Vec<Part>, u32)>,
    /// Bytes that a receive brought, and a send that has ended; both before the worker has looked.
    received: Option<u64>,
    has_sent: bool,
}

/// The name of a socket's operation that has ended: these bits, and the number of the socket.
const RECEIVED: u64 = 1 << 63;
const SENT: u64 = 1 << 62;

/// The other programs on a core.
struct Thief {
    stolen: Stolen,
    random: Random,
    /// When they take the core next; 0: at a time that is not drawn yet.
    next_ns: u64,
}

impl Thief {
    /// For how long the worker stands now, if it does.
    fn stop_ns(&mut self, now_ns: u64) -> Option<u64> {
        let mut draw = |(least, most): (u64, u64)| least + self.random.below(most - least + 1);
        let Stolen { runs_ns, stops_ns } = self.stolen;
        let stop_ns = (self.next_ns > 0 && now_ns >= self.next_ns).then(|| draw(stops_ns));
        if stop_ns.is_some() || self.next_ns == 0 {
            self.next_ns = now_ns + stop_ns.unwrap_or(0) + draw(runs_ns);
        }
        stop_ns
    }
}

/// A word of the layers above that all cores write, alone on its lines.
#[derive(Default)]
#[repr(align(128))]
pub struct SharedWord(AtomicU64);

/// State that cores share besides the block layer.
#[derive(Clone)]
pub struct Common {
    /// By worker.
    pub bells: Arc<[Bell]>,
    /// Written at each submission and each completion.
    pub words: Rc<[SharedWord]>,
}

impl Common {
    /// For so many workers.
    pub fn new(workers: usize, latency: &Latencies) -> Common {
        Common {
            bells: (0..workers).map(|_| Bell::default()).collect(),
            words: (0..latency.shared_words).map(|_| SharedWord::default()).collect(),
        }
    }

    /// Kicks the worker of this number from the current core.
    pub fn kick(bells: &[Bell], worker: usize) {
        if bells[worker].0.kick() { core::ring(worker) } else { core::nudge(worker) }
    }

    fn touch(&self) {
        // Relaxed: the count is never read; only the line must move.
        self.words.iter().for_each(|word| {
            word.0.fetch_add(1, Ordering::Relaxed);
        });
    }
}

/// The virtual core of one worker, as its [`Host`].
pub struct VirtualHost {
    common: Common,
    own: usize,
    costs: Costs,
    poll: Option<Ps>,
    /// When, in which order asked for, whose, which.
    timers: BinaryHeap<Reverse<(u64, u64, u32, u32)>>,
    asked: u64,
    is_told: bool,
    reschedules: u64,
    spun_ns: u64,
    lines: Vec<Line>,
    thief: Option<Thief>,
    /// Tells a shared hardware queue that the drive has interrupted this core.
    news: Option<Interrupt>,
}

impl VirtualHost {
    /// The host of core `own`.
    pub fn new(
        own: usize,
        common: Common,
        latency: &Latencies,
        unthrottle: Unthrottle,
        layer: BlockLayer,
    ) -> VirtualHost {
        let poll = match unthrottle {
            Unthrottle::Wheel => None,
            Unthrottle::Poll { period_ns } => Some(period_ns * 1000),
        };
        let costs = Costs {
            doorbell: ps(latency.doorbell_ns),
            turn: ps(latency.turn_ns),
            timer: ps(latency.timer_ns),
            patience: ps(latency.patience_ns),
            raw: (layer == BlockLayer::Raw).then(|| (ps(latency.submit_ns), ps(latency.complete_ns))),
            receive: Transfer { call: ps(latency.receive_ns), byte_ns: latency.receive_byte_ns },
            send: Transfer { call: ps(latency.send_ns), byte_ns: latency.send_byte_ns },
        };
        VirtualHost {
            common,
            own,
            costs,
            poll,
            timers: BinaryHeap::new(),
            asked: 0,
            is_told: false,
            reschedules: 0,
            spun_ns: 0,
            lines: Vec::new(),
            thief: None,
            news: None,
        }
    }

    /// Returns this host with sockets, numbered in order.
    #[must_use]
    pub fn with_sockets(self, sockets: Vec<Rc<RefCell<Socket>>>) -> VirtualHost {
        let line = |socket| Line { socket, receive: None, send: None, received: None, has_sent: false };
        VirtualHost { lines: sockets.into_iter().map(line).collect(), ..self }
    }

    /// Does what can be done of what was asked of sockets. True: something has ended.
    fn transfer(&mut self) -> bool {
        let Costs { receive, send, .. } = self.costs;
        let mut has_ended = false;
        for line in &mut self.lines {
            if line.send.is_some() && !line.has_sent {
                let (bytes, is_done) = line.socket.borrow_mut().send(core::now_ns());
                if bytes > 0 {
                    core::compute(send.of(bytes));
                }
                line.has_sent = is_done;
            }
            if let Some((_, _, most, _)) = line.receive.as_ref().filter(|_| line.received.is_none()) {
                let bytes = line.socket.borrow_mut().receive(core::now_ns(), *most);
                if bytes > 0 {
                    core::compute(receive.of(bytes));
                    line.received = Some(bytes);
                }
            }
            has_ended |= line.has_sent || line.received.is_some();
        }
        has_ended
    }

    /// When a socket must be looked at, ns.
    fn next_socket_ns(&self) -> Option<u64> {
        let of_line = |line: &Line| {
            let socket = line.socket.borrow();
            let receives_ns = line.receive.as_ref().and_then(|_| socket.readable_ns());
            let sends_ns = line.send.as_ref().and_then(|_| socket.read_ns());
            [receives_ns, sends_ns].into_iter().flatten().min()
        };
        self.lines.iter().filter_map(of_line).min()
    }

    /// Returns this host for a worker whose hardware queue is shared: `news` is called by the drive's interrupt.
    #[must_use]
    pub fn with_news(self, news: Interrupt) -> VirtualHost {
        VirtualHost { news: Some(news), ..self }
    }

    /// Host of a core that other programs take away, at times that `seed` determines.
    #[must_use]
    pub fn with_stolen(self, stolen: Option<Stolen>, seed: u64) -> VirtualHost {
        let thief = |stolen| Thief { stolen, random: Random::new(seed), next_ns: 0 };
        VirtualHost { thief: stolen.map(thief), ..self }
    }

    /// Time spent spinning, ns.
    pub fn spun_ns(&self) -> u64 {
        self.spun_ns
    }

    /// Times that it went on after it had been held back.
    pub fn reschedules(&self) -> u64 {
        self.reschedules
    }

    fn next_timer(&self) -> Option<u64> {
        self.timers.peek().map(|Reverse((at_ns, ..))| *at_ns)
    }
}

impl<P: Policy> Host<P> for VirtualHost {
    fn now_ns(&mut self) -> u64 {
        core::now_ns()
    }

    fn kick(&mut self, hctx: HctxId) {
        Common::kick(&self.common.bells, hctx.index());
    }

    fn may_sleep(&mut self) -> bool {
        self.common.bells[self.own].0.may_sleep()
    }

    fn woke(&mut self) {
        self.common.bells[self.own].0.woke();
    }

    fn is_kicked(&mut self) -> bool {
        self.common.bells[self.own].0.is_kicked()
    }

    fn take_mail(&mut self) -> Option<Mail<P>> {
        let stops = core::is_stopping() && !self.is_told;
        self.is_told |= stops;
        stops.then_some(Mail::Stop)
    }

    fn collect(&mut self, ended: &mut Vec<Ended>) {
        if let Some(news) = self.news.as_ref().filter(|_| core::is_interrupted()) {
            news(HctxId(self.own as u16));
            // The queue knows now, and another worker may already have looked.
            core::interrupt_taken();
        }
        let now_ns = core::now_ns();
        while self.next_timer().is_some_and(|at_ns| at_ns <= now_ns) {
            let Some(Reverse((_, _, client, user))) = self.timers.pop() else { return };
            ended.push((u64::from(client) << 32 | u64::from(user), 0));
        }
        for (number, line) in self.lines.iter().enumerate() {
            // In the order in which a connection's send and receive are made.
            ended.extend(line.has_sent.then_some((SENT | number as u64, 0)));
            ended.extend(line.received.map(|bytes| (RECEIVED | number as u64, bytes as i32)));
        }
    }

    fn resolve(&mut self, (name, result): Ended) -> Option<HostEvent> {
        let line = |number: u64| number as u32 as usize;
        if name & RECEIVED != 0 {
            let line = &mut self.lines[line(name)];
            line.received = None;
            let (client, buffer, _, user) = line.receive.take()?;
            let (result, descriptors) = (Ok(result as usize), Descriptors::NONE);
            return Some(HostEvent::Client { client, event: Event::Received { user, buffer, result, descriptors } });
        }
        if name & SENT != 0 {
            let line = &mut self.lines[line(name)];
            line.has_sent = false;
            let (client, parts, user) = line.send.take()?;
            return Some(HostEvent::Client { client, event: Event::Sent { user, parts, result: Ok(()) } });
        }
        Some(HostEvent::Client { client: (name >> 32) as u32, event: Event::Timer { user: name as u32 } })
    }

    fn has_ended(&mut self) -> bool {
        let next_ns = [self.next_timer(), self.next_socket_ns()].into_iter().flatten().min();
        core::is_interrupted() || next_ns.is_some_and(|at_ns| at_ns <= core::now_ns())
    }

    fn enter(&mut self) -> io::Result<()> {
        self.transfer();
        Ok(())
    }

    fn enter_and_wait(&mut self, wait_ns: Option<u64>, is_held_back: bool) -> io::Result<()> {
        if self.transfer() {
            return Ok(());
        }
        let now = core::now_ns() * 1000;
        let poll = self.poll.filter(|_| is_held_back);
        if poll.is_some() {
            core::compute(self.costs.timer);
        }
        let wait = wait_ns.map(|wait_ns| now + wait_ns * 1000);
        let timer = self.next_timer().map(|at_ns| at_ns * 1000);
        let socket = self.next_socket_ns().map(|at_ns| at_ns * 1000);
        core::sleep([wait, timer, socket, poll.map(|period| now + period)].into_iter().flatten().min());
        self.transfer();
        self.reschedules += u64::from(is_held_back);
        Ok(())
    }

    fn spin_hint(&mut self) {
        // One long look in place of many short ones: whatever ends it would have ended one of those.
        let now = core::now_ns() * 1000;
        let timer = self.next_timer().map_or(Ps::MAX, |at_ns| at_ns * 1000);
        let socket = self.next_socket_ns().map_or(Ps::MAX, |at_ns| at_ns * 1000);
        core::spin((now + self.costs.patience).min(timer).min(socket));
    }

    fn spun(&mut self, ns: u64) {
        self.spun_ns += ns;
    }

    fn ask(&mut self, client: u32, ask: Ask) {
        match ask {
            Ask::Receive { socket, buffer, start, end, with_descriptors: false, user } => {
                self.lines[socket as usize].receive = Some((client, buffer, (end - start) as u64, user));
            }
            Ask::Send { socket, parts, user, .. } => self.lines[socket as usize].send = Some((client, parts, user)),
            Ask::Timer { at_ns, user } => {
                self.asked += 1;
                self.timers.push(Reverse((at_ns, self.asked, client, user)));
            }
            _ => unreachable!("the tenants of a run are adopted before it, stay to its end, and have no descriptors"),
        }
    }

    fn cancel_waits(&mut self, client: u32) {
        self.timers.retain(|Reverse((_, _, whose, _))| *whose != client);
    }

    fn submitted(&mut self) {
        self.common.touch();
        if let Some((submit, _)) = self.costs.raw {
            core::compute(submit);
        }
    }

    fn completed(&mut self, count: usize) {
        for _ in 0..count {
            if let Some((_, complete)) = self.costs.raw {
                core::compute(complete);
            }
            self.common.touch();
        }
    }

    // The cost of a request is spent around the policy's operations (`crate::timed`), one request after the other.
    fn dispatched(&mut self, count: usize) {
        if count > 0 {
            core::compute(self.costs.doorbell);
        }
    }

    fn turned(&mut self) {
        core::compute(self.costs.turn);
        if let Some(stop_ns) = self.thief.as_mut().and_then(|thief| thief.stop_ns(core::now_ns())) {
            core::compute(stop_ns * 1000);
        }
    }
}
