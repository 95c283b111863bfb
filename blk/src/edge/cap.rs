//! How often, and how much, may a tenant or an export ask at most?
//!
//! A share is relative and has no end: a tenant that is alone gets the whole device. A cap is an end: so many requests
//! per second, so many bytes per second, whatever is free. One [`Cap`] is shared by all workers; each takes from it
//! before a request is staged (`worker/cap_queue.rs`), so a request that waits for a cap waits in its socket, is not
//! backlogged to the policy, and leaves its part of the device to others.
//!
//! # The rule
//! The generic cell rate algorithm in its form of virtual scheduling (ITU-T I.371, annex A): a [`Budget`] is one word,
//! the time at which what was taken until now is paid for. A take of an amount
//!
//! 1. raises the word to [`BURST_NS`] before now, if it is lower: rest earns no more than that;
//! 2. adds what the amount costs, amount over rate, and may go when the time comes that the word had before.
//!
//! Both steps always succeed, whatever other workers take: no take is retried or refused. A later take gets a later
//! time, so workers have their turns in the order in which they came, and the times of two takes are apart by the whole
//! cost of the first. That makes the rate exact, and lets a request that costs more than the burst pass and owe: the
//! next one waits until it is paid.
//!
//! # Example
//! 100 requests per second: each costs 10 ms. The word stands at 1000 ms, and it is 1003 ms. A first take may go at
//! 1000 ms, so at once; a second at 1010 ms, a third on another worker at 1020 ms. Nothing happens until 5000 ms: the
//! word is raised to 4992 ms, so that two may go at once.
//!
//! # Exactness
//! Over any time t no more than rate x (t + [`BURST_NS`]) and one request more go. Over one second that is 0.8% and one
//! request. A tenant that always has something waiting loses nothing unless all its workers stay away for longer than
//! the burst. A cost is rounded to 1/16 ns: at most 0.85% for 512 bytes at 128 GiB/s, and 0.3% at 100 million requests
//! per second. Times are counted from the engine's start and do not wrap within 36 years.

use mqfq_sched::sync::{AtomicU64, Ordering, Setting, fence};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Most of a cap that can be saved up while no request comes, ns of its rate. A worker that comes this late for its
/// turn loses nothing: timers and busy cores are late by less.
pub const BURST_NS: u64 = 8_000_000;

/// Times of budgets are finer than the clock.
const UNITS_PER_NS: u64 = 16;
const UNITS_PER_S: u64 = UNITS_PER_NS * 1_000_000_000;
const BURST_UNITS: u64 = BURST_NS * UNITS_PER_NS;

/// Most that is owed after a change of the rate: a year. It keeps the word from wrapping.
const OWED_UNITS_MAX: u64 = 366 * 86_400 * UNITS_PER_S;

/// Largest amount that one request counts as, bytes: what fits the arithmetic. No client may ask for so much.
const AMOUNT_MAX: u64 = 1 << 30;

/// Limits of a cap; `None`: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CapLimits {
    /// Requests of any kind, per second, within [`CapLimits::IOPS`].
    pub iops: Option<u64>,
    /// Payload of reads and writes, bytes per second, within [`CapLimits::BYTES_PER_S`].
    pub bytes_per_s: Option<u64>,
}

impl CapLimits {
    /// No limits.
    pub const NONE: CapLimits = CapLimits { iops: None, bytes_per_s: None };

    /// Requests per second that can be set.
    pub const IOPS: RangeInclusive<u64> = 1..=100_000_000;

    /// Bytes per second that can be set.
    pub const BYTES_PER_S: RangeInclusive<u64> = 4096..=128 << 30;
}

/// Quantity that a cap limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capped {
    /// Requests.
    Iops,
    /// Bytes of payload.
    Bytes,
}

/// Waits for one limit of a cap, since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CapWaits {
    /// Requests that were the first of their worker to wait. Those behind them are not counted: they lie in sockets.
    pub requests: u64,
    /// Time for which those waited, ns, summed: over workers that wait at the same time, too.
    pub wait_ns: u64,
}

/// One limit, with the time at which all takes until now are paid for.
///
/// 128 bytes, not 64: x86-64 prefetches the other line of a pair.
#[derive(Debug)]
#[repr(align(128))]
struct Budget {
    /// Time at which all takes until now are paid for, in 1/16 ns since the engine's start.
    paid_units: AtomicU64,
    /// 0: no limit.
    per_s: Setting,
    requests: AtomicU64,
    wait_ns: AtomicU64,
    /// Number of workers with a waiting request, and since when there is one ([`Held`]).
    held: AtomicU64,
    /// Time during which any worker had one, until the last time that none had, ns.
    held_ns: AtomicU64,
}

