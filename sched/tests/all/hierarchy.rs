//! Groups of flows: does each level get its weight, does what one leaves go to its siblings, and how far from that may
//! any interval be?
//!
//! The policies run on the rig, closed loops on a device that ends its oldest request at each tick. Beside them runs
//! nested start-time fair queueing, one queue per group in exact integers: the ideal that prices stand for.

use mqfq_policies::{D2FQ, MQFQ_SERIAL, SFQD};
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::flow::{Group, GroupId, Tree};
use mqfq_sched::policy::{AnyPolicy, Policy, PolicyKind, PolicyOptions};
use mqfq_sched::topology::Topology;
use mqfq_sched::vtime::VSpan;
use mqfq_testing::random::{Random, for_seeds};
use mqfq_testing::rig::{KIB, Rig, read};
use std::collections::VecDeque;

/// Cost of every request.
const REQUEST: u64 = 4 * KIB;

/// Units on the device.
const DEPTH: u32 = 8;

fn weight(value: u64) -> Weight {
    Weight::new(value).expect("a weight of a test is in range")
}

/// Members by numbers: groups as (weight, parent), flows as (weight, group).
#[derive(Clone, Debug)]
struct Family {
    groups: Vec<(u64, Option<u32>)>,
    flows: Vec<(u64, Option<u32>)>,
}

impl Family {
    /// Company A with the teams a1 and a2, 1 to 3, beside company B with one team.
    fn companies() -> Family {
        Family { groups: vec![(100, None), (100, None)], flows: vec![(100, Some(0)), (300, Some(0)), (100, Some(1))] }
    }

    fn weights(&self) -> Vec<Weight> {
        self.flows.iter().map(|(value, _)| weight(*value)).collect()
    }

    fn tree(&self) -> Tree {
        let group =
            |(value, parent): &(u64, Option<u32>)| Group { weight: weight(*value), parent: parent.map(GroupId) };
        Tree {
            groups: self.groups.iter().map(group).collect(),
            of_flow: self.flows.iter().map(|(_, group)| group.map(GroupId)).collect(),
        }
    }

    /// The weight at which a child (flows first, then groups) competes while all want service.
    fn effective(&self, child: usize) -> f64 {
        let flows = self.flows.len();
        let of = |child: usize| if child < flows { self.flows[child] } else { self.groups[child - flows] };
        let (own, parent) = of(child);
        let Some(group) = parent else { return own as f64 };
        let siblings = (0..flows + self.groups.len()).map(of).filter(|(_, other)| *other == parent);
        let all: u64 = siblings.map(|(weight, _)| weight).sum();
        self.effective(flows + group as usize) * own as f64 / all as f64
    }

    fn members(&self, group: u32) -> impl Fn(usize) -> bool {
        let (groups, flows) = (self.groups.clone(), self.flows.clone());
        move |flow| {
            let mut at = flows[flow].1;
            while let Some(of) = at {
                if of == group {
                    return true;
                }
                at = groups[of as usize].1;
            }
            false
        }
    }
}

/// How a flow asks: so many requests at once, each `think` ticks after the one before has ended, and only while `on`
/// says so.
#[derive(Clone)]
struct Loop {
    hctxs: Vec<u16>,
    depth: usize,
    think: u64,
    on: fn(u64) -> bool,
}

fn always(hctx: u16) -> Loop {
    Loop { hctxs: vec![hctx], depth: 32, think: 0, on: |_| true }
}

fn never(hctx: u16) -> Loop {
    Loop { on: |_| false, ..always(hctx) }
}

/// Something that shares a device out.
trait Shares {
    fn submit(&mut self, flow: usize, hctx: u16);
    /// Everybody dispatches what may go.
    fn run(&mut self);
    /// The oldest request on the device ends: whose it was. `None`: the device is empty.
    fn end_oldest(&mut self) -> Option<(usize, u16)>;
}

impl Shares for Rig {
    fn submit(&mut self, flow: usize, hctx: u16) {
        Rig::submit(self, hctx, read(flow as u32, 0));
    }

    fn run(&mut self) {
        self.run_all();
    }

    fn end_oldest(&mut self) -> Option<(usize, u16)> {
        let handle = *self.in_flight.first()?;
        let hctx = self.finish(handle);
        Some((self.io(handle).flow as usize, hctx.0))
    }
}

