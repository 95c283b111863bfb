//! Weighted round robin with urgent priority class.
//!
//! Source: NVMe 1.3 section 4.11.2.
//!
//! ```text
//!  urgent queues ── round robin ─────────────────────────────────────────────┐ strictly first
//!  high queues   ── round robin ─┐ HPW commands per round                    ├─▶ fetch
//!  medium queues ── round robin ─┼ MPW ─▶ weighted round robin ──────────────┘
//!  low queues    ── round robin ─┘ LPW
//! ```
//!
//! # The rules
//! * Urgent before all others, without any protection of them (4.11.2, strict priority classes). The admin class above
//!   it has no queue here.
//! * High, medium and low share the rest by credits: HPW, MPW and LPW commands per arbitration round (5.21.1.1).
//! * Queues of one class take turns. In a round a queue has at most the burst or the credits that its class has left,
//!   whichever is fewer (4.11.2, last sentence); a burst of 7 is no limit, so there the credits are.
//!
//! # What the specification leaves open, and what is done here
//! * The order inside a round: high until its credits are used up, then medium, then low, then the next round. So is
//!   the drive that D2FQ describes (FAST'21, section 2.3, Figure 3b).
//! * A class that has no command in its turn loses the rest of the turn. Credit is not kept: it begins its next turn
//!   with its weight. When no queue has a command, the next one to come begins a new round.
//! * A turn of a queue is `min(burst, weight)` commands. If the credits of the class end before it does, it goes on in
//!   the class's next turn: a weight of 3 and a burst of 2 give `a a b`, `b a a`, `b b a`, and not `a a b` for ever,
//!   twice as much for a as for b.
//! * An urgent command in the middle of a turn uses no credit; the turn goes on after it.
//!
//! # Invariants
//! W1. In a full round in which every class always has a command, each has its weight of commands exactly.
//! W2. While no urgent queue has a command, a class that has one waits for at most the weights of the other two.
//! W3. With one class (or every command in one), it is round robin with turns of `min(burst, weight)`.
//! W4. R1 of [`super::round_robin`] inside each class.
//!
//! # Cost
//! At most four looks at a class; each is that of round robin.

use super::round_robin::RoundRobin;
use crate::queue::ArbClass;

/// The queues with commands to fetch, by class, and the class whose turn it is.
#[derive(Debug)]
pub struct WeightedRoundRobin {
    urgent: RoundRobin,
    /// High, medium, low.
    weighted: [RoundRobin; 3],
    /// The class whose turn it is.
    turn: usize,
    /// Commands of that class in this turn: its credits are its weight less this (A1).
    granted: u32,
}

impl WeightedRoundRobin {
    /// An arbiter of queues below `bound`, none of them a candidate. A round begins.
    pub fn new(bound: usize) -> WeightedRoundRobin {
        let class = || RoundRobin::new(bound);
        WeightedRoundRobin { urgent: class(), weighted: [class(), class(), class()], turn: 0, granted: 0 }
    }

    /// Sets whether a queue of this class is a candidate: has a command that may be fetched.
    pub fn set_candidate(&mut self, index: usize, class: ArbClass, is_candidate: bool) {
        let queues = match class {
            ArbClass::Urgent => &mut self.urgent,
            ArbClass::High => &mut self.weighted[0],
            ArbClass::Medium => &mut self.weighted[1],
            ArbClass::Low => &mut self.weighted[2],
        };
        queues.set_candidate(index, is_candidate);
    }

