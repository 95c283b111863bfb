//! Size and form of files, and nothing left unfinished.

use super::report::Report;
use super::source::has_word;
use super::tree::{File, Tree};

/// Beyond this many lines, ask which noun wants its own file.
const LINES_MAX: usize = 800;

/// Most words of Markdown without records: what a newcomer can read.
pub const DOC_WORDS_MAX: usize = 60_000;

/// Most files in the tree.
pub const FILES_MAX: usize = 1_200;

/// Files that may be longer, each with the reason.
const LONG: &[(&str, &str)] = &[("Cargo.lock", "written by cargo")];

/// Runs without a blank in Markdown, records left out.
pub fn doc_words(tree: &Tree) -> usize {
    let pages = tree.files.iter().filter(|file| file.path.ends_with(".md") && !file.path.contains("/record/"));
    pages.map(|page| page.text.split_whitespace().count()).sum()
}

/// `budget`: words of docs and number of files stay within [`DOC_WORDS_MAX`] and [`FILES_MAX`].
pub fn budget(tree: &Tree, report: &mut Report) {
    for (count, max, what) in
        [(doc_words(tree), DOC_WORDS_MAX, "words of docs"), (tree.paths.len(), FILES_MAX, "files")]
    {
        if count > max {
            report.add("", 0, format!("{count} {what}, at most {max}: `cargo xtask size` counts them"));
        }
    }
}

/// `length`: no file beyond 800 lines without a reason.
pub fn length(tree: &Tree, report: &mut Report) {
    for file in &tree.files {
        let count = file.text.lines().count();
        // Pictures, records and the lock files of other workspaces are written by commands.
        let suffixes = [".svg", "/Cargo.lock"];
        let is_written =
            suffixes.iter().any(|suffix| file.path.ends_with(suffix)) || file.path.starts_with("lab/record/");
        let excused = is_written || LONG.iter().any(|(path, _)| file.path == *path);
        if count > LINES_MAX && !excused {
            report.add(&file.path, 0, format!("{count} lines: which noun wants its own file?"));
        }
    }
    for (path, _) in LONG.iter().filter(|(path, _)| !tree.has(path) && tree.has("Cargo.toml")) {
        report.add(path, 0, "is excused for its length and does not exist");
    }
}

/// Lines of code and comments end here.
const COLUMNS_MAX: usize = 120;

/// `columns`: lines of Rust end at 120 columns. The insides of strings may be longer, because a message is one line
/// wherever it is searched for; so may rows of tables and pictures in comments, and what has no blank to break at.
pub fn columns(tree: &Tree, report: &mut Report) {
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let mut fenced = false;
        for ((number, line), text) in file.all_lines().zip(file.text.lines()) {
            let comment = line.comment.trim_start_matches(['/', '!']).trim();
            let is_comment = line.code.trim().is_empty() && !comment.is_empty();
            let is_fence = is_comment && comment.starts_with("```");
            fenced = if is_comment { fenced != is_fence } else { false };
            let is_drawn = fenced || is_fence || comment.starts_with('|') || !comment.contains(' ');
            let beside = if line.comment.is_empty() { 0 } else { "//".len() + line.comment.chars().count() };
            let length = if is_comment { text.chars().count() } else { line.code.chars().count() + beside };
            if length > COLUMNS_MAX && text.chars().count() > COLUMNS_MAX && !(is_comment && is_drawn) {
                report.add(&file.path, number, format!("{length} columns, at most {COLUMNS_MAX}"));
            }
        }
    }
}

/// `opening`: a source file says first what it is. (The tests of a module in a file of their own are named after it.)
pub fn opening(tree: &Tree, report: &mut Report) {
    let is_tests_of = |file: &File| file.path.ends_with("tests.rs") && file.lines.iter().all(|line| line.test);
    for file in tree.files.iter().filter(|file| file.is_rust() && !is_tests_of(file)) {
        let first = file.text.lines().find(|line| !line.starts_with("#!["));
        if !first.is_some_and(|line| line.starts_with("//!")) {
            report.add(&file.path, 1, "does not open with what it answers (`//!`)");
        }
    }
    for file in tree.files.iter().filter(|file| is_shell(file)) {
        if !file.text.lines().any(|line| line == "set -euo pipefail") {
            report.add(&file.path, 1, "a script fails at its first error: `set -euo pipefail`");
        }
    }
}

fn is_shell(file: &File) -> bool {
    file.path.ends_with(".sh")
        || file.text.starts_with("#!") && file.text.lines().next().is_some_and(|l| l.ends_with("sh"))
}

