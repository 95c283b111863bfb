//! Which thread of this core has had least? A scheduler in the manner of Linux's CFS.
//!
//! Sources: P-MQFQ section 2.2 and 3.2; "CFS Scheduler" in the kernel's documentation (design, not source); Lozi et
//! al., "The Linux Scheduler: a Decade of Wasted Cores", EuroSys 2016, section 2, for placement and balancing. Where
//! they differ, P-MQFQ wins, because P-MQFQ is compared with this. Not a copy of any version of Linux.
//!
//! # Shape
//! Each core has a queue of its own, ordered by *vruntime*: the time a thread has run, over its weight. The core runs
//! the first one for a slice and knows nothing of other cores. The queue's virtual time, *min_vruntime*, is the largest
//! vruntime that has been running, updated at ticks and stops. Only [`balance`] connects the queues.
//!
//! ```text
//!   wake:   vruntime = max(own, min_vruntime)          the share that was not used is gone
//!   slice:  latency x weight / weights of the queue    6 ms over all that want the core
//!   tick:   slice used up? another one far behind?     then the core picks again
//! ```
//!
//! The first line is *deceptive idleness* (P-MQFQ section 2.3): a thread that blocks often comes back beside one that
//! ran on, each time, and waits for a slice to end before it runs for as long as its critical section takes.
//!
//! # Choices
//! * A waking thread gets no credit for having slept, as in P-MQFQ. Linux shipped half a latency, 3 ms:
//!   [`CfsOptions::sleeper_credit_ns`], with which most of what P-MQFQ is to cure is gone (docs/lab/p-mqfq.md).
//! * Latency is 6 ms on any number of cores, as in P-MQFQ. The default of Linux grows with the logarithm of the cores.
//! * A thread's weight is its program's. There are no groups of threads: P-MQFQ is about their absence.

mod balance;
mod eevdf;
#[cfg(test)]
mod tests;

use crate::core_set::CoreSet;
use crate::decay::Decay;
use crate::run_queues::{RunQueues, spread};
use crate::scheduler::{CoreId, Effects, Machine, Run, Scheduler, Stop, Tasks, ThreadId};
pub use eevdf::Order;
use std::collections::BTreeSet;
use std::ops::Range;

/// Settings of CFS. [`CfsOptions::new`] is P-MQFQ's rival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CfsOptions {
    /// Time in which each thread of a queue runs once.
    pub latency_ns: u64,
    /// No slice is shorter.
    pub min_granularity_ns: u64,
    /// A waking thread takes the core from one whose vruntime is larger by more than this.
    pub wakeup_granularity_ns: u64,
    /// Period of ticks on a running core, ns.
    pub tick_ns: u64,
    /// A waking thread is put before min_vruntime by at most this.
    pub sleeper_credit_ns: u64,
    /// A thread may be woken on its waker's core in place of its own.
    pub wake_affine: bool,
    /// Period of balancing on a core that runs something, ns.
    pub balance_ns: u64,
    /// A queue is too long if its load is over this part of ours, in 100.
    pub imbalance_percent: u32,
    /// A thread that ran less than this ago is still in its core's cache and is not moved.
    pub cache_hot_ns: u64,
    /// A preempted thread is not moved for this long. 0 for Linux's own threads; a virtual CPU needs over 1 ms (P-MQFQ
    /// section 4.2).
    pub preempted_stays_ns: u64,
    /// Order of a queue.
    pub order: Order,
}

impl CfsOptions {
    /// On the bare machine. 6 ms and 1 ms are P-MQFQ's (section 3.2 and 4.2). 0.75 ms, 1 ms and 0.5 ms are the
    /// documented base values of `sched_min_granularity_ns`, `sched_wakeup_granularity_ns` and
    /// `sched_migration_cost_ns`; 4 ms is Lozi et al.'s; 25% is the documented `imbalance_pct`.
    pub fn new() -> CfsOptions {
        CfsOptions {
            latency_ns: 6_000_000,
            min_granularity_ns: 750_000,
            wakeup_granularity_ns: 1_000_000,
            tick_ns: 1_000_000,
            sleeper_credit_ns: 0,
            wake_affine: true,
            balance_ns: 4_000_000,
            imbalance_percent: 125,
            cache_hot_ns: 500_000,
            preempted_stays_ns: 0,
            order: Order::Vruntime,
        }
    }

