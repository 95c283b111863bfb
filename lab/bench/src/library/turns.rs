//! Turns of threads on four ways to share: the measured loop.
//!
//! A turn ends 64 requests, or all that have started if those are fewer, pushes one for each and starts all that may
//! start. D is 64 for each thread, and each tenant keeps several waiting on each. The loop is alike for all ways. A
//! thread that may start nothing looks again at once: none sleeps.

use mqfq_sched::cost::Cost;
use mqfq_sched::door::{Next, Permit, Scheduler, Tenant, Worker};
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{Done, Entry, Grant, Handle, Mqfq, MqfqQueue, Pick, Policy, PolicyKind, PolicyOptions};
use mqfq_sched::topology::{HctxId, Topology};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

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

/// One thread's turns: as many until it has ended so many requests, or another one has. Returns the requests ended.
type Turning = Box<dyn FnMut(u64, &AtomicBool) -> u64 + Send>;

/// A way under way: between turns requests of each thread have started.
pub struct Turns {
    threads: Vec<Turning>,
}

impl Turns {
    /// Everything waiting and started.
    pub fn new(way: Way, tenants: usize, threads: usize) -> Turns {
        let threads = match way {
            Way::Raw => Raw::all(tenants, threads).map(|raw| turning(raw, tenants)).collect(),
            Way::Door => Door::all(tenants, threads).map(|door| turning(door, tenants)).collect(),
            Way::DoorTurn => Door::all(tenants, threads).map(Door::in_turns).collect(),
            Way::Heap => Locked::all(Heap::new(tenants, threads), threads).map(|it| turning(it, tenants)).collect(),
            Way::RoundRobin => {
                Locked::all(RoundRobin::new(tenants, threads), threads).map(|it| turning(it, tenants)).collect()
            }
        };
        Turns { threads }
    }

    /// Runs until one thread has ended so many requests: time of a thread per request, ns.
    pub fn run(&mut self, requests: u64) -> f64 {
        let (over, begin) = (&AtomicBool::new(false), &Barrier::new(self.threads.len()));
        let Some((first, others)) = self.threads.split_first_mut() else { return 0.0 };
        // Each thread's own times: one that loses its core behind the barrier may begin when the other has ended.
        let run = |turning: &'_ mut Turning| {
            begin.wait();
            let start = Instant::now();
            let ended = turning(requests, over);
            (start, Instant::now(), ended)
        };
        let (start, end, ended) = std::thread::scope(|scope| {
            let others: Vec<_> = others.iter_mut().map(|other| scope.spawn(move || run(other))).collect();
            let first = run(first);
            others
                .into_iter()
                .map(|other| other.join().expect("it ends"))
                .fold(first, |all, one| (all.0.min(one.0), all.1.max(one.1), all.2 + one.2))
        });
        let elapsed = end - start;
        elapsed.as_secs_f64() * 1e9 * self.threads.len() as f64 / ended as f64
    }
}

/// Requests of a thread that wait at first.
fn waiting(tenants: usize) -> usize {
    (2 * TURN).div_ceil(tenants).max(4) * tenants
}

fn turning<S: Share + Send + 'static>(mut share: S, tenants: usize) -> Turning {
    (0..waiting(tenants) + TURN).for_each(|n| share.push(n % tenants));
    let mut started: VecDeque<usize> = std::iter::from_fn(|| share.start()).collect();
    Box::new(move |requests, over| {
        let mut ended = 0;
        // Relaxed: one thread more or less of a turn.
        while ended < requests && !over.load(Relaxed) {
            let turn = started.len().min(TURN);
            for _ in 0..turn {
                share.end();
            }
            for _ in 0..turn {
                share.push(started.pop_front().expect("so many have started"));
            }
            while let Some(tenant) = share.start() {
                started.push_back(tenant);
            }
            ended += turn as u64;
        }
        // Relaxed: as above.
        over.store(true, Relaxed);
        ended
    })
}

