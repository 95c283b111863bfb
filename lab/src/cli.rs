//! The command line of the laboratory.

use clap::{Parser, Subcommand};
use mqfq_config::size;
use std::path::PathBuf;

/// The laboratory of mqfq: simulate machines and drives, and measure this one.
#[derive(Parser, Debug)]
#[command(name = "mqfq-lab", version)]
pub struct Cli {
    /// Print JSON on stdout: one object.
    #[arg(long, global = true)]
    pub json: bool,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Measure.
    #[command(subcommand)]
    Bench(Bench),
    /// Simulate: the papers' figures, and machines that are not here. The same input gives the same numbers anywhere.
    #[command(subcommand)]
    Sim(Sim),
}

/// What can be simulated.
#[derive(Subcommand, Debug)]
pub enum Sim {
    /// A figure: its numbers beside the paper's, and what holds of it.
    Figure {
        /// A name that `sim list` tells, such as mqfq/8, or the path of a figure's TOML file.
        figure: String,
        /// Write the figure as CSV, JSON and SVG into this folder.
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// Scenarios simulated at once, by default one per CPU.
        #[arg(long, value_parser = jobs)]
        jobs: Option<usize>,
        /// Fewer points and shorter times.
        #[arg(long)]
        quick: bool,
        /// Fail if a claim turns out other than the figure's file says.
        #[arg(long)]
        check: bool,
    },
    /// One scenario: who got what, and what memory cost.
    Run {
        /// A name that `sim list` tells, or the path of a scenario's TOML file.
        scenario: String,
        /// Write the outcome as JSON, the tenants or programs as CSV, a picture of them, and of programs a timeline
        /// into this folder.
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// Simulate each tenant or program alone as well, for its slowdown.
        #[arg(long)]
        alone: bool,
        /// Of a scenario of programs: another scheduler than the scenario's.
        #[arg(long, value_name = "KIND")]
        scheduler: Option<String>,
    },
    /// One HTML page with all figures that come with the program.
    Report {
        /// The page.
        #[arg(long, value_name = "FILE", default_value = "mqfq-report.html")]
        out: PathBuf,
        /// Scenarios simulated at once, by default one per CPU.
        #[arg(long, value_parser = jobs)]
        jobs: Option<usize>,
        /// Fewer points and shorter times.
        #[arg(long)]
        quick: bool,
    },
    /// The figures, scenarios, machines, drives and applications that come with the program.
    List,
}

