//! Memory that was freed goes back to the kernel.
//!
//! glibc raises the size of the free top that an arena may keep to 64 MiB as the process frees large blocks, and
//! `malloc_trim` leaves the tops of all arenas but one. A whole config is read on threads with arenas of their own.

/// Largest free top of an arena, bytes; and the smallest block with a mapping of its own, which goes back whole.
/// Buffers of connections and large payloads are such blocks. A worker keeps those of its next requests
/// (`blk/src/edge/buffer.rs`), so it maps one only until it is warm: 140 times in 42,000 requests of 128 KiB at depth
/// 128.
#[cfg(target_env = "gnu")]
const TOP_BYTES_MAX: i32 = 1 << 20;
#[cfg(target_env = "gnu")]
const MAPPED_BYTES_MIN: i32 = 64 << 10;

/// Fixes both bounds. Call it before other threads exist.
pub(crate) fn bound() {
    // SAFETY: mallopt takes two numbers; glibc refuses those that are out of range.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, TOP_BYTES_MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
    }
}

/// Returns free pages between blocks in use. It takes milliseconds and holds the locks of arenas: no worker calls it.
pub(crate) fn give_back() {
    // SAFETY: the call releases only memory that is free.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes of the heap that are in use, of all threads, in tests: does anything stay behind? A test that asks runs alone
/// in a process ([`in_use::alone`]), since others allocate as well.
#[cfg(test)]
pub(crate) mod in_use {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::process::Command;
    use std::sync::atomic::{AtomicI64, Ordering};

    /// The system's allocator, which is asked for the same and counts.
    struct Counting;

    static LIVE: AtomicI64 = AtomicI64::new(0);

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    // SAFETY: everything is what the system's allocator gives and takes, under the caller's own promises.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // Relaxed, all: a sum, which is read when no thread changes it.
            LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
            // SAFETY: as the caller promises.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
            // Relaxed: as above.
            LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
            // SAFETY: as the caller promises: `at` is from `alloc` with this layout.
            unsafe { System.dealloc(at, layout) }
        }
    }

    /// Bytes in use.
    pub fn now() -> i64 {
        // Relaxed: see above.
        LIVE.load(Ordering::Relaxed)
    }

    /// Runs the test of this name, which calls it first, alone in a process of its own: true there. In the other
    /// process, which is told false, it has ended well.
    pub fn alone(test: &str) -> bool {
        const VARIABLE: &str = "MQFQ_TEST_ALONE";
        if std::env::var_os(VARIABLE).is_some() {
            return true;
        }
        let own = std::env::current_exe().expect("a test is a program");
        let output =
            Command::new(own).args(["--exact", test, "--nocapture"]).env(VARIABLE, "1").output().expect("it starts");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        false
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    const PAGE_BYTES: usize = 4096;

    /// Pages of these blocks, by address, that the kernel still has memory for.
    fn resident(pages: &[usize]) -> usize {
        let is_resident = |&&page: &&usize| {
            let mut answer = 0u8;
            // SAFETY: mincore writes one byte for one page, and refuses an address without a mapping.
            unsafe { libc::mincore(page as *mut libc::c_void, PAGE_BYTES, &raw mut answer) == 0 && answer & 1 == 1 }
        };
        pages.iter().filter(is_resident).count()
    }

    #[test]
    fn a_thread_that_has_freed_its_blocks_keeps_no_more_than_a_top() {
        bound();
        let check = || {
            // A block that glibc maps by itself: without the bounds its end would raise them.
            drop(vec![1u8; 24 << 20]);
            let blocks: Vec<Box<[u8; 1000]>> = (0..32 << 10).map(|_| Box::new([1; 1000])).collect();
            let mut pages: Vec<usize> =
                blocks.iter().map(|block| block.as_ptr() as usize & !(PAGE_BYTES - 1)).collect();
            pages.dedup();
            let held = resident(&pages);
            drop(blocks);
            give_back();
            (held, resident(&pages))
        };
        let (held, kept) = std::thread::spawn(check).join().expect("it ends");
        assert!(held > (24 << 20) / PAGE_BYTES, "{held} pages are 32 MB");
        // The top, and pages that blocks of other tests took meanwhile.
        assert!(kept < (2 << 20) / PAGE_BYTES, "{kept} pages of {held} are kept");
    }
}
