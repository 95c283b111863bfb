//! Virtual time: the service axis, cost over weight, in wrapping fixed point.
//!
//! One byte-equivalent at the default weight (100) is 1,024 units (`UNITS_PER_BYTE`). At weight 1 a byte is 102,400
//! units and at weight 10,000 it is 10.24 units; the fraction is carried by the queue that charges it
//! (`flow/account.rs`), so no request rounds to nothing and long-run shares are exact.
//!
//! # Wrap
//! A device of 100 GB/s serving one flow of weight 1 moves virtual time by 1.02e16 units per second and wraps u64 in
//! half an hour. So a `VTime` is a point on a circle: only *differences* smaller than half the circle (2^63 units,
//! 9.0e15 bytes-equivalent at the default weight) have a sign. There is deliberately no `Ord`.

use core::fmt;

/// Units of virtual time per byte-equivalent at the default weight.
pub const UNITS_PER_BYTE: u64 = 1024;

/// A point of virtual time, on a circle of 2^64 units. Compare with [`VTime::is_before`], never by value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct VTime(u64);

impl VTime {
    /// Start of a scheduler's virtual time unless its options say otherwise.
    pub const ZERO: VTime = VTime(0);

    /// The point with this position on the circle, in units.
    pub const fn from_raw(units: u64) -> Self {
        VTime(units)
    }

    /// Position on the circle, in units.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// True if `self` lies less than half the circle before `other`.
    pub const fn is_before(self, other: VTime) -> bool {
        (self.0.wrapping_sub(other.0) as i64) < 0
    }

    /// The later of two points that lie less than half the circle apart.
    pub const fn later(self, other: VTime) -> VTime {
        if self.is_before(other) { other } else { self }
    }

    /// The earlier of two points that lie less than half the circle apart.
    pub const fn earlier(self, other: VTime) -> VTime {
        if other.is_before(self) { other } else { self }
    }

    /// Signed distance from `earlier` to `self`, in units: positive if `self` is later.
    pub const fn since(self, earlier: VTime) -> i64 {
        self.0.wrapping_sub(earlier.0) as i64
    }

    /// The point `span` later.
    pub const fn plus(self, span: VSpan) -> VTime {
        VTime(self.0.wrapping_add(span.0))
    }

    /// The point `span` earlier.
    pub const fn minus(self, span: VSpan) -> VTime {
        VTime(self.0.wrapping_sub(span.0))
    }
}

impl fmt::Debug for VTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

/// A length of virtual time, in units.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct VSpan(pub u64);

impl VSpan {
    /// The span that `bytes` byte-equivalents take at the default weight. Saturates at 2^62 units (4.5e15 bytes), a
    /// quarter of the circle, so that the result always compares.
    pub const fn from_bytes(bytes: u64) -> VSpan {
        let units = bytes.saturating_mul(UNITS_PER_BYTE);
        VSpan(if units > 1 << 62 { 1 << 62 } else { units })
    }

    /// Length in byte-equivalents at the default weight, rounded down.
    pub const fn bytes(self) -> u64 {
        self.0 / UNITS_PER_BYTE
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let before = VTime::from_raw(u64::MAX - 10);
        let after = before.plus(VSpan(100));
        assert_eq!(after.raw(), 89);
        assert!(before.is_before(after) && !after.is_before(before));
        assert_eq!(after.since(before), 100);
        assert_eq!(before.since(after), -100);
        assert_eq!(before.later(after), after);
        assert_eq!(before.earlier(after), before);
    }
}
