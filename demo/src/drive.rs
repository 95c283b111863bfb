//! The devices that the commands run on.

use mqfq_blk::device::Device;
use mqfq_blk::device::model::ModelDevice;
use mqfq_blk::device::model::presets::{FLASH_60K, Preset};
use std::sync::Arc;

/// The drive of the demo: slow enough that two cores saturate it through sockets.
pub const DEMO_DRIVE: Preset = FLASH_60K;

/// Name of [`DEMO_DRIVE`].
pub const DEMO_PRESET: &str = DEMO_DRIVE.name;

/// Size of the demo's drive. Requests spread over dies at random, so nothing depends on it; and bytes never written
/// take no memory.
pub const DEMO_BYTES: u64 = 1 << 30;

/// Commands on each worker's device queue at once: as a driver sets up a drive's queues. Far above D, so that it limits
/// only `none`, as on a real machine (1,023 is what fits in Linux's usual ring of 1,024).
pub const DEMO_QUEUE_DEPTH: u16 = 1023;

/// Start of the drive's random numbers: die times and places.
const DEMO_SEED: u64 = 1;

/// A new drive of the demo.
///
/// # Errors
/// One sentence.
pub fn demo_drive() -> Result<Arc<dyn Device>, String> {
    Ok(Arc::new(ModelDevice::new(DEMO_DRIVE, DEMO_BYTES, DEMO_SEED)?))
}

/// Largest throughput of the demo's drive for reads of `request_bytes`.
pub fn demo_bytes_per_s(request_bytes: u32) -> f64 {
    DEMO_DRIVE.media.read_link.commands_per_s(request_bytes) as f64 * f64::from(request_bytes)
}
