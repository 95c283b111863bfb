//! Requests in order of their place on the device, without allocation.
//!
//! Answers: which request comes next at or after this byte? Source: treaps, Seidel and Aragon, "Randomized Search
//! Trees", Algorithmica 1996: a binary search tree whose shape is that of random insertion, because each node has a
//! random rank and none stands above a higher one.
//!
//! # Shape
//! ```text
//!   links, one per request, in an array      trees, one per list of a policy: the index of the root
//!     0: offset 40, left 2, right 1            reads:  0
//!     1: offset 90                             writes: 3
//!     2: offset 10
//!     3: offset 64
//! ```
//! The caller numbers its requests 0..capacity and says which number goes into which tree; a number is in one tree at
//! most. Ranks are a hash of the arrival number, so the order of offsets, which clients choose, has no say in the
//! shape.
//!
//! # Invariants
//! O1. In a tree, (offset, arrival) increases from left to right.
//! O2. No node has a rank above its parent's.
//!
//! # Cost
//! Each operation a walk of O(log n) links, on average over the ranks.

/// "No request".
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Link {
    offset_bytes: u64,
    arrival: u64,
    left: u32,
    right: u32,
}

/// A set of requests in order; the requests are in an [`OffsetOrder`].
#[derive(Clone, Copy, Debug)]
pub struct OffsetTree {
    root: u32,
}

impl OffsetTree {
    /// A tree without requests.
    pub const EMPTY: OffsetTree = OffsetTree { root: NONE };

    /// Nothing is in it.
    pub const fn is_empty(&self) -> bool {
        self.root == NONE
    }
}

/// The links of all requests: treaps over offsets on the device, one per [`OffsetTree`].
pub struct OffsetOrder {
    links: Box<[Link]>,
}

impl OffsetOrder {
    /// Links for the requests 0..capacity. All memory is taken here.
    pub fn new(capacity_requests: usize) -> OffsetOrder {
        let link = Link { offset_bytes: 0, arrival: 0, left: NONE, right: NONE };
        OffsetOrder { links: vec![link; capacity_requests].into_boxed_slice() }
    }

    /// Puts `request` into a tree. Of equal offsets the smaller `arrival` comes first; a tree has each once.
    pub fn insert(&mut self, tree: &mut OffsetTree, request: u32, offset_bytes: u64, arrival: u64) {
        let rank = rank(arrival);
        let key = (offset_bytes, arrival);
        let (mut parent, mut at) = (NONE, tree.root);
        while at != NONE && rank_of(self.link(at)) >= rank {
            parent = at;
            at = self.child(at, key);
        }
        let (left, right) = self.split(at, key);
        self.links[request as usize] = Link { offset_bytes, arrival, left, right };
        self.replace(tree, parent, key, request);
    }

    /// Takes `request` out of its tree.
    pub fn remove(&mut self, tree: &mut OffsetTree, request: u32) {
        let Link { offset_bytes, arrival, left, right } = *self.link(request);
        let key = (offset_bytes, arrival);
        let (mut parent, mut at) = (NONE, tree.root);
        while at != request {
            debug_assert!(at != NONE, "request {request} is not in this tree");
            parent = at;
            at = self.child(at, key);
        }
        let below = self.join(left, right);
        self.replace(tree, parent, key, below);
    }

    /// The first request that begins at `offset_bytes` or after it.
    pub fn at_or_after(&self, tree: &OffsetTree, offset_bytes: u64) -> Option<u32> {
        let (mut at, mut found) = (tree.root, None);
        while at != NONE {
            let link = self.link(at);
            if link.offset_bytes >= offset_bytes {
                found = Some(at);
                at = link.left;
            } else {
                at = link.right;
            }
        }
        found
    }

    fn link(&self, at: u32) -> &Link {
        &self.links[at as usize]
    }

    /// Child of `at` on the side of `key`.
    fn child(&self, at: u32, key: (u64, u64)) -> u32 {
        let link = self.link(at);
        if key < key_of(link) { link.left } else { link.right }
    }

