//! For how long does a queue look for heads without being kicked?
//!
//! A kick costs the guest an exit, and us an operation and perhaps a sleep. So a queue that found heads, or showed the
//! guest ends, which it answers with heads, looks again for a while before it asks for kicks: [`POLL_NS_MAX`] at most
//! after the last of them, twice as long as before if a kick came within that time all the same, and not at all once a
//! kick comes later. Where the longest while after an end brings nothing, there are no looks for [`CALM_NS`]: perhaps
//! the guest wants the very processor that looks. A look is one turn of the worker's loop, in which every other client
//! has a turn as well, and which enters the kernel only if something else is to be done there. An idle guest costs
//! nothing.
//!
//! For example, a guest answers ends after 20 us each time: its kicks make the while 6, 12 and 25 us, and then no kick
//! is needed. It pauses for a second: 25 us are looked through once, and the kick that ends the pause ends the looks.

/// Longest time that a queue looks for heads after the last one or the last end, ns: some kicks' worth.
pub const POLL_NS_MAX: u64 = 50_000;

/// Shortest: below, it is not worth a turn.
pub(super) const POLL_NS_LEAST: u64 = POLL_NS_MAX / 8;

/// No looks for so long after all of [`POLL_NS_MAX`] brought nothing, ns.
pub(super) const CALM_NS: u64 = 2_000_000;

/// How long to look for heads.
#[derive(Default)]
pub(super) struct Poll {
    window_ns: u64,
    /// When the last head was found, or the last end shown, on the engine's clock.
    busy_ns: u64,
    /// It was an end: the guest's turn, not the device's.
    is_shown: bool,
    /// No looks before this.
    calm_until_ns: u64,
    /// A look is asked for.
    pub is_asked: bool,
}

impl Poll {
    /// A head was found.
    pub fn has_found(&mut self, now_ns: u64) {
        (self.busy_ns, self.is_shown) = (now_ns, false);
    }

    /// The guest was shown ends. True: look for its next heads.
    pub fn has_shown(&mut self, now_ns: u64) -> bool {
        (self.busy_ns, self.is_shown) = (now_ns, true);
        self.window_ns > 0
    }

    /// A kick came: looking on would have found its head, or would not.
    pub fn kicked(&mut self, now_ns: u64) {
        let would_have_paid = now_ns.saturating_sub(self.busy_ns) <= POLL_NS_MAX;
        self.window_ns = match would_have_paid && now_ns >= self.calm_until_ns {
            true => (self.window_ns * 2).clamp(POLL_NS_LEAST, POLL_NS_MAX),
            false => 0,
        };
    }

    /// Nothing is in the ring. True: look again.
    pub fn goes_on(&mut self, now_ns: u64) -> bool {
        let goes_on = now_ns.saturating_sub(self.busy_ns) < self.window_ns;
        if !goes_on && self.is_shown && self.window_ns == POLL_NS_MAX {
            self.window_ns = 0;
            self.calm_until_ns = now_ns + CALM_NS;
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the last end was shown, ns.
    const SHOWN_NS: u64 = 1_000_000;

    /// A queue whose while is the longest, and was begun by an end.
    fn longest() -> Poll {
        let mut poll = Poll::default();
        for _ in 0..4 {
            poll.has_shown(SHOWN_NS);
            poll.kicked(SHOWN_NS);
        }
        assert_eq!((poll.window_ns, poll.has_shown(SHOWN_NS)), (POLL_NS_MAX, true));
        poll
    }

    #[test]
    fn a_kick_within_the_longest_while_doubles_the_while_and_a_later_one_ends_it() {
        let mut poll = Poll::default();
        assert!(!poll.has_shown(SHOWN_NS) && !poll.goes_on(SHOWN_NS), "nothing says that looks pay");
        for expected_ns in [POLL_NS_LEAST, POLL_NS_MAX / 4, POLL_NS_MAX / 2, POLL_NS_MAX, POLL_NS_MAX] {
            poll.has_found(SHOWN_NS);
            poll.kicked(SHOWN_NS + POLL_NS_MAX);
            assert_eq!(poll.window_ns, expected_ns);
        }
        poll.kicked(SHOWN_NS + POLL_NS_MAX + 1);
        assert_eq!((poll.window_ns, poll.has_shown(SHOWN_NS)), (0, false));
    }

    #[test]
    fn a_queue_looks_for_its_while_and_no_longer() {
        let mut poll = longest();
        assert!(poll.goes_on(SHOWN_NS) && poll.goes_on(SHOWN_NS + POLL_NS_MAX - 1));
        assert!(!poll.goes_on(SHOWN_NS + POLL_NS_MAX));
        // Heads were found and nothing was shown: it is the device's turn, and no look was in vain.
        let mut poll = longest();
        poll.has_found(SHOWN_NS);
        assert!(!poll.goes_on(SHOWN_NS + POLL_NS_MAX) && poll.has_shown(SHOWN_NS));
    }

    #[test]
    fn looks_that_brought_nothing_are_tried_again_when_the_calm_is_over() {
        let mut poll = longest();
        let given_up_ns = SHOWN_NS + POLL_NS_MAX;
        assert!(!poll.goes_on(given_up_ns));
        for (now_ns, window_ns) in
            [(given_up_ns, 0), (given_up_ns + CALM_NS - 1, 0), (given_up_ns + CALM_NS, POLL_NS_LEAST)]
        {
            assert!(!poll.has_shown(now_ns), "nor before a kick");
            poll.kicked(now_ns);
            assert_eq!(poll.window_ns, window_ns, "{} ns later", now_ns - given_up_ns);
        }
    }
}