    /// Under KVM: the same scheduler, and virtual CPUs that cannot move at once. "More than 1 ms" (P-MQFQ section 4.2)
    /// is 1.2 ms here.
    pub fn kvm() -> CfsOptions {
        CfsOptions { preempted_stays_ns: 1_200_000, ..CfsOptions::new() }
    }

    /// EEVDF as Linux 7.2 has it at 250 ticks per second: slices of 0.7 ms on one core, 2.1 ms on four. Of the settings
    /// above those of vruntime's order (latency, granularities, credit) have no effect.
    pub fn eevdf() -> CfsOptions {
        CfsOptions { tick_ns: 4_000_000, order: Order::Deadline { base_slice_ns: 700_000 }, ..CfsOptions::new() }
    }

    /// # Errors
    /// A setting is out of range: one sentence with its value and the allowed ones.
    pub fn check(&self) -> Result<(), String> {
        let positive = [("latency", self.latency_ns), ("tick", self.tick_ns), ("balance", self.balance_ns)];
        if let Some((name, _)) = positive.iter().find(|(_, ns)| *ns == 0) {
            return Err(format!("{name} is 0, allowed is 1 ns and more"));
        }
        if self.min_granularity_ns > self.latency_ns {
            return Err(format!(
                "min-granularity is {} ns, allowed is at most latency, {} ns",
                self.min_granularity_ns, self.latency_ns
            ));
        }
        if self.order == (Order::Deadline { base_slice_ns: 0 }) {
            return Err("base-slice is 0, allowed is 1 ns and more".into());
        }
        if self.imbalance_percent < 100 {
            return Err(format!("imbalance is {}%, allowed is 100% and more", self.imbalance_percent));
        }
        Ok(())
    }
}

impl Default for CfsOptions {
    fn default() -> CfsOptions {
        CfsOptions::new()
    }
}

/// The scheduler.
pub struct Cfs {
    options: CfsOptions,
    machine: Machine,
    queues: Vec<Queue>,
    threads: Vec<Entity>,
    /// Cores that run nothing and for which nothing waits.
    idle: CoreSet,
    /// Cores for which something waits.
    crowded: CoreSet,
}

/// One core.
#[derive(Default)]
struct Queue {
    /// Waiting threads by vruntime; of two equal ones, the one with the smaller number is first.
    order: BTreeSet<(i64, ThreadId)>,
    min_vruntime: i64,
    running: Option<Running>,
    /// Weight of all that wait or run.
    weight: u64,
    /// The decaying average of that weight, with threads that block meanwhile.
    load: Decay,
    /// Time of the next balancing, in its socket and in the machine.
    balance_at_ns: [u64; 2],
}

#[derive(Clone, Copy)]
struct Running {
    thread: ThreadId,
    /// Time up to which its vruntime is charged.
    charged_ns: u64,
    /// EEVDF: it has reached a deadline since it was picked.
    is_over: bool,
}

impl Running {
    fn from(thread: ThreadId, now_ns: u64) -> Running {
        Running { thread, charged_ns: now_ns, is_over: false }
    }
}

/// A thread.
struct Entity {
    weight: u32,
    /// The cores that it may run on, as indices.
    allowed: Range<usize>,
    /// Vruntime on the axis of its core.
    vruntime: i64,
    core: CoreId,
    is_runnable: bool,
    /// Time when it last left a core.
    stopped_ns: u64,
    /// Time before which it is not moved.
    stays_until_ns: u64,
    load: Decay,
    /// EEVDF, on the axis of vruntime: its deadline, and its lag when it blocked.
    deadline: i64,
    lag: i64,
}