/// In one word: workers in the upper 16 bits, the moment in 1024 ns below (9 years).
#[derive(Clone, Copy)]
struct Held(u64);

impl Held {
    const TICKS_BITS: u32 = 48;
    const TICK_NS: u64 = 1024;

    fn workers(self) -> u64 {
        self.0 >> Held::TICKS_BITS
    }

    fn since_ns(self) -> u64 {
        (self.0 & ((1 << Held::TICKS_BITS) - 1)) * Held::TICK_NS
    }

    fn begun(self, now_ns: u64) -> Held {
        let ticks = if self.workers() == 0 { now_ns / Held::TICK_NS } else { self.since_ns() / Held::TICK_NS };
        Held((self.workers() + 1) << Held::TICKS_BITS | ticks)
    }

    fn ended(self) -> Held {
        Held(self.0 - (1 << Held::TICKS_BITS))
    }
}

impl Budget {
    fn new(limit: Option<u64>) -> Budget {
        Budget {
            paid_units: AtomicU64::new(0),
            per_s: Setting::new(limit.unwrap_or(0), true),
            requests: AtomicU64::new(0),
            wait_ns: AtomicU64::new(0),
            held: AtomicU64::new(0),
            held_ns: AtomicU64::new(0),
        }
    }

    /// Notes that a worker begins to have a waiting request, or has none any more.
    fn hold(&self, begins: bool, now_ns: u64) {
        // Relaxed, all: sums for reports, as in `waited`; the word changes as a whole.
        let change = |held: Held| if begins { held.begun(now_ns) } else { held.ended() };
        let mut before = self.held.load(Ordering::Relaxed);
        loop {
            let after = change(Held(before)).0;
            // Relaxed, both: see above.
            match self.held.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => before = other,
            }
        }
        if !begins && Held(before).workers() == 1 {
            // Relaxed: see above.
            self.held_ns.fetch_add(now_ns.saturating_sub(Held(before).since_ns()), Ordering::Relaxed);
        }
    }

    fn held_ns(&self, now_ns: u64) -> u64 {
        // Relaxed, both: see `hold`.
        let (ended_ns, held) = (self.held_ns.load(Ordering::Relaxed), Held(self.held.load(Ordering::Relaxed)));
        ended_ns + if held.workers() > 0 { now_ns.saturating_sub(held.since_ns()) } else { 0 }
    }

    /// Takes `amount`, and says when that may go, ns. 0: at once.
    fn take(&self, amount: u64, now_ns: u64) -> u64 {
        let per_s = self.rate();
        if per_s == 0 || amount == 0 {
            return 0;
        }
        let floor_units = (now_ns * UNITS_PER_NS).saturating_sub(BURST_UNITS);
        // Relaxed, here and below: the word is all that there is to see, and nothing else is ordered by it. That each
        // change of it follows another one, on whichever worker, is what the times of two takes need to differ.
        let mut paid_units = self.paid_units.load(Ordering::Relaxed);
        while paid_units < floor_units {
            // Relaxed: see above.
            match self.paid_units.compare_exchange_weak(paid_units, floor_units, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => paid_units = other,
            }
        }
        // Relaxed: see above. Between the two steps other threads only add, or give back what they added since.
        self.paid_units.fetch_add(cost_units(amount, per_s), Ordering::Relaxed).div_ceil(UNITS_PER_NS)
    }

    /// Gives back an `amount` that was taken and will not be used.
    fn give_back(&self, amount: u64) {
        let per_s = self.rate();
        if per_s > 0 {
            self.change(|paid_units| paid_units.saturating_sub(cost_units(amount, per_s)));
        }
    }

    fn change(&self, to: impl Fn(u64) -> u64) {
        // Relaxed, all three: see `take`.
        let mut paid_units = self.paid_units.load(Ordering::Relaxed);
        while let Err(other) =
            self.paid_units.compare_exchange_weak(paid_units, to(paid_units), Ordering::Relaxed, Ordering::Relaxed)
        {
            paid_units = other;
        }
    }

    /// Sets the rate. Debts stay, in requests or bytes: they are paid at the new rate.
    fn set(&self, limit: Option<u64>, now_ns: u64) {
        let (old, new, now_units) = (self.per_s.get(), limit.unwrap_or(0), now_ns * UNITS_PER_NS);
        self.change(|paid_units| match paid_units.checked_sub(now_units) {
            // Without a limit before nothing was owed, and this comes to nothing.
            Some(owed_units) if new > 0 => {
                let owed_units = u128::from(owed_units) * u128::from(old) / u128::from(new);
                now_units.saturating_add(u64::try_from(owed_units).unwrap_or(u64::MAX).min(OWED_UNITS_MAX))
            }
            Some(_) => now_units,
            None => paid_units,
        });
        // The rate comes last: a take at the new one is not among these debts, where a hundredth of the rate would make
        // its second a hundred. One at the old rate that comes after them has its old price. Pairs with `rate`.
        fence(Ordering::Release);
        self.per_s.set(new);
    }

    /// Amount per second; 0: no limit.
    #[inline]
    fn rate(&self) -> u64 {
        let per_s = self.per_s.get();
        // Pairs with `set`: what is added at a rate comes after the debts at the one before.
        fence(Ordering::Acquire);
        per_s
    }

    fn limit(&self) -> Option<u64> {
        Some(self.per_s.get()).filter(|per_s| *per_s > 0)
    }

    fn waited(&self, wait_ns: u64) {
        // Relaxed, both: sums for reports, which need not be of one moment.
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.wait_ns.fetch_add(wait_ns, Ordering::Relaxed);
    }

    fn waits(&self) -> CapWaits {
        // Relaxed, both: see `waited`.
        CapWaits { requests: self.requests.load(Ordering::Relaxed), wait_ns: self.wait_ns.load(Ordering::Relaxed) }
    }
}

