//! NBD as a client speaks it: bytes of requests, and a parser for replies, without a socket.
//!
//! Source: the NBD protocol document (github.com/NetworkBlockDevice/nbd, doc/proto.md), sections "Fixed newstyle
//! negotiation", "Transmission phase", "Structured replies". All numbers are big-endian.
//!
//! # Shape
//! ```text
//! request      | magic 4 | flags 2 | type 2 | cookie 8 | offset 8 | length 4 |  payload of a write
//! simple reply | magic 4 | error 4 | cookie 8 |                                 payload of a read
//! chunk        | magic 4 | flags 2 | type 2 | cookie 8 | length 4 |             `length` bytes by type
//! ```
//! [`ReplyParser`] takes the stream in pieces of any size. It counts the payload and does not keep it: a load generator
//! needs to know that every byte came, not what it was (the front end's own tests compare bytes).
//!
//! # Invariants
//! W1. A reply is reported once, when its last byte was seen.
//! W2. A read is reported as good only if exactly the bytes asked for came (data or holes), so that a server that sends
//!     short replies cannot look fast.
//!
//! # Cost
//! A simple reply with its payload costs one 16-byte copy; payload is skipped by arithmetic.

/// First bytes of a server's greeting: "NBDMAGIC".
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Magic of each option, and second word of the greeting: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Magic of an option's reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic of a structured reply's chunk.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Handshake flag, both sides: fixed newstyle.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag, both sides: no 124 bytes of zeroes after NBD_OPT_EXPORT_NAME.
pub const FLAG_NO_ZEROES: u16 = 2;

/// Option: choose an export and go to transmission.
pub const OPT_GO: u32 = 7;
/// Option: agree on structured replies.
pub const OPT_STRUCTURED_REPLY: u32 = 8;
/// Option reply: done.
pub const REP_ACK: u32 = 1;
/// Option reply: information about an export.
pub const REP_INFO: u32 = 3;
/// Option replies from here on are errors.
pub const REP_ERROR_BIT: u32 = 1 << 31;
/// Information: size and transmission flags.
pub const INFO_EXPORT: u16 = 0;

/// Request: read.
pub const CMD_READ: u16 = 0;
/// Request: write.
pub const CMD_WRITE: u16 = 1;
/// Request: end the session; no reply.
pub const CMD_DISC: u16 = 2;
/// Request: make completed writes durable.
pub const CMD_FLUSH: u16 = 3;

const CHUNK_FLAG_DONE: u16 = 1;
const CHUNK_NONE: u16 = 0;
const CHUNK_OFFSET_DATA: u16 = 1;
const CHUNK_OFFSET_HOLE: u16 = 2;
const CHUNK_ERROR_BIT: u16 = 1 << 15;

const SIMPLE_HEADER_BYTES: usize = 16;
const CHUNK_HEADER_BYTES: usize = 20;
/// Largest part of an error chunk that we look at: error 4, message length 2.
const ERROR_HEAD_BYTES: usize = 6;

/// Appends a request's 28 bytes to `out`. A write's payload comes after it and is the caller's.
pub fn encode_request(out: &mut Vec<u8>, command: u16, cookie: u64, offset_bytes: u64, length_bytes: u32) {
    let mut bytes = [0u8; 28];
    bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[6..8].copy_from_slice(&command.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset_bytes.to_be_bytes());
    bytes[24..28].copy_from_slice(&length_bytes.to_be_bytes());
    out.extend_from_slice(&bytes);
}

/// A request's end, as the wire told it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finished {
    /// The name given in the request.
    pub cookie: u64,
    /// 0, or the errno that the server sent.
    pub error: u32,
}

/// A client's requests in flight, which the parser looks up by cookie.
pub trait InFlight {
    /// Bytes that a good reply to this request carries (0 for a write), or `None` if nothing of this name is in flight.
    fn reply_bytes(&self, cookie: u64) -> Option<u32>;
}

