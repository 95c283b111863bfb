//! How do two processes speak while one takes the place of the other?
//!
//! In messages over a unix socket: kind and length, 4 bytes each in network order, then the body. Descriptors come with
//! the first byte (SCM_RIGHTS), at most [`DESCRIPTORS_MAX`]. A header is sent by one system call, so it is in the other
//! one's queue as a whole or not at all, which the commit point stands on (`mod.rs`).

use mqfq_blk::state::{StateReader, StateWriter};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Descriptors of one message: Linux' SCM_MAX_FD is 253.
pub const DESCRIPTORS_MAX: usize = 250;

/// Longest body, bytes: a list of names. States go in a file of memory.
const BODY_BYTES_MAX: usize = 64 << 20;

/// The error where a process has died.
pub const ENDED_IN_THE_MIDDLE: &str = "the other process ended in the middle of a message";

/// Room for the descriptors of one message.
const CONTROL_BYTES: usize = 32 + 8 * DESCRIPTORS_MAX;

/// A peer that does not take a message holds this process up for no longer.
const SEND_MAX: Duration = Duration::from_secs(5);

/// The kinds of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// New to old: the versions that it knows.
    Hello = 1,
    /// Old to new: the version, and descriptors that can be opened only once: files of devices, sockets.
    Welcome = 2,
    /// Either way: a refusal. Its sender goes on as before, or ends if it is the new one.
    No = 3,
    /// New to old: all that can fail without clients is done.
    Ready = 4,
    /// Old to new: it holds still; the first of the messages with the state.
    State = 5,
    /// Old to new: more descriptors.
    More = 6,
    /// New to old: it has everything. The commit point.
    Taken = 7,
}

impl Kind {
    const ALL: [Kind; 7] = [Kind::Hello, Kind::Welcome, Kind::No, Kind::Ready, Kind::State, Kind::More, Kind::Taken];
}

/// A message.
#[derive(Debug)]
pub struct Message {
    /// Its kind.
    pub kind: Kind,
    /// The kind's body.
    pub body: Vec<u8>,
    /// Descriptors passed along.
    pub descriptors: Vec<OwnedFd>,
}

/// A connection between the two.
#[derive(Debug)]
pub struct Link(UnixStream);

impl Link {
    /// Over this connection.
    ///
    /// # Errors
    /// Its limits cannot be set.
    pub fn new(stream: UnixStream) -> io::Result<Link> {
        stream.set_write_timeout(Some(SEND_MAX))?;
        Ok(Link(stream))
    }