impl Entity {
    /// Service as virtual time.
    fn span(&self, ns: u64) -> i64 {
        (u128::from(ns) * u128::from(Tasks::WEIGHT_DEFAULT) / u128::from(self.weight)) as i64
    }
}

impl Cfs {
    /// # Errors
    /// The options do not pass their check: its sentence.
    pub fn new(machine: &Machine, tasks: &Tasks, options: CfsOptions) -> Result<Cfs, String> {
        options.check()?;
        let cores = machine.cores();
        let mut idle = CoreSet::none(cores);
        machine.all().for_each(|core| idle.set(core, true));
        let thread = |thread: u32| {
            let thread = ThreadId(thread);
            let pin = tasks.pin(thread);
            // Linux forks to the idlest core; with all blocked at first, one after the other is that.
            let core = pin.unwrap_or(CoreId((thread.index() % cores) as u16));
            Entity {
                weight: tasks.weight_of(thread),
                allowed: pin.map_or(0..cores, |pin| pin.index()..pin.index() + 1),
                vruntime: 0,
                core,
                is_runnable: false,
                stopped_ns: 0,
                stays_until_ns: 0,
                load: Decay::default(),
                deadline: 0,
                lag: 0,
            }
        };
        let queue = |core: CoreId| {
            // They do not all look at the same instant.
            let offset = core.index() as u64 * options.balance_ns / cores as u64;
            Queue { balance_at_ns: [offset; 2], ..Queue::default() }
        };
        Ok(Cfs {
            options,
            machine: *machine,
            queues: machine.all().map(queue).collect(),
            threads: (0..tasks.threads() as u32).map(thread).collect(),
            idle,
            crowded: CoreSet::none(cores),
        })
    }

