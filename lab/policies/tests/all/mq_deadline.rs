//! Known behaviour of `mq-deadline`, the bad included: batches in sector order, reads before writes but not for ever,
//! expiry times, classes and their ageing.

use mqfq_policies::{MQ_DEADLINE, MqDeadlineOptions};
use mqfq_sched::class::PriorityClass;
use mqfq_sched::cost::CostKind;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{Handle, OwnOptions, Policy, PolicyOptions};
use mqfq_sched::topology::HctxId;
use mqfq_testing::Random;
use mqfq_testing::rig::*;

const DEFAULT: MqDeadlineOptions = MqDeadlineOptions::DEFAULT;

fn rig(depth: u32, mq_deadline: MqDeadlineOptions) -> Rig {
    let own = OwnOptions::of(&mq_deadline);
    Rig::new(PolicyOptions { depth, own, ..PolicyOptions::new(MQ_DEADLINE) }, 1, 4)
}

/// Fills a device of depth 1 with a read at block 0 that ends in block 1, so that what is staged next waits.
fn busy(rig: &mut Rig) -> Handle {
    let first = rig.submit(0, read(0, 0));
    rig.run(0);
    assert!(rig.is_dispatched(first));
    first
}

/// Completes what is on the device, one after the other, and says in which order the rest went.
fn order(rig: &mut Rig) -> Vec<u64> {
    let from = rig.log.len();
    while !rig.in_flight.is_empty() {
        rig.complete_oldest();
    }
    rig.blocks_from(from)
}

fn is_read(rig: &Rig, handle: Handle) -> bool {
    rig.io(handle).kind == CostKind::Read
}

#[test]
fn a_batch_goes_in_sector_order_from_where_the_last_one_ended() {
    let mut rig = rig(1, DEFAULT);
    busy(&mut rig);
    for block in [9, 3, 7, 1, 5] {
        rig.submit(0, read(0, block * 4096));
    }
    assert_eq!(order(&mut rig), [1, 3, 5, 7, 9]);
}

#[test]
fn nothing_ahead_begins_a_batch_at_the_oldest() {
    let mut rig = rig(1, DEFAULT);
    let far = rig.submit(0, read(0, 100 * 4096));
    rig.run(0);
    assert!(rig.is_dispatched(far));
    // All lie behind block 101: the next batch begins at the oldest, 6, and block 2 comes after what lies ahead of 6.
    for block in [6, 2, 8] {
        rig.submit(0, read(0, block * 4096));
    }
    assert_eq!(order(&mut rig), [6, 8, 2]);
}

#[test]
fn equal_offsets_go_in_the_order_they_came() {
    let mut rig = rig(1, DEFAULT);
    busy(&mut rig);
    let twins = [3, 3, 3].map(|block| rig.submit(0, read(0, block * 4096)));
    let from = rig.log.len();
    order(&mut rig);
    // The second begins before the place where the first ended, so it is the head of a batch of its own.
    assert_eq!(rig.log[from..], twins);
}

#[test]
fn a_batch_ends_after_fifo_batch_requests() {
    // Reads at blocks 1..=8 and one write: with a batch of 4 and no read batch allowed to pass, the write goes after 4
    // of them; the busy one was the first of the batch.
    let mut rig = rig(1, MqDeadlineOptions { fifo_batch: 4, writes_starved: 0, ..DEFAULT });
    busy(&mut rig);
    for block in 1..=8 {
        rig.submit(0, read(0, block * 4096));
    }
    rig.submit(0, write(0, 500 * 4096));
    assert_eq!(order(&mut rig), [1, 2, 3, 500, 4, 5, 6, 7, 8]);
}

#[test]
fn writes_wait_for_two_batches_of_reads_and_no_longer() {
    // Reads without end, ascending; one write staged from the start.
    for (writes_starved, fifo_batch) in [(2, 16), (1, 4), (3, 1), (0, 16)] {
        let mut rig = rig(1, MqDeadlineOptions { writes_starved, fifo_batch, ..DEFAULT });
        let write = rig.submit(0, write(0, 500 * 4096));
        for block in 0..100 {
            rig.submit(0, read(0, block * 4096));
        }
        rig.run(0);
        order(&mut rig);
        let before = rig.log.iter().position(|&handle| handle == write).unwrap();
        assert_eq!(before, (writes_starved * fifo_batch) as usize, "{writes_starved} batches of {fifo_batch}");
    }
}

#[test]
fn reads_are_preferred_to_writes_two_batches_to_one() {
    // 96 of each, nothing expired: two batches of 16 reads, then one of 16 writes, three times; then the writes left.
    let mut rig = rig(1, DEFAULT);
    for block in 0..96 {
        rig.submit(0, write(0, (1000 + block) * 4096));
        rig.submit(0, read(0, block * 4096));
    }
    rig.run(0);
    order(&mut rig);
    let batches: Vec<bool> = rig.log.chunks(16).map(|batch| is_read(&rig, batch[0])).collect();
    assert!(rig.log.chunks(16).all(|batch| batch.iter().all(|&one| is_read(&rig, one) == is_read(&rig, batch[0]))));
    assert_eq!(batches, [true, true, false, true, true, false, true, true, false, false, false, false]);
}

