//! How is a copy built in which all mutants compile?
//!
//! The compiler says where an error is; the mutant that stands there is taken out, and the copy is checked again. It
//! finds types, then lifetimes, so that takes some rounds; code is made only of what passes. An error outside all
//! mutants is a fault of this tool, or of the tree.

use crate::{Mutated, Options};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Checks after which it gives up.
const CHECKS_MAX: usize = 40;

/// Asks which mutant lives, and writes down which are passed, if a file for that is named.
const SWITCH: &str = r#"
#[doc(hidden)]
#[inline]
pub fn mutant(number: u32) -> bool {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    // Without memory, which `std::env` takes: a test that counts what is taken would fail by this look alone.
    static ALIVE: LazyLock<u32> = LazyLock::new(|| {
        let Ok(mut file) = std::fs::File::open("/proc/self/environ") else { return 0 };
        let (mut all, mut length) = ([0; 1 << 16], 0);
        while let Ok(more @ 1..) = std::io::Read::read(&mut file, &mut all[length..]) {
            length += more;
        }
        let text = all[..length].split(|byte| *byte == 0).find_map(|it| it.strip_prefix(b"MQFQ_MUTANT="));
        text.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok()).unwrap_or(0)
    });
    static PASSED: LazyLock<Option<std::fs::File>> = LazyLock::new(|| {
        let path = std::env::var_os("MQFQ_MUTANTS_PASSED")?;
        std::fs::OpenOptions::new().create(true).append(true).open(path).ok()
    });
    static IS_PASSED: [AtomicBool; 1 << 14] = [const { AtomicBool::new(false) }; 1 << 14];
    if let Some(file) = &*PASSED
        && !IS_PASSED[number as usize].swap(true, Ordering::Relaxed)
    {
        let _ = std::io::Write::write_all(&mut &*file, std::format!("{number}\n").as_bytes());
    }
    *ALIVE == number
}
"#;

/// Builds the tests; the paths of their binaries, the unit tests' first. `alive` loses what does not compile.
pub fn build(options: &Options, files: &[Mutated], alive: &mut BTreeSet<u32>) -> Result<Vec<PathBuf>, String> {
    let library = options.tree.join(&options.folder).join("src/lib.rs");
    let plain = std::fs::read_to_string(&library).map_err(|error| format!("{}: {error}", library.display()))?;
    let plain = plain.split(SWITCH).next().unwrap_or("").to_owned();
    write(&library, &(plain.clone() + SWITCH))?;
    let mut checked = (0..CHECKS_MAX).map(|_| once(options, files, alive, &CHECK));
    let checked = checked.find_map(Result::transpose);
    let made = match checked {
        Some(Ok(_)) => once(options, files, alive, &BUILD)
            .and_then(|made| made.ok_or_else(|| "what was checked does not build".to_owned())),
        Some(Err(why)) => Err(why),
        None => Err(format!("{CHECKS_MAX} checks did not find all that does not compile")),
    };
    if made.is_err() {
        write(&library, &plain)?;
    }
    made
}

/// The commands of cargo: errors alone, in seconds, and the binaries.
const CHECK: [&str; 4] = ["check", "--profile", "test", "--message-format=json"];
const BUILD: [&str; 3] = ["test", "--no-run", "--message-format=json"];

fn write(path: &std::path::Path, text: &str) -> Result<(), String> {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn once(
    options: &Options,
    files: &[Mutated],
    alive: &mut BTreeSet<u32>,
    words: &[&str],
) -> Result<Option<Vec<PathBuf>>, String> {
    let mut rendered = Vec::new();
    for mutated in files {
        let text = mutated.found()?.render(&|number| alive.contains(&number));
        write(&options.tree.join(&mutated.file), &text)?;
        rendered.push((&mutated.file, text));
    }
    let mut cargo = Command::new("cargo");
    cargo.args(words).args(["--quiet", "--lib"]);
    // Thousands of branches that do nothing are thousands of warnings.
    cargo.env("RUSTFLAGS", "--cap-lints allow");
    let packages: BTreeSet<&str> = options.tests.iter().filter_map(|(package, _)| package.as_deref()).collect();
    cargo.args(packages.into_iter().chain([&*options.package]).flat_map(|package| ["--package", package]));
    cargo.args(options.tests.iter().flat_map(|(_, name)| ["--test", name]));
    cargo.arg("--target-dir").arg(&options.build).current_dir(&options.tree);
    let output = cargo.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages: Vec<serde_json::Value> = lines.lines().flat_map(serde_json::from_str).collect();
    if output.status.success() {
        let mut binaries: Vec<_> = messages.iter().filter(|message| message["profile"]["test"] == true).collect();
        // An earlier run's file knows them by their place.
        let is_lib = |message: &serde_json::Value| message["target"]["kind"][0] == "lib";
        binaries.sort_by_key(|message| (!is_lib(message), message["target"]["name"].to_string()));
        let binaries = binaries.into_iter();
        return Ok(Some(binaries.filter_map(|message| Some(message["executable"].as_str()?.into())).collect()));
    }
    let before = alive.len();
    let mut strange = String::new();
    for message in messages.iter().map(|message| &message["message"]).filter(|message| message["level"] == "error") {
        let spans = message["spans"].as_array().map_or(&[][..], |spans| &spans[..]);
        let mut blamed = Vec::new();
        for span in spans {
            let name = span["file_name"].as_str().unwrap_or("");
            let Some((_, text)) = rendered.iter().find(|(file, _)| name.ends_with(file.as_str())) else { continue };
            let place = |key: &str| span[key].as_u64().unwrap_or(0) as usize;
            blamed.extend(blame(text, place("byte_start"), place("byte_end")));
        }
        if blamed.is_empty() && !spans.is_empty() {
            strange = message["rendered"].as_str().unwrap_or("").to_owned();
        }
        alive.retain(|number| !blamed.contains(number));
    }
    eprintln!("{} do not compile", before - alive.len());
    if alive.len() == before { Err(format!("the copy does not build: {strange}")) } else { Ok(None) }
}

/// The mutant around an error, else those inside it, else the one before it on its line.
fn blame(text: &str, start: usize, end: usize) -> Vec<u32> {
    let number_at = |at: usize| text[at..].split("*/").next().and_then(|text| text.parse().ok());
    let mut opened: Vec<(usize, u32)> = Vec::new();
    for opening in ["{/*", "/*+"] {
        opened.extend(text.match_indices(opening).filter_map(|(at, _)| Some((at, number_at(at + 3)?))));
    }
    opened.sort_unstable();
    let end_of = |number: u32| text.find(&format!("/*~{number}*/")).unwrap_or(0);
    if let Some((_, number)) = opened.iter().rfind(|(at, number)| *at <= start && start < end_of(*number)) {
        return vec![*number];
    }
    let inside: Vec<u32> = opened.iter().filter(|(at, _)| (start..end).contains(at)).map(|(_, it)| *it).collect();
    if !inside.is_empty() {
        return inside;
    }
    opened.iter().rfind(|(at, _)| *at <= start).map(|(_, number)| *number).into_iter().collect()
}
