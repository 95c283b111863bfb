//! Drives a scheduler through a history that a test writes down, and checks its promises.
//!
//! All operations are free and interrupts come at once, so a test sees the policy alone. Time moves in
//! [`ByHand::run_to`] only, which serves ticks, ends of slices and timers in their order. The test decides which thread
//! blocks and wakes when.

use crate::scheduler::{CoreId, Effects, Machine, Run, Scheduler, Spent, Stop, Tasks, ThreadId};

/// A scheduler on a machine whose time a test moves.
pub struct ByHand<S> {
    /// The policy; a test may look inside.
    pub scheduler: S,
    /// The threads and programs.
    pub tasks: Tasks,
    now_ns: u64,
    cores: Vec<Option<Running>>,
    threads: Vec<State>,
    asked: Asked,
    ran_ns: Vec<u64>,
    /// Threads picked on another core than the one they ran on before.
    pub migrations: u64,
    last_core: Vec<Option<CoreId>>,
}

#[derive(Clone, Copy)]
struct Running {
    run: Run,
    since_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Blocked,
    Queued,
    Running,
    Gone,
}

#[derive(Default)]
struct Asked {
    reschedule: Vec<CoreId>,
    double_locks: u64,
    scanned: u64,
}

impl Effects for Asked {
    fn reschedule(&mut self, core: CoreId) {
        if !self.reschedule.contains(&core) {
            self.reschedule.push(core);
        }
    }

    fn spent(&mut self, _: CoreId, what: Spent) {
        match what {
            Spent::DoubleLock => self.double_locks += 1,
            Spent::Scan { cores } => self.scanned += u64::from(cores),
        }
    }
}

impl<S: Scheduler> ByHand<S> {
    /// A machine at time 0 with all threads blocked.
    pub fn new(scheduler: S, machine: &Machine, tasks: &Tasks) -> ByHand<S> {
        ByHand {
            scheduler,
            tasks: tasks.clone(),
            now_ns: 0,
            cores: vec![None; machine.cores()],
            threads: vec![State::Blocked; tasks.threads()],
            asked: Asked::default(),
            ran_ns: vec![0; tasks.threads()],
            migrations: 0,
            last_core: vec![None; tasks.threads()],
        }
    }

    /// The time, ns.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The thread that runs on `core`.
    pub fn running(&self, core: u16) -> Option<ThreadId> {
        self.cores[usize::from(core)].map(|running| running.run.thread)
    }

    /// The core on which `thread` runs, if it does.
    pub fn core_of(&self, thread: ThreadId) -> Option<CoreId> {
        let at = self.cores.iter().position(|running| running.is_some_and(|running| running.run.thread == thread))?;
        Some(CoreId(at as u16))
    }

    /// CPU time of `thread` so far, ns.
    pub fn ran_ns(&self, thread: ThreadId) -> u64 {
        let running = self.core_of(thread).and_then(|core| self.cores[core.index()]);
        self.ran_ns[thread.index()] + running.map_or(0, |running| self.now_ns - running.since_ns)
    }

    /// Times that two queues were locked at once.
    pub fn double_locks(&self) -> u64 {
        self.asked.double_locks
    }

    /// Queues of other cores that were looked at.
    pub fn scanned(&self) -> u64 {
        self.asked.scanned
    }

    /// Wakes `thread` by `waker`, which must be running.
    pub fn wake_by(&mut self, thread: ThreadId, waker: Option<ThreadId>) {
        let state = std::mem::replace(&mut self.threads[thread.index()], State::Queued);
        assert_eq!(state, State::Blocked, "{thread:?} wakes");
        let waker = waker.map(|waker| self.core_of(waker).expect("the waker runs"));
        self.scheduler.wake(thread, waker, self.now_ns, &mut self.asked);
        self.serve();
    }

    /// Wakes `thread` without a waker.
    pub fn wake(&mut self, thread: ThreadId) {
        self.wake_by(thread, None);
    }

    /// Blocks `thread`, which must be running.
    pub fn block(&mut self, thread: ThreadId) {
        let core = self.core_of(thread).expect("only a thread that runs can block");
        self.stop(core, Stop::Blocked);
        self.pick(core);
        self.serve();
    }

