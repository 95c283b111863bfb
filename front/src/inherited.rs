//! Listening sockets that a service manager passes to the process (socket activation).
//!
//! A socket is used at the address where it listens: a unix path as the config writes it, or a TCP port. Its file
//! belongs to its maker, and stays at the end.

use crate::socket::SocketAddress;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
