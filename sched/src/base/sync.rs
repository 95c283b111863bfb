#![allow(unused_imports, reason = "each structure takes what it needs; a loom build takes less")]
//! The one door to atomics and locks: `std` in a build (without the feature `std` a lock that spins), `loom` in a model
//! (`--cfg mqfq_loom`), counting ones where `bench` counts what an operation touches (`--cfg watched`, which only the
//! package `lab/watched/sched` sets).
//!
//! No other file of this crate names `std::sync` or `loom`, so a model check covers exactly the code that ships. It is
//! public for what `blk` shares between workers, so that the simulator and the model checker see that, too.
//!
//! Loom runs every interleaving of a small test and lets a load return any value that the memory model allows. Two of
//! its limits shape the code: it treats `SeqCst` loads and stores as `AcqRel`, so wherever a total order is needed the
//! structures say `fence(SeqCst)`, which it does model; and it cannot build an atomic outside a model, so a structure
//! is always built inside the test body. A third limit is made good in `thorough`.

use core::ops::Deref;

// In a model too: what is behind a handle is ordered by itself.
#[cfg(not(watched))]
pub use alloc::sync::Arc;
#[cfg(not(mqfq_loom))]
pub use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(not(any(mqfq_loom, watched)))]
pub use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, fence};
#[cfg(mqfq_loom)]
pub use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering, fence},
};
#[cfg(not(any(feature = "std", mqfq_loom, watched)))]
pub use spin::{Mutex, MutexGuard};
#[cfg(all(feature = "std", not(any(mqfq_loom, watched))))]
pub use std::sync::{Mutex, MutexGuard};
#[cfg(mqfq_loom)]
pub use thorough::{AtomicI64, AtomicU32, AtomicU64};
#[cfg(all(watched, not(mqfq_loom)))]
pub use watched::{AtomicI64, AtomicU32, AtomicU64, Mutex, MutexGuard, fence};

/// The atomics and the lock under the counting ones.
#[cfg(all(watched, not(mqfq_loom)))]
use std::sync as plain;

#[cfg(all(watched, not(mqfq_loom)))]
#[path = "../../../lab/watched/sched/watched.rs"]
pub mod watched;

/// The thread unwinds from a panic; false without `std`, which alone knows.
pub(crate) fn is_unwinding() -> bool {
    #[cfg(feature = "std")]
    return std::thread::panicking();
    #[cfg(not(feature = "std"))]
    false
}

/// A lock without an operating system.
///
/// A thread that waits spins, so a holder that loses its core costs the others theirs, and a caller that interrupts a
/// holder on its core waits for ever. It is never poisoned.
#[cfg(any(test, not(feature = "std")))]
#[cfg_attr(feature = "std", allow(dead_code, reason = "for its test"))]
#[allow(missing_docs, clippy::missing_errors_doc, reason = "as the one of `std`")]
mod spin {
    use super::{AtomicU32, Ordering};
    use core::cell::UnsafeCell;
    use core::ops::{Deref, DerefMut};

    #[derive(Debug)]
    pub struct Mutex<T> {
        /// 1 while a guard lives.
        taken: AtomicU32,
        value: UnsafeCell<T>,
    }

    // SAFETY: `value` is reached through a guard alone, one at a time, ordered by `taken`.
    unsafe impl<T: Send> Sync for Mutex<T> {}

    #[derive(Debug)]
    pub struct MutexGuard<'a, T>(&'a Mutex<T>);

    // SAFETY: as a shared reference to the value.
    unsafe impl<T: Sync> Sync for MutexGuard<'_, T> {}

    /// Never made: as of `std`'s lock when a holder panicked.
    #[derive(Debug)]
    pub struct Poisoned<G>(G);

    /// Another thread has it.
    #[derive(Debug)]
    pub struct Taken;

    impl<G> Poisoned<G> {
        /// The guard.
        pub fn into_inner(self) -> G {
            self.0
        }
    }

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Mutex<T> {
            Mutex { taken: AtomicU32::new(0), value: UnsafeCell::new(value) }
        }

        pub fn lock(&self) -> Result<MutexGuard<'_, T>, Poisoned<MutexGuard<'_, T>>> {
            loop {
                if let Ok(guard) = self.try_lock() {
                    return Ok(guard);
                }
                core::hint::spin_loop();
            }
        }

        pub fn try_lock(&self) -> Result<MutexGuard<'_, T>, Taken> {
            // Relaxed load: a hint, which spares the line. Acquire: pairs with the Release of the last guard.
            let is_free = self.taken.load(Ordering::Relaxed) == 0
                && self.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if is_free { Ok(MutexGuard(self)) } else { Err(Taken) }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: the exchange let us in, and no other guard is made before this one is dropped.
            unsafe { &*self.0.value.get() }
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: as in `deref`, and this guard is borrowed for as long.
            unsafe { &mut *self.0.value.get() }
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            // Release: pairs with the Acquire of the next one.
            self.0.taken.store(0, Ordering::Release);
        }
    }
}

