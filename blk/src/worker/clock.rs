//! The only reader of time in this crate: nanoseconds since the engine started.

use std::time::Instant;

/// A monotone clock that all workers of an engine share.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Source);

#[derive(Clone, Copy, Debug)]
enum Source {
    /// The machine's time.
    Since(Instant),
    /// Time of an engine whose workers are stepped (`engine/steps.rs`).
    MadeUp(fn() -> u64),
}

impl Clock {
    /// A clock that starts at 0 now.
    pub fn start() -> Clock {
        Clock(Source::Since(Instant::now()))
    }

    /// A clock that shows what `now_ns` says, which never goes back.
    pub fn made_up(now_ns: fn() -> u64) -> Clock {
        Clock(Source::MadeUp(now_ns))
    }

    /// Nanoseconds since the start; wraps after 584 years.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match self.0 {
            Source::Since(start) => {
                let elapsed = start.elapsed();
                elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos())
            }
            Source::MadeUp(now_ns) => now_ns(),
        }
    }
}
