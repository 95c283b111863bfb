//! Recorded traces, by content: fio's iolog (versions 2 and 3) and what blkparse prints by default.
//!
//! Only reads and writes are played. What else a trace holds (flushes, trims) is passed over, since the simulated
//! tenants only read and write. A line that the format does not have is refused with its number: a trace that lost a
//! tenth of its requests to a misunderstanding looks just like one that did not.
//!
//! Offsets are bytes of the device, for every file that a trace names (fio's `replay_redirect` does the same).

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

#[cfg(test)]
mod tests {
    //! Requests read of a trace, and lines that are refused.

    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// One recorded by fio 3.33: `fio --rw=randrw --rwmixread=60 --bsrange=4k-16k --number_ios=24 --iodepth=4 --fsync=6
    /// --write_iolog=...`.
    const FIO_3: &str = include_str!("../../testdata/fio-3.33.iolog");

    /// One written by hand in the older format.
    const FIO_2: &str = include_str!("../../testdata/fio-version-2.iolog");

    /// One written by hand as blkparse(1) describes it.
    const BLKPARSE: &str = include_str!("../../testdata/blkparse.txt");

    fn refusal(text: &str) -> String {
        parse(text, MIB).expect_err("this trace must be refused").to_string()
    }

    /// Kind, time, offset and length of each request.
    fn read(text: &str, device_size_bytes: u64) -> Vec<(char, u64, u64, u32)> {
        let trace = parse(text, device_size_bytes).unwrap_or_else(|refused| panic!("{refused}"));
        let kind = |request: &TraceRequest| if request.is_write { 'w' } else { 'r' };
        trace.requests.iter().map(|r| (kind(r), r.at_ns, r.offset_bytes, r.length_bytes)).collect()
    }

    #[test]
    fn what_fio_records_is_read_with_its_microseconds() {
        let requests = read(FIO_3, MIB);
        assert_eq!(requests.len(), 24, "number_ios=24; its syncs are passed over");
        assert_eq!(requests[0], ('w', 360_000, 61_440, 4096));
        assert_eq!(requests[2], ('r', 423_000, 880_640, 16_384));
        assert_eq!(requests[23], ('w', 10_052_000, 720_896, 16_384));
        assert!(parse(FIO_3, MIB).unwrap().timed);
    }

    #[test]
    fn version_2_has_waits_instead_of_times() {
        // A wait of 99 us is discarded; those of 250 and 1000 us add up.
        let expected = [
            ('r', 0, 0, 4096),
            ('w', 0, 4096, 8192),
            ('r', 0, 16_384, 4096),
            ('r', 250_000, 20_480, 4096),
            ('w', 1_250_000, 0, 16_384),
        ];
        assert_eq!(read(FIO_2, MIB), expected);
        assert!(!parse(FIO_2, MIB).unwrap().timed);
    }

    #[test]
    fn of_blkparses_events_the_queued_reads_and_writes_are_played() {
        // Times from the first one, 412 ns; sectors of 512 B. The remapped A, the issued D, the flush, the discard, the
        // packet command and the message are no requests.
        let expected = [
            ('r', 0, 2048 * 512, 4096),
            ('w', 61_305 - 412, 409_600 * 512, 32_768),
            ('w', 130_000 - 412, 409_664 * 512, 4096),
            ('r', 1_000_000_000, 4096 * 512, 131_072),
        ];
        assert_eq!(read(BLKPARSE, 1 << 30), expected);
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        let none =
            "1: this is no trace, allowed are fio's iolog (\"fio version 2 iolog\", or 3) and what blkparse prints";
        for text in ["", "\n", "hello\n", "8,0 1 1 0.5x 1 Q R 0 + 8\n"] {
            assert_eq!(refusal(text), none, "{text:?}");
        }
        assert_eq!(
            refusal("\nfio version 4 iolog\n"),
            "2: fio version \"4 iolog\" is not known, allowed are \"2 iolog\" and \"3 iolog\""
        );
        assert_eq!(refusal("fio version 3 iolog\n0 /d add\n0 /d open\n"), "3: no read or write up to here");
    }

    #[test]
    fn a_wrong_line_of_an_iolog_is_refused_with_its_number() {
        let three = |lines: &str| refusal(&format!("fio version 3 iolog\n0 /d add\n1 /d open\n{lines}\n"));
        assert_eq!(
            three("2 /d read 0"),
            "4: 4 fields do not fit here, allowed is \"TIME FILE ACTION\" or \"TIME FILE ACTION OFFSET LENGTH\""
        );
        assert_eq!(three("x /d read 0 4096"), "4: the time \"x\" is no number, allowed is 0 to 18446744073709551615");
        assert_eq!(
            three("2 /d read -1 4096"),
            "4: the offset \"-1\" is no number, allowed is 0 to 18446744073709551615"
        );
        assert_eq!(three("2 /d wait 100 0"), "4: the action wait, allowed is in version 2 only");
        assert_eq!(
            three("2 /d raed 0 4096"),
            "4: the action \"raed\" is not known, allowed are read, write, sync, datasync, sync_file_range, syncfs, trim, wait"
        );
        assert_eq!(
            three("2 /d unlink"),
            "4: the action \"unlink\" is not known, allowed for a file are add, open, close"
        );
        assert_eq!(three("2 /e open"), "4: /e is opened, allowed is after add");
        assert_eq!(three("2 /e close"), "4: /e is closed, allowed is after open");
        assert_eq!(three("2 /e read 0 4096"), "4: a read of /e, allowed is after add and open");
        assert_eq!(three("2 /d close\n3 /d read 0 4096"), "5: a read of /d, allowed is after add and open");
        assert_eq!(
            three("2 /d read 1048576 512"),
            "4: 512 bytes at 1048576 end past the device, allowed is up to byte 1048576"
        );
        assert_eq!(
            three("2 /d read 18446744073709551104 1024"),
            "4: 1024 bytes at 18446744073709551104 end past the device, allowed is up to byte 1048576"
        );
        assert_eq!(three("2 /d read 100 512"), "4: 512 bytes at 100 are no whole blocks, allowed are multiples of 512");
        assert_eq!(three("2 /d read 0 0"), "4: a length of 0 bytes, allowed is 512 to 33554432");
    }

