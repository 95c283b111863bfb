//! `cargo lab day`: a day of a server in two minutes.
//!
//! Answers: do shares, caps and every byte hold while tenants come, change and go, and does anything stay behind? A
//! server starts with one tenant; curl and `mqfq ctl` do the rest, under fio jobs that verify what they wrote.
//!
//! ```text
//!   add N tenants ─▶ equal ─▶ changing ─▶ reweighted ─▶ capped ─▶ resized ─▶ removed ─▶ upgraded ─▶ churn ─▶ all gone
//!                    └─────────── in each: bytes of every tenant over some seconds ────────────┘   descriptors, memory
//! ```
//! Tenants are in four classes of N/4. A class's part of the bytes is compared with its part of the weights (within
//! 2%), and the worst tenant is shown: over a few seconds one tenant has few requests of its own. The device is a
//! modelled drive of 270 MB/s with requests of 32 KiB, so that the drive decides and not the processor.
//!
//! It needs about half a core. On a machine that others use as well the processor decides, and shares miss: the table
//! has the measured numbers either way.

mod changes;

use crate::machine::{holds, product, said};
use changes::Changes;
pub(crate) use changes::transfer;
use mqfq_report::panel::{Along, Panel, Series, render};
use mqfq_report::print_line;
use mqfq_testing::Folder;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How large a day is.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct DayOptions {
    /// Tenants, a multiple of 4.
    #[arg(long, default_value_t = 200)]
    pub tenants: usize,
    /// Length of each phase.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Changes a second in the phase that has them; 0: there is none.
    #[arg(long, default_value_t = 1000)]
    pub changes: usize,
    /// Length of that phase.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub changes_seconds: u64,
    /// Rounds in which a tenant and its export come and go, at the end.
    #[arg(long, default_value_t = 50)]
    pub churn: usize,
    /// The program `mqfq`, if not the one beside this one.
    #[arg(long, value_name = "PROGRAM")]
    pub program: Option<PathBuf>,
    /// In place of a day, draw the JSON that one has printed, as SVG.
    #[arg(long, num_args = 2, value_names = ["RECORD", "FILE"])]
    pub draw: Option<Vec<PathBuf>>,
}

/// Size of an export.
const EXPORT_MIB: usize = 4;

/// Time for all jobs of fio to connect.
const CONNECT_MAX: Duration = Duration::from_secs(180);

/// Bytes that the jobs of a tenant keep under way: 34 requests of 32 KiB.
const UNDER_WAY_BYTES: u64 = 34 * (32 << 10);

/// Most time for all tenants to move them.
const BACKLOG_MAX: Duration = Duration::from_secs(60);

/// Tolerance, as a part of the bytes that a class is to get.
const TOLERANCE: f64 = 0.02;

/// A phase as it was measured.
struct Phase {
    name: &'static str,
    mb_per_s: f64,
    /// By class: its part of the bytes over its part of the weights, for those without a cap.
    classes: Vec<f64>,
    /// Ratio of the capped tenants' bytes to those that their caps allow.
    capped: Option<f64>,
    /// The worst ratio of a single tenant.
    worst: f64,
    p99_ms: f64,
    /// By class: its part of all bytes, and the part that its weights or caps are.
    parts: [f64; 4],
    entitled: [f64; 4],
}

impl Phase {
    fn is_right(&self) -> bool {
        self.classes.iter().chain(&self.capped).all(|ratio| (ratio - 1.0).abs() <= TOLERANCE)
    }
}