    /// Ends `thread`, which must be running.
    pub fn exit(&mut self, thread: ThreadId) {
        let core = self.core_of(thread).expect("only a thread that runs can exit");
        self.stop(core, Stop::Exited);
        self.pick(core);
        self.serve();
    }

    /// Lets time run until `to_ns`, whose events are served as well.
    pub fn run_to(&mut self, to_ns: u64) {
        loop {
            let tick = self.scheduler.tick_ns().map(|each| (self.now_ns / each + 1) * each);
            let expiry = self.cores.iter().flatten().filter_map(|running| running.run.until_ns).min();
            let timer = self.scheduler.next_timer_ns();
            let next = [tick, expiry, timer].into_iter().flatten().min().filter(|next| *next <= to_ns);
            let Some(next) = next else { break };
            assert!(next >= self.now_ns, "an end of a slice or a timer in the past");
            self.now_ns = next;
            if timer == Some(next) {
                self.scheduler.timer(next, &mut self.asked);
                assert_ne!(self.scheduler.next_timer_ns(), Some(next), "the timer would fire for ever");
                self.serve();
            }
            for core in 0..self.cores.len() {
                let core = CoreId(core as u16);
                if self.cores[core.index()].is_some_and(|running| running.run.until_ns == Some(next)) {
                    self.stop(core, Stop::Expired);
                    self.pick(core);
                } else if let Some(Running { run, since_ns }) = self.cores[core.index()]
                    && tick == Some(next)
                {
                    self.scheduler.tick(core, run.thread, next - since_ns, next, &mut self.asked);
                }
                self.serve();
            }
        }
        self.now_ns = to_ns;
    }

    fn serve(&mut self) {
        while !self.asked.reschedule.is_empty() {
            let core = self.asked.reschedule.remove(0);
            if self.cores[core.index()].is_some() {
                self.stop(core, Stop::Preempted);
            }
            self.pick(core);
        }
    }

    fn stop(&mut self, core: CoreId, why: Stop) {
        let Running { run, since_ns } = self.cores[core.index()].take().expect("it runs something");
        let ran_ns = self.now_ns - since_ns;
        self.ran_ns[run.thread.index()] += ran_ns;
        self.threads[run.thread.index()] = match why {
            Stop::Blocked => State::Blocked,
            Stop::Exited => State::Gone,
            Stop::Preempted | Stop::Expired => State::Queued,
        };
        self.scheduler.stop(core, run.thread, why, ran_ns, self.now_ns, &mut self.asked);
    }

