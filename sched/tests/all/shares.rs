//! Shares by weight under saturation, whatever the sizes, queues and weights.
//!
//! Each test also runs under `mqfq-serial` and `sfqd`, MQFQ in both of its forms; what `none` does is shown once,
//! because it is the reason for all this.

use crate::bench_top;
use bench_top::*;
use mqfq_policies::{MQFQ_SERIAL, SFQD};
use mqfq_sched::policy::{PolicyKind, PolicyOptions};
use mqfq_sched::vtime::VTime;

const FAIR: [PolicyKind; 3] = [PolicyKind::Mqfq, MQFQ_SERIAL, SFQD];

/// The paper's form and the relaxed one.
fn forms(options: PolicyOptions, tenants: &[Tenant]) -> [PolicyOptions; 2] {
    let last = tenants.iter().flat_map(|tenant| &tenant.hctxs).max().expect("a tenant submits somewhere");
    [options, options.relaxed(usize::from(*last) + 1)]
}

/// Keeps all tenants backlogged for `dispatches` and hands the outcome to `expect`, once per fair policy and form.
fn under_fair_policies(options: PolicyOptions, tenants: &[Tenant], dispatches: usize, expect: impl Fn(&Env)) {
    for kind in FAIR {
        let options = PolicyOptions { kind, ..options };
        let forms = forms(options, tenants);
        for options in if kind == SFQD { &forms[..1] } else { &forms[..] } {
            let mut env = Env::flat(*options, tenants);
            env.keep_backlogged(4).dispatch(dispatches);
            expect(&env);
            env.drain();
        }
    }
}

#[test]
fn three_times_the_weight_gets_three_times_the_bytes() {
    // Weights 100:300, equal 4 KiB requests, D = 4, T = 16 KiB: 4000 dispatches -> 1000 : 3000.
    // 3A - B is off by at most 6T + 3 + 1 requests, 28 requests of about 4000.
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 300, 4 * KIB, &[1])];
    under_fair_policies(mqfq(4, 16 * KIB), &tenants, 4000, |env| {
        env.expect_shares_by_weight("a", "b");
        assert!(env.dispatched_bytes("a").abs_diff(1000 * 4 * KIB) <= 28 * 4 * KIB);
    });
}

#[test]
fn one_to_ten_and_one_to_ten_thousand() {
    // 1:10: 4400 dispatches -> 400 : 4000. 1:10000: 30000 dispatches -> 3 : 29997, within a few of the small one's.
    for heavy in [10, 10_000] {
        let tenants = [tenant("a", 1, 4 * KIB, &[0]), tenant("b", heavy, 4 * KIB, &[1])];
        let dispatches = if heavy == 10 { 4400 } else { 30_000 };
        under_fair_policies(mqfq(16, 4 * KIB), &tenants, dispatches, |env| {
            env.expect_shares_by_weight("a", "b");
            assert!(env.dispatched_bytes("a") > 0, "a tenant of weight 1 is served too");
        });
    }
}

#[test]
fn sixteen_times_larger_requests_get_no_more_bytes() {
    // Equal weights, 4 KiB against 64 KiB, D = 16, T = 64 KiB: equal bytes, give or take 2T and one request each.
    let tenants = [tenant("small", 100, 4 * KIB, &[0]), tenant("large", 100, 64 * KIB, &[1])];
    under_fair_policies(mqfq(16, 64 * KIB), &tenants, 8500, |env| {
        env.expect_shares_by_weight("small", "large");
        // 8500 dispatches of 17 requests per 128 KiB: 500 of the large ones, 32 MiB each side.
        assert!(env.dispatched_bytes("small").abs_diff(500 * 64 * KIB) <= 4 * 64 * KIB);
    });
}

#[test]
fn four_queues_get_no_more_than_one() {
    // Equal weights and sizes, one queue against four. Per queue the second gets a quarter.
    let tenants = [tenant("one", 100, 4 * KIB, &[0]), tenant("four", 100, 4 * KIB, &[1, 2, 3, 4])];
    under_fair_policies(mqfq(8, 32 * KIB), &tenants, 6000, |env| env.expect_shares_by_weight("one", "four"));
}

#[test]
fn tenants_on_the_same_queue_share_as_on_different_ones() {
    let tenants = [
        tenant("a", 100, 4 * KIB, &[0]),
        tenant("b", 200, 16 * KIB, &[0]),
        tenant("c", 400, 4 * KIB, &[0, 1]),
        tenant("d", 100, 128 * KIB, &[1]),
    ];
    under_fair_policies(mqfq(8, 64 * KIB), &tenants, 8000, |env| {
        for (a, b) in [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")] {
            env.expect_shares_by_weight(a, b);
        }
    });
}

#[test]
fn shares_are_the_same_across_the_wrap() {
    // Virtual time wraps in the middle: 1000 requests of 4 KiB at weight 100 and 3000 at 300 move it by 1000 * 4
    // MiUnits, and it starts half of that before the wrap.
    let start = VTime::from_raw((500u64 * 4096 * 1024).wrapping_neg());
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 300, 4 * KIB, &[1])];
    let options = PolicyOptions { start, ..mqfq(4, 16 * KIB) };
    under_fair_policies(options, &tenants, 4000, |env| {
        env.expect_shares_by_weight("a", "b");
        let now = env.policy.global_vtime().unwrap();
        assert!(now.raw() < start.raw(), "virtual time {now:?} has not wrapped, the test shows nothing");
    });
}

