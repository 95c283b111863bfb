//! Documents: one title each, links that lead somewhere, and no page that cannot be reached.

use super::report::Report;
use super::tree::{File, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// From where every page of `docs/` must be reached.
const ENTRANCES: &[&str] = &["README.md", "ARCHITECTURE.md", "docs/use/README.md"];

/// Where the folders of policies stand, and the page with a section about each.
const POLICIES: [(&str, &str); 2] =
    [("sched/src/policy/", "docs/use/policies.md"), ("lab/policies/src/", "docs/lab/policies.md")];

fn pages(tree: &Tree) -> impl Iterator<Item = &File> {
    tree.files.iter().filter(|file| file.path.ends_with(".md"))
}

/// The lines of a page outside fenced code, with 1-based numbers.
fn prose(file: &File) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            found.push((index + 1, line));
        }
    }
    found
}

/// `one-title`: a page has one title, in its first line.
pub fn one_title(tree: &Tree, report: &mut Report) {
    for page in pages(tree) {
        let titles: Vec<usize> =
            prose(page).into_iter().filter(|(_, line)| line.starts_with("# ")).map(|(number, _)| number).collect();
        if titles != [1] {
            report.add(&page.path, 0, format!("one title, in line 1; titles are in lines {titles:?}"));
        }
    }
}

/// A link of a page: where it stands and what it points at.
struct Link {
    line: usize,
    target: String,
}

fn links_of(page: &File) -> Vec<Link> {
    let mut found = Vec::new();
    for (number, line) in prose(page) {
        // Inline code may show a link's form without being one.
        let text: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
        for (at, _) in text.match_indices("](") {
            let rest = &text[at + 2..];
            if let Some(end) = rest.find(')') {
                found.push(Link { line: number, target: rest[..end].trim().to_string() });
            }
        }
    }
    found
}

/// The path that a relative link means, from the repository's root; none if it leaves the repository.
fn resolve(page: &File, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some(page.path.clone());
    }
    let mut parts: Vec<&str> = page.parent().split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The anchors of a page, as GitHub makes them of headings.
