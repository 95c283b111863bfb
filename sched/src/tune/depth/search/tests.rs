//! The search by itself: what is measured next after each phase, and what is concluded, on loads without noise.

use super::super::log::log2;
use super::*;

#[test]
fn candidates_lie_where_one_more_request_goes() {
    // 128 KiB in units of 4 KiB: 1, 33, 65, ...
    assert_eq!([1, 16, 17, 18, 64, 4096].map(|depth| on_grid(depth, 32, 4096)), [1, 1, 33, 33, 65, 4096]);
    let next = |depth, is_up| candidate(depth, FACTORS[0], is_up, 32, 1..=65_535);
    assert_eq!([next(33, true), next(65, true), next(161, true)], [Some(65), Some(129), Some(321)]);
    assert_eq!([next(33, false), next(65, false), next(1, false)], [Some(1), Some(33), None]);
    assert_eq!(candidate(4, FACTORS[2], true, 1, 1..=65_535), Some(5), "one step at least");
    let next = |least| candidate(65, FACTORS[0], false, 32, least..=65_535);
    assert_eq!([33, 40, 64, 65].map(next), [Some(33), Some(40), Some(64), None], "none below the least");
    assert_eq!(candidate(65_535, FACTORS[0], true, 1, 1..=65_535), None);
}

/// A phase of requests so small that each depth has its price.
fn of_small() -> Phase {
    Phase { request_log: -ONE, ..Phase::default() }
}

/// Phases of one depth.
fn phases(each: &[Phase]) -> Phases {
    let mut phases = Phases::NONE;
    each.iter().for_each(|phase| phases.add(phase));
    phases
}

fn gain(deep: &Phase, shallow: &Phase) -> i32 {
    compare(&phases(&[*deep]), &phases(&[*shallow]), 0).gain
}

#[test]
fn the_first_round_must_show_more_than_the_later_ones() {
    let percent = |rounds, errors| limit(rounds, SCATTER_START * SCATTER_START, errors) as f64 / 65_536.0 * 69.3;
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 0.05, "{found} for {expected}");
    close(percent(1, SURE), 3.0 * 1.39 + 1.98);
    close(percent(1, SURE_DEEPER), 6.0 * 1.39 + 1.98);
    // Half of the rounds count.
    close(percent(2, SURE), 3.0 * 1.39);
    close(percent(8, SURE), 3.0 * 1.39 / 2.0);
    close(percent(7, SURE), 3.0 * 1.39 / 2.0);
    let least = limit(2, 0, SURE);
    assert_eq!(least, SURE * SCATTER_MIN, "a scatter of nothing is not believed");
}

#[test]
fn while_requests_go_in_parts_work_counts_in_units_and_depth_costs_less() {
    // 6% more units, of which a small reader has fewer, at a depth 48% larger.
    let percent = |percent: i32| log2_of_millionths(1_000_000 + percent as u64 * 10_000);
    let shallow = Phase { waiting: ONE, ..of_small() };
    let deep = Phase { units_log: percent(6), weighed_log: 0, device_log: percent(48), ..shallow };
    let in_parts = |phase: Phase| Phase { is_in_parts: true, ..phase };
    assert!(gain(&deep, &shallow) < -percent(2), "small tenants pay, and depth its full price");
    assert!(gain(&in_parts(deep), &in_parts(shallow)) > percent(1));
    let earns_less = Phase { units_log: percent(3), ..deep };
    assert!(gain(&in_parts(earns_less), &in_parts(shallow)) < 0, "a small request waits for all that is on the device");
    assert_eq!(gain(&in_parts(deep), &shallow), gain(&deep, &shallow), "what began whole is compared as whole");
}

#[test]
fn two_requests_at_a_time_have_no_price() {
    let percent = |percent: i32| log2_of_millionths(1_000_000 + percent as u64 * 10_000);
    // Requests of 256 units, one at a time and two.
    let one = Phase { waiting: ONE, device_log: 8 * ONE, request_log: 8 * ONE, ..Phase::default() };
    let two = Phase { units_log: percent(5), weighed_log: percent(5), device_log: 9 * ONE, ..one };
    assert_eq!(gain(&two, &one), percent(5), "nothing smaller waits");
    let four = Phase { device_log: 10 * ONE, ..two };
    assert_eq!(gain(&four, &one), percent(5) - ALPHA, "two more have theirs");
    // As many requests of a unit beside them, and more.
    let beside = |phase: Phase| Phase { request_log: 7 * ONE, ..phase };
    assert_eq!(gain(&beside(two), &beside(one)), percent(5) - ALPHA);
}

