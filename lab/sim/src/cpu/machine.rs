//! Simulated machine: executes the next event.
//!
//! The driver of [`mqfq_cpu::scheduler::Scheduler`] in virtual time. A core has at most one next event: its thread's
//! activity ends, its slice ends, a tick, an interrupt. [`Agenda`] knows which core is first. Between events nothing
//! changes, so nothing is computed.
//!
//! ```text
//!   event of a core ─▶ settle (give the time since the last one) ─▶ tick? ─▶ slice over, interrupt? stop
//!                                                                              ─▶ pick ─▶ execute steps until one takes time or blocks
//! ```
//!
//! # What costs time
//! Costs are the [`Costs`] of the scenario, paid by the core that has them before its thread goes on, and charged to
//! that thread, as a kernel's clock does. A thread that finds its mutex free, or comes last to a barrier, pays nothing
//! for that.
//!
//! # Ties
//! At one instant: sleepers wake first, in the order in which they fell asleep; then the policy's timer; then cores by
//! number. A core's work that ends when its slice does has ended.

mod steps;

use super::body::{Bases, DEPTH_MAX, Op, flatten};
use super::outcome::{Outcome, ProgramOutcome, Stretch, ThreadOutcome};
use super::scenario::{Costs, Scenario};
use super::sync::{Barrier, Condition, Mutex, Semaphore};
use crate::workload::random::{Random, fnv};
use mqfq_cpu::scheduler::{CoreId, Effects, Scheduler, Spent, Stop, Tasks, ThreadId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use steps::Then;

/// How often it is looked where a program's threads are.
const LOOK_NS: u64 = 10_000_000;

/// Runs it.
///
/// # Errors
/// One sentence: a scheduler that cannot be made, a program whose threads all wait for each other, or a policy that
/// breaks a promise.
pub fn run(scenario: &Scenario) -> Result<Outcome, String> {
    let scheduler = super::schedulers::make(scenario)?;
    run_with(scenario, scheduler)
}

/// Runs a scenario under any policy.
///
/// # Errors
/// As [`run`].
pub fn run_with<S: Scheduler>(scenario: &Scenario, scheduler: S) -> Result<Outcome, String> {
    let mut machine = Machine::new(scenario, scheduler)?;
    machine.run()?;
    Ok(machine.outcome())
}

struct Core {
    running: Option<u32>,
    picked_ns: u64,
    /// Time is accounted until here.
    settled_ns: u64,
    /// To be paid before anything else.
    debt_ns: u64,
    /// When the running thread's activity ends.
    end_ns: u64,
    until_ns: u64,
    tick_ns: u64,
    interrupt_ns: u64,
    last: Option<u32>,
    /// Thread that was stopped here just now and could have gone on.
    preempted: Option<u32>,
}

struct Thread {
    program: u32,
    code: u32,
    pc: u32,
    doing: Doing,
    granted: bool,
    state: State,
    loops: [u32; DEPTH_MAX],
    held: Vec<u32>,
    core: Option<u32>,
    since_ns: u64,
    random: Random,
    given: ThreadOutcome,
    queued_ns_max: u64,
}

/// Activity of a thread when it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    /// The operation at `pc`.
    Next,
    Compute {
        left_ns: u64,
    },
    /// It waits to be granted something, or to find the mutex free.
    Waiting {
        mutex: Option<u32>,
        spin_ns: u64,
    },
    /// It tries to get the mutex.
    Take {
        mutex: u32,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Blocked,
    Queued,
    Running(u32),
}

#[derive(Default)]
struct Told {
    reschedule: Vec<CoreId>,
    spent: Vec<(CoreId, Spent)>,
}

impl Effects for Told {
    fn reschedule(&mut self, core: CoreId) {
        self.reschedule.push(core);
    }

    fn spent(&mut self, core: CoreId, what: Spent) {
        self.spent.push((core, what));
    }
}

struct Machine<'a, S> {
    scenario: &'a Scenario,
    scheduler: S,
    tasks: Tasks,
    costs: Costs,
    now_ns: u64,
    agenda: Agenda,
    cores: Vec<Core>,
    threads: Vec<Thread>,
    codes: Vec<Vec<Op>>,
    mutexes: Vec<Mutex>,
    conditions: Vec<Condition>,
    barriers: Vec<Barrier>,
    semaphores: Vec<Semaphore>,
    asleep: BinaryHeap<Reverse<(u64, u64, u32)>>,
    fell_asleep: u64,
    told: Told,
    programs: Vec<ProgramOutcome>,
    first_thread: Vec<u32>,
    // Idle cores and queued threads, over time.
    idle: u64,
    queued: u64,
    counted_ns: u64,
    idle_ns: u64,
    idle_while_queued_ns: u64,
    events: u64,
    looks: u64,
    timeline: Vec<Stretch>,
}

