//! `cargo xtask databases`: transactions and commits of real databases beside greedy neighbours, under `none`, under
//! `mqfq`, and under `mqfq` with a latency goal.
//!
//! | scene | measures |
//! |---|---|
//! | `alone` | PostgreSQL with 4 connections |
//! | `reads`, `writes`, `backup`, `flushes` | the same beside a [neighbour](neighbour::Neighbour) |
//! | `pair` | two PostgreSQL with 16 connections each, which also make reports, and weights of 300 and 100 |
//! | `rocksdb`, `rocksdb-reads` | RocksDB with 4 threads, alone and beside reads |
//!
//! Rounds alternate the settings, and each measurement begins with a checkpoint and a new search for D. One database
//! serves all of them, since the policy changes live. A measurement that the [cores](measured) limited is left out.

pub mod ground;
pub mod measured;
mod neighbour;
mod postgres;
mod results;
mod rocksdb;

use crate::run::{cargo, command, keep, run, target};
use crate::tools;
use ground::{PRESET, Server, Volume, WORKERS, pass};
use measured::{Clocks, Found, Sample, Window, dispatched, served_bytes};
use neighbour::Neighbour;
use postgres::Postgres;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Options of the command.
pub struct Options<'a> {
    /// Rounds.
    pub rounds: u32,
    /// Seconds that each measurement takes, after [`WARM_UP_S`].
    pub seconds: u32,
    /// Names of scenes; none: all.
    pub scenes: Vec<&'a str>,
    /// The goal of the setting `goal`.
    pub goal: &'a str,
    /// The binary of the server; `None`: a release build.
    pub program: Option<PathBuf>,
    /// Print JSON alone on stdout.
    pub json: bool,
    /// This process has a mount namespace of its own.
    pub is_inside: bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            rounds: 10,
            seconds: 10,
            scenes: Vec::new(),
            goal: "2ms",
            program: None,
            json: false,
            is_inside: false,
        }
    }
}

/// Seconds in which both sides work and nothing counts: D is found in that time.
const WARM_UP_S: u32 = 6;

/// Seconds that a measurement takes besides, about: a checkpoint, starts and ends.
const AROUND_S: u32 = 2;

/// Connections and transactions of a database in [`Load::Pair`]: enough to be backlogged most of the time.
const PAIR: (&str, u32) = (postgres::REPORT, 16);

/// Those of a database elsewhere.
const SINGLE: (&str, u32) = (postgres::SHORT, 4);

/// Programs and their Debian packages.
const PROGRAMS: &[(&str, &str)] = &[
    ("fio", "fio"),
    ("nbdfuse", "libnbd-bin"),
    ("pgbench", "postgresql"),
    ("psql", "postgresql"),
    ("db_bench", "rocksdb-tools"),
    ("mkfs.ext4", "e2fsprogs"),
    ("losetup", "mount"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
];

/// The databases of a scene.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Load {
    Postgres,
    Pair,
    RocksDb,
}

/// A scene.
struct Scene {
    name: &'static str,
    load: Load,
    neighbour: Option<Neighbour>,
    /// Which of [`results::SETTINGS`] it has.
    settings: &'static [&'static str],
}

const fn scene(name: &'static str, load: Load, neighbour: Option<Neighbour>) -> Scene {
    // A goal changes nothing for a tenant without a neighbour, and both databases of a pair would need one.
    let settings: &[_] = if neighbour.is_some() { &["none", "mqfq", "goal"] } else { &["none", "mqfq"] };
    Scene { name, load, neighbour, settings }
}

const SCENES: &[Scene] = &[
    scene("alone", Load::Postgres, None),
    scene("reads", Load::Postgres, Some(Neighbour::Reads)),
    scene("writes", Load::Postgres, Some(Neighbour::Writes)),
    scene("backup", Load::Postgres, Some(Neighbour::Backup)),
    scene("flushes", Load::Postgres, Some(Neighbour::Flushes)),
    scene("pair", Load::Pair, None),
    scene("rocksdb", Load::RocksDb, None),
    scene("rocksdb-reads", Load::RocksDb, Some(Neighbour::Reads)),
];

