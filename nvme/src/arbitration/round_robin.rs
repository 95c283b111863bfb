//! Round robin: every queue with commands has its turn, of at most a burst.
//!
//! Source: NVMe 1.3 section 4.11.1. All queues are treated alike, whatever their class.
//!
//! It is fair in commands per queue, which is why it is unfair to tenants: one with 64 KiB requests gets 16 times the
//! bytes of one with 4 KiB, one with four queues gets four times the share of one with one (MQFQ, ATC'19, section 4.1).
//!
//! # Invariant
//! R1. Between two turns of a queue that stays a candidate, every other candidate has at most one turn.
//!
//! # Cost
//! One look at the current queue; at the end of a turn one pass over a bitmap of the queues.

use super::ArbitrationBurst;
use crate::queue_set::QueueSet;

/// Whose turn it is.
#[derive(Debug)]
pub struct RoundRobin {
    burst_commands: u32,
    current: usize,
    /// Commands that the current queue may still have in this turn.
    left: u32,
}

impl RoundRobin {
    /// The turn begins with queue 0.
    pub fn new(burst: ArbitrationBurst) -> RoundRobin {
        RoundRobin { burst_commands: burst.commands(), current: 0, left: burst.commands() }
    }

    /// The queue to fetch one command from.
    pub fn pick(&mut self, candidates: &QueueSet) -> Option<usize> {
        if self.left == 0 || !candidates.contains(self.current) {
            // A queue that has run empty loses the rest of its turn; one that is alone gets the next turn at once.
            self.current = candidates.next_from(self.current + 1)?;
            self.left = self.burst_commands;
        }
        self.left -= 1;
        Some(self.current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(members: &[usize]) -> QueueSet {
        let mut set = QueueSet::new(8);
        members.iter().for_each(|&member| set.set(member, true));
        set
    }

    fn picks(arbiter: &mut RoundRobin, set: &QueueSet, count: usize) -> Vec<usize> {
        std::iter::repeat_with(|| arbiter.pick(set)).take(count).flatten().collect()
    }

    #[test]
    fn queues_take_turns() {
        let mut arbiter = RoundRobin::new(ArbitrationBurst::ONE);
        assert_eq!(picks(&mut arbiter, &candidates(&[0, 2, 5]), 7), [0, 2, 5, 0, 2, 5, 0]);
    }

    #[test]
    fn a_turn_is_a_burst_of_commands() {
        let mut arbiter = RoundRobin::new(ArbitrationBurst::from_field(1).unwrap());
        assert_eq!(picks(&mut arbiter, &candidates(&[0, 2]), 6), [0, 0, 2, 2, 0, 0]);
    }

    #[test]
    fn a_queue_that_ran_empty_loses_the_rest_of_its_turn() {
        let mut arbiter = RoundRobin::new(ArbitrationBurst::from_field(2).unwrap());
        assert_eq!(picks(&mut arbiter, &candidates(&[0, 1]), 2), [0, 0]);
        assert_eq!(picks(&mut arbiter, &candidates(&[1]), 1), [1]);
        assert_eq!(picks(&mut arbiter, &candidates(&[0, 1]), 4), [1, 1, 1, 0]);
    }

    #[test]
    fn a_queue_that_is_alone_has_every_turn() {
        let mut arbiter = RoundRobin::new(ArbitrationBurst::ONE);
        assert_eq!(picks(&mut arbiter, &candidates(&[3]), 3), [3, 3, 3]);
        assert_eq!(arbiter.pick(&candidates(&[])), None);
    }
}
