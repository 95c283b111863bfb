//! The one binary. What it does stands in its library (`lib.rs`).

use std::process::ExitCode;

fn main() -> ExitCode {
    mqfq_daemon::main()
}
