//! Latencies in buckets of a fixed set: how often each length of time was seen, in a few words.
//!
//! Answers: into which bucket does a time fall, and which time stands for a bucket? Source: the log-linear buckets of
//! HdrHistogram, with fewer of them. Each power of two is cut into [`PARTS`] equal buckets; a time shorter than
//! [`UNIT_NS`] times [`PARTS`] has buckets of [`UNIT_NS`].
//!
//! ```text
//!   0   64   128 … 448   512   576 … 960   1024   1152 … 1920   2048   2304 …      ns, lower ends of buckets
//!   └── 8 of 64 ns ───┘  └── 8 of 64 ns ┘  └─── 8 of 128 ns ─┘  └─── 8 of 256 ns
//! ```
//! A bucket is answered for by its middle, but by no more than the longest time seen. So a reported time of 512 ns or
//! more is at most 6.25% off, and a shorter one at most 32 ns. 1920 to 2047 ns, for example, are reported as 1984 ns.
//!
//! # Invariants
//! L1. The buckets follow each other without a gap, and [`index_of`] is monotone.
//! L2. All that is longer than [`LONGEST_NS`] lies in the last bucket.

/// Buckets of each power of two.
pub const PARTS: usize = 8;

/// Width of the narrowest buckets, ns.
pub const UNIT_NS: u64 = 64;

/// Powers of two that have buckets of their own, above the first [`PARTS`] buckets.
const DOUBLINGS: usize = 28;

/// Number of buckets.
pub const BUCKETS: usize = PARTS * (1 + DOUBLINGS);

/// The end of the last bucket, ns: 137 s.
pub const LONGEST_NS: u64 = UNIT_NS * PARTS as u64 * (1 << DOUBLINGS) - 1;

/// The bucket of a time, ns; below [`BUCKETS`].
#[inline]
pub const fn index_of(ns: u64) -> usize {
    let ns = if ns > LONGEST_NS { LONGEST_NS } else { ns };
    let units = ns / UNIT_NS;
    if units < PARTS as u64 {
        return units as usize;
    }
    // Powers of two above the first one with parts as wide as a unit.
    let doubling = units.ilog2() - PARTS.ilog2();
    (doubling as usize + 1) * PARTS + (units >> doubling) as usize - PARTS
}

/// The shortest time of a bucket, ns.
pub const fn start_ns(index: usize) -> u64 {
    if index < PARTS {
        return index as u64 * UNIT_NS;
    }
    let doubling = index / PARTS - 1;
    (((index % PARTS + PARTS) as u64) << doubling) * UNIT_NS
}

/// The longest time of a bucket, ns.
pub const fn end_ns(index: usize) -> u64 {
    start_ns(index + 1) - 1
}

/// Times seen, by bucket. Without any it takes no memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Latencies {
    /// Counts, by bucket, up to the last bucket in use.
    counts: Vec<u64>,
    max_ns: u64,
}

impl Latencies {
    /// Counts a time, so many times.
    pub fn record_n(&mut self, ns: u64, times: u64) {
        self.put(index_of(ns), times);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Counts so many times of a bucket.
    pub fn put(&mut self, index: usize, times: u64) {
        if index >= self.counts.len() {
            self.counts.resize(BUCKETS, 0);
        }
        self.counts[index] += times;
    }

    /// The longest time is this, if it was none longer, ns.
    pub fn reached(&mut self, max_ns: u64) {
        self.max_ns = self.max_ns.max(max_ns);
    }

    /// Adds what another has seen.
    pub fn add(&mut self, other: &Latencies) {
        other.counts.iter().enumerate().filter(|(_, times)| **times > 0).for_each(|(at, times)| self.put(at, *times));
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Latencies since `before`, an earlier state of these. The longest time stays that of all.
    #[must_use]
    pub fn since(&self, before: &Latencies) -> Latencies {
        let earlier = before.counts.iter().chain(std::iter::repeat(&0));
        let counts = self.counts.iter().zip(earlier).map(|(now, before)| now.saturating_sub(*before)).collect();
        Latencies { counts, max_ns: self.max_ns }
    }

    /// Number of times seen.
    pub fn len(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// True if no time was seen.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The longest time seen, ns, exactly; 0 if there is none.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Times seen, by bucket; none if nothing was seen.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Times that were seen and are no longer than `ns`, which is the end of a bucket.
    pub fn up_to(&self, ns: u64) -> u64 {
        self.counts.iter().take(index_of(ns) + 1).sum()
    }

    /// A time, ns, than which this part of those seen, in millionths, was not longer; 0 if there is none.
    pub fn at_millionths(&self, millionths: u64) -> u64 {
        let all = self.len();
        let rank = (u128::from(all) * u128::from(millionths)).div_ceil(1_000_000).max(1) as u64;
        let mut below = 0;
        for (index, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= rank {
                return start_ns(index).midpoint(end_ns(index) + 1).min(self.max_ns);
            }
        }
        0
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap_and_end_where_they_say() {
        for index in 0..BUCKETS {
            assert_eq!((index_of(start_ns(index)), index_of(end_ns(index))), (index, index), "bucket {index}");
        }
        assert_eq!((end_ns(BUCKETS - 1), index_of(u64::MAX)), (LONGEST_NS, BUCKETS - 1));
        assert_eq!([0, 63, 64, 511, 512, 1023, 1024, 1152].map(index_of), [0, 0, 1, 7, 8, 15, 16, 17]);
    }

    #[test]
    fn a_reported_time_is_off_by_no_more_than_is_promised() {
        for ns in (0..40).flat_map(|power| [1u64 << power, (1 << power) + (1 << power) / 3, (2 << power) - 1]) {
            if ns > LONGEST_NS {
                continue;
            }
            let mut seen = Latencies::default();
            seen.record_n(ns, 1);
            seen.record_n(LONGEST_NS, 1);
            let off = seen.at_millionths(500_000).abs_diff(ns);
            assert!(off <= 32 || off * 10_000 <= ns * 625, "{ns} is off by {off}");
        }
    }

    #[test]
    fn quantiles_are_those_of_a_sorted_list() {
        let mut seen = Latencies::default();
        // 98 of 1 us, one of 100 us, one of 1 ms.
        seen.record_n(1_000, 98);
        seen.record_n(100_000, 1);
        seen.record_n(1_000_000, 1);
        let near = |millionths, ns: u64| seen.at_millionths(millionths).abs_diff(ns) * 10_000 <= ns * 625;
        assert!(near(500_000, 1_000) && near(980_000, 1_000) && near(990_000, 100_000) && near(999_000, 1_000_000));
        assert_eq!((seen.len(), seen.max_ns(), seen.up_to(end_ns(index_of(1_000)))), (100, 1_000_000, 98));
        assert_eq!(Latencies::default().at_millionths(990_000), 0, "nothing was seen");
        let mut more = seen.clone();
        more.record_n(5_000, 7);
        assert_eq!((more.since(&seen).len(), more.since(&seen).up_to(end_ns(index_of(5_000)))), (7, 7));
    }
}
