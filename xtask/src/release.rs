//! The program as it is released: the same bytes wherever it is built, and an account of all that is in it.
//!
//! Three tools of others do the accounts: cargo-auditable puts the list of crates into the binary (section `.dep-v0`),
//! cargo-cyclonedx writes it as a document (CycloneDX), cargo-deny holds it against `deny.toml`.
//!
//! Bytes depend on the source, the lock file, the toolchain, the linker and the C compiler, and on nothing else: names
//! of folders are replaced in whatever a compiler writes down, and nothing has the time.

use crate::planted::copy;
use crate::run::{cargo, command, output, run, target};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Commands of cargo that a release needs besides cargo-deb, with the versions that they were tried with.
pub const TOOLS: [(&str, &str); 3] = [("auditable", "0.7.7"), ("cyclonedx", "0.5.9"), ("deny", "0.20.2")];

/// Instead of the folder of the source, of cargo's folder, in what a compiler writes down.
const SOURCE: &str = "/usr/src/mqfq";
const CARGO_HOME: &str = "/usr/src/cargo";

/// Time of the document, so that each build of the same source gives the same document.
const EPOCH: &str = "0";

/// The command of cargo by this name is there.
fn has(name: &str) -> bool {
    let probe = Command::new("cargo").args([name, "--version"]).output();
    probe.is_ok_and(|output| output.status.success())
}

fn needs(name: &str) -> Result<(), String> {
    if has(name) { Ok(()) } else { Err(format!("cargo-{name} is missing: cargo xtask tools (some minutes)")) }
}

/// Builds `mqfq` from the source in `source` into `into`/release, as it is released.
///
/// # Errors
/// One sentence: cargo-auditable is missing, or it does not build.
pub fn build(source: &Path, into: &Path) -> Result<PathBuf, String> {
    needs("auditable")?;
    let home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => PathBuf::from(std::env::var_os("HOME").ok_or("neither CARGO_HOME nor HOME is set")?).join(".cargo"),
    };
    // Where the standard library's source is installed, the compiler names it there, and else as rust-lang built it.
    let rustc = |words: &[&str]| output(command("rustc", words).current_dir(source));
    let sysroot = Path::new(rustc(&["--print", "sysroot"])?.trim_end()).join("lib/rustlib/src/rust");
    let version = rustc(&["-vV"])?;
    let commit = version.lines().find_map(|line| line.strip_prefix("commit-hash: ")).ok_or("rustc names no commit")?;
    let library = format!("/rustc/{commit}");
    // The last pair that fits is the one: the folder that is built into may lie in the source, or not.
    let target = format!("{SOURCE}/target");
    let pairs = [(&*sysroot, &*library), (&*home, CARGO_HOME), (source, SOURCE), (into, &*target)];
    let all = |option: &str| {
        pairs.iter().map(|(from, to)| format!("{option}={}={to}", from.display())).collect::<Vec<_>>().join(" ")
    };
    let mut build = cargo("auditable build --release --locked -p mqfq");
    build.current_dir(source).arg("--target-dir").arg(into);
    build.env("RUSTFLAGS", all("--remap-path-prefix"));
    // ring has C and assembly.
    build.env("CFLAGS", all("-ffile-prefix-map"));
    run(&mut build)?;
    Ok(into.join("release/mqfq"))
}

/// `sbom`: all crates of the program with versions, licences and checksums, as CycloneDX in
/// `target/package/mqfq.cdx.json`.
///
/// # Errors
/// One sentence: cargo-cyclonedx is missing or fails.
pub fn sbom() -> Result<PathBuf, String> {
    needs("cyclonedx")?;
    let folder = target().join("package");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    // It writes a document beside each manifest of the workspace: in a copy.
    let copy = folder.join("sbom");
    copy_source(&copy)?;
    let mut tool = cargo("cyclonedx --format json --spec-version 1.5 --all --target");
    tool.arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH)).args(["--override-filename", "mqfq.cdx"]);
    tool.args(["--manifest-path", "daemon/Cargo.toml"]).current_dir(&copy);
    run(tool.env("SOURCE_DATE_EPOCH", EPOCH))?;
    let document = folder.join("mqfq.cdx.json");
    let failed = |error: std::io::Error| format!("{}: {error}", document.display());
    let text = std::fs::read_to_string(copy.join("daemon/mqfq.cdx.json")).map_err(failed)?;
    let text = neutral(&text, &copy)?;
    std::fs::write(&document, text).map_err(failed)?;
    std::fs::remove_dir_all(&copy).map_err(|error| format!("{}: {error}", copy.display()))?;
    let all = crates(&document)?;
    println!("{}: {} crates", document.display(), all.len());
    Ok(document)
}

