//! Settings of one policy alone: a struct per policy, a field of [`PolicyOptions`](super::PolicyOptions) each.
//!
//! Each is as its policy is known with unless it says otherwise, and names the first of its fields that is out of
//! range.

use super::{BfqOptions, D2fqOptions, PolicyError, PolicyKind};
use std::ops::RangeInclusive;

/// Longest time that any of them takes, ns: an hour.
pub const TIME_MAX_NS: u64 = 3_600_000_000_000;

/// Largest number that any of them takes.
pub const COUNT_MAX: u32 = 65_535;

/// What configs call the tunables, by the policy that they belong to.
pub const KEYS: [(PolicyKind, &[&str]); 4] = [
    (PolicyKind::MqDeadline, &["read-expire", "write-expire", "writes-starved", "fifo-batch", "prio-aging-expire"]),
    (PolicyKind::Kyber, &["read-latency", "write-latency"]),
    (
        PolicyKind::Bfq,
        &[
            "slice-idle",
            "timeout-sync",
            "max-budget",
            "low-latency",
            "strict-guarantees",
            "fifo-expire-sync",
            "fifo-expire-async",
        ],
    ),
    (PolicyKind::D2fq, &["low-threshold", "class-ratio", "adjust-period", "grace-period", "vtime-quantum"]),
];

/// A tunable by its key: where its value goes, and which values are allowed.
#[derive(PartialEq, Eq, Debug)]
pub enum Tunable<'a> {
    /// A time, ns.
    Time(&'a mut u64, RangeInclusive<u64>),
    /// A plain number, and its range.
    Count(&'a mut u32, RangeInclusive<u32>),
    /// A size, bytes.
    Size(&'a mut u64, RangeInclusive<u64>),
    /// On or off.
    Flag(&'a mut bool),
}

/// The tunable of this key. `None`: it is not one of [`KEYS`].
pub fn tunable<'a>(
    key: &str,
    deadline: &'a mut MqDeadlineOptions,
    kyber: &'a mut KyberOptions,
    bfq: &'a mut BfqOptions,
    d2fq: &'a mut D2fqOptions,
) -> Option<Tunable<'a>> {
    let fifo_expire = BfqOptions::FIFO_EXPIRE_MIN_NS..=BfqOptions::FIFO_EXPIRE_MAX_NS;
    let timeout_sync = BfqOptions::TIMEOUT_SYNC_MIN_NS..=BfqOptions::TIMEOUT_SYNC_MAX_NS;
    let low_threshold = D2fqOptions::LOW_THRESHOLD_MIN_BYTES..=D2fqOptions::LOW_THRESHOLD_MAX_BYTES;
    let adjust_period = D2fqOptions::ADJUST_PERIOD_MIN_NS..=TIME_MAX_NS;
    Some(match key {
        "read-expire" => Tunable::Time(&mut deadline.read_expire_ns, 0..=TIME_MAX_NS),
        "write-expire" => Tunable::Time(&mut deadline.write_expire_ns, 0..=TIME_MAX_NS),
        "writes-starved" => Tunable::Count(&mut deadline.writes_starved, 0..=COUNT_MAX),
        "fifo-batch" => Tunable::Count(&mut deadline.fifo_batch, 1..=COUNT_MAX),
        "prio-aging-expire" => Tunable::Time(&mut deadline.prio_aging_expire_ns, 0..=TIME_MAX_NS),
        "read-latency" => Tunable::Time(&mut kyber.read_latency_ns, 1..=TIME_MAX_NS),
        "write-latency" => Tunable::Time(&mut kyber.write_latency_ns, 1..=TIME_MAX_NS),
        "slice-idle" => Tunable::Time(&mut bfq.slice_idle_ns, 0..=BfqOptions::SLICE_IDLE_MAX_NS),
        "timeout-sync" => Tunable::Time(&mut bfq.timeout_sync_ns, timeout_sync),
        "max-budget" => Tunable::Size(&mut bfq.max_budget_bytes, 0..=BfqOptions::MAX_BUDGET_MAX_BYTES),
        "low-latency" => Tunable::Flag(&mut bfq.low_latency),
        "strict-guarantees" => Tunable::Flag(&mut bfq.strict_guarantees),
        "fifo-expire-sync" => Tunable::Time(&mut bfq.fifo_expire_sync_ns, fifo_expire),
        "fifo-expire-async" => Tunable::Time(&mut bfq.fifo_expire_async_ns, fifo_expire),
        "low-threshold" => Tunable::Size(&mut d2fq.low_threshold_bytes, low_threshold),
        "class-ratio" => Tunable::Count(&mut d2fq.class_ratio, 0..=D2fqOptions::CLASS_RATIO_MAX),
        "adjust-period" => Tunable::Time(&mut d2fq.adjust_period_ns, adjust_period),
        "grace-period" => Tunable::Time(&mut d2fq.grace_period_ns, 0..=D2fqOptions::GRACE_PERIOD_MAX_NS),
        "vtime-quantum" => Tunable::Size(&mut d2fq.vtime_quantum_bytes, 0..=D2fqOptions::VTIME_QUANTUM_MAX_BYTES),
        _ => return None,
    })
}

/// Tunables of `mq-deadline`. Source of the constants: the kernel's documentation of deadline-iosched, and its default
/// for the ageing of classes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MqDeadlineOptions {
    /// From so long after its submission on a read begins the next batch of reads, wherever it lies, ns.
    pub read_expire_ns: u64,
    /// The same for writes.
    pub write_expire_ns: u64,
    /// Batches of reads that may pass writes that wait. 0: writes go first.
    pub writes_starved: u32,
    /// Requests that go in sector order before the direction and the expiry times are looked at again, 1 or more.
    pub fifo_batch: u32,
    /// From so long after its submission on a request goes although a higher class has requests, ns.
    pub prio_aging_expire_ns: u64,
}