    /// The options.
    pub fn options(&self) -> &CfsOptions {
        &self.options
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Virtual time of that core.
    pub fn min_vruntime(&self, core: CoreId) -> i64 {
        self.queues[core.index()].min_vruntime
    }

    /// Vruntime of the thread, on the axis of [`Cfs::core_of`].
    pub fn vruntime(&self, thread: ThreadId) -> i64 {
        self.threads[thread.index()].vruntime
    }

    /// The core on which `thread` runs, waits, or last did.
    pub fn core_of(&self, thread: ThreadId) -> CoreId {
        self.threads[thread.index()].core
    }

    /// The thread that runs on `core`.
    pub fn running(&self, core: CoreId) -> Option<ThreadId> {
        self.queues[core.index()].running.map(|running| running.thread)
    }

    /// The threads that wait on `core`, the next one first.
    pub fn waiting(&self, core: CoreId) -> impl DoubleEndedIterator<Item = ThreadId> {
        self.queues[core.index()].order.iter().map(|(_, thread)| *thread)
    }

    /// Cores for which a thread waits.
    pub fn crowded(&self) -> &CoreSet {
        &self.crowded
    }

    /// Cores that run nothing and for which no thread waits.
    pub fn idle(&self) -> &CoreSet {
        &self.idle
    }

    /// Could the thread run there now? Pins allow it, and it has been off its core for long enough.
    pub fn may_move(&self, thread: ThreadId, to: CoreId, now_ns: u64) -> bool {
        let entity = &self.threads[thread.index()];
        entity.allowed.contains(&to.index()) && now_ns >= entity.stays_until_ns
    }

    /// Decaying load of a core.
    pub fn load(&self, core: CoreId, now_ns: u64) -> u64 {
        self.queues[core.index()].load.load(now_ns)
    }

    /// Moves `thread`, which waits or is blocked, to `to`, at `vruntime` on that core's axis. If it waits, it waits
    /// there.
    ///
    /// # Panics
    /// If the thread runs.
    pub fn place(&mut self, thread: ThreadId, to: CoreId, vruntime: i64, now_ns: u64) {
        let entity = &mut self.threads[thread.index()];
        let from = entity.core;
        let waits = entity.is_runnable;
        if waits {
            let was_there = self.queues[from.index()].order.remove(&(entity.vruntime, thread));
            assert!(was_there, "{thread:?} runs and cannot be placed");
        }
        entity.vruntime = vruntime;
        if from != to {
            entity.core = to;
            self.queues[from.index()].load.subtract(&mut entity.load, now_ns);
            self.queues[to.index()].load.add(&mut entity.load, now_ns);
        }
        if waits {
            let weight = u64::from(entity.weight);
            self.queues[from.index()].weight -= weight;
            self.queues[to.index()].weight += weight;
            self.queues[to.index()].order.insert((vruntime, thread));
        }
        self.note(from);
        self.note(to);
    }

    /// The place relative to the other core's virtual time that equals the present one.
    pub fn vruntime_on(&self, thread: ThreadId, to: CoreId) -> i64 {
        let entity = &self.threads[thread.index()];
        entity.vruntime - self.min_vruntime(entity.core) + self.min_vruntime(to)
    }

    /// The thread's slice on its core.
    pub fn slice_ns(&self, thread: ThreadId) -> u64 {
        let entity = &self.threads[thread.index()];
        let queue = &self.queues[entity.core.index()];
        let runnable = queue.order.len() as u64 + u64::from(queue.running.is_some());
        let period = self.options.latency_ns.max(runnable * self.options.min_granularity_ns);
        let slice = u128::from(period) * u128::from(entity.weight) / u128::from(queue.weight.max(1));
        (slice as u64).max(1)
    }

    /// Updates the two sets of cores.
    fn note(&mut self, core: CoreId) {
        let queue = &self.queues[core.index()];
        self.idle.set(core, queue.order.is_empty() && queue.running.is_none());
        self.crowded.set(core, !queue.order.is_empty());
    }

    /// Charges the running thread until now.
    fn charge(&mut self, core: CoreId, now_ns: u64) {
        let Some(running) = &mut self.queues[core.index()].running else { return };
        let entity = &mut self.threads[running.thread.index()];
        entity.vruntime += entity.span(now_ns - running.charged_ns);
        running.charged_ns = now_ns;
        if self.options.order != Order::Vruntime && entity.vruntime >= entity.deadline {
            running.is_over = true;
            let thread = running.thread;
            self.renew(thread);
        }
    }

    /// Charges and updates virtual time, as at a tick.
    fn bring_up(&mut self, core: CoreId, now_ns: u64) {
        self.charge(core, now_ns);
        if self.options.order != Order::Vruntime {
            let mean = self.mean_vruntime(core);
            let queue = &mut self.queues[core.index()];
            queue.min_vruntime = queue.min_vruntime.max(mean);
            return;
        }
        let queue = &mut self.queues[core.index()];
        if let Some(running) = queue.running {
            queue.min_vruntime = queue.min_vruntime.max(self.threads[running.thread.index()].vruntime);
        }
    }

    fn set_runnable(&mut self, thread: ThreadId, is_runnable: bool, now_ns: u64) {
        let entity = &mut self.threads[thread.index()];
        let queue = &mut self.queues[entity.core.index()];
        let weight = u64::from(entity.weight);
        entity.is_runnable = is_runnable;
        entity.load.set_level(if is_runnable { weight } else { 0 }, now_ns);
        if is_runnable {
            queue.weight += weight;
        } else {
            queue.weight -= weight;
        }
        let level = queue.weight;
        queue.load.set_level(level, now_ns);
    }

    /// Does the waking `thread` take the core from the running one?
    fn preempts(&mut self, thread: ThreadId, core: CoreId, now_ns: u64) -> bool {
        self.charge(core, now_ns);
        if self.options.order != Order::Vruntime {
            return self.deadline_preempts(thread, core);
        }
        let Some(running) = self.queues[core.index()].running else { return true };
        let waking = &self.threads[thread.index()];
        let behind = self.threads[running.thread.index()].vruntime - waking.vruntime;
        behind > waking.span(self.options.wakeup_granularity_ns)
    }

    /// Wakes a thread, and puts it before virtual time by its lag, up to `credit_ns`.
    fn wake_with(
        &mut self,
        thread: ThreadId,
        waker: Option<CoreId>,
        credit_ns: u64,
        now_ns: u64,
        out: &mut dyn Effects,
    ) {
        let core = self.core_for(thread, waker, now_ns);
        let own = self.vruntime_on(thread, core);
        let credit = self.threads[thread.index()].span(credit_ns);
        let vruntime = own.max(self.min_vruntime(core) - credit);
        self.wake_at(thread, core, vruntime, now_ns, out);
    }

    /// Wakes a thread on `core`, at `vruntime` on its axis.
    fn wake_at(&mut self, thread: ThreadId, core: CoreId, vruntime: i64, now_ns: u64, out: &mut dyn Effects) {
        self.place(thread, core, vruntime, now_ns);
        self.renew(thread);
        self.set_runnable(thread, true, now_ns);
        self.queues[core.index()].order.insert((vruntime, thread));
        self.note(core);
        if self.preempts(thread, core, now_ns) {
            out.reschedule(core);
        }
    }
}

impl Scheduler for Cfs {
    fn wake(&mut self, thread: ThreadId, waker: Option<CoreId>, now_ns: u64, out: &mut dyn Effects) {
        if self.options.order == Order::Vruntime {
            return self.wake_with(thread, waker, self.options.sleeper_credit_ns, now_ns, out);
        }
        let core = self.core_for(thread, waker, now_ns);
        self.bring_up(core, now_ns);
        let vruntime = self.place_of(thread, core);
        self.wake_at(thread, core, vruntime, now_ns, out);
    }

