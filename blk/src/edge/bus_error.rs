//! The handler of SIGBUS, for an owner of foreign memory that takes pages away while we read them.
//!
//! A guest's memory is a file that its hypervisor may cut. An access behind the end raises SIGBUS, which ends the
//! process and with it every other tenant. So mappings are watched: a SIGBUS inside one replaces the whole mapping by
//! zeroes of our own, notes that it is lost, and the access is done again. The user of the mapping looks at the note
//! and closes its client. System calls are not concerned: they end with EFAULT.
//!
//! # What the handler may do
//! It runs between any two instructions, so it takes no lock and no memory. It walks a list that only grows, of nodes
//! that are never freed and are used again, and calls `mmap`, which is a system call and nothing else.
//!
//! | address | what happens |
//! |---|---|
//! | in a watched mapping | the mapping is replaced and lost |
//! | anywhere else | the former action is put back, and the fault comes again |
//! | none: the signal was sent | the process ends, as it does at any other signal of this kind |

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

/// A watched range; free if its start is 0.
struct Node {
    start: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
    /// The node that was made before this one.
    next: *mut Node,
}

/// The node that was made last.
static LAST: AtomicPtr<Node> = AtomicPtr::new(null_mut());

/// Held to take a node; the handler needs none.
static TAKING: Mutex<()> = Mutex::new(());

static INSTALL: Once = Once::new();

/// The action for SIGBUS before ours.
static FORMER: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping that is watched.
pub(crate) struct Watched(&'static Node);

// SAFETY: a node is atomics, and `next`, which is written before the node is published and never after.
unsafe impl Sync for Node {}

/// Watches `length_bytes` of a mapping from `start` on, until [`Watched::end`].
pub(crate) fn watch(start: usize, length_bytes: usize) -> Watched {
    INSTALL.call_once(install);
    let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
    // Acquire here and in `nodes`: pairs with the Release below, which publishes `next`. Relaxed: nodes are taken under
    // the lock.
    let node = nodes().find(|node| node.start.load(Ordering::Relaxed) == 0).unwrap_or_else(|| {
        let next = LAST.load(Ordering::Relaxed);
        let (start, end) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let node: &'static mut Node = Box::leak(Box::new(Node { start, end, lost: AtomicBool::new(false), next }));
        LAST.store(node, Ordering::Release);
        node
    });
    // Relaxed: published by the Release below.
    node.lost.store(false, Ordering::Relaxed);
    // Release: pairs with the Acquire of the handler, which does not take this end for that of the mapping before.
    node.end.store(start + length_bytes, Ordering::Release);
    // Release: pairs with the Acquire of the handler, which sees this mapping's end if it sees its start.
    node.start.store(start, Ordering::Release);
    Watched(node)
}

impl Watched {
    /// Set once pages of the mapping were taken away. Means nothing after [`Watched::end`].
    pub(crate) fn lost(&self) -> &'static AtomicBool {
        &self.0.lost
    }

    /// Ends the watch. The mapping is about to go, and no thread accesses it any more.
    pub(crate) fn end(&self) {
        // Release: pairs with the Acquire of the thread that takes the node next, under the lock; a handler that still
        // sees the start is another thread's, at another address.
        self.0.start.store(0, Ordering::Release);
    }
}

fn nodes() -> impl Iterator<Item = &'static Node> {
    // Acquire: pairs with the Release in `watch`.
    let mut at = LAST.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: null, or a node that was leaked, so it lives for ever.
        let node = unsafe { at.as_ref() }?;
        at = node.next;
        Some(node)
    })
}

fn install() {
    // SAFETY: all-zero is a valid sigaction; the kernel reads the one structure and writes the other. The handler is
    // what a handler may be (see the head of the file).
    let former = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        // On the stack for signals, where a thread has one: the fault may be anywhere.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let mut former: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(libc::SIGBUS, &raw const action, &raw mut former) == 0).then_some(former)
    };
    if let Some(former) = former {
        // No other code sets it.
        let _ = FORMER.set(former);
    }
}

/// The handler of SIGBUS.
extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands over its information; `si_addr` is read only where the kernel made the signal.
    let address = unsafe { if (*info).si_code > 0 { (*info).si_addr().addr() } else { 0 } };
    if address != 0 && replace(address) {
        return;
    }
    // SAFETY: all-zero is the default action; the kernel reads the structure. raise takes no pointer.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        let former = FORMER.get().filter(|_| address != 0).unwrap_or(&default);
        libc::sigaction(libc::SIGBUS, former, null_mut());
        if address == 0 {
            // Nothing will be done again that could fail again.
            libc::raise(libc::SIGBUS);
        }
    }
}

/// Replaces the mapping that has `address` by zeroes of our own. False: there is none.
fn replace(address: usize) -> bool {
    let in_it = |node: &'static Node| {
        // Acquire, both: pair with the Releases in `watch`. A node may be given to another mapping meanwhile: then its
        // start is no longer this one when the other's end is seen.
        let start = node.start.load(Ordering::Acquire);
        let end = node.end.load(Ordering::Acquire);
        // Relaxed: behind the Acquire above.
        let is_one = start != 0 && node.start.load(Ordering::Relaxed) == start;
        (is_one && (start..end).contains(&address)).then(|| (node, start, end - start))
    };
    let Some((node, start, length_bytes)) = nodes().find_map(in_it) else { return false };
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: errno is the thread's own, and is as it was when the handler returns. The range is a mapping of ours
    // (`watch`) that is in use by the access that failed, and stays mapped readable and writable.
    let mapped = unsafe {
        let errno = *libc::__errno_location();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let mapped = libc::mmap(start as *mut libc::c_void, length_bytes, access, flags, -1, 0);
        *libc::__errno_location() = errno;
        mapped
    };
    // Relaxed: see `ForeignMemory::is_lost`.
    node.lost.store(true, Ordering::Relaxed);
    mapped != libc::MAP_FAILED
}
