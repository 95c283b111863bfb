//! A client that speaks NBD: what it asks for, and whether the answers are right.
//!
//! It says what a client must (fixed newstyle, structured replies or not, `NBD_OPT_GO`), has so many requests under
//! way, has the oracle judge each answer, and takes each reply once.

use crate::net::SharedPipe;
use crate::oracle::{Oracle, SECTOR_BYTES};
use mqfq_blk::random::Random;
use mqfq_front::nbd::wire::{
    BASE_ALLOCATION, CHUNK_HEADER_BYTES, CHUNK_MAGIC, EXTENDED_CHUNK_HEADER_BYTES, EXTENDED_CHUNK_MAGIC,
    GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, RequestHeader, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC,
    STATE_ZERO, chunk, handshake, option, option_reply, request,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Commands by number, as the protocol has them.
mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Request that a client is to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Reads sectors: from, count.
    Read(usize, usize),
    /// Asks which of them are holes.
    Status(usize, usize),
    /// Writes them; FUA.
    Write(usize, usize, bool),
    /// Makes zeroes of them: trim, or write zeroes; FUA.
    Zero(usize, usize, bool, bool),
    /// Flush.
    Flush,
}

impl Want {
    /// One of many, inside `region` for what it writes and anywhere for what it reads.
    pub fn draw(random: &mut Random, region: (usize, usize), sectors: usize) -> Want {
        let count = |random: &mut Random, most: usize| match random.below(256) {
            // All of it: more than a piece of a connection's memory, where the region is.
            0 => most,
            1..4 => 1 + random.below(most as u64) as usize,
            4..20 => 1 + random.below(40.min(most as u64)) as usize,
            20..96 => 8.min(most),
            _ => 1 + random.below(4.min(most as u64)) as usize,
        };
        let (low, high) = region;
        let own = |random: &mut Random| {
            let count = count(random, high - low);
            (low + random.below((high - low - count + 1) as u64) as usize, count)
        };
        match random.below(100) {
            0..44 => {
                let count = count(random, sectors);
                Want::Read(random.below((sectors - count + 1) as u64) as usize, count)
            }
            44..80 => {
                let (from, count) = own(random);
                Want::Write(from, count, false)
            }
            80..87 => {
                let (from, count) = own(random);
                Want::Write(from, count, true)
            }
            87..94 => {
                let (from, count) = own(random);
                Want::Zero(from, count, random.chance(32768), random.chance(16384))
            }
            _ => Want::Flush,
        }
    }
}

impl Want {
    /// The first sector; `None`: of a flush.
    fn from(self) -> Option<usize> {
        match self {
            Want::Read(from, _) | Want::Status(from, _) | Want::Write(from, ..) | Want::Zero(from, ..) => Some(from),
            Want::Flush => None,
        }
    }
}

/// A request under way.
struct UnderWay {
    want: Want,
    values: Vec<u64>,
    asked_at: u64,
    /// Bytes of a read, as chunks come; of a status one for each sector.
    bytes: Vec<u8>,
    error: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Away,
    Greeting,
    /// Options were sent; the answer to the last of them ends the handshake.
    Options,
    Ready,
}

/// Manners of a client.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// It asks for structured replies.
    pub structured: bool,
    /// Requests under way at once.
    pub depth: usize,
    /// Bytes that the server receives at once, at most.
    pub piece_bytes: usize,
}

impl Manners {
    /// Its headers are extended: half of those who ask for structured replies, without another draw.
    pub fn is_extended(&self) -> bool {
        self.structured && self.depth.is_multiple_of(2)
    }
}

/// Counts of all clients.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Requests that were answered well.
    pub good: u64,
    /// Requests that were answered with an error.
    pub failed: u64,
    /// Requests whose answer never came: the connection had ended.
    pub forsaken: u64,
    /// Handshakes that came through.
    pub sessions: u64,
}

impl Counts {
    /// Both.
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            good: self.good + other.good,
            failed: self.failed + other.failed,
            forsaken: self.forsaken + other.forsaken,
            sessions: self.sessions + other.sessions,
        }
    }
}

