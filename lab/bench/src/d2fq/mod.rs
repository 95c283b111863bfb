//! `mqfq-lab bench d2fq`: what fair queueing by the device gives and costs, beside fair queueing by the host and none
//! at all.
//!
//! # What it measures
//! | part | how | answers |
//! |---|---|---|
//! | figures | the simulator, virtual time: the same on every machine ([`figures`]) | Figures 5 to 8 and 11 to 19 of the paper |
//! | cost | instructions, counted by callgrind in one run ([`count`]) | what does a request cost on each stack? |
//! | lone | the same path in virtual time, charged with those instructions | what does a tenant get that is alone (Figure 16)? |
//! | IOPS | the clock, interleaved rounds ([`iops`]) | and on this machine? |
//!
//! # What would make it lie
//! Instructions are not time: an add on a line that another core wrote last is one of them. The clock's part has that,
//! and the noise of the machine with it. See lab/bench/README.md.

pub mod cell;
pub mod count;
pub mod figures;
pub mod iops;
pub mod report;

use crate::machine::{self, Machine};
use crate::schedulers::NS_PER_INSTRUCTION;
use crate::schedulers::count::Instructions;
use crate::shell::{self, Output};
use cell::{Cell, LONE_DEPTHS, QUICK_LONE_DEPTHS};
use mqfq_report::progress::Progress;
use report::{D2fqReport, verdicts};
use std::path::PathBuf;

/// The argument that makes the program be what is counted.
pub const PROBE_ARGUMENT: &str = "--probe";

/// What to run.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct D2fqBenchOptions {
    /// Fewer points and depths, shorter times.
    #[arg(long)]
    pub quick: bool,
    /// Without the simulator's figures.
    #[arg(long = "no-figures", action = clap::ArgAction::SetFalse)]
    pub figures: bool,
    /// Rounds of what is measured by the clock; 0: none.
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub rounds: u32,
    /// Length of each of these measurements.
    #[arg(
        long = "milliseconds",
        value_name = "MILLISECONDS",
        default_value_t = 200,
        value_parser = clap::value_parser!(u64).range(20..=600_000)
    )]
    pub measured_ms: u64,
    /// What an instruction takes for the lone tenant, 0.01 to 10 ns.
    #[arg(long, default_value_t = NS_PER_INSTRUCTION, value_parser = crate::options::ns_per_instruction)]
    pub ns_per_instruction: f64,
    /// Write d2fq.{json,md} and a picture of each figure into this folder.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Where the record goes.
    #[command(flatten)]
    pub keep: crate::options::Keep,
    /// Be what callgrind counts the instructions of, and print nothing.
    #[arg(long, hide = true)]
    pub probe: bool,
    /// The program that callgrind runs; `None`: the one that is running.
    #[arg(skip)]
    pub mqfq: Option<PathBuf>,
}

impl Default for D2fqBenchOptions {
    fn default() -> Self {
        crate::options::defaults()
    }
}

impl D2fqBenchOptions {
    fn cells(&self) -> Vec<Cell> {
        Cell::all(if self.quick { &QUICK_LONE_DEPTHS } else { &LONE_DEPTHS })
    }
}

/// Measures, prints, draws and records.
///
/// # Errors
/// One sentence.
pub fn run(options: &D2fqBenchOptions, json: bool) -> Result<(), String> {
    if options.probe {
        return count::probe(&options.cells(), options.quick);
    }
    let mut report = measure(options)?;
    shell::publish(&mut report, Output { json, out: options.out.as_deref(), record: options.keep.record.as_deref() })
}

/// Measures.
///
/// # Errors
/// One sentence.
pub fn measure(options: &D2fqBenchOptions) -> Result<D2fqReport, String> {
    let cells = options.cells();
    let mut progress = Progress::new(2);
    progress.step("instructions, under callgrind");
    let mut notes = Vec::new();
    let (mut cost, mut lone) = (Vec::new(), Vec::new());
    match counted(options, &cells) {
        Ok(counted) => {
            progress.step("a lone tenant, in virtual time");
            cost = count::cost_rows(&cells, &counted);
            lone = count::lone_rows(&cells, &counted, options.ns_per_instruction)?;
        }
        Err(error) => notes.push(format!("no instructions, and nothing of a lone tenant: {error}")),
    }
    progress.finish();
    let found = if options.figures { figures::simulate(options.quick)? } else { figures::Figures::default() };
    let iops = if options.rounds > 0 { iops::measure(options.rounds, options.measured_ms)? } else { Vec::new() };
    Ok(D2fqReport {
        verdicts: verdicts(&found, &cost, &lone, &iops),
        figures: found.rows,
        claims: found.claims,
        cost,
        lone,
        iops,
        ns_per_instruction: options.ns_per_instruction,
        quick: options.quick,
        date: machine::today(),
        machine: Machine::this(options.keep.host.as_deref(), &[]),
        notes,
        svg_paths: Vec::new(),
        pictures: found.pictures,
    })
}

fn counted(options: &D2fqBenchOptions, cells: &[Cell]) -> Result<Vec<Instructions>, String> {
    let program = shell::program(options.mqfq.as_ref())?;
    let mut arguments = ["bench", "d2fq", PROBE_ARGUMENT].map(String::from).to_vec();
    if options.quick {
        arguments.push("--quick".into());
    }
    count::count(&program, &arguments, cells)
}
