//! A split virtqueue from the device's side: new heads, ended heads, and wake-ups.
//!
//! Source: VIRTIO 1.2, section 2.7. The rings lie in memory that the guest writes at any time. An index or an entry is
//! read once, and checked before it is used; what was checked is not read again.
//!
//! # Wake-ups
//! Each side writes its own index, fences, and reads at which index the other wants to be woken. So if both do so at
//! once, at least one sees the other's write.
//!
//! | | this side writes | fence | then reads |
//! |---|---|---|---|
//! | heads | "kick me at the next one" ([`Split::arm`]) | SeqCst | the available index |
//! | ends | the used index ([`Split::publish`]) | SeqCst | the used event, or the flag "no interrupt" |

use super::guest::{Area, GuestMemory};
use super::ring::RingAddresses;
use super::rule::Rule;
use super::wire::{
    AVAIL_BYTES, AVAIL_NO_INTERRUPT, DESCRIPTOR_BYTES, QUEUE_SIZE_MAX, USED_BYTES, USED_ENTRY_BYTES, USED_NO_NOTIFY,
};
use std::sync::atomic::{Ordering, fence};

/// The device's side of a split virtqueue.
#[derive(Debug)]
pub struct Split {
    size: u16,
    has_events: bool,
    descriptors: Area,
    avail: Area,
    used: Area,
    /// The next entry of the available ring that will be read.
    next_avail: u16,
    /// Behind the last entry of the used ring that was written.
    next_used: u16,
    /// Behind the last one that the guest has been told of.
    told_used: u16,
    is_armed: bool,
}

impl Split {
    /// A queue of `size` entries at `addresses`, of which those from `next_avail` on are new. The used ring goes on
    /// where it stands.
    ///
    /// # Errors
    /// [`Rule::BadQueueSize`], [`Rule::BadRing`].
    pub fn new(
        memory: &GuestMemory,
        addresses: &RingAddresses,
        size: u16,
        next_avail: u16,
        has_events: bool,
    ) -> Result<Split, Rule> {
        if !size.is_power_of_two() || size > QUEUE_SIZE_MAX {
            return Err(Rule::BadQueueSize);
        }
        let entries = usize::from(size);
        let area = |addr, bytes, align| memory.area(addr, bytes, align).ok_or(Rule::BadRing);
        let descriptors = area(addresses.descriptors, entries * DESCRIPTOR_BYTES, 16)?;
        let avail = area(addresses.avail, AVAIL_BYTES + entries * 2, 2)?;
        let used = area(addresses.used, USED_BYTES + entries * USED_ENTRY_BYTES, 4)?;
        let mut ring = Split {
            size,
            has_events,
            descriptors,
            avail,
            used,
            next_avail,
            next_used: 0,
            told_used: 0,
            is_armed: false,
        };
        // Relaxed: only this queue writes the index; its former writer has stopped.

        ring.next_used = load(&ring.used, 2, Ordering::Relaxed);
        ring.told_used = ring.next_used;
        Ok(ring)
    }

    /// Entries.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// The descriptor table.
    pub fn descriptors(&self) -> &Area {
        &self.descriptors
    }

    /// The entry of the available ring that comes next.
    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// Begins with this entry of the available ring.
    pub fn go_on_from(&mut self, next_avail: u16) {
        self.next_avail = next_avail;
    }

    /// The next entry of the used ring.
    pub fn next_used(&self) -> u16 {
        self.next_used
    }

    /// The next new head, if there is one.
    ///
    /// # Errors
    /// [`Rule::RingOverrun`], [`Rule::BadHead`].
    pub fn take(&mut self) -> Result<Option<u16>, Rule> {
        // Acquire: pairs with the driver's release of the index, after which it has written the entries and the
        // descriptors before it.
        let end = load(&self.avail, 2, Ordering::Acquire);
        let new = end.wrapping_sub(self.next_avail);
        if new == 0 {
            return Ok(None);
        }
        if new > self.size {
            return Err(Rule::RingOverrun);
        }
        let entry = usize::from(self.next_avail & (self.size - 1));
        // Relaxed: the Acquire above has it.
        let head = load(&self.avail, 4 + entry * 2, Ordering::Relaxed);
        if head >= self.size {
            return Err(Rule::BadHead);
        }
        self.next_avail = self.next_avail.wrapping_add(1);
        Ok(Some(head))
    }

