//! The rules of P-MQFQ's section 3, one by one, on histories by hand. Weights are the default unless said, so tags are
//! nanoseconds.

use mqfq_cpu::by_hand::ByHand;
use mqfq_cpu::ideal::{Ideal, IdealOptions, Preemption};
use mqfq_cpu::scheduler::{CoreId, Machine, ProgramId, Tasks, ThreadId};

const QUANTUM: u64 = 100;

const F: ProgramId = ProgramId(0);
const G: ProgramId = ProgramId(1);

/// Programs of (weight, threads), at time 0.
fn machine(cores: usize, programs: &[(u32, usize)], min_slice_ns: u64) -> (ByHand<Ideal>, Vec<Vec<ThreadId>>) {
    let mut tasks = Tasks::default();
    let mut threads = Vec::new();
    for (weight, count) in programs {
        let program = tasks.add_program(*weight);
        threads.push((0..*count).map(|_| tasks.add_thread(program, None)).collect());
    }
    let machine = Machine::new(cores, 1).unwrap();
    let options = IdealOptions { quantum_ns: QUANTUM, min_slice_ns, preemption: Preemption::OnArrival };
    (ByHand::new(Ideal::new(&machine, &tasks, options).unwrap(), &machine, &tasks), threads)
}

fn start(by_hand: &ByHand<Ideal>, core: u16) -> u64 {
    by_hand.scheduler.start_tag(CoreId(core)).expect("it runs something").whole_ns()
}

fn v(by_hand: &ByHand<Ideal>) -> u64 {
    by_hand.scheduler.virtual_time().whole_ns()
}

fn finish(by_hand: &ByHand<Ideal>, program: ProgramId) -> u64 {
    by_hand.scheduler.finish_tag(program).whole_ns()
}

fn ran(by_hand: &ByHand<Ideal>, threads: &[ThreadId]) -> u64 {
    threads.iter().map(|thread| by_hand.ran_ns(*thread)).sum()
}

#[test]
fn virtual_time_is_the_largest_start_tag_in_service_and_each_program_has_its_own() {
    let (mut by_hand, threads) = machine(3, &[(1024, 2), (2048, 1)], 0);
    by_hand.wake(threads[0][0]);
    by_hand.wake(threads[0][1]);
    // Chained: 0 and 100. G is new: it begins at v.
    by_hand.wake(threads[1][0]);
    assert_eq!((start(&by_hand, 0), start(&by_hand, 1), start(&by_hand, 2)), (0, 100, 100));
    assert_eq!(v(&by_hand), 100);
    by_hand.block(threads[0][1]);
    assert_eq!(by_hand.scheduler.program_virtual_time(F).map(|v| v.whole_ns()), Some(0));
    assert_eq!(by_hand.scheduler.program_virtual_time(G).map(|v| v.whole_ns()), Some(100));
    by_hand.block(threads[1][0]);
    assert_eq!(by_hand.scheduler.program_virtual_time(G), None);
    assert_eq!(v(&by_hand), 0, "it goes back with what is in service");
}

#[test]
fn a_thread_that_wakes_takes_the_core_of_its_last_run_before_that_of_the_sibling_furthest_ahead() {
    let (mut by_hand, threads) = machine(2, &[(1024, 4)], 0);
    by_hand.scheduler = by_hand.scheduler.clone().kin(&by_hand.tasks);
    let [sleeper, far, near, fresh] = threads[0][..] else { unreachable!() };
    by_hand.wake(sleeper);
    by_hand.wake(far);
    by_hand.run_to(1);
    by_hand.block(sleeper);
    by_hand.wake(near);
    by_hand.run_to(50);
    // Core 1 is 50 ahead, the sleeper's core 49.
    by_hand.wake(sleeper);
    assert_eq!((by_hand.core_of(sleeper), by_hand.core_of(far)), (Some(CoreId(0)), Some(CoreId(1))));
    by_hand.run_to(51);
    by_hand.block(sleeper);
    assert_eq!(by_hand.core_of(near), Some(CoreId(0)), "the sibling goes on where it was");
    // A sibling that is not ahead keeps its core.
    by_hand.block(near);
    by_hand.wake(fresh);
    by_hand.wake(sleeper);
    assert_eq!((by_hand.core_of(sleeper), by_hand.core_of(fresh)), (Some(CoreId(1)), Some(CoreId(0))));
}