impl<'a, S: Scheduler> Machine<'a, S> {
    fn new(scenario: &'a Scenario, scheduler: S) -> Result<Machine<'a, S>, String> {
        let cores = scenario.machine.cores();
        let mut machine = Machine {
            scenario,
            scheduler,
            tasks: scenario.tasks(),
            costs: scenario.costs,
            now_ns: 0,
            agenda: Agenda::new(cores),
            cores: Vec::with_capacity(cores),
            threads: Vec::new(),
            codes: Vec::new(),
            mutexes: Vec::new(),
            conditions: Vec::new(),
            barriers: Vec::new(),
            semaphores: Vec::new(),
            asleep: BinaryHeap::new(),
            fell_asleep: 0,
            told: Told::default(),
            programs: Vec::new(),
            first_thread: Vec::new(),
            idle: cores as u64,
            queued: 0,
            counted_ns: 0,
            idle_ns: 0,
            idle_while_queued_ns: 0,
            events: 0,
            looks: 0,
            timeline: Vec::new(),
        };
        machine.cores.resize_with(cores, || Core {
            running: None,
            picked_ns: 0,
            settled_ns: 0,
            debt_ns: 0,
            end_ns: NEVER,
            until_ns: NEVER,
            tick_ns: NEVER,
            interrupt_ns: NEVER,
            last: None,
            preempted: None,
        });
        for number in 0..scenario.programs.len() {
            machine.add_program(number)?;
        }
        Ok(machine)
    }

    fn add_program(&mut self, number: usize) -> Result<(), String> {
        let program = &self.scenario.programs[number];
        let body = &program.body;
        body.check().map_err(|why| format!("program {}: {why}", program.name))?;
        let bases = Bases {
            mutex: self.mutexes.len() as u32,
            condition: self.conditions.len() as u32,
            barrier: self.barriers.len() as u32,
            semaphore: self.semaphores.len() as u32,
        };
        self.mutexes.extend((0..body.mutexes).map(|_| Mutex::default()));
        self.conditions.extend((0..body.conditions).map(|_| Condition::default()));
        self.barriers.extend(body.barriers.iter().map(|parties| Barrier { parties: *parties, waiters: Vec::new() }));
        let semaphore = |value: &u32| Semaphore { value: *value, ..Semaphore::default() };
        self.semaphores.extend(body.semaphores.iter().map(semaphore));
        self.first_thread.push(self.threads.len() as u32);
        let mut of_program = 0;
        for role in &body.roles {
            self.codes.push(flatten(&role.steps, bases).map_err(|why| format!("program {}: {why}", program.name))?);
            for _ in 0..role.threads {
                let mut random = Random::of(self.scenario.seed, fnv(program.name.as_bytes()), 0, of_program);
                let start_ns = random.below(self.scenario.start_spread_ns.max(1));
                self.asleep.push(Reverse((start_ns, self.fell_asleep, self.threads.len() as u32)));
                self.fell_asleep += 1;
                self.threads.push(Thread {
                    program: number as u32,
                    code: self.codes.len() as u32 - 1,
                    pc: 0,
                    doing: Doing::Next,
                    granted: false,
                    state: State::Blocked,
                    loops: [0; DEPTH_MAX],
                    held: Vec::new(),
                    core: None,
                    since_ns: 0,
                    random,
                    given: ThreadOutcome::default(),
                    queued_ns_max: 0,
                });
                of_program += 1;
            }
        }
        self.programs.push(ProgramOutcome::none(&program.name, program.weight, of_program));
        Ok(())
    }

    fn run(&mut self) -> Result<(), String> {
        let end_ns = self.scenario.warm_up_ns + self.scenario.measured_ns;
        let mut is_warm = false;
        let mut look_ns = self.scenario.warm_up_ns + LOOK_NS;
        loop {
            let (core_ns, core) = self.agenda.first();
            let asleep_ns = self.asleep.peek().map_or(NEVER, |Reverse((at_ns, ..))| *at_ns);
            let timer_ns = self.scheduler.next_timer_ns().unwrap_or(NEVER);
            let next_ns = core_ns.min(asleep_ns).min(timer_ns);
            if !is_warm && next_ns >= self.scenario.warm_up_ns {
                self.count_from(self.scenario.warm_up_ns);
                is_warm = true;
            }
            while next_ns >= look_ns && look_ns <= end_ns {
                self.look();
                look_ns += LOOK_NS;
            }
            if next_ns >= end_ns {
                if next_ns == NEVER && self.threads.iter().all(|thread| thread.state == State::Blocked) {
                    return Err("every thread waits for another one, and nothing will ever happen".into());
                }
                self.count_from(end_ns);
                (0..self.cores.len()).for_each(|core| self.close_stretch(core));
                return Ok(());
            }
            self.now_ns = next_ns;
            self.events += 1;
            if asleep_ns == next_ns {
                let Reverse((_, _, thread)) = self.asleep.pop().expect("it was there");
                self.wake(thread, None);
            } else if timer_ns == next_ns {
                self.scheduler.timer(next_ns, &mut self.told);
                self.hear(None);
                if self.scheduler.next_timer_ns().is_some_and(|at_ns| at_ns <= next_ns) {
                    return Err(format!("the policy's timer of {next_ns} ns fires for ever"));
                }
            } else {
                self.event(core)?;
            }
        }
    }

    /// Settles all time until `at_ns`, which counts only after the beginning.
    fn count_from(&mut self, at_ns: u64) {
        self.now_ns = at_ns;
        self.count_idle();
        for core in 0..self.cores.len() {
            self.settle(core);
        }
        let is_begin = at_ns == self.scenario.warm_up_ns;
        for thread in &mut self.threads {
            if thread.state == State::Queued {
                let waited_ns = at_ns - thread.since_ns;
                thread.given.queued_ns += waited_ns;
                thread.queued_ns_max = thread.queued_ns_max.max(waited_ns);
                thread.since_ns = at_ns;
            }
            if is_begin {
                thread.given = ThreadOutcome::default();
                thread.queued_ns_max = 0;
            }
        }
        if is_begin {
            (self.idle_ns, self.idle_while_queued_ns, self.events, self.looks) = (0, 0, 0, 0);
            for (outcome, program) in self.programs.iter_mut().zip(&self.scenario.programs) {
                *outcome = ProgramOutcome::none(&program.name, program.weight, outcome.threads);
            }
        }
    }

    fn count_idle(&mut self) {
        let passed_ns = self.now_ns - self.counted_ns;
        self.counted_ns = self.now_ns;
        self.idle_ns += self.idle * passed_ns;
        self.idle_while_queued_ns += self.idle.min(self.queued) * passed_ns;
    }

    /// Where are the threads?
    fn look(&mut self) {
        let mut seen = vec![u32::MAX; self.cores.len()];
        self.looks += 1;
        for thread in &self.threads {
            if let Some(core) = thread.core
                && seen[core as usize] != thread.program
            {
                seen[core as usize] = thread.program;
                self.programs[thread.program as usize].cores_last_mean += 1.0;
            }
        }
    }

    fn event(&mut self, at: usize) -> Result<(), String> {
        let now_ns = self.now_ns;
        self.settle(at);
        if self.cores[at].tick_ns <= now_ns {
            let core = &mut self.cores[at];
            let each_ns = self.scheduler.tick_ns().unwrap_or(NEVER);
            core.tick_ns = now_ns.saturating_add(each_ns);
            if let Some(thread) = core.running {
                let ran_ns = now_ns - core.picked_ns;
                self.scheduler.tick(CoreId(at as u16), ThreadId(thread), ran_ns, now_ns, &mut self.told);
                self.hear(Some(at));
            }
        }
        let core = &self.cores[at];
        if core.running.is_some() {
            if core.until_ns <= now_ns {
                self.stop(at, Stop::Expired);
            } else if core.interrupt_ns <= now_ns {
                self.stop(at, Stop::Preempted);
            }
        }
        let core = &self.cores[at];
        if core.running.is_none() || core.end_ns <= now_ns {
            self.go_on(at)?;
        }
        self.plan(at);
        Ok(())
    }

    /// When this core's next event is.
    fn plan(&mut self, at: usize) {
        let core = &self.cores[at];
        let next = core.end_ns.min(core.until_ns).min(core.tick_ns).min(core.interrupt_ns);
        self.agenda.set(at, next);
    }

    /// Gives the time since the last event to the running thread.
    fn settle(&mut self, at: usize) {
        let core = &mut self.cores[at];
        let passed_ns = self.now_ns - core.settled_ns;
        core.settled_ns = self.now_ns;
        let Some(number) = core.running else { return };
        let overhead_ns = passed_ns.min(core.debt_ns);
        core.debt_ns -= overhead_ns;
        let rest_ns = passed_ns - overhead_ns;
        let thread = &mut self.threads[number as usize];
        let program = &mut self.programs[thread.program as usize];
        thread.given.cpu_ns += passed_ns;
        program.cpu_ns += passed_ns;
        program.overhead_ns += overhead_ns;
        match &mut thread.doing {
            Doing::Compute { left_ns } => {
                program.useful_ns += rest_ns;
                *left_ns -= rest_ns;
                if *left_ns == 0 {
                    thread.doing = Doing::Next;
                    thread.pc += 1;
                }
            }
            Doing::Waiting { spin_ns, .. } => {
                program.spun_ns += rest_ns;
                if *spin_ns != NEVER {
                    *spin_ns -= rest_ns;
                }
            }
            // Nothing but costs lie between an operation and the next.
            Doing::Next | Doing::Take { .. } => program.overhead_ns += rest_ns,
        }
    }

    fn close_stretch(&mut self, at: usize) {
        let core = &self.cores[at];
        let (Some((from_ns, to_ns)), Some(thread)) = (self.scenario.window_ns, core.running) else { return };
        let (from_ns, to_ns) = (core.picked_ns.max(from_ns), self.now_ns.min(to_ns));
        if from_ns < to_ns {
            let program = self.threads[thread as usize].program;
            let of_program = thread - self.first_thread[program as usize];
            self.timeline.push(Stretch { core: at as u32, program, thread: of_program, from_ns, to_ns });
        }
    }

    /// Its thread no longer runs.
    fn stop(&mut self, at: usize, why: Stop) {
        self.count_idle();
        self.close_stretch(at);
        let core = &mut self.cores[at];
        let number = core.running.take().expect("a core that runs something");
        core.end_ns = NEVER;
        core.until_ns = NEVER;
        let ran_ns = self.now_ns - core.picked_ns;
        let thread = &mut self.threads[number as usize];
        let program = &mut self.programs[thread.program as usize];
        if why.is_runnable() {
            thread.state = State::Queued;
            thread.since_ns = self.now_ns;
            self.queued += 1;
            core.preempted = Some(number);
        } else {
            thread.state = State::Blocked;
            program.blocks += 1;
        }
        self.idle += 1;
        self.scheduler.stop(CoreId(at as u16), ThreadId(number), why, ran_ns, self.now_ns, &mut self.told);
        self.hear(Some(at));
    }

    /// Carries out the policy's answers. `here` is the core that is being served.
    fn hear(&mut self, here: Option<usize>) {
        while let Some((core, what)) = self.told.spent.pop() {
            let cost_ns = match what {
                Spent::DoubleLock => self.costs.double_lock_ns,
                Spent::Scan { cores } => u64::from(cores) * self.costs.scan_ns,
            };
            // An idle core has time for it, and pays once it runs a thread.
            self.cores[core.index()].debt_ns += cost_ns;
            if self.cores[core.index()].end_ns != NEVER && Some(core.index()) != here {
                let end_ns = &mut self.cores[core.index()].end_ns;
                *end_ns = end_ns.saturating_add(cost_ns);
            }
        }
        while let Some(core) = self.told.reschedule.pop() {
            let delay_ns = if Some(core.index()) == here { 0 } else { self.costs.interrupt_ns };
            let interrupt_ns = &mut self.cores[core.index()].interrupt_ns;
            *interrupt_ns = (*interrupt_ns).min(self.now_ns + delay_ns);
            self.plan(core.index());
        }
    }

    /// `by` is the core whose thread does it.
    fn wake(&mut self, number: u32, by: Option<usize>) {
        self.count_idle();
        let thread = &mut self.threads[number as usize];
        debug_assert_eq!(thread.state, State::Blocked);
        thread.state = State::Queued;
        thread.since_ns = self.now_ns;
        self.queued += 1;
        self.programs[thread.program as usize].wakes += 1;
        if let Some(by) = by {
            self.cores[by].debt_ns += self.costs.wake_ns;
        }
        self.scheduler.wake(ThreadId(number), by.map(|by| CoreId(by as u16)), self.now_ns, &mut self.told);
        self.hear(by);
    }

    /// The core picks, if it runs nothing, and executes, until something takes time or nothing is left.
    fn go_on(&mut self, at: usize) -> Result<(), String> {
        loop {
            if self.cores[at].running.is_none() && !self.pick(at)? {
                return Ok(());
            }
            match self.execute(at)? {
                Then::Runs => return Ok(()),
                Then::Blocks => self.stop(at, Stop::Blocked),
                Then::IsAskedFor => self.stop(at, Stop::Preempted),
            }
        }
    }

    fn pick(&mut self, at: usize) -> Result<bool, String> {
        self.count_idle();
        let now_ns = self.now_ns;
        self.cores[at].interrupt_ns = NEVER;
        let run = self.scheduler.pick(CoreId(at as u16), now_ns, &mut self.told);
        let core = &mut self.cores[at];
        core.picked_ns = now_ns;
        core.settled_ns = now_ns;
        let Some(run) = run else {
            core.tick_ns = NEVER;
            // To leave idleness is a switch as well.
            core.last = None;
            core.debt_ns = 0;
            self.hear(Some(at));
            self.cores[at].debt_ns = 0;
            return Ok(false);
        };
        let number = run.thread.0;
        let thread = &mut self.threads[number as usize];
        let wrong = match thread.state {
            State::Queued if self.tasks.may_run(run.thread, CoreId(at as u16)) => None,
            State::Queued => Some("is pinned elsewhere".to_string()),
            State::Running(core) => Some(format!("runs on core {core}")),
            State::Blocked => Some("is blocked".to_string()),
        };
        if let Some(wrong) = wrong {
            return Err(format!("the policy picked for core {at} thread {number}, which {wrong}"));
        }
        if run.until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
            return Err(format!("the policy gave thread {number} a slice without length"));
        }
        let waited_ns = now_ns - thread.since_ns;
        thread.given.queued_ns += waited_ns;
        thread.queued_ns_max = thread.queued_ns_max.max(waited_ns);
        thread.state = State::Running(at as u32);
        let program = &mut self.programs[thread.program as usize];
        core.running = Some(number);
        core.until_ns = run.until_ns.unwrap_or(NEVER);
        if core.last != Some(number) {
            core.debt_ns += self.costs.context_switch_ns;
            program.context_switches += 1;
        }
        if let Some(lost) = core.preempted.take().filter(|lost| *lost != number) {
            let program = self.threads[lost as usize].program;
            self.programs[program as usize].preemptions += 1;
        }
        let thread = &mut self.threads[number as usize];
        let program = &mut self.programs[thread.program as usize];
        let core = &mut self.cores[at];
        if let Some(before) = thread.core.replace(at as u32)
            && before != at as u32
        {
            program.migrations += 1;
            core.debt_ns += match self.scenario.machine.share_socket(CoreId(before as u16), CoreId(at as u16)) {
                true => self.costs.migration_ns,
                false => self.costs.migration_other_socket_ns,
            };
        }
        core.last = Some(number);
        core.tick_ns = match self.scheduler.tick_ns() {
            Some(each_ns) => (now_ns / each_ns + 1) * each_ns,
            None => NEVER,
        };
        self.idle -= 1;
        self.queued -= 1;
        self.hear(Some(at));
        Ok(true)
    }

