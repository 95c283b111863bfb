//! For how long does a queue look for heads without being kicked?
//!
//! A kick costs the guest an exit, and us an operation. So a queue that found heads looks again for a while before it
//! asks for kicks: [`POLL_NS_MAX`] at most after the last head, twice as long as before if a kick came within that
//! time, half as long if a whole while brought nothing, and then not at all. A look is one turn of the worker's loop,
//! in which everybody else has a turn as well, and which enters the kernel only if something else is to be done there.
//! An idle guest costs nothing.

/// Longest time that a queue looks for heads after the last one, ns: some kicks' worth.
pub const POLL_NS_MAX: u64 = 50_000;

/// Shortest: below, it is not worth a turn.
pub(super) const POLL_NS_LEAST: u64 = POLL_NS_MAX / 8;

/// How long to look for heads.
#[derive(Default)]
pub(super) struct Poll {
    window_ns: u64,
    /// When the last head was found, on the engine's clock.
    pub found_ns: u64,
    /// A look is asked for.
    pub is_asked: bool,
}

impl Poll {
    /// A kick came: looking on would have found its head, or would not.
    pub fn kicked(&mut self, now_ns: u64) {
        let would_have_paid = now_ns.saturating_sub(self.found_ns) <= POLL_NS_MAX;
        self.window_ns = match would_have_paid {
            true => (self.window_ns * 2).clamp(POLL_NS_LEAST, POLL_NS_MAX),
            false => 0,
        };
    }

    /// Nothing is in the ring. True: look again.
    pub fn goes_on(&mut self, now_ns: u64) -> bool {
        if self.window_ns == 0 {
            return false;
        }
        let goes_on = now_ns.saturating_sub(self.found_ns) < self.window_ns;
        if !goes_on {
            self.window_ns = Some(self.window_ns / 2).filter(|window| *window >= POLL_NS_LEAST).unwrap_or(0);
        }
        goes_on
    }
}
