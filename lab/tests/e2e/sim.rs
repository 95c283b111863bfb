//! `mqfq-lab sim` at the command line: the JSON that is promised, the same bytes each time, and bad input as one
//! sentence.

use crate::lab;
use mqfq_testing::Folder;
use mqfq_testing::machine;
use serde_json::Value;
use std::process::{Command, Stdio};

/// Two workers for a few thousand requests: quick even without optimisation.
const FIGURE: &str = r#"[figure]
title = "small"
source = "nowhere"
y-label = "requests/s"

[scenario.run]
warm-up = "50us"
measured = "200us"
[scenario.machine]
preset = "user-space-2"
[scenario.device]
kind = "nvme"
preset = "optane"
size = "1GiB"
[scenario.policy]
kind = "none"
[scenario.tenant.a]
load = "closed"
depth = 8
[scenario.tenant.b]
load = "closed"
depth = 8

[x]
keys = "machine.workers"
values = [1, 2]

[metric]
name = "requests-per-s"

[[series]]
name = "none"
[[series]]
name = "mqfq"
set = { "policy.kind" = "mqfq" }
[[series]]
name = "slowdown of a"
metric = { name = "slowdown", tenant = "a" }

[[paper]]
series = "mqfq"
x = 2
y = 5e5
where = "nowhere"

[[claim]]
what = "mqfq is as fast as light"
of = { series = "mqfq" }
at-least = 1e15
reason = "to see it broken"
"#;

