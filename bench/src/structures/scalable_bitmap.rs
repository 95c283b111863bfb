//! Dispatch tokens as bits in words that lie apart: what the token tree is compared with.
//!
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
//! A search that finds nothing does not prove that nothing is free: a bit may be set behind it while it looks ahead. The
//! token tree has the same, and both leave it to the caller to mark itself ready and try again.
//!
//! # Cost
//! `acquire` with a free bit in the hint's word: one load and one read-modify-write there. Without: one load per word.
//! `release`: one read-modify-write on the word of the bit.

use super::word::{Padded, Word};
use std::sync::atomic::Ordering;

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

    /// Free tokens. Exact only while nobody calls anything else.
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
            // Acquire: pairs with the Release in `release`: whoever holds a token sees what its last holder did.
            free = word.fetch_and(!mask, Ordering::Acquire);
            if free & mask != 0 {
                return Some(mask);
            }
        }
        None
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
}
