//! How does a connection hold still, and go on in another process as if nothing had happened?
//!
//! # What is handed over
//! | | why |
//! |---|---|
//! | the socket | its unread bytes go with it |
//! | bytes that were received and not used | they are not in the socket any more |
//! | replies that have not left, from the first byte on that has not | the client has a part of them |
//! | the handshake, or what it agreed on | |
//! | a request that has come in part, large requests of which pieces are left | |
//! | requests that the block layer gave back, with the payload of writes | |
//!
//! Other requests that were handed to the block layer end before, and their replies are among those that have not left.
//!
//! # What does not
//! Counters; the time of a handshake, or of a client that is waited for, which begins anew; limits, which are those of
//! the process that goes on. Memory is counted there at once, beyond the limits if need be: it gets less as replies
//! leave.
//!
//! A connection under TLS: its keys stay where they are. It is drained, and ends with the protocol's shutdown.
//!
//! # What must be the same
//! The export's place, size, blocks and read-only flag, and which bytes they are: as the client was told them, or as a
//! change of the running server made them since, which the client meets in the answers to its requests.

use super::under_way::{PendingRequest, UnderWay};
use super::{Connection, Life, ProtocolPhase, secure, user};
use crate::connection_slots::ConnectionSlot;
use crate::export::{Export, ExportTable};
use crate::memory::{Account, PIECE_BYTES_MAX};
use crate::nbd::inbox::Inbox;
use crate::nbd::large::{Large, RANGE_PIECE_BYTES, pack_op, unpack_op};
use crate::nbd::negotiate::Negotiation;
use crate::nbd::options::NbdOptions;
use crate::nbd::reply::{Form, Replies};
use crate::nbd::transmit::{Request, Transmission};
use crate::nbd::validate::Session;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Client as _, Context, Packed, PackedClient};
use mqfq_blk::request::Op;
use mqfq_blk::state::{EXTENDED_SINCE, RECALLED_SINCE, StateFault, StateReader, StateWriter, demand};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// For a session under TLS to end, ns: all other clients wait meanwhile, so one that takes no replies is closed then.
const SESSION_END_NS: u64 = 1_000_000_000;

impl Connection {
    /// See [`mqfq_blk::client::Client::pause`].
    pub(super) fn hold_still(&mut self, context: &mut dyn Context) {
        if self.channel.is_some() {
            context.timer(context.now_ns().saturating_add(SESSION_END_NS), user::SESSION_END);
            self.drain(context);
            return self.pump(context);
        }
        self.paused = true;
        context.interrupt();
    }

    /// See [`mqfq_blk::client::Client::is_paused`]. A request that its tenant has no room for is handed over first.
    pub(super) fn is_still(&self) -> bool {
        self.life == Life::Closed
            || (self.paused && !self.receiving && self.held.is_none() && self.late.is_empty() && self.pieces_out == 0)
    }

    /// See [`mqfq_blk::client::Client::takes_back`]. A piece of a large request has no place to be kept in.
    pub(super) fn keeps_requests(&self) -> bool {
        self.channel.is_none() && self.pieces_out == 0
    }

    /// Hands over what was given back, as far as its tenant has room; not while it holds still: it would come back.
    pub(super) fn hand_over_recalled(&mut self, context: &mut dyn Context) {
        while !self.paused
            && self.held.is_none()
            && let Some(request) = self.recalled.pop_front()
        {
            self.submit_whole(context, request);
        }
    }

    /// See [`mqfq_blk::client::Client::resume`].
    pub(super) fn go_on(&mut self, context: &mut dyn Context) {
        self.paused = false;
        if std::mem::take(&mut self.is_late) {
            self.handshake_is_over_time(context);
        }
        if self.life != Life::Closed {
            self.hand_over_recalled(context);
            self.pump(context);
        }
    }

