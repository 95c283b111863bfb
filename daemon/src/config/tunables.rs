//! The elevators' keys of `[device.NAME]`: what only one policy looks at.

use super::policy::refuse;
use mqfq_blk::tunables::{COUNT_MAX, TIME_MAX_NS};
use mqfq_blk::{BfqOptions, PolicyKind, PolicyOptions};
use mqfq_config::{ConfigError, Section};

/// Who has which.
const KEYS: [(PolicyKind, &[&str]); 3] = [
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
];

/// It stands where an operating system has its elevator, with the device's queue below: its D is what the device takes.
pub fn is_elevator(kind: PolicyKind) -> bool {
    KEYS.iter().any(|&(owner, _)| owner == kind)
}

/// - `read-expire`, `write-expire`, `prio-aging-expire`: durations up to an hour. Default 500 ms, 5 s, 10 s.
/// - `writes-starved`: 0..=65535 batches. Default 2.
/// - `fifo-batch`: 1..=65535 requests. Default 16.
/// - `read-latency`, `write-latency`: durations of 1 ns to an hour. Default 2 ms, 10 ms.
/// - `slice-idle`: a duration up to 1 s. Default 8 ms. `timeout-sync`: 1 ms to 10 s. Default 125 ms.
/// - `max-budget`: a size up to 1 TiB. Default 0: by the device's peak rate.
/// - `low-latency`: default true. `strict-guarantees`: default false.
/// - `fifo-expire-sync`, `fifo-expire-async`: 1 ms to 100 s. Default 125 ms, 250 ms.
///
/// # Errors
/// A value out of range, or a key of another policy.
pub fn read(device: &Section<'_, '_>, options: &mut PolicyOptions) -> Result<(), ConfigError> {
    for (owner, keys) in KEYS.iter().filter(|(owner, _)| *owner != options.kind) {
        refuse(device, keys, &format!("is no setting of policy {}, allowed with {owner}", options.kind))?;
    }
    let time = |key: &'static str, least_ns: u64, ns: &mut u64| -> Result<(), ConfigError> {
        if let Some(entry) = device.get(key) {
            *ns = entry.duration_ns(least_ns..=TIME_MAX_NS)?;
        }
        Ok(())
    };
    let count = |key: &'static str, least: u32, count: &mut u32| -> Result<(), ConfigError> {
        if let Some(entry) = device.get(key) {
            *count = entry.number(least..=COUNT_MAX)?;
        }
        Ok(())
    };
    let deadline = &mut options.mq_deadline;
    time("read-expire", 0, &mut deadline.read_expire_ns)?;
    time("write-expire", 0, &mut deadline.write_expire_ns)?;
    count("writes-starved", 0, &mut deadline.writes_starved)?;
    count("fifo-batch", 1, &mut deadline.fifo_batch)?;
    time("prio-aging-expire", 0, &mut deadline.prio_aging_expire_ns)?;
    time("read-latency", 1, &mut options.kyber.read_latency_ns)?;
    time("write-latency", 1, &mut options.kyber.write_latency_ns)?;
    let bfq = &mut options.bfq;
    let expire = BfqOptions::FIFO_EXPIRE_MIN_NS..=BfqOptions::FIFO_EXPIRE_MAX_NS;
    let times = [
        ("slice-idle", &mut bfq.slice_idle_ns, 0..=BfqOptions::SLICE_IDLE_MAX_NS),
        ("timeout-sync", &mut bfq.timeout_sync_ns, BfqOptions::TIMEOUT_SYNC_MIN_NS..=BfqOptions::TIMEOUT_SYNC_MAX_NS),
        ("fifo-expire-sync", &mut bfq.fifo_expire_sync_ns, expire.clone()),
        ("fifo-expire-async", &mut bfq.fifo_expire_async_ns, expire),
    ];
    for (key, ns, range) in times {
        if let Some(entry) = device.get(key) {
            *ns = entry.duration_ns(range)?;
        }
    }
    if let Some(entry) = device.get("max-budget") {
        bfq.max_budget_bytes = entry.size(0..=BfqOptions::MAX_BUDGET_MAX_BYTES)?;
    }
    for (key, flag) in [("low-latency", &mut bfq.low_latency), ("strict-guarantees", &mut bfq.strict_guarantees)] {
        if let Some(entry) = device.get(key) {
            *flag = entry.flag()?;
        }
    }
    Ok(())
}
