//! The lock of a file by regions: a read-modify-write never puts back bytes that another write has just replaced.
//!
//! A direct write must be made of whole blocks. One that is not reads the blocks at its edges, replaces some of their
//! bytes and writes them back; any other write to those blocks between the two is undone, although its client was told
//! that it is stored:
//!
//! | step | A: 100 bytes in the middle of block 7 | B: all of block 7           | block 7 holds            |
//! |------|---------------------------------------|-----------------------------|--------------------------|
//! |  1   | reads block 7                         |                             | old                      |
//! |  2   |                                       | writes it, is acknowledged  | B                        |
//! |  3   | writes back old + its 100 bytes       |                             | old + A: B's write lost  |
//!
//! So the device is divided into regions, and a write enters all regions that it touches: shared if it consists of
//! whole blocks, alone if it must read first. Reads enter none: A writes back the bytes that were there outside of its
//! own.
//!
//! # Shape
//! One word per region, all of the uncontended path; behind a lock, one line of waiters per contended region.
//! ```text
//!   word:  31      30       29 ........ 0         line of region 3:  [hctx 1 tag 4 alone] [hctx 0 tag 9 shared] ...
//!         alone  queued     shared holders
//! ```
//! Regions are contiguous and tenants' exports too, so tenants meet here only where their exports touch.
//!
//! # Invariants
//! G1. A region is held by one alone or by any number shared, never both.
//! G2. While a write waits, `queued` is set: none enters past the line, which is first come, first served. So
//!     neither a stream of whole-block writes nor one of patches starves the other.
//! G3. The holder that frees a region with `queued` set grants it, then interrupts the hctx granted. No lost wake-up
//!     and no fence: `queued` and the holders are one word, so "I wait" and "I left" are ordered by its modification
//!     order. If the waiter's `queued` comes first, the last holder's decrement sees it; if the decrement comes first,
//!     the waiter sees no holder and enters.
//! G4. No deadlock: regions are entered in ascending order, so a holder of the highest contended region waits for no
//!     gate, only for the kernel.
//!
//! Cost: one compare-and-swap to enter a region and one subtraction to leave it, on a line that only writers of nearby
//! regions share. Source: reader-writer lock with hand-off, as in Courtois et al. 1971, "Concurrent control with
//! readers and writers"; the line makes it fair.

use mqfq_sched::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use mqfq_sched::sync::{AtomicU32, Mutex, MutexGuard};
use mqfq_sched::topology::HctxId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const ALONE: u32 = 1 << 31;
const QUEUED: u32 = 1 << 30;
const SHARED: u32 = QUEUED - 1;

/// Smallest region, bytes: most writes touch one.
const REGION_BYTES_MIN: u64 = 1 << 20;

/// Most regions: 256 KiB of words.
const REGIONS_MAX: u64 = 1 << 16;

/// Most regions of one backing among many: 4 KiB of words.
pub(super) const REGIONS_OF_POOL_MAX: u64 = 1 << 10;

/// The lock of a file by regions: writers of whole blocks share a region, a read-modify-write has its regions alone.
pub(super) struct Gate {
    region_bytes_log2: u32,
    words: Box<[AtomicU32]>,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    /// Never an empty line: an entry exists exactly while the region's `queued` is set (or the lock is held).
    waiting: BTreeMap<u32, VecDeque<Waiter>>,
    members: Vec<Entrance>,
}

struct Waiter {
    member: usize,
    tag: u16,
    alone: bool,
}

/// A device queue, as the gate sees it.
struct Entrance {
    hctx: HctxId,
    interrupt: Arc<dyn Fn(HctxId) + Send + Sync>,
    granted: Vec<u16>,
    has_grants: Arc<AtomicU32>,
}

/// A device queue's identity at the gate.
pub(super) struct Member {
    index: usize,
    has_grants: Arc<AtomicU32>,
}

/// The regions of one write: those it needs and how many of them, from the first on, it has.
#[derive(Debug)]
pub(super) struct Hold {
    first: u32,
    last: u32,
    taken: u32,
    alone: bool,
}

impl Hold {
    pub(super) fn is_alone(&self) -> bool {
        self.alone
    }
}