impl std::fmt::Display for NbdClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// One client.
pub struct NbdClient {
    name: String,
    oracle: Rc<RefCell<Oracle>>,
    region: (usize, usize),
    manners: Manners,
    pipe: Option<SharedPipe>,
    phase: Phase,
    received: Vec<u8>,
    wants: VecDeque<Want>,
    under_way: BTreeMap<u64, UnderWay>,
    next: u64,
    export: String,
    is_held: bool,
    /// See [`NbdClient::lost_read_bytes`].
    lost_read_bytes: usize,
    /// Errors are answers that may come.
    pub may_fail: bool,
    /// Counts of its requests.
    pub counts: Counts,
}

fn be<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("as many bytes")
}

impl NbdClient {
    /// A client of this export, not connected. It writes the sectors of `region`.
    pub fn new(
        name: String,
        export: String,
        oracle: Rc<RefCell<Oracle>>,
        region: (usize, usize),
        manners: Manners,
    ) -> NbdClient {
        NbdClient {
            name,
            oracle,
            region,
            manners,
            pipe: None,
            phase: Phase::Away,
            received: Vec::new(),
            wants: VecDeque::new(),
            under_way: BTreeMap::new(),
            next: 0,
            export,
            is_held: false,
            lost_read_bytes: 0,
            may_fail: false,
            counts: Counts::default(),
        }
    }

    /// Its export shows what this oracle judges from now on. Nothing is under way.
    pub fn judge_by(&mut self, oracle: &Rc<RefCell<Oracle>>) {
        assert!(self.under_way.is_empty(), "{}: its export is another one, and it has requests under way", self.name);
        self.oracle = oracle.clone();
    }

    /// Whether it has no connection.
    pub fn is_away(&self) -> bool {
        self.phase == Phase::Away
    }

