//! The client's half of the transmission phase: requests out of a stream of bytes.
//!
//! No I/O: bytes in, and one [`Taken`] for each request. How the bytes were cut into receives makes no difference to
//! what is taken. A request is validated completely ([`super::validate`]) before a byte of memory is spent on it.
//!
//! # Shape
//! ```text
//! header ─▶ valid ─▶ fits the limits? ─ no ─▶ Full (nothing used, try again later)
//!    │                     └─ yes ─▶ Request; a write first gathers its payload
//!    │                               LargeWrite, then a Piece each time that one has gathered
//!    └──▶ refused; the payload of a write is skipped
//! ```
//!
//! # Pieces
//! The payload of a write longer than [`Limits::piece_bytes`] is taken in pieces, each with memory of its own, so what
//! a client announces costs nothing before it comes. Pieces end at multiples of their size in the export. Reads longer
//! than a piece are cut by the caller.
//!
//! # Payloads without a copy
//! Where much of a payload is missing, the caller takes the buffer out ([`Transmission::take_payload`]), receives into
//! it, and puts it back.
//!
//! # Bounds
//! A request counts from when it is taken until the caller says that its reply left ([`Transmission::replied`]); the
//! memory of its payload until the caller gives it back to the [`Account`]. Past the limits nothing is taken, so a
//! client that does not read its replies stops only itself. One request or piece always fits.

use super::large::Large;
use super::rule::Rule;
use super::validate::{Action, Session, validate};
use super::wire::{Command, EXTENDED_REQUEST_BYTES, EXTENDED_REQUEST_MAGIC};
use super::wire::{NO_MAGIC, REQUEST_BYTES, REQUEST_MAGIC, RequestHeader, request};
use crate::memory::{Account, Short};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::extents::{self, EXTENTS_MAX, SHEET_BYTES};
use mqfq_blk::request::Op;
use mqfq_blk::state::{StateFault, StateReader, StateWriter, demand};

/// Longest payload of a refused write that is skipped, bytes; a client that announces more is closed. Twice what any
/// client may send unasked, because libnbd and fio go up to 64 MiB.
pub const SKIPPED_BYTES_MAX: u32 = 64 << 20;

/// Limits of the requests that one connection has under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Requests without a sent reply, at least 1.
    pub requests_max: usize,
    /// Memory of their payloads, bytes.
    pub bytes_max: u64,
    /// Largest piece of a payload, bytes: a power of two, at least the export's minimum block.
    pub piece_bytes: u32,
}

/// Bytes up to the next multiple of `piece_bytes` after `offset_bytes`, at most `left_bytes`.
pub fn piece_length(offset_bytes: u64, left_bytes: u64, piece_bytes: u32) -> u32 {
    let to_boundary = u64::from(piece_bytes) - (offset_bytes & (u64::from(piece_bytes) - 1));
    left_bytes.min(to_boundary) as u32
}

/// A valid and complete request for the device.
#[derive(Debug)]
pub struct Request {
    /// The client's name for it.
    pub cookie: u64,
    /// Operation.
    pub op: Op,
    /// Stable before the reply.
    pub fua: bool,
    /// First byte, in the export.
    pub offset_bytes: u64,
    /// Length; 0 for a flush.
    pub length_bytes: u64,
    /// The bytes of a write; of a block status room for its answer ([`extents`]).
    pub buffer: Option<Buffer>,
}

/// A piece of a large write that has come.
#[derive(Debug)]
pub struct Piece {
    /// First byte, in the export.
    pub offset_bytes: u64,
    /// Length, not 0.
    pub length_bytes: u32,
    /// The bytes.
    pub buffer: Buffer,
    /// No piece of this write follows.
    pub is_last: bool,
}

/// Result of the bytes.
#[derive(Debug)]
pub enum Taken {
    /// More bytes are needed than those given.
    More,
    /// A request waits that does not fit the limits. Try again after `replied`, or when the account was given
    /// something.
    Full,
    /// A request or piece waits for memory that others hold. Try again after a while.
    NoMemory,
    /// The request is to be executed. A read longer than a piece has no memory yet.
    Request(Request),
    /// A write longer than a piece: its pieces follow, in order.
    LargeWrite(Request),
    /// A piece of the last [`Taken::LargeWrite`].
    Piece(Piece),
    /// The request is answered with the rule's error.
    Refused {
        /// The client's name for it.
        cookie: u64,
        /// First byte that it names.
        offset_bytes: u64,
        /// Command, if known.
        command: Option<Command>,
        /// Rule that it broke.
        rule: Rule,
    },
    /// The client is done: answer what is under way, then close.
    Disconnect,
    /// The stream makes no sense from here on: answer what is under way, then close.
    Broken(Rule),
}

