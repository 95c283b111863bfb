//! Which virtual CPU has credit left? A scheduler in the manner of Xen's credit scheduler.
//!
//! Sources: P-MQFQ section 3.2 and 4.2; "Credit Scheduler" in the Xen Project's wiki. Not a copy of any version of Xen.
//!
//! # Shape
//! Each core has a queue, sorted by two priorities; equals take turns of 30 ms.
//!
//! ```text
//!   runs:            credit goes down with time
//!   UNDER            credit >= 0
//!   OVER             credit < 0: runs only if no queue has one that is UNDER
//!   every 30 ms:     the rest of the credit is taken away, debt stays; each virtual CPU gets credit for a slice
//! ```
//!
//! The last line is deceptive idleness once more. A virtual CPU that blocks often cannot use its credit, loses it, and
//! is no better off than one that used all of it: both are UNDER, so a waking one waits until the other's slice is
//! over, 30 ms and not CFS's 3.
//!
//! # Choices
//! * In P-MQFQ every virtual CPU gets credit for one slice. Weights are not in its description. Here the heaviest
//!   program that ran in the last period gets that, and a lighter one its share of the machine's time by weight, evenly
//!   to its virtual CPUs, so that it is OVER for part of the time. With two programs that always run this comes near
//!   their weights (`weights_are_about_proportions`).
//! * The wiki has a third priority, BOOST, for waking virtual CPUs; P-MQFQ describes two. [`XenCreditOptions::boost`]
//!   is off by default; the figures `p-mqfq/1`, `p-mqfq/4-stock` and `p-mqfq/table-1-stock` have it.
//! * ASSUMED: debt is bounded by one slice, so that a program that had the machine for itself is not shut out for long.

use crate::core_set::CoreSet;
use crate::run_queues::{RunQueues, spread};
use crate::scheduler::{CoreId, Effects, Machine, ProgramId, Run, Scheduler, Spent, Stop, Tasks, ThreadId};
use std::collections::VecDeque;
use std::ops::Range;

/// Settings of the credit scheduler. [`XenCreditOptions::new`] is P-MQFQ's rival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XenCreditOptions {
    /// Longest run of a virtual CPU before others of its priority, ns.
    pub slice_ns: u64,
    /// Period of ticks on a running core, ns.
    pub tick_ns: u64,
    /// Period of accounting, ns.
    pub accounting_ns: u64,
    /// A virtual CPU that wakes with credit goes before all others, until a tick finds it running.
    pub boost: bool,
}

impl XenCreditOptions {
    /// 30 ms and 30 ms as in P-MQFQ; 10 ms as in the wiki.
    pub fn new() -> XenCreditOptions {
        XenCreditOptions { slice_ns: 30_000_000, tick_ns: 10_000_000, accounting_ns: 30_000_000, boost: false }
    }

    /// # Errors
    /// A setting is out of range: one sentence with its value and the allowed ones.
    pub fn check(&self) -> Result<(), String> {
        let all = [("slice", self.slice_ns), ("tick", self.tick_ns), ("accounting", self.accounting_ns)];
        match all.iter().find(|(_, ns)| *ns == 0) {
            Some((name, _)) => Err(format!("{name} is 0, allowed is 1 ns and more")),
            None => Ok(()),
        }
    }
}

impl Default for XenCreditOptions {
    fn default() -> XenCreditOptions {
        XenCreditOptions::new()
    }
}

/// Priority.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Priority {
    /// The virtual CPU has just woken (only with [`XenCreditOptions::boost`]).
    Boost,
    /// The virtual CPU has credit.
    Under,
    /// The virtual CPU has no credit.
    Over,
}

/// The scheduler.
pub struct XenCredit {
    options: XenCreditOptions,
    machine: Machine,
    tasks: Tasks,
    cores: Vec<Core>,
    vcpus: Vec<Vcpu>,
    idle: CoreSet,
    /// Cores for which something waits.
    crowded: CoreSet,
    accounting_at_ns: u64,
}

