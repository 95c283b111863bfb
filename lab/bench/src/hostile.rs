//! `cargo lab hostile`: what do clients that lie, hang and come in crowds cost a well-behaved tenant?
//!
//! ```text
//!   good   fio writes and verifies, at a depth, over the modelled drive    undisturbed │ elsewhere │ here │ elsewhere │ …
//!   bad    500 that chose their export and say nothing                                 │ all of    │ all  │
//!          50 that stop: half take no reply, half send half a write                    │ these, at │ at   │
//!          2000 connects a second, each with a mutated handshake or request            │ another   │ this │
//!          strangers and guests at a vhost-user socket (`hostile/strangers.rs`)        │ server    │ one  │
//! ```
//! The clients' own work takes processors from any program of the machine, so a phase in which they are at the tenant's
//! server (here) is compared with the phases beside it in which they are at another server (elsewhere). The difference
//! is the server's own. The phases take turns in one run, so that a machine whose speed drifts has it in both, and of
//! all rounds the median counts. Each server lives in a cgroup that ends it if it takes more memory than its limits
//! come to, where cgroups can be made. All the time this program holds flock on the folders of the servers' sockets.
//!
//! # Mutants
//! A whole conversation (handshake, GO, reads, writes, trims, flushes) of which some bytes are others, a part is gone
//! or twice, or the end is cut: in every other one in the handshake, else in the requests behind it. All from one seed.
//!
//! # What would make it lie
//! A server that spends more on each client than another build of it: the other server of the run is of the same build,
//! so that cost is lost in both phases. The report has both over undisturbed, and the processors' idle part.
//!
//! Atomics here are counters and one flag: every access is Relaxed, because nothing else is read because of them.

mod group;
mod strangers;

use crate::fio;
use crate::machine::{holds, product, said};
use group::Group;
use mqfq_report::plot::{Curve, Panel, Scene, write};
use mqfq_report::print_line;
use mqfq_testing::{Folder, Random};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use strangers::Strangers;

/// How much of everything.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct HostileOptions {
    /// Pairs of disturbed phases, elsewhere and here.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Length of each phase.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Mutants at the tenant's server in all phases together; those left at their end follow.
    #[arg(long, default_value_t = 100_000)]
    pub mutants: u64,
    /// Connections per second.
    #[arg(long = "connects", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    pub connects_per_s: u64,
    /// Requests of the good tenant that are under way at a time.
    #[arg(long, default_value_t = 8)]
    pub depth: u32,
    /// Seed of the mutants.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Folder for the picture, hostile.svg.
    #[arg(long, value_name = "FOLDER", default_value = "target")]
    pub out: PathBuf,
    /// The program `mqfq`, if not the one beside this one.
    #[arg(long, value_name = "PROGRAM")]
    pub program: Option<PathBuf>,
}

const IDLE: usize = 500;
const STUCK: usize = 50;
/// Threads that connect.
const ATTACKERS: u64 = 4;
/// Size of an export.
const EXPORT_MIB: u64 = 64;
/// Step of the picture, and of fio's log.
const STEP_MS: usize = 500;

/// Payload memory of the server, `memory` of its config.
const PAYLOAD_MIB: u64 = 64;
/// Size of the export that strangers and guests find at the vhost-user socket.
const GUEST_MIB: u64 = 1;
/// The modelled drive keeps its bytes in memory of the server: all exports.
const DRIVE_MIB: u64 = 2 * EXPORT_MIB + GUEST_MIB;
/// By docs/use/limits.md: payloads, two workers' spare buffers, 128 KiB for each connection's receive buffer and as
/// much for a piece beyond `memory`, 8 KiB for each of 1024 handshakes; and the program, with the kernel's side of 600
/// sockets.
const MEMORY_MIB: u64 = PAYLOAD_MIB + 2 * 16 + (IDLE + STUCK) as u64 / 4 + 8 + DRIVE_MIB + 64;

