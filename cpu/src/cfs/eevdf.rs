//! Which thread of this core is owed something, and of those must be served first? EEVDF on CFS's queues.
//!
//! Sources: Stoica and Abdel-Wahab, "Earliest Eligible Virtual Deadline First", 1995; "EEVDF Scheduler" in the kernel's
//! documentation. Placement, balancing and the charge are CFS's ([`super`]). Not a copy of any version of Linux.
//!
//! ```text
//!   virtual time V   the mean of the queue's vruntimes, by weight, the running thread's included
//!   lag              V - vruntime: what a thread is owed
//!   eligible         lag >= 0
//!   deadline         vruntime + slice / weight, renewed when vruntime reaches it
//!   pick             of the eligible ones the earliest deadline
//! ```
//!
//! A thread that blocks takes its lag along, two slices at most, and is placed with it when it wakes. One that is ahead
//! pays back meanwhile: it wakes with what is left when V has passed on. A waking thread takes the core if the running
//! one is no longer eligible and it is the one to pick, or if that one's slice is over. Else the running one goes on
//! until the first tick after its deadline.
//!
//! **Example.** A hog and a thread that runs for 0.3 ms at a time, slices of 2.1 ms, ticks of 4 ms. The thread wakes
//! while the hog is eligible and waits for a tick; then the hog is 4 ms ahead, and the thread takes the core at once
//! each time it wakes until it has had 4 ms, too.
//!
//! # Choices
//! * A thread's weight is its program's: Linux' groups of threads would share it among their threads, which is the
//!   same where each core has one thread of each.
//! * No thread asks for a shorter slice, so a waking one never ends another's slice by that.

use super::Cfs;
use crate::scheduler::{CoreId, ThreadId};

/// The order in which a queue's threads run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The smallest vruntime first: CFS.
    Vruntime,
    /// The earliest deadline of those that are owed something: EEVDF.
    Deadline {
        /// Slice of a thread on one core, ns. On more it is this times 1 + log2 of the cores, of 8 at most.
        base_slice_ns: u64,
    },
}

impl Cfs {
    /// Length of a slice under EEVDF; `None`: this is CFS.
    pub(super) fn deadline_slice_ns(&self) -> Option<u64> {
        match self.options.order {
            Order::Vruntime => None,
            Order::Deadline { base_slice_ns } => {
                Some(base_slice_ns * u64::from(1 + self.machine.cores().min(8).ilog2()))
            }
        }
    }

    /// V: the mean of all that wait or run, by weight; the last one of an empty queue.
    pub(super) fn mean_vruntime(&self, core: CoreId) -> i64 {
        let queue = &self.queues[core.index()];
        let running = queue.running.map(|running| running.thread);
        let (mut sum, mut weights) = (0_i128, 0_i128);
        for thread in queue.order.iter().map(|(_, thread)| *thread).chain(running) {
            let entity = &self.threads[thread.index()];
            let weight = i128::from(entity.weight);
            sum += i128::from(entity.vruntime) * weight;
            weights += weight;
        }
        if weights == 0 { queue.min_vruntime } else { sum.div_euclid(weights) as i64 }
    }

    /// A new deadline from the thread's vruntime on.
    pub(super) fn renew(&mut self, thread: ThreadId) {
        if let Some(slice_ns) = self.deadline_slice_ns() {
            let entity = &mut self.threads[thread.index()];
            entity.deadline = entity.vruntime + entity.span(slice_ns);
        }
    }

    /// The running thread is about to block: what it is owed, and no more than two slices or a tick either way.
    pub(super) fn keep_lag(&mut self, thread: ThreadId) {
        let Some(slice_ns) = self.deadline_slice_ns() else { return };
        let mean = self.mean_vruntime(self.threads[thread.index()].core);
        let entity = &mut self.threads[thread.index()];
        let most = entity.span((2 * slice_ns).max(self.options.tick_ns));
        entity.lag = (mean - entity.vruntime).clamp(-most, most);
    }

    /// Where a waking thread is placed on `core`: as far behind V as it was when it blocked, its own weight in V.
    pub(super) fn place_of(&self, thread: ThreadId, core: CoreId) -> i64 {
        let entity = &self.threads[thread.index()];
        let mean = self.mean_vruntime(core);
        let lag = if entity.lag < 0 {
            // The thread was ahead, and V went on since.
            (self.mean_vruntime(entity.core) - entity.vruntime).clamp(entity.lag, 0)
        } else {
            entity.lag
        };
        let others = i128::from(self.queues[core.index()].weight);
        if others == 0 {
            return mean;
        }
        mean - (i128::from(lag) * (others + i128::from(entity.weight)) / others) as i64
    }

    /// The eligible waiting thread with the earliest deadline.
    pub(super) fn earliest(&self, core: CoreId) -> Option<ThreadId> {
        let mean = self.mean_vruntime(core);
        let order = &self.queues[core.index()].order;
        let eligible = order.iter().take_while(|(vruntime, _)| *vruntime <= mean);
        let deadline = |thread: ThreadId| self.threads[thread.index()].deadline;
        // V is rounded down, so among equal threads none may be eligible.
        eligible
            .map(|(_, thread)| *thread)
            .min_by_key(|thread| (deadline(*thread), *thread))
            .or(order.first().filter(|_| self.queues[core.index()].running.is_none()).map(|(_, thread)| *thread))
    }

    /// Does the waking `thread` take the core from the running one, whose charge is up to date?
    pub(super) fn deadline_preempts(&self, thread: ThreadId, core: CoreId) -> bool {
        let Some(running) = self.queues[core.index()].running else { return true };
        let is_eligible = self.threads[running.thread.index()].vruntime <= self.mean_vruntime(core);
        running.is_over || (!is_eligible && self.earliest(core) == Some(thread))
    }
}
