//! `mqfq-lab bench clients`: what each front end costs, beside other servers on this machine.
//!
//! # What it measures
//! 4 KiB random reads of 256 MiB by one and two queues (of NBD: connections) at depth 1 and 32: requests per second,
//! CPU time of the server's process per request, and latency. The servers are ours on a device that does nothing and on
//! memory, under `mqfq` and `none`, and those of [`server::SERVERS`]; with `--device` all serve that file or block
//! device. The clients are others' work, virtio-driver for
//! vhost-user-blk and fio's engine for NBD, and our own NBD client.
//!
//! # Why in rounds
//! A machine drifts: other guests, heat, clocks. Each round runs every server once and begins with another one, so that
//! drift falls on all of them alike. A row has the median of its rounds with the smallest and largest; a ratio is taken
//! within each round. A difference smaller than the spread is none.
//!
//! # What would make it lie
//! Client and server share the machine, once freely, once each on half of its CPUs ([`placement`]): on two cores a
//! client that burns more slows every server.

mod driver;
pub mod placement;
pub mod server;
mod virtio;
pub mod watched;

use crate::machine;
use crate::options::Runs;
use crate::rounds::{Rounds, median, ratio};
use crate::shell::{Record, Results, Style, table, us, whole};
use driver::{Driver, Seen, Task};
use mqfq_report::progress::Progress;
use mqfq_report::table::Align::{Left, Right};
use placement::{Cpus, Placement};
use serde::{Deserialize, Serialize};
use server::{Front, Ground, Running, SERVERS, Server};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Options.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct ClientsOptions {
    /// Only this front end.
    #[arg(long, value_enum, conflicts_with = "watched")]
    pub front: Option<Front>,
    /// Measures our NBD server with a watching client beside without, and nothing else.
    #[arg(long)]
    pub watched: bool,
    /// A file or block device of 1MiB or more, which all servers serve and which is only read.
    #[arg(long, value_name = "PATH", conflicts_with = "watched")]
    pub device: Option<PathBuf>,
    /// The program `mqfq`, if not the one beside this one: to compare two builds.
    #[arg(long, value_name = "PROGRAM")]
    pub mqfq: Option<PathBuf>,
    /// How much is measured.
    #[command(flatten)]
    pub runs: Runs<5, 1000>,
}

/// Results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Clients {
    /// Other load of the machine: processes that wanted a CPU, a minute's mean, before and after.
    pub load: [f64; 2],
    /// File or block device that all served; `null`: each row names its own.
    pub device: Option<String>,
    /// One for each client, placement, setting and server.
    pub rows: Vec<ClientsRow>,
}

/// One server in one setting.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ClientsRow {
    /// `vhost-user-blk` or `nbd`.
    pub front: String,
    /// `mqfq`, `qemu-storage-daemon` or `nbdkit`.
    pub server: String,
    /// Its device, as it calls that.
    pub device: String,
    /// `mqfq` or `none` of ours; `-` of others, which have none.
    pub policy: String,
    /// Client: `virtio-driver`, `own` or `fio`.
    pub driver: String,
    /// `free`: the kernel places server and client; `apart`: each has half of the CPUs.
    pub placement: String,
    /// Queues, or connections.
    pub queues: u16,
    /// Requests in flight on each.
    pub depth: u16,
    /// Median of the rounds.
    pub requests_per_s: f64,
    /// Smallest of the rounds.
    pub requests_per_s_min: f64,
    /// Largest of the rounds.
    pub requests_per_s_max: f64,
    /// CPU time of the server's process per request, median of the rounds.
    pub cpu_ns_per_request: f64,
    /// Kernel's part of `cpu_ns_per_request`; the rest is the program's own.
    pub kernel_ns_per_request: f64,
    /// 99th percentile of request to completion as the client saw it, median of the rounds.
    pub p99_ns: u64,
    /// Requests per second as a part of those of ours under `mqfq`, by the same front end on a device of the same kind,
    /// median of the rounds' ratios.
    pub part_of_mqfq: f64,
}

/// Queues and depth.
const SETTINGS: [(u16, u16); 4] = [(1, 1), (2, 1), (1, 32), (2, 32)];

/// Runs everything and prints it.
///
/// # Errors
/// One sentence: a server that is there failed, or the record could not be written.
pub fn run(options: &ClientsOptions, json: bool) -> Result<(), String> {
    let mqfq = options.mqfq.clone().map_or_else(machine::product, Ok)?;
    if let Some(device) = &options.device {
        check_device(device)?;
    }
    match options.watched {
        true => watched::measure(options, &mqfq)?.publish(&options.runs, json),
        false => {
            measure(options, Ground { mqfq: &mqfq, file: options.device.as_deref() })?.publish(&options.runs, json)
        }
    }
}

