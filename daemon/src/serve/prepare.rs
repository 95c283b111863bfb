//! Step before a socket is touched: the config is read and checked, devices are opened. Then the engine starts, with
//! the threads that tell of its devices.

use super::options::{Failure, GoOn, Start};
use crate::config::{Config, ConfigError, ControlConfig, DevicePlan, ExportPlan, KnownFiles, LiveCaps, Plan};
use crate::device_errors::{DeviceErrorCounts, DeviceErrorLog};
use crate::live::{self, Exports, Tenants};
use crate::log_format::{About, Level};
use crate::output::Output;
use crate::signals::raise_open_files_limit;
use crate::upgrade::Received;
use crate::watch::{self, Watch};
use crate::{control, devices, privilege, systemd};
use mqfq_blk::device::Device;
use mqfq_blk::device::file::number_of;
use mqfq_blk::engine::{Engine, EngineOptions};
use mqfq_blk::slots::Slot;
use mqfq_front::export::ExportTable;
use mqfq_front::front_end::ExportAddress;
use mqfq_front::socket::SocketAddress;
use mqfq_front::takeover::Inherited;
use std::path::Path;
use std::sync::Arc;

/// How devices and backings are opened.
pub(super) enum Opening<'a> {
    /// To be served, with files of another process.
    Serve(&'a mut Received),
    /// To be checked.
    Check,
}

impl Opening<'_> {
    fn device(&mut self, plan: &DevicePlan, warnings: &mut Vec<String>) -> Result<Arc<dyn Device>, ConfigError> {
        match self {
            Opening::Serve(received) => devices::open_with(plan, received.file(&plan.config.name), warnings),
            Opening::Check => devices::open_for_check(plan, warnings),
        }
    }

    fn backing(
        &mut self,
        device: &dyn Device,
        plan: &DevicePlan,
        export: &ExportPlan,
        warnings: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        let (Opening::Serve(received), Some(path)) = (self, &export.path) else {
            return devices::look_at_backing(plan, export, warnings);
        };
        let file = received.backing(&plan.config.name, number_of(export.offset_bytes), path);
        devices::add_backing(device, plan, export, file, warnings)
    }
}

/// All that is made without touching a socket.
pub(super) struct Prepared {
    pub(super) text: String,
    pub(super) control: Option<ControlConfig>,
    pub(super) plan: Plan,
    pub(super) known_files: KnownFiles,
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
    let mut read = Read::config(&options.config, &go_on)?;
    let upgrade = read.plan.server.upgrade.as_ref();
    *received = Received::new(options.replace, options.discard_unsaved, upgrade, &mut passed)?;
    let activated = Arc::new(Inherited::new(passed));
    read.plan.keep_numbers(&received.numbers());
    let prepared = Prepared::new(read, Opening::Serve(received), output, &go_on)?;
    prepared.could_serve(received, &activated)?;
    Ok((prepared, activated))
}

/// A config that was read and checked.
pub(super) struct Read {
    pub(super) text: String,
    pub(super) control: Option<ControlConfig>,
    pub(super) plan: Plan,
    pub(super) known_files: KnownFiles,
}

impl Read {
    pub(super) fn config(path: &Path, go_on: GoOn<'_>) -> Result<Read, Failure> {
        go_on()?;
        let text = Config::read_text(path)?;
        let config = Config::parse(&path.display().to_string(), &text).map_err(|error| error.to_string())?;
        go_on()?;
        let control = config.control.clone();
        let known_files = KnownFiles::default();
        let plan = config.check(&known_files).map_err(|error| error.to_string())?;
        Ok(Read { text, control, plan, known_files })
    }
}

impl Prepared {
    pub(super) fn new(
        read: Read,
        mut open: Opening<'_>,
        output: &Output,
        go_on: GoOn<'_>,
    ) -> Result<Prepared, Failure> {
        let Read { text, control, mut plan, known_files } = read;
        let mut devices = Vec::new();
        for device in plan.devices.values() {
            go_on()?;
            devices.push(open.device(device, &mut plan.warnings).map_err(|error| error.to_string())?);
        }
        for export in plan.exports.values().filter(|export| export.path.is_some()) {
            go_on()?;
            let (device, at) = (&*devices[export.device.place()], &plan.devices[export.device]);
            open.backing(device, at, export, &mut plan.warnings).map_err(|error| error.to_string())?;
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
        Ok(Prepared { text, control, plan, known_files, devices, tables, workers, tenants, exports, caps })
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

/// Does the steps of `serve` before it listens, and prints what it would serve.
///
/// # Errors
/// One sentence, the same as `serve` would give, or that stdout cannot be written.
pub fn check(config: &Path, json: bool) -> Result<(), String> {
    let output = Output::of_command(json)?;
    let result = check_and_say(config, &output);
    output.finish(None);
    match result {
        Ok(()) => output.check_reports(),
        Err(Failure::Sentence(sentence)) => Err(sentence),
        Err(Failure::Interrupted) => unreachable!("nothing interrupts a check"),
    }
}

fn check_and_say(config: &Path, output: &Output) -> Result<(), Failure> {
    let read = Read::config(config, &|| Ok(()))?;
    let prepared = Prepared::new(read, Opening::Check, output, &|| Ok(()))?;
    prepared.could_serve(&Received::default(), &Inherited::default())?;
    let addresses: Vec<String> = prepared.tables.iter().map(|(address, _)| address.to_string()).collect();
    let settled = Engine::check(&prepared.engine_options())?;
    prepared.say_settled(&settled, output);
    prepared.say(false, &addresses, &settled, None, output);
    Ok(())
}

impl Prepared {
    /// Checks that the machine lets it serve: the one list of refusals of `serve` and `check` once the config is right.
    /// Nothing is made, and a server that runs is not disturbed. Sockets that came from another server (`received`) or
    /// from systemd (`activated`) are there already.
    pub(super) fn could_serve(&self, received: &Received, activated: &Inherited) -> Result<(), String> {
        privilege::look_up(&self.plan.server.privilege)?;
        self.control.as_ref().map(control::token_of).transpose()?;
        let control = self.control.iter().flat_map(|control| &control.listen);
        let mut own = control.chain(&self.plan.server.upgrade).filter(|address| !received.has_socket(address));
        own.try_for_each(SocketAddress::could_listen)?;
        let is_activated = |claim: Option<String>| claim.is_some_and(|claim| activated.has(&claim));
        let is_here = |address: &ExportAddress| received.listens_at(address) || is_activated(address.address().claim());
        let mut exports = self.tables.iter().map(|(address, _)| address).filter(|address| !is_here(address));
        exports.try_for_each(|address| address.address().could_listen())
    }
}

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
    let weak = Arc::downgrade(&engine);
    let hanging = move || {
        let ailing = weak.upgrade().map(|engine| engine.ailing()).unwrap_or_default();
        let hanging = ailing.into_iter().filter(|(_, part)| part.hangs_since_ns.is_some());
        hanging.map(|(device, part)| ((device, part.part), part.pool_below)).collect()
    };
    let error_log = DeviceErrorLog::start(errors.clone(), start.output.clone(), hanging)?;
    let counted = errors.clone();
    engine.on_trouble(move |device, new| counted.add(device, new));
    start.go_on()?;
    let devices: Vec<_> = prepared.device_names().into_iter().zip(prepared.devices.iter().cloned()).collect();
    let notes = start.output.clone();
    let watch = watch::start(&devices, move |device, line| notes.say(Level::Warning, About::device(device), line))
        .map_err(|error| format!("cannot start a thread: {}", mqfq_report::plain(&error)))?;
    Ok(Working { watch, devices, error_log, errors, engine })
}
