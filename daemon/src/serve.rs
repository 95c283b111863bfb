//! `mqfq serve` and `mqfq check`: from a config to running listeners, and to an orderly end.
//!
//! ```text
//!  config ─▶ plan ─▶ devices, export tables ─▶ listeners bound ─▶ engine ─▶ ready ─▶ signals ─▶ drain ─▶ end
//!           └─ check ends here ──────────┘    └ nothing is touched before this point
//! ```
//! With `--json` each thing that happens is one object on a line of its own: `{"ready":true,…}`, then the counters
//! (`{"devices":…}`) for each SIGUSR1, `{"tracing":…}` for each SIGUSR2, `{"reloaded":…}` for each SIGHUP,
//! `{"draining":true}`, and the counters once more with `--stats`.

mod beside;

use crate::config::caps::WatchedCaps;
use crate::config::control::Save;
use crate::config::family::Relative;
use crate::config::{Config, ConfigError, ControlConfig, DevicePlan, LiveCaps, Plan, RealFiles, family};
use crate::connection_log::connection_log;
use crate::control::{self, Origin, Running};
use crate::draining;
use crate::in_force::{self, Rates};
use crate::live::{self, Exports, ListenerCounts, Listeners, MakeOptions, Owners, Tenants, Trust};
use crate::log_format::{About, Level, LogFormat};
use crate::output::{LAST_LINES_WAIT, Output};
use crate::ownership::record::{self, Fault};
use crate::ownership::{self, Ownership, Store};
use crate::reconcile::{self, Change, Reconciler, Things};
use crate::report::StatsReport;
use crate::signals::{Asked, Signals, raise_open_files_limit};
use crate::trace::{self, TracedDevice};
use crate::trouble::{TroubleCounts, TroubleTeller};
use crate::upgrade::{Arrival, Boarded, Luggage, Outcome, Replaced, ReplacedReport, Serving, Upgrades, leave};
use crate::{devices, files, observe, plain, privilege, systemd, upgrade, watch};
use beside::{begin_trace, end_trace};
use mqfq_blk::device::Device;
use mqfq_blk::engine::{DeviceStats, Engine, EngineOptions, Settled};
use mqfq_blk::probe::Finding;
use mqfq_blk::slots::Slot;
use mqfq_config::text::shown;
use mqfq_control::journal::{self, Journal};
use mqfq_control::{Listen, config_file};
use mqfq_front::FRONT_ENDS;
use mqfq_front::export::ExportTable;
use mqfq_front::front_end::{Ending, ExportAddress, ListenOptions, Listener};
use mqfq_front::inherited::Inherited;
use mqfq_front::socket::SocketAddress;
use mqfq_observe::routes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak, mpsc};
use std::time::Duration;

mod check;

pub use check::check;

/// What `serve` says when it is ready, and `check` when it would be.
#[derive(Serialize)]
struct ReadyReport {
    ready: bool,
    pid: u32,
    workers: usize,
    devices: Vec<DeviceReady>,
    exports: Vec<ExportReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<ReplacedReport>,
}

/// What was found of a device before the first request.
#[derive(Serialize)]
struct DeviceReady {
    name: String,
    /// What it runs.
    policy: &'static str,
    /// With which D and T it begins, as a person reads it; `null`: the policy has neither.
    in_force: Option<String>,
    /// Why that is not the policy that the config names.
    fell_back: Option<String>,
    /// `None`: nothing was to be found out, or nothing was found.
    wrr: Option<WrrReport>,
    /// Who is in which group, from the top.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<Relative>,
}

/// What weighted round robin does on a device.
#[derive(Serialize)]
struct WrrReport {
    has_effect: bool,
    /// What high to low weights ask for, and what came of it; the same with equal weights.
    expected_ratio: f64,
    weighted_ratio: f64,
    equal_ratio: f64,
    requests: u64,
    elapsed_ns: u64,
}