    fn outcome(mut self) -> Outcome {
        let measured_ns = self.scenario.measured_ns;
        let all_ns = (measured_ns * self.cores.len() as u64) as f64;
        let looks = self.looks.max(1) as f64;
        for (program, first) in self.programs.iter_mut().zip(&self.first_thread) {
            let threads = &self.threads[*first as usize..(*first + program.threads) as usize];
            program.share = program.cpu_ns as f64 / all_ns;
            program.cores_used = program.cpu_ns as f64 / measured_ns as f64;
            program.items_per_s = program.items as f64 / (measured_ns as f64 * 1e-9);
            program.cores_last_mean /= looks;
            program.by_thread = threads.iter().map(|thread| thread.given).collect();
            program.queued_ns = threads.iter().map(|thread| thread.given.queued_ns).sum();
            program.queued_ns_max = threads.iter().map(|thread| thread.queued_ns_max).max().unwrap_or(0);
        }
        Outcome {
            scheduler: self.scenario.scheduler.name().into(),
            cores: self.cores.len() as u32,
            measured_ns,
            programs: std::mem::take(&mut self.programs),
            idle_ns: self.idle_ns,
            idle_while_queued_ns: self.idle_while_queued_ns,
            events: self.events,
            timeline: std::mem::take(&mut self.timeline),
        }
    }
}