/// Measures, and prints and keeps the results.
///
/// # Errors
/// One sentence if a scene is unknown, if this is not root, or if a program is missing or fails.
pub fn databases(options: &Options) -> Result<(), String> {
    let known = |name: &&str| SCENES.iter().any(|scene| scene.name == *name);
    if let Some(other) = options.scenes.iter().find(|name| !known(name)) {
        let names: Vec<&str> = SCENES.iter().map(|scene| scene.name).collect();
        return Err(format!("there is no scene {other}: allowed is {}", names.join(", ")));
    }
    if !options.is_inside {
        return inside(options);
    }
    tools::ensure_programs(PROGRAMS)?;
    let program = match &options.program {
        Some(program) => program.clone(),
        None => {
            run(cargo("build --release -p mqfq").stdout(std::io::stderr()))?;
            target().join("release/mqfq")
        }
    };
    let samples = measure_all(options, &program)?;
    let report = json!({
        "drive": PRESET, "workers": WORKERS, "rounds": options.rounds, "seconds": options.seconds,
        "warm_up_s": WARM_UP_S, "goal": options.goal, "machine": machine(),
        "samples": samples.iter().map(Sample::json).collect::<Vec<_>>(),
    });
    let folder = target().join("databases");
    keep(&folder.join("databases.json"), &format!("{report:#}\n"))?;
    let summary = results::summary(&samples);
    if let Some(picture) = results::picture(&summary, options.goal)? {
        keep(&folder.join("databases.svg"), &picture)?;
    }
    match options.json {
        true => println!("{report:#}"),
        false => print!("{}", results::text(&summary, &samples)),
    }
    Ok(())
}

/// This command again, in a mount namespace of its own: no mount outlives it.
fn inside(options: &Options) -> Result<(), String> {
    let id = crate::run::output(&mut command("id", ["-u"]))?;
    if id.trim() != "0" {
        return Err("databases mounts file systems: run it as root".into());
    }
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut again = command("unshare", ["--mount", "--propagation", "private"]);
    again.arg(own).args(["databases", "--in-namespace", "--goal", options.goal]);
    again.args(["--rounds", &options.rounds.to_string(), "--seconds", &options.seconds.to_string()]);
    for name in &options.scenes {
        again.args(["--scene", name]);
    }
    if let Some(program) = &options.program {
        again
            .arg("--program")
            .arg(std::path::absolute(program).map_err(|error| format!("{}: {error}", program.display()))?);
    }
    if options.json {
        again.arg("--json");
    }
    run(&mut again)
}

/// The machine in one line, and its load now.
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (info, load) = (read("/proc/cpuinfo"), read("/proc/loadavg"));
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("an unknown processor");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (model, kernel) = (model.trim_start_matches(['\t', ' ', ':']), read("/proc/sys/kernel/osrelease"));
    format!("{cores} cores of {model}, Linux {}, load {}", kernel.trim(), load.trim())
}

/// The databases of all scenes.
struct Databases {
    // Dropped in this order: databases before their volumes, and those before the server.
    db: Postgres,
    other: Option<(Postgres, Volume)>,
    volume: Volume,
    server: Server,
}

impl Databases {
    fn start(scenes: &[&Scene], program: &Path) -> Result<Databases, String> {
        let needs = |load| scenes.iter().any(|scene| scene.load == load);
        let server = Server::start(program)?;
        let start = |export| {
            let mut volume = Volume::attach(&server, export)?;
            Postgres::load(&volume)?;
            if export == "db" && needs(Load::RocksDb) {
                rocksdb::load(&volume)?;
            }
            volume.remount()?;
            Ok::<_, String>((Postgres::start(&volume)?, volume))
        };
        let (db, volume) = start("db")?;
        let other = if needs(Load::Pair) { Some(start("other")?) } else { None };
        Ok(Databases { db, other, volume, server })
    }

