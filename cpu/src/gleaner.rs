//! Gleaner: is a program that blocks often better off on a few cores of its own?
//!
//! Sources: P-MQFQ section 4.1: it "consolidates fragmented CPU allocation into a few dedicated CPUs", which "does not
//! provide enough concurrency to user-level threads" but avoids "harmful competition with co-running applications"; the
//! abstract of Ding et al., "Gleaner: Mitigating the Blocked-Waiter Wakeup Problem for Virtualized Multicore
//! Applications", USENIX ATC 2014 (idling operations and imbalanced scheduling).
//!
//! # Shape
//! Every 100 ms Gleaner looks at each program's use, in cores, and at its mean run between two blocks. A program that
//! blocks before a quantum is over is *consolidated*: it gets as many cores as it used, rounded up, for itself, and the
//! others may not run there.
//!
//! ```text
//!   cores   0 1 2 3 4 5 6 7 8 | 9 10 | 11        others | one consolidated program | another
//!   each interval:   used >= 90% of its cores    one more, up to its fair share
//!                    used less                   what it used, rounded up as above, at least one
//!                    did not block at all        no longer consolidated
//! ```
//!
//! # What is not known
//! The published Gleaner's choice of the number of cores is unknown. ASSUMED are 100 ms, 90%, and that the cores are
//! the last ones of the machine.
//!
//! # What comes of it
//! Threads that waited for hogs now wait for each other: while the program serialises it uses less of its few cores
//! than it could, so it gets fewer still. And the idle time of its cores is lost to all.
//!
//! # Cost
//! A look at every thread per interval if the number of cores of any program changes.

use crate::run_queues::{RunQueues, spread};
use crate::scheduler::{CoreId, Effects, ProgramId, Run, Scheduler, Spent, Stop, Tasks, ThreadId};
use std::ops::Range;

/// Settings of Gleaner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GleanerOptions {
    /// Time between two looks at the programs, ns.
    pub interval_ns: u64,
    /// A program that runs for less than this between two blocks is consolidated.
    pub fine_ns: u64,
    /// A core of a program is busy if it is used to this percentage.
    pub busy_percent: u64,
}

impl GleanerOptions {
    /// 100 ms, 3 ms (a slice of one of two under CFS), 90%.
    pub fn new() -> GleanerOptions {
        GleanerOptions { interval_ns: 100_000_000, fine_ns: 3_000_000, busy_percent: 90 }
    }

    /// # Errors
    /// A setting is out of range: one sentence with its value and the allowed ones.
    pub fn check(&self) -> Result<(), String> {
        if self.interval_ns == 0 {
            return Err("interval is 0, allowed is 1 ns and more".into());
        }
        if !(1..=100).contains(&self.busy_percent) {
            return Err(format!("busy is {}%, allowed is 1% to 100%", self.busy_percent));
        }
        Ok(())
    }
}

impl Default for GleanerOptions {
    fn default() -> GleanerOptions {
        GleanerOptions::new()
    }
}

/// Consolidation over a base.
pub struct Gleaner<B> {
    base: B,
    options: GleanerOptions,
    tasks: Tasks,
    programs: Vec<Program>,
    /// The thread that runs, and the time up to which the program's account has it.
    running: Vec<Option<(ThreadId, u64)>>,
    look_at_ns: u64,
}

#[derive(Clone, Default)]
struct Program {
    /// CPU time in this interval, ns; below, the blocks.
    ran_ns: u64,
    blocks: u64,
    /// Cores of its own; 0: not consolidated.
    cores: usize,
    /// Cores on which its threads may run.
    range: Range<usize>,
}

impl<B: RunQueues> Gleaner<B> {
    /// # Errors
    /// The options do not pass their check: its sentence.
    pub fn new(base: B, tasks: &Tasks, options: GleanerOptions) -> Result<Gleaner<B>, String> {
        options.check()?;
        let cores = base.machine().cores();
        let program = Program { range: 0..cores, ..Program::default() };
        Ok(Gleaner {
            base,
            options,
            tasks: tasks.clone(),
            programs: vec![program; tasks.programs()],
            running: vec![None; cores],
            look_at_ns: options.interval_ns,
        })
    }

