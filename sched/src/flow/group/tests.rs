//! Prices by themselves: against exact numbers, and what holds of them after each step whatever the demands are.

use super::*;
use crate::base::random::{Random, for_seeds};

fn weight(value: u64) -> Weight {
    Weight::new(value).expect("in range")
}

/// A hierarchy with its flows, outside of any flow table: the member, its weight, and what was skipped.
struct Scene {
    hierarchy: Hierarchy,
    members: Vec<(Member, Weight)>,
    tree: Tree,
    now: VTime,
}

const PERIOD: VSpan = VSpan(1 << 30);

impl Scene {
    fn new(groups: &[(u64, Option<u32>)], flows: &[(u64, u32)]) -> Scene {
        let group =
            |&(value, parent): &(u64, Option<u32>)| Group { weight: weight(value), parent: parent.map(GroupId) };
        let tree = Tree {
            groups: groups.iter().map(group).collect(),
            of_flow: flows.iter().map(|(_, group)| Some(GroupId(*group))).collect(),
        };
        assert_eq!(tree.validate(flows.len()), Ok(()));
        let hierarchy = Hierarchy::new(&tree, PERIOD, VTime::ZERO);
        let members: Vec<_> = flows.iter().map(|&(value, group)| (Member::of(GroupId(group)), weight(value))).collect();
        hierarchy.reweigh(|flow| (&members[flow.0 as usize].0, members[flow.0 as usize].1));
        Scene { hierarchy, members, tree, now: VTime::ZERO }
    }

    /// A step after which each flow has used this part, in 256ths, of what it could.
    fn step(&mut self, used: &[u64]) {
        let passed = self.hierarchy.period().0;
        self.now = self.now.plus(VSpan(passed));
        let skipped = |flow: FlowId| (VSpan(passed - passed / 256 * used[flow.0 as usize]), false);
        let look = |flow: FlowId| (&self.members[flow.0 as usize].0, self.members[flow.0 as usize].1);
        self.hierarchy.step_if_due(self.now, look, skipped);
    }

    fn wake(&self, flow: usize) {
        let (member, weight) = &self.members[flow];
        self.hierarchy.wants(member, *weight);
    }

    fn effective(&self, flow: usize) -> f64 {
        self.members[flow].0.effective_weight().millionths as f64 / 1e6
    }

    fn all(&self) -> Vec<f64> {
        (0..self.members.len()).map(|flow| self.effective(flow)).collect()
    }

    fn demand(&self, flow: usize) -> Demand {
        self.members[flow].0.demand()
    }
}

fn expect(got: &[f64], expected: &[f64]) {
    let close = got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() <= 1e-5 * expected.max(1.0));
    assert!(close, "{got:?}, expected {expected:?}");
}

#[test]
fn a_price_is_the_ratio_to_a_part_in_a_billion() {
    for_seeds(200, |rng| {
        let (over, under) = (u128::from(1 + rng.scaled(1 << 40)), u128::from(1 + rng.scaled(1 << 40)));
        let price = Price::ratio(over, under);
        let exact = over as f64 / under as f64;
        if (1.0 / 16384.0..2e9).contains(&exact) {
            let got = price.mantissa() as f64 / (1u128 << price.shift()) as f64;
            assert!((got / exact - 1.0).abs() < 2e-9, "{over}/{under}: {got} instead of {exact}");
        }
        assert!(price.mantissa() > 0 && price.shift() <= 46);
    });
}

