//! The files that tidy looks at: what git tracks or would track, as text.

use super::source::{self, Line};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// A text file of the repository.
#[derive(Debug)]
pub struct File {
    /// Path from the repository's root, with `/`.
    pub path: String,
    /// Contents.
    pub text: String,
    /// The lines of a Rust file, taken apart; empty for other files.
    pub lines: Vec<Line>,
}

impl File {
    /// True for Rust source.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Folder that the file lies in, first component: the crate's, for source.
    pub fn folder(&self) -> &str {
        self.path.split('/').next().unwrap_or("")
    }

    /// Path without its last component; empty at the root.
    pub fn parent(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(parent, _)| parent)
    }

    /// The Rust lines that ship: 1-based number and line, without those of tests.
    pub fn shipped(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.all_lines().filter(|(_, line)| !line.test)
    }

    /// All Rust lines with their 1-based numbers.
    pub fn all_lines(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.lines.iter().enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// A set of files, sorted by path.
#[derive(Debug)]
pub struct Tree {
    /// Text files.
    pub files: Vec<File>,
    /// Every path, those of binary files too.
    pub paths: BTreeSet<String>,
}

impl Tree {
    /// Reads the repository at `root`: tracked files, and new ones that git does not ignore.
    ///
    /// # Errors
    /// One sentence if git or a file cannot be read.
    pub fn read(root: &Path) -> Result<Tree, String> {
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .map_err(|error| format!("git ls-files: {error}"))?;
        if !listed.status.success() {
            return Err(format!("git ls-files failed: {}", String::from_utf8_lossy(&listed.stderr).trim()));
        }
        let mut files = Vec::new();
        for path in String::from_utf8_lossy(&listed.stdout).split('\0').filter(|path| !path.is_empty()) {
            match std::fs::read(root.join(path)) {
                Ok(bytes) => files.push((path.to_string(), bytes)),
                // Tracked, and deleted in the working tree: it is about to go.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("{path}: {error}")),
            }
        }
        Ok(Tree::from_bytes(files))
    }

    /// A tree invented by a test: path and text of each file.
    pub fn of(files: &[(&str, &str)]) -> Tree {
        Tree::from_bytes(files.iter().map(|(path, text)| (path.to_string(), text.as_bytes().to_vec())).collect())
    }

    fn from_bytes(mut named: Vec<(String, Vec<u8>)>) -> Tree {
        named.sort();
        let paths = named.iter().map(|(path, _)| path.clone()).collect();
        let mut files = Vec::new();
        for (path, bytes) in named {
            let Ok(text) = String::from_utf8(bytes) else { continue };
            let lines = if path.ends_with(".rs") { source::lines(&text) } else { Vec::new() };
            files.push(File { path, text, lines });
        }
        mark_test_files(&mut files);
        Tree { files, paths }
    }

    /// The file at `path`.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The Rust files below `folder/`.
    pub fn rust_below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |file| {
            file.is_rust() && file.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        })
    }

    /// True if `path` is a file, or a folder that holds one.
    pub fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.paths.contains(path) || self.paths.range(folder.clone()..).next().is_some_and(|p| p.starts_with(&folder))
    }
}

/// A module that is declared under `#[cfg(test)]`, or lies in `tests/`, is a test in all of its lines.
fn mark_test_files(files: &mut [File]) {
    let mut prefixes = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        for module in source::test_modules(&file.text, &file.lines) {
            if let Some(path) = module.path {
                prefixes.push(format!("{}/{path}", file.parent()));
                continue;
            }
            let home = match file.path.rsplit('/').next() {
                Some("mod.rs" | "lib.rs" | "main.rs") => file.parent().to_string(),
                _ => file.path.trim_end_matches(".rs").to_string(),
            };
            prefixes.push(format!("{home}/{}.rs", module.name));
            prefixes.push(format!("{home}/{}/", module.name));
        }
    }
    for file in files.iter_mut() {
        let below =
            |folder: &str| file.path.starts_with(&format!("{folder}/")) || file.path.contains(&format!("/{folder}/"));
        if below("tests") || below("benches") || prefixes.iter().any(|prefix| file.path.starts_with(prefix.as_str())) {
            file.lines.iter_mut().for_each(|line| line.test = true);
        }
    }
}
