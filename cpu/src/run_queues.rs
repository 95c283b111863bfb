//! What can be built on a scheduler that has a queue per core?
//!
//! The hooks through which an extension ([`crate::pmqfq`]) sees the queues of the scheduler below it and moves threads
//! between them. Who implements this stays a scheduler of its own that knows of no extension: it decides as before
//! until a method that takes `&mut self` is called.
//!
//! # Shape
//! Each queue has a virtual time, and each thread a place on the axis of its queue. What a place is, is the base's
//! affair: a vruntime under CFS, a balance of credits under Xen. An extension can carry a place along
//! ([`RunQueues::migrate`]), exchange two ([`RunQueues::exchange`]) and cut what one is behind
//! ([`RunQueues::limit_lag`]). It cannot make one up, so whatever it does, nobody gets more virtual time than somebody
//! gave up or lost by blocking.

use crate::scheduler::{CoreId, Effects, Machine, Run, Scheduler, ThreadId};
use std::ops::Range;

/// A scheduler with a queue per core.
pub trait RunQueues: Scheduler {
    /// The cores.
    fn machine(&self) -> &Machine;

    /// Who runs there.
    fn running(&self, core: CoreId) -> Option<ThreadId>;

    /// Where it runs, waits, or last did.
    fn core_of(&self, thread: ThreadId) -> CoreId;

    /// It wants to run and does not.
    fn is_waiting(&self, thread: ThreadId) -> bool;

    /// Who waits there, the next one first.
    fn waiting(&self, core: CoreId) -> impl Iterator<Item = ThreadId>;

    /// It could run there now.
    fn may_move(&self, thread: ThreadId, to: CoreId, now_ns: u64) -> bool;

    /// How far the queue has come, as of its last tick or stop: it advances by the service that one thread of the
    /// default weight gets there. Only its advance means something; two queues' values do not compare.
    fn virtual_time(&self, core: CoreId) -> i64;

    /// When the queues' virtual times were last brought up.
    fn as_of_ns(&self, now_ns: u64) -> u64 {
        now_ns
    }

    /// How long the thread, which waits or runs, may run at a time where it is.
    fn slice_ns(&self, thread: ThreadId) -> u64;

    /// `thread`, which does not run, belongs to `to` from now on, at the same distance from that queue's virtual time.
    fn migrate(&mut self, thread: ThreadId, to: CoreId, now_ns: u64);

    /// Each of the two, neither of which runs, takes the other's core and its place there.
    fn exchange(&mut self, a: ThreadId, b: ThreadId, now_ns: u64);

    /// From now on `thread` may run on those cores alone. If it is elsewhere and does not run, it goes to [`spread`];
    /// if it runs, it stays until it stops.
    fn confine(&mut self, thread: ThreadId, cores: Range<usize>, now_ns: u64);

    /// `thread`, which does not run, is behind its queue's virtual time by `most_ns` of service at most.
    fn limit_lag(&mut self, thread: ThreadId, most_ns: u64, now_ns: u64);

    /// As [`Scheduler::wake`], but the thread keeps what it is behind its queue's virtual time, up to `most_ns` of
    /// service.
    fn wake_behind(
        &mut self,
        thread: ThreadId,
        waker: Option<CoreId>,
        most_ns: u64,
        now_ns: u64,
        out: &mut dyn Effects,
    );

    /// `thread`, which waits on `core`, runs there next, whoever would be first; `used_ns` of its slice are gone
    /// already. In place of [`Scheduler::pick`].
    fn run(&mut self, core: CoreId, thread: ThreadId, used_ns: u64, now_ns: u64) -> Run;
}

/// Where a thread that has to go to `cores` goes: by its number, so that many are spread evenly.
pub fn spread(thread: ThreadId, cores: &Range<usize>) -> CoreId {
    CoreId((cores.start + thread.index() % cores.len()) as u16)
}
