//! Runs commands in sight: each is printed as one would type it, so that a chore teaches how to do it by hand.

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}

/// Writes a result of a command, with its folder, and says where.
///
/// # Errors
/// One sentence: it cannot be written.
pub fn keep(path: &Path, text: &str) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(path, text));
    written.map_err(|error| format!("{}: {error}", path.display()))?;
    eprintln!("{}", path.display());
    Ok(())
}

/// The folder that cargo builds into.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// `program` with `args`, to be run in the repository's root.
pub fn command<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(program: &str, args: I) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// `cargo` with words that are separated by blanks, in the environment of a shell. `cargo run` tells this program of
/// its own package, and a build script that looks at that (ring's) would be run again, with all that is built on it,
/// each time that one `cargo` is told so and the next is not.
pub fn cargo(words: &str) -> Command {
    let mut cargo = command("cargo", words.split_whitespace());
    let is_ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_ours)) {
        cargo.env_remove(name);
    }
    cargo
}

/// The command as one would type it in a shell.
pub fn shown(command: &Command) -> String {
    let quoted = |word: &OsStr| {
        let word = word.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) { word.into_owned() } else { format!("'{word}'") }
    };
    let sets = command.get_envs().filter_map(|(name, value)| Some((name.to_string_lossy(), value?)));
    let sets = sets.map(|(name, value)| format!("{name}={} ", quoted(value)));
    let words = command.get_args().map(|word| format!(" {}", quoted(word)));
    format!("{}{}{}", sets.collect::<String>(), quoted(command.get_program()), words.collect::<String>())
}

/// Prints the command, runs it, and waits.
///
/// # Errors
/// One sentence if it cannot start or does not succeed.
pub fn run(command: &mut Command) -> Result<(), String> {
    eprintln!("$ {}", shown(command));
    let status = command.status().map_err(|error| format!("{}: {error}", shown(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", shown(command))) }
}

/// Prints the command and runs it to its end; its stdout.
///
/// # Errors
/// One sentence if it cannot start or does not succeed.
pub fn output(command: &mut Command) -> Result<String, String> {
    let name = shown(command);
    eprintln!("$ {name}");
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("{name}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{name} failed ({}): {text}", output.status)) }
}

/// Counts of a run of `cargo test`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that did not run.
    pub ignored: u64,
    /// Tests that did not run because [their very program passed before](run_unless_known).
    pub known: u64,
    /// The run did not succeed: a test failed, or nothing was built.
    pub broken: bool,
}

impl Counts {
    /// Adds up two runs.
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            ignored: self.ignored + other.ignored,
            known: self.known + other.known,
            broken: self.broken || other.broken,
        }
    }

    /// Reads one line of the test harness or of [`run_unless_known`]: a summary, or something else.
    fn of_line(line: &str) -> Option<Counts> {
        if let Some(known) = line.strip_prefix(KNOWN) {
            return Some(Counts { known: known.trim().parse().ok()?, ..Counts::default() });
        }
        let summary = line.trim_start().strip_prefix("test result: ")?;
        let number = |what: &str| {
            let before = summary.split([';', '.']).find_map(|part| part.trim().strip_suffix(what))?;
            before.trim().parse().ok()
        };
        Some(Counts {
            passed: number("passed")?,
            failed: number("failed")?,
            ignored: number("ignored")?,
            ..Counts::default()
        })
    }
}

/// Niceness of work for idle cores only: against a thread at 0 it gets 1.5% of a core.
pub const ONLY_IDLE: &str = "19";

/// Niceness of work that is waited for in the end, on a machine that others may keep busy: a quarter against 0.
pub const AFTER_OTHERS: &str = "5";

/// The command, at this niceness.
pub fn at_niceness(niceness: &str, of: Command) -> Command {
    let mut low = command("nice", ["-n", niceness]);
    low.arg(of.get_program()).args(of.get_args());
    for (name, value) in of.get_envs() {
        match value {
            Some(value) => low.env(name, value),
            None => low.env_remove(name),
        };
    }
    low
}

/// Longest silence of a part of the suite. The longest one that is none of a hang is that of the compiler, whose words
/// go to stderr.
pub const SILENCE_MAX: Duration = Duration::from_secs(30 * 60);

