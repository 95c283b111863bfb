//! Sequential tests: the claims of M1 to M4, and agreement with an array that is scanned.

use proptest::prelude::*;

use super::*;
use crate::topology::CpuPlace;

const SIZES: [usize; 5] = [1, 2, 16, 100, 1024];

fn grains(count: u64) -> VTime {
    VTime::from_raw(count << GRAIN_SHIFT)
}

fn floor(lead: VTime) -> VTime {
    VTime::from_raw(lead.raw() & !(Mindicator::GRAIN.0 - 1))
}

#[test]
fn virtual_time_is_the_smallest_lead() {
    let tree = Mindicator::new(&Topology::new(2, 4, 2), VTime::ZERO);
    tree.publish(HctxId(3), grains(70));
    tree.publish(HctxId(12), grains(55));
    assert_eq!(tree.query(), grains(55));
    tree.publish(HctxId(12), grains(90));
    assert_eq!(tree.query(), grains(70));
    assert_eq!(tree.global_vtime(), grains(70));
}

#[test]
fn with_nobody_present_virtual_time_keeps_its_value() {
    let tree = Mindicator::new(&Topology::flat(2), grains(5));
    assert_eq!(tree.query(), grains(5));
    tree.publish(HctxId(1), grains(9));
    assert_eq!(tree.query(), grains(9));
    tree.depart(HctxId(1));
    tree.depart(HctxId(1));
    assert_eq!(tree.query(), grains(9));
}

#[test]
fn a_lead_below_virtual_time_does_not_move_it_back() {
    let tree = Mindicator::new(&Topology::flat(2), VTime::ZERO);
    tree.publish(HctxId(0), grains(100));
    assert_eq!(tree.query(), grains(100));
    tree.publish(HctxId(1), grains(60));
    assert_eq!(tree.query(), grains(100));
    tree.depart(HctxId(1));
    tree.publish(HctxId(0), grains(101));
    assert_eq!(tree.query(), grains(101));
}

#[test]
fn virtual_time_is_at_most_a_grain_below_the_smallest_lead_and_never_above() {
    let tree = Mindicator::new(&Topology::flat(1), VTime::ZERO);
    for units in [64, 65, 127, 128, 1000] {
        tree.publish(HctxId(0), VTime::from_raw(units));
        assert_eq!(tree.query().raw(), units / 64 * 64);
    }
}

#[test]
fn leads_compare_across_the_wrap_of_virtual_time_and_of_their_own_50_bits() {
    // 2^56 units is where the 50 bits of grains come round.
    for turn in [u64::MAX, 1 << 56, 1 << 63] {
        let start = VTime::from_raw(turn.wrapping_sub(1 << 20));
        let tree = Mindicator::new(&Topology::flat(16), start);
        for (hctx, ahead) in [(3, 5 << 20), (4, 1 << 19), (5, 3 << 20)] {
            tree.publish(HctxId(hctx), start.plus(VSpan(ahead)));
        }
        assert_eq!(tree.query(), floor(start.plus(VSpan(1 << 19))));
        tree.depart(HctxId(4));
        assert_eq!(tree.query(), floor(start.plus(VSpan(3 << 20))));
        tree.depart(HctxId(5));
        assert_eq!(tree.query(), floor(start.plus(VSpan(5 << 20))));
    }
}

#[test]
fn leads_as_far_as_reach_on_both_sides_compare() {
    let start = VTime::from_raw(u64::MAX - 77);
    let tree = Mindicator::new(&Topology::flat(2), start);
    tree.publish(HctxId(0), start.plus(Mindicator::REACH));
    tree.publish(HctxId(1), start.minus(Mindicator::REACH));
    assert_eq!(tree.query(), start, "the late one holds virtual time where it is");
    tree.depart(HctxId(1));
    assert_eq!(tree.query(), floor(start.plus(Mindicator::REACH)));
}

