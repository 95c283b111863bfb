//! A window that is set: what is in force then, and what follows it.

use super::*;

const KIB: u64 = 1024;

fn with_window_to_set() -> PolicyOptions {
    let (window, window_least) = (VSpan::from_bytes(256 * KIB), Some(VSpan::from_bytes(16 * KIB)));
    PolicyOptions { window, window_least, ..PolicyOptions::new(PolicyKind::Mqfq) }
}

#[test]
fn the_terms_in_force_are_those_that_were_set_last() {
    let exact = with_window_to_set();
    for options in [exact, exact.relaxed(2)] {
        let policy = policy(options, &Topology::flat(2), 1);
        assert_eq!(policy.window_terms(), Some(options.terms()));
        for kib in [16, 64, 1024] {
            let terms = options.terms_of(VSpan::from_bytes(kib * KIB), 2);
            policy.set_window(&terms);
            assert_eq!(policy.window_terms(), Some(terms));
        }
    }
}

#[test]
fn a_shorter_window_makes_steps_of_the_groups_come_sooner() {
    let mut policy = policy(with_window_to_set(), &Topology::flat(1), 2);
    let group = crate::flow::Group { weight: Weight::DEFAULT, parent: None };
    policy.set_tree(&Tree { groups: vec![group], of_flow: vec![Some(GroupId(0)); 2] });
    policy.set_window(&policy.options.terms_of(VSpan::from_bytes(16 * KIB), 1));
    // One flow with much, and one with half of a period, 64 KiB, at weight 50.
    let _ = policy.flows.charge(FLOW, Cost(1 << 30), VTime::ZERO);
    let _ = policy.flows.charge(FlowId(1), Cost(32 * KIB), VTime::ZERO);
    let weights = [64, VSpan::from_bytes(128 * KIB).0 + 64].map(|now| {
        policy.flows.refresh_if_due(VTime::from_raw(now));
        let weight = Registered::effective_weight(&policy, FLOW).expect("every flow has one");
        (weight.millionths + 500_000) / 1_000_000
    });
    assert_eq!(weights, [50, 75], "eight windows after the first look the other is content with half of its part");
}
