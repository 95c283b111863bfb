//! A large request goes to the device in parts.
//!
//! Answers: what is a part to the policy, to the device and to the flow's account, and when has the whole ended? Which
//! requests are cut, and how large the parts are, is in [`crate::split`].
//!
//! # Shape
//! ```text
//!   128 KiB, parts of 16 KiB, D = 12 units of 4 KiB
//!
//!   submit    whole ──▶ 8 entries of the policy, one behind the other         8 places in the table, 1 in `wholes`
//!   grants    part 1 ─▶ tag, 4 units │ part 2 ─▶ tag, 4 units │ part 3 …     12 units: three parts are out
//!             a small request of another flow has its turn between any two
//!   ends      part 2 │ part 1 │ …                                            tag and units back at each
//!   the last  one completion: the whole's buffer, the first error that came, times from the first part to the last
//! ```
//! A part is a request like any other to all that is below admission: it waits, is granted, gets its tag, times out
//! and is replayed by itself. So the policy and its bound are what they were, with the part's cost for the
//! largest cost: l_max of the bound is 16 KiB here, and was 128 KiB.
//!
//! # Charge
//! The whole is charged what it was charged without parts, once: each part is charged its share of that by length, to
//! the byte. With 4 KiB per request and 1 per byte, 128 KiB cost 132 KiB, and each part 16.5 KiB; by itself it would
//! cost 20 KiB, and the tenant would pay for a decision that is not its own: a neighbour's requests of 16 KiB, which it
//! sends by itself, cost 20 KiB. The intervals of the parts lie one behind the other:
//! ```text
//!   flow at 1000 KiB, weight 100     whole  [1000 …………………………………………………………… 1132)
//!                                    parts  [1000 … 1016.5) [1016.5 … 1033) … [1115.5 … 1132)
//! ```
//! So the flow's next request begins where it would have, and its requests leave in order (I9): the parts were staged
//! together, before anything that came later.
//!
//! # Invariants
//! * The whole completes once, when its last part has ended: as long as a part is under way, its client does not get
//!   the memory back, and a request that failed is not carried out after its failure was told. Parts that wait go to
//!   the device although another has failed.
//! * FUA is each part's, and the whole is answered after all of them. A flush covers what was answered before it, and
//!   no part is.
//! * A request of n parts counts as n towards its flow's bound of staged requests, and has no more than a quarter of
//!   it, which is what is free when a client is told of room: rather fewer and longer ones. So the table and the
//!   policy's queue are as large as without parts.
//! * Parts end where the device's blocks do, and where 4 KiB do.
//!
//! Reads and writes are cut. Discards and write zeroes move no bytes: their length says little of their time, and cut
//! they would be many commands where a drive makes a mark. The path without a block layer cuts nothing.
//!
//! # Cost
//! Off: nothing; the submission looks at one word that it looked at for a frozen context, and an end at one
//! more. On: a call more at either end of a request that is cut, and one at the others' ends
//! while parts are under way. `"auto"`: a call per reap, and one at each end while a worker counts, 64 ends in 2 ms. No
//! memory: a part's place is the table's, the wholes' are made with it, what ties a buffer to its parts is used again.

use crate::buffer::{self, Buffer, Cut};
use crate::request::{Op, Status, Submission};
use crate::split::{LOOK_NS, LOOK_REQUESTS, Seen, Split, SplitControl};
use crate::table::{Charge, Owner};
use mqfq_sched::cost::Cost;
use mqfq_sched::policy::Handle;
use mqfq_sched::topology::HctxId;
use std::sync::Arc;

/// "No whole", "no free one".
const NONE: u32 = u32::MAX;

/// Parts begin and end at multiples of this, bytes: what every drive takes without reading around it.
const ALIGN_BYTES: u32 = 4096;

/// A request whose parts are under way.
#[derive(Debug)]
pub(super) struct Whole {
    /// Parts that have not ended; 0: this place is free.
    parts_left: u32,
    /// A part was refused by a backing that hangs, and waits with those on the device.
    pub(super) is_held: bool,
    length_bytes: u32,
    /// The first error that came, or `Ok`.
    status: Status,
    submitted_ns: u64,
    dispatched_ns: u64,
    pub(super) cut: Option<Cut>,
    /// Next free place, if this one is free.
    next_free: u32,
}

