//! A scenario's TOML: everything but the tenants, which are in `tenant.rs`. docs/lab/scenarios.md has every key.
//!
//! Each refusal is one sentence with file, line, key, what is wrong and what is allowed. What two keys decide together
//! is refused at the later of them in the reader's eyes: too many workers at `workers`, not at `sockets`.

use super::{
    Device, Group, GvtKind, Latencies, Machine, Policy, Scenario, Stolen, Strangers, TokensKind, Unthrottle,
    VirtualTimeKind, tenant::tenant,
};
use crate::form::{ByHand, FORM_KEYS, FormBounds};
use crate::machine;
use mqfq_blk_watched::split::Split;
use mqfq_blk_watched::{CostModel, PolicyKind, PolicyOptions, Tunable, Weight};
use mqfq_blk_watched::{GroupId, Tree};
use mqfq_blkmq_watched::{BlockLayer, HardwareQueues, QueueLayout, Spread};
use mqfq_config::groups::Groups;
use mqfq_config::text::did_you_mean;
use mqfq_config::{ConfigError, Entry, Owner, Section, Source, duration, read_owned, size};
use mqfq_nvme_watched::media::VolatileCache;
use mqfq_nvme_watched::spells::{Drift, Late, Pauses, Slow, Spells};
use mqfq_nvme_watched::{Arbitration, Preset, presets};
use mqfq_policies_watched::{D2FQ, REGISTRY};
use std::sync::LazyLock;
use toml::Value;

/// Most workers that the scheduler's masks have room for.
pub(super) const WORKERS_MAX: usize = 1024;

/// How much slower than itself a drive can be.
const SLOWED_MAX: u32 = 1000;

/// Most flows of one scenario.
const FLOWS_MAX: u64 = 1 << 20;

/// Most clients of one scenario.
const CLIENTS_MAX: u64 = 1 << 22;

/// Most parts of a run that are told apart.
const WINDOWS_MAX: u64 = 100_000;

/// Longest time of anything, ns: an hour.
pub(super) const TIME_MAX_NS: u64 = 3_600_000_000_000;

/// Unit of every device's and request's size: the software controller's logical block.
pub(super) const BLOCK_BYTES: u64 = presets::BLOCK_BYTES as u64;

/// Keys that replace a part of MQFQ.
const PART_KEYS: [&str; 3] = ["virtual-time", "tokens", "unthrottle"];

const UNTHROTTLE: &str = "\"wheel\", or \"poll \" and a duration (\"poll 1us\")";

impl Scenario {
    /// Reads `text`; `file` is its name, and the folder that a trace's path starts at.
    ///
    /// # Errors
    /// A key that is unknown, missing, of the wrong type, out of range or in contradiction to another; a trace that
    /// cannot be read.
    pub fn parse(file: &str, text: &str) -> Result<Scenario, ConfigError> {
        let source = Source::new(file, text);
        let root = source.parse()?;
        let root = Section::root(&source, root.get_ref(), &["run", "machine", "device", "policy", "group", "tenant"])?;
        let (seed, warm_up_ns, measured_ns, window_ns, tells_backlog) = run(&root)?;
        let machine = machine(&root)?;
        let mut device = device(&root)?;
        let policy = policy(&root, device.queue_depth)?;
        device.queues = queues(&root, &machine, policy.kind)?;
        shared_by_shortage(&root, &machine, &device, policy.kind)?;
        let end_ns = warm_up_ns + measured_ns;
        let folder = std::path::Path::new(file).parent().unwrap_or(std::path::Path::new(""));
        let groups = Groups::read(&root, WEIGHTS, Tree::DEPTH_MAX, None)?;
        let mut tenants = Vec::new();
        let (mut flows, mut clients) = (0, 0);
        for (name, section) in root.named_tables("tenant")? {
            let place = section.place().clone();
            let tenant = tenant(name, section, &groups, machine.workers, device.size_bytes, end_ns, folder)?;
            flows += u64::from(tenant.count);
            clients += u64::from(tenant.count) * u64::from(tenant.clients());
            if flows > FLOWS_MAX || clients > CLIENTS_MAX {
                return Err(place.error(format!(
                    "with this tenant there are {flows} flows and {clients} clients, allowed are {FLOWS_MAX} and {CLIENTS_MAX}"
                )));
            }
            tenants.push(tenant);
        }
        if tenants.is_empty() {
            return Err(root.place().error("no [tenant.NAME] section, at least one is needed"));
        }
        if let Some(tenant) = tenants.iter().find(|tenant| tenant.group.is_some())
            && !policy.kind.has_groups()
        {
            let able = REGISTRY.which(PolicyKind::has_groups);
            let place = root.place().inside("tenant").inside(&tenant.name).inside("group");
            let message = format!("policy {} knows no groups, allowed with groups are {able}", policy.kind);
            return Err(place.error(message));
        }
        let groups = groups.all().iter().map(group).collect();
        Ok(Scenario {
            machine,
            device,
            policy,
            groups,
            tenants,
            seed,
            warm_up_ns,
            measured_ns,
            window_ns,
            tells_backlog,
        })
    }
}

