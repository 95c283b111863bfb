//! Scheduling policies: one trait, one file per policy, one enum to choose at run time.
//!
//! A worker owns one [`Policy::Queue`] per device (its part of the policy's state, so it needs no lock) and calls, on
//! its own thread: [`Policy::submit`] for each admitted request, [`Policy::pick`] until it no longer dispatches,
//! [`Policy::complete`] for each request that the device finished. State that workers share is inside the policy.
//!
//! # Policies that stage nothing
//! One that leaves arbitration to the device ([`Policy::is_direct`]) is never asked to submit or pick. For each request
//! the worker asks [`Policy::class_of`], hands the request to that queue of the device, says so by
//! [`Policy::dispatched`] ([`Policy::direct`] is both), and later calls [`Policy::ended`]; after completions it asks
//! [`Policy::adjust`].
//!
//! # What a worker owes the others
//! Work conservation (I4) is the policies' promise, and it rests on this: after a `submit`, a `complete` or a kick, and
//! before it sleeps, a worker picks until the answer is not [`Pick::Dispatch`]. A worker that cannot (its device queue
//! is full) says so by [`Policy::pause`], and picks again when it can. Batches are fine: any number of `submit` and
//! `complete`, then the picks.

mod any;
mod bfq;
mod central;
mod class_queue;
mod d2fq;
mod fifo;
mod kyber;
mod mq_deadline;
mod mqfq;
mod mqfq_serial;
mod options;
mod sfqd;
#[cfg(all(test, loom))]
mod sleeper_model;
pub mod tunables;

pub use any::{AnyPolicy, AnyQueue};
pub use bfq::{Bfq, BfqOptions};
pub use central::CentralQueue;
pub use class_queue::{ClassWeights, QueueClass};
pub use d2fq::{D2fq, D2fqOptions, D2fqQueue, GlobalVtime, Gvt, Thresholds};
pub use fifo::{Fifo, FifoQueue};
pub use kyber::{Kyber, KyberDomain, KyberQueue};
pub use mq_deadline::MqDeadline;
pub use mqfq::{Mqfq, MqfqQueue, structures};
pub use mqfq_serial::MqfqSerial;
pub use options::{PolicyError, PolicyKind, PolicyOptions, UnknownPolicy};
pub use sfqd::Sfqd;
pub use tunables::{KyberOptions, MqDeadlineOptions};

use crate::class::PriorityClass;
use crate::cost::{Cost, CostKind};
use crate::flow::{FlowId, Weight};
use crate::topology::HctxId;

/// The caller's own name for a staged request (its tag); the policy only hands it back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(pub u32);

/// A request as the scheduler sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Who is charged.
    pub flow: FlowId,
    /// Service that it will use.
    pub cost: Cost,
    /// The caller's name for it.
    pub handle: Handle,
    /// What it does.
    pub kind: CostKind,
    /// Somebody waits for it: not so for what a page cache writes back at its leisure, nor for discards.
    pub is_sync: bool,
    /// Its first byte on the device.
    pub offset_bytes: u64,
    /// Its length; 0 for a flush.
    pub length_bytes: u32,
}

impl Entry {
    /// A read of the device's first bytes, as long as its cost: for callers whose policy looks at flow and cost alone.
    pub const fn read(flow: FlowId, cost: Cost, handle: Handle) -> Entry {
        let length_bytes = if cost.0 > u32::MAX as u64 { u32::MAX } else { cost.0 as u32 };
        Entry { flow, cost, handle, kind: CostKind::Read, is_sync: true, offset_bytes: 0, length_bytes }
    }
}

/// A request that the device finished, as the scheduler sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Who was charged.
    pub flow: FlowId,
    /// The caller's name for it, as given at submit. It is free for another request after the call that brings this.
    pub handle: Handle,
    /// As in [`Entry::kind`].
    pub kind: CostKind,
    /// As in [`Entry::is_sync`].
    pub is_sync: bool,
    /// As in [`Entry::length_bytes`].
    pub length_bytes: u32,
    /// As in [`Entry::cost`].
    pub cost: Cost,
    /// When it was submitted to the policy, ns.
    pub submitted_ns: u64,
    /// When it went to the device, ns.
    pub dispatched_ns: u64,
}

impl Done {
    /// The end of an [`Entry::read`], at time 0.
    pub const fn read(flow: FlowId, handle: Handle) -> Done {
        let (kind, cost) = (CostKind::Read, Cost(0));
        Done { flow, handle, kind, is_sync: true, length_bytes: 0, cost, submitted_ns: 0, dispatched_ns: 0 }
    }
}

/// Permission for requests on the device (the paper's "slot"): must go back by [`Policy::complete`].
///
/// Holding one means that its units are counted out of the depth D. A policy without a depth hands out 0 units.
/// Dropping one that holds units is a bug: debug builds panic.
#[must_use = "a dispatch token that is not given back shrinks the device's depth for ever"]
#[derive(PartialEq, Eq, Debug)]
pub struct DispatchToken {
    units: u32,
}

impl DispatchToken {
    /// A token of `units` units of depth. Only for policies and their tests: the units must come out of a count.
    #[inline]
    pub const fn new(units: u32) -> Self {
        DispatchToken { units }
    }

    /// Units of depth held.
    #[inline]
    pub const fn units(&self) -> u32 {
        self.units
    }

