//! Things that two processes of an upgrade share besides their socket: a file in memory, and a clock.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// A file without a name that has these bytes.
pub(super) fn memory_file(bytes: &[u8]) -> io::Result<File> {
    // SAFETY: the name is a C string, and nothing else is read.
    let file = unsafe { libc::memfd_create(c"mqfq-state".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours alone.
    let mut file: File = unsafe { OwnedFd::from_raw_fd(file) }.into();
    io::Write::write_all(&mut file, bytes)?;
    Ok(file)
}

/// Reads all of such a file.
pub(super) fn read_memory_file(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The position is shared with its writer.
    io::Seek::rewind(file)?;
    io::Read::read_to_end(file, &mut bytes)?;
    Ok(bytes)
}

/// Nanoseconds of a clock that all processes share.
pub(super) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is there to be written. It fails only for a clock that there is not.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
