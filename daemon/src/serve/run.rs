//! The server runs: its control plane answers, signals are obeyed, and at the end its clients drain.

use super::bind::Bound;
use super::options::{Failure, Start};
use super::prepare::{Prepared, Working};
use super::take_over::{Committed, Taken};
use super::tracing::{begin_trace, end_trace};
use crate::control::{self, Origin, Running};
use crate::device_errors::DeviceErrorLog;
use crate::in_force::Rates;
use crate::live::{ListenerCounts, Listeners};
use crate::output::Output;
use crate::reconcile::{Change, Reconciler, Runtime};
use crate::report::StatsReport;
use crate::signals::SignalRequest;
use crate::upgrade::{self, Outcome, Serving, Upgrades, leave};
use crate::{devices, ownership, systemd};
use mqfq_blk::engine::{DeviceStats, Engine};
use mqfq_config::text::{counted, shown};
use mqfq_control::Control;
use mqfq_front::front_end::Ending;
use mqfq_observe::routes;
use mqfq_observe::watcher::Watcher;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// The report after a SIGHUP.
#[derive(Serialize)]
struct ReloadReport {
    reloaded: bool,
    changes: Vec<Change>,
    /// Revision of the current config.
    revision: u64,
    error: Option<String>,
}

/// Counters for one reader, whose rates are those since it read last.
struct Counting {
    engine: Arc<Engine>,
    listeners: ListenerCounts,
    rates: Mutex<Rates>,
}

impl Counting {
    fn new(engine: &Arc<Engine>, listeners: &Listeners) -> Counting {
        Counting { engine: engine.clone(), listeners: listeners.counts(), rates: Mutex::default() }
    }

    fn report(&self) -> StatsReport {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        StatsReport::new(&self.engine.stats(), &mut rates, self.listeners.all())
    }
}

/// A server that runs, until [`Server::end`]. Fields go in this order.
pub(super) struct Server<'a> {
    start: Start<'a>,
    control: Option<Control>,
    running: Arc<Running>,
    counts: Counting,
    /// Files that go with the server.
    _files: Vec<Box<dyn Send>>,
    _watcher: Option<Arc<Watcher>>,
    upgrades: Option<Upgrades>,
    serving: Arc<Serving>,
    ending: Ending,
    is_tracing: bool,
    _error_log: DeviceErrorLog,
    engine: Arc<Engine>,
}

