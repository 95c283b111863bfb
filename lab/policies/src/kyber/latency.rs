//! How long requests take, and what follows for the depths of the domains.
//!
//! Answers: is a domain late, and how deep may each be from now on? Source: the description of kyber's control:
//! histograms of eight buckets in quarters of the target; the 90th percentile of the time on the device says whether
//! the *device* is congested, the 99th of the whole time how a domain fares.
//!
//! # The rule
//! A domain is evaluated once it has 500 samples, or its samples are a second old. If the device is congested by any
//! domain (p90 of its time on the device is over its target), every domain whose p99 is known becomes `depth * (b + 1)
//! / 4` deep, b being the bucket of that p99, 0 to 7, within 1 and its full depth:
//!
//! | p99 of the whole time, in targets | to 1/4 | to 2/4 | to 3/4 | to 1 | to 5/4 | to 6/4 | to 7/4 | more |
//! |---|---|---|---|---|---|---|---|---|
//! | b | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
//! | new depth | 1/4 | 1/2 | 3/4 | as it is | 5/4 | 6/4 | 7/4 | twice |
//!
//! So a domain with time to spare makes room for one without. Without congestion only the domains that are over their
//! target are changed, which makes them deeper: they wait for tokens and not for the device. A p99 is used once; one
//! that was not needed is kept until it is, because domains gather their samples at different paces.
//!
//! # Cost
//! Two counters of the worker's own line per request, without a read-modify-write. Every 100 ms one worker sums those
//! of all.

use mqfq_sched::sync::CachePadded;
use mqfq_sched::sync::{AtomicU32, Ordering::Relaxed};
use mqfq_sched::topology::HctxId;

/// Domains whose latency is looked at.
pub(super) const TIMED: usize = 3;

/// Buckets of a histogram; a quarter of the target each, the last without an end.
const BUCKETS: usize = 8;

/// The first bucket that is over the target.
const LATE: usize = 4;

/// Samples from which on a domain is evaluated at once.
const SAMPLES: u64 = 500;

/// Time from which on it is evaluated with fewer, ns.
const WINDOW_NS: u64 = 1_000_000_000;

/// The time on the device, and the whole from submission on.
#[derive(Clone, Copy)]
enum Span {
    Device,
    Total,
}

type Counts = [u32; BUCKETS];

/// By domain, [`Span`] and bucket.
type Counters = [[[AtomicU32; BUCKETS]; 2]; TIMED];

/// The samples of all workers. Counters only grow, and wrap.
pub(super) struct Latencies {
    targets_ns: [u64; TIMED],
    /// By hctx; written by the worker of the hctx alone.
    counters: Box<[CachePadded<Counters>]>,
}

/// State of each domain; one worker at a time looks.
#[derive(Default)]
pub(super) struct Control {
    domains: [Known; TIMED],
}

#[derive(Default)]
struct Known {
    /// Counters at the last evaluation.
    seen: [Counts; 2],
    /// When samples were first found since.
    since_ns: Option<u64>,
    /// Bucket of the last p99 that was not used.
    p99: Option<usize>,
}

impl Latencies {
    pub fn new(targets_ns: [u64; TIMED], hctx_count: usize) -> Latencies {
        let counters = || std::array::from_fn(|_| std::array::from_fn(|_| std::array::from_fn(|_| AtomicU32::new(0))));
        Latencies { targets_ns, counters: (0..hctx_count).map(|_| CachePadded::new(counters())).collect() }
    }

    /// A request of `domain` ended at the worker of `hctx`.
    pub fn record(&self, hctx: HctxId, domain: usize, device_ns: u64, total_ns: u64) {
        let target_ns = self.targets_ns[domain];
        let counters = &self.counters[hctx.index()][domain];
        for (span, ns) in [(Span::Device, device_ns), (Span::Total, total_ns)] {
            let counter = &counters[span as usize][bucket(ns, target_ns)];
            // Relaxed, both: no other worker writes it, and the sum may see it late.
            counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
        }
    }

    fn sum(&self, domain: usize, span: Span) -> Counts {
        let mut sums = [0u32; BUCKETS];
        for counters in &self.counters {
            for (sum, counter) in sums.iter_mut().zip(&counters[domain][span as usize]) {
                // Relaxed: see `record`.
                *sum = sum.wrapping_add(counter.load(Relaxed));
            }
        }
        sums
    }
}

