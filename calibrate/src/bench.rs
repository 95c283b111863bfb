//! Two ways to run a load on the device: the engine on its threads, or a worker's loop in virtual time.

use crate::virtual_time::{self, VirtualHost};
use mqfq_blk::device::model::{ModelDevice, presets::Preset};
use mqfq_blk::device::{Device, DeviceInfo};
use mqfq_blk::hctx::HwCtx;
use mqfq_blk::{AnyPolicy, FlowId, PolicyKind, PolicyOptions, Weight};
use mqfq_demo::cores::cpu_s;
use mqfq_demo::harness::{Rig, RigOptions, Tenant, Transport};
use mqfq_demo::load::{Counted, Load, Window};
use mqfq_demo::load_inside::{self, Run};
use std::sync::{Arc, mpsc};

/// Commands on a worker's device queue at once: more than any load here has in flight.
pub const QUEUE_DEPTH: u16 = 1024;

/// Size of a modelled drive, bytes. Its times do not depend on where a request lies; what is written takes memory.
pub const MODEL_BYTES: u64 = 64 << 20;

/// Result of a load.
pub struct Ran {
    /// Counts of the load.
    pub counted: Counted,
    /// Part of their time that the cores which carried it worked, 0 to 1. `None`: they cost nothing.
    pub core_share: Option<f64>,
}

/// A device that can be loaded.
pub trait Bench {
    /// Description of the device.
    fn info(&self) -> DeviceInfo;

    /// Most workers that carry a load.
    fn workers(&self) -> u16;

    /// Runs `load`, alone, for `window`.
    ///
    /// # Errors
    /// One sentence: the device failed a request, or the engine could not start.
    fn run(&mut self, load: &Load, window: Window) -> Result<Ran, String>;
}

/// A device in wall time, driven by an engine without a scheduler.
pub struct WallBench {
    device: Arc<dyn Device>,
    workers: u16,
}

impl WallBench {
    /// `device`, driven by up to `workers` workers, at least 1.
    pub fn new(device: Arc<dyn Device>, workers: u16) -> WallBench {
        WallBench { device, workers }
    }
}

impl Bench for WallBench {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn workers(&self) -> u16 {
        self.workers
    }

    fn run(&mut self, load: &Load, window: Window) -> Result<Ran, String> {
        let mut rig = Rig::start(RigOptions {
            device: self.device.clone(),
            policy: PolicyOptions::new(PolicyKind::None),
            queue_depth: QUEUE_DEPTH,
            tenants: &[Tenant { name: "the calibration", weight: Weight::DEFAULT, load: *load }],
            transport: Transport::Inside,
            workers: load.connections.into(),
            pin: false,
            latest: None,
        })?;
        let begun_s = cpu_s();
        let counted = rig.run(&[0], window)?.remove(0);
        let worked_s = cpu_s() - begun_s;
        rig.stop();
        let cores_s = window.end_ns as f64 * 1e-9 * f64::from(load.connections);
        Ok(Ran { counted, core_share: Some((worked_s / cores_s).min(1.0)) })
    }
}

/// A modelled drive in virtual time, driven by one worker's loop, whose core costs nothing.
pub struct ModelBench {
    info: DeviceInfo,
    /// Between two loads. `None` only while one runs.
    idle: Option<(VirtualHost, HwCtx<AnyPolicy>)>,
}

impl ModelBench {
    /// The drive `preset`; `seed` is that of its random numbers.
    ///
    /// # Errors
    /// One sentence: a size that the drive cannot have.
    pub fn new(preset: Preset, seed: u64) -> Result<ModelBench, String> {
        let device = ModelDevice::new(preset, MODEL_BYTES, seed)?;
        let context = virtual_time::context(&device, QUEUE_DEPTH)?;
        Ok(ModelBench { info: device.info(), idle: Some((VirtualHost::default(), context)) })
    }
}

impl Bench for ModelBench {
    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn workers(&self) -> u16 {
        1
    }

    fn run(&mut self, load: &Load, window: Window) -> Result<Ran, String> {
        let (host, context) = self.idle.take().ok_or("a load before this one failed")?;
        let run = Run::new(virtual_time::DEVICE, window);
        let (sender, receiver) = mpsc::channel();
        let clients =
            (0..load.connections).map(|number| load_inside::client(&run, FlowId(0), load, number, sender.clone())());
        self.idle = Some(virtual_time::work(host, context, self.info, clients));
        drop(sender);
        let mut counted = Counted::new(window);
        for part in receiver {
            counted.merge(&part?);
        }
        match counted.errors {
            0 => Ok(Ran { counted, core_share: None }),
            errors => Err(format!("{errors} requests failed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_demo::drive::DEMO_DRIVE;

    #[test]
    fn a_commit_alone_on_the_demos_drive_takes_its_three_writes_and_two_flushes() {
        // A write of 8 KiB: the later of two dies of 154 us +- 10%, then 28.2 + 31.5 us on the link. A flush: 154 us
        // and 5.5. So 3 x 219 + 2 x 160 = 977 us.
        let mut bench = ModelBench::new(DEMO_DRIVE, 1).unwrap();
        let counted = bench.run(&Load::commits(8192), Window::from_ms(0, 1_000)).unwrap().counted;
        let mean_ns = counted.total_ns.mean();
        assert!((950_000.0..1_000_000.0).contains(&mean_ns), "{mean_ns}");
        assert_eq!(counted.bytes, counted.requests * 3 * 8192);
    }
}
