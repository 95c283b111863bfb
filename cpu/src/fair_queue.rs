//! SFQ(D), Min-SFQ(D) and FSFQ(D): fair queueing on many cores before P-MQFQ, for the analysis of why it does not help
//! a program that blocks.
//!
//! Source: P-MQFQ section 2.4, which tells them from each other by their virtual time v, to which every request is
//! aligned that arrives:
//!
//! | | v | of a program that lags |
//! |---|---|---|
//! | SFQ(D) | largest start tag in service | begins at v when it wakes: what it could not use is lost |
//! | Min-SFQ(D) | smallest start tag of all that waits or is in service | is first until it has caught up; others may starve as long |
//! | FSFQ(D) | both, each with tags of its own | as in SFQ(D), but among equal start tags the smaller *adjusted* one, of Min-SFQ(D), is first |
//!
//! A request's start tag is the larger of v at its arrival and its program's last finish tag (equation 2); how that is
//! computed while requests of the program are in service is said in `central.rs`. Nobody is preempted: who has a core
//! keeps it until it blocks or its quantum is over.
//!
//! # Difference from the paper
//! It says of dispatched requests "dispatched yet completed", and means those not completed.
//!
//! # Cost
//! Logarithmic in the programs; an arrival is also linear in the cores. No memory after construction.

use crate::central::CentralQueue;
use crate::scheduler::{CoreId, Effects, Machine, ProgramId, Run, Scheduler, Stop, Tasks, ThreadId};
use crate::vtime::VTime;

/// Which of the three.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FairQueueKind {
    /// Start-time fair queueing with D servers.
    SfqD,
    /// With the smallest start tag as virtual time.
    MinSfqD,
    /// With four tags.
    FsfqD,
}

impl FairQueueKind {
    /// All of them.
    pub const ALL: [FairQueueKind; 3] = [FairQueueKind::SfqD, FairQueueKind::MinSfqD, FairQueueKind::FsfqD];

    /// As the paper writes it.
    pub fn name(self) -> &'static str {
        match self {
            FairQueueKind::SfqD => "SFQ(D)",
            FairQueueKind::MinSfqD => "Min-SFQ(D)",
            FairQueueKind::FsfqD => "FSFQ(D)",
        }
    }
}

/// One of them.
#[derive(Clone, Debug)]
pub struct FairQueue {
    kind: FairQueueKind,
    quantum_ns: u64,
    /// The start and finish tags, and the adjusted ones. Where there is one kind of tags, both are that.
    queue: CentralQueue<2>,
}

impl FairQueue {
    /// For these threads on these cores, each of which runs for `quantum_ns` at most.
    ///
    /// # Errors
    /// One sentence: a quantum of 0, or a thread that is pinned.
    pub fn new(machine: &Machine, tasks: &Tasks, kind: FairQueueKind, quantum_ns: u64) -> Result<FairQueue, String> {
        if quantum_ns == 0 {
            return Err("a quantum of 0 ns, allowed is 1 or more".into());
        }
        Ok(FairQueue { kind, quantum_ns, queue: CentralQueue::new(machine, tasks)? })
    }

    /// v: what a request that arrives now is aligned to; for FSFQ(D) that of the tags that are not adjusted.
    pub fn virtual_time(&self) -> VTime {
        self.floor()[0]
    }

    /// The start tag of the request in service there.
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
