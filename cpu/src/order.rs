//! Which program's turn is it? A binary heap whose members can be found and moved.
//!
//! # Shape
//! `heap` holds the programs that wait, each with its key, smallest first; `places` has each program's position in
//! `heap`. A program's key changes while it waits, when a request of its own ends: it then moves up or down from where
//! it stands.
//!
//! # Cost
//! Logarithmic in the programs that wait; nothing is allocated after construction.

/// Members `0..capacity`, each at most once, by key.
#[derive(Clone, Debug)]
pub(crate) struct Order<K> {
    heap: Vec<(K, usize)>,
    places: Vec<Option<usize>>,
}

impl<K: Ord + Copy> Order<K> {
    pub fn new(capacity: usize) -> Order<K> {
        Order { heap: Vec::with_capacity(capacity), places: vec![None; capacity] }
    }

    /// The member with the smallest key.
    pub fn first(&self) -> Option<(K, usize)> {
        self.heap.first().copied()
    }

    /// Sets the key of `member`, and adds it if it is not there.
    pub fn set(&mut self, member: usize, key: K) {
        let at = self.places[member].unwrap_or_else(|| {
            self.heap.push((key, member));
            self.heap.len() - 1
        });
        self.heap[at] = (key, member);
        let at = self.up(at);
        self.down(at);
    }

    /// Removes `member`, if it is there.
    pub fn remove(&mut self, member: usize) {
        let Some(at) = self.places[member].take() else { return };
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            let at = self.up(at);
            self.down(at);
        }
    }

    fn put(&mut self, at: usize, entry: (K, usize)) {
        self.heap[at] = entry;
        self.places[entry.1] = Some(at);
    }

    fn up(&mut self, mut at: usize) -> usize {
        let entry = self.heap[at];
        while at > 0 && entry.0 < self.heap[(at - 1) / 2].0 {
            self.put(at, self.heap[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        self.put(at, entry);
        at
    }

    fn down(&mut self, mut at: usize) {
        let entry = self.heap[at];
        loop {
            let smaller = |a: usize, b: usize| if self.heap[b].0 < self.heap[a].0 { b } else { a };
            let child = match 2 * at + 1 {
                left if left + 1 < self.heap.len() => smaller(left, left + 1),
                left if left < self.heap.len() => left,
                _ => break,
            };
            if entry.0 <= self.heap[child].0 {
                break;
            }
            self.put(at, self.heap[child]);
            at = child;
        }
        self.put(at, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_gives_what_a_search_through_all_gives(
            steps in prop::collection::vec((0usize..9, prop::option::of(0u8..20)), 1..80),
        ) {
            let mut order = Order::new(9);
            let mut all: BTreeMap<usize, (u8, usize)> = BTreeMap::new();
            for (member, key) in steps {
                match key {
                    Some(key) => {
                        order.set(member, (key, member));
                        all.insert(member, (key, member));
                    }
                    None => {
                        order.remove(member);
                        all.remove(&member);
                    }
                }
                prop_assert_eq!(order.first().map(|(key, _)| key), all.values().min().copied());
            }
        }
    }
}
