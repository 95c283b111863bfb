//! `mqfq-lab bench schedulers`: which scheduler for my device?
//!
//! # What it measures
//! The study of "Do we still need IO schedulers for low-latency disks?" (HotStorage'23) with every policy: Table 1
//! (median latency at depth 1), Figures 1 to 4 (I/Os per second and energy of one tenant and of many, at depths 1 to
//! 128), Figure 5 (point look-ups of a key-value store), and what the paper leaves out: a modest tenant beside a greedy
//! one. Then the answer, in three sentences.
//!
//! # How
//! On the software drives ([`path`]): scenarios of the simulator, so that locks and lines of other cores cost time. Of
//! what a request costs besides, instructions are *counted* first, cell by cell, under callgrind ([`count`]), and
//! charged at a stated time each; so the same numbers come out on a busy machine.
//! On a file or block device ([`real`]): real time, interleaved rounds, whose median counts.
//!
//! # What would make it lie
//! Instructions are not time. See lab/bench/README.md.

pub mod contention;
pub mod count;
pub mod path;
mod real;
pub mod report;
pub mod tags;
mod verdict;
pub mod walk;
pub mod watch;
pub mod workload;

use crate::options::Runs;
use crate::rounds::{interleaved, median};
use crate::shell::{self, Record};
use contention::{Antagonist, Contended, Drive, fair_policy};
use count::Instructions;
use mqfq_blk::PolicyKind;
use mqfq_blkmq::{BlockLayer, MultiQueue};
use mqfq_nvme::device::{NvmeDevice, Preset};
use mqfq_report::progress::Progress;
use path::{PathOptions, Until};
use real::Power;
use report::{ContendedRow, Latency, Row, Study, TagsRow};
use std::path::{Path, PathBuf};
use tags::{Form, Tags};
use workload::Cell;
use workload::{DEPTHS, Mix, QUICK_DEPTHS, Workload};

/// Options.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct SchedulersOptions {
    /// Run on this file or block device, by the clock; it is only read.
    #[arg(long, value_name = "PATH")]
    pub device: Option<PathBuf>,
    /// Write to the device, too. This destroys what is on it.
    #[arg(long, requires = "device", requires = "confirm_data_loss")]
    pub write: bool,
    /// Data on the device may be destroyed.
    #[arg(long, requires = "write")]
    pub confirm_data_loss: bool,
    /// A software drive: optane, zssd, flash-460k, flash-60k, nvmf-dram. May be repeated; by default the first two
    /// and flash-60k.
    #[arg(long = "preset", value_name = "NAME", conflicts_with = "device")]
    pub presets: Vec<String>,
    /// Fewer depths and requests.
    #[arg(long)]
    pub quick: bool,
    /// Without --device: what an instruction takes, 0.01 to 10 ns.
    #[arg(long, default_value_t = NS_PER_INSTRUCTION, value_parser = crate::options::ns_per_instruction)]
    pub ns_per_instruction: f64,
    /// How much is measured with --device, and where the results go.
    #[command(flatten)]
    pub runs: Runs<3, 200>,
    /// The model of energy.
    #[arg(skip)]
    pub power: Power,
    /// Be what callgrind counts the instructions of, and print nothing.
    #[arg(long, hide = true)]
    pub probe: bool,
    /// The program that callgrind runs; `None`: the one that is running.
    #[arg(skip)]
    pub mqfq: Option<PathBuf>,
}

/// An ultra-low-latency drive, as the paper's; one of flash; and a slow one.
pub const PRESETS: [&str; 3] = ["optane", "zssd", "flash-60k"];

/// One instruction per cycle at the 3.4 GHz of the paper's machine. What runs in a loop with all of it in the first
/// cache does three in that time (`mqfq-lab bench overhead`); code that comes back after the rest of a system has run
/// does one or fewer.
pub const NS_PER_INSTRUCTION: f64 = 0.3;

/// Commands on each worker's device queue at once: the tags that a queue with a scheduler has in Linux, more than any
/// depth of the study.
const QUEUE_DEPTH: u16 = workload::ELEVATOR_DEPTH as u16;

/// Start of the drives' random numbers.
const DRIVE_SEED: u64 = 1;

