//! Limits of a connection, and names of its counters.

use super::rule::Rule;
use super::transmit::Limits;
use super::wire::Command;
use crate::connection_slots::HANDSHAKES_MAX;
use crate::export::Export;
use crate::front_end::ListenOptions;
use crate::memory::PIECE_BYTES_MAX;
use crate::stats::{Names, names_of};
use mqfq_blk::buffer::ALIGNMENT_BYTES;

/// Names of its counters: requests by command (unknown commands together), rules by [`Rule`].
pub static NAMES: Names = Names {
    front_end: "nbd",
    requests: &{
        let mut names = ["unknown"; Command::ALL.len() + 1];
        let mut place = 0;
        while place < Command::ALL.len() {
            names[place] = Command::ALL[place].name();
            place += 1;
        }
        names
    },
    rules: names_of!(Rule),
    crowded_out: Rule::HandshakeCrowdedOut as usize,
    handshakes_max: HANDSHAKES_MAX,
    own: &[],
};

/// Limits and habits of one listener.
#[derive(Clone, Debug)]
pub struct NbdOptions {
    /// Options of every front end.
    pub listen: ListenOptions,
    /// Requests of one connection whose replies have not left, at least 1. Default 256.
    pub requests_in_flight_max: usize,
    /// Largest piece in which a payload is received, executed and answered, bytes: a power of two, at least 4096.
    /// Default [`PIECE_BYTES_MAX`].
    pub piece_bytes: u32,
    /// Largest receive buffer of a connection, bytes, at least 4096. A connection has 4 KiB during the handshake,
    /// 16 KiB then, and this much once it fills those. Default 128 KiB.
    pub receive_buffer_bytes: usize,
}

/// Receive buffer of the handshake, bytes.
pub(super) const HANDSHAKE_RECEIVE_BYTES: usize = ALIGNMENT_BYTES;

impl NbdOptions {
    /// Limits of one connection of `export`.
    pub(super) fn limits(&self, export: &Export) -> Limits {
        let block = export.block;
        let payload_bytes_max = 1 << block.payload_bytes_max.ilog2();
        Limits {
            requests_max: self.requests_in_flight_max.max(1),
            bytes_max: self.listen.bytes_in_flight_max_now(),
            piece_bytes: self.piece_bytes.min(payload_bytes_max).max(block.min_bytes),
        }
    }

    /// Largest receive buffer, bytes, in the handshake and after it.
    pub(super) fn receive_bytes_max(&self) -> usize {
        self.receive_buffer_bytes.max(HANDSHAKE_RECEIVE_BYTES)
    }
}

impl Default for NbdOptions {
    fn default() -> Self {
        NbdOptions {
            listen: ListenOptions::default(),
            requests_in_flight_max: 256,
            piece_bytes: PIECE_BYTES_MAX,
            receive_buffer_bytes: 128 << 10,
        }
    }
}
