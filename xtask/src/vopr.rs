//! `cargo xtask vopr`: the simulation of the whole server, and the bugs that are planted into it.
//!
//! A planted bug is a patch (`lab/vopr/planted/NAME.patch`) whose first lines say what it breaks. Each is applied to a
//! copy of the tree, built, and run until a seed fails. One that is not found means that an invariant is missing.

use crate::run::{cargo, command, root, run, target};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Longest that seeds are tried for one bug, s.
const SECONDS: &str = "120";

/// Runs the simulation with these options.
///
/// # Errors
/// One sentence if a seed failed, after what it printed.
pub fn vopr(options: &[&str]) -> Result<(), String> {
    run(cargo("run --quiet --release -p mqfq-vopr --").args(options))
}

/// What became of one bug.
struct Row {
    name: String,
    what: String,
    found: String,
}

/// Plants each bug in a copy, or only the one called `only`, and says which seed finds it.
///
/// # Errors
/// One sentence: a patch that does not apply, a copy that does not build, or a bug that no seed found.
pub fn planted(only: Option<&str>) -> Result<(), String> {
    let tree = copy()?;
    let mut rows = Vec::new();
    for patch in patches(only)? {
        let text = read(&patch)?;
        let what = text.lines().take_while(|line| !line.starts_with("diff ") && !line.starts_with("--- "));
        let what = what.collect::<Vec<_>>().join(" ");
        apply(&tree, &patch, false)?;
        let found = hunt(&tree);
        apply(&tree, &patch, true)?;
        let name = patch.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        println!("{name}: {}", found.as_deref().unwrap_or("not found"));
        rows.push(Row { name, what, found: found? });
    }
    println!("\n| bug | what it breaks | found |\n|---|---|---|");
    rows.iter().for_each(|Row { name, what, found }| println!("| `{name}` | {what} | {found} |"));
    let missed = rows.iter().filter(|row| row.found.is_empty()).count();
    if missed > 0 { Err(format!("{missed} of {} planted bugs were not found", rows.len())) } else { Ok(()) }
}

fn patches(only: Option<&str>) -> Result<Vec<PathBuf>, String> {
    let folder = root().join("lab/vopr/planted");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let is_one = |path: &PathBuf| {
        path.extension().is_some_and(|end| end == "patch")
            && only.is_none_or(|name| path.file_stem().is_some_and(|stem| stem == name))
    };
    let mut patches: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_one).collect();
    patches.sort();
    if patches.is_empty() { Err("there is no such planted bug".into()) } else { Ok(patches) }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// A copy of what git tracks, as it is now. Files that did not change keep their times, so that little is built again.
fn copy() -> Result<PathBuf, String> {
    let tree = target().join("planted/tree");
    let listed = command("git", ["ls-files", "-z"]).output().map_err(|error| format!("git ls-files: {error}"))?;
    for name in String::from_utf8_lossy(&listed.stdout).split('\0').filter(|name| !name.is_empty()) {
        let (from, to) = (root().join(name), tree.join(name));
        let Ok(bytes) = std::fs::read(&from) else { continue };
        if std::fs::read(&to).is_ok_and(|old| old == bytes) {
            continue;
        }
        let folder = to.parent().expect("a file lies in a folder");
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        std::fs::write(&to, bytes).map_err(|error| format!("{}: {error}", to.display()))?;
    }
    Ok(tree)
}

fn apply(tree: &Path, patch: &Path, reverse: bool) -> Result<(), String> {
    let mut tool = command("patch", ["--quiet", "--strip=1", "--no-backup-if-mismatch", "--force"]);
    tool.args(reverse.then_some("--reverse")).arg("--input").arg(patch).current_dir(tree);
    run(&mut tool)
}

/// Which seed finds the bug that is in the copy, and how soon. Empty: none did.
fn hunt(tree: &Path) -> Result<String, String> {
    let build = target().join("planted/build");
    let mut made = cargo("build --quiet --release -p mqfq-vopr --target-dir");
    run(made.arg(&build).current_dir(tree))?;
    let start = Instant::now();
    let binary = build.join("release/mqfq-vopr");
    let mut seeds = command(&binary.to_string_lossy(), ["--for", SECONDS, "--no-shrink"]);
    let output = seeds.output().map_err(|error| format!("mqfq-vopr: {error}"))?;
    let took_s = start.elapsed().as_secs_f64();
    let text = String::from_utf8_lossy(&output.stdout);
    let seed = text.lines().find_map(|line| line.strip_prefix("seed "));
    let failed = text.lines().find_map(|line| line.strip_prefix("FAILED "));
    Ok(match (seed, failed) {
        (Some(seed), Some(failed)) => {
            let seed = seed.split(' ').next().unwrap_or("");
            format!("seed {seed}, {took_s:.1} s, {}", failed.chars().take(160).collect::<String>())
        }
        _ => String::new(),
    })
}
