//! Whether to stay awake for the next event, and for how long.
//!
//! A wait that is slept through costs a wake-up; one that is spun through costs a core for its length. A wake-up takes
//! from 2 to 200 us, by the machine, so its price is measured ([`WakePrice`]), and waits are learnt ([`Patience`]).
//! Workers that wait for another one's kick, queues that wait for a guest, and sockets all wait by this file.
//!
//! # The window
//! With P the price of a wake-up, a window w costs a wait of length a, in time lost,
//! ```text
//!   awake(min(a, w)) + (a > w ? P : 0)      where awake(t) = 1/4 of t
//! ```
//! The window is the one with the least sum over the last waits, of those up to 4 P, the *ceiling*. So
//!
//! * a wait up to the ceiling that repeats itself is caught, and a longer one loses at most a quarter of its length: a
//!   closed loop gets at least 1/1.25 of the requests that the best fixed window gives, for any distribution of waits;
//! * sleepers learn as well as spinners: both see how long each wait was, and a sleep that ended sooner than P says
//!   that P is less for this waiter.
//!
//! It is the rule of ski rental: at worst a ceiling was spun where a sleep at once would have been right. A guest's
//! kick and another worker's cost them as well, and the one that kicks has often to be woken first, so four prices are
//! right for these; for a socket and a driver's queue a time awake counts in full, and P is the ceiling
//! ([`Patience::frugal`]).
//!
//! # Time spun in vain
//! The waits may depend on the window, as those for a peer do that wants the very processor which spins. So a wait
//! that was caught earns a ceiling, one that was not costs its window, and where nothing is left 1, 2, 4, ... waits are
//! slept through. Time spun in vain is at most a ceiling for each wait caught, [`CREDIT_CEILINGS`] besides, and a
//! ceiling for each [`SKIPS_MAX`] waits.

use crate::client::Context;

/// Price of a wake-up that was not measured yet, ns: that of a virtual machine.
pub const PRICE_NS: u64 = 50_000;

/// Bounds of a price, ns.
const PRICES_NS: std::ops::RangeInclusive<u64> = 2_000..=500_000;

/// Wake-ups of which the price is the lower quartile.
const SAMPLES: usize = 15;

/// Time that one worker's wake-up takes, from the ring of its bell to its turn: the lower quartile of the last ones.
/// The median would count how long it waits for a core that others use, which no spin saves.
#[derive(Clone, Debug)]
pub struct WakePrice {
    samples: [u32; SAMPLES],
    seen: usize,
    price_ns: u64,
}

impl Default for WakePrice {
    fn default() -> WakePrice {
        WakePrice { samples: [0; SAMPLES], seen: 0, price_ns: PRICE_NS }
    }
}

impl WakePrice {
    /// A wake-up took so long.
    pub fn saw(&mut self, ns: u64) {
        self.samples[self.seen % SAMPLES] = ns.clamp(*PRICES_NS.start(), *PRICES_NS.end()) as u32;
        self.seen += 1;
        let mut sorted = self.samples;
        let sorted = &mut sorted[..self.seen.min(SAMPLES)];
        sorted.sort_unstable();
        self.price_ns = sorted[sorted.len() / 4].into();
    }

    /// The price, 2,000 to 500,000 ns.
    pub fn ns(&self) -> u64 {
        self.price_ns
    }
}

/// A wake-up of the worker, as its clients see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wake {
    /// See [`WakePrice::ns`].
    pub price_ns: u64,
    /// This turn came after a sleep.
    pub has_slept: bool,
}

impl Wake {
    /// A wake-up that was not measured, of a worker that was awake.
    pub const UNKNOWN: Wake = Wake { price_ns: PRICE_NS, has_slept: false };
}

/// How long a waiter stays awake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Poll {
    /// As long as that pays.
    #[default]
    Auto,
    /// For so long, ns, as long as some waits end in that time; 0: never.
    For(u64),
}

/// Ends of the classes of waits are this times a power of two, ns.
const CLASS_NS: u64 = 1_000;

/// Classes of waits, up to 1 ms; longer ones are in none.
const CLASSES: usize = 11;

