//! Effects of the data path on requests besides scheduling, mostly in virtual time: the very contexts that the workers
//! run.

mod accounting;
mod data_path;
mod direct;
mod faults;
mod harness;
mod no_allocation;
mod power_cuts;
mod recall;
mod refused;
mod splitting;
mod timeouts;
mod worker;
