//! Histories on which the theorem of P-MQFQ's section 3, (D + 1)(l_min/phi_f + l_min/phi_g), does not hold for the
//! rules as they are printed.

use crate::history;

use history::{Habit, ideal};
use mqfq_cpu::bound::bound;
use mqfq_cpu::ideal::{IdealOptions, Preemption};
use mqfq_cpu::scheduler::ProgramId;

const MS: u64 = 1_000_000;

fn printed(quantum_ns: u64, min_slice_ns: u64) -> IdealOptions {
    IdealOptions { quantum_ns, min_slice_ns, preemption: Preemption::OnArrival }
}

#[test]
fn two_hogs_on_one_core_take_turns_of_the_quantum_whatever_the_minimum_slice() {
    // Threads arrive only when their quantum expired, so rule 3 never acts. While f runs for 6 ms g gets nothing.
    let habits = [Habit::hog(1024, 1), Habit::hog(1024, 1)];
    for min_slice_ns in [0, 1, MS] {
        let mut history = ideal(1, &habits, printed(6 * MS, min_slice_ns), 1);
        history.run_to(600 * MS);
        assert_eq!(history.scheduler.preempted(), 0);
        let (pairs, _) = history.finish();
        assert_eq!(pairs[0].worst, u128::from(6 * MS) * 1024, "one quantum");
        assert!(pairs[0].worst > bound(2, min_slice_ns, 1024, 1024), "the printed bound, {min_slice_ns} ns");
        assert!(pairs[0].worst <= bound(1, 6 * MS, 1024, 1024), "the bound with l_max for l_min");
    }
    // The analysis assumes that every slice is a request of its own.
    let options = IdealOptions { preemption: Preemption::EverySlice, ..printed(6 * MS, MS) };
    let mut history = ideal(1, &habits, options, 1);
    history.run_to(600 * MS);
    assert_eq!(history.finish().0[0].worst, u128::from(MS) * 1024, "one slice");
}

#[test]
fn a_program_with_fewer_threads_than_its_share_falls_behind_and_then_starves_the_other() {
    // Four cores. G is backlogged in the words of rule 2 all the time, with one thread that computes. F has four. After
    // 300 ms F had 900 ms and G 300. Then three more threads of G wake. Until G has made up for 600 ms at four cores,
    // 150 ms long, F gets next to nothing, though both have more threads than cores together: no bound in l_min, or in
    // anything but the past.
    let habits = [Habit::hog(1024, 4), Habit::hog(1024, 4)];
    let mut history = ideal(4, &habits, printed(6 * MS, MS), 1);
    history.delay(1, 1, 300 * MS);
    history.run_to(300 * MS);
    let before = [history.served_ns(0), history.served_ns(1)];
    assert_eq!(before, [900 * MS, 300 * MS]);
    history.run_to(440 * MS);
    let gained = [history.served_ns(0) - before[0], history.served_ns(1) - before[1]];
    assert!(gained[0] <= 18 * MS, "F got {} ns, at most what its three quanta had left", gained[0]);
    assert!(u128::from(gained[1] - gained[0]) * 1024 > 9 * bound(5, 6 * MS, 1024, 1024), "{gained:?}");
    // Over all of it they are even, and from then on they are level.
    history.run_to(600 * MS);
    assert!(history.scheduler.are_level(ProgramId(0), ProgramId(1), history.now_ns));
    let all = [history.served_ns(0), history.served_ns(1)];
    assert!(all[0].abs_diff(all[1]) <= 4 * 6 * MS, "{all:?}");
}

/// Rule 2 with "the program's last finish tag" read as that of the request that ended last, on one core with quanta of
/// 1: start tags are given on arrival, `max(last finish tag, program's virtual time)`, and kept. All threads are hogs
/// of weight 1.
fn by_the_letter(threads: [usize; 2], rounds: u32) -> [u32; 2] {
    let mut queue: Vec<(u32, u32, usize)> = Vec::new();
    let mut arrivals = 0;
    let mut arrive = |queue: &mut Vec<(u32, u32, usize)>, start, program| {
        arrivals += 1;
        queue.push((start, arrivals, program));
    };
    for (program, count) in threads.into_iter().enumerate() {
        (0..count).for_each(|_| arrive(&mut queue, 0, program));
    }
    let mut served = [0; 2];
    for _ in 0..rounds {
        let first = (0..queue.len()).min_by_key(|at| queue[*at]).expect("hogs");
        let (start, _, program) = queue.swap_remove(first);
        served[program] += 1;
        // It ended with a finish tag of start + 1, nothing of its program is in service, and it arrives again.
        arrive(&mut queue, start + 1, program);
    }
    served
}

#[test]
fn read_by_the_letter_a_program_of_n_threads_gets_n_shares() {
    // Seven threads against one, equal weights: 7 : 1. So the difference grows without end, by 6 in every 8.
    assert_eq!(by_the_letter([7, 1], 800), [700, 100]);
    // With chained finish tags: even.
    let mut history = ideal(1, &[Habit::hog(1024, 7), Habit::hog(1024, 1)], printed(MS, 0), 1);
    history.run_to(800 * MS);
    assert_eq!([history.served_ns(0), history.served_ns(1)], [400 * MS; 2]);
}