#[derive(Default)]
struct Core {
    /// Waiting virtual CPUs, by priority.
    waiting: [VecDeque<ThreadId>; 3],
    running: Option<ThreadId>,
    charged_ns: u64,
    /// Credit that was taken away at the last accounting.
    discarded_ns: u64,
    /// Over all accountings: the period less what was discarded.
    advance_ns: i64,
}

struct Vcpu {
    /// Credit in ns of CPU time.
    credit_ns: i64,
    priority: Priority,
    /// Has it run since the last accounting?
    has_run: bool,
    core: CoreId,
    /// The cores that it may run on, as indices.
    allowed: Range<usize>,
}

impl XenCredit {
    /// # Errors
    /// The options do not pass their check: its sentence.
    pub fn new(machine: &Machine, tasks: &Tasks, options: XenCreditOptions) -> Result<XenCredit, String> {
        options.check()?;
        let mut idle = CoreSet::none(machine.cores());
        machine.all().for_each(|core| idle.set(core, true));
        let vcpu = |number: u32| {
            let thread = ThreadId(number);
            let pin = tasks.pin(thread);
            Vcpu {
                credit_ns: options.slice_ns as i64,
                priority: Priority::Under,
                has_run: false,
                core: pin.unwrap_or(CoreId((thread.index() % machine.cores()) as u16)),
                allowed: pin.map_or(0..machine.cores(), |pin| pin.index()..pin.index() + 1),
            }
        };
        Ok(XenCredit {
            options,
            machine: *machine,
            tasks: tasks.clone(),
            cores: machine.all().map(|_| Core::default()).collect(),
            vcpus: (0..tasks.threads() as u32).map(vcpu).collect(),
            idle,
            crowded: CoreSet::none(machine.cores()),
            accounting_at_ns: options.accounting_ns,
        })
    }

    /// Credit of the virtual CPU, in ns of CPU time.
    pub fn credit_ns(&self, thread: ThreadId) -> i64 {
        self.vcpus[thread.index()].credit_ns
    }

    fn may_run(&self, thread: ThreadId, core: CoreId) -> bool {
        self.vcpus[thread.index()].allowed.contains(&core.index())
    }

    /// Priority of the virtual CPU.
    pub fn priority(&self, thread: ThreadId) -> Priority {
        self.vcpus[thread.index()].priority
    }

    /// The core on which `thread` runs, waits, or last did.
    pub fn core_of(&self, thread: ThreadId) -> CoreId {
        self.vcpus[thread.index()].core
    }

    /// The thread that runs on `core`.
    pub fn running(&self, core: CoreId) -> Option<ThreadId> {
        self.cores[core.index()].running
    }

    /// The threads that wait on `core`, the next one first.
    pub fn waiting(&self, core: CoreId) -> impl Iterator<Item = ThreadId> {
        self.cores[core.index()].waiting.iter().flatten().copied()
    }

    /// Credit of that core's virtual CPUs that was taken away at the last accounting: the core with the least has
    /// received most service (P-MQFQ section 3.2).
    pub fn discarded_ns(&self, core: CoreId) -> u64 {
        self.cores[core.index()].discarded_ns
    }

    /// Moves `thread`, which waits or is blocked, to `to`; if it waits, it waits there: first of its priority, or last.
    pub fn place(&mut self, thread: ThreadId, to: CoreId, first: bool) {
        let vcpu = &mut self.vcpus[thread.index()];
        let from = std::mem::replace(&mut vcpu.core, to);
        let priority = vcpu.priority as usize;
        let queue = &mut self.cores[from.index()].waiting[priority];
        if let Some(at) = queue.iter().position(|waiting| *waiting == thread) {
            queue.remove(at);
            let queue = &mut self.cores[to.index()].waiting[priority];
            if first {
                queue.push_front(thread);
            } else {
                queue.push_back(thread);
            }
        }
        self.note(from);
        self.note(to);
    }