impl From<Finding> for WrrReport {
    fn from(finding: Finding) -> WrrReport {
        let Finding { expected_ratio, weighted_ratio, equal_ratio, requests, elapsed_ns, .. } = finding;
        let has_effect = finding.has_effect();
        WrrReport { has_effect, expected_ratio, weighted_ratio, equal_ratio, requests, elapsed_ns }
    }
}

#[derive(Serialize)]
struct ExportReport {
    name: String,
    device: String,
    policy: &'static str,
    /// `relaxed` or `exact`; this and the next four: `null` for a policy that has but one form.
    form: Option<&'static str>,
    quantum_bytes: Option<u64>,
    lease_bytes: Option<u64>,
    token_batch: Option<u32>,
    /// Requests of a worker on the device from which on it gives tokens to others.
    token_share: Option<u32>,
    tenant: String,
    weight: u16,
    /// The weight is the export's among those of its tenant.
    #[serde(skip)]
    is_flow: bool,
    class: &'static str,
    offset_bytes: u64,
    size_bytes: u64,
    read_only: bool,
    /// By front end.
    #[serde(flatten)]
    addresses: BTreeMap<&'static str, Vec<String>>,
}

/// How a device is opened: as [`devices::open`] or [`devices::open_for_check`] do.
type Open<'a> = &'a mut dyn FnMut(&DevicePlan, &mut Vec<String>) -> Result<Arc<dyn Device>, ConfigError>;

/// How a server runs, besides what its config says.
pub struct ServeOptions {
    /// The config.
    pub config: PathBuf,
    /// It takes the place of the server that runs.
    pub replace: bool,
    /// Changes that the server which runs has, and its config file does not, may be lost.
    pub discard_unsaved: bool,
    /// JSON on stdout.
    pub json: bool,
    /// The form of sentences on stderr.
    pub log_format: LogFormat,
    /// Print the counters at the end.
    pub print_stats: bool,
    /// Where a trace is written.
    pub trace: PathBuf,
    /// Requests that it keeps of each worker on each device.
    pub trace_requests: usize,
}

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

/// Said after a SIGHUP.
#[derive(Serialize)]
struct ReloadReport {
    reloaded: bool,
    changes: Vec<Change>,
    /// Of what is configured now.
    revision: u64,
    error: Option<String>,
}

/// Everything that can be made without touching a socket.
struct Prepared {
    text: String,
    control: Option<ControlConfig>,
    plan: Plan,
    devices: Vec<Arc<dyn Device>>,
    tables: Vec<(ExportAddress, Arc<ExportTable>)>,
    workers: usize,
    tenants: Tenants,
    exports: Exports,
    caps: LiveCaps,
}

/// Why there is no server (any more), other than that it was asked to end.
enum Failure {
    /// One sentence: the config, a device, a socket, or clients that did not let it drain in time.
    Sentence(String),
    /// SIGTERM or SIGINT came before it was ready.
    Interrupted,
}

impl From<String> for Failure {
    fn from(sentence: String) -> Failure {
        Failure::Sentence(sentence)
    }
}

/// Looks between two steps whether the start is to go on.
type GoOn<'a> = &'a dyn Fn() -> Result<(), Failure>;

