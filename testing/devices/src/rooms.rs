//! Rooms whose commands go to a driver that takes none: a test plays the driver.

use mqfq_blk::command::CommandFile;
use mqfq_blk::foreign::ForeignMemory;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// `count` rooms of `room_bytes` each, all zeroes.
///
/// # Panics
/// If there is no memory, or no `/dev/zero` or `/dev/null`.
pub fn rooms(count: u16, room_bytes: usize) -> Arc<CommandFile> {
    let zero = File::options().read(true).write(true).open("/dev/zero").expect("there is /dev/zero");
    let length_bytes = usize::from(count) * room_bytes;
    let memory = ForeignMemory::map(zero.as_fd(), 0, length_bytes).expect("there is memory");
    let null = OwnedFd::from(File::open("/dev/null").expect("there is /dev/null"));
    // SAFETY: it takes no commands, so it touches no memory.
    unsafe { CommandFile::new(Arc::new(null), memory, room_bytes) }
}
