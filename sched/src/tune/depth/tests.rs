//! The controller on a modelled drive: does it find the knee, from wherever it starts, and leave it alone in silence?

use super::drive::{Drive, Run, Tenant, run};
use super::*;

const MS: u64 = 1_000_000;

/// Full at about 20 units of reads of one unit: 80 us in a die, 4 us on the link.
const SMALL: Drive = Drive { dies: 64, unit_ns: 80_000, link_ns: (500, 3_500), pause: |ns| ns };

fn always<const N: u32>(_: u64) -> u32 {
    N
}

/// A tenant with one request at a time beside one with many of 32 units.
fn mix() -> [Tenant; 2] {
    [Tenant { depth: always::<1>, units: always::<1> }, Tenant { depth: always::<64>, units: always::<32> }]
}

fn deep() -> [Tenant; 2] {
    [0; 2].map(|_| Tenant { depth: always::<256>, units: always::<1> })
}

fn auto(drive: &Drive, tenants: &[Tenant], start: u32, end_ns: u64) -> Run {
    run(drive, tenants, Some(Controller::new(start, 65_535)), 0, end_ns)
}

/// Units in the same time under the best of some fixed depths, and the small reader's latency at the smallest that
/// gives 97% of it.
fn best(drive: &Drive, tenants: &[Tenant], end_ns: u64) -> (u64, u64) {
    let runs = [4, 8, 16, 24, 33, 65, 97, 129, 193].map(|depth| run(drive, tenants, None, depth, end_ns));
    let most = runs.iter().map(|run| run.units).max().expect("some ran");
    let knee = runs.iter().find(|run| run.units * 100 >= most * 97).expect("one is the best");
    (most, knee.small_mean_ns)
}

#[test]
fn from_any_start_it_finds_the_depth_that_is_enough_and_no_more() {
    for tenants in [&mix()[..], &deep()[..]] {
        let end_ns = 700 * MS;
        let (most, small_ns) = best(&SMALL, tenants, end_ns);
        for start in [1, 8, 64, 4096] {
            let found = auto(&SMALL, tenants, start, end_ns);
            let state = found.controller.as_ref().expect("it was given").state();
            assert!(found.units * 100 >= most * 95, "from {start}: {} of {most} units, {state:?}", found.units);
            let slower = found.small_mean_ns * 100 / small_ns.max(1);
            assert!(
                slower <= 125,
                "from {start}: a small reader waits {slower}% of what it waits at the knee, {state:?}"
            );
            let last = found.depths.last().expect("requests completed").1;
            let settled = found.depths.iter().rev().find(|(_, depth)| depth * 10 > last * 16 || depth * 16 < last * 10);
            let settled_ns = settled.map_or(0, |(at, _)| *at);
            assert!(settled_ns <= 500 * MS, "from {start}: D came near {last} only after {settled_ns} ns");
        }
    }
}

/// Requests of 256 units alone: one at a time leaves the link idle while its pages are read.
#[test]
fn large_requests_alone_go_at_least_two_at_a_time() {
    let drive = Drive { dies: 64, unit_ns: 24_000, link_ns: (500, 3_500), pause: |ns| ns };
    let tenants = [0; 2].map(|_| Tenant { depth: always::<16>, units: always::<256> });
    let end_ns = 3_000 * MS;
    let [one, many] = [64, 4_097].map(|depth| run(&drive, &tenants, None, depth, end_ns).units);
    assert!((86..91).contains(&(one * 100 / many)), "one at a time does {one} of {many} units");
    for start in [1, 64, 1_025] {
        let found = auto(&drive, &tenants, start, end_ns);
        let state = found.controller.as_ref().expect("it was given").state();
        assert!(found.units * 100 >= many * 97, "from {start}: {} of {many} units, {state:?}", found.units);
    }
}

#[test]
fn in_silence_with_requests_waiting_the_depth_stays() {
    // 10 s without a completion, from 300 ms on.
    let silent = |ns: u64| if (300 * MS..10_300 * MS).contains(&ns) { 10_300 * MS } else { ns };
    let drive = Drive { pause: silent, ..SMALL };
    let found = auto(&drive, &mix(), 33, 10_500 * MS);
    let before = found.depths.iter().rfind(|(at, _)| *at < 300 * MS).expect("it ran").1;
    let after = found.depths.iter().find(|(at, _)| *at >= 10_300 * MS).expect("it went on").1;
    assert_eq!(before, after);
    let last = found.depths.last().expect("it went on").1;
    assert!(last * 10 <= before * 16 && last * 16 >= before * 10, "{before} before, {last} at the end");
}