/// Nested start-time fair queueing: each group gives its turns to the child with the smallest start tag, on an axis of
/// its own. Lengths are in 2520ths, so that the weights of these tests divide them.
struct Nested {
    /// Start tag and finish tag of each child's next turn; flows first, then groups.
    tags: Vec<u128>,
    virtual_time: Vec<u128>,
    family: Family,
    waiting: Vec<VecDeque<u16>>,
    device: VecDeque<(usize, u16)>,
}

impl Nested {
    const TOP: usize = 0;

    fn new(family: &Family) -> Nested {
        let children = family.flows.len() + family.groups.len();
        Nested {
            tags: vec![0; children],
            virtual_time: vec![0; 1 + family.groups.len()],
            family: family.clone(),
            waiting: vec![VecDeque::new(); family.flows.len()],
            device: VecDeque::new(),
        }
    }

    fn of(&self, child: usize) -> (u64, usize) {
        let flows = self.family.flows.len();
        let (weight, parent) = if child < flows { self.family.flows[child] } else { self.family.groups[child - flows] };
        (weight, parent.map_or(Nested::TOP, |group| 1 + group as usize))
    }

    fn is_backlogged(&self, child: usize) -> bool {
        match child.checked_sub(self.family.flows.len()) {
            None => !self.waiting[child].is_empty(),
            Some(group) => self.children(1 + group).any(|child| self.is_backlogged(child)),
        }
    }

    fn children(&self, group: usize) -> impl Iterator<Item = usize> {
        (0..self.tags.len()).filter(move |&child| self.of(child).1 == group)
    }

    fn next(&mut self) -> Option<usize> {
        let mut at = Nested::TOP;
        loop {
            let now = self.virtual_time[at];
            let start = |child: &usize| self.tags[*child].max(now);
            let child = self.children(at).filter(|&child| self.is_backlogged(child)).min_by_key(start)?;
            let start = self.tags[child].max(now);
            self.virtual_time[at] = start;
            self.tags[child] = start + u128::from(REQUEST) * 2520 * 1000 / u128::from(self.of(child).0);
            match child.checked_sub(self.family.flows.len()) {
                None => return Some(child),
                Some(group) => at = 1 + group,
            }
        }
    }
}

impl Shares for Nested {
    fn submit(&mut self, flow: usize, hctx: u16) {
        // A child that comes back starts at its group's virtual time (`next` takes the later of the two).
        self.waiting[flow].push_back(hctx);
    }

    fn run(&mut self) {
        while self.device.len() < DEPTH as usize {
            let Some(flow) = self.next() else { return };
            let hctx = self.waiting[flow].pop_front().expect("a flow that was chosen waits");
            self.device.push_back((flow, hctx));
        }
    }

    fn end_oldest(&mut self) -> Option<(usize, u16)> {
        self.device.pop_front()
    }
}

/// Result: by tick, the requests that each flow has got so far.
struct Run {
    served: Vec<Vec<u64>>,
}

impl Run {
    /// Parts of all service between two ticks.
    fn shares(&self, from: usize, to: usize) -> Vec<f64> {
        let got: Vec<u64> = self.served[to].iter().zip(&self.served[from]).map(|(to, from)| to - from).collect();
        let all: u64 = got.iter().sum();
        got.iter().map(|got| *got as f64 / all as f64).collect()
    }
}

fn drive<S: Shares>(scheduler: &mut S, loops: &[Loop], ticks: u64, mut at: impl FnMut(&mut S, u64)) -> Run {
    // Next requests of each flow: tick and hctx.
    let mut asks: Vec<Vec<(u64, u16)>> = Vec::new();
    for of in loops {
        asks.push((0..of.depth).map(|n| (0, of.hctxs[n % of.hctxs.len()])).collect());
    }
    let mut run = Run { served: vec![vec![0; loops.len()]] };
    for tick in 0..ticks {
        at(scheduler, tick);
        for flow in (0..loops.len()).filter(|flow| (loops[*flow].on)(tick)) {
            let due: Vec<_> = asks[flow].extract_if(.., |(when, _)| *when <= tick).collect();
            due.into_iter().for_each(|(_, hctx)| scheduler.submit(flow, hctx));
        }
        scheduler.run();
        let mut served = run.served.last().expect("there is a first").clone();
        if let Some((flow, hctx)) = scheduler.end_oldest() {
            served[flow] += 1;
            asks[flow].push((tick + 1 + loops[flow].think, hctx));
        }
        run.served.push(served);
    }
    run
}

