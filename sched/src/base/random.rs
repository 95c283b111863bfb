//! Random numbers for tests: seeded, the same on every machine.

/// A stream that its seed determines: SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
/// OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`. Any value will do.
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number in `0..bound`, which is at least 1. The bias is below bound / 2^64, as that of [`Random::scaled`].
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// A place in a list of `length`, which is at least 1.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True once in so many times.
    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    /// One of `items`, of which there is at least one.
    pub fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())]
    }

    /// A number in `0..bound`, 0 for a bound of 0: the upper bits, as the models of devices draw them.
    pub fn scaled(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.scaled(high - low + 1)
    }
}

/// Runs `body` for the seeds from 0 on, and says which one failed. `MQFQ_SEED=n` runs only that one.
pub fn for_seeds(count: u64, body: impl Fn(&mut Random)) {
    let run = |seed: u64| {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&mut Random::new(seed))));
        if let Err(panic) = outcome {
            eprintln!("the failing seed is {seed}; MQFQ_SEED={seed} runs it alone");
            std::panic::resume_unwind(panic);
        }
    };
    match std::env::var("MQFQ_SEED") {
        Ok(seed) => run(seed.parse().expect("MQFQ_SEED is a number")),
        Err(_) => (0..count).for_each(run),
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_that_of_the_paper() {
        // The first numbers of seed 1234567 in the reference implementation.
        let mut random = Random::new(1_234_567);
        assert_eq!([random.next_u64(), random.next_u64()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn numbers_stay_in_their_bounds() {
        let mut random = Random::new(1);
        for _ in 0..1000 {
            assert!(random.below(7) < 7 && random.scaled(7) < 7 && (3..=5).contains(&random.between(3, 5)));
        }
        assert_eq!(random.scaled(0), 0);
    }
}
