//! Counters and trace of one context: of itself, of each flow, and of each request while a trace is on.

use crate::counters::{Counters, FlowCounters, HctxCounters};
use crate::trace::{Recorder, TraceEvent};
use mqfq_sched::flow::FlowId;
use std::sync::Arc;

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
