//! `package`: builds the Debian package and tests it: by the checkers of Debian and systemd, and whether it installs,
//! serves a client of another project, and goes again, in a system that has nothing else.
//!
//! The system is made by mmdebstrap, which needs the network (or a mirror that apt knows) and root; without them that
//! step is left out, and said to be. Nothing of this machine is changed but `target`.

use crate::release;
use crate::run::{cargo, command, output, root, run, shown, target};
use mqfq_testing::guest::{build_module, cache};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Largest exposure of the unit in `systemd-analyze security`, in tenths: 0 is closed, 100 open.
const EXPOSURE_MAX_TENTHS: u32 = 20;

/// Debian release of the system that the package is installed in.
const SUITE: &str = "bookworm";

/// Tags of lintian that are meant: a first package has no bug in Debian to close, and its pages are Markdown.
const LINTIAN_SUPPRESSED: &str = "initial-upload-closes-no-bugs,no-changelog,debian-changelog-file-missing";

/// Series of kernels that the elevator is packed for.
const ELEVATOR_SERIES: [&str; 3] = ["6.1", "6.12", "7.2"];

/// Builds it and checks it. `as_built`: of the program that lies in `target/release`, however it was built.
///
/// # Errors
/// One sentence about the first step that fails, or about cargo-deb, which it cannot do without.
pub fn package(as_built: bool) -> Result<(), String> {
    if !is_there("cargo-deb", "--version") {
        return Err("cargo-deb is missing: cargo install cargo-deb --version 3.8.0 --locked (some minutes)".into());
    }
    let has_checked = release::deny(true)?;
    if !as_built {
        release::build(root(), &target())?;
    }
    let folder = target().join("package");
    pages(&folder)?;
    release::sbom()?;
    let deb = folder.join("mqfq.deb");
    let mut build = command("cargo-deb", ["-p", "mqfq", "--no-build", "--strip", "--locked", "--output"]);
    run(build.arg(&deb))?;
    run(command("dpkg-deb", ["--info"]).arg(&deb))?;
    run(command("dpkg-deb", ["--contents"]).arg(&deb))?;
    let unchecked = (!has_checked).then(|| "cargo-deny is missing: cargo xtask tools".to_owned());
    let other = as_built.then(|| "the release build: the package has the program as it was built before".to_owned());
    let checks =
        [lintian(&deb)?, unit(&folder, &deb)?, install(&folder, &deb)?, library(&folder)?, scheduler(&folder)?];
    let left_out = [other, unchecked].into_iter().chain(checks);
    println!("package: {}", deb.display());
    left_out.flatten().for_each(|what| println!("left out: {what}"));
    Ok(())
}

/// `package --library`: the package of libmqfq alone.
///
/// # Errors
/// One sentence about the first step that fails.
pub fn library_alone() -> Result<(), String> {
    let folder = target().join("package");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    library(&folder)?.into_iter().for_each(|what| println!("left out: {what}"));
    Ok(())
}

/// The package of libmqfq, and a program that is built with its files. `Some`: what was left out.
fn library(folder: &Path) -> Result<Option<String>, String> {
    run(&mut cargo("build --release --locked -p mqfq-c"))?;
    let mut strip = command("strip", ["--strip-debug", "-o"]);
    run(strip.arg(folder.join("libmqfq.a")).arg(target().join("release/libmqfq.a")))?;
    let deb = folder.join("libmqfq-dev.deb");
    let mut build = command("cargo-deb", ["-p", "mqfq-c", "--no-build", "--strip", "--locked", "--output"]);
    run(build.arg(&deb))?;
    run(command("dpkg-deb", ["--contents"]).arg(&deb))?;
    let unpacked = folder.join("unpacked-library");
    let _ = std::fs::remove_dir_all(&unpacked);
    run(command("dpkg-deb", ["--extract"]).arg(&deb).arg(&unpacked))?;
    let (usr, program) = (unpacked.join("usr"), folder.join("threads"));
    // As a program finds it where the package is installed.
    let mut ask = command("pkg-config", [format!("--define-variable=prefix={}", usr.display())]);
    ask.args(["--cflags", "--libs"]).arg(usr.join("lib/pkgconfig/mqfq.pc"));
    let found = output(&mut ask)?;
    let mut compile = command("cc", ["-o"]);
    compile.arg(&program).arg(usr.join("share/doc/libmqfq-dev/examples/threads.c"));
    run(compile.args(found.split_whitespace()))?;
    run(&mut command(&program.to_string_lossy(), [""; 0]))?;
    let left_out = lintian(&deb)?;
    println!("package: {}", deb.display());
    Ok(left_out)
}

