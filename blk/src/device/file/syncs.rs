//! Which of several syncs is told that the page cache has lost a page, and what becomes of the others?
//!
//! Linux tells an open file once. Of two syncs that overlap the first to ask fails, and the other ends well over the
//! same lost page. The one that ends well may be reaped first:
//!
//! | step | sync of queue 0           | sync of queue 1             | without a hold                        |
//! |------|---------------------------|-----------------------------|---------------------------------------|
//! |  1   | is on the ring            | is on the ring              |                                       |
//! |  2   | asks the kernel: lost     |                             |                                       |
//! |  3   |                           | asks the kernel: all well   |                                       |
//! |  4   |                           | is reaped                   | answered well, and the page is gone   |
//! |  5   | is reaped: EIO            |                             | too late for queue 1                  |
//!
//! So a sync that ended well is held until all that were on a ring at that moment, of any queue of the device, have
//! ended, and fails if one of them was told. A sync is a flush or a write with FUA, from its first entry on the ring to
//! its last. Only through the page cache: a drive that fails a flush keeps its cache, and tells each caller.
//!
//! # Shape
//! Each sync takes a ticket before it is on the ring. A queue says which of its tickets is the oldest; a sync that
//! ended well waits until the oldest of each queue is not below the ticket that was next when it ended.
//! ```text
//!   next 9      views:  queue 0, oldest 4 ──▶ queue 1, oldest none, waits ──▶ ...
//!                                              held: [until 8]  ends when queue 0 has ended 4 to 7
//! ```
//!
//! # Invariants
//! S1. If sync A was on a ring before sync B was reaped, B ends after A was reaped and A's result is noted. A's view is
//!     below its ticket before the ticket is taken, B reads the next ticket by a read-modify-write: if that comes
//!     second, B sees A's view. If it comes first, A was not on the ring when B had long asked the kernel.
//! S2. A waiting queue looks again. It sets `waits`, then looks at the views; a queue whose sync ends changes its view,
//!     then looks which queues wait; a fence between each two, so one of them sees the other.
//! S3. No sync waits for a waiting sync: a held sync has no ticket any more. So each hold ends when the kernel has
//!     ended the syncs it has.
//!
//! Cost: three changes of shared words for each sync, and one look at each queue's. Source: Linux lib/errseq.c,
//! fs/sync.c; grace periods as in RCU (McKenney and Slingwine, "Read-Copy Update", PDCS 1998).

use crate::device::Reaped;
use crate::request::Status;
use mqfq_sched::sync::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use mqfq_sched::sync::{AtomicBool, AtomicU64, fence};
use mqfq_sched::topology::HctxId;
use std::sync::{Arc, OnceLock};

/// Oldest ticket of a queue without syncs on the ring.
const NONE: u64 = u64::MAX;

/// The syncs of a backing, of all queues on it.
pub(super) struct Syncs {
    next_ticket: AtomicU64,
    first: OnceLock<Arc<QueueView>>,
}

/// A queue, as the other queues see it.
struct QueueView {
    /// No ticket of its syncs on the ring is below this.
    oldest: AtomicU64,
    waits: AtomicBool,
    hctx: HctxId,
    interrupt: Arc<dyn Fn(HctxId) + Send + Sync>,
    following: OnceLock<Arc<QueueView>>,
}

/// A queue's own side. The syncs themselves are in the queue's [`SyncTable`].
pub(super) struct Member {
    view: Arc<QueueView>,
    /// Its syncs on the ring, the oldest first.
    on_ring: List,
    /// Syncs that ended well, the oldest first.
    held: List,
}

impl Member {
    /// Some sync waits for others.
    pub(super) fn holds_some(&self) -> bool {
        self.held.first != NO_TAG
    }
}

/// No tag: a queue has at most 65535 commands.
const NO_TAG: u16 = u16::MAX;

/// Tags of a table in an order.
#[derive(Clone, Copy)]
struct List {
    first: u16,
    last: u16,
}

impl List {
    const EMPTY: List = List { first: NO_TAG, last: NO_TAG };
}

/// The syncs of one worker's queue by tag, of all backings: their members have lists of them, and take no memory.
pub(super) struct SyncTable(Vec<SyncState>);

struct SyncState {
    /// On the ring: its ticket. Held: the ticket before which all must have ended.
    ticket: u64,
    before: u16,
    after: u16,
    is_on_ring: bool,
    held: Option<Reaped>,
}

