//! A device queue's door to a ring, and the names of its operations there.

use io_uring::{opcode, squeue};
use std::cell::RefCell;
use std::rc::Rc;

pub(super) const KIND_DEVICE: u64 = 2;

/// A device queue's door to its worker's ring. Not `Send`: it lives and dies with the worker's thread.
#[derive(Clone)]
pub struct DeviceRing {
    pending: Pending,
    device: u16,
    /// Number of devices that had the index before.
    pub(super) earlier: u8,
    pub(super) registered: Option<u32>,
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
}

impl Pending {
    /// The door for a queue of the device with this index.
    pub fn door(&self, device: u16) -> DeviceRing {
        DeviceRing { pending: self.clone(), device, earlier: 0, registered: None }
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
    /// Where the ring has the device's [`crate::device::Device::ring_file`], for entries with the flag FIXED_FILE.
    pub(crate) fn registered(&self) -> Option<u32> {
        self.registered
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
