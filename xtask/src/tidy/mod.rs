//! Rules of the project that no compiler knows, as a function of the tree's text.
//!
//! `cargo test` and `cargo xtask tidy` both run [`check`] on the working tree; `tests/tidy.rs` also plants a violation
//! of every rule and demands that it is found, because a check that cannot fail says nothing.
//!
//! | file | rules about |
//! |---|---|
//! | `edges.rs` | which crate may depend on which |
//! | `circles.rs` | files that name each other in a circle |
//! | `words.rs` | words that a crate must not say: clocks, threads, sleeps, floats, locks |
//! | `orderings.rs` | the argument that each atomic ordering must carry |
//! | `seeds.rs` | generated tests that draw other cases each time |
//! | `shape.rs` | size of files, length of lines, white space, unfinished work, what a file opens with |
//! | `pages.rs` | documents: one title, links that lead somewhere, no page without links, no word with two meanings |
//! | `reading.rs` | how easily pages for users can be read |

pub mod circles;
pub mod edges;
pub mod orderings;
pub mod pages;
pub mod reading;
pub mod report;
pub mod seeds;
pub mod shape;
pub mod source;
pub mod tree;
pub mod words;

use report::{Finding, Report};
use tree::Tree;

/// A rule: looks at the tree and reports.
pub type Rule = fn(&Tree, &mut Report);

/// Every rule by name.
pub const RULES: &[(&str, Rule)] = &[
    ("edges", edges::crate_edges),
    ("no-external", edges::no_external),
    ("no-async-runtime", edges::no_async_runtime),
    ("manifest", edges::manifest),
    ("circles", circles::circles),
    ("clock", words::clock),
    ("threads", words::threads),
    ("sleep", words::sleep),
    ("sync", words::sync),
    ("floats", words::floats),
    ("old-compiler", words::old_compiler),
    ("front-names-sched", words::front_names_sched),
    ("unsafe", words::no_unsafe),
    ("async", words::no_async),
    ("orderings", orderings::argued),
    ("budget", shape::budget),
    ("length", shape::length),
    ("columns", shape::columns),
    ("opening", shape::opening),
    ("white-space", shape::white_space),
    ("unfinished", shape::unfinished),
    ("ignored-tests", shape::ignored_tests),
    ("doc-tests", shape::doc_tests),
    ("machine-paths", shape::machine_paths),
    ("file-names", shape::file_names),
    ("seeds", seeds::seeds),
    ("one-title", pages::one_title),
    ("links", pages::links),
    ("pages-named", pages::pages_named),
    ("linked", pages::linked),
    ("one-meaning", pages::one_meaning),
    ("tests-named", pages::tests_named),
    ("log-lines", pages::log_lines),
    ("reading-level", reading::level),
    ("release-notes", pages::release_notes),
    ("config-keys", pages::config_keys),
    ("policy-pages", pages::policy_pages),
];

/// Findings of one rule.
///
/// # Panics
/// If there is no rule of that name: a misspelt rule in a test must not pass for silence.
pub fn check_rule(tree: &Tree, name: &str) -> Vec<Finding> {
    let (rule, run) = RULES.iter().find(|(rule, _)| *rule == name).unwrap_or_else(|| panic!("there is no rule {name}"));
    let mut report = Report { rule, findings: Vec::new() };
    run(tree, &mut report);
    report.findings
}

/// Findings of all rules, by path and line.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|(rule, _)| check_rule(tree, rule)).collect();
    findings.sort();
    findings
}
