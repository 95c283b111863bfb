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
//! ([`lookups`]). With `--file` it reads a file in the page cache on one CPU instead ([`pages`]); with `--count` it
//! counts instructions ([`elevators`]).
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
pub mod elevators;
mod guest;
pub mod lookups;
pub mod pages;

use crate::fio;
use crate::machine::process_cpu_ns;
use crate::options::Runs;
use crate::rounds::{Rounds, interleaved, median, ratio};
use crate::shell::{Record, Results, Style, table, us, whole};
use device::Target;
use lookups::{Store, THREADS};
use mqfq_blk::device::Device;
use mqfq_blk::device::file::{Direct, FileDevice, FileOptions};
use mqfq_blk::{PolicyOptions, Weight};
use mqfq_demo::harness::{Rig, RigOptions, Tenant, Transport};
use mqfq_demo::load::{Load, Window};
use mqfq_report::progress::Progress;
use mqfq_report::table::Align::{Left, Right};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Options.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct KernelOptions {
    /// A block device, which is only read. Without it a loop device over a file in memory is made.
    #[arg(long, value_name = "PATH")]
    pub device: Option<PathBuf>,
    /// Read this file in the page cache, on one CPU, in place of a device; without PATH one is made in the temporary
    /// folder.
    #[arg(long, value_name = "PATH", conflicts_with = "device")]
    pub file: Option<Option<PathBuf>>,
    /// Bytes of the file to read from, 64KiB to 1TiB; the default is all of PATH, or 256MiB if a file is made.
    #[arg(long = "size", value_name = "SIZE", requires = "file", value_parser = pages::file_size)]
    pub size_bytes: Option<u64>,
    /// Count the instructions that each scheduler adds to a request, in a guest: FOLDER is a kernel package, unpacked
    /// (dpkg-deb -x), with boot/vmlinuz-* and the modules.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["device", "file"])]
    pub count: Option<PathBuf>,
    /// How much is measured.
    #[command(flatten)]
    pub runs: Runs<3, 1000>,
}

/// Requests in flight, in two settings.
pub const DEPTHS: [u16; 2] = [1, 32];

/// Size of every request: a page, so that a request of the page cache is one copy.
pub const REQUEST_BYTES: u32 = 4096;

/// Results.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Kernel {
    /// Why nothing was measured; `null` if it was.
    pub skipped: Option<String>,
    /// One row per family, scheduler and depth.
    pub rows: Vec<KernelRow>,
    /// `db_bench`'s look-ups over each of the kernel's schedulers.
    pub lookups: Vec<LookupRow>,
    /// Why there are none; `null` if there are.
    pub lookups_skipped: Option<String>,
    /// `loop`, or the device or file that was given.
    pub device: String,
    /// Schedulers that the kernel offers for it.
    pub offered: Vec<String>,
    /// Pages of a file that the kernel has in memory.
    #[serde(flatten)]
    pub pages: Option<pages::Pages>,
}

/// One scheduler at one depth, medians of the rounds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelRow {
    /// `mqfq`: our block layer. `kernel`: fio over one of the kernel's schedulers; of a file `fio`.
    pub family: String,
    /// The scheduler's name there; of a file the settings of fio.
    pub policy: String,
    /// Requests in flight.
    pub depth: u16,
    /// Requests per second.
    pub iops: f64,
    /// Smallest of the rounds.
    pub iops_min: f64,
    /// Largest of the rounds.
    pub iops_max: f64,
    /// Over those of the family's first at this depth, `none` of all but files: median of the rounds' ratios.
    pub over_none: f64,
    /// Median latency; 0 where fio reads no clock.
    pub p50_ns: f64,
    /// 99th percentile; 0 where fio reads no clock.
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
    match &options.count {
        Some(folder) => elevators::measure(options, folder)?.publish(&options.runs, json),
        None => measure(options)?.publish(&options.runs, json),
    }
}

/// Program of a measurement: fio with these arguments, or our block layer.
#[derive(Clone, Copy, PartialEq, Debug)]
enum How {
    Fio(&'static [&'static str]),
    Ours(PolicyOptions),
}