impl SyncTable {
    /// The table of a queue of at most `depth` commands.
    pub(super) fn new(depth: u16) -> SyncTable {
        let none = || SyncState { ticket: 0, before: NO_TAG, after: NO_TAG, is_on_ring: false, held: None };
        SyncTable((0..depth).map(|_| none()).collect())
    }

    fn at(&mut self, tag: u16) -> &mut SyncState {
        &mut self.0[tag as usize]
    }

    fn append(&mut self, list: &mut List, tag: u16) {
        (self.at(tag).before, self.at(tag).after) = (list.last, NO_TAG);
        match list.last {
            NO_TAG => list.first = tag,
            last => self.at(last).after = tag,
        }
        list.last = tag;
    }

    fn remove(&mut self, list: &mut List, tag: u16) {
        let SyncState { before, after, .. } = *self.at(tag);
        match before {
            NO_TAG => list.first = after,
            before => self.at(before).after = after,
        }
        match after {
            NO_TAG => list.last = before,
            after => self.at(after).before = before,
        }
    }
}

impl Syncs {
    /// Syncs of a device without queues.
    pub(super) fn new() -> Syncs {
        Syncs { next_ticket: AtomicU64::new(0), first: OnceLock::new() }
    }

    /// A queue; `interrupt` is called with `hctx` when it may look again.
    pub(super) fn join(&self, hctx: HctxId, interrupt: Arc<dyn Fn(HctxId) + Send + Sync>) -> Member {
        let (oldest, waits) = (AtomicU64::new(NONE), AtomicBool::new(false));
        let view = Arc::new(QueueView { oldest, waits, hctx, interrupt, following: OnceLock::new() });
        let mut place = &self.first;
        loop {
            // Our view, or that of a queue that was faster.
            let there = place.get_or_init(|| view.clone());
            if Arc::ptr_eq(there, &view) {
                break;
            }
            place = &there.following;
        }
        Member { view, on_ring: List::EMPTY, held: List::EMPTY }
    }

    fn views(&self) -> impl Iterator<Item = &Arc<QueueView>> {
        std::iter::successors(self.first.get(), |view| view.following.get())
    }

    /// The sync of `tag` is about to go on the ring.
    pub(super) fn begin(&self, member: &mut Member, table: &mut SyncTable, tag: u16) {
        if member.on_ring.first == NO_TAG {
            // Relaxed: what is next now is not above what is next at the step below.
            let bound = self.next_ticket.load(Relaxed);
            // Relaxed: goes with the step below.
            member.view.oldest.store(bound, Relaxed);
        }
        // AcqRel: pairs with itself in `must_wait` (S1).
        let ticket = self.next_ticket.fetch_add(1, AcqRel);
        (table.at(tag).ticket, table.at(tag).is_on_ring) = (ticket, true);
        table.append(&mut member.on_ring, tag);
    }

    /// The command of `tag` has ended, and its result is noted. True: it was on the ring as a sync, so if it ended
    /// well, [`Syncs::must_wait`] says whether it is reported now.
    pub(super) fn ended(&self, member: &mut Member, table: &mut SyncTable, tag: u16) -> bool {
        if !std::mem::take(&mut table.at(tag).is_on_ring) {
            return false;
        }
        table.remove(&mut member.on_ring, tag);
        let oldest = if member.on_ring.first == NO_TAG { NONE } else { table.at(member.on_ring.first).ticket };
        self.show(member, oldest);
        true
    }

    fn show(&self, member: &Member, oldest: u64) {
        // Release: pairs with the Acquire in `have_ended`: what was noted before is seen.
        member.view.oldest.store(oldest, Release);
        // SeqCst: pairs with the one in `wait` (S2).
        fence(SeqCst);
        for view in self.views().filter(|view| !Arc::ptr_eq(view, &member.view)) {
            // Relaxed: after the fence.
            if view.waits.load(Relaxed) {
                (view.interrupt)(view.hctx);
            }
        }
    }

    /// Ticket until which a sync that has just ended well must wait; `None`: earlier syncs have ended.
    pub(super) fn must_wait(&self) -> Option<u64> {
        // AcqRel: pairs with `begin`; it changes nothing, and reads the last value (S1).
        let until = self.next_ticket.fetch_add(0, AcqRel);
        (!self.have_ended(until)).then_some(until)
    }

