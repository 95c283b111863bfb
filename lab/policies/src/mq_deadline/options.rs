//! The tunables of `mq-deadline`.

use super::KIND;
use mqfq_sched::policy::tunables::{COUNT_MAX, Key, TIME_MAX_NS, Tunable, Tunables};
use mqfq_sched::policy::{PolicyError, validate_own};

/// Tunables of `mq-deadline`. Source of the constants: the kernel's documentation of deadline-iosched, and its default
/// for the ageing of classes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MqDeadlineOptions {
    /// A read that has waited for so long begins the next batch of reads, wherever it lies, ns.
    pub read_expire_ns: u64,
    /// A write that has waited for so long begins the next batch of writes, likewise.
    pub write_expire_ns: u64,
    /// Batches of reads that may pass writes that wait. 0: writes go first.
    pub writes_starved: u32,
    /// Requests that go in sector order before the direction and the expiry times are looked at again, 1 or more.
    pub fifo_batch: u32,
    /// A request that has waited for so long goes although a higher class has requests, ns.
    pub prio_aging_expire_ns: u64,
}

impl MqDeadlineOptions {
    /// Linux's defaults: 500 ms, 5 s, 2, 16, 10 s.
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
    pub fn validate(&self) -> Result<(), PolicyError> {
        validate_own(KIND, self)
    }
}

impl Default for MqDeadlineOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Tunables for MqDeadlineOptions {
    const DEFAULT: Self = MqDeadlineOptions::DEFAULT;

    const KEYS: &'static [Key<Self>] = &[
        Key::new("read-expire", "how long a read may be passed over for its place", |own| {
            Tunable::Time(&mut own.read_expire_ns, 0..=TIME_MAX_NS)
        }),
        Key::new("write-expire", "how long a write may be passed over for its place", |own| {
            Tunable::Time(&mut own.write_expire_ns, 0..=TIME_MAX_NS)
        }),
        Key::new("writes-starved", "batches of reads that may pass writes that wait", |own| {
            Tunable::Count(&mut own.writes_starved, 0..=COUNT_MAX)
        }),
        Key::new("fifo-batch", "requests in sector order before direction and expiry are looked at again", |own| {
            Tunable::Count(&mut own.fifo_batch, 1..=COUNT_MAX)
        }),
        Key::new("prio-aging-expire", "how long a tenant of a lower class waits for those of a higher one", |own| {
            Tunable::Time(&mut own.prio_aging_expire_ns, 0..=TIME_MAX_NS)
        }),
    ];
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

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
