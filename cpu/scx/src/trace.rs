//! Which events does the scheduler leave, and in what form do they lie in a file?
//!
//! Source: `struct event` in `bpf/shared.h`. All numbers are little-endian integers.
//!
//! ```text
//!   "PMQFQTRC"  version u32  cpus u32  slice ns u64  lag ns u64    then events of 56 bytes, in the order of their time
//! ```
//! Each CPU keeps its last events only. [`read`] drops what is older than the oldest event of a CPU that has lost some,
//! so that no hole is left.

use std::io::Write;

/// Version of the format.
pub const VERSION: u32 = 2;
const MAGIC: &[u8; 8] = b"PMQFQTRC";
const HEAD_LEN: usize = 32;
/// Length of an event.
pub const EVENT_LEN: usize = 56;

/// The run that was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// CPUs, those that were offline included.
    pub cpus: u32,
    /// Quantum, ns.
    pub slice_ns: u64,
    /// Most lag of a program, ns.
    pub lag_ns: u64,
}

/// Reason of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Kind {
    /// A request arrives. `other`: system virtual time, or the start tag of the request whose CPU it takes.
    Arrive = 1,
    /// A request begins on `cpu`. `tag`: its start tag; `other`: ns charged ahead.
    Begin = 2,
    /// A request ends. `tag`: the program's finish tag after the charge; `other`: ns run.
    End = 3,
    /// A request takes `cpu` from another one. `tag`: its start tag; `other`: the other one's.
    Preempt = 4,
    /// A thread no longer wants to run. `other`: threads of the program that do.
    Block = 5,
    /// The program's weight is `other` from now on.
    Weight = 6,
    /// `cpu` is about to take a thread of the program out of its queue. `tag`: the program's finish tag; no thread.
    Pick = 7,
    /// `cpu` takes an overdue thread of the program. `tag`: the program's finish tag; `other`: how long it waited, ns.
    Overdue = 8,
    /// A thread takes `cpu` from a sibling. `tag`: the program's finish tag; `other`: the rest of the quantum, ns.
    Swap = 9,
}

impl Kind {
    fn of(number: u16) -> Option<Kind> {
        use Kind::{Arrive, Begin, Block, End, Overdue, Pick, Preempt, Swap, Weight};
        [Arrive, Begin, End, Preempt, Block, Weight, Pick, Overdue, Swap]
            .into_iter()
            .find(|kind| *kind as u16 == number)
    }
}

/// One event of the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Number among the events of the CPU that wrote it, from 1.
    pub number: u64,
    /// Time, ns.
    pub at_ns: u64,
    /// Virtual ns.
    pub tag: u64,
    /// See [`Kind`].
    pub other: u64,
    /// Slot.
    pub program: u32,
    /// Thread.
    pub pid: u32,
    /// Reason.
    pub kind: Kind,
    /// CPU that the event is about.
    pub cpu: u16,
    /// The program's threads in its queues at that time.
    pub waiting: i32,
    /// CPU that wrote the event.
    pub writer: u16,
    /// Cache lines of CPUs and of their programs that a look before the event has read.
    pub lines: u16,
    /// A thread arrives that may run on `cpu` alone.
    pub is_pinned: bool,
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

impl Event {
    /// Reads an event. `None`: it was never written, or is not an event.
    pub fn read(bytes: &[u8]) -> Option<Event> {
        if bytes.len() < EVENT_LEN || u64_at(bytes, 0) == 0 {
            return None;
        }
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Some(Event {
            number: u64_at(bytes, 0),
            at_ns: u64_at(bytes, 8),
            tag: u64_at(bytes, 16),
            other: u64_at(bytes, 24),
            program: u32_at(bytes, 32),
            pid: u32_at(bytes, 36),
            kind: Kind::of(short(40))?,
            cpu: short(42),
            waiting: u32_at(bytes, 44) as i32,
            writer: short(48),
            lines: short(50),
            is_pinned: short(52) != 0,
        })
    }

    fn write(&self) -> [u8; EVENT_LEN] {
        let mut bytes = [0; EVENT_LEN];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &self.number.to_le_bytes());
        put(8, &self.at_ns.to_le_bytes());
        put(16, &self.tag.to_le_bytes());
        put(24, &self.other.to_le_bytes());
        put(32, &self.program.to_le_bytes());
        put(36, &self.pid.to_le_bytes());
        put(40, &(self.kind as u16).to_le_bytes());
        put(42, &self.cpu.to_le_bytes());
        put(44, &self.waiting.to_le_bytes());
        put(48, &self.writer.to_le_bytes());
        put(50, &self.lines.to_le_bytes());
        put(52, &u16::from(self.is_pinned).to_le_bytes());
        bytes
    }
}

