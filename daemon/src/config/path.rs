//! `merge`, `split`, `plug`, `timeout`, `retries` and `async-writes` of a device: what is done to its requests besides
//! scheduling them.

use super::{ConfigError, Section};
use mqfq_blk::path::{Merge, PathOptions};
use mqfq_blk::split::Split;
use std::ops::RangeInclusive;

/// Shorter than a millisecond every slow request would be given up; longer than a day nobody waits, and `"off"` says
/// so.
const TIMEOUT_NS: RangeInclusive<u64> = 1_000_000..=86_400_000_000_000;

const TIMEOUT_ALLOWED: &str = "\"off\" or a duration like \"30s\"";

/// - `merge`: requests that lie next to each other become one command: `"none"` (default), `"back"`, `"both"`.
/// - `split`: large reads and writes go to the device in parts: `"auto"` (default), `"off"`, or a size, 4 KiB to 1 MiB.
/// - `plug`: calls of clients that gather before their requests are dispatched, 1..=4096. Default 32.
/// - `timeout`: a command that takes longer is aborted, `"1ms"` to `"86400s"`, or `"off"`. Default `"30s"`.
/// - `async-writes`: writes without FUA are a cache's that is written back, and nobody waits for them. Default false.
/// - `retries`: times that a request goes to the device again after resets, 0..=255. Default 5.
///
/// # Errors
/// An unknown name, or a number out of range.
pub fn read(device: &Section<'_, '_>) -> Result<PathOptions, ConfigError> {
    let mut path = PathOptions { split: Split::Auto, ..PathOptions::default() };
    if let Some(entry) = device.get("merge") {
        path.merge = entry.choice(&Merge::ALL.map(Merge::name))?.parse().expect("a choice of all names");
    }
    if let Some(entry) = device.get("split") {
        let (range, step) = Split::SIZES;
        path.split = entry.size_or_one_of(&Split::WORDS, range, step, Split::of_size)?;
    }
    if let Some(entry) = device.get("plug") {
        path.plug = entry.number(1..=PathOptions::PLUG_MAX)?;
    }
    if let Some(entry) = device.get("timeout") {
        path.timeout_ns = match entry.text(TIMEOUT_ALLOWED)?.as_str() {
            "off" | "0" => 0,
            _ => entry.duration_ns(TIMEOUT_NS)?,
        };
    }
    if let Some(entry) = device.get("async-writes") {
        path.async_writes = entry.flag()?;
    }
    if let Some(entry) = device.get("retries") {
        path.retries = entry.number(0..=u8::MAX)?;
    }
    Ok(path)
}
