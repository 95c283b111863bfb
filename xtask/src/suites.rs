//! `cargo xtask suites`: test suites and clients of other projects, each against our server and against its own server.
//!
//! | suite | from | cases |
//! |---|---|---|
//! | `libnbd` | Debian's source package, built here | programs and scripts of `tests`, `info`, `copy` and `interop` |
//! | `nbd-tester` | Debian's source package of nbd, built here | modes of `simple_test` |
//! | `iotests` | Debian's source package of the installed QEMU | `check -raw -nbd` |
//! | `filters` | nbdkit | a copy in and out through each filter over the plugin `nbd` |
//! | `copies` | nbdcopy | 588 combinations of direction, connections, requests, request size and options |
//! | `fio` | fio | verify jobs of its engine `nbd` |
//!
//! The first three start servers by name, so they get [stand-ins](stand_in). A case counts only if our server served
//! it. A case that fails with our server runs again with its own: a case that fails there too says nothing of us. In a
//! whole run the other cases run with their own server too.

mod client;
mod source;
pub mod stand_in;

use crate::run::{cargo, run, target};
use crate::tools;
use mqfq_report::progress::Progress;
use mqfq_report::table::{Align, Table};
use mqfq_testing::Folder;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Options of the command.
#[derive(Default)]
pub struct Options<'a> {
    /// Suites to run; none: all.
    pub suites: Vec<&'a str>,
    /// A sample of those suites that need no source package, without the control.
    pub is_short: bool,
    /// Cases with this in their name; `None`: all.
    pub only: Option<&'a str>,
    /// The binary of the server; `None`: a release build.
    pub program: Option<PathBuf>,
    /// Print JSON alone on stdout.
    pub json: bool,
}

/// Seconds that a case may take.
const CASE_LIMIT_S: &str = "180";

/// Cases that ask for more than our server promises, each with the reason.
const BY_DESIGN: &[(&str, &str)] = &[
    ("nbd-tester integrityhuge", LARGER_THAN_PROMISED),
    ("nbd-tester tlshuge", LARGER_THAN_PROMISED),
    ("libnbd info/info-packets.sh", "expects no extended headers where the installed nbdkit has none; ours has"),
];
const LARGER_THAN_PROMISED: &str =
    "requests of up to 48 MiB; a server that states no limit must take 32 MiB, and ours takes no more";

/// How a case ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Passed,
    Failed,
    /// The suite itself left it out.
    Skipped,
}

/// A suite that is ready to run.
trait Suite {
    fn name(&self) -> &'static str;
    fn cases(&self) -> Result<Vec<String>, String>;
    /// Runs a case. `command` gives a program the environment of this run.
    fn run(&self, case: &str, server: &Server) -> Result<Outcome, String>;
}

/// The server of one run of one case.
struct Server {
    /// Our program; `None`: the suite's own.
    program: Option<PathBuf>,
    /// Temporary files, and the stand-ins' log.
    folder: Folder,
    /// The stand-ins' scripts.
    scripts: PathBuf,
}

impl Server {
    /// `program`, ended after [`CASE_LIMIT_S`], its output in the case's log.
    fn command(&self, program: impl AsRef<Path>) -> Result<Command, String> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after", "5", CASE_LIMIT_S]).arg(program.as_ref());
        command.stdin(Stdio::null()).stdout(self.open_log()?).stderr(self.open_log()?);
        self.environment(&mut command);
        Ok(command)
    }

    /// The case's log, to append to.
    fn open_log(&self) -> Result<std::fs::File, String> {
        let log = self.folder.join("case.log");
        let open = std::fs::OpenOptions::new().create(true).append(true).open(&log);
        open.map_err(|error| format!("{}: {error}", log.display()))
    }

    /// Succeeds.
    fn succeeds(&self, command: &mut Command) -> Result<bool, String> {
        command.status().map(|status| status.success()).map_err(|error| format!("{command:?}: {error}"))
    }

    fn environment(&self, command: &mut Command) {
        // The system's folders first: scripts of the suites run the system's Python.
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.scripts.display());
        command.env("PATH", path).env("TMPDIR", self.folder.path()).env("LC_ALL", "C.UTF-8");
        command.env(stand_in::LOG, self.folder.join("served"));
        match &self.program {
            Some(program) => command.env(stand_in::SERVER, program),
            None => command.env_remove(stand_in::SERVER),
        };
    }

    /// The case's output, and our server's.
    fn log(&self) -> String {
        let read = |name: &str| std::fs::read(self.folder.join(name)).unwrap_or_default();
        let text = [read("case.log"), read("served.said")].concat();
        String::from_utf8_lossy(&text).into_owned()
    }

    fn has_served(&self) -> bool {
        self.folder.join("served").exists()
    }

    /// A client's suite starts our server itself.
    fn note_served(&self) {
        let _ = std::fs::write(self.folder.join("served"), "");
    }
}

