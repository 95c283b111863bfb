//! The search by itself: what is measured next after each phase, and what is concluded, on loads without noise.

use super::super::log::log2;
use super::*;

#[test]
fn candidates_lie_where_one_more_request_goes() {
    // 128 KiB in units of 4 KiB: 1, 33, 65, ...
    assert_eq!([1, 16, 17, 18, 64, 4096].map(|depth| on_grid(depth, 32, 4096)), [1, 1, 33, 33, 65, 4096]);
    let next = |depth, is_up| candidate(depth, FACTORS[0], is_up, 32, 65_535);
    assert_eq!([next(33, true), next(65, true), next(161, true)], [Some(65), Some(129), Some(321)]);
    assert_eq!([next(33, false), next(65, false), next(1, false)], [Some(1), Some(33), None]);
    assert_eq!(candidate(4, FACTORS[2], true, 1, 65_535), Some(5), "one step at least");
    assert_eq!(candidate(65_535, FACTORS[0], true, 1, 65_535), None);
}

#[test]
fn the_first_pair_must_show_more_than_the_later_ones() {
    let scatter = Scatter { variance: SCATTER_START * SCATTER_START, seen: 4 };
    let percent = |limit: u64| limit as f64 / 65_536.0 * 69.3;
    assert!((percent(scatter.limit(1)) - 8.0).abs() < 0.1, "{}", percent(scatter.limit(1)));
    assert!((percent(scatter.limit(4)) - 3.0).abs() < 0.1, "{}", percent(scatter.limit(4)));
}

#[test]
fn while_requests_go_in_parts_work_counts_in_units_and_depth_costs_a_quarter() {
    // 1.6% more units, of which a small reader has fewer, at a depth 48% larger: optane, D = 9 and 13.
    let percent = |percent: i32| log2_of_millionths(1_000_000 + percent as u64 * 10_000);
    let shallow = Phase { waiting: ONE, ..Phase::default() };
    let deep = Phase { units_log: percent(2), weighed_log: 0, device_log: percent(48), ..shallow };
    let in_parts = |phase: Phase| Phase { is_in_parts: true, ..phase };
    assert!(gain(&deep, &shallow) < -percent(2), "small tenants pay, and depth its full price");
    assert!(gain(&in_parts(deep), &in_parts(shallow)) > percent(1));
    assert_eq!(gain(&in_parts(deep), &shallow), gain(&deep, &shallow), "what began whole is compared as whole");
}

#[test]
fn the_best_and_the_worst_of_five_are_left_out() {
    let mut pairs = Pairs::default();
    [10, 1000, 20, 30, -500].into_iter().for_each(|gain| pairs.add(gain));
    assert_eq!(pairs.mean(), 20);
}

const FULL: i32 = ONE;

/// A phase at a depth on a device that earns up to `knee` units and then no more. Requests of `step` units.
fn saturated(knee: u64, step: u32) -> impl Fn(u32) -> Phase {
    move |depth| {
        let depth = u64::from(depth);
        let units_log = log2(depth.min(knee) << 20);
        Phase {
            units_log,
            weighed_log: units_log + 1,
            device_log: log2(depth << 20),
            system_log: log2(1000 << 20),
            device_units: depth,
            waiting: FULL,
            step,
            step_log: log2(step.into()),
            is_in_parts: false,
        }
    }
}

/// The depths that a search wants measured in turn, and the last one.
struct Talk {
    search: Search,
    depth: u32,
    now_ns: u64,
}

impl Talk {
    fn new(depth: u32, depth_max: u32) -> Talk {
        Talk { search: Search::new(depth, depth_max), depth, now_ns: 0 }
    }

    fn say(&mut self, phase: Phase) -> u32 {
        self.now_ns += 10;
        self.depth = self.search.learn(&phase, self.depth, self.now_ns);
        self.depth
    }

    fn listen(&mut self, count: usize, load: impl Fn(u32) -> Phase) -> Vec<u32> {
        (0..count).map(|_| self.say(load(self.depth))).collect()
    }

    /// Runs until the search holds a depth; returns the depths measured.
    fn settle(&mut self, load: impl Fn(u32) -> Phase) -> Vec<u32> {
        let mut depths = Vec::new();
        while self.search.state().reason != Reason::Found {
            depths.push(self.say(load(self.depth)));
            assert!(depths.len() < 500, "it does not settle: {:?}", self.search);
        }
        depths
    }

    fn last(&self) -> Probe {
        self.search.state().probes[0].expect("something was compared")
    }
}

