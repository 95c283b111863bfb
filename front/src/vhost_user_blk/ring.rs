//! A virtqueue of either layout, with its area of requests under way: which heads are new or were left by a former
//! server, which have ended, and who is to be woken?
//!
//! | | [`Split`] | [`Packed`] |
//! |---|---|---|
//! | a request is named by | its head, a descriptor of the table | the buffer's id, the driver's choice |
//! | it takes | an entry of the available ring | as many slots as it has descriptors |
//! | what was under way is found again by | [`SplitArea`]: the head; its descriptors stand in the table | [`PackedArea`]: a copy of its descriptors, for ends are written over them |
//!
//! A head is noted in the area before anything is done about it, and struck out after the guest was shown its end. So
//! the rest of a queue knows neither layouts nor areas.

use super::chain::Chain;
use super::guest::GuestMemory;
use super::inflight::SplitArea;
use super::inflight_packed::{Left, PackedArea};
use super::packed::Packed;
use super::rule::Rule;
use super::split::Split;
use std::collections::VecDeque;

/// Where a front-end says that a queue is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingAddresses {
    /// Of the descriptor table, or of the packed ring; the front-end's address.
    pub descriptors: u64,
    /// Of the available ring, or of the driver's event of a packed ring.
    pub avail: u64,
    /// Of the used ring, or of the device's event of a packed ring.
    pub used: u64,
    /// The guest's address of the used ring, if writes to it are logged.
    pub log: Option<u64>,
}

/// A head that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// Its name among those under way, less than the ring's size.
    pub id: u16,
    /// Slots of the ring that its end gives back.
    pub slots: u16,
}

/// A virtqueue, from the device's side.
#[derive(Debug)]
pub struct Ring {
    layout: Layout,
    has_indirect: bool,
}

#[derive(Debug)]
enum Layout {
    Split { ring: Split, area: Option<SplitArea>, left: VecDeque<u16> },
    Packed { ring: Packed, area: Option<PackedArea>, left: VecDeque<Left> },
}

impl Ring {
    /// A split ring whose requests under way are noted in `area`.
    pub fn split(ring: Split, area: Option<SplitArea>, has_indirect: bool) -> Ring {
        Ring { layout: Layout::Split { ring, area, left: VecDeque::new() }, has_indirect }
    }

    /// The same for a packed one.
    pub fn packed(ring: Packed, area: Option<PackedArea>, has_indirect: bool) -> Ring {
        Ring { layout: Layout::Packed { ring, area, left: VecDeque::new() }, has_indirect }
    }

    /// Goes on where the area says that a former server was, if there was one. Before anything else.
    pub fn take_over(&mut self) {
        match &mut self.layout {
            Layout::Split { ring, area: Some(area), left } => {
                let used = ring.next_used();
                if let Some(heads) = area.take_over(used) {
                    // Of the heads that were ever taken, `used` have ended and these have not.
                    ring.go_on_from(used.wrapping_add(heads.len() as u16));
                    *left = heads.into();
                }
            }
            Layout::Packed { ring, area: Some(area), left } => {
                if let Some((used, heads)) = area.take_over(ring) {
                    ring.go_on_from(used, heads.iter().map(|head| head.taken.slots).sum());
                    *left = heads.into();
                }
            }
            Layout::Split { area: None, .. } | Layout::Packed { area: None, .. } => {}
        }
    }

    /// Nothing is left of a former server's.
    pub fn is_caught_up(&self) -> bool {
        match &self.layout {
            Layout::Split { left, .. } => left.is_empty(),
            Layout::Packed { left, .. } => left.is_empty(),
        }
    }

    /// Entries.
    pub fn size(&self) -> u16 {
        match &self.layout {
            Layout::Split { ring, .. } => ring.size(),
            Layout::Packed { ring, .. } => ring.size(),
        }
    }

    /// Where it is, as GET_VRING_BASE says it.
    pub fn base(&self) -> u32 {
        match &self.layout {
            Layout::Split { ring, .. } => ring.next_avail().into(),
            Layout::Packed { ring, .. } => ring.base(),
        }
    }