impl Taken {
    fn of(short: Short) -> Taken {
        match short {
            Short::Connection => Taken::Full,
            Short::Shared => Taken::NoMemory,
        }
    }
}

/// The transmission phase of one connection.
#[derive(Debug)]
pub struct Transmission {
    session: Session,
    limits: Limits,
    stage: Stage,
    requests: usize,
    account: Account,
    /// Magic of a compact header, if the session has those.
    compact_magic: u64,
}

/// Magic of the compact headers of a session.
fn compact_magic(session: &Session) -> u64 {
    if session.extended { NO_MAGIC } else { REQUEST_MAGIC.into() }
}

#[derive(Debug)]
enum Stage {
    Header,
    Payload(Payload),
    Skip { left_bytes: usize },
    Over,
}

/// A write whose payload is not complete, or the piece of it that comes now.
#[derive(Debug)]
struct Payload {
    cookie: u64,
    fua: bool,
    offset_bytes: u64,
    length_bytes: u32,
    filled_bytes: usize,
    /// Bytes of a large write that follow this piece. `None`: a write of one piece.
    after_bytes: Option<u32>,
    memory: Memory,
}

/// Where the buffer of a payload is.
#[derive(Debug)]
enum Memory {
    /// No buffer was taken yet.
    None,
    Here(Buffer),
    /// The caller has it.
    Lent,
}

impl Payload {
    fn missing_bytes(&self) -> usize {
        self.length_bytes as usize - self.filled_bytes
    }
}

impl Transmission {
    /// The beginning of the phase.
    pub fn new(session: Session, limits: Limits) -> Transmission {
        assert!(limits.piece_bytes.is_power_of_two(), "pieces of {} bytes have no boundaries", limits.piece_bytes);
        let account = Account::new(session.export.memory.clone(), limits.bytes_max);
        let compact_magic = compact_magic(&session);
        Transmission { session, limits, stage: Stage::Header, requests: 0, account, compact_magic }
    }

    /// Session agreed on.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// No request has begun that is not complete: a client may leave here. The caller knows whether it holds back
    /// bytes of a header.
    pub fn between_requests(&self) -> bool {
        matches!(self.stage, Stage::Header | Stage::Over)
    }

    /// `count` replies have left.
    pub fn replied(&mut self, count: usize) {
        assert!(count <= self.requests, "{count} replies left, {} requests were under way", self.requests);
        self.requests -= count;
    }

    /// The connection's payload memory.
    pub fn account(&mut self) -> &mut Account {
        &mut self.account
    }

    /// Largest piece of a payload, bytes.
    pub fn piece_bytes(&self) -> u32 {
        self.limits.piece_bytes
    }

    /// Requests under way, and bytes of payload memory.
    pub fn under_way(&self) -> (usize, u64) {
        (self.requests, self.account.held_bytes())
    }

    /// Takes at most one request off `input`. Returns the bytes used, and what came of them.
    pub fn advance(&mut self, input: &[u8]) -> (usize, Taken) {
        let mut used = 0;
        if let Stage::Skip { left_bytes } = &mut self.stage {
            used = input.len().min(*left_bytes);
            *left_bytes -= used;
            if *left_bytes > 0 {
                return (used, Taken::More);
            }
            self.stage = Stage::Header;
        }
        if let Stage::Header = self.stage {
            let Some(bytes) = input[used..].first_chunk::<REQUEST_BYTES>() else { return (used, Taken::More) };
            let Some(header) = RequestHeader::decode(bytes, self.compact_magic) else {
                return self.advance_extended(input, used);
            };
            match self.header(&header) {
                Some(unfit @ (Taken::Full | Taken::NoMemory)) => return (used, unfit),
                Some(taken) => return (used + REQUEST_BYTES, taken),
                None => used += REQUEST_BYTES,
            }
        }
        self.advance_payload(input, used)
    }