#[test]
fn it_climbs_to_the_knee_and_refuses_what_lies_around_it() {
    // 8 and 16 are surely better after one pair; 32, 8, 22, 11, 20 and 12 are not.
    let mut talk = Talk::new(4, 4096);
    let measured = talk.settle(saturated(16, 1));
    let climb = [8, 4, 8, 16, 8, 16];
    let around = [32, 16, 32, 16, 8, 16, 22, 16, 22, 16, 22, 16, 11, 16, 20, 16, 20, 16, 20, 16, 12, 16, 16];
    assert_eq!(measured, [&climb[..], &around].concat());
    let state = talk.search.state();
    assert_eq!((state.chosen, state.depth, state.chosen_ns, state.phases), (16, 16, 60, 29));
    let probe = |at_ns, trial, gain_thousandths, pairs| {
        Some(Probe { at_ns, depth: 16, trial, verdict: Verdict::Worse, gain_thousandths, pairs })
    };
    assert_eq!(
        state.probes,
        [probe(290, 12, -265, 1), probe(270, 20, -18, 3), probe(210, 11, -345, 1), probe(190, 22, -26, 3)]
    );
}

#[test]
fn after_a_step_down_by_two_that_was_right_the_next_is_by_four() {
    let mut talk = Talk::new(256, 4096);
    let measured = talk.settle(saturated(16, 1));
    // Up; down by 2; by 4 to 32; to 8 it is too far, so by 2 to 16.
    let down = [512, 256, 512, 256, 128, 256, 128, 256, 128, 32, 128, 32, 8, 32, 16, 32, 16, 32, 16, 4, 16, 8, 16];
    assert_eq!(measured[..down.len()], down);
    assert_eq!((talk.search.state().chosen, talk.search.state().chosen_ns, measured.len()), (16, 190, 40));
    // Not after one by less than 2: from 22 it comes to 15 by the root of 2.
    let mut talk = Talk::new(22, 4096);
    let measured = talk.settle(saturated(15, 1));
    assert_eq!(measured[..20], [44, 22, 44, 22, 11, 22, 31, 22, 31, 22, 31, 22, 15, 22, 15, 22, 15, 10, 15, 21]);
    assert_eq!(talk.search.state().chosen, 15);
}

#[test]
fn candidates_that_fall_together_on_a_coarse_grid_are_tried_once() {
    // 64 is not on the grid: 65 is measured anew, and then 129. 97 is worse at the second factor, and so not tried at
    // the third.
    let mut talk = Talk::new(64, 4096);
    let measured = talk.settle(saturated(100, 32));
    let [twelve_times, tail] = [&[97, 129][..], &[161, 129, 161, 129, 129]];
    let begin = [65, 129, 65, 129, 257, 129, 257, 129, 65, 129, 193, 129, 193, 129];
    assert_eq!(measured, [&begin[..], &twelve_times.repeat(12), tail].concat());
    let trials = talk.search.state().probes.map(|probe| probe.map(|it| (it.trial, it.pairs)));
    assert_eq!(trials, [Some((161, 2)), Some((97, 12)), Some((193, 2)), Some((65, 1))]);
}

#[test]
fn a_depth_that_is_brought_onto_the_grid_is_measured_there_before_the_candidate() {
    let mut talk = Talk::new(64, 4096);
    let load = saturated(100, 32);
    assert_eq!(talk.say(load(64)), 65);
    // Also if no request waits meanwhile.
    assert_eq!(talk.say(Phase { waiting: 0, ..load(65) }), 129);
}

#[test]
fn a_depth_is_held_for_twice_as_many_phases_each_time() {
    let mut talk = Talk::new(4, 4096);
    let load = saturated(16, 1);
    let _ = talk.settle(&load);
    let mut holds = vec![1];
    for _ in 0..420 {
        let was_held = talk.search.state().reason == Reason::Found;
        talk.say(load(talk.depth));
        match (was_held, talk.search.state().reason == Reason::Found) {
            (true, true) => *holds.last_mut().expect("one") += 1,
            (false, true) => holds.push(1),
            _ => {}
        }
    }
    assert_eq!(holds[..5], [16, 32, 64, 128, 128]);
}

/// A search that holds a depth found for this load.
fn held(found: &Phase) -> Talk {
    let mut talk = Talk::new(16, 4096);
    talk.search.task = Task::Hold { left: 100, others: 0 };
    assert_eq!(talk.say(*found), 16);
    talk
}

