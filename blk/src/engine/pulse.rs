//! Do all workers still turn? For a watchdog, which must not be content with a process that merely exists.

use super::Engine;
use std::time::Duration;

/// Wake-ups by which a price is first known, and the sleep before each.
const FIRST: (usize, Duration) = (5, Duration::from_micros(500));

impl Engine {
    /// Turns that each worker has ended, in the order of the workers; the numbers wrap.
    pub fn turns(&self) -> Vec<u64> {
        self.shared.turns()
    }

    /// Wakes the workers a few times, so that each knows what a wake-up takes before it has a client.
    pub(super) fn price_wake_ups(&self) {
        let (count, sleep) = FIRST;
        for _ in 0..count {
            std::thread::park_timeout(sleep);
            self.wake_workers();
        }
    }

    /// Has each worker turn once more, also one that sleeps: its number in [`Engine::turns`] will change soon, unless
    /// it hangs.
    pub fn wake_workers(&self) {
        self.shared.bells.iter().for_each(|bell| bell.kick());
    }
}
