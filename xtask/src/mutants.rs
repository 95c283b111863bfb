//! `cargo xtask mutants`: which change of the product does no test notice?
//!
//! The tool (`lab/mutants`, a workspace of its own) puts all changes of a crate's files into one copy behind a switch,
//! builds it once, and runs for each change the tests that pass it. Here stands which files, and which tests.

use crate::planted::{Change, SWITCH, copy, list, plant_all};
use crate::run::{Counts, ONLY_IDLE, SILENCE_MAX, at_niceness, cargo, command, root, run, run_counted, target};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A crate: its folder and name, modules whose mutants are worth a test each, and integration tests that are short
/// enough to run for a mutant that they pass, of another package as `PACKAGE/NAME`. Modules are what decides, and what
/// checks bounds.
struct Mutated {
    folder: &'static str,
    modules: &'static [&'static str],
    tests: &'static [&'static str],
}

const MUTATED: &[Mutated] = &[
    Mutated {
        folder: "sched",
        modules: &[
            "base/wake",
            "flow/account",
            "flow/group",
            "queue/lane_order",
            "queue/stage_queue",
            "shared/mindicator",
            "shared/ready_set",
            "shared/throttle_wheel",
            "shared/token_tree",
            "tune/window_rule",
            "tune/write_cost",
            "policy/mqfq/mod",
            "policy/mqfq/structures",
            "tune/depth/controller",
            "tune/depth/sample",
            "tune/depth/search",
        ],
        tests: &["all"],
    },
    Mutated {
        folder: "blk",
        modules: &[
            "edge/cap",
            "edge/slots",
            "edge/tag",
            "path/admit",
            "path/bypass",
            "path/complete",
            "path/direct",
            "path/dispatch",
            "path/fair_intake",
            "path/hctx",
            "path/parts",
            "path/stage",
            "path/table",
            "path/timeout",
            "path/split",
            "path/tuning",
        ],
        tests: &["path"],
    },
    Mutated {
        folder: "front",
        modules: &[
            "export",
            "connection_slots",
            "memory",
            "nbd/inbox",
            "nbd/connection/handover",
            "nbd/large",
            "nbd/negotiate",
            "nbd/reply",
            "nbd/transmit",
            "nbd/validate",
            "nbd/wire",
            "ublk/plan",
            "ublk/request",
            "vhost_user_blk/chain",
            "vhost_user_blk/disk",
            "vhost_user_blk/guest",
            "vhost_user_blk/inflight",
            "vhost_user_blk/poll",
            "vhost_user_blk/queue",
            "vhost_user_blk/ring",
            "vhost_user_blk/session",
            "vhost_user_blk/split",
            "vhost_user_blk/wire",
        ],
        tests: &["all"],
    },
    Mutated { folder: "observe", modules: &["history", "live", "metrics", "share", "watcher", "why"], tests: &[] },
    Mutated { folder: "config", modules: &["groups", "owned", "reader", "text", "units"], tests: &[] },
    Mutated {
        folder: "control",
        modules: &[
            "admission",
            "api",
            "client",
            "document",
            "events",
            "ledger",
            "listen",
            "model",
            "strict",
            "tls",
            "ctl/file",
            "ctl/keys",
        ],
        tests: &[],
    },
    Mutated {
        folder: "daemon",
        modules: &[
            "control",
            "live",
            "ownership",
            "reconcile",
            "reconcile/changes",
            "reconcile/pending_io",
            "reconcile/withheld",
            "config/addresses",
            "config/caps",
            "config/change",
            "config/check",
            "config/difference",
            "config/family",
            "config/cached",
            "config/mod",
            "config/overlap",
            "config/policy",
            "config/trust",
            "privilege/calls",
            "privilege/files",
            "privilege/user",
            "upgrade/handover",
            "upgrade/store",
            "upgrade/wire",
        ],
        tests: &["e2e", "mqfq-vopr/all"],
    },
];

