//! Words that every room uses: virtual time, costs, queues and their topology, atomics, wake-ups.

pub mod cache_padded;
pub mod class;
pub mod cost;
#[cfg(all(test, not(mqfq_loom)))]
#[allow(dead_code, reason = "the tests of other crates use the rest")]
pub mod random;
pub mod sync;
pub mod topology;
pub mod vtime;
pub mod wake;