    /// Hangs `below` under `parent` on the side of `key`; without a parent, it becomes the whole tree.
    fn replace(&mut self, tree: &mut OffsetTree, parent: u32, key: (u64, u64), below: u32) {
        let Some(link) = self.links.get_mut(parent as usize) else {
            tree.root = below;
            return;
        };
        if key < key_of(link) {
            link.left = below;
        } else {
            link.right = below;
        }
    }

    /// Two trees of one: what is before `key` and what is after it.
    fn split(&mut self, at: u32, key: (u64, u64)) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        let Link { left, right, .. } = *self.link(at);
        if key_of(self.link(at)) < key {
            let (before, after) = self.split(right, key);
            self.links[at as usize].right = before;
            (at, after)
        } else {
            let (before, after) = self.split(left, key);
            self.links[at as usize].left = after;
            (before, at)
        }
    }

    /// One tree of two, all of `before` before all of `after`.
    fn join(&mut self, before: u32, after: u32) -> u32 {
        if before == NONE {
            return after;
        }
        if after == NONE {
            return before;
        }
        if rank_of(self.link(before)) >= rank_of(self.link(after)) {
            let below = self.join(self.link(before).right, after);
            self.links[before as usize].right = below;
            before
        } else {
            let below = self.join(before, self.link(after).left);
            self.links[after as usize].left = below;
            after
        }
    }
}

fn key_of(link: &Link) -> (u64, u64) {
    (link.offset_bytes, link.arrival)
}

fn rank_of(link: &Link) -> u64 {
    rank(link.arrival)
}

/// The finisher of SplitMix64 (Steele et al., OOPSLA 2014): consecutive numbers come out as if drawn.
fn rank(arrival: u64) -> u64 {
    let z = (arrival ^ (arrival >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Longest path of a tree, and O1 and O2 on the way.
    fn height(order: &OffsetOrder, at: u32, low: Option<(u64, u64)>, high: Option<(u64, u64)>) -> usize {
        if at == NONE {
            return 0;
        }
        let link = order.link(at);
        let key = key_of(link);
        assert!(low.is_none_or(|low| low < key) && high.is_none_or(|high| key < high), "O1 at {key:?}");
        for below in [link.left, link.right] {
            assert!(below == NONE || rank_of(order.link(below)) <= rank_of(link), "O2 at {key:?}");
        }
        1 + height(order, link.left, low, Some(key)).max(height(order, link.right, Some(key), high))
    }

    #[test]
    fn rising_offsets_make_no_list() {
        // 4096 requests in sector order, the worst case of a tree without ranks: 2 ln n = 17 on average, 50 with luck
        // against us.
        let mut order = OffsetOrder::new(4096);
        let mut tree = OffsetTree::EMPTY;
        for n in 0..4096 {
            order.insert(&mut tree, n, u64::from(n) * 4096, u64::from(n));
        }
        let height = height(&order, tree.root, None, None);
        assert!(height < 50, "{height} links deep");
    }

    proptest! {
        // Two trees over one array of links, offsets that collide, against sorted maps.
        #[test]
        fn agrees_with_a_sorted_map(steps in prop::collection::vec((0u8..3, any::<bool>(), 0u64..20), 1..300)) {
            let mut order = OffsetOrder::new(32);
            let mut trees = [OffsetTree::EMPTY; 2];
            let mut models: [BTreeMap<(u64, u64), u32>; 2] = Default::default();
            let mut free: Vec<u32> = (0..32).collect();
            for (arrival, (step, second, offset)) in steps.into_iter().enumerate() {
                let (arrival, which) = (arrival as u64, usize::from(second));
                let (tree, model) = (&mut trees[which], &mut models[which]);
                match step {
                    0 => if let Some(request) = free.pop() {
                        order.insert(tree, request, offset, arrival);
                        model.insert((offset, arrival), request);
                    },
                    1 => if let Some((&key, &request)) = model.range((offset, 0)..).next() {
                        order.remove(tree, request);
                        model.remove(&key);
                        free.push(request);
                    },
                    _ => {}
                }
                let expected = model.range((offset, 0)..).next().map(|(_, &request)| request);
                prop_assert_eq!(order.at_or_after(tree, offset), expected);
                prop_assert_eq!(tree.is_empty(), model.is_empty());
                height(&order, tree.root, None, None);
            }
        }
    }
}
