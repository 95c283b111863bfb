//! What one context counts and records: of itself, of each flow, and of each request while a trace is on.

use crate::stats::{FlowStats, HctxStats};
use crate::trace::{Recorder, TraceEvent};
use mqfq_sched::flow::FlowId;

/// One context's counters.
pub(super) struct Counters {
    pub(super) stats: HctxStats,
    /// Since when `stats` counts the time that commands spend on the device.
    accounted_ns: u64,
    /// By flow; 100 KB each, so they come into being with a flow's first completion here.
    pub(super) flows: Vec<Option<Box<FlowStats>>>,
    pub(super) trace: Option<Box<Recorder>>,
}

impl Counters {
    /// Nothing counted of so many flows.
    pub(super) fn new(flows: usize) -> Counters {
        Counters { stats: HctxStats::default(), accounted_ns: 0, flows: vec![None; flows], trace: None }
    }

    /// Counts the time since the last call towards the `in_flight` commands that were on the device all the while.
    pub(super) fn account(&mut self, in_flight: u64, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.accounted_ns);
        self.accounted_ns = now_ns;
        self.stats.busy_ns += if in_flight > 0 { elapsed_ns } else { 0 };
        self.stats.in_flight_ns += in_flight * elapsed_ns;
    }

    /// The counters of a flow that has completed a request, unless flows are not counted.
    #[inline(always)]
    pub(super) fn of(&mut self, flow: FlowId) -> Option<&mut FlowStats> {
        Some(self.flows.get_mut(flow.0 as usize)?.get_or_insert_with(first_completion))
    }

    /// Records an event of the context, if a trace is on.
    #[inline]
    pub(super) fn mark(&mut self, event: TraceEvent, now_ns: u64) {
        if let Some(trace) = &mut self.trace {
            trace.mark(event, now_ns);
        }
    }
}

#[cold]
fn first_completion() -> Box<FlowStats> {
    Box::default()
}