impl MqDeadlineOptions {
    /// As it is known: 500 ms, 5 s, 2, 16, 10 s.
    pub const DEFAULT: MqDeadlineOptions = MqDeadlineOptions {
        read_expire_ns: 500_000_000,
        write_expire_ns: 5_000_000_000,
        writes_starved: 2,
        fifo_batch: 16,
        prio_aging_expire_ns: 10_000_000_000,
    };

    /// Checks every field.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub const fn validate(&self) -> Result<(), PolicyError> {
        if self.read_expire_ns > TIME_MAX_NS {
            return Err(Self::time("read-expire", self.read_expire_ns));
        }
        if self.write_expire_ns > TIME_MAX_NS {
            return Err(Self::time("write-expire", self.write_expire_ns));
        }
        if self.writes_starved > COUNT_MAX {
            return Err(Self::refused("writes-starved", self.writes_starved as u64, "", 0, COUNT_MAX as u64));
        }
        if self.fifo_batch == 0 || self.fifo_batch > COUNT_MAX {
            return Err(Self::refused("fifo-batch", self.fifo_batch as u64, "", 1, COUNT_MAX as u64));
        }
        if self.prio_aging_expire_ns > TIME_MAX_NS {
            return Err(Self::time("prio-aging-expire", self.prio_aging_expire_ns));
        }
        Ok(())
    }

    const fn time(name: &'static str, value: u64) -> PolicyError {
        Self::refused(name, value, " ns", 0, TIME_MAX_NS)
    }

    const fn refused(name: &'static str, value: u64, unit: &'static str, least: u64, most: u64) -> PolicyError {
        PolicyError::TunableOutOfRange { kind: PolicyKind::MqDeadline, name, value, unit, least, most }
    }
}

impl Default for MqDeadlineOptions {
    fn default() -> Self {
        MqDeadlineOptions::DEFAULT
    }
}

