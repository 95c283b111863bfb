//! Suites that come as source packages of Debian: libnbd, nbd, QEMU.
//!
//! Sources are fetched into `target/suites` with lists of their own, so that the machine's apt stays as it is.

use super::{Outcome, Server, Suite};
use crate::run::{command, output, run};
use crate::tools;
use mqfq_testing::arg;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs and libraries that the builds need: what shows that one is there, and its package.
const BUILD_PROGRAMS: &[(&str, &str)] = &[
    ("dpkg-source", "dpkg-dev"),
    ("make", "make"),
    ("cc", "gcc"),
    ("bison", "bison"),
    ("flex", "flex"),
    ("pkg-config", "pkg-config"),
    ("certtool", "gnutls-bin"),
    ("nbd-server", "nbd-server"),
    ("qemu-system-x86_64", "qemu-system-x86"),
];
const BUILD_LIBRARIES: &[(&str, &str)] =
    &[("gnutls", "libgnutls28-dev"), ("libxml-2.0", "libxml2-dev"), ("glib-2.0", "libglib2.0-dev")];

fn ensure() -> Result<(), String> {
    tools::ensure_programs(BUILD_PROGRAMS)?;
    let is_there = |name: &str| Command::new("pkg-config").args(["--exists", name]).status().is_ok_and(|s| s.success());
    let missing: Vec<&str> =
        BUILD_LIBRARIES.iter().filter(|(name, _)| !is_there(name)).map(|(_, package)| *package).collect();
    if missing.is_empty() { Ok(()) } else { tools::install_packages(&missing) }
}

/// The unpacked source of `package` of a Debian release, below `work`.
fn source(work: &Path, package: &str, release: &str) -> Result<PathBuf, String> {
    ensure()?;
    let folder = work.join(format!("{package}-{release}"));
    if folder.join("unpacked").exists() {
        return Ok(folder.join("source"));
    }
    let broken = |error: std::io::Error| format!("{}: {error}", folder.display());
    for name in ["lists/partial", "cache", "sources.list.d"] {
        fs::create_dir_all(folder.join(name)).map_err(broken)?;
    }
    let list = format!(
        "Types: deb-src\nURIs: http://deb.debian.org/debian\nSuites: {release}\nComponents: main\n\
         Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    );
    fs::write(folder.join("sources.list.d/debian.sources"), list).map_err(broken)?;
    let settings = [
        ("Dir::Etc::sourcelist", "/dev/null".to_string()),
        ("Dir::Etc::sourceparts", folder.join("sources.list.d").display().to_string()),
        ("Dir::State::lists", folder.join("lists").display().to_string()),
        ("Dir::Cache", folder.join("cache").display().to_string()),
    ];
    let apt = |words: &[&str]| {
        let mut apt = command("apt-get", ["-q"]);
        apt.args(settings.iter().flat_map(|(name, value)| ["-o".to_string(), format!("{name}={value}")]));
        apt.args(words).current_dir(&folder).stdout(std::io::stderr());
        apt
    };
    run(&mut apt(&["update"]))?;
    run(&mut apt(&["source", "--download-only", package]))?;
    let files = fs::read_dir(&folder).map_err(broken)?.flatten().map(|entry| entry.path());
    let dsc = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "dsc"));
    let dsc = dsc.ok_or_else(|| format!("{}: apt-get brought no .dsc", folder.display()))?;
    let _ = fs::remove_dir_all(folder.join("source"));
    let mut unpack = command("dpkg-source", ["--no-check", "-x", arg(&dsc), arg(&folder.join("source"))]);
    run(unpack.stdout(std::io::stderr()))?;
    fs::write(folder.join("unpacked"), "").map_err(broken)?;
    Ok(folder.join("source"))
}

/// `program` in `folder`, its output in `log` there; the stand-ins come first in its `PATH`.
fn build(folder: &Path, scripts: &Path, log: &str, words: &[&str]) -> Result<(), String> {
    let path = folder.join(log);
    let file = fs::File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let again = file.try_clone().map_err(|error| format!("{}: {error}", path.display()))?;
    let mut command = command(words[0], &words[1..]);
    command.current_dir(folder).stdout(file).stderr(again);
    // The system's Python, and stand-ins where a configure script looks for the servers.
    command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", scripts.display()));
    run(&mut command).map_err(|error| format!("{error}; see {}", path.display()))
}

fn number_of_cores() -> String {
    std::thread::available_parallelism().map_or(1, usize::from).to_string()
}

/// libnbd's tests, of the newest stable release of Debian, over the server that they start as `nbdkit`.
pub struct Libnbd {
    folder: PathBuf,
}

