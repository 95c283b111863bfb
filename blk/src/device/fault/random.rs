//! Random numbers that are the same for the same seed, everywhere and for ever.
//!
//! Source: SplitMix64, Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014.

/// The state of a SplitMix64 generator.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is at least 1. (The bias of the multiplication is below 2^-64 * bound.)
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True `per_65536` times in 65536.
    pub(super) fn chance(&mut self, per_65536: u32) -> bool {
        self.below(65536) < u64::from(per_65536)
    }
}
