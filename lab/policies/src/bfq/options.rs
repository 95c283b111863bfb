//! The tunables of `bfq`.

use super::KIND;
use mqfq_sched::policy::tunables::{Key, Tunable, Tunables};
use mqfq_sched::policy::{PolicyError, validate_own};

/// Tunables of `bfq`; the defaults are Linux's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BfqOptions {
    /// How long the device is kept for a queue that has become empty, ns, 0..=1 s; 0: not at all, and shares are lost.
    pub slice_idle_ns: u64,
    /// How long a queue may keep the device, ns, 1 ms..=10 s.
    pub timeout_sync_ns: u64,
    /// The largest budget, bytes, up to 1 TiB; 0: what the device does within the timeout at its peak rate.
    pub max_budget_bytes: u64,
    /// Raise the weights of flows that come back from idleness.
    pub low_latency: bool,
    /// One request on the device at a time, and always wait.
    pub strict_guarantees: bool,
    /// A sync request that is older goes first in its queue, ns, 1 ms..=100 s.
    pub fifo_expire_sync_ns: u64,
    /// An older async request goes first in its queue, likewise, ns.
    pub fifo_expire_async_ns: u64,
}

/// A millisecond.
const MS: u64 = 1_000_000;

impl BfqOptions {
    /// Longest [`BfqOptions::slice_idle_ns`].
    pub const SLICE_IDLE_MAX_NS: u64 = 1000 * MS;
    /// Shortest [`BfqOptions::timeout_sync_ns`].
    pub const TIMEOUT_SYNC_MIN_NS: u64 = MS;
    /// Longest [`BfqOptions::timeout_sync_ns`].
    pub const TIMEOUT_SYNC_MAX_NS: u64 = 10_000 * MS;
    /// Largest [`BfqOptions::max_budget_bytes`].
    pub const MAX_BUDGET_MAX_BYTES: u64 = 1 << 40;
    /// Shortest expiry.
    pub const FIFO_EXPIRE_MIN_NS: u64 = MS;
    /// Longest expiry.
    pub const FIFO_EXPIRE_MAX_NS: u64 = 100_000 * MS;

    /// Linux's.
    pub const DEFAULT: BfqOptions = BfqOptions {
        slice_idle_ns: 8 * MS,
        timeout_sync_ns: 125 * MS,
        max_budget_bytes: 0,
        low_latency: true,
        strict_guarantees: false,
        fifo_expire_sync_ns: 125 * MS,
        fifo_expire_async_ns: 250 * MS,
    };

    /// Checks every field.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn validate(&self) -> Result<(), PolicyError> {
        validate_own(KIND, self)
    }
}

impl Default for BfqOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Tunables for BfqOptions {
    const DEFAULT: Self = BfqOptions::DEFAULT;

    const KEYS: &'static [Key<Self>] = &[
        Key::new("slice-idle", "how long a queue that has run dry keeps the device; 0: not at all", |own| {
            Tunable::Time(&mut own.slice_idle_ns, 0..=Self::SLICE_IDLE_MAX_NS)
        }),
        Key::new("timeout-sync", "how long a turn lasts", |own| {
            Tunable::Time(&mut own.timeout_sync_ns, Self::TIMEOUT_SYNC_MIN_NS..=Self::TIMEOUT_SYNC_MAX_NS)
        }),
        Key::new("max-budget", "the largest budget; 0: by the device's peak rate", |own| {
            Tunable::Size(&mut own.max_budget_bytes, 0..=Self::MAX_BUDGET_MAX_BYTES)
        }),
        Key::new("low-latency", "weight raising", |own| Tunable::Flag(&mut own.low_latency)),
        Key::new("strict-guarantees", "one request on the device at a time, and always wait", |own| {
            Tunable::Flag(&mut own.strict_guarantees)
        }),
        Key::new("fifo-expire-sync", "at which age a request that a client waits for goes first in its queue", |own| {
            Tunable::Time(&mut own.fifo_expire_sync_ns, Self::FIFO_EXPIRE_MIN_NS..=Self::FIFO_EXPIRE_MAX_NS)
        }),
        Key::new("fifo-expire-async", "the same for the others", |own| {
            Tunable::Time(&mut own.fifo_expire_async_ns, Self::FIFO_EXPIRE_MIN_NS..=Self::FIFO_EXPIRE_MAX_NS)
        }),
    ];
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_tunable_out_of_range_is_named() {
        let good = BfqOptions::DEFAULT;
        assert_eq!(good.validate(), Ok(()));
        let sentence = |options: BfqOptions| options.validate().unwrap_err().to_string();
        assert_eq!(
            sentence(BfqOptions { slice_idle_ns: 1_000_000_001, ..good }),
            "slice-idle of 1000000001 ns is out of range for bfq, allowed is 0 to 1000000000 ns"
        );
        for (options, name) in [
            (BfqOptions { timeout_sync_ns: 0, ..good }, "timeout-sync"),
            (BfqOptions { max_budget_bytes: u64::MAX, ..good }, "max-budget"),
            (BfqOptions { fifo_expire_sync_ns: 0, ..good }, "fifo-expire-sync"),
            (BfqOptions { fifo_expire_async_ns: 0, ..good }, "fifo-expire-async"),
        ] {
            assert!(sentence(options).starts_with(&format!("{name} of ")), "{}", sentence(options));
        }
    }
}
