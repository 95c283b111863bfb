//! PostgreSQL on a volume, driven by pgbench; times of its statements from the server's own log.
//!
//! pgbench's log has no times of single statements, so the server logs each with its end and duration.

use super::ground::{MemoryGroup, Running, Volume};
use super::measured::{Window, percentile};
use crate::run::{command, run, shown};
use mqfq_testing::arg;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Rows of `pgbench_accounts` in units of 100,000: 600 MB with the index.
const SCALE: u32 = 40;

/// One transaction: two pages are read, one is changed, and a commit makes it stable.
pub const SHORT: &str = "\
\\set a random(1, 100000 * :scale)
\\set b random(1, 100000 * :scale)
\\set c random(1, 100000 * :scale)
\\set delta random(-5000, 5000)
BEGIN;
SELECT abalance FROM pgbench_accounts WHERE aid = :a;
SELECT abalance FROM pgbench_accounts WHERE aid = :b;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :c;
COMMIT;
";

/// The same with a report over 4,000 rows, about 500 KiB: few such connections fill the drive and not the cores.
pub const REPORT: &str = "\
\\set a random(1, 100000 * :scale - 4000)
\\set c random(1, 100000 * :scale)
\\set delta random(-5000, 5000)
BEGIN;
SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :a AND :a + 4000;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :c;
COMMIT;
";

/// No checkpoint and no vacuum by itself while it is measured; a log of each statement.
const CONFIG: &str = "\
listen_addresses = ''
shared_buffers = 32MB
wal_level = minimal
max_wal_senders = 0
min_wal_size = 512MB
max_wal_size = 768MB
checkpoint_timeout = 1h
autovacuum = off
jit = off
log_line_prefix = '%n '
log_min_duration_statement = 0
";

/// A database that runs.
pub struct Postgres {
    _running: Running,
    tools: PathBuf,
    /// Its data and its socket.
    folder: PathBuf,
    log: PathBuf,
}

/// pgbench at work, and the log's length before it began.
pub struct Bench {
    child: Child,
    name: String,
    log: PathBuf,
    from_bytes: u64,
}

/// Statements that ended in a window of time. Times are in milliseconds.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Statements {
    /// Commits per second.
    pub per_s: f64,
    /// Reads: median and 99th percentile.
    pub read_ms: [f64; 2],
    /// Commits: median and 99th percentile.
    pub commit_ms: [f64; 2],
}

/// Folder of PostgreSQL's programs: that of the newest version.
///
/// # Errors
/// One sentence if there is none.
pub fn tools() -> Result<PathBuf, String> {
    let folder = "/usr/lib/postgresql";
    let versions = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max();
    newest
        .map(|version| Path::new(folder).join(version.to_string()).join("bin"))
        .ok_or(format!("{folder} has no version"))
}

