//! The commands for real, but short: engine, threads and sockets. What is asserted holds on a machine that is busy with
//! something else; the promises themselves are kept in virtual time (`virtual_time.rs`).

use mqfq_bench::contender::CONTENDERS;
use mqfq_bench::fairness;
use mqfq_bench::kernel::{self, KernelOptions};
use mqfq_bench::options::defaults;
use mqfq_bench::shell::Record;
use mqfq_bench::structures::{self, StructuresOptions};
use mqfq_bench::validate::{self, ValidateOptions, Validation};
use mqfq_blk::{PolicyKind, PolicyOptions, VSpan};
use mqfq_demo::demo::{self, DemoOptions};
use mqfq_demo::harness::{self, Transport};
use mqfq_demo::load::{Load, Window};
use mqfq_demo::load_nbd::NbdTenant;
use mqfq_demo::phases::{self, Lengths};
use mqfq_demo::report::FormReport;
use mqfq_testing::Folder;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Held by each test: commands that measure at the same time take each other's cores.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The form that `mqfq serve` has on as many workers, for this D and T as they were found.
fn shipped_form(kind: PolicyKind, found: (Option<u32>, Option<u64>), transport: Transport) -> FormReport {
    let workers = harness::workers(transport);
    let plain = harness::by_default(kind, workers);
    let depth = found.0.unwrap_or(plain.depth);
    let window = found.1.map_or(plain.window, VSpan::from_bytes);
    let options = harness::as_shipped(PolicyOptions { depth, window, ..plain }, workers);
    let form = phases::form(&options);
    // With any T that is found nothing of the relaxed form is 0.
    assert_eq!(form.lease_bytes.is_some_and(|lease| lease > 0), form.token_batch.is_some_and(|batch| batch > 1));
    form
}

#[test]
fn the_demo_runs_every_phase_and_draws_it_or_tells_why_not() {
    let _alone = alone();
    let folder = Folder::new();
    let options = DemoOptions {
        json: true,
        out: folder.path().to_path_buf(),
        lengths: Lengths { alone: Window::from_ms(20, 150), shared: Window::from_ms(50, 400) },
    };
    let report = demo::measure(&options).unwrap();

    let names: Vec<&str> = report.scenarios.iter().map(|scenario| scenario.scenario.as_str()).collect();
    assert_eq!(names, ["moderate", "shallow", "commit"]);
    for scenario in &report.scenarios {
        let policies: Vec<&str> = scenario.policies.iter().map(|policy| policy.policy.as_str()).collect();
        assert_eq!(policies, ["none", "mqfq"]);
        for policy in &scenario.policies {
            assert_eq!(policy.tenants.len(), 2);
            let kind = mqfq_policies::REGISTRY.find(&policy.policy).unwrap();
            let form = shipped_form(kind, (policy.depth, policy.window_bytes), Transport::Nbd);
            assert_eq!(policy.form, form, "{}", policy.policy);
            let sum: f64 = policy.tenants.iter().map(|tenant| tenant.shared_bytes_per_s).sum();
            assert_eq!(policy.total_bytes_per_s, sum);
            assert!(policy.tenants.iter().all(|tenant| tenant.alone_bytes_per_s > 0.0), "{policy:?}");
        }
    }
    // In virtual time 60 against 2.5. A machine that does something else slows the greedy one as well, so it takes a
    // factor of more than ten in noise to turn this around.
    let shallow_slowdown = |policy: &str| {
        let reader = &report.scenarios[1].policy(policy).unwrap().tenants[0];
        reader.slowdown.unwrap_or(f64::INFINITY)
    };
    assert!(shallow_slowdown("none") > shallow_slowdown("mqfq"), "{report:?}");

    // A machine that does something else lets nothing be drawn, and the report tells why.
    assert_eq!(report.svg_path.is_none(), report.machine_limits.is_some(), "{report:?}");
    if let Some(path) = report.svg_path {
        let picture = std::fs::read_to_string(path).unwrap();
        assert!(picture.contains("with mqfq") && picture.contains("without mqfq") && picture.contains("commits/s"));
    }
}

