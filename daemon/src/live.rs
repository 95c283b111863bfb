//! What stands behind a plan while it runs: opened devices, exports that clients have, listeners, tenants' memory.
//!
//! Answers: which thing of the process is which section of the config? The reconciler (`reconcile.rs`) alone changes
//! it; a report asks for the counters of the listeners, which are shared.

use crate::config::trust::{TlsMode, TrustPlan};
use crate::config::{DevicePlan, ExportPlan, FlowPlan, LiveCaps, Plan, ServerConfig, family};
use mqfq_blk::PolicyOptions;
use mqfq_blk::cap::Caps;
use mqfq_blk::device::Device;
use mqfq_blk::engine::{DeviceOptions, FlowOptions, Grouping};
use mqfq_blk::slots::{NoPlace, PLACES_MAX, Slot, Slots};
use mqfq_front::export::{BlockSizes, Door, Export, ExportId, ExportTable, TenantId};
use mqfq_front::front_end::{ExportAddress, LimitsSince, ListenOptions, Listener};
use mqfq_front::memory::{MemoryLimits, ServerMemory, TenantMemory};
use mqfq_front::places::Places;
use mqfq_front::stats::{Counts, Stats};
use mqfq_front::tls::{Keys, Offer};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The exports of a plan as clients have them.
pub type Exports = BTreeMap<Slot, Export>;

/// A tenant, on whichever devices.
#[derive(Clone)]
struct Tenant {
    id: TenantId,
    memory: Arc<TenantMemory>,
}

/// The tenants that have an export, by name.
pub struct Tenants {
    server: ServerMemory,
    by_name: BTreeMap<String, Tenant>,
    ids: Slots<()>,
}

/// What each tenant of a plan may hold, bytes.
fn memory_limits(plan: &Plan) -> BTreeMap<&str, u64> {
    let flows = plan.devices.values().flat_map(|device| device.flows.values());
    flows.map(|flow| (flow.tenant.as_str(), flow.memory_bytes)).collect()
}

impl Tenants {
    /// Those of `plan`, which hold nothing.
    ///
    /// # Errors
    /// There are more than can be named.
    pub fn new(plan: &Plan) -> Result<Tenants, String> {
        let limits = MemoryLimits { server_bytes: plan.server.memory_bytes, tenants: memory_limits(plan).len() };
        let mut tenants =
            Tenants { server: ServerMemory::new(limits), by_name: BTreeMap::new(), ids: Slots::new(PLACES_MAX) };
        tenants.add(plan)?;
        Ok(tenants)
    }

    /// Has those of `plan` as well.
    ///
    /// # Errors
    /// As [`Tenants::new`].
    pub fn add(&mut self, plan: &Plan) -> Result<(), String> {
        for (name, bytes_max) in memory_limits(plan) {
            self.come(name, bytes_max)?;
        }
        Ok(())
    }

    /// Has one more, and shares nothing out yet. True: it was not there.
    ///
    /// # Errors
    /// As [`Tenants::new`].
    pub fn come(&mut self, name: &str, bytes_max: u64) -> Result<bool, String> {
        if self.by_name.contains_key(name) {
            return Ok(false);
        }
        let id = self.ids.insert(()).map_err(|NoPlace| format!("more than {PLACES_MAX} tenants"))?;
        let tenant = Tenant { id: TenantId(id), memory: self.server.tenant(bytes_max) };
        self.by_name.insert(name.to_owned(), tenant);
        Ok(true)
    }

    /// Has one less, and shares nothing out yet.
    pub fn go(&mut self, name: &str) {
        if let Some(tenant) = self.by_name.remove(name) {
            self.ids.remove(tenant.id.0);
        }
    }

    /// Shares the server's memory out among those that it has.
    pub fn share(&self, server_bytes: u64) {
        let limits = MemoryLimits { server_bytes, tenants: self.by_name.len() };
        self.server.share_again(limits, self.by_name.values().map(|tenant| &*tenant.memory));
    }

    /// One may hold so much from now on.
    pub fn limit(&self, name: &str, bytes_max: u64) {
        if let Some(tenant) = self.by_name.get(name) {
            self.server.limit(&tenant.memory, bytes_max);
        }
    }

