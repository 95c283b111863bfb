//! The bound of P-MQFQ over every interval of generated histories, and that the check would notice if it did not hold.

use crate::history;

use history::{Habit, History, Pins, fair_queue, ideal, tasks};
use mqfq_cpu::bound::{BoundChecker, PairUnfairness, bound, rounding};
use mqfq_cpu::fair_queue::FairQueueKind;
use mqfq_cpu::ideal::{Ideal, IdealOptions, Preemption};
use mqfq_cpu::scheduler::Machine;
use mqfq_testing::Random;

const US: u64 = 1000;
const MS: u64 = 1000 * US;

/// Result of a check of a history against the bounds.
struct Verdict {
    intervals: u64,
    /// Largest unfairness over the bound D (q/phi_f + q/phi_g), in thousandths.
    worst_permille: u128,
}

/// Judges a history by the bound that ideal.rs proves; `printed` also by the paper's, which has D + 1 and l_min.
fn judge(what: &str, cores: usize, habits: &[Habit], options: IdealOptions, history: History<Ideal>) -> Verdict {
    let (pairs, intervals) = history.finish();
    let mut worst_permille = 0;
    for PairUnfairness { first, second, worst, served_ns } in pairs {
        let (f, g) = (habits[first].weight, habits[second].weight);
        let limit = bound(cores as u64, options.slice_ns(), f, g);
        assert!(
            worst <= limit + rounding(served_ns, f, g),
            "{what}: programs {first} and {second} differ by {worst} ns times weight, allowed is {limit}; {cores} cores, {options:?}, {habits:?}"
        );
        if options.preemption == Preemption::EverySlice {
            assert!(worst <= bound(cores as u64 + 1, options.min_slice_ns, f, g), "{what}: the printed bound");
        }
        worst_permille = worst_permille.max(worst * 1000 / limit);
    }
    Verdict { intervals, worst_permille }
}

/// A scheduler that believes in other weights than those of the programs.
fn misled(cores: usize, habits: &[Habit], believed: &[Habit], options: IdealOptions) -> History<Ideal> {
    let machine = Machine::new(cores, 1).unwrap();
    History::new(Ideal::new(&machine, &tasks(believed), options).unwrap(), cores, habits, 1)
}

fn weight(random: &mut Random) -> u32 {
    match random.scaled(4) {
        0 => 1024,
        1 => 1 << random.scaled(14),
        _ => random.between(1, 10_000) as u32,
    }
}

fn habit(random: &mut Random, cores: usize, quantum_ns: u64) -> Habit {
    let threads = random.between(1, 3 * cores as u64) as usize;
    let most = *[quantum_ns / 10, quantum_ns, 5 * quantum_ns].get(random.scaled(3) as usize).unwrap();
    let sleep = *[1, quantum_ns / 4, 4 * quantum_ns].get(random.scaled(3) as usize).unwrap();
    Habit {
        weight: weight(random),
        threads,
        computes_ns: (random.scaled(3) != 0).then_some((1, most.max(1))),
        sleeps_ns: (1, sleep),
        begins_ns: (0, random.scaled(3) * 10 * quantum_ns),
        pins: Pins::Free,
    }
}

fn options(random: &mut Random) -> IdealOptions {
    let quantum_ns = random.between(100 * US, 6 * MS);
    let preemption = if random.scaled(2) == 0 { Preemption::EverySlice } else { Preemption::OnArrival };
    let min_slice_ns = match random.scaled(3) {
        0 if preemption == Preemption::OnArrival => 0,
        1 => quantum_ns,
        _ => random.between(quantum_ns / 20, quantum_ns),
    };
    IdealOptions { quantum_ns, min_slice_ns, preemption }
}

