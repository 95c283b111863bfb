//! Where do chunks lie, so that another process can have them without a copy? In a file without a name (memfd), mapped
//! here piece by piece and shared with the process that gets its descriptor. Below: the list that goes along.
//!
//! # Shape
//! The file is an array of slots of one chunk each; segments of 64 MiB of it are mapped as they are needed and stay
//! mapped until the end, so that a chunk stays where it is. A slot that was freed is a hole: it takes no memory and
//! reads as zero. Without a file (no descriptor was left) the segments are plain memory, which cannot be handed over.
//!
//! # Invariants
//! A1. A slot is one [`Chunk`]'s or free. Bytes of a chunk are reached through it alone, and by one process: another
//!     that maps them reads none before this one has stopped (`daemon/src/upgrade/mod.rs`).
//! A2. A free slot reads as zero.

use super::{CHUNK_BYTES, SparseStore};
use crate::client::Packed;
use crate::state::{StateReader, StateWriter};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Chunks of a segment: 64 MiB.
const SEGMENT_CHUNKS: u64 = 1024;

const SEGMENT_BYTES: u64 = SEGMENT_CHUNKS * CHUNK_BYTES;

/// A chunk's place, which stays mapped as long as its arena.
pub struct Chunk {
    slot: u64,
    bytes: NonNull<u8>,
}

// SAFETY: it stands for its bytes, which are its own (A1), as a box would.
unsafe impl Send for Chunk {}

impl Chunk {
    /// Its number in the file.
    pub fn slot(&self) -> u64 {
        self.slot
    }
}

impl std::ops::Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped for as long as the arena, which the store drops after its chunks; they do not change
        // meanwhile but through this chunk (A1).
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), CHUNK_BYTES as usize) }
    }
}

impl std::ops::DerefMut for Chunk {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), CHUNK_BYTES as usize) }
    }
}

#[derive(Default)]
struct Slots {
    /// `None`: nothing was needed yet, or there was no descriptor.
    file: Option<File>,
    /// Where each segment is mapped.
    segments: Vec<NonNull<u8>>,
    free: Vec<u64>,
    /// Slots that were given out or are free.
    end: u64,
}

// SAFETY: the mappings are the arena's, whichever thread it is on.
unsafe impl Send for Slots {}

/// Room for chunks.
#[derive(Default)]
pub struct Arena(Mutex<Slots>);

impl Arena {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        // A list is whole after any panic; at worst a slot is lost.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A chunk of zeroes.
    ///
    /// # Errors
    /// There is no memory, or no address for it.
    pub fn take(&self) -> io::Result<Chunk> {
        let mut slots = self.slots();
        if let Some(slot) = slots.free.pop() {
            return Ok(slots.chunk(slot));
        }
        if slots.segments.is_empty() && slots.file.is_none() {
            slots.file = memory_file().ok();
        }
        let slot = slots.end;
        slots.map(slot + 1)?;
        slots.end += 1;
        Ok(slots.chunk(slot))
    }

    /// Frees the chunk's memory and its slot.
    pub fn give_back(&self, mut chunk: Chunk) {
        // SAFETY: whole pages of a mapping of ours.
        let is_hole =
            unsafe { libc::madvise(chunk.bytes.as_ptr().cast(), CHUNK_BYTES as usize, libc::MADV_REMOVE) } == 0;
        if !is_hole {
            // Plain memory, of which there are no holes.
            chunk.fill(0);
        }
        self.slots().free.push(chunk.slot);
    }

    /// Frees the slot of an adopted chunk that is not used: another one has its number. The other process may still go
    /// on, so nothing is changed before the slot is taken: it is a hole there.
    pub fn free(&self, chunk: Chunk) {
        self.slots().free.push(chunk.slot);
    }

    /// The file, for another process.
    ///
    /// # Errors
    /// There is none, or no descriptor for a copy.
    pub fn file(&self) -> io::Result<File> {
        let mut slots = self.slots();
        if slots.segments.is_empty() && slots.file.is_none() {
            slots.file = Some(memory_file()?);
        }
        let none = || io::Error::other("it has no file, there was no descriptor for one");
        slots.file.as_ref().ok_or_else(none)?.try_clone()
    }