/// Throughput may fall by this part, p99 rise by that.
const THROUGHPUT_LOSS_MAX: f64 = 0.10;
const P99_RISE_MAX: f64 = 0.20;
/// Part of the requested connects per second that must have been made.
const CONNECTS_LEAST: f64 = 0.95;
/// Connections of an address that have an export, `connections` of the config.
const CONNECTIONS: usize = 2048;
/// Descriptors that the server may have at any time beyond those at its start, by docs/use/limits.md: connections and
/// handshakes of NBD, and what strangers may pass.
const DESCRIPTORS_MAX: usize = CONNECTIONS + 1024 + strangers::DESCRIPTORS_MAX;
/// Time in which the server starts and ends beside a foreign lock on its folder.
const WITHIN: Duration = Duration::from_secs(60);
/// Memory that may stay when all have gone, MiB: the buffers that two workers keep for the next requests, and a little.
const KEPT_MIB_MAX: u64 = 2 * 16 + 8;

/// Server that the hostile clients use in a phase.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Disturbed {
    Nowhere,
    /// A server that the good tenant does not use.
    Elsewhere,
    /// The good tenant's.
    Here,
}

impl Disturbed {
    fn name(self) -> &'static str {
        match self {
            Disturbed::Nowhere => "undisturbed",
            Disturbed::Elsewhere => "elsewhere",
            Disturbed::Here => "here",
        }
    }
}

/// A phase as the good tenant saw it.
#[derive(Clone)]
struct Phase {
    disturbed: Disturbed,
    mb_per_s: f64,
    p99_us: f64,
    /// Idle part of all processors.
    idle: f64,
    /// Throughput by step.
    bytes_per_s: Vec<f64>,
}

/// Runs it, and prints a table or JSON; the picture lies in the folder of the options.
///
/// # Errors
/// One sentence: a program that is missing, a server that ended, bytes that are not what was written, or a bound that
/// was missed.
pub fn run(options: &HostileOptions, as_json: bool) -> Result<(), String> {
    let program = options.program.clone().map_or_else(product, Ok)?;
    let (mut server, other) = (Server::start(&program)?, Server::start(&program)?);
    let (attack, attack_elsewhere) = (Attack::new(&server, options), Attack::new(&other, options));
    let mut phases = vec![server.measure(options, Disturbed::Nowhere)?];
    let at_start = server.holds()?;
    let mut warm = None;
    for _ in 0..options.rounds {
        for (attack, disturbed) in [(&attack_elsewhere, Disturbed::Elsewhere), (&attack, Disturbed::Here)] {
            phases.push(attack.phase(|| server.measure(options, disturbed))?);
        }
        if warm.is_none() {
            warm = Some(server.holds()?);
        }
    }
    // So that the last phase here, too, has one on each side.
    phases.push(attack_elsewhere.phase(|| server.measure(options, Disturbed::Elsewhere))?);
    phases.push(server.measure(options, Disturbed::Nowhere)?);
    attack.rest();
    let at_end = server.holds()?;
    let peak_mib = server.peak_mib();
    other.end()?;
    let broken = server.end()?;
    let report = Report::new(options, phases, &attack, [at_start, warm.unwrap_or(at_start), at_end], peak_mib, broken);
    report.picture(&options.out.join("hostile.svg"))?;
    report.print(as_json)?;
    report.verdict()
}

/// Descriptors of a process, and its memory in MiB.
type Holds = (usize, u64);