/// At so many waits the older ones count half.
const WAITS_MAX: u16 = 64;

/// Ceilings that may be spun in vain before the first wait is caught.
pub const CREDIT_CEILINGS: u64 = 4;

/// Most waits in a row that are slept through before spinning is tried again.
pub const SKIPS_MAX: u32 = 256;

/// Such waits of a window that is not learnt.
const FIXED_SKIPS_MAX: u32 = 16;

/// Prices of a wake-up in the longest window.
const CEILING_PRICES: u64 = 4;

/// Longest window for a price, ns: a longer wait is 1.25 times as long with a wake-up, or less.
pub fn ceiling_ns(price_ns: u64) -> u64 {
    (CEILING_PRICES * price_ns).min(CLASS_NS << (CLASSES - 1))
}

/// The waits of one waiter, and the window that follows from them.
#[derive(Clone, Debug)]
pub struct Patience {
    /// Waits by class; the last are longer than all classes, or than the ceiling.
    waits: [u16; CLASSES + 1],
    seen: u16,
    /// Mean of the last sleeps, each at most the price: a wake-up of this waiter costs no more, ns.
    sleep_ns: u64,
    /// Ceiling in prices.
    ceiling_prices: u64,
    /// Learnt; at most the ceiling of the price at which it is used.
    window_ns: u64,
    /// May be spun in vain, ns.
    credit_ns: u64,
    /// Waits to sleep through before the next spin.
    skips: u32,
    /// Value of `skips` after the next spin without credit.
    next_skips: u32,
}

impl Patience {
    /// Of a waiter that first sees a wait before it spins.
    pub fn cautious() -> Patience {
        let credit_ns = CREDIT_CEILINGS * ceiling_ns(PRICE_NS);
        let ceiling_prices = CEILING_PRICES;
        Patience {
            waits: [0; CLASSES + 1],
            seen: 0,
            sleep_ns: u64::MAX,
            ceiling_prices,
            window_ns: 0,
            credit_ns,
            skips: 0,
            next_skips: 0,
        }
    }

    /// Of a waiter that spins through its first wait.
    pub fn hopeful() -> Patience {
        Patience { window_ns: u64::MAX, ..Patience::cautious() }
    }

    /// As [`Patience::cautious`], but its ceiling is one price.
    pub fn frugal() -> Patience {
        Patience { ceiling_prices: 1, ..Patience::cautious() }
    }

    /// A sleep of this wait took so long, from its beginning to the end of its wake-up. Wake-ups by a peer may be
    /// cheaper than those that the worker has measured: one on the same core sleeps while we run.
    pub fn slept(&mut self, ns: u64, price_ns: u64) {
        if ns < *PRICES_NS.start() {
            // It ended before it began: no wake-up.
            return;
        }
        let ns = ns.min(price_ns);
        self.sleep_ns = if self.sleep_ns == u64::MAX { ns } else { (7 * self.sleep_ns + ns) / 8 };
    }

    /// The price of its own wake-ups, ns.
    pub fn own_price_ns(&self, price_ns: u64) -> u64 {
        price_ns.min(self.sleep_ns)
    }

    fn ceiling_ns(&self, price_ns: u64) -> u64 {
        (self.ceiling_prices * self.own_price_ns(price_ns)).min(CLASS_NS << (CLASSES - 1))
    }

    /// A wait begins: the time to stay awake, ns; 0: sleep at once.
    #[inline]
    pub fn window_ns(&mut self, poll: Poll, price_ns: u64) -> u64 {
        let window_ns = match poll {
            Poll::Auto => self.window_ns.min(self.ceiling_ns(price_ns)),
            Poll::For(ns) => ns,
        };
        if self.skips > 0 && window_ns > 0 {
            self.skips -= 1;
            return 0;
        }
        window_ns
    }

    /// The window of a wait has passed in vain.
    pub fn in_vain(&mut self, poll: Poll, window_ns: u64) {
        let most = if poll == Poll::Auto { SKIPS_MAX } else { FIXED_SKIPS_MAX };
        if poll == Poll::Auto && self.credit_ns >= window_ns {
            self.credit_ns -= window_ns;
            return;
        }
        self.skips = self.next_skips.clamp(1, most);
        self.next_skips = (2 * self.skips).min(most);
    }

