//! A drive that answers nothing for a long time, beside one that does.

use super::wish::{self, EXPORTS};
use super::{DRAIN_NS, Run, STALL_NS};
use crate::world;
use mqfq_blk::random::Random;
use std::time::Duration;

/// Longest that 20 requests of each client take beside a drive that is silent, ns.
const SERVED_NS: u64 = 250_000_000;

/// A client whose server receives fewer bytes at once takes longer by itself.
const PIECE_BYTES: usize = 512;

/// Longest that a stop takes whatever drives do, ns: `drain-s`, and what the engine gives the last requests.
const STOP_NS: u64 = DRAIN_NS + 5_000_000_000 + 1_000_000;

impl Run {
    /// One drive answers nothing for a long time. Tenants without an export there are served meanwhile, and a server
    /// that is told to stop ends.
    pub(super) fn silence(&mut self, silent: usize, seed: u64) {
        let (others_move, mut random) = (self.stalled_until_ns <= world::now_ns(), Random::new(seed));
        self.stalled_until_ns = self.stalled_until_ns.max(world::now_ns() + STALL_NS);
        self.drives.all()[silent].stall_until(self.stalled_until_ns);
        let device = |export: &wish::Export| wish::at(export.place).0;
        let exports = self.wish.exports.clone();
        let harmed: Vec<usize> =
            exports.iter().flatten().filter(|export| device(export) == silent).map(|export| export.tenant).collect();
        for number in (0..EXPORTS).filter(|number| exports[*number].is_some()) {
            self.connect(number);
            self.clients.borrow_mut()[number].want(20, &mut random);
        }
        world::run(SERVED_NS);
        for (client, export) in self.clients.borrow().iter().zip(&exports) {
            let Some(export) = export.as_ref().filter(|export| others_move && !harmed.contains(&export.tenant)) else {
                continue;
            };
            let left = client.under_way();
            let is_slow = client.manners().piece_bytes < PIECE_BYTES;
            let is_served = client.is_away() || is_slow || (left == 0 && client.is_idle());
            assert!(
                is_served,
                "a foreign fault is local (I14): {left} requests of {client} at drive {} wait for drive {silent}",
                device(export)
            );
        }
        if random.chance(32768) {
            let began_ns = world::now_ns();
            let is_drained = self.managed().engine.drain(Duration::from_nanos(DRAIN_NS));
            let took_ns = world::now_ns() - began_ns;
            assert!(took_ns <= STOP_NS, "a server that is told to stop has not ended after {took_ns} ns: {is_drained}");
            self.kill(false);
        }
    }
}
