//! Payload memory: owned, page-aligned, recycled per thread.
//!
//! A thread keeps at most [`KEPT_BYTES_MAX`] for its next buffers.
//!
//! A buffer travels: socket to client to device and back, or device to client to socket. It is owned at each step, so
//! memory that the kernel works on cannot be freed under it. Recycled memory still holds a former tenant's bytes:
//! whoever hands a buffer to a client must have written every byte of the length it states (the conformance suite
//! checks each device for that).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

/// Alignment of every buffer and smallest class, bytes: the largest logical block of drives in the field, so O_DIRECT
/// takes any buffer.
pub const ALIGNMENT_BYTES: usize = 4096;

/// Classes are powers of two from 4 KiB (class 0) to 2 MiB; larger buffers are not recycled.
const CLASSES: usize = 10;

/// Most memory that a thread keeps in all classes together, bytes: 128 pieces of 128 KiB, or 4096 requests of 4 KiB.
pub const KEPT_BYTES_MAX: usize = 16 << 20;

/// Owned, page-aligned bytes.
pub struct Buffer {
    start: NonNull<u8>,
    capacity_bytes: usize,
}

// SAFETY: a Buffer owns its bytes alone; nothing about them is tied to the thread that allocated them.
unsafe impl Send for Buffer {}

/// What a thread keeps for its next buffers, by class.
struct Kept {
    classes: [Vec<Buffer>; CLASSES],
    bytes: usize,
}

impl Kept {
    fn take(&mut self, class: usize) -> Option<Buffer> {
        let buffer = self.classes[class].pop()?;
        self.bytes -= buffer.capacity_bytes;
        Some(buffer)
    }

    /// Keeps it, or hands it back if there is too much already.
    fn keep(&mut self, class: usize, buffer: Buffer) -> Option<Buffer> {
        if self.bytes + buffer.capacity_bytes > KEPT_BYTES_MAX {
            return Some(buffer);
        }
        self.bytes += buffer.capacity_bytes;
        self.classes[class].push(buffer);
        None
    }
}

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { classes: [const { Vec::new() }; CLASSES], bytes: 0 }) };
}

impl Buffer {
    /// A buffer of at least `length_bytes` (rounded up to a power of two, at least 4 KiB). Its bytes are initialised
    /// but arbitrary.
    pub fn new(length_bytes: usize) -> Buffer {
        let capacity_bytes = Self::capacity_for(length_bytes);
        let class = class_of(capacity_bytes);
        let kept =
            (class < CLASSES).then(|| KEPT.try_with(|kept| kept.borrow_mut().take(class)).ok().flatten()).flatten();
        kept.unwrap_or_else(|| Self::allocate(capacity_bytes))
    }

    /// Memory that a buffer for `length_bytes` takes, bytes.
    pub fn memory_bytes(length_bytes: u32) -> u64 {
        Self::capacity_for(length_bytes as usize) as u64
    }

    fn capacity_for(length_bytes: usize) -> usize {
        length_bytes.max(ALIGNMENT_BYTES).next_power_of_two()
    }

    fn allocate(capacity_bytes: usize) -> Buffer {
        let layout = layout(capacity_bytes);
        // SAFETY: the layout's size is at least 4096, not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Buffer { start, capacity_bytes }
    }

    /// All of its bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` is valid for `capacity_bytes`, initialised at allocation, and owned by self.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.capacity_bytes) }
    }

    /// All of its bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in as_slice; &mut self makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity_bytes) }
    }

    /// First byte, aligned to [`ALIGNMENT_BYTES`]; stays where it is when the buffer is moved.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Room, bytes.
    pub fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.capacity_bytes)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let class = class_of(self.capacity_bytes);
        let own = Buffer { start: self.start, capacity_bytes: self.capacity_bytes };
        // Whoever keeps it or does not: this drop is not run again for it.
        let mut own = Some(std::mem::ManuallyDrop::new(own));
        if class < CLASSES {
            let kept = KEPT.try_with(|kept| {
                let Ok(mut kept) = kept.try_borrow_mut() else { return };
                let Some(buffer) = own.take() else { return };
                own = kept.keep(class, std::mem::ManuallyDrop::into_inner(buffer)).map(std::mem::ManuallyDrop::new);
            });
            if kept.is_ok() && own.is_none() {
                return;
            }
        }
        // SAFETY: allocated by `allocate` with this very layout; not kept, so this is its end.
        unsafe { dealloc(self.start.as_ptr(), layout(self.capacity_bytes)) }
    }
}

fn class_of(capacity_bytes: usize) -> usize {
    (capacity_bytes / ALIGNMENT_BYTES).trailing_zeros() as usize
}

fn layout(capacity_bytes: usize) -> Layout {
    Layout::from_size_align(capacity_bytes, ALIGNMENT_BYTES).expect("a power of two of at least 4096 below isize::MAX")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_large_enough() {
        for length_bytes in [0, 1, 4096, 4097, 1 << 20, (8 << 20) + 1] {
            let mut buffer = Buffer::new(length_bytes);
            assert!(buffer.capacity_bytes() >= length_bytes);
            assert_eq!(buffer.as_mut_ptr() as usize % ALIGNMENT_BYTES, 0);
        }
    }

    #[test]
    fn a_dropped_buffer_is_used_again() {
        let mut first = Buffer::new(5000);
        let address = first.as_mut_ptr();
        drop(first);
        assert_eq!(Buffer::new(8192).as_mut_ptr(), address);
    }

    #[test]
    fn a_thread_keeps_no_more_than_its_share() {
        drop((0..20).map(|_| Buffer::new(2 << 20)).collect::<Vec<_>>());
        let kept = KEPT.with(|kept| kept.borrow().classes[class_of(2 << 20)].len());
        assert_eq!(kept, 8, "16 MiB / 2 MiB");
        drop(Buffer::new(4096));
        let small = KEPT.with(|kept| (kept.borrow().classes[0].len(), kept.borrow().bytes));
        assert_eq!(small, (0, 16 << 20), "all classes share what a thread keeps");
        drop(Buffer::new(2 << 20));
        assert_eq!(KEPT.with(|kept| kept.borrow().bytes), 16 << 20);
    }
}