/// A program as the user `postgres`, without a limit on memory.
fn as_postgres(program: &Path) -> Command {
    let mut command = command("setpriv", ["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]);
    command.arg(program).current_dir("/");
    command
}

impl Postgres {
    /// Makes a database on a new volume, and stops it: its data are on the drive.
    ///
    /// # Errors
    /// One sentence if a program fails.
    pub fn load(volume: &Volume) -> Result<(), String> {
        let (tools, folder) = (tools()?, volume.path.join("postgres"));
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        run(&mut command("chown", ["postgres:postgres", arg(&folder)]))?;
        let mut initdb = as_postgres(&tools.join("initdb"));
        initdb.args(["--auth=trust", "--no-sync", "--pgdata", arg(&folder)]);
        run(initdb.stdout(Stdio::null()))?;
        let file = folder.join("postgresql.conf");
        let sockets = format!("unix_socket_directories = '{}'\n", folder.display());
        let text = std::fs::read_to_string(&file).map(|text| text + CONFIG + &sockets);
        text.and_then(|text| std::fs::write(&file, text)).map_err(|error| format!("{}: {error}", file.display()))?;
        let postgres = Postgres::start_in(None, volume)?;
        let scale = SCALE.to_string();
        run(postgres.pgbench().args(["--initialize", "--init-steps=dtgvp", "--quiet", "--scale", &scale]))?;
        postgres.checkpoint()
    }

    /// Starts the database of a volume, within its limit on memory.
    ///
    /// # Errors
    /// One sentence if it does not start.
    pub fn start(volume: &Volume) -> Result<Postgres, String> {
        Postgres::start_in(Some(&volume.group), volume)
    }

    fn start_in(group: Option<&MemoryGroup>, volume: &Volume) -> Result<Postgres, String> {
        let (tools, folder) = (tools()?, volume.path.join("postgres"));
        let log = volume.path.with_extension("log");
        let open = std::fs::OpenOptions::new().create(true).append(true).open(&log);
        let open = open.map_err(|error| format!("{}: {error}", log.display()))?;
        let server = tools.join("postgres");
        let mut postgres = match group {
            Some(group) => group.command("postgres", &server),
            None => as_postgres(&server),
        };
        postgres.args(["-D", arg(&folder)]).stdout(Stdio::null()).stderr(open);
        let mut running = Running::start(&mut postgres, "-INT")?;
        let is_ready = || {
            let mut ready = Command::new(tools.join("pg_isready"));
            ready.args(["--quiet", "--host", arg(&folder)]).status().is_ok_and(|status| status.success())
        };
        running.wait_until("postgres", is_ready)?;
        Ok(Postgres { _running: running, tools, folder, log })
    }

    fn pgbench(&self) -> Command {
        let mut pgbench = command(arg(&self.tools.join("pgbench")), ["--host", arg(&self.folder)]);
        pgbench.args(["--username", "postgres", "postgres"]).stdin(Stdio::null()).stdout(Stdio::null());
        pgbench
    }

    /// Writes what is dirty, so that each measurement begins alike.
    ///
    /// # Errors
    /// One sentence if psql fails.
    pub fn checkpoint(&self) -> Result<(), String> {
        let mut psql = command(arg(&self.tools.join("psql")), ["--host", arg(&self.folder), "--username", "postgres"]);
        psql.args(["--quiet", "--command", "CHECKPOINT", "postgres"]);
        let status = psql.status().map_err(|error| format!("{}: {error}", shown(&psql)))?;
        if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", shown(&psql))) }
    }

    /// Starts so many connections, each with one transaction of `script` after the other, for `seconds`.
    ///
    /// # Errors
    /// One sentence if pgbench does not start.
    pub fn bench(&self, script: &str, connections: u32, seconds: u32) -> Result<Bench, String> {
        let file = self.log.with_extension("sql");
        std::fs::write(&file, script).map_err(|error| format!("{}: {error}", file.display()))?;
        let from_bytes = std::fs::metadata(&self.log).map_or(0, |file| file.len());
        let mut pgbench = self.pgbench();
        let (connections, seconds) = (connections.to_string(), seconds.to_string());
        pgbench.args(["--no-vacuum", "--client", &connections, "--time", &seconds, "--file", arg(&file)]);
        pgbench.args(["--define", &format!("scale={SCALE}")]).stderr(Stdio::null());
        let name = shown(&pgbench);
        let child = pgbench.spawn().map_err(|error| format!("{name}: {error}"))?;
        Ok(Bench { child, name, log: self.log.clone(), from_bytes })
    }
}

impl Bench {
    /// Waits for its end. Statements that ended within `window`.
    ///
    /// # Errors
    /// One sentence if pgbench failed or the log cannot be read.
    pub fn finish(mut self, window: Window) -> Result<Statements, String> {
        let status = self.child.wait().map_err(|error| format!("{}: {error}", self.name))?;
        if !status.success() {
            return Err(format!("{} failed ({status})", self.name));
        }
        let mut text = String::new();
        let read = std::fs::File::open(&self.log).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.from_bytes))?;
            file.read_to_string(&mut text)
        });
        read.map_err(|error| format!("{}: {error}", self.log.display()))?;
        Ok(Statements::of_log(&text, window))
    }
}

impl Statements {
    /// Those in a log with lines `1700000000.123 LOG:  duration: 0.412 ms  statement: SELECT ...`.
    pub fn of_log(text: &str, window: Window) -> Statements {
        let (mut reads, mut commits) = (Vec::new(), Vec::new());
        for line in text.lines() {
            let Some((ended_s, ms, statement)) = statement(line) else { continue };
            if !window.has(ended_s) {
                continue;
            }
            match statement {
                _ if statement.starts_with("SELECT ") => reads.push(ms),
                _ if statement.starts_with("COMMIT") => commits.push(ms),
                _ => {}
            }
        }
        Statements {
            per_s: commits.len() as f64 / window.length_s(),
            read_ms: [0.5, 0.99].map(|part| percentile(&mut reads, part)),
            commit_ms: [0.5, 0.99].map(|part| percentile(&mut commits, part)),
        }
    }
}

/// End, seconds since 1970, duration in milliseconds, and words of a statement.
fn statement(line: &str) -> Option<(f64, f64, &str)> {
    let (ended_s, rest) = line.split_once(" LOG:  duration: ")?;
    let (ms, statement) = rest.split_once(" ms  statement: ")?;
    Some((ended_s.parse().ok()?, ms.parse().ok()?, statement))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_of_the_window_count_and_others_do_not() {
        let line = |at: f64, ms: f64, words: &str| format!("{at:.3} LOG:  duration: {ms} ms  statement: {words}\n");
        let mut log = "1.000 LOG:  checkpoint complete\n".to_owned();
        for (at, ms) in [(9.999, 900.0), (10.0, 1.0), (11.0, 3.0), (11.999, 2.0), (12.0, 700.0)] {
            log += &line(at, ms, "SELECT abalance FROM pgbench_accounts WHERE aid = 1;");
            log += &line(at, 10.0 * ms, "COMMIT;");
            log += &line(at, 5000.0, "BEGIN;");
            log += &line(at, 5000.0, "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = 1;");
        }
        let found = Statements::of_log(&log, Window { from_s: 10.0, to_s: 12.0 });
        assert_eq!(found, Statements { per_s: 1.5, read_ms: [2.0, 3.0], commit_ms: [20.0, 30.0] });
        let none = Statements::of_log(&log, Window { from_s: 50.0, to_s: 51.0 });
        assert_eq!(none, Statements::default());
    }
}