/// `package --crate`: the archive of the scheduling core for a registry of crates. It builds and passes its tests from
/// what is in it, and loom is not in the lock file of a program that uses it.
///
/// # Errors
/// One sentence about the first step that fails.
pub fn crate_archive() -> Result<(), String> {
    run(&mut cargo("package -p mqfq-sched --allow-dirty --no-verify"))?;
    let name = concat!("mqfq-sched-", env!("CARGO_PKG_VERSION"));
    let folder = std::env::temp_dir().join(format!("mqfq-crate-{}", std::process::id()));
    let result = in_archive(&target().join(format!("package/{name}.crate")), &folder, name);
    // The system cleans its temporary folder in the end.
    let _ = std::fs::remove_dir_all(&folder);
    result?;
    compared()?.into_iter().for_each(|what| println!("left out: {what}"));
    Ok(())
}

/// Compares the door with that of the last version, whose tag is `v` and its number: is the next number right? `Some`:
/// it was left out, and why.
fn compared() -> Result<Option<String>, String> {
    if !is_there("cargo-semver-checks", "--version") {
        return Ok(Some("cargo install cargo-semver-checks compares with the last version".into()));
    }
    let mut describe = command("git", ["describe", "--tags", "--abbrev=0", "--match", "v*"]);
    let Ok(tag) = output(&mut describe) else { return Ok(Some("no version has a tag to compare with yet".into())) };
    run(cargo("semver-checks -p mqfq-sched --default-features --baseline-rev").arg(tag.trim()))?;
    Ok(None)
}

