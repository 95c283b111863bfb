//! The running server as a value, and how it becomes another one.
//!
//! Answers: which part of a proposal is possible while tenants are served, in which order is it put in force, and what
//! is left if a part of it fails? SIGHUP proposes a whole [`Plan`], a control socket the sections that changed. Both
//! become a [`Difference`], and each step below goes over its sets, whatever else the server has.
//!
//! # Order
//! ```text
//!   refuse     what only a restart changes (`config/change.rs`)                      nothing was touched
//!   prepare    open devices, bind listeners, fit exports                             dropped, if one fails
//!   try        engine: devices, flows that come, policies                            taken back, if one fails
//!   ─────────  nothing below can fail
//!   close      listeners; exports that go, whose clients drain                      with the protocol's own error
//!   shrink     exports that get shorter: the new size, then the end of what is under way
//!   open       limits, tables, listeners that come
//!   remove     flows, devices
//! ```
//! A thing that goes is gone before a new one is offered: a byte that changes hands is never two exports' (I11). The
//! tried steps only add and change, so that they can be taken back and clients notice no more than a pause.
//!
//! # A device that hangs
//! holds nothing else up. Requests that it does not end within `drain-s` seconds, and as long again once their clients
//! are shut down, are left to it; bytes that they may still touch have no owner until they have ended
//! (`pending_io.rs`).
//!
//! Invariant: a proposal is applied as a whole or not at all (I12 of `docs/inside/invariants.md`). Its number, its
//! revision, and its author are kept by the control plane (`control/src/ledger.rs`).

mod backings;
mod changes;
mod erase;
mod on_engine;
mod pending_io;
mod withheld;

pub use changes::Change;
pub use withheld::{Lack, withhold};

use crate::config::caps::{CapOwner, WatchedCaps};
use crate::config::difference::{Changed, Difference, Names};
use crate::config::{self, ConfigError, DevicePlan, ExportPlan, FlowPlan, LiveCaps, Plan};
use crate::device_errors::DeviceErrorCounts;
use crate::live::{self, Exports, Listeners, LiveListener, Owners, Tenants, Trust};
use crate::log_format::{About, Level};
use crate::output::Output;
use crate::ownership::{KeyOf, Ownership, Verdict, key_for};
use crate::upgrade::{self, Serving};
use crate::watch::Watch;
use mqfq_blk::client::{MakeClient, Remains};
use mqfq_blk::device::Device;
use mqfq_blk::engine::Engine;
use mqfq_blk::slots::Slot;
use mqfq_front::export::{Export, ExportState, ExportTable};
use mqfq_front::front_end::{self, ExportAddress, Listener};
use pending_io::PendingIo;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use withheld::{Why, Withheld};

/// Between two looks whether a device is closed.
const CLOSED_AGAIN: Duration = Duration::from_millis(2);

/// Within this time a worker says whether a device has requests left.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// Exports that drain at a time.
const DRAINS_AT_ONCE: usize = 64;

/// The reasons why nothing of a proposal was applied: at least one sentence.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Refusals(pub Vec<String>);

impl From<String> for Refusals {
    fn from(sentence: String) -> Refusals {
        Refusals(vec![sentence])
    }
}

/// The running server; all its changes are made here.
pub struct Reconciler {
    plan: Plan,
    engine: Arc<Engine>,
    runtime: Runtime,
    /// Listeners that are gone but still have connections.
    closed: Vec<LiveListener>,
    /// Requests that devices have not ended, of things that are gone.
    pending_io: PendingIo,
    /// Backings of pools that nothing in the plan has, and that some worker may have yet.
    closing: BTreeSet<(Slot, u16)>,
    /// Exports that lack bytes, for now.
    waiting: BTreeMap<Slot, Withheld>,
    /// Name index of the plan.
    names: Names,
}

/// Opens a device that comes; sentences that the user should read go to the list.
pub type OpenDevice = fn(&DevicePlan, &mut Vec<String>) -> Result<Arc<dyn Device>, ConfigError>;

