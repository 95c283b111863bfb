//! Who gets how much: proportional shares under saturation, whatever the sizes, queues and weights.

mod common;
use common::*;
use mqfq_sched::policy::{PolicyKind, PolicyOptions};
use mqfq_sched::topology::HctxId;
use mqfq_sched::vtime::VTime;

/// Difference in dispatched bytes per unit of weight that two backlogged flows may have: `2T + l_f/r_f + l_m/r_m` (proof in
/// `policy/mqfq.rs`), times the larger weight's share: a bound in bytes on `|A * b_share - B * a_share| / max share`.
fn slack(env: &Env) -> u64 {
    let largest = env.tenants.iter().map(|tenant| tenant.request_bytes).max().unwrap();
    let heaviest = env.tenants.iter().map(|tenant| tenant.weight).max().unwrap();
    2 * env.options.window.bytes() * heaviest / 100 + 2 * largest * heaviest
}

#[test]
fn flow_with_three_times_the_weight_gets_three_times_the_bytes() {
    // Weights 100:300, equal 4 KiB reads, D = 4, T = 16 KiB, one queue each. 4000 dispatches -> 1000 : 3000, and the
    // difference in bytes over weight is at most 2T + 2 requests.
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 300, 4 * KIB, &[1])];
    let mut env = Env::flat(mqfq(4, 16 * KIB), &tenants);
    env.keep_backlogged(8).dispatch(4000);
    env.expect_ratio("a", "b", 1, 3, 2 * 16 * KIB + 2 * 4 * KIB);
}
