//! The worker's io_uring.

use std::cell::RefCell;
use std::rc::Rc;

/// A device queue's door to its worker's ring. Not `Send`: it lives and dies with the worker's thread.
#[derive(Clone)]
pub struct DeviceRing {
    inner: Rc<RefCell<Pending>>,
    device: u16,
}

/// Entries that wait to be put on the ring at the worker's next turn.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) entries: Vec<(u16, u32, io_uring::squeue::Entry)>,
}

impl DeviceRing {
    /// Puts an operation on the ring. Its end comes by [`crate::device::DeviceQueue::ring_event`] with `user`.
    ///
    /// # Safety
    /// Every pointer and descriptor in `entry` must stay valid until that call. (The entry's own user_data is replaced.)
    pub unsafe fn push(&self, entry: io_uring::squeue::Entry, user: u32) {
        self.inner.borrow_mut().entries.push((self.device, user, entry));
    }
}