#[test]
fn saturating_tenants_are_served_inside_and_through_sockets() {
    let _alone = alone();
    let [sizes, ..] = fairness::cases();
    for transport in [Transport::Inside, Transport::Nbd] {
        for kind in mqfq_policies::STAGED {
            let measured = fairness::measure_one(&sizes, kind, transport, 100).unwrap();
            assert!(measured.tenants.iter().all(|tenant| tenant.bytes_per_s > 0.0), "{transport:?}: {measured:?}");
            assert_eq!(measured.form, shipped_form(kind, (measured.depth, measured.window_bytes), transport), "{kind}");
            assert_eq!(measured.within, measured.deviation.is_some_and(|deviation| deviation <= sizes.tolerance));
        }
    }
}

#[test]
fn the_file_is_read_under_every_policy_and_by_fio_if_there_is_one() {
    let _alone = alone();
    let mut options = KernelOptions { file: Some(None), size_bytes: Some(4 << 20), ..defaults() };
    (options.runs.rounds, options.runs.measured_ms) = (1, 100);
    let report = kernel::measure(&options).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let cases: Vec<&str> = rows.iter().map(|row| row["policy"].as_str().unwrap()).collect();
    let (ours, fios) = cases.split_at(CONTENDERS.len());
    assert_eq!(ours, CONTENDERS.map(|contender| contender.label));
    for row in rows {
        let rate = row["iops"].as_f64().unwrap();
        assert!(rate > 0.0 && row["iops_min"] == rate && row["iops_max"] == rate, "one round is all three: {row}");
        assert!(row["cpu_ns_per_io"].as_f64().unwrap() > 0.0, "{row}");
    }
    let row = |case: &str| &rows[cases.iter().position(|name| *name == case).unwrap()];
    let rate = |case: &str| row(case)["iops"].as_f64().unwrap();
    assert_eq!(row("mqfq")["over_none"].as_f64(), Some(rate("mqfq") / rate("none")));
    if !fios.is_empty() {
        assert_eq!(fios, ["io_uring", "io_uring, registered", "io_uring, batched"]);
        assert!(json["mqfq_over_fio"].as_f64().unwrap() > 0.0);
        assert!(fios.contains(&json["fio_case"].as_str().unwrap()));
    } else {
        assert!(json["mqfq_over_fio"].is_null() && json["notes"].as_array().unwrap().len() == 1);
    }
    assert!(report.text().contains("/ none"));
}

