//! Known behaviour of `kyber`, the bad included: tokens per kind of request, depths that follow the latencies, batches,
//! less room for asynchronous requests; and that it knows no tenants.

use mqfq_policies::{KYBER, Kyber, KyberDomain, KyberOptions};
use mqfq_sched::cost::CostKind;
use mqfq_sched::policy::{OwnOptions, PolicyOptions};
use mqfq_sched::topology::HctxId;
use mqfq_testing::Random;
use mqfq_testing::rig::*;

const DEFAULT: KyberOptions = KyberOptions::DEFAULT;

/// A device that takes more than all domains together.
const DEEP: u32 = 1024;

fn rig(depth: u32, kyber: KyberOptions, hctxs: usize) -> Rig {
    let own = OwnOptions::of(&kyber);
    Rig::new(PolicyOptions { depth, own, ..PolicyOptions::new(KYBER) }, hctxs, 4)
}

fn kyber(rig: &Rig) -> &Kyber {
    rig.policy.downcast_ref().expect("the rig is of kyber")
}

fn depth(rig: &Rig, domain: KyberDomain) -> u32 {
    kyber(rig).domain_depth(domain)
}

fn on_device(rig: &Rig, kind: CostKind) -> usize {
    rig.in_flight_of(|_, io| io.kind == kind)
}

fn submit_many(rig: &mut Rig, hctx: u16, count: usize, io: Io) {
    (0..count).for_each(|_| _ = rig.submit(hctx, io));
}

/// `count` requests of a kind that wait `queued_ns` and take `device_ns`, one after the other.
fn serve(rig: &mut Rig, count: usize, io: Io, queued_ns: u64, device_ns: u64) {
    for _ in 0..count {
        let handle = rig.submit(0, io);
        rig.now_ns += queued_ns;
        rig.run(0);
        rig.now_ns += device_ns;
        rig.complete(handle);
    }
}

/// So many samples of reads and writes at once, by completions that are close together, and then a check.
fn measure(rig: &mut Rig, reads: (u64, u64), writes: (u64, u64)) {
    let times = [(read(0, 0), reads), (write_sync(0, 0), writes)];
    for (io, (queued_ns, device_ns)) in times {
        for _ in 0..50 {
            let began_ns = rig.now_ns;
            let batch: Vec<_> = (0..10).map(|_| rig.submit(0, io)).collect();
            rig.now_ns = began_ns + queued_ns;
            rig.run(0);
            rig.now_ns += device_ns;
            batch.into_iter().for_each(|handle| rig.complete(handle));
            // The next ten begin when these did: the clock of a test goes where it is put, and no check comes before
            // its time.
            rig.now_ns = began_ns;
        }
    }
    rig.now_ns += 2 * SECOND;
    serve(rig, 1, flush(0), 0, 0);
}

#[test]
fn each_domain_has_its_tokens() {
    let mut rig = rig(DEEP, DEFAULT, 1);
    for io in [read(0, 0), write(0, 0), discard(0, 0), flush(0)] {
        submit_many(&mut rig, 0, 256, io);
    }
    rig.run(0);
    let kinds = [CostKind::Read, CostKind::Write, CostKind::Discard, CostKind::Flush];
    assert_eq!(kinds.map(|kind| on_device(&rig, kind)), [256, 128, 64, 16]);
    assert_eq!(rig.policy.free_units(), Some(i64::from(DEEP) - 464));
    rig.drain();
}

#[test]
fn no_domain_is_deeper_than_it_may_be_over_several_queues() {
    let kyber_options = KyberOptions { read_depth: 10, write_depth: 5, ..DEFAULT };
    let mut rig = rig(DEEP, kyber_options, 3);
    let mut rng = Random::new(3);
    let mut most = (0, 0);
    for _ in 0..5_000 {
        let hctx = rng.index(3) as u16;
        let io = rng.of(&[read(0, 0), write(0, 0)]);
        if rig.staged_at(HctxId(hctx)) < 50 {
            rig.submit(hctx, io);
        }
        rig.run(hctx);
        rig.run_kicked();
        let (reads, writes) = (on_device(&rig, CostKind::Read), on_device(&rig, CostKind::Write));
        most = (most.0.max(reads), most.1.max(writes));
        if rng.index(2) == 0 && !rig.in_flight.is_empty() {
            let done = rng.of(&rig.in_flight);
            rig.complete(done);
        }
    }
    assert_eq!(most, (10, 5), "as many as there may be, and never more");
    rig.drain();
}

