//! `cargo xtask hostile`: what do clients that lie, hang and come in crowds cost a tenant who does nothing of that?
//!
//! ```text
//!   good   fio writes and verifies, at a depth, over the modelled drive        undisturbed │ disturbed │ undisturbed │ …
//!   bad    500 that chose their export and say nothing                                     │  all of   │
//!          50 that stop: half take no reply, half send half a write                        │  these    │
//!          2000 connects a second, each with a mutated handshake or request                │           │
//! ```
//! The two kinds of phases take turns in one run, so that a machine whose speed drifts has it in both. A disturbed
//! phase is compared with the undisturbed ones beside it, and of all rounds the median counts. The server lives in a
//! cgroup that ends it if it takes more memory than its limits come to, where cgroups can be made.
//!
//! # Mutants
//! A whole conversation (handshake, GO, reads, writes, trims, flushes) of which some bytes are others, a part is gone
//! or twice, or the end is cut: in every other one in the handshake, else in the requests behind it. All from one seed.
//!
//! # What would make it lie
//! A machine without a core for each of server, fio and attackers: then fio and the server wait for the processor, and
//! the loss is that of any other program beside them. The report has the processor's idle part in both phases, and
//! [`Options::elsewhere`] measures that loss.

use crate::run::{cargo, output, run, target};
use mqfq_report::plot::{Block, Column, Curve, write};
use mqfq_testing::{Folder, Random};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How much of everything.
#[derive(Clone)]
pub struct Options {
    /// Pairs of phases.
    pub rounds: usize,
    /// Of each phase.
    pub seconds: u64,
    /// In all disturbed phases together; what is left at their end follows.
    pub mutants: u64,
    /// Connections per second.
    pub connects_per_s: u64,
    /// Requests of the good tenant that are under way at a time.
    pub depth: u32,
    /// Of the mutants.
    pub seed: u64,
    /// Those who disturb do it to a second server, which the tenant has nothing to do with: what their own work costs
    /// on this machine. No bound is judged.
    pub elsewhere: bool,
    /// The binary of the server; `None`: a release build.
    pub program: Option<PathBuf>,
    /// Print JSON alone on stdout.
    pub json: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            rounds: 5,
            seconds: 10,
            mutants: 100_000,
            connects_per_s: 2000,
            depth: 8,
            seed: 1,
            elsewhere: false,
            program: None,
            json: false,
        }
    }
}

const IDLE: usize = 500;
const STUCK: usize = 50;
/// Threads that connect.
const ATTACKERS: u64 = 4;
/// Of an export.
const EXPORT_MIB: u64 = 64;
/// Step of the picture, and of fio's log.
const STEP_MS: usize = 500;

/// Payload memory of the server, `memory` of its config.
const PAYLOAD_MIB: u64 = 64;
/// The modelled drive keeps its bytes in memory of the server: two exports.
const DRIVE_MIB: u64 = 2 * EXPORT_MIB;
/// By docs/use/limits.md: payloads, two workers' spare buffers, 128 KiB for each connection's receive buffer and as
/// much for a piece beyond `memory`, 8 KiB for each of 1024 handshakes; and the program, with the kernel's side of 600
/// sockets.
const MEMORY_MIB: u64 = PAYLOAD_MIB + 2 * 16 + (IDLE + STUCK) as u64 / 4 + 8 + DRIVE_MIB + 64;

/// Throughput may fall by this part, p99 rise by that.
const THROUGHPUT_LOSS_MAX: f64 = 0.10;
const P99_RISE_MAX: f64 = 0.20;
/// Of the connects per second that were asked for, so many must have been made.
const CONNECTS_LEAST: f64 = 0.95;
/// Memory that may stay when all have gone, MiB: the buffers that two workers keep for the next requests, and a little.
const KEPT_MIB_MAX: u64 = 2 * 16 + 8;

/// A phase as the good tenant saw it.
#[derive(Clone)]
struct Phase {
    disturbed: bool,
    mb_per_s: f64,
    p99_us: f64,
    /// Of all processors.
    idle: f64,
    /// By step.
    bytes_per_s: Vec<f64>,
}