impl<F: Fn(u64) -> Option<u32>> InFlight for F {
    fn reply_bytes(&self, cookie: u64) -> Option<u32> {
        self(cookie)
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Gathering a header; `have` bytes of it are in `header`.
    Header { have: usize },
    /// Skipping the payload; then the chunk or reply is over.
    Payload { left_bytes: u64 },
    /// Gathering an error chunk's head, `have` bytes so far, out of `left_bytes` still to come for the chunk.
    Error { have: usize, left_bytes: u64 },
    /// Gathering the 12 bytes of a hole chunk: offset, length.
    Hole { have: usize },
    /// Gathering the 8 bytes of offset in front of a data chunk's payload.
    DataOffset { have: usize, payload_bytes: u64 },
}

/// One reply under way. A structured reply's chunks may be mixed with those of other requests, but a chunk is whole.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    cookie: u64,
    error: u32,
    done: bool,
    structured: bool,
    carried_bytes: u64,
}

/// Incremental parser of one connection's replies. See the module's text.
pub struct ReplyParser {
    state: State,
    header: [u8; CHUNK_HEADER_BYTES],
    chunk: Chunk,
    /// Structured replies with more than one chunk: what has come so far, by cookie. Few at a time.
    open: Vec<(u64, u64, u32)>,
}

impl Default for ReplyParser {
    fn default() -> Self {
        Self::new()
    }
}

impl ReplyParser {
    /// A parser at the start of the transmission phase.
    pub fn new() -> Self {
        ReplyParser {
            state: State::Header { have: 0 },
            header: [0; CHUNK_HEADER_BYTES],
            chunk: Chunk { cookie: 0, error: 0, done: false, structured: false, carried_bytes: 0 },
            open: Vec::new(),
        }
    }

