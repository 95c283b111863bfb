//! Options of a start, and reasons for which a server does not start or ends.

use crate::log_format::LogFormat;
use crate::output::Output;
use crate::signals::Signals;
use std::path::PathBuf;

/// How a server runs, besides what its config says.
pub struct ServeOptions {
    /// The config.
    pub config: PathBuf,
    /// It takes the place of the server that runs.
    pub replace: bool,
    /// Changes that the server which runs has, and its config file does not, may be lost.
    pub discard_unsaved: bool,
    /// JSON on stdout.
    pub json: bool,
    /// The form of sentences on stderr.
    pub log_format: LogFormat,
    /// Print the counters at the end.
    pub print_stats: bool,
    /// Where a trace is written.
    pub trace: PathBuf,
    /// Requests that it keeps of each worker on each device.
    pub trace_requests: usize,
}

/// The reasons why a server ends or does not start, besides a request to end.
pub(super) enum Failure {
    /// One sentence: the config, a device, a socket, or clients that did not let it drain in time.
    Sentence(String),
    /// SIGTERM or SIGINT came before it was ready.
    Interrupted,
}

impl From<String> for Failure {
    fn from(sentence: String) -> Failure {
        Failure::Sentence(sentence)
    }
}

/// Looks between two steps whether the start is to go on.
pub(super) type GoOn<'a> = &'a dyn Fn() -> Result<(), Failure>;

/// Parts that each step of a start reads.
#[derive(Clone, Copy)]
pub(super) struct Start<'a> {
    pub options: &'a ServeOptions,
    pub signals: &'a Signals,
    pub output: &'a Output,
}

impl Start<'_> {
    /// Looks between two steps whether the start is to go on.
    pub fn go_on(&self) -> Result<(), Failure> {
        if self.signals.stop_is_pending() { Err(Failure::Interrupted) } else { Ok(()) }
    }
}