    /// All tickets below this.
    fn have_ended(&self, until: u64) -> bool {
        // Acquire: pairs with the Release in `show`.
        self.views().all(|view| view.oldest.load(Acquire) >= until)
    }

    /// A sync that ended well is to wait.
    pub(super) fn hold(&self, member: &mut Member, table: &mut SyncTable, until: u64, reaped: Reaped) {
        let tag = reaped.tag.0;
        (table.at(tag).ticket, table.at(tag).held) = (until, Some(reaped));
        table.append(&mut member.held, tag);
    }

    /// Moves syncs whose wait is over to `done`, as they ended, or as failed if `is_lost` says so then.
    pub(super) fn release(
        &self,
        member: &mut Member,
        table: &mut SyncTable,
        is_lost: impl Fn() -> bool,
        done: &mut Vec<Reaped>,
    ) {
        if !member.holds_some() {
            return;
        }
        // Relaxed: before the fence.
        member.view.waits.store(true, Relaxed);
        // SeqCst: pairs with the one in `show` (S2).
        fence(SeqCst);
        while member.holds_some() && self.have_ended(table.at(member.held.first).ticket) {
            let tag = member.held.first;
            table.remove(&mut member.held, tag);
            let reaped = table.at(tag).held.take().expect("a held sync has its end");
            done.push(if is_lost() { Reaped { status: Status::Io, ..reaped } } else { reaped });
        }
        if !member.holds_some() {
            // Relaxed: an interrupt too many does no harm.
            member.view.waits.store(false, Relaxed);
        }
    }

    /// Removes a queue. If it leaves syncs on the ring, their results are lost: `note` is called before other queues
    /// go on.
    pub(super) fn withdraw(&self, member: &mut Member, note: impl FnOnce()) {
        if member.on_ring.first != NO_TAG {
            note();
            member.on_ring = List::EMPTY;
            self.show(member, NONE);
        }
    }
}

#[cfg(all(test, mqfq_loom))]
mod loom_tests {
    use super::*;
    use crate::tag::Tag;
    use mqfq_sched::sync::model::{Arc as ModelArc, model, thread};
    use std::sync::atomic::AtomicBool as Flag;

    fn ended_well() -> Reaped {
        Reaped { tag: Tag(1), generation: 0, status: Status::Ok, buffer: None }
    }

    /// Race: one sync is told of a lost page while another, which overlaps, has ended well and looks whether it may be
    /// reported. It is reported as failed, at once or after it was woken. Shown to fail without the fence in `release`
    /// (it is never woken) and with Relaxed in `show` (reported as good).
    #[test]
    fn loom_a_sync_that_overlaps_with_one_that_is_told_waits_for_it_and_is_woken() {
        model(|| {
            let syncs = ModelArc::new(Syncs::new());
            // The bell orders nothing: no part of the model.
            let bell = Arc::new(Flag::new(false));
            let rung = bell.clone();
            let mut told = syncs.join(HctxId(0), Arc::new(|_| ()));
            let mut well = syncs.join(HctxId(1), Arc::new(move |_| rung.store(true, SeqCst)));
            let (mut table, mut their_table) = (SyncTable::new(2), SyncTable::new(2));
            let is_lost = ModelArc::new(AtomicBool::new(false));
            syncs.begin(&mut told, &mut their_table, 0);
            syncs.begin(&mut well, &mut table, 1);
            let (their_syncs, noted) = (syncs.clone(), is_lost.clone());
            let other = thread::spawn(move || {
                noted.store(true, Relaxed);
                assert!(their_syncs.ended(&mut told, &mut their_table, 0));
            });
            let mut done = Vec::new();
            assert!(syncs.ended(&mut well, &mut table, 1));
            match syncs.must_wait() {
                None => assert!(is_lost.load(Relaxed), "heard of before the other, as good"),
                Some(until) => {
                    syncs.hold(&mut well, &mut table, until, ended_well());
                    syncs.release(&mut well, &mut table, || is_lost.load(Relaxed), &mut done);
                    if done.is_empty() {
                        other.join().unwrap();
                        assert!(bell.load(SeqCst), "it waits, and nobody wakes it");
                        syncs.release(&mut well, &mut table, || is_lost.load(Relaxed), &mut done);
                    }
                    assert_eq!(done.len(), 1, "nobody is on the ring");
                    assert_eq!(done[0].status, Status::Io);
                }
            }
        });
    }
}
