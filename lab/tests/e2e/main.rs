//! End to end: the laboratory's binary, its reports, and what they promise.

mod bench;
#[allow(dead_code, reason = "the daemon's tests use the rest")]
#[path = "../../../daemon/tests/e2e/checksums.rs"]
mod checksums;
#[allow(dead_code, reason = "the daemon's tests use the rest")]
#[path = "../../../daemon/tests/e2e/client.rs"]
mod client;
mod served;
#[allow(dead_code, reason = "the daemon's tests use the rest")]
#[path = "../../../daemon/tests/e2e/server.rs"]
mod server;
mod sim;

use serde_json::Value;
use std::process::{Command, Output};

/// `mqfq-lab` with these arguments, to its end.
fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mqfq-lab")).args(args).output().expect("the binary is built")
}

/// The one JSON object that it must print.
fn report(args: &[&str]) -> Value {
    let output = lab(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "mqfq-lab {args:?} ended with {}: {stderr}", output.status);
    let stdout = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    assert_eq!(stdout.lines().count(), 1, "one object, one line");
    serde_json::from_str(&stdout).expect("it is JSON")
}