    /// The queue to fetch one command from, with the burst and the weights (high, medium, low) that hold now.
    pub fn pick(&mut self, burst_commands: u32, weights: [u32; 3]) -> Option<usize> {
        // 4.11.2: all candidate commands of a queue of higher strict priority go before those of a lower one.
        if let Some(queue) = self.urgent.pick(burst_commands) {
            return Some(queue);
        }
        // The class whose turn it is may be at its end and alone: the fourth look is its next turn.
        for _ in 0..4 {
            let weight = weights[self.turn];
            // 4.11.2: the burst or the credits left, whichever is fewer.
            if self.granted < weight
                && let Some(queue) = self.weighted[self.turn].pick(burst_commands.min(weight))
            {
                self.granted += 1;
                return Some(queue);
            }
            self.turn = if self.turn == 2 { 0 } else { self.turn + 1 };
            self.granted = 0;
        }
        self.turn = 0;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::ArbClass::{High, Low, Medium, Urgent};
    use super::*;

    const NO_LIMIT: u32 = u32::MAX;

    /// Queues with this many commands each, called by letters: `a` is queue 0.
    struct Rig {
        arbiter: WeightedRoundRobin,
        queues: Vec<(ArbClass, usize)>,
    }

    /// Always has a command.
    const BACKLOG: usize = usize::MAX;

    impl Rig {
        fn new(queues: &[(ArbClass, usize)]) -> Rig {
            let mut rig = Rig { arbiter: WeightedRoundRobin::new(queues.len()), queues: queues.to_vec() };
            (0..queues.len()).for_each(|index| rig.announce(index));
            rig
        }

        fn announce(&mut self, index: usize) {
            let (class, commands) = self.queues[index];
            self.arbiter.set_candidate(index, class, commands > 0);
        }

        fn add(&mut self, index: usize, commands: usize) {
            self.queues[index].1 += commands;
            self.announce(index);
        }

        /// The next `count` grants, as letters.
        fn grants(&mut self, burst: u32, weights: [u32; 3], count: usize) -> String {
            let mut grants = String::new();
            for _ in 0..count {
                let Some(index) = self.arbiter.pick(burst, weights) else { break };
                let commands = &mut self.queues[index].1;
                *commands -= usize::from(*commands != BACKLOG);
                self.announce(index);
                grants.push((b'a' + index as u8) as char);
            }
            grants
        }
    }

    const WEIGHTS: [u32; 3] = [3, 2, 1];

    #[test]
    fn a_round_is_three_of_high_two_of_medium_and_one_of_low() {
        let mut rig = Rig::new(&[(Low, BACKLOG), (Medium, BACKLOG), (High, BACKLOG)]);
        assert_eq!(rig.grants(1, WEIGHTS, 13), "cccbba cccbba c".replace(' ', ""));
    }

    #[test]
    fn two_queues_of_a_class_take_turns_of_a_burst() {
        let queues = [(High, BACKLOG), (High, BACKLOG), (Medium, BACKLOG), (Medium, BACKLOG), (Low, BACKLOG)];
        // One command each in turn; the turns go on where the round before left off.
        assert_eq!(Rig::new(&queues).grants(1, WEIGHTS, 12), "aba cd e bab cd e".replace(' ', ""));
        // Two each: the second turn of high is cut after one command, and goes on in the next round.
        assert_eq!(Rig::new(&queues).grants(2, WEIGHTS, 18), "aab cc e baa dd e bba cc e".replace(' ', ""));
        // No limit: the credits are the limit.
        assert_eq!(Rig::new(&queues).grants(NO_LIMIT, WEIGHTS, 18), "aaa cc e bbb dd e aaa cc e".replace(' ', ""));
    }

    #[test]
    fn a_burst_beyond_the_weight_is_cut_to_it() {
        let queues = [(High, BACKLOG), (High, BACKLOG), (Low, BACKLOG)];
        assert_eq!(Rig::new(&queues).grants(64, [2, 1, 1], 9), "aac bbc aac".replace(' ', ""));
    }

    #[test]
    fn urgent_goes_first_and_the_turn_goes_on_after_it() {
        let mut rig = Rig::new(&[(High, BACKLOG), (Medium, BACKLOG), (Low, BACKLOG), (Urgent, 0), (Urgent, 0)]);
        assert_eq!(rig.grants(1, WEIGHTS, 2), "aa");
        rig.add(3, 3);
        rig.add(4, 1);
        // Round robin among the urgent; then the third of high.
        assert_eq!(rig.grants(1, WEIGHTS, 8), "dedd abbc".replace(' ', ""));
        rig.add(3, 4);
        rig.add(4, 2);
        assert_eq!(rig.grants(2, WEIGHTS, 7), "deeddda", "two each in turn, and d had one");
    }

    #[test]
    fn a_class_that_runs_empty_loses_its_turn_and_banks_nothing() {
        let mut rig = Rig::new(&[(High, 1), (Medium, BACKLOG), (Low, BACKLOG)]);
        // High has one of three; two are lost. The rounds without it are medium's and low's.
        assert_eq!(rig.grants(1, WEIGHTS, 5), "a bbc b".replace(' ', ""));
        // It comes back in the middle of medium's turn and waits for its own: three, not five.
        rig.add(0, BACKLOG);
        assert_eq!(rig.grants(1, WEIGHTS, 7), "bc aaa bb".replace(' ', ""));
    }

    #[test]
    fn a_class_alone_has_every_turn() {
        assert_eq!(Rig::new(&[(Low, BACKLOG)]).grants(1, WEIGHTS, 4), "aaaa");
        assert_eq!(Rig::new(&[(Low, 2)]).grants(1, WEIGHTS, 4), "aa");
    }

    #[test]
    fn weights_changed_in_mid_round_count_from_the_turns_start() {
        let queues = [(High, BACKLOG), (Medium, BACKLOG), (Low, BACKLOG)];
        // Two of three granted. To five: three more. To two or one: the turn is over.
        let mut raised = Rig::new(&queues);
        assert_eq!(raised.grants(1, WEIGHTS, 2), "aa");
        assert_eq!(raised.grants(1, [5, 1, 1], 10), "aaa b c aaaaa".replace(' ', ""));
        for high in [2, 1] {
            let mut lowered = Rig::new(&queues);
            assert_eq!(lowered.grants(1, WEIGHTS, 2), "aa");
            assert_eq!(lowered.grants(1, [high, 1, 2], 4), "bcca");
        }
    }

    #[test]
    fn after_silence_a_round_begins() {
        let mut rig = Rig::new(&[(High, 0), (Medium, 1), (Low, 0)]);
        assert_eq!(rig.grants(1, WEIGHTS, 2), "b");
        (0..3).for_each(|index| rig.add(index, BACKLOG - 1));
        assert_eq!(rig.grants(1, WEIGHTS, 6), "aaabbc");
    }
}
