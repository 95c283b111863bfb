//! TLS of one connection: bytes of the socket on one side, bytes of the protocol on the other.
//!
//! ```text
//!   socket ─receive▶ wire ─decrypt, a record at a time▶ inbox ─▶ negotiate, transmit
//!   socket ◀──send── records ◀─encrypt, 16 KiB at most── parts ◀─ reply
//!                    └ of the TLS handshake, alerts and key updates: `out`, which leave first
//! ```
//! No I/O: rustls' unbuffered interface, in which the caller owns the buffers. A socket is received from when every
//! whole record was decrypted, and a record is decrypted when every whole request was taken, so back-pressure goes
//! through: bytes of a client that are not taken stay in the kernel.
//!
//! # Bounds
//! | what | bytes | when |
//! |---|--:|---|
//! | `wire` | 4 KiB, then 32 KiB | as long as the connection |
//! | a decrypted record, in rustls and again in the inbox | 16 KiB | until its requests are taken |
//! | records that came while a reply was encrypted | 32 KiB | until they are taken; most often none |
//! | records on their way out | as many as the replies in them, and 16 KiB | until they have left |
//! | state and keys of rustls | 8 KiB about | as long as the connection |
//!
//! [`STANDING_BYTES`] counts what does not count as a payload. A message of a handshake must fit `wire`, and what the
//! peer makes us say without taking it [`OUT_BYTES_MAX`].
//!
//! # What takes memory
//! rustls: one vector for each record that comes and one for each that goes, as long as the record. Ours: none, once
//! the buffers of the thread are warm ([`Buffer`]).
//!
//! # Truncation
//! A client that leaves without close_notify leaves between two requests or in one; half a request is never executed,
//! so a forged end does no more harm than a cut of the connection. fio and libnbd leave so.

use super::inbox::Inbox;
use crate::identity::{Identity, names};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::Part;
use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, ReadTraffic, UnbufferedStatus, WriteTraffic};
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

/// Largest `wire`, bytes: a record of 16 KiB with all that TLS 1.2 adds, and room for the next ones.
const WIRE_BYTES: usize = 32 << 10;

/// First receive, bytes: a ClientHello.
const HELLO_BYTES: usize = 4 << 10;

/// Payload of a record, bytes: with header, nonce, kind and tag of any cipher it fits a buffer of 16 KiB.
const RECORD_PLAIN_BYTES: usize = RECORD_BYTES - 64;

/// Buffer of a record on its way out, bytes.
const RECORD_BYTES: usize = 16 << 10;

/// From change_cipher_spec to application_data. Source: RFC 8446, B.1.
const RECORD_TYPES: std::ops::RangeInclusive<u8> = 20..=23;

/// Longest record of TLS 1.2, bytes. Source: RFC 5246, 6.2.3.
const RECORD_WIRE_BYTES_MAX: usize = (1 << 14) + 2048;

/// Messages of TLS itself that wait, bytes: the flight of a handshake with a long chain of certificates.
const OUT_BYTES_MAX: usize = 64 << 10;

/// Memory of a connection under TLS that is no payload, bytes: `wire`, a record that was decrypted, one that is being
/// encrypted, rustls' state.
pub const STANDING_BYTES: u64 = (WIRE_BYTES + 16 * 1024 + RECORD_BYTES + 8 * 1024) as u64;

thread_local! {
    /// The turn of this thread's worker in which the last handshake went on.
    static LAST_STEP: Cell<Option<u64>> = const { Cell::new(None) };
}

/// A handshake may go on in this turn ([`mqfq_blk::client::Context::turn`]). One in each turn of a worker, so that
/// every other client waits for one signature and one key exchange at most.
pub fn may_step(turn: u64) -> bool {
    LAST_STEP.replace(Some(turn)) != Some(turn)
}

/// Result of the bytes so far.
#[derive(PartialEq, Eq, Debug)]
pub enum Step {
    /// Something was done: perhaps there is plaintext.
    Moved,
    /// The handshake is over: these are the client's names. Plaintext may have come with it.
    Established(Vec<Identity>),
    /// The client sends no more.
    Ended,
    /// No more can be understood or said, except `out`.
    Broken(String),
}

