//! Every command of README.md and of the pages in docs/use is run as it is written, or a reason stands here.
//!
//! A command is a line of a block `sh`, or of a block `console` behind `$ `, without its comment. It runs in a shell
//! whose `mqfq` is the built binary. Paths in /tmp, /run, /etc and /usr/local are in the test's folder instead, where
//! only the page's folders exist: none for the README, those of the package for the other pages. The answer of
//! `mqfq ctl` in a block `console` is compared with the page: numbers and the width of columns may differ.

use crate::server::Folder;
use mqfq_testing::tools::need;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Beginnings of commands that no test can run as they are written, and the reasons.
const SKIPPED: &[(&str, &str)] = &[
    ("cargo run --release -p mqfq-demo", "half a minute; `cargo xtask ci` runs it"),
    ("cargo xtask ", "a chore of the repository, which runs this test or builds packages"),
    ("cargo install ", "compiles for minutes, and takes tools from the network"),
    ("cargo lab ", "the laboratory, which has tests of its own"),
    ("MQFQ_BLESS=1 cargo test ", "writes the picture of the page"),
    ("apt-get install ", "changes the machine; the package's own test installs it"),
    ("apt install ", "changes the machine, and needs the kernel's headers"),
    ("editor ", "asks a person"),
    ("systemctl ", "needs systemd; the package's own test has it"),
    ("journalctl ", "needs systemd"),
    ("modprobe ", "needs root and the module; the kernel guests of `cargo xtask guest` load it"),
    ("echo ", "writes to files of a kernel with the module; the kernel guests do"),
    ("cat /sys/", "reads a file of a kernel with the module; the kernel guests do"),
    ("ionice ", "needs a kernel with the module"),
    ("scx_pmqfq", "needs root and Linux 6.12 with sched_ext"),
    ("ssh ", "needs another machine"),
    ("mqfq calibrate ", "takes a minute or a drive; `calibrate::` runs its flags"),
    ("mqfq ctl --socket tcp:storage.example:7000 ", "needs that machine; `tls::` runs these flags"),
    ("curl --cacert ", "needs that machine; `tls::` runs these flags"),
];

/// A command of a page.
struct Line {
    page: PathBuf,
    number: usize,
    /// Without the comment.
    command: String,
    /// The answer that the page shows.
    answer: Vec<String>,
}

impl Line {
    fn at(&self) -> String {
        format!("{}:{}: {}", self.page.strip_prefix(ROOT).unwrap_or(&self.page).display(), self.number, self.command)
    }

    fn skipped(&self) -> Option<&'static str> {
        SKIPPED.iter().find(|(start, _)| self.command.starts_with(start)).map(|(start, _)| *start)
    }

    /// The comment begins with two spaces and a hash, which no command has.
    fn new(page: &Path, number: usize, text: &str) -> Line {
        let command = text.split(" # ").next().unwrap_or(text).trim().to_owned();
        Line { page: page.to_owned(), number, command, answer: Vec::new() }
    }
}

/// The commands of a page.
fn lines(page: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let (mut lines, mut block): (Vec<Line>, _) = (Vec::new(), None);
    for (number, text) in (1..).zip(text.lines()) {
        match (block, text.strip_prefix("```")) {
            (None, Some(kind)) => block = Some(kind),
            (Some(_), Some(_)) => block = None,
            (Some("sh"), None) if !text.trim().is_empty() => lines.push(Line::new(page, number, text)),
            (Some("console"), None) => match (text.strip_prefix("$ "), lines.last_mut()) {
                (Some(command), _) => lines.push(Line::new(page, number, command)),
                (None, Some(line)) => line.answer.push(text.to_owned()),
                (None, None) => panic!("{}:{number}: an answer without a command", page.display()),
            },
            _ => {}
        }
    }
    lines
}

/// The pages of docs/use, in the order of their names.
fn pages() -> Vec<PathBuf> {
    let all = std::fs::read_dir(format!("{ROOT}/docs/use")).unwrap().map(|entry| entry.unwrap().path());
    let all = all.filter(|path| path.extension().is_some_and(|it| it == "md"));
    BTreeSet::from_iter(all).into_iter().collect()
}

fn readme() -> PathBuf {
    PathBuf::from(format!("{ROOT}/README.md"))
}

/// The config of the README: its first block of TOML.
fn config_of_readme() -> String {
    let text = std::fs::read_to_string(readme()).unwrap();
    let block = text.split_once("```toml\n").and_then(|(_, rest)| rest.split_once("```\n"));
    block.expect("the README has a config").0.to_owned()
}

/// `text` with the paths of a machine in `folder`.
fn moved(text: &str, folder: &Path) -> String {
    let folder = folder.display();
    // /tmp first, where the folder may be.
    ["/tmp/", "/run/", "/etc/", "/usr/local/"].into_iter().fold(text.to_owned(), |text, place| {
        [' ', ':', '=', '"', '\'']
            .into_iter()
            .fold(text, |text, before| text.replace(&format!("{before}{place}"), &format!("{before}{folder}{place}")))
    })
}

