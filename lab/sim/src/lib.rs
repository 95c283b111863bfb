//! The simulator: the data path that ships, on virtual cores, in virtual time.
//!
//! # What is real and what is not
//! ```text
//!   real (same source)   worker's loop · submit, run, reap · policy · NVMe controller
//!   doubles              clock · cores and their caches · bells and interrupts · clients
//! ```
//! The policy's atomics tell [`coherence`] of each access, which charges the virtual core for it and decides which core
//! comes next. So what a figure shows of scalability follows from what the scheduler does to memory, not from a formula
//! for it.
//!
//! No clock, no thread, no iteration over a hash map: a scenario and its seed give the same bytes on every machine.

/// The data path as the simulator compiles it, for a caller that drives a queue of [`drive`] by hand.
pub use mqfq_blk_watched as blk;

pub mod any;
pub mod backlog;
pub mod client;
pub mod coherence;
pub mod connection;
pub mod cores;
pub mod cpu;
pub mod drive;
pub mod embedded;
pub mod figure;
pub mod form;
pub mod host;
pub mod machine;
pub mod outcome;
pub mod rivals;
pub mod run;
pub mod scenario;
pub mod socket;
pub mod timed;
pub mod workload;
