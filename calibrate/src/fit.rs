//! Which line describes the time of a request by its size?
//!
//! On a full device a request takes `per_request_ns + per_byte_ns * length` of its time (Linux's io.cost has the same
//! model, `block/blk-iocost.c`, "Cost Model"). Two numbers of a line through three or more measured sizes: least
//! squares of the *relative* errors, because a nanosecond counts for more at 4 KiB than at 128 KiB.
//!
//! Example: 4 KiB take 2174 ns and 128 KiB take 47522 ns. The line is 711 ns + 0.357 ns per byte, and a request costs
//! as much as 711 / 0.357 = 1991 bytes before its first byte.

use serde::Serialize;

/// Time of a request on a full device, as a line over its length.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Line {
    /// Time per request, at least 0.
    pub per_request_ns: f64,
    /// Time per byte, at least 0.
    pub per_byte_ns: f64,
    /// How far the farthest of the measured times lies from the line, as a part of the time.
    pub residual_share: f64,
}

impl Line {
    /// The line through `(length in bytes, time in ns)` of at least two sizes. A line that would fall, or begin below
    /// 0, is replaced by the best one that does neither. `None`: fewer sizes, or a time that is not above 0.
    pub fn through(points: &[(f64, f64)]) -> Option<Line> {
        let is_spread = points.iter().any(|(bytes, _)| *bytes != points[0].0);
        if !is_spread || points.iter().any(|&(_, ns)| !(ns.is_finite() && ns > 0.0)) {
            return None;
        }
        // Rows (1/t, s/t) and 1 on the other side: the normal equations of a and b in a/t + b s/t = 1.
        let sum =
            |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|&(bytes, ns)| of(1.0 / ns, bytes / ns)).sum::<f64>();
        let (uu, us, ss) = (sum(&|u, _| u * u), sum(&|u, s| u * s), sum(&|_, s| s * s));
        let (u, s) = (sum(&|u, _| u), sum(&|_, s| s));
        let determinant = uu * ss - us * us;
        let (mut a, mut b) = ((u * ss - s * us) / determinant, (s * uu - u * us) / determinant);
        if b < 0.0 {
            (a, b) = (u / uu, 0.0);
        } else if a < 0.0 {
            (a, b) = (0.0, s / ss);
        }
        let off = |&(bytes, ns): &(f64, f64)| ((a + b * bytes) / ns - 1.0).abs();
        let residual_share = points.iter().map(off).fold(0.0, f64::max);
        Some(Line { per_request_ns: a, per_byte_ns: b, residual_share })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [f64; 4] = [4096.0, 16384.0, 65536.0, 131_072.0];

    fn line(of: impl Fn(f64) -> f64) -> Line {
        Line::through(&SIZES.map(|bytes| (bytes, of(bytes)))).unwrap()
    }

    #[test]
    fn a_line_is_found_as_it_is() {
        let found = line(|bytes| 711.0 + bytes / 2.8);
        assert!((found.per_request_ns - 711.0).abs() < 1e-6 && (found.per_byte_ns - 1.0 / 2.8).abs() < 1e-12);
        assert!(found.residual_share < 1e-12);
    }

    #[test]
    fn what_is_off_the_line_is_the_residual() {
        // The second size takes a tenth longer.
        let found = line(|bytes| (711.0 + bytes / 2.8) * if bytes == 16384.0 { 1.1 } else { 1.0 });
        assert!((0.04..0.10).contains(&found.residual_share), "{found:?}");
    }

    #[test]
    fn neither_term_is_below_zero() {
        // Larger requests take less per byte than a line through 0 has, and then no longer than small ones.
        let from_below = line(|bytes| bytes * (0.3 + bytes * 1e-6));
        assert_eq!(from_below.per_request_ns, 0.0);
        assert!(from_below.per_byte_ns > 0.3 && from_below.residual_share > 0.05, "{from_below:?}");
        let falling = line(|bytes| 10_000.0 - bytes * 0.01);
        assert_eq!(falling.per_byte_ns, 0.0);
        assert!((9_000.0..10_000.0).contains(&falling.per_request_ns), "{falling:?}");
    }

    #[test]
    fn one_size_or_a_time_of_nothing_is_no_line() {
        assert_eq!(Line::through(&[(4096.0, 10.0), (4096.0, 11.0)]), None);
        assert_eq!(Line::through(&[(4096.0, 10.0), (8192.0, 0.0)]), None);
        assert_eq!(Line::through(&[]), None);
    }
}
