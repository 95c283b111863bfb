//! Random numbers that are the same on every machine, and below Zipfian ranks drawn with them.
//!
//! ChaCha8, keyed by the scenario's seed, the tenant's name, its number and the thread: every thread has its own
//! stream, and a tenant that runs alone draws what it draws beside others. The mathematics is the crate `libm`'s and
//! not the platform's, whose last bits differ.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of random numbers.
pub struct Random(ChaCha8Rng);

impl Random {
    /// The stream of a thread. Streams whose arguments differ in anything are independent.
    pub fn of(seed: u64, tenant_hash: u64, number: u32, thread: u32) -> Random {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&tenant_hash.to_le_bytes());
        key[16..20].copy_from_slice(&number.to_le_bytes());
        key[20..24].copy_from_slice(&thread.to_le_bytes());
        key[24..].copy_from_slice(b"requests");
        Random(ChaCha8Rng::from_seed(key))
    }

    /// A number below `bound`, at least 1. The bias is below bound / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True in `percent` of 100 draws.
    pub fn percent(&mut self, percent: u8) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// In 0..1, in steps of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponential with the mean 1: the gaps of a Poisson process.
    pub fn exponential(&mut self) -> f64 {
        // 1 - unit() is in 0 exclusive to 1, so the logarithm is finite.
        -libm::log(1.0 - self.unit())
    }
}

/// FNV-1a, 64 bits.
pub fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

// Zipfian ranks by the formula that YCSB draws with.
//
// Source: Gray et al., "Quickly generating billion-record synthetic databases", SIGMOD 1994, as used by YCSB's
// `ZipfianGenerator`. Not `rand_distr::Zipf`: that one is exact but draws again until it accepts, and what the papers
// here compare with was drawn by this formula. Ranks 0 and 1 are exact; those above come from a continuous curve, a
// few percent off for the next ones.
//
// Difference from YCSB: its scrambled generator always draws with the sum of 10^10 items and folds the ranks onto the
// real ones, which makes the most popular one 1 in 26.5 whatever their number. Here ranks are drawn from as many items
// as there are (1 in 18.7 for 16 M). The sum in the formula's denominator is not added up term by term but by Euler
// and Maclaurin's formula after the first 64.

/// Terms that are added one by one.
const EXACT: u64 = 64;

/// A distribution over `items` ranks, 0 the most popular.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Zipf {
    items: u64,
    theta: f64,
    zeta_n: f64,
    eta: f64,
}

impl Zipf {
    /// Over 1 or more items, with a skew between 0 and 1, both exclusive.
    pub fn new(items: u64, theta: f64) -> Zipf {
        assert!(items > 0 && theta > 0.0 && theta < 1.0, "no distribution over {items} items with skew {theta}");
        let zeta_n = zeta(items, theta);
        let eta = (1.0 - libm::pow(2.0 / items as f64, 1.0 - theta)) / (1.0 - zeta(2.min(items), theta) / zeta_n);
        Zipf { items, theta, zeta_n, eta }
    }

    /// One rank, from one draw.
    pub fn rank(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        let at = unit * self.zeta_n;
        if at < 1.0 {
            return 0;
        }
        if at < 1.0 + libm::pow(0.5, self.theta) {
            return 1.min(self.items - 1);
        }
        let rank = self.items as f64 * libm::pow(self.eta * unit - self.eta + 1.0, 1.0 / (1.0 - self.theta));
        (rank as u64).min(self.items - 1)
    }
}

/// The sum of k^-theta for k from 1 to n. Its error is below 1e-12.
fn zeta(n: u64, theta: f64) -> f64 {
    let term = |k: u64| libm::pow(k as f64, -theta);
    if n <= EXACT {
        return (1..=n).map(term).sum();
    }
    let head: f64 = (1..EXACT).map(term).sum();
    let (from, to) = (EXACT as f64, n as f64);
    // expm1 keeps the digits where theta is close to 1.
    let integral = libm::pow(from, 1.0 - theta) * libm::expm1((1.0 - theta) * libm::log(to / from)) / (1.0 - theta);
    let slope = |x: f64| -theta * libm::pow(x, -theta - 1.0);
    let third = |x: f64| -theta * (theta + 1.0) * (theta + 2.0) * libm::pow(x, -theta - 3.0);
    head + integral + (term(EXACT) + term(n)) / 2.0 + (slope(to) - slope(from)) / 12.0
        - (third(to) - third(from)) / 720.0
}

#[cfg(test)]
mod zipf_tests {
    use super::*;

    #[test]
    fn the_short_sum_is_the_long_one() {
        for (n, theta) in [(1, 0.99), (64, 0.5), (65, 0.99), (1000, 0.01), (100_000, 0.99), (100_000, 0.5)] {
            let long: f64 = (1..=n).map(|k| libm::pow(k as f64, -theta)).sum();
            assert!((zeta(n, theta) - long).abs() < 1e-10 * long, "n = {n}, theta = {theta}");
        }
        // YCSB's constant ZETAN, added up term by term.
        assert!((zeta(10_000_000_000, 0.99) - 26.469_028_201_783_02).abs() < 1e-8);
    }

    #[test]
    fn ranks_come_as_often_as_zipf_says() {
        let (items, theta, draws) = (10_000, 0.99, 1_000_000);
        let zipf = Zipf::new(items, theta);
        let mut random = Random::of(1, 2, 3, 4);
        let mut counts = vec![0u32; items as usize];
        for _ in 0..draws {
            counts[zipf.rank(&mut random) as usize] += 1;
        }
        let expected = |from: u64, to: u64| {
            let part: f64 = (from..to).map(|rank| libm::pow(rank as f64 + 1.0, -theta)).sum();
            part / zeta(items, theta) * f64::from(draws)
        };
        let drawn = |from: usize, to: usize| f64::from(counts[from..to].iter().sum::<u32>());
        // The first two ranks are exact: within 1% (the first is drawn 100 000 times, its standard deviation is 0.3%).
        for rank in 0..2 {
            let ratio = drawn(rank, rank + 1) / expected(rank as u64, rank as u64 + 1);
            assert!((0.99..1.01).contains(&ratio), "rank {rank}: {ratio}");
        }
        // The curve that stands for the others is off by up to a tenth in the first few, and by 3% after that.
        for (from, to, tolerance) in [(2, 10, 0.1), (10, 100, 0.03), (100, 1000, 0.03), (1000, 10_000, 0.03)] {
            let ratio = drawn(from, to) / expected(from as u64, to as u64);
            assert!((ratio - 1.0).abs() < tolerance, "ranks {from} to {to}: {ratio}");
        }
    }

    #[test]
    fn few_items_and_extreme_skews_stay_in_range() {
        for items in [1, 2, 3, u64::MAX] {
            for theta in [1e-9, 0.5, 1.0 - 1e-9, 1.0 - f64::EPSILON / 2.0] {
                let zipf = Zipf::new(items, theta);
                let mut random = Random::of(1, items, 0, 0);
                assert!((0..1000).all(|_| zipf.rank(&mut random) < items), "{items} items, theta {theta}");
            }
        }
    }
}