    /// The next head, with its chain: one that a former server left, else a new one if those are taken.
    ///
    /// # Errors
    /// The rule that the ring or the chain breaks.
    pub fn take(&mut self, memory: &GuestMemory, chain: &mut Chain, takes_new: bool) -> Result<Option<Taken>, Rule> {
        let has_indirect = self.has_indirect;
        match &mut self.layout {
            Layout::Split { ring, area, left } => {
                let (head, is_new) = match left.pop_front() {
                    Some(head) => (head, false),
                    None if takes_new => match ring.take()? {
                        Some(head) => (head, true),
                        None => return Ok(None),
                    },
                    None => return Ok(None),
                };
                chain.read(memory, ring.descriptors(), ring.size(), head, has_indirect)?;
                if let Some(area) = area.as_mut().filter(|_| is_new) {
                    area.took(head);
                }
                Ok(Some(Taken { id: head, slots: 1 }))
            }
            Layout::Packed { ring, area, left } => {
                if let Some(Left { taken, descriptors }) = left.pop_front() {
                    chain.read_packed(memory, &descriptors, has_indirect)?;
                    return Ok(Some(taken));
                }
                let Some(taken) = (if takes_new { ring.take()? } else { None }) else { return Ok(None) };
                chain.read_packed(memory, ring.taken(), has_indirect)?;
                if let Some(area) = area {
                    area.took(taken, ring.taken())?;
                }
                Ok(Some(taken))
            }
        }
    }

    /// Wants a kick at the next head. True: there is one already, and none will come for it.
    pub fn arm(&mut self) -> bool {
        match &mut self.layout {
            Layout::Split { ring, .. } => ring.arm(),
            Layout::Packed { ring, .. } => ring.arm(),
        }
    }

    /// Wants no kicks for now: heads are looked for.
    pub fn disarm(&mut self) {
        match &mut self.layout {
            Layout::Split { ring, .. } => ring.disarm(),
            Layout::Packed { ring, .. } => ring.disarm(),
        }
    }

    /// Writes an end, which the guest sees at [`Ring::publish`]. `written_bytes` were written for this head.
    pub fn push(&mut self, taken: Taken, written_bytes: u32) {
        match &mut self.layout {
            Layout::Split { ring, area, .. } => {
                ring.push(taken.id, written_bytes);
                if let Some(area) = area {
                    area.ending(taken.id);
                }
            }
            Layout::Packed { ring, area, .. } => {
                ring.push(taken, written_bytes);
                if let Some(area) = area {
                    area.ending(taken.id, ring.used());
                }
            }
        }
    }

    /// Shows the guest all ends that were pushed.
    pub fn publish(&mut self) {
        match &mut self.layout {
            Layout::Split { ring, area, .. } => {
                ring.publish();
                if let Some(area) = area {
                    area.ended(ring.next_used());
                }
            }
            Layout::Packed { ring, area, .. } => {
                ring.publish();
                if let Some(area) = area {
                    area.ended();
                }
            }
        }
    }

    /// The guest is to be woken for what was published since it was told last.
    pub fn wants_signal(&mut self) -> bool {
        match &mut self.layout {
            Layout::Split { ring, .. } => ring.wants_signal(),
            Layout::Packed { ring, .. } => ring.wants_signal(),
        }
    }

