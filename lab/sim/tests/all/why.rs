//! Verdicts of a server on a tenant (`observe`), for loads of which the truth is known: each verdict, and the nearest
//! load that must not have it.

use mqfq_blk::engine::{DeviceStats, EngineStats, GroupStats, NamedFlowStats, WorkerStats};
use mqfq_blk::split::{Split, SplitControl};
use mqfq_blk::stats::{FlowStats, HctxStats};
use mqfq_blk::{EffectiveWeight, GroupId};
use mqfq_blk::{PolicyKind, PolicyOptions, Weight};
use mqfq_observe::history::History;
use mqfq_observe::source::Limited;
use mqfq_observe::why::{Row, SECONDS, Verdict, verdicts};
use mqfq_sim::embedded;
use mqfq_sim::outcome::Outcome;
use mqfq_sim::run::{Counters, run_counted};
use mqfq_sim::scenario::{Arrival, Scenario, Tenant};

/// Two workers and a drive, under `mqfq` unless `policy` says otherwise, with these tenants.
fn scenario(drive: &str, policy: &str, tenants: &str) -> Scenario {
    let text = format!(
        "[run]\nwarm-up = \"0ms\"\nmeasured = \"200ms\"\n\
         [machine]\npreset = \"user-space-2\"\nmemory = \"free\"\n\
         [device]\nkind = \"nvme\"\nsize = \"64GiB\"\n{drive}\n[policy]\n{policy}\n{tenants}"
    );
    Scenario::parse("why.toml", &text).unwrap_or_else(|error| panic!("{error}"))
}

const FAST: &str = "preset = \"flash-460k\"";
const SLOW: &str = "preset = \"flash-60k\"";
const MQFQ: &str = "kind = \"mqfq\"\ndepth = 64";

/// A tenant with so many requests of so many bytes in flight.
fn closed(name: &str, weight: u32, depth: u32, size: &str, more: &str) -> String {
    format!("[tenant.{name}]\nweight = {weight}\nload = \"closed\"\ndepth = {depth}\nsize = \"{size}\"\n{more}\n")
}

struct Seen {
    outcome: Outcome,
    stats: EngineStats,
    limited: Vec<Limited>,
    usual_device_ns: Option<u64>,
}

fn seen(scenario: &Scenario) -> Seen {
    let (outcome, counters) = run_counted(scenario).unwrap_or_else(|error| panic!("{error}"));
    let limited = scenario.tenants.iter().zip(&counters.held_ns).flat_map(|(tenant, held_ns)| {
        let limit = |(key, &waited_ns): (&str, &u64)| Limited {
            tenant: tenant.name.clone(),
            export: None,
            key: key.into(),
            waited_ns,
        };
        ["max-iops", "max-bytes-per-s"].into_iter().zip(held_ns).map(limit).collect::<Vec<_>>()
    });
    Seen { limited: limited.collect(), stats: stats(scenario, &counters), outcome, usual_device_ns: None }
}

