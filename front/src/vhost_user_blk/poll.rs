//! For how long does a queue look for heads without being kicked?
//!
//! A kick costs the guest an exit, and us an operation and perhaps a sleep. So a queue that found heads, or showed the
//! guest ends, which it answers with heads, looks again for a while before it asks for kicks: at most for what a few
//! wake-ups take ([`Context::poll_ns`]) after the last of them, twice as long as before if a kick came within that time
//! all the same, and not at all once a kick comes later. Where the longest while after an end brings nothing, there are
//! no looks for [`CALM_NS`]: perhaps the guest wants the very processor that looks. So looks in vain take at most a
//! ninth of a core (250 us of 2,250). A look is one turn of the worker's loop, in which every other client has a turn
//! as well, and which enters the kernel only if something else is to be done there. An idle guest costs nothing.
//!
//! For example, a guest answers ends after 20 us each time, and the longest while is 50 us: its kicks make the while 6,
//! 12 and 25 us, and then no kick is needed. It pauses for a second: 25 us are looked through once, and the kick that
//! ends the pause ends the looks.
//!
//! An export's `poll` says otherwise: each while is as long as that, or there is none.

use crate::export::Poll;
use mqfq_blk::client::Context;

/// The shortest while is this part of the longest: a shorter one is not worth a turn.
pub(super) const PARTS: u64 = 8;

/// No looks for so long after the longest while brought nothing, ns.
pub(super) const CALM_NS: u64 = 2_000_000;

/// Time in which a queue looks for heads.
#[derive(Default)]
pub(super) struct Looks {
    window_ns: u64,
    /// When the last head was found, or the last end shown, on the engine's clock.
    busy_ns: u64,
    /// It was an end: the guest's turn, not the device's.
    is_shown: bool,
    /// The ring was looked at since then, and was empty.
    is_looking: bool,
    /// No looks before this.
    calm_until_ns: u64,
    /// A look is asked for.
    pub is_asked: bool,
}

impl Looks {
    /// A head was found.
    pub fn has_found(&mut self, now_ns: u64) {
        (self.busy_ns, self.is_shown, self.is_looking) = (now_ns, false, false);
    }

    /// The guest was shown ends. True: look for its next heads.
    pub fn has_shown(&mut self, poll: Poll, now_ns: u64) -> bool {
        (self.busy_ns, self.is_shown, self.is_looking) = (now_ns, true, false);
        self.window_ns(poll) > 0
    }

    /// A kick came: looking on would have found its head, or would not.
    pub fn kicked(&mut self, context: &dyn Context) {
        let (now_ns, longest_ns) = (context.now_ns(), context.poll_ns());
        let would_have_paid = now_ns.saturating_sub(self.busy_ns) <= longest_ns;
        self.window_ns = match would_have_paid && now_ns >= self.calm_until_ns {
            true => (self.window_ns * 2).clamp(longest_ns / PARTS, longest_ns),
            false => 0,
        };
    }

    /// Nothing is in the ring. True: look again.
    pub fn goes_on(&mut self, poll: Poll, context: &mut dyn Context) -> bool {
        let now_ns = context.now_ns();
        let looked_ns = now_ns.saturating_sub(self.busy_ns);
        let goes_on = looked_ns < self.window_ns(poll);
        if !goes_on && self.is_looking {
            context.looked_in_vain(looked_ns);
        }
        self.is_looking = goes_on;
        if !goes_on && self.is_shown && self.window_ns >= context.poll_ns() {
            self.window_ns = 0;
            self.calm_until_ns = now_ns + CALM_NS;
        }
        goes_on
    }

