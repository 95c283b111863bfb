//! Whether a stretch of code takes memory: an allocator that counts.
//!
//! ```
//! # use mqfq_testing::allocations::{Counting, allocations};
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting;
//!
//! let before = allocations();
//! drop(vec![1]);
//! assert_eq!(allocations() - before, 1);
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, and a count beside it. Made the global one by the test that counts.
pub struct Counting;

thread_local! {
    /// Allocations of this thread; the test harness has threads of its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system allocator unchanged; the counter is a plain thread-local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: our caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: our caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Allocations of this thread so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}
