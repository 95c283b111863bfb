//! Which test notices which mutant?

use crate::argued::{Argued, name};
use crate::find::{Found, Kinds};
use crate::kept::Kept;
use crate::{Mutated, Options};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Longest that a test may take to count here: one that takes longer runs in the suite alone.
const TEST_MAX: Duration = Duration::from_secs(120);

/// Time that a test may wait beyond eight times its own wall time: on a busy machine it waits long for a core.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Mutants that are judged at once: one that hangs waits and takes no core.
const AT_ONCE: usize = 4;

/// A test by itself.
#[derive(PartialEq, Eq, Debug)]
pub struct Test {
    /// Place in the list of binaries.
    pub binary: usize,
    /// As the test harness has it.
    pub name: String,
    /// Wall time, on the product.
    pub took: Duration,
    /// Mutants.
    pub passes: BTreeSet<u32>,
}

/// Fate of a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It does not compile.
    DoesNotCompile,
    /// This test fails.
    Caught(String),
    /// This test does not end.
    Hangs(String),
    /// It has no observable effect, and is not run.
    Argued,
    /// How many tests pass it.
    Missed(usize),
}

impl std::fmt::Display for Fate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fate::DoesNotCompile => f.write_str("does-not-compile -"),
            Fate::Caught(test) => write!(f, "caught {test}"),
            Fate::Hangs(test) => write!(f, "hangs {test}"),
            Fate::Argued => f.write_str("argued -"),
            Fate::Missed(tests) => write!(f, "missed {tests}"),
        }
    }
}

impl Fate {
    /// As it is shown; what is argued is asked of the list each time.
    pub fn read(text: &str) -> Option<Fate> {
        match text.split_once(' ')? {
            ("does-not-compile", _) => Some(Fate::DoesNotCompile),
            ("caught", test) => Some(Fate::Caught(test.to_owned())),
            ("hangs", test) => Some(Fate::Hangs(test.to_owned())),
            ("missed", tests) => tests.parse().ok().map(Fate::Missed),
            _ => None,
        }
    }
}

/// Runs all that an earlier run has not, until `options.ends`. True: all are judged, and none was missed.
pub fn judge(
    options: &Options,
    files: &[Mutated],
    drawn: &BTreeSet<u32>,
    alive: &BTreeSet<u32>,
    binaries: &[PathBuf],
    mut kept: Kept,
) -> Result<bool, String> {
    let argued = argued(options, files)?;
    if kept.tests.is_empty() {
        kept.note_tests(reach(options, binaries)?);
    }
    let tests = std::mem::take(&mut kept.tests);
    drawn.difference(alive).for_each(|number| {
        if !kept.fates.contains_key(number) {
            kept.note(*number, Fate::DoesNotCompile);
        }
    });
    let is_open = |number: &u32| !argued.contains(number) && !kept.fates.contains_key(number);
    let queue: Vec<u32> = alive.iter().copied().filter(is_open).collect();
    eprintln!("{} tests, {} mutants to judge", tests.len(), queue.len());
    let (queue, kept) = (Mutex::new(queue), Mutex::new(kept));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while options.ends.is_none_or(|ends| Instant::now() < ends) {
                    let Some(number) = queue.lock().expect("no holder panics").pop() else { break };
                    let fate = fate(options, binaries, &tests, number);
                    eprintln!("{number}: {fate:?}");
                    kept.lock().expect("no holder panics").note(number, fate);
                }
            });
        }
    });
    let mut fates = kept.into_inner().expect("no holder panics").fates;
    fates.extend(alive.intersection(&argued).map(|number| (*number, Fate::Argued)));
    let fates: Vec<(u32, Fate)> = fates.into_iter().filter(|(number, _)| drawn.contains(number)).collect();
    let is_none_missed = report(files, &fates)?;
    match drawn.len() - fates.len() {
        0 => Ok(is_none_missed),
        left => Err(format!("{left} of {} mutants are not judged yet: run it again", drawn.len())),
    }
}

/// The numbers of those that the list argues about.
fn argued(options: &Options, files: &[Mutated]) -> Result<BTreeSet<u32>, String> {
    let argued = Argued::of(&options.tree)?;
    let mut numbers = BTreeSet::new();
    for mutated in files {
        let named = |found: &Found| found.mutants.iter().map(|mutant| name(mutated, mutant)).collect();
        let names: Vec<String> = named(&mutated.found()?);
        numbers.extend(mutated.numbers.clone().zip(&names).filter(|(_, name)| argued.has(name)).map(|(it, _)| it));
        // The list is about all kinds, whichever are judged.
        let all: Vec<String> = named(&Found::of(&mutated.source, 1, Kinds::All)?);
        if let Some(stale) = argued.stale(&mutated.file, &all.into_iter().collect()).first() {
            return Err(format!("lab/mutants/argued.txt names a mutant that there is not: {stale}"));
        }
    }
    Ok(numbers)
}

/// `took`: that the tests take on the product; they have four times that on a core, and four seconds.
fn command(options: &Options, binary: &Path, words: &[&str], took: Duration) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -t $0; exec \"$@\""]);
    command.arg((4 + 4 * took.as_secs()).to_string()).arg(binary).args(words);
    command.current_dir(options.tree.join(&options.folder));
    command.env("PROPTEST_RNG_SEED", "1").env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
    command.env("RUST_BACKTRACE", "0").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Runs each test by itself, as the product is.
