//! A queue pair as the controller sees it: two rings, their pointers, and the rules for doorbells.
//!
//! ```text
//!  submission ring    head ─▶ fetched next        tail ─▶ the host writes here next (its doorbell)
//!  completion ring    head ─▶ host reads next (its doorbell)                tail ─▶ the controller posts here next
//!  empty: head == tail (NVMe 1.3 section 4.1.1)     full: head == tail + 1 (section 4.1.2), so n entries hold n - 1
//! ```
//!
//! # Invariants
//! Q1. A command is fetched only when its completion has a slot: occupied + reserved <= entries - 1. The controller so
//!     never has to drop or hold back a completion, and a host that does not consume stops its own queue only.
//! Q2. A doorbell value that breaks a rule changes nothing.

use crate::command::{DatasetRange, SubmissionEntry};
use crate::completion::{CompletionEntry, Status};
use std::fmt;

/// Fewest entries of a ring (NVMe 1.3 section 4.1.3). One of them always stays empty.
pub const ENTRIES_MIN: u32 = 2;
/// Most entries of a ring. CAP.MQES is this minus one.
pub const ENTRIES_MAX: u32 = 1 << 16;

/// Names a queue pair: the identifier of both its queues (NVMe 1.3 section 4.1.4). I/O queues begin at 1; 0 is the
/// admin queue of a real controller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueId(pub u16);

impl QueueId {
    pub(crate) fn index(self) -> Option<usize> {
        (self.0 as usize).checked_sub(1)
    }

    pub(crate) fn from_index(index: usize) -> QueueId {
        QueueId(u16::try_from(index + 1).expect("at most 65535 queue pairs"))
    }
}

/// The arbitration class of a submission queue: QPRIO of Create I/O Submission Queue (NVMe 1.3 sections 4.1.5 and 5.4).
/// Of consequence under weighted round robin only; round robin ignores it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub enum ArbClass {
    /// 00b: before all others.
    Urgent,
    /// 01b.
    High,
    /// 10b.
    #[default]
    Medium,
    /// 11b.
    Low,
}

/// Options of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePairOptions {
    /// Entries of each ring, [`ENTRIES_MIN`]`..=`[`ENTRIES_MAX`]; one fewer can be in use.
    pub entries: u32,
    /// Arbitration class.
    pub class: ArbClass,
}

/// A doorbell write that a controller reports as an asynchronous event of type Error status and otherwise ignores
/// (NVMe 1.3 section 5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DoorbellError {
    /// Event information 00h: the doorbell of a queue that does not exist.
    InvalidRegister,
    /// Event information 01h: the value is not below the ring's size, or is the one written before, or claims more
    /// entries than there were free (submission) or occupied (completion).
    InvalidValue,
}

impl fmt::Display for DoorbellError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DoorbellError::InvalidRegister => "write to the doorbell of a queue that does not exist",
            DoorbellError::InvalidValue => "invalid doorbell write value",
        })
    }
}

impl std::error::Error for DoorbellError {}

/// Head and tail of a ring.
#[derive(Clone, Copy, Debug)]
struct Pointers {
    head: u32,
    tail: u32,
    entries: u32,
}

impl Pointers {
    fn occupied(&self) -> u32 {
        self.distance(self.head, self.tail)
    }

    fn free(&self) -> u32 {
        self.entries - 1 - self.occupied()
    }

    fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { to + self.entries - from }
    }

    fn after(&self, slot: u32) -> u32 {
        if slot + 1 == self.entries { 0 } else { slot + 1 }
    }

    /// Distance of `value` ahead of `pointer`, if it is a valid doorbell value: a new one, of at most `limit` entries.
    fn doorbell(&self, pointer: u32, value: u16, limit: u32) -> Result<(), DoorbellError> {
        let value = u32::from(value);
        if value >= self.entries || value == pointer || self.distance(pointer, value) > limit {
            return Err(DoorbellError::InvalidValue);
        }
        Ok(())
    }
}