/// Weights of tenants and groups.
pub(super) const WEIGHTS: std::ops::RangeInclusive<u64> = Weight::MIN.get() as u64..=Weight::MAX.get() as u64;

fn group(read: &mqfq_config::groups::Group) -> Group {
    let weight = read.weight.map_or(Weight::DEFAULT, |weight| Weight::new(weight).expect("in range"));
    Group { weight, parent: read.parent.map(|parent| GroupId(parent as u32)) }
}

/// `[run]`: seed, warm-up and measured time, and the parts that are told apart.
fn run(root: &Section<'_, '_>) -> Result<(u64, u64, u64, Option<u64>, bool), ConfigError> {
    let (mut seed, mut warm_up_ns, mut measured_ns, mut window_ns) = (1, 20_000_000, 100_000_000, None);
    let mut tells_backlog = false;
    if let Some(run) = root.get("run") {
        let run = run.table(&["seed", "warm-up", "measured", "windows", "backlog"])?;
        seed = run.get("seed").map_or(Ok(seed), |seed| seed.number(0..=i64::MAX as u64))?;
        warm_up_ns = run.get("warm-up").map_or(Ok(warm_up_ns), |time| time.duration_ns(0..=TIME_MAX_NS))?;
        measured_ns = run.get("measured").map_or(Ok(measured_ns), |time| time.duration_ns(1_000..=TIME_MAX_NS))?;
        if let Some(windows) = run.get("windows") {
            let length_ns = windows.duration_ns(1_000..=TIME_MAX_NS)?;
            let count = (warm_up_ns + measured_ns).div_ceil(length_ns);
            if count > WINDOWS_MAX {
                return Err(windows
                    .place()
                    .error(format!("the run has {count} windows of this length, allowed are {WINDOWS_MAX}")));
            }
            window_ns = Some(length_ns);
        }
        tells_backlog = run.get("backlog").map_or(Ok(false), |backlog| backlog.flag())?;
    }
    Ok((seed, warm_up_ns, measured_ns, window_ns, tells_backlog))
}

/// Keys of `[machine]`.
const MACHINE_KEYS: &[&str] = &[
    "preset",
    "workers",
    "sockets",
    "boards",
    "cores-per-socket",
    "threads-per-core",
    "latency",
    "memory",
    "intake",
    "stolen",
];

