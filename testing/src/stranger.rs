//! Descriptors as a stranger passes them, one whose last close waits, and the vhost-user messages that carry them.

use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt};
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Descriptors that the kernel lets pass with one message.
const PASSED_MAX: usize = 253;

/// The other end of a [`lingering`] socket. Its drop ends the connection, also where copies are open: another test's
/// child has both ends until its `exec` closes them in turn, and the first close would wait for the second.
pub struct Peer(TcpStream);

impl Drop for Peer {
    fn drop(&mut self) {
        // An error says that the connection has ended.
        let _ = rustix::net::connect_unspec(&self.0);
    }
}

/// A TCP socket with unsent data and SO_LINGER: its last close waits for as long as the other end is there and reads
/// nothing, an hour at most.
pub fn lingering() -> (OwnedFd, Peer) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut socket = TcpStream::connect(listener.local_addr().expect("a port")).expect("it listens");
    let (peer, _) = listener.accept().expect("it was connected");
    socket.set_nonblocking(true).expect("a socket");
    while socket.write(&[0; 65536]).is_ok() {}
    socket.set_nonblocking(false).expect("a socket");
    sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).expect("a socket");
    (socket.into(), Peer(peer))
}

/// An eventfd that does not wait.
pub fn event() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor")
}

/// Memory that can be shared, of which nothing has been touched.
pub fn sparse(bytes: u64) -> File {
    let file = rustix::fs::memfd_create("sparse", MemfdFlags::CLOEXEC).expect("a descriptor");
    rustix::fs::ftruncate(&file, bytes).expect("a length that a file may have");
    file.into()
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

/// Numbers of vhost-user's messages. Source: the vhost-user specification, "Front-end message types".
pub mod number {
    #![allow(missing_docs, reason = "the names are the specification's")]
    pub const SET_FEATURES: u32 = 2;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const ADD_MEM_REG: u32 = 37;
}

/// A vhost-user message of this number that wants an answer.
pub fn message(number: u32, words: &[u64]) -> Vec<u8> {
    let header = [number, 1 | 8, words.len() as u32 * 8].map(u32::to_ne_bytes).concat();
    [header, words.iter().flat_map(|word| word.to_ne_bytes()).collect()].concat()
}

/// The number that answers a vhost-user message: 0 if it was done.
pub fn answer(mut socket: &UnixStream) -> std::io::Result<u64> {
    let mut answer = [0; 20];
    socket.read_exact(&mut answer)?;
    Ok(u64::from_ne_bytes(answer[12..].try_into().expect("8 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_that_waits_ends_with_its_peer_also_where_a_copy_of_the_peer_is_open() {
        let (socket, peer) = lingering();
        let copy = peer.0.try_clone().unwrap();
        let (is_closed, closed) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(socket);
            is_closed.send(()).unwrap();
        });
        drop(peer);
        closed.recv_timeout(Duration::from_secs(60)).expect("the close ends long before an hour");
        drop(copy);
    }
}