#[test]
fn a_read_that_has_expired_begins_the_next_batch() {
    let mut rig = rig(1, MqDeadlineOptions { fifo_batch: 2, ..DEFAULT });
    busy(&mut rig);
    // Block 1, behind the head, is passed for as long as something lies ahead and it has not expired: 500 ms.
    rig.submit(0, read(0, 90 * 4096));
    rig.complete_oldest();
    let passed = rig.submit(0, read(0, 4096));
    for block in 91..99 {
        rig.submit(0, read(0, block * 4096));
    }
    rig.now_ns = 499 * MS;
    for _ in 0..3 {
        rig.complete_oldest();
    }
    assert!(!rig.is_dispatched(passed), "passed over while it has time");
    rig.now_ns = 500 * MS;
    rig.complete_oldest();
    rig.complete_oldest();
    assert!(rig.is_dispatched(passed), "the batch of two ended, and it was the oldest and due");
}

#[test]
fn a_write_expires_after_five_seconds_among_the_writes() {
    for (waited_ns, goes_first) in [(5 * SECOND - 1, false), (5 * SECOND, true)] {
        let mut rig = rig(1, MqDeadlineOptions { fifo_batch: 1, ..DEFAULT });
        let head = rig.submit(0, write(0, 100 * 4096));
        rig.run(0);
        let behind = rig.submit(0, write(0, 0));
        let ahead = rig.submit(0, write(0, 200 * 4096));
        rig.now_ns = waited_ns;
        rig.complete(head);
        assert_eq!([rig.is_dispatched(behind), rig.is_dispatched(ahead)], [goes_first, !goes_first]);
    }
}

#[test]
fn a_flush_goes_as_it_comes() {
    let mut rig = rig(1, DEFAULT);
    busy(&mut rig);
    rig.submit(0, read(0, 4096));
    let flushes = [rig.submit(0, flush(0)), rig.submit(0, flush(1))];
    let from = rig.log.len();
    order(&mut rig);
    assert_eq!(rig.log[from..from + 2], flushes, "before the read that came first, and in their order");
}

#[test]
fn discards_stand_among_the_writes() {
    let mut rig = rig(1, DEFAULT);
    busy(&mut rig);
    for io in [write(0, 300 * 4096), discard(0, 200 * 4096), read(0, 100 * 4096), write(0, 400 * 4096)] {
        rig.submit(0, io);
    }
    // The batch of reads, then the oldest write and what lies ahead, and at last the discard behind it.
    assert_eq!(order(&mut rig), [100, 300, 400, 200]);
}

#[test]
fn a_higher_class_goes_first() {
    let mut rig = rig(1, DEFAULT);
    rig.policy.set_class(FlowId(1), PriorityClass::RealTime);
    rig.policy.set_class(FlowId(2), PriorityClass::Idle);
    busy(&mut rig);
    for flow in [2, 0, 1, 2, 0, 1] {
        rig.submit(0, read(flow, 4096));
    }
    let from = rig.log.len();
    order(&mut rig);
    let flows: Vec<u32> = rig.log[from..].iter().map(|&handle| rig.io(handle).flow).collect();
    assert_eq!(flows, [1, 1, 0, 0, 2, 2]);
}

#[test]
fn a_lower_class_waits_also_for_what_is_on_the_device_and_is_told_until_when() {
    let mut rig = rig(4, DEFAULT);
    rig.policy.set_class(FlowId(1), PriorityClass::RealTime);
    let first = rig.submit(0, read(1, 0));
    rig.run(0);
    rig.now_ns = 3 * MS;
    let waits = rig.submit(0, read(0, 4096));
    // Three of four units are free.
    assert_eq!(rig.pick(HctxId(0)), Picked::Later(3 * MS + 10 * SECOND));
    rig.complete(first);
    assert!(rig.is_dispatched(waits), "as soon as the other is done");
}

#[test]
fn of_two_lower_classes_that_wait_the_earlier_time_is_told() {
    for lower in [[0, 2], [2, 0]] {
        let mut rig = rig(4, DEFAULT);
        rig.policy.set_class(FlowId(1), PriorityClass::RealTime);
        rig.policy.set_class(FlowId(2), PriorityClass::Idle);
        rig.submit(0, read(1, 0));
        rig.run(0);
        for (n, flow) in (1..).zip(lower) {
            rig.now_ns = n * MS;
            rig.submit(0, read(flow, 4096));
        }
        assert_eq!(rig.pick(HctxId(0)), Picked::Later(MS + 10 * SECOND), "{lower:?}");
        rig.drain();
    }
}

