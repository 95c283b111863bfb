//! Makes a device from its section.

use crate::config::{ConfigError, DevicePlan, Located, Medium};
use mqfq_blk::device::Device;
use mqfq_blk::device::file::{Direct, FileDevice, FileOptions, OnFailure};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::model::ModelDevice;
use mqfq_blk::device::null::NullDevice;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// Start of a modelled drive's random numbers (which die holds what, how long each read takes). One number, so that two
/// servers of one config behave alike.
const MODEL_SEED: u64 = 1;

/// Opens the device; sentences that the user should read go to `warnings`.
///
/// # Errors
/// A file that cannot be opened or is in use, a size that the device cannot have.
pub fn open(plan: &DevicePlan, warnings: &mut Vec<String>) -> Result<Arc<dyn Device>, ConfigError> {
    open_with(plan, None, warnings)
}

/// Opens the device, with the file that another process serves if that lends it.
///
/// # Errors
/// One sentence: the device cannot be opened, or the lent file is not the configured one.
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
        Medium::Model { preset, size_bytes } => {
            let device = ModelDevice::new(*preset, *size_bytes, MODEL_SEED);
            Arc::new(device.map_err(|why| plan.config.place.error(why))?)
        }
        Medium::Other(other) => (other.open)().map_err(|why| plan.config.place.error(why))?,
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