    /// [`Transmission::advance`] at a header that is no compact one.
    #[cold]
    fn advance_extended(&mut self, input: &[u8], used: usize) -> (usize, Taken) {
        let mut decoded = None;
        let is_extended = input[used..].starts_with(&EXTENDED_REQUEST_MAGIC.to_be_bytes());
        if self.session.extended && is_extended {
            let Some(bytes) = input[used..].first_chunk::<EXTENDED_REQUEST_BYTES>() else { return (used, Taken::More) };
            decoded = RequestHeader::decode_extended(bytes);
        }
        let Some(mut header) = decoded else {
            self.stage = Stage::Over;
            return (used + REQUEST_BYTES, Taken::Broken(Rule::BadRequestMagic));
        };
        let command = Command::from_number(header.command);
        let has_payload = header.flags & request::PAYLOAD != 0;
        header.flags &= !request::PAYLOAD;
        let taken = match has_payload != (command == Some(Command::Write)) && command != Some(Command::Disconnect) {
            true if self.requests >= self.limits.requests_max => Some(Taken::Full),
            true => {
                self.requests += 1;
                Some(self.refuse(&header, Rule::PayloadMismatch, if has_payload { header.length_bytes } else { 0 }))
            }
            false => self.header(&header),
        };
        match taken {
            Some(unfit @ (Taken::Full | Taken::NoMemory)) => (used, unfit),
            Some(taken) => (used + EXTENDED_REQUEST_BYTES, taken),
            None => self.advance_payload(input, used + EXTENDED_REQUEST_BYTES),
        }
    }

    /// Takes what there is of a payload.
    #[inline(always)]
    fn advance_payload(&mut self, input: &[u8], mut used: usize) -> (usize, Taken) {
        let Stage::Payload(payload) = &mut self.stage else { return (used, Taken::More) };
        if let Memory::None = payload.memory {
            match self.account.take(Buffer::memory_bytes(payload.length_bytes)) {
                Ok(()) => payload.memory = Memory::Here(Buffer::new(payload.length_bytes as usize)),
                Err(short) => return (used, Taken::of(short)),
            }
        }
        let taken = payload.missing_bytes().min(input.len() - used);
        let to = payload.filled_bytes..payload.filled_bytes + taken;
        let Memory::Here(buffer) = &mut payload.memory else { return (used, Taken::More) };
        buffer.as_mut_slice()[to].copy_from_slice(&input[used..used + taken]);
        payload.filled_bytes += taken;
        used += taken;
        (used, if payload.missing_bytes() > 0 { Taken::More } else { self.complete_payload() })
    }

    /// `None`: a write, whose payload comes next.
    #[inline(always)]
    fn header(&mut self, header: &RequestHeader) -> Option<Taken> {
        let &RequestHeader { cookie, offset_bytes, length_bytes, .. } = header;
        let is_large = length_bytes > self.limits.piece_bytes.into();
        let mut action = validate(&self.session, header);
        if is_large && header.flags & request::DF != 0 && matches!(action, Ok(Action::Execute { op: Op::Read, .. })) {
            // Allowed above 64 KiB. Source: NBD protocol, "NBD_CMD_FLAG_DF".
            action = Err(Rule::TooLongForOneChunk);
        }
        if action == Ok(Action::Disconnect) {
            self.stage = Stage::Over;
            return Some(Taken::Disconnect);
        }
        // A refused request counts as well: its reply waits for the client like any other.
        if self.requests >= self.limits.requests_max {
            return Some(Taken::Full);
        }
        if !is_large
            && let Ok(Action::Execute { op: Op::Read | Op::Write, .. }) = action
            && let Err(short) = self.account.take(Buffer::memory_bytes(length_bytes as u32))
        {
            return Some(Taken::of(short));
        }
        self.requests += 1;
        match action {
            Ok(Action::Execute { op: Op::Write, fua }) if is_large => {
                let piece_bytes = piece_length(offset_bytes, length_bytes, self.limits.piece_bytes);
                self.stage = Stage::Payload(Payload {
                    cookie,
                    fua,
                    offset_bytes,
                    length_bytes: piece_bytes,
                    filled_bytes: 0,
                    // No payload has 4 GiB.
                    after_bytes: Some(length_bytes as u32 - piece_bytes),
                    memory: Memory::None,
                });
                let op = Op::Write;
                Some(Taken::LargeWrite(Request { cookie, op, fua, offset_bytes, length_bytes, buffer: None }))
            }
            Ok(Action::Execute { op: Op::Write, fua }) => {
                let memory = Memory::Here(Buffer::new(length_bytes as usize));
                let (filled_bytes, after_bytes) = (0, None);
                self.stage = Stage::Payload(Payload {
                    cookie,
                    fua,
                    offset_bytes,
                    length_bytes: length_bytes as u32,
                    filled_bytes,
                    after_bytes,
                    memory,
                });
                None
            }
            Ok(Action::Execute { op, fua }) => {
                Some(Taken::Request(Request { cookie, op, fua, offset_bytes, length_bytes, buffer: None }))
            }
            Ok(Action::BlockStatus { one }) => {
                if let Err(short) = self.account.take(Buffer::memory_bytes(SHEET_BYTES)) {
                    self.requests -= 1;
                    return Some(Taken::of(short));
                }
                let buffer = Some(extents::ask(if one { 1 } else { EXTENTS_MAX }));
                let (op, fua) = (Op::Extents, false);
                // Whole blocks, no more than a submission has; the client asks on.
                let longest_bytes = !(self.session.export.block.min_bytes - 1);
                let length_bytes = length_bytes.min(longest_bytes.into());
                Some(Taken::Request(Request { cookie, op, fua, offset_bytes, length_bytes, buffer }))
            }
            Ok(Action::Disconnect) => unreachable!("returned above"),
            Err(rule) => {
                let is_write = header.command == Command::Write as u16;
                Some(self.refuse(header, rule, if is_write { length_bytes } else { 0 }))
            }
        }
    }

