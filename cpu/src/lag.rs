//! How much does a parallel program lose to deceptive idleness? Equation 3, and the program and machine that it is
//! about.
//!
//! Source: P-MQFQ section 2.4. For reports and tests; no scheduler decides by it, so it may compute in floating point.
//!
//! # The model
//! D cores; a parallel program of D threads beside a backlogged one of D hogs. In each round every thread of the
//! parallel program computes for l_nc and then waits for the others; the last one to come runs the critical section
//! alone, for l_c, and then wakes all. While the critical section runs, D - 1 cores go to hogs, which keep them until a
//! quantum l_max is over:
//!
//! ```text
//!   core 0  |--l_nc--|------l_c------|--l_nc--|          l_c = l_max: the wakes come when the hogs' quanta are over
//!   core 1  |--l_nc--|##### hog #####|--l_nc--|
//!   core 2  |--l_nc--|##### hog #####|--l_nc--|
//! ```
//!
//! If the parallel program is always first, as it is under Min-SFQ(D) as long as it lags, it gets D l_nc + l_max in
//! each round and the other one (D - 1) l_max. Half of both together is fair. How far the parallel program is from
//! that, over the fair half, is equation 3:
//!
//! ```text
//!   lag = | (l_max - l_nc)/(l_max + l_nc) - 2 l_max/(D (l_max + l_nc)) |
//! ```
//!
//! # What it is true of (cpu/tests/all/lag.rs)
//! * Min-SFQ(D) in this model agrees with the equation, to 1%, for D = 3 to 64, as long as the parallel program gets
//!   less than half ([`Model::is_first`]), quanta and rounds are in phase, and the parallel program lags when it
//!   begins: then it is always first. Out of phase it gets less; the equation is its result "at best".
//! * Its two sides are even at `l_nc = l_max (1 - 2/D)`. With a longer l_nc, and with D = 2 always, a program that is
//!   always first would get more than half, and the equation, an absolute value, grows again. But then the hogs lag,
//!   and are served: the parallel program never gets more than half, and the equation does not describe it.
//! * With l_c = l_max, as the derivation has it, the lag is the program's own: D - 1 of its threads wait, and no
//!   scheduler can run them. P-MQFQ's ideal algorithm has the same lag. A short l_c shows the scheduler's part. The
//!   hogs then still keep their cores for a quantum; Min-SFQ(D), SFQ(D) and FSFQ(D) lose the equation's value or more,
//!   and the ideal algorithm loses nothing.
//!
//! # Cost
//! O(cores) per event.

use crate::scheduler::{CoreId, Effects, Machine, Run, Scheduler, Spent, Stop, Tasks, ThreadId};

/// Equation 3, without its absolute value: positive if the parallel program gets less than half.
pub fn signed_lag(cores: u16, non_critical_over_quantum: f64) -> f64 {
    let (d, nc) = (f64::from(cores), non_critical_over_quantum);
    (1.0 - nc) / (1.0 + nc) - 2.0 / (d * (1.0 + nc))
}

/// Equation 3.
pub fn lag(cores: u16, non_critical_over_quantum: f64) -> f64 {
    signed_lag(cores, non_critical_over_quantum).abs()
}

/// Lengths of the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Model {
    /// D: cores, threads, and hogs.
    pub cores: u16,
    /// l_max, which must be the scheduler's too.
    pub quantum_ns: u64,
    /// l_nc.
    pub non_critical_ns: u64,
    /// l_c; a quantum in the equation.
    pub critical_ns: u64,
}

/// CPU time of the two programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shares {
    /// CPU time of the parallel program.
    pub parallel_ns: u64,
    /// CPU time of the hogs.
    pub backlogged_ns: u64,
}

impl Shares {
    /// The parallel program's distance from half, over that half; positive if it has less.
    pub fn signed_lag(&self) -> f64 {
        let fair_ns = (self.parallel_ns + self.backlogged_ns) as f64 / 2.0;
        (fair_ns - self.parallel_ns as f64) / fair_ns
    }
}

impl Model {
    /// Equation 3 for this model.
    pub fn lag(&self) -> f64 {
        lag(self.cores, self.non_critical_ns as f64 / self.quantum_ns as f64)
    }

    /// Does the parallel program get less than half though it is always first? These are the lengths of the equation.
    pub fn is_first(&self) -> bool {
        u64::from(self.cores) * (self.quantum_ns - self.non_critical_ns.min(self.quantum_ns)) > 2 * self.quantum_ns
    }

