//! What the token tree is compared with: dispatch tokens as bits in words that lie apart, and below as one number.
//!
//! # Bits
//! Source: the idea of Linux's scalable bitmap as MQFQ section 4.3.3 tells it: tokens are bits, spread over cache lines
//! whose number follows from the contention to be expected; a thread looks first where it last succeeded, then
//! everywhere. Written from that description.
//!
//! # Shape
//! ```text
//!   word 0: 64 bits | word 1 | ... | word k-1      each on a padded line; a set bit is a free token
//!      ^                  ^
//!   hint of worker 0   hint of worker 1            a worker's own; moves to where its last acquire succeeded
//! ```
//! There are as many words as workers, so that with D at least the number of workers each can have a line of its own
//! (but at least as many as hold D bits, and at most D). The D bits are spread evenly.
//!
//! # Invariants
//! B1. Free bits and tokens taken are D together.
//! B2. A bit is taken by at most one at a time.
//!
//! A search that finds nothing does not prove that nothing is free: a bit may be set behind it while it looks ahead.
//! The token tree has the same, and both leave it to the caller to mark itself ready and try again. A bit set behind
//! that second search is found by the worker that set it: it searches the ready set afterwards. No call hides a bit
//! from another.
//!
//! # Under the policy
//! A dispatch token of the policy says how many units it has and not which. So each worker keeps the bits that it took
//! ([`BitmapTokens`]), in its own memory, and gives the oldest back first. That need not be the bit of the very request
//! that completed; a worker's bits are alike, and most lie in one word. A token has one unit: bits cannot be owed.
//!
//! # Cost
//! `acquire` with a free bit in the hint's word: one load and one read-modify-write there. Without: one load per word.
//! `release`: one read-modify-write on the word of the bit. `root_units`, which the policy asks for before it wakes
//! others: a load of each word.

use super::word::{Padded, Word};
use mqfq_sched_watched::policy::DispatchToken;
use mqfq_sched_watched::policy::structures::Tokens;
use mqfq_sched_watched::topology::HctxId;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

/// Tokens in words. See the module's text.
pub struct ScalableBitmap<W> {
    words: Box<[Padded<W>]>,
}

/// A token taken: which bit.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a bit that is not given back is lost"]
pub struct Bit {
    word: u32,
    mask: u64,
}

/// Where a worker looks first: its own, not shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hint(usize);

impl<W: Word> ScalableBitmap<W> {
    /// `depth` tokens, all free, for `workers` workers.
    pub fn new(depth: u32, workers: usize) -> Self {
        let depth = depth as usize;
        let words = workers.clamp(depth.div_ceil(64), depth);
        let bits = |word: usize| (word + 1) * depth / words - word * depth / words;
        let full = |bits: usize| if bits == 0 { 0 } else { u64::MAX >> (64 - bits) };
        ScalableBitmap { words: (0..words).map(|word| Padded(W::new(full(bits(word))))).collect() }
    }

    /// Where `worker` starts: the workers are spread over the words.
    pub fn hint(&self, worker: usize) -> Hint {
        Hint(worker % self.words.len())
    }

    /// Takes a token, from the hint's word if it has one, else from the next that has. None if no word showed one.
    pub fn acquire(&self, hint: &mut Hint) -> Option<Bit> {
        let mut at = hint.0;
        for _ in 0..self.words.len() {
            if let Some(mask) = self.take_from(at) {
                *hint = Hint(at);
                return Some(Bit { word: at as u32, mask });
            }
            at = if at + 1 == self.words.len() { 0 } else { at + 1 };
        }
        None
    }

    /// Gives a token back.
    pub fn release(&self, bit: Bit) {
        // Release: pairs with the Acquire in `take_from`.
        self.words[bit.word as usize].fetch_or(bit.mask, Ordering::Release);
    }

    /// Free tokens. Exact only while no other call is under way.
    pub fn free(&self) -> u32 {
        // Relaxed: a count without content.
        self.words.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }

