//! Durations as people write them: `"50ms"`, `"3us"`, `"1s"`, `"250ns"`, `"0"`.
//!
//! A whole number and one unit, for the same reason as in [`crate::size`]: `"1.5s"` and `"1m"` mean different things to
//! different tools. A bare number is not a duration, since it does not show its unit; only 0 needs none.

/// Unit names and their nanoseconds. `s` is last, being the end of the others.
const UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Format that [`parse`] takes, for an error's "allowed is".
pub const ALLOWED: &str = "a whole number followed by ns, us, ms or s (\"50ms\")";

/// Nanoseconds meant by `text`: digits, then a unit, and no space. `None` if it is anything else or does not fit 64
/// bits.
pub fn parse(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let (digits, factor) = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// `ns` in the largest unit that divides it: 1500 is "1500ns", 2000 is "2us".
pub fn display(ns: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, factor)| ns > 0 && ns.is_multiple_of(*factor));
    unit.map_or_else(|| "0s".into(), |(unit, factor)| format!("{}{unit}", ns / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_whole_number_and_a_unit() {
        assert_eq!(parse("250ns"), Some(250));
        assert_eq!(parse("3us"), Some(3_000));
        assert_eq!(parse("50ms"), Some(50_000_000));
        assert_eq!(parse("1s"), Some(1_000_000_000));
        assert_eq!((parse("0"), parse("0s")), (Some(0), Some(0)));
        assert_eq!(parse("18446744073s"), Some(18_446_744_073_000_000_000), "just below 2^64 ns");
    }

    #[test]
    fn what_has_no_unit_or_two_meanings_is_refused() {
        for text in [
            "", "5", "s", "ms", "1.5s", "-1s", "+1s", " 1s", "1s ", "50 ms", "1  s", "1m", "1min", "1S", "1µs", "1e3ns",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(parse("18446744074s"), None, "2^64 ns do not fit");
    }

    #[test]
    fn display_is_what_parse_reads() {
        for (ns, text) in [(0, "0s"), (1_500, "1500ns"), (2_000, "2us"), (50_000_000, "50ms"), (3_000_000_000, "3s")] {
            assert_eq!(display(ns), text);
            assert_eq!(parse(text), Some(ns));
        }
    }
}
