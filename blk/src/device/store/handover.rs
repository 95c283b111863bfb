//! How do the bytes of a device in memory get into another process? In their file (`store/arena.rs`), which goes along,
//! and a list of which chunk lies in which of its slots. No byte is copied: clients wait for 8 bytes of list for each
//! 64 KiB.
//!
//! A free slot between two others has in the list the number of one that comes later, and of two that have a number
//! the later one counts: so the list says all that it said when the file was a copy without gaps, and no version of the
//! state has another form.

use super::{CHUNK_BYTES, SparseStore};
use crate::client::Packed;
use crate::state::{StateReader, StateWriter};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

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
mod tests {
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
