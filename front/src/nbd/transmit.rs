//! The client's half of the transmission phase: requests out of a stream of bytes.
//!
//! No I/O: bytes in, and one [`Taken`] for each request. How the bytes were cut into pieces makes no difference to what
//! is taken. A request is validated completely ([`super::validate`]) before a byte of memory is spent on it.
//!
//! # Shape
//! ```text
//! header ─▶ valid ─▶ fits the limits? ─ no ─▶ Full (nothing used, try again later)
//!    │                     └─ yes ─▶ Request; a write first gathers its payload
//!    └──▶ refused; the payload of a write is skipped
//! ```
//!
//! # Payloads without a copy
//! Where much of a write's payload is missing, the caller takes the buffer out ([`Transmission::take_payload`]),
//! receives into it, and puts it back.
//!
//! # Bounds
//! A request counts from when it is taken until the caller says that its reply left ([`Transmission::replied`]), its
//! bytes until the caller says that their buffer is free ([`Transmission::bytes_freed`]). Past the limits nothing is
//! taken, so a client that does not read its replies stops only itself. One request always fits, however long.

use super::rule::Rule;
use super::validate::{Action, Session, validate};
use super::wire::{Command, REQUEST_BYTES, RequestHeader};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::request::Op;

/// Longest payload of a refused write that is skipped, bytes; a client that announces more is closed. Twice what any
/// client may send unasked, because libnbd and fio go up to 64 MiB.
pub const SKIPPED_BYTES_MAX: u32 = 64 << 20;

/// What one connection may have under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Requests without a sent reply, at least 1.
    pub requests_max: usize,
    /// Bytes of their buffers.
    pub bytes_max: u64,
}

/// A valid and complete request for the device.
#[derive(Debug)]
pub struct Request {
    /// The client's name for it.
    pub cookie: u64,
    /// What to do.
    pub op: Op,
    /// Stable before the reply.
    pub fua: bool,
    /// First byte, in the export.
    pub offset_bytes: u64,
    /// Length; 0 for a flush.
    pub length_bytes: u32,
    /// The bytes of a write.
    pub buffer: Option<Buffer>,
}

/// What came of the bytes.
#[derive(Debug)]
pub enum Taken {
    /// More bytes are needed than those given.
    More,
    /// A request waits that does not fit the limits. Try again after `replied` or `bytes_freed`.
    Full,
    /// To be executed.
    Request(Request),
    /// To be answered with one extent.
    BlockStatus {
        /// The client's name for it.
        cookie: u64,
        /// Length asked about, not 0.
        length_bytes: u32,
    },
    /// To be answered with the rule's error.
    Refused {
        /// The client's name for it.
        cookie: u64,
        /// If known.
        command: Option<Command>,
        /// What it broke.
        rule: Rule,
    },
    /// The client is done: answer what is under way, then close.
    Disconnect,
    /// The stream makes no sense from here on: answer what is under way, then close.
    Broken(Rule),
}

/// The transmission phase of one connection.
#[derive(Debug)]
pub struct Transmission {
    session: Session,
    limits: Limits,
    stage: Stage,
    requests: usize,
    bytes: u64,
    shutting_down: bool,
}

#[derive(Debug)]
enum Stage {
    Header,
    Payload(Payload),
    Skip { left_bytes: usize },
    Over,
}

/// A write whose payload is not complete.
#[derive(Debug)]
struct Payload {
    cookie: u64,
    fua: bool,
    offset_bytes: u64,
    length_bytes: u32,
    filled_bytes: usize,
    /// `None` while the caller has it.
    buffer: Option<Buffer>,
}

impl Payload {
    fn missing_bytes(&self) -> usize {
        self.length_bytes as usize - self.filled_bytes
    }
}

impl Transmission {
    /// The beginning of the phase.
    pub fn new(session: Session, limits: Limits) -> Transmission {
        Transmission { session, limits, stage: Stage::Header, requests: 0, bytes: 0, shutting_down: false }
    }

    /// What was agreed on.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// From now on every request that was not taken is refused: the server is shutting down.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
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

