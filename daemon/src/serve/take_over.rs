//! The place of another server is taken, if there is one, and all listeners are there.

use super::bind::Bound;
use super::options::{Failure, Start};
use super::prepare::{Prepared, Working};
use super::records::Records;
use crate::config::caps::WatchedCaps;
use crate::control::Running;
use crate::live::{Listeners, Owners};
use crate::ownership::{self, Ownership, Verdict};
use crate::upgrade::{self, HandoverResult, HandoverState, Received, Replaced, ReplacedReport, Serving, Upgrades};
use crate::{reconcile, systemd};
use mqfq_blk::client::MakeClient;
use mqfq_blk::engine::Engine;
use mqfq_blk::slots::Slot;
use mqfq_control::Listen;
use mqfq_control::journal::Journal;
use mqfq_front::front_end::Listener;
use mqfq_front::socket::SocketAddress;
use mqfq_front::takeover::Inherited;
use mqfq_observe::watcher::Watcher;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak, mpsc};

/// All listeners and connections, before the first request.
pub(super) struct Taken {
    /// Listeners in the order of the config.
    pub(super) listeners: Vec<Box<dyn Listener>>,
    /// Connections of the server before.
    pub(super) connections: Vec<MakeClient>,
    /// The listeners, as changes find them.
    pub(super) live: Listeners,
    pub(super) serving: Arc<Serving>,
    pub(super) ownership: Arc<Mutex<Ownership>>,
    /// Exports that lack bytes: how many they have, and why.
    pub(super) withheld: Vec<(Slot, u64, Verdict)>,
    pub(super) journal: Option<Journal>,
    /// Go with the server: the files of sockets that another process made.
    pub(super) files: Vec<Box<dyn Send>>,
}

impl Taken {
    /// Has the engine serve the clients.
    pub(super) fn attach(&mut self, engine: &Engine, sockets: &[SocketAddress]) {
        let listeners = self.listeners.drain(..).flat_map(|listener| listener.into_clients());
        listeners.for_each(|client| engine.attach(client));
        self.connections.drain(..).for_each(|client| engine.attach(client));
        let files = sockets.iter().filter_map(SocketAddress::own_file);
        self.files.extend(files.map(|file| Box::new(file) as Box<dyn Send>));
    }
}

/// Has another server hold still, and takes its clients. From here on clients of a server that is replaced wait.
pub(super) fn take_over(
    start: Start<'_>,
    prepared: &Prepared,
    activated: &Inherited,
    bound: &mut Bound,
    records: Records,
    working: &Working,
    received: &mut Received,
) -> Result<Taken, Failure> {
    let sockets = copies(prepared, bound)?;
    let Records { journal, mut store, lasts } = records;
    let (mut ownership, mut withheld) = (Ownership::default(), Vec::new());
    let own = |handover: Option<&HandoverState>| {
        if lasts && handover.is_some() {
            // An error was said when the records were opened.
            let _ = store.open();
        }
        let packed = handover.map(|handover| &handover.ownership[..]).filter(|packed| !packed.is_empty());
        ownership = match packed {
            Some(packed) => Ownership::unpack(packed, Some(store))?,
            None => Ownership::new(Some(store)),
        };
        let (plan, exports) = (&prepared.plan, &prepared.exports);
        withheld = reconcile::withhold(&mut ownership, ownership::key_of, (plan, exports), &prepared.tables);
        if handover.is_some() && packed.is_none() {
            plan.devices.values().for_each(|it| ownership.doubt(ownership::key_of(it).as_ref(), it.size_bytes));
        }
        Ok(())
    };
    let make_options = &bound.make_options;
    let HandoverResult { listeners, connections, left } =
        received.install(&working.devices, &prepared.tables, own, |address| make_options(address))?;
    left.iter().for_each(|sentence| start.output.note(sentence));
    let mut all = std::mem::take(&mut bound.listeners);
    all.extend(listeners);
    for (address, table) in &prepared.tables {
        if let Entry::Vacant(vacant) = all.entry(upgrade::key(address)) {
            // The other process has left it meanwhile.
            vacant.insert(address.address().listen(table.clone(), &make_options(address))?);
        }
    }
    systemd::say_left(activated, start.output);
    let mut live = Listeners::new(make_options.clone(), bound.shared.since.clone());
    let (mut listeners, mut numbers) = (Vec::new(), BTreeMap::new());
    for (address, table) in &prepared.tables {
        if let Some((key, listener)) = all.remove_entry(&upgrade::key(address)) {
            live.add(address.clone(), table.clone(), &*listener);
            numbers.insert(listener.number(), key);
            listeners.push(listener);
        }
    }
    let ownership = Arc::new(Mutex::new(ownership));
    let (devices, numbers) = (Mutex::new(working.devices.clone()), Mutex::new(numbers));
    let serving = Arc::new(Serving { devices, listeners: numbers, sockets, ownership: ownership.clone() });
    Ok(Taken { listeners, connections, live, serving, ownership, withheld, journal, files: Vec::new() })
}

