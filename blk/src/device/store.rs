//! Where the devices that live in memory keep their bytes.
//!
//! # Shape
//! The device is cut into chunks of 64 KiB, and only those that were written exist. They lie in 1024 maps by the low
//! bits of their number, so neighbours never share a lock and memory is proportional to what was written, whatever the
//! device's size says (it may say 8 EiB). A chunk that does not exist reads as zero, which is what never-written and
//! discarded bytes must do.
//!
//! # Invariants
//! S1. A call that returned is seen by every call that begins after it, on any thread. Two that overlap in time may be
//!     interleaved chunk by chunk, as on a drive, and never within a chunk.
//!
//! # Cost
//! A chunk that is written for the first time is mapped (`store/arena.rs`), with its neighbours. After that, per chunk
//! touched: one lock, one hash look-up, one copy. Clearing a long range costs its chunks or the existing ones
//! of the store, whichever are fewer.

#[cfg(feature = "uring")]
mod arena;

#[cfg(not(feature = "uring"))]
mod arena {
    //! Chunks of a process that hands nothing over.

    pub type Chunk = Box<[u8]>;

    #[derive(Default)]
    pub struct Arena {}

    impl Arena {
        pub fn take(&self) -> std::io::Result<Chunk> {
            Ok(vec![0; super::CHUNK_BYTES as usize].into_boxed_slice())
        }

        pub fn give_back(&self, _: Chunk) {}
    }
}

use arena::{Arena, Chunk};

use crate::device::Command;
use crate::extents::{Answer, Stored};
use crate::foreign::BufferSlice;
use crate::request::{Op, Status};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a chunk: large enough that a map entry is nothing beside it, small enough that a lone 4 KiB write wastes
/// little.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// Maps. With a few dozen workers on random chunks two rarely want the same one.
const SHARDS: u64 = 1024;

/// Chunks that one answer looks at, at most: it takes a worker 20 us about.
const CHUNKS_LOOKED_AT: usize = 1024;