    /// Gives the units back to the caller, who must put them into a count.
    #[inline]
    pub fn into_units(mut self) -> u32 {
        std::mem::take(&mut self.units)
    }
}

impl Drop for DispatchToken {
    fn drop(&mut self) {
        debug_assert!(self.units == 0 || std::thread::panicking(), "a dispatch token of {} units was lost", self.units);
    }
}

/// A request that may go to the device now.
#[derive(PartialEq, Eq, Debug)]
pub struct Grant {
    /// The name given at submit.
    pub handle: Handle,
    /// Whose request it is.
    pub flow: FlowId,
    /// Goes back by [`Policy::complete`].
    pub token: DispatchToken,
}

/// What a worker shall do next.
#[derive(PartialEq, Eq, Debug)]
pub enum Pick {
    /// Hand this request to the device, then pick again.
    Dispatch(Grant),
    /// Requests are staged, but the first is more than T ahead of global virtual time. A kick will come.
    Throttled,
    /// A request may go as far as fairness is concerned, but the device holds D. A kick will come.
    NoToken,
    /// Requests are staged, and the policy holds them back until this time, ns, in the hope of a better one. Pick again
    /// then, and as ever after a submit, a complete or a kick. They need not be this queue's: who is told looks again
    /// for all.
    Later(u64),
    /// Nothing is staged here.
    Idle,
}

/// How a policy tells other workers that they should pick again. Called only for workers other than the caller's.
///
/// A kick must not be lost: after `kick(h)` the worker of `h` must call [`Policy::pick`] at least once, even if it was
/// about to sleep.
pub trait Kick {
    /// Make the worker of `hctx` pick again soon.
    fn kick(&mut self, hctx: HctxId);
}

impl<F: FnMut(HctxId)> Kick for F {
    fn kick(&mut self, hctx: HctxId) {
        self(hctx)
    }
}

/// A scheduling policy for one device. See the module's text for who calls what.
pub trait Policy: Send + Sync {
    /// The part that one worker owns.
    type Queue: Send;

    /// The queue of `hctx`, able to stage `capacity_requests` at once. Call once per hctx, before any work.
    /// This is where all allocation happens.
    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> Self::Queue;

    /// Takes in a request. The caller never stages more than the queue's capacity (that is asserted).
    fn submit(&self, queue: &mut Self::Queue, entry: Entry, now_ns: u64, kick: &mut impl Kick);

    /// The next thing to do for this queue.
    fn pick(&self, queue: &mut Self::Queue, now_ns: u64, kick: &mut impl Kick) -> Pick;

    /// The device finished a request that `pick` granted on this queue.
    fn complete(&self, queue: &mut Self::Queue, done: Done, token: DispatchToken, now_ns: u64, kick: &mut impl Kick);

    /// The last pick dispatched and the worker cannot pick again yet (its device queue is full). What it could have
    /// used goes to others. After a kick, a paused worker pauses again or picks.
    fn pause(&self, queue: &mut Self::Queue, kick: &mut impl Kick) {
        let _ = (queue, kick);
    }

    /// It stages nothing and has no token: it names a class queue of the device for each request, which goes there at
    /// once. Constant.
    fn is_direct(&self) -> bool {
        false
    }

    /// The class queue that a request of this flow goes to now, of a direct policy.
    fn class_of(&self, queue: &Self::Queue, flow: FlowId, now_ns: u64) -> QueueClass {
        let _ = (queue, flow, now_ns);
        unreachable!("only a direct policy names class queues")
    }

    /// A request of this flow was admitted for the queue that [`Policy::class_of`] named, of a direct policy.
    fn dispatched(&self, queue: &mut Self::Queue, flow: FlowId, cost: Cost, class: QueueClass, now_ns: u64) {
        let _ = (queue, flow, cost, class, now_ns);
        unreachable!("only a direct policy is told of requests that it did not pick")
    }

    /// The device finished a request of this flow that [`Policy::dispatched`] was told of on this queue:
    /// [`Policy::complete`] of a direct policy, which looks at nothing else.
    fn ended(&self, queue: &mut Self::Queue, flow: FlowId, cost: Cost, now_ns: u64) {
        let _ = (queue, flow, cost, now_ns);
        unreachable!("only a direct policy is told of requests that it did not pick")
    }

    /// Both in one: [`Policy::class_of`] now, and [`Policy::dispatched`] for it.
    #[inline(always)]
    fn direct(&self, queue: &mut Self::Queue, flow: FlowId, cost: Cost, now_ns: u64) -> QueueClass {
        let class = self.class_of(queue, flow, now_ns);
        self.dispatched(queue, flow, cost, class, now_ns);
        class
    }

    /// Asked of a direct policy after each reap that brought something: weights that the device's class queues shall
    /// have from now on, if they change.
    fn adjust(&self, queue: &mut Self::Queue, now_ns: u64) -> Option<ClassWeights> {
        let _ = (queue, now_ns);
        None
    }

    /// Changes a flow's weight; requests already staged keep their tags.
    fn set_weight(&self, flow: FlowId, weight: Weight);

    /// Changes a flow's priority class, for policies that have them; the others do not look at it.
    fn set_class(&self, flow: FlowId, class: PriorityClass) {
        let _ = (flow, class);
    }

    /// Requests staged in this queue.
    fn staged(&self, queue: &Self::Queue) -> usize;
}