/// The simulator's counters, as an engine has them.
fn stats(scenario: &Scenario, counters: &Counters) -> EngineStats {
    let Counters { end_ns, flows, last_ns, hctxs, wanted_ns, .. } = counters;
    let flow = |((tenant, flow), last_ns): ((&Tenant, &_), &Vec<u64>)| {
        let mqfq_sim::blk::stats::FlowStats { completed, total_ns_sum, bytes, failed, cost, .. } = *flow;
        let mqfq_sim::blk::stats::FlowStats { active_ns, queued_ns_sum, device_ns_sum, waited_ns, waited, .. } = *flow;
        let sums = FlowStats { active_ns, queued_ns_sum, device_ns_sum, waited_ns, waited, ..FlowStats::default() };
        let group = tenant.group.map(|group| GroupId(group.0));
        let members = scenario.tenants.iter().filter(|other| group.is_some() && other.group == tenant.group);
        // Groups weigh 100 here, and their members as much as each other.
        let of_group = EffectiveWeight { millionths: 100_000_000 / members.count().max(1) as u64, competes: true };
        NamedFlowStats {
            name: tenant.name.clone(),
            stats: FlowStats { completed, total_ns_sum, bytes, failed, cost, ..sums },
            last_ns: last_ns.clone(),
            class_bytes: None,
            weight: Weight::new(u64::from(tenant.weight.get())).unwrap(),
            effective_weight: group.map(|_| of_group),
            goal: None,
            group,
        }
    };
    let is_it = |kind: &PolicyKind| kind.name() == scenario.policy.kind.name();
    let kind = mqfq_policies::ALL.into_iter().find(is_it).expect("the same source has the same policies");
    let group = |number: usize| GroupStats {
        name: format!("group-{number}"),
        parent: None,
        weight: Weight::DEFAULT,
        effective_weight: None,
    };
    let hctx = |hctx: &mqfq_sim::blk::stats::HctxStats| HctxStats {
        throttled_ns: hctx.throttled_ns,
        no_token_ns: hctx.no_token_ns,
        ..HctxStats::default()
    };
    let device = DeviceStats {
        name: "drive".into(),
        policy: kind.name(),
        options: PolicyOptions::new(kind),
        class_weights: None,
        in_force: None,
        depth_cap: None,
        write_cost_256ths: None,
        split: SplitControl::new(Split::Off, 1).state(),
        health: Default::default(),
        ailing: Vec::new(),
        flows: scenario.tenants.iter().zip(flows).zip(last_ns).map(flow).collect(),
        groups: (0..scenario.groups.len()).map(group).collect(),
        hctxs: hctxs.iter().map(hctx).collect(),
    };
    let workers = wanted_ns
        .iter()
        .map(|&wanted_ns| WorkerStats { wanted_ns: Some(wanted_ns), ..WorkerStats::default() })
        .collect();
    EngineStats { at_ns: *end_ns, devices: vec![device], workers }
}

impl Seen {
    /// The verdict about the tenant of this name.
    fn of(&self, name: &str) -> Verdict {
        let mut nothing = self.stats.clone();
        nothing.at_ns = 0;
        nothing.workers.iter_mut().for_each(|worker| worker.wanted_ns = Some(0));
        let device = &mut nothing.devices[0];
        device.hctxs.fill(HctxStats::default());
        device.flows.iter_mut().for_each(|flow| flow.stats = FlowStats::default());
        let mut history = History::default();
        history.push(&nothing);
        history.push(&self.stats);
        let mut interval = history.over(SECONDS).unwrap();
        interval.devices[0].usual_device_ns = self.usual_device_ns;
        let is_meant = |_, flow: usize| self.stats.devices[0].flows[flow].name == name;
        let found = verdicts(&self.stats, &interval, &self.limited, &[], &is_meant).remove(0);
        println!("{}", found.sentence);
        found
    }

    fn row(&self, name: &str) -> Row {
        self.of(name).row
    }

    /// The tenant's part of the bytes, percent.
    fn percent(&self, tenant: usize) -> f64 {
        100.0 * self.outcome.tenants[tenant].bytes_per_s / self.outcome.bytes_per_s
    }
}

#[test]
fn a_job_at_depth_8_that_is_idle_most_of_the_time_does_not_keep_one_request_in_flight() {
    let burst = "burst-on = \"1ms\"\nburst-off = \"12ms\"";
    let seen = seen(&scenario(FAST, MQFQ, &closed("job", 100, 8, "4KiB", burst)));
    let verdict = seen.of("job");
    assert_eq!(verdict.row, Row::ClientPauses);
    let (_, depth) = verdict.sentence.split_once(", with ").expect("it says the depth");
    let depth: f64 = depth.split(' ').next().unwrap().parse().unwrap();
    assert!((7.0..=8.0).contains(&depth), "{verdict:?}");
}

#[test]
fn one_request_at_a_time_is_said_of_a_client_at_depth_1_alone() {
    let at = |depth| seen(&scenario(FAST, MQFQ, &closed("job", 100, depth, "4KiB", ""))).row("job");
    assert_eq!([1, 2, 8].map(at), [Row::OneInFlight, Row::Served, Row::Served]);
}

