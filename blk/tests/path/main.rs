//! Effects of the data path on requests besides scheduling, in virtual time: the very contexts that the workers run.

mod bounds;
mod costs;
mod faults;
mod harness;
mod power_cuts;
mod recall;
mod refused;
mod splitting;
mod timeouts;