    /// A wait has ended after so long, the wake-up apart. `caught`: within its window.
    #[inline]
    pub fn ended(&mut self, poll: Poll, after_ns: u64, caught: bool, price_ns: u64) {
        let ceiling_ns = self.ceiling_ns(price_ns);
        if caught {
            (self.skips, self.next_skips) = (0, 0);
            self.credit_ns = (self.credit_ns + ceiling_ns).min(CREDIT_CEILINGS * ceiling_ns);
        }
        if poll != Poll::Auto {
            return;
        }
        let class = if after_ns > ceiling_ns { CLASSES } else { class(after_ns) };
        self.waits[class] += 1;
        self.seen += 1;
        // Mostly a wait that was caught changes nothing.
        if !caught || self.seen.is_multiple_of(16) {
            self.learn(price_ns);
        }
    }

    /// The window that would have cost least.
    fn learn(&mut self, price_ns: u64) {
        if self.seen >= WAITS_MAX {
            self.waits.iter_mut().for_each(|waits| *waits /= 2);
            self.seen = self.waits.iter().sum();
        }
        let ceiling_ns = self.ceiling_ns(price_ns);
        let asleep = self.ceiling_prices * self.own_price_ns(price_ns);
        let (mut left, mut awake_ns) = (u64::from(self.seen), 0);
        let (mut best_ns, mut least) = (0, asleep * left);
        for (waits, class) in self.waits[..CLASSES].iter().zip(0..) {
            let window_ns = (CLASS_NS << class).min(ceiling_ns);
            let waits = u64::from(*waits);
            left -= waits;
            // Waits of a class are three quarters of its end on average.
            awake_ns += waits * window_ns * 3 / 4;
            let cost = awake_ns + left * window_ns + asleep * left;
            if cost < least {
                (best_ns, least) = (window_ns, cost);
            }
        }
        // A kick costs its sender as well, so a window that pays at all is not shorter than half a wake-up.
        let least_ns = if best_ns > 0 && self.ceiling_prices > 1 { self.own_price_ns(price_ns) / 2 } else { 0 };
        self.window_ns = best_ns.max(least_ns);
    }
}

/// How a client waits for what its peer sends on answers: a socket's next bytes, a driver's next commands.
#[derive(Clone, Debug)]
pub struct Answers {
    patience: Patience,
    /// Since when it waits, and its window, ns.
    wait: Option<(u64, u64)>,
}

impl Default for Answers {
    fn default() -> Answers {
        Answers { patience: Patience::frugal(), wait: None }
    }
}

impl Answers {
    /// The peer was sent answers: it may send something.
    pub fn sent(&mut self, context: &mut dyn Context, poll: Poll) {
        if self.wait.is_none() {
            let window_ns = self.patience.window_ns(poll, context.wake().price_ns);
            self.wait = Some((context.now_ns(), window_ns));
            if window_ns > 0 {
                context.stay_awake(window_ns);
            }
        }
    }

    /// It has sent something.
    pub fn received(&mut self, context: &mut dyn Context, poll: Poll) {
        let Some((since_ns, window_ns)) = self.wait.take() else { return };
        let Wake { price_ns, has_slept } = context.wake();
        let waited_ns = context.now_ns().saturating_sub(since_ns);
        let caught = window_ns > 0 && !has_slept;
        if window_ns > 0 && !caught {
            self.patience.in_vain(poll, window_ns);
        }
        let mut late_ns = 0;
        if has_slept {
            self.patience.slept(waited_ns.saturating_sub(window_ns), price_ns);
            late_ns = self.patience.own_price_ns(price_ns);
        }
        self.patience.ended(poll, waited_ns.saturating_sub(late_ns), caught, price_ns);
    }
}

/// The class of a wait, [`CLASSES`] for one that is in none.
fn class(ns: u64) -> usize {
    let class = u64::BITS - (ns.saturating_sub(1) / CLASS_NS).leading_zeros();
    (class as usize).min(CLASSES)
}

#[cfg(test)]
mod tests;