impl ProgramOutcome {
    fn none(name: &str, weight: u32, threads: u32) -> ProgramOutcome {
        ProgramOutcome {
            name: name.into(),
            weight,
            threads,
            cpu_ns: 0,
            useful_ns: 0,
            spun_ns: 0,
            overhead_ns: 0,
            share: 0.0,
            cores_used: 0.0,
            items: 0,
            items_per_s: 0.0,
            queued_ns: 0,
            migrations: 0,
            preemptions: 0,
            context_switches: 0,
            blocks: 0,
            wakes: 0,
            cores_last_mean: 0.0,
            queued_ns_max: 0,
            by_thread: Vec::new(),
        }
    }
}

// Which core has something to do first?
//
// A tournament over the next event of each core: the winner is known, and a change plays the log2 n games on its way.
// No memory is taken after construction, nothing becomes stale, and of two at the same instant the smaller core comes
// first.

/// Time of an event that will not happen.
pub const NEVER: u64 = u64::MAX;

/// The next event of each core.
pub struct Agenda {
    /// Leaves from `leaves` on; inner nodes hold the smaller of their two children.
    nodes: Vec<u64>,
    leaves: usize,
}

impl Agenda {
    /// No core has an event.
    pub fn new(cores: usize) -> Agenda {
        let leaves = cores.next_power_of_two();
        Agenda { nodes: vec![NEVER; 2 * leaves], leaves }
    }

