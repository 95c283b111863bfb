//! Which memory does a queue share with the driver?
//!
//! Descriptors, which the driver writes and this process may only read, and rooms for the bytes of its requests: the
//! driver copies a write's bytes there before it hands the request over, and a read's bytes from there when it is
//! ended. So a request's bytes are copied once, by the driver, and go to the device from where they lie.
//!
//! A device with UBLK_F_AUTO_BUF_REG has no rooms: a request's pages stay in the kernel, at a place of the ring's
//! table (`mqfq_blk::pages`).
//!
//! Why not UBLK_F_USER_COPY: there the server moves the bytes itself, by a pread or pwrite of its own for each
//! request, so the one copy is the same and an operation is added; and Linux 6.1 does not have it.
//!
//! Rooms are mapped once and are given no pages until they are used: a queue of depth 128 with rooms of 128 KiB takes
//! 16 MiB of addresses, and as much memory as was ever used at once.

use crate::abi::{DEPTH_MAX, DESCRIPTOR_BYTES, Descriptor, DevInfo};
use mqfq_blk::command::CommandFile;
use mqfq_blk::foreign::ForeignMemory;
use mqfq_blk::pages::Pages;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// A page, bytes: what the driver rounds a queue's descriptors up to.
const PAGE_BYTES: usize = 4096;

/// A mapping; unmapped when dropped.
struct Mapping {
    start: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: an address range, which is unmapped once, by whichever thread drops it; it gives out no reference.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(length_bytes: usize, access: i32, flags: i32, file: i32, offset: i64) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address that the kernel chooses; no memory of ours is involved.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length_bytes, access, flags, file, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Mapping { start, length_bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; every user of the mapping holds it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length_bytes) };
    }
}

/// The descriptors of one queue's requests, by tag. The driver writes one before it ends the fetch of its tag.
pub struct Descriptors {
    mapping: Mapping,
    depth: u16,
}

impl Descriptors {
    /// Maps those of queue `queue` of the device whose `/dev/ublkcN` is `file`.
    ///
    /// # Errors
    /// The driver's: it has no such queue, or of another depth.
    pub fn map(file: &OwnedFd, queue: u16, depth: u16) -> io::Result<Descriptors> {
        let length_bytes = (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(PAGE_BYTES);
        let apart = (usize::from(DEPTH_MAX) * DESCRIPTOR_BYTES).next_multiple_of(PAGE_BYTES);
        let offset = i64::try_from(apart * usize::from(queue)).expect("a queue's number is small");
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let mapping = Mapping::new(length_bytes, libc::PROT_READ, flags, file.as_raw_fd(), offset)?;
        Ok(Descriptors { mapping, depth })
    }

    /// A copy of the descriptor of a tag: read once, and the driver's to write again only after the copy was used.
    ///
    /// # Panics
    /// If the queue has no such tag.
    pub fn read(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth, "tag {tag} of a queue of depth {}", self.depth);
        let mut bytes = [0; DESCRIPTOR_BYTES];
        let words = self.mapping.start.cast::<u64>();
        for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
            let at = usize::from(tag) * (DESCRIPTOR_BYTES / 8) + at;
            // SAFETY: inside the mapping, which is as long as `depth` descriptors and aligned to a page. The kernel
            // writes it at any time: a volatile read of a word is whatever it held.
            let value = unsafe { words.add(at).read_volatile() };
            word.copy_from_slice(&value.to_ne_bytes());
        }
        Descriptor::from_bytes(&bytes)
    }
}

