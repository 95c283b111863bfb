//! `mqfq-lab bench file`: what the block layer costs on a real data path, with nothing slow below it.
//!
//! # What it measures
//! 4 KiB random reads of a file that lies in the page cache, 64 in flight, all on one CPU: the block layer under each
//! policy, with the load inside its worker and the device `file` without O_DIRECT, beside fio's io_uring engine on the
//! same file. Every read is a copy out of memory, so what is left over the kernel's part is what the path itself costs.
//! A drive would hide it.
//!
//! # Why in rounds
//! A machine drifts: other guests, heat, clocks. Each round runs every case once and begins with another one, so that
//! drift falls on all of them alike. A row reports the median of its rounds with the smallest and largest; a ratio is
//! the median of the rounds' ratios.
//!
//! # What would make it lie
//! A file that does not stay in memory: storage reads are counted and reported. fio as people start it makes a system
//! call per request, so several settings of it are run and the comparison is with the fastest. See lab/bench/README.md.

mod fio;

use crate::contender::{CONTENDERS, Contender, MQFQ, NONE};
use crate::cpu_time::process_cpu_ns;
use crate::rounds::{self, Rounds, interleaved, median};
use crate::shell;
use mqfq_blk::Weight;
use mqfq_blk::device::Device;
use mqfq_blk::device::file::{Direct, FileDevice, FileOptions};
use mqfq_config::size;
use mqfq_demo::harness::{Rig, RigOptions, Tenant, Transport};
use mqfq_demo::load::{Load, Window};
use mqfq_demo::scratch::Scratch;
use mqfq_report::progress::Progress;
use mqfq_report::table::{Align, Table};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Size of every request: a page, so that a request is one copy.
pub const REQUEST_BYTES: u32 = 4096;

/// Requests in flight.
pub const DEPTH: u16 = 64;

/// T: 16 of these requests, the project's default.
const WINDOW_BYTES: u64 = 64 << 10;

/// Size of the file that is made if none is given: far more than a processor's caches, far less than a machine's
/// memory.
pub const FILE_BYTES: u64 = 256 << 20;

/// Before anything is counted: enough for caches, branch predictors and a core's clock.
const WARM_UP_MS: u64 = 100;

/// Of the file's bytes, 1/this from storage is no more than programs being loaded; more is said in words.
const STORAGE_SHARE: u64 = 100;

/// Bytes written or read at a time while the file is made and warmed.
const CHUNK_BYTES: usize = 1 << 20;

/// What to run.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct FileBenchOptions {
    /// An existing file or block device, which is only read. Without it one is made in the temporary folder.
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Bytes to read from, 64KiB to 1TiB; the default is all of PATH, or 256MiB if a file is made.
    #[arg(long = "size", value_name = "SIZE", value_parser = file_size)]
    pub size_bytes: Option<u64>,
    /// How often each case is run.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Length of each measurement.
    #[arg(
        long = "milliseconds",
        value_name = "MILLISECONDS",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(50..=600_000)
    )]
    pub measured_ms: u64,
}

impl Default for FileBenchOptions {
    fn default() -> Self {
        crate::options::defaults()
    }
}

/// A size as in the config file.
fn file_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text).ok_or_else(|| format!("a size is {}", size::ALLOWED))?;
    if (64 << 10..=1 << 40).contains(&bytes) { Ok(bytes) } else { Err("allowed is 64KiB to 1TiB".into()) }
}

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FileReport {
    /// One row per case.
    pub rows: Vec<FileRow>,
    /// Requests per second of `mqfq` over those of `none`, median of the rounds' ratios.
    pub mqfq_over_none: f64,
    /// The same over the fio row with the most requests per second; `null` without fio.
    pub mqfq_over_fio: Option<f64>,
    /// Which fio row that is.
    pub fio_case: Option<String>,
    /// What was left out, one sentence each.
    pub skipped: Vec<String>,
    /// Bytes that were read at random.
    pub file_bytes: u64,
    /// Size of each request.
    pub request_bytes: u32,
    /// Requests in flight.
    pub depth: u16,
    /// Rounds, interleaved.
    pub rounds: u32,
    /// Length of each measurement, milliseconds.
    pub measured_ms: u64,
    /// Bytes that the storage had to deliver during the runs, fio's included. More than a little (a program is loaded
    /// from storage, too): the file did not stay in the page cache.
    pub storage_read_bytes: u64,
}

/// One case.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FileRow {
    /// A policy's name (with its form, where there are several), or fio and how it was set.
    pub case: String,
    /// Median of the rounds.
    pub requests_per_s: f64,
    /// Requests per second in the slowest round.
    pub smallest: f64,
    /// Requests per second in the fastest round.
    pub largest: f64,
    /// CPU time of the process, user and system, per request, median of the rounds.
    pub cpu_ns_per_request: f64,
}

/// One run of one case.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Seen {
    requests_per_s: f64,
    cpu_ns_per_request: f64,
}

