//! When to look again at a queue that is too far ahead of virtual time.
//!
//! Source: MQFQ section 3.3 and figure 4. Difference from the paper: a bucket belongs to an absolute interval of
//! virtual time and not to a distance from now, so nothing moves when the wheel turns; and a queue that asks for a
//! place checks afterwards that the wheel has not passed it meanwhile (the paper leaves this race out).
//!
//! # Shape
//! Virtual time is cut into slots of `b` units, a power of two; slot s starts at s * b and uses bucket s mod 64. A
//! bucket is a bitmask of hctxs on one padded line.
//!
//! ```text
//!   position (start of the slot that virtual time is in)
//!      |
//!   ---+---+---+---+---+---+-- ... --+---   virtual time, b units per slot
//!     17  18  19  20  21  22        80
//!              ^                     ^
//!          {1, 5}                   {2}     hctxs 1 and 5 may go when virtual time is in slot 19; hctx 2 may go later
//!                                           than slot 80, the last that has a bucket: it will look again then
//! ```
//! A queue with lead start tag `lead` may dispatch from `due = lead - T` on, so it sits in the first slot that starts
//! at `due` or later: woken late by less than b, never early. (Exception: a late turner can take a bit out of a bucket
//! that is in use again. The woken queue checks in any case and takes a new place.)
//!
//! # Late is not never
//! The queue with the smallest lead m must be woken once virtual time stands as far as m allows (I5), also with T = 0.
//! T counts as at least 63 units (one less than `Mindicator::GRAIN`), because virtual time may stand at m rounded down
//! to 64 and no further. Then its slot starts no later than that rounded m:
//! * b <= 64: the rounded m is itself the start of a slot and not before due = m - T.
//! * b > 64: then T >= 8 b - 1, and the first start at or after due is before due + b <= m - 7 b + 1 < m - 63.
//!
//! b is T/8 rounded down to a power of two: a queue waits at most T/8 longer than it must, and the wheel turns 8 to 16
//! times per T.
//!
//! If leaves show leads rounded down to a quantum q > 64 (a power of two, at most T/2), virtual time may stand at m
//! rounded down to q, and b is at least q: there is nothing to be woken for between two multiples of q. Then, for
//! * b = q: m rounded down is the start of a slot, and not before due, because T >= q.
//! * b > q: T >= 8 b - 1 as above, so the first start at or after due is before due + b <= m - 7 b + 1 < m - q.
//!
//! # A window that changes
//! T can be set while the wheel turns ([`ThrottleWheel::set_window`]), in a wheel that was cut for it
//! ([`ThrottleWheel::for_windows`]): slots, buckets and position stay, and b is half of the smallest T that will be
//! set. A place that was taken under another T is not where its queue belongs now: under a smaller T it wakes the queue
//! too late, under a larger one for nothing. So the setter of T empties the whole wheel, and a queue that has just
//! taken a place looks at T again:
//!
//! | step | A: takes a place for T = 64 KiB | B: sets T = 256 KiB             |
//! |------|---------------------------------|---------------------------------|
//! |  1   | sets its bit, **fence**         | T := 256 KiB, **fence**         |
//! |  2   | reads T                         | empties all buckets             |
//!
//! If A's fence is first in their total order, B finds the bit. If B's is, A sees the new T, takes the bit back and
//! begins again. So when `set_window` has returned, every place was or will be taken under the T that it set.
//!
//! "Late is not never" holds for each T of at least 2 b and each q of at most T/2, also for q below b:
//! * b <= q: m rounded down to q is the start of a slot, and not before due, because T >= q.
//! * b > q: the first start at or after due is before due + b = m - T + b <= m - T/2 <= m - q.
//!
//! Slots of 8 KiB for windows of 16 to 256 KiB: a queue waits at most 8 KiB longer than it must, T/8 of the 64 KiB that
//! a window has by default, and 64 buckets span two of the longest.
//!
//! # Invariants
//! W1. When `throttle` has returned a place, virtual time has reached it, and each worker that moved it has turned the
//!     wheel and returned, `unthrottle` has been called for the hctx since it took the place.
//! W2. One taking of a place leads to at most one `unthrottle`.
//! W3. The position never goes back.
//! W4. When `set_window` has returned, and so has each `throttle` that had begun before, every place that is still
//!     taken was taken under the T that it set.
//!
//! # The race between taking a place and turning
//! | step | A: takes slot 19               | B: virtual time moves into slot 19             |
//! |------|--------------------------------|------------------------------------------------|
//! |  1   | sets its bit, **fence**        | raises global virtual time, **fence**          |
//! |  2   | reads global virtual time      | moves the position, empties buckets 18, 19     |
//!
//! If A's fence is first in their total order, B finds the bit and unthrottles A. If B's is, A sees virtual time in
//! slot 19: it takes the bit back and goes on (or, if the slot was not its own but the last bucket, takes a new
//! one). Both may happen; the second wake is for nothing and harmless. Neither cannot.
//!
//! Two turners: the position moves by compare-and-exchange, so each slot is passed by exactly one of them, which
//! empties its bucket. A turner that is stopped between the two delays the queues in the buckets it has passed.
//!
//! # Cost
//! `turn` with no slot passed: one read of the position's line, which changes once per b of virtual time. A passed
//! slot: one compare-and-exchange on the position, and per bucket one read, plus one read-modify-write if a queue is in
//! it. `throttle`: one read-modify-write on the bucket's line, one fence, one reading of virtual time. `withdraw`: one
//! read, and one read-modify-write if the bit is still there.