/// Requests of a cell, and of a run beside an antagonist; and in a quick run.
const REQUESTS: [u64; 2] = [20_000, 60_000];
const QUICK_REQUESTS: [u64; 2] = [4_000, 15_000];

/// Length of the test of tags.
const TAGS_NS: u64 = 4_000_000_000;
const QUICK_TAGS_NS: u64 = 1_000_000_000;

/// The argument that makes the program be what is counted.
pub const PROBE_ARGUMENT: &str = "--probe";

/// Origin of the rows of the software drives.
const COUNTED: &str = "simulated, instructions counted";

/// Measures, prints, draws and records.
///
/// # Errors
/// One sentence.
pub fn run(options: &SchedulersOptions, json: bool) -> Result<(), String> {
    if options.probe {
        return probe(options);
    }
    measure(options)?.publish(&options.runs, json)
}

fn probe(options: &SchedulersOptions) -> Result<(), String> {
    for preset in presets(options)? {
        count::probe(&cells(options), options.quick, &|| drive(preset))?;
    }
    Ok(())
}

fn cells(options: &SchedulersOptions) -> Vec<Cell> {
    Cell::all(if options.quick { &QUICK_DEPTHS } else { &DEPTHS })
}

fn presets(options: &SchedulersOptions) -> Result<Vec<Preset>, String> {
    let names: Vec<&str> = match &options.presets[..] {
        [] => PRESETS.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    names.into_iter().map(|name| Preset::by_name(name).map_err(|unknown| unknown.to_string())).collect()
}

fn drive(preset: Preset) -> Result<Box<dyn MultiQueue>, String> {
    Ok(Box::new(NvmeDevice::with_preset(preset, watch::STORED_BYTES, DRIVE_SEED)?))
}

/// Measures.
///
/// # Errors
/// One sentence.
pub fn measure(options: &SchedulersOptions) -> Result<Record<Study>, String> {
    if options.device.is_some() && !options.presets.is_empty() {
        return Err("either --device or --preset: a preset is a software drive".into());
    }
    if options.write && options.device.is_none() {
        return Err("--write is about --device: the software drives hold nothing that could be lost".into());
    }
    let study = Study {
        rows: Vec::new(),
        table_1: Vec::new(),
        contended: Vec::new(),
        tags: Vec::new(),
        verdicts: Vec::new(),
        ns_per_instruction: options.device.is_none().then_some(options.ns_per_instruction),
        power: options.power,
        quick: options.quick,
    };
    let mut record = Record::new(study, &options.runs, &[]);
    match &options.device {
        Some(path) => measure_real(options, path, &mut record)?,
        None => {
            record.rounds = 0;
            measure_presets(options, &mut record)?;
        }
    }
    Ok(record)
}

fn measure_presets(options: &SchedulersOptions, record: &mut Record<Study>) -> Result<(), String> {
    let (presets, cells) = (presets(options)?, cells(options));
    let report = &mut record.results;
    let kinds = mqfq_policies::STAGED.len();
    let mut progress = Progress::new(presets.len() * (2 + cells.len() / kinds));
    for preset in presets {
        progress.step(&format!("{}: instructions, under callgrind", preset.name));
        let counted = count_of(options, preset, cells.len())?;
        for (cells, counted) in cells.chunks(kinds).zip(counted.chunks(kinds)) {
            progress.step(&format!("{}: {} at depth {}", preset.name, cells[0].workload.name(), cells[0].depth));
            for (cell, counted) in cells.iter().zip(counted) {
                report.rows.push(row(options, preset, cell, *counted)?);
            }
        }
        progress.step(&format!("{}: antagonists", preset.name));
        table_1(report, preset.name);
        let depth = contend(options, preset, &cells, &counted, report)?;
        let verdict = verdict::verdict(report, preset.name, Some(depth));
        report.verdicts.push(verdict);
    }
    progress.finish();
    record.notes.push(
        "system calls, interrupts and waking a thread are not in these numbers; waiting for locks and for other cores' lines is".into(),
    );
    Ok(())
}

/// Instructions of each cell on the first of the options' presets.
///
/// # Errors
/// One sentence: why they cannot be counted.
pub fn count_preset(options: &SchedulersOptions) -> Result<Vec<(Cell, Instructions)>, String> {
    let cells = cells(options);
    let counted = count_of(options, presets(options)?[0], cells.len())?;
    Ok(cells.into_iter().zip(counted).collect())
}

fn count_of(options: &SchedulersOptions, preset: Preset, cells: usize) -> Result<Vec<Instructions>, String> {
    let program = shell::program(options.mqfq.as_ref())?;
    let mut arguments = ["bench", "schedulers", PROBE_ARGUMENT, "--preset", preset.name].map(String::from).to_vec();
    if options.quick {
        arguments.push("--quick".into());
    }
    count::count(&program, &arguments, cells)
        .map_err(|error| format!("the instructions of a request cannot be counted: {error}"))
}

fn row(options: &SchedulersOptions, preset: Preset, cell: &Cell, counted: Instructions) -> Result<Row, String> {
    let path = PathOptions {
        drive: preset,
        policy: cell.policy(),
        layer: BlockLayer::Mq,
        queue_depth: QUEUE_DEPTH,
        tenants: &cell.workload.tenants(cell.depth),
        workers: cell.workers(),
        costs: counted.costs(options.ns_per_instruction),
    };
    let requests = if options.quick { QUICK_REQUESTS[0] } else { REQUESTS[0] };
    let seen = path.run_together(Until::Requests(requests))?;
    let cpu_ns_per_io = seen.cpu_ns_per_io;
    let iops_max = preset.media.read_link.commands_per_s(workload::REQUEST_BYTES) as f64;
    Ok(Row {
        device: preset.name.into(),
        policy: cell.kind.name().into(),
        workload: cell.workload.name().into(),
        depth: cell.depth,
        iops: seen.iops,
        p50_ns: seen.p50_ns,
        p99_ns: seen.p99_ns,
        cpu_ns_per_io,
        instructions_per_io: Some(counted.all()),
        joules_per_million: options.power.joules_per_million(seen.iops, cpu_ns_per_io, iops_max),
        how: COUNTED.into(),
    })
}

/// Table 1 of a device: what its rows say of depth 1.
fn table_1(report: &mut Study, device: &str) {
    let at_1 = |workload: Workload, policy: &str| {
        let is_it = |row: &&Row| {
            row.device == device && row.workload == workload.name() && row.depth == 1 && row.policy == policy
        };
        report.rows.iter().find(is_it).map(|row| row.p50_ns as f64)
    };
    let over = |ns: f64, none_ns: f64| 100.0 * (ns / none_ns - 1.0);
    let (read, write) = (Workload::Single(Mix::Read), Workload::Single(Mix::Write));
    let line = |kind: PolicyKind| {
        let (read_ns, none_read_ns) = (at_1(read, kind.name())?, at_1(read, "none")?);
        let writes_ns = at_1(write, kind.name()).zip(at_1(write, "none"));
        Some(Latency {
            device: device.into(),
            path: "mqfq".into(),
            policy: kind.name().into(),
            read_p50_ns: read_ns,
            read_over_none_percent: over(read_ns, none_read_ns),
            write_p50_ns: writes_ns.map(|(ns, _)| ns),
            write_over_none_percent: writes_ns.map(|(ns, none_ns)| over(ns, none_ns)),
        })
    };
    let lines: Vec<Latency> = mqfq_policies::STAGED.into_iter().filter_map(line).collect();
    report.table_1.extend(lines);
}

/// All policies beside all antagonists; what D the drive wants.
fn contend(
    options: &SchedulersOptions,
    preset: Preset,
    cells: &[Cell],
    counted: &[Instructions],
    report: &mut Study,
) -> Result<u32, String> {
    // The cost of a request among many is that of the cell with the most of them.
    let costs_of = |kind: PolicyKind| {
        let is_it = |cell: &Cell| cell.kind == kind && cell.workload == Workload::Multi(Mix::Read);
        let at = cells.iter().rposition(is_it).expect("every policy has a cell of reads");
        counted[at].costs(options.ns_per_instruction)
    };
    let requests = if options.quick { QUICK_REQUESTS[1] } else { REQUESTS[1] };
    let drive = Drive { preset, requests };
    let depth = drive.knee(costs_of(PolicyKind::None), costs_of(PolicyKind::Mqfq))?;
    for antagonist in Antagonist::ALL {
        let run = |kind: PolicyKind| drive.contend(antagonist, fair_policy(kind, depth), costs_of(kind));
        let all: Vec<Contended> = mqfq_policies::STAGED.into_iter().map(run).collect::<Result<_, _>>()?;
        let none = all.iter().find(|one| one.kind == PolicyKind::None).map_or(1.0, |one| one.total_bytes_per_s);
        report.contended.extend(all.iter().map(|one| {
            let policy = fair_policy(one.kind, depth);
            ContendedRow {
                device: preset.name.into(),
                policy: one.kind.name().into(),
                antagonist: one.antagonist.name().into(),
                depth: (one.kind != PolicyKind::None).then_some(policy.depth),
                token_unit_bytes: policy.token_unit_bytes,
                slowdown: one.slowdown(),
                p50_ns: one.shared.p50_ns,
                p99_ns: one.shared.p99_ns,
                alone_p99_ns: one.alone.p99_ns,
                fair_share: one.fair_share(),
                total_over_none: one.total_bytes_per_s / none,
            }
        }));
    }
    let ns = if options.quick { QUICK_TAGS_NS } else { TAGS_NS };
    let run = |kind, form| tags::run(preset, kind, form, costs_of(kind), ns).map(|tags| (kind, form, tags));
    let mut all = Vec::new();
    for kind in mqfq_policies::STAGED {
        all.push(run(kind, Form::Requests)?);
        if kind != PolicyKind::None && !workload::is_of_linux(kind) {
            all.push(run(kind, Form::Work(depth))?);
        }
    }
    let none = all.iter().find(|(kind, ..)| *kind == PolicyKind::None).map_or(0.0, |(.., tags)| tags.small.iops);
    report.tags.extend(all.into_iter().map(|(kind, form, Tags { alone, small, large })| TagsRow {
        device: preset.name.into(),
        policy: kind.name().into(),
        form: form.name().into(),
        alone_iops: alone.iops,
        alone_mean_ns: alone.mean_ns,
        iops: small.iops,
        mean_ns: small.mean_ns,
        over_none: small.iops / none,
        large_bytes_per_s: large.bytes_per_s,
    }));
    Ok(depth)
}

fn measure_real(options: &SchedulersOptions, path: &Path, record: &mut Record<Study>) -> Result<(), String> {
    let device = real::open(path, options.write)?;
    let (report, notes) = (&mut record.results, &mut record.notes);
    let name_of = path.display().to_string();
    let cells: Vec<Cell> = cells(options)
        .into_iter()
        .filter(|cell| real::has(cell.workload) && (options.write || !cell.workload.writes()))
        .collect();
    let rounds = options.runs.rounds;
    let mut progress = Progress::new(rounds as usize * cells.len());
    let kinds = mqfq_policies::STAGED.len();
    let name = |at: usize| {
        let Cell { workload, depth, kind, .. } = &cells[at];
        format!("{} at {depth}, {kind}", workload.name())
    };
    let seen = interleaved(rounds, (cells.len(), kinds), &mut progress, name, |at| {
        real::measure(&device, &name_of, &cells[at], options.runs.measured_ms)
    })?;
    progress.finish();
    report.rows = seen
        .iter()
        .map(|rows| Row {
            iops: median(rows, |row| row.iops),
            p50_ns: median(rows, |row| row.p50_ns as f64) as u64,
            p99_ns: median(rows, |row| row.p99_ns as f64) as u64,
            cpu_ns_per_io: median(rows, |row| row.cpu_ns_per_io),
            ..rows[0].clone()
        })
        .collect();
    real::energy(&mut report.rows, &options.power);
    table_1(report, &name_of);
    notes.push("by the clock: waking a sleeping thread is in the latencies, for all policies alike".into());
    if !options.write {
        notes.push("reads only".into());
    }
    notes.push("CPU time is this process's; what the kernel's own threads did for it is not in it".into());
    let verdict = verdict::verdict(report, &name_of, None);
    report.verdicts.push(verdict);
    Ok(())
}
