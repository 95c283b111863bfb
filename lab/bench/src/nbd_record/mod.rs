//! `mqfq-lab bench nbd`: NBD reads per second of ours beside nbdkit and qemu-storage-daemon, and what scheduling costs.
//!
//! # What it measures
//! 4 KiB random reads at depth 1 and 32 over one and two connections, of `mqfq serve` (null and memory device, policies
//! `none` and `mqfq`), nbdkit's memory plugin and qemu-storage-daemon's null-co, driven by fio and by our own client.
//! Beside the rate: CPU time of the server's process per request, from `/proc/PID/stat`. And, inside one process, the
//! CPU time that the block layer takes per request under `none` and under `mqfq` ([`scheduling`]).
//!
//! # Why in rounds
//! A machine drifts: other guests, heat, clocks. Each round runs every server once, so that drift falls on all of them
//! alike; a cell reports the median of its rounds with the smallest and largest. A difference smaller than that
//! spread is none.
//!
//! # What would make it lie
//! Driver and server share the machine, once freely, once each on half of its CPUs ([`placement`]): on two cores a
//! driver that burns more slows every server. null-co leaves the reply's buffer as it is while ours writes zeroes. See
//! lab/bench/README.md.

pub(crate) mod driver;
pub(crate) mod placement;
mod scheduling;
pub(crate) mod server;
pub mod watched;

use crate::machine::{self, Machine};
use crate::rounds::{Rounds, median};
use crate::shell::{self, Output, Results, Style, place_line};
use driver::{Driver, Seen, Task};
use mqfq_report::progress::Progress;
use mqfq_report::table::{Align, Table};
use placement::{Cpus, Placement};
use serde::{Deserialize, Serialize};
use server::{Running, SERVERS, Server};
use std::path::{Path, PathBuf};

pub(crate) use server::cpu_ns_of;

pub use scheduling::{SchedulingReport, SchedulingRow};

/// What to run.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct NbdRecordOptions {
    /// How much is measured.
    #[command(flatten)]
    pub runs: crate::options::Runs<1500>,
    /// Where the record goes.
    #[command(flatten)]
    pub keep: crate::options::Keep,
    /// Measures our server with somebody who watches it beside without, and nothing else.
    #[arg(long)]
    pub watched: bool,
    /// The program `mqfq`; `None`: the one beside the one that is running.
    #[arg(skip)]
    pub mqfq: Option<PathBuf>,
}

impl Default for NbdRecordOptions {
    fn default() -> Self {
        crate::options::defaults()
    }
}

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NbdRecord {
    /// Day, UTC.
    pub date: String,
    /// The machine that it was measured on.
    pub machine: Machine,
    /// Rounds, interleaved.
    pub rounds: u32,
    /// Length of each measurement, milliseconds.
    pub measured_ms: u64,
    /// Servers and drivers that were not there.
    pub skipped: Vec<String>,
    /// One entry per server, driver, placement, number of connections and depth.
    pub cells: Vec<NbdCell>,
    /// What scheduling costs.
    pub scheduling: SchedulingReport,
}

/// One server under one driver in one setting.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NbdCell {
    /// Server with its device and policy.
    pub server: String,
    /// `own` or `fio`.
    pub driver: String,
    /// `free`: the kernel places server and driver; `apart`: each has half of the CPUs.
    pub placement: String,
    /// Connections.
    pub connections: u16,
    /// Requests in flight on each.
    pub depth: u16,
    /// Requests per second, median of the rounds.
    pub iops: f64,
    /// Smallest of the rounds.
    pub iops_min: f64,
    /// Largest of the rounds.
    pub iops_max: f64,
    /// CPU time of the server's process per request, median of the rounds.
    pub server_cpu_ns_per_io: f64,
    /// 99th percentile of request to completion as the driver saw it, median of the rounds.
    pub p99_ns: u64,
}

const SETTINGS: [(u16, u16); 4] = [(1, 1), (2, 1), (1, 32), (2, 32)];

/// Runs everything and prints it.
///
/// # Errors
/// One sentence: a server that is there failed, or the record could not be written.
pub fn run(options: &NbdRecordOptions, json: bool) -> Result<(), String> {
    if options.watched {
        return watched::run(options, json);
    }
    let mut record = measure(options)?;
    shell::publish(&mut record, Output { json, out: None, record: options.keep.record.as_deref() })
}