#[test]
fn shares_hold_with_token_units() {
    // D = 64 units of 4 KiB; a request of 128 KiB takes 32. What is on the device does not count as dispatched later,
    // so shares of dispatched bytes obey the same bound as with one token per request.
    let options = PolicyOptions { token_unit_bytes: Some(4096), ..mqfq(64, 64 * KIB) };
    let tenants = [tenant("small", 100, 4 * KIB, &[0]), tenant("large", 300, 128 * KIB, &[1, 2])];
    under_fair_policies(options, &tenants, 6000, |env| {
        if env.options.kind != SFQD {
            env.expect_shares_by_weight("small", "large");
        }
    });
}

#[test]
fn a_new_weight_holds_from_the_next_request_on() {
    // 1:1 at first; then 1:4. After the change 5000 dispatches give 1000 : 4000, off by the window, the four requests
    // that were staged at the old weight, and a request each.
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 4 * KIB, &[1])];
    let mut env = Env::flat(mqfq(4, 16 * KIB), &tenants);
    env.keep_backlogged(4).dispatch(2000);
    env.expect_shares_by_weight("a", "b");
    let before = (env.dispatched_bytes("a"), env.dispatched_bytes("b"));
    env.set_weight("b", 400);
    env.dispatch(5000);
    let (a, b) = (env.dispatched_bytes("a") - before.0, env.dispatched_bytes("b") - before.1);
    assert!((4 * a).abs_diff(b) <= 8 * 16 * KIB + 8 * 4 * KIB + 5 * 4 * KIB, "{a} and {b} bytes, expected 1:4");
}

/// Bytes that the device of [`one_second_of_saturation_is_shared_by_weight_within_one_percent`] serves in a second.
const BYTES_PER_S: u64 = 3_000_000_000;

#[test]
fn one_second_of_saturation_is_shared_by_weight_within_one_percent() {
    // A device that serves 3 GB/s, oldest first; D = 64, T = 64 KiB. Compared is what was completed in the first
    // second, each tenant's against its part of the whole. At 1:10000 the light one gets 300 kB: its requests are of
    // 512 bytes, or a single one would be more than the tolerance.
    let weights_and_bytes = [
        (100, 100, 64 * KIB, 512 * KIB),
        (100, 300, 256 * KIB, 128 * KIB),
        (100, 1000, 32 * KIB, 256 * KIB),
        (100, 10_000, 4 * KIB, 128 * KIB),
        (1, 10_000, 512, 128 * KIB),
    ];
    // On one queue, on two, and on four, shared and not.
    let placements: [(&[u16], &[u16]); 5] =
        [(&[0], &[0]), (&[0], &[1]), (&[0], &[1, 2, 3, 4]), (&[0, 1, 2, 3], &[0]), (&[0, 1, 2, 3], &[0, 1, 2, 3])];
    for (light, heavy, light_bytes, heavy_bytes) in weights_and_bytes {
        for (light_hctxs, heavy_hctxs) in placements {
            let tenants =
                [tenant("light", light, light_bytes, light_hctxs), tenant("heavy", heavy, heavy_bytes, heavy_hctxs)];
            for options in forms(mqfq(64, 64 * KIB), &tenants) {
                let mut env = Env::flat(options, &tenants);
                env.keep_backlogged(4);
                let completed = |env: &Env| ["light", "heavy"].map(|name| env.completed_bytes(name));
                while completed(&env).iter().sum::<u64>() < BYTES_PER_S {
                    env.complete_oldest();
                }
                let got = completed(&env);
                let sum = got.iter().sum::<u64>() as f64;
                for (got, weight) in got.into_iter().zip([light, heavy]) {
                    let due = sum * weight as f64 / (light + heavy) as f64;
                    let off = got as f64 / due - 1.0;
                    assert!(
                        off.abs() <= 0.01,
                        "weight {weight} of {light}:{heavy} on {light_hctxs:?} and {heavy_hctxs:?} with a lease of {} \
                         units: {got} bytes, due are {due}",
                        options.lease.0
                    );
                }
            }
        }
    }
}

#[test]
fn none_favours_large_requests_and_many_queues() {
    // The device takes one request per queue in turn. 4 KiB on one queue against 64 KiB on two: 1 : 32 in bytes.
    let tenants = [tenant("small", 100, 4 * KIB, &[0]), tenant("large", 100, 64 * KIB, &[1, 2])];
    let mut env = Env::flat(PolicyOptions::new(PolicyKind::None), &tenants).device_depth(4);
    env.keep_backlogged(4).dispatch(3000);
    let (small, large) = (env.dispatched_bytes("small"), env.dispatched_bytes("large"));
    assert!(large.abs_diff(32 * small) <= 8 * 64 * KIB, "{small} and {large} bytes, expected 1:32");
    env.drain();
}
