//! `mqfq-lab bench kernel`: the kernel's own schedulers beside ours, on one block device.
//!
//! # What it measures
//! fio (io_uring, direct, 4 KiB random reads) on a loop device over a file in memory, or on a block device that is
//! given, with each elevator that the kernel offers for it; and our `file` device on the same block device, its
//! elevator `none`, with each of our policies. Requests per second, median and 99th percentile, and CPU time of the
//! process that asks, user and system, per request. The work of the kernel's own threads (a loop device has one) is in
//! neither family.
//!
//! On a loop device of its own it also runs RocksDB's `db_bench` over each elevator, where that is installed
//! ([`lookups`]).
//!
//! # Cleaning up
//! A loop device is attached, opened, and detached at once: the kernel keeps it for as long as it is open, so it goes
//! when this process does, however that ends. The elevator is put back by a shell that waits for the end of a pipe: it
//! comes when this process ends.
//!
//! # Where it cannot run
//! Without root, fio, losetup, or a kernel that offers a choice, the report says that it was skipped and why, and that
//! is no error.

mod device;
pub mod lookups;

use crate::cpu_time::process_cpu_ns;
use crate::fio;
use crate::machine::{self, Machine};
use crate::rounds::{Rounds, interleaved, median, ratio};
use crate::shell::{self, Output, Results, Style, place_line};
use device::Target;
use lookups::{Store, THREADS};
use mqfq_blk::device::Device;
use mqfq_blk::device::file::{FileDevice, FileOptions};
use mqfq_blk::{PolicyKind, Weight};
use mqfq_demo::harness::{Rig, RigOptions, Tenant, Transport};
use mqfq_demo::load::{Load, Window};
use mqfq_report::progress::Progress;
use mqfq_report::table::{Align, Table};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// What to run.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct KernelOptions {
    /// A block device, which is only read. Without it a loop device over a file in memory is made.
    #[arg(long, value_name = "PATH")]
    pub device: Option<PathBuf>,
    /// How often each case is run.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Length of each measurement.
    #[arg(
        long = "milliseconds",
        value_name = "MILLISECONDS",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(50..=600_000)
    )]
    pub measured_ms: u64,
    /// Where the record goes.
    #[command(flatten)]
    pub keep: crate::options::Keep,
}

impl Default for KernelOptions {
    fn default() -> Self {
        crate::options::defaults()
    }
}

/// Requests in flight, in two settings.
pub const DEPTHS: [u16; 2] = [1, 32];

/// Size of every request.
pub const REQUEST_BYTES: u32 = 4096;

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelReport {
    /// Why nothing was measured; `null` if it was.
    pub skipped: Option<String>,
    /// One row per family, scheduler and depth.
    pub rows: Vec<KernelRow>,
    /// `db_bench`'s look-ups over each of the kernel's schedulers.
    pub lookups: Vec<LookupRow>,
    /// Why there are none; `null` if there are.
    pub lookups_skipped: Option<String>,
    /// `loop`, or the device that was given.
    pub device: String,
    /// Schedulers that the kernel offers for it.
    pub offered: Vec<String>,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Length of each measurement, milliseconds.
    pub measured_ms: u64,
    /// Day, UTC.
    pub date: String,
    /// The machine that it was measured on.
    pub machine: Machine,
}

/// One scheduler at one depth, medians of the rounds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelRow {
    /// `kernel` or `mqfq`.
    pub family: String,
    /// The scheduler's name there.
    pub policy: String,
    /// Requests in flight.
    pub depth: u16,
    /// Requests per second.
    pub iops: f64,
    /// Smallest of the rounds.
    pub iops_min: f64,
    /// Largest of the rounds.
    pub iops_max: f64,
    /// Over those of the family's `none` at this depth: median of the rounds' ratios.
    pub over_none: f64,
    /// Median latency.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
    /// CPU time of the process that asks, per request.
    pub cpu_ns_per_io: f64,
}

/// Look-ups over one of the kernel's schedulers, medians of the rounds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LookupRow {
    /// The scheduler.
    pub policy: String,
    /// Threads that look up.
    pub threads: u16,
    /// Look-ups per second.
    pub lookups_per_s: f64,
    /// Smallest of the rounds.
    pub lookups_per_s_min: f64,
    /// Largest of the rounds.
    pub lookups_per_s_max: f64,
    /// Over those of `none` with as many threads: median of the rounds' ratios.
    pub over_none: f64,
    /// Median latency.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
}

