//! Sequential tests, and agreement with plain counters under generated histories.

use crate::base::random::for_seeds;
use proptest::prelude::*;

use super::*;

fn taken(tree: &TokenTree, hctx: u16, units: u32) -> DispatchToken {
    tree.acquire(HctxId(hctx), units).expect("there is one")
}

#[test]
fn a_token_released_locally_is_for_its_own_hctx() {
    let tree = TokenTree::new(&Topology::new(2, 2, 2), 1);
    let token = taken(&tree, 0, 1);
    assert_eq!(tree.release_local(HctxId(0), token), 1);
    assert!(tree.acquire(HctxId(1), 1).is_none());
    let token = taken(&tree, 0, 1);
    tree.release_root(token);
}

#[test]
fn a_token_released_toward_another_is_for_all_below_their_common_ancestor() {
    // 0 1 | 2 3 || 4 5 | 6 7. From 0 to 3: the first socket.
    let tree = TokenTree::new(&Topology::new(2, 2, 2), 1);
    for (taker, gets) in [(0, true), (1, true), (2, true), (3, true), (4, false), (7, false)] {
        let token = taken(&tree, 0, 1);
        tree.release_toward(HctxId(0), HctxId(3), token);
        let token = tree.acquire(HctxId(taker), 1);
        assert_eq!(token.is_some(), gets, "hctx {taker}");
        if let Some(token) = token {
            tree.release_root(token);
        } else {
            assert_eq!(tree.percolate(HctxId(1)), 1);
        }
        assert_eq!(tree.root_units(), 1);
    }
}

#[test]
fn less_depth_is_owed_and_more_is_there_at_once() {
    // D = 4, all out; then D = 2: the first two that come back pay, the third is free again.
    let tree = TokenTree::new(&Topology::flat(2), 4);
    let mut out: Vec<DispatchToken> = (0..4).map(|hctx| taken(&tree, hctx % 2, 1)).collect();
    tree.set_depth(2);
    assert_eq!((tree.depth(), tree.root_units()), (2, -2));
    for left in [0, 0, 1] {
        assert!(tree.acquire(HctxId(0), 1).is_none());
        assert_eq!(tree.release_local(HctxId(0), out.pop().expect("four were taken")), left);
    }
    let third = taken(&tree, 0, 1);
    // D = 5: three more, for any queue.
    tree.set_depth(5);
    assert_eq!(tree.root_units(), 3);
    out.extend([third, taken(&tree, 1, 3)]);
    assert!(tree.acquire(HctxId(0), 1).is_none());
    out.into_iter().for_each(|token| tree.release_root(token));
    assert_eq!(tree.total_units(), 5);
}

#[test]
fn a_request_may_take_more_than_the_depth_where_that_is_said() {
    let tree = TokenTree::for_requests(&Topology::flat(1), 1, 32);
    let large = taken(&tree, 0, 32);
    assert_eq!(tree.root_units(), -31);
    assert!(tree.acquire(HctxId(0), 1).is_none());
    tree.release_root(large);
    assert_eq!(tree.root_units(), 1);
}

#[test]
fn percolate_leaves_nothing_on_its_path() {
    let tree = TokenTree::new(&Topology::new(2, 2, 2), 3);
    let tokens = [taken(&tree, 0, 1), taken(&tree, 0, 1), taken(&tree, 0, 1)];
    for (token, to) in tokens.into_iter().zip([0, 1, 2]) {
        tree.release_toward(HctxId(0), HctxId(to), token);
    }
    assert_eq!(tree.root_units(), 0);
    assert_eq!(tree.percolate(HctxId(4)), 0, "another socket's tokens are not on its path");
    assert_eq!(tree.percolate(HctxId(0)), 3);
    assert_eq!((tree.percolate(HctxId(0)), tree.root_units()), (0, 3));
}

