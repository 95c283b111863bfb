//! The block layer: staging, dispatch, completion, devices, and the workers that run them.
//!
//! The data path ([`hctx`]) and the loop around it ([`worker`]) are functions of state and of the answers of a
//! [`host`], and need no feature. The feature `uring` (default) adds what touches the machine: the worker's thread, the
//! ring, the clock, the engine, and the file device.

#[cfg(test)]
extern crate self as mqfq_blk; // for what `testing` writes into tests

pub mod ask;
pub mod buffer;
pub mod cap;
pub mod client;
pub mod command;
pub mod counters;
pub mod device;
pub mod device_info;
pub mod foreign;
pub mod hctx;
pub mod host;
pub mod latencies;
mod list;
pub mod pages;
pub mod path;
mod patience;
pub mod random;
pub mod request;
pub mod slots;
pub mod split;
pub mod stage;
pub mod state;
pub mod stats;
pub mod table;
pub mod tag;
pub mod trace;
pub mod tuning;
pub mod worker;

#[cfg(feature = "uring")]
mod bus_error;
#[cfg(feature = "uring")]
pub mod clock;
#[cfg(feature = "uring")]
pub mod engine;
#[cfg(feature = "uring")]
pub mod kick;
#[cfg(feature = "uring")]
pub mod machine;
#[cfg(feature = "uring")]
pub mod passed;
#[cfg(feature = "uring")]
pub mod ring;
#[cfg(feature = "uring")]
pub mod steps;

pub use mqfq_sched::class::PriorityClass;
pub use mqfq_sched::cost::{CostModel, CostTerm};
pub use mqfq_sched::flow::{EffectiveWeight, FlowId, Group, GroupId, Tree, TreeError, Weight, WeightOutOfRange};

pub use mqfq_sched::policy::{AnyPolicy, ClassWeights, OwnOptions, PolicyKind, PolicyOptions, Registry, UnknownPolicy};
pub use mqfq_sched::policy::{KeyText, Tunable};
pub use mqfq_sched::topology::{HctxId, Topology};
pub use mqfq_sched::vtime::{VSpan, VTime};
pub use mqfq_sched::window_rule::WINDOW_LEAST;