use crate::mindicator::Mindicator;
use crate::sync::CachePadded;
use crate::sync::{AtomicU64, Ordering, Setting, fence};
use crate::topology::{HCTXS_MAX, HctxId};
use crate::vtime::{VSpan, VTime};
use alloc::boxed::Box;

/// Words of a bucket. (A model's few hctxs need one, and building atomics is most of what a model's run costs.)
const WORDS: usize = if cfg!(mqfq_loom) { 1 } else { HCTXS_MAX / 64 };

/// Buckets. With b of T/16 to T/8, 64 of them span 4 to 8 T; the queue of a lead farther ahead (after a large request)
/// is woken that often for nothing. A model has so few that its small virtual times come round.
const BUCKETS: usize = if cfg!(mqfq_loom) { 4 } else { 64 };

/// Slots per window: how much later than it must a queue is woken (at most T / 8) against how often the wheel turns.
const SLOTS_PER_WINDOW: u64 = 8;

/// Wheel in which throttled queues wait. See the module's text.
pub struct ThrottleWheel {
    /// Start of the slot that the wheel has turned to.
    position: CachePadded<AtomicU64>,
    buckets: Box<[CachePadded<[AtomicU64; WORDS]>]>,
    /// Words of a bucket that are in use.
    words: usize,
    window: Setting,
    /// Smallest T that may be set; `None`: T stays.
    window_least: Option<VSpan>,
    slot_shift: u32,
}

/// A place in the wheel: the start of a slot. Keep it while the queue is throttled, to withdraw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WheelSlot(VTime);

impl ThrottleWheel {
    /// An empty wheel for `hctx_count` hctxs and a window of T = `window`, standing at `start`. A window below
    /// [`Mindicator::GRAIN`] - 1 units (1/16 byte-equivalent) counts as that.
    ///
    /// # Panics
    /// If there are more than [`HCTXS_MAX`] hctxs or the window is more than [`Mindicator::REACH`].
    pub fn new(hctx_count: usize, window: VSpan, start: VTime) -> ThrottleWheel {
        ThrottleWheel::with_quantum(hctx_count, window, Mindicator::GRAIN, start)
    }

    /// As [`ThrottleWheel::new`], for a virtual time that moves by multiples of `quantum`: a power of two, at most the
    /// window. Less than [`Mindicator::GRAIN`] counts as that.
    ///
    /// # Panics
    /// As [`ThrottleWheel::new`], or if the quantum is out of range.
    pub fn with_quantum(hctx_count: usize, window: VSpan, quantum: VSpan, start: VTime) -> ThrottleWheel {
        assert!(window <= Mindicator::REACH, "a window of {window:?} is more than {:?}", Mindicator::REACH);
        let window = window.max(VSpan(Mindicator::GRAIN.0 - 1));
        let quantum = quantum.max(Mindicator::GRAIN);
        assert!(quantum.0.is_power_of_two(), "a quantum of {quantum:?} is not a power of two");
        assert!(quantum.0 <= window.0 + 1, "a quantum of {quantum:?} for a window of {window:?}");
        // Without a quantum of its own, the slots may be shorter than a grain, for the smallest windows.
        let slots = ((window.0 + 1) / SLOTS_PER_WINDOW).ilog2();
        let slot_shift = if quantum > Mindicator::GRAIN { slots.max(quantum.0.ilog2()) } else { slots };
        let wheel = ThrottleWheel::cut(hctx_count, window, None, slot_shift, start);
        assert!(wheel.slot_span().0 <= window.0 + 1, "slots of {:?} for a window of {window:?}", wheel.slot_span());
        wheel
    }

