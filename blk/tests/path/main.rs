//! What the data path does to requests besides scheduling them, in virtual time: the very contexts that the workers
//! run.

mod bounds;
mod costs;
mod faults;
mod harness;
mod merging;
mod power_cuts;
mod recall;
mod refused;
mod splitting;
mod timeouts;
