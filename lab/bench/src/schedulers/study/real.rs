//! The study on a real file or block device: our `file` device under each policy, by the clock, and the energy of an
//! I/O.

use super::report::Row;
use crate::machine::process_cpu_ns;
use crate::schedulers::workload::{self, Cell, Workload};
use mqfq_blk::Weight;
use mqfq_blk::device::Device;
use mqfq_blk::device::file::{FileDevice, FileOptions};
use mqfq_demo::harness::{Rig, RigOptions, Tenant, Transport};
use mqfq_demo::load::{Counted, Window};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// Warm-up of each measurement: 1/this of its length.
const WARM_UP_SHARE: u64 = 5;

/// Opens it. A block device for workloads that write must have no other user: if mounted, or part of an array, it is
/// refused.
///
/// # Errors
/// One sentence.
pub fn open(path: &Path, write: bool) -> Result<Arc<dyn Device>, String> {
    let metadata = std::fs::metadata(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if write && metadata.file_type().is_block_device() {
        let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
        std::fs::OpenOptions::new()
            .write(true)
            .custom_flags(exclusive)
            .open(path)
            .map_err(|error| format!("{} is not written, somebody may be using it: {error}", path.display()))?;
    }
    Ok(Arc::new(FileDevice::open(&FileOptions::new(path))?))
}

/// One cell, for `measured_ms`.
///
/// # Errors
/// One sentence.
pub fn measure(device: &Arc<dyn Device>, name: &str, cell: &Cell, measured_ms: u64) -> Result<Row, String> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = cell.workers().min(cpus);
    let tenants: Vec<Tenant> = cell
        .workload
        .tenants(cell.depth)
        .into_iter()
        .map(|tenant| Tenant { name: "process", weight: Weight::DEFAULT, load: tenant.load })
        .collect();
    let mut rig = Rig::start(RigOptions {
        device: device.clone(),
        policy: workload::policy(cell.kind, workers),
        queue_depth: crate::schedulers::QUEUE_DEPTH,
        tenants: &tenants,
        transport: Transport::Inside,
        workers,
        pin: true,
        latest: None,
    })?;
    let everybody: Vec<usize> = (0..tenants.len()).collect();
    let window = Window::from_ms(measured_ms / WARM_UP_SHARE, measured_ms);
    let before_ns = process_cpu_ns();
    let counted = rig.run(&everybody, window)?;
    let cpu_ns = process_cpu_ns() - before_ns;
    rig.stop();
    let mut sum = Counted::new(window);
    counted.iter().for_each(|part| sum.merge(part));
    // The CPU time is that of the whole run, warm-up included.
    let all = sum.requests_per_s() * window.end_ns as f64 * 1e-9;
    Ok(Row {
        device: name.into(),
        policy: cell.kind.name().into(),
        workload: cell.workload.name().into(),
        depth: cell.depth,
        iops: sum.requests_per_s(),
        p50_ns: if sum.requests == 0 { 0 } else { sum.total_ns.value_at_quantile(0.5) },
        p99_ns: sum.p99_ns(),
        cpu_ns_per_io: cpu_ns as f64 / all.max(1.0),
        instructions_per_io: None,
        joules_per_million: 0.0,
        how: "clock".into(),
    })
}

/// Workloads that can be run with threads that only ask: a look-up's computing is left to the simulation.
pub fn has(workload: Workload) -> bool {
    workload != Workload::PointLookup
}

/// Fills in the energy: the drive's full rate is the best that was seen.
pub fn energy(rows: &mut [Row], power: &Power) {
    let iops_max = rows.iter().map(|row| row.iops).fold(0.0, f64::max);
    for row in rows {
        row.joules_per_million = power.joules_per_million(row.iops, row.cpu_ns_per_io, iops_max);
    }
}

/// Energy of an I/O, by a stated model: the paper had a meter at the wall, we have not.
///
/// ```text
///   watts = idle + busy cores x core + the drive's utilisation x drive
///   joules per million I/Os = watts / I/Os per second x 1,000,000
/// ```
/// So energy is time at first: a policy that ends the same work sooner lets the machine idle sooner (section 4.2). The
/// defaults stand for the paper's machine, a Dell PowerEdge R230 with four cores and an Optane P4801X. Section 6 says
/// that full load takes 52 W more than the moment after it; Intel's product brief of the P4800X has 14 W active and 5 W
/// idle, so 9 W are the drive's and the other 43 W those of four cores. Idle, 36 W, is ASSUMED: the paper does not say
/// it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Power {
    /// The machine when nothing runs.
    pub idle_w: f64,
    /// A core that is busy all the time, above that.
    pub core_w: f64,
    /// The drive at its full rate, above that.
    pub drive_w: f64,
}

impl Default for Power {
    fn default() -> Power {
        Power { idle_w: 36.0, core_w: 10.75, drive_w: 9.0 }
    }
}

impl Power {
    /// Energy of a million I/Os at `iops`, each taking `cpu_ns_per_io` of a core, on a drive that does at most
    /// `iops_max`.
    pub fn joules_per_million(&self, iops: f64, cpu_ns_per_io: f64, iops_max: f64) -> f64 {
        if iops <= 0.0 {
            return 0.0;
        }
        let busy_cores = cpu_ns_per_io * 1e-9 * iops;
        let utilisation = if iops_max > 0.0 { (iops / iops_max).min(1.0) } else { 1.0 };
        let watts = self.idle_w + busy_cores * self.core_w + utilisation * self.drive_w;
        watts * 1e6 / iops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_load_takes_52_watts_more_than_idle_as_the_paper_says() {
        let Power { idle_w, core_w, drive_w } = Power::default();
        assert_eq!(4.0 * core_w + drive_w, 52.0);
        // 400,000 per second with 10 us of a core each: 4 cores, the drive full. 88 W / 0.4 M/s = 220 J per million.
        let joules = Power::default().joules_per_million(400_000.0, 10_000.0, 400_000.0);
        assert!((joules - (idle_w + 52.0) / 0.4).abs() < 1e-9, "{joules}");
    }

    #[test]
    fn twice_as_fast_at_the_same_watts_is_half_the_energy() {
        let idle = Power { idle_w: 50.0, core_w: 0.0, drive_w: 0.0 };
        let at = |iops| idle.joules_per_million(iops, 1000.0, 0.0);
        assert_eq!(at(100_000.0), 2.0 * at(200_000.0));
        assert_eq!(at(0.0), 0.0, "nothing was done, and infinity is no JSON");
    }
}
