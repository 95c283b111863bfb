//! Modules that name each other in a circle: none of them can be read, or moved, without all others.

use super::Report;
use super::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// Where the block layer's modules are. A module is a file there, with the folder of its name.
const MODULES: &str = "blk/src/";

/// `circles`: the modules of the block layer name each other in one direction. Two that name each other are one noun in
/// two files, and are let be; tests may name what they like.
pub fn circles(tree: &Tree, report: &mut Report) {
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let Some(module) = file.path.strip_prefix(MODULES).map(first_part).filter(|&module| module != "lib") else {
            continue;
        };
        let named = uses.entry(module).or_default();
        for line in file.lines.iter().filter(|line| !line.test) {
            named.extend(line.code.split("crate::").skip(1).map(first_part));
        }
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> = uses.keys().map(|&module| (module, reach(&uses, module))).collect();
    let mut told = BTreeSet::new();
    for (&module, from_here) in &reached {
        let circle: Vec<&str> = from_here.iter().copied().filter(|other| reached[other].contains(module)).collect();
        if circle.len() > 2 && !told.contains(module) {
            report.add(
                &format!("{MODULES}{module}"),
                0,
                format!("names itself by way of others: {}", circle.join(", ")),
            );
            told.extend(circle);
        }
    }
}

/// The modules that this one names, that those name, and so on.
fn reach<'a>(uses: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(module) = left.pop() {
        let named = uses.get(module).into_iter().flatten();
        left.extend(named.filter(|&&name| uses.contains_key(name) && reached.insert(name)));
    }
    reached
}

/// The name that a path begins with.
fn first_part(path: &str) -> &str {
    path.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').next().unwrap_or_default()
}
