//! `mqfq-lab bench nbd --watched`: does a server serve less while somebody watches it?
//!
//! # What it measures
//! Two servers of the same exports on a device that does nothing. One has no control plane. The other has one, its
//! metrics are scraped each second, and its page is open: its streams of snapshots and of events are read. Both run all
//! the time, and reads of one and then of the other are measured in turns; only the one that is driven is watched.
//!
//! # Processor time
//! Of the server's workers, and of all its threads, over the requests: the kernel's (`schedstat`), so that what other
//! processes do does not count. What the workers spend is what a request costs; the rest is what watching costs.
//!
//! # What would make it lie
//! On a machine whose cores are all busy the scrape takes a core from somebody, if for a short time: wall-clock figures
//! have that in them, and the processor time of a worker has what its caches lose by it.

use super::driver::{Driver, Seen, Task};
use super::server::EXPORT_BYTES;
use super::{NbdRecordOptions, product};
use crate::machine::{self, Machine};
use crate::rounds::{interleaved, median, ratio};
use crate::shell::{self, Output, Results, Style, place_line};
use mqfq_demo::load::Load;
use mqfq_demo::load_nbd::NbdTenant;
use mqfq_demo::scratch::Scratch;
use mqfq_report::progress::Progress;
use mqfq_report::table::{Align, Table};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Tenants of each server, all of which have been served once: lines of a scrape.
const TENANTS: usize = 200;

/// Connections and depth.
const SETTINGS: [(u16, u16); 3] = [(1, 1), (2, 1), (2, 32)];

/// Between two scrapes.
const SCRAPE: Duration = Duration::from_secs(1);

/// From a server's start to its first answer, at most.
const START_MAX: Duration = Duration::from_secs(20);

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WatchedRecord {
    /// Day, UTC.
    pub date: String,
    /// The machine that it was measured on.
    pub machine: Machine,
    /// Rounds, interleaved.
    pub rounds: u32,
    /// Length of each measurement, milliseconds.
    pub measured_ms: u64,
    /// Tenants of each server.
    pub tenants: u64,
    /// Scrapes that were made while something was measured, all together.
    pub scrapes: u64,
    /// Bytes of the last one.
    pub scrape_bytes: u64,
    /// Snapshots and events that were read, bytes, all together.
    pub stream_bytes: u64,
    /// One for each setting.
    pub rows: Vec<WatchedRow>,
}

/// A setting: medians of the rounds, without and with somebody who watches, and of the rounds' ratios.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WatchedRow {
    /// Connections.
    pub connections: u16,
    /// Requests in flight on each.
    pub depth: u16,
    /// Requests per second.
    pub requests_per_s: Compared,
    /// Processor time of the workers for each request, ns.
    pub worker_ns: Compared,
    /// Processor time of all threads of the server for each request, ns.
    pub server_ns: Compared,
    /// 99th percentile of request to completion, us.
    pub p99_us: Compared,
}

/// A figure of both.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Compared {
    /// Without a control plane.
    pub without: f64,
    /// While somebody watches.
    pub with: f64,
    /// Median of the ratios of with to without, each within its round.
    pub ratio: f64,
}

/// Runs everything and prints it.
///
/// # Errors
/// One sentence: a server that failed, or the record could not be written.
pub fn run(options: &NbdRecordOptions, json: bool) -> Result<(), String> {
    let program = options.mqfq.clone().map_or_else(product, Ok)?;
    let mut record = measure(options, &program)?;
    shell::publish(&mut record, Output { json, out: None, record: options.keep.record.as_deref() })
}

struct OneRun {
    seen: Seen,
    workers_ns: u64,
    server_ns: u64,
}

fn measure(options: &NbdRecordOptions, program: &Path) -> Result<WatchedRecord, String> {
    let servers = [Watched::start(program, false)?, Watched::start(program, true)?];
    let rounds = options.runs.rounds.max(1);
    let mut progress = Progress::new(rounds as usize * SETTINGS.len() * 2);
    let seen = Sums::default();
    let name = |at: usize| {
        let ((connections, depth), with) = (SETTINGS[at / 2], ["without", "with"][at % 2]);
        format!("{connections} x {depth}, {with}")
    };
    let runs = interleaved(rounds, (SETTINGS.len() * 2, 2), &mut progress, name, |at| {
        let (server, (connections, depth)) = (&servers[at % 2], SETTINGS[at / 2]);
        let measured_ms = options.runs.measured_ms;
        let task = Task { socket: &server.socket, export: "export-0", connections, depth, measured_ms };
        server.while_watched(&seen, || {
            let before = server.on_cpu_ns()?;
            let driven = Driver::Own.run(&task)?;
            let after = server.on_cpu_ns()?;
            Ok(OneRun { seen: driven, workers_ns: after.0 - before.0, server_ns: after.1 - before.1 })
        })
    })?;
    progress.finish();
    let rows = SETTINGS.iter().zip(runs.chunks(2));
    // Relaxed: the threads that wrote it have ended.
    let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
    Ok(WatchedRecord {
        date: machine::today(),
        machine: Machine::this(options.keep.host.as_deref(), &[]),
        rounds,
        measured_ms: options.runs.measured_ms,
        tenants: TENANTS as u64,
        scrapes: read(&seen.scrapes),
        scrape_bytes: read(&seen.scrape_bytes),
        stream_bytes: read(&seen.stream_bytes),
        rows: rows.map(|(setting, both)| row(*setting, &both[0], &both[1])).collect(),
    })
}