/// Runs a day, and prints a table or JSON.
///
/// # Errors
/// One sentence: a program that is missing, a command that failed, a job that did not verify, a share that missed, or
/// something that stayed behind.
pub fn run(options: &DayOptions, as_json: bool) -> Result<(), String> {
    if let Some([record, picture]) = options.draw.as_deref() {
        return draw(record, picture);
    }
    if options.tenants == 0 || !options.tenants.is_multiple_of(4) {
        return Err(format!("{} tenants are no four classes, allowed are multiples of 4", options.tenants));
    }
    let program = options.program.clone().map_or_else(product, Ok)?;
    let start = Instant::now();
    let mut day = Day::start(options, program)?;
    // The first change allocates data that stay, so it comes before the first look.
    day.add(0)?;
    day.remove(0)?;
    let at_start = day.holds()?;
    let mut phases = Vec::new();
    for tenant in 0..options.tenants {
        day.add(tenant)?;
    }
    let (leaves, stays): (Vec<usize>, Vec<usize>) = (0..options.tenants).partition(|tenant| tenant % 8 == 7);
    let (mut stay, mut leave) = (day.fio("stay", &stays)?, day.fio("leave", &leaves)?);
    day.await_all()?;
    phases.push(day.measure("equal", &BTreeMap::new())?);
    let mut changes = None;
    if options.changes > 0 {
        let is_over = AtomicBool::new(false);
        let (phase, made) = std::thread::scope(|scope| {
            let made = scope.spawn(|| day.change(options.changes, &is_over));
            let phase = day.measure_for(options.changes_seconds, "changing", &BTreeMap::new());
            // Relaxed: see there.
            is_over.store(true, Ordering::Relaxed);
            (phase, made.join().unwrap_or_else(|_| Err("the thread that changes has panicked".to_owned())))
        });
        phases.push(phase?);
        changes = Some(made?);
    }
    for tenant in (0..options.tenants).filter(|tenant| tenant % 4 == 1) {
        day.weights[tenant] = 300;
        day.ctl(&["tenant", "set", &name(tenant), "--weight", "300"])?;
    }
    phases.push(day.measure("reweighted", &BTreeMap::new())?);
    // A quarter of what an equal part would be: less than its part also where the machine is slower than the drive.
    let cap = 270_000_000 / options.tenants as u64 / 4;
    let caps: BTreeMap<usize, u64> =
        (0..options.tenants).filter(|tenant| tenant % 4 == 2).map(|tenant| (tenant, cap)).collect();
    for tenant in caps.keys() {
        day.patch(*tenant, &json!({ "max-bytes-per-s": cap }))?;
    }
    phases.push(day.measure("capped", &caps)?);
    for tenant in caps.keys() {
        day.patch(*tenant, &json!({ "max-bytes-per-s": null }))?;
    }
    for tenant in stays.iter().step_by(3) {
        day.ctl(&["export", "resize", &name(*tenant), &format!("{}MiB", EXPORT_MIB * 2)])?;
    }
    phases.push(day.measure("resized", &BTreeMap::new())?);
    end(&mut leave, &day.folder.join("leave.json"))?;
    for tenant in &leaves {
        day.remove(*tenant)?;
    }
    phases.push(day.measure("removed", &BTreeMap::new())?);
    let pause_us = day.upgrade()?;
    phases.push(day.measure("upgraded", &BTreeMap::new())?);
    end(&mut stay, &day.folder.join("stay.json"))?;
    for tenant in &stays {
        day.remove(*tenant)?;
    }
    let before_churn = day.holds()?;
    let churn_start = Instant::now();
    day.churn(options.churn)?;
    let churn_seconds = churn_start.elapsed().as_secs_f64();
    let at_end = day.holds()?;
    day.end()?;
    let spent = [start.elapsed().as_secs_f64(), churn_seconds];
    report((options, as_json), &phases, changes, pause_us, [at_start, before_churn, at_end], spent)?;
    // One more than at the start: the file in which the drive's bytes lie, since the first write.
    if at_end.0 > before_churn.0 || at_end.0 > at_start.0 + 1 {
        return Err(format!("{} descriptors at the start, {} at the end", at_start.0, at_end.0));
    }
    if let Some(changes) = changes.filter(|changes| changes.refused > 0) {
        return Err(format!("{} changes were refused", changes.refused));
    }
    match phases.iter().find(|phase| !phase.is_right()) {
        None => Ok(()),
        Some(phase) => Err(format!("in the phase \"{}\" a share missed by more than 2%", phase.name)),
    }
}

