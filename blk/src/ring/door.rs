//! A device queue's door to a ring, and the names of its operations there.

use io_uring::{opcode, squeue};
use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;

pub(super) const KIND_DEVICE: u64 = 2;

/// A device queue's door to its worker's ring. Not `Send`: it lives and dies with the worker's thread.
#[derive(Clone)]
pub struct DeviceRing {
    pending: Pending,
    device: u16,
    /// Number of devices that had the index before.
    pub(super) earlier: u8,
}

/// Entries of device queues on their way to a ring. The worker's ring takes them at its next turn; a queue without a
/// worker has a ring of its caller's ([`Pending::take`]).
#[derive(Clone, Default)]
pub struct Pending(pub(super) Rc<RefCell<Pushed>>);

/// Entries that wait to be put on the ring, with their user_data.
#[derive(Default)]
pub(super) struct Pushed {
    pub(super) entries: Vec<squeue::Entry>,
    /// Kernel threads that operations of device queues may occupy for as long as they like.
    pub(super) threads: u32,
    /// `None`: the ring registers no files.
    pub(super) files: Option<Files>,
}

/// Most registered files of a ring; 8 to 16 bytes of the kernel each. A file more is named by its descriptor.
const FILES_MAX: u32 = 4096;

/// The table of a ring's registered files: an entry that names one by its place spares the kernel a look-up and a
/// reference. The thread of the ring changes it, when a queue gets or loses a file.
pub(super) struct Files {
    ring: RawFd,
    /// `None`: no file has come yet.
    free: Option<Vec<u32>>,
}

impl Files {
    /// The table of this ring, which lives as long as the table.
    pub(super) const fn new(ring: RawFd) -> Files {
        Files { ring, free: None }
    }

    /// The kernel may have a table of this ring.
    pub(super) const fn is_there(&self) -> bool {
        self.free.is_some()
    }

    /// Places without a file: as many as the kernel allows a process that may open so many.
    fn make(&self) -> Vec<u32> {
        let lengths = std::iter::successors(Some(FILES_MAX), |length| (*length > 1).then_some(length / 2));
        let none = [-1; FILES_MAX as usize];
        let is_taken = |length: &u32| {
            // SAFETY: the kernel reads that many descriptors of the array and keeps no pointer to it.
            unsafe { self.register(IORING_REGISTER_FILES, none.as_ptr().cast(), *length) }
        };
        let length = lengths.into_iter().find(is_taken).unwrap_or(0);
        (0..length).rev().collect()
    }

    fn put(&mut self, file: RawFd) -> Option<u32> {
        if self.free.is_none() {
            self.free = Some(self.make());
        }
        let place = self.free.as_mut()?.pop()?;
        if self.set(place, file) {
            return Some(place);
        }
        self.free.as_mut()?.push(place);
        None
    }

    fn take(&mut self, place: u32) {
        // It fails only for a place that has no file.
        self.set(place, -1);
        self.free.iter_mut().for_each(|free| free.push(place));
    }

    fn set(&self, place: u32, file: RawFd) -> bool {
        let update = Update { offset: place, reserved: 0, files: (&raw const file).addr() as u64 };
        // SAFETY: the kernel reads the structure and the descriptor that it points to, and keeps no pointer to them.
        unsafe { self.register(IORING_REGISTER_FILES_UPDATE, (&raw const update).cast(), 1) }
    }

    /// # Safety
    /// `argument` points to what the operation reads.
    unsafe fn register(&self, operation: u32, argument: *const u8, count: u32) -> bool {
        // SAFETY: the ring is open, and the caller vouches for the rest.
        unsafe { libc::syscall(libc::SYS_io_uring_register, self.ring, operation, argument, count) >= 0 }
    }
}

/// Operations of io_uring_register(2). The library's calls need the ring itself, which is busy with a worker's turn.
/// Source: linux/io_uring.h, `io_uring_register_op`.
const IORING_REGISTER_FILES: u32 = 2;
const IORING_REGISTER_FILES_UPDATE: u32 = 6;

/// Files of a range of places. Source: linux/io_uring.h, `io_uring_files_update`.
#[repr(C)]
struct Update {
    offset: u32,
    reserved: u32,
    /// Address of the descriptors.
    files: u64,
}

impl Pending {
    /// The door for a queue of the device with this index.
    pub fn door(&self, device: u16) -> DeviceRing {
        DeviceRing { pending: self.clone(), device, earlier: 0 }
    }

    /// Takes the entries that queues have pushed since the last call, in their order, for a ring of the caller's. The
    /// queue waits for the end of each: [`crate::device::DeviceQueue::ring_event`] with the user of
    /// [`device_and_user`]. Memory and descriptors of an entry stay valid until then.
    pub fn take(&self) -> Vec<squeue::Entry> {
        std::mem::take(&mut self.0.borrow_mut().entries)
    }

    fn push(&self, entry: squeue::Entry) {
        self.0.borrow_mut().entries.push(entry);
    }
}

impl DeviceRing {
    /// Registers a file with the ring, which keeps it open until [`DeviceRing::unregister`]: its place, for entries
    /// with the flag FIXED_FILE. `None`: entries name its descriptor.
    pub(crate) fn register(&self, file: BorrowedFd<'_>) -> Option<u32> {
        self.pending.0.borrow_mut().files.as_mut()?.put(file.as_raw_fd())
    }

    /// The file in this place is closed here. No entry names it any more.
    pub(crate) fn unregister(&self, place: u32) {
        self.pending.0.borrow_mut().files.iter_mut().for_each(|files| files.take(place));
    }

    /// Asks the kernel to end an operation that was put on the ring as `user`. Its own end comes as usual; that of the
    /// request to end it comes as `asks`.
    pub fn cancel(&self, user: u32, asks: u32) {
        let entry = opcode::AsyncCancel::new(self.user_data(user)).build();
        self.pending.push(entry.user_data(self.user_data(asks)));
    }

    /// Up to `threads` operations of the queue may each occupy a kernel thread for as long as they like. The kernel
    /// makes only four threads per core for a ring's flushes, holes and zeroes, so it is told to make that many more:
    /// otherwise operations of one device would hold up those of another.
    pub(crate) fn occupy(&self, threads: u32) {
        self.pending.0.borrow_mut().threads += threads;
    }

    /// Undoes [`DeviceRing::occupy`].
    pub(crate) fn vacate(&self, threads: u32) {
        self.pending.0.borrow_mut().threads -= threads;
    }

    /// Puts an operation on the ring. Its end comes by [`crate::device::DeviceQueue::ring_event`] with `user`.
    ///
    /// # Safety
    /// Every pointer and descriptor in `entry` must stay valid until that call. (The entry's own user_data is
    /// replaced.)
    pub unsafe fn push(&self, entry: squeue::Entry, user: u32) {
        self.pending.push(entry.user_data(self.user_data(user)));
    }

    fn user_data(&self, user: u32) -> u64 {
        KIND_DEVICE << 56 | u64::from(self.earlier) << 48 | u64::from(self.device) << 32 | u64::from(user)
    }
}

/// The device index and the `user` in the user_data of a device's operation.
pub fn device_and_user(user_data: u64) -> (u16, u32) {
    ((user_data >> 32) as u16, user_data as u32)
}
