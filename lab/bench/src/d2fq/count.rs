//! What a request costs in instructions on each stack, and what a lone tenant gets for it.
//!
//! The data path that ships, on the software drive of the paper, one worker: counted by callgrind as
//! [`crate::schedulers::count`] counts, and then simulated as [`crate::schedulers::path`] does. Both cells of a
//! comparison walk the same path with the same drive, so what differs is the stack. The drive's own model is taken out.

use super::cell::{Cell, Stack};
use crate::overhead::callgrind::{self, overhead_boundary};
use crate::schedulers::count::{Instructions, of_part};
use crate::schedulers::path::{PathOptions, Tenant, Until};
use crate::schedulers::walk::{Walk, WalkOptions};
use crate::schedulers::watch;
use mqfq_blk::device::nvme::{NvmeDevice, Preset};
use mqfq_demo::load::Load;
use serde::{Deserialize, Serialize};

/// The drive with weighted round robin.
pub const PRESET: &str = "zssd";

/// Commands on the device queue of each class.
const QUEUE_DEPTH: u16 = 1024;

/// Of the drive's model.
const DRIVE_SEED: u64 = 1;

/// Requests that count, and as many before them: more than are in flight, ten times over.
const COUNTED_REQUESTS: u64 = 3000;

/// The same of a quick run: more than are in flight, three times over.
const QUICK_COUNTED_REQUESTS: u64 = 1000;

/// Requests of a measurement in virtual time.
const TIMED_REQUESTS: u64 = 40_000;

/// Instructions per request of one stack, with eight busy tenants.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CostRow {
    /// `none`, `d2fq`, `ll-d2fq` or `mqfq`.
    pub stack: String,
    /// Submission, the policy's decision, dispatch.
    pub to_device_instructions: f64,
    /// Completion.
    pub back_instructions: f64,
    /// Both.
    pub instructions_per_request: f64,
    /// Over `none`.
    pub over_none: f64,
}

/// A lone tenant on one stack at one depth, in virtual time (Figure 16).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoneRow {
    /// As in [`CostRow::stack`].
    pub stack: String,
    /// Requests in flight.
    pub depth: u16,
    /// Of both directions.
    pub instructions_per_request: f64,
    /// From request to answer.
    pub mean_ns: f64,
    /// From request to answer, 99th percentile.
    pub p99_ns: u64,
    /// What it got.
    pub bytes_per_s: f64,
    /// Bandwidth over that of `none` at this depth.
    pub bandwidth_over_none: f64,
    /// Mean latency over that of `none` at this depth.
    pub latency_over_none: f64,
}

fn preset() -> Result<Preset, String> {
    Preset::by_name(PRESET).map_err(|unknown| unknown.to_string())
}

fn tenants(cell: &Cell) -> Vec<Tenant> {
    let tenant = |number: u16| {
        let load = Load::random_reads(1, cell.depth, cell.request_bytes);
        Tenant { load: Load { seed: u64::from(number) + 1, ..load }, think_ns: 0 }
    };
    (0..cell.tenants).map(tenant).collect()
}

/// What the program does under callgrind.
///
/// # Errors
/// One sentence.
pub fn probe(cells: &[Cell], quick: bool) -> Result<(), String> {
    let requests = if quick { QUICK_COUNTED_REQUESTS } else { COUNTED_REQUESTS };
    for cell in cells {
        let device = NvmeDevice::with_preset(preset()?, watch::STORED_BYTES, DRIVE_SEED)?;
        let mut walk = Walk::new(&WalkOptions {
            device: &device,
            policy: cell.stack.policy(1),
            layer: cell.stack.layer(),
            queue_depth: QUEUE_DEPTH,
            tenants: &tenants(cell),
            workers: 1,
        })?;
        walk.pass(requests);
        overhead_boundary();
        walk.pass(requests);
        overhead_boundary();
    }
    Ok(())
}

/// Counts: `arguments` make `program` call [`probe`] for the same cells.
///
/// # Errors
/// One sentence.
pub fn count(program: &std::path::Path, arguments: &[String], cells: &[Cell]) -> Result<Vec<Instructions>, String> {
    let profile = callgrind::profile(program, arguments)?;
    callgrind::between_boundaries(&profile, cells.len())?.into_iter().map(of_part).collect()
}

/// The rows of the busy cells.
pub fn cost_rows(cells: &[Cell], counted: &[Instructions]) -> Vec<CostRow> {
    let busy: Vec<_> = cells.iter().zip(counted).filter(|(cell, _)| !cell.is_lone()).collect();
    let none = busy.iter().find(|(cell, _)| cell.stack == Stack::None).map(|(_, counted)| counted.all());
    let row = |&(cell, counted): &(&Cell, &Instructions)| CostRow {
        stack: cell.stack.name().into(),
        to_device_instructions: counted.to_device,
        back_instructions: counted.back,
        instructions_per_request: counted.all(),
        over_none: counted.all() / none.unwrap_or(f64::NAN),
    };
    busy.iter().map(row).collect()
}

/// What the lone tenant gets, if an instruction takes `ns` each.
///
/// # Errors
/// One sentence.
pub fn lone_rows(cells: &[Cell], counted: &[Instructions], ns: f64) -> Result<Vec<LoneRow>, String> {
    let mut rows: Vec<LoneRow> = Vec::new();
    for (cell, counted) in cells.iter().zip(counted).filter(|(cell, _)| cell.is_lone()) {
        let path = PathOptions {
            drive: preset()?,
            policy: cell.stack.policy(1),
            layer: cell.stack.layer(),
            queue_depth: QUEUE_DEPTH,
            tenants: &tenants(cell),
            workers: 1,
            costs: counted.costs(ns),
        };
        let seen = path.run_together(Until::Requests(TIMED_REQUESTS))?;
        let none = rows.iter().find(|row| row.depth == cell.depth && row.stack == Stack::None.name());
        let (none_bytes_per_s, none_ns) =
            none.map_or((seen.bytes_per_s, seen.mean_ns), |none| (none.bytes_per_s, none.mean_ns));
        rows.push(LoneRow {
            stack: cell.stack.name().into(),
            depth: cell.depth,
            instructions_per_request: counted.all(),
            mean_ns: seen.mean_ns,
            p99_ns: seen.p99_ns,
            bytes_per_s: seen.bytes_per_s,
            bandwidth_over_none: seen.bytes_per_s / none_bytes_per_s,
            latency_over_none: seen.mean_ns / none_ns,
        });
    }
    Ok(rows)
}