#[test]
fn an_arrival_below_virtual_time_preempts_the_largest_start_tag_which_pays_for_what_it_ran() {
    // F runs alone on three cores (0, 100, 200; at 100 its first resumes at 300), G joins at v and lags as its only
    // thread blocks at once.
    let (mut by_hand, threads) = machine(3, &[(1024, 3), (1024, 2)], 0);
    by_hand.wake(threads[1][0]);
    threads[0].iter().for_each(|thread| by_hand.wake(*thread));
    // G: 0 in service. F: 0 and 100 in service, its third waits at 200.
    by_hand.run_to(30);
    assert_eq!((start(&by_hand, 0), start(&by_hand, 1), start(&by_hand, 2)), (0, 0, 100));
    // G's other thread begins at 100, where its first would end: not below v = 100, so it waits.
    by_hand.wake(threads[1][1]);
    assert_eq!(by_hand.scheduler.preempted(), 0);
    by_hand.block(threads[1][0]);
    assert_eq!(by_hand.core_of(threads[1][1]), Some(CoreId(0)), "G ran 30 and is first with a tag of 30");
    assert_eq!(start(&by_hand, 0), 30);
    by_hand.run_to(50);
    by_hand.block(threads[1][1]);
    assert_eq!(by_hand.core_of(threads[0][2]), Some(CoreId(0)));
    assert_eq!((v(&by_hand), finish(&by_hand, G), finish(&by_hand, F)), (200, 50, 300));
    // G went idle, so rule 2 aligns it to v = 200: no compensation for the past, and no thread is preempted.
    by_hand.wake(threads[1][0]);
    assert_eq!(by_hand.scheduler.preempted(), 0);
    assert_eq!(finish(&by_hand, G), 200);
}

#[test]
fn virtual_time_becomes_the_second_largest_start_tag_when_the_largest_is_preempted() {
    let (mut by_hand, threads) = machine(3, &[(1024, 3), (1024, 2)], 0);
    // G stays backlogged with one thread and so keeps its tag, while F takes 0 and 100.
    by_hand.wake(threads[1][0]);
    by_hand.wake(threads[0][0]);
    by_hand.wake(threads[0][1]);
    by_hand.run_to(100);
    // All three quanta expired: F began again at 200 and 300, G at 100.
    let mut starts: Vec<u64> = (0..3).map(|core| start(&by_hand, core)).collect();
    starts.sort_unstable();
    assert_eq!((starts, v(&by_hand)), (vec![100, 200, 300], 300));
    by_hand.run_to(140);
    let largest = by_hand.running((0..3).find(|core| start(&by_hand, *core) == 300).unwrap()).unwrap();
    by_hand.wake(threads[1][1]);
    // It begins at 200, where G's first would end. Below 300: preempts. The request at 300 is charged 40.
    assert_eq!(by_hand.core_of(largest), None, "the one with the largest start tag was preempted");
    assert_eq!((by_hand.scheduler.preempted(), v(&by_hand)), (1, 200));
    assert_eq!(finish(&by_hand, F), 340, "rule 4: 300 + 40");
    by_hand.run_to(200);
    assert_eq!(by_hand.ran_ns(largest), 40 + 100);
}

#[test]
fn it_is_the_largest_start_tag_that_loses_its_core_wherever_that_is() {
    let (mut by_hand, threads) = machine(3, &[(1024, 2), (4096, 2)], 0);
    by_hand.wake(threads[1][0]);
    threads[0].iter().for_each(|thread| by_hand.wake(*thread));
    by_hand.run_to(50);
    by_hand.block(threads[0][0]);
    by_hand.wake(threads[0][0]);
    // F's second moved back to 50 when its first ended after 50, and the first began again behind it.
    assert_eq!((start(&by_hand, 0), start(&by_hand, 1), start(&by_hand, 2)), (0, 150, 50));
    // G's other thread begins at 25: a quantum at four times the weight.
    by_hand.wake(threads[1][1]);
    assert_eq!((by_hand.core_of(threads[1][1]), by_hand.core_of(threads[0][0])), (Some(CoreId(1)), None));
    assert_eq!((start(&by_hand, 1), v(&by_hand)), (25, 50));
}