fn machine(root: &Section<'_, '_>) -> Result<Machine, ConfigError> {
    let names = machine::NAMES.join(", ");
    let section = root.require("machine", "a table with a preset")?.table(MACHINE_KEYS)?;
    let preset = section.require("preset", &names)?.choice(machine::NAMES)?;
    let mut machine = machine::preset(&preset).expect("a choice of its names");
    if let Some(sockets) = section.get("sockets") {
        machine.sockets = sockets.number(1..=8)?;
        machine.boards = machine.boards.min(machine.sockets);
    }
    if let Some(boards) = section.get("boards") {
        machine.boards = boards.number(1..=machine.sockets)?;
    }
    if let Some(cores) = section.get("cores-per-socket") {
        machine.cores_per_socket = cores.number(1..=WORKERS_MAX)?;
    }
    if let Some(threads) = section.get("threads-per-core") {
        machine.threads_per_core = threads.number(1..=2)?;
    }
    let hardware_threads = machine.sockets * machine.cores_per_socket * machine.threads_per_core;
    machine.workers = match section.get("workers") {
        Some(entry) => {
            let workers = entry.number(1..=WORKERS_MAX)?;
            if workers > hardware_threads {
                return Err(entry.place().error(format!(
                    "{workers} workers are more than the machine's {} x {} x {} = {hardware_threads} hardware threads, allowed is 1 to \
                     {hardware_threads}",
                    machine.sockets, machine.cores_per_socket, machine.threads_per_core
                )));
            }
            workers
        }
        None if hardware_threads > WORKERS_MAX => {
            let place = section.place().inside("workers");
            return Err(place.error(format!(
                "this key is missing and the machine has {hardware_threads} hardware threads, allowed is 1 to {WORKERS_MAX}"
            )));
        }
        None => hardware_threads,
    };
    if let Some(memory) = section.get("memory") {
        machine.memory_is_free = memory.choice(&["modelled", "free"])? == "free";
    }
    if let Some(intake) = section.get("intake") {
        machine.intake_is_fair = intake.choice(&["fair", "round"])? == "fair";
    }
    machine.stolen = section.get("stolen").map(|entry| stolen(&entry)).transpose()?;
    if let Some(latency) = section.get("latency") {
        override_latencies(&latency, &mut machine.latency)?;
    }
    Ok(machine)
}

/// `{ runs-least = DURATION, runs-most = DURATION, stops-least = DURATION, stops-most = DURATION }`
fn stolen(entry: &Entry<'_, '_>) -> Result<Stolen, ConfigError> {
    let table = entry.table(&["runs-least", "runs-most", "stops-least", "stops-most"])?;
    let range = |least: &'static str, most: &'static str| -> Result<(u64, u64), ConfigError> {
        let least_ns = table.require(least, "a duration")?.duration_ns(1..=TIME_MAX_NS)?;
        Ok((least_ns, table.require(most, "a duration")?.duration_ns(least_ns..=TIME_MAX_NS)?))
    };
    Ok(Stolen { runs_ns: range("runs-least", "runs-most")?, stops_ns: range("stops-least", "stops-most")? })
}

/// `[machine.latency]`: fields of [`Latencies`] by their names, with hyphens.
fn override_latencies(entry: &Entry<'_, '_>, latency: &mut Latencies) -> Result<(), ConfigError> {
    let mut all = toml::Table::try_from(*latency).expect("numbers and flags");
    for (key, entry) in entry.pairs("a table of latencies")? {
        let Some(value) = all.get_mut(&key) else {
            let known: Vec<&str> = all.keys().map(String::as_str).collect();
            let hint = did_you_mean(&key, known.iter().copied());
            return Err(entry.place().error(format!("unknown key, allowed are {}{hint}", known.join(", "))));
        };
        *value = match (&*value, key.as_str()) {
            (Value::Boolean(_), _) => entry.flag()?.into(),
            (Value::Integer(_), "lines-under-lock") => entry.number(0..=1000u32)?.into(),
            (Value::Integer(_), "shared-words") => entry.number(0..=16u32)?.into(),
            (Value::Integer(_), _) => entry.number(1..=1_000_000u32)?.into(),
            (_, "two-threads-factor") => entry.decimal(1.0..=2.0)?.into(),
            (_, "jitter-share") => entry.decimal(0.0..=0.5)?.into(),
            _ => entry.decimal(0.0..=1e6)?.into(),
        };
    }
    *latency = all.try_into().expect("values of the types that were written");
    Ok(())
}