    /// The user at the other end.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn user(&self) -> io::Result<u32> {
        Ok(rustix::net::sockopt::socket_peercred(&self.0)?.uid.as_raw())
    }

    /// The number of the process at the other end, if the kernel says it.
    pub fn process(&self) -> Option<u32> {
        let credentials = rustix::net::sockopt::socket_peercred(&self.0).ok()?;
        u32::try_from(credentials.pid.as_raw_nonzero().get()).ok()
    }

    /// Sends a message. An error other than a broken pipe may have sent a part of it.
    ///
    /// # Errors
    /// The other one is gone, or does not take it.
    pub fn send(&mut self, kind: Kind, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut header = (kind as u32).to_be_bytes().to_vec();
        header.extend((body.len() as u32).to_be_bytes());
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors in one message"));
        }
        let flags = SendFlags::NOSIGNAL;
        let sent = rustix::net::sendmsg(&self.0, &[IoSlice::new(&header)], &mut control, flags)?;
        if sent < header.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.0.write_all(body)
    }

    /// Says why not; a failed send is ignored.
    pub fn say_no(&mut self, sentence: &str) {
        let _ = self.send(Kind::No, sentence.as_bytes(), &[]);
    }

    /// The next message, within `patience`. `None`: the other one is gone.
    ///
    /// # Errors
    /// One sentence: it says nothing, or its bytes are not a message.
    pub fn receive(&mut self, patience: Duration) -> Result<Option<Message>, String> {
        let until = Instant::now() + patience;
        let late = || format!("the other process said nothing for {} s", patience.as_secs());
        let mut header = [0; 8];
        let mut descriptors = Vec::new();
        let mut have = 0;
        while have < header.len() {
            self.wait(until).ok_or_else(late)?;
            let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut vectors = [IoSliceMut::new(&mut header[have..])];
            let received = match rustix::net::recvmsg(&self.0, &mut vectors, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                Err(Errno::CONNRESET) => return Ok(None),
                Err(errno) => return Err(format!("the other process cannot be heard: {errno}")),
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = message {
                    descriptors.extend(passed);
                }
            }
            if received.flags.contains(ReturnFlags::CTRUNC) {
                return Err("this process may not have so many descriptors".to_owned());
            }
            match received.bytes {
                0 if have == 0 => return Ok(None),
                0 => return Err(ENDED_IN_THE_MIDDLE.to_owned()),
                bytes => have += bytes,
            }
        }
        let number = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
        let length = u32::from_be_bytes([header[4], header[5], header[6], header[7]]) as usize;
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u32 == number);
        let (Some(kind), true) = (kind, length <= BODY_BYTES_MAX) else {
            return Err("the other process does not speak as one of ours".to_owned());
        };
        // Read as it comes: the length alone takes no memory.
        let mut body = Vec::new();
        let mut piece = [0; 4096];
        while body.len() < length {
            self.wait(until).ok_or_else(late)?;
            let room = piece.len().min(length - body.len());
            match self.0.read(&mut piece[..room]) {
                Ok(0) => return Err(ENDED_IN_THE_MIDDLE.to_owned()),
                Ok(bytes) => body.extend_from_slice(&piece[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("the other process cannot be heard: {}", mqfq_report::plain(&error))),
            }
        }
        Ok(Some(Message { kind, body, descriptors }))
    }

    /// The next message of one kind.
    ///
    /// # Errors
    /// One sentence: as [`Link::receive`], the other one is gone, or it has sent another message.
    pub fn expect(&mut self, kind: Kind, patience: Duration) -> Result<Message, String> {
        match self.receive(patience)? {
            Some(message) if message.kind == kind => Ok(message),
            Some(Message { kind: Kind::No, body, .. }) => Err(String::from_utf8_lossy(&body).into_owned()),
            Some(message) => Err(format!("the other process said {:?} and not {kind:?}", message.kind)),
            None => Err("the other process has ended".to_owned()),
        }
    }

    /// Has the other one's messages fail with a broken pipe from now on; those that it has sent before can be received.
    pub fn hear_no_more(&self) {
        // An error says that it is gone.
        let _ = rustix::net::shutdown(&self.0, Shutdown::Read);
    }

    fn wait(&self, until: Instant) -> Option<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if poll_in(self.0.as_fd(), left) {
                return Some(());
            }
            if left.is_zero() {
                return None;
            }
        }
    }
}

/// Waits until `descriptor` can be read, at most so long.
pub fn poll_in(descriptor: BorrowedFd<'_>, wait: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    // An error is a signal, after which the caller looks again.
    rustix::event::poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&wait)).is_ok_and(|ready| ready > 0)
}

/// First bytes of each Hello.
const MAGIC: u64 = u64::from_be_bytes(*b"mqfq-new");

/// The first message of the new process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The oldest version of the state that it knows, and the newest.
    pub versions: (u16, u16),
    /// Its number.
    pub pid: u32,
    /// Changes that the config file does not have may be lost.
    pub discards_unsaved: bool,
}

impl Hello {
    /// Encodes it as a body.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = StateWriter::new(0);
        writer.u64(MAGIC);
        writer.u16(self.versions.0);
        writer.u16(self.versions.1);
        writer.u32(self.pid);
        writer.flag(self.discards_unsaved);
        writer.into_bytes()
    }

    /// Decodes a body. One of an earlier version says nothing of changes; fields that a later version adds are ignored.
    ///
    /// # Errors
    /// One sentence.
    pub fn decode(body: &[u8]) -> Result<Hello, String> {
        let mut reader = StateReader::new(0, body);
        let mut read = || Some((reader.u64().ok()?, reader.u16().ok()?, reader.u16().ok()?, reader.u32().ok()?));
        match read() {
            Some((MAGIC, oldest, newest, pid)) => {
                let discards_unsaved = reader.flag().unwrap_or(false);
                Ok(Hello { versions: (oldest, newest), pid, discards_unsaved })
            }
            _ => Err("the other process does not speak as one of ours".to_owned()),
        }
    }
}

