//! A packed virtqueue from the device's side: which buffers are new, which have ended, and who is to be woken?
//!
//! Source: VIRTIO 1.2, section 2.8. There is one ring, of descriptors, which both sides write. Two bits of a
//! descriptor's flags say whose it is, compared with a counter that each side flips when it passes the ring's end:
//!
//! ```text
//!   avail = counter, used ≠ counter    the driver has made it available: ours to read
//!   avail = used = counter             it has ended: the driver's
//! ```
//!
//! A buffer takes as many slots as it has descriptors. Its end is one descriptor, written at the place where the next
//! end goes, whichever buffer's that was; the slots behind it are skipped. So the descriptors of what is under way are
//! written over by the ends of others, and are copied when they are taken.
//!
//! The ring lies in memory that the guest writes at any time. What was read and checked is not read again.
//!
//! # Who wakes whom
//! Each side writes its descriptor, fences, and reads what the other wants to be woken by, as in a split ring.

use super::chain::Descriptor;
use super::guest::{Area, GuestMemory};
use super::ring::{RingAddresses, Taken};
use super::rule::Rule;
use super::split::{load, store};
use super::wire::{
    DESCRIPTOR_BYTES, DESCRIPTOR_NEXT, DESCRIPTOR_WRITE, EVENT_ALWAYS, EVENT_AT, EVENT_BYTES, EVENT_NEVER,
    PACKED_AVAIL, PACKED_USED, QUEUE_SIZE_MAX,
};
use std::sync::atomic::{Ordering, fence};

/// Of a descriptor: where its length, id and flags lie.
const LENGTH_AT: usize = 8;
const ID_AT: usize = 12;
const FLAGS_AT: usize = 14;

/// A place in the ring, and the counter there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Of a descriptor, less than the ring's size.
    pub slot: u16,
    /// The wrap counter.
    pub wrap: bool,
}

impl Place {
    /// As GET_VRING_BASE and events have it: the counter above the slot.
    pub fn of(word: u16) -> Place {
        Place { slot: word & 0x7fff, wrap: word >> 15 == 1 }
    }

    /// The same the other way.
    pub fn word(self) -> u16 {
        self.slot | u16::from(self.wrap) << 15
    }

    /// So many slots further, at most a whole ring of `size`.
    pub fn plus(self, slots: u16, size: u16) -> Place {
        let slot = self.slot + slots;
        if slot < size { Place { slot, ..self } } else { Place { slot: slot - size, wrap: !self.wrap } }
    }

    /// The flags of a descriptor here that is ours.
    fn available_flags(self) -> u16 {
        if self.wrap { PACKED_AVAIL } else { PACKED_USED }
    }

    /// The flags of a descriptor that has ended here.
    fn used_flags(self) -> u16 {
        if self.wrap { PACKED_AVAIL | PACKED_USED } else { 0 }
    }
}

/// The device's side of a packed virtqueue.
#[derive(Debug)]
pub struct Packed {
    size: u16,
    has_events: bool,
    descriptors: Area,
    driver_event: Area,
    device_event: Area,
    next_avail: Place,
    next_used: Place,
    /// Slots of what was taken and has not ended.
    taken_slots: u16,
    /// Slots of ends that the guest has not been told of.
    untold_slots: u16,
    /// The first end of a batch, which is shown last.
    first: Option<(u16, u16)>,
    /// Descriptors of what was taken last.
    taken: Vec<Descriptor>,
}

impl Packed {
    /// A ring of `size` descriptors at `addresses`, which goes on at `base` (GET_VRING_BASE).
    ///
    /// # Errors
    /// [`Rule::BadQueueSize`], [`Rule::BadRing`].
    pub fn new(
        memory: &GuestMemory,
        addresses: &RingAddresses,
        size: u16,
        base: u32,
        has_events: bool,
    ) -> Result<Packed, Rule> {
        if !size.is_power_of_two() || size > QUEUE_SIZE_MAX {
            return Err(Rule::BadQueueSize);
        }
        let (next_avail, next_used) = (Place::of(base as u16), Place::of((base >> 16) as u16));
        if next_avail.slot >= size || next_used.slot >= size {
            return Err(Rule::BadRing);
        }
        let area = |addr, bytes, align| memory.area(addr, bytes, align).ok_or(Rule::BadRing);
        Ok(Packed {
            size,
            has_events,
            descriptors: area(addresses.descriptors, usize::from(size) * DESCRIPTOR_BYTES, 16)?,
            driver_event: area(addresses.avail, EVENT_BYTES, 4)?,
            device_event: area(addresses.used, EVENT_BYTES, 4)?,
            next_avail,
            next_used,
            taken_slots: 0,
            untold_slots: 0,
            first: None,
            taken: Vec::with_capacity(size.into()),
        })
    }

