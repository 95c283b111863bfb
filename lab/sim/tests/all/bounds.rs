//! Shares in virtual time beside what bounds or bends them: caps, latency goals, workers without a core, the cost of
//! writes, large requests in parts.

use mqfq_blk_watched::cap::CapLimits;
use mqfq_nvme_watched::media::Spells;
use mqfq_nvme_watched::presets::FLASH_60K;
use mqfq_sim::embedded;
use mqfq_sim::outcome::Outcome;
use mqfq_sim::run::run;
use mqfq_sim::scenario::{Device, Machine, Scenario, Stolen};

/// The scenario that comes with the program, changed.
fn outcome(change: impl Fn(&mut Scenario)) -> Outcome {
    let text = embedded::scenario("caps").expect("it comes with the program");
    let mut scenario = Scenario::parse("caps.toml", text).unwrap();
    scenario.measured_ns = 100_000_000;
    change(&mut scenario);
    run(&scenario).unwrap()
}

fn requests_per_s(outcome: &Outcome) -> Vec<f64> {
    let rates: Vec<f64> = outcome.tenants.iter().map(|tenant| tenant.requests_per_s).collect();
    println!("{:?} requests/s, {:.0} together", rates, outcome.requests_per_s);
    rates
}

fn assert_near(value: f64, ideal: f64, part: f64) {
    assert!((value / ideal - 1.0).abs() < part, "{value}, not {ideal}");
}

#[test]
fn others_have_what_a_capped_tenant_may_not_use_by_weight() {
    let free = outcome(|scenario| scenario.tenants[0].caps = CapLimits::NONE);
    let before = requests_per_s(&free);
    for (other, weight) in [(1.0, 100), (3.0, 300)] {
        let capped = outcome(|scenario| {
            scenario.tenants[2].weight = mqfq_blk_watched::Weight::new(weight).unwrap();
        });
        let rates = requests_per_s(&capped);
        assert_near(rates[0], 46_000.0, 0.01);
        assert_near(capped.requests_per_s, free.requests_per_s, 0.01);
        assert_near(rates[2] / rates[1], other, 0.02);
        assert_near(before[0] / before[1], 1.0, 0.02);
    }
}

#[test]
fn a_cap_on_bytes_holds_for_all_threads_and_sizes_together() {
    let capped = outcome(|scenario| {
        scenario.tenants[0].caps = CapLimits { iops: None, bytes_per_s: Some(100 << 20) };
        scenario.tenants[0].load.sizes = vec![(4096, 50), (65_536, 50)];
    });
    requests_per_s(&capped);
    // 100 ms: 10 MiB, to a request of each thread.
    let bytes = capped.tenants[0].bytes as f64;
    assert!((bytes - 10_485_760.0).abs() < 0.01 * 10_485_760.0 + 2.0 * 65_536.0, "{bytes}");
    assert_near(capped.tenants[1].requests_per_s, capped.tenants[2].requests_per_s, 0.02);
}

#[test]
fn a_tenant_that_asks_for_less_than_its_cap_notices_nothing() {
    let slow = |caps| {
        outcome(|scenario| {
            scenario.tenants[0].caps = caps;
            scenario.tenants[0].load.arrival =
                mqfq_sim::scenario::Arrival::Open { rate_per_s: 5_000.0, poisson: false, bursts: None };
        })
    };
    let limit = CapLimits { iops: Some(46_000), bytes_per_s: Some(1 << 30) };
    let rates = [CapLimits::NONE, limit].map(|caps| requests_per_s(&slow(caps)));
    assert_near(rates[1][0], rates[0][0], 0.001);
    assert_near(rates[1][1], rates[0][1], 0.01);
}

// Latency goals beside shares: a goal is met, or what can be had is told; no share changes (I20).

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

// Workers that other programs keep from their cores: what a device's D and the cost of its writes do meanwhile.
// `--nocapture` prints each run.

const MS: u64 = 1_000_000;

/// Two readers and a writer of weights 300:100:100 on a drive of 7500 reads or 2900 writes of 4 KiB per second.
const STARVED: &str = r#"
[run]
measured = "12s"
windows = "1s"
[machine]
preset = "user-space-2"
workers = 2
memory = "free"
[device]
kind = "nvme"
preset = "flash-60k"
slowed = 8
size = "64GiB"
cost = "auto"
[policy]
kind = "mqfq"
depth = "auto"
window = "auto"
[tenant.heavy]
weight = 300
load = "closed"
depth = 256
size = "4KiB"
[tenant.reader]
load = "closed"
depth = 256
size = "4KiB"
[tenant.writer]
load = "closed"
depth = 256
size = "4KiB"
read-percent = 0
"#;