    /// An empty wheel whose window can be set: to `least` and more. It is `window` now, and virtual time moves by
    /// multiples of a quantum of at most half the window in force.
    ///
    /// # Panics
    /// As [`ThrottleWheel::new`], or if `least` is less than two [`Mindicator::GRAIN`]s or more than `window`.
    pub fn for_windows(hctx_count: usize, least: VSpan, window: VSpan, start: VTime) -> ThrottleWheel {
        assert!(least.0 >= 2 * Mindicator::GRAIN.0, "a window of {least:?} is shorter than two grains");
        assert!(least <= window, "a window of {window:?} is less than the least, {least:?}");
        assert!(window <= Mindicator::REACH, "a window of {window:?} is more than {:?}", Mindicator::REACH);
        ThrottleWheel::cut(hctx_count, window, Some(least), (least.0 / 2).ilog2(), start)
    }

    fn cut(
        hctx_count: usize,
        window: VSpan,
        window_least: Option<VSpan>,
        slot_shift: u32,
        start: VTime,
    ) -> ThrottleWheel {
        assert!((1..=HCTXS_MAX).contains(&hctx_count), "a wheel has 1 to {HCTXS_MAX} hctxs, not {hctx_count}");
        ThrottleWheel {
            position: CachePadded::new(AtomicU64::new(start.raw() >> slot_shift << slot_shift)),
            buckets: (0..BUCKETS).map(|_| CachePadded::new(core::array::from_fn(|_| AtomicU64::new(0)))).collect(),
            words: hctx_count.div_ceil(64),
            window: Setting::new(window.0, window_least.is_some()),
            window_least,
            slot_shift,
        }
    }

    /// The window T that it works with.
    #[inline(always)]
    pub fn window(&self) -> VSpan {
        VSpan(self.window.get())
    }

    /// T is `window` from now on. Calls `unthrottle` for each hctx that has a place (W4); they pick again.
    ///
    /// # Panics
    /// If the wheel was not made for it ([`ThrottleWheel::for_windows`]), or the window is out of range.
    pub fn set_window(&self, window: VSpan, mut unthrottle: impl FnMut(HctxId)) {
        let least = self.window_least.expect("the window of this wheel stays");
        assert!(
            (least..=Mindicator::REACH).contains(&window),
            "a window of {window:?} is out of range, allowed is {least:?} to {:?}",
            Mindicator::REACH
        );
        self.window.set(window.0);
        // Pairs with the fence in `throttle`: see the table. If a throttled queue's is first, we find its bit; if ours
        // is, it sees this window, and what our caller has set before.
        fence(Ordering::SeqCst);
        for slot in 0..BUCKETS as u64 {
            self.empty(WheelSlot(VTime::from_raw(slot << self.slot_shift)), &mut unthrottle);
        }
    }

    /// Length b of a slot: a queue is woken at most this much virtual time after it became due.
    pub fn slot_span(&self) -> VSpan {
        VSpan(1 << self.slot_shift)
    }

    /// True if a request with start tag `lead` may be dispatched at `gvt`: it is at most T ahead (I3).
    #[inline]
    pub fn is_due(&self, lead: VTime, gvt: VTime) -> bool {
        !gvt.is_before(lead.minus(self.window()))
    }

    /// Puts `hctx`, whose first request has start tag `lead`, to wait until virtual time is near enough. `gvt` reads
    /// global virtual time ([`Mindicator::query`] or `global_vtime`). None: it need not wait, virtual time has moved
    /// meanwhile; go on and dispatch.
    ///
    /// Only the owner of `hctx` may call this, and not while it has a place already ([`ThrottleWheel::withdraw`]).
    pub fn throttle(&self, hctx: HctxId, lead: VTime, mut gvt: impl FnMut() -> VTime) -> Option<WheelSlot> {
        let mut now = gvt();
        loop {
            let window = self.window();
            let due = lead.minus(window);
            if !now.is_before(due) {
                return None;
            }
            let slot = self.slot_for(due, now);
            self.insert(hctx, slot);
            // Pairs with the fences in `turn` and `set_window`: see the tables. If ours is first, they find our bit; if
            // theirs is, we read a virtual time that is past our slot, or the new window.
            fence(Ordering::SeqCst);
            now = gvt();
            if now.is_before(slot.0) && self.window() == window {
                return Some(slot);
            }
            // The slot may have been passed before our bit was in it, or is not ours any more.
            self.withdraw(hctx, slot);
        }
    }