/// Both rings of a pair, and the range table which stands for the memory that PRP1 of a Dataset Management points to.
/// In a real system all three lie in host memory, which the controller reads and writes.
#[derive(Debug)]
pub(crate) struct QueuePair {
    id: QueueId,
    class: ArbClass,
    submissions: Box<[SubmissionEntry]>,
    /// By slot of the submission ring: an Abort named the command before it was fetched.
    aborted: Box<[bool]>,
    ranges: Box<[DatasetRange]>,
    completions: Box<[CompletionEntry]>,
    posted_ns: Box<[u64]>,
    submission: Pointers,
    completion: Pointers,
    /// Value of P for the pass that the tail is on; 1 on the first, over rings that begin as zeroes.
    phase: bool,
    /// Fetched, not yet posted.
    reserved: u32,
}

impl QueuePair {
    pub(crate) fn new(id: QueueId, options: QueuePairOptions) -> Result<QueuePair, Status> {
        let QueuePairOptions { entries, class } = options;
        // Sections 5.3 and 5.4: Invalid Queue Size.
        if !(ENTRIES_MIN..=ENTRIES_MAX).contains(&entries) {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        let pointers = Pointers { head: 0, tail: 0, entries };
        let entries = entries as usize;
        Ok(QueuePair {
            id,
            class,
            submissions: vec![SubmissionEntry::default(); entries].into_boxed_slice(),
            aborted: vec![false; entries].into_boxed_slice(),
            ranges: vec![DatasetRange::default(); entries].into_boxed_slice(),
            completions: vec![CompletionEntry::default(); entries].into_boxed_slice(),
            posted_ns: vec![0; entries].into_boxed_slice(),
            submission: pointers,
            completion: pointers,
            phase: true,
            reserved: 0,
        })
    }

    pub(crate) fn class(&self) -> ArbClass {
        self.class
    }

    pub(crate) fn entries(&self) -> u32 {
        self.submission.entries
    }

    /// Commands announced, fetched or not, that have no completion yet.
    pub(crate) fn outstanding(&self) -> u32 {
        self.submission.occupied() + self.reserved
    }

    /// Host memory: an entry of the submission ring.
    pub(crate) fn write_submission(&mut self, slot: u16, entry: SubmissionEntry) {
        self.submissions[slot as usize] = entry;
    }

    /// Host memory: makes the range table at least this long.
    pub(crate) fn reserve_ranges(&mut self, entries: usize) {
        if entries > self.ranges.len() {
            self.ranges = vec![DatasetRange::default(); entries].into_boxed_slice();
        }
    }

    pub(crate) fn range_entries(&self) -> usize {
        self.ranges.len()
    }

    /// Host memory: an entry of the range table.
    pub(crate) fn write_range(&mut self, index: u16, range: DatasetRange) {
        self.ranges[index as usize] = range;
    }

    pub(crate) fn range(&self, index: u64) -> Option<DatasetRange> {
        self.ranges.get(usize::try_from(index).ok()?).copied()
    }

    /// Host memory: an entry of the completion ring.
    pub(crate) fn completion(&self, slot: u16) -> CompletionEntry {
        self.completions[slot as usize]
    }

    pub(crate) fn posted_ns(&self, slot: u16) -> u64 {
        self.posted_ns[slot as usize]
    }

    /// Submission doorbell: the host wrote entries up to `tail`.
    pub(crate) fn ring_submission(&mut self, tail: u16) -> Result<(), DoorbellError> {
        self.submission.doorbell(self.submission.tail, tail, self.submission.free())?;
        self.submission.tail = u32::from(tail);
        Ok(())
    }

    /// Completion doorbell: the host read entries up to `head`.
    pub(crate) fn ring_completion(&mut self, head: u16) -> Result<(), DoorbellError> {
        self.completion.doorbell(self.completion.head, head, self.completion.occupied())?;
        self.completion.head = u32::from(head);
        Ok(())
    }

    /// May the controller fetch from here? There must be a command, and a slot for its completion (Q1).
    pub(crate) fn is_candidate(&self) -> bool {
        self.submission.occupied() > 0 && self.completion.free() > self.reserved
    }

    /// Marks a command that waits in the submission ring: it will be completed as aborted when it is fetched. False:
    /// there is none.
    pub(crate) fn abort_waiting(&mut self, cid: u16) -> bool {
        let mut slot = self.submission.head;
        while slot != self.submission.tail {
            if self.submissions[slot as usize].cid() == cid && !self.aborted[slot as usize] {
                self.aborted[slot as usize] = true;
                return true;
            }
            slot = self.submission.after(slot);
        }
        false
    }

    /// Takes the next command, and whether it was aborted; reserves the slot of its completion.
    pub(crate) fn fetch(&mut self) -> (SubmissionEntry, bool) {
        debug_assert!(self.is_candidate(), "{:?} fetched from without a command or a completion slot", self.id);
        let entry = self.submissions[self.submission.head as usize];
        let is_aborted = std::mem::take(&mut self.aborted[self.submission.head as usize]);
        self.submission.head = self.submission.after(self.submission.head);
        self.reserved += 1;
        (entry, is_aborted)
    }

    /// Ends a fetched command.
    pub(crate) fn post(&mut self, cid: u16, status: Status, now_ns: u64) {
        assert!(self.reserved > 0, "{:?}: completion of cid {cid} without a fetched command", self.id);
        self.reserved -= 1;
        let slot = self.completion.tail;
        let head = self.submission.head as u16;
        self.completions[slot as usize] = CompletionEntry::new(cid, self.id.0, head, status, self.phase);
        self.posted_ns[slot as usize] = now_ns;
        self.completion.tail = self.completion.after(slot);
        // Section 4.6, Phase Tag: inverted each time the ring wraps.
        if self.completion.tail == 0 {
            self.phase = !self.phase;
        }
    }
}

/// Queue indices below a bound fixed at construction. All operations cost at most one pass over bound / 64 words, and
/// nothing if it is empty: a controller asks after each command, and most of the time no queue of most classes has one.
#[derive(Clone, Debug)]
pub struct QueueSet {
    words: Box<[u64]>,
    members: usize,
}

impl QueueSet {
    /// The empty set of indices below `bound`.
    pub fn new(bound: usize) -> QueueSet {
        QueueSet { words: vec![0; bound.div_ceil(64)].into_boxed_slice(), members: 0 }
    }

