//! Generated tests draw the same cases in every run of the suite: proptest takes its seed from cargo's settings, and
//! nothing else draws one from the machine.

use super::report::Report;
use super::source::has_word;
use super::tree::{File, Tree};
use std::ops::RangeInclusive;
use toml::{Table, Value};

/// Cargo's settings, for all that it runs.
const SETTINGS: &str = ".cargo/config.toml";
/// The seed of every generated test that asks for none, a number.
pub const SEED_VARIABLE: &str = "PROPTEST_RNG_SEED";
/// No file of seeds is read or written.
const NO_FILES_VARIABLE: &str = "PROPTEST_DISABLE_FAILURE_PERSISTENCE";
/// Names that draw from the machine, or take a generated test out of the settings.
const UNSEEDED: &[&str] = &[
    "RngSeed",
    "rng_seed",
    "failure_persistence",
    "RandomState",
    "OsRng",
    "SysRng",
    "ThreadRng",
    "thread_rng",
    "rand::rng",
    "rand::random",
    "from_os_rng",
    "from_entropy",
    "getrandom",
];

/// A function of proptest's: its name, and the file it is in.
#[derive(Debug, PartialEq, Eq)]
pub struct Generated<'a> {
    /// The file, from the repository's root.
    pub path: &'a str,
    /// The function's name.
    pub name: String,
}

/// Every generated test, by path.
pub fn generated(tree: &Tree) -> Vec<Generated<'_>> {
    let files = tree.files.iter().filter(|file| file.is_rust());
    files.flat_map(|file| names(file).into_iter().map(|name| Generated { path: &file.path, name })).collect()
}

fn names(file: &File) -> Vec<String> {
    let mut names = Vec::new();
    for block in blocks(file) {
        let mut is_test = false;
        for line in &file.lines[block] {
            is_test |= line.code.contains("#[test]");
            let Some((_, rest)) = line.code.split_once("fn ").filter(|_| is_test) else { continue };
            names.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
            is_test = false;
        }
    }
    names
}

/// The lines of each `proptest!` with braces, from the first to that of the closing brace.
fn blocks(file: &File) -> Vec<RangeInclusive<usize>> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, usize)> = None;
    for (number, line) in file.lines.iter().enumerate() {
        if open.is_none() && line.code.trim_start().starts_with("proptest! {") {
            open = Some((number, 0));
        }
        let Some((first, depth)) = open else { continue };
        let depth = depth + line.code.matches('{').count();
        let depth = depth - line.code.matches('}').count().min(depth);
        open = (depth > 0).then_some((first, depth));
        if depth == 0 {
            blocks.push(first..=number);
        }
    }
    blocks
}

/// `seeds`: a generated test draws the same cases each time.
pub fn seeds(tree: &Tree, report: &mut Report) {
    let first = tree.files.iter().find(|file| file.lines.iter().any(|line| has_word(&line.code, "proptest!")));
    if let Some(first) = first {
        let settings = tree.file(SETTINGS).and_then(|file| file.text.parse::<Table>().ok());
        let of = |name: &str| settings.as_ref()?.get("env")?.get(name)?.as_str();
        if of(SEED_VARIABLE).is_none_or(|seed| seed.parse::<u64>().is_err()) {
            report.add(SETTINGS, 0, format!("{} is generated, and [env] {SEED_VARIABLE} is no number", first.path));
        }
        if of(NO_FILES_VARIABLE).is_none() {
            let says = format!("{} is generated, and [env] {NO_FILES_VARIABLE} is not set", first.path);
            report.add(SETTINGS, 0, says);
        }
    }
    for file in &tree.files {
        for (number, line) in file.all_lines() {
            for word in UNSEEDED.iter().filter(|word| has_word(&line.code, word)) {
                report.add(
                    &file.path,
                    number,
                    format!("`{word}`: every run draws the same cases; cargo xtask soak draws others"),
                );
            }
        }
    }
    for path in tree.paths.iter().filter(|path| path.split('/').any(|part| part == "proptest-regressions")) {
        report.add(path, 0, "a case that failed once is a test with a name, not a file of seeds");
    }
}

/// The package of the crate that a file belongs to: the nearest folder with a manifest.
pub fn package(tree: &Tree, path: &str) -> Option<String> {
    let mut folder = path;
    loop {
        folder = folder.rsplit_once('/')?.0;
        if let Some(file) = tree.file(&format!("{folder}/Cargo.toml")) {
            let manifest = file.text.parse::<Table>().ok()?;
            return manifest.get("package")?.get("name").and_then(Value::as_str).map(str::to_string);
        }
    }
}
