//! An engine with tenants attached, on which any of them can be run, alone or together.
//!
//! # Shape
//! ```text
//!   Nbd:     client thread per tenant ══ unix sockets ══ front end ─┐
//!                                                                   ├─ workers ─ policy ─ device
//!   Inside:  clients that live on the workers ──────────────────────┘
//! ```
//! Both ways run the same engine with the same options: `Nbd` shows what tenants get, `Inside` shows what the scheduler
//! decides, without the cost and noise of sockets.

use crate::load::{Counted, Load, Window};
use crate::load_inside;
use crate::load_nbd::NbdTenant;
use crate::scratch::Scratch;
use mqfq_blk::client::DeviceIndex;
use mqfq_blk::device::Device;
use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, EngineStats, FlowOptions};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::slots::Slot;
use mqfq_blk::split::Split;
use mqfq_blk::stage::StageLimits;
use mqfq_blk::{CostModel, FlowId, OwnOptions, PolicyKind, PolicyOptions, PriorityClass, VSpan, WINDOW_LEAST, Weight};
use mqfq_front::export::{BlockSizes, Export, ExportId, ExportState, ExportTable, TenantId};
use mqfq_front::memory::TenantMemory;
use mqfq_front::nbd::{self, NbdOptions};
use mqfq_front::socket::SocketAddress;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Time for clients to finish once the engine drains; they have nothing in flight by then.
const DRAIN_GRACE: Duration = Duration::from_secs(5);

/// A run whose requests have not ended at the latest time.
pub const HANGS: &str = "requests had not ended when the time was over: the device hangs, or answers too slowly";

/// A tenant of a scenario.
#[derive(Clone, PartialEq, Debug)]
pub struct Tenant {
    /// Its name, for reports and as the name of its export.
    pub name: &'static str,
    /// Weight of the tenant.
    pub weight: Weight,
    /// Load of the tenant.
    pub load: Load,
}

/// How the load reaches the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Clients inside the workers.
    Inside,
    /// Real NBD over unix sockets.
    Nbd,
}

impl Transport {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Transport::Inside => "inside",
            Transport::Nbd => "nbd",
        }
    }
}

/// Options of a [`Rig`].
pub struct RigOptions<'a> {
    /// The device that the tenants share.
    pub device: Arc<dyn Device>,
    /// Scheduling policy.
    pub policy: PolicyOptions,
    /// Commands on each worker's device queue at once.
    pub queue_depth: u16,
    /// The tenants.
    pub tenants: &'a [Tenant],
    /// Path of their load to the engine.
    pub transport: Transport,
    /// Workers of the engine.
    pub workers: usize,
    /// Bind each worker to a core.
    pub pin: bool,
    /// When [`Rig::run`] ends at the latest, with load inside the workers: a drive may hang. `None`: it waits.
    pub latest: Option<Instant>,
}

enum Attached {
    Inside,
    Nbd { tenants: Vec<NbdTenant>, _scratch: Scratch },
}

/// An engine with tenants attached.
pub struct Rig {
    engine: Engine,
    tenants: Vec<Tenant>,
    attached: Attached,
    latest: Option<Instant>,
}

/// Workers that suit this machine: one per core if the clients live on them; if clients have threads of their own, half
/// the cores, because a worker that waits for a core holds global virtual time back. No more than tenants' queues make
/// use of.
pub fn workers(transport: Transport) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match transport {
        Transport::Inside => cores.clamp(1, 4),
        Transport::Nbd => (cores / 2).clamp(1, 4),
    }
}

/// Options that `mqfq serve` derives on so many workers for a device whose config only has this policy: D and T are
/// found, where the policy can change them.
pub fn by_default(kind: PolicyKind, workers: usize) -> PolicyOptions {
    let depth_auto = kind.tunes_depth();
    let options = PolicyOptions {
        depth_auto,
        token_unit_bytes: depth_auto.then_some(PolicyOptions::AUTO_TOKEN_UNIT_BYTES),
        window_least: kind.has_window().then_some(WINDOW_LEAST),
        own: OwnOptions::shipped(kind),
        ..PolicyOptions::new(kind)
    };
    as_shipped(options, workers)
}