/// Its own cache line, so that the locks of different shards do not share one.
#[repr(align(64))]
#[derive(Default)]
struct Shard {
    chunks: Mutex<HashMap<u64, Chunk>>,
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Chunk>> {
        // A panic in another thread while it held this lock can have cut short a copy of bytes, and nothing else.
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of a device in memory, shared by all workers; only chunks that were written take memory.
pub struct SparseStore {
    size_bytes: u64,
    shards: Box<[Shard]>,
    arena: Arena,
}

impl SparseStore {
    /// A store of zeroes.
    pub fn new(size_bytes: u64) -> SparseStore {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        SparseStore { size_bytes, shards, arena: Arena::default() }
    }

    /// Size of the device, bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Fills `bytes` from `offset_bytes` on.
    ///
    /// # Panics
    /// If the range does not lie inside; so do the other methods.
    pub fn read(&self, offset_bytes: u64, bytes: &mut [u8]) {
        self.read_into(offset_bytes, BufferSlice::from(bytes));
    }

    /// Reads into a command's buffer.
    fn read_into(&self, offset_bytes: u64, mut room: BufferSlice<'_>) {
        for (chunk, range) in self.pieces(offset_bytes, room.len() as u64) {
            let mut piece = room.take_front(range.len());
            match self.shard(chunk).lock().get(&chunk) {
                Some(present) => piece.copy_from(&present[range]),
                None => piece.fill(0),
            }
        }
    }

    /// Stores `bytes` from `offset_bytes` on.
    ///
    /// # Panics
    /// If there is no memory for them.
    pub fn write(&self, offset_bytes: u64, bytes: &[u8]) {
        let mut copy = bytes.to_vec();
        self.write_from(offset_bytes, BufferSlice::from(&mut copy[..])).expect("memory for a device's bytes");
    }

    /// Writes from a command's buffer.
    ///
    /// # Errors
    /// There is no memory for a chunk. Those before it are stored.
    fn write_from(&self, offset_bytes: u64, mut room: BufferSlice<'_>) -> io::Result<()> {
        for (chunk, range) in self.pieces(offset_bytes, room.len() as u64) {
            let mut piece = room.take_front(range.len());
            self.change(chunk, |present| piece.copy_to(&mut present[range]))?;
        }
        Ok(())
    }

    /// Changes a chunk, which is made if it does not exist.
    fn change(&self, chunk: u64, change: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let mut chunks = self.shard(chunk).lock();
        let present = match chunks.entry(chunk) {
            Entry::Occupied(present) => present.into_mut(),
            Entry::Vacant(place) => place.insert(self.arena.take()?),
        };
        change(present);
        Ok(())
    }

    /// Makes a range read as zero and gives back the memory of whole chunks.
    pub fn discard(&self, offset_bytes: u64, length_bytes: u64) {
        self.clear(offset_bytes, length_bytes, true);
    }

    /// Makes a range read as zero; chunks that exist stay, so that writing there again needs no new memory. (Chunks
    /// that do not exist are not made: no promise of space could be kept by that, since the system overcommits memory.)
    pub fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) {
        self.clear(offset_bytes, length_bytes, false);
    }

    fn clear(&self, offset_bytes: u64, length_bytes: u64, release: bool) {
        self.check(offset_bytes, length_bytes);
        let end_bytes = offset_bytes + length_bytes;
        // Whole chunks; the last one is whole if the range reaches the end of the store.
        let first = offset_bytes.div_ceil(CHUNK_BYTES);
        let last = if end_bytes == self.size_bytes { end_bytes.div_ceil(CHUNK_BYTES) } else { end_bytes / CHUNK_BYTES };
        if first >= last {
            return self.clear_parts(offset_bytes, end_bytes);
        }
        self.clear_parts(offset_bytes, first * CHUNK_BYTES);
        self.clear_chunks(first..last, release);
        self.clear_parts((last * CHUNK_BYTES).min(end_bytes), end_bytes);
    }

    /// Zeroes in chunks that exist.
    fn clear_parts(&self, offset_bytes: u64, end_bytes: u64) {
        for (chunk, range) in self.pieces(offset_bytes, end_bytes - offset_bytes) {
            if let Some(present) = self.shard(chunk).lock().get_mut(&chunk) {
                present[range].fill(0);
            }
        }
    }

    fn clear_chunks(&self, range: Range<u64>, release: bool) {
        if range.end - range.start < SHARDS {
            for chunk in range {
                let mut chunks = self.shard(chunk).lock();
                if release {
                    chunks.remove(&chunk).into_iter().for_each(|chunk| self.arena.give_back(chunk));
                } else if let Some(present) = chunks.get_mut(&chunk) {
                    present.fill(0);
                }
            }
            return;
        }
        // So long that looking at existing chunks is less work than naming every chunk of it.
        for shard in &self.shards {
            let mut chunks = shard.lock();
            if release {
                let gone = chunks.extract_if(|chunk, _| range.contains(chunk));
                gone.for_each(|(_, chunk)| self.arena.give_back(chunk));
            } else {
                let inside = chunks.iter_mut().filter(|(chunk, _)| range.contains(chunk));
                inside.for_each(|(_, present)| present.fill(0));
            }
        }
    }

    /// Answers which chunks exist from `offset_bytes` on: a chunk that does not is a hole.
    fn extents(&self, offset_bytes: u64, mut answer: Answer<'_>) {
        let pieces = self.pieces(offset_bytes, answer.left_bytes()).take(CHUNKS_LOOKED_AT);
        for (chunk, range) in pieces {
            let stored = if self.shard(chunk).lock().contains_key(&chunk) { Stored::Data } else { Stored::Hole };
            if !answer.push(range.len() as u64, stored) {
                return;
            }
        }
    }

    /// Carries out a command and returns its status. The command is valid and its buffer long enough.
    pub fn execute(&self, command: &mut Command) -> Status {
        let &mut Command { op, offset_bytes, length_bytes, .. } = command;
        let mut stored = Ok(());
        match op {
            Op::Read => self.read_into(offset_bytes, command.room()),
            Op::Write => stored = self.write_from(offset_bytes, command.room()),
            Op::Flush => {}
            Op::Discard | Op::WriteZeroes { may_unmap: true } | Op::FastZeroes { may_unmap: true } => {
                self.discard(offset_bytes, u64::from(length_bytes));
            }
            // Faster than to bring as many zeroes here.
            Op::WriteZeroes { may_unmap: false } | Op::FastZeroes { may_unmap: false } => {
                self.write_zeroes(offset_bytes, u64::from(length_bytes));
            }
            Op::Extents => self.extents(offset_bytes, command.answer()),
        }
        if stored.is_ok() { Status::Ok } else { Status::NoSpace }
    }

    fn shard(&self, chunk: u64) -> &Shard {
        &self.shards[(chunk % SHARDS) as usize]
    }

    /// The chunks that a range touches, and where in each.
    fn pieces(&self, offset_bytes: u64, length_bytes: u64) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
        self.check(offset_bytes, length_bytes);
        let end_bytes = offset_bytes + length_bytes;
        let mut at_bytes = offset_bytes;
        std::iter::from_fn(move || {
            let (chunk, start) = (at_bytes / CHUNK_BYTES, at_bytes % CHUNK_BYTES);
            let piece_bytes = (CHUNK_BYTES - start).min(end_bytes - at_bytes);
            at_bytes += piece_bytes;
            (piece_bytes > 0).then(|| (chunk, start as usize..(start + piece_bytes) as usize))
        })
    }

