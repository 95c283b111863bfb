//! For how long does a queue look for heads without being kicked?
//!
//! A kick costs the guest an exit, and us an operation and perhaps a sleep. So a queue that found heads, or showed the
//! guest ends, which it answers with heads, looks again for a while before it asks for kicks, as long as that pays
//! (`mqfq_blk::patience`): the answers of the guest are learnt apart from what follows on heads. A look is one turn of
//! the worker's loop, in which every other client has a turn as well, and which enters the kernel only if something
//! else is to be done there. An idle guest costs nothing.
//!
//! For example, a guest answers ends after 20 us each time: its first kick says so, and then no kick is needed. It
//! pauses for a second: 32 us are looked through once, and one such pause in a thousand changes nothing.

use mqfq_blk::client::Context;
use mqfq_blk::patience::{Patience, Poll, ceiling_ns};

/// A wait for heads.
#[derive(Clone, Copy)]
struct Wait {
    /// When the last head was found, or the last end shown, on the engine's clock.
    since_ns: u64,
    /// It was an end: the guest's turn, not the device's.
    is_shown: bool,
    /// How long to look.
    window_ns: u64,
    /// The window has passed, or there was none.
    is_over: bool,
}

/// How long to look for heads.
pub(super) struct Looks {
    /// After a head.
    found: Patience,
    /// After ends.
    shown: Patience,
    wait: Option<Wait>,
    /// A look is asked for.
    pub is_asked: bool,
}

impl Looks {
    /// Looks of a ring that has had none.
    pub fn new() -> Looks {
        Looks { found: Patience::cautious(), shown: Patience::cautious(), wait: None, is_asked: false }
    }

    fn patience(&mut self, is_shown: bool) -> &mut Patience {
        if is_shown { &mut self.shown } else { &mut self.found }
    }

    /// A head was found.
    #[inline]
    pub fn has_found(&mut self, context: &mut dyn Context, poll: Poll) {
        if self.wait.is_some() {
            self.end(context, poll, true);
        }
    }

    /// The guest was shown ends. True: look for its next heads.
    pub fn has_shown(&mut self, context: &mut dyn Context, poll: Poll) -> bool {
        self.end(context, poll, false);
        self.begin(context, poll, true).window_ns > 0
    }

    fn begin(&mut self, context: &mut dyn Context, poll: Poll, is_shown: bool) -> Wait {
        let window_ns = self.patience(is_shown).window_ns(poll, context.wake().price_ns);
        let wait = Wait { since_ns: context.now_ns(), is_shown, window_ns, is_over: window_ns == 0 };
        self.wait = Some(wait);
        wait
    }

    /// Nothing is in the ring. True: look again.
    pub fn goes_on(&mut self, context: &mut dyn Context, poll: Poll) -> bool {
        let wait = match self.wait {
            Some(wait) => wait,
            None => self.begin(context, poll, false),
        };
        let Wait { since_ns, is_shown, window_ns, is_over } = wait;
        let waited_ns = context.now_ns().saturating_sub(since_ns);
        if is_over || waited_ns < window_ns {
            return !is_over;
        }
        self.wait = Some(Wait { is_over: true, ..wait });
        self.patience(is_shown).in_vain(poll, window_ns);
        context.in_vain(waited_ns);
        false
    }

    /// The wait is over: a head has come, or an end was shown before one.
    fn end(&mut self, context: &mut dyn Context, poll: Poll, has_come: bool) {
        let Some(Wait { since_ns, is_shown, window_ns, is_over }) = self.wait.take() else { return };
        let waited_ns = context.now_ns().saturating_sub(since_ns);
        let wake = context.wake();
        let caught = !is_over;
        let after_ns = match has_come {
            true if caught => waited_ns,
            // A sleep has ended later than the wait.
            true if wake.has_slept => {
                let patience = self.patience(is_shown);
                patience.slept(waited_ns.saturating_sub(window_ns), wake.price_ns);
                waited_ns.saturating_sub(patience.own_price_ns(wake.price_ns)).max(window_ns + 1)
            }
            true => waited_ns,
            // Not even then; a short wait says nothing.
            false if caught || waited_ns <= window_ns.max(ceiling_ns(wake.price_ns) / 4) => return,
            false => u64::MAX,
        };
        self.patience(is_shown).ended(poll, after_ns, caught, wake.price_ns);
    }
}
