//! TLS in a build without it: types of which there is no value, so that no address offers it and no connection has it.
//!
//! The demo is such a build (`front/Cargo.toml`, feature `tls`).

use crate::identity::Identity;
use crate::nbd::inbox::Inbox;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::Part;
use std::sync::Arc;

/// Memory of a connection under TLS that is no payload, bytes: there is none.
pub const STANDING_BYTES: u64 = 0;

/// Keys in force. There are none.
#[derive(Debug)]
pub enum Keys {}

impl Keys {
    /// Config that a handshake begins with now.
    pub fn now(&self) -> &Keys {
        self
    }
}

/// TLS at one address.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Keys in force.
    pub keys: Arc<Keys>,
    /// Clients without TLS are refused.
    pub is_required: bool,
}

/// A handshake may go on in this turn.
pub fn may_step(_: u64) -> bool {
    true
}

/// Result of the bytes so far.
#[derive(PartialEq, Eq, Debug)]
pub enum Step {
    /// Something was done.
    Moved,
    /// The handshake is over: these are the client's names.
    Established(Vec<Identity>),
    /// The client sends no more.
    Ended,
    /// No more can be understood or said.
    Broken(String),
}

/// One session. There is none.
#[derive(Debug)]
pub enum Channel {}

impl Channel {
    /// The server's side of a handshake.
    ///
    /// # Errors
    /// None: there are no keys.
    pub fn new(keys: &Keys) -> Result<Channel, String> {
        match *keys {}
    }

    /// The handshake is over.
    pub fn is_established(&self) -> bool {
        match *self {}
    }

    /// No byte has come that was not used.
    pub fn is_between_records(&self) -> bool {
        match *self {}
    }

    /// Bytes came that were not used.
    pub fn is_holding(&self) -> bool {
        match *self {}
    }

    /// [`Channel::advance`] can do something without more bytes.
    pub fn can_advance(&self) -> bool {
        match *self {}
    }

    /// Lends a buffer for a receive.
    pub fn lend(&mut self) -> Option<(Buffer, usize, usize)> {
        match *self {}
    }

    /// Takes it back with `received_bytes` more.
    pub fn put_back(&mut self, _buffer: Buffer, _received_bytes: usize) {
        match *self {}
    }

    /// Takes at most one record with plaintext.
    pub fn advance(&mut self, _plain: &mut Inbox) -> Step {
        match *self {}
    }

    /// Reason why nothing more can be encrypted.
    pub fn take_failed(&mut self) -> Option<String> {
        match *self {}
    }

    /// Parts to send for `plain`.
    pub fn seal(&mut self, _plain: &[Part]) -> Vec<Part> {
        match *self {}
    }

    /// Queues the session's last message.
    pub fn say_goodbye(&mut self) -> bool {
        match *self {}
    }
}
