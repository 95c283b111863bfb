//! Policy `sfqd`: start-time fair queueing with D requests in service, one queue and one lock.
//!
//! Answers: how fair can it be if nothing has to scale? Source: SFQ (Goyal, Vin, Cheng 1996) and SFQ(D) (Jin, Chase,
//! Kaur 2004), as MQFQ section 2 states them: requests are dispatched in increasing order of start tags over *all*
//! queues; virtual time is the start tag of the last request dispatched, and when the device falls idle the largest
//! finish tag served.
//!
//! # Shape
//! ```text
//!   submit on any hctx ──▶ [ central stage queue ] ── token free ──▶ the hctx that picks ──▶ Pick::Dispatch
//!                               one Mutex                      └───▶ granted list of another hctx, and a kick
//! ```
//! Only the worker that owns a request may hand it to the device, so a worker that finds another's request first grants
//! it: takes the token, puts it on the owner's list and kicks.
//!
//! # Invariants
//! S1. Free units + units on granted lists + units of tokens outside = D (I1). At least one unit is free before a
//!     grant; a request of several units may take the count below 0, so units outside are less than D + the largest.
//! S2. Grants are made in order of start tags, ties as in `stage_queue.rs`.
//! S3. Whenever the lock is free, either no unit is free, or nothing is staged, or a worker that submitted or completed
//!     has yet to pick (I4). A granted request's owner was kicked after it was put on the list.
//!
//! # Cost
//! A lock per operation; O(log flows) under it. That it does not scale is the point of comparison.

use super::{DispatchToken, Done, Entry, Grant, Handle, Kick, Pick, Policy, PolicyOptions};
use crate::flow::{FlowId, FlowTable, Interval, Weight, align};
use crate::stage_queue::{StageQueue, Staged};
use crate::sync::Mutex;
use crate::topology::HctxId;
use crate::vtime::{VSpan, VTime};
use std::collections::VecDeque;
use std::ops::DerefMut;

/// SFQ(D).
pub struct Sfqd {
    options: PolicyOptions,
    flows: FlowTable,
    central: Mutex<Central>,
}

struct Central {
    stage: StageQueue<Waiting>,
    capacity_requests: usize,
    /// Units of D that are free; negative while a request of several units is paid off.
    free_units: i64,
    virtual_time: VTime,
    /// Largest finish tag dispatched.
    finish_max: VTime,
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

#[derive(Clone, Copy)]
struct Waiting {
    handle: Handle,
    units: u32,
    hctx: HctxId,
}

impl Default for Waiting {
    fn default() -> Self {
        Waiting { handle: Handle(0), units: 0, hctx: HctxId(0) }
    }
}

/// What one worker owns: its name, and how many of its requests are in the central queue or on its granted list.
#[derive(Debug)]
pub struct SfqdQueue {
    hctx: HctxId,
    staged: usize,
    capacity_requests: usize,
}

impl Sfqd {
    /// A scheduler for `hctx_count` queues. The options have been validated.
    pub(super) fn new(options: &PolicyOptions, hctx_count: usize, weights: &[Weight]) -> Self {
        let start = align(options.start);
        let central = Central {
            stage: StageQueue::new(1),
            capacity_requests: 0,
            free_units: i64::from(options.depth),
            virtual_time: start,
            finish_max: start,
            granted: (0..hctx_count).map(|_| VecDeque::new()).collect(),
        };
        Sfqd { options: *options, flows: FlowTable::new(weights, start), central: Mutex::new(central) }
    }

    /// Start tag of the last request dispatched, or the largest finish tag served if the device is idle.
    pub fn virtual_time(&self) -> VTime {
        self.lock().virtual_time
    }

    /// Units of D that are neither on the device nor granted. Negative while a debt is paid off.
    pub fn free_units(&self) -> i64 {
        self.lock().free_units
    }

    fn lock(&self) -> impl DerefMut<Target = Central> + '_ {
        // A panic under the lock is a bug of ours that has already been reported; the others need not follow.
        self.central.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Central {
    /// Grants the first staged request if a unit is free, and says whose it is.
    fn grant_next(&mut self) -> Option<(HctxId, Granted)> {
        if self.free_units <= 0 {
            return None;
        }
        let Staged { flow, start_tag, span, payload: Waiting { handle, units, hctx } } = self.stage.pop()?;
        self.free_units -= i64::from(units);
        self.virtual_time = self.virtual_time.later(start_tag);
        self.finish_max = self.finish_max.later(start_tag.plus(span));
        Some((hctx, Granted { flow, handle, units }))
    }
}

impl Policy for Sfqd {
    type Queue = SfqdQueue;

    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> SfqdQueue {
        let central = &mut *self.lock();
        assert!(central.stage.is_empty(), "hctx {} opens its queue after requests were staged", hctx.0);
        central.capacity_requests += capacity_requests;
        central.stage = StageQueue::new(central.capacity_requests);
        central.granted[hctx.0 as usize] = VecDeque::with_capacity(capacity_requests);
        SfqdQueue { hctx, staged: 0, capacity_requests }
    }

    fn submit(&self, queue: &mut SfqdQueue, entry: Entry, _now_ns: u64, _kick: &mut impl Kick) {
        assert!(queue.staged < queue.capacity_requests, "a queue of {} requests is full", queue.capacity_requests);
        queue.staged += 1;
        let Entry { flow, cost, handle, .. } = entry;
        let central = &mut *self.lock();
        let Interval { start_tag, finish_tag } = self.flows.charge(flow, cost, central.virtual_time);
        let span = VSpan(finish_tag.since(start_tag) as u64);
        let units = self.options.units(cost);
        let payload = Waiting { handle, units, hctx: queue.hctx };
        central.stage.push(Staged { flow, start_tag, span, payload });
    }

    fn pick(&self, queue: &mut SfqdQueue, _now_ns: u64, kick: &mut impl Kick) -> Pick {
        let central = &mut *self.lock();
        if let Some(granted) = central.granted[queue.hctx.0 as usize].pop_front() {
            queue.staged -= 1;
            return Pick::Dispatch(granted.into_grant());
        }
        while let Some((owner, granted)) = central.grant_next() {
            self.flows.refresh_if_due(central.virtual_time);
            if owner == queue.hctx {
                queue.staged -= 1;
                return Pick::Dispatch(granted.into_grant());
            }
            central.granted[owner.0 as usize].push_back(granted);
            kick.kick(owner);
        }
        // Nothing was granted, so either no unit is free or nothing is staged; and our own list is empty.
        if queue.staged > 0 { Pick::NoToken } else { Pick::Idle }
    }

    fn complete(&self, _queue: &mut SfqdQueue, _done: Done, token: DispatchToken, _now_ns: u64, _kick: &mut impl Kick) {
        let central = &mut *self.lock();
        central.free_units += i64::from(token.into_units());
        if central.free_units == i64::from(self.options.depth) && central.stage.is_empty() {
            central.virtual_time = central.virtual_time.later(central.finish_max);
        }
    }

    fn pause(&self, queue: &mut SfqdQueue, kick: &mut impl Kick) {
        let central = &mut *self.lock();
        while let Some((owner, granted)) = central.grant_next() {
            central.granted[owner.0 as usize].push_back(granted);
            if owner != queue.hctx {
                kick.kick(owner);
            }
        }
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) {
        self.flows.set_weight(flow, weight);
    }

    fn staged(&self, queue: &SfqdQueue) -> usize {
        queue.staged
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
