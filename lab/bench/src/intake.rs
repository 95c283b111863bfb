//! `mqfq-lab bench intake`: service of two tenants of weights 1:3 whose server's CPU is the bottleneck.
//!
//! # What it measures
//! `mqfq serve` with one worker, held to 1 ms of CPU in 10 ms by a cgroup of its own, on the devices `null` and
//! `memory`; our own client with 256 requests in flight on each connection. `ratio` is the second tenant's bytes over
//! the first's, `server_cpu_ns_per_request` the server's CPU time over all requests of the run, its start included.
//!
//! # What would make it lie
//! Clients that do not run when the server does: what a unix socket holds unread (208 KiB) is then all that a
//! connection can be sent in each of the server's periods, and connections count again, those of the kernel. So the
//! client gets a real-time priority, by `chrt`.

use crate::clients::server::Running;
use crate::machine::product;
use crate::shell::{self, or_dash, table, whole};
use mqfq_demo::load::{Counted, Load, Window};
use mqfq_demo::load_nbd::NbdTenant;
use mqfq_report::progress::Progress;
use mqfq_report::table::Align::{Left, Right};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Options.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct IntakeOptions {
    /// Length of each measurement.
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "2", value_parser = crate::options::seconds())]
    pub measured_ms: u64,
    /// The program `mqfq`, if not the one beside this one: to compare two builds.
    #[arg(long, value_name = "PROGRAM")]
    pub mqfq: Option<PathBuf>,
}

/// Results.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct IntakeReport {
    /// Why there are no cases, if there are none.
    pub skipped: Option<String>,
    /// CPU time that the server gets in each `period_us`.
    pub quota_us: u64,
    /// Length of a period.
    pub period_us: u64,
    /// The heavy tenant's weight over the light one's.
    pub expected_ratio: f64,
    /// One for each device and load.
    pub cases: Vec<IntakeCase>,
}

/// One load on one device.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct IntakeCase {
    /// `null` or `memory`.
    pub device: String,
    /// Connections of the light tenant and the heavy one.
    pub connections: [u16; 2],
    /// Bytes of each of their reads.
    pub request_bytes: [u32; 2],
    /// The heavy tenant's bytes over the light one's; `null` if that got nothing.
    pub ratio: Option<f64>,
    /// Both tenants together.
    pub requests_per_s: f64,
    /// Server's CPU time.
    pub server_cpu_ns_per_request: f64,
}

const QUOTA_US: u64 = 1_000;
const PERIOD_US: u64 = 10_000;

/// Requests in flight on each connection: the most that the server lets one have.
const DEPTH: u16 = 256;

const WARM_UP_MS: u64 = 300;

const NAMES: [&str; 2] = ["light", "heavy"];

/// Connections and bytes of a read, of the light tenant and the heavy one.
const LOADS: [([u16; 2], [u32; 2]); 5] = [
    ([4, 4], [4096, 4096]),
    ([1, 4], [4096, 4096]),
    ([4, 1], [4096, 4096]),
    ([4, 4], [65536, 4096]),
    ([4, 4], [4096, 65536]),
];

/// Runs everything and prints it.
///
/// # Errors
/// One sentence.
pub fn run(options: &IntakeOptions, json: bool) -> Result<(), String> {
    let report = measure(options)?;
    shell::print(&report, json, || report.text())
}

/// Runs everything.
///
/// # Errors
/// One sentence: the server or a client failed.
pub fn measure(options: &IntakeOptions) -> Result<IntakeReport, String> {
    let mqfq = options.mqfq.clone().map_or_else(product, Ok)?;
    let mut report = IntakeReport {
        skipped: None,
        quota_us: QUOTA_US,
        period_us: PERIOD_US,
        expected_ratio: 3.0,
        cases: Vec::new(),
    };
    let quota = match Quota::new().and_then(|quota| be_urgent(true).map(|()| quota)) {
        Ok(quota) => quota,
        Err(why) => return Ok(IntakeReport { skipped: Some(why), ..report }),
    };
    let mut progress = Progress::new(2 * LOADS.len());
    for device in ["null", "memory"] {
        for (connections, request_bytes) in LOADS {
            progress.step(&format!("{device}, {connections:?} connections, {request_bytes:?} bytes"));
            report.cases.push(case(&mqfq, &quota, device, connections, request_bytes, options.measured_ms)?);
        }
    }
    progress.finish();
    Ok(report)
}