/// Counts of a suite.
#[derive(Default)]
struct Row {
    cases: usize,
    served: usize,
    passed: usize,
    skipped: usize,
    /// Fail with the suite's own server too.
    own_fails: Vec<String>,
    /// Fail with ours alone, as [`BY_DESIGN`] has it.
    by_design: Vec<&'static (&'static str, &'static str)>,
    /// Fail with ours alone.
    faults: Vec<String>,
    /// Passed by the suite's own server, of those served by ours; `None`: not run.
    control: Option<usize>,
    seconds: u64,
}

/// Runs the suites and prints a table.
///
/// # Errors
/// One sentence if a suite cannot be made, or if a case fails with our server alone.
pub fn suites(options: &Options) -> Result<(), String> {
    let program = match &options.program {
        Some(program) => std::path::absolute(program).map_err(|error| format!("{}: {error}", program.display()))?,
        None => {
            run(cargo("build --release -p mqfq").stdout(std::io::stderr()))?;
            target().join("release/mqfq")
        }
    };
    let rows = judge_all(options, &program)?;
    if options.json {
        let rows = rows.iter().map(|(name, row)| {
            json!({ "suite": name, "cases": row.cases, "served": row.served, "passed": row.passed, "skipped": row.skipped,
                    "own_server_fails_too": row.own_fails, "ours_alone_fails_by_design": row.by_design, "ours_alone_fails": row.faults, "own_server_passed": row.control,
                    "took_s": row.seconds })
        });
        println!("{:#}", json!({ "suites": rows.collect::<Vec<_>>() }));
    } else {
        print!("{}", table(&rows));
    }
    let faults: Vec<&str> = rows.iter().flat_map(|(_, row)| &row.faults).map(String::as_str).collect();
    match faults.len() {
        0 => Ok(()),
        count => Err(format!("{count} cases fail with our server alone: {}", faults.join(", "))),
    }
}

/// The short part of the test suite: cases that passed and failed.
///
/// # Errors
/// As [`suites`], except that a failed case counts.
pub fn short(program: &Path) -> Result<(u64, u64), String> {
    let options = Options { is_short: true, ..Options::default() };
    let rows = judge_all(&options, program)?;
    print!("{}", table(&rows));
    let sum = |of: fn(&Row) -> usize| rows.iter().map(|(_, row)| of(row) as u64).sum();
    Ok((sum(|row| row.passed), sum(|row| row.faults.len())))
}

fn judge_all(options: &Options, program: &Path) -> Result<Vec<(&'static str, Row)>, String> {
    tools::ensure()?;
    let work = target().join("suites");
    let scripts = work.join("bin");
    write_scripts(&scripts)?;
    let mut names = vec!["copies", "filters", "fio"];
    if !options.is_short {
        names.extend(["libnbd", "nbd-tester", "iotests"]);
    }
    if let Some(other) = options.suites.iter().find(|name| !names.contains(name)) {
        return Err(format!("there is no suite {other}: allowed is {}", names.join(", ")));
    }
    let mut rows = Vec::new();
    for name in names.iter().filter(|name| options.suites.is_empty() || options.suites.contains(name)) {
        let suite: Box<dyn Suite> = match *name {
            "copies" => Box::new(client::Copies { is_short: options.is_short }),
            "filters" => Box::new(client::Filters { is_short: options.is_short }),
            "fio" => Box::new(client::Fio { is_short: options.is_short }),
            "libnbd" => Box::new(source::Libnbd::build(&work, &scripts)?),
            "nbd-tester" => Box::new(source::NbdTester::build(&work, &scripts)?),
            _ => Box::new(source::IoTests::unpack(&work, &scripts)?),
        };
        rows.push((suite.name(), judge(&*suite, options, program, &scripts)?));
    }
    Ok(rows)
}