/// The running things of the plan.
pub struct Runtime {
    /// `devices::open`, or a simulation's replacement.
    pub open_device: OpenDevice,
    /// Open devices.
    pub devices: BTreeMap<Slot, Arc<dyn Device>>,
    /// Exports.
    pub exports: Exports,
    /// Tenants and their memory.
    pub tenants: Tenants,
    /// Owners of exports.
    pub owners: Owners,
    /// Caps of tenants and exports.
    pub caps: LiveCaps,
    /// The caps, as observers see them.
    pub watched_caps: WatchedCaps,
    /// Listeners.
    pub listeners: Listeners,
    /// Names of devices for the log of their troubles.
    pub device_errors: Arc<DeviceErrorCounts>,
    /// Descriptors that another process would take over.
    pub serving: Arc<Serving>,
    /// Owners of the devices' data; another process takes them over.
    pub ownership: Arc<Mutex<Ownership>>,
    /// The keys of devices in `ownership`.
    pub key_of: KeyOf,
    /// Asks devices how they are.
    pub watch: Watch,
    /// The keys and modes of TLS.
    pub trust: Arc<Trust>,
    /// For sentences about steps that need no answer.
    pub output: Output,
}

/// A listener that waits for the commit.
struct Bound {
    address: ExportAddress,
    table: Arc<ExportTable>,
    listener: Box<dyn Listener>,
}

/// Tenants and caps that were added for exports that come.
#[derive(Default)]
struct Came {
    tenants: Vec<String>,
    caps: Vec<CapOwner>,
    /// Backings that were opened in pools that run.
    backings: BTreeSet<(Slot, u16)>,
}

impl Reconciler {
    /// Wraps an engine that runs `plan`, of which some exports are withheld ([`withhold`]).
    pub fn new(plan: Plan, engine: Arc<Engine>, runtime: Runtime, withheld: Vec<(Slot, u64, Verdict)>) -> Reconciler {
        let (closed, pending_io, waiting) = (Vec::new(), PendingIo::default(), BTreeMap::new());
        let closing = BTreeSet::new();
        let names = Names::new(&plan);
        let mut reconciler = Reconciler { plan, engine, runtime, closed, pending_io, closing, waiting, names };
        reconciler.plan.exports.iter().for_each(|(slot, _)| reconciler.watch_caps(slot));
        reconciler.begin(withheld);
        reconciler
    }

    /// The plan in force.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The running things of the plan.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Name index of the plan.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Puts `plan` in force, as a whole or not at all, and returns the changes; with `dry_run` it only returns them.
    /// Blocks until it is in force, which may take as long as `server.drain-s` says, and again as long for devices that
    /// must run empty.
    ///
    /// # Errors
    /// [`Refusals`]: changes impossible while tenants are served, or failed steps. All is as before.
    pub fn propose(&mut self, plan: &Plan, dry_run: bool) -> Result<Vec<Change>, Refusals> {
        self.look_again(!dry_run);
        let target = self.plan.aligned(plan, &self.taken())?;
        self.put_in_force(Difference::between(&self.plan, &target), dry_run)
    }

    /// [`Reconciler::propose`] for the sections of `part` alone, which has them and those that they name, and without
    /// the export `gone`. `None`: a whole plan has to be proposed, and nothing was done.
    ///
    /// # Errors
    /// As [`Reconciler::propose`].
    pub fn propose_part(&mut self, part: Option<&Plan>, gone: Option<&str>) -> Option<Result<Vec<Change>, Refusals>> {
        self.look_again(true);
        let new = self.plan.difference_of(&self.names, part, gone, &self.taken().backings)?;
        Some(self.put_in_force(new, false))
    }

    fn put_in_force(&mut self, new: Difference, dry_run: bool) -> Result<Vec<Change>, Refusals> {
        self.pending_io.refuse(&new, &self.plan)?;
        self.refuse_claims(&new)?;
        let policies = |slot: Slot, plan: &DevicePlan| {
            let has_class_queues = self.engine.has_class_queues(slot.place());
            let to_be = live::policy(plan, self.engine.workers(), has_class_queues);
            [self.engine.policy(slot.place()).kind, to_be.kind]
        };
        let changes = changes::of(&self.plan, &self.names, &new, &policies);
        if dry_run {
            return Ok(changes);
        }
        if !new.is_empty() {
            self.apply(new)?;
        }
        self.await_erases();
        #[cfg(debug_assertions)]
        self.assert_whole();
        Ok(changes)
    }

