//! `cargo xtask mutants`: which change of the product does no test notice?
//!
//! The tool (`lab/mutants`, a workspace of its own) puts all changes of a crate's files into one copy behind a switch,
//! builds it once, and runs for each change the tests that pass it. Here stands which files, and which tests.

mod planted;

pub use planted::planted;

use crate::copy::copy;
use crate::run::{ONLY_IDLE, at_niceness, cargo, command, root, run, target};
use std::collections::BTreeMap;

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
    Mutated { folder: "config", modules: &["duration", "groups", "owned", "reader", "size", "text"], tests: &[] },
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
