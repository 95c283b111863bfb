//! P-MQFQ on the queues of a scheduler that has one per core: the ideal as far as possible without a queue for all.
//!
//! Source: P-MQFQ section 3.1 and 3.2. The ideal is [`crate::ideal`]; the base below, which still makes all other
//! decisions, is any implementation of [`RunQueues`]: CFS, KVM, Xen's credit scheduler.
//!
//! # Shape
//! ```text
//!   a thread's quantum is over    [migrate]  to the queue that advances fastest and runs another program
//!                                 [preempt]  there it runs at once
//!   a thread blocks before that   [switch]   a waiting sibling takes its place, and the rest of the quantum
//!   a thread wakes                [arrive]   it keeps what it is behind; else as if its quantum were over    (not in the paper)
//! ```
//! The ideal's two virtual times are replaced. [`progress`] stands for the system's: not the thread with the most time
//! ever, but the queue that advanced most in the last 3 ms. SWITCH stands for the program's: a program that has a core
//! keeps it while one of its threads can run.
//!
//! # What is not in the paper, and why
//! Section 3.1 moves threads when a quantum ends and when a thread blocks. Rules 2 and 3 of section 3 act when a
//! request *arrives*, and a thread that wakes is the arrival that matters: that "threads blocked due to synchronization
//! can have requests immediately scheduled after waking up" ends deceptive idleness by section 3. With the base's
//! wake-ups of section 2.2 (vruntime = the larger of its own and the minimum), a woken thread waits for a tick or a
//! slice of a hog on each core, and programs that synchronise more often than once a slice never get to the operations
//! of 3.1 (`what_the_paper_prints_helps_and_what_is_added_brings_the_fair_share`). So there are two additions, each
//! with a switch of its own; [`PmqfqOptions::as_printed`] has neither:
//!
//! * [`PmqfqOptions::arrive`]: rules 2 and 3 for a thread that wakes, see [`arrive`].
//! * [`PmqfqOptions::trade`]: MIGRATE exchanges places with a sibling where there is one, as SWITCH does, see
//!   [`migrate`].
//!
//! # Invariants
//! * P-MQFQ preempts only a thread of another program.
//! * P-MQFQ moves threads that wait or are blocked. It never takes a core's last work, but to give the core to a
//!   preempting thread.
//! * A thread that was chosen for a core (`Core::next`) is checked again when the core picks: the base may have moved
//!   it meanwhile.
//!
//! # Cost
//! A look at up to `scan_max` queues, nearest socket first, when a thread blocks, wakes without getting a core, or has
//! used its quantum; reported to the driver as [`Spent::Scan`]. A move locks two queues, [`Spent::DoubleLock`].

mod arrive;
mod migrate;
mod preempt;
pub mod progress;
mod switch;
#[cfg(test)]
mod tests;

use crate::run_queues::RunQueues;
use crate::scheduler::{CoreId, Effects, ProgramId, Run, Scheduler, Spent, Stop, Tasks, ThreadId};
use preempt::Next;
use progress::Progress;

/// Settings of the practical P-MQFQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PmqfqOptions {
    /// Window over which a queue's advance is measured, ns.
    pub window_ns: u64,
    /// A queue is faster only if it advanced by this much more in the window, ns.
    pub margin_ns: u64,
    /// Most queues that a scan looks at.
    pub scan_max: u16,
    /// Enables MIGRATE and PPREEMPT.
    pub migrate: bool,
    /// SWITCH.
    pub switch: bool,
    /// Ours: MIGRATE trades places with a sibling of the other queue, if there is one.
    pub trade: bool,
    /// Ours: rules 2 and 3 for threads that wake.
    pub arrive: bool,
    /// Ours, with `arrive`: most that a waking thread is behind its queue, ns.
    pub lag_ns: u64,
}

impl PmqfqOptions {
    /// The three operations and both additions, for ticks of 1 ms. 3 ms is section 3.2's window. A queue's virtual time
    /// is known up to a tick, so less than a tick is no difference. A thread's lag has the same window: older
    /// unfairness is forgotten.
    pub fn new() -> PmqfqOptions {
        PmqfqOptions {
            window_ns: 3_000_000,
            margin_ns: 1_000_000,
            scan_max: u16::MAX,
            migrate: true,
            switch: true,
            trade: true,
            arrive: true,
            lag_ns: 3_000_000,
        }
    }

