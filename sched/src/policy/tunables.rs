//! What can be set of one policy alone: a struct per policy, a field of [`PolicyOptions`](super::PolicyOptions) each.
//!
//! Each is as its policy is known with unless it says otherwise, and names the first of its fields that is out of range.

use super::{PolicyError, PolicyKind};

/// Longest time that any of them takes, ns: an hour.
pub const TIME_MAX_NS: u64 = 3_600_000_000_000;

/// Largest number that any of them takes.
pub const COUNT_MAX: u32 = 65_535;

/// Tunables of `mq-deadline`. Source of the constants: the kernel's documentation of deadline-iosched, and its default for the
/// ageing of classes.
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

#[cfg(all(test, not(loom)))]
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