/// A file without a name that has these bytes.
pub(super) fn memory_file(bytes: &[u8]) -> io::Result<File> {
    // SAFETY: the name is a C string, and nothing else is read.
    let file = unsafe { libc::memfd_create(c"mqfq-state".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours alone.
    let mut file: File = unsafe { OwnedFd::from_raw_fd(file) }.into();
    io::Write::write_all(&mut file, bytes)?;
    Ok(file)
}

/// Reads all of such a file.
pub(super) fn read_memory_file(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The position is shared with its writer.
    io::Seek::rewind(file)?;
    io::Read::read_to_end(file, &mut bytes)?;
    Ok(bytes)
}

/// Nanoseconds of a clock that all processes share.
pub(super) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is there to be written. It fails only for a clock that there is not.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn pair() -> (Link, Link) {
        let (one, other) = UnixStream::pair().unwrap();
        (Link::new(one).unwrap(), Link::new(other).unwrap())
    }

    #[test]
    fn messages_come_as_they_were_sent_with_their_descriptors() {
        let (mut one, mut other) = pair();
        let file = File::open("/dev/null").unwrap();
        one.send(Kind::State, b"body", &[file.as_fd(), file.as_fd()]).unwrap();
        one.send(Kind::More, &[], &vec![file.as_fd(); DESCRIPTORS_MAX]).unwrap();
        one.send(Kind::Taken, &[], &[]).unwrap();
        let message = other.expect(Kind::State, PATIENCE).unwrap();
        assert_eq!((&message.body[..], message.descriptors.len()), (&b"body"[..], 2));
        assert_eq!(other.expect(Kind::More, PATIENCE).unwrap().descriptors.len(), DESCRIPTORS_MAX);
        assert_eq!(other.receive(PATIENCE).unwrap().unwrap().kind, Kind::Taken);
        one.say_no("it is late");
        assert_eq!(other.expect(Kind::State, PATIENCE).unwrap_err(), "it is late");
        drop(one);
        assert!(other.receive(PATIENCE).unwrap().is_none());
    }

    #[test]
    fn what_was_sent_before_nobody_hears_any_more_is_heard_and_what_comes_later_fails() {
        let (mut one, mut other) = pair();
        one.send(Kind::Taken, &[], &[]).unwrap();
        other.hear_no_more();
        assert_eq!(one.send(Kind::Taken, &[], &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(other.receive(PATIENCE).unwrap().unwrap().kind, Kind::Taken);
        assert!(other.receive(PATIENCE).unwrap().is_none());
        // The other way is open.
        other.say_no("too late");
        assert_eq!(one.expect(Kind::Taken, PATIENCE).unwrap_err(), "too late");
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        for bytes in [&[0; 8][..], &[0, 0, 0, 1, 0xff, 0, 0, 0], &[0, 0, 0, 9, 0, 0, 0, 0]] {
            let (one, mut other) = pair();
            (&one.0).write_all(bytes).unwrap();
            assert_eq!(other.receive(PATIENCE).unwrap_err(), "the other process does not speak as one of ours");
        }
        let (one, mut other) = pair();
        (&one.0).write_all(&[0, 0, 0, 1, 0, 0, 0, 9, 7]).unwrap();
        drop(one);
        assert_eq!(other.receive(PATIENCE).unwrap_err(), "the other process ended in the middle of a message");
        // Nothing comes, and then the half of a body.
        let (one, mut other) = pair();
        assert_eq!(other.receive(Duration::ZERO).unwrap_err(), "the other process said nothing for 0 s");
        (&one.0).write_all(&[0, 0, 0, 1, 0, 0, 0, 9, 7]).unwrap();
        assert_eq!(other.receive(Duration::ZERO).unwrap_err(), "the other process said nothing for 0 s");
    }

    #[test]
    fn a_hello_is_understood_with_what_a_later_version_adds_behind() {
        let hello = Hello { versions: (1, 3), pid: 77, discards_unsaved: true };
        let mut body = hello.encode();
        body.extend(b"later");
        assert_eq!(Hello::decode(&body), Ok(hello));
        assert!(Hello::decode(&body[1..]).is_err() && Hello::decode(&body[..15]).is_err());
    }
}
