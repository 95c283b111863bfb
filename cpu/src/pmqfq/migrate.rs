//! MIGRATE: where does a thread continue after its quantum?
//!
//! Source: P-MQFQ section 3.1: a thread whose request is completed looks for a queue that advances faster and runs
//! another program; it moves there and preempts ([`super::preempt`]).
//!
//! # What it approximates
//! A thread whose quantum is over submits a new request at once, and rule 3 lets that preempt the request with the
//! largest start tag in service if its own is smaller. Here: the queue that advanced most, if it advanced more than its
//! own. Two threads share the own queue, a hog has the other one to itself: the hog has had more.
//!
//! # What it gives up
//! The start tag of the thread that comes. A thread that has had much may come from a slow queue. Its own queue must be
//! slow, which holds it back: it leaves others behind that could not run because of it.
//!
//! # What is added: trade
//! A thread that moves leaves a queue with one of its program fewer and makes another one longer. The siblings that
//! last ran there wake there, so threads of one program gather on a few queues: the CPU stacking of section 2.3, this
//! time by P-MQFQ's own doing. With [`super::PmqfqOptions::trade`] it exchanges places with a sibling that belongs to
//! the other queue and does not run, as SWITCH does: the queues keep their lengths and their virtual times. If the
//! program has no thread there, it moves as printed.
//!
//! # What it costs
//! A scan of all queues (up to `scan_max`), two locks, a migration. With `trade`, a look at the program's threads.

use super::Pmqfq;
use crate::run_queues::RunQueues;
use crate::scheduler::{CoreId, Effects, Spent, ThreadId};

impl<B: RunQueues> Pmqfq<B> {
    /// Moves on `thread`, which waits on `core` and has used its quantum there.
    pub(super) fn migrate_expired(&mut self, core: CoreId, thread: ThreadId, now_ns: u64, out: &mut dyn Effects) {
        // If no other thread wants the core, it continues there.
        let has_company = self.base.waiting(core).any(|other| other != thread);
        if has_company {
            self.migrate(core, thread, core, now_ns, out);
        }
    }

    /// Lets `thread`, which waits on `core`, preempt on another queue if that is faster. `asks` spends the time.
    pub(super) fn migrate(&mut self, core: CoreId, thread: ThreadId, asks: CoreId, now_ns: u64, out: &mut dyn Effects) {
        let (fastest, scanned) = self.fastest(core, thread, now_ns);
        if scanned > 0 {
            out.spent(asks, Spent::Scan { cores: scanned });
        }
        let Some(to) = fastest else { return };
        out.spent(asks, Spent::DoubleLock);
        match self.sibling_of(thread, core, to, now_ns) {
            Some(sibling) => {
                self.base.exchange(thread, sibling, now_ns);
                // A sibling that blocked long ago left a place far back. Waking there would not have kept it.
                let lag_ns = if self.options.arrive { self.options.lag_ns } else { 0 };
                self.base.limit_lag(thread, lag_ns, now_ns);
            }
            None => self.base.migrate(thread, to, now_ns),
        }
        self.preempt(to, thread, now_ns, out);
    }

    /// The queue that advanced most, if that is more than that of `core`; and the number of queues searched.
    fn fastest(&self, core: CoreId, thread: ThreadId, now_ns: u64) -> (Option<CoreId>, u16) {
        let mut at_least = self.advance(core, now_ns) + self.options.margin_ns as i64;
        let (mut fastest, mut scanned) = (None, 0);
        for other in self.near_first(core).skip(1).take(self.options.scan_max.into()) {
            scanned += 1;
            if self.may_preempt(thread, other, now_ns) && self.advance(other, now_ns) > at_least {
                at_least = self.advance(other, now_ns);
                fastest = Some(other);
            }
        }
        (fastest, scanned)
    }

    /// A sibling with which `thread`, of `core`, can trade places: it belongs to `to` and does not run.
    fn sibling_of(&self, thread: ThreadId, core: CoreId, to: CoreId, now_ns: u64) -> Option<ThreadId> {
        if !self.options.trade {
            return None;
        }
        let runs = self.base.running(to);
        let siblings = self.tasks.threads_of(self.program_of(thread)).iter().copied();
        let there = siblings.filter(|sibling| self.base.core_of(*sibling) == to && runs != Some(*sibling));
        there.into_iter().find(|sibling| self.base.may_move(*sibling, core, now_ns))
    }
}
