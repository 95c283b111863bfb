//! Runs a scheduler through a history of threads that compute and block, and tells the checker of every moment of it.
//!
//! Interrupts come at once and nothing costs anything: the bound is about the algorithm.
#![allow(dead_code, reason = "each test file uses a part of it")]

use mqfq_cpu::bound::{BoundChecker, PairUnfairness};
use mqfq_cpu::fair_queue::{FairQueue, FairQueueKind};
use mqfq_cpu::ideal::{Ideal, IdealOptions};
use mqfq_cpu::scheduler::{CoreId, Effects, Machine, ProgramId, Run, Scheduler, Spent, Stop, Tasks, ThreadId};
use mqfq_testing::Random;

/// Behaviour of a program's threads.
#[derive(Clone, Copy, Debug)]
pub struct Habit {
    pub weight: u32,
    pub threads: usize,
    /// Range of what a thread computes before it blocks; `None`: it never does.
    pub computes_ns: Option<(u64, u64)>,
    /// Range of how long it then sleeps.
    pub sleeps_ns: (u64, u64),
    /// Range of when its threads first wake.
    pub begins_ns: (u64, u64),
    /// Cores on which its threads may run.
    pub pins: Pins,
}

/// Cores on which a program's threads may run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pins {
    /// All threads on all cores.
    Free,
    /// All threads on this core alone.
    On(u16),
    /// Thread i on core i, of so many.
    Each(u16),
    /// Every second thread on this core alone, the others on all.
    Odd(u16),
}

impl Pins {
    fn of(self, thread: usize) -> Option<CoreId> {
        match self {
            Pins::Free => None,
            Pins::On(core) => Some(CoreId(core)),
            Pins::Each(cores) => Some(CoreId(thread as u16 % cores)),
            Pins::Odd(core) => (thread % 2 == 1).then_some(CoreId(core)),
        }
    }
}

impl Habit {
    /// Threads that always want to run.
    pub fn hog(weight: u32, threads: usize) -> Habit {
        Habit { weight, threads, computes_ns: None, sleeps_ns: (0, 0), begins_ns: (0, 0), pins: Pins::Free }
    }
}

/// A scheduler that knows whose turn it is.
pub trait Levels: Scheduler {
    /// Neither is owed anything by the other from before.
    fn are_level(&self, f: ProgramId, g: ProgramId, now_ns: u64) -> bool;
}

impl Levels for Ideal {
    fn are_level(&self, f: ProgramId, g: ProgramId, now_ns: u64) -> bool {
        Ideal::are_level(self, f, g, now_ns)
    }
}

/// For histories of hogs only, which owe each other nothing.
impl Levels for FairQueue {
    fn are_level(&self, _: ProgramId, _: ProgramId, _: u64) -> bool {
        true
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Asleep { until_ns: u64 },
    Waiting,
    Running { core: usize, since_ns: u64 },
}

#[derive(Default)]
struct Asked(Vec<CoreId>);

impl Effects for Asked {
    fn reschedule(&mut self, core: CoreId) {
        if !self.0.contains(&core) {
            self.0.push(core);
        }
    }

