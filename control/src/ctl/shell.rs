//! What does a shell complete, and what do the man pages say?
//!
//! Completion asks the program itself at each press of the key (clap_complete's dynamic engine), so it knows all flags,
//! and names from the server that runs. A server that does not answer at once completes nothing.

use crate::client::{Address, Client};
use crate::ctl::command_line::{DEFAULT_SOCKET, SOCKET_VARIABLE};
use crate::ctl::names;
use crate::model::Kind;
use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

/// Someone waits at a prompt.
const PATIENCE: Duration = Duration::from_millis(500);

/// The environment variable by which a shell's script asks for completions.
const VARIABLE: &str = "COMPLETE";

/// A positional NAME of a thing of this kind.
pub(super) fn name(kind: Kind, help: &'static str) -> Arg {
    let complete = ArgValueCompleter::new(move |begun: &OsStr| live(kind, begun));
    Arg::new("name").value_name("NAME").help(help).add(complete)
}

/// Names that begin so, of the server that the command line or the environment names.
fn live(kind: Kind, begun: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<String> = std::env::args().collect();
    let flag = words.iter().skip_while(|word| *word != "--socket").nth(1).cloned();
    let flag = flag.or(words.iter().find_map(|word| word.strip_prefix("--socket=").map(str::to_owned)));
    let socket = flag.or(std::env::var(SOCKET_VARIABLE).ok()).unwrap_or(DEFAULT_SOCKET.to_owned());
    let Ok(address) = Address::parse(&socket) else { return Vec::new() };
    let client = Client { address, token: None, trust: None, patience: Some(PATIENCE) };
    let begun = begun.to_string_lossy();
    let names = names(&client, kind).unwrap_or_default().into_iter().filter(|name| name.starts_with(&*begun));
    names.map(CompletionCandidate::new).collect()
}

/// If a shell asks for completions of `command`, answers and ends the process.
pub fn complete(command: fn() -> Command) {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// The script that teaches `shell` to complete the program called `name`.
///
/// # Errors
/// One sentence: another shell.
pub fn script(shell: &str, name: &str) -> Result<String, String> {
    let shells = Shells::builtins();
    let completer = shells.completer(shell).ok_or_else(|| {
        let known: Vec<&str> = shells.names().collect();
        format!("{shell:?} is no shell that is known, allowed are {}", known.join(", "))
    })?;
    let mut script = Vec::new();
    let written = completer.write_registration(VARIABLE, name, name, name, &mut script);
    written.map_err(|error| format!("cannot write the script: {}", mqfq_report::plain(&error)))?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// Writes the man pages of `command` and of each command in it to `folder`, which is made.
///
/// # Errors
/// One sentence: a file that cannot be written.
pub fn man(command: Command, folder: &Path) -> Result<(), String> {
    let failed = |error| format!("cannot write man pages to {}: {}", folder.display(), mqfq_report::plain(&error));
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(command, folder).map_err(failed)
}