struct Server {
    folder: Folder,
    child: Child,
    /// Has flock on the folder.
    _flock: std::fs::File,
    /// Cgroup in which it may have [`MEMORY_MIB`]; `None`: none could be made.
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
            "[server]\nworkers = 2\nconnections = {CONNECTIONS}\nmemory = \"{PAYLOAD_MIB}MiB\"\n[device.d]\nkind = \"model\"\n\
             preset = \"flash-60k\"\nsize = \"{DRIVE_MIB}MiB\"\npolicy = \"mqfq\"\n"
        );
        for (name, offset_mib) in [("good", 0), ("bad", EXPORT_MIB)] {
            config += &format!(
                "[tenant.{name}]\n[export.{name}]\ndevice = \"d\"\ntenant = \"{name}\"\noffset = \"{offset_mib}MiB\"\n\
                 size = \"{EXPORT_MIB}MiB\"\nnbd = \"unix:{at}/s.sock\"\n"
            );
        }
        config += &format!(
            "[export.guest]\ndevice = \"d\"\ntenant = \"bad\"\noffset = \"{}MiB\"\nsize = \"{GUEST_MIB}MiB\"\n\
             vhost-user = \"unix:{at}/g.sock\"\n",
            2 * EXPORT_MIB
        );
        let (path, ready, said) = (folder.join("hostile.toml"), folder.join("ready"), folder.join("said"));
        let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        std::fs::write(&path, config).map_err(|error| failed(&path, error))?;
        let flock = std::fs::File::open(folder.path()).map_err(|error| failed(folder.path(), error))?;
        flock.try_lock().map_err(|error| format!("flock on {at}: {error}"))?;
        let group = Group::new();
        // The shell is in the group before it becomes the server, so nothing of it is counted elsewhere.
        let enter =
            group.as_ref().map_or(String::new(), |group| format!("echo $$ > '{}' && ", group.procs().display()));
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{enter}exec \"$0\" --json serve \"$1\"")).arg(program).arg(&path);
        command.stdout(std::fs::File::create(&ready).map_err(|error| failed(&ready, error))?);
        command.stderr(std::fs::File::create(&said).map_err(|error| failed(&said, error))?);
        let child = command.spawn().map_err(|error| failed(program, error))?;
        let mut server = Server { folder, child, _flock: flock, group };
        let start = Instant::now();
        while !std::fs::read_to_string(&ready).is_ok_and(|text| text.starts_with("{\"ready\":true")) {
            server.must_live()?;
            if start.elapsed() > WITHIN {
                return Err(format!("the server did not start within {} s", WITHIN.as_secs()));
            }
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
    fn measure(&mut self, options: &HostileOptions, disturbed: Disturbed) -> Result<Phase, String> {
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
        let text = fio::run(&mut fio)?;
        let after = processors();
        self.must_live()?;
        let job = fio::first_job(&text)?;
        let of = |way: &str, key: &str| job[way][key].as_f64().unwrap_or(0.0);
        // Over the time of both ways: a way that has just begun has a runtime near 0, and a rate beyond all reason.
        let runtime_ms = of("read", "runtime").max(of("write", "runtime")).max(1.0);
        let bytes_per_s = (of("read", "io_bytes") + of("write", "io_bytes")) * 1e3 / runtime_ms;
        let p99_us = job["write"]["clat_ns"]["percentile"]["99.000000"].as_f64().unwrap_or(0.0) / 1e3;
        let steps = std::fs::read_to_string(self.folder.join("bw_bw.1.log")).unwrap_or_default();
        let idle = (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
        Ok(Phase { disturbed, mb_per_s: bytes_per_s / 1e6, p99_us, idle, bytes_per_s: series(&steps) })
    }

    /// Memory is the program's own, without the drive's bytes, which it shares with its successor.
    fn holds(&self) -> Result<Holds, String> {
        holds(self.child.id(), "RssAnon:", 20).map(|(descriptors, kib)| (descriptors, kib / 1024))
    }

    fn peak_mib(&self) -> Option<u64> {
        self.group.as_ref().and_then(Group::peak_mib)
    }

    /// Reads its clients' violations from its report, and ends it by SIGTERM.
    fn end(mut self) -> Result<Value, String> {
        let signal =
            |signal: &str, server: &Server| said(Command::new("kill").args([signal, &server.child.id().to_string()]));
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
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status,
                None if start.elapsed() > WITHIN => {
                    return Err(format!("the server did not end within {} s", WITHIN.as_secs()));
                }
                None => std::thread::park_timeout(Duration::from_millis(20)),
            }
        };
        if !status.success() {
            return Err(format!("the server ended with {status}"));
        }
        let mut all = std::collections::BTreeMap::<String, u64>::new();
        for rules in report["listeners"].as_array().into_iter().flatten().map(|it| it["broken_rules"].as_object()) {
            for (rule, count) in rules.into_iter().flatten() {
                *all.entry(rule.clone()).or_default() += count.as_u64().unwrap_or(0);
            }
        }
        Ok(json!(all))
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

/// The hostile clients.
struct Attack {
    socket: PathBuf,
    strangers: Strangers,
    per_s: u64,
    mutants_max: u64,
    seed: u64,
    /// Mutants sent, which is also the next one's number.
    mutants: AtomicU64,
    connects_failed: AtomicU64,
    /// Nanoseconds of disturbed phases.
    took_ns: AtomicU64,
    /// Mutants that came in disturbed phases.
    in_phases: AtomicU64,
}

impl Attack {
    fn new(server: &Server, options: &HostileOptions) -> Attack {
        Attack {
            socket: server.socket(),
            strangers: Strangers::new(server.folder.join("g.sock"), server.child.id()),
            per_s: options.connects_per_s,
            mutants_max: options.mutants,
            seed: options.seed,
            mutants: AtomicU64::new(0),
            connects_failed: AtomicU64::new(0),
            took_ns: AtomicU64::new(0),
            in_phases: AtomicU64::new(0),
        }
    }

    /// Idle and stuck clients, which stay until they are dropped.
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

    /// `body` with all hostile clients beside it.
    fn phase<T>(&self, body: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let _stuck = self.idle_and_stuck()?;
        self.beside(body)
    }

    /// Strangers, and mutants at the rate that was asked for, while `body` runs.
    fn beside<T>(&self, body: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let is_over = AtomicBool::new(false);
        let (start, before) = (Instant::now(), self.mutants.load(Ordering::Relaxed));
        let result = std::thread::scope(|scope| {
            scope.spawn(|| self.strangers.come(&is_over));
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

    /// Sends the mutants for which no phase had time.
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
        // The server may have closed already, or may not read: errors do not matter.
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
        // Whole blocks, so that requests with unchanged numbers reach the device.
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
    /// Here over elsewhere, by round.
    throughput: Vec<f64>,
    p99: Vec<f64>,
    json: Value,
    holds: [Holds; 3],
    connects_per_s_asked: u64,
}

impl Report {
    fn new(
        options: &HostileOptions,
        phases: Vec<Phase>,
        attack: &Attack,
        holds: [Holds; 3],
        peak_mib: Option<u64>,
        broken: Value,
    ) -> Report {
        let of = |disturbed, over, get: fn(&Phase) -> f64| ratios(&phases, disturbed, over, get);
        let here = |get| of(Disturbed::Here, Disturbed::Elsewhere, get);
        let (throughput, p99) = (here(|phase| phase.mb_per_s), here(|phase| phase.p99_us));
        let of_undisturbed = |disturbed| {
            let median = |get| median(&of(disturbed, Disturbed::Nowhere, get));
            json!({ "throughput_ratio": median(|phase| phase.mb_per_s), "p99_ratio": median(|phase| phase.p99_us) })
        };
        let phase = |phase: &Phase| {
            json!({ "disturbed": phase.disturbed.name(), "megabytes_per_s": phase.mb_per_s, "p99_us": phase.p99_us,
                    "processors_idle": phase.idle })
        };
        let held = |(descriptors, mib): Holds| json!({ "descriptors": descriptors, "memory_mib": mib });
        let json = json!({
            "rounds": options.rounds, "seconds": options.seconds, "depth": options.depth, "seed": options.seed,
            "idle_clients": IDLE, "stuck_clients": STUCK,
            "mutants": attack.mutants.load(Ordering::Relaxed),
            "connects_per_s": attack.connects_per_s(),
            "connects_failed": attack.connects_failed.load(Ordering::Relaxed),
            "strangers": attack.strangers.json(),
            "phases": phases.iter().map(phase).collect::<Vec<_>>(),
            "here_of_undisturbed": of_undisturbed(Disturbed::Here),
            "elsewhere_of_undisturbed": of_undisturbed(Disturbed::Elsewhere),
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

    fn print(&self, as_json: bool) -> Result<(), String> {
        let json = &self.json;
        if as_json {
            return print_line(json);
        }
        print_line(format_args!("{:<12} {:>8} {:>10} {:>6}", "phase", "MB/s", "p99 us", "idle"))?;
        for Phase { disturbed, mb_per_s, p99_us, idle, .. } in &self.phases {
            let name = disturbed.name();
            print_line(format_args!("{name:<12} {mb_per_s:>8.1} {p99_us:>10.0} {:>5.0}%", idle * 100.0))?;
        }
        let list = |ratios: &[f64]| ratios.iter().map(|ratio| format!("{ratio:.3}")).collect::<Vec<_>>().join("  ");
        for (name, ratios) in [("throughput", &self.throughput), ("p99", &self.p99)] {
            print_line(format_args!("{name}, here over elsewhere: median {:.3} of {}", median(ratios), list(ratios)))?;
        }
        let [throughput_noise, p99_noise] = self.noise();
        print_line(format_args!(
            "between phases elsewhere throughput differs by {throughput_noise:.3}, p99 by {p99_noise:.3}"
        ))?;
        for at in ["here", "elsewhere"] {
            let ratio = |key: &str| json[format!("{at}_of_undisturbed")][key].as_f64().unwrap_or(f64::NAN);
            print_line(format_args!(
                "of undisturbed, {at}: throughput {:.3}, p99 {:.3}",
                ratio("throughput_ratio"),
                ratio("p99_ratio")
            ))?;
        }
        print_line(format_args!(
            "mutants {}, connects/s {:.0}, not connected {}",
            json["mutants"],
            json["connects_per_s"].as_f64().unwrap_or(0.0),
            json["connects_failed"]
        ))?;
        print_line(format_args!("strangers/s {:.0}", json["strangers"]["strangers_per_s"].as_f64().unwrap_or(0.0)))?;
        for (kind, tally) in json["strangers"]["kinds"].as_object().into_iter().flatten() {
            print_line(format_args!("  {kind:<8} {:>5} came, {:>5} were refused", tally["came"], tally["refused"]))?;
        }
        if !self.is_steady() {
            print_line("Phases elsewhere differ by more than half of a bound: that bound is not judged.")?;
        }
        print_line(format_args!("rules that were broken: {}", json["broken_rules"]))?;
        for (when, (descriptors, mib)) in ["at the start", "after the first round", "at the end"].iter().zip(self.holds)
        {
            print_line(format_args!("{when:<22} {descriptors:>4} descriptors {mib:>4} MiB"))?;
        }
        print_line(format_args!("most descriptors: {} beside strangers", json["strangers"]["descriptors_most"]))?;
        match json["memory_peak_mib"].as_u64() {
            Some(peak) => print_line(format_args!(
                "most memory, with the drive's bytes and the kernel's: {peak} of {MEMORY_MIB} MiB"
            )),
            None => print_line("no cgroup could be made, so no limit on memory was in force"),
        }
    }

    /// By how much throughput and p99 would be off without any disturbance ([`noise`]).
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
        let strangers = &self.json["strangers"];
        let most = strangers["descriptors_most"].as_u64().unwrap_or(0) as usize;
        let bounds = [
            (strangers["not_due"].is_null(), format!("of strangers, {}", strangers["not_due"])),
            (
                most <= start.0 + DESCRIPTORS_MAX,
                format!("{most} descriptors beside strangers, {} at the start", start.0),
            ),
            (
                !sees_throughput || throughput >= 1.0 - THROUGHPUT_LOSS_MAX,
                format!("throughput is {throughput:.3} of that beside the clients of another server"),
            ),
            (
                !sees_p99 || p99 <= 1.0 + P99_RISE_MAX,
                format!("p99 is {p99:.3} of that beside the clients of another server"),
            ),
            (rate >= asked as f64 * CONNECTS_LEAST, format!("{rate:.0} connects a second, {asked} were asked for")),
            (end.0 <= start.0, format!("{} descriptors at the start, {} at the end", start.0, end.0)),
            (end.1 <= start.1 + KEPT_MIB_MAX, format!("{} MiB at the start, {} at the end", start.1, end.1)),
        ];
        let missed: Vec<String> = bounds.into_iter().filter(|(holds, _)| !holds).map(|(_, what)| what).collect();
        if missed.is_empty() { Ok(()) } else { Err(format!("missed: {}", missed.join("; "))) }
    }

    fn picture(&self, path: &Path) -> Result<(), String> {
        let series = |disturbed: Disturbed| {
            let of = self.phases.iter().filter(|phase| phase.disturbed == disturbed);
            of.flat_map(|phase| phase.bytes_per_s.iter().copied()).collect::<Vec<f64>>()
        };
        // From the same steps: fio's log has the bytes that were written, and not those that were verified.
        let undisturbed = series(Disturbed::Nowhere);
        let alone_bytes_per_s = undisturbed.iter().sum::<f64>() / undisturbed.len().max(1) as f64;
        let panel = |disturbed: Disturbed| {
            let ratios = ratios(&self.phases, disturbed, Disturbed::Nowhere, |phase| phase.mb_per_s);
            let label = match ratios.len() {
                0 => "good".to_owned(),
                _ => format!("good, slowed {:.2} times", 1.0 / median(&ratios)),
            };
            let curve = Curve { label, start_s: 0.0, bytes_per_s: series(disturbed), alone_bytes_per_s };
            let title = disturbed.name().to_owned();
            Panel { title, step_s: STEP_MS as f64 / 1e3, shared_s: 0.0, curves: vec![curve] }
        };
        let panels = [Disturbed::Nowhere, Disturbed::Elsewhere, Disturbed::Here].map(panel);
        let title = format!("{IDLE} idle and {STUCK} stuck clients, {} mutants", self.json["mutants"]);
        let title_of_all = "Bytes written by a tenant that verifies them: no hostile clients, at another server, here";
        write(path, title_of_all, "the whole run", &[Scene { title, panels: panels.into() }])
    }
}

/// Ratio of each phase of one kind to the mean of the last phase of kind `base` before it and the first after it.
fn ratios(phases: &[Phase], of: Disturbed, base: Disturbed, get: fn(&Phase) -> f64) -> Vec<f64> {
    let is_base = |phase: &&Phase| phase.disturbed == base;
    let ratio = |(index, phase): (usize, &Phase)| {
        let before = phases[..index].iter().rev().find(is_base);
        over(get(phase), [before, phases[index + 1..].iter().find(is_base)].map(|base| base.map(get)))
    };
    phases.iter().enumerate().filter(|(_, phase)| phase.disturbed == of).map(ratio).collect()
}

/// The median of how far phases elsewhere are from the ones elsewhere before and after them, as a part of 1. Those lie
/// twice as far apart as the phases that are compared, so this is rather more than what the ratios are off by.
fn noise(phases: &[Phase], get: fn(&Phase) -> f64) -> f64 {
    let elsewhere = Disturbed::Elsewhere;
    median(&ratios(phases, elsewhere, elsewhere, get).iter().map(|ratio| (1.0 - ratio).abs()).collect::<Vec<_>>())
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

    fn phase(disturbed: Disturbed, mb_per_s: f64) -> Phase {
        Phase { disturbed, mb_per_s, p99_us: 1.0, idle: 0.0, bytes_per_s: Vec::new() }
    }

    #[test]
    fn a_phase_here_is_compared_with_those_elsewhere_beside_it_and_both_with_undisturbed_ones() {
        use Disturbed::{Elsewhere, Here, Nowhere};
        let phases = [(Nowhere, 200.0), (Elsewhere, 100.0), (Here, 90.0), (Elsewhere, 80.0), (Here, 20.0)];
        let phases = phases.map(|(disturbed, mb_per_s)| phase(disturbed, mb_per_s));
        let of = |disturbed, base| ratios(&phases, disturbed, base, |phase| phase.mb_per_s);
        assert_eq!(of(Here, Elsewhere), [1.0, 0.25]);
        assert_eq!(of(Elsewhere, Nowhere), [0.5, 0.4]);
        assert_eq!(noise(&phases, |phase| phase.mb_per_s), 0.25, "of 100 over 80, and 80 over 100, the larger");
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn one_phase_that_was_off_and_a_machine_that_gets_slower_stop_no_judgement() {
        let off = |all: &[f64]| {
            let phases = all.iter().map(|mb_per_s| phase(Disturbed::Elsewhere, *mb_per_s)).collect::<Vec<_>>();
            noise(&phases, |phase| phase.mb_per_s)
        };
        assert!(off(&[100.0, 96.0, 92.0, 88.0, 84.0, 80.0]) < 0.01, "least and most differ by 20%");
        assert!(off(&[100.0, 101.0, 100.0, 101.0, 100.0, 60.0]) < 0.02);
        assert!(off(&[100.0, 80.0, 100.0, 80.0, 100.0, 80.0]) > 0.15, "it cannot be told");
        assert!(off(&[]).is_nan());
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
