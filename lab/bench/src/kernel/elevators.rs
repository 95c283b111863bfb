//! `mqfq-lab bench kernel --count`: what a request costs more under a scheduler, the kernel's and ours, both in
//! instructions, in one run.
//!
//! # What it measures
//! The kernel's: a kernel in a QEMU guest that executes one instruction each 2 ns of its own time (`-icount shift=1`),
//! so that rates in the guest count instructions, whatever else the host does. fio (io_uring) on the null block device,
//! which completes at once, so the guest's one processor is what limits: instructions per request = 1 s / rate / 2 ns.
//! What an elevator adds is the difference to `none`.
//!
//! Ours: the cells of [`crate::schedulers`] at the same depth, counted by callgrind, less those of `none`.
//!
//! # What differs
//! The kernel's `none` passes the insertion and the dispatch of a scheduler by and goes to the driver at once; with an
//! elevator a request goes through them, so its figure has the block layer's part of scheduling, too. Ours stages and
//! picks under `none` as well, so its figure is the policy's alone: ours must be the smaller one.
//!
//! # Where it cannot run
//! Without a kernel package, QEMU, busybox, cpio, modprobe, fio or valgrind the report says that it was skipped and
//! why, and that is no error.

use super::KernelOptions;
use super::guest::Guest;
use crate::schedulers::workload::Cell;
use crate::schedulers::workload::{Mix, Workload};
use crate::schedulers::{self, SchedulersOptions};
use crate::shell::{Record, Results, Style, or_dash, table};
use mqfq_report::progress::Progress;
use mqfq_report::table::Align::{Left, Right};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Requests in flight.
pub const DEPTHS: [u16; 2] = [1, 64];

/// Results.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Elevators {
    /// Why nothing was counted; `null` if it was.
    pub skipped: Option<String>,
    /// One row per scheduler, workload and depth.
    pub rows: Vec<ElevatorRow>,
    /// Release of the guest's kernel.
    pub kernel: String,
}

/// One scheduler: instructions per request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ElevatorRow {
    /// Its name, the same in both families.
    pub policy: String,
    /// `read` or `write`.
    pub op: String,
    /// Requests in flight.
    pub depth: u16,
    /// Instructions of the kernel, with fio and the system calls; `null` for a policy that the kernel has not.
    pub kernel_instructions: Option<f64>,
    /// More than the kernel's `none`.
    pub kernel_added: Option<f64>,
    /// Instructions of our block layer and policy; `null` for a policy that we have not.
    pub our_instructions: Option<f64>,
    /// More than our `none`.
    pub our_added: Option<f64>,
    /// Ours over the kernel's.
    pub our_added_over_kernel: Option<f64>,
}

/// Instructions per request of one scheduler at one depth.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Counted {
    pub(super) policy: String,
    pub(super) op: &'static str,
    pub(super) depth: u16,
    pub(super) instructions: f64,
}

/// Counts, or says why not.
///
/// # Errors
/// One sentence: the guest failed.
pub(super) fn measure(options: &KernelOptions, folder: &Path) -> Result<Record<Elevators>, String> {
    let mut progress = Progress::new(2);
    let ours = |guest| {
        progress.step("our policies, under callgrind");
        Ok((guest, count_ours()?))
    };
    let results = match Guest::find(folder).and_then(ours) {
        Ok((guest, ours)) => {
            progress.step("the kernel's, in a guest");
            let theirs = guest.count(&DEPTHS)?;
            Elevators { skipped: None, rows: rows(&theirs, &ours), kernel: guest.release().into() }
        }
        Err(reason) => Elevators { skipped: Some(reason), ..Elevators::default() },
    };
    progress.finish();
    let record = Record::new(results, &options.runs, &["qemu-system-x86_64", "fio"]);
    Ok(Record { rounds: 0, ..record })
}

