//! The only reader of time in this crate: nanoseconds since the engine started.

use std::time::Instant;

/// A monotone clock that all workers of an engine share.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts at 0 now.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// Nanoseconds since the start; wraps after 584 years.
    pub fn now_ns(&self) -> u64 {
        let elapsed = self.start.elapsed();
        elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos())
    }
}