    /// Whether it has an export.
    pub fn is_served(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Whether it holds its requests back, once it has an export.
    pub fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// How it speaks.
    pub fn manners(&self) -> Manners {
        self.manners
    }

    /// Begins its handshake.
    pub fn connect(&mut self, pipe: SharedPipe) {
        assert!(self.is_away());
        self.pipe = Some(pipe);
        self.phase = Phase::Greeting;
        self.received.clear();
    }

    /// Leaves: in the middle of everything, or after saying so.
    pub fn leave(&mut self, politely: bool) {
        if politely && self.phase == Phase::Ready {
            self.request(0, command::DISC, 0, 0, 0, &[]);
        }
        if let Some(pipe) = &self.pipe {
            pipe.borrow_mut().is_left = true;
        }
        self.lose();
    }

    /// More to ask for. One request in eight is a run of neighbours, which the server may join.
    pub fn want(&mut self, count: u64, random: &mut Random) {
        let sectors = self.oracle.borrow().sectors();
        for _ in 0..count {
            let mut want = Want::draw(random, self.region, sectors);
            // Some of the reads, without another draw.
            if let Want::Read(from, count) = want
                && self.manners.structured
                && (from + count).is_multiple_of(5)
            {
                want = Want::Status(from, count);
            }
            self.wants.push_back(want);
            if let Want::Write(from, count, _) = want
                && random.chance(16384)
            {
                let mut next = from + count;
                while next + count <= self.region.1 && random.chance(49152) {
                    self.wants.push_back(Want::Write(next, count, random.chance(16384)));
                    next += count;
                }
            }
        }
    }

    /// More to ask for, all of it with FUA. Half of the time a write of all that it may write comes first, of which
    /// pieces are left for long.
    pub fn want_stable(&mut self, count: u64, random: &mut Random) {
        let (sectors, (low, high)) = (self.oracle.borrow().sectors(), self.region);
        if random.chance(32768) {
            self.wants.push_back(Want::Write(low, high - low, true));
        }
        for _ in 0..count {
            self.wants.push_back(match Want::draw(random, self.region, sectors) {
                Want::Write(from, count, _) => Want::Write(from, count, true),
                Want::Zero(from, count, is_trim, _) => Want::Zero(from, count, is_trim, true),
                want => want,
            });
        }
    }

    /// Reads all of its export.
    pub fn want_all(&mut self) {
        let sectors = self.oracle.borrow().sectors();
        self.wants.extend((0..sectors).step_by(16).map(|from| Want::Read(from, 16.min(sectors - from))));
    }

    /// Nothing is wanted and nothing under way.
    pub fn is_idle(&self) -> bool {
        self.wants.is_empty() && self.under_way.is_empty()
    }

    /// Requests under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Largest read that was under way without structured replies when its connection ended last, bytes.
    pub fn lost_read_bytes(&self) -> usize {
        self.lost_read_bytes
    }

    fn lose(&mut self) {
        self.pipe = None;
        self.phase = Phase::Away;
        let reads = self.under_way.values().map(|request| match request.want {
            Want::Read(_, count) if !self.manners.structured => count * SECTOR_BYTES,
            _ => 0,
        });
        self.lost_read_bytes = reads.max().unwrap_or(0);
        let mut oracle = self.oracle.borrow_mut();
        for (_, UnderWay { want, .. }) in std::mem::take(&mut self.under_way) {
            self.counts.forsaken += 1;
            match want {
                Want::Read(from, count) | Want::Status(from, count) => oracle.forsaken(from, count, false),
                Want::Write(from, count, _) | Want::Zero(from, count, ..) => oracle.forsaken(from, count, true),
                Want::Flush => {}
            }
        }
    }

    /// Reads what came, and asks for more. True: something happened.
    pub fn turn(&mut self) -> bool {
        let Some(pipe) = self.pipe.clone() else { return false };
        let (has_come, is_over) = {
            let mut pipe = pipe.borrow_mut();
            let has_come = !pipe.to_client.is_empty();
            if self.received.is_empty() {
                std::mem::swap(&mut self.received, &mut pipe.to_client);
            } else {
                self.received.append(&mut pipe.to_client);
            }
            (has_come, pipe.is_shut)
        };
        let mut has_moved = has_come;
        if has_come {
            self.parse();
        }
        if is_over {
            self.lose();
            return true;
        }
        if self.phase == Phase::Ready && !self.is_held {
            has_moved |= self.ask();
        }
        has_moved
    }

    fn say(&self, bytes: &[u8]) {
        if let Some(pipe) = &self.pipe {
            pipe.borrow_mut().to_server.extend(bytes);
        }
    }

    fn request(&self, flags: u16, command: u16, cookie: u64, offset: u64, length: u32, payload: &[u8]) {
        let mut bytes = Vec::with_capacity(32 + payload.len());
        let length_bytes = u64::from(length);
        let mut header = RequestHeader { flags, command, cookie, offset_bytes: offset, length_bytes };
        if self.manners.is_extended() {
            header.flags |= if command == command::WRITE { request::PAYLOAD } else { 0 };
            header.encode_extended(&mut bytes);
        } else {
            header.encode(&mut bytes);
        }
        bytes.extend_from_slice(payload);
        self.say(&bytes);
    }

    /// Asks for what is wanted, as far as it may have under way.
    fn ask(&mut self) -> bool {
        let mut has_moved = false;
        while self.under_way.len() < self.manners.depth {
            let Some(want) = self.wants.pop_front() else { break };
            has_moved = true;
            let oracle = self.oracle.clone();
            let mut oracle = oracle.borrow_mut();
            let place = |from: usize| (from * SECTOR_BYTES) as u64;
            let length = |count: usize| (count * SECTOR_BYTES) as u32;
            let mut values = Vec::new();
            let asked_at = oracle.tick();
            let cookie = self.next;
            match want {
                Want::Read(from, count) => {
                    oracle.read_begins(from, count);
                    self.request(0, command::READ, cookie, place(from), length(count), &[]);
                }
                Want::Status(from, count) => {
                    oracle.read_begins(from, count);
                    self.request(0, command::BLOCK_STATUS, cookie, place(from), length(count), &[]);
                }
                Want::Write(from, count, _) | Want::Zero(from, count, ..) if !oracle.is_free(from, count) => continue,
                Want::Write(from, count, fua) => {
                    let mut bytes = Vec::with_capacity(count * SECTOR_BYTES);
                    values = oracle.write_begins(from, count, false, &mut bytes);
                    let flags = if fua { request::FUA } else { 0 };
                    self.request(flags, command::WRITE, cookie, place(from), length(count), &bytes);
                }
                Want::Zero(from, count, is_trim, fua) => {
                    values = oracle.write_begins(from, count, true, &mut Vec::new());
                    let flags = if fua { request::FUA } else { 0 };
                    let command = if is_trim { command::TRIM } else { command::WRITE_ZEROES };
                    self.request(flags, command, cookie, place(from), length(count), &[]);
                }
                Want::Flush => self.request(0, command::FLUSH, cookie, 0, 0, &[]),
            }
            self.next += 1;
            self.under_way.insert(cookie, UnderWay { want, values, asked_at, bytes: Vec::new(), error: 0 });
        }
        has_moved
    }

    /// Takes the messages of the server that are whole.
    fn parse(&mut self) {
        let bytes = std::mem::take(&mut self.received);
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            let used = match self.phase {
                Phase::Away => rest.len(),
                Phase::Greeting => self.greeting(rest),
                Phase::Options => self.option_reply(rest),
                Phase::Ready => self.answer(rest),
            };
            if used == 0 {
                break;
            }
            at += used;
        }
        self.received = bytes;
        self.received.drain(..at);
    }

