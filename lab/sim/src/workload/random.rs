//! Random numbers that are the same on every machine.
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
