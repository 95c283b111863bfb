//! Mutants with no observable effect, and the argument for each.
//!
//! `lab/mutants/argued.txt` lists them. A line that begins at the margin names a mutant, as the report of missed ones
//! prints it; the indented lines below say why it and those above it are equivalent:
//!
//! ```text
//! lab/policies/src/offset_order.rs: rank: ^ is |: bits ^= bits >> 30;
//!     Ranks decide a tree's shape, not its order.
//! ```
//! A mutant is named by the text of its line and not by a number, so an argument holds as long as the line that it is
//! about, and one that names nothing any more is an error.

use crate::Mutated;
use crate::find::Mutant;
use std::collections::BTreeSet;
use std::path::Path;

/// Mutants by name.
#[derive(Default)]
pub struct Argued(BTreeSet<String>);

/// The name of a mutant: file, function, change, and the line that it begins in.
pub fn name(mutated: &Mutated, mutant: &Mutant) -> String {
    let line = mutated.source.lines().nth(mutant.line - 1).unwrap_or("").trim();
    format!("{}: {}: {}: {line}", mutated.file, mutant.function, mutant.what)
}

impl Argued {
    /// The list of a tree; empty if it has none.
    ///
    /// # Errors
    /// One sentence if a mutant has no argument.
    pub fn of(tree: &Path) -> Result<Argued, String> {
        match std::fs::read_to_string(tree.join("lab/mutants/argued.txt")) {
            Ok(text) => Argued::read(&text),
            Err(_) => Ok(Argued::default()),
        }
    }

    fn read(text: &str) -> Result<Argued, String> {
        let (mut names, mut open) = (BTreeSet::new(), None);
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            if line.starts_with(' ') {
                open = None;
            } else {
                names.insert(line.trim_end().to_owned());
                open = Some(line);
            }
        }
        match open {
            Some(line) => Err(format!("argued.txt ends with {line}, which no indented line argues about")),
            None => Ok(Argued(names)),
        }
    }

    /// Whether it is among them.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Argued mutants of `file` that are not among `names`: the code that they are about was changed.
    pub fn stale<'a>(&'a self, file: &str, names: &BTreeSet<String>) -> Vec<&'a str> {
        let prefix = format!("{file}: ");
        self.0.iter().filter(|name| name.starts_with(&prefix) && !names.contains(*name)).map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find::{Found, Kinds};

    #[test]
    fn a_mutant_is_named_by_its_line_and_needs_an_argument() {
        let text = "# why\n\na.rs: b: == is !=: c == d\na.rs: b: is false: fn b() -> bool {\n    Because.\n";
        let argued = Argued::read(text).unwrap();
        let source = "fn b() -> bool {\n    c == d\n}\n".to_owned();
        let mutants = Found::of(&source, 1, Kinds::Operators).unwrap().mutants;
        let mutated = Mutated { file: "a.rs".into(), source, numbers: 1..4, kinds: Kinds::Operators };
        let names: BTreeSet<String> = mutants.iter().map(|mutant| name(&mutated, mutant)).collect();
        assert_eq!(names.iter().map(|name| argued.has(name)).collect::<Vec<_>>(), [true, true, false], "{names:?}");
        assert_eq!(argued.stale("a.rs", &names), [""; 0]);
        assert_eq!(argued.stale("a.rs", &BTreeSet::new()).len(), 2);
        let refused = Argued::read("a.rs: b: is true: fn b() -> bool {\n").map(|_| ()).unwrap_err();
        assert!(refused.contains("argues"), "{refused}");
    }
}