/// Tells a watcher that the element `at` of a slab, plain memory under a lock, is read and written; otherwise nothing.
/// A policy that keeps more under its lock than lies with the lock itself says so with this, once per step and element,
/// and is charged for what it does and not by a constant.
#[inline(always)]
pub fn touch<T>(slab: &[T], at: usize) {
    #[cfg(all(watched, not(mqfq_loom)))]
    watched::touch(slab, at);
    #[cfg(not(all(watched, not(mqfq_loom))))]
    let _ = (slab, at);
}

/// A word that every request reads and that changes a few times per second at most: a setting in force.
///
/// Relaxed: a reader meets the value before a change or the one after it, and the structure that keeps the setting says
/// why either will do. A watcher is told nothing. The line of such a word is in each core's cache, as are the fields
/// beside it that never change, and reading it costs what reading those does.
#[derive(Debug)]
pub struct Setting(setting::Word);

impl Setting {
    /// A setting that stands at `value`. `is_live`: it will be set. A model of one that will not is spared the orders
    /// of a read beside a change that does not come.
    pub fn new(value: u64, is_live: bool) -> Setting {
        Setting(setting::Word::new(value, is_live))
    }

    /// The value in force.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.get()
    }

    /// Puts `value` in force.
    pub fn set(&self, value: u64) {
        self.0.set(value);
    }
}

#[cfg(not(mqfq_loom))]
mod setting {
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[derive(Debug)]
    pub(super) struct Word(AtomicU64);

    impl Word {
        pub(super) const fn new(value: u64, _is_live: bool) -> Word {
            Word(AtomicU64::new(value))
        }

        #[inline(always)]
        pub(super) fn get(&self) -> u64 {
            self.0.load(Relaxed)
        }

        pub(super) fn set(&self, value: u64) {
            self.0.store(value, Relaxed);
        }
    }
}

#[cfg(mqfq_loom)]
mod setting {
    use super::{AtomicU64, Ordering::Relaxed};

    #[derive(Debug)]
    pub(super) enum Word {
        Fixed(u64),
        Live(AtomicU64),
    }

    impl Word {
        pub(super) fn new(value: u64, is_live: bool) -> Word {
            if is_live { Word::Live(AtomicU64::new(value)) } else { Word::Fixed(value) }
        }

        pub(super) fn get(&self) -> u64 {
            match self {
                Word::Fixed(value) => *value,
                Word::Live(word) => word.load(Relaxed),
            }
        }

        pub(super) fn set(&self, value: u64) {
            match self {
                Word::Fixed(_) => panic!("a setting that never changes was set to {value}"),
                Word::Live(word) => word.store(value, Relaxed),
            }
        }
    }
}

/// Loom's atomics, with every order of a load and another thread's write tried.
///
/// Loom 0.7.2 decides which orders of two accesses to try by looking at the *last* access to the word only. So when one
/// thread has loaded a word and another then loads it and changes it by compare-and-exchange, that change is compared
/// with its own thread's load, and "the change came before the first thread's load" is never run (tokio-rs/loom issues
/// 166 and 392). What fails only in that order stays hidden: without this, two wrong orderings in the token tree
/// passed. Here each word has a shadow word per thread, changed by that thread before it loads and by the others before
/// they write, so that their own loads no longer stand between. The shadows are relaxed and order nothing. Only in
/// models that ask for it (`model::model`).
#[cfg(mqfq_loom)]
#[allow(clippy::missing_errors_doc, reason = "as those of `std`")]
mod thorough {
    use core::cell::Cell;

    use loom::sync::atomic::{self, AtomicBool, Ordering};

