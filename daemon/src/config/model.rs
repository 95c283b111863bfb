//! The sections of a config file as types; every key is right by itself.

use super::control::ControlConfig;
use super::cost::Profile;
use super::other::{OtherMedium, Preparation};
use super::policy::PolicyConfig;
use super::trust::{Clients, TrustConfig};
use mqfq_blk::cap::CapLimits;
use mqfq_blk::device::file::{Direct, OnFailure};
use mqfq_blk::device::model::presets::Preset;
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::stage::StageLimits;
use mqfq_blk::{CostModel, PriorityClass, Weight};
use mqfq_config::groups::Groups;
use mqfq_config::text::quoted;
use mqfq_config::{ConfigError, Entry, SourceLocation};
use mqfq_front::export::Poll;
use mqfq_front::front_end::ExportAddress;
use mqfq_front::identity::Identity;
use mqfq_front::memory::MemoryLimits;
use mqfq_front::socket::SocketAddress;
use std::path::PathBuf;

/// A value and where it stands, for checks that come later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Place of its key.
    pub place: SourceLocation,
}

/// A whole config file; every key is right by itself.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// `[server]`.
    pub server: ServerConfig,
    /// `[tls]` and `[address."ADDRESS"]`.
    pub trust: TrustConfig,
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
    /// The file's beginning, for sections that are missing.
    pub place: SourceLocation,
}

/// `[server]`: everything that is not about one device, tenant or export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerConfig {
    /// Worker threads, 1..=1024; each owns one hctx of every device. Default: one per CPU that we may run on.
    pub workers: Option<usize>,
    /// Pin each worker to a CPU. Default: true.
    pub pin: bool,
    /// A worker whose modelled drive moves again within this time spins instead of sleeping, 0 to one second; no key
    /// that ships sets it. Default 50.
    pub spin_us: u64,
    /// `connections`: per address, 1..=1000000; half of them are guaranteed to the tenants in equal parts.
    /// Default 1024.
    pub connections_max: usize,
    /// `socket-mode`: permissions of unix sockets, octal digits in a string. Default "600": only the server's user.
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
    /// `upgrade`: the unix socket by which another process can take the server's place. Default: none.
    pub upgrade: Option<SocketAddress>,
    /// `sandbox`, `paths`, `user`, `group`: rights that the process gives up before it serves. Default: none.
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
            upgrade: None,
            privilege: PrivilegeConfig::default(),
        }
    }
}

/// `[device.NAME]` with its `expert`: `kind`, the kind's keys (`size`, `path`, `preset`), the scheduler's settings.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceConfig {
    /// NAME.
    pub name: String,
    /// Place of the section.
    pub place: SourceLocation,
    /// The bytes' medium.
    pub medium: Medium,
    /// `policy` and its settings, `depth` and `window` of `expert` among them.
    pub policy: PolicyConfig,
    /// `queue-depth` of `expert`: commands in one hardware queue, 1..=65535. Default 1024.
    pub queue_depth: u16,
    /// The work on it before it is served; no key that ships asks for any.
    pub preparation: Preparation,
    /// `timeout`; `split` and `retries` of `expert`.
    pub path: PathOptions,
    /// `cost`; whether that of writes is followed is in `path`. Default: bytes.
    pub cost: CostModel,
    /// `[device.NAME.profile]`: where D starts. Default: nothing is known.
    pub profile: Option<Profile>,
    /// `throughput-floor`, thousandths: least part of the best throughput that latency goals leave. Default 700.
    pub floor_thousandths: u32,
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
        /// `direct` of `expert`: go past the page cache: `"auto"` (default: if the file can), `"always"`, `"never"`.
        direct: Direct,
        /// `on-failure`: operations allowed once it has lost writes or its drive: `"fail"` (default: none),
        /// `"read-only"`.
        on_failure: OnFailure,
    },
    /// A pool: a backing for each export, which has it by its `path`.
    Pool {
        /// `folders`: where backings may come from, now and later.
        folders: Vec<PathBuf>,
        /// As of a file.
        direct: Direct,
        /// As of a file, for each backing.
        on_failure: OnFailure,
    },
    /// A modelled drive.
    Model {
        /// `preset`, with each of its times multiplied by `slowed` of `expert`, 1..=1000, default 1.
        preset: Preset,
        /// `size`.
        size_bytes: u64,
    },
    /// A device of a kind that does not ship.
    Other(OtherMedium),
}

