//! `[tenant.NAME]`: clients, their number, their workers, and their requests.

use super::parse::{BLOCK_BYTES, TIME_MAX_NS, WEIGHTS, blocks, whole_blocks};
use super::{Arrival, Background, Load, Pattern, SocketOptions, Tenant};
use crate::workload::models::{self, Model};
use crate::workload::trace;
use mqfq_blk_watched::GroupId;
use mqfq_blk_watched::cap::CapLimits;
use mqfq_blk_watched::request::Op;
use mqfq_blk_watched::tuning::GOAL_NS;
use mqfq_blk_watched::{PriorityClass, Weight};
use mqfq_config::groups::Groups;
use mqfq_config::text::sentence;
use mqfq_config::{ConfigError, Entry, Section, size};
use mqfq_nvme_watched::presets::TRANSFER_BYTES_MAX;
use std::path::Path;

/// Kinds of load.
const LOADS: [&str; 5] = ["closed", "open", "phases", "chain", "trace"];

/// The keys of one kind of load, after those that all have.
macro_rules! keys {
    ($($own:literal),*) => {
        &[
            "weight", "group", "class", "count", "threads", "first-worker", "on-workers", "start", "stop", "load", "model", "cpu", "socket", "max-iops", "max-bytes-per-s", "latency", $($own,)*
        ]
    };
}

/// Keys of a kind that makes up its requests.
macro_rules! shaped_keys {
    ($($own:literal),*) => { keys![$($own,)* "size", "sizes", "read-percent", "pattern", "theta", "background"] };
}

/// Keys of `[tenant.NAME]` per kind of load, in the order of [`LOADS`].
const KEYS: [&[&str]; 5] = [
    shaped_keys!["depth", "think", "burst-on", "burst-off"],
    shaped_keys!["rate", "poisson", "burst-on", "burst-off"],
    shaped_keys!["depth", "phase-requests", "compute"],
    shaped_keys!["steps", "think"],
    keys!["trace", "stretch", "depth"],
];

/// Steps of a chain by name.
const STEPS: [(&str, Op); 3] = [("read", Op::Read), ("write", Op::Write), ("flush", Op::Flush)];

/// A chain of which nothing is said: the commit of the demo (`demo/src/load.rs`), data and the journal's block, made
/// durable, then the journal's commit record, made durable.
const COMMIT: &[Op] = &[Op::Write, Op::Write, Op::Flush, Op::Write, Op::Flush];

/// Threads of a tenant, and most entries of `on-workers`.
const THREADS_MAX: u32 = 4096;

/// Requests in flight of one thread.
const DEPTH_MAX: u32 = 65_535;

/// Zipf's default skew: `ZIPFIAN_CONSTANT` of YCSB's `ZipfianGenerator`.
const THETA: f64 = 0.99;

/// The tenant in `section`, on so many workers, on a device of that size, in a run that ends at `end_ns`.
pub(super) fn tenant(
    name: String,
    section: Section<'_, '_>,
    groups: &Groups,
    workers: usize,
    device_bytes: u64,
    end_ns: u64,
    folder: &Path,
) -> Result<Tenant, ConfigError> {
    let model = match section.get("model") {
        Some(entry) => models::model(&entry.choice(models::NAMES)?),
        None => None,
    };
    let kind = match (section.get("load"), &model) {
        (Some(entry), _) => entry.choice(&LOADS)?,
        (None, Some(model)) => kind_of(&model.load.arrival).to_owned(),
        (None, None) => {
            let allowed = format!("one of {}, or a model", LOADS.join(", "));
            return Err(section.place().inside("load").error(format!("this key is missing, allowed is {allowed}")));
        }
    };
    let section =
        section.with_allowed(KEYS[LOADS.iter().position(|known| *known == kind).expect("a choice of LOADS")])?;
    let weight = section.get("weight").map(|weight| weight.number(WEIGHTS)).transpose()?;
    let group = section.get("group").map(|group| groups.find(&group)).transpose()?;
    let threads = model.as_ref().map_or(1, |model| model.threads);
    let threads = section.get("threads").map_or(Ok(threads), |threads| threads.number(1..=THREADS_MAX))?;
    let start_ns = section.get("start").map_or(Ok(0), |start| start.duration_ns(0..=end_ns - 1))?;
    let stop_ns = section.get("stop").map(|stop| stop.duration_ns(start_ns + 1..=TIME_MAX_NS)).transpose()?;
    Ok(Tenant {
        count: section.get("count").map_or(Ok(1), |count| count.number(1..=1_000_000))?,
        weight: weight.map_or(Weight::DEFAULT, |weight| Weight::new(weight).expect("in range")),
        group: group.map(|group| GroupId(group as u32)),
        class: section.get("class").map_or(Ok(PriorityClass::default()), |class| {
            let name = class.choice(&PriorityClass::ALL.map(PriorityClass::name))?;
            Ok(name.parse().expect("a choice of all names"))
        })?,
        threads,
        first_worker: section.get("first-worker").map_or(Ok(0), |worker| worker.number(0..=workers - 1))?,
        on_workers: on_workers(&section, workers)?,
        socket: socket(&section)?,
        caps: caps(&section)?,
        goal_ns: section.get("latency").map_or(Ok(0), |goal| goal.duration_ns(GOAL_NS))?,
        load: load(&section, &kind, model.as_ref(), device_bytes, folder)?,
        background: background(&section, &kind, model.as_ref(), device_bytes)?,
        start_ns,
        stop_ns,
        name,
    })
}

