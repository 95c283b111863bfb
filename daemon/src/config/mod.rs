//! The config file of `mqfq serve`: TOML in, a checked [`Config`] out, or one sentence.
//!
//! ```text
//!   text ──mqfq-config──▶ sections ──load──▶ Config ──check──▶ Plan
//!                         (places)           (each key right)  (keys agree with each other and with the machine)
//! ```
//!
//! Paths are as the process sees them: relative ones start at the working directory. See `docs` of each struct for
//! its keys; README has a complete file.

mod addresses;
pub mod caps;
mod change;
mod check;
pub mod control;
mod cost;
pub mod family;
pub mod kept;
#[cfg(test)]
mod message_tests;
mod overlap;
#[cfg(test)]
mod page_tests;
mod path;
mod policy;
mod queues;
#[cfg(test)]
mod tests;
pub mod trust;

pub use caps::LiveCaps;
pub use change::same_device;
pub use check::{DevicePlan, ExportPlan, Files, FlowPlan, HeldFiles, Plan, RealFiles};
pub use control::ControlConfig;
pub use cost::Profile;
pub use family::GroupPlan;
pub use mqfq_config::{ConfigError, Place};
pub use policy::PolicyConfig;

use crate::files;
use crate::privilege::{Level, PrivilegeConfig};
use mqfq_blk::cap::CapLimits;
use mqfq_blk::device::file::{Direct, OnFailure};
use mqfq_blk::device::nvme::{Arbitration, PRESETS};
use mqfq_blk::hierarchy::Tree;
use mqfq_blk::path::PathOptions;
use mqfq_blk::queues::QueueLayout;
use mqfq_blk::slots::PLACES_MAX;
use mqfq_blk::stage::StageLimits;
use mqfq_blk::{CostModel, PolicyKind, PriorityClass, Weight};
use mqfq_config::groups::Groups;
use mqfq_config::text::{quoted, shown};
use mqfq_config::{Entry, Section, Source, size};
use mqfq_front::FRONT_ENDS;
use mqfq_front::export::PAYLOAD_BYTES_MAX;
use mqfq_front::front_end::ExportAddress;
use mqfq_front::memory::{MemoryLimits, PIECE_BYTES_MAX};
use mqfq_front::socket::SocketAddress;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::LazyLock;

/// Longest config, bytes: some hundreds of thousands of tenants. Something longer is not a config.
const CONFIG_BYTES_MAX: u64 = 64 << 20;

/// Longest name of a device or tenant, bytes: they stand in each line about it.
const SECTION_NAME_BYTES_MAX: usize = 255;

/// Weights of groups, tenants and exports.
const WEIGHTS: RangeInclusive<u64> = Weight::MIN.get() as u64..=Weight::MAX.get() as u64;

/// Groups in each other: above them is the device, below a tenant with its exports.
const GROUPS_DEEP: usize = Tree::DEPTH_MAX - 1;

/// Largest size of a device or export: what offsets of all protocols (signed 64 bits) can name.
const SIZE_MAX_BYTES: u64 = i64::MAX as u64;

/// A value and where it stands, for checks that come later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Where its key stands.
    pub place: Place,
}

/// A whole config file; every key is right by itself.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// `[server]`.
    pub server: ServerConfig,
    /// `[tls]` and `[address."ADDRESS"]`.
    pub trust: trust::TrustConfig,
    /// `[control]`, if it is there.
    pub control: Option<ControlConfig>,
    /// `[device.NAME]`, in the file's order.
    pub devices: Vec<DeviceConfig>,
    /// `[group.NAME]`.
    pub groups: Groups,
    /// `[tenant.NAME]`, in the file's order.
    pub tenants: Vec<TenantConfig>,
    /// `[export.NAME]`, in the file's order.
    pub exports: Vec<ExportConfig>,
    /// The file's beginning, for what is missing altogether.
    pub place: Place,
}