/// One row to be.
#[derive(Clone, PartialEq, Debug)]
struct Case {
    family: &'static str,
    policy: String,
    depth: u16,
    how: How,
}

impl Case {
    fn name(&self) -> String {
        format!("{} {} at depth {}", self.family, self.policy, self.depth)
    }
}

/// File or device that is read.
#[derive(Clone, Copy)]
struct Place<'a> {
    path: &'a Path,
    /// Bytes of it.
    size_bytes: Option<u64>,
    /// Not past the page cache.
    cached: bool,
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
pub fn measure(options: &KernelOptions) -> Result<Record<Kernel>, String> {
    if let Some(path) = &options.device {
        device::must_be_block_device(path)?;
    }
    let mut notes = Vec::new();
    let results = match &options.file {
        Some(file) => pages::measure(options, file.as_deref(), &mut notes)?,
        None => match why_not().map_or_else(|| Target::open(options.device.as_deref()), Err) {
            Ok(target) => measure_device(options, &target)?,
            Err(reason) => {
                let lookups_skipped = Some(reason.clone());
                Kernel { skipped: Some(reason), lookups_skipped, ..Kernel::default() }
            }
        },
    };
    Ok(Record { notes, ..Record::new(results, &options.runs, &["fio"]) })
}

fn measure_device(options: &KernelOptions, target: &Target) -> Result<Kernel, String> {
    let mut cases: Vec<Case> = Vec::new();
    for depth in DEPTHS {
        let fios = |name: &String| Case { family: "kernel", policy: name.clone(), depth, how: How::Fio(&[]) };
        cases.extend(target.offered().iter().map(fios));
        cases.extend(mqfq_policies::STAGED.map(|kind| {
            let how = How::Ours(crate::schedulers::workload::policy(kind, 1));
            Case { family: "mqfq", policy: kind.name().into(), depth, how }
        }));
    }
    let rounds = options.runs.rounds;
    let mut progress = Progress::new(rounds as usize * cases.len());
    let place = Place { path: target.path(), size_bytes: None, cached: false };
    let seen = interleaved(
        rounds,
        (cases.len(), cases.len()),
        &mut progress,
        |at| cases[at].name(),
        |at| {
            target.choose(if cases[at].family == "kernel" { &cases[at].policy } else { "none" })?;
            run_case(&cases[at], place, options.runs.measured_ms)
        },
    )?;
    progress.finish();
    let (lookups, lookups_skipped) = match look_up(options, target)? {
        Ok(lookups) => (lookups, None),
        Err(reason) => (Vec::new(), Some(reason)),
    };
    Ok(Kernel {
        rows: rows(&cases, &seen),
        lookups,
        lookups_skipped,
        device: options.device.as_ref().map_or("loop".into(), |path| path.display().to_string()),
        offered: target.offered().to_vec(),
        ..Kernel::default()
    })
}

/// The part with `db_bench`, or why there is none: it makes a file system, so only on a device that is ours.
fn look_up(options: &KernelOptions, target: &Target) -> Result<Result<Vec<LookupRow>, String>, String> {
    if options.device.is_some() {
        return Ok(Err("db_bench needs a file system, which is not made on a device that was given".into()));
    }
    target.choose("none")?;
    let store = match Store::fill(target) {
        Ok(store) => store,
        Err(reason) => return Ok(Err(reason)),
    };
    let cases: Vec<(&String, u16)> =
        THREADS.iter().flat_map(|&threads| target.offered().iter().map(move |name| (name, threads))).collect();
    let rounds = options.runs.rounds;
    let mut progress = Progress::new(rounds as usize * cases.len());
    let name = |at: usize| format!("db_bench over {}, {} threads", cases[at].0, cases[at].1);
    let seen = interleaved(rounds, (cases.len(), cases.len()), &mut progress, name, |at| {
        let (name, threads) = cases[at];
        target.choose(name)?;
        store.look_up(threads, options.runs.measured_ms.div_ceil(1000))
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
    Ok(Ok(rows.collect()))
}

/// Why it cannot run on this machine at all.
fn why_not() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may choose a device's scheduler".into());
    }
    (!fio::has_engine("io_uring")).then(|| "fio with its io_uring engine is not installed".into())
}

