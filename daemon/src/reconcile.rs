//! The running server as a value, and how it becomes another one.
//!
//! Answers: what of a proposal can be had while tenants are served, in which order is it put in force, and what is left
//! if a part of it fails? Everybody who wants something else of a running server proposes a whole [`Plan`]: SIGHUP with
//! the config that it reads again, a control socket with the present one and a change in it. One function takes it
//! ([`Reconciler::propose`]).
//!
//! # Order
//! ```text
//!   refuse     what only a restart changes (`config/change.rs`)                      nothing was touched
//!   prepare    open devices, bind listeners, fit exports, build tables               dropped, if one fails
//!   try        engine: devices, flows that come, policies                            taken back, if one fails
//!   ─────────  nothing below can fail
//!   close      listeners; doors of exports that go, and their clients drain          with the protocol's own error
//!   shrink     exports that get shorter: the door, then the end of what is under way
//!   open       limits, tables, listeners that come
//!   let go     flows, devices
//! ```
//! What goes is gone before what comes is offered: a byte that changes hands is never two exports' (I11). What is tried
//! adds and changes alone, so that it can be taken back without anybody noticing more than a pause.
//!
//! # A device that hangs
//! holds nothing else up. Requests that it does not end within `drain-s` seconds, and as long again once their clients
//! are shut down, are left to it; what they may still touch is nobody's until they have ended (`unended.rs`).
//!
//! Invariant: a proposal is applied as a whole or not at all (I12 of `ARCHITECTURE.md`). Its number, its revision, and
//! who has made it are kept by the control plane (`control/src/ledger.rs`).

mod difference;
mod erase;
mod names;
mod narrow;
mod unended;
mod withheld;

pub use difference::Change;
pub use names::Names;
pub use withheld::{Lack, withhold};

use crate::config::caps::{WatchedCaps, Whose};
use crate::config::{ConfigError, DevicePlan, ExportPlan, FlowPlan, LiveCaps, Plan};
use crate::live::{self, Exports, Listeners, LiveListener, Owners, Tenants, Trust};
use crate::log_format::{About, Level};
use crate::output::Output;
use crate::ownership::{KeyOf, Ownership, Verdict};
use crate::privilege;
use crate::trouble::TroubleCounts;
use crate::upgrade::{self, Serving};
use crate::watch::Watch;
use mqfq_blk::Weight;
use mqfq_blk::cap::CapLimits;
use mqfq_blk::client::{MakeClient, Remains};
use mqfq_blk::device::Device;
use mqfq_blk::engine::Engine;
use mqfq_blk::slots::Slot;
use mqfq_front::export::{Door, Export, ExportTable};
use mqfq_front::front_end::{self, ExportAddress, Listener};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use unended::{LOOK, Unended};
use withheld::{Why, Withheld};

/// Between two looks whether a device is closed.
const CLOSED_AGAIN: Duration = Duration::from_millis(2);

/// Within this time a worker says whether a device has requests left.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// Exports that drain at a time.
const DRAINS_AT_ONCE: usize = 64;

/// Why nothing of a proposal was applied: at least one sentence.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Refusals(pub Vec<String>);

impl From<String> for Refusals {
    fn from(sentence: String) -> Refusals {
        Refusals(vec![sentence])
    }
}

/// What runs, and the only one who changes it.
pub struct Reconciler {
    plan: Plan,
    engine: Arc<Engine>,
    things: Things,
    /// Listeners that are gone and by which somebody has come who is still there.
    closed: Vec<LiveListener>,
    /// What devices have not ended of things that are gone.
    unended: Unended,
    /// Exports that lack bytes, for now.
    waiting: BTreeMap<Slot, Withheld>,
    /// Of the plan. `None`: nobody has asked since it was another one as a whole.
    names: Option<Names>,
}

/// Opens a device that comes; sentences that the user should read go to the list.
pub type OpenDevice = fn(&DevicePlan, &mut Vec<String>) -> Result<Arc<dyn Device>, ConfigError>;

