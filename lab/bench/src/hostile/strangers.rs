//! Strangers at a vhost-user socket, and guests that ask for too much.
//!
//! | [`KINDS`] | passes | is due |
//! |---|---|---|
//! | `waiting` | a TCP socket whose last close waits, in each message that takes a descriptor | an error |
//! | `sparse` | 63 regions of 2 TiB | 16 TiB, and errors |
//! | `spans` | GET_ID into 1,021 places, on all 1,024 heads of each of 4 queues | an answer on each head |
//! | `looks` | 128 eventfds before it has a disk, and stays | its place goes to a later one: 8 have one |

use mqfq_testing::stranger::number::*;
use mqfq_testing::stranger::{Peer, answer, event, lingering, message, pass, sparse};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KINDS: [&str; 4] = ["waiting", "sparse", "spans", "looks"];

/// Strangers of each kind per second; of those that look, so many at a time.
const PER_S: u32 = 3;
const LOOKS: usize = 4;
/// Places of connections without a disk, by docs/use/limits.md.
const PLACES: usize = 8;
/// Descriptors that clients of the address may have open in the server, by docs/use/limits.md.
pub const DESCRIPTORS_MAX: usize = 4096 + PLACES;
/// Time in which an answer comes.
const LIMIT: Duration = Duration::from_secs(10);

/// Messages that the server reads before the one with a descriptor.
const BEFORE: usize = 32;

/// Protocol features: answers to all messages.
const REPLY_ACK: u64 = 1 << 3;
/// VERSION_1, PROTOCOL_FEATURES, INDIRECT.
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 28;
/// Regions, and how many of those a guest may have mapped.
const REGION_BYTES: u64 = 2 << 40;
const REGIONS: u64 = 63;
const REGIONS_MAPPED_MAX: u64 = 8;

#[derive(Clone, Copy, Default)]
struct Tally {
    came: u64,
    refused: u64,
}

#[derive(Default)]
struct Seen {
    tallies: [Tally; KINDS.len()],
    took: Duration,
    /// Most descriptors that the server had.
    descriptors: usize,
    /// The first thing that was not due.
    not_due: Option<String>,
}

/// All strangers of a server.
pub struct Strangers {
    socket: PathBuf,
    /// Descriptors of the server.
    descriptors: PathBuf,
    seen: Mutex<Seen>,
}

/// A connection on which each message is answered.
struct Stranger(UnixStream);

impl Stranger {
    fn connect(socket: &Path) -> std::io::Result<Stranger> {
        let stranger = Stranger(UnixStream::connect(socket)?);
        stranger.0.set_read_timeout(Some(LIMIT))?;
        stranger.done(SET_PROTOCOL_FEATURES, &[REPLY_ACK], &[])?;
        Ok(stranger)
    }

    /// 0: it was done.
    fn say(&self, number: u32, words: &[u64], files: &[BorrowedFd<'_>]) -> std::io::Result<u64> {
        pass(&self.0, &message(number, words), files)?;
        answer(&self.0)
    }

    fn done(&self, number: u32, words: &[u64], files: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        match self.say(number, words, files)? {
            0 => Ok(()),
            _ => Err(Error::other(format!("message {number} was refused"))),
        }
    }

    /// Whether the server has closed it.
    fn is_closed(&self) -> bool {
        let read = self.0.set_nonblocking(true).and_then(|()| (&self.0).read_to_end(&mut Vec::new()));
        read.map_or_else(|error| error.kind() != ErrorKind::WouldBlock, |_| true)
    }
}

impl Strangers {
    /// Strangers of process `pid`, which listens at `socket`.
    pub fn new(socket: PathBuf, pid: u32) -> Strangers {
        Strangers { socket, descriptors: format!("/proc/{pid}/fd").into(), seen: Mutex::default() }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().expect("no stranger panicked")
    }

