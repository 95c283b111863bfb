//! Tests of the crate as its users see it, in one binary: each more is linked and run on its own.

mod bound;
mod commands;
mod parity;
mod rivals;
mod virtual_time;
