//! All of the one binary but its first line: reads the command line and runs the named command.
//!
//! A library, so that the simulation of the whole server (`lab/vopr`) runs the reconciler that ships.
//!
//! Exit status: 0 done, 1 it could not be done (one sentence on stderr says why), 2 the command line makes no sense.
//! `serve` ends as by the signal if SIGTERM or SIGINT comes before it is ready.

mod calibrate;
mod cli;
pub mod config;
pub mod control;
pub mod device_errors;
mod devices;
mod examples;
mod files;
mod heap;
mod in_force;
pub mod live;
mod live_demo;
pub mod log_format;
pub mod output;
pub mod ownership;
mod privilege;
pub mod reconcile;
mod report;
mod serve;
mod signals;
mod systemd;
mod trace;
pub mod upgrade;
pub mod watch;

use clap::CommandFactory;
use cli::{Cli, Command};
use config::Additions;
use mqfq_blk::Registry;
use mqfq_control::ctl::command_line::CtlRequest;
use mqfq_demo::demo::{self, DemoOptions};
use mqfq_demo::on_drive::{self, DriveOptions};
use mqfq_observe::top::run::TopOptions;
use std::process::ExitCode;

/// The process that ships: its status.
pub fn main() -> ExitCode {
    main_with(Additions::policies(Registry::PRODUCT))
}

/// [`main`] with other policies and kinds of device that configs may name: the laboratory's process has more.
pub fn main_with(additions: Additions) -> ExitCode {
    config::extend(additions);
    mqfq_control::ctl::shell::complete(Cli::command);
    let cli = match mqfq_report::command_line::arguments_of::<Cli>(examples::teach(Cli::command()), "mqfq") {
        Ok(cli) => cli,
        Err(sentence) => return output::fail(&sentence, 2),
    };
    if let Command::Serve { config, replace, discard_unsaved, stats, trace, trace_requests, log_format } = cli.command {
        let (json, print_stats) = (cli.json, stats);
        let options = serve::ServeOptions {
            config,
            replace,
            discard_unsaved,
            json,
            log_format,
            print_stats,
            trace,
            trace_requests,
        };
        return serve::serve(&options);
    }
    end_where_nobody_reads();
    if let Command::Ctl(cli::Ctl(asked)) = &cli.command {
        // As in diff(1): 0 the same, 1 different, 2 unknown.
        let failed = if asked.asked == CtlRequest::Diff { 2 } else { 1 };
        return match mqfq_control::ctl::run(asked, cli.json) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(1),
            Err(sentence) => output::fail(&sentence, failed),
        };
    }
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => output::fail(&sentence, 1),
    }
}

fn run(cli: Cli) -> Result<(), String> {
    let json = cli.json;
    match cli.command {
        Command::Serve { .. } => unreachable!("main has its own way to serve"),
        Command::Check { config } => serve::check(&config, json),
        Command::Calibrate(options) => calibrate::calibrate(&options, json),
        Command::Top { server, record, replay } => {
            mqfq_observe::top::run::top(&TopOptions { client: server.client()?, record, replay })
        }
        Command::Page { server, port, no_open } => mqfq_control::proxy::serve(&server.client()?, port, !no_open),
        Command::Ctl(_) => unreachable!("main has its own way to end"),
        Command::Completions { shell } => {
            mqfq_report::print_line(mqfq_control::ctl::shell::script(&shell, "mqfq")?.trim_end())
        }
        Command::Man { folder } => mqfq_control::ctl::shell::man(Cli::command(), examples::of, &folder),
        Command::Demo { live: true, .. } => live_demo::run(),
        Command::Demo { device: Some(path), out, .. } => {
            on_drive::run(&DriveOptions { json, out, ..DriveOptions::new(path) })
        }
        Command::Demo { out, .. } => demo::run(&DemoOptions { json, out, ..DemoOptions::default() }),
    }
}

/// `print!` panics if stdout is a pipe without a reader (`mqfq demo | head -1`) or a full disk. For a command that
/// prints and ends, that is the end, with a sentence and a status; not a bug with a backtrace.
///
/// The other way is SIGPIPE's default action, which would also end a command whose sockets or helpers close while it
/// writes to them.
fn end_where_nobody_reads() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // The standard library's own words; the sentence goes on with the stream and why.
        match panic.payload_as_str().and_then(|message| message.strip_prefix("failed printing to ")) {
            Some(rest) => {
                output::fail(&format!("cannot write to {rest}"), 1);
                std::process::exit(1);
            }
            None => others(panic),
        }
    }));
}
