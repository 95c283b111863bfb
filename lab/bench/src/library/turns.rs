//! One thread's turns on four ways to share: what is measured.
//!
//! A turn ends 64 requests, pushes one for each and starts what may start; D is 64, and each tenant keeps several
//! waiting. The loop around it is alike for all.

use mqfq_sched::cost::Cost;
use mqfq_sched::door::{Next, Permit, Scheduler, Tenant, Worker};
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{Done, Entry, Grant, Handle, Mqfq, MqfqQueue, Pick, Policy, PolicyKind, PolicyOptions};
use mqfq_sched::topology::{HctxId, Topology};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Mutex;

/// Requests per turn, and D.
pub const TURN: usize = 64;

/// Cost of each request.
const COST: u64 = 4096;

/// A way to share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Calls of the relaxed form.
    Raw,
    /// The front door, a lock per call.
    Door,
    /// The front door, a lock per turn.
    DoorTurn,
    /// A heap by finish tag, under a mutex that each call takes.
    Heap,
    /// Deficit round robin, under a mutex that each call takes.
    RoundRobin,
}

impl Way {
    /// All, in the order of the table.
    pub const ALL: [Way; 5] = [Way::Raw, Way::DoorTurn, Way::Door, Way::Heap, Way::RoundRobin];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Raw => "relaxed",
            Way::Door => "door, a lock per call",
            Way::DoorTurn => "door, a lock per turn",
            Way::Heap => "heap under a mutex",
            Way::RoundRobin => "DRR under a mutex",
        }
    }
}

/// A way of sharing, with the questions that are timed.
trait Share {
    /// A request of a tenant waits.
    fn push(&mut self, tenant: usize);
    /// Starts the next one, if one may start; its tenant.
    fn start(&mut self) -> Option<usize>;
    /// Ends the one that started first.
    fn end(&mut self);
}

/// A way under way: between turns [`TURN`] requests have started.
pub struct Turns {
    way: Box<dyn FnMut(u32)>,
}

impl Turns {
    /// Everything waiting and started.
    pub fn new(way: Way, tenants: usize) -> Turns {
        let way: Box<dyn FnMut(u32)> = match way {
            Way::Raw => turning(Raw::new(tenants), tenants),
            Way::Door => turning(Door::new(tenants), tenants),
            Way::DoorTurn => Door::new(tenants).in_turns(),
            Way::Heap => turning(Locked(Mutex::new(Heap::new(tenants))), tenants),
            Way::RoundRobin => turning(Locked(Mutex::new(RoundRobin::new(tenants))), tenants),
        };
        Turns { way }
    }

    /// Runs so many turns.
    pub fn run(&mut self, turns: u32) {
        (self.way)(turns);
    }
}

fn turning<S: Share + 'static>(mut share: S, tenants: usize) -> Box<dyn FnMut(u32)> {
    let per_tenant = (2 * TURN).div_ceil(tenants).max(4);
    (0..per_tenant * tenants + TURN).for_each(|n| share.push(n % tenants));
    let mut started: VecDeque<usize> = std::iter::from_fn(|| share.start()).collect();
    Box::new(move |turns| {
        for _ in 0..turns {
            for _ in 0..TURN {
                share.end();
            }
            for _ in 0..TURN {
                share.push(started.pop_front().expect("D have started"));
            }
            while let Some(tenant) = share.start() {
                started.push_back(tenant);
            }
        }
    })
}

fn requests(tenants: usize) -> usize {
    (2 * TURN).div_ceil(tenants).max(4) * tenants + 2 * TURN
}

struct Raw {
    mqfq: Mqfq,
    queue: MqfqQueue,
    free: Vec<Handle>,
    out: VecDeque<Grant>,
}

impl Raw {
    fn new(tenants: usize) -> Raw {
        let options = PolicyOptions { depth: TURN as u32, ..PolicyOptions::new(PolicyKind::Mqfq) }.relaxed(1);
        let mqfq = Mqfq::new(&options, &Topology::flat(1), &vec![Weight::DEFAULT; tenants]);
        let queue = mqfq.open_queue(HctxId(0), requests(tenants));
        Raw { mqfq, queue, free: (0..requests(tenants) as u32).map(Handle).collect(), out: VecDeque::new() }
    }
}

impl Drop for Raw {
    /// Requests that have started end with the measurement.
    fn drop(&mut self) {
        for grant in self.out.drain(..) {
            _ = grant.token.into_units();
        }
    }
}

impl Share for Raw {
    #[inline]
    fn push(&mut self, tenant: usize) {
        let handle = self.free.pop().expect("a handle is free");
        self.mqfq.submit(&mut self.queue, Entry::read(FlowId(tenant as u32), Cost(COST), handle), 0, &mut |_| ());
    }

    #[inline]
    fn start(&mut self) -> Option<usize> {
        let Pick::Dispatch(grant) = self.mqfq.pick(&mut self.queue, 0, &mut |_| ()) else { return None };
        let tenant = grant.flow.0 as usize;
        self.out.push_back(grant);
        Some(tenant)
    }

    #[inline]
    fn end(&mut self) {
        let Grant { handle, flow, token } = self.out.pop_front().expect("D have started");
        self.free.push(handle);
        self.mqfq.complete(&mut self.queue, Done::read(flow, handle), token, 0, &mut |_| ());
    }
}