    fn pick(&mut self, core: CoreId) {
        self.asked.reschedule.retain(|asked| *asked != core);
        let Some(run) = self.scheduler.pick(core, self.now_ns, &mut self.asked) else { return };
        let state = std::mem::replace(&mut self.threads[run.thread.index()], State::Running);
        assert_eq!(state, State::Queued, "{:?} was picked for {core:?}", run.thread);
        assert!(self.tasks.may_run(run.thread, core), "{:?} is pinned elsewhere than {core:?}", run.thread);
        assert!(run.until_ns.is_none_or(|until| until > self.now_ns), "a slice without length");
        let last = self.last_core[run.thread.index()].replace(core);
        self.migrations += u64::from(last.is_some_and(|last| last != core));
        self.cores[core.index()] = Some(Running { run, since_ns: self.now_ns });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// One queue for all cores, slices of 10: small enough to be seen to be right.
    #[derive(Default)]
    struct RoundRobin {
        queue: VecDeque<ThreadId>,
        idle: Vec<CoreId>,
        forgets: bool,
    }

    impl Scheduler for RoundRobin {
        fn wake(&mut self, thread: ThreadId, _: Option<CoreId>, _: u64, out: &mut dyn Effects) {
            self.queue.push_back(thread);
            if let Some(core) = self.idle.pop() {
                out.reschedule(core);
            }
        }

        fn stop(&mut self, _: CoreId, thread: ThreadId, why: Stop, _: u64, _: u64, _: &mut dyn Effects) {
            if why.is_runnable() && !self.forgets {
                self.queue.push_back(thread);
            }
        }

        fn pick(&mut self, core: CoreId, now_ns: u64, _: &mut dyn Effects) -> Option<Run> {
            let Some(thread) = self.queue.pop_front() else {
                self.idle.push(core);
                return None;
            };
            if self.forgets {
                self.queue.push_back(thread);
            }
            Some(Run { thread, until_ns: Some(now_ns + 10) })
        }
    }

    fn three_on(cores: usize, forgets: bool) -> (ByHand<RoundRobin>, Vec<ThreadId>) {
        let machine = Machine::new(cores, 1).unwrap();
        let mut tasks = Tasks::default();
        let program = tasks.add_program(Tasks::WEIGHT_DEFAULT);
        let threads = (0..3).map(|_| tasks.add_thread(program, None)).collect();
        let idle = machine.all().rev().collect();
        (ByHand::new(RoundRobin { queue: VecDeque::new(), idle, forgets }, &machine, &tasks), threads)
    }

    #[test]
    fn a_history_is_what_a_policy_makes_of_wakes_and_blocks() {
        let (mut by_hand, threads) = three_on(1, false);
        threads.iter().for_each(|thread| by_hand.wake(*thread));
        assert_eq!(by_hand.running(0), Some(threads[0]));
        by_hand.run_to(25);
        assert_eq!(by_hand.running(0), Some(threads[2]), "0 to 10 the first, to 20 the second");
        by_hand.block(threads[2]);
        assert_eq!(by_hand.running(0), Some(threads[0]), "nobody else may have the core before the next");
        by_hand.run_to(45);
        let ran: Vec<u64> = threads.iter().map(|thread| by_hand.ran_ns(*thread)).collect();
        assert_eq!(ran, [20, 20, 5], "25 to 35 the first, to 45 the second");
        by_hand.wake(threads[2]);
        by_hand.exit(threads[0]);
        assert_eq!(by_hand.running(0), Some(threads[1]));
        by_hand.run_to(56);
        assert_eq!(by_hand.running(0), Some(threads[2]));
    }

    #[test]
    fn an_idle_core_that_is_told_picks_at_once_and_a_thread_that_moves_is_counted() {
        let (mut by_hand, threads) = three_on(2, false);
        by_hand.wake(threads[0]);
        by_hand.wake(threads[1]);
        assert_eq!((by_hand.running(0), by_hand.running(1)), (Some(threads[0]), Some(threads[1])));
        by_hand.wake(threads[2]);
        by_hand.block(threads[1]);
        assert_eq!(by_hand.running(1), Some(threads[2]));
        by_hand.wake(threads[1]);
        by_hand.run_to(10);
        assert_eq!((by_hand.running(0), by_hand.running(1)), (Some(threads[1]), Some(threads[0])));
        assert_eq!(by_hand.migrations, 2, "each on the core of the other");
    }

    #[test]
    #[should_panic(expected = "was picked for")]
    fn a_policy_that_runs_a_thread_twice_is_caught() {
        let (mut by_hand, threads) = three_on(2, true);
        by_hand.wake(threads[0]);
        by_hand.asked.reschedule(CoreId(1));
        by_hand.serve();
    }

    #[test]
    #[should_panic(expected = "is pinned elsewhere")]
    fn a_policy_that_does_not_look_at_pins_is_caught() {
        let machine = Machine::new(2, 1).unwrap();
        let mut tasks = Tasks::default();
        let program = tasks.add_program(Tasks::WEIGHT_DEFAULT);
        let thread = tasks.add_thread(program, Some(CoreId(1)));
        let policy = RoundRobin { idle: vec![CoreId(0)], ..RoundRobin::default() };
        ByHand::new(policy, &machine, &tasks).wake(thread);
    }

    #[test]
    #[should_panic(expected = "only a thread that runs can block")]
    fn a_history_that_cannot_be_is_caught() {
        let (mut by_hand, threads) = three_on(1, false);
        threads.iter().for_each(|thread| by_hand.wake(*thread));
        by_hand.block(threads[2]);
    }
}