#[derive(Debug)]
pub(super) struct Splitting {
    control: Arc<SplitControl>,
    align_bytes: u32,
    /// By place in the table of requests: the whole of the part there, or [`NONE`].
    pub(super) whole_of: Box<[u32]>,
    pub(super) wholes: Box<[Whole]>,
    first_free: u32,
    /// Memory that tied buffers to their parts, for the next cut.
    spare: Vec<Arc<buffer::Whole>>,
    /// Parts that ended since the last reap and were not the last of their whole.
    pub(super) ended_parts: usize,
    watch: Option<Watch>,
    /// Every end is counted for it; then it is counted in `RequestPath::slow_completions`.
    pub(super) is_watching: bool,
}

/// Free places of these numbers, each before the next.
fn wholes(numbers: std::ops::Range<u32>) -> Box<[Whole]> {
    let end = numbers.end;
    let whole = |n| Whole {
        parts_left: 0,
        is_held: false,
        length_bytes: 0,
        status: Status::Ok,
        submitted_ns: 0,
        dispatched_ns: 0,
        cut: None,
        next_free: if n + 1 < end { n + 1 } else { NONE },
    };
    numbers.map(whole).collect()
}

/// Counts for `"auto"`.
#[derive(Debug, Default)]
struct Watch {
    seen: Seen,
    /// The context's busy time when this count began, ns.
    busy_from_ns: u64,
    /// The next count begins no sooner.
    resume_ns: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Cuts {
    /// Length of every part but the first and the last.
    pub(super) part_bytes: u32,
    /// The first one's length: its end is aligned.
    pub(super) first_bytes: u32,
    pub(super) parts: u32,
}

impl Cuts {
    /// Cuts of a request of `length_bytes` at `offset_bytes`: parts of at most `part_bytes`, unless those are more than
    /// `parts_max`. `None`: it would be one part.
    fn new(offset_bytes: u64, length_bytes: u32, part_bytes: u32, parts_max: u32, align_bytes: u32) -> Option<Cuts> {
        let ahead_bytes = (offset_bytes % u64::from(align_bytes)) as u32;
        let span_bytes = u64::from(length_bytes) + u64::from(ahead_bytes);
        let least_bytes = span_bytes.div_ceil(u64::from(parts_max.max(1)));
        let part_bytes = u64::from(part_bytes).max(least_bytes).next_multiple_of(u64::from(align_bytes));
        let parts = span_bytes.div_ceil(part_bytes) as u32;
        // More than one part: each is shorter than the request, whose length has 32 bits.
        let part_bytes = (parts > 1).then_some(part_bytes as u32)?;
        Some(Cuts { part_bytes, first_bytes: part_bytes - ahead_bytes, parts })
    }
}

/// Parts of an admitted request that are not in the table yet.
pub(super) struct Pending {
    pub(super) cuts: Cuts,
    pub(super) whole: u32,
    pub(super) owner: Owner,
    pub(super) charge: Charge,
    pub(super) submission: Submission,
    pub(super) taken_bytes: u32,
    pub(super) now_ns: u64,
}

impl Splitting {
    /// For this option and a table of so many places; `None` if nothing is ever cut.
    pub(super) fn new(split: Split, block_bytes: u32, places: usize) -> Option<Box<Splitting>> {
        if split == Split::Off {
            return None;
        }
        let mut splitting = Box::new(Splitting {
            control: Arc::new(SplitControl::new(split, 1)),
            align_bytes: block_bytes.max(ALIGN_BYTES),
            whole_of: Box::default(),
            wholes: Box::default(),
            first_free: NONE,
            spare: Vec::new(),
            ended_parts: 0,
            watch: (split == Split::Auto).then(Watch::default),
            is_watching: false,
        });
        splitting.resize(places);
        Some(splitting)
    }

    /// For a table of so many places, one or more. Nothing is under way.
    pub(super) fn resize(&mut self, places: usize) {
        // Each has a part in the table until it ends.
        self.whole_of = vec![NONE; places].into();
        self.wholes = wholes(0..places as u32);
        self.first_free = 0;
        self.spare = Vec::with_capacity(places);
    }

