//! Figures from text to rows, without running anything: outcomes are made up.

use super::*;
use crate::outcome::{Outcome, TenantOutcome, WeightsOutcome, WindowOutcome};
use crate::scenario::Scenario;

const FIGURE: &str = r#"
[figure]
title = "two tenants"
source = "nowhere"
y-label = "slowdown"
kind = "bars"

[scenario.machine]
preset = "user-space-2"
[scenario.device]
kind = "null"
size = "1GiB"
[scenario.policy]
kind = "none"
[scenario.tenant.a]
load = "closed"
[scenario.tenant.b]
load = "closed"
depth = 4

[[x.point]]
x = "nosched"
[[x.point]]
x = "mqfq"
set = { "policy.kind" = "mqfq" }
quick = false

[metric]
name = "slowdown"
alone = { policy.kind = "none" }

[[series]]
name = "A"
metric = { tenant = "a" }
[[series]]
name = "B"
metric = { tenant = "b", scale = 10 }

[[paper]]
series = "A"
x = "mqfq"
y = 1.5
where = "page 1"

[[claim]]
what = "A under mqfq"
of = { series = "A", x = "mqfq" }
at-most = 2
reason = "because"

[quick]
set = { "run.measured" = "1ms" }
"#;

fn read(text: &str, extent: Extent) -> Result<Figure, String> {
    let check = crate::any::check;
    Figure::read("test", "f.toml", text, extent, &check).map_err(|error| error.to_string())
}

/// Each tenant of a job gets this many bytes per second.
fn outcome(job: &Job, bytes_per_s: impl Fn(&str) -> f64) -> AnyOutcome {
    let scenario = Scenario::parse(&job.file, &job.scenario).unwrap();
    let tenant = |tenant: &crate::scenario::Tenant| TenantOutcome {
        name: tenant.name.clone(),
        weight: 100,
        requests: 1,
        bytes: 1,
        requests_per_s: 1.0,
        bytes_per_s: bytes_per_s(&tenant.name),
        ..TenantOutcome::default()
    };
    let tenants = scenario.tenants.iter().map(tenant).collect();
    Outcome { tenants, measured_ns: 1, requests_per_s: 1.0, bytes_per_s: 1.0, ..Outcome::default() }.into()
}

/// Alone each tenant gets 100; together a gets 50 and b nothing.
fn rows(figure: &Figure) -> Rows {
    let outcomes: Vec<AnyOutcome> = figure
        .jobs()
        .iter()
        .map(|job| {
            let alone = !(job.scenario.contains("tenant.a") && job.scenario.contains("tenant.b"));
            outcome(job, |name| {
                if alone {
                    100.0
                } else if name == "a" {
                    50.0
                } else {
                    0.0
                }
            })
        })
        .collect();
    figure.assemble(&outcomes)
}

#[test]
fn a_scenario_that_several_points_need_is_run_once() {
    let figure = read(FIGURE, Extent::Full).unwrap();
    // Two policies together; alone each tenant under none only, whatever the point's policy.
    let labels: Vec<&str> = figure.jobs().iter().map(|job| job.label.as_str()).collect();
    assert_eq!(
        labels,
        ["main, A at nosched, a alone", "main, A at nosched", "main, A at mqfq", "main, B at nosched, b alone"]
    );
}

#[test]
fn rows_follow_series_then_x_with_the_papers_numbers_beside_them() {
    let rows = rows(&read(FIGURE, Extent::Full).unwrap());
    let found: Vec<_> =
        rows.rows.iter().map(|row| (row.series.as_str(), row.x.to_string(), row.y, row.paper_y)).collect();
    let expected = [
        ("A", "nosched".into(), Some(2.0), None),
        ("A", "mqfq".into(), Some(2.0), Some(1.5)),
        ("B", "nosched".into(), None, None),
        ("B", "mqfq".into(), None, None),
    ];
    assert_eq!(found, expected, "a: 100 / 50; b got nothing, so that its slowdown does not exist");
    assert!(rows.claims[0].held, "2 is at most 2");
    assert_eq!(rows.surprises().count(), 0);
}

/// Two runs in one panel each: one over time, one over percentiles.
fn of_one_run() -> String {
    let head = FIGURE.split("[[x.point]]").next().unwrap();
    let tail = r#"
[[panel]]
name = "time"
kind = "lines"
x = { windows = "1ms" }
metric = { name = "bytes-per-s" }
[[panel.series]]
name = "A"
metric = { tenant = "a" }
[[panel.series]]
name = "ratio"
metric = { name = "high-low-ratio" }
[[panel]]
name = "tail"
x = { percentiles = [50, 99.9] }
metric = { name = "latency-ns", tenant = "b" }
[[panel.series]]
name = "B"

[[claim]]
what = "A has little from 1 ms on"
of = { panel = "time", series = "A", from = 0.001, to = 0.003, reduce = "max" }
at-most = 3e6
reason = "because"
"#;
    format!("{head}{tail}")
}

