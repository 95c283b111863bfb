//! A program's arguments, or one sentence.

use crate::plain;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, FromArgMatches, Parser};

/// The arguments of this process. Help and version are printed and end the process; bad arguments are an error.
///
/// # Errors
/// One sentence, which ends with how to get the help of the program `name`.
pub fn arguments<C: Parser>(name: &str) -> Result<C, String> {
    arguments_of(C::command(), name)
}

/// As [`arguments`], by `command`, which is that of `C` with more help.
///
/// # Errors
/// As of [`arguments`].
pub fn arguments_of<C: FromArgMatches>(mut command: Command, name: &str) -> Result<C, String> {
    let read = command.try_get_matches_from_mut(std::env::args_os()).and_then(|matches| C::from_arg_matches(&matches));
    read.map_err(|error| error.format(&mut command)).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            match error.print() {
                Ok(()) => std::process::exit(error.exit_code()),
                Err(why) => format!("cannot write to stdout: {}", plain(&why)),
            }
        }
        _ => sentence(&error, name),
    })
}

/// Clap's first paragraph as one line, and what it thinks was meant; the rest repeats the usage, of which the command
/// remains: its `--help` has the rest.
pub fn sentence(error: &clap::Error, name: &str) -> String {
    let text = error.to_string();
    let paragraph: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ");
    let usage = text.lines().find_map(|line| line.trim().strip_prefix("Usage: "));
    let is_word = |part: &&str| part.starts_with(|first: char| first.is_ascii_lowercase());
    // The program is called as it was started, and here by its name.
    let words = usage.into_iter().flat_map(|usage| usage.split(' ').skip(1).take_while(is_word));
    let command: Vec<&str> = [name].into_iter().chain(words).collect();
    let paragraph = paragraph.strip_prefix("error: ").unwrap_or(&paragraph);
    let meant = meant(error).map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    format!("{paragraph}, see {} --help{meant}", command.join(" "))
}

/// The nearest of what clap suggests, which it names last.
fn meant(error: &clap::Error) -> Option<&str> {
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    kinds.iter().find_map(|kind| match error.get(*kind)? {
        ContextValue::String(text) => Some(text.as_str()),
        ContextValue::Strings(texts) => texts.last().map(String::as_str),
        _ => None,
    })
}
