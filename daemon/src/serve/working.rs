//! The engine is started, with the threads that tell of its devices.

use super::options::{Failure, Start};
use super::prepare::Prepared;
use crate::device_errors::{DeviceErrorCounts, DeviceErrorLog};
use crate::log_format::{About, Level};
use crate::watch::{self, Watch};
use mqfq_blk::device::Device;
use mqfq_blk::engine::Engine;
use std::sync::Arc;

/// The engine and what looks after its devices.
pub(super) struct Working {
    pub(super) watch: Watch,
    /// Devices and their names.
    pub(super) devices: Vec<(String, Arc<dyn Device>)>,
    pub(super) error_log: DeviceErrorLog,
    pub(super) errors: Arc<DeviceErrorCounts>,
    pub(super) engine: Arc<Engine>,
}

/// Starts the engine of the prepared devices.
pub(super) fn start_engine(start: Start<'_>, prepared: &Prepared) -> Result<Working, Failure> {
    let engine = Arc::new(Engine::start(prepared.engine_options())?);
    let errors = Arc::new(DeviceErrorCounts::new(prepared.device_names()));
    let error_log = DeviceErrorLog::start(errors.clone(), start.output.clone())?;
    let counted = errors.clone();
    engine.on_trouble(move |device, new| counted.add(device, new));
    start.go_on()?;
    let devices: Vec<_> = prepared.device_names().into_iter().zip(prepared.devices.iter().cloned()).collect();
    let notes = start.output.clone();
    let watch = watch::start(&devices, move |device, line| notes.say(Level::Warning, About::device(device), line))
        .map_err(|error| format!("cannot start a thread: {}", mqfq_report::plain(&error)))?;
    Ok(Working { watch, devices, error_log, errors, engine })
}