/// `[server]`: everything that is not about one device, tenant or export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerConfig {
    /// Worker threads, 1..=1024; each owns one hctx of every device. Default: one per CPU that we may run on.
    pub workers: Option<usize>,
    /// Pin each worker to a CPU. Default: true.
    pub pin: bool,
    /// `spin-us`: a worker whose software controller moves again within this time spins instead of sleeping, 0 to one
    /// second. Default 50.
    pub spin_us: u64,
    /// `connections`: per address, 1..=1000000; half of them are guaranteed to the tenants in equal parts.
    /// Default 1024.
    pub connections_max: usize,
    /// `socket-mode`: permissions of unix sockets, octal digits in a string. Default "600": only who runs the server.
    pub socket_mode: u32,
    /// `handshake-s`: a connection that has not ended its handshake after this is closed, 1 to 3600 s. Default 10.
    pub handshake_s: u64,
    /// `stall-s`: a connection whose client takes no replies, or stops in the middle of a request, is closed after
    /// this, 1 to 86400 s. Default 60.
    pub stall_s: u64,
    /// `drain-s`: after SIGTERM, clients have this long to take their replies, 1 to 3600 s. Default 30.
    pub drain_s: u64,
    /// `memory`: payload memory of all tenants together, bytes, 1 MiB to 1 TiB. Default 256 MiB.
    pub memory_bytes: u64,
    /// `connection-memory`: payload memory of one connection, bytes, 128 KiB to 1 TiB. Default 16 MiB.
    pub connection_memory_bytes: u64,
    /// `tenants-max`: tenants of one device, 1..=1048576. Default 65536.
    pub tenants_max: u32,
    /// `exports-max`: exports of the server, 1..=1048576. Default 65536.
    pub exports_max: u32,
    /// `upgrade`: the unix socket by which another process can take the server's place. Default: none.
    pub upgrade: Option<SocketAddress>,
    /// `sandbox`, `paths`, `user`, `group`: what the process gives up before it serves. Default: nothing.
    pub privilege: PrivilegeConfig,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            workers: None,
            pin: true,
            spin_us: 50,
            connections_max: 1024,
            socket_mode: 0o600,
            handshake_s: 10,
            stall_s: 60,
            drain_s: 30,
            memory_bytes: MemoryLimits::SERVER_BYTES,
            connection_memory_bytes: MemoryLimits::CONNECTION_BYTES,
            tenants_max: 65_536,
            exports_max: 65_536,
            upgrade: None,
            privilege: PrivilegeConfig::default(),
        }
    }
}

/// `[device.NAME]`: `kind`, what the kind needs (`size`, `path`, `preset`), then the scheduler's settings.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceConfig {
    /// NAME.
    pub name: String,
    /// Where the section begins.
    pub place: Place,
    /// What holds the bytes.
    pub medium: Medium,
    /// `policy` and its settings.
    pub policy: PolicyConfig,
    /// `queue-depth`: commands in one hardware queue, 1..=65535. Default 1024.
    pub queue_depth: u16,
    /// `block-layer`, `software-queues`, `hardware-queues`. Default: each worker has its own of both.
    pub queues: QueueLayout,
    /// `merge`, `split`, `plug`, `timeout`, `retries`, `async-writes`.
    pub path: PathOptions,
    /// `cost`; whether that of writes is followed is in `path`. Default: bytes.
    pub cost: CostModel,
    /// `[device.NAME.profile]`: where D starts. Default: nothing is known.
    pub profile: Option<Profile>,
}

/// `kind` and what belongs to it.
#[derive(Clone, PartialEq, Debug)]
pub enum Medium {
    /// Completes at once, keeps nothing.
    Null {
        /// `size`.
        size_bytes: u64,
    },
    /// Bytes in memory.
    Memory {
        /// `size`.
        size_bytes: u64,
    },
    /// A regular file or block device that exists.
    File {
        /// `path`.
        path: Located<PathBuf>,
        /// `size`: use only so many bytes of it. Default: all.
        size: Option<Located<u64>>,
        /// `direct`: go past the page cache: `"auto"` (default: if the file can), `"always"`, `"never"`.
        direct: Direct,
        /// `on-failure`: what is still done once it has lost writes or its drive: `"fail"` (default: nothing),
        /// `"read-only"`.
        on_failure: OnFailure,
    },
    /// The software NVMe controller.
    Nvme {
        /// `preset`: its media.
        preset: String,
        /// `size`.
        size_bytes: u64,
        /// `arbitration`: `"rr"`, `"wrr"`, `"wrr-ignored"`. Default: the preset's.
        arbitration: Option<Arbitration>,
        /// `queue-pairs`: I/O queues that the controller has, 1..=1024. Default: the preset's.
        queue_pairs: Option<u16>,
        /// `slowed`: each of the preset's times is multiplied by this, 1..=1000. Default: 1.
        slowed: Option<u16>,
    },
}