#[test]
#[should_panic(expected = "units from global virtual time")]
fn a_lead_beyond_reach_is_refused() {
    Mindicator::new(&Topology::flat(1), VTime::ZERO)
        .publish(HctxId(0), VTime::ZERO.plus(VSpan(Mindicator::REACH.0 + 1)));
}

#[test]
fn equal_arrivals_stop_at_the_first_covered_node() {
    // 16 hctxs: 2 groups of 8 and the root. hctx 0 covers the first group; hctx 1 arrives with the same lead, so it
    // changes the group's version only, and the root's word stays as it is.
    let tree = Mindicator::new(&Topology::flat(16), VTime::ZERO);
    tree.publish(HctxId(0), grains(40));
    let word = |node: usize| tree.nodes[node].load(Ordering::Relaxed);
    let (group, root) = (word(16), word(tree.shape.root()));
    tree.publish(HctxId(1), grains(40));
    assert_ne!(word(16), group);
    assert_eq!(word(tree.shape.root()), root);
    tree.depart(HctxId(0));
    assert_eq!(word(tree.shape.root()), root, "hctx 1 still holds 40");
    tree.depart(HctxId(1));
    assert!(!Word(word(tree.shape.root())).is_occupied());
}

#[test]
fn a_raise_that_is_not_the_smallest_writes_nothing_but_its_leaf() {
    let tree = Mindicator::new(&Topology::flat(16), VTime::ZERO);
    tree.publish(HctxId(0), grains(40));
    tree.publish(HctxId(1), grains(50));
    let above =
        |tree: &Mindicator| tree.nodes[16..].iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let before = above(&tree);
    tree.publish(HctxId(1), grains(90));
    assert_eq!(above(&tree), before);
}

#[test]
fn a_node_that_was_raised_wrongly_is_repaired_by_the_next_raise_below_it() {
    // A version that comes round could leave this behind: a node above its smallest child.
    let tree = Mindicator::new(&Topology::flat(3), VTime::ZERO);
    for (hctx, lead) in [(0, 40), (1, 50), (2, 60)] {
        tree.publish(HctxId(hctx), grains(lead));
    }
    tree.nodes[tree.shape.root()].store(Word::leaf(grains(60)).0, Ordering::Relaxed);
    tree.publish(HctxId(0), grains(45));
    assert_eq!(tree.query(), grains(45));
}

#[test]
fn one_hctx_writes_the_root_and_nothing_else() {
    let tree = Mindicator::new(&Topology::flat(1), VTime::ZERO);
    for lead in [40, 90, 60] {
        tree.publish(HctxId(0), grains(lead));
        assert!(Word(tree.nodes[tree.shape.root()].load(Ordering::Relaxed)).shows_same(Word::leaf(grains(lead))));
        assert_eq!(tree.nodes[0].load(Ordering::Relaxed), Word::EMPTY.0, "a leaf for nobody to read");
    }
}

#[test]
fn a_raise_keeps_a_node_covered() {
    // 16 hctxs, as above. The group goes from 40 to 50, and a queue that comes with 50 need not go on to the root.
    let tree = Mindicator::new(&Topology::flat(16), VTime::ZERO);
    for (hctx, lead) in [(0, 40), (1, 50), (0, 60)] {
        tree.publish(HctxId(hctx), grains(lead));
    }
    let root = tree.nodes[tree.shape.root()].load(Ordering::Relaxed);
    tree.publish(HctxId(2), grains(50));
    assert_eq!(tree.nodes[tree.shape.root()].load(Ordering::Relaxed), root);
}

#[test]
fn nobody_stops_at_a_node_whose_lead_may_not_be_at_the_root_yet() {
    // hctx 0 was stopped between its group, node 16, and the root. Queues that come meanwhile go on to the root, and do
    // not say in its place that it has been there (M1).
    let tree = Mindicator::new(&Topology::flat(16), VTime::ZERO);
    tree.nodes[0].store(Word::leaf(grains(40)).0, Ordering::Relaxed);
    tree.nodes[16].store(Word::EMPTY.next(Word::leaf(grains(40)), false).0, Ordering::Relaxed);
    for (hctx, lead) in [(1, 50), (2, 45), (8, 90)] {
        tree.publish(HctxId(hctx), grains(lead));
    }
    assert_eq!(tree.query(), grains(45));
}