    fn window_ns(&self, poll: Poll) -> u64 {
        match poll {
            Poll::Auto => self.window_ns,
            Poll::For(ns) => ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    /// The longest while where a wake-up takes 50 us, ns.
    const LONGEST_NS: u64 = 200_000;

    /// When the last end was shown, ns.
    const SHOWN_NS: u64 = 1_000_000;

    fn at(now_ns: u64) -> Fake {
        Fake { now_ns, poll_ns: LONGEST_NS, ..Fake::default() }
    }

    /// A queue whose while is the longest, and was begun by an end.
    fn longest() -> Looks {
        let mut looks = Looks::default();
        for _ in 0..4 {
            looks.has_shown(Poll::Auto, SHOWN_NS);
            looks.kicked(&at(SHOWN_NS));
        }
        assert_eq!((looks.window_ns, looks.has_shown(Poll::Auto, SHOWN_NS)), (LONGEST_NS, true));
        looks
    }

    #[test]
    fn a_kick_within_the_longest_while_doubles_the_while_and_a_later_one_ends_it() {
        let mut looks = Looks::default();
        let auto = Poll::Auto;
        assert!(!looks.has_shown(auto, SHOWN_NS) && !looks.goes_on(auto, &mut at(SHOWN_NS)), "nothing says it pays");
        for part in [PARTS, 4, 2, 1, 1] {
            looks.has_found(SHOWN_NS);
            looks.kicked(&at(SHOWN_NS + LONGEST_NS));
            assert_eq!(looks.window_ns, LONGEST_NS / part);
        }
        looks.kicked(&at(SHOWN_NS + LONGEST_NS + 1));
        assert_eq!((looks.window_ns, looks.has_shown(auto, SHOWN_NS)), (0, false));
    }

    #[test]
    fn a_queue_looks_for_its_while_and_no_longer_and_tells_when_that_was_in_vain() {
        let auto = Poll::Auto;
        let mut looks = longest();
        for ns in [0, LONGEST_NS - 1] {
            assert!(looks.goes_on(auto, &mut at(SHOWN_NS + ns)));
        }
        let mut over = at(SHOWN_NS + LONGEST_NS);
        assert!(!looks.goes_on(auto, &mut over) && !looks.goes_on(auto, &mut over));
        assert_eq!(over.in_vain_ns, LONGEST_NS, "once");
        // Heads were found and nothing was shown: it is the device's turn, and no look was in vain.
        let mut looks = longest();
        looks.has_found(SHOWN_NS);
        let mut over = at(SHOWN_NS + LONGEST_NS);
        assert!(!looks.goes_on(auto, &mut over) && looks.has_shown(auto, SHOWN_NS));
        assert_eq!(over.in_vain_ns, 0);
    }

    #[test]
    fn looks_that_brought_nothing_are_tried_again_when_the_calm_is_over() {
        let mut looks = longest();
        let given_up_ns = SHOWN_NS + LONGEST_NS;
        assert!(!looks.goes_on(Poll::Auto, &mut at(given_up_ns)));
        for (now_ns, window_ns) in
            [(given_up_ns, 0), (given_up_ns + CALM_NS - 1, 0), (given_up_ns + CALM_NS, LONGEST_NS / PARTS)]
        {
            assert!(!looks.has_shown(Poll::Auto, now_ns), "nor before a kick");
            looks.kicked(&at(now_ns));
            assert_eq!(looks.window_ns, window_ns, "{} ns later", now_ns - given_up_ns);
        }
    }

    #[test]
    fn an_export_sets_the_while_or_forbids_it() {
        let mut looks = Looks::default();
        let poll = Poll::For(1_000_000);
        assert!(looks.has_shown(poll, SHOWN_NS), "without a kick that says that it pays");
        assert!(
            looks.goes_on(poll, &mut at(SHOWN_NS + 999_999)) && !looks.goes_on(poll, &mut at(SHOWN_NS + 1_000_000))
        );
        assert!(looks.has_shown(poll, SHOWN_NS), "nor does a while in vain end it");
        let mut looks = longest();
        assert!(!looks.has_shown(Poll::For(0), SHOWN_NS) && !looks.goes_on(Poll::For(0), &mut at(SHOWN_NS)));
    }
}
