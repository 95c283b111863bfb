//! Shares of nested cgroups: a member's unused part stays in its group, whose share does not depend on its members.

use mqfq_elevator_agreement::forest::Forest;
use mqfq_sched::vtime::VSpan;
use mqfq_testing::random::for_seeds;
use std::collections::VecDeque;

const COST: u64 = 4096;

/// Load of one node: requests in flight, and completions of the device from an answer to the next request.
struct Load {
    node: u32,
    in_flight: u32,
    thinks: u32,
}

impl Load {
    fn always(node: u32) -> Load {
        Load { node, in_flight: 16, thinks: 0 }
    }
}

/// Parts of all requests, by load, of the last three quarters of `completions` on a device that serves one at a time.
fn shares(forest: &mut Forest, loads: &[Load], completions: u32) -> Vec<f64> {
    let mut out = VecDeque::new();
    let mut thinking: VecDeque<(u32, usize)> = VecDeque::new();
    let mut done = vec![0u32; loads.len()];
    for (at, load) in loads.iter().enumerate() {
        (0..load.in_flight).for_each(|_| forest.submit(load.node, COST, at as u64));
    }
    for now in 0..completions {
        // The clock, each sixty-fourth completion.
        if now % 64 == 0 {
            forest.step();
        }
        while let Some(one) = forest.pick() {
            out.push_back(one);
        }
        if let Some((at, units)) = out.pop_front() {
            forest.complete(units);
            done[at as usize] += u32::from(now > completions / 4);
            thinking.push_back((now + loads[at as usize].thinks, at as usize));
        }
        let back: Vec<usize> = thinking.iter().filter(|(until, _)| *until <= now).map(|(_, at)| *at).collect();
        thinking.retain(|(until, _)| *until > now);
        back.into_iter().for_each(|at| forest.submit(loads[at].node, COST, at as u64));
    }
    // Requests on the device complete, so that the next load begins alone.
    loop {
        while let Some(one) = forest.pick() {
            out.push_back(one);
        }
        let Some((_, units)) = out.pop_front() else { break };
        forest.complete(units);
    }
    let all: u32 = done.iter().sum();
    done.iter().map(|done| f64::from(*done) / f64::from(all)).collect()
}

fn assert_near(found: &[f64], wanted: &[f64]) {
    let is_near = found.iter().zip(wanted).all(|(found, wanted)| (found - wanted).abs() <= 0.03 * wanted.max(0.1));
    assert!(is_near, "{found:?}, wanted {wanted:?}");
}

/// A, 100, with a1, 1, and a2, 3; B, 100, with b.
fn companies() -> (Forest, [u32; 3]) {
    let mut forest = Forest::new(4, VSpan::from_bytes(64 << 10).0);
    let [a, b] = [100; 2].map(|weight| forest.add(None, weight));
    let teams = [(a, 1), (a, 3), (b, 100)].map(|(company, weight)| forest.add(Some(company), weight));
    (forest, teams)
}

#[test]
fn shares_are_the_product_along_the_path_of_those_who_ask() {
    let (mut forest, [a1, a2, b]) = companies();
    let all = [a1, a2, b].map(Load::always);
    assert_near(&shares(&mut forest, &all, 20_000), &[0.125, 0.375, 0.5]);
    assert_near(&shares(&mut forest, &[a2, b].map(Load::always), 20_000), &[0.5, 0.5]);
    assert_near(&shares(&mut forest, &[a1, b].map(Load::always), 20_000), &[0.5, 0.5]);
    assert_near(&shares(&mut forest, &[a1, a2].map(Load::always), 20_000), &[0.25, 0.75]);
    assert_near(&shares(&mut forest, &all, 20_000), &[0.125, 0.375, 0.5]);
}