#[test]
fn a_client_that_thinks_between_requests_pauses() {
    let think = closed("job", 100, 1, "4KiB", "think = \"1ms\"");
    assert_eq!(seen(&scenario(FAST, MQFQ, &think)).row("job"), Row::ClientPauses);
}

#[test]
fn a_tenant_that_never_came_is_idle_and_one_that_came_is_not() {
    let tenants = closed("job", 100, 1, "4KiB", "") + &closed("late", 100, 1, "4KiB", "");
    let mut scenario = scenario(FAST, MQFQ, &tenants);
    scenario.tenants[1].start_ns = scenario.measured_ns + scenario.measured_ns / 20;
    let seen = seen(&scenario);
    assert_eq!((seen.row("late"), seen.row("job")), (Row::Idle, Row::OneInFlight));
}

/// 4 KiB at a depth and weight 300 beside 64 and 128 KiB of weights 200 and 100: a half is its own.
fn beside_large(depth: u32) -> Seen {
    let tenants = [
        closed("small", 300, depth, "4KiB", ""),
        closed("medium", 200, 16, "64KiB", "first-worker = 1"),
        closed("large", 100, 16, "128KiB", "first-worker = 1"),
    ];
    seen(&scenario(FAST, "kind = \"mqfq\"\ndepth = 120\ntoken-unit = \"4KiB\"", &tenants.concat()))
}