#[test]
fn the_device_bounds_all_domains_together() {
    let mut rig = rig(100, DEFAULT, 2);
    for hctx in [0, 1] {
        submit_many(&mut rig, hctx, 200, read(0, 0));
        submit_many(&mut rig, hctx, 200, write_sync(0, 0));
    }
    rig.run_all();
    assert_eq!((rig.in_flight.len(), rig.policy.free_units()), (100, Some(0)));
    rig.drain();
}

#[test]
fn a_worker_goes_round_its_domains_in_batches_of_16_8_1_and_1() {
    let mut rig = rig(DEEP, DEFAULT, 1);
    for io in [flush(0), discard(0, 0), write(0, 0), read(0, 0)] {
        submit_many(&mut rig, 0, 40, io);
    }
    rig.run(0);
    let kinds: Vec<CostKind> = rig.log.iter().map(|&handle| rig.io(handle).kind).collect();
    let turn = [(CostKind::Read, 16), (CostKind::Write, 8), (CostKind::Discard, 1), (CostKind::Flush, 1)];
    let turn: Vec<CostKind> = turn.iter().flat_map(|&(kind, count)| vec![kind; count]).collect();
    assert_eq!(kinds[..26], turn);
    assert_eq!(kinds[26..52], turn);
}

#[test]
fn a_domain_alone_is_not_held_up_by_its_batch() {
    let mut rig = rig(DEEP, DEFAULT, 1);
    submit_many(&mut rig, 0, 5, discard(0, 0));
    rig.run(0);
    assert_eq!(rig.in_flight.len(), 5);
}

#[test]
fn what_nobody_waits_for_has_three_quarters_of_the_device() {
    let mut rig = rig(64, DEFAULT, 2);
    for hctx in [0, 1] {
        submit_many(&mut rig, hctx, 100, write(0, 0));
        submit_many(&mut rig, hctx, 50, discard(0, 0));
    }
    rig.run_all();
    assert_eq!(rig.in_flight.len(), 48);
    // A synchronous write goes at once, past asynchronous ones that came before it.
    let waited_for = rig.submit(0, write_sync(0, 0));
    rig.run(0);
    assert!(rig.is_dispatched(waited_for));
    rig.drain();
}

#[test]
fn writes_lose_depth_when_reads_miss_their_target_on_the_device() {
    // Reads take 3 ms on the device, target 2; writes 2 of 10 ms, within the first quarter. Each evaluation leaves a
    // quarter.
    let mut rig = rig(DEEP, DEFAULT, 1);
    for expected in [32, 8, 2, 1, 1] {
        measure(&mut rig, (0, 3 * MS), (0, 2 * MS));
        assert_eq!((depth(&rig, KyberDomain::Write), depth(&rig, KyberDomain::Read)), (expected, 256));
    }
    submit_many(&mut rig, 0, 10, write(0, 0));
    rig.run(0);
    assert_eq!(on_device(&rig, CostKind::Write), 1);
    rig.drain();
}

#[test]
fn each_quarter_of_its_target_that_a_domain_needs_is_a_quarter_of_its_depth() {
    // Reads congest the device; writes end in the first, second, third, fourth quarter of 10 ms: 128 * (b + 1) / 4.
    for (write_ms, expected) in [(2, 32), (5, 64), (7, 96), (10, 128)] {
        let mut rig = rig(DEEP, DEFAULT, 1);
        measure(&mut rig, (0, 3 * MS), (write_ms * MS - MS, MS));
        assert_eq!(depth(&rig, KyberDomain::Write), expected, "writes of {write_ms} ms");
    }
}

