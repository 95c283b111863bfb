//! `mqfq serve` and `mqfq check`: from a config to running listeners, and to an orderly end.
//!
//! ```text
//!  config ─▶ plan ─▶ devices, export tables ─▶ listeners bound ─▶ engine ─▶ ready ─▶ signals ─▶ drain ─▶ end
//!           └─ check ends here ──────────┘    └ nothing is touched before this point
//! ```
//! With `--json` each thing that happens is one object on a line of its own: `{"ready":true,…}`, then the counters
//! (`{"devices":…}`) for each SIGUSR1, `{"tracing":…}` for each SIGUSR2, `{"reloaded":…}` for each SIGHUP,
//! `{"draining":true}`, and the counters once more with `--stats`.
//!
//! | file | step |
//! |---|---|
//! | `options` | with what is it started, and why may it not start? |
//! | `prepare` | the config is read, devices are opened |
//! | `bind` | sockets are bound |
//! | `records` | files beside the config are opened, rights are given up |
//! | `working` | the engine starts |
//! | `take_over` | another server's place is taken |
//! | `ready` | what was found is reported |
//! | `run`, `tracing` | signals are obeyed, clients drain |
//! | `check` | what would be refused? |

mod bind;
mod check;
mod options;
mod prepare;
mod ready;
mod records;
mod run;
mod take_over;
#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
mod tracing;
mod working;

pub use check::check;
pub use options::ServeOptions;

use crate::log_format::{About, Level};
use crate::output::{self, LAST_LINES_WAIT, Output};
use crate::signals::Signals;
use crate::upgrade::Received;
use mqfq_blk::engine::Settled;
use options::{Failure, Start};
use records::Records;
use run::Server;
use std::process::ExitCode;

/// Runs a server until a signal ends it; its exit status. What there is to say was said.
pub fn serve(options: &ServeOptions) -> ExitCode {
    crate::heap::bound();
    // Before any thread exists: they inherit the mask.
    let signals = Signals::block();
    let output = match Output::of_server(options.json, options.log_format) {
        Ok(output) => output,
        Err(sentence) => return output::fail(&sentence, 1),
    };
    output.end_process_on_panic();
    let result = serve_until_asked(options, &signals, &output);
    match &result {
        Ok(()) => {}
        Err(Failure::Sentence(sentence)) => output.say(Level::Error, About::default(), sentence),
        Err(Failure::Interrupted) => output.note("a signal ended it before it was ready"),
    }
    output.finish(Some(LAST_LINES_WAIT));
    if matches!(result, Err(Failure::Interrupted)) {
        // It is still pending: this ends the process as if it had not been blocked, now that nothing is left behind.
        signals.stop_waits_no_longer();
    }
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn serve_until_asked(options: &ServeOptions, signals: &Signals, output: &Output) -> Result<(), Failure> {
    let mut received = Received::default();
    let result = start_and_serve(Start { options, signals, output }, &mut received);
    match &result {
        Err(Failure::Sentence(sentence)) => received.give_up(sentence),
        Err(Failure::Interrupted) => received.give_up("a signal ended the new process"),
        Ok(()) => {}
    }
    result
}

fn start_and_serve(start: Start<'_>, received: &mut Received) -> Result<(), Failure> {
    let (prepared, activated) = prepare::prepare(start, received)?;
    let mut bound = bind::bind(start, &prepared, received, &activated)?;
    let records = Records::open(start, &prepared)?;
    records::give_up_rights(start, &prepared, &bound.trust)?;
    let working = working::start_engine(start, &prepared)?;
    let engine = working.engine.clone();
    let mut taken = take_over::take_over(start, &prepared, &activated, &mut bound, records, &working, received)?;
    let addresses: Vec<String> = taken.listeners.iter().map(|listener| listener.address()).collect();
    let committed = take_over::commit(start, &bound, &engine, &taken, received)?;
    taken.attach(&engine, &bound.taken);
    let settled: Vec<Settled> = (0..prepared.devices.len()).map(|device| engine.settled(device)).collect();
    prepared.say_settled(&settled, start.output);
    prepared.say(true, &addresses, &settled, committed.replaced.as_ref(), start.output);
    let mut server = Server::new(start, prepared, &mut bound, working, taken, committed)?;
    server.say_ready();
    // After it: systemd's queue is short.
    let notes = start.output.clone();
    received.forget(move |sentence| notes.note(sentence));
    server.run();
    server.end()
}