    /// The buffers of `bytes` bytes are free.
    pub fn bytes_freed(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "{bytes} bytes freed, {} were under way", self.bytes);
        self.bytes -= bytes;
    }

    /// Requests under way, and bytes.
    pub fn under_way(&self) -> (usize, u64) {
        (self.requests, self.bytes)
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
            let Some(header) = input[used..].first_chunk::<REQUEST_BYTES>() else { return (used, Taken::More) };
            match self.header(header) {
                Some(Taken::Full) => return (used, Taken::Full),
                Some(taken) => return (used + REQUEST_BYTES, taken),
                None => used += REQUEST_BYTES,
            }
        }
        let Stage::Payload(payload) = &mut self.stage else { return (used, Taken::More) };
        let taken = payload.missing_bytes().min(input.len() - used);
        let Some(buffer) = &mut payload.buffer else { return (used, Taken::More) };
        let to = payload.filled_bytes..payload.filled_bytes + taken;
        buffer.as_mut_slice()[to].copy_from_slice(&input[used..used + taken]);
        payload.filled_bytes += taken;
        used += taken;
        (used, if payload.missing_bytes() > 0 { Taken::More } else { self.complete_write() })
    }

    /// `None`: a write, whose payload comes next.
    fn header(&mut self, bytes: &[u8; REQUEST_BYTES]) -> Option<Taken> {
        let Some(header) = RequestHeader::decode(bytes) else {
            self.stage = Stage::Over;
            return Some(Taken::Broken(Rule::BadRequestMagic));
        };
        let RequestHeader { cookie, offset_bytes, length_bytes, .. } = header;
        let action = validate(&self.session, &header, self.shutting_down);
        if action == Ok(Action::Disconnect) {
            self.stage = Stage::Over;
            return Some(Taken::Disconnect);
        }
        let buffer_bytes = match action {
            Ok(Action::Execute { op: Op::Read | Op::Write, .. }) => u64::from(length_bytes),
            _ => 0,
        };
        // What is refused counts as well: its reply waits for the client like any other.
        let over_bytes = self.bytes > 0 && self.bytes + buffer_bytes > self.limits.bytes_max;
        if self.requests >= self.limits.requests_max || (buffer_bytes > 0 && over_bytes) {
            return Some(Taken::Full);
        }
        self.requests += 1;
        self.bytes += buffer_bytes;
        match action {
            Ok(Action::Execute { op: Op::Write, fua }) => {
                let buffer = Some(Buffer::new(length_bytes as usize));
                self.stage =
                    Stage::Payload(Payload { cookie, fua, offset_bytes, length_bytes, filled_bytes: 0, buffer });
                None
            }
            Ok(Action::Execute { op, fua }) => {
                Some(Taken::Request(Request { cookie, op, fua, offset_bytes, length_bytes, buffer: None }))
            }
            Ok(Action::BlockStatus) => Some(Taken::BlockStatus { cookie, length_bytes }),
            Ok(Action::Disconnect) => unreachable!("returned above"),
            Err(rule) => Some(self.refuse(&header, rule)),
        }
    }

    fn refuse(&mut self, header: &RequestHeader, rule: Rule) -> Taken {
        let command = Command::from_number(header.command);
        if command == Some(Command::Write) {
            if header.length_bytes > SKIPPED_BYTES_MAX {
                self.requests -= 1;
                self.stage = Stage::Over;
                return Taken::Broken(Rule::PayloadTooLong);
            }
            self.stage = Stage::Skip { left_bytes: header.length_bytes as usize };
        }
        Taken::Refused { cookie: header.cookie, command, rule }
    }

    fn complete_write(&mut self) -> Taken {
        let Stage::Payload(payload) = std::mem::replace(&mut self.stage, Stage::Header) else {
            unreachable!("called when a payload is complete")
        };
        let Payload { cookie, fua, offset_bytes, length_bytes, buffer, .. } = payload;
        if self.shutting_down {
            self.bytes -= u64::from(length_bytes);
            return Taken::Refused { cookie, command: Some(Command::Write), rule: Rule::ShuttingDown };
        }
        Taken::Request(Request { cookie, op: Op::Write, fua, offset_bytes, length_bytes, buffer })
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
        let buffer = payload.buffer.take()?;
        Some((buffer, payload.filled_bytes, payload.length_bytes as usize))
    }

    /// Puts it back, with `received_bytes` more in it. The request comes with the next `advance`.
    pub fn put_payload(&mut self, buffer: Buffer, received_bytes: usize) {
        let Stage::Payload(payload) = &mut self.stage else {
            unreachable!("a payload stays in progress while its buffer is out")
        };
        assert!(received_bytes <= payload.missing_bytes(), "{received_bytes} received, {}", payload.missing_bytes());
        payload.filled_bytes += received_bytes;
        payload.buffer = Some(buffer);
    }
}

#[cfg(test)]
#[path = "transmit_tests.rs"]
mod tests;
