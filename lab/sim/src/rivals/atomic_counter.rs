//! Dispatch tokens as one number: what the token tree is compared with.
//!
//! Source: MQFQ section 3.2, "a naive single shared cache line, atomically incremented and decremented".
//!
//! # Invariants
//! C1. The count and the units taken are D together, but for calls under way.
//! C2. A call succeeds only if a unit was free: at most D tokens are taken at once, and at most D + u - 1 units, u
//!     being those of the largest request. Below 0 the count is that debt; a release pays it first, there
//!     being nowhere else.
//! C3. A free unit that a call under way hides is taken by it, or was shown to a caller that looked after it (below).
//!
//! # Why it subtracts first
//! A compare-and-exchange fails whenever another worker changed the count, and is tried again on a line that was taken
//! away meanwhile. A subtraction never fails: it may take the count below 0, and then adds back what it took. So the
//! counter is given the better of the two forms. It does not look before it subtracts either: the look would bring the
//! line as a copy, and the subtraction would have to ask for it again.
//!
//! The price is that a unit can be there and not be seen, while another's subtraction is not yet undone:
//!
//! | step | A, ready, looks once more | B gives a token back             | count |
//! |------|---------------------------|----------------------------------|-------|
//! |  1   |                           | searches, finds none             | 0     |
//! |  2   | marks itself, **fence**   |                                  | 0     |
//! |  3   | subtracts 1, had 0        |                                  | -1    |
//! |  4   |                           | adds 1, **fence**                | 0     |
//! |  5   |                           | looks: 0, wakes none             | 0     |
//! |  6   | adds 1                    |                                  | 1     |
//!
//! If A stopped here, it would sleep beside a free token. But its addition tells it that the count is above 0 now, so
//! it starts again. Of several that hide units from B, each whose addition brings the count above 0 starts again; so as
//! many do as units were hidden, or others have taken them.
//!
//! # Cost
//! `acquire` and `release`: one read-modify-write each, on the one line that all workers write; two for an
//! `acquire` that finds none.

use super::word::{Padded, Word};
use mqfq_sched_watched::policy::DispatchToken;
use mqfq_sched_watched::policy::structures::Tokens;
use mqfq_sched_watched::topology::HctxId;
use std::sync::atomic::Ordering;

/// A count of free units. See the module's text.
pub struct AtomicCounter<W> {
    /// Free units; as a signed number, below 0 in debt and while a subtraction that found none is being undone.
    free: Padded<W>,
}

impl<W: Word> AtomicCounter<W> {
    /// `depth` units, all free.
    pub fn new(depth: u32) -> Self {
        AtomicCounter { free: Padded(W::new(u64::from(depth))) }
    }

    /// Takes `units` if one is free, the rest as a debt if it must; false if none is.
    pub fn acquire(&self, units: u32) -> bool {
        let units = u64::from(units);
        loop {
            // Acquire: pairs with the Release in `release`: the holder of a token sees what its last holder did.
            if self.free.fetch_sub(units, Ordering::Acquire) as i64 > 0 {
                return true;
            }
            // Relaxed: these units were never there, so there is nothing to hand over.
            let had = self.free.fetch_add(units, Ordering::Relaxed) as i64;
            if had + units as i64 <= 0 {
                return false;
            }
            // A unit was given back, perhaps by a worker that looked while we hid it (C3).
        }
    }

    /// Gives `units` back.
    pub fn release(&self, units: u32) {
        // Release: pairs with the Acquire in `acquire`.
        self.free.fetch_add(u64::from(units), Ordering::Release);
    }

    /// Free units. Exact only while no other call is under way.
    pub fn free(&self) -> i64 {
        // Relaxed: a count without content.
        self.free.load(Ordering::Relaxed) as i64
    }
}

/// One pool and no paths: nothing is a queue's own, and nothing has to percolate.
impl<W: Word> Tokens for AtomicCounter<W> {
    fn acquire_own(&self, _hctx: HctxId, _units: u32) -> Option<DispatchToken> {
        None
    }

    fn acquire_batch(&self, _hctx: HctxId, units: u32, _spare: u32) -> Option<DispatchToken> {
        self.acquire(units).then(|| DispatchToken::new(units))
    }

    fn release_local(&self, _hctx: HctxId, token: DispatchToken) {
        self.release(token.into_units());
    }

    fn release_toward(&self, _from: HctxId, _to: HctxId, token: DispatchToken) {
        self.release(token.into_units());
    }

    fn release_root(&self, _hctx: HctxId, token: DispatchToken) {
        self.release(token.into_units());
        // Pairs with the fence in `ReadySet::mark`.
        W::fence(Ordering::SeqCst);
    }

    fn percolate(&self, _hctx: HctxId) {
        // Pairs with the fence in `ReadySet::mark`: `release_local` has put tokens where all take them, and a search
        // follows.
        W::fence(Ordering::SeqCst);
    }

    fn is_in_debt(&self) -> bool {
        // Not worth fetching the line for, which the release that follows would have to ask for again.
        false
    }

    fn root_units(&self) -> i64 {
        self.free()
    }

    fn total_units(&self) -> i64 {
        self.free()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_sched_watched::watched;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn it_gives_out_what_it_has_and_no_more() {
        let counter = AtomicCounter::<AtomicU64>::new(2);
        assert!(counter.acquire(1) && counter.acquire(1) && !counter.acquire(1));
        assert_eq!(counter.free(), 0, "the failed attempt left no trace");
        counter.release(1);
        assert!(counter.acquire(1) && !counter.acquire(1));
    }

    #[test]
    fn a_large_request_starts_with_one_free_unit_and_leaves_a_debt() {
        let counter = AtomicCounter::<AtomicU64>::new(3);
        assert!(counter.acquire(2) && counter.acquire(8) && !counter.acquire(1));
        assert_eq!(counter.free(), -7);
        counter.release(2);
        assert!(!counter.acquire(1), "the debt comes first");
        counter.release(8);
        assert_eq!(counter.free(), 3);
    }

    std::thread_local! {
        static HIDDEN: Cell<Option<Rc<AtomicCounter<watched::AtomicU64>>>> = const { Cell::new(None) };
        static ACCESSES: Cell<u32> = const { Cell::new(0) };
        static SEEN: Cell<i64> = const { Cell::new(i64::MAX) };
    }

    #[test]
    fn a_token_given_back_while_a_subtraction_hides_it_is_taken() {
        // The table above: before the addition of step 6, the other gives back and looks.
        let counter = Rc::new(AtomicCounter::<watched::AtomicU64>::new(1));
        assert!(counter.acquire(1));
        HIDDEN.set(Some(counter.clone()));
        ACCESSES.set(0);
        let before = watched::watch(Some(|_| {
            ACCESSES.set(ACCESSES.get() + 1);
            if ACCESSES.get() == 2 {
                let counter = HIDDEN.take().expect("the second access comes once");
                counter.release(1);
                SEEN.set(counter.free());
            }
        }));
        let taken = counter.acquire(1);
        watched::watch(before);
        assert_eq!(SEEN.get(), 0, "the other saw no token, so it woke nobody");
        assert!(taken, "a token is free and nobody knows");
        assert_eq!(counter.free(), 0);
    }
}