/// `max-iops` and `max-bytes-per-s`.
fn caps(section: &Section<'_, '_>) -> Result<CapLimits, ConfigError> {
    let bytes = section.get("max-bytes-per-s");
    Ok(CapLimits {
        iops: section.get("max-iops").map(|iops| iops.number(CapLimits::IOPS)).transpose()?,
        bytes_per_s: bytes.map(|bytes| bytes.size(CapLimits::BYTES_PER_S)).transpose()?,
    })
}

/// `socket = { buffer = SIZE, network = DURATION }`.
fn socket(section: &Section<'_, '_>) -> Result<Option<SocketOptions>, ConfigError> {
    let Some(entry) = section.get("socket") else { return Ok(None) };
    let socket = entry.table(&["buffer", "network"])?;
    Ok(Some(SocketOptions {
        buffer_bytes: socket.get("buffer").map_or(Ok(208 << 10), |buffer| buffer.size(4096..=1 << 30))?,
        network_ns: socket.get("network").map_or(Ok(5_000), |network| network.duration_ns(0..=1_000_000_000))?,
    }))
}

/// The name of a kind of arrival.
fn kind_of(arrival: &Arrival) -> &'static str {
    LOADS[match arrival {
        Arrival::Closed { .. } => 0,
        Arrival::Open { .. } => 1,
        Arrival::Phases { .. } => 2,
        Arrival::Chain { .. } => 3,
        Arrival::Trace { .. } => 4,
    }]
}

fn on_workers(section: &Section<'_, '_>, workers: usize) -> Result<Vec<usize>, ConfigError> {
    let Some(entry) = section.get("on-workers") else { return Ok(Vec::new()) };
    section.refuse(&["first-worker"], "does not go together with on-workers, allowed is one of the two")?;
    let allowed = format!("a list of worker numbers, 0 to {}", workers - 1);
    let items = entry.items(&allowed)?;
    if items.is_empty() || items.len() > THREADS_MAX as usize {
        return Err(entry.place().error(format!("{} numbers do not fit here, allowed is {allowed}", items.len())));
    }
    items.iter().map(|item| item.number(0..=workers - 1)).collect()
}

fn load(
    section: &Section<'_, '_>,
    kind: &str,
    model: Option<&Model>,
    device_bytes: u64,
    folder: &Path,
) -> Result<Load, ConfigError> {
    let base = model.map(|model| &model.load);
    let arrival = match kind {
        "closed" => closed(section, base.map(|base| &base.arrival))?,
        "open" => open(section)?,
        "chain" => chain(section)?,
        "phases" => phases(section, base.map(|base| &base.arrival))?,
        _ => replay(section, device_bytes, folder)?,
    };
    let cpu_ns = base.map_or(0, |base| base.cpu_ns);
    let cpu_ns = section.get("cpu").map_or(Ok(cpu_ns), |cpu| cpu.duration_ns(0..=1_000_000_000))?;
    if let Arrival::Trace { .. } = arrival {
        return Ok(Load { arrival, sizes: Vec::new(), read_percent: 100, pattern: Pattern::Random, cpu_ns });
    }
    let read_percent = base.map_or(100, |base| base.read_percent);
    Ok(Load {
        arrival,
        sizes: sizes(section, base.map_or(&[(4096, 100)], |base| &base.sizes), device_bytes)?,
        read_percent: section.get("read-percent").map_or(Ok(read_percent), |percent| percent.number(0..=100))?,
        pattern: pattern(section, base.map_or(Pattern::Random, |base| base.pattern))?,
        cpu_ns,
    })
}

