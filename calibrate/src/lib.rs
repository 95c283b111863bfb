//! Calibration: a device is loaded as tenants load it, and what it gives becomes a config.
//!
//! ```text
//!   Bench ──(load, window)──▶ counts ──▶ sweep: depth by depth, size by size ──▶ curves
//!     │ a file: the engine, in wall time                                            │
//!     │ a modelled drive: the worker's loop, in virtual time                        ▼
//!   config and profile ◀── finding: terms of cost, knee, latency, bandwidth ◀── fit: a line through the sizes
//! ```
//!
//! | file | answers |
//! |---|---|
//! | [`mod@bench`] | how is a load run on the device, and by which clock? |
//! | [`virtual_time`] | how does a worker run where time is made up? |
//! | [`sweep`] | which loads are run, where is the knee, and which line describes the time of a request by its size? |
//! | [`finding`] | what follows for the config? |
//! | [`report`] | the tables, the picture and the config as text |
//!
//! # Invariants
//! * The device is driven by the worker's loop and the device layer that serve tenants, and by the load of the demo.
//! * Nothing is recommended that was not measured: without writes there is no term for writes.

pub mod bench;
pub mod finding;
pub mod report;
pub mod sweep;
pub mod virtual_time;