    /// Wants a kick at the next head. True: there is one already, and none will come for it.
    pub fn arm(&mut self) -> bool {
        self.is_armed = true;
        // Relaxed: the fence below pairs with the driver's.
        if self.has_events {
            let place = 4 + usize::from(self.size) * USED_ENTRY_BYTES;
            store(&self.used, place, self.next_avail, Ordering::Relaxed);
        } else {
            // Relaxed: as above.
            store(&self.used, 0, 0, Ordering::Relaxed);
        }
        // SeqCst: pairs with the driver's, between its index and its look at what was written here.
        fence(Ordering::SeqCst);
        // Acquire is not needed: `take` reads it again.
        load(&self.avail, 2, Ordering::Relaxed) != self.next_avail
    }

    /// Wants no kicks for now: heads are looked for.
    pub fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) && !self.has_events {
            // With events a kick is wanted at one head and at no other: nothing is to be taken back. Relaxed: a hint,
            // which a driver that sees it late pays with a kick.
            store(&self.used, 0, USED_NO_NOTIFY, Ordering::Relaxed);
        }
    }

    /// Writes an end, which the guest sees at [`Split::publish`]. `written_bytes` were written for this head.
    pub fn push(&mut self, head: u16, written_bytes: u32) {
        let entry = 4 + usize::from(self.next_used & (self.size - 1)) * USED_ENTRY_BYTES;
        // Inside and aligned: the area has room for each entry, and is aligned to 4.
        let _ = self.used.memory.set_halves(self.used.offset + entry, [u32::from(head).to_le(), written_bytes.to_le()]);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Shows the guest all ends that were pushed.
    pub fn publish(&mut self) {
        // Release: pairs with the driver's acquire of the index: it sees the entries, the status bytes and the data.
        store(&self.used, 2, self.next_used, Ordering::Release);
    }

    /// True if the guest is to be woken for the ends published since its last signal.
    pub fn wants_signal(&mut self) -> bool {
        let (before, now) = (self.told_used, self.next_used);
        if before == now {
            return false;
        }
        // SeqCst: pairs with the driver's, between its event and its look at the index.
        fence(Ordering::SeqCst);
        self.told_used = now;
        if !self.has_events {
            return load(&self.avail, 0, Ordering::Relaxed) & AVAIL_NO_INTERRUPT == 0;
        }
        let event = load(&self.avail, 4 + usize::from(self.size) * 2, Ordering::Relaxed);
        // The event lies among the entries from `before` to the one before `now`.
        now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before)
    }

    /// The bytes of the used ring that the last `count` ends changed, as offsets in it and lengths: for a log.
    pub fn written(&self, count: u16) -> impl Iterator<Item = (u64, u32)> {
        let (first, mask) = (self.next_used.wrapping_sub(count), self.size - 1);
        let entries = (0..count).map(move |number| {
            let entry = u64::from(first.wrapping_add(number) & mask);
            (4 + entry * USED_ENTRY_BYTES as u64, USED_ENTRY_BYTES as u32)
        });
        std::iter::once((0, 4)).chain(entries)
    }
}

/// A little-endian word of a ring: the area's constructor has checked its bounds and alignment.
fn load(area: &Area, at: usize, order: Ordering) -> u16 {
    // Orders: as the caller says.
    area.memory.atomic_u16(area.offset + at).map_or(0, |word| u16::from_le(word.load(order)))
}

fn store(area: &Area, at: usize, value: u16, order: Ordering) {
    #[cfg(test)]
    super::kill::step();
    if let Some(word) = area.memory.atomic_u16(area.offset + at) {
        // Orders: as the caller says.
        word.store(value.to_le(), order);
    }
}

#[cfg(test)]
pub(in crate::vhost_user_blk) mod tests {
    use super::super::guest::tests::{file, text};
    use super::*;