/// What can be measured.
#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Two saturating tenants with different request sizes, queue counts and weights: who gets what.
    Fairness {
        /// Through real NBD sockets instead of inside the workers.
        #[arg(long)]
        nbd: bool,
        /// Length of each measurement.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
        seconds: u64,
    },
    /// The fairness theorems over every interval of generated histories: the largest unfairness as a share of each
    /// bound.
    Bound {
        /// Folder for the picture.
        #[arg(long, default_value = ".")]
        out: PathBuf,
        /// Where chance begins; the same seed gives the same histories.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Multiplies the length or number of the histories.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
        scale: u64,
        /// Only the cases whose name begins with this.
        #[arg(long, value_name = "NAME")]
        case: Option<String>,
    },
    /// 4 KiB reads of a file in the page cache at depth 64, on one CPU: what the block layer and its policies cost,
    /// beside fio's io_uring engine.
    File {
        /// An existing file or block device, which is only read. Without it one is made in the temporary folder.
        #[arg(long, value_name = "PATH")]
        file: Option<PathBuf>,
        /// Bytes to read from, 64KiB to 1TiB; the default is all of PATH, or 256MiB if a file is made.
        #[arg(long, value_parser = file_size)]
        size: Option<u64>,
        /// How often each case is run.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
        rounds: u32,
        /// Length of each measurement.
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..=600_000))]
        milliseconds: u64,
    },
    /// Instructions that a scheduler adds to a request: the kernel's, in a QEMU guest that counts them, and ours. Says
    /// why where it cannot run.
    Elevators {
        /// A kernel package, unpacked (dpkg-deb -x): it has boot/vmlinuz-* and the modules.
        #[arg(long, value_name = "FOLDER")]
        kernel: Option<PathBuf>,
        /// Write FOLDER/HOST/DATE/elevators.{json,md}.
        #[arg(long, value_name = "FOLDER")]
        record: Option<PathBuf>,
        /// HOST in the record, if not the machine's own name.
        #[arg(long, requires = "record")]
        host: Option<String>,
    },
    /// The kernel's schedulers and ours on one block device, read by fio and by us. Root on Linux; says why where it
    /// cannot run.
    Kernel {
        /// A block device, which is only read. Without it a loop device over a file in memory is made.
        #[arg(long, value_name = "PATH")]
        device: Option<PathBuf>,
        /// How often each case is run.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
        rounds: u32,
        /// Length of each measurement.
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..=600_000))]
        milliseconds: u64,
        /// Write FOLDER/HOST/DATE/kernel.{json,md}.
        #[arg(long, value_name = "FOLDER")]
        record: Option<PathBuf>,
        /// HOST in the record, if not the machine's own name.
        #[arg(long, requires = "record")]
        host: Option<String>,
    },
    /// NBD requests per second at depth 1 and 32, beside nbdkit and qemu-storage-daemon.
    Nbd {
        /// How often each server is run.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
        rounds: u32,
        /// Length of each measurement.
        #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u64).range(100..=600_000))]
        milliseconds: u64,
        /// Write FOLDER/HOST/DATE/nbd.{json,md}.
        #[arg(long, value_name = "FOLDER")]
        record: Option<PathBuf>,
        /// HOST in the record, if not the machine's own name.
        #[arg(long, requires = "record")]
        host: Option<String>,
    },
    /// What each policy costs per request on one worker: nanoseconds, and instructions if valgrind is installed.
    Overhead {
        /// Interleaved rounds, of which the median counts.
        #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        rounds: u32,
        /// T of mqfq and mqfq-serial.
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(0..=1 << 30))]
        window_kib: u64,
        /// Each relaxation of mqfq alone, too.
        #[arg(long)]
        relaxations: bool,
        /// Do not count instructions.
        #[arg(long)]
        no_instructions: bool,
        /// Be what callgrind counts the instructions of, and print nothing.
        #[arg(long, hide = true)]
        probe: bool,
    },
    /// Requests per second of the null device with 1 to N workers, each flow on one worker and on all.
    Scale {
        /// N, by default one per CPU.
        #[arg(long, value_parser = workers)]
        workers: Option<usize>,
        /// Flows: of each worker where each has its own, in all where all share them. By default one per worker, and
        /// where all share them once a single one and once as many as workers.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
        flows: Option<u32>,
        /// How often each case is run.
        #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rounds: u32,
        /// Length of each measurement.
        #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=600_000))]
        milliseconds: u64,
        /// T of mqfq and mqfq-serial.
        #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(0..=1 << 30))]
        window_kib: u64,
        /// D for each worker; twice as many requests are kept in flight on each.
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
        depth: u16,
        /// Write in place of reading: the null device fills what is read with zeroes and does not look at what is
        /// written.
        #[arg(long)]
        writes: bool,
        /// Each relaxation of mqfq alone, too.
        #[arg(long)]
        relaxations: bool,
        /// Draw FOLDER/mqfq-scale.svg.
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// Write FOLDER/HOST/DATE/scale.{json,md,svg}.
        #[arg(long, value_name = "FOLDER")]
        record: Option<PathBuf>,
        /// HOST in the record, if not the machine's own name.
        #[arg(long, requires = "record")]
        host: Option<String>,
    },
    /// Figures 6, 7, 9 and 10 and Table 2 of the blk-mq paper on the null device of this machine: one queue under one
    /// lock, two levels of queues, and no block layer.
    Blkmq {
        /// Most workers; by default one per CPU.
        #[arg(long, value_parser = workers)]
        workers: Option<usize>,
        /// How often each case is run.
        #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rounds: u32,
        /// Length of each measurement.
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=600_000))]
        milliseconds: u64,
        /// Draw FOLDER/mqfq-blkmq.svg.
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// Write FOLDER/HOST/DATE/blkmq.{json,md,svg}.
        #[arg(long, value_name = "FOLDER")]
        record: Option<PathBuf>,
        /// HOST in the record, if not the machine's own name.
        #[arg(long, requires = "record")]
        host: Option<String>,
    },
    /// Which scheduler for which drive: latency, throughput, CPU time, energy and fairness of every policy, and the
    /// answer in three sentences.
    Schedulers {
        /// Run on this file or block device, by the clock; it is only read.
        #[arg(long, value_name = "PATH")]
        device: Option<PathBuf>,
        /// Write to the device, too. This destroys what is on it.
        #[arg(long, requires = "device", requires = "confirm_data_loss")]
        write: bool,
        /// What is on the device may be destroyed.
        #[arg(long, requires = "write")]
        confirm_data_loss: bool,
        /// A software drive: optane, zssd, flash-460k, flash-60k, nvmf-dram. May be repeated; by default the first two
        /// and flash-60k.
        #[arg(long, value_name = "NAME", conflicts_with = "device")]
        preset: Vec<String>,
        /// Fewer depths and requests.
        #[arg(long)]
        quick: bool,
        /// With --device: how often each cell is measured.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
        rounds: u32,
        /// With --device: length of each measurement.
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(20..=600_000))]
        milliseconds: u64,
        /// Without --device: what an instruction takes, 0.01 to 10 ns.
        #[arg(long, default_value_t = mqfq_bench::schedulers::NS_PER_INSTRUCTION, value_parser = ns_per_instruction)]
        ns_per_instruction: f64,
        /// Write schedulers.{json,md} and pictures into this folder.
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// Write the same into FOLDER/HOST/DATE.
        #[arg(long, value_name = "FOLDER")]
        record: Option<PathBuf>,
        /// HOST in the record, if not the machine's own name.
        #[arg(long, requires = "record")]
        host: Option<String>,
        /// Be what callgrind counts the instructions of, and print nothing.
        #[arg(long, hide = true)]
        probe: bool,
    },
    /// Fair queueing by the device (d2fq) beside fair queueing by the host and none: the paper's figures, instructions
    /// per request, a lone tenant's latency, and requests per second on this machine.
    D2fq {
        /// Fewer points and depths, shorter times.
        #[arg(long)]
        quick: bool,
        /// Without the simulator's figures.
        #[arg(long)]
        no_figures: bool,
        /// Rounds of what is measured by the clock; 0: none.
        #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(0..=1000))]
        rounds: u32,
        /// Length of each of these measurements.
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(20..=600_000))]
        milliseconds: u64,
        /// What an instruction takes for the lone tenant, 0.01 to 10 ns.
        #[arg(long, default_value_t = mqfq_bench::schedulers::NS_PER_INSTRUCTION, value_parser = ns_per_instruction)]
        ns_per_instruction: f64,
        /// Write d2fq.{json,md} and a picture of each figure into this folder.
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// Write the same into FOLDER/HOST/DATE.
        #[arg(long, value_name = "FOLDER")]
        record: Option<PathBuf>,
        /// HOST in the record, if not the machine's own name.
        #[arg(long, requires = "record")]
        host: Option<String>,
        /// Be what callgrind counts the instructions of, and print nothing.
        #[arg(long, hide = true)]
        probe: bool,
    },
    /// The shared structures alone, each beside its rivals: mindicator and array scan, token tree and counter and
    /// bitmap, throttle wheel and polling.
    Structures {
        /// Threads, each on a CPU of its own; otherwise 1, 2, 4 and so on, and one per CPU.
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
        workers: Option<u16>,
        /// Queues whose virtual time is kept; otherwise one per worker, 8, 64 and 1024.
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
        queues: Option<u16>,
        /// How often each measurement is made.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
        rounds: u32,
        /// Length of each measurement.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=600_000))]
        milliseconds: u64,
        /// Write FOLDER/structures.{json,md,svg}.
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
    },
    /// The cache lines that each policy moves per request, by where they come from: counted, on machines of 1 to 128
    /// workers.
    Transfers {
        /// Only the machines with so many workers or fewer.
        #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=128))]
        workers: u16,
    },
    /// What the simulator says of this machine beside what the machine does: shares and totals of ten scenarios of
    /// `fairness`, and requests per second as in `scale`.
    Validate {
        /// Most workers of the second part.
        #[arg(long, default_value_t = 2, value_parser = workers)]
        workers: usize,
        /// How often each case of the second part is run.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rounds: u32,
        /// Length of each of those measurements; shares are measured ten times as long.
        #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=60_000))]
        milliseconds: u64,
        /// Each relaxation of mqfq alone, too.
        #[arg(long)]
        relaxations: bool,
        /// Fail if a share is not within two percentage points, or a total not within 15%.
        #[arg(long)]
        check: bool,
        /// Draw FOLDER/mqfq-validate.svg.
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// Write FOLDER/HOST/DATE/validate.{json,md,svg}.
        #[arg(long, value_name = "FOLDER")]
        record: Option<PathBuf>,
        /// HOST in the record, if not the machine's own name.
        #[arg(long, requires = "record")]
        host: Option<String>,
    },
}

