//! `mqfq-lab bench schedulers` and `mqfq-lab bench kernel`: that they say what is promised, and that `none` costs
//! least. Counts and virtual time only: the machine may be busy.

use crate::{lab, report};
use mqfq_testing::Folder;
use mqfq_testing::machine;
use mqfq_testing::tools::need;
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
fn on_a_drive_of_10_us_none_costs_least_in_every_cell_and_gives_no_fewer_requests() {
    need!("valgrind");
    if cfg!(debug_assertions) {
        println!("skipped: a debug build's instructions are no policy's");
        return;
    }
    let _machine = machine::shared();
    let folder = Folder::new();
    let out = folder.join("out");
    let out = out.to_str().expect("a path of ours is UTF-8");
    let report = report(&["bench", "schedulers", "--json", "--quick", "--preset", "optane", "--out", out]);
    let rows = list(&report, "rows");
    let of = |row: &Value, key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
    for none in rows.iter().filter(|row| row["policy"] == "none") {
        let is_beside = |row: &&Value| row["workload"] == none["workload"] && row["depth"] == none["depth"];
        for row in rows.iter().filter(is_beside) {
            assert!(of(row, "instructions_per_io") >= of(none, "instructions_per_io"), "{row} beside {none}");
            assert!(of(row, "iops") <= of(none, "iops") * 1.01, "{row} beside {none}");
            assert!(of(row, "p50_ns") <= of(row, "p99_ns"), "{row}");
            for key in ["cpu_ns_per_io", "joules_per_million"] {
                assert!(of(row, key) > 0.0, "{key}: {row}");
            }
        }
    }
    for line in list(&report, "table_1") {
        let over = of(line, "read_over_none_percent");
        // The paper's most is bfq's 20.5%.
        assert!((0.0..25.0).contains(&over), "{line}");
    }
    // Beside a greedy tenant: mqfq is fair, and the drive stays full.
    let beside = |policy: &str, antagonist: &str| {
        let is_it = |row: &&Value| row["policy"] == policy && row["antagonist"] == antagonist;
        list(&report, "contended").iter().find(is_it).unwrap_or_else(|| panic!("{policy}, {antagonist}"))
    };
    for antagonist in ["crowd", "bulk"] {
        let (none, mqfq) = (beside("none", antagonist), beside("mqfq", antagonist));
        assert!(of(mqfq, "slowdown") * 5.0 < of(none, "slowdown"), "{mqfq} beside {none}");
        assert!(of(mqfq, "total_over_none") >= 0.95, "{mqfq}");
    }
    // Linux's fair sharing of tags gave 1.48 times.
    for row in list(&report, "tags").iter().filter(|row| row["policy"] == "mqfq") {
        assert!(of(row, "over_none") >= 1.5, "{row}");
    }
    let verdict = &list(&report, "verdicts")[0];
    assert_eq!(verdict["cpu"], "none");
    assert_eq!(verdict["none_is_cheapest_in"][0], verdict["none_is_cheapest_in"][1]);
    assert_eq!(list(verdict, "sentences").len(), 3);
    for name in ["schedulers.json", "schedulers.md", "schedulers-optane.svg", "schedulers-contended.svg"] {
        assert!(folder.join("out").join(name).is_file(), "{name}");
    }
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
