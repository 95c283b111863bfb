//! `mqfq-lab bench schedulers` and `mqfq-lab bench kernel`: that they say what is promised. Counts and virtual time
//! only: the machine may be busy.

use crate::{lab, report};
use mqfq_testing::Folder;
use mqfq_testing::machine;
use serde_json::Value;

fn list<'a>(report: &'a Value, key: &str) -> &'a Vec<Value> {
    report[key].as_array().unwrap_or_else(|| panic!("{key} is a list"))
}

fn refusal(args: &[&str]) -> String {
    let output = lab(args);
    assert!(!output.status.success(), "mqfq {args:?} must be refused");
    let text = String::from_utf8(output.stderr).expect("a sentence is UTF-8");
    assert_eq!(text.trim().lines().count(), 1, "one sentence: {text}");
    text
}

#[test]
fn a_file_is_measured_by_the_clock_and_only_read() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let path = folder.join("device");
    std::fs::write(&path, vec![7; 1 << 20]).expect("a file of ours");
    let name = path.to_str().expect("a path of ours is UTF-8");
    let times = ["--rounds", "1", "--milliseconds", "20"];
    let report = report(&[&["bench", "schedulers", "--json", "--quick", "--device", name][..], &times].concat());
    let rows = list(&report, "rows");
    assert!(
        rows.iter().all(|row| row["how"] == "clock" && row["device"] == name && row["instructions_per_io"].is_null())
    );
    assert!(rows.iter().all(|row| !row["workload"].as_str().unwrap_or("write").contains("write")), "reads only");
    assert!(std::fs::read(&path).expect("it is there").iter().all(|byte| *byte == 7), "nothing was written");
    assert!(report["notes"].to_string().contains("reads only"));
}

#[test]
fn what_makes_no_sense_or_destroys_data_is_refused_in_one_sentence() {
    assert!(refusal(&["bench", "schedulers", "--preset", "floppy"]).contains("choose one of flash-460k"));
    assert!(refusal(&["bench", "schedulers", "--device", "/nowhere"]).contains("/nowhere"));
    assert!(refusal(&["bench", "schedulers", "--device", "/nowhere", "--write"]).contains("--confirm-data-loss"));
    assert!(refusal(&["bench", "schedulers", "--write", "--confirm-data-loss"]).contains("--device"));
    assert!(refusal(&["bench", "schedulers", "--ns-per-instruction", "0"]).contains("0.01 to 10"));
}

#[test]
fn the_kernels_schedulers_are_measured_or_it_says_why_not() {
    let _machine = machine::shared();
    let report = report(&["bench", "kernel", "--json", "--rounds", "1", "--milliseconds", "50"]);
    let rows = list(&report, "rows");
    if let Some(reason) = report["skipped"].as_str() {
        println!("skipped: {reason}");
        assert!(rows.is_empty() && !reason.is_empty());
        return;
    }
    let offered = list(&report, "offered");
    assert!(offered.len() >= 2 && offered.iter().any(|name| name == "none"), "{offered:?}");
    for depth in [1, 32] {
        for name in offered {
            let is_it = |row: &&Value| row["family"] == "kernel" && row["policy"] == *name && row["depth"] == depth;
            assert_eq!(rows.iter().filter(is_it).count(), 1, "{name} at {depth}");
        }
        for name in ["none", "mqfq"] {
            let is_it = |row: &&Value| row["family"] == "mqfq" && row["policy"] == name && row["depth"] == depth;
            assert_eq!(rows.iter().filter(is_it).count(), 1, "our {name} at {depth}");
        }
    }
    assert!(rows.iter().all(|row| row["iops"].as_f64().is_some_and(|iops| iops > 0.0)), "{rows:?}");
}

#[test]
fn only_a_block_device_has_a_scheduler() {
    assert!(refusal(&["bench", "kernel", "--device", "/dev/null"]).contains("is no block device"));
    assert!(refusal(&["bench", "kernel", "--device", "/nowhere"]).contains("/nowhere"));
}

#[test]
fn without_a_kernel_elevators_are_skipped_with_the_way_to_get_one() {
    let report = report(&["bench", "kernel", "--json", "--count", "/nowhere"]);
    let says_how = |reason: &str| reason.contains("dpkg-deb -x") || reason.contains("(Debian: ");
    assert!(report["skipped"].as_str().is_some_and(says_how), "{report}");
    assert!(list(&report, "rows").is_empty());
}