/// One session.
pub struct Channel {
    session: UnbufferedServerConnection,
    wire: Inbox,
    /// Bytes came that were not looked at.
    is_fresh: bool,
    /// Bytes of an unfinished handshake message are kept in `wire`, in front of the next bytes.
    is_gathering: bool,
    is_established: bool,
    /// Plaintext for the next steps, found during an encryption: at most the bytes of `wire`.
    early: Vec<u8>,
    ended: bool,
    failed: Option<String>,
    /// Its session has failed, and is not called any more.
    is_broken: bool,
    /// Bytes to be sent before all others.
    out: Vec<u8>,
    has_said_goodbye: bool,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("is_established", &self.is_established).finish_non_exhaustive()
    }
}

impl Channel {
    /// The server's side, at the beginning of its handshake.
    ///
    /// # Errors
    /// What rustls has against the config.
    pub fn new(config: Arc<ServerConfig>) -> Result<Channel, String> {
        Ok(Channel {
            session: UnbufferedServerConnection::new(config).map_err(|error| error.to_string())?,
            wire: Inbox::new(WIRE_BYTES),
            is_fresh: false,
            is_gathering: false,
            is_established: false,
            early: Vec::new(),
            ended: false,
            failed: None,
            is_broken: false,
            out: Vec::new(),
            has_said_goodbye: false,
        })
    }

    /// The handshake is over.
    pub fn is_established(&self) -> bool {
        self.is_established
    }

    /// No byte has come that was not used.
    pub fn is_between_records(&self) -> bool {
        self.wire.unread().is_empty()
    }

    /// Bytes came that were not used, also while the buffer is lent.
    pub fn is_holding(&self) -> bool {
        self.wire.is_holding()
    }

    /// [`Channel::advance`] can do something without more bytes.
    pub fn can_advance(&self) -> bool {
        if self.ended || self.failed.is_some() || !self.early.is_empty() {
            return true;
        }
        self.is_fresh && (self.begins_with_record() || self.is_gathering || self.wire.is_full())
    }

    /// `wire` begins with a whole record (type, version, length, and so many bytes), or with no record.
    fn begins_with_record(&self) -> bool {
        match self.wire.unread() {
            [kind, ..] if !RECORD_TYPES.contains(kind) => true,
            [_, _, _, high, low, rest @ ..] => {
                let length_bytes = usize::from(u16::from_be_bytes([*high, *low]));
                rest.len() >= length_bytes || length_bytes > RECORD_WIRE_BYTES_MAX
            }
            _ => false,
        }
    }

    /// Lends a buffer for a receive: from the first number to the second. `None`: a message is longer than there is
    /// room for.
    pub fn lend(&mut self) -> Option<(Buffer, usize, usize)> {
        let wanted_bytes = if self.is_established { WIRE_BYTES } else { HELLO_BYTES };
        (!self.wire.is_full()).then(|| self.wire.lend(wanted_bytes))
    }

    /// Takes it back with `received_bytes` more.
    pub fn put_back(&mut self, buffer: Buffer, received_bytes: usize) {
        self.wire.put_back(buffer, received_bytes);
        self.is_fresh |= received_bytes > 0;
    }

    /// Takes at most one record with plaintext, which goes to `plain`.
    pub fn advance(&mut self, plain: &mut Inbox) -> Step {
        if let Some(step) = self.take_earlier(plain) {
            return step;
        }
        let step = loop {
            if let Some(step) = self.process(plain) {
                break step;
            }
        };
        let step = if self.gathers_after_handshake() {
            Step::Broken("a message of TLS came in pieces after the handshake".to_owned())
        } else {
            step
        };
        if matches!(step, Step::Broken(_)) {
            self.gather_alert();
        } else if self.out.len() > OUT_BYTES_MAX {
            return Step::Broken("the client takes no messages of TLS".to_owned());
        } else if !self.is_established && !self.session.is_handshaking() {
            self.is_established = true;
            let first = self.session.peer_certificates().and_then(<[_]>::first);
            self.ended |= step == Step::Ended;
            return Step::Established(first.map_or(Vec::new(), |certificate| names(certificate)));
        }
        step
    }

    /// Next result of earlier steps: bytes found during an encryption, a failure, an end, in this order.
    fn take_earlier(&mut self, plain: &mut Inbox) -> Option<Step> {
        if !self.early.is_empty() {
            plain.append(&self.early);
            self.early.clear();
            return Some(Step::Moved);
        }
        if let Some(failed) = self.failed.take() {
            return Some(Step::Broken(failed));
        }
        if self.is_broken {
            return Some(Step::Broken("it has failed before".to_owned()));
        }
        std::mem::take(&mut self.ended).then_some(Step::Ended)
    }