/// `[tenant.NAME]`: `weight`, `group`, `class`, `staged-requests`, `staged-bytes`, `memory`,
/// `max-iops`, `max-bytes-per-s`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TenantConfig {
    /// NAME.
    pub name: String,
    /// `weight`: 1..=10000, default 100. A tenant with exports on two devices is one flow of this weight on each.
    pub weight: Weight,
    /// `identity`: the names of which one must be in a client's certificate, for exports that say nothing of their own.
    /// Default: none.
    pub identities: Vec<Located<mqfq_front::identity::Identity>>,
    /// `group`: the group that it is in, by its number. Default: none.
    pub group: Option<usize>,
    /// `class`: `"realtime"`, `"best-effort"` (default) or `"idle"`, for policies that have classes; others do not look
    /// at it.
    pub class: PriorityClass,
    /// `staged-requests` and `staged-bytes`: what may wait in one worker, 1..=65535 requests and 64 KiB to 1 TiB. More
    /// is back-pressure on the tenant's own sockets. Default: [`StageLimits::DEFAULT`].
    pub staged: StageLimits,
    /// `memory`: payload memory of all its connections together, bytes, 128 KiB to 1 TiB. Default 64 MiB.
    pub memory_bytes: u64,
    /// `max-iops` and `max-bytes-per-s` of all its exports together. Default: no cap.
    pub caps: CapLimits,
}

/// `[export.NAME]`: a range of a device that a tenant's clients see as their disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportConfig {
    /// NAME, at most 4096 bytes; "" is what a client gets that names none.
    pub name: String,
    /// Where the section begins.
    pub place: Place,
    /// `device`.
    pub device: Located<String>,
    /// `tenant`.
    pub tenant: Located<String>,
    /// `weight`: 1..=10000. If one export of a tenant has one, each of the tenant's exports is a flow, of this weight
    /// among them; the default is 100 then.
    pub weight: Option<Weight>,
    /// `offset` of its first byte on the device. Default 0.
    pub offset_bytes: u64,
    /// `size`. Default: up to the device's end.
    pub size: Option<Located<u64>>,
    /// `identity`, `allow-uids`, `allow-gids`: who may have it. Default: what its tenant says, or who reaches it.
    pub clients: trust::Clients,
    /// Where it is served: a key for each front end (`nbd`), with one address or a list; one key at least.
    pub addresses: Vec<Located<ExportAddress>>,
    /// `read-only`: default false.
    pub read_only: bool,
    /// `shared`: may overlap other exports that say so. Default false.
    pub shared: bool,
    /// `keep-data`: bytes that another tenant had, or that the export gets by growing, are shown as they are, or always
    /// erased. Default: erased, and asked for where a mistake would lose data (`ownership.rs`).
    pub keep_data: Option<bool>,
    /// `description`: shown to clients that ask. At most 4096 bytes.
    pub description: Option<String>,
    /// `payload-max`: largest read or write, bytes, 64 KiB to 32 MiB. Default: the device's, at most 32 MiB.
    pub payload_bytes_max: Option<u32>,
    /// `max-iops` and `max-bytes-per-s`. Default: no cap but the tenant's.
    pub caps: CapLimits,
}

/// Most queue pairs of an `nvme` device: one for each worker that there can be.
const QUEUE_PAIRS_MAX: u16 = 1024;

/// Most that a modelled drive's times are multiplied by, as in the simulator's scenarios.
const SLOWED_MAX: u16 = 1000;

/// Names that a device's kind goes by.
const KINDS: [&str; 4] = ["null", "memory", "file", "nvme"];

/// Keys of `[device.NAME]` that not all kinds have, in the order of [`KINDS`].
const OWN_KEYS: [&[&str]; 4] = [
    &["kind", "size"],
    &["kind", "size"],
    &["kind", "path", "size", "direct", "on-failure"],
    &["kind", "preset", "size", "arbitration", "queue-pairs", "slowed"],
];

/// Keys of `[device.NAME]` per kind, in the order of [`KINDS`]: its own, then those that all kinds have.
static DEVICE_KEYS: LazyLock<[Vec<&str>; 4]> = LazyLock::new(|| {
    OWN_KEYS.map(|own| [own, &policy::KEYS[..], &PolicyKind::all_keys()[..], &PATH_KEYS[..]].concat())
});

