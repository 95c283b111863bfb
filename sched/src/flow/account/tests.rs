//! Flows by themselves: tags, weights, leases and refunds, on one thread.

use super::*;
use crate::base::random::Random;
use crate::flow::{Group, GroupId};

const FLOW: FlowId = FlowId(0);

fn table(weight: u64, start: VTime) -> FlowTable {
    FlowTable::new(&[Weight::new(weight).unwrap()], start)
}

#[test]
fn backlogged_requests_tile_the_axis() {
    // 4096 bytes at weight 100 are 4096 * 1024 units; global virtual time stays at 0.
    let flows = table(100, VTime::ZERO);
    for n in 0..4 {
        let interval = flows.charge(FLOW, Cost(4096), VTime::ZERO);
        assert_eq!(interval.start_tag.raw(), n * 4096 * 1024);
        assert_eq!(interval.finish_tag().raw(), (n + 1) * 4096 * 1024);
    }
}

#[test]
fn idle_flow_gets_no_credit() {
    let flows = table(100, VTime::ZERO);
    let interval = flows.charge(FLOW, Cost(1), VTime::from_raw(1 << 30));
    assert_eq!(interval.start_tag.raw(), 1 << 30);
}

#[test]
fn smallest_requests_at_the_largest_weight_still_cost() {
    // 512 bytes at weight 10000 are 512 * 10.24 = 5242.88 units = 81.92 grains. 100 of them: 524288 units exactly,
    // less at most one grain that is still carried.
    let flows = table(10_000, VTime::ZERO);
    let mut finish = VTime::ZERO;
    for _ in 0..100 {
        let interval = flows.charge(FLOW, Cost(512), VTime::ZERO);
        assert!(interval.span.0 >= 81 * 64);
        finish = interval.finish_tag();
    }
    assert!((524_288 - 64..=524_288).contains(&finish.raw()), "{finish:?}");
}

#[test]
fn carry_survives_idleness() {
    // A flow that always returns after global virtual time passed it pays in full too: cost 3 at weight 700 is
    // 438.86 units = 6.857 grains, so 7000 of them are 48000 grains less at most one, wherever they start.
    let flows = table(700, VTime::ZERO);
    let mut paid = 0;
    for n in 0..7000 {
        let interval = flows.charge(FLOW, Cost(3), VTime::from_raw(n * 6400));
        paid += interval.span.0 as i64;
    }
    assert!((48_000 * 64 - 64..=48_000 * 64).contains(&paid), "{paid}");
}

#[test]
fn weight_changes_from_the_next_request_on() {
    let flows = table(100, VTime::ZERO);
    let first = flows.charge(FLOW, Cost(1000), VTime::ZERO);
    flows.set_weight(FLOW, Weight::new(200).unwrap());
    let second = flows.charge(FLOW, Cost(1000), VTime::ZERO);
    assert_eq!(first.span, VSpan(1_024_000));
    assert_eq!((second.start_tag, second.span), (first.finish_tag(), VSpan(512_000)));
    assert_eq!(flows.weight(FLOW).get(), 200);
}

#[test]
fn tags_cross_the_wrap() {
    let start = VTime::from_raw(u64::MAX - 1000);
    let flows = table(100, start);
    let first = flows.charge(FLOW, Cost(4), align(start));
    let second = flows.charge(FLOW, Cost(4), align(start));
    assert!(first.start_tag.is_before(second.start_tag));
    assert_eq!(second.start_tag.since(align(start)), 4096);
    assert!(second.start_tag.raw() < first.start_tag.raw(), "the test means to cross the wrap");
}

#[test]
fn stale_finish_tag_does_not_come_back_from_the_future() {
    // The flow sleeps while virtual time goes once around. Without the refresh its finish tag would, from half a
    // circle on, compare as later than global virtual time.
    let flows = table(100, VTime::ZERO);
    let _ = flows.charge(FLOW, Cost(1), VTime::ZERO);
    let mut now = VTime::ZERO;
    for _ in 0..16 {
        now = now.plus(VSpan(1 << 60));
        flows.refresh_if_due(now);
        let gap = now.since(flows.finish_tag(FLOW));
        assert!((0..1 << 62).contains(&gap), "finish tag is {gap} units behind, F4 allows a quarter circle");
    }
    let interval = flows.charge(FLOW, Cost(1), now.plus(VSpan(64)));
    assert_eq!(interval.start_tag, now.plus(VSpan(64)));
}