    /// Those of `plan` are there, and no others.
    #[cfg(debug_assertions)]
    pub fn are_of(&self, plan: &Plan) -> bool {
        self.by_name.keys().eq(memory_limits(plan).into_keys())
    }

    /// Has those of `plan` alone, and shares the memory out among them as it says.
    pub fn follow(&mut self, plan: &Plan) {
        let limits = memory_limits(plan);
        let ids = &mut self.ids;
        self.by_name.retain(|name, tenant| {
            let stays = limits.contains_key(name.as_str());
            if !stays {
                ids.remove(tenant.id.0);
            }
            stays
        });
        let server = MemoryLimits { server_bytes: plan.server.memory_bytes, tenants: limits.len() };
        self.server.share(server, self.by_name.iter().map(|(name, tenant)| (&*tenant.memory, limits[name.as_str()])));
    }
}

/// The exports of `plan`, of tenants that are there, by slot. One that is in `before` keeps its door.
///
/// # Errors
/// One sentence: an export that does not fit its device.
pub fn exports(
    plan: &Plan,
    tenants: &Tenants,
    caps: &LiveCaps,
    device: impl Fn(Slot) -> Arc<dyn Device>,
    before: &Exports,
) -> Result<Exports, String> {
    let one = |(slot, export): (Slot, &ExportPlan)| {
        let plan = &plan.devices[export.device];
        let tenant = &plan.flows[export.flow].tenant;
        let whose = Whose::new(slot, export, tenant, (tenants, caps), before.get(&slot));
        Ok((slot, fit(export, whose, plan, &*device(export.device))?))
    };
    plan.exports.iter().map(one).collect()
}

/// Which export it is, and whose.
pub struct Whose {
    id: ExportId,
    tenant: TenantId,
    memory: Arc<TenantMemory>,
    caps: Arc<Caps>,
    door: Door,
}

impl Whose {
    /// An export of a tenant that is there. It keeps the door that it had `before`.
    pub fn new(
        slot: Slot,
        export: &ExportPlan,
        tenant: &str,
        (tenants, caps): (&Tenants, &LiveCaps),
        before: Option<&Export>,
    ) -> Whose {
        let Tenant { id, memory } = tenants.by_name[tenant].clone();
        let door = before.map(|export| export.door.clone()).unwrap_or_default();
        if before.is_none() {
            door.admit(export.clients.clone());
        }
        Whose { id: ExportId(slot), tenant: id, memory, caps: caps.of(&export.name, tenant), door }
    }
}

/// The export as the front end wants it.
///
/// # Errors
/// One sentence: it does not fit the device as that turned out to be.
pub fn fit(export: &ExportPlan, whose: Whose, plan: &DevicePlan, device: &dyn Device) -> Result<Export, String> {
    let info = device.info();
    let name = &plan.config.name;
    let (offset_bytes, size_bytes) = (export.offset_bytes, export.size_bytes);
    let block_bytes = u64::from(info.block_bytes);
    if !offset_bytes.is_multiple_of(block_bytes) || !size_bytes.is_multiple_of(block_bytes) {
        let message = format!(
            "offset {offset_bytes} and size {size_bytes} do not fit device {name}, allowed are multiples of its block of \
             {block_bytes} bytes"
        );
        return Err(export.place.error(message).to_string());
    }
    if offset_bytes + size_bytes > info.size_bytes {
        let message = format!("ends past the end of device {name}, allowed is up to byte {}", info.size_bytes);
        return Err(export.place.error(message).to_string());
    }
    let mut block = BlockSizes::of_device(&info);
    if let Some(most) = export.payload_bytes_max {
        // Whole blocks: the device's block is a power of two of at most 64 KiB, the least that can be asked for.
        block.payload_bytes_max = block.payload_bytes_max.min(most / block.min_bytes * block.min_bytes);
        block.preferred_bytes = block.preferred_bytes.min(1 << block.payload_bytes_max.ilog2());
    }
    let Whose { id, tenant, memory, caps, door } = whose;
    Ok(Export {
        id,
        name: export.name.clone(),
        description: export.description.clone().unwrap_or_default(),
        device: export.device.into(),
        flow: export.flow.into(),
        tenant,
        door,
        offset_bytes,
        size_bytes,
        read_only: export.read_only,
        block,
        memory,
        caps,
    })
}