#[test]
fn the_example_at_the_head_of_the_file() {
    let mut scene = Scene::new(&[(100, None), (100, None)], &[(1, 0), (3, 0), (1, 1)]);
    (0..3).for_each(|flow| scene.wake(flow));
    for (used, expected) in [
        ([256, 256, 256], [25.0, 75.0, 100.0]),
        ([256, 0, 256], [100.0, 75.0, 100.0]),
        ([0, 256, 256], [25.0, 100.0, 100.0]),
        ([256, 256, 0], [25.0, 75.0, 100.0]),
    ] {
        scene.step(&[256; 3]);
        scene.step(&used);
        // An idle flow is told what it would get if it came.
        let competing = (0..3).filter(|flow| used[*flow] > 0);
        competing.for_each(|flow| expect(&[scene.effective(flow)], &[expected[flow]]));
    }
    // a2 uses a sixth of its 75, an eighth of the 100: a1 gets 87.5, and a2 could have its 75.
    scene.step(&[256; 3]);
    scene.step(&[256, 43, 256]);
    let used = 75.0 * 43.0 / 256.0;
    expect(&scene.all(), &[100.0 - used, 75.0, 100.0]);
}

#[test]
fn who_comes_from_idleness_has_its_part_before_it_is_charged() {
    let mut scene = Scene::new(&[(100, None), (60, Some(0)), (40, Some(0))], &[(10, 1), (30, 1), (10, 2)]);
    scene.wake(0);
    // Alone in its group, which is alone in its parent: all of it.
    expect(&[scene.effective(0)], &[100.0]);
    scene.step(&[256, 0, 0]);
    // It comes to a group that is there, and then one comes to a group that was not.
    scene.wake(1);
    assert_eq!(scene.demand(1), Demand::Satisfied);
    expect(&[scene.effective(1)], &[75.0]);
    scene.wake(2);
    expect(&[scene.effective(2)], &[40.0]);
    scene.step(&[256; 3]);
    expect(&scene.all(), &[15.0, 45.0, 40.0]);
}

#[test]
fn who_comes_to_a_busy_group_while_its_sums_are_taken_gets_no_more_than_its_part() {
    // Beside a light flow that takes all, and beside two groups of which one is idle.
    let mut scene = Scene::new(&[(100, None), (60, Some(0)), (20, Some(0))], &[(1, 1), (99, 1), (7, 2)]);
    scene.wake(0);
    scene.step(&[256, 0, 0]);
    assert!(scene.hierarchy.enter(), "nobody is at the sums");
    [1, 2].into_iter().for_each(|flow| scene.wake(flow));
    assert_eq!(scene.demand(1), Demand::Idle, "somebody is");
    expect(&scene.all(), &[100.0, 99.0, 25.0]);
    scene.hierarchy.leave();
    // And that is what it has once it has come.
    [1, 2].into_iter().for_each(|flow| scene.wake(flow));
    expect(&scene.all()[1..], &[99.0, 25.0]);
    scene.step(&[256; 3]);
    expect(&scene.all(), &[0.75, 74.25, 25.0]);
}

#[test]
fn only_who_comes_from_idleness_while_the_sums_are_taken_makes_a_step_due() {
    let mut scene = Scene::new(&[(100, None)], &[(1, 0), (1, 0)]);
    scene.wake(0);
    scene.step(&[256, 0]);
    let competes = [0, 1].map(|flow| scene.members[flow].0.effective_weight().competes);
    assert_eq!(competes, [true, false]);
    for (comes, is_due) in [(0, false), (1, true)] {
        assert!(scene.hierarchy.enter(), "nobody is at the sums");
        scene.wake(comes);
        scene.hierarchy.leave();
        assert_eq!(get(&scene.hierarchy.steps.next) == get(&scene.hierarchy.steps.last), is_due, "flow {comes}");
    }
}

#[test]
fn steps_come_as_often_as_the_window_in_force_says() {
    let mut scene = Scene::new(&[(100, None)], &[(1, 0), (1, 0)]);
    let steps = |scene: &mut Scene, passed: u64| {
        let before = get(&scene.hierarchy.steps.last);
        scene.now = scene.now.plus(VSpan(passed));
        let look = |flow: FlowId| (&scene.members[flow.0 as usize].0, scene.members[flow.0 as usize].1);
        scene.hierarchy.step_if_due(scene.now, look, |_| (VSpan(0), true));
        get(&scene.hierarchy.steps.last) != before
    };
    assert!(steps(&mut scene, PERIOD.0));
    assert!(!steps(&mut scene, PERIOD.0 / 4), "the period is not over");
    scene.hierarchy.set_period(VSpan(PERIOD.0 / 4));
    assert!(steps(&mut scene, PERIOD.0 * 3 / 4), "the one that had begun is");
    assert!(steps(&mut scene, PERIOD.0 / 4));
}