    /// For a table of so many places, which were fewer. What is under way goes on.
    pub(super) fn grow(&mut self, places: usize) {
        let had = self.wholes.len() as u32;
        let mut more = wholes(had..places as u32).into_vec();
        let Some(last) = more.last_mut() else { return };
        last.next_free = std::mem::replace(&mut self.first_free, had);
        let mut all = std::mem::take(&mut self.wholes).into_vec();
        all.append(&mut more);
        self.wholes = all.into();
        let mut whole_of = std::mem::take(&mut self.whole_of).into_vec();
        whole_of.resize(places, NONE);
        self.whole_of = whole_of.into();
        self.spare.reserve(places);
    }

    /// Shares the counting with the contexts of other workers.
    pub(super) fn share(&mut self, control: Arc<SplitControl>) {
        self.control = control;
    }

    pub(super) fn control(&self) -> &SplitControl {
        &self.control
    }

    /// Cut of this submission, if any, into at most `parts_max`.
    pub(super) fn cuts(&self, submission: &Submission, parts_max: u32) -> Option<Cuts> {
        let &Submission { op, offset_bytes, length_bytes, .. } = submission;
        let part_bytes = self.control.part_bytes();
        if length_bytes <= part_bytes || !matches!(op, Op::Read | Op::Write) {
            return None;
        }
        Cuts::new(offset_bytes, length_bytes, part_bytes, parts_max, self.align_bytes)
    }

    /// A place for a whole of this many parts.
    pub(super) fn begin(&mut self, cuts: Cuts, submission: &mut Submission, now_ns: u64) -> u32 {
        let number = self.first_free;
        let cut = submission.buffer.take().map(|buffer| Cut::new(buffer, self.spare.pop().unwrap_or_default()));
        // There are as many as the table has places, and each that is under way has a part there.
        let whole = &mut self.wholes[number as usize];
        self.first_free = whole.next_free;
        let (length_bytes, status) = (submission.length_bytes, Status::Ok);
        let dispatched_ns = u64::MAX;
        *whole = Whole {
            parts_left: cuts.parts,
            is_held: false,
            length_bytes,
            status,
            submitted_ns: now_ns,
            dispatched_ns,
            cut,
            next_free: NONE,
        };
        number
    }

    /// The whole of the part at this place, if it is one.
    pub(super) fn take_whole_of(&mut self, handle: Handle) -> Option<u32> {
        let place = self.whole_of.get_mut(handle.0 as usize)?;
        (*place != NONE).then(|| std::mem::replace(place, NONE))
    }

    /// A part of this whole ended. The whole's end, if it was the last: its status, buffer, and times.
    pub(super) fn part_ended(&mut self, number: u32, status: Status, dispatched_ns: u64) -> Option<WholeEnd> {
        let whole = &mut self.wholes[number as usize];
        if whole.status == Status::Ok {
            whole.status = status;
        }
        whole.dispatched_ns = whole.dispatched_ns.min(dispatched_ns);
        whole.parts_left -= 1;
        if whole.parts_left > 0 {
            self.ended_parts += 1;
            return None;
        }
        let &mut Whole { status, length_bytes, submitted_ns, dispatched_ns, .. } = whole;
        let buffer = whole.cut.take().and_then(Cut::mend).map(|(buffer, spare)| {
            self.spare.push(spare);
            buffer
        });
        whole.next_free = std::mem::replace(&mut self.first_free, number);
        Some(WholeEnd { status, length_bytes, buffer, submitted_ns, dispatched_ns })
    }

    /// Counts an end, of a whole or of a request that was not cut.
    pub(super) fn note(&mut self, ended: &Ended) {
        let &Ended { flow, op, status, length_bytes, device_ns } = ended;
        if let Some(watch) = &mut self.watch
            && self.is_watching
            && status == Status::Ok
            && matches!(op, Op::Read | Op::Write)
        {
            watch.seen.note(flow, op == Op::Write, length_bytes, device_ns);
        }
    }

