//! How does a client speak to a driver whose requests come as ends of commands (IORING_OP_URING_CMD)?
//!
//! Such a driver (ublk) is given commands on a descriptor, keeps each until it has a request, and ends it then. The
//! request's bytes lie in memory of ours, of which each command names a room, or stay in the kernel, at a place of the
//! ring's table that each command names ([`crate::pages`]):
//!
//! ```text
//!   CommandFile   descriptor, and memory: │ room 0 │ room 1 │ room 2 │ ...
//!   command       16 bytes: 8 of the driver's own, then the address of a room, or 0, and beside them the number of a
//!                 place
//! ```
//! Source: io_uring_enter(2), IORING_OP_URING_CMD; the layout of the 16 bytes is that of `struct ublksrv_io_cmd`, that
//! of the place beside them of `struct ublk_auto_buf_reg`.
//!
//! Invariant: a room stays mapped until the last command that named one has ended, even if its client has gone: the
//! ring holds the file with each command.

use crate::buffer::Buffer;
use crate::foreign::ForeignMemory;
use crate::pages::Pages;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// A driver's descriptor, and where the bytes of its requests are.
#[derive(Debug)]
pub struct CommandFile {
    file: Arc<OwnedFd>,
    bytes: Bytes,
    room_bytes: usize,
}

/// Place of the bytes of requests.
#[derive(Debug)]
enum Bytes {
    /// Rooms of this memory, which the driver may touch.
    Here(Arc<ForeignMemory>),
    /// In the kernel: the room of a number is the place `first` + number.
    Kernel { pages: Arc<Pages>, first: u16 },
}

impl CommandFile {
    /// Commands to `file` name rooms of `room_bytes` in `memory`.
    ///
    /// # Safety
    /// For a command with the address of a room, the driver touches no memory of this process but that room, and none
    /// after `file` is closed and the last of its commands has ended.
    pub unsafe fn new(file: Arc<OwnedFd>, memory: Arc<ForeignMemory>, room_bytes: usize) -> Arc<CommandFile> {
        Arc::new(CommandFile { file, bytes: Bytes::Here(memory), room_bytes })
    }

    /// Commands to `file` name the places `first` and on of `pages`, where the driver puts up to `room_bytes` of each
    /// request: it touches no memory of this process.
    pub fn of_pages(file: Arc<OwnedFd>, pages: Arc<Pages>, first: u16, room_bytes: usize) -> Arc<CommandFile> {
        Arc::new(CommandFile { file, bytes: Bytes::Kernel { pages, first }, room_bytes })
    }

    /// The driver may have left a request at one of the places.
    pub fn keep_pages(&self) {
        if let Bytes::Kernel { pages, .. } = &self.bytes {
            pages.keep();
        }
    }

    /// The first `length_bytes` of a room, as the payload of a request. `None`: that is not inside, or is nothing.
    pub fn buffer(&self, room: usize, length_bytes: usize) -> Option<Buffer> {
        self.part(room, 0, length_bytes)
    }

    /// `length_bytes` of a room from `at_bytes` on, as [`CommandFile::buffer`]; of pages only from their front.
    pub fn part(&self, room: usize, at_bytes: usize, length_bytes: usize) -> Option<Buffer> {
        let is_inside = at_bytes.checked_add(length_bytes).is_some_and(|end| end <= self.room_bytes);
        let start = room.checked_mul(self.room_bytes).filter(|_| is_inside)?;
        match &self.bytes {
            Bytes::Here(memory) => memory.buffer(start.checked_add(at_bytes)?, length_bytes),
            Bytes::Kernel { pages, first } => {
                let place = u16::try_from(room).ok()?.checked_add(*first)?;
                (place < pages.count() && at_bytes == 0 && length_bytes > 0)
                    .then(|| Buffer::of_pages(pages, place, length_bytes))
            }
        }
    }

    /// Size of a room, bytes.
    pub fn room_bytes(&self) -> usize {
        self.room_bytes
    }

    /// Number of the descriptor, for the ring.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Where a room lies, 0 for pages; and the number of its place for those.
    ///
    /// # Panics
    /// If there is no such room.
    fn address(&self, room: usize) -> (u64, Option<u16>) {
        match &self.bytes {
            Bytes::Here(memory) => {
                let start = room.checked_mul(self.room_bytes).and_then(|start| memory.at(start, self.room_bytes));
                (start.expect("a command names a room of its file").addr().get() as u64, None)
            }
            Bytes::Kernel { pages, first } => {
                let place = u16::try_from(room).ok().and_then(|room| first.checked_add(room));
                (0, Some(pages.number(place.expect("a command names a place of its file"))))
            }
        }
    }
}

/// One command, as [`crate::ask::Ask::Command`] has it.
#[derive(Clone, Debug)]
pub struct Command {
    /// File that the command goes to.
    pub file: Arc<CommandFile>,
    /// The driver's number of the operation.
    pub operation: u32,
    /// The driver's own 8 bytes.
    pub head: [u8; 8],
    /// The room whose address follows them, or whose place stands beside them.
    pub room: usize,
}

impl Command {
    /// The command's bytes as the driver reads them.
    ///
    /// # Panics
    /// If its file has no such room.
    pub fn bytes(&self) -> [u8; 16] {
        self.parts().0
    }

    /// Bytes of the command, and the number of the place that stands beside them.
    ///
    /// # Panics
    /// As [`Command::bytes`].
    pub fn parts(&self) -> ([u8; 16], Option<u16>) {
        let (address, place) = self.file.address(self.room);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.head);
        bytes[8..].copy_from_slice(&address.to_ne_bytes());
        (bytes, place)
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use crate::pages::PLACES;

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
        assert!(file.buffer(2, 3).is_none(), "there is no third room");
        file.buffer(1, 3).unwrap().room(3).copy_from(b"abc");
        let mut back = [0; 3];
        file.buffer(1, 3).unwrap().room(3).copy_to(&mut back);
        assert_eq!(&back, b"abc");
    }

    #[test]
    fn a_command_for_pages_names_a_place_of_its_own_queue_and_no_address() {
        let pages = Pages::take(8, PLACES).unwrap();
        let null = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        // The second of two queues with four requests each.
        let file = CommandFile::of_pages(null, pages.clone(), 4, 16384);
        let command = |room| Command { file: file.clone(), operation: 0, head: *b"headhead", room };
        assert_eq!(command(1).parts(), (*b"headhead\0\0\0\0\0\0\0\0", Some(pages.number(5))));
        let buffer = file.buffer(3, 16384).unwrap();
        assert_eq!((buffer.pages().unwrap().place, buffer.capacity_bytes()), (pages.number(7), 16384));
        assert!(file.buffer(4, 1).is_none() && file.buffer(usize::from(u16::MAX), 1).is_none(), "there is no fifth");
        assert!(file.buffer(0, 16385).is_none() && file.buffer(0, 0).is_none() && file.part(0, 512, 512).is_none());
    }
}
