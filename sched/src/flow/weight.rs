//! Names of flows, their weights, and the rate at which a weight moves virtual time.

use crate::vtime::UNITS_PER_BYTE;
use core::fmt;

/// Names one flow of a scheduler: an index, 0-based, dense.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowId(pub u32);

/// A configured weight, 1..=10000, default 100, as cgroup v2 `io.weight`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Weight(pub(super) u16);

/// A weight outside 1..=10000.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WeightOutOfRange(pub u64);

impl fmt::Display for WeightOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weight {} is out of range, allowed is 1 to 10000", self.0)
    }
}

impl core::error::Error for WeightOutOfRange {}

impl Weight {
    /// Smallest weight.
    pub const MIN: Weight = Weight(1);
    /// Weight of a flow that says nothing.
    pub const DEFAULT: Weight = Weight(100);
    /// Largest weight.
    pub const MAX: Weight = Weight(10_000);

    /// A weight of `value`.
    ///
    /// # Errors
    /// [`WeightOutOfRange`] outside 1..=10000; never a clamp.
    pub const fn new(value: u64) -> Result<Weight, WeightOutOfRange> {
        if value >= 1 && value <= 10_000 { Ok(Weight(value as u16)) } else { Err(WeightOutOfRange(value)) }
    }

    /// The number, 1..=10000.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Weight::DEFAULT
    }
}

/// Bits of fraction in `units_per_cost`.
pub const FRACTION_BITS: u32 = 32;

/// Units of virtual time per unit of cost, in 2^-32ths, rounded to nearest: off by less than 3e-11 of its value.
pub const fn units_per_cost(weight: Weight) -> u64 {
    let numerator = (UNITS_PER_BYTE * Weight::DEFAULT.0 as u64) << FRACTION_BITS;
    (numerator + weight.0 as u64 / 2) / weight.0 as u64
}
