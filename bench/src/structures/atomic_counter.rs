//! Dispatch tokens as one number: what the token tree is compared with.
//!
//! Source: MQFQ section 3.2, "a naive single shared cache line, atomically incremented and decremented".
//!
//! # Invariants
//! C1. The count and the tokens taken are D together, but for calls under way.
//! C2. At most D tokens are taken at once.
//!
//! # Why it subtracts first
//! A compare-and-exchange fails whenever anybody else changed the count, and is tried again on a line that was taken away
//! meanwhile. A subtraction never fails: it may take the count below 0, and then adds back what it took. So the
//! counter is given the better of the two forms. The price is that a token which is just being given back can be missed
//! by one who looks while another's subtraction is not yet undone; that other looks again itself (it marks itself ready
//! and tries once more), so the token is found. It does not look before it subtracts either: the look would bring the
//! line as a copy, and the subtraction would have to ask for it again.
//!
//! # Cost
//! `acquire` and `release`: one read-modify-write each, on the one line that everybody writes; two for an
//! `acquire` that finds none.

use super::word::{Padded, Word};
use std::sync::atomic::Ordering;

/// A count of free tokens. See the module's text.
pub struct AtomicCounter<W> {
    /// Free tokens; as a signed number, below 0 while a subtraction that found none is being undone.
    free: Padded<W>,
}

impl<W: Word> AtomicCounter<W> {
    /// `depth` tokens, all free.
    pub fn new(depth: u32) -> Self {
        AtomicCounter { free: Padded(W::new(u64::from(depth))) }
    }

    /// Takes a token; false if there is none.
    pub fn acquire(&self) -> bool {
        // Acquire: pairs with the Release in `release`: whoever holds a token sees what its last holder did.
        if self.free.fetch_sub(1, Ordering::Acquire) as i64 > 0 {
            return true;
        }
        // Relaxed: this token was never there, so there is nothing to hand over.
        self.free.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Gives a token back.
    pub fn release(&self) {
        // Release: pairs with the Acquire in `acquire`.
        self.free.fetch_add(1, Ordering::Release);
    }

    /// Free tokens. Exact only while nobody calls anything else.
    pub fn free(&self) -> i64 {
        // Relaxed: a count without content.
        self.free.load(Ordering::Relaxed) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn it_gives_out_what_it_has_and_no_more() {
        let counter = AtomicCounter::<AtomicU64>::new(2);
        assert!(counter.acquire() && counter.acquire() && !counter.acquire());
        assert_eq!(counter.free(), 0, "the failed attempt left no trace");
        counter.release();
        assert!(counter.acquire() && !counter.acquire());
    }
}