#[test]
fn what_a_member_leaves_stays_in_its_group() {
    let (mut forest, [a1, a2, b]) = companies();
    // One request at a time, and a pause: a twelfth of the device, where it might have 0.375.
    let shy = Load { node: a2, in_flight: 1, thinks: 8 };
    let found = shares(&mut forest, &[Load::always(a1), shy, Load::always(b)], 40_000);
    assert!(found[1] < 0.2, "it is satisfied: {found:?}");
    assert_near(&[found[0] + found[1], found[2]], &[0.5, 0.5]);
}

#[test]
fn a_group_that_comes_and_goes_leaves_the_rest_as_it_was() {
    let (mut forest, [a1, a2, b]) = companies();
    let inner = forest.add(Some(a1), 100);
    // a1's own requests compete with its child at the default weight.
    let found = shares(&mut forest, &[a1, inner, a2, b].map(Load::always), 40_000);
    assert_near(&found, &[0.0625, 0.0625, 0.375, 0.5]);
    forest.remove(inner);
    forest.set_weight(a1, 3);
    assert_near(&shares(&mut forest, &[a1, a2, b].map(Load::always), 20_000), &[0.25, 0.25, 0.5]);
    // With one request of each waiting.
    [a1, a2, b].into_iter().for_each(|node| forest.submit(node, COST, 0));
    assert_eq!(forest.count(), 1);
    assert_eq!([a1, a2, b].map(|node| forest.entitlement(node)), [2500, 2500, 5000]);
}

#[test]
fn who_competes_is_counted_in_pieces_while_cgroups_come_and_go() {
    let (mut forest, [a1, a2, b]) = companies();
    let mut others: Vec<u32> = (0..10_000).map(|_| forest.add(None, 100)).collect();
    // Two of them compete, with as much as A and B.
    let asking = [a1, a2, b, others[0], others[9_999]];
    shares(&mut forest, &asking.map(Load::always), 2000);
    asking.into_iter().for_each(|node| forest.submit(node, COST, 0));
    // 10,005 nodes, 64 at a time.
    assert_eq!(forest.count(), 157);
    let parts = |forest: &Forest, others: &[u32]| [a1, a2, b, others[0]].map(|node| forest.entitlement(node));
    assert_eq!(parts(&forest, &others), [625, 1875, 2500, 2500]);
    // Nodes leave that were counted or are next, and another one comes.
    assert!(!forest.count_on());
    for gone in (50..70).rev() {
        forest.remove(others.remove(gone));
    }
    let late = forest.add(None, 100);
    forest.submit(late, COST, 0);
    while !forest.count_on() {}
    assert_eq!(parts(&forest, &others), [500, 1500, 2000, 2000]);
    assert_eq!(forest.entitlement(late), 2000);
    // An idle node is entitled to its part beside the others.
    assert_eq!(forest.entitlement(others[5]), 1666);
}

#[test]
fn a_step_looks_at_those_who_ask_and_their_groups_however_many_there_are() {
    let (mut forest, [a1, a2, b]) = companies();
    let idle: Vec<u32> = (0..10_000).map(|_| forest.add(Some(0), 100)).collect();
    let loads = [a1, a2, b].map(Load::always);
    assert_near(&shares(&mut forest, &loads, 20_000), &[0.125, 0.375, 0.5]);
    assert!(forest.active() <= 5, "{} with three who ask, in two groups", forest.active());
    // One of those that were idle has its part as soon as it comes: beside 1 and 3 it is nearly all of A's.
    let late = idle[5000];
    let found = shares(&mut forest, &[a1, late, b].map(Load::always), 20_000);
    assert_near(&found, &[0.5 / 101.0, 50.0 / 101.0, 0.5]);
    assert!(forest.active() <= 5, "{} with three others", forest.active());
}