/// Runs it, and prints a table or JSON; the picture lies in `target/hostile.svg`.
///
/// # Errors
/// One sentence: a program that is missing, a server that ended, bytes that are not what was written, or a bound that
/// was missed.
pub fn hostile(options: &Options) -> Result<(), String> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => {
            run(cargo("build --release -p mqfq").stdout(std::io::stderr()))?;
            target().join("release/mqfq")
        }
    };
    let mut server = Server::start(&program)?;
    let mut phases = Vec::new();
    let other = options.elsewhere.then(|| Server::start(&program)).transpose()?;
    let attack = Attack::new(other.as_ref().unwrap_or(&server), options);
    phases.push(server.measure(options, false)?);
    let at_start = server.holds()?;
    let mut warm = None;
    for round in 0..options.rounds {
        if round > 0 {
            phases.push(server.measure(options, false)?);
        }
        let stuck = attack.idle_and_stuck()?;
        phases.push(attack.beside(|| server.measure(options, true))?);
        drop(stuck);
        if warm.is_none() {
            warm = Some(server.holds()?);
        }
    }
    // So that the last disturbed phase, too, has one on each side.
    phases.push(server.measure(options, false)?);
    attack.rest();
    let at_end = server.holds()?;
    let peak_mib = server.peak_mib();
    let mut broken = server.end()?;
    if let Some(other) = other {
        broken = other.end()?;
    }
    let report = Report::new(options, phases, &attack, [at_start, warm.unwrap_or(at_start), at_end], peak_mib, broken);
    report.picture(&target().join("hostile.svg"))?;
    report.print(options.json);
    if options.elsewhere { Ok(()) } else { report.verdict() }
}

/// What a process has: descriptors, memory in MiB.
type Holds = (usize, u64);

