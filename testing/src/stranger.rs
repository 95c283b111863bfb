//! Descriptors as a stranger passes them, and one whose last close waits.

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Descriptors that the kernel lets pass with one message.
const PASSED_MAX: usize = 253;

/// A TCP socket with unsent data and SO_LINGER: its last close waits for as long as the other end is open and reads
/// nothing, an hour at most.
pub fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut socket = TcpStream::connect(listener.local_addr().expect("a port")).expect("it listens");
    let (peer, _) = listener.accept().expect("it was connected");
    socket.set_nonblocking(true).expect("a socket");
    while socket.write(&[0; 65536]).is_ok() {}
    socket.set_nonblocking(false).expect("a socket");
    sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).expect("a socket");
    (socket.into(), peer)
}

/// Sends all `bytes`, and `files` with the first of them.
pub fn pass(socket: impl AsFd, bytes: &[u8], files: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)), "at most {PASSED_MAX} at once");
    }
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    assert_eq!(sent, bytes.len(), "a message is short");
    Ok(())
}
