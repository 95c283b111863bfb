//! The running things of a plan: opened devices, exports that clients have, listeners, tenants' memory.
//!
//! Answers: which thing of the process is which section of the config? The reconciler (`reconcile.rs`) alone changes
//! it; a report asks for the counters of the listeners, which are shared.

use crate::config::difference::Difference;
use crate::config::trust::{TlsMode, TrustPlan};
use crate::config::{DevicePlan, ExportPlan, FlowPlan, LiveCaps, Plan, ServerConfig, family};
use mqfq_blk::PolicyOptions;
use mqfq_blk::cap::Caps;
use mqfq_blk::device::Device;
use mqfq_blk::engine::{DeviceOptions, FlowOptions, Grouping};
use mqfq_blk::slots::{NoPlace, PLACES_MAX, Slot, Slots};
use mqfq_front::connection_slots::ConnectionSlots;
use mqfq_front::export::{BlockSizes, Export, ExportId, ExportState, ExportTable, TenantId};
use mqfq_front::front_end::{ExportAddress, LimitsSince, ListenOptions, Listener};
use mqfq_front::memory::{MemoryLimits, ServerMemory, TenantMemory};
use mqfq_front::stats::{Counts, Stats};
use mqfq_front::tls::{Keys, Offer};
use std::collections::BTreeMap;
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

/// Most memory of each tenant of a plan, bytes.
fn memory_limits(plan: &Plan) -> BTreeMap<&str, u64> {
    let flows = plan.devices.values().flat_map(|device| device.flows.values());
    flows.map(|flow| (flow.tenant.as_str(), flow.memory_bytes)).collect()
}

impl Tenants {
    /// The tenants of `plan`, which hold nothing.
    ///
    /// # Errors
    /// There are more than can be named.
    pub fn new(plan: &Plan) -> Result<Tenants, String> {
        let all = memory_limits(plan);
        let limits = MemoryLimits { server_bytes: plan.server.memory_bytes, tenants: all.len() };
        let mut tenants =
            Tenants { server: ServerMemory::new(limits), by_name: BTreeMap::new(), ids: Slots::new(PLACES_MAX) };
        all.into_iter().try_for_each(|(name, bytes_max)| tenants.add(name, bytes_max).map(drop))?;
        Ok(tenants)
    }

    /// Adds a tenant, and shares nothing out yet. True: it was not there.
    ///
    /// # Errors
    /// As [`Tenants::new`].
    pub fn add(&mut self, name: &str, bytes_max: u64) -> Result<bool, String> {
        if self.by_name.contains_key(name) {
            return Ok(false);
        }
        let id = self.ids.insert(()).map_err(|NoPlace| format!("more than {PLACES_MAX} tenants"))?;
        let tenant = Tenant { id: TenantId(id), memory: self.server.tenant(bytes_max) };
        self.by_name.insert(name.to_owned(), tenant);
        Ok(true)
    }

    /// Removes a tenant, and shares nothing out yet.
    pub fn remove(&mut self, name: &str) {
        if let Some(tenant) = self.by_name.remove(name) {
            self.ids.remove(tenant.id.0);
        }
    }

    /// Shares the server's memory out among the tenants.
    pub fn share(&self, server_bytes: u64) {
        let limits = MemoryLimits { server_bytes, tenants: self.by_name.len() };
        self.server.share(limits, self.by_name.values().map(|tenant| &*tenant.memory));
    }

    /// Sets most memory of a tenant, bytes.
    pub fn limit(&self, name: &str, bytes_max: u64) {
        if let Some(tenant) = self.by_name.get(name) {
            self.server.limit(&tenant.memory, bytes_max);
        }
    }

    /// The tenants are those of `plan`, with their limits.
    #[cfg(debug_assertions)]
    pub fn are_of(&self, plan: &Plan) -> bool {
        let limits = self.by_name.iter().map(|(name, tenant)| (name.as_str(), tenant.memory.limits().1));
        limits.eq(memory_limits(plan))
    }
}

