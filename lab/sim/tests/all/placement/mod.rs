//! Where memory lies: an allocator that puts each allocation elsewhere within its cache line, in an order that can be
//! chosen, and mostly so that the next one begins in the line in which it ends.
//!
//! A system's allocator gives the same places to the same requests for as long as nothing else differs, so a simulation
//! that depends on them can give the same bytes many times, and others on another machine. Under this allocator it does
//! not.
//!
//! Allocations that begin a line come from pages of their own, which are never used again. The simulator tells each
//! line of words that it sees, and a line outside those pages ends the test: its neighbours would decide a figure.

use mqfq_sim::coherence::LINE_SEEN;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Alignment that an allocator gives to all allocations that do not ask for more, bytes.
const ALIGNMENT_BYTES: usize = 16;
/// The farthest that an allocation begins behind where the system's does.
const SHIFT_MAX_BYTES: usize = 2 * ALIGNMENT_BYTES;

/// Allocations so far, and with that where the next one lies.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Bytes of a page.
const PAGE_BYTES: usize = 4096;
/// Address space for allocations that begin a line, bytes: more than any test asks for in its life.
const LINES_BYTES: usize = 1 << 42;

/// From now on allocations lie as they do in the order of this number, and a word on a shared line ends the test.
pub fn choose(order: u64) {
    LINE_SEEN.get_or_init(|| {
        |address| {
            let place = address.wrapping_sub(lines().addr());
            assert!(
                place < LINES_BYTES,
                "a word at {address:#x} shares its line with what the allocator puts there: pad it"
            );
        }
    });
    // Relaxed: any place will do for what another thread allocates meanwhile.
    NEXT.store(order << 32, Relaxed);
}

/// Bytes from where the system's next allocation begins to where ours does: 16 or 32.
fn shift_bytes() -> usize {
    // Relaxed: a counter. 2^64 over the golden ratio spreads it; the upper bits are the good ones.
    let spread = NEXT.fetch_add(1, Relaxed).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (1 + (spread >> 63) as usize) * ALIGNMENT_BYTES
}

/// Start of the address space for allocations that begin a line.
fn lines() -> *mut u8 {
    static LINES: OnceLock<usize> = OnceLock::new();
    let start = LINES.get_or_init(|| {
        // SAFETY: a mapping of its own, at whatever address is free.
        let mapped = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(ptr::null_mut(), LINES_BYTES, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
        mapped.expect("address space").expose_provenance()
    });
    ptr::with_exposed_provenance_mut(*start)
}

/// Pages that nothing else has had, for an allocation that begins a line; null when there are no more.
fn own_pages(layout: Layout) -> *mut u8 {
    static USED_BYTES: AtomicUsize = AtomicUsize::new(0);
    assert!(layout.align() <= PAGE_BYTES, "an allocation aligned to {} bytes", layout.align());
    // Relaxed: a counter; no memory is handed on by it.
    let at = USED_BYTES.fetch_add(layout.size().next_multiple_of(PAGE_BYTES), Relaxed);
    if at + layout.size() > LINES_BYTES { ptr::null_mut() } else { lines().wrapping_add(at) }
}

/// The system's allocator, with each allocation a little behind where the system put it.
struct Shifting;

// SAFETY: an allocation of at most 16 bytes alignment lies `shift_bytes`, a multiple of 16, behind the start of a
// system's allocation that is larger by as much as that can be, and the 8 bytes before it, which nothing else uses, say
// how far behind; so `dealloc` gets back to that start, with the same layout. One that begins a line has whole pages of
// its own, aligned to 4096. All others are the system's.
unsafe impl GlobalAlloc for Shifting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() >= LINE_BYTES {
            return own_pages(layout);
        }
        let Some(outer) = outer(layout) else {
            // SAFETY: our caller's promises are passed on.
            return unsafe { System.alloc(layout) };
        };
        // SAFETY: its size is not 0.
        let start = unsafe { System.alloc(outer) };
        if start.is_null() {
            return start;
        }
        let shift_bytes = shift_bytes();
        // SAFETY: the shift is 16 or 32 bytes, and the allocation 32 bytes larger than what was asked for; 8 before a
        // multiple of 16 is aligned.
        unsafe {
            let place = start.add(shift_bytes);
            place.sub(size_of::<usize>()).cast::<usize>().write(shift_bytes);
            place
        }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if layout.align() >= LINE_BYTES {
            // SAFETY: the pages are this allocation's alone, and it ends. Their contents may go, or stay.
            let _ = unsafe { madvise(place.cast(), layout.size().next_multiple_of(PAGE_BYTES), Advice::LinuxDontNeed) };
            return;
        }
        match outer(layout) {
            // SAFETY: our caller's promises are passed on.
            None => unsafe { System.dealloc(place, layout) },
            // SAFETY: `alloc` has written the shift before the place and allocated the start with this layout.
            Some(outer) => unsafe {
                let shift_bytes = place.sub(size_of::<usize>()).cast::<usize>().read();
                System.dealloc(place.sub(shift_bytes), outer);
            },
        }
    }
}

/// The system's allocation that one lies in if it may lie anywhere within a line.
fn outer(layout: Layout) -> Option<Layout> {
    let may_shift = layout.align() <= ALIGNMENT_BYTES;
    may_shift.then(|| Layout::from_size_align(layout.size() + SHIFT_MAX_BYTES, ALIGNMENT_BYTES).ok())?
}

#[global_allocator]
static ALLOCATOR: Shifting = Shifting;
