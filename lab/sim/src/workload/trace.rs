//! Recorded traces, by content: fio's iolog (versions 2 and 3) and what blkparse prints by default.
//!
//! Only reads and writes are played. What else a trace holds (flushes, trims) is passed over, since the simulated
//! tenants only read and write. A line that the format does not have is refused with its number: a trace that lost a
//! tenth of its requests to a misunderstanding looks just like one that did not.
//!
//! Offsets are bytes of the device, for every file that a trace names (fio's `replay_redirect` does the same).

mod blktrace;
mod iolog;
#[cfg(test)]
mod tests;

use mqfq_nvme_watched::presets::{BLOCK_BYTES, TRANSFER_BYTES_MAX};
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
            "2 iolog" => iolog::Version::Two,
            "3 iolog" => iolog::Version::Three,
            other => {
                let message = format!("fio version {other:?} is not known, allowed are \"2 iolog\" and \"3 iolog\"");
                return Err(TraceError { line: first.unwrap_or(0) + 1, message });
            }
        };
        iolog::parse(text, version, &mut recording)?;
        version == iolog::Version::Three
    } else if blktrace::is_event(first_line) {
        blktrace::parse(text, &mut recording)?;
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
