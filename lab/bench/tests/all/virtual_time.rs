//! The promises of `demo` and `bench fairness`, kept by the data path and drive model that ship, in virtual time: no
//! clock, so no busy machine can break or excuse them.

use mqfq_bench::fairness;
use mqfq_bench::model;
use mqfq_blk::{PolicyKind, PolicyOptions};
use mqfq_demo::harness::{Tenant, as_shipped, by_default};
use mqfq_demo::load::Window;
use mqfq_demo::scenes::{self, GREEDY_REQUESTS, Scene};
use mqfq_policies::SFQD;
use mqfq_sim::outcome::TenantOutcome;

/// From a reply to the arrival of the next request over sockets. On two cores of 2.6 GHz, depth 1, a request takes 26
/// us through nbdkit and 65 us through qemu-storage-daemon with nothing else running; a few times that with a second
/// tenant.
const SOCKETS_NS: u64 = 100_000;

const WORKERS: usize = 2;

fn run(tenants: &[Tenant], policy: PolicyOptions, who: &[usize], measured_ms: u64) -> Vec<TenantOutcome> {
    let options = model::ModelOptions { policy, tenants, workers: WORKERS, think_ns: SOCKETS_NS };
    model::run(&options, who, Window::from_ms(200, measured_ms)).expect("the demo's options are in range")
}

struct Outcome {
    slowdown: f64,
    total_bytes_per_s: f64,
}

/// The modest tenant's slowdown and the total, under one policy.
fn outcome(scenario: &Scene, kind: PolicyKind, measured_ms: u64) -> Outcome {
    outcome_of(scenario, scenario.policy(kind, WORKERS), measured_ms)
}

/// Outcome under these settings.
fn outcome_of(scenario: &Scene, policy: PolicyOptions, measured_ms: u64) -> Outcome {
    let alone = run(&scenario.tenants, policy, &[0], measured_ms);
    let shared = run(&scenario.tenants, policy, &[0, 1], measured_ms);
    Outcome {
        slowdown: alone[0].bytes_per_s / shared[0].bytes_per_s,
        total_bytes_per_s: shared.iter().map(|tenant| tenant.bytes_per_s).sum(),
    }
}

#[test]
fn a_moderate_reader_keeps_its_speed_and_the_drive_stays_full() {
    // Promised: slowed at least 3.5 times under none, at most 1.5 under mqfq, total at least 0.97 of none's.
    let [moderate, _] = scenes::reads(GREEDY_REQUESTS);
    let none = outcome(&moderate, PolicyKind::None, 600);
    let mqfq = outcome(&moderate, PolicyKind::Mqfq, 600);
    assert!(none.slowdown >= 3.5, "{}", none.slowdown);
    assert!(mqfq.slowdown <= 1.5, "{}", mqfq.slowdown);
    let of_none = mqfq.total_bytes_per_s / none.total_bytes_per_s;
    assert!(of_none >= 0.97, "{of_none}");
}

#[test]
fn a_shallow_reader_is_not_behind_everything_that_is_big() {
    // Promised: slowed at least 15 times under none, at most 2.5 under mqfq, total at least 0.95 of none's.
    let [_, shallow] = scenes::reads(GREEDY_REQUESTS);
    let none = outcome(&shallow, PolicyKind::None, 2_000);
    let mqfq = outcome(&shallow, PolicyKind::Mqfq, 2_000);
    assert!(none.slowdown >= 15.0, "{}", none.slowdown);
    assert!(mqfq.slowdown <= 2.5, "{}", mqfq.slowdown);
    let of_none = mqfq.total_bytes_per_s / none.total_bytes_per_s;
    assert!(of_none >= 0.95, "{of_none}");
}

#[test]
fn what_is_found_is_near_what_was_set_by_hand() {
    // From D = 64 units on, the time of finding included. Seen: slowed 1.21 times for 1.29 at 0.97 of the total, and
    // 2.09 for 2.05 at 0.938: D is found at 129, since 32 units more do 5%, less than they cost, and set to 160.
    let [moderate, shallow] = scenes::reads(GREEDY_REQUESTS);
    for (scenario, measured_ms, of_total_min) in [(moderate, 600, 0.95), (shallow, 3_000, 0.93)] {
        let by_hand = outcome(&scenario, PolicyKind::Mqfq, measured_ms);
        let found = outcome_of(&scenario, by_default(PolicyKind::Mqfq, WORKERS), measured_ms);
        let slower = found.slowdown / by_hand.slowdown;
        let of_total = found.total_bytes_per_s / by_hand.total_bytes_per_s;
        println!("{}: {} and {}, {of_total} of the total", scenario.name, found.slowdown, by_hand.slowdown);
        assert!(slower <= 1.1, "{}: {} and {}", scenario.name, found.slowdown, by_hand.slowdown);
        assert!(of_total >= of_total_min, "{}: {of_total}", scenario.name);
    }
}

#[test]
fn one_queue_and_one_lock_decide_the_same_as_many_queues() {
    // Without a lock, mqfq gives up order within T; both keep the reader's promise.
    let [moderate, _] = scenes::reads(GREEDY_REQUESTS);
    let sfqd = outcome(&moderate, SFQD, 300);
    let mqfq = outcome(&moderate, PolicyKind::Mqfq, 300);
    assert!((sfqd.slowdown / mqfq.slowdown - 1.0).abs() < 0.1, "{} and {}", sfqd.slowdown, mqfq.slowdown);
}

#[test]
fn saturating_tenants_get_what_their_weights_say() {
    for case in fairness::cases() {
        // In the paper's form, in the one that ships, and as it ships, where D and T are found.
        let exact = PolicyOptions::new(PolicyKind::Mqfq);
        for policy in [exact, as_shipped(exact, WORKERS), by_default(PolicyKind::Mqfq, WORKERS)] {
            let counted = run(&case.tenants, policy, &[0, 1], 2_000);
            let ratio = counted[1].bytes as f64 / counted[0].bytes as f64;
            let deviation = (ratio / case.expected_ratio() - 1.0).abs();
            let expected = case.expected_ratio();
            assert!(deviation <= case.tolerance, "{}: ratio {ratio}, expected {expected}, {policy:?}", case.name);
        }
    }
}

#[test]
fn without_a_policy_large_requests_and_many_queues_take_the_drive() {
    // Equal weights: fair would be 1. By requests in flight 64 KiB against 4 KiB is 16, four queues against one are 4.
    let ratios = fairness::cases().map(|case| {
        let counted = run(&case.tenants, PolicyOptions::new(PolicyKind::None), &[0, 1], 1_000);
        counted[1].bytes as f64 / counted[0].bytes as f64
    });
    assert!(ratios[0] > 8.0, "sizes: {}", ratios[0]);
    assert!(ratios[1] > 2.0, "queues: {}", ratios[1]);
    assert!((ratios[2] - 1.0).abs() < 0.1, "weights mean nothing to none: {}", ratios[2]);
}