#[test]
fn a_big_request_starts_with_one_free_token_and_the_rest_is_debt() {
    // D = 4. 3 units out, 1 at the root: a request of 4 goes, and 7 = D + 4 - 1 units are out.
    let tree = TokenTree::new(&Topology::flat(2), 4);
    let small = taken(&tree, 0, 3);
    let big = taken(&tree, 1, 4);
    assert_eq!((tree.root_units(), tree.total_units()), (-3, -3));
    assert!(tree.acquire(HctxId(0), 1).is_none() && tree.acquire(HctxId(1), 4).is_none());
    // The first 3 units released pay the debt, wherever they were to go; the next request waits for a free one.
    assert_eq!(tree.release_local(HctxId(0), small), 0);
    assert!(tree.acquire(HctxId(0), 1).is_none());
    assert_eq!(tree.release_toward(HctxId(1), HctxId(0), big), 4);
    assert_eq!((tree.root_units(), tree.total_units()), (4, 4));
}

#[test]
fn a_big_request_takes_no_more_than_it_needs() {
    // 6 tokens at the leaf; 4 are taken from there, 2 stay, the root keeps its own.
    let tree = TokenTree::new(&Topology::flat(2), 8);
    let token = taken(&tree, 0, 6);
    tree.release_local(HctxId(0), token);
    let token = taken(&tree, 0, 4);
    assert_eq!(tree.root_units(), 2);
    assert_eq!(tree.percolate(HctxId(0)), 2);
    tree.release_root(token);
}

#[test]
fn a_leaf_that_holds_just_enough_is_enough() {
    let tree = TokenTree::new(&Topology::flat(2), 3);
    let token = taken(&tree, 0, 3);
    tree.release_local(HctxId(0), token);
    assert!(tree.acquire_own(HctxId(1), 3).is_none());
    let token = tree.acquire_own(HctxId(0), 3).expect("it has three");
    assert!(tree.acquire_own(HctxId(0), 1).is_none());
    tree.release_root(token);
}

#[test]
fn spare_tokens_come_from_where_the_rest_is_found_and_from_no_further() {
    // One token at the core of 0, three at its socket.
    let tree = TokenTree::new(&Topology::new(2, 2, 2), 4);
    let tokens: Vec<DispatchToken> = (0..4).map(|_| taken(&tree, 0, 1)).collect();
    for (token, to) in tokens.into_iter().zip([1, 2, 2, 2]) {
        tree.release_toward(HctxId(0), HctxId(to), token);
    }
    let one = tree.acquire_batch(HctxId(0), 1, 2).expect("the core has it");
    assert_eq!(tree.percolate(HctxId(2)), 3, "the socket keeps its own");
    tree.release_root(one);
}

#[test]
#[should_panic(expected = "5 units of a depth of 4")]
fn more_units_than_the_depth_are_refused() {
    let _ = TokenTree::new(&Topology::flat(1), 4).acquire(HctxId(0), 5);
}

#[derive(Clone, Debug)]
enum Op {
    Acquire(u16, u32),
    ReleaseLocal(usize),
    ReleaseToward(usize, u16),
    ReleaseRoot(usize),
    Percolate(u16),
    SetDepth(u32),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (any::<u16>(), prop_oneof![Just(1), 1u32..8]).prop_map(|(hctx, units)| Op::Acquire(hctx, units)),
        1 => any::<usize>().prop_map(Op::ReleaseLocal),
        1 => (any::<usize>(), any::<u16>()).prop_map(|(which, to)| Op::ReleaseToward(which, to)),
        1 => any::<usize>().prop_map(Op::ReleaseRoot),
        1 => any::<u16>().prop_map(Op::Percolate),
        1 => (1u32..20).prop_map(Op::SetDepth),
    ];
    prop::collection::vec(op, 1..300)
}

