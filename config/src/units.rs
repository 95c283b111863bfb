//! Quantities as people write them.

pub mod size {
    //! Sizes as people write them: `4096`, `"64KiB"`, `"1GiB"`.
    //!
    //! Own code and not a crate: the crates at hand also read `1K`, `1kB` and `1.5g`, each with its own idea of 1000
    //! and 1024. A config that decides where one tenant's bytes end shall not depend on that, so only the units below
    //! exist.

    /// Unit names and their factors.
    const UNITS: [(&str, u64); 5] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40), ("B", 1)];

    /// Format that [`parse`] takes, for an error's "allowed is".
    pub const ALLOWED: &str = "bytes (4096), or a whole number followed by KiB, MiB, GiB or TiB (\"64KiB\")";

    /// Bytes meant by `text`: digits, then nothing or a unit, and no space. `None` if it is anything else or does not
    /// fit 64 bits.
    pub fn parse(text: &str) -> Option<u64> {
        let (digits, factor) = digits_and_factor(text)?;
        digits.parse::<u64>().ok()?.checked_mul(factor)
    }

    /// Whether `text` is written as a size, of however many bytes.
    pub fn is_size(text: &str) -> bool {
        digits_and_factor(text).is_some()
    }

    fn digits_and_factor(text: &str) -> Option<(&str, u64)> {
        let with_unit = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
        let (digits, factor) = with_unit.unwrap_or((text, 1));
        // u64's own parser takes a leading plus sign; a size has none.
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some((digits, factor))
    }

    /// `bytes` in the largest unit that divides it: 65536 is "64KiB", 1000 is "1000".
    pub fn display(bytes: u64) -> String {
        let unit = UNITS[..4].iter().rev().find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor));
        unit.map_or_else(|| bytes.to_string(), |(unit, factor)| format!("{}{unit}", bytes / factor))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_size_is_a_whole_number_and_a_binary_unit() {
            assert_eq!(parse("0"), Some(0));
            assert_eq!(parse("4096"), Some(4096));
            assert_eq!(parse("512B"), Some(512));
            assert_eq!(parse("64KiB"), Some(65_536));
            assert_eq!(parse("512MiB"), Some(536_870_912));
            assert_eq!(parse("1GiB"), Some(1_073_741_824));
            assert_eq!(parse("16777215TiB"), Some(16_777_215 << 40), "2^64 less one TiB");
        }

        #[test]
        fn what_two_tools_could_read_in_two_ways_is_refused() {
            for text in [
                "", "1K", "1k", "1KB", "1M", "1.5GiB", "-1", "+1", " 1", "1 ", "64 KiB", "64\tKiB", "1  KiB", "KiB",
                "0x10", "1kib",
            ] {
                assert_eq!(parse(text), None, "{text:?}");
            }
            assert_eq!(parse("16777216TiB"), None, "2^64 bytes do not fit");
            assert!(is_size("16777216TiB") && !is_size("1MB"));
        }

        #[test]
        fn display_is_what_parse_reads() {
            for (bytes, text) in [(0, "0"), (1000, "1000"), (1024, "1KiB"), (65_536, "64KiB"), (3 << 30, "3GiB")] {
                assert_eq!(display(bytes), text);
                assert_eq!(parse(text), Some(bytes));
            }
        }
    }
}

pub mod duration {
    //! Durations as people write them: `"50ms"`, `"3us"`, `"1s"`, `"250ns"`, `"0"`.
    //!
    //! A whole number and one unit, for the same reason as in [`super::size`]: `"1.5s"` and `"1m"` mean different
    //! things to different tools. A bare number is not a duration, since it does not show its unit; only 0 needs none.

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
                "", "5", "s", "ms", "1.5s", "-1s", "+1s", " 1s", "1s ", "50 ms", "1  s", "1m", "1min", "1S", "1µs",
                "1e3ns",
            ] {
                assert_eq!(parse(text), None, "{text:?}");
            }
            assert_eq!(parse("18446744074s"), None, "2^64 ns do not fit");
        }

        #[test]
        fn display_is_what_parse_reads() {
            for (ns, text) in
                [(0, "0s"), (1_500, "1500ns"), (2_000, "2us"), (50_000_000, "50ms"), (3_000_000_000, "3s")]
            {
                assert_eq!(display(ns), text);
                assert_eq!(parse(text), Some(ns));
            }
        }
    }
}