/// `[tenant.NAME]`: `weight`, `group`, `latency`, `staged-requests`, `staged-bytes`, `memory`,
/// `max-iops`, `max-bytes-per-s`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TenantConfig {
    /// NAME.
    pub name: String,
    /// `weight`: 1..=10000, default 100. A tenant with exports on two devices is one flow of this weight on each.
    pub weight: Weight,
    /// `identity`: the names of which one must be in a client's certificate, for exports that say nothing of their own.
    /// Default: none.
    pub identities: Vec<Located<Identity>>,
    /// `group`: the group that it is in, by its number. Default: none.
    pub group: Option<usize>,
    /// Its class, for policies that have classes; no key that ships sets it. Default: best effort.
    pub class: PriorityClass,
    /// `staged-requests` and `staged-bytes`: most waiting in one worker, 1..=65535 requests and 64 KiB to 1 TiB. More
    /// is back-pressure on the tenant's own sockets. Default: [`StageLimits::DEFAULT`].
    pub staged: StageLimits,
    /// `memory`: payload memory of all its connections together, bytes, 128 KiB to 1 TiB. Default 64 MiB.
    pub memory_bytes: u64,
    /// `max-iops` and `max-bytes-per-s` of all its exports together. Default: no cap.
    pub caps: CapLimits,
    /// `latency`: its latency goal, ns, [`mqfq_blk::tuning::GOAL_NS`]. Default: that of its group.
    pub latency_ns: Option<u64>,
}

/// `[export.NAME]`: a range of a device that a tenant's clients see as their disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportConfig {
    /// NAME, at most 4096 bytes; "" is for a client that names none.
    pub name: String,
    /// Place of the section.
    pub place: SourceLocation,
    /// `device`.
    pub device: Located<String>,
    /// `tenant`.
    pub tenant: Located<String>,
    /// `weight`: 1..=10000. If one export of a tenant has one, each of the tenant's exports is a flow, of this weight
    /// among them; the default is 100 then.
    pub weight: Option<Weight>,
    /// `path` of its backing, of a pool.
    pub path: Option<Located<PathBuf>>,
    /// `offset` of its first byte on the device, of any other. Default 0.
    pub offset: Option<Located<u64>>,
    /// `size`. Default: up to the end of the device or backing.
    pub size: Option<Located<u64>>,
    /// `identity`, `allow-uids`, `allow-gids`: the allowed clients. Default: those of its tenant, or all that reach it.
    pub clients: Clients,
    /// Its addresses: a key for each front end (`nbd`), with one address or a list; one key at least.
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
    /// `poll`. Default: `auto`.
    pub poll: Poll,
}

/// `sandbox`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Level {
    /// Nothing is given up.
    #[default]
    Off,
    /// The configured things may change.
    Live,
    /// The configured things stay.
    Strict,
}

impl Level {
    /// All levels.
    pub const ALL: [Level; 3] = [Level::Off, Level::Live, Level::Strict];

    /// Name in the config.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Off => "off",
            Level::Live => "live",
            Level::Strict => "strict",
        }
    }
}

/// The keys of `[server]` about it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PrivilegeConfig {
    /// `sandbox`: default off.
    pub sandbox: Level,
    /// `paths`: folders and files that changes may name, besides those of configured things. Default: none.
    pub paths: Vec<PathBuf>,
    /// `user`, by name or number. Default: the user that started it.
    pub user: Option<String>,
    /// `group`. Default: the user's own, or the group that started it.
    pub group: Option<String>,
}

/// Permissions of a unix socket.
pub(super) fn socket_mode(entry: &Entry<'_, '_>) -> Result<u32, ConfigError> {
    let text = entry.text("octal digits in a string, \"0\" to \"777\"")?;
    let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o777 && !text.starts_with('+'));
    let wrong = || {
        let text = quoted(&text);
        entry.place().error(format!("{text} is no mode, allowed is \"0\" to \"777\" in octal digits"))
    };
    mode.ok_or_else(wrong)
}