/// Prints the command and runs it, passing its output on to `sink` and adding up the summaries in it. A command that
/// prints nothing for `silence_max` is killed with all that it started.
///
/// # Errors
/// One sentence if it cannot start, its output cannot be read, or it hangs. A failed test is not an error here but a
/// count.
pub fn run_counted(command: &mut Command, sink: &mut dyn Write, silence_max: Duration) -> Result<Counts, String> {
    let name = shown(command);
    eprintln!("$ {name}");
    let broken = |error: std::io::Error| format!("{name}: {error}");
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(broken)?;
    let mut counts = Counts::default();
    let mut output = BufReader::new(child.stdout.take().expect("stdout is piped"));
    let (sender, lines) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line)? > 0 {
            // The receiver is gone: the command was killed.
            let _ = sender.send(std::mem::take(&mut line));
        }
        std::io::Result::Ok(())
    });
    loop {
        match lines.recv_timeout(silence_max) {
            Ok(line) => {
                sink.write_all(&line).map_err(broken)?;
                if let Some(summary) = Counts::of_line(&String::from_utf8_lossy(&line)) {
                    counts = counts.plus(summary);
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                end_tree(&child.id().to_string());
                child.wait().map_err(broken)?;
                return Err(format!("{name}: it printed nothing for {} s, so it was killed", silence_max.as_secs()));
            }
        }
    }
    reader.join().map_err(|_| format!("{name}: the thread that reads its output panicked"))?.map_err(broken)?;
    counts.broken = !child.wait().map_err(broken)?.success();
    Ok(counts)
}

/// Beginning of the line with the number of tests that a program was not run for.
const KNOWN: &str = "tests that this very program passed before: ";

/// `cargo` with this program as the runner of test programs: [`run_unless_known`] for those of `folders`.
pub fn cargo_unless_known(words: &str, folders: &[&str]) -> Command {
    let own = std::env::current_exe().expect("a program that runs has a file");
    let runner = [&*own.to_string_lossy(), "known", &folders.join(",")].map(|word| format!("{word:?}")).join(", ");
    let mut cargo = cargo(words);
    cargo.args(["--config", &format!("target.'cfg(all())'.runner = [{runner}]")]);
    cargo
}

/// Runs a test program for cargo. One whose package lies in one of the `folders`, parted by commas, is left out if this
/// very program passed before, with the same arguments, variables and files of its folder: its tests must depend on
/// nothing else. Simulations in virtual time and models do not; what has threads, sockets or clocks does.
///
/// # Errors
/// One sentence if the program cannot be read or started, or if a test fails.
pub fn run_unless_known(folders: &str, program: &str, args: &[&str]) -> Result<(), String> {
    let folder = std::env::current_dir().map_err(|error| format!("the folder of {program}: {error}"))?;
    let mut command = Command::new(program);
    command.args(args);
    if !folders.split(',').any(|name| root().join(name) == folder) {
        return Err(format!("{program}: {}", command.exec()));
    }
    let digest = digest(program, args, &folder).map_err(|error| format!("{program}: {error}"))?;
    let name = Path::new(program).file_name().unwrap_or_default();
    let record = target().join("known").join(name);
    let before = std::fs::read_to_string(&record).unwrap_or_default();
    if let Some(passed) = before.strip_prefix(&format!("{digest:016x} ")) {
        println!("{KNOWN}{}", passed.trim());
        return Ok(());
    }
    let counts = run_counted(&mut command, &mut std::io::stdout(), SILENCE_MAX)?;
    if counts.broken {
        return Err(format!("{program}: tests failed"));
    }
    let kept = std::fs::create_dir_all(target().join("known"))
        .and_then(|()| std::fs::write(&record, format!("{digest:016x} {}\n", counts.passed)));
    kept.map_err(|error| format!("{}: {error}", record.display()))
}

/// All that the outcome of a test program in `folder` depends on.
fn digest(program: &str, args: &[&str], folder: &Path) -> std::io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    (std::fs::read(program)?, args).hash(&mut hasher);
    let is_ours = |name: &str| ["MQFQ_", "LOOM_", "PROPTEST_"].iter().any(|prefix| name.starts_with(prefix));
    let mut variables: Vec<_> = std::env::vars().filter(|(name, _)| is_ours(name)).collect();
    variables.sort();
    variables.hash(&mut hasher);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries: std::io::Result<Vec<_>> = std::fs::read_dir(&folder)?.collect();
        let mut paths: Vec<PathBuf> = entries?.iter().map(std::fs::DirEntry::path).collect();
        paths.sort();
        for path in paths {
            path.hash(&mut hasher);
            if path.is_dir() {
                folders.push(path);
            } else {
                std::fs::read(&path)?.hash(&mut hasher);
            }
        }
    }
    Ok(hasher.finish())
}