/// The keys of a section: of a device, those of all its kinds.
pub fn keys(kind: mqfq_control::Kind) -> Vec<&'static str> {
    use mqfq_control::Kind;
    match kind {
        Kind::Device => {
            let mut keys = Vec::new();
            DEVICE_KEYS.iter().flatten().for_each(|key| {
                if !keys.contains(key) {
                    keys.push(*key)
                }
            });
            keys
        }
        Kind::Group => mqfq_config::groups::KEYS.to_vec(),
        Kind::Tenant => TENANT_KEYS.to_vec(),
        Kind::Export => EXPORT_KEYS.clone(),
    }
}

/// What is set of the path to a device, whatever its policy.
const PATH_KEYS: [&str; 12] = [
    "queue-depth",
    "block-layer",
    "software-queues",
    "hardware-queues",
    "merge",
    "split",
    "plug",
    "timeout",
    "retries",
    "async-writes",
    "cost",
    "profile",
];

/// Keys of `[tenant.NAME]`.
const TENANT_KEYS: [&str; 9] = [
    "weight",
    "group",
    "class",
    "staged-requests",
    "staged-bytes",
    "memory",
    caps::MAX_IOPS,
    caps::MAX_BYTES_PER_S,
    trust::IDENTITY,
];

/// Keys of `[export.NAME]`: those of the front ends stand between these.
static EXPORT_KEYS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let front_ends = FRONT_ENDS.iter().flat_map(|front_end| {
        std::iter::once(front_end.name()).chain(front_end.manners().iter().map(|manner| manner.key))
    });
    let before = ["device", "tenant", "weight", "offset", "size"].into_iter();
    before
        .chain(front_ends)
        .chain(["read-only", "shared", "keep-data", "description", "payload-max"])
        .chain(caps::KEYS)
        .chain(trust::EXPORT_KEYS)
        .collect()
});

/// Memory of a tenant or a connection, bytes: at least one piece, at most more than any machine has.
const MEMORY_BYTES: RangeInclusive<u64> = PIECE_BYTES_MAX as u64..=1 << 40;

/// Largest payload of an export, bytes: every client may count on 64 KiB.
const PAYLOAD_BYTES: RangeInclusive<u64> = 64 << 10..=PAYLOAD_BYTES_MAX as u64;

impl Config {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// One sentence: it cannot be read, or what is wrong with it and where.
    pub fn read(path: &std::path::Path) -> Result<Config, String> {
        let text = Config::read_text(path)?;
        Config::parse(&path.display().to_string(), &text).map_err(|error| error.to_string())
    }

    /// The text of the file at `path`.
    ///
    /// # Errors
    /// One sentence: it cannot be read.
    pub fn read_text(path: &std::path::Path) -> Result<String, String> {
        let failed = |why| format!("cannot read config {}: {why}", shown(&path.to_string_lossy()));
        files::read_text(path, CONFIG_BYTES_MAX).map_err(failed)
    }

    /// Reads `text`; `file` is only its name.
    ///
    /// # Errors
    /// A key that is unknown, missing, of the wrong type or out of range.
    pub fn parse(file: &str, text: &str) -> Result<Config, ConfigError> {
        let source = Source::new(file, text);
        let root = source.parse()?;
        const SECTIONS: &[&str] = &["server", "control", "tls", "address", "device", "group", "tenant", "export"];
        let root = Section::root(&source, root.get_ref(), SECTIONS)?;
        let groups = Groups::read(&root, WEIGHTS, GROUPS_DEEP)?;
        groups.all().iter().try_for_each(|group| name_fits(&group.name, 1..=SECTION_NAME_BYTES_MAX, &group.place))?;
        let tenant = |named| tenant(named, &groups);
        Ok(Config {
            server: server(&root)?,
            trust: trust::read(&root)?,
            control: control::read(&root)?,
            devices: root.named_tables("device")?.into_iter().map(device).collect::<Result<_, _>>()?,
            tenants: root.named_tables("tenant")?.into_iter().map(tenant).collect::<Result<_, _>>()?,
            exports: root.named_tables("export")?.into_iter().map(export).collect::<Result<_, _>>()?,
            groups,
            place: root.place().clone(),
        })
    }
}