/// The product's binary, which cargo puts beside the laboratory's.
pub(crate) fn product() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("cannot find the path of this program: {error}"))?;
    let product = own.with_file_name("mqfq");
    let missing = || format!("there is no {}, `cargo build --release` builds it", product.display());
    if product.is_file() { Ok(product) } else { Err(missing()) }
}

/// Runs everything.
///
/// # Errors
/// As [`run`].
pub fn measure(options: &NbdRecordOptions) -> Result<NbdRecord, String> {
    let mqfq = match &options.mqfq {
        Some(path) => path.clone(),
        None => product()?,
    };
    let mut skipped = Vec::new();
    let servers: Vec<Server> =
        SERVERS.into_iter().filter(|server| is_there(&server.program(&mqfq), &mut skipped)).collect();
    let mut drivers = vec![Driver::Own];
    if driver::fio_is_there() {
        drivers.push(Driver::Fio);
    } else {
        skipped.push("fio with ioengine=nbd".into());
    }
    let rounds = options.runs.rounds.max(1);
    let cpus = Cpus::allowed()?;
    let placements = cpus.placements();
    let mut progress = Progress::new(rounds as usize * servers.len() * placements.len() + 1);
    let mut runs: Vec<OneRun> = Vec::new();
    for round in 0..rounds {
        for &server in &servers {
            for &placement in placements {
                let name = server.name();
                progress.step(&format!("round {} of {rounds}: {name}, {}", round + 1, placement.name()));
                cpus.be_server(placement)?;
                let running = Running::start(server, &mqfq)?;
                cpus.be_driver(placement)?;
                for &driver in &drivers {
                    for (connections, depth) in SETTINGS {
                        let task = Task {
                            socket: running.socket(),
                            export: server.export(),
                            connections,
                            depth,
                            measured_ms: options.runs.measured_ms,
                        };
                        let before_ns = running.cpu_ns()?;
                        let seen = driver.run(&task).map_err(|error| format!("{name}: {error}"))?;
                        let cpu_ns = running.cpu_ns()? - before_ns;
                        let cell = Cell { server, driver, placement, connections, depth };
                        runs.push(OneRun { cell, seen, cpu_ns });
                    }
                }
            }
        }
    }
    drop(cpus);
    progress.step("what scheduling costs");
    let scheduling = scheduling::measure(rounds, options.runs.measured_ms)?;
    progress.finish();
    Ok(NbdRecord {
        date: machine::today(),
        machine: Machine::this(options.keep.host.as_deref(), &["fio", "nbdkit", "qemu-storage-daemon"]),
        rounds,
        measured_ms: options.runs.measured_ms,
        skipped,
        cells: cells(&servers, &drivers, placements, &runs),
        scheduling,
    })
}

/// What one figure is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cell {
    server: Server,
    driver: Driver,
    placement: Placement,
    connections: u16,
    depth: u16,
}

struct OneRun {
    cell: Cell,
    seen: Seen,
    cpu_ns: u64,
}

/// One cell per combination, in the order of the table.
fn cells(servers: &[Server], drivers: &[Driver], placements: &[Placement], runs: &[OneRun]) -> Vec<NbdCell> {
    let mut cells = Vec::new();
    for &driver in drivers {
        for &placement in placements {
            for (connections, depth) in SETTINGS {
                for &server in servers {
                    let cell = Cell { server, driver, placement, connections, depth };
                    cells.push(cell_of(cell, runs.iter().filter(|run| run.cell == cell)));
                }
            }
        }
    }
    cells
}

fn cell_of<'a>(cell: Cell, runs: impl Iterator<Item = &'a OneRun>) -> NbdCell {
    let runs: Vec<&OneRun> = runs.collect();
    let iops = Rounds::of(runs.iter().map(|run| run.seen.iops));
    NbdCell {
        server: cell.server.name(),
        driver: cell.driver.name().into(),
        placement: cell.placement.name().into(),
        connections: cell.connections,
        depth: cell.depth,
        iops: iops.median(),
        iops_min: iops.smallest(),
        iops_max: iops.largest(),
        server_cpu_ns_per_io: median(&runs, |run| run.cpu_ns as f64 / run.seen.requests_in_all.max(1) as f64),
        p99_ns: median(&runs, |run| run.seen.p99_ns as f64) as u64,
    }
}

