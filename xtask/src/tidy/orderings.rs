//! Every atomic ordering carries its argument: a comment that starts with an ordering's name and says with which other
//! it pairs, or why it needs none.
//!
//! A fence has no other ordering than its own; there "Pairs with …" is enough.
//!
//! Outside sched, a file of plain counters may argue once for all of them: "every access is Relaxed", and why.
//!
//! ```text
//! // Release: pairs with the Acquire in `HwCtx::run`. A thread that sees the mark also sees the request behind it.
//! self.nonempty.store(true, Release);
//! ```

use super::report::Report;
use super::source::has_word;
use super::tree::{File, Tree};
use super::words::EXAMPLES;

/// Weakest first.
const ORDERINGS: &[&str] = &["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"];

/// Comment of a file of counters that argues for all of them.
const ONCE: &str = "every access is Relaxed";

/// How far above an operation its comment may end, in lines: one comment may cover a few operations in a row.
const REACH_LINES: usize = 6;

/// `orderings`: where code names an ordering, a comment near it argues for one.
pub fn argued(tree: &Tree, report: &mut Report) {
    let files = tree.files.iter().filter(|file| file.is_rust() && file.folder() != "xtask");
    for file in files.filter(|file| !file.path.starts_with(EXAMPLES)) {
        let once = file.folder() != "sched" && file.lines.iter().any(|line| line.comment.contains(ONCE));
        let asked = if once { &ORDERINGS[1..] } else { ORDERINGS };
        for (number, line) in file.shipped() {
            let Some(ordering) = asked.iter().find(|ordering| has_word(&line.code, ordering)) else { continue };
            let imports = file.path == "sched/src/base/sync.rs" || is_import(file, number);
            if !imports && !has_argument(file, number) {
                report.add(
                    &file.path,
                    number,
                    format!("{ordering} without its argument (`// {ordering}: pairs with …`)"),
                );
            }
        }
    }
}

/// The line belongs to a `use` item.
fn is_import(file: &File, number: usize) -> bool {
    let upwards = file.lines[..number].iter().rev().map(|line| line.code.trim());
    let mut within = upwards.take_while(|code| !code.is_empty());
    let first = within.next().unwrap_or("");
    let starts = |code: &str| code.starts_with("use ") || code.starts_with("pub(crate) use ");
    starts(first) || within.take_while(|code| !code.ends_with([';', '}'])).any(starts)
}

/// A comment on the line or within reach above it, or the block of comments that ends there, begins with an ordering.
fn has_argument(file: &File, number: usize) -> bool {
    let index = number - 1;
    let mut first = index.saturating_sub(REACH_LINES);
    // A long argument counts from its first line, however far above that is.
    while first > 0 && file.lines[first].code.trim().is_empty() && !file.lines[first].comment.is_empty() {
        first -= 1;
    }
    let is_fence = has_word(&file.lines[index].code, "fence");
    file.lines[first..=index].iter().any(|line| {
        let comment = line.comment.as_str();
        is_fence && comment.contains("airs with") || ORDERINGS.iter().any(|ordering| names_first(comment, ordering))
    })
}

/// "AcqRel: …", "Acquire/Relaxed: …", "SeqCst, both: …": a colon before the clause ends.
fn names_first(comment: &str, ordering: &str) -> bool {
    comment.match_indices(ordering).any(|(at, _)| {
        let rest = &comment[at + ordering.len()..];
        rest.find([':', '.', ';']).is_some_and(|end| rest[end..].starts_with(':'))
    })
}
