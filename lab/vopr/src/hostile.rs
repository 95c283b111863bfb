//! Clients that mean harm, of NBD and below of vhost-user: their messages are half right, and they read nothing.
//!
//! Their tenant's export lies between those of others, so bytes that leave it are noticed where they do not belong.

use crate::guest::{Answer, Talk, payload};
use crate::net::{self, SharedPipe};
use crate::server::EXPORT_BYTES;
use mqfq_blk::foreign::ForeignMemory;
use mqfq_front::nbd::wire::{OPTION_MAGIC, REQUEST_MAGIC, handshake, option};
use mqfq_front::vhost_user_blk::disk::PROTOCOL;
use mqfq_front::vhost_user_blk::wire::{
    DESCRIPTOR_INDIRECT, DESCRIPTOR_NEXT, DESCRIPTOR_WRITE, Message, feature, request,
};
use mqfq_testing::Random;
use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;
use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A hostile client, which sends all its bytes at once.
pub struct Hostile {
    pipe: SharedPipe,
    random: mqfq_blk::random::Random,
    kind: u64,
    has_said: bool,
}

impl Hostile {
    /// `kind` 0: a handshake that is cut or spoilt; 1: a good one, then requests with fields out of range; 2: noise.
    pub fn new(pipe: SharedPipe, seed: u64, kind: u64, export: &str) -> Hostile {
        let mut hostile = Hostile { pipe, random: mqfq_blk::random::Random::new(seed), kind, has_said: false };
        hostile.say(export);
        hostile
    }

    fn say(&mut self, export: &str) {
        let mut bytes = match self.kind {
            0 => handshake_of(export),
            1 => {
                let mut bytes = handshake_of(export);
                (0..40).for_each(|_| self.request(&mut bytes));
                bytes
            }
            _ => (0..64).map(|_| self.random.next_u64() as u8).collect(),
        };
        if self.kind == 0 {
            let length = bytes.len() as u64;
            match self.random.below(3) {
                0 => bytes.truncate(self.random.below(length) as usize),
                1 => bytes[self.random.below(length) as usize] ^= 1 << self.random.below(8),
                _ => {}
            }
        }
        self.pipe.borrow_mut().to_server.extend(bytes);
        self.has_said = true;
    }