/// The arguments with `@` as the folder.
fn in_folder(folder: &Folder, arguments: &[&str]) -> std::process::Output {
    let here = folder.join("");
    let here = here.to_str().unwrap().trim_end_matches('/').to_owned();
    let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace('@', &here)).collect();
    lab(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The one sentence of a command that fails, with `@` for the folder again.
fn refusal(folder: &Folder, arguments: &[&str]) -> String {
    let output = in_folder(folder, arguments);
    let (stderr, here) = (text(&output.stderr), folder.join(""));
    assert!(output.stdout.is_empty() && output.status.code() == Some(1), "{arguments:?}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    let sentence = stderr.trim_end().strip_prefix("mqfq-lab: ").unwrap().to_owned();
    sentence.replace(here.to_str().unwrap().trim_end_matches('/'), "@")
}

fn folder() -> Folder {
    let folder = Folder::new();
    std::fs::write(folder.join("own.toml"), FIGURE).unwrap();
    folder
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_figure_of_ones_own_is_rows_with_the_papers_numbers() {
    let _machine = machine::shared();
    let folder = folder();
    let output = in_folder(&folder, &["sim", "figure", "@/own.toml", "--json", "--out", "@/out"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert!(json["figure"].as_str().unwrap().ends_with("own.toml"));
    let rows = json["rows"].as_array().unwrap();
    let places: Vec<(&str, u64)> =
        rows.iter().map(|row| (row["series"].as_str().unwrap(), row["x"].as_u64().unwrap())).collect();
    assert_eq!(
        places,
        [("none", 1), ("none", 2), ("mqfq", 1), ("mqfq", 2), ("slowdown of a", 1), ("slowdown of a", 2)]
    );
    assert!(rows.iter().all(|row| row["y"].as_f64().unwrap() > 0.0), "{rows:?}");
    let papers: Vec<Option<f64>> = rows.iter().map(|row| row["paper_y"].as_f64()).collect();
    assert_eq!(papers, [None, None, None, Some(5e5), None, None]);
    assert!(rows.iter().all(|row| row.as_object().unwrap().contains_key("paper_y")), "null where there is none");
    assert_eq!(json["claims"][0]["held"], false);
    for (at, suffix) in ["csv", "json", "svg"].iter().enumerate() {
        let path = folder.join(&format!("out/own.{suffix}"));
        assert_eq!(json["files"][at].as_str().unwrap(), path.to_str().unwrap());
        assert!(path.exists());
    }
    let csv = std::fs::read_to_string(folder.join("out/own.csv")).unwrap();
    assert_eq!(csv.lines().count(), 7, "a header and six rows: {csv}");
}

#[test]
fn the_same_figure_gives_the_same_bytes_however_many_run_at_once() {
    let _machine = machine::shared();
    let folder = folder();
    let bytes = |jobs: &str| {
        let arguments = ["sim", "figure", "@/own.toml", "--json", "--out", "@/out", "--jobs", jobs];
        let output = in_folder(&folder, &arguments);
        let files =
            ["csv", "json", "svg"].map(|suffix| std::fs::read(folder.join(&format!("out/own.{suffix}"))).unwrap());
        (output.stdout, files)
    };
    let first = bytes("1");
    assert!(first == bytes("1") && first == bytes("2"));
}

#[test]
fn a_broken_claim_fails_the_command_only_if_it_is_asked_to_check() {
    let _machine = machine::shared();
    let folder = folder();
    let output = in_folder(&folder, &["sim", "figure", "@/own.toml"]);
    assert!(output.status.success() && text(&output.stdout).contains("NOT  mqfq is as fast as light"));
    let output = in_folder(&folder, &["sim", "figure", "@/own.toml", "--check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).ends_with("own.toml says: mqfq is as fast as light\n"), "{}", text(&output.stderr));
}

#[test]
fn a_scenario_is_told_tenant_by_tenant_and_what_the_simulation_cost() {
    let _machine = machine::shared();
    let folder = folder();
    let scenario = FIGURE.split("[x]").next().unwrap().split("[scenario.run]").nth(1).unwrap();
    std::fs::write(folder.join("one.toml"), format!("[run]{}", scenario.replace("[scenario.", "["))).unwrap();
    let run = || {
        let output = in_folder(&folder, &["sim", "run", "@/one.toml", "--alone", "--json", "--out", "@/out"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("one JSON object")
    };
    let (mut first, mut second) = (run(), run());
    for (at, name) in ["a", "b"].iter().enumerate() {
        assert_eq!(first["tenants"][at]["name"], *name);
        assert!(first["tenants"][at]["requests"].as_u64().unwrap() > 0);
        assert!(first["alone"][at]["slowdown"].as_f64().unwrap() >= 0.9, "{first}");
    }
    assert!(first["host"]["events_per_wall_s"].as_f64().unwrap() > 0.0);
    assert!(first["host"]["peak_memory_bytes"].as_u64().unwrap() > 1 << 20);
    // All but what the simulation cost is the same each time.
    first["host"].take();
    second["host"].take();
    assert_eq!(first, second);
    assert!(std::fs::read_to_string(folder.join("out/one.csv")).unwrap().starts_with("tenant,weight,"));
}

#[test]
fn the_list_names_every_figure_of_the_paper() {
    let _machine = machine::shared();
    let json: Value = serde_json::from_slice(&lab(&["sim", "list", "--json"]).stdout).unwrap();
    let figures = json["figures"].as_array().unwrap();
    for number in 5..=11 {
        let named = |figure: &&Value| figure["figure"] == format!("mqfq/{number}");
        assert!(figures.iter().find(named).unwrap()["simulations"].as_u64().unwrap() > 0);
    }
    for key in ["scenarios", "machines", "drives", "applications"] {
        assert!(!json[key].as_array().unwrap().is_empty(), "{key}");
    }
}

#[test]
fn what_cannot_be_simulated_is_refused_in_one_sentence() {
    let _machine = machine::shared();
    let folder = folder();
    let refusal = |arguments: &[&str]| refusal(&folder, arguments);
    let own = |from: &str, to: &str| {
        assert!(FIGURE.contains(from), "{from}");
        std::fs::write(folder.join("bad.toml"), FIGURE.replacen(from, to, 1)).unwrap();
        refusal(&["sim", "figure", "@/bad.toml"])
    };
    let figures = refusal(&["sim", "figure", "mqfq/12"]);
    assert!(figures.starts_with("there is no figure \"mqfq/12\", there are mqfq/5, mqfq/6, "), "{figures}");
    assert!(figures.ends_with("or the path of a TOML file"), "{figures}");
    assert!(
        refusal(&["sim", "run", "nothing"]).starts_with("there is no scenario \"nothing\", there are two-tenants, ")
    );
    assert_eq!(
        refusal(&["sim", "figure", "@/nowhere.toml"]),
        "cannot read figure @/nowhere.toml: No such file or directory"
    );
    let policy = own("\"policy.kind\" = \"mqfq\"", "\"policy.kind\" = \"fair\"");
    assert!(
        policy.starts_with("@/bad.toml:35: ")
            && policy.contains("set.\"policy.kind\": \"fair\" is not known, allowed are "),
        "{policy}"
    );
    let topology = own("values = [1, 2]", "values = [1, 2, 3]");
    assert!(topology.starts_with("@/bad.toml:26: ") && topology.contains("3 workers are more than"), "{topology}");
    let unknown = own("y-label", "y-lable");
    assert!(unknown.starts_with("@/bad.toml:4: figure.y-lable: unknown key, allowed are "), "{unknown}");
}

#[test]
fn a_reader_that_leaves_early_ends_the_program_without_a_word() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mqfq-lab"));
    let mut child = command.args(["sim", "list"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