#[test]
fn the_parts_of_a_run_and_its_percentiles_are_points_of_one_run() {
    let figure = read(&of_one_run(), Extent::Full).unwrap();
    let labels: Vec<&str> = figure.jobs().iter().map(|job| job.label.as_str()).collect();
    assert_eq!(labels, ["time, A at 0", "tail, B at 50"], "the windows are part of the scenario");
    let bytes = [9_000, 2_000, 3_000, 4_000].map(|bytes| WindowOutcome { requests: 1, bytes }).to_vec();
    let weights = |at_ns, high| WeightsOutcome { at_ns, high, medium: 2, low: 2 };
    let outcomes: Vec<AnyOutcome> = figure
        .jobs()
        .iter()
        .map(|job| {
            let AnyOutcome::Block(mut outcome) = outcome(job, |_| 1.0) else { unreachable!() };
            outcome.tenants[0].windows = bytes.clone();
            (outcome.tenants[1].p50_ns, outcome.tenants[1].p99_9_ns) = (7, 70);
            outcome.window_ns = Some(1_000_000);
            outcome.class_weights = vec![weights(500_000, 8), weights(2_000_000, 5)];
            AnyOutcome::Block(outcome)
        })
        .collect();
    let rows = figure.assemble(&outcomes);
    let found = |series: &str| -> Vec<(String, Option<f64>)> {
        rows.rows.iter().filter(|row| row.series == series).map(|row| (row.x.to_string(), row.y)).collect()
    };
    let at = |x: &str, y: f64| (x.to_string(), Some(y));
    assert_eq!(found("A"), [at("0", 9e6), at("0.001", 2e6), at("0.002", 3e6), at("0.003", 4e6)]);
    assert_eq!(found("ratio"), [at("0", 4.0), at("0.001", 4.0), at("0.002", 2.5), at("0.003", 2.5)]);
    assert_eq!(found("B"), [at("50", 7.0), at("99.9", 70.0)]);
    assert_eq!((rows.claims[0].value, rows.claims[0].held), (Some(3e6), true));
    let text = render(&figure, &rows).unwrap();
    assert!(text.contains("99.9") && text.contains("0.0010") | text.contains("1.0e-3"), "{text}");
}

#[test]
fn a_metric_must_go_with_its_axis() {
    let refusal = |from: &str, to: &str| {
        let text = of_one_run();
        assert!(text.contains(from), "{from}");
        read(&text.replacen(from, to, 1), Extent::Full).unwrap_err()
    };
    assert_eq!(
        refusal("\"bytes-per-s\"", "\"p99-ns\""),
        "f.toml:27: panel.series: the metric p99-ns is not told of a part of a run, allowed with x.windows are requests-per-s, \
         bytes-per-s, of-ideal, high-low-ratio"
    );
    assert_eq!(
        refusal("\"latency-ns\"", "\"p99-ns\""),
        "f.toml:37: panel.series: the metric p99-ns has no percentiles, allowed with x.percentiles is latency-ns"
    );
    assert_eq!(
        refusal("[50, 99.9]", "[50, 95]"),
        "f.toml:35: panel.x.percentiles: 95 is not kept, allowed are 50, 90, 99, 99.9, 99.99, 100"
    );
    assert_eq!(
        refusal("from = 0.001, ", "x = 0, "),
        "f.toml:42: claim.of.x: the windows of a run are not named one by one, allowed are from and to"
    );
    let over_policies = FIGURE.replace("name = \"slowdown\"", "name = \"latency-ns\"");
    let refused = read(&over_policies, Extent::Full).unwrap_err();
    assert!(refused.ends_with("the metric latency-ns is that of a percentile, allowed is it with x.percentiles"));
}

