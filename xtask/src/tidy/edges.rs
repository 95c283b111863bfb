//! Allowed dependencies between crates. `ls` is the architecture only as long as the manifests agree with it.

use super::report::Report;
use super::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

/// The crates of ours on which a crate may depend.
struct Edges {
    folder: &'static str,
    package: &'static str,
    /// Folders of the crates that it depends on.
    on: &'static [&'static str],
    /// It may depend on fewer.
    or_fewer: bool,
}

/// The allowed edges between crates. A crate that is not here is an error: say first where it belongs. What
/// ships stands first, and no arrow leads from it to the laboratory.
const EDGES: &[Edges] = &[
    Edges { folder: "config", package: "mqfq-config", on: &[], or_fewer: false },
    Edges { folder: "sched", package: "mqfq-sched", on: &["testing", "lab/policies"], or_fewer: true },
    Edges { folder: "capi", package: "mqfq-c", on: &["sched", "testing"], or_fewer: true },
    Edges {
        folder: "blk",
        package: "mqfq-blk",
        on: &["sched", "testing", "testing/devices", "lab/policies", "lab/nvme", "lab/blkmq"],
        or_fewer: true,
    },
    Edges { folder: "ublk", package: "mqfq-ublk", on: &["blk"], or_fewer: false },
    Edges {
        folder: "front",
        package: "mqfq-front",
        on: &["blk", "ublk", "testing", "testing/devices"],
        or_fewer: true,
    },
    Edges { folder: "report", package: "mqfq-report", on: &[], or_fewer: false },
    Edges { folder: "demo", package: "mqfq-demo", on: &["blk", "front", "report"], or_fewer: false },
    Edges { folder: "calibrate", package: "mqfq-calibrate", on: &["blk", "report", "demo"], or_fewer: false },
    Edges { folder: "control", package: "mqfq-control", on: &["config", "report"], or_fewer: false },
    Edges { folder: "observe", package: "mqfq-observe", on: &["blk", "control", "testing"], or_fewer: true },
    Edges {
        folder: "daemon",
        package: "mqfq",
        on: &["front", "blk", "config", "report", "demo", "calibrate", "control", "observe", "testing", "lab/policies"],
        or_fewer: true,
    },
    Edges { folder: "cpu", package: "mqfq-cpu", on: &["testing"], or_fewer: true },
    // A scheduler in the kernel, and what its records say of it by the reference.
    Edges { folder: "cpu/scx", package: "scx_pmqfq", on: &["config", "cpu"], or_fewer: false },
    Edges {
        folder: "kernel/elevator/agreement",
        package: "mqfq-elevator-agreement",
        on: &["sched", "testing"],
        or_fewer: true,
    },
    Edges { folder: "testing", package: "mqfq-testing", on: &["sched"], or_fewer: false },
    Edges {
        folder: "testing/devices",
        package: "mqfq-testing-devices",
        on: &["sched", "blk", "lab/blkmq"],
        or_fewer: false,
    },
    // The policies that do not ship; what ships knows them in tests alone.
    Edges { folder: "lab/policies", package: "mqfq-policies", on: &["sched", "testing"], or_fewer: true },
    Edges { folder: "lab/gateway", package: "mqfq-gateway", on: &["sched"], or_fewer: false },
    // Queues that workers share, and the controller on which three of them make a set.
    Edges {
        folder: "lab/blkmq",
        package: "mqfq-blkmq",
        on: &["sched", "blk", "lab/nvme", "lab/policies", "testing/devices"],
        or_fewer: true,
    },
    Edges {
        folder: "lab/nvme",
        package: "mqfq-nvme",
        on: &["sched", "blk", "lab/blkmq", "lab/policies", "testing/devices"],
        or_fewer: true,
    },
    // The source of sched, blk, shared queues, the controller and the policies once more, with atomics that tell a
    // watcher.
    Edges { folder: "lab/watched/sched", package: "mqfq-sched-watched", on: &["testing"], or_fewer: true },
    Edges {
        folder: "lab/watched/blk",
        package: "mqfq-blk-watched",
        on: &["lab/watched/sched", "lab/watched/policies", "lab/watched/nvme", "lab/watched/blkmq", "testing"],
        or_fewer: true,
    },
    Edges {
        folder: "lab/watched/blkmq",
        package: "mqfq-blkmq-watched",
        on: &["lab/watched/sched", "lab/watched/blk", "lab/watched/policies"],
        or_fewer: true,
    },
    Edges {
        folder: "lab/watched/nvme",
        package: "mqfq-nvme-watched",
        on: &["lab/watched/sched", "lab/watched/blk", "lab/watched/blkmq", "lab/watched/policies"],
        or_fewer: true,
    },
    Edges {
        folder: "lab/watched/policies",
        package: "mqfq-policies-watched",
        on: &["lab/watched/sched", "testing"],
        or_fewer: true,
    },
    Edges {
        folder: "lab/sim",
        package: "mqfq-sim",
        // blk and observe in tests: what is said of a tenant is held against a load of which the truth is known.
        on: &[
            "lab/watched/blk",
            "lab/watched/sched",
            "lab/watched/policies",
            "lab/watched/nvme",
            "lab/watched/blkmq",
            "cpu",
            "config",
            "report",
            "lab/policies",
            "blk",
            "observe",
        ],
        or_fewer: true,
    },
    Edges {
        folder: "lab/bench",
        package: "mqfq-bench",
        on: &[
            "sched",
            "lab/nvme",
            "lab/blkmq",
            "blk",
            "front",
            "config",
            "report",
            "demo",
            "lab/policies",
            "lab/watched/sched",
            "lab/watched/policies",
            "lab/sim",
            "testing",
        ],
        or_fewer: true,
    },
    Edges {
        folder: "lab",
        package: "mqfq-lab",
        on: &[
            "lab/bench",
            "lab/sim",
            "lab/nvme",
            "lab/blkmq",
            "lab/policies",
            "daemon",
            "blk",
            "config",
            "report",
            "cpu/scx",
            "testing",
        ],
        or_fewer: true,
    },
    Edges {
        folder: "lab/vopr",
        package: "mqfq-vopr",
        on: &["front", "blk", "control", "daemon", "lab/blkmq", "lab/policies", "testing", "testing/devices"],
        or_fewer: false,
    },
    Edges { folder: "xtask", package: "xtask", on: &["report", "testing"], or_fewer: false },
];

