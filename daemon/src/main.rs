//! The one binary. Its work is in the library (`lib.rs`).

use std::process::ExitCode;

fn main() -> ExitCode {
    mqfq_daemon::main()
}
