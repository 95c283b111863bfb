//! `cargo xtask size`: lines by crate, files, words of the docs, and words of the dialect that comments are to lose.
//!
//! | number | counts |
//! |---|---|
//! | code | lines of Rust with code on them, outside tests |
//! | comments | lines of Rust with a comment alone, outside tests |
//! | tests | lines of Rust that are not blank, in `#[cfg(test)]` items and test files |
//! | lines | all of a file, blank ones included |
//! | words of docs | runs without a blank in Markdown, tables included, records not |
//! | dialect | words of [`VAGUE`] in comments and docs, and comments that open with words of [`OPENINGS`] |

use crate::run::root;
use crate::tidy::shape::{DOC_WORDS_MAX, FILES_MAX, doc_words};
use crate::tidy::tree::{File, Tree};
use mqfq_report::table::{Align, Table};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Crates that ship, by their folder.
const PRODUCT: &[&str] =
    &["blk", "calibrate", "config", "control", "daemon", "demo", "front", "observe", "report", "sched", "ublk"];

/// Words for a person or a thing that a sentence should name.
const VAGUE: &[&str] = &["somebody", "nobody", "anybody", "whoever"];

/// Beginnings of a comment that stand for a noun.
const OPENINGS: &[&str] = &["The same", "Of ", "Those ", "That ", "Who ", "What "];

#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
struct Lines {
    files: usize,
    code: usize,
    comments: usize,
    tests: usize,
    all: usize,
}

impl Lines {
    fn of(file: &File) -> Lines {
        let mut sum = Lines { files: 1, ..Lines::default() };
        for (_, line) in file.all_lines() {
            let (has_code, has_comment) = (!line.code.trim().is_empty(), !line.comment.trim().is_empty());
            sum.all += 1;
            match (line.test, has_code, has_comment) {
                (true, true, _) | (true, _, true) => sum.tests += 1,
                (false, true, _) => sum.code += 1,
                (false, false, true) => sum.comments += 1,
                _ => {}
            }
        }
        sum
    }

    fn plus(self, other: Lines) -> Lines {
        Lines {
            files: self.files + other.files,
            code: self.code + other.code,
            comments: self.comments + other.comments,
            tests: self.tests + other.tests,
            all: self.all + other.all,
        }
    }
}

/// Counts of the whole tree.
#[derive(Default)]
struct Size {
    crates: BTreeMap<String, Lines>,
    files: usize,
    doc_words: usize,
    vague: usize,
    openings: usize,
}

impl Size {
    fn of(tree: &Tree) -> Size {
        let mut size = Size { files: tree.paths.len(), doc_words: doc_words(tree), ..Size::default() };
        for file in &tree.files {
            if file.is_rust() {
                let top = file.path.split('/').next().unwrap_or_default();
                let sum = size.crates.entry(top.into()).or_default();
                *sum = sum.plus(Lines::of(file));
                for (_, line) in file.all_lines() {
                    size.vague += vague(&line.comment);
                }
                size.openings += openings(file);
            } else if file.path.ends_with(".md") {
                size.vague += vague(&file.text);
            }
        }
        size
    }

    fn sum(&self, is_in: impl Fn(&str) -> bool) -> Lines {
        let rows = self.crates.iter().filter(|(name, _)| is_in(name));
        rows.fold(Lines::default(), |sum, (_, lines)| sum.plus(*lines))
    }
}

fn vague(text: &str) -> usize {
    let words = text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
    words.filter(|word| VAGUE.contains(&word.to_lowercase().as_str())).count()
}

/// Comments that begin with a word of [`OPENINGS`]: the first lines of runs of comment lines.
fn openings(file: &File) -> usize {
    let mut count = 0;
    let mut is_behind_comment = false;
    for (_, line) in file.all_lines() {
        let text = line.comment.trim_start_matches(['/', '!']).trim();
        let continues = is_behind_comment && line.code.trim().is_empty();
        count += usize::from(!continues && OPENINGS.iter().any(|opening| text.starts_with(opening)));
        is_behind_comment = !text.is_empty() && line.code.trim().is_empty();
    }
    count
}

/// Prints the table, or JSON.
///
/// # Errors
/// One sentence if the tree cannot be read.
pub fn size(is_json: bool) -> Result<(), String> {
    let size = Size::of(&Tree::read(root())?);
    let is_product = |name: &str| PRODUCT.contains(&name);
    let sums = [("product", size.sum(is_product)), ("all Rust", size.sum(|_| true))];
    if is_json {
        let row = |lines: &Lines| {
            let Lines { files, code, comments, tests, all } = lines;
            json!({ "files": files, "code": code, "comments": comments, "tests": tests, "lines": all })
        };
        let crates: BTreeMap<&String, Value> = size.crates.iter().map(|(name, lines)| (name, row(lines))).collect();
        println!(
            "{:#}",
            json!({ "crates": crates, "product": row(&sums[0].1), "rust": row(&sums[1].1), "files": size.files,
                    "doc_words": size.doc_words, "vague_words": size.vague, "vague_openings": size.openings })
        );
        return Ok(());
    }
    let right = |name| (name, Align::Right);
    let names = ["files", "code", "comments", "tests", "lines"];
    let columns: Vec<(&str, Align)> = [("crate", Align::Left)].into_iter().chain(names.map(right)).collect();
    let mut table = Table::new(&columns);
    let rows = size.crates.iter().map(|(name, lines)| (name.as_str(), *lines)).chain(sums);
    for (name, Lines { files, code, comments, tests, all }) in rows {
        let mark = if is_product(name) { " *" } else { "" };
        let mut cells = vec![format!("{name}{mark}")];
        cells.extend([files, code, comments, tests, all].map(|count| count.to_string()));
        table.row(cells);
    }
    print!("{}", table.render());
    println!("* ships");
    let Size { files, doc_words, vague, openings, .. } = size;
    println!(
        "{files} files of {FILES_MAX}; {doc_words} words of docs without records, of {DOC_WORDS_MAX}; {vague} vague words, \
         {openings} vague openings"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_counts_once_by_what_is_on_it() {
        let text = "//! What it is.\n\n/// The same.\nfn a() {} // that\n#[cfg(test)]\nmod tests {\n    // nobody\n}\n";
        let tree =
            Tree::of(&[("blk/src/lib.rs", text), ("docs/a.md", "two words of whoever"), ("x/record/a.md", "no")]);
        let size = Size::of(&tree);
        let expected = Lines { files: 1, code: 1, comments: 2, tests: 4, all: 8 };
        assert_eq!(size.crates["blk"], expected);
        assert_eq!((size.files, size.doc_words), (3, 4));
        // Two vague words, and two comments with a vague opening.
        assert_eq!((size.vague, size.openings), (2, 2));
    }
}
