//! Default output of blkparse: one line for each event of the block layer.
//!
//! Source: blkparse(1), "DEFAULT OUTPUT": the header `"%D %2c %8s %5T.%9t %5p %2a %3d"` (device, CPU, number,
//! seconds.nanoseconds, process, action, what kind of request), then for a queued request `"%S + %N [%C]"` (sector,
//! sectors, command).
//!
//! ```text
//!     8,0    1       17     0.001452301  2187  Q  WS 35682200 + 8 [jbd2/sda1-8]
//! ```
//!
//! # Which events
//! `Q`, a request that was queued. `D`, one that was issued to the driver, comes after the traced machine's own
//! scheduler and its merging: its times say when that scheduler and that device let the request go, and here another
//! scheduler decides. What was asked for, and when, is in the `Q` events. A trace of `D` events alone (`blktrace -a
//! issue`) has none and is refused as empty.
//!
//! Every other action is passed over. `Q` counts each request once, also one that came through a partition, if the
//! trace is of one device; a trace of several (a disk and the volume on it, say) holds requests twice, so a second
//! device's `Q` is refused.
//!
//! The letters of the kind: `R` read, `W` write; `D` (discard), `F` or `N` alone (flush, none) are passed over; the
//! rest says how (`S` synchronous, `M` metadata, `A` read-ahead, `F` flush before or FUA after the letter).
//!
//! The summary at the end begins with `CPU0 (` or `Total (`; nothing after that is read.

use super::{Recording, TraceError, number};

/// Bytes of a sector of the block layer, whatever the device.
const SECTOR_BYTES: u64 = 512;

/// Fields before the sector.
const HEADER: usize = 7;

/// The line looks like an event: "MAJOR,MINOR CPU NUMBER SECONDS.NANOSECONDS ...".
pub(super) fn is_event(line: &str) -> bool {
    let fields: Vec<&str> = line.split_ascii_whitespace().take(4).collect();
    let [device, cpu, sequence, time] = fields[..] else { return false };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let pair = |text: &str, by| text.split_once(by).is_some_and(|(a, b)| digits(a) && digits(b));
    pair(device, ',') && digits(cpu) && digits(sequence) && pair(time, '.')
}

pub(super) fn parse(text: &str, recording: &mut Recording) -> Result<(), TraceError> {
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
