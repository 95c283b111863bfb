//! State of all paths of a context: the policy, the table of requests, the commands on the device, the counters.
//!
//! A path decides when a request goes to the device. How it is admitted (`admit.rs`), becomes a command (`dispatch.rs`)
//! and completes (`complete.rs`) is the same on every path with a block layer.

use super::admit::Charges;
use super::dispatch::Commands;
use super::fair_intake::FairIntake;
use super::parts::Splitting;
use super::path_options::{HwCtxOptions, capacity_requests};
use super::timeout::Expiry;
use super::write_cost_meter::WriteCostMeter;
use crate::counters::{Counters, FlowCounters, HctxCounters};
use crate::stage::Staging;
use crate::table::RequestTable;
use crate::trace::{Recorder, TraceEvent};
use crate::tuning::Meter;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::Policy;
use mqfq_sched::topology::HctxId;
use std::sync::Arc;

/// State common to all paths of a context.
pub(super) struct RequestPath<P: Policy> {
    pub(super) id: HctxId,
    pub(super) policy: Arc<P>,
    pub(super) queue: P::Queue,
    pub(super) charges: Charges,
    pub(super) staging: Staging,
    pub(super) requests: RequestTable,
    pub(super) commands: Commands,
    /// Nothing if no request is ever cut.
    pub(super) splitting: Option<Box<Splitting>>,
    /// Not 0: a completion takes the slow path. Parts under way, and one more while every end is counted.
    pub(super) slow_completions: usize,
    pub(super) expiry: Expiry,
    pub(super) intake: FairIntake,
    /// Flows that were refused, have room, and are to be told.
    pub(super) room: Vec<FlowId>,
    pub(super) counters: ContextCounters,
    /// Measurements for figures that are found while the policy runs; off if the figures are numbers.
    pub(super) meter: Meter,
    /// `None`: a write is charged as the cost model says, for good.
    pub(super) write_cost: Option<WriteCostMeter>,
}

impl<P: Policy> RequestPath<P> {
    pub(super) fn new(options: HwCtxOptions<P>) -> RequestPath<P> {
        let HwCtxOptions { id, policy, device, queue_depth, limits, cost, path } = options;
        let staged_max = capacity_requests(&limits);
        let staging = Staging::new(&limits);
        let places = staged_max + queue_depth as usize;
        let splitting = Splitting::new(path.split, path.block_bytes, places);
        RequestPath {
            id,
            queue: policy.open_queue(id, staged_max),
            policy,
            charges: Charges::new(&cost, path.async_writes),
            requests: RequestTable::new(places),
            commands: Commands::new(device, queue_depth),
            splitting,
            slow_completions: 0,
            expiry: Expiry::new(&path),
            intake: FairIntake::default(),
            room: Vec::with_capacity(staging.flows()),
            staging,
            counters: ContextCounters::new(limits.len()),
            meter: Meter::off(),
            write_cost: None,
        }
    }
}

// Counters and trace of one context: of itself, of each flow, and of each request while a trace is on.

pub(super) struct ContextCounters {
    /// For any thread to read.
    pub(super) published: Arc<Counters>,
    /// End of the time that is counted as spent by commands on the device, ns.
    accounted_ns: u64,
    /// Time since which the policy holds back the staged requests, and why.
    held_back: Option<(TraceEvent, u64)>,
    pub(super) trace: Option<Box<Recorder>>,
}

impl ContextCounters {
    pub(super) fn new(flows: usize) -> ContextCounters {
        ContextCounters { published: Arc::new(Counters::new(flows)), accounted_ns: 0, held_back: None, trace: None }
    }

    #[inline(always)]
    pub(super) fn stats(&self) -> &HctxCounters {
        &self.published.stats
    }

    /// Counts the time since the last call towards the `in_flight` commands that were on the device all the while.
    pub(super) fn account(&mut self, in_flight: u64, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.accounted_ns);
        self.accounted_ns = now_ns;
        if in_flight > 0 {
            self.stats().busy_ns.add(elapsed_ns);
            self.stats().in_flight_ns.add(in_flight * elapsed_ns);
        }
    }

    /// The counters of a flow, unless flows are not counted.
    #[inline(always)]
    pub(super) fn of(&self, flow: FlowId) -> Option<&FlowCounters> {
        self.published.flow(flow)
    }

    /// The policy holds back the staged requests, for this reason, until [`ContextCounters::end_hold_back`].
    pub(super) fn hold_back(&mut self, why: TraceEvent, now_ns: u64) {
        let stats = self.stats();
        if why == TraceEvent::Throttled { &stats.throttled } else { &stats.no_token }.add(1);
        self.held_back = Some((why, now_ns));
        self.mark(why, now_ns);
    }

    /// The policy is asked again.
    #[cold]
    pub(super) fn end_hold_back(&mut self, now_ns: u64) {
        let Some((why, since_ns)) = self.held_back.take() else { return };
        let stats = self.stats();
        let sum = if why == TraceEvent::Throttled { &stats.throttled_ns } else { &stats.no_token_ns };
        sum.add(now_ns.saturating_sub(since_ns));
    }

    /// Records an event of the context, if a trace is on.
    #[inline]
    pub(super) fn mark(&mut self, event: TraceEvent, now_ns: u64) {
        if let Some(trace) = &mut self.trace {
            trace.mark(event, now_ns);
        }
    }
}