/// Expects the members of each group to get together, as [`Scene::effective`] says and with what the satisfied use
/// (H1), the group's rate, worked out from the top in floating point.
fn expect_rates(scene: &Scene, used: &[u64], before: &[f64]) {
    let groups = scene.tree.groups.len();
    let flows_of =
        |group: usize| (0..scene.members.len()).filter(move |&flow| scene.members[flow].0.group as usize == group);
    let is_backlogged = |flow: usize| scene.demand(flow) == Demand::Backlogged;
    for group in 0..groups {
        let kin: Vec<usize> = (0..groups)
            .filter(|&other| {
                let mut at = Some(GroupId(other as u32));
                while let Some(GroupId(of)) = at {
                    if of as usize == group {
                        return true;
                    }
                    at = scene.tree.groups[of as usize].parent;
                }
                false
            })
            .collect();
        let members: Vec<usize> = kin.iter().flat_map(|&group| flows_of(group)).collect();
        if !members.iter().any(|&flow| is_backlogged(flow)) {
            continue;
        }
        let rate = scene.hierarchy.effective_weight_of(GroupId(group as u32)).millionths as f64 / 1e6;
        let got = |&flow: &usize| {
            if is_backlogged(flow) { scene.effective(flow) } else { before[flow] * used[flow] as f64 / 256.0 }
        };
        let sum: f64 = members.iter().map(got).sum();
        // Together the satisfied may have used more than they may now; then the backlogged have their parts by weight.
        assert!(sum >= rate * 0.9999, "group {group} gets {sum}, its rate is {rate}");
        let satisfied_fit = kin.iter().all(|&group| {
            let satisfied = || flows_of(group).filter(|&flow| scene.demand(flow) == Demand::Satisfied);
            let entitled: f64 = satisfied().map(|flow| scene.effective(flow)).sum();
            let had: f64 = satisfied().map(|flow| before[flow] * used[flow] as f64 / 256.0).sum();
            had <= entitled
        });
        if satisfied_fit && kin.len() == 1 {
            assert!((sum / rate - 1.0).abs() < 1e-4, "group {group} gets {sum}, its rate is {rate}");
        }
    }
}

/// Wakes a flow, and looks that it and its groups, up to the first that competed before, pay what they would if their
/// prices were worked out anew from the top.
fn wake_and_look(scene: &Scene, flow: usize) {
    let (Scene { hierarchy, .. }, (member, weight)) = (scene, &scene.members[flow]);
    if !member.is_idle() {
        return scene.wake(flow);
    }
    let (mut path, mut at) = (vec![], member.group);
    while at != NOBODY {
        path.push(at as usize);
        let sums = &hierarchy.cells[at as usize].sums;
        at = if sums.demand() == Demand::Idle { sums.parent } else { NOBODY };
    }
    let seen = || {
        let prices = path.iter().map(|group| &hierarchy.cells[*group].prices);
        (
            prices.map(|prices| (get(&prices.backlogged), get(&prices.others))).collect::<Vec<_>>(),
            member.units_per_cost(),
        )
    };
    scene.wake(flow);
    let before = seen();
    path.iter().rev().for_each(|group| hierarchy.set_prices(*group));
    hierarchy.set_effective(member, *weight);
    assert_eq!(before, seen(), "flow {flow}, groups {path:?}");
}

