//! Changes of one text that are planted into a copy of the tree on purpose, each behind a switch, so that one build has
//! all of them: `lab/vopr/planted.toml`, which seeds find, and `lab/mutants/planted.toml`, which tests find.

use crate::run::{command, output, root};
use std::collections::BTreeMap;
use std::path::Path;

/// Names the change that lives.
pub const SWITCH: &str = "MQFQ_PLANTED";

/// A change of one text.
#[derive(PartialEq, Eq, Debug)]
pub struct Change {
    /// Its name in the switch.
    pub name: String,
    /// The effect, as a sentence.
    pub breaks: String,
    /// Path in the tree.
    pub file: String,
    /// Text that stands once there.
    pub was: String,
    /// Text in its place, in which PLANTED is a bool.
    pub is: String,
}

impl Change {
    /// Reads the keys of a change.
    ///
    /// # Errors
    /// One sentence: a key is missing.
    pub fn read(of: &toml::Value) -> Result<Change, String> {
        let key = |key: &str| text_of(of, key).ok_or_else(|| format!("planted.toml: a change has no {key}"));
        Ok(Change { name: key("name")?, breaks: key("breaks")?, file: key("file")?, was: key("was")?, is: key("is")? })
    }

    /// The text of its file with the change in it.
    ///
    /// # Errors
    /// One sentence: `was` does not stand there once, or `is` has no switch.
    pub fn plant(&self, text: &str) -> Result<String, String> {
        let Change { name, file, was, is, .. } = self;
        match (text.matches(was.as_str()).count(), is.matches("PLANTED").count()) {
            (1, 1..) => {}
            (1, _) => return Err(format!("planted.toml: {name} has no PLANTED in what it becomes")),
            (count, _) => {
                return Err(format!("planted.toml: {file} has the text of {name} {count} times, allowed is 1"));
            }
        }
        let switch = match Path::new(file).extension().is_some_and(|kind| kind == "c") {
            true => format!("({{ char *name = getenv(\"{SWITCH}\"); name && !strcmp(name, \"{name}\"); }})"),
            false => format!(
                "std::convert::identity({{ static IS: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| \
                 std::env::var_os(\"{SWITCH}\").is_some_and(|name| name == \"{name}\")); *IS }})"
            ),
        };
        Ok(text.replacen(was, &is.replace("PLANTED", &switch), 1))
    }
}

/// Value of a key, if it is a string.
pub fn text_of(of: &toml::Value, key: &str) -> Option<String> {
    of.get(key).and_then(|value| value.as_str()).map(str::to_owned)
}

/// Entries called `kind` of the list at `path`, each read by `of`.
///
/// # Errors
/// One sentence: it cannot be read, has no entry, or `of` fails.
pub fn list<T>(path: &str, kind: &str, of: impl Fn(&toml::Value) -> Result<T, String>) -> Result<Vec<T>, String> {
    let table: toml::Table = read(path)?.parse().map_err(|error| format!("{path}: {error}"))?;
    let all = table.get(kind).and_then(|all| all.as_array()).ok_or_else(|| format!("{path} has no {kind}"))?;
    all.iter().map(of).collect()
}

/// Texts of the files that the changes are in, with all of them.
///
/// # Errors
/// One sentence, of [`Change::plant`] or of a file that cannot be read.
pub fn planted<'c>(changes: impl IntoIterator<Item = &'c Change>) -> Result<BTreeMap<String, String>, String> {
    let mut changed = BTreeMap::new();
    for change in changes {
        let text = changed.remove(&change.file).map_or_else(|| read(&change.file), Ok)?;
        changed.insert(change.file.clone(), change.plant(&text)?);
    }
    Ok(changed)
}

/// Copies the tree with all changes into `tree`.
///
/// # Errors
/// One sentence, of [`planted`] or [`copy`].
pub fn plant_all<'c>(tree: &Path, changes: impl IntoIterator<Item = &'c Change>) -> Result<(), String> {
    copy(tree, &planted(changes)?)
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))
}

// A copy of the tree in which something else stands: for chores that change the product on purpose.

/// Copies what git knows or could know, as it is now, into `tree`; `changed`: other texts of some files. A file that
/// is the same already keeps its time, so that little is built again.
///
/// # Errors
/// One sentence: git does not list them, or a file cannot be written.
pub fn copy(tree: &Path, changed: &BTreeMap<String, String>) -> Result<(), String> {
    let listed = output(&mut command("git", ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]))?;
    for name in listed.split('\0').filter(|name| !name.is_empty()) {
        let to = tree.join(name);
        let bytes = changed.get(name).map(|text| text.clone().into_bytes());
        // A file deleted without `git rm` is listed but missing.
        let Some(bytes) = bytes.or_else(|| std::fs::read(root().join(name)).ok()) else { continue };
        if std::fs::read(&to).is_ok_and(|old| old == bytes) {
            continue;
        }
        let folder = to.parent().expect("a file lies in a folder");
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        std::fs::write(&to, bytes).map_err(|error| format!("{}: {error}", to.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_is_nowhere_or_switches_nothing_is_refused() {
        let change = |file: &str, was: &str, is: &str| Change {
            name: "none".into(),
            breaks: String::new(),
            file: file.into(),
            was: was.into(),
            is: is.into(),
        };
        assert!(change("a.rs", "b", "PLANTED").plant("a a").unwrap_err().contains("0 times"));
        assert!(change("a.rs", "a", "PLANTED").plant("a a").unwrap_err().contains("2 times"));
        assert!(change("a.rs", "a", "b").plant("a").unwrap_err().contains("no PLANTED"));
        assert!(change("a.rs", "a", "PLANTED").plant("a").unwrap().contains("std::env::var_os"));
        assert!(change("a.c", "a", "PLANTED").plant("a").unwrap().contains("getenv"));
    }
}
