//! End to end: the laboratory's binary, its reports, and what they promise.

mod bound;
mod cost;
mod schedulers;
mod sim;

use std::process::{Command, Output};

/// `mqfq-lab` with these arguments, to its end.
fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mqfq-lab")).args(args).output().expect("the binary is built")
}
