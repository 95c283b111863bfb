//! Which buffers of a packed ring had a server taken and not ended when it was killed?
//!
//! Source: the vhost-user specification, "Inflight I/O tracking", packed virtqueues. [`super::inflight`] says of whose
//! memory the area is. Ends are written over the descriptors of what is under way, so the area has a copy of each:
//!
//! ```text
//!   of a queue        features 8 │ version 2 │ entries 2 │ free 2 │ old free 2 │ used 2 │ old used 2
//!                     │ used wrap 1 │ old used wrap 1 │ padding 10 │ an entry for each slot
//!   of a descriptor   inflight 1 │ padding 1 │ next 2 │ last 2 │ number 2 │ counter 8 │ id 2 │ flags 2 │ length 4 │ address 8
//! ```
//!
//! Entries are taken from a list of free ones. The first of a buffer has `inflight`, the number of its descriptors, the
//! place of the last one and the order in which it was taken.
//!
//! # Steps, and what a kill between them leaves
//! | step | a kill before it leaves | what the next server does |
//! |---|---|---|
//! | take: the first entry, `inflight` = 1, the copies, free | free before old free | takes free back; the entries are free, so `inflight` = 0 |
//! | take: old free = free | as above | as above: the buffer stands in the ring |
//! | end, for each of a batch: its last `next` = free, free = its first, used | free and used before the old ones | sees the ring at old used as the driver left it: not ended, so takes both back |
//! | the flags of the ends behind the batch's first in the ring, then those of the first | as above | as above, and takes those flags back: submits them again |
//! | `inflight` = 0 for each | ends that the guest sees | sees the ring at old used: ended, perhaps offered again since; does the rest |
//! | old free = free | two places, one head of the free list | does the rest: the head of a batch that nobody was shown was under way, and is none of the old free ones |
//! | old used = used, then its counter | as above | as above |

use super::chain::Descriptor;
use super::packed::{Packed, Place};
use super::ring::Taken;
use super::rule::Rule;
use mqfq_blk::foreign::ForeignMemory;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

const HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 32;
const VERSION_AT: usize = 8;
const ENTRIES_AT: usize = 10;
const FREE_AT: usize = 12;
const OLD_FREE_AT: usize = 14;
const USED_AT: usize = 16;
const OLD_USED_AT: usize = 18;
const WRAP_AT: usize = 20;
const OLD_WRAP_AT: usize = 21;

/// In an entry.
const NEXT_AT: usize = 2;
const LAST_AT: usize = 4;
const NUMBER_AT: usize = 6;
const COUNTER_AT: usize = 8;
const ID_AT: usize = 16;
const FLAGS_AT: usize = 18;
const LENGTH_AT: usize = 20;
const ADDR_AT: usize = 24;

const VERSION: u16 = 1;

/// Bytes of the area of a queue of `size`.
pub fn queue_bytes(size: u16) -> usize {
    HEADER_BYTES + usize::from(size) * ENTRY_BYTES
}

/// A buffer that a former server left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Left {
    /// Its id and slots.
    pub taken: Taken,
    /// Its descriptors, copied.
    pub descriptors: Vec<Descriptor>,
}

/// The area of one queue, on the queue's worker. What stands here as well is ours: the area's is written only.
#[derive(Debug)]
pub struct PackedArea {
    memory: Arc<ForeignMemory>,
    offset: usize,
    size: u16,
    counter: u64,
    /// Free entries, the next one last.
    free: Vec<u16>,
    /// By id: the entries of what is under way.
    taken: Vec<Vec<u16>>,
    /// First entries of the batch that is being ended.
    ended: Vec<u16>,
    used: Place,
}