fn closed(section: &Section<'_, '_>, base: Option<&Arrival>) -> Result<Arrival, ConfigError> {
    let (depth, think_ns) = match base {
        Some(Arrival::Closed { depth, think_ns, .. }) => (*depth, *think_ns),
        _ => (1, 0),
    };
    Ok(Arrival::Closed {
        depth: section.get("depth").map_or(Ok(depth), |depth| depth.number(1..=DEPTH_MAX))?,
        think_ns: section.get("think").map_or(Ok(think_ns), |think| think.duration_ns(0..=TIME_MAX_NS))?,
        bursts: bursts(section)?,
    })
}

/// `burst-on` and `burst-off`, both or none.
fn bursts(section: &Section<'_, '_>) -> Result<Option<(u64, u64)>, ConfigError> {
    match (section.get("burst-on"), section.get("burst-off")) {
        (None, None) => Ok(None),
        (Some(on), Some(off)) => Ok(Some((on.duration_ns(1..=TIME_MAX_NS)?, off.duration_ns(1..=TIME_MAX_NS)?))),
        (on, off) => {
            let alone = on.or(off).expect("one of the two").place();
            Err(alone.error("stands alone, allowed are burst-on and burst-off together"))
        }
    }
}

/// Steps of a commit, unless `steps` says others.
fn chain(section: &Section<'_, '_>) -> Result<Arrival, ConfigError> {
    section.refuse(&["read-percent"], "does not go together with load = \"chain\", whose steps say what they are")?;
    let steps = match section.get("steps") {
        None => COMMIT.to_vec(),
        Some(entry) => {
            let allowed = "a list of \"read\", \"write\" and \"flush\", 1 to 64 of them";
            let items = entry.items(allowed)?;
            if items.is_empty() || items.len() > 64 {
                return Err(entry
                    .place()
                    .error(format!("{} steps do not fit here, allowed is {allowed}", items.len())));
            }
            let step = |item: &Entry<'_, '_>| {
                let name = item.choice(&STEPS.map(|(name, _)| name))?;
                Ok(STEPS.into_iter().find(|(known, _)| *known == name).expect("a choice of STEPS").1)
            };
            items.iter().map(step).collect::<Result<Vec<Op>, ConfigError>>()?
        }
    };
    let think_ns = section.get("think").map_or(Ok(0), |think| think.duration_ns(0..=TIME_MAX_NS))?;
    Ok(Arrival::Chain { steps: steps.into(), think_ns })
}

fn open(section: &Section<'_, '_>) -> Result<Arrival, ConfigError> {
    let rate = section.require("rate", "requests per second of each thread")?;
    Ok(Arrival::Open {
        rate_per_s: rate.decimal(0.001..=1e9)?,
        poisson: section.get("poisson").map_or(Ok(false), |poisson| poisson.flag())?,
        bursts: bursts(section)?,
    })
}

fn phases(section: &Section<'_, '_>, base: Option<&Arrival>) -> Result<Arrival, ConfigError> {
    let (depth, requests, compute_ns) = match base {
        Some(Arrival::Phases { depth, requests, compute_ns }) => (*depth, *requests, *compute_ns),
        _ => (1, 1000, 0),
    };
    Ok(Arrival::Phases {
        depth: section.get("depth").map_or(Ok(depth), |depth| depth.number(1..=DEPTH_MAX))?,
        requests: section.get("phase-requests").map_or(Ok(requests), |requests| requests.number(1..=u32::MAX))?,
        compute_ns: section.get("compute").map_or(Ok(compute_ns), |compute| compute.duration_ns(0..=TIME_MAX_NS))?,
    })
}

fn replay(section: &Section<'_, '_>, device_bytes: u64, folder: &Path) -> Result<Arrival, ConfigError> {
    let entry = section.require("trace", "the path of a trace: fio's iolog or blkparse's text")?;
    let path = folder.join(entry.text("a path")?);
    let shown = path.display();
    let text = std::fs::read_to_string(&path)
        .map_err(|error| entry.place().error(format!("cannot read {shown}: {}", sentence(&error.to_string()))))?;
    let trace =
        trace::parse(&text, device_bytes).map_err(|refused| entry.place().error(format!("{shown}:{refused}")))?;
    let depth = section.get("depth").map(|depth| depth.number(1..=DEPTH_MAX)).transpose()?;
    Ok(Arrival::Trace {
        // fio plays what has no times with its own default, iodepth=1.
        depth: depth.or((!trace.timed).then_some(1)),
        trace,
        stretch: section.get("stretch").map_or(Ok(1.0), |stretch| stretch.decimal(0.000_001..=1e6))?,
    })
}

