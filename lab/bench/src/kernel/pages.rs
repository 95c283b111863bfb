//! `mqfq-lab bench kernel --file`: what the block layer costs on a real data path, with nothing slow below it.
//!
//! # What it measures
//! 4 KiB random reads of a file that lies in the page cache, 64 in flight, all on one CPU: the block layer under each
//! policy, with the load inside its worker and the device `file` without O_DIRECT, beside fio's io_uring engine on the
//! same file. Every read is a copy out of memory, so what is left over the kernel's part is what the path itself costs.
//! A drive would hide it.
//!
//! # What would make it lie
//! A file that does not stay in memory: storage reads are counted and reported. fio as people start it makes a system
//! call per request, so several settings of it are run and the comparison is with the fastest. See lab/bench/README.md.

use super::{Case, How, Kernel, KernelOptions, Place, rows, run_case};
use crate::contender::{CONTENDERS, MQFQ};
use crate::fio;
use crate::rounds::{interleaved, ratio};
use mqfq_config::size;
use mqfq_demo::scratch::Scratch;
use mqfq_report::progress::Progress;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Requests in flight.
const DEPTH: u16 = 64;

/// T: 16 of these requests, the project's default.
const WINDOW_BYTES: u64 = 64 << 10;

/// Size of the file that is made if none is given: far more than a processor's caches, far less than a machine's
/// memory.
const FILE_BYTES: u64 = 256 << 20;

/// Up to 1/this of the file's bytes from storage are only programs being loaded; a note mentions more than that.
const STORAGE_SHARE: u64 = 100;

/// Bytes written or read at a time while the file is made and warmed.
const CHUNK_BYTES: usize = 1 << 20;

/// Settings of fio, from plain to all that helps. As people start it, fio makes one system call per request. That is a
/// comparison with how fio is used, not with what io_uring can do.
const FIO: [(&str, &[&str]); 3] = [
    ("io_uring", &[]),
    ("io_uring, registered", &["--fixedbufs=1", "--registerfiles=1"]),
    // 64 requests to a system call, no clock per request, the file registered. Not --fixedbufs: reads of a page are
    // slower with it.
    (
        "io_uring, batched",
        &[
            "--registerfiles=1",
            "--iodepth_batch=64",
            "--iodepth_batch_complete_min=64",
            "--iodepth_batch_complete_max=64",
            "--gtod_reduce=1",
        ],
    ),
];

/// A size as in the config file.
pub(super) fn file_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text).ok_or_else(|| format!("a size is {}", size::ALLOWED))?;
    if (64 << 10..=1 << 40).contains(&bytes) { Ok(bytes) } else { Err("allowed is 64KiB to 1TiB".into()) }
}

/// Results that only a file has.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pages {
    /// Requests per second of `mqfq` over those of the fastest fio row; `null` without fio.
    pub mqfq_over_fio: Option<f64>,
    /// Name of that fio row.
    pub fio_case: Option<String>,
    /// Bytes that were read at random.
    pub file_bytes: u64,
    /// Bytes that the storage had to deliver during the runs, fio's included. More than a little (a program is loaded
    /// from storage, too): the file did not stay in the page cache.
    pub storage_read_bytes: u64,
}

impl Pages {
    pub(super) fn head(&self) -> Vec<String> {
        let mut head = vec![format!(
            "4 KiB random reads of {} MiB in the page cache, depth {DEPTH}, one CPU",
            self.file_bytes >> 20
        )];
        let over = self.fio_case.as_ref().zip(self.mqfq_over_fio);
        head.extend(over.map(|(case, over)| format!("mqfq over fio's {case}, its fastest: {over:.3}")));
        head
    }
}

/// Reads the file that is given, or one that is made.
///
/// # Errors
/// One sentence: the file cannot be made or read, or a run failed.
pub(super) fn measure(options: &KernelOptions, file: Option<&Path>, notes: &mut Vec<String>) -> Result<Kernel, String> {
    let scratch = Scratch::new()?;
    let path = match file {
        Some(path) => path.to_owned(),
        None => make_file(scratch.path(), options.size_bytes.unwrap_or(FILE_BYTES))?,
    };
    let length = || std::fs::metadata(&path).map(|metadata| metadata.len());
    let file_bytes = options.size_bytes.map_or_else(length, Ok);
    let file_bytes = file_bytes.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let mut cases: Vec<Case> = Vec::new();
    cases.extend(CONTENDERS.map(|contender| {
        let how = How::Ours(contender.options(DEPTH.into(), WINDOW_BYTES, 1));
        Case { family: "mqfq", policy: contender.label.into(), depth: DEPTH, how }
    }));
    if fio::has_engine("io_uring") {
        let fios = |(name, arguments)| Case {
            family: "fio",
            policy: String::from(name),
            depth: DEPTH,
            how: How::Fio(arguments),
        };
        cases.extend(FIO.map(fios));
    } else {
        notes.push("fio with its io_uring engine is not installed: its rows are left out".to_string());
    }
    let _pinned = Pinned::to_one_cpu()?;
    warm(&path, file_bytes)?;
    let place = Place { path: &path, size_bytes: Some(file_bytes), cached: true };
    let rounds = options.runs.rounds;
    let mut progress = Progress::new(cases.len() * rounds as usize);
    let before_bytes = storage_bytes();
    let seen = interleaved(
        rounds,
        (cases.len(), cases.len()),
        &mut progress,
        |at| cases[at].name(),
        |at| run_case(&cases[at], place, options.runs.measured_ms),
    )?;
    let storage_read_bytes = storage_bytes() - before_bytes;
    progress.finish();
    if storage_read_bytes > file_bytes / STORAGE_SHARE {
        let note = "the file did not stay in the page cache";
        notes.push(format!("{note}: {storage_read_bytes} bytes came from storage"));
    }
    let rows = rows(&cases, &seen);
    let fastest = (0..cases.len()).filter(|&at| cases[at].family == "fio");
    let fastest = fastest.max_by(|&a, &b| rows[a].iops.total_cmp(&rows[b].iops));
    let mqfq = cases.iter().position(|case| case.policy == MQFQ.label).expect("all contenders were run");
    let pages = Pages {
        mqfq_over_fio: fastest.map(|fio| ratio(&seen[mqfq], &seen[fio], |seen| seen.iops)),
        fio_case: fastest.map(|fio| rows[fio].policy.clone()),
        file_bytes,
        storage_read_bytes,
    };
    Ok(Kernel { rows, device: path.display().to_string(), pages: Some(pages), ..Kernel::default() })
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
        // Writing back while we measure would be another load on this CPU.
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

#[cfg(test)]
mod tests {
    use super::*;

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
