//! The block layer: staging, dispatch, completion, devices, and the workers that run them.
//!
//! | room | has | uses |
//! |---|---|---|
//! | `edge` | clients and what they ask, requests, buffers, caps | |
//! | `ring` | one io_uring for a worker | `edge` |
//! | `device` | files, memory, the modelled drive | `edge`, `ring` |
//! | `path` | a request from its client to the device queue and back | `edge`, `device` |
//! | `worker` | the loop, its clients, its thread, what workers share | all above |
//! | `engine` | devices, flows and policies over all workers | all above |
//!
//! The data path ([`hctx`]) and the loop around it ([`worker`]) are functions of state and of the answers of a
//! [host](worker::host), and need no feature. The feature `uring` (default) adds what touches the machine: the worker's
//! thread, the ring, the clock, the engine, and the file device.

#[cfg(all(test, not(mqfq_loom)))]
extern crate self as mqfq_blk; // for what `testing` writes into tests

pub mod device;
mod edge;
mod path;
pub mod worker;

#[cfg(feature = "uring")]
pub mod engine;
#[cfg(feature = "uring")]
pub mod ring;

#[cfg(feature = "uring")]
pub use edge::passed;
pub use edge::{ask, buffer, cap, client, command, extents, foreign, pages, random, request, slots, state, tag};
pub use path::{counters, hctx, latencies, path_options, split, stage, stats, table, trace, tuning};

pub use mqfq_sched::class::PriorityClass;
pub use mqfq_sched::cost::{CostModel, CostTerm};
pub use mqfq_sched::flow::{EffectiveWeight, FlowId, Group, GroupId, Tree, TreeError, Weight, WeightOutOfRange};

pub use mqfq_sched::policy::{AnyPolicy, ClassWeights, OwnOptions, PolicyKind, PolicyOptions, Registry, UnknownPolicy};
pub use mqfq_sched::policy::{KeyText, Tunable};
pub use mqfq_sched::topology::{HctxId, Topology};
pub use mqfq_sched::vtime::{VSpan, VTime};
pub use mqfq_sched::window_rule::WINDOW_LEAST;
