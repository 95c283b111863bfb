//! PPREEMPT: who runs at once, and at whose expense?
//!
//! Source: P-MQFQ section 3.1: the thread that migrated preempts the one that runs; "we also ensure that the preempted
//! thread belongs to a different program".
//!
//! # What it approximates
//! Rule 3. That the preempted request is of another program follows there from start tags, and has to be checked here.
//!
//! # Nobody is passed to and fro
//! * Who is preempted stays in its queue, with its place, and is next there as the base has it. It looks for another
//!   queue only when it has used a quantum.
//! * A queue on which somebody was preempted is left alone for one window: until then its advance is that of who was
//!   preempted.
//! * The other queue must have advanced by a margin more, so of two queues at most one may preempt the other.
//!
//! # What it gives up
//! Nothing remembers that a thread ran ahead of its turn but its own place, which the base charges as ever: the queue's
//! others come before it afterwards, and get back what they gave.
//!
//! # What it costs
//! An interrupt, a context switch, and the cache of who is preempted.

use super::Pmqfq;
use crate::run_queues::RunQueues;
use crate::scheduler::{CoreId, Effects, ThreadId};

/// Who runs next on a core.
#[derive(Clone, Copy)]
pub(super) struct Next {
    pub(super) thread: ThreadId,
    /// Of the quantum that it inherits.
    pub(super) used_ns: u64,
}

impl<B: RunQueues> Pmqfq<B> {
    /// `thread` may take that core from what runs there, as far as programs, pins and earlier preemptions go.
    pub(super) fn may_preempt(&self, thread: ThreadId, core: CoreId, now_ns: u64) -> bool {
        let there = &self.cores[core.index()];
        let is_other = |runs| self.program_of(runs) != self.program_of(thread);
        there.next.is_none()
            && now_ns >= there.left_alone_until_ns
            && self.base.running(core).is_some_and(is_other)
            && self.base.may_move(thread, core, now_ns)
    }

    /// `thread`, which waits there, runs next on `core`.
    pub(super) fn preempt(&mut self, core: CoreId, thread: ThreadId, now_ns: u64, out: &mut dyn Effects) {
        let there = &mut self.cores[core.index()];
        there.next = Some(Next { thread, used_ns: 0 });
        there.left_alone_until_ns = now_ns + self.options.window_ns;
        there.is_told = true;
        out.reschedule(core);
    }

    /// Who was to run next on `core`, if it still waits there: the interrupt may take a while.
    pub(super) fn take_next(&mut self, core: CoreId) -> Option<Next> {
        let next = self.cores[core.index()].next.take()?;
        let still_waits = self.base.is_waiting(next.thread) && self.base.core_of(next.thread) == core;
        still_waits.then_some(next)
    }
}
