//! What tenants ask for, and when. Pure: time comes in, requests go out.
//!
//! A [`Source`] is one thread of a tenant. Its owner (a client on a worker, real or virtual) calls [`Source::next`] at the
//! start, after each completion and at the time that it asked for, until it says to wait.
//!
//! ```text
//!   arrival   closed · open · phases · a trace           when requests come (one file each)
//!   shape     sizes · mix · random, sequential, zipfian  what they are
//!   models    names for both, with where the numbers are from
//! ```

pub mod models;
pub mod trace;

use std::sync::Arc;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// A write; otherwise a read.
    pub is_write: bool,
    /// First byte.
    pub offset_bytes: u64,
    /// Length.
    pub length_bytes: u32,
    /// When it came (of an open loop: should have come): latencies begin here.
    pub arrived_ns: u64,
}

/// What to do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Submit this, then call [`Source::next`] again.
    Ask(Ask),
    /// Call again at this time, or after a completion if that is earlier.
    WaitUntil(u64),
    /// Call again after a completion.
    WaitForCompletion,
    /// Nothing more will come.
    Done,
}

/// One thread of a tenant.
pub trait Source {
    /// What to do at `now_ns`, which never goes back.
    fn next(&mut self, now_ns: u64) -> Step;

    /// A request of this thread completed.
    fn completed(&mut self, now_ns: u64);
}

/// A request of a recorded trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceRequest {
    /// From the start of the trace.
    pub at_ns: u64,
    /// A write; otherwise a read.
    pub is_write: bool,
    /// First byte.
    pub offset_bytes: u64,
    /// Length.
    pub length_bytes: u32,
}

/// A recorded trace, shared by the threads that play it and by the scenarios of a sweep.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    /// In the order of their times.
    pub requests: Arc<[TraceRequest]>,
    /// Each has its time. Otherwise times are only the earliest ones (fio's version 2 knows nothing but waits), and requests are asked for
    /// as the depth allows.
    pub timed: bool,
}