    /// The cores.
    pub fn machine(&self) -> Machine {
        Machine::new(self.cores.into(), 1).expect("1 to 4096 cores")
    }

    /// The parallel program, of threads 0 to D - 1, and the hogs, at equal weights.
    pub fn tasks(&self) -> Tasks {
        let mut tasks = Tasks::default();
        for _ in 0..2 {
            let program = tasks.add_program(Tasks::WEIGHT_DEFAULT);
            for _ in 0..self.cores {
                tasks.add_thread(program, None);
            }
        }
        tasks
    }

    /// CPU time of both in this many rounds of the parallel program, after as many that are not counted. The scheduler
    /// is for [`Model::machine`] and [`Model::tasks`].
    pub fn run(&self, scheduler: &mut dyn Scheduler, rounds: u64) -> Shares {
        let mut run = ModelRun::new(self, scheduler);
        run.until_round(rounds);
        let before = run.shares();
        run.until_round(2 * rounds);
        let after = run.shares();
        Shares {
            parallel_ns: after.parallel_ns - before.parallel_ns,
            backlogged_ns: after.backlogged_ns - before.backlogged_ns,
        }
    }
}

/// Quanta of the first critical section, during which the hogs have D - 1 cores: long enough that the parallel program
/// then lags by more than what is charged ahead for its D threads, from D = 3 on; and whole quanta, so that the hogs
/// are in phase.
const ALONE_QUANTA: u64 = 8;

#[derive(Default)]
struct Asked(Vec<CoreId>);

impl Effects for Asked {
    fn reschedule(&mut self, core: CoreId) {
        self.0.push(core);
    }

    fn spent(&mut self, _: CoreId, _: Spent) {}
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    NonCritical,
    Blocked,
    Critical,
}

struct ModelRun<'a> {
    model: &'a Model,
    scheduler: &'a mut dyn Scheduler,
    now_ns: u64,
    cores: Vec<Option<(Run, u64)>>,
    asked: Asked,
    served_ns: [u64; 2],
    /// State of the parallel program's threads.
    phases: Vec<Phase>,
    left_ns: Vec<u64>,
    rounds: u64,
}

