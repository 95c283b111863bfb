//! Completion in a shell, and man pages.
//!
//! Completion asks the program itself at each press of the key (clap_complete's dynamic engine), so it knows all flags,
//! and names from the server that runs. A server that does not answer at once completes nothing.

use crate::client::{Address, Ask, Client};
use crate::ctl::command_line::{DEFAULT_SOCKET, SOCKET_VARIABLE};
use crate::model::{Kind, ThingList};
use axum::http::Method;
use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use clap_mangen::roff::{Roff, roman};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
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

/// Names of the things of a kind.
///
/// # Errors
/// One sentence.
fn names(client: &Client, kind: Kind) -> Result<Vec<String>, String> {
    let reply = client.ask(Ask::new(Method::GET, format!("/v1/{}", kind.plural())))?;
    Ok(reply.json::<ThingList>()?.things.into_iter().map(|thing| thing.name).collect())
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

/// Lines as one types them and the exit status, of the command with a path.
pub type Examples = fn(&str) -> Option<(&'static [&'static str], &'static str)>;

/// Writes the man pages of `command` and of each command in it to `folder`, which is made, with `examples`.
///
/// # Errors
/// One sentence: a file that cannot be written.
pub fn man(command: Command, examples: Examples, folder: &Path) -> Result<(), String> {
    let failed = |error| format!("cannot write man pages to {}: {}", folder.display(), mqfq_report::plain(&error));
    std::fs::create_dir_all(folder).map_err(failed)?;
    let paths = paths(&command, "");
    clap_mangen::generate_to(command.clone(), folder).map_err(failed)?;
    for (path, (lines, status)) in paths.iter().filter_map(|path| Some((path, examples(path)?))) {
        let page = folder.join(format!("{}-{}.1", command.get_name(), path.replace(' ', "-")));
        let mut end = Roff::new();
        end.control("SH", ["EXIT STATUS"]).text([roman(status)]).control("SH", ["EXAMPLES"]).control("nf", []);
        for line in lines {
            end.text([roman(*line)]);
        }
        end.control("fi", []);
        let append = |mut file: File| file.write_all(end.render().as_bytes());
        File::options().append(true).open(&page).and_then(append).map_err(failed)?;
    }
    Ok(())
}

/// Paths of all commands in `command`, such as `ctl tenant set`.
fn paths(command: &Command, path: &str) -> Vec<String> {
    let of = |inner: &Command| {
        let path = format!("{path} {}", inner.get_name()).trim_start().to_owned();
        [vec![path.clone()], paths(inner, &path)].concat()
    };
    command.get_subcommands().flat_map(of).collect()
}