    fn spent(&mut self, _: CoreId, _: Spent) {}
}

/// A machine on which these programs run.
pub struct History<S> {
    pub scheduler: S,
    pub now_ns: u64,
    pub served_ns: Vec<u64>,
    pub stops: u64,
    habits: Vec<Habit>,
    program_of: Vec<ProgramId>,
    pins: Vec<Option<CoreId>>,
    states: Vec<State>,
    /// CPU time until each thread blocks.
    left_ns: Vec<u64>,
    cores: Vec<Option<(Run, u64)>>,
    asked: Asked,
    random: Random,
    checker: BoundChecker,
}

/// Tasks of these programs.
pub fn tasks(habits: &[Habit]) -> Tasks {
    let mut tasks = Tasks::default();
    for habit in habits {
        let program = tasks.add_program(habit.weight);
        for thread in 0..habit.threads {
            tasks.add_thread(program, habit.pins.of(thread));
        }
    }
    tasks
}

/// The ideal scheduler through a history.
pub fn ideal(cores: usize, habits: &[Habit], options: IdealOptions, seed: u64) -> History<Ideal> {
    let machine = Machine::new(cores, 1).unwrap();
    History::new(Ideal::new(&machine, &tasks(habits), options).unwrap(), cores, habits, seed)
}

/// One of the others through a history of hogs.
pub fn fair_queue(
    cores: usize,
    habits: &[Habit],
    kind: FairQueueKind,
    quantum_ns: u64,
    seed: u64,
) -> History<FairQueue> {
    assert!(habits.iter().all(|habit| habit.computes_ns.is_none()), "hogs only");
    let machine = Machine::new(cores, 1).unwrap();
    History::new(FairQueue::new(&machine, &tasks(habits), kind, quantum_ns).unwrap(), cores, habits, seed)
}

impl<S: Levels> History<S> {
    pub fn new(scheduler: S, cores: usize, habits: &[Habit], seed: u64) -> History<S> {
        let tasks = tasks(habits);
        let mut random = Random::new(seed);
        let program_of: Vec<ProgramId> =
            (0..tasks.threads() as u32).map(|thread| tasks.program_of(ThreadId(thread))).collect();
        let pins = (0..tasks.threads() as u32).map(|thread| tasks.pin(ThreadId(thread))).collect();
        let of = |program: &ProgramId| habits[program.index()];
        let states = program_of.iter().map(|program| {
            let (low, high) = of(program).begins_ns;
            State::Asleep { until_ns: random.between(low, high) }
        });
        let states = states.collect();
        let weights: Vec<u32> = habits.iter().map(|habit| habit.weight).collect();
        let mut history = History {
            scheduler,
            now_ns: 0,
            served_ns: vec![0; habits.len()],
            stops: 0,
            habits: habits.to_vec(),
            left_ns: vec![0; program_of.len()],
            program_of,
            pins,
            states,
            cores: vec![None; cores],
            asked: Asked::default(),
            random,
            checker: BoundChecker::new(&weights),
        };
        (0..history.left_ns.len()).for_each(|thread| history.compute(thread));
        history
    }

    fn compute(&mut self, thread: usize) {
        let habit = self.habits[self.program_of[thread].index()];
        self.left_ns[thread] = habit.computes_ns.map_or(u64::MAX, |(low, high)| self.random.between(low, high));
    }

    /// All threads of `program` but its first `but` wake at that time only.
    pub fn delay(&mut self, program: usize, but: usize, until_ns: u64) {
        let of_it = (0..self.states.len()).filter(|thread| self.program_of[*thread].index() == program).skip(but);
        of_it.for_each(|thread| self.states[thread] = State::Asleep { until_ns });
    }

    /// No thread of `program` but its first `but` ever blocks.
    pub fn never_blocks(&mut self, program: usize, but: usize) {
        let of_it = (0..self.states.len()).filter(|thread| self.program_of[*thread].index() == program).skip(but);
        of_it.for_each(|thread| self.left_ns[thread] = u64::MAX);
    }

    /// Goes on until `to_ns`.
    pub fn run_to(&mut self, to_ns: u64) {
        while let Some(next_ns) = self.next_ns().filter(|next_ns| *next_ns <= to_ns) {
            self.now_ns = next_ns;
            self.step();
        }
        self.now_ns = to_ns;
        self.tell();
    }

    /// The largest unfairness of each pair, and the number of intervals.
    pub fn finish(self) -> (Vec<PairUnfairness>, u64) {
        self.checker.finish()
    }

    /// CPU time of a program by now.
    pub fn served_ns(&self, program: usize) -> u64 {
        let on = self.cores.iter().flatten();
        let of_it = on.filter(|(run, _)| self.program_of[run.thread.index()].index() == program);
        self.served_ns[program] + of_it.map(|(_, since_ns)| self.now_ns - since_ns).sum::<u64>()
    }

    /// The program's threads that are on cores.
    pub fn running(&self, program: usize) -> usize {
        self.count()[program].0
    }

    fn blocks_ns(&self, run: &Run, since_ns: u64) -> u64 {
        since_ns.saturating_add(self.left_ns[run.thread.index()])
    }

    fn next_ns(&self) -> Option<u64> {
        let sleepers = self.states.iter().filter_map(|state| match state {
            State::Asleep { until_ns } => Some(*until_ns),
            _ => None,
        });
        let cores = self.cores.iter().flatten();
        let stops = cores.map(|(run, since_ns)| self.blocks_ns(run, *since_ns).min(run.until_ns.unwrap_or(u64::MAX)));
        sleepers.chain(stops).chain(self.scheduler.next_timer_ns()).min()
    }

