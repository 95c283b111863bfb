//! Sequential tests, and agreement with a list of places.

use proptest::prelude::*;

use super::*;

/// T = 8 KiB, so b = 1 MiB units = 1 KiB-equivalent at the default weight.
const WINDOW: VSpan = VSpan::from_bytes(8192);
const SLOT: u64 = 1 << 20;

fn woken(wheel: &ThrottleWheel, gvt: VTime) -> Vec<u16> {
    let mut woken = Vec::new();
    wheel.turn(gvt, |hctx| woken.push(hctx.0));
    woken.sort();
    woken
}

fn throttle(wheel: &ThrottleWheel, hctx: u16, lead: VTime, gvt: VTime) -> Option<WheelSlot> {
    wheel.throttle(HctxId(hctx), lead, || gvt)
}

#[test]
fn a_queue_is_woken_when_virtual_time_is_within_the_window_of_its_lead() {
    let wheel = ThrottleWheel::new(2, WINDOW, VTime::ZERO);
    assert_eq!(wheel.slot_span(), VSpan(SLOT));
    // Due at 2.5 slots, so in slot 3.
    let lead = VTime::from_raw(WINDOW.0 + 5 * SLOT / 2);
    let slot = throttle(&wheel, 1, lead, VTime::ZERO).unwrap();
    assert_eq!(slot.0.raw(), 3 * SLOT);
    assert_eq!(woken(&wheel, VTime::from_raw(3 * SLOT - 1)), [0u16; 0]);
    assert_eq!(woken(&wheel, VTime::from_raw(3 * SLOT)), [1]);
    assert_eq!(woken(&wheel, VTime::from_raw(100 * SLOT)), [0u16; 0]);
}

#[test]
fn a_queue_exactly_a_window_ahead_need_not_wait() {
    let wheel = ThrottleWheel::new(1, WINDOW, VTime::ZERO);
    assert!(throttle(&wheel, 0, VTime::from_raw(WINDOW.0), VTime::ZERO).is_none());
    assert!(throttle(&wheel, 0, VTime::from_raw(WINDOW.0 + 1), VTime::ZERO).is_some());
}

#[test]
fn a_lead_beyond_the_wheel_waits_in_the_last_bucket_and_looks_again() {
    let wheel = ThrottleWheel::new(1, WINDOW, VTime::ZERO);
    let lead = VTime::from_raw(WINDOW.0 + 100 * SLOT);
    // 64 buckets: 63 slots from here, then the remaining 37.
    assert_eq!(throttle(&wheel, 0, lead, VTime::ZERO).unwrap().0.raw(), 63 * SLOT);
    let there = VTime::from_raw(63 * SLOT);
    assert_eq!(woken(&wheel, there), [0]);
    assert_eq!(throttle(&wheel, 0, lead, there).unwrap().0.raw(), 100 * SLOT);
    assert_eq!(woken(&wheel, VTime::from_raw(100 * SLOT)), [0]);
}

#[test]
fn a_jump_over_the_whole_wheel_wakes_everybody_once() {
    let wheel = ThrottleWheel::new(1024, WINDOW, VTime::ZERO);
    for hctx in 0..1024 {
        throttle(&wheel, hctx, VTime::from_raw(WINDOW.0 + 1 + u64::from(hctx) * SLOT / 20), VTime::ZERO).unwrap();
    }
    assert_eq!(woken(&wheel, VTime::from_raw(1000 * SLOT)), (0..1024).collect::<Vec<u16>>());
}

#[test]
fn a_withdrawn_queue_is_not_woken() {
    let wheel = ThrottleWheel::new(3, WINDOW, VTime::ZERO);
    let lead = VTime::from_raw(WINDOW.0 + SLOT);
    let slots = [0, 1, 2].map(|hctx| throttle(&wheel, hctx, lead, VTime::ZERO).unwrap());
    assert!(wheel.withdraw(HctxId(1), slots[1]));
    assert_eq!(woken(&wheel, VTime::from_raw(SLOT)), [0, 2]);
    assert!(!wheel.withdraw(HctxId(0), slots[0]), "the turner took it");
}

#[test]
fn a_place_that_virtual_time_passed_meanwhile_is_not_kept() {
    // The second reading of virtual time, after the bit is set, is already in the slot.
    let wheel = ThrottleWheel::new(1, WINDOW, VTime::ZERO);
    let mut readings = [VTime::ZERO, VTime::from_raw(2 * SLOT)].into_iter();
    assert!(wheel.throttle(HctxId(0), VTime::from_raw(WINDOW.0 + SLOT), || readings.next().unwrap()).is_none());
    assert_eq!(woken(&wheel, VTime::from_raw(2 * SLOT)), [0u16; 0], "its bit is gone");
}

#[test]
fn the_smallest_lead_is_always_woken_by_the_virtual_time_that_it_allows() {
    // I5, for windows from 0 to large: virtual time stands at the lead rounded down to a grain.
    for window in [0, 1, 62, 63, 64, 127, 1000, 1023, 1024, 8191, 8192, 1 << 30, (1 << 40) + 12345] {
        for offset in [0, 1, 63, 64, 100, 1023, 4097] {
            let start = VTime::from_raw(u64::MAX - 50_000);
            let wheel = ThrottleWheel::new(1, VSpan(window), start);
            let lead = start.plus(VSpan(2 * window + 1000 + offset));
            let floor = VTime::from_raw(lead.raw() & !(Mindicator::GRAIN.0 - 1));
            assert!(wheel.is_due(lead, floor));
            throttle(&wheel, 0, lead, start).expect("it is more than the window ahead of the start");
            assert_eq!(woken(&wheel, floor), [0], "window {window}, offset {offset}");
        }
    }
}

