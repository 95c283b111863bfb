//! A guest with a disk over vhost-user: its memory and rings, the messages of its front-end, and the answers.
//!
//! ```text
//!   memory   descriptors at 0, available ring at 20 KiB, used ring at 32 KiB
//!            request i at 64 KiB + i * 32 KiB: header at 0, status at 16, data or range at 4 KiB
//! ```
//!
//! Memory and the area of requests in flight outlive each server: a killed server leaves heads behind, which the next
//! server ends, each once (I10).

use crate::nbd::{Counts, Want};
use crate::net::{self, SharedPipe};
use crate::oracle::{Oracle, SECTOR_BYTES};
use crate::world::now_ns;
use mqfq_blk::foreign::ForeignMemory;
use mqfq_blk::random::Random;
use mqfq_front::vhost_user_blk::wire::{
    DESCRIPTOR_NEXT, DESCRIPTOR_WRITE, FLAG_NEED_REPLY, HEADER_BYTES, Header, Message, USED_NO_NOTIFY, feature,
    message, protocol, request, status,
};
use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Requests under way at once.
const SLOTS: u16 = 20;
/// Entries of its queue: three descriptors each.
const QUEUE_SIZE: u16 = 64;
const AVAIL_AT: usize = 0x5000;
const USED_AT: usize = 0x8000;
const MEMORY_BYTES: usize = 0x10000 + SLOTS as usize * 0x8000;
/// Longest request, sectors.
const SECTORS_MAX: usize = 48;
/// The guest's address of its first byte, and its front-end's.
const BASE: u64 = 0x4000_0000;
const USER: u64 = 0x7f00_0000_0000;

fn slot_at(slot: u16) -> usize {
    0x10000 + usize::from(slot) * 0x8000
}

struct UnderWay {
    want: Want,
    values: Vec<u64>,
    asked_at: u64,
    asked_at_ns: u64,
}

/// One guest.
pub struct Guest {
    name: String,
    oracle: Rc<RefCell<Oracle>>,
    file: OwnedFd,
    memory: Arc<ForeignMemory>,
    inflight: Option<(OwnedFd, [u8; 16])>,
    kick: Option<OwnedFd>,
    offered: u16,
    seen: u16,
    slots: Vec<Option<UnderWay>>,
    wants: VecDeque<Want>,
    talk: Talk,
    is_ready: bool,
    random: Random,
    /// It knows no flush, so what it changes is stable when it ends.
    is_writethrough: bool,
    /// Errors are answers that may come.
    pub may_fail: bool,
    /// Counts of its requests.
    pub counts: Counts,
    /// Longest time of a request since this was last set, ns.
    pub longest_ns: u64,
}

impl std::fmt::Display for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "guest {}", self.name)
    }
}

impl Guest {
    /// A guest without a server.
    pub fn new(name: String, oracle: Rc<RefCell<Oracle>>, seed: u64) -> Guest {
        let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory for a guest");
        rustix::fs::ftruncate(&file, MEMORY_BYTES as u64).expect("memory for a guest");
        let memory = ForeignMemory::map(file.as_fd(), 0, MEMORY_BYTES).expect("memory for a guest");
        Guest {
            name,
            oracle,
            file,
            memory,
            inflight: None,
            kick: None,
            offered: 0,
            seen: 0,
            slots: (0..SLOTS).map(|_| None).collect(),
            wants: VecDeque::new(),
            talk: Talk::default(),
            is_ready: false,
            random: Random::new(seed),
            is_writethrough: Random::new(!seed).chance(32768),
            may_fail: false,
            counts: Counts::default(),
            longest_ns: 0,
        }
    }

    /// Whether it has no server.
    pub fn is_away(&self) -> bool {
        self.talk.is_away()
    }

