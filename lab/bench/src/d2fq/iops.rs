//! Requests per second by the clock: each stack on the null device and on the software drive, one and two workers,
//! rounds interleaved.
//!
//! The device `null` completes at once, so that what differs is the path; the software drive has class queues, and its
//! controller is shared by the workers under a lock, as its text says. Both are opened without asking whether weighted
//! round robin has an effect: what is measured is cost, not fairness. The load lives inside the workers, one tenant on
//! each, and keeps [`DEPTH`] reads in flight.

use super::cell::Stack;
use super::count::PRESET;
use crate::rounds::{Rounds, interleaved, ratio};
use mqfq_blk::client::DeviceIndex;
use mqfq_blk::device::nvme::{NvmeDevice, Preset};
use mqfq_blk::device::{Device, DeviceInfo, DeviceQueue, QueueOptions};
use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions};
use mqfq_blk::path::PathOptions;
use mqfq_blk::queues::QueueLayout;
use mqfq_blk::stage::StageLimits;
use mqfq_blk::{CostModel, FlowId, PriorityClass, Weight};
use mqfq_demo::drive;
use mqfq_demo::load::{Load, Window};
use mqfq_demo::load_inside::{self, Run};
use mqfq_report::progress::Progress;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Reads in flight on each worker.
pub const DEPTH: u16 = 128;

/// Of each read: small, because the null device fills what is read with zeroes, which is no part of the path.
pub const REQUEST_BYTES: u32 = 512;

/// Time for caches and predictors before anything is counted, and for the last client to be attached.
const WARM_UP_MS: u64 = 30;

/// The software drive is polled, as `mqfq serve` does.
const SPIN_NS: u64 = 50_000;

/// Size of the devices.
const DEVICE_BYTES: u64 = 1 << 30;

/// One stack on one device with so many workers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct IopsRow {
    /// `null` or the software drive's preset.
    pub device: String,
    /// Workers, each bound to a core of its own where there are as many.
    pub workers: usize,
    /// `none`, `d2fq`, `ll-d2fq` or `mqfq`.
    pub stack: String,
    /// Completed per second, all workers together: median of the rounds.
    pub requests_per_s: f64,
    /// Smallest of the rounds.
    pub smallest: f64,
    /// Largest of the rounds.
    pub largest: f64,
    /// Over `none` in the same round: median of the ratios.
    pub over_none: f64,
}

/// The devices that are measured.
const DEVICES: [&str; 2] = ["null", PRESET];

/// Measures, in `rounds` rounds of `measured_ms` for each case.
///
/// # Errors
/// One sentence.
pub fn measure(rounds: u32, measured_ms: u64) -> Result<Vec<IopsRow>, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers: Vec<usize> = [1, 2].into_iter().filter(|&workers| workers <= cores).collect();
    let mut cases: Vec<(&str, usize, Stack)> = Vec::new();
    for device in DEVICES {
        for &workers in &workers {
            cases.extend(Stack::ALL.map(|stack| (device, workers, stack)));
        }
    }
    let count = cases.len();
    let mut progress = Progress::new(rounds as usize * count);
    let name = |at: usize| {
        let (device, workers, stack) = cases[at];
        format!("{device}, {workers} workers, {}", stack.name())
    };
    let seen = interleaved(rounds, (count, count), &mut progress, name, |at| {
        let (device, workers, stack) = cases[at];
        once(device, workers, stack, measured_ms)
    })?;
    progress.finish();
    let rows = cases.iter().zip(&seen).map(|(&(device, workers, stack), seen_here)| {
        let none = cases.iter().position(|case| *case == (device, workers, Stack::None));
        let rates = Rounds::of(seen_here.iter().copied());
        IopsRow {
            device: device.into(),
            workers,
            stack: stack.name().into(),
            requests_per_s: rates.median(),
            smallest: rates.smallest(),
            largest: rates.largest(),
            over_none: ratio(seen_here, &seen[none.expect("none is measured everywhere")], |rate| *rate),
        }
    });
    Ok(rows.collect())
}

fn device(name: &str) -> Result<Arc<dyn Device>, String> {
    if name == "null" {
        return Ok(Arc::new(Classed(drive::null_device(DEVICE_BYTES))));
    }
    let preset = Preset::by_name(name).map_err(|unknown| unknown.to_string())?;
    Ok(Arc::new(NvmeDevice::with_preset(preset, DEVICE_BYTES, 1)?))
}

/// A device that completes at once, with class queues: whatever class a command is of, it ends.
struct Classed(Arc<dyn Device>);

impl Device for Classed {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        self.0.open_queue(options)
    }

    fn open_shared_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        self.0.open_shared_queue(options)
    }

    fn has_class_queues(&self) -> bool {
        true
    }

    fn open_class_queues(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        self.0.open_shared_queue(QueueOptions { depth: options.depth * 3, ..options })
    }
}

/// One stack on one device, once.
fn once(name: &str, workers: usize, stack: Stack, measured_ms: u64) -> Result<f64, String> {
    let flow = |number: usize| FlowOptions {
        name: format!("tenant-{number}"),
        weight: Weight::DEFAULT,
        class: PriorityClass::default(),
        limits: StageLimits { requests_max: u32::from(DEPTH), bytes_max: u64::from(DEPTH) * u64::from(REQUEST_BYTES) },
    };
    let engine = Engine::start_without_probe(EngineOptions {
        workers,
        pin: true,
        spin_ns: if name == "null" { 0 } else { SPIN_NS },
        devices: vec![DeviceOptions {
            grouping: Default::default(),
            name: name.into(),
            device: device(name)?,
            policy: stack.policy(workers),
            fallback: None,
            queue_depth: DEPTH,
            flows: (0..workers).map(flow).collect(),
            cost: CostModel::FLAT,
            path: PathOptions::default(),
            queues: QueueLayout { layer: stack.layer(), ..QueueLayout::default() },
        }],
    })?;
    let run = Run::new(DeviceIndex(0), Window::from_ms(WARM_UP_MS, measured_ms));
    let (sender, counted) = mpsc::channel();
    for worker in 0..workers {
        let load = Load { seed: worker as u64 + 1, ..Load::random_reads(workers as u16, DEPTH, REQUEST_BYTES) };
        let client = load_inside::client(&run, FlowId(worker as u32), &load, worker as u16, sender.clone());
        engine.attach_to(worker, client);
    }
    drop(sender);
    let mut requests_per_s = 0.0;
    for part in counted {
        let part = part?;
        if part.errors > 0 {
            return Err(format!("{} requests failed, which this device never does", part.errors));
        }
        requests_per_s += part.requests_per_s();
    }
    engine.drain(Duration::from_secs(5));
    Ok(requests_per_s)
}
