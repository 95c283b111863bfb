//! Instructions per request, cell by cell: the path of each cell again, under callgrind.
//!
//! # Shape
//! As in [`crate::overhead::callgrind`]: the program is started with [`super::PROBE_ARGUMENT`] and walks through all
//! cells ([`super::walk`]). Of each it completes some requests to warm up, calls the boundary, completes those that
//! count, and calls it again.

use super::walk::{Walk, WalkOptions};
use super::workload::Cell;
use crate::overhead::callgrind::{self, overhead_boundary};
use mqfq_blkmq::{BlockLayer, MultiQueue};

/// Requests before those that count: every queue has been full once.
const WARM_UP_REQUESTS: u64 = 300;

/// Requests that count; and in a quick run.
const COUNTED_REQUESTS: u64 = 1000;
const QUICK_COUNTED_REQUESTS: u64 = 400;

/// Cost of a request to a core, picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// From the client to the drive: submission, picking, dispatch.
    pub to_device_ps: u64,
    /// From the drive to the client.
    pub back_ps: u64,
}

/// Instructions per request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Instructions {
    /// Submission, picking (the refused picks included), dispatch.
    pub to_device: f64,
    /// Completion.
    pub back: f64,
}

impl Instructions {
    /// There and back.
    pub fn all(&self) -> f64 {
        self.to_device + self.back
    }

    /// Costs of these instructions at `ns` each.
    pub fn costs(&self, ns: f64) -> Costs {
        let ps = |instructions: f64| (instructions * ns * 1000.0).round() as u64;
        Costs { to_device_ps: ps(self.to_device), back_ps: ps(self.back) }
    }
}

/// Work of the program under callgrind.
///
/// # Errors
/// One sentence.
pub fn probe(
    cells: &[Cell],
    quick: bool,
    device: &dyn Fn() -> Result<Box<dyn MultiQueue>, String>,
) -> Result<(), String> {
    let counted = if quick { QUICK_COUNTED_REQUESTS } else { COUNTED_REQUESTS };
    for cell in cells {
        let (tenants, device) = (cell.workload.tenants(cell.depth), device()?);
        let mut walk = Walk::new(&WalkOptions {
            device: &*device,
            policy: cell.policy(),
            layer: BlockLayer::Mq,
            queue_depth: super::QUEUE_DEPTH,
            tenants: &tenants,
            workers: cell.workers(),
        })?;
        walk.pass(WARM_UP_REQUESTS);
        overhead_boundary();
        walk.pass(counted);
        overhead_boundary();
    }
    Ok(())
}

/// Counts: `arguments` make `program` call [`probe`] for the same cells.
///
/// # Errors
/// One sentence.
pub fn count(program: &std::path::Path, arguments: &[String], cells: usize) -> Result<Vec<Instructions>, String> {
    let profile = callgrind::profile(program, arguments)?;
    callgrind::between_boundaries(&profile, cells)?.into_iter().map(of_part).collect()
}

/// A worker's step may end more than one request, so up to a queue more than asked for complete; the profile says how
/// many submissions there were, and in a closed loop each completion is followed by one.
pub(crate) fn of_part(part: &str) -> Result<Instructions, String> {
    let inside = |function: &str| callgrind::inside(part, function);
    let (requests, submit) = inside("schedulers_submit")?;
    if requests == 0 {
        return Err("callgrind saw no submission: the program lacks symbols".into());
    }
    let (_, run) = inside("schedulers_run")?;
    let (_, reap) = inside("schedulers_reap")?;
    let (_, device_submit) = inside("schedulers_device_submit")?;
    let (_, doorbell) = inside("schedulers_device_doorbell")?;
    let (_, device_reap) = inside("schedulers_device_reap")?;
    let per_request = |instructions: u64| instructions as f64 / requests as f64;
    Ok(Instructions {
        to_device: per_request((submit + run).saturating_sub(device_submit + doorbell)),
        back: per_request(reap.saturating_sub(device_reap)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drive_is_taken_out_and_every_caller_of_a_function_counts() {
        let call = |name: &str, calls: u64, cost: u64| format!("cfn=mqfq::{name}\ncalls={calls} 7\n13 {cost}\n");
        let part = [
            call("schedulers_submit", 10, 1_000),
            call("schedulers_run", 12, 3_000),
            call("schedulers_run", 3, 500),
            call("schedulers_device_submit", 10, 200),
            call("schedulers_device_doorbell", 9, 1_800),
            call("schedulers_reap", 11, 9_000),
            call("schedulers_device_reap", 11, 8_000),
        ]
        .concat();
        // (1000 + 3500 - 200 - 1800) / 10 and (9000 - 8000) / 10.
        let found = of_part(&part).unwrap();
        assert_eq!(found, Instructions { to_device: 250.0, back: 100.0 });
        assert_eq!(found.costs(0.3), Costs { to_device_ps: 75_000, back_ps: 30_000 });
        assert!(of_part("").unwrap_err().contains("lacks symbols"));
    }
}