struct Door {
    tenants: Vec<Tenant>,
    worker: Worker<usize>,
    out: VecDeque<Permit>,
}

impl Door {
    fn new(tenants: usize) -> Door {
        let builder = Scheduler::builder().permits(TURN as u32).jobs(requests(tenants)).tenants(tenants);
        let scheduler = builder.build().expect("the numbers are in range");
        Door {
            tenants: (0..tenants).map(|_| scheduler.add_tenant(1).expect("there is room")).collect(),
            worker: scheduler.worker(0).expect("the place is free"),
            out: VecDeque::new(),
        }
    }
}

impl Door {
    fn in_turns(mut self) -> Box<dyn FnMut(u32)> {
        let tenants = self.tenants.len();
        let per_tenant = (2 * TURN).div_ceil(tenants).max(4);
        (0..per_tenant * tenants + TURN).for_each(|n| self.push(n % tenants));
        let mut started: VecDeque<usize> = std::iter::from_fn(|| self.start()).collect();
        Box::new(move |turns| {
            for _ in 0..turns {
                let mut turn = self.worker.turn(0);
                for _ in 0..TURN {
                    turn.finish(self.out.pop_front().expect("D have started"), COST);
                }
                for _ in 0..TURN {
                    let tenant = started.pop_front().expect("D have started");
                    turn.try_push(&self.tenants[tenant], COST, tenant).expect("there is room");
                }
                while let Next::Job(permit, tenant) = turn.next() {
                    self.out.push_back(permit);
                    started.push_back(tenant);
                }
            }
        })
    }
}

impl Share for Door {
    #[inline]
    fn push(&mut self, tenant: usize) {
        self.worker.try_push(&self.tenants[tenant], COST, tenant).expect("there is room");
    }

    #[inline]
    fn start(&mut self) -> Option<usize> {
        let Next::Job(permit, tenant) = self.worker.next(0) else { return None };
        self.out.push_back(permit);
        Some(tenant)
    }

    #[inline]
    fn end(&mut self) {
        let permit = self.out.pop_front().expect("D have started");
        self.worker.finish(permit, COST);
    }
}

/// State under the mutex.
trait Queue {
    fn push(&mut self, tenant: usize);
    fn start(&mut self) -> Option<usize>;
    fn end(&mut self);
}

struct Locked<Q>(Mutex<Q>);

impl<Q: Queue> Share for Locked<Q> {
    #[inline]
    fn push(&mut self, tenant: usize) {
        self.0.lock().expect("no thread panicked").push(tenant);
    }

    #[inline]
    fn start(&mut self) -> Option<usize> {
        self.0.lock().expect("no thread panicked").start()
    }

    #[inline]
    fn end(&mut self) {
        self.0.lock().expect("no thread panicked").end();
    }
}

/// Start-time fair queueing: a heap of requests by start tag.
struct Heap {
    waiting: BinaryHeap<Reverse<(u64, u64, usize)>>,
    finish: Vec<u64>,
    now: u64,
    came: u64,
    out: usize,
}

impl Heap {
    fn new(tenants: usize) -> Heap {
        let waiting = BinaryHeap::with_capacity(requests(tenants));
        Heap { waiting, finish: vec![0; tenants], now: 0, came: 0, out: 0 }
    }
}

impl Queue for Heap {
    fn push(&mut self, tenant: usize) {
        let start = self.finish[tenant].max(self.now);
        self.finish[tenant] = start + COST;
        self.came += 1;
        self.waiting.push(Reverse((start, self.came, tenant)));
    }

    fn start(&mut self) -> Option<usize> {
        if self.out == TURN {
            return None;
        }
        let Reverse((start, _, tenant)) = self.waiting.pop()?;
        self.now = start;
        self.out += 1;
        Some(tenant)
    }

    fn end(&mut self) {
        self.out -= 1;
    }
}

/// Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995), a quantum of four requests.
struct RoundRobin {
    waiting: Vec<VecDeque<u64>>,
    deficit: Vec<u64>,
    active: VecDeque<usize>,
    out: usize,
}

impl RoundRobin {
    fn new(tenants: usize) -> RoundRobin {
        let waiting = (0..tenants).map(|_| VecDeque::with_capacity(requests(tenants))).collect();
        RoundRobin { waiting, deficit: vec![0; tenants], active: VecDeque::with_capacity(tenants), out: 0 }
    }
}

impl Queue for RoundRobin {
    fn push(&mut self, tenant: usize) {
        if self.waiting[tenant].is_empty() {
            self.active.push_back(tenant);
            self.deficit[tenant] = 4 * COST;
        }
        self.waiting[tenant].push_back(COST);
    }

    fn start(&mut self) -> Option<usize> {
        if self.out == TURN {
            return None;
        }
        loop {
            let tenant = *self.active.front()?;
            let cost = *self.waiting[tenant].front().expect("an active tenant waits");
            if self.deficit[tenant] < cost {
                self.deficit[tenant] += 4 * COST;
                self.active.rotate_left(1);
                continue;
            }
            self.deficit[tenant] -= cost;
            self.waiting[tenant].pop_front();
            if self.waiting[tenant].is_empty() {
                self.active.pop_front();
            }
            self.out += 1;
            return Some(tenant);
        }
    }

    fn end(&mut self) {
        self.out -= 1;
    }
}
