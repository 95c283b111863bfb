//! Policy `sfqd`: start-time fair queueing with D requests in service, one queue and one lock.
//!
//! Answers: how fair can it be if nothing has to scale? Source: SFQ (Goyal, Vin, Cheng 1996) and SFQ(D) (Jin, Chase,
//! Kaur 2004), as MQFQ section 2 states them: requests are dispatched in increasing order of start tags over *all*
//! queues; virtual time is the start tag of the last request dispatched, and when the device falls idle the largest
//! finish tag served.
//!
//! # Shape
//! A central queue (`central.rs`), ordered by start tag (`stage_queue.rs`).
//!
//! # Invariants
//! C1 to C3 of `central.rs`, and
//! S1. Grants are made in order of start tags, ties as in `stage_queue.rs`.
//!
//! # Cost
//! A lock per operation; O(log flows) under it. That it does not scale is the point of comparison.

use crate::central::{Central, CentralQueue, Next, Waiting};
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::{EffectiveWeight, GroupId, Tree};
use mqfq_sched::flow::{FlowId, FlowTable, Interval, Weight, align};
use mqfq_sched::policy::{
    Descriptor, DispatchToken, Done, Entry, Kick, NoOptions, NotDirect, Pick, Policy, PolicyError, PolicyOptions,
    Registered,
};
use mqfq_sched::stage_queue::{StageQueue, Staged};
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_sched::vtime::{VSpan, VTime};

kind!(Sfqd);

/// Policy `sfqd`: start-time fair queueing with D units on the device, one queue and one lock.
pub struct Sfqd {
    options: PolicyOptions,
    flows: FlowTable,
    central: Central<ByStartTag>,
}

struct ByStartTag {
    stage: StageQueue<Waiting>,
    virtual_time: VTime,
    /// Largest finish tag dispatched.
    finish_max: VTime,
}

impl Sfqd {
    /// A scheduler for `hctx_count` queues. The options have been validated.
    pub(super) fn new(options: &PolicyOptions, hctx_count: usize, weights: &[Weight]) -> Self {
        let start = align(options.start);
        let order = ByStartTag { stage: StageQueue::new(1), virtual_time: start, finish_max: start };
        Sfqd {
            options: *options,
            flows: FlowTable::new(weights, start),
            central: Central::new(options.depth, hctx_count, order),
        }
    }

    /// Start tag of the last request dispatched, or the largest finish tag served if the device is idle.
    pub fn virtual_time(&self) -> VTime {
        self.central.with(|order| order.virtual_time)
    }

    /// Units of D that are neither on the device nor granted. Negative while a debt is paid off.
    pub fn free_units(&self) -> i64 {
        self.central.free_units()
    }

    fn interval(&self, flow: FlowId, cost: Cost, virtual_time: VTime) -> (VTime, VSpan) {
        let Interval { start_tag, span } = self.flows.charge(flow, cost, virtual_time);
        (start_tag, span)
    }

    /// Takes out the request with the smallest start tag.
    fn next(&self, order: &mut ByStartTag) -> Next {
        let Some(Staged { flow, start_tag, span, payload }) = order.stage.peek() else { return Next::Nothing };
        order.virtual_time = order.virtual_time.later(start_tag);
        order.stage.drop_first_and(
            |flow, cost, ()| {
                let (start_tag, span) = self.interval(flow, cost, order.virtual_time);
                (start_tag, span, ())
            },
            |(), _, ()| None,
            |_, ()| (),
        );
        order.finish_max = order.finish_max.later(start_tag.plus(span));
        self.flows.refresh_if_due(order.virtual_time);
        Next::Request(flow, payload)
    }
}

impl Policy for Sfqd {
    type Queue = CentralQueue;
    type Direct<'a> = NotDirect;

    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> CentralQueue {
        self.central.open_queue(hctx, capacity_requests, |order, capacity| {
            assert!(order.stage.is_empty(), "hctx {} opens its queue after requests were staged", hctx.0);
            order.stage = StageQueue::new(capacity);
        })
    }