#[test]
fn a_preempted_thread_goes_on_before_its_siblings_with_what_is_left_of_its_quantum() {
    let (mut by_hand, threads) = machine(3, &[(1024, 3), (1024, 2)], 0);
    by_hand.wake(threads[1][0]);
    by_hand.wake(threads[0][0]);
    by_hand.wake(threads[0][1]);
    by_hand.run_to(140);
    let largest = by_hand.running((0..3).find(|core| start(&by_hand, *core) == 300).unwrap()).unwrap();
    // A sibling waits before the largest is preempted after 40; then G leaves a core.
    by_hand.wake(threads[0][2]);
    by_hand.wake(threads[1][1]);
    assert_eq!(by_hand.core_of(largest), None);
    by_hand.run_to(150);
    by_hand.block(threads[1][1]);
    assert!(by_hand.core_of(largest).is_some() && by_hand.core_of(threads[0][2]).is_none());
    // It has 60 left. At 200 the other two expire, and F's sibling has one of their cores; at 210 it is the preempted
    // one's own turn to wait.
    by_hand.run_to(209);
    assert_eq!(by_hand.ran_ns(largest), 100 + 40 + 59);
    by_hand.run_to(210);
    assert_eq!((by_hand.ran_ns(largest), by_hand.core_of(largest)), (100 + QUANTUM, None));
}

#[test]
fn a_quantum_that_was_cut_is_not_renewed_so_that_siblings_have_their_turn() {
    // One core. F has two threads; G's thread is behind F all the time and cuts F's quanta short again and again.
    let (mut by_hand, threads) = machine(1, &[(1, 2), (1024, 1)], 0);
    threads[0].iter().for_each(|thread| by_hand.wake(*thread));
    by_hand.wake(threads[1][0]);
    by_hand.run_to(400_000);
    let ran: Vec<u64> = threads[0].iter().map(|thread| by_hand.ran_ns(*thread)).collect();
    // F is due 1/1025 of 400,000 = 390; it may be a quantum off. Both of its threads had theirs.
    assert!((290..=490).contains(&(ran[0] + ran[1])), "{ran:?}");
    assert!(ran[0].abs_diff(ran[1]) <= QUANTUM, "{ran:?}");
}

#[test]
fn who_has_not_run_for_the_minimum_slice_is_preempted_when_it_has() {
    let (mut by_hand, threads) = machine(3, &[(1024, 3), (1024, 2)], 60);
    by_hand.wake(threads[1][0]);
    by_hand.wake(threads[0][0]);
    by_hand.wake(threads[0][1]);
    by_hand.run_to(140);
    // As above: 100, 200, 300 in service since 100. The new request, at 200, is below 300, but none has run for 60.
    by_hand.wake(threads[1][1]);
    assert_eq!(by_hand.scheduler.preempted(), 0);
    by_hand.run_to(159);
    assert_eq!(by_hand.core_of(threads[1][1]), None);
    by_hand.run_to(160);
    assert!(by_hand.core_of(threads[1][1]).is_some());
    assert_eq!((by_hand.scheduler.preempted(), v(&by_hand), finish(&by_hand, F)), (1, 200, 360));
}

#[test]
fn nobody_is_preempted_for_a_thread_that_found_another_core_meanwhile() {
    let (mut by_hand, threads) = machine(3, &[(1024, 3), (1024, 2)], 60);
    by_hand.wake(threads[1][0]);
    by_hand.wake(threads[0][0]);
    by_hand.wake(threads[0][1]);
    by_hand.run_to(140);
    by_hand.wake(threads[1][1]);
    by_hand.run_to(150);
    by_hand.block(threads[0][0]);
    assert!(by_hand.core_of(threads[1][1]).is_some(), "it has the core that F left");
    by_hand.run_to(199);
    assert_eq!(by_hand.scheduler.preempted(), 0);
}

#[test]
fn a_program_that_is_ahead_gains_nothing_by_blocking_for_an_instant() {
    // One core. F blocks and wakes at once whenever it has run for 99 of its 100. Were its tag set back to v each time,
    // it would begin where it began before and never be behind G.
    let (mut by_hand, threads) = machine(1, &[(1024, 1), (1024, 1)], 0);
    by_hand.wake(threads[0][0]);
    by_hand.wake(threads[1][0]);
    for now in 1..=10_000 {
        by_hand.run_to(now);
        let blocks = by_hand.core_of(threads[0][0]).is_some() && by_hand.ran_ns(threads[0][0]) % 99 == 98;
        if blocks {
            by_hand.block(threads[0][0]);
            by_hand.wake(threads[0][0]);
        }
    }
    let (f, g) = (by_hand.ran_ns(threads[0][0]), by_hand.ran_ns(threads[1][0]));
    assert!(f <= g + 2 * QUANTUM, "{f} and {g}");
}

