//! Closed loops: a number of requests in flight, each followed by another after a time to think; phases of them; and
//! chains, steps of which each waits for the one before, as the writes and flushes of a database's commit do.

use super::shape::Shape;
use super::{Ask, Source, Step};
use mqfq_blk_watched::request::Op;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// As many in flight as its depth; each completion is followed by a request `think_ns` later.
pub struct Closed {
    shape: Shape,
    /// Requests that may be asked for now.
    free: u32,
    think_ns: u64,
    /// Where its clock of bursts begins.
    start_ns: u64,
    bursts: Option<(u64, u64)>,
    /// When further ones may, earliest first. Never more than the depth, for which there is room.
    thinking: VecDeque<u64>,
}

impl Closed {
    /// With `depth` requests free. In bursts it asks for none while it is off; those in flight complete.
    pub fn new(shape: Shape, depth: u32, think_ns: u64, start_ns: u64, bursts: Option<(u64, u64)>) -> Closed {
        let thinking = VecDeque::with_capacity(if think_ns == 0 { 0 } else { depth as usize });
        Closed { shape, free: depth, think_ns, start_ns, bursts, thinking }
    }

    /// If it is off at `now_ns`: when it will be on.
    fn on_again_ns(&self, now_ns: u64) -> Option<u64> {
        let (on_ns, off_ns) = self.bursts?;
        let into_ns = now_ns.saturating_sub(self.start_ns) % (on_ns + off_ns);
        (into_ns >= on_ns).then(|| now_ns + (on_ns + off_ns - into_ns))
    }
}

impl Source for Closed {
    fn next(&mut self, now_ns: u64) -> Step {
        while self.thinking.front().is_some_and(|at_ns| *at_ns <= now_ns) {
            self.thinking.pop_front();
            self.free += 1;
        }
        if self.free > 0 {
            if let Some(on_ns) = self.on_again_ns(now_ns) {
                return Step::WaitUntil(on_ns);
            }
            self.free -= 1;
            return Step::Ask(self.shape.ask(now_ns));
        }
        self.thinking.front().map_or(Step::WaitForCompletion, |at_ns| Step::WaitUntil(*at_ns))
    }

    fn completed(&mut self, now_ns: u64) -> bool {
        match self.think_ns {
            0 => self.free += 1,
            think_ns => self.thinking.push_back(now_ns + think_ns),
        }
        true
    }
}

/// How often a thread at the barrier looks whether all have come, if nothing is computed, ns.
const LOOK_NS: u64 = 5_000;

/// Where the threads of a tenant wait for each other.
///
/// A waiting thread cannot be called by the last one that comes, so it looks from time to time. All leave the computing
/// time after the last one came, so a thread that looks once per computing time learns of it before it must leave, and
/// leaves exactly then.
pub struct Barrier {
    threads: u32,
    arrived: Cell<u32>,
    /// Times that all had come.
    passed: Cell<u64>,
    leave_ns: Cell<u64>,
}

impl Barrier {
    /// Barrier of so many threads.
    pub fn new(threads: u32) -> Rc<Barrier> {
        Rc::new(Barrier { threads, arrived: Cell::new(0), passed: Cell::new(0), leave_ns: Cell::new(0) })
    }

    /// One thread comes; gives which passing it waits for.
    fn arrive(&self, now_ns: u64, compute_ns: u64) -> u64 {
        let mine = self.passed.get() + 1;
        self.arrived.set(self.arrived.get() + 1);
        if self.arrived.get() == self.threads {
            self.arrived.set(0);
            self.passed.set(mine);
            self.leave_ns.set(now_ns + compute_ns);
        }
        mine
    }
}

/// Phases of so many requests at a depth. At the end of one a thread waits for its own, then for the others, then all
/// compute.
pub struct Phases {
    shape: Shape,
    depth: u32,
    requests: u32,
    compute_ns: u64,
    barrier: Rc<Barrier>,
    asked: u32,
    in_flight: u32,
    /// The passing of the barrier that it waits for.
    waits_for: Option<u64>,
}

impl Phases {
    /// In its first phase.
    pub fn new(shape: Shape, depth: u32, requests: u32, compute_ns: u64, barrier: Rc<Barrier>) -> Phases {
        Phases { shape, depth, requests, compute_ns, barrier, asked: 0, in_flight: 0, waits_for: None }
    }
}

impl Source for Phases {
    fn next(&mut self, now_ns: u64) -> Step {
        if self.waits_for.is_none() && self.asked == self.requests && self.in_flight == 0 {
            self.waits_for = Some(self.barrier.arrive(now_ns, self.compute_ns));
        }
        if let Some(passing) = self.waits_for {
            if self.barrier.passed.get() < passing {
                return Step::WaitUntil(now_ns + self.compute_ns.max(LOOK_NS));
            }
            if now_ns < self.barrier.leave_ns.get() {
                return Step::WaitUntil(self.barrier.leave_ns.get());
            }
            self.waits_for = None;
            self.asked = 0;
        }
        if self.asked == self.requests || self.in_flight == self.depth {
            return Step::WaitForCompletion;
        }
        self.asked += 1;
        self.in_flight += 1;
        Step::Ask(self.shape.ask(now_ns))
    }

    fn completed(&mut self, _now_ns: u64) -> bool {
        self.in_flight -= 1;
        true
    }
}

/// One chain after the other, the next one `think_ns` after the last step of the one before.
pub struct Chain {
    shape: Shape,
    steps: Arc<[Op]>,
    think_ns: u64,
    /// Step that is asked for next.
    next: usize,
    /// Start of the chain that is under way; of the next one, if none is.
    begun_ns: u64,
    /// A step is in flight.
    is_waiting: bool,
}

impl Chain {
    /// Chains of `steps`, of which there is at least one, with lengths and places of `shape`.
    pub fn new(shape: Shape, steps: Arc<[Op]>, think_ns: u64) -> Chain {
        Chain { shape, steps, think_ns, next: 0, begun_ns: 0, is_waiting: false }
    }
}

impl Source for Chain {
    fn next(&mut self, now_ns: u64) -> Step {
        if self.is_waiting {
            return Step::WaitForCompletion;
        }
        if self.next == 0 {
            if now_ns < self.begun_ns {
                return Step::WaitUntil(self.begun_ns);
            }
            self.begun_ns = now_ns;
        }
        let op = self.steps[self.next];
        self.next += 1;
        self.is_waiting = true;
        Step::Ask(match op {
            Op::Flush => Ask { op, offset_bytes: 0, length_bytes: 0, arrived_ns: self.begun_ns },
            _ => Ask { op, ..self.shape.ask(self.begun_ns) },
        })
    }

    fn completed(&mut self, now_ns: u64) -> bool {
        self.is_waiting = false;
        let is_last = self.next == self.steps.len();
        if is_last {
            (self.next, self.begun_ns) = (0, now_ns + self.think_ns);
        }
        is_last
    }
}
