//! fio's iolog, versions 2 and 3.
//!
//! Source: fio's manual, "Trace file format"; and for what it does not say, `iolog.c` of fio 3.33. Fields are separated
//! by blanks, so no file name may hold one.
//!
//! ```text
//!   version 2             FILE add|open|close              no time: requests are played as fast as the depth allows,
//!                         FILE ACTION OFFSET LENGTH        "wait OFFSET 0" holds the later ones back
//!   version 3    TIME     FILE add|open|close              TIME: microseconds since the trace began
//!                TIME     FILE ACTION OFFSET LENGTH
//! ```
//!
//! | action | here |
//! |---|---|
//! | `read`, `write` | played |
//! | `sync`, `datasync`, `sync_file_range`, `syncfs`, `trim` | passed over |
//! | `add`, `open`, `close` | checked for order, as the manual asks: `add` before `open` before I/O |
//! | `wait` | version 2: the manual has "wait for OFFSET microseconds, everything below 100 is discarded, relative to the previous wait"; version 3 does not allow it |
//! | others | refused (fio prints a message and passes them over) |

use super::{Recording, TraceError, number};
use std::collections::BTreeMap;

/// The version of the format, from the first line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    /// Since fio 1.17.
    Two,
    /// Since fio 3.31.
    Three,
}

/// Waits shorter than this are discarded, microseconds.
const WAIT_MIN_US: u64 = 100;

/// Actions on a file.
const ON_FILES: &str = "add, open, close";

#[derive(Clone, Copy, PartialEq, Eq)]
enum File {
    Added,
    Open,
}

pub(super) fn parse(text: &str, version: Version, recording: &mut Recording) -> Result<(), TraceError> {
    let mut files: BTreeMap<&str, File> = BTreeMap::new();
    let (mut waited_us, mut header) = (0u64, true);
    for (index, text) in text.lines().enumerate() {
        let line = index + 1;
        let refuse = |message: String| Err(TraceError { line, message });
        let mut fields: Vec<&str> = text.split_ascii_whitespace().collect();
        if fields.is_empty() {
            continue;
        }
        if std::mem::take(&mut header) {
            continue;
        }
        let mut time_us = waited_us;
        if version == Version::Three {
            time_us = number(line, "the time", fields.remove(0))?;
        }
        match fields[..] {
            [file, action] => match (action, files.get(file)) {
                ("add", _) | ("close", Some(File::Open)) => _ = files.insert(file, File::Added),
                ("open", Some(_)) => _ = files.insert(file, File::Open),
                ("open", None) => return refuse(format!("{file} is opened, allowed is after add")),
                ("close", _) => return refuse(format!("{file} is closed, allowed is after open")),
                _ => return refuse(format!("the action {action:?} is not known, allowed for a file are {ON_FILES}")),
            },
            [file, action, offset, length] => {
                let (offset, length) = (number(line, "the offset", offset)?, number(line, "the length", length)?);
                match action {
                    "wait" if version == Version::Three => {
                        return refuse("the action wait, allowed is in version 2 only".into());
                    }
                    "wait" if offset < WAIT_MIN_US => {}
                    "wait" => waited_us = waited_us.saturating_add(offset),
                    "read" | "write" if files.get(file) != Some(&File::Open) => {
                        return refuse(format!("a {action} of {file}, allowed is after add and open"));
                    }
                    "read" | "write" => {
                        recording.add(line, time_us.saturating_mul(1000), action == "write", offset, length)?;
                    }
                    "sync" | "datasync" | "sync_file_range" | "syncfs" | "trim" => {}
                    _ => {
                        return refuse(format!(
                            "the action {action:?} is not known, allowed are read, write, sync, datasync, sync_file_range, syncfs, trim, wait"
                        ));
                    }
                }
            }
            _ => {
                let shape = if version == Version::Three { "TIME FILE ACTION" } else { "FILE ACTION" };
                return refuse(format!(
                    "{} fields do not fit here, allowed is \"{shape}\" or \"{shape} OFFSET LENGTH\"",
                    text.split_ascii_whitespace().count()
                ));
            }
        }
    }
    Ok(())
}