fn judge(suite: &dyn Suite, options: &Options, program: &Path, scripts: &Path) -> Result<Row, String> {
    let start = Instant::now();
    let mut row = Row { control: (!options.is_short).then_some(0), ..Row::default() };
    let mut cases = suite.cases()?;
    cases.retain(|case| options.only.is_none_or(|part| case.contains(part)));
    let mut progress = Progress::new(cases.len());
    for case in cases {
        progress.step(&format!("{} {case}", suite.name()));
        row.cases += 1;
        let server = |program| Server { program, folder: Folder::new(), scripts: scripts.into() };
        let ours = server(Some(program.to_path_buf()));
        let outcome = suite.run(&case, &ours)?;
        if outcome == Outcome::Skipped {
            row.skipped += 1;
            continue;
        }
        if !ours.has_served() {
            continue;
        }
        row.served += 1;
        row.passed += usize::from(outcome == Outcome::Passed);
        if outcome == Outcome::Passed && options.is_short {
            continue;
        }
        let own = suite.run(&case, &server(None))?;
        if let Some(control) = &mut row.control {
            *control += usize::from(own == Outcome::Passed);
        }
        let known = BY_DESIGN.iter().find(|(name, _)| *name == format!("{} {case}", suite.name()));
        match (outcome, own) {
            (Outcome::Failed, Outcome::Passed) if known.is_some() => row.by_design.extend(known),
            (Outcome::Failed, Outcome::Passed) => {
                eprintln!("\n{} {case} fails with our server alone:\n{}", suite.name(), ours.log());
                row.faults.push(format!("{} {case}", suite.name()));
            }
            (Outcome::Failed, _) => {
                if options.only.is_some() {
                    eprintln!("\n{} {case} fails with both:\n{}", suite.name(), ours.log());
                }
                row.own_fails.push(case);
            }
            _ => {}
        }
    }
    progress.finish();
    row.seconds = start.elapsed().as_secs();
    Ok(row)
}

fn table(rows: &[(&'static str, Row)]) -> String {
    let left = |name| (name, Align::Left);
    let right = |name| (name, Align::Right);
    let mut table = Table::new(&[
        left("suite"),
        right("cases"),
        right("left out by it"),
        right("served by us"),
        right("passed"),
        right("by its own server"),
        right("fail with both"),
        right("by design"),
        right("with ours alone"),
        right("s"),
    ]);
    for (name, row) in rows {
        let control = row.control.map_or("-".into(), |count| count.to_string());
        let numbers = [row.cases, row.skipped, row.served, row.passed].map(|number| number.to_string());
        let faults = [row.own_fails.len(), row.by_design.len(), row.faults.len()].map(|number| number.to_string());
        let mut cells = vec![name.to_string()];
        cells.extend(numbers);
        cells.push(control);
        cells.extend(faults);
        cells.push(row.seconds.to_string());
        table.row(cells);
    }
    let mut text = table.render();
    for (case, reason) in rows.iter().flat_map(|(_, row)| &row.by_design) {
        text.push_str(&format!("{case}, by design: {reason}\n"));
    }
    for (name, row) in rows.iter().filter(|(_, row)| !row.own_fails.is_empty()) {
        text.push_str(&format!("{name}, fail with both: {}\n", row.own_fails.join(", ")));
    }
    text
}

/// One script for each program that has a stand-in; each calls this program.
fn write_scripts(folder: &Path) -> Result<(), String> {
    let broken = |error: std::io::Error| format!("{}: {error}", folder.display());
    let own = std::env::current_exe().map_err(broken)?;
    std::fs::create_dir_all(folder).map_err(broken)?;
    for (name, _) in stand_in::PROGRAMS {
        let path = folder.join(name);
        let text = format!("#!/bin/sh\nexec '{}' stand-in {name} \"$@\"\n", own.display());
        std::fs::write(&path, text).map_err(broken)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).map_err(broken)?;
    }
    Ok(())
}