    fn check(&self, offset_bytes: u64, length_bytes: u64) {
        let inside = offset_bytes.checked_add(length_bytes).is_some_and(|end_bytes| end_bytes <= self.size_bytes);
        assert!(inside, "{length_bytes} bytes at {offset_bytes} of a store of {}", self.size_bytes);
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use crate::extents::{self, Extent};
    use crate::tag::Tag;

    impl SparseStore {
        /// Memory that chunks take.
        pub(super) fn allocated_bytes(&self) -> u64 {
            self.shards.iter().map(|shard| shard.lock().len() as u64 * CHUNK_BYTES).sum()
        }
    }

    fn read(store: &SparseStore, offset_bytes: u64, length: usize) -> Vec<u8> {
        // Recycled memory: bytes that are not overwritten show.
        let mut bytes = vec![0xee; length];
        store.read(offset_bytes, &mut bytes);
        bytes
    }

    #[test]
    fn never_written_bytes_read_as_zero_and_take_no_memory() {
        let store = SparseStore::new(i64::MAX as u64);
        assert_eq!(read(&store, i64::MAX as u64 - 5000, 5000), [0; 5000]);
        assert_eq!(store.allocated_bytes(), 0);
    }

    #[test]
    fn a_write_over_chunk_borders_reads_back() {
        let store = SparseStore::new(1 << 20);
        let bytes: Vec<u8> = (0..150_000u32).map(|i| (i % 251) as u8).collect();
        store.write(CHUNK_BYTES - 7, &bytes);
        assert_eq!(read(&store, CHUNK_BYTES - 7, bytes.len()), bytes);
        assert_eq!(read(&store, CHUNK_BYTES - 8, 2), [0, bytes[0]]);
        // Bytes 65529..215529 are in chunks 0, 1, 2 and 3.
        assert_eq!(store.allocated_bytes(), 4 * CHUNK_BYTES);
    }

    #[test]
    fn a_discard_releases_whole_chunks_and_zeroes_the_rest() {
        let store = SparseStore::new(1 << 20);
        store.write(0, &[7; 4 * CHUNK_BYTES as usize]);
        // From within chunk 0 to within chunk 3: 1 and 2 go, the parts of 0 and 3 are zeroed.
        store.discard(100, 3 * CHUNK_BYTES);
        assert_eq!(store.allocated_bytes(), 2 * CHUNK_BYTES);
        assert_eq!(read(&store, 99, 2), [7, 0]);
        assert_eq!(read(&store, 3 * CHUNK_BYTES + 99, 2), [0, 7]);
        assert_eq!(read(&store, 2 * CHUNK_BYTES, 10), [0; 10]);
    }

    #[test]
    fn a_discard_within_a_chunk_leaves_its_neighbours() {
        let store = SparseStore::new(1 << 20);
        store.write(0, &[7; 1000]);
        store.discard(10, 20);
        assert_eq!(read(&store, 9, 22), [vec![7], vec![0; 20], vec![7]].concat());
    }

    #[test]
    fn a_discard_to_the_end_releases_a_last_chunk_that_is_short() {
        let store = SparseStore::new(CHUNK_BYTES + 10);
        store.write(CHUNK_BYTES, &[7; 10]);
        store.discard(CHUNK_BYTES, 10);
        assert_eq!(store.allocated_bytes(), 0);
    }

    #[test]
    fn write_zeroes_keeps_the_chunks() {
        let store = SparseStore::new(1 << 20);
        store.write(0, &[7; 3 * CHUNK_BYTES as usize]);
        store.write_zeroes(1, 3 * CHUNK_BYTES - 2);
        assert_eq!(store.allocated_bytes(), 3 * CHUNK_BYTES);
        assert_eq!(read(&store, 0, 2), [7, 0]);
        assert_eq!(read(&store, 3 * CHUNK_BYTES - 2, 2), [0, 7]);
    }

    #[test]
    fn clearing_a_range_of_more_chunks_than_shards_leaves_what_is_outside() {
        // 2000 chunks, more than the 1024 shards: the other way of clearing.
        for release in [true, false] {
            let store = SparseStore::new(3000 * CHUNK_BYTES);
            for chunk in [0, 1, 500, 2000, 2001, 2999] {
                store.write(chunk * CHUNK_BYTES, &[7; 2]);
            }
            store.clear(CHUNK_BYTES, 2000 * CHUNK_BYTES, release);
            let left: Vec<_> =
                [0, 1, 500, 2000, 2001, 2999].map(|chunk| read(&store, chunk * CHUNK_BYTES, 1)[0]).into();
            assert_eq!(left, [7, 0, 0, 0, 7, 7]);
            assert_eq!(store.allocated_bytes() / CHUNK_BYTES, if release { 3 } else { 6 });
        }
    }

    /// Extents of a range, in chunks, over as many answers as it takes.
    fn map(store: &SparseStore, from: u64, chunks: u64) -> Vec<(u64, Stored)> {
        let mut map: Vec<(u64, Stored)> = Vec::new();
        let (mut at, end) = (from * CHUNK_BYTES, (from + chunks) * CHUNK_BYTES);
        while at < end {
            let (length, buffer) = ((end - at) as u32, extents::ask(usize::MAX));
            let mut command = Command::new(Tag(0), Op::Extents, at, length, Some(buffer));
            assert_eq!(store.execute(&mut command), Status::Ok);
            for Extent { length_bytes, stored } in extents::answered(command.buffer.as_ref().unwrap()) {
                at += length_bytes;
                match map.last_mut() {
                    Some((chunks, last)) if *last == stored => *chunks += length_bytes / CHUNK_BYTES,
                    _ => map.push((length_bytes / CHUNK_BYTES, stored)),
                }
            }
        }
        map
    }

    #[test]
    fn what_was_never_written_or_was_trimmed_is_a_hole_and_the_rest_is_data() {
        use Stored::{Data, Hole};
        let store = SparseStore::new(5000 * CHUNK_BYTES);
        assert_eq!(map(&store, 0, 5000), [(5000, Hole)], "over several answers");
        store.write(CHUNK_BYTES, &[1]);
        store.write(3 * CHUNK_BYTES - 1, &[1, 1]);
        store.write(4999 * CHUNK_BYTES, &[1]);
        assert_eq!(map(&store, 0, 5000), [(1, Hole), (3, Data), (4995, Hole), (1, Data)]);
        assert_eq!(map(&store, 2, 1), [(1, Data)]);
        store.write_zeroes(0, 4 * CHUNK_BYTES);
        store.discard(2 * CHUNK_BYTES, CHUNK_BYTES);
        assert_eq!(map(&store, 0, 5), [(1, Hole), (1, Data), (1, Hole), (1, Data), (1, Hole)]);
    }

    #[test]
    fn no_byte_that_was_written_before_the_question_is_called_a_hole() {
        // One thread writes chunks one after the other and says how far it is; others ask meanwhile.
        let (store, chunks) = (SparseStore::new(512 * CHUNK_BYTES), 512);
        let done = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for chunk in 0..chunks {
                    store.write(chunk * CHUNK_BYTES + chunk % 7, &[chunk as u8 | 1]);
                    done.store(chunk + 1, std::sync::atomic::Ordering::Release);
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let before = done.load(std::sync::atomic::Ordering::Acquire);
                        let data = match map(&store, 0, chunks)[..] {
                            [(data, Stored::Data), ..] => data,
                            _ => 0,
                        };
                        assert!(data >= before, "{data} of {before} are data");
                        if before == chunks {
                            break;
                        }
                    }
                });
            }
        });
    }

    #[cfg(feature = "uring")]
    #[test]
    fn a_write_for_which_there_is_no_memory_fails_alone_and_the_next_one_that_needs_none_succeeds() {
        use crate::buffer::Buffer;
        use std::os::fd::FromRawFd;
        // SAFETY: the name is a C string; the descriptor is new and not shared.
        let file = unsafe {
            let file = libc::memfd_create(c"full".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            std::fs::File::from_raw_fd(file)
        };
        let store = SparseStore::new(3000 * CHUNK_BYTES);
        store.arena.adopt(file.try_clone().unwrap(), 0).unwrap();
        store.write(0, &[1; 10]);
        // The file may not grow: as many chunks as are mapped, and no more.
        // SAFETY: no memory is involved.
        let sealed = unsafe {
            use std::os::fd::AsRawFd;
            libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_GROW)
        };
        assert_eq!(sealed, 0);
        let write = |chunk: u64, value: u8| {
            let mut buffer = Buffer::new(10);
            buffer.as_mut_slice()[..10].fill(value);
            store.execute(&mut Command::new(Tag(0), Op::Write, chunk * CHUNK_BYTES, 10, Some(buffer)))
        };
        let failed: Vec<u64> = (1..1026).filter(|chunk| write(*chunk, 2) != Status::Ok).collect();
        assert_eq!(failed, [1024, 1025]);
        assert_eq!(write(1024, 2), Status::NoSpace);
        assert_eq!(
            (write(0, 3), read(&store, 0, 1), read(&store, 1024 * CHUNK_BYTES, 1)),
            (Status::Ok, vec![3], vec![0])
        );
        store.discard(CHUNK_BYTES, CHUNK_BYTES);
        assert_eq!(write(1024, 4), Status::Ok, "in the place of another");
    }

    #[test]
    #[should_panic(expected = "2 bytes at 9 of a store of 10")]
    fn a_range_over_the_end_is_our_bug() {
        SparseStore::new(10).write(9, &[1, 2]);
    }
}