struct Server {
    folder: Folder,
    child: Child,
    /// In which it may have [`MEMORY_MIB`]; `None`: none could be made.
    group: Option<Group>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(program: &Path) -> Result<Server, String> {
        let folder = Folder::new();
        let at = folder.path().display();
        let mut config = format!(
            "[server]\nworkers = 2\nconnections = 2048\nmemory = \"{PAYLOAD_MIB}MiB\"\n[device.d]\nkind = \"nvme\"\n\
             preset = \"flash-60k\"\nsize = \"{DRIVE_MIB}MiB\"\npolicy = \"mqfq\"\n"
        );
        for (name, offset_mib) in [("good", 0), ("bad", EXPORT_MIB)] {
            config += &format!(
                "[tenant.{name}]\n[export.{name}]\ndevice = \"d\"\ntenant = \"{name}\"\noffset = \"{offset_mib}MiB\"\n\
                 size = \"{EXPORT_MIB}MiB\"\nnbd = \"unix:{at}/s.sock\"\n"
            );
        }
        let (path, ready, said) = (folder.join("hostile.toml"), folder.join("ready"), folder.join("said"));
        let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        std::fs::write(&path, config).map_err(|error| failed(&path, error))?;
        let group = Group::new();
        // The shell is in the group before it becomes the server, so nothing of it is counted elsewhere.
        let enter =
            group.as_ref().map_or(String::new(), |group| format!("echo $$ > '{}' && ", group.procs().display()));
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{enter}exec \"$0\" --json serve \"$1\"")).arg(program).arg(&path);
        command.stdout(std::fs::File::create(&ready).map_err(|error| failed(&ready, error))?);
        command.stderr(std::fs::File::create(&said).map_err(|error| failed(&said, error))?);
        let child = command.spawn().map_err(|error| failed(program, error))?;
        let mut server = Server { folder, child, group };
        while !std::fs::read_to_string(&ready).is_ok_and(|text| text.starts_with("{\"ready\":true")) {
            server.must_live()?;
            std::thread::park_timeout(Duration::from_millis(20));
        }
        Ok(server)
    }

    fn must_live(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                let said = std::fs::read_to_string(self.folder.join("said")).unwrap_or_default();
                Err(format!("the server ended with {status}: {}", said.lines().last().unwrap_or("")))
            }
            _ => Ok(()),
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("s.sock")
    }

    /// A run of fio as the good tenant.
    fn measure(&mut self, options: &Options, disturbed: bool) -> Result<Phase, String> {
        let log = self.folder.join("bw");
        let uri = format!("--uri=nbd+unix:///good?socket={}", self.socket().display());
        let mut fio = Command::new("fio");
        fio.args(["--name=good", "--ioengine=nbd", "--thread", "--rw=randwrite", "--bs=32k", "--time_based"]);
        fio.args(["--verify=crc32c", "--verify_backlog=64", "--verify_fatal=1", "--verify_state_save=0"]);
        fio.args([&uri, &format!("--size={EXPORT_MIB}m"), &format!("--iodepth={}", options.depth)]);
        fio.args([&format!("--runtime={}", options.seconds), "--ramp_time=1", "--output-format=json"]);
        fio.args([&format!("--write_bw_log={}", log.display()), &format!("--log_avg_msec={STEP_MS}")]);
        fio.arg(format!("--aux-path={}", self.folder.path().display()));
        let before = processors();
        let text = output(fio.stdin(Stdio::null()))?;
        let after = processors();
        self.must_live()?;
        let from = text.find('{').ok_or("fio printed no report")?;
        let report: Value = serde_json::from_str(&text[from..]).map_err(|error| format!("fio's report: {error}"))?;
        let job = &report["jobs"][0];
        if job["error"] != 0 {
            return Err(format!("fio did not find what it had written, or got an error: {}", job["error"]));
        }
        let of = |way: &str, key: &str| job[way][key].as_f64().unwrap_or(0.0);
        // Over the time of both ways: a way that has just begun has a runtime near 0, and a rate beyond all reason.
        let runtime_ms = of("read", "runtime").max(of("write", "runtime")).max(1.0);
        let bytes_per_s = (of("read", "io_bytes") + of("write", "io_bytes")) * 1e3 / runtime_ms;
        let p99_us = job["write"]["clat_ns"]["percentile"]["99.000000"].as_f64().unwrap_or(0.0) / 1e3;
        let steps = std::fs::read_to_string(self.folder.join("bw_bw.1.log")).unwrap_or_default();
        let idle = (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
        Ok(Phase { disturbed, mb_per_s: bytes_per_s / 1e6, p99_us, idle, bytes_per_s: series(&steps) })
    }

    /// The fewest of some looks: connections that were left are just closing. Memory is the program's own, without the
    /// drive's bytes, which it shares with who takes its place.
    fn holds(&self) -> Result<Holds, String> {
        let folder = PathBuf::from(format!("/proc/{}", self.child.id()));
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        let mut least: Option<Holds> = None;
        for _ in 0..20 {
            std::thread::park_timeout(Duration::from_millis(100));
            let status = std::fs::read_to_string(folder.join("status")).map_err(failed)?;
            let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or("0 kB");
            let kib: u64 = memory.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            let now = (std::fs::read_dir(folder.join("fd")).map_err(failed)?.count(), kib / 1024);
            least = Some(least.map_or(now, |least| (least.0.min(now.0), least.1.min(now.1))));
        }
        least.ok_or_else(|| "no look was taken".into())
    }

    fn peak_mib(&self) -> Option<u64> {
        self.group.as_ref().and_then(Group::peak_mib)
    }

    /// What its clients broke, from its report; then SIGTERM.
    fn end(mut self) -> Result<Value, String> {
        let signal =
            |signal: &str, server: &Server| run(Command::new("kill").args([signal, &server.child.id().to_string()]));
        signal("-USR1", &self)?;
        let report = loop {
            self.must_live()?;
            let text = std::fs::read_to_string(self.folder.join("ready")).unwrap_or_default();
            if let Some(line) = text.split_inclusive('\n').nth(1).filter(|line| line.ends_with('\n')) {
                break serde_json::from_str::<Value>(line).map_err(|error| format!("the server's report: {error}"))?;
            }
            std::thread::park_timeout(Duration::from_millis(20));
        };
        signal("-TERM", &self)?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("the server ended with {status}"));
        }
        Ok(report["listeners"][0]["broken_rules"].clone())
    }
}