#[test]
fn the_slower_half_of_the_phases_does_not_count() {
    let at = |units_log: i32| Phase { units_log, weighed_log: -units_log, system_log: 5, ..Phase::default() };
    let mut some = Phases::NONE;
    let means = [10, 30, -500, 20, 1000].map(|log| {
        some.add(&at(log));
        some.mean(Of::Units)
    });
    // 10; 30; 30 and 10; 30 and 20; 1000, 30 and 20.
    assert_eq!(means, [10, 30, 20, 25, 350]);
    assert_eq!((some.mean(Of::Weighed), some.mean(Of::Stay)), ((500 - 10 - 20) / 3, (995 + 25 + 15) / 3));
    assert_eq!(some.squares(Of::Units), 650 * 650 + 320 * 320 + 330 * 330);
}

#[test]
fn scatter_is_that_of_the_phases_that_count_and_of_what_was_learnt() {
    let at = |units_log: i32| Phase { units_log, waiting: ONE, ..Phase::default() };
    let [deep, shallow] = [phases(&[at(20), at(0), at(-90)]), phases(&[at(10), at(10), at(0), at(-5)])];
    // Means 10 and 10: squares of 100 and 100; two of each count.
    assert_eq!(compare(&deep, &shallow, 100).variance, (SCATTER_WEIGHT * 100 + 200) / (SCATTER_WEIGHT + 2));
}

const FULL: i32 = ONE;

/// A phase at a depth on a device that earns up to `knee` units and then no more. Requests of `step` units.
fn saturated(knee: u64, step: u32) -> impl Fn(u32) -> Phase {
    move |depth| {
        let depth = u64::from(depth);
        let units_log = log2(depth.min(knee) << 20);
        Phase {
            request_log: log2(step.into()),
            request_units: step,
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
            assert!(depths.len() < 600, "it does not settle: {:?}", self.search);
        }
        depths
    }

    fn last(&self) -> Probe {
        self.search.state().probes[0].expect("something was compared")
    }
}

#[test]
fn it_climbs_to_the_knee_and_refuses_what_lies_around_it() {
    // 8 and 16 are surely better, but not taken before the fourth round; 32, 8, 22, 11, 20 and 12 are surely worse.
    let mut talk = Talk::new(4, 4096);
    let measured = talk.settle(saturated(16, 1));
    let climb = [&[8, 4].repeat(4)[..], &[8], &[16, 8].repeat(4), &[16]].concat();
    let around = [32, 16, 8, 16, 22, 16, 11, 16, 20, 16, 20, 16, 12, 16, 16];
    assert_eq!(measured, [&climb[..], &around].concat());
    let state = talk.search.state();
    assert_eq!((state.chosen, state.depth, state.chosen_ns, state.phases), (16, 16, 180, 33));
    let probe = |at_ns, trial, gain_thousandths, pairs| {
        Some(Probe { at_ns, depth: 16, trial, verdict: Verdict::Worse, gain_thousandths, pairs })
    };
    assert_eq!(
        state.probes,
        [probe(330, 12, -245, 1), probe(310, 20, -34, 2), probe(270, 11, -319, 1), probe(250, 22, -48, 1)]
    );
}

#[test]
fn after_a_step_down_by_two_that_was_right_the_next_is_by_four() {
    let mut talk = Talk::new(256, 4096);
    let measured = talk.settle(saturated(16, 1));
    // Up; down by 2; by 4 to 32; to 8 it is too far, so by 2 to 16.
    let down = [512, 256, 128, 256, 128, 32, 128, 32, 8, 32, 16, 32, 16, 4, 16, 8, 16];
    assert_eq!(measured[..down.len()], down);
    assert_eq!((talk.search.state().chosen, talk.search.state().chosen_ns, measured.len()), (16, 130, 32));
    // Not after one by less than 2: from 22 it comes to 15 by the root of 2.
    let mut talk = Talk::new(22, 4096);
    let measured = talk.settle(saturated(15, 1));
    assert_eq!(measured[..20], [44, 22, 11, 22, 31, 22, 31, 22, 15, 22, 15, 10, 15, 21, 15, 21, 15, 12, 15, 18]);
    assert_eq!(talk.search.state().chosen, 15);
}

