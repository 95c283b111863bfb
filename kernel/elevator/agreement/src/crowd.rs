//! Slots of processes, driven from user space.
//!
//! Answers: which flow has a process, and when is it another's? Invariant: the C side takes numbers of slots and queues
//! as they come, so [`Crowd`] checks them.

use std::ptr::NonNull;

#[repr(C)]
struct RawCrowd {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn crowd_new(hctxs: u32) -> NonNull<RawCrowd>;
    fn crowd_free(crowd: NonNull<RawCrowd>);
    fn crowd_claim(crowd: NonNull<RawCrowd>, number: u32, gvt: u64) -> u64;
    fn crowd_find(crowd: NonNull<RawCrowd>, number: u32) -> u64;
    fn crowd_slot(crowd: NonNull<RawCrowd>, key: u64) -> i32;
    fn crowd_count(crowd: NonNull<RawCrowd>, slot: u32, hctx: u32, by: i64);
    fn crowd_charge(crowd: NonNull<RawCrowd>, slot: u32, span: u64, gvt: u64) -> u64;
    fn crowd_finish(crowd: NonNull<RawCrowd>, slot: u32) -> u64;
    fn crowd_weight(class: u32, level: u32) -> u32;
}

/// How many slots there are.
pub const SLOTS: u32 = 64;

/// The weight of a process of this class, 0 to 3, and level, 0 to 7, as ionice(1) has them.
#[must_use]
pub fn weight(class: u32, level: u32) -> u32 {
    // SAFETY: it takes numbers.
    unsafe { crowd_weight(class, level) }
}

/// Slots of processes on a device.
pub struct Crowd {
    raw: NonNull<RawCrowd>,
    hctxs: u32,
}

impl Crowd {
    /// The slots of a device with so many queues.
    #[must_use]
    pub fn new(hctxs: u32) -> Crowd {
        // SAFETY: it takes a number and gives an object away.
        Crowd { raw: unsafe { crowd_new(hctxs) }, hctxs }
    }

    fn checked(slot: u32) -> u32 {
        assert!(slot < SLOTS, "there is no slot {slot}");
        slot
    }

    /// The key of the process, which gets a slot if it has none and there is one.
    pub fn claim(&mut self, number: u32, gvt: u64) -> Option<u64> {
        // SAFETY: the crowd is ours.
        Some(unsafe { crowd_claim(self.raw, number, gvt) }).filter(|key| *key != 0)
    }

    /// The key of the process, if it has a slot.
    #[must_use]
    pub fn find(&self, number: u32) -> Option<u64> {
        // SAFETY: the crowd is ours.
        Some(unsafe { crowd_find(self.raw, number) }).filter(|key| *key != 0)
    }

    /// The slot that has this key.
    #[must_use]
    pub fn slot(&self, key: u64) -> Option<u32> {
        // SAFETY: the crowd is ours.
        u32::try_from(unsafe { crowd_slot(self.raw, key) }).ok()
    }

    /// Adds `by` requests to the account of the slot.
    pub fn count(&mut self, slot: u32, hctx: u32, by: i64) {
        assert!(hctx < self.hctxs, "there is no queue {hctx}");
        // SAFETY: the crowd is ours, and has the slot and the queue.
        unsafe { crowd_count(self.raw, Self::checked(slot), hctx, by) }
    }

    /// Charges the slot's flow; its finish tag.
    pub fn charge(&mut self, slot: u32, span: u64, gvt: u64) -> u64 {
        // SAFETY: the crowd is ours and has the slot.
        unsafe { crowd_charge(self.raw, Self::checked(slot), span, gvt) }
    }

    /// The finish tag of the slot's flow.
    #[must_use]
    pub fn finish(&self, slot: u32) -> u64 {
        // SAFETY: as in `charge`.
        unsafe { crowd_finish(self.raw, Self::checked(slot)) }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // SAFETY: it is ours, and is not used afterwards.
        unsafe { crowd_free(self.raw) }
    }
}