#[test]
fn samples_without_completions_change_nothing() {
    let mut controller = Controller::new(40, 65_535);
    let mut sample = Sample { out_units: 40, ..Sample::default() };
    for second in 0..100_000 {
        sample.now_ns = second * 1_000 * MS;
        sample.waiting_ns = sample.now_ns;
        sample.device_unit_ns = 40 * sample.now_ns;
        sample.silence_ns = sample.now_ns;
        assert_eq!(controller.step(&sample), 40);
    }
    assert_eq!((controller.state().reason, controller.state().phases), (Reason::Start, 0));
}

#[test]
fn without_demand_nothing_is_learnt() {
    let one = [Tenant { depth: always::<1>, units: always::<1> }];
    let found = auto(&SMALL, &one, 64, 300 * MS);
    let state = found.controller.expect("it was given").state();
    assert_eq!((state.chosen, state.reason, state.probes), (64, Reason::Quiet, [None; State::PROBES]));
}

#[test]
fn the_same_samples_give_the_same_depths() {
    let [one, two] = [0; 2].map(|_| auto(&SMALL, &mix(), 8, 200 * MS));
    assert_eq!(one.depths, two.depths);
}

#[test]
fn what_it_found_and_why_can_be_read() {
    let state = auto(&SMALL, &mix(), 4, 700 * MS).controller.expect("it was given").state();
    assert_eq!(state.reason, Reason::Found, "{state:?}");
    assert_eq!(state.step, 32);
    let probe = state.probes[0].expect("candidates were tried");
    assert!(probe.pairs >= 1 && probe.verdict != Verdict::Better, "{probe:?}");
    assert!(state.phases > 20 && state.chosen_ns > 0);
}

#[test]
fn a_depth_that_was_found_is_where_the_next_search_begins_and_another_load_finds_its_own() {
    let resumed = |mut before: Controller, tenants: &[Tenant], end_ns: u64| {
        let chosen = before.state().chosen;
        assert_eq!((before.resume(), before.depth()), (chosen, chosen));
        run(&SMALL, tenants, Some(before), 0, end_ns)
    };
    // Held, and in the middle of the first comparisons.
    for found_ns in [700 * MS, 60 * MS] {
        let found = auto(&SMALL, &deep(), 4, found_ns).controller.expect("it was given");
        let State { chosen, phases, .. } = found.state();
        assert!(chosen > 8, "{chosen} is not where it began");
        let again = resumed(found.clone(), &deep(), 100 * MS);
        let (first, least) = (again.depths[0].1, again.depths.iter().map(|(_, depth)| *depth).min());
        assert_eq!(first, chosen);
        assert!(least.expect("it ran") * 2 >= chosen, "{chosen}, and then {least:?}");
        assert!(again.controller.expect("it was given").state().phases > phases, "what was learnt stays");
        let (end_ns, most) = (700 * MS, best(&SMALL, &mix(), 700 * MS).0);
        let other = resumed(found, &mix(), end_ns);
        assert!(other.units * 100 >= most * 95, "{} of {most} units from {chosen}", other.units);
    }
}

#[test]
fn a_depth_that_is_held_for_long_is_tested_soon_after_a_pause() {
    let mut found = auto(&SMALL, &deep(), 64, 5_000 * MS).controller.expect("it was given");
    let State { chosen, phases, reason, .. } = found.state();
    assert_eq!(reason, Reason::Found);
    found.resume();
    let again = run(&SMALL, &deep(), Some(found), 0, 100 * MS).controller.expect("it was given").state();
    let tested = again.probes[0].filter(|probe| probe.at_ns < 100 * MS).map(|probe| probe.depth);
    assert_eq!(tested, Some(chosen), "{} phases", again.phases - phases);
}

#[test]
fn the_example_of_the_page_is_this_drive() {
    // Units per second, mean units on the device, and the small reader's mean latency, us.
    for (depth, units, in_use, small_us) in [(33, 186_184, 38, 177), (65, 281_126, 65, 189), (129, 284_144, 129, 413)] {
        let run = run(&SMALL, &mix(), None, depth, 1_000 * MS);
        assert_eq!(
            (run.units * 2, run.device_units, run.small_mean_ns / 1_000),
            (units, in_use, small_us),
            "D {depth}"
        );
    }
    let state = auto(&SMALL, &mix(), 64, 300 * MS).controller.expect("it was given").state();
    assert_eq!((state.chosen, state.step), (65, 32), "{state:?}");
}
