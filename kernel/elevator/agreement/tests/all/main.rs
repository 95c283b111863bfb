//! Tests of the crate as its users see it, in one binary: each more is linked and run on its own.

mod controllers;
mod hierarchy;
mod histories;
mod memory;
mod processes;
mod races;
mod weights;