/// Tunables of `kyber`. Source of the constants: as the kernel's has them; there only the first two can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KyberOptions {
    /// Target of a read, from submission to completion, and on the device, ns, 1 or more.
    pub read_latency_ns: u64,
    /// The same of a write.
    pub write_latency_ns: u64,
    /// The same of a discard.
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
    /// As it is known: 2 ms, 10 ms, 5 s; 256, 128, 64, 16.
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
    pub const fn validate(&self) -> Result<(), PolicyError> {
        let times = [
            ("read-latency", self.read_latency_ns),
            ("write-latency", self.write_latency_ns),
            ("discard-latency", self.discard_latency_ns),
        ];
        let mut n = 0;
        while n < times.len() {
            let (name, value) = times[n];
            if value == 0 || value > TIME_MAX_NS {
                return Err(Self::refused(name, value, " ns", TIME_MAX_NS));
            }
            n += 1;
        }
        let depths = [
            ("read-depth", self.read_depth),
            ("write-depth", self.write_depth),
            ("discard-depth", self.discard_depth),
            ("other-depth", self.other_depth),
        ];
        n = 0;
        while n < depths.len() {
            let (name, value) = depths[n];
            if value == 0 || value > COUNT_MAX {
                return Err(Self::refused(name, value as u64, "", COUNT_MAX as u64));
            }
            n += 1;
        }
        Ok(())
    }

    const fn refused(name: &'static str, value: u64, unit: &'static str, most: u64) -> PolicyError {
        PolicyError::TunableOutOfRange { kind: PolicyKind::Kyber, name, value, unit, least: 1, most }
    }
}

impl Default for KyberOptions {
    fn default() -> Self {
        KyberOptions::DEFAULT
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::policy::PolicyOptions;

    #[test]
    fn every_key_is_a_tunable_and_its_range_is_the_one_that_is_validated() {
        for (kind, keys) in KEYS {
            for key in keys {
                let refused = |past: fn(&RangeInclusive<u64>) -> Option<u64>| {
                    let mut options = PolicyOptions::new(kind);
                    let PolicyOptions { mq_deadline, kyber, bfq, d2fq, .. } = &mut options;
                    match tunable(key, mq_deadline, kyber, bfq, d2fq).expect("it is a key") {
                        Tunable::Time(value, allowed) | Tunable::Size(value, allowed) => *value = past(&allowed)?,
                        Tunable::Count(value, allowed) => {
                            *value = past(&(u64::from(*allowed.start())..=u64::from(*allowed.end())))? as u32;
                        }
                        Tunable::Flag(_) => return None,
                    }
                    Some(options.validate())
                };
                for (past, is_allowed) in [
                    ((|range| Some(*range.start())) as fn(&RangeInclusive<u64>) -> Option<u64>, true),
                    (|range| Some(*range.end()), true),
                    (|range| range.start().checked_sub(1), false),
                    (|range| Some(range.end() + 1), false),
                ] {
                    let Some(validated) = refused(past) else { continue };
                    assert_eq!(validated.is_ok(), is_allowed, "{kind} {key}: {validated:?}");
                }
            }
        }
    }

    #[test]
    fn mq_deadline_has_the_constants_that_it_is_known_for() {
        let MqDeadlineOptions { read_expire_ns, write_expire_ns, writes_starved, fifo_batch, prio_aging_expire_ns } =
            MqDeadlineOptions::default();
        assert_eq!(
            [read_expire_ns, write_expire_ns, prio_aging_expire_ns],
            [500_000_000, 5_000_000_000, 10_000_000_000]
        );
        assert_eq!([writes_starved, fifo_batch], [2, 16]);
    }

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

    #[test]
    fn what_mq_deadline_cannot_have_is_named() {
        let good = MqDeadlineOptions::DEFAULT;
        assert_eq!(good.validate(), Ok(()));
        let sentence = |options: MqDeadlineOptions| options.validate().unwrap_err().to_string();
        let too_long = TIME_MAX_NS + 1;
        for (options, name) in [
            (MqDeadlineOptions { read_expire_ns: too_long, ..good }, "read-expire"),
            (MqDeadlineOptions { write_expire_ns: too_long, ..good }, "write-expire"),
            (MqDeadlineOptions { prio_aging_expire_ns: too_long, ..good }, "prio-aging-expire"),
        ] {
            assert_eq!(
                sentence(options),
                format!("{name} of 3600000000001 ns is out of range for mq-deadline, allowed is 0 to 3600000000000 ns")
            );
        }
        assert_eq!(
            sentence(MqDeadlineOptions { fifo_batch: 0, ..good }),
            "fifo-batch of 0 is out of range for mq-deadline, allowed is 1 to 65535"
        );
        assert_eq!(
            sentence(MqDeadlineOptions { writes_starved: 65_536, ..good }),
            "writes-starved of 65536 is out of range for mq-deadline, allowed is 0 to 65535"
        );
    }
}
