//! A virtqueue with its area of requests under way: heads that are new or were left by a former server, heads that have
//! ended, and wake-ups.
//!
//! A head is noted in the area before anything is done about it, and struck out after the guest was shown its end. So
//! the rest of a queue does not know the area.

use super::chain::Chain;
use super::guest::GuestMemory;
use super::inflight::SplitArea;
use super::rule::Rule;
use super::split::Split;
use std::collections::VecDeque;

/// Where a front-end says that a queue is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingAddresses {
    /// Front-end's address of the descriptor table.
    pub descriptors: u64,
    /// Front-end's address of the available ring.
    pub avail: u64,
    /// Front-end's address of the used ring.
    pub used: u64,
    /// The guest's address of the used ring, if writes to it are logged.
    pub log: Option<u64>,
}

/// A virtqueue, from the device's side. A request is named by its head, a descriptor of the table.
#[derive(Debug)]
pub struct Ring {
    split: Split,
    area: Option<SplitArea>,
    /// Heads that a former server left, the oldest first.
    left: VecDeque<u16>,
    has_indirect: bool,
}

impl Ring {
    /// A ring whose requests under way are noted in `area`. `has_indirect`: those were negotiated.
    pub fn new(split: Split, area: Option<SplitArea>, has_indirect: bool) -> Ring {
        Ring { split, area, left: VecDeque::new(), has_indirect }
    }

    /// Goes on where the area says that a former server was, if there was one. Before anything else.
    pub fn take_over(&mut self) {
        let used = self.split.next_used();
        if let Some(heads) = self.area.as_mut().and_then(|area| area.take_over(used)) {
            // All heads ever taken: `used` have ended and these have not.
            self.split.go_on_from(used.wrapping_add(heads.len() as u16));
            self.left = heads.into();
        }
    }

    /// Requests under way are noted in an area, so that they outlive this ring.
    pub fn has_area(&self) -> bool {
        self.area.is_some()
    }

    /// Nothing is left of a former server's.
    pub fn is_caught_up(&self) -> bool {
        self.left.is_empty()
    }

    /// Entries.
    pub fn size(&self) -> u16 {
        self.split.size()
    }

    /// Where it is, as GET_VRING_BASE says it: the entry of the available ring that comes next.
    pub fn base(&self) -> u16 {
        self.split.next_avail()
    }

    /// The next head, with its chain: one that a former server left, else a new one if those are taken.
    ///
    /// # Errors
    /// The rule that the ring or the chain breaks.
    pub fn take(&mut self, memory: &GuestMemory, chain: &mut Chain, takes_new: bool) -> Result<Option<u16>, Rule> {
        let Ring { split, area, left, has_indirect } = self;
        let (head, is_new) = match left.pop_front() {
            Some(head) => (head, false),
            None if takes_new => match split.take()? {
                Some(head) => (head, true),
                None => return Ok(None),
            },
            None => return Ok(None),
        };
        chain.read(memory, split.descriptors(), split.size(), head, *has_indirect)?;
        if let Some(area) = area.as_mut().filter(|_| is_new) {
            area.took(head);
        }
        Ok(Some(head))
    }

    /// Wants a kick at the next head. True: there is one already, and none will come for it.
    pub fn arm(&mut self) -> bool {
        self.split.arm()
    }

    /// Wants no kicks for now: heads are looked for.
    pub fn disarm(&mut self) {
        self.split.disarm();
    }

    /// Writes an end, which the guest sees at [`Ring::publish`]. `written_bytes` were written for this head.
    pub fn push(&mut self, head: u16, written_bytes: u32) {
        self.split.push(head, written_bytes);
        if let Some(area) = &mut self.area {
            area.ending(head);
        }
    }

    /// Shows the guest all ends that were pushed.
    pub fn publish(&mut self) {
        self.split.publish();
        if let Some(area) = &mut self.area {
            area.ended(self.split.next_used());
        }
    }

    /// True if the guest is to be woken for the ends published since its last signal.
    pub fn wants_signal(&mut self) -> bool {
        self.split.wants_signal()
    }