/// Writes a trace, in the order of time.
///
/// # Errors
/// Errors of `to`.
pub fn write(mut to: impl Write, head: &Head, mut events: Vec<Event>) -> std::io::Result<()> {
    events.sort_by_key(|event| (event.at_ns, event.writer, event.number));
    to.write_all(MAGIC)?;
    to.write_all(&VERSION.to_le_bytes())?;
    to.write_all(&head.cpus.to_le_bytes())?;
    to.write_all(&head.slice_ns.to_le_bytes())?;
    to.write_all(&head.lag_ns.to_le_bytes())?;
    for event in &events {
        to.write_all(&event.write())?;
    }
    to.flush()
}

/// Reads a trace. Events older than the oldest one of a CPU that has lost some are left out.
///
/// # Errors
/// One sentence: the bytes are not a trace, or one of another version.
pub fn read(bytes: &[u8]) -> Result<(Head, Vec<Event>), String> {
    if bytes.len() < HEAD_LEN || &bytes[..8] != MAGIC {
        return Err("is no trace of scx_pmqfq".into());
    }
    let version = u32_at(bytes, 8);
    if version != VERSION {
        return Err(format!("is a trace of version {version}, allowed is {VERSION}"));
    }
    let head = Head { cpus: u32_at(bytes, 12), slice_ns: u64_at(bytes, 16), lag_ns: u64_at(bytes, 24) };
    let body = &bytes[HEAD_LEN..];
    if !body.len().is_multiple_of(EVENT_LEN) {
        return Err(format!("ends in the middle of an event: {} bytes behind the head", body.len()));
    }
    let each = body.chunks_exact(EVENT_LEN).enumerate();
    let events: Result<Vec<Event>, String> =
        each.map(|(at, bytes)| Event::read(bytes).ok_or_else(|| format!("event {at} is of no known kind"))).collect();
    let mut events = events?;
    let mut oldest = std::collections::BTreeMap::new();
    for event in &events {
        oldest.entry(event.writer).or_insert((event.number, event.at_ns));
    }
    let from_ns = oldest.values().filter(|(number, _)| *number > 1).map(|(_, at_ns)| *at_ns).max();
    events.retain(|event| from_ns.is_none_or(|from_ns| event.at_ns >= from_ns));
    Ok((head, events))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(writer: u16, number: u64, at_ns: u64) -> Event {
        let kind = Kind::Begin;
        Event {
            number,
            at_ns,
            tag: 5,
            other: 7,
            program: 3,
            pid: 9,
            kind,
            cpu: 1,
            waiting: -1,
            writer,
            lines: 3,
            is_pinned: true,
        }
    }

    const HEAD: Head = Head { cpus: 2, slice_ns: 3_000_000, lag_ns: 4 };

    fn written(events: Vec<Event>) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, &HEAD, events).unwrap();
        bytes
    }

    #[test]
    fn a_trace_comes_back_in_the_order_of_time() {
        let bytes = written(vec![event(1, 1, 20), event(0, 1, 10), event(0, 2, 20)]);
        let (head, events) = read(&bytes).unwrap();
        assert_eq!(head, HEAD);
        assert_eq!(events, [event(0, 1, 10), event(0, 2, 20), event(1, 1, 20)]);
    }

    #[test]
    fn what_is_older_than_a_hole_is_left_out() {
        let (_, events) = read(&written(vec![event(0, 1, 10), event(0, 2, 30), event(1, 5, 20)])).unwrap();
        assert_eq!(events.iter().map(|event| event.at_ns).collect::<Vec<_>>(), [20, 30]);
    }

    #[test]
    fn what_is_no_trace_is_refused_in_a_sentence() {
        assert_eq!(read(b"x").unwrap_err(), "is no trace of scx_pmqfq");
        let mut bytes = written(vec![event(0, 1, 1)]);
        bytes.pop();
        assert!(read(&bytes).unwrap_err().starts_with("ends in the middle"));
        bytes[8] = 9;
        assert_eq!(read(&bytes).unwrap_err(), "is a trace of version 9, allowed is 2");
    }
}