fn report(
    (options, as_json): (&DayOptions, bool),
    phases: &[Phase],
    changes: Option<Changes>,
    pause_us: u64,
    holds: [(usize, u64); 3],
    spent: [f64; 2],
) -> Result<(), String> {
    let [seconds, churn_seconds] = spent;
    let [at_start, before_churn, at_end] = holds;
    let held =
        |(descriptors, memory_kib): (usize, u64)| json!({ "descriptors": descriptors, "memory_kib": memory_kib });
    if as_json {
        let phase = |phase: &Phase| {
            json!({
                "phase": phase.name,
                "megabytes_per_s": phase.mb_per_s,
                "class_share_over_entitlement": phase.classes,
                "capped_over_cap": phase.capped,
                "worst_tenant_share_over_entitlement": phase.worst,
                "class_part": phase.parts,
                "class_entitled": phase.entitled,
                "p99_ms": phase.p99_ms,
                "is_right": phase.is_right(),
            })
        };
        let all = json!({
            "tenants": options.tenants,
            "seconds": seconds as u64,
            "churn": { "rounds": options.churn, "seconds": churn_seconds },
            "phases": phases.iter().map(phase).collect::<Vec<_>>(),
            "changes": changes.map(|changes| changes.json()),
            "upgrade_pause_us": pause_us,
            "at_start": held(at_start),
            "before_churn": held(before_churn),
            "after_churn_and_all_gone": held(at_end),
        });
        return print_line(all);
    }
    let head = "tenants in 4 classes, every fio job verified";
    print_line(format_args!("{} {head}, {} s", options.tenants, seconds as u64))?;
    print_line(format_args!(
        "{:<11} {:>7}  {:<31} {:>6} {:>7} {:>8}",
        "phase", "MB/s", "share/entitled, by class", "cap", "worst", "p99 ms"
    ))?;
    for Phase { name, mb_per_s, classes, capped, worst, p99_ms, .. } in phases {
        let classes: Vec<String> = classes.iter().map(|ratio| format!("{ratio:.4}")).collect();
        let capped = capped.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
        print_line(format_args!(
            "{name:<11} {mb_per_s:>7.1}  {:<31} {capped:>6} {worst:>7.3} {p99_ms:>8.1}",
            classes.join("  ")
        ))?;
    }
    if let Some(changes) = changes {
        let Changes { taken, refused, .. } = changes;
        print_line(format_args!("changes: {:.0} a second, {taken} taken, {refused} refused", changes.per_s()))?;
    }
    print_line(format_args!("churn: {} rounds in {churn_seconds:.0} s", options.churn))?;
    print_line(format_args!("upgrade: clients waited {:.1} ms", pause_us as f64 / 1000.0))?;
    for (when, (descriptors, memory_kib)) in [("start", at_start), ("all gone", before_churn), ("after churn", at_end)]
    {
        print_line(format_args!("{when:<11} {descriptors} descriptors, {} MiB", memory_kib / 1024))?;
    }
    Ok(())
}

fn name(tenant: usize) -> String {
    format!("t{tenant:03}")
}

/// A server and what it is to be.
struct Day {
    tenants: usize,
    seconds: u64,
    program: PathBuf,
    folder: Folder,
    server: Child,
    /// Weight by tenant; 0: the tenant is gone.
    weights: Vec<u64>,
}

/// A fio that runs; it ends with the day, however that ends.
struct Jobs(Child);

impl Drop for Jobs {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Day {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Day {
    fn start(options: &DayOptions, program: PathBuf) -> Result<Day, String> {
        let folder = Folder::new();
        let at = folder.path().display().to_string();
        // Twice the exports: they grow.
        let size_mib = (2 * options.tenants + 4) * EXPORT_MIB;
        let config = format!(
            "[server]\nconnections = 4096\nupgrade = \"unix:{at}/upgrade.sock\"\n[control]\n\
             listen = \"unix:{at}/control.sock\"\n[device.fast]\nkind = \"model\"\npreset = \"flash-60k\"\n\
             size = \"{size_mib}MiB\"\npolicy = \"mqfq\"\n[tenant.ops]\n[export.ops]\ndevice = \"fast\"\ntenant = \"ops\"\n\
             size = \"1MiB\"\nnbd = \"unix:{at}/ops.sock\"\n"
        );
        std::fs::write(folder.join("day.toml"), config).map_err(|error| format!("{at}/day.toml: {error}"))?;
        let server = serve(&program, &folder, false)?;
        let &DayOptions { tenants, seconds, .. } = options;
        Ok(Day { tenants, seconds, program, server, weights: vec![0; tenants], folder })
    }