/// A program given by path must exist; one given by name must be found.
pub(crate) fn is_there(program: &Path, skipped: &mut Vec<String>) -> bool {
    let found = if program.components().count() > 1 {
        program.exists()
    } else {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
    };
    let name = program.display().to_string();
    if !found && !skipped.contains(&name) {
        skipped.push(name);
    }
    found
}

impl NbdRecord {
    fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("driver", Align::Left),
            ("placement", Align::Left),
            ("connections x depth", Align::Right),
            ("server", Align::Left),
            ("IOPS", Align::Right),
            ("min", Align::Right),
            ("max", Align::Right),
            ("server CPU ns/IO", Align::Right),
            ("p99 us", Align::Right),
        ]);
        for cell in &self.cells {
            table.row(vec![
                cell.driver.clone(),
                cell.placement.clone(),
                format!("{} x {}", cell.connections, cell.depth),
                cell.server.clone(),
                format!("{:.0}", cell.iops),
                format!("{:.0}", cell.iops_min),
                format!("{:.0}", cell.iops_max),
                format!("{:.0}", cell.server_cpu_ns_per_io),
                format!("{:.0}", cell.p99_ns as f64 / 1e3),
            ]);
        }
        table
    }
}

impl Results for NbdRecord {
    const NAME: &'static str = "nbd";
    const TITLE: &'static str = "NBD: requests per second beside other servers";

    fn place(&self) -> (&Machine, &str) {
        (&self.machine, &self.date)
    }

    fn head(&self) -> Vec<String> {
        let mut head = vec![place_line(&self.date, &self.machine), format!("tools: {}", self.machine.tools.join("; "))];
        if !self.skipped.is_empty() {
            head.push(format!("not there, so left out: {}", self.skipped.join(", ")));
        }
        head.push(format!(
            "4 KiB random reads of 256 MiB, {} interleaved rounds of {} ms: median, smallest, largest",
            self.rounds, self.measured_ms
        ));
        head
    }

    fn body(&self, style: Style) -> String {
        let (table, scheduling) = (style.table(&self.table()), self.scheduling.text(&self.cells));
        match style {
            Style::Text => format!("{table}\n{scheduling}"),
            Style::Markdown => format!("{table}\n## What scheduling costs\n\n```text\n{scheduling}```\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_the_median_of_its_own_rounds() {
        let seen = |iops: f64| Seen { requests: 1000, requests_in_all: 1000, iops, p99_ns: 5_000 };
        let run = |server, connections, iops, cpu_ns| OneRun {
            cell: Cell { server, driver: Driver::Own, placement: Placement::Free, connections, depth: 1 },
            seen: seen(iops),
            cpu_ns,
        };
        let runs = [
            run(Server::NbdkitMemory, 1, 300.0, 9_000_000),
            run(Server::NbdkitMemory, 1, 100.0, 7_000_000),
            run(Server::NbdkitMemory, 1, 200.0, 8_000_000),
            run(Server::NbdkitMemory, 2, 900.0, 1_000_000),
            run(Server::QemuNull, 1, 800.0, 1_000_000),
        ];
        let cells = cells(&[Server::NbdkitMemory], &[Driver::Own], &[Placement::Free], &runs);
        assert_eq!(cells.len(), 4, "one per setting");
        let first = &cells[0];
        assert_eq!((first.iops, first.iops_min, first.iops_max), (200.0, 100.0, 300.0));
        assert_eq!(first.server_cpu_ns_per_io, 8_000.0, "8 ms over 1,000 requests");
    }

    #[test]
    fn a_missing_program_is_named_once() {
        let mut skipped = Vec::new();
        assert!(is_there(Path::new("sh"), &mut skipped));
        assert!(!is_there(Path::new("no-such-program"), &mut skipped));
        assert!(!is_there(Path::new("no-such-program"), &mut skipped));
        assert_eq!(skipped, ["no-such-program"]);
    }
}
