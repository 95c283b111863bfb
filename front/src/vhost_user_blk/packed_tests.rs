//! The driver's side of a packed ring, which can be wrong, and what both sides make of each other.

use super::super::chain::Chain;
use super::super::guest::tests::{file, text};
use super::super::ring::Ring;
use super::super::split::tests::write;
use super::super::wire::DESCRIPTOR_INDIRECT;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

pub(in crate::vhost_user_blk) const SIZE: u16 = 8;
const ADDRESSES: RingAddresses = RingAddresses { descriptors: 0, avail: 0x5000, used: 0x8000, log: None };

/// Both counters 1, both places 0: a ring that nobody has used.
pub(in crate::vhost_user_blk) const NEW: u32 = 0x8000_8000;

/// Source: VIRTIO 1.2, section 2.8, the driver's requirements.
#[derive(Clone)]
pub(in crate::vhost_user_blk) struct Driver {
    pub memory: GuestMemory,
    next_avail: Place,
    next_used: Place,
    free_slots: u16,
    /// Slots of each buffer that was offered and has not been seen to end, by id.
    pub offered: BTreeMap<u16, u16>,
}

impl Driver {
    pub fn new() -> Driver {
        let mut memory = GuestMemory::default();
        memory.add(&text(0, 1 << 20, 0, 0), file(1 << 20)).unwrap();
        let start = Place { slot: 0, wrap: true };
        Driver { memory, next_avail: start, next_used: start, free_slots: SIZE, offered: BTreeMap::new() }
    }

    /// The device's side, at `base`.
    pub fn device(&self, base: u32, has_events: bool) -> Packed {
        Packed::new(&self.memory, &ADDRESSES, SIZE, base, has_events).unwrap()
    }

    pub fn descriptor(&self, slot: u16, addr: u64, length: u32, id: u16, flags: u16) {
        let words = [&length.to_le_bytes()[..], &id.to_le_bytes(), &flags.to_le_bytes()].concat();
        write(&self.memory, u64::from(slot) * 16, &[&addr.to_le_bytes()[..], &words].concat());
    }

    fn available(place: Place) -> u16 {
        if place.wrap { PACKED_AVAIL } else { PACKED_USED }
    }

    /// Offers a buffer of `slots` descriptors under an id that is free. None: it does not fit.
    pub fn offer(&mut self, slots: u16) -> Option<u16> {
        let id = (0..SIZE).rev().find(|id| !self.offered.contains_key(id)).filter(|_| slots <= self.free_slots)?;
        let first = self.next_avail;
        for number in (0..slots).rev() {
            let place = first.plus(number, SIZE);
            let next = if number + 1 < slots { DESCRIPTOR_NEXT } else { 0 };
            // Its flags last: the loop goes backwards. The id of all but the last is nobody's.
            let named = if number + 1 < slots { 0xffff } else { id };
            let addr = 0x20000 + u64::from(id) * 0x1000 + u64::from(number) * 0x100;
            self.descriptor(place.slot, addr, 16 + u32::from(number), named, Driver::available(place) | next);
        }
        self.next_avail = first.plus(slots, SIZE);
        self.free_slots -= slots;
        self.offered.insert(id, slots);
        Some(id)
    }

    /// Ids and lengths of what has ended since.
    pub fn ended(&mut self) -> Vec<(u16, u32)> {
        let mut ends = Vec::new();
        loop {
            let mut bytes = [0; 16];
            self.memory.read(&self.memory.span(u64::from(self.next_used.slot) * 16, 16).unwrap(), &mut bytes);
            let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let flags = word(14);
            let is = |bit| (flags & bit != 0) == self.next_used.wrap;
            if !is(PACKED_AVAIL) || !is(PACKED_USED) || self.offered.is_empty() {
                return ends;
            }
            let slots = self.offered.remove(&word(12)).expect("an end of what is under way, once");
            ends.push((word(12), u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]])));
            self.next_used = self.next_used.plus(slots, SIZE);
            self.free_slots += slots;
        }
    }

    pub fn next_used(&self) -> Place {
        self.next_used
    }

    /// Wants to be woken when the end at `place` is written, or (None) at each.
    fn wants(&self, place: Option<Place>) {
        let (at, how) = place.map_or((0, EVENT_ALWAYS), |place| (place.word(), EVENT_AT));
        write(&self.memory, ADDRESSES.avail, &[at.to_le_bytes(), how.to_le_bytes()].concat());
    }
}