/// What an address of a plan offers.
pub fn offered<'a>(slots: &'a [Slot], exports: &'a Exports) -> impl Iterator<Item = Export> + 'a {
    slots.iter().map(|slot| exports[slot].clone())
}

/// The flows of a device, by place, as the engine takes them.
pub fn flows(plan: &DevicePlan) -> Vec<Option<FlowOptions>> {
    let mut flows = vec![None; plan.flows.places()];
    for (slot, flow) in plan.flows.iter() {
        let (weight, class, limits) = (flow.weight, flow.class, flow.staged);
        flows[slot.place()] = Some(FlowOptions { name: flow.name(), weight, class, limits });
    }
    flows
}

/// The groups that they are in.
pub fn grouping(plan: &DevicePlan) -> Grouping {
    let mut of_flow = vec![None; plan.flows.places()];
    plan.flows.iter().for_each(|(slot, flow)| of_flow[slot.place()] = flow.group);
    Grouping {
        tree: family::tree(&plan.groups, of_flow.into_iter()),
        names: plan.groups.iter().map(|group| group.name.clone()).collect(),
    }
}

/// A device as the engine takes it. All its flows are there: it is new.
pub fn device_options(plan: &DevicePlan, device: Arc<dyn Device>, workers: usize) -> DeviceOptions {
    DeviceOptions {
        grouping: grouping(plan),
        name: plan.config.name.clone(),
        device,
        policy: plan.config.policy.options(workers),
        fallback: plan.config.policy.fallback(workers),
        queue_depth: plan.config.queue_depth,
        flows: flows(plan).into_iter().flatten().collect(),
        cost: plan.config.cost,
        path: plan.config.path,
        queues: plan.config.queues,
    }
}

/// The policy of a device that runs: its fallback if the device was not made for class queues.
pub fn policy(plan: &DevicePlan, workers: usize, has_class_queues: bool) -> PolicyOptions {
    let wanted = plan.config.policy.options(workers);
    let fallback = plan.config.policy.fallback(workers);
    fallback.filter(|_| wanted.kind.is_direct() && !has_class_queues).unwrap_or(wanted)
}

/// A place where clients come from.
pub struct LiveListener {
    /// As configured.
    pub address: ExportAddress,
    /// Of its own client.
    pub number: u64,
    /// What it offers.
    pub table: Arc<ExportTable>,
    /// Whom it lets in.
    pub places: Option<Arc<Places>>,
    /// What it has made.
    file: Option<PathBuf>,
}

/// Counters of the listeners that there are, with their addresses as the kernel has them.
#[derive(Clone, Default)]
pub struct ListenerCounts(Arc<Mutex<CountsByListener>>);

/// Address and counters, by the listener's number.
type CountsByListener = BTreeMap<u64, (String, Arc<Stats>)>;

impl ListenerCounts {
    fn lock(&self) -> MutexGuard<'_, CountsByListener> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the order in which they came.
    pub fn all(&self) -> Vec<(String, Counts)> {
        self.lock().values().map(|(address, stats)| (address.clone(), stats.counts())).collect()
    }
}

/// Whose an export is, and where its requests count.
#[derive(Clone, PartialEq, Eq)]
pub struct ExportOwner {
    tenant: String,
    device: String,
    flow: String,
}

impl ExportOwner {
    /// That of an export on a device, whose requests count as those of `flow`.
    pub fn new(device: &str, flow: &FlowPlan) -> ExportOwner {
        ExportOwner { tenant: flow.tenant.clone(), device: device.to_owned(), flow: flow.name() }
    }
}

/// The owner of each export, by name, for lines about clients and for *why*.
#[derive(Clone)]
pub struct Owners(Arc<Mutex<BTreeMap<String, ExportOwner>>>);

impl Owners {
    /// Those of `plan`.
    pub fn new(plan: &Plan) -> Owners {
        let owners = Owners(Arc::default());
        owners.follow(plan);
        owners
    }

