//! Tests of the crate as its users see it, in one binary: each more is linked and run on its own.

mod bfq;
mod closed_loop;
mod d2fq;
mod elevators;
mod kyber;
mod mq_deadline;
