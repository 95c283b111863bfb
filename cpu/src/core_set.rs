//! Which cores belong to a set?
//!
//! A bit per core; the next member from a place on, around a range, is a few words to look at.

use crate::scheduler::CoreId;
use std::ops::Range;

/// A set of cores.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreSet(Vec<u64>);

impl CoreSet {
    /// The empty set of `cores` cores.
    pub fn none(cores: usize) -> CoreSet {
        CoreSet(vec![0; cores.div_ceil(64)])
    }

    /// Adds a core or takes it out.
    pub fn set(&mut self, core: CoreId, is_in: bool) {
        let (word, bit) = (core.index() / 64, 1 << (core.index() % 64));
        if is_in {
            self.0[word] |= bit;
        } else {
            self.0[word] &= !bit;
        }
    }

    /// Is the core in the set?
    pub fn has(&self, core: CoreId) -> bool {
        self.0[core.index() / 64] & 1 << (core.index() % 64) != 0
    }

    /// Is the set empty?
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The members in `range`, in order.
    pub fn within(&self, range: Range<usize>) -> impl Iterator<Item = CoreId> {
        let words = range.start / 64..range.end.div_ceil(64);
        words.flat_map(move |word| {
            let mut bits = self.0[word];
            if word == range.start / 64 {
                bits &= u64::MAX << (range.start % 64);
            }
            if word == range.end / 64 {
                bits &= (1 << (range.end % 64)) - 1;
            }
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.wrapping_sub(1);
                (bit < 64).then(|| CoreId((word * 64) as u16 + bit as u16))
            })
        })
    }

    /// The first member of `range` at or after `from`, else the first before it.
    pub fn next_from(&self, from: CoreId, range: Range<usize>) -> Option<CoreId> {
        let (first, from) = (range.start, from.index());
        self.within(from..range.end).next().or_else(|| self.within(first..from).next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_in_order_within_any_range() {
        let members = [0, 3, 63, 64, 127, 128, 200];
        let mut set = CoreSet::none(201);
        assert!(set.is_empty());
        members.iter().for_each(|core| set.set(CoreId(*core), true));
        for start in 0..=201 {
            for end in start..=201 {
                let found: Vec<u16> = set.within(start..end).map(|core| core.0).collect();
                let right: Vec<u16> =
                    members.iter().copied().filter(|core| (start..end).contains(&usize::from(*core))).collect();
                assert_eq!(found, right, "{start}..{end}");
            }
        }
        set.set(CoreId(64), false);
        assert!(!set.has(CoreId(64)) && set.has(CoreId(63)));
    }

    #[test]
    fn a_search_begins_where_it_is_told_and_goes_around() {
        let mut set = CoreSet::none(100);
        [10, 70].iter().for_each(|core| set.set(CoreId(*core), true));
        let next = |from, range| set.next_from(CoreId(from), range).map(|core| core.0);
        assert_eq!(next(10, 0..100), Some(10));
        assert_eq!(next(11, 0..100), Some(70));
        assert_eq!(next(71, 0..100), Some(10));
        assert_eq!(next(20, 20..60), None);
    }
}