    fn submit(&self, queue: &mut CentralQueue, entry: Entry, _now_ns: u64, _kick: &mut impl Kick) {
        let Entry { flow, cost, handle, .. } = entry;
        let units = self.options.units_of(&entry);
        self.central.submit(queue, |order, hctx| {
            let payload = Waiting { handle, units, hctx };
            let Some(behind) = order.stage.behind(flow) else {
                let (start_tag, span) = self.interval(flow, cost, order.virtual_time);
                order.stage.push_lane(Staged { flow, start_tag, span, payload }, ());
                return;
            };
            match self.flows.charge_alone(flow, cost, order.virtual_time) {
                Some(Interval { start_tag, span }) => {
                    behind.push(start_tag, span, payload);
                }
                None => behind.defer(cost, payload),
            }
        });
    }

    fn pick(&self, queue: &mut CentralQueue, _now_ns: u64, kick: &mut impl Kick) -> Pick {
        self.central.pick(queue, kick, |order| self.next(order))
    }

    fn complete(
        &self,
        _queue: &mut CentralQueue,
        _done: Done,
        token: DispatchToken,
        _now_ns: u64,
        _kick: &mut impl Kick,
    ) {
        self.central.complete(token, |order, is_last| {
            if is_last && order.stage.is_empty() {
                order.virtual_time = order.virtual_time.later(order.finish_max);
            }
        });
    }

    fn pause(&self, queue: &mut CentralQueue, kick: &mut impl Kick) {
        self.central.pause(queue, kick, |order| self.next(order));
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) {
        self.flows.set_weight(flow, weight);
    }

    fn retire(&self, flow: FlowId) -> bool {
        self.flows.retire(flow, self.virtual_time());
        true
    }

    fn set_depth(&self, from: HctxId, depth: u32, kick: &mut impl Kick) -> bool {
        self.central.set_depth(from, depth, kick, |order| self.next(order));
        true
    }

    fn set_group_weight(&self, group: GroupId, weight: Weight) {
        self.flows.set_group_weight(group, weight);
    }

    fn staged(&self, queue: &CentralQueue) -> usize {
        queue.staged()
    }
}

impl Registered for Sfqd {
    const ABOUT: Descriptor = Descriptor {
        has_depth: true,
        tunes_depth: true,
        is_fair: true,
        has_groups: true,
        ..Descriptor::new("sfqd", "SFQ(D): strict order of start tags; one queue, one lock")
    };

    type Options = NoOptions;

    fn make(options: &PolicyOptions, topology: &Topology, flows: &[Weight]) -> Result<Self, PolicyError> {
        Ok(Sfqd::new(options, topology.hctx_count(), flows))
    }

    fn set_tree(&mut self, tree: &Tree) {
        // It has no window: as beside the default one.
        let window = PolicyOptions::new(self.options.kind).window;
        self.flows.set_tree(tree, PolicyOptions::step_period(window));
    }

    fn effective_weight(&self, flow: FlowId) -> Option<EffectiveWeight> {
        Some(self.flows.effective_weight(flow, self.virtual_time()))
    }

    fn effective_weight_of(&self, group: GroupId) -> Option<EffectiveWeight> {
        self.flows.effective_weight_of(group)
    }

    fn global_vtime(&self) -> Option<VTime> {
        Some(self.virtual_time())
    }

    fn depth(&self) -> Option<u32> {
        Some(self.central.depth())
    }

    fn free_units(&self) -> Option<i64> {
        Some(self.free_units())
    }
}

#[cfg(all(test, mqfq_loom))]
mod loom_tests {
    //! Model check of the grant to another worker, with what wakes that worker.
    //!
    //! Run: `cargo xtask loom`.

    use super::*;
    use crate::SFQD;
    use crate::sleeper_model::{one_token_passes_to_a_worker_that_falls_asleep, options};
    use mqfq_sched::sync::model::Builder;

    /// Race: A completes, picks, and grants B's request, while B, which has just found no token, falls asleep (C2).
    /// Shown to fail if `Central::pick` does not kick the owner of a grant, and if the kick is not rung.
    #[test]
    fn loom_grant_to_another_worker_meets_it_falling_asleep() {
        Builder::new().check(|| {
            let options = options(SFQD);
            one_token_passes_to_a_worker_that_falls_asleep(Sfqd::new(&options, 2, &[Weight::DEFAULT; 2]));
        });
    }
}
