//! Project chores as a library, so that the tidy test and the `xtask` binary share one implementation.

pub mod chores;
pub mod databases;
pub mod engine;
pub mod guest;
pub mod licences;
pub mod mutants;
pub mod package;
pub mod planted;
pub mod release;
pub mod run;
pub mod size;
pub mod soak;
pub mod suites;
pub mod tidy;
pub mod tools;
pub mod vopr;
