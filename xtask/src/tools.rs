//! The programs that the end-to-end tests drive us with, none of them ours: what is missing, and how to get it.

use crate::release;
use crate::run::{command, run};
use std::process::{Command, Stdio};

/// A program that tests need.
struct Tool {
    /// Its name, or that of what is looked for.
    name: &'static str,
    /// The Debian package that brings it.
    package: &'static str,
    /// Work that is skipped without it.
    skipped: &'static str,
    /// A command that succeeds where the tool works.
    probe: &'static [&'static str],
}

/// All of them. Versions are Debian 12's; newer ones work as well.
const TOOLS: &[Tool] = &[
    Tool {
        name: "fio",
        package: "fio",
        skipped: "shares under load, verified random writes",
        probe: &["fio", "--version"],
    },
    Tool {
        name: "nbdinfo",
        package: "libnbd-bin",
        skipped: "what an export says of itself",
        probe: &["nbdinfo", "--version"],
    },
    Tool {
        name: "nbdcopy",
        package: "libnbd-bin",
        skipped: "copies in both directions",
        probe: &["nbdcopy", "--version"],
    },
    Tool {
        name: "nbdsh",
        package: "python3-libnbd",
        skipped: "every path of the negotiation",
        probe: &["nbdsh", "-c", "h.get_handle_name()"],
    },
    Tool {
        name: "nbdkit",
        package: "nbdkit",
        skipped: "our client against another server, and the comparison",
        probe: &["nbdkit", "--version"],
    },
    Tool {
        name: "nbdkit-filter.h",
        package: "nbdkit-plugin-dev",
        skipped: "shares by the filter of libmqfq in nbdkit",
        probe: &["test", "-e", "/usr/include/nbdkit-filter.h"],
    },
    Tool {
        name: "qemu-img",
        package: "qemu-utils",
        skipped: "convert, compare, reconnect",
        probe: &["qemu-img", "--version"],
    },
    Tool {
        name: "qemu-io",
        package: "qemu-utils",
        skipped: "read, write, flush, discard, zero",
        probe: &["qemu-io", "--version"],
    },
    Tool {
        name: "qemu-storage-daemon",
        package: "qemu-system-common",
        skipped: "the comparison with another server, reconnect under TLS, a file system that does not answer",
        probe: &["qemu-storage-daemon", "--version"],
    },
    Tool {
        name: "qemu-system-x86_64",
        package: "qemu-system-x86",
        skipped: "firmware that boots from a disk",
        probe: &["qemu-system-x86_64", "--version"],
    },
    Tool {
        name: "promtool",
        package: "prometheus",
        skipped: "alert rules against cases",
        probe: &["promtool", "--version"],
    },
    Tool { name: "chromium", package: "chromium", skipped: "the page in a browser", probe: &["chromium", "--version"] },
    Tool {
        name: "curl",
        package: "curl",
        skipped: "the control plane as another client sees it",
        probe: &["curl", "--version"],
    },
    Tool {
        name: "valgrind",
        package: "valgrind",
        skipped: "instructions per request of each policy",
        // The profile is not needed and would be left in the working folder.
        probe: &["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "true"],
    },
];

/// The system's folders first: nbdsh runs whichever `python3` comes first, and only the system's has its module. The
/// tests look for tools in the same order.
fn path() -> String {
    format!("/usr/bin:/bin:{}", std::env::var("PATH").unwrap_or_default())
}

fn succeeds(words: &[&str]) -> bool {
    let mut probe = Command::new(words[0]);
    probe.env("PATH", path());
    probe.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

fn missing() -> Vec<&'static Tool> {
    TOOLS.iter().filter(|tool| !succeeds(tool.probe)).collect()
}

/// Tests run under CI, where nothing may be skipped.
pub fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false" && value != "0")
}

/// Installs what is missing where that is allowed (root, and a system with apt), and names what still is.
/// Returns true if everything is there.
///
/// # Errors
/// One sentence in CI if a tool is missing and cannot be installed.
pub fn ensure() -> Result<bool, String> {
    let absent = missing();
    if absent.is_empty() {
        return Ok(true);
    }
    let names = |tools: &[&Tool]| tools.iter().map(|tool| tool.name).collect::<Vec<_>>().join(", ");
    eprintln!("test tools that are missing: {}", names(&absent));
    if is_root()
        && succeeds(&["apt-get", "--version"])
        && let Err(error) = install(&absent)
    {
        eprintln!("they could not be installed: {error}");
    }
    let absent = missing();
    if absent.is_empty() {
        return Ok(true);
    }
    if in_ci() {
        return Err(format!("CI skips nothing, and these tools are missing: {}", names(&absent)));
    }
    eprintln!("Skipped for want of a tool:");
    for tool in &absent {
        eprintln!("  {:<20} {} (package {})", tool.name, tool.skipped, tool.package);
    }
    let mut packages: Vec<&str> = absent.iter().map(|tool| tool.package).collect();
    packages.dedup();
    eprintln!("To run them too: sudo apt-get install --no-install-recommends {}", packages.join(" "));
    Ok(false)
}