#[test]
fn a_buffer_is_read_whole_and_ends_where_the_next_end_goes() {
    let mut driver = Driver::new();
    let mut ring = driver.device(NEW, true);
    assert_eq!(ring.take(), Ok(None));
    assert!(!ring.arm());
    let (first, second) = (driver.offer(3).unwrap(), driver.offer(1).unwrap());
    assert!(ring.arm(), "what came meanwhile is seen");
    let one = ring.take().unwrap().unwrap();
    assert_eq!((one, ring.taken().len()), (Taken { id: first, slots: 3 }, 3));
    assert_eq!(ring.taken()[2].length_bytes, 18);
    let two = ring.take().unwrap().unwrap();
    assert_eq!((two, ring.take()), (Taken { id: second, slots: 1 }, Ok(None)));
    ring.push(two, 7);
    ring.push(one, 9);
    assert_eq!(driver.ended(), [], "not yet");
    ring.publish();
    assert_eq!(driver.ended(), [(second, 7), (first, 9)], "both at once, in the order of their ends");
    assert_eq!(ring.base(), 0x8004_8004);
}

#[test]
fn what_a_hostile_guest_writes_is_refused_by_name() {
    let available = PACKED_AVAIL;
    let take = |write: &dyn Fn(&Driver)| {
        let driver = Driver::new();
        write(&driver);
        driver.device(NEW, false).take()
    };
    assert_eq!(take(&|driver| driver.descriptor(0, 0, 1, SIZE, available)), Err(Rule::BadHead));
    // A chain without an end, and one that is as long as the ring.
    let chain = |driver: &Driver, slots: u16| {
        (0..slots).for_each(|slot| driver.descriptor(slot, 0, 1, 0, available | DESCRIPTOR_NEXT));
        driver.descriptor(slots % SIZE, 0, 1, 0, available);
    };
    let endless = |driver: &Driver| {
        (0..SIZE).for_each(|slot| driver.descriptor(slot, 0, 1, 0, available | DESCRIPTOR_NEXT));
    };
    assert_eq!(take(&endless), Err(Rule::RingOverrun));
    assert_eq!(take(&|driver| chain(driver, SIZE - 1)), Ok(Some(Taken { id: 0, slots: SIZE })));
    for flags in [0, PACKED_USED, PACKED_AVAIL | PACKED_USED] {
        assert_eq!(take(&|driver| driver.descriptor(0, 0, 1, 0, flags)), Ok(None), "{flags:#x}");
    }
    // More than the ring has: the driver makes slots available that have not ended.
    let driver = Driver::new();
    let mut ring = driver.device(NEW, false);
    (0..SIZE).for_each(|slot| driver.descriptor(slot, 0, 1, slot, available));
    (0..SIZE).for_each(|id| assert_eq!(ring.take(), Ok(Some(Taken { id, slots: 1 }))));
    driver.descriptor(0, 0, 1, 0, PACKED_USED);
    assert_eq!(ring.take(), Err(Rule::RingOverrun));
    for base in [u32::from(SIZE), u32::from(SIZE) << 16, 0x7fff] {
        let memory = &driver.memory;
        assert_eq!(Packed::new(memory, &ADDRESSES, SIZE, base, false).err(), Some(Rule::BadRing), "{base:#x}");
    }
    let bad = RingAddresses { used: 0x8002, ..ADDRESSES };
    assert_eq!(Packed::new(&driver.memory, &bad, SIZE, NEW, false).err(), Some(Rule::BadRing));
    assert_eq!(Packed::new(&driver.memory, &ADDRESSES, 6, NEW, false).err(), Some(Rule::BadQueueSize));
}

