//! Policy `none`: first in, first out per hctx.
//!
//! Answers: what do tenants get without a scheduler? Source: MQFQ section 4.1 ("nosched"), the setup that Linux
//! recommends for fast devices. No state is shared, no token is held, no worker is ever kicked: the device's own queue
//! depth is the only limit, and a request's flow plays no part.
//!
//! # Invariants
//! Requests of one queue leave in the order they came (I9). A queue that holds something always dispatches (I4).

pub(super) mod about;

use super::{
    Descriptor, DispatchToken, Done, Entry, Grant, Handle, Kick, NoOptions, NotDirect, Pick, Policy, PolicyError,
    PolicyOptions, Registered,
};
use crate::cost::Cost;
use crate::flow::{FlowId, Weight};
use crate::topology::{HctxId, Topology};
use about::ABOUT;
use alloc::collections::VecDeque;

/// First in, first out.
#[derive(Debug, Default)]
pub struct Fifo;

/// One worker's requests.
#[derive(Debug)]
pub struct FifoQueue {
    entries: VecDeque<Entry>,
    capacity_requests: usize,
}

impl Policy for Fifo {
    type Queue = FifoQueue;
    type Direct<'a> = NotDirect;

    fn open_queue(&self, _hctx: HctxId, capacity_requests: usize) -> FifoQueue {
        FifoQueue { entries: VecDeque::with_capacity(capacity_requests), capacity_requests }
    }

    fn submit(&self, queue: &mut FifoQueue, entry: Entry, _now_ns: u64, _kick: &mut impl Kick) {
        assert!(
            queue.entries.len() < queue.capacity_requests,
            "a queue of {} requests is full",
            queue.capacity_requests
        );
        queue.entries.push_back(entry);
    }

    fn pick(&self, queue: &mut FifoQueue, _now_ns: u64, _kick: &mut impl Kick) -> Pick {
        match queue.entries.pop_front() {
            Some(Entry { flow, handle, .. }) => Pick::Dispatch(Grant { handle, flow, token: DispatchToken::new(0) }),
            None => Pick::Idle,
        }
    }

    fn complete(&self, _queue: &mut FifoQueue, _done: Done, token: DispatchToken, _now_ns: u64, _kick: &mut impl Kick) {
        let units = token.into_units();
        debug_assert_eq!(units, 0, "a token of {units} units came back to a policy that hands out none");
    }

    fn withdraw(&self, queue: &mut FifoQueue, name: (FlowId, Handle, Cost), _kick: &mut impl Kick) -> bool {
        let found = queue.entries.iter().position(|entry| (entry.flow, entry.handle, entry.cost) == name);
        found.and_then(|at| queue.entries.remove(at)).is_some()
    }

    fn set_weight(&self, _flow: FlowId, _weight: Weight) {}

    fn staged(&self, queue: &FifoQueue) -> usize {
        queue.entries.len()
    }
}

impl Registered for Fifo {
    const ABOUT: Descriptor = ABOUT;

    type Options = NoOptions;

    fn make(_options: &PolicyOptions, _topology: &Topology, _flows: &[Weight]) -> Result<Self, PolicyError> {
        Ok(Fifo)
    }
}
