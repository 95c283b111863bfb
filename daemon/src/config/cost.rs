//! `cost` and `[device.NAME.cost]`: charges of requests; `[device.NAME.profile]`: measurements of the device.

use mqfq_blk::{CostModel, CostTerm};
use mqfq_config::{ConfigError, Section};

/// Largest D that a profile may name.
const KNEE_MAX: u32 = 65_535;

/// Longest latency that a profile may name, ns: a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// Largest bandwidth that a profile may name, bytes per second.
const BANDWIDTH_MAX: u64 = 1 << 50;

/// `cost`: `"bytes"`, `"auto"` or `[device.NAME.cost]`, which has `read`, `write`, `discard`, `flush` and
/// `write-zeroes`, each `{ base = SIZE, per-byte = NUMBER }`, and `auto`. Whether the cost of writes is followed from
/// there.
///
/// # Errors
/// A value of the wrong type or out of range.
pub fn read(device: &Section<'_, '_>) -> Result<(CostModel, bool), ConfigError> {
    let model = CostModel::FLAT;
    let Some(cost) = device.get("cost") else { return Ok((model, false)) };
    match (cost.text("\"bytes\", \"auto\" or a table"), cost.table(&[])) {
        (Ok(_), _) => return Ok((model, cost.choice(&["bytes", "auto"])? == "auto")),
        (Err(neither), Err(_)) => return Err(neither),
        (Err(_), Ok(_)) => {}
    }
    let cost = cost.table(&["read", "write", "discard", "flush", "write-zeroes", "auto"])?;
    let term = |key, default: CostTerm| -> Result<CostTerm, ConfigError> {
        let Some(entry) = cost.get(key) else { return Ok(default) };
        let entry = entry.table(&["base", "per-byte"])?;
        let mut term = default;
        if let Some(base) = entry.get("base") {
            term.base_bytes = base.size(0..=1 << 30)?;
        }
        if let Some(per_byte) = entry.get("per-byte") {
            term.per_byte_256ths = (per_byte.decimal(0.0..=1000.0)? * 256.0).round() as u32;
        }
        Ok(term)
    };
    let CostModel { read, write, discard, flush, .. } = model;
    let write = term("write", write)?;
    let write_zeroes = cost.get("write-zeroes").map(|_| term("write-zeroes", write)).transpose()?;
    let (read, discard, flush) = (term("read", read)?, term("discard", discard)?, term("flush", flush)?);
    let model = CostModel { read, write, discard, flush, write_zeroes };
    Ok((model, cost.get("auto").map_or(Ok(false), |auto| auto.flag())?))
}

/// `[device.NAME.profile]`, as `mqfq calibrate` prints it: the first D, and the device's performance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// `knee`: smallest D with nearly all of the throughput, in units of 4 KiB of cost, 1..=65535.
    pub knee_units: u32,
    /// `knee-requests`: the knee where each request is a unit, 1..=65535. Default: `knee`.
    pub knee_requests: u32,
    /// `latency` of a 4 KiB read alone, ns.
    pub latency_ns: Option<u64>,
    /// `bandwidth` of reads, bytes per second.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// `write-latency` of a 4 KiB write alone, ns.
    pub write_latency_ns: Option<u64>,
    /// `write-bandwidth`, bytes per second.
    pub write_bandwidth_bytes_per_s: Option<u64>,
}

impl Profile {
    /// The profile of a device, if it has one.
    ///
    /// # Errors
    /// A value out of range, or `knee` is missing.
    pub fn read(device: &Section<'_, '_>) -> Result<Option<Profile>, ConfigError> {
        const KEYS: &[&str] = &["knee", "knee-requests", "latency", "bandwidth", "write-latency", "write-bandwidth"];
        let Some(profile) = device.get("profile") else { return Ok(None) };
        let profile = profile.table(KEYS)?;
        let knee_units = profile.require("knee", &format!("1 to {KNEE_MAX}"))?.number(1..=KNEE_MAX)?;
        let latency = |key| profile.get(key).map(|entry| entry.duration_ns(1..=LATENCY_MAX_NS)).transpose();
        let bandwidth = |key| profile.get(key).map(|entry| entry.size(1..=BANDWIDTH_MAX)).transpose();
        Ok(Some(Profile {
            knee_units,
            knee_requests: profile.get("knee-requests").map_or(Ok(knee_units), |knee| knee.number(1..=KNEE_MAX))?,
            latency_ns: latency("latency")?,
            bandwidth_bytes_per_s: bandwidth("bandwidth")?,
            write_latency_ns: latency("write-latency")?,
            write_bandwidth_bytes_per_s: bandwidth("write-bandwidth")?,
        }))
    }
}
