//! A trace of requests: SIGUSR2 begins it, and the next one ends it.

use super::options::ServeOptions;
use crate::config::Plan;
use crate::control::Running;
use crate::output::Output;
use crate::trace::{self, TracedDevice};
use mqfq_blk::engine::Engine;
use mqfq_config::text::shown;
use serde::Serialize;

/// Said when a trace begins, and when it has ended.
#[derive(Serialize, Default)]
struct TraceReport {
    tracing: bool,
    /// The file that was written.
    trace: Option<String>,
    /// Requests in it.
    requests: Option<u64>,
    /// Requests that later ones overwrote.
    requests_lost: Option<u64>,
}

/// Begins a trace: true.
pub(super) fn begin_trace(options: &ServeOptions, engine: &Engine, output: &Output) -> bool {
    engine.start_trace(options.trace_requests);
    if output.is_json() {
        output.report_json(&TraceReport { tracing: true, ..TraceReport::default() });
    } else {
        output.report(format!("tracing: SIGUSR2 ends it and writes {}\n", shown(&options.trace.to_string_lossy())));
    }
    true
}

/// Writes the trace, which ends: false.
pub(super) fn end_trace(options: &ServeOptions, running: &Running, engine: &Engine, output: &Output) -> bool {
    let traces = engine.take_trace();
    // By the engine's numbers, of which some may be unused.
    let traced = |plan: &Plan| {
        let mut devices = vec![TracedDevice { name: String::new(), tenants: Vec::new() }; plan.devices.places()];
        for (slot, device) in plan.devices.iter() {
            let mut tenants = vec![String::new(); device.flows.places()];
            device.flows.iter().for_each(|(flow, plan)| tenants[flow.place()] = plan.name());
            devices[slot.place()] = TracedDevice { name: device.config.name.clone(), tenants };
        }
        devices
    };
    let devices: Vec<TracedDevice> = running.with_plan(traced);
    let path = options.trace.to_string_lossy();
    match trace::write(&options.trace, &devices, &traces, engine.clock().now_ns()) {
        Err(why) => {
            output.note(&format!("cannot write the trace to {}: {why}", shown(&path)));
            if output.is_json() {
                output.report_json(&TraceReport::default());
            }
        }
        Ok(trace::Written { requests, lost }) if output.is_json() => {
            let (trace, requests, requests_lost) = (Some(path.into_owned()), Some(requests), Some(lost));
            output.report_json(&TraceReport { tracing: false, trace, requests, requests_lost });
        }
        Ok(trace::Written { requests, lost }) => output.report(format!(
            "traced: {requests} requests in {} ({lost} earlier ones were overwritten), for ui.perfetto.dev or chrome://tracing\n",
            shown(&path)
        )),
    }
    false
}