/// Keys of `[device]`; the first are a drive's alone.
const DEVICE_KEYS: &[&str] = &[
    "preset",
    "arbitration",
    "inside-max",
    "slowed",
    "write-drift",
    "volatile-cache",
    "slow-spell",
    "pauses",
    "late",
    "strangers",
    "kind",
    "size",
    "queue-depth",
    "queue-pairs",
    "block-layer",
    "software-queues",
    "hardware-queues",
    "split",
    "throughput-floor",
    "cost",
];

/// Number of keys that have no meaning without a drive.
const DRIVE_KEYS: usize = 10;

/// `block-layer`, `software-queues` and `hardware-queues`, as in the daemon's config.
fn queues(root: &Section<'_, '_>, machine: &Machine, policy: PolicyKind) -> Result<QueueLayout, ConfigError> {
    let device = &root.require("device", "a table with kind and size")?.table(&[])?.with_allowed(DEVICE_KEYS)?;
    const KEYS: [&str; 3] = ["block-layer", "software-queues", "hardware-queues"];
    let names = BlockLayer::ALL.map(BlockLayer::name);
    let layer = device.get(KEYS[0]).map(|entry| entry.choice(&names)).transpose()?;
    let mut layout = match layer.as_deref() {
        Some("sq") => QueueLayout::SQ,
        Some("raw") => QueueLayout::RAW,
        Some("low-latency") => QueueLayout { layer: BlockLayer::LowLatency, ..QueueLayout::RAW },
        _ => QueueLayout::default(),
    };
    if layout.layer != BlockLayer::Mq {
        let name = layout.layer.name();
        device.refuse(&KEYS[1..], &format!("is fixed by block-layer = \"{name}\", allowed with \"mq\""))?;
    }
    if let Some(entry) = device.get(KEYS[1]) {
        let chosen = entry.choice(&Spread::ALL.map(Spread::name))?;
        layout.software =
            Spread::ALL.into_iter().find(|spread| spread.name() == chosen).expect("a choice of all names");
    }
    if let Some(entry) = device.get(KEYS[2]) {
        let value = entry.value()?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let allowed = "\"per-core\", \"per-socket\", \"single\", or a number of queues from 1 to 65535";
        let wrong = |()| entry.place().error(format!("{value} is not known, allowed are {allowed}"));
        layout.hardware = text.parse::<HardwareQueues>().map_err(wrong)?;
    }
    let Some(chosen) = KEYS.iter().find_map(|key| device.get(key)) else { return Ok(layout) };
    layout.check_policy(policy).map_err(|why| chosen.place().error(why))?;
    let per_core = HardwareQueues::Spread(Spread::PerCore);
    let shares = !layout.layer.is_bypass() && (layout.software, layout.hardware) != (Spread::PerCore, per_core);
    if shares && machine.memory_is_free {
        return Err(chosen
            .place()
            .error("queues that workers share have locks, allowed is machine.memory = \"modelled\""));
    }
    Ok(layout)
}

