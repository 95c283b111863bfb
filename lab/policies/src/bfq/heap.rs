//! A heap whose links lie in what it holds, so that any element leaves it and nothing is allocated.
//!
//! Answers: which of these is first, and what if one in the middle goes away? Source: Fredman, Sedgewick, Sleator and
//! Tarjan, "The pairing heap", 1986. The elements are places of a slab; a place is in one heap at a time.
//!
//! # Shape
//! ```text
//!   root 4                      child: the first of those below; next: the sibling to the right;
//!     ├── 7 ── 2 ── 9           prev: the sibling to the left, of the first one the parent
//!     │        └── 5
//!     └── (none is before its parent)
//! ```
//!
//! # Cost
//! insert and merge: one comparison. Removal: the children are joined in pairs, O(log n) amortised.

use mqfq_sched::sync::touch;
use std::marker::PhantomData;

/// "No place".
pub(super) const NONE: u32 = u32::MAX;

/// Links of an element in its heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    child: u32,
    next: u32,
    prev: u32,
}

impl Links {
    /// Links of an element in no heap.
    pub(super) const OUT: Links = Links { child: NONE, next: NONE, prev: NONE };
}

/// An element of a slab that can lie in a heap.
pub(super) trait Linked {
    /// The links by which the heap holds this element.
    fn links(&mut self) -> &mut Links;
}

/// Sort order of a heap.
pub(super) trait Order<N> {
    /// `a` comes out before `b`. Ties go to the entry that has been there longer, as far as the heap knows.
    fn is_before(a: &N, b: &N) -> bool;
}

/// A pairing heap in the order `O` over places of a slab, which the caller passes in.
pub(super) struct Heap<O> {
    root: u32,
    order: PhantomData<fn() -> O>,
}

impl<O> Heap<O> {
    /// Empty heap.
    pub(super) const EMPTY: Heap<O> = Heap { root: NONE, order: PhantomData };

    /// The place of the first element; `None` if the heap is empty.
    pub(super) fn first(&self) -> Option<u32> {
        (self.root != NONE).then_some(self.root)
    }

    /// Takes in a place that is in no heap.
    pub(super) fn insert<N: Linked>(&mut self, nodes: &mut [N], place: u32)
    where
        O: Order<N>,
    {
        *nodes[place as usize].links() = Links::OUT;
        self.root = Self::merge(nodes, self.root, place);
    }

    /// Takes out a place, which must be in this heap.
    pub(super) fn remove<N: Linked>(&mut self, nodes: &mut [N], place: u32)
    where
        O: Order<N>,
    {
        touch(nodes, place as usize);
        let Links { child, next, prev } = std::mem::replace(nodes[place as usize].links(), Links::OUT);
        let below = Self::join(nodes, child);
        if place == self.root {
            self.root = below;
            return;
        }
        let left = nodes[prev as usize].links();
        if left.child == place {
            left.child = next;
        } else {
            left.next = next;
        }
        if next != NONE {
            nodes[next as usize].links().prev = prev;
        }
        self.root = Self::merge(nodes, self.root, below);
    }

    /// Merges two roots without siblings into one heap.
    fn merge<N: Linked>(nodes: &mut [N], a: u32, b: u32) -> u32
    where
        O: Order<N>,
    {
        if a == NONE || b == NONE {
            return if a == NONE { b } else { a };
        }
        touch(nodes, a as usize);
        touch(nodes, b as usize);
        let (up, down) = if O::is_before(&nodes[b as usize], &nodes[a as usize]) { (b, a) } else { (a, b) };
        let first = std::mem::replace(&mut nodes[up as usize].links().child, down);
        let links = nodes[down as usize].links();
        links.next = first;
        links.prev = up;
        if first != NONE {
            nodes[first as usize].links().prev = down;
        }
        up
    }

    /// Joins a row of siblings into one heap: in pairs from the left, then all pairs from the right.
    fn join<N: Linked>(nodes: &mut [N], mut row: u32) -> u32
    where
        O: Order<N>,
    {
        let mut pairs = NONE;
        while row != NONE {
            let second = Self::detach(nodes, row);
            let rest = if second == NONE { NONE } else { Self::detach(nodes, second) };
            let pair = Self::merge(nodes, row, second);
            nodes[pair as usize].links().next = pairs;
            pairs = pair;
            row = rest;
        }
        let mut root = NONE;
        while pairs != NONE {
            let next = Self::detach(nodes, pairs);
            root = Self::merge(nodes, root, pairs);
            pairs = next;
        }
        root
    }

    /// Makes a sibling a root. Returns the one to its right.
    fn detach<N: Linked>(nodes: &mut [N], place: u32) -> u32 {
        let links = nodes[place as usize].links();
        links.prev = NONE;
        std::mem::replace(&mut links.next, NONE)
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    struct Number(u64, Links);

    impl Linked for Number {
        fn links(&mut self) -> &mut Links {
            &mut self.1
        }
    }

    struct Ascending;

    impl Order<Number> for Ascending {
        fn is_before(a: &Number, b: &Number) -> bool {
            a.0 < b.0
        }
    }

    #[test]
    fn whatever_goes_in_and_out_the_first_is_the_smallest() {
        let mut random = mqfq_testing::Random::new(1);
        let mut draw = |bound: u64| random.below(bound);
        let mut nodes: Vec<Number> = (0..200).map(|_| Number(0, Links::OUT)).collect();
        let (mut heap, mut inside): (Heap<Ascending>, Vec<u32>) = (Heap::EMPTY, Vec::new());
        let mut largest = 0;
        for _ in 0..20_000 {
            let place = draw(200) as u32;
            match inside.iter().position(|&other| other == place) {
                Some(at) => {
                    // The first is as likely as any other.
                    let at =
                        if draw(2) == 0 { at } else { inside.iter().position(|&n| Some(n) == heap.first()).unwrap() };
                    heap.remove(&mut nodes, inside.swap_remove(at));
                }
                None => {
                    nodes[place as usize].0 = draw(50);
                    heap.insert(&mut nodes, place);
                    inside.push(place);
                }
            }
            let smallest = inside.iter().map(|&n| nodes[n as usize].0).min();
            assert_eq!(heap.first().map(|n| nodes[n as usize].0), smallest);
            largest = largest.max(inside.len());
        }
        assert!(largest > 100, "the heap never held more than {largest}");
    }
}
