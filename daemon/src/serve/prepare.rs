//! Step before a socket is touched: the config is read and checked, devices are opened.

use super::options::{Failure, GoOn, Start};
use crate::config::{Config, ConfigError, ControlConfig, DevicePlan, LiveCaps, Plan, RealFiles};
use crate::live::{self, Exports, Tenants};
use crate::output::Output;
use crate::signals::raise_open_files_limit;
use crate::upgrade::Received;
use crate::{devices, systemd};
use mqfq_blk::device::Device;
use mqfq_blk::engine::EngineOptions;
use mqfq_blk::slots::Slot;
use mqfq_front::export::ExportTable;
use mqfq_front::front_end::ExportAddress;
use mqfq_front::inherited::Inherited;
use std::path::Path;
use std::sync::Arc;

/// How a device is opened: as [`devices::open`] or [`devices::open_for_check`] do.
pub(super) type Open<'a> = &'a mut dyn FnMut(&DevicePlan, &mut Vec<String>) -> Result<Arc<dyn Device>, ConfigError>;

/// All that is made without touching a socket.
pub(super) struct Prepared {
    pub(super) text: String,
    pub(super) control: Option<ControlConfig>,
    pub(super) plan: Plan,
    pub(super) devices: Vec<Arc<dyn Device>>,
    pub(super) tables: Vec<(ExportAddress, Arc<ExportTable>)>,
    pub(super) workers: usize,
    pub(super) tenants: Tenants,
    pub(super) exports: Exports,
    pub(super) caps: LiveCaps,
}

/// Reads the config, takes what another server or systemd hands over, opens the devices, and checks that the machine
/// lets it serve.
pub(super) fn prepare(start: Start<'_>, received: &mut Received) -> Result<(Prepared, Arc<Inherited>), Failure> {
    let Start { options, output, .. } = start;
    let mut passed = systemd::sockets()?;
    raise_open_files_limit();
    let go_on = || start.go_on();
    let read = Read::config(&options.config, &go_on)?;
    let upgrade = read.plan.server.upgrade.as_ref();
    *received = Received::new(options.replace, options.discard_unsaved, upgrade, &mut passed)?;
    let activated = Arc::new(Inherited::new(passed));
    let open: Open<'_> = &mut |plan, warnings| {
        let file = received.file(&plan.config.name);
        devices::open_with(plan, file, warnings)
    };
    let prepared = Prepared::new(read, open, output, &go_on)?;
    prepared.could_serve(received, &activated)?;
    Ok((prepared, activated))
}

/// A config that was read and checked.
pub(super) struct Read {
    pub(super) text: String,
    pub(super) control: Option<ControlConfig>,
    pub(super) plan: Plan,
}

impl Read {
    pub(super) fn config(path: &Path, go_on: GoOn<'_>) -> Result<Read, Failure> {
        go_on()?;
        let text = Config::read_text(path)?;
        let config = Config::parse(&path.display().to_string(), &text).map_err(|error| error.to_string())?;
        go_on()?;
        let control = config.control.clone();
        let plan = config.check(&RealFiles).map_err(|error| error.to_string())?;
        Ok(Read { text, control, plan })
    }
}

impl Prepared {
    pub(super) fn new(read: Read, open: Open<'_>, output: &Output, go_on: GoOn<'_>) -> Result<Prepared, Failure> {
        let Read { text, control, mut plan } = read;
        let mut devices = Vec::new();
        for device in plan.devices.values() {
            go_on()?;
            devices.push(open(device, &mut plan.warnings).map_err(|error| error.to_string())?);
        }
        plan.warnings.iter().for_each(|warning| output.note(warning));
        let (tenants, caps) = (Tenants::new(&plan)?, LiveCaps::new(&plan));
        let device = |slot: Slot| devices[slot.place()].clone();
        let exports = live::exports(&plan, &tenants, &caps, device)?;
        let mut tables = Vec::new();
        for (address, slots) in &plan.listeners {
            go_on()?;
            tables.push((address.clone(), Arc::new(ExportTable::new(live::offered(slots, &exports))?)));
        }
        let workers = match plan.server.workers {
            Some(workers) => workers,
            None => std::thread::available_parallelism()
                .map_err(|error| format!("cannot count the CPUs ({}), set server.workers", mqfq_report::plain(&error)))?
                .get(),
        };
        Ok(Prepared { text, control, plan, devices, tables, workers, tenants, exports, caps })
    }

    pub(super) fn device_names(&self) -> Vec<String> {
        self.plan.devices.values().map(|plan| plan.config.name.clone()).collect()
    }

    pub(super) fn engine_options(&self) -> EngineOptions {
        let device =
            |(plan, device): (&DevicePlan, &Arc<dyn Device>)| live::device_options(plan, device.clone(), self.workers);
        EngineOptions {
            workers: self.workers,
            pin: self.plan.server.pin,
            spin_ns: self.plan.server.spin_us * 1000,
            devices: self.plan.devices.values().zip(&self.devices).map(device).collect(),
        }
    }
}
