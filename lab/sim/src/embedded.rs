//! The figures and scenarios that come with the program: lab/sim/figures and lab/sim/scenarios, as they are at build
//! time.

/// Name and text of each figure, in the order of reports.
pub const FIGURES: &[(&str, &str)] = &[
    ("mqfq/5", include_str!("../figures/mqfq/5.toml")),
    ("mqfq/6", include_str!("../figures/mqfq/6.toml")),
    ("mqfq/7", include_str!("../figures/mqfq/7.toml")),
    ("mqfq/8", include_str!("../figures/mqfq/8.toml")),
    ("mqfq/9", include_str!("../figures/mqfq/9.toml")),
    ("mqfq/10", include_str!("../figures/mqfq/10.toml")),
    ("mqfq/11", include_str!("../figures/mqfq/11.toml")),
    ("blkmq/4", include_str!("../figures/blkmq/4.toml")),
    ("blkmq/6", include_str!("../figures/blkmq/6.toml")),
    ("blkmq/7", include_str!("../figures/blkmq/7.toml")),
    ("blkmq/8", include_str!("../figures/blkmq/8.toml")),
    ("blkmq/9", include_str!("../figures/blkmq/9.toml")),
    ("blkmq/10", include_str!("../figures/blkmq/10.toml")),
    ("d2fq/5", include_str!("../figures/d2fq/5.toml")),
    ("d2fq/6", include_str!("../figures/d2fq/6.toml")),
    ("d2fq/7", include_str!("../figures/d2fq/7.toml")),
    ("d2fq/8", include_str!("../figures/d2fq/8.toml")),
    ("d2fq/11", include_str!("../figures/d2fq/11.toml")),
    ("d2fq/12", include_str!("../figures/d2fq/12.toml")),
    ("d2fq/13", include_str!("../figures/d2fq/13.toml")),
    ("d2fq/14", include_str!("../figures/d2fq/14.toml")),
    ("d2fq/15", include_str!("../figures/d2fq/15.toml")),
    ("d2fq/16", include_str!("../figures/d2fq/16.toml")),
    ("d2fq/17", include_str!("../figures/d2fq/17.toml")),
    ("d2fq/18", include_str!("../figures/d2fq/18.toml")),
    ("d2fq/19", include_str!("../figures/d2fq/19.toml")),
    ("ours/scale", include_str!("../figures/ours/scale.toml")),
    ("ours/window", include_str!("../figures/ours/window.toml")),
    ("depth/loads", include_str!("../figures/depth/loads.toml")),
    ("depth/changes", include_str!("../figures/depth/changes.toml")),
    ("depth/stays", include_str!("../figures/depth/stays.toml")),
    ("ours/hierarchy", include_str!("../figures/ours/hierarchy.toml")),
    ("ours/due", include_str!("../figures/ours/due.toml")),
    ("ours/split", include_str!("../figures/ours/split.toml")),
    ("ours/two-databases", include_str!("../figures/ours/two-databases.toml")),
    ("ours/goal", include_str!("../figures/ours/goal.toml")),
    ("ours/chain", include_str!("../figures/ours/chain.toml")),
    ("ours/flush", include_str!("../figures/ours/flush.toml")),
    ("p-mqfq/1", include_str!("../figures/p-mqfq/1.toml")),
    ("p-mqfq/3", include_str!("../figures/p-mqfq/3.toml")),
    ("p-mqfq/4", include_str!("../figures/p-mqfq/4.toml")),
    ("p-mqfq/4-stock", include_str!("../figures/p-mqfq/4-stock.toml")),
    ("p-mqfq/5", include_str!("../figures/p-mqfq/5.toml")),
    ("p-mqfq/6", include_str!("../figures/p-mqfq/6.toml")),
    ("p-mqfq/7", include_str!("../figures/p-mqfq/7.toml")),
    ("p-mqfq/8", include_str!("../figures/p-mqfq/8.toml")),
    ("p-mqfq/9", include_str!("../figures/p-mqfq/9.toml")),
    ("p-mqfq/10", include_str!("../figures/p-mqfq/10.toml")),
    ("p-mqfq/11", include_str!("../figures/p-mqfq/11.toml")),
    ("p-mqfq/table-1", include_str!("../figures/p-mqfq/table-1.toml")),
    ("p-mqfq/table-1-stock", include_str!("../figures/p-mqfq/table-1-stock.toml")),
    ("p-mqfq/equation-3", include_str!("../figures/p-mqfq/equation-3.toml")),
    ("p-mqfq/ideal", include_str!("../figures/p-mqfq/ideal.toml")),
];

/// Name and text of each scenario.
pub const SCENARIOS: &[(&str, &str)] = &[
    ("two-tenants", include_str!("../scenarios/two-tenants.toml")),
    ("antagonist", include_str!("../scenarios/antagonist.toml")),
    ("weights", include_str!("../scenarios/weights.toml")),
    ("shallow-reader", include_str!("../scenarios/shallow-reader.toml")),
    ("store", include_str!("../scenarios/store.toml")),
    ("hundred-thousand", include_str!("../scenarios/hundred-thousand.toml")),
    ("ten-thousand-threads", include_str!("../scenarios/ten-thousand-threads.toml")),
    ("write-cost", include_str!("../scenarios/write-cost.toml")),
    ("intake", include_str!("../scenarios/intake.toml")),
    ("caps", include_str!("../scenarios/caps.toml")),
    ("deceptive-idleness", include_str!("../scenarios/deceptive-idleness.toml")),
];

/// The text of the figure of this name.
pub fn figure(name: &str) -> Option<&'static str> {
    find(FIGURES, name)
}

/// The text of the scenario of this name.
pub fn scenario(name: &str) -> Option<&'static str> {
    find(SCENARIOS, name)
}

fn find(all: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    all.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The file that a figure was made of, for errors: a checkout has it under this name.
pub fn figure_file(name: &str) -> String {
    format!("lab/sim/figures/{name}.toml")
}

/// The file of a scenario, for errors.
pub fn scenario_file(name: &str) -> String {
    format!("lab/sim/scenarios/{name}.toml")
}

/// Summary of a scenario: the comment that it begins with, as one line.
pub fn summary(text: &str) -> String {
    let comment = text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim);
    comment.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any;
    use std::path::{Path, PathBuf};

    /// All TOML files below a folder of this crate, as names.
    fn files(folder: &str) -> Vec<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let mut open: Vec<PathBuf> = vec![root.clone()];
        let mut found = Vec::new();
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else {
                found.push(path.strip_prefix(&root).unwrap().with_extension("").display().to_string());
            }
        }
        found.sort();
        found
    }

    #[test]
    fn every_file_of_the_folders_is_embedded() {
        for (folder, all) in [("figures", FIGURES), ("scenarios", SCENARIOS)] {
            let mut known: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
            known.sort();
            assert_eq!(files(folder), known);
        }
    }

    #[test]
    fn every_scenario_can_be_read_and_says_what_it_is() {
        for (name, text) in SCENARIOS {
            any::check(&scenario_file(name), text).unwrap_or_else(|error| panic!("{error}"));
            assert!(summary(text).ends_with('.'), "{name}");
        }
    }
}