/// The exports of `plan`, of tenants that are there, by slot.
///
/// # Errors
/// One sentence: an export that does not fit its device.
pub fn exports(
    plan: &Plan,
    tenants: &Tenants,
    caps: &LiveCaps,
    device: impl Fn(Slot) -> Arc<dyn Device>,
) -> Result<Exports, String> {
    let one = |(slot, export): (Slot, &ExportPlan)| {
        let plan = &plan.devices[export.device];
        let tenant = &plan.flows[export.flow].tenant;
        let resources = ExportResources::new(slot, export, tenant, (tenants, caps), None);
        Ok((slot, fit(export, resources, plan, &*device(export.device))?))
    };
    plan.exports.iter().map(one).collect()
}

/// Number and owner of an export.
pub struct ExportResources {
    id: ExportId,
    tenant: TenantId,
    memory: Arc<TenantMemory>,
    caps: Arc<Caps>,
    state: ExportState,
}

impl ExportResources {
    /// An export of a tenant that is there. It keeps the state that it had `before`.
    pub fn new(
        slot: Slot,
        export: &ExportPlan,
        tenant: &str,
        (tenants, caps): (&Tenants, &LiveCaps),
        before: Option<&Export>,
    ) -> ExportResources {
        let Tenant { id, memory } = tenants.by_name[tenant].clone();
        let state = before.map(|export| export.state.clone()).unwrap_or_default();
        if before.is_none() {
            state.admit(export.clients.clone());
            state.set_poll(export.poll);
        }
        ExportResources { id: ExportId(slot), tenant: id, memory, caps: caps.of(&export.name, tenant), state }
    }
}

/// The export as the front end wants it.
///
/// # Errors
/// One sentence: it does not fit the device as that turned out to be.
pub fn fit(
    export: &ExportPlan,
    resources: ExportResources,
    plan: &DevicePlan,
    device: &dyn Device,
) -> Result<Export, String> {
    let info = device.info_at(export.offset_bytes);
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
    let ExportResources { id, tenant, memory, caps, state } = resources;
    Ok(Export {
        id,
        name: export.name.clone(),
        description: export.description.clone().unwrap_or_default(),
        device: export.device.into(),
        flow: export.flow.into(),
        tenant,
        state,
        offset_bytes,
        size_bytes,
        read_only: export.read_only,
        block,
        memory,
        caps,
    })
}

/// The exports that an address of a plan offers.
pub fn offered<'a>(slots: &'a [Slot], exports: &'a Exports) -> impl Iterator<Item = Export> + 'a {
    slots.iter().map(|slot| exports[slot].clone())
}

/// The flows of a device, by place, as the engine takes them.
pub fn flows(plan: &DevicePlan) -> Vec<Option<FlowOptions>> {
    let mut flows = vec![None; plan.flows.places()];
    plan.flows.iter().for_each(|(slot, of)| flows[slot.place()] = Some(flow(of)));
    flows
}

/// One flow.
pub fn flow(flow: &FlowPlan) -> FlowOptions {
    FlowOptions {
        name: flow.name(),
        weight: flow.weight,
        class: flow.class,
        limits: flow.staged,
        goal: flow.goal.clone(),
    }
}

/// The groups of a device's flows.
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
        prepare: plan.config.preparation.prepare.clone(),
        queue_depth: plan.config.queue_depth,
        flows: flows(plan).into_iter().flatten().collect(),
        cost: plan.config.cost,
        path: plan.config.path,
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
    /// The address, as configured.
    pub address: ExportAddress,
    /// Number of its own client.
    pub number: u64,
    /// The exports that it offers.
    pub table: Arc<ExportTable>,
    /// The places of its clients.
    pub places: Option<Arc<ConnectionSlots>>,
    /// Its socket's file.
    file: Option<PathBuf>,
}

impl LiveListener {
    /// Shares `connections_max` places out among the tenants that have an export here now.
    pub fn share(&self, connections_max: usize) {
        if let Some(places) = &self.places {
            places.share(&self.table, connections_max);
        }
    }
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

    /// Counters by address, oldest listener first.
    pub fn all(&self) -> Vec<(String, Counts)> {
        self.lock().values().map(|(address, stats)| (address.clone(), stats.counts())).collect()
    }
}