/// Who reads the file.
#[derive(Clone, Copy, Debug)]
enum Case {
    Ours(Contender),
    Fio(&'static fio::Settings),
}

impl Case {
    fn name(&self) -> String {
        match self {
            Case::Ours(contender) => contender.label.into(),
            Case::Fio(settings) => settings.case.into(),
        }
    }
}

/// Runs everything and prints it.
///
/// # Errors
/// One sentence: the file cannot be made or read, or a run failed.
pub fn run(options: &FileBenchOptions, json: bool) -> Result<(), String> {
    let report = measure(options)?;
    shell::print(&report, json, || report.text())
}

/// Runs everything.
///
/// # Errors
/// One sentence: the file cannot be made or read, or a run failed.
pub fn measure(options: &FileBenchOptions) -> Result<FileReport, String> {
    let scratch = Scratch::new()?;
    let path = match &options.file {
        Some(path) => path.clone(),
        None => make_file(scratch.path(), options.size_bytes.unwrap_or(FILE_BYTES))?,
    };
    let device = FileDevice::open(&FileOptions {
        size_bytes: options.size_bytes,
        // The page cache is the point.
        direct: Direct::Never,
        ..FileOptions::new(&path)
    })?;
    let file_bytes = device.info().size_bytes;
    let device: Arc<dyn Device> = Arc::new(device);
    let mut skipped = Vec::new();
    let mut cases: Vec<Case> = CONTENDERS.into_iter().map(Case::Ours).collect();
    if fio::is_there() {
        cases.extend(fio::SETTINGS.iter().map(Case::Fio));
    } else {
        skipped.push("fio with its io_uring engine is not installed: its rows are left out".to_string());
    }

    let _pinned = Pinned::to_one_cpu()?;
    warm(&path, file_bytes)?;
    let mut progress = Progress::new(cases.len() * options.rounds as usize);
    let mut storage_read_bytes = 0;
    let name = |at: usize| cases[at].name();
    let seen = interleaved(options.rounds, (cases.len(), cases.len()), &mut progress, name, |at| {
        let before_bytes = storage_bytes();
        let seen = match cases[at] {
            Case::Ours(contender) => run_ours(&device, contender, options.measured_ms)?,
            Case::Fio(settings) => fio::run(settings, &path, file_bytes, options.measured_ms)?,
        };
        storage_read_bytes += storage_bytes() - before_bytes;
        Ok(seen)
    })?;
    progress.finish();
    let rows: Vec<FileRow> = cases.iter().zip(&seen).map(|(case, seen)| row(case.name(), seen)).collect();
    let of = |contender: Contender| {
        cases.iter().position(|case| case.name() == contender.label).expect("all contenders were run")
    };
    let fastest_fio = (0..cases.len())
        .filter(|&at| matches!(cases[at], Case::Fio(_)))
        .max_by(|&a, &b| rows[a].requests_per_s.total_cmp(&rows[b].requests_per_s));
    Ok(FileReport {
        mqfq_over_none: ratio(&seen[of(MQFQ)], &seen[of(NONE)]),
        mqfq_over_fio: fastest_fio.map(|fio| ratio(&seen[of(MQFQ)], &seen[fio])),
        fio_case: fastest_fio.map(|fio| rows[fio].case.clone()),
        rows,
        skipped,
        file_bytes,
        request_bytes: REQUEST_BYTES,
        depth: DEPTH,
        rounds: options.rounds,
        measured_ms: options.measured_ms,
        storage_read_bytes,
    })
}

fn run_ours(device: &Arc<dyn Device>, contender: Contender, measured_ms: u64) -> Result<Seen, String> {
    let load = Load::random_reads(1, DEPTH, REQUEST_BYTES);
    let mut rig = Rig::start(RigOptions {
        device: device.clone(),
        policy: contender.options(u32::from(DEPTH), WINDOW_BYTES, 1),
        queue_depth: DEPTH,
        tenants: &[Tenant { name: "reader", weight: Weight::DEFAULT, load }],
        transport: Transport::Inside,
        workers: 1,
        pin: true,
    })?;
    let before_ns = process_cpu_ns();
    let counted = rig.run(&[0], Window::from_ms(WARM_UP_MS, measured_ms))?;
    let cpu_ns = process_cpu_ns() - before_ns;
    rig.stop();
    // The CPU time is that of the whole run, warm-up included.
    let bytes: u64 = counted[0].series_bytes.iter().sum();
    Ok(Seen {
        requests_per_s: counted[0].requests_per_s(),
        cpu_ns_per_request: cpu_ns as f64 / (bytes / u64::from(REQUEST_BYTES)).max(1) as f64,
    })
}

fn row(case: String, seen: &[Seen]) -> FileRow {
    let rates = Rounds::of(seen.iter().map(|seen| seen.requests_per_s));
    FileRow {
        case,
        requests_per_s: rates.median(),
        smallest: rates.smallest(),
        largest: rates.largest(),
        cpu_ns_per_request: median(seen, |seen| seen.cpu_ns_per_request),
    }
}

/// Of requests per second.
fn ratio(first: &[Seen], second: &[Seen]) -> f64 {
    rounds::ratio(first, second, |seen| seen.requests_per_s)
}

/// A file of `size_bytes` without holes: a hole is read from one page of zeroes, which is always in the processor's
/// cache.
fn make_file(folder: &Path, size_bytes: u64) -> Result<PathBuf, String> {
    let path = folder.join("pages");
    let fill = || -> std::io::Result<()> {
        let mut file = File::create_new(&path)?;
        let chunk: Vec<u8> = (0..CHUNK_BYTES).map(|at| at as u8 | 1).collect();
        let mut left_bytes = size_bytes;
        while left_bytes > 0 {
            let bytes = left_bytes.min(CHUNK_BYTES as u64);
            file.write_all(&chunk[..bytes as usize])?;
            left_bytes -= bytes;
        }
        // Writing back while we measure would be somebody else's load on this CPU.
        file.sync_all()
    };
    fill().map_err(|error| format!("cannot make {} of {size_bytes} bytes: {error}", path.display()))?;
    Ok(path)
}

/// Reads everything once, so that it is in the page cache if there is room.
fn warm(path: &Path, size_bytes: u64) -> Result<(), String> {
    let read_all = || -> std::io::Result<()> {
        let mut file = File::open(path)?.take(size_bytes);
        let mut chunk = vec![0; CHUNK_BYTES];
        while file.read(&mut chunk)? > 0 {}
        Ok(())
    };
    read_all().map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Bytes that storage delivered to this process and its ended children so far; 0 where the kernel does not count them.
fn storage_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// This thread, and every thread and process that it starts, on one CPU for as long as the value lives.
struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// The last CPU that is allowed: the first is where machines send their interrupts.
    fn to_one_cpu() -> Result<Pinned, String> {
        let before =
            sched_getaffinity(None).map_err(|error| format!("cannot read the CPUs of this process: {error}"))?;
        let last = (0..CpuSet::MAX_CPU).rfind(|&number| before.is_set(number)).unwrap_or(0);
        let mut one = CpuSet::new();
        one.set(last);
        sched_setaffinity(None, &one).map_err(|error| format!("cannot choose CPU {last}: {error}"))?;
        Ok(Pinned { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It was allowed before.
        let _ = sched_setaffinity(None, &self.before);
    }
}

impl FileReport {
    /// What a person reads.
    pub fn text(&self) -> String {
        let mut table = Table::new(&[
            ("case", Align::Left),
            ("requests/s", Align::Right),
            ("smallest", Align::Right),
            ("largest", Align::Right),
            ("CPU ns/request", Align::Right),
        ]);
        for row in &self.rows {
            let rate = |value: f64| format!("{value:.0}");
            table.row(vec![
                row.case.clone(),
                rate(row.requests_per_s),
                rate(row.smallest),
                rate(row.largest),
                format!("{:.0}", row.cpu_ns_per_request),
            ]);
        }
        let mut text = format!(
            "{} B random reads of {} MiB in the page cache, depth {}, one CPU, {} rounds of {} ms\n\n{}\n",
            self.request_bytes,
            self.file_bytes >> 20,
            self.depth,
            self.rounds,
            self.measured_ms,
            table.render()
        );
        text += &format!("mqfq over none: {:.3}\n", self.mqfq_over_none);
        if let (Some(ratio), Some(case)) = (self.mqfq_over_fio, &self.fio_case) {
            text += &format!("mqfq over {case}, the fastest of fio: {ratio:.3}\n");
        }
        for sentence in &self.skipped {
            text += &format!("{sentence}\n");
        }
        if self.storage_read_bytes > self.file_bytes / STORAGE_SHARE {
            text += &format!(
                "the file did not stay in the page cache: {} bytes came from storage\n",
                self.storage_read_bytes
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(rates: &[f64]) -> Vec<Seen> {
        rates.iter().map(|&requests_per_s| Seen { requests_per_s, cpu_ns_per_request: 1e9 / requests_per_s }).collect()
    }

    #[test]
    fn a_ratio_is_taken_within_its_round() {
        // The machine halves its speed in the second round: each ratio is 0.9 all the same.
        assert_eq!(ratio(&seen(&[900.0, 450.0, 900.0]), &seen(&[1000.0, 500.0, 1000.0])), 0.9);
    }

    #[test]
    fn a_row_is_the_median_between_its_extremes() {
        let row = row("none".into(), &seen(&[3.0, 1.0, 2.0]));
        assert_eq!((row.smallest, row.requests_per_s, row.largest), (1.0, 2.0, 3.0));
    }

    #[test]
    fn a_made_file_has_its_size_and_no_hole() {
        use std::os::unix::fs::MetadataExt;
        let scratch = Scratch::new().unwrap();
        let size_bytes = (CHUNK_BYTES + 5000) as u64;
        let metadata = std::fs::metadata(make_file(scratch.path(), size_bytes).unwrap()).unwrap();
        assert_eq!(metadata.len(), size_bytes);
        assert!(metadata.blocks() * 512 >= size_bytes);
    }
}
