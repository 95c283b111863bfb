//! The words that the rivals are built of: `std`'s atomics to be timed, watched ones to be counted or simulated.

use mqfq_sched_watched::watched;
use std::ops::Deref;
use std::sync::atomic::{self, AtomicU64, Ordering};

/// A 64-bit atomic. Each rival is generic over it, so that what is counted and simulated is the source that is timed.
pub trait Word: Send + Sync {
    /// Holding `value`.
    fn new(value: u64) -> Self;
    /// As [`AtomicU64::load`].
    fn load(&self, order: Ordering) -> u64;
    /// As [`AtomicU64::store`].
    fn store(&self, value: u64, order: Ordering);
    /// As [`AtomicU64::fetch_add`].
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    /// As [`AtomicU64::fetch_sub`].
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64;
    /// As [`AtomicU64::fetch_and`].
    fn fetch_and(&self, value: u64, order: Ordering) -> u64;
    /// As [`AtomicU64::fetch_or`].
    fn fetch_or(&self, value: u64, order: Ordering) -> u64;
    /// As [`AtomicU64::compare_exchange_weak`].
    fn compare_exchange_weak(&self, current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64>;
    /// As [`atomic::fence`].
    fn fence(order: Ordering);
}

macro_rules! word {
    ($word:ty, $fence:path) => {
        impl Word for $word {
            #[inline]
            fn new(value: u64) -> Self {
                <$word>::new(value)
            }

            #[inline]
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }

            #[inline]
            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order);
            }

            #[inline]
            fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_add(value, order)
            }

            #[inline]
            fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_sub(value, order)
            }

            #[inline]
            fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_and(value, order)
            }

            #[inline]
            fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_or(value, order)
            }

            #[inline]
            fn compare_exchange_weak(
                &self,
                current: u64,
                new: u64,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u64, u64> {
                self.compare_exchange_weak(current, new, success, failure)
            }

            #[inline]
            fn fence(order: Ordering) {
                $fence(order);
            }
        }
    };
}

word!(AtomicU64, atomic::fence);
word!(watched::AtomicU64, watched::fence);

/// A value alone on a pair of cache lines, as sched pads its own.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Padded<T>(pub T);

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
