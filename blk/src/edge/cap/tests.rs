//! Caps by themselves: how much goes when, on any worker.

use super::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const S_NS: u64 = 1_000_000_000;

fn iops(iops: u64) -> CapLimits {
    CapLimits { iops: Some(iops), bytes_per_s: None }
}

fn bytes(bytes_per_s: u64) -> CapLimits {
    CapLimits { iops: None, bytes_per_s: Some(bytes_per_s) }
}

/// Takers that always have one more, each so late for what it waited for: the times at which requests went, in order.
fn goes(cap: &Cap, late_ns: &[u64], bytes: u32, from_ns: u64, to_ns: u64) -> Vec<u64> {
    let mut next: BinaryHeap<_> = (0..late_ns.len()).map(|taker| Reverse((from_ns, taker))).collect();
    let mut has_claim = vec![false; late_ns.len()];
    let mut gone = Vec::new();
    while let Some(Reverse((now_ns, taker))) = next.pop()
        && now_ns < to_ns
    {
        if std::mem::replace(&mut has_claim[taker], true) {
            gone.push(now_ns);
        }
        let due_ns = cap.take(bytes, now_ns).at_ns;
        let at_ns = if due_ns > now_ns { due_ns + late_ns[taker] } else { now_ns };
        next.push(Reverse((at_ns, taker)));
    }
    gone
}

/// Most and fewest of `gone` in any second, by steps of a tenth, once two seconds are over.
fn per_second(gone: &[u64], from_ns: u64, to_ns: u64) -> (usize, usize) {
    let at = |ns: u64| gone.partition_point(|gone_ns| *gone_ns < ns);
    let starts = (from_ns / (S_NS / 10) + 20..).map(|tenth| tenth * (S_NS / 10)).take_while(|at| at + S_NS <= to_ns);
    let counts: Vec<usize> = starts.map(|start| at(start + S_NS) - at(start)).collect();
    (counts.iter().copied().min().unwrap(), counts.iter().copied().max().unwrap())
}

#[test]
fn a_rate_is_exact_over_every_second_on_any_number_of_workers() {
    // So many nanoseconds late: timers, busy cores, one worker that comes late by nearly the burst.
    let lates: [&[u64]; 3] = [&[0], &[60_000, 900, 1_000_000], &[7_000_000, 1, 50_000, 3_000, 0, 0, 700_000, 20]];
    for rate in [1, 10, 333, 10_000, 1_000_000] {
        for late_ns in lates {
            let (cap, to_ns) = (Cap::new(iops(rate)), 4 * S_NS);
            let (least, most) = per_second(&goes(&cap, late_ns, 4096, 0, to_ns), 0, to_ns);
            // 0.8%, and one request.
            let room = rate as usize * 8 / 1000 + 1;
            let allowed = rate as usize - room..=rate as usize + room;
            let takers = late_ns.len();
            assert!(allowed.contains(&least) && allowed.contains(&most), "{rate}/s, {takers}: {least} to {most}");
        }
    }
}

#[test]
fn bytes_are_as_exact_as_requests() {
    for (per_s, each) in
        [(1 << 20, 4096), (100 << 20, 65_536), (100 << 20, 12_288), (3 << 30, 4096), (128 << 30, 1 << 20)]
    {
        let (cap, to_ns) = (Cap::new(bytes(per_s)), 4 * S_NS);
        let (least, most) = per_second(&goes(&cap, &[0, 70_000, 500], each, 0, to_ns), 0, to_ns);
        let ideal = per_s as f64 / f64::from(each);
        let allowed = ideal * 0.992 - 1.0..=ideal * 1.008 + 1.0;
        assert!(allowed.contains(&(least as f64)) && allowed.contains(&(most as f64)), "{per_s}: {least} to {most}");
    }
}

#[test]
fn rest_earns_a_burst_and_no_more() {
    let cap = Cap::new(iops(10_000));
    for now_ns in [S_NS, 2 * S_NS, 1000 * S_NS] {
        let at_once = (0..).take_while(|_| cap.take(0, now_ns).at_ns <= now_ns).count();
        // 8 ms at 10 000 per second, and one.
        assert_eq!(at_once, 81);
        // The take beyond those was the 82nd.
        cap.give_back(0);
    }
}

#[test]
fn a_request_beyond_the_burst_passes_and_owes() {
    let cap = Cap::new(bytes(1 << 20));
    assert_eq!(cap.take(32 << 20, S_NS), Due { at_ns: S_NS - BURST_NS, why: Capped::Bytes });
    // 32 MiB at 1 MiB/s, from the burst before: the next one waits for them, however small.
    assert_eq!(cap.take(4096, S_NS).at_ns, 33 * S_NS - BURST_NS);
    // A request without payload is nothing to a cap on bytes.
    assert_eq!(cap.take(0, S_NS).at_ns, 0);
}

