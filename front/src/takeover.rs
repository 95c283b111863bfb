//! The listening socket that a killed server leaves for a moment: waiting for it instead of failing on it.
//!
//! `kill -9` ends a process at once, and a supervisor starts its successor at once. But the kernel first finishes what
//! the dead one's io_uring had in flight, an accept among it, and until then its socket takes connections like that of
//! a server that lives. (The file device has this problem with its lock, and waits by itself.)
//!
//! | socket of | our connection to it |
//! |---|---|
//! | a killed server | is closed with the socket, some milliseconds later |
//! | a server that lives and greets | gets the first byte of its greeting |
//! | a silent server | neither: time runs out |
//!
//! The code that binds then meets a living server again, and fails.

use crate::socket::SocketAddress;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Longest wait, in looks: 3 s.
const LOOKS_MAX: u32 = 300;

/// From one look at whether the wait is to be given up to the next.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Returns when no process listens on the socket, when a server there sends its greeting, when time has run out, or
/// when `give_up` says so. Where no socket is, that costs one system call.
pub fn wait_for_socket(path: &Path, give_up: &dyn Fn() -> bool) {
    let is_socket = rustix::fs::lstat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    let Some(address) = SocketAddrUnix::new(path).ok().filter(|_| is_socket) else { return };
    let mut looks = 0;
    let mut goes_on = || {
        looks += 1;
        looks < LOOKS_MAX && !give_up()
    };
    // Not blocking: connecting to a full backlog would have no end.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(socket) = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else { return };
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            // The backlog is full.
            Err(Errno::AGAIN) if goes_on() => drop(poll(&mut [])),
            Err(_) => return,
        }
    }
    // A server that lives sends the first byte; the socket of a dead one is closed with us in its queue.
    while poll(&mut [PollFd::new(&socket, PollFlags::IN)]) == 0 && goes_on() {}
}

/// Waits for one of `descriptors`, at most until the next look. The number of those that are ready.
fn poll(descriptors: &mut [PollFd<'_>]) -> usize {
    // An error is a signal: the next look is as good.
    rustix::event::poll(descriptors, Some(&LOOK)).unwrap_or(0)
}

/// Passed sockets that are not in use.
#[derive(Default)]
pub struct Inherited(Mutex<Vec<(String, OwnedFd)>>);

impl Inherited {
    /// These, each with what the service manager calls it.
    pub fn new(sockets: Vec<(String, OwnedFd)>) -> Inherited {
        Inherited(Mutex::new(sockets))
    }

    fn sockets(&self) -> MutexGuard<'_, Vec<(String, OwnedFd)>> {
        // A list is whole whatever a thread that panicked was doing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of them listens at what an address claims ([`crate::front_end::Address::claim`]).
    pub fn has(&self, claim: &str) -> bool {
        let Ok(address) = SocketAddress::parse(claim) else { return false };
        self.sockets().iter().any(|(_, socket)| address.is_where(socket))
    }

    /// Removes and returns the socket that listens at `address`.
    pub(crate) fn take(&self, address: &SocketAddress) -> Option<OwnedFd> {
        let mut sockets = self.sockets();
        let at = sockets.iter().position(|(_, socket)| address.is_where(socket))?;
        Some(sockets.remove(at).1)
    }

    /// Takes back a socket that is no longer used; it goes on listening.
    pub(crate) fn give_back(&self, socket: OwnedFd) {
        self.sockets().push((String::new(), socket));
    }

    /// Names of unused sockets.
    pub fn left(&self) -> Vec<String> {
        self.sockets().iter().map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("mqfq-takeover-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_listener_that_closes_ends_the_wait() {
        let path = path("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let waiter = std::thread::spawn({
            let path = path.clone();
            move || wait_for_socket(&path, &|| false)
        });
        drop(listener);
        waiter.join().unwrap();
        assert!(UnixStream::connect(&path).is_err());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_server_that_greets_is_not_waited_for() {
        let path = path("greeting");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            std::io::Write::write_all(&mut listener.accept().unwrap().0, b"NBDMAGIC").unwrap();
            listener
        });
        wait_for_socket(&path, &|| false);
        drop(server.join().unwrap());
        std::fs::remove_file(&path).unwrap();
    }
    #[test]
    fn somebody_who_says_nothing_is_not_waited_for_once_the_wait_is_given_up() {
        let path = path("silent");
        let silent = UnixListener::bind(&path).unwrap();
        let looks = std::cell::Cell::new(0);
        let give_up = || looks.replace(looks.get() + 1) == 2;
        wait_for_socket(&path, &give_up);
        assert_eq!(looks.get(), 3, "given up at the third look");
        // Again in front of a backlog of one, where that connection still waits.
        // A second listen only changes the backlog.
        rustix::net::listen(&silent, 0).unwrap();
        looks.set(0);
        wait_for_socket(&path, &give_up);
        assert_eq!(looks.get(), 3);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_socket_is_used_once_and_where_it_listens() {
        let folder = std::env::temp_dir().join(format!("mqfq-inherited-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.sock");
        let (unix, tcp) = (UnixListener::bind(&path).unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let port = tcp.local_addr().unwrap().port();
        let (one, _other) = UnixStream::pair().unwrap();
        let sockets = [("a", unix.into()), ("t", tcp.into()), ("not listening", OwnedFd::from(one))];
        let inherited = Inherited::new(sockets.map(|(name, socket)| (name.to_owned(), socket)).into());
        let unix = format!("unix:{}", path.display());
        assert!(inherited.has(&unix) && inherited.has(&format!("tcp:localhost:{port}")));
        assert!(!inherited.has("unix:/elsewhere") && !inherited.has("tcp:localhost:1"));
        let address = SocketAddress::parse(&unix).unwrap();
        let socket = inherited.take(&address).unwrap();
        assert!(inherited.take(&address).is_none());
        assert_eq!(inherited.left(), ["t", "not listening"]);
        let listening = address.adopt(socket).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(listening);
        assert!(path.exists(), "the file is the service manager's");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
