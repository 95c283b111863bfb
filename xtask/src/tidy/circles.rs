//! Files of a crate that name each other in a circle: none of them can be read, or moved, without all others.
//!
//! A file names another if a path in its code outside tests leads there: `use` items, and paths of two words or more.
//! A path is followed as the compiler does it: a module in scope goes before a crate of that name, and a name that
//! another file passes on (`use`) leads to the file that defines it. Passing a name on is no use of it.

use super::report::Report;
use super::tree::{File, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// Most files of one circle.
const LARGEST: usize = 5;

/// Crates whose files are those of other crates.
const OTHERS_FILES: &str = "lab/watched/";

/// `circles`: at most `LARGEST` files of a crate name each other in a circle.
pub fn circles(tree: &Tree, report: &mut Report) {
    let mut crates: BTreeMap<&str, Vec<&File>> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| file.is_rust() && !file.path.starts_with(OTHERS_FILES)) {
        if let Some((folder, _)) = file.path.split_once("/src/") {
            crates.entry(folder).or_default().push(file);
        }
    }
    for (folder, files) in crates {
        let modules = Modules::of(folder, &files);
        let named: Vec<BTreeSet<usize>> = (0..modules.all.len()).map(|module| modules.named(module)).collect();
        let circles = circles_of(&named);
        for circle in circles.iter().filter(|circle| circle.len() > LARGEST) {
            let member = |&module: &usize| {
                let inside = named[module].intersection(circle).map(|&other| modules.all[other].at.join("::"));
                format!("{} names {}", modules.all[module].at.join("::"), inside.collect::<Vec<String>>().join(", "))
            };
            let (size, members) = (circle.len(), circle.iter().map(member).collect::<Vec<String>>().join("; "));
            let first = circle.first().map_or(folder, |&first| modules.all[first].file);
            report.add(first, 0, format!("{size} files name each other in a circle, at most {LARGEST}: {members}"));
        }
    }
}

/// A name that `use` brings into a file.
struct Import<'a> {
    name: &'a str,
    path: Vec<&'a str>,
    /// `pub use`: passed on to others.
    passed_on: bool,
}

/// A file as a module.
struct Module<'a> {
    file: &'a str,
    /// Path of the module from the crate's root.
    at: Vec<&'a str>,
    imports: Vec<Import<'a>>,
    /// Other paths in the code.
    paths: Vec<Vec<&'a str>>,
    /// Names of items.
    defines: BTreeSet<&'a str>,
    /// How often each word stands in the code.
    words: BTreeMap<&'a str, usize>,
}

/// The modules of one crate.
struct Modules<'a> {
    all: Vec<Module<'a>>,
    by_path: BTreeMap<Vec<&'a str>, usize>,
}

