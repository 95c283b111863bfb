//! A pipelined NBD client on a unix socket: negotiation, then as many requests in flight as its caller likes.
//!
//! Source: the NBD protocol document, "Fixed newstyle negotiation" and "Transmission phase".
//!
//! # Shape
//! Negotiation blocks (it happens once, before anything is measured). Afterwards the socket does not block: the caller
//! gathers requests with [`Connection::request`], sends them in one batch with [`Connection::flush`], and takes what
//! has come with [`Connection::receive`]. The caller owns the loop that waits for the socket ([`crate::load_nbd`]).
//!
//! A request's cookie is `generation << 16 | index`: a late or doubled reply names a request that is no longer in
//! flight and is refused, it cannot end the next request that uses the same index.
//!
//! # Cost
//! One `write` per batch and one `read` per readiness, for any number of requests; a request costs 28 copied bytes.

use crate::nbd_wire as wire;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Negotiation that takes longer than this failed: a server that never answers must not hang a benchmark.
const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest option reply that a server may send, bytes: far more than any information reply needs.
const OPTION_REPLY_BYTES_MAX: u32 = 64 * 1024;

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    generation: u32,
    live: bool,
    length_bytes: u32,
    /// Payload of the reply, bytes.
    reply_bytes: u32,
    sent_ns: u64,
}

/// A request that ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Which: index below the depth given to [`Connection::connect`]; free for the next request.
    pub index: u16,
    /// Length asked for.
    pub length_bytes: u32,
    /// `now_ns` given to [`Connection::request`].
    pub sent_ns: u64,
    /// 0, or the errno that the server sent.
    pub error: u32,
}

/// The server's description of the export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// Size.
    pub size_bytes: u64,
    /// NBD transmission flags.
    pub flags: u16,
    /// The server agreed on structured replies.
    pub structured: bool,
}

/// One connection in its transmission phase.
pub struct Connection {
    socket: UnixStream,
    info: ExportInfo,
    in_flight: Vec<InFlight>,
    live: usize,
    outgoing: Vec<u8>,
    sent_bytes: usize,
    parser: wire::ReplyParser,
    finished: Vec<wire::Finished>,
}

impl Connection {
    /// Connects to `socket`, goes to export `export`, and allows `depth` requests in flight.
    ///
    /// # Errors
    /// One sentence naming the socket, if nothing listens there, the server refuses the export, or it breaks the
    /// protocol.
    pub fn connect(socket: &Path, export: &str, depth: u16, structured: bool) -> Result<Connection, String> {
        let name = socket.display();
        let stream = UnixStream::connect(socket).map_err(|error| format!("cannot connect to {name}: {error}"))?;
        Self::negotiate(stream, export, depth, structured)
            .map_err(|error| format!("NBD negotiation on {name} failed: {error}"))
    }

