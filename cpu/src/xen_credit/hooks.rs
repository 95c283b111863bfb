//! Xen's queues for extensions: a place is a balance of credit.
//!
//! Source: P-MQFQ section 3.2: "the consumption of credits is equivalent to the progression of virtual time". A queue's
//! virtual time is that of its accountings less the credit that was discarded in them, so it has come furthest where
//! the least was discarded. It stands still between two accountings.

use super::XenCredit;
use crate::run_queues::{RunQueues, spread};
use crate::scheduler::{CoreId, Effects, Machine, Run, Scheduler, ThreadId};
use std::ops::Range;

/// Smallest difference of credit for which a virtual CPU is preempted. ASSUMED; CFS's wake-up granularity.
const WAKE_MARGIN_NS: i64 = 1_000_000;

impl XenCredit {
    /// Takes the virtual CPU out of its queue; it was in one.
    fn take_out(&mut self, thread: ThreadId) -> bool {
        let vcpu = &self.vcpus[thread.index()];
        let queue = &mut self.cores[vcpu.core.index()].waiting[vcpu.priority as usize];
        let at = queue.iter().position(|waiting| *waiting == thread);
        at.is_some_and(|at| queue.remove(at).is_some())
    }
}

impl RunQueues for XenCredit {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn running(&self, core: CoreId) -> Option<ThreadId> {
        XenCredit::running(self, core)
    }

    fn core_of(&self, thread: ThreadId) -> CoreId {
        XenCredit::core_of(self, thread)
    }

    fn is_waiting(&self, thread: ThreadId) -> bool {
        let vcpu = &self.vcpus[thread.index()];
        self.cores[vcpu.core.index()].waiting[vcpu.priority as usize].contains(&thread)
    }

    fn waiting(&self, core: CoreId) -> impl Iterator<Item = ThreadId> {
        XenCredit::waiting(self, core)
    }

    fn may_move(&self, thread: ThreadId, to: CoreId, _: u64) -> bool {
        self.may_run(thread, to)
    }

    fn virtual_time(&self, core: CoreId) -> i64 {
        self.cores[core.index()].advance_ns
    }

    fn as_of_ns(&self, _: u64) -> u64 {
        self.accounting_at_ns - self.options.accounting_ns
    }

    fn slice_ns(&self, _: ThreadId) -> u64 {
        self.options.slice_ns
    }

    fn migrate(&mut self, thread: ThreadId, to: CoreId, _: u64) {
        self.place(thread, to, true);
    }

    fn exchange(&mut self, a: ThreadId, b: ThreadId, _: u64) {
        let waiting = [a, b].map(|thread| (thread, self.take_out(thread)));
        let of = |vcpu: &super::Vcpu| (vcpu.core, vcpu.credit_ns, vcpu.priority);
        let (place_a, place_b) = (of(&self.vcpus[a.index()]), of(&self.vcpus[b.index()]));
        for (thread, (core, credit_ns, priority)) in [(a, place_b), (b, place_a)] {
            let vcpu = &mut self.vcpus[thread.index()];
            (vcpu.core, vcpu.credit_ns, vcpu.priority) = (core, credit_ns, priority);
        }
        for (thread, waits) in waiting {
            let vcpu = &self.vcpus[thread.index()];
            if waits {
                self.cores[vcpu.core.index()].waiting[vcpu.priority as usize].push_front(thread);
            }
        }
        self.note(place_a.0);
        self.note(place_b.0);
    }

    fn confine(&mut self, thread: ThreadId, cores: Range<usize>, _: u64) {
        let core = XenCredit::core_of(self, thread);
        self.vcpus[thread.index()].allowed = cores.clone();
        if !cores.contains(&core.index()) && XenCredit::running(self, core) != Some(thread) {
            self.place(thread, spread(thread, &cores), false);
        }
    }

    /// No virtual CPU ever has more credit than for a slice.
    fn limit_lag(&mut self, _: ThreadId, _: u64, _: u64) {}

    /// A virtual CPU that has used less of its credit than the running one waited while that ran: it comes first among
    /// its equals, and at once.
    fn wake_behind(
        &mut self,
        thread: ThreadId,
        waker: Option<CoreId>,
        most_ns: u64,
        now_ns: u64,
        out: &mut dyn Effects,
    ) {
        self.wake(thread, waker, now_ns, out);
        let vcpu = &self.vcpus[thread.index()];
        let core = vcpu.core;
        let Some(running) = XenCredit::running(self, core) else { return };
        let running = &self.vcpus[running.index()];
        let behind_ns = (vcpu.credit_ns - running.credit_ns).min(most_ns as i64);
        if vcpu.priority == running.priority && behind_ns > WAKE_MARGIN_NS {
            self.place(thread, core, true);
            out.reschedule(core);
        }
    }

    fn run(&mut self, core: CoreId, thread: ThreadId, used_ns: u64, now_ns: u64) -> Run {
        assert!(
            XenCredit::core_of(self, thread) == core && self.take_out(thread),
            "{thread:?} does not wait on {core:?}"
        );
        let at = &mut self.cores[core.index()];
        at.running = Some(thread);
        at.charged_ns = now_ns;
        self.note(core);
        let left_ns = self.options.slice_ns.saturating_sub(used_ns).max(1);
        Run { thread, until_ns: Some(now_ns + left_ns) }
    }
}