impl Control {
    /// Looks at what has come since. The factors of the domains that change, in quarters.
    pub fn evaluate(&mut self, latencies: &Latencies, now_ns: u64) -> [Option<u32>; TIMED] {
        let mut is_congested = false;
        let mut is_late = [false; TIMED];
        for (domain, known) in self.domains.iter_mut().enumerate() {
            let sums = [Span::Device, Span::Total].map(|span| latencies.sum(domain, span));
            let new = [0, 1]
                .map(|span| std::array::from_fn(|bucket| sums[span][bucket].wrapping_sub(known.seen[span][bucket])));
            let samples: u64 = new[Span::Total as usize].iter().map(|&count| u64::from(count)).sum();
            if samples == 0 {
                continue;
            }
            let since_ns = *known.since_ns.get_or_insert(now_ns);
            if samples < SAMPLES && now_ns.saturating_sub(since_ns) < WINDOW_NS {
                continue;
            }
            is_congested |= percentile(&new[Span::Device as usize], 90) >= LATE;
            let p99 = percentile(&new[Span::Total as usize], 99);
            is_late[domain] = p99 >= LATE;
            *known = Known { seen: sums, since_ns: None, p99: Some(p99) };
        }
        std::array::from_fn(|domain| {
            let p99 = &mut self.domains[domain].p99;
            if is_congested || is_late[domain] { p99.take().map(|bucket| bucket as u32 + 1) } else { None }
        })
    }
}

/// The quarter of the target in which a time ends.
fn bucket(ns: u64, target_ns: u64) -> usize {
    let quarter_ns = (target_ns / 4).max(1);
    if ns <= quarter_ns { 0 } else { ((ns - 1) / quarter_ns).min(BUCKETS as u64 - 1) as usize }
}

/// The first bucket up to which at least `percent` of the samples lie.
fn percentile(counts: &Counts, percent: u64) -> usize {
    let samples: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    let wanted = (samples * percent).div_ceil(100);
    let mut below = 0;
    counts
        .iter()
        .position(|&count| {
            below += u64::from(count);
            below >= wanted
        })
        .expect("all samples lie in some bucket")
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn latencies() -> Latencies {
        Latencies::new([2 * MS, 10 * MS, 5000 * MS], 2)
    }

    #[test]
    fn a_bucket_is_a_quarter_of_the_target() {
        let at = |ns| bucket(ns, 2 * MS);
        assert_eq!([0, 1, MS / 2, MS / 2 + 1, MS, 2 * MS, 2 * MS + 1].map(at), [0, 0, 0, 1, 1, 3, 4]);
        assert_eq!([3 * MS, 7 * MS / 2, 7 * MS / 2 + 1, u64::MAX].map(at), [5, 6, 7, 7]);
        assert_eq!(bucket(5, 1), 4, "a target below four nanoseconds has quarters of one");
    }

    #[test]
    fn a_percentile_is_the_bucket_up_to_which_so_many_lie() {
        assert_eq!(percentile(&[90, 0, 0, 0, 0, 10, 0, 0], 90), 0);
        assert_eq!(percentile(&[89, 0, 0, 0, 0, 11, 0, 0], 90), 5);
        assert_eq!(percentile(&[99, 0, 0, 0, 0, 0, 0, 1], 99), 0);
        assert_eq!(percentile(&[98, 0, 0, 0, 0, 0, 0, 2], 99), 7);
        assert_eq!(percentile(&[0, 0, 0, 1, 0, 0, 0, 0], 99), 3);
    }

    #[test]
    fn a_domain_is_evaluated_at_500_samples_or_after_a_second() {
        let latencies = latencies();
        let mut control = Control::default();
        let late = |count: u32| (0..count).for_each(|n| latencies.record(HctxId(n as u16 % 2), 0, MS, 3 * MS));
        late(499);
        assert_eq!(control.evaluate(&latencies, 7 * MS), [None; 3]);
        late(1);
        assert_eq!(control.evaluate(&latencies, 8 * MS), [Some(6), None, None], "3 of 2 ms: the sixth quarter");
        late(10);
        assert_eq!(control.evaluate(&latencies, 100 * MS), [None; 3]);
        assert_eq!(control.evaluate(&latencies, 1099 * MS), [None; 3]);
        assert_eq!(control.evaluate(&latencies, 1100 * MS), [Some(6), None, None], "a second after they were found");
        assert_eq!(control.evaluate(&latencies, 9000 * MS), [None; 3], "and no sample counts twice");
    }

    #[test]
    fn congestion_is_of_the_device_and_changes_all_lateness_only_the_late() {
        let latencies = latencies();
        let mut control = Control::default();
        let record = |domain, device_ns, total_ns| {
            (0..500).for_each(|_| latencies.record(HctxId(0), domain, device_ns, total_ns));
        };
        // Writes within a quarter of their target, reads late because they waited, not because of the device.
        record(1, MS, 2 * MS);
        record(0, MS, 9 * MS);
        assert_eq!(control.evaluate(&latencies, 0), [Some(8), None, None]);
        // Now the device takes 3 ms for a read. What is known of writes, a quarter, is used.
        record(0, 3 * MS, 3 * MS);
        assert_eq!(control.evaluate(&latencies, 100 * MS), [Some(6), Some(1), None]);
        // Once: without new samples of writes they stay.
        record(0, 3 * MS, 3 * MS);
        assert_eq!(control.evaluate(&latencies, 200 * MS), [Some(6), None, None]);
    }
}
