//! The schedulers with one queue for all cores take memory in their construction alone.

use crate::history;

use history::{Habit, History, Levels, tasks};
use mqfq_cpu::fair_queue::{FairQueue, FairQueueKind};
use mqfq_cpu::ideal::{Ideal, IdealOptions, Preemption};
use mqfq_cpu::scheduler::{CoreId, Effects, Machine, ProgramId, Run, Scheduler, Spent, Stop, ThreadId};
use mqfq_testing::allocations::{Counting, allocations};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts what a scheduler takes in its calls.
struct Watched<S> {
    inner: S,
    calls: u64,
    taken: u64,
}

/// The policy's requests, kept without taking memory.
#[derive(Default)]
struct Asked {
    cores: [Option<CoreId>; 8],
    count: usize,
}

impl Effects for Asked {
    fn reschedule(&mut self, core: CoreId) {
        self.cores[self.count] = Some(core);
        self.count += 1;
    }

    fn spent(&mut self, _: CoreId, _: Spent) {}
}

impl<S: Scheduler> Watched<S> {
    fn watch<R>(&mut self, out: Option<&mut dyn Effects>, call: impl FnOnce(&mut S, &mut Asked) -> R) -> R {
        let mut asked = Asked::default();
        let before = allocations();
        let result = call(&mut self.inner, &mut asked);
        self.taken += allocations() - before;
        self.calls += 1;
        if let Some(out) = out {
            asked.cores.iter().flatten().for_each(|core| out.reschedule(*core));
        }
        result
    }
}

impl<S: Scheduler> Scheduler for Watched<S> {
    fn wake(&mut self, thread: ThreadId, waker: Option<CoreId>, now_ns: u64, out: &mut dyn Effects) {
        self.watch(Some(out), |inner, asked| inner.wake(thread, waker, now_ns, asked));
    }

    fn stop(&mut self, core: CoreId, thread: ThreadId, why: Stop, ran_ns: u64, now_ns: u64, out: &mut dyn Effects) {
        self.watch(Some(out), |inner, asked| inner.stop(core, thread, why, ran_ns, now_ns, asked));
    }

    fn pick(&mut self, core: CoreId, now_ns: u64, out: &mut dyn Effects) -> Option<Run> {
        self.watch(Some(out), |inner, asked| inner.pick(core, now_ns, asked))
    }

    fn next_timer_ns(&self) -> Option<u64> {
        self.inner.next_timer_ns()
    }

    fn timer(&mut self, now_ns: u64, out: &mut dyn Effects) {
        self.watch(Some(out), |inner, asked| inner.timer(now_ns, asked));
    }
}

impl<S: Scheduler> Levels for Watched<S> {
    fn are_level(&self, _: ProgramId, _: ProgramId, _: u64) -> bool {
        true
    }
}

fn taken_by(inner: impl Scheduler, habits: &[Habit]) -> (u64, u64) {
    let mut history = History::new(Watched { inner, calls: 0, taken: 0 }, 4, habits, 1);
    history.run_to(200_000);
    (history.scheduler.calls, history.scheduler.taken)
}

#[test]
fn no_call_takes_memory_from_the_first_on() {
    let before = allocations();
    drop(vec![0u8; 100]);
    assert!(allocations() > before, "the count counts");
    let blocks =
        |weight, threads| Habit { computes_ns: Some((1, 300)), sleeps_ns: (1, 300), ..Habit::hog(weight, threads) };
    let habits = [blocks(1024, 12), Habit::hog(100, 6), blocks(300, 3)];
    let (machine, tasks) = (Machine::new(4, 1).unwrap(), tasks(&habits));
    for preemption in [Preemption::Never, Preemption::OnArrival, Preemption::EverySlice] {
        let options = IdealOptions { quantum_ns: 100, min_slice_ns: 20, preemption };
        let (calls, taken) = taken_by(Ideal::new(&machine, &tasks, options).unwrap(), &habits);
        assert!(calls > 10_000 && taken == 0, "{preemption:?}: {calls} calls, {taken} allocations");
    }
    for kind in FairQueueKind::ALL {
        let (calls, taken) = taken_by(FairQueue::new(&machine, &tasks, kind, 100).unwrap(), &habits);
        assert!(calls > 10_000 && taken == 0, "{}: {calls} calls, {taken} allocations", kind.name());
    }
}
