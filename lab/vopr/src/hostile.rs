//! Clients that mean harm: their messages are half right, and they read nothing.
//!
//! Their tenant's export lies between those of others, so bytes that leave it are noticed where they do not belong.

use crate::net::SharedPipe;
use crate::server::EXPORT_BYTES;
use mqfq_blk::random::Random;
use mqfq_front::nbd::wire::{OPTION_MAGIC, REQUEST_MAGIC, handshake, option};

/// A hostile client, which sends all its bytes at once.
pub struct Hostile {
    pipe: SharedPipe,
    random: Random,
    kind: u64,
    has_said: bool,
}

impl Hostile {
    /// `kind` 0: a handshake that is cut or spoilt; 1: a good one, then requests with fields out of range; 2: noise.
    pub fn new(pipe: SharedPipe, seed: u64, kind: u64, export: &str) -> Hostile {
        let mut hostile = Hostile { pipe, random: Random::new(seed), kind, has_said: false };
        hostile.say(export);
        hostile
    }

    fn say(&mut self, export: &str) {
        let mut bytes = match self.kind {
            0 => handshake_of(export),
            1 => {
                let mut bytes = handshake_of(export);
                (0..40).for_each(|_| self.request(&mut bytes));
                bytes
            }
            _ => (0..64).map(|_| self.random.next_u64() as u8).collect(),
        };
        if self.kind == 0 {
            let length = bytes.len() as u64;
            match self.random.below(3) {
                0 => bytes.truncate(self.random.below(length) as usize),
                1 => bytes[self.random.below(length) as usize] ^= 1 << self.random.below(8),
                _ => {}
            }
        }
        self.pipe.borrow_mut().to_server.extend(bytes);
        self.has_said = true;
    }

    /// A request whose numbers lie at edges.
    fn request(&mut self, out: &mut Vec<u8>) {
        const EDGES: [u64; 8] =
            [0, 511, 512, EXPORT_BYTES - 512, EXPORT_BYTES - 1, EXPORT_BYTES, u64::MAX - 511, u64::MAX];
        const LENGTHS: [u32; 7] = [0, 1, 512, 4096, 65536, 1 << 25, u32::MAX];
        let offset = EDGES[self.random.below(8) as usize];
        let length = LENGTHS[self.random.below(7) as usize];
        let command = self.random.below(9) as u16;
        out.extend(REQUEST_MAGIC.to_be_bytes());
        out.extend((self.random.below(16) as u16).to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(self.random.next_u64().to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend(length.to_be_bytes());
        if command == 1 && length <= 65536 {
            // A payload of its own, in which nothing has a tenant's name.
            out.resize(out.len() + length as usize, 0xa5);
        }
    }

    /// Disconnects the client.
    pub fn leave(&mut self) {
        self.pipe.borrow_mut().is_left = true;
    }

    /// Nothing: it does not read.
    pub fn turn(&mut self) -> bool {
        false
    }

    /// The server has closed its connection, or it has gone.
    pub fn is_over(&self) -> bool {
        let pipe = self.pipe.borrow();
        pipe.is_shut || pipe.is_left
    }
}

fn handshake_of(export: &str) -> Vec<u8> {
    let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
    let name = export.as_bytes();
    let data = [&(name.len() as u32).to_be_bytes()[..], name, &0u16.to_be_bytes()].concat();
    let mut bytes = u32::from(flags).to_be_bytes().to_vec();
    bytes.extend(OPTION_MAGIC.to_be_bytes());
    bytes.extend(option::GO.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}
