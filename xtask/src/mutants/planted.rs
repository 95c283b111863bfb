//! `cargo xtask mutants --planted`: mutants of `lab/mutants/planted.toml`, each with the test that must fail with it.

use crate::planted::{Change, SWITCH, list, plant_all};
use crate::run::{Counts, SILENCE_MAX, cargo, command, run, run_counted, target};
use std::collections::BTreeSet;
use std::path::Path;

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
mod tests {
    use super::*;
    use crate::planted::planted;

    #[test]
    fn every_mutant_stands_where_the_list_says() {
        let mutants = list(LIST, "mutant", Mutant::read).unwrap();
        planted(mutants.iter().map(|mutant| &mutant.change)).unwrap();
        let names: BTreeSet<&str> = mutants.iter().map(|mutant| &*mutant.change.name).collect();
        assert_eq!(names.len(), mutants.len(), "two mutants have one name");
    }
}