impl<'a> Server<'a> {
    /// Puts what was started together, and starts the control plane.
    pub(super) fn new(
        start: Start<'a>,
        prepared: Prepared,
        bound: &mut Bound,
        working: Working,
        taken: Taken,
        committed: Committed,
    ) -> Result<Server<'a>, Failure> {
        let Prepared { text, control, plan, known_files, devices, tenants, exports, caps, .. } = prepared;
        let Working { watch, error_log, errors, engine, .. } = working;
        let Taken { live, serving, ownership, withheld, journal, files, .. } = taken;
        let Committed { running: is_running, watched_caps, watcher, upgrades, replaced } = committed;
        let counts = Counting::new(&engine, &live);
        let counters = Counting::new(&engine, &live);
        let runtime = Runtime {
            open_device: devices::open,
            devices: plan.devices.iter().map(|(slot, _)| slot).zip(devices).collect(),
            exports,
            tenants,
            owners: bound.owners.clone(),
            caps,
            watched_caps,
            listeners: live,
            device_errors: errors,
            watch,
            serving: serving.clone(),
            ownership,
            key_of: ownership::key_of,
            trust: bound.trust.clone(),
            output: start.output.clone(),
        };
        let reconciler = Reconciler::new(plan, engine.clone(), runtime, withheld);
        let sockets = bound.control.take().unwrap_or_default();
        let listen = sockets.iter().map(|socket| socket.address.clone()).collect();
        let origin = Origin { path: start.options.config.clone(), text, control, listen };
        let counters = move || serde_json::to_value(counters.report()).unwrap_or_default();
        let running =
            Running::new(engine.clone(), start.output.clone(), origin, reconciler, known_files, Box::new(counters));
        let running = Arc::new(running);
        journal.into_iter().for_each(|journal| running.keep_journal(journal));
        // Nothing else sets it.
        let _ = is_running.set(Arc::downgrade(&running));
        offer_what_is_erased(&running)?;
        let routes = watcher.iter().flat_map(routes::routes).collect();
        let control = match sockets.is_empty() {
            true => None,
            false => match control::start(sockets, running.clone(), routes) {
                Ok(control) => Some(control),
                // The clients have no other server any more.
                Err(sentence) if replaced.is_some() => {
                    start.output.note(&format!("nobody listens at [control]: {sentence}"));
                    None
                }
                Err(sentence) => return Err(sentence.into()),
            },
        };
        Ok(Server {
            start,
            control,
            running,
            counts,
            _files: files,
            _watcher: watcher,
            upgrades,
            serving,
            ending: bound.shared.ending.clone(),
            is_tracing: false,
            _error_log: error_log,
            engine,
        })
    }

    /// Tells systemd that clients are served.
    pub(super) fn say_ready(&self) {
        let (workers, exports) = (self.engine.workers(), self.running.with_plan(|plan| plan.exports.len()));
        systemd::ready(&format!("{exports} exports, {workers} workers"));
    }

    /// Obeys signals until one asks for the end.
    pub(super) fn run(&mut self) {
        let Start { options, signals, output } = self.start;
        loop {
            match signals.wait() {
                SignalRequest::Stop => return self.store_if_possible(),
                SignalRequest::Upgrade => self.hand_over(),
                SignalRequest::Report => output.report_json(&self.counts.report()),
                SignalRequest::Reload => {
                    systemd::reloading();
                    say_reloaded(&self.running, output);
                    self.say_ready();
                }
                SignalRequest::Trace if self.is_tracing => self.end_trace(),
                SignalRequest::Trace => self.is_tracing = begin_trace(options, &self.engine, output),
            }
        }
    }

    fn end_trace(&mut self) {
        self.is_tracing = end_trace(self.start.options, &self.running, &self.engine, self.start.output);
    }

    /// Ends the process as another one has everything, with these last words.
    fn leave(&self, json: String, text: String) -> ! {
        let output = self.start.output;
        let mut report = || output.report_json(&self.counts.report());
        leave(output, self.start.options.print_stats, &mut report, if output.is_json() { json } else { text })
    }

    /// Leaves everything to the server that systemd starts next, if it has a store.
    fn store_if_possible(&self) {
        if !upgrade::is_there() {
            return;
        }
        // As in `hand_over`.
        self.running.with_plan(|_| match self.serving.keep(&self.engine) {
            Ok(count) => self.leave(
                format!("{{\"stored\":{count}}}\n"),
                format!("stored: {count} descriptors, for the server that systemd starts next\n"),
            ),
            Err(sentence) => self.start.output.note(&format!("not stored: {sentence}")),
        });
    }

    /// Lets a server that is ready take the place of this one.
    fn hand_over(&self) {
        let Some((ready, done)) = self.upgrades.as_ref().and_then(Upgrades::take) else { return };
        let output = self.start.output;
        // The config does not change meanwhile; nor until the end, if another process has everything by then: a change
        // would shut down the sockets that are that one's.
        self.running.with_plan(|_| match upgrade::hand_over(ready, &self.engine, &self.serving) {
            Outcome::Replaced(by) => {
                // First: it listens to its main process alone, and that one knows nothing of this.
                upgrade::forget_the_rest().unwrap_or_else(|sentence| output.note(&sentence));
                by.into_iter().for_each(systemd::is_now);
                let text = "handed over: another process serves now\n".to_owned();
                self.leave("{\"handed_over\":true}\n".to_owned(), text);
            }
            Outcome::RolledBack(sentence) => output.note(&format!("not replaced: {sentence}")),
        });
        drop(done);
    }

    /// Drains the clients and ends.
    ///
    /// # Errors
    /// One sentence: a device has not ended its requests, or clients have not taken their replies.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        let Start { options, signals, output } = self.start;
        systemd::stopping();
        signals.stop_waits_no_longer();
        if self.is_tracing {
            self.end_trace();
        }
        if output.is_json() {
            output.report("{\"draining\":true}\n");
        }
        self.running.drains();
        self.ending.begin();
        let drain_s = self.running.with_plan(|plan| plan.server.drain_s);
        let all_answered = drain(&self.engine, drain_s, output);
        drop(self.control.take());
        if options.print_stats {
            output.report_json(&self.counts.report());
        }
        if all_answered {
            return Ok(());
        }
        let stats = self.engine.stats();
        let stuck = stats.devices.iter().find(|device| requests_left(device) > 0);
        // A device that does not answer keeps the process and its files: another server may have the rest at once.
        self.running.close_idle_devices();
        // Its workers would wait for requests under way: the end of the process does not.
        std::mem::forget(self.engine);
        let pending = |device: &DeviceStats| {
            let (name, left) = (&device.name, requests_left(device));
            format!("device {name} has not ended {left} requests within twice {drain_s} s")
        };
        let late = || format!("some clients did not take their replies within {drain_s} s and were disconnected");
        Err(stuck.map_or_else(late, pending).into())
    }
}