/// Measures, prints and records.
///
/// # Errors
/// One sentence: a device that is none, or a run that failed.
pub fn run(options: &KernelOptions, json: bool) -> Result<(), String> {
    let mut report = measure(options)?;
    shell::publish(&mut report, Output { json, out: None, record: options.keep.record.as_deref() })
}

/// Who asks.
#[derive(Clone, PartialEq, Debug)]
enum Case {
    /// fio, with this elevator below it.
    Kernel(String),
    /// Our block layer with this policy, and no elevator below it.
    Ours(PolicyKind),
}

/// One run of one case.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Seen {
    iops: f64,
    p50_ns: f64,
    p99_ns: f64,
    cpu_ns_per_io: f64,
}

/// Measures, or says why not.
///
/// # Errors
/// As [`run`].
pub fn measure(options: &KernelOptions) -> Result<KernelReport, String> {
    let rounds = options.rounds.max(1) as usize;
    let mut report = KernelReport {
        skipped: None,
        rows: Vec::new(),
        lookups: Vec::new(),
        lookups_skipped: None,
        device: options.device.as_ref().map_or("loop".into(), |path| path.display().to_string()),
        offered: Vec::new(),
        rounds: rounds as u32,
        measured_ms: options.measured_ms,
        date: machine::today(),
        machine: Machine::this(options.keep.host.as_deref(), &["fio"]),
    };
    if let Some(path) = &options.device {
        device::must_be_block_device(path)?;
    }
    let target = match why_not().map_or_else(|| Target::open(options.device.as_deref()), Err) {
        Ok(target) => target,
        Err(reason) => {
            report.lookups_skipped = Some(reason.clone());
            report.skipped = Some(reason);
            return Ok(report);
        }
    };
    report.offered = target.offered().to_vec();
    let mut cases: Vec<(Case, u16)> = Vec::new();
    for depth in DEPTHS {
        cases.extend(report.offered.iter().map(|name| (Case::Kernel(name.clone()), depth)));
        cases.extend(PolicyKind::STAGED.map(|kind| (Case::Ours(kind), depth)));
    }
    let mut progress = Progress::new(rounds * cases.len());
    let name = |at: usize| format!("{} at depth {}", cases[at].0.name(), cases[at].1);
    let seen = interleaved(rounds as u32, (cases.len(), cases.len()), &mut progress, name, |at| {
        let (case, depth) = &cases[at];
        target.choose(case.elevator())?;
        match case {
            Case::Kernel(_) => with_fio(target.path(), *depth, options.measured_ms),
            Case::Ours(kind) => with_ours(target.path(), *kind, *depth, options.measured_ms),
        }
    })?;
    progress.finish();
    report.rows = (0..cases.len()).map(|at| row(&cases, &seen, at)).collect();
    look_up(options, &target, &mut report)?;
    Ok(report)
}

/// The part with `db_bench`: it makes a file system, so only on a device that is ours.
fn look_up(options: &KernelOptions, target: &Target, report: &mut KernelReport) -> Result<(), String> {
    if options.device.is_some() {
        report.lookups_skipped =
            Some("db_bench needs a file system, which is not made on a device that was given".into());
        return Ok(());
    }
    target.choose("none")?;
    let store = match Store::fill(target) {
        Ok(store) => store,
        Err(reason) => {
            report.lookups_skipped = Some(reason);
            return Ok(());
        }
    };
    let cases: Vec<(&String, u16)> =
        THREADS.iter().flat_map(|&threads| report.offered.iter().map(move |name| (name, threads))).collect();
    let rounds = options.rounds.max(1) as usize;
    let mut progress = Progress::new(rounds * cases.len());
    let name = |at: usize| format!("db_bench over {}, {} threads", cases[at].0, cases[at].1);
    let seen = interleaved(rounds as u32, (cases.len(), cases.len()), &mut progress, name, |at| {
        let (name, threads) = cases[at];
        target.choose(name)?;
        store.look_up(threads, options.measured_ms.div_ceil(1000))
    })?;
    progress.finish();
    let rows = (0..cases.len()).map(|at| {
        let (name, threads) = cases[at];
        let none = cases.iter().position(|&(other, its)| other == "none" && its == threads).unwrap_or(at);
        let rates = Rounds::of(seen[at].iter().map(|seen| seen.per_s));
        LookupRow {
            policy: name.clone(),
            threads,
            lookups_per_s: rates.median(),
            lookups_per_s_min: rates.smallest(),
            lookups_per_s_max: rates.largest(),
            over_none: ratio(&seen[at], &seen[none], |seen| seen.per_s),
            p50_ns: median(&seen[at], |seen| seen.p50_ns),
            p99_ns: median(&seen[at], |seen| seen.p99_ns),
        }
    });
    report.lookups = rows.collect();
    Ok(())
}

