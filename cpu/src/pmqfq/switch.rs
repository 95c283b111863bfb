//! SWITCH: which thread uses the rest of the quantum of one that blocks?
//!
//! Source: P-MQFQ section 3.1 and 3.2: a waiting sibling, wherever it waits. The two exchange places: "the selected
//! runnable thread will inherit the virtual time of the blocked thread and vice versa".
//!
//! # What it approximates
//! The program's virtual time. Under the ideal a program of which few threads are active has a small one, so the
//! critical thread is on a core at once. Here the critical thread is likely to be the one that waits while its siblings
//! block on it, so the first sibling that blocks runs it. And a program that was given a quantum keeps it while any of
//! its threads can run.
//!
//! # Why it is fair
//! A core's service goes to a place in its queue, and SWITCH only changes which of the program's threads stands there.
//! The program's lag or lead, summed over all queues, is the same before and after
//! (`a_switch_hands_over_the_rest_of_the_quantum_and_exchanges_virtual_times`).
//!
//! # What it gives up
//! The knowledge of the critical sibling. SWITCH takes the nearest queue that has a sibling, and of that queue the
//! first. When none waits, the quantum is lost as before.
//!
//! # Siblings that are not taken
//! A thread that waits on a core that was told to pick: it woke a microsecond ago and is about to run near its cache.
//! To take it costs two migrations and the other core's interrupt, for nothing. Without this, programs with steps of
//! some 20 us on 48 cores are moved more than they run.
//!
//! # What it costs
//! A scan whenever a thread blocks early, until a sibling is found. Two locks and two migrations if that waits
//! elsewhere; one of them is of a thread that is blocked, and costs when it wakes.

use super::{Next, Pmqfq};
use crate::run_queues::RunQueues;
use crate::scheduler::{CoreId, Effects, Spent, ThreadId};

impl<B: RunQueues> Pmqfq<B> {
    /// Hands on the quantum of `thread`, which has blocked on `core` after `used_ns` of it.
    pub(super) fn switch(&mut self, core: CoreId, thread: ThreadId, used_ns: u64, now_ns: u64, out: &mut dyn Effects) {
        // Another thread is about to preempt here, and the core is its own.
        if self.cores[core.index()].next.is_some() {
            return;
        }
        let (sibling, scanned) = self.waiting_sibling(core, thread, now_ns);
        if scanned > 0 {
            out.spent(core, Spent::Scan { cores: scanned });
        }
        let Some(sibling) = sibling else { return };
        if self.base.core_of(sibling) != core {
            out.spent(core, Spent::DoubleLock);
        }
        self.base.exchange(thread, sibling, now_ns);
        self.cores[core.index()].next = Some(Next { thread: sibling, used_ns });
    }

    /// The first sibling in the nearest queue that has one which may run here; and the number of other queues searched.
    fn waiting_sibling(&self, core: CoreId, thread: ThreadId, now_ns: u64) -> (Option<ThreadId>, u16) {
        let program = self.program_of(thread);
        let others = self.base.machine().cores() as u16 - 1;
        if self.programs[program.index()].waiting == 0 {
            // A scheduler without the count would have looked at all of them, and so it is charged.
            return (None, others.min(self.options.scan_max));
        }
        let mut scanned = 0;
        for other in self.near_first(core).take(usize::from(self.options.scan_max) + 1) {
            scanned += u16::from(other != core);
            let is_fit =
                |sibling: &ThreadId| self.program_of(*sibling) == program && self.base.may_move(*sibling, core, now_ns);
            // The blocked thread goes there in exchange.
            if !self.cores[other.index()].is_told
                && self.base.may_move(thread, other, now_ns)
                && let Some(sibling) = self.base.waiting(other).find(is_fit)
            {
                return (Some(sibling), scanned);
            }
        }
        (None, scanned)
    }
}