    /// The first `count` slots of the file of another process, which is this one's from now on. Nothing was taken
    /// before.
    ///
    /// # Errors
    /// It has not so many, or cannot be mapped.
    pub fn adopt(&self, file: File, count: u64) -> io::Result<Vec<Chunk>> {
        let mut slots = self.slots();
        assert!(slots.segments.is_empty(), "an arena that is in use");
        let needed = count.checked_mul(CHUNK_BYTES).ok_or(io::ErrorKind::InvalidData)?;
        if file.metadata()?.len() < needed {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        slots.file = Some(file);
        slots.map(count)?;
        slots.end = count;
        Ok((0..count).map(|slot| slots.chunk(slot)).collect())
    }
}

impl Slots {
    /// Maps segments for `count` slots.
    fn map(&mut self, count: u64) -> io::Result<()> {
        while (self.segments.len() as u64) * SEGMENT_CHUNKS < count {
            let from = self.segments.len() as u64 * SEGMENT_BYTES;
            let (flags, descriptor) = match &self.file {
                Some(file) => {
                    if file.metadata()?.len() < from + SEGMENT_BYTES {
                        file.set_len(from + SEGMENT_BYTES)?;
                    }
                    (libc::MAP_SHARED, file.as_raw_fd())
                }
                None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
            };
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let offset = if descriptor < 0 { 0 } else { from as libc::off_t };
            // SAFETY: a new mapping, wherever the kernel puts it; the file is as long.
            let at = unsafe {
                let flags = flags | libc::MAP_NORESERVE;
                libc::mmap(std::ptr::null_mut(), SEGMENT_BYTES as usize, access, flags, descriptor, offset)
            };
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            self.segments.push(NonNull::new(at.cast()).expect("a mapping is not at 0"));
        }
        Ok(())
    }

