//! Sequential tests, and agreement with a search by distance.

use proptest::prelude::*;

use super::*;
use crate::topology::CpuPlace;

#[test]
fn the_nearest_is_claimed_first() {
    // 0 1 | 2 3 || 4 5 | 6 7: from 5 the order is 5, its core 4, its socket 6 7, the rest.
    let ready = ReadySet::new(&Topology::new(2, 2, 2));
    (0..8).for_each(|hctx| ready.mark(HctxId(hctx)));
    let claims: Vec<u16> = core::iter::from_fn(|| ready.take_nearest(HctxId(5))).map(|hctx| hctx.0).collect();
    assert_eq!(claims, [5, 4, 6, 7, 0, 1, 2, 3]);
    assert!(!ready.any());
}

#[test]
fn a_mark_can_be_taken_back_once() {
    let ready = ReadySet::new(&Topology::flat(100));
    assert!(!ready.unmark(HctxId(77)));
    ready.mark(HctxId(77));
    ready.mark(HctxId(77));
    assert!(ready.any() && ready.unmark(HctxId(77)));
    assert!(!ready.any() && !ready.unmark(HctxId(77)));
}

#[test]
fn the_shallow_mark_of_smallest_rank_is_called_until_its_worker_answers() {
    // Bits of two words on two sockets.
    let places: Vec<CpuPlace> = (0..160).map(|n| CpuPlace { socket: n / 80, core: n % 80 }).collect();
    let ready = ReadySet::new(&Topology::from_places(&places));
    let all = [3, 70, 90, 155].map(HctxId);
    all.iter().for_each(|hctx| {
        ready.set_shallow(*hctx, *hctx != HctxId(3));
        ready.mark(*hctx);
    });
    // Not the caller itself, and none without a rank.
    let rank = |hctx: HctxId| (hctx != HctxId(155)).then_some(200 - hctx.0);
    assert_eq!(ready.call_first(HctxId(90), rank), Some(HctxId(70)));
    assert!(ready.is_called(HctxId(70)) && !ready.unmark(HctxId(70)), "the mark is claimed");
    assert_eq!(ready.call_first(HctxId(70), rank), Some(HctxId(90)));
    assert_eq!(ready.call_first(HctxId(0), rank), None, "3 is marked and not shallow, and 155 has no rank");
    assert!(all.map(|hctx| ready.is_called(hctx)) == [false, true, true, false]);
    ready.answer(HctxId(70));
    assert!(!ready.is_called(HctxId(70)) && ready.is_called(HctxId(90)));
}

#[test]
fn a_shallow_mark_that_another_has_claimed_is_not_called() {
    let ready = ReadySet::new(&Topology::flat(2));
    ready.set_shallow(HctxId(1), true);
    ready.mark(HctxId(1));
    assert_eq!(ready.take_nearest(HctxId(0)), Some(HctxId(1)));
    assert_eq!(ready.call_first(HctxId(0), |_| Some(0)), None);
    assert!(!ready.is_called(HctxId(1)));
}

#[test]
fn masks_cover_whole_and_partial_words() {
    assert_eq!(mask(0, 64), u64::MAX);
    assert_eq!(mask(63, 64), 1 << 63);
    assert_eq!(mask(2, 5), 0b11100);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Model: a set of numbers, and the smallest distance to one of them (within one distance any order is as near).
    #[test]
    fn it_agrees_with_a_search_by_distance(
        size in prop::sample::select(vec![1usize, 2, 16, 100, 1024]),
        scatter in any::<u64>(),
        ops in prop::collection::vec((any::<u16>(), 0..4), 1..200),
    ) {
        let places: Vec<CpuPlace> = (0..size as u64)
            .map(|i| (i + 1).wrapping_mul(scatter | 1) >> 20)
            .map(|bits| CpuPlace { socket: (bits % 3) as u16, core: (bits / 3 % 150) as u16 })
            .collect();
        let topology = Topology::from_places(&places);
        let ready = ReadySet::new(&topology);
        let mut model = std::collections::BTreeSet::new();
        for (number, kind) in ops {
            let hctx = HctxId(number % size as u16);
            match kind {
                0 | 1 => {
                    ready.mark(hctx);
                    model.insert(hctx);
                }
                2 => prop_assert_eq!(ready.unmark(hctx), model.remove(&hctx)),
                _ => {
                    let nearest = model.iter().map(|&other| topology.distance(hctx, other)).min();
                    let claimed = ready.take_nearest(hctx);
                    prop_assert_eq!(claimed.map(|claimed| topology.distance(hctx, claimed)), nearest);
                    if let Some(claimed) = claimed {
                        prop_assert!(model.remove(&claimed), "{:?} was not marked", claimed);
                    }
                }
            }
            prop_assert_eq!(ready.any(), !model.is_empty());
        }
    }
}
