//! The interface of a CPU scheduler: what it sees, and what it may do.
//!
//! The interface between a scheduling policy and its driver: the simulator, a test ([`crate::by_hand`]), or a scheduler
//! that is loaded into Linux. The last one's callbacks are the reason for the shape:
//!
//! ```text
//!   here                        sched_ext
//!   wake                        select_cpu, then enqueue
//!   pick                        dispatch, then running
//!   tick                        tick
//!   stop(Blocked | Exited)      stopping(runnable = false), then quiescent
//!   stop(Preempted | Expired)   stopping(runnable = true), then enqueue
//!   Effects::reschedule         kick_cpu(preempt)
//!   timer                       a bpf_timer
//! ```
//!
//! # Shape
//! A policy is a state machine. It owns the waiting threads and their places; its driver owns the running threads, the
//! clock, and the reasons for blocking. A thread is
//!
//! ```text
//!             wake                pick
//!   blocked --------> queued <----------> running --stop(Exited)--> gone
//!      ^                 stop(Preempted, Expired)   |
//!      +-------------------- stop(Blocked) ---------+
//! ```
//!
//! and begins blocked.
//!
//! # What the driver promises
//! * Calls come in the order of their `now_ns`, one at a time. At one instant any order is possible.
//! * Each transition of the picture is reported once, and no other. A core that ran something gets [`Scheduler::stop`]
//!   before [`Scheduler::pick`].
//! * After `stop` comes `pick` for the same core, at the same instant. A core that got `None` is picked for again only
//!   after [`Effects::reschedule`].
//! * [`Effects::reschedule`] is served once the interrupt has come, which may be later; a `pick` for that core in
//!   between serves it.
//!
//! # What the policy promises
//! * `pick` returns a thread that is queued, and, if it is pinned, on that core alone. A queued thread is lost unless
//!   some core is told to reschedule or picks anyway: after `wake` finds an idle core for a thread, it calls
//!   `reschedule`.
//! * It is a function of the calls: no clock, no thread, no random number of its own, nothing whose order differs
//!   between two runs.
//!
//! Costs: none here. The cost of an operation is a parameter of the machine, and the driver counts it. It sees context
//! switches and migrations; the policy reports other work with [`Effects::spent`].

use std::ops::Range;

/// A thread, or a virtual CPU, that runs on a core. Dense from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ThreadId(pub u32);

/// A program, or a virtual machine, whose threads have a fair share together. Dense from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProgramId(pub u16);

/// A core. Dense from 0, socket by socket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CoreId(pub u16);

impl ThreadId {
    /// The number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl ProgramId {
    /// The number as an index.
    pub fn index(self) -> usize {
        self.0.into()
    }
}

impl CoreId {
    /// The number as an index.
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// The cores. Hyperthreads are cores like others: the effect on a sibling's speed is not modelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    cores: u16,
    sockets: u16,
}

impl Machine {
    /// Most cores.
    pub const CORES_MAX: usize = 4096;

    /// `cores` cores, spread evenly over `sockets` sockets.
    ///
    /// # Errors
    /// A number is out of range: one sentence with its value and the allowed ones.
    pub fn new(cores: usize, sockets: usize) -> Result<Machine, String> {
        if cores == 0 || cores > Machine::CORES_MAX {
            return Err(format!("{cores} cores, allowed is 1 to {}", Machine::CORES_MAX));
        }
        if sockets == 0 || !cores.is_multiple_of(sockets) {
            return Err(format!(
                "{cores} cores on {sockets} sockets, allowed is a number of sockets that divides the cores evenly"
            ));
        }
        Ok(Machine { cores: cores as u16, sockets: sockets as u16 })
    }

    /// Number of cores.
    pub fn cores(&self) -> usize {
        self.cores.into()
    }

    /// Number of sockets.
    pub fn sockets(&self) -> usize {
        self.sockets.into()
    }

    /// All cores, in order.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = CoreId> + use<> {
        (0..self.cores).map(CoreId)
    }

    /// The cores of that core's socket, as indices.
    pub fn socket_of(&self, core: CoreId) -> Range<usize> {
        let each = self.cores() / self.sockets();
        let first = core.index() / each * each;
        first..first + each
    }

    /// Do the two cores share a socket?
    pub fn share_socket(&self, a: CoreId, b: CoreId) -> bool {
        self.socket_of(a) == self.socket_of(b)
    }
}