/// Runs a server until a signal ends it; its exit status. What there is to say was said.
pub fn serve(options: &ServeOptions) -> ExitCode {
    // Before any thread exists: they inherit the mask.
    let signals = Signals::block();
    let output = match Output::of_server(options.json, options.log_format) {
        Ok(output) => output,
        Err(sentence) => return crate::fail(&sentence, 1),
    };
    output.end_process_on_panic();
    let result = serve_until_asked(options, &signals, &output);
    match &result {
        Ok(()) => {}
        Err(Failure::Sentence(sentence)) => output.say(Level::Error, About::default(), sentence),
        Err(Failure::Interrupted) => output.note("a signal ended it before it was ready"),
    }
    output.finish(Some(LAST_LINES_WAIT));
    if matches!(result, Err(Failure::Interrupted)) {
        // It is still pending: this ends the process as if it had not been blocked, now that nothing is left behind.
        signals.stop_waits_no_longer();
    }
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn serve_until_asked(options: &ServeOptions, signals: &Signals, output: &Output) -> Result<(), Failure> {
    let mut arrival = Arrival::default();
    let result = start_and_serve(options, signals, output, &mut arrival);
    match &result {
        Err(Failure::Sentence(sentence)) => arrival.give_up(sentence),
        Err(Failure::Interrupted) => arrival.give_up("a signal ended the new process"),
        Ok(()) => {}
    }
    result
}

fn start_and_serve(
    options: &ServeOptions,
    signals: &Signals,
    output: &Output,
    arrival: &mut Arrival,
) -> Result<(), Failure> {
    let &ServeOptions { ref config, print_stats, .. } = options;
    let mut passed = systemd::sockets()?;
    raise_open_files_limit();
    let go_on = || if signals.stop_is_pending() { Err(Failure::Interrupted) } else { Ok(()) };
    let read = Read::config(config, &go_on)?;
    let upgrade = read.plan.server.upgrade.as_ref();
    *arrival = Arrival::new(options.replace, options.discard_unsaved, upgrade, &mut passed)?;
    let activated = Arc::new(Inherited::new(passed));
    let open: Open<'_> = &mut |plan, warnings| {
        let file = arrival.file(&plan.config.name);
        devices::open_with(plan, file, warnings)
    };
    let prepared = Prepared::new(read, open, output, &go_on)?;
    prepared.could_serve(arrival, &activated)?;
    let server = prepared.plan.server.clone();
    let trust = Trust::new(&prepared.plan.trust);
    let mut taken_sockets = Vec::new();
    let mut inherited =
        |address: &SocketAddress| arrival.socket(address).inspect(|_| taken_sockets.push(address.clone()));
    let control_sockets = prepared
        .control
        .as_ref()
        .map(|control| control::listen(control, trust.control(), &mut inherited))
        .transpose()?;
    let upgrade_socket =
        server.upgrade.as_ref().map(|at| upgrade::listen(at, 0o600, 8, inherited(at)).map(|listening| (at, listening)));
    let upgrade_socket = upgrade_socket.transpose()?;
    let ending = Ending::default();
    let listen_options = ListenOptions {
        connections_max: server.connections_max,
        socket_mode: server.socket_mode,
        handshake_timeout: Duration::from_secs(server.handshake_s),
        stall_timeout: Duration::from_secs(server.stall_s),
        bytes_in_flight_max: server.connection_memory_bytes,
        inherited: activated.clone(),
        workers: prepared.workers,
        replaces: options.replace,
        ending: ending.clone(),
        ..ListenOptions::default()
    };
    let since = listen_options.since.clone();
    let owners = Owners::new(&prepared.plan);
    let at_address = trust.clone();
    let (notes, whose) = (output.clone(), owners.clone());
    let listen_options: MakeOptions = Arc::new(move |address: &ExportAddress| {
        let (notes, whose, at) = (notes.clone(), whose.clone(), address.to_string());
        let log = connection_log(move |line, export| {
            let tenant = export.and_then(|export| whose.of(export));
            let tenant = tenant.as_deref();
            notes.say(Level::Notice, About { tenant, export, address: Some(&at), ..About::default() }, line);
        });
        ListenOptions { log: Some(log), tls: at_address.at(address), ..listen_options.clone() }
    });
    let mut listeners: BTreeMap<String, Box<dyn Listener>> = BTreeMap::new();
    for (address, table) in prepared.tables.iter().filter(|(address, _)| !arrival.listens_at(address)) {
        if !address.address().claim().is_some_and(|claim| activated.has(&claim)) {
            address.address().await_predecessor(&|| signals.stop_is_pending());
        }
        go_on()?;
        listeners.insert(upgrade::key(address), address.address().listen(table.clone(), &listen_options(address))?);
    }
    let journal = prepared.control.as_ref().and_then(|_| beside::open_journal(config, output));
    let mut store = Store::at(record::path_for(config, std::env::var("STATE_DIRECTORY").ok().as_deref()));
    let lasts = prepared.plan.devices.values().filter_map(ownership::key_of).any(|key| key.lasts);
    if lasts {
        store.open().or_else(|fault| match fault {
            Fault::Closed(sentence) => {
                output.note(&format!("{sentence}: exports that come to files wait"));
                Ok(())
            }
            Fault::Damaged(sentence) => Err(sentence),
        })?;
    }
    // All threads that do the server's work come after this.
    let grants = privilege::Grants::new(config, &options.trace, prepared.control.as_ref(), &prepared.plan);
    let has_keys = prepared.plan.trust.material.is_some() || trust.control().is_some();
    for note in privilege::enter(&server.privilege, &grants, has_keys)? {
        output.note(&note);
    }
    if prepared.control.as_ref().is_some_and(|control| control.save == Save::Always) {
        config_file::try_beside(config).map_err(|why| format!("control.save: {why}"))?;
    }
    let engine = Arc::new(Engine::start(prepared.engine_options())?);
    let trouble = Arc::new(TroubleCounts::new(prepared.device_names()));
    let _teller = TroubleTeller::start(trouble.clone(), output.clone())?;
    let counted = trouble.clone();
    engine.on_trouble(move |device, new| counted.add(device, new));
    go_on()?;
    let named: Vec<_> = prepared.device_names().into_iter().zip(prepared.devices.iter().cloned()).collect();
    let notes = output.clone();
    let watch = watch::start(&named, move |device, line| notes.say(Level::Warning, About::device(device), line))
        .map_err(|error| format!("cannot start a thread: {}", plain(&error)))?;
    let copy = |socket: &OwnedFd| socket.try_clone().map_err(|error| format!("no descriptor: {}", plain(&error)));
    let mut sockets = Vec::new();
    for (Listen { socket, .. }, address) in
        control_sockets.iter().flatten().zip(prepared.control.iter().flat_map(|it| &it.listen))
    {
        sockets.push((address.to_string(), copy(socket)?));
    }
    if let Some((address, listening)) = &upgrade_socket {
        sockets.push((address.to_string(), copy(&listening.socket)?));
    }
    let (mut ownership, mut withheld) = (Ownership::default(), Vec::new());
    let own = |luggage: Option<&Luggage>| {
        if lasts && luggage.is_some() {
            // An error was said above.
            let _ = store.open();
        }
        let packed = luggage.map(|luggage| &luggage.ownership[..]).filter(|packed| !packed.is_empty());
        ownership = match packed {
            Some(packed) => Ownership::unpack(packed, Some(store))?,
            None => Ownership::new(Some(store)),
        };
        let (plan, exports) = (&prepared.plan, &prepared.exports);
        withheld = reconcile::withhold(&mut ownership, ownership::key_of, (plan, exports), &prepared.tables);
        if luggage.is_some() && packed.is_none() {
            plan.devices.values().for_each(|it| ownership.doubt(ownership::key_of(it).as_ref(), it.size_bytes));
        }
        Ok(())
    };
    // From here on clients of a server that is replaced wait.
    let Boarded { listeners: boarded, connections, left } =
        arrival.board(&named, &prepared.tables, own, |address| listen_options(address))?;
    let ownership = Arc::new(Mutex::new(ownership));
    left.iter().for_each(|sentence| output.note(sentence));
    listeners.extend(boarded);
    for (address, table) in &prepared.tables {
        if let Entry::Vacant(vacant) = listeners.entry(upgrade::key(address)) {
            // The other process has left it meanwhile.
            vacant.insert(address.address().listen(table.clone(), &listen_options(address))?);
        }
    }
    systemd::say_left(&activated, output);
    // In the order of the config.
    let listeners: Vec<(String, Box<dyn Listener>)> =
        prepared.tables.iter().filter_map(|(address, _)| listeners.remove_entry(&upgrade::key(address))).collect();
    let addresses: Vec<String> = listeners.iter().map(|(_, listener)| listener.address()).collect();
    let mut live_listeners = Listeners::new(listen_options, since);
    for (address, table) in &prepared.tables {
        let key = upgrade::key(address);
        let listener = listeners.iter().find(|(other, _)| *other == key);
        listener.into_iter().for_each(|(_, listener)| live_listeners.add(address.clone(), table.clone(), &**listener));
    }
    let numbered = listeners.iter().map(|(key, listener)| (listener.number(), key.clone())).collect();
    let (devices, numbered) = (Mutex::new(named), Mutex::new(numbered));
    let serving = Arc::new(Serving { devices, listeners: numbered, sockets, ownership: ownership.clone() });
    let (committed, is_committed) = mpsc::channel();
    let is_running: Arc<OnceLock<Weak<Running>>> = Arc::default();
    let upgrades = match &upgrade_socket {
        None => None,
        Some((_, listening)) => {
            let (lent, owned, running) = (serving.clone(), serving.clone(), is_running.clone());
            // Once the other process has ended, its locks are there to be had.
            let before = move || is_committed.recv().map(upgrade::wait_for_end).map(|()| owned.own());
            let opened = move || lent.opened();
            // A server that has not begun to run has no changes.
            let running = move || running.get().and_then(Weak::upgrade);
            let refuse_loss = move || running().map_or(Ok(()), |running: Arc<Running>| running.refuse_loss());
            let socket = copy(&listening.socket)?;
            Some(Upgrades::start(socket, move || before().is_ok(), opened, refuse_loss, output.clone())?)
        }
    };
    let watched_caps = WatchedCaps::default();
    let watcher = control_sockets
        .is_some()
        .then(|| observe::start(engine.clone(), watched_caps.clone(), owners.clone()))
        .transpose()?;
    systemd::start_watchdog(&engine, output)?;
    go_on()?;
    let connected = connections.len();
    let replaced = match arrival.taking() {
        None => None,
        Some(taking) => {
            let (Replaced { pid, pause_ns }, process) = taking.commit()?;
            if upgrades.is_none() || process.is_none() {
                serving.own();
            }
            drop(committed.send(process));
            Some(ReplacedReport { pid, connections: connected, pause_us: pause_ns / 1000 })
        }
    };
    drop(committed.send(None));
    let has_replaced = replaced.is_some();
    // Before the first reply.
    arrival.is_over()?;
    // And after the last change by another process.
    let recorded = ownership.lock().unwrap_or_else(PoisonError::into_inner).commit();
    recorded.unwrap_or_else(|sentence| output.note(&sentence));
    listeners.into_iter().flat_map(|(_, listener)| listener.into_clients()).for_each(|client| engine.attach(client));
    connections.into_iter().for_each(|client| engine.attach(client));
    let _files: Vec<_> = taken_sockets.iter().map(SocketAddress::own_file).collect();
    let settled: Vec<Settled> = (0..prepared.devices.len()).map(|device| engine.settled(device)).collect();
    prepared.say_settled(&settled, output);
    prepared.say(true, &addresses, &settled, replaced, output);

    let counts = Counting { engine: engine.clone(), listeners: live_listeners.counts() };
    let (counts, mut rates) = (Arc::new(counts), Rates::default());
    let mut report = || {
        let report = counts.report(&mut rates);
        if output.is_json() { output.report_json(&report) } else { output.report(report.table()) }
    };
    let Prepared { text, control, plan, devices, tenants, exports, caps, .. } = prepared;
    let routes = watcher.iter().flat_map(routes::routes).collect();
    let devices = plan.devices.iter().map(|(slot, _)| slot).zip(devices).collect();
    let (listeners, output_of_changes) = (live_listeners, output.clone());
    let taken_over = serving.clone();
    let things = Things {
        open_device: crate::devices::open,
        devices,
        exports,
        tenants,
        owners,
        caps,
        watched_caps,
        listeners,
        trouble,
        watch,
        serving: taken_over,
        ownership,
        key_of: ownership::key_of,
        trust,
        output: output_of_changes,
    };
    let reconciler = Reconciler::new(plan, engine.clone(), things, withheld);
    let sockets = control_sockets.unwrap_or_default();
    let listen = sockets.iter().map(|socket| socket.address.clone()).collect();
    let origin = Origin { path: config.clone(), text, control, listen };
    let (asked, rates) = (counts.clone(), Mutex::new(Rates::default()));
    let counters = move || {
        let report = asked.report(&mut rates.lock().unwrap_or_else(PoisonError::into_inner));
        serde_json::to_value(report).unwrap_or_default()
    };
    let running = Arc::new(Running::new(engine.clone(), output.clone(), origin, reconciler, Box::new(counters)));
    journal.into_iter().for_each(|journal| running.keep_journal(journal));
    // Nothing else sets it.
    let _ = is_running.set(Arc::downgrade(&running));
    beside::offer_what_is_erased(&running)?;
    let control =
        if sockets.is_empty() { Ok(None) } else { control::start(sockets, running.clone(), routes).map(Some) };
    let control = match control {
        Ok(control) => control,
        // The clients have nobody else any more.
        Err(sentence) if has_replaced => {
            output.note(&format!("nobody listens at [control]: {sentence}"));
            None
        }
        Err(sentence) => return Err(sentence.into()),
    };
    let status = || running.with_plan(|plan| format!("{} exports, {} workers", plan.exports.len(), engine.workers()));
    systemd::ready(&status());
    // After it: systemd's queue is short.
    let notes = output.clone();
    arrival.forget(move |sentence| notes.note(sentence));
    let mut is_tracing = false;
    loop {
        match signals.wait() {
            Asked::Stop => {
                if upgrade::is_there() {
                    // As below.
                    running.with_plan(|_| match serving.keep(&engine) {
                        Ok(count) => {
                            let json = format!("{{\"stored\":{count}}}\n");
                            let text =
                                format!("stored: {count} descriptors, for the server that systemd starts next\n");
                            leave(output, print_stats, &mut report, if output.is_json() { json } else { text });
                        }
                        Err(sentence) => output.note(&format!("not stored: {sentence}")),
                    });
                }
                break;
            }
            Asked::Upgrade => {
                let Some((ready, done)) = upgrades.as_ref().and_then(Upgrades::take) else { continue };
                // Nobody changes the config meanwhile; nor until the end, if another process has everything by then: a
                // change would shut down the sockets that are that one's.
                running.with_plan(|_| match upgrade::hand_over(ready, &engine, &serving) {
                    Outcome::Replaced(by) => {
                        // First: it listens to its main process alone, and that one knows nothing of this.
                        upgrade::forget_the_rest().unwrap_or_else(|sentence| output.note(&sentence));
                        by.into_iter().for_each(systemd::is_now);
                        let json = "{\"handed_over\":true}\n".to_owned();
                        let text = "handed over: another process serves now\n".to_owned();
                        leave(output, print_stats, &mut report, if output.is_json() { json } else { text });
                    }
                    Outcome::RolledBack(sentence) => output.note(&format!("not replaced: {sentence}")),
                });
                drop(done);
            }
            Asked::Report => report(),
            Asked::Reload => {
                systemd::reloading();
                say_reloaded(&running, output);
                systemd::ready(&status());
            }
            Asked::Trace if is_tracing => is_tracing = end_trace(options, &running, &engine, output),
            Asked::Trace => is_tracing = begin_trace(options, &engine, output),
        }
    }
    systemd::stopping();
    signals.stop_waits_no_longer();
    if is_tracing {
        end_trace(options, &running, &engine, output);
    }
    if output.is_json() {
        output.report("{\"draining\":true}\n");
    }
    running.drains();
    ending.begin();
    let drain_s = running.with_plan(|plan| plan.server.drain_s);
    let all_answered = draining::drain(&engine, drain_s, output);
    drop(control);
    if print_stats {
        report();
    }
    if all_answered {
        return Ok(());
    }
    let stats = engine.stats();
    let stuck = stats.devices.iter().find(|device| draining::requests_left(device) > 0);
    // A device that does not answer keeps the process and its files: another server may have the rest at once.
    running.close_idle_devices();
    // Its workers would wait for what is under way: the end of the process does not.
    std::mem::forget(engine);
    let unended = |device: &DeviceStats| {
        format!(
            "device {} has not ended {} requests within twice {drain_s} s",
            device.name,
            draining::requests_left(device)
        )
    };
    let late = || format!("some clients did not take their replies within {drain_s} s and were disconnected");
    Err(stuck.map_or_else(late, unended).into())
}

