//! A report as one line of JSON, and an error of the system as words.

use serde::Serialize;
use std::io;

/// A report as the one line that `--json` prints.
///
/// # Errors
/// One sentence: a value that JSON cannot hold.
pub fn json(report: &impl Serialize) -> Result<String, String> {
    serde_json::to_string(report).map_err(|error| format!("cannot write JSON: {error}"))
}

/// An operating system's error as words: without the number that Rust adds, which says nothing to a user.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.rfind(" (os error ").map_or(text.clone(), |end| text[..end].to_owned())
}
