//! A capped tenant beside others, in virtual time: it has its cap, they have the rest by weight, and each its bound.

use mqfq_blk_watched::cap::CapLimits;
use mqfq_sim::embedded;
use mqfq_sim::outcome::Outcome;
use mqfq_sim::run::run;
use mqfq_sim::scenario::Scenario;

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
