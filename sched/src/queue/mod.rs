//! One worker's queue of staged requests, ordered by start tag.

mod lane_order;
pub mod stage_queue;