    /// One thing that happens now, chosen by chance among all that do.
    fn step(&mut self) {
        let now_ns = self.now_ns;
        let timer = usize::from(self.scheduler.next_timer_ns() == Some(now_ns));
        let woken = |state: &State| *state == State::Asleep { until_ns: now_ns };
        let wakes: Vec<usize> = (0..self.states.len()).filter(|thread| woken(&self.states[*thread])).collect();
        let ends = |core: &usize| {
            self.cores[*core]
                .is_some_and(|(run, since_ns)| run.until_ns == Some(now_ns) || self.blocks_ns(&run, since_ns) == now_ns)
        };
        let stops: Vec<usize> = (0..self.cores.len()).filter(ends).collect();
        let chosen = self.random.scaled((timer + wakes.len() + stops.len()) as u64) as usize;
        if chosen < timer {
            self.scheduler.timer(now_ns, &mut self.asked);
        } else if let Some(&thread) = wakes.get(chosen - timer) {
            self.states[thread] = State::Waiting;
            self.scheduler.wake(ThreadId(thread as u32), None, now_ns, &mut self.asked);
        } else {
            let core = stops[chosen - timer - wakes.len()];
            let (run, since_ns) = self.cores[core].unwrap();
            let blocks = self.blocks_ns(&run, since_ns) == now_ns;
            self.stop(core, if blocks { Stop::Blocked } else { Stop::Expired });
            self.pick(core);
        }
        while let Some(core) = self.asked.0.pop() {
            if self.cores[core.index()].is_some() {
                self.stop(core.index(), Stop::Preempted);
            }
            self.pick(core.index());
        }
        self.tell();
    }

    fn stop(&mut self, core: usize, why: Stop) {
        let (run, since_ns) = self.cores[core].take().unwrap();
        let (thread, ran_ns) = (run.thread.index(), self.now_ns - since_ns);
        self.stops += 1;
        self.served_ns[self.program_of[thread].index()] += ran_ns;
        if why == Stop::Blocked {
            let (low, high) = self.habits[self.program_of[thread].index()].sleeps_ns;
            self.states[thread] = State::Asleep { until_ns: self.now_ns + self.random.between(low, high) };
            self.compute(thread);
        } else {
            self.states[thread] = State::Waiting;
            self.left_ns[thread] -= if self.left_ns[thread] == u64::MAX { 0 } else { ran_ns };
        }
        self.scheduler.stop(CoreId(core as u16), run.thread, why, ran_ns, self.now_ns, &mut self.asked);
    }

    fn pick(&mut self, core: usize) {
        self.asked.0.retain(|asked| asked.index() != core);
        let Some(run) = self.scheduler.pick(CoreId(core as u16), self.now_ns, &mut self.asked) else { return };
        let state = &mut self.states[run.thread.index()];
        assert_eq!(*state, State::Waiting, "{:?} was picked", run.thread);
        *state = State::Running { core, since_ns: self.now_ns };
        self.cores[core] = Some((run, self.now_ns));
    }

    /// For each program, threads on cores and threads that wait.
    fn count(&self) -> Vec<(usize, usize)> {
        let mut counts = vec![(0, 0); self.habits.len()];
        for (thread, state) in self.states.iter().enumerate() {
            let count = &mut counts[self.program_of[thread].index()];
            match state {
                State::Running { .. } => count.0 += 1,
                State::Waiting => count.1 += 1,
                State::Asleep { .. } => {}
            }
        }
        counts
    }

    fn tell(&mut self) {
        let counts = self.count();
        let is_idle = |core: usize| self.cores[core].is_none();
        let has_idle = (0..self.cores.len()).any(is_idle);
        for (thread, pin) in self.pins.iter().enumerate().filter(|(thread, _)| self.states[*thread] == State::Waiting) {
            let may_run = pin.map_or(has_idle, |pin| is_idle(pin.index()));
            assert!(!may_run, "thread {thread} waits and a core of it is idle at {} ns", self.now_ns);
        }
        let running: Vec<u16> = counts.iter().map(|count| count.0 as u16).collect();
        let wants: Vec<bool> = counts.iter().map(|count| count.1 > 0 || count.0 == self.cores.len()).collect();
        let (scheduler, now_ns) = (&self.scheduler, self.now_ns);
        let level = |f: usize, g: usize| scheduler.are_level(ProgramId(f as u16), ProgramId(g as u16), now_ns);
        self.checker.moment(self.now_ns, &running, &wants, level);
    }
}