    /// Takes the next bytes of the stream; appends the requests that ended in them to `finished`.
    ///
    /// # Errors
    /// One sentence, if the server broke the protocol; the stream is of no use afterwards.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        in_flight: &impl InFlight,
        finished: &mut Vec<Finished>,
    ) -> Result<(), String> {
        while !bytes.is_empty() {
            match self.state {
                State::Header { have } => {
                    // The magic decides how long the header is, so it is taken first.
                    let want = if have < 4 { 4 } else { header_bytes(&self.header)? };
                    let got = self.gather(&mut bytes, have, want);
                    self.state = State::Header { have: got };
                    if got >= 4 && got == header_bytes(&self.header)? {
                        self.header_complete(in_flight, finished)?;
                    }
                }
                State::Payload { left_bytes } => {
                    let taken = left_bytes.min(bytes.len() as u64);
                    bytes = &bytes[taken as usize..];
                    self.state = State::Payload { left_bytes: left_bytes - taken };
                    if taken == left_bytes {
                        self.chunk_complete(in_flight, finished)?;
                    }
                }
                State::DataOffset { have, payload_bytes } => {
                    let got = self.gather(&mut bytes, have, 8);
                    self.state = if got == 8 {
                        self.chunk.carried_bytes = payload_bytes;
                        State::Payload { left_bytes: payload_bytes }
                    } else {
                        State::DataOffset { have: got, payload_bytes }
                    };
                }
                State::Hole { have } => {
                    let got = self.gather(&mut bytes, have, 12);
                    self.state = State::Hole { have: got };
                    if got == 12 {
                        self.chunk.carried_bytes = u64::from(u32_at(&self.header, 8));
                        self.chunk_complete(in_flight, finished)?;
                    }
                }
                State::Error { have, left_bytes } => {
                    let got = self.gather(&mut bytes, have, ERROR_HEAD_BYTES);
                    let left_bytes = left_bytes - (got - have) as u64;
                    self.state = State::Error { have: got, left_bytes };
                    if got == ERROR_HEAD_BYTES {
                        self.chunk.error = u32_at(&self.header, 0).max(1);
                        if left_bytes == 0 {
                            self.chunk_complete(in_flight, finished)?;
                        } else {
                            self.state = State::Payload { left_bytes };
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Moves bytes into the header until it has `want`; tells how many it has.
    fn gather(&mut self, bytes: &mut &[u8], have: usize, want: usize) -> usize {
        let taken = (want - have).min(bytes.len());
        self.header[have..have + taken].copy_from_slice(&bytes[..taken]);
        *bytes = &bytes[taken..];
        have + taken
    }

    fn header_complete(&mut self, in_flight: &impl InFlight, finished: &mut Vec<Finished>) -> Result<(), String> {
        let cookie = u64_at(&self.header, 8);
        let Some(expected_bytes) = in_flight.reply_bytes(cookie) else {
            return Err(format!("the server answered request {cookie:#x}, which is not in flight"));
        };
        if u32_at(&self.header, 0) == SIMPLE_REPLY_MAGIC {
            let error = u32_at(&self.header, 4);
            let payload_bytes = if error == 0 { u64::from(expected_bytes) } else { 0 };
            self.chunk = Chunk { cookie, error, done: true, structured: false, carried_bytes: payload_bytes };
            return self.begin_payload(payload_bytes, in_flight, finished);
        }
        let done = u16_at(&self.header, 4) & CHUNK_FLAG_DONE != 0;
        let kind = u16_at(&self.header, 6);
        let length_bytes = u64::from(u32_at(&self.header, 16));
        self.chunk = Chunk { cookie, error: 0, done, structured: true, carried_bytes: 0 };
        match kind {
            CHUNK_NONE if length_bytes == 0 && done => self.chunk_complete(in_flight, finished),
            CHUNK_OFFSET_DATA if length_bytes > 8 => {
                self.state = State::DataOffset { have: 0, payload_bytes: length_bytes - 8 };
                Ok(())
            }
            CHUNK_OFFSET_HOLE if length_bytes == 12 => {
                self.state = State::Hole { have: 0 };
                Ok(())
            }
            kind if kind & CHUNK_ERROR_BIT != 0 && length_bytes >= ERROR_HEAD_BYTES as u64 => {
                self.state = State::Error { have: 0, left_bytes: length_bytes };
                Ok(())
            }
            _ => Err(format!("the server sent a chunk of type {kind} with {length_bytes} bytes, which is not allowed")),
        }
    }

    fn begin_payload(
        &mut self,
        payload_bytes: u64,
        in_flight: &impl InFlight,
        finished: &mut Vec<Finished>,
    ) -> Result<(), String> {
        if payload_bytes == 0 {
            return self.chunk_complete(in_flight, finished);
        }
        self.state = State::Payload { left_bytes: payload_bytes };
        Ok(())
    }

    fn chunk_complete(&mut self, in_flight: &impl InFlight, finished: &mut Vec<Finished>) -> Result<(), String> {
        self.state = State::Header { have: 0 };
        let Chunk { cookie, mut error, done, structured, mut carried_bytes } = self.chunk;
        if structured {
            let at = self.open.iter().position(|open| open.0 == cookie);
            if let Some(at) = at {
                carried_bytes += self.open[at].1;
                error = error.max(self.open[at].2);
            }
            match (done, at) {
                (false, Some(at)) => self.open[at] = (cookie, carried_bytes, error),
                (false, None) => self.open.push((cookie, carried_bytes, error)),
                (true, Some(at)) => {
                    self.open.swap_remove(at);
                }
                (true, None) => {}
            }
            if !done {
                return Ok(());
            }
        }
        let expected_bytes = u64::from(in_flight.reply_bytes(cookie).unwrap_or(0));
        if error == 0 && carried_bytes != expected_bytes {
            return Err(format!("request {cookie:#x} got {carried_bytes} bytes, expected {expected_bytes}"));
        }
        finished.push(Finished { cookie, error });
        Ok(())
    }
}

fn header_bytes(header: &[u8]) -> Result<usize, String> {
    match u32_at(header, 0) {
        SIMPLE_REPLY_MAGIC => Ok(SIMPLE_HEADER_BYTES),
        CHUNK_MAGIC => Ok(CHUNK_HEADER_BYTES),
        other => Err(format!("the server sent reply magic {other:#010x}, which is neither simple nor structured")),
    }
}

/// Big-endian number at byte `at`.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Big-endian number at byte `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Big-endian number at byte `at`.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cookies 1 and 2 are reads of 10 bytes, cookie 3 is a write; nothing else is in flight.
    fn reads_1_2_and_write_3(cookie: u64) -> Option<u32> {
        match cookie {
            1 | 2 => Some(10),
            3 => Some(0),
            _ => None,
        }
    }

    fn simple(cookie: u64, error: u32, payload_bytes: usize) -> Vec<u8> {
        let mut out = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
        out.extend(error.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.resize(out.len() + payload_bytes, 0xaa);
        out
    }

    fn chunk(cookie: u64, flags: u16, kind: u16, body: &[u8]) -> Vec<u8> {
        let mut out = CHUNK_MAGIC.to_be_bytes().to_vec();
        out.extend(flags.to_be_bytes());
        out.extend(kind.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend((body.len() as u32).to_be_bytes());
        out.extend(body);
        out
    }

    fn data(payload_bytes: usize) -> Vec<u8> {
        vec![0x55; 8 + payload_bytes]
    }

    fn hole(length_bytes: u32) -> Vec<u8> {
        let mut body = vec![0; 8];
        body.extend(length_bytes.to_be_bytes());
        body
    }

    /// Feeds `stream` in pieces of each length from 1 to all of it: the result must not depend on the cuts.
    fn parse(stream: &[u8]) -> Result<Vec<Finished>, String> {
        let mut first: Option<Result<Vec<Finished>, String>> = None;
        for piece_bytes in 1..=stream.len() {
            let mut parser = ReplyParser::new();
            let mut finished = Vec::new();
            let result = stream
                .chunks(piece_bytes)
                .try_for_each(|piece| parser.feed(piece, &reads_1_2_and_write_3, &mut finished))
                .map(|()| finished);
            assert_eq!(*first.get_or_insert_with(|| result.clone()), result, "pieces of {piece_bytes} bytes");
        }
        first.expect("the stream is not empty")
    }

    #[test]
    fn simple_replies_end_with_their_last_payload_byte() {
        let stream = [simple(2, 0, 10), simple(3, 0, 0), simple(1, 0, 10)].concat();
        let done = |cookie| Finished { cookie, error: 0 };
        assert_eq!(parse(&stream), Ok(vec![done(2), done(3), done(1)]));
        assert_eq!(parse(&stream[..stream.len() - 1]), Ok(vec![done(2), done(3)]), "the last byte is missing");
    }

    #[test]
    fn an_error_carries_no_payload() {
        let stream = [simple(1, 5, 0), simple(3, 0, 0)].concat();
        assert_eq!(parse(&stream), Ok(vec![Finished { cookie: 1, error: 5 }, Finished { cookie: 3, error: 0 }]));
    }

    #[test]
    fn chunks_of_two_reads_may_be_mixed() {
        // Read 1: data 4 + hole 6 = 10. Read 2: data 10 with the done flag.
        let stream =
            [chunk(1, 0, 1, &data(4)), chunk(2, 1, 1, &data(10)), chunk(1, 1, 2, &hole(6)), chunk(3, 1, 0, &[])]
                .concat();
        let done = |cookie| Finished { cookie, error: 0 };
        assert_eq!(parse(&stream), Ok(vec![done(2), done(1), done(3)]));
    }

    #[test]
    fn an_error_chunk_is_an_error_whatever_came_before() {
        let error_body = [5u32.to_be_bytes().as_slice(), 3u16.to_be_bytes().as_slice(), b"bad"].concat();
        let stream = [chunk(1, 0, 1, &data(4)), chunk(1, 0, 0x8001, &error_body), chunk(1, 1, 0, &[])].concat();
        assert_eq!(parse(&stream), Ok(vec![Finished { cookie: 1, error: 5 }]));
    }

    #[test]
    fn a_short_read_is_a_protocol_error() {
        let stream = chunk(1, 1, 1, &data(9));
        assert_eq!(parse(&stream), Err("request 0x1 got 9 bytes, expected 10".to_string()));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(parse(&simple(9, 0, 0)).unwrap_err().contains("not in flight"));
        assert!(parse(&[0u8; 16]).unwrap_err().contains("neither simple nor structured"));
        assert!(parse(&chunk(1, 1, 77, &[])).unwrap_err().contains("not allowed"));
    }

    #[test]
    fn a_request_has_the_bytes_of_the_specification() {
        let mut out = Vec::new();
        encode_request(&mut out, CMD_WRITE, 0x0102_0304_0506_0708, 0x1000, 512);
        let expected =
            [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0];
        assert_eq!(out, expected);
    }
}
