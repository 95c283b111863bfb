//! The one binary: reads the command line and runs what it names.
//!
//! Exit status: 0 done, 1 it could not be done (one sentence on stderr says why), 2 the command line makes no sense.

mod cli;
mod config;
mod connection_log;
mod devices;
mod reload;
mod report;
mod serve;
mod signals;
mod takeover;
mod trace;
mod trouble;
mod watch;

use cli::{Cli, Command};
use mqfq_demo::demo::{self, DemoOptions};
pub(crate) use mqfq_report::plain;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::from_args() {
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
        Command::Serve { config, stats, trace, trace_requests } => {
            serve::serve(&serve::ServeOptions { config, json, print_stats: stats, trace, trace_requests })
        }
        Command::Check { config } => serve::check(&config, json),
        Command::Demo { out } => demo::run(&DemoOptions { json, out, ..DemoOptions::default() }),
    }
}

fn fail(sentence: &str, status: u8) -> ExitCode {
    eprintln!("mqfq: {sentence}");
    ExitCode::from(status)
}