const WINDOW: VSpan = VSpan::from_bytes(16 * KIB);

/// MQFQ in both forms, behind a lock, and SFQ(D).
fn policies(hctxs: usize) -> Vec<PolicyOptions> {
    let of = |kind| PolicyOptions { depth: DEPTH, window: WINDOW, ..PolicyOptions::new(kind) };
    let mqfq = of(PolicyKind::Mqfq);
    vec![mqfq, mqfq.relaxed(hctxs), of(MQFQ_SERIAL), of(SFQD)]
}

fn rig(options: PolicyOptions, hctxs: usize, family: &Family) -> Rig {
    Rig::with_tree(options, hctxs, &family.weights(), &family.tree(), 1024)
}

fn expect_shares(what: &str, got: &[f64], expected: &[f64], within: f64) {
    for (flow, (got, expected)) in got.iter().zip(expected).enumerate() {
        let off = (got - expected).abs();
        assert!(off <= within, "{what}: flow {flow} got {got:.4} of the device, {expected:.4} is its share");
    }
}

#[test]
fn an_idle_teams_share_goes_to_its_siblings_first() {
    let family = Family::companies();
    let cases: [([bool; 3], [f64; 3]); 6] = [
        ([true, true, true], [0.125, 0.375, 0.5]),
        ([true, false, true], [0.5, 0.0, 0.5]),
        ([false, true, true], [0.0, 0.5, 0.5]),
        ([true, true, false], [0.25, 0.75, 0.0]),
        ([false, false, true], [0.0, 0.0, 1.0]),
        ([true, false, false], [1.0, 0.0, 0.0]),
    ];
    for options in policies(3) {
        for (wants, expected) in cases {
            let loops: Vec<Loop> =
                (0..3).map(|flow| if wants[usize::from(flow)] { always(flow) } else { never(flow) }).collect();
            let run = drive(&mut rig(options, 3, &family), &loops, 6000, |_, _| {});
            let what = format!("{} {wants:?}", options.kind);
            expect_shares(&what, &run.shares(1000, 6000), &expected, 0.005);
        }
    }
}

#[test]
fn one_after_another_falls_silent_and_comes_back() {
    // In phases of 8000 ticks, a1 pauses in the second, a2 in the third, b in the fourth; then all are back. The first
    // quarter of each is for the change.
    let family = Family::companies();
    let on: [fn(u64) -> bool; 3] = [|tick| tick / 8000 != 1, |tick| tick / 8000 != 2, |tick| tick / 8000 != 3];
    let loops: Vec<Loop> = (0..3).map(|flow| Loop { on: on[usize::from(flow)], ..always(flow) }).collect();
    let expected = [[0.125, 0.375, 0.5], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.25, 0.75, 0.0], [0.125, 0.375, 0.5]];
    for options in policies(3) {
        let run = drive(&mut rig(options, 3, &family), &loops, 40_000, |_, _| {});
        for (phase, expected) in expected.iter().enumerate() {
            let what = format!("{} phase {phase}", options.kind);
            expect_shares(&what, &run.shares(8000 * phase + 2000, 8000 * (phase + 1)), expected, 0.005);
        }
    }
}

#[test]
fn a_flow_at_depth_one_leaves_the_rest_of_its_share_to_its_siblings() {
    // a2 (3/8 by weight) has one request at a time and thinks between two: it uses an eighth or so of the device. What
    // it leaves is a1's, not b's. Weights that only follow activity give a1 a fifth of the rest, which is what the same
    // loads get when all three stand beside each other with 25, 75 and 100.
    let family = Family::companies();
    let active_only = Family { groups: vec![], flows: vec![(25, None), (75, None), (100, None)] };
    let mut loops: Vec<Loop> = (0..3).map(always).collect();
    loops[1] = Loop { depth: 1, think: 3, ..always(1) };
    let ideal = drive(&mut Nested::new(&family), &loops, 40_000, |_, _| {}).shares(8000, 40_000);
    let of_active = drive(&mut Nested::new(&active_only), &loops, 40_000, |_, _| {}).shares(8000, 40_000);
    assert!((0.05..0.2).contains(&ideal[1]), "a2 means to use some of its share: {ideal:?}");
    expect_shares("nested", &ideal, &[0.5 - ideal[1], ideal[1], 0.5], 0.002);
    assert!(of_active[2] > 0.65, "b gets of A's share if weights only follow who is active: {of_active:?}");
    for options in policies(3) {
        let got = drive(&mut rig(options, 3, &family), &loops, 40_000, |_, _| {}).shares(8000, 40_000);
        println!(
            "{} {:?}: {got:.3?}; nested {ideal:.3?}, weights of the active {of_active:.3?}",
            options.kind, options.lease
        );
        // a2 may be a little faster or slower than in one queue; A as a whole may not.
        expect_shares(options.kind.name(), &[got[0] + got[1], got[2]], &[0.5, 0.5], 0.01);
        assert!((got[1] - ideal[1]).abs() < 0.03, "{}: {got:?}, ideally {ideal:?}", options.kind);
    }
}

