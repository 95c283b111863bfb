//! Which bytes of a device are stored, and which read as zero because nothing is: question and answer of
//! [`Op::Extents`](crate::request::Op::Extents).
//!
//! Both lie in one owned buffer that travels with the request as a read's does: an answer takes no memory of its own.
//!
//! ```text
//!   question   [ most extents, 64 bits ]
//!   answer     [ extents, 64 bits ][ length << 2 | kind, 64 bits ] ...      from the request's first byte on
//! ```
//! An answer covers at least a byte of what was asked, never more than all, and may end early: the client asks again
//! from there.
//!
//! # What an answer is worth
//! Bytes of a write that ended before the question was submitted, and that nothing has discarded or zeroed since, are
//! [`Stored::Data`]. Bytes of a write that is under way may be either. A device may call any bytes data.

use crate::buffer::{ALIGNMENT_BYTES, Buffer};

/// Memory of a question and its answer, bytes.
pub const SHEET_BYTES: u32 = ALIGNMENT_BYTES as u32;

/// Most extents of one answer.
pub const EXTENTS_MAX: usize = SHEET_BYTES as usize / WORD_BYTES - 1;

const WORD_BYTES: usize = size_of::<u64>();

/// State of some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// They take storage, and may have any value.
    Data = 0,
    /// They take storage and read as zero.
    Zeroes = 1,
    /// They take no storage and read as zero.
    Hole = 2,
}

/// Bytes of one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Length, bytes, not 0.
    pub length_bytes: u64,
    /// State of all of them.
    pub stored: Stored,
}

/// A buffer with a question for at most `extents_max` extents, at least 1.
pub fn ask(extents_max: usize) -> Buffer {
    let mut buffer = Buffer::new(SHEET_BYTES as usize);
    put(&mut buffer, 0, extents_max.clamp(1, EXTENTS_MAX) as u64);
    buffer
}

/// Extents of an answered buffer.
pub fn answered(buffer: &Buffer) -> impl Iterator<Item = Extent> {
    let count = (get(buffer, 0) as usize).min(EXTENTS_MAX);
    (1..=count).map(|place| {
        let word = get(buffer, place);
        let stored = match word & 3 {
            1 => Stored::Zeroes,
            2 => Stored::Hole,
            _ => Stored::Data,
        };
        Extent { length_bytes: word >> 2, stored }
    })
}

/// An answer in the making, about `left_bytes` more.
#[derive(Debug)]
pub struct Answer<'a> {
    buffer: &'a mut Buffer,
    extents_max: usize,
    count: usize,
    last: Option<Extent>,
    left_bytes: u64,
}

impl<'a> Answer<'a> {
    /// An empty answer to the question in `buffer` about `length_bytes`, not 0. Only an owned buffer has a question.
    pub fn new(buffer: &'a mut Buffer, length_bytes: u64) -> Answer<'a> {
        let extents_max = (get(buffer, 0) as usize).clamp(1, EXTENTS_MAX);
        put(buffer, 0, 0);
        Answer { buffer, extents_max, count: 0, last: None, left_bytes: length_bytes }
    }

    /// Bytes that it does not cover.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// Adds the next `length_bytes`, as far as they are asked for. False: it is complete.
    pub fn push(&mut self, length_bytes: u64, stored: Stored) -> bool {
        let length_bytes = length_bytes.min(self.left_bytes);
        let joined = self.last.filter(|last| last.stored == stored).map_or(0, |last| last.length_bytes);
        let extent = Extent { length_bytes: joined + length_bytes, stored };
        if length_bytes > 0 && joined == 0 {
            if self.count == self.extents_max {
                self.left_bytes = 0;
                return false;
            }
            self.count += 1;
            put(self.buffer, 0, self.count as u64);
        }
        if length_bytes > 0 {
            put(self.buffer, self.count, extent.length_bytes << 2 | stored as u64);
            (self.last, self.left_bytes) = (Some(extent), self.left_bytes - length_bytes);
        }
        self.left_bytes > 0
    }
}

fn put(buffer: &mut Buffer, place: usize, word: u64) {
    let at = place * WORD_BYTES;
    buffer.as_mut_slice()[at..at + WORD_BYTES].copy_from_slice(&word.to_ne_bytes());
}

fn get(buffer: &Buffer, place: usize) -> u64 {
    let at = place * WORD_BYTES;
    u64::from_ne_bytes(buffer.as_slice()[at..at + WORD_BYTES].try_into().expect("as many bytes"))
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use Stored::{Data, Hole, Zeroes};

    fn answer(extents_max: usize, length_bytes: u64, pushed: &[(u64, Stored)]) -> (Vec<(u64, Stored)>, Vec<bool>) {
        let mut buffer = ask(extents_max);
        let mut answer = Answer::new(&mut buffer, length_bytes);
        let more = pushed.iter().map(|(length_bytes, stored)| answer.push(*length_bytes, *stored)).collect();
        (answered(&buffer).map(|extent| (extent.length_bytes, extent.stored)).collect(), more)
    }

    #[test]
    fn neighbours_of_one_state_are_one_extent_and_the_last_ends_where_the_question_does() {
        let pushed = [(10, Data), (5, Data), (0, Hole), (1, Hole), (u64::MAX / 8, Zeroes)];
        let (extents, more) = answer(9, 100, &pushed);
        assert_eq!(extents, [(15, Data), (1, Hole), (84, Zeroes)]);
        assert_eq!(more, [true, true, true, true, false]);
    }

    #[test]
    fn an_answer_has_no_more_extents_than_were_asked_for_and_ends_before_the_next() {
        for (extents_max, taken) in [(0, 1), (1, 1), (2, 2), (usize::MAX, EXTENTS_MAX)] {
            let pushed: Vec<_> = (0..EXTENTS_MAX + 1).map(|n| (8, if n % 2 == 0 { Hole } else { Data })).collect();
            let (extents, more) = answer(extents_max, u64::MAX / 8, &pushed);
            assert_eq!(extents.len(), taken);
            assert!(more[..taken].iter().all(|more| *more) && more[taken..].iter().all(|more| !more));
        }
        let (extents, more) = answer(1, 100, &[(8, Hole), (8, Hole), (8, Data)]);
        assert_eq!((extents, more), (vec![(16, Hole)], vec![true, true, false]), "the extent that fits may grow");
    }
}