#[test]
fn every_group_gets_its_rate_whatever_its_members_want() {
    for_seeds(200, |rng: &mut Random| {
        let depth = |groups: &[(u64, Option<u32>)], mut at: u32| {
            let mut depth = 1;
            while let Some(parent) = groups[at as usize].1 {
                (at, depth) = (parent, depth + 1);
            }
            depth
        };
        let mut groups = vec![(1 + rng.scaled(9999), None)];
        for _ in 0..rng.index(6) {
            let parent = rng.index(groups.len()) as u32;
            groups.push((1 + rng.scaled(9999), Some(parent).filter(|&parent| depth(&groups, parent) < 3)));
        }
        let flows: Vec<(u64, u32)> = (0..12).map(|_| (1 + rng.scaled(9999), rng.index(groups.len()) as u32)).collect();
        let mut scene = Scene::new(&groups, &flows);
        for _ in 0..20 {
            (0..flows.len()).for_each(|flow| wake_and_look(&scene, flow));
            let before = scene.all();
            let used: Vec<u64> = flows.iter().map(|_| rng.of(&[0, 256, 256, rng.clone().below(256)])).collect();
            scene.step(&used);
            for (flow, used) in used.iter().enumerate() {
                let expected = match used {
                    0 => Demand::Idle,
                    252.. => Demand::Backlogged,
                    _ => Demand::Satisfied,
                };
                assert_eq!(scene.demand(flow), expected);
            }
            expect_rates(&scene, &used, &before);
        }
    });
}

#[test]
fn the_smallest_and_the_largest_that_there_can_be_stay_in_range() {
    // 1 beside 10000 at three levels, in a group of weight 1.
    let groups = [(1, None), (1, Some(0)), (1, Some(1)), (10_000, Some(0)), (10_000, Some(1))];
    let mut scene = Scene::new(&groups, &[(1, 2), (10_000, 2), (1, 3), (1, 4)]);
    (0..4).for_each(|flow| scene.wake(flow));
    scene.step(&[256; 4]);
    let member = &scene.members[0].0;
    // 1 / 10001^3, 1e-12 of the group. The least that there can be is 5e-5 of a weight.
    assert_eq!(member.units_per_cost(), 1 << 63);
    assert_eq!(member.effective_weight().millionths, 47);
    // The longest request is as long as may be, and no longer.
    assert_eq!(member.span_fixed(crate::cost::COST_MAX), SPAN_MAX_FIXED);
}

#[test]
fn a_tree_says_what_is_wrong_with_it_and_whether_anybody_is_in_it() {
    let group = |parent: Option<u32>| Group { weight: weight(100), parent: parent.map(GroupId) };
    let of = |flow: Option<u32>| flow.map(GroupId);
    let tree = |groups: &[Option<u32>], flows: &[Option<u32>]| Tree {
        groups: groups.iter().map(|parent| group(*parent)).collect(),
        of_flow: flows.iter().map(|flow| of(*flow)).collect(),
    };
    assert!(tree(&[None], &[None, None]).is_empty());
    assert!(!tree(&[None], &[None, Some(0)]).is_empty());
    assert_eq!(tree(&[None], &[None, Some(0)]).validate(2), Ok(()));
    assert_eq!(tree(&[None], &[None, Some(0)]).validate(1), Err(TreeError::NoSuchFlow(1)));
    assert_eq!(tree(&[None], &[Some(1)]).validate(1), Err(TreeError::NoSuchGroup(GroupId(1))));
    let most = Tree { groups: vec![group(None); Tree::GROUPS_MAX], of_flow: Vec::new() };
    assert_eq!(most.validate(0), Ok(()));
    let chain = [None, Some(0), Some(1), Some(2)];
    assert_eq!(tree(&chain[..3], &[]).validate(0), Ok(()));
    assert_eq!(tree(&chain, &[]).validate(0), Err(TreeError::TooDeep(GroupId(3))));
    let more = Tree { groups: vec![group(None); Tree::GROUPS_MAX + 1], of_flow: Vec::new() };
    assert_eq!(more.validate(0), Err(TreeError::TooMany(Tree::GROUPS_MAX + 1)));
}

