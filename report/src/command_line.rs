//! A program's arguments, or one sentence.

use crate::plain;
use clap::Parser;
use clap::error::ErrorKind;

/// The arguments of this process. Help and version are printed and end the process; bad arguments are an error.
///
/// # Errors
/// One sentence, which ends with how to get the help of the program `name`.
pub fn arguments<C: Parser>(name: &str) -> Result<C, String> {
    C::try_parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            match error.print() {
                Ok(()) => std::process::exit(error.exit_code()),
                Err(why) => format!("cannot write to stdout: {}", plain(&why)),
            }
        }
        _ => sentence(&error, name),
    })
}

/// Clap's first paragraph as one line; the rest repeats the usage, which `--help` has.
pub fn sentence(error: &clap::Error, name: &str) -> String {
    let text = error.to_string();
    let paragraph: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ");
    format!("{}, see {name} --help", paragraph.strip_prefix("error: ").unwrap_or(&paragraph))
}
