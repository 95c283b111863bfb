//! PPREEMPT: which thread runs at once, and at whose expense?
//!
//! Source: P-MQFQ section 3.1: the thread that migrated preempts the running one; "we also ensure that the preempted
//! thread belongs to a different program".
//!
//! # What it approximates
//! Rule 3. That the preempted request is of another program follows there from start tags, and has to be checked here.
//!
//! # No thread is passed to and fro
//! * A preempted thread stays in its queue, with its place, and is next there as the base has it. It looks for another
//!   queue only when it has used a quantum.
//! * A queue with a preemption is left alone for one window: until then its advance is that of the preempted thread.
//! * The other queue must have advanced by a margin more, so of two queues at most one may preempt the other.
//!
//! # What it gives up
//! Only a thread's own place, which the base charges as usual, remembers that it ran ahead of its turn: the queue's
//! other threads come before it afterwards, and get back the time that they gave.
//!
//! # What it costs
//! An interrupt, a context switch, and the cache of the preempted thread.

use super::Pmqfq;
use crate::run_queues::RunQueues;
use crate::scheduler::{CoreId, Effects, ThreadId};

/// The thread that runs next on a core.
#[derive(Clone, Copy)]
pub(super) struct Next {
    pub(super) thread: ThreadId,
    /// Used part of the quantum that it inherits.
    pub(super) used_ns: u64,
}

impl<B: RunQueues> Pmqfq<B> {
    /// May `thread` take that core from the running thread, by programs, pins and earlier preemptions?
    pub(super) fn may_preempt(&self, thread: ThreadId, core: CoreId, now_ns: u64) -> bool {
        let there = &self.cores[core.index()];
        let is_other = |runs| self.program_of(runs) != self.program_of(thread);
        there.next.is_none()
            && now_ns >= there.left_alone_until_ns
            && self.base.running(core).is_some_and(is_other)
            && self.base.may_move(thread, core, now_ns)
    }

    /// Lets `thread`, which waits there, run next on `core`.
    pub(super) fn preempt(&mut self, core: CoreId, thread: ThreadId, now_ns: u64, out: &mut dyn Effects) {
        let there = &mut self.cores[core.index()];
        there.next = Some(Next { thread, used_ns: 0 });
        there.left_alone_until_ns = now_ns + self.options.window_ns;
        there.is_told = true;
        out.reschedule(core);
    }

    /// The thread that was to run next on `core`, if it still waits there: the interrupt may take a while.
    pub(super) fn take_next(&mut self, core: CoreId) -> Option<Next> {
        let next = self.cores[core.index()].next.take()?;
        let still_waits = self.base.is_waiting(next.thread) && self.base.core_of(next.thread) == core;
        still_waits.then_some(next)
    }
}
