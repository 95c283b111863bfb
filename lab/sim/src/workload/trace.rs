//! Recorded traces, by content: fio's iolog (versions 2 and 3) and what blkparse prints by default.
//!
//! Only reads and writes are played. What else a trace holds (flushes, trims) is passed over, since the simulated
//! tenants only read and write. A line that the format does not have is refused with its number: a trace that lost a
//! tenth of its requests to a misunderstanding looks just like one that did not.
//!
//! Offsets are bytes of the device, for every file that a trace names (fio's `replay_redirect` does the same).

#[cfg(test)]
mod tests;

use mqfq_nvme_watched::presets::{BLOCK_BYTES, TRANSFER_BYTES_MAX};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A request of a recorded trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceRequest {
    /// From the start of the trace.
    pub at_ns: u64,
    /// A write; otherwise a read.
    pub is_write: bool,
    /// First byte.
    pub offset_bytes: u64,
    /// Length.
    pub length_bytes: u32,
}

/// A recorded trace, shared by the threads that play it and by the scenarios of a sweep.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    /// In the order of their times.
    pub requests: Arc<[TraceRequest]>,
    /// Each has its time. Otherwise times are only the earliest ones (fio's version 2 knows nothing but waits), and
    /// requests are asked for as the depth allows.
    pub timed: bool,
}

/// A trace that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceError {
    /// Line, 1-based.
    pub line: usize,
    /// Fault, and allowed values.
    pub message: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.message)
    }
}

impl std::error::Error for TraceError {}

/// The requests in `text`, for a device of so many bytes.
///
/// # Errors
/// The first line that is wrong, or a trace without any read or write.
pub fn parse(text: &str, device_size_bytes: u64) -> Result<Trace, TraceError> {
    let mut recording = Recording { requests: Vec::new(), device_size_bytes };
    let first = text.lines().position(|line| !line.trim().is_empty());
    let first_line = first.and_then(|index| text.lines().nth(index)).unwrap_or("").trim();
    let timed = if let Some(version) = first_line.strip_prefix("fio version ") {
        let version = match version {
            "2 iolog" => Version::Two,
            "3 iolog" => Version::Three,
            other => {
                let message = format!("fio version {other:?} is not known, allowed are \"2 iolog\" and \"3 iolog\"");
                return Err(TraceError { line: first.unwrap_or(0) + 1, message });
            }
        };
        parse_iolog(text, version, &mut recording)?;
        version == Version::Three
    } else if is_event(first_line) {
        parse_blktrace(text, &mut recording)?;
        true
    } else {
        let message =
            "this is no trace, allowed are fio's iolog (\"fio version 2 iolog\", or 3) and what blkparse prints";
        return Err(TraceError { line: first.unwrap_or(0) + 1, message: message.into() });
    };
    if recording.requests.is_empty() {
        return Err(TraceError { line: text.lines().count().max(1), message: "no read or write up to here".into() });
    }
    Ok(Trace { requests: recording.requests.into(), timed })
}

struct Recording {
    requests: Vec<TraceRequest>,
    device_size_bytes: u64,
}

impl Recording {
    /// Takes in a request that stands in `line`. Its time is at least that of the one before: traces of several writers
    /// are not quite in order.
    fn add(
        &mut self,
        line: usize,
        at_ns: u64,
        is_write: bool,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<(), TraceError> {
        let refuse = |message| Err(TraceError { line, message });
        if length_bytes == 0 || length_bytes > u64::from(TRANSFER_BYTES_MAX) {
            return refuse(format!(
                "a length of {length_bytes} bytes, allowed is {BLOCK_BYTES} to {TRANSFER_BYTES_MAX}"
            ));
        }
        let block = u64::from(BLOCK_BYTES);
        if !offset_bytes.is_multiple_of(block) || !length_bytes.is_multiple_of(block) {
            return refuse(format!(
                "{length_bytes} bytes at {offset_bytes} are no whole blocks, allowed are multiples of {BLOCK_BYTES}"
            ));
        }
        let device = self.device_size_bytes;
        if offset_bytes.checked_add(length_bytes).is_none_or(|end| end > device) {
            return refuse(format!(
                "{length_bytes} bytes at {offset_bytes} end past the device, allowed is up to byte {device}"
            ));
        }
        let at_ns = self.requests.last().map_or(0, |last| last.at_ns).max(at_ns);
        self.requests.push(TraceRequest { at_ns, is_write, offset_bytes, length_bytes: length_bytes as u32 });
        Ok(())
    }
}

/// The number in `text`, which line `line` calls `what`. No sign, no radix.
fn number(line: usize, what: &str, text: &str) -> Result<u64, TraceError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().ok_or_else(|| TraceError {
        line,
        message: format!("{what} {text:?} is no number, allowed is 0 to {}", u64::MAX),
    })
}

// fio's iolog, versions 2 and 3.
//
// Source: fio's manual, "Trace file format"; and for what it does not say, `iolog.c` of fio 3.33. Fields are separated
// by blanks, so no file name may hold one.
//
// ```text
//   version 2             FILE add|open|close              no time: requests are played as fast as the depth allows,
//                         FILE ACTION OFFSET LENGTH        "wait OFFSET 0" holds the later ones back
//   version 3    TIME     FILE add|open|close              TIME: microseconds since the trace began
//                TIME     FILE ACTION OFFSET LENGTH
// ```
//
// | action | here |
// |---|---|
// | `read`, `write` | played |
// | `sync`, `datasync`, `sync_file_range`, `syncfs`, `trim` | passed over |
// | `add`, `open`, `close` | checked for order, as the manual asks: `add` before `open` before I/O |
// | `wait` | version 2: the manual has "wait for OFFSET microseconds, everything below 100 is discarded, relative to the previous wait"; version 3 does not allow it |
// | others | refused (fio prints a message and passes them over) |

