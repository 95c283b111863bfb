//! Atomics that tell a watcher what is about to be done to them: the same source as what ships, compiled with these in
//! place of `std`'s.
//!
//! Two watchers exist. [`record`] writes the accesses of an operation down, so that a measurement says what it costs in
//! loads, stores, read-modify-writes and fences, and on which cache lines, without a clock. The simulator's charges
//! them to the virtual core that makes them, and lets other cores run first that would have come first: it is called
//! *before* the access, which takes place when it returns.
//!
//! A watcher is per thread, and so is what it sees.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};

use super::plain::atomic::{self, Ordering};
use super::plain::{LockResult, PoisonError};

// A watcher cannot tell an assertion's look at a word from the scheduler's own. The workspace's Cargo.toml has the
// profiles.
const _: () = assert!(
    !cfg!(debug_assertions),
    "what is watched is built without debug assertions, or counts would depend on the build"
);

/// Kind of an access to a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Read.
    Load,
    /// Written without being read.
    Store,
    /// Read and written in one step. A failed compare-and-exchange is one too: on x86-64 it takes the line as its own.
    ReadModifyWrite,
    /// A line of plain memory under a lock is read and written, with ordinary instructions: the core waits for the line
    /// and makes it its own.
    Touch,
    /// A sequentially consistent fence, which has no address.
    Fence,
    /// A lock is taken: a read-modify-write of its word, as it is on Linux while no thread waits for it. A watcher that
    /// runs several workers on one thread must not return before the lock is free.
    Lock,
    /// A lock is released: a read-modify-write of its word. Here the watcher is called after it has been.
    Unlock,
}

impl Kind {
    /// The line is read and written in one step.
    pub const fn is_read_modify_write(self) -> bool {
        matches!(self, Kind::ReadModifyWrite | Kind::Lock | Kind::Unlock)
    }
}

/// One step of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Kind of access.
    pub kind: Kind,
    /// Address of the word; 0 for a fence. For [`Kind::Touch`], start of the slab, and 64 bytes more for each line of
    /// it.
    pub address: usize,
    /// For [`Kind::Lock`], bytes of the word and of the plain memory that lies with it under the lock, without memory
    /// that this points to.
    pub lock_bytes: u32,
}

impl Access {
    /// The name of the line that it is to. Of a word it is the line that the word lies in: what is shared between
    /// workers is aligned to lines, so which words lie together is a matter of layout. A slab is plain memory, which an
    /// allocator puts anywhere: its lines are counted from where it begins, as if a line began there, or their number
    /// would depend on the machine, the process and the moment. No two slabs share a line then, and none shares one
    /// with a word.
    #[inline]
    pub fn line(&self) -> usize {
        // The complement of an address, the largest of numbers, is that of no line.
        if self.kind == Kind::Touch { !self.address } else { self.address / LINE_BYTES }
    }
}

/// Called before each access (after, for [`Kind::Unlock`]).
pub type Watcher = fn(Access);

std::thread_local! {
    static WATCHER: Cell<Option<Watcher>> = const { Cell::new(None) };
    static WRITTEN_DOWN: RefCell<Vec<Access>> = const { RefCell::new(Vec::new()) };
}

/// Makes `watcher`, or none, see what this thread does to these atomics. Returns the watcher before.
pub fn watch(watcher: Option<Watcher>) -> Option<Watcher> {
    WATCHER.replace(watcher)
}

/// Runs `body` and leaves in `accesses` what it did to the atomics of this module, in order. Not to be nested.
pub fn record<R>(accesses: &mut Vec<Access>, body: impl FnOnce() -> R) -> R {
    accesses.clear();
    WRITTEN_DOWN.set(std::mem::take(accesses));
    let before = watch(Some(|access| WRITTEN_DOWN.with_borrow_mut(|accesses| accesses.push(access))));
    let result = body();
    watch(before);
    *accesses = WRITTEN_DOWN.take();
    result
}

#[inline]
fn tell(kind: Kind, address: usize) {
    if let Some(watcher) = WATCHER.get() {
        watcher(Access { kind, address, lock_bytes: 0 });
    }
}

