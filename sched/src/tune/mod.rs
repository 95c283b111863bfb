//! Parameters that follow the device while it runs: D and goals that lower it, the window T, the cost of a write.

pub mod depth;
pub mod goal;
pub mod window_rule;
pub mod write_cost;