#[test]
fn a_depth_that_brings_less_than_the_share_is_named_and_the_depth_that_it_names_brings_it() {
    let shallow = beside_large(64);
    assert!((44.0..48.0).contains(&shallow.percent(0)), "{}%", shallow.percent(0));
    assert_eq!(shallow.of("small").row, Row::ClientDepth);
    // The first depth that it names may bring a part of the way.
    let mut deep = shallow;
    for _ in 0..2 {
        let verdict = deep.of("small");
        if verdict.row == Row::ClientDepth {
            let named = verdict.sentence.split_once("about ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
            deep = beside_large(named);
            println!("{}% at {named}", deep.percent(0));
        }
    }
    assert!(deep.percent(0) > 48.5, "{}%", deep.percent(0));
    assert_ne!(deep.row("small"), Row::ClientDepth);
}

#[test]
fn tenants_of_a_full_device_wait_for_their_share_or_have_it_to_themselves() {
    let both = closed("web", 100, 128, "4KiB", "") + &closed("db", 300, 128, "4KiB", "first-worker = 1");
    let both = seen(&scenario(SLOW, MQFQ, &both));
    assert!((both.percent(0) - 25.0).abs() < 1.0, "{}", both.percent(0));
    let told = [
        ("web", "times its share while db uses its own; it was backlogged ", " of the service then, where 0.25 is due"),
        ("db", "while web uses its own; it was backlogged ", " of the service then, where 0.75 is due"),
    ];
    for (name, what, end) in told {
        let Verdict { row, sentence, .. } = both.of(name);
        assert!(row == Row::OverShare && sentence.contains(what) && sentence.ends_with(end), "{sentence}");
    }
    let alone = seen(&scenario(SLOW, MQFQ, &closed("web", 100, 256, "4KiB", ""))).of("web");
    assert!(alone.row == Row::OverShare && alone.sentence.contains("to itself"), "{alone:?}");
}

#[test]
fn a_policy_without_shares_is_named_as_such() {
    let tenants = closed("web", 100, 64, "4KiB", "") + &closed("db", 300, 64, "4KiB", "first-worker = 1");
    let drive = format!("{SLOW}\nqueue-depth = 8");
    let seen = seen(&scenario(&drive, "kind = \"kyber\"", &tenants));
    assert_eq!(seen.row("web"), Row::NoShares);
}

#[test]
fn a_tenant_that_gets_less_than_its_share_is_below_it_and_the_depth_held_it_back() {
    // Nothing keeps virtual time, so that the one that comes first keeps its half of the tokens.
    let policy = "kind = \"mqfq\"\ndepth = 64\nvirtual-time = \"off\"";
    let tenants =
        closed("web", 1000, 128, "4KiB", "start = \"1ms\"") + &closed("db", 100, 32, "4KiB", "first-worker = 1");
    let seen = seen(&scenario(SLOW, policy, &tenants));
    assert!((seen.percent(0) - 50.0).abs() < 5.0, "{}", seen.percent(0));
    let verdict = seen.of("web");
    assert_eq!(verdict.row, Row::BelowShare);
    assert!(verdict.sentence.contains("by the depth D most; it was backlogged "), "{verdict:?}");
    assert_eq!(seen.row("db"), Row::Served);
}

#[test]
fn two_of_a_group_have_its_share_together() {
    let tenants = [
        "[group.gold]\nweight = 100\n".to_owned(),
        closed("web", 100, 64, "4KiB", "group = \"gold\""),
        closed("db", 100, 64, "4KiB", "group = \"gold\"\nfirst-worker = 1"),
        closed("batch", 100, 64, "4KiB", "first-worker = 1"),
    ];
    let seen = seen(&scenario(SLOW, MQFQ, &tenants.concat()));
    assert!((seen.percent(0) - 25.0).abs() < 1.5, "{}", seen.percent(0));
    assert_eq!((seen.row("web"), seen.row("batch")), (Row::GroupShare, Row::OverShare));
}

#[test]
fn a_cap_is_named_where_it_holds_a_tenant_back_and_not_where_it_does_not() {
    let with = |cap: &str| {
        let seen = seen(&scenario(FAST, MQFQ, &closed("web", 100, 8, "4KiB", cap)));
        (seen.row("web"), seen.of("web").sentence)
    };
    let (row, sentence) = with("max-iops = 20000");
    assert!(row == Row::OwnLimit && sentence.contains("its own max-iops"), "{sentence}");
    let (row, sentence) = with("max-bytes-per-s = \"50MiB\"");
    assert!(row == Row::OwnLimit && sentence.contains("its own max-bytes-per-s"), "{sentence}");
    assert_eq!(with("max-iops = 900000").0, Row::Served);
}

#[test]
fn a_device_is_slow_that_takes_eight_times_what_is_usual_and_not_one_that_takes_twice() {
    let device_ns = |seen: &Seen| {
        let flow = &seen.stats.devices[0].flows[0].stats;
        flow.device_ns_sum / flow.requests()
    };
    let load = closed("web", 100, 4, "4KiB", "");
    let healthy = device_ns(&seen(&scenario(SLOW, MQFQ, &load)));
    let row = |slowed: u32| {
        let mut seen = seen(&scenario(&format!("{SLOW}\nslowed = {slowed}"), MQFQ, &load));
        seen.usual_device_ns = Some(healthy);
        seen.row("web")
    };
    assert_eq!([1, 2, 8].map(row), [Row::Served, Row::Served, Row::SlowDevice]);
}

#[test]
fn cores_are_the_limit_where_the_device_answers_at_once_and_not_where_it_is_slow() {
    let text = embedded::scenario("intake").expect("it comes with the program");
    let mut intake = Scenario::parse("intake.toml", text).unwrap();
    (intake.warm_up_ns, intake.measured_ns) = (0, 50_000_000);
    let busy = seen(&intake);
    assert!(busy.outcome.busy_share > 0.95, "{}", busy.outcome.busy_share);
    for name in ["light", "heavy"] {
        assert_eq!(busy.row(name), Row::Cores);
    }
    let drive = format!("{SLOW}\nslowed = 8");
    intake.measured_ns = 300_000_000;
    for tenant in &mut intake.tenants {
        if let Arrival::Closed { depth, .. } = &mut tenant.load.arrival {
            *depth = 32;
        }
    }
    intake.device = scenario(&drive, MQFQ, &closed("web", 100, 1, "4KiB", "")).device;
    let slow = seen(&intake);
    let wanted = slow.stats.workers[0].wanted_ns.unwrap() as f64 / slow.stats.at_ns as f64;
    assert!(wanted < 0.8, "{wanted}, and {} with what it spun", slow.outcome.busy_share);
    for name in ["light", "heavy"] {
        assert_eq!(slow.row(name), Row::OverShare);
    }
}

/// Verdict on `db`, which is alone for 200 ms and then beside `bulk`, and its mean time alone, ms.
fn beside_bulk(policy: &str, db: &str, depth: u32, size: &str) -> (Verdict, f64) {
    let run = |measured_ms: u64| {
        let bulk = closed("bulk", 100, depth, size, "first-worker = 1");
        let mut scenario = scenario(SLOW, policy, &(db.to_owned() + &bulk));
        scenario.measured_ns = measured_ms * 1_000_000;
        scenario.tenants[1].start_ns = 200_000_000;
        seen(&scenario).stats
    };
    // One load until the deep one begins.
    let (alone, both) = (run(200), run(800));
    let mut nothing = alone.clone();
    nothing.at_ns = 0;
    nothing.devices[0].flows.iter_mut().for_each(|flow| flow.stats = FlowStats::default());
    let mut history = History::default();
    [&nothing, &alone, &both].into_iter().for_each(|stats| history.push(stats));
    // Since the reading before.
    let interval = history.over(0).unwrap();
    let verdict = verdicts(&both, &interval, &[], &[], &|_, flow| flow == 0).remove(0);
    let before = &alone.devices[0].flows[0].stats;
    (verdict, (before.queued_ns_sum + before.device_ns_sum) as f64 / before.requests() as f64 * 1e-6)
}

/// "db waits 1.8 of 2.6 ms ...": both numbers.
fn waits_of(sentence: &str) -> [f64; 2] {
    let (numbers, _) = sentence.split_once(" ms behind bulk").unwrap_or_else(|| panic!("{sentence}"));
    let (first, of) = numbers.split_once(" of ").unwrap();
    [first.rsplit(' ').next().unwrap(), of].map(|ms| ms.parse().unwrap())
}

#[test]
fn a_shallow_tenant_waits_behind_a_deep_one_for_as_much_longer_as_its_requests_take_than_alone() {
    let (verdict, alone_ms) = beside_bulk(MQFQ, &closed("db", 100, 1, "4KiB", ""), 32, "128KiB");
    assert_eq!(verdict.row, Row::Neighbour, "{verdict:?}");
    let end =
        " ms behind bulk's requests on the device (D = 64); D is a number, so a latency goal would change nothing";
    assert!(verdict.sentence.starts_with("db waits ") && verdict.sentence.ends_with(end), "{verdict:?}");
    let [wait, of] = waits_of(&verdict.sentence);
    assert!((of - wait - alone_ms).abs() < 0.1 + 0.02 * alone_ms && wait > of / 2.0, "{verdict:?}, alone {alone_ms}");
}

#[test]
fn clients_that_have_more_in_flight_than_alone_wait_behind_reads_and_a_backup_under_none_too() {
    // 300 a second: one at a time alone, and more where each takes longer.
    let db = "[tenant.db]\nload = \"open\"\nrate = 300\nsize = \"4KiB\"\n";
    for policy in ["kind = \"none\"", MQFQ] {
        for (depth, size) in [(32, "128KiB"), (4, "1MiB")] {
            let (verdict, alone_ms) = beside_bulk(policy, db, depth, size);
            assert_eq!(verdict.row, Row::Neighbour, "{verdict:?}");
            let [wait, of] = waits_of(&verdict.sentence);
            // How long so many take alone is not known, but for a bound: at most that many times as long.
            assert!(verdict.sentence.starts_with("db waits at least ") && wait > of / 2.0, "{verdict:?}");
            assert!(of - wait > 0.9 * alone_ms, "{verdict:?}, alone {alone_ms}");
        }
    }
}