#[test]
fn worker_with_an_old_view_does_not_turn_the_refresh_back() {
    let flows = table(100, VTime::ZERO);
    flows.refresh_if_due(VTime::from_raw(1 << 61));
    flows.refresh_if_due(VTime::from_raw((1 << 61) - 64));
    assert_eq!(flows.refreshed.load(Relaxed), 1);
}

#[test]
fn the_octant_after_the_first_is_refreshed_wherever_on_the_circle_a_table_begins() {
    for first in 0..8u64 {
        let flows = table(100, VTime::from_raw(first << 61));
        flows.refresh_if_due(VTime::from_raw(first.wrapping_add(1) << 61));
        assert_eq!(flows.refreshed.load(Relaxed), (first + 1) % 8);
    }
}

#[test]
fn a_look_from_far_behind_does_not_turn_the_refresh_back() {
    // Three octants behind is as far as a look can be; it reads as five ahead.
    let flows = table(100, VTime::ZERO);
    flows.refresh_if_due(VTime::from_raw(3 << 61));
    flows.refresh_if_due(VTime::from_raw(64));
    assert_eq!(flows.refreshed.load(Relaxed), 3);
}

#[test]
fn a_table_knows_its_size_and_a_weight_its_range() {
    let flows = table(100, VTime::ZERO);
    assert_eq!((flows.len(), flows.is_empty()), (1, false));
    let three = FlowTable::new(&[Weight::DEFAULT; 3], VTime::ZERO);
    assert_eq!((three.len(), three.is_empty()), (3, false));
    assert!(FlowTable::new(&[], VTime::ZERO).is_empty());
    let refused = Weight::new(10_001).unwrap_err().to_string();
    assert_eq!(refused, "weight 10001 is out of range, allowed is 1 to 10000");
}

#[test]
#[should_panic(expected = "is out of range, allowed is 1 to")]
fn a_cost_beyond_the_largest_is_refused() {
    let _ = table(100, VTime::ZERO).charge(FLOW, Cost(COST_MAX.0 + 1), VTime::ZERO);
}

/// Units of 7000 requests of cost 3 at weight 700: 438.86 units = 6.857 grains each, 48000 grains together.
const PAID: i64 = 48_000 * 64;

#[test]
fn fractions_are_paid_by_first_requests_and_out_of_leases() {
    let (first, leased) = (table(700, VTime::ZERO), table(700, VTime::ZERO));
    let (interval, mut lease) = leased.charge_first(FLOW, Cost(3), VTime::ZERO);
    let (mut paid_first, mut paid_leased) = (0, interval.span.0 as i64);
    for n in 0..7000 {
        let (interval, left) = first.charge_first(FLOW, Cost(3), VTime::ZERO);
        paid_first += interval.span.0 as i64;
        first.give_back(FLOW, left);
        if n == 0 {
            continue;
        }
        paid_leased += leased.charge_leased(FLOW, Cost(3), VTime::ZERO, &mut lease, LENGTH).span.0 as i64;
    }
    for paid in [paid_first, paid_leased] {
        assert!((PAID - 64..=PAID).contains(&paid), "{paid}");
    }
}

#[test]
fn fractions_that_a_queue_leaves_behind_are_paid() {
    // Each queue leaves with less than a grain that it owes; what they leave adds up.
    let flows = table(700, VTime::ZERO);
    for _ in 0..1750 {
        let (_, mut lease) = flows.charge_first(FLOW, Cost(3), VTime::ZERO);
        for _ in 0..3 {
            let _ = flows.charge_leased(FLOW, Cost(3), VTime::ZERO, &mut lease, VSpan(64));
        }
        flows.give_back(FLOW, lease);
    }
    let paid = flows.finish_tag(FLOW).raw() as i64;
    assert!((PAID - 64..=PAID).contains(&paid), "{paid}");
}

#[test]
fn a_credit_that_would_pay_for_all_leaves_a_grain_to_be_taken() {
    // L3: 60 KiB of credit, and a lease of 4 KiB that takes a grain of the axis all the same.
    let flows = table(100, VTime::ZERO);
    let (_, mut one) = flows.charge_first(FLOW, Cost(4096), VTime::ZERO);
    let _ = flows.charge_leased(FLOW, Cost(4096), VTime::ZERO, &mut one, LENGTH);
    let (_, mut two) = flows.charge_first(FLOW, Cost(4096), VTime::ZERO);
    flows.give_back(FLOW, one);
    let before = flows.finish_tag(FLOW);
    let _ = flows.charge_leased(FLOW, Cost(4096), VTime::ZERO, &mut two, VSpan(64));
    assert_eq!(flows.finish_tag(FLOW).since(before), 64);
}