    /// Calls `each` with the guest's address and the length of what the last `count` ends changed, for a log. The used
    /// ring lies at `used`.
    pub fn for_each_written(&self, used: u64, count: u16, mut each: impl FnMut(u64, u32)) {
        match &self.layout {
            Layout::Split { ring, .. } => ring.written(count).for_each(|(at, length)| each(used + at, length)),
            Layout::Packed { ring, .. } => ring.written(used).into_iter().for_each(|(at, length)| each(at, length)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inflight::{Areas, queue_bytes};
    use super::super::packed::tests::{Driver, NEW};
    use super::super::split::tests::{ADDRESSES, offer, queue, read16, write};
    use super::super::wire::{EVENT_ALWAYS, EVENT_NEVER, USED_NO_NOTIFY};
    use super::*;
    use mqfq_blk::foreign::ForeignMemory;
    use std::os::fd::AsFd;
    use std::sync::Arc;

    const SIZE: u16 = 8;

    /// Memory for an area of either layout.
    fn area_memory() -> Arc<ForeignMemory> {
        let file = super::super::guest::tests::file(4096);
        ForeignMemory::map(file.as_fd(), 0, 4096).unwrap()
    }

    #[test]
    fn a_server_takes_what_a_former_one_left_before_anything_new_and_nothing_new_unless_it_shall() {
        let areas = |is_packed| {
            assert!(queue_bytes(SIZE, is_packed) <= 4096);
            Areas::new(area_memory(), 0, 1, SIZE, is_packed).unwrap()
        };
        let mut chain = Chain::default();
        let (split_areas, packed_areas) = (areas(false), areas(true));
        let (memory, _) = queue(SIZE, false);
        // Each descriptor of the table is one byte to write.
        let descriptor = [&0x30000u64.to_le_bytes()[..], &1u32.to_le_bytes(), &2u16.to_le_bytes(), &[0; 2]].concat();
        write(&memory, 0, &descriptor.repeat(SIZE.into()));
        let mut driver = Driver::new();
        let split = || {
            let ring = Split::new(&memory, &ADDRESSES, SIZE, 0, false).unwrap();
            let mut ring = Ring::split(ring, split_areas.queue(0, SIZE).unwrap(), false);
            ring.take_over();
            ring
        };
        let packed = |driver: &Driver| {
            let area = packed_areas.packed_queue(0, SIZE).unwrap();
            let mut ring = Ring::packed(driver.device(NEW, false), area, false);
            ring.take_over();
            ring
        };
        offer(&memory, SIZE, 0, &[5, 1, 6]);
        let ids: Vec<u16> = (0..3).map(|_| driver.offer(1).unwrap()).collect();
        for (first, second, memory, ids) in [
            (split(), &split as &dyn Fn() -> Ring, &memory, vec![5, 1, 6]),
            (packed(&driver), &|| packed(&driver), &driver.memory, ids),
        ] {
            let mut take =
                |ring: &mut Ring, takes_new| ring.take(memory, &mut chain, takes_new).unwrap().map(|taken| taken.id);
            let mut ring = first;
            assert!(ring.is_caught_up());
            assert_eq!(take(&mut ring, false), None);
            assert_eq!([take(&mut ring, true), take(&mut ring, true)], [Some(ids[0]), Some(ids[1])]);
            drop(ring);
            let mut ring = second();
            for left in &ids[..2] {
                assert!(!ring.is_caught_up());
                assert_eq!(take(&mut ring, false), Some(*left));
            }
            assert!(ring.is_caught_up());
            assert_eq!(take(&mut ring, false), None);
            assert_eq!([take(&mut ring, true), take(&mut ring, true)], [Some(ids[2]), None]);
            assert_eq!(ring.size(), SIZE);
        }
    }

    #[test]
    fn kicks_are_wanted_while_it_is_armed_and_not_while_it_looks() {
        let (memory, ring) = queue(SIZE, false);
        let driver = Driver::new();
        let split = (Ring::split(ring, None, false), &memory, 0x8000, 0, USED_NO_NOTIFY);
        let packed =
            (Ring::packed(driver.device(NEW, false), None, false), &driver.memory, 0x8002, EVENT_ALWAYS, EVENT_NEVER);
        for (mut ring, memory, at, wanted, unwanted) in [split, packed] {
            for _ in 0..2 {
                assert!(!ring.arm());
                assert_eq!(read16(memory, at), wanted);
                ring.disarm();
                assert_eq!(read16(memory, at), unwanted);
            }
        }
    }

    #[test]
    fn ends_are_logged_where_they_were_written() {
        let (_, ring) = queue(4, false);
        let driver = Driver::new();
        let mut split = Ring::split(ring, None, false);
        (0..2).for_each(|id| split.push(Taken { id, slots: 1 }, 1));
        split.publish();
        let written = |ring: &Ring| {
            let mut all = Vec::new();
            ring.for_each_written(0x70000, 2, |at, length| all.push((at, length)));
            all
        };
        assert_eq!(written(&split), [(0x70000, 4), (0x70004, 8), (0x7000c, 8)]);
        let packed = Ring::packed(driver.device(NEW, false), None, false);
        assert_eq!(written(&packed), [(0, 8 * 16), (0x70000, 4)]);
    }
}
