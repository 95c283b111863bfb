//! NBD: network block devices, for fio, QEMU, nbdcopy, the kernel and other clients.
//!
//! `docs/use/nbd.md` says what is spoken and what is refused. The parts, from the socket inwards:
//!
//! | module | answers |
//! |---|---|
//! | `front_end` | which addresses, and what listens there? (the rest is [`crate::listener`]) |
//! | [`connection`] | what does one connection do with its socket and the block layer? |
//! | [`channel`] | what does TLS make of it? (bytes in, bytes out) |
//! | [`negotiate`] | which export, which features? (bytes in, bytes out) |
//! | [`transmit`] | which requests? (bytes in, requests out) |
//! | `large` | how does a long request go in pieces? |
//! | [`validate`] | is this request one that we execute? |
//! | [`reply`] | how do answers become one send? |
//! | `options` | which limits has a connection, and how are its counters called? |
//! | [`rule`], [`wire`] | names of all rules; numbers of the protocol |
//!
//! Places ([`crate::connection_slots`]), memory ([`crate::memory`]) and counters ([`crate::stats`]) are as for every
//! front end.
//! Everything between `negotiate` and `wire` is free of I/O and of time: tests and fuzzers drive it with bytes.

#[cfg(feature = "tls")]
pub mod channel;
#[cfg(not(feature = "tls"))]
pub use crate::tls as channel;
pub mod connection;
mod front_end;
pub mod inbox;
mod large;
pub mod negotiate;
mod options;
pub mod reply;
pub mod rule;
pub mod transmit;
pub mod validate;
pub mod wire;

pub use connection::Connection;
pub use front_end::{Nbd, listen};
pub use options::{NAMES, NbdOptions};