/// A shell on a machine that is a folder, and the server that was started in it.
struct Session {
    folder: Folder,
    /// The folder where commands run.
    here: PathBuf,
    /// Lines `export` so far.
    exports: String,
    server: Option<Started>,
}

/// A command that runs until it is ended.
struct Started {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Started {
    /// Reads stdout until a line has `part`, and returns that line.
    fn wait_for(&mut self, part: &str) -> String {
        let lines = std::iter::from_fn(|| {
            let mut line = String::new();
            (self.stdout.read_line(&mut line).unwrap() > 0).then_some(line)
        });
        let all: Vec<String> = lines.take_while_inclusive(part);
        let last = all.last().filter(|line| line.contains(part));
        last.unwrap_or_else(|| panic!("it ended without saying {part:?}: {all:?}")).clone()
    }

    fn end(mut self) {
        // SAFETY: kill touches no memory; the child is ours and not yet waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) }, 0);
        self.must_end();
    }

    /// Ends a command that catches no signal. Not by SIGINT: a shell starts background commands with SIGINT ignored,
    /// and their children inherit that.
    fn terminate(mut self) {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) }, 0);
        self.child.wait().unwrap();
    }

    fn must_end(&mut self) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "it ended with {status}: {rest}");
    }
}

/// `Iterator::take_while`, with the first line that has a part.
trait TakeWhileInclusive: Iterator<Item = String> + Sized {
    fn take_while_inclusive(self, part: &str) -> Vec<String> {
        let mut all = Vec::new();
        for line in self {
            let is_last = line.contains(part);
            all.push(line);
            if is_last {
                break;
            }
        }
        all
    }
}

impl<I: Iterator<Item = String>> TakeWhileInclusive for I {}

impl Session {
    /// A shell in `here` of the folder, with `mqfq.toml`.
    fn new(here: &str, folders: &[&str], config: &str) -> Session {
        let folder = Folder::new();
        for name in ["bin", "tmp", here].iter().chain(folders) {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        let binary = env!("CARGO_BIN_EXE_mqfq");
        std::os::unix::fs::symlink(binary, folder.join("bin/mqfq")).unwrap();
        // The binary is built already.
        let cargo = format!("#!/bin/sh\n[ \"$1 $2 $3\" = 'run --release --' ] && shift 3 && exec '{binary}' \"$@\"\n");
        std::fs::write(folder.join("bin/cargo"), cargo).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.join("bin/cargo"), mode).unwrap();
        std::fs::write(folder.join(here).join("mqfq.toml"), moved(config, folder.path())).unwrap();
        let here = folder.join(here);
        Session { folder, here, exports: String::new(), server: None }
    }

    /// A shell that runs `command`, not started yet.
    fn shell(&self, command: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        let script = format!("{}{}", self.exports, moved(command, self.folder.path()));
        shell.args(["-c", &script]).current_dir(&self.here).stdin(Stdio::null());
        let bin = self.folder.join("bin");
        shell.env("PATH", format!("{}:{path}", bin.display()));
        // The default address, which is in the binary.
        shell.env("MQFQ_SOCKET", format!("unix:{}", self.folder.join("run/mqfq/control.sock").display()));
        shell
    }

    fn start(&self, command: &str) -> Started {
        let mut shell = self.shell(&format!("exec {command}"));
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Started { child, stdout }
    }

    /// Runs a command of a page by its kind: a server, a program for a terminal, or one that ends by itself.
    fn run(&mut self, line: &Line) {
        let command = line.command.trim_end_matches('&').trim();
        if command.starts_with("export ") {
            self.exports += &format!("{}\n", moved(command, self.folder.path()));
        } else if command.contains(" serve ") {
            let replaces = command.contains("--replace");
            if !replaces {
                self.stop();
            }
            let mut server = self.start(command);
            server.wait_for("ready: ");
            if let Some(mut old) = self.server.replace(server) {
                old.must_end();
            }
        } else if command.starts_with("mqfq top") {
            self.run_top(command);
        } else if command.starts_with("mqfq page") {
            let mut page = self.start(command);
            let url = page.wait_for("http://127.0.0.1:").trim().to_owned();
            let html = self.shell(&format!("curl -sSfL -b none '{url}'")).output().unwrap();
            assert!(String::from_utf8_lossy(&html.stdout).starts_with("<!doctype html>"), "{url}: {html:?}");
            page.terminate();
        } else {
            let output = self.output(command);
            match line.answer.first().filter(|_| command.starts_with("mqfq ")) {
                Some(_) => self.compare(line, &output),
                None => assert!(output.status.success(), "{}: {output:?}", line.at()),
            }
        }
    }

    /// Output of a command that ends by itself. A verdict takes two readings, a second apart, which a reader waits for
    /// too.
    fn output(&self, command: &str) -> Output {
        loop {
            // A command that never ends fails the test, and does not hang it.
            let mut shell = self.shell("timeout 120 sh -c \"$ONE\"");
            let output = shell.env("ONE", moved(command, self.folder.path())).output().unwrap();
            if !String::from_utf8_lossy(&output.stderr).contains("nothing is known of it yet") {
                return output;
            }
        }
    }