impl Mutated {
    /// Its name for Cargo.
    fn package(&self) -> String {
        match self.folder {
            "daemon" => "mqfq".to_owned(),
            folder => format!("mqfq-{folder}"),
        }
    }
}

/// Options of a run.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// Say how many there are.
    pub is_list: bool,
    /// Only mutants of modules whose path has this in it.
    pub only: Option<&'a str>,
    /// One of so many is drawn; 0 as 1.
    pub every: u32,
    /// No mutant is begun later than so many minutes from the start of its crate; the next run goes on there.
    pub minutes: Option<u32>,
    /// `operators` (what a change gets wrong), `effects` (what it forgets) or `all`, as without it.
    pub kinds: Option<&'a str>,
}

/// The path has this in it, from the beginning of a name on: `blk/` is not `vhost_user_blk/`.
fn is_of(file: &str, only: &str) -> bool {
    file.starts_with(only) || file.contains(&format!("/{only}")) || (!only.contains('/') && file.contains(only))
}

/// `mutants`: changes the product in one place at a time and runs the tests of its crate, or lists the changes.
///
/// # Errors
/// One sentence if there is no such module, if the copy does not build, or if a mutant is missed.
pub fn mutants(options: &Options) -> Result<(), String> {
    let tool = target().join("mutants/tool");
    let manifest = root().join("lab/mutants/Cargo.toml");
    let mut made = cargo("build --quiet --release --locked --manifest-path");
    run(made.arg(manifest).arg("--target-dir").arg(&tool))?;
    let tree = target().join("mutants/tree");
    copy(&tree, &BTreeMap::new())?;
    let (mut has_any, mut missed) = (false, Vec::new());
    for mutated in MUTATED {
        let Mutated { folder, modules, tests } = mutated;
        let files = modules.iter().map(|module| format!("{folder}/src/{module}.rs"));
        let files: Vec<String> = files.filter(|file| options.only.is_none_or(|only| is_of(file, only))).collect();
        if files.is_empty() {
            continue;
        }
        has_any = true;
        let mut judge = command(&tool.join("release/mqfq-mutants").to_string_lossy(), ["--tree"]);
        judge.arg(&tree).arg("--build").arg(target().join("mutants/build"));
        judge.args(["--folder", folder, "--package", &mutated.package()]);
        judge.args(options.kinds.iter().flat_map(|kinds| ["--kinds", kinds]));
        judge.args(["--every", &options.every.max(1).to_string()]).arg("--kept").arg(target().join("mutants/kept"));
        judge.args(options.minutes.iter().flat_map(|minutes| ["--minutes".to_owned(), minutes.to_string()]));
        judge.args(tests.iter().flat_map(|test| ["--test", test])).args(options.is_list.then_some("--list"));
        if run(at_niceness(ONLY_IDLE, judge).args(&files)).is_err() {
            missed.push(*folder);
        }
    }
    match (has_any, missed.is_empty()) {
        (false, _) => Err(format!("no module of xtask/src/mutants.rs is called {}", options.only.unwrap_or(""))),
        (true, true) => Ok(()),
        (true, false) => Err(format!("mutants were missed in {}", missed.join(" and "))),
    }
}

// `cargo xtask mutants --planted`: mutants of `lab/mutants/planted.toml`, each with the test that must fail with it.

/// The list of mutants.
const LIST: &str = "lab/mutants/planted.toml";

/// Time after which a test hangs, s.
const HANGS_S: &str = "300";

/// A mutant and its test.
struct Mutant {
    change: Change,
    package: String,
    /// `lib`, or the name of an integration test.
    binary: String,
    test: String,
}

impl Mutant {
    fn read(of: &toml::Value) -> Result<Mutant, String> {
        let change = Change::read(of)?;
        let words = of.get("test").and_then(|test| test.as_array()).into_iter().flatten();
        let words: Vec<String> = words.filter_map(|word| word.as_str()).map(str::to_owned).collect();
        let [package, binary, test] = <[String; 3]>::try_from(words)
            .map_err(|_| format!("{LIST}: the test of {} is not a package, a binary and a name", change.name))?;
        Ok(Mutant { change, package, binary, test })
    }