#[test]
fn a_flow_that_comes_and_goes_does_not_add_up() {
    // a2 is there half of the time, in turns from a fraction of a step's period (64 ticks) to five of them. A gets half
    // all the same: what a2 uses too much when it comes, its group lacks when it goes.
    let family = Family::companies();
    let turns: [fn(u64) -> bool; 4] =
        [|tick| tick / 10 % 2 == 0, |tick| tick / 40 % 2 == 0, |tick| tick / 100 % 2 == 0, |tick| tick / 333 % 2 == 0];
    for options in policies(3) {
        for (turn, on) in turns.into_iter().enumerate() {
            for depth in [1, 4, 32] {
                let mut loops: Vec<Loop> = (0..3).map(always).collect();
                loops[1] = Loop { depth, on, ..always(1) };
                let got = drive(&mut rig(options, 3, &family), &loops, 12_000, |_, _| {}).shares(2000, 12_000);
                let what = format!("{} turn {turn} depth {depth}", options.kind);
                expect_shares(&what, &[got[0] + got[1], got[2]], &[0.5, 0.5], 0.01);
            }
        }
    }
}

/// Service over weight, of the flows that `members` picks, at one tick: bytes at the default weight.
fn normalised(run: &Run, tick: usize, members: &dyn Fn(usize) -> bool, effective: f64) -> f64 {
    let served: u64 =
        (0..run.served[tick].len()).filter(|flow| members(*flow)).map(|flow| run.served[tick][flow]).sum();
    served as f64 * REQUEST as f64 * 100.0 / effective
}

/// The largest difference that two sides' service over weight has over any interval between two ticks.
fn drift(run: &Run, from: usize, sides: [(&dyn Fn(usize) -> bool, f64); 2]) -> f64 {
    let difference = |tick: usize| {
        let [one, other] = sides.map(|(members, effective)| normalised(run, tick, members, effective));
        one - other
    };
    // Every interval is a difference of two points, and the largest that of the extremes.
    let points = (from..run.served.len()).map(difference);
    let (low, high) = points.fold((f64::MAX, f64::MIN), |(low, high), point| (low.min(point), high.max(point)));
    high - low
}

/// Two groups up to two levels deep and a flow beside them, of weights that divide 2520.
fn random_family(rng: &mut Random) -> Family {
    let weights = [1, 2, 3, 5, 7, 10].map(|part| part * 50);
    let mut family = Family { groups: vec![(rng.of(&weights), None), (rng.of(&weights), None)], flows: vec![] };
    for parent in 0..2 {
        for _ in 0..rng.index(3) {
            family.groups.push((rng.of(&weights), Some(parent)));
        }
    }
    for group in 0..family.groups.len() as u32 {
        for _ in 0..1 + rng.index(3) {
            family.flows.push((rng.of(&weights), Some(group)));
        }
    }
    family.flows.push((rng.of(&weights), None));
    family
}