impl<'a> Modules<'a> {
    fn of(folder: &str, files: &[&'a File]) -> Modules<'a> {
        let mut modules = Modules { all: Vec::new(), by_path: BTreeMap::new() };
        for file in files.iter().filter(|file| file.lines.iter().any(|line| !line.test)) {
            let inside = file.path[folder.len() + "/src/".len()..].trim_end_matches(".rs");
            let mut at: Vec<&str> = inside.split('/').collect();
            // A binary beside the library is a crate of its own.
            if at[0] == "bin" || inside == "main" && files.iter().any(|file| file.path.ends_with("/src/lib.rs")) {
                continue;
            }
            at.pop_if(|last| ["mod", "lib", "main"].contains(last));
            modules.by_path.insert(at.clone(), modules.all.len());
            modules.all.push(Module::read(file, at));
        }
        // A room whose modules the file above it lists (`mod base { pub mod cost; }`) has no file and names nothing.
        for module in 0..modules.all.len() {
            let (file, at) = (modules.all[module].file, modules.all[module].at.clone());
            for room in (1..at.len()).map(|length| &at[..length]) {
                if !modules.by_path.contains_key(room) {
                    modules.by_path.insert(room.to_vec(), modules.all.len());
                    modules.all.push(Module::empty(file, room.to_vec()));
                }
            }
        }
        modules
    }

    /// The module to which `path` leads from `from`. `None`: out of the crate, or to an item of `from` itself.
    fn resolve(&self, from: usize, path: &[&'a str], depth: u32) -> Option<usize> {
        let mut at = from;
        for (index, &word) in path.iter().enumerate() {
            at = match word {
                "crate" => *self.by_path.get(&[][..])?,
                "self" => at,
                "super" => *self.by_path.get(self.all[at].at.split_last()?.1)?,
                _ => match self.step(at, word, depth) {
                    Step::To(next) => next,
                    Step::Outside => return None,
                    Step::Item if index == 0 => return None,
                    Step::Item => return Some(at),
                },
            };
        }
        Some(at)
    }

    fn step(&self, at: usize, word: &'a str, depth: u32) -> Step {
        let module = &self.all[at];
        let child: Vec<&str> = module.at.iter().copied().chain([word]).collect();
        if let Some(&child) = self.by_path.get(&child) {
            return Step::To(child);
        }
        let imported = |name: &str| module.imports.iter().find(|import| import.name == name);
        if module.defines.contains(word) || depth == 0 {
            return Step::Item;
        }
        if let Some(import) = imported(word) {
            return self.resolve(at, &import.path, depth - 1).map_or(Step::Outside, Step::To);
        }
        let all_of = module.imports.iter().filter(|import| import.name == "*");
        let mut sources = all_of.filter_map(|import| self.resolve(at, &import.path, depth - 1));
        sources.find(|&source| self.all[source].defines.contains(word)).map_or(Step::Item, Step::To)
    }

    /// The modules that this one names.
    fn named(&self, from: usize) -> BTreeSet<usize> {
        let module = &self.all[from];
        let used = |import: &&Import| !import.passed_on || module.words.get(import.name).is_some_and(|&n| n > 1);
        let imports = module.imports.iter().filter(used).map(|import| &import.path);
        let mut named: BTreeSet<usize> =
            imports.chain(&module.paths).filter_map(|path| self.resolve(from, path, 16)).collect();
        named.remove(&from);
        named
    }
}

enum Step {
    To(usize),
    /// An item of the module, or a word that is none of its names.
    Item,
    Outside,
}

/// Each set of modules that reach each other; `named` says what each of them names.
fn circles_of(named: &[BTreeSet<usize>]) -> Vec<BTreeSet<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..named.len()).map(|module| reach(named, module)).collect();
    let circle = |from: usize| -> BTreeSet<usize> {
        reached[from].iter().copied().filter(|&other| reached[other].contains(&from)).collect()
    };
    let circles = (0..named.len()).map(|from| (from, circle(from)));
    circles.filter(|(from, circle)| circle.first() == Some(from)).map(|(_, circle)| circle).collect()
}

/// The modules that this one names, that those name, and so on.
fn reach(named: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(module) = left.pop() {
        left.extend(named[module].iter().filter(|&&next| reached.insert(next)));
    }
    reached
}

/// Words that name an item.
const ITEMS: &[&str] = &["const", "enum", "fn", "static", "struct", "trait", "type", "union"];

impl<'a> Module<'a> {
    fn empty(file: &'a str, at: Vec<&'a str>) -> Module<'a> {
        let (imports, paths) = (Vec::new(), Vec::new());
        Module { file, at, imports, paths, defines: BTreeSet::new(), words: BTreeMap::new() }
    }

    fn read(file: &'a File, at: Vec<&'a str>) -> Module<'a> {
        let tokens: Vec<&str> = file.shipped().flat_map(|(_, line)| tokens(&line.code)).collect();
        let mut module = Module::empty(&file.path, at);
        for &word in &tokens {
            *module.words.entry(word).or_default() += 1;
        }
        let mut next = 0;
        while next < tokens.len() {
            let before = next.checked_sub(1).map_or("", |before| tokens[before]);
            let after = tokens.get(next + 1).copied().unwrap_or_default();
            if tokens[next] == "use" && after != "<" {
                next = module.import(&tokens, next + 1, &[], [")", "pub"].contains(&before));
            } else if after == "::" && is_word(tokens[next]) && !["::", "."].contains(&before) {
                let leads = |pair: &&[&str]| is_word(pair[0]) && pair.get(1) == Some(&"::");
                let steps = tokens[next..].chunks(2).take_while(leads).count();
                let path = tokens[next..].iter().step_by(2).take(steps + 1).copied();
                module.paths.push(path.filter(|word| is_word(word)).collect());
                next += steps * 2;
            } else if ITEMS.contains(&tokens[next]) {
                module.defines.insert(after);
            }
            next += 1;
        }
        module
    }

    /// Reads the tree of a `use` from `at` on: where it ends.
    fn import(&mut self, tokens: &[&'a str], mut at: usize, before: &[&'a str], passed_on: bool) -> usize {
        let mut path = before.to_vec();
        let mut name = None;
        while let Some(&token) = tokens.get(at) {
            match token {
                "{" => {
                    at += 1;
                    while tokens.get(at).is_some_and(|&token| token != "}") {
                        at = self.import(tokens, at, &path, passed_on);
                        at += usize::from(tokens.get(at) == Some(&","));
                    }
                    return at + 1;
                }
                "," | "}" | ";" => break,
                "as" => {
                    at += 1;
                    name = tokens.get(at).copied();
                }
                "*" => name = Some(token),
                "self" if !path.is_empty() => {}
                word if is_word(word) => path.push(word),
                _ => {}
            }
            at += 1;
        }
        if let Some(name) = name.or(path.last().copied()) {
            self.imports.push(Import { name, path, passed_on });
        }
        at
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// Words, `::`, and each other character that is not blank.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            c if c.is_ascii_alphanumeric() || c == '_' => {
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())
            }
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}
