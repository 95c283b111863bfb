//! Findings of the rules.

use std::fmt;

/// One breach of a rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Finding {
    /// File, from the repository's root.
    pub path: String,
    /// Line, 1-based; 0: the file as a whole.
    pub line: usize,
    /// Name of the rule, as in [`RULES`](super::RULES).
    pub rule: &'static str,
    /// One sentence.
    pub says: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {} [{}]", self.path, self.line, self.says, self.rule)
    }
}

/// Where a rule puts what it finds.
pub struct Report {
    pub(super) rule: &'static str,
    pub(super) findings: Vec<Finding>,
}

impl Report {
    /// Notes a breach at `line` (1-based; 0 for the whole file) of `path`.
    pub fn add(&mut self, path: &str, line: usize, says: impl Into<String>) {
        self.findings.push(Finding { path: path.to_string(), line, rule: self.rule, says: says.into() });
    }
}