    /// Descriptors.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Where it is, as GET_VRING_BASE says it.
    pub fn base(&self) -> u32 {
        u32::from(self.next_avail.word()) | u32::from(self.next_used.word()) << 16
    }

    /// Where the next end goes.
    pub fn used(&self) -> Place {
        self.next_used
    }

    /// Goes on with the next end at `used`, and `taken_slots` before the next new buffer. Nothing in between has ended:
    /// a server that was killed amid a batch has written the ends behind the first, and the driver would take them for
    /// new as soon as it is shown another one before them.
    pub fn go_on_from(&mut self, used: Place, taken_slots: u16) {
        self.next_used = used;
        self.taken_slots = taken_slots.min(self.size);
        self.next_avail = used.plus(self.taken_slots, self.size);
        for place in (0..self.taken_slots).map(|slots| used.plus(slots, self.size)) {
            if self.has_ended(place) {
                // Relaxed: the driver looks here behind an end that is shown later, with Release.
                let at = usize::from(place.slot) * DESCRIPTOR_BYTES + FLAGS_AT;
                store(&self.descriptors, at, place.available_flags(), Ordering::Relaxed);
            }
        }
    }

    fn flags(&self, slot: u16, order: Ordering) -> u16 {
        load(&self.descriptors, usize::from(slot) * DESCRIPTOR_BYTES + FLAGS_AT, order)
    }

    /// The descriptor at `place` is as the driver made it available for this lap. An end that was shown there has
    /// changed that, whether or not the driver has offered the slot again since.
    pub fn is_untouched(&self, place: Place) -> bool {
        // Relaxed: nothing is read behind it.
        self.flags(place.slot, Ordering::Relaxed) & (PACKED_AVAIL | PACKED_USED) == place.available_flags()
    }

    /// An end stands at `place`, which is between the next end and the next new buffer.
    fn has_ended(&self, place: Place) -> bool {
        // Relaxed: nothing is read behind it.
        self.flags(place.slot, Ordering::Relaxed) & (PACKED_AVAIL | PACKED_USED) == place.used_flags()
    }

    fn is_available(&self, flags: u16) -> bool {
        (flags & PACKED_AVAIL != 0) == self.next_avail.wrap && (flags & PACKED_USED != 0) != self.next_avail.wrap
    }

    /// The next new buffer, if there is one; its descriptors are [`Packed::taken`].
    ///
    /// # Errors
    /// [`Rule::RingOverrun`], [`Rule::BadHead`].
    pub fn take(&mut self) -> Result<Option<Taken>, Rule> {
        // Acquire: pairs with the driver's release of these flags, after which it has written all descriptors of the
        // buffer.
        let mut flags = self.flags(self.next_avail.slot, Ordering::Acquire);
        if !self.is_available(flags) {
            return Ok(None);
        }
        self.taken.clear();
        let mut at = self.next_avail;
        loop {
            if self.taken_slots + self.taken.len() as u16 >= self.size {
                return Err(Rule::RingOverrun);
            }
            let mut bytes = [0; DESCRIPTOR_BYTES];
            // Inside: the area is as long as the ring.
            let from = self.descriptors.offset + usize::from(at.slot) * DESCRIPTOR_BYTES;
            let _ = self.descriptors.memory.copy_to(from, &mut bytes);
            if !self.taken.is_empty() {
                flags = u16::from_le_bytes([bytes[FLAGS_AT], bytes[FLAGS_AT + 1]]);
            }
            let descriptor = Descriptor::packed(&bytes, flags);
            self.taken.push(descriptor);
            at = at.plus(1, self.size);
            if flags & DESCRIPTOR_NEXT == 0 {
                if descriptor.next >= self.size {
                    return Err(Rule::BadHead);
                }
                let taken = Taken { id: descriptor.next, slots: self.taken.len() as u16 };
                (self.next_avail, self.taken_slots) = (at, self.taken_slots + taken.slots);
                return Ok(Some(taken));
            }
        }
    }