/// What stands behind the plan.
pub struct Things {
    /// `devices::open`, or what a simulation has in its place.
    pub open_device: OpenDevice,
    /// By slot.
    pub devices: BTreeMap<Slot, Arc<dyn Device>>,
    /// By slot.
    pub exports: Exports,
    /// By name.
    pub tenants: Tenants,
    /// By export.
    pub owners: Owners,
    /// Of tenants and exports.
    pub caps: LiveCaps,
    /// The same, as those who watch see them.
    pub watched_caps: WatchedCaps,
    /// By address.
    pub listeners: Listeners,
    /// Where names of devices stand for what is told of them.
    pub trouble: Arc<TroubleCounts>,
    /// What another process would take over.
    pub serving: Arc<Serving>,
    /// Whose data devices hold; another process takes it over.
    pub ownership: Arc<Mutex<Ownership>>,
    /// What it knows devices by.
    pub key_of: KeyOf,
    /// Who asks devices how they are.
    pub watch: Watch,
    /// What listeners encrypt with.
    pub trust: Arc<Trust>,
    /// For sentences about what was asked for and needs no answer.
    pub output: Output,
}

/// A listener that waits for the commit.
struct Bound {
    address: ExportAddress,
    table: Arc<ExportTable>,
    listener: Box<dyn Listener>,
}

/// A step on the engine that was made, and may have to be taken back.
enum Made {
    Device(Slot),
    Flows(Slot),
    Policy(Slot),
}

impl Reconciler {
    /// Of an engine that runs `plan`, of which some exports are withheld ([`withhold`]).
    pub fn new(plan: Plan, engine: Arc<Engine>, things: Things, withheld: Vec<(Slot, u64, Verdict)>) -> Reconciler {
        things.watched_caps.follow(&things.caps, &plan);
        let (closed, unended, waiting) = (Vec::new(), Unended::default(), BTreeMap::new());
        let mut reconciler = Reconciler { plan, engine, things, closed, unended, waiting, names: None };
        reconciler.begin(withheld);
        reconciler
    }

    /// What is in force.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What stands behind it.
    pub fn things(&self) -> &Things {
        &self.things
    }

    /// Puts `plan` in force, as a whole or not at all, and says what is different; with `dry_run` it only says what
    /// would be. Blocks until it is in force, which may take as long as `server.drain-s` says, and again as long for
    /// devices that must run empty.
    ///
    /// # Errors
    /// [`Refusals`]: what cannot be had while tenants are served, or what failed. All is as before.
    pub fn propose(&mut self, plan: &Plan, dry_run: bool) -> Result<Vec<Change>, Refusals> {
        self.look_again(!dry_run);
        let target = self.plan.aligned(plan, self.unended.places())?;
        self.unended.refuse(&target, &self.plan)?;
        self.refuse_claims(&target)?;
        let policies = |slot: Slot, plan: &DevicePlan| {
            let has_class_queues = self.engine.has_class_queues(slot.place());
            let to_be = live::policy(plan, self.engine.workers(), has_class_queues);
            [self.engine.policy(slot.place()).kind, to_be.kind]
        };
        let changes = difference::between(&self.plan, &target, &policies);
        if dry_run {
            return Ok(changes);
        }
        if !changes.is_empty() {
            self.apply(&target).inspect_err(|_| {
                // Who was to come has neither a guarantee nor a cap.
                self.things.tenants.follow(&self.plan);
                self.things.caps.follow(&self.engine, &self.plan);
            })?;
        }
        self.plan = target;
        self.names = None;
        self.things.watched_caps.follow(&self.things.caps, &self.plan);
        self.await_erases();
        Ok(changes)
    }