#[test]
fn slots_are_an_eighth_of_the_window_or_a_quantum_or_half_of_the_smallest_window() {
    let of = |wheel: ThrottleWheel| wheel.slot_span().0;
    for (window, slot) in [(0, 8), (63, 8), (64, 8), (127, 16), (200, 16), (511, 64), (8191, 1024), (8192, 1024)] {
        assert_eq!(of(ThrottleWheel::new(1, VSpan(window), VTime::ZERO)), slot, "window {window}");
    }
    for (quantum, slot) in [(0, 1024), (64, 1024), (128, 1024), (1024, 1024), (2048, 2048), (4096, 4096)] {
        let wheel = ThrottleWheel::with_quantum(1, VSpan(8192), VSpan(quantum), VTime::ZERO);
        assert_eq!(of(wheel), slot, "quantum {quantum}");
    }
    for (least, slot) in [(128, 64), (4096, 2048), (5000, 2048)] {
        assert_eq!(of(ThrottleWheel::for_windows(1, VSpan(least), VSpan(8192), VTime::ZERO)), slot, "least {least}");
    }
}

#[test]
fn a_window_below_a_grain_counts_as_all_but_a_unit_of_one() {
    for (window, counts) in [(0, 63), (62, 63), (63, 63), (64, 64), (65, 65)] {
        let wheel = ThrottleWheel::new(1, VSpan(window), VTime::ZERO);
        let due = |lead| wheel.is_due(VTime::from_raw(lead), VTime::ZERO);
        assert!(due(counts) && !due(counts + 1), "window {window}");
    }
}

#[test]
fn a_window_that_is_set_empties_every_bucket_and_counts_from_then_on() {
    // W4. Slots of 4 KiB; leads from 9 KiB to 260 KiB ahead, one queue in each bucket.
    let wheel = ThrottleWheel::for_windows(63, WINDOW, WINDOW, VTime::ZERO);
    let lead = |hctx: u16| VTime::ZERO.plus(VSpan::from_bytes(9 << 10)).plus(VSpan(u64::from(hctx) * 4 * SLOT));
    for hctx in 0..63 {
        assert!(throttle(&wheel, hctx, lead(hctx), VTime::ZERO).is_some());
    }
    let window = VSpan::from_bytes(64 << 10);
    let mut again = Vec::new();
    wheel.set_window(window, |hctx| again.push(hctx.0));
    again.sort();
    assert_eq!((again, wheel.window()), ((0..63).collect::<Vec<u16>>(), window));
    // Queues that are within it now need not wait.
    let waits: Vec<u16> = (0..63).filter(|&hctx| throttle(&wheel, hctx, lead(hctx), VTime::ZERO).is_some()).collect();
    assert_eq!(waits, (14..63).collect::<Vec<u16>>());
}

#[derive(Clone, Debug)]
enum Op {
    Throttle(u16, u64),
    Withdraw(u16),
    Advance(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (any::<u16>(), 0..100 * SLOT).prop_map(|(hctx, gap)| Op::Throttle(hctx, gap)),
        1 => any::<u16>().prop_map(Op::Withdraw),
        2 => prop_oneof![0..SLOT, 0..10 * SLOT, 0..200 * SLOT].prop_map(Op::Advance),
    ];
    prop::collection::vec(op, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Model: a list of (hctx, virtual time from which it is woken). Starts close before the wrap.
    #[test]
    fn it_agrees_with_a_list_of_places(
        count in prop::sample::select(vec![1u16, 2, 16, 100, 1024]),
        start in (u64::MAX - 200 * SLOT)..,
        ops in ops(),
    ) {
        let start = VTime::from_raw(start);
        let wheel = ThrottleWheel::new(count.into(), WINDOW, start);
        let mut gvt = start;
        let mut list: Vec<(u16, WheelSlot)> = Vec::new();
        for op in ops {
            match op {
                Op::Throttle(hctx, gap) => {
                    let hctx = hctx % count;
                    if list.iter().any(|&(waiting, _)| waiting == hctx) {
                        continue;
                    }
                    let lead = gvt.plus(VSpan(gap));
                    let slot = throttle(&wheel, hctx, lead, gvt);
                    prop_assert_eq!(slot.is_none(), gap <= WINDOW.0);
                    if let Some(slot) = slot {
                        let late = slot.0.since(lead.minus(WINDOW));
                        prop_assert!(late < SLOT as i64, "at most a slot late");
                        prop_assert!(late >= 0 || gap > WINDOW.0 + 62 * SLOT, "early only in the last bucket");
                        list.push((hctx, slot));
                    }
                }
                Op::Withdraw(hctx) => {
                    if let Some(at) = list.iter().position(|&(waiting, _)| waiting == hctx % count) {
                        let (hctx, slot) = list.swap_remove(at);
                        prop_assert!(wheel.withdraw(HctxId(hctx), slot));
                    }
                }
                Op::Advance(units) => {
                    gvt = gvt.plus(VSpan(units));
                    let mut expected: Vec<u16> =
                        list.extract_if(.., |(_, slot)| !gvt.is_before(slot.0)).map(|(hctx, _)| hctx).collect();
                    expected.sort();
                    prop_assert_eq!(woken(&wheel, gvt), expected);
                }
            }
        }
    }
}
