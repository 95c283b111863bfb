//! Latency goals beside shares: a goal is met, or what can be had is told; no share changes (I20).

use mqfq_sim::outcome::Outcome;
use mqfq_sim::run::run;
use mqfq_sim::scenario::Scenario;

/// A database with one small read at a time beside two tenants with large requests, 300 to 100.
fn beside(goal: &str, floor: &str, stop: &str) -> Outcome {
    let text = format!(
        "[run]\nseed = 1\nwarm-up = \"1500ms\"\nmeasured = \"1s\"\n[machine]\npreset = \"user-space-2\"\nworkers = 2\n\
         [device]\nkind = \"nvme\"\npreset = \"flash-460k\"\nsize = \"64GiB\"\nsplit = \"auto\"\n{floor}\n\
         [policy]\nkind = \"mqfq\"\ndepth = \"auto\"\nwindow = \"auto\"\n\
         [tenant.db]\nload = \"closed\"\ndepth = 1\nsize = \"4KiB\"\n{goal}\n{stop}\n\
         [tenant.three]\nweight = 300\nload = \"closed\"\nfirst-worker = 1\ndepth = 32\nsize = \"128KiB\"\n\
         [tenant.one]\nload = \"closed\"\ndepth = 32\nsize = \"128KiB\"\n"
    );
    run(&Scenario::parse("goal.toml", &text).unwrap()).unwrap()
}

/// Bytes of the tenant of weight 300 over those of the tenant of weight 100.
fn ratio(outcome: &Outcome) -> f64 {
    outcome.tenants[1].bytes as f64 / outcome.tenants[2].bytes as f64
}

#[test]
fn i20_a_goal_is_met_and_costs_no_share_and_no_more_throughput_than_the_floor_allows() {
    let without = beside("", "", "");
    assert!(without.goals.is_empty());
    for (goal_us, floor, expected) in [(280, "0.7", "met"), (150, "0.8", "out of reach")] {
        let with = beside(&format!("latency = \"{goal_us}us\""), &format!("throughput-floor = {floor}"), "");
        let db = &with.tenants[0];
        let goal = &with.goals[0];
        assert_eq!((goal.fares, goal.goal_ns), (expected, goal_us * 1000), "{goal:?}");
        assert!(db.p90_ns < without.tenants[0].p90_ns, "{} of {}", db.p90_ns, without.tenants[0].p90_ns);
        if expected == "met" {
            assert!(db.p90_ns <= goal_us * 1000, "{}", db.p90_ns);
        } else {
            assert!(goal.p90_ns.abs_diff(db.p90_ns) < db.p90_ns / 6, "{} of {}", goal.p90_ns, db.p90_ns);
        }
        let kept = with.bytes_per_s / without.bytes_per_s;
        assert!(kept > floor.parse::<f64>().unwrap() && kept < 0.98, "{kept}");
        assert!(
            (ratio(&with) / 3.0 - 1.0).abs() < 0.02 && (ratio(&without) / 3.0 - 1.0).abs() < 0.02,
            "{}",
            ratio(&with)
        );
    }
}

#[test]
fn the_throughput_is_given_back_when_the_tenant_with_the_goal_is_idle() {
    // Its last request is at 200 ms, and 1 s later it is inactive.
    let [with, without] = ["latency = \"150us\"", ""].map(|goal| beside(goal, "", "stop = \"200ms\""));
    assert_eq!(with.goals[0].fares, "inactive");
    assert_eq!(with.goals[0].cap, None);
    let kept = with.bytes_per_s / without.bytes_per_s;
    assert!(kept > 0.98, "{kept}");
}
