//! A simulated machine on which parallel programs compete for CPU time.
//!
//! # What is real and what is not
//! ```text
//!   real (same source)   the scheduling policy: every wake, stop, pick, tick goes through mqfq_cpu's interface
//!   doubles              cores, ticks and interrupts · threads as lists of steps · mutexes, barriers, conditions, semaphores
//! ```
//! Time is virtual nanoseconds. Nothing here decides which thread runs; nothing in a policy knows why a thread blocks.
//! So what a program loses under a scheduler follows from when it blocks and from what the scheduler makes of that.
//!
//! No clock, no thread, no iteration over a hash map: a scenario and its seed give the same bytes on every machine.

pub mod body;
pub mod machine;
pub mod outcome;
pub mod parse;
pub mod profiles;
pub mod scenario;
pub mod schedulers;
pub mod sync;
pub mod timeline;

pub use machine::run;
pub use mqfq_cpu::scheduler::Machine as Cores;
pub use outcome::Outcome;
pub use scenario::Scenario;