    fn socket(&self) -> String {
        format!("unix:{}", self.folder.join("control.sock").display())
    }

    fn ctl(&self, words: &[&str]) -> Result<String, String> {
        said(Command::new(&self.program).args(["ctl", "--socket", &self.socket()]).args(words))
    }

    /// A request by curl: what came back as JSON.
    fn curl(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail-with-body", "--request", method, "--unix-socket"]);
        curl.arg(self.folder.join("control.sock")).arg(format!("http://mqfq{path}"));
        if let Some(body) = body {
            curl.args(["--header", "Content-Type: application/json", "--data", &body.to_string()]);
        }
        let text = said(&mut curl)?;
        serde_json::from_str(&text).map_err(|error| format!("{method} {path}: {error} in {text}"))
    }

    fn patch(&self, tenant: usize, keys: &Value) -> Result<(), String> {
        self.curl("PATCH", &format!("/v1/tenants/{}", name(tenant)), Some(keys)).map(drop)
    }

    /// A tenant comes with its export and goes again, so many times: a few by curl and `ctl` as [`Day::add`] has them,
    /// the others by curl alone, many in one process.
    fn churn(&mut self, rounds: usize) -> Result<(), String> {
        const EACH: usize = 50;
        const AT_ONCE: usize = 250;
        let mut left = rounds;
        while left > 0 {
            for _ in 0..left.min(EACH / 10) {
                self.add(0)?;
                self.remove(0)?;
                left -= 1;
            }
            let many = left.min(AT_ONCE);
            if many > 0 {
                self.come_and_go(many)?;
            }
            left -= many;
        }
        Ok(())
    }

    /// A tenant and its export, one half of them by curl and the other by `ctl`.
    fn add(&mut self, tenant: usize) -> Result<(), String> {
        self.weights[tenant] = 100;
        let name = name(tenant);
        let offset = format!("{}MiB", (2 * tenant + 1) * EXPORT_MIB);
        let (size, nbd) = (format!("{EXPORT_MIB}MiB"), format!("unix:{}", self.folder.join("nbd.sock").display()));
        if tenant.is_multiple_of(2) {
            self.curl("PUT", &format!("/v1/tenants/{name}"), Some(&json!({ "weight": 100 })))?;
            let export = json!({ "device": "fast", "tenant": name, "offset": offset, "size": size, "nbd": nbd });
            return self.curl("PUT", &format!("/v1/exports/{name}"), Some(&export)).map(drop);
        }
        self.ctl(&["tenant", "add", &name, "--weight", "100"])?;
        let export = ["--device", "fast", "--tenant", &name, "--offset", &offset, "--size", &size, "--nbd", &nbd];
        self.ctl(&[&["export", "add", &name], &export[..]].concat()).map(drop)
    }

    fn remove(&mut self, tenant: usize) -> Result<(), String> {
        self.weights[tenant] = 0;
        let name = name(tenant);
        self.curl("DELETE", &format!("/v1/exports/{name}"), None)?;
        self.ctl(&["tenant", "rm", &name]).map(drop)
    }

    /// Two jobs for each of these tenants: one writes and verifies, one reads so that the tenant always asks for more.
    fn fio(&self, of: &str, tenants: &[usize]) -> Result<Jobs, String> {
        let mut job = format!(
            "[global]\nioengine=nbd\nthread\nbs=32k\ntime_based\nruntime=3600\nverify_state_save=0\nrandseed=7\n\
             size={}k\n",
            EXPORT_MIB * 512
        );
        let socket = self.folder.join("nbd.sock");
        for tenant in tenants {
            let name = name(*tenant);
            let uri = format!("uri=nbd+unix:///{name}?socket={}", socket.display());
            job += &format!(
                "[{name}-verify]\n{uri}\nrw=randwrite\niodepth=2\nverify=crc32c\nverify_backlog=16\nverify_fatal=1\n\
                 [{name}-read]\n{uri}\nrw=randread\niodepth=32\noffset={}k\n",
                EXPORT_MIB * 512
            );
        }
        let path = self.folder.join(&format!("{of}.fio"));
        std::fs::write(&path, job).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut fio = Command::new("fio");
        fio.args(["--output-format=json", &format!("--output={}", self.folder.join(&format!("{of}.json")).display())]);
        fio.arg(format!("--aux-path={}", self.folder.path().display())).arg("--max-jobs=4096").arg(path);
        let fio = fio.stdout(Stdio::null()).spawn().map_err(|error| format!("fio: {error}"))?;
        Ok(Jobs(fio))
    }

