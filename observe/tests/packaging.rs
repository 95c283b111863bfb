//! The dashboard and the alert rules name metrics that there are, and the rules do what they promise.

use mqfq_testing::tools::need;
use std::collections::BTreeSet;
use std::process::Command;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging");

/// The names that docs/use/metrics.md tells, which a test beside the metrics compares with what is encoded.
fn told() -> BTreeSet<String> {
    let page = include_str!("../../docs/use/metrics.md");
    let mut names = BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("| `mqfq_")) {
        let name = line.split('`').nth(1).expect("a name in backticks");
        names.insert(name.to_owned());
        if line.ends_with(": a histogram |") {
            names.extend(["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}")));
        }
    }
    names
}

/// Metrics that a file names.
fn named(path: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(format!("{FOLDER}/{path}")).expect(path);
    let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let names = text.split(|c| !is_of_name(c)).filter(|word| word.starts_with("mqfq_"));
    names.map(str::to_owned).collect()
}

#[test]
fn the_dashboard_and_the_alerts_name_metrics_that_there_are() {
    let told = told();
    for path in ["grafana/mqfq.json", "prometheus/alerts.yaml", "prometheus/alerts_test.yaml"] {
        let named = named(path);
        assert!(named.len() >= 4, "{path} names {named:?}");
        let unknown: Vec<_> = named.difference(&told).collect();
        assert!(unknown.is_empty(), "{path} names {unknown:?}");
    }
    let dashboard = std::fs::read_to_string(format!("{FOLDER}/grafana/mqfq.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    assert_eq!(dashboard["panels"].as_array().map(Vec::len), Some(10));
}

#[test]
fn promtool_accepts_the_alerts_and_they_fire_when_they_should() {
    need!("promtool");
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]] {
        let run =
            Command::new("promtool").args(arguments).current_dir(format!("{FOLDER}/prometheus")).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success() && said.contains("SUCCESS"), "{arguments:?}: {said}");
    }
}
