//! How does a client speak to a driver whose requests come as ends of commands (IORING_OP_URING_CMD)?
//!
//! Such a driver (ublk) is given commands on a descriptor, keeps each until it has a request, and ends it then. The
//! request's bytes lie in memory of ours, of which each command names a room:
//!
//! ```text
//!   CommandFile   descriptor, and memory: │ room 0 │ room 1 │ room 2 │ ...
//!   command       16 bytes: 8 of the driver's own, then the address of a room
//! ```
//! Source: io_uring_enter(2), IORING_OP_URING_CMD; the layout of the 16 bytes is that of `struct ublksrv_io_cmd`.
//!
//! Invariant: a room stays mapped until the last command that named one has ended, whoever has gone by then: the ring
//! holds the file with each command.

use crate::buffer::Buffer;
use crate::foreign::ForeignMemory;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// A driver's descriptor, and the memory that it may touch.
#[derive(Debug)]
pub struct CommandFile {
    file: Arc<OwnedFd>,
    memory: Arc<ForeignMemory>,
    room_bytes: usize,
}

impl CommandFile {
    /// Commands to `file` name rooms of `room_bytes` in `memory`.
    ///
    /// # Safety
    /// For a command with the address of a room, the driver touches no memory of this process but that room, and none
    /// after `file` is closed and the last of its commands has ended.
    pub unsafe fn new(file: Arc<OwnedFd>, memory: Arc<ForeignMemory>, room_bytes: usize) -> Arc<CommandFile> {
        Arc::new(CommandFile { file, memory, room_bytes })
    }

    /// The first `length_bytes` of a room, as the payload of a request. `None`: that is not inside, or is nothing.
    pub fn buffer(&self, room: usize, length_bytes: usize) -> Option<Buffer> {
        self.part(room, 0, length_bytes)
    }

    /// `length_bytes` of a room from `at_bytes` on, as [`CommandFile::buffer`].
    pub fn part(&self, room: usize, at_bytes: usize, length_bytes: usize) -> Option<Buffer> {
        let is_inside = at_bytes.checked_add(length_bytes).is_some_and(|end| end <= self.room_bytes);
        let start = room.checked_mul(self.room_bytes).filter(|_| is_inside)?;
        self.memory.buffer(start.checked_add(at_bytes)?, length_bytes)
    }

    /// How large a room is, bytes.
    pub fn room_bytes(&self) -> usize {
        self.room_bytes
    }

    /// Copies the first bytes of a room, for tests and reports. False: they are not inside.
    #[must_use]
    pub fn copy_to(&self, room: usize, bytes: &mut [u8]) -> bool {
        bytes.len() <= self.room_bytes && self.memory.copy_to(room * self.room_bytes, bytes)
    }

    /// Copies `bytes` to the front of a room, for tests. False: they are not inside.
    #[must_use]
    pub fn copy_from(&self, room: usize, bytes: &[u8]) -> bool {
        bytes.len() <= self.room_bytes && self.memory.copy_from(room * self.room_bytes, bytes)
    }

    /// Its number, for the ring.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Where a room lies.
    ///
    /// # Panics
    /// If there is no such room.
    fn address(&self, room: usize) -> u64 {
        let first = self.buffer(room, 1).expect("a command names a room of its file");
        first.as_ptr().addr() as u64
    }
}

/// One command, as [`crate::client::Context::command`] takes it.
#[derive(Clone, Debug)]
pub struct Command {
    /// Where to.
    pub file: Arc<CommandFile>,
    /// What is asked of the driver, in its numbers.
    pub operation: u32,
    /// The driver's own 8 bytes.
    pub head: [u8; 8],
    /// The room whose address follows them.
    pub room: usize,
}

impl Command {
    /// As the driver reads it.
    ///
    /// # Panics
    /// If its file has no such room.
    pub fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.head);
        bytes[8..].copy_from_slice(&self.file.address(self.room).to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_a_room_of_its_file_and_no_other_memory() {
        let (memory, _pages) = crate::foreign::tests::memory(8192);
        let null = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        // SAFETY: no command is given to it.
        let file = unsafe { CommandFile::new(null, memory, 4096) };
        let bytes = |room| Command { file: file.clone(), operation: 0, head: *b"headhead", room }.bytes();
        let address = |room| u64::from_ne_bytes(bytes(room)[8..].try_into().unwrap());
        assert_eq!(&bytes(0)[..8], b"headhead");
        assert_eq!(address(1) - address(0), 4096);
        let third = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bytes(2)));
        assert!(third.is_err(), "there is no third room");
        assert!(file.buffer(1, 4096).is_some() && file.part(0, 512, 3584).is_some());
        assert!(file.buffer(0, 4097).is_none(), "the next room's");
        assert!(file.part(0, 4096, 1).is_none() && file.part(1, usize::MAX, 2).is_none());
        assert!(file.buffer(usize::MAX, 1).is_none());
        assert!(file.copy_from(1, b"abc") && !file.copy_from(2, b"abc"));
        let mut back = [0; 3];
        assert!(file.copy_to(1, &mut back));
        assert_eq!(&back, b"abc");
    }
}
