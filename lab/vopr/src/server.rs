//! The server: what the daemon makes of a config, without its process around it.
//!
//! Answers: which engine, exports and listeners are there, and what becomes of them in a live change, an upgrade, and a
//! kill? All of it is the code that ships; here stands what the daemon does in what order.

use crate::host::VirtualHost;
use crate::net;
use crate::oracle::SECTOR_BYTES;
use crate::script::Config;
use crate::world::{STEPS, World};
use mqfq_blk::cap::{Cap, CapLimits, Caps};
use mqfq_blk::client::{DeviceIndex, MakeClient, PackedClient, Remains};
use mqfq_blk::device::Device;
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions, Grouping};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::Status;
use mqfq_blk::slots::Slot;
use mqfq_blk::split::Split;
use mqfq_blk::stage::StageLimits;
use mqfq_blk::state;
use mqfq_blk::worker::WorkerContext;
use mqfq_blk::{FlowId, PolicyKind, PolicyOptions, Weight};
use mqfq_blkmq::{QueueLayout, Spread, prepare};
use mqfq_front::FRONT_ENDS;
use mqfq_front::export::{BlockSizes, Export, ExportId, ExportState, ExportTable, TenantId};
use mqfq_front::front_end::{ExportAddress, HandedOver, ListenOptions, Listener, drain_export};
use mqfq_front::memory::{MemoryLimits, ServerMemory};
use mqfq_testing_devices::fault::{Fault, FaultPlan, FaultRule, Kind, OnAbort, When};
use mqfq_testing_devices::faulty::Faulty;
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Sectors of each tenant's export.
pub const SECTORS: usize = 384;

/// Bytes of each tenant's export.
pub const EXPORT_BYTES: u64 = SECTORS as u64 * 512;

/// The only device.
const DEVICE: usize = 0;

/// Commands on each hardware queue.
const QUEUE_DEPTH: u16 = 32;

/// Most bytes that a flow may stage on a worker.
const STAGED_BYTES: u64 = 1 << 20;

/// Payload memory of all connections, bytes.
const SERVER_BYTES: u64 = 64 << 20;

/// How long a change waits for requests, in virtual time: beyond every stall and timeout of a drive here.
const PATIENCE: Duration = Duration::from_secs(10);

/// Things that outlive every server: the drive, and the folder of sockets.
pub struct Site {
    /// Config of the run.
    pub config: Config,
    /// The drive.
    pub device: Arc<Faulty>,
    folder: PathBuf,
    _locked: [File; 2],
    world: Rc<World>,
}

/// A socket where clients come.
struct Socket {
    table: Arc<ExportTable>,
    /// Number of its listener.
    number: u64,
}

/// Listener that makes a socket's clients, and the clients that came with it.
type Listening = (Box<dyn Listener>, Vec<MakeClient>);

/// A server that runs.
pub struct Server {
    site: Rc<Site>,
    engine: Engine,
    /// By tenant; the first ones are NBD's, then the hostile one, then guests.
    exports: Vec<Export>,
    present: Vec<bool>,
    /// By tenant: bytes beyond which no request is left.
    sizes: Vec<u64>,
    weights: Vec<Weight>,
    caps: Vec<Arc<Cap>>,
    /// NBD's, then one for each guest, then one for hostile guests.
    sockets: Vec<Socket>,
    memory: Arc<ServerMemory>,
    /// The largest D since nothing was under way.
    deepest: Cell<u32>,
}

impl Site {
    /// A drive of zeroes, and no server.
    pub fn new(config: &Config, world: Rc<World>) -> Rc<Site> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only that it is another one matters.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = net::scratch().join(format!("mqfq-vopr-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for sockets");
        let locked = lock_up(&folder);
        let inner = MemoryDevice::new(tenants(config) as u64 * EXPORT_BYTES);
        let device = Arc::new(Faulty::new(Arc::new(inner), plan(config)));
        Rc::new(Site { config: config.clone(), device, folder, _locked: locked, world })
    }