#[test]
fn writes_get_their_depth_back_once_reads_are_fast_and_writes_wait_too_long() {
    let mut rig = rig(DEEP, DEFAULT, 1);
    (0..3).for_each(|_| measure(&mut rig, (0, 3 * MS), (0, 2 * MS)));
    assert_eq!(depth(&rig, KyberDomain::Write), 2);
    // Reads are fast again. As long as writes are within their target, nothing gives them more.
    measure(&mut rig, (0, MS), (5 * MS, 2 * MS));
    assert_eq!(depth(&rig, KyberDomain::Write), 2);
    // Now they wait for tokens: 25 ms, and are over their target: twice as deep each time, up to what they had.
    for expected in [4, 8, 16, 32, 64, 128, 128] {
        measure(&mut rig, (0, MS), (25 * MS, 2 * MS));
        assert_eq!(depth(&rig, KyberDomain::Write), expected);
    }
}

#[test]
fn a_raised_depth_wakes_those_who_wait_for_it() {
    let mut rig = rig(DEEP, DEFAULT, 2);
    (0..4).for_each(|_| measure(&mut rig, (0, 3 * MS), (0, 2 * MS)));
    assert_eq!(depth(&rig, KyberDomain::Write), 1);
    submit_many(&mut rig, 1, 8, write_sync(0, 0));
    rig.run(1);
    assert_eq!(on_device(&rig, CostKind::Write), 1);
    // Worker 1 sleeps. The check is worker 0's.
    rig.now_ns += 30 * MS;
    let late = rig.log.last().copied().unwrap();
    rig.complete(late);
    rig.now_ns += 2 * SECOND;
    serve(&mut rig, 1, read(0, 0), 0, MS);
    rig.now_ns += 2 * SECOND;
    serve(&mut rig, 1, read(0, 0), 0, MS);
    assert_eq!(depth(&rig, KyberDomain::Write), 2);
    rig.run_kicked();
    assert_eq!(on_device(&rig, CostKind::Write), 2);
    rig.drain();
}

#[test]
fn the_latencies_are_looked_at_ten_times_a_second_at_most() {
    let mut rig = rig(DEEP, DEFAULT, 1);
    // The first completion looks, and finds nothing. What reads and writes take within the next 100 ms counts when
    // those are over.
    serve(&mut rig, 1, flush(0), 0, 0);
    for (io, device_ns) in [(read(0, 0), 3 * MS), (write_sync(0, 0), 2 * MS)] {
        for _ in 0..50 {
            let batch: Vec<_> = (0..10).map(|_| rig.submit(0, io)).collect();
            rig.now_ns = 10 * MS;
            rig.run(0);
            rig.now_ns += device_ns;
            batch.into_iter().for_each(|handle| rig.complete(handle));
            rig.now_ns = 10 * MS;
        }
    }
    rig.now_ns = 100 * MS - 1;
    serve(&mut rig, 1, flush(0), 0, 0);
    assert_eq!(depth(&rig, KyberDomain::Write), 128);
    serve(&mut rig, 1, flush(0), 0, 1);
    assert_eq!(depth(&rig, KyberDomain::Write), 32);
}

#[test]
fn a_queue_that_waits_is_served_although_another_has_work_without_end() {
    // One write token. Queue 0 always has the next write ready; queue 1 wants one.
    let mut rig = rig(DEEP, KyberOptions { write_depth: 1, ..DEFAULT }, 2);
    submit_many(&mut rig, 0, 50, write(0, 0));
    rig.run(0);
    let wanted = rig.submit(1, write(1, 0));
    rig.run(1);
    let mut completions = 0;
    while !rig.is_dispatched(wanted) {
        rig.complete_oldest();
        completions += 1;
    }
    assert_eq!(completions, 1, "the next token is its");
    rig.drain();
}

