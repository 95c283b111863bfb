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
pub mod cached;
pub mod caps;
mod change;
mod check;
pub mod control;
mod cost;
pub mod difference;
pub mod family;
pub mod goal;
mod keys;
mod machine;
#[cfg(test)]
mod message_tests;
mod model;
pub mod other;
mod overlap;
#[cfg(test)]
mod page_tests;
mod plan;
mod policy;
pub mod poll;
pub mod pools;
#[cfg(test)]
mod tests;
pub mod trust;

pub use caps::LiveCaps;
pub use change::TakenPlaces;
pub use control::ControlConfig;
pub use cost::Profile;
pub use keys::{Additions, extend, keys};
pub use machine::{Again, Files, HeldFiles, Identity, KnownFiles, RealFiles};
pub use model::{Config, DeviceConfig, ExportConfig, Level, Located, Medium};
pub use model::{PrivilegeConfig, ServerConfig, TenantConfig};
pub use mqfq_config::{ConfigError, SourceLocation};
pub use plan::{DevicePlan, ExportPlan, FlowPlan, GroupPlan, Plan};
pub use policy::PolicyConfig;

use crate::files;
use keys::{EXPORT_KEYS, Known, known};
use model::socket_mode;
use mqfq_blk::Tree;
use mqfq_blk::device::file::{Direct, OnFailure};
use mqfq_blk::device::model::presets::{self, Preset};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::stage::StageLimits;
use mqfq_blk::tuning::GOAL_NS;
use mqfq_blk::{PriorityClass, Weight};
use mqfq_config::groups::Groups;
use mqfq_config::text::{quoted, shown};
use mqfq_config::{Entry, Section, Source, size};
use mqfq_front::export::PAYLOAD_BYTES_MAX;
use mqfq_front::memory::{MemoryLimits, PIECE_BYTES_MAX};
use mqfq_front::socket::SocketAddress;
use std::ops::RangeInclusive;
use std::path::PathBuf;

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

/// Most that a modelled drive's times are multiplied by, as in the simulator's scenarios.
const SLOWED_MAX: u16 = 1000;

/// Memory of a tenant or a connection, bytes: at least one piece, at most more than any machine has.
const MEMORY_BYTES: RangeInclusive<u64> = PIECE_BYTES_MAX as u64..=1 << 40;

/// Largest payload of an export, bytes: every client may count on 64 KiB.
const PAYLOAD_BYTES: RangeInclusive<u64> = 64 << 10..=PAYLOAD_BYTES_MAX as u64;

