//! Point look-ups of a key-value store over each of the kernel's schedulers: `db_bench` of RocksDB, where it is
//! installed.
//!
//! Source: "Do we still need IO schedulers for low-latency disks?" (HotStorage'23), sections 3.2.2 and 4.3: keys of 16
//! bytes, values of 4 KB, no compression, `readrandom`; the number of threads stands for the depth. The database is
//! smaller than the paper's 87 GB, but far larger than the store's cache of 1 MiB, and reads are direct, so nearly each
//! look-up reads the device.
//!
//! Ours has no row here: a file system needs a device of the kernel's, and our front ends for it need a kernel module
//! each. `mqfq-lab bench schedulers` has the same load over our block layer, in virtual time.
//!
//! # Cleaning up
//! Each run mounts the file system in a mount namespace of its own, which is gone with the last process in it, however
//! that ends.

use super::device::Target;
use mqfq_demo::scratch::Scratch;
use std::process::{Command, Stdio};

/// Threads that look up at once.
pub const THREADS: [u16; 2] = [1, 8];

/// Values in the database: 117 MiB of them on a loop device of 256 MiB.
const KEYS: u32 = 30_000;

/// Size of the store's own cache.
const CACHE_BYTES: u32 = 1 << 20;

/// Results of one run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lookups {
    /// Look-ups per second.
    pub per_s: f64,
    /// Median latency.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
}

/// A database on a file system on the device.
pub struct Store<'a> {
    target: &'a Target,
    scratch: Scratch,
}

impl<'a> Store<'a> {
    /// Makes a file system and fills a database: what was on the device is lost.
    ///
    /// # Errors
    /// One sentence: why there can be none here.
    pub fn fill(target: &'a Target) -> Result<Store<'a>, String> {
        for (tool, argument) in [("db_bench", "--version"), ("mkfs.ext4", "-V"), ("unshare", "--version")] {
            let found = Command::new(tool).arg(argument).stdin(Stdio::null()).output();
            found.map_err(|_| format!("{tool} is not installed"))?;
        }
        let mut mkfs = Command::new("mkfs.ext4");
        said(mkfs.args(["-q", "-F", "-O", "^has_journal"]).arg(target.path()), "mkfs.ext4")?;
        let store = Store { target, scratch: Scratch::new()? };
        store.db_bench(&["--benchmarks=fillseq", "--disable_wal=1"])?;
        Ok(store)
    }

    /// Looks up random keys for so many seconds.
    ///
    /// # Errors
    /// One sentence.
    pub fn look_up(&self, threads: u16, seconds: u64) -> Result<Lookups, String> {
        let (threads, duration) = (format!("--threads={threads}"), format!("--duration={seconds}"));
        let fixed = ["--benchmarks=readrandom", "--use_existing_db=1", "--use_direct_reads=1", "--histogram=1"];
        parse(&self.db_bench(&[&fixed[..], &[&threads, &duration]].concat())?)
    }

    fn db_bench(&self, arguments: &[&str]) -> Result<String, String> {
        let folder = self.scratch.path();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation=private", "sh", "-c"])
            .arg("mount -t ext4 -o noatime \"$0\" \"$1\" && db=$1/db && shift && exec db_bench --db=\"$db\" \"$@\"")
            .arg(self.target.path())
            .arg(folder)
            .args(["--key_size=16", "--value_size=4096", "--compression_type=none", "--seed=1"])
            .arg(format!("--num={KEYS}"))
            .arg(format!("--cache_size={CACHE_BYTES}"))
            .args(arguments);
        said(&mut command, "db_bench")
    }
}

/// Output of a command.
fn said(command: &mut Command, name: &str) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("cannot start {name}: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.trim().lines().last().unwrap_or_default().to_owned();
        return Err(format!("{name} ended with {}: {last}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `readrandom : 12.3 micros/op 81300 ops/sec ...` and `Percentiles: P50: 11.0 P75: ... P99: 30.0 ...`, in
/// microseconds.
fn parse(text: &str) -> Result<Lookups, String> {
    let number_before = |line: &str, unit: &str| -> Option<f64> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == unit)?;
        words.get(at.checked_sub(1)?)?.parse().ok()
    };
    let number_after = |line: &str, name: &str| -> Option<f64> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == name)?;
        words.get(at + 1)?.parse().ok()
    };
    let per_s = text.lines().filter(|line| line.starts_with("readrandom")).find_map(|l| number_before(l, "ops/sec"));
    let of = |name| text.lines().filter(|line| line.starts_with("Percentiles:")).find_map(|l| number_after(l, name));
    match (per_s, of("P50:"), of("P99:")) {
        (Some(per_s), Some(p50_us), Some(p99_us)) => {
            Ok(Lookups { per_s, p50_ns: p50_us * 1000.0, p99_ns: p99_us * 1000.0 })
        }
        _ => Err("db_bench's output has no look-ups per second or no percentiles".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn db_benchs_lines_are_read() {
        let text = "DB path: [/x/db]\nreadrandom   :      11.650 micros/op 85812 ops/sec 1.000 seconds 85999 operations;  337.0 MB/s (1000 of \
                    1000 found)\n\nMicroseconds per read:\nCount: 85999 Average: 11.6  StdDev: 5.0\nPercentiles: P50: 10.25 P75: 12.00 P99: \
                    31.50 P99.9: 60.00 P99.99: 90.00\n";
        assert_eq!(parse(text), Ok(Lookups { per_s: 85_812.0, p50_ns: 10_250.0, p99_ns: 31_500.0 }));
        assert!(parse("readrandom : 1 micros/op").is_err());
    }
}