    /// Options that choose the binary.
    fn binary(&self) -> Vec<&str> {
        match &*self.binary {
            "lib" => vec!["--package", &self.package, "--lib"],
            name => vec!["--package", &self.package, "--test", name],
        }
    }

    /// Runs its test in the copy with the mutant called `lives` alive.
    fn run(&self, tree: &Path, build: &Path, lives: &str) -> Result<Counts, String> {
        let mut test = command("timeout", [HANGS_S, "cargo", "test", "--quiet"]);
        test.args(self.binary()).arg("--target-dir").arg(build).current_dir(tree).env(SWITCH, lives);
        test.args(["--", "--exact", &self.test]).stderr(std::process::Stdio::null());
        run_counted(&mut test, &mut std::io::sink(), SILENCE_MAX)
    }
}

/// Plants all mutants in a copy, and says of each, or of the one called `only`, whether its test fails with it and
/// passes without it.
///
/// # Errors
/// One sentence: a text or a test that does not stand where it should, a copy that does not build, or a mutant that its
/// test does not notice.
pub fn planted(only: Option<&str>) -> Result<(), String> {
    let mutants = list(LIST, "mutant", Mutant::read)?;
    let (tree, build) = (target().join("mutants/planted/tree"), target().join("mutants/planted/build"));
    plant_all(&tree, mutants.iter().map(|mutant| &mutant.change))?;
    let meant: Vec<&Mutant> =
        mutants.iter().filter(|mutant| only.is_none_or(|only| only == mutant.change.name)).collect();
    for binary in meant.iter().map(|mutant| mutant.binary()).collect::<BTreeSet<_>>() {
        run(cargo("test --quiet --no-run").args(binary).arg("--target-dir").arg(&build).current_dir(&tree))?;
    }
    let (mut passing, mut rows, mut missed) = (BTreeSet::new(), String::new(), Vec::new());
    for mutant in &meant {
        let Mutant { change: Change { name, breaks, .. }, package, binary, test } = mutant;
        let is_there = !passing.insert((package, binary, test)) || mutant.run(&tree, &build, "")?.passed == 1;
        let noticed = is_there && mutant.run(&tree, &build, name)?.passed == 0;
        eprintln!("{name}: {}", if noticed { "noticed" } else { "MISSED" });
        rows += &format!("| `{name}` | {breaks} | `{test}` |\n");
        missed.extend((!noticed).then_some(&**name));
    }
    println!("\n| mutant | it breaks this | noticed by |\n|---|---|---|\n{rows}");
    match (meant.len(), missed.len()) {
        (0, _) => Err(format!("there is no such mutant: {}", only.unwrap_or(""))),
        (_, 0) => Ok(()),
        (all, count) => Err(format!("{count} of {all} mutants were missed by their tests: {}", missed.join(", "))),
    }
}

#[cfg(test)]
mod planted_tests {
    use super::*;
    use crate::planted::planted;

    /// The tool itself finds an argument without a line after it has built the crate.
    #[test]
    fn every_argument_is_about_a_line_that_stands_there() {
        let read =
            |path: &str| std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let argued = read("lab/mutants/argued.txt");
        for name in argued.lines().filter(|line| !line.is_empty() && !line.starts_with([' ', '#'])) {
            let [file, function, _, line] = name.splitn(4, ": ").collect::<Vec<_>>()[..] else { panic!("{name}") };
            let text = read(file);
            assert!(text.contains(&format!("fn {function}")), "{name}");
            assert!(text.lines().any(|other| other.trim() == line), "{name}");
        }
    }

    #[test]
    fn every_mutant_stands_where_the_list_says() {
        let mutants = list(LIST, "mutant", Mutant::read).unwrap();
        planted(mutants.iter().map(|mutant| &mutant.change)).unwrap();
        let names: BTreeSet<&str> = mutants.iter().map(|mutant| &*mutant.change.name).collect();
        assert_eq!(names.len(), mutants.len(), "two mutants have one name");
    }
}
