//! The controller on a modelled drive: does it find the knee, from wherever it starts, and leave it alone in silence?

use super::*;
use core::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

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
    let state = auto(&SMALL, &mix(), 4, 300 * MS).controller.expect("it was given").state();
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

// A drive and its tenants in virtual time, for the controller's tests.
//
// Answers: what would a device do under this D? Two stages as in `nvme/src/media.rs`: pages wait for their die, then
// commands for one link. Tenants are closed loops; the one with the least service goes next if fewer than D units are
// out, and a request of n units takes them all, if need be in debt.

/// A closed loop.
pub struct Tenant {
    /// Requests in flight at a time, ns.
    pub depth: fn(u64) -> u32,
    /// Units of a request that begins at a time, ns.
    pub units: fn(u64) -> u32,
}

/// A drive's times.
#[derive(Clone, Copy)]
pub struct Drive {
    pub dies: usize,
    /// Time of a die for a unit, ns.
    pub unit_ns: u64,
    /// Time of the link for a command, and for each of its units, ns.
    pub link_ns: (u64, u64),
    /// When the link may begin what it could begin at a time, ns.
    pub pause: fn(u64) -> u64,
}

struct Request {
    tenant: usize,
    units: u32,
    submitted_ns: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    LeftDies,
    Completed,
    Look,
}

/// Figures of a run.
pub struct Run {
    /// Units completed from half of the time on.
    pub units: u64,
    /// Mean units on the device.
    pub device_units: u64,
    /// Mean time in the system of requests of one unit, ns.
    pub small_mean_ns: u64,
    /// D in force after each completion, with its time, ns; by half: the second half only.
    pub depths: Vec<(u64, u32)>,
    pub controller: Option<Controller>,
}

/// Runs for `end_ns` under a controller, or under a fixed D.
pub fn run(drive: &Drive, tenants: &[Tenant], mut controller: Option<Controller>, fixed: u32, end_ns: u64) -> Run {
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut next_random = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut dies = vec![0u64; drive.dies];
    let (mut link, mut now, mut order) = (0u64, 0u64, 0u64);
    let mut events: BinaryHeap<Reverse<(u64, u64, Event, usize)>> = BinaryHeap::new();
    let mut requests: Vec<Request> = Vec::new();
    let mut waiting: Vec<VecDeque<usize>> = tenants.iter().map(|_| VecDeque::new()).collect();
    let (mut live, mut service) = (vec![0u32; tenants.len()], vec![0u64; tenants.len()]);
    let mut sample = Sample::default();
    let (mut depth, mut is_waiting) = (controller.as_ref().map_or(fixed, Controller::depth), false);
    let (mut completed_ns, mut epoch) = (0, 0);
    let (mut units, mut small, mut depths) = (0, (0u64, 0u64), Vec::new());
    events.push(Reverse((0, 0, Event::Look, 0)));
    while let Some(Reverse((at, _, event, index))) = events.pop() {
        if at > end_ns {
            break;
        }
        let elapsed = at - now;
        now = at;
        sample.now_ns = now;
        sample.device_unit_ns += sample.out_units * elapsed;
        sample.waiting_ns += if is_waiting { elapsed } else { 0 };
        match event {
            Event::LeftDies => {
                link =
                    (drive.pause)(link.max(now)) + drive.link_ns.0 + drive.link_ns.1 * u64::from(requests[index].units);
                order += 1;
                events.push(Reverse((link, order, Event::Completed, index)));
                continue;
            }
            Event::Completed => {
                let Request { tenant, units: n, submitted_ns } = requests[index];
                live[tenant] -= 1;
                sample.out_units -= u64::from(n);
                let work = &mut sample.work[class_of(n)];
                work.units += u64::from(n);
                work.requests += 1;
                sample.system_unit_ns += u64::from(n) * (now - submitted_ns);
                if now > end_ns / 2 {
                    units += u64::from(n);
                    if n == 1 {
                        small = (small.0 + now - submitted_ns, small.1 + 1);
                    }
                }
                if let Some(controller) = &mut controller {
                    if epoch != controller.epoch() {
                        (epoch, sample.silence_ns) = (controller.epoch(), 0);
                    }
                    sample.silence_ns = sample.silence_ns.max(now - completed_ns);
                    depth = controller.step(&sample);
                    depths.push((now, controller.state().chosen));
                }
                completed_ns = now;
            }
            Event::Look => {
                order += 1;
                events.push(Reverse((now + 1_000_000, order, Event::Look, 0)));
            }
        }
        for (tenant, each) in tenants.iter().enumerate() {
            while live[tenant] < (each.depth)(now) {
                live[tenant] += 1;
                if waiting[tenant].is_empty() {
                    // A tenant that comes back begins where the others are.
                    let least =
                        (0..tenants.len()).filter(|&other| !waiting[other].is_empty()).map(|t| service[t]).min();
                    service[tenant] = service[tenant].max(least.unwrap_or(0));
                }
                waiting[tenant].push_back(requests.len());
                requests.push(Request { tenant, units: (each.units)(now), submitted_ns: now });
            }
        }
        loop {
            let next = (0..tenants.len()).filter(|&tenant| !waiting[tenant].is_empty()).min_by_key(|&t| service[t]);
            is_waiting = next.is_some();
            let Some(tenant) = next.filter(|_| sample.out_units < u64::from(depth)) else { break };
            let index = waiting[tenant].pop_front().expect("it has one");
            let n = requests[index].units;
            service[tenant] += u64::from(n);
            sample.out_units += u64::from(n);
            let first = next_random() as usize % dies.len();
            let mut left = now;
            for die in (first..first + n as usize).map(|die| die % drive.dies) {
                // +- 10%.
                let time = drive.unit_ns * (900 + next_random() % 201) / 1000;
                dies[die] = dies[die].max(now) + time;
                left = left.max(dies[die]);
            }
            order += 1;
            events.push(Reverse((left, order, Event::LeftDies, index)));
        }
    }
    let device_units = sample.device_unit_ns / now.max(1);
    Run { device_units, units, small_mean_ns: small.0 / small.1.max(1), depths, controller }
}
