//! One queue and one lock for all workers: what `sfqd`, `mq-deadline` and their like share.
//!
//! Answers: how does a request that one worker submitted leave a queue that any worker may look into? Source: the
//! "single queue" that MQFQ section 2 and the blk-mq paper (SYSTOR 2013, section 3) compare with.
//!
//! # Shape
//! ```text
//!   submit on any hctx ──▶ [ the policy's order ] ── unit free ──▶ the hctx that picks ──▶ Pick::Dispatch
//!                               one Mutex                     └───▶ granted list of another hctx, and a kick
//! ```
//! Only the worker that owns a request may hand it to the device, so a worker that finds another's request first grants
//! it: takes the units, puts it on the owner's list and kicks. The policy decides which is first: it keeps an order of
//! its own under the same lock and is asked for the next request whenever a unit is free.
//!
//! # Invariants
//! C1. Free units + units on granted lists + units of tokens outside = D (I1). At least one unit is free before a
//!     grant; a request of several units may take the count below 0, so units outside are less than D + the largest.
//!     Where D changes: the D of the last grant.
//! C2. Whenever the lock is free, either no unit is free, or the policy had nothing to give, or a worker that
//!     submitted, completed or was kicked has yet to pick (I4). A granted request's owner was kicked after it was put
//!     on the list.
//! C3. A policy that holds back what is staged until a time has told one worker so, which picks again then: the one
//!     that picked last, whether or not anything of its own is staged.
//!
//! # Cost
//! A lock per operation, and what the policy's order costs under it. That it does not scale is the point of comparison.

use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{DispatchToken, Grant, Handle, Kick, Pick};
use mqfq_sched::sync::{Mutex, Setting};
use mqfq_sched::topology::HctxId;
use std::collections::VecDeque;
use std::ops::DerefMut;

/// One queue for all workers under one lock, in the order that `O` keeps.
pub(super) struct Central<O> {
    /// D: most units on the device. It is read and set under the lock; it lies outside, where the orders' own memory
    /// does not move because of it.
    depth: Setting,
    inner: Mutex<Inner<O>>,
}

struct Inner<O> {
    order: O,
    capacity_requests: usize,
    /// Units of D that are free; negative while a request of several units is paid off.
    free_units: i64,
    /// Granted to a worker that has not picked it up, per hctx. Their units are taken.
    granted: Box<[VecDeque<Granted>]>,
}

struct Granted {
    flow: FlowId,
    handle: Handle,
    units: u32,
}

impl Granted {
    fn into_grant(self) -> Grant {
        Grant { handle: self.handle, flow: self.flow, token: DispatchToken::new(self.units) }
    }
}

/// State of one worker: its name, and how many of its requests are in the central queue or on its granted list.
#[derive(Debug)]
pub struct CentralQueue {
    hctx: HctxId,
    staged: usize,
    capacity_requests: usize,
}

impl CentralQueue {
    /// The hardware context whose worker uses this queue.
    pub(super) fn hctx(&self) -> HctxId {
        self.hctx
    }

    /// Requests in it.
    pub(super) fn staged(&self) -> usize {
        self.staged
    }
}

/// A request as an order keeps it.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub handle: Handle,
    pub units: u32,
    /// Hctx whose worker dispatches it.
    pub hctx: HctxId,
}

impl Default for Waiting {
    fn default() -> Self {
        Waiting { handle: Handle(0), units: 0, hctx: HctxId(0) }
    }
}

/// Answer of a policy when a unit is free.
pub(super) enum Next {
    /// This request goes; it has been taken out of the order.
    Request(FlowId, Waiting),
    /// Nothing goes before this time, ns.
    Later(u64),
    /// Nothing can go.
    Nothing,
}

impl<O> Central<O> {
    /// A queue for `hctx_count` workers and D = `depth`.
    pub fn new(depth: u32, hctx_count: usize, order: O) -> Self {
        let inner = Inner {
            order,
            capacity_requests: 0,
            free_units: i64::from(depth),
            granted: (0..hctx_count).map(|_| VecDeque::new()).collect(),
        };
        Central { depth: Setting::new(depth.into(), true), inner: Mutex::new(inner) }
    }

    fn lock(&self) -> impl DerefMut<Target = Inner<O>> + '_ {
        // A panic under the lock is a bug of ours that has already been reported; the others need not follow.
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Looks at the order, or makes a change that does not decide which request may go now.
    pub fn with<R>(&self, look: impl FnOnce(&mut O) -> R) -> R {
        look(&mut self.lock().order)
    }