    /// See [`mqfq_blk::client::Client::pack`].
    pub(super) fn packed(&self, version: u16) -> io::Result<Option<PackedClient>> {
        // A client whose export has gone is being sent away, so it is not handed over.
        let has_gone = matches!(&self.phase, ProtocolPhase::Transmitting(transmission)
            if transmission.session().export.state.is_closed());
        let has_no_place =
            matches!(&self.phase, ProtocolPhase::Negotiating(negotiation) if !negotiation.can_be_handed_over(version));
        let is_unknown = matches!(&self.phase, ProtocolPhase::Transmitting(transmission)
            if transmission.session().extended && version < EXTENDED_SINCE);
        if self.life == Life::Closed || self.channel.is_some() || has_gone || has_no_place || is_unknown {
            return Ok(None);
        }
        let mut writer = StateWriter::new(version);
        writer.flag(self.life == Life::Ending);
        writer.flag(self.draining);
        writer.bytes(self.inbox.unread());
        self.replies.pack(&mut writer);
        writer.flag(matches!(self.phase, ProtocolPhase::Transmitting(_)));
        match &self.phase {
            ProtocolPhase::Negotiating(negotiation) => negotiation.pack(&mut writer),
            ProtocolPhase::Transmitting(transmission) => {
                pack_session(transmission.session(), &mut writer);
                writer.u32((self.issuing.len() + usize::from(self.writing.is_some())) as u32);
                for place in self.issuing.iter().copied().chain(self.writing) {
                    let Some(PendingRequest::Large { cookie, large }) = self.under_way.peek(place) else {
                        unreachable!("a large request is in its place until it is answered")
                    };
                    writer.u64(*cookie);
                    large.pack(&mut writer);
                }
                writer.flag(self.writing.is_some());
                if version < RECALLED_SINCE && !self.recalled.is_empty() {
                    return Err(io::Error::other("a request was given back, and the state has no place for it"));
                }
                writer.since(RECALLED_SINCE, |writer| {
                    writer.u32(self.recalled.len() as u32);
                    self.recalled.iter().for_each(|request| pack_request(request, writer));
                });
                transmission.pack(&mut writer);
            }
        }
        let packed = Packed { state: writer.into_bytes(), descriptors: vec![self.place.copy()?] };
        Ok(Some(PackedClient { listener: self.place.listener(), is_listener: false, packed }))
    }

    /// The connection that was packed, on the socket of `place`; it goes on when it is started.
    ///
    /// # Errors
    /// One sentence: a state that no connection can have, an export that is not here or is not the same, or a tenant
    /// that has as many connections as it may.
    pub fn unpack(
        mut place: ConnectionSlot,
        exports: Arc<ExportTable>,
        options: Arc<NbdOptions>,
        reader: &mut StateReader<'_>,
    ) -> Result<Connection, String> {
        let (is_ending, draining) = (reader.flag()?, reader.flag()?);
        let unread = reader.bytes()?;
        let mut replies = Replies::unpack(reader)?;
        let mut under_way = UnderWay::default();
        let mut larges = Vec::new();
        let mut writing = None;
        let mut given_back = VecDeque::new();
        let phase = if reader.flag()? {
            let session = unpack_session(reader, &exports)?;
            if !place.choose(&session.export) {
                let name = &session.export.name;
                return Err(format!("export {name:?} has as many connections as its tenant may have here"));
            }
            let limits = options.limits(&session.export);
            let mut account = Account::new(session.export.memory.clone(), limits.bytes_max);
            for _ in 0..reader.u32()? {
                let cookie = reader.u64()?;
                let large = Box::new(Large::unpack(reader, &session.export, &mut account)?);
                larges.push(under_way.insert(PendingRequest::Large { cookie, large }));
            }
            if reader.flag()? {
                writing = larges.pop();
                demand(writing.is_some(), "writes nothing")?;
            }
            let mut recalled = VecDeque::new();
            if reader.version() >= RECALLED_SINCE {
                for _ in 0..reader.u32()? {
                    let request = unpack_request(reader, &session.export)?;
                    if matches!(request.op, Op::Read | Op::Write) {
                        account.carry(Buffer::memory_bytes(request.length_bytes as u32));
                    }
                    recalled.push_back(request);
                }
            }
            let mut streams = 0;
            for place in larges.iter().chain(&writing) {
                let large = under_way.large(*place);
                demand((large.op == Op::Write) == (writing == Some(*place)), "writes twice")?;
                let is_stream = large.is_streaming() || large.pieces_out() > 0;
                demand(!is_stream || !session.structured, "has a stream of structured replies")?;
                demand(!large.is_streaming() || replies.is_streaming(), "has a stream that has not begun")?;
                streams += usize::from(is_stream);
            }
            demand(streams <= 1 && (streams == 1 || !replies.is_streaming()), "has a stream of no request")?;
            replies.set_form(Form::of(&session));
            replies.carry(&mut account);
            let requests = replies.unsent() + larges.len() + usize::from(writing.is_some()) + recalled.len();
            let writing = writing.map(|place| &*under_way.large(place));
            given_back = recalled;
            ProtocolPhase::Transmitting(Transmission::unpack(reader, session, limits, account, requests, writing)?)
        } else {
            replies.forget_memory();
            demand(replies.unsent() == 0 && !replies.is_streaming(), "has replies in its handshake")?;
            let negotiation = Negotiation::unpack(reader, exports.clone())?;
            ProtocolPhase::Negotiating(negotiation.with(secure::offered(&options), place.peer()))
        };
        reader.end()?;
        let mut connection = Connection::new(place, exports, options);
        connection.is_fresh = false;
        connection.life = if is_ending { Life::Ending } else { Life::Open };
        connection.draining = draining;
        connection.inbox = Inbox::with(unread, connection.options.receive_bytes_max());
        (connection.replies, connection.phase, connection.recalled) = (replies, phase, given_back);
        (connection.under_way, connection.issuing, connection.writing) = (under_way, larges.into(), writing);
        Ok(connection)
    }