    fn note(&mut self, core: CoreId) {
        let at = &self.cores[core.index()];
        let is_empty = at.waiting.iter().all(VecDeque::is_empty);
        self.idle.set(core, is_empty && at.running.is_none());
        self.crowded.set(core, !is_empty);
    }

    fn charge(&mut self, core: CoreId, now_ns: u64) {
        let at = &mut self.cores[core.index()];
        let Some(running) = at.running else { return };
        let vcpu = &mut self.vcpus[running.index()];
        let floor = -(self.options.slice_ns as i64);
        vcpu.credit_ns = (vcpu.credit_ns - (now_ns - at.charged_ns) as i64).max(floor);
        vcpu.has_run = true;
        if vcpu.priority != Priority::Boost {
            vcpu.priority = if vcpu.credit_ns < 0 { Priority::Over } else { Priority::Under };
        }
        at.charged_ns = now_ns;
    }

    /// The best priority that waits there.
    fn best(&self, core: CoreId) -> Option<Priority> {
        let waiting = &self.cores[core.index()].waiting;
        [Priority::Boost, Priority::Under, Priority::Over].into_iter().find(|at| !waiting[*at as usize].is_empty())
    }

    /// The first thread that waits elsewhere, is better than `than` (`None`: any is), and may come; own socket first.
    fn steal(&mut self, core: CoreId, than: Option<Priority>, out: &mut dyn Effects) -> Option<ThreadId> {
        if self.crowded.is_empty() {
            return None;
        }
        let socket = self.machine.socket_of(core);
        let cores = self.machine.cores();
        out.spent(core, Spent::Scan { cores: cores as u16 });
        let near = self.crowded.within(core.index()..socket.end).chain(self.crowded.within(socket.start..core.index()));
        let far = self.crowded.within(socket.end..cores).chain(self.crowded.within(0..socket.start));
        let order: Vec<CoreId> = near.chain(far).filter(|from| *from != core).collect();
        for priority in [Priority::Boost, Priority::Under, Priority::Over] {
            if than.is_some_and(|than| priority >= than) {
                break;
            }
            for from in &order {
                let queue = &self.cores[from.index()].waiting[priority as usize];
                let found = queue.iter().copied().find(|thread| self.may_run(*thread, core));
                if let Some(thread) = found {
                    out.spent(core, Spent::DoubleLock);
                    self.place(thread, core, true);
                    return Some(thread);
                }
            }
        }
        None
    }

    /// Puts waiting threads into the queue of their priority.
    fn sort(&mut self) {
        for core in &mut self.cores {
            let all: Vec<ThreadId> = core.waiting.iter_mut().flat_map(std::mem::take).collect();
            for thread in all {
                core.waiting[self.vcpus[thread.index()].priority as usize].push_back(thread);
            }
        }
    }

    /// Takes the rest of the credit away, and gives every virtual CPU new credit.
    fn give_out(&mut self) {
        let has_run = |program: &ProgramId| {
            self.tasks.threads_of(*program).iter().any(|thread| self.vcpus[thread.index()].has_run)
        };
        let programs = (0..self.tasks.programs()).map(|program| ProgramId(program as u16));
        let ran: Vec<u32> = programs.filter(has_run).map(|program| self.tasks.weight(program)).collect();
        let heaviest = ran.iter().copied().max().unwrap_or(1);
        let weights: u64 = ran.iter().copied().map(u64::from).sum();
        let all_ns = self.machine.cores() as u64 * self.options.accounting_ns;
        self.cores.iter_mut().for_each(|core| core.discarded_ns = 0);
        for number in 0..self.vcpus.len() {
            let weight = self.tasks.weight_of(ThreadId(number as u32));
            let vcpu = &mut self.vcpus[number];
            let left_ns = vcpu.credit_ns.max(0);
            self.cores[vcpu.core.index()].discarded_ns += left_ns as u64;
            let given_ns = if weight < heaviest {
                let siblings = self.tasks.threads_of(self.tasks.program_of(ThreadId(number as u32))).len() as u128;
                let part = u128::from(all_ns) * u128::from(weight) / u128::from(weights) / siblings;
                part.min(u128::from(self.options.slice_ns)) as i64
            } else {
                self.options.slice_ns as i64
            };
            vcpu.credit_ns += given_ns - left_ns;
            vcpu.has_run = false;
            if vcpu.priority != Priority::Boost {
                vcpu.priority = if vcpu.credit_ns < 0 { Priority::Over } else { Priority::Under };
            }
        }
        for core in &mut self.cores {
            core.advance_ns += self.options.accounting_ns as i64 - core.discarded_ns as i64;
        }
    }
}