/// Commands of cargo that chores need, with the versions that they were tried with; [`release::TOOLS`] are more.
const CARGO_TOOLS: &[(&str, &str)] = &[("fuzz", "0.13.2")];

/// `tools`: all that tests and chores need besides Rust, as far as it can be installed.
///
/// # Errors
/// One sentence about the first command of cargo that cannot be installed, or as [`ensure`].
pub fn tools() -> Result<(), String> {
    for (name, version) in CARGO_TOOLS.iter().chain(&release::TOOLS) {
        if !succeeds(&["cargo", name, "--version"]) {
            let package = format!("cargo-{name}");
            run(&mut command("cargo", ["install", "--locked", "--version", version, &package]))?;
        }
    }
    ensure().map(drop)
}

/// Sees to programs that a chore needs, each with the Debian package that brings it: installs what is missing where
/// that is allowed.
///
/// # Errors
/// One sentence if some are missing then.
pub fn ensure_programs(programs: &[(&str, &str)]) -> Result<(), String> {
    let path = path() + ":/usr/sbin:/sbin";
    let is_there = |name: &str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    let absent = || programs.iter().filter(|(name, _)| !is_there(name)).copied().collect::<Vec<_>>();
    let missing = absent();
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    if is_root()
        && succeeds(&["apt-get", "--version"])
        && let Err(error) = install_packages(&packages)
    {
        eprintln!("{error}");
    }
    let missing = absent();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    Err(format!("missing: {names} (sudo apt-get install --no-install-recommends {})", packages.join(" ")))
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn install(tools: &[&Tool]) -> Result<(), String> {
    let mut packages: Vec<&str> = tools.iter().map(|tool| tool.package).collect();
    packages.dedup();
    install_packages(&packages)
}

/// Installs packages of the system's distribution; only root can.
///
/// # Errors
/// One sentence if apt fails.
pub fn install_packages(packages: &[&str]) -> Result<(), String> {
    let apt = |words: &[&str]| {
        let mut apt = command("apt-get", words);
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        run(&mut apt)
    };
    // A list that cannot be refreshed may still be good enough.
    if let Err(error) = apt(&["update", "-q"]) {
        eprintln!("{error}");
    }
    let mut words = vec!["install", "-y", "-q", "--no-install-recommends"];
    words.extend(packages);
    apt(&words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::Tree;
    use std::collections::BTreeSet;

    #[test]
    fn a_probe_tells_a_tool_that_works_from_one_that_does_not() {
        assert!(succeeds(&["true"]));
        assert!(!succeeds(&["false"]), "there, and does not work");
        assert!(!succeeds(&["a-tool-that-nobody-has"]));
    }

    /// A machine that has a tool by chance says nothing about one that has only its base system.
    #[test]
    fn every_tool_that_a_test_demands_is_installed_before_it() {
        /// In packages that no Debian is without.
        const BASE: [&str; 4] = ["cmp", "ldd", "losetup", "setpriv"];
        let tree = Tree::read(crate::run::root()).unwrap();
        let mut demanded = BTreeSet::new();
        for file in tree.files.iter().filter(|file| file.path.ends_with(".rs")) {
            for (at, start) in ["need!(", "tools::require("].iter().flat_map(|call| file.text.match_indices(call)) {
                let rest = &file.text[at + start.len()..];
                let arguments = rest.split(')').next().unwrap_or("");
                let names = arguments.split(',').map(str::trim);
                demanded.extend(names.filter_map(|name| name.strip_prefix('"')?.strip_suffix('"')));
            }
        }
        assert!(demanded.len() > 5, "{demanded:?}");
        let is_known = |name: &&str| BASE.contains(name) || TOOLS.iter().any(|tool| tool.name == *name);
        let unknown: Vec<&str> = demanded.into_iter().filter(|name| !is_known(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?} are in no package of TOOLS");
    }
}
