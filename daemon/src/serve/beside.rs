//! What a server keeps and does beside serving: its journal, the end of erases, and traces.

use super::*;

/// The journal of changes that are not saved; without one the server says so and goes on.
pub(super) fn open_journal(config: &Path, output: &Output) -> Option<Journal> {
    let folder = std::env::var(journal::STATE_DIRECTORY).ok();
    let path = journal::path_of(config, folder.as_deref());
    let opened = files::open_own(&path).map_err(|why| format!("cannot open {}: {why}", shown(&path.to_string_lossy())));
    let without = |why: String| output.note(&format!("unsaved changes are in no journal, {why}"));
    opened.and_then(Journal::new).map_err(without).ok()
}

/// Between two looks at erases.
const ERASE_LOOK: Duration = Duration::from_millis(100);

/// Starts a thread that offers exports whose bytes have been erased, and shows how far others are.
pub(super) fn offer_what_is_erased(running: &Arc<Running>) -> Result<(), String> {
    let (erases, running) = (running.erases(), Arc::downgrade(running));
    let look = move || {
        loop {
            erases.wait();
            while running.upgrade().is_some_and(|running| running.look()) {
                std::thread::park_timeout(ERASE_LOOK);
            }
        }
    };
    let thread = std::thread::Builder::new().name("mqfq-erase".into()).spawn(look);
    thread.map(drop).map_err(|error| format!("cannot start a thread: {}", plain(&error)))
}

/// True: it has begun.
pub(super) fn begin_trace(options: &ServeOptions, engine: &Engine, output: &Output) -> bool {
    engine.start_trace(options.trace_requests);
    if output.is_json() {
        output.report_json(&TraceReport { tracing: true, ..TraceReport::default() });
    } else {
        output.report(format!("tracing: SIGUSR2 ends it and writes {}\n", shown(&options.trace.to_string_lossy())));
    }
    true
}

/// False: it has ended.
pub(super) fn end_trace(options: &ServeOptions, running: &Running, engine: &Engine, output: &Output) -> bool {
    let traces = engine.take_trace();
    // By the engine's numbers, of which some may be nobody's.
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