fn reach(options: &Options, binaries: &[PathBuf]) -> Result<Vec<Test>, String> {
    let mut names = Vec::new();
    for (binary, path) in binaries.iter().enumerate() {
        let list = Command::new(path).args(["--list", "--format", "terse"]).output();
        let list = list.map_err(|error| format!("{}: {error}", path.display()))?;
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        names.extend(list.lines().filter_map(|line| Some((binary, line.strip_suffix(": test")?.to_owned()))));
    }
    let (queue, tests) = (Mutex::new(names), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for worker in 0..AT_ONCE {
            let (queue, tests) = (&queue, &tests);
            let passed = options.build.join(format!("passed-{worker}"));
            scope.spawn(move || {
                loop {
                    let Some((binary, name)) = queue.lock().expect("no holder panics").pop() else { break };
                    let test = alone(options, &binaries[binary], binary, &name, &passed);
                    tests.lock().expect("no holder panics").extend(test);
                }
            });
        }
    });
    let mut tests = tests.into_inner().expect("no holder panics");
    tests.sort_by_key(|test| test.took);
    Ok(tests)
}

fn alone(options: &Options, path: &Path, binary: usize, name: &str, passed: &Path) -> Option<Test> {
    let _ = std::fs::remove_file(passed);
    let run = || command(options, path, &["--exact", name, "--test-threads", "1"], TEST_MAX);
    let start = Instant::now();
    let watched = ends(run().env("MQFQ_MUTANTS_PASSED", passed), TEST_MAX);
    let took = start.elapsed();
    // A test that may take no memory fails where it is watched, as the watching takes some.
    if watched.is_none() || watched == Some(false) && ends(&mut run(), TEST_MAX) != Some(true) {
        eprintln!("{name} is left out: it takes more than {} s here", TEST_MAX.as_secs());
        return None;
    }
    let text = std::fs::read_to_string(passed).unwrap_or_default();
    Some(Test { binary, name: name.to_owned(), took, passes: text.lines().flat_map(str::parse).collect() })
}

/// Whether it succeeds; `None`: it does not end.
fn ends(command: &mut Command, limit: Duration) -> Option<bool> {
    let start = Instant::now();
    let mut child = command.spawn().ok()?;
    loop {
        match child.try_wait() {
            // Killed by the limit of its time on a core.
            Ok(Some(status)) if status.code().is_none() => {
                return if is_by_limit(status) { None } else { Some(false) };
            }
            Ok(Some(status)) => return Some(status.success()),
            _ if start.elapsed() > limit => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn is_by_limit(status: std::process::ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    const SIGKILL: i32 = 9;
    const SIGXCPU: i32 = 24;
    matches!(status.signal(), Some(SIGKILL | SIGXCPU))
}

fn fate(options: &Options, binaries: &[PathBuf], tests: &[Test], number: u32) -> Fate {
    let mut rest: Vec<&Test> = tests.iter().filter(|test| test.passes.contains(&number)).collect();
    let count = rest.len();
    let mut budget = Duration::from_millis(100);
    while let Some(first) = rest.first() {
        // The shortest ones of a binary together, as long as they fit; at least one.
        let (binary, mut sum, mut names) = (first.binary, Duration::ZERO, Vec::new());
        rest.retain(|test| {
            let goes = test.binary == binary && (names.is_empty() || sum + test.took <= budget);
            if goes {
                sum += test.took;
                names.push(test.name.as_str());
            }
            !goes
        });
        budget = (budget * 3).min(TEST_MAX);
        let words = [&["--exact", "--test-threads", "1"], &names[..]].concat();
        let mut run = command(options, &binaries[binary], &words, sum);
        run.env("MQFQ_MUTANT", number.to_string());
        let name = || match names.len() {
            1 => names[0].to_owned(),
            many => format!("{} or {} more", names[0], many - 1),
        };
        match ends(&mut run, WAIT_MAX + sum * 8) {
            Some(true) => {}
            Some(false) => return Fate::Caught(name()),
            None => return Fate::Hangs(name()),
        }
    }
    Fate::Missed(count)
}

fn report(files: &[Mutated], fates: &[(u32, Fate)]) -> Result<bool, String> {
    println!("\n| file | drawn | do not compile | caught | hang | argued | missed | noticed or argued |");
    println!("|---|---|---|---|---|---|---|---|");
    let mut missed_text = String::new();
    let mut sums = [0; 6];
    for mutated in files {
        let Mutated { file, numbers, .. } = mutated;
        let found = mutated.found()?;
        let here: Vec<&(u32, Fate)> = fates.iter().filter(|(number, _)| numbers.contains(number)).collect();
        let count = |is_it: fn(&Fate) -> bool| here.iter().filter(|(_, fate)| is_it(fate)).count();
        let counts = [
            here.len(),
            count(|fate| *fate == Fate::DoesNotCompile),
            count(|fate| matches!(fate, Fate::Caught(_))),
            count(|fate| matches!(fate, Fate::Hangs(_))),
            count(|fate| *fate == Fate::Argued),
            count(|fate| matches!(fate, Fate::Missed(_))),
        ];
        println!("{}", row(&format!("`{file}`"), &counts));
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        for (number, fate) in here {
            if let Fate::Missed(tests) = fate {
                let mutant = &found.mutants[(number - numbers.start) as usize];
                let (name, line) = (name(mutated, mutant), mutant.line);
                missed_text += &format!("{name}\n    line {line}, {tests} tests pass it, number {number}\n");
            }
        }
    }
    println!("{}", row("together", &sums));
    print!("\n{missed_text}");
    Ok(missed_text.is_empty())
}

/// Counts: drawn, not compiled, and four fates, the last of which is missed.
fn row(name: &str, counts: &[usize; 6]) -> String {
    let ran = counts[0] - counts[1];
    let cells: Vec<String> = counts.iter().map(ToString::to_string).collect();
    format!("| {name} | {} | {}% |", cells.join(" | "), 100 * (ran - counts[5]) / ran.max(1))
}
