//! An NBD client that can also misbehave: std only, simple replies only, and nothing shared with the server's code or
//! the benchmark's client, so that no misunderstanding can be on both ends.
//!
//! Source: the NBD protocol document, "Newstyle negotiation" and "Transmission phase".

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub const CMD_READ: u16 = 0;
pub const CMD_WRITE: u16 = 1;
pub const CMD_DISC: u16 = 2;
pub const CMD_FLUSH: u16 = 3;
pub const CMD_WRITE_ZEROES: u16 = 6;
pub const FLAG_FUA: u16 = 1;
pub const FLAG_NO_HOLE: u16 = 2;

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_GO: u32 = 7;

pub const REP_ACK: u32 = 1;
pub const REP_INFO: u32 = 3;

pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

/// A silent server fails a test instead of hanging it.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A connection before it has chosen an export.
pub struct Handshake {
    pub stream: UnixStream,
}

impl Handshake {
    /// Connects, reads the greeting and answers its flags (fixed newstyle, no zeroes).
    pub fn start(socket: &Path) -> Handshake {
        let mut handshake = Handshake::greeted(socket);
        handshake.stream.write_all(&3u32.to_be_bytes()).unwrap();
        handshake
    }

    /// Connects and reads the greeting only.
    pub fn greeted(socket: &Path) -> Handshake {
        Handshake::try_greeted(socket).expect("a greeting")
    }

    /// [`Handshake::greeted`]; `None` if the server closes instead.
    pub fn try_greeted(socket: &Path) -> Option<Handshake> {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(SILENCE_MAX)).unwrap();
        stream.set_write_timeout(Some(SILENCE_MAX)).unwrap();
        let mut greeting = [0; 18];
        if !read_or_end(&mut stream, &mut greeting) {
            return None;
        }
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(greeting[17] & 3, 3, "fixed newstyle and no zeroes");
        Some(Handshake { stream })
    }

    /// Sends an option whose header says `length_bytes`, whatever `data` has.
    pub fn option_claiming(&mut self, option: u32, length_bytes: u32, data: &[u8]) -> io::Result<()> {
        let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend(length_bytes.to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes)
    }

    pub fn option(&mut self, option: u32, data: &[u8]) {
        self.option_claiming(option, data.len() as u32, data).unwrap();
    }

    /// The next option reply: type and data; `None` if the server closed.
    pub fn reply(&mut self, option: u32) -> Option<(u32, Vec<u8>)> {
        let mut header = [0; 20];
        if !read_or_end(&mut self.stream, &mut header) {
            return None;
        }
        assert_eq!(u64::from_be_bytes(header[..8].try_into().unwrap()), OPTION_REPLY_MAGIC);
        assert_eq!(u32_at(&header, 8), option, "the reply names the option");
        let mut data = vec![0; u32_at(&header, 16) as usize];
        self.stream.read_exact(&mut data).unwrap();
        Some((u32_at(&header, 12), data))
    }

    /// Goes to `export`, which must exist.
    pub fn go(self, export: &str) -> Client {
        self.try_go(export).unwrap_or_else(|(_, kind, text)| panic!("GO was refused: {kind:#x} {text}"))
    }

    /// Goes to `export`. If it is refused: the handshake, the reply's type and its text.
    pub fn try_go(mut self, export: &str) -> Result<Client, (Handshake, u32, String)> {
        let mut data = (export.len() as u32).to_be_bytes().to_vec();
        data.extend(export.as_bytes());
        data.extend(0u16.to_be_bytes());
        self.option(OPT_GO, &data);
        let mut size_bytes = None;
        loop {
            match self.reply(OPT_GO).expect("an answer to GO") {
                (REP_ACK, _) => break,
                (REP_INFO, info) if info[..2] == [0, 0] => {
                    size_bytes = Some(u64::from_be_bytes(info[2..10].try_into().unwrap()));
                }
                (REP_INFO, _) => {}
                (kind, data) => return Err((self, kind, String::from_utf8_lossy(&data).into_owned())),
            }
        }
        Ok(Client { stream: self.stream, size_bytes: size_bytes.expect("NBD_INFO_EXPORT"), next_cookie: 0 })
    }
}