    /// Runs it in a terminal of 80 columns, until it has drawn a second's figures and its record has a line; then `q`.
    fn run_top(&mut self, command: &str) {
        let record = command.split_once("--record ").map(|(_, file)| self.here.join(file));
        let mut top = self.start(&format!("script -qefc 'stty rows 24 cols 80; {command}' /dev/null"));
        let mut screen = Vec::new();
        let drawn = |screen: &[u8]| String::from_utf8_lossy(screen).contains("sorted by");
        let has_recorded =
            || record.as_ref().is_none_or(|file| std::fs::metadata(file).is_ok_and(|file| file.len() > 0));
        // A screen is drawn twenty times a second.
        while !(drawn(&screen) && has_recorded()) {
            let mut bytes = [0; 4096];
            let read = top.stdout.read(&mut bytes).unwrap();
            assert!(read > 0, "{command} ended after {} bytes", screen.len());
            screen.extend_from_slice(&bytes[..read]);
        }
        top.child.stdin.take().unwrap().write_all(b"q").unwrap();
        let mut rest = Vec::new();
        top.stdout.read_to_end(&mut rest).unwrap();
        assert!(top.child.wait().unwrap().success(), "{command}");
    }

    /// The answer is that of the page: its words, in its lines.
    fn compare(&self, line: &Line, output: &Output) {
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        let said = String::from_utf8(said).unwrap().replace(self.folder.path().to_str().unwrap(), "");
        let words = |text: &str| {
            let digit = |c: char| if c.is_ascii_digit() { '0' } else { c };
            let squeeze = |word: &str| {
                let mut out = String::new();
                word.chars()
                    .map(digit)
                    .filter(|&c| {
                        let is_repeated = out.ends_with(c) && "0-".contains(c);
                        out.push(c);
                        !is_repeated
                    })
                    .collect::<String>()
            };
            text.split_whitespace().map(squeeze).collect::<Vec<_>>().join(" ")
        };
        let said: Vec<String> = said.lines().map(words).filter(|line| !line.is_empty()).collect();
        let told: Vec<String> = line.answer.iter().map(|line| words(line)).filter(|line| !line.is_empty()).collect();
        assert_eq!(said, told, "{} answers otherwise than the page", line.at());
    }

    fn stop(&mut self) {
        self.server.take().into_iter().for_each(|server| server.end());
    }
}

fn run_all(session: &mut Session, lines: &[Line]) {
    for line in lines.iter().filter(|line| line.skipped().is_none()) {
        println!("{}", line.at());
        session.run(line);
    }
}

#[test]
fn every_command_of_the_readme_runs_as_it_is_written() {
    need!("nbdinfo", "curl");
    let mut session = Session::new("home", &[], &config_of_readme());
    run_all(&mut session, &lines(&readme()));
    session.stop();
}

#[test]
fn every_command_of_the_pages_runs_as_it_is_written() {
    need!("curl");
    // As the pages presuppose: the folders of the package, the control socket where it is by default, and an upgrade.
    let control = "listen = \"unix:/tmp/mqfq-control.sock\"";
    let config = config_of_readme();
    assert!(config.contains(control));
    let config = config.replace(control, "listen = [\"unix:/run/mqfq/control.sock\", \"unix:/tmp/mqfq-control.sock\"]");
    let config = format!("{config}\n[server]\nupgrade = \"unix:/run/mqfq/upgrade.sock\"\n");
    let folders = ["run/mqfq", "etc/mqfq", "etc/bash_completion.d"];
    let mut session = Session::new("etc", &folders, &config);
    let packaged = std::fs::read_to_string(format!("{ROOT}/packaging/mqfq.toml")).unwrap();
    // The default address is in the binary.
    let packaged = packaged.replace("[control]", "[control]\nlisten = \"unix:/run/mqfq/control.sock\"");
    let packaged = moved(&packaged, session.folder.path());
    std::fs::write(session.folder.join("etc/mqfq/mqfq.toml"), packaged).unwrap();
    session.server = Some(session.start("mqfq serve mqfq.toml"));
    session.server.as_mut().unwrap().wait_for("ready: ");
    run_all(&mut session, &pages().iter().flat_map(|page| lines(page)).collect::<Vec<_>>());
    session.stop();
}

#[test]
fn every_reason_for_a_command_that_is_not_run_is_needed() {
    let all: Vec<Line> = pages().iter().chain([&readme()]).flat_map(|page| lines(page)).collect();
    let needed: BTreeSet<&str> = all.iter().filter_map(Line::skipped).collect();
    let told: BTreeSet<&str> = SKIPPED.iter().map(|(start, _)| *start).collect();
    assert_eq!(needed, told);
    assert!(SKIPPED.iter().all(|(_, reason)| !reason.is_empty()));
    assert!(all.len() > SKIPPED.len() + 15, "{} commands", all.len());
}