impl Gate {
    /// A gate in front of `size_bytes`, of at most [`REGIONS_MAX`] regions.
    pub(super) fn new(size_bytes: u64) -> Gate {
        Gate::of_regions(size_bytes, REGIONS_MAX)
    }

    /// A gate in front of `size_bytes`, of at most so many regions. Bytes beyond belong to the last region.
    pub(super) fn of_regions(size_bytes: u64, regions_max: u64) -> Gate {
        let region_bytes = size_bytes.div_ceil(regions_max).next_power_of_two().max(REGION_BYTES_MIN);
        let regions = size_bytes.div_ceil(region_bytes).max(1);
        Gate {
            region_bytes_log2: region_bytes.trailing_zeros(),
            words: (0..regions).map(|_| AtomicU32::new(0)).collect(),
            lines: Mutex::new(Lines::default()),
        }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        // A panic elsewhere leaves no line half-changed: each change below is complete before anything can panic.
        self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A device queue that will enter as the returned member; `interrupt` is called with `hctx` when it was granted
    /// something by another.
    pub(super) fn join(&self, hctx: HctxId, interrupt: Arc<dyn Fn(HctxId) + Send + Sync>) -> Member {
        let has_grants = Arc::new(AtomicU32::new(0));
        let mut lines = self.lines();
        lines.members.push(Entrance { hctx, interrupt, granted: Vec::new(), has_grants: has_grants.clone() });
        Member { index: lines.members.len() - 1, has_grants }
    }

    /// Regions that a write of `length_bytes`, at least 1, from `offset_bytes` on needs; none is entered yet.
    pub(super) fn hold(&self, offset_bytes: u64, length_bytes: u32, alone: bool) -> Hold {
        let last_region = self.words.len() as u64 - 1;
        let region = |byte: u64| (byte >> self.region_bytes_log2).min(last_region) as u32;
        let (first, last) = (region(offset_bytes), region(offset_bytes + u64::from(length_bytes) - 1));
        Hold { first, last, taken: 0, alone }
    }

    /// Enters the rest of `hold`'s regions. False: `tag` waits, and [`Gate::take_grants`] of this member will name it,
    /// after which the caller counts it by [`Gate::granted`] and enters again.
    pub(super) fn enter(&self, member: &Member, tag: u16, hold: &mut Hold) -> bool {
        while hold.first + hold.taken <= hold.last {
            let region = hold.first + hold.taken;
            if !self.enter_at_once(region, hold.alone) && !self.line_up(member, tag, region, hold.alone) {
                return false;
            }
            hold.taken += 1;
        }
        true
    }

    /// Notes that one more region of `hold` was granted.
    pub(super) fn granted(hold: &mut Hold) {
        hold.taken += 1;
    }

    fn enter_at_once(&self, region: u32, alone: bool) -> bool {
        let word = &self.words[region as usize];
        if alone {
            // Acquire: pairs with the Release in `leave_region`: the I/O of earlier holders is over before ours begins.
            // Relaxed: on failure nothing was learnt; `line_up` looks again.
            return word.compare_exchange(0, ALONE, Acquire, Relaxed).is_ok();
        }
        // Relaxed: a guess; the exchange decides.
        let mut seen = word.load(Relaxed);
        while seen & (ALONE | QUEUED) == 0 {
            // Acquire/Relaxed: as above.
            match word.compare_exchange_weak(seen, seen + 1, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Enters if the region has just become free, else joins its line.
    fn line_up(&self, member: &Member, tag: u16, region: u32, alone: bool) -> bool {
        let word = &self.words[region as usize];
        let mut lines = self.lines();
        // AcqRel: pairs with `leave_region` (G3). From here on until the lock is released other holders only leave this
        // region.
        let seen = word.fetch_or(QUEUED, AcqRel);
        if !lines.waiting.contains_key(&region) && admits(seen, alone) {
            // AcqRel, both: one step of the word's modification order like the one above. Held first and only then
            // no longer queued, so no other write slips in between.
            word.fetch_add(if alone { ALONE } else { 1 }, AcqRel);
            word.fetch_and(!QUEUED, AcqRel);
            return true;
        }
        lines.waiting.entry(region).or_default().push_back(Waiter { member: member.index, tag, alone });
        false
    }

    /// Leaves all regions that `hold` has taken.
    pub(super) fn leave(&self, member: &Member, hold: &mut Hold) {
        for region in hold.first..hold.first + std::mem::take(&mut hold.taken) {
            self.leave_region(member, region, hold.alone);
        }
    }

    fn leave_region(&self, member: &Member, region: u32, alone: bool) {
        let word = &self.words[region as usize];
        // Release: pairs with the Acquire of the next to enter: our I/O is over before theirs begins.
        let last = if alone {
            word.fetch_and(!ALONE, Release) & QUEUED != 0
        } else {
            // Release: as above.
            word.fetch_sub(1, Release) & (QUEUED | SHARED) == QUEUED | 1
        };
        if last {
            let woken = self.grant(&mut self.lines(), region);
            interrupt(woken, member.index);
        }
    }

    /// Lets in as many from the front of the region's line as can be together; returns the members to interrupt.
    fn grant(&self, lines: &mut Lines, region: u32) -> Vec<Woken> {
        let word = &self.words[region as usize];
        let mut woken: Vec<Woken> = Vec::new();
        // No line: another holder, or a waiter that found the region free, was here between our leaving and our lock.
        let Some(line) = lines.waiting.get_mut(&region) else { return woken };
        while let Some(front) = line.front() {
            // AcqRel/Acquire: pairs with `leave_region`. QUEUED is set and we have the lock: since the load holders can
            // only have left, so a waiter that it admits is still admitted.
            if !admits(word.load(Acquire), front.alone) {
                break;
            }
            word.fetch_add(if front.alone { ALONE } else { 1 }, AcqRel);
            let Waiter { member, tag, .. } = line.pop_front().expect("front is there");
            let entrance = &mut lines.members[member];
            entrance.granted.push(tag);
            // Release: pairs with the Acquire in `take_grants`; the list itself is under the lock.
            entrance.has_grants.store(1, Release);
            if !woken.iter().any(|(index, ..)| *index == member) {
                woken.push((member, entrance.hctx, entrance.interrupt.clone()));
            }
        }
        if line.is_empty() {
            lines.waiting.remove(&region);
            // AcqRel: as in `line_up`.
            word.fetch_and(!QUEUED, AcqRel);
        }
        woken
    }

    /// Moves the tags of this member that were granted one more region into `out`. False if there are none.
    pub(super) fn take_grants(&self, member: &Member, out: &mut Vec<u16>) -> bool {
        // Acquire: pairs with the Release in `grant`. A miss here is met by the interrupt that follows every grant.
        if member.has_grants.load(Acquire) == 0 {
            return false;
        }
        let mut lines = self.lines();
        // Relaxed: under the lock, like the store of 1.
        member.has_grants.store(0, Relaxed);
        out.append(&mut lines.members[member.index].granted);
        true
    }

    /// The member waits no more; `out` receives its grants that it has not taken. It may still leave.
    pub(super) fn withdraw(&self, member: &Member, out: &mut Vec<u16>) {
        let mut lines = self.lines();
        out.append(&mut lines.members[member.index].granted);
        let regions: Vec<u32> = lines.waiting.keys().copied().collect();
        let mut woken = Vec::new();
        for region in regions {
            let line = lines.waiting.get_mut(&region).expect("just listed");
            line.retain(|waiter| waiter.member != member.index);
            woken.extend(self.grant(&mut lines, region));
        }
        drop(lines);
        interrupt(woken, member.index);
    }
}

type Woken = (usize, HctxId, Arc<dyn Fn(HctxId) + Send + Sync>);

/// Called without the lock. Skips the caller, which looks at its grants before it returns to its worker.
fn interrupt(woken: Vec<Woken>, caller: usize) {
    for (_, hctx, interrupt) in woken.into_iter().filter(|(member, ..)| *member != caller) {
        interrupt(hctx);
    }
}

/// May one more enter beside those that `word` counts?
fn admits(word: u32, alone: bool) -> bool {
    word & ALONE == 0 && (!alone || word & SHARED == 0)
}

#[cfg(all(test, mqfq_loom))]
mod loom_tests;
#[cfg(all(test, not(mqfq_loom)))]
mod tests;
