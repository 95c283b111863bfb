//! `cargo xtask soak`: the generated tests with new seeds.
//!
//! The suite draws the same cases each time, so that it says the same twice. Here each round has a seed of its own,
//! which is printed before it is used, and once more with the command that repeats the round if a test failed.

use crate::run::{Counts, cargo, root, run, run_counted};
use crate::tidy::seeds::{SEED_VARIABLE, generated, package};
use crate::tidy::tree::Tree;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Rounds of churn.
const CHURN_ROUNDS: &str = "10000";

/// Seconds of each half of the test of forty exports.
const FORTY_S: &str = "15";

/// Ten thousand rounds of churn, forty exports of a pool with faults, seeds of the whole server for `limit` (half of it
/// on a server that is changed as a whole), then rounds of all generated tests until `limit` has passed once more, one
/// at least: the first with `seed`, or with a seed from the time.
///
/// # Errors
/// One sentence if a test fails, with the command that repeats it, or if there are none.
pub fn soak(limit: Duration, seed: Option<u64>) -> Result<(), String> {
    let tests = Tests::of(&Tree::read(root())?)?;
    run(tests.command().arg("--no-run"))?;
    churn()?;
    forty()?;
    let (first, half_s) = (seed.unwrap_or_else(seed_of_the_time), limit.as_secs().div_ceil(2).to_string());
    for managed in [&[][..], &["--managed"]] {
        println!("{half_s} s of the whole server in virtual time {}", managed.concat());
        let mut vopr = cargo("run --quiet --release -p mqfq-vopr -- --for");
        run(vopr.args([&*half_s, "--seed", &first.to_string()]).args(managed))?;
    }
    let start = Instant::now();
    let mut seed = seed.unwrap_or_else(seed_of_the_time);
    let mut rounds = 0u64;
    loop {
        println!("seed {seed}");
        let mut command = tests.command();
        command.env(SEED_VARIABLE, seed.to_string()).arg("--").args(&tests.names);
        let counts = run_counted(&mut command, &mut std::io::stdout(), Duration::MAX)?;
        tests.look_at(counts, seed)?;
        rounds += 1;
        if start.elapsed() >= limit {
            println!("{} generated tests, {rounds} seeds, {} s", counts.passed, start.elapsed().as_secs());
            return Ok(());
        }
        seed = after(seed);
    }
}

/// Tenants, exports and devices that come and go so often (`daemon/tests/e2e/live.rs`); the suite makes few rounds.
fn churn() -> Result<(), String> {
    println!("{CHURN_ROUNDS} rounds of churn");
    run(cargo("test --quiet -p mqfq --test e2e live::churn").env("MQFQ_CHURN_ROUNDS", CHURN_ROUNDS))
}

/// Forty exports of a pool, verified while some backings fail, hang, come and go (`daemon/tests/e2e/upgrade.rs`).
fn forty() -> Result<(), String> {
    println!("forty exports of a pool, {FORTY_S} s without and with faults");
    run(cargo("test --quiet -p mqfq --test e2e i17_forty -- --nocapture").env("MQFQ_FORTY_S", FORTY_S))
}

/// Where the generated tests are, and their names.
struct Tests {
    packages: BTreeSet<String>,
    names: BTreeSet<String>,
}

impl Tests {
    fn of(tree: &Tree) -> Result<Tests, String> {
        let all = generated(tree);
        let packages = all.iter().map(|test| {
            package(tree, test.path).ok_or_else(|| format!("{} is generated and belongs to no package", test.path))
        });
        let packages = packages.collect::<Result<BTreeSet<String>, String>>()?;
        let names: BTreeSet<String> = all.into_iter().map(|test| test.name).collect();
        if names.is_empty() { Err("there is no generated test".into()) } else { Ok(Tests { packages, names }) }
    }

    /// The tests' command, with debug assertions.
    fn command(&self) -> Command {
        let mut command = cargo("test --quiet --lib --tests --no-fail-fast");
        for package in &self.packages {
            command.args(["-p", package]);
        }
        command
    }

    /// Says how a round went.
    fn look_at(&self, counts: Counts, seed: u64) -> Result<(), String> {
        if counts.broken || counts.failed > 0 {
            return Err(format!(
                "{} of the generated tests failed with seed {seed}; once more: cargo xtask soak --seconds 1 --seed {seed}",
                counts.failed
            ));
        }
        // A name that is filtered away would be explored for ever without a case.
        if counts.passed < self.names.len() as u64 {
            return Err(format!("{} tests ran, and {} are generated", counts.passed, self.names.len()));
        }
        Ok(())
    }
}

fn seed_of_the_time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    after(since.as_nanos() as u64)
}

/// The next seed: SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
fn after(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: (&str, &str) = ("a/Cargo.toml", "package.name = \"mqfq-a\"\n");

    fn tests() -> Tests {
        let text = "proptest! {\n    #[test]\n    fn one_holds(a in 0..3) { let fn_of = 1; }\n\n    #[test]\n    fn two_holds(\n        b in 0..3,\n    ) {}\n}\nfn three() {}\n";
        Tests::of(&Tree::of(&[MANIFEST, ("a/src/b/tests.rs", text), ("a/src/c.rs", "fn four() {}\n")])).unwrap()
    }

    #[test]
    fn the_generated_tests_are_found_by_name_and_package() {
        let Tests { packages, names } = tests();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["one_holds", "two_holds"]);
        assert_eq!(packages.into_iter().collect::<Vec<_>>(), ["mqfq-a"]);
        assert!(Tests::of(&Tree::of(&[MANIFEST])).is_err());
    }

    #[test]
    fn a_round_that_fails_or_runs_too_little_is_an_error_with_its_seed() {
        let passed = |passed| Counts { passed, ..Counts::default() };
        assert_eq!(tests().look_at(passed(2), 7), Ok(()));
        assert!(tests().look_at(passed(1), 7).is_err());
        let error = tests().look_at(Counts { failed: 1, broken: true, ..passed(1) }, 7).unwrap_err();
        assert!(error.ends_with("cargo xtask soak --seconds 1 --seed 7"), "{error}");
    }

    #[test]
    fn seeds_do_not_repeat_soon() {
        let seeds: BTreeSet<u64> = std::iter::successors(Some(1), |&seed| Some(after(seed))).take(1000).collect();
        assert_eq!(seeds.len(), 1000);
    }
}