/// The tenant of an export, and the flow of its requests.
#[derive(Clone, PartialEq, Eq)]
pub struct ExportOwner {
    tenant: String,
    device: String,
    flow: String,
    /// Its first address on the device.
    offset_bytes: u64,
}

impl ExportOwner {
    /// The owner of an export of a plan.
    pub fn new(plan: &Plan, export: &ExportPlan) -> ExportOwner {
        let (device, offset_bytes) = (&plan.devices[export.device], export.offset_bytes);
        let flow = &device.flows[export.flow];
        ExportOwner { tenant: flow.tenant.clone(), device: device.config.name.clone(), flow: flow.name(), offset_bytes }
    }
}

/// The owner of each export, by name, for lines about clients and for *why*.
#[derive(Clone)]
pub struct Owners(Arc<Mutex<BTreeMap<String, ExportOwner>>>);

impl Owners {
    /// The owners of `plan`.
    pub fn new(plan: &Plan) -> Owners {
        let owner = |export: &ExportPlan| (export.name.clone(), ExportOwner::new(plan, export));
        Owners(Arc::new(Mutex::new(plan.exports.values().map(owner).collect())))
    }

    /// The tenant of an export.
    pub fn of(&self, export: &str) -> Option<String> {
        self.lock().get(export).map(|owner| owner.tenant.clone())
    }

    /// The device of an export, and the name there under which its requests count.
    pub fn counted(&self, export: &str) -> Option<(String, String)> {
        self.lock().get(export).map(|owner| (owner.device.clone(), owner.flow.clone()))
    }

    /// Exports of a device: the name under which the requests of each count, and its first address.
    pub fn on(&self, device: &str) -> Vec<(String, u64)> {
        let here = |owner: &&ExportOwner| owner.device == device;
        self.lock().values().filter(here).map(|owner| (owner.flow.clone(), owner.offset_bytes)).collect()
    }

    /// The owners are those of `plan`.
    #[cfg(debug_assertions)]
    pub fn are_of(&self, plan: &Plan) -> bool {
        let other = Owners::new(plan);
        *self.lock() == *other.lock()
    }

    /// Sets the owner of an export.
    pub fn add(&self, export: &str, owner: ExportOwner) {
        self.lock().insert(export.to_owned(), owner);
    }

