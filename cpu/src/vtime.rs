//! Points of virtual time for programs: CPU time over weight, so fine that weights do not round.
//!
//! # Shape
//! A [`VTime`] counts nanoseconds at the default weight (1,024) in units of 2^-48 ns, in 128 bits. A program's [`Rate`]
//! is the units that one nanosecond is worth at its weight, `2^58 / weight`, computed once: charging is one
//! multiplication and one addition. A [`VTime`] is linear in time: charging 3 ns and then 4 ns equals charging 7 ns,
//! and a charge ahead is taken back exactly.
//!
//! # Rounding
//! A rate is rounded down to a unit, so after W ns of service a [`VTime`] is less than W * 2^-48 ns short: 13 ps after
//! an hour. With a weight that is a power of two it is exact.
//!
//! # Wrap
//! None. At weight 1, 2^63 ns (292 years) are 2^121 units, and 64 cores may add up to that.

use crate::scheduler::Tasks;
use std::fmt;

/// Units of a nanosecond at the default weight.
const UNIT_BITS: u32 = 48;

/// A point of virtual time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VTime(u128);

impl VTime {
    /// The beginning of virtual time.
    pub const ZERO: VTime = VTime(0);

    /// Nanoseconds at the default weight, rounded down.
    pub fn whole_ns(self) -> u64 {
        (self.0 >> UNIT_BITS) as u64
    }

    /// Lead of `self` over `other`; 0 if it is behind.
    pub fn ahead_of(self, other: VTime) -> VSpan {
        VSpan(self.0.saturating_sub(other.0))
    }

    /// The point `span` later.
    pub fn plus(self, span: VSpan) -> VTime {
        VTime(self.0 + span.0)
    }

    /// The point `span` earlier.
    pub fn minus(self, span: VSpan) -> VTime {
        VTime(self.0 - span.0)
    }
}

impl fmt::Debug for VTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.whole_ns())
    }
}

/// A length of virtual time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct VSpan(u128);

impl VSpan {
    /// Longer than any real span.
    pub(crate) const ENDLESS: VSpan = VSpan(u128::MAX);

    /// The sum.
    pub fn plus(self, other: VSpan) -> VSpan {
        VSpan(self.0 + other.0)
    }

    /// This span, `count` times.
    pub fn times(self, count: u64) -> VSpan {
        VSpan(self.0 * u128::from(count))
    }

    pub(crate) fn minus(self, other: VSpan) -> VSpan {
        VSpan(self.0 - other.0)
    }
}

/// Virtual time of a nanosecond of CPU time at a weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate(u64);

impl Rate {
    /// The rate of `weight`, 1 to [`Tasks::WEIGHT_MAX`].
    pub fn of(weight: u32) -> Rate {
        Rate(((u128::from(Tasks::WEIGHT_DEFAULT) << UNIT_BITS) / u128::from(weight)) as u64)
    }

    /// The length in virtual time of `ns` on a core.
    pub fn span(self, ns: u64) -> VSpan {
        VSpan(u128::from(self.0) * u128::from(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_weight_is_half_the_virtual_time() {
        let span = |weight: u32, ns| VTime::ZERO.plus(Rate::of(weight).span(ns)).whole_ns();
        assert_eq!((span(1024, 600), span(2048, 600), span(512, 600)), (600, 300, 1200));
        assert_eq!(span(Tasks::WEIGHT_MAX, 1024), 1, "a nanosecond at the largest weight is a 1024th");
        assert_eq!(span(1, 1 << 50), 1 << 60, "13 days at the smallest weight");
    }

    #[test]
    fn a_charge_in_pieces_is_the_charge_at_once_and_comes_back_whole() {
        let rate = Rate::of(1000);
        let pieces = VTime::ZERO.plus(rate.span(3)).plus(rate.span(4));
        assert_eq!(pieces, VTime::ZERO.plus(rate.span(7)));
        assert_eq!(pieces.minus(rate.span(4)).minus(rate.span(3)), VTime::ZERO);
    }

    #[test]
    fn an_hour_at_an_odd_weight_is_off_by_less_than_a_nanosecond() {
        // 3.6e12 ns * 1024 / 1000 = 3,686,400,000,000 exactly; the rate is rounded down, so one less in whole ns.
        assert_eq!(VTime::ZERO.plus(Rate::of(1000).span(3_600_000_000_000)).whole_ns(), 3_686_399_999_999);
    }
}
