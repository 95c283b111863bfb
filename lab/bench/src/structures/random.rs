//! Numbers that look random, a few cycles each, the same in every run.

/// Marsaglia's xorshift on 64 bits ("Xorshift RNGs", 2003).
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// A sequence of its own for each worker.
    pub fn new(worker: usize) -> Random {
        // 2^64 over the golden ratio: an odd number, so no product with a small one is 0.
        Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(worker as u64 + 1))
    }

    /// The next number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