fn run_case(case: &Case, place: Place<'_>, measured_ms: u64) -> Result<Seen, String> {
    match case.how {
        How::Fio(arguments) => with_fio(place, arguments, case.depth, measured_ms),
        How::Ours(policy) => with_ours(place, policy, case.depth, measured_ms),
    }
}

fn with_fio(place: Place<'_>, arguments: &[&str], depth: u16, measured_ms: u64) -> Result<Seen, String> {
    let path = place.path.to_str().filter(|path| !path.contains([':', '\\']));
    let path = path.ok_or("fio cannot be given a path with a colon, a backslash or bytes that are not text")?;
    let mut command = Command::new("fio");
    command
        .args(["--name=kernel", "--ioengine=io_uring", "--rw=randread", "--numjobs=1", "--readonly"])
        // Ours keeps no map of what was read either; and the page cache must stay as it is.
        .args(["--norandommap", "--randrepeat=0", "--invalidate=0", "--allow_file_create=0"])
        .args(["--time_based", "--output-format=json"])
        .arg(format!("--direct={}", u8::from(!place.cached)))
        .arg(format!("--filename={path}"))
        .args(place.size_bytes.map(|bytes| format!("--size={bytes}")))
        .arg(format!("--bs={REQUEST_BYTES}"))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--ramp_time={}ms", measured_ms / 5))
        .arg(format!("--runtime={measured_ms}ms"))
        .args(arguments);
    parse(&fio::run(&mut command)?)
}

fn parse(text: &str) -> Result<Seen, String> {
    let job = &fio::first_job(text)?;
    let read = &job["read"];
    let iops = fio::number(read, "iops")?;
    if iops <= 0.0 {
        return Err("fio made no request".into());
    }
    let percentile = |name| fio::number(&read["clat_ns"]["percentile"], name).unwrap_or(0.0);
    // Shares of the measured time, in percent.
    let busy = (fio::number(job, "usr_cpu")? + fio::number(job, "sys_cpu")?) / 100.0;
    let (p50_ns, p99_ns) = (percentile("50.000000"), percentile("99.000000"));
    Ok(Seen { iops, p50_ns, p99_ns, cpu_ns_per_io: busy * 1e9 / iops })
}