#[test]
fn the_bound_holds_over_every_interval_of_generated_histories() {
    let (mut intervals, mut worst) = (0, 0);
    for seed in 0..120 {
        let mut random = Random::new(seed);
        let cores = random.between(1, 8) as usize * if random.scaled(8) == 0 { 8 } else { 1 };
        let options = options(&mut random);
        let programs = random.between(2, 5);
        let habits: Vec<Habit> = (0..programs).map(|_| habit(&mut random, cores, options.quantum_ns)).collect();
        let mut history = ideal(cores, &habits, options, seed);
        let steps = 150 / cores as u64 + 10;
        history.run_to(steps * options.slice_ns());
        let verdict = judge(&format!("seed {seed}"), cores, &habits, options, history);
        intervals += verdict.intervals;
        worst = worst.max(verdict.worst_permille);
    }
    println!("{intervals} intervals, at most {worst} thousandths of the bound");
    assert!(intervals >= 1_000_000, "{intervals} intervals");
    assert!(worst >= 500, "a bound of which at most {worst} thousandths are reached says little");
}

#[test]
fn the_check_finds_a_scheduler_that_takes_a_weight_for_another() {
    let habits = [Habit::hog(1024, 6), Habit::hog(2048, 6)];
    let believed = [Habit::hog(1024, 6), Habit::hog(1900, 6)];
    let options = IdealOptions { quantum_ns: MS, min_slice_ns: MS, preemption: Preemption::EverySlice };
    let worst = |believed: &[Habit]| {
        let mut history = misled(4, &habits, believed, options);
        history.run_to(500 * MS);
        history.finish().0[0].worst
    };
    let limit = bound(4, MS, 1024, 2048);
    assert!(worst(&habits) <= limit);
    assert!(worst(&believed) > limit, "7% off is more than the bound within half a second");
}

#[test]
fn the_check_finds_that_preemption_is_switched_off() {
    // Hogs, and programs that block and wake, which makes preemptions. All are held to the bound with l_min.
    let habits = [
        Habit { computes_ns: Some((MS / 10, 2 * MS)), sleeps_ns: (1, MS), ..Habit::hog(1024, 12) },
        Habit::hog(1024, 8),
        Habit::hog(512, 5),
    ];
    for (preemption, holds) in
        [(Preemption::EverySlice, true), (Preemption::OnArrival, false), (Preemption::Never, false)]
    {
        let options = IdealOptions { quantum_ns: 6 * MS, min_slice_ns: MS / 4, preemption };
        let mut history = ideal(4, &habits, options, 7);
        history.run_to(400 * MS);
        let (pairs, _) = history.finish();
        assert_eq!(pairs.len(), 3);
        let within = |pair: &PairUnfairness| {
            pair.worst <= bound(4 + 1, MS / 4, habits[pair.first].weight, habits[pair.second].weight)
        };
        assert_eq!(pairs.iter().all(within), holds, "{preemption:?}: {pairs:?}");
    }
}

#[test]
fn sfq_keeps_the_bound_with_a_quantum_and_not_the_one_with_a_minimum_slice() {
    for kind in FairQueueKind::ALL {
        let mut intervals = 0;
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let cores = random.between(1, 6) as usize;
            let programs = random.between(2, 4);
            let threads = |random: &mut Random| random.between(cores as u64 + 1, 3 * cores as u64) as usize;
            let habits: Vec<Habit> =
                (0..programs).map(|_| Habit::hog(random.between(100, 1000) as u32, threads(&mut random))).collect();
            let mut history = fair_queue(cores, &habits, kind, 6 * MS, seed);
            history.run_to(2000 * MS);
            let (pairs, covered) = history.finish();
            intervals += covered;
            for pair in pairs {
                let (f, g) = (habits[pair.first].weight, habits[pair.second].weight);
                let own = bound(cores as u64 + 1, 6 * MS, f, g);
                assert!(pair.worst <= own, "{}, seed {seed}: {pair:?}, allowed is {own}", kind.name());
                let of_p_mqfq = bound(cores as u64 + 1, MS / 2, f, g);
                assert!(pair.worst > of_p_mqfq, "{}, seed {seed}: {pair:?}, {of_p_mqfq}", kind.name());
            }
        }
        assert!(intervals >= 1_000_000, "{intervals} intervals");
    }
}

