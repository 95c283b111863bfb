//! The one door to atomics and locks: `std` in a build, `loom` in a model (`--cfg loom`).
//!
//! No other file of this crate names `std::sync` or `loom`, so a model check covers exactly the code that ships.
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