impl Scheduler for XenCredit {
    fn wake(&mut self, thread: ThreadId, _: Option<CoreId>, now_ns: u64, out: &mut dyn Effects) {
        let vcpu = &mut self.vcpus[thread.index()];
        if self.options.boost && vcpu.priority == Priority::Under {
            vcpu.priority = Priority::Boost;
        }
        let (core, priority) = (vcpu.core, vcpu.priority);
        self.cores[core.index()].waiting[priority as usize].push_back(thread);
        self.charge(core, now_ns);
        let was_idle = self.idle.has(core);
        self.note(core);
        let running = self.cores[core.index()].running;
        if was_idle || running.is_some_and(|running| self.vcpus[running.index()].priority > priority) {
            out.reschedule(core);
        }
        // An idle core takes it, or the virtual CPU that it replaced.
        if !was_idle {
            let near = self.idle.next_from(core, self.machine.socket_of(core));
            if let Some(idle) = near.or_else(|| self.idle.next_from(core, 0..self.machine.cores())) {
                out.reschedule(idle);
            }
        }
    }

    fn stop(&mut self, core: CoreId, thread: ThreadId, why: Stop, _: u64, now_ns: u64, _: &mut dyn Effects) {
        self.charge(core, now_ns);
        self.cores[core.index()].running = None;
        let vcpu = &mut self.vcpus[thread.index()];
        if why.is_runnable() {
            self.cores[core.index()].waiting[vcpu.priority as usize].push_back(thread);
        }
        self.note(core);
    }

    fn pick(&mut self, core: CoreId, now_ns: u64, out: &mut dyn Effects) -> Option<Run> {
        let best = self.best(core);
        if best.is_none_or(|best| best == Priority::Over) {
            self.steal(core, best, out);
        }
        let queue = self.best(core).map(|best| best as usize);
        let thread = queue.and_then(|queue| self.cores[core.index()].waiting[queue].pop_front());
        let at = &mut self.cores[core.index()];
        at.running = thread;
        at.charged_ns = now_ns;
        self.note(core);
        thread.map(|thread| Run { thread, until_ns: Some(now_ns + self.options.slice_ns) })
    }

    fn tick_ns(&self) -> Option<u64> {
        Some(self.options.tick_ns)
    }

    fn tick(&mut self, core: CoreId, thread: ThreadId, _: u64, now_ns: u64, out: &mut dyn Effects) {
        self.charge(core, now_ns);
        let vcpu = &mut self.vcpus[thread.index()];
        if vcpu.priority == Priority::Boost {
            vcpu.priority = Priority::Under;
        }
        if self.best(core).is_some_and(|best| best < self.vcpus[thread.index()].priority) {
            out.reschedule(core);
        }
    }

    fn next_timer_ns(&self) -> Option<u64> {
        Some(self.accounting_at_ns)
    }

