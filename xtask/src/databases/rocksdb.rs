//! RocksDB on a volume, driven by its own `db_bench`: half reads, half writes, each write stable when it returns.

use super::ground::Volume;
use super::postgres::Statements;
use crate::run::{run, shown};
use mqfq_testing::arg;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Keys, with values of [`VALUE_BYTES`]: 400 MB.
const KEYS: &str = "400000";

/// Bytes of a value.
const VALUE_BYTES: &str = "1000";

/// Threads, each with one request after the other.
const THREADS: &str = "4";

fn db_bench(volume: &Volume, benchmarks: &str) -> Command {
    let mut bench = volume.group.command("root", Path::new("/usr/bin/db_bench"));
    bench.args([
        "--benchmarks".to_owned() + "=" + benchmarks,
        format!("--db={}", arg(&volume.path.join("rocksdb"))),
        format!("--num={KEYS}"),
        format!("--value_size={VALUE_BYTES}"),
    ]);
    bench.args(["--compression_type=none", "--cache_size=8388608", "--use_direct_reads=1"]);
    bench.arg("--use_direct_io_for_flush_and_compaction=1");
    bench.stdin(Stdio::null());
    bench
}

/// Fills a database.
///
/// # Errors
/// One sentence if db_bench fails.
pub fn load(volume: &Volume) -> Result<(), String> {
    run(db_bench(volume, "fillseq,compact").stdout(Stdio::null()).stderr(Stdio::null()))
}

/// db_bench at work.
pub struct Bench {
    child: Child,
    name: String,
}

/// Starts it for `seconds`.
///
/// # Errors
/// One sentence if it does not start.
pub fn bench(volume: &Volume, seconds: u32) -> Result<Bench, String> {
    let mut bench = db_bench(volume, "readrandomwriterandom");
    bench.args(["--use_existing_db=1", "--readwritepercent=50", "--sync=1", "--statistics=1"]);
    bench.args([format!("--threads={THREADS}"), format!("--duration={seconds}")]);
    bench.stdout(Stdio::piped()).stderr(Stdio::null());
    let name = shown(&bench);
    let child = bench.spawn().map_err(|error| format!("{name}: {error}"))?;
    Ok(Bench { child, name })
}

impl Bench {
    /// Waits for its end. Writes take the place of commits; the rate is that of both.
    ///
    /// # Errors
    /// One sentence if it failed or says something unknown.
    pub fn finish(self) -> Result<Statements, String> {
        let output = self.child.wait_with_output().map_err(|error| format!("{}: {error}", self.name))?;
        let text = String::from_utf8_lossy(&output.stdout);
        statements(&text).ok_or_else(|| format!("{}: {} without its figures: {text}", self.name, output.status))
    }
}

/// Reads `... 123 ops/sec ...`, and `rocksdb.db.get.micros P50 : 1.5 P95 : 2 P99 : 3 ...`.
fn statements(text: &str) -> Option<Statements> {
    let rate = text.lines().find(|line| line.starts_with("readrandomwriterandom"))?;
    let per_s = rate.split(" ops/sec").next()?.split_whitespace().last()?.parse().ok()?;
    let times = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let of = |part: &str| {
            let at = words.iter().position(|word| *word == part)?;
            Some(words.get(at + 2)?.parse::<f64>().ok()? / 1000.0)
        };
        Some([of("P50")?, of("P99")?])
    };
    Some(Statements { per_s, read_ms: times("rocksdb.db.get.micros")?, commit_ms: times("rocksdb.db.write.micros")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_times_are_read_from_what_db_bench_prints() {
        let text = "readrandomwriterandom :    1512.5 micros/op 2644 ops/sec 10.0 seconds 26444 operations; ( 1 )\n\
                    rocksdb.db.get.micros P50 : 1250.0 P95 : 1700.0 P99 : 2500.0 P100 : 3000.0 COUNT : 5 SUM : 9\n\
                    rocksdb.db.write.micros P50 : 500.0 P95 : 800.0 P99 : 9000.0 P100 : 9100.0 COUNT : 5 SUM : 9\n";
        let found = Statements { per_s: 2644.0, read_ms: [1.25, 2.5], commit_ms: [0.5, 9.0] };
        assert_eq!(statements(text), Some(found));
        assert_eq!(statements("readrandomwriterandom : 3 ops/sec\n"), None);
        assert_eq!(statements(""), None);
    }
}