    fn chunk(&self, slot: u64) -> Chunk {
        let segment = self.segments[(slot / SEGMENT_CHUNKS) as usize];
        let offset = (slot % SEGMENT_CHUNKS * CHUNK_BYTES) as usize;
        // SAFETY: inside the segment.
        Chunk { slot, bytes: unsafe { segment.add(offset) } }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for segment in self.segments.drain(..) {
            // SAFETY: mapped here, and its chunks went before.
            unsafe { libc::munmap(segment.as_ptr().cast(), SEGMENT_BYTES as usize) };
        }
    }
}

/// A file without a name, whose bytes are memory.
fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a C string, and nothing else is read.
    let file = unsafe { libc::memfd_create(c"mqfq-device".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and not shared.
    Ok(unsafe { OwnedFd::from_raw_fd(file) }.into())
}

// How do the bytes of a device in memory get into another process? In their file (`store/arena.rs`), which goes along,
// and a list of which chunk lies in which of its slots. No byte is copied: clients wait for 8 bytes of list for each
// 64 KiB.
//
// A free slot between two others has in the list the number of one that comes later, and of two that have a number
// the later one counts: so the list says all that it said when the file was a copy without gaps, and no version of the
// state has another form.

impl SparseStore {
    /// See [`crate::device::Device::pack`].
    pub fn pack(&self, version: u16) -> Result<Packed, String> {
        let failed = |error: io::Error| format!("cannot be handed over to another process: {error}");
        let file = self.arena.file().map_err(failed)?;
        let mut numbers: Vec<Option<u64>> = Vec::new();
        for shard in &self.shards {
            for (number, chunk) in &*shard.lock() {
                let slot = chunk.slot() as usize;
                numbers.resize(numbers.len().max(slot + 1), None);
                numbers[slot] = Some(*number);
            }
        }
        let mut writer = StateWriter::new(version);
        writer.u64(self.size_bytes);
        writer.u64(numbers.len() as u64);
        // The last slot is a chunk's.
        let last = numbers.last().copied().flatten().unwrap_or_default();
        numbers.into_iter().for_each(|number| writer.u64(number.unwrap_or(last)));
        Ok(Packed { state: writer.into_bytes(), descriptors: vec![file.into()] })
    }

    /// See [`crate::device::Device::unpack`].
    pub fn unpack(&self, packed: Packed, version: u16) -> Result<(), String> {
        let mut reader = StateReader::new(version, &packed.state);
        let size_bytes = reader.u64()?;
        if size_bytes != self.size_bytes {
            return Err(format!("had {size_bytes} bytes there and has {} here", self.size_bytes));
        }
        let [file] = <[OwnedFd; 1]>::try_from(packed.descriptors).map_err(|_| "came without its bytes")?;
        let mut numbers = Vec::new();
        for _ in 0..reader.u64()? {
            let number = reader.u64()?;
            if number >= self.size_bytes.div_ceil(CHUNK_BYTES) {
                return Err("has bytes behind its end".to_owned());
            }
            numbers.push(number);
        }
        reader.end()?;
        let chunks = self.arena.adopt(File::from(file), numbers.len() as u64);
        let chunks = chunks.map_err(|error| format!("came without all its bytes: {error}"))?;
        for (number, chunk) in numbers.into_iter().zip(chunks) {
            let before = self.shard(number).lock().insert(number, chunk);
            before.into_iter().for_each(|chunk| self.arena.free(chunk));
        }
        Ok(())
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod handover_tests {
    use super::*;
    use crate::state::VERSION;

    #[test]
    fn every_byte_is_there_again_and_what_was_never_written_takes_no_memory() {
        let size_bytes = 1 << 40;
        let (old, new) = (SparseStore::new(size_bytes), SparseStore::new(size_bytes));
        old.write(CHUNK_BYTES - 3, b"across a border");
        old.write(size_bytes - 5, b"at it");
        old.write(77 * CHUNK_BYTES, &[9; 100]);
        new.unpack(old.pack(VERSION).unwrap(), VERSION).unwrap();
        assert_eq!(new.allocated_bytes(), old.allocated_bytes());
        for (at_bytes, length) in [(CHUNK_BYTES - 10, 40), (size_bytes - 10, 10), (77 * CHUNK_BYTES, 200), (5, 10)] {
            let [mut there, mut here] = [vec![1; length], vec![2; length]];
            old.read(at_bytes, &mut there);
            new.read(at_bytes, &mut here);
            assert_eq!(there, here, "at {at_bytes}");
        }
    }

    #[test]
    fn slots_that_were_freed_are_free_there_as_well_and_what_is_written_next_is_in_both() {
        let size_bytes = 1 << 30;
        let (old, new) = (SparseStore::new(size_bytes), SparseStore::new(size_bytes));
        for chunk in 0..6 {
            old.write(chunk * CHUNK_BYTES, &[chunk as u8 + 1; 100]);
        }
        for chunk in [0, 3, 5] {
            old.discard(chunk * CHUNK_BYTES, CHUNK_BYTES);
        }
        new.unpack(old.pack(VERSION).unwrap(), VERSION).unwrap();
        assert_eq!(new.allocated_bytes(), 3 * CHUNK_BYTES);
        let first = |store: &SparseStore, chunk: u64| {
            let mut byte = [0xee];
            store.read(chunk * CHUNK_BYTES, &mut byte);
            byte[0]
        };
        assert_eq!([0, 1, 2, 3, 4, 5].map(|chunk| first(&new, chunk)), [0, 2, 3, 0, 5, 0]);
        // No copy: it is one memory until one of the two processes ends.
        old.write(CHUNK_BYTES, &[77]);
        assert_eq!(first(&new, 1), 77);
        // Two slots are free there, and the next chunk begins with zeroes.
        for chunk in 100..103 {
            new.write(chunk * CHUNK_BYTES + 5, &[9]);
            assert_eq!(first(&new, chunk), 0);
        }
        assert_eq!([1, 2, 4].map(|chunk| first(&new, chunk)), [77, 3, 5]);
        // And on to a third.
        let third = SparseStore::new(size_bytes);
        third.unpack(new.pack(VERSION).unwrap(), VERSION).unwrap();
        assert_eq!((third.allocated_bytes(), first(&third, 4)), (6 * CHUNK_BYTES, 5));
    }

    #[test]
    fn bytes_that_are_not_of_such_a_device_are_refused() {
        let store = SparseStore::new(1 << 20);
        store.write(0, &[1; 10]);
        let unpack = |change: fn(&mut Packed)| {
            let mut packed = store.pack(VERSION).unwrap();
            change(&mut packed);
            SparseStore::new(1 << 20).unpack(packed, VERSION).unwrap_err()
        };
        assert_eq!(unpack(|packed| packed.descriptors.clear()), "came without its bytes");
        assert_eq!(unpack(|packed| packed.state[7] ^= 1), "had 1048577 bytes there and has 1048576 here");
        assert_eq!(unpack(|packed| packed.state[15] = 200), "its state ends too early");
        assert_eq!(unpack(|packed| packed.state[23] = 16), "has bytes behind its end");
        assert_eq!(unpack(|packed| packed.state.push(0)), "its state has bytes left over");
        let cut = |packed: &mut Packed| File::from(packed.descriptors[0].try_clone().unwrap()).set_len(9).unwrap();
        assert!(unpack(cut).starts_with("came without all its bytes: "));
    }
}