#[test]
fn a_lead_that_a_raiser_found_below_a_node_is_still_brought_to_the_root() {
    // hctx 1 has written its leaf and not its group; hctx 0 goes from 40 to 60, finds that leaf, and is stopped before
    // the root.
    let tree = Mindicator::new(&Topology::flat(16), VTime::ZERO);
    tree.publish(HctxId(0), grains(40));
    let (sixty, thirty) = (Word::leaf(grains(60)), Word::leaf(grains(30)));
    tree.nodes[1].store(thirty.0, Ordering::Relaxed);
    tree.nodes[0].store(sixty.0, Ordering::Relaxed);
    assert!(tree.raise_node(16, Word::leaf(grains(40)), false).is_some());
    tree.lower(1, thirty);
    assert_eq!(tree.query(), grains(30));
}

/// The mindicator's answers from an array and a scan.
struct Naive {
    leads: Vec<Option<VTime>>,
    global_vtime: VTime,
}

impl Naive {
    fn query(&mut self) -> VTime {
        if let Some(smallest) = self.leads.iter().flatten().copied().reduce(VTime::earlier) {
            self.global_vtime = self.global_vtime.later(floor(smallest));
        }
        self.global_vtime
    }
}

#[derive(Clone, Debug)]
enum Op {
    Publish(usize, i64),
    Depart(usize),
    Query,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        // Mostly ahead of virtual time and close together, so that equal grains and late leads occur.
        4 => (any::<usize>(), -300i64..4000).prop_map(|(hctx, gap)| Op::Publish(hctx, gap)),
        1 => (any::<usize>(), -(1i64 << 54)..1 << 54).prop_map(|(hctx, gap)| Op::Publish(hctx, gap)),
        2 => any::<usize>().prop_map(Op::Depart),
        2 => Just(Op::Query),
    ];
    prop::collection::vec(op, 1..200)
}

fn topologies() -> impl Strategy<Value = Topology> {
    let irregular = prop::collection::vec((0u16..3, 0u16..4), 1..40).prop_map(|places| {
        let places: Vec<CpuPlace> = places.into_iter().map(|(socket, core)| CpuPlace { socket, core }).collect();
        Topology::from_places(&places)
    });
    prop_oneof![irregular, prop::sample::select(SIZES.to_vec()).prop_map(Topology::flat)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn it_agrees_with_an_array_that_is_scanned(
        topology in topologies(),
        ops in ops(),
        start in prop_oneof![any::<u64>(), (u64::MAX - 100_000)..],
    ) {
        let start = VTime::from_raw(start);
        let tree = Mindicator::new(&topology, start);
        let mut naive = Naive { leads: vec![None; topology.hctx_count()], global_vtime: start };
        for op in ops {
            match op {
                Op::Publish(hctx, gap) => {
                    let hctx = hctx % topology.hctx_count();
                    let lead = VTime::from_raw(naive.global_vtime.raw().wrapping_add_signed(gap));
                    let in_reach = lead.since(naive.global_vtime).unsigned_abs() <= Mindicator::REACH.0;
                    if in_reach {
                        tree.publish(HctxId(hctx as u16), lead);
                        naive.leads[hctx] = Some(lead);
                    }
                }
                Op::Depart(hctx) => {
                    let hctx = hctx % topology.hctx_count();
                    tree.depart(HctxId(hctx as u16));
                    naive.leads[hctx] = None;
                }
                Op::Query => prop_assert_eq!(tree.query(), naive.query()),
            }
        }
        prop_assert_eq!(tree.query(), naive.query());
    }
}