#[test]
fn programs_share_by_weight_however_many_threads_they_have() {
    // Weights 1 : 2 : 4 with 16, 4 and 8 threads on 4 cores, for 70,000: 280,000 in shares of 40,000.
    let (mut by_hand, threads) = machine(4, &[(1024, 16), (2048, 4), (4096, 8)], 0);
    threads.iter().flatten().for_each(|thread| by_hand.wake(*thread));
    by_hand.run_to(70_000);
    for (program, share) in [(0, 40_000), (1, 80_000), (2, 160_000)] {
        let ran = ran(&by_hand, &threads[program]);
        assert!(ran.abs_diff(share) <= 4 * QUANTUM, "program {program}: {ran} of {share}");
    }
    for siblings in &threads {
        let ran: Vec<u64> = siblings.iter().map(|thread| by_hand.ran_ns(*thread)).collect();
        assert!(ran.iter().max().unwrap() - ran.iter().min().unwrap() <= 2 * QUANTUM, "{ran:?}");
    }
}

#[test]
fn a_woken_thread_of_a_lagging_program_runs_within_the_minimum_slice() {
    // Deceptive idleness: F's critical thread wakes others now and then, on 8 cores that G's hogs would fill.
    let cores = 8;
    let (mut by_hand, threads) = machine(cores, &[(1024, 8), (1024, 16)], 10);
    by_hand.wake(threads[0][0]);
    threads[1].iter().for_each(|thread| by_hand.wake(*thread));
    let mut lagged = 0;
    for round in 0..200u64 {
        by_hand.run_to(by_hand.now_ns() + 37);
        let woken = threads[0][1 + (round % 7) as usize];
        let lags = finish(&by_hand, F) < v(&by_hand);
        by_hand.wake(woken);
        by_hand.run_to(by_hand.now_ns() + 10);
        if lags {
            lagged += 1;
            assert!(by_hand.core_of(woken).is_some(), "round {round}");
        }
        while by_hand.core_of(woken).is_none() {
            by_hand.run_to(by_hand.now_ns() + 1);
        }
        by_hand.block(woken);
    }
    assert!(lagged > 150, "F lagged in {lagged} of 200 rounds");
}

#[test]
fn a_thread_returns_to_its_core_if_that_is_idle() {
    let (mut by_hand, threads) = machine(4, &[(1024, 3)], 0);
    threads[0].iter().for_each(|thread| by_hand.wake(*thread));
    by_hand.run_to(10);
    by_hand.block(threads[0][0]);
    by_hand.block(threads[0][1]);
    by_hand.wake(threads[0][1]);
    assert_eq!((by_hand.core_of(threads[0][1]), by_hand.migrations), (Some(CoreId(1)), 0));
}

#[test]
fn options_that_cannot_be_are_refused_in_a_sentence() {
    let machine = Machine::new(2, 1).unwrap();
    let mut tasks = Tasks::default();
    let program = tasks.add_program(1024);
    let refused = |tasks: &Tasks, quantum_ns, min_slice_ns, preemption| {
        Ideal::new(&machine, tasks, IdealOptions { quantum_ns, min_slice_ns, preemption }).err().unwrap_or_default()
    };
    let on_arrival = Preemption::OnArrival;
    assert_eq!(refused(&tasks, 10, 10, on_arrival), "");
    assert_eq!(refused(&tasks, 0, 0, on_arrival), "a quantum of 0 ns, allowed is 1 or more");
    let longer = "a minimum slice of 11 ns, allowed is at most the quantum of 10 ns";
    assert_eq!(refused(&tasks, 10, 11, on_arrival), longer);
    let none = "a minimum slice of 0 ns, allowed is 1 or more if every slice is to end";
    assert_eq!(refused(&tasks, 10, 0, Preemption::EverySlice), none);
    tasks.add_thread(program, Some(CoreId(1)));
    let pinned = "thread 0 is pinned to core 1, and a scheduler with one queue for all cores allows no pinned thread";
    assert_eq!(refused(&tasks, 10, 10, on_arrival), pinned);
}
