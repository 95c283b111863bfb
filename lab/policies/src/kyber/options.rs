//! The tunables of `kyber`.

use super::KIND;
use mqfq_sched::policy::tunables::{COUNT_MAX, Key, TIME_MAX_NS, Tunable, Tunables};
use mqfq_sched::policy::{PolicyError, validate_own};

/// Tunables of `kyber`. Source of the constants: as the kernel's has them; there only the first two can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KyberOptions {
    /// Target of a read, from submission to completion, and on the device, ns, 1 or more.
    pub read_latency_ns: u64,
    /// Target of a write, likewise.
    pub write_latency_ns: u64,
    /// Target of a discard, likewise.
    pub discard_latency_ns: u64,
    /// Reads on the device, at most, 1 or more.
    pub read_depth: u32,
    /// Writes on the device, at most, 1 or more.
    pub write_depth: u32,
    /// Discards and writes of zeroes on the device, at most, 1 or more.
    pub discard_depth: u32,
    /// All other requests on the device, at most, 1 or more.
    pub other_depth: u32,
}

impl KyberOptions {
    /// Linux's defaults: 2 ms, 10 ms, 5 s; 256, 128, 64, 16.
    pub const DEFAULT: KyberOptions = KyberOptions {
        read_latency_ns: 2_000_000,
        write_latency_ns: 10_000_000,
        discard_latency_ns: 5_000_000_000,
        read_depth: 256,
        write_depth: 128,
        discard_depth: 64,
        other_depth: 16,
    };

    /// Checks every field.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn validate(&self) -> Result<(), PolicyError> {
        validate_own(KIND, self)
    }
}

impl Default for KyberOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Tunables for KyberOptions {
    const DEFAULT: Self = KyberOptions::DEFAULT;

    const KEYS: &'static [Key<Self>] = &[
        Key::new("read-latency", "how long a read may take", |own| {
            Tunable::Time(&mut own.read_latency_ns, 1..=TIME_MAX_NS)
        }),
        Key::new("write-latency", "how long a write may take", |own| {
            Tunable::Time(&mut own.write_latency_ns, 1..=TIME_MAX_NS)
        }),
    ];

    const FIXED: &'static [Key<Self>] = &[
        Key::new("discard-latency", "how long a discard may take", |own| {
            Tunable::Time(&mut own.discard_latency_ns, 1..=TIME_MAX_NS)
        }),
        Key::new("read-depth", "reads on the device", |own| Tunable::Count(&mut own.read_depth, 1..=COUNT_MAX)),
        Key::new("write-depth", "writes on the device", |own| Tunable::Count(&mut own.write_depth, 1..=COUNT_MAX)),
        Key::new("discard-depth", "discards and writes of zeroes on the device", |own| {
            Tunable::Count(&mut own.discard_depth, 1..=COUNT_MAX)
        }),
        Key::new("other-depth", "all other requests on the device", |own| {
            Tunable::Count(&mut own.other_depth, 1..=COUNT_MAX)
        }),
    ];
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn kyber_has_the_constants_that_it_is_known_for() {
        let options = KyberOptions::default();
        assert_eq!([options.read_latency_ns, options.write_latency_ns], [2_000_000, 10_000_000]);
        assert_eq!(options.discard_latency_ns, 5_000_000_000);
        let KyberOptions { read_depth, write_depth, discard_depth, other_depth, .. } = options;
        assert_eq!([read_depth, write_depth, discard_depth, other_depth], [256, 128, 64, 16]);
    }

    #[test]
    fn what_kyber_cannot_have_is_named() {
        let good = KyberOptions::DEFAULT;
        assert_eq!(good.validate(), Ok(()));
        let sentence = |options: KyberOptions| options.validate().unwrap_err().to_string();
        assert_eq!(
            sentence(KyberOptions { read_latency_ns: 0, ..good }),
            "read-latency of 0 ns is out of range for kyber, allowed is 1 to 3600000000000 ns"
        );
        assert_eq!(
            sentence(KyberOptions { write_latency_ns: TIME_MAX_NS + 1, ..good }),
            "write-latency of 3600000000001 ns is out of range for kyber, allowed is 1 to 3600000000000 ns"
        );
        let depth = |options, name| {
            assert_eq!(sentence(options), format!("{name} of 0 is out of range for kyber, allowed is 1 to 65535"));
        };
        depth(KyberOptions { read_depth: 0, ..good }, "read-depth");
        depth(KyberOptions { write_depth: 0, ..good }, "write-depth");
        depth(KyberOptions { discard_depth: 0, ..good }, "discard-depth");
        depth(KyberOptions { other_depth: 0, ..good }, "other-depth");
    }
}
