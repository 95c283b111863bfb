//! The figures that come with the program: sim/figures, as they are at build time.

/// Name and text of each, in the order of reports.
pub const FIGURES: &[(&str, &str)] = &[
    ("mqfq/5", include_str!("../../figures/mqfq/5.toml")),
    ("mqfq/6", include_str!("../../figures/mqfq/6.toml")),
    ("mqfq/7", include_str!("../../figures/mqfq/7.toml")),
    ("mqfq/8", include_str!("../../figures/mqfq/8.toml")),
    ("mqfq/9", include_str!("../../figures/mqfq/9.toml")),
    ("mqfq/10", include_str!("../../figures/mqfq/10.toml")),
    ("mqfq/11", include_str!("../../figures/mqfq/11.toml")),
    ("ours/scale", include_str!("../../figures/ours/scale.toml")),
];

/// The text of the figure of this name.
pub fn text(id: &str) -> Option<&'static str> {
    FIGURES.iter().find(|(known, _)| *known == id).map(|(_, text)| *text)
}

/// All names, for an error or a list.
pub fn names() -> String {
    FIGURES.iter().map(|(id, _)| *id).collect::<Vec<_>>().join(", ")
}

/// Name of the file that a figure was made of, for errors: a checkout has it under this name.
pub fn file(id: &str) -> String {
    format!("sim/figures/{id}.toml")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("figures");
        let mut found = Vec::new();
        for folder in std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()) {
            for file in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
                found.push(file.strip_prefix(&root).unwrap().with_extension("").display().to_string());
            }
        }
        found.sort();
        let mut known: Vec<&str> = FIGURES.iter().map(|(id, _)| *id).collect();
        known.sort();
        assert_eq!(found, known);
    }
}