    /// Closes the device of this name, after its clients, and puts `plan` in force, which has it: it is opened anew.
    /// Others are served on. A device that a failed attempt has left closed is opened.
    ///
    /// # Errors
    /// [`Refusals`]: the sandbox would refuse a step, and nothing has changed; or the device holds requests that it has
    /// not ended, or it cannot be opened, and it is closed.
    pub fn reopen(&mut self, name: &str, plan: &Plan) -> Result<(), Refusals> {
        let slot = self.plan.devices.iter().find(|(_, device)| device.config.name == name).map(|(slot, _)| slot);
        if let Some(slot) = slot {
            let old = Arc::downgrade(&self.runtime.devices[&slot]);
            let without = self.plan.without_device(slot);
            self.refuse_to_unbind(&format!("device {name}"), &without)?;
            self.propose(&without, false)?;
            // Its lock goes with its last owner, such as the thread that asks how it is.
            let end = Instant::now() + self.patience();
            while old.strong_count() > 0 {
                if Instant::now() >= end {
                    return Err(format!("it has not ended its requests within {} s", self.patience().as_secs()).into());
                }
                std::thread::park_timeout(CLOSED_AGAIN);
            }
        }
        self.propose(plan, false).map(drop)
    }

    /// Sockets that go in `without`, which has everything but `what`, would have to be bound again.
    ///
    /// # Errors
    /// One sentence: the sandbox lets no socket be bound.
    fn refuse_to_unbind(&self, what: &str, without: &Plan) -> Result<(), String> {
        if self.plan.server.privilege.sandbox != config::Level::Strict {
            return Ok(());
        }
        let stays = |address: &ExportAddress| without.listeners.iter().any(|(other, _)| other == address);
        // An address with folders is a device of the kernel, which is opened and not bound.
        let is_socket = |address: &ExportAddress| address.address().folders().is_empty();
        let mut addresses = self.plan.listeners.iter().map(|(address, _)| address);
        match addresses.find(|address| is_socket(address) && !stays(address)) {
            None => Ok(()),
            Some(address) => Err(format!(
                "{what} cannot be reopened with sandbox = \"strict\": {address} has exports of this {kind} alone and could \
                 not be bound again; allowed is an address that another {kind} serves too, or a restart",
                kind = what.split(' ').next().unwrap_or_default(),
            )),
        }
    }

    /// Closes the devices that have no request left, once their exports are drained. For a server that ends although
    /// another device still has requests: the kernel keeps the process, and all that it has open, until those end.
    pub fn close_idle_devices(&mut self) {
        let Runtime { devices, serving, .. } = &mut self.runtime;
        devices.retain(|slot, _| self.engine.remove_device(slot.place(), ANSWERS_WITHIN).is_err());
        serving.clear();
    }

    fn apply(&mut self, new: Difference) -> Result<(), Refusals> {
        let devices = self.open_devices(&new)?;
        self.runtime.trust.learn(&new.modes);
        let mut came = Came::default();
        let opened = self.open_backings(&new, &devices, &mut came);
        let admitted = opened.and_then(|()| self.admit(&new, &mut came));
        let prepared = admitted.and_then(|()| self.prepare(&new, &devices, &came));
        let (exports, bound) = prepared.inspect_err(|_| {
            self.close_again(&came);
            // New tenants and exports lose their memory and caps.
            came.tenants.iter().for_each(|tenant| self.runtime.tenants.remove(tenant));
            came.caps.iter().for_each(|owner| self.runtime.caps.remove(owner));
        })?;
        self.commit(new, devices, exports, bound);
        Ok(())
    }