    /// A queue of `size` in a memory of its own: the table at 0, available at 0x5000, used at 0x6000; buffers behind.
    pub(in crate::vhost_user_blk) fn queue(size: u16, has_events: bool) -> (GuestMemory, Split) {
        let mut memory = GuestMemory::default();
        memory.add(&text(0, 1 << 20, 0, 0), file(1 << 20)).unwrap();
        let ring = Split::new(&memory, &ADDRESSES, size, 0, has_events).unwrap();
        (memory, ring)
    }

    pub(in crate::vhost_user_blk) const ADDRESSES: RingAddresses =
        RingAddresses { descriptors: 0, avail: 0x5000, used: 0x8000, log: None };

    pub(in crate::vhost_user_blk) fn write(memory: &GuestMemory, at: u64, bytes: &[u8]) {
        memory.write(&memory.span(at, bytes.len() as u32).unwrap(), bytes);
    }

    pub(in crate::vhost_user_blk) fn read16(memory: &GuestMemory, at: u64) -> u16 {
        let mut bytes = [0; 2];
        memory.read(&memory.span(at, 2).unwrap(), &mut bytes);
        u16::from_le_bytes(bytes)
    }

    /// Offers `heads` behind the `before` that were.
    pub(in crate::vhost_user_blk) fn offer(memory: &GuestMemory, size: u16, before: u16, heads: &[u16]) {
        for (number, head) in heads.iter().enumerate() {
            let entry = u64::from(before.wrapping_add(number as u16) & (size - 1));
            write(memory, 0x5004 + 2 * entry, &head.to_le_bytes());
        }
        write(memory, 0x5002, &before.wrapping_add(heads.len() as u16).to_le_bytes());
    }

    #[test]
    fn heads_come_in_order_and_ends_are_shown_at_once() {
        let (memory, mut ring) = queue(4, false);
        assert_eq!(ring.take(), Ok(None));
        assert!(!ring.arm());
        offer(&memory, 4, 0, &[2, 0, 3]);
        assert!(ring.arm(), "what came meanwhile is seen");
        assert_eq!(
            [ring.take(), ring.take(), ring.take(), ring.take()],
            [Ok(Some(2)), Ok(Some(0)), Ok(Some(3)), Ok(None)]
        );
        ring.push(3, 513);
        assert_eq!(read16(&memory, 0x8002), 0, "not yet");
        ring.push(2, 1);
        ring.publish();
        assert_eq!((read16(&memory, 0x8002), read16(&memory, 0x8004), read16(&memory, 0x8008)), (2, 3, 513));
        assert!(ring.wants_signal() && !ring.wants_signal(), "once");
        assert_eq!(ring.written(2).collect::<Vec<_>>(), [(0, 4), (4, 8), (12, 8)]);
    }

    #[test]
    fn indices_wrap() {
        let (memory, mut ring) = queue(4, true);
        ring.go_on_from(u16::MAX);
        offer(&memory, 4, u16::MAX, &[1, 2]);
        assert_eq!([ring.take(), ring.take(), ring.take()], [Ok(Some(1)), Ok(Some(2)), Ok(None)]);
        assert_eq!(ring.next_avail(), 1);
        // Ends 3 to 5 of a ring of 4: the last entry, and the first two.
        (0..6).for_each(|head| ring.push(head % 4, 0));
        assert_eq!(ring.written(3).collect::<Vec<_>>(), [(0, 4), (4 + 3 * 8, 8), (4, 8), (4 + 8, 8)]);
        // As many heads at once as there are entries.
        offer(&memory, 4, 1, &[3, 2, 1, 0]);
        assert_eq!([3, 2, 1, 0].map(|_| ring.take().unwrap()), [3, 2, 1, 0].map(Some));
    }

    #[test]
    fn an_index_far_ahead_and_a_head_that_is_none_are_refused() {
        let (memory, mut ring) = queue(4, true);
        offer(&memory, 4, 0, &[4]);
        assert_eq!(ring.take(), Err(Rule::BadHead));
        write(&memory, 0x5002, &5u16.to_le_bytes());
        assert_eq!(ring.take(), Err(Rule::RingOverrun));
    }