/// The threads and the programs that they belong to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tasks {
    programs: Vec<Program>,
    threads: Vec<Thread>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Program {
    weight: u32,
    threads: Vec<ThreadId>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Thread {
    program: ProgramId,
    pin: Option<CoreId>,
}

impl Tasks {
    /// The default weight: Linux's nice 0.
    pub const WEIGHT_DEFAULT: u32 = 1024;
    /// Largest weight.
    pub const WEIGHT_MAX: u32 = 1 << 20;

    /// Adds a program, still without threads. Its weight is that of the program for policies that know programs, and
    /// that of each of its threads for those that know threads alone.
    ///
    /// # Panics
    /// If the weight is not 1 to [`Tasks::WEIGHT_MAX`]: a reader of user input refuses it earlier with a better
    /// message.
    pub fn add_program(&mut self, weight: u32) -> ProgramId {
        assert!((1..=Tasks::WEIGHT_MAX).contains(&weight), "a weight of {weight}");
        self.programs.push(Program { weight, threads: Vec::new() });
        ProgramId(u16::try_from(self.programs.len() - 1).expect("at most 65536 programs"))
    }

    /// Adds a thread of `program`, which may run anywhere or only on `pin`.
    pub fn add_thread(&mut self, program: ProgramId, pin: Option<CoreId>) -> ThreadId {
        let thread = ThreadId(u32::try_from(self.threads.len()).expect("at most 2^32 threads"));
        self.threads.push(Thread { program, pin });
        self.programs[program.index()].threads.push(thread);
        thread
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Number of programs.
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// All programs, in order.
    pub fn all_programs(&self) -> impl Iterator<Item = ProgramId> + use<> {
        (0..self.programs.len()).map(|program| ProgramId(program as u16))
    }

    /// The program of `thread`.
    pub fn program_of(&self, thread: ThreadId) -> ProgramId {
        self.threads[thread.index()].program
    }

    /// The threads of `program`, in order.
    pub fn threads_of(&self, program: ProgramId) -> &[ThreadId] {
        &self.programs[program.index()].threads
    }

    /// Weight of the program.
    pub fn weight(&self, program: ProgramId) -> u32 {
        self.programs[program.index()].weight
    }

    /// Weight of the thread's program.
    pub fn weight_of(&self, thread: ThreadId) -> u32 {
        self.weight(self.program_of(thread))
    }

    /// The only core that `thread` may run on, if it is pinned.
    pub fn pin(&self, thread: ThreadId) -> Option<CoreId> {
        self.threads[thread.index()].pin
    }

    /// May `thread` run on `core`?
    pub fn may_run(&self, thread: ThreadId, core: CoreId) -> bool {
        self.pin(thread).is_none_or(|pin| pin == core)
    }
}

/// Reason why a thread no longer runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The thread waits for something.
    Blocked,
    /// [`Effects::reschedule`] was served while the thread could have gone on.
    Preempted,
    /// Its [`Run::until_ns`] has come.
    Expired,
    /// The thread has ended and will never wake.
    Exited,
}

impl Stop {
    /// Does the thread still want to run?
    pub fn is_runnable(self) -> bool {
        matches!(self, Stop::Preempted | Stop::Expired)
    }
}

/// The thread that runs next on a core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The thread.
    pub thread: ThreadId,
    /// Time when the thread is stopped as [`Stop::Expired`]; `None`: it runs until it blocks or a reschedule comes.
    pub until_ns: Option<u64>,
}

/// Work of a policy that its driver cannot see, and that may cost time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spent {
    /// Two run queues were locked at once, to move a thread from one to the other or to exchange two.
    DoubleLock,
    /// Queues of other cores were searched.
    Scan {
        /// Number of queues.
        cores: u16,
    },
}

/// Actions of a policy besides its answers.
pub trait Effects {
    /// Lets `core` stop its thread, if any, and pick again: at once on the core of the present call (in `tick`), on
    /// another one when the interrupt has come.
    fn reschedule(&mut self, core: CoreId);

    /// Reports work of `core`.
    fn spent(&mut self, core: CoreId, what: Spent);
}

/// A policy. The head of this file has the promises of both sides.
pub trait Scheduler {
    /// Finds a place for `thread`, which wants to run. `waker` is the core whose running thread woke it; `None` for a
    /// timer or its birth.
    fn wake(&mut self, thread: ThreadId, waker: Option<CoreId>, now_ns: u64, out: &mut dyn Effects);