    /// The base.
    pub fn base(&self) -> &B {
        &self.base
    }

    /// Number of cores that the program has for itself; 0: it is not consolidated.
    pub fn cores_of(&self, program: ProgramId) -> usize {
        self.programs[program.index()].cores
    }

    /// The program's fair share of the cores by weight, at least one.
    fn fair(&self, program: ProgramId) -> usize {
        let all: u64 = self.tasks.all_programs().map(|program| u64::from(self.tasks.weight(program))).sum();
        let cores = self.base.machine().cores() as u64 * u64::from(self.tasks.weight(program)) / all;
        (cores as usize).max(1)
    }

    fn charge(&mut self, core: CoreId, now_ns: u64) {
        if let Some((thread, since_ns)) = &mut self.running[core.index()] {
            let program = &mut self.programs[self.tasks.program_of(*thread).index()];
            program.ran_ns += now_ns - *since_ns;
            *since_ns = now_ns;
        }
    }

    /// Number of cores that the program should have for itself, by its use in the interval.
    fn wanted(&self, program: ProgramId) -> usize {
        let Program { ran_ns, blocks, cores, .. } = self.programs[program.index()];
        let fair = self.fair(program);
        let used = |of: u64| (ran_ns * 100).div_ceil(self.options.interval_ns * of) as usize;
        let is_fine = blocks > 0 && ran_ns / blocks < self.options.fine_ns;
        if cores == 0 {
            return if is_fine { used(100).clamp(1, fair) } else { 0 };
        }
        if blocks == 0 && ran_ns > 0 {
            return 0;
        }
        let is_busy = ran_ns * 100 >= cores as u64 * self.options.interval_ns * self.options.busy_percent;
        if is_busy { (cores + 1).min(fair) } else { used(self.options.busy_percent).clamp(1, cores) }
    }

    /// Looks at the programs' use in the interval.
    fn look(&mut self, now_ns: u64, out: &mut dyn Effects) {
        for core in self.base.machine().all() {
            self.charge(core, now_ns);
        }
        let programs: Vec<ProgramId> = self.tasks.all_programs().collect();
        let wanted: Vec<usize> = programs.iter().map(|program| self.wanted(*program)).collect();
        let all = self.base.machine().cores();
        let is_sole = self.programs.len() < 2;
        let mut changes = false;
        for (program, cores) in self.programs.iter_mut().zip(wanted) {
            // No program competes with it, or there is one core for all.
            let cores = if is_sole || all < 2 { 0 } else { cores };
            changes |= program.cores != cores;
            (program.cores, program.ran_ns, program.blocks) = (cores, 0, 0);
        }
        if changes {
            self.assign(now_ns, out);
        }
    }

    /// Gives every program its cores: the last ones to those that are consolidated, the others to the others.
    fn assign(&mut self, now_ns: u64, out: &mut dyn Effects) {
        // A program may be left without: shares are rounded up to one core.
        let has_others = self.programs.iter().any(|program| program.cores == 0);
        let floor = usize::from(has_others);
        let mut end = self.base.machine().cores();
        for program in self.programs.iter_mut().filter(|program| program.cores > 0) {
            let start = end.saturating_sub(program.cores).max(floor);
            if start < end {
                program.range = start..end;
                end = start;
            }
        }
        for program in self.programs.iter_mut().filter(|program| program.cores == 0) {
            program.range = 0..end.max(1);
        }
        for thread in (0..self.tasks.threads() as u32).map(ThreadId) {
            if self.tasks.pin(thread).is_some() {
                continue;
            }
            let range = self.programs[self.tasks.program_of(thread).index()].range.clone();
            self.base.confine(thread, range.clone(), now_ns);
            let core = self.base.core_of(thread);
            let runs_outside = self.base.running(core) == Some(thread) && !range.contains(&core.index());
            let waits_for_nobody = self.base.is_waiting(thread) && self.base.running(core).is_none();
            if runs_outside || waits_for_nobody {
                out.reschedule(core);
            }
        }
    }
}