impl Config {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// One sentence: it cannot be read, or its first fault and its place.
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
        Config::parse_with(known(), file, text)
    }

    fn parse_with(known: &'static Known, file: &str, text: &str) -> Result<Config, ConfigError> {
        let device = |named| device(named, known);
        let source = Source::new(file, text);
        let root = source.parse()?;
        const SECTIONS: &[&str] = &["server", "control", "tls", "address", "device", "group", "tenant", "export"];
        let root = Section::root(&source, root.get_ref(), SECTIONS)?;
        let groups = Groups::read(&root, WEIGHTS, GROUPS_DEEP, Some(GOAL_NS))?;
        groups.all().iter().try_for_each(|group| name_fits(&group.name, 1..=SECTION_NAME_BYTES_MAX, &group.place))?;
        let tenant = |named| tenant(named, &groups, known);
        Ok(Config {
            server: server(&root, known)?,
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

fn server(root: &Section<'_, '_>, known: &'static Known) -> Result<ServerConfig, ConfigError> {
    let default = ServerConfig::default();
    let Some(server) = root.get("server") else { return Ok(default) };
    let server = server.table(&[])?;
    known.refuse_of_laboratory(&server)?;
    let server = server.with_allowed(&known.server_keys)?;
    let socket_mode = server.get("socket-mode").map(|entry| socket_mode(&entry));
    let mut config = ServerConfig {
        workers: server.get("workers").map(|workers| workers.number(1..=1024)).transpose()?,
        pin: server.get("pin").map_or(Ok(default.pin), |pin| pin.flag())?,
        spin_us: default.spin_us,
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
        privilege: privilege(&server)?,
        upgrade: server.get("upgrade").map(|entry| upgrade(&entry)).transpose()?,
    };
    (known.additions.server.read)(&server, &mut config)?;
    Ok(config)
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

/// The address for upgrades: a unix socket, where the kernel names the other process's user.
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
fn name_fits(name: &str, bytes: RangeInclusive<usize>, place: &SourceLocation) -> Result<(), ConfigError> {
    let fault = match name {
        name if name.contains('/') => "a \"/\"".to_owned(),
        name if name.contains(char::is_control) => "a control character".to_owned(),
        name if !bytes.contains(&name.len()) => format!("{} bytes", name.len()),
        _ => return Ok(()),
    };
    let allowed = format!("{} to {} bytes without \"/\" and control characters", bytes.start(), bytes.end());
    Err(place.error(format!("this name has {fault}, allowed are {allowed}")))
}

fn device((name, section): (String, Section<'_, '_>), known: &'static Known) -> Result<DeviceConfig, ConfigError> {
    name_fits(&name, 1..=SECTION_NAME_BYTES_MAX, section.place())?;
    let kinds: Vec<&str> = known.kinds.iter().map(|kind| kind.name).collect();
    let kind = section.require("kind", &kinds.join(", "))?;
    if let Ok(name) = kind.text("")
        && other::LABORATORY.contains(&&*name)
        && !kinds.contains(&&*name)
    {
        return Err(kind.place().error(format!(
            "{name:?} is a kind of the laboratory: cargo lab serve, allowed here are {}, of which model is a modelled drive",
            kinds.join(", ")
        )));
    }
    let kind = kind.choice(&kinds)?;
    let index = kinds.iter().position(|known| *known == kind).expect("a choice of all kinds");
    let (expert, own) = (section.inner("expert")?, known.kinds[index]);
    known.refuse_moved(&section, &expert)?;
    for other in known.kinds.iter().filter(|other| other.name != kind) {
        let why = format!("is for kind {} only, and this device is of kind {kind}", other.name);
        for (section, others, own) in [(&section, other.keys, own.keys), (&expert, other.expert, own.expert)] {
            let keys: Vec<&'static str> = others.iter().copied().filter(|key| !own.contains(key)).collect();
            section.refuse(&keys, &why)?;
        }
    }
    let expert = expert.with_allowed(&known.expert_keys[index])?;
    let section = section.with_allowed(&known.device_keys[index])?;
    let medium = match kinds[index] {
        "null" => Medium::Null { size_bytes: required_size(&section)? },
        "memory" => Medium::Memory { size_bytes: required_size(&section)? },
        "file" => {
            let path = section.require("path", "the path of a file or block device that exists")?;
            let text = path.text("a path")?;
            if text.contains('\0') {
                return Err(path.place().error("holds a NUL character, which ends a path, allowed is a path without"));
            }
            let value = PathBuf::from(text);
            let size = section
                .get("size")
                .map(|size| Ok(Located { value: size.size(1..=SIZE_MAX_BYTES)?, place: size.place() }));
            let (direct, on_failure) = (direct(&expert)?, on_failure(&section)?);
            Medium::File { path: Located { value, place: path.place() }, size: size.transpose()?, direct, on_failure }
        }
        "pool" => {
            let folders = pools::folders(&section)?;
            Medium::Pool { folders, direct: direct(&expert)?, on_failure: on_failure(&section)? }
        }
        "model" => Medium::Model { preset: preset(&section)?, size_bytes: required_size(&section)? },
        name => {
            let other = known.additions.kinds.iter().find(|kind| kind.name == name).expect("a choice of all kinds");
            Medium::Other((other.read)(&section)?)
        }
    };
    let queue_depth = expert.get("queue-depth").map_or(Ok(1024), |depth| depth.number(1..=65_535))?;
    let profile = Profile::read(&section)?;
    let (cost, follow_writes) = cost::read(&section)?;
    let policy = PolicyConfig::read(&section, &expert, queue_depth, profile.as_ref(), known.additions.policies)?;
    let mut device = DeviceConfig {
        name,
        place: section.place().clone(),
        medium,
        preparation: other::Preparation::default(),
        path: PathOptions { follow_writes, ..policy::read_path(&section, &expert)? },
        policy,
        queue_depth,
        cost,
        profile,
        floor_thousandths: goal::floor(&section)?,
    };
    (known.additions.device.read)(&section, &mut device)?;
    Ok(device)
}

/// `direct` of `expert`.
fn direct(expert: &Section<'_, '_>) -> Result<Direct, ConfigError> {
    let choice = expert.get("direct").map(|direct| direct.choice(&["auto", "always", "never"])).transpose()?;
    Ok(match choice.as_deref() {
        Some("always") => Direct::Always,
        Some("never") => Direct::Never,
        _ => Direct::Auto,
    })
}

/// `on-failure`.
fn on_failure(section: &Section<'_, '_>) -> Result<OnFailure, ConfigError> {
    let choice = section.get("on-failure").map(|key| key.choice(&["fail", "read-only"])).transpose()?;
    Ok(if choice.as_deref() == Some("read-only") { OnFailure::ReadOnly } else { OnFailure::Fail })
}

/// `preset`, and `slowed` of `expert`: a drive by name, with each of its times multiplied.
///
/// # Errors
/// As [`Config::parse`].
pub fn preset(section: &Section<'_, '_>) -> Result<Preset, ConfigError> {
    let names = presets::ALL.map(|preset| preset.name);
    let name = section.require("preset", &names.join(", "))?.choice(&names)?;
    let slowed = section.inner("expert")?.get("slowed").map_or(Ok(1), |times| times.number(1..=SLOWED_MAX))?;
    Ok(Preset::by_name(&name).expect("a choice of all names").slowed(slowed))
}

/// `size` of a device that has no size of its own, bytes.
///
/// # Errors
/// As [`Config::parse`].
pub fn required_size(section: &Section<'_, '_>) -> Result<u64, ConfigError> {
    section.require("size", size::ALLOWED)?.size(1..=SIZE_MAX_BYTES)
}

fn tenant(
    (name, section): (String, Section<'_, '_>),
    groups: &Groups,
    known: &'static Known,
) -> Result<TenantConfig, ConfigError> {
    name_fits(&name, 1..=SECTION_NAME_BYTES_MAX, section.place())?;
    let section = section.with_allowed(&known.tenant_keys)?;
    let mut tenant = TenantConfig {
        name,
        weight: weight(&section)?.unwrap_or_default(),
        group: section.get("group").map(|group| groups.find(&group)).transpose()?,
        class: PriorityClass::default(),
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
        latency_ns: section.get(goal::LATENCY).map(|latency| latency.duration_ns(GOAL_NS)).transpose()?,
        identities: trust::identities(&section)?,
    };
    (known.additions.tenant.read)(&section, &mut tenant)?;
    Ok(tenant)
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
        path: section.get("path").map(|path| pools::path(&path)).transpose()?,
        offset: section
            .get("offset")
            .map(|offset| Ok(Located { value: offset.size(0..=SIZE_MAX_BYTES)?, place: offset.place() }))
            .transpose()?,
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
        poll: poll::read(&section)?,
        name,
    })
}