/// Least bytes of a device that is given: clients read at random.
const DEVICE_BYTES_MIN: u64 = 1 << 20;

/// Refuses a device that servers would refuse, whose words are not shown.
///
/// # Errors
/// One sentence.
fn check_device(path: &Path) -> Result<(), String> {
    let failed = |error| format!("cannot read {}: {error}", path.display());
    let size_bytes = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0))).map_err(failed)?;
    match size_bytes >= DEVICE_BYTES_MIN {
        true if path.is_dir() => Err(format!("{} is a folder, and no file or block device", path.display())),
        true => Ok(()),
        false => Err(format!("{} has {size_bytes} bytes, allowed is 1MiB or more", path.display())),
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct OneRun {
    seen: Seen,
    /// CPU time of the server's process: of the program itself, and in the kernel.
    cpu_ns: [u64; 2],
}

impl OneRun {
    fn per_request(&self, cpu_ns: u64) -> f64 {
        cpu_ns as f64 / self.seen.requests_in_all.max(1) as f64
    }
}

/// Measurement of a server: client, placement, and place in [`SETTINGS`].
type Case = (Driver, Placement, usize);

/// Rounds by case and by the server's place in the list.
type All = BTreeMap<(Case, usize), Vec<OneRun>>;

fn measure(options: &ClientsOptions, ground: Ground<'_>) -> Result<Record<Clients>, String> {
    let mut notes = Vec::new();
    let mut is_there = |server: &Server| {
        let name = server.path(ground);
        let there = machine::has_program(&name);
        let note = format!("{} is not there, so it is left out", name.display());
        if !there && !notes.contains(&note) {
            notes.push(note);
        }
        there
    };
    let wanted = |server: &Server| server.is_of(ground) && options.front.is_none_or(|front| server.front == front);
    let servers: Vec<Server> = SERVERS.into_iter().filter(wanted).filter(&mut is_there).collect();
    if !Driver::Fio.is_there() {
        notes.push("fio with ioengine=nbd is not there, so it is left out".into());
    }
    let cpus = Cpus::allowed()?;
    let rounds = options.runs.rounds as usize;
    let mut progress = Progress::new(rounds * servers.len() * cpus.placements().len());
    let load_before = load();
    let mut all = All::new();
    for round in 0..rounds {
        for step in 0..servers.len() {
            let at = (step + round) % servers.len();
            let Server { front, program, device, policy } = servers[at];
            for &placement in cpus.placements() {
                let name = format!("{} of {program} {device}, {policy}", front.name());
                progress.step(&format!("round {} of {rounds}: {name}, {}", round + 1, placement.name()));
                cpus.be_server(placement)?;
                let running = Running::start(servers[at], ground)?;
                cpus.be_driver(placement)?;
                for driver in Driver::of(front) {
                    for (setting, (queues, depth)) in SETTINGS.into_iter().enumerate() {
                        let before_ns = running.user_and_kernel_ns()?;
                        let (socket, measured_ms) = (&running.socket(), options.runs.measured_ms);
                        let seen = driver.run(&Task { socket, export: "e", queues, depth, measured_ms });
                        let seen = seen.map_err(|error| format!("{name}: {error}"))?;
                        let after_ns = running.user_and_kernel_ns()?;
                        let cpu_ns = [0, 1].map(|part| after_ns[part] - before_ns[part]);
                        let case = (driver, placement, setting);
                        all.entry((case, at)).or_default().push(OneRun { seen, cpu_ns });
                    }
                }
            }
        }
    }
    drop(cpus);
    progress.finish();
    let device = ground.file.map(|file| file.display().to_string());
    let results = Clients { load: [load_before, load()], device, rows: rows(&servers, &all) };
    let record = Record::new(results, &options.runs, &["fio", "nbdkit", "qemu-storage-daemon"]);
    Ok(Record { notes, ..record })
}

/// One row for each case and server, in the order of the cases.
fn rows(servers: &[Server], all: &All) -> Vec<ClientsRow> {
    let row = |(&((driver, placement, setting), at), runs): (&(Case, usize), &Vec<OneRun>)| {
        let server = servers[at];
        let ours = servers.iter().position(|ours| server.is_compared_with(ours));
        let ours = ours.and_then(|ours| all.get(&((driver, placement, setting), ours)));
        let rate = Rounds::of(runs.iter().map(|run| run.seen.iops));
        ClientsRow {
            front: server.front.name().into(),
            server: server.program.into(),
            device: server.device.into(),
            policy: server.policy.into(),
            driver: driver.name().into(),
            placement: placement.name().into(),
            queues: SETTINGS[setting].0,
            depth: SETTINGS[setting].1,
            requests_per_s: rate.median(),
            requests_per_s_min: rate.smallest(),
            requests_per_s_max: rate.largest(),
            cpu_ns_per_request: median(runs, |run| run.per_request(run.cpu_ns.iter().sum())),
            kernel_ns_per_request: median(runs, |run| run.per_request(run.cpu_ns[1])),
            p99_ns: median(runs, |run| run.seen.p99_ns as f64) as u64,
            part_of_mqfq: ours.map_or(0.0, |ours| ratio(runs, ours, |run| run.seen.iops)),
        }
    };
    all.iter().map(row).collect()
}

/// Processes that want a CPU, a minute's mean.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

impl Results for Clients {
    const NAME: &'static str = "clients";
    const TITLE: &'static str = "Front ends: requests per second beside other servers";

    fn head(&self) -> Vec<String> {
        let [before, after] = self.load;
        let load = format!("load of the machine, a minute's mean: {before} before, {after} after");
        vec![load, format!("4 KiB random reads of {}", self.device.as_deref().unwrap_or("256 MiB"))]
    }

    fn body(&self, style: Style) -> String {
        style.table(&table(
            &self.rows,
            &[
                ("client", Left, |row: &ClientsRow| row.driver.clone()),
                ("placement", Left, |row| row.placement.clone()),
                ("queues x depth", Right, |row| format!("{} x {}", row.queues, row.depth)),
                ("server", Left, |row| format!("{} {}, {}", row.server, row.device, row.policy)),
                ("requests/s", Right, |row| whole(row.requests_per_s)),
                ("min", Right, |row| whole(row.requests_per_s_min)),
                ("max", Right, |row| whole(row.requests_per_s_max)),
                ("of mqfq's", Right, |row| format!("{:.2}", row.part_of_mqfq)),
                ("server CPU ns", Right, |row| whole(row.cpu_ns_per_request)),
                ("of it kernel", Right, |row| whole(row.kernel_ns_per_request)),
                ("p99 us", Right, |row| us(row.p99_ns as f64)),
            ],
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_or_too_small_is_refused_in_a_sentence() {
        let folder = mqfq_demo::scratch::Scratch::new().unwrap();
        let path = folder.path().join("device");
        assert!(check_device(&path).unwrap_err().starts_with(&format!("cannot read {}: ", path.display())));
        assert!(check_device(Path::new("/")).is_err());
        let file = File::create(&path).unwrap();
        for (size_bytes, is_taken) in [(DEVICE_BYTES_MIN - 1, false), (DEVICE_BYTES_MIN, true)] {
            file.set_len(size_bytes).unwrap();
            assert_eq!(check_device(&path).is_ok(), is_taken);
        }
    }

    #[test]
    fn a_row_is_the_median_of_its_rounds_and_is_compared_with_ours_of_the_same_front_and_round() {
        let run = |iops: f64| OneRun {
            seen: Seen { requests: 10, requests_in_all: 20, iops, p99_ns: 1_000 },
            cpu_ns: [150, 50],
        };
        let of = |program, device| {
            SERVERS.into_iter().find(|one| (one.front, one.program, one.device) == (Front::Nbd, program, device))
        };
        let servers = [of("mqfq", "null"), of("nbdkit", "null"), of("nbdkit", "memory")].map(Option::unwrap);
        // The machine halves its speed in the second round.
        let rates = [[1000.0, 500.0], [900.0, 450.0], [10.0, 30.0]];
        let all = (0..3).map(|at| (((Driver::Own, Placement::Free, 2), at), rates[at].map(run).to_vec())).collect();
        let rows = rows(&servers, &all);
        assert_eq!(rows.iter().map(|row| row.part_of_mqfq).collect::<Vec<_>>(), [1.0, 0.9, 0.0], "no memory of ours");
        assert_eq!((rows[1].server.as_str(), rows[1].policy.as_str()), ("nbdkit", "-"));
        assert_eq!((rows[1].queues, rows[1].depth, rows[1].cpu_ns_per_request), (1, 32, 10.0));
        assert_eq!(rows[1].kernel_ns_per_request, 2.5);
        assert_eq!(
            [rows[2].requests_per_s, rows[2].requests_per_s_min, rows[2].requests_per_s_max],
            [20.0, 10.0, 30.0]
        );
    }
}
