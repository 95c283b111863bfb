//! How do the bytes of a device in memory get into another process? In a file that has no name (memfd), chunk behind
//! chunk, and a list of their numbers.
//!
//! Each byte is copied twice, once on either side, while clients wait.

use super::{CHUNK_BYTES, SparseStore};
use crate::client::Packed;
use crate::state::{StateReader, StateWriter};
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// A file without a name, whose bytes are memory.
fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a C string, and nothing else is read.
    let file = unsafe { libc::memfd_create(c"mqfq-device".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(file) }.into())
}

impl SparseStore {
    /// See [`crate::device::Device::pack`].
    pub(crate) fn pack(&self, version: u16) -> Result<Packed, String> {
        let failed = |error: io::Error| format!("cannot be copied into memory of another process: {error}");
        let file = memory_file().map_err(failed)?;
        let mut numbers = Vec::new();
        for shard in &self.shards {
            for (number, bytes) in &*shard.lock() {
                file.write_all_at(bytes, numbers.len() as u64 * CHUNK_BYTES).map_err(failed)?;
                numbers.push(*number);
            }
        }
        let mut writer = StateWriter::new(version);
        writer.u64(self.size_bytes);
        writer.u64(numbers.len() as u64);
        numbers.into_iter().for_each(|number| writer.u64(number));
        Ok(Packed { state: writer.into_bytes(), descriptors: vec![file.into()] })
    }

    /// See [`crate::device::Device::unpack`].
    pub(crate) fn unpack(&self, packed: Packed, version: u16) -> Result<(), String> {
        let mut reader = StateReader::new(version, &packed.state);
        let size_bytes = reader.u64()?;
        if size_bytes != self.size_bytes {
            return Err(format!("had {size_bytes} bytes there and has {} here", self.size_bytes));
        }
        let [file] = <[OwnedFd; 1]>::try_from(packed.descriptors).map_err(|_| "came without its bytes")?;
        let file = File::from(file);
        for place in 0..reader.u64()? {
            let number = reader.u64()?;
            if number >= self.size_bytes.div_ceil(CHUNK_BYTES) {
                return Err("has bytes behind its end".to_owned());
            }
            let mut bytes = vec![0; CHUNK_BYTES as usize].into_boxed_slice();
            let at_bytes = place.saturating_mul(CHUNK_BYTES);
            file.read_exact_at(&mut bytes, at_bytes).map_err(|error| format!("came without all its bytes: {error}"))?;
            self.shard(number).lock().insert(number, bytes);
        }
        Ok(reader.end()?)
    }
}

#[cfg(test)]
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
