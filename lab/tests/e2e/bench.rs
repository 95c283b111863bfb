//! `mqfq-lab bench schedulers` and `mqfq-lab bench kernel`: that they say what is promised. Counts and virtual time
//! only: the machine may be busy.

use crate::{lab, report};
use mqfq_testing::{Folder, arg, machine};
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

// `mqfq-lab bench overhead`, `mqfq-lab bench scale` and `mqfq-lab bench transfers`: that they run and say what is
// promised. Times are asserted nowhere: the machine may be busy.

fn rows(report: &Value) -> &Vec<Value> {
    report["rows"].as_array().expect("rows is a list")
}

const POLICIES: [&str; 8] = ["none", "mq-deadline", "kyber", "bfq", "sfqd", "mqfq-serial", "mqfq-faithful", "mqfq"];

#[test]
fn overhead_has_a_row_for_each_policy_number_of_flows_and_step() {
    let _machine = machine::shared();
    let report = report(&["bench", "overhead", "--json", "--rounds", "1", "--no-instructions"]);
    for regime in ["backlogged", "shallow"] {
        for flows in [1, 8, 1000] {
            for policy in POLICIES {
                for step in ["submit", "pick", "complete", "all"] {
                    let is_it = |row: &&Value| {
                        row["policy"] == policy
                            && row["flows"] == flows
                            && row["step"] == step
                            && row["regime"] == regime
                    };
                    let found: Vec<&Value> = rows(&report).iter().filter(is_it).collect();
                    assert_eq!(found.len(), 1, "{regime}, {flows} flows, {policy}, {step}");
                    assert!(found[0]["ns_per_request"].is_f64() && found[0]["instructions_per_request"].is_null());
                }
            }
        }
    }
    assert_eq!(report["notes"][0], "instructions were not asked for");
}

#[test]
fn scale_has_a_row_for_each_policy_placement_and_number_of_workers() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let (out, record) = (folder.join("out"), folder.join("record"));
    let [out, record] = [&out, &record].map(|path| path.to_str().expect("a path of ours is UTF-8"));
    let sizes = ["--workers", "2", "--rounds", "1", "--milliseconds", "50"];
    let places = ["--out", out, "--record", record, "--host", "here"];
    let report = report(&[&["bench", "scale", "--json"], &sizes[..], &places[..]].concat());
    let settings = [(1, "own", 1), (1, "all", 1), (2, "own", 2), (2, "all", 1), (2, "all", 2)];
    for (workers, placement, flows) in settings {
        for policy in POLICIES {
            let is_it = |row: &&Value| {
                row["workers"] == workers
                    && row["placement"] == placement
                    && row["flows"] == flows
                    && row["policy"] == policy
            };
            let found: Vec<&Value> = rows(&report).iter().filter(is_it).collect();
            assert_eq!(found.len(), 1, "{workers} workers, {placement}, {flows} flows, {policy}");
            for key in ["requests_per_s", "smallest", "largest", "cpu_ns_per_request"] {
                assert!(found[0][key].is_f64(), "{key}: {}", found[0]);
            }
            // Null where the other's rate is 0: a busy machine may have had no time for it in a window this short.
            for key in ["speed_up", "over_none", "over_mqfq_serial"] {
                assert!(found[0][key].is_f64() || found[0][key].is_null(), "{key}: {}", found[0]);
            }
            assert_eq!(found[0]["depth_per_worker"].is_null(), policy == "none");
        }
    }
    assert_eq!(rows(&report).len(), settings.len() * POLICIES.len());
    let svg_path = report["svg_paths"][0].as_str().expect("a picture was asked for");
    assert!(std::fs::read_to_string(svg_path).expect("it was drawn").starts_with("<svg"));
    let day = folder.join("record").join("here").join(report["date"].as_str().expect("a day"));
    for name in ["scale.json", "scale.md", "scale.svg"] {
        assert!(day.join(name).is_file(), "{name} is not in the record");
    }
}

#[test]
fn transfers_has_a_row_for_each_policy_machine_and_step_and_is_the_same_on_every_run() {
    let _machine = machine::shared();
    let first = report(&["bench", "transfers", "--json", "--workers", "2"]);
    // One worker with two windows; two workers with two interleavings, placements and windows; four steps each.
    assert_eq!(rows(&first).len(), POLICIES.len() * (2 + 8) * 4);
    for policy in POLICIES {
        for window_bytes in [64 << 10, 1 << 20] {
            for placement in ["own", "all"] {
                for interleaving in ["turn", "call"] {
                    for step in ["submit", "pick", "complete", "all"] {
                        let is_it = |row: &&Value| {
                            row["policy"] == policy
                                && row["window_bytes"] == window_bytes
                                && row["placement"] == placement
                                && row["interleaving"] == interleaving
                                && row["step"] == step
                                && row["cores"] == 2
                        };
                        let found: Vec<&Value> = rows(&first).iter().filter(is_it).collect();
                        assert_eq!(found.len(), 1, "{policy}, {window_bytes}, {placement}, {interleaving}, {step}");
                        assert_eq!((&found[0]["sockets"], &found[0]["hctxs"]), (&1.into(), &1.into()));
                        for key in ["shared_rmws_per_request", "fences_per_request", "kicks_per_request"] {
                            assert!(found[0][key].is_f64(), "{key} in {}", found[0]);
                        }
                    }
                }
            }
        }
    }
    for row in rows(&first) {
        let of = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
        // Both are on one socket, and on cores of their own.
        assert_eq!(of("transfers_same_core_per_request") + of("transfers_other_socket_per_request"), 0.0, "{row}");
        if row["cores"] == 1 || row["policy"] == "none" {
            assert_eq!(of("transfers_same_socket_per_request"), 0.0, "{row}");
        }
    }
    assert!(first["notes"][0].as_str().unwrap().starts_with("sfqd"));
    let alone = ["bench", "transfers", "--json", "--workers", "1"];
    let again = report(&alone);
    assert_eq!(rows(&again)[..], rows(&first)[..POLICIES.len() * 2 * 4], "one worker comes first");
}

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