    /// Puts a weight and caps of a tenant in force, as [`Reconciler::propose`] would, without a plan of everything.
    /// `None`: groups compete, or weights are those of exports, and nothing was done.
    pub fn set_tenant(&mut self, tenant: &str, weight: Weight, caps: CapLimits) -> Option<Vec<Change>> {
        let is_its = |(_, flow): &(Slot, &FlowPlan)| flow.tenant == tenant;
        let flows = |(slot, device): (Slot, &DevicePlan)| {
            device.flows.iter().filter(is_its).map(|(flow, _)| (slot, flow)).collect::<Vec<_>>()
        };
        let named = self.names().map(|names| {
            let flows = names.flows.get(tenant).into_iter().flatten();
            flows.map(|(device, of)| (*device, of.flow)).collect()
        });
        let flows: Vec<(Slot, Slot)> = named.unwrap_or_else(|| self.plan.devices.iter().flat_map(flows).collect());
        let has_groups = |(device, flow): &(Slot, Slot)| {
            let device = &self.plan.devices[*device];
            !device.groups.is_empty() || device.flows[*flow].export.is_some()
        };
        if flows.iter().any(has_groups) {
            return None;
        }
        self.look_again(false);
        let mut changes = Vec::new();
        let mut had = None;
        for (slot, flow_slot) in flows {
            let device = &mut self.plan.devices[slot];
            let flow = &mut device.flows[flow_slot];
            had.get_or_insert(flow.caps);
            if flow.weight != weight {
                changes.push(difference::of_weight(&device.config.name, tenant, flow.weight, weight));
                self.engine.set_flow_weight(slot.place(), flow_slot.into(), weight);
            }
            (flow.weight, flow.caps) = (weight, caps);
        }
        if let Some(had) = had.filter(|had| *had != caps) {
            changes.push(difference::of_caps(Whose::Tenant(tenant.to_owned()), had, caps));
            self.things.caps.set(&self.engine, &Whose::Tenant(tenant.to_owned()), caps);
        }
        Some(changes)
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
            let old = Arc::downgrade(&self.things.devices[&slot]);
            let without = self.plan.without_device(slot);
            self.refuse_to_unbind(name, &without)?;
            self.propose(&without, false)?;
            // Its lock goes with the last who has it, such as the thread that asks how it is.
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

    /// Sockets that go in `without`, which has everything but the device `name`, would have to be bound again.
    ///
    /// # Errors
    /// One sentence: the sandbox lets no socket be bound.
    fn refuse_to_unbind(&self, name: &str, without: &Plan) -> Result<(), String> {
        if self.plan.server.privilege.sandbox != privilege::Level::Strict {
            return Ok(());
        }
        let stays = |address: &ExportAddress| without.listeners.iter().any(|(other, _)| other == address);
        // An address with folders is a device of the kernel, which is opened and not bound.
        let is_socket = |address: &ExportAddress| address.address().folders().is_empty();
        let mut addresses = self.plan.listeners.iter().map(|(address, _)| address);
        match addresses.find(|address| is_socket(address) && !stays(address)) {
            None => Ok(()),
            Some(address) => Err(format!(
                "device {name} cannot be reopened with sandbox = \"strict\": {address} has exports of this device \
                 alone and could not be bound again; allowed is an address that another device serves too, or a restart"
            )),
        }
    }

    /// Closes the devices that have no request left, once their exports are drained. For a server that ends although
    /// another device still has requests: the kernel keeps the process, and all that it has open, until those end.
    pub fn close_idle_devices(&mut self) {
        let Things { devices, serving, .. } = &mut self.things;
        devices.retain(|slot, _| self.engine.remove_device(slot.place(), ANSWERS_WITHIN).is_err());
        serving.follow(Vec::new(), BTreeMap::new());
    }

    /// A device that held still while it was changed has the flows and the policy of the plan at last.
    fn catch_up(&self, slot: Slot) -> Result<(), String> {
        let plan = &self.plan.devices[slot];
        let policy = live::policy(plan, self.engine.workers(), self.engine.has_class_queues(slot.place()));
        let change_policy = || match self.engine.policy(slot.place()) == policy {
            true => Ok(()),
            false => self.engine.set_policy(slot.place(), policy, LOOK),
        };
        // As in `try_engine`.
        if !plan.groups.is_empty() {
            change_policy()?;
        }
        self.engine.set_flows(slot.place(), &live::flows(plan), &live::grouping(plan), LOOK)?;
        if plan.groups.is_empty() { change_policy() } else { Ok(()) }
    }

    fn apply(&mut self, target: &Plan) -> Result<(), Refusals> {
        let devices = self.open_devices(target)?;
        self.things.trust.learn(&target.trust);
        self.things.tenants.add(target)?;
        self.things.caps.add(target);
        let device = |slot| devices.get(&slot).or_else(|| self.things.devices.get(&slot)).expect("of the plan").clone();
        let Things { tenants, caps, exports: before, .. } = &self.things;
        let exports = live::exports(target, tenants, caps, device, before)?;
        for (_, slots) in &target.listeners {
            // What is wrong with a list is found before anything is touched.
            ExportTable::new(live::offered(slots, &exports))?;
        }
        let bound = self.bind(target)?;
        let mut made = Vec::new();
        if let Err(sentence) = self.try_engine(target, &devices, &mut made) {
            made.into_iter().rev().for_each(|step| self.take_back(step));
            return Err(sentence.into());
        }
        self.commit(target, devices, exports, bound);
        Ok(())
    }

    /// Devices that come, opened.
    fn open_devices(&self, target: &Plan) -> Result<BTreeMap<Slot, Arc<dyn Device>>, String> {
        let mut warnings = Vec::new();
        let is_new = |(slot, _): &(Slot, &DevicePlan)| self.plan.devices.get(*slot).is_none();
        let open = |(slot, plan): (Slot, &DevicePlan)| {
            let device = (self.things.open_device)(plan, &mut warnings).map_err(|error| error.to_string())?;
            Ok((slot, device))
        };
        let opened = target.devices.iter().filter(is_new).map(open).collect();
        warnings.iter().for_each(|warning| self.things.output.note(warning));
        opened
    }

    /// Listeners that come, of which nobody has let a client in.
    fn bind(&self, target: &Plan) -> Result<Vec<Bound>, String> {
        let is_new = |(address, _): &&(ExportAddress, Vec<Slot>)| self.things.listeners.of(address).is_none();
        target.listeners.iter().filter(is_new).map(|(address, _)| self.bind_one(address)).collect()
    }

    fn bind_one(&self, address: &ExportAddress) -> Result<Bound, String> {
        let table = Arc::new(ExportTable::new([])?);
        let listener = self.things.listeners.listen(address, table.clone())?;
        Ok(Bound { address: address.clone(), table, listener })
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.plan.server.drain_s)
    }