    /// They come by turns until `is_over`, and have all gone when it returns.
    pub fn come(&self, is_over: &AtomicBool) {
        let (start, step) = (Instant::now(), Duration::from_secs(1) / (PER_S * KINDS.len() as u32));
        let (mut crowd, mut peer, events) = (Vec::new(), None, (0..64).map(|_| event()).collect::<Vec<_>>());
        let mut next = start;
        // Relaxed: the flag orders nothing, and a stranger more is no harm.
        for turn in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
            let kind = turn % KINDS.len();
            let result = match kind {
                0 => self.waiting(turn / KINDS.len(), &mut peer),
                1 => self.sparse(),
                2 => self.spans(),
                _ => (0..LOOKS).try_for_each(|_| self.looks(&events).map(|it| crowd.push(it))).map(|()| false),
            };
            let descriptors = std::fs::read_dir(&self.descriptors).map_or(0, Iterator::count);
            let mut seen = self.seen();
            seen.descriptors = seen.descriptors.max(descriptors);
            seen.tallies[kind].came += if kind == 3 { LOOKS as u64 } else { 1 };
            match result {
                Ok(is_refused) => seen.tallies[kind].refused += u64::from(is_refused),
                Err(error) => drop(seen.not_due.get_or_insert_with(|| format!("{}: {error}", KINDS[kind]))),
            }
            drop(seen);
            next += step;
            std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
        }
        let (came, closed) = (crowd.len(), crowd.iter().filter(|stranger| stranger.is_closed()).count());
        let mut seen = self.seen();
        seen.took += start.elapsed();
        seen.tallies[3].refused += closed as u64;
        if came - closed > PLACES {
            seen.not_due.get_or_insert_with(|| format!("looks: {} have a place, {PLACES} may", came - closed));
        }
    }

    /// Message number `turn` of those that take a descriptor. The descriptor's other end replaces `peer`.
    fn waiting(&self, turn: usize, peer: &mut Option<Peer>) -> std::io::Result<bool> {
        let messages = [
            (SET_VRING_CALL, &[0][..]),
            (SET_VRING_ERR, &[0]),
            (SET_BACKEND_REQ_FD, &[]),
            (SET_VRING_KICK, &[0]),
            (SET_MEM_TABLE, &[1, 0, 4096, 0, 0]),
            (SET_LOG_BASE, &[4096, 0]),
            (SET_INFLIGHT_FD, &[4096, 0, 1 | 8 << 16]),
            (ADD_MEM_REG, &[0, 0, 4096, 0, 0]),
        ];
        let (number, words) = messages[turn % messages.len()];
        let stranger = Stranger::connect(&self.socket)?;
        let (file, other) = lingering();
        *peer = Some(other);
        // The server reads the descriptor after these, so that its copy is the last one.
        (0..BEFORE).try_for_each(|_| pass(&stranger.0, &message(SET_PROTOCOL_FEATURES, &[REPLY_ACK]), &[]))?;
        pass(&stranger.0, &message(number, words), &[file.as_fd()])?;
        // If the server was faster, this close is the one that waits, until the other end is replaced.
        std::thread::spawn(move || drop(file));
        (0..BEFORE).try_for_each(|_| answer(&stranger.0).map(drop))?;
        match answer(&stranger.0)? {
            0 => Err(Error::other(format!("message {number} was taken"))),
            _ => Ok(true),
        }
    }

    fn sparse(&self) -> std::io::Result<bool> {
        let (stranger, file) = (Stranger::connect(&self.socket)?, sparse(1 << 46));
        let mut taken = 0;
        for region in 1..=REGIONS {
            let words = [0, region << 42, REGION_BYTES, region << 42, 0];
            taken += u64::from(stranger.say(ADD_MEM_REG, &words, &[file.as_fd()])? == 0);
        }
        match taken {
            0..=REGIONS_MAPPED_MAX => Ok(true),
            _ => Err(Error::other(format!("{taken} regions were mapped"))),
        }
    }