    /// Bytes of the used ring that the last `count` ends changed, as offsets in it and lengths: for a log.
    pub fn written(&self, count: u16) -> impl Iterator<Item = (u64, u32)> {
        self.split.written(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::inflight::{Areas, queue_bytes};
    use super::super::kill;
    use super::super::split::tests::{ADDRESSES, offer, queue, read16, write};
    use super::*;
    use mqfq_blk::foreign::ForeignMemory;
    use proptest::prelude::*;
    use std::os::fd::AsFd;

    const SIZE: u16 = 8;

    #[test]
    fn a_server_takes_what_a_former_one_left_before_anything_new_and_nothing_new_unless_it_shall() {
        let file = super::super::guest::tests::file(4096);
        assert!(queue_bytes(SIZE) <= 4096);
        let areas = Areas::new(ForeignMemory::map(file.as_fd(), 0, 4096).unwrap(), 0, 1, SIZE).unwrap();
        let mut chain = Chain::default();
        let (memory, _) = queue(SIZE, false);
        // Each descriptor of the table is one byte to write.
        let descriptor = [&0x30000u64.to_le_bytes()[..], &1u32.to_le_bytes(), &2u16.to_le_bytes(), &[0; 2]].concat();
        write(&memory, 0, &descriptor.repeat(SIZE.into()));
        let server = || {
            let split = Split::new(&memory, &ADDRESSES, SIZE, 0, false).unwrap();
            let mut ring = Ring::new(split, areas.queue(0, SIZE).unwrap(), false);
            ring.take_over();
            ring
        };
        offer(&memory, SIZE, 0, &[5, 1, 6]);
        let mut take = |ring: &mut Ring, takes_new| ring.take(&memory, &mut chain, takes_new).unwrap();
        let mut ring = server();
        assert!(ring.is_caught_up());
        assert_eq!(take(&mut ring, false), None);
        assert_eq!([take(&mut ring, true), take(&mut ring, true)], [Some(5), Some(1)]);
        drop(ring);
        let mut ring = server();
        for left in [5, 1] {
            assert!(!ring.is_caught_up());
            assert_eq!(take(&mut ring, false), Some(left));
        }
        assert!(ring.is_caught_up());
        assert_eq!(take(&mut ring, false), None);
        assert_eq!([take(&mut ring, true), take(&mut ring, true)], [Some(6), None]);
        assert_eq!(ring.size(), SIZE);
    }

    /// The driver of a ring, and what outlives its servers.
    struct Guest {
        memory: GuestMemory,
        areas: Areas,
        /// Heads that were offered and have not ended, in order.
        offered: Vec<u16>,
        /// Heads that were ever offered, and that were seen to end.
        counts: (u16, u16),
    }

    impl Guest {
        fn new() -> Guest {
            let (memory, _) = queue(SIZE, false);
            for head in 0..SIZE {
                let words = [&Guest::address(head).to_le_bytes()[..], &16u32.to_le_bytes(), &[0; 4]].concat();
                write(&memory, u64::from(head) * 16, &words);
            }
            let file = super::super::guest::tests::file(4096);
            let areas = Areas::new(ForeignMemory::map(file.as_fd(), 0, 4096).unwrap(), 0, 1, SIZE).unwrap();
            Guest { memory, areas, offered: Vec::new(), counts: (0, 0) }
        }

        /// Where the buffer of a head begins.
        fn address(head: u16) -> u64 {
            0x20000 + u64::from(head) * 0x1000
        }

        /// The next server.
        fn server(&self) -> Ring {
            let split = Split::new(&self.memory, &ADDRESSES, SIZE, 0, false).unwrap();
            let mut ring = Ring::new(split, self.areas.queue(0, SIZE).unwrap(), false);
            ring.take_over();
            ring
        }

        /// Offers a head that is free, if there is one; the first that is looked at is `from`.
        fn offer(&mut self, from: u16) {
            if let Some(head) = (0..SIZE).map(|head| (head + from) % SIZE).find(|head| !self.offered.contains(head)) {
                offer(&self.memory, SIZE, self.counts.0, &[head]);
                self.counts.0 += 1;
                self.offered.push(head);
            }
        }

        /// Number of ends that the guest sees for the first time. Each of those requests was under way.
        fn ended(&mut self) -> usize {
            let before = std::mem::replace(&mut self.counts.1, read16(&self.memory, 0x8002));
            for entry in before..self.counts.1 {
                let head = read16(&self.memory, 0x8004 + 8 * u64::from(entry & (SIZE - 1)));
                let place = self.offered.iter().position(|offered| *offered == head);
                self.offered.remove(place.expect("an end of what is under way, once"));
            }
            usize::from(self.counts.1 - before)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 2_000 } else { 20_000 }))]

        /// Takes and ends in any order and in batches; then a turn that is killed before any of its stores, a guest
        /// that goes on with what it sees, and servers that are killed as they take over: the last server takes what
        /// has not ended, in the order in which it was offered, and the guest sees each end once.
        #[test]
        fn each_head_ends_once_wherever_the_kill_comes(
            steps in prop::collection::vec((0..3usize, 0..SIZE, any::<prop::sample::Index>()), 0..80),
            takes: bool,
            ends: prop::sample::Index,
            kill in 0..50usize,
            offers in 0..8u16,
            later_kills in prop::collection::vec(0..12usize, 0..3),
        ) {
            let (mut guest, mut chain) = (Guest::new(), Chain::default());
            let mut ring = guest.server();
            let mut under_way: Vec<u16> = Vec::new();
            for (what, from, which) in steps {
                match what {
                    0 => guest.offer(from),
                    1 => under_way.extend(ring.take(&guest.memory, &mut chain, true).unwrap()),
                    _ => {
                        let count = which.index(under_way.len() + 1);
                        for _ in 0..count {
                            ring.push(under_way.remove(which.index(under_way.len())), 1);
                        }
                        ring.publish();
                        prop_assert_eq!(guest.ended(), count);
                    }
                }
            }
            let count = ends.index(under_way.len() + 1);
            let is_whole = kill::after(kill, || {
                if takes {
                    ring.take(&guest.memory, &mut chain, true).unwrap();
                }
                under_way[..count].iter().for_each(|head| ring.push(*head, 1));
                ring.publish();
            });
            let seen = guest.ended();
            prop_assert!(seen == count || seen == 0 && !is_whole, "{} of {} are shown", seen, count);
            // A guest goes on while it has no server: what it saw end is offered again.
            (0..offers).for_each(|from| guest.offer(from));
            drop(ring);
            for kill in later_kills {
                kill::after(kill, || drop(guest.server()));
            }
            // The next one knows nothing but the memory.
            let mut ring = guest.server();
            for head in guest.offered.clone() {
                prop_assert_eq!(ring.take(&guest.memory, &mut chain, true).unwrap(), Some(head));
                prop_assert_eq!(chain.readable[0], guest.memory.span(Guest::address(head), 16).unwrap());
                ring.push(head, 1);
                ring.publish();
                // Not those of a batch that the last one did not come to show.
                prop_assert_eq!(guest.ended(), 1);
            }
            prop_assert_eq!(ring.take(&guest.memory, &mut chain, true), Ok(None));
        }
    }
}