    fn greeting(&mut self, bytes: &[u8]) -> usize {
        if bytes.len() < 18 {
            return 0;
        }
        assert_eq!(u64::from_be_bytes(be(bytes, 0)), GREETING_MAGIC);
        assert_eq!(u64::from_be_bytes(be(bytes, 8)), OPTION_MAGIC);
        let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        let mut said = u32::from(flags).to_be_bytes().to_vec();
        let mut option = |number: u32, data: &[u8]| {
            said.extend(OPTION_MAGIC.to_be_bytes());
            said.extend(number.to_be_bytes());
            said.extend((data.len() as u32).to_be_bytes());
            said.extend_from_slice(data);
        };
        let name = self.export.as_bytes();
        let counted = |text: &[u8]| [&(text.len() as u32).to_be_bytes()[..], text].concat();
        if self.manners.structured {
            option(if self.manners.is_extended() { option::EXTENDED_HEADERS } else { option::STRUCTURED_REPLY }, &[]);
            let query = counted(BASE_ALLOCATION.as_bytes());
            option(option::SET_META_CONTEXT, &[&counted(name)[..], &1u32.to_be_bytes(), &query].concat());
        }
        option(option::GO, &[&counted(name)[..], &0u16.to_be_bytes()].concat());
        self.say(&said);
        self.phase = Phase::Options;
        18
    }

    fn option_reply(&mut self, bytes: &[u8]) -> usize {
        if bytes.len() < 20 {
            return 0;
        }
        assert_eq!(u64::from_be_bytes(be(bytes, 0)), OPTION_REPLY_MAGIC);
        let [number, kind, length] = [8, 12, 16].map(|at| u32::from_be_bytes(be(bytes, at)));
        if bytes.len() < 20 + length as usize {
            return 0;
        }
        if number == option::GO && kind == option_reply::ACK {
            self.phase = Phase::Ready;
            self.counts.sessions += 1;
        } else if number == option::GO && kind >= 1 << 31 {
            // The export is not there now.
            self.leave(false);
        }
        20 + length as usize
    }