    /// Requests under way.
    pub fn under_way(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Whether it has its queue and has asked for all its wants.
    pub fn is_idle(&self) -> bool {
        self.is_ready && self.wants.is_empty()
    }

    /// More to ask for.
    pub fn want(&mut self, count: u64, random: &mut Random) {
        let sectors = self.oracle.borrow().sectors();
        for _ in 0..count {
            let want = Want::draw(random, (0, sectors), sectors);
            self.wants.push_back(match want {
                Want::Read(from, count) | Want::Status(from, count) => Want::Read(from, count.min(SECTORS_MAX)),
                Want::Write(from, count, _) => Want::Write(from, count.min(SECTORS_MAX), false),
                Want::Zero(from, count, is_trim, _) => Want::Zero(from, count, is_trim, false),
                Want::Flush => Want::Flush,
            });
        }
    }

    /// Reads of 4 KiB, one beside the other, and no writes.
    pub fn want_reads(&mut self, count: usize) {
        let sectors = self.oracle.borrow().sectors();
        self.wants.extend((0..count).map(|number| Want::Read(number * 8 % sectors, 8)));
    }

    /// Reads all of its disk.
    pub fn want_all(&mut self) {
        let sectors = self.oracle.borrow().sectors();
        self.wants.extend((0..sectors).step_by(32).map(|from| Want::Read(from, 32.min(sectors - from))));
    }

    /// Its front-end goes away, in the middle of everything.
    pub fn leave(&mut self) {
        self.talk.leave();
        self.lost();
    }

    /// There is no server any more.
    pub fn lost(&mut self) {
        (self.talk, self.is_ready) = (Talk::default(), false);
    }

    /// Its front-end connects: all messages up to a queue that runs.
    pub fn plug(&mut self, pipe: SharedPipe) {
        self.lost();
        self.talk = Talk::new(pipe);
        let talk = &mut self.talk;
        let features = feature::PROTOCOL_FEATURES | feature::VERSION_1;
        let features = features | feature::BLK_DISCARD | feature::BLK_WRITE_ZEROES;
        let features = features | if self.is_writethrough { 0 } else { feature::BLK_FLUSH };
        let protocols = protocol::MQ | protocol::REPLY_ACK | protocol::INFLIGHT_SHMFD;
        talk.say(Message::SetOwner, Vec::new(), &[], Answer::Nothing);
        talk.say(Message::GetFeatures, Vec::new(), &[], Answer::Own);
        talk.say(Message::GetProtocolFeatures, Vec::new(), &[], Answer::Own);
        talk.say(Message::SetProtocolFeatures, payload(&[protocols]), &[], Answer::Nothing);
        talk.say(Message::SetFeatures, payload(&[features]), &[], Answer::Ack);
        let table = [1, BASE, MEMORY_BYTES as u64, USER, 0];
        talk.say(Message::SetMemTable, payload(&table), &[&self.file], Answer::Ack);
        let queues = u64::from(QUEUE_SIZE) << 16 | 1;
        match &self.inflight {
            Some((file, about)) => {
                let payload = [&about[..], &queues.to_ne_bytes()].concat();
                talk.say(Message::SetInflightFd, payload, &[file], Answer::Ack);
            }
            None => talk.say(Message::GetInflightFd, payload(&[0, 0, queues]), &[], Answer::Own),
        }
        let event = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let (kick, call) = (event(), event());
        // Acquire: pairs with the Release of the server that showed the last end.
        let used = self.memory.atomic_u16(USED_AT + 2).expect("inside").load(Ordering::Acquire);
        let mut ask =
            |message, words: &[u64], files: &[&OwnedFd]| talk.say(message, payload(words), files, Answer::Ack);
        ask(Message::SetVringNum, &[u64::from(QUEUE_SIZE) << 32], &[]);
        ask(Message::SetVringBase, &[u64::from(used) << 32], &[]);
        ask(Message::SetVringAddr, &[0, USER, USER + USED_AT as u64, USER + AVAIL_AT as u64, 0], &[]);
        ask(Message::SetVringCall, &[0], &[&call]);
        ask(Message::SetVringKick, &[0], &[&kick]);
        ask(Message::SetVringEnable, &[1 << 32], &[]);
        self.kick = Some(kick);
        self.counts.sessions += 1;
    }

    /// Looks at what came and what ended, and asks for more. True: something happened.
    pub fn turn(&mut self) -> bool {
        let mut has_moved = self.ended();
        if self.is_away() {
            return has_moved;
        }
        let (name, inflight) = (&self.name, &mut self.inflight);
        let talked = self.talk.turn(|message, payload, files| match message {
            Message::GetInflightFd => {
                let file = files.first().expect("the area comes with its file").try_clone().expect("a descriptor");
                *inflight = Some((file, payload[..16].try_into().expect("16 bytes")));
            }
            Message::GetFeatures | Message::GetProtocolFeatures => {}
            _ => assert!(payload.iter().all(|byte| *byte == 0), "guest {name}: {message:?} was refused"),
        });
        let Some(has_talked) = talked else {
            self.lost();
            return true;
        };
        has_moved |= has_talked;
        if !self.is_ready && self.talk.is_over() {
            self.is_ready = true;
            // Requests may have been offered while there was no server.
            self.ring();
        }
        has_moved | (self.is_ready && self.ask())
    }

    fn ring(&self) {
        if let Some(kick) = &self.kick {
            let _ = net::ring(kick.as_fd());
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.memory.copy_from(at, bytes), "inside the guest's memory");
    }

    fn read(&self, at: usize, bytes: &mut [u8]) {
        assert!(self.memory.copy_to(at, bytes), "inside the guest's memory");
    }

    fn descriptor(&self, place: u16, at: usize, length: usize, flags: u16) {
        let address = (BASE + at as u64).to_le_bytes();
        let (length, flags, next) = ((length as u32).to_le_bytes(), flags.to_le_bytes(), (place + 1).to_le_bytes());
        self.write(usize::from(place) * 16, &[&address[..], &length, &flags, &next].concat());
    }

    /// Offers what is wanted, as far as there are slots.
    fn ask(&mut self) -> bool {
        let before = self.offered;
        for slot in 0..SLOTS {
            if self.slots[usize::from(slot)].is_some() {
                continue;
            }
            let Some(want) = self.wants.pop_front() else { break };
            self.offer(slot, want);
        }
        if before == self.offered {
            return false;
        }
        // Release: pairs with the Acquire of the server that reads the index: it sees the heads before it.
        self.memory.atomic_u16(AVAIL_AT + 2).expect("inside").store(self.offered, Ordering::Release);
        // Acquire: pairs with the Release of the server that asks for kicks.
        let flags = self.memory.atomic_u16(USED_AT).expect("inside").load(Ordering::Acquire);
        if flags & USED_NO_NOTIFY == 0 {
            self.ring();
        }
        true
    }

    fn offer(&mut self, slot: u16, want: Want) {
        let (oracle, at) = (self.oracle.clone(), slot_at(slot));
        let mut oracle = oracle.borrow_mut();
        let asked_at = oracle.tick();
        let (mut values, mut data, mut length) = (Vec::new(), Vec::new(), 0);
        let (kind, sector) = match want {
            Want::Read(from, count) | Want::Status(from, count) => {
                oracle.read_begins(from, count);
                length = count * SECTOR_BYTES;
                data = vec![0xee; length];
                (request::IN, from)
            }
            Want::Write(from, count, _) | Want::Zero(from, count, ..) if !oracle.is_free(from, count) => return,
            Want::Write(from, count, _) => {
                values = oracle.write_begins(from, count, false, &mut data);
                length = data.len();
                (request::OUT, from)
            }
            Want::Zero(from, count, is_trim, _) => {
                values = oracle.write_begins(from, count, true, &mut data);
                data = [(from as u64).to_le_bytes(), (count as u64).to_le_bytes()].concat();
                length = data.len();
                (if is_trim { request::DISCARD } else { request::WRITE_ZEROES }, 0)
            }
            Want::Flush if self.is_writethrough => return,
            Want::Flush => (request::FLUSH, 0),
        };
        let header = [&kind.to_le_bytes()[..], &[0; 4], &(sector as u64).to_le_bytes(), &[0xff]].concat();
        self.write(at, &header);
        self.write(at + 4096, &data);
        let head = slot * 3;
        self.descriptor(head, at, 16, DESCRIPTOR_NEXT);
        let mut last = head + 1;
        if length > 0 {
            let flags = if kind == request::IN { DESCRIPTOR_WRITE } else { 0 };
            self.descriptor(last, at + 4096, length, flags | DESCRIPTOR_NEXT);
            last += 1;
        }
        self.descriptor(last, at + 16, 1, DESCRIPTOR_WRITE);
        self.write(AVAIL_AT + 4 + usize::from(self.offered % QUEUE_SIZE) * 2, &head.to_le_bytes());
        self.offered = self.offered.wrapping_add(1);
        self.slots[usize::from(slot)] = Some(UnderWay { want, values, asked_at, asked_at_ns: now_ns() });
    }

    /// Takes what has ended. True: something had.
    fn ended(&mut self) -> bool {
        let mut has_moved = false;
        // Acquire: pairs with the Release of the server: what it wrote of these heads is there.
        while self.seen != self.memory.atomic_u16(USED_AT + 2).expect("inside").load(Ordering::Acquire) {
            let mut entry = [0; 8];
            self.read(USED_AT + 4 + usize::from(self.seen % QUEUE_SIZE) * 8, &mut entry);
            self.seen = self.seen.wrapping_add(1);
            let head = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]) as u16;
            let slot = head / 3;
            let under_way = self.slots.get_mut(usize::from(slot)).and_then(Option::take);
            let under_way =
                under_way.unwrap_or_else(|| panic!("exactly once (I10): head {head} of {self} ended twice"));
            self.end(slot, under_way);
            has_moved = true;
        }
        has_moved
    }

    fn end(&mut self, slot: u16, under_way: UnderWay) {
        let UnderWay { want, values, asked_at, asked_at_ns } = under_way;
        self.longest_ns = self.longest_ns.max(now_ns() - asked_at_ns);
        let mut told = [0];
        self.read(slot_at(slot) + 16, &mut told);
        let is_good = told[0] == status::OK;
        assert!(is_good || self.may_fail, "{self}: {want:?} ended with status {} and nothing is wrong", told[0]);
        *(if is_good { &mut self.counts.good } else { &mut self.counts.failed }) += 1;
        let mut bytes = Vec::new();
        if let Want::Read(_, count) = want {
            bytes.resize(count * SECTOR_BYTES, 0);
            self.read(slot_at(slot) + 4096, &mut bytes);
        }
        let mut oracle = self.oracle.borrow_mut();
        let judged = match want {
            Want::Read(from, count) => oracle.read_ends(from, count, is_good.then_some(&bytes[..])),
            Want::Write(from, ..) | Want::Zero(from, ..) => {
                oracle.write_ends(from, &values, is_good, self.is_writethrough);
                Ok(())
            }
            // A guest has no way to ask.
            Want::Status(..) => unreachable!("a guest reads instead"),
            Want::Flush => {
                if is_good {
                    oracle.flushed(asked_at);
                }
                Ok(())
            }
        };
        judged.unwrap_or_else(|what| panic!("guest {}: {what}", self.name));
        // Later requests use slots in another order, as a guest's driver does.
        let other = self.random.below(u64::from(SLOTS)) as usize;
        if self.slots[other].is_none() && self.wants.len() > 1 {
            self.wants.rotate_left(1);
        }
    }
}

