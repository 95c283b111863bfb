//! The depth D of a device, found while it runs.
//!
//! Answers: how many units of work should be on the device at once? Too few, and it idles; too many, and a small
//! request waits behind all of them. No number is right for long, so a controller tries others beside the one in force
//! and keeps what earns its place. It is a function of samples: no clock, no float, no allocation, nothing shared. The
//! page is docs/inside/depth.md.
//!
//! # Example
//! A drive serves a tenant with one read of a unit at a time, and one with 64 reads of 32 units. D starts at 64; the
//! grid has 33, 65, 97, so it moves to 65. (A test has these numbers.)
//!
//! |   D | units/s | on the device | the small read takes | against D = 65                                   |
//! |----:|--------:|--------------:|---------------------:|--------------------------------------------------|
//! |  65 | 281,126 |            65 |               189 us |                                                  |
//! | 129 | 284,144 |           129 |               413 us | work +1.1%; a depth +98% must earn 11%: refused  |
//! |  33 | 186,184 |            38 |               177 us | work -34%: refused                               |
//!
//! Nearer candidates, 97 and 33 again, are refused too, so D is held at 65.
//!
//! # Parts
//! | file | answers |
//! |---|---|
//! | `sample.rs` | what is read of a device, and what was the rate between two readings? |
//! | `log.rs` | by which factor do two counts differ? |
//! | `controller.rs` | when is a measurement over, and which D is measured next? |
//! | `search.rs` | which D is better, and when is that sure? |
//! | `turns.rs` | which D where the device is empty whenever a worker looks? |
//!
//! # Rules
//! R1. *A grid.* With debt, requests of n units only step at D = 1 + k n ([`crate::token_tree`]). Candidates lie there;
//!     n is the size from which on requests are a quarter of the work.
//! R2. *Rounds.* D, candidate, D, candidate, until the difference of their means is surer than their scatter, so that a
//!     drift of the device or of the load falls on both alike. More depth must be twice as sure as less.
//! R3. *A gain is one in units and in requests.* Bytes per second rise when small tenants are starved; so the smaller
//!     of the two gains counts, and a deeper queue must earn `ALPHA` of its relative depth.
//!     While large requests go in parts, a part is no tenant's request: units alone count, and depth costs less.
//! R4. *Nothing waits, nothing is learnt.* Unless it is time in the system that shrinks when D does: where D is so
//!     large that no request ever waits for a token, only smaller ones are tried, and compared by that.
//! R5. *Phases end by completions.* A device that is silent holds D, however long and whatever waits; a phase that was
//!     a silence for a quarter of it is thrown away.

mod controller;
mod log;
mod sample;
mod search;
mod turns;

pub use controller::Controller;
pub use sample::{CLASSES, Counted, Gathering, Sample, Work, class_of};
pub use search::{Probe, Reason, State, Table, Tried, Verdict};
pub use turns::{Reaps, Turns};

#[cfg(all(test, not(mqfq_loom)))]
mod tests;