#[test]
fn a_given_file_is_read_and_stays_as_it_was() {
    let _alone = alone();
    let folder = Folder::new();
    let path = folder.join("given");
    let bytes: Vec<u8> = (0..256 << 10).map(|at| (at % 251) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    let mut options = KernelOptions { file: Some(Some(path.clone())), ..defaults() };
    (options.runs.rounds, options.runs.measured_ms) = (1, 50);
    assert_eq!(kernel::measure(&options).unwrap().pages.as_ref().unwrap().file_bytes, 256 << 10);
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    let missing = KernelOptions { file: Some(Some(folder.join("missing"))), ..options };
    assert!(kernel::measure(&missing).unwrap_err().to_lowercase().contains("no such file"));
}

#[test]
fn what_is_simulated_stands_beside_what_was_measured() {
    let _alone = alone();
    let folder = Folder::new();
    let mut options: ValidateOptions = defaults();
    (options.runs.rounds, options.runs.measured_ms, options.runs.host) = (1, 10, Some("here".into()));
    (options.runs.out, options.runs.record) = (Some(folder.join("out")), Some(folder.join("record")));
    validate::run(&options, true).unwrap();
    let day = std::fs::read_dir(folder.join("record/here")).unwrap().next().unwrap().unwrap().path();
    let report = std::fs::read_to_string(day.join("validate.json")).unwrap();
    let report: Record<Validation> = serde_json::from_str(&report).unwrap();
    let scenarios: Vec<(&str, &str)> =
        report.shares.iter().map(|row| (row.scenario.as_str(), row.policy.as_str())).collect();
    assert_eq!(scenarios.len(), 10);
    for case in fairness::cases() {
        assert!(scenarios.contains(&(case.name, "mqfq")) && scenarios.contains(&(case.name, "none")), "{}", case.name);
    }
    // This machine, which may be busy, must only have served; the simulated one must give its fixed result.
    for row in &report.shares {
        let sum: f64 = row.tenants.iter().map(|tenant| tenant.simulated_share).sum();
        assert!((sum - 1.0).abs() < 1e-9 && row.measured_bytes_per_s > 0.0, "{row:?}");
        let weight = |at: usize| f64::from(row.tenants[at].weight);
        let fair = weight(1) / (weight(0) + weight(1));
        let difference = (row.tenants[1].simulated_share - fair).abs();
        assert!(difference < 0.02 || row.policy == "none", "{row:?}");
    }
    let labels: Vec<&str> = report.coherence.iter().map(|row| row.policy.as_str()).collect();
    assert_eq!(
        labels,
        CONTENDERS.map(|contender| contender.label).repeat(5),
        "two settings of one worker, three of two"
    );
    for row in &report.coherence {
        assert!(row.simulated_requests_per_s > 1e6, "{row:?}");
        // A machine with other work may give a worker none of the 10 ms that are measured: then there is no ratio.
        let ratio = row.simulated_requests_per_s / row.measured_requests_per_s;
        // Written as text and read again, each number is good to the last digit or so.
        let is_ratio = |it: f64| (it / ratio - 1.0).abs() < 1e-12;
        assert_eq!(row.ratio.map(is_ratio), (row.measured_requests_per_s > 0.0).then_some(true), "{row:?}");
    }
    assert!(report.coherence.iter().any(|row| row.measured_requests_per_s > 0.0), "some of 40 ran");
    let markdown = std::fs::read_to_string(day.join("validate.md")).unwrap();
    assert!(markdown.starts_with("# ") && markdown.contains("weights 1:10"));
    for picture in [day.join("validate.svg"), folder.join("out/mqfq-validate.svg")] {
        assert!(std::fs::read_to_string(picture).unwrap().contains("mqfq-serial"));
    }
}

#[test]
fn every_structure_is_measured_beside_its_rivals_and_drawn() {
    let _alone = alone();
    let folder = Folder::new();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options: StructuresOptions = defaults();
    (options.workers, options.queues) = (Some(cpus.min(2)), Some(8));
    (options.runs.rounds, options.runs.measured_ms, options.runs.out) = (2, 10, Some(folder.join("new")));
    structures::run(&options, true).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.join("new").join(name)).unwrap();
    let report: serde_json::Value = serde_json::from_str(&read("structures.json")).unwrap();

    let names = |rows: &serde_json::Value, stands_for: &str, pattern: Option<&str>| -> Vec<String> {
        let rows = rows.as_array().unwrap().iter();
        let rows = rows.filter(|row| row["stands_for"] == stands_for && row["pattern"].as_str() == pattern);
        rows.map(|row| row["structure"].as_str().unwrap().to_string()).collect()
    };
    let rows = &report["rows"];
    let virtual_time = ["mindicator", "array-scan", "array-scan-packed"];
    assert_eq!(names(rows, "global virtual time", None), [virtual_time, virtual_time].concat(), "faithful and relaxed");
    assert_eq!((&rows[0]["form"], &rows[3]["form"]), (&"faithful".into(), &"relaxed".into()));
    let tokens = ["token-tree", "atomic-counter", "scalable-bitmap"];
    assert_eq!(names(rows, "dispatch tokens", Some("kept")), tokens);
    if cpus >= 2 {
        assert_eq!(names(rows, "dispatch tokens", Some("handed-on")), tokens);
        assert_eq!(names(rows, "wake-up", None), ["wheel", "poll-1us", "poll-5us"]);
    }
    for row in rows.as_array().unwrap() {
        let of = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
        assert!(of("ns_per_operation_smallest") <= of("ns_per_operation"), "{row}");
        assert!(of("ns_per_operation") <= of("ns_per_operation_largest") && of("operations_per_s") > 0.0, "{row}");
        assert!(of("workers") <= of("queues") && of("lines_touched_per_operation") >= 1.0, "{row}");
        if row["stands_for"] == "wake-up" {
            assert!(of("cpu_share") > 0.0 && of("reschedules_per_s") >= of("spurious_reschedules_per_s"), "{row}");
            assert!(row.get("wake_up_delay_p50_ns").is_some() && row.get("wake_up_delay_p99_ns").is_some(), "{row}");
        }
    }

    // Counts do not depend on this machine.
    let counted = report["counted_rows"].as_array().unwrap();
    let per_operation = |structure: &str, pattern: Option<&str>, key: &str| {
        let is_it = |row: &&serde_json::Value| {
            row["structure"] == structure && row["workers"] == 64 && row["pattern"].as_str() == pattern
        };
        counted.iter().find(is_it).unwrap()[key].as_f64().unwrap()
    };
    assert_eq!(per_operation("token-tree", Some("kept"), "line_transfers_per_operation"), 0.0);
    assert!(per_operation("atomic-counter", Some("kept"), "line_transfers_per_operation") >= 1.0);
    assert!(
        per_operation("mindicator", None, "loads_per_operation") * 4.0
            < per_operation("array-scan", None, "loads_per_operation")
    );
    assert_eq!(per_operation("wheel", None, "reschedules_per_wake_up"), 1.0);
    assert!(per_operation("poll-1us", None, "reschedules_per_wake_up") > 100.0);

    let picture = read("structures.svg");
    assert!(picture.contains("mindicator") && picture.contains("scalable-bitmap"), "every contender has its line");
    assert!(read("structures.md").starts_with("# ") && read("structures.md").contains("array-scan-packed"));
}