/// Treatment of requests besides scheduling: where D is found, so are parts.
pub fn path(policy: &PolicyOptions) -> PathOptions {
    let split = if policy.depth_auto { Split::Auto } else { Split::Off };
    PathOptions { split, ..PathOptions::default() }
}

/// `policy` in the form that `mqfq serve` gives it on so many workers if its config does not name one.
pub const fn as_shipped(policy: PolicyOptions, workers: usize) -> PolicyOptions {
    if policy.kind.has_window() { policy.relaxed(workers) } else { policy }
}

impl Rig {
    /// Starts the engine and attaches the tenants.
    ///
    /// # Errors
    /// One sentence.
    pub fn start(options: RigOptions<'_>) -> Result<Rig, String> {
        let flow = |tenant: &Tenant| FlowOptions {
            name: tenant.name.to_string(),
            weight: tenant.weight,
            class: PriorityClass::default(),
            limits: stage_limits(&tenant.load),
            goal: None,
        };
        let engine = Engine::start(EngineOptions {
            workers: options.workers,
            pin: options.pin,
            spin_ns: 0,
            devices: vec![DeviceOptions {
                grouping: Default::default(),
                name: "device".into(),
                device: options.device,
                policy: options.policy,
                prepare: None,
                queue_depth: options.queue_depth,
                flows: options.tenants.iter().map(flow).collect(),
                cost: CostModel::FLAT,
                path: path(&options.policy),
            }],
        })?;
        let attached = match options.transport {
            Transport::Inside => Attached::Inside,
            Transport::Nbd => attach_nbd(&engine, options.tenants)?,
        };
        Ok(Rig { engine, tenants: options.tenants.to_vec(), attached, latest: options.latest })
    }

    /// Runs the tenants named by index in `who`, together, for `window`. The counts come in the order of `who`.
    ///
    /// # Errors
    /// One sentence: a request failed, a connection broke, or requests had not ended at the latest time. Then they are
    /// still under way, and [`Rig::stop`] would wait for them.
    pub fn run(&mut self, who: &[usize], window: Window) -> Result<Vec<Counted>, String> {
        let counted = match &mut self.attached {
            Attached::Inside => run_inside(&self.engine, &self.tenants, who, window, self.latest),
            Attached::Nbd { tenants, .. } => run_nbd(tenants, who, window),
        }?;
        for (&index, counted) in who.iter().zip(&counted) {
            if counted.errors > 0 {
                return Err(format!("{} requests of {} failed", counted.errors, self.tenants[index].name));
            }
        }
        Ok(counted)
    }

    /// The engine's counters so far.
    pub fn stats(&self) -> EngineStats {
        self.engine.stats()
    }

    /// `policy`, which the engine runs, with the D and T that are in force if they are found, and what follows them.
    pub fn in_force(&self, policy: &PolicyOptions) -> PolicyOptions {
        let Some(found) = self.stats().devices.first().and_then(|device| device.in_force) else { return *policy };
        let depth = found.depth.map_or(policy.depth, |state| state.chosen);
        let window = found.window.map_or(policy.window, |state| VSpan::from_bytes(state.window_bytes));
        as_shipped(PolicyOptions { depth, window, ..*policy }, self.engine.workers())
    }

    /// Leaves the engine running, with requests that never end. Its memory is lost.
    pub fn abandon(self) {
        std::mem::forget(self);
    }

    /// Closes the connections and ends the engine.
    pub fn stop(self) {
        if let Attached::Nbd { tenants, _scratch } = self.attached {
            tenants.into_iter().for_each(NbdTenant::detach);
        }
        self.engine.drain(DRAIN_GRACE);
    }
}

/// Room for everything that a tenant can have in flight, even if all of its connections land on one worker: back-
/// pressure would hide requests from the scheduler, and this is not the place to measure it.
fn stage_limits(load: &Load) -> StageLimits {
    let requests = u32::from(load.connections) * u32::from(load.depth);
    StageLimits { requests_max: requests, bytes_max: u64::from(requests) * u64::from(load.request_bytes) }
}

