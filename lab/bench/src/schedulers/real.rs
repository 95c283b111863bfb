//! The study on a real file or block device: our `file` device under each policy, by the clock.

use super::cell::Cell;
use super::power::Power;
use super::report::Row;
use super::workload::Workload;
use crate::cpu_time::process_cpu_ns;
use mqfq_blk::Weight;
use mqfq_blk::device::Device;
use mqfq_blk::device::file::{FileDevice, FileOptions};
use mqfq_demo::harness::{Rig, RigOptions, Tenant, Transport};
use mqfq_demo::load::{Counted, Window};
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
        policy: super::cell::policy(cell.kind, workers),
        queue_depth: super::QUEUE_DEPTH,
        tenants: &tenants,
        transport: Transport::Inside,
        workers,
        pin: true,
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
