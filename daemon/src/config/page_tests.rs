//! The pages' tables of policies and keys agree with the registry of policies.
//!
//! `MQFQ_BLESS=1 cargo test -p mqfq --lib the_tables_of_policies` writes them again after a change of the registry.

use mqfq_blk::{OwnOptions, PolicyKind, PolicyOptions, Registry, Tunable};
use mqfq_config::{duration, size};
use std::path::Path;

/// A size or a duration as one writes it: a plain number stands alone, one with a unit in quotes.
fn written(text: &str) -> String {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { format!("`{text}`") } else { format!("`\"{text}\"`") }
}

/// Range and default of a tunable, as one writes them.
fn range_and_default(tunable: Tunable<'_>) -> (String, String) {
    let between = |least: String, most: String| format!("{} to {}", written(&least), written(&most));
    match tunable {
        Tunable::Time(value, allowed) => {
            let [least, most, value] = [*allowed.start(), *allowed.end(), *value].map(duration::display);
            (between(least, most), written(&value))
        }
        Tunable::Size(value, allowed) => {
            let [least, most, value] = [*allowed.start(), *allowed.end(), *value].map(size::display);
            (between(least, most), written(&value))
        }
        Tunable::Count(value, allowed) => {
            (between(allowed.start().to_string(), allowed.end().to_string()), written(&value.to_string()))
        }
        Tunable::Flag(value) => ("`true`, `false`".to_string(), format!("`{value}`")),
    }
}

/// Range and default of a key, with a policy's own options as they are set.
fn of_key(mut own: OwnOptions, kind: PolicyKind, key: &str) -> (String, String) {
    own.tune(kind, key, range_and_default).expect("it is one of the policy's keys")
}

/// The policies, each with its section of the page `policies.md`, its summary, and its `depth` and `window` unless set.
fn policies(kinds: &[PolicyKind]) -> String {
    let mut table =
        "| policy | what it does | `depth` unless set | `window` unless set |\n|---|---|---|---|\n".to_string();
    for &kind in kinds {
        let options = PolicyOptions::new(kind);
        let depth = match kind.has_depth() {
            false => "has none".to_string(),
            true if kind.is_elevator() => "`queue-depth`".to_string(),
            true if kind.tunes_depth() => written("auto"),
            true => format!("`{}`", options.depth),
        };
        let window = match kind.has_window() {
            true => written("auto"),
            false => "has none".to_string(),
        };
        let summary = kind.about().summary;
        table += &format!("| [`{kind}`](policies.md#{kind}) | {summary} | {depth} | {window} |\n");
    }
    table
}

/// Every key that only one policy has.
fn keys() -> String {
    let mut table = "| key | policy | meaning | range | default |\n|---|---|---|---|---|\n".to_string();
    for kind in mqfq_policies::ALL {
        for key in kind.keys() {
            let (range, default) = of_key(OwnOptions::shipped(kind), kind, key.name);
            table += &format!("| `{}` | `{kind}` | {} | {range} | {default} |\n", key.name, key.meaning);
        }
    }
    table
}

/// The generated part `name` of a page.
fn part(page: &str, name: &str) -> std::ops::Range<usize> {
    let mark = format!("<!-- generated: {name} -->\n");
    let from = page.find(&mark).unwrap_or_else(|| panic!("the page has no {mark}")) + mark.len();
    let end = page[from..].find("<!-- end of generated -->").expect("a generated part ends");
    from..from + end
}

#[test]
fn the_tables_of_policies_in_the_pages_are_those_of_the_registry() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let of_lab: Vec<PolicyKind> =
        mqfq_policies::ALL.into_iter().filter(|kind| !Registry::PRODUCT.kinds().contains(kind)).collect();
    let product = policies(Registry::PRODUCT.kinds());
    let pages = [
        ("docs/use/config.md", vec![("policies", product)]),
        ("docs/lab/serve.md", vec![("policies", policies(&of_lab)), ("policy-keys", keys())]),
    ];
    for (file, parts) in pages {
        let path = root.join(file);
        let mut page = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        for (name, table) in parts {
            let part = part(&page, name);
            if std::env::var_os("MQFQ_BLESS").is_some() {
                page.replace_range(part, &table);
                std::fs::write(&path, &page).unwrap_or_else(|error| panic!("{file}: {error}"));
            } else {
                assert_eq!(page[part], table, "{file}, {name}: write it again with MQFQ_BLESS=1");
            }
        }
    }
}

#[test]
fn a_default_is_one_of_the_values_that_can_be_written() {
    for kind in mqfq_policies::ALL {
        for key in kind.keys() {
            let (range, default) = of_key(OwnOptions::shipped(kind), kind, key.name);
            assert!(!range.is_empty() && default.starts_with('`') && default.ends_with('`'), "{kind} {}", key.name);
        }
    }
    assert_eq!(written("64KiB"), "`\"64KiB\"`");
    assert_eq!(written("0"), "`0`");
}
