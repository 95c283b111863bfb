//! `cargo xtask vopr`: the simulation of the whole server, and the bugs that are planted into it.
//!
//! A planted bug is a change of one text (`lab/vopr/planted.toml`). A copy of the tree has all of them, each behind a
//! switch, and is built once; each is then run until a seed fails. One that is not found means that an invariant is
//! missing, or that no script comes there.

use crate::copy::copy;
use crate::run::{cargo, command, root, run, target};
use std::collections::BTreeMap;
use std::path::Path;

/// Longest that seeds are tried for one bug, s of a core.
const SECONDS: &str = "120";

/// Names the bug that lives.
const SWITCH: &str = "MQFQ_PLANTED";

/// Runs the simulation with these options.
///
/// # Errors
/// One sentence if a seed failed, after what it printed.
pub fn vopr(options: &[&str]) -> Result<(), String> {
    run(cargo("run --quiet --release -p mqfq-vopr --").args(options))
}

/// A bug that is planted.
#[derive(PartialEq, Eq, Debug)]
struct Bug {
    name: String,
    breaks: String,
    file: String,
    was: String,
    is: String,
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
    let bugs = bugs(&read(&root().join("lab/vopr/planted.toml"))?)?;
    let mut changed = BTreeMap::new();
    for bug in &bugs {
        let text = changed.remove(&bug.file).map_or_else(|| read(&root().join(&bug.file)), Ok)?;
        changed.insert(bug.file.clone(), plant(bug, &text)?);
    }
    let tree = target().join("planted/tree");
    let build = target().join("planted/build");
    copy(&tree, &changed)?;
    run(cargo("build --quiet --release -p mqfq-vopr --target-dir").arg(&build).current_dir(&tree))?;
    let meant: Vec<&Bug> = bugs.iter().filter(|bug| only.is_none_or(|only| only == bug.name)).collect();
    if meant.is_empty() {
        return Err(format!("there is no such planted bug: {}", only.unwrap_or("")));
    }
    let binary = build.join("release/mqfq-vopr");
    let mut rows = Vec::new();
    for bug in meant {
        let found = hunt(&binary, bug)?;
        eprintln!("{}: {}", bug.name, found.as_deref().unwrap_or("not found"));
        rows.push((bug, found));
    }
    println!("\n| bug | it breaks this | seeds | s of a core | found as |\n|---|---|---|---|---|");
    for (Bug { name, breaks, .. }, found) in &rows {
        println!("| `{name}` | {breaks} | {} |", found.as_deref().unwrap_or("- | - | not found"));
    }
    let missed = rows.iter().filter(|(_, found)| found.is_none()).count();
    if missed > 0 { Err(format!("{missed} of {} planted bugs were not found", rows.len())) } else { Ok(()) }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn bugs(text: &str) -> Result<Vec<Bug>, String> {
    let table: toml::Table = text.parse().map_err(|error| format!("planted.toml: {error}"))?;
    let all = table.get("bug").and_then(|bugs| bugs.as_array()).ok_or("planted.toml has no bug")?;
    let of = |bug: &toml::Value| {
        let key = |key: &str| {
            let value = bug.get(key).and_then(|value| value.as_str());
            value.map(str::to_owned).ok_or_else(|| format!("planted.toml: a bug has no {key}"))
        };
        let flag = |key: &str| bug.get(key).and_then(|value| value.as_bool()).unwrap_or(false);
        let (is_managed, has_cuts) = (flag("managed"), flag("cuts"));
        let (name, breaks, file) = (key("name")?, key("breaks")?, key("file")?);
        Ok(Bug { name, breaks, file, was: key("was")?, is: key("is")?, is_managed, has_cuts })
    };
    all.iter().map(of).collect()
}

/// The text of a file with the bug in it.
fn plant(bug: &Bug, text: &str) -> Result<String, String> {
    let Bug { name, file, was, is, .. } = bug;
    match (text.matches(was.as_str()).count(), is.matches("PLANTED").count()) {
        (1, 1..) => {}
        (1, _) => return Err(format!("planted.toml: {name} has no PLANTED in what it becomes")),
        (count, _) => return Err(format!("planted.toml: {file} has the text of {name} {count} times, allowed is 1")),
    }
    let switch = format!(
        "({{ static IS: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| \
         std::env::var_os(\"{SWITCH}\").is_some_and(|name| name == \"{name}\")); *IS }})"
    );
    Ok(text.replacen(was, &is.replace("PLANTED", &switch), 1))
}

/// How many seeds and seconds find the bug, and in which words, as cells of the table. `None`: none did.
fn hunt(binary: &Path, bug: &Bug) -> Result<Option<String>, String> {
    let mut seeds = command(&binary.to_string_lossy(), ["--core", SECONDS, "--no-shrink"]);
    seeds.args(bug.is_managed.then_some("--managed"));
    seeds.args(bug.has_cuts.then_some(["--cuts", "1000000"]).into_iter().flatten());
    let output = seeds.env(SWITCH, &bug.name).output().map_err(|error| format!("mqfq-vopr: {error}"))?;
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
        let bugs = bugs(&read(&root().join("lab/vopr/planted.toml")).unwrap()).unwrap();
        assert!(bugs.len() >= 17);
        for bug in &bugs {
            let planted = plant(bug, &read(&root().join(&bug.file)).unwrap());
            assert!(planted.is_ok_and(|text| text.contains(&format!("name == \"{}\"", bug.name))), "{}", bug.name);
        }
    }

    #[test]
    fn a_bug_that_is_nowhere_or_switches_nothing_is_refused() {
        let bug = |was: &str, is: &str| Bug {
            name: "none".into(),
            breaks: String::new(),
            file: "a.rs".into(),
            was: was.into(),
            is: is.into(),
            is_managed: false,
            has_cuts: false,
        };
        assert!(plant(&bug("b", "PLANTED"), "a a").unwrap_err().contains("0 times"));
        assert!(plant(&bug("a", "PLANTED"), "a a").unwrap_err().contains("2 times"));
        assert!(plant(&bug("a", "b"), "a").unwrap_err().contains("no PLANTED"));
    }
}
