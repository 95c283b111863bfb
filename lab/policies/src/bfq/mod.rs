//! Policy `bfq`: budget fair queueing, one queue at a time and one lock.
//!
//! Answers: what do exact shares of service cost, if a queue has the device to itself while it is served? Sources:
//! Valente and Checconi, "High Throughput Disk Scheduling with Fair Bandwidth Distribution", IEEE Transactions on
//! Computers 59(9), 2010; Valente and Andreolini, SYSTOR 2012; Valente and Avanzini, MST 2015; and what Linux documents
//! of its own (bfq-iosched).
//!
//! # Shape
//! ```text
//!   central.rs        the lock, D, and a worker's granted requests
//!     scheduler.rs    turns: which queue has the device, until when, and when to wait
//!       service_tree.rs   B-WF2Q+: classes of groups (tenants), groups of queues (processes)
//!       queue.rs          requests of one process, in offset order
//!       budget.rs         how much in one turn, and what the device can do, which is what budgets are measured by
//!       raising.rs        which flows a user probably waits for
//!       heap.rs           what all of these are sorted with
//! ```
//!
//! # Invariants
//! C1 to C3 of `central.rs`, B1 to B3 of `service_tree.rs`, A1 to A3 of `scheduler.rs`, and for two groups that have
//! requests staged during a whole interval, in one class, without raising: their service over their weights differs by
//! no more than two turns' each (a turn is at most the largest budget, or the largest request).
//!
//! # Cost
//! A lock per operation; O(log groups + log queues) when a turn begins and ends, O(log requests) per request.
//!
//! Memory: at most 8 bytes per tenant and worker, 256 per tenant, 256 per queue, and 80 per request that can be staged.
//! An empty pool of queues gives away the queue that has been idle longest, whose budget, think time and lead are
//! forgotten.
//!
//! # Differences from Linux's
//! * Groups are tenants, on one level, of weights 1 to 10000. A tenant's queues have equal weights.
//! * Raising is the tenant's, for a constant time.
//! * No merging of queues, no detection of bursts of queues, no injection while waiting, no seeking back, no switch to
//!   sharing time with queues that seek: on flash position costs nothing.
//! * A queue takes the device from another of its class only by raising.

mod budget;
mod heap;
mod options;
mod queue;
mod raising;
mod scheduler;
mod service_tree;

pub use options::BfqOptions;

use crate::central::{Central, CentralQueue, Next};
use mqfq_sched::class::PriorityClass;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{
    Descriptor, DispatchToken, Done, Entry, Kick, NotDirect, Pick, Policy, PolicyError, PolicyOptions, Registered,
};
use mqfq_sched::topology::{HctxId, Topology};
use scheduler::Scheduler;

kind!(Bfq);

/// Budget fair queueing.
pub struct Bfq {
    options: PolicyOptions,
    central: Central<Scheduler>,
}

impl Bfq {
    /// A scheduler for `hctx_count` queues. The options have been validated.
    pub(super) fn new(options: &PolicyOptions, hctx_count: usize, weights: &[Weight]) -> Self {
        let scheduler = Scheduler::new(&options.own.get(), options.depth, hctx_count, weights);
        Bfq { options: *options, central: Central::new(options.depth, hctx_count, scheduler) }
    }

    /// Units of D that are neither on the device nor granted. Negative while a debt is paid off.
    pub fn free_units(&self) -> i64 {
        self.central.free_units()
    }

    /// The estimate of what the device does at its best, once there is one.
    pub fn peak_bytes_per_s(&self) -> Option<u64> {
        self.central.with(|scheduler| scheduler.peak_bytes_per_s())
    }

    /// The largest budget at this time.
    pub fn max_budget_bytes(&self) -> u64 {
        self.central.with(|scheduler| scheduler.max_budget_bytes())
    }

    /// The flow's weight is raised.
    pub fn is_raised(&self, flow: FlowId) -> bool {
        self.central.with(|scheduler| scheduler.is_raised(flow))
    }

    /// Budget that the feedback allows the queue of a flow at an hctx in its next turn; `None` if it has no queue.
    pub fn budget_bytes(&self, flow: FlowId, hctx: HctxId, is_sync: bool) -> Option<u64> {
        self.central.with(|scheduler| scheduler.budget_bytes(flow, hctx, is_sync))
    }
}

impl Policy for Bfq {
    type Queue = CentralQueue;
    type Direct<'a> = NotDirect;

    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> CentralQueue {
        self.central.open_queue(hctx, capacity_requests, |scheduler, capacity| scheduler.open(hctx, capacity))
    }

    fn submit(&self, queue: &mut CentralQueue, entry: Entry, now_ns: u64, _kick: &mut impl Kick) {
        let units = self.options.units_of(&entry);
        self.central.submit(queue, |scheduler, hctx| scheduler.submit(hctx, entry, units, now_ns));
    }

    fn pick(&self, queue: &mut CentralQueue, now_ns: u64, kick: &mut impl Kick) -> Pick {
        self.central.pick(queue, kick, |scheduler| scheduler.next(now_ns))
    }

    fn complete(&self, queue: &mut CentralQueue, done: Done, token: DispatchToken, now_ns: u64, _kick: &mut impl Kick) {
        let (hctx, units) = (queue.hctx(), token.units());
        self.central.complete(token, |scheduler, _| scheduler.complete(hctx, done, units, now_ns));
    }

    fn pause(&self, queue: &mut CentralQueue, kick: &mut impl Kick) {
        let own = queue.hctx();
        let mut told = None;
        self.central.pause(queue, kick, |scheduler| {
            let next = scheduler.next(0);
            if let Next::Later(_) = next {
                // We cannot be asked again at that time, and everybody else may be asleep (C3).
                told = scheduler.somebody_else(own);
            }
            next
        });
        if let Some(hctx) = told {
            kick.kick(hctx);
        }
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) {
        self.central.with(|scheduler| scheduler.set_weight(flow, weight));
    }

    /// A flow's budgets and its place in the trees of idle flows stay.
    fn retire(&self, _flow: FlowId) -> bool {
        false
    }

    fn set_class(&self, flow: FlowId, class: PriorityClass) {
        self.central.with(|scheduler| scheduler.set_class(flow, class));
    }

    fn staged(&self, queue: &CentralQueue) -> usize {
        queue.staged()
    }
}

impl Registered for Bfq {
    const ABOUT: Descriptor = Descriptor {
        has_depth: true,
        is_fair: true,
        is_elevator: true,
        ..Descriptor::new("bfq", "budget fair queueing: one lock, and the device for one queue at a time")
    };

    type Options = BfqOptions;

    fn make(options: &PolicyOptions, topology: &Topology, flows: &[Weight]) -> Result<Self, PolicyError> {
        Ok(Bfq::new(options, topology.hctx_count(), flows))
    }

    fn free_units(&self) -> Option<i64> {
        Some(self.free_units())
    }
}
