//! Tests of the crate as its users see it, in one binary: each more is linked and run on its own.

// For the oracle of `rivals`: the scheduler whose atomics tell a watcher.
extern crate mqfq_sched_watched as mqfq_sched;

mod caps;
mod cpu;
mod cpu_practical;
mod goal;
mod golden;
mod intake;
mod placement;
mod profiles;
mod rivals;
mod run;
mod split;
mod starved;
mod why;
mod write_cost;
