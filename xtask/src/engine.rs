//! `cargo xtask engine NAME`: a pool (`docs/use/pools.md`) over a real storage engine, which is installed, loaded and
//! broken.
//!
//! ```text
//!   engine: machine, loads, faults ──▶ Finding, each with its aim ──▶ table, lines of JSON, picture
//! ```
//! LVM, thick and thin, and DRBD, two resources, each the other's peer, are engines of one kernel, in a guest. The
//! steps are in `testing/guest/cases/lvm.job` and `drbd.job`.

mod ceph;
mod cluster;

pub use ceph::ceph;

use crate::guest::PACKAGES;
use crate::run::{cargo, keep, run, target};
use crate::tools;
use mqfq_report::panel::{Panel, Series, render};
use mqfq_report::table::{Align, Table};
use mqfq_testing::guest::{Guest, Time};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of the command.
#[derive(Default)]
pub struct Options<'a> {
    /// Name of the engine, one of [`ENGINES`]; `None`: they are listed.
    pub engine: Option<&'a str>,
    /// One part of its run; `None`: all.
    pub only: Option<&'a str>,
    /// The binary of the server; `None`: a release build.
    pub program: Option<PathBuf>,
    /// Print JSON alone on stdout.
    pub json: bool,
}

/// Findings, and the panels of a picture of them.
type Measured = (Vec<Finding>, Vec<Panel>);

/// A storage engine.
struct Engine {
    name: &'static str,
    about: &'static str,
    /// Programs, each with the Debian package that brings it.
    programs: &'static [(&'static str, &'static str)],
    /// Runs the parts.
    measure: fn(&Ground<'_>) -> Result<Measured, String>,
}

const LVM: Engine = Engine {
    name: "lvm",
    about: "LVM: shares of four volumes, a full thin pool, growth",
    programs: &[
        ("lvm", "lvm2"),
        ("thin_check", "thin-provisioning-tools"),
        ("dmsetup", "dmsetup"),
        ("fio", "fio"),
        ("nbdsh", "python3-libnbd"),
        ("curl", "curl"),
    ],
    measure: measure_lvm,
};

/// Modules that the steps need.
const OF_LVM: &[&str] = &["null_blk", "configfs", "dm-mod", "dm-thin-pool", "crc32c_generic"];

fn measure_lvm(ground: &Ground<'_>) -> Result<Measured, String> {
    let job = include_str!("../../testing/guest/cases/lvm.job");
    let findings = ground.in_guest("lvm", OF_LVM, job, Duration::from_secs(3600))?;
    Ok((findings.clone(), pictured(&findings)))
}

/// Shares of each mix beside the weights.
fn pictured(findings: &[Finding]) -> Vec<Panel> {
    let of_mixes: Vec<&Finding> = findings.iter().filter(|finding| finding.case.starts_with("shares, ")).collect();
    let mut mixes: Vec<&str> = of_mixes.iter().map(|finding| finding.case.as_str()).collect();
    mixes.dedup();
    let panel = |mix: &&str| {
        let shares: Vec<(&str, f64)> = of_mixes
            .iter()
            .filter(|finding| finding.case == **mix && finding.what.starts_with("weight "))
            .filter_map(|finding| Some((finding.what.as_str(), finding.value.as_f64()?)))
            .collect();
        let places = shares.iter().map(|(what, _)| (*what).to_owned()).collect();
        let found = (0..).zip(&shares).map(|(at, (_, share))| (f64::from(at), *share));
        let wanted = (0..shares.len()).map(|at| (at as f64, (at + 1) as f64 / 10.0));
        let series = vec![Series::new("found", 0, found), Series::new("by weight", 1, wanted)];
        Panel::bars_at(*mix, places, "part of all bytes").with(series)
    };
    mixes.iter().map(panel).collect()
}

const DRBD: Engine = Engine {
    name: "drbd",
    about: "DRBD: verified writes while the peer goes away and comes back",
    programs: &[("drbdmeta", "drbd-utils"), ("fio", "fio"), ("python3", "python3-minimal")],
    measure: measure_drbd,
};

/// Modules that the steps need.
const OF_DRBD: &[&str] = &["null_blk", "configfs", "drbd", "crc32c_generic"];

fn measure_drbd(ground: &Ground<'_>) -> Result<Measured, String> {
    let job = include_str!("../../testing/guest/cases/drbd.job");
    let findings = ground.in_guest("drbd", OF_DRBD, job, Duration::from_secs(3600))?;
    // One bar for each time that the peer was away.
    let rounds: Vec<(String, f64)> = findings
        .iter()
        .filter_map(|finding| {
            let (round, _) = finding.what.split_once(": missing at the peer")?;
            Some((round.to_owned(), finding.value.as_f64()?))
        })
        .collect();
    let places = rounds.iter().map(|(round, _)| round.clone()).collect();
    let missing = (0..).zip(&rounds).map(|(at, (_, kib))| (f64::from(at), *kib));
    let series = Series::new("missing before it came back", 0, missing);
    let panel = Panel::bars_at("The peer was away for 2 s", places, "KiB").with(vec![series]);
    Ok((findings, vec![panel]))
}

const ENGINES: &[Engine] = &[LVM, DRBD];

/// Ground of a run.
struct Ground<'a> {
    /// Folder of the run's files, empty at first.
    folder: PathBuf,
    /// The binary of the server.
    program: PathBuf,
    /// The part asked for, or `all`.
    only: &'a str,
}

