//! The longest requests there are: leads beyond what a leaf can show, and virtual time that goes around.

use super::*;
use crate::cost::COST_MAX;

/// One request of 1 TiB at weight 1, units: 12.5 times as far as a leaf shows.
const LONGEST: u64 = COST_MAX.0 * 1024 * 100;

/// The longest requests of `FLOW` at weight 1; a flow of weight 100 beside it.
fn light(topology: &Topology) -> Mqfq {
    let options = PolicyOptions::new(PolicyKind::Mqfq);
    let weights = [Weight::MIN, Weight::DEFAULT];
    options.validate_for(&weights).expect("options of a test are in range");
    Mqfq::new(&options, topology, &weights)
}

fn end(policy: &Mqfq, queue: &mut MqfqQueue, grant: Grant) {
    policy.complete(queue, Done::read(grant.flow, grant.handle), grant.token, 0, &mut |_| ());
}

#[test]
fn virtual_time_comes_to_the_only_lead_however_far_it_is() {
    let policy = light(&Topology::flat(1));
    let mut queue = policy.open_queue(HctxId(0), 8);
    (0..3).for_each(|handle| submit(&policy, &mut queue, 0, COST_MAX.0, handle));
    for done in 1..3 {
        let grant = dispatched(&policy, &mut queue, &mut Vec::new());
        assert_eq!(policy.global_vtime(), VTime::from_raw(done * LONGEST));
        assert_eq!(queue.stage.lead(), Some(policy.global_vtime()));
        end(&policy, &mut queue, grant);
    }
}

#[test]
fn a_queue_whose_lead_is_farther_than_a_leaf_shows_waits_for_the_others_and_then_goes() {
    let policy = light(&Topology::flat(2));
    let [mut far, mut near] = [0, 1].map(|hctx| policy.open_queue(HctxId(hctx), 8));
    submit(&policy, &mut near, 1, 4096, 0);
    (0..2).for_each(|handle| submit(&policy, &mut far, 0, COST_MAX.0, handle));
    let mut kicked = Vec::new();
    let first = dispatched(&policy, &mut far, &mut kicked);
    assert_eq!(policy.pick(&mut far, 0, &mut |hctx| kicked.push(hctx)), Pick::Throttled);
    assert_eq!((policy.global_vtime(), kicked.as_slice()), (VTime::ZERO, &[][..]));
    let last = dispatched(&policy, &mut near, &mut kicked);
    assert_eq!(kicked, [HctxId(0)], "nobody else holds virtual time");
    let second = dispatched(&policy, &mut far, &mut kicked);
    assert_eq!(policy.global_vtime(), VTime::from_raw(LONGEST));
    end(&policy, &mut near, last);
    [first, second].into_iter().for_each(|grant| end(&policy, &mut far, grant));
}

#[test]
fn a_flow_that_slept_while_virtual_time_went_half_around_starts_at_virtual_time() {
    let policy = light(&Topology::flat(1));
    let mut queue = policy.open_queue(HctxId(0), 8);
    // 100 requests of a 164th of the circle each.
    for flow in core::iter::once(1).chain([0; 100]) {
        submit(&policy, &mut queue, flow, if flow == 0 { COST_MAX.0 } else { 4096 }, 0);
        let grant = dispatched(&policy, &mut queue, &mut Vec::new());
        end(&policy, &mut queue, grant);
    }
    let now = policy.global_vtime();
    assert!(now.raw() > 1 << 63, "{now:?}");
    submit(&policy, &mut queue, 1, 4096, 0);
    assert_eq!(queue.stage.lead(), Some(now));
}

#[test]
fn a_request_shorter_than_a_grain_takes_nothing_in_the_exact_form_and_a_grain_in_the_relaxed() {
    // L3 in `flow/account.rs`: with leases it holds back what another queue gives back.
    let exact = PolicyOptions::new(PolicyKind::Mqfq);
    for (options, taken) in [(exact, 0), (exact.relaxed(1), TAG_GRAIN.0)] {
        let policy = Mqfq::new(&options, &Topology::flat(1), &[Weight::MAX]);
        let mut queue = policy.open_queue(HctxId(0), 8);
        submit(&policy, &mut queue, 0, 1, 0);
        assert_eq!(policy.flows.finish_tag(FLOW), VTime::from_raw(taken));
    }
}
