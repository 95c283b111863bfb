//! The interface on which an extension of a scheduler with a queue per core is built.
//!
//! The hooks through which an extension ([`crate::pmqfq`]) sees the queues of the scheduler below it and moves threads
//! between them. An implementation stays a scheduler of its own that knows of no extension: it decides as before until
//! a method that takes `&mut self` is called.
//!
//! # Shape
//! Each queue has a virtual time, and each thread a place on the axis of its queue. The base defines a place: a
//! vruntime under CFS, a balance of credits under Xen. An extension can carry a place along ([`RunQueues::migrate`]),
//! exchange two ([`RunQueues::exchange`]) and cut a thread's lag ([`RunQueues::limit_lag`]). It cannot make a place up,
//! so no thread gets more virtual time than another gave up or lost by blocking.

use crate::scheduler::{CoreId, Effects, Machine, Run, Scheduler, ThreadId};
use std::ops::Range;

/// A scheduler with a queue per core.
pub trait RunQueues: Scheduler {
    /// The cores.
    fn machine(&self) -> &Machine;

    /// The thread that runs on `core`.
    fn running(&self, core: CoreId) -> Option<ThreadId>;

    /// The core on which `thread` runs, waits, or last did.
    fn core_of(&self, thread: ThreadId) -> CoreId;

    /// Does `thread` want to run without running?
    fn is_waiting(&self, thread: ThreadId) -> bool;

    /// The threads that wait on `core`, the next one first.
    fn waiting(&self, core: CoreId) -> impl Iterator<Item = ThreadId>;

    /// Could `thread` run on core `to` now?
    fn may_move(&self, thread: ThreadId, to: CoreId, now_ns: u64) -> bool;

    /// The queue's virtual time, as of its last tick or stop: it advances by the service of one thread of the default
    /// weight. Only its advance has a meaning; two queues' values do not compare.
    fn virtual_time(&self, core: CoreId) -> i64;

    /// Time of the last update of the queues' virtual times.
    fn as_of_ns(&self, now_ns: u64) -> u64 {
        now_ns
    }

    /// Longest run of the thread, which waits or runs, on its core, ns.
    fn slice_ns(&self, thread: ThreadId) -> u64;

    /// Moves `thread`, which does not run, to `to`, at the same distance from that queue's virtual time.
    fn migrate(&mut self, thread: ThreadId, to: CoreId, now_ns: u64);

    /// Exchanges the cores and places of two threads, neither of which runs.
    fn exchange(&mut self, a: ThreadId, b: ThreadId, now_ns: u64);

    /// Restricts `thread` to those cores. If it is elsewhere and does not run, it goes to [`spread`]; if it runs, it
    /// stays until it stops.
    fn confine(&mut self, thread: ThreadId, cores: Range<usize>, now_ns: u64);

    /// Limits the lag of `thread`, which does not run, behind its queue's virtual time to `most_ns` of service.
    fn limit_lag(&mut self, thread: ThreadId, most_ns: u64, now_ns: u64);

    /// As [`Scheduler::wake`], but the thread keeps its lag behind its queue's virtual time, up to `most_ns` of
    /// service.
    fn wake_behind(
        &mut self,
        thread: ThreadId,
        waker: Option<CoreId>,
        most_ns: u64,
        now_ns: u64,
        out: &mut dyn Effects,
    );

    /// Picks `thread`, which waits on `core`, instead of the first; `used_ns` of its slice are used already. In place
    /// of [`Scheduler::pick`].
    fn run(&mut self, core: CoreId, thread: ThreadId, used_ns: u64, now_ns: u64) -> Run;
}

/// The core of `cores` for a thread that has to go there: by its number, so that many are spread evenly.
pub fn spread(thread: ThreadId, cores: &Range<usize>) -> CoreId {
    CoreId((cores.start + thread.index() % cores.len()) as u16)
}