    /// Bytes that each tenant has moved so far, and its p99 since the start, ns.
    fn moved(&self) -> Result<BTreeMap<String, (u64, u64)>, String> {
        let counters = self.curl("GET", "/v1/counters", None)?;
        let tenants = counters["devices"][0]["tenants"].as_array().cloned().unwrap_or_default();
        let of = |tenant: &Value| {
            let number = |value: &Value| value.as_u64().unwrap_or(0);
            let moved = number(&tenant["transferred_bytes"]);
            (tenant["name"].as_str().unwrap_or_default().to_owned(), (moved, number(&tenant["total_ns"]["p99"])))
        };
        Ok(tenants.iter().map(of).collect())
    }

    /// Returns when every tenant's jobs have connected and are served.
    fn await_all(&self) -> Result<(), String> {
        let until = Instant::now() + CONNECT_MAX;
        loop {
            let counters = self.curl("GET", "/v1/counters", None)?;
            let number = |listener: &Value| listener["connections"].as_u64().unwrap_or(0);
            let connections: u64 = counters["listeners"].as_array().into_iter().flatten().map(number).sum();
            let moves = self.moved()?.values().filter(|(bytes, _)| *bytes > 0).count();
            if connections >= 2 * self.tenants as u64 && moves >= self.tenants {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("{connections} connections of fio and {moves} tenants after {CONNECT_MAX:?}"));
            }
            std::thread::park_timeout(Duration::from_millis(200));
        }
    }

    /// Tenants that are there.
    fn here(&self) -> Vec<usize> {
        (0..self.tenants).filter(|tenant| self.weights[*tenant] > 0).collect()
    }

    /// Returns when each tenant has moved as much as its jobs keep under way: what came before a change is served as
    /// before it.
    fn await_backlog(&self) -> Result<(), String> {
        let (before, until) = (self.moved()?, Instant::now() + BACKLOG_MAX);
        let has_moved = |name: &String, bytes: u64| {
            before.get(name).is_none_or(|(before, _)| bytes.saturating_sub(*before) >= UNDER_WAY_BYTES)
        };
        let here: Vec<String> = self.here().into_iter().map(name).collect();
        loop {
            let now = self.moved()?;
            let is_done = |name: &String| now.get(name).is_none_or(|(bytes, _)| has_moved(name, *bytes));
            if here.iter().all(is_done) || Instant::now() > until {
                return Ok(());
            }
            std::thread::park_timeout(Duration::from_millis(200));
        }
    }

    /// Lets a change settle, then looks for as long as the options say.
    fn measure(&self, name_: &'static str, caps: &BTreeMap<usize, u64>) -> Result<Phase, String> {
        self.measure_for(self.seconds, name_, caps)
    }

