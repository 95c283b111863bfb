//! `mqfq-lab bench clients --watched`: does a server serve less while a client watches it?
//!
//! # What it measures
//! Two servers of the same exports on a device that does nothing. One has no control plane. The other has one, its
//! metrics are scraped each second, and its page is open: its streams of snapshots and of events are read. Both run all
//! the time, and reads of one and then of the other are measured in turns; only the one that is driven is watched.
//!
//! # Processor time
//! Time of the server's workers, and of all its threads, over the requests: the kernel's (`schedstat`), so that the
//! work of other processes does not count. The time of the workers is the cost of a request; the rest is the cost of
//! watching.
//!
//! # What would make it lie
//! On a machine whose cores are all busy the scrape takes a core from another thread, if for a short time: wall-clock
//! figures have that in them, and the processor time of a worker includes what its caches lose by it.

use super::ClientsOptions;
use super::driver::{Driver, Seen, Task};
use super::server::{EXPORT_BYTES, Running};
use crate::rounds::{interleaved, median, ratio};
use crate::shell::{Record, Results, Style, table, whole};
use mqfq_demo::load::Load;
use mqfq_demo::load_nbd::NbdTenant;
use mqfq_report::progress::Progress;
use mqfq_report::table::Align::{Left, Right};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Tenants of each server, all of which have been served once: lines of a scrape.
const TENANTS: usize = 200;

/// Connections and depth.
const SETTINGS: [(u16, u16); 3] = [(1, 1), (2, 1), (2, 32)];

/// Between two scrapes.
const SCRAPE: Duration = Duration::from_secs(1);

/// Results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Watched {
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

/// A setting: medians of the rounds, without and with a watching client, and of the rounds' ratios.
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
    /// While a client watches.
    pub with: f64,
    /// Median of the ratios of with to without, each within its round.
    pub ratio: f64,
}

struct OneRun {
    seen: Seen,
    workers_ns: u64,
    server_ns: u64,
}

/// Runs everything.
///
/// # Errors
/// One sentence: a server that failed.
pub fn measure(options: &ClientsOptions, mqfq: &Path) -> Result<Record<Watched>, String> {
    let servers = [start(mqfq, false)?, start(mqfq, true)?];
    let rounds = options.runs.rounds;
    let mut progress = Progress::new(rounds as usize * SETTINGS.len() * 2);
    let seen = Sums::default();
    let name = |at: usize| {
        let ((connections, depth), with) = (SETTINGS[at / 2], ["without", "with"][at % 2]);
        format!("{connections} x {depth}, {with}")
    };
    let runs = interleaved(rounds, (SETTINGS.len() * 2, 2), &mut progress, name, |at| {
        let (server, (queues, depth)) = (&servers[at % 2], SETTINGS[at / 2]);
        let measured_ms = options.runs.measured_ms;
        let drive = || {
            let task = Task { socket: &server.path("nbd"), export: "export-0", queues, depth, measured_ms };
            let before = (server.on_cpu_ns("mqfq-worker")?, server.cpu_ns()?);
            let seen = Driver::Own.run(&task)?;
            let after = (server.on_cpu_ns("mqfq-worker")?, server.cpu_ns()?);
            Ok(OneRun { seen, workers_ns: after.0 - before.0, server_ns: after.1 - before.1 })
        };
        if at % 2 == 0 { drive() } else { while_watched(&server.path("control"), &seen, drive) }
    })?;
    progress.finish();
    let rows = SETTINGS.iter().zip(runs.chunks(2));
    // Relaxed: the threads that wrote it have ended.
    let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
    let results = Watched {
        tenants: TENANTS as u64,
        scrapes: read(&seen.scrapes),
        scrape_bytes: read(&seen.scrape_bytes),
        stream_bytes: read(&seen.stream_bytes),
        rows: rows.map(|(setting, both)| row(*setting, &both[0], &both[1])).collect(),
    };
    Ok(Record::new(results, &options.runs, &[]))
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

#[derive(Default)]
struct Sums {
    scrapes: AtomicU64,
    scrape_bytes: AtomicU64,
    stream_bytes: AtomicU64,
}

fn config_text(folder: &Path, has_control: bool) -> String {
    let each = EXPORT_BYTES / 256;
    let at = folder.display();
    let control = format!("[control]\nlisten = \"unix:{at}/control\"\n");
    let mut text = if has_control { control } else { String::new() };
    text +=
        &format!("[device.d]\nkind = \"null\"\nsize = {}\npolicy = \"mqfq\"\n", EXPORT_BYTES + each * TENANTS as u64);
    for n in 0..TENANTS {
        // The one that is driven has what the other benches read.
        let (offset, size) = if n == 0 { (0, EXPORT_BYTES) } else { (EXPORT_BYTES + each * n as u64, each) };
        text += &format!(
            "[tenant.tenant-{n}]\n[export.export-{n}]\ndevice = \"d\"\ntenant = \"tenant-{n}\"\noffset = {offset}\n\
             size = {size}\nnbd = \"unix:{at}/nbd\"\n"
        );
    }
    text
}

/// A server that has served each tenant once.
fn start(mqfq: &Path, has_control: bool) -> Result<Running, String> {
    let sockets = if has_control { &["nbd", "control"][..] } else { &["nbd"] };
    let server = Running::serve(mqfq, |folder| config_text(folder, has_control), sockets)?;
    for n in 0..TENANTS {
        let load = Load::random_reads(1, 1, 4096);
        let mut tenant = NbdTenant::attach(&server.path("nbd"), &format!("export-{n}"), &load)?;
        tenant.run_requests(1)?;
        tenant.detach();
    }
    Ok(server)
}

/// Calls `of` while the server of this control plane is watched.
fn while_watched<T>(control: &Path, sums: &Sums, of: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
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
                let read = ask(control, "/metrics")
                    .and_then(|mut stream| stream.read_to_end(&mut text).map_err(|error| format!("a scrape: {error}")));
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
        // Ends the streams for their readers.
        for copy in copies.into_iter().flatten() {
            // One that is closed already has ended, too.
            let _ = copy.shutdown(std::net::Shutdown::Both);
        }
        scraped.and(done)
    })
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

impl Results for Watched {
    const NAME: &'static str = "watched";
    const TITLE: &'static str = "NBD: with a client that watches, beside without";

    fn head(&self) -> Vec<String> {
        let Watched { tenants, scrapes, scrape_bytes, stream_bytes, .. } = self;
        vec![
            format!("4 KiB random reads of a null device under mqfq, {tenants} tenants"),
            format!(
                "with: {scrapes} scrapes of {} KB, one a second, and {} KB of snapshots and events",
                scrape_bytes / 1000,
                stream_bytes / 1000
            ),
        ]
    }

    fn body(&self, style: Style) -> String {
        let figures = |row: &WatchedRow| {
            [
                ("requests/s", row.requests_per_s),
                ("CPU ns/request of the workers", row.worker_ns),
                ("CPU ns/request of the server", row.server_ns),
                ("p99 us", row.p99_us),
            ]
            .map(|(name, compared)| (format!("{} x {}", row.connections, row.depth), name, compared))
        };
        style.table(&table(
            &self.rows.iter().flat_map(figures).collect::<Vec<_>>(),
            &[
                ("connections x depth", Right, |row: &(String, &str, Compared)| row.0.clone()),
                ("figure", Left, |row| row.1.to_owned()),
                ("without", Right, |row| whole(row.2.without)),
                ("with", Right, |row| whole(row.2.with)),
                ("ratio", Right, |row| format!("{:.3}", row.2.ratio)),
            ],
        ))
    }
}