#[test]
fn every_interval_keeps_the_bound_at_each_level() {
    // The bound of flow/group.rs with the D requests on the device, for completions, between every two children of one
    // group and at the top. Everybody always waits, so after three periods all demands are what they stay.
    for_seeds(6, |rng| {
        let family = random_family(rng);
        let loops: Vec<Loop> =
            (0..family.flows.len()).map(|_| Loop { depth: 40, ..always(rng.index(4) as u16) }).collect();
        for options in policies(4) {
            let run = drive(&mut rig(options, 4, &family), &loops, 12_000, |_, _| {});
            let flows = family.flows.len();
            let parent = |child: usize| {
                if child < flows { family.flows[child].1 } else { family.groups[child - flows].1 }
            };
            let children = 0..flows + family.groups.len();
            for (one, other) in children.clone().flat_map(|one| children.clone().map(move |other| (one, other))) {
                if one >= other || parent(one) != parent(other) {
                    continue;
                }
                let side = |child: usize| -> (Box<dyn Fn(usize) -> bool>, f64, f64) {
                    let effective = family.effective(child);
                    if child < flows {
                        (Box::new(move |flow| flow == child), effective, 1.0)
                    } else {
                        let members = family.members((child - flows) as u32);
                        let count = (0..flows).filter(|flow| members(*flow)).count();
                        (Box::new(members), effective, count as f64)
                    }
                };
                let [(of_one, r_one, n_one), (of_other, r_other, n_other)] = [side(one), side(other)];
                let got = drift(&run, 4000, [(&*of_one, r_one), (&*of_other, r_other)]);
                let lengths = (n_one + f64::from(DEPTH)) / r_one + (n_other + f64::from(DEPTH)) / r_other;
                let window = if options.kind.has_window() { options.window.bytes() as f64 } else { 0.0 };
                let bound = 2.0 * window + lengths * REQUEST as f64 * 100.0;
                assert!(
                    got <= bound,
                    "{}: {one} and {other} drift by {got:.0}, {bound:.0} at most: {family:?}",
                    options.kind
                );
            }
        }
    });
}

#[test]
fn changes_of_demand_add_what_is_stated() {
    // Flows fall silent and come back at random. Each such change may add two periods of the flow's part to the drift
    // of two groups, over every interval.
    for_seeds(6, |rng| {
        let family = Family::companies();
        let mut loops: Vec<Loop> = (0..3).map(always).collect();
        loops[0].on = rng.of(&[|tick| tick % 700 < 300, |tick| tick % 90 < 60, |tick| tick % 2500 < 1250]);
        // a2 is always there, or A would not want its share.
        loops[0].depth = rng.of(&[1, 3, 32]);
        for options in policies(3) {
            let run = drive(&mut rig(options, 3, &family), &loops, 10_000, |_, _| {});
            let period = 8.0 * WINDOW.bytes() as f64;
            let lengths = f64::from(3 + 2 * DEPTH) * REQUEST as f64;
            let (mut changes, mut was) = (0.0, true);
            let of = |tick, members: &dyn Fn(usize) -> bool| normalised(&run, tick, members, 100.0);
            let difference = |tick: usize| of(tick, &|flow| flow < 2) - of(tick, &|flow| flow == 2);
            let (mut low, mut high) = (difference(2000), difference(2000));
            for tick in 2000..10_000 {
                let on = (loops[0].on)(tick as u64);
                changes += if on == was { 0.0 } else { 1.0 };
                was = on;
                (low, high) = (low.min(difference(tick)), high.max(difference(tick)));
                let bound = 2.0 * WINDOW.bytes() as f64 + lengths + (changes + 2.0) * 2.0 * period;
                assert!(high - low <= bound, "{}: {:.0} at tick {tick}, {bound:.0} at most", options.kind, high - low);
            }
        }
    });
}

#[test]
fn weights_change_at_each_level_at_once() {
    // From tick 4000 on B has weight 300 and not 100; from tick 8000 on a1 has 300, as a2 has.
    let family = Family::companies();
    let loops: Vec<Loop> = (0..3).map(always).collect();
    let change = |rig: &mut Rig, tick| match tick {
        4000 => rig.policy.set_group_weight(GroupId(1), weight(300)),
        8000 => rig.policy.set_weight(FlowId(0), weight(300)),
        _ => {}
    };
    for options in policies(3) {
        let run = drive(&mut rig(options, 3, &family), &loops, 12_000, change);
        for (from, expected) in [(0, [0.125, 0.375, 0.5]), (4000, [0.0625, 0.1875, 0.75]), (8000, [0.125, 0.125, 0.75])]
        {
            let what = format!("{} from {from}", options.kind);
            expect_shares(&what, &run.shares(from + 400, from + 4000), &expected, 0.006);
        }
    }
}

