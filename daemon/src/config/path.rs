//! `timeout` of a device, `split` and `retries` of its `expert`: treatment of its requests besides scheduling.

use mqfq_blk::path_options::PathOptions;
use mqfq_blk::split::Split;
use mqfq_config::{ConfigError, Section};
use std::ops::RangeInclusive;

/// A timeout under a millisecond would abort every slow request; a client does not wait longer than a day, and `"off"`
/// says so.
const TIMEOUT_NS: RangeInclusive<u64> = 1_000_000..=86_400_000_000_000;

const TIMEOUT_ALLOWED: &str = "\"off\" or a duration like \"30s\"";

/// - `split`: large reads and writes go to the device in parts: `"auto"` (default), `"off"`, or a size, 4 KiB to 1 MiB.
/// - `timeout`: a command that takes longer is aborted, `"1ms"` to `"86400s"`, or `"off"`. Default `"30s"`.
/// - `retries`: times that a request goes to the device again after resets, 0..=255. Default 5.
///
/// # Errors
/// An unknown name, or a number out of range.
pub fn read(device: &Section<'_, '_>, expert: &Section<'_, '_>) -> Result<PathOptions, ConfigError> {
    let mut path = PathOptions { split: Split::Auto, ..PathOptions::default() };
    if let Some(entry) = expert.get("split") {
        let (range, step) = Split::SIZES;
        path.split = entry.size_or_one_of(&Split::WORDS, range, step, Split::of_size)?;
    }
    if let Some(entry) = device.get("timeout") {
        path.timeout_ns = match entry.text(TIMEOUT_ALLOWED)?.as_str() {
            "off" | "0" => 0,
            _ => entry.duration_ns(TIMEOUT_NS)?,
        };
    }
    if let Some(entry) = expert.get("retries") {
        path.retries = entry.number(0..=u8::MAX)?;
    }
    Ok(path)
}