// The load generator against a server of another author.

/// A server in a directory of its own; both end with the test.
struct Nbdkit {
    child: Child,
    folder: PathBuf,
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Nbdkit {
    /// `None`, with the reason printed, where nbdkit is missing; in CI that fails the test.
    fn start(name: &str) -> Option<Nbdkit> {
        let folder = std::env::temp_dir().join(format!("mqfq-bench-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
        let child = Command::new("nbdkit")
            .args(["--foreground", "--newstyle", "--unix"])
            .arg(folder.join("socket"))
            .args(["memory", "64M"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Nbdkit { child, folder }),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "nbdkit is missing in CI: {error}");
                println!("skipped: nbdkit does not start here ({error})");
                None
            }
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }
}

/// Attaches as soon as the server listens; nothing tells when that is, so it is tried again for ten seconds.
fn attach(socket: &Path, load: &Load) -> NbdTenant {
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        match NbdTenant::attach(socket, "", load) {
            Ok(tenant) => return tenant,
            Err(error) if Instant::now() > give_up => panic!("{error}"),
            Err(_) => std::thread::yield_now(),
        }
    }
}

#[test]
fn every_request_of_a_mixed_load_is_answered_without_error() {
    let Some(server) = Nbdkit::start("mixed") else { return };
    let load = Load { write_percent: 50, ..Load::random_reads(3, 8, 16 * 1024) };
    let mut tenant = attach(&server.socket(), &load);
    // Two runs on the same connections: a run leaves nothing in flight behind.
    for _ in 0..2 {
        let counted = tenant.run(Instant::now(), Window::from_ms(20, 100)).unwrap();
        assert_eq!(counted.errors, 0);
        assert!(counted.requests > 24, "three connections of depth 8 answered at least once: {}", counted.requests);
        assert_eq!(counted.bytes, counted.requests * 16 * 1024);
        assert!(counted.p99_ns() > 0);
    }
    tenant.detach();
}

#[test]
fn an_export_that_is_not_there_is_one_sentence() {
    let error = NbdTenant::attach(Path::new("/nonexistent/socket"), "", &Load::random_reads(1, 1, 4096)).err().unwrap();
    assert!(error.starts_with("cannot connect to /nonexistent/socket: "), "{error}");
}