    /// Refuses a request; `payload_bytes` of it follow.
    fn refuse(&mut self, header: &RequestHeader, rule: Rule, payload_bytes: u64) -> Taken {
        if payload_bytes > SKIPPED_BYTES_MAX.into() {
            self.requests -= 1;
            self.stage = Stage::Over;
            return Taken::Broken(Rule::PayloadTooLong);
        }
        if payload_bytes > 0 {
            self.stage = Stage::Skip { left_bytes: payload_bytes as usize };
        }
        let &RequestHeader { cookie, offset_bytes, .. } = header;
        Taken::Refused { cookie, offset_bytes, command: Command::from_number(header.command), rule }
    }

    /// The bytes of a payload, or of a piece, have all come.
    fn complete_payload(&mut self) -> Taken {
        let Stage::Payload(payload) = std::mem::replace(&mut self.stage, Stage::Header) else {
            unreachable!("called when a payload is complete")
        };
        let Payload { cookie, fua, offset_bytes, length_bytes, after_bytes, memory, .. } = payload;
        let Memory::Here(buffer) = memory else { unreachable!("as above: it was filled") };
        let Some(after_bytes) = after_bytes else {
            let (op, length_bytes, buffer) = (Op::Write, length_bytes.into(), Some(buffer));
            return Taken::Request(Request { cookie, op, fua, offset_bytes, length_bytes, buffer });
        };
        if after_bytes > 0 {
            let next_bytes = offset_bytes + u64::from(length_bytes);
            let piece_bytes = piece_length(next_bytes, after_bytes.into(), self.limits.piece_bytes);
            self.stage = Stage::Payload(Payload {
                cookie,
                fua,
                offset_bytes: next_bytes,
                length_bytes: piece_bytes,
                filled_bytes: 0,
                after_bytes: Some(after_bytes - piece_bytes),
                memory: Memory::None,
            });
        }
        Taken::Piece(Piece { offset_bytes, length_bytes, buffer, is_last: after_bytes == 0 })
    }

    /// Pieces of a large write have yet to come.
    pub fn in_large_write(&self) -> bool {
        matches!(&self.stage, Stage::Payload(Payload { after_bytes: Some(_), .. }))
    }

    /// Bytes of a payload that have not come; 0 between payloads.
    pub fn payload_missing_bytes(&self) -> usize {
        match &self.stage {
            Stage::Payload(payload) => payload.missing_bytes(),
            _ => 0,
        }
    }

    /// Takes the buffer of the payload in progress out, to receive into it: from the first number to the second.
    pub fn take_payload(&mut self) -> Option<(Buffer, usize, usize)> {
        let Stage::Payload(payload) = &mut self.stage else { return None };
        match std::mem::replace(&mut payload.memory, Memory::Lent) {
            Memory::Here(buffer) => Some((buffer, payload.filled_bytes, payload.length_bytes as usize)),
            other => {
                payload.memory = other;
                None
            }
        }
    }

    /// Puts it back, with `received_bytes` more in it. The request comes with the next `advance`.
    pub fn put_payload(&mut self, buffer: Buffer, received_bytes: usize) {
        let Stage::Payload(payload) = &mut self.stage else {
            unreachable!("a payload stays in progress while its buffer is out")
        };
        assert!(received_bytes <= payload.missing_bytes(), "{received_bytes} received, {}", payload.missing_bytes());
        payload.filled_bytes += received_bytes;
        payload.memory = Memory::Here(buffer);
    }
}

