//! `mqfq-lab bench schedulers`: which scheduler for my device?
//!
//! # What it measures
//! The study of "Do we still need IO schedulers for low-latency disks?" (HotStorage'23) with every policy: Table 1
//! (median latency at depth 1), Figures 1 to 4 (I/Os per second and energy of one tenant and of many, at depths 1 to
//! 128), Figure 5 (point look-ups of a key-value store), and what the paper leaves out: a modest tenant beside a greedy
//! one. Then the answer, in three sentences.
//!
//! # How
//! On the software drives ([`study`]): scenarios of the simulator, so that locks and lines of other cores cost time. Of
//! what a request costs besides, instructions are *counted* first, cell by cell, under callgrind ([`count`]), and
//! charged at a stated time each; so the same numbers come out on a busy machine.
//! On a file or block device: real time, interleaved rounds, whose median counts.
//!
//! # What would make it lie
//! Instructions are not time. See lab/bench/README.md.

pub mod count;
#[cfg(feature = "whole")]
pub mod study;
pub mod walk;
pub mod watch;
pub mod workload;

use crate::options::Runs;
use crate::shell;
use count::Instructions;
use mqfq_blkmq::MultiQueue;
use mqfq_nvme::device::{NvmeDevice, Preset};
use mqfq_report::print_line;
use serde_json::json;
use std::path::PathBuf;
use workload::{Cell, DEPTHS, QUICK_DEPTHS};

/// Options.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct SchedulersOptions {
    /// Run on this file or block device, by the clock; it is only read.
    #[arg(long, value_name = "PATH")]
    pub device: Option<PathBuf>,
    /// Write to the device, too. This destroys what is on it.
    #[arg(long, requires = "device", requires = "confirm_data_loss")]
    pub write: bool,
    /// Data on the device may be destroyed.
    #[arg(long, requires = "write")]
    pub confirm_data_loss: bool,
    /// A software drive: optane, zssd, flash-460k, flash-60k, nvmf-dram. May be repeated; by default the first two
    /// and flash-60k.
    #[arg(long = "preset", value_name = "NAME", conflicts_with = "device")]
    pub presets: Vec<String>,
    /// Fewer depths and requests.
    #[arg(long)]
    pub quick: bool,
    /// Without --device: what an instruction takes, 0.01 to 10 ns.
    #[arg(long, default_value_t = NS_PER_INSTRUCTION, value_parser = crate::options::ns_per_instruction)]
    pub ns_per_instruction: f64,
    /// How much is measured with --device, and where the results go.
    #[command(flatten)]
    pub runs: Runs<3, 200>,
    /// Be what callgrind counts the instructions of, and print nothing.
    #[arg(long, hide = true)]
    pub probe: bool,
    /// The program that callgrind runs; `None`: the one that is running.
    #[arg(skip)]
    pub mqfq: Option<PathBuf>,
}

/// An ultra-low-latency drive, as the paper's; one of flash; and a slow one.
pub const PRESETS: [&str; 3] = ["optane", "zssd", "flash-60k"];

/// One instruction per cycle at the 3.4 GHz of the paper's machine. What runs in a loop with all of it in the first
/// cache does three in that time (`mqfq-lab bench overhead`); code that comes back after the rest of a system has run
/// does one or fewer.
pub const NS_PER_INSTRUCTION: f64 = 0.3;

/// Commands on each worker's device queue at once: the tags that a queue with a scheduler has in Linux, more than any
/// depth of the study.
const QUEUE_DEPTH: u16 = workload::ELEVATOR_DEPTH as u16;

/// Start of the drives' random numbers.
const DRIVE_SEED: u64 = 1;

/// The argument that makes the program be what is counted.
pub const PROBE_ARGUMENT: &str = "--probe";

/// Runs what callgrind counts.
///
/// # Errors
/// One sentence.
pub fn probe(options: &SchedulersOptions) -> Result<(), String> {
    for preset in presets(options)? {
        count::probe(&cells(options), options.quick, &|| drive(preset))?;
    }
    Ok(())
}

fn cells(options: &SchedulersOptions) -> Vec<Cell> {
    Cell::all(if options.quick { &QUICK_DEPTHS } else { &DEPTHS })
}

fn presets(options: &SchedulersOptions) -> Result<Vec<Preset>, String> {
    let names: Vec<&str> = match &options.presets[..] {
        [] => PRESETS.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    names.into_iter().map(|name| Preset::by_name(name).map_err(|unknown| unknown.to_string())).collect()
}

fn drive(preset: Preset) -> Result<Box<dyn MultiQueue>, String> {
    Ok(Box::new(NvmeDevice::with_preset(preset, watch::STORED_BYTES, DRIVE_SEED)?))
}

/// Instructions of each cell on the first of the options' presets.
///
/// # Errors
/// One sentence: why they cannot be counted.
pub fn count_preset(options: &SchedulersOptions) -> Result<Vec<(Cell, Instructions)>, String> {
    let cells = cells(options);
    let counted = count_of(options, presets(options)?[0], cells.len())?;
    Ok(cells.into_iter().zip(counted).collect())
}

fn count_of(options: &SchedulersOptions, preset: Preset, cells: usize) -> Result<Vec<Instructions>, String> {
    let program = shell::program(options.mqfq.as_ref())?;
    let mut arguments = ["bench", "schedulers", PROBE_ARGUMENT, "--preset", preset.name].map(String::from).to_vec();
    if options.quick {
        arguments.push("--quick".into());
    }
    count::count(&program, &arguments, cells)
        .map_err(|error| format!("the instructions of a request cannot be counted: {error}"))
}

/// Counts only, and prints a row for each cell of each preset as JSON.
///
/// # Errors
/// One sentence: why they cannot be counted.
pub fn print_counts(options: &SchedulersOptions) -> Result<(), String> {
    if options.probe {
        return probe(options);
    }
    let cells = cells(options);
    let mut rows = Vec::new();
    for preset in presets(options)? {
        for (cell, counted) in cells.iter().zip(count_of(options, preset, cells.len())?) {
            rows.push(json!({
                "device": preset.name,
                "policy": cell.kind.name(),
                "workload": cell.workload.name(),
                "depth": cell.depth,
                "to_device": counted.to_device,
                "back": counted.back,
            }));
        }
    }
    print_line(json!({ "rows": rows }))
}
