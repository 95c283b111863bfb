//! Keeps the results of a run that was ended before it had judged all mutants, for the next run.
//!
//! A file of lines, to which each fate is added as it is known. Its name has a hash of all that a fate depends on (the
//! crate's sources and tests, which mutants were drawn), so that a changed tree begins anew:
//!
//! ```text
//! test 0 1250 flow::tests::a_flow_is_put_back: 3 17 18
//! fate 17 caught flow::tests::a_flow_is_put_back
//! fate 18 missed 3
//! ```

use crate::judge::{Fate, Test};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file, and what it says.
pub struct Kept {
    file: Option<std::fs::File>,
    /// By number of the mutant.
    pub fates: BTreeMap<u32, Fate>,
    /// None: it is not known yet which test passes which mutant.
    pub tests: Vec<Test>,
}

impl Kept {
    /// The results of runs over sources that hash to `key`, in `folder`; without a folder nothing is kept.
    ///
    /// # Errors
    /// One sentence if the file cannot be written.
    pub fn open(folder: Option<&Path>, package: &str, key: u64) -> Result<Kept, String> {
        let mut kept = Kept { file: None, fates: BTreeMap::new(), tests: Vec::new() };
        let Some(folder) = folder else { return Ok(kept) };
        let path = folder.join(format!("{package}-{key:016x}"));
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        kept.read(&std::fs::read_to_string(&path).unwrap_or_default());
        std::fs::create_dir_all(folder).map_err(failed)?;
        kept.file = Some(std::fs::OpenOptions::new().create(true).append(true).open(&path).map_err(failed)?);
        Ok(kept)
    }

    /// The last line may be a part of one: a run can be killed.
    fn read(&mut self, text: &str) {
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            if let Some((number, fate)) = line.strip_prefix("fate ").and_then(|rest| rest.split_once(' ')) {
                self.fates.extend(number.parse().ok().zip(Fate::read(fate)));
            } else if let Some(test) = line.strip_prefix("test ").and_then(read_test) {
                self.tests.push(test);
            }
        }
    }

    /// Takes note of what became of a mutant.
    pub fn note(&mut self, number: u32, fate: Fate) {
        self.say(&format!("fate {number} {fate}\n"));
        self.fates.insert(number, fate);
    }

    /// Takes note of all tests, at once: a part of them would say that the others pass nothing.
    pub fn note_tests(&mut self, tests: Vec<Test>) {
        let line = |test: &Test| {
            let passes: Vec<String> = test.passes.iter().map(ToString::to_string).collect();
            format!("test {} {} {}: {}\n", test.binary, test.took.as_micros(), test.name, passes.join(" "))
        };
        self.say(&tests.iter().map(line).collect::<String>());
        self.tests = tests;
    }

    fn say(&mut self, lines: &str) {
        // A result that cannot be kept is found again by the next run.
        let _ = self.file.as_mut().map(|file| file.write_all(lines.as_bytes()));
    }
}

fn read_test(line: &str) -> Option<Test> {
    let (head, passes) = line.split_once(": ").or_else(|| line.strip_suffix(':').map(|head| (head, "")))?;
    let mut words = head.splitn(3, ' ');
    let binary = words.next()?.parse().ok()?;
    let took = Duration::from_micros(words.next()?.parse().ok()?);
    let passes = passes.split(' ').filter_map(|number| number.parse().ok()).collect();
    Some(Test { binary, name: words.next()?.to_owned(), took, passes })
}

/// Hash of all that a fate depends on: `words`, and every source below `folder`.
pub fn key(words: &[String], folder: &Path) -> u64 {
    let mut files = Vec::new();
    sources(folder, &mut files);
    files.sort();
    let mut hasher = DefaultHasher::new();
    words.hash(&mut hasher);
    for file in files {
        (&file, std::fs::read(&file).unwrap_or_default()).hash(&mut hasher);
    }
    hasher.finish()
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again_and_a_line_that_was_cut_is_not() {
        let folder = std::env::temp_dir().join(format!("mqfq-mutants-kept-{}", std::process::id()));
        let mut first = Kept::open(Some(&folder), "p", 7).unwrap();
        let fates = [
            (1, Fate::DoesNotCompile),
            (2, Fate::Caught("a::b".into())),
            (3, Fate::Hangs("a::c".into())),
            (4, Fate::Missed(5)),
        ];
        fates.iter().for_each(|(number, fate)| first.note(*number, fate.clone()));
        let test = |name: &str, passes: &[u32]| Test {
            binary: 2,
            name: name.into(),
            took: Duration::from_micros(1500),
            passes: passes.iter().copied().collect(),
        };
        first.note_tests(vec![test("a::b", &[2, 4]), test("none", &[])]);
        first.say("fate 5 miss");
        let again = Kept::open(Some(&folder), "p", 7).unwrap();
        assert_eq!(again.fates.into_iter().collect::<Vec<_>>(), fates);
        assert_eq!(again.tests, [test("a::b", &[2, 4]), test("none", &[])]);
        assert!(Kept::open(Some(&folder), "p", 8).unwrap().fates.is_empty(), "another tree");
        assert!(Kept::open(None, "p", 7).unwrap().fates.is_empty());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
