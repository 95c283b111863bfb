//! The block layer: staging, dispatch, completion, devices, and the workers that run them.
//!
//! The data path itself ([`hctx`]) is a function of state and time and needs no feature. The feature `uring` (default)
//! adds what touches the machine: workers, the ring, the clock, and the file device.

pub mod buffer;
pub mod client;
pub mod device;
pub mod hctx;
pub mod request;
pub mod stage;
pub mod stats;
pub mod table;
pub mod tag;

#[cfg(feature = "uring")]
pub mod clock;
#[cfg(feature = "uring")]
pub mod engine;
#[cfg(feature = "uring")]
pub mod kick;
#[cfg(feature = "uring")]
pub mod machine;
#[cfg(feature = "uring")]
mod patience;
#[cfg(feature = "uring")]
pub mod ring;
#[cfg(feature = "uring")]
mod worker;

pub use mqfq_sched::cost::{CostModel, CostTerm};
pub use mqfq_sched::flow::{FlowId, Weight, WeightOutOfRange};
pub use mqfq_sched::policy::{PolicyKind, PolicyOptions};
pub use mqfq_sched::topology::{HctxId, Topology};
pub use mqfq_sched::vtime::{VSpan, VTime};