    fn negotiate(
        mut stream: UnixStream,
        export: &str,
        depth: u16,
        want_structured: bool,
    ) -> Result<Connection, String> {
        let io = |error: std::io::Error| error.to_string();
        stream.set_read_timeout(Some(NEGOTIATION_TIMEOUT)).map_err(io)?;
        stream.set_write_timeout(Some(NEGOTIATION_TIMEOUT)).map_err(io)?;
        let mut greeting = [0u8; 18];
        stream.read_exact(&mut greeting).map_err(io)?;
        if wire::u64_at(&greeting, 0) != wire::INIT_MAGIC || wire::u64_at(&greeting, 8) != wire::OPTION_MAGIC {
            return Err("the server's greeting is not that of newstyle NBD".into());
        }
        let server_flags = wire::u16_at(&greeting, 16);
        if server_flags & wire::FLAG_FIXED_NEWSTYLE == 0 {
            return Err("the server does not speak fixed newstyle".into());
        }
        let client_flags = server_flags & (wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
        stream.write_all(&u32::from(client_flags).to_be_bytes()).map_err(io)?;

        let mut structured = false;
        if want_structured {
            send_option(&mut stream, wire::OPT_STRUCTURED_REPLY, &[]).map_err(io)?;
            structured = read_option_reply(&mut stream, wire::OPT_STRUCTURED_REPLY)?.0 == wire::REP_ACK;
        }

        let mut go = (export.len() as u32).to_be_bytes().to_vec();
        go.extend_from_slice(export.as_bytes());
        go.extend_from_slice(&0u16.to_be_bytes());
        send_option(&mut stream, wire::OPT_GO, &go).map_err(io)?;
        let mut export_info = None;
        loop {
            let (reply, body) = read_option_reply(&mut stream, wire::OPT_GO)?;
            match reply {
                wire::REP_ACK => break,
                wire::REP_INFO if body.len() == 12 && wire::u16_at(&body, 0) == wire::INFO_EXPORT => {
                    export_info = Some((wire::u64_at(&body, 2), wire::u16_at(&body, 10)));
                }
                wire::REP_INFO => {}
                error if error & wire::REP_ERROR_BIT != 0 => {
                    let text = String::from_utf8_lossy(&body);
                    return Err(format!("the server refuses export \"{export}\" (reply {error:#x}) {text}"));
                }
                other => return Err(format!("the server answered GO with reply {other:#x}")),
            }
        }
        let Some((size_bytes, flags)) = export_info else {
            return Err("the server acknowledged GO without saying the export's size".into());
        };
        stream.set_read_timeout(None).map_err(io)?;
        stream.set_write_timeout(None).map_err(io)?;
        stream.set_nonblocking(true).map_err(io)?;
        let idle = InFlight { generation: 0, live: false, length_bytes: 0, reply_bytes: 0, sent_ns: 0 };
        Ok(Connection {
            socket: stream,
            info: ExportInfo { size_bytes, flags, structured },
            in_flight: vec![idle; usize::from(depth)],
            live: 0,
            outgoing: Vec::with_capacity(64 * 1024),
            sent_bytes: 0,
            parser: wire::ReplyParser::new(),
            finished: Vec::with_capacity(usize::from(depth)),
        })
    }

    /// The server's description of the export.
    pub fn info(&self) -> ExportInfo {
        self.info
    }

    /// The socket, to wait on.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Requests allowed in flight.
    pub fn depth(&self) -> u16 {
        self.in_flight.len() as u16
    }

    /// Requests in flight.
    pub fn live(&self) -> usize {
        self.live
    }

    /// True if some gathered bytes have not been taken by the socket yet.
    pub fn has_unsent(&self) -> bool {
        self.sent_bytes < self.outgoing.len()
    }

    /// Gathers a read of `length_bytes`, or a write of `payload`. It leaves with the next [`Connection::flush`].
    ///
    /// # Panics
    /// If `index` is in flight or not below the depth: that is a bug of the caller.
    pub fn request(
        &mut self,
        index: u16,
        offset_bytes: u64,
        length_bytes: u32,
        write_payload: Option<&[u8]>,
        now_ns: u64,
    ) {
        let (command, reply_bytes) = match write_payload {
            Some(_) => (wire::CMD_WRITE, 0),
            None => (wire::CMD_READ, length_bytes),
        };
        let cookie = self.begin(index, length_bytes, reply_bytes, now_ns);
        wire::encode_request(&mut self.outgoing, command, cookie, offset_bytes, length_bytes);
        if let Some(payload) = write_payload {
            self.outgoing.extend_from_slice(&payload[..length_bytes as usize]);
        }
    }

    /// Gathers an NBD flush, which makes completed writes durable.
    ///
    /// # Panics
    /// As [`Connection::request`].
    pub fn request_flush(&mut self, index: u16, now_ns: u64) {
        let cookie = self.begin(index, 0, 0, now_ns);
        wire::encode_request(&mut self.outgoing, wire::CMD_FLUSH, cookie, 0, 0);
    }

    /// Marks `index` as in flight; returns the cookie of its request.
    fn begin(&mut self, index: u16, length_bytes: u32, reply_bytes: u32, now_ns: u64) -> u64 {
        let entry = &mut self.in_flight[usize::from(index)];
        assert!(!entry.live, "request {index} is already in flight");
        let generation = entry.generation.wrapping_add(1);
        *entry = InFlight { generation, live: true, length_bytes, reply_bytes, sent_ns: now_ns };
        self.live += 1;
        cookie(generation, index)
    }

    /// Sends what has gathered, as far as the socket takes it. Call again when the socket is writable while
    /// [`Connection::has_unsent`].
    ///
    /// # Errors
    /// One sentence, if the connection is broken.
    pub fn flush(&mut self) -> Result<(), String> {
        while self.has_unsent() {
            match self.socket.write(&self.outgoing[self.sent_bytes..]) {
                Ok(0) => return Err("the server closed the connection".into()),
                Ok(count) => self.sent_bytes += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("sending failed: {error}")),
            }
        }
        self.outgoing.clear();
        self.sent_bytes = 0;
        Ok(())
    }