    /// The drive has stored these bytes in a tenant's sector, and a power cut may lose them.
    pub fn may_lose(&self, tenant: usize, sector: usize, bytes: &[u8]) -> bool {
        self.device.may_lose(tenant as u64 * EXPORT_BYTES + (sector * SECTOR_BYTES) as u64, bytes)
    }

    fn address(&self, socket: usize) -> ExportAddress {
        let name = if socket == 0 { "nbd" } else { "vhost-user" };
        let front_end = *FRONT_ENDS.iter().find(|front_end| front_end.name() == name).expect("it is registered");
        let text = format!("unix:{}", self.path(socket).display());
        ExportAddress::parse(front_end, &text).expect("a path in a folder for scratch")
    }

    fn path(&self, socket: usize) -> PathBuf {
        self.folder.join(socket.to_string())
    }

    fn listen_options(&self) -> ListenOptions {
        ListenOptions { bytes_in_flight_max: self.config.get("memory"), ..ListenOptions::default() }
    }
}

/// Takes the locks that another user can hold at the sockets: one on the folder, and one on a file of its own that has
/// the name of the server's lock file.
fn lock_up(folder: &Path) -> [File; 2] {
    let name = format!(".mqfq-{}.lock", folder.metadata().expect("a folder for sockets").uid());
    let others = File::create(folder.join(name)).expect("a folder for sockets");
    let locked = [File::open(folder).expect("a folder"), others];
    locked.iter().for_each(|file| file.lock().expect("a lock"));
    locked
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The number of the last socket.
fn hostile_socket(config: &Config) -> usize {
    config.count("guests") + 1
}

/// Tenants with an export: those of NBD, a hostile one, and guests.
pub fn tenants(config: &Config) -> usize {
    config.count("tenants") + 1 + config.count("guests")
}

pub(crate) fn plan(config: &Config) -> FaultPlan {
    let chance = |key: &str| When::Chance(config.get(key) as u32);
    let slow = |kind, ns| FaultRule::of(kind, chance("slow"), Fault::Delay { ns });
    let mut rules = vec![
        FaultRule::any(chance("error"), Fault::Error(Status::Io)),
        FaultRule::of(Kind::Write, chance("torn"), Fault::Torn(Status::Io)),
        FaultRule::any(chance("stall"), Fault::Stall { ns: 2_000_000 }),
        FaultRule::any(chance("lose"), Fault::Forget),
        FaultRule::of(Kind::Read, chance("lose"), Fault::Lose),
        slow(Kind::Read, 300_000),
        slow(Kind::Write, 500_000),
    ];
    rules.push(FaultRule::of(Kind::Read, When::Always, Fault::Delay { ns: 20_000 }));
    rules.push(FaultRule::of(Kind::Write, When::Always, Fault::Delay { ns: 8_000 }));
    FaultPlan {
        seed: config.get("seed"),
        rules,
        reorder: config.count("reorder"),
        volatile_cache: config.get("cache") > 0,
        // A queue that workers share is not reset, so only an abort ends what such a drive has lost.
        on_abort: match config.get("abort") {
            0 if config.get("sq") == 0 => OnAbort::Ignored,
            1 if config.get("sq") == 0 => OnAbort::Refused,
            _ => OnAbort::Ends { after_ns: 10_000 },
        },
        ..FaultPlan::default()
    }
}

fn policy(kind: PolicyKind, depth: u32) -> PolicyOptions {
    PolicyOptions { depth, ..PolicyOptions::new(kind) }
}

impl Server {
    /// Starts a server on the site: a process that finds the drive as the last one left it.
    pub fn start(site: &Rc<Site>) -> Server {
        let started = Server::assemble(site, None, |socket, table| {
            let address = site.address(socket);
            Ok((address.address().listen(table, &site.listen_options())?, Vec::new()))
        });
        started.expect("a server starts")
    }

    /// Another server takes the place of this one, as `--replace` has it: its engine holds still, its listeners and
    /// connections go over as bytes and descriptors, and it ends. The server that serves now, and one sentence where
    /// that is this one still.
    pub fn upgrade(self) -> (Server, Result<(), String>) {
        let site = self.site.clone();
        if let Err(why) = self.engine.pause(true, PATIENCE) {
            return (self, Err(why));
        }
        let mut packed = match self.engine.pack(state::VERSION, PATIENCE) {
            Ok(packed) => packed,
            Err(why) => {
                self.engine.resume();
                return (self, Err(why));
            }
        };
        let old_workers = site.world.dismiss();
        let made = Server::assemble(&site, Some(&self), |socket, table| {
            let number = self.sockets[socket].number;
            let mut mine: Vec<PackedClient> = packed.extract_if(.., |client| client.listener == number).collect();
            // Connections have a place when their listener has one.
            mine.sort_by_key(|client| !client.is_listener);
            let mut mine = mine.into_iter();
            let handed_over = |client: PackedClient| HandedOver { packed: client.packed, version: state::VERSION };
            let listener = mine.next().filter(|client| client.is_listener).ok_or("its listener did not come")?;
            let address = site.address(socket);
            let listener = address.address().adopt(handed_over(listener), table, &site.listen_options())?;
            let connections = mine.map(|client| listener.adopt(handed_over(client))).collect::<Result<_, _>>()?;
            Ok((listener, connections))
        });
        let new = match made {
            Ok(new) => new,
            Err(why) => {
                // The new process says so and ends; the old one goes on where it held still.
                site.world.employ(old_workers);
                self.engine.resume();
                return (self, Err(why));
            }
        };
        // The old process ends: its clients are dropped where they stand, its descriptors closed.
        drop(old_workers);
        drop(self);
        site.world.net.borrow().hang_up();
        (new, Ok(()))
    }

    /// `like`: what the last one had become. `listen`: for each socket.
    fn assemble(
        site: &Rc<Site>,
        like: Option<&Server>,
        mut listen: impl FnMut(usize, Arc<ExportTable>) -> Result<Listening, String>,
    ) -> Result<Server, String> {
        let config = &site.config;
        let count = tenants(config);
        let present = like.map_or_else(|| vec![true; count], |server| server.present.clone());
        let sizes = like.map_or_else(|| vec![EXPORT_BYTES; count], |server| server.sizes.clone());
        let weights = like.map_or_else(|| vec![Weight::DEFAULT; count], |server| server.weights.clone());
        // An engine starts with flows in all places; a tenant without an export has no client that uses its own.
        let flows = (0..count).map(|tenant| flow(config, tenant, weights[tenant])).collect();
        let options = like.map_or_else(
            || policy(Config::policy(config.get("policy")), config.get("depth") as u32),
            |server| server.engine.policy(DEVICE),
        );
        let depth = options.depth;
        let shared = QueueLayout::mq(Spread::PerCore, Spread::Single);
        let device = DeviceOptions {
            path: path(config),
            prepare: (config.get("sq") > 0).then(|| prepare(site.device.clone(), shared)),
            queue_depth: QUEUE_DEPTH,
            ..DeviceOptions::new("drive", site.device.clone(), options, flows)
        };
        let workers = config.count("workers");
        let options = EngineOptions { workers, pin: false, spin_ns: 0, devices: vec![device] };
        let (engine, contexts) = Engine::start_stepped(options, STEPS)?;
        let memory = Arc::new(ServerMemory::new(MemoryLimits { server_bytes: SERVER_BYTES, tenants: count }));
        let caps: Vec<Arc<Cap>> = (0..count).map(|_| Cap::new(CapLimits::NONE)).collect();
        let mut server = Server {
            site: site.clone(),
            engine,
            exports: Vec::new(),
            present,
            sizes,
            weights,
            caps,
            sockets: Vec::new(),
            memory,
            deepest: Cell::new(depth),
        };
        server.exports = (0..count).map(|tenant| server.export(tenant)).collect();
        if let Some(like) = like {
            for (export, before) in server.exports.iter_mut().zip(&like.exports) {
                // The next process reads what `ctl save` writes.
                export.size_bytes = before.size_now_bytes();
                export.read_only = before.is_read_only();
            }
        }
        let mut listening = Vec::new();
        for socket in 0..=hostile_socket(config) {
            let table = Arc::new(ExportTable::new(server.exports_of(socket))?);
            let (listener, connections) = listen(socket, table.clone())?;
            server.sockets.push(Socket { table, number: listener.number() });
            listening.push((listener, connections));
        }
        let worker = |context: WorkerContext| WorkerContext::worker(VirtualHost::new(site.world.clone(), context), 64);
        site.world.employ(contexts.into_iter().map(worker).collect::<Result<_, _>>()?);
        for (listener, connections) in listening {
            listener.into_clients().into_iter().chain(connections).for_each(|client| server.engine.attach(client));
        }
        Ok(server)
    }

    fn export(&self, tenant: usize) -> Export {
        let slot = Slot::first(tenant as u32);
        let block = BlockSizes { min_bytes: 512, ..BlockSizes::of_device(&self.site.device.info()) };
        Export {
            id: ExportId(slot),
            name: name(tenant),
            description: String::new(),
            device: DeviceIndex(DEVICE as u16),
            flow: FlowId(tenant as u32),
            tenant: TenantId(slot),
            state: ExportState::default(),
            offset_bytes: tenant as u64 * EXPORT_BYTES,
            size_bytes: EXPORT_BYTES,
            read_only: false,
            block,
            memory: self.memory.tenant(MemoryLimits::TENANT_BYTES),
            caps: Caps::new(Cap::new(CapLimits::NONE), self.caps[tenant].clone()),
        }
    }

    /// The exports of a socket: all of NBD's there are, or a guest's. The hostile tenant has its own at two.
    fn exports_of(&self, socket: usize) -> Vec<Export> {
        let config = &self.site.config;
        let is_here = |tenant: usize| match socket {
            _ if socket == hostile_socket(config) => tenant == config.count("tenants"),
            _ => self.socket_of(tenant) == socket,
        };
        let here = |(tenant, _): &(usize, &Export)| self.present[*tenant] && is_here(*tenant);
        self.exports.iter().enumerate().filter(here).map(|(_, export)| export.clone()).collect()
    }

    /// Where a tenant's clients come.
    fn socket_of(&self, tenant: usize) -> usize {
        (tenant + 1).saturating_sub(self.site.config.count("tenants") + 1)
    }

    /// Ends it as `kill -9` does: nothing is drained, nothing is told.
    pub fn kill(self) {
        let site = self.site.clone();
        site.world.net.borrow_mut().end_all();
        drop(site.world.dismiss());
        drop(self);
    }

    /// Its policy.
    #[cfg(test)]
    pub fn policy(&self) -> PolicyKind {
        self.engine.policy(DEVICE).kind
    }

    /// Another policy, or the same with another depth. The policy that it has then.
    ///
    /// # Panics
    /// If a refused change changed something, or one that was taken did not (I12).
    pub fn set_policy(&self, kind: PolicyKind, depth: u32) {
        let before = self.engine.policy(DEVICE);
        let wanted = policy(kind, depth);
        let taken = self.engine.set_policy(DEVICE, wanted, PATIENCE);
        let expected = if taken.is_ok() { wanted } else { before };
        assert_eq!(self.engine.policy(DEVICE), expected, "atomic change (I12): {taken:?}");
        self.deepest.set(self.deepest.get().max(expected.depth));
    }

    /// Another weight.
    pub fn set_weight(&mut self, tenant: usize, weight: u64) {
        if let Ok(weight) = Weight::new(weight)
            && self.present[tenant]
        {
            self.weights[tenant] = weight;
            self.engine.set_weight(DEVICE, FlowId(tenant as u32), weight);
        }
    }

    /// Another cap: none, or so many requests per second.
    pub fn set_cap(&self, tenant: usize, iops: Option<u64>) {
        self.engine.set_cap(&self.caps[tenant], CapLimits { iops, bytes_per_s: None });
    }

    /// Another size; when this returns no request beyond it is left. False: the drive kept some.
    pub fn resize(&mut self, tenant: usize, bytes: u64) -> bool {
        let export = &self.exports[tenant];
        self.sizes[tenant] = EXPORT_BYTES;
        export.state.resize(bytes);
        let beyond = Remains::Bytes(export.offset_bytes + bytes, export.offset_bytes + EXPORT_BYTES);
        let is_over = self.engine.await_end(DEVICE, beyond, PATIENCE).is_ok();
        if is_over {
            self.sizes[tenant] = bytes;
        }
        is_over
    }

    /// Makes an export read-only or writable; when this returns every request that was taken before has ended.
    pub fn set_read_only(&self, tenant: usize, read_only: bool) -> bool {
        let export = &self.exports[tenant];
        export.state.set_read_only(read_only);
        self.engine.await_end(DEVICE, Remains::Flow(export.flow), PATIENCE).is_ok()
    }

    /// A tenant goes, with its export and its clients.
    ///
    /// # Panics
    /// If one of its clients is left (I14).
    pub fn remove(&mut self, tenant: usize) {
        if !std::mem::replace(&mut self.present[tenant], false) {
            return;
        }
        drain_export(&self.engine, &self.exports[tenant], Duration::from_millis(1));
        self.offer(tenant);
        if self.set_flows().is_err() {
            // It keeps its place, for which no client asks.
            self.present[tenant] = true;
            self.exports[tenant] = self.export(tenant);
            self.sizes[tenant] = EXPORT_BYTES;
            self.offer(tenant);
        }
    }

    /// Adds an export again, with the bytes that it had.
    pub fn add(&mut self, tenant: usize) {
        if std::mem::replace(&mut self.present[tenant], true) {
            return;
        }
        if self.set_flows().is_err() {
            self.present[tenant] = false;
            return;
        }
        self.exports[tenant] = self.export(tenant);
        self.sizes[tenant] = EXPORT_BYTES;
        self.offer(tenant);
    }

    fn offer(&self, tenant: usize) {
        let export = &self.exports[tenant];
        let change = (export.name.as_str(), self.present[tenant].then(|| export.clone()));
        self.sockets[self.socket_of(tenant)].table.change([change]).expect("an export that was right before");
    }

    fn set_flows(&self) -> Result<(), String> {
        let of = |tenant: usize| self.present[tenant].then(|| flow(&self.site.config, tenant, self.weights[tenant]));
        let flows: Vec<Option<FlowOptions>> = (0..self.present.len()).map(of).collect();
        let before = self.engine.policy(DEVICE);
        let changed = self.engine.set_flows(DEVICE, &flows, &Grouping::default(), PATIENCE);
        assert_eq!(self.engine.policy(DEVICE), before, "atomic change (I12)");
        changed
    }

    /// Where clients of this tenant connect.
    pub fn path_of(&self, tenant: usize) -> PathBuf {
        self.site.path(self.socket_of(tenant))
    }

    /// Where hostile guests connect.
    pub fn hostile_path(&self) -> PathBuf {
        self.site.path(hostile_socket(&self.site.config))
    }

    /// This tenant has an export now.
    pub fn has(&self, tenant: usize) -> bool {
        self.present[tenant]
    }

    /// Nothing is under way or held: the state of a server without requests.
    ///
    /// # Panics
    /// If not, with the invariant.
    pub fn assert_idle(&self) {
        let forgotten = self.site.device.forgotten();
        self.site.world.look(|at, worker| {
            for hctx in worker.hctxs() {
                let left = (hctx.staged(), hctx.admitted(), hctx.in_flight());
                let is_stuck = forgotten > 0;
                assert!(is_stuck || left == (0, 0, 0), "worker {at}: {left:?} staged, admitted, in flight (I10)");
            }
        });
        self.deepest.set(self.engine.policy(DEVICE).depth);
        let stats = self.engine.stats();
        for device in &stats.devices {
            for flow in &device.flows {
                let tenant = flow.name.strip_prefix("tenant-").and_then(|text| text.parse::<usize>().ok());
                let expected = tenant.map(|tenant| self.weights[tenant]);
                assert_eq!(Some(flow.weight), expected, "atomic change (I12): the weight of {}", flow.name);
            }
        }
    }

    /// No request is on its way to bytes that an export had and has no more.
    ///
    /// # Panics
    /// If one is (I11).
    fn assert_apart(&self) {
        for (tenant, size_bytes) in self.sizes.iter().enumerate().filter(|(_, size_bytes)| **size_bytes < EXPORT_BYTES)
        {
            let start_bytes = self.exports[tenant].offset_bytes;
            let beyond = Remains::Bytes(start_bytes + size_bytes, start_bytes + EXPORT_BYTES);
            self.site.world.look(|at, worker| {
                let is_left = worker.hctxs().iter().any(|hctx| hctx.has_any(beyond, u64::MAX));
                assert!(
                    !is_left,
                    "isolation (I11): worker {at} has a request of tenant {tenant} beyond {size_bytes} bytes"
                );
            });
        }
    }

    /// No more is on the drive than the policy's D: each command has a token or more.
    ///
    /// # Panics
    /// If more is (I2).
    fn assert_depth(&self) {
        let options = self.engine.policy(DEVICE);
        // A command that the drive has lost keeps its tag longer than its token.
        if !options.kind.has_depth() || self.site.config.get("lose") > 0 {
            return;
        }
        let mut out = 0;
        self.site.world.look(|_, worker| out += worker.hctxs().iter().map(|hctx| hctx.in_flight()).sum::<usize>());
        let deepest = self.deepest.get();
        assert!(out <= deepest as usize, "depth (I2): {out} commands are on the drive, D is {deepest}");
    }

    /// Bounds that hold at every moment.
    ///
    /// # Panics
    /// If one does not, with the invariant.
    pub fn assert_bounds(&self) {
        self.assert_apart();
        let config = &self.site.config;
        self.assert_depth();
        let staged_max = tenants(config) * config.count("staged");
        self.site.world.look(|at, worker| {
            for hctx in worker.hctxs() {
                assert!(hctx.in_flight() <= usize::from(QUEUE_DEPTH), "worker {at}: {} in flight", hctx.in_flight());
                assert!(hctx.staged() <= staged_max, "worker {at}: {} staged (I14)", hctx.staged());
            }
        });
        for (tenant, export) in self.exports.iter().enumerate() {
            let held = export.memory.held_bytes();
            assert!(held <= MemoryLimits::TENANT_BYTES, "tenant {tenant} holds {held} bytes (I14)");
        }
    }

    /// Held payload memory, bytes; 0 in a server without requests.
    pub fn held_bytes(&self) -> u64 {
        self.exports.iter().map(|export| export.memory.held_bytes()).sum()
    }
}

/// Treatment of requests besides scheduling.
fn path(config: &Config) -> PathOptions {
    let split = match config.get("split") {
        0 => Split::Off,
        bytes => Split::Bytes(bytes as u32),
    };
    // A drive that loses commands is given up by its timeout; nothing else ends them.
    let timeout_ns = if config.get("lose") > 0 { 20_000_000 } else { 0 };
    PathOptions { split, timeout_ns, ..PathOptions::TIMELESS }
}

fn flow(config: &Config, tenant: usize, weight: Weight) -> FlowOptions {
    let limits = StageLimits { requests_max: config.get("staged") as u32, bytes_max: STAGED_BYTES };
    FlowOptions { weight, limits, ..FlowOptions::new(&name(tenant)) }
}

/// The name of a tenant and of its export.
pub fn name(tenant: usize) -> String {
    format!("tenant-{tenant}")
}
