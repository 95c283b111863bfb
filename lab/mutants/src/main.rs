//! Which mutants of a crate's files does no test notice?
//!
//! ```text
//!   files ─▶ find: mutants ─▶ build: one, in a copy of the tree; what does not compile is taken out, and again
//!                               │
//!                               ▼
//!            reach: each test by itself, which says what mutants it passes
//!                               │
//!                               ▼
//!            judge: per mutant the tests that pass it, the short ones first, until one fails or hangs
//! ```
//!
//! `cargo xtask mutants` calls it and gives it the copy. A mutant that no test passes is missed without a run, and one
//! that `argued.txt` argues to be equivalent is not run. A test that takes more than four times its own time on a core,
//! and four seconds, hangs.

mod argued;
mod build;
mod find;
mod judge;
mod kept;

use find::{Found, Kinds};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Options of a run.
pub struct Options {
    /// The copy, in which files are changed.
    pub tree: PathBuf,
    /// Where it is built.
    pub build: PathBuf,
    /// The crate, whose tests run.
    pub package: String,
    /// Its folder in the tree.
    pub folder: String,
    /// Integration tests to run: the package, if it is another one, and the name. Empty: unit tests alone.
    pub tests: Vec<(Option<String>, String)>,
    /// One of so many mutants is drawn.
    pub every: u32,
    /// Where fates are kept for a run that goes on with it. `None`: nowhere.
    pub kept: Option<PathBuf>,
    /// No mutant is begun after this. `None`: all are judged.
    pub ends: Option<Instant>,
    /// Report of missed mutants: only these are judged.
    pub among: Option<PathBuf>,
    /// Which kinds of mutants.
    pub kinds: Kinds,
    /// Files, relative to the tree.
    pub files: Vec<String>,
    /// Says how many there are, and ends.
    pub is_list: bool,
    /// Says which there are, and ends.
    pub is_names: bool,
}

const USAGE: &str = "\
mqfq-mutants --tree DIR --build DIR --package P --folder F [--test [PACKAGE/]NAME]... [--every N] [--among REPORT]
             [--kept DIR] [--minutes N] [--kinds operators|effects|all] [--list] [--names] FILE...
";

/// A path that means the same to a test, which runs in its crate's folder.
fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{path}: {error}"))
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        tree: PathBuf::new(),
        build: PathBuf::new(),
        package: String::new(),
        folder: String::new(),
        tests: Vec::new(),
        every: 1,
        among: None,
        kept: None,
        ends: None,
        kinds: Kinds::All,
        files: Vec::new(),
        is_list: false,
        is_names: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut next = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--tree" => options.tree = absolute(&next()?)?,
            "--build" => options.build = absolute(&next()?)?,
            "--package" => options.package = next()?,
            "--folder" => options.folder = next()?,
            "--test" => {
                let name = next()?;
                options.tests.push(match name.split_once('/') {
                    Some((package, name)) => (Some(package.to_owned()), name.to_owned()),
                    None => (None, name),
                });
            }
            "--every" => options.every = next()?.parse().map_err(|_| "--every needs a number from 1 on")?,
            "--among" => options.among = Some(next()?.into()),
            "--kept" => options.kept = Some(absolute(&next()?)?),
            "--minutes" => {
                let minutes: u64 = next()?.parse().map_err(|_| "--minutes needs a number")?;
                options.ends = Some(Instant::now() + Duration::from_secs(60 * minutes));
            }
            "--kinds" => {
                let name = next()?;
                let kinds = Kinds::read(&name);
                options.kinds =
                    kinds.ok_or_else(|| format!("--kinds {name}: allowed are operators, effects and all"))?;
            }
            "--list" => options.is_list = true,
            "--names" => options.is_names = true,
            _ if word.starts_with('-') => return Err(format!("{word} is no option\n\n{USAGE}")),
            _ => options.files.push(word),
        }
    }
    if options.files.is_empty() || options.every == 0 { Err(USAGE.to_owned()) } else { Ok(options) }
}

/// One file with its mutants.
pub struct Mutated {
    /// Relative to the tree.
    pub file: String,
    /// As it was.
    pub source: String,
    /// Numbers: from, and up to.
    pub numbers: std::ops::Range<u32>,
    /// Which kinds of mutants.
    pub kinds: Kinds,
}

impl Mutated {
    /// Its mutants.
    ///
    /// # Errors
    /// One sentence if it is not Rust.
    pub fn found(&self) -> Result<Found<'_>, String> {
        Found::of(&self.source, self.numbers.start, self.kinds)
    }
}

fn read(options: &Options) -> Result<Vec<Mutated>, String> {
    let mut next = 1;
    let mut all = Vec::new();
    for file in &options.files {
        let path = options.tree.join(file);
        let source = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let found = Found::of(&source, next, options.kinds).map_err(|error| format!("{file}: {error}"))?;
        let end = next + found.mutants.len() as u32;
        all.push(Mutated { file: file.clone(), source, numbers: next..end, kinds: options.kinds });
        next = end;
    }
    Ok(all)
}

/// Scatters numbers, so that one in `every` does not follow a pattern of the source.
fn is_drawn(number: u32, every: u32) -> bool {
    (number.wrapping_mul(0x9e37_79b1) >> 16).is_multiple_of(every)
}

fn go() -> Result<bool, String> {
    let options = options()?;
    let files = read(&options)?;
    let count = files.last().map_or(0, |last| last.numbers.end - 1);
    let mut alive: BTreeSet<u32> = (1..=count).filter(|number| is_drawn(*number, options.every)).collect();
    if let Some(path) = &options.among {
        let report = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let named: BTreeSet<&str> = report.lines().collect();
        for mutated in &files {
            let found = mutated.found()?;
            let names = mutated.numbers.clone().zip(&found.mutants);
            names.for_each(|(number, mutant)| {
                if !named.contains(argued::name(mutated, mutant).as_str()) {
                    alive.remove(&number);
                }
            });
        }
    }
    for Mutated { file, numbers, .. } in &files {
        println!("{file}: {} mutants, {} drawn", numbers.len(), alive.range(numbers.clone()).count());
    }
    if options.is_names {
        for mutated in &files {
            let found = mutated.found()?;
            for (number, mutant) in mutated.numbers.clone().zip(&found.mutants) {
                println!("{number} {}", argued::name(mutated, mutant));
            }
        }
    }
    if options.is_list || options.is_names {
        return Ok(true);
    }
    let drawn = alive.clone();
    let mut words = options.files.clone();
    words.push(format!("{:?} {} {:?}", options.tests, options.every, options.kinds));
    let key = kept::key(&words, &options.tree.join(&options.folder));
    let kept = kept::Kept::open(options.kept.as_deref(), &options.package, key)?;
    // So the compiler does not find these again, one check after the other.
    alive.retain(|number| kept.fates.get(number) != Some(&judge::Fate::DoesNotCompile));
    let made = build::build(&options, &files, &mut alive);
    let judged = made.and_then(|binaries| judge::judge(&options, &files, &drawn, &alive, &binaries, kept));
    // The copy is the product again.
    for Mutated { file, source, .. } in &files {
        std::fs::write(options.tree.join(file), source).map_err(|error| format!("{file}: {error}"))?;
    }
    judged
}

fn main() -> ExitCode {
    match go() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("mqfq-mutants: {why}");
            ExitCode::FAILURE
        }
    }
}
