//! Tests of the crate as its users see it, in one binary: each more is linked and run on its own.

mod class_queues;
mod closed_loop;
mod drive_model;
mod histories;
mod probe;
mod weighted;