/// Requests that one thread may have waiting or started: all of the others' too, where one structure is for all.
fn requests(tenants: usize, threads: usize) -> usize {
    waiting(tenants) + TURN + threads * TURN
}

struct Raw {
    mqfq: Arc<Mqfq>,
    queue: MqfqQueue,
    free: Vec<Handle>,
    out: VecDeque<Grant>,
}

impl Raw {
    fn all(tenants: usize, threads: usize) -> impl Iterator<Item = Raw> {
        let depth = (threads * TURN) as u32;
        let options = PolicyOptions { depth, ..PolicyOptions::new(PolicyKind::Mqfq) }.relaxed(threads);
        let mqfq = Arc::new(Mqfq::new(&options, &Topology::flat(threads), &vec![Weight::DEFAULT; tenants]));
        let requests = requests(tenants, threads);
        (0..threads as u16).map(move |at| Raw {
            queue: mqfq.open_queue(HctxId(at), requests),
            mqfq: mqfq.clone(),
            free: (0..requests as u32).map(Handle).collect(),
            out: VecDeque::new(),
        })
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
    fn all(tenants: usize, threads: usize) -> impl Iterator<Item = Door> {
        let builder = Scheduler::builder().places(threads).permits((threads * TURN) as u32).tenants(tenants);
        let scheduler = builder.jobs(requests(tenants, threads)).build().expect("the numbers are in range");
        let of_all: Vec<Tenant> = (0..tenants).map(|_| scheduler.add_tenant(1).expect("there is room")).collect();
        (0..threads).map(move |at| Door {
            tenants: of_all.clone(),
            worker: scheduler.worker(at).expect("the place is free"),
            out: VecDeque::new(),
        })
    }

    fn in_turns(mut self) -> Turning {
        let tenants = self.tenants.len();
        (0..waiting(tenants) + TURN).for_each(|n| self.push(n % tenants));
        let mut started: VecDeque<usize> = std::iter::from_fn(|| self.start()).collect();
        Box::new(move |requests, over| {
            let mut ended = 0;
            // Relaxed: as in `turning`.
            while ended < requests && !over.load(Relaxed) {
                let count = started.len().min(TURN);
                let mut turn = self.worker.turn(0);
                for _ in 0..count {
                    turn.finish(self.out.pop_front().expect("so many have started"), COST);
                }
                for _ in 0..count {
                    let tenant = started.pop_front().expect("so many have started");
                    turn.try_push(&self.tenants[tenant], COST, tenant).expect("there is room");
                }
                while let Next::Job(permit, tenant) = turn.next() {
                    self.out.push_back(permit);
                    started.push_back(tenant);
                }
                drop(turn);
                ended += count as u64;
            }
            // Relaxed: as in `turning`.
            over.store(true, Relaxed);
            ended
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

struct Locked<Q>(Arc<Mutex<Q>>);

impl<Q> Locked<Q> {
    fn all(queue: Q, threads: usize) -> impl Iterator<Item = Locked<Q>> {
        let queue = Arc::new(Mutex::new(queue));
        (0..threads).map(move |_| Locked(queue.clone()))
    }
}

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
    depth: usize,
}

impl Heap {
    fn new(tenants: usize, threads: usize) -> Heap {
        let waiting = BinaryHeap::with_capacity(threads * requests(tenants, threads));
        Heap { waiting, finish: vec![0; tenants], now: 0, came: 0, out: 0, depth: threads * TURN }
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
        if self.out == self.depth {
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
    depth: usize,
}

impl RoundRobin {
    fn new(tenants: usize, threads: usize) -> RoundRobin {
        let all = threads * requests(tenants, threads);
        RoundRobin {
            waiting: (0..tenants).map(|_| VecDeque::with_capacity(all)).collect(),
            deficit: vec![0; tenants],
            active: VecDeque::with_capacity(tenants),
            out: 0,
            depth: threads * TURN,
        }
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
        if self.out == self.depth {
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