#[test]
fn after_ten_seconds_a_lower_class_goes_all_the_same() {
    let mut rig = rig(1, DEFAULT);
    rig.policy.set_class(FlowId(1), PriorityClass::RealTime);
    rig.policy.set_class(FlowId(2), PriorityClass::Idle);
    busy(&mut rig);
    let [lowest, low] = [rig.submit(0, write(2, 0)), rig.submit(0, read(0, 4096))];
    // A tenant of the highest class that has always eight reads waiting.
    let keep = |rig: &mut Rig| {
        while rig.staged() < 10 - usize::from(rig.is_dispatched(low)) - usize::from(rig.is_dispatched(lowest)) {
            rig.submit(0, read(1, 0));
        }
    };
    while rig.now_ns < 10 * SECOND - 100 * MS {
        keep(&mut rig);
        rig.now_ns += 100 * MS;
        rig.complete_oldest();
        assert!(rig.now_ns >= 10 * SECOND || !rig.is_dispatched(low) && !rig.is_dispatched(lowest));
    }
    rig.now_ns = 10 * SECOND;
    keep(&mut rig);
    rig.complete_oldest();
    assert!(rig.is_dispatched(low) && !rig.is_dispatched(lowest), "the better of the two that are due");
    keep(&mut rig);
    rig.complete_oldest();
    assert!(rig.is_dispatched(lowest));
    keep(&mut rig);
    rig.complete_oldest();
    assert_eq!(rig.io(*rig.log.last().unwrap()).flow, 1, "and then the highest again");
}

#[test]
fn what_a_stalled_device_holds_of_a_higher_class_does_not_keep_a_lower_one_for_ever() {
    let mut rig = rig(2, DEFAULT);
    rig.policy.set_class(FlowId(1), PriorityClass::RealTime);
    rig.submit(0, read(1, 0));
    rig.run(0);
    let waits = rig.submit(0, read(0, 4096));
    rig.run(0);
    assert!(!rig.is_dispatched(waits));
    // Nothing completes. The worker that was told the time picks then.
    rig.wait();
    assert_eq!((rig.now_ns, rig.is_dispatched(waits)), (10 * SECOND, true));
}

#[test]
fn a_changed_class_holds_for_what_comes_and_loses_nothing() {
    let mut rig = rig(2, DEFAULT);
    rig.submit(0, read(0, 0));
    rig.submit(0, read(0, 4096));
    let [old, new] = [8192, 0].map(|offset| {
        let handle = rig.submit(0, read(0, offset));
        rig.policy.set_class(FlowId(0), PriorityClass::RealTime);
        handle
    });
    rig.run(0);
    // Two are on the device, dispatched as of the new class; of those staged the one of the new class goes first,
    // though it lies behind.
    rig.complete_oldest();
    assert_eq!([rig.is_dispatched(old), rig.is_dispatched(new)], [false, true]);
    rig.policy.set_class(FlowId(0), PriorityClass::Idle);
    rig.drain();
}

#[test]
fn a_tenant_with_more_requests_gets_more() {
    // No tenants, no shares: 64 waiting against 1, all reads at random places. The one gets what its number says.
    let mut rig = rig(4, DEFAULT);
    let mut rng = Random::new(1);
    let mut of_one = 0;
    for _ in 0..6_500 {
        for (flow, waiting) in [(0, 64), (1, 1)] {
            while rig.under_way(flow) < waiting {
                rig.submit(0, read(flow, rng.index(1 << 20) as u64 * 4096));
            }
        }
        rig.run(0);
        let done = rig.complete_oldest();
        of_one += usize::from(rig.io(done).flow == 1);
    }
    assert!((50..200).contains(&of_one), "{of_one} of 6,500, 100 would be its part");
}

#[test]
fn the_depth_bounds_what_is_on_the_device_in_units() {
    let options = PolicyOptions { depth: 8, token_unit_bytes: Some(4096), ..PolicyOptions::new(MQ_DEADLINE) };
    let mut rig = Rig::new(options, 1, 1);
    for block in 0..12 {
        rig.submit(0, Io { length_bytes: 12 << 10, ..read(0, block * 12 * KIB) });
    }
    // Three units each: the third begins with two free.
    rig.run(0);
    assert_eq!(rig.in_flight.len(), 3);
    assert_eq!(rig.policy.free_units(), Some(-1));
    rig.drain();
}

#[test]
fn a_worker_dispatches_what_another_found() {
    let options = PolicyOptions { depth: 1, ..PolicyOptions::new(MQ_DEADLINE) };
    let mut rig = Rig::new(options, 2, 1);
    let here = rig.submit(0, read(0, 0));
    let there = rig.submit(1, read(0, 4096));
    rig.run(0);
    rig.run(1);
    assert!(rig.is_dispatched(here) && !rig.is_dispatched(there));
    assert_eq!(rig.finish(here), HctxId(0));
    assert_eq!(rig.pick(HctxId(0)), Picked::Idle);
    assert!(rig.kicked.contains(&HctxId(1)));
    assert_eq!(rig.pick(HctxId(1)), Picked::Dispatched(there));
    rig.drain();
}