    fn take_from(&self, at: usize) -> Option<u64> {
        let word = &self.words[at];
        // Relaxed: a guess; the read-modify-write decides.
        let mut free = word.load(Ordering::Relaxed);
        while free != 0 {
            let mask = free & free.wrapping_neg();
            // Acquire: pairs with the Release in `release`: the holder of a token sees what its last holder did.
            free = word.fetch_and(!mask, Ordering::Acquire);
            if free & mask != 0 {
                return Some(mask);
            }
        }
        None
    }
}

/// A [`ScalableBitmap`] with what its workers remember, as the policy wants it.
pub struct BitmapTokens<W> {
    bitmap: ScalableBitmap<W>,
    /// By hctx. Each is touched by its own worker alone, so the locks are never waited for; they are the plain ones, no
    /// part of what is compared, and not held across an access to the bitmap.
    hands: Box<[Mutex<Hand>]>,
}

struct Hand {
    hint: Hint,
    /// Oldest first.
    held: VecDeque<Bit>,
}

impl<W: Word> BitmapTokens<W> {
    /// `depth` tokens, all free, for `workers` workers.
    pub fn new(depth: u32, workers: usize) -> Self {
        let bitmap = ScalableBitmap::new(depth, workers);
        let hand = |worker| Mutex::new(Hand { hint: bitmap.hint(worker), held: VecDeque::new() });
        let hands = (0..workers).map(hand).collect();
        BitmapTokens { bitmap, hands }
    }

    fn hand(&self, hctx: HctxId) -> MutexGuard<'_, Hand> {
        self.hands[hctx.index()].lock().expect("nothing panics while it is held")
    }

    fn release(&self, hctx: HctxId, token: DispatchToken) {
        assert_eq!(token.into_units(), 1, "units of a token");
        let bit = self.hand(hctx).held.pop_front();
        self.bitmap.release(bit.expect("a token goes back where it was taken"));
    }
}

/// One pool and no paths: nothing is a queue's own, and nothing has to percolate.
impl<W: Word> Tokens for BitmapTokens<W> {
    fn acquire_own(&self, _hctx: HctxId, _units: u32) -> Option<DispatchToken> {
        None
    }

    fn acquire_batch(&self, hctx: HctxId, units: u32, _spare: u32) -> Option<DispatchToken> {
        assert_eq!(units, 1, "units of a token");
        let mut hint = self.hand(hctx).hint;
        let bit = self.bitmap.acquire(&mut hint)?;
        let mut hand = self.hand(hctx);
        hand.hint = hint;
        hand.held.push_back(bit);
        Some(DispatchToken::new(1))
    }

    fn release_local(&self, hctx: HctxId, token: DispatchToken) {
        self.release(hctx, token);
    }

    fn release_toward(&self, from: HctxId, _to: HctxId, token: DispatchToken) {
        self.release(from, token);
    }

    fn release_root(&self, hctx: HctxId, token: DispatchToken) {
        self.release(hctx, token);
        // Pairs with the fence in `ReadySet::mark`.
        W::fence(Ordering::SeqCst);
    }

    fn percolate(&self, _hctx: HctxId) {
        // Pairs with the fence in `ReadySet::mark`: `release_local` has put tokens where all take them, and a search
        // follows.
        W::fence(Ordering::SeqCst);
    }

    fn is_in_debt(&self) -> bool {
        false
    }

    fn root_units(&self) -> i64 {
        i64::from(self.bitmap.free())
    }

    fn total_units(&self) -> i64 {
        i64::from(self.bitmap.free())
    }
}