/// Kills a process and all that it started: a parent first, so that it starts no other.
fn end_tree(pid: &str) {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children: Vec<String> = tasks.flat_map(|task| std::fs::read_to_string(task.path().join("children"))).collect();
    let _ = Command::new("kill").args(["-KILL", pid]).stderr(Stdio::null()).status();
    children.iter().flat_map(|line| line.split_whitespace()).for_each(end_tree);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_would_be_typed() {
        let mut command = command("cargo", ["test", "a b"]);
        command.env("RUSTFLAGS", "--cfg mqfq_loom");
        assert_eq!(shown(&command), "RUSTFLAGS='--cfg mqfq_loom' cargo test 'a b'");
    }

    #[test]
    fn cargo_does_not_hear_whose_program_calls_it() {
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some(), "this test is run by cargo");
        let cargo = cargo("build -p mqfq");
        assert!(cargo.get_envs().any(|removed| removed == (OsStr::new("CARGO_PKG_NAME"), None)));
        assert!(cargo.get_envs().all(|(name, _)| name != "CARGO_TARGET_DIR"));
        assert_eq!(shown(&cargo), "cargo build -p mqfq");
    }

    #[test]
    fn a_command_at_the_lowest_priority_is_the_same_otherwise() {
        let mut loom = command("cargo", ["test", "a b"]);
        loom.env("RUSTFLAGS", "--cfg mqfq_loom");
        assert_eq!(shown(&at_niceness(ONLY_IDLE, loom)), "RUSTFLAGS='--cfg mqfq_loom' nice -n 19 cargo test 'a b'");
        // A variable that only one of two cargos has makes each build ring, and all that is built on it, again.
        let nice = at_niceness(ONLY_IDLE, cargo("build"));
        assert!(nice.get_envs().any(|removed| removed == (OsStr::new("CARGO_PKG_NAME"), None)));
        let counts = run_counted(&mut at_niceness(ONLY_IDLE, command("nice", [""; 0])), &mut Vec::new(), SILENCE_MAX);
        assert_eq!(counts, Ok(Counts::default()));
    }

    #[test]
    fn the_harness_summary_is_counted_and_other_lines_are_not() {
        let line = "test result: FAILED. 12 passed; 1 failed; 2 ignored; 0 measured; 3 filtered out; finished in 0.1s";
        let counts = Counts { passed: 12, failed: 1, ignored: 2, ..Counts::default() };
        assert_eq!(Counts::of_line(line), Some(counts));
        assert_eq!(Counts::of_line("test result_is_kept ... ok"), None);
        let known = Counts { known: 12, ..Counts::default() };
        assert_eq!(Counts::of_line(&format!("{KNOWN}12\n")), Some(known));
    }

    #[test]
    fn what_a_program_depends_on_is_in_its_digest() {
        let folder = mqfq_testing::Folder::new();
        let (program, other) = (folder.join("program"), folder.join("below/other"));
        std::fs::create_dir(folder.join("below")).expect("a folder");
        let write = |path: &Path, text: &str| std::fs::write(path, text).expect("a file");
        write(&program, "first");
        write(&other, "first");
        let all =
            |args: &[&str]| digest(&program.to_string_lossy(), args, folder.path()).expect("files that are there");
        let before = all(&["loom"]);
        assert_eq!(before, all(&["loom"]));
        assert_ne!(before, all(&["loom", "--test-threads"]));
        write(&other, "second");
        let changed = all(&["loom"]);
        assert_ne!(before, changed);
        write(&program, "second");
        assert_ne!(changed, all(&["loom"]));
    }

    #[test]
    fn a_command_that_fails_is_broken_even_if_it_counted_nothing() {
        let counts = run_counted(&mut command("false", [""; 0]), &mut Vec::new(), SILENCE_MAX).expect("false starts");
        assert_eq!(counts, Counts { broken: true, ..Counts::default() });
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children_and_named() {
        let mut printed = Vec::new();
        let mut hangs = command("sh", ["-c", "echo $$; sleep 1000 & echo $!; wait"]);
        let said = run_counted(&mut hangs, &mut printed, Duration::from_secs(1)).unwrap_err();
        assert_eq!(said, format!("{}: it printed nothing for 1 s, so it was killed", shown(&hangs)));
        let pids = String::from_utf8(printed).expect("numbers");
        assert_eq!(pids.lines().count(), 2, "{pids}");
        // A killed process ends when it is next to run, and is there until its parent has heard of that.
        let begun = std::time::Instant::now();
        let state = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let has_ended = |pid: &str| state(pid).is_empty() || state(pid).contains(") Z ");
        for pid in pids.lines() {
            while !has_ended(pid) {
                assert!(begun.elapsed() < Duration::from_secs(60), "{}", state(pid));
                std::thread::yield_now();
            }
        }
    }
}
