//! The command line of the laboratory. The options of each command stand where it is.

use crate::sim::{FigureOptions, ReportOptions, RunOptions, TraceOptions};
use clap::{Args, Parser, Subcommand};
use mqfq_bench::{bound, clients, day, fairness, hostile, intake, kernel, library, overhead, price};
use mqfq_bench::{scale, schedulers, structures, transfers, validate};

/// The laboratory of mqfq: simulate machines and drives, and measure this one.
#[derive(Parser, Debug)]
#[command(name = "mqfq-lab", version)]
pub struct Cli {
    /// Print JSON on stdout: one object.
    #[arg(long, global = true)]
    pub json: bool,

    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Measure.
    #[command(subcommand)]
    Bench(Bench),
    /// `mqfq serve` with every policy: also mq-deadline, kyber, bfq, sfqd, mqfq-serial and d2fq. Arguments as there.
    Serve(Daemon),
    /// `mqfq check` with every policy. Arguments as there.
    Check(Daemon),
    /// A server's day: tenants come, change and go under fio that verifies, and each phase's shares are measured.
    Day(day::DayOptions),
    /// Processor time of a change of each kind, on servers of many tenants.
    Price(price::PriceOptions),
    /// 500 idle and 50 stuck clients, and mutated handshakes and requests, beside a tenant under fio that verifies.
    Hostile(hostile::HostileOptions),
    /// Simulate: the papers' figures, and machines that are not here. The same input gives the same numbers anywhere.
    #[command(subcommand)]
    Sim(Sim),
}

/// Arguments that the daemon reads itself.
#[derive(Args, Debug)]
pub struct Daemon {
    /// As of `mqfq`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<String>,
}

/// The subcommands of `sim`.
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

/// The subcommands of `bench`.
#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Two saturating tenants with different request sizes, queue counts and weights: who gets what.
    Fairness(fairness::FairnessOptions),
    /// The fairness theorems over every interval of generated histories: the largest unfairness as a share of each
    /// bound.
    Bound(bound::BoundOptions),
    /// Two tenants of weights 1:3 whose server's CPU is the bottleneck, by connections and request sizes: who gets
    /// what. Root; says why where it cannot run.
    Intake(intake::IntakeOptions),
    /// The kernel's schedulers and ours on one block device, read by fio and by us; with --file in the page cache; with
    /// --count the instructions that each adds to a request. Says why where it cannot run.
    Kernel(kernel::KernelOptions),
    /// Each front end beside other servers: requests per second, CPU time per request, latency.
    Clients(clients::ClientsOptions),
    /// The core's front door beside its parts, a heap and a round robin under a mutex: nanoseconds per request.
    Library(library::LibraryOptions),
    /// Cost of each policy per request on one worker: nanoseconds, and instructions if valgrind is installed.
    Overhead(overhead::OverheadOptions),
    /// Requests per second of the null device with 1 to N workers, each flow on one worker and on all; with --layers
    /// those of SQ, MQ and no block layer, as in the blk-mq paper.
    Scale(scale::ScaleOptions),
    /// Which scheduler for which drive: latency, throughput, CPU time, energy and fairness of every policy, and the
    /// answer in three sentences.
    Schedulers(schedulers::SchedulersOptions),
    /// The shared structures alone, each beside its rivals: mindicator and array scan, token tree and counter and
    /// bitmap, throttle wheel and polling.
    Structures(structures::StructuresOptions),
    /// The cache lines that each policy moves per request, by where they come from: counted, on machines of 1 to 128
    /// workers.
    Transfers(transfers::TransfersOptions),
    /// The simulator's prediction for this machine beside its measurement: shares and totals of ten scenarios of
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