    /// What may fail: devices and flows that come, and policies. Flows that go are still there after it.
    fn try_engine(
        &self,
        target: &Plan,
        devices: &BTreeMap<Slot, Arc<dyn Device>>,
        made: &mut Vec<Made>,
    ) -> Result<(), String> {
        let workers = self.engine.workers();
        for (slot, plan) in target.devices.iter() {
            let Some(before) = self.plan.devices.get(slot) else {
                let options = live::device_options(plan, devices[&slot].clone(), workers);
                self.engine.add_device(slot.place(), &options)?;
                made.push(Made::Device(slot));
                continue;
            };
            let both = with_those_that_go(before, plan);
            let is_same = difference::same_flows(before, &both);
            // A policy that has groups comes before groups, and groups go before one that has none.
            let change_policy = |made: &mut Vec<Made>| {
                let policy = live::policy(plan, workers, self.engine.has_class_queues(slot.place()));
                self.engine.set_policy(slot.place(), policy, self.patience())?;
                made.push(Made::Policy(slot));
                Ok::<(), String>(())
            };
            let has_other_policy = before.config.policy != plan.config.policy;
            if has_other_policy && !plan.groups.is_empty() {
                change_policy(made)?;
            }
            if !is_same {
                let (flows, grouping) = (live::flows(&both), live::grouping(&both));
                self.engine.set_flows(slot.place(), &flows, &grouping, self.patience())?;
                made.push(Made::Flows(slot));
            }
            if has_other_policy && plan.groups.is_empty() {
                change_policy(made)?;
            }
        }
        Ok(())
    }

