//! Words that every room uses: virtual time, costs, queues and their topology, atomics, wake-ups.

pub mod cache_padded;
pub mod class;
pub mod cost;
pub mod sync;
pub mod topology;
pub mod vtime;
pub mod wake;
