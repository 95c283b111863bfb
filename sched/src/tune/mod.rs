//! Parameters that follow the device while it runs: the window T and the cost of a write. D is in [`crate::depth`].

pub mod window_rule;
pub mod write_cost;