fn attach_nbd(engine: &Engine, tenants: &[Tenant]) -> Result<Attached, String> {
    let scratch = Scratch::new()?;
    let socket = scratch.path().join("nbd");
    let info = engine.device(0);
    let export = |(index, tenant): (usize, &Tenant)| Export {
        name: tenant.name.into(),
        description: String::new(),
        device: DeviceIndex(0),
        flow: FlowId(index as u32),
        id: ExportId(Slot::first(index as u32)),
        tenant: TenantId(Slot::first(index as u32)),
        state: ExportState::default(),
        // Tenants share the bytes, too: which of them meet on a die must not depend on their exports' places.
        offset_bytes: 0,
        size_bytes: info.size_bytes,
        read_only: false,
        block: BlockSizes::of_device(&info),
        memory: TenantMemory::unbounded(),
        caps: mqfq_blk::cap::Caps::none(),
    };
    let exports = ExportTable::new(tenants.iter().enumerate().map(export))?;
    let listener = nbd::listen(&SocketAddress::Unix(socket.clone()), Arc::new(exports), NbdOptions::default())?;
    engine.attach(listener.into_client());
    let tenants: Result<_, String> =
        tenants.iter().map(|tenant| NbdTenant::attach(&socket, tenant.name, &tenant.load)).collect();
    Ok(Attached::Nbd { tenants: tenants?, _scratch: scratch })
}

fn run_nbd(tenants: &mut [NbdTenant], who: &[usize], window: Window) -> Result<Vec<Counted>, String> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let running: Vec<_> = tenants
            .iter_mut()
            .enumerate()
            .filter(|(index, _)| who.contains(index))
            .map(|(index, tenant)| (index, scope.spawn(move || tenant.run(start, window))))
            .collect();
        let mut counted = Vec::new();
        for (index, thread) in running {
            counted.push((index, thread.join().map_err(|_| "a client thread panicked".to_string())??));
        }
        Ok(who.iter().filter_map(|index| counted.iter().find(|(at, _)| at == index).map(|(_, c)| c.clone())).collect())
    })
}

fn run_inside(
    engine: &Engine,
    tenants: &[Tenant],
    who: &[usize],
    window: Window,
    latest: Option<Instant>,
) -> Result<Vec<Counted>, String> {
    let run = load_inside::Run::new(DeviceIndex(0), window);
    // Connections of all tenants take the workers in turn, each tenant's from the first worker on: two tenants with one
    // queue each then meet in one hctx, and one with four queues is on all.
    let attach = |&index: &usize| {
        let (sender, counted) = mpsc::channel();
        let tenant = &tenants[index];
        for number in 0..tenant.load.connections {
            let client = load_inside::client(&run, FlowId(index as u32), &tenant.load, number, sender.clone());
            engine.attach_to(usize::from(number) % engine.workers(), client);
        }
        counted
    };
    let channels: Vec<_> = who.iter().map(attach).collect();
    let gather = |channel: mpsc::Receiver<Result<Counted, String>>| {
        let mut sum = Counted::new(window);
        loop {
            let part = match latest {
                None => channel.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(latest) => channel.recv_timeout(latest.saturating_duration_since(Instant::now())),
            };
            match part {
                Ok(part) => sum.merge(&part?),
                Err(RecvTimeoutError::Disconnected) => return Ok(sum),
                Err(RecvTimeoutError::Timeout) => return Err(HANGS.into()),
            }
        }
    };
    channels.into_iter().map(gather).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::device::null::NullDevice;

    #[test]
    fn a_run_that_has_not_ended_at_the_latest_time_is_given_up() {
        let tenant = Tenant { name: "a", weight: Weight::DEFAULT, load: Load::random_reads(1, 1, 4096) };
        let mut rig = Rig::start(RigOptions {
            device: Arc::new(NullDevice::new(1 << 20)),
            policy: PolicyOptions::new(PolicyKind::None),
            queue_depth: 16,
            tenants: &[tenant],
            transport: Transport::Inside,
            workers: 1,
            pin: false,
            latest: Some(Instant::now()),
        })
        .unwrap();
        // No worker counts before an hour is over.
        assert_eq!(rig.run(&[0], Window::from_ms(0, 3_600_000)).unwrap_err(), HANGS);
        rig.stop();
    }
}
