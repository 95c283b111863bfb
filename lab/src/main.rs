//! The laboratory: the simulator and the measurements. It runs the product's source, and the product needs nothing of
//! it.
//!
//! Exit status: 0 done, 1 it could not be done (one sentence on stderr says why), 2 the command line makes no sense.

mod cli;
mod devices;
mod forms;
mod sim;

use cli::{Bench, Cli, Command, Sim};
use mqfq_bench::{bound, clients, day, fairness, hostile, intake, kernel, library, overhead, price};
use mqfq_bench::{scale, schedulers, structures, transfers, validate};
pub(crate) use mqfq_report::plain;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The daemon reads the whole command line, so that a server is replaced and started again by the words it was
    // started with.
    if std::env::args().nth(1).is_some_and(|command| command == "serve" || command == "check") {
        return mqfq_daemon::main_with(devices::ADDITIONS);
    }
    let cli = match mqfq_report::command_line::arguments::<Cli>("mqfq-lab") {
        Ok(cli) => cli,
        Err(sentence) => return fail(&sentence, 2),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => fail(&sentence, 1),
    }
}

fn run(cli: Cli) -> Result<(), String> {
    let json = cli.json;
    match cli.command {
        Command::Serve(_) | Command::Check(_) => {
            Err("the command comes first, allowed is cargo lab serve CONFIG".into())
        }
        Command::Bench(bench) => match bench {
            Bench::Fairness(options) => fairness::run(&options, json),
            Bench::Bound(options) => bound::run(&options, json),
            Bench::Intake(options) => intake::run(&options, json),
            Bench::Kernel(options) => kernel::run(&options, json),
            Bench::Clients(options) => clients::run(&options, json),
            Bench::Library(options) => library::run(&options, json),
            Bench::Overhead(options) => overhead::run(&options, json),
            Bench::Scale(options) => scale::run(&options, json),
            Bench::Schedulers(options) => schedulers::study::run(&options, json),
            Bench::Structures(options) => structures::run(&options, json),
            Bench::Transfers(options) => transfers::run(&options, json),
            Bench::Validate(options) => validate::run(&options, json),
        },
        Command::Day(options) => day::run(&options, json),
        Command::Price(options) => price::run(&options, json),
        Command::Hostile(options) => hostile::run(&options, json),
        Command::Sim(sim) => match sim {
            Sim::Figure(options) => sim::figure(&options, json),
            Sim::Run(options) => sim::run(&options, json),
            Sim::Report(options) => sim::report(&options, json),
            Sim::Trace(options) => sim::trace(&options, json),
            Sim::List => sim::list(json),
        },
    }
}

fn fail(sentence: &str, status: u8) -> ExitCode {
    eprintln!("mqfq-lab: {sentence}");
    ExitCode::from(status)
}
