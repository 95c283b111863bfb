//! A server to attach to: an engine with devices, and a socket for each export.

use mqfq_blk::client::DeviceIndex;
use mqfq_blk::device::Device;
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions};
use mqfq_blk::slots::Slots;
use mqfq_blk::{FlowId, PolicyKind, PolicyOptions, Weight};
use mqfq_front::FRONT_ENDS;
use mqfq_front::export::{BlockSizes, Export, ExportId, ExportState, ExportTable, TenantId};
use mqfq_front::front_end::{ExportAddress, ListenOptions, LogLine};
use mqfq_front::memory::TenantMemory;
use mqfq_front::stats::Stats;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The limit is for the day on which a test fails.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Bytes of an export.
pub const SIZE_BYTES: u64 = 1 << 20;

/// A server whose tenants have one export each, one behind the other on one device.
pub struct Server {
    pub engine: Engine,
    pub exports: Vec<Export>,
    pub stats: Vec<Arc<Stats>>,
    pub log: Arc<Mutex<Vec<String>>>,
    folder: PathBuf,
}

/// How a server differs from one with a single tenant on memory.
pub struct ServerOptions {
    pub device: Arc<dyn Device>,
    pub weights: Vec<u16>,
    pub workers: usize,
    pub policy: PolicyOptions,
    pub read_only: bool,
    pub listen: ListenOptions,
    /// `None`: a folder of the server's own, removed with it.
    pub folder: Option<PathBuf>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            device: Arc::new(MemoryDevice::new(2 * SIZE_BYTES)),
            weights: vec![100],
            workers: 2,
            policy: PolicyOptions::new(PolicyKind::Mqfq),
            read_only: false,
            listen: ListenOptions::default(),
            folder: None,
        }
    }
}

impl Server {
    pub fn start(options: ServerOptions) -> Server {
        let ServerOptions { device, weights, workers, policy, read_only, mut listen, folder } = options;
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = folder.unwrap_or_else(|| {
            let folder = std::env::temp_dir().join(format!("mqfq-vub-{}-{number}", std::process::id()));
            std::fs::create_dir(&folder).unwrap();
            folder
        });
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = log.clone();
        listen.log = Some(Arc::new(move |line: LogLine<'_>| lines.lock().unwrap().push(line.text.to_owned())));
        let weight =
            |weight: &u16| FlowOptions { weight: Weight::new((*weight).into()).unwrap(), ..FlowOptions::new("tenant") };
        let flows = weights.iter().map(weight).collect();
        let block = BlockSizes::of_device(&device.info());
        let device = DeviceOptions::new("device", device, policy, flows);
        let engine = Engine::start(EngineOptions { workers, pin: false, spin_ns: 0, devices: vec![device] }).unwrap();
        let mut slots = Slots::new(8);
        let exports: Vec<Export> = (0..weights.len())
            .map(|number| {
                let slot = slots.insert(()).unwrap();
                Export {
                    id: ExportId(slot),
                    name: format!("disk-{number}"),
                    description: String::new(),
                    device: DeviceIndex(0),
                    flow: FlowId(number as u32),
                    tenant: TenantId(slot),
                    state: ExportState::default(),
                    offset_bytes: number as u64 * SIZE_BYTES,
                    size_bytes: SIZE_BYTES,
                    read_only,
                    block,
                    memory: TenantMemory::unbounded(),
                    caps: mqfq_blk::cap::Caps::none(),
                }
            })
            .collect();
        let mut stats = Vec::new();
        for (number, export) in exports.iter().enumerate() {
            let front_end = *FRONT_ENDS.iter().find(|front_end| front_end.name() == "vhost-user").unwrap();
            let text = format!("unix:{}", folder.join(number.to_string()).display());
            let address = ExportAddress::parse(front_end, &text).unwrap();
            address.address().await_predecessor(&|| false);
            let table = Arc::new(ExportTable::new([export.clone()]).unwrap());
            let listener = address.address().listen(table, &listen).unwrap();
            stats.push(listener.stats());
            listener.into_clients().into_iter().for_each(|client| engine.attach(client));
        }
        Server { engine, exports, stats, log, folder }
    }

    /// The path of an export's socket.
    pub fn socket(&self, export: usize) -> PathBuf {
        self.folder.join(export.to_string())
    }

    /// The front end's count of this name, of one export.
    pub fn own(&self, export: usize, name: &str) -> u64 {
        let counts = self.stats[export].counts();
        counts.own.iter().find(|(other, _)| *other == name).unwrap().1
    }

    /// How often one export's clients broke the rule of this name.
    pub fn broken(&self, export: usize, name: &str) -> u64 {
        let counts = self.stats[export].counts();
        counts.broken_rules.iter().find(|(other, _)| *other == name).unwrap().1
    }

    /// Every admitted request ends, every client goes.
    pub fn drain(&self) {
        assert!(self.engine.drain(LIMIT), "{:?}", self.log.lock().unwrap());
        assert_eq!(mqfq_blk::table::lost_requests(), 0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
