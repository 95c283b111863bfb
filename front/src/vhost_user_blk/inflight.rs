//! Which heads had a server taken and not ended when it was killed?
//!
//! Source: the vhost-user specification, "Inflight I/O tracking", split virtqueues. The area lies in a file of the
//! front-end's (VHOST_USER_GET_INFLIGHT_FD, SET_INFLIGHT_FD), which outlives the server. A scheduler ends requests in
//! another order than they came, so the index of the available ring alone does not say which ones are left.
//!
//! ```text
//!   of a queue   features 8 │ version 2 │ entries 2 │ last batch 2 │ used index 2 │ an entry for each descriptor
//!   of a head    inflight 1 │ padding 5 │ next 2 │ counter 8
//! ```
//!
//! # Steps, and what a kill between them leaves
//! | step | a kill before it leaves | what the next server does |
//! |---|---|---|
//! | take: counter, then `inflight` = 1 | an untaken head: it is in the available ring | takes it |
//! | end: `next` = last batch, last batch = head, for each head of a batch | heads in flight | submits them again |
//! | the used index of the ring | as above | as above |
//! | `inflight` = 0 for each head of the batch | ends that the guest sees | finds them by last batch and `next`: as many as the ring's used index is ahead of the area's; forgets them |
//! | the area's used index | nothing | nothing |
//!
//! So each head is in the used ring once. A write that had reached the device and whose end was not seen is written
//! again, with the same bytes: the guest owns the request until it sees its end.
//!
//! The area is the front-end's, which may write anything: what is read is bounded, and costs its own guest only.

use super::rule::Rule;
use super::wire::QUEUE_SIZE_MAX;
use mqfq_blk::foreign::ForeignMemory;
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
const VERSION_AT: usize = 8;
const ENTRIES_AT: usize = 10;
const LAST_BATCH_AT: usize = 12;
const USED_AT: usize = 14;
const NEXT_AT: usize = 6;
const COUNTER_AT: usize = 8;

/// The only version that there is; 0 is an area that no server has used.
const VERSION: u16 = 1;

/// Queues' areas begin at multiples of this, bytes, so that two workers do not write to one line.
const ALIGN_BYTES: usize = 128;

/// Bytes of the area of a queue of `size`.
pub fn queue_bytes(size: u16) -> usize {
    (HEADER_BYTES + usize::from(size) * ENTRY_BYTES).next_multiple_of(ALIGN_BYTES)
}

/// Bytes of the areas of `queues` of `size`.
///
/// # Errors
/// [`Rule::BadInflight`]: the sizes are none.
pub fn length_bytes(queues: u16, size: u16) -> Result<u64, Rule> {
    if size == 0 || size > QUEUE_SIZE_MAX || queues == 0 || queues > super::disk::QUEUES_MAX {
        return Err(Rule::BadInflight);
    }
    Ok((usize::from(queues) * queue_bytes(size)) as u64)
}