impl Transmission {
    /// Writes what [`Transmission::unpack`] reads.
    ///
    /// # Panics
    /// If the buffer of a payload is lent.
    pub fn pack(&self, writer: &mut StateWriter) {
        // Once: the server is shutting down.
        writer.flag(false);
        match &self.stage {
            Stage::Header => writer.u8(0),
            Stage::Payload(payload) => {
                writer.u8(1);
                payload.pack(writer);
            }
            Stage::Skip { left_bytes } => {
                writer.u8(2);
                writer.u32(*left_bytes as u32);
            }
            Stage::Over => writer.u8(3),
        }
    }

    /// The stream of a connection that agreed on `session` and holds `account`, with `requests` that were taken and
    /// whose replies have not left, a payload in progress not among them. `writing` is the large write whose pieces
    /// come.
    ///
    /// # Errors
    /// What no stream can be.
    pub fn unpack(
        reader: &mut StateReader<'_>,
        session: Session,
        limits: Limits,
        account: Account,
        requests: usize,
        writing: Option<&Large>,
    ) -> Result<Transmission, StateFault> {
        assert!(limits.piece_bytes.is_power_of_two(), "pieces of {} bytes have no boundaries", limits.piece_bytes);
        reader.flag()?;
        let compact_magic = compact_magic(&session);
        let mut transmission = Transmission { session, limits, stage: Stage::Header, requests, account, compact_magic };
        transmission.stage = match reader.u8()? {
            0 => Stage::Header,
            1 => Stage::Payload(transmission.unpack_payload(reader, writing)?),
            2 => {
                let left_bytes = reader.u32()?;
                demand(left_bytes <= SKIPPED_BYTES_MAX, "skips more than is skipped of any payload")?;
                Stage::Skip { left_bytes: left_bytes as usize }
            }
            3 => Stage::Over,
            _ => return Err(StateFault("has a stream of requests at no stage")),
        };
        let is_large = transmission.in_large_write();
        demand(writing.is_none() || is_large, "has a large write of which nothing comes")?;
        Ok(transmission)
    }

    fn unpack_payload(&mut self, reader: &mut StateReader<'_>, writing: Option<&Large>) -> Result<Payload, StateFault> {
        let cookie = reader.u64()?;
        let fua = reader.flag()?;
        let (offset_bytes, length_bytes) = (reader.u64()?, reader.u32()?);
        let after_bytes = if reader.flag()? { Some(reader.u32()?) } else { None };
        let has_memory = reader.flag()?;
        let filled = reader.bytes()?;
        let export = &self.session.export;
        let all_bytes = length_bytes.checked_add(after_bytes.unwrap_or(0)).unwrap_or(0);
        let are_blocks = export.could_hold(offset_bytes, all_bytes.into()) && length_bytes > 0;
        demand(are_blocks, "has a write that is no blocks of any device")?;
        demand(all_bytes <= export.block.payload_bytes_max, "has a write longer than its export takes")?;
        let is_filled = filled.len() <= length_bytes as usize && (has_memory || filled.is_empty());
        demand(is_filled, "has more of a payload than there is")?;
        if let Some(large) = writing {
            let at_bytes = large.offset_bytes + large.issued_bytes();
            let is_next = at_bytes == offset_bytes && large.issued_bytes() + u64::from(all_bytes) == large.length_bytes;
            demand(is_next && after_bytes.is_some(), "has a piece that is not the next of its write")?;
        }
        let memory = match has_memory {
            false => Memory::None,
            true => {
                self.account.carry(Buffer::memory_bytes(length_bytes));
                let mut buffer = Buffer::new(length_bytes as usize);
                buffer.as_mut_slice()[..filled.len()].copy_from_slice(filled);
                Memory::Here(buffer)
            }
        };
        // A large one counts among those that are not answered.
        self.requests += usize::from(after_bytes.is_none());
        demand(after_bytes.is_some() || has_memory, "has a write without memory")?;
        Ok(Payload { cookie, fua, offset_bytes, length_bytes, filled_bytes: filled.len(), after_bytes, memory })
    }
}

impl Payload {
    fn pack(&self, writer: &mut StateWriter) {
        writer.u64(self.cookie);
        writer.flag(self.fua);
        writer.u64(self.offset_bytes);
        writer.u32(self.length_bytes);
        writer.flag(self.after_bytes.is_some());
        self.after_bytes.iter().for_each(|bytes| writer.u32(*bytes));
        let filled = match &self.memory {
            Memory::None => None,
            Memory::Here(buffer) => Some(&buffer.as_slice()[..self.filled_bytes]),
            Memory::Lent => unreachable!("a paused connection receives nothing"),
        };
        writer.flag(filled.is_some());
        writer.bytes(filled.unwrap_or(&[]));
    }
}

#[cfg(test)]
#[path = "transmit_tests.rs"]
mod tests;