    fn stop(&mut self, core: CoreId, thread: ThreadId, why: Stop, _: u64, now_ns: u64, _: &mut dyn Effects) {
        self.bring_up(core, now_ns);
        if !why.is_runnable() {
            self.keep_lag(thread);
        }
        let stopped = self.queues[core.index()].running.take();
        debug_assert_eq!(stopped.map(|running| running.thread), Some(thread), "what stops was picked");
        let entity = &mut self.threads[thread.index()];
        entity.stopped_ns = now_ns;
        if why.is_runnable() {
            entity.stays_until_ns = now_ns + self.options.preempted_stays_ns;
            self.queues[core.index()].order.insert((entity.vruntime, thread));
        } else {
            self.set_runnable(thread, false, now_ns);
        }
        if why == Stop::Exited {
            let entity = &mut self.threads[thread.index()];
            self.queues[core.index()].load.subtract(&mut entity.load, now_ns);
            entity.load = Decay::default();
        }
        self.note(core);
    }

    fn pick(&mut self, core: CoreId, now_ns: u64, out: &mut dyn Effects) -> Option<Run> {
        if self.queues[core.index()].order.is_empty() {
            self.pull_because_idle(core, now_ns, out);
        }
        let earliest = if self.options.order == Order::Vruntime { None } else { self.earliest(core) };
        let queue = &mut self.queues[core.index()];
        let picked = match earliest {
            Some(thread) => {
                queue.order.remove(&(self.threads[thread.index()].vruntime, thread));
                Some(thread)
            }
            None => queue.order.pop_first().map(|(_, thread)| thread),
        };
        queue.running = picked.map(|thread| Running::from(thread, now_ns));
        self.note(core);
        picked.map(|thread| Run { thread, until_ns: None })
    }

    fn tick_ns(&self) -> Option<u64> {
        Some(self.options.tick_ns)
    }