/// A new area for `queues` of `size`: its file, and its length.
///
/// # Errors
/// [`Rule::BadInflight`]: the sizes are none, or there is no memory.
pub fn create(queues: u16, size: u16) -> Result<(OwnedFd, u64), Rule> {
    let length = length_bytes(queues, size)?;
    let file = rustix::fs::memfd_create("mqfq-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|_| Rule::BadInflight)?;
    rustix::fs::ftruncate(&file, length).map_err(|_| Rule::BadInflight)?;
    let _ = rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
    Ok((file, length))
}

/// The areas of all queues of a connection.
#[derive(Clone, Debug)]
pub struct Areas {
    memory: Arc<ForeignMemory>,
    offset: usize,
    queues: u16,
    size: u16,
}

impl Areas {
    /// Areas for `queues` of `size`, from `offset` of the mapping on.
    ///
    /// # Errors
    /// [`Rule::BadInflight`]: the mapping is shorter, or the sizes are none.
    pub fn new(memory: Arc<ForeignMemory>, offset: usize, queues: u16, size: u16) -> Result<Areas, Rule> {
        let length = usize::from(queues) * queue_bytes(size);
        let fits = offset.checked_add(length).is_some_and(|end| end <= memory.length_bytes());
        let is_aligned = offset.is_multiple_of(8);
        (fits && is_aligned && size <= QUEUE_SIZE_MAX)
            .then_some(Areas { memory, offset, queues, size })
            .ok_or(Rule::BadInflight)
    }

    /// Forgets the requests under way, once all queues have stopped.
    pub fn clear(&self) {
        for number in 0..usize::from(self.queues) {
            // Inside: `new` has seen to that. An area without a version has nothing under way.
            let _ = self.memory.copy_from(self.offset + number * self.bytes() + VERSION_AT, &[0; 2]);
        }
    }

    /// Length of a queue's area.
    fn bytes(&self) -> usize {
        queue_bytes(self.size)
    }

    /// The area of one queue of `size` entries. `None`: it has none.
    ///
    /// # Errors
    /// [`Rule::BadInflight`]: its area is for another size.
    pub fn queue(&self, number: u16, size: u16) -> Result<Option<SplitArea>, Rule> {
        if number >= self.queues {
            return Ok(None);
        }
        if size > self.size {
            return Err(Rule::BadInflight);
        }
        let offset = self.offset + usize::from(number) * self.bytes();
        Ok(Some(SplitArea { memory: self.memory.view(), offset, size, counter: 0, last_batch: 0, ended: Vec::new() }))
    }
}

/// The area of one queue, on the queue's worker.
#[derive(Debug)]
pub struct SplitArea {
    memory: Arc<ForeignMemory>,
    offset: usize,
    size: u16,
    counter: u64,
    /// Ours: the one in the area is written only.
    last_batch: u16,
    /// Heads of the batch that is being ended. Used again.
    ended: Vec<u16>,
}

impl SplitArea {
    fn entry(&self, head: u16) -> usize {
        self.offset + HEADER_BYTES + usize::from(head) * ENTRY_BYTES
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        #[cfg(test)]
        super::kill::step();
        // Inside: `Areas::new` has seen to that.
        let _ = self.memory.copy_from(at, bytes);
        // SeqCst: pairs with nothing but the kill, which is between two instructions: the steps stand in memory in
        // their order, and other processes look only after it.
        compiler_fence(Ordering::SeqCst);
    }

    /// In one store: a kill may come between two.
    fn put_u16(&self, at: usize, value: u16) {
        #[cfg(test)]
        super::kill::step();
        if let Some(word) = self.memory.atomic_u16(at) {
            // Relaxed: as in `put`.
            word.store(value, Ordering::Relaxed);
        }
        compiler_fence(Ordering::SeqCst);
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        let _ = self.memory.copy_to(at, &mut bytes);
        bytes
    }

    fn get_u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.get(self.offset + at))
    }

    /// Takes the area over from its last user. Returns the heads left in flight in a used area, in the order in which
    /// they were taken. `used` is the ring's used index.
    pub fn take_over(&mut self, used: u16) -> Option<Vec<u16>> {
        let is_new = self.get_u16(VERSION_AT) != VERSION || self.get_u16(ENTRIES_AT) != self.size;
        if is_new {
            let entries = vec![0; usize::from(self.size) * ENTRY_BYTES];
            self.write(self.offset + HEADER_BYTES, &entries);
            self.put_u16(self.offset + LAST_BATCH_AT, 0);
            self.put_u16(self.offset + USED_AT, used);
            self.put_u16(self.offset + ENTRIES_AT, self.size);
            self.put_u16(self.offset + VERSION_AT, VERSION);
            return None;
        }
        // Ends that the guest has seen, and that were not struck out any more.
        let unstruck = used.wrapping_sub(self.get_u16(USED_AT)).min(self.size);
        let mut head = self.get_u16(LAST_BATCH_AT);
        for _ in 0..unstruck {
            if head >= self.size {
                break;
            }
            self.write(self.entry(head), &[0]);
            head = u16::from_ne_bytes(self.get(self.entry(head) + NEXT_AT));
        }
        self.put_u16(self.offset + USED_AT, used);
        let counter = |head: u16| u64::from_ne_bytes(self.get(self.entry(head) + COUNTER_AT));
        let mut left: Vec<u16> = (0..self.size).filter(|head| self.get(self.entry(*head)) == [1]).collect();
        left.sort_by_key(|head| counter(*head));
        self.counter = (0..self.size).map(counter).max().unwrap_or(0).wrapping_add(1);
        self.last_batch = self.get_u16(LAST_BATCH_AT);
        Some(left)
    }

    /// A head was taken from the available ring.
    pub fn took(&mut self, head: u16) {
        self.write(self.entry(head) + COUNTER_AT, &self.counter.to_ne_bytes());
        self.counter = self.counter.wrapping_add(1);
        self.write(self.entry(head), &[1]);
    }

    /// A head is about to be shown as ended, with others.
    pub fn ending(&mut self, head: u16) {
        self.put_u16(self.entry(head) + NEXT_AT, self.last_batch);
        self.last_batch = head;
        self.put_u16(self.offset + LAST_BATCH_AT, head);
        self.ended.push(head);
    }

    /// The guest was shown all of them: the ring's used index is `used`.
    pub fn ended(&mut self, used: u16) {
        let mut ended = std::mem::take(&mut self.ended);
        ended.drain(..).for_each(|head| self.write(self.entry(head), &[0]));
        self.ended = ended;
        self.put_u16(self.offset + USED_AT, used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const SIZE: u16 = 8;

    fn areas(file: &OwnedFd, length: u64) -> Areas {
        let memory = ForeignMemory::map(file.as_fd(), 0, length as usize).unwrap();
        Areas::new(memory, 0, 2, SIZE).unwrap()
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(create(0, 8).err(), Some(Rule::BadInflight));
        assert_eq!(create(65, 8).err(), Some(Rule::BadInflight));
        assert_eq!(create(1, 2048).err(), Some(Rule::BadInflight));
        let (file, length) = create(2, SIZE).unwrap();
        assert_eq!(length, 2 * 256);
        let memory = ForeignMemory::map(file.as_fd(), 0, length as usize).unwrap();
        assert_eq!(Areas::new(memory.clone(), 0, 3, SIZE).err(), Some(Rule::BadInflight));
        assert_eq!(Areas::new(memory.clone(), 8, 2, SIZE).err(), Some(Rule::BadInflight));
        let areas = Areas::new(memory, 0, 2, SIZE).unwrap();
        assert!(areas.queue(2, SIZE).unwrap().is_none());
        assert_eq!(areas.queue(0, 16).err(), Some(Rule::BadInflight));
        let (queues, size) = (super::super::disk::QUEUES_MAX, QUEUE_SIZE_MAX);
        let (file, length) = create(queues, size).unwrap();
        let memory = ForeignMemory::map(file.as_fd(), 0, length as usize).unwrap();
        let areas = Areas::new(memory, 0, queues, size).unwrap();
        assert!(areas.queue(queues - 1, size).unwrap().is_some());
    }

    #[test]
    fn an_area_is_taken_over_for_its_size_alone_and_goes_on_where_it_stood() {
        let (file, length) = create(2, SIZE).unwrap();
        let memory = ForeignMemory::map(file.as_fd(), 0, length as usize).unwrap();
        let queue = || areas(&file, length).queue(0, SIZE).unwrap().unwrap();
        // An area of our version for 4 entries is made anew.
        assert!(memory.copy_from(8, &[1, 0, 4, 0]));
        assert_eq!(queue().take_over(0), None);
        // Head 2 was taken ninth, head 1 fourth; the last batch says 8, the first number that is no head.
        for (head, counter) in [(2usize, 9u8), (1, 4)] {
            assert!(memory.copy_from(16 + 16 * head, &[1, 0, 0, 0, 0, 0, 0, 0, counter]));
        }
        assert!(memory.copy_from(12, &[8, 0]) && memory.copy_from(16 + 16 * 8, &[0xaa]));
        let mut second = queue();
        assert_eq!(second.take_over(5), Some(vec![1, 2]));
        let mut behind = [0];
        assert!(memory.copy_to(16 + 16 * 8, &mut behind));
        assert_eq!(behind, [0xaa], "what lies behind the entries is not touched");
        [0, 7, 3].into_iter().for_each(|head| second.took(head));
        assert_eq!(queue().take_over(5), Some(vec![1, 2, 0, 7, 3]), "in the order in which they were taken");
        // Nothing more has ended by then; the used index that was stored is 5, so nothing is struck out again.
        let mut used = [0; 2];
        assert!(memory.copy_to(14, &mut used));
        assert_eq!(u16::from_ne_bytes(used), 5);
    }

    #[test]
    fn what_was_under_way_is_forgotten_in_each_queue() {
        let (file, length) = create(3, SIZE).unwrap();
        let memory = ForeignMemory::map(file.as_fd(), 0, length as usize).unwrap();
        // Two queues, behind another.
        let areas = Areas::new(memory, 256, 2, SIZE).unwrap();
        let take_over = |number| areas.queue(number, SIZE).unwrap().unwrap().take_over(0);
        assert_eq!([take_over(0), take_over(1)], [None, None]);
        assert_eq!([take_over(0), take_over(1)], [Some(vec![]), Some(vec![])]);
        areas.clear();
        assert_eq!([take_over(0), take_over(1)], [None, None]);
    }

    #[test]
    fn what_another_wrote_into_the_area_is_bounded() {
        let (file, length) = create(2, SIZE).unwrap();
        let memory = ForeignMemory::map(file.as_fd(), 0, length as usize).unwrap();
        assert!(memory.copy_from(0, &vec![0xff; length as usize]));
        let areas = Areas::new(memory.clone(), 0, 2, SIZE).unwrap();
        assert_eq!(areas.queue(0, SIZE).unwrap().unwrap().take_over(5), None, "no version of ours");
        assert!(memory.copy_from(8, &[1, 0, 8, 0, 3, 0, 0x77, 0x77]));
        assert!(memory.copy_from(16, &[1; 8 * 16]));
        // The chain of a batch leads from 3 to 0x0101, which is no head.
        let left = areas.queue(0, SIZE).unwrap().unwrap().take_over(5);
        assert_eq!(left, Some(vec![0, 1, 2, 4, 5, 6, 7]));
    }

    #[test]
    fn nobody_can_cut_an_area_under_a_server() {
        let (file, length) = create(2, SIZE).unwrap();
        for other in [0, length - 1, length + 1] {
            assert!(rustix::fs::ftruncate(&file, other).is_err(), "{other} bytes");
        }
        assert!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).is_err());
    }

    #[test]
    fn an_area_is_laid_out_as_other_servers_expect_it() {
        let (file, length) = create(2, SIZE).unwrap();
        let memory = ForeignMemory::map(file.as_fd(), 0, length as usize).unwrap();
        let bytes = |at: usize| {
            let mut bytes = [0; 16];
            assert!(memory.copy_to(at, &mut bytes));
            bytes
        };
        // Another version left anything: nothing of it stays, and the used index is the ring's.
        assert!(memory.copy_from(8, &[7; 8 + 8 * 16]));
        let mut queue = areas(&file, length).queue(0, SIZE).unwrap().unwrap();
        assert_eq!(queue.take_over(5), None);
        assert_eq!(bytes(0), [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 8, 0, 0, 0, 5, 0]);
        (0..8).for_each(|head| assert_eq!(bytes(16 + 16 * head), [0; 16], "head {head}"));
        [2, 6, 3].into_iter().for_each(|head| queue.took(head));
        [6, 2].into_iter().for_each(|head| queue.ending(head));
        queue.ended(7);
        assert_eq!(bytes(0)[8..], [1, 0, 8, 0, 2, 0, 7, 0], "the last of the batch, and the used index");
        assert_eq!(bytes(16 + 16 * 2)[..8], [0, 0, 0, 0, 0, 0, 6, 0], "ended, behind 6");
        assert_eq!(bytes(16 + 16 * 3), [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0], "under way, the third taken");
        assert!(queue.ended.capacity() >= 2, "its memory is used again");
        // The next server's batch is behind the last one.
        let mut next = areas(&file, length).queue(0, SIZE).unwrap().unwrap();
        assert_eq!(next.take_over(7), Some(vec![3]));
        next.ending(3);
        assert_eq!(bytes(16 + 16 * 3)[6..8], [2, 0]);
    }
}