fn device(root: &Section<'_, '_>) -> Result<Device, ConfigError> {
    let section = root.require("device", "a table with kind and size")?.table(&[])?;
    let kind = section.require("kind", "nvme, null")?.choice(&["nvme", "null"])?;
    let is_nvme = kind == "nvme";
    let section = section.with_allowed(if is_nvme { DEVICE_KEYS } else { &DEVICE_KEYS[DRIVE_KEYS..] })?;
    let names: Vec<&str> = presets::ALL.iter().map(|preset| preset.name).collect();
    let preset = if is_nvme { Some(section.require("preset", &names.join(", "))?.choice(&names)?) } else { None };
    let size_bytes = blocks(&section.require("size", size::ALLOWED)?, 1 << 20, i64::MAX as u64)?;
    let queue_depth = section.get("queue-depth").map_or(Ok(1024), |depth| depth.number(1..=65_535))?;
    let queue_pairs =
        section.get("queue-pairs").map_or(Ok(Device::QUEUE_PAIRS), |pairs| pairs.number(1..=Device::QUEUE_PAIRS))?;
    let of_drive = |key| if is_nvme { section.get(key) } else { None };
    let inside_max = of_drive("inside-max").map(|most| most.number(1..=u16::MAX)).transpose()?;
    let slowed = of_drive("slowed").map_or(Ok(1), |times| times.number(1..=SLOWED_MAX))?;
    let names = Arbitration::ALL.map(|(name, _)| name);
    let arbitration = of_drive("arbitration").map(|entry| entry.choice(&names)).transpose()?;
    let arbitration = arbitration.map(|name| Arbitration::by_name(&name).expect("a choice of all names"));
    // Which queues can be shared depends on the policy, which is read next.
    let plain = Device::new(preset.as_deref(), size_bytes, queue_depth);
    let (parts, step) = Split::SIZES;
    let split = |entry: Entry<'_, '_>| entry.size_or_one_of(&Split::WORDS, parts, step, Split::of_size);
    let split = section.get("split").map_or(Ok(Split::Off), split)?;
    let floor = section.get("throughput-floor").map(|floor| floor.decimal(0.05..=1.0)).transpose()?;
    let floor_thousandths = floor.map_or(plain.floor_thousandths, |floor| (floor * 1000.0).round() as u32);
    let (cost, follow_writes) = cost(&section)?;
    let spells = Spells {
        slow: of_drive("slow-spell").map(|entry| slow_spell(&entry)).transpose()?,
        pauses: of_drive("pauses").map(|entry| pauses(&entry)).transpose()?,
        late: of_drive("late").map(|entry| late(&entry)).transpose()?,
        write_drift: of_drive("write-drift").map(|entry| write_drift(&entry)).transpose()?,
    };
    let volatile_cache = match (of_drive("volatile-cache"), preset.as_deref()) {
        (Some(entry), Some(preset)) => Some(volatile_cache(&entry, preset)?),
        _ => None,
    };
    let device = Device {
        queue_pairs,
        arbitration,
        inside_max,
        slowed,
        volatile_cache,
        spells,
        strangers: of_drive("strangers").map(|entry| strangers(&entry)).transpose()?,
        split,
        floor_thousandths,
        ..plain
    };
    Ok(Device { cost, follow_writes, ..device })
}

/// `{ flush = DURATION, back = SIZE per second, size = SIZE }`; each may be left out where the preset has one.
fn volatile_cache(entry: &Entry<'_, '_>, preset: &str) -> Result<VolatileCache, ConfigError> {
    let table = entry.table(&["flush", "back", "size"])?;
    let of_preset = Preset::by_name(preset).ok().and_then(|preset| preset.volatile_cache);
    let own = |key: &'static str, allowed: &str| match of_preset {
        Some(_) => Ok(table.get(key)),
        None => table.require(key, allowed).map(Some),
    };
    let base = of_preset.unwrap_or(VolatileCache { flush_ns: 0, back_bytes_per_s: 0, size_bytes: 0 });
    Ok(VolatileCache {
        flush_ns: own("flush", "a duration")?.map_or(Ok(base.flush_ns), |entry| entry.duration_ns(0..=TIME_MAX_NS))?,
        back_bytes_per_s: own("back", size::ALLOWED)?
            .map_or(Ok(base.back_bytes_per_s), |entry| entry.size(1..=1 << 40))?,
        size_bytes: own("size", size::ALLOWED)?.map_or(Ok(base.size_bytes), |entry| entry.size(0..=1 << 40))?,
    })
}

/// `{ from = DURATION, until = DURATION, times = N }`
fn slow_spell(entry: &Entry<'_, '_>) -> Result<Slow, ConfigError> {
    let table = entry.table(&["from", "until", "times"])?;
    let from_ns = table.require("from", "a duration")?.duration_ns(0..=TIME_MAX_NS)?;
    let until_ns = table.require("until", "a duration")?.duration_ns(from_ns..=TIME_MAX_NS)?;
    Ok(Slow { from_ns, until_ns, times: table.require("times", "a number")?.number(1..=SLOWED_MAX)? })
}