/// Copies of the sockets that are not a front end's, by address.
fn copies(prepared: &Prepared, bound: &Bound) -> Result<Vec<(String, OwnedFd)>, Failure> {
    let addresses = prepared.control.iter().flat_map(|control| &control.listen);
    let control = bound.control.iter().flatten().map(|Listen { socket, .. }| socket).zip(addresses);
    let upgrade = bound.upgrade.iter().map(|(address, listening)| (&listening.socket, address));
    control.chain(upgrade).map(|(socket, address)| Ok((address.to_string(), copy(socket)?))).collect()
}

fn copy(socket: &OwnedFd) -> Result<OwnedFd, String> {
    socket.try_clone().map_err(|error| format!("no descriptor: {}", mqfq_report::plain(&error)))
}

/// The server serves; another one has ended or is about to.
pub(super) struct Committed {
    /// Running server, for threads that were started before it.
    pub(super) running: Arc<OnceLock<Weak<Running>>>,
    pub(super) watched_caps: WatchedCaps,
    pub(super) watcher: Option<Arc<Watcher>>,
    pub(super) upgrades: Option<Upgrades>,
    /// The server that was replaced.
    pub(super) replaced: Option<ReplacedReport>,
}

/// Starts what answers upgrades and watches the tenants, and commits: from then on this server alone serves.
pub(super) fn commit(
    start: Start<'_>,
    bound: &Bound,
    engine: &Arc<Engine>,
    taken: &Taken,
    received: &mut Received,
) -> Result<Committed, Failure> {
    let (committed, is_committed) = mpsc::channel();
    let running: Arc<OnceLock<Weak<Running>>> = Arc::default();
    let upgrades = match &bound.upgrade {
        None => None,
        Some((_, listening)) => {
            let (lent, owned, running) = (taken.serving.clone(), taken.serving.clone(), running.clone());
            // Once the other process has ended, its locks are there to be had.
            let before = move || is_committed.recv().map(upgrade::wait_for_end).map(|()| owned.own());
            let opened = move || lent.opened();
            // A server that has not begun to run has no changes.
            let running = move || running.get().and_then(Weak::upgrade);
            let refuse_loss = move || running().map_or(Ok(()), |running: Arc<Running>| running.refuse_loss());
            let socket = copy(&listening.socket)?;
            Some(Upgrades::start(socket, move || before().is_ok(), opened, refuse_loss, start.output.clone())?)
        }
    };
    let watched_caps = WatchedCaps::default();
    let has_control = bound.control.is_some();
    let watcher = has_control.then(|| watch_engine(engine.clone(), watched_caps.clone(), bound.owners.clone()));
    let watcher = watcher.transpose()?;
    systemd::start_watchdog(engine, start.output)?;
    start.go_on()?;
    let replaced = match received.taking() {
        None => None,
        Some(taking) => {
            let (Replaced { pid, pause_ns }, process) = taking.commit()?;
            if upgrades.is_none() || process.is_none() {
                taken.serving.own();
            }
            drop(committed.send(process));
            Some(ReplacedReport { pid, connections: taken.connections.len(), pause_us: pause_ns / 1000 })
        }
    };
    drop(committed.send(None));
    // Before the first reply.
    received.is_over()?;
    // And after the last change by another process.
    let recorded = taken.ownership.lock().unwrap_or_else(PoisonError::into_inner).commit();
    recorded.unwrap_or_else(|sentence| start.output.note(&sentence));
    Ok(Committed { running, watched_caps, watcher, upgrades, replaced })
}

/// Watches `engine`, its caps and its exports from now on, until the returned value is dropped.
///
/// # Errors
/// One sentence: the thread cannot be started.
fn watch_engine(engine: Arc<Engine>, caps: WatchedCaps, owners: Owners) -> Result<Arc<Watcher>, String> {
    let clock = engine.clone();
    let limited = move || caps.waited(clock.clock().now_ns());
    let of_device = owners.clone();
    let export = move |name: &str| owners.counted(name);
    let exports = move |device: &str| of_device.on(device);
    Watcher::start(Arc::new(mqfq_observe::source::Running { engine, limited, export, exports }))
        .map_err(|error| format!("cannot start a thread: {}", mqfq_report::plain(&error)))
}