#[test]
fn effective_weights_are_told() {
    let family = Family::companies();
    let mut loops: Vec<Loop> = (0..3).map(always).collect();
    loops[0] = never(0);
    for options in policies(3) {
        let mut rig = rig(options, 3, &family);
        drive(&mut rig, &loops, 2000, |_, _| {});
        let told = |flow| {
            let effective = rig.policy.effective_weight(FlowId(flow)).expect("it has groups");
            (effective.millionths.div_ceil(1000), effective.competes)
        };
        assert_eq!([told(1), told(2)], [(100_000, true), (100_000, true)]);
        assert!(!told(0).1, "a1 has asked for nothing");
        assert_eq!(rig.policy.effective_weight_of(GroupId(0)).map(|group| group.millionths), Some(100_000_000));
        assert_eq!(rig.policy.effective_weight_of(GroupId(2)), None);
    }
}

#[test]
fn a_thousand_flows_in_ten_groups_get_their_groups_shares() {
    // Ten groups of weights 100 to 1000 with a hundred flows each, of which every third wants nothing. Two requests a
    // flow, or a short run would be all beginning.
    let family = Family {
        groups: (1..=10).map(|n| (100 * n, None)).collect(),
        flows: (0..1000).map(|flow| (100, Some(flow / 100))).collect(),
    };
    let of = |flow: u16| Loop { depth: 2, ..if flow.is_multiple_of(3) { never(0) } else { always(flow % 4) } };
    let loops: Vec<Loop> = (0..1000).map(of).collect();
    let mqfq = policies(4)[1];
    let run = drive(&mut rig(mqfq, 4, &family), &loops, 30_000, |_, _| {});
    let shares = run.shares(10_000, 30_000);
    for group in 0..10 {
        let got: f64 = shares[100 * group..100 * (group + 1)].iter().sum();
        let expected = (group + 1) as f64 / 55.0;
        assert!((got - expected).abs() < 0.01, "group {group} got {got:.4}, {expected:.4} is its share");
    }
}

#[test]
fn four_levels_multiply() {
    // Group 0 has three quarters of the device, group 1 two thirds of that, group 2 half of that, flow 0 a third of
    // that; beside each stands one flow with the rest.
    let family = Family {
        groups: vec![(300, None), (200, Some(0)), (100, Some(1))],
        flows: vec![(100, Some(2)), (200, Some(2)), (100, Some(1)), (100, Some(0)), (100, None)],
    };
    let loops: Vec<Loop> = (0..5).map(|flow| always(flow % 2)).collect();
    for options in policies(2) {
        let run = drive(&mut rig(options, 2, &family), &loops, 12_000, |_, _| {});
        let expected = [1.0 / 12.0, 2.0 / 12.0, 3.0 / 12.0, 3.0 / 12.0, 3.0 / 12.0];
        expect_shares(options.kind.name(), &run.shares(2000, 12_000), &expected, 0.005);
    }
}

#[test]
fn what_is_no_tree_is_refused_in_a_sentence() {
    let group = |parent: Option<u32>| Group { weight: Weight::DEFAULT, parent: parent.map(GroupId) };
    let refused = |kind, groups: &[Group], of_flow: &[Option<u32>]| {
        let tree = Tree { groups: groups.to_vec(), of_flow: of_flow.iter().map(|group| group.map(GroupId)).collect() };
        let policy = AnyPolicy::with_tree(&PolicyOptions::new(kind), &Topology::flat(1), &[Weight::DEFAULT; 2], &tree);
        policy.err().map(|error| error.to_string())
    };
    let chain = [group(None), group(Some(0)), group(Some(1)), group(Some(2))];
    let of_mqfq = |groups: &[Group], of_flow: &[Option<u32>]| refused(PolicyKind::Mqfq, groups, of_flow);
    assert_eq!(of_mqfq(&chain[..3], &[Some(2)]), None);
    let too_deep = "group 3 lies too deep, allowed are 3 groups in each other";
    assert_eq!(of_mqfq(&chain, &[Some(3)]).as_deref(), Some(too_deep));
    assert_eq!(of_mqfq(&[group(Some(0))], &[Some(0)]).as_deref(), Some("group 0 is named before it is there"));
    assert_eq!(of_mqfq(&[group(None)], &[Some(1)]).as_deref(), Some("group 1 is named before it is there"));
    assert_eq!(of_mqfq(&[group(None)], &[Some(0), Some(1)]).as_deref(), Some("group 1 is named before it is there"));
    let nobody = "flow 2 is in a group and does not exist";
    assert_eq!(of_mqfq(&[group(None)], &[None, None, Some(0)]).as_deref(), Some(nobody));
    let none = "policy d2fq knows no groups";
    assert_eq!(refused(D2FQ, &[group(None)], &[Some(0)]).as_deref(), Some(none));
}