/// Where the counters come from.
struct Counting {
    engine: Arc<Engine>,
    listeners: ListenerCounts,
}

impl Counting {
    fn report(&self, rates: &mut Rates) -> StatsReport {
        StatsReport::new(&self.engine.stats(), rates, self.listeners.all())
    }
}

/// Reads the config again, and says what came of it. The server goes on in any case.
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

/// A config that was read and checked.
struct Read {
    text: String,
    control: Option<ControlConfig>,
    plan: Plan,
}

impl Read {
    fn config(path: &Path, go_on: GoOn<'_>) -> Result<Read, Failure> {
        go_on()?;
        let text = Config::read_text(path)?;
        let config = Config::parse(&path.display().to_string(), &text).map_err(|error| error.to_string())?;
        go_on()?;
        let control = config.control.clone();
        let plan = config.check(&RealFiles).map_err(|error| error.to_string())?;
        Ok(Read { text, control, plan })
    }
}

impl Prepared {
    fn new(read: Read, open: Open<'_>, output: &Output, go_on: GoOn<'_>) -> Result<Prepared, Failure> {
        let Read { text, control, mut plan } = read;
        let mut devices = Vec::new();
        for device in plan.devices.values() {
            go_on()?;
            devices.push(open(device, &mut plan.warnings).map_err(|error| error.to_string())?);
        }
        plan.warnings.iter().for_each(|warning| output.note(warning));
        let (tenants, caps) = (Tenants::new(&plan)?, LiveCaps::new(&plan));
        let device = |slot: Slot| devices[slot.place()].clone();
        let exports = live::exports(&plan, &tenants, &caps, device, &Exports::new())?;
        let mut tables = Vec::new();
        for (address, slots) in &plan.listeners {
            go_on()?;
            tables.push((address.clone(), Arc::new(ExportTable::new(live::offered(slots, &exports))?)));
        }
        let workers = match plan.server.workers {
            Some(workers) => workers,
            None => std::thread::available_parallelism()
                .map_err(|error| format!("cannot count the CPUs ({}), set server.workers", plain(&error)))?
                .get(),
        };
        Ok(Prepared { text, control, plan, devices, tables, workers, tenants, exports, caps })
    }