    /// Brings the counts when they are enough. Returns whether ends are counted from now on.
    pub(super) fn look(&mut self, worker: HctxId, busy_ns: u64, now_ns: u64) -> bool {
        let Some(watch) = self.watch.as_mut().filter(|_| self.control.applies()) else { return false };
        if self.is_watching {
            // Another worker is at it: counting goes on.
            if watch.seen.requests < LOOK_REQUESTS
                || !self.control.bring(worker.index(), &watch.seen, busy_ns - watch.busy_from_ns)
            {
                return true;
            }
        }
        if now_ns < watch.resume_ns {
            return false;
        }
        *watch = Watch { seen: Seen::default(), busy_from_ns: busy_ns, resume_ns: now_ns.saturating_add(LOOK_NS) };
        true
    }
}

pub(super) struct WholeEnd {
    pub(super) status: Status,
    pub(super) length_bytes: u32,
    pub(super) buffer: Option<Buffer>,
    pub(super) submitted_ns: u64,
    pub(super) dispatched_ns: u64,
}

/// An end, as it is counted.
pub(super) struct Ended {
    pub(super) flow: u32,
    pub(super) op: Op,
    pub(super) status: Status,
    pub(super) length_bytes: u32,
    pub(super) device_ns: u64,
}

impl Ended {
    /// End of a request that was not cut.
    pub(super) fn of(submission: &Submission, status: Status, device_ns: u64) -> Ended {
        let &Submission { flow, op, length_bytes, .. } = submission;
        Ended { flow: flow.0, op, status, length_bytes, device_ns }
    }
}

/// The part of a whole's cost that falls on `length_bytes` behind the first `taken_bytes`: all parts together cost what
/// the whole does, and none is free.
pub(super) fn share(cost: Cost, taken_bytes: u32, length_bytes: u32, whole_bytes: u32) -> Cost {
    let until = |bytes: u64| u128::from(cost.0) * u128::from(bytes) / u128::from(whole_bytes);
    let (start, end) = (u64::from(taken_bytes), u64::from(taken_bytes) + u64::from(length_bytes));
    Cost(((until(end) - until(start)) as u64).max(1))
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    fn parts(offset_bytes: u64, length_bytes: u32, part_bytes: u32, parts_max: u32) -> Vec<u32> {
        let Some(cuts) = Cuts::new(offset_bytes, length_bytes, part_bytes, parts_max, ALIGN_BYTES) else {
            return vec![length_bytes];
        };
        assert!(cuts.parts > 1, "one part is no cut");
        let mut left_bytes = length_bytes;
        let lengths: Vec<u32> = std::iter::from_fn(|| {
            let part_bytes = if left_bytes == length_bytes { cuts.first_bytes } else { cuts.part_bytes };
            let part_bytes = part_bytes.min(left_bytes);
            left_bytes -= part_bytes;
            (part_bytes > 0).then_some(part_bytes)
        })
        .collect();
        assert_eq!(lengths.len(), cuts.parts as usize);
        lengths
    }

    #[test]
    fn parts_end_at_blocks_and_are_no_more_than_there_may_be() {
        assert_eq!(parts(0, 128 << 10, 16 << 10, 256), [16 << 10; 8]);
        assert_eq!(parts(4096, 40 << 10, 16 << 10, 256), [16 << 10, 16 << 10, 8 << 10]);
        // A request that begins within a block: the first part is shorter.
        assert_eq!(parts(512, 32 << 10, 16 << 10, 256), [15872, 16384, 512]);
        assert_eq!(parts(512, (16 << 10) - 512, 16 << 10, 256), [15872], "one part is none");
        // 8 parts of 4 KiB are too many: 3 of 12 KiB. One is none.
        assert_eq!(parts(0, 32 << 10, 4096, 3), [12288, 12288, 8192]);
        assert_eq!(parts(0, 32 << 10, 4096, 1), [32 << 10]);
        assert_eq!(parts(0, u32::MAX - 4095, 1 << 20, 4096).len(), 4096);
        assert_eq!(parts(4095, u32::MAX, 4096, 2), [(1 << 31) + 1, (1 << 31) - 2]);
    }

    #[test]
    fn parts_cost_what_the_whole_does() {
        for (cost, length_bytes, part_bytes) in [(132 << 10, 128 << 10, 16 << 10), (1_000_003, 40_000, 4096), (9, 9, 9)]
        {
            let starts = (0..length_bytes).step_by(part_bytes as usize);
            let costs = starts.map(|at| share(Cost(cost), at, part_bytes.min(length_bytes - at), length_bytes).0);
            assert_eq!(costs.sum::<u64>(), cost);
        }
        assert_eq!(share(Cost(132 << 10), 16 << 10, 16 << 10, 128 << 10), Cost(33 << 9), "16.5 KiB");
        assert_eq!(share(Cost(1), 4096, 4096, 16384), Cost(1), "nothing is free");
    }
}
