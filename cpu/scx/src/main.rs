//! `scx_pmqfq`: loads P-MQFQ into the kernel, watches it, and takes it out again.
//!
//! The scheduler is `bpf/pmqfq.bpf.c`. It is in force while this process holds its link: however the process ends, the
//! kernel's own scheduler is back. If the scheduler itself fails, the kernel takes it out, and this process says why.

mod load;
mod show;

use clap::{Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;

/// Shares CPU time fairly between programs: cgroups by cpu.weight, or processes.
#[derive(Parser)]
#[command(name = "scx_pmqfq", version)]
struct Command {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Action {
    /// Shows the programs of the scheduler that is in force, once a second.
    Top {
        /// Seconds between two looks, 1 to 3600.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
        interval: u64,
        /// Looks, then the end. 0: until it is interrupted.
        #[arg(long, default_value_t = 0)]
        count: u64,
        /// A JSON object for each look instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Checks a trace against the reference policy and its bound.
    Check {
        /// What `--trace` has written.
        trace: PathBuf,
        /// One JSON object instead of sentences.
        #[arg(long)]
        json: bool,
    },
    /// Writes the manual page to stdout.
    #[command(hide = true)]
    Man,
}

/// A program is one of these.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// A cgroup of the cpu controller, with its cpu.weight.
    Cgroup,
    /// A process with all its threads; all weigh the same.
    Process,
}

/// How the scheduler decides.
#[derive(clap::Args)]
struct Options {
    /// A program is a cgroup or a process.
    #[arg(long, value_enum, default_value_t = By::Cgroup)]
    by: By,
    /// Longest run of a thread before its siblings have their turn, 100 to 100000 us. It ends at a tick.
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u64).range(100..=100_000))]
    slice_us: u64,
    /// Shortest run of a thread before it can be preempted, 0 to 100000 us.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    min_slice_us: u64,
    /// Most that a program may be behind, 0 to 10000 ms of CPU time.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    lag_ms: u64,
    /// Lets no waking thread take a CPU. For comparisons.
    #[arg(long)]
    no_preempt: bool,
    /// The kernel takes the scheduler out if a thread waits for so long, 100 to 30000 ms.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..=30_000))]
    stall_ms: u32,
    /// Records each CPU's last events and writes them to this file at the end.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Events of each CPU that are kept, a power of 2 up to 1048576.
    #[arg(long, default_value_t = 65536)]
    trace_events: u32,
    /// Writes the programs as one JSON object at the end.
    #[arg(long)]
    json: bool,
}

fn run() -> Result<(), String> {
    let command = Command::parse();
    match command.action {
        None => load::run(&command.options),
        Some(Action::Top { interval, count, json }) => show::top(interval, count, json),
        Some(Action::Check { trace, json }) => show::check(&trace, json),
        Some(Action::Man) => show::man(),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("scx_pmqfq: {sentence}");
            ExitCode::FAILURE
        }
    }
}