    /// A request whose numbers lie at edges.
    fn request(&mut self, out: &mut Vec<u8>) {
        const EDGES: [u64; 8] =
            [0, 511, 512, EXPORT_BYTES - 512, EXPORT_BYTES - 1, EXPORT_BYTES, u64::MAX - 511, u64::MAX];
        const LENGTHS: [u32; 7] = [0, 1, 512, 4096, 65536, 1 << 25, u32::MAX];
        let offset = EDGES[self.random.below(8) as usize];
        let length = LENGTHS[self.random.below(7) as usize];
        let command = self.random.below(9) as u16;
        out.extend(REQUEST_MAGIC.to_be_bytes());
        out.extend((self.random.below(16) as u16).to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(self.random.next_u64().to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend(length.to_be_bytes());
        if command == 1 && length <= 65536 {
            // A payload of its own, in which nothing has a tenant's name.
            out.resize(out.len() + length as usize, 0xa5);
        }
    }

    /// Disconnects the client.
    pub fn leave(&mut self) {
        self.pipe.borrow_mut().is_left = true;
    }

    /// Nothing: it does not read.
    pub fn turn(&mut self) -> bool {
        false
    }

    /// The server has closed its connection, or it has gone.
    pub fn is_over(&self) -> bool {
        let pipe = self.pipe.borrow();
        pipe.is_shut || pipe.is_left
    }
}

fn handshake_of(export: &str) -> Vec<u8> {
    let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
    let name = export.as_bytes();
    let data = [&(name.len() as u32).to_be_bytes()[..], name, &0u16.to_be_bytes()].concat();
    let mut bytes = u32::from(flags).to_be_bytes().to_vec();
    bytes.extend(OPTION_MAGIC.to_be_bytes());
    bytes.extend(option::GO.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

// Hostile front-ends of vhost-user and their guests, at the address of the hostile tenant.
//
// ```text
//   looks   messages that lead to no queue, with two eventfds for each of many queues; a crowd of such front-ends
//   guest   the messages of a good one, wrong ones between them (files of any kind and number, regions of any size),
//           then requests in up to 1022 places of memory, or descriptors without sense
// ```
//
// | what must hold | how it is looked at |
// |---|---|
// | a worker reads and signals eventfds alone | the bytes of a pipe that is passed stay as they are |
// | a guest has no more than 16 TiB mapped | the regions to which the server said yes |
// | descriptors are bounded, and all come back | the copies of the passed files in this process |
// | memory is given back | mappings of the passed file, the tenant's payload memory (`run.rs`) |

/// Most queues of a guest, and entries of each.
const QUEUES: u64 = 4;
const QUEUE_SIZE: u16 = 256;
/// A queue's part of the memory: its rings, a table of descriptors, a header, a status byte, data.
const PART_BYTES: usize = 0x40000;
const AVAIL_AT: usize = 0x4000;
const USED_AT: usize = 0x8000;
const TABLE_AT: usize = 0x10000;
const HEADER_AT: usize = 0x14000;
const DATA_AT: usize = 0x18000;
const MEMORY_BYTES: usize = QUEUES as usize * PART_BYTES;
/// The front-end's address of the memory.
const USER: u64 = 0x7f00_0000_0000;

/// Queues that a front-end names which only looks.
const LOOKED: u64 = 16;
/// Bytes in the pipe that is passed.
const PIPED: usize = 4096;
/// `mapped.rs`: what a guest may have mapped, bytes.
const MAPPED_MAX: u64 = 16 << 40;
/// Copies of the files at most: of eight front-ends that look and the one that has the disk two for each queue, one for
/// their own, and those of a message on its way.
const COPIES_MAX: usize = 9 * (2 * LOOKED as usize + 1 + 10);

/// The files that all hostile front-ends of a run pass.
pub struct Files {
    /// Memory, an eventfd, both ends of a pipe with bytes in it, a socket.
    all: [OwnedFd; 5],
    marks: Vec<PathBuf>,
    /// The first bytes of the first of them.
    memory: Arc<ForeignMemory>,
}

/// Which file a descriptor of this process names. All eventfds have one path; the kernel numbers them apart.
fn mark(descriptor: &Path) -> Option<PathBuf> {
    let link = std::fs::read_link(descriptor).ok()?;
    if link != Path::new("anon_inode:[eventfd]") {
        return Some(link);
    }
    let about = std::fs::read_to_string(Path::new("/proc/self/fdinfo").join(descriptor.file_name()?)).ok()?;
    about.lines().find(|line| line.starts_with("eventfd-id")).map(PathBuf::from)
}

impl Files {
    /// New files, of which there are no copies.
    pub fn new() -> Rc<Files> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only that it is another one matters.
        let name = format!("hostile-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let memory = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).expect("memory for a guest");
        rustix::fs::ftruncate(&memory, 1 << 46).expect("a file of holes");
        let mapped = ForeignMemory::map(memory.as_fd(), 0, MEMORY_BYTES).expect("memory for a guest");
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        writer.write_all(&[0x5a; PIPED]).expect("a pipe has room");
        let socket = UnixDatagram::unbound().expect("a socket").into();
        let all = [memory, eventfd(), reader.into(), writer.into(), socket];
        let named = |file: &OwnedFd| mark(&Path::new("/proc/self/fd").join(file.as_raw_fd().to_string()));
        let marks = all.iter().map(|file| named(file).expect("an open descriptor")).collect();
        Rc::new(Files { all, marks, memory: mapped })
    }

    fn event(&self) -> &OwnedFd {
        &self.all[1]
    }

    /// Descriptors of this process that name one of the files, beside their own.
    pub fn copies(&self) -> usize {
        let entries = std::fs::read_dir("/proc/self/fd").expect("/proc").flatten();
        let all = entries.filter_map(|entry| mark(&entry.path())).filter(|mark| self.marks.contains(mark)).count();
        // Both ends of a pipe have one mark.
        all - self.all.len()
    }

    /// Checks the bounds that hold at any time.
    ///
    /// # Panics
    /// If a worker touched a file that is no eventfd, or there are too many descriptors.
    pub fn assert_bounded(&self) {
        let piped = rustix::io::ioctl_fionread(&self.all[2]).expect("a pipe");
        assert_eq!(piped, PIPED as u64, "a worker read or signalled a stranger's pipe");
        let copies = self.copies();
        assert!(copies <= COPIES_MAX, "strangers have {copies} descriptors open, allowed are {COPIES_MAX} (I14)");
    }

    /// Checks that everything is back when no hostile front-end is left.
    ///
    /// # Panics
    /// If something of them is.
    pub fn assert_back(&self) {
        self.assert_bounded();
        assert_eq!(self.copies(), 0, "descriptors of strangers that have gone are open (I14)");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
        let name = self.marks[0].to_string_lossy();
        let mapped = maps.lines().filter(|line| line.ends_with(&*name)).count();
        assert_eq!(mapped, 1, "memory of strangers that have gone is mapped (I14)");
    }
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

/// One front-end.
pub struct HostileGuest {
    talk: Talk,
    files: Rc<Files>,
    random: Random,
    /// Kick of each queue that it sets up; none for a front-end that only looks.
    kicks: Vec<OwnedFd>,
    /// Bytes of each message about memory that was not answered, and whether they come to those before.
    asked: VecDeque<(bool, u64)>,
    mapped_bytes: u64,
    harm: Harm,
    has_offered: bool,
    has_spoilt: bool,
}

/// Attack of a hostile front-end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harm {
    /// It only looks.
    Looks,
    /// It says wrong things, and its guest floods a queue or breaks its rules.
    Lies,
    /// It says nothing wrong, and its guest breaks the rules of each queue.
    Breaks,
}

impl HostileGuest {
    /// One on `pipe`.
    pub fn new(pipe: SharedPipe, files: &Rc<Files>, seed: u64, harm: Harm) -> HostileGuest {
        let mut random = Random::new(seed);
        let queues = if harm == Harm::Looks { 0 } else { 1 + random.below(QUEUES) };
        let mut guest = HostileGuest {
            talk: Talk::new(pipe),
            files: files.clone(),
            random,
            kicks: (0..queues).map(|_| eventfd()).collect(),
            asked: VecDeque::new(),
            mapped_bytes: 0,
            harm,
            has_offered: false,
            has_spoilt: false,
        };
        guest.talk.say(Message::SetOwner, Vec::new(), &[], Answer::Nothing);
        guest.talk.say(Message::GetFeatures, Vec::new(), &[], Answer::Own);
        guest.talk.say(Message::SetProtocolFeatures, payload(&[PROTOCOL]), &[], Answer::Nothing);
        guest.talk.say(Message::GetQueueNum, Vec::new(), &[], Answer::Own);
        if harm == Harm::Looks {
            guest.look()
        } else {
            guest.set_up()
        }
        guest
    }

    fn ask(&mut self, message: Message, words: &[u64], files: &[&OwnedFd]) {
        self.talk.say(message, payload(words), files, Answer::Ack);
    }

    fn look(&mut self) {
        let files = self.files.clone();
        for queue in 0..LOOKED {
            self.ask(Message::SetVringCall, &[queue], &[files.event()]);
            self.ask(Message::SetVringErr, &[queue], &[files.event()]);
        }
    }

    /// Messages up to queues that run, and wrong ones between them.
    fn set_up(&mut self) {
        let files = self.files.clone();
        let features = feature::PROTOCOL_FEATURES | feature::VERSION_1 | feature::INDIRECT;
        self.ask(Message::SetFeatures, &[features], &[]);
        self.asked.push_back((false, MEMORY_BYTES as u64));
        self.ask(Message::SetMemTable, &[1, 0, MEMORY_BYTES as u64, USER, 0], &[&files.all[0]]);
        for queue in 0..self.kicks.len() as u64 {
            let kick = self.kicks[queue as usize].try_clone().expect("a descriptor");
            let part = USER + queue * PART_BYTES as u64;
            self.ask(Message::SetVringNum, &[queue | u64::from(QUEUE_SIZE) << 32], &[]);
            self.ask(Message::SetVringBase, &[queue], &[]);
            self.ask(Message::SetVringAddr, &[queue, part, part + USED_AT as u64, part + AVAIL_AT as u64, 0], &[]);
            self.ask(Message::SetVringCall, &[queue], &[files.event()]);
            self.ask(Message::SetVringKick, &[queue], &[&kick]);
            self.ask(Message::SetVringEnable, &[queue | 1 << 32], &[]);
            let wrong = if self.harm == Harm::Breaks { 0 } else { self.random.below(8) };
            (0..wrong).for_each(|_| self.say_wrong());
        }
    }

    /// A message with files, of which at least one thing is seldom right.
    fn say_wrong(&mut self) {
        const BYTES: [u64; 7] = [0, 4096, 1 << 40, 7 << 40, 16 << 40, 1 << 46, u64::MAX];
        let files = self.files.clone();
        let queue = self.random.below(QUEUES);
        let (bytes, at) = (self.random.of(&BYTES), (1 + self.random.below(15)) << 44);
        let words = match self.random.below(8) {
            0 => (Message::SetVringCall, vec![queue]),
            1 => (Message::SetVringErr, vec![queue]),
            2 => (Message::SetVringKick, vec![queue]),
            3 => (Message::SetBackendReqFd, vec![]),
            4 => (Message::SetLogBase, vec![bytes, 0]),
            5 => (Message::SetInflightFd, vec![bytes, 0, u64::from(QUEUE_SIZE) << 16 | 1]),
            _ => {
                self.asked.push_back((true, bytes));
                (Message::AddMemReg, vec![0, at, bytes, at, 0])
            }
        };
        // Now and then more than a message may have, after which the connection is closed.
        let count = if self.random.chance(16) { self.random.below(11) } else { 1 };
        // Memory is one of five, or the regions would all be refused for their file.
        let first = if words.0 == Message::AddMemReg && !self.random.chance(4) { 0 } else { self.random.index(5) };
        let passed: Vec<&OwnedFd> = (0..count).map(|number| &files.all[(first + number as usize) % 5]).collect();
        self.ask(words.0, &words.1, &passed);
    }

    /// Kicks all its queues, whether there is anything in them or not.
    pub fn kick(&self) {
        for kick in &self.kicks {
            let _ = net::ring(kick.as_fd());
        }
    }

    /// It leaves in the middle of everything.
    pub fn leave(&mut self) {
        self.talk.leave();
    }

    /// There is no connection any more.
    pub fn is_over(&self) -> bool {
        self.talk.is_away()
    }

    /// Its messages were answered and its requests offered. Bytes that it has mapped then.
    pub fn mapped_bytes(&self) -> Option<u64> {
        self.has_offered.then_some(self.mapped_bytes)
    }

    /// It has broken the rules of one of its queues.
    pub fn has_spoilt(&self) -> bool {
        self.has_spoilt
    }

    /// Says what comes next, and offers requests once. True: something happened.
    ///
    /// # Panics
    /// If the server maps more than it may.
    pub fn turn(&mut self) -> bool {
        let (asked, mapped_bytes) = (&mut self.asked, &mut self.mapped_bytes);
        let talked = self.talk.turn(|message, answer, _| {
            if !matches!(message, Message::AddMemReg | Message::SetMemTable) {
                return;
            }
            let (adds, bytes) = asked.pop_front().expect("one for each such message");
            if answer.iter().all(|byte| *byte == 0) {
                *mapped_bytes = if adds { *mapped_bytes + bytes } else { bytes };
                assert!(*mapped_bytes <= MAPPED_MAX, "a guest has {mapped_bytes} bytes mapped (I14)");
            }
        });
        let Some(has_moved) = talked else { return false };
        if !self.talk.is_over() || std::mem::replace(&mut self.has_offered, true) {
            return has_moved;
        }
        for queue in 0..self.kicks.len() {
            if self.harm == Harm::Breaks || self.random.chance(4) {
                self.spoil(queue);
            } else {
                self.flood(queue);
            }
        }
        self.kick();
        true
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.files.memory.copy_from(at, bytes), "inside the guest's memory");
    }

    fn descriptor(&self, at: usize, address: u64, length: u32, flags: u16, next: u16) {
        let (address, length) = (address.to_le_bytes(), length.to_le_bytes());
        self.write(at, &[&address[..], &length, &flags.to_le_bytes(), &next.to_le_bytes()].concat());
    }

    fn offer(&self, part: usize, heads: impl Iterator<Item = u16>, index: u16) {
        for (place, head) in heads.enumerate() {
            self.write(part + AVAIL_AT + 4 + place * 2, &head.to_le_bytes());
        }
        // Release: pairs with the Acquire of the server that reads the index: it sees the heads before it.
        self.files.memory.atomic_u16(part + AVAIL_AT + 2).expect("inside").store(index, Ordering::Release);
    }

    /// Requests whose data lie in as many places as one may have, all by one table of descriptors.
    fn flood(&mut self, queue: usize) {
        let part = queue * PART_BYTES;
        let kind = self.random.of(&[request::GET_ID, request::GET_ID, request::IN, request::OUT]);
        let places = self.random.of(&[9, 100, 380, 1022]);
        let heads = self.random.of(&[1, 16, 64, QUEUE_SIZE]);
        let header = [&kind.to_le_bytes()[..], &[0; 12]].concat();
        self.write(part + HEADER_AT, &header);
        let at = |number: u16| part + TABLE_AT + usize::from(number) * 16;
        self.descriptor(at(0), (part + HEADER_AT) as u64, 16, DESCRIPTOR_NEXT, 1);
        let flags = DESCRIPTOR_NEXT | if kind == request::OUT { 0 } else { DESCRIPTOR_WRITE };
        for number in 1..=places {
            // None begins where the one before it ends.
            let data = part + DATA_AT + usize::from(number % 2) * 4096;
            self.descriptor(at(number), data as u64, 512, flags, number + 1);
        }
        self.descriptor(at(places + 1), (part + HEADER_AT + 16) as u64, 1, DESCRIPTOR_WRITE, 0);
        for head in 0..heads {
            let length = (u32::from(places) + 2) * 16;
            let table = (part + TABLE_AT) as u64;
            self.descriptor(part + usize::from(head) * 16, table, length, DESCRIPTOR_INDIRECT, 0);
        }
        self.offer(part, 0..heads, heads);
    }

    /// Descriptors, heads and an index without sense.
    fn spoil(&mut self, queue: usize) {
        const ADDRESSES: [u64; 5] = [0, 0x14000, MEMORY_BYTES as u64 - 1, 1 << 44, u64::MAX - 7];
        const LENGTHS: [u32; 5] = [0, 1, 16, 4096, u32::MAX];
        let part = queue * PART_BYTES;
        self.has_spoilt = true;
        for number in 0..64 {
            let (address, length) = (self.random.of(&ADDRESSES), self.random.of(&LENGTHS));
            let (flags, next) = (self.random.below(8) as u16, self.random.below(80) as u16);
            self.descriptor(part + number * 16, address, length, flags, next);
        }
        let heads: Vec<u16> = (0..16).map(|_| self.random.below(300) as u16).collect();
        let index = self.random.of(&[1, 16, 1000]);
        self.offer(part, heads.into_iter(), index);
    }
}
