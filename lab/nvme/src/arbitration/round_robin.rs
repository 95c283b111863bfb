//! Round robin: every queue with commands has its turn, of at most a burst.
//!
//! Source: NVMe 1.3 section 4.11.1. All queues are treated alike, whatever their class. Weighted round robin has one of
//! these inside each class ([`super::weighted`]).
//!
//! Round robin is fair in commands per queue, and therefore unfair to tenants: one with 64 KiB requests gets 16 times
//! the bytes of one with 4 KiB, one with four queues gets four times the share of one with one (MQFQ, ATC'19, section
//! 4.1).
//!
//! # Invariant
//! R1. Between two turns of a queue that stays a candidate, every other candidate has at most one turn.
//!
//! # Cost
//! One look at the current queue; at the end of a turn one pass over a bitmap of the queues.

use crate::queue::QueueSet;

/// The queues with commands to fetch, and the one whose turn it is.
#[derive(Debug)]
pub struct RoundRobin {
    candidates: QueueSet,
    current: usize,
    /// Commands that the current queue had in this turn.
    granted: u32,
}

impl RoundRobin {
    /// An arbiter of queues below `bound`, none of them a candidate. The turn begins with queue 0.
    pub fn new(bound: usize) -> RoundRobin {
        RoundRobin { candidates: QueueSet::new(bound), current: 0, granted: 0 }
    }

    /// Sets whether a queue is a candidate: has a command that may be fetched.
    pub fn set_candidate(&mut self, index: usize, is_candidate: bool) {
        self.candidates.set(index, is_candidate);
    }

    /// The queue to fetch one command from, with turns of at most `turn_commands`.
    pub fn pick(&mut self, turn_commands: u32) -> Option<usize> {
        if self.granted >= turn_commands || !self.candidates.contains(self.current) {
            // A queue that has run empty loses the rest of its turn; one that is alone gets the next turn at once.
            self.current = self.candidates.next_from(self.current + 1)?;
            self.granted = 0;
        }
        // One that is alone under "no limit" may have any number.
        self.granted = self.granted.saturating_add(1);
        Some(self.current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LIMIT: u32 = u32::MAX;

    fn among(members: &[usize]) -> RoundRobin {
        let mut arbiter = RoundRobin::new(8);
        members.iter().for_each(|&member| arbiter.set_candidate(member, true));
        arbiter
    }

    fn picks(arbiter: &mut RoundRobin, turn_commands: u32, count: usize) -> Vec<usize> {
        std::iter::repeat_with(|| arbiter.pick(turn_commands)).take(count).flatten().collect()
    }

    #[test]
    fn queues_take_turns() {
        assert_eq!(picks(&mut among(&[0, 2, 5]), 1, 7), [0, 2, 5, 0, 2, 5, 0]);
    }

    #[test]
    fn a_turn_is_a_burst_of_commands() {
        assert_eq!(picks(&mut among(&[0, 2]), 2, 6), [0, 0, 2, 2, 0, 0]);
    }

    #[test]
    fn a_queue_that_ran_empty_loses_the_rest_of_its_turn() {
        let mut arbiter = among(&[0, 1]);
        assert_eq!(picks(&mut arbiter, 4, 2), [0, 0]);
        arbiter.set_candidate(0, false);
        assert_eq!(picks(&mut arbiter, 4, 1), [1]);
        arbiter.set_candidate(0, true);
        assert_eq!(picks(&mut arbiter, 4, 4), [1, 1, 1, 0]);
    }

    #[test]
    fn a_queue_that_is_alone_has_every_turn() {
        assert_eq!(picks(&mut among(&[3]), 1, 3), [3, 3, 3]);
        assert_eq!(among(&[]).pick(1), None);
    }

    #[test]
    fn a_limit_that_changes_in_mid_turn_counts_from_the_turns_start() {
        let mut arbiter = among(&[0, 1]);
        assert_eq!(picks(&mut arbiter, NO_LIMIT, 3), [0, 0, 0]);
        assert_eq!(picks(&mut arbiter, 4, 2), [0, 1], "one more makes four");
        assert_eq!(picks(&mut arbiter, 2, 3), [1, 0, 0]);
        assert_eq!(picks(&mut arbiter, 1, 1), [1], "0 is past the new limit");
    }
}