    fn device_names(&self) -> Vec<String> {
        self.plan.devices.values().map(|plan| plan.config.name.clone()).collect()
    }

    fn engine_options(&self) -> EngineOptions {
        let device =
            |(plan, device): (&DevicePlan, &Arc<dyn Device>)| live::device_options(plan, device.clone(), self.workers);
        EngineOptions {
            workers: self.workers,
            pin: self.plan.server.pin,
            spin_ns: self.plan.server.spin_us * 1000,
            devices: self.plan.devices.values().zip(&self.devices).map(device).collect(),
        }
    }

    /// What was found of devices, for people.
    fn say_settled(&self, settled: &[Settled], output: &Output) {
        for (name, settled) in self.device_names().iter().zip(settled) {
            if let Some(reason) = &settled.fell_back {
                let sentence = format!("device {name}: {reason}; it runs policy {}", settled.policy.kind);
                output.say(Level::Warning, About::device(name), &sentence);
            } else if let Some(Ok(finding)) = &settled.probe {
                output.say(Level::Notice, About::device(name), &finding.sentence(name));
            }
        }
    }

    /// A line per export. `addresses` are those of the listeners, with the ports that the kernel chose.
    fn say(
        &self,
        ready: bool,
        addresses: &[String],
        settled: &[Settled],
        replaced: Option<ReplacedReport>,
        output: &Output,
    ) {
        let nowhere: BTreeMap<&str, Vec<String>> =
            FRONT_ENDS.iter().map(|front_end| (front_end.name(), Vec::new())).collect();
        let mut served_at = vec![nowhere; self.plan.exports.places()];
        for ((at, slots), address) in self.plan.listeners.iter().zip(addresses) {
            let name = at.front_end().name();
            slots.iter().for_each(|slot| served_at[slot.place()].entry(name).or_default().push(address.clone()));
        }
        let exports = self.plan.exports.iter().map(|(slot, export)| {
            let device = &self.plan.devices[export.device];
            let flow = &device.flows[export.flow];
            let policy = settled[export.device.place()].policy;
            let form = device.config.policy.form(policy.kind);
            ExportReport {
                name: export.name.clone(),
                device: device.config.name.clone(),
                policy: policy.kind.name(),
                form,
                quantum_bytes: form.map(|_| policy.quantum.bytes()),
                lease_bytes: form.map(|_| policy.lease.bytes()),
                token_batch: form.map(|_| policy.token_batch),
                token_share: form.map(|_| policy.token_share),
                tenant: flow.tenant.clone(),
                weight: flow.weight.get(),
                is_flow: flow.export.is_some(),
                class: flow.class.name(),
                offset_bytes: export.offset_bytes,
                size_bytes: export.size_bytes,
                read_only: export.read_only,
                addresses: std::mem::take(&mut served_at[slot.place()]),
            }
        });
        let devices =
            self.device_names().into_iter().zip(settled).map(|(name, Settled { policy, probe, fell_back })| {
                let wrr = probe.and_then(Result::ok).map(WrrReport::from);
                let in_force = in_force::at_start(policy);
                let (fell_back, groups) = (fell_back.clone(), Vec::new());
                DeviceReady { name, policy: policy.kind.name(), in_force, fell_back, wrr, groups }
            });
        let groups = self.plan.devices.values().map(family::relatives);
        let devices = devices.zip(groups).map(|(device, groups)| DeviceReady { groups, ..device });
        let report = ReadyReport {
            ready,
            pid: std::process::id(),
            workers: self.workers,
            devices: devices.collect(),
            exports: exports.collect(),
            replaced,
        };
        if output.is_json() {
            return output.report_json(&report);
        }
        let mut text = String::new();
        for export in &report.exports {
            text += &format!(
                "export {}: {} bytes at {} of device {} ({}{}), tenant {}{} of weight {}{}, on {}\n",
                shown(&export.name),
                export.size_bytes,
                export.offset_bytes,
                export.device,
                export.policy,
                export.form.map_or(String::new(), |form| format!(", {form}")),
                export.tenant,
                if export.is_flow { ", a flow" } else { "" },
                export.weight,
                if export.read_only { ", read-only" } else { "" },
                export.addresses.values().flatten().map(|address| shown(address)).collect::<Vec<_>>().join(" and "),
            );
        }
        for DeviceReady { name, in_force, .. } in &report.devices {
            if let Some(sentence) = in_force {
                text += &format!("device {name}: {sentence}\n");
            }
        }
        for DeviceReady { name, groups, .. } in report.devices.iter().filter(|device| !device.groups.is_empty()) {
            text += &format!("groups of device {}, with their part while everybody competes:\n", shown(name));
            for Relative { name, depth, weight, share } in groups {
                text +=
                    &format!("{:indent$}{name}: weight {weight}, {:.2}%\n", "", share * 100.0, indent = 2 + 2 * depth);
            }
        }
        let (exports, workers) = (report.exports.len(), report.workers);
        if let Some(ReplacedReport { pid, connections, pause_us }) = &report.replaced {
            text += &format!("replaced: process {pid}, {connections} connections, which waited {pause_us} us\n");
        }
        text += &if ready {
            format!("ready: {exports} exports, {workers} workers, pid {}\n", report.pid)
        } else {
            format!("good: {exports} exports, {workers} workers\n")
        };
        output.report(text);
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