#[test]
fn a_worker_keeps_its_even_part_while_another_waits_and_no_more() {
    // 8 read tokens. Queue 0 has them all; queue 1 comes, and gets what queue 0 has beyond 4. From then on each keeps
    // its own.
    let mut rig = rig(DEEP, KyberOptions { read_depth: 8, ..DEFAULT }, 2);
    submit_many(&mut rig, 0, 60, read(0, 0));
    rig.run(0);
    submit_many(&mut rig, 1, 60, read(1, 0));
    rig.run(1);
    let parts = |rig: &Rig| [0, 1].map(|hctx| rig.in_flight_of(|of, _| of == HctxId(hctx)));
    assert_eq!(parts(&rig), [8, 0]);
    let complete_of = |rig: &mut Rig, hctx: u16| {
        let handle = rig.in_flight.iter().copied().find(|&handle| rig.hctx(handle) == HctxId(hctx));
        rig.complete(handle.expect("it has some on the device"));
    };
    // Queue 0 waits for more as well, and each second token is its turn.
    for part in [[7, 1], [7, 1], [6, 2], [6, 2], [5, 3], [5, 3], [4, 4]] {
        complete_of(&mut rig, 0);
        assert_eq!(parts(&rig), part);
    }
    for hctx in [0, 1, 1, 0, 0, 0, 1, 1, 1] {
        complete_of(&mut rig, hctx);
        assert_eq!(parts(&rig), [4, 4]);
    }
    rig.drain();
}

#[test]
fn of_eight_queues_that_wait_each_is_served_in_turn() {
    let mut rig = rig(DEEP, KyberOptions { read_depth: 3, ..DEFAULT }, 8);
    for hctx in 0..8 {
        submit_many(&mut rig, hctx, 100, read(0, 0));
    }
    rig.run_all();
    let from = rig.log.len();
    for _ in 0..240 {
        rig.complete_oldest();
    }
    let mut served = [0; 8];
    rig.log[from..].iter().for_each(|&handle| served[rig.hctx(handle).index()] += 1);
    assert_eq!(served.iter().sum::<i32>(), 240);
    assert!(served.iter().all(|&count| (27..=33).contains(&count)), "30 each: {served:?}");
}

#[test]
fn a_tenant_with_more_requests_takes_all() {
    // It knows no tenants: one with 510 reads always waiting, one with a single one. First in, first out, so the one
    // waits for all.
    let mut rig = rig(DEEP, DEFAULT, 1);
    let mut of_one = 0;
    submit_many(&mut rig, 0, 510, read(0, 0));
    for _ in 0..5_110 {
        while rig.under_way(0) < 510 {
            rig.submit(0, read(0, 0));
        }
        if rig.under_way(1) == 0 {
            rig.submit(0, read(1, 0));
        }
        rig.run(0);
        let done = rig.complete_oldest();
        of_one += u32::from(rig.io(done).flow == 1);
    }
    assert!((8..=11).contains(&of_one), "one in 511 of 5,110: {of_one}");
}

#[test]
fn an_idle_worker_keeps_no_token() {
    let mut rig = rig(4, KyberOptions { read_depth: 2, ..DEFAULT }, 2);
    submit_many(&mut rig, 0, 2, read(0, 0));
    rig.run(0);
    submit_many(&mut rig, 1, 2, read(0, 0));
    rig.run(1);
    assert_eq!(on_device(&rig, CostKind::Read), 2);
    rig.drain();
    assert_eq!(kyber(&rig).domain_out(KyberDomain::Read), 0);
}

#[test]
fn a_worker_whose_device_queue_is_full_gives_its_tokens_to_others() {
    let mut rig = rig(2, DEFAULT, 2).device_depth(1);
    submit_many(&mut rig, 0, 3, read(0, 0));
    submit_many(&mut rig, 1, 3, read(0, 0));
    rig.run(0);
    rig.run(1);
    rig.run_kicked();
    assert_eq!(rig.in_flight_of(|hctx, _| hctx == HctxId(0)), 1);
    assert_eq!(rig.in_flight_of(|hctx, _| hctx == HctxId(1)), 1);
    rig.drain();
}