/// Bytes per second in each step, from fio's log: milliseconds, KiB/s, and what does not matter.
fn series(log: &str) -> Vec<f64> {
    let mut steps: Vec<f64> = Vec::new();
    for line in log.lines() {
        let mut fields = line.split(',').map(|field| field.trim().parse::<f64>());
        if let (Some(Ok(ms)), Some(Ok(kib_per_s))) = (fields.next(), fields.next()) {
            // A step is logged at its end, or just beside it.
            let at = (ms as usize).saturating_sub(STEP_MS / 2) / STEP_MS;
            steps.resize(steps.len().max(at + 1), 0.0);
            steps[at] += kib_per_s * 1024.0;
        }
    }
    steps
}

/// Idle time and all time of all processors since the start of the machine, in ticks.
fn processors() -> (u64, u64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<u64> =
        stat.lines().next().unwrap_or("").split_whitespace().filter_map(|field| field.parse().ok()).collect();
    (ticks.get(3).copied().unwrap_or(0), ticks.iter().take(8).sum())
}

/// A cgroup whose processes may have [`MEMORY_MIB`].
struct Group {
    folder: PathBuf,
    is_v1: bool,
}

impl Group {
    fn new() -> Option<Group> {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let is_v1 = v1.is_dir();
        let root = if is_v1 { v1 } else { Path::new("/sys/fs/cgroup") };
        let group = Group { folder: root.join(format!("mqfq-hostile-{}", std::process::id())), is_v1 };
        let limit = if is_v1 { "memory.limit_in_bytes" } else { "memory.max" };
        std::fs::create_dir(&group.folder).ok()?;
        std::fs::write(group.folder.join(limit), (MEMORY_MIB << 20).to_string()).ok().map(|()| group)
    }