    fn spans(&self) -> std::io::Result<bool> {
        let (stranger, guest) = (Stranger::connect(&self.socket)?, Guest::new()?);
        stranger.done(SET_FEATURES, &[FEATURES], &[])?;
        stranger.done(SET_MEM_TABLE, &[1, 0, Guest::BYTES, 0, 0], &[guest.0.as_fd()])?;
        let kicks: Vec<OwnedFd> = (0..Guest::QUEUES).map(|_| event()).collect();
        for (queue, kick) in (0..).zip(&kicks) {
            let at = Guest::queue_at(queue);
            stranger.done(SET_VRING_NUM, &[queue | Guest::HEADS << 32], &[])?;
            stranger.done(SET_VRING_ADDR, &[queue, at, at + Guest::USED, at + Guest::AVAIL, 0], &[])?;
            stranger.done(SET_VRING_KICK, &[queue], &[kick.as_fd()])?;
            stranger.done(SET_VRING_ENABLE, &[queue | 1 << 32], &[])?;
            (&File::from(kick.try_clone()?)).write_all(&1u64.to_ne_bytes())?;
        }
        let start = Instant::now();
        while guest.ended()? < Guest::QUEUES * Guest::HEADS {
            if start.elapsed() > LIMIT {
                return Err(Error::other(format!("{} requests had an answer", guest.ended()?)));
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        Ok(false)
    }

    fn looks(&self, events: &[OwnedFd]) -> std::io::Result<Stranger> {
        let stranger = Stranger::connect(&self.socket)?;
        for (queue, event) in (0..).zip(events) {
            stranger.done(SET_VRING_CALL, &[queue], &[event.as_fd()])?;
            stranger.done(SET_VRING_ERR, &[queue], &[event.as_fd()])?;
        }
        Ok(stranger)
    }

    /// How many came per second, of each kind how many came and were refused, and the first thing that was not due.
    pub fn json(&self) -> Value {
        let seen = self.seen();
        let kinds = KINDS
            .iter()
            .zip(seen.tallies)
            .map(|(kind, Tally { came, refused })| ((*kind).to_owned(), json!({ "came": came, "refused": refused })));
        let none = KINDS
            .iter()
            .zip(seen.tallies)
            .find(|(_, tally)| tally.came == 0)
            .map(|(kind, _)| format!("no {kind} came"));
        let came: u64 = seen.tallies.iter().map(|tally| tally.came).sum();
        json!({
            "strangers_per_s": came as f64 / seen.took.as_secs_f64().max(1e-9),
            "descriptors_most": seen.descriptors, "not_due": seen.not_due.clone().or(none),
            "kinds": kinds.collect::<serde_json::Map<_, _>>(),
        })
    }
}

/// Memory with queues of which each head asks for the id, by one table for all of them.
///
/// ```text
///   0        table: header, 1,021 places of a byte, status
///   0x4000   header, status; at 0x5000 places, of which no two are neighbours
///   queue_at descriptors at 0, available ring at AVAIL, used ring at USED
/// ```
struct Guest(File);

impl Guest {
    const QUEUES: u64 = 4;
    const HEADS: u64 = 1024;
    const AVAIL: u64 = 0x5000;
    const USED: u64 = 0x8000;
    const BYTES: u64 = Guest::queue_at(Guest::QUEUES);

    const fn queue_at(queue: u64) -> u64 {
        (queue + 1) * 0x10000
    }

    fn new() -> std::io::Result<Guest> {
        let file = sparse(Guest::BYTES);
        // All pages are the client's, and none the server's.
        let mut memory = vec![0; Guest::BYTES as usize];
        let mut write = |at: u64, bytes: &[u8]| memory[at as usize..][..bytes.len()].copy_from_slice(bytes);
        let descriptor = |at: u64, length: u32, flags: u16, next: u16| {
            [&at.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat()
        };
        let (next, writable, indirect) = (1, 2, 4);
        // The head counts as one of 1024.
        let last = Guest::HEADS - 2;
        write(0, &descriptor(0x4000, 16, next, 1));
        for place in 1..last {
            write(place * 16, &descriptor(0x5000 + place * 2, 1, next | writable, place as u16 + 1));
        }
        write(last * 16, &descriptor(0x4010, 1, writable, 0));
        let get_id = 8u32;
        write(0x4000, &get_id.to_le_bytes());
        for queue in (0..Guest::QUEUES).map(Guest::queue_at) {
            write(queue + Guest::AVAIL + 2, &(Guest::HEADS as u16).to_le_bytes());
            for head in 0..Guest::HEADS {
                write(queue + head * 16, &descriptor(0, (last as u32 + 1) * 16, indirect, 0));
                write(queue + Guest::AVAIL + 4 + head * 2, &(head as u16).to_le_bytes());
            }
        }
        file.write_all_at(&memory, 0)?;
        Ok(Guest(file))
    }

    /// Requests of all queues that have ended.
    fn ended(&self) -> std::io::Result<u64> {
        let mut sum = 0;
        for queue in 0..Guest::QUEUES {
            let mut index = [0; 2];
            self.0.read_exact_at(&mut index, Guest::queue_at(queue) + Guest::USED + 2)?;
            sum += u64::from(u16::from_le_bytes(index));
        }
        Ok(sum)
    }
}
