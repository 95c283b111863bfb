//! Rules 2 and 3 of section 3 for a waking thread, on distributed queues. Section 3.1 leaves them out.
//!
//! # Rule 2: it keeps what it is behind
//! "If a program is backlogged, a request's start tag is the maximum of the program's last finish tag and the program's
//! virtual time." Only a program that was idle altogether is aligned with the system. A base does the latter to each
//! thread: one that blocks for a millisecond has lost that. Here a thread that wakes while a sibling runs or waits
//! keeps its place, up to `lag_ns` behind its queue. That is the window of MIGRATE, for the same reason: older lag is
//! forgotten, or a program that was nearly idle for a second could shut others out for as long.
//!
//! # Rule 3: it preempts
//! The base lets a waking thread preempt one that is ahead of it; with its lag kept, that is any thread that ran while
//! it slept. If it is not behind enough, a sibling stands in its queue or has used the lag; then it looks for a faster
//! queue as if its quantum were over ([`super::migrate`]).
//!
//! # Why it is fair
//! A place is behind its queue by the service that others got there and its thread did not. The thread can take back
//! that and no more: once level it waits for its turn. So on each queue a program gets back its share of the last
//! window and never more than its share since then.
//!
//! # What it gives up
//! The state of the *program*, which may be ahead on other queues.
//!
//! # What it costs
//! A scan for each wake-up that does not get a core at once; a preemption for most that do.

use super::Pmqfq;
use crate::run_queues::RunQueues;
use crate::scheduler::{CoreId, Effects, ThreadId};

impl<B: RunQueues> Pmqfq<B> {
    /// Finds a core for `thread`, of a program that has others running or waiting: it has woken and kept its lag, and
    /// no core was told to run it.
    pub(super) fn arrive(&mut self, thread: ThreadId, waker: Option<CoreId>, now_ns: u64, out: &mut dyn Effects) {
        if self.options.migrate {
            let core = self.base.core_of(thread);
            self.migrate(core, thread, waker.unwrap_or(core), now_ns, out);
        }
    }
}
