//! A ring that serves one device queue by hand, without a worker: for tests and for measuring a file device alone.

use crate::device::DeviceQueue;
use crate::ring::{DeviceRing, Pending, device_and_user};
use io_uring::IoUring;
use io_uring::squeue;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

/// Entries of the ring; more are held back until there is room.
const ENTRIES: u32 = 128;

/// See the file's text.
pub struct SoloRing {
    uring: IoUring,
    pending: Rc<RefCell<Pending>>,
    waiting: VecDeque<squeue::Entry>,
    in_kernel: usize,
}

impl SoloRing {
    /// An idle ring.
    ///
    /// # Errors
    /// The kernel's, most often ENOSYS or EPERM where io_uring is missing or forbidden.
    pub fn new() -> io::Result<SoloRing> {
        Ok(SoloRing { uring: IoUring::new(ENTRIES)?, pending: Rc::default(), waiting: VecDeque::new(), in_kernel: 0 })
    }

    /// The door to give to the queue.
    pub fn device_ring(&self) -> DeviceRing {
        DeviceRing::new(self.pending.clone(), 0)
    }

    /// Entries that the queue pushed and that have not ended.
    pub fn in_flight(&self) -> usize {
        self.pending.borrow().entries.len() + self.waiting.len() + self.in_kernel
    }

    /// Submits what the queue pushed, waits until at least one entry ended if any is in flight, and reports those that
    /// did. Returns how many.
    ///
    /// # Errors
    /// The kernel's, other than an interrupted or postponed wait.
    pub fn turn(&mut self, queue: &mut dyn DeviceQueue) -> io::Result<usize> {
        self.gather();
        while self.in_kernel < ENTRIES as usize
            && let Some(entry) = self.waiting.pop_front()
        {
            // SAFETY: whoever pushed the entry through DeviceRing::push vouches for its pointers until ring_event.
            let pushed = unsafe { self.uring.submission().push(&entry) };
            pushed.map_err(io::Error::other)?;
            self.in_kernel += 1;
        }
        if self.in_kernel == 0 {
            return Ok(0);
        }
        match self.uring.submit_and_wait(1) {
            Err(error) if ![libc::EINTR, libc::EAGAIN, libc::EBUSY].contains(&error.raw_os_error().unwrap_or(0)) => {
                return Err(error);
            }
            _ => {}
        }
        let ended: Vec<(u64, i32)> = self.uring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        self.in_kernel -= ended.len();
        for (user_data, result) in &ended {
            queue.ring_event(device_and_user(*user_data).1, *result);
        }
        Ok(ended.len())
    }

    /// Moves what the queue pushed to the end of what waits.
    fn gather(&mut self) {
        self.waiting.extend(self.pending.borrow_mut().entries.drain(..));
    }
}
