//! Lanes in order of their first request: smallest start tag, then shorter interval, then earlier arrival.
//!
//! # Shape
//! ```text
//!   first   the smallest, held apart: what a dispatch looks at
//!   run     a ring, sorted: a lane not before its last joins it at the end, at the cost of one comparison
//!   heap    a binary heap: the others
//! ```
//! Flows that advance at one pace leave and come back in the order of a queue, and stay in the run. A flow that
//! advances more slowly in virtual time than the last of the run (a large weight, small requests) goes through the
//! heap, which then holds the fast flows only.
//!
//! # Invariants
//! O1. `first` is not after anything in run and heap, and there is a first if there is anything.
//! O2. The run is sorted, the heap is a heap.
//!
//! # Cost
//! While all advance at one pace: two comparisons per replacement. A single lane: none. Else O(log lanes) in the heap.

use crate::vtime::{VSpan, VTime};
use alloc::boxed::Box;
use alloc::vec;

/// "No node", "no lane".
pub(super) const NONE: u32 = u32::MAX;

/// A lane and its key.
#[derive(Clone, Copy)]
pub(super) struct Key {
    pub(super) start_tag: VTime,
    pub(super) span: VSpan,
    /// Wraps: arrivals that are compared are less than 2^31 apart.
    pub(super) arrival: u32,
    pub(super) lane: u32,
}

impl Key {
    const NOBODY: Key = Key { start_tag: VTime::ZERO, span: VSpan(0), arrival: 0, lane: NONE };

    #[inline]
    fn goes_before(&self, other: &Key) -> bool {
        match self.start_tag.since(other.start_tag) {
            0 if self.span != other.span => self.span < other.span,
            0 => (self.arrival.wrapping_sub(other.arrival) as i32) < 0,
            gap => gap < 0,
        }
    }
}

/// The lanes that hold requests, by the key of their first one: the smallest apart, the others in a sorted run or a
/// heap.
pub(super) struct LaneOrder {
    first: Key,
    /// A power of two.
    run: Box<[Key]>,
    /// Position of the run's front; wraps, as the end does.
    run_front: u32,
    run_len: u32,
    heap: Box<[Key]>,
    heap_len: usize,
}

impl LaneOrder {
    /// Empty, with room for `lanes`.
    pub(super) fn new(lanes: usize) -> LaneOrder {
        LaneOrder {
            first: Key::NOBODY,
            run: vec![Key::NOBODY; lanes.next_power_of_two()].into_boxed_slice(),
            run_front: 0,
            run_len: 0,
            heap: vec![Key::NOBODY; lanes].into_boxed_slice(),
            heap_len: 0,
        }
    }

    /// Lanes that it has.
    pub(super) fn lanes(&self) -> usize {
        usize::from(self.first.lane != NONE) + self.run_len as usize + self.heap_len
    }

    /// The smallest; its lane is `NONE` if there is none.
    #[inline]
    pub(super) fn first_key(&self) -> &Key {
        &self.first
    }

    /// The smallest one's start tag.
    #[inline]
    pub(super) fn first_tag(&self) -> Option<VTime> {
        (self.first.lane != NONE).then_some(self.first.start_tag)
    }

    /// Takes in a lane. True if it is the first now.
    pub(super) fn insert(&mut self, key: Key) -> bool {
        if self.first.lane == NONE {
            self.first = key;
            return true;
        }
        if !key.goes_before(&self.first) {
            self.place(key);
            return false;
        }
        // The old first is not after anything in the run.
        let was_first = core::mem::replace(&mut self.first, key);
        self.run_front = self.run_front.wrapping_sub(1);
        self.run_len += 1;
        let front = self.in_run(0);
        self.run[front] = was_first;
        true
    }

    /// The first lane has another key now.
    #[inline(always)] // as `StageQueue::drop_first`, which it is most of
    pub(super) fn replace_first(&mut self, key: Key) {
        if self.heap_len != 0 {
            return self.replace_first_beside_heap(key);
        }
        if self.run_len != 0 {
            let mask = self.run.len() - 1;
            let front = self.run_front as usize;
            let end = front.wrapping_add(self.run_len as usize);
            if self.run[front & mask].goes_before(&key) {
                self.first = self.run[front & mask];
                self.run_front = self.run_front.wrapping_add(1);
                if key.goes_before(&self.run[end.wrapping_sub(1) & mask]) {
                    self.run_len -= 1;
                    return self.push_heap(key);
                }
                self.run[end & mask] = key;
                return;
            }
        }
        self.first = key;
    }

