//! The chores: what each command of `cargo xtask` does.

use crate::guest;
use crate::licences;
use crate::release;
use crate::run::{
    AFTER_OTHERS, Counts, SILENCE_MAX, at_niceness, cargo, cargo_unless_known, command, root, run, run_counted, shown,
    target,
};
use crate::suites;
use crate::tidy;
use crate::tools;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Preemptions in all that a model explores. The race of a turner that marks a queue just before it sleeps shows
/// only with 3; models of three threads grow too fast for more in a suite that every developer runs.
const LOOM_PREEMPTIONS: &str = "3";

/// A part of the suite: its name and its `cargo test`.
type Part = (&'static str, Command);

/// Everything, doc tests and tidy included, with debug assertions and overflow checks. One build serves the suite and
/// work on a crate; code in which tests spend long is optimised there (profiles in Cargo.toml). The simulator that
/// passed before is left out.
fn whole(has_all_tools: bool, again: bool) -> Part {
    let mut whole = cargo_unless_known("test --workspace --no-fail-fast", if again { &[] } else { &["lab/sim"] });
    if has_all_tools {
        // A test that finds a tool missing now fails instead of skipping.
        whole.env("MQFQ_REQUIRE_TOOLS", "1");
    }
    ("workspace", whole)
}

/// Limits on instructions, which are those of an optimised build: the tests say "skipped" in the other one.
fn counted() -> Part {
    let mut part = cargo("test --release -p mqfq-bench --no-default-features --test counted");
    part.env("MQFQ_REQUIRE_TOOLS", "1");
    ("instructions, beside it", part)
}

fn models(again: bool) -> Part {
    // One at a time: the other cores are for the part in the foreground.
    let mut models = loom_command(if again { &[] } else { &["sched", "lab/policies", "blk"] });
    models.args(["--", "--test-threads", "1"]);
    ("loom models, beside it", models)
}

/// The models; those of `folders` are left out where they passed before.
fn loom_command(folders: &[&str]) -> Command {
    let words = "test -p mqfq-sched -p mqfq-policies -p mqfq-blk --features mqfq-sched/models";
    let mut loom = cargo_unless_known(words, folders);
    loom.args(["--profile", "loom", "--lib", "--no-fail-fast"]);
    loom.arg("--target-dir").arg(target().join("loom")).arg("loom");
    loom.env("RUSTFLAGS", "--cfg mqfq_loom").env("LOOM_MAX_PREEMPTIONS", LOOM_PREEMPTIONS);
    loom
}

/// A part that has run: its name, its counts and the time that it took.
type Row = (&'static str, Counts, Duration);

fn run_part((name, mut command): Part, sink: &mut dyn Write) -> Result<Row, String> {
    let start = Instant::now();
    let counts = run_counted(&mut command, sink, SILENCE_MAX)?;
    Ok((name, counts, start.elapsed()))
}

/// Runs parts beside the first one, at a low priority: they get the cores while tests wait for a clock or a socket, and
/// while the compiler works on one crate. The rows, and what the parts printed.
fn beside(parts: Vec<Part>) -> Result<(Vec<Row>, Vec<u8>), String> {
    let mut output = Vec::new();
    let low = parts.into_iter().map(|(name, command)| (name, at_niceness(AFTER_OTHERS, command)));
    let rows = low.map(|part| run_part(part, &mut output)).collect::<Result<_, _>>()?;
    Ok((rows, output))
}

/// `test`: the whole suite, with a closing line that counts. Models and simulations whose programs passed before are
/// left out, unless it is to be `again`.
///
/// # Errors
/// One sentence if a test failed, or if CI lacks a tool.
pub fn test(again: bool) -> Result<(), String> {
    let has_all_tools = tools::ensure()?;
    let parts = if has_all_tools { vec![models(again), counted()] } else { vec![models(again)] };
    let others = std::thread::spawn(|| beside(parts));
    let mut rows = vec![run_part(whole(has_all_tools, again), &mut std::io::stdout())?];
    let (beside, output) = others.join().map_err(|_| "the thread that runs the other parts panicked")??;
    if has_all_tools {
        // The first part has built the server.
        let start = Instant::now();
        let (passed, failed) = suites::short(&target().join("debug/mqfq"))?;
        let counts = Counts { passed, failed, broken: failed > 0, ..Counts::default() };
        rows.push(("other projects' clients", counts, start.elapsed()));
    }
    std::io::stdout().write_all(&output).map_err(|error| format!("the output of parts: {error}"))?;
    rows.extend(beside);
    let total = rows.iter().fold(Counts::default(), |total, (_, counts, _)| total.plus(*counts));
    println!();
    for (name, counts, took) in rows {
        let Counts { passed, failed, ignored, known, broken } = counts;
        let verdict = if broken { "FAILED" } else { "ok" };
        println!(
            "{name:<26} {passed:>5} passed {failed:>3} failed {ignored:>3} ignored {known:>3} known {:>4} s  {verdict}",
            took.as_secs()
        );
    }
    if !has_all_tools {
        println!("Tests that need a missing tool were skipped; the tools are named above.");
    }
    if total.known > 0 {
        println!(
            "{} simulations and models are known: the very program passed before. cargo xtask test --again runs them.",
            total.known
        );
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.broken {
        return Err("the suite failed".into());
    }
    Ok(())
}

/// `loom`: the model checks of sched, and of what blk builds on its atomics.
///
/// # Errors
/// One sentence if a model fails.
pub fn loom() -> Result<(), String> {
    run(&mut loom_command(&[]))
}

/// `fmt`: formats everything, or with `is_check` only looks whether it is formatted.
///
/// `cargo fmt` follows `mod` lines alone, and those of policies and front ends are made by the macros of their
/// registries.
///
/// # Errors
/// One sentence about the first command that fails.
pub fn fmt(is_check: bool) -> Result<(), String> {
    let mode = if is_check { vec!["--check"] } else { vec![] };
    run(cargo("fmt --all").args(mode.iter().flat_map(|mode| ["--", mode])))?;
    let mut files = Vec::new();
    for registered in ["front/src"].map(|folder| root().join(folder)) {
        let folders = std::fs::read_dir(&registered).map_err(|error| format!("{}: {error}", registered.display()))?;
        files.extend(folders.flatten().map(|folder| folder.path().join("mod.rs")).filter(|file| file.is_file()));
    }
    files.sort();
    run(command("rustfmt", mode).args(files.iter().filter_map(|file| file.strip_prefix(root()).ok())))
}

/// `tidy`: the rules that no compiler knows.
///
/// # Errors
/// One sentence if there are findings, after printing them.
pub fn tidy() -> Result<(), String> {
    eprintln!("$ cargo xtask tidy");
    let findings = tidy::check(&tidy::tree::Tree::read(root())?);
    findings.iter().for_each(|finding| println!("{finding}"));
    match findings.len() {
        0 => Ok(()),
        count => Err(format!("tidy has {count} findings")),
    }
}

/// `checks`: what CI demands besides tests.
///
/// # Errors
/// One sentence about the first check that fails.
pub fn checks() -> Result<(), String> {
    fmt(true)?;
    tidy()?;
    licences::check()?;
    // Advisories come over the network, and one that is new is no fault of the change: the package asks for them.
    if !release::deny(false)? {
        eprintln!("left out: texts of licences, by cargo-deny (cargo xtask tools)");
    }
    run(&mut cargo("clippy --workspace --all-targets --locked -- -D warnings"))?;
    // Private items are documented for developers, so a link to one leads somewhere.
    let mut doc = cargo("doc --workspace --no-deps --document-private-items --locked");
    run(doc.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"))?;
    // The pure half of blk must build without the ring: it is what a simulator uses.
    run(&mut cargo("clippy -p mqfq-blk --no-default-features --locked -- -D warnings"))?;
    // The core as its users take it, the door alone, with the library of the system and without.
    run(&mut cargo("clippy -p mqfq-sched --locked -- -D warnings"))?;
    run(&mut cargo("clippy -p mqfq-sched --no-default-features --locked -- -D warnings"))?;
    // The demo is the build without TLS.
    run(&mut cargo("clippy -p mqfq-demo --locked -- -D warnings"))?;
    // A workspace of its own, which nothing else builds: do the fuzz targets still fit the code? Most libraries of
    // others have been checked above.
    let mut fuzz = cargo("check --manifest-path fuzz/Cargo.toml --locked --features trace");
    run(fuzz.arg("--target-dir").arg(target()))?;
    let mut loom = cargo("clippy -p mqfq-sched -p mqfq-policies -p mqfq-blk --features mqfq-sched/models");
    loom.args(["--lib", "--profile", "test", "--locked"]);
    loom.arg("--target-dir").arg(target().join("loom")).args(["--", "-D", "warnings"]);
    run(loom.env("RUSTFLAGS", "--cfg mqfq_loom"))
}

/// `smoke`: the demo, as a user runs it; its report must be one JSON object with all scenarios.
///
/// # Errors
/// One sentence if the demo fails or reports something else.
pub fn smoke() -> Result<(), String> {
    let mut demo = cargo("run --release --locked -p mqfq-demo");
    demo.args(["--", "--json", "--out"]).arg(target().join("demo"));
    eprintln!("$ {}", shown(&demo));
    let start = Instant::now();
    let output = demo.stderr(Stdio::inherit()).output().map_err(|error| format!("the demo: {error}"))?;
    if !output.status.success() {
        return Err(format!("the demo failed ({})", output.status));
    }
    let report: serde_json::Value = last_object(&String::from_utf8_lossy(&output.stdout))?;
    let mut seen = 0;
    for scenario in report["scenarios"].as_array().into_iter().flatten() {
        for policy in scenario["policies"].as_array().into_iter().flatten() {
            let name = |value: &serde_json::Value| value.as_str().unwrap_or("?").to_string();
            print!("{:<10} {:<12}", name(&scenario["scenario"]), name(&policy["policy"]));
            for tenant in policy["tenants"].as_array().into_iter().flatten() {
                let slowdown = tenant["slowdown"].as_f64().ok_or("a tenant of the demo's report has no slowdown")?;
                print!("  {} slowed {slowdown:.2} times", name(&tenant["name"]));
                seen += 1;
            }
            println!();
        }
    }
    if let Some(sentence) = report["machine_limits"].as_str() {
        println!("{sentence}");
    }
    println!("the demo took {} s, build included", start.elapsed().as_secs());
    // Three scenarios, two policies, two tenants at least.
    if seen < 12 { Err(format!("the demo reported on {seen} tenants, 12 at least are expected")) } else { Ok(()) }
}

/// The JSON object that the output ends with.
fn last_object(output: &str) -> Result<serde_json::Value, String> {
    let start = output.find('{').ok_or("the demo printed no JSON object")?;
    serde_json::from_str(&output[start..]).map_err(|error| format!("the demo's report is not one JSON object: {error}"))
}

/// `ci`: what `.ci/run` runs.
///
/// # Errors
/// One sentence about the first part that fails.
pub fn ci() -> Result<(), String> {
    checks()?;
    smoke()?;
    test(false)
}

/// `kill-test`: kills a server under load and looks for acknowledged bytes and requests, `rounds` times, over a front
/// end. Over nbd it is the built binary; over vhost-user an engine with the front end in a process of its own, which
/// the front end's test starts; over ublk the built binary in a guest's kernel, under two file systems.
///
/// # Errors
/// One sentence if something was lost, or if there is no such front end.
pub fn kill_test(rounds: u32, front: &str) -> Result<(), String> {
    let start = Instant::now();
    let mut kill = match front {
        "nbd" => {
            let test = "test -p mqfq --release --test e2e -- --ignored --nocapture --exact kill::kill_nine_many_times";
            cargo(test)
        }
        "vhost-user" => cargo("test -p mqfq-front --release --test all -- --nocapture kill::"),
        "ublk" => {
            let options = guest::Options { case: Some("ublk-kills"), kills: Some(rounds), ..guest::Options::default() };
            return guest::guest(&options);
        }
        _ => return Err(format!("--front {front} has no kill test, allowed are nbd, vhost-user and ublk")),
    };
    run(kill.env("MQFQ_KILL_ROUNDS", rounds.to_string()))?;
    println!("{rounds} rounds over {front}, {} s, build included", start.elapsed().as_secs());
    Ok(())
}

/// `histories`: generated histories of `steps` steps, held against the oracle, from seed `seed` on.
///
/// # Errors
/// One sentence if a history fails; the test has printed its seed.
pub fn histories(steps: u64, seed: u64) -> Result<(), String> {
    let mut histories = cargo("test -p mqfq-sched --release --test all -- --ignored --nocapture --exact");
    histories.arg("histories::as_many_steps_as_asked_for");
    histories.env("MQFQ_HISTORY_STEPS", steps.to_string()).env("MQFQ_HISTORY_SEED", seed.to_string());
    let start = Instant::now();
    run(&mut histories)?;
    println!("{} s, build included", start.elapsed().as_secs());
    Ok(())
}

/// Tests that miri can finish: the sequential ones, less those that draw thousands of cases, and the real threads.
const TESTS_FOR_MIRI: [&str; 2] = [
    "--lib -- flow::account:: mindicator:: ready_set:: stage_queue:: throttle_wheel:: token_tree:: wake:: vtime:: cost:: \
     --skip agrees --skip conserved --skip carry_survives --skip always_woken",
    "--test all -- stress::",
];

/// `miri`: the tests of sched that are short enough for it, in the interpreter that finds undefined behaviour and data
/// races.
///
/// Sched has no `unsafe` of its own; this looks at what the standard library does for it. Weak memory is emulated, and
/// threads change at random: two threads that sleep and wake each other run as well. Needs a nightly toolchain with
/// miri.
///
/// # Errors
/// One sentence if miri is missing or a test fails.
pub fn miri() -> Result<(), String> {
    let has_tool = Command::new("cargo").args(["+nightly", "miri", "--version"]).output();
    if !has_tool.is_ok_and(|output| output.status.success()) {
        return Err("miri is missing: rustup toolchain install nightly --component miri,rust-src".into());
    }
    let run_miri = |words: &&str| {
        let mut tests = cargo("+nightly miri test -p mqfq-sched -p mqfq-policies --target-dir");
        tests.arg(target().join("miri")).args(words.split_whitespace());
        // The generators of proptest read their settings from the environment and draw far more cases than an
        // interpreter can run.
        tests.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", "2");
        run(&mut tests)
    };
    TESTS_FOR_MIRI.iter().try_for_each(run_miri)
}

/// `sanitize`: the tests of blk, where the `unsafe` code of the data path is, under AddressSanitizer, or, with
/// `is_thread`, those of blk and sched under ThreadSanitizer.
///
/// The pinned compiler has both behind an unstable flag, hence `RUSTC_BOOTSTRAP`; `--target` keeps build scripts out of
/// it. Leaks are not reported: memory that the kernel may still write to is leaked on purpose (`ring.rs`,
/// `file/queue.rs`).
///
/// For threads the standard library is built too, or each Mutex looks like none; that needs its source
/// (`rustup component add rust-src`). Fences are not understood: loom checks those.
///
/// # Errors
/// One sentence if a test fails or the sanitizer reports.
pub fn sanitize(is_thread: bool) -> Result<(), String> {
    let (name, crates, more) = if is_thread {
        ("thread", "-p mqfq-blk -p mqfq-sched -p mqfq-policies", " -Zbuild-std")
    } else {
        ("address", "-p mqfq-blk", "")
    };
    let mut tests = cargo(&format!("test{more} {crates} --lib --tests --no-fail-fast --target"));
    tests.arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    tests.arg("--target-dir").arg(target().join(if is_thread { "tsan" } else { "sanitize" }));
    tests.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", format!("-Zsanitizer={name}"));
    run(tests.env("ASAN_OPTIONS", "detect_leaks=0"))
}

/// `fuzz`: runs a fuzz target for a while. Needs the tool `cargo-fuzz`.
///
/// # Errors
/// One sentence if the tool is missing or an input crashes the target.
pub fn fuzz(target: &str, limit: Duration) -> Result<(), String> {
    let has_tool =
        Command::new("cargo").args(["fuzz", "--version"]).output().is_ok_and(|output| output.status.success());
    if !has_tool {
        return Err("cargo-fuzz is missing: cargo xtask tools".into());
    }
    unpack_corpora()?;
    let mut fuzz = command("cargo", ["fuzz", "run", "-s", "none"]);
    // fuzz/Cargo.toml says why.
    fuzz.args(if target == "trace_reader" { &["--release", "--features", "trace"][..] } else { &[] });
    fuzz.args([target, "--"]).current_dir(root().join("fuzz"));
    // cargo-fuzz asks for flags that the pinned compiler has behind an unstable switch.
    run(fuzz.arg(format!("-max_total_time={}", limit.as_secs())).env("RUSTC_BOOTSTRAP", "1"))
}

/// Unpacks the inputs of all fuzz targets to `fuzz/corpus`, unless they are there.
fn unpack_corpora() -> Result<(), String> {
    let corpora = root().join("fuzz/corpus");
    if corpora.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(&corpora).map_err(|error| format!("{}: {error}", corpora.display()))?;
    run(command("tar", ["-xzf"]).arg(root().join("fuzz/corpora.tar.gz")).arg("-C").arg(&corpora))
}

/// `fuzz --keep`: packs the inputs of all targets, as they lie unpacked, into the archive that is committed. Equal
/// inputs give equal bytes.
///
/// # Errors
/// One sentence if tar fails.
pub fn keep_corpora() -> Result<(), String> {
    unpack_corpora()?;
    let stable = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"];
    let mut tar = command("tar", stable);
    tar.args(["-I", "gzip -9n", "-cf"]).arg(root().join("fuzz/corpora.tar.gz"));
    run(tar.arg("-C").arg(root().join("fuzz/corpus")).arg("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The simulator's figures must not depend on how it was built: it and its copies of the source assert nothing.
    #[test]
    fn every_crate_but_the_simulator_asserts_in_the_suite() {
        let (_, whole) = whole(false, true);
        let shown = shown(&whole);
        assert!(shown.contains("--workspace") && !shown.contains("--release"), "{shown}");
        let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("a checkout");
        let of_suite = manifest.split("\n[").filter(|table| table.starts_with("profile.dev"));
        let without = of_suite.filter(|table| table.contains("debug-assertions = false"));
        let tables: Vec<_> = without.map(|table| table.split(']').next().expect("a name")).collect();
        let name = |package: &str| format!("profile.dev.package.mqfq-{package}");
        assert_eq!(tables, ["policies-watched", "sched-watched", "blk-watched", "blkmq-watched", "sim"].map(name));
    }

    #[test]
    fn the_report_is_found_behind_other_output_and_must_be_whole() {
        assert_eq!(last_object("picture: a.svg\n{\"a\":1}\n").expect("an object")["a"], 1);
        assert!(last_object("nothing").is_err());
        assert!(last_object("{\"a\":1} trailing").is_err());
    }
}