#[test]
fn workers_that_lose_their_cores_for_up_to_50_ms_starve_no_tenant() {
    let scenario = Scenario::parse("starved.toml", STARVED).unwrap();
    let stolen = Stolen { runs_ns: (MS, 100 * MS), stops_ns: (MS, 50 * MS) };
    for seed in [3, 4, 5] {
        let machine = Machine { stolen: Some(stolen), ..scenario.machine.clone() };
        let outcome = run(&Scenario { seed, machine, ..scenario.clone() }).unwrap();
        let [heavy, reader, writer] = &outcome.tenants[..] else { panic!("three tenants") };
        let requests = |tenant: &mqfq_sim::outcome::TenantOutcome| -> Vec<u64> {
            tenant.windows.iter().take(12).map(|window| window.requests).collect()
        };
        let depths = outcome.depths.iter().map(|at| at.depth);
        let (least, most) = (depths.clone().min().unwrap(), depths.max().unwrap());
        println!("seed {seed}: D {least} to {most}, requests of each second:");
        for tenant in [heavy, reader, writer] {
            println!("{:?}, longest {} ms", requests(tenant), tenant.max_ns / MS);
        }
        // D is as without stops, or twice that while the device stands still between them.
        assert!(least >= 16 && most <= 129, "seed {seed}: D {least} to {most}");
        for (read, written) in requests(reader).into_iter().zip(requests(writer)) {
            assert!(
                written * 4 > read,
                "seed {seed}: {read} reads and {written} writes in a second, a write costs 2.6"
            );
        }
        let shares = heavy.requests as f64 / reader.requests as f64;
        assert!((2.9..3.1).contains(&shares), "seed {seed}: weights 300:100 gave {shares}:1");
    }
}

// Shares of a drive's time where a write's cost is followed, and where it is not. `--nocapture` prints both.

const WRITE_COST: &str = include_str!("../../scenarios/write-cost.toml");

const REQUEST_BYTES: u32 = 4096;

/// The scenario with `old` replaced by `new`.
fn with(old: &str, new: &str) -> Scenario {
    assert_eq!(WRITE_COST.matches(old).count(), 1, "{old:?} stands there once");
    Scenario::parse("write-cost.toml", &WRITE_COST.replace(old, new)).unwrap()
}

/// Reader's part of the drive's time in each part of the run, and in all that was measured.
fn reader_shares(scenario: &Scenario, outcome: &Outcome) -> (Vec<f64>, f64) {
    let write_drift = scenario.device.spells.write_drift;
    let window_ns = scenario.window_ns.unwrap();
    let [read_ns, write_ns] = [FLASH_60K.media.read_link, FLASH_60K.media.write_link]
        .map(|link| 1e9 / link.commands_per_s(REQUEST_BYTES) as f64);
    let [reader, writer] = &outcome.tenants[..] else { panic!("two tenants") };
    let measured_from = (scenario.warm_up_ns / window_ns) as usize;
    let times: Vec<(f64, f64)> = reader
        .windows
        .iter()
        .zip(&writer.windows)
        .zip(0..)
        .skip(measured_from)
        .map(|((reads, writes), at)| {
            let middle_ns = at * window_ns + window_ns / 2;
            let factor = write_drift.map_or(1.0, |drift| drift.factor_256ths(middle_ns) as f64 / 256.0);
            (reads.requests as f64 * read_ns, writes.requests as f64 * write_ns * factor)
        })
        .collect();
    let share = |(read, write): (f64, f64)| read / (read + write);
    let all = times.iter().fold((0.0, 0.0), |sum, time| (sum.0 + time.0, sum.1 + time.1));
    (times.into_iter().map(share).collect(), share(all))
}

/// Reader's parts of a run; prints its second parts.
fn run_and_print(name: &str, scenario: &Scenario) -> (Vec<f64>, f64) {
    let (shares, all) = reader_shares(scenario, &run(scenario).unwrap());
    let seconds: Vec<String> =
        shares.chunks(10).map(|windows| format!("{:.3}", windows.iter().sum::<f64>() / windows.len() as f64)).collect();
    println!("{name}: reader's share {all:.3}, each half second: {}", seconds.join(" "));
    (shares, all)
}

#[test]
fn shares_of_the_drives_time_stay_while_the_cost_of_writes_drifts() {
    let (shares, all) = run_and_print("cost = \"auto\"", &with("cost = \"auto\"", "cost = \"auto\""));
    assert!((all - 0.5).abs() < 0.01, "{all}");
    // The cost moves by up to three quarters of itself in a second; the estimate is some tenths of a second late.
    let mean_off = shares.iter().map(|share| (share - 0.5).abs()).sum::<f64>() / shares.len() as f64;
    assert!(mean_off < 0.04, "{mean_off}");
    let by_bytes = with("warm-up = \"1s\"\nmeasured = \"8s\"", "warm-up = \"0s\"\nmeasured = \"2s\"");
    let by_bytes = Scenario { device: Device { follow_writes: false, ..by_bytes.device.clone() }, ..by_bytes };
    let (_, by_bytes) = run_and_print("cost = \"bytes\"", &by_bytes);
    assert!(by_bytes < 0.25, "{by_bytes}: by bytes a write costs 2.6 times what it is charged, and more");
}