    #[inline(never)]
    fn replace_first_beside_heap(&mut self, key: Key) {
        if self.run_is_next() {
            let front = self.run[self.in_run(0)];
            if front.goes_before(&key) {
                self.run_front = self.run_front.wrapping_add(1);
                self.run_len -= 1;
                self.first = front;
                return self.place(key);
            }
        } else if self.heap[0].goes_before(&key) {
            self.first = self.heap[0];
            if self.joins_run(&key) {
                self.pop_heap();
                self.append(key);
            } else {
                self.replace_root(key);
            }
            return;
        }
        self.first = key;
    }

    /// The first lane is gone.
    pub(super) fn remove_first(&mut self) {
        if self.run_is_next() {
            self.first = self.run[self.in_run(0)];
            self.run_front = self.run_front.wrapping_add(1);
            self.run_len -= 1;
        } else if self.heap_len > 0 {
            self.first = self.heap[0];
            self.pop_heap();
        } else {
            self.first = Key::NOBODY;
        }
    }

    /// A lane is gone, wherever it stands. It is there.
    pub(super) fn remove(&mut self, lane: u32) {
        if self.first.lane == lane {
            return self.remove_first();
        }
        if let Some(at) = (0..self.run_len).find(|&n| self.run[self.in_run(n)].lane == lane) {
            for n in at + 1..self.run_len {
                self.run[self.in_run(n - 1)] = self.run[self.in_run(n)];
            }
            self.run_len -= 1;
            return;
        }
        let Some(mut at) = self.heap[..self.heap_len].iter().position(|key| key.lane == lane) else { return };
        // The path down from the root moves down by one, so that the root's place is free.
        while at > 0 {
            let parent = (at - 1) / 2;
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.pop_heap();
    }

    /// A lane that is there has another key now.
    pub(super) fn replace(&mut self, key: Key) {
        self.remove(key.lane);
        self.insert(key);
    }

    /// The smallest of the run and the heap is the run's.
    #[inline]
    fn run_is_next(&self) -> bool {
        self.run_len > 0 && (self.heap_len == 0 || !self.heap[0].goes_before(&self.run[self.in_run(0)]))
    }

    /// Index of the run's n-th.
    #[inline]
    fn in_run(&self, n: u32) -> usize {
        self.run_front.wrapping_add(n) as usize & (self.run.len() - 1)
    }

    #[inline]
    fn joins_run(&self, key: &Key) -> bool {
        self.run_len == 0 || !key.goes_before(&self.run[self.in_run(self.run_len - 1)])
    }

    #[inline]
    fn place(&mut self, key: Key) {
        if self.joins_run(&key) {
            self.append(key);
        } else {
            self.push_heap(key);
        }
    }

    #[inline(never)]
    fn push_heap(&mut self, key: Key) {
        self.heap_len += 1;
        self.sift_up(self.heap_len - 1, key);
    }

    #[inline]
    fn append(&mut self, key: Key) {
        let end = self.in_run(self.run_len);
        self.run[end] = key;
        self.run_len += 1;
    }

    fn pop_heap(&mut self) {
        self.heap_len -= 1;
        if self.heap_len > 0 {
            self.replace_root(self.heap[self.heap_len]);
        }
    }

    /// Puts `key` at `at` or above.
    fn sift_up(&mut self, mut at: usize, key: Key) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if !key.goes_before(&self.heap[parent]) {
                break;
            }
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.heap[at] = key;
    }

    /// Replaces the root by `key` and restores the order. The hole goes down to a leaf along the smaller children and
    /// the key up from there: one comparison per level and not two, as most keys belong near the bottom.
    fn replace_root(&mut self, key: Key) {
        let heap = &mut self.heap[..self.heap_len];
        let mut at = 0;
        let mut child = 2;
        while child < heap.len() {
            let smaller = child - usize::from(heap[child - 1].goes_before(&heap[child]));
            heap[at] = heap[smaller];
            at = smaller;
            child = 2 * at + 2;
        }
        if child == heap.len() {
            heap[at] = heap[child - 1];
            at = child - 1;
        }
        self.sift_up(at, key);
    }
}