impl PackedArea {
    /// The area at `offset` of `memory`, which has it, for a ring of `size`.
    pub fn new(memory: Arc<ForeignMemory>, offset: usize, size: u16) -> PackedArea {
        let taken = (0..size).map(|_| Vec::new()).collect();
        let used = Place { slot: 0, wrap: true };
        PackedArea { memory, offset, size, counter: 0, free: Vec::new(), taken, ended: Vec::new(), used }
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        #[cfg(test)]
        super::kill::step();
        // Inside: `Areas` has seen to that.
        let _ = self.memory.copy_from(self.offset + at, bytes);
        // SeqCst: pairs with nothing but the kill, which is between two instructions: the steps stand in memory in
        // their order, and other processes look only after it.
        compiler_fence(Ordering::SeqCst);
    }

    /// In one store: a kill may come between two.
    fn put_u16(&self, at: usize, value: u16) {
        #[cfg(test)]
        super::kill::step();
        if let Some(word) = self.memory.atomic_u16(self.offset + at) {
            // Relaxed: as in `put`.
            word.store(value, Ordering::Relaxed);
        }
        compiler_fence(Ordering::SeqCst);
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        let _ = self.memory.copy_to(self.offset + at, &mut bytes);
        bytes
    }

    fn get_u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.get(at))
    }

    fn entry(entry: u16, field: usize) -> usize {
        HEADER_BYTES + usize::from(entry) * ENTRY_BYTES + field
    }

    /// The next free entry as the area has it: behind the last one, none.
    fn head(&self) -> u16 {
        self.free.last().copied().unwrap_or(self.size)
    }

    /// Takes the area over from whoever used it last. Of a used one: where the next end goes, and the buffers that it
    /// left, in the order in which they were taken.
    pub fn take_over(&mut self, ring: &Packed) -> Option<(Place, Vec<Left>)> {
        if self.get_u16(VERSION_AT) != VERSION || self.get_u16(ENTRIES_AT) != self.size {
            self.begin(ring.used());
            return None;
        }
        let old = self.place(OLD_USED_AT, OLD_WRAP_AT);
        let new = self.place(USED_AT, WRAP_AT);
        let is_committed = self.get_u16(FREE_AT) == self.get_u16(OLD_FREE_AT);
        let is_shown = new != old && (is_committed || !ring.is_untouched(old));
        let (used, free) = match is_shown {
            true => (new, self.get_u16(FREE_AT)),
            false => (old, self.get_u16(OLD_FREE_AT)),
        };
        self.settle(used, free);
        self.strike_free(free);
        let left = self.left();
        self.counter = left.iter().map(|(counter, _)| counter.wrapping_add(1)).max().unwrap_or(0);
        Some((used, left.into_iter().map(|(_, left)| left).collect()))
    }

    /// Nobody used it before.
    fn begin(&mut self, used: Place) {
        for entry in 0..self.size {
            self.put(Self::entry(entry, 0), &[0; ENTRY_BYTES]);
            self.put_u16(Self::entry(entry, NEXT_AT), entry + 1);
        }
        self.free = (0..self.size).rev().collect();
        self.settle(used, 0);
        self.put_u16(ENTRIES_AT, self.size);
        self.put_u16(VERSION_AT, VERSION);
    }

    /// A place of the area, whatever stands there.
    fn place(&self, at: usize, wrap_at: usize) -> Place {
        let [wrap] = self.get(wrap_at);
        Place { slot: self.get_u16(at) % self.size, wrap: wrap != 0 }
    }

    /// The new ones and the old ones are these, which are those or these by now. In such an order that a kill leaves
    /// what the table above has: new ones that are taken back have their free entry last, old ones theirs first.
    fn settle(&mut self, used: Place, free: u16) {
        self.used = used;
        self.put_u16(USED_AT, used.slot);
        self.put(WRAP_AT, &[u8::from(used.wrap)]);
        self.put_u16(FREE_AT, free);
        self.put_u16(OLD_FREE_AT, free);
        self.put_u16(OLD_USED_AT, used.slot);
        self.put(OLD_WRAP_AT, &[u8::from(used.wrap)]);
    }

    /// What is on the list of free entries from `next` on is not under way.
    fn strike_free(&mut self, mut next: u16) {
        let mut is_free = vec![false; self.size.into()];
        while next < self.size && !std::mem::replace(&mut is_free[usize::from(next)], true) {
            self.put(Self::entry(next, 0), &[0]);
            self.free.push(next);
            next = self.get_u16(Self::entry(next, NEXT_AT));
        }
        self.free.reverse();
    }

    /// Buffers under way, by their counters. One that makes no sense is none: the area is the guest's side's own.
    fn left(&mut self) -> Vec<(u64, Left)> {
        let mut is_used = vec![false; self.size.into()];
        self.free.iter().for_each(|entry| is_used[usize::from(*entry)] = true);
        let mut left = Vec::new();
        for first in 0..self.size {
            if self.get(Self::entry(first, 0)) != [1] {
                continue;
            }
            let number = self.get_u16(Self::entry(first, NUMBER_AT));
            let (mut entries, mut next) = (Vec::new(), first);
            while entries.len() < number.into() && next < self.size && !is_used[usize::from(next)] {
                is_used[usize::from(next)] = true;
                entries.push(next);
                next = self.get_u16(Self::entry(next, NEXT_AT));
            }
            let descriptors: Vec<Descriptor> = entries.iter().map(|entry| self.descriptor(*entry)).collect();
            let id = descriptors.last().map_or(self.size, |last| last.next);
            // Of no descriptors the id is none.
            let is_whole = entries.len() == usize::from(number);
            if is_whole && id < self.size && self.taken[usize::from(id)].is_empty() {
                let counter = u64::from_ne_bytes(self.get(Self::entry(first, COUNTER_AT)));
                self.taken[usize::from(id)] = entries;
                left.push((counter, Left { taken: Taken { id, slots: number }, descriptors }));
            }
        }
        left.sort_by_key(|(counter, _)| *counter);
        left
    }

    fn descriptor(&self, entry: u16) -> Descriptor {
        Descriptor {
            guest_addr: u64::from_ne_bytes(self.get(Self::entry(entry, ADDR_AT))),
            length_bytes: u32::from_ne_bytes(self.get(Self::entry(entry, LENGTH_AT))),
            flags: self.get_u16(Self::entry(entry, FLAGS_AT)),
            next: self.get_u16(Self::entry(entry, ID_AT)),
        }
    }

    /// A buffer was taken.
    ///
    /// # Errors
    /// [`Rule::BadHead`]: one of its name is under way.
    pub fn took(&mut self, taken: Taken, descriptors: &[Descriptor]) -> Result<(), Rule> {
        let mut entries = std::mem::take(&mut self.taken[usize::from(taken.id)]);
        if !entries.is_empty() || self.free.len() < descriptors.len() {
            self.taken[usize::from(taken.id)] = entries;
            return Err(Rule::BadHead);
        }
        let first = self.head();
        self.put_u16(Self::entry(first, NUMBER_AT), 0);
        self.put(Self::entry(first, COUNTER_AT), &self.counter.to_ne_bytes());
        self.counter = self.counter.wrapping_add(1);
        self.put(Self::entry(first, 0), &[1]);
        for descriptor in descriptors {
            let entry = self.free.pop().expect("as many are free");
            entries.push(entry);
            self.put_u16(Self::entry(first, NUMBER_AT), entries.len() as u16);
            self.put_u16(Self::entry(entry, ID_AT), descriptor.next);
            self.put_u16(Self::entry(entry, FLAGS_AT), descriptor.flags);
            self.put(Self::entry(entry, LENGTH_AT), &descriptor.length_bytes.to_ne_bytes());
            self.put(Self::entry(entry, ADDR_AT), &descriptor.guest_addr.to_ne_bytes());
            if entries.len() == descriptors.len() {
                self.put_u16(Self::entry(first, LAST_AT), entry);
            }
            self.put_u16(FREE_AT, self.head());
        }
        self.put_u16(OLD_FREE_AT, self.head());
        self.taken[usize::from(taken.id)] = entries;
        Ok(())
    }

    /// A buffer is about to be shown as ended, with others; the next end goes to `used`.
    pub fn ending(&mut self, id: u16, used: Place) {
        let mut entries = std::mem::take(&mut self.taken[usize::from(id)]);
        let (Some(first), Some(last)) = (entries.first().copied(), entries.last().copied()) else { return };
        self.put_u16(Self::entry(last, NEXT_AT), self.head());
        self.free.extend(entries.drain(..).rev());
        self.taken[usize::from(id)] = entries;
        self.put_u16(FREE_AT, first);
        self.ended.push(first);
        self.used = used;
        self.put_u16(USED_AT, used.slot);
        self.put(WRAP_AT, &[u8::from(used.wrap)]);
    }

    /// The guest was shown all of them.
    pub fn ended(&mut self) {
        let mut ended = std::mem::take(&mut self.ended);
        ended.drain(..).for_each(|first| self.put(Self::entry(first, 0), &[0]));
        self.ended = ended;
        self.put_u16(OLD_FREE_AT, self.head());
        self.put_u16(OLD_USED_AT, self.used.slot);
        self.put(OLD_WRAP_AT, &[u8::from(self.used.wrap)]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::kill;
    use super::super::packed::tests::{Driver, NEW, SIZE};
    use super::super::ring::Ring;
    use super::*;
    use proptest::prelude::*;
    use rustix::fs::MemfdFlags;
    use std::os::fd::{AsFd, OwnedFd};

    fn area_file() -> OwnedFd {
        let file = rustix::fs::memfd_create("inflight", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        file
    }

    fn area(file: &OwnedFd) -> PackedArea {
        PackedArea::new(ForeignMemory::map(file.as_fd(), 0, 4096).unwrap(), 64, SIZE)
    }

    fn descriptor(id: u16) -> Descriptor {
        Descriptor { guest_addr: 0x1000, length_bytes: 16, flags: 0, next: id }
    }

    #[test]
    fn what_another_wrote_into_the_area_is_bounded() {
        let file = area_file();
        let memory = ForeignMemory::map(file.as_fd(), 0, 4096).unwrap();
        let ring = Driver::new().device(NEW, false);
        for value in [0xff, 1, 7] {
            assert!(memory.copy_from(64, &vec![value; queue_bytes(SIZE)]));
            assert!(memory.copy_from(64 + VERSION_AT, &[1, 0, SIZE as u8, 0]));
            let left = area(&file).take_over(&ring).unwrap().1;
            assert!(left.iter().map(|left| left.taken.slots).sum::<u16>() <= SIZE, "{value}: {left:?}");
            assert!(left.iter().all(|left| left.taken.id < SIZE));
        }
        assert!(memory.copy_from(64 + VERSION_AT, &[0, 0]));
        assert_eq!(area(&file).take_over(&ring), None);
    }

    #[test]
    fn a_buffer_that_cannot_be_under_way_is_refused_and_changes_nothing() {
        let file = area_file();
        let ring = Driver::new().device(NEW, false);
        let mut queue = area(&file);
        queue.take_over(&ring);
        let descriptor = descriptor(3);
        let (one, all) = (Taken { id: 3, slots: 1 }, Taken { id: 4, slots: SIZE });
        queue.took(one, &[descriptor]).unwrap();
        assert_eq!(queue.took(one, &[descriptor]), Err(Rule::BadHead), "one of its name is");
        assert_eq!(queue.took(all, &[descriptor; SIZE as usize]), Err(Rule::BadHead), "more than are free");
        let left = area(&file).take_over(&ring).unwrap().1;
        assert_eq!(left, [Left { taken: one, descriptors: vec![descriptor] }]);
        // It still ends, and then its name and as many entries are free.
        let used = Place { slot: 1, wrap: true };
        queue.ending(3, used);
        queue.ended();
        assert_eq!(area(&file).take_over(&ring), Some((used, vec![])));
        assert_eq!(queue.took(all, &[descriptor; SIZE as usize]), Ok(()));
    }

    #[test]
    fn a_server_that_shows_nothing_leaves_the_next_end_where_it_was() {
        let file = area_file();
        let ring = Driver::new().device(0x0003_0003, false);
        assert_eq!(area(&file).take_over(&ring), None);
        for _ in 0..2 {
            let mut queue = area(&file);
            assert_eq!(queue.take_over(&ring), Some((Place { slot: 3, wrap: false }, vec![])));
            queue.ended();
        }
    }

    #[test]
    fn memory_of_a_buffers_entries_is_used_again() {
        let file = area_file();
        let mut queue = area(&file);
        queue.take_over(&Driver::new().device(NEW, false));
        queue.took(Taken { id: 3, slots: 2 }, &[descriptor(3); 2]).unwrap();
        queue.ending(3, Place { slot: 2, wrap: true });
        queue.ended();
        assert!(queue.taken[3].capacity() >= 2 && queue.ended.capacity() >= 1);
    }

    /// Of an entry: inflight, next, last, number, counter.
    fn entry(memory: &ForeignMemory, number: usize) -> (u8, u16, u16, u16, u64) {
        let mut bytes = [0; 16];
        assert!(memory.copy_to(64 + 32 + 32 * number, &mut bytes));
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        (bytes[0], word(2), word(4), word(6), u64::from_ne_bytes(*bytes.last_chunk().unwrap()))
    }

    /// Free and old free, used and old used, their counters.
    fn header(memory: &ForeignMemory) -> ([u16; 4], [u8; 2]) {
        let mut bytes = [0; 22];
        assert!(memory.copy_to(64, &mut bytes));
        assert_eq!(bytes[8..12], [1, 0, SIZE as u8, 0], "version and entries");
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        ([word(12), word(14), word(16), word(18)], [bytes[20], bytes[21]])
    }

    #[test]
    fn an_area_is_laid_out_as_other_servers_expect_it() {
        let file = area_file();
        let memory = ForeignMemory::map(file.as_fd(), 0, 4096).unwrap();
        // Another version left anything. The driver has offered slot 3 in the lap whose counter is 0.
        assert!(memory.copy_from(64, &vec![7; queue_bytes(SIZE)]));
        let driver = Driver::new();
        driver.descriptor(3, 0x1000, 16, 5, 1 << 15);
        let ring = driver.device(0x0003_0003, false);
        let mut queue = area(&file);
        assert_eq!(queue.take_over(&ring), None);
        assert_eq!(header(&memory), ([0, 0, 3, 3], [0, 0]));
        (0..8).for_each(|number| assert_eq!(entry(&memory, number), (0, number as u16 + 1, 0, 0, 0)));
        // A buffer of three descriptors, and one of one.
        queue.took(Taken { id: 5, slots: 3 }, &[descriptor(0xffff), descriptor(0xffff), descriptor(5)]).unwrap();
        queue.took(Taken { id: 2, slots: 1 }, &[descriptor(2)]).unwrap();
        assert_eq!(header(&memory), ([4, 4, 3, 3], [0, 0]));
        assert_eq!([0, 1, 3].map(|at| entry(&memory, at)), [(1, 1, 2, 3, 0), (0, 2, 0, 0, 0), (1, 4, 3, 1, 1)]);
        // An end that was not shown: the next server takes it back.
        queue.ending(5, Place { slot: 6, wrap: false });
        assert_eq!((header(&memory), entry(&memory, 2).1), (([0, 4, 6, 3], [0, 0]), 4));
        let mut queue = area(&file);
        let (used, left) = queue.take_over(&ring).unwrap();
        assert_eq!((used, header(&memory)), (Place { slot: 3, wrap: false }, ([4, 4, 3, 3], [0, 0])));
        assert_eq!(left.iter().map(|left| left.taken.id).collect::<Vec<_>>(), [5, 2]);
        // It counts on from there.
        queue.took(Taken { id: 0, slots: 1 }, &[descriptor(0)]).unwrap();
        assert_eq!(entry(&memory, 4), (1, 5, 4, 1, 2));
        queue.ending(2, Place { slot: 0, wrap: true });
        queue.ending(5, Place { slot: 3, wrap: true });
        queue.ended();
        assert_eq!(header(&memory), ([0, 0, 3, 3], [1, 1]));
        assert_eq!([0, 3, 4].map(|at| entry(&memory, at).0), [0, 0, 1]);
        // A kill amid a take: the entry, which had three descriptors, says none, and is free for the next server.
        assert!(!kill::after(3, || queue.took(Taken { id: 1, slots: 1 }, &[descriptor(1)]).unwrap()));
        assert_eq!((entry(&memory, 0).0, entry(&memory, 0).3), (1, 0));
        let mut queue = area(&file);
        assert_eq!(queue.take_over(&ring).unwrap().1.len(), 1);
        assert_eq!(entry(&memory, 0).0, 0);
        // One that shows nothing says that the next end goes where it did.
        queue.ended();
        assert_eq!(header(&memory), ([0, 0, 3, 3], [1, 1]));
    }

    #[test]
    fn a_buffer_in_the_area_that_makes_no_sense_is_none() {
        let ring = Driver::new().device(NEW, false);
        let end = SIZE;
        // The head of the free list; entries under way: place, next, number; ids: of a place. Then what is left.
        type Case<'a> = (u16, &'a [(u16, u16, u16)], &'a [(u16, u16)], &'a [(u16, u16)]);
        let cases: [Case<'_>; 10] = [
            (end, &[(0, 1, 2), (1, end, 0)], &[(1, 6)], &[(6, 2)]),
            (end, &[(0, end, 3)], &[(0, 0)], &[]),
            (end, &[(0, end, 2)], &[(0, 1)], &[]),
            (end, &[(0, 1, 0)], &[(0, 0)], &[]),
            (end, &[(0, 1, 1)], &[(0, end)], &[]),
            (end, &[(0, 1, 1), (1, 2, 1)], &[(0, 3), (1, 3)], &[(3, 1)]),
            (end, &[(0, 0, 2)], &[(0, 1)], &[]),
            (end, &[(0, 1, 2), (3, 1, 3)], &[(1, 1), (2, 2)], &[(1, 2)]),
            (0, &[(5, 0, 2)], &[(0, 1)], &[]),
            (0, &[(5, 6, 1)], &[(5, 7)], &[(7, 1)]),
        ];
        for (free, entries, ids, expected) in cases {
            let file = area_file();
            let memory = ForeignMemory::map(file.as_fd(), 0, 4096).unwrap();
            let put = |at: usize, word: u16| assert!(memory.copy_from(64 + at, &word.to_ne_bytes()));
            let header = [(VERSION_AT, 1), (ENTRIES_AT, SIZE), (FREE_AT, free), (OLD_FREE_AT, free)];
            header.into_iter().for_each(|(at, word)| put(at, word));
            // The list of free entries has one at most; the second descriptor of each buffer leads to the third.
            put(PackedArea::entry(0, NEXT_AT), end);
            put(PackedArea::entry(1, NEXT_AT), 2);
            for (place, next, number) in entries {
                let is_first = *place == 0 || *number > 0;
                put(PackedArea::entry(*place, 0), is_first.into());
                put(PackedArea::entry(*place, NEXT_AT), *next);
                put(PackedArea::entry(*place, NUMBER_AT), *number);
            }
            ids.iter().for_each(|(place, id)| put(PackedArea::entry(*place, ID_AT), *id));
            let left = area(&file).take_over(&ring).unwrap().1;
            let left: Vec<(u16, u16)> = left.iter().map(|left| (left.taken.id, left.taken.slots)).collect();
            assert_eq!(left, expected, "{entries:?} {ids:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 2_000 } else { 20_000 }))]

        /// Takes and ends in any order and in batches; then a turn that is killed before any of its stores, a guest
        /// that goes on with what it sees, and servers that are killed as they take over: the driver sees each end
        /// once, and the last server finds the rest, with its descriptors.
        #[test]
        fn each_buffer_ends_once_wherever_the_kill_comes(
            steps in prop::collection::vec((0..3usize, 1..4u16, any::<prop::sample::Index>()), 0..80),
            takes: bool,
            ends: prop::sample::Index,
            kill in 0..50usize,
            offers in 0..8u16,
            later_kills in prop::collection::vec(0..12usize, 0..3),
        ) {
            let file = area_file();
            let mut driver = Driver::new();
            let mut ring = driver.device(NEW, true);
            let mut area_of_it = area(&file);
            prop_assert_eq!(area_of_it.take_over(&ring), None);
            let mut under_way: Vec<(Taken, Vec<Descriptor>)> = Vec::new();
            for (what, slots, which) in steps {
                match what {
                    0 => _ = driver.offer(slots),
                    1 => if let Some(taken) = ring.take().unwrap() {
                        area_of_it.took(taken, ring.taken()).unwrap();
                        under_way.push((taken, ring.taken().to_vec()));
                    },
                    _ => {
                        let count = which.index(under_way.len() + 1);
                        for _ in 0..count {
                            let (taken, _) = under_way.remove(which.index(under_way.len()));
                            ring.push(taken, 1);
                            area_of_it.ending(taken.id, ring.used());
                        }
                        ring.publish();
                        area_of_it.ended();
                        prop_assert_eq!(driver.ended().len(), count);
                    }
                }
            }
            let (mut last, count) = (None, ends.index(under_way.len() + 1));
            let is_whole = kill::after(kill, || {
                if let Some(taken) = takes.then(|| ring.take().unwrap()).flatten() {
                    last = Some((taken, ring.taken().to_vec()));
                    area_of_it.took(taken, ring.taken()).unwrap();
                }
                for (taken, _) in &under_way[..count] {
                    ring.push(*taken, 1);
                    area_of_it.ending(taken.id, ring.used());
                }
                ring.publish();
                area_of_it.ended();
            });
            let seen = driver.ended();
            prop_assert!(!is_whole || seen.len() == count);
            under_way.retain(|(taken, _)| seen.iter().all(|(id, _)| *id != taken.id));
            // A guest goes on while nobody serves it: slots of what it saw end are offered again.
            (0..offers).for_each(|_| _ = driver.offer(1));
            drop((ring, area_of_it));
            for kill in later_kills {
                kill::after(kill, || {
                    Ring::packed(driver.device(NEW, true), Some(area(&file)), false).take_over();
                });
            }
            // The next one knows nothing but the memory.
            let ring = driver.device(NEW, true);
            let (used, left) = area(&file).take_over(&ring).unwrap();
            // A buffer that was just being taken was taken, or stands in the ring.
            under_way.extend(last.filter(|(taken, _)| left.last().is_some_and(|left| left.taken == *taken)));
            let expected: Vec<Left> = under_way
                .into_iter()
                .map(|(taken, descriptors)| Left { taken, descriptors })
                .collect();
            prop_assert_eq!(&left, &expected);
            prop_assert_eq!(used, driver.next_used());
            // And goes on: all that was ever offered ends.
            let mut ring = Ring::packed(ring, Some(area(&file)), false);
            ring.take_over();
            let mut chain = super::super::chain::Chain::default();
            for _ in 0..driver.offered.len() {
                let taken = ring.take(&driver.memory, &mut chain, true).unwrap().expect("it was offered");
                ring.push(taken, 1);
                ring.publish();
                // Not those of a batch that the last one did not come to show.
                prop_assert_eq!(driver.ended().len(), 1);
            }
            prop_assert_eq!(ring.take(&driver.memory, &mut chain, true), Ok(None));
            driver.ended();
            prop_assert!(driver.offered.is_empty(), "{:?}", driver.offered);
        }
    }
}