#[test]
fn a_cost_that_stays_is_found_and_kept() {
    let (shares, all) = run_and_print("steady, \"auto\"", &{
        let steady = with("measured = \"8s\"", "measured = \"1500ms\"");
        Scenario { device: Device { spells: Spells::default(), ..steady.device.clone() }, ..steady }
    });
    assert!((all - 0.5).abs() < 0.005, "{all}");
    let most = shares.iter().map(|share| (share - 0.5).abs()).fold(0.0, f64::max);
    assert!(most < 0.06, "{most}: an eighth more or less in force is 3% of the time, in a phase");
}

// Large requests where D is found: a part is measured as the request that it is to the policy, and a queue that is
// throttled because another waits for a token counts as one that waits.

const PARTS: &str = r#"
[run]
warm-up = "1ms"
measured = "250ms"
[machine]
preset = "user-space-2"
workers = 1
[device]
kind = "nvme"
preset = "optane"
size = "1GiB"
split = "16KiB"
[policy]
kind = "mqfq"
depth = "auto"
depth-start = 1
[tenant.bulk]
load = "closed"
depth = 64
size = "128KiB"
"#;

#[test]
fn a_depth_is_found_where_every_request_is_cut() {
    let outcome = run(&Scenario::parse("parts.toml", PARTS).unwrap()).unwrap();
    let last = outcome.depths.last().expect("D is found").depth;
    // A part is four units: with two beyond the first, 9, optane gives 0.97 of its best.
    assert!((9..=65).contains(&last), "{:?}", outcome.depths);
}

/// Each of two workers has large requests, one also a reader with one small request at a time. A large request is
/// longer than T, so the queue that the reader holds back is throttled while the reader waits for a token.
const LONGER_THAN_T: &str = r#"
[run]
warm-up = "800ms"
measured = "200ms"
[machine]
preset = "user-space-2"
[device]
kind = "nvme"
preset = "zssd"
size = "1GiB"
[policy]
kind = "mqfq"
depth = "auto"
depth-start = 1
window = "16KiB"
[tenant.reader]
load = "closed"
depth = 1
size = "4KiB"
[tenant.bulk]
load = "closed"
threads = 8
depth = 16
size = "128KiB"
"#;

#[test]
fn a_depth_is_found_where_requests_are_longer_than_the_window() {
    let outcome = run(&Scenario::parse("longer.toml", LONGER_THAN_T).unwrap()).unwrap();
    let last = outcome.depths.last().expect("D is found").depth;
    assert!((33..=129).contains(&last), "{:?}", outcome.depths);
}

/// Three tenants whose few large requests are more than the device needs in flight.
fn three_sizes(depth: &str) -> Scenario {
    let text = format!(
        "[run]\nwarm-up = \"100ms\"\nmeasured = \"200ms\"\n[machine]\npreset = \"user-space-2\"\n\
         [device]\nkind = \"nvme\"\npreset = \"flash-460k\"\nsize = \"1GiB\"\n[policy]\nkind = \"mqfq\"\n{depth}\n\
         [tenant.a]\nweight = 300\nload = \"closed\"\ndepth = 16\nsize = \"64KiB\"\n\
         [tenant.b]\nweight = 200\nload = \"closed\"\ndepth = 16\nsize = \"64KiB\"\n\
         [tenant.c]\nweight = 100\nload = \"closed\"\ndepth = 16\nsize = \"128KiB\"\n"
    );
    Scenario::parse("three.toml", &text).unwrap()
}

#[test]
fn a_depth_that_was_found_gives_the_same_shares_when_it_is_set_in_its_units() {
    let found = run(&three_sizes("depth = \"auto\"")).unwrap();
    let depth = found.depths.last().expect("D is found").depth;
    // How far the worst tenant is from its part.
    let error = |depth: &str| {
        let outcome = run(&three_sizes(depth)).unwrap();
        let errors = outcome.tenants.iter().map(|tenant| (tenant.bytes_per_s / tenant.ideal_bytes_per_s - 1.0).abs());
        errors.fold(0.0, f64::max)
    };
    let [auto, units, requests] = ["\"auto\"".to_owned(), format!("{depth}\ntoken-unit = \"4KiB\""), depth.to_string()]
        .map(|depth| error(&format!("depth = {depth}")));
    println!("D {depth}: found {auto}, set {units}, in requests {requests}");
    assert!(units < auto + 0.02 && requests > 3.0 * units, "found {auto}, set {units}, in requests {requests}");
}
