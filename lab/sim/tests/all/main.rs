//! Tests of the crate as its users see it, in one binary: each more is linked and run on its own.

// For the oracle of `rivals`: the scheduler whose atomics tell a watcher.
extern crate mqfq_sched_watched as mqfq_sched;

mod cpu;
mod found;
mod golden;
mod intake;
mod limits;
mod placement;
mod profiles;
mod rivals;
mod run;
mod why;