#[test]
fn two_phases_in_a_row_of_another_load_begin_the_search_anew() {
    let full = saturated(16, 1)(16);
    let bound = Phase { waiting: SATURATED, ..full };
    let idle = Phase { waiting: SATURATED - 1, ..full };
    let sized = |by| Phase { step_log: full.step_log + by, ..full };
    let at_rate = |phase: Phase, by| Phase { units_log: full.units_log + by, ..phase };
    let cases = [
        (full, full, false),
        (full, sized(SIZE_CHANGED), false),
        (full, sized(SIZE_CHANGED + 1), true),
        (full, sized(-SIZE_CHANGED - 1), true),
        (full, bound, false),
        (bound, full, false),
        (full, idle, true),
        (idle, full, true),
        (full, at_rate(full, RATE_CHANGED), false),
        (full, at_rate(full, RATE_CHANGED + 1), true),
        (full, at_rate(full, -RATE_CHANGED - 1), true),
        // Where no request waits, the rate is the demand's.
        (idle, at_rate(idle, RATE_CHANGED + 1), false),
    ];
    for (found, seen, is_other) in cases {
        let mut talk = held(&found);
        let is_held = |talk: &Talk| matches!(talk.search.task, Task::Hold { .. });
        // One is an accident, and so is the next one after a usual one.
        for phase in [&seen, &found, &seen] {
            talk.say(*phase);
            assert!(is_held(&talk), "{found:?} {phase:?}");
        }
        talk.say(seen);
        assert_eq!(is_held(&talk), !is_other, "{found:?} {seen:?}");
    }
}

#[test]
fn a_search_that_begins_anew_has_forgotten_what_it_knew() {
    let load = saturated(16, 1);
    let mut talk = Talk::new(4, 4096);
    let _ = talk.settle(&load);
    let _ = talk.listen(30, &load);
    let other = |depth| Phase { step_log: 4 * ONE, ..load(depth) };
    assert_eq!(talk.listen(2, other), [16, 32], "by a factor of 2 again, and upwards");
    assert_eq!(talk.search.state().reason, Reason::Changed);
    assert_eq!((talk.search.hold, talk.search.found, talk.search.factor, talk.search.fails), (HOLD, None, 0, 0));
    // The reason holds until a depth is found for the other load; a later search has another one.
    let _ = talk.settle(other);
    let _ = talk.listen(HOLD as usize, other);
    assert_eq!(talk.search.state().reason, Reason::Searching);
    // Likewise if no request waits then: as soon as one does, a candidate is tried.
    let mut talk = Talk::new(4, 4096);
    let _ = talk.settle(&load);
    let _ = talk.listen(1, &load);
    let quiet = |depth| Phase { waiting: BOUND_UP + 1, ..load(depth) };
    assert_eq!(talk.listen(2, quiet), [16, 16]);
    assert_eq!(talk.search.state().reason, Reason::Quiet);
    assert_eq!(talk.listen(1, load), [32]);
}

#[test]
fn a_search_that_begins_at_a_depth_has_forgotten_what_it_found() {
    let load = saturated(16, 1);
    let mut talk = Talk::new(4, 4096);
    let _ = talk.settle(&load);
    let _ = talk.listen(30, &load);
    talk.search.begin_at(40, Reason::Turns, 5);
    let state = talk.search.state();
    assert_eq!((state.chosen, state.chosen_ns, state.reason), (40, 5, Reason::Turns));
    // By a factor of 2 again, and upwards.
    talk.depth = 40;
    assert_eq!(talk.listen(1, load), [80]);
    assert_eq!((talk.search.hold, talk.search.found, talk.search.factor, talk.search.fails), (HOLD, None, 0, 0));
}

/// A load on which a doubling of depth earns its price and `more`, 65536ths.
fn priced(more: i32) -> impl Fn(u32) -> Phase {
    move |depth| {
        let device_log = log2(u64::from(depth) << 20);
        let units_log = (i64::from(device_log) * i64::from(ALPHA + more) / i64::from(ONE)) as i32;
        Phase { units_log, weighed_log: units_log, ..saturated(1, 1)(depth) }
    }
}