    /// `thread` no longer runs on `core`, where it ran for `ran_ns` since it was picked. If it still wants to run it is
    /// queued again.
    fn stop(&mut self, core: CoreId, thread: ThreadId, why: Stop, ran_ns: u64, now_ns: u64, out: &mut dyn Effects);

    /// The thread that runs next on `core`, which runs nothing; `None`: none.
    fn pick(&mut self, core: CoreId, now_ns: u64, out: &mut dyn Effects) -> Option<Run>;

    /// Period of interrupts on a core while it runs something, ns; `None`: never.
    fn tick_ns(&self) -> Option<u64> {
        None
    }

    /// `thread` has been running on `core` for `ran_ns` since it was picked, and a tick has come.
    fn tick(&mut self, core: CoreId, thread: ThreadId, ran_ns: u64, now_ns: u64, out: &mut dyn Effects) {
        let _ = (core, thread, ran_ns, now_ns, out);
    }

    /// Time of the next [`Scheduler::timer`]; `None`: none. Asked again after every call.
    fn next_timer_ns(&self) -> Option<u64> {
        None
    }

    /// The time of `next_timer_ns` has come.
    fn timer(&mut self, now_ns: u64, out: &mut dyn Effects) {
        let _ = (now_ns, out);
    }
}

impl<S: Scheduler + ?Sized> Scheduler for Box<S> {
    fn wake(&mut self, thread: ThreadId, waker: Option<CoreId>, now_ns: u64, out: &mut dyn Effects) {
        (**self).wake(thread, waker, now_ns, out);
    }

    fn stop(&mut self, core: CoreId, thread: ThreadId, why: Stop, ran_ns: u64, now_ns: u64, out: &mut dyn Effects) {
        (**self).stop(core, thread, why, ran_ns, now_ns, out);
    }

    fn pick(&mut self, core: CoreId, now_ns: u64, out: &mut dyn Effects) -> Option<Run> {
        (**self).pick(core, now_ns, out)
    }

    fn tick_ns(&self) -> Option<u64> {
        (**self).tick_ns()
    }

    fn tick(&mut self, core: CoreId, thread: ThreadId, ran_ns: u64, now_ns: u64, out: &mut dyn Effects) {
        (**self).tick(core, thread, ran_ns, now_ns, out);
    }

    fn next_timer_ns(&self) -> Option<u64> {
        (**self).next_timer_ns()
    }

    fn timer(&mut self, now_ns: u64, out: &mut dyn Effects) {
        (**self).timer(now_ns, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_knows_who_shares_a_socket() {
        let machine = Machine::new(12, 2).unwrap();
        assert_eq!(machine.socket_of(CoreId(5)), 0..6);
        assert_eq!(machine.socket_of(CoreId(6)), 6..12);
        assert!(machine.share_socket(CoreId(6), CoreId(11)));
        assert!(!machine.share_socket(CoreId(5), CoreId(6)));
        assert_eq!(machine.all().count(), 12);
    }

    #[test]
    fn a_machine_that_cannot_be_is_refused_in_a_sentence() {
        assert_eq!(Machine::new(0, 1), Err("0 cores, allowed is 1 to 4096".into()));
        assert_eq!(Machine::new(5000, 1), Err("5000 cores, allowed is 1 to 4096".into()));
        let uneven = "12 cores on 5 sockets, allowed is a number of sockets that divides the cores evenly";
        assert_eq!(Machine::new(12, 5), Err(uneven.into()));
        assert!(Machine::new(12, 0).is_err());
    }

    #[test]
    fn a_thread_has_its_programs_weight_and_its_own_pin() {
        let mut tasks = Tasks::default();
        let light = tasks.add_program(1);
        let heavy = tasks.add_program(2048);
        let free = tasks.add_thread(heavy, None);
        let pinned = tasks.add_thread(light, Some(CoreId(3)));
        assert_eq!((tasks.weight_of(free), tasks.weight_of(pinned)), (2048, 1));
        assert_eq!(tasks.threads_of(heavy), [free]);
        assert!(tasks.may_run(free, CoreId(0)) && tasks.may_run(pinned, CoreId(3)));
        assert!(!tasks.may_run(pinned, CoreId(0)));
    }
}
