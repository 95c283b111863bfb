//! Do all workers still turn? For a watchdog, which must not be content with a process that merely exists.

use super::Engine;

impl Engine {
    /// Turns that each worker has ended, in the order of the workers; the numbers wrap.
    pub fn turns(&self) -> Vec<u64> {
        self.shared.turns()
    }

    /// Has each worker turn once more, also one that sleeps: its number in [`Engine::turns`] will change soon, unless
    /// it hangs.
    pub fn wake_workers(&self) {
        self.shared.bells.iter().for_each(|bell| bell.kick());
    }
}
