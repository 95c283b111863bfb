//! The depth D of a device, found while it runs.
//!
//! Answers: how many units of work should be on the device at once? Too few, and it idles; too many, and a small
//! request waits behind all of them. No number is right for long, so a controller tries others beside the one in force
//! and keeps what earns its place. It is a function of samples: no clock, no float, no allocation, nothing shared. The
//! page is docs/inside/depth.md.
//!
//! # Example
//! Two tenants read 128 KiB each, 32 units of 4 KiB, and D is 33: two requests at a time. A phase at D = 33 completes
//! 320,000 units/s, one at 65, the next depth that lets one more request go, 450,000. The depth in use grew by half,
//! which is 1 step of the logarithm to base 1.5, and work by 40%: far more than the 8% of that step that it must earn.
//! The same pair again, the other way round, says the same, so D is 65. From 161 to 193 work grows by 0.3%, and the
//! depth in use by 20%: it would have to be 1.5%. So 161 stays.
//!
//! # Parts
//! | file | answers |
//! |---|---|
//! | `sample.rs` | what is read of a device, and what was the rate between two readings? |
//! | `log.rs` | by which factor do two counts differ? |
//! | `controller.rs` | when is a measurement over, and which D is measured next? |
//! | `search.rs` | which D is better, and when is that sure? |
//!
//! # Rules
//! R1. *A grid.* With debt, requests of n units only step at D = 1 + k n ([`crate::token_tree`]). Candidates lie there;
//!     n is the size from which on requests are a quarter of the work.
//! R2. *Pairs.* D, candidate, D, candidate, until the mean of the differences is surer than their scatter, so that a
//!     drift of the device or of the load falls on both alike.
//! R3. *A gain is one in units and in requests.* Bytes per second rise when small tenants are starved; so the smaller of
//!     the two gains counts, and a deeper queue must earn `ALPHA` of its relative depth.
//! R4. *Nothing waits, nothing is learnt.* Unless it is time in the system that shrinks when D does: where D is so large
//!     that nobody ever waits for a token, only smaller ones are tried, and compared by that.
//! R5. *Phases end by completions.* A device that is silent holds D, however long and whoever waits; a phase that was a
//!     silence for a quarter of it is thrown away.

mod controller;
mod log;
mod sample;
mod search;

pub use controller::Controller;
pub use sample::{CLASSES, Sample, Work, class_of};
pub use search::{Probe, Reason, State, Verdict};

#[cfg(all(test, not(loom)))]
mod drive;
#[cfg(all(test, not(loom)))]
mod tests;
