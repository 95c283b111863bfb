//! The command line of the laboratory. The options of each command stand where it is.

use crate::sim::{FigureOptions, ReportOptions, RunOptions, TraceOptions};
use clap::{Parser, Subcommand};
use mqfq_bench::{
    attach, blkmq, bound, d2fq, elevators, fairness, file, intake, kernel, nbd_record, overhead, scale, schedulers,
};
use mqfq_bench::{structures, transfers, validate};

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
    Figure(FigureOptions),
    /// One scenario: who got what, and what memory cost.
    Run(RunOptions),
    /// One HTML page with all figures that come with the program.
    Report(ReportOptions),
    /// A run of a real kernel under `scx_pmqfq`, drawn as a simulated one is.
    Trace(TraceOptions),
    /// The figures, scenarios, machines, drives and applications that come with the program.
    List,
}

/// What can be measured.
#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Two saturating tenants with different request sizes, queue counts and weights: who gets what.
    Fairness(fairness::FairnessOptions),
    /// The fairness theorems over every interval of generated histories: the largest unfairness as a share of each
    /// bound.
    Bound(bound::BoundOptions),
    /// 4 KiB reads of a file in the page cache at depth 64, on one CPU: what the block layer and its policies cost,
    /// beside fio's io_uring engine.
    File(file::FileBenchOptions),
    /// Instructions that a scheduler adds to a request: the kernel's, in a QEMU guest that counts them, and ours. Says
    /// why where it cannot run.
    Elevators(elevators::ElevatorsOptions),
    /// Two tenants of weights 1:3 whose server's CPU is the bottleneck, by connections and request sizes: who gets
    /// what. Root; says why where it cannot run.
    Intake(intake::IntakeOptions),
    /// The kernel's schedulers and ours on one block device, read by fio and by us. Root on Linux; says why where it
    /// cannot run.
    Kernel(kernel::KernelOptions),
    /// Each front end beside its best peers: requests per second, CPU time per request, latency.
    Attach(attach::AttachOptions),
    /// NBD requests per second at depth 1 and 32, beside nbdkit and qemu-storage-daemon.
    Nbd(nbd_record::NbdRecordOptions),
    /// What each policy costs per request on one worker: nanoseconds, and instructions if valgrind is installed.
    Overhead(overhead::OverheadOptions),
    /// Requests per second of the null device with 1 to N workers, each flow on one worker and on all.
    Scale(scale::ScaleOptions),
    /// Figures 6, 7, 9 and 10 and Table 2 of the blk-mq paper on the null device of this machine: one queue under one
    /// lock, two levels of queues, and no block layer.
    Blkmq(blkmq::BlkmqOptions),
    /// Which scheduler for which drive: latency, throughput, CPU time, energy and fairness of every policy, and the
    /// answer in three sentences.
    Schedulers(schedulers::SchedulersOptions),
    /// Fair queueing by the device (d2fq) beside fair queueing by the host and none: the paper's figures, instructions
    /// per request, a lone tenant's latency, and requests per second on this machine.
    D2fq(d2fq::D2fqBenchOptions),
    /// The shared structures alone, each beside its rivals: mindicator and array scan, token tree and counter and
    /// bitmap, throttle wheel and polling.
    Structures(structures::StructuresOptions),
    /// The cache lines that each policy moves per request, by where they come from: counted, on machines of 1 to 128
    /// workers.
    Transfers(transfers::TransfersOptions),
    /// What the simulator says of this machine beside what the machine does: shares and totals of ten scenarios of
    /// `fairness`, and requests per second as in `scale`.
    Validate(validate::ValidateOptions),
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
            "the following required arguments were not provided: <SCENARIO>, see mqfq-lab sim run --help"
        );
        assert_eq!(refusal(&["mqfq-lab", "dance"]), "unrecognized subcommand 'dance', see mqfq-lab --help");
    }
}
