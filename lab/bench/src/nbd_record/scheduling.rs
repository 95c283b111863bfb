//! What scheduling costs: CPU time of the block layer per request, `none` against `mqfq`, without sockets.
//!
//! The load lives inside the workers and the device is `null`, so nothing is left but admission, staging, the policy,
//! dispatch and completion. What `mqfq` takes more than `none` is what fairness costs; divided by what a whole NBD
//! request takes of the server's CPU it is the share of time spent in scheduling.
//!
//! Two tenants on every worker, depth 32 each, 4 KiB reads. CPU time is the process's own, all threads
//! (`CLOCK_PROCESS_CPUTIME_ID`), over all requests of the run, warm-up included.
//!
//! It is an upper bound: workers that do nothing but schedule meet at the shared cache lines far more often than
//! workers that also serve sockets.

use super::NbdCell;
use crate::cpu_time::process_cpu_ns;
use crate::rounds::Rounds;
use mqfq_blk::{PolicyKind, PolicyOptions, Weight};
use mqfq_demo::drive;
use mqfq_demo::harness::{self, Rig, RigOptions, Tenant, Transport};
use mqfq_demo::load::{Load, Window};
use mqfq_report::table::{Align, Table};
use serde::{Deserialize, Serialize};

/// One line per number of workers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SchedulingReport {
    /// By number of workers.
    pub rows: Vec<SchedulingRow>,
}

/// The block layer's CPU time per request with so many workers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SchedulingRow {
    /// Workers, all busy.
    pub workers: usize,
    /// Under `none`, median of the rounds.
    pub none_cpu_ns_per_io: f64,
    /// Under `mqfq`, median of the rounds.
    pub mqfq_cpu_ns_per_io: f64,
    /// Median of the rounds' differences.
    pub scheduling_cpu_ns_per_io: f64,
}

const REQUEST_BYTES: u32 = 4096;

/// Runs `rounds` interleaved rounds.
///
/// # Errors
/// One sentence.
pub fn measure(rounds: u32, measured_ms: u64) -> Result<SchedulingReport, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut rows = Vec::new();
    for workers in [1, 2].into_iter().filter(|&workers| workers <= cores) {
        let (mut none, mut mqfq, mut difference) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let none_ns = cpu_ns_per_io(PolicyKind::None, workers, measured_ms)?;
            let mqfq_ns = cpu_ns_per_io(PolicyKind::Mqfq, workers, measured_ms)?;
            none.push(none_ns);
            mqfq.push(mqfq_ns);
            difference.push(mqfq_ns - none_ns);
        }
        rows.push(SchedulingRow {
            workers,
            none_cpu_ns_per_io: Rounds::of(none).median(),
            mqfq_cpu_ns_per_io: Rounds::of(mqfq).median(),
            scheduling_cpu_ns_per_io: Rounds::of(difference).median(),
        });
    }
    Ok(SchedulingReport { rows })
}

fn cpu_ns_per_io(kind: PolicyKind, workers: usize, measured_ms: u64) -> Result<f64, String> {
    let load = Load::random_reads(workers as u16, 32, REQUEST_BYTES);
    let tenant = |name, seed| Tenant { name, weight: Weight::DEFAULT, load: Load { seed, ..load } };
    let mut rig = Rig::start(RigOptions {
        device: drive::null_device(256 << 20),
        policy: harness::as_shipped(PolicyOptions::new(kind), workers),
        queue_depth: 256,
        tenants: &[tenant("a", 1), tenant("b", 2)],
        transport: Transport::Inside,
        workers,
        pin: true,
    })?;
    let before_ns = process_cpu_ns();
    let counted = rig.run(&[0, 1], Window::from_ms(100, measured_ms))?;
    let cpu_ns = process_cpu_ns() - before_ns;
    rig.stop();
    let bytes: u64 = counted.iter().flat_map(|counted| &counted.series_bytes).sum();
    Ok(cpu_ns as f64 / (bytes / u64::from(REQUEST_BYTES)).max(1) as f64)
}

impl SchedulingReport {
    /// A table, and the share of a whole NBD request's CPU time that `cells` tell.
    pub fn text(&self, cells: &[NbdCell]) -> String {
        let mut table = Table::new(&[
            ("workers", Align::Right),
            ("none CPU ns/IO", Align::Right),
            ("mqfq CPU ns/IO", Align::Right),
            ("difference", Align::Right),
            ("of an NBD read", Align::Right),
        ]);
        // One connection keeps one worker busy, two keep two.
        let nbd_ns = |policy: &str, workers: usize| {
            cells
                .iter()
                .filter(|cell| cell.placement == "free")
                .find(|cell| {
                    (cell.driver.as_str(), usize::from(cell.connections), cell.depth) == ("own", workers, 32)
                        && cell.server == format!("mqfq null, {policy}")
                })
                .map(|cell| cell.server_cpu_ns_per_io)
        };
        for row in &self.rows {
            let share = nbd_ns("mqfq", row.workers)
                .filter(|&whole| whole > 0.0)
                .map(|whole| row.scheduling_cpu_ns_per_io / whole);
            table.row(vec![
                row.workers.to_string(),
                format!("{:.0}", row.none_cpu_ns_per_io),
                format!("{:.0}", row.mqfq_cpu_ns_per_io),
                format!("{:.0}", row.scheduling_cpu_ns_per_io),
                share.map_or("-".into(), |share| format!("{:.1}%", share * 100.0)),
            ]);
        }
        let mut text = format!(
            "the block layer alone, load inside the workers, null device, two tenants of depth 32 on each worker\n{}",
            table.render()
        );
        for workers in self.rows.iter().map(|row| row.workers) {
            if let (Some(none), Some(mqfq)) = (nbd_ns("none", workers), nbd_ns("mqfq", workers)) {
                text += &format!(
                    "an NBD read at {workers} x 32 takes {none:.0} ns of the server's CPU under none, {mqfq:.0} under mqfq\n"
                );
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_a_whole_nbd_request() {
        let cell = |policy: &str, server_cpu_ns_per_io| NbdCell {
            server: format!("mqfq null, {policy}"),
            driver: "own".into(),
            placement: "free".into(),
            connections: 1,
            depth: 32,
            iops: 1.0,
            iops_min: 1.0,
            iops_max: 1.0,
            server_cpu_ns_per_io,
            p99_ns: 1,
        };
        let row = SchedulingRow {
            workers: 1,
            none_cpu_ns_per_io: 200.0,
            mqfq_cpu_ns_per_io: 260.0,
            scheduling_cpu_ns_per_io: 60.0,
        };
        let text = SchedulingReport { rows: vec![row] }.text(&[cell("none", 2_900.0), cell("mqfq", 3_000.0)]);
        assert!(text.contains("2.0%"), "60 of 3,000:\n{text}");
    }
}