impl<B: RunQueues> Scheduler for Gleaner<B> {
    fn wake(&mut self, thread: ThreadId, waker: Option<CoreId>, now_ns: u64, out: &mut dyn Effects) {
        self.base.wake(thread, waker, now_ns, out);
    }

    fn stop(&mut self, core: CoreId, thread: ThreadId, why: Stop, ran_ns: u64, now_ns: u64, out: &mut dyn Effects) {
        self.charge(core, now_ns);
        self.running[core.index()] = None;
        self.base.stop(core, thread, why, ran_ns, now_ns, out);
        let program = &mut self.programs[self.tasks.program_of(thread).index()];
        program.blocks += u64::from(why == Stop::Blocked);
        let range = program.range.clone();
        let is_outside = !range.contains(&core.index()) && self.tasks.pin(thread).is_none();
        if is_outside && why != Stop::Exited {
            let to = spread(thread, &range);
            out.spent(core, Spent::DoubleLock);
            self.base.migrate(thread, to, now_ns);
            if why.is_runnable() && self.base.running(to).is_none() {
                out.reschedule(to);
            }
        }
    }

    fn pick(&mut self, core: CoreId, now_ns: u64, out: &mut dyn Effects) -> Option<Run> {
        let run = self.base.pick(core, now_ns, out);
        self.running[core.index()] = run.map(|run| (run.thread, now_ns));
        run
    }

    fn tick_ns(&self) -> Option<u64> {
        self.base.tick_ns()
    }

    fn tick(&mut self, core: CoreId, thread: ThreadId, ran_ns: u64, now_ns: u64, out: &mut dyn Effects) {
        self.base.tick(core, thread, ran_ns, now_ns, out);
    }

    fn next_timer_ns(&self) -> Option<u64> {
        let base = self.base.next_timer_ns();
        Some(base.map_or(self.look_at_ns, |at| at.min(self.look_at_ns)))
    }