const LIBNBD_FOLDERS: &[&str] = &["tests", "info", "copy", "interop"];

impl Libnbd {
    pub fn build(work: &Path, scripts: &Path) -> Result<Libnbd, String> {
        let folder = source(work, "libnbd", "trixie")?;
        if !folder.join("built").exists() {
            let cores = number_of_cores();
            let without = ["ocaml", "golang", "rust", "python", "fuse", "ublk"].map(|part| format!("--disable-{part}"));
            let mut words = vec!["./configure"];
            words.extend(without.iter().map(String::as_str));
            build(&folder, scripts, "configure.log", &words)?;
            build(&folder, scripts, "make.log", &["make", "-j", &cores])?;
            for part in LIBNBD_FOLDERS {
                build(
                    &folder,
                    scripts,
                    &format!("{part}.log"),
                    &["make", "-j", &cores, "-C", part, "check", "TESTS="],
                )?;
            }
            fs::write(folder.join("built"), "").map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        Ok(Libnbd { folder })
    }
}

impl Suite for Libnbd {
    fn name(&self) -> &'static str {
        "libnbd"
    }

    fn cases(&self) -> Result<Vec<String>, String> {
        let mut cases = Vec::new();
        for part in LIBNBD_FOLDERS {
            let words = ["-s", "-C", part, "--eval", "list-tests: ; @echo $(TESTS)", "list-tests"];
            let list = output(command("make", words).current_dir(&self.folder))?;
            cases.extend(list.split_whitespace().map(|test| format!("{part}/{test}")));
        }
        Ok(cases)
    }

    fn run(&self, case: &str, server: &Server) -> Result<Outcome, String> {
        let (part, test) = case.split_once('/').ok_or("a case is FOLDER/TEST")?;
        let folder = self.folder.join(part);
        let result = folder.join(format!("{test}.trs"));
        let _ = fs::remove_file(&result);
        let mut make = server.command("make")?;
        make.args(["-s", "check", &format!("TESTS={test}"), "VERBOSE=1"]).current_dir(&folder);
        server.succeeds(&mut make)?;
        let text = fs::read_to_string(&result).unwrap_or_default();
        let verdict = text.lines().find_map(|line| line.strip_prefix(":test-result: ")).unwrap_or("FAIL");
        Ok(match verdict.split_whitespace().next() {
            Some("PASS" | "XFAIL") => Outcome::Passed,
            Some("SKIP") => Outcome::Skipped,
            _ => Outcome::Failed,
        })
    }
}

/// nbd's own tester, of the newest stable release of Debian, over `nbd-server`.
pub struct NbdTester {
    folder: PathBuf,
}

/// Modes of `simple_test`; those of trees, lists, inetd and copies on write are the suite's own server's alone.
const NBD_MODES: &[&str] = &[
    "cfg1",
    "cfgnew",
    "cfgsize",
    "write",
    "flush",
    "integrity",
    "integrityhuge",
    "rowrite",
    "unix",
    "handshake",
    "tls",
    "tlshuge",
    "tlswrongcert",
    "cfgmulti",
    "dirconfig",
    "list",
    "tree",
    "rotree",
    "inetd",
];

impl NbdTester {
    pub fn build(work: &Path, scripts: &Path) -> Result<NbdTester, String> {
        let folder = source(work, "nbd", "trixie")?;
        if !folder.join("built").exists() {
            build(&folder, scripts, "configure.log", &["./configure", "--without-libnl"])?;
            // Debian's patches are newer than the generated files, which need not be made again.
            let as_is = ["AUTOMAKE=:", "ACLOCAL=:", "AUTOCONF=:", "AUTOHEADER=:"];
            let words = [&["make", "-C", "tests/run", "nbd-tester-client"][..], &as_is].concat();
            build(&folder, scripts, "make.log", &words)?;
            // The suite's key has 2432 bits, a size that rustls does not take; the suite's authority signs another one.
            let certs = folder.join("tests/run/certs");
            let key = [
                "certtool",
                "--generate-privkey",
                "--key-type",
                "rsa",
                "--bits",
                "3072",
                "--outfile",
                "server-key.pem",
            ];
            build(&certs, scripts, "key.log", &key)?;
            let sign = [
                &[
                    "certtool",
                    "--generate-certificate",
                    "--load-privkey",
                    "server-key.pem",
                    "--template",
                    "server.info",
                ][..],
                &[
                    "--load-ca-certificate",
                    "ca-cert.pem",
                    "--load-ca-privkey",
                    "ca-key.pem",
                    "--outfile",
                    "server-cert.pem",
                ],
            ];
            build(&certs, scripts, "certificate.log", &sign.concat())?;
            fs::write(folder.join("built"), "").map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        // The tests start the server by this path.
        let link = folder.join("nbd-server");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(scripts.join("nbd-server"), &link)
            .map_err(|error| format!("{}: {error}", link.display()))?;
        Ok(NbdTester { folder })
    }
}

impl Suite for NbdTester {
    fn name(&self) -> &'static str {
        "nbd-tester"
    }

