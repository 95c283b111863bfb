//! Descriptions of the flags of `add` and `set`: meaning, range and default of their keys, from docs/use/config.md.
//!
//! The tables of that page are the one place of these facts; a test beside the config's reader asks for each key.

use crate::model::Kind;

const PAGE: &str = include_str!("../../../docs/use/config.md");

/// Help of a key: its meaning, the allowed values and the default. `None`: the page has no row for it.
pub fn help(kind: Kind, key: &str) -> Option<String> {
    let head = format!("\n## [{}.NAME]\n", kind.section());
    let section = PAGE.split_once(&head)?.1;
    let section = section.split("\n## ").next()?;
    let cells = |line: &'static str| -> Vec<&'static str> {
        let row = line.trim_start_matches('|').trim_end_matches('|');
        row.split('|').map(str::trim).collect()
    };
    let (mut columns, mut found) = (Vec::new(), None);
    for line in section.lines().filter(|line| line.starts_with("| ")) {
        let row = cells(line);
        if row[0] == "key" {
            columns = row;
        } else if row[0].split(", ").any(|name| name.trim_matches('`') == key) && columns.contains(&"meaning") {
            let cell = |name| columns.iter().position(|column| *column == name).and_then(|at| row.get(at)).copied();
            let said = |name| cell(name).map(plain).filter(|text| !text.is_empty());
            let range = said("range").map(|range| format!(" [range: {range}]")).unwrap_or_default();
            let default = said("default").map(|default| format!(" [default: {default}]")).unwrap_or_default();
            found = found.or(said("meaning").map(|meaning| format!("{meaning}{range}{default}")));
        }
    }
    let table = || {
        let head = format!("[{}.NAME.{key}]", kind.section());
        let is_there = PAGE.contains(&format!("\n### {head}\n"));
        is_there.then(|| format!("A table, '{{ KEY = VALUE }}': docs/use/config.md has its keys under {head}"))
    };
    found.or_else(table)
}

/// Text without its marks: links are their words, code is itself.
fn plain(cell: &str) -> String {
    let mut text = String::new();
    let mut rest = cell;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((words, after)) = link.split_once("](") else { break };
        let Some((_, after)) = after.split_once(')') else { break };
        text += before;
        text += words;
        rest = after;
    }
    (text + rest).replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_its_row_of_the_page() {
        let weight = "share relative to its siblings that compete [range: 1 to 10000] [default: 100]";
        assert_eq!(help(Kind::Group, "weight").unwrap(), weight);
        let kind = "storage of the bytes [range: null, memory, file, model]";
        assert!(help(Kind::Device, "kind").unwrap().starts_with(kind));
        assert!(help(Kind::Device, "cost").unwrap().ends_with("has its keys under [device.NAME.cost]"));
        assert!(help(Kind::Export, "nbd").unwrap().starts_with("where it is served: \"unix:PATH\""));
        // The last key of a row of three.
        assert!(help(Kind::Export, "allow-gids").unwrap().starts_with("which clients may have it [range: names; "));
        // A row without a range.
        assert_eq!(help(Kind::Tenant, "group").unwrap(), "name of a [group.NAME] section [default: none]");
        assert_eq!(help(Kind::Export, "port"), None);
    }
}