/// I1, I2, T2 and T3 after every step, against four numbers: D, the largest D since the root last owed nothing, units
/// out, requests out.
fn conserves(size: (usize, usize, usize), mut depth: u32, ops: Vec<Op>) -> Result<(), TestCaseError> {
    let topology = Topology::new(size.0, size.1, size.2);
    let tree = TokenTree::for_requests(&topology, depth, 8);
    let mut reach = depth;
    let hctx_of = |number: u16| HctxId(number % topology.hctx_count() as u16);
    let mut out: Vec<(HctxId, DispatchToken)> = Vec::new();
    let mut units_max = 1;
    for op in ops {
        match op {
            Op::Acquire(hctx, units) => {
                let hctx = hctx_of(hctx);
                let on_path: i64 =
                    tree.shape.path(hctx).map(|node| tree.count(node).load(Ordering::Relaxed).max(0)).sum();
                let can = on_path + tree.root_units().min(0) > 0 || (units == 1 && on_path > 0);
                let token = tree.acquire(hctx, units);
                if can {
                    prop_assert!(token.is_some(), "{} free on the path for {}", on_path, units);
                    units_max = units_max.max(units);
                } else if let Some(token) = &token {
                    // All of it lay on the way up: no debt was made.
                    prop_assert!(i64::from(token.units()) <= on_path);
                }
                out.extend(token.map(|token| (hctx, token)));
            }
            Op::Percolate(hctx) => {
                tree.percolate(hctx_of(hctx));
                prop_assert_eq!(tree.percolate(hctx_of(hctx)), 0);
            }
            Op::SetDepth(new) => {
                depth = new;
                tree.set_depth(depth);
                prop_assert_eq!(tree.depth(), depth);
            }
            _ if out.is_empty() => {}
            Op::ReleaseLocal(which) => {
                let (hctx, token) = out.swap_remove(which % out.len());
                tree.release_local(hctx, token);
            }
            Op::ReleaseToward(which, to) => {
                let (hctx, token) = out.swap_remove(which % out.len());
                tree.release_toward(hctx, hctx_of(to), token);
            }
            Op::ReleaseRoot(which) => {
                let (_, token) = out.swap_remove(which % out.len());
                tree.release_root(token);
            }
        }
        let units_out: i64 = out.iter().map(|(_, token)| i64::from(token.units())).sum();
        prop_assert_eq!(tree.total_units() + units_out, i64::from(depth), "I1");
        prop_assert!(out.len() <= reach.max(depth) as usize, "I2 in requests");
        prop_assert!(units_out < i64::from(reach.max(depth) + units_max), "I2 in units");
        prop_assert!(tree.root_units() + i64::from(reach.max(depth) - depth) > -i64::from(units_max), "T2");
        reach = if tree.root_units() >= 0 { depth } else { reach.max(depth) };
        for node in 0..tree.shape.root() {
            prop_assert!(tree.count(node).load(Ordering::Relaxed) >= 0, "T2");
        }
    }
    for (hctx, token) in out {
        tree.release_local(hctx, token);
    }
    (0..topology.hctx_count() as u16).for_each(|hctx| {
        tree.percolate(HctxId(hctx));
    });
    prop_assert_eq!(tree.root_units(), i64::from(depth));
    Ok(())
}

/// A case that a generated test met.
#[test]
fn the_only_token_of_the_only_hctx_is_conserved() {
    conserves((1, 1, 1), 1, vec![Op::Acquire(0, 1)]).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn tokens_are_conserved_and_the_depth_is_kept(
        size in prop::sample::select(vec![(1, 1, 1), (1, 2, 1), (2, 4, 2), (1, 100, 1), (4, 128, 2)]),
        depth in 1u32..20,
        ops in ops(),
    ) {
        conserves(size, depth, ops)?;
    }
}

/// The tree as one would write it without sharing: a count per node, the root last. Each operation says what it would
/// answer.
struct Plain {
    counts: Vec<i64>,
    depth: i64,
}

impl Plain {
    fn root(&mut self) -> &mut i64 {
        self.counts.last_mut().expect("there is a root")
    }