    /// Has the session look at the bytes that came. `None`: it has to look again.
    fn process(&mut self, plain: &mut Inbox) -> Option<Step> {
        let UnbufferedStatus { mut discard, state } = self.session.process_tls_records(self.wire.unread_mut());
        let step = match state {
            Ok(ConnectionState::ReadTraffic(traffic)) => {
                match read_records(traffic, &mut discard, |payload| plain.append(payload)) {
                    Ok(()) => Some(Step::Moved),
                    Err(error) => Some(Step::Broken(error.to_string())),
                }
            }
            Ok(state) => self.out.take(state).map(|rest| match rest {
                Rest::Nothing => {
                    self.is_fresh = false;
                    Step::Moved
                }
                Rest::Ended => Step::Ended,
                Rest::Strange => Step::Broken("early data came, which were not offered".to_owned()),
            }),
            Err(error) => Some(Step::Broken(error.to_string())),
        };
        self.wire.consume(discard);
        step
    }

    /// Notes whether `wire` keeps a part of a message. After the handshake that is refused: rustls keeps places in
    /// `wire`, which is lent to the next receive while replies are encrypted, and panics at bytes that are not there.
    fn gathers_after_handshake(&mut self) -> bool {
        self.is_gathering = !self.is_fresh && self.begins_with_record();
        self.is_gathering && !self.session.is_handshaking()
    }

    /// Reason why nothing more can be encrypted, if that was found by [`Channel::seal`], once.
    pub fn take_failed(&mut self) -> Option<String> {
        self.failed.take()
    }

    /// The alert about a failure lies ready in the session, and comes with the next call. There is no call after it:
    /// rustls must not meet the same bytes again.
    fn gather_alert(&mut self) {
        self.is_broken = true;
        if let UnbufferedStatus { state: Ok(state), .. } = self.session.process_tls_records(self.wire.unread_mut()) {
            let _ = self.out.take(state);
        }
    }

    /// Parts to send for `plain`: waiting TLS messages, with `plain` in the clear before them during the handshake,
    /// encrypted behind them later.
    pub fn seal(&mut self, plain: &[Part]) -> Vec<Part> {
        let mut sealed = Vec::new();
        if !self.is_established || plain.is_empty() {
            sealed.extend(plain.iter().map(|part| Part::Bytes(part.as_slice().to_vec())));
            self.flush(&mut sealed);
            return sealed;
        }
        let mut records = Vec::with_capacity(plain.len());
        self.with_traffic(|traffic| encrypt(traffic, plain, &mut records));
        self.flush(&mut sealed);
        sealed.append(&mut records);
        sealed
    }

    /// Queues the session's last message, once. False: it was said before, or no session is established.
    pub fn say_goodbye(&mut self) -> bool {
        if !self.is_established || std::mem::replace(&mut self.has_said_goodbye, true) {
            return false;
        }
        let mut last = [0; 512];
        let mut written_bytes = 0;
        self.with_traffic(|traffic| {
            written_bytes = traffic.queue_close_notify(&mut last).map_err(|error| error.to_string())?;
            Ok(())
        });
        self.out.extend_from_slice(&last[..written_bytes]);
        written_bytes > 0
    }

    fn flush(&mut self, into: &mut Vec<Part>) {
        if !self.out.is_empty() {
            into.push(Part::Bytes(std::mem::take(&mut self.out)));
        }
    }