/// Between two looks at growth.
const GROWTH_LOOK: Duration = Duration::from_secs(1);

/// Between two looks at erases.
const ERASE_LOOK: Duration = Duration::from_millis(100);

/// Starts a thread that offers exports whose bytes have been erased, and shows how far others are; and that has exports
/// grow with their backings.
fn offer_what_is_erased(running: &Arc<Running>) -> Result<(), String> {
    let (erases, running) = (running.erases(), Arc::downgrade(running));
    let look = move || {
        loop {
            // Meanwhile another thread may have seen a backing grow.
            while !erases.wait(GROWTH_LOOK) {
                match running.upgrade() {
                    Some(running) => running.look_at_growth(),
                    None => return,
                }
            }
            while running.upgrade().is_some_and(|running| running.look()) {
                std::thread::park_timeout(ERASE_LOOK);
            }
        }
    };
    let thread = std::thread::Builder::new().name("mqfq-erase".into()).spawn(look);
    thread.map(drop).map_err(|error| format!("cannot start a thread: {}", mqfq_report::plain(&error)))
}

/// Reads the config again, and reports the result. The server goes on in any case.
fn say_reloaded(running: &Running, output: &Output) {
    let (changes, revision, error) = running.reload_for_signal();
    if let Some(error) = &error {
        output.note(&format!("not reloaded: {error}"));
    }
    if output.is_json() {
        return output.report_json(&ReloadReport { reloaded: error.is_none(), changes, revision, error });
    }
    let mut text: String = changes.iter().map(|change| format!("reloaded: {}\n", change.sentence())).collect();
    if changes.is_empty() && error.is_none() {
        text += "reloaded: nothing is different\n";
    }
    output.report(text);
}

/// Time from the begin of a drain to a sentence about it.
const DRAIN_TOLD: Duration = Duration::from_secs(1);

/// Requests that a device has not ended.
pub fn requests_left(device: &DeviceStats) -> u64 {
    device.hctxs.iter().map(|hctx| hctx.in_flight + hctx.staged).sum()
}

/// Drains, and says what it waits for after [`DRAIN_TOLD`]. Returns whether all was answered within `drain_s`.
pub fn drain(engine: &Engine, drain_s: u64, output: &Output) -> bool {
    let (over, is_over) = mpsc::channel::<()>();
    let tell = move || {
        let is_long = is_over.recv_timeout(DRAIN_TOLD) == Err(mpsc::RecvTimeoutError::Timeout);
        // At the end of that time another sentence says what is left.
        if is_long && drain_s > DRAIN_TOLD.as_secs() {
            let requests = |device: &DeviceStats| {
                let left = usize::try_from(requests_left(device)).unwrap_or(usize::MAX);
                (left > 0).then(|| format!("{} of device {}", counted(left, "request"), shown(&device.name)))
            };
            let mut what: Vec<String> = engine.stats().devices.iter().filter_map(requests).collect();
            what.push("clients to take their replies".to_owned());
            output.note(&format!("draining: waits up to {drain_s} s for {}", what.join(", ")));
        }
    };
    std::thread::scope(|scope| {
        // Without a thread nothing is said.
        let _ = std::thread::Builder::new().name("mqfq-draining".into()).spawn_scoped(scope, tell);
        let all_answered = engine.drain(Duration::from_secs(drain_s));
        drop(over);
        all_answered
    })
}
