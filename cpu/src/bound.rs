//! Over every interval, how far did the CPU time of two programs drift apart? Exact, in integers, nothing sampled. For
//! tests and reports.
//!
//! # Which intervals
//! Those throughout which both programs *want more*: one of their threads waits, or all cores run them. Rule 2's word
//! is backlogged. A single running thread makes a program backlogged, even one that cannot use more, and no scheduler
//! keeps a bound for that. An interval begins when the two are *level*, as the scheduler reports: a program that is
//! still owed for an earlier time may be paid first, see [`crate::ideal`]. A stretch is a longest interval of this
//! kind, and every one of them lies in a stretch.
//!
//! # Why not every interval has to be looked at
//! Let A and B be the CPU time of f and g since the beginning, and `x = A phi_g - B phi_f`: nanoseconds times weight,
//! an integer. Over an interval from i to j the difference of service over weight is `(x_j - x_i) / (phi_f phi_g)`. So
//! the largest difference over all intervals of a stretch is the largest x in it less the smallest, and one pass finds
//! it. Between two *moments*, at which anything begins or ends, each program runs on the same number of cores and x is
//! a straight line: its extremes are at moments, and so intervals that begin or end between them are covered as well.
//!
//! # Cost
//! O(pairs) per moment.

/// Largest unfairness of one pair over every interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PairUnfairness {
    /// One program.
    pub first: usize,
    /// The other program, of a higher number.
    pub second: usize,
    /// Nanoseconds times weight: `|w_f phi_g - w_g phi_f|`.
    pub worst: u128,
    /// Most CPU time of both together in one stretch, over which rounding can add up.
    pub served_ns: u64,
}

