//! `mqfq-lab bench attach`: what each front end costs, beside its best peers on this machine.
//!
//! # What it measures
//! 4 KiB random reads of 256 MiB of a device that does nothing, by one and two queues (of NBD: connections) at depth 1
//! and 32: requests per second, CPU time of the server's process per request, and latency. The clients are others'
//! work: virtio-driver for vhost-user-blk, fio's engine for NBD.
//!
//! # How
//! In interleaved rounds, as [`crate::nbd_record`] explains, and in its two placements. A ratio is taken within each
//! round.
//!
//! # What would make it lie
//! docs/lab/attach.md, "Pitfalls".

mod peer;
mod virtio;

use crate::machine::{self, Machine};
use crate::nbd_record::driver::{self, Driver, Seen, Task};
use crate::nbd_record::placement::{Cpus, Placement};
use crate::nbd_record::{is_there, product};
use crate::rounds::{Rounds, median, ratio};
use crate::shell::{self, Output, Results, Style, place_line};
use mqfq_report::progress::Progress;
use mqfq_report::table::{Align, Table};
use peer::{Front, PEERS, Running, Server};
use serde::{Deserialize, Serialize};
use std::path::Path;
use virtio::Guest;

/// What to run.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct AttachOptions {
    /// How much is measured.
    #[command(flatten)]
    pub runs: crate::options::Runs<1000>,
    /// Where the record goes.
    #[command(flatten)]
    pub keep: crate::options::Keep,
}

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AttachRecord {
    /// Day, UTC.
    pub date: String,
    /// The machine that it was measured on.
    pub machine: Machine,
    /// What else the machine did: processes that wanted a CPU, a minute's mean, before and after.
    pub load: [f64; 2],
    /// Rounds, interleaved.
    pub rounds: u32,
    /// Length of each measurement, milliseconds.
    pub measured_ms: u64,
    /// Servers and clients that were not there.
    pub skipped: Vec<String>,
    /// One for each server, setting and placement.
    pub rows: Vec<AttachRow>,
}

/// One server in one setting.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AttachRow {
    /// `vhost-user-blk` or `nbd`.
    pub front: String,
    /// `mqfq`, `qemu-storage-daemon` or `nbdkit`.
    pub server: String,
    /// `mqfq` or `none` of ours; `null` of others, which have none.
    pub policy: String,
    /// Queues, or connections.
    pub queues: u16,
    /// Requests in flight on each.
    pub depth: u16,
    /// `free`: the kernel places server and client; `apart`: each has half of the CPUs.
    pub placement: String,
    /// Median of the rounds.
    pub requests_per_s: f64,
    /// Smallest of the rounds.
    pub requests_per_s_min: f64,
    /// Largest of the rounds.
    pub requests_per_s_max: f64,
    /// CPU time of the server's process per request, median of the rounds.
    pub cpu_ns_per_request: f64,
    /// 99th percentile of request to completion as the client saw it, median of the rounds.
    pub p99_ns: u64,
    /// Requests per second as a part of those of `mqfq` under policy `mqfq` by the same front end, median of the
    /// rounds' ratios.
    pub part_of_mqfq: f64,
}

/// Queues and depth.
const SETTINGS: [(u16, u16); 3] = [(1, 1), (1, 32), (2, 32)];