/// C that is for a kernel: its style indents by tabs.
fn is_for_kernel(file: &File) -> bool {
    let is_c = [".c", ".h", "Kbuild"].iter().any(|end| file.path.ends_with(end));
    is_c && file.path.starts_with("kernel/")
}

/// `white-space`: no tabs, none at the end of a line, and a last line that ends.
pub fn white_space(tree: &Tree, report: &mut Report) {
    for file in tree.files.iter().filter(|file| !file.path.ends_with(".svg")) {
        for (index, line) in file.text.split('\n').enumerate() {
            if line.contains('\t') && !is_for_kernel(file) {
                report.add(&file.path, index + 1, "a tab");
            }
            if line.ends_with([' ', '\r']) {
                report.add(&file.path, index + 1, "white space at the end of the line");
            }
        }
        if !file.text.is_empty() && (!file.text.ends_with('\n') || file.text.ends_with("\n\n")) {
            report.add(&file.path, file.text.lines().count(), "the file ends with exactly one line's end");
        }
    }
}

/// `unfinished`: what is missing is an issue, not a mark in the code, and a merge has been decided. (The words are
/// split here, or this file would be its own finding.)
pub fn unfinished(tree: &Tree, report: &mut Report) {
    let marks = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]].map(|halves| halves.concat());
    let conflicts = ["<", "=", ">"].map(|mark| mark.repeat(7));
    let macros = [["to", "do!"], ["unimple", "mented!"]].map(|halves| halves.concat());
    for file in &tree.files {
        for (index, line) in file.text.lines().enumerate() {
            for mark in marks.iter().filter(|mark| has_word(line, mark)) {
                report.add(&file.path, index + 1, format!("{mark}: open an issue, or do it"));
            }
            if conflicts.iter().any(|mark| line.split(' ').next() == Some(mark)) {
                report.add(&file.path, index + 1, "both sides of a merge: keep one");
            }
        }
        for (number, line) in file.all_lines() {
            for name in macros.iter().filter(|name| line.code.contains(name.as_str())) {
                report.add(&file.path, number, format!("{name} in place of code"));
            }
        }
    }
}

/// `ignored-tests`: a test that the suite does not run is run by a command, and says by which.
pub fn ignored_tests(tree: &Tree, report: &mut Report) {
    for file in &tree.files {
        let lines = file.all_lines().zip(file.text.lines());
        for ((number, line), text) in lines.filter(|((_, line), _)| line.code.contains("#[ignore")) {
            if !(line.code.contains("#[ignore = ") && text.contains("cargo ")) {
                report.add(&file.path, number, "an ignored test names what runs it (`#[ignore = \"…; cargo …\"]`)");
            }
        }
    }
}

/// `doc-tests`: Rust in the comments of a library is run. A crate without such a comment says `doctest = false`, which
/// spares the suite a run of rustdoc over it.
pub fn doc_tests(tree: &Tree, report: &mut Report) {
    for manifest in tree.files.iter().filter(|file| file.text.lines().any(|line| line == "doctest = false")) {
        let Some(folder) = manifest.path.strip_suffix("/Cargo.toml") else { continue };
        for file in tree.rust_below(folder) {
            let mut fenced = false;
            for (index, line) in file.text.lines().enumerate() {
                let comment = ["//!", "///"].iter().find_map(|mark| line.trim_start().strip_prefix(mark));
                let Some(language) = comment.and_then(|text| text.trim().strip_prefix("```")) else { continue };
                if !fenced && (language.is_empty() || language.starts_with("rust")) {
                    report.add(&file.path, index + 1, format!("{} says `doctest = false`", manifest.path));
                }
                fenced = !fenced;
            }
        }
    }
}

/// `machine-paths`: no path of the machine that something was written on.
pub fn machine_paths(tree: &Tree, report: &mut Report) {
    let paths = [["/wo", "rk/"], ["/ho", "me/"], ["/ro", "ot/"]].map(|halves| halves.concat());
    for file in &tree.files {
        for (index, line) in file.text.lines().enumerate() {
            for path in paths.iter().filter(|path| begins_a_path(line, path)) {
                report.add(&file.path, index + 1, format!("{path}: a path that other machines do not have"));
            }
        }
    }
}

/// True if `line` holds `path` and not as the middle of a longer path or address.
fn begins_a_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "-_.$}".contains(c))
    })
}

/// `file-names`: a file is named after a noun of the field.
pub fn file_names(tree: &Tree, report: &mut Report) {
    for path in &tree.paths {
        for part in path.split('/').map(|part| part.trim_end_matches(".rs")) {
            if ["util", "utils", "helper", "helpers", "common", "misc"].contains(&part) {
                report.add(path, 0, format!("`{part}` says nothing about what is in it"));
            }
        }
    }
}