/// Rooms of `room_bytes` for `depth` requests, and the file that commands which name them go to: the `/dev/ublkcN` of a
/// device that was added with rooms of `room_bytes` or less.
///
/// # Errors
/// No addresses are left; EINVAL for rooms that are no whole pages.
///
/// # Safety
/// `file` is `/dev/ublkcN`, and `room_bytes` at least what its [`crate::abi::DevInfo::room_bytes`] says.
unsafe fn rooms(file: Arc<OwnedFd>, depth: u16, room_bytes: usize) -> io::Result<Arc<CommandFile>> {
    if !room_bytes.is_multiple_of(PAGE_BYTES) || room_bytes == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let length_bytes = usize::from(depth) * room_bytes;
    let mapping = Mapping::new(length_bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)?;
    let start = mapping.start;
    // SAFETY: mapped just now, readable and writable until the guard goes; the mapping is new, so no reference to it
    // exists.
    let memory = unsafe { ForeignMemory::new(start, length_bytes, Arc::new(mapping)) };
    // SAFETY: the driver copies a request's bytes, of which there are at most as many as its device was added with,
    // from and to the address of the tag's last command, and none once it has ended that: `ublk_map_io`,
    // `ublk_unmap_io`.
    Ok(unsafe { CommandFile::new(file, memory, room_bytes) })
}

/// Memory of one queue: descriptors to fetch from, and rooms or places.
pub struct QueueMemory {
    /// Descriptors of its requests.
    pub descriptors: Descriptors,
    /// For the requests' bytes, by tag: rooms, or places.
    pub file: Arc<CommandFile>,
}

/// The memory of queue `queue` of a device that was added, or whose recovery was begun, with `file` its open
/// `/dev/ublkcN`. `pages`: for all its queues, if its payloads stay in the kernel.
///
/// # Errors
/// As [`Descriptors::map`]; no addresses are left.
///
/// # Safety
/// `info` is what the driver says of the device of `file`.
unsafe fn open(file: &Arc<OwnedFd>, info: &DevInfo, queue: u16, pages: Option<&Arc<Pages>>) -> io::Result<QueueMemory> {
    let descriptors = Descriptors::map(file, queue, info.depth)?;
    let room_bytes = info.room_bytes as usize;
    let file = match pages {
        Some(pages) => CommandFile::of_pages(file.clone(), pages.clone(), queue * info.depth, room_bytes),
        // SAFETY: the caller promises it.
        None => unsafe { rooms(file.clone(), info.depth, room_bytes) }?,
    };
    Ok(QueueMemory { descriptors, file })
}

/// An open device: its queues' memory is made here, so that file and size of the rooms belong together. A device whose
/// payloads stay in the kernel ([`DevInfo::has_pages`]) needs `pages`, a place for each of its requests; one whose do
/// not takes none of them.
///
/// # Errors
/// Another process has it open; no memory; EINVAL: it needs pages, and these are fewer than it has requests.
pub fn open_queues(
    control: &mut crate::control::Control,
    number: u32,
    pages: Option<&Arc<Pages>>,
) -> io::Result<Vec<QueueMemory>> {
    let file = crate::control::open_device(control, number)?;
    // Asked of the driver now, when no other process can serve the device.
    let info = control.info(number)?;
    let pages = pages.filter(|_| info.has_pages());
    let places = u32::from(info.queues) * u32::from(info.depth);
    if info.has_pages() && pages.is_none_or(|pages| u32::from(pages.count()) < places) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: file and info are of the device of this number, of which there is one as long as its file is open.
    (0..info.queues).map(|queue| unsafe { open(&file, &info, queue, pages) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_lie_beside_each_other_and_are_zeroes_first() {
        let null = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        // SAFETY: it takes no commands, so it touches no memory.
        let rooms_of = |depth, room_bytes| unsafe { rooms(null.clone(), depth, room_bytes) };
        let rooms = rooms_of(4, 8192).unwrap();
        rooms.buffer(3, 8192).unwrap().room(8192).copy_from(&[7; 8192]);
        let mut bytes = [1; 8192];
        rooms.buffer(2, bytes.len()).unwrap().room(bytes.len()).copy_to(&mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert!(rooms.buffer(4, 1).is_none() && rooms.buffer(0, 8193).is_none());
        assert!(rooms_of(1, 100).is_err() && rooms_of(1, 0).is_err());
    }
}