#[test]
fn a_hierarchy_knows_its_size_and_the_weight_that_a_group_gets() {
    let scene = Scene::new(&[(300, None), (100, None)], &[(100, 0), (100, 1)]);
    assert_eq!(scene.hierarchy.len(), 2);
    scene.wake(0);
    scene.wake(1);
    scene.hierarchy.set_weight(GroupId(0), weight(100));
    scene.hierarchy.reweigh(|flow| (&scene.members[flow.0 as usize].0, scene.members[flow.0 as usize].1));
    let groups = [0, 1].map(|group| scene.hierarchy.effective_weight_of(GroupId(group)));
    assert!(groups.iter().all(|weight| weight.competes), "both have a flow that wants");
    assert_eq!(groups[0].millionths, groups[1].millionths, "of equal weights, with one flow each");
}

#[test]
fn a_weight_that_changes_while_another_is_at_the_sums_makes_a_step_due() {
    let mut scene = Scene::new(&[(100, None), (100, None)], &[(100, 0), (100, 1)]);
    (0..2).for_each(|flow| scene.wake(flow));
    scene.step(&[256, 256]);
    assert!(scene.hierarchy.enter());
    scene.hierarchy.set_weight(GroupId(0), weight(300));
    let look = |flow: FlowId| (&scene.members[flow.0 as usize].0, scene.members[flow.0 as usize].1);
    scene.hierarchy.reweigh(look);
    assert_eq!(scene.effective(0), 100.0, "not yet");
    scene.hierarchy.leave();
    // A look at the same virtual time finds nothing, the next one a step, long before a period has passed.
    scene.now = scene.now.plus(VSpan(64));
    scene.hierarchy.step_if_due(scene.now, look, |_| (VSpan(0), false));
    assert_eq!((scene.effective(0), scene.effective(1)), (300.0, 100.0));
}

#[test]
fn a_step_is_due_a_period_after_the_start_wherever_on_the_circle_that_is() {
    let tree = Tree { groups: vec![Group { weight: weight(100), parent: None }], of_flow: vec![Some(GroupId(0))] };
    for start in [0, (1 << 63) + 5, u64::MAX] {
        let start = VTime::from_raw(start);
        let (hierarchy, member) = (Hierarchy::new(&tree, PERIOD, start), Member::of(GroupId(0)));
        hierarchy.step_if_due(start.plus(PERIOD), |_| (&member, weight(100)), |_| (VSpan(0), true));
        assert_eq!(member.demand(), Demand::Backlogged, "{start:?}");
    }
}

#[test]
fn a_step_takes_a_period_or_what_the_lightest_group_needs_for_all_flows() {
    let scene = Scene::new(&[(50, None), (200, None), (1, Some(0))], &[(100, 0), (100, 1), (100, 2)]);
    // 3 flows, and a byte at weight 50 is 2048 units. Weights further down do not count.
    let least = 3 * Hierarchy::BYTES_PER_FLOW * 2048;
    for (period, expected) in [(0, least), (least - 1, least), (least + 1, least + 1)] {
        scene.hierarchy.set_period(VSpan(period));
        assert_eq!(scene.hierarchy.period(), VSpan(expected));
    }
}

#[test]
fn a_flow_that_skipped_more_than_its_part_is_content_and_one_that_skipped_all_is_idle() {
    let mut scene = Scene::new(&[(100, None)], &[(100, 0)]);
    let mut after = |skipped: u64, is_ahead: bool| {
        scene.wake(0);
        scene.now = scene.now.plus(scene.hierarchy.period());
        let look = |flow: FlowId| (&scene.members[flow.0 as usize].0, scene.members[flow.0 as usize].1);
        scene.hierarchy.step_if_due(scene.now, look, |_| (VSpan(skipped), is_ahead));
        scene.members[0].0.demand()
    };
    let passed = PERIOD.0;
    assert_eq!(after(0, false), Demand::Backlogged);
    assert_eq!(after(passed / BACKLOGGED_PART, false), Demand::Backlogged);
    assert_eq!(after(passed / BACKLOGGED_PART + 1, false), Demand::Satisfied);
    assert_eq!(after(passed - 1, false), Demand::Satisfied);
    assert_eq!(after(passed, true), Demand::Satisfied, "it came just now");
    assert_eq!(after(passed, false), Demand::Idle);
}
