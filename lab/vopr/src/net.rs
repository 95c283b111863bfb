//! The wires between clients and server: sockets and listeners that no kernel has.
//!
//! Answers: which bytes may the server receive now, and has it room to send?
//!
//! The front ends know descriptors, so each end that the server has is a real descriptor, of which only the identity
//! (the inode) is looked at: a copy of it, as an upgrade makes them, is the same socket. Bytes and descriptors that go
//! with them stay in memory.

use mqfq_testing::user;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::fstat;
use rustix::net::SocketAddrUnix;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

/// Bytes that an unread socket takes.
pub const SOCKET_BYTES: usize = 256 << 10;

/// One connection, as both ends see it.
#[derive(Default)]
pub struct Pipe {
    /// Sent by the client, not yet received.
    pub to_server: VecDeque<u8>,
    /// Descriptors that come with the next bytes.
    pub descriptors: Vec<OwnedFd>,
    /// Sent by the server, not yet read.
    pub to_client: Vec<u8>,
    /// Descriptors that came with it.
    pub descriptors_to_client: Vec<OwnedFd>,
    /// The client has gone.
    pub is_left: bool,
    /// The server has shut it down, or has gone.
    pub is_shut: bool,
    /// Most bytes that one receive brings.
    pub piece_bytes: usize,
}

/// A pipe with two holders.
pub type SharedPipe = Rc<RefCell<Pipe>>;

/// All sockets, by inode.
#[derive(Default)]
pub struct Net {
    /// And the other end, to which the kernel tells when no descriptor of the socket is left.
    pipes: HashMap<u64, (SharedPipe, OwnedFd)>,
    /// By the path of the listening socket: connections that were not accepted yet.
    waiting: HashMap<PathBuf, VecDeque<OwnedFd>>,
    /// Connections in `waiting`.
    waiting_count: usize,
    /// Connections that were ever made.
    made: u64,
}

/// The pipes of a worker's descriptors, by number: the kernel is asked for the inode of each once. A number means
/// another socket only when a connection was made since, or in another server's process, which has hosts of its own.
#[derive(Default)]
pub struct KnownPipes {
    pipes: Vec<Weak<RefCell<Pipe>>>,
    made: u64,
}

impl KnownPipes {
    /// The pipe of a server's socket.
    pub fn get(&mut self, net: &Net, socket: RawFd) -> Option<SharedPipe> {
        if self.made != net.made {
            (self.made, self.pipes) = (net.made, Vec::new());
        }
        let at = usize::try_from(socket).ok()?;
        if let Some(pipe) = self.pipes.get(at).and_then(Weak::upgrade) {
            return Some(pipe);
        }
        let pipe = net.pipe(identity(socket))?;
        self.pipes.resize(self.pipes.len().max(at + 1), Weak::new());
        self.pipes[at] = Rc::downgrade(pipe);
        Some(pipe.clone())
    }
}

thread_local! {
    static RINGS: Cell<u64> = const { Cell::new(0) };
}

/// Rings an eventfd that a worker may wait for.
pub fn ring(event: BorrowedFd<'_>) -> rustix::io::Result<()> {
    stir();
    rustix::io::write(event, &1u64.to_ne_bytes()).map(|_| ())
}

/// An eventfd may have been rung.
pub fn stir() {
    RINGS.set(RINGS.get() + 1);
}

/// Rings so far on this thread. As long as there is none, the kernel is not asked for them.
pub fn rings() -> u64 {
    RINGS.get()
}

/// Where a socket listens.
pub fn path_of(listener: RawFd) -> Option<PathBuf> {
    // SAFETY: the caller holds the descriptor, for the duration of the call at least.
    let borrowed = unsafe { BorrowedFd::borrow_raw(listener) };
    let address = SocketAddrUnix::try_from(rustix::net::getsockname(borrowed).ok()?).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(address.path_bytes()?)))
}

/// Where folders of sockets are: in memory, where there is such a place.
pub fn scratch() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// Inode of a descriptor, which identifies it whatever its number.
pub fn identity(descriptor: RawFd) -> u64 {
    // SAFETY: the caller holds the descriptor, for the duration of the call at least.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    fstat(borrowed).map_or(0, |about| about.st_ino)
}

impl Net {
    /// A connection to the listener at this path, which will find it when it accepts.
    pub fn connect(&mut self, listener: PathBuf, piece_bytes: usize) -> SharedPipe {
        self.connect_by(listener, piece_bytes, None)
    }

    /// As [`Net::connect`], by a process of this user and group, if given and this process is root's: SO_PEERCRED names
    /// the process that made the sockets.
    pub fn connect_by(&mut self, listener: PathBuf, piece_bytes: usize, whose: Option<(u32, u32)>) -> SharedPipe {
        let pair = || UnixStream::pair().expect("a socket for a client");
        let (ours, theirs) = match whose.filter(|_| user::is_root()) {
            Some((uid, gid)) => user::as_user(uid, gid, pair),
            None => pair(),
        };
        let ours = OwnedFd::from(ours);
        let pipe = Rc::new(RefCell::new(Pipe { piece_bytes, ..Pipe::default() }));
        self.pipes.insert(identity(ours.as_raw_fd()), (pipe.clone(), theirs.into()));
        self.waiting.entry(listener).or_default().push_back(ours);
        self.waiting_count += 1;
        self.made += 1;
        pipe
    }

    /// The pipe of a server's socket.
    pub fn pipe(&self, socket: u64) -> Option<&SharedPipe> {
        self.pipes.get(&socket).map(|(pipe, _)| pipe)
    }

    /// Sockets that a server has closed without a word, such as one that has ended, are shut.
    pub fn hang_up(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        for (pipe, theirs) in self.pipes.values() {
            let mut poll = [PollFd::new(theirs, PollFlags::empty())];
            if rustix::event::poll(&mut poll, Some(&now)).is_ok_and(|count| count > 0) {
                pipe.borrow_mut().is_shut = true;
            }
        }
    }

    /// A connection that waits is there.
    pub fn has_waiting(&self, listener: &Path) -> bool {
        self.waiting_count > 0 && self.waiting.get(listener).is_some_and(|waiting| !waiting.is_empty())
    }

    /// The next of them.
    pub fn accept(&mut self, listener: &Path) -> Option<OwnedFd> {
        let socket = self.waiting.get_mut(listener)?.pop_front()?;
        self.waiting_count -= 1;
        Some(socket)
    }

    /// The server's process has ended: all its sockets are closed.
    pub fn end_all(&mut self) {
        self.pipes.drain().for_each(|(_, (pipe, _))| pipe.borrow_mut().is_shut = true);
        self.waiting.clear();
        self.waiting_count = 0;
    }

    /// Forgets connections that are over at both ends.
    pub fn forget(&mut self) {
        self.pipes.retain(|_, (pipe, _)| Rc::strong_count(pipe) > 1 || !pipe.borrow().is_shut);
    }
}