    /// Tenants and exports that come have memory and caps.
    fn admit(&mut self, new: &Difference, came: &mut Came) -> Result<(), String> {
        let Runtime { tenants, caps, .. } = &mut self.runtime;
        let mut add_cap = |owner: CapOwner, limits| {
            if caps.add(owner.clone(), limits) {
                came.caps.push(owner);
            }
        };
        for flow in new.flows_to_be(&self.plan) {
            if tenants.add(&flow.tenant, flow.memory_bytes)? {
                came.tenants.push(flow.tenant.clone());
            }
            add_cap(CapOwner::Tenant(flow.tenant.clone()), flow.caps);
        }
        new.exports.values().flatten().for_each(|export| add_cap(CapOwner::Export(export.name.clone()), export.caps));
        Ok(())
    }

    /// Makes exports and listeners, and tries the engine's steps. Takes all of it back if one fails.
    fn prepare(
        &mut self,
        new: &Difference,
        devices: &BTreeMap<Slot, Arc<dyn Device>>,
        came: &Came,
    ) -> Result<(Exports, Vec<Bound>), String> {
        let Runtime { tenants, caps, exports: before, devices: there, .. } = &self.runtime;
        let mut exports = Exports::new();
        for (slot, export) in &new.exports {
            let Some(export) = export else { continue };
            let device = devices.get(&export.device).or_else(|| there.get(&export.device)).expect("of the plan");
            let tenant = &new.flow(&self.plan, export.device, export.flow).tenant;
            let owner = live::ExportResources::new(*slot, export, tenant, (tenants, caps), before.get(slot));
            let made = live::fit(export, owner, new.device(&self.plan, export.device), &**device)?;
            // Faults of its table are found before anything is touched.
            ExportTable::new([made.clone()])?;
            exports.insert(*slot, made);
        }
        let bound = self.bind(new)?;
        let mut made = Vec::new();
        let followed = self.try_engine(new, devices, &mut made).and_then(|()| self.follow_backings(&came.backings));
        if let Err(sentence) = followed {
            made.into_iter().rev().for_each(|step| self.take_back(step));
            return Err(sentence);
        }
        Ok((exports, bound))
    }

    /// Devices that come, opened.
    fn open_devices(&self, new: &Difference) -> Result<BTreeMap<Slot, Arc<dyn Device>>, String> {
        let mut warnings = Vec::new();
        let come = new.devices.iter().filter(|(slot, _)| self.plan.devices.get(**slot).is_none());
        let open = |(slot, plan): (&Slot, &DevicePlan)| {
            let device = (self.runtime.open_device)(plan, &mut warnings).map_err(|error| error.to_string())?;
            Ok((*slot, device))
        };
        let opened = come.filter_map(|(slot, device)| Some((slot, device.as_ref()?))).map(open).collect();
        warnings.iter().for_each(|warning| self.runtime.output.note(warning));
        opened
    }

