//! `mqfq-lab bench bound`: that it says what is promised, in one object, and draws it.

use crate::lab;
use mqfq_testing::machine;
use mqfq_testing::{Folder, arg};
use serde_json::Value;

#[test]
fn bound_reports_the_share_of_each_bound_and_writes_its_picture() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let out = folder.join("");
    let run = |case: &str| lab(&["bench", "bound", "--json", "--seed", "5", "--case", case, "--out", arg(&out)]);

    let output = run("level with the next");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let row = &report["rows"][0];
    assert_eq!((&row["case"], &row["form"]), (&Value::from("level with the next"), &Value::from("faithful")));
    assert_eq!((report["rows"].as_array().unwrap().len(), &report["rows"][1]["form"]), (2, &Value::from("relaxed")));
    assert!(row["intervals"].as_u64().unwrap() > 0);
    // By hand, so exact: 2 MiB of (1 MiB + 512) * 2 + 1 bytes, under both bounds, as T is 0.
    let share = 2097152.0 / 2098177.0;
    for key in ["largest_share_of_bound", "largest_share_of_tight_bound"] {
        assert!((row[key].as_f64().unwrap() - share).abs() < 1e-9, "{key}: {row}");
    }
    assert_eq!(report["seed"], 5);
    let picture = std::fs::read_to_string(folder.join("mqfq-bound.svg")).unwrap();
    assert!(picture.contains("level with the next"));

    let output = run("no such");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "mqfq-lab: no case begins with \"no such\"\n");
    assert!(output.stdout.is_empty());
}