    /// Calls `write` in the state in which something can be encrypted. What lies in front of it is kept for the next
    /// steps.
    fn with_traffic(&mut self, mut write: impl FnMut(&mut Traffic<'_>) -> Result<(), String>) {
        if self.is_broken {
            return;
        }
        let written = loop {
            if let Some(written) = self.try_write(&mut write) {
                break written;
            }
        };
        if let Err(why) = written {
            self.failed = Some(why);
            self.gather_alert();
        }
    }

    /// Calls `write` if the session is to be written to now. `None`: it is not yet.
    fn try_write(
        &mut self,
        write: &mut impl FnMut(&mut Traffic<'_>) -> Result<(), String>,
    ) -> Option<Result<(), String>> {
        // It must see what it keeps the places of, so it looks at whole records, too.
        let UnbufferedStatus { mut discard, state } = self.session.process_tls_records(self.wire.unread_mut());
        let written = match state {
            Ok(ConnectionState::WriteTraffic(mut traffic)) => Some(write(&mut traffic)),
            Ok(ConnectionState::ReadTraffic(traffic)) => {
                // An error comes again with the next look.
                let _ = read_records(traffic, &mut discard, |payload| self.early.extend_from_slice(payload));
                None
            }
            Ok(state) => match self.out.take(state) {
                None => None,
                Some(Rest::Ended) => {
                    self.ended = true;
                    None
                }
                Some(Rest::Nothing | Rest::Strange) => Some(Err("the session is not one to write to".to_owned())),
            },
            Err(error) => Some(Err(error.to_string())),
        };
        self.wire.consume(discard);
        written
    }
}

/// A session that can be written to.
type Traffic<'a> = WriteTraffic<'a, rustls::server::ServerConnectionData>;

/// Hands the plaintext of each record to `take`, and counts its bytes as used.
fn read_records<Data>(
    mut traffic: ReadTraffic<'_, '_, Data>,
    discard: &mut usize,
    mut take: impl FnMut(&[u8]),
) -> Result<(), rustls::Error> {
    while let Some(record) = traffic.next_record() {
        let record = record?;
        *discard += record.discard;
        take(record.payload);
    }
    Ok(())
}

/// Encrypts `plain` to `records` of full length, but for the last. Parts of a whole record's length are not copied.
fn encrypt(traffic: &mut Traffic<'_>, plain: &[Part], records: &mut Vec<Part>) -> Result<(), String> {
    let mut gathered = Buffer::new(RECORD_BYTES);
    let mut gathered_bytes = 0;
    for part in plain {
        let mut bytes = part.as_slice();
        while !bytes.is_empty() {
            if gathered_bytes == 0 && bytes.len() >= RECORD_PLAIN_BYTES {
                let (now, rest) = bytes.split_at(RECORD_PLAIN_BYTES);
                records.push(record(traffic, now)?);
                bytes = rest;
                continue;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(RECORD_PLAIN_BYTES - gathered_bytes));
            gathered.as_mut_slice()[gathered_bytes..gathered_bytes + now.len()].copy_from_slice(now);
            gathered_bytes += now.len();
            bytes = rest;
            if gathered_bytes == RECORD_PLAIN_BYTES {
                records.push(record(traffic, &gathered.as_slice()[..gathered_bytes])?);
                gathered_bytes = 0;
            }
        }
    }
    if gathered_bytes > 0 {
        records.push(record(traffic, &gathered.as_slice()[..gathered_bytes])?);
    }
    Ok(())
}

/// `plain` as one record.
fn record<Data>(traffic: &mut WriteTraffic<'_, Data>, plain: &[u8]) -> Result<Part, String> {
    let mut wanted_bytes = plain.len() + 64;
    loop {
        let mut buffer = Buffer::new(wanted_bytes);
        match traffic.encrypt(plain, buffer.as_mut_slice()) {
            Ok(length_bytes) => return Ok(Part::Payload { buffer, length_bytes }),
            // A message of TLS goes along.
            Err(EncryptError::InsufficientSize(short)) if short.required_size > buffer.capacity_bytes() => {
                wanted_bytes = short.required_size;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Meaning of a state that brings neither plaintext nor bytes to send.
enum Rest {
    /// More bytes are needed, or something can be sent.
    Nothing,
    Ended,
    Strange,
}

/// Takes what a state has to send. `None`: go on.
trait Take {
    fn take<Data>(&mut self, state: ConnectionState<'_, '_, Data>) -> Option<Rest>;
}

impl Take for Vec<u8> {
    fn take<Data>(&mut self, state: ConnectionState<'_, '_, Data>) -> Option<Rest> {
        match state {
            ConnectionState::EncodeTlsData(mut message) => {
                let start = self.len();
                let wanted_bytes = match message.encode(&mut []) {
                    Err(EncodeError::InsufficientSize(short)) => short.required_size,
                    Err(EncodeError::AlreadyEncoded) | Ok(_) => 0,
                };
                self.resize(start + wanted_bytes, 0);
                let written = message.encode(&mut self[start..]).unwrap_or(0);
                self.truncate(start + written);
                None
            }
            ConnectionState::TransmitTlsData(sent) => {
                sent.done();
                None
            }
            ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => Some(Rest::Nothing),
            ConnectionState::PeerClosed | ConnectionState::Closed => Some(Rest::Ended),
            _ => Some(Rest::Strange),
        }
    }
}