/// `size`, or `sizes` with their parts.
fn sizes(section: &Section<'_, '_>, base: &[(u32, u8)], device_bytes: u64) -> Result<Vec<(u32, u8)>, ConfigError> {
    let most = u64::from(TRANSFER_BYTES_MAX).min(device_bytes);
    if let Some(entry) = section.get("size") {
        section.refuse(&["sizes"], "does not go together with size, allowed is one of the two")?;
        return Ok(vec![(blocks(&entry, BLOCK_BYTES, most)? as u32, 100)]);
    }
    let Some(entry) = section.get("sizes") else { return Ok(base.to_vec()) };
    let mut sizes: Vec<(u32, u8)> = Vec::new();
    for (key, part) in entry.pairs("a table of sizes and percentages ({ \"4KiB\" = 70, \"64KiB\" = 30 })")? {
        let range = format!("{} to {}", size::display(BLOCK_BYTES), size::display(most));
        let bytes = size::parse(&key).filter(|bytes| (BLOCK_BYTES..=most).contains(bytes));
        let wrong = || part.place().error(format!("\"{key}\" is no size that fits, allowed is {range}"));
        let bytes = whole_blocks(&part, bytes.ok_or_else(wrong)?)? as u32;
        if sizes.iter().any(|(known, _)| *known == bytes) {
            return Err(part.place().error(format!("{bytes} bytes stand here twice, allowed is once")));
        }
        sizes.push((bytes, part.number(1..=100)?));
    }
    let sum: u32 = sizes.iter().map(|(_, part)| u32::from(*part)).sum();
    if sum != 100 {
        return Err(entry.place().error(format!("the parts sum to {sum}, allowed is 100")));
    }
    Ok(sizes)
}

fn pattern(section: &Section<'_, '_>, base: Pattern) -> Result<Pattern, ConfigError> {
    let pattern = match section.get("pattern") {
        None => base,
        Some(entry) => match (entry.choice(&["random", "sequential", "zipf"])?.as_str(), base) {
            ("random", _) => Pattern::Random,
            ("sequential", _) => Pattern::Sequential,
            (_, Pattern::Zipf { .. }) => base,
            _ => Pattern::Zipf { theta: THETA },
        },
    };
    let Some(entry) = section.get("theta") else { return Ok(pattern) };
    let Pattern::Zipf { .. } = pattern else {
        return Err(entry.place().error("is the skew of zipf, allowed with pattern = \"zipf\""));
    };
    let theta = entry.decimal(0.0..=1.0)?;
    if theta <= 0.0 || theta >= 1.0 {
        return Err(entry.place().error(format!("{theta} is out of range, allowed is more than 0 and less than 1")));
    }
    Ok(Pattern::Zipf { theta })
}

fn background(
    section: &Section<'_, '_>,
    kind: &str,
    model: Option<&Model>,
    device_bytes: u64,
) -> Result<Option<Background>, ConfigError> {
    if kind == "trace" {
        return Ok(None);
    }
    let base = model.and_then(|model| model.background);
    let Some(entry) = section.get("background") else { return Ok(base) };
    let section = entry.table(&["per-request", "size", "read-percent", "depth"])?;
    let mut background =
        base.unwrap_or(Background { per_request_bytes: 0, size_bytes: 1 << 20, read_percent: 0, depth: 1 });
    if let Some(bytes) = section.get("per-request") {
        background.per_request_bytes = bytes.size(0..=1 << 30)? as u32;
    } else if base.is_none() {
        section.require("per-request", "the bytes that one request of a thread causes, 0 to 1GiB")?;
    }
    if let Some(size) = section.get("size") {
        background.size_bytes = blocks(&size, BLOCK_BYTES, u64::from(TRANSFER_BYTES_MAX).min(device_bytes))? as u32;
    }
    if let Some(percent) = section.get("read-percent") {
        background.read_percent = percent.number(0..=100)?;
    }
    if let Some(depth) = section.get("depth") {
        background.depth = depth.number(1..=DEPTH_MAX)?;
    }
    // 0 turns a model's background off.
    Ok(Some(background).filter(|background| background.per_request_bytes > 0))
}
