//! A policy with the time that the layers around it take, request by request.
//!
//! The cost of a request above and below the policy is a parameter of the machine; the place where it is spent decides
//! which cores meet on a cache line. In the real loop it is spent between the policy's operations, one request after
//! the other, and so here.

use crate::coherence::{Ps, ps};
use crate::cores::core;
use crate::outcome::{DepthAt, WindowAt};
use crate::scenario::Latencies;
use mqfq_blk_watched::tuning::Tuning;
use mqfq_blkmq_watched::BlockLayer;
use mqfq_sched_watched::class::PriorityClass;
use mqfq_sched_watched::cost::Cost;
use mqfq_sched_watched::flow::{FlowId, Weight};
use mqfq_sched_watched::policy::{
    ClassWeights, DirectPolicy, DispatchToken, Done, Entry, Kick, Pick, Policy, QueueClass, WindowTerms,
};
use mqfq_sched_watched::topology::HctxId;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Flows and interval to count.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Flows.
    pub flows: usize,
    /// From here, ns.
    pub from_ns: u64,
    /// To here, ns.
    pub to_ns: u64,
}

/// A policy, and for each request the time that the layers around it take.
pub struct Timed<P> {
    policy: Arc<P>,
    counted: Counted,
    /// By flow: bytes by class. What the simulator counts costs the virtual cores nothing.
    class_bytes: Box<[[AtomicU64; 3]]>,
    submit: Ps,
    dispatch: Ps,
    complete: Ps,
    depth: Mutex<DepthLog>,
}

/// Record of a D and a T that are found.
#[derive(Default)]
struct DepthLog {
    tuning: Option<Arc<Tuning>>,
    has_changed: bool,
    chosen: Vec<DepthAt>,
    windows: Vec<WindowAt>,
}

impl<P: Policy> Timed<P> {
    /// A policy on a machine. What a dispatch takes is spent elsewhere in the block layer `sq`, under its one lock, and
    /// is what `low-latency` leaves out.
    pub fn new(policy: Arc<P>, latency: &Latencies, layer: BlockLayer, counted: Counted) -> Timed<P> {
        let Latencies { submit_ns, dispatch_ns, complete_ns, .. } = *latency;
        let is_elsewhere = matches!(layer, BlockLayer::Sq | BlockLayer::LowLatency);
        Timed {
            policy,
            counted,
            class_bytes: (0..counted.flows).map(|_| Default::default()).collect(),
            submit: ps(submit_ns),
            dispatch: if is_elsewhere { 0 } else { ps(dispatch_ns) },
            complete: ps(complete_ns),
            depth: Mutex::default(),
        }
    }

    /// From now on writes down what `tuning` chooses, which tunes this policy.
    pub fn watch(&self, tuning: Option<Arc<Tuning>>) {
        self.log().tuning = tuning;
    }

    /// Choices of D, in the order of time; empty if D is a number.
    pub fn depths(&self) -> Vec<DepthAt> {
        std::mem::take(&mut self.log().chosen)
    }

    /// Choices of T, in the order of time; empty if T is a number.
    pub fn windows(&self) -> Vec<WindowAt> {
        std::mem::take(&mut self.log().windows)
    }

    fn log(&self) -> MutexGuard<'_, DepthLog> {
        self.depth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another D or T was put in force: by now the controller can be asked whether it has chosen it.
    fn log_depth(&self, now_ns: u64) {
        let tuning = {
            let mut log = self.log();
            if !std::mem::take(&mut log.has_changed) {
                return;
            }
            log.tuning.clone()
        };
        // All virtual cores run on one thread, and another may go on at any access to a watched word: a core that waits
        // for it here, or holds the log meanwhile, waits for ever.
        let in_force = tuning.and_then(|tuning| tuning.try_in_force(now_ns));
        let mut log = self.log();
        let Some(in_force) = in_force else {
            log.has_changed = true;
            return;
        };
        if let Some(depth) = in_force.depth.map(|state| state.chosen)
            && log.chosen.last().is_none_or(|last| last.depth != depth)
        {
            log.chosen.push(DepthAt { at_ns: now_ns, depth });
        }
        if let Some(window_bytes) = in_force.window.map(|state| state.window_bytes)
            && log.windows.last().is_none_or(|last| last.window_bytes != window_bytes)
        {
            log.windows.push(WindowAt { at_ns: now_ns, window_bytes });
        }
    }