fn row((connections, depth): (u16, u16), without: &[OneRun], with: &[OneRun]) -> WatchedRow {
    let compared = |value: &dyn Fn(&OneRun) -> f64| Compared {
        without: median(without, value),
        with: median(with, value),
        ratio: ratio(with, without, value),
    };
    let each = |ns: u64, run: &OneRun| ns as f64 / run.seen.requests_in_all.max(1) as f64;
    WatchedRow {
        connections,
        depth,
        requests_per_s: compared(&|run| run.seen.iops),
        worker_ns: compared(&|run| each(run.workers_ns, run)),
        server_ns: compared(&|run| each(run.server_ns, run)),
        p99_us: compared(&|run| run.seen.p99_ns as f64 / 1e3),
    }
}

/// What those who watch have read.
#[derive(Default)]
struct Sums {
    scrapes: AtomicU64,
    scrape_bytes: AtomicU64,
    stream_bytes: AtomicU64,
}

/// A server that answers. Dropping it ends it.
struct Watched {
    child: Child,
    socket: PathBuf,
    /// `None`: it has no control plane.
    control: Option<PathBuf>,
    _scratch: Scratch,
}

impl Drop for Watched {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config_text(socket: &Path, control: Option<&Path>) -> String {
    let each = EXPORT_BYTES / 256;
    let mut text = match control {
        Some(control) => format!("[control]\nlisten = \"unix:{}\"\n", control.display()),
        None => String::new(),
    };
    text +=
        &format!("[device.d]\nkind = \"null\"\nsize = {}\npolicy = \"mqfq\"\n", EXPORT_BYTES + each * TENANTS as u64);
    for n in 0..TENANTS {
        // The one that is driven has what the other benches read.
        let (offset, size) = if n == 0 { (0, EXPORT_BYTES) } else { (EXPORT_BYTES + each * n as u64, each) };
        text += &format!(
            "[tenant.tenant-{n}]\n[export.export-{n}]\ndevice = \"d\"\ntenant = \"tenant-{n}\"\noffset = {offset}\n\
             size = {size}\nnbd = \"unix:{}\"\n",
            socket.display()
        );
    }
    text
}

impl Watched {
    fn start(program: &Path, has_control: bool) -> Result<Watched, String> {
        let scratch = Scratch::new()?;
        let (socket, config) = (scratch.path().join("nbd"), scratch.path().join("mqfq.toml"));
        let control = has_control.then(|| scratch.path().join("control"));
        let failed = |error: std::io::Error| format!("cannot start {}: {error}", program.display());
        std::fs::write(&config, config_text(&socket, control.as_deref())).map_err(failed)?;
        let mut command = Command::new(program);
        command.arg("serve").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Watched { child: command.spawn().map_err(failed)?, socket, control, _scratch: scratch };
        let until = Instant::now() + START_MAX;
        for n in 0..TENANTS {
            let load = Load::random_reads(1, 1, 4096);
            let mut tenant = loop {
                match NbdTenant::attach(&server.socket, &format!("export-{n}"), &load) {
                    Ok(tenant) => break tenant,
                    Err(error) if Instant::now() > until => return Err(format!("the server does not answer: {error}")),
                    Err(_) => thread::park_timeout(Duration::from_millis(10)),
                }
            };
            tenant.run_requests(1)?;
            tenant.detach();
        }
        Ok(server)
    }

