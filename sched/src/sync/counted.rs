//! Which words does an operation read, write, and change? Atomics that write it down.
//!
//! The same source as what ships, compiled with these in place of `std`'s, says what an operation costs in loads,
//! stores, read-modify-writes and fences without a clock, and on which addresses, so that cache lines can be told
//! apart. What is written down is per thread, and only inside [`record`].

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use super::plain::atomic::{self, Ordering};
use super::plain::{LockResult, PoisonError};

/// What was done to a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Read.
    Load,
    /// Written without being read.
    Store,
    /// Read and written in one step. A failed compare-and-exchange is one too: on x86-64 it takes the line as its own.
    ReadModifyWrite,
    /// A fence, which has no address.
    Fence,
}

/// One step of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// What was done.
    pub kind: Kind,
    /// To which word; 0 for a fence.
    pub address: usize,
}

std::thread_local! {
    static WRITTEN_DOWN: RefCell<Option<Vec<Access>>> = const { RefCell::new(None) };
}

/// Runs `body` and leaves in `accesses` what it did to the atomics of this module, in order. Not to be nested.
pub fn record<R>(accesses: &mut Vec<Access>, body: impl FnOnce() -> R) -> R {
    accesses.clear();
    WRITTEN_DOWN.set(Some(std::mem::take(accesses)));
    let result = body();
    *accesses = WRITTEN_DOWN.take().unwrap_or_default();
    result
}

fn note(kind: Kind, address: usize) {
    WRITTEN_DOWN.with_borrow_mut(|accesses| {
        if let Some(accesses) = accesses {
            accesses.push(Access { kind, address });
        }
    });
}

/// As the one of `std`.
pub fn fence(order: Ordering) {
    note(Kind::Fence, 0);
    atomic::fence(order);
}

macro_rules! counted {
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
                self.note(Kind::Load);
                self.0.load(order)
            }

            /// As the one of `std`.
            pub fn store(&self, value: $number, order: Ordering) {
                self.note(Kind::Store);
                self.0.store(value, order);
            }

            counted!(@change $number, swap, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
            counted!(@exchange $number, compare_exchange, compare_exchange_weak);

            fn note(&self, kind: Kind) {
                note(kind, std::ptr::from_ref(&self.0).addr());
            }
        }
    };
    (@change $number:ty, $($method:ident),*) => {$(
        /// As the one of `std`.
        pub fn $method(&self, value: $number, order: Ordering) -> $number {
            self.note(Kind::ReadModifyWrite);
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
            self.note(Kind::ReadModifyWrite);
            self.0.$method(current, new, success, failure)
        }
    )*};
}

counted!(AtomicU32, u32);
counted!(AtomicU64, u64);
counted!(AtomicI64, i64);

/// As the one of `std`. Taking it and letting it go are a read-modify-write of its word each, as they are on Linux
/// while nobody waits for it. What lies under it is plain memory, and not written down.
#[derive(Debug, Default)]
pub struct Mutex<T>(super::plain::Mutex<T>);

/// As the one of `std`.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    guard: super::plain::MutexGuard<'a, T>,
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
    /// Somebody panicked while holding it.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        // The word comes first: what may be unsized, and T may, stays behind.
        let address = std::ptr::from_ref(&self.0).addr();
        note(Kind::ReadModifyWrite, address);
        match self.0.lock() {
            Ok(guard) => Ok(MutexGuard { guard, address }),
            Err(poisoned) => Err(PoisonError::new(MutexGuard { guard: poisoned.into_inner(), address })),
        }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        note(Kind::ReadModifyWrite, self.address);
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