    fn procs(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    fn peak_mib(&self) -> Option<u64> {
        let file = if self.is_v1 { "memory.max_usage_in_bytes" } else { "memory.peak" };
        let bytes: u64 = std::fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()?;
        Some(bytes >> 20)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The server has ended, so it is empty; if not, it is seen.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// The clients that nobody wants.
struct Attack {
    socket: PathBuf,
    per_s: u64,
    mutants_max: u64,
    seed: u64,
    /// Also the number of the next one.
    mutants: AtomicU64,
    connects_failed: AtomicU64,
    /// Nanoseconds of disturbed phases.
    took_ns: AtomicU64,
    /// Mutants that came in disturbed phases.
    in_phases: AtomicU64,
}

impl Attack {
    fn new(server: &Server, options: &Options) -> Attack {
        Attack {
            socket: server.socket(),
            per_s: options.connects_per_s,
            mutants_max: options.mutants,
            seed: options.seed,
            mutants: AtomicU64::new(0),
            connects_failed: AtomicU64::new(0),
            took_ns: AtomicU64::new(0),
            in_phases: AtomicU64::new(0),
        }
    }

    /// Those that stay for a phase, until they are dropped.
    fn idle_and_stuck(&self) -> Result<Vec<UnixStream>, String> {
        let failed = |error: std::io::Error| format!("an idle client: {error}");
        let mut all = Vec::new();
        for client in 0..IDLE + STUCK {
            let mut stream = self.chosen().map_err(failed)?;
            let said = match client {
                0..IDLE => Vec::new(),
                // Two reads of 32 MiB, of which it takes nothing; a write of a MiB of which a part comes.
                _ if client % 2 == 0 => [request(READ, 1, 0, 32 << 20), request(READ, 2, 0, 32 << 20)].concat(),
                _ => [request(WRITE, 1, 0, 1 << 20), vec![7; 10_000]].concat(),
            };
            stream.write_all(&said).map_err(failed)?;
            all.push(stream);
        }
        Ok(all)
    }

    /// A connection past its handshake.
    fn chosen(&self) -> std::io::Result<UnixStream> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.write_all(&handshake())?;
        // The greeting, 18 bytes; the reply to STRUCTURED_REPLY; then GO's, of which the last is an ACK of 20.
        let mut head = [0; 38];
        stream.read_exact(&mut head)?;
        loop {
            let mut reply = [0; 20];
            stream.read_exact(&mut reply)?;
            let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("4 bytes"));
            let mut data = vec![0; word(16) as usize];
            stream.read_exact(&mut data)?;
            match word(12) {
                1 => return Ok(stream),
                kind if kind >= 1 << 31 => return Err(std::io::Error::other("the export was refused")),
                _ => {}
            }
        }
    }

    /// Mutants at the rate that was asked for while `body` runs.
    fn beside<T>(&self, body: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let is_over = AtomicBool::new(false);
        let (start, before) = (Instant::now(), self.mutants.load(Ordering::Relaxed));
        let result = std::thread::scope(|scope| {
            for _ in 0..ATTACKERS {
                scope.spawn(|| {
                    let step = Duration::from_nanos(1_000_000_000 * ATTACKERS / self.per_s);
                    let mut next = Instant::now();
                    // Relaxed: the flag orders nothing, and a mutant more is no harm.
                    while !is_over.load(Ordering::Relaxed) {
                        self.send(self.mutants.fetch_add(1, Ordering::Relaxed));
                        next += step;
                        std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
                    }
                });
            }
            let result = body();
            is_over.store(true, Ordering::Relaxed);
            result
        });
        self.took_ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.in_phases.fetch_add(self.mutants.load(Ordering::Relaxed) - before, Ordering::Relaxed);
        result
    }

    /// Those that did not find time in a phase.
    fn rest(&self) {
        while self.mutants.load(Ordering::Relaxed) < self.mutants_max {
            self.send(self.mutants.fetch_add(1, Ordering::Relaxed));
        }
    }

    /// Connects, says mutant number `number`, and leaves; one in eight looks at what comes back.
    fn send(&self, number: u64) {
        let mut random = Random::new(self.seed ^ number << 20);
        let bytes = mutant(&mut random);
        let Ok(mut stream) = UnixStream::connect(&self.socket) else {
            self.connects_failed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        // A server that has closed already has said enough, and one that does not read is left.
        let _ = stream.set_write_timeout(Some(Duration::from_millis(20)));
        let _ = stream.write_all(&bytes);
        if number.is_multiple_of(8) {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(1)));
            let _ = stream.read(&mut [0; 4096]);
        }
        let _ = stream.shutdown(Shutdown::Both);
    }

    fn connects_per_s(&self) -> f64 {
        self.in_phases.load(Ordering::Relaxed) as f64 * 1e9 / self.took_ns.load(Ordering::Relaxed).max(1) as f64
    }
}

const READ: u16 = 0;
const WRITE: u16 = 1;

/// A request as the NBD protocol has it.
fn request(command: u16, cookie: u64, offset_bytes: u64, length_bytes: u32) -> Vec<u8> {
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0];
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset_bytes.to_be_bytes());
    bytes.extend(length_bytes.to_be_bytes());
    bytes
}