    /// By flow: bytes that went to the high, medium and low queues in the time that counts.
    pub fn class_bytes(&self) -> Vec<[u64; 3]> {
        // Relaxed: all on one thread.
        let read = |by_class: &[AtomicU64; 3]| by_class.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
        self.class_bytes.iter().map(read).collect()
    }
}

impl<P: Policy> Policy for Timed<P> {
    type Queue = P::Queue;
    type Direct<'a>
        = TimedDirect<'a, P>
    where
        Self: 'a;

    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> P::Queue {
        self.policy.open_queue(hctx, capacity_requests)
    }

    fn submit(&self, queue: &mut P::Queue, entry: Entry, now_ns: u64, kick: &mut impl Kick) {
        core::compute(self.submit);
        self.policy.submit(queue, entry, now_ns, kick);
    }

    fn pick(&self, queue: &mut P::Queue, now_ns: u64, kick: &mut impl Kick) -> Pick {
        let pick = self.policy.pick(queue, now_ns, kick);
        if matches!(pick, Pick::Dispatch(_)) && self.dispatch > 0 {
            core::compute(self.dispatch);
        }
        pick
    }

    fn complete(&self, queue: &mut P::Queue, done: Done, token: DispatchToken, now_ns: u64, kick: &mut impl Kick) {
        core::compute(self.complete);
        self.log_depth(now_ns);
        self.policy.complete(queue, done, token, now_ns, kick);
    }

    fn pause(&self, queue: &mut P::Queue, kick: &mut impl Kick) {
        self.policy.pause(queue, kick);
    }

    fn as_direct(&self) -> Option<TimedDirect<'_, P>> {
        self.policy.as_direct().map(|direct| TimedDirect { timed: self, direct })
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) {
        self.policy.set_weight(flow, weight);
    }

    fn set_class(&self, flow: FlowId, class: PriorityClass) {
        self.policy.set_class(flow, class);
    }

    fn set_window(&self, terms: &WindowTerms) {
        self.log().has_changed = true;
        self.policy.set_window(terms);
    }

    fn window_terms(&self) -> Option<WindowTerms> {
        self.policy.window_terms()
    }

    fn set_depth(&self, from: HctxId, depth: u32, kick: &mut impl Kick) -> bool {
        self.log().has_changed = true;
        self.policy.set_depth(from, depth, kick)
    }

    fn is_out_of_units(&self) -> bool {
        self.policy.is_out_of_units()
    }

    fn staged_flows(&self, queue: &P::Queue) -> usize {
        self.policy.staged_flows(queue)
    }

    fn staged(&self, queue: &P::Queue) -> usize {
        self.policy.staged(queue)
    }
}

/// A [`Timed`] policy that is direct.
pub struct TimedDirect<'a, P: Policy + 'a> {
    timed: &'a Timed<P>,
    direct: P::Direct<'a>,
}

// By hand: derived, they would ask that the policy itself can be copied.
impl<P: Policy> Clone for TimedDirect<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Policy> Copy for TimedDirect<'_, P> {}

impl<P: Policy> DirectPolicy<P::Queue> for TimedDirect<'_, P> {
    fn class_of(self, queue: &P::Queue, flow: FlowId, now_ns: u64) -> QueueClass {
        core::compute(self.timed.submit);
        self.direct.class_of(queue, flow, now_ns)
    }

    fn dispatched(self, queue: &mut P::Queue, flow: FlowId, cost: Cost, class: QueueClass, now_ns: u64) {
        if (self.timed.counted.from_ns..self.timed.counted.to_ns).contains(&now_ns) {
            let bytes = &self.timed.class_bytes[flow.0 as usize][class.index()];
            // Relaxed: all on one thread.
            bytes.fetch_add(cost.0, Ordering::Relaxed);
        }
        self.direct.dispatched(queue, flow, cost, class, now_ns);
        if self.timed.dispatch > 0 {
            core::compute(self.timed.dispatch);
        }
    }

    fn ended(self, queue: &mut P::Queue, flow: FlowId, cost: Cost, now_ns: u64) {
        core::compute(self.timed.complete);
        self.direct.ended(queue, flow, cost, now_ns);
    }

    fn adjust(self, queue: &mut P::Queue, now_ns: u64) -> Option<ClassWeights> {
        self.direct.adjust(queue, now_ns)
    }
}
