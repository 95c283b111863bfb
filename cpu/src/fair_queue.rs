//! SFQ(D), Min-SFQ(D) and FSFQ(D): fair queueing on many cores before P-MQFQ, for the analysis of why it does not help
//! a program that blocks.
//!
//! Source: P-MQFQ section 2.4, which distinguishes them by their virtual time v, to which every request is
//! aligned that arrives:
//!
//! | | v | of a program that lags |
//! |---|---|---|
//! | SFQ(D) | largest start tag in service | begins at v when it wakes: what it could not use is lost |
//! | Min-SFQ(D) | smallest start tag of all that waits or is in service | is first until it has caught up; others may starve as long |
//! | FSFQ(D) | both, each with tags of its own | as in SFQ(D), but among equal start tags the smaller *adjusted* one, of Min-SFQ(D), is first |
//!
//! A request's start tag is the larger of v at its arrival and its program's last finish tag (equation 2); `central.rs`
//! has the computation while requests of the program are in service. Nothing is preempted: a thread keeps its core
//! until it blocks or its quantum is over.
//!
//! # Difference from the paper
//! The paper writes "dispatched yet completed" of dispatched requests, and means those not completed.
//!
//! # Cost
//! Logarithmic in the programs; an arrival is also linear in the cores. No memory after construction.

use crate::central::CentralQueue;
use crate::scheduler::{CoreId, Effects, Machine, ProgramId, Run, Scheduler, Stop, Tasks, ThreadId};
use crate::vtime::VTime;

/// The variant of SFQ(D).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FairQueueKind {
    /// Start-time fair queueing with D servers.
    SfqD,
    /// SFQ(D) with the smallest start tag as virtual time.
    MinSfqD,
    /// SFQ(D) with four tags.
    FsfqD,
}

impl FairQueueKind {
    /// All variants.
    pub const ALL: [FairQueueKind; 3] = [FairQueueKind::SfqD, FairQueueKind::MinSfqD, FairQueueKind::FsfqD];

    /// The name in the paper.
    pub fn name(self) -> &'static str {
        match self {
            FairQueueKind::SfqD => "SFQ(D)",
            FairQueueKind::MinSfqD => "Min-SFQ(D)",
            FairQueueKind::FsfqD => "FSFQ(D)",
        }
    }
}

/// A scheduler of one variant.
#[derive(Clone, Debug)]
pub struct FairQueue {
    kind: FairQueueKind,
    quantum_ns: u64,
    /// The chains of start and finish tags, and of the adjusted ones. With one kind of tags, both are the same.
    queue: CentralQueue<2>,
}

impl FairQueue {
    /// A scheduler for these threads on these cores, with a quantum of `quantum_ns`.
    ///
    /// # Errors
    /// One sentence: a quantum of 0, or a thread that is pinned.
    pub fn new(machine: &Machine, tasks: &Tasks, kind: FairQueueKind, quantum_ns: u64) -> Result<FairQueue, String> {
        if quantum_ns == 0 {
            return Err("a quantum of 0 ns, allowed is 1 or more".into());
        }
        Ok(FairQueue { kind, quantum_ns, queue: CentralQueue::new(machine, tasks)? })
    }

    /// v, to which a request that arrives now is aligned; for FSFQ(D) of the tags that are not adjusted.
    pub fn virtual_time(&self) -> VTime {
        self.floor()[0]
    }

    /// The start tag of the request in service on `core`.
    pub fn start_tag(&self, core: CoreId) -> Option<VTime> {
        self.queue.on(core).map(|on| on.start[0])
    }

    /// The program's last finish tag.
    pub fn finish_tag(&self, program: ProgramId) -> VTime {
        self.queue.finish(program)[0]
    }

    fn floor(&self) -> [VTime; 2] {
        match self.kind {
            FairQueueKind::SfqD => [self.queue.largest_in_service(0); 2],
            FairQueueKind::MinSfqD => [self.queue.smallest_outstanding(); 2],
            FairQueueKind::FsfqD => [self.queue.largest_in_service(0), self.queue.smallest_outstanding()],
        }
    }
}

impl Scheduler for FairQueue {
    fn wake(&mut self, thread: ThreadId, _: Option<CoreId>, _: u64, out: &mut dyn Effects) {
        self.queue.push_back(thread, self.floor(), self.quantum_ns);
        if let Some(core) = self.queue.take_idle_core(thread) {
            out.reschedule(core);
        }
    }

    fn stop(&mut self, core: CoreId, thread: ThreadId, why: Stop, ran_ns: u64, _: u64, _: &mut dyn Effects) {
        // The request that ends is in service until the one that follows it has arrived: a program that never stops
        // wanting is not idle.
        let floor = self.floor();
        let left_ns = self.queue.end(core, ran_ns).left_ns.saturating_sub(ran_ns);
        if !why.is_runnable() {
            return;
        }
        if why == Stop::Preempted && left_ns > 0 {
            // Not by us: its driver took the core.
            self.queue.push_front(thread, floor, left_ns);
        } else {
            self.queue.push_back(thread, floor, self.quantum_ns);
        }
    }

    fn pick(&mut self, core: CoreId, now_ns: u64, _: &mut dyn Effects) -> Option<Run> {
        self.queue.asked[core.index()] = false;
        let on = self.queue.dispatch(core, now_ns, self.quantum_ns)?;
        Some(Run { thread: on.thread, until_ns: Some(now_ns + on.granted_ns) })
    }
}