#[test]
fn both_limits_of_a_cap_must_let_a_request_go_and_the_later_one_is_named() {
    let cap = Cap::new(CapLimits { iops: Some(1000), bytes_per_s: Some(1 << 20) });
    cap.take(1 << 20, S_NS);
    assert_eq!(cap.take(0, S_NS), Due { at_ns: S_NS - BURST_NS + 1_000_000, why: Capped::Iops });
    assert_eq!(cap.take(1, S_NS).why, Capped::Bytes);
    // If both limits give the same time, the one on requests is named.
    let cap = Cap::new(CapLimits { iops: Some(1), bytes_per_s: Some(4096) });
    assert_eq!([cap.take(4096, S_NS).why, cap.take(0, S_NS).why], [Capped::Iops; 2]);
}

#[test]
fn what_is_given_back_is_for_the_next() {
    let cap = Cap::new(CapLimits { iops: Some(10), bytes_per_s: Some(1 << 20) });
    let first = cap.take(1 << 20, S_NS);
    cap.give_back(1 << 20);
    assert_eq!(cap.take(4096, S_NS), first);
    cap.settle(4096, 1 << 20, S_NS);
    assert_eq!(cap.take(1, S_NS).at_ns, 2 * S_NS - BURST_NS, "a whole MiB was used");
    cap.settle(1, 0, S_NS);
    cap.give_back(0);
    cap.give_back(1 << 20);
    cap.give_back(1 << 20);
    assert_eq!(cap.take(1, S_NS).at_ns, S_NS - BURST_NS, "no more than a burst can be got back");
}

#[test]
fn what_is_owed_is_paid_at_the_new_rate() {
    let cap = Cap::new(iops(1));
    (0..11).for_each(|_| _ = cap.take(0, S_NS));
    // Eleven were taken, the first by the burst: ten are owed, and the 12th waits 11 s - 8 ms.
    assert_eq!(cap.take(0, S_NS).at_ns, 12 * S_NS - BURST_NS);
    cap.set(iops(1000), S_NS);
    let owed_ns = (12 * S_NS - BURST_NS) / 1000;
    assert_eq!(cap.take(0, S_NS).at_ns, S_NS + owed_ns);
    cap.set(CapLimits::NONE, S_NS);
    assert_eq!((cap.take(0, S_NS).at_ns, cap.limits()), (0, CapLimits::NONE));
    cap.set(iops(1), 2 * S_NS);
    assert!(cap.take(0, 2 * S_NS).at_ns <= 2 * S_NS, "nothing is owed from before");
    assert_eq!(cap.limits(), iops(1));
}

#[test]
fn the_largest_debt_at_the_least_rate_does_not_wrap() {
    let cap = Cap::new(bytes(*CapLimits::BYTES_PER_S.start()));
    let year_ns = 366 * 86_400 * S_NS;
    for _ in 0..100 {
        cap.take(u32::MAX, 20 * year_ns);
    }
    let owed_ns = cap.take(1, 20 * year_ns).at_ns - 20 * year_ns;
    // A hundred times 1 GiB, which is the most that counts, at 4 KiB/s.
    assert_eq!(owed_ns, 100 * (1 << 18) * S_NS - BURST_NS);
    cap.set(bytes(*CapLimits::BYTES_PER_S.end()), 20 * year_ns);
    assert!(cap.take(1, 20 * year_ns).at_ns > 20 * year_ns);
}

#[test]
fn a_cost_is_rounded_to_the_nearest_sixteenth_of_a_nanosecond_and_has_an_end() {
    assert_eq!([1, 2, 3].map(|amount| cost_units(amount, 32_000_000_000)), [1, 1, 2], "a half, one, one and a half");
    assert_eq!([(1, 3), (2, 3)].map(|(amount, per_s)| cost_units(amount, per_s * UNITS_PER_S)), [0, 1]);
    assert_eq!(cost_units(4096, 4096), UNITS_PER_S);
    assert_eq!(cost_units(u64::MAX, 1), AMOUNT_MAX * UNITS_PER_S, "what no client may ask for");
}

