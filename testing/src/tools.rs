//! Foreign tools: found or skipped, run with a deadline, and their output.

use std::path::Path;
use std::process::{Command, Output};

/// True if `tool` is installed. If it is not: says so, and fails where nothing may be skipped.
pub fn require(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    is_there(tool, std::env::split_paths(&path).any(|folder| folder.join(tool).is_file()))
}

/// As [`require`], of a file that a package brings.
pub fn require_file(path: &str) -> bool {
    is_there(path, Path::new(path).is_file())
}

fn is_there(tool: &str, is_there: bool) -> bool {
    if is_there {
        return true;
    }
    let demanded = |name: &str, value: &str| std::env::var(name).is_ok_and(|set| set == value);
    let must = demanded("CI", "true") || demanded("MQFQ_REQUIRE_TOOLS", "1");
    assert!(!must, "{tool} is not installed, and nothing may be skipped here (cargo xtask test installs it)");
    println!("skipped: {tool} is not installed");
    false
}

/// Returns from the test if one of the tools is missing.
#[macro_export]
macro_rules! need {
    ($($tool:literal),+) => {
        $(if !$crate::tools::require($tool) {
            return;
        })+
    };
}
pub use need;

/// Runs `tool`, but not longer than two minutes: a server that never answers must fail a test, not hang it.
///
/// The distribution's folders come first on its PATH: its nbdsh imports a module that only its own Python has.
pub fn run(tool: &str, args: &[&str]) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("timeout");
    command.env("PATH", format!("/usr/bin:/bin:{path}")).arg("120").arg(tool).args(args);
    command.output().unwrap_or_else(|error| panic!("cannot run {tool}: {error}"))
}

/// Runs `tool`, which must succeed, and returns its stdout.
pub fn run_ok(tool: &str, args: &[&str]) -> String {
    let output = run(tool, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{tool} {args:?} ended with {}\nstdout: {}\nstderr: {}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// The URI of an export on a unix socket, as libnbd and QEMU write it.
pub fn uri(socket: &Path, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}