    /// [`PmqfqOptions::new`] for Xen: the window is an accounting period (section 3.2), and a tick 10 ms.
    pub fn xen() -> PmqfqOptions {
        PmqfqOptions { window_ns: 30_000_000, margin_ns: 10_000_000, lag_ns: 30_000_000, ..PmqfqOptions::new() }
    }

    /// Without the additions: the three operations of section 3.1 and 3.2 alone.
    #[must_use]
    pub fn printed(self) -> PmqfqOptions {
        PmqfqOptions { trade: false, arrive: false, ..self }
    }

    /// The three operations of section 3.1 and 3.2 alone.
    pub fn as_printed() -> PmqfqOptions {
        PmqfqOptions::new().printed()
    }

    /// None of the operations: the base, seen through.
    pub fn off() -> PmqfqOptions {
        PmqfqOptions { migrate: false, switch: false, ..PmqfqOptions::as_printed() }
    }

    /// # Errors
    /// A setting is out of range: one sentence with its value and the allowed ones.
    pub fn check(&self) -> Result<(), String> {
        if self.window_ns == 0 {
            return Err("window is 0, allowed is 1 ns and more".into());
        }
        if self.margin_ns >= self.window_ns {
            return Err(format!(
                "margin is {} ns, allowed is less than window, {} ns: no queue advances by more",
                self.margin_ns, self.window_ns
            ));
        }
        Ok(())
    }
}

impl Default for PmqfqOptions {
    fn default() -> PmqfqOptions {
        PmqfqOptions::new()
    }
}

/// The practical P-MQFQ over a base.
pub struct Pmqfq<B> {
    base: B,
    options: PmqfqOptions,
    tasks: Tasks,
    progress: Progress,
    cores: Vec<Core>,
    programs: Vec<Program>,
}

/// P-MQFQ's state of a core.
#[derive(Clone, Copy, Default)]
struct Core {
    /// Part of the quantum used before the running thread began.
    used_ns: u64,
    /// The thread that runs next, in place of the base's pick.
    next: Option<Next>,
    /// The base asked the core to pick because its thread's quantum is over.
    has_expired: bool,
    /// A reschedule is pending for a thread that woke or came here.
    is_told: bool,
    /// No thread preempts here before this time.
    left_alone_until_ns: u64,
}

/// P-MQFQ's state of a program: counts, so that a core need not search for absent threads.
#[derive(Clone, Copy, Default)]
struct Program {
    running: u32,
    waiting: u32,
}

impl<B: RunQueues> Pmqfq<B> {
    /// # Errors
    /// The options do not pass their check: its sentence.
    pub fn new(base: B, tasks: &Tasks, options: PmqfqOptions) -> Result<Pmqfq<B>, String> {
        options.check()?;
        let cores = base.machine().cores();
        Ok(Pmqfq {
            base,
            options,
            tasks: tasks.clone(),
            progress: Progress::new(cores, options.window_ns),
            cores: vec![Core::default(); cores],
            programs: vec![Program::default(); tasks.programs()],
        })
    }

    /// The base.
    pub fn base(&self) -> &B {
        &self.base
    }

    fn program_of(&self, thread: ThreadId) -> ProgramId {
        self.tasks.program_of(thread)
    }

    fn note_progress(&mut self, core: CoreId, now_ns: u64) {
        self.progress.note(core, self.base.virtual_time(core), self.base.as_of_ns(now_ns));
    }

    /// The queue's advance in the last window.
    fn advance(&self, core: CoreId, now_ns: u64) -> i64 {
        self.progress.advance(core, self.base.virtual_time(core), self.base.as_of_ns(now_ns))
    }

    /// The order in which `core` looks at queues: its own, those of its socket, those of the next sockets.
    fn near_first(&self, core: CoreId) -> impl Iterator<Item = CoreId> + use<B> {
        let machine = *self.base.machine();
        let socket = machine.socket_of(core);
        let (each, sockets) = (socket.len(), machine.sockets());
        let (own, at) = (core.index() / each, core.index() - socket.start);
        (0..sockets).flat_map(move |distance| {
            let first = (own + distance) % sockets * each;
            (0..each).map(move |step| CoreId((first + (at + step) % each) as u16))
        })
    }
}

