//! `mqfq-lab bench elevators`: what a request costs more under a scheduler, the kernel's and ours, both in
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

mod guest;

use crate::machine::{self, Machine};
use crate::schedulers::cell::Cell;
use crate::schedulers::workload::{Mix, Workload};
use crate::schedulers::{self, SchedulersOptions};
use crate::shell::{self, Output, Results, Style};
use mqfq_blk::PolicyKind;
use mqfq_report::progress::Progress;
use mqfq_report::table::{Align, Table};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What to run.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct ElevatorsOptions {
    /// A kernel package, unpacked (dpkg-deb -x): it has boot/vmlinuz-* and the modules.
    #[arg(long, value_name = "FOLDER")]
    pub kernel: Option<PathBuf>,
    /// Where the record goes.
    #[command(flatten)]
    pub keep: crate::options::Keep,
}

impl Default for ElevatorsOptions {
    fn default() -> Self {
        crate::options::defaults()
    }
}

/// Requests in flight.
pub const DEPTHS: [u16; 2] = [1, 64];

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ElevatorsReport {
    /// Why nothing was counted; `null` if it was.
    pub skipped: Option<String>,
    /// One row per scheduler, workload and depth.
    pub rows: Vec<ElevatorRow>,
    /// Release of the guest's kernel.
    pub kernel: String,
    /// Day, UTC.
    pub date: String,
    /// Where it ran.
    pub machine: Machine,
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
    /// Of the kernel, with fio and the system calls; `null` for a policy that the kernel has not.
    pub kernel_instructions: Option<f64>,
    /// More than the kernel's `none`.
    pub kernel_added: Option<f64>,
    /// Of our block layer and policy; `null` for a policy that we have not.
    pub our_instructions: Option<f64>,
    /// More than our `none`.
    pub our_added: Option<f64>,
    /// Ours over the kernel's.
    pub our_added_over_kernel: Option<f64>,
}

/// Counts, prints and records.
///
/// # Errors
/// One sentence.
pub fn run(options: &ElevatorsOptions, json: bool) -> Result<(), String> {
    let mut report = measure(options)?;
    shell::publish(&mut report, Output { json, out: None, record: options.keep.record.as_deref() })
}

/// Instructions per request of one scheduler at one depth.
#[derive(Clone, PartialEq, Debug)]
struct Counted {
    policy: String,
    op: &'static str,
    depth: u16,
    instructions: f64,
}

/// Counts, or says why not.
///
/// # Errors
/// As [`run`].
pub fn measure(options: &ElevatorsOptions) -> Result<ElevatorsReport, String> {
    let mut report = ElevatorsReport {
        skipped: None,
        rows: Vec::new(),
        kernel: String::new(),
        date: machine::today(),
        machine: Machine::this(options.keep.host.as_deref(), &["qemu-system-x86_64", "fio"]),
    };
    let kernel = match guest::Kernel::find(options.kernel.as_deref()) {
        Ok(kernel) => kernel,
        Err(reason) => {
            report.skipped = Some(reason);
            return Ok(report);
        }
    };
    report.kernel = kernel.release().into();
    let mut progress = Progress::new(2);
    progress.step("our policies, under callgrind");
    let ours = match count_ours() {
        Ok(ours) => ours,
        Err(reason) => {
            progress.finish();
            report.skipped = Some(reason);
            return Ok(report);
        }
    };
    progress.step("the kernel's, in a guest");
    let theirs = kernel.count(&DEPTHS)?;
    progress.finish();
    report.rows = rows(&theirs, &ours);
    Ok(report)
}

fn count_ours() -> Result<Vec<Counted>, String> {
    let options = SchedulersOptions { presets: vec!["optane".into()], quick: true, ..SchedulersOptions::default() };
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
            for kind in PolicyKind::STAGED {
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

impl ElevatorsReport {
    fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("depth", Align::Right),
            ("op", Align::Left),
            ("scheduler", Align::Left),
            ("kernel", Align::Right),
            ("added", Align::Right),
            ("ours", Align::Right),
            ("added", Align::Right),
            ("ours / kernel", Align::Right),
        ]);
        let whole = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.0}"));
        for row in &self.rows {
            table.row(vec![
                row.depth.to_string(),
                row.op.clone(),
                row.policy.clone(),
                whole(row.kernel_instructions),
                whole(row.kernel_added),
                whole(row.our_instructions),
                whole(row.our_added),
                row.our_added_over_kernel.map_or("-".into(), |ratio| format!("{ratio:.2}")),
            ]);
        }
        table
    }
}

impl Results for ElevatorsReport {
    const NAME: &'static str = "elevators";
    const TITLE: &'static str = "What a scheduler adds to a request: the kernel's and ours";

    fn place(&self) -> (&Machine, &str) {
        (&self.machine, &self.date)
    }

    fn skipped(&self) -> Option<&str> {
        self.skipped.as_deref()
    }

    fn head(&self) -> Vec<String> {
        let what = format!(
            "{}: instructions per 4 KiB request. Kernel: Linux {}, with fio and system calls, in a guest that counts them; ours: block \
             layer and policy, by callgrind; added: more than none",
            self.date, self.kernel
        );
        vec![what]
    }

    fn head_of_record(&self) -> Vec<String> {
        [self.head(), vec![self.machine.tools.join("; ")]].concat()
    }

    fn body(&self, style: Style) -> String {
        style.table(&self.table())
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
        assert_eq!((mqfq.kernel_added, mqfq.our_added), (None, None), "the kernel has none, and nobody counted ours");
    }
}