#[test]
fn shares_are_told_once_for_each_run() {
    let figure = read(
        &FIGURE.replace("name = \"slowdown\"\nalone = { policy.kind = \"none\" }", "name = \"bytes-per-s\""),
        Extent::Full,
    );
    let figure = figure.unwrap();
    let outcomes: Vec<AnyOutcome> =
        figure.jobs().iter().map(|job| outcome(job, |name| f64::from(name == "a"))).collect();
    let found: Vec<_> = figure
        .shares(&outcomes)
        .into_iter()
        .map(|row| (row.x.to_string(), row.policy, row.tenant, row.bytes_per_s))
        .collect();
    let row =
        |x: &str, policy: &str, tenant: &str, bytes| (x.to_string(), policy.to_string(), tenant.to_string(), bytes);
    let expected = [
        row("nosched", "none", "a", 1.0),
        row("nosched", "none", "b", 0.0),
        row("mqfq", "mqfq", "a", 1.0),
        row("mqfq", "mqfq", "b", 0.0),
    ];
    assert_eq!(found, expected, "two runs, which both series show");
}

#[test]
fn quick_leaves_points_out_and_claims_with_them() {
    let quick = read(FIGURE, Extent::Quick).unwrap();
    let rows = rows(&quick);
    assert!(rows.quick && rows.rows.iter().all(|row| row.x == X::Label("nosched".into())), "{rows:?}");
    assert!(rows.claims.is_empty(), "nothing is left to look at");
    assert!(quick.jobs().iter().all(|job| job.scenario.contains("measured = \"1ms\"")));
}

#[test]
fn a_broken_claim_is_a_surprise_unless_its_reason_is_known_and_the_other_way_round() {
    let surprises = |at_most: &str, known: &str| {
        let text = FIGURE.replace("at-most = 2", &format!("at-most = {at_most}\n{known}"));
        rows(&read(&text, Extent::Full).unwrap()).surprises().count()
    };
    let known = "not-held-because = \"the model has no such thing\"";
    assert_eq!((surprises("1", ""), surprises("1", known)), (1, 0));
    assert_eq!((surprises("2", ""), surprises("2", known)), (0, 1));
}

#[test]
fn the_picture_has_every_series_and_says_who_starved() {
    let figure = read(FIGURE, Extent::Full).unwrap();
    let text = render(&figure, &rows(&figure)).unwrap();
    assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
    for word in ["two tenants", "\nA\n", "\nB\n", "stated in the paper", "nosched", "mqfq", "slowdown"] {
        assert!(text.contains(word), "{word:?} in {text}");
    }
    assert_eq!(text.matches("starved").count(), 2);
}

#[test]
fn what_is_wrong_is_said_at_its_line() {
    let refusal = |from: &str, to: &str| {
        assert!(FIGURE.contains(from), "{from}");
        read(&FIGURE.replacen(from, to, 1), Extent::Full).unwrap_err()
    };
    assert_eq!(
        refusal("kind = \"bars\"", "knid = \"bars\""),
        "f.toml:6: figure.knid: unknown key, allowed are title, source, note, kind, x-label, y-label, log-x, log-y, \
         ideal; did you mean kind?"
    );
    // An error of the scenario is placed where the figure's file set the key, not in the text that was made of it.
    assert_eq!(
        refusal("depth = 4", "dpeth = 4").split(" unknown").next().unwrap(),
        "f.toml:19: scenario.tenant.b.dpeth:"
    );
    assert!(refusal("\"policy.kind\" = \"mqfq\"", "\"policy.kind\" = \"fair\"").starts_with("f.toml:25: "));
    assert_eq!(
        refusal("tenant = \"a\"", "tenant = \"c\""),
        "f.toml:32: series: there is no tenant \"c\", there are a, b"
    );
    assert_eq!(
        refusal("series = \"A\"\nx", "series = \"C\"\nx"),
        "f.toml:40: paper.series: there is no series \"C\", there are A, B"
    );
    assert_eq!(
        refusal("x = \"mqfq\"\ny", "x = \"sfqd\"\ny"),
        "f.toml:41: paper.x: nothing is simulated at sfqd, there are nosched, mqfq"
    );
    assert!(
        refusal("name = \"slowdown\"", "name = \"slowness\"")
            .contains("\"slowness\" is not known, allowed are requests-per-s")
    );
    assert!(refusal("at-most = 2", "").ends_with("a claim has at-least, at-most or both, or equals alone"));
}

#[test]
fn every_embedded_figure_can_be_read_in_both_extents() {
    for (id, text) in crate::embedded::FIGURES {
        for extent in [Extent::Full, Extent::Quick] {
            let check = crate::any::check;
            let figure = Figure::read(id, &crate::embedded::figure_file(id), text, extent, &check)
                .unwrap_or_else(|error| panic!("{error}"));
            assert!(!figure.jobs().is_empty() && !figure.claims.is_empty(), "{id}");
        }
    }
}