fn count_ours() -> Result<Vec<Counted>, String> {
    let options = SchedulersOptions { presets: vec!["optane".into()], quick: true, ..crate::options::defaults() };
    let counted = schedulers::count_preset(&options)?;
    let op = |cell: &Cell| match cell.workload {
        Workload::Single(Mix::Read) => Some("read"),
        Workload::Single(Mix::Write) => Some("write"),
        _ => None,
    };
    let wanted = counted.into_iter().filter(|(cell, _)| DEPTHS.contains(&cell.depth));
    Ok(wanted
        .filter_map(|(cell, counted)| {
            let instructions = counted.all();
            Some(Counted { policy: cell.kind.name().into(), op: op(&cell)?, depth: cell.depth, instructions })
        })
        .collect())
}

/// Both families beside each other: those of both first.
fn rows(theirs: &[Counted], ours: &[Counted]) -> Vec<ElevatorRow> {
    let mut rows = Vec::new();
    for depth in DEPTHS {
        for op in ["read", "write"] {
            let find = |of: &[Counted], policy: &str| {
                of.iter()
                    .find(|one| one.policy == policy && one.op == op && one.depth == depth)
                    .map(|one| one.instructions)
            };
            let added = |of: &[Counted], policy: &str| Some(find(of, policy)? - find(of, "none")?);
            for kind in mqfq_policies::STAGED {
                let policy = kind.name();
                let (kernel_added, our_added) = (added(theirs, policy), added(ours, policy));
                rows.push(ElevatorRow {
                    policy: policy.into(),
                    op: op.into(),
                    depth,
                    kernel_instructions: find(theirs, policy),
                    kernel_added,
                    our_instructions: find(ours, policy),
                    our_added,
                    our_added_over_kernel: our_added
                        .zip(kernel_added)
                        .filter(|(_, kernel)| *kernel > 0.0)
                        .map(|(ours, kernel)| ours / kernel),
                });
            }
        }
    }
    rows
}

impl Results for Elevators {
    const NAME: &'static str = "elevators";
    const TITLE: &'static str = "What a scheduler adds to a request: the kernel's and ours";

    fn skipped(&self) -> Option<&str> {
        self.skipped.as_deref()
    }

    fn head(&self) -> Vec<String> {
        vec![format!(
            "instructions per 4 KiB request. Kernel: Linux {}, with fio and system calls, in a guest that counts them; ours: block \
             layer and policy, by callgrind; added: more than none",
            self.kernel
        )]
    }

    fn body(&self, style: Style) -> String {
        style.table(&table(
            &self.rows,
            &[
                ("depth", Right, |row: &ElevatorRow| row.depth.to_string()),
                ("op", Left, |row| row.op.clone()),
                ("scheduler", Left, |row| row.policy.clone()),
                ("kernel", Right, |row| or_dash(row.kernel_instructions, 0)),
                ("added", Right, |row| or_dash(row.kernel_added, 0)),
                ("ours", Right, |row| or_dash(row.our_instructions, 0)),
                ("added", Right, |row| or_dash(row.our_added, 0)),
                ("ours / kernel", Right, |row| or_dash(row.our_added_over_kernel, 2)),
            ],
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_more_than_the_familys_own_none() {
        let one = |policy: &str, instructions| Counted { policy: policy.into(), op: "read", depth: 1, instructions };
        let rows = rows(
            &[one("none", 7_000.0), one("mq-deadline", 9_000.0)],
            &[one("none", 1_000.0), one("mq-deadline", 1_500.0)],
        );
        let row = rows.iter().find(|row| row.policy == "mq-deadline" && row.op == "read" && row.depth == 1);
        if let Some(row) = row {
            assert_eq!((row.kernel_added, row.our_added), (Some(2_000.0), Some(500.0)));
            assert_eq!(row.our_added_over_kernel, Some(0.25));
        }
        let none = rows.iter().find(|row| row.policy == "none" && row.op == "read" && row.depth == 1).unwrap();
        assert_eq!((none.kernel_added, none.our_added_over_kernel), (Some(0.0), None), "nothing over nothing");
        let mqfq = rows.iter().find(|row| row.policy == "mqfq" && row.op == "read" && row.depth == 1).unwrap();
        assert_eq!((mqfq.kernel_added, mqfq.our_added), (None, None), "the kernel has none, and ours was not counted");
    }
}