#[test]
fn an_indirect_table_is_taken_in_its_order_and_alone() {
    let driver = Driver::new();
    let take = |flags: u16, length: u32, inner: &[(u64, u32, u16)], has_indirect: bool| {
        for (place, (addr, length, flags)) in inner.iter().enumerate() {
            driver.descriptor(0x1000 + place as u16, *addr, *length, 0xffff, *flags);
        }
        driver.descriptor(0, 0x10000, length, 0, PACKED_AVAIL | flags);
        driver.descriptor(1, 0x10000, length, 0, PACKED_AVAIL);
        let mut ring = Ring::packed(driver.device(NEW, false), None, has_indirect);
        let mut chain = Chain::default();
        let taken = ring.take(&driver.memory, &mut chain, true);
        taken.map(|taken| (taken.unwrap().slots, chain.readable.len(), chain.writable.len()))
    };
    let (into, next) = (DESCRIPTOR_WRITE, DESCRIPTOR_NEXT);
    let inner = [(0x20000, 16, next), (0x30000, 512, into), (0x40000, 1, into)];
    assert_eq!(take(DESCRIPTOR_INDIRECT, 48, &inner, true), Ok((1, 1, 2)), "its next flags mean nothing");
    for (flags, length, inner, has) in [
        (DESCRIPTOR_INDIRECT, 48, &inner[..], false),
        (DESCRIPTOR_INDIRECT | next, 48, &inner[..], true),
        (DESCRIPTOR_INDIRECT, 0, &[], true),
        (DESCRIPTOR_INDIRECT, 17, &[], true),
        (DESCRIPTOR_INDIRECT, 1025 * 16, &[], true),
        (DESCRIPTOR_INDIRECT, 16, &[(0x10000, 16, DESCRIPTOR_INDIRECT)], true),
    ] {
        assert_eq!(take(flags, length, inner, has), Err(Rule::BadIndirect), "{flags:#x} {length}");
    }
    assert_eq!(take(DESCRIPTOR_INDIRECT, 16, &[(1 << 20, 16, 0)], true), Err(Rule::BadDescriptorAddress));
    assert_eq!(take(DESCRIPTOR_INDIRECT, 32, &[inner[2], inner[0]], true), Err(Rule::OutOfOrder));
}

proptest! {
    /// Buffers of any length, taken and ended in any order and in batches, for many laps: each ends once, and whoever
    /// wants to be woken at a place is woken when its end is written, and not before.
    #[test]
    fn both_sides_agree_for_ever(
        steps in prop::collection::vec((0..3usize, 1..4u16, any::<prop::sample::Index>()), 0..300),
        has_events: bool,
    ) {
        let mut driver = Driver::new();
        let mut ring = driver.device(NEW, has_events);
        let mut under_way: Vec<Taken> = Vec::new();
        for (what, slots, which) in steps {
            match what {
                0 => {
                    let is_armed_for_it = !ring.arm();
                    let offered = driver.offer(slots);
                    // Nothing was there, so a kick was asked for at just this place.
                    prop_assert!(offered.is_none() || !is_armed_for_it || ring.arm());
                }
                1 => if let Some(taken) = ring.take().unwrap() {
                    prop_assert_eq!(driver.offered[&taken.id], taken.slots);
                    under_way.push(taken);
                },
                _ if !under_way.is_empty() => {
                    let count = which.index(under_way.len()) + 1;
                    let ends: Vec<Taken> =
                        (0..count).map(|_| under_way.remove(which.index(under_way.len()))).collect();
                    let slots: u16 = ends.iter().map(|taken| taken.slots).sum();
                    // Any place of the lap that begins here.
                    let ahead = which.index(SIZE.into()) as u16;
                    driver.wants(has_events.then(|| driver.next_used.plus(ahead, SIZE)));
                    ends.iter().for_each(|taken| ring.push(*taken, 1));
                    ring.publish();
                    prop_assert_eq!(ring.wants_signal(), !has_events || ahead < slots);
                    prop_assert!(!ring.wants_signal(), "once");
                    let seen: Vec<u16> = driver.ended().into_iter().map(|(id, _)| id).collect();
                    prop_assert_eq!(seen, ends.iter().map(|taken| taken.id).collect::<Vec<_>>());
                }
                _ => {}
            }
        }
    }
}