/// `{ every = DURATION, length = DURATION }`
fn pauses(entry: &Entry<'_, '_>) -> Result<Pauses, ConfigError> {
    let table = entry.table(&["every", "length"])?;
    let every_ns = table.require("every", "a duration")?.duration_ns(1..=TIME_MAX_NS)?;
    Ok(Pauses { every_ns, length_ns: table.require("length", "a duration")?.duration_ns(0..=every_ns - 1)? })
}

/// `{ permille = N, times = N }`
fn late(entry: &Entry<'_, '_>) -> Result<Late, ConfigError> {
    let table = entry.table(&["permille", "times"])?;
    let permille = table.require("permille", "a number")?.number(0..=1000)?;
    Ok(Late { permille, times: table.require("times", "a number")?.number(1..=SLOWED_MAX)? })
}

/// `{ depth = N, size = SIZE, every = DURATION, length = DURATION }`
fn strangers(entry: &Entry<'_, '_>) -> Result<Strangers, ConfigError> {
    let table = entry.table(&["depth", "size", "every", "length"])?;
    let every_ns = table.require("every", "a duration")?.duration_ns(1..=TIME_MAX_NS)?;
    let size = table.require("size", size::ALLOWED)?;
    Ok(Strangers {
        depth: table.require("depth", "a number")?.number(1..=65_534)?,
        size_bytes: blocks(&size, BLOCK_BYTES, 1 << 20)? as u32,
        every_ns,
        length_ns: table.require("length", "a duration")?.duration_ns(0..=every_ns)?,
    })
}

/// With fewer queue pairs than workers need they share queues, which have locks.
fn shared_by_shortage(
    root: &Section<'_, '_>,
    machine: &Machine,
    device: &Device,
    policy: PolicyKind,
) -> Result<(), ConfigError> {
    let of_each = if policy.is_direct() { 3 } else { 1 };
    if !machine.memory_is_free || usize::from(device.queue_pairs) >= machine.workers * of_each {
        return Ok(());
    }
    let place = root.place().inside("device").inside("queue-pairs");
    let section = root.require("device", "a table with kind and size")?.table(&[])?.with_allowed(DEVICE_KEYS)?;
    let place = section.get("queue-pairs").map_or(place, |entry| entry.place());
    Err(place.error(format!(
        "{} for {} workers, which need {of_each} each, means that they share queues, which have locks, allowed is machine.memory = \"modelled\"",
        device.queue_pairs, machine.workers
    )))
}

/// `write-drift`: writes take evenly more time, up to `times` as much, and less again, in each `period`.
fn write_drift(entry: &Entry<'_, '_>) -> Result<Drift, ConfigError> {
    let drift = entry.table(&["times", "period"])?;
    Ok(Drift {
        times: drift.require("times", "1 to 64")?.number(1..=64)?,
        period_ns: drift.require("period", duration::ALLOWED)?.duration_ns(1_000_000..=TIME_MAX_NS)?,
    })
}

/// `cost`: `"bytes"`, `"auto"`, or `read` and `write`, each `{ base = SIZE, per-byte = NUMBER }`, as in the daemon's
/// config. Whether the cost of writes is followed from there.
fn cost(device: &Section<'_, '_>) -> Result<(CostModel, bool), ConfigError> {
    let mut model = CostModel::FLAT;
    let Some(cost) = device.get("cost") else { return Ok((model, false)) };
    match (cost.text("\"bytes\", \"auto\" or a table"), cost.table(&[])) {
        (Ok(_), _) => return Ok((model, cost.choice(&["bytes", "auto"])? == "auto")),
        (Err(neither), Err(_)) => return Err(neither),
        (Err(_), Ok(_)) => {}
    }
    let cost = cost.table(&["read", "write", "auto"])?;
    for (key, term) in [("read", &mut model.read), ("write", &mut model.write)] {
        let Some(entry) = cost.get(key) else { continue };
        let entry = entry.table(&["base", "per-byte"])?;
        if let Some(base) = entry.get("base") {
            term.base_bytes = base.size(0..=1 << 30)?;
        }
        if let Some(per_byte) = entry.get("per-byte") {
            term.per_byte_256ths = (per_byte.decimal(0.0..=1000.0)? * 256.0).round() as u32;
        }
    }
    Ok((model, cost.get("auto").map_or(Ok(false), |auto| auto.flag())?))
}