/// A simple reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub error: u32,
    pub cookie: u64,
}

/// A connection in its transmission phase.
pub struct Client {
    pub stream: UnixStream,
    pub size_bytes: u64,
    next_cookie: u64,
}

impl Client {
    pub fn connect(socket: &Path, export: &str) -> Client {
        Handshake::start(socket).go(export)
    }

    /// A second handle on the same connection, for another thread.
    pub fn split(&self) -> Client {
        Client { stream: self.stream.try_clone().unwrap(), size_bytes: self.size_bytes, next_cookie: self.next_cookie }
    }

    /// Sends a request's header and `payload`, as they are.
    pub fn send(&mut self, request: Request, payload: &[u8]) -> io::Result<()> {
        let mut bytes = request.header();
        bytes.extend(payload);
        self.stream.write_all(&bytes)
    }

    /// The next reply's header; `None` if the server closed the connection.
    pub fn reply(&mut self) -> Option<Reply> {
        let mut header = [0; 16];
        if !read_or_end(&mut self.stream, &mut header) {
            return None;
        }
        assert_eq!(u32_at(&header, 0), SIMPLE_REPLY_MAGIC);
        Some(Reply { error: u32_at(&header, 4), cookie: u64::from_be_bytes(header[8..].try_into().unwrap()) })
    }

    /// Sends one request and waits for its reply; the bytes of a read that ended well, or the error.
    pub fn call(&mut self, request: Request, payload: &[u8]) -> Result<Vec<u8>, u32> {
        self.next_cookie += 1;
        let request = Request { cookie: self.next_cookie, ..request };
        self.send(request, payload).unwrap();
        let reply = self.reply().expect("an answer");
        assert_eq!(reply.cookie, request.cookie);
        if reply.error != 0 {
            return Err(reply.error);
        }
        let mut data = vec![0; if request.command == CMD_READ { request.length_bytes as usize } else { 0 }];
        self.stream.read_exact(&mut data).unwrap();
        Ok(data)
    }

    pub fn read(&mut self, offset_bytes: u64, length_bytes: u32) -> Result<Vec<u8>, u32> {
        self.call(Request { offset_bytes, length_bytes, ..Request::of(CMD_READ) }, &[])
    }

    pub fn write(&mut self, offset_bytes: u64, data: &[u8]) -> Result<(), u32> {
        let length_bytes = data.len() as u32;
        self.call(Request { offset_bytes, length_bytes, ..Request::of(CMD_WRITE) }, data).map(drop)
    }

    pub fn flush(&mut self) -> Result<(), u32> {
        self.call(Request::of(CMD_FLUSH), &[]).map(drop)
    }

    /// True if the server closed the connection without another byte.
    pub fn is_closed(&mut self) -> bool {
        is_closed(&mut self.stream)
    }
}

/// A request's fields, as they go on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub magic: u32,
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset_bytes: u64,
    pub length_bytes: u32,
}

impl Request {
    pub fn of(command: u16) -> Request {
        Request { magic: REQUEST_MAGIC, flags: 0, command, cookie: 0, offset_bytes: 0, length_bytes: 0 }
    }

    pub fn header(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_be_bytes().to_vec();
        bytes.extend(self.flags.to_be_bytes());
        bytes.extend(self.command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(self.offset_bytes.to_be_bytes());
        bytes.extend(self.length_bytes.to_be_bytes());
        bytes
    }
}

/// True if the stream ends here.
pub fn is_closed(stream: &mut UnixStream) -> bool {
    !read_or_end(stream, &mut [0; 1])
}

/// Fills `bytes`; false if the peer closed before the first of them.
fn read_or_end(stream: &mut UnixStream, bytes: &mut [u8]) -> bool {
    loop {
        match stream.read(&mut bytes[..1]) {
            Ok(0) => return false,
            // A server that closes with our bytes unread resets the connection.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return false,
            // A read with a time limit ends like this when the process is stopped and goes on; the server is not to
            // blame.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(_) => break,
            Err(error) => panic!("the server is silent: {error}"),
        }
    }
    stream.read_exact(&mut bytes[1..]).expect("the server ended in the middle of a message");
    true
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}