/// Runs everything and prints it.
///
/// # Errors
/// One sentence: a server that is there failed, or the record could not be written.
pub fn run(options: &AttachOptions, json: bool) -> Result<(), String> {
    let mut record = measure(options, &product()?)?;
    shell::publish(&mut record, Output { json, out: None, record: options.keep.record.as_deref() })
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct OneRun {
    seen: Seen,
    cpu_ns: u64,
}

fn measure(options: &AttachOptions, mqfq: &Path) -> Result<AttachRecord, String> {
    let mut skipped = Vec::new();
    let has_fio = driver::fio_is_there();
    if !has_fio {
        skipped.push("fio with ioengine=nbd".into());
    }
    let peers: Vec<(Front, Server)> = PEERS
        .into_iter()
        .filter(|(front, server)| (has_fio || *front != Front::Nbd) && is_there(&server.program(mqfq), &mut skipped))
        .collect();
    let cpus = Cpus::allowed()?;
    let placements = cpus.placements();
    let rounds = options.runs.rounds.max(1);
    let mut progress = Progress::new(rounds as usize * peers.len() * placements.len());
    let load_before = load();
    // By peer, placement and setting, in the order of the rows; one for each round.
    let mut runs: Vec<Vec<OneRun>> = vec![Vec::new(); peers.len() * placements.len() * SETTINGS.len()];
    for round in 0..rounds {
        for step in 0..peers.len() {
            let at = (step + round as usize) % peers.len();
            let (front, server) = peers[at];
            for (which, &placement) in placements.iter().enumerate() {
                let name = format!("{} of {} {}", front.name(), server.name(), server.policy());
                progress.step(&format!("round {} of {rounds}: {name}, {}", round + 1, placement.name()));
                cpus.be_server(placement)?;
                let running = Running::start(front, server, mqfq)?;
                cpus.be_driver(placement)?;
                for (setting, (queues, depth)) in SETTINGS.into_iter().enumerate() {
                    let before_ns = running.cpu_ns()?;
                    let seen = drive(front, running.socket(), queues, depth, options.runs.measured_ms);
                    let seen = seen.map_err(|error| format!("{name}: {error}"))?;
                    let run = OneRun { seen, cpu_ns: running.cpu_ns()? - before_ns };
                    runs[(at * placements.len() + which) * SETTINGS.len() + setting].push(run);
                }
            }
        }
    }
    drop(cpus);
    progress.finish();
    Ok(AttachRecord {
        date: machine::today(),
        machine: Machine::this(options.keep.host.as_deref(), &["fio", "nbdkit", "qemu-storage-daemon"]),
        load: [load_before, load()],
        rounds,
        measured_ms: options.runs.measured_ms,
        skipped,
        rows: rows(&peers, placements, &runs),
    })
}

fn drive(front: Front, socket: &Path, queues: u16, depth: u16, measured_ms: u64) -> Result<Seen, String> {
    match front {
        Front::VhostUserBlk => Guest::attach(socket, queues, depth)?.read(measured_ms),
        Front::Nbd => Driver::Fio.run(&Task { socket, export: "e", connections: queues, depth, measured_ms }),
    }
}

fn rows(peers: &[(Front, Server)], placements: &[Placement], runs: &[Vec<OneRun>]) -> Vec<AttachRow> {
    let of = |peer: usize, which: usize, setting: usize| -> &[OneRun] {
        &runs[(peer * placements.len() + which) * SETTINGS.len() + setting]
    };
    let mut rows = Vec::new();
    for (which, placement) in placements.iter().enumerate() {
        for (setting, (queues, depth)) in SETTINGS.into_iter().enumerate() {
            for (at, (front, server)) in peers.iter().enumerate() {
                let ours = peers.iter().position(|other| *other == (*front, Server::Mqfq("mqfq")));
                let (runs, ours) = (of(at, which, setting), ours.map(|ours| of(ours, which, setting)));
                let iops = Rounds::of(runs.iter().map(|run| run.seen.iops));
                rows.push(AttachRow {
                    front: front.name().into(),
                    server: server.name().into(),
                    policy: server.policy().into(),
                    queues,
                    depth,
                    placement: placement.name().into(),
                    requests_per_s: iops.median(),
                    requests_per_s_min: iops.smallest(),
                    requests_per_s_max: iops.largest(),
                    cpu_ns_per_request: median(runs, |run| run.cpu_ns as f64 / run.seen.requests_in_all.max(1) as f64),
                    p99_ns: median(runs, |run| run.seen.p99_ns as f64) as u64,
                    part_of_mqfq: ours.map_or(0.0, |ours| ratio(runs, ours, |run| run.seen.iops)),
                });
            }
        }
    }
    rows
}

/// Processes that want a CPU, a minute's mean.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

impl Results for AttachRecord {
    const NAME: &'static str = "attach";
    const TITLE: &'static str = "Front ends: requests per second beside other servers";

    fn place(&self) -> (&Machine, &str) {
        (&self.machine, &self.date)
    }

    fn head(&self) -> Vec<String> {
        let mut head = vec![place_line(&self.date, &self.machine), format!("tools: {}", self.machine.tools.join("; "))];
        if !self.skipped.is_empty() {
            head.push(format!("not there, so left out: {}", self.skipped.join(", ")));
        }
        let [before, after] = self.load;
        head.push(format!("load of the machine, a minute's mean: {before} before, {after} after"));
        head.push(format!(
            "4 KiB random reads of 256 MiB, {} interleaved rounds of {} ms: median, smallest, largest",
            self.rounds, self.measured_ms
        ));
        head
    }

    fn body(&self, style: Style) -> String {
        let mut table = Table::new(&[
            ("front", Align::Left),
            ("placement", Align::Left),
            ("queues x depth", Align::Right),
            ("server", Align::Left),
            ("requests/s", Align::Right),
            ("min", Align::Right),
            ("max", Align::Right),
            ("of mqfq's", Align::Right),
            ("server CPU ns", Align::Right),
            ("p99 us", Align::Right),
        ]);
        for row in &self.rows {
            table.row(vec![
                row.front.clone(),
                row.placement.clone(),
                format!("{} x {}", row.queues, row.depth),
                format!("{}, {}", row.server, row.policy),
                format!("{:.0}", row.requests_per_s),
                format!("{:.0}", row.requests_per_s_min),
                format!("{:.0}", row.requests_per_s_max),
                format!("{:.2}", row.part_of_mqfq),
                format!("{:.0}", row.cpu_ns_per_request),
                format!("{:.0}", row.p99_ns as f64 / 1e3),
            ]);
        }
        style.table(&table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_compared_with_ours_of_the_same_front_and_round() {
        let run =
            |iops: f64| OneRun { seen: Seen { requests: 10, requests_in_all: 20, iops, p99_ns: 1_000 }, cpu_ns: 200 };
        let peers = [(Front::Nbd, Server::Mqfq("mqfq")), (Front::Nbd, Server::Nbdkit)];
        // The machine halves its speed in the second round.
        let ours = vec![run(1000.0), run(500.0)];
        let theirs = vec![run(900.0), run(450.0)];
        let runs = [vec![ours; SETTINGS.len()], vec![theirs; SETTINGS.len()]].concat();
        let rows = rows(&peers, &[Placement::Free], &runs);
        assert_eq!(rows.len(), peers.len() * SETTINGS.len());
        assert_eq!((rows[0].part_of_mqfq, rows[1].part_of_mqfq), (1.0, 0.9));
        assert_eq!((rows[1].server.as_str(), rows[1].policy.as_str()), ("nbdkit", "null"));
        assert_eq!((rows[1].requests_per_s, rows[1].cpu_ns_per_request), (675.0, 10.0));
    }
}