    #[test]
    fn a_signal_is_wanted_when_the_event_is_passed_and_not_before() {
        let (memory, mut ring) = queue(8, true);
        let event = |value: u16| write(&memory, 0x5004 + 16, &value.to_le_bytes());
        let mut end = |count: u16| {
            (0..count).for_each(|_| ring.push(0, 0));
            ring.publish();
            ring.wants_signal()
        };
        event(0);
        assert!(end(1), "the first");
        assert!(!end(1) && !end(2), "passed already");
        event(5);
        assert!(!end(1), "4 is before it");
        assert!(end(2));
        event(u16::MAX);
        assert!(!end(8));
    }

    #[test]
    fn a_ring_that_goes_on_tells_the_guest_of_its_own_ends_alone() {
        for has_events in [false, true] {
            let (memory, _) = queue(4, false);
            // Another server has shown 5 ends.
            write(&memory, 0x8002, &5u16.to_le_bytes());
            let mut ring = Split::new(&memory, &ADDRESSES, 4, 5, has_events).unwrap();
            assert_eq!((ring.next_avail(), ring.next_used(), ring.wants_signal()), (5, 5, false));
            write(&memory, 0x5004 + 2 * 4, &5u16.to_le_bytes());
            ring.push(1, 0);
            ring.publish();
            assert_eq!((read16(&memory, 0x8002), read16(&memory, 0x8004 + 8)), (6, 1));
            assert!(ring.wants_signal());
        }
    }

    #[test]
    fn without_events_flags_say_who_wants_what() {
        let (memory, mut ring) = queue(4, false);
        assert!(!ring.arm());
        ring.disarm();
        assert_eq!(read16(&memory, 0x8000), USED_NO_NOTIFY);
        ring.arm();
        assert_eq!(read16(&memory, 0x8000), 0);
        write(&memory, 0x5000, &AVAIL_NO_INTERRUPT.to_le_bytes());
        ring.push(0, 0);
        ring.publish();
        assert!(!ring.wants_signal());
        // With events they stay 0. Source: VIRTIO 1.2, section 2.7.10.1.
        let (memory, mut ring) = queue(4, true);
        ring.arm();
        ring.disarm();
        assert_eq!(read16(&memory, 0x8000), 0);
    }

    #[test]
    fn each_part_of_a_ring_lies_inside_to_its_last_byte() {
        let (memory, _) = queue(4, false);
        let new = |addresses: RingAddresses| Split::new(&memory, &addresses, 4, 0, false).map(drop);
        let end = 1u64 << 20;
        let ends = [
            (end - 4 * DESCRIPTOR_BYTES as u64, 16, 0),
            (end - (AVAIL_BYTES as u64 + 4 * 2), 2, 1),
            (end - (USED_BYTES + 4 * USED_ENTRY_BYTES) as u64, 4, 2),
        ];
        for (last, align, which) in ends {
            let at = |at| match which {
                0 => RingAddresses { descriptors: at, ..ADDRESSES },
                1 => RingAddresses { avail: at, ..ADDRESSES },
                _ => RingAddresses { used: at, ..ADDRESSES },
            };
            let last = last / align * align;
            assert_eq!(new(at(last)), Ok(()), "part {which} at {last:#x}");
            assert_eq!(new(at(last + align)), Err(Rule::BadRing), "part {which} at {:#x}", last + align);
        }
    }

    #[test]
    fn a_queue_must_be_a_power_of_two_aligned_and_inside() {
        let (memory, _) = queue(4, false);
        let new = |addresses: RingAddresses, size| Split::new(&memory, &addresses, size, 0, false).map(drop);
        for size in [0, 3, 2048] {
            assert_eq!(new(ADDRESSES, size), Err(Rule::BadQueueSize), "{size}");
        }
        for bad in [
            RingAddresses { descriptors: 8, ..ADDRESSES },
            RingAddresses { avail: 0x5001, ..ADDRESSES },
            RingAddresses { used: 0x6002, ..ADDRESSES },
            RingAddresses { used: (1 << 20) - 32, ..ADDRESSES },
            RingAddresses { descriptors: u64::MAX - 15, ..ADDRESSES },
        ] {
            assert_eq!(new(bad, 4), Err(Rule::BadRing), "{bad:?}");
        }
        assert_eq!(new(ADDRESSES, QUEUE_SIZE_MAX), Ok(()));
    }
}