#[test]
fn time_in_which_several_workers_wait_for_a_limit_counts_once() {
    // The moment is kept in 1024 ns.
    const T_NS: u64 = 1024;
    let cap = Cap::new(iops(1));
    let held = |now: u64| cap.held_ns(Capped::Iops, now * T_NS) / T_NS;
    let hold = |begins, now: u64| cap.hold(Capped::Iops, begins, now * T_NS);
    assert_eq!(held(50), 0);
    hold(true, 100);
    hold(true, 150);
    assert_eq!(held(180), 80);
    hold(false, 200);
    assert_eq!(held(220), 120, "the second still waits");
    hold(false, 250);
    assert_eq!([held(250), held(900)], [150; 2], "no request waits");
    hold(true, 1000);
    assert_eq!(held(1010), 160);
    hold(false, 1030);
    assert_eq!((held(2000), cap.held_ns(Capped::Bytes, 2000 * T_NS)), (180, 0));
}

#[test]
fn waits_are_summed_by_limit() {
    let cap = Cap::new(CapLimits::NONE);
    [(Capped::Iops, 5), (Capped::Iops, 7), (Capped::Bytes, 11)]
        .into_iter()
        .for_each(|(why, wait_ns)| cap.waited(why, wait_ns));
    let waits = [Capped::Iops, Capped::Bytes].map(|limit| cap.waits(limit));
    assert_eq!(waits, [(2, 12), (1, 11)].map(|(requests, wait_ns)| CapWaits { requests, wait_ns }));
}

#[test]
fn a_debt_is_for_as_many_requests_at_any_rate_and_for_a_year_at_most() {
    // Ten requests at ten per second from the burst on: the eleventh waits for a second.
    let owes = |old: Option<u64>, new: Option<u64>| {
        let cap = Cap::new(CapLimits { iops: old, bytes_per_s: None });
        (0..10).for_each(|_| _ = cap.take(0, S_NS + BURST_NS));
        cap.set(CapLimits { iops: new, bytes_per_s: None }, S_NS);
        cap.take(0, S_NS).at_ns
    };
    assert_eq!([10, 20, 5].map(|rate| owes(Some(10), Some(rate)) - S_NS), [S_NS, S_NS / 2, 2 * S_NS]);
    // Nothing was owed, or nothing is asked for any more.
    assert_eq!([owes(None, Some(10)), owes(Some(10), None)], [S_NS - BURST_NS, 0]);
    // 8 s of 128 GiB are eight years of 4 KiB.
    let cap = Cap::new(bytes(*CapLimits::BYTES_PER_S.end()));
    (0..1000).for_each(|_| _ = cap.take(1 << 30, S_NS));
    cap.set(bytes(*CapLimits::BYTES_PER_S.start()), S_NS);
    assert_eq!(cap.take(1, S_NS).at_ns, S_NS + 366 * 86_400 * S_NS);
}

#[test]
fn an_export_is_limited_if_one_of_its_caps_is() {
    let is_limited = |limits: [CapLimits; 2]| Caps::new(Cap::new(limits[0]), Cap::new(limits[1])).is_limited();
    let none = CapLimits::NONE;
    assert_eq!([[none, none], [iops(1), none], [none, bytes(4096)]].map(is_limited), [false, true, true]);
    assert!(!Caps::none().is_limited());
}

#[test]
fn a_request_is_paid_for_by_what_it_turned_out_to_be() {
    const MIB: u32 = 1 << 20;
    for (taken, found) in [(0, MIB), (4096, MIB), (MIB, 4096), (MIB, 4095), (MIB, 0), (4096, 4096)] {
        let cap = Cap::new(bytes(MIB.into()));
        cap.take(taken, S_NS);
        cap.settle(taken, found, S_NS);
        let owed_ns = (u64::from(found) * S_NS).div_ceil(MIB.into());
        assert_eq!(cap.take(1, S_NS).at_ns, S_NS - BURST_NS + owed_ns, "{taken} were taken for {found}");
    }
}

#[test]
fn a_change_that_another_one_overtakes_begins_with_what_that_one_left() {
    let cap = Cap::new(iops(1));
    let is_overtaken = std::cell::Cell::new(true);
    cap.requests.change(|paid_units| {
        if is_overtaken.take() {
            cap.take(0, S_NS);
        }
        paid_units + UNITS_PER_S
    });
    assert_eq!(cap.take(0, S_NS).at_ns, 3 * S_NS - BURST_NS, "a second each, from the burst on");
}

#[test]
fn what_threads_take_and_give_back_at_the_same_time_adds_up() {
    let cap = Cap::new(iops(1_000_000));
    cap.take(0, S_NS);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50_000 {
                    cap.take(0, S_NS);
                    cap.take(0, S_NS);
                    cap.give_back(0);
                }
            });
        }
    });
    // A microsecond each, and the first one's.
    assert_eq!(cap.take(0, S_NS).at_ns, S_NS - BURST_NS + 200_001 * 1000);
}