/// Crates that may use nothing but `std`, `core` and these packages where they ship.
const BARE: &[(&str, &[&str])] = &[("sched", &[]), ("cpu", &[]), ("config", &["toml", "strsim"])];

/// Crates with the data path in them: their worker's loop is their own.
const NO_RUNTIME: &[&str] = &["sched", "blk", "front"];

/// An async runtime hides when a ring is entered and on which thread; see ARCHITECTURE.md.
const RUNTIMES: &[&str] =
    &["tokio", "async-std", "smol", "async-executor", "glommio", "monoio", "compio", "tokio-uring", "futures-executor"];

fn parse(tree: &Tree, path: &str, report: &mut Report) -> Option<Table> {
    let file = tree.file(path)?;
    match file.text.parse::<Table>() {
        Ok(table) => Some(table),
        Err(error) => {
            report.add(path, 0, format!("is not TOML: {}", error.message()));
            None
        }
    }
}

fn table<'a>(from: &'a Table, key: &str) -> Option<&'a Table> {
    from.get(key).and_then(Value::as_table)
}

/// The members of the workspace, by folder.
fn members(tree: &Tree, report: &mut Report) -> Vec<String> {
    let Some(root) = parse(tree, "Cargo.toml", report) else { return Vec::new() };
    let Some(listed) = table(&root, "workspace").and_then(|workspace| workspace.get("members")) else {
        return Vec::new();
    };
    listed.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_string).collect()
}

/// Names in one dependency table: the package behind a renamed one.
fn names(dependencies: Option<&Table>) -> BTreeSet<String> {
    let package = |key: &String, value: &Value| match value.get("package").and_then(Value::as_str) {
        Some(package) => package.to_string(),
        None => key.clone(),
    };
    dependencies.into_iter().flatten().map(|(key, value)| package(key, value)).collect()
}

/// The dependency tables of a manifest: of all targets, by kind, with the target's condition.
fn sections<'a>(manifest: &'a Table, kind: &str) -> Vec<(Option<&'a str>, BTreeSet<String>)> {
    let mut found = vec![(None, names(table(manifest, kind)))];
    for (condition, target) in table(manifest, "target").into_iter().flatten() {
        found.push((Some(condition.as_str()), names(target.as_table().and_then(|target| table(target, kind)))));
    }
    found
}