    /// Takes what has come, at most `scratch.len()` bytes, and appends the requests that ended to `done`. False if
    /// nothing had come.
    ///
    /// # Errors
    /// One sentence, if the connection is broken or the server broke the protocol.
    pub fn receive(&mut self, scratch: &mut [u8], done: &mut Vec<Done>) -> Result<bool, String> {
        let count = loop {
            match self.socket.read(scratch) {
                Ok(0) => return Err("the server closed the connection".into()),
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("receiving failed: {error}")),
            }
        };
        let in_flight = &self.in_flight;
        let expected = |name: u64| {
            let (generation, index) = split(name);
            let entry = in_flight.get(usize::from(index)).filter(|e| e.live && e.generation == generation)?;
            Some(entry.reply_bytes)
        };
        self.finished.clear();
        self.parser.feed(&scratch[..count], &expected, &mut self.finished)?;
        for finished in &self.finished {
            let (_, index) = split(finished.cookie);
            let entry = &mut self.in_flight[usize::from(index)];
            if !entry.live {
                return Err(format!("the server answered request {:#x} twice", finished.cookie));
            }
            entry.live = false;
            self.live -= 1;
            done.push(Done { index, length_bytes: entry.length_bytes, sent_ns: entry.sent_ns, error: finished.error });
        }
        Ok(true)
    }

    /// Says goodbye. Call with nothing in flight; dropping the connection without it only is less polite.
    pub fn disconnect(mut self) {
        wire::encode_request(&mut self.outgoing, wire::CMD_DISC, 0, 0, 0);
        // The server may be gone already, which does not matter.
        let _ = self.flush();
    }
}

fn cookie(generation: u32, index: u16) -> u64 {
    u64::from(generation) << 16 | u64::from(index)
}

fn split(cookie: u64) -> (u32, u16) {
    ((cookie >> 16) as u32, cookie as u16)
}

fn send_option(stream: &mut UnixStream, option: u32, body: &[u8]) -> std::io::Result<()> {
    let mut out = wire::OPTION_MAGIC.to_be_bytes().to_vec();
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(body);
    stream.write_all(&out)
}

fn read_option_reply(stream: &mut UnixStream, option: u32) -> Result<(u32, Vec<u8>), String> {
    let mut header = [0u8; 20];
    stream.read_exact(&mut header).map_err(|error| error.to_string())?;
    if wire::u64_at(&header, 0) != wire::OPTION_REPLY_MAGIC || wire::u32_at(&header, 8) != option {
        return Err(format!("the reply to option {option} does not name it"));
    }
    let length_bytes = wire::u32_at(&header, 16);
    if length_bytes > OPTION_REPLY_BYTES_MAX {
        return Err(format!("the reply to option {option} has {length_bytes} bytes"));
    }
    let mut body = vec![0u8; length_bytes as usize];
    stream.read_exact(&mut body).map_err(|error| error.to_string())?;
    Ok((wire::u32_at(&header, 12), body))
}