/// Why it cannot run on this machine at all.
fn why_not() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may choose a device's scheduler".into());
    }
    if !fio::has_engine("io_uring") {
        return Some("fio with its io_uring engine is not installed".into());
    }
    None
}

impl Case {
    fn name(&self) -> &str {
        match self {
            Case::Kernel(name) => name,
            Case::Ours(kind) => kind.name(),
        }
    }

    fn family(&self) -> &'static str {
        match self {
            Case::Kernel(_) => "kernel",
            Case::Ours(_) => "mqfq",
        }
    }

    /// The kernel's scheduler below it.
    fn elevator(&self) -> &str {
        match self {
            Case::Kernel(name) => name,
            Case::Ours(_) => "none",
        }
    }
}

fn with_fio(path: &Path, depth: u16, measured_ms: u64) -> Result<Seen, String> {
    let mut command = Command::new("fio");
    command
        .args(["--name=kernel", "--ioengine=io_uring", "--direct=1", "--rw=randread", "--numjobs=1", "--readonly"])
        .args(["--norandommap", "--randrepeat=0", "--time_based", "--output-format=json", "--invalidate=0"])
        .arg(format!("--filename={}", path.display()))
        .arg(format!("--bs={REQUEST_BYTES}"))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--ramp_time={}ms", measured_ms / 5))
        .arg(format!("--runtime={measured_ms}ms"));
    parse(&fio::run(&mut command)?)
}

fn parse(text: &str) -> Result<Seen, String> {
    let job = &fio::first_job(text)?;
    let number = |value: &serde_json::Value, key: &str| {
        value[key].as_f64().ok_or_else(|| format!("fio's output has no number at \"{key}\""))
    };
    let read = &job["read"];
    let iops = number(read, "iops")?;
    if iops <= 0.0 {
        return Err("fio made no request".into());
    }
    let percentiles = &read["clat_ns"]["percentile"];
    // Shares of the measured time, in percent.
    let busy = (number(job, "usr_cpu")? + number(job, "sys_cpu")?) / 100.0;
    Ok(Seen {
        iops,
        p50_ns: number(percentiles, "50.000000")?,
        p99_ns: number(percentiles, "99.000000")?,
        cpu_ns_per_io: busy * 1e9 / iops,
    })
}

fn with_ours(path: &Path, kind: PolicyKind, depth: u16, measured_ms: u64) -> Result<Seen, String> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&FileOptions::new(path))?);
    let tenant = Tenant { name: "reader", weight: Weight::DEFAULT, load: Load::random_reads(1, depth, REQUEST_BYTES) };
    let mut rig = Rig::start(RigOptions {
        device,
        policy: crate::schedulers::cell::policy(kind, 1),
        queue_depth: 256,
        tenants: &[tenant],
        transport: Transport::Inside,
        workers: 1,
        pin: false,
    })?;
    let before_ns = process_cpu_ns();
    let window = Window::from_ms(measured_ms / 5, measured_ms);
    let counted = rig.run(&[0], window)?.remove(0);
    let cpu_ns = process_cpu_ns() - before_ns;
    rig.stop();
    // The CPU time is that of the whole run, warm-up included.
    let all: u64 = counted.series_bytes.iter().sum::<u64>() / u64::from(REQUEST_BYTES);
    Ok(Seen {
        iops: counted.requests_per_s(),
        p50_ns: if counted.requests == 0 { 0.0 } else { counted.total_ns.value_at_quantile(0.5) as f64 },
        p99_ns: counted.p99_ns() as f64,
        cpu_ns_per_io: cpu_ns as f64 / all.max(1) as f64,
    })
}

fn row(cases: &[(Case, u16)], seen: &[Vec<Seen>], at: usize) -> KernelRow {
    let (case, depth) = &cases[at];
    let is_none = |(other, at_depth): &(Case, u16)| {
        at_depth == depth && other.family() == case.family() && other.name() == "none"
    };
    let none = cases.iter().position(is_none).unwrap_or(at);
    let rates = Rounds::of(seen[at].iter().map(|seen| seen.iops));
    KernelRow {
        family: case.family().into(),
        policy: case.name().into(),
        depth: *depth,
        iops: rates.median(),
        iops_min: rates.smallest(),
        iops_max: rates.largest(),
        over_none: ratio(&seen[at], &seen[none], |seen| seen.iops),
        p50_ns: median(&seen[at], |seen| seen.p50_ns),
        p99_ns: median(&seen[at], |seen| seen.p99_ns),
        cpu_ns_per_io: median(&seen[at], |seen| seen.cpu_ns_per_io),
    }
}