fn with_ours(place: Place<'_>, policy: PolicyOptions, depth: u16, measured_ms: u64) -> Result<Seen, String> {
    let options = FileOptions::new(place.path);
    let direct = if place.cached { Direct::Never } else { options.direct };
    let device: Arc<dyn Device> =
        Arc::new(FileDevice::open(&FileOptions { direct, size_bytes: place.size_bytes, ..options })?);
    let tenant = Tenant { name: "reader", weight: Weight::DEFAULT, load: Load::random_reads(1, depth, REQUEST_BYTES) };
    let mut rig = Rig::start(RigOptions {
        device,
        policy,
        queue_depth: 256,
        tenants: &[tenant],
        transport: Transport::Inside,
        workers: 1,
        pin: place.cached,
        latest: None,
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

fn rows(cases: &[Case], seen: &[Vec<Seen>]) -> Vec<KernelRow> {
    let row = |(at, Case { family, policy, depth, .. }): (usize, &Case)| {
        let is_base = |other: &&Case| (other.family, other.depth) == (*family, *depth);
        let none = cases.iter().position(|other| is_base(&other) && other.policy == "none");
        let none = none.or_else(|| cases.iter().position(|other| is_base(&other))).unwrap_or(at);
        let rates = Rounds::of(seen[at].iter().map(|seen| seen.iops));
        KernelRow {
            family: (*family).into(),
            policy: policy.clone(),
            depth: *depth,
            iops: rates.median(),
            iops_min: rates.smallest(),
            iops_max: rates.largest(),
            over_none: ratio(&seen[at], &seen[none], |seen| seen.iops),
            p50_ns: median(&seen[at], |seen| seen.p50_ns),
            p99_ns: median(&seen[at], |seen| seen.p99_ns),
            cpu_ns_per_io: median(&seen[at], |seen| seen.cpu_ns_per_io),
        }
    };
    cases.iter().enumerate().map(row).collect()
}

impl Results for Kernel {
    const NAME: &'static str = "kernel";
    const TITLE: &'static str = "The kernel's schedulers beside ours";

    fn skipped(&self) -> Option<&str> {
        self.skipped.as_deref()
    }

    fn head(&self) -> Vec<String> {
        match &self.pages {
            Some(pages) => pages.head(),
            None => vec![format!(
                "{}: 4 KiB direct random reads; ours runs over the same device with the kernel's none",
                self.device
            )],
        }
    }

    fn body(&self, style: Style) -> String {
        let rows = style.table(&table(
            &self.rows,
            &[
                ("depth", Right, |row: &KernelRow| row.depth.to_string()),
                ("family", Left, |row| row.family.clone()),
                ("scheduler", Left, |row| row.policy.clone()),
                ("I/O/s", Right, |row| whole(row.iops)),
                ("smallest", Right, |row| whole(row.iops_min)),
                ("largest", Right, |row| whole(row.iops_max)),
                ("/ none", Right, |row| format!("{:.3}", row.over_none)),
                ("p50 us", Right, |row| us(row.p50_ns)),
                ("p99 us", Right, |row| us(row.p99_ns)),
                ("CPU ns", Right, |row| whole(row.cpu_ns_per_io)),
            ],
        ));
        let lookups = table(
            &self.lookups,
            &[
                ("threads", Right, |row: &LookupRow| row.threads.to_string()),
                ("scheduler", Left, |row| row.policy.clone()),
                ("look-ups/s", Right, |row| whole(row.lookups_per_s)),
                ("smallest", Right, |row| whole(row.lookups_per_s_min)),
                ("largest", Right, |row| whole(row.lookups_per_s_max)),
                ("/ none", Right, |row| format!("{:.3}", row.over_none)),
                ("p50 us", Right, |row| us(row.p50_ns)),
                ("p99 us", Right, |row| us(row.p99_ns)),
            ],
        );
        let head = "RocksDB's db_bench, readrandom, direct reads, over each of the kernel's schedulers";
        let skipped =
            self.lookups_skipped.as_ref().map(|reason| format!("\nRocksDB's db_bench was skipped: {reason}\n"));
        rows + &skipped.unwrap_or_else(|| match self.lookups.is_empty() {
            true => String::new(),
            false => format!("\n{head}:\n\n{}", style.table(&lookups)),
        })
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
        let case = |family, policy: &str| Case { family, policy: policy.into(), depth: 1, how: How::Fio(&[]) };
        let cases = [case("kernel", "bfq"), case("kernel", "none"), case("mqfq", "none"), case("mqfq", "mqfq")];
        let rounds =
            [vec![seen(50.0), seen(5.0)], vec![seen(100.0), seen(10.0)], vec![seen(80.0); 2], vec![seen(60.0); 2]];
        let rows = rows(&cases, &rounds);
        assert_eq!(rows.iter().map(|row| row.over_none).collect::<Vec<_>>(), [0.5, 1.0, 1.0, 0.75], "within a round");
        assert_eq!((rows[0].iops_min, rows[0].iops, rows[0].iops_max), (5.0, 27.5, 50.0));
    }

    #[test]
    fn a_failed_or_empty_job_is_not_a_number() {
        let failed = parse(r#"{ "jobs": [ { "error": 22, "read": {} } ] }"#);
        assert_eq!(failed, Err("fio's job failed with error 22".to_string()));
        let idle = r#"{ "jobs": [ { "error": 0, "usr_cpu": 0, "sys_cpu": 0, "read": { "iops": 0 } } ] }"#;
        assert_eq!(parse(idle), Err("fio made no request".to_string()));
    }
}