    fn tick(&mut self, core: CoreId, thread: ThreadId, ran_ns: u64, now_ns: u64, out: &mut dyn Effects) {
        self.bring_up(core, now_ns);
        self.balance(core, now_ns, out);
        let queue = &self.queues[core.index()];
        let Some((first, _)) = queue.order.first() else { return };
        if self.options.order != Order::Vruntime {
            if queue.running.is_some_and(|running| running.is_over) {
                out.reschedule(core);
            }
            return;
        }
        let slice_ns = self.slice_ns(thread);
        let entity = &self.threads[thread.index()];
        let far_ahead = ran_ns >= self.options.min_granularity_ns && entity.vruntime - first > slice_ns as i64;
        if ran_ns >= slice_ns || far_ahead {
            out.reschedule(core);
        }
    }
}

impl RunQueues for Cfs {
    fn machine(&self) -> &Machine {
        Cfs::machine(self)
    }

    fn running(&self, core: CoreId) -> Option<ThreadId> {
        Cfs::running(self, core)
    }

    fn core_of(&self, thread: ThreadId) -> CoreId {
        Cfs::core_of(self, thread)
    }

    fn is_waiting(&self, thread: ThreadId) -> bool {
        let entity = &self.threads[thread.index()];
        entity.is_runnable && Cfs::running(self, entity.core) != Some(thread)
    }

    fn waiting(&self, core: CoreId) -> impl Iterator<Item = ThreadId> {
        Cfs::waiting(self, core)
    }

    fn may_move(&self, thread: ThreadId, to: CoreId, now_ns: u64) -> bool {
        Cfs::may_move(self, thread, to, now_ns)
    }

    fn virtual_time(&self, core: CoreId) -> i64 {
        self.min_vruntime(core)
    }

    fn slice_ns(&self, thread: ThreadId) -> u64 {
        Cfs::slice_ns(self, thread)
    }

    fn migrate(&mut self, thread: ThreadId, to: CoreId, now_ns: u64) {
        let vruntime = self.vruntime_on(thread, to);
        self.place(thread, to, vruntime, now_ns);
    }

    fn exchange(&mut self, a: ThreadId, b: ThreadId, now_ns: u64) {
        let (core_a, vruntime_a) = (Cfs::core_of(self, a), self.vruntime(a));
        let (core_b, vruntime_b) = (Cfs::core_of(self, b), self.vruntime(b));
        self.place(a, core_b, vruntime_b, now_ns);
        self.place(b, core_a, vruntime_a, now_ns);
    }

    fn confine(&mut self, thread: ThreadId, cores: Range<usize>, now_ns: u64) {
        let core = Cfs::core_of(self, thread);
        self.threads[thread.index()].allowed = cores.clone();
        if !cores.contains(&core.index()) && Cfs::running(self, core) != Some(thread) {
            RunQueues::migrate(self, thread, spread(thread, &cores), now_ns);
        }
    }

    fn limit_lag(&mut self, thread: ThreadId, most_ns: u64, now_ns: u64) {
        let core = Cfs::core_of(self, thread);
        let earliest = self.min_vruntime(core) - self.threads[thread.index()].span(most_ns);
        let vruntime = self.vruntime(thread).max(earliest);
        self.place(thread, core, vruntime, now_ns);
    }

    fn wake_behind(
        &mut self,
        thread: ThreadId,
        waker: Option<CoreId>,
        most_ns: u64,
        now_ns: u64,
        out: &mut dyn Effects,
    ) {
        self.wake_with(thread, waker, most_ns, now_ns, out);
    }

    fn run(&mut self, core: CoreId, thread: ThreadId, _: u64, now_ns: u64) -> Run {
        let vruntime = self.vruntime(thread);
        let queue = &mut self.queues[core.index()];
        let was_there = queue.order.remove(&(vruntime, thread));
        assert!(was_there, "{thread:?} does not wait on {core:?}");
        queue.running = Some(Running::from(thread, now_ns));
        self.note(core);
        // The tick ends slices; it gets the length of the run.
        Run { thread, until_ns: None }
    }
}
