//! The elevators' keys of `[device.NAME]`: what only one policy looks at.

use super::policy::refuse;
use mqfq_blk::tunables::{COUNT_MAX, TIME_MAX_NS};
use mqfq_blk::{PolicyKind, PolicyOptions};
use mqfq_config::{ConfigError, Section};

/// Who has which.
const KEYS: [(PolicyKind, &[&str]); 1] =
    [(PolicyKind::MqDeadline, &["read-expire", "write-expire", "writes-starved", "fifo-batch", "prio-aging-expire"])];

/// It stands where an operating system has its elevator, with the device's queue below: its D is what the device takes.
pub fn is_elevator(kind: PolicyKind) -> bool {
    KEYS.iter().any(|&(owner, _)| owner == kind)
}

/// - `read-expire`, `write-expire`, `prio-aging-expire`: durations up to an hour. Default 500 ms, 5 s, 10 s.
/// - `writes-starved`: 0..=65535 batches. Default 2.
/// - `fifo-batch`: 1..=65535 requests. Default 16.
///
/// # Errors
/// A value out of range, or a key of another policy.
pub fn read(device: &Section<'_, '_>, options: &mut PolicyOptions) -> Result<(), ConfigError> {
    for (owner, keys) in KEYS.iter().filter(|(owner, _)| *owner != options.kind) {
        refuse(device, keys, &format!("is no setting of policy {}, allowed with {owner}", options.kind))?;
    }
    let time = |key: &'static str, ns: &mut u64| -> Result<(), ConfigError> {
        if let Some(entry) = device.get(key) {
            *ns = entry.duration_ns(0..=TIME_MAX_NS)?;
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
    time("read-expire", &mut deadline.read_expire_ns)?;
    time("write-expire", &mut deadline.write_expire_ns)?;
    count("writes-starved", 0, &mut deadline.writes_starved)?;
    count("fifo-batch", 1, &mut deadline.fifo_batch)?;
    time("prio-aging-expire", &mut deadline.prio_aging_expire_ns)?;
    Ok(())
}