const LENGTH: VSpan = VSpan(64 << 20);

/// Length of a request of `cost` at weight 100.
fn span(cost: u64) -> i64 {
    cost as i64 * 1024
}

#[test]
fn a_lease_is_cut_without_a_hole_and_goes_back() {
    let flows = table(100, VTime::ZERO);
    let (first, mut lease) = flows.charge_first(FLOW, Cost(4096), VTime::ZERO);
    let mut last = first;
    for _ in 0..20 {
        let next = flows.charge_leased(FLOW, Cost(4096), VTime::ZERO, &mut lease, LENGTH);
        assert_eq!(next.start_tag, last.finish_tag());
        last = next;
    }
    // 21 requests of 4 KiB took their own 84 KiB and hold more; then exactly 84 KiB.
    assert!(flows.finish_tag(FLOW).since(last.finish_tag()) > 0);
    flows.give_back(FLOW, lease);
    assert_eq!(flows.finish_tag(FLOW).raw() as i64, span(21 * 4096));
}

#[test]
fn a_lease_is_used_up_before_the_next_is_taken() {
    // Sixteen requests of 4 KiB to a lease of 64 KiB.
    let flows = table(100, VTime::ZERO);
    let (_, mut lease) = flows.charge_first(FLOW, Cost(4096), VTime::ZERO);
    let mut tag = flows.finish_tag(FLOW);
    let taken: Vec<bool> = (0..33)
        .map(|_| {
            let _ = flows.charge_leased(FLOW, Cost(4096), VTime::ZERO, &mut lease, LENGTH);
            core::mem::replace(&mut tag, flows.finish_tag(FLOW)) != tag
        })
        .collect();
    let takes: Vec<usize> = (0..33).filter(|&request| taken[request]).collect();
    assert_eq!(takes, [0, 16, 32]);
}

#[test]
fn a_grain_that_fractions_fill_is_paid_by_the_refund_or_the_lease_or_the_axis() {
    // All but a fraction of a grain is kept back already, and the lease brings that. It ends where the axis does.
    let start = VTime::from_raw(6400);
    let after = |refund: u64, left: u64, carry: u64| {
        let flows = table(100, VTime::ZERO);
        let charged = &flows.cell(FLOW).charged;
        charged.carry.store(FRACTION_MASK, Relaxed);
        charged.finish.store(start.raw() + left, Relaxed);
        flows.give_back(FLOW, Lease { next: start, end: start.plus(VSpan(left)), refund, carry });
        (flows.finish_tag(FLOW).since(start), charged.credit.load(Relaxed))
    };
    // No grain is full: all goes back.
    assert_eq!([after(128, 0, 0), after(0, 128, 0), after(64, 64, 0)], [(0, 128), (0, 0), (0, 64)]);
    // The refund pays, if there is one.
    assert_eq!([after(64, 128, 1), after(128, 0, 1)], [(0, 0), (0, 64)]);
    // Else the lease.
    assert_eq!([after(0, 64, 1), after(0, 128, 1)], [(64, 0); 2]);
    // Else the axis.
    assert_eq!(after(0, 0, 1), (64, 0));
}

#[test]
fn what_a_queue_does_not_use_is_refunded_to_the_next() {
    let flows = table(100, VTime::ZERO);
    let (_, mut one) = flows.charge_first(FLOW, Cost(4096), VTime::ZERO);
    let _ = flows.charge_leased(FLOW, Cost(4096), VTime::ZERO, &mut one, LENGTH);
    let (_, mut two) = flows.charge_first(FLOW, Cost(4096), VTime::ZERO);
    // Queue one leaves with 60 KiB unused behind which queue two has taken: a hole.
    assert_eq!(one.left().bytes(), 60 << 10);
    flows.give_back(FLOW, one);
    let before = flows.finish_tag(FLOW);
    let mut paid = 0;
    for _ in 0..16 {
        let interval = flows.charge_leased(FLOW, Cost(4096), VTime::ZERO, &mut two, LENGTH);
        paid += interval.span.0 as i64;
    }
    flows.give_back(FLOW, two);
    // 64 KiB of requests for 4 KiB of the axis.
    assert_eq!((paid, flows.finish_tag(FLOW).since(before)), (span(4096), span(4096)));
}