    fn measure_for(
        &self,
        phase_seconds: u64,
        name_: &'static str,
        caps: &BTreeMap<usize, u64>,
    ) -> Result<Phase, String> {
        let wait = |seconds: u64| std::thread::park_timeout(Duration::from_secs(seconds));
        wait(self.seconds.div_ceil(4).max(2));
        self.await_backlog()?;
        let (before, at) = (self.moved()?, Instant::now());
        wait(phase_seconds);
        let (after, seconds) = (self.moved()?, at.elapsed().as_secs_f64());
        let moved = |tenant: usize| {
            let bytes = |all: &BTreeMap<String, (u64, u64)>| all.get(&name(tenant)).map_or(0, |(bytes, _)| *bytes);
            bytes(&after).saturating_sub(bytes(&before)) as f64
        };
        let here = self.here();
        let free: Vec<usize> = here.iter().copied().filter(|tenant| !caps.contains_key(tenant)).collect();
        let all_bytes: f64 = free.iter().map(|tenant| moved(*tenant)).sum();
        let all_weights: f64 = free.iter().map(|tenant| self.weights[*tenant] as f64).sum();
        let ratio = |of: &[usize]| {
            let bytes: f64 = of.iter().map(|tenant| moved(*tenant)).sum();
            let weight: f64 = of.iter().map(|tenant| self.weights[*tenant] as f64).sum();
            bytes / all_bytes / (weight / all_weights)
        };
        let class = |class: usize| free.iter().copied().filter(|tenant| tenant % 4 == class).collect::<Vec<_>>();
        let classes = (0..4).map(class).filter(|class| !class.is_empty()).map(|class| ratio(&class)).collect();
        let far = |ratio: f64| (ratio - 1.0).abs();
        let worst = free.iter().map(|tenant| ratio(&[*tenant]));
        let worst = worst.max_by(|one, other| far(*one).total_cmp(&far(*other))).unwrap_or(1.0);
        let allowed: u64 = caps.values().sum();
        let capped: f64 = caps.keys().map(|tenant| moved(*tenant)).sum();
        let p99_ns = here.iter().filter_map(|tenant| after.get(&name(*tenant))).map(|(_, p99)| *p99).max();
        let all: f64 = all_bytes + capped;
        let by_class = |of: &dyn Fn(usize) -> f64| {
            [0, 1, 2, 3].map(|class| here.iter().filter(|tenant| **tenant % 4 == class).map(|tenant| of(*tenant)).sum())
        };
        let parts = by_class(&|tenant| moved(tenant) / all);
        // A capped tenant has its cap, and the others share the rest.
        let left = 1.0 - (allowed as f64 * seconds / all).min(1.0);
        let entitled = by_class(&|tenant| match caps.get(&tenant) {
            Some(cap) => *cap as f64 * seconds / all,
            None => left * self.weights[tenant] as f64 / all_weights,
        });
        Ok(Phase {
            parts,
            entitled,
            name: name_,
            mb_per_s: (all_bytes + capped) / seconds / 1e6,
            classes,
            capped: (allowed > 0).then(|| capped / seconds / allowed as f64),
            worst,
            p99_ms: p99_ns.unwrap_or(0) as f64 / 1e6,
        })
    }

    /// Another process takes the server's place, with what was changed since; for how long clients waited, us.
    fn upgrade(&mut self) -> Result<u64, String> {
        self.ctl(&["save"])?;
        let new = serve(&self.program, &self.folder, true)?;
        let mut old = std::mem::replace(&mut self.server, new);
        let status = old.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("the server that was replaced ended with {status}"));
        }
        let ready = std::fs::read_to_string(self.folder.join("ready")).unwrap_or_default();
        let ready: Value = ready.lines().next().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        ready["replaced"]["pause_us"].as_u64().ok_or_else(|| format!("the new server did not say its pause: {ready}"))
    }

    /// Descriptors, and memory in KiB.
    fn holds(&self) -> Result<(usize, u64), String> {
        holds(self.server.id(), "VmRSS:", 10)
    }

    fn end(&mut self) -> Result<(), String> {
        said(Command::new("kill").arg(self.server.id().to_string()))?;
        let status = self.server.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("the server ended with {status}")) }
    }
}

/// A server of the folder's config; what it says goes to the file `ready` there.
fn serve(program: &Path, folder: &Folder, replace: bool) -> Result<Child, String> {
    let path = folder.join("ready");
    // A file of its own: a server that is replaced goes on in the one that it has.
    let _ = std::fs::remove_file(&path);
    let ready = std::fs::File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut command = Command::new(program);
    command.args(["--json", "serve"]).args(replace.then_some("--replace")).arg(folder.join("day.toml"));
    let mut child = command.stdout(ready).spawn().map_err(|error| format!("{}: {error}", program.display()))?;
    while !std::fs::read_to_string(&path).is_ok_and(|text| text.starts_with("{\"ready\":true") && text.contains('\n')) {
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("the server ended with {status} before it was ready"));
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    Ok(child)
}