#[test]
fn less_depth_that_does_more_work_is_taken_after_four_rounds() {
    let mut talk = Talk::new(64, 4096);
    let load = saturated(16, 1);
    // Twice the work from 32 down: four rounds. To 8 at once, of which nothing is seen but the smaller price: one.
    let bursts = |depth: u32| {
        let phase = load(depth);
        let more = if depth <= 32 { ONE } else { 0 };
        Phase { units_log: phase.units_log + more, weighed_log: phase.weighed_log + more, ..phase }
    };
    let measured = talk.settle(bursts);
    let down = [&[128, 64][..], &[32, 64].repeat(4), &[32, 8]].concat();
    assert_eq!(measured[..down.len()], down);
}

#[test]
fn phases_are_longer_by_the_square_of_their_scatter_over_seven_percent() {
    let mut search = Search::new(64, 4096);
    assert_eq!(search.longer(), 1);
    for (times, longer) in [(1, 1), (2, 4), (3, 8), (10, 8)] {
        search.variance = (times * SCATTER_LONG) * (times * SCATTER_LONG);
        assert_eq!(search.longer(), longer);
    }
}

#[test]
fn candidates_that_fall_together_on_a_coarse_grid_are_tried_once() {
    // 64 is not on the grid: 65 is measured anew, and then 129. 97 is worse at the second factor, and so not tried at
    // the third.
    let mut talk = Talk::new(64, 4096);
    let measured = talk.settle(saturated(110, 32));
    let climb = [&[65, 129].repeat(4)[..], &[65, 129]].concat();
    let around = [257, 129, 65, 129, 193, 129, 97, 129, 97, 129, 161, 129, 161, 129, 129];
    assert_eq!(measured, [&climb[..], &around].concat());
    let trials = talk.search.state().probes.map(|probe| probe.map(|it| (it.trial, it.pairs)));
    assert_eq!(trials, [Some((161, 2)), Some((97, 2)), Some((193, 1)), Some((65, 1))]);
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
fn no_depth_below_two_requests_of_the_mean_size_is_tried() {
    // 8 units, and then requests of 16 alone: 17 is measured at once, and nothing below it.
    let mut talk = Talk::new(8, 4096);
    let measured = talk.settle(saturated(17, 16));
    assert_eq!((measured[..2].to_vec(), measured.iter().min()), (vec![17, 33], Some(&17)));
    assert_eq!(talk.search.state().chosen, 17);
    // Two units on the mean beside requests of 16: a candidate on the grid would be 1, and is 3.
    let mixed = |depth| Phase { request_units: 2, request_log: ONE, ..saturated(3, 16)(depth) };
    let mut talk = Talk::new(17, 4096);
    assert_eq!(talk.settle(mixed).iter().min(), Some(&3));
    // No more than there is, whatever the mean.
    let mut talk = Talk::new(8, 64);
    assert_eq!(talk.settle(saturated(64, 256)), [64]);
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
fn in_doubt_the_smaller_depth_is_taken_after_as_many_rounds_as_a_factor_has() {
    // Exactly its price: neither is better, after 24 rounds each, then 48, then 64; two phases each, and the first.
    let mut talk = Talk::new(1024, 4096);
    let measured = talk.settle(priced(0));
    assert_eq!(measured.len(), 1 + 2 * 2 * (24 + 48 + 64));
    let probes = talk.search.state().probes.map(|probe| probe.map(|it| (it.trial, it.verdict, it.pairs)));
    let unsure = |trial, pairs| Some((trial, Verdict::Unsure, pairs));
    assert_eq!(probes, [unsure(819, 64), unsure(1280, 64), unsure(724, 48), unsure(1448, 48)]);
    // A little less: half of it is better, and twice is not.
    let mut talk = Talk::new(1024, 4096);
    let _ = talk.listen(49, priced(-30));
    assert_eq!((talk.last().trial, talk.last().verdict, talk.last().pairs), (2048, Verdict::Unsure, 24));
    let _ = talk.listen(48, priced(-30));
    assert_eq!((talk.last().trial, talk.last().verdict, talk.last().pairs), (512, Verdict::Better, 24));
    // A little more: not even then is the deeper one taken, nor the smaller one.
    let mut talk = Talk::new(1024, 4096);
    let _ = talk.listen(97, priced(30));
    assert_eq!((talk.last().trial, talk.last().verdict, talk.last().pairs), (512, Verdict::Unsure, 24));
    assert_eq!(talk.search.state().chosen, 1024);
}

#[test]
fn where_phases_scatter_doubt_does_not_lead_to_less_than_a_quarter_of_the_units() {
    // Each depth is worth its price, and phases differ by a factor of 4. 1000 units are in the system, or as many as
    // are on the device.
    let ends = |is_tight: bool| {
        let (mut talk, mut random) = (Talk::new(1024, 4096), 1u64);
        for _ in 0..6_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let phase = priced((random >> 32) as i32 % ONE / 16)(talk.depth);
            let system_log = if is_tight { phase.system_log } else { phase.device_log };
            talk.say(Phase { system_log, ..phase });
        }
        talk.search.state().chosen
    };
    let [tight, loose] = [true, false].map(ends);
    assert!(tight > 200 && loose < 20, "{tight}, {loose}");
}

#[test]
fn the_deeper_of_two_must_be_better_by_twice_as_much() {
    // Rounds until the deeper one is taken, from below and from above, and until the shallower one is.
    let rounds = |start: u32, more| {
        let mut talk = Talk::new(start, 4096);
        talk.search.is_up = more > 0 && start == 1024;
        while talk.search.state().probes[0].is_none() {
            talk.say(priced(more)(talk.depth));
        }
        (talk.last().trial, talk.last().verdict, talk.last().pairs)
    };
    let percent = log2_of_millionths(1_010_000);
    let found =
        [(1024, 4 * percent), (1025, 4 * percent), (1025, -4 * percent)].map(|(start, more)| rounds(start, more));
    assert_eq!(found, [(2048, Verdict::Better, 5), (512, Verdict::Worse, 5), (512, Verdict::Better, 2)]);
}

#[test]
fn a_gain_that_is_just_the_limit_is_not_sure() {
    // Two of four phases at the candidate count, and three of five at D.
    let variance = SCATTER_WEIGHT * SCATTER_START * SCATTER_START / (SCATTER_WEIGHT + 3);
    let limit = limit(ROUNDS_UP, variance, SURE_DEEPER) as i32;
    for (more, chosen) in [(0, 8), (1, 16)] {
        let mut talk = Talk::new(8, 64);
        let base = saturated(64, 1)(8);
        let units_log = base.units_log + ALPHA + limit + more;
        let trial = Phase { units_log, weighed_log: units_log + 1, device_log: base.device_log + ONE, ..base };
        assert_eq!(talk.say(base), 16);
        let rounds: Vec<[u32; 2]> = (0..ROUNDS_UP).map(|_| [talk.say(trial), talk.say(base)]).collect();
        assert_eq!(rounds, [[8, 16]; ROUNDS_UP as usize]);
        assert_eq!(talk.search.state().chosen, chosen, "{:?}", talk.search);
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
        for _ in 1..ROUNDS_UP {
            let _ = [base, far_better].map(|phase| talk.say(phase));
        }
        let _ = [base, far_better, after].map(|phase| talk.say(phase));
        talk.last().verdict
    };
    assert_eq!(after(base), Verdict::Better);
    assert_eq!(after(Phase { step_log: base.step_log + SIZE_CHANGED, ..base }), Verdict::Better);
    assert_eq!(after(Phase { step_log: base.step_log + SIZE_CHANGED + 1, ..base }), Verdict::NotComparable);
    assert_eq!(after(Phase { waiting: SATURATED, ..base }), Verdict::Better);
    assert_eq!(after(Phase { waiting: SATURATED - 1, ..base }), Verdict::NotComparable);
    // Unless parts begin there, and the rounds before are sure.
    let in_parts = Phase { waiting: SATURATED - 1, is_in_parts: true, ..base };
    assert_eq!(after(in_parts), Verdict::Better);
    let of = |round: [Phase; 3], last: [Phase; 3]| {
        let mut talk = Talk::new(8, 64);
        for phase in round.into_iter().chain(last) {
            talk.say(phase);
        }
        talk.last().verdict
    };
    let [base_in_parts, better_in_parts] = [base, far_better].map(|phase| Phase { is_in_parts: true, ..phase });
    let round = [base, far_better, base];
    assert_eq!(of(round, [far_better, in_parts, base]), Verdict::Better);
    let round = [base_in_parts, better_in_parts, base_in_parts];
    assert_eq!(of(round, [better_in_parts, in_parts, base]), Verdict::NotComparable, "they had begun before");
    let alike = Phase { units_log: base.units_log + ONE / 9, weighed_log: base.weighed_log + ONE / 9, ..far_better };
    assert_eq!(of([base, alike, base], [alike, in_parts, base]), Verdict::NotComparable, "nothing is sure");
    // A depth that cannot be compared ends a run of steps by four, too: from 128 it is 64 next and not 32.
    let mut talk = Talk::new(256, 4096);
    let load = saturated(16, 1);
    assert_eq!(talk.listen(6, &load).last(), Some(&32));
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
        [(SATURATED, 1, 16), (SATURATED - 1, 20, 8), (BOUND_UP + 1, 20, 8), (BOUND_UP, 20, 4), (0, 2, 8), (0, 3, 2)]
    {
        let mut talk = Talk::new(8, 64);
        assert_eq!(talk.say(Phase { waiting, device_units, ..idle }), next, "{waiting} {device_units}");
        assert_eq!(talk.search.state().reason == Reason::Searching, waiting == SATURATED);
    }
}

#[test]
fn by_accident_no_smaller_depth_is_refused_where_no_request_waits_and_none_is_taken_elsewhere() {
    // Rounds until 32 is judged. Phases at 64 differ by 10,000; at 32 the gain, its price paid, is `by`.
    let rounds = |waiting, by: i32| {
        let mut talk = Talk::new(64, 4096);
        (talk.search.is_up, talk.search.variance) = (false, 0);
        let base = Phase { waiting, ..saturated(1, 1)(64) };
        let less = |by: i32| {
            let units_log = base.units_log - by;
            Phase { units_log, weighed_log: units_log + 1, ..base }
        };
        let priced = base.device_log - saturated(1, 1)(32).device_log;
        let price = ((i64::from(priced) * i64::from(ALPHA)) >> 16) as i32;
        let trial = Phase { waiting: FULL, device_log: base.device_log - priced, ..less(price - by) };
        assert_eq!(talk.say(base), 32);
        while talk.search.state().probes[0].is_none() {
            talk.say(trial);
            talk.say(less(10_000));
        }
        (talk.last().verdict, talk.last().pairs)
    };
    let scatter = RANGES as i32 * 10_000;
    let refused = [(0, scatter), (0, scatter + 1), (SATURATED, scatter)].map(|(waiting, less)| rounds(waiting, -less));
    assert_eq!(refused, [(Verdict::Worse, ROUNDS_UP), (Verdict::Worse, 1), (Verdict::Worse, 1)]);
    let taken = [0, SATURATED].map(|waiting| rounds(waiting, 5000));
    assert_eq!(taken, [(Verdict::Better, 1), (Verdict::Better, ROUNDS_UP)]);
}

#[test]
fn a_gain_is_work_or_time_less_the_price_of_depth() {
    let shallow = Phase { units_log: 100, weighed_log: 1000, system_log: 70_000, waiting: ONE, ..of_small() };
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
fn thousandths_are_of_a_factor() {
    assert_eq!([thousandths(ONE), thousandths(-ONE), thousandths(0)], [693, -693, 0]);
}

#[test]
fn depths_that_were_compared_are_told_beside_the_chosen_one_until_the_load_changes() {
    let mut talk = Talk::new(4, 4096);
    talk.settle(saturated(16, 1));
    let tried: Vec<_> = talk.search.table().tried().collect();
    assert_eq!(tried.iter().map(|tried| tried.depth).collect::<Vec<_>>(), [12, 20, 11, 22, 8, 32, 4]);
    for Tried { depth, work_log, stay_log } in tried {
        // Up to the knee of 16 work grows as the depth does, and beyond it the time on the device.
        let of = log2(depth.into()) - log2(16);
        assert_eq!((work_log, stay_log), (of.min(0), of.max(0)), "{depth}");
    }
    // The latest eight are kept, each depth once.
    let mut table = *talk.search.table();
    for depth in [8, 64, 65, 66] {
        table.put(Tried { depth, work_log: 1, stay_log: 2 });
    }
    assert_eq!(table.tried().map(|tried| tried.depth).collect::<Vec<_>>(), [66, 65, 64, 8, 12, 20, 11, 22]);
    table.rebase(16, 7);
    assert_eq!(table.tried().count(), 0, "nothing is known beside a depth that was not compared");
    talk.listen(2, saturated(16, 1));
    talk.listen(2, saturated(4, 1));
    assert_eq!(talk.search.table().tried().count(), 0, "another load");
}

#[test]
fn the_best_throughput_that_is_known_is_that_of_a_depth_that_was_compared_or_of_the_chosen_one() {
    let best = |logs: &[i32]| {
        let tried = logs.iter().zip(1..).map(|(&work_log, depth)| Tried { depth, work_log, stay_log: 0 });
        tried.collect::<Table>().best_thousandths()
    };
    let found = [best(&[]), best(&[-9000]), best(&[4000, 6000, -100]), best(&[60_000])];
    assert_eq!(found, [1000, 1000, 1063, Table::BEST_MAX]);
}