// Dispatch tokens as one number: what the token tree is compared with.
//
// Source: MQFQ section 3.2, "a naive single shared cache line, atomically incremented and decremented".
//
// # Invariants
// C1. The count and the units taken are D together, but for calls under way.
// C2. A call succeeds only if a unit was free: at most D tokens are taken at once, and at most D + u - 1 units, u
//     being those of the largest request. Below 0 the count is that debt; a release pays it first, there
//     being nowhere else.
// C3. A free unit that a call under way hides is taken by it, or was shown to a caller that looked after it (below).
//
// # Why it subtracts first
// A compare-and-exchange fails whenever another worker changed the count, and is tried again on a line that was taken
// away meanwhile. A subtraction never fails: it may take the count below 0, and then adds back what it took. So the
// counter is given the better of the two forms. It does not look before it subtracts either: the look would bring the
// line as a copy, and the subtraction would have to ask for it again.
//
// The price is that a unit can be there and not be seen, while another's subtraction is not yet undone:
//
// | step | A, ready, looks once more | B gives a token back             | count |
// |------|---------------------------|----------------------------------|-------|
// |  1   |                           | searches, finds none             | 0     |
// |  2   | marks itself, **fence**   |                                  | 0     |
// |  3   | subtracts 1, had 0        |                                  | -1    |
// |  4   |                           | adds 1, **fence**                | 0     |
// |  5   |                           | looks: 0, wakes none             | 0     |
// |  6   | adds 1                    |                                  | 1     |
//
// If A stopped here, it would sleep beside a free token. But its addition tells it that the count is above 0 now, so
// it starts again. Of several that hide units from B, each whose addition brings the count above 0 starts again; so as
// many do as units were hidden, or others have taken them.
//
// # Cost
// `acquire` and `release`: one read-modify-write each, on the one line that all workers write; two for an
// `acquire` that finds none.

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
    use std::collections::HashSet;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn each_bit_is_given_out_once_whatever_the_spread() {
        for (depth, workers, words) in [(128, 1, 2), (128, 2, 2), (128, 16, 16), (5, 16, 5), (1, 1, 1), (100, 3, 3)] {
            let bitmap = ScalableBitmap::<AtomicU64>::new(depth, workers);
            assert_eq!((bitmap.words.len(), bitmap.free()), (words, depth));
            let mut hint = bitmap.hint(workers - 1);
            let bits: Vec<Bit> = std::iter::from_fn(|| bitmap.acquire(&mut hint)).collect();
            let distinct: HashSet<(u32, u64)> = bits.iter().map(|bit| (bit.word, bit.mask)).collect();
            assert_eq!((bits.len(), distinct.len(), bitmap.free()), (depth as usize, depth as usize, 0));
            bits.into_iter().for_each(|bit| bitmap.release(bit));
            assert_eq!(bitmap.free(), depth);
        }
    }

    #[test]
    fn the_hint_follows_the_last_success() {
        let bitmap = ScalableBitmap::<AtomicU64>::new(4, 2);
        let (mut first, mut second) = (bitmap.hint(0), bitmap.hint(1));
        assert_ne!(first, second);
        let taken = [bitmap.acquire(&mut second).unwrap(), bitmap.acquire(&mut second).unwrap()];
        let third = bitmap.acquire(&mut second).unwrap();
        assert_eq!(second, first, "its own word is empty: on to the other's");
        taken.into_iter().for_each(|bit| bitmap.release(bit));
        let fourth = bitmap.acquire(&mut first).unwrap();
        assert_eq!((third.word, fourth.word), (0, 0));
        bitmap.release(third);
        bitmap.release(fourth);
    }

    #[test]
    fn a_worker_gives_its_oldest_bit_back_and_keeps_the_place_of_its_newest() {
        let tokens = BitmapTokens::<AtomicU64>::new(4, 2);
        let (first, second) = (HctxId(0), HctxId(1));
        // Bits 0 and 1 of word 0; the third lies in the other worker's word.
        let taken: Vec<DispatchToken> = (0..3).map(|_| tokens.acquire_batch(first, 1, 31).unwrap()).collect();
        assert_eq!((tokens.total_units(), tokens.hand(first).hint), (1, Hint(1)));
        let mut taken = taken.into_iter();
        tokens.release_toward(first, second, taken.next().unwrap());
        let free: Vec<u32> = tokens.bitmap.words.iter().map(|word| word.load(Ordering::SeqCst).count_ones()).collect();
        assert_eq!(free, [1, 1]);
        taken.for_each(|token| tokens.release_local(first, token));
        assert_eq!(tokens.total_units(), 4);
    }
}

#[cfg(test)]
mod counter_tests {
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
        assert_eq!(SEEN.get(), 0, "the other saw no token, so it woke no worker");
        assert!(taken, "a token is free and no worker knows");
        assert_eq!(counter.free(), 0);
    }
}