/// Passes on the base's requests, and notes the cores that are to pick.
struct Overheard<'a> {
    out: &'a mut dyn Effects,
    asked: Vec<CoreId>,
}

impl<'a> Overheard<'a> {
    fn new(out: &'a mut dyn Effects) -> Overheard<'a> {
        Overheard { out, asked: Vec::new() }
    }
}

impl Effects for Overheard<'_> {
    fn reschedule(&mut self, core: CoreId) {
        self.asked.push(core);
        self.out.reschedule(core);
    }

    fn spent(&mut self, core: CoreId, what: Spent) {
        self.out.spent(core, what);
    }
}

impl<B: RunQueues> Scheduler for Pmqfq<B> {
    fn wake(&mut self, thread: ThreadId, waker: Option<CoreId>, now_ns: u64, out: &mut dyn Effects) {
        let program = self.programs[self.program_of(thread).index()];
        let is_backlogged = program.running + program.waiting > 0;
        let arrives = self.options.arrive && is_backlogged;
        let mut overheard = Overheard::new(out);
        if arrives {
            self.base.wake_behind(thread, waker, self.options.lag_ns, now_ns, &mut overheard);
        } else {
            self.base.wake(thread, waker, now_ns, &mut overheard);
        }
        let has_core = !overheard.asked.is_empty();
        for core in overheard.asked {
            self.cores[core.index()].is_told = true;
        }
        if arrives && !has_core {
            self.arrive(thread, waker, now_ns, out);
        }
        self.programs[self.tasks.program_of(thread).index()].waiting += 1;
    }

    fn stop(&mut self, core: CoreId, thread: ThreadId, why: Stop, ran_ns: u64, now_ns: u64, out: &mut dyn Effects) {
        let at = core.index();
        let quantum_ns = self.base.slice_ns(thread);
        let used_ns = self.cores[at].used_ns + ran_ns;
        let has_expired = std::mem::take(&mut self.cores[at].has_expired) || why == Stop::Expired;
        self.base.stop(core, thread, why, ran_ns, now_ns, out);
        self.note_progress(core, now_ns);
        let program = &mut self.programs[self.tasks.program_of(thread).index()];
        program.running -= 1;
        program.waiting += u32::from(why.is_runnable());
        if why == Stop::Blocked && self.options.switch && used_ns < quantum_ns {
            self.switch(core, thread, used_ns, now_ns, out);
        }
        if why.is_runnable() && has_expired && self.options.migrate {
            self.migrate_expired(core, thread, now_ns, out);
        }
    }

    fn pick(&mut self, core: CoreId, now_ns: u64, out: &mut dyn Effects) -> Option<Run> {
        self.cores[core.index()].is_told = false;
        let run = match self.take_next(core) {
            Some(Next { thread, used_ns }) => {
                self.cores[core.index()].used_ns = used_ns;
                Some(self.base.run(core, thread, used_ns, now_ns))
            }
            None => {
                self.cores[core.index()].used_ns = 0;
                self.base.pick(core, now_ns, out)
            }
        };
        if let Some(Run { thread, .. }) = run {
            let program = &mut self.programs[self.tasks.program_of(thread).index()];
            program.waiting -= 1;
            program.running += 1;
        }
        run
    }

    fn tick_ns(&self) -> Option<u64> {
        self.base.tick_ns()
    }

    fn tick(&mut self, core: CoreId, thread: ThreadId, ran_ns: u64, now_ns: u64, out: &mut dyn Effects) {
        let used_ns = self.cores[core.index()].used_ns + ran_ns;
        let mut overheard = Overheard::new(out);
        self.base.tick(core, thread, used_ns, now_ns, &mut overheard);
        // The base may also ask because another thread is far behind: then the quantum is not over.
        self.cores[core.index()].has_expired = overheard.asked.contains(&core) && used_ns >= self.base.slice_ns(thread);
        self.note_progress(core, now_ns);
    }

    fn next_timer_ns(&self) -> Option<u64> {
        self.base.next_timer_ns()
    }

    fn timer(&mut self, now_ns: u64, out: &mut dyn Effects) {
        self.base.timer(now_ns, out);
    }
}