    /// Units of D that are neither on the device nor granted. Negative while a debt is paid off.
    pub fn free_units(&self) -> i64 {
        self.lock().free_units
    }

    /// The queue of `hctx`, before anything is staged. `resize` makes an order that holds as many requests as all
    /// queues together.
    pub fn open_queue(
        &self,
        hctx: HctxId,
        capacity_requests: usize,
        resize: impl FnOnce(&mut O, usize),
    ) -> CentralQueue {
        let inner = &mut *self.lock();
        inner.capacity_requests += capacity_requests;
        resize(&mut inner.order, inner.capacity_requests);
        inner.granted[hctx.index()] = VecDeque::with_capacity(capacity_requests);
        CentralQueue { hctx, staged: 0, capacity_requests }
    }

    /// Takes in a request of `queue`: `stage` puts it into the order.
    pub fn submit(&self, queue: &mut CentralQueue, stage: impl FnOnce(&mut O, HctxId)) {
        assert!(queue.staged < queue.capacity_requests, "a queue of {} requests is full", queue.capacity_requests);
        queue.staged += 1;
        let inner = &mut *self.lock();
        stage(&mut inner.order, queue.hctx);
    }

    /// The next thing to do for `queue`: `next` says what goes while a unit is free.
    pub fn pick(&self, queue: &mut CentralQueue, kick: &mut impl Kick, next: impl FnMut(&mut O) -> Next) -> Pick {
        let inner = &mut *self.lock();
        if let Some(granted) = inner.granted[queue.hctx.index()].pop_front() {
            queue.staged -= 1;
            return Pick::Dispatch(granted.into_grant());
        }
        match inner.grant(queue.hctx, true, kick, next) {
            Granting::Own(granted) => {
                queue.staged -= 1;
                Pick::Dispatch(granted.into_grant())
            }
            Granting::Later(at_ns) => Pick::Later(at_ns),
            // Nothing was granted to us, so no unit is free or nothing may go; and our own list is empty.
            Granting::Nothing if queue.staged > 0 => Pick::NoToken,
            Granting::Nothing => Pick::Idle,
        }
    }

    /// The device finished a request: its units are free again. `done` tells the order so, and whether nothing else is
    /// on the device or granted.
    pub fn complete(&self, token: DispatchToken, done: impl FnOnce(&mut O, bool)) {
        let inner = &mut *self.lock();
        inner.free_units += i64::from(token.into_units());
        done(&mut inner.order, inner.free_units == self.depth.get() as i64);
    }

    /// D, in units.
    pub fn depth(&self) -> u32 {
        let _held = self.lock();
        self.depth.get() as u32
    }

    /// Changes D. With more of it, what can go is granted, requests of `from` too, whose worker picks after this (C2);
    /// with less, the difference is owed, and what comes back pays it first.
    pub fn set_depth(&self, from: HctxId, depth: u32, kick: &mut impl Kick, next: impl FnMut(&mut O) -> Next) {
        let inner = &mut *self.lock();
        inner.free_units += i64::from(depth) - self.depth.get() as i64;
        self.depth.set(depth.into());
        inner.grant(from, false, kick, next);
    }

    /// `queue` cannot pick now: what can go is granted, its own requests too.
    pub fn pause(&self, queue: &mut CentralQueue, kick: &mut impl Kick, next: impl FnMut(&mut O) -> Next) {
        self.lock().grant(queue.hctx, false, kick, next);
    }
}

enum Granting {
    Own(Granted),
    Later(u64),
    Nothing,
}

impl<O> Inner<O> {
    /// Grants what `next` says while a unit is free; ends early with the first one of `own` if that `takes` it.
    fn grant(
        &mut self,
        own: HctxId,
        takes: bool,
        kick: &mut impl Kick,
        mut next: impl FnMut(&mut O) -> Next,
    ) -> Granting {
        while self.free_units > 0 {
            let (flow, Waiting { handle, units, hctx }) = match next(&mut self.order) {
                Next::Request(flow, waiting) => (flow, waiting),
                Next::Later(at_ns) => return Granting::Later(at_ns),
                Next::Nothing => return Granting::Nothing,
            };
            self.free_units -= i64::from(units);
            let granted = Granted { flow, handle, units };
            if takes && hctx == own {
                return Granting::Own(granted);
            }
            self.granted[hctx.index()].push_back(granted);
            if hctx != own {
                kick.kick(hctx);
            }
        }
        Granting::Nothing
    }
}