/// A size of whole blocks.
pub(super) fn blocks(entry: &Entry<'_, '_>, least: u64, most: u64) -> Result<u64, ConfigError> {
    let bytes = entry.size(least..=most)?;
    whole_blocks(entry, bytes)
}

/// Checks a size that was read already.
pub(super) fn whole_blocks(entry: &Entry<'_, '_>, bytes: u64) -> Result<u64, ConfigError> {
    if !bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(entry.place().error(format!("{bytes} is no multiple of {BLOCK_BYTES}, allowed are whole blocks")));
    }
    Ok(bytes)
}

/// Keys of `[policy]`: those that do not belong to one policy, then the policies' own.
static POLICY_KEYS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let common = ["kind", "depth", "depth-start", "window", "token-unit"];
    [&common[..], &FORM_KEYS[..], &PART_KEYS[..], &["global-vtime"], &REGISTRY.all_keys()[..]].concat()
});

fn policy(root: &Section<'_, '_>, queue_depth: u16) -> Result<Policy, ConfigError> {
    let defaults = PolicyOptions::new(PolicyKind::Mqfq);
    let mut policy = Policy {
        kind: PolicyKind::Mqfq,
        depth: defaults.depth,
        depth_auto: false,
        window_bytes: defaults.window.bytes(),
        window_auto: false,
        relaxed: Some(ByHand::default()),
        token_unit_bytes: None,
        virtual_time: VirtualTimeKind::Mindicator,
        tokens: TokensKind::TokenTree,
        unthrottle: Unthrottle::Wheel,
        own: defaults.own,
        global_vtime: GvtKind::Sloppy,
    };
    let Some(section) = root.get("policy") else { return Ok(policy) };
    let section = section.table(&POLICY_KEYS)?;
    if let Some(kind) = section.get("kind") {
        policy.kind = REGISTRY.find(&kind.choice(&REGISTRY.names())?).expect("a choice of all names");
    }
    if policy.kind.is_elevator() {
        policy.depth = queue_depth.into();
    }
    own_keys(&section, &mut policy)?;
    depth(&section, &mut policy)?;
    if let Some(window) = section.get("window") {
        let bytes = window.size_or("auto", 0..=PolicyOptions::WINDOW_MAX.bytes())?;
        policy.window_bytes = bytes.unwrap_or(policy.window_bytes);
        policy.window_auto = bytes.is_none();
        if policy.window_auto && !policy.kind.has_window() {
            let allowed = REGISTRY.which(PolicyKind::has_window);
            let why = format!("\"auto\" is no setting of policy {}, allowed with {allowed}", policy.kind);
            return Err(window.place().error(why));
        }
    }
    if let Some(unit) = section.get("token-unit") {
        policy.token_unit_bytes = match unit.text("").as_deref() {
            Ok("request") => None,
            _ => Some(unit.size(512..=1 << 30)? as u32),
        };
    }
    form(&section, &mut policy)?;
    parts(&section, &mut policy)?;
    Ok(policy)
}

/// D: a number, or `"auto"` and where that starts.
fn depth(section: &Section<'_, '_>, policy: &mut Policy) -> Result<(), ConfigError> {
    let Some(depth) = section.get("depth") else {
        return section.refuse(&["depth-start"], "says where depth = \"auto\" starts, allowed with it");
    };
    if let Some(number) = depth.number_or("auto", 1..=PolicyOptions::DEPTH_MAX)? {
        policy.depth = number;
        return section.refuse(&["depth-start"], "says where depth = \"auto\" starts, allowed with it");
    }
    if !policy.kind.tunes_depth() {
        let allowed = REGISTRY.which(PolicyKind::tunes_depth);
        let why = format!("\"auto\" is no setting of policy {}, allowed with {allowed}", policy.kind);
        return Err(depth.place().error(why));
    }
    policy.depth_auto = true;
    policy.token_unit_bytes = Some(PolicyOptions::AUTO_TOKEN_UNIT_BYTES);
    if let Some(start) = section.get("depth-start") {
        policy.depth = start.number(1..=PolicyOptions::DEPTH_MAX)?;
    }
    Ok(())
}

