//! Which submission queue the controller fetches from next.
//!
//! Source: NVMe 1.3 section 4.11. CC.AMS selects the mechanism when a controller is enabled. Round robin, which every
//! controller has, is [`round_robin`]. Weighted round robin with urgent class gets a file of its own beside it: each
//! queue already carries its class ([`crate::ArbClass`]), and `Arbiter::pick` is all that the controller asks.
//!
//! Arbitration decides the order of *fetching*. A drive with room inside fetches at once and arbitrates nothing: only
//! when it is full inside do the submission queues compete.

pub mod round_robin;

use crate::queue_set::QueueSet;
use round_robin::RoundRobin;

/// Most commands fetched from one queue before the next has its turn: AB of the Arbitration feature (NVMe 1.3 section
/// 5.21.1.1), which holds a power of two, or 7 for no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArbitrationBurst(u8);

impl ArbitrationBurst {
    /// One command per turn: what a controller recommends that knows nothing better (RAB = 0).
    pub const ONE: ArbitrationBurst = ArbitrationBurst(0);
    /// A queue is fetched from until it is empty.
    pub const NO_LIMIT: ArbitrationBurst = ArbitrationBurst(7);

    /// From the field's value, 0..=7.
    pub const fn from_field(field: u8) -> Option<ArbitrationBurst> {
        if field <= 7 { Some(ArbitrationBurst(field)) } else { None }
    }

    /// Commands per turn.
    pub const fn commands(self) -> u32 {
        if self.0 == 7 { u32::MAX } else { 1 << self.0 }
    }
}

/// The mechanism in force.
#[derive(Debug)]
pub(crate) enum Arbiter {
    /// CC.AMS = 000b.
    RoundRobin(RoundRobin),
}

impl Arbiter {
    /// Chooses one of the queues with something to fetch and counts the fetch; `None` if there is none.
    pub(crate) fn pick(&mut self, candidates: &QueueSet) -> Option<usize> {
        match self {
            Arbiter::RoundRobin(round_robin) => round_robin.pick(candidates),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_burst_field_is_a_power_of_two_and_seven_means_no_limit() {
        let commands = [0, 1, 6, 7].map(|field| ArbitrationBurst::from_field(field).unwrap().commands());
        assert_eq!(commands, [1, 2, 64, u32::MAX]);
        assert_eq!(ArbitrationBurst::from_field(8), None, "the field has 3 bits");
    }
}
