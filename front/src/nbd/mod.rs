//! NBD: network block devices, for fio, QEMU, nbdcopy, the kernel and everybody else who speaks it.
//!
//! `docs/use/nbd.md` says what is spoken and what is refused. The parts, from the socket inwards:
//!
//! | module | answers |
//! |---|---|
//! | [`listener`] | where do connections come from, and how many may there be? |
//! | [`connection`] | what does one connection do with its socket and the block layer? |
//! | [`places`] | who may stay, and who has to go? |
//! | [`reserve`] | how is a client refused when there are no descriptors? |
//! | [`negotiate`] | which export, which features? (bytes in, bytes out) |
//! | [`transmit`] | which requests? (bytes in, requests out) |
//! | `large` | how does a long request go in pieces? |
//! | [`validate`] | is this request one that we execute? |
//! | [`reply`] | how do answers become one send? |
//! | [`rule`], [`wire`] | names of all rules; numbers of the protocol |
//! | [`stats`] | what happened? |
//!
//! Everything between `negotiate` and `wire` is free of I/O and of time: tests and fuzzers drive it with bytes.

pub mod connection;
#[cfg(test)]
mod fake;
mod inbox;
mod large;
pub mod listener;
pub mod negotiate;
pub mod places;
pub mod reply;
pub mod reserve;
pub mod rule;
pub mod stats;
pub mod transmit;
pub mod validate;
pub mod wire;

pub use connection::Connection;
pub use listener::{Address, NbdListener};
pub use reserve::Reserve;
pub use stats::{NbdCounts, NbdStats};

use crate::memory::{MemoryLimits, PIECE_BYTES_MAX};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Takes one line about a connection that was closed for a broken rule.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Limits and habits of one listener.
#[derive(Clone)]
pub struct NbdOptions {
    /// Connections that have chosen an export; half of them are guaranteed to the tenants, in equal parts ([`places`]).
    /// Handshakes have places of their own, [`places::handshakes_max`]. Default 1024.
    pub connections_max: usize,
    /// Requests of one connection whose replies have not left, at least 1. Default 256.
    pub requests_in_flight_max: usize,
    /// Memory of their payloads, bytes; one request or piece always fits. Default [`MemoryLimits::CONNECTION_BYTES`].
    pub bytes_in_flight_max: u64,
    /// Largest piece in which a payload is received, executed and answered, bytes: a power of two, at least 4096.
    /// Default [`PIECE_BYTES_MAX`].
    pub piece_bytes: u32,
    /// Largest receive buffer of a connection, bytes, at least 4096. A connection has 4 KiB during the handshake,
    /// 16 KiB then, and this much once it fills those. Default 128 KiB.
    pub receive_buffer_bytes: usize,
    /// From the start of a connection to the end of its handshake; one that takes longer is closed, so that clients who
    /// say nothing do not stay. Default 10 s.
    pub handshake_timeout: Duration,
    /// Permissions of a unix socket. Default 0o600: who may reach a tenant's bytes is for the administrator to say.
    pub socket_mode: u32,
    /// For all listeners of a process; each [`Default`] has its own.
    pub reserve: Arc<Reserve>,
    /// Where lines about broken connections and refused clients go. Default: nowhere; [`NbdStats`] counts them anyway.
    pub log: Option<Log>,
}

impl Default for NbdOptions {
    fn default() -> Self {
        NbdOptions {
            connections_max: 1024,
            requests_in_flight_max: 256,
            bytes_in_flight_max: MemoryLimits::CONNECTION_BYTES,
            piece_bytes: PIECE_BYTES_MAX,
            receive_buffer_bytes: 128 << 10,
            handshake_timeout: Duration::from_secs(10),
            socket_mode: 0o600,
            reserve: Arc::default(),
            log: None,
        }
    }
}

impl fmt::Debug for NbdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NbdOptions")
            .field("connections_max", &self.connections_max)
            .field("requests_in_flight_max", &self.requests_in_flight_max)
            .field("bytes_in_flight_max", &self.bytes_in_flight_max)
            .field("piece_bytes", &self.piece_bytes)
            .field("receive_buffer_bytes", &self.receive_buffer_bytes)
            .field("handshake_timeout", &self.handshake_timeout)
            .field("socket_mode", &format_args!("{:#o}", self.socket_mode))
            .field("log", &self.log.is_some())
            .finish()
    }
}
