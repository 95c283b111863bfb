//! Multi-queue fair queueing: the scheduling core.
//!
//! No dependency, no clock, no thread, no I/O, and no allocation after construction. The caller passes `now_ns` in and
//! gets back what to do.
//!
//! Source: Hedayati, Shen, Scott, Marty, "Multi-Queue Fair Queueing", USENIX ATC 2019 (cited as "MQFQ section n").

pub mod cache_padded;
pub mod class;
pub mod cost;
pub mod depth;
pub mod flow;
pub mod hierarchy;
pub mod mindicator;
pub mod policy;
pub mod ready_set;
pub mod stage_queue;
pub mod sync;
pub mod throttle_wheel;
pub mod token_tree;
pub mod topology;
pub mod vtime;
pub mod wake;
pub mod window_rule;
pub mod write_cost;

#[cfg(all(watched, not(loom)))]
pub use sync::watched;
