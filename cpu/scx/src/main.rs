//! `scx_pmqfq`: loads P-MQFQ into the kernel, watches it, and takes it out again.
//!
//! The scheduler is `bpf/pmqfq.bpf.c`. It is in force while this process holds its link: however the process ends, the
//! kernel's own scheduler is back. If the scheduler itself fails, the kernel takes it out, and this process says why.

mod load;
mod show;

use clap::{Parser, Subcommand, ValueEnum};
use scx_pmqfq::settings::{By, Settings};
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
        /// File that `--trace` has written.
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
#[derive(Clone, Copy, ValueEnum)]
enum Program {
    /// A cgroup of the cpu controller, with its cpu.weight.
    Cgroup,
    /// A process with all its threads; all weigh the same.
    Process,
}

/// How the scheduler decides.
#[derive(clap::Args)]
struct Options {
    /// Reads these settings from a TOML file; options stand above it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A program is a cgroup or a process [default: cgroup].
    #[arg(long, value_enum)]
    by: Option<Program>,
    /// Longest run of a thread before its siblings have their turn, 100 to 100000 us, to a tick [default: 3000].
    #[arg(long, value_parser = clap::value_parser!(u64).range(100..=100_000))]
    slice_us: Option<u64>,
    /// Shortest run of a thread before it can be preempted, 0 to 100000 us [default: 0].
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    min_slice_us: Option<u64>,
    /// Most that a program may be behind, 0 to 10000 ms of CPU time [default: 100].
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    lag_ms: Option<u64>,
    /// A thread that waits for so long runs next, 5 to 1000 ms, 0: by shares alone [default: 20].
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    wait_ms: Option<u64>,
    /// Places for programs. For tests.
    #[arg(long, hide = true, default_value_t = scx_pmqfq::program::PROGRAMS_MAX,
          value_parser = clap::value_parser!(u32).range(8..=32_768))]
    programs: u32,
    /// Lets no waking thread take a CPU. For comparisons.
    #[arg(long)]
    no_preempt: bool,
    /// Loads the scheduler although a cgroup has a `cpu.max`, which then has no effect.
    #[arg(long)]
    ignore_cpu_max: bool,
    /// The kernel takes the scheduler out if a thread waits for so long, 100 to 30000 ms [default: 5000].
    #[arg(long, value_parser = clap::value_parser!(u64).range(100..=30_000))]
    stall_ms: Option<u64>,
    /// Loads a scheduler that the kernel took out again, so many times on end, after 1 to 60 s.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    restarts: u32,
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

impl Options {
    /// Settings of the config file, overridden by the options.
    fn settings(&self) -> Result<Settings, String> {
        let mut settings = match &self.config {
            None => Settings::default(),
            Some(path) => {
                let name = path.display().to_string();
                let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
                Settings::read(&name, &text)?
            }
        };
        if let Some(by) = self.by {
            settings.by = if matches!(by, Program::Cgroup) { By::Cgroup } else { By::Process };
        }
        for (option, ns, unit_ns) in [
            (self.slice_us, &mut settings.slice_ns, 1_000),
            (self.min_slice_us, &mut settings.min_slice_ns, 1_000),
            (self.lag_ms, &mut settings.lag_ns, 1_000_000),
            (self.wait_ms, &mut settings.wait_ns, 1_000_000),
            (self.stall_ms, &mut settings.stall_ns, 1_000_000),
        ] {
            *ns = option.map_or(*ns, |count| count * unit_ns);
        }
        settings.preempts &= !self.no_preempt;
        settings.ignores_cpu_max |= self.ignore_cpu_max;
        settings.check()?;
        Ok(settings)
    }
}

fn run() -> Result<(), String> {
    let command = Command::parse();
    match command.action {
        None => load::run(&command.options, &command.options.settings()?),
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
