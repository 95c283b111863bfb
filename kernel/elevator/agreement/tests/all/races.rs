//! Real threads on the C core, plain and under the compiler's race detector: no wake-up and no token is lost.

use std::path::{Path, PathBuf};
use std::process::Command;

const CORE: &[&str] =
    &["flow", "process", "stage_queue", "mindicator", "token_tree", "ready_set", "throttle_wheel", "scheduler"];

/// The race detector. It does not know fences; what they order here is atomic on both sides.
const WATCHED: &[&str] = &["-fsanitize=thread", "-Wno-tsan"];

fn build(source: &str, flags: &[&str], name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"]).arg(here.join(".."));
    gcc.args(flags).arg(here.join(source));
    gcc.args(CORE.iter().map(|name| here.join(format!("../{name}.c")))).arg("-o").arg(&program);
    assert!(gcc.status().expect("gcc runs").success(), "gcc {flags:?}");
    program
}

fn run(program: &Path, rounds: u32) {
    let soak: u32 = std::env::var("MQFQ_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    let mut command = Command::new(program);
    // Addresses that the detector expects.
    if let Ok(setarch) = Command::new("setarch").args(["-R", "true"]).status()
        && setarch.success()
    {
        command = Command::new("setarch");
        command.arg("-R").arg(program);
    }
    let output = command.arg((rounds * soak).to_string()).output().expect("it runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
}

#[test]
fn threads_lose_no_wake_up_and_no_token() {
    run(&build("races.c", &[], "races"), 2000);
}

#[test]
fn the_race_detector_has_nothing_to_say() {
    run(&build("races.c", WATCHED, "races-watched"), 100);
}

#[test]
fn a_process_has_one_slot_and_keeps_it_while_it_has_requests() {
    run(&build("slots.c", &[], "slots"), 100);
    run(&build("slots.c", WATCHED, "slots-watched"), 5);
}
