//! How does a payload travel that never comes to this process?
//!
//! A driver (ublk with UBLK_F_AUTO_BUF_REG) puts the pages of a request in a place of the ring's table of registered
//! buffers before it hands the request over, and takes them out when the request is ended. Operations on that ring name
//! the place (IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED), so the kernel moves the bytes between the pages and a file.
//! Here there is a buffer without an address: it names the place, and how far into the pages it begins.
//! Source: Documentation/block/ublk.rst, "Zero copy"; io_uring_enter(2).
//!
//! ```text
//!   Pages     places  first .. first + count, of no other owner in any ring of this process
//!   Buffer    place 17, from byte 0, 8192 bytes  ──cut──▶  place 17, from byte 4096, 4096 bytes
//! ```
//!
//! # Protection
//! P1. A place that is taken is taken in the rings of all workers. An operation that is put on another worker's ring
//!     than the request's finds nothing there (EFAULT): never another request's pages.
//! P2. A place has one request at a time: the driver puts its pages there before the server hears of it, and takes them
//!     out when the server ends it, which is after the last operation on them has ended.
//! P3. The kernel checks each operation against the length and the direction of the request whose pages are there.
//! P4. No code reaches the bytes through the address of such a buffer: no process can have that address, and the buffer
//!     has no room. A device says that it can do without (`DeviceInfo::pages_align_bytes`).
//! P5. Places are given back when no command or buffer of them is left, and never if a request may still be there.
//!
//! Requests with such buffers are cut into parts like any others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Places of a ring's table, all of them empty until a driver fills one: 8 bytes of the kernel's memory each.
pub const PLACES: u16 = 8192;

/// Where the address of each such buffer begins: not a canonical address on x86-64 and no user's on others.
const NOWHERE: usize = 1 << (usize::BITS - 2);

/// A ring has no table.
static IS_MISSING: AtomicBool = AtomicBool::new(false);

/// True for a place that is taken. Looked at when devices come and go.
static TAKEN: Mutex<[bool; PLACES as usize]> = Mutex::new([false; PLACES as usize]);

/// Notes that a ring of this process has no table: no places are given out from now on.
#[cfg(feature = "uring")]
pub(crate) fn note_missing() {
    // Relaxed: rings are made before front ends are started, which happens by messages.
    IS_MISSING.store(true, Ordering::Relaxed);
}

/// Places in the tables of all rings, one behind the other; given back with the last buffer of them.
#[derive(Debug)]
pub struct Pages {
    first: u16,
    count: u16,
    stays: AtomicBool,
}

impl Pages {
    /// So many places among the first `within`, at most [`PLACES`]. `None`: there are not so many in a row, or a ring
    /// has no table.
    ///
    /// For threads that may wait.
    pub fn take(count: u16, within: u16) -> Option<Arc<Pages>> {
        // Relaxed: see `note_missing`.
        if count == 0 || IS_MISSING.load(Ordering::Relaxed) {
            return None;
        }
        // It is whole after each statement.
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let first =
            taken[..within.min(PLACES).into()].windows(count.into()).position(|places| !places.contains(&true))?;
        taken[first..first + usize::from(count)].fill(true);
        // Below PLACES.
        Some(Arc::new(Pages { first: first as u16, count, stays: AtomicBool::new(false) }))
    }

    /// Number of places.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// The number of the place `at`, for the driver.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn number(&self, at: u16) -> u16 {
        assert!(at < self.count, "place {at} of {}", self.count);
        self.first + at
    }

    /// A request may be at one of the places for as long as its ring lives: none is ever given back.
    pub fn keep(&self) {
        // Relaxed: the thread that drops the last of them has it from here.
        self.stays.store(true, Ordering::Relaxed);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // Relaxed: as in `keep`.
        if !self.stays.load(Ordering::Relaxed) {
            let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
            taken[self.first.into()..usize::from(self.first) + usize::from(self.count)].fill(false);
        }
    }
}

/// Place of a buffer's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagesAt {
    /// The place in the ring's table.
    pub place: u16,
    /// The buffer's first byte, in the pages of the request.
    pub at_bytes: usize,
}

/// The address of a buffer whose pages are elsewhere, from its `at_bytes` on.
pub(crate) fn nowhere(at_bytes: usize) -> *mut u8 {
    std::ptr::without_provenance_mut(NOWHERE + at_bytes)
}

/// Distance of an address made by [`nowhere`] from the begin of the pages, bytes.
pub(crate) fn at_bytes(address: *const u8) -> usize {
    address.addr() - NOWHERE
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use crate::buffer::{Buffer, Cut};

    #[test]
    fn a_place_is_one_devices_alone_until_its_last_buffer_is_gone() {
        let (first, second) = (Pages::take(3, PLACES).unwrap(), Pages::take(5, PLACES).unwrap());
        let numbers = |pages: &Pages| (0..pages.count()).map(|at| pages.number(at)).collect::<Vec<_>>();
        assert!(numbers(&first).iter().all(|number| !numbers(&second).contains(number)));
        let of_first = numbers(&first);
        let buffer = Buffer::of_pages(&first, 1, 4096);
        drop(first);
        let third = Pages::take(3, PLACES).unwrap();
        assert!(of_first.iter().all(|number| !numbers(&third).contains(number)), "a buffer of it is left");
        drop(buffer);
        second.keep();
        let of_second = numbers(&second);
        drop(second);
        let later: Vec<Arc<Pages>> = (0..8).map(|_| Pages::take(3, PLACES).unwrap()).collect();
        assert!(later.iter().all(|pages| numbers(pages).iter().all(|number| !of_second.contains(number))));
        assert!(Pages::take(0, PLACES).is_none() && Pages::take(PLACES, PLACES).is_none());
        assert!(Pages::take(PLACES / 2, PLACES / 2).is_none() && Pages::take(PLACES / 2, PLACES).is_some());
    }

    #[test]
    fn parts_of_pages_are_at_one_place_and_have_no_bytes_here() {
        let pages = Pages::take(2, PLACES).unwrap();
        let mut buffer = Buffer::of_pages(&pages, 1, 12288);
        let place = pages.number(1);
        assert_eq!(buffer.pages(), Some(PagesAt { place, at_bytes: 0 }));
        assert_eq!((buffer.capacity_bytes(), buffer.is_foreign()), (12288, true));
        let room = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buffer.room(1).len()));
        assert!(room.is_err(), "its bytes are not here");
        let mut cut = Cut::new(buffer, Arc::default());
        let mut parts = [4096, 8192].map(|length_bytes| cut.part(length_bytes));
        assert_eq!(parts[0].pages(), Some(PagesAt { place, at_bytes: 0 }));
        assert_eq!(parts[1].pages(), Some(PagesAt { place, at_bytes: 4096 }));
        let room = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| parts[1].room(1).len()));
        assert!(room.is_err(), "nor those of a part");
        drop(parts);
        assert_eq!(cut.mend().unwrap().0.pages(), Some(PagesAt { place, at_bytes: 0 }));
        assert_eq!(Buffer::new(1).pages(), None);
        assert!(std::panic::catch_unwind(|| pages.number(2)).is_err(), "there is no third place");
    }
}
