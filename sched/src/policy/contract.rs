//! The interface of a policy: what a worker calls. The head of [`policy`](super) says which thread calls what.

use super::direct::DirectPolicy;
use super::options::WindowTerms;
use crate::class::PriorityClass;
use crate::cost::{Cost, CostKind};
use crate::flow::{FlowId, GroupId, Weight};
use crate::shared::token_tree::DispatchToken;
use crate::topology::HctxId;

/// A scheduling policy for one device. [`policy`](super) says which thread calls what. The feature `internals` alone
/// gives it a name: no program that uses the door implements it, so it may grow.
pub trait Policy: Send + Sync {
    /// The part that one worker owns.
    type Queue: Send + 'static;

    /// Its interface if it is direct; [`NotDirect`](super::NotDirect) of a policy that stages.
    type Direct<'a>: DirectPolicy<Self::Queue>
    where
        Self: 'a;

    /// The queue of `hctx`, able to stage `capacity_requests` at once. Call once per hctx, before any work.
    /// This is where all allocation happens.
    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> Self::Queue;

    /// Takes in a request.
    ///
    /// # Panics
    /// If the queue is full, the flow is unknown, or the cost is 0 or more than [`COST_MAX`](crate::cost::COST_MAX).
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

    /// Takes back a request that was submitted to this queue with this flow, handle and cost and was not granted: its
    /// flow pays nothing for it. The worker picks after it. False: it is not staged here, or the policy takes nothing
    /// back.
    fn withdraw(&self, queue: &mut Self::Queue, name: (FlowId, Handle, Cost), kick: &mut impl Kick) -> bool {
        let _ = (queue, name, kick);
        false
    }

    /// The policy as one that stages nothing and has no token: it names a class queue of the device for each request,
    /// which goes there at once. `None`: it stages. Constant.
    fn as_direct(&self) -> Option<Self::Direct<'_>> {
        None
    }

    /// It is a direct policy: [`Policy::as_direct`] is not `None`. Constant.
    fn is_direct(&self) -> bool {
        self.as_direct().is_some()
    }

    /// Changes a flow's weight; requests already staged keep their tags.
    ///
    /// # Panics
    /// If the flow is unknown.
    fn set_weight(&self, flow: FlowId, weight: Weight);

    /// Changes the weight of a group of flows; requests already staged keep their tags. Without groups it does nothing.
    ///
    /// # Panics
    /// If there are groups, and not this one.
    fn set_group_weight(&self, group: GroupId, weight: Weight) {
        let _ = (group, weight);
    }

    /// Changes a flow's priority class, for policies that have them; the others do not look at it.
    fn set_class(&self, flow: FlowId, class: PriorityClass) {
        let _ = (flow, class);
    }

    /// Gives the place of a flow to another from now on, which starts as one that was idle and inherits nothing (I7).
    /// The caller has seen that every request of the old flow has ended on every queue, and threads that submit for the
    /// next one have seen this. False: this policy cannot forget a flow, and the place stays empty as long as it runs.
    fn retire(&self, flow: FlowId) -> bool {
        let _ = flow;
        true
    }

    /// Changes D to `depth` units, 1..=65535, for what is dispatched from now on. Requests on the device keep what they
    /// took: if that is more than the new D, none goes until so much has come back. Called by the worker of `from`,
    /// which picks after it, as after a `complete`. False: this policy's D cannot be changed, or not to that.
    fn set_depth(&self, from: HctxId, depth: u32, kick: &mut impl Kick) -> bool {
        let _ = (from, depth, kick);
        false
    }

    /// T, and what goes with it, is `terms` from now on. The caller is a worker that picks after it, or pauses, as
    /// after a kick; no other thread may be calling it. The policy was made for windows that change
    /// (`PolicyOptions::window_least`); terms that [`WindowTerms::validate`] refuses are the caller's bug. A policy
    /// without a T does nothing.
    fn set_window(&self, terms: &WindowTerms) {
        let _ = terms;
    }

    /// T in force and what goes with it, of a policy that has one.
    fn window_terms(&self) -> Option<WindowTerms> {
        None
    }

    /// No unit of D is free, as far as one word tells: a queue that is held back waits for one, directly or by the
    /// queue that virtual time waits for. A hint, of a policy whose D can be changed; false of any other.
    fn is_out_of_units(&self) -> bool {
        false
    }

    /// Flows that have requests staged in this queue, of a policy that has a T; 0 of any other.
    fn staged_flows(&self, queue: &Self::Queue) -> usize {
        let _ = queue;
        0
    }

    /// Requests staged in this queue.
    fn staged(&self, queue: &Self::Queue) -> usize;
}

/// A request that may go to the device now.
#[derive(PartialEq, Eq, Debug)]
pub struct Grant {
    /// The name given at submit.
    pub handle: Handle,
    /// Flow of the request.
    pub flow: FlowId,
    /// Goes back by [`Policy::complete`].
    pub token: DispatchToken,
}

/// Next step of a worker.
#[derive(PartialEq, Eq, Debug)]
pub enum Pick {
    /// Hand this request to the device, then pick again.
    Dispatch(Grant),
    /// Requests are staged, but the first is more than T ahead of global virtual time. A kick will come.
    Throttled,
    /// A request may go as far as fairness is concerned, but the device holds D. A kick will come.
    NoToken,
    /// Requests are staged, and the policy holds them back until this time, ns, in the hope of a better one. Pick again
    /// then, and after a submit, a complete or a kick. They need not be this queue's: the worker that is told looks
    /// again for all.
    Later(u64),
    /// Nothing is staged here.
    Idle,
}

/// How a policy tells other workers that they should pick again. Called only for workers other than the caller's.
///
/// A kick must not be lost: after `kick(h)` the worker of `h` must call [`Policy::pick`] at least
/// once, even if it was about to sleep.
pub trait Kick {
    /// Make the worker of `hctx` pick again soon.
    fn kick(&mut self, hctx: HctxId);
}

impl<F: FnMut(HctxId)> Kick for F {
    fn kick(&mut self, hctx: HctxId) {
        self(hctx)
    }
}

/// The caller's own name for a staged request (its tag); the policy only hands it back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(pub u32);

/// A request as the scheduler sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Flow that is charged.
    pub flow: FlowId,
    /// Service that it will use.
    pub cost: Cost,
    /// The caller's name for it.
    pub handle: Handle,
    /// Kind of the request.
    pub kind: CostKind,
    /// A caller waits for it: not so for writes of a page cache at its leisure, nor for discards.
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
    /// Flow that was charged.
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
