//! A set of queues as a bitmap of fixed size: those with commands to fetch, those with completions to read.

/// Queue indices below a bound fixed at construction. All operations cost at most one pass over bound / 64 words, and
/// nothing if it is empty: a controller asks after each command, and most of the time no queue of most classes has one.
#[derive(Clone, Debug)]
pub struct QueueSet {
    words: Box<[u64]>,
    members: usize,
}

impl QueueSet {
    /// The empty set of indices below `bound`.
    pub fn new(bound: usize) -> QueueSet {
        QueueSet { words: vec![0; bound.div_ceil(64)].into_boxed_slice(), members: 0 }
    }

    /// Adds an index or takes it out.
    pub fn set(&mut self, index: usize, member: bool) {
        let word = &mut self.words[index / 64];
        let bit = 1 << (index % 64);
        match (*word & bit != 0, member) {
            (false, true) => self.members += 1,
            (true, false) => self.members -= 1,
            _ => return,
        }
        *word ^= bit;
    }

    /// Is it in the set?
    pub fn contains(&self, index: usize) -> bool {
        self.words[index / 64] >> (index % 64) & 1 == 1
    }

    /// The first member at or after `start`, going round to 0 at the end.
    pub fn next_from(&self, start: usize) -> Option<usize> {
        if self.members == 0 {
            return None;
        }
        let (first, bit) = (start / 64, start % 64);
        let words = self.words.len();
        let first = first % words;
        let above = self.words[first] & (u64::MAX << bit);
        if above != 0 {
            return Some(first * 64 + above.trailing_zeros() as usize);
        }
        // The last round looks at the first word again, whose bits at and above `bit` are known to be clear.
        (1..=words).find_map(|step| {
            let word = (first + step) % words;
            (self.words[word] != 0).then(|| word * 64 + self.words[word].trailing_zeros() as usize)
        })
    }

    /// Takes every member out, in ascending order.
    pub fn drain(&mut self, mut each: impl FnMut(usize)) {
        if std::mem::take(&mut self.members) == 0 {
            return;
        }
        for (word, bits) in self.words.iter_mut().enumerate() {
            let mut left = std::mem::take(bits);
            while left != 0 {
                each(word * 64 + left.trailing_zeros() as usize);
                left &= left - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_goes_round() {
        let mut set = QueueSet::new(130);
        assert_eq!(set.next_from(0), None);
        set.set(3, true);
        set.set(64, true);
        set.set(129, true);
        let found = [0, 3, 4, 64, 65, 129].map(|start| set.next_from(start));
        assert_eq!(found, [Some(3), Some(3), Some(64), Some(64), Some(129), Some(129)]);
        // 130 is one past the last index: the search begins in the last word and goes round.
        assert_eq!(set.next_from(130), Some(3));
        set.set(129, false);
        assert_eq!(set.next_from(65), Some(3));
        set.set(3, false);
        assert_eq!(set.next_from(65), Some(64), "the word where the search began is looked at again from its start");
    }

    #[test]
    fn drain_empties_the_set_in_order() {
        let mut set = QueueSet::new(100);
        [70, 2, 69].into_iter().for_each(|index| set.set(index, true));
        let mut drained = Vec::new();
        set.drain(|index| drained.push(index));
        assert_eq!(drained, [2, 69, 70]);
        assert_eq!(set.next_from(0), None);
    }
}
