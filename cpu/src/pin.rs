//! Pin: what if no thread may move?
//!
//! Source: P-MQFQ section 4.1: threads and virtual CPUs are pinned to cores of their own, which turns load balancing
//! off. "Often employed in production systems to improve performance predictability and preserve locality."
//!
//! Pin is not a scheduler: the i-th thread of each program may run on core i only, and any base honours that. It ends
//! CPU stacking. A critical thread is still preempted by the other threads of its core, and waits there (section 4.2).

use crate::scheduler::{CoreId, Machine, Tasks, ThreadId};

/// `tasks` with each program's threads on cores of their own. A pinned thread stays pinned.
///
/// # Errors
/// One sentence, if a program has more threads than there are cores.
pub fn one_per_core(machine: &Machine, tasks: &Tasks) -> Result<Tasks, String> {
    let mut pinned = Tasks::default();
    let mut seen = vec![0; tasks.programs()];
    let programs = tasks.all_programs().map(|program| (program, tasks.threads_of(program).len()));
    for (program, threads) in programs {
        if threads > machine.cores() {
            return Err(format!(
                "program {} has {threads} threads to pin, each to a core of its own, allowed is at most {}, the cores",
                program.0,
                machine.cores()
            ));
        }
        pinned.add_program(tasks.weight(program));
    }
    for thread in (0..tasks.threads() as u32).map(ThreadId) {
        let program = tasks.program_of(thread);
        let core = CoreId(seen[program.index()]);
        seen[program.index()] += 1;
        pinned.add_thread(program, tasks.pin(thread).or(Some(core)));
    }
    Ok(pinned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::by_hand::ByHand;
    use crate::cfs::{Cfs, CfsOptions};

    const MS: u64 = 1_000_000;

    fn tasks(programs: &[usize]) -> Tasks {
        let mut tasks = Tasks::default();
        for threads in programs {
            let program = tasks.add_program(Tasks::WEIGHT_DEFAULT);
            for _ in 0..*threads {
                tasks.add_thread(program, None);
            }
        }
        tasks
    }

    #[test]
    fn each_thread_of_a_program_has_a_core_of_its_own() {
        let machine = Machine::new(3, 1).unwrap();
        let pinned = one_per_core(&machine, &tasks(&[2, 3])).unwrap();
        let pins: Vec<u16> = (0..5).map(|thread| pinned.pin(ThreadId(thread)).unwrap().0).collect();
        assert_eq!(pins, [0, 1, 0, 1, 2]);
    }

    #[test]
    fn more_threads_than_cores_are_refused_in_a_sentence() {
        let machine = Machine::new(3, 1).unwrap();
        let refusal = "program 1 has 4 threads to pin, each to a core of its own, allowed is at most 3, the cores";
        assert_eq!(one_per_core(&machine, &tasks(&[3, 4])), Err(refusal.into()));
    }

    #[test]
    fn a_critical_thread_that_was_preempted_waits_although_a_core_idles() {
        // Two siblings, the first with a hog on its core. The second, alone on its core, waits for the first.
        let machine = Machine::new(2, 1).unwrap();
        let pinned = one_per_core(&machine, &tasks(&[2, 1])).unwrap();
        let cfs = Cfs::new(&machine, &pinned, CfsOptions::new()).unwrap();
        let mut by_hand = ByHand::new(cfs, &machine, &pinned);
        let (critical, waits, hog) = (ThreadId(0), ThreadId(1), ThreadId(2));
        [critical, waits, hog].iter().for_each(|thread| by_hand.wake(*thread));
        by_hand.run_to(3 * MS);
        assert_eq!(by_hand.running(0), Some(hog), "the critical thread was preempted");
        by_hand.block(waits);
        by_hand.run_to(6 * MS - 1);
        assert_eq!((by_hand.running(0), by_hand.running(1)), (Some(hog), None));
    }
}
