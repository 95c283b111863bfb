//! Should a worker that waits for another one's kick spin or sleep?
//!
//! Answers: will the kick come sooner than a sleep and a wake-up take? A queue that is ahead of virtual time, or lacks
//! a token, waits for another worker's next step, which on a fast device is a microsecond away; to sleep and be woken
//! takes ten or more. On a slow device it is a millisecond away, and spinning only burns a core. Which it is, is
//! learnt: spin for as long as a sleep would cost, and after each time in vain leave the next 1, 2, 4, ... waits to
//! sleep. So at worst the cost is twice that of knowing in advance while waits are short, and vanishes while they are
//! long.

/// Most waits in a row that are slept through before spinning is tried again.
const SKIPS_MAX: u32 = 16;

/// Decides for one worker whether its next wait spins or sleeps, by how its last spins ended.
#[derive(Default)]
pub(crate) struct Patience {
    /// Waits to sleep through before the next spin.
    skips: u32,
    /// Value of `skips` after the next spin without a kick.
    next_skips: u32,
}

impl Patience {
    /// True if the worker spins at the start of a wait.
    pub(crate) fn spins(&mut self) -> bool {
        if self.skips > 0 {
            self.skips -= 1;
            return false;
        }
        true
    }

    /// A spin has ended; something came, or the time was up.
    pub(crate) fn spun(&mut self, something_came: bool) {
        if something_came {
            *self = Patience::default();
        } else {
            self.skips = self.next_skips.max(1);
            self.next_skips = (2 * self.skips).min(SKIPS_MAX);
        }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn spinning_in_vain_becomes_rare_and_one_success_restores_it() {
        let mut patience = Patience::default();
        let mut spins = 0;
        for _ in 0..10_000 {
            if patience.spins() {
                spins += 1;
                patience.spun(false);
            }
        }
        // 1, 2, 4 and 8 waits are slept through after the first four spins, then 16 after each.
        assert!((580..=600).contains(&spins), "{spins} spins in 10,000 waits");
        while !patience.spins() {}
        patience.spun(true);
        // As at the start: the waits slept through after each spin in vain grow from one again.
        let mut skipped = || {
            let skipped = (0..).take_while(|_| !patience.spins()).count();
            patience.spun(false);
            skipped
        };
        assert_eq!([(); 7].map(|()| skipped()), [0, 1, 2, 4, 8, 16, 16]);
    }
}