#[test]
fn in_doubt_the_smaller_depth_is_taken_after_as_many_pairs_as_a_factor_has() {
    // Exactly its price: neither is better, after 12 pairs each, then 24, then 64; two phases each, and the first.
    let mut talk = Talk::new(1024, 4096);
    let measured = talk.settle(priced(0));
    assert_eq!(measured.len(), 1 + 2 * 2 * (12 + 24 + 64));
    let probes = talk.search.state().probes.map(|probe| probe.map(|it| (it.trial, it.verdict, it.pairs)));
    let unsure = |trial, pairs| Some((trial, Verdict::Unsure, pairs));
    assert_eq!(probes, [unsure(819, 64), unsure(1280, 64), unsure(724, 24), unsure(1448, 24)]);
    // A little less: half of it is better, and twice is not.
    let mut talk = Talk::new(1024, 4096);
    let _ = talk.listen(25, priced(-30));
    assert_eq!((talk.last().trial, talk.last().verdict, talk.last().pairs), (2048, Verdict::Unsure, 12));
    let _ = talk.listen(24, priced(-30));
    assert_eq!((talk.last().trial, talk.last().verdict, talk.last().pairs), (512, Verdict::Better, 12));
    // A little more: not even then is the deeper one taken, nor the smaller one.
    let mut talk = Talk::new(1024, 4096);
    let _ = talk.listen(49, priced(30));
    assert_eq!((talk.last().trial, talk.last().verdict, talk.last().pairs), (512, Verdict::Unsure, 12));
    assert_eq!(talk.search.state().chosen, 1024);
}

#[test]
fn a_mean_that_is_just_the_limit_is_not_sure() {
    let mut scatter = Search::new(8, 64).scatter;
    assert_eq!((scatter.variance, scatter.seen), (SCATTER_START * SCATTER_START, 4));
    scatter.take(0, 0);
    let limit = scatter.limit(1) as i32;
    for (more, next) in [(0, 16), (1, 32)] {
        let mut talk = Talk::new(8, 64);
        let base = saturated(64, 1)(8);
        assert_eq!(talk.say(base), 16);
        let units_log = base.units_log + ALPHA + limit + more;
        let trial = Phase { units_log, weighed_log: units_log + 1, device_log: base.device_log + ONE, ..base };
        assert_eq!(talk.say(trial), 8);
        talk.say(base);
        talk.say(trial);
        assert_eq!(talk.depth, if more == 0 { 8 } else { next }, "{:?}", talk.search);
    }
}

#[test]
fn phases_of_different_loads_are_not_compared() {
    let base = saturated(64, 1)(8);
    let far_better = Phase {
        units_log: base.units_log + ONE,
        weighed_log: base.weighed_log + ONE,
        device_log: base.device_log + ONE,
        ..base
    };
    let after = |after: Phase| {
        let mut talk = Talk::new(8, 64);
        let _ = [base, far_better, after].map(|phase| talk.say(phase));
        talk.last().verdict
    };
    assert_eq!(after(base), Verdict::Better);
    assert_eq!(after(Phase { step_log: base.step_log + SIZE_CHANGED, ..base }), Verdict::Better);
    assert_eq!(after(Phase { step_log: base.step_log + SIZE_CHANGED + 1, ..base }), Verdict::NotComparable);
    assert_eq!(after(Phase { waiting: SATURATED, ..base }), Verdict::Better);
    assert_eq!(after(Phase { waiting: SATURATED - 1, ..base }), Verdict::NotComparable);
    // A depth that cannot be compared ends a run of steps by four, too: from 128 it is 64 next and not 32.
    let mut talk = Talk::new(256, 4096);
    let load = saturated(16, 1);
    assert_eq!(talk.listen(10, &load).last(), Some(&32));
    assert_eq!(talk.say(Phase { waiting: BOUND_DOWN - 1, ..load(32) }), 128);
    assert_eq!((talk.last().trial, talk.last().verdict), (32, Verdict::NotComparable));
    assert_eq!(talk.say(load(128)), 64);
}

#[test]
fn a_candidate_for_which_nobody_waits_did_not_bind() {
    let base = saturated(64, 1)(8);
    // Deeper than the demand: worse, and half of it is next.
    let mut talk = Talk::new(8, 64);
    assert_eq!([base, Phase { waiting: BOUND_UP - 1, ..base }].map(|phase| talk.say(phase)), [16, 8]);
    assert_eq!((talk.last().trial, talk.last().verdict, talk.last().pairs), (16, Verdict::Worse, 0));
    assert_eq!(talk.say(base), 4);
    // So much waiting is enough to be compared. Going down it takes more.
    let mut talk = Talk::new(8, 64);
    assert_eq!([base, Phase { waiting: BOUND_UP, ..base }].map(|phase| talk.say(phase)), [16, 8]);
    assert_eq!(talk.search.state().probes[0], None);
    for (waiting, is_compared) in [(BOUND_DOWN - 1, false), (BOUND_DOWN, true)] {
        let mut talk = Talk::new(8, 64);
        talk.search.is_up = false;
        assert_eq!([base, Phase { waiting, ..base }].map(|phase| talk.say(phase)), [4, 8]);
        assert_eq!(
            talk.search.state().probes[0].map(|probe| probe.verdict),
            (!is_compared).then_some(Verdict::NotComparable)
        );
    }
}