/// Cost of `amount` at `per_s`, which is not 0, rounded to the nearest.
fn cost_units(amount: u64, per_s: u64) -> u64 {
    (amount.min(AMOUNT_MAX) * UNITS_PER_S + per_s / 2) / per_s
}

/// Time at which a request may go, and the limit that sets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Due {
    pub(crate) at_ns: u64,
    pub(crate) why: Capped,
}

/// The cap of a tenant or of an export, shared by all workers. Tenants and exports without limits have one, too: limits
/// can be set while requests are under way (`Engine::set_cap`).
#[derive(Debug)]
pub struct Cap {
    requests: Budget,
    bytes: Budget,
}

impl Cap {
    /// A cap with these limits, none of it used.
    pub fn new(limits: CapLimits) -> Arc<Cap> {
        Arc::new(Cap { requests: Budget::new(limits.iops), bytes: Budget::new(limits.bytes_per_s) })
    }

    /// Limits in force now.
    pub fn limits(&self) -> CapLimits {
        CapLimits { iops: self.requests.limit(), bytes_per_s: self.bytes.limit() }
    }

    /// Waits until now for the limit on requests, or on bytes.
    pub fn waits(&self, limit: Capped) -> CapWaits {
        self.budget(limit).waits()
    }

    /// Time during which a request has waited for the limit until now, on any worker, ns: waits at the same time count
    /// once, and a wait under way counts.
    pub fn held_ns(&self, limit: Capped, now_ns: u64) -> u64 {
        self.budget(limit).held_ns(now_ns)
    }

    /// Notes that one worker begins to have a request that waits for a limit, or has none any more.
    pub(crate) fn hold(&self, why: Capped, begins: bool, now_ns: u64) {
        self.budget(why).hold(begins, now_ns);
    }

    fn budget(&self, limit: Capped) -> &Budget {
        match limit {
            Capped::Iops => &self.requests,
            Capped::Bytes => &self.bytes,
        }
    }

    /// Puts `limits` in force. Changes come one after another, and workers with requests that wait for the cap must be
    /// told ([`Mail::CapsChanged`](crate::worker::host::Mail::CapsChanged)): `Engine::set_cap` sees to both.
    pub fn set(&self, limits: CapLimits, now_ns: u64) {
        self.requests.set(limits.iops, now_ns);
        self.bytes.set(limits.bytes_per_s, now_ns);
    }

    /// Takes a request of so many bytes.
    #[inline]
    pub(crate) fn take(&self, bytes: u32, now_ns: u64) -> Due {
        let (requests_ns, bytes_ns) = (self.requests.take(1, now_ns), self.bytes.take(bytes.into(), now_ns));
        let why = if requests_ns >= bytes_ns { Capped::Iops } else { Capped::Bytes };
        Due { at_ns: requests_ns.max(bytes_ns), why }
    }

    /// Gives back a request of so many bytes that was taken and does not come.
    pub(crate) fn give_back(&self, bytes: u32) {
        self.requests.give_back(1);
        self.bytes.give_back(bytes.into());
    }

    /// A request that was taken for `taken_bytes` has `bytes`.
    pub(crate) fn settle(&self, taken_bytes: u32, bytes: u32, now_ns: u64) {
        if taken_bytes < bytes {
            self.bytes.take((bytes - taken_bytes).into(), now_ns);
        } else if taken_bytes > bytes {
            self.bytes.give_back((taken_bytes - bytes).into());
        }
    }