    fn timer(&mut self, now_ns: u64, out: &mut dyn Effects) {
        self.accounting_at_ns = now_ns + self.options.accounting_ns;
        self.machine.all().for_each(|core| self.charge(core, now_ns));
        self.give_out();
        self.sort();
        for core in self.machine.all() {
            let Some(running) = self.running(core) else { continue };
            if self.best(core).is_some_and(|best| best < self.vcpus[running.index()].priority) {
                out.reschedule(core);
            }
        }
    }
}

/// Smallest difference of credit for which a virtual CPU is preempted. ASSUMED; CFS's wake-up granularity.
const WAKE_MARGIN_NS: i64 = 1_000_000;

impl XenCredit {
    /// Takes the virtual CPU out of its queue; it was in one.
    fn take_out(&mut self, thread: ThreadId) -> bool {
        let vcpu = &self.vcpus[thread.index()];
        let queue = &mut self.cores[vcpu.core.index()].waiting[vcpu.priority as usize];
        let at = queue.iter().position(|waiting| *waiting == thread);
        at.is_some_and(|at| queue.remove(at).is_some())
    }
}

impl RunQueues for XenCredit {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn running(&self, core: CoreId) -> Option<ThreadId> {
        XenCredit::running(self, core)
    }

    fn core_of(&self, thread: ThreadId) -> CoreId {
        XenCredit::core_of(self, thread)
    }

    fn is_waiting(&self, thread: ThreadId) -> bool {
        let vcpu = &self.vcpus[thread.index()];
        self.cores[vcpu.core.index()].waiting[vcpu.priority as usize].contains(&thread)
    }

    fn waiting(&self, core: CoreId) -> impl Iterator<Item = ThreadId> {
        XenCredit::waiting(self, core)
    }

    fn may_move(&self, thread: ThreadId, to: CoreId, _: u64) -> bool {
        self.may_run(thread, to)
    }

    fn virtual_time(&self, core: CoreId) -> i64 {
        self.cores[core.index()].advance_ns
    }

    fn as_of_ns(&self, _: u64) -> u64 {
        self.accounting_at_ns - self.options.accounting_ns
    }

    fn slice_ns(&self, _: ThreadId) -> u64 {
        self.options.slice_ns
    }

    fn migrate(&mut self, thread: ThreadId, to: CoreId, _: u64) {
        self.place(thread, to, true);
    }

    fn exchange(&mut self, a: ThreadId, b: ThreadId, _: u64) {
        let waiting = [a, b].map(|thread| (thread, self.take_out(thread)));
        let of = |vcpu: &Vcpu| (vcpu.core, vcpu.credit_ns, vcpu.priority);
        let (place_a, place_b) = (of(&self.vcpus[a.index()]), of(&self.vcpus[b.index()]));
        for (thread, (core, credit_ns, priority)) in [(a, place_b), (b, place_a)] {
            let vcpu = &mut self.vcpus[thread.index()];
            (vcpu.core, vcpu.credit_ns, vcpu.priority) = (core, credit_ns, priority);
        }
        for (thread, waits) in waiting {
            let vcpu = &self.vcpus[thread.index()];
            if waits {
                self.cores[vcpu.core.index()].waiting[vcpu.priority as usize].push_front(thread);
            }
        }
        self.note(place_a.0);
        self.note(place_b.0);
    }

    fn confine(&mut self, thread: ThreadId, cores: Range<usize>, _: u64) {
        let core = XenCredit::core_of(self, thread);
        self.vcpus[thread.index()].allowed = cores.clone();
        if !cores.contains(&core.index()) && XenCredit::running(self, core) != Some(thread) {
            self.place(thread, spread(thread, &cores), false);
        }
    }

    /// No virtual CPU ever has more credit than for a slice.
    fn limit_lag(&mut self, _: ThreadId, _: u64, _: u64) {}

