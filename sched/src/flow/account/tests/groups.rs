//! Flows in groups beside one in none: what a look at virtual time tells the hierarchy, and what it leaves alone.

use super::*;
use crate::flow::{Group, GroupId};

const OTHER: FlowId = FlowId(1);
/// A flow in no group.
const FREE: FlowId = FlowId(2);

/// Virtual time from one step to the next, units.
const PERIOD: u64 = 1 << 30;

/// Two flows share a group of weight 100, the third is by itself.
fn grouped() -> FlowTable {
    let mut flows = FlowTable::new(&[Weight::DEFAULT; 3], VTime::ZERO);
    let group = Group { weight: Weight::DEFAULT, parent: None };
    let of_flow = vec![Some(GroupId(0)), Some(GroupId(0)), None];
    flows.set_tree(&Tree { groups: vec![group], of_flow }, VSpan(PERIOD));
    flows
}

/// Both flows of the group come at 0: one with more than is ever asked for here, the other with a quarter of a period
/// at weight 50.
fn come(flows: &FlowTable) {
    let _ = flows.charge(FLOW, Cost(1 << 30), VTime::ZERO);
    let quarter = flows.charge(OTHER, Cost(PERIOD / 4 / 2048), VTime::ZERO);
    assert_eq!(quarter.span.0, PERIOD / 4);
}

/// Effective weight in thousandths, and whether the flow competes.
fn weighs(flows: &FlowTable, flow: FlowId) -> (u64, bool) {
    let weight = flows.effective_weight(flow, VTime::ZERO);
    ((weight.millionths + 500) / 1000, weight.competes)
}

#[test]
fn what_virtual_time_skips_of_a_flow_is_its_siblings_from_the_next_step_on() {
    let flows = grouped();
    come(&flows);
    // It comes again after half a period, with an eighth: 5/8 of the period are skipped, of which an eighth at the end.
    let _ = flows.charge(OTHER, Cost(PERIOD / 8 / 2048), VTime::from_raw(PERIOD / 4 * 3));
    flows.refresh_if_due(VTime::from_raw(PERIOD));
    // It has used 3/8 of its 50.
    assert_eq!([weighs(&flows, FLOW), weighs(&flows, OTHER)], [(81_250, true), (50_000, true)]);
    // The flow wants nothing any more.
    flows.refresh_if_due(VTime::from_raw(2 * PERIOD));
    assert_eq!((weighs(&flows, FLOW), weighs(&flows, OTHER).1), ((100_000, true), false));
}

#[test]
fn a_flow_that_is_idle_to_the_sums_competes_when_its_deferred_request_is_charged() {
    let flows = grouped();
    come(&flows);
    [PERIOD, 2 * PERIOD].into_iter().for_each(|now| flows.refresh_if_due(VTime::from_raw(now)));
    assert!(!weighs(&flows, OTHER).1);
    let now = VTime::from_raw(2 * PERIOD);
    let _ = flows.charge_deferred(OTHER, Cost(4096), now, &mut Lease::default(), LENGTH);
    assert_eq!(weighs(&flows, OTHER), (50_000, true));
}

#[test]
fn steps_follow_a_period_that_is_set() {
    let flows = grouped();
    flows.set_step_period(VSpan(4 * PERIOD));
    come(&flows);
    // The first look makes a step: both are backlogged. The next one comes four periods later.
    for (now, weight) in [(64, 50_000), (PERIOD + 64, 50_000), (4 * PERIOD, 50_000), (4 * PERIOD + 64, 96_875)] {
        flows.refresh_if_due(VTime::from_raw(now));
        assert_eq!(weighs(&flows, FLOW).0, weight, "at {now}");
    }
}

#[test]
fn a_look_passes_over_the_flows_in_no_group_once_per_octant() {
    let flows = grouped();
    let mut tags = Vec::new();
    for eighths in 1..=32 {
        // Four looks in each octant.
        flows.refresh_if_due(VTime::from_raw(eighths << 59));
        tags.push(flows.finish_tag(FREE).raw() >> 59);
    }
    let expected: Vec<u64> = (1..=32).map(|eighths| eighths % 32 / 4 * 4).collect();
    assert_eq!(tags, expected, "F4: the tag is never more than a look and an octant behind");
}