    /// Removes an export.
    pub fn remove(&self, export: &str) {
        self.lock().remove(export);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ExportOwner>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// TLS of the listeners that there are and that come.
pub struct Trust {
    keys: Option<Arc<Keys>>,
    /// Keys of the control plane.
    control: Option<Arc<Keys>>,
    /// Modes of addresses, by their text.
    modes: Mutex<BTreeMap<String, TlsMode>>,
}

impl Trust {
    /// The TLS of `plan`.
    pub fn new(plan: &TrustPlan) -> Arc<Trust> {
        let keys = plan.material.as_ref().map(Keys::new);
        let control = plan.control.as_ref().map(|(_, material)| Keys::new(material));
        Arc::new(Trust { keys, control, modes: Mutex::new(plan.modes.clone()) })
    }

    /// The keys of the control plane's TCP addresses. `None`: they do not encrypt.
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

    /// Knows addresses that come as well.
    pub fn learn(&self, modes: &BTreeMap<String, Option<TlsMode>>) {
        let come = modes.iter().filter_map(|(address, mode)| Some((address.clone(), (*mode)?)));
        self.modes.lock().unwrap_or_else(PoisonError::into_inner).extend(come);
    }

    /// Forgets addresses that go, and handshakes begin with new certificates.
    pub fn follow(&self, new: &Difference) {
        let gone = new.modes.iter().filter(|(_, mode)| mode.is_none());
        let mut modes = self.modes.lock().unwrap_or_else(PoisonError::into_inner);
        gone.for_each(|(address, _)| _ = modes.remove(address));
        let Some(plan) = &new.trust else { return };
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
    /// Listeners by front end and text of the address, which is unique.
    all: BTreeMap<String, LiveListener>,
    counts: ListenerCounts,
    options: MakeOptions,
    since: Arc<LimitsSince>,
}

impl Listeners {
    /// Has no listener. `options` makes those of each, which share `since`.
    pub fn new(options: MakeOptions, since: Arc<LimitsSince>) -> Listeners {
        Listeners { all: BTreeMap::new(), counts: ListenerCounts::default(), options, since }
    }

    /// Gives new connections the limits of `server`, and present sockets its permissions if those differ from
    /// `before`'s. Returns sentences about sockets that cannot have them.
    pub fn limit(&self, server: &ServerConfig, before: &ServerConfig) -> Vec<String> {
        let [handshake, stall] = [server.handshake_s, server.stall_s].map(Duration::from_secs);
        self.since.set(server.connection_memory_bytes, handshake, stall, server.socket_mode);
        let set_mode = |path: &PathBuf| {
            let set = std::fs::set_permissions(path, Permissions::from_mode(server.socket_mode));
            set.err().map(|error| {
                format!("cannot set the permissions of {}: {}", path.display(), mqfq_report::plain(&error))
            })
        };
        let files = self.all.values().filter_map(|listener| listener.file.as_ref());
        files.filter(|_| server.socket_mode != before.socket_mode).filter_map(set_mode).collect()
    }

    /// Counters of the listeners.
    pub fn counts(&self) -> ListenerCounts {
        self.counts.clone()
    }

    /// Listens on an address. No client is let in before its clients live somewhere.
    ///
    /// # Errors
    /// One sentence, which names the address.
    pub fn listen(&self, address: &ExportAddress, table: Arc<ExportTable>) -> Result<Box<dyn Listener>, String> {
        address.address().listen(table, &(self.options)(address))
    }

    /// Adds a listener.
    pub fn add(&mut self, address: ExportAddress, table: Arc<ExportTable>, listener: &dyn Listener) {
        let (number, places, file) = (listener.number(), listener.places(), listener.file());
        // A front end that numbers no listeners has one for each address all the same.
        let key = if number == u64::MAX { u64::MAX - self.all.len() as u64 } else { number };
        self.counts.lock().insert(key, (listener.address(), listener.stats()));
        self.all.insert(address.key(), LiveListener { address, number, table, places, file });
    }

    /// The listener of an address.
    pub fn of(&self, address: &ExportAddress) -> Option<&LiveListener> {
        self.named(&address.key())
    }

    /// The listener with this key.
    pub fn named(&self, key: &str) -> Option<&LiveListener> {
        self.all.get(key)
    }

    /// Takes the one of an address out that is written so.
    pub fn take(&mut self, key: &str) -> Option<LiveListener> {
        let gone = self.all.remove(key)?;
        self.counts.lock().remove(&gone.number);
        Some(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, RealFiles};
    use mqfq_blk::GroupId;

    #[test]
    fn a_device_has_each_of_its_groups_by_name_weight_and_parent() {
        let export = |name: &str, at: u64| {
            format!(
                "[export.{name}]\ndevice = \"d\"\ntenant = \"{name}\"\noffset = {at}\nsize = 4096\nnbd = \"unix:/{name}\"\n"
            )
        };
        let text = format!(
            "[device.d]\nkind = \"null\"\nsize = \"1MiB\"\npolicy = \"mqfq\"\n[group.all]\nweight = 300\n[group.some]\n\
             group = \"all\"\n[tenant.a]\ngroup = \"all\"\n[tenant.b]\ngroup = \"some\"\n[tenant.c]\n{}{}{}",
            export("a", 0),
            export("b", 4096),
            export("c", 8192)
        );
        let plan = Config::parse("c.toml", &text).unwrap().check(&RealFiles).unwrap();
        let Grouping { tree, names } = grouping(plan.devices.values().next().unwrap());
        assert_eq!(names, ["all", "some"]);
        let groups: Vec<_> = tree.groups.iter().map(|group| (group.weight.get(), group.parent)).collect();
        assert_eq!(groups, [(300, None), (100, Some(GroupId(0)))]);
        assert_eq!(tree.of_flow, [Some(GroupId(0)), Some(GroupId(1)), None]);
    }

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