/// `edges`: the crates depend on each other exactly as drawn.
pub fn crate_edges(tree: &Tree, report: &mut Report) {
    for folder in members(tree, report) {
        let path = format!("{folder}/Cargo.toml");
        let Some(manifest) = parse(tree, &path, report) else { continue };
        let Some(edges) = EDGES.iter().find(|edges| edges.folder == folder) else {
            report.add(&path, 0, format!("{folder} has no place in the picture of crates (xtask/src/tidy/edges.rs)"));
            continue;
        };
        let named = table(&manifest, "package").and_then(|package| package.get("name")).and_then(Value::as_str);
        if named != Some(edges.package) {
            report.add(&path, 0, format!("the package in {folder} is called {}", edges.package));
        }
        let of = |folder: &str| EDGES.iter().find(|edges| edges.folder == folder).map(|edges| edges.package);
        let allowed: BTreeSet<&str> = edges.on.iter().filter_map(|folder| of(folder)).collect();
        let mut used = BTreeSet::new();
        for kind in ["dependencies", "build-dependencies", "dev-dependencies"] {
            for name in sections(&manifest, kind).into_iter().flat_map(|(_, names)| names) {
                let Some(ours) = EDGES.iter().map(|edges| edges.package).find(|package| *package == name) else {
                    continue;
                };
                // The simulation is a test as a whole.
                let ships = !["xtask", "lab/bench", "lab/vopr"].contains(&edges.folder);
                if ours.starts_with("mqfq-testing") && kind != "dev-dependencies" && ships {
                    report.add(&path, 0, format!("{folder} ships, and must not depend on {ours} ({kind})"));
                }
                if !allowed.contains(ours) {
                    report.add(&path, 0, format!("{folder} must not depend on {ours} ({kind})"));
                }
                if kind == "dependencies" {
                    used.insert(ours);
                }
            }
        }
        for missing in allowed.difference(&used).filter(|_| !edges.or_fewer) {
            report.add(&path, 0, format!("{folder} no longer depends on {missing}: redraw the picture of crates"));
        }
    }
}

/// `no-external`: sched and cpu ship without any dependency, config with two; a model checker or a test may have some.
pub fn no_external(tree: &Tree, report: &mut Report) {
    for (folder, allowed) in BARE {
        let path = format!("{folder}/Cargo.toml");
        let Some(manifest) = parse(tree, &path, report) else { continue };
        for kind in ["dependencies", "build-dependencies"] {
            for (condition, names) in sections(&manifest, kind) {
                if condition == Some("cfg(mqfq_loom)") {
                    continue;
                }
                for name in names.iter().filter(|name| !allowed.contains(&name.as_str())) {
                    let most = if allowed.is_empty() { "none".into() } else { allowed.join(", ") };
                    report.add(
                        &path,
                        0,
                        format!("{folder} ships with no dependency but {most}, yet {name} is one ({kind})"),
                    );
                }
            }
        }
    }
}

/// `no-async-runtime`: none is reachable from the crates of the data path, in the lock file's graph.
pub fn no_async_runtime(tree: &Tree, report: &mut Report) {
    let Some(lock) = parse(tree, "Cargo.lock", report) else { return };
    let mut graph: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in lock.get("package").and_then(Value::as_array).into_iter().flatten() {
        let Some(name) = package.get("name").and_then(Value::as_str) else { continue };
        let uses =
            package.get("dependencies").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        // "name", or "name version" where there are several: their union is near enough.
        graph.entry(name).or_default().extend(uses.filter_map(|used| used.split(' ').next()));
    }
    for folder in NO_RUNTIME {
        let Some(edges) = EDGES.iter().find(|edges| edges.folder == *folder) else { continue };
        let mut seen = BTreeSet::from([edges.package]);
        let mut open = vec![edges.package];
        while let Some(name) = open.pop() {
            open.extend(graph.get(name).into_iter().flatten().copied().filter(|used| seen.insert(used)));
        }
        for runtime in RUNTIMES.iter().filter(|runtime| seen.contains(**runtime)) {
            report.add("Cargo.lock", 0, format!("{folder} reaches the async runtime {runtime}"));
        }
    }
}

/// `manifest`: each crate states its licence, takes the workspace's lints, and is not published by accident.
pub fn manifest(tree: &Tree, report: &mut Report) {
    for folder in members(tree, report) {
        let path = format!("{folder}/Cargo.toml");
        let Some(manifest) = parse(tree, &path, report) else {
            report.add("Cargo.toml", 0, format!("member {folder} has no manifest"));
            continue;
        };
        let package = table(&manifest, "package");
        for key in ["license", "edition", "rust-version", "publish", "description"] {
            if package.is_none_or(|package| !package.contains_key(key)) {
                report.add(&path, 0, format!("the package says nothing about {key}"));
            }
        }
        let inherits = |lints: &Table| lints.get("workspace").and_then(Value::as_bool) == Some(true);
        if !table(&manifest, "lints").is_some_and(inherits) {
            report.add(&path, 0, "the workspace's lints do not apply ([lints] workspace = true)");
        }
    }
}