fn server(root: &Section<'_, '_>) -> Result<ServerConfig, ConfigError> {
    let default = ServerConfig::default();
    let Some(server) = root.get("server") else { return Ok(default) };
    let server = server.table(&[
        "workers",
        "pin",
        "spin-us",
        "connections",
        "socket-mode",
        "handshake-s",
        "stall-s",
        "drain-s",
        "memory",
        "connection-memory",
        "tenants-max",
        "exports-max",
        "upgrade",
        "sandbox",
        "paths",
        "user",
        "group",
    ])?;
    let socket_mode = server.get("socket-mode").map(|entry| socket_mode(&entry));
    Ok(ServerConfig {
        workers: server.get("workers").map(|workers| workers.number(1..=1024)).transpose()?,
        pin: server.get("pin").map_or(Ok(default.pin), |pin| pin.flag())?,
        spin_us: server.get("spin-us").map_or(Ok(default.spin_us), |spin| spin.number(0..=1_000_000))?,
        connections_max: server
            .get("connections")
            .map_or(Ok(default.connections_max), |most| most.number(1..=1_000_000))?,
        socket_mode: socket_mode.transpose()?.unwrap_or(default.socket_mode),
        handshake_s: server.get("handshake-s").map_or(Ok(default.handshake_s), |limit| limit.number(1..=3600))?,
        stall_s: server.get("stall-s").map_or(Ok(default.stall_s), |limit| limit.number(1..=86_400))?,
        drain_s: server.get("drain-s").map_or(Ok(default.drain_s), |drain| drain.number(1..=3600))?,
        memory_bytes: server.get("memory").map_or(Ok(default.memory_bytes), |memory| memory.size(1 << 20..=1 << 40))?,
        connection_memory_bytes: server
            .get("connection-memory")
            .map_or(Ok(default.connection_memory_bytes), |memory| memory.size(MEMORY_BYTES))?,
        tenants_max: server.get("tenants-max").map_or(Ok(default.tenants_max), |most| most.number(1..=PLACES_MAX))?,
        privilege: privilege(&server)?,
        upgrade: server.get("upgrade").map(|entry| upgrade(&entry)).transpose()?,
        exports_max: server.get("exports-max").map_or(Ok(default.exports_max), |most| most.number(1..=PLACES_MAX))?,
    })
}

fn privilege(server: &Section<'_, '_>) -> Result<PrivilegeConfig, ConfigError> {
    let sandbox = server.get("sandbox").map(|entry| {
        let name = entry.choice(&Level::ALL.map(Level::name))?;
        Ok(Level::ALL.into_iter().find(|level| level.name() == name).expect("a choice of all names"))
    });
    let name = |key| server.get(key).map(|entry| entry.text("a name or a number in a string")).transpose();
    let paths = server.get("paths").map(|entry| entry.texts("a path, or a list of paths")).transpose()?;
    Ok(PrivilegeConfig {
        sandbox: sandbox.transpose()?.unwrap_or_default(),
        paths: paths.unwrap_or_default().into_iter().map(PathBuf::from).collect(),
        user: name("user")?,
        group: name("group")?,
    })
}

/// Permissions of a unix socket.
fn socket_mode(entry: &Entry<'_, '_>) -> Result<u32, ConfigError> {
    let text = entry.text("octal digits in a string, \"0\" to \"777\"")?;
    let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o777 && !text.starts_with('+'));
    let wrong = || {
        let text = quoted(&text);
        entry.place().error(format!("{text} is no mode, allowed is \"0\" to \"777\" in octal digits"))
    };
    mode.ok_or_else(wrong)
}

/// Where another process asks to take the server's place: a unix socket, which says whose process that is.
fn upgrade(entry: &Entry<'_, '_>) -> Result<SocketAddress, ConfigError> {
    const ALLOWED: &str = "\"unix:PATH\" (at most 107 bytes)";
    let text = entry.text(ALLOWED)?;
    match SocketAddress::parse(&text) {
        Ok(address @ SocketAddress::Unix(_)) => Ok(address),
        _ => Err(entry.place().error(format!("{} is no unix socket, allowed is {ALLOWED}", quoted(&text)))),
    }
}