/// Flags, STRUCTURED_REPLY, GO to the export `bad`.
fn handshake() -> Vec<u8> {
    let option = |number: u32, data: &[u8]| {
        [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
    };
    [vec![0, 0, 0, 3], option(8, b""), option(7, b"\0\0\0\x03bad\0\0")].concat()
}

/// A conversation with something wrong in it.
fn mutant(random: &mut Random) -> Vec<u8> {
    let mut bytes = handshake();
    let (from, until) = if random.chance(2) { (0, bytes.len()) } else { (bytes.len(), usize::MAX) };
    for cookie in 0..random.between(1, 8) {
        // Of whole blocks, so that those whose numbers stay as they are reach the device.
        let (offset_bytes, length_bytes) =
            (random.scaled(EXPORT_MIB << 20) & !511, (random.scaled(64 << 10) as u32 | 512) & !511);
        // READ, WRITE, DISC, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS.
        let command = random.below(8) as u16;
        bytes.extend(request(command, cookie, offset_bytes, length_bytes));
        if command == WRITE {
            bytes.resize(bytes.len() + length_bytes as usize, cookie as u8);
        }
    }
    for _ in 0..random.between(1, 8) {
        let at = from + random.index(bytes.len().min(until) - from);
        let to = (at + random.index(40) + 1).min(bytes.len());
        match random.below(8) {
            0..3 => bytes[at] ^= 1 << random.below(8),
            3 | 4 => bytes[at] = random.of(&[0, 1, 0x7f, 0x80, 0xff]),
            5 => drop(bytes.drain(at..to)),
            6 => {
                let twice = bytes[at..to].to_vec();
                bytes.splice(at..at, twice);
            }
            _ => bytes.truncate(at + 1),
        }
        if bytes.len() <= from {
            break;
        }
    }
    bytes
}

struct Report {
    phases: Vec<Phase>,
    /// Disturbed over undisturbed, by round.
    throughput: Vec<f64>,
    p99: Vec<f64>,
    json: Value,
    holds: [Holds; 3],
    connects_per_s_asked: u64,
}

impl Report {
    fn new(
        options: &Options,
        phases: Vec<Phase>,
        attack: &Attack,
        holds: [Holds; 3],
        peak_mib: Option<u64>,
        broken: Value,
    ) -> Report {
        let of = |get: fn(&Phase) -> f64| ratios(&phases, get);
        let (throughput, p99) = (of(|phase| phase.mb_per_s), of(|phase| phase.p99_us));
        let phase = |phase: &Phase| {
            json!({ "disturbed": phase.disturbed, "megabytes_per_s": phase.mb_per_s, "p99_us": phase.p99_us,
                    "processors_idle": phase.idle })
        };
        let held = |(descriptors, mib): Holds| json!({ "descriptors": descriptors, "memory_mib": mib });
        let json = json!({
            "rounds": options.rounds, "seconds": options.seconds, "depth": options.depth, "seed": options.seed,
            "elsewhere": options.elsewhere,
            "idle_clients": IDLE, "stuck_clients": STUCK,
            "mutants": attack.mutants.load(Ordering::Relaxed),
            "connects_per_s": attack.connects_per_s(),
            "connects_failed": attack.connects_failed.load(Ordering::Relaxed),
            "phases": phases.iter().map(phase).collect::<Vec<_>>(),
            "throughput_ratio": median(&throughput), "p99_ratio": median(&p99),
            "throughput_ratios": throughput, "p99_ratios": p99,
            "memory_limit_mib": peak_mib.map(|_| MEMORY_MIB), "memory_peak_mib": peak_mib,
            "at_start": held(holds[0]), "after_first_round": held(holds[1]), "at_end": held(holds[2]),
            "broken_rules": broken,
        });
        let connects_per_s_asked = options.connects_per_s;
        let mut report = Report { phases, throughput, p99, json, holds, connects_per_s_asked };
        let [throughput_noise, p99_noise] = report.noise();
        report.json["throughput_noise"] = throughput_noise.into();
        report.json["p99_noise"] = p99_noise.into();
        report.json["is_steady"] = report.is_steady().into();
        report
    }

    fn print(&self, as_json: bool) {
        let json = &self.json;
        if as_json {
            println!("{json}");
            return;
        }
        println!("{:<12} {:>8} {:>10} {:>6}", "phase", "MB/s", "p99 us", "idle");
        for Phase { disturbed, mb_per_s, p99_us, idle, .. } in &self.phases {
            let name = if *disturbed { "disturbed" } else { "undisturbed" };
            println!("{name:<12} {mb_per_s:>8.1} {p99_us:>10.0} {:>5.0}%", idle * 100.0);
        }
        let list = |ratios: &[f64]| ratios.iter().map(|ratio| format!("{ratio:.3}")).collect::<Vec<_>>().join("  ");
        println!(
            "throughput, disturbed over undisturbed: median {:.3} of {}",
            median(&self.throughput),
            list(&self.throughput)
        );
        println!("p99, disturbed over undisturbed: median {:.3} of {}", median(&self.p99), list(&self.p99));
        let [throughput_noise, p99_noise] = self.noise();
        println!("the same of undisturbed phases: throughput is off by {throughput_noise:.3}, p99 by {p99_noise:.3}");
        println!(
            "mutants {}, connects/s {:.0}, not connected {}",
            json["mutants"],
            json["connects_per_s"].as_f64().unwrap_or(0.0),
            json["connects_failed"]
        );
        if !self.is_steady() {
            println!("Undisturbed phases differ by more than half of a bound: what does so is not judged.");
        }
        println!("rules that were broken: {}", json["broken_rules"]);
        for (when, (descriptors, mib)) in ["at the start", "after the first round", "at the end"].iter().zip(self.holds)
        {
            println!("{when:<22} {descriptors:>4} descriptors {mib:>4} MiB");
        }
        match json["memory_peak_mib"].as_u64() {
            Some(peak) => println!("most memory, with the drive's bytes and the kernel's: {peak} of {MEMORY_MIB} MiB"),
            None => println!("no cgroup could be made, so no limit on memory was in force"),
        }
    }

    /// By how much throughput and p99 would be off if nobody disturbed anybody ([`noise`]).
    fn noise(&self) -> [f64; 2] {
        [noise(&self.phases, |phase| phase.mb_per_s), noise(&self.phases, |phase| phase.p99_us)]
    }

    /// Whether throughput and p99 can be judged: they are off by half of what is looked for at most.
    fn can_be_judged(&self) -> [bool; 2] {
        let [throughput, p99] = self.noise();
        [throughput <= THROUGHPUT_LOSS_MAX / 2.0, p99 <= P99_RISE_MAX / 2.0]
    }

    fn is_steady(&self) -> bool {
        self.can_be_judged() == [true; 2]
    }

    fn verdict(&self) -> Result<(), String> {
        let [start, _, end] = self.holds;
        let (throughput, p99) = (median(&self.throughput), median(&self.p99));
        let [sees_throughput, sees_p99] = self.can_be_judged();
        let (rate, asked) = (self.json["connects_per_s"].as_f64().unwrap_or(0.0), self.connects_per_s_asked);
        let bounds = [
            (
                !sees_throughput || throughput >= 1.0 - THROUGHPUT_LOSS_MAX,
                format!("throughput is {throughput:.3} of undisturbed"),
            ),
            (!sees_p99 || p99 <= 1.0 + P99_RISE_MAX, format!("p99 is {p99:.3} of undisturbed")),
            (rate >= asked as f64 * CONNECTS_LEAST, format!("{rate:.0} connects a second, {asked} were asked for")),
            (end.0 <= start.0, format!("{} descriptors at the start, {} at the end", start.0, end.0)),
            (end.1 <= start.1 + KEPT_MIB_MAX, format!("{} MiB at the start, {} at the end", start.1, end.1)),
        ];
        let missed: Vec<String> = bounds.into_iter().filter(|(holds, _)| !holds).map(|(_, what)| what).collect();
        if missed.is_empty() { Ok(()) } else { Err(format!("missed: {}", missed.join("; "))) }
    }

    fn picture(&self, path: &Path) -> Result<(), String> {
        let series = |disturbed: bool| {
            let of = self.phases.iter().filter(|phase| phase.disturbed == disturbed);
            of.flat_map(|phase| phase.bytes_per_s.iter().copied()).collect::<Vec<f64>>()
        };
        // Of the same steps: fio's log has the bytes that were written, and not those that were verified.
        let undisturbed = series(false);
        let alone_bytes_per_s = undisturbed.iter().sum::<f64>() / undisturbed.len().max(1) as f64;
        let column = |name: &str, disturbed: bool, slowdown| Column {
            policy: name.to_owned(),
            phase_starts_s: vec![0.0],
            step_s: STEP_MS as f64 / 1e3,
            curves: vec![Curve {
                tenant: "good".to_owned(),
                bytes_per_s: series(disturbed),
                alone_bytes_per_s,
                slowdown,
            }],
        };
        let slowdown = (!self.throughput.is_empty()).then(|| 1.0 / median(&self.throughput));
        let columns = vec![column("undisturbed", false, Some(1.0)), column("disturbed", true, slowdown)];
        let title = format!("{IDLE} idle and {STUCK} stuck clients, {} mutants", self.json["mutants"]);
        let title_of_all = "Bytes written by a tenant that verifies them, without and with hostile clients";
        write(path, title_of_all, &[Block { title, columns }])
    }
}

/// Of each disturbed phase over the mean of the undisturbed ones beside it.
fn ratios(phases: &[Phase], get: fn(&Phase) -> f64) -> Vec<f64> {
    let at = |index: usize| phases.get(index).filter(|phase| !phase.disturbed).map(get);
    let disturbed = phases.iter().enumerate().filter(|(_, phase)| phase.disturbed);
    disturbed.map(|(index, phase)| over(get(phase), [index.checked_sub(1).and_then(at), at(index + 1)])).collect()
}

/// The median of how far undisturbed phases are from the undisturbed ones before and after them, as a part of 1. Those
/// lie twice as far apart as the phases that [`ratios`] compares, so this is rather more than what ratios are off by.
fn noise(phases: &[Phase], get: fn(&Phase) -> f64) -> f64 {
    let undisturbed: Vec<f64> = phases.iter().filter(|phase| !phase.disturbed).map(get).collect();
    let at = |index: usize| undisturbed.get(index).copied();
    let off = |(index, value): (usize, &f64)| {
        (1.0 - over(*value, [usize::checked_sub(index, 1).and_then(at), at(index + 1)])).abs()
    };
    median(&undisturbed.iter().enumerate().map(off).collect::<Vec<f64>>())
}

/// `value` over the mean of those of its neighbours that there are.
fn over(value: f64, beside: [Option<f64>; 2]) -> f64 {
    let beside: Vec<f64> = beside.into_iter().flatten().collect();
    value * beside.len() as f64 / beside.iter().sum::<f64>()
}

fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_phase_is_compared_with_those_beside_it() {
        let phase =
            |disturbed, mb_per_s| Phase { disturbed, mb_per_s, p99_us: 1.0, idle: 0.0, bytes_per_s: Vec::new() };
        let phases = [phase(false, 100.0), phase(true, 90.0), phase(false, 80.0), phase(true, 20.0)];
        assert_eq!(ratios(&phases, |phase| phase.mb_per_s), [1.0, 0.25]);
        assert_eq!(noise(&phases, |phase| phase.mb_per_s), 0.25, "of 100 over 80, and 80 over 100, the larger");
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn one_phase_that_was_off_and_a_machine_that_gets_slower_stop_no_judgement() {
        let undisturbed = |all: &[f64]| {
            let phase = |mb_per_s: &f64| Phase {
                disturbed: false,
                mb_per_s: *mb_per_s,
                p99_us: 1.0,
                idle: 0.0,
                bytes_per_s: Vec::new(),
            };
            noise(&all.iter().map(phase).collect::<Vec<_>>(), |phase| phase.mb_per_s)
        };
        assert!(undisturbed(&[100.0, 96.0, 92.0, 88.0, 84.0, 80.0]) < 0.01, "least and most differ by 20%");
        assert!(undisturbed(&[100.0, 101.0, 100.0, 101.0, 100.0, 60.0]) < 0.02);
        assert!(undisturbed(&[100.0, 80.0, 100.0, 80.0, 100.0, 80.0]) > 0.15, "it cannot be told");
        assert!(undisturbed(&[]).is_nan());
    }

    #[test]
    fn mutants_are_the_same_each_time_and_few_are_alike() {
        let all = || (0..1000).map(|number| mutant(&mut Random::new(1 ^ number << 20))).collect::<Vec<_>>();
        assert_eq!(all(), all());
        let different: std::collections::BTreeSet<Vec<u8>> = all().into_iter().collect();
        assert!(different.len() > 900, "{}", different.len());
        let whole = all().into_iter().filter(|bytes| bytes.starts_with(&handshake())).count();
        assert!((300..700).contains(&whole), "{whole} get past the handshake");
    }

    #[test]
    fn a_log_of_fio_becomes_steps() {
        assert_eq!(series("500, 10, 1, 32768, 0\n501, 20, 0, 32768, 0\n1499, 1, 1, 0, 0\n"), [30720.0, 0.0, 1024.0]);
    }
}
