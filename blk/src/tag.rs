//! Tags: which commands a worker has on its device queue. Made by the block layer, used by the device (blk-mq section 3).
//!
//! One worker owns the set, so it is a stack of free numbers without atomics; the last freed is used next, which keeps
//! the device's per-tag state in cache.

use crate::device::Tag;

/// The tags of one device queue, 0..depth.
#[derive(Debug)]
pub struct TagSet {
    free: Vec<Tag>,
    depth: u16,
}

impl TagSet {
    /// All of `depth` tags free.
    pub fn new(depth: u16) -> TagSet {
        TagSet { free: (0..depth).rev().map(Tag).collect(), depth }
    }

    /// A free tag, if one is left. Give it back with [`TagSet::release`].
    pub fn acquire(&mut self) -> Option<Tag> {
        self.free.pop()
    }

    /// The command of this tag was reaped.
    pub fn release(&mut self, tag: Tag) {
        assert!(tag.0 < self.depth, "tag {} released into a set of {}", tag.0, self.depth);
        assert!(self.free.len() < self.depth as usize, "tag {} released, yet none is out", tag.0);
        self.free.push(tag);
    }

    /// Tags that are not out.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Tags that are out.
    pub fn in_use(&self) -> usize {
        self.depth as usize - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tag_is_out_once() {
        let mut tags = TagSet::new(3);
        let mut out: Vec<_> = std::iter::from_fn(|| tags.acquire()).collect();
        assert_eq!(tags.in_use(), 3);
        out.sort_by_key(|tag| tag.0);
        assert_eq!(out, [Tag(0), Tag(1), Tag(2)]);
        tags.release(Tag(1));
        assert_eq!(tags.acquire(), Some(Tag(1)));
    }

    #[test]
    #[should_panic(expected = "none is out")]
    fn a_tag_released_twice_is_our_bug() {
        TagSet::new(2).release(Tag(0));
    }
}