/// The history so far, moment by moment.
#[derive(Clone, Debug)]
pub struct BoundChecker {
    weights: Vec<u32>,
    now_ns: u64,
    /// CPU time of each program.
    served_ns: Vec<u64>,
    /// Cores that run each program since the last moment.
    running: Vec<u16>,
    pairs: Vec<Pair>,
    intervals: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    first: usize,
    second: usize,
    stretch: Option<Stretch>,
    /// Over the ended stretches: x, and CPU time.
    worst: Option<(u128, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Stretch {
    low: i128,
    high: i128,
    moments: u64,
    /// CPU time of both at the beginning of the stretch.
    from_ns: u64,
}

impl BoundChecker {
    /// A checker for programs with these weights, of which none runs or wants more.
    pub fn new(weights: &[u32]) -> BoundChecker {
        let pair = |first, second| Pair { first, second, stretch: None, worst: None };
        let pairs = (0..weights.len()).flat_map(|second| (0..second).map(move |first| pair(first, second)));
        BoundChecker {
            weights: weights.to_vec(),
            now_ns: 0,
            served_ns: vec![0; weights.len()],
            running: vec![0; weights.len()],
            pairs: pairs.collect(),
            intervals: 0,
        }
    }

    /// Reports the state since `now_ns`: the number of cores that run each program, and whether the program wants more.
    /// `are_level` is called for pairs whose stretch may begin. Call this after each event, even of the same instant.
    ///
    /// # Panics
    /// If time goes back.
    pub fn moment(
        &mut self,
        now_ns: u64,
        running: &[u16],
        wants_more: &[bool],
        mut are_level: impl FnMut(usize, usize) -> bool,
    ) {
        assert!(now_ns >= self.now_ns, "time goes back from {} ns to {now_ns} ns", self.now_ns);
        let passed_ns = now_ns - self.now_ns;
        self.now_ns = now_ns;
        for (served_ns, cores) in self.served_ns.iter_mut().zip(&self.running) {
            *served_ns += passed_ns * u64::from(*cores);
        }
        self.running.copy_from_slice(running);
        for pair in &mut self.pairs {
            let Pair { first, second, .. } = *pair;
            let both = wants_more[first] && wants_more[second];
            let both_ns = self.served_ns[first] + self.served_ns[second];
            let side = |of: usize, other: usize| i128::from(self.served_ns[of]) * i128::from(self.weights[other]);
            let x = side(first, second) - side(second, first);
            if let Some(stretch) = &mut pair.stretch {
                if passed_ns > 0 {
                    stretch.low = stretch.low.min(x);
                    stretch.high = stretch.high.max(x);
                    stretch.moments += 1;
                }
                if !both {
                    self.intervals += pair.end(both_ns);
                }
            } else if both && are_level(first, second) {
                pair.stretch = Some(Stretch { low: x, high: x, moments: 1, from_ns: both_ns });
            }
        }
    }

    /// The largest unfairness of each pair, and the number of intervals covered: per stretch, every two of its moments.
    pub fn finish(mut self) -> (Vec<PairUnfairness>, u64) {
        for pair in &mut self.pairs {
            let both_ns = self.served_ns[pair.first] + self.served_ns[pair.second];
            self.intervals += pair.end(both_ns);
        }
        let found = |pair: &Pair| {
            let (worst, served_ns) = pair.worst?;
            Some(PairUnfairness { first: pair.first, second: pair.second, worst, served_ns })
        };
        (self.pairs.iter().filter_map(found).collect(), self.intervals)
    }
}

impl Pair {
    /// Ends the pair's stretch, if there is one. Returns its number of intervals.
    fn end(&mut self, both_ns: u64) -> u64 {
        let Some(stretch) = self.stretch.take() else { return 0 };
        let found = ((stretch.high - stretch.low) as u128, both_ns - stretch.from_ns);
        self.worst = Some(self.worst.map_or(found, |(x, ns)| (x.max(found.0), ns.max(found.1))));
        stretch.moments * (stretch.moments - 1) / 2
    }
}

/// `times (l/phi_f + l/phi_g)`, in nanoseconds times weight. `times` is D + 1 in the printed bound and D in the one
/// that holds.
pub fn bound(times: u64, length_ns: u64, weight_f: u32, weight_g: u32) -> u128 {
    u128::from(times) * u128::from(length_ns) * (u128::from(weight_f) + u128::from(weight_g))
}

/// The most that rounding of start and finish tags adds to the difference of two programs that ran for `served_ns`
/// together, rounded up; see [`crate::vtime`].
pub fn rounding(served_ns: u64, weight_f: u32, weight_g: u32) -> u128 {
    // A point of virtual time is short by less than served * 2^-48 ns at weight 1024; times both weights over 1024,
    // that is 2^-58.
    ((u128::from(served_ns) * u128::from(weight_f) * u128::from(weight_g)) >> 58) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn always(_: usize, _: usize) -> bool {
        true
    }

    #[test]
    fn a_difference_is_over_the_worst_interval_and_not_over_the_whole() {
        let mut checker = BoundChecker::new(&[100, 200]);
        checker.moment(0, &[1, 0], &[true; 2], always);
        checker.moment(10, &[0, 2], &[true; 2], always);
        checker.moment(25, &[1, 0], &[true; 2], always);
        checker.moment(30, &[0, 0], &[true; 2], always);
        // x = A * 200 - B * 100: 0, 2000, 2000 - 30 * 100 = -1000, 0. Over all of it they are even.
        let (pairs, intervals) = checker.finish();
        assert_eq!(pairs, [PairUnfairness { first: 0, second: 1, worst: 3000, served_ns: 45 }]);
        assert_eq!(intervals, 6, "every two of four moments");
        assert_eq!(bound(2, 10, 100, 200), 6000);
    }

    #[test]
    fn a_stretch_ends_when_one_wants_no_more_and_begins_when_they_are_level() {
        let mut checker = BoundChecker::new(&[1, 1]);
        checker.moment(0, &[1, 0], &[true; 2], |_, _| false);
        checker.moment(10, &[1, 0], &[true; 2], |_, _| true);
        checker.moment(15, &[1, 0], &[true, false], always);
        checker.moment(115, &[0, 1], &[true; 2], always);
        checker.moment(118, &[0, 0], &[true; 2], always);
        let (pairs, intervals) = checker.finish();
        assert_eq!((pairs[0].worst, intervals), (5, 2), "10 to 15 and 115 to 118");
    }
}