    fn cases(&self) -> Result<Vec<String>, String> {
        Ok(NBD_MODES.iter().map(|mode| mode.to_string()).collect())
    }

    fn run(&self, case: &str, server: &Server) -> Result<Outcome, String> {
        let mut test = server.command("./simple_test")?;
        test.arg(format!("./{case}")).current_dir(self.folder.join("tests/run"));
        Ok(if server.succeeds(&mut test)? { Outcome::Passed } else { Outcome::Failed })
    }
}

/// QEMU's iotests of the installed release, raw images over NBD, over `qemu-nbd`.
pub struct IoTests {
    folder: PathBuf,
    scripts: PathBuf,
}

impl IoTests {
    pub fn unpack(work: &Path, scripts: &Path) -> Result<IoTests, String> {
        let version = output(&mut command("qemu-img", ["--version"]))?;
        let release = if version.contains("version 7.2") { "bookworm" } else { "trixie" };
        let folder = source(work, "qemu", release)?.join("tests/qemu-iotests");
        Ok(IoTests { folder, scripts: scripts.into() })
    }
}

/// The test runs with raw images and with NBD as its own lines say: a shell script names both or `generic`; of the
/// Python ones those that name neither run in check's eyes and then leave themselves out.
fn is_for_raw_over_nbd(text: &str) -> bool {
    let names = |key: &str, own: &str| {
        let mut lines = text.lines().filter(|line| line.starts_with(key)).peekable();
        lines.peek().is_none() || lines.any(|line| line.split_whitespace().any(|word| word == own || word == "generic"))
    };
    names("_supported_fmt", "raw") && names("_supported_proto", "nbd") && !text.contains("_unsupported_proto nbd")
}

/// The installed programs, which the suite otherwise looks for in a build folder.
fn name_programs(check: &mut Command, scripts: &Path) {
    check.env("QEMU_NBD_PROG", scripts.join("qemu-nbd"));
    for (name, program) in [
        ("QEMU_PROG", "qemu-system-x86_64"),
        ("QEMU_IMG_PROG", "qemu-img"),
        ("QEMU_IO_PROG", "qemu-io"),
        ("QSD_PROG", "qemu-storage-daemon"),
    ] {
        check.env(name, Path::new("/usr/bin").join(program));
    }
}

impl Suite for IoTests {
    fn name(&self) -> &'static str {
        "iotests"
    }

    fn cases(&self) -> Result<Vec<String>, String> {
        let mut check = command("./check", ["-raw", "-nbd", "-n"]);
        name_programs(check.current_dir(&self.folder), &self.scripts);
        let list = output(&mut check)?;
        let names = list.split_whitespace().filter(|name| {
            let text = fs::read(self.folder.join(name)).unwrap_or_default();
            is_for_raw_over_nbd(&String::from_utf8_lossy(&text))
        });
        Ok(names.map(String::from).collect())
    }

    fn run(&self, case: &str, server: &Server) -> Result<Outcome, String> {
        let mut check = server.command("./check")?;
        check.args(["-raw", "-nbd", case]).current_dir(&self.folder);
        check.env("TEST_DIR", server.folder.join("scratch"));
        name_programs(&mut check, &self.scripts);
        let is_good = server.succeeds(&mut check)?;
        let log = server.log();
        Ok(if !is_good {
            Outcome::Failed
        } else if log.contains("not run") {
            Outcome::Skipped
        } else {
            Outcome::Passed
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_taken_if_it_names_raw_and_nbd_or_leaves_it_open() {
        assert!(is_for_raw_over_nbd("_supported_fmt raw\n_supported_proto file nbd\n"));
        assert!(is_for_raw_over_nbd("_supported_fmt generic\n_supported_proto generic\n"));
        assert!(is_for_raw_over_nbd("import iotests\n"));
        assert!(!is_for_raw_over_nbd("_supported_fmt qcow2\n_supported_proto nbd\n"));
        assert!(!is_for_raw_over_nbd("_supported_fmt raw\n_supported_proto file\n"));
        assert!(!is_for_raw_over_nbd("_supported_fmt raw\n_supported_proto generic\n_unsupported_proto nbd\n"));
    }
}