    /// Adds an index or takes it out.
    pub fn set(&mut self, index: usize, member: bool) {
        let word = &mut self.words[index / 64];
        let bit = 1 << (index % 64);
        match (*word & bit != 0, member) {
            (false, true) => self.members += 1,
            (true, false) => self.members -= 1,
            _ => return,
        }
        *word ^= bit;
    }

    /// Is it in the set?
    pub fn contains(&self, index: usize) -> bool {
        self.words[index / 64] >> (index % 64) & 1 == 1
    }

    /// The first member at or after `start`, going round to 0 at the end.
    pub fn next_from(&self, start: usize) -> Option<usize> {
        if self.members == 0 {
            return None;
        }
        let (first, bit) = (start / 64, start % 64);
        let words = self.words.len();
        let first = first % words;
        let above = self.words[first] & (u64::MAX << bit);
        if above != 0 {
            return Some(first * 64 + above.trailing_zeros() as usize);
        }
        // The last round looks at the first word again, whose bits at and above `bit` are known to be clear.
        (1..=words).find_map(|step| {
            let word = (first + step) % words;
            (self.words[word] != 0).then(|| word * 64 + self.words[word].trailing_zeros() as usize)
        })
    }

    /// Takes every member out, in ascending order.
    pub fn drain(&mut self, mut each: impl FnMut(usize)) {
        if std::mem::take(&mut self.members) == 0 {
            return;
        }
        for (word, bits) in self.words.iter_mut().enumerate() {
            let mut left = std::mem::take(bits);
            while left != 0 {
                each(word * 64 + left.trailing_zeros() as usize);
                left &= left - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(entries: u32) -> QueuePair {
        QueuePair::new(QueueId(1), QueuePairOptions { entries, class: ArbClass::Medium }).unwrap()
    }

    #[test]
    fn a_ring_of_n_holds_n_minus_one() {
        let mut pair = pair(4);
        assert_eq!(pair.ring_submission(3), Ok(()));
        // Slot 3 is the one that stays empty: a tail of 0 would be a full turn on an empty ring.
        assert_eq!(pair.ring_submission(0), Err(DoorbellError::InvalidValue));
        pair.fetch();
        assert_eq!(pair.ring_submission(0), Ok(()));
    }

    #[test]
    fn a_doorbell_value_that_breaks_a_rule_changes_nothing() {
        let mut pair = pair(4);
        assert_eq!(pair.ring_submission(4), Err(DoorbellError::InvalidValue), "not below the size");
        assert_eq!(pair.ring_submission(0), Err(DoorbellError::InvalidValue), "the value written before");
        assert_eq!(pair.ring_completion(1), Err(DoorbellError::InvalidValue), "nothing was posted");
        assert!(!pair.is_candidate());
        pair.ring_submission(2).unwrap();
        pair.fetch();
        pair.post(7, Status::SUCCESS, 5);
        assert_eq!(pair.ring_completion(2), Err(DoorbellError::InvalidValue), "one was posted, two claimed");
        assert_eq!(pair.ring_completion(1), Ok(()));
    }

    #[test]
    fn a_full_completion_ring_stops_fetching_until_the_host_consumes() {
        let mut pair = pair(3);
        for tail in [1, 2] {
            pair.ring_submission(tail).unwrap();
            pair.fetch();
            pair.post(tail, Status::SUCCESS, 0);
        }
        pair.ring_submission(0).unwrap();
        assert!(!pair.is_candidate(), "3 entries hold 2 completions, and both are there");
        pair.ring_completion(1).unwrap();
        assert!(pair.is_candidate());
    }

    #[test]
    fn the_phase_flips_with_each_pass() {
        let mut pair = pair(3);
        let mut phases = Vec::new();
        let mut tail = 0;
        for cid in 0..7 {
            tail = (tail + 1) % 3;
            pair.ring_submission(tail).unwrap();
            pair.fetch();
            let slot = pair.completion.tail as u16;
            pair.post(cid, Status::SUCCESS, 0);
            phases.push(pair.completion(slot).phase());
            pair.ring_completion(tail).unwrap();
        }
        assert_eq!(phases, [true, true, true, false, false, false, true], "passes of 3");
    }

    #[test]
    fn sizes_outside_the_limits_are_refused() {
        for entries in [0, 1, ENTRIES_MAX + 1] {
            let options = QueuePairOptions { entries, class: ArbClass::Low };
            assert_eq!(QueuePair::new(QueueId(1), options).unwrap_err(), Status::INVALID_QUEUE_SIZE);
        }
    }

    #[test]
    fn the_largest_ring_wraps_at_65536() {
        let mut pair = pair(ENTRIES_MAX);
        pair.ring_submission(u16::MAX).unwrap();
        assert_eq!(pair.submission.occupied(), 65535);
        assert_eq!(pair.ring_submission(0), Err(DoorbellError::InvalidValue), "full");
        pair.fetch();
        assert_eq!(pair.ring_submission(0), Ok(()));
    }

    #[test]
    fn the_search_goes_round() {
        let mut set = QueueSet::new(130);
        assert_eq!(set.next_from(0), None);
        set.set(3, true);
        set.set(64, true);
        set.set(129, true);
        let found = [0, 3, 4, 64, 65, 129].map(|start| set.next_from(start));
        assert_eq!(found, [Some(3), Some(3), Some(64), Some(64), Some(129), Some(129)]);
        // 130 is one past the last index: the search begins in the last word and goes round.
        assert_eq!(set.next_from(130), Some(3));
        set.set(129, false);
        assert_eq!(set.next_from(65), Some(3));
        set.set(3, false);
        assert_eq!(set.next_from(65), Some(64), "the word where the search began is looked at again from its start");
    }

    #[test]
    fn drain_empties_the_set_in_order() {
        let mut set = QueueSet::new(100);
        [70, 2, 69].into_iter().for_each(|index| set.set(index, true));
        let mut drained = Vec::new();
        set.drain(|index| drained.push(index));
        assert_eq!(drained, [2, 69, 70]);
        assert_eq!(set.next_from(0), None);
    }
}