// A vhost-user front-end's messages: each is said when the one before it was answered, if that has an answer.
//
// A wire brings descriptors with whichever bytes come next (`net.rs`), so a message with descriptors has to follow one
// that is answered.

/// Answer that a message expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Nothing.
    Nothing,
    /// A number, 0 if it was done: the front-end asks for that.
    Ack,
    /// The message always has an answer.
    Own,
}

struct Saying {
    message: Message,
    payload: Vec<u8>,
    files: Vec<OwnedFd>,
    answer: Answer,
}

/// Messages to come, and the one whose answer is awaited.
#[derive(Default)]
pub struct Talk {
    pipe: Option<SharedPipe>,
    to_come: VecDeque<Saying>,
    awaited: Option<(Message, Answer)>,
    received: Vec<u8>,
}

/// The bytes of a message's numbers.
pub fn payload(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl Talk {
    /// A conversation on `pipe`, in which nothing is to come yet.
    pub fn new(pipe: SharedPipe) -> Talk {
        Talk { pipe: Some(pipe), ..Talk::default() }
    }

    /// There is no connection.
    pub fn is_away(&self) -> bool {
        self.pipe.is_none()
    }

    /// The front-end closes the connection.
    pub fn leave(&mut self) {
        self.pipe.iter().for_each(|pipe| pipe.borrow_mut().is_left = true);
        *self = Talk::default();
    }

    /// All messages were said and answered.
    pub fn is_over(&self) -> bool {
        self.to_come.is_empty() && self.awaited.is_none()
    }

    /// One more message, with copies of `files`.
    pub fn say(&mut self, message: Message, payload: Vec<u8>, files: &[&OwnedFd], answer: Answer) {
        let files = files.iter().map(|file| file.try_clone().expect("a descriptor")).collect();
        self.to_come.push_back(Saying { message, payload, files, answer });
    }

    /// Calls `hear` with each answer that has come, and says the next message. True: something happened. `None`: there
    /// is no connection, or the server has ended it.
    ///
    /// # Panics
    /// If an answer belongs to another message.
    pub fn turn(&mut self, mut hear: impl FnMut(Message, &[u8], &[OwnedFd])) -> Option<bool> {
        let pipe = self.pipe.clone()?;
        let (bytes, files, is_shut) = {
            let mut pipe = pipe.borrow_mut();
            let files = std::mem::take(&mut pipe.descriptors_to_client);
            (std::mem::take(&mut pipe.to_client), files, pipe.is_shut)
        };
        let mut has_moved = !bytes.is_empty();
        self.received.extend(bytes);
        if is_shut {
            *self = Talk::default();
            return None;
        }
        loop {
            match (self.answered(), self.awaited) {
                (Some((message, payload)), _) => hear(message, &payload, &files),
                (None, None) if !self.to_come.is_empty() => self.speak(&pipe),
                _ => return Some(has_moved),
            }
            has_moved = true;
        }
    }

    fn answered(&mut self) -> Option<(Message, Vec<u8>)> {
        let (message, answer) = self.awaited?;
        let header = Header::read(&self.received)?;
        let length = HEADER_BYTES + header.size as usize;
        if self.received.len() < length {
            return None;
        }
        let payload: Vec<u8> = self.received.drain(..length).skip(HEADER_BYTES).collect();
        assert_eq!(header.request, message as u32, "an answer to another message than {message:?} ({answer:?})");
        self.awaited = None;
        Some((message, payload))
    }

    fn speak(&mut self, pipe: &SharedPipe) {
        let Some(Saying { message: number, payload, files, answer }) = self.to_come.pop_front() else { return };
        let flags = if answer == Answer::Ack { FLAG_NEED_REPLY } else { 0 };
        let mut pipe = pipe.borrow_mut();
        pipe.to_server.extend(message(number as u32, flags, &payload));
        pipe.descriptors.extend(files);
        self.awaited = (answer != Answer::Nothing).then_some((number, answer));
    }
}