    /// A step goes back. That it cannot is said; then the device goes on with what it has, which reports show, until a
    /// later proposal finds it moving.
    fn take_back(&mut self, step: Made) {
        let patience = self.patience();
        let result = match step {
            Made::Device(slot) => {
                let gone = self.engine.remove_device(slot.place(), patience);
                // If it hangs by now nobody gets its index before it has ended.
                self.unended.device(slot, gone.is_ok());
                gone
            }
            Made::Flows(slot) => {
                let plan = &self.plan.devices[slot];
                let back = self.engine.set_flows(slot.place(), &live::flows(plan), &live::grouping(plan), patience);
                back.inspect_err(|_| self.unended.follow(slot, false))
            }
            Made::Policy(slot) => {
                let has_class_queues = self.engine.has_class_queues(slot.place());
                let policy = live::policy(&self.plan.devices[slot], self.engine.workers(), has_class_queues);
                let back = self.engine.set_policy(slot.place(), policy, patience);
                back.inspect_err(|_| self.unended.follow(slot, false))
            }
        };
        self.told(result);
    }

    /// Of a step that needs no answer.
    fn told(&self, result: Result<(), String>) {
        if let Err(sentence) = result {
            self.things.output.note(&sentence);
        }
    }

    /// From here on nothing fails: what does not end in time is said, and let be, unless it could still write bytes
    /// that are to be somebody else's.
    fn commit(&mut self, target: &Plan, devices: BTreeMap<Slot, Arc<dyn Device>>, exports: Exports, bound: Vec<Bound>) {
        let grace = Duration::from_secs(target.server.drain_s);
        let addresses: Vec<&ExportAddress> = target.listeners.iter().map(|(address, _)| address).collect();
        self.things.listeners.keep(&addresses).into_iter().for_each(|gone| self.close(gone, grace));
        self.things.trust.follow(&target.trust);
        self.drain_exports(target, grace);
        self.resize(target, &exports, grace);
        self.things.caps.follow(&self.engine, target);
        self.things.tenants.follow(target);
        self.things.owners.follow(target);
        // Before the first client: another device may have had the index.
        self.name_devices(target, &devices);
        self.open(target, &exports, bound);
        let sentences = self.things.listeners.limit(&target.server, &self.plan.server);
        sentences.iter().for_each(|sentence| self.things.output.note(sentence));
        self.let_go(target, grace);
        let stay: BTreeSet<Slot> = target.devices.iter().map(|(slot, _)| slot).collect();
        self.things.devices.extend(devices);
        self.things.devices.retain(|slot, _| stay.contains(slot));
        self.things.exports = exports;
        let named =
            |(slot, device): (&Slot, &Arc<dyn Device>)| (target.devices[*slot].config.name.clone(), device.clone());
        let listening = target.listeners.iter().filter_map(|(address, _)| self.things.listeners.of(address));
        let listening = listening.map(|listener| (listener.number, upgrade::key(&listener.address)));
        // Ours, and one of each connection.
        self.closed.retain(|closed| closed.places.as_ref().is_some_and(|places| Arc::strong_count(places) > 1));
        let elsewhere = self.closed.iter().filter_map(|closed| Some((closed.number, key_elsewhere(target, closed)?)));
        let listening = listening.chain(elsewhere).collect();
        self.things.serving.follow(self.things.devices.iter().map(named).collect(), listening);
    }

    /// Nobody comes by a listener any more that is no longer one of them.
    fn close(&mut self, gone: LiveListener, grace: Duration) {
        if !front_end::close_listener(&self.engine, gone.number, grace) {
            let (address, grace_s) = (&gone.address, grace.as_secs());
            self.things.output.note(&format!("{address} was not gone within {grace_s} s: its requests fail now"));
        }
        // A replacement would have them go on at another address, with its exports and without TLS if it has none.
        gone.places.iter().for_each(|places| places.close_handshakes());
        self.closed.push(gone);
    }

    /// Listeners that are gone are forgotten with the last who has come by them; until then another process would have
    /// those at another address.
    fn follow_closed(&mut self) {
        // Ours, and one of each connection.
        let is_over =
            |closed: &mut LiveListener| closed.places.as_ref().is_none_or(|places| Arc::strong_count(places) == 1);
        let over: Vec<LiveListener> = self.closed.extract_if(.., is_over).collect();
        over.iter().for_each(|closed| self.things.serving.call(closed.number, None));
        for closed in &self.closed {
            self.things.serving.call(closed.number, key_elsewhere(&self.plan, closed));
        }
    }