#[test]
fn idleness_forfeits_what_was_not_used() {
    // I7: a hole is paid back to a flow that goes on, not to one that went away.
    let flows = table(100, VTime::ZERO);
    let (_, mut one) = flows.charge_first(FLOW, Cost(4096), VTime::ZERO);
    let _ = flows.charge_leased(FLOW, Cost(4096), VTime::ZERO, &mut one, LENGTH);
    let (_, two) = flows.charge_first(FLOW, Cost(4096), VTime::ZERO);
    flows.give_back(FLOW, one);
    flows.give_back(FLOW, two);
    let now = VTime::from_raw(1 << 40);
    let (first, mut lease) = flows.charge_first(FLOW, Cost(4096), now);
    let second = flows.charge_leased(FLOW, Cost(4096), now, &mut lease, LENGTH);
    assert_eq!((first.start_tag, second.start_tag), (now, first.finish_tag()));
    assert_eq!(second.span.0 as i64, span(4096));
}

#[test]
fn a_start_tag_of_one_queue_holds_back_what_another_gives_back() {
    // 1 byte at weight 10,000 is shorter than a grain, so queue two's first request covers nothing of the axis. If
    // it took nothing either, queue one would move the finish tag back before it, and two's next would come first
    // (L3).
    let flows = table(10_000, VTime::ZERO);
    let (_, mut one) = flows.charge_first(FLOW, Cost(4096), VTime::ZERO);
    let _ = flows.charge_leased(FLOW, Cost(4096), VTime::ZERO, &mut one, LENGTH);
    let (first, mut two) = flows.charge_first(FLOW, Cost(1), VTime::ZERO);
    assert_eq!(first.start_tag, first.finish_tag(), "the test means to have an empty interval");
    flows.give_back(FLOW, one);
    let second = flows.charge_leased(FLOW, Cost(4096), VTime::ZERO, &mut two, LENGTH);
    assert!(!second.start_tag.is_before(first.start_tag), "{second:?} after {first:?}");
}

#[test]
fn a_lease_out_of_credit_holds_back_what_another_gives_back() {
    // Leases lie on the axis in the order queue 0, 2, 1. Queue 2 leaves a hole that pays for all of queue 0's next
    // lease but a grain (L3); then queue 1, the last on the axis, gives back.
    let flows = table(100, VTime::ZERO);
    let length = VSpan(64 * 1024);
    let mut leases = [(); 3].map(|()| flows.charge_first(FLOW, Cost(1), VTime::ZERO).1);
    for queue in [0, 2, 1] {
        let _ = flows.charge_leased(FLOW, Cost(1), VTime::ZERO, &mut leases[queue], length);
    }
    flows.give_back(FLOW, leases[2]);
    let mut last = flows.charge_leased(FLOW, Cost(60), VTime::ZERO, &mut leases[0], length);
    for n in 0..42 {
        if n == 2 {
            flows.give_back(FLOW, leases[1]);
        }
        let next = flows.charge_leased(FLOW, Cost(4), VTime::ZERO, &mut leases[0], length);
        assert!(!next.start_tag.is_before(last.start_tag), "{next:?} after {last:?}");
        last = next;
    }
}

#[test]
fn a_lease_that_virtual_time_has_passed_is_refunded() {
    let flows = table(100, VTime::ZERO);
    let (_, mut lease) = flows.charge_first(FLOW, Cost(4096), VTime::ZERO);
    let _ = flows.charge_leased(FLOW, Cost(4096), VTime::ZERO, &mut lease, LENGTH);
    let now = VTime::from_raw(span(40 << 10) as u64);
    let interval = flows.charge_leased(FLOW, Cost(4096), now, &mut lease, LENGTH);
    // 32 KiB were skipped: seven requests more for nothing.
    assert_eq!((interval.start_tag, interval.finish_tag()), (now, now));
    for _ in 0..7 {
        assert_eq!(flows.charge_leased(FLOW, Cost(4096), now, &mut lease, LENGTH).finish_tag(), now);
    }
    assert_eq!(flows.charge_leased(FLOW, Cost(4096), now, &mut lease, LENGTH).finish_tag().since(now), span(4096));
}