/// A result: a number or a word, and its aim.
#[derive(Clone, PartialEq, Debug)]
struct Finding {
    case: String,
    what: String,
    value: Value,
    aim: Aim,
}

/// The values of a finding that are as they should be.
#[derive(Clone, PartialEq, Debug)]
enum Aim {
    /// Any: a figure for the reader.
    Any,
    Range(f64, f64),
    Word(String),
}

impl Finding {
    /// Reads a row of a guest's job: `case`, `what`, `value`, and the aim as `wanted`, a word or a pair of numbers.
    fn of_row(row: &str) -> Result<Finding, String> {
        let wrong = || format!("a row is no finding: {row}");
        let parsed: Value = serde_json::from_str(row).map_err(|_| wrong())?;
        let text = |key: &str| parsed[key].as_str().map(str::to_owned).ok_or_else(wrong);
        let aim = match &parsed["wanted"] {
            Value::Null => Aim::Any,
            Value::String(word) => Aim::Word(word.clone()),
            range => {
                let bound = |at: usize| range[at].as_f64().ok_or_else(wrong);
                Aim::Range(bound(0)?, bound(1)?)
            }
        };
        Ok(Finding { case: text("case")?, what: text("what")?, value: parsed["value"].clone(), aim })
    }

    fn is_met(&self) -> bool {
        match &self.aim {
            Aim::Any => true,
            Aim::Range(low, high) => self.value.as_f64().is_some_and(|value| (*low..=*high).contains(&value)),
            Aim::Word(word) => self.value.as_str() == Some(word),
        }
    }

    fn shown(&self) -> String {
        self.value.as_str().map_or_else(|| self.value.to_string(), str::to_owned)
    }

    fn wanted(&self) -> String {
        match &self.aim {
            Aim::Any => "-".into(),
            Aim::Range(low, high) if *high == f64::MAX => format!("from {low} on"),
            Aim::Range(low, high) => format!("{low} to {high}"),
            Aim::Word(word) => word.clone(),
        }
    }

    /// With the load of the machine, of 1, 5 and 15 minutes.
    fn json(&self, engine: &str, load: &str) -> Value {
        json!({
            "engine": engine, "case": self.case, "what": self.what, "value": self.value,
            "wanted": self.wanted(), "met": self.is_met(), "load": load,
        })
    }
}

/// Runs an engine, and prints and keeps the results.
///
/// # Errors
/// One sentence if there is no such engine, a program is missing or fails, or an aim is not met.
pub fn engine(options: &Options<'_>) -> Result<(), String> {
    let Some(name) = options.engine else {
        ENGINES.iter().for_each(|engine| println!("{:<6} {}", engine.name, engine.about));
        println!("{:<6} {}", "ceph", ceph::ABOUT);
        return Ok(());
    };
    let names = || ENGINES.iter().map(|engine| engine.name).collect::<Vec<_>>().join(", ");
    let engine = ENGINES.iter().find(|engine| engine.name == name);
    let engine = engine.ok_or_else(|| format!("there is no engine {name}, allowed is {}, ceph", names()))?;
    let only = options.only.unwrap_or("all");
    if !only.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-') {
        return Err(format!("a part of an engine's run is letters, digits and -, not {only:?}"));
    }
    tools::ensure_programs(engine.programs)?;
    let program = match &options.program {
        Some(program) => std::path::absolute(program).map_err(|error| format!("{}: {error}", program.display()))?,
        None => {
            run(cargo("build --release -p mqfq").stdout(std::io::stderr()))?;
            target().join("release/mqfq")
        }
    };
    let ground = Ground { folder: target().join("engine").join(name), program, only };
    ground.clear()?;
    let (findings, panels) = (engine.measure)(&ground)?;
    match findings.is_empty() {
        true => Err(format!("{name} has no part {only:?}")),
        false => conclude(name, engine.about, &ground.folder, (&findings, &panels), options.json),
    }
}

