//! Policy `d2fq`: device-direct fair queueing.
//!
//! Source: Woo, Ahn, Lee, Jeong, "D2FQ: Device-Direct Fair Queueing for NVMe SSDs", FAST 2021.

mod options;

pub use options::D2fqOptions;

use super::{ClassWeights, DispatchToken, Done, Entry, Kick, Pick, Policy, PolicyOptions, QueueClass};
use crate::cost::Cost;
use crate::flow::{FlowId, Weight};
use crate::topology::HctxId;
use crate::vtime::VTime;

/// See the file's text.
pub struct D2fq {}

/// One worker's part.
pub struct D2fqQueue {}

impl D2fq {
    /// The policy for so many queues, and one flow per weight.
    pub fn new(options: &PolicyOptions, hctx_count: usize, flows: &[Weight]) -> D2fq {
        let _ = (options, hctx_count, flows);
        D2fq {}
    }

    /// Virtual time of the flow that holds it.
    pub fn global_vtime(&self) -> VTime {
        VTime::ZERO
    }
}

impl Policy for D2fq {
    type Queue = D2fqQueue;

    fn open_queue(&self, _hctx: HctxId, _capacity_requests: usize) -> D2fqQueue {
        D2fqQueue {}
    }

    fn submit(&self, _queue: &mut D2fqQueue, _entry: Entry, _now_ns: u64, _kick: &mut impl Kick) {
        unreachable!("a direct policy stages nothing")
    }

    fn pick(&self, _queue: &mut D2fqQueue, _now_ns: u64, _kick: &mut impl Kick) -> Pick {
        Pick::Idle
    }

    fn complete(&self, _queue: &mut D2fqQueue, _done: Done, token: DispatchToken, _now_ns: u64, _kick: &mut impl Kick) {
        let units = token.into_units();
        debug_assert_eq!(units, 0, "a token of {units} units came back to a policy that hands out none");
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn class_of(&self, _queue: &D2fqQueue, _flow: FlowId, _now_ns: u64) -> QueueClass {
        QueueClass::High
    }

    fn dispatched(&self, _queue: &mut D2fqQueue, _flow: FlowId, _cost: Cost, _class: QueueClass, _now_ns: u64) {}

    fn adjust(&self, _queue: &mut D2fqQueue, _now_ns: u64) -> Option<ClassWeights> {
        None
    }

    fn set_weight(&self, _flow: FlowId, _weight: Weight) {}

    fn staged(&self, _queue: &D2fqQueue) -> usize {
        0
    }
}
