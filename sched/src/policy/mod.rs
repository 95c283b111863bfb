//! Scheduling policies: one trait, one file per policy, one enum to choose at run time.
//!
//! A worker owns one [`Policy::Queue`] per device (its part of the policy's state, so it needs no lock) and calls, on
//! its own thread: [`Policy::submit`] for each admitted request, [`Policy::pick`] until it no longer dispatches,
//! [`Policy::complete`] for each request that the device finished. What workers share is inside the policy.
//!
//! # What a worker owes the others
//! Work conservation (I4) is the policies' promise, and it rests on this: after a `submit`, a `complete` or a kick, and
//! before it sleeps, a worker picks until the answer is not [`Pick::Dispatch`]. A worker that cannot (its device queue
//! is full) says so by [`Policy::pause`], and picks again when it can. Batches are fine: any number of `submit` and
//! `complete`, then the picks.

mod any;
mod fifo;
mod mqfq;
mod mqfq_serial;
mod options;
mod sfqd;
#[cfg(all(test, loom))]
mod sleeper_model;

pub use any::{AnyPolicy, AnyQueue};
pub use fifo::{Fifo, FifoQueue};
pub use mqfq::{Mqfq, MqfqQueue, structures};
pub use mqfq_serial::MqfqSerial;
pub use options::{PolicyError, PolicyKind, PolicyOptions, UnknownPolicy};
pub use sfqd::{Sfqd, SfqdQueue};

use crate::cost::Cost;
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
    fn complete(&self, queue: &mut Self::Queue, flow: FlowId, token: DispatchToken, now_ns: u64, kick: &mut impl Kick);

    /// The last pick dispatched and the worker cannot pick again yet (its device queue is full). What it could have
    /// used goes to others. After a kick, a paused worker pauses again or picks.
    fn pause(&self, queue: &mut Self::Queue, kick: &mut impl Kick) {
        let _ = (queue, kick);
    }

    /// Changes a flow's weight; requests already staged keep their tags.
    fn set_weight(&self, flow: FlowId, weight: Weight);

    /// Requests staged in this queue.
    fn staged(&self, queue: &Self::Queue) -> usize;
}
