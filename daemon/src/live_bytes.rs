//! Bytes of the heap that are in use, in tests: does anything stay behind?
//!
//! Answers: how many are there now, of all threads? A test that asks runs alone in a process ([`alone`]), since others
//! allocate as well.

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

/// Runs the test of this name, which calls it first, alone in a process of its own: true there. In the other process,
/// which is told false, it has ended well.
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