    /// The next event of `core` is at `at_ns`.
    pub fn set(&mut self, core: usize, at_ns: u64) {
        let mut node = self.leaves + core;
        self.nodes[node] = at_ns;
        while node > 1 {
            node /= 2;
            let least = self.nodes[2 * node].min(self.nodes[2 * node + 1]);
            if self.nodes[node] == least {
                break;
            }
            self.nodes[node] = least;
        }
    }

    /// The first event of all and whose it is.
    pub fn first(&self) -> (u64, usize) {
        let at_ns = self.nodes[1];
        let mut node = 1;
        while node < self.leaves {
            node = 2 * node + usize::from(self.nodes[2 * node] != at_ns);
        }
        (at_ns, node - self.leaves)
    }
}

#[cfg(test)]
mod agenda_tests {
    use super::*;
    use crate::workload::random::Random;

    #[test]
    fn the_first_is_the_least_of_all_and_of_equals_the_smallest_core() {
        for cores in [1, 2, 3, 7, 64, 100] {
            let (mut agenda, mut plain) = (Agenda::new(cores), vec![NEVER; cores]);
            let mut random = Random::of(1, 0, 0, cores as u32);
            for _ in 0..2_000 {
                let core = random.below(cores as u64) as usize;
                let at_ns = if random.percent(20) { NEVER } else { random.below(50) };
                agenda.set(core, at_ns);
                plain[core] = at_ns;
                let least = *plain.iter().min().unwrap();
                let first = plain.iter().position(|at_ns| *at_ns == least).unwrap();
                assert_eq!(agenda.first(), (least, first), "{cores} cores");
            }
        }
    }
}
