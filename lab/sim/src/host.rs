//! A virtual core as what a worker runs on ([`Host`]): its clock, its bell, its timers. It has no sockets.

use crate::coherence::{Ps, ps};
use crate::cores::core;
use crate::scenario::{Latencies, Unthrottle};
use mqfq_blk_watched::buffer::Buffer;
use mqfq_blk_watched::client::{Event, MakeClient, Part};
use mqfq_blk_watched::host::{Ended, Host, HostEvent, Mail};
use mqfq_blk_watched::queues::{BlockLayer, Interrupt};
use mqfq_sched_watched::policy::Policy;
use mqfq_sched_watched::sync::{AtomicU64, Ordering};
use mqfq_sched_watched::topology::HctxId;
use mqfq_sched_watched::wake::WakeWord;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;

/// One core's wake word, alone on its lines as the real one is.
#[derive(Default)]
#[repr(align(128))]
pub struct Bell(WakeWord);

/// What the layers above and below the policy cost, picoseconds.
#[derive(Clone, Copy)]
struct Costs {
    doorbell: Ps,
    turn: Ps,
    timer: Ps,
    /// How long the worker spins before it sleeps.
    patience: Ps,
    /// Without a block layer nobody else spends the time of a request.
    raw: Option<(Ps, Ps)>,
}

/// A word of the layers above that all cores write, alone on its lines.
#[derive(Default)]
#[repr(align(128))]
pub struct SharedWord(AtomicU64);

/// What cores share besides the block layer.
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
        // Relaxed: it is only counted, by nobody; that the line moves is all.
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
    /// Of a shared hardware queue: tells it that the drive has interrupted this core.
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
            news: None,
        }
    }

    /// The same for a worker whose hardware queue is shared: `news` is what the drive's interrupt calls.
    #[must_use]
    pub fn with_news(self, news: Interrupt) -> VirtualHost {
        VirtualHost { news: Some(news), ..self }
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
            // The queue knows now, and somebody else may already have looked.
            core::interrupt_taken();
        }
        let now_ns = core::now_ns();
        while self.next_timer().is_some_and(|at_ns| at_ns <= now_ns) {
            let Some(Reverse((_, _, client, user))) = self.timers.pop() else { return };
            ended.push((u64::from(client) << 32 | u64::from(user), 0));
        }
    }

    fn resolve(&mut self, (name, _): Ended) -> Option<HostEvent> {
        Some(HostEvent::Client { client: (name >> 32) as u32, event: Event::Timer { user: name as u32 } })
    }

    fn has_ended(&mut self) -> bool {
        core::is_interrupted() || self.next_timer().is_some_and(|at_ns| at_ns <= core::now_ns())
    }

    fn enter(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn enter_and_wait(&mut self, wait_ns: Option<u64>, is_held_back: bool) -> io::Result<()> {
        let now = core::now_ns() * 1000;
        let poll = self.poll.filter(|_| is_held_back);
        if poll.is_some() {
            core::compute(self.costs.timer);
        }
        let wait = wait_ns.map(|wait_ns| now + wait_ns * 1000);
        let timer = self.next_timer().map(|at_ns| at_ns * 1000);
        core::sleep([wait, timer, poll.map(|period| now + period)].into_iter().flatten().min());
        self.reschedules += u64::from(is_held_back);
        Ok(())
    }

    fn spin_hint(&mut self) {
        // One long look in place of many short ones: whatever ends it would have ended one of those.
        let now = core::now_ns() * 1000;
        let timer = self.next_timer().map_or(Ps::MAX, |at_ns| at_ns * 1000);
        core::spin((now + self.costs.patience).min(timer));
    }

    fn receive(&mut self, _: u32, _: RawFd, _: Buffer, _: usize, _: usize, _: u32) {
        unreachable!("a virtual core has no sockets")
    }

    fn send(&mut self, _: u32, _: RawFd, _: Vec<Part>, _: u32) {
        unreachable!("a virtual core has no sockets")
    }

    fn accept(&mut self, _: u32, _: RawFd, _: u32) {
        unreachable!("a virtual core has no sockets")
    }

    fn shutdown(&mut self, _: RawFd) {
        unreachable!("a virtual core has no sockets")
    }

    fn abort(&mut self, _: Option<u32>) {}

    fn attach(&mut self, _: MakeClient) {
        unreachable!("clients are adopted before the run")
    }

    fn timer(&mut self, client: u32, at_ns: u64, user: u32) {
        self.asked += 1;
        self.timers.push(Reverse((at_ns, self.asked, client, user)));
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

    // What a request costs is spent around the policy's operations (`crate::timed`), one request after the other.
    fn dispatched(&mut self, count: usize) {
        if count > 0 {
            core::compute(self.costs.doorbell);
        }
    }

    fn turned(&mut self) {
        core::compute(self.costs.turn);
    }
}