#[test]
fn a_ring_of_any_size_up_to_the_largest_is_taken_and_says_what_it_writes() {
    let driver = Driver::new();
    let new = |addresses: &RingAddresses, size| Packed::new(&driver.memory, addresses, size, NEW, true);
    let largest = new(&ADDRESSES, QUEUE_SIZE_MAX).unwrap();
    assert_eq!(largest.size(), QUEUE_SIZE_MAX);
    assert_eq!(largest.written(0x8000), [(0, u32::from(QUEUE_SIZE_MAX) * 16), (0x8000, 4)]);
    assert_eq!(new(&ADDRESSES, 2 * QUEUE_SIZE_MAX).err(), Some(Rule::BadQueueSize));
    // Each part to the memory's last byte, and no further.
    let end = 1u64 << 20;
    for (last, align, which) in [(end - 16 * u64::from(SIZE), 16, 0), (end - 4, 4, 1), (end - 4, 4, 2)] {
        let at = |at| match which {
            0 => RingAddresses { descriptors: at, ..ADDRESSES },
            1 => RingAddresses { avail: at, ..ADDRESSES },
            _ => RingAddresses { used: at, ..ADDRESSES },
        };
        assert!(new(&at(last), SIZE).is_ok(), "part {which}");
        assert_eq!(new(&at(last + align), SIZE).err(), Some(Rule::BadRing), "part {which}");
    }
}

#[test]
fn an_end_says_whether_anything_was_written_and_a_device_whether_it_wants_kicks() {
    let mut driver = Driver::new();
    let mut ring = driver.device(NEW, false);
    let word = |driver: &Driver, at: u64| {
        let mut bytes = [0; 2];
        driver.memory.read(&driver.memory.span(at, 2).unwrap(), &mut bytes);
        u16::from_le_bytes(bytes)
    };
    for (slot, written_bytes) in [(0, 0), (1, 1), (2, 512)] {
        driver.offer(1).unwrap();
        let taken = ring.take().unwrap().unwrap();
        ring.push(taken, written_bytes);
        ring.publish();
        let is_write = word(&driver, slot * 16 + 14) & DESCRIPTOR_WRITE != 0;
        assert_eq!(is_write, written_bytes > 0, "{written_bytes} bytes");
    }
    ring.disarm();
    assert_eq!(word(&driver, ADDRESSES.used + 2), EVENT_NEVER);
    assert!(!ring.arm());
    assert_eq!(word(&driver, ADDRESSES.used + 2), EVENT_ALWAYS);
}

#[test]
fn descriptors_are_copied_as_they_stand_and_stay_so_until_they_end() {
    // The second lap, whose counter is 0: its flag stands in the upper byte.
    let mut driver = Driver::new();
    let mut ring = driver.device(NEW, false);
    for _ in 0..SIZE {
        driver.offer(1).unwrap();
        let taken = ring.take().unwrap().unwrap();
        ring.push(taken, 1);
        ring.publish();
        driver.ended();
    }
    let id = driver.offer(3).unwrap();
    let flags = [PACKED_USED | DESCRIPTOR_NEXT, PACKED_USED | DESCRIPTOR_NEXT, PACKED_USED];
    let copied = |number: u16| Descriptor {
        guest_addr: 0x20000 + u64::from(id) * 0x1000 + u64::from(number) * 0x100,
        length_bytes: 16 + u32::from(number),
        flags: flags[usize::from(number)],
        next: if number == 2 { id } else { 0xffff },
    };
    assert_eq!(ring.take(), Ok(Some(Taken { id, slots: 3 })));
    assert_eq!(ring.taken(), [copied(0), copied(1), copied(2)]);
    // A server that goes on there takes nothing back of what has not ended.
    let place = Place { slot: 0, wrap: false };
    ring.go_on_from(place, 3);
    assert_eq!([0, 1, 2].map(|slot| ring.flags(slot, Ordering::Relaxed)), flags);
    assert_eq!((ring.used(), ring.base()), (place, 3));
    // More than the ring has is no more than the ring.
    ring.go_on_from(Place { slot: 3, wrap: false }, SIZE + 1);
    assert_eq!(ring.base(), 0x8003 | 3 << 16);
}

#[test]
fn a_driver_without_the_event_index_is_woken_at_each_end_or_not_at_all() {
    for (how, is_woken) in [(EVENT_ALWAYS, true), (EVENT_NEVER, false), (EVENT_AT, true)] {
        let mut driver = Driver::new();
        let mut ring = driver.device(NEW, false);
        assert!(!ring.wants_signal(), "nothing has ended");
        write(&driver.memory, ADDRESSES.avail, &[0x8005u16.to_le_bytes(), how.to_le_bytes()].concat());
        driver.offer(1).unwrap();
        let taken = ring.take().unwrap().unwrap();
        ring.push(taken, 1);
        ring.publish();
        assert_eq!(ring.wants_signal(), is_woken, "{how}");
    }
}