    /// The tenant of an export.
    pub fn of(&self, export: &str) -> Option<String> {
        self.lock().get(export).map(|owner| owner.tenant.clone())
    }

    /// The device of an export, and the name there under which its requests count.
    pub fn counted(&self, export: &str) -> Option<(String, String)> {
        self.lock().get(export).map(|owner| (owner.device.clone(), owner.flow.clone()))
    }

    /// Those of `plan`, and no others.
    #[cfg(debug_assertions)]
    pub fn are_of(&self, plan: &Plan) -> bool {
        let other = Owners::new(plan);
        *self.lock() == *other.lock()
    }

    /// One more, or one that is another's now.
    pub fn come(&self, export: &str, owner: ExportOwner) {
        self.lock().insert(export.to_owned(), owner);
    }

    /// One less.
    pub fn go(&self, export: &str) {
        self.lock().remove(export);
    }

    /// Those of `plan` alone.
    pub fn follow(&self, plan: &Plan) {
        let owner = |export: &ExportPlan| {
            let device = &plan.devices[export.device];
            (export.name.clone(), ExportOwner::new(&device.config.name, &device.flows[export.flow]))
        };
        *self.lock() = plan.exports.values().map(owner).collect();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ExportOwner>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// TLS of the listeners that there are and that come.
pub struct Trust {
    keys: Option<Arc<Keys>>,
    /// Of the control plane.
    control: Option<Arc<Keys>>,
    /// By address, as it is written.
    modes: Mutex<BTreeMap<String, TlsMode>>,
}

impl Trust {
    /// As `plan` says.
    pub fn new(plan: &TrustPlan) -> Arc<Trust> {
        let keys = plan.material.as_ref().map(Keys::new);
        let control = plan.control.as_ref().map(|(_, material)| Keys::new(material));
        Arc::new(Trust { keys, control, modes: Mutex::new(plan.modes.clone()) })
    }

    /// What the control plane's TCP addresses encrypt with. `None`: nothing.
    pub fn control(&self) -> Option<Arc<Keys>> {
        self.control.clone()
    }

    /// TLS at an address.
    pub fn at(&self, address: &ExportAddress) -> Option<Offer> {
        let modes = self.modes.lock().unwrap_or_else(PoisonError::into_inner);
        let mode = modes.get(&address.to_string()).copied().unwrap_or(TlsMode::Off);
        let keys = self.keys.clone().filter(|_| mode != TlsMode::Off)?;
        Some(Offer { keys, is_required: mode == TlsMode::Required })
    }

    /// Knows the addresses of `plan` as well.
    pub fn learn(&self, plan: &TrustPlan) {
        let mut modes = self.modes.lock().unwrap_or_else(PoisonError::into_inner);
        modes.extend(plan.modes.iter().map(|(address, mode)| (address.clone(), *mode)));
    }

    /// Knows an address less.
    pub fn forget(&self, address: &str) {
        self.modes.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
    }

    /// Has those of `plan` alone, and handshakes begin with its material.
    pub fn follow(&self, plan: &TrustPlan) {
        *self.modes.lock().unwrap_or_else(PoisonError::into_inner) = plan.modes.clone();
        if let (Some(keys), Some(material)) = (&self.keys, &plan.material) {
            keys.replace(material);
        }
        if let (Some(keys), Some((_, material))) = (&self.control, &plan.control) {
            keys.replace(material);
        }
    }
}

/// Makes the options of the listener of an address.
pub type MakeOptions = Arc<dyn Fn(&ExportAddress) -> ListenOptions + Send + Sync>;

/// The listeners that there are.
pub struct Listeners {
    /// By front end and how the address is written, of which there is one way for each.
    all: BTreeMap<String, LiveListener>,
    counts: ListenerCounts,
    options: MakeOptions,
    since: Arc<LimitsSince>,
}

impl Listeners {
    /// None. `options` makes those of each, which all have `since`.
    pub fn new(options: MakeOptions, since: Arc<LimitsSince>) -> Listeners {
        Listeners { all: BTreeMap::new(), counts: ListenerCounts::default(), options, since }
    }

    /// Gives those who come from now on the limits of `server`, and sockets that are there the permissions, if those
    /// are others than `before`. Sentences about those that cannot have them.
    pub fn limit(&self, server: &ServerConfig, before: &ServerConfig) -> Vec<String> {
        let [handshake, stall] = [server.handshake_s, server.stall_s].map(Duration::from_secs);
        self.since.set(server.connection_memory_bytes, handshake, stall, server.socket_mode);
        let set_mode = |path: &PathBuf| {
            let set = std::fs::set_permissions(path, Permissions::from_mode(server.socket_mode));
            set.err().map(|error| format!("cannot set the permissions of {}: {}", path.display(), crate::plain(&error)))
        };
        let files = self.all.values().filter_map(|listener| listener.file.as_ref());
        files.filter(|_| server.socket_mode != before.socket_mode).filter_map(set_mode).collect()
    }

    /// Their counters.
    pub fn counts(&self) -> ListenerCounts {
        self.counts.clone()
    }

    /// Listens on an address. Nobody is let in before its clients live somewhere.
    ///
    /// # Errors
    /// One sentence, which names the address.
    pub fn listen(&self, address: &ExportAddress, table: Arc<ExportTable>) -> Result<Box<dyn Listener>, String> {
        address.address().listen(table, &(self.options)(address))
    }

    /// From now on it is one of them.
    pub fn add(&mut self, address: ExportAddress, table: Arc<ExportTable>, listener: &dyn Listener) {
        let (number, places, file) = (listener.number(), listener.places(), listener.file());
        // A front end that numbers no listeners has one for each address all the same.
        let key = if number == u64::MAX { u64::MAX - self.all.len() as u64 } else { number };
        self.counts.lock().insert(key, (listener.address(), listener.stats()));
        self.all.insert(format!("{address:?}"), LiveListener { address, number, table, places, file });
    }

    /// The one of an address.
    pub fn of(&self, address: &ExportAddress) -> Option<&LiveListener> {
        self.all.get(&format!("{address:?}"))
    }

    /// Takes the one of an address out.
    pub fn take(&mut self, address: &ExportAddress) -> Option<LiveListener> {
        let gone = self.all.remove(&format!("{address:?}"))?;
        self.counts.lock().remove(&gone.number);
        Some(gone)
    }

    /// Takes those out that `addresses` do not name.
    pub fn keep(&mut self, addresses: &[&ExportAddress]) -> Vec<LiveListener> {
        let keys: BTreeSet<String> = addresses.iter().map(|address| format!("{address:?}")).collect();
        let gone: Vec<LiveListener> =
            self.all.extract_if(.., |key, _| !keys.contains(key)).map(|(_, listener)| listener).collect();
        gone.iter().for_each(|listener| drop(self.counts.lock().remove(&listener.number)));
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn each_limit_of_the_server_is_that_of_its_key_and_reaches_the_next_client() {
        let server = |keys: &str| Config::parse("c.toml", &format!("[server]\n{keys}")).unwrap().server;
        let keys = "connections = 5\nhandshake-s = 7\nstall-s = 8\ndrain-s = 9\nsocket-mode = \"640\"\n\
                    memory = \"3MiB\"\nconnection-memory = \"2MiB\"\n";
        let (before, now) = (server(""), server(keys));
        assert_eq!((now.connections_max, now.handshake_s, now.stall_s, now.drain_s), (5, 7, 8, 9));
        assert_eq!((now.socket_mode, now.memory_bytes, now.connection_memory_bytes), (0o640, 3 << 20, 2 << 20));
        let options = ListenOptions::default();
        let listeners = Listeners::new(Arc::new(|_| ListenOptions::default()), options.since.clone());
        assert_eq!(listeners.limit(&now, &before), [] as [String; 0]);
        let seconds = [options.handshake_timeout_now(), options.stall_timeout_now()].map(|limit| limit.as_secs());
        assert_eq!((seconds, options.socket_mode_now()), ([7, 8], 0o640));
        assert_eq!(options.bytes_in_flight_max_now(), 2 << 20);
    }
}