    /// Exports that go take no new clients, and those that they have are drained.
    fn drain_exports(&mut self, target: &Plan, grace: Duration) {
        let gone = self.things.exports.iter().filter(|(slot, _)| target.exports.get(**slot).is_none());
        let gone: Vec<(Slot, Export)> = gone.map(|(slot, export)| (*slot, export.clone())).collect();
        gone.iter().for_each(|(_, export)| export.door.close());
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
                    // There is no thread to be had: one after another.
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

    /// An export that is drained has the bytes no more that it `had`.
    fn release(&mut self, slot: Slot, had: u64) {
        // Its eraser was drained with it.
        self.waiting.remove(&slot);
        let export = &self.plan.exports[slot];
        let device = (self.things.key_of)(&self.plan.devices[export.device]);
        self.ownership().release(device.as_ref(), &(export.offset_bytes..export.offset_bytes + had));
    }

    /// Clients of an export that goes were still there after `grace`.
    fn tell_late(&mut self, slot: Slot, export: &Export, grace: Duration) {
        let plan = &self.plan.exports[slot];
        let range = plan.offset_bytes..plan.offset_bytes + plan.size_bytes.max(export.size_now_bytes());
        let (name, grace_s) = (mqfq_config::text::shown(&export.name), grace.as_secs());
        self.things.output.note(&match self.unended.bytes(&self.engine, plan.device, range, &export.name) {
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

    /// Each takes its clients from now on. Those that stay have their new size and access; of one that shrinks nothing
    /// is under way beyond its end, or it is nobody's there. Who gets bytes of another's gets them last.
    fn resize(&mut self, target: &Plan, exports: &Exports, grace: Duration) {
        let mut claims = Vec::new();
        let waited: Vec<Slot> = self.waiting.keys().copied().collect();
        let had: BTreeMap<Slot, u64> = waited.into_iter().map(|slot| (slot, self.had(slot))).collect();
        for (slot, export) in target.exports.iter() {
            let before = self.plan.exports.get(slot);
            let was_read_only = before.map(|before| before.read_only);
            let had = had.get(&slot).copied().unwrap_or(before.map_or(0, |before| before.size_bytes));
            let is_same = before
                .is_some_and(|before| (before.size_bytes, before.keep_data) == (export.size_bytes, export.keep_data));
            let goes_on = self.waiting.get(&slot).is_some_and(|withheld| {
                is_same
                    || matches!(withheld.why, Why::Asked(_)) && export.keep_data.is_none() && had < export.size_bytes
            });
            if !goes_on && let Some(withheld) = self.waiting.remove(&slot) {
                self.stop_erase(slot, withheld, grace);
            }
            self.shrink(was_read_only, had, export, &exports[&slot].door, grace);
            if !goes_on && had < export.size_bytes {
                claims.push((slot, had));
            }
        }
        self.claim(target, exports, claims);
    }

    /// An export that `had` so many bytes takes its clients from now on, and has its access; if it has fewer bytes,
    /// nothing is under way beyond its end, or it is nobody's there.
    fn shrink(&mut self, was_read_only: Option<bool>, had: u64, export: &ExportPlan, door: &Door, grace: Duration) {
        door.admit(export.clients.clone());
        if was_read_only.is_some_and(|was| was != export.read_only) {
            door.set_read_only(export.read_only);
        }
        if had <= export.size_bytes {
            return;
        }
        door.resize(export.size_bytes);
        let range = export.offset_bytes + export.size_bytes..export.offset_bytes + had;
        let device = (self.things.key_of)(&self.plan.devices[export.device]);
        let mut ownership = self.ownership();
        ownership.release(device.as_ref(), &range);
        ownership.give_up(device.as_ref(), &range);
        drop(ownership);
        let beyond = Remains::Bytes(range.start, range.end);
        if let Err(reason) = self.engine.await_end(export.device.place(), beyond, grace)
            && self.unended.bytes(&self.engine, export.device, range, &export.name)
        {
            let name = mqfq_config::text::shown(&export.name);
            let sentence = format!("export {name} shrank: {reason}, and what it had is nobody's until they do");
            self.things.output.note(&sentence);
        }
    }

    /// Every address offers what it is to offer, and lets in as many.
    fn open(&mut self, target: &Plan, exports: &Exports, bound: Vec<Bound>) {
        let mut clients: Vec<MakeClient> = Vec::new();
        for Bound { address, table, listener } in bound {
            self.things.listeners.add(address, table, &*listener);
            clients.extend(listener.into_clients());
        }
        offer(target, exports, &self.waiting, &self.things.listeners);
        clients.into_iter().for_each(|client| self.engine.attach(client));
    }

    /// Flows and devices that go.
    fn let_go(&mut self, target: &Plan, patience: Duration) {
        for (slot, before) in self.plan.devices.iter() {
            let result = match target.devices.get(slot) {
                None => {
                    let gone = self.engine.remove_device(slot.place(), patience);
                    self.unended.device(slot, gone.is_ok());
                    self.unended.follow(slot, true);
                    self.ownership().forget((self.things.key_of)(before).as_ref());
                    gone
                }
                Some(plan) if before.flows.iter().all(|(flow, _)| plan.flows.get(flow).is_some()) => Ok(()),
                Some(plan) => {
                    let gone = self.engine.set_flows(slot.place(), &live::flows(plan), &live::grouping(plan), patience);
                    gone.inspect_err(|_| self.unended.follow(slot, false))
                }
            };
            self.told(result);
        }
    }

    /// Devices that have come have a name where their troubles are told, and somebody who asks how they are.
    fn name_devices(&self, target: &Plan, devices: &BTreeMap<Slot, Arc<dyn Device>>) {
        for (slot, device) in devices {
            let name = target.devices[*slot].config.name.clone();
            if let Some((before, line)) = self.things.trouble.name(slot.place(), &name) {
                self.things.output.say(Level::Warning, About::device(&before), &line);
            }
            self.things.watch.add(&name, device);
        }
    }
}

/// An export has no byte yet.
fn is_nowhere(waiting: &BTreeMap<Slot, Withheld>, slot: Slot) -> bool {
    waiting.get(&slot).is_some_and(|withheld| withheld.had == 0)
}

/// Every address of `plan` offers its exports, but for those that wait, and lets in as many as it may.
fn offer(plan: &Plan, exports: &Exports, waiting: &BTreeMap<Slot, Withheld>, listeners: &Listeners) {
    for (address, slots) in &plan.listeners {
        let listener = listeners.of(address).expect("bound before");
        let slots: Vec<Slot> = slots.iter().filter(|slot| !is_nowhere(waiting, **slot)).copied().collect();
        listener.table.replace(live::offered(&slots, exports)).expect("a list that was made before");
        if let Some(places) = &listener.places {
            places.share(&listener.table, plan.server.connections_max);
        }
    }
}

/// By which address those go on in another process who have come by one that is gone: one that offers what is left of
/// what was offered there.
fn key_elsewhere(target: &Plan, closed: &LiveListener) -> Option<String> {
    let left = closed.table.all().into_iter().map(|export| export.id.0);
    let left: Vec<Slot> = left.filter(|slot| target.exports.get(*slot).is_some()).collect();
    let is_same = |(address, slots): &&(ExportAddress, Vec<Slot>)| {
        address.front_end().name() == closed.address.front_end().name() && left.iter().all(|slot| slots.contains(slot))
    };
    target.listeners.iter().find(is_same).map(|(address, _)| upgrade::key(address))
}

/// A device with the flows that come, and those that go as they were.
fn with_those_that_go(before: &DevicePlan, plan: &DevicePlan) -> DevicePlan {
    let mut both = before.clone();
    let same_groups = before.groups.len() == plan.groups.len()
        && before
            .groups
            .iter()
            .zip(&plan.groups)
            .all(|(one, other)| (&one.name, one.parent) == (&other.name, other.parent));
    both.groups.clone_from(&plan.groups);
    both.flows = plan.flows.clone();
    let going: Vec<_> = before.flows.iter().filter(|(slot, _)| plan.flows.get(*slot).is_none()).collect();
    for (slot, flow) in going {
        let group = flow.group.filter(|_| same_groups);
        both.flows.put(slot, FlowPlan { group, ..flow.clone() });
    }
    both
}

#[cfg(test)]
mod tests;
