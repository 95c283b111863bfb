//! Tests of the crate as its users see it, in one binary: each more is linked and run on its own.

mod agreement;
mod bound;
mod fair_queue;
mod history;
mod ideal;
mod lag;
mod no_allocation;
mod patience;
