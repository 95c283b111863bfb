//! A history against its bounds: the largest share of each that any pair came to, over every interval.

use super::checker::{PairUnfairness, examine};
use super::history::{FlowTerms, History};
use super::limits::{Limits, PairLimits};
use std::cmp::Ordering;

/// An unfairness and what it is allowed to be, of one pair, in the units of [`PairLimits`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Share {
    /// Unfairness found.
    pub unfairness: i128,
    /// Unfairness allowed.
    pub limit: i128,
    /// The pair.
    pub pair: (u32, u32),
    /// `unfairness` in bytes at the default weight.
    pub unfairness_bytes: f64,
    /// `limit`, likewise.
    pub limit_bytes: f64,
}

impl Share {
    /// Unfairness over limit.
    pub fn value(&self) -> f64 {
        self.unfairness_bytes / self.limit_bytes
    }

    /// The bound is broken. Decided in integers.
    pub fn is_exceeded(&self) -> bool {
        self.unfairness > self.limit
    }

    /// Which of two is the larger share; if numbers cannot tell, the one that breaks its bound.
    fn cmp(&self, other: &Share) -> Ordering {
        self.value().total_cmp(&other.value()).then(self.is_exceeded().cmp(&other.is_exceeded()))
    }
}

/// The largest shares of one or several histories. None: no two flows were ever backlogged together.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Verdict {
    /// Service dispatched, of `2T + l_f/r_f + l_m/r_m`.
    pub dispatched: Option<Share>,
    /// Service completed, of the tight bound.
    pub tight: Option<Share>,
    /// Service completed, of Theorem 2.
    pub theorem_2: Option<Share>,
    /// Service completed, of Theorem 1, where D is 1.
    pub theorem_1: Option<Share>,
    /// Intervals covered.
    pub intervals: u64,
    /// Events that were looked at.
    pub events: u64,
}

fn keep_larger(kept: &mut Option<Share>, found: Option<Share>) {
    if let Some(found) = found
        && kept.is_none_or(|kept| kept.cmp(&found).is_lt())
    {
        *kept = Some(found);
    }
}

impl Verdict {
    /// Evaluates every interval of `history`.
    pub fn of(history: &History, limits: &Limits) -> Verdict {
        let examined = examine(history);
        let mut verdict =
            Verdict { intervals: examined.intervals, events: history.events.len() as u64, ..Verdict::default() };
        for pair in &examined.pairs {
            let (f, m) = (&history.flows[pair.first as usize], &history.flows[pair.second as usize]);
            let of = limits.of(f, m);
            verdict.add(pair, f, m, &of);
        }
        verdict
    }

    fn add(&mut self, pair: &PairUnfairness, f: &FlowTerms, m: &FlowTerms, limits: &PairLimits) {
        let share = |unfairness: i128, limit: i128| {
            let bytes = |scaled| Limits::bytes(scaled, f, m);
            Share {
                unfairness,
                limit,
                pair: (pair.first, pair.second),
                unfairness_bytes: bytes(unfairness),
                limit_bytes: bytes(limit),
            }
        };
        keep_larger(&mut self.dispatched, Some(share(pair.dispatched, limits.dispatched)));
        keep_larger(&mut self.tight, Some(share(pair.completed, limits.tight)));
        keep_larger(&mut self.theorem_2, Some(share(pair.completed, limits.theorem_2)));
        keep_larger(&mut self.theorem_1, limits.theorem_1.map(|limit| share(pair.completed, limit)));
    }

    /// Keeps the larger shares of two verdicts, and adds the counts of both.
    pub fn merge(&mut self, other: &Verdict) {
        keep_larger(&mut self.dispatched, other.dispatched);
        keep_larger(&mut self.tight, other.tight);
        keep_larger(&mut self.theorem_2, other.theorem_2);
        keep_larger(&mut self.theorem_1, other.theorem_1);
        self.intervals += other.intervals;
        self.events += other.events;
    }

    /// The bounds that are broken, by name. Theorem 1 is not among them: it is known not to hold for service completed.
    pub fn broken(&self) -> Vec<&'static str> {
        let bounds = [
            ("the bound on service dispatched", self.dispatched),
            ("the tight bound", self.tight),
            ("Theorem 2", self.theorem_2),
        ];
        bounds
            .iter()
            .filter(|(_, share)| share.is_some_and(|share| share.is_exceeded()))
            .map(|(name, _)| *name)
            .collect()
    }
}