impl<'a> ModelRun<'a> {
    fn new(model: &'a Model, scheduler: &'a mut dyn Scheduler) -> ModelRun<'a> {
        let threads = usize::from(model.cores);
        let mut run = ModelRun {
            model,
            scheduler,
            now_ns: 0,
            cores: vec![None; threads],
            asked: Asked::default(),
            served_ns: [0; 2],
            phases: vec![Phase::Blocked; threads],
            left_ns: vec![0; threads],
            rounds: 0,
        };
        run.phases[0] = Phase::Critical;
        run.left_ns[0] = ALONE_QUANTA * model.quantum_ns;
        run.wake(0, None);
        (threads..2 * threads).for_each(|thread| run.wake(thread, None));
        run
    }

    fn shares(&self) -> Shares {
        let mut served_ns = self.served_ns;
        for (run, since_ns) in self.cores.iter().flatten() {
            served_ns[usize::from(run.thread.index() >= self.phases.len())] += self.now_ns - since_ns;
        }
        Shares { parallel_ns: served_ns[0], backlogged_ns: served_ns[1] }
    }

    /// Time when the thread on a core ends its present step; hogs never do.
    fn ends_ns(&self, run: &Run, since_ns: u64) -> u64 {
        self.left_ns.get(run.thread.index()).map_or(u64::MAX, |left_ns| since_ns + left_ns)
    }

    fn until_round(&mut self, rounds: u64) {
        while self.rounds < rounds {
            let stop_ns =
                |(run, since_ns): &(Run, u64)| self.ends_ns(run, *since_ns).min(run.until_ns.unwrap_or(u64::MAX));
            let stops = self.cores.iter().flatten().map(stop_ns);
            self.now_ns = stops.chain(self.scheduler.next_timer_ns()).min().expect("somebody runs");
            // Ends come first: they wake threads, which are then there when quanta that expire at the same instant are
            // given away.
            for core in 0..self.cores.len() {
                if self.cores[core].is_some_and(|(run, since_ns)| self.ends_ns(&run, since_ns) <= self.now_ns) {
                    self.end_of_phase(core);
                }
            }
            if self.scheduler.next_timer_ns().is_some_and(|at_ns| at_ns <= self.now_ns) {
                self.scheduler.timer(self.now_ns, &mut self.asked);
                self.serve();
            }
            for core in 0..self.cores.len() {
                if self.cores[core].is_some_and(|(run, _)| run.until_ns.is_some_and(|until_ns| until_ns <= self.now_ns))
                {
                    self.stop(core, Stop::Expired);
                    self.pick(core);
                    self.serve();
                }
            }
        }
    }

    fn end_of_phase(&mut self, core: usize) {
        let Some((run, since_ns)) = &mut self.cores[core] else { return };
        let thread = run.thread.index();
        let others_wait = self.phases.iter().filter(|phase| **phase == Phase::Blocked).count() + 1 == self.phases.len();
        // It goes on where it is, in the same quantum: what it ran so far is in what is left, not in `since_ns`.
        let ran_ns = self.now_ns - *since_ns;
        match self.phases[thread] {
            Phase::NonCritical if others_wait => {
                self.phases[thread] = Phase::Critical;
                self.left_ns[thread] = ran_ns + self.model.critical_ns;
            }
            Phase::NonCritical => {
                self.phases[thread] = Phase::Blocked;
                self.stop(core, Stop::Blocked);
                self.pick(core);
                self.serve();
            }
            Phase::Critical => {
                self.phases[thread] = Phase::NonCritical;
                self.left_ns[thread] = ran_ns + self.model.non_critical_ns;
                self.rounds += 1;
                for other in (0..self.phases.len()).filter(|other| *other != thread) {
                    self.phases[other] = Phase::NonCritical;
                    self.left_ns[other] = self.model.non_critical_ns;
                    self.wake(other, Some(CoreId(core as u16)));
                }
            }
            Phase::Blocked => unreachable!("a thread that waits is on no core"),
        }
    }

    fn wake(&mut self, thread: usize, waker: Option<CoreId>) {
        self.scheduler.wake(ThreadId(thread as u32), waker, self.now_ns, &mut self.asked);
        self.serve();
    }

    fn serve(&mut self) {
        while let Some(core) = self.asked.0.pop() {
            if self.cores[core.index()].is_some() {
                self.stop(core.index(), Stop::Preempted);
            }
            self.pick(core.index());
        }
    }

    fn stop(&mut self, core: usize, why: Stop) {
        let (run, since_ns) = self.cores[core].take().expect("it runs something");
        let (thread, ran_ns) = (run.thread.index(), self.now_ns - since_ns);
        self.served_ns[usize::from(thread >= self.phases.len())] += ran_ns;
        if let Some(left_ns) = self.left_ns.get_mut(thread) {
            *left_ns -= ran_ns;
        }
        self.scheduler.stop(CoreId(core as u16), run.thread, why, ran_ns, self.now_ns, &mut self.asked);
    }

    fn pick(&mut self, core: usize) {
        let core = CoreId(core as u16);
        self.asked.0.retain(|asked| *asked != core);
        if let Some(run) = self.scheduler.pick(core, self.now_ns, &mut self.asked) {
            self.cores[core.index()] = Some((run, self.now_ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equation_3_is_what_its_derivation_gives() {
        // D = 8, l_nc = 1, l_max = 4: the parallel program has 8 + 4 = 12 and the other 7 * 4 = 28 of 40; fair is 20,
        // lag 8/20.
        assert!((lag(8, 0.25) - 0.4).abs() < 1e-12);
        let shares = Shares { parallel_ns: 12, backlogged_ns: 28 };
        assert!((shares.signed_lag() - 0.4).abs() < 1e-12);
        // Even at l_nc = l_max (1 - 2/D).
        assert!(lag(8, 0.75) < 1e-12 && signed_lag(8, 0.8) < 0.0);
        // "When D is large and l_nc << l_max, lag -> 1."
        assert!(lag(4096, 0.0001) > 0.999);
    }

    #[test]
    fn a_thread_that_waits_for_none_computes_all_the_time() {
        // One core: no D - 1 others. The critical section and the rest are one run, and hogs share it by quanta.
        let model = Model { cores: 1, quantum_ns: 10, non_critical_ns: 3, critical_ns: 10 };
        assert!(!model.is_first());
        let options = crate::ideal::IdealOptions { quantum_ns: 10, min_slice_ns: 0, ..Default::default() };
        let mut ideal = crate::ideal::Ideal::new(&model.machine(), &model.tasks(), options).unwrap();
        let shares = model.run(&mut ideal, 1000);
        assert!(shares.signed_lag().abs() < 0.01, "{shares:?}");
    }
}
