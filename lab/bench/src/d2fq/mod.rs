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
use crate::schedulers::count::Instructions;
use cell::{Cell, LONE_DEPTHS, QUICK_LONE_DEPTHS};
use mqfq_report::progress::Progress;
use report::{D2fqReport, verdicts};
use std::path::{Path, PathBuf};

/// The argument that makes the program run [`probe`].
pub const PROBE_ARGUMENT: &str = "--probe";

/// What to run.
#[derive(Clone, PartialEq, Debug)]
pub struct D2fqBenchOptions {
    /// The program `mqfq`, to run under callgrind; `None`: the one that is running.
    pub mqfq: Option<PathBuf>,
    /// Fewer points and depths, shorter times.
    pub quick: bool,
    /// The simulator's part, too.
    pub figures: bool,
    /// Rounds of the clock's part; 0: not measured.
    pub rounds: u32,
    /// Length of each of its measurements.
    pub measured_ms: u64,
    /// What an instruction takes, ns.
    pub ns_per_instruction: f64,
    /// Folder for `d2fq.{json,md}` and a picture of each figure.
    pub out: Option<PathBuf>,
    /// Root under which the same goes into `HOST/DATE`.
    pub record: Option<PathBuf>,
    /// Name of the host in the record; `None`: the machine's own.
    pub host: Option<String>,
    /// One JSON object on stdout instead of tables.
    pub json: bool,
}

impl Default for D2fqBenchOptions {
    fn default() -> Self {
        D2fqBenchOptions {
            mqfq: None,
            quick: false,
            figures: true,
            rounds: 11,
            measured_ms: 200,
            ns_per_instruction: crate::schedulers::NS_PER_INSTRUCTION,
            out: None,
            record: None,
            host: None,
            json: false,
        }
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
pub fn run(options: &D2fqBenchOptions) -> Result<(), String> {
    let (mut report, pictures) = measure(options)?;
    if let Some(folder) = &options.out {
        report.svg_paths = write_all(&report, &pictures, folder)?;
    }
    if options.json {
        println!("{}", mqfq_report::json(&report)?);
    } else {
        print!("{}", report.text());
    }
    if let Some(root) = &options.record {
        let folder = root.join(&report.machine.host).join(&report.date);
        write_all(&report, &pictures, &folder)?;
        eprintln!("wrote {}", folder.display());
    }
    Ok(())
}

/// What the program does under callgrind, instead of [`run`].
///
/// # Errors
/// One sentence.
pub fn probe(options: &D2fqBenchOptions) -> Result<(), String> {
    count::probe(&options.cells())
}

/// Measures. The pictures by name, too.
///
/// # Errors
/// One sentence.
pub fn measure(options: &D2fqBenchOptions) -> Result<(D2fqReport, Vec<(String, String)>), String> {
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
    let report = D2fqReport {
        verdicts: verdicts(&found, &cost, &lone, &iops),
        figures: found.rows,
        claims: found.claims,
        cost,
        lone,
        iops,
        ns_per_instruction: options.ns_per_instruction,
        quick: options.quick,
        date: machine::today(),
        machine: Machine::this(options.host.as_deref(), &[]),
        notes,
        svg_paths: Vec::new(),
    };
    Ok((report, found.pictures))
}

fn counted(options: &D2fqBenchOptions, cells: &[Cell]) -> Result<Vec<Instructions>, String> {
    let program = match &options.mqfq {
        Some(path) => path.clone(),
        None => std::env::current_exe().map_err(|error| format!("cannot find the path of this program: {error}"))?,
    };
    let mut arguments = ["bench", "d2fq", PROBE_ARGUMENT].map(String::from).to_vec();
    if options.quick {
        arguments.push("--quick".into());
    }
    count::count(&program, &arguments, cells)
}

/// Writes `d2fq.json`, the tables as Markdown and the pictures; the pictures' paths come back.
fn write_all(report: &D2fqReport, pictures: &[(String, String)], folder: &Path) -> Result<Vec<String>, String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let write = |name: String, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok::<String, String>(path.display().to_string())
    };
    write("d2fq.json".into(), &(mqfq_report::json(report)? + "\n"))?;
    write("d2fq.md".into(), &report.markdown())?;
    pictures.iter().map(|(name, svg)| write(format!("{name}.svg"), svg)).collect()
}