    pub(crate) fn waited(&self, why: Capped, wait_ns: u64) {
        self.budget(why).waited(wait_ns);
    }
}

/// The caps of one export's clients. Every request passes both, the export's first: an export that waits for its own
/// cap takes nothing from its tenant's.
#[derive(Debug)]
pub struct Caps([Arc<Cap>; 2]);

impl Caps {
    /// An export's own cap, and that of its tenant, which it shares with the tenant's other exports.
    pub fn new(export: Arc<Cap>, tenant: Arc<Cap>) -> Arc<Caps> {
        Arc::new(Caps([export, tenant]))
    }

    /// Caps without limits.
    pub fn none() -> Arc<Caps> {
        Caps::new(Cap::new(CapLimits::NONE), Cap::new(CapLimits::NONE))
    }

    /// Caps of the export and of its tenant.
    pub fn limits(&self) -> [CapLimits; 2] {
        let [export, tenant] = &self.0;
        [export.limits(), tenant.limits()]
    }

    /// True if one of them has a limit now.
    pub(crate) fn is_limited(&self) -> bool {
        self.0.iter().any(|cap| cap.limits() != CapLimits::NONE)
    }

    /// The caps in the order in which a request passes them.
    pub(crate) fn in_order(&self) -> &[Arc<Cap>; 2] {
        &self.0
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests;

#[cfg(all(test, mqfq_loom))]
mod loom_tests {
    //! Model checks of a budget's word: one named race each, every interleaving.
    //!
    //! Run: `cargo xtask loom`.

    use super::*;
    use mqfq_sched::sync::model::{Arc as ModelArc, model, thread};

    /// One request in 10 ms.
    const PER_S: u64 = 100;
    const EACH_NS: u64 = 10_000_000;
    const NOW_NS: u64 = 1_000_000_000;

    fn budget() -> ModelArc<Budget> {
        ModelArc::new(Budget::new(Some(PER_S)))
    }

    #[test]
    fn loom_two_takes_beside_each_other_are_a_whole_cost_apart() {
        model(|| {
            let budget = budget();
            let other = {
                let budget = budget.clone();
                thread::spawn(move || budget.take(1, NOW_NS))
            };
            let mut times = [budget.take(1, NOW_NS), other.join().unwrap()];
            times.sort_unstable();
            // Both find that it is to be raised, in any order.
            assert_eq!(times, [NOW_NS - BURST_NS, NOW_NS - BURST_NS + EACH_NS]);
            assert_eq!(budget.take(1, NOW_NS), NOW_NS - BURST_NS + 2 * EACH_NS, "none is lost");
        });
    }

    #[test]
    fn loom_what_is_given_back_beside_a_take_is_given_back_once() {
        model(|| {
            let budget = budget();
            budget.take(1, NOW_NS);
            let other = {
                let budget = budget.clone();
                thread::spawn(move || budget.give_back(1))
            };
            let time = budget.take(1, NOW_NS);
            other.join().unwrap();
            assert!([NOW_NS - BURST_NS, NOW_NS - BURST_NS + EACH_NS].contains(&time), "{time}");
            assert_eq!(budget.take(1, NOW_NS), NOW_NS - BURST_NS + EACH_NS, "one was used, whichever came first");
        });
    }

    /// Shown to fail if the rate is set before the debts are: of a rate that is halved, the take then owes four times
    /// its price, and of one that falls to a hundredth, as long as a hundred takes.
    #[test]
    fn loom_a_take_beside_a_change_of_the_rate_owes_at_one_of_the_two_rates() {
        for new_per_s in [2 * PER_S, PER_S / 2] {
            model(move || {
                let budget = budget();
                // Owed: two times 10 ms, less 8 ms of the burst.
                budget.take(1, NOW_NS);
                budget.take(1, NOW_NS);
                let other = {
                    let budget = budget.clone();
                    thread::spawn(move || budget.set(Some(new_per_s), NOW_NS))
                };
                budget.take(1, NOW_NS);
                other.join().unwrap();
                let owed_ns = budget.take(1, NOW_NS) - NOW_NS;
                // The debts are paid at the new rate. The third is one of them, or costs its new price after them; or
                // it was priced before the change and added after it.
                let at_new_rate = |ns: u64| ns * PER_S / new_per_s;
                let debts_ns = at_new_rate(2 * EACH_NS - BURST_NS);
                let allowed_ns = [at_new_rate(EACH_NS), EACH_NS].map(|price_ns| debts_ns + price_ns);
                assert!(allowed_ns.contains(&owed_ns), "{owed_ns}, not {allowed_ns:?}");
            });
        }
    }
}
