//! One measurement: an engine with so many workers, its load inside them, the device `null`.
//!
//! # What keeps the load out of the figures
//! Every worker has clients of its own, made on its thread, that share nothing with other workers' but a start that
//! each reads once: what one worker's client writes is on no line that another worker reads. With no scheduler to share
//! anything (`none`), two workers must do twice what one does; the report says whether they did.

use super::setting::Setting;
use crate::contender::Contender;
use crate::machine::process_cpu_ns;
use mqfq_blk::client::DeviceIndex;
use mqfq_blk::device::{Device, null::NullDevice};
use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::stage::StageLimits;
use mqfq_blk::{CostModel, FlowId, PolicyOptions, PriorityClass, Weight};
use mqfq_blkmq::{QueueLayout, multi_queue, prepare};
use mqfq_demo::load::{Load, Window};
use mqfq_demo::load_inside::{self, Run};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// As the paper's measurement of scalability (MQFQ section 4.2): small, for the most requests per second.
pub const REQUEST_BYTES: u32 = 1024;

/// Size of the device, which keeps nothing.
pub const DEVICE_BYTES: u64 = 1 << 30;

/// Time for caches and predictors before anything is counted, and for the last client to be attached.
const WARM_UP_MS: u64 = 30;

/// Options common to all measurements of a run.
#[derive(clap::Args, Clone, Copy, PartialEq, Debug)]
pub struct Fixed {
    /// T of mqfq and mqfq-serial.
    #[arg(long = "window-kib", value_name = "WINDOW_KIB", default_value = "256", value_parser = crate::options::kib())]
    pub window_bytes: u64,
    /// D for each worker; twice as many requests are kept in flight on each.
    #[arg(
        long = "depth",
        value_name = "DEPTH",
        default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub depth_per_worker: u16,
    /// Write in place of reading: the null device fills what is read with zeroes and does not look at what is
    /// written.
    #[arg(long)]
    pub writes: bool,
}

impl Fixed {
    /// Requests that each worker's clients keep in flight: twice its part of D, so that as much is staged as is on the
    /// device, and the policy has something to decide.
    pub fn in_flight_per_worker(&self) -> u32 {
        2 * u32::from(self.depth_per_worker)
    }

    /// Load of each of `flows_here` clients of a worker, on so many workers.
    pub fn load(&self, workers: usize, flows_here: u32) -> Load {
        let depth = (self.in_flight_per_worker() / flows_here).max(1) as u16;
        let write_percent = if self.writes { 100 } else { 0 };
        Load { write_percent, ..Load::random_reads(workers as u16, depth, REQUEST_BYTES) }
    }

    /// Commands of each worker on the device: never the limit, for a worker's clients have no more in flight.
    pub fn queue_depth(&self, flows_here: u32) -> u16 {
        (self.in_flight_per_worker() as u16).max(flows_here as u16)
    }
}

/// Results of one measurement.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Seen {
    /// All workers together.
    pub requests_per_s: f64,
    /// CPU time of the process, over all requests.
    pub cpu_ns_per_request: f64,
    /// Kicks between workers.
    pub kicks_per_request: f64,
    /// Times that picking ended because the lead was more than T ahead.
    pub throttled_per_request: f64,
    /// Times that picking ended because D were out.
    pub no_token_per_request: f64,
}

/// An engine on the null device.
pub struct Setup {
    /// Workers, each on a core of its own.
    pub workers: usize,
    /// Size of the device, which keeps nothing.
    pub device_bytes: u64,
    /// Its policy.
    pub policy: PolicyOptions,
    /// Commands of each of its queues.
    pub queue_depth: u16,
    /// Flows on it.
    pub flows: u32,
    /// Requests of a flow at once.
    pub flow_depth: u16,
    /// Size of each.
    pub request_bytes: u32,
    /// Its queues.
    pub queues: QueueLayout,
}

/// Starts it.
///
/// # Errors
/// One sentence.
pub fn engine(setup: Setup) -> Result<Engine, String> {
    let requests_max = u32::from(setup.flow_depth);
    let limits = StageLimits { requests_max, bytes_max: u64::from(requests_max) * u64::from(setup.request_bytes) };
    let flow = |number: u32| FlowOptions {
        name: format!("flow-{number}"),
        weight: Weight::DEFAULT,
        class: PriorityClass::default(),
        limits,
        goal: None,
    };
    let device: Arc<dyn Device> = Arc::new(NullDevice::new(setup.device_bytes));
    Engine::start(EngineOptions {
        workers: setup.workers,
        pin: true,
        spin_ns: 0,
        devices: vec![DeviceOptions {
            grouping: Default::default(),
            name: "null".into(),
            device: device.clone(),
            policy: setup.policy,
            prepare: Some(prepare(multi_queue(&device), setup.queues)),
            queue_depth: setup.queue_depth,
            flows: (0..setup.flows).map(flow).collect(),
            cost: CostModel::FLAT,
            path: PathOptions::default(),
        }],
    })
}

/// Measures once.
///
/// # Errors
/// One sentence.
pub fn measure(contender: Contender, setting: Setting, fixed: Fixed, measured_ms: u64) -> Result<Seen, String> {
    let workers = setting.workers;
    let flows_here = setting.flows_of_worker(0).count() as u32;
    let load = fixed.load(workers, flows_here);
    let depth = u32::from(fixed.depth_per_worker) * workers as u32;
    let engine = engine(Setup {
        workers,
        device_bytes: DEVICE_BYTES,
        policy: contender.options(depth, fixed.window_bytes, workers),
        queue_depth: fixed.queue_depth(flows_here),
        flows: setting.flows,
        flow_depth: load.depth,
        request_bytes: REQUEST_BYTES,
        queues: QueueLayout::default(),
    })?;
    let run = Run::new(DeviceIndex(0), Window::from_ms(WARM_UP_MS, measured_ms));
    let before_ns = process_cpu_ns();
    let (sender, counted) = mpsc::channel();
    for worker in 0..workers {
        for flow in setting.flows_of_worker(worker) {
            let load = Load { seed: u64::from(flow) + 1, ..load };
            let client = load_inside::client(&run, FlowId(flow), &load, worker as u16, sender.clone());
            engine.attach_to(worker, client);
        }
    }
    drop(sender);
    let mut requests_per_s = 0.0;
    for part in counted {
        let part = part?;
        if part.errors > 0 {
            return Err(format!("{} requests failed, which the null device never does", part.errors));
        }
        requests_per_s += part.requests_per_s();
    }
    let cpu_ns = process_cpu_ns() - before_ns;
    let stats = engine.stats();
    engine.drain(Duration::from_secs(5));
    let hctxs = &stats.devices[0].hctxs;
    let requests = hctxs.iter().map(|hctx| hctx.dispatched).sum::<u64>().max(1) as f64;
    Ok(Seen {
        requests_per_s,
        cpu_ns_per_request: cpu_ns as f64 / requests,
        kicks_per_request: hctxs.iter().map(|hctx| hctx.kicks).sum::<u64>() as f64 / requests,
        throttled_per_request: hctxs.iter().map(|hctx| hctx.throttled).sum::<u64>() as f64 / requests,
        no_token_per_request: hctxs.iter().map(|hctx| hctx.no_token).sum::<u64>() as f64 / requests,
    })
}