/// A name is in order: of a device, group or tenant, or of an export, which may be longer, and empty (NBD's default
/// export). An empty label of a metric is none, and a thing without a name has no path. A slash stands between tenant
/// and export where an export is a flow of its own: in counters and paths.
fn name_fits(name: &str, bytes: RangeInclusive<usize>, place: &Place) -> Result<(), ConfigError> {
    let fault = match name {
        name if name.contains('/') => "a \"/\"".to_owned(),
        name if name.contains(char::is_control) => "a control character".to_owned(),
        name if !bytes.contains(&name.len()) => format!("{} bytes", name.len()),
        _ => return Ok(()),
    };
    let allowed = format!("{} to {} bytes without \"/\" and control characters", bytes.start(), bytes.end());
    Err(place.error(format!("this name has {fault}, allowed are {allowed}")))
}

fn device((name, section): (String, Section<'_, '_>)) -> Result<DeviceConfig, ConfigError> {
    name_fits(&name, 1..=SECTION_NAME_BYTES_MAX, section.place())?;
    let kind = section.require("kind", &KINDS.join(", "))?.choice(&KINDS)?;
    let index = KINDS.iter().position(|known| *known == kind).expect("a choice of KINDS");
    for (other, own) in KINDS.iter().zip(OWN_KEYS).filter(|(other, _)| **other != kind) {
        let keys = own.iter().copied().filter(|key| !OWN_KEYS[index].contains(key));
        let keys: Vec<&'static str> = keys.collect();
        section.refuse(&keys, &format!("is for kind {other} only, and this device is of kind {kind}"))?;
    }
    let section = section.with_allowed(&DEVICE_KEYS[index])?;
    let sizes: RangeInclusive<u64> = 1..=SIZE_MAX_BYTES;
    let required_size = || section.require("size", size::ALLOWED)?.size(sizes.clone());
    let medium = match KINDS[index] {
        "null" => Medium::Null { size_bytes: required_size()? },
        "memory" => Medium::Memory { size_bytes: required_size()? },
        "file" => {
            let path = section.require("path", "the path of a file or block device that exists")?;
            let text = path.text("a path")?;
            if text.contains('\0') {
                return Err(path.place().error("holds a NUL character, which ends a path, allowed is a path without"));
            }
            let value = PathBuf::from(text);
            let size = section.get("size").map(|size| Ok(Located { value: size.size(sizes)?, place: size.place() }));
            let direct = match section.get("direct").map(|direct| direct.choice(&["auto", "always", "never"])) {
                None => Direct::Auto,
                Some(choice) => match choice?.as_str() {
                    "always" => Direct::Always,
                    "never" => Direct::Never,
                    _ => Direct::Auto,
                },
            };
            let on_failure =
                match section.get("on-failure").map(|key| key.choice(&["fail", "read-only"])).transpose()? {
                    Some(choice) if choice == "read-only" => OnFailure::ReadOnly,
                    _ => OnFailure::Fail,
                };
            Medium::File { path: Located { value, place: path.place() }, size: size.transpose()?, direct, on_failure }
        }
        _ => {
            let presets: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
            let preset = section.require("preset", &presets.join(", "))?.choice(&presets)?;
            let arbitration = section.get("arbitration").map(|entry| {
                let name = entry.choice(&Arbitration::ALL.map(|(name, _)| name))?;
                Ok(Arbitration::by_name(&name).expect("a choice of all names"))
            });
            let queue_pairs = section.get("queue-pairs").map(|pairs| pairs.number(1..=QUEUE_PAIRS_MAX));
            let slowed = section.get("slowed").map(|times| times.number(1..=SLOWED_MAX));
            Medium::Nvme {
                preset,
                size_bytes: required_size()?,
                arbitration: arbitration.transpose()?,
                queue_pairs: queue_pairs.transpose()?,
                slowed: slowed.transpose()?,
            }
        }
    };
    let queue_depth = section.get("queue-depth").map_or(Ok(1024), |depth| depth.number(1..=65_535))?;
    let profile = Profile::read(&section)?;
    let (cost, follow_writes) = cost::read(&section)?;
    let policy = PolicyConfig::read(&section, queue_depth, profile.as_ref())?;
    let wanted = policy.options(1).kind;
    if wanted.is_direct() && policy.fallback(1).is_none() && KINDS[index] != "nvme" {
        let fallback = wanted.fallback().map(|fallback| format!(" or without-wrr = \"{fallback}\""));
        let place = section.get("policy").expect("it is not the default").place();
        return Err(place.error(format!(
            "policy {wanted} needs weighted round robin among the device's queues, which kind = \"{kind}\" has not, allowed is kind = \"nvme\"{}",
            fallback.unwrap_or_default()
        )));
    }
    let policies: Vec<_> = std::iter::once(wanted).chain(policy.fallback(1).map(|fallback| fallback.kind)).collect();
    Ok(DeviceConfig {
        name,
        place: section.place().clone(),
        medium,
        queues: queues::read(&section, &policies)?,
        path: PathOptions { follow_writes, ..path::read(&section)? },
        policy,
        queue_depth,
        cost,
        profile,
    })
}