    /// Processor time of the workers, and of all threads with those that have ended, ns; the latter in steps of 10 ms.
    fn on_cpu_ns(&self) -> Result<(u64, u64), String> {
        let folder = PathBuf::from(format!("/proc/{}/task", self.child.id()));
        let tasks = std::fs::read_dir(&folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
        let is_worker = |task: &PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("mqfq-worker"))
        };
        let on_cpu_ns = |task: PathBuf| {
            let text = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
            text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0)
        };
        let workers_ns = tasks.flatten().map(|task| task.path()).filter(is_worker).map(on_cpu_ns).sum();
        Ok((workers_ns, super::cpu_ns_of(self.child.id())?))
    }

    /// Calls `of` while the server is watched, if it can be.
    fn while_watched<T>(&self, sums: &Sums, of: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let Some(control) = &self.control else { return of() };
        let streams = ["/v1/live", "/v1/events?after=0"].map(|path| ask(control, path));
        let [live, events] = streams;
        let (live, events) = (live?, events?);
        let copies = [&live, &events].map(UnixStream::try_clone);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for mut stream in [live, events] {
                scope.spawn(move || {
                    let mut bytes = [0; 1 << 14];
                    while let Ok(read @ 1..) = stream.read(&mut bytes) {
                        // Relaxed, here and below: counts for the report.
                        sums.stream_bytes.fetch_add(read as u64, Ordering::Relaxed);
                    }
                });
            }
            let scraper = scope.spawn(|| {
                // Relaxed: nothing else is read because of it.
                while !is_over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    let mut text = Vec::new();
                    let read = ask(control, "/metrics").and_then(|mut stream| {
                        stream.read_to_end(&mut text).map_err(|error| format!("a scrape: {error}"))
                    });
                    read?;
                    if !text.windows(5).any(|bytes| bytes == b"# EOF") {
                        return Err("a scrape has no end".to_owned());
                    }
                    // Relaxed: as above.
                    sums.scrapes.fetch_add(1, Ordering::Relaxed);
                    sums.scrape_bytes.store(text.len() as u64, Ordering::Relaxed);
                    thread::park_timeout(SCRAPE.saturating_sub(start.elapsed()));
                }
                Ok(())
            });
            let done = of();
            // Relaxed: as above.
            is_over.store(true, Ordering::Relaxed);
            scraper.thread().unpark();
            let scraped = scraper.join().unwrap_or_else(|_| Err("the thread that scrapes has panicked".to_owned()));
            // The streams' ends, for whoever reads them.
            for copy in copies.into_iter().flatten() {
                // One that is closed already has ended, too.
                let _ = copy.shutdown(std::net::Shutdown::Both);
            }
            scraped.and(done)
        })
    }
}

/// A request without a body; what comes back is in the stream.
fn ask(control: &Path, path: &str) -> Result<UnixStream, String> {
    let failed = |error: std::io::Error| format!("{path}: {error}");
    let mut stream = UnixStream::connect(control).map_err(failed)?;
    let accept = "application/openmetrics-text, */*;q=0.5";
    write!(stream, "GET {path} HTTP/1.1\r\nhost: mqfq\r\naccept: {accept}\r\nconnection: close\r\n\r\n")
        .map_err(failed)?;
    Ok(stream)
}

impl Results for WatchedRecord {
    const NAME: &'static str = "watched";
    const TITLE: &'static str = "NBD: with somebody who watches, beside without";

    fn place(&self) -> (&Machine, &str) {
        (&self.machine, &self.date)
    }

    fn head(&self) -> Vec<String> {
        vec![
            place_line(&self.date, &self.machine),
            format!(
                "4 KiB random reads of a null device under mqfq, {} tenants; {} interleaved rounds of {} ms: medians, and \
                 the median of the rounds' ratios",
                self.tenants, self.rounds, self.measured_ms
            ),
            format!(
                "with: {} scrapes of {} KB, one a second, and {} KB of snapshots and events",
                self.scrapes,
                self.scrape_bytes / 1000,
                self.stream_bytes / 1000
            ),
        ]
    }

    fn body(&self, style: Style) -> String {
        let mut table = Table::new(&[
            ("connections x depth", Align::Right),
            ("figure", Align::Left),
            ("without", Align::Right),
            ("with", Align::Right),
            ("ratio", Align::Right),
        ]);
        for row in &self.rows {
            let figures = [
                ("requests/s", row.requests_per_s),
                ("CPU ns/request of the workers", row.worker_ns),
                ("CPU ns/request of the server", row.server_ns),
                ("p99 us", row.p99_us),
            ];
            for (name, Compared { without, with, ratio }) in figures {
                table.row(vec![
                    format!("{} x {}", row.connections, row.depth),
                    name.to_owned(),
                    format!("{without:.0}"),
                    format!("{with:.0}"),
                    format!("{ratio:.3}"),
                ]);
            }
        }
        style.table(&table)
    }
}
