//! Words that a crate must not say where it ships. Time, threads and randomness come in as arguments; what reads them
//! for itself cannot be simulated or model-checked.

use super::report::Report;
use super::source::{Line, has_word};
use super::tree::{File, Tree};

/// Names that read a clock.
const CLOCK: &[&str] = &["Instant", "SystemTime", "UNIX_EPOCH", "clock_gettime"];
/// Names that make a thread.
const THREADS: &[&str] = &["thread::spawn", "thread::Builder", "thread::scope"];
/// Names that wait for time to pass.
const SLEEP: &[&str] = &["thread::sleep", "nanosleep", "usleep"];

/// Which lines a word is forbidden in.
type Lines = fn(&Line) -> bool;

const SHIPPED: Lines = |line| !line.test;
const TESTS: Lines = |line| line.test;
const ALL: Lines = |_| true;

/// Programs that use the core, as others would write them.
pub const EXAMPLES: &str = "sched/examples/";

fn forbid(files: &[&File], lines: Lines, words: &[&str], why: &str, report: &mut Report) {
    for file in files {
        for (number, line) in file.all_lines().filter(|(_, line)| lines(line)) {
            for word in words.iter().filter(|word| has_word(&line.code, word)) {
                report.add(&file.path, number, format!("`{word}`: {why}"));
            }
        }
    }
}

/// The Rust files below `folders`, without those of `except`, and without examples: they are programs of users.
fn below<'a>(tree: &'a Tree, folders: &[&'static str], except: &[&str]) -> Vec<&'a File> {
    let files = folders.iter().flat_map(|folder| tree.rust_below(folder));
    let files = files.filter(|file| !file.path.starts_with(EXAMPLES));
    files.filter(|file| !except.contains(&file.path.as_str())).collect()
}

/// `clock`: sched, lab/blkmq, lab/nvme and sim know no clock, not even in tests; blk reads it in one file, front gets
/// `now_ns` from there. The table of `scx_pmqfq` is of what programs had in a real second,
/// and its loader pauses.
pub fn clock(tree: &Tree, report: &mut Report) {
    let path = below(
        tree,
        &["sched", "cpu", "lab/blkmq", "lab/nvme", "lab/sim"],
        &["cpu/scx/src/show.rs", "cpu/scx/src/load.rs"],
    );
    forbid(&path, ALL, CLOCK, "time is passed in as now_ns", report);
    let path = below(tree, &["blk/src", "front/src"], &["blk/src/worker/clock.rs"]);
    forbid(&path, SHIPPED, CLOCK, "only blk/src/worker/clock.rs reads the time", report);
}

/// `threads`: only the worker's host spawns. Tests may, to race the code against itself, but for the simulator's: it
/// would not give the same twice.
pub fn threads(tree: &Tree, report: &mut Report) {
    let path = below(
        tree,
        &["sched", "lab/blkmq", "lab/nvme", "blk", "front"],
        &["blk/src/worker/thread.rs", "blk/src/worker/wake_up.rs", "blk/src/edge/passed.rs"],
    );
    forbid(&path, SHIPPED, THREADS, "only blk/src/worker/thread.rs makes threads that run on", report);
    forbid(
        &below(tree, &["lab/sim"], &[]),
        ALL,
        THREADS,
        "a simulation is one thread; who runs many brings the threads",
        report,
    );
}

/// `sleep`: a wait is for an event, in tests above all. Measurements (bench) live in wall time: their tenants start at
/// a common instant, and a foreign server takes its time to answer.
pub fn sleep(tree: &Tree, report: &mut Report) {
    let why = "wait for the event, or pass the time in";
    forbid(
        &below(
            tree,
            &["sched", "lab/blkmq", "lab/nvme", "blk", "front", "daemon", "xtask"],
            // Its threads have nothing to do but to be idle before a kick.
            &["blk/src/worker/wake_up.rs"],
        ),
        ALL,
        SLEEP,
        why,
        report,
    );
    forbid(&below(tree, &["demo", "lab/bench"], &[]), TESTS, SLEEP, why, report);
}

/// `sync`: in sched, and in the gate of blk, atomics and locks come through one file, so that the model checker sees
/// all of them. Tests may name `loom` (they *are* the model) and `std::sync::Arc`.
pub fn sync(tree: &Tree, report: &mut Report) {
    let files = below(tree, &["sched/src", "lab/policies/src"], &["sched/src/base/sync.rs"]);
    let words = ["std::sync", "core::sync", "loom::sync", "loom::thread", "use loom"];
    forbid(&files, SHIPPED, &words, "only sched/src/base/sync.rs names where atomics come from", report);
    let mut gate = below(tree, &["blk/src/device/file"], &[]);
    gate.retain(|file| file.path.ends_with("/gate.rs"));
    let words = ["std::sync::atomic", "std::sync::Mutex", "std::sync::{", "loom::", "use loom"];
    forbid(
        &gate,
        SHIPPED,
        &words,
        "the gate's atomics come from mqfq_sched::sync, so that its models see them",
        report,
    );
}

/// `floats`: sched, and the policies of the laboratory, compute in integers where they run.
pub fn floats(tree: &Tree, report: &mut Report) {
    forbid(
        &below(tree, &["sched/src", "lab/policies/src"], &[]),
        SHIPPED,
        &["f32", "f64"],
        "no floats on the scheduling path",
        report,
    );
}

/// `old-compiler`: sched compiles with the version that its manifest names. Of functions clippy knows since when they
/// are there, of syntax it does not.
pub fn old_compiler(tree: &Tree, report: &mut Report) {
    let why = "a chain of `let` needs a newer compiler than sched/Cargo.toml promises";
    for file in below(tree, &["sched/src"], &[]) {
        for (number, line) in file.all_lines().filter(|(_, line)| line.code.contains("&& let ")) {
            report.add(&file.path, number, format!("`{}`: {why}", line.code.trim()));
        }
    }
}

/// `front-names-sched`: a front end that could see the scheduler would soon decide something.
pub fn front_names_sched(tree: &Tree, report: &mut Report) {
    forbid(&below(tree, &["front"], &[]), ALL, &["mqfq_sched", "mqfq_nvme"], "front knows blk only", report);
}

/// `unsafe`: only where memory meets the kernel, in blk and daemon. Code that parses a client's bytes or decides is
/// safe. A measurement's guest lends its memory to the server that it measures, and without `std` a lock is our own.
pub fn no_unsafe(tree: &Tree, report: &mut Report) {
    let safe = below(
        tree,
        &[
            "sched/src",
            "lab/blkmq/src",
            "lab/nvme/src",
            "front/src",
            "report/src",
            "demo/src",
            "lab/bench/src",
            "xtask/src",
        ],
        &["lab/bench/src/clients/virtio.rs", "sched/src/base/sync.rs"],
    );
    forbid(&safe, SHIPPED, &["unsafe"], "blk and daemon talk to the kernel, nobody else does", report);
}

/// `async`: no async code in the crates of the data path.
pub fn no_async(tree: &Tree, report: &mut Report) {
    let path = below(tree, &["sched", "lab/blkmq", "lab/nvme", "blk", "front"], &[]);
    forbid(&path, ALL, &["async", "await"], "the worker's loop is the only executor", report);
}
