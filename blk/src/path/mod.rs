//! The way of a request through one worker and one device.
//!
//! | file | answers |
//! |---|---|
//! | `hctx.rs` | which path does a request take, and what may a worker ask of a context |
//! | `request_path.rs` | what do all paths have |
//! | `admit.rs` | how is a request taken in, and what is it charged |
//! | `dispatch.rs` | when does a staged request go to the device, how does its command get there, and again |
//! | `direct.rs`, `bypass.rs` | when does a request go that is not staged |
//! | `complete.rs` | how does a request end |
//! | `parts.rs`, `split.rs` | what is a part of a request, when are requests cut, and when has the whole ended |
//! | `recall.rs` | how does a request that waits for the device get back to its client |
//! | `fair_intake.rs` | when does a turn of the loop end for the sake of fairness |
//! | `timeout.rs` | what becomes of a command that the device does not end |
//! | `stage.rs`, `table.rs` | how much may a flow stage, and where is a request until it has ended |
//! | `request_path.rs`, `counters.rs`, `stats.rs`, `latencies.rs`, `trace.rs` | what is counted and recorded |
//! | `write_cost_meter.rs`, `tuning.rs` | what does a write cost the device now, and which D and T suit it |
//! | `changes.rs` | what changes while it serves: flows, their bounds, the size of its tables |
//! | `path_options.rs` | what does a context take, and what does it answer |

mod admit;
mod bypass;
mod changes;
mod complete;
pub mod counters;
mod direct;
mod dispatch;
mod fair_intake;
pub mod hctx;
pub mod latencies;
mod parts;
pub mod path_options;
mod recall;
mod request_path;
pub mod split;
pub mod stage;
pub mod stats;
pub mod table;
mod timeout;
pub mod trace;
pub mod tuning;
mod write_cost_meter;