    std::thread_local! {
        // Loom runs all threads of a model as coroutines on the test's own thread.
        static ASKED_FOR: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs a model in which each new word has shadows.
    pub(crate) fn with(run_model: impl FnOnce()) {
        ASKED_FOR.set(true);
        run_model();
        ASKED_FOR.set(false);
    }

    /// A model's own thread and two more.
    const THREADS: usize = 3;

    #[derive(Debug)]
    struct Shadows(Option<[AtomicBool; THREADS]>);

    impl Shadows {
        fn new() -> Self {
            Shadows(ASKED_FOR.get().then(|| core::array::from_fn(|_| AtomicBool::new(false))))
        }

        fn before_load(&self) {
            if let Some(shadows) = &self.0 {
                shadows[Self::thread()].swap(true, Ordering::Relaxed);
            }
        }

        fn before_write(&self) {
            let Some(shadows) = &self.0 else { return };
            let own = Self::thread();
            for (_, shadow) in shadows.iter().enumerate().filter(|&(thread, _)| thread != own) {
                shadow.swap(true, Ordering::Relaxed);
            }
        }

        /// Loom numbers the threads of each run from 0, but shows the number only in its debug form, `ThreadId(0)`.
        fn thread() -> usize {
            let id = format!("{:?}", loom::thread::current().id());
            let digits: String = id.chars().filter(char::is_ascii_digit).collect();
            let thread = digits.parse().expect("a thread id is a number");
            assert!(thread < THREADS, "a model has at most {THREADS} threads, this is {id}");
            thread
        }
    }

    macro_rules! thorough {
        ($name:ident, $number:ty) => {
            /// As the one of loom.
            #[derive(Debug)]
            pub struct $name {
                word: atomic::$name,
                shadows: Shadows,
            }

            impl Default for $name {
                fn default() -> Self {
                    $name::new(0)
                }
            }

            #[allow(dead_code, missing_docs, reason = "each type gets the whole set")]
            impl $name {
                pub fn new(value: $number) -> Self {
                    $name { word: atomic::$name::new(value), shadows: Shadows::new() }
                }

                pub fn load(&self, order: Ordering) -> $number {
                    self.shadows.before_load();
                    self.word.load(order)
                }

                pub fn store(&self, value: $number, order: Ordering) {
                    self.shadows.before_write();
                    self.word.store(value, order)
                }

                pub fn swap(&self, value: $number, order: Ordering) -> $number {
                    self.shadows.before_write();
                    self.word.swap(value, order)
                }

                pub fn fetch_add(&self, value: $number, order: Ordering) -> $number {
                    self.shadows.before_write();
                    self.word.fetch_add(value, order)
                }

                pub fn fetch_sub(&self, value: $number, order: Ordering) -> $number {
                    self.shadows.before_write();
                    self.word.fetch_sub(value, order)
                }

                pub fn fetch_max(&self, value: $number, order: Ordering) -> $number {
                    self.shadows.before_write();
                    self.word.fetch_max(value, order)
                }

                pub fn fetch_and(&self, value: $number, order: Ordering) -> $number {
                    self.shadows.before_write();
                    self.word.fetch_and(value, order)
                }

                pub fn fetch_or(&self, value: $number, order: Ordering) -> $number {
                    self.shadows.before_write();
                    self.word.fetch_or(value, order)
                }

                pub fn compare_exchange(
                    &self,
                    current: $number,
                    new: $number,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$number, $number> {
                    self.shadows.before_write();
                    self.word.compare_exchange(current, new, success, failure)
                }

                pub fn compare_exchange_weak(
                    &self,
                    current: $number,
                    new: $number,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$number, $number> {
                    self.shadows.before_write();
                    self.word.compare_exchange_weak(current, new, success, failure)
                }
            }
        };
    }

    thorough!(AtomicU32, u32);
    thorough!(AtomicU64, u64);
    thorough!(AtomicI64, i64);
}

/// Tools of model tests, here and in `blk`.
#[cfg(mqfq_loom)]
pub mod model {
    pub use loom::{cell::UnsafeCell, model::Builder, sync::Arc, thread};

    /// Runs `body` once per interleaving, all orders of loads and writes among them (`super::thorough`). For two
    /// threads and one structure: it costs several times what loom does by itself, for more a [`Builder`] must do.
    pub fn model(body: impl Fn() + Sync + Send + 'static) {
        super::thorough::with(|| loom::model(body));
    }
}

// A value alone on its cache lines, so that writing it never slows the readers of its neighbour.

/// Keeps `T` away from every other value.
///
/// 128 bytes, not 64: x86-64 prefetches the other line of a pair and recent aarch64 cores have lines of 128 bytes, so
/// 64 would still let two neighbours disturb each other.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    /// `value`, padded.
    pub fn new(value: T) -> Self {
        CachePadded(value)
    }
}

impl<T> Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

// Whatever is padded starts its own pair of lines and fills it.
const _: () = assert!(align_of::<CachePadded<u8>>() == 128 && size_of::<CachePadded<u64>>() == 128);

#[cfg(all(test, mqfq_loom))]
mod loom_tests {
    use super::{model, spin::Mutex};

    /// Race: two threads at a lock that spins.
    #[test]
    fn loom_a_lock_that_spins_passes_on_what_was_written() {
        model::model(|| {
            let lock = model::Arc::new(Mutex::new(model::UnsafeCell::new(0)));
            let add = |lock: &Mutex<model::UnsafeCell<u32>>| {
                let Ok(guard) = lock.try_lock() else { return 0 };
                // SAFETY: under the lock.
                guard.with_mut(|count| unsafe { *count += 1 });
                1
            };
            let theirs = lock.clone();
            let other = model::thread::spawn(move || add(&theirs));
            let all = add(&lock) + other.join().unwrap();
            // SAFETY: under the lock.
            let count = lock.try_lock().unwrap().with(|count| unsafe { *count });
            assert_eq!(count, all);
        });
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::spin::Mutex;

    #[test]
    fn a_lock_that_spins_lets_one_in_at_a_time() {
        let lock = Mutex::new((0u64, 0u64));
        let add = || {
            for _ in 0..2000 {
                let mut guard = lock.lock().unwrap_or_else(super::spin::Poisoned::into_inner);
                guard.0 += 1;
                assert_eq!(guard.0, guard.1 + 1, "another thread is inside");
                assert!(lock.try_lock().is_err());
                guard.1 += 1;
            }
        };
        std::thread::scope(|threads| (0..3).for_each(|_| drop(threads.spawn(add))));
        assert_eq!(*lock.lock().unwrap(), (6000, 6000));
        assert!(lock.try_lock().is_ok());
    }
}