    /// Gives up a place; false if a turner has taken the hctx out already (then `unthrottle` has been or will be
    /// called for it). To be called by the owner of `hctx` before it picks again, however it woke.
    pub fn withdraw(&self, hctx: HctxId, slot: WheelSlot) -> bool {
        let (word, bit) = self.word(hctx, slot);
        // Relaxed load: we set this bit, so a 0 means that a turner took it (after us in the word's own order).
        // Relaxed read-modify-write: atomicity decides between us and the turner; the bit carries nothing else.
        word.load(Ordering::Relaxed) & bit != 0 && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// Turns the wheel to `gvt`, which the caller has just got from [`Mindicator::query`], and calls `unthrottle` for
    /// each hctx whose slot it passed. Cheap if no slot was passed.
    pub fn turn(&self, gvt: VTime, mut unthrottle: impl FnMut(HctxId)) {
        let to = VTime::from_raw(gvt.raw() >> self.slot_shift << self.slot_shift);
        // Relaxed: a position seen too early only costs the compare-and-exchange; it never shows a turn that did not
        // happen.
        let mut from = VTime::from_raw(self.position.load(Ordering::Relaxed));
        if !from.is_before(to) {
            return;
        }
        // Pairs with the fence in `throttle`: see the table. It stands after the raise of global virtual time, or after
        // a read that saw another's raise, and before our reading of the buckets.
        fence(Ordering::SeqCst);
        loop {
            // Relaxed: only decides which turner passes which slots. What the buckets hold, the fence answers for.
            match self.position.compare_exchange(from.raw(), to.raw(), Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(actual) => from = VTime::from_raw(actual),
            }
            if !from.is_before(to) {
                return;
            }
        }
        let passed = (to.since(from) as u64 >> self.slot_shift).min(BUCKETS as u64);
        // If more than all buckets were passed, the last 64 slots name each bucket once.
        for back in (0..passed).rev() {
            self.empty(WheelSlot(to.minus(VSpan(back << self.slot_shift))), &mut unthrottle);
        }
    }

    /// The first slot that starts at the due time or later, or the last that has a bucket of its own.
    fn slot_for(&self, due: VTime, now: VTime) -> WheelSlot {
        let due = due.plus(VSpan(self.slot_span().0 - 1));
        let due = VTime::from_raw(due.raw() >> self.slot_shift << self.slot_shift);
        let here = VTime::from_raw(now.raw() >> self.slot_shift << self.slot_shift);
        WheelSlot(due.earlier(here.plus(VSpan((BUCKETS as u64 - 1) << self.slot_shift))))
    }

    fn insert(&self, hctx: HctxId, slot: WheelSlot) {
        let (word, bit) = self.word(hctx, slot);
        // Relaxed: the bit carries nothing but itself; the caller fences before it looks at virtual time.
        word.fetch_or(bit, Ordering::Relaxed);
    }

    fn empty(&self, slot: WheelSlot, unthrottle: &mut impl FnMut(HctxId)) {
        for (index, word) in self.bucket(slot)[..self.words].iter().enumerate() {
            // Relaxed: the fence in `turn` answers for what must be seen. The swap decides which turner wakes which
            // queue (W2).
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                unthrottle(HctxId((index * 64) as u16 + bits.trailing_zeros() as u16));
                bits &= bits - 1;
            }
        }
    }

    fn bucket(&self, slot: WheelSlot) -> &[AtomicU64; WORDS] {
        // Slots and buckets are powers of two, so the circle of virtual time holds a whole number of wheels and the
        // bucket of a slot does not jump at the wrap.
        &self.buckets[(slot.0.raw() >> self.slot_shift) as usize % BUCKETS]
    }

    fn word(&self, hctx: HctxId, slot: WheelSlot) -> (&AtomicU64, u64) {
        debug_assert!(hctx.index() / 64 < self.words, "{hctx:?} in a wheel of {} words", self.words);
        (&self.bucket(slot)[hctx.index() / 64], 1 << (hctx.index() % 64))
    }
}

#[cfg(all(test, mqfq_loom))]
mod loom_tests;
#[cfg(all(test, not(mqfq_loom)))]
mod tests;