/// Unpacks the archive in a folder outside of this workspace, tests it there, and uses it in a program.
fn in_archive(archive: &Path, folder: &Path, name: &str) -> Result<(), String> {
    let user = folder.join("user");
    std::fs::create_dir_all(user.join("src")).map_err(|error| format!("{}: {error}", user.display()))?;
    run(command("tar", ["-xzf"]).arg(archive).arg("-C").arg(folder))?;
    let inside = folder.join(name);
    let mut test = cargo("test --all-targets --manifest-path");
    run(test.arg(inside.join("Cargo.toml")).arg("--target-dir").arg(target().join("archive")))?;
    let mut doc = cargo("doc --no-deps --manifest-path");
    doc.arg(inside.join("Cargo.toml")).arg("--target-dir").arg(target().join("archive"));
    // A link to a private item is plain text there, and no dead link.
    run(doc.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"))?;
    let manifest = format!(
        "[package]\nname = \"user\"\nedition = \"2024\"\n[dependencies]\nmqfq-sched = {{ path = \"../{name}\" }}\n"
    );
    let write = |file: &str, text: &str| {
        std::fs::write(user.join(file), text).map_err(|error| format!("{}: {error}", user.join(file).display()))
    };
    write("Cargo.toml", &manifest)?;
    write("src/main.rs", include_str!("../../sched/examples/cores.rs"))?;
    let mut build = cargo("build --manifest-path");
    run(build.arg(user.join("Cargo.toml")).arg("--target-dir").arg(target().join("archive")))?;
    let lock = std::fs::read_to_string(user.join("Cargo.lock")).map_err(|error| format!("Cargo.lock: {error}"))?;
    let packages: Vec<&str> = lock.lines().filter_map(|line| line.strip_prefix("name = ")).collect();
    if packages != ["\"mqfq-sched\"", "\"user\""] {
        return Err(format!("a program that uses the crate has {packages:?} in its lock file"));
    }
    println!("crate: {}, with {} in a user's lock file", archive.display(), packages.join(" and "));
    Ok(())
}

/// The package of the CPU scheduler, of its own for its licence. `Some`: what was left out.
fn scheduler(folder: &Path) -> Result<Option<String>, String> {
    if !is_there("clang-19", "--version") || !Path::new("/usr/include/libelf.h").exists() {
        let needs = "clang-19 and libelf-dev (apt-get install clang-19 libelf-dev zlib1g-dev)";
        return Ok(Some(format!("the package of scx_pmqfq needs {needs}")));
    }
    run(&mut cargo("build --release --locked -p scx_pmqfq --features bpf"))?;
    let man = folder.join("scx");
    std::fs::create_dir_all(&man).map_err(|error| format!("{}: {error}", man.display()))?;
    let page = output(Command::new(target().join("release/scx_pmqfq")).arg("man"))?;
    std::fs::write(man.join("scx_pmqfq.1"), page).map_err(|error| format!("{}: {error}", man.display()))?;
    let deb = folder.join("scx-pmqfq.deb");
    let mut build = command("cargo-deb", ["-p", "scx_pmqfq", "--no-build", "--strip", "--locked", "--output"]);
    run(build.arg(&deb))?;
    run(command("dpkg-deb", ["--contents"]).arg(&deb))?;
    let left_out = lintian(&deb)?;
    println!("package: {}", deb.display());
    Ok(left_out)
}

/// Builds the elevator for each series of kernels that it is for, and packs its source for dkms. Each module's
/// structures must be those of its kernel, and another series' kernel must be refused: so a check that finds nothing is
/// found.
///
/// # Errors
/// One sentence: for which kernel it does not build, or what could not be fetched.
pub fn dkms() -> Result<(), String> {
    let source = root().join("kernel/elevator");
    let folder = target().join("package");
    let mut pack = command("bash", [&*source.join("package.sh").to_string_lossy(), env!("CARGO_PKG_VERSION")]);
    pack.arg(&folder);
    let layouts = |built: &Path, kernel: &str| -> Result<Command, String> {
        let mut check = command("bash", [&*source.join("layouts.sh").to_string_lossy()]);
        check.arg(built.join("mqfq.ko")).arg(cache()?.join(kernel).join("vmlinuz"));
        Ok(check)
    };
    for (at, series) in ELEVATOR_SERIES.into_iter().enumerate() {
        let built = folder.join(format!("elevator-{series}"));
        build_module(series, &source, &built, &mut |line| println!("{line}"))?;
        println!("built: {}", built.join("mqfq.ko").display());
        run(&mut layouts(&built, series)?)?;
        // The kernel of the series before it has been fetched.
        if let Some(other) = at.checked_sub(1).map(|before| ELEVATOR_SERIES[before])
            && run(&mut layouts(&built, other)?).is_ok()
        {
            return Err(format!("the layouts of {series} pass for {other}: layouts.sh compares nothing"));
        }
        pack.arg(format!("{series}={}", cache()?.join(series).join("headers/block").display()));
    }
    run(&mut pack)
}

fn is_there(program: &str, option: &str) -> bool {
    let probe = Command::new(program).arg(option).stdout(Stdio::null()).stderr(Stdio::null()).status();
    probe.is_ok_and(|status| status.success())
}

/// Writes the program's man pages and completions.
fn pages(folder: &Path) -> Result<(), String> {
    let man = folder.join("man");
    // Pages of commands that are no more would be packed.
    let _ = std::fs::remove_dir_all(&man);
    std::fs::create_dir_all(&man).map_err(|error| format!("{}: {error}", man.display()))?;
    let mqfq = target().join("release/mqfq");
    run(Command::new(&mqfq).arg("man").arg(&man))?;
    for (shell, file) in [("bash", "mqfq.bash"), ("zsh", "_mqfq"), ("fish", "mqfq.fish")] {
        let mut completions = Command::new(&mqfq);
        std::fs::write(folder.join(file), output(completions.args(["completions", shell]))?)
            .map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(())
}

/// Runs lintian. `Some`: the step was left out, and why.
fn lintian(deb: &Path) -> Result<Option<String>, String> {
    if !is_there("lintian", "--version") {
        return Ok(Some("lintian is missing: apt-get install lintian".into()));
    }
    // It refuses root by a warning alone.
    let mut lintian = command("lintian", ["--allow-root", "--fail-on", "error", "--suppress-tags", LINTIAN_SUPPRESSED]);
    run(lintian.arg(deb)).map(|()| None)
}

/// Has systemd check the unit as it lies in the package. `Some`: the step was left out, and why.
fn unit(folder: &Path, deb: &Path) -> Result<Option<String>, String> {
    if !is_there("systemd-analyze", "--version") {
        return Ok(Some("systemd-analyze is missing: apt-get install systemd".into()));
    }
    let unpacked = folder.join("unpacked");
    let _ = std::fs::remove_dir_all(&unpacked);
    run(command("dpkg-deb", ["--extract"]).arg(deb).arg(&unpacked))?;
    let unit = ["usr/lib/systemd/system", "lib/systemd/system"].map(|place| unpacked.join(place).join("mqfq.service"));
    let unit = unit.iter().find(|unit| unit.exists()).ok_or("the package has no mqfq.service")?;
    // Where the package is not installed its program lies elsewhere; all else is checked as it is.
    let text = std::fs::read_to_string(unit).map_err(|error| format!("{}: {error}", unit.display()))?;
    let here = text.replace("/usr/bin/mqfq", &unpacked.join("usr/bin/mqfq").to_string_lossy());
    let copy = folder.join("mqfq.service");
    std::fs::write(&copy, here).map_err(|error| format!("{}: {error}", copy.display()))?;
    run(command("systemd-analyze", ["verify", "--man=no"]).arg(&copy))?;
    let threshold = format!("--threshold={EXPOSURE_MAX_TENTHS}");
    let security = output(command("systemd-analyze", ["security", "--offline=true", &threshold]).arg(unit))?;
    security.lines().filter(|line| line.contains("Overall")).for_each(|line| println!("{line}"));
    Ok(None)
}

/// A system of its own, deleted at the end.
struct System(PathBuf);

impl System {
    fn run(&self, words: &[&str]) -> Result<(), String> {
        run(command("chroot", [self.0.as_os_str()]).args(words).env("DEBIAN_FRONTEND", "noninteractive"))
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // The next run deletes the rest, which lies in `target`.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server inside a system, killed if it is not waited for.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Installs it in a system that has nothing else, serves there, and removes it. `Some`: what was left out.
fn install(folder: &Path, deb: &Path) -> Result<Option<String>, String> {
    let is_root = output(command("id", ["-u"]).stdin(Stdio::null()))?.trim() == "0";
    if !is_root || !is_there("mmdebstrap", "--version") || !is_there("nbdinfo", "--version") {
        let needs = "root, mmdebstrap and nbdinfo (apt-get install mmdebstrap libnbd-bin)";
        return Ok(Some(format!("the installation in a clean system needs {needs}")));
    }
    let system = System(folder.join("system"));
    let _ = std::fs::remove_dir_all(&system.0);
    let mut make = command("mmdebstrap", ["--mode=root", "--variant=minbase", "--include=systemd-standalone-sysusers"]);
    run(make.arg(SUITE).arg(&system.0))?;
    let before = files(&system.0)?;
    let copy = system.0.join("mqfq.deb");
    std::fs::copy(deb, &copy).map_err(|error| format!("{}: {error}", copy.display()))?;
    system.run(&["apt-get", "install", "--yes", "--no-install-recommends", "/mqfq.deb"])?;
    system.run(&["mqfq", "check", "/etc/mqfq/mqfq.toml"])?;
    serve(&system)?;
    system.run(&["apt-get", "purge", "--yes", "mqfq"])?;
    std::fs::remove_file(&copy).map_err(|error| format!("{}: {error}", copy.display()))?;
    let after = files(&system.0)?;
    let left: Vec<&String> = after.iter().filter(|file| !before.contains(file) && file.contains("mqfq")).collect();
    if !left.is_empty() {
        return Err(format!("the package leaves behind {left:?}"));
    }
    println!("installed, served, removed: nothing of it is left");
    Ok(None)
}

/// Paths of all files below `folder` that packages own or leave behind.
fn files(folder: &Path) -> Result<Vec<String>, String> {
    let words =
        [".", "-xdev", "(", "-path", "./proc", "-o", "-path", "./var/lib/dpkg", "-o", "-path", "./var/cache", "-o"];
    let mut find = command("find", words);
    find.args(["-path", "./var/log", ")", "-prune", "-o", "-print"]).current_dir(folder);
    Ok(output(&mut find)?.lines().map(str::to_string).collect())
}

/// Serves what the package's own config says, as its own user, to libnbd.
fn serve(system: &System) -> Result<(), String> {
    run(command("chroot", [system.0.as_os_str()]).args(["install", "-d", "-o", "mqfq", "-g", "mqfq", "/run/mqfq"]))?;
    let words = ["setpriv", "--reuid=mqfq", "--regid=mqfq", "--clear-groups", "mqfq", "--json", "serve"];
    let mut serve = command("chroot", [system.0.as_os_str()]);
    serve.args(words).arg("/etc/mqfq/mqfq.toml").stdout(Stdio::piped());
    eprintln!("$ {}", shown(&serve));
    let mut serving = Serving(serve.spawn().map_err(|error| format!("chroot: {error}"))?);
    let mut ready = String::new();
    let mut stdout = std::io::BufReader::new(serving.0.stdout.take().ok_or("its stdout is piped")?);
    std::io::BufRead::read_line(&mut stdout, &mut ready).map_err(|error| format!("the server: {error}"))?;
    if !ready.contains("\"ready\":true") {
        return Err(format!("the installed server did not get ready: {ready}"));
    }
    let uri = |name: &str| format!("nbd+unix:///{name}?socket={}/run/mqfq/{name}.sock", system.0.display());
    for name in ["gold", "silver"] {
        run(&mut command("nbdinfo", [uri(name)]))?;
    }
    let pid = serving.0.id().to_string();
    run(&mut command("kill", ["-TERM", &pid]))?;
    let status = serving.0.wait().map_err(|error| format!("the server: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("the installed server ended with {status}")) }
}

#[cfg(test)]
mod tests {
    use crate::run::root;

    #[test]
    fn every_file_that_a_package_names_is_there() {
        for folder in ["daemon", "capi", "cpu/scx"] {
            let manifest = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
            let manifest: toml::Table = manifest.parse().unwrap();
            let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array().unwrap();
            let named = assets.iter().map(|asset| asset[0].as_str().unwrap());
            for path in named.filter(|path| path.starts_with("../") && !path.contains("target/") && !path.contains('*'))
            {
                assert!(root().join(folder).join(path).is_file(), "{path}");
            }
        }
        let example = std::fs::read_to_string(root().join("packaging/mqfq.toml")).unwrap();
        assert!(example.contains("/run/mqfq/gold.sock") && example.contains("/run/mqfq/silver.sock"));
    }
}
