//! Tests of the crate as its users see it, in one binary: each more is linked and run on its own.
#![allow(clippy::incompatible_msrv, reason = "the workspace's compiler runs them")]

mod bench_top;
mod hazards;
mod hierarchy;
mod histories;
mod invariants;
mod no_allocation;
mod shares;
mod stress;