/// The document without the folder that it was made in.
fn neutral(text: &str, folder: &Path) -> Result<String, String> {
    let text = text.replace(&*folder.to_string_lossy(), SOURCE);
    let mut document: serde_json::Value = serde_json::from_str(&text).map_err(|error| format!("CycloneDX: {error}"))?;
    // Drawn anew each time; the format does not ask for it.
    document.as_object_mut().ok_or("CycloneDX: no object")?.remove("serialNumber");
    serde_json::to_string_pretty(&document).map_err(|error| format!("CycloneDX: {error}"))
}

/// Names and versions of the crates in a CycloneDX document, without the program itself.
fn crates(document: &Path) -> Result<Vec<(String, String)>, String> {
    let failed = |error: String| format!("{}: {error}", document.display());
    let text = std::fs::read_to_string(document).map_err(|error| failed(error.to_string()))?;
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
    let of = |part: &serde_json::Value| {
        let word = |key: &str| part[key].as_str().map(str::to_owned);
        Some((word("name")?, word("version")?))
    };
    let all = json["components"].as_array().ok_or_else(|| failed("it has no components".into()))?;
    Ok(all.iter().filter_map(of).collect())
}

/// `reproducible`: builds the released program in two folders, and compares.
///
/// # Errors
/// One sentence: it does not build, or the two differ.
pub fn reproducible() -> Result<(), String> {
    let mut sums = Vec::new();
    // Paths of different lengths and depths, and one builds into a folder outside of its source.
    for (name, into) in [("one", "one/target"), ("another/and/deeper", "elsewhere")] {
        let all = target().join("reproducible");
        let (source, into) = (all.join(name), all.join(into));
        copy_source(&source)?;
        let _ = std::fs::remove_dir_all(&into);
        let binary = build(&source, &into)?;
        let sum = output(&mut command("sha256sum", [&binary]))?;
        let sum = sum.split_whitespace().next().unwrap_or_default().to_owned();
        println!("{sum}  {}", binary.display());
        sums.push(sum);
    }
    if sums[0] == sums[1] {
        println!("two builds, the same bytes");
        return Ok(());
    }
    Err("two builds of the same source differ; diffoscope shows where".into())
}

/// The working tree as git knows it, in an empty `folder`.
fn copy_source(folder: &Path) -> Result<(), String> {
    let _ = std::fs::remove_dir_all(folder);
    copy(folder, &BTreeMap::new())
}

/// Holds the crates against `deny.toml`: licences, bans and sources, and with `has_advisories` also what is known
/// against them, for which cargo-deny fetches its database. `false`: the tool is not there.
///
/// # Errors
/// One sentence if it finds something; it has printed what.
pub fn deny(has_advisories: bool) -> Result<bool, String> {
    if !has("deny") {
        return Ok(false);
    }
    let mut deny = cargo("deny --locked check bans licenses sources");
    run(deny.args(has_advisories.then_some("advisories"))).map(|()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_the_same_wherever_and_whenever_it_was_made() {
        let made = |folder: &str, serial: &str| {
            let text = format!(
                r#"{{"serialNumber":"{serial}","components":[{{"name":"a","purl":"file://{folder}/a","version":"1"}}]}}"#
            );
            neutral(&text, Path::new(folder)).expect("a document")
        };
        assert_eq!(made("/tmp/x", "urn:1"), made("/srv/y", "urn:2"));
        assert!(made("/tmp/x", "urn:1").contains("file:///usr/src/mqfq/a"));
        assert!(neutral("[]", Path::new("/")).is_err());
    }
}