/// Two of equal weight: the first's requests are charged for a quarter of what they have grown to when they go. With
/// the larger weight neither a request nor its growth is a whole number of grains: without the fraction of its growth
/// the first would have 46 of 40,000 small requests more than the second.
#[test]
fn a_request_that_grows_after_its_charge_is_paid_for_in_full() {
    for (weight, cost, requests) in [(100, COST, 1000), (10_000, COST, 1000), (10_000, 512, 40_000)] {
        let mut forest = Forest::new(1, VSpan::from_bytes(64 << 10).0);
        let nodes = [weight; 2].map(|weight| forest.add(None, weight));
        let ask = |forest: &mut Forest, which: u64| {
            let grows = which == 0;
            forest.submit(nodes[which as usize], if grows { cost } else { 4 * cost }, which);
            if grows {
                forest.grow(nodes[0], 3 * cost);
            }
        };
        [0, 1, 1, 1].into_iter().for_each(|which| ask(&mut forest, which));
        let mut done = [0u32; 2];
        for _ in 0..requests {
            let (which, units) = forest.pick().expect("one is staged and the device is free");
            forest.complete(units);
            done[which as usize] += 1;
            ask(&mut forest, which);
        }
        assert!(done[0].abs_diff(done[1]) <= 20, "weight {weight}, {cost} bytes: {done:?}");
    }
}

/// Once all ask, and again as soon as the weight of one has changed.
#[test]
fn effective_weights_of_the_backlogged_sum_to_their_groups_weight() {
    for_seeds(40, |random| {
        let mut forest = Forest::new(4, VSpan::from_bytes(64 << 10).0);
        let mut parents: Vec<Option<u32>> = Vec::new();
        let mut weights = Vec::new();
        // Every sixth is of flows without groups.
        let is_flat = random.chance(6);
        for at in 0..random.between(4, 30) as u32 {
            let parent = (at > 0 && !is_flat && !random.chance(4)).then(|| random.below(at.into()) as u32);
            weights.push(random.of(&[1, 50, 100, 100, 333, 1000]));
            parents.push(parent);
            forest.add(parent, weights[at as usize]);
        }
        let parents = &parents;
        let has_children = |node: u32| parents.contains(&Some(node));
        // All ask: those without children, and every second one that has some.
        let asks = |node: u32| !has_children(node) || node.is_multiple_of(2);
        let loads: Vec<Load> = (0..parents.len() as u32).filter(|node| asks(*node)).map(Load::always).collect();
        shares(&mut forest, &loads, 6000);
        assert_effective(&forest, parents, &weights, asks);
        for _ in 0..4 {
            let node = random.index(weights.len());
            weights[node] = random.of(&[1, 60, 200, 1000]);
            forest.set_weight(node as u32, weights[node]);
            assert_effective(&forest, parents, &weights, asks);
        }
    });
}

/// The weight of each that asks is the product along its path.
fn assert_effective(forest: &Forest, parents: &[Option<u32>], weights: &[u32], asks: impl Fn(u32) -> bool) {
    let nodes = 0..parents.len() as u32;
    let has_children = |node: u32| parents.contains(&Some(node));
    // Weights of the children of a node, and of its own flow beside them.
    let sum = |of: u32| {
        let children = nodes.clone().filter(|node| parents[*node as usize] == Some(of));
        children.map(|child| weights[child as usize]).sum::<u32>() + if asks(of) { 100 } else { 0 }
    };
    let mut rate = vec![0.0; parents.len()];
    for node in nodes.clone() {
        let own = f64::from(weights[node as usize]);
        rate[node as usize] = parents[node as usize].map_or(own, |of| rate[of as usize] * own / f64::from(sum(of)));
        if asks(node) {
            let own_part = if has_children(node) { 100.0 / f64::from(sum(node)) } else { 1.0 };
            let (wanted, found) = (rate[node as usize] * own_part, f64::from(forest.effective(node)) / 65_536.0);
            let is_least = wanted < 1.0 / 128.0 && found <= 1.0 / 128.0;
            assert!(is_least || (found - wanted).abs() <= wanted / 1000.0 + 0.0001, "{node}: {found}, wanted {wanted}");
        }
    }
}