    /// The descriptors of what was taken last.
    pub fn taken(&self) -> &[Descriptor] {
        &self.taken
    }

    /// Wants a kick at the next buffer. True: there is one already, and none will come for it.
    pub fn arm(&mut self) -> bool {
        // Relaxed: the fence below pairs with the driver's; it reads the flags first, so the place stands before them.
        if self.has_events {
            store(&self.device_event, 0, self.next_avail.word(), Ordering::Relaxed);
            store(&self.device_event, 2, EVENT_AT, Ordering::Release);
        } else {
            store(&self.device_event, 2, EVENT_ALWAYS, Ordering::Relaxed);
        }
        // SeqCst: pairs with the driver's, between its descriptor and its look at what was written here.
        fence(Ordering::SeqCst);
        // Relaxed: `take` reads it again.
        self.is_available(self.flags(self.next_avail.slot, Ordering::Relaxed))
    }

    /// Wants no kicks for now.
    pub fn disarm(&mut self) {
        // Relaxed: a hint, which a driver that sees it late pays with a kick.
        store(&self.device_event, 2, EVENT_NEVER, Ordering::Relaxed);
    }

    /// Writes an end, which the guest sees at [`Packed::publish`]: with the first of a batch it sees all.
    pub fn push(&mut self, taken: Taken, written_bytes: u32) {
        let at = usize::from(self.next_used.slot) * DESCRIPTOR_BYTES;
        let _ =
            self.descriptors.memory.copy_from(self.descriptors.offset + at + LENGTH_AT, &written_bytes.to_le_bytes());
        // Relaxed: the first's flags are written behind it.
        store(&self.descriptors, at + ID_AT, taken.id, Ordering::Relaxed);
        let flags = self.next_used.used_flags() | if written_bytes > 0 { DESCRIPTOR_WRITE } else { 0 };
        if self.first.is_none() {
            self.first = Some((self.next_used.slot, flags));
        } else {
            // Relaxed: as above.
            store(&self.descriptors, at + FLAGS_AT, flags, Ordering::Relaxed);
        }
        self.next_used = self.next_used.plus(taken.slots, self.size);
        self.taken_slots = self.taken_slots.saturating_sub(taken.slots);
        self.untold_slots = (self.untold_slots + taken.slots).min(self.size);
    }

    /// Shows the guest all ends that were pushed.
    pub fn publish(&mut self) {
        if let Some((slot, flags)) = self.first.take() {
            // Release: pairs with the driver's acquire of these flags: it sees the other ends, status bytes and data.
            store(&self.descriptors, usize::from(slot) * DESCRIPTOR_BYTES + FLAGS_AT, flags, Ordering::Release);
        }
    }

    /// The guest is to be woken for what was published since it was told last.
    pub fn wants_signal(&mut self) -> bool {
        let slots = i32::from(std::mem::take(&mut self.untold_slots));
        if slots == 0 {
            return false;
        }
        // SeqCst: pairs with the driver's, between its event and its look at the descriptors.
        fence(Ordering::SeqCst);
        match load(&self.driver_event, 2, Ordering::Relaxed) {
            EVENT_NEVER => false,
            EVENT_AT if self.has_events => {
                let event = Place::of(load(&self.driver_event, 0, Ordering::Relaxed));
                let lap = if event.wrap == self.next_used.wrap { 0 } else { i32::from(self.size) };
                let (event, now) = (i32::from(event.slot) - lap, i32::from(self.next_used.slot));
                (now - slots..now).contains(&event)
            }
            _ => true,
        }
    }

    /// Where in the guest's memory ends are written, for a log: the ring, and the event at `used`.
    pub fn written(&self, used: u64) -> [(u64, u32); 2] {
        let ring_bytes = u32::from(self.size) * DESCRIPTOR_BYTES as u32;
        [(self.descriptors.guest_addr, ring_bytes), (used, EVENT_BYTES as u32)]
    }
}

#[cfg(test)]
#[path = "packed_tests.rs"]
pub(in crate::vhost_user_blk) mod tests;