#[test]
fn a_lease_that_lies_all_behind_virtual_time_is_refunded_there() {
    let flows = table(100, VTime::ZERO);
    let (_, mut lease) = flows.charge_first(FLOW, Cost(4096), VTime::ZERO);
    let _ = flows.charge_leased(FLOW, Cost(4096), VTime::ZERO, &mut lease, LENGTH);
    // 60 KiB were left, up to 68 KiB: fifteen requests for nothing.
    let now = VTime::from_raw(span(100 << 10) as u64);
    for n in 0..17 {
        let interval = flows.charge_leased(FLOW, Cost(4096), now, &mut lease, LENGTH);
        let paid = span(4096) * (n - 14).max(0);
        assert_eq!(interval.finish_tag().since(now), paid, "request {n}");
    }
    assert_eq!(flows.finish_tag(FLOW).since(now), span(64 << 10));
}

#[test]
#[should_panic(expected = "flow 1 does not exist, there are 1")]
fn unknown_flow_is_named() {
    let _ = table(100, VTime::ZERO).charge(FlowId(1), Cost(1), VTime::ZERO);
}

#[test]
fn i7_flow_in_the_place_of_another_starts_at_virtual_time_without_debt_or_credit() {
    // 10000 bytes at weight 1 are an hour of debt at weight 100; a fraction, and a hole that became credit.
    let flows = table(1, VTime::ZERO);
    let (_, mut lease) = flows.charge_first(FLOW, Cost(10_000), VTime::ZERO);
    let _ = flows.charge_leased(FLOW, Cost(3), VTime::ZERO, &mut lease, VSpan(1 << 20));
    let _ = flows.charge(FLOW, Cost(7), VTime::ZERO);
    flows.give_back(FLOW, lease);
    let now = VTime::from_raw(640);
    flows.retire(FLOW, now);
    flows.set_weight(FLOW, Weight::DEFAULT);
    let (first, lease) = flows.charge_first(FLOW, Cost(1), now);
    assert_eq!((first.start_tag, first.finish_tag()), (now, VTime::from_raw(640 + 1024)));
    assert_eq!((lease.left(), lease.refund), (VSpan(0), 0));
}

#[test]
fn a_serial_table_charges_as_a_shared_one_does() {
    let late = |is_serial| {
        let mut flows = table(100, VTime::ZERO);
        flows.charge_late(is_serial);
        flows
    };
    let (shared, serial) = (late(false), late(true));
    let words = |flows: &FlowTable| {
        let charged = &flows.cell(FLOW).charged;
        // Relaxed: one thread.
        (charged.finish.load(Relaxed), charged.credit.load(Relaxed), charged.carry.load(Relaxed) & FRACTION_MASK)
    };
    let (mut now, mut random) = (VTime::ZERO, Random::new(51));
    let (mut credited, mut passed) = (0, 0);
    for step in 0..20_000 {
        let cost = Cost(1 + random.below(300));
        match random.below(8) {
            // A rate with a fraction, down to a hundredth of a grain for a unit of cost.
            0 => {
                let rate = 1 + (random.below(1 << 20) << 20);
                [&shared, &serial].iter().for_each(|flows| flows.set_rate(FLOW, rate));
            }
            1 | 2 => {
                let actual = Cost(random.below(400));
                [&shared, &serial].iter().for_each(|flows| flows.correct(FLOW, cost, actual, now));
            }
            3 => {
                // To before the flow's finish tag, or behind it.
                let around = VTime::from_raw(words(&shared).0).plus(VSpan(1 << 12)).minus(VSpan(random.below(1 << 13)));
                now = align(now.later(around));
            }
            _ => {
                let (finish, credit, _) = words(&shared);
                credited += u64::from(credit > 0);
                passed += u64::from(VTime::from_raw(finish).is_before(now));
                let interval = shared.charge_promoted(FLOW, cost, now);
                assert_eq!(serial.charge_serial(FLOW, cost, now), interval, "step {step}");
            }
        }
        assert_eq!(words(&serial), words(&shared), "step {step}");
    }
    assert!(credited > 500 && passed > 500, "{credited} charges with credit, {passed} of a flow that is passed");
}

// Flows in groups beside one in none: what a look at virtual time tells the hierarchy, and what it leaves alone.

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