    /// Puts a setting in force, from a new search for D on.
    fn set(&self, scene: &Scene, setting: &str, goal: &str) -> Result<(), String> {
        let weight = if scene.load == Load::Pair { "300" } else { "100" };
        self.server.ctl(&["device", "set", "drive", "--policy", "none"])?;
        self.server.ctl(&["tenant", "set", "db", "--weight", weight])?;
        if setting != "none" {
            self.server.ctl(&["device", "set", "drive", "--policy", "mqfq"])?;
        }
        match setting {
            "goal" => self.server.ctl(&["tenant", "set", "db", "--latency", goal])?,
            _ => self.server.ctl(&["tenant", "set", "db", "--unset", "latency"])?,
        };
        Ok(())
    }

    fn measure(&self, scene: &Scene, setting: &'static str, options: &Options) -> Result<Sample, String> {
        self.set(scene, setting, options.goal)?;
        let others = || self.other.iter().filter(|_| scene.load == Load::Pair).map(|(postgres, _)| postgres);
        for postgres in [&self.db].into_iter().chain(others()) {
            postgres.checkpoint()?;
        }
        let (script, connections) = if scene.load == Load::Pair { PAIR } else { SINGLE };
        let (seconds, whole_s) = (options.seconds, WARM_UP_S + options.seconds + 1);
        let bulk = scene.neighbour.map(|it| it.start(&self.server, WARM_UP_S, seconds)).transpose()?;
        let with_postgres = scene.load != Load::RocksDb;
        let bench = with_postgres.then(|| self.db.bench(script, connections, whole_s)).transpose()?;
        let beside =
            others().map(|postgres| postgres.bench(script, connections, whole_s)).collect::<Result<Vec<_>, _>>()?;
        pass(Duration::from_secs(WARM_UP_S.into()));
        let rocks = (!with_postgres).then(|| rocksdb::bench(&self.volume, seconds)).transpose()?;
        let read = || Ok::<_, String>((now_s(), Clocks::now(self.server.pid()), self.server.counters()?));
        let (from_s, clocks, counters) = read()?;
        pass(Duration::from_secs(seconds.into()));
        let (to_s, later, at_end) = read()?;
        let why = self.server.ctl(&["why", "db"])?;
        let window = Window { from_s, to_s };
        let statements = match (bench, rocks) {
            (Some(bench), _) => bench.finish(window)?,
            (None, Some(rocks)) => rocks.finish()?,
            (None, None) => Default::default(),
        };
        for bench in beside {
            bench.finish(window)?;
        }
        let served = |tenant| served_bytes(&at_end, tenant) - served_bytes(&counters, tenant);
        let share = (scene.load == Load::Pair).then(|| served("db") / (served("db") + served("other")).max(1.0));
        let cores = later.since(&clocks, window.length_s(), WORKERS);
        let cpu_us = cores.worked * window.length_s() * WORKERS as f64 * 1e6;
        Ok(Sample {
            round: 0,
            scene: scene.name,
            setting,
            statements,
            bulk_mb_per_s: bulk.map(neighbour::Load::finish).transpose()?,
            share,
            found: Found::of(&at_end),
            why: why.trim().into(),
            cores,
            cpu_us: cpu_us / (dispatched(&at_end) - dispatched(&counters)).max(1.0),
            load: load(),
        })
    }
}

fn measure_all(options: &Options, program: &Path) -> Result<Vec<Sample>, String> {
    let is_asked = |scene: &&Scene| options.scenes.is_empty() || options.scenes.contains(&scene.name);
    let scenes: Vec<&Scene> = SCENES.iter().filter(is_asked).collect();
    let databases = Databases::start(&scenes, program)?;
    let of_a_round: usize = scenes.iter().map(|scene| scene.settings.len()).sum();
    let step_s = u64::from(WARM_UP_S + options.seconds + AROUND_S);
    let mut left = of_a_round as u64 * u64::from(options.rounds);
    let mut samples = Vec::new();
    for round in 1..=options.rounds {
        for scene in &scenes {
            for setting in scene.settings {
                eprintln!("round {round}, {}, {setting}: {} s left", scene.name, left * step_s);
                let sample = Sample { round, ..databases.measure(scene, setting, options)? };
                eprintln!("  {}", results::line(&sample));
                samples.push(sample);
                left -= 1;
            }
        }
    }
    Ok(samples)
}

/// Seconds since 1970.
fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Load of the machine over the last minute.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}