fn tenant((name, section): (String, Section<'_, '_>), groups: &Groups) -> Result<TenantConfig, ConfigError> {
    name_fits(&name, 1..=SECTION_NAME_BYTES_MAX, section.place())?;
    let section = section.with_allowed(&TENANT_KEYS)?;
    Ok(TenantConfig {
        name,
        weight: weight(&section)?.unwrap_or_default(),
        group: section.get("group").map(|group| groups.find(&group)).transpose()?,
        class: section.get("class").map_or(Ok(PriorityClass::default()), |class| {
            let name = class.choice(&PriorityClass::ALL.map(PriorityClass::name))?;
            Ok(name.parse().expect("a choice of all names"))
        })?,
        staged: StageLimits {
            requests_max: section
                .get("staged-requests")
                .map_or(Ok(StageLimits::DEFAULT.requests_max), |most| most.number(1..=65_535))?,
            bytes_max: section
                .get("staged-bytes")
                .map_or(Ok(StageLimits::DEFAULT.bytes_max), |most| most.size(64 << 10..=1 << 40))?,
        },
        memory_bytes: section
            .get("memory")
            .map_or(Ok(MemoryLimits::TENANT_BYTES), |memory| memory.size(MEMORY_BYTES))?,
        caps: caps::read(&section)?,
        identities: trust::identities(&section)?,
    })
}

/// `weight`, if it is there.
fn weight(section: &Section<'_, '_>) -> Result<Option<Weight>, ConfigError> {
    let weight = section.get("weight").map(|weight| weight.number(WEIGHTS)).transpose()?;
    Ok(weight.map(|weight| Weight::new(weight).expect("in range")))
}

fn export((name, section): (String, Section<'_, '_>)) -> Result<ExportConfig, ConfigError> {
    let section = section.with_allowed(&EXPORT_KEYS)?;
    const NAME_MAX_BYTES: usize = mqfq_front::export::NAME_BYTES_MAX;
    name_fits(&name, 0..=NAME_MAX_BYTES, section.place())?;
    let located = |key, what: &str| {
        let entry = section.require(key, what)?;
        Ok(Located { value: entry.text(what)?, place: entry.place() })
    };
    let addresses = addresses::read(&section)?;
    let clients = trust::clients(&section)?;
    let size =
        section.get("size").map(|size| Ok(Located { value: size.size(1..=SIZE_MAX_BYTES)?, place: size.place() }));
    let description = section.get("description").map(|entry| {
        let text = entry.text("a string")?;
        let fits = text.len() <= NAME_MAX_BYTES;
        let too_long =
            || entry.place().error(format!("{} bytes are too long, allowed are {NAME_MAX_BYTES}", text.len()));
        if fits { Ok(text) } else { Err(too_long()) }
    });
    Ok(ExportConfig {
        place: section.place().clone(),
        device: located("device", "the name of a [device.NAME] section")?,
        tenant: located("tenant", "the name of a [tenant.NAME] section")?,
        weight: weight(&section)?,
        offset_bytes: section.get("offset").map_or(Ok(0), |offset| offset.size(0..=SIZE_MAX_BYTES))?,
        size: size.transpose()?,
        addresses,
        clients,
        read_only: section.get("read-only").map_or(Ok(false), |flag| flag.flag())?,
        shared: section.get("shared").map_or(Ok(false), |flag| flag.flag())?,
        keep_data: section.get("keep-data").map(|flag| flag.flag()).transpose()?,
        description: description.transpose()?,
        payload_bytes_max: section
            .get("payload-max")
            .map(|most| most.size(PAYLOAD_BYTES))
            .transpose()?
            .map(|bytes| u32::try_from(bytes).expect("in range")),
        caps: caps::read(&section)?,
        name,
    })
}