/// The version of the format, from the first line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
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

fn parse_iolog(text: &str, version: Version, recording: &mut Recording) -> Result<(), TraceError> {
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

// Default output of blkparse: one line for each event of the block layer.
//
// Source: blkparse(1), "DEFAULT OUTPUT": the header `"%D %2c %8s %5T.%9t %5p %2a %3d"` (device, CPU, number,
// seconds.nanoseconds, process, action, what kind of request), then for a queued request `"%S + %N [%C]"` (sector,
// sectors, command).
//
// ```text
//     8,0    1       17     0.001452301  2187  Q  WS 35682200 + 8 [jbd2/sda1-8]
// ```
//
// # Which events
// `Q`, a request that was queued. `D`, one that was issued to the driver, comes after the traced machine's own
// scheduler and its merging: its times say when that scheduler and that device let the request go, and here another
// scheduler decides. What was asked for, and when, is in the `Q` events. A trace of `D` events alone (`blktrace -a
// issue`) has none and is refused as empty.
//
// Every other action is passed over. `Q` counts each request once, also one that came through a partition, if the
// trace is of one device; a trace of several (a disk and the volume on it, say) holds requests twice, so a second
// device's `Q` is refused.
//
// The letters of the kind: `R` read, `W` write; `D` (discard), `F` or `N` alone (flush, none) are passed over; the
// rest says how (`S` synchronous, `M` metadata, `A` read-ahead, `F` flush before or FUA after the letter).
//
// The summary at the end begins with `CPU0 (` or `Total (`; nothing after that is read.

/// Bytes of a sector of the block layer, whatever the device.
const SECTOR_BYTES: u64 = 512;

/// Fields before the sector.
const HEADER: usize = 7;

/// The line looks like an event: "MAJOR,MINOR CPU NUMBER SECONDS.NANOSECONDS ...".
fn is_event(line: &str) -> bool {
    let fields: Vec<&str> = line.split_ascii_whitespace().take(4).collect();
    let [device, cpu, sequence, time] = fields[..] else { return false };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let pair = |text: &str, by| text.split_once(by).is_some_and(|(a, b)| digits(a) && digits(b));
    pair(device, ',') && digits(cpu) && digits(sequence) && pair(time, '.')
}

fn parse_blktrace(text: &str, recording: &mut Recording) -> Result<(), TraceError> {
    let mut device = None;
    let mut first_ns = None;
    for (index, text) in text.lines().enumerate() {
        let line = index + 1;
        let refuse = |message: String| Err(TraceError { line, message });
        let trimmed = text.trim_start();
        if trimmed.is_empty() {
            continue;
        }
        if trimmed.starts_with("CPU") || trimmed.starts_with("Total (") {
            break;
        }
        if !is_event(trimmed) {
            return refuse(
                "this is no event, allowed is \"MAJOR,MINOR CPU NUMBER SECONDS.NANOSECONDS PID ACTION ...\"".into(),
            );
        }
        let fields: Vec<&str> = trimmed.split_ascii_whitespace().collect();
        // A message ("m   N cfq ...") has no kind; nor is it a request.
        if fields.get(5) != Some(&"Q") {
            continue;
        }
        let Some(kind) = fields.get(6) else {
            return refuse("this event ends early, allowed is a kind after Q".into());
        };
        let is_write = kind.contains('W');
        if !is_write && !kind.contains('R') {
            continue;
        }
        let [sector, "+", sectors] = fields[HEADER..fields.len().min(HEADER + 3)] else {
            // A packet command ("96 (12 01 00 ...)") moves no blocks.
            if fields.get(HEADER + 1).is_some_and(|field| field.starts_with('(')) {
                continue;
            }
            return refuse("this request has no place, allowed is \"SECTOR + SECTORS\"".into());
        };
        match device {
            None => device = Some(fields[0]),
            Some(known) if known != fields[0] => {
                return refuse(format!("a request of a second device {}, allowed is one ({known})", fields[0]));
            }
            Some(_) => {}
        }
        let at_ns = nanoseconds(line, fields[3])?;
        let from_ns = *first_ns.get_or_insert(at_ns);
        let bytes = |what, text| {
            let sectors = number(line, what, text)?;
            let message = format!("{what} {sectors} is too large, allowed is up to {}", u64::MAX / SECTOR_BYTES);
            sectors.checked_mul(SECTOR_BYTES).ok_or(TraceError { line, message })
        };
        let (offset, length) = (bytes("the sector", sector)?, bytes("the number of sectors", sectors)?);
        recording.add(line, at_ns.saturating_sub(from_ns), is_write, offset, length)?;
    }
    Ok(())
}

/// "SECONDS.NANOSECONDS", the latter of nine digits.
fn nanoseconds(line: usize, text: &str) -> Result<u64, TraceError> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let message = || format!("the time {text:?} does not fit, allowed is SECONDS.NANOSECONDS with nine digits");
    if fraction.len() != 9 {
        return Err(TraceError { line, message: message() });
    }
    let (seconds, fraction) = (number(line, "the time", seconds)?, number(line, "the time", fraction)?);
    let ns = seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(fraction));
    ns.ok_or_else(|| TraceError { line, message: message() })
}