fn case(
    mqfq: &Path,
    quota: &Quota,
    device: &str,
    connections: [u16; 2],
    request_bytes: [u32; 2],
    measured_ms: u64,
) -> Result<IntakeCase, String> {
    // The server is not to inherit it.
    be_urgent(false)?;
    let server = Running::serve(mqfq, |folder| config_text(folder, device), &NAMES)?;
    quota.hold(server.process())?;
    be_urgent(true)?;
    let mut tenants = Vec::new();
    for (tenant, name) in NAMES.into_iter().enumerate() {
        let load =
            Load { seed: tenant as u64, ..Load::random_reads(connections[tenant], DEPTH, request_bytes[tenant]) };
        tenants.push(NbdTenant::attach(&server.path(name), name, &load)?);
    }
    let start = Instant::now();
    let window = Window::from_ms(WARM_UP_MS, measured_ms);
    let counted: Vec<Counted> = std::thread::scope(|scope| {
        let runs: Vec<_> = tenants.iter_mut().map(|tenant| scope.spawn(move || tenant.run(start, window))).collect();
        runs.into_iter().map(|run| run.join().map_err(|_| "a client panicked".to_owned())?).collect::<Result<_, _>>()
    })?;
    let cpu_ns = server.cpu_ns()?;
    tenants.into_iter().for_each(NbdTenant::detach);
    let requests: u64 = counted.iter().map(|counted| counted.requests).sum();
    let bytes_in_all = counted.iter().map(|counted| counted.series_bytes.iter().sum::<u64>());
    let requests_in_all: u64 = bytes_in_all.zip(request_bytes).map(|(all, bytes)| all / u64::from(bytes)).sum();
    Ok(IntakeCase {
        device: device.into(),
        connections,
        request_bytes,
        ratio: (counted[0].bytes > 0).then(|| counted[1].bytes as f64 / counted[0].bytes as f64),
        requests_per_s: requests as f64 * 1e3 / measured_ms as f64,
        server_cpu_ns_per_request: cpu_ns as f64 / requests_in_all.max(1) as f64,
    })
}

impl IntakeReport {
    fn text(&self) -> String {
        if let Some(why) = &self.skipped {
            return format!("skipped: {why}\n");
        }
        let table = table(
            &self.cases,
            &[
                ("device", Left, |case: &IntakeCase| case.device.clone()),
                ("connections", Right, |case| format!("{} and {}", case.connections[0], case.connections[1])),
                ("bytes", Right, |case| format!("{} and {}", case.request_bytes[0], case.request_bytes[1])),
                ("ratio", Right, |case| or_dash(case.ratio, 3)),
                ("requests/s", Right, |case| whole(case.requests_per_s)),
                ("server CPU ns", Right, |case| whole(case.server_cpu_ns_per_request)),
            ],
        );
        let head = format!("weights 1:3, one worker held to {QUOTA_US} us of CPU in {PERIOD_US} us");
        format!("{head}\n\n{}", table.render())
    }
}

/// A cgroup with the quota. Dropping it removes it.
struct Quota(PathBuf);

impl Quota {
    fn new() -> Result<Quota, String> {
        let v1 = Path::new("/sys/fs/cgroup/cpu");
        let (root, limits) = match v1.is_dir() {
            true => {
                (v1, vec![("cpu.cfs_period_us", PERIOD_US.to_string()), ("cpu.cfs_quota_us", QUOTA_US.to_string())])
            }
            false => (Path::new("/sys/fs/cgroup"), vec![("cpu.max", format!("{QUOTA_US} {PERIOD_US}"))]),
        };
        let quota = Quota(root.join(format!("mqfq-intake-{}", std::process::id())));
        let made = std::fs::create_dir(&quota.0)
            .and_then(|()| limits.iter().try_for_each(|(file, text)| std::fs::write(quota.0.join(file), text)));
        made.map(|()| quota).map_err(|error| format!("no CPU quota in {}: {error}", root.display()))
    }

    fn hold(&self, process: u32) -> Result<(), String> {
        let file = self.0.join("cgroup.procs");
        std::fs::write(&file, process.to_string()).map_err(|error| format!("cannot write {}: {error}", file.display()))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // The servers have ended, so it is empty.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// From now on the threads that this one starts run whenever they have something to do, or as any others.
fn be_urgent(urgent: bool) -> Result<(), String> {
    let (policy, priority) = if urgent { ("--fifo", "1") } else { ("--other", "0") };
    let own = std::process::id().to_string();
    let output = Command::new("chrt").args([policy, "--pid", priority, &own]).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("chrt refuses: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("cannot run chrt: {error}")),
    }
}

fn config_text(folder: &Path, device: &str) -> String {
    let folder = folder.display();
    let mut text = format!("[server]\nworkers = 1\n[device.d]\nkind = \"{device}\"\nsize = \"16MiB\"\n");
    for (name, weight, offset) in [(NAMES[0], 100, "0"), (NAMES[1], 300, "8MiB")] {
        text += &format!(
            "[tenant.{name}]\nweight = {weight}\n[export.{name}]\ndevice = \"d\"\ntenant = \"{name}\"\n\
             offset = \"{offset}\"\nsize = \"8MiB\"\nnbd = \"unix:{folder}/{name}\"\n"
        );
    }
    text
}