    /// A virtual CPU that has used less of its credit than the running one waited while that ran: it comes first among
    /// its equals, and at once.
    fn wake_behind(
        &mut self,
        thread: ThreadId,
        waker: Option<CoreId>,
        most_ns: u64,
        now_ns: u64,
        out: &mut dyn Effects,
    ) {
        self.wake(thread, waker, now_ns, out);
        let vcpu = &self.vcpus[thread.index()];
        let core = vcpu.core;
        let Some(running) = XenCredit::running(self, core) else { return };
        let running = &self.vcpus[running.index()];
        let behind_ns = (vcpu.credit_ns - running.credit_ns).min(most_ns as i64);
        if vcpu.priority == running.priority && behind_ns > WAKE_MARGIN_NS {
            self.place(thread, core, true);
            out.reschedule(core);
        }
    }

    fn run(&mut self, core: CoreId, thread: ThreadId, used_ns: u64, now_ns: u64) -> Run {
        assert!(
            XenCredit::core_of(self, thread) == core && self.take_out(thread),
            "{thread:?} does not wait on {core:?}"
        );
        let at = &mut self.cores[core.index()];
        at.running = Some(thread);
        at.charged_ns = now_ns;
        self.note(core);
        let left_ns = self.options.slice_ns.saturating_sub(used_ns).max(1);
        Run { thread, until_ns: Some(now_ns + left_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::by_hand::ByHand;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const US: u64 = 1_000;

    fn on(cores: usize, weights: &[u32], options: XenCreditOptions) -> (ByHand<XenCredit>, Vec<ThreadId>) {
        let machine = Machine::new(cores, 1).unwrap();
        let mut tasks = Tasks::default();
        let thread = |weight: &u32| {
            let program = tasks.add_program(*weight);
            tasks.add_thread(program, None)
        };
        let threads = weights.iter().map(thread).collect();
        (ByHand::new(XenCredit::new(&machine, &tasks, options).unwrap(), &machine, &tasks), threads)
    }

    #[test]
    fn equals_take_turns_of_a_slice() {
        let (mut by_hand, threads) = on(1, &[256, 256], XenCreditOptions::new());
        threads.iter().for_each(|thread| by_hand.wake(*thread));
        by_hand.run_to(29 * MS);
        assert_eq!(by_hand.running(0), Some(threads[0]));
        by_hand.run_to(6_000 * MS);
        let share = by_hand.ran_ns(threads[0]) as f64 / 6_000e6;
        assert!((share - 0.5).abs() < 0.02, "{share}");
    }

    #[test]
    fn weights_are_about_proportions() {
        for (heavy, right) in [(512, 1.0 / 3.0), (1024, 1.0 / 5.0)] {
            let (mut by_hand, threads) = on(1, &[256, heavy], XenCreditOptions::new());
            threads.iter().for_each(|thread| by_hand.wake(*thread));
            by_hand.run_to(12_000 * MS);
            let share = by_hand.ran_ns(threads[0]) as f64 / 12_000e6;
            assert!((share / right - 1.0).abs() < 0.3, "{share} of {right}");
        }
    }

    /// Beside one that always runs, it runs for 50 us and sleeps for 10 us; its share.
    fn blocker_beside_hog(options: XenCreditOptions) -> (f64, bool) {
        let (mut by_hand, threads) = on(1, &[256, 256], options);
        let (hog, blocker) = (threads[0], threads[1]);
        by_hand.wake(hog);
        by_hand.wake(blocker);
        while by_hand.now_ns() < 6_000 * MS {
            while by_hand.running(0) != Some(blocker) {
                by_hand.run_to(by_hand.now_ns() + 100 * US);
            }
            by_hand.run_to(by_hand.now_ns() + 50 * US);
            while by_hand.running(0) != Some(blocker) {
                by_hand.run_to(by_hand.now_ns() + 100 * US);
            }
            by_hand.block(blocker);
            by_hand.run_to(by_hand.now_ns() + 10 * US);
            by_hand.wake(blocker);
        }
        let share = by_hand.ran_ns(blocker) as f64 / by_hand.now_ns() as f64;
        (share, by_hand.scheduler.priority(hog) == Priority::Under)
    }

    #[test]
    fn who_blocks_often_forfeits_its_share_and_boost_would_mend_that_on_one_core() {
        let (share, hog_is_under) = blocker_beside_hog(XenCreditOptions::new());
        assert!(share < 0.01, "{share} of a fair half: 50 us for each slice of 30 ms");
        assert!(hog_is_under, "it was given all the credit");
        let (share, _) = blocker_beside_hog(XenCreditOptions { boost: true, ..XenCreditOptions::new() });
        assert!(share > 0.2, "{share}");
    }

    #[test]
    fn unused_credit_is_taken_away_and_debt_stays() {
        let (mut by_hand, threads) = on(2, &[256, 1024], XenCreditOptions::new());
        threads.iter().for_each(|thread| by_hand.wake(*thread));
        by_hand.run_to(20 * MS);
        by_hand.block(threads[0]);
        let credit_ms = |by_hand: &ByHand<XenCredit>| {
            threads.iter().map(|thread| by_hand.scheduler.credit_ns(*thread) / MS as i64).collect::<Vec<_>>()
        };
        assert_eq!(credit_ms(&by_hand), [10, 10], "of 30");
        by_hand.run_to(30 * MS);
        assert_eq!(by_hand.scheduler.discarded_ns(CoreId(0)), 10 * MS);
        assert_eq!(credit_ms(&by_hand), [12, 30], "a fifth of two cores' 30 ms; a slice");
        by_hand.wake(threads[0]);
        by_hand.run_to(59 * MS);
        assert_eq!(by_hand.scheduler.priority(threads[0]), Priority::Over, "it has run for 29 ms with 12");
        by_hand.run_to(60 * MS);
        assert_eq!(credit_ms(&by_hand), [12 - 30 + 12, 30]);
    }

    #[test]
    fn an_idle_core_steals_and_one_without_credit_steals_who_has_some() {
        let (mut by_hand, threads) = on(2, &[256; 3], XenCreditOptions::new());
        by_hand.wake(threads[0]);
        by_hand.wake(threads[2]);
        assert_eq!(by_hand.running(1), Some(threads[2]), "born on core 0, whose thread runs");
        by_hand.wake(threads[1]);
        by_hand.block(threads[0]);
        assert_eq!(by_hand.running(0), Some(threads[1]), "it waited on core 1");
    }

    #[test]
    fn options_that_cannot_be_are_refused_in_a_sentence() {
        let refusal = XenCreditOptions { tick_ns: 0, ..XenCreditOptions::new() }.check().unwrap_err();
        assert_eq!(refusal, "tick is 0, allowed is 1 ns and more");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// At any order of wakes and blocks, promises are kept, and no core is idle while a thread waits.
        #[test]
        fn no_thread_is_lost_and_no_core_stays_idle(
            cores in 1usize..9, boost in any::<bool>(), count in 1usize..20,
            steps in prop::collection::vec((0u64..30_000_000, any::<u16>()), 1..200),
        ) {
            let options = XenCreditOptions { boost, ..XenCreditOptions::new() };
            let (mut by_hand, threads) = on(cores, &vec![256; count], options);
            let mut blocked = threads.clone();
            for (after_ns, choice) in steps {
                by_hand.run_to(by_hand.now_ns() + after_ns);
                let running: Vec<ThreadId> = (0..cores as u16).filter_map(|core| by_hand.running(core)).collect();
                let choice = usize::from(choice);
                if choice % 2 == 0 && !blocked.is_empty() {
                    by_hand.wake(blocked.swap_remove(choice / 2 % blocked.len()));
                } else if !running.is_empty() {
                    let thread = running[choice / 2 % running.len()];
                    by_hand.block(thread);
                    blocked.push(thread);
                }
                let running = (0..cores as u16).filter(|core| by_hand.running(*core).is_some()).count();
                prop_assert_eq!(running, cores.min(count - blocked.len()));
            }
        }
    }
}