#[test]
fn without_demand_smaller_depths_alone_are_tried_and_judged_by_time() {
    // No request waits at 64, of which 20 are in use: half of 20 is next.
    let idle = Phase { waiting: 0, device_units: 20, ..saturated(64, 1)(20) };
    let mut talk = Talk::new(64, 64);
    assert_eq!(talk.say(idle), 10);
    assert_eq!(talk.search.state().reason, Reason::Quiet);
    // By less than the base only, and never by four.
    let mut talk = Talk::new(4, 64);
    talk.search.is_fast = true;
    assert_eq!(talk.say(idle), 2);
    // Demand that comes and goes, or next to none, says nothing.
    for (waiting, device_units, next) in
        [(SATURATED, 1, 16), (SATURATED - 1, 20, 8), (BOUND_UP + 1, 20, 8), (BOUND_UP, 20, 4), (0, 1, 8), (0, 2, 1)]
    {
        let mut talk = Talk::new(8, 64);
        assert_eq!(talk.say(Phase { waiting, device_units, ..idle }), next, "{waiting} {device_units}");
        assert_eq!(talk.search.state().reason == Reason::Searching, waiting == SATURATED);
    }
}

#[test]
fn a_gain_is_work_or_time_less_the_price_of_depth() {
    let shallow = Phase { units_log: 100, weighed_log: 1000, system_log: 70_000, waiting: ONE, ..Phase::default() };
    let deep = Phase { units_log: 20_100, weighed_log: 31_000, device_log: ONE, system_log: 75_000, ..shallow };
    assert_eq!(gain(&deep, &shallow), 20_000 - ALPHA);
    assert_eq!(gain(&Phase { weighed_log: 11_000, ..deep }, &shallow), 10_000 - ALPHA);
    assert_eq!(gain(&Phase { waiting: SATURATED, ..deep }, &shallow), 20_000 - ALPHA);
    // Not saturated: 69,900 in the system for a unit at the shallow one, 54,900 at the deep one.
    assert_eq!(gain(&Phase { waiting: SATURATED - 1, ..deep }, &shallow), 15_000 - ALPHA);
    // In parts.
    let in_parts = |phase: Phase| Phase { is_in_parts: true, ..phase };
    let light = Phase { weighed_log: 0, ..deep };
    assert_eq!(gain(&in_parts(light), &in_parts(shallow)), 20_000 - ALPHA_IN_PARTS);
    assert_eq!(gain(&in_parts(Phase { waiting: SATURATED, ..light }), &in_parts(shallow)), 20_000 - ALPHA_IN_PARTS);
    assert_eq!(gain(&in_parts(light), &shallow), -1000 - ALPHA);
    // Not deeper in fact.
    let price = ((i64::from(DEEPER_MIN) * i64::from(ALPHA)) >> 16) as i32;
    assert_eq!(gain(&Phase { device_log: DEEPER_MIN - 1, ..deep }, &shallow), -NOT_DEEPER);
    assert_eq!(gain(&Phase { device_log: DEEPER_MIN, ..deep }, &shallow), 20_000 - price);
}

#[test]
fn scatter_is_the_mean_of_all_and_later_of_the_last_twenty() {
    let mut scatter = Scatter { variance: 400, seen: 4 };
    scatter.take(10, 3);
    assert_eq!((scatter.variance, scatter.seen), (400 + (25 - 400) / 5, 5));
    scatter.take(0, 30);
    assert_eq!((scatter.variance, scatter.seen), (325 + (900 - 325) / 6, 6));
    scatter.seen = 100;
    scatter.take(40, 0);
    assert_eq!((scatter.variance, scatter.seen), (420 - (420 - 400) / 20, 101));
    assert_eq!([thousandths(ONE), thousandths(-ONE), thousandths(0)], [693, -693, 0]);
}

#[test]
fn the_mean_of_up_to_four_pairs_is_that_of_all() {
    let mut pairs = Pairs::default();
    let means = [30, 60, 90, 220, 100].map(|gain| {
        pairs.add(gain);
        pairs.mean()
    });
    // The best and the worst of five are left out: 60, 90, 100.
    assert_eq!(means, [30, 45, 60, 100, 83]);
    assert_eq!((Pairs::default().mean(), pairs.count, pairs.last), (0, 5, 100));
}