    /// Binds listeners that come; they have let no client in yet.
    fn bind(&self, new: &Difference) -> Result<Vec<Bound>, String> {
        let bind = |address: &ExportAddress| {
            let table = Arc::new(ExportTable::new([])?);
            let listener = self.runtime.listeners.listen(address, table.clone())?;
            Ok(Bound { address: address.clone(), table, listener })
        };
        new.addresses.values().flatten().map(bind).collect()
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.plan.server.drain_s)
    }

    /// Logs the failure of a step.
    fn report_error(&self, result: Result<(), String>) {
        if let Err(sentence) = result {
            self.runtime.output.note(&sentence);
        }
    }

    /// From here on nothing fails: a step that does not end in time is logged and left, unless it could still write
    /// bytes that another export is to get.
    fn commit(
        &mut self,
        new: Difference,
        devices: BTreeMap<Slot, Arc<dyn Device>>,
        exports: Exports,
        bound: Vec<Bound>,
    ) {
        let grace = Duration::from_secs(new.server.as_ref().unwrap_or(&self.plan.server).drain_s);
        for (key, _) in new.addresses.iter().filter(|(_, address)| address.is_none()) {
            if let Some(gone) = self.runtime.listeners.take(key) {
                self.close(gone, grace);
            }
        }
        self.runtime.trust.follow(&new);
        self.drain_exports(&new.exports, grace);
        let before = self.plan.exchange(&mut self.names, new);
        let changed_devices = !before.devices.is_empty();
        self.runtime.devices.extend(devices.clone());
        before.exports.keys().for_each(|slot| drop(self.runtime.exports.remove(slot)));
        self.runtime.exports.extend(exports);
        self.resize(&before, grace);
        self.follow(&before);
        // Before the first client: another device may have had the index.
        self.name_devices(&devices);
        self.open(&before, bound);
        if let Some(server) = &before.server {
            let sentences = self.runtime.listeners.limit(&self.plan.server, server);
            sentences.iter().for_each(|sentence| self.runtime.output.note(sentence));
        }
        self.close_backings(&before);
        self.remove_from_engine(&before, grace);
        if changed_devices {
            let plan = &self.plan;
            self.runtime.devices.retain(|slot, _| plan.devices.get(*slot).is_some());
            let named =
                |(slot, device): (&Slot, &Arc<dyn Device>)| (plan.devices[*slot].config.name.clone(), device.clone());
            self.runtime.serving.have(self.runtime.devices.iter().map(named).collect());
        }
        self.follow_closed();
    }

    /// Gives caps, memory and owners of changed things the values of the plan.
    fn follow(&mut self, before: &Difference) {
        let Self { plan, engine, runtime: Runtime { caps, watched_caps, tenants, owners, .. }, names, .. } = self;
        let mut remove_cap = |owner: CapOwner| {
            caps.remove(&owner);
            watched_caps.remove(&owner);
        };
        for export in before.exports.values().flatten().filter(|export| !names.exports.contains_key(&export.name)) {
            remove_cap(CapOwner::Export(export.name.clone()));
            owners.remove(&export.name);
        }
        let gone = before.devices.iter().filter(|(slot, _)| plan.devices.get(**slot).is_none());
        let flows = gone.filter_map(|(_, device)| device.as_ref()).flat_map(|device| device.flows.values());
        let flows = flows.chain(before.flows.values().flat_map(BTreeMap::values).flatten());
        for flow in flows.filter(|flow| !names.flows.contains_key(&flow.tenant)) {
            remove_cap(CapOwner::Tenant(flow.tenant.clone()));
            tenants.remove(&flow.tenant);
        }
        let come = before.devices.iter().filter(|(_, before)| before.is_none());
        let come = come.flat_map(|(slot, _)| plan.devices.get(*slot)).flat_map(|device| device.flows.values());
        let stay = before.flows.iter().flat_map(|(device, flows)| flows.keys().map(|flow| (*device, *flow)));
        for flow in come.chain(stay.filter_map(|(device, flow)| plan.devices[device].flows.get(flow))) {
            caps.set(engine, &CapOwner::Tenant(flow.tenant.clone()), flow.caps);
            tenants.limit(&flow.tenant, flow.memory_bytes);
        }
        tenants.share(plan.server.memory_bytes);
        for slot in before.exports.keys().copied() {
            let Some(export) = self.plan.exports.get(slot) else { continue };
            let owner = live::ExportOwner::new(&self.plan, export);
            self.runtime.owners.add(&export.name, owner);
            self.runtime.caps.set(&self.engine, &CapOwner::Export(export.name.clone()), export.caps);
            self.watch_caps(slot);
        }
    }

    /// Shows observers the caps of an export and of its tenant.
    fn watch_caps(&self, slot: Slot) {
        let Runtime { caps, watched_caps, .. } = &self.runtime;
        let export = &self.plan.exports[slot];
        let flow = &self.plan.devices[export.device].flows[export.flow];
        watched_caps.add(caps, CapOwner::Export(export.name.clone()), &flow.name());
        watched_caps.add(caps, CapOwner::Tenant(flow.tenant.clone()), &flow.tenant);
    }

    /// Closes a listener that the plan has no longer.
    fn close(&mut self, gone: LiveListener, grace: Duration) {
        if !front_end::close_listener(&self.engine, gone.number, grace) {
            let (address, grace_s) = (&gone.address, grace.as_secs());
            self.runtime.output.note(&format!("{address} was not gone within {grace_s} s: its requests fail now"));
        }
        // A replacement would have them go on at another address, with its exports and without TLS if it has none.
        gone.places.iter().for_each(|places| places.close_handshakes());
        self.closed.push(gone);
    }

    /// Forgets listeners that are gone with their last connection; until then another process would have those
    /// connections at another address.
    fn follow_closed(&mut self) {
        // Ours, and one of each connection.
        let is_over =
            |closed: &mut LiveListener| closed.places.as_ref().is_none_or(|places| Arc::strong_count(places) == 1);
        let over: Vec<LiveListener> = self.closed.extract_if(.., is_over).collect();
        over.iter().for_each(|closed| self.runtime.serving.call(closed.number, None));
        for closed in &self.closed {
            self.runtime.serving.call(closed.number, key_elsewhere(&self.plan, closed));
        }
    }

    /// Closes exports that go to new clients, and drains the others.
    fn drain_exports(&mut self, new: &Changed<ExportPlan>, grace: Duration) {
        let gone = new.iter().filter(|(_, export)| export.is_none());
        let gone: Vec<(Slot, Export)> = gone.map(|(slot, _)| (*slot, self.runtime.exports[slot].clone())).collect();
        gone.iter().for_each(|(_, export)| export.state.close());
        let had: Vec<u64> = gone.iter().map(|(slot, _)| self.had(*slot)).collect();
        let mut late = Vec::new();
        // Workers that are stepped are this thread's.
        let at_once = if self.engine.is_stepped() { 1 } else { DRAINS_AT_ONCE };
        for some in gone.chunks(at_once) {
            let engine = &self.engine;
            if let [one] = some {
                late.extend((!front_end::drain_export(engine, &one.1, grace)).then_some(one));
                continue;
            }
            std::thread::scope(|scope| {
                let drain = |(_, export): &'_ (Slot, Export)| front_end::drain_export(engine, export, grace);
                let spawn = |export| std::thread::Builder::new().spawn_scoped(scope, move || drain(export));
                let drains: Vec<_> = some.iter().map(spawn).collect();
                let join = |(drained, export): (std::io::Result<ScopedJoinHandle<'_, bool>>, &_)| match drained {
                    Ok(drain) => drain.join().unwrap_or(false),
                    // No thread can be started: one after another.
                    Err(_) => drain(export),
                };
                let in_time = drains.into_iter().zip(some).map(join);
                late.extend(some.iter().zip(in_time).filter(|(_, in_time)| !in_time).map(|(export, _)| export));
            });
        }
        late.into_iter().for_each(|(slot, export)| self.tell_late(*slot, export, grace));
        gone.iter().zip(had).for_each(|((slot, _), had)| self.release(*slot, had));
    }

    /// Bytes that an export of the plan has now, from its beginning.
    fn had(&self, slot: Slot) -> u64 {
        let size = self.plan.exports.get(slot).map_or(0, |export| export.size_bytes);
        self.waiting.get(&slot).map_or(size, |withheld| withheld.had)
    }

    /// Takes from a drained export the bytes that it `had`.
    fn release(&mut self, slot: Slot, had: u64) {
        // Its eraser was drained with it.
        self.waiting.remove(&slot);
        let export = &self.plan.exports[slot];
        let device = key_for(self.runtime.key_of, &self.plan.devices[export.device], export);
        self.ownership().release(device.as_ref(), &(export.offset_bytes..export.offset_bytes + had));
    }

    /// Clients of an export that goes were still there after `grace`.
    fn tell_late(&mut self, slot: Slot, export: &Export, grace: Duration) {
        let plan = &self.plan.exports[slot];
        let range = plan.offset_bytes..plan.offset_bytes + plan.size_bytes.max(export.size_now_bytes());
        let (name, grace_s) = (mqfq_config::text::shown(&export.name), grace.as_secs());
        self.runtime.output.note(&match self.pending_io.bytes(&self.engine, plan.device, range, &export.name) {
            true => format!(
                "export {name} is gone, and its device has not ended all of its requests: its bytes are nobody's until \
                 it has"
            ),
            false => format!(
                "some clients of export {name}, which is gone, did not take their replies within {grace_s} s and were \
                 disconnected"
            ),
        });
    }

    /// Each takes its clients from now on. Exports that stay have their new size and access; one that shrinks has no
    /// request under way beyond its end, or has given up those bytes. Claims on others' bytes come last.
    fn resize(&mut self, before: &Difference, grace: Duration) {
        let mut claims = Vec::new();
        for (slot, before) in &before.exports {
            let Some(export) = self.plan.exports.get(*slot).cloned() else { continue };
            let withheld = self.waiting.get(slot);
            let had = withheld.map_or(before.as_ref().map_or(0, |before| before.size_bytes), |withheld| withheld.had);
            let is_same = before
                .as_ref()
                .is_some_and(|before| (before.size_bytes, before.keep_data) == (export.size_bytes, export.keep_data));
            let goes_on = withheld.is_some_and(|withheld| {
                is_same
                    || matches!(withheld.why, Why::Asked(_)) && export.keep_data.is_none() && had < export.size_bytes
            });
            if !goes_on && let Some(withheld) = self.waiting.remove(slot) {
                self.stop_erase(*slot, withheld, grace);
            }
            let state = self.runtime.exports[slot].state.clone();
            self.shrink(before.as_ref().map(|before| before.read_only), had, &export, &state, grace);
            if !goes_on && had < export.size_bytes {
                claims.push((*slot, had));
            }
        }
        self.claim(claims);
    }

    /// An export that `had` so many bytes takes its clients from now on, and has its access; if it has fewer bytes, it
    /// has no request under way beyond its end, or has given up those bytes.
    fn shrink(
        &mut self,
        was_read_only: Option<bool>,
        had: u64,
        export: &ExportPlan,
        state: &ExportState,
        grace: Duration,
    ) {
        state.admit(export.clients.clone());
        state.set_poll(export.poll);
        if was_read_only.is_some_and(|was| was != export.read_only) {
            state.set_read_only(export.read_only);
        }
        if had <= export.size_bytes {
            return;
        }
        state.resize(export.size_bytes);
        let range = export.offset_bytes + export.size_bytes..export.offset_bytes + had;
        let device = key_for(self.runtime.key_of, &self.plan.devices[export.device], export);
        let mut ownership = self.ownership();
        ownership.release(device.as_ref(), &range);
        ownership.give_up(device.as_ref(), &range);
        drop(ownership);
        let beyond = Remains::Bytes(range.start, range.end);
        if let Err(reason) = self.engine.await_end(export.device.place(), beyond, grace)
            && self.pending_io.bytes(&self.engine, export.device, range, &export.name)
        {
            let name = mqfq_config::text::shown(&export.name);
            let sentence = format!("export {name} shrank: {reason}, and what it had is nobody's until they do");
            self.runtime.output.note(&sentence);
        }
    }

    /// Gives every address its exports and its places.
    fn open(&mut self, before: &Difference, bound: Vec<Bound>) {
        let mut clients: Vec<MakeClient> = Vec::new();
        for Bound { address, table, listener } in bound {
            self.runtime.serving.call(listener.number(), Some(upgrade::key(&address)));
            self.runtime.listeners.add(address, table, &*listener);
            clients.extend(listener.into_clients());
        }
        self.offer(before.exports.iter().map(|(slot, export)| (*slot, export.as_ref())));
        if before.server.as_ref().is_some_and(|server| server.connections_max != self.plan.server.connections_max) {
            let listeners = self.plan.listeners.iter().filter_map(|(address, _)| self.runtime.listeners.of(address));
            listeners.for_each(|listener| listener.share(self.plan.server.connections_max));
        }
        clients.into_iter().for_each(|client| self.engine.attach(client));
    }

    /// Offers these exports at their addresses and nowhere else, unless they have no byte yet. Each comes with its old
    /// plan.
    fn offer<'e>(&self, exports: impl Iterator<Item = (Slot, Option<&'e ExportPlan>)>) {
        let mut offered: BTreeMap<String, BTreeMap<&str, Option<Export>>> = BTreeMap::new();
        let mut now = Vec::new();
        for (slot, before) in exports {
            for address in before.iter().flat_map(|before| &before.addresses) {
                offered.entry(address.key()).or_default().insert(&before.expect("it has them").name, None);
            }
            now.extend(self.plan.exports.get(slot).map(|export| (slot, export)));
        }
        for (slot, export) in now {
            let is_nowhere = self.waiting.get(&slot).is_some_and(|withheld| withheld.had == 0);
            let live = (!is_nowhere).then(|| self.runtime.exports[&slot].clone());
            for address in &export.addresses {
                offered.entry(address.key()).or_default().insert(&export.name, live.clone());
            }
        }
        for (key, exports) in offered {
            let Some(listener) = self.runtime.listeners.named(&key) else { continue };
            listener.table.change(exports).expect("exports that were looked at before");
            listener.share(self.plan.server.connections_max);
        }
    }

    /// Gives devices that have come a name in the log of troubles, and has them watched.
    fn name_devices(&self, devices: &BTreeMap<Slot, Arc<dyn Device>>) {
        for (slot, device) in devices {
            let name = self.plan.devices[*slot].config.name.clone();
            if let Some((before, line)) = self.runtime.device_errors.name(slot.place(), &name) {
                self.runtime.output.say(Level::Warning, About::device(&before), &line);
            }
            self.runtime.watch.add(&name, device);
        }
    }

    /// The running things match the plan.
    #[cfg(debug_assertions)]
    fn assert_whole(&self) {
        assert_eq!(self.names, Names::new(&self.plan));
        let is_somewhere = |slot: &&Slot| self.waiting.get(slot).is_none_or(|withheld| withheld.had > 0);
        for (address, slots) in &self.plan.listeners {
            let offered = self.runtime.listeners.of(address).expect("bound").table.all();
            let planned = slots.iter().filter(is_somewhere).map(|slot| self.plan.exports[*slot].name.clone());
            let planned: BTreeSet<String> = planned.collect();
            assert!(offered.iter().map(|export| &export.name).eq(&planned), "{address} offers {planned:?}");
        }
        for (slot, export) in self.plan.exports.iter() {
            let live = &self.runtime.exports[&slot];
            assert_eq!(
                (live.size_bytes, live.read_only, live.device, live.flow),
                (export.size_bytes, export.read_only, export.device.into(), export.flow.into())
            );
        }
        assert_eq!(self.runtime.exports.len(), self.plan.exports.len());
        let Runtime { caps, tenants, owners, listeners, serving, .. } = &self.runtime;
        let listening = self.plan.listeners.iter().filter_map(|(address, _)| listeners.of(address));
        let listening = listening.map(|listener| (listener.number, upgrade::key(&listener.address)));
        let elsewhere =
            self.closed.iter().filter_map(|closed| Some((closed.number, key_elsewhere(&self.plan, closed)?)));
        let handed_over: BTreeMap<u64, String> = listening.chain(elsewhere).collect();
        assert_eq!(*serving.listeners.lock().expect("no panic"), handed_over, "what an upgrade hands over");
        assert!(caps.are_of(&self.plan) && tenants.are_of(&self.plan) && owners.are_of(&self.plan));
    }
}

/// The address for connections of a closed listener in another process: one that offers all that is left of its
/// exports.
fn key_elsewhere(target: &Plan, closed: &LiveListener) -> Option<String> {
    let left = closed.table.all().into_iter().map(|export| export.id.0);
    let left: Vec<Slot> = left.filter(|slot| target.exports.get(*slot).is_some()).collect();
    let is_same = |(address, slots): &&(ExportAddress, Vec<Slot>)| {
        address.front_end().name() == closed.address.front_end().name() && left.iter().all(|slot| slots.contains(slot))
    };
    target.listeners.iter().find(is_same).map(|(address, _)| upgrade::key(address))
}

#[cfg(test)]
mod tests;
