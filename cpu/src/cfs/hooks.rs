//! CFS's queues for extensions: a place is a vruntime.

use super::{Cfs, Running};
use crate::run_queues::{RunQueues, spread};
use crate::scheduler::{CoreId, Effects, Machine, Run, ThreadId};
use std::ops::Range;

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
