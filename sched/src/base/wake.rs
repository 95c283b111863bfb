//! One word between a worker that goes to sleep and its kickers.
//!
//! The policies rely on it ([`crate::policy::Kick`]: "a kick must not be lost") and so it lives, and is model-checked,
//! beside them. The caller brings what the worker sleeps *on*: an eventfd, a ring, a futex.
//!
//! # Shape
//! ```text
//!               kick                       kick: caller must ring
//!   RUNNING ───────────▶ NOTIFIED ◀──────────────────────── SLEEPING
//!      ▲  ▲                 │                                  ▲
//!      │  └── may_sleep ────┘ (false: look again)              │
//!      └──────────────── may_sleep (true) ─────────────────────┘
//! ```
//!
//! # Invariants
//! W1. After `kick()` returned, the worker runs a full turn that began after the call (sees what was published
//!     before it), or the kick returned true and the caller rings whatever the worker sleeps on.
//! W2. Between two calls of `may_sleep`, at most one `kick` returns true: one ring per sleep, however many kick.
//!
//! # Ordering
//! Both sides change the one word by read-modify-write, so they are ordered by its modification order, and each RMW
//! is AcqRel: whichever comes second sees what the first had published. No store-buffer pattern, hence no fence.
//!
//! Cost: kicking a running worker that is already notified is one RMW on its line; nothing else is touched.

use crate::sync::{AtomicU32, Ordering::AcqRel};

const RUNNING: u32 = 0;
const NOTIFIED: u32 = 1;
const SLEEPING: u32 = 2;

/// The state of one worker, awake, asleep or kicked, for the worker and its kickers.
#[derive(Debug)]
pub struct WakeWord {
    state: AtomicU32,
}

impl Default for WakeWord {
    fn default() -> Self {
        WakeWord { state: AtomicU32::new(RUNNING) }
    }
}

impl WakeWord {
    /// For the kicker, after it published what the worker shall find. True: the worker sleeps, ring it.
    #[must_use = "a sleeping worker must be rung"]
    pub fn kick(&self) -> bool {
        // AcqRel: pairs with the RMWs in `may_sleep` and `woke`. If ours comes first, the worker's RMW sees NOTIFIED
        // and with it what we published; if theirs comes first, we see SLEEPING and ring.
        self.state.swap(NOTIFIED, AcqRel) == SLEEPING
    }

    /// For the worker, when a turn found nothing to do. True: it may sleep, and must call [`WakeWord::woke`] after.
    /// False: a kick came since the last call; look again.
    pub fn may_sleep(&self) -> bool {
        // AcqRel: pairs with `kick`. Failure needs Acquire to see what the kicker published; the swap below takes it.
        if self.state.compare_exchange(RUNNING, SLEEPING, AcqRel, crate::sync::Ordering::Acquire).is_ok() {
            return true;
        }
        self.woke();
        false
    }

    /// For the worker, running: a kick came since the last `woke` or `may_sleep`. True: it may go on as if a sleep had
    /// been ended, by [`WakeWord::woke`] and a turn.
    pub fn is_kicked(&self) -> bool {
        // Relaxed: a hint; the swap in `woke` that follows takes what the kicker published.
        self.state.load(crate::sync::Ordering::Relaxed) == NOTIFIED
    }

    /// For any thread: the worker sleeps, and no kick has come since.
    pub fn is_sleeping(&self) -> bool {
        // Relaxed: a hint.
        self.state.load(crate::sync::Ordering::Relaxed) == SLEEPING
    }

    /// For the worker: it runs (again). Kicks from here on need no ring.
    pub fn woke(&self) {
        // AcqRel: pairs with `kick`: the turn that follows sees what was published before any kick swallowed here.
        self.state.swap(RUNNING, AcqRel);
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_kick_of_a_sleeper_rings() {
        let word = WakeWord::default();
        assert!(word.may_sleep());
        assert!(word.kick());
        assert!(!word.kick());
        word.woke();
        assert!(!word.kick(), "running: no ring");
        assert!(word.is_kicked());
        assert!(!word.may_sleep(), "kicked since: look again");
        assert!(!word.is_kicked());
        assert!(word.may_sleep());
    }
}

#[cfg(all(test, mqfq_loom))]
mod loom_tests {
    use super::*;
    use crate::sync::model::{Arc, model, thread};
    use crate::sync::{AtomicBool, Ordering::Relaxed};

    /// Race: work published just as the worker decides to sleep. Shown to fail with Relaxed in `kick` (the worker takes
    /// the notification and does not see the work) and with a plain store of SLEEPING in `may_sleep` (kick lost).
    #[test]
    fn loom_a_kick_beside_falling_asleep_is_not_lost() {
        model(|| {
            let word = Arc::new(WakeWord::default());
            let work = Arc::new(AtomicBool::new(false));
            let (their_word, their_work) = (word.clone(), work.clone());
            let kicker = thread::spawn(move || {
                their_work.store(true, Relaxed);
                their_word.kick()
            });
            let mut seen = work.load(Relaxed);
            let mut asleep = false;
            if !seen {
                asleep = word.may_sleep();
                if !asleep {
                    seen = work.load(Relaxed);
                }
            }
            let rung = kicker.join().unwrap();
            assert!(seen || (asleep && rung), "work is published, yet the worker sleeps and nobody rings");
        });
    }
}
