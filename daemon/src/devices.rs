//! Makes a device from its section.

use crate::config::{ConfigError, DevicePlan, ExportPlan, Located, Medium, SourceLocation};
use mqfq_blk::device::Device;
use mqfq_blk::device::file::{Direct, FileDevice, FileOptions, OnFailure, number_of};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::model::ModelDevice;
use mqfq_blk::device::null::NullDevice;
use std::any::Any;
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
        Medium::Pool { .. } => Arc::new(FileDevice::pool()),
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
        // Its backings are looked at with their exports.
        Medium::Pool { .. } => Ok(Arc::new(NullDevice::new(plan.size_bytes))),
        _ => open(plan, warnings),
    }
}

/// Opens the backing of an export of a pool, or goes on with the `file` that another process lends.
///
/// # Errors
/// One sentence: it cannot be opened, or is not the one that is lent.
pub fn add_backing(
    device: &dyn Device,
    plan: &DevicePlan,
    export: &ExportPlan,
    file: Option<File>,
    warnings: &mut Vec<String>,
) -> Result<(), ConfigError> {
    let Some((pool, options)) = pool(device).zip(backing_options(plan, export)) else { return Ok(()) };
    let number = number_of(export.offset_bytes);
    let found = pool.add(number, &options, file).map_err(|why| at_path(export).error(why))?;
    warn_once(export, &found, warnings);
    Ok(())
}

/// As [`add_backing`], and nothing is opened to stay: see [`open_for_check`].
///
/// # Errors
/// As [`add_backing`].
pub fn look_at_backing(plan: &DevicePlan, export: &ExportPlan, warnings: &mut Vec<String>) -> Result<(), ConfigError> {
    let Some(options) = backing_options(plan, export) else { return Ok(()) };
    let found = FileDevice::look(&options).map_err(|why| at_path(export).error(why))?;
    warn_once(export, &found, warnings);
    Ok(())
}

/// The backing of an export of a pool serves as many bytes as the export has.
///
/// # Errors
/// One sentence: it has fewer.
pub fn grow_backing(device: &dyn Device, export: &ExportPlan) -> Result<(), ConfigError> {
    let Some(pool) = pool(device) else { return Ok(()) };
    pool.grow(number_of(export.offset_bytes), export.size_bytes).map_err(|why| at_path(export).error(why))
}

/// No export has this backing of a pool any more.
pub fn remove_backing(device: &dyn Device, number: u16) {
    pool(device).map(|pool| pool.remove(number));
}

/// The device, if it is a pool.
pub fn pool(device: &dyn Device) -> Option<&FileDevice> {
    let device: &dyn Any = device;
    device.downcast_ref::<FileDevice>().filter(|device| device.is_pool())
}

/// Adds warnings about a backing that no other has: thousands of files may be on one drive.
fn warn_once(export: &ExportPlan, found: &[String], warnings: &mut Vec<String>) {
    let path = export.path.iter().map(|path| format!("{}: ", path.display())).collect::<String>();
    for warning in found {
        let rest = warning.strip_prefix(&path).unwrap_or(warning);
        if !warnings.iter().any(|before| before.ends_with(rest)) {
            warnings.push(at_path(export).error(warning).to_string());
        }
    }
}

/// Place of the key `path` of an export.
fn at_path(export: &ExportPlan) -> SourceLocation {
    export.place.inside("path")
}

fn backing_options(plan: &DevicePlan, export: &ExportPlan) -> Option<FileOptions> {
    let (Medium::Pool { direct, on_failure, .. }, Some(path)) = (&plan.config.medium, &export.path) else {
        return None;
    };
    Some(FileOptions {
        size_bytes: Some(export.size_bytes),
        direct: *direct,
        read_only: export.read_only,
        on_failure: *on_failure,
        ..FileOptions::new(path)
    })
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
