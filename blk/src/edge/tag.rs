//! Tags: which commands a worker has on its device queue. Made by the block layer, used by the device (blk-mq section
//! 3).
//!
//! One worker owns the set, so it is a stack of free numbers without atomics; the last freed is used next, which keeps
//! the device's per-tag state in cache.

use mqfq_sched::policy::QueueClass;

/// Names a request inside one device queue: unique among those in flight, below the queue's depth.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag(pub u16);

/// The tags of one device queue, 0..depth; or of a set of three class queues, each with as many of its own:
///
/// | class | medium | high | low |
/// |---|---|---|---|
/// | tags | 0..depth | depth..2 depth | 2 depth..3 depth |
///
/// So a class whose queue is full takes nothing from another, and requests that know no classes use those of the medium
/// one.
#[derive(Debug)]
pub struct TagSet {
    /// Free tags of the medium, the high and the low queue; without class queues the last two have none.
    lists: [FreeList; 3],
    depth: u16,
    has_classes: bool,
}

#[derive(Debug)]
struct FreeList {
    /// The first `count` of them are free.
    tags: Box<[Tag]>,
    count: usize,
}

impl FreeList {
    /// A list of so many tags from this one on, all free.
    fn new(first: u16, count: u16) -> FreeList {
        FreeList { tags: (first..first + count).rev().map(Tag).collect(), count: usize::from(count) }
    }

    #[inline(always)]
    fn take(&mut self) -> Option<Tag> {
        // Without a free one there is no place of this number.
        let last = self.count.wrapping_sub(1);
        let &tag = self.tags.get(last)?;
        self.count = last;
        Some(tag)
    }
}

impl TagSet {
    /// Deepest class queue: tags have 16 bits.
    pub const CLASS_DEPTH_MAX: u16 = u16::MAX / 3;

    /// A set of `depth` tags, all free.
    pub fn new(depth: u16) -> TagSet {
        let lists = [FreeList::new(0, depth), FreeList::new(0, 0), FreeList::new(0, 0)];
        TagSet { lists, depth, has_classes: false }
    }

    /// A set of `depth` tags of each class, all free.
    ///
    /// # Panics
    /// If that is more than [`TagSet::CLASS_DEPTH_MAX`].
    pub fn with_classes(depth: u16) -> TagSet {
        assert!(depth <= TagSet::CLASS_DEPTH_MAX, "class queues of {depth} commands have no tags");
        let lists = [0, depth, 2 * depth].map(|first| FreeList::new(first, depth));
        TagSet { lists, depth, has_classes: true }
    }

    /// True if there is a queue for each class.
    #[inline]
    pub fn has_classes(&self) -> bool {
        self.has_classes
    }

    /// A free tag, of the medium queue if there are classes, if one is left. Give it back with [`TagSet::release`].
    #[inline]
    pub fn acquire(&mut self) -> Option<Tag> {
        self.lists[0].take()
    }

    /// A free tag of the queue of this class, or of the only queue.
    #[inline(always)]
    pub fn acquire_of(&mut self, class: QueueClass) -> Option<Tag> {
        if !self.has_classes {
            return self.acquire();
        }
        let list = match class {
            QueueClass::Medium => 0,
            QueueClass::High => 1,
            QueueClass::Low => 2,
        };
        self.lists[list].take()
    }

    /// The queue that a tag is of.
    pub fn class_of(&self, tag: Tag) -> QueueClass {
        match tag.0 / self.depth {
            0 => QueueClass::Medium,
            1 => QueueClass::High,
            _ => QueueClass::Low,
        }
    }

    /// The command of this tag was reaped.
    #[inline]
    pub fn release(&mut self, tag: Tag) {
        // 2 * depth is a tag only where there are classes, and then it is one (`CLASS_DEPTH_MAX`).
        let depth = u32::from(self.depth);
        let list = usize::from(u32::from(tag.0) >= depth) + usize::from(u32::from(tag.0) >= 2 * depth);
        let FreeList { tags, count } = &mut self.lists[list];
        let Some(place) = tags.get_mut(*count) else { self.panic_not_out(tag) };
        *place = tag;
        *count += 1;
    }

    #[cold]
    fn panic_not_out(&self, tag: Tag) -> ! {
        let all = self.all();
        assert!(usize::from(tag.0) < all, "tag {} released into a set of {all}", tag.0);
        panic!("tag {} released, yet none is out", tag.0);
    }

    /// Number of tags, out or not.
    pub fn all(&self) -> usize {
        usize::from(self.depth) * if self.has_classes { 3 } else { 1 }
    }

    /// Tags that are not out, of the queue that [`TagSet::acquire`] takes from.
    pub fn free(&self) -> usize {
        self.lists[0].count
    }

    /// Number of tags that are out.
    #[inline]
    pub fn in_use(&self) -> usize {
        let [medium, high, low] = &self.lists;
        self.all() - medium.count - high.count - low.count
    }
}

#[cfg(all(test, not(mqfq_loom)))]
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

    #[test]
    fn a_class_has_tags_of_its_own() {
        let mut tags = TagSet::with_classes(2);
        let mut take = |class| std::iter::from_fn(|| tags.acquire_of(class)).map(|tag| tag.0).collect::<Vec<_>>();
        assert_eq!(take(QueueClass::Low), [4, 5]);
        assert_eq!((take(QueueClass::High), take(QueueClass::Medium)), (vec![2, 3], vec![0, 1]));
        assert_eq!((tags.has_classes(), tags.in_use(), tags.all(), tags.free()), (true, 6, 6, 0));
        let classes = [QueueClass::Medium, QueueClass::High, QueueClass::Low].into_iter();
        for (class, number) in classes.flat_map(|class| [class; 2]).zip(0..6) {
            assert_eq!(tags.class_of(Tag(number)), class);
            tags.release(Tag(number));
        }
        assert_eq!((tags.in_use(), tags.free()), (0, 2), "two of the medium queue");
        assert_eq!(tags.acquire_of(QueueClass::High), Some(Tag(3)));
    }

    #[test]
    fn without_class_queues_every_class_takes_of_the_same() {
        let mut tags = TagSet::new(2);
        assert_eq!(tags.acquire_of(QueueClass::Low), Some(Tag(0)));
        assert_eq!(tags.acquire_of(QueueClass::High), Some(Tag(1)));
        assert_eq!((tags.acquire_of(QueueClass::Medium), tags.in_use()), (None, 2));
        assert_eq!((tags.has_classes(), tags.all(), tags.free()), (false, 2, 0));
    }

    #[test]
    #[should_panic(expected = "released into a set of 2")]
    fn a_tag_of_no_queue_is_our_bug() {
        TagSet::new(2).release(Tag(2));
    }
}