    /// First step of a connection that was unpacked.
    pub(super) fn start_again(&mut self, context: &mut dyn Context) {
        match &self.phase {
            ProtocolPhase::Negotiating(_) => self.await_handshake(context),
            ProtocolPhase::Transmitting(transmission) => context.cap_by(&transmission.session().export.caps),
        }
        self.hand_over_recalled(context);
        self.pump(context);
    }

    pub(super) fn await_handshake(&self, context: &mut dyn Context) {
        // Saturating: a limit of centuries is none.
        let timeout_ns = u64::try_from(self.options.listen.handshake_timeout_now().as_nanos()).unwrap_or(u64::MAX);
        context.timer(context.now_ns().saturating_add(timeout_ns), user::HANDSHAKE);
    }
}

fn pack_request(request: &Request, writer: &mut StateWriter) {
    let Request { cookie, op, fua, offset_bytes, length_bytes, buffer } = request;
    writer.u64(*cookie);
    pack_op(*op, writer);
    writer.flag(*fua);
    writer.u64(*offset_bytes);
    // No longer than a piece.
    writer.u32(*length_bytes as u32);
    if *op == Op::Write {
        let buffer = buffer.as_ref().expect("a write has its payload again");
        writer.bytes(&buffer.as_slice()[..*length_bytes as usize]);
    }
}

/// Whether it is inside its export is asked when it is handed over.
fn unpack_request(reader: &mut StateReader<'_>, export: &Export) -> Result<Request, StateFault> {
    let cookie = reader.u64()?;
    let op = unpack_op(reader)?;
    let fua = reader.flag()?;
    let (offset_bytes, length_bytes) = (reader.u64()?, u64::from(reader.u32()?));
    if op == Op::Flush {
        demand((offset_bytes, length_bytes) == (0, 0), "has a flush of some bytes")?;
        return Ok(Request { cookie, op, fua, offset_bytes, length_bytes, buffer: None });
    }
    demand(export.could_hold(offset_bytes, length_bytes), "has a request that is no blocks of any device")?;
    let most_bytes = if matches!(op, Op::Read | Op::Write) { PIECE_BYTES_MAX } else { RANGE_PIECE_BYTES };
    demand(length_bytes <= most_bytes.into(), "has a request that is too large")?;
    let buffer = match op {
        Op::Write => {
            let bytes = reader.bytes()?;
            demand(bytes.len() == length_bytes as usize, "has a write without its payload")?;
            let mut buffer = Buffer::new(bytes.len());
            buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
            Some(buffer)
        }
        _ => None,
    };
    Ok(Request { cookie, op, fua, offset_bytes, length_bytes, buffer })
}

fn pack_session(session: &Session, writer: &mut StateWriter) {
    let export = &*session.export;
    let Export { name, offset_bytes, block, .. } = export;
    writer.bytes(name.as_bytes());
    writer.u64(*offset_bytes);
    writer.u64(export.size_now_bytes());
    writer.flag(export.is_read_only());
    [block.min_bytes, block.payload_bytes_max].into_iter().for_each(|bytes| writer.u32(bytes));
    writer.flag(session.structured);
    writer.flag(session.block_status);
    writer.since(EXTENDED_SINCE, |writer| writer.flag(session.extended));
}

fn unpack_session(reader: &mut StateReader<'_>, exports: &ExportTable) -> Result<Session, String> {
    let name = reader.text()?;
    let (offset_bytes, size_bytes, read_only) = (reader.u64()?, reader.u64()?, reader.flag()?);
    let (min_bytes, payload_bytes_max) = (reader.u32()?, reader.u32()?);
    let (structured, block_status) = (reader.flag()?, reader.flag()?);
    let extended = reader.version() >= EXTENDED_SINCE && reader.flag()?;
    demand(structured || !extended, "has extended headers without structured replies")?;
    let Some(export) = exports.lookup(name).filter(|export| export.name == name) else {
        return Err(format!("export {name:?} has a connection and is no longer there"));
    };
    let differ = [
        ("offset", offset_bytes != export.offset_bytes),
        ("size", size_bytes != export.size_bytes),
        ("read-only flag", read_only != export.read_only),
        ("minimum block", min_bytes != export.block.min_bytes),
        ("largest payload", payload_bytes_max != export.block.payload_bytes_max),
    ];
    match differ.iter().find(|(_, differs)| *differs) {
        Some((what, _)) => Err(format!("export {name:?} has a connection and another {what} than its client was told")),
        None => Ok(Session { export: export.clone(), structured, extended, block_status }),
    }
}