#[test]
fn gangs_that_start_and_stop_together_do_not_pass_the_bound() {
    // All threads of both programs begin at the same instant and block after just a little more than a slice, so that
    // as much as possible is in service when the other begins to want.
    let mut intervals = 0;
    for cores in [1, 2, 3, 8, 64] {
        for (extra, seed) in [(0, 1), (1, 2), (MS / 2, 3)] {
            let gang = |weight, threads| Habit {
                computes_ns: Some((MS + extra, MS + extra)),
                sleeps_ns: (1, 1),
                ..Habit::hog(weight, threads)
            };
            let habits = [gang(1024, 2 * cores), gang(1, 2 * cores), Habit::hog(333, 2 * cores)];
            for preemption in [Preemption::EverySlice, Preemption::OnArrival] {
                let options = IdealOptions { quantum_ns: MS, min_slice_ns: MS, preemption };
                let mut history = ideal(cores, &habits, options, seed);
                history.run_to(if cores == 64 { 20 * MS } else { 60 * MS });
                let what = format!("gangs of {} on {cores} cores, {extra} more, {preemption:?}", 2 * cores);
                intervals += judge(&what, cores, &habits, options, history).intervals;
            }
        }
    }
    assert!(intervals >= 100_000, "{intervals} intervals");
}

/// Every interval one by one.
fn one_by_one(moments: &[(u64, [u16; 2], [bool; 2], bool)], weights: [u32; 2]) -> (Option<u128>, u64) {
    let (mut worst, mut intervals): (Option<u128>, u64) = (None, 0);
    let (mut served, mut running, mut now) = ([0i128; 2], [0u16; 2], 0);
    let mut stretch: Vec<(u64, i128)> = Vec::new();
    for &(at, next, wants, level) in moments {
        let ends = !wants[0] || !wants[1];
        (0..2).for_each(|p| served[p] += i128::from(at - now) * i128::from(running[p]));
        (now, running) = (at, next);
        let x = served[0] * i128::from(weights[1]) - served[1] * i128::from(weights[0]);
        if (!stretch.is_empty() || (level && !ends)) && stretch.last().is_none_or(|(last, _)| *last < at) {
            for (_, before) in &stretch {
                worst = worst.max(Some((x - before).unsigned_abs()));
                intervals += 1;
            }
            stretch.push((at, x));
            worst = worst.max(Some(0));
        }
        if ends {
            stretch.clear();
        }
    }
    (worst, intervals)
}

#[test]
fn one_pass_finds_what_every_interval_one_by_one_does() {
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let weights = [1 + random.scaled(2000) as u32, 1 + random.scaled(2000) as u32];
        let mut now = 0;
        let moments: Vec<_> = (0..60)
            .map(|_| {
                now += random.scaled(3) * random.scaled(50);
                let mut flag = || random.scaled(8) != 0;
                let (wants, level) = ([flag(), flag()], flag());
                (now, [random.scaled(4) as u16, random.scaled(4) as u16], wants, level)
            })
            .collect();
        let mut checker = BoundChecker::new(&weights);
        moments.iter().for_each(|(at, running, wants, level)| checker.moment(*at, running, wants, |_, _| *level));
        let (pairs, intervals) = checker.finish();
        let found = (pairs.first().map(|pair| pair.worst), intervals);
        assert_eq!(found, one_by_one(&moments, weights), "seed {seed}");
    }
}

mod printed {
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
        // Four cores. G is backlogged in the words of rule 2 all the time, with one thread that computes. F has four.
        // After 300 ms F had 900 ms and G 300. Then three more threads of G wake. Until G has made up for 600 ms at
        // four cores, 150 ms long, F gets next to nothing, though both have more threads than cores together: no bound
        // in l_min, or in anything but the past.
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

    /// Rule 2 with "the program's last finish tag" read as that of the request that ended last, on one core with quanta
    /// of 1: start tags are given on arrival, `max(last finish tag, program's virtual time)`, and kept. All threads are
    /// hogs of weight 1.
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
}