    fn timer(&mut self, now_ns: u64, out: &mut dyn Effects) {
        if self.base.next_timer_ns().is_some_and(|at| at <= now_ns) {
            self.base.timer(now_ns, out);
        }
        if self.look_at_ns <= now_ns {
            self.look_at_ns = now_ns + self.options.interval_ns;
            self.look(now_ns, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::by_hand::ByHand;
    use crate::cfs::{Cfs, CfsOptions};
    use crate::scheduler::Machine;

    const MS: u64 = 1_000_000;
    const US: u64 = 1_000;
    const P: ProgramId = ProgramId(0);

    fn on(cores: usize, programs: &[usize]) -> (ByHand<Gleaner<Cfs>>, Vec<Vec<ThreadId>>) {
        let machine = Machine::new(cores, 1).unwrap();
        let mut tasks = Tasks::default();
        let mut threads = Vec::new();
        for count in programs {
            let program = tasks.add_program(Tasks::WEIGHT_DEFAULT);
            threads.push((0..*count).map(|_| tasks.add_thread(program, None)).collect());
        }
        let base = Cfs::new(&machine, &tasks, CfsOptions::new()).unwrap();
        (ByHand::new(Gleaner::new(base, &tasks, GleanerOptions::new()).unwrap(), &machine, &tasks), threads)
    }

    /// Each runs for about 100 us and blocks for about 100 us, until then.
    fn block_often(by_hand: &mut ByHand<Gleaner<Cfs>>, threads: &[ThreadId], until_ns: u64) {
        let mut wake_at_ns = vec![by_hand.now_ns(); threads.len()];
        let mut block_at_ran_ns = vec![u64::MAX; threads.len()];
        while by_hand.now_ns() < until_ns {
            for (at, thread) in threads.iter().enumerate() {
                let is_blocked = block_at_ran_ns[at] == u64::MAX;
                if is_blocked && by_hand.now_ns() >= wake_at_ns[at] {
                    block_at_ran_ns[at] = by_hand.ran_ns(*thread) + 100 * US;
                    by_hand.wake(*thread);
                } else if by_hand.ran_ns(*thread) >= block_at_ran_ns[at] && by_hand.core_of(*thread).is_some() {
                    block_at_ran_ns[at] = u64::MAX;
                    wake_at_ns[at] = by_hand.now_ns() + 100 * US;
                    by_hand.block(*thread);
                }
            }
            by_hand.run_to(by_hand.now_ns() + 20 * US);
        }
        for (at, thread) in threads.iter().enumerate() {
            if block_at_ran_ns[at] != u64::MAX {
                while by_hand.core_of(*thread).is_none() {
                    by_hand.run_to(by_hand.now_ns() + 20 * US);
                }
                by_hand.block(*thread);
            }
        }
    }

    #[test]
    fn a_program_that_blocks_often_gets_a_few_cores_for_itself_alone() {
        let (mut by_hand, threads) = on(8, &[8, 8]);
        threads[1].iter().for_each(|hog| by_hand.wake(*hog));
        block_often(&mut by_hand, &threads[0], 201 * MS);
        let own = by_hand.scheduler.cores_of(P);
        assert!((1..=4).contains(&own), "{own}");
        let before: Vec<u64> = threads[1].iter().map(|hog| by_hand.ran_ns(*hog)).collect();
        let began_ns = by_hand.now_ns();
        block_often(&mut by_hand, &threads[0], 299 * MS);
        for at in 8 - own..8 {
            let runs = by_hand.running(at as u16);
            assert!(runs.is_none_or(|thread| threads[0].contains(&thread)), "core {at} runs {runs:?}");
        }
        let hogs: u64 = threads[1].iter().zip(before).map(|(hog, before)| by_hand.ran_ns(*hog) - before).sum();
        // Two of 8 hogs too many make the base move some, and a core may idle for a moment.
        let others = (8 - own as u64) * (by_hand.now_ns() - began_ns);
        assert!((others * 98 / 100..=others).contains(&hogs), "{hogs} of {others}, all of the other cores");
    }

    #[test]
    fn who_never_blocks_is_left_alone() {
        let (mut by_hand, threads) = on(4, &[4, 4]);
        threads.iter().flatten().for_each(|thread| by_hand.wake(*thread));
        by_hand.run_to(1_000 * MS);
        assert_eq!(by_hand.scheduler.cores_of(P), 0);
        let got: u64 = threads[0].iter().map(|thread| by_hand.ran_ns(*thread)).sum();
        assert!((1_990 * MS..=2_010 * MS).contains(&got), "{got}");
    }

    #[test]
    fn a_program_that_no_longer_blocks_gets_all_cores_back() {
        let (mut by_hand, threads) = on(4, &[4, 4]);
        threads[1].iter().for_each(|hog| by_hand.wake(*hog));
        block_often(&mut by_hand, &threads[0], 201 * MS);
        assert!(by_hand.scheduler.cores_of(P) > 0);
        threads[0].iter().for_each(|thread| by_hand.wake(*thread));
        by_hand.run_to(600 * MS);
        assert_eq!(by_hand.scheduler.cores_of(P), 0);
        let running: Vec<_> = (0..4).map(|core| by_hand.running(core)).collect();
        assert!(running.iter().all(Option::is_some), "{running:?}");
    }

    #[test]
    fn a_program_alone_on_the_machine_keeps_all_of_it() {
        let (mut by_hand, threads) = on(4, &[4]);
        block_often(&mut by_hand, &threads[0], 301 * MS);
        assert_eq!(by_hand.scheduler.cores_of(P), 0);
    }

    #[test]
    fn options_that_cannot_be_are_refused_in_a_sentence() {
        let interval = GleanerOptions { interval_ns: 0, ..GleanerOptions::new() };
        assert_eq!(interval.check(), Err("interval is 0, allowed is 1 ns and more".into()));
        let busy = GleanerOptions { busy_percent: 101, ..GleanerOptions::new() };
        assert_eq!(busy.check(), Err("busy is 101%, allowed is 1% to 100%".into()));
    }
}