/// Ends fio; every job has verified what it wrote.
fn end(Jobs(fio): &mut Jobs, report: &Path) -> Result<(), String> {
    said(Command::new("kill").args(["-INT", &fio.id().to_string()]))?;
    fio.wait().map_err(|error| error.to_string())?;
    let text = std::fs::read_to_string(report).map_err(|error| format!("{}: {error}", report.display()))?;
    let json = text.find('{').map_or("", |from| &text[from..]);
    let report: Value = serde_json::from_str(json).map_err(|error| format!("fio's report: {error}"))?;
    for job in report["jobs"].as_array().into_iter().flatten() {
        let moved = job["read"]["io_bytes"].as_u64().unwrap_or(0) + job["write"]["io_bytes"].as_u64().unwrap_or(0);
        if job["error"] != 0 || moved == 0 {
            return Err(format!(
                "fio job {} moved {moved} bytes and ended with error {}",
                job["jobname"], job["error"]
            ));
        }
    }
    Ok(())
}

/// The classes of tenants, by what happens to them in the phases.
const CLASSES: [&str; 4] = ["0", "1: weight 300 once reweighted", "2: capped once", "3: half of it leaves"];

/// Draws the record in `json` to `svg`.
///
/// # Errors
/// One sentence: a file that cannot be read or written, or is not a record of a day.
pub fn draw(json: &Path, svg: &Path) -> Result<(), String> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(json).map_err(|error| failed(json, &error))?;
    let day: Value = serde_json::from_str(&text).map_err(|error| failed(json, &error))?;
    let picture = picture(&day).map_err(|error| failed(json, &error))?;
    std::fs::write(svg, picture).map_err(|error| failed(svg, &error))
}

fn picture(day: &Value) -> Result<String, String> {
    let phases = day["phases"].as_array().filter(|phases| !phases.is_empty()).ok_or("it has no phases")?;
    let names: Vec<String> = phases.iter().filter_map(|phase| phase["phase"].as_str().map(str::to_owned)).collect();
    let along = || Along::Places(names.clone());
    let number =
        |value: &Value| value.as_f64().ok_or_else(|| "a number is missing, an older record has none".to_owned());
    let of_class = |key: &str, class: usize| {
        let at = |(phase, value): (usize, &Value)| Ok((phase as f64, 100.0 * number(&value[key][class])?));
        phases.iter().enumerate().map(at).collect::<Result<Vec<_>, String>>()
    };
    let mut shares = Vec::new();
    for (class, name) in CLASSES.iter().enumerate() {
        shares.push(Series::new(format!("class {name}"), class, of_class("class_part", class)?));
        let entitled = Series::new(format!("class {name}, entitled"), class, of_class("class_entitled", class)?);
        shares.push(Series { dashed: true, ..entitled });
    }
    let of_phase = |key: &str| {
        let at = |(phase, value): (usize, &Value)| Ok((phase as f64, number(&value[key])?));
        phases.iter().enumerate().map(at).collect::<Result<Vec<_>, String>>()
    };
    let throughput = Panel::bars_at("Throughput", names.clone(), "MB/s");
    let panels = [
        Panel::lines("Part of the bytes, by class", along(), "", "% of all").with(shares),
        throughput.with(vec![Series::new("all tenants", 0, of_phase("megabytes_per_s")?)]),
    ];
    render(&format!("A day of {} tenants, in {} s", day["tenants"], day["seconds"]), &panels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_record_becomes_a_picture_and_something_else_a_sentence() {
        let phase = |name: &str| {
            let part = json!([0.25, 0.25, 0.25, 0.25]);
            json!({ "phase": name, "class_part": part, "class_entitled": part, "megabytes_per_s": 270.0 })
        };
        let day = json!({ "tenants": 8, "seconds": 9, "phases": [phase("equal"), phase("capped")] });
        let svg = picture(&day).unwrap();
        for words in ["A day of 8 tenants, in 9 s", "equal", "capped", "class 2: capped once, entitled"] {
            assert!(svg.contains(words), "{words}");
        }
        assert_eq!(picture(&json!({})), Err("it has no phases".to_owned()));
        let older = json!({ "phases": [{ "phase": "equal" }] });
        assert_eq!(picture(&older), Err("a number is missing, an older record has none".to_owned()));
    }
}
