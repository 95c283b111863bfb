//! Reads and checks the records that the scheduler `scx_pmqfq` leaves of a real kernel's decisions.
//!
//! The scheduler is `bpf/pmqfq.bpf.c` (GPL-2.0-only); `main.rs` loads it, with the feature `bpf`.

pub mod check;
pub mod host;
pub mod program;
pub mod settings;
pub mod trace;
