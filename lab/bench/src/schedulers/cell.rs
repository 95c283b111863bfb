//! One cell of the study: a policy, a workload, a depth.

use super::workload::Workload;
use mqfq_blk::{PolicyKind, PolicyOptions};
use mqfq_demo::harness::as_shipped;

/// Cores of the paper's machine (section 3.1), hence workers where many processes ask. One process asks on one queue.
pub const WORKERS: usize = 4;

/// Requests that a scheduler of Linux holds on a device at once: its tags, twice the block layer's default of 128 for a
/// queue with a scheduler.
pub const ELEVATOR_DEPTH: u32 = 256;

/// One cell of the study: a policy, a workload and a depth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Policy.
    pub kind: PolicyKind,
    /// Requests of its tenants.
    pub workload: Workload,
    /// Requests in flight in all.
    pub depth: u16,
}

impl Cell {
    /// All of them; the policies of a workload and depth stand next to each other.
    pub fn all(depths: &[u16]) -> Vec<Cell> {
        let mut all = Vec::new();
        for workload in Workload::all() {
            for depth in workload.depths(depths) {
                all.extend(mqfq_policies::STAGED.map(|kind| Cell { kind, workload, depth }));
            }
        }
        all
    }

    /// Workers that it runs on.
    pub fn workers(&self) -> usize {
        if self.workload.is_single() { 1 } else { WORKERS }
    }

    /// The policy's options: as a config that says nothing but `policy` gets them; the kernel's schedulers get the
    /// kernel's depth.
    pub fn policy(&self) -> PolicyOptions {
        policy(self.kind, self.workers())
    }
}

/// As [`Cell::policy`], on so many workers.
pub fn policy(kind: PolicyKind, workers: usize) -> PolicyOptions {
    let options = PolicyOptions::new(kind);
    let depth = if is_of_linux(kind) { ELEVATOR_DEPTH } else { options.depth };
    as_shipped(PolicyOptions { depth, ..options }, workers)
}

/// One of the schedulers that Linux has. They know no D of their own: their depth is that of the tags.
pub fn is_of_linux(kind: PolicyKind) -> bool {
    kind.is_elevator()
}
