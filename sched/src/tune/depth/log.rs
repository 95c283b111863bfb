//! Logarithms in fixed point.
//!
//! Answers: by which factor do two counts differ? The controller compares ratios only, so it keeps logarithms: to base
//! 2, in 65536ths. Squaring gives one bit of the fraction after the other; nothing is tabulated, and the result is the
//! same on every machine.
//!
//! Invariant: exact to a unit of the last place below the true value, for every argument.

/// 1 in fixed point.
pub const ONE: i32 = 1 << 16;

/// The logarithm of `value` to base 2, rounded down to a 65536th. Of 0 it is that of 1.
pub const fn log2(value: u64) -> i32 {
    let value = if value == 0 { 1 } else { value };
    let whole = value.ilog2();
    // The value over 2^whole, in [1, 2), with 63 bits behind the point.
    let mut mantissa = value << (63 - whole);
    let mut fraction = 0;
    let mut bit = 1 << 15;
    while bit > 0 {
        let square = (mantissa as u128 * mantissa as u128) >> 63;
        // In [1, 4): from 2 on the next bit is set, and half of it goes on.
        if square >> 64 != 0 {
            fraction |= bit;
            mantissa = (square >> 1) as u64;
        } else {
            mantissa = square as u64;
        }
        bit >>= 1;
    }
    (whole as i32) << 16 | fraction
}

/// As [`log2`], of a number of `millionths`, at compile time.
pub const fn log2_of_millionths(millionths: u64) -> i32 {
    log2(millionths) - log2(1_000_000)
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_logarithm_is_right_to_a_unit_of_the_last_place() {
        let mut value = 1u64;
        while value < u64::MAX / 7 {
            for value in [value, value + 1, value + value / 3, value + value / 2] {
                let exact = (value as f64).log2() * f64::from(ONE);
                let found = f64::from(log2(value));
                assert!(found <= exact + 0.02 && found > exact - 1.5, "{value}: {found} for {exact}");
            }
            value *= 3;
        }
        assert_eq!([log2(0), log2(1), log2(2), log2(1 << 40), log2(u64::MAX)], [0, 0, ONE, 40 * ONE, 64 * ONE - 1]);
    }
}
