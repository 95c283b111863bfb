//! `cargo xtask vopr`: the simulation of the whole server, and the bugs that are planted into it.
//!
//! A planted bug is a change of one text (`lab/vopr/planted.toml`). A copy of the tree has all of them, each behind a
//! switch, and is built once; each is then run until a seed fails. One that is not found means that an invariant is
//! missing, or that no script comes there.

use crate::planted::{self, Change, SWITCH};
use crate::run::{cargo, command, run, target};
use std::path::Path;

/// The list of bugs.
const LIST: &str = "lab/vopr/planted.toml";

/// Longest that seeds are tried for one bug, s of a core.
const SECONDS: &str = "120";

/// Runs the simulation with these options.
///
/// # Errors
/// One sentence if a seed failed, after what it printed.
pub fn vopr(options: &[&str]) -> Result<(), String> {
    run(cargo("run --quiet --release -p mqfq-vopr --").args(options))
}

/// A bug that is planted.
struct Bug {
    change: Change,
    /// The bug is in the reconciler: the seeds are those of servers that are changed as a whole.
    is_managed: bool,
    /// Seeds in which the power is cut again and again.
    has_cuts: bool,
}

/// Plants all bugs in a copy, and says of each, or of the one called `only`, which seed finds it.
///
/// # Errors
/// One sentence: a text that does not stand where it should, a copy that does not build, or a bug that no seed found.
pub fn planted(only: Option<&str>) -> Result<(), String> {
    let bugs = bugs()?;
    let tree = target().join("planted/tree");
    let build = target().join("planted/build");
    planted::plant_all(&tree, bugs.iter().map(|bug| &bug.change))?;
    // As in the suite the reconciler compares, after each change, all that runs with the plan.
    let words = "build --quiet --release --config profile.release.package.mqfq.debug-assertions=true -p mqfq-vopr";
    run(cargo(words).arg("--target-dir").arg(&build).current_dir(&tree))?;
    let meant: Vec<&Bug> = bugs.iter().filter(|bug| only.is_none_or(|only| only == bug.change.name)).collect();
    if meant.is_empty() {
        return Err(format!("there is no such planted bug: {}", only.unwrap_or("")));
    }
    let binary = build.join("release/mqfq-vopr");
    let mut rows = Vec::new();
    for bug in meant {
        let found = hunt(&binary, bug)?;
        eprintln!("{}: {}", bug.change.name, found.as_deref().unwrap_or("not found"));
        rows.push((bug, found));
    }
    println!("\n| bug | it breaks this | seeds | s of a core | found as |\n|---|---|---|---|---|");
    for (Bug { change: Change { name, breaks, .. }, .. }, found) in &rows {
        println!("| `{name}` | {breaks} | {} |", found.as_deref().unwrap_or("- | - | not found"));
    }
    let missed = rows.iter().filter(|(_, found)| found.is_none()).count();
    if missed > 0 { Err(format!("{missed} of {} planted bugs were not found", rows.len())) } else { Ok(()) }
}

fn bugs() -> Result<Vec<Bug>, String> {
    planted::list(LIST, "bug", |bug| {
        let flag = |key: &str| bug.get(key).and_then(|value| value.as_bool()).unwrap_or(false);
        Ok(Bug { change: Change::read(bug)?, is_managed: flag("managed"), has_cuts: flag("cuts") })
    })
}

/// How many seeds and seconds find the bug, and in which words, as cells of the table. `None`: none did.
fn hunt(binary: &Path, bug: &Bug) -> Result<Option<String>, String> {
    let mut seeds = command(&binary.to_string_lossy(), ["--core", SECONDS, "--no-shrink"]);
    seeds.args(bug.is_managed.then_some("--managed"));
    seeds.args(bug.has_cuts.then_some(["--cuts", "1000000"]).into_iter().flatten());
    let output = seeds.env(SWITCH, &bug.change.name).output().map_err(|error| format!("mqfq-vopr: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // seed 77 (76 seeds, 1.9 s of a core before it)
    let seed = text.lines().find_map(|line| line.strip_prefix("seed "));
    let failed = text.lines().find_map(|line| line.strip_prefix("FAILED "));
    let (Some(seed), Some(failed)) = (seed, failed) else { return Ok(None) };
    let numbers: Vec<&str> = seed.split(['(', ' ', ')']).filter(|word| !word.is_empty()).collect();
    let before: u64 = numbers.get(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let (seeds, seconds) = (before + 1, numbers.get(3).unwrap_or(&"?"));
    let words = failed.split_once(": ").map_or(failed, |(_, words)| words);
    let short: String = words.chars().take(110).map(|c| if c == '|' { '/' } else { c }).collect();
    Ok(Some(format!("{seeds} | {seconds} | {short}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_planted_bug_stands_where_the_list_says() {
        let bugs = bugs().unwrap();
        assert!(bugs.len() >= 29);
        planted::planted(bugs.iter().map(|bug| &bug.change)).unwrap();
    }
}