    fn answer(&mut self, bytes: &[u8]) -> usize {
        if bytes.len() < SIMPLE_REPLY_BYTES {
            return 0;
        }
        let magic = u32::from_be_bytes(be(bytes, 0));
        let cookie = u64::from_be_bytes(be(bytes, 8));
        let name = self.name.clone();
        let lost = || panic!("exactly once (I10): {name} got an answer to {cookie}, which is not under way");
        if magic == SIMPLE_REPLY_MAGIC {
            let error = u32::from_be_bytes(be(bytes, 4));
            let under_way = self.under_way.get_mut(&cookie).unwrap_or_else(lost);
            assert!(!self.manners.structured || !matches!(under_way.want, Want::Read(..)), "{}", self.name);
            let payload = match under_way.want {
                Want::Read(_, count) if error == 0 => count * SECTOR_BYTES,
                _ => 0,
            };
            if bytes.len() < SIMPLE_REPLY_BYTES + payload {
                return 0;
            }
            under_way.bytes.extend_from_slice(&bytes[SIMPLE_REPLY_BYTES..][..payload]);
            under_way.error = error;
            self.ended(cookie);
            return SIMPLE_REPLY_BYTES + payload;
        }
        let is_extended = self.manners.is_extended();
        let (expected, header_bytes) = match is_extended {
            false => (CHUNK_MAGIC, CHUNK_HEADER_BYTES),
            true => (EXTENDED_CHUNK_MAGIC, EXTENDED_CHUNK_HEADER_BYTES),
        };
        assert_eq!(magic, expected, "{}: a reply begins with its magic", self.name);
        if bytes.len() < header_bytes {
            return 0;
        }
        let [flags, kind] = [4, 6].map(|at| u16::from_be_bytes(be(bytes, at)));
        // The lower half of an extended length, whose upper half is 0.
        let length = u32::from_be_bytes(be(bytes, header_bytes - 4)) as usize;
        if bytes.len() < header_bytes + length {
            return 0;
        }
        let under_way = self.under_way.get_mut(&cookie).unwrap_or_else(lost);
        if is_extended {
            let asked = under_way.want.from().map_or(0, |from| (from * SECTOR_BYTES) as u64);
            let told = [16, 24].map(|at| u64::from_be_bytes(be(bytes, at)));
            assert_eq!(told, [asked, length as u64], "{}: offset and length of {:?}", self.name, under_way.want);
        }
        let data = &bytes[header_bytes..][..length];
        if kind == chunk::OFFSET_DATA {
            let Want::Read(from, count) = under_way.want else {
                panic!("{}: data for {:?}", self.name, under_way.want)
            };
            let at = u64::from_be_bytes(be(data, 0)) as usize - from * SECTOR_BYTES;
            under_way.bytes.resize(count * SECTOR_BYTES, 0xee);
            under_way.bytes[at..at + length - 8].copy_from_slice(&data[8..]);
        } else if kind == if is_extended { chunk::BLOCK_STATUS_EXT } else { chunk::BLOCK_STATUS } {
            // As many bytes as extents say: 1, where they read as zero.
            let (numbers, size) = if is_extended { (&data[8..], 8) } else { (&data[4..], 4) };
            let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            for extent in numbers.chunks_exact(2 * size) {
                let (length, flags) = (number(&extent[..size]), number(&extent[size..]));
                assert!(length > 0 && length.is_multiple_of(SECTOR_BYTES as u64), "{}: {length}", self.name);
                let is_zero = u8::from(flags & u64::from(STATE_ZERO) != 0);
                under_way.bytes.extend(std::iter::repeat_n(is_zero, length as usize / SECTOR_BYTES));
            }
        } else if kind >> 15 != 0 {
            under_way.error = u32::from_be_bytes(be(data, 0));
        }
        if flags & chunk::DONE != 0 {
            self.ended(cookie);
        }
        header_bytes + length
    }

    fn ended(&mut self, cookie: u64) {
        let UnderWay { want, values, asked_at, bytes, error } = self.under_way.remove(&cookie).expect("looked at");
        let is_good = error == 0;
        assert!(is_good || self.may_fail, "{}: {want:?} failed with error {error} and nothing is wrong", self.name);
        let counted = if is_good { &mut self.counts.good } else { &mut self.counts.failed };
        *counted += 1;
        let mut oracle = self.oracle.borrow_mut();
        if is_good {
            let judged = match want {
                Want::Read(from, count) | Want::Status(from, count) => {
                    oracle.may_end_well(asked_at, from, count, false)
                }
                Want::Write(from, count, _) | Want::Zero(from, count, ..) => {
                    oracle.may_end_well(asked_at, from, count, true)
                }
                Want::Flush => Ok(()),
            };
            judged.unwrap_or_else(|what| panic!("{}: {what}", self.name));
        }
        match want {
            Want::Read(from, count) => {
                let judged = oracle.read_ends(from, count, is_good.then_some(&bytes[..]));
                judged.unwrap_or_else(|what| panic!("{}: {what}", self.name));
            }
            Want::Status(from, count) => {
                assert!(!is_good || (1..=count).contains(&bytes.len()), "{}: {} sectors", self.name, bytes.len());
                for at in 0..count {
                    let is_zero = bytes.get(at).is_some_and(|is_zero| *is_zero == 1);
                    let judged = oracle.read_ends(from + at, 1, is_zero.then_some(&[0; SECTOR_BYTES][..]));
                    judged.unwrap_or_else(|what| panic!("{}: called a hole: {what}", self.name));
                }
            }
            Want::Write(from, _, fua) => oracle.write_ends(from, &values, is_good, fua),
            Want::Zero(from, _, _, fua) => oracle.write_ends(from, &values, is_good, fua),
            Want::Flush if is_good => oracle.flushed(asked_at),
            Want::Flush => {}
        }
    }
}