/// A number of simulations at once.
fn jobs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(jobs) if (1..=1024).contains(&jobs) => Ok(jobs),
        _ => Err(format!("{text} is not a number from 1 to 1024")),
    }
}

/// What an instruction takes.
fn ns_per_instruction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ns) if (0.01..=10.0).contains(&ns) => Ok(ns),
        _ => Err(format!("{text} is not a number from 0.01 to 10")),
    }
}

/// A number of workers.
fn workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(workers) if (1..=mqfq_bench::scale::WORKERS_MAX).contains(&workers) => Ok(workers),
        _ => Err(format!("{text} is not a number from 1 to {}", mqfq_bench::scale::WORKERS_MAX)),
    }
}

/// A size as in the config file.
fn file_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text).ok_or_else(|| format!("a size is {}", size::ALLOWED))?;
    if (64 << 10..=1 << 40).contains(&bytes) { Ok(bytes) } else { Err("allowed is 64KiB to 1TiB".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn json_may_stand_before_or_after_the_command() {
        for args in [["mqfq-lab", "--json", "sim", "list"], ["mqfq-lab", "sim", "list", "--json"]] {
            assert!(Cli::try_parse_from(args).unwrap().json);
        }
    }

    #[test]
    fn bad_arguments_are_one_sentence() {
        let refusal =
            |args: &[&str]| mqfq_report::command_line::sentence(&Cli::try_parse_from(args).unwrap_err(), "mqfq-lab");
        assert_eq!(
            refusal(&["mqfq-lab", "sim", "run"]),
            "the following required arguments were not provided: <SCENARIO>, see mqfq-lab --help"
        );
        assert_eq!(refusal(&["mqfq-lab", "dance"]), "unrecognized subcommand 'dance', see mqfq-lab --help");
    }
}