    /// `path`: leaf, inner nodes upwards, root.
    fn acquire(&mut self, path: &[usize], units: i64, spare: i64) -> bool {
        let leaf = path[0];
        if self.counts[leaf] >= units {
            self.counts[leaf] -= units;
            return true;
        }
        let mut hand = core::mem::take(&mut self.counts[leaf]);
        for &node in &path[1..path.len() - 1] {
            if hand < units {
                let taken = self.counts[node].min(units - hand + spare);
                self.counts[node] -= taken;
                hand += taken;
            }
        }
        if hand < units {
            let free = *self.root() + hand;
            if free <= 0 {
                *self.root() = free;
                return false;
            }
            let kept = spare.min((free - units).max(0));
            *self.root() = free - units - kept;
            hand = units + kept;
        }
        self.counts[leaf] = hand - units;
        true
    }

    /// Number of units that `node` got.
    fn release(&mut self, node: usize, units: i64) -> i64 {
        let owed = (-*self.root()).clamp(0, units);
        *self.root() += owed;
        self.counts[node] += units - owed;
        units - owed
    }
}

#[test]
fn each_step_does_to_each_node_what_plain_counters_do() {
    for_seeds(300, |rng| {
        let (sockets, cores, threads) = rng.of(&[(1, 1, 1), (1, 4, 1), (2, 2, 2), (2, 3, 2), (1, 12, 1)]);
        let topology = Topology::new(sockets, cores, threads);
        let depth = 1 + rng.index(12) as u32;
        let tree = TokenTree::for_requests(&topology, depth, 9);
        let root = tree.shape.root();
        let mut plain = Plain { counts: vec![0; root + 1], depth: depth.into() };
        *plain.root() = depth.into();
        let mut out: Vec<(HctxId, DispatchToken)> = Vec::new();
        for _ in 0..200 {
            let hctx = HctxId(rng.index(topology.hctx_count()) as u16);
            let path: Vec<usize> = tree.shape.path(hctx).collect();
            let released = if out.is_empty() { None } else { Some(rng.index(out.len())) };
            match (rng.index(9), released) {
                (0..=3, _) | (_, None) => {
                    let (units, spare) = (rng.of(&[1, 1, 2, 5, 9]), rng.of(&[0, 0, 1, 3, 20]));
                    let token = tree.acquire_batch(hctx, units, spare);
                    let expected = plain.acquire(&path, units.into(), spare.into());
                    assert_eq!(token.as_ref().map(DispatchToken::units), expected.then_some(units));
                    out.extend(token.map(|token| (hctx, token)));
                }
                (4, Some(which)) => {
                    let (from, token) = out.swap_remove(which);
                    let units = plain.release(tree.shape.leaf(from), token.units().into());
                    assert_eq!(i64::from(tree.release_local(from, token)), units);
                }
                (5, Some(which)) => {
                    let (from, token) = out.swap_remove(which);
                    // The lowest node on both paths.
                    let node = tree.shape.path(from).find(|node| path.contains(node)).expect("the root is");
                    let units = plain.release(node, token.units().into());
                    assert_eq!(i64::from(tree.release_toward(from, hctx, token)), units);
                }
                (6, Some(which)) => {
                    let (_, token) = out.swap_remove(which);
                    *plain.root() += i64::from(token.units());
                    tree.release_root(token);
                }
                (7, _) => {
                    let mut moved = 0;
                    for &node in &path[..path.len() - 1] {
                        moved += core::mem::take(&mut plain.counts[node]);
                    }
                    *plain.root() += moved;
                    assert_eq!(tree.percolate(hctx), moved as u64);
                }
                _ => {
                    let depth = 1 + rng.index(12) as u32;
                    *plain.root() += i64::from(depth) - plain.depth;
                    plain.depth = depth.into();
                    tree.set_depth(depth);
                }
            }
            let counts: Vec<i64> = (0..=root).map(|node| tree.count(node).load(Ordering::Relaxed)).collect();
            assert_eq!((&counts, tree.root_units()), (&plain.counts, plain.counts[root]));
            assert_eq!(tree.total_units(), counts.iter().sum::<i64>());
        }
        out.into_iter().for_each(|(_, token)| tree.release_root(token));
    });
}