    #[test]
    fn a_wrong_line_of_blkparse_is_refused_with_its_number() {
        let good = "8,0 1 1 0.000000000 9 Q R 0 + 8 [a]\n";
        let second = |line: &str| refusal(&format!("{good}{line}\n"));
        assert_eq!(
            second("nonsense"),
            "2: this is no event, allowed is \"MAJOR,MINOR CPU NUMBER SECONDS.NANOSECONDS PID ACTION ...\""
        );
        assert_eq!(second("8,0 1 2 0.000000100 9 Q"), "2: this event ends early, allowed is a kind after Q");
        assert_eq!(
            second("8,0 1 2 0.000000100 9 Q R 8"),
            "2: this request has no place, allowed is \"SECTOR + SECTORS\""
        );
        assert_eq!(
            second("8,16 1 2 0.000000100 9 Q R 8 + 8 [a]"),
            "2: a request of a second device 8,16, allowed is one (8,0)"
        );
        assert_eq!(
            second("8,0 1 2 0.1 9 Q R 8 + 8 [a]"),
            "2: the time \"0.1\" does not fit, allowed is SECONDS.NANOSECONDS with nine digits"
        );
        assert_eq!(
            second("8,0 1 2 0.000000100 9 Q R 36028797018963968 + 8 [a]"),
            "2: the sector 36028797018963968 is too large, allowed is up to 36028797018963967"
        );
    }

    #[test]
    fn times_that_go_back_are_held_at_the_latest() {
        let text = "fio version 3 iolog\n0 /d add\n0 /d open\n9 /d read 0 512\n5 /d read 512 512\n";
        assert_eq!(read(text, MIB), [('r', 9_000, 0, 512), ('r', 9_000, 512, 512)]);
    }

    /// Lines near those of a trace: most arbitrary text is refused in the first one.
    fn line() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            "[ -~]{0,12}",
            "[0-9]{1,22}",
            proptest::sample::select(vec![
                "/d",
                "add",
                "open",
                "close",
                "read",
                "write",
                "wait",
                "sync",
                "8,0",
                "Q",
                "R",
                "WS",
                "+",
                "[a]",
                "0.000000001",
                "CPU0",
                "é",
                "(",
            ])
            .prop_map(str::to_owned),
        ];
        proptest::collection::vec(word, 0..10).prop_map(|words| words.join(" "))
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_fits_the_device(
            first in prop_oneof![
                proptest::sample::select(vec![
                    "fio version 2 iolog\n/d add\n/d open",
                    "fio version 3 iolog\n0 /d add\n0 /d open",
                    "8,0 1 1 0.000000000 9 Q R 0 + 8 [a]",
                ])
                .prop_map(str::to_owned),
                ".{0,40}",
            ],
            lines in proptest::collection::vec(line(), 0..12),
        ) {
            let text = format!("{first}\n{}\n", lines.join("\n"));
            match parse(&text, MIB) {
                Ok(trace) => {
                    prop_assert!(trace.requests.is_sorted_by_key(|request| request.at_ns));
                    for request in &*trace.requests {
                        prop_assert!(request.offset_bytes + u64::from(request.length_bytes) <= MIB);
                    }
                }
                Err(refused) => {
                    prop_assert!((1..=text.lines().count().max(1)).contains(&refused.line));
                    prop_assert!(!refused.message.contains('\n'), "one sentence: {}", refused.message);
                }
            }
        }
    }
}

mod blktrace {
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
    //! scheduler and its merging: its times say when that scheduler and that device let the request go, and here
    //! another scheduler decides. What was asked for, and when, is in the `Q` events. A trace of `D` events alone
    //! (`blktrace -a issue`) has none and is refused as empty.
    //!
    //! Every other action is passed over. `Q` counts each request once, also one that came through a partition, if the
    //! trace is of one device; a trace of several (a disk and the volume on it, say) holds requests twice, so a second
    //! device's `Q` is refused.
    //!
    //! The letters of the kind: `R` read, `W` write; `D` (discard), `F` or `N` alone (flush, none) are passed over; the
    //! rest says how (`S` synchronous, `M` metadata, `A` read-ahead, `F` flush before or FUA after the letter).
    //!
    //! The summary at the end begins with `CPU0 (` or `Total (`; nothing after that is read.

    use crate::workload::trace::{Recording, TraceError, number};

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
}

mod iolog {
    //! fio's iolog, versions 2 and 3.
    //!
    //! Source: fio's manual, "Trace file format"; and for what it does not say, `iolog.c` of fio 3.33. Fields are
    //! separated by blanks, so no file name may hold one.
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

    use crate::workload::trace::{Recording, TraceError, number};
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
                    _ => {
                        return refuse(format!(
                            "the action {action:?} is not known, allowed for a file are {ON_FILES}"
                        ));
                    }
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
}