impl KernelReport {
    fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("depth", Align::Right),
            ("family", Align::Left),
            ("scheduler", Align::Left),
            ("I/O/s", Align::Right),
            ("smallest", Align::Right),
            ("largest", Align::Right),
            ("/ none", Align::Right),
            ("p50 us", Align::Right),
            ("p99 us", Align::Right),
            ("CPU ns", Align::Right),
        ]);
        for row in &self.rows {
            table.row(vec![
                row.depth.to_string(),
                row.family.clone(),
                row.policy.clone(),
                format!("{:.0}", row.iops),
                format!("{:.0}", row.iops_min),
                format!("{:.0}", row.iops_max),
                format!("{:.3}", row.over_none),
                format!("{:.1}", row.p50_ns / 1e3),
                format!("{:.1}", row.p99_ns / 1e3),
                format!("{:.0}", row.cpu_ns_per_io),
            ]);
        }
        table
    }

    fn lookup_table(&self) -> Table {
        let mut table = Table::new(&[
            ("threads", Align::Right),
            ("scheduler", Align::Left),
            ("look-ups/s", Align::Right),
            ("smallest", Align::Right),
            ("largest", Align::Right),
            ("/ none", Align::Right),
            ("p50 us", Align::Right),
            ("p99 us", Align::Right),
        ]);
        for row in &self.lookups {
            table.row(vec![
                row.threads.to_string(),
                row.policy.clone(),
                format!("{:.0}", row.lookups_per_s),
                format!("{:.0}", row.lookups_per_s_min),
                format!("{:.0}", row.lookups_per_s_max),
                format!("{:.3}", row.over_none),
                format!("{:.1}", row.p50_ns / 1e3),
                format!("{:.1}", row.p99_ns / 1e3),
            ]);
        }
        table
    }

    /// What stands over the table of look-ups.
    fn lookup_head(&self) -> String {
        match &self.lookups_skipped {
            Some(reason) => format!("RocksDB's db_bench was skipped: {reason}"),
            None => "RocksDB's db_bench, readrandom, direct reads, over each of the kernel's schedulers:".into(),
        }
    }
}

impl Results for KernelReport {
    const NAME: &'static str = "kernel";
    const TITLE: &'static str = "The kernel's schedulers beside ours";

    fn place(&self) -> (&Machine, &str) {
        (&self.machine, &self.date)
    }

    fn skipped(&self) -> Option<&str> {
        self.skipped.as_deref()
    }

    fn head(&self) -> Vec<String> {
        let what = format!(
            "{}: {} KiB direct random reads, {} interleaved rounds of {} ms; ours runs over the same device with the kernel's none",
            self.device,
            REQUEST_BYTES >> 10,
            self.rounds,
            self.measured_ms
        );
        vec![place_line(&self.date, &self.machine), what]
    }

    fn body(&self, style: Style) -> String {
        let lookups = if self.lookups.is_empty() { String::new() } else { style.table(&self.lookup_table()) };
        format!("{}\n{}\n\n{lookups}", style.table(&self.table()), self.lookup_head())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fios_shares_of_the_cpu_become_time_per_request() {
        let text = r#"{ "jobs": [ { "error": 0, "usr_cpu": 20.0, "sys_cpu": 30.0, "read": { "iops": 100000.0,
            "clat_ns": { "percentile": { "50.000000": 9000, "99.000000": 20000 } } } } ] }"#;
        let seen = parse(text).unwrap();
        assert_eq!((seen.iops, seen.p50_ns, seen.p99_ns), (100_000.0, 9_000.0, 20_000.0));
        assert!((seen.cpu_ns_per_io - 5_000.0).abs() < 1e-6, "half of 10 us");
    }

    #[test]
    fn each_family_is_compared_with_its_own_none() {
        let seen = |iops: f64| Seen { iops, p50_ns: 1.0, p99_ns: 2.0, cpu_ns_per_io: 3.0 };
        let cases = [
            (Case::Kernel("bfq".into()), 1),
            (Case::Kernel("none".into()), 1),
            (Case::Ours(PolicyKind::None), 1),
            (Case::Ours(PolicyKind::Mqfq), 1),
        ];
        let rounds =
            [vec![seen(50.0), seen(5.0)], vec![seen(100.0), seen(10.0)], vec![seen(80.0); 2], vec![seen(60.0); 2]];
        let over = |at| row(&cases, &rounds, at).over_none;
        assert_eq!([over(0), over(1), over(2), over(3)], [0.5, 1.0, 1.0, 0.75], "within a round");
    }
}