/// Bytes of a cache line, x86-64.
pub const LINE_BYTES: usize = 64;

/// The element `at` of a slab of plain memory under a lock is read and written: each line of it is told as a
/// [`Kind::Touch`].
///
/// # Panics
/// If the slab has no such element.
pub fn touch<T>(slab: &[T], at: usize) {
    assert!(at < slab.len(), "element {at} of a slab of {}", slab.len());
    if WATCHER.get().is_some() {
        let (start, bytes) = (slab.as_ptr().addr(), size_of::<T>().max(1));
        let lines = at * bytes / LINE_BYTES..=((at + 1) * bytes - 1) / LINE_BYTES;
        lines.for_each(|line| tell(Kind::Touch, start + line * LINE_BYTES));
    }
}

/// As the one of `std`.
pub fn fence(order: Ordering) {
    // SeqCst: the only one that is an instruction on x86-64, the machine that the watchers model; it pairs with
    // whatever the caller's pairs with.
    if order == Ordering::SeqCst {
        tell(Kind::Fence, 0);
    }
    atomic::fence(order);
}

macro_rules! watched {
    ($name:ident, $number:ty) => {
        /// As the one of `std`.
        #[derive(Debug, Default)]
        pub struct $name(atomic::$name);

        #[allow(dead_code, reason = "every type gets the whole set")]
        impl $name {
            /// As the one of `std`.
            pub fn new(value: $number) -> Self {
                $name(atomic::$name::new(value))
            }

            /// As the one of `std`.
            pub fn load(&self, order: Ordering) -> $number {
                self.tell(Kind::Load);
                self.0.load(order)
            }

            /// As the one of `std`.
            pub fn store(&self, value: $number, order: Ordering) {
                self.tell(Kind::Store);
                self.0.store(value, order);
            }

            watched!(@change $number, swap, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
            watched!(@exchange $number, compare_exchange, compare_exchange_weak);

            fn tell(&self, kind: Kind) {
                    tell(kind, std::ptr::from_ref(&self.0).addr());
            }
        }
    };
    (@change $number:ty, $($method:ident),*) => {$(
        /// As the one of `std`.
        pub fn $method(&self, value: $number, order: Ordering) -> $number {
            self.tell(Kind::ReadModifyWrite);
            self.0.$method(value, order)
        }
    )*};
    (@exchange $number:ty, $($method:ident),*) => {$(
        /// As the one of `std`.
        pub fn $method(
            &self,
            current: $number,
            new: $number,
            success: Ordering,
            failure: Ordering,
        ) -> Result<$number, $number> {
            self.tell(Kind::ReadModifyWrite);
            self.0.$method(current, new, success, failure)
        }
    )*};
}

watched!(AtomicU32, u32);
watched!(AtomicU64, u64);
watched!(AtomicI64, i64);

/// As the one of `std`. Taking and releasing it are a read-modify-write of its word each, as they are on Linux while no
/// thread waits for it. The memory under it is plain, and not written down.
#[derive(Debug, Default)]
pub struct Mutex<T>(super::plain::Mutex<T>);

/// As the one of `std`.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    /// `None` only inside `drop`.
    guard: Option<super::plain::MutexGuard<'a, T>>,
    address: usize,
}

impl<T> Mutex<T> {
    /// As the one of `std`.
    pub fn new(value: T) -> Self {
        Mutex(super::plain::Mutex::new(value))
    }

    /// As the one of `std`.
    ///
    /// # Errors
    /// A thread panicked while holding it.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        // The word comes first: what may be unsized, and T may, stays behind.
        let address = std::ptr::from_ref(&self.0).addr();
        if let Some(watcher) = WATCHER.get() {
            watcher(Access { kind: Kind::Lock, address, lock_bytes: size_of::<Self>() as u32 });
        }
        match self.0.lock() {
            Ok(guard) => Ok(MutexGuard { guard: Some(guard), address }),
            Err(poisoned) => Err(PoisonError::new(MutexGuard { guard: Some(poisoned.into_inner()), address })),
        }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.guard = None;
        tell(Kind::Unlock, self.address);
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_deref().expect("taken only in drop")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_deref_mut().expect("taken only in drop")
    }
}
