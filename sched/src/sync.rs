//! The one door to atomics and locks: `std` in a build, `loom` in a model (`--cfg loom`).
//!
//! No other file of this crate names `std::sync` or `loom`, so a model check covers exactly the code that ships.
//!
//! Loom runs every interleaving of a small test and lets a load return any value that the memory model allows. Two of
//! its limits shape the code: it treats `SeqCst` loads and stores as `AcqRel`, so wherever a total order is needed the
//! structures say `fence(SeqCst)`, which it does model; and it cannot build an atomic outside a model, so a structure
//! is always built inside the test body.
#![allow(unused_imports, reason = "each structure takes what it needs; a loom build takes less")]

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// What a model test needs: `model(|| ...)` runs its body once per interleaving.
#[cfg(all(test, loom))]
pub(crate) mod model {
    pub(crate) use loom::{model, sync::Arc, thread};
}
