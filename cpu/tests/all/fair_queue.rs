//! P-MQFQ's section 2.4 on SFQ(D), Min-SFQ(D) and FSFQ(D), checked on histories by hand.

use mqfq_cpu::by_hand::ByHand;
use mqfq_cpu::fair_queue::{FairQueue, FairQueueKind};
use mqfq_cpu::scheduler::{CoreId, Machine, Tasks, ThreadId};

const QUANTUM: u64 = 100;

/// Programs of (weight, threads), at time 0.
fn machine(kind: FairQueueKind, cores: usize, programs: &[(u32, usize)]) -> (ByHand<FairQueue>, Vec<Vec<ThreadId>>) {
    let mut tasks = Tasks::default();
    let mut threads = Vec::new();
    for (weight, count) in programs {
        let program = tasks.add_program(*weight);
        threads.push((0..*count).map(|_| tasks.add_thread(program, None)).collect());
    }
    let machine = Machine::new(cores, 1).unwrap();
    (ByHand::new(FairQueue::new(&machine, &tasks, kind, QUANTUM).unwrap(), &machine, &tasks), threads)
}

fn ran(by_hand: &ByHand<FairQueue>, threads: &[ThreadId]) -> u64 {
    threads.iter().map(|thread| by_hand.ran_ns(*thread)).sum()
}

fn v(by_hand: &ByHand<FairQueue>) -> u64 {
    by_hand.scheduler.virtual_time().whole_ns()
}

/// Four cores, a fast program of four hogs and a slow one of which a single thread computes for 100 quanta. Then three
/// more of it wake. Returns virtual time before that, and what the fast and the slow one get in the 50 quanta after it.
fn a_burst_of_the_slow_program(kind: FairQueueKind) -> (u64, u64, u64) {
    let (mut by_hand, threads) = machine(kind, 4, &[(1024, 4), (1024, 4)]);
    by_hand.wake(threads[1][0]);
    threads[0].iter().for_each(|thread| by_hand.wake(*thread));
    by_hand.run_to(100 * QUANTUM - 1);
    assert_eq!((ran(&by_hand, &threads[0]), ran(&by_hand, &threads[1])), (3 * 9999, 9999));
    let (before, v) = (9999, v(&by_hand));
    threads[1][1..].iter().for_each(|thread| by_hand.wake(*thread));
    by_hand.run_to(150 * QUANTUM - 1);
    (v, ran(&by_hand, &threads[0]) - 3 * before, ran(&by_hand, &threads[1]) - before)
}

#[test]
fn min_sfq_advances_with_the_slow_flow_whose_burst_then_starves_the_fast_one() {
    let (v, fast, slow) = a_burst_of_the_slow_program(FairQueueKind::MinSfqD);
    assert_eq!(v, 99 * QUANTUM, "the start tag of the slow one, which used 100 quanta; the fast one used 300");
    // The quanta that had begun end; then the fast one gets nothing while the slow one makes up for 200 quanta, 50 of
    // time.
    assert_eq!((fast, slow), (3, 4 * 50 * QUANTUM - 3));
}

#[test]
fn sfq_uses_all_cores_and_neither_penalizes_the_fast_flow_nor_makes_up_for_the_slow_one() {
    let (v, fast, slow) = a_burst_of_the_slow_program(FairQueueKind::SfqD);
    // The last three of the fast program's 300 quanta began at 297, 298 and 299.
    assert_eq!(v, 299 * QUANTUM);
    assert!(fast.abs_diff(slow) <= 4 * QUANTUM, "{fast} and {slow}: half each from now on");
}

#[test]
fn fsfq_does_not_make_up_for_the_slow_flow_either_but_lets_it_win_ties() {
    let (_, fast, slow) = a_burst_of_the_slow_program(FairQueueKind::FsfqD);
    assert!(fast.abs_diff(slow) <= 4 * QUANTUM, "{fast} and {slow}: start tags decide");
    // Two cores. The first is a very heavy program's, whose tags hardly move: Min-SFQ(D)'s virtual time stays near 0.
    // On the other a hog advances SFQ(D)'s. A program that used a quantum before wakes, then one that used nothing:
    // both are aligned to the same start tag.
    for (kind, first) in [(FairQueueKind::SfqD, 2), (FairQueueKind::FsfqD, 3)] {
        let (mut by_hand, threads) = machine(kind, 2, &[(1 << 20, 1), (1024, 1), (1024, 1), (1024, 1)]);
        by_hand.wake(threads[0][0]);
        by_hand.wake(threads[2][0]);
        by_hand.run_to(50);
        by_hand.block(threads[2][0]);
        by_hand.wake(threads[1][0]);
        by_hand.run_to(660);
        let hog = by_hand.scheduler.start_tag(by_hand.core_of(threads[1][0]).unwrap()).unwrap().whole_ns();
        assert_eq!((hog, v(&by_hand)), (600, 600), "aligned to 0 at 50, and 100 more each");
        by_hand.wake(threads[2][0]);
        by_hand.wake(threads[3][0]);
        by_hand.run_to(750);
        let core = by_hand.core_of(threads[first][0]);
        assert!(core.is_some(), "{}: program {first} is first", kind.name());
        assert_eq!(by_hand.scheduler.start_tag(core.unwrap()).unwrap().whole_ns(), 600);
    }
}

#[test]
fn nobody_is_preempted() {
    for kind in FairQueueKind::ALL {
        let (mut by_hand, threads) = machine(kind, 1, &[(1, 1), (1024, 1)]);
        by_hand.wake(threads[0][0]);
        by_hand.run_to(10 * QUANTUM + 10);
        by_hand.wake(threads[1][0]);
        by_hand.run_to(11 * QUANTUM - 1);
        assert_eq!(by_hand.running(0), Some(threads[0][0]), "{}", kind.name());
        by_hand.run_to(11 * QUANTUM);
        assert_eq!(by_hand.running(0), Some(threads[1][0]), "{}", kind.name());
    }
}

#[test]
fn shares_follow_weights_between_programs_that_always_want_more() {
    for kind in FairQueueKind::ALL {
        let (mut by_hand, threads) = machine(kind, 4, &[(1024, 16), (2048, 4), (4096, 8)]);
        threads.iter().flatten().for_each(|thread| by_hand.wake(*thread));
        by_hand.run_to(70_000);
        for (program, share) in [(0, 40_000), (1, 80_000), (2, 160_000)] {
            let ran = ran(&by_hand, &threads[program]);
            assert!(ran.abs_diff(share) <= 6 * QUANTUM, "{}: program {program}: {ran} of {share}", kind.name());
        }
    }
}

#[test]
fn a_pinned_thread_and_an_empty_quantum_are_refused_in_a_sentence() {
    let machine = Machine::new(2, 1).unwrap();
    let mut tasks = Tasks::default();
    let program = tasks.add_program(1024);
    let refused = |tasks: &Tasks, quantum_ns| FairQueue::new(&machine, tasks, FairQueueKind::SfqD, quantum_ns).err();
    assert_eq!(refused(&tasks, 0).unwrap(), "a quantum of 0 ns, allowed is 1 or more");
    assert!(refused(&tasks, 1).is_none());
    tasks.add_thread(program, Some(CoreId(0)));
    assert!(refused(&tasks, 1).unwrap().starts_with("thread 0 is pinned to core 0"));
}