/// Prints and keeps findings and their picture.
///
/// # Errors
/// One sentence if an aim is not met.
fn conclude(
    name: &str,
    about: &str,
    folder: &Path,
    (findings, panels): (&[Finding], &[Panel]),
    json: bool,
) -> Result<(), String> {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').take(3).collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = findings.iter().map(|finding| finding.json(name, &load).to_string()).collect();
    keep(&folder.join("findings.json"), &(lines.join("\n") + "\n"))?;
    if !panels.is_empty() {
        keep(&folder.join("findings.svg"), &render(about, panels)?)?;
    }
    if !json {
        print!("{}", table(findings));
    }
    lines.iter().for_each(|line| println!("{line}"));
    match findings.iter().filter(|finding| !finding.is_met()).count() {
        0 => Ok(()),
        missed => Err(format!("{name}: {missed} of {} findings are not as wanted", findings.len())),
    }
}

/// A number from 1 on.
///
/// # Errors
/// One sentence if it is none.
pub fn positive(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| format!("{text} is not a number from 1 on"))
}

fn table(findings: &[Finding]) -> String {
    let mut table = Table::new(&[
        ("case", Align::Left),
        ("what", Align::Left),
        ("found", Align::Right),
        ("wanted", Align::Left),
        ("", Align::Left),
    ]);
    for finding in findings {
        let mark = if finding.is_met() { "" } else { "MISSED" };
        let cells = [finding.case.clone(), finding.what.clone(), finding.shown(), finding.wanted(), mark.into()];
        table.row(cells.to_vec());
    }
    table.render()
}

impl Ground<'_> {
    /// Makes the folder anew.
    fn clear(&self) -> Result<(), String> {
        let _ = std::fs::remove_dir_all(&self.folder);
        std::fs::create_dir_all(&self.folder).map_err(|error| format!("{}: {error}", self.folder.display()))
    }

    /// Runs a job in a guest of Debian's 6.12 whose time is counted instructions, and returns the findings of its rows.
    fn in_guest(&self, name: &str, modules: &[&str], job: &str, patience: Duration) -> Result<Vec<Finding>, String> {
        tools::ensure_programs(PACKAGES)?;
        let guest = Guest {
            name,
            kernel: "6.12",
            time: Time::Instructions,
            cpus: 2,
            memory_mib: 4096,
            modules,
            job,
            arguments: &[],
            patience,
        };
        self.run(guest, &mut |line| eprintln!("  {line}"))
    }

    /// Runs a guest and returns the findings of its rows. The job finds the server as `$MQFQ` and the part asked for as
    /// `$ONLY`; `watch` sees the console.
    fn run(&self, guest: Guest<'_>, watch: &mut dyn FnMut(&str)) -> Result<Vec<Finding>, String> {
        let share = self.folder.join("share");
        let copied = std::fs::create_dir_all(&share).and_then(|()| std::fs::copy(&self.program, share.join("mqfq")));
        copied.map_err(|error| format!("{}: {error}", self.program.display()))?;
        let job = format!("MQFQ=/run/share/mqfq\nONLY={}\n{}", self.only, guest.job);
        let guest = Guest { job: &job, ..guest };
        let outcome = guest.run(&self.folder, watch)?;
        let console = self.folder.join("console.log");
        match outcome.faults.first().or(outcome.complaints.first()) {
            Some(fault) => {
                Err(format!("{} on Linux {}: {fault} (log: {})", guest.name, outcome.kernel, console.display()))
            }
            None => outcome.rows.iter().map(|row| Finding::of_row(row)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_a_guest_is_a_finding_with_its_aim() {
        let read = |row: &str| Finding::of_row(row).unwrap();
        let share = read(r#"{"case":"shares","what":"a","value":0.101,"wanted":[0.098,0.102]}"#);
        assert_eq!((share.is_met(), share.wanted()), (true, "0.098 to 0.102".into()));
        assert!(!Finding { value: json!(0.103), ..share.clone() }.is_met());
        assert!(!Finding { value: json!("0.1"), ..share }.is_met());
        let word = read(r#"{"case":"full","what":"write","value":"EIO","wanted":"ENOSPC"}"#);
        assert_eq!((word.is_met(), word.shown()), (false, "EIO".into()));
        assert!(read(r#"{"case":"full","what":"seconds","value":3}"#).is_met());
        for row in ["", "{}", r#"{"case":"a","what":"b","value":1,"wanted":[1]}"#] {
            assert!(Finding::of_row(row).is_err(), "{row}");
        }
        assert!(table(&[word]).contains("MISSED"));
    }
}
