//! Processes as flows: which process has a slot, and when may another have it?

use mqfq_elevator_agreement::crowd::{Crowd, SLOTS, weight};
use mqfq_testing::random::for_seeds;
use std::collections::HashMap;

/// A span below that of a request of 4 KiB at weight 100.
const SPAN: u64 = 4 << 20;

#[test]
fn each_process_has_one_slot_until_there_are_none() {
    let mut crowd = Crowd::new(2);
    let keys: Vec<u64> = (1..=SLOTS)
        .map(|number| {
            let key = crowd.claim(number * 17, 0).expect("there are slots");
            crowd.count(crowd.slot(key).expect("it has a slot"), number % 2, 1);
            key
        })
        .collect();
    for (number, key) in (1..=SLOTS).zip(&keys) {
        assert_eq!(crowd.find(number * 17), Some(*key));
        assert_eq!(crowd.claim(number * 17, 9), Some(*key), "it has one already");
    }
    let mut slots: Vec<u32> = keys.iter().filter_map(|key| crowd.slot(*key)).collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..SLOTS).collect::<Vec<_>>());
    assert_eq!(crowd.claim(4000, 1 << 60), None, "each slot has a request");
    assert_eq!(crowd.find(4000), None);
}

#[test]
fn a_slot_without_requests_is_given_on_with_another_key() {
    let mut crowd = Crowd::new(1);
    let key = crowd.claim(7, 0).expect("there are slots");
    let slot = crowd.slot(key).expect("it has a slot");
    (8..8 + SLOTS - 1).for_each(|number| {
        let other = crowd.claim(number, 0).expect("there are slots");
        crowd.count(crowd.slot(other).expect("it has a slot"), 0, 1);
    });
    crowd.count(slot, 0, 1);
    assert_eq!(crowd.claim(4000, 0), None);
    crowd.count(slot, 0, -1);
    let next = crowd.claim(4000, 0).expect("one has no request");
    assert_eq!(crowd.slot(next), Some(slot));
    assert_eq!((crowd.slot(key), crowd.find(7)), (None, None), "what the first one kept is of no use");
    // A process that comes back after another one had its slot gets another key.
    let again = crowd.claim(7, 0).expect("4000 has no request");
    assert!(again != key && crowd.slot(again) == Some(slot));
}

#[test]
fn who_is_ahead_of_virtual_time_keeps_its_slot_while_others_are_not() {
    let mut crowd = Crowd::new(1);
    let slots: HashMap<u32, u32> = (1..=SLOTS)
        .map(|number| (number, crowd.claim(number, 0).and_then(|key| crowd.slot(key)).expect("there are slots")))
        .collect();
    // All are ahead, but one.
    slots.iter().filter(|(number, _)| **number != 33).for_each(|(_, slot)| {
        crowd.charge(*slot, SPAN, 0);
    });
    let key = crowd.claim(4000, SPAN / 2).expect("33 asks for nothing");
    assert_eq!(crowd.slot(key), Some(slots[&33]));
    assert_eq!(crowd.finish(slots[&33]), SPAN / 2, "it begins where virtual time is");
    crowd.charge(slots[&33], SPAN, SPAN / 2);
    // The next slot is taken from a process that is ahead; the new one does not pay for it.
    let key = crowd.claim(4001, SPAN / 2).expect("none has a request");
    assert_eq!(crowd.finish(crowd.slot(key).expect("it has a slot")), SPAN / 2);
}

#[test]
fn slots_are_those_of_a_map_whatever_happens() {
    for_seeds(200, |random| {
        let hctxs = random.between(1, 9) as u32;
        let mut crowd = Crowd::new(hctxs);
        // By process: its key, and its requests by queue.
        let mut held: HashMap<u32, (u64, Vec<u32>)> = HashMap::new();
        let mut gvt = random.between(0, u64::MAX - 1);
        for _ in 0..600 {
            let number = random.between(1, 100) as u32;
            match random.below(4) {
                0 | 1 => {
                    let key = crowd.find(number).or_else(|| crowd.claim(number, gvt));
                    let Some(key) = key else {
                        assert_eq!(held.len(), SLOTS as usize, "there was a slot without requests");
                        continue;
                    };
                    let slot = crowd.slot(key).expect("who has a key has a slot");
                    let (had, queues) = held.entry(number).or_insert((key, Vec::new()));
                    assert_eq!(*had, key, "a process with requests keeps its slot");
                    let hctx = random.below(u64::from(hctxs)) as u32;
                    crowd.count(slot, hctx, 1);
                    crowd.charge(slot, random.between(1, SPAN), gvt);
                    queues.push(hctx);
                }
                2 => {
                    if let Some((key, queues)) = held.get_mut(&number) {
                        let slot = crowd.slot(*key).expect("it has requests");
                        crowd.count(slot, queues.pop().expect("it has requests"), -1);
                        if queues.is_empty() {
                            held.remove(&number);
                        }
                    }
                }
                _ => gvt = gvt.wrapping_add(random.below(4 * SPAN)),
            }
        }
        let mut slots: Vec<u32> = held.values().map(|(key, _)| crowd.slot(*key).expect("it has requests")).collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), held.len(), "no slot is two processes'");
    });
}

#[test]
fn weights_follow_ionice() {
    assert_eq!((weight(0, 0), weight(0, 7)), (100, 100), "none");
    assert_eq!((0..8).map(|level| weight(2, level)).collect::<Vec<_>>(), [244, 195, 156, 125, 100, 80, 64, 51]);
    assert_eq!((weight(1, 4), weight(1, 0), weight(3, 0)), (1000, 2440, 10));
}
