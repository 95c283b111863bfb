//! The study on software drives, in the simulator, and on a real device: its rows, Table 1, antagonists and verdicts.

pub mod contention;
pub mod path;
mod real;
pub mod report;
pub mod tags;
mod verdict;

use super::count::Instructions;
use super::workload::{self, Cell, Mix, Workload};
use super::{QUEUE_DEPTH, SchedulersOptions, cells, count_of, presets, probe};
use crate::rounds::{interleaved, median};
use crate::shell::Record;
use contention::{Antagonist, Contended, Drive, fair_policy};
use mqfq_blk::PolicyKind;
use mqfq_blkmq::BlockLayer;
use mqfq_nvme::device::Preset;
use mqfq_report::progress::Progress;
use path::{PathOptions, Until};
use real::Power;
use report::{ContendedRow, Latency, Row, Study, TagsRow};
use std::path::Path;
use tags::{Form, Tags};

/// Requests of a cell, and of a run beside an antagonist; and in a quick run.
const REQUESTS: [u64; 2] = [20_000, 60_000];
const QUICK_REQUESTS: [u64; 2] = [4_000, 15_000];

/// Length of the test of tags.
const TAGS_NS: u64 = 4_000_000_000;
const QUICK_TAGS_NS: u64 = 1_000_000_000;

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

/// Measures.
///
/// # Errors
/// One sentence.
pub fn measure(options: &SchedulersOptions) -> Result<Record<Study>, String> {
    measure_at(options, |preset, cells| count_of(options, preset, cells.len()))
}

/// As [`measure`], with the instructions of each cell on a software drive from `counted`.
///
/// # Errors
/// One sentence.
pub fn measure_at(
    options: &SchedulersOptions,
    counted: impl Fn(Preset, &[Cell]) -> Result<Vec<Instructions>, String>,
) -> Result<Record<Study>, String> {
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
        power: Power::default(),
        quick: options.quick,
    };
    let mut record = Record::new(study, &options.runs, &[]);
    match &options.device {
        Some(path) => measure_real(options, path, &mut record)?,
        None => {
            record.rounds = 0;
            measure_presets(options, counted, &mut record)?;
        }
    }
    Ok(record)
}

fn measure_presets(
    options: &SchedulersOptions,
    counted: impl Fn(Preset, &[Cell]) -> Result<Vec<Instructions>, String>,
    record: &mut Record<Study>,
) -> Result<(), String> {
    let (presets, cells) = (presets(options)?, cells(options));
    let report = &mut record.results;
    let kinds = mqfq_policies::STAGED.len();
    let mut progress = Progress::new(presets.len() * (2 + cells.len() / kinds));
    for preset in presets {
        progress.step(&format!("{}: instructions, under callgrind", preset.name));
        let counted = counted(preset, &cells)?;
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
        joules_per_million: Power::default().joules_per_million(seen.iops, cpu_ns_per_io, iops_max),
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
    real::energy(&mut report.rows, &Power::default());
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