/// The keys that only some policies have; their ranges are the policies' own.
fn own_keys(section: &Section<'_, '_>, policy: &mut Policy) -> Result<(), ConfigError> {
    let Policy { kind, own, .. } = policy;
    let owner = |kind: PolicyKind| Owner { name: kind.name(), keys: kind.keys().iter().map(|key| key.name).collect() };
    read_owned(section, "policy", kind.name(), &mqfq_policies_watched::ALL.map(owner), |key, entry| {
        let set = |tunable: Tunable<'_>| {
            tunable.set(|ns| entry.duration_ns(ns), |bytes| entry.size(bytes), |n| entry.number(n), || entry.flag())
        };
        own.tune(*kind, key, set).expect("it is one of its keys")
    })
}

/// The form and, in the relaxed one, its numbers.
fn form(section: &Section<'_, '_>, policy: &mut Policy) -> Result<(), ConfigError> {
    if !policy.kind.has_window() {
        let allowed = REGISTRY.which(PolicyKind::has_window);
        let why = format!("is no setting of policy {}, allowed with {allowed}", policy.kind);
        policy.relaxed = None;
        return section.refuse(&FORM_KEYS, &why);
    }
    let found = section.get("window").filter(|_| policy.window_auto);
    let (token_batch_max, token_share_max) = (PolicyOptions::TOKEN_BATCH_MAX, PolicyOptions::DEPTH_MAX);
    let bounds = FormBounds { token_batch_max, token_share_max };
    policy.relaxed = ByHand::read(section, policy.window_bytes, found.as_ref(), bounds)?;
    Ok(())
}

/// The parts of MQFQ and of D2FQ that can be replaced by what they are compared with.
fn parts(section: &Section<'_, '_>, policy: &mut Policy) -> Result<(), ConfigError> {
    if policy.kind != D2FQ {
        section.refuse(&["global-vtime"], &format!("is no setting of policy {}, allowed with d2fq", policy.kind))?;
    } else if let Some(entry) = section.get("global-vtime") {
        policy.global_vtime = match entry.choice(&["sloppy", "mindicator", "serial-scan", "off"])?.as_str() {
            "sloppy" => GvtKind::Sloppy,
            "mindicator" => GvtKind::Mindicator,
            "serial-scan" => GvtKind::SerialScan,
            _ => GvtKind::Off,
        };
    }
    if policy.kind != PolicyKind::Mqfq {
        return section.refuse(&PART_KEYS, &format!("is no setting of policy {}, allowed with mqfq", policy.kind));
    }
    if let Some(entry) = section.get("virtual-time") {
        policy.virtual_time = match entry.choice(&["mindicator", "array-scan", "off"])?.as_str() {
            "mindicator" => VirtualTimeKind::Mindicator,
            "array-scan" => VirtualTimeKind::ArrayScan,
            _ => VirtualTimeKind::Off,
        };
    }
    if let Some(entry) = section.get("tokens") {
        policy.tokens = match entry.choice(&["token-tree", "atomic-counter", "scalable-bitmap"])?.as_str() {
            "token-tree" => TokensKind::TokenTree,
            "atomic-counter" => TokensKind::AtomicCounter,
            _ => TokensKind::ScalableBitmap,
        };
    }
    if let Some(entry) = section.get("unthrottle") {
        let text = entry.text(UNTHROTTLE)?;
        policy.unthrottle = match text.strip_prefix("poll ").and_then(duration::parse) {
            Some(period_ns @ 1..=TIME_MAX_NS) => Unthrottle::Poll { period_ns },
            None if text == "wheel" => Unthrottle::Wheel,
            _ => return Err(entry.place().error(format!("\"{text}\" is not known, allowed are {UNTHROTTLE}"))),
        };
    }
    Ok(())
}