fn anchors(page: &File) -> BTreeSet<String> {
    let headings = prose(page).into_iter().filter(|(_, line)| line.starts_with('#'));
    headings
        .map(|(_, line)| {
            let text = line.trim_start_matches('#').trim().to_lowercase();
            text.chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

fn is_elsewhere(target: &str) -> bool {
    ["http://", "https://", "mailto:"].iter().any(|scheme| target.starts_with(scheme))
}

/// `links`: a relative link names a file of this repository, and a heading that is there.
pub fn links(tree: &Tree, report: &mut Report) {
    for page in pages(tree) {
        for Link { line, target } in links_of(page).into_iter().filter(|link| !is_elsewhere(&link.target)) {
            let (path, anchor) = target.split_once('#').map_or((target.as_str(), None), |(p, a)| (p, Some(a)));
            let Some(resolved) = resolve(page, path).filter(|resolved| tree.has(resolved)) else {
                report.add(&page.path, line, format!("({target}) leads nowhere"));
                continue;
            };
            let Some(anchor) = anchor else { continue };
            if tree.file(&resolved).is_some_and(|other| other.path.ends_with(".md") && !anchors(other).contains(anchor))
            {
                report.add(&page.path, line, format!("({target}): there is no such heading"));
            }
        }
    }
}

/// `pages-named`: a page of ours that a comment or a manifest names (`README.md`, `docs/…`) is in this repository.
pub fn pages_named(tree: &Tree, report: &mut Report) {
    let names_page = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let comments = |file: &File| file.lines.iter().map(|line| line.comment.clone()).collect();
    let lines = |file: &File| file.text.lines().map(str::to_string).collect();
    // A record says what was true on its day.
    let lives = |file: &&File| !file.path.ends_with(".lock") && !file.path.starts_with("lab/record/");
    for file in tree.files.iter().filter(lives) {
        let texts: Vec<String> = if file.is_rust() { comments(file) } else { lines(file) };
        for (index, text) in texts.iter().enumerate() {
            let words = text.split(|c| !names_page(c)).map(|word| word.trim_end_matches('.'));
            // The pages of other projects that are cited have neither form.
            let ours = |word: &&str| {
                let name = word.rsplit('/').next().and_then(|name| name.strip_suffix(".md"));
                let shouts =
                    name.is_some_and(|name| name.len() > 1 && !name.contains(|c: char| c.is_ascii_lowercase()));
                shouts || word.starts_with("docs/") && word.ends_with(".md")
            };
            for page in words.filter(ours) {
                let beside = resolve(file, page).is_some_and(|path| tree.has(&path));
                if !beside && !tree.has(page) {
                    report.add(&file.path, index + 1, format!("names {page}, which is not in this repository"));
                }
            }
        }
    }
}

/// `linked`: every page of `docs/` is linked from an entrance.
pub fn linked(tree: &Tree, report: &mut Report) {
    let entrances = ENTRANCES.iter().filter_map(|path| tree.file(path));
    let reached: BTreeSet<String> = entrances
        .flat_map(|page| {
            let targets = links_of(page).into_iter().filter(|link| !is_elsewhere(&link.target));
            targets.filter_map(|link| resolve(page, link.target.split('#').next()?)).collect::<Vec<_>>()
        })
        .collect();
    for page in pages(tree).filter(|page| page.path.starts_with("docs/") && !reached.contains(&page.path)) {
        report.add(&page.path, 0, format!("no link leads here from {}", ENTRANCES.join(" or ")));
    }
}

/// Where the words are explained.
const GLOSSARY: &str = "GLOSSARY.md";

/// `one-meaning`: a term stands in one row of the glossary. Words in parentheses behind a term do not make it another
/// term.
pub fn one_meaning(tree: &Tree, report: &mut Report) {
    let Some(page) = tree.file(GLOSSARY) else { return };
    let lines = prose(page);
    let mut rows: BTreeMap<String, usize> = BTreeMap::new();
    for (index, (number, line)) in lines.iter().enumerate() {
        let is_rule = |line: &str| line.starts_with("|---");
        let is_head = lines.get(index + 1).is_some_and(|(_, next)| is_rule(next));
        let Some(cell) = line.strip_prefix('|').and_then(|row| row.split('|').next()) else { continue };
        if is_rule(line) || is_head {
            continue;
        }
        for term in cell.split([',', ';']) {
            let term = term.split('(').next().unwrap_or(term).trim().to_lowercase();
            if let Some(first) = rows.insert(term.clone(), *number) {
                report.add(GLOSSARY, *number, format!("{term} has a meaning already, in line {first}"));
            }
        }
    }
}

/// Where invariants are listed with their tests.
const INVARIANTS: &str = "docs/inside/invariants.md";

/// `tests-named`: a test that the list of invariants names exists. Test names are claims, so a name of four words or
/// more in backticks is one.
pub fn tests_named(tree: &Tree, report: &mut Report) {
    let function = |line: &str| {
        let line = line.trim_start();
        let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?.split('(').next()?;
        Some(name.to_string())
    };
    let rust = tree.files.iter().filter(|file| file.is_rust());
    let functions: BTreeSet<String> =
        rust.flat_map(|file| file.lines.iter().filter_map(|line| function(&line.code))).collect();
    if let Some(page) = tree.file(INVARIANTS) {
        for (number, line) in prose(page) {
            for name in line.split('`').skip(1).step_by(2) {
                let is_claim = name.split('_').count() >= 4
                    && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
                if is_claim && !functions.contains(name) {
                    report.add(&page.path, number, format!("there is no test {name}"));
                }
            }
        }
    }
}

/// The page that begins each row with what a log says.
const TROUBLES: &str = "docs/use/troubleshooting.md";

/// Folders whose programs users run.
const SPEAKERS: &[&str] = &["blk", "config", "control", "daemon", "demo", "front", "ublk"];

/// `log-lines`: a sentence that the page of troubles quotes at the begin of a row is in the source of what users run.
pub fn log_lines(tree: &Tree, report: &mut Report) {
    let Some(page) = tree.file(TROUBLES) else { return };
    let speaks = |file: &&File| file.is_rust() && SPEAKERS.contains(&file.folder()) && file.path.contains("/src/");
    let said: Vec<String> = tree.files.iter().filter(speaks).map(shipped_text).collect();
    for (number, line) in prose(page) {
        let Some((quoted, _)) = line.strip_prefix("| `").and_then(|row| row.split_once('`')) else { continue };
        if !said.iter().any(|text| text.contains(quoted)) {
            report.add(&page.path, number, format!("no program says {quoted:?}"));
        }
    }
}

/// The text of a Rust file outside its tests, with strings that a backslash breaks in one piece.
fn shipped_text(file: &File) -> String {
    let mut text = String::new();
    for (line, _) in file.text.lines().zip(&file.lines).filter(|(_, line)| !line.test) {
        let line = if text.ends_with('\\') { line.trim_start() } else { line };
        text.truncate(text.trim_end_matches('\\').len());
        text.push_str(line);
        if !line.ends_with('\\') {
            text.push('\n');
        }
    }
    text
}

/// Files that read keys from TOML, and the pages that list them.
const KEYS: &[(&str, &str)] = &[
    ("daemon/src/config/mod.rs", "docs/use/config.md"),
    ("lab/sim/src/scenario/parse.rs", "docs/lab/scenarios.md"),
    ("lab/sim/src/scenario/tenant.rs", "docs/lab/scenarios.md"),
];

/// `config-keys`: docs/use/config.md has every key that the config's reader asks for, and docs/lab/scenarios.md those
/// of scenarios.
pub fn config_keys(tree: &Tree, report: &mut Report) {
    for (source, page) in KEYS {
        let (Some(reader), Some(described)) = (tree.file(source), tree.file(page)) else { continue };
        for (index, line) in reader.text.lines().enumerate() {
            for asks in [".get(\"", ".require(\"", "located(\""] {
                for (at, _) in line.match_indices(asks) {
                    let key = line[at + asks.len()..].split('"').next().unwrap_or("");
                    // As a row of a table, or as a section.
                    let forms = [format!("`{key}`"), format!("[{key}]"), format!(".{key}]")];
                    if !forms.iter().any(|form| described.text.contains(form)) {
                        report.add(source, index + 1, format!("{page} says nothing about the key {key}"));
                    }
                }
            }
        }
    }
}

/// The name that the policy of a folder below `folders` gives itself, `Descriptor::new("mqfq", ...)`, and its folder.
fn policy_name<'a>(file: &'a File, folders: &str) -> Option<(&'a str, &'a str)> {
    let (folder, "mod.rs" | "about.rs") = file.path.strip_prefix(folders)?.split_once('/')? else { return None };
    let (_, arguments) = file.text.split_once("Descriptor::new(")?;
    Some((arguments.trim_start().strip_prefix('"')?.split('"').next()?, folder))
}

/// `policy-pages`: a policy is called after its folder and has its section in the page of policies, and a section has
/// its policy.
pub fn policy_pages(tree: &Tree, report: &mut Report) {
    for (folders, page) in POLICIES {
        let named: BTreeMap<&str, &str> = tree.files.iter().filter_map(|file| policy_name(file, folders)).collect();
        let lines = tree.file(page).map(prose).unwrap_or_default();
        let described: BTreeSet<&str> = lines.iter().filter_map(|(_, line)| line.strip_prefix("## ")).collect();
        if named.is_empty() {
            continue;
        }
        for (name, folder) in &named {
            let file = format!("{folders}{folder}");
            if name.replace('-', "_") != *folder {
                report.add(&file, 0, format!("policy {name} stands in a folder of another name"));
            }
            if !described.contains(name) {
                report.add(&file, 0, format!("policy {name} has no section `## {name}` in {page}"));
            }
        }
        for name in described.iter().filter(|name| !named.contains_key(*name)) {
            report.add(page, 0, format!("there is no policy {name}"));
        }
    }
}

/// Notes that users of a release read, which the packages carry.
const CHANGELOG: &str = "CHANGELOG.md";

/// `release-notes`: a section of the changelog is `[Unreleased]`, which is the first, or has a version and its date.
/// Without the former the first version is that of the workspace.
pub fn release_notes(tree: &Tree, report: &mut Report) {
    let Some(page) = tree.file(CHANGELOG) else { return };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_dated = |text: &str| {
        let parts: Vec<&str> = text.split('-').collect();
        parts.iter().map(|part| part.len()).eq([4, 2, 2]) && parts.into_iter().all(digits)
    };
    let manifest = tree.file("Cargo.toml").map_or("", |file| &file.text);
    let sections = prose(page).into_iter().filter_map(|(number, line)| Some((number, line.strip_prefix("## ")?)));
    for (at, (number, heading)) in sections.enumerate() {
        if at == 0 && heading == "[Unreleased]" {
            continue;
        }
        let version = heading.strip_prefix('[').and_then(|rest| rest.split_once("] - "));
        match version.filter(|(version, date)| version.split('.').all(digits) && is_dated(date)) {
            None => report.add(CHANGELOG, number, format!("{heading} is no `[VERSION] - YYYY-MM-DD`")),
            Some((version, _)) if at == 0 && !manifest.contains(&format!("version = \"{version}\"")) => {
                report.add(CHANGELOG, number, format!("{version} is not the version of the workspace"));
            }
            Some(_) => {}
        }
    }
}
