//! Tunables of `d2fq`.

use super::KIND;
use mqfq_sched::policy::tunables::{Key, TIME_MAX_NS, Tunable, Tunables};
use mqfq_sched::policy::{ClassWeights, PolicyError, validate_own};
use mqfq_sched::vtime::VSpan;

/// Tunables of `d2fq`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct D2fqOptions {
    /// tau_l: a flow whose virtual time is so far ahead of global virtual time goes to the low queues, bytes-equivalent
    /// at the default weight, 64 KiB..=1 TiB. tau_m, from which on it goes to the medium ones, is half of it; tau_w,
    /// from which on the ratio of the classes is found too small, twice.
    pub low_threshold_bytes: u64,
    /// H/L: the weight of the high queues over that of the low ones, 1..=256. 0: what equations 2 and 3 find, from 256
    /// on.
    pub class_ratio: u32,
    /// Time between two looks at whether the ratio fits, ns, 1 ms..=1 h.
    pub adjust_period_ns: u64,
    /// A flow that has nothing in flight keeps its place for so long, ns, 0..=10 s.
    pub grace_period_ns: u64,
    /// Global virtual time is written only when it would move by more than this, bytes-equivalent at the default
    /// weight, 0..=1 MiB; what counts is at most a sixteenth of the threshold. 0: as in the paper, with each completion
    /// of its holder.
    pub vtime_quantum_bytes: u64,
}

impl D2fqOptions {
    /// Smallest [`D2fqOptions::low_threshold_bytes`]: 512 times what global virtual time is rounded down to.
    pub const LOW_THRESHOLD_MIN_BYTES: u64 = 64 << 10;
    /// Largest [`D2fqOptions::low_threshold_bytes`]: far below what virtual time can compare.
    pub const LOW_THRESHOLD_MAX_BYTES: u64 = 1 << 40;
    /// Largest [`D2fqOptions::class_ratio`]: the low queues have weight 1.
    pub const CLASS_RATIO_MAX: u32 = ClassWeights::MAX as u32;
    /// Shortest [`D2fqOptions::adjust_period_ns`].
    pub const ADJUST_PERIOD_MIN_NS: u64 = 1_000_000;
    /// Longest [`D2fqOptions::grace_period_ns`].
    pub const GRACE_PERIOD_MAX_NS: u64 = 10_000_000_000;

    /// Largest [`D2fqOptions::vtime_quantum_bytes`].
    pub const VTIME_QUANTUM_MAX_BYTES: u64 = 1 << 20;

    /// Options of `mqfq serve` unless its config says otherwise: the line that all workers read is written once per 64
    /// KiB of service, a 128th of the threshold.
    pub const SHIPPED: D2fqOptions = D2fqOptions { vtime_quantum_bytes: 64 << 10, ..D2fqOptions::DEFAULT };

    /// Options of the paper (section 4.1), and 2 ms of grace, for which it has no number: the file's text of
    /// [`D2fq`](super::D2fq) says why.
    pub const DEFAULT: D2fqOptions = D2fqOptions {
        low_threshold_bytes: 8 << 20,
        class_ratio: 0,
        adjust_period_ns: 1_000_000_000,
        grace_period_ns: 2_000_000,
        vtime_quantum_bytes: 0,
    };

    /// Most that global virtual time may be off by.
    pub(super) const fn vtime_quantum(&self) -> VSpan {
        let most = self.low_threshold_bytes / 16;
        VSpan::from_bytes(if self.vtime_quantum_bytes < most { self.vtime_quantum_bytes } else { most })
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn validate(&self) -> Result<(), PolicyError> {
        validate_own(KIND, self)
    }
}

impl Default for D2fqOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Tunables for D2fqOptions {
    const DEFAULT: Self = D2fqOptions::DEFAULT;
    const SHIPPED: Self = D2fqOptions::SHIPPED;

    const KEYS: &'static [Key<Self>] = &[
        Key::new(
            "low-threshold",
            "how far a tenant may be ahead before its requests go to the low queues, in bytes at the default weight",
            |own| {
                let allowed = Self::LOW_THRESHOLD_MIN_BYTES..=Self::LOW_THRESHOLD_MAX_BYTES;
                Tunable::Size(&mut own.low_threshold_bytes, allowed)
            },
        ),
        Key::new(
            "class-ratio",
            "the weight of the high queues over that of the low ones; 0: as large as fairness needs, found while it runs",
            |own| Tunable::Count(&mut own.class_ratio, 0..=Self::CLASS_RATIO_MAX),
        ),
        Key::new("adjust-period", "time between two looks at whether `class-ratio` fits", |own| {
            Tunable::Time(&mut own.adjust_period_ns, Self::ADJUST_PERIOD_MIN_NS..=TIME_MAX_NS)
        }),
        Key::new("grace-period", "how long a tenant with nothing in flight keeps its place", |own| {
            Tunable::Time(&mut own.grace_period_ns, 0..=Self::GRACE_PERIOD_MAX_NS)
        }),
        Key::new(
            "vtime-quantum",
            "how much global virtual time must move by to be written; 0: with each completion, as published",
            |own| Tunable::Size(&mut own.vtime_quantum_bytes, 0..=Self::VTIME_QUANTUM_MAX_BYTES),
        ),
    ];
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_tunable_out_of_range_is_named() {
        let good = D2fqOptions::DEFAULT;
        assert_eq!(good.validate(), Ok(()));
        let sentence = |options: D2fqOptions| options.validate().unwrap_err().to_string();
        assert_eq!(
            sentence(D2fqOptions { class_ratio: 257, ..good }),
            "class-ratio of 257 is out of range for d2fq, allowed is 0 to 256"
        );
        for (options, name) in [
            (D2fqOptions { low_threshold_bytes: 65_535, ..good }, "low-threshold"),
            (D2fqOptions { adjust_period_ns: 999_999, ..good }, "adjust-period"),
            (D2fqOptions { grace_period_ns: 10_000_000_001, ..good }, "grace-period"),
            (D2fqOptions { vtime_quantum_bytes: (1 << 20) + 1, ..good }, "vtime-quantum"),
        ] {
            assert!(sentence(options).starts_with(&format!("{name} of ")), "{}", sentence(options));
        }
    }
}
