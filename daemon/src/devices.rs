//! From a device's section to the device.

use crate::config::{ConfigError, DevicePlan, Located, Medium};
use mqfq_blk::device::Device;
use mqfq_blk::device::file::{Direct, FileDevice, FileOptions, OnFailure};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::null::NullDevice;
use mqfq_blk::device::nvme::{NvmeDevice, NvmeDeviceOptions};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// Start of the software controller's random numbers (which die holds what, how long each read takes). One number, so
/// that two servers of one config behave alike.
const NVME_SEED: u64 = 1;

/// Opens the device; sentences that the user should read go to `warnings`.
///
/// # Errors
/// A file that cannot be opened or is in use, a size that the device cannot have.
pub fn open(plan: &DevicePlan, warnings: &mut Vec<String>) -> Result<Arc<dyn Device>, ConfigError> {
    open_with(plan, None, warnings)
}

/// The same, with the file that another process serves if that lends it.
///
/// # Errors
/// One sentence: the device cannot be opened, or the file that is lent is not the one that the config names.
pub fn open_with(
    plan: &DevicePlan,
    file: Option<File>,
    warnings: &mut Vec<String>,
) -> Result<Arc<dyn Device>, ConfigError> {
    Ok(match &plan.config.medium {
        Medium::Null { size_bytes } => Arc::new(NullDevice::new(*size_bytes)),
        Medium::Memory { size_bytes } => Arc::new(MemoryDevice::new(*size_bytes)),
        Medium::File { path, direct, on_failure, .. } => {
            let options = file_options(plan, path, *direct, *on_failure);
            let device = match file {
                Some(file) => FileDevice::adopt(&options, file),
                None => FileDevice::open(&options),
            };
            let device = device.map_err(|why| path.place.error(why))?;
            warnings.extend(device.warnings().iter().map(|warning| path.place.error(warning).to_string()));
            Arc::new(device)
        }
        Medium::Nvme { preset, size_bytes, arbitration, queue_pairs, slowed } => {
            let options = NvmeDeviceOptions {
                preset,
                size_bytes: *size_bytes,
                seed: NVME_SEED,
                arbitration: *arbitration,
                queue_pairs_max: *queue_pairs,
                slowed: *slowed,
            };
            Arc::new(NvmeDevice::new(options).map_err(|why| plan.config.place.error(why))?)
        }
    })
}

/// The device, but for a file, which is looked at, only something of its size: opening it would lock it, and the server
/// that is running may hold that lock.
///
/// # Errors
/// As [`open`].
pub fn open_for_check(plan: &DevicePlan, warnings: &mut Vec<String>) -> Result<Arc<dyn Device>, ConfigError> {
    match &plan.config.medium {
        Medium::File { path, direct, on_failure, .. } => {
            let found = FileDevice::look(&file_options(plan, path, *direct, *on_failure));
            let found = found.map_err(|why| path.place.error(why))?;
            warnings.extend(found.iter().map(|warning| path.place.error(warning).to_string()));
            Ok(Arc::new(NullDevice::new(plan.size_bytes)))
        }
        _ => open(plan, warnings),
    }
}

fn file_options(plan: &DevicePlan, path: &Located<PathBuf>, direct: Direct, on_failure: OnFailure) -> FileOptions {
    FileOptions {
        size_bytes: Some(plan.size_bytes),
        direct,
        read_only: plan.read_only,
        on_failure,
        ..FileOptions::new(&path.value)
    }
}
