//! A guest's memory: which of its addresses are where in our address space?
//!
//! A front-end hands over regions, each a part of a file. An address of the guest (in a descriptor) or of the front-end
//! (of a ring) belongs to one region or to none; a range that leaves its region is in none. The regions of a table
//! never change: a front-end that adds or takes one makes another table, and the old one stays mapped until the last
//! request in it has ended.
//!
//! A worker that touches memory must not wait for the client that gave it. A page of a FUSE or network file waits for
//! another process, one of a disk's file for a device; a mapped page of tmpfs (a memfd is one) or hugetlbfs is the
//! kernel's own affair. So no other is taken.

use super::kind;
use super::mapped::Mapped;
use super::rule::Rule;
use super::wire::Fields;
use mqfq_blk::foreign::ForeignMemory;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Regions of one connection, at most.
pub const REGIONS_MAX: usize = 64;

/// A region as a message describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionText {
    /// The guest's address of its first byte.
    pub guest_addr: u64,
    /// Its length, bytes.
    pub size_bytes: u64,
    /// The front-end's address of its first byte.
    pub user_addr: u64,
    /// Where it begins in its file, bytes.
    pub file_offset: u64,
}

impl RegionText {
    /// The next region of a payload.
    pub fn read(fields: &mut Fields<'_>) -> Option<RegionText> {
        let (guest_addr, size_bytes, user_addr) = (fields.u64()?, fields.u64()?, fields.u64()?);
        Some(RegionText { guest_addr, size_bytes, user_addr, file_offset: fields.u64()? })
    }
}

#[derive(Clone, Debug)]
struct Region {
    guest_addr: u64,
    user_addr: u64,
    size_bytes: u64,
    /// Offset of its first byte in the mapping.
    start: usize,
    memory: Arc<ForeignMemory>,
}

impl Region {
    fn map(text: &RegionText, file: impl AsFd, mapped: &Arc<Mapped>) -> Result<Region, Rule> {
        let &RegionText { guest_addr, size_bytes, user_addr, file_offset } = text;
        let ends = guest_addr.checked_add(size_bytes).and(user_addr.checked_add(size_bytes));
        ends.filter(|_| size_bytes > 0).ok_or(Rule::BadRegion)?;
        let (memory, start) = map(file, file_offset, size_bytes, mapped, Rule::BadRegion)?;
        Ok(Region { guest_addr, user_addr, size_bytes, start, memory })
    }

    fn overlaps(&self, other: &Region) -> bool {
        // No sum wraps: checked when it was mapped.
        let meet = |a: u64, b: u64| a < b + other.size_bytes && b < a + self.size_bytes;
        meet(self.guest_addr, other.guest_addr) || meet(self.user_addr, other.user_addr)
    }
}

/// Maps `length_bytes` of `file` from `offset_bytes` on, which it has; and where in the mapping they begin.
///
/// # Errors
/// [`Rule::UnfitMemory`], [`Rule::TooMuchMapped`], or `rule`: the file has not so much, or cannot be mapped.
fn map(
    file: impl AsFd,
    offset_bytes: u64,
    length_bytes: u64,
    mapped: &Arc<Mapped>,
    rule: Rule,
) -> Result<(Arc<ForeignMemory>, usize), Rule> {
    let about = kind::memory(&file)?;
    // Pages behind the end of a file raise SIGBUS at the first access: not a fault to wait for.
    let end_bytes = offset_bytes.checked_add(length_bytes).ok_or(rule)?;
    if u64::try_from(about.st_size).is_ok_and(|size_bytes| end_bytes > size_bytes) {
        return Err(rule);
    }
    // A mapping begins with a page, which of hugetlbfs is the file's block.
    let page_bytes = u64::try_from(about.st_blksize).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096);
    let start = offset_bytes % page_bytes.max(4096);
    let whole_bytes = start + length_bytes;
    let lease = mapped.lease(whole_bytes).ok_or(Rule::TooMuchMapped)?;
    let length = usize::try_from(whole_bytes).map_err(|_| rule)?;
    let memory = ForeignMemory::map_with(file.as_fd(), offset_bytes - start, length, lease).map_err(|_| rule)?;
    Ok((memory, start as usize))
}

/// Where a range of the guest's memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The guest's address.
    pub guest_addr: u64,
    /// Its length.
    pub length_bytes: u32,
    region: u32,
    offset: usize,
}

impl Span {
    /// Takes `next` as its own end, if it begins where this ends, here and there.
    pub fn join(&mut self, next: &Span) -> bool {
        let length = self.length_bytes as usize;
        let adjoins = self.region == next.region && self.offset.checked_add(length) == Some(next.offset);
        let Some(sum) = self.length_bytes.checked_add(next.length_bytes).filter(|_| adjoins) else { return false };
        self.length_bytes = sum;
        true
    }

    /// The part from byte `at` on, of `length_bytes`; both inside.
    pub fn part(&self, at: u32, length_bytes: u32) -> Span {
        debug_assert!(at.checked_add(length_bytes).is_some_and(|end| end <= self.length_bytes));
        let Span { guest_addr, region, offset, .. } = *self;
        Span { guest_addr: guest_addr + u64::from(at), length_bytes, region, offset: offset + at as usize }
    }
}

/// A part of a region, for a ring.
#[derive(Clone, Debug)]
pub struct Area {
    /// The region.
    pub memory: Arc<ForeignMemory>,
    /// Beginning of the part, bytes.
    pub offset: usize,
    /// The guest's address of its beginning.
    pub guest_addr: u64,
}

/// The regions of a guest, by its addresses.
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    regions: Vec<Region>,
    /// Mappings of the guest, whichever table it has.
    mapped: Arc<Mapped>,
}

impl GuestMemory {
    /// A view of this memory with its own counts of holders: for a queue, whose requests each hold a region.
    pub fn view(&self) -> GuestMemory {
        let view = |region: &Region| Region { memory: region.memory.view(), ..region.clone() };
        GuestMemory { regions: self.regions.iter().map(view).collect(), mapped: self.mapped.clone() }
    }

    /// The guest's memory without a region.
    pub fn emptied(&self) -> GuestMemory {
        GuestMemory { regions: Vec::new(), mapped: self.mapped.clone() }
    }

    /// Maps a part of a file that is no region; and where in the mapping it begins.
    ///
    /// # Errors
    /// [`Rule::UnfitMemory`], [`Rule::TooMuchMapped`], or `rule`: the file has not so much, or cannot be mapped.
    pub fn map_aside(
        &self,
        file: impl AsFd,
        offset_bytes: u64,
        length_bytes: u64,
        rule: Rule,
    ) -> Result<(Arc<ForeignMemory>, usize), Rule> {
        map(file, offset_bytes, length_bytes, &self.mapped, rule)
    }

    /// Adds a region of `file`.
    ///
    /// # Errors
    /// [`Rule::BadRegion`], [`Rule::UnfitMemory`], [`Rule::TooMuchMapped`]: nothing was added.
    pub fn add(&mut self, text: &RegionText, file: impl AsFd) -> Result<(), Rule> {
        let region = Region::map(text, file, &self.mapped)?;
        if self.regions.len() >= REGIONS_MAX || self.regions.iter().any(|other| other.overlaps(&region)) {
            return Err(Rule::BadRegion);
        }
        let place = self.regions.partition_point(|other| other.guest_addr < region.guest_addr);
        self.regions.insert(place, region);
        Ok(())
    }

    /// Takes the region out that was added as `text` says.
    ///
    /// # Errors
    /// [`Rule::BadRegion`]: there is none.
    pub fn remove(&mut self, text: &RegionText) -> Result<(), Rule> {
        let is_it = |region: &Region| {
            (region.guest_addr, region.user_addr, region.size_bytes)
                == (text.guest_addr, text.user_addr, text.size_bytes)
        };
        let place = self.regions.iter().position(is_it).ok_or(Rule::BadRegion)?;
        self.regions.remove(place);
        Ok(())
    }

    /// Regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// No regions.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// The owner took pages away.
    pub fn is_lost(&self) -> bool {
        self.regions.iter().any(|region| region.memory.is_lost())
    }

    /// Where a range of the guest's addresses is; it is not empty.
    pub fn span(&self, guest_addr: u64, length_bytes: u32) -> Option<Span> {
        self.span_near(&mut 0, guest_addr, length_bytes)
    }

    /// [`GuestMemory::span`], looked for first in region `near`, which becomes the span's region.
    #[inline]
    pub fn span_near(&self, near: &mut usize, guest_addr: u64, length_bytes: u32) -> Option<Span> {
        let is_there = |region: &&Region| guest_addr.wrapping_sub(region.guest_addr) < region.size_bytes;
        let region = match self.regions.get(*near).filter(is_there) {
            Some(region) => region,
            None => {
                let behind = self.regions.partition_point(|region| region.guest_addr <= guest_addr);
                *near = behind.checked_sub(1)?;
                &self.regions[*near]
            }
        };
        let place = *near;
        let from = guest_addr - region.guest_addr;
        let end = from.checked_add(u64::from(length_bytes)).filter(|_| length_bytes > 0)?;
        let offset = region.start + from as usize;
        (end <= region.size_bytes).then_some(Span { guest_addr, length_bytes, region: place as u32, offset })
    }

    /// Where a ring's part is that begins at the front-end's `user_addr`.
    pub fn area(&self, user_addr: u64, length_bytes: usize, align_bytes: usize) -> Option<Area> {
        let region = self.regions.iter().find(|region| {
            let from = user_addr.checked_sub(region.user_addr);
            let end = from.and_then(|from| from.checked_add(length_bytes as u64));
            end.is_some_and(|end| end <= region.size_bytes)
        })?;
        let from = user_addr - region.user_addr;
        let (offset, guest_addr) = (region.start + from as usize, region.guest_addr + from);
        offset.is_multiple_of(align_bytes).then(|| Area { memory: region.memory.clone(), offset, guest_addr })
    }

    /// The memory of a span, and where in it.
    pub fn memory(&self, span: &Span) -> (&Arc<ForeignMemory>, usize) {
        (&self.regions[span.region as usize].memory, span.offset)
    }

    /// Copies a span's bytes, as many as `bytes` has.
    pub fn read(&self, span: &Span, bytes: &mut [u8]) {
        let (memory, offset) = self.memory(span);
        // Inside: a span is.
        let _ = memory.copy_to(offset, bytes);
    }

    /// Sets the first byte of a span.
    #[inline]
    pub fn write_byte(&self, span: &Span, byte: u8) {
        let (memory, offset) = self.memory(span);
        if let Some(place) = memory.atomic_u8(offset) {
            // Relaxed: the index that shows the end is released after it.
            place.store(byte, Ordering::Relaxed);
        }
    }

    /// Copies `bytes` to the beginning of a span.
    pub fn write(&self, span: &Span, bytes: &[u8]) {
        let (memory, offset) = self.memory(span);
        // Inside: a span is.
        let _ = memory.copy_from(offset, bytes);
    }
}

#[cfg(test)]
pub(in crate::vhost_user_blk) mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::OwnedFd;

    /// A file of `bytes` zeroes.
    pub(in crate::vhost_user_blk) fn file(bytes: u64) -> OwnedFd {
        let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        File::from(file.try_clone().unwrap()).set_len(bytes).unwrap();
        file
    }

    pub(in crate::vhost_user_blk) fn text(
        guest_addr: u64,
        size_bytes: u64,
        user_addr: u64,
        file_offset: u64,
    ) -> RegionText {
        RegionText { guest_addr, size_bytes, user_addr, file_offset }
    }

    #[test]
    fn a_range_is_in_one_region_or_in_none() {
        let mut memory = GuestMemory::default();
        let file = file(64 << 10);
        memory.add(&text(0x10000, 0x4000, 0xa0000, 0x100), &file).unwrap();
        memory.add(&text(0x14000, 0x4000, 0xf0000, 0x8000), &file).unwrap();
        let span = memory.span(0x10000, 0x4000).unwrap();
        memory.write(&span.part(0x3ffe, 2), b"ab");
        let mut back = [0; 3];
        memory.read(&memory.span(0x13ffd, 3).unwrap(), &mut back);
        assert_eq!(&back, b"\0ab");
        for (at, length) in [(0xffff, 1), (0x13fff, 2), (0x18000, 1), (0x10000, 0x4001), (u64::MAX, 2), (0x10000, 0)] {
            assert!(memory.span(at, length).is_none(), "{length} at {at:#x}");
        }
        let area = memory.area(0xa0010, 16, 16).unwrap();
        assert_eq!((area.offset, area.guest_addr), (0x110, 0x10010), "the file's offset is no page's");
        // It makes no difference in which region the last one was.
        for (at, region) in [(0x10000, 0), (0x13fff, 0), (0x14000, 1), (0x17fff, 1)] {
            for mut near in 0..3 {
                assert_eq!(memory.span_near(&mut near, at, 1), memory.span(at, 1), "{at:#x}");
                assert_eq!(near, region);
            }
        }
        assert!(memory.area(0xa0001, 2, 2).is_none() && memory.area(0xa3ff0, 17, 1).is_none());
        assert!(memory.area(0xa3ff0, 16, 16).is_some() && memory.area(0, 1, 1).is_none());
    }

    #[test]
    fn memory_is_taken_of_files_that_nobody_has_to_be_waited_for() {
        let mut memory = GuestMemory::default();
        // A file of a disk, one of the kernel, and a pipe.
        let path = std::env::current_exe().unwrap();
        for file in [File::open(path).unwrap(), File::open("/proc/self/maps").unwrap()] {
            assert_eq!(memory.add(&text(0, 0x1000, 0, 0), file), Err(Rule::UnfitMemory));
        }
        let (pipe, _) = std::io::pipe().unwrap();
        assert_eq!(memory.add(&text(0, 0x1000, 0, 0), pipe), Err(Rule::UnfitMemory));
        memory.add(&text(0, 0x1000, 0, 0), file(0x1000)).unwrap();
        // A file as memory-backend-file has it.
        let path = format!("/dev/shm/mqfq-guest-{}", std::process::id());
        let shared = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        shared.set_len(0x1000).unwrap();
        memory.add(&text(0x1000, 0x1000, 0x1000, 0), shared).unwrap();
    }

    #[test]
    fn a_guest_has_no_more_mapped_than_it_may_and_gives_it_back_with_its_table() {
        let (tib, sparse) = (1 << 40, file(1 << 46));
        let mut memory = GuestMemory::default();
        memory.add(&text(0, 16 * tib, 0, 0), &sparse).unwrap();
        let more = text(32 * tib, 4096, 32 * tib, 0);
        assert_eq!(memory.add(&more, &sparse), Err(Rule::TooMuchMapped));
        let mut next = memory.emptied();
        assert_eq!(next.add(&more, &sparse), Err(Rule::TooMuchMapped), "the table before is mapped still");
        let view = memory.view();
        drop(memory);
        assert_eq!(next.add(&more, &sparse), Err(Rule::TooMuchMapped), "a request may be under way in it");
        drop(view);
        next.add(&more, &sparse).unwrap();
    }

    #[test]
    fn spans_join_where_they_meet_in_one_region() {
        let mut memory = GuestMemory::default();
        let file = file(64 << 10);
        memory.add(&text(0, 0x4000, 0, 0), &file).unwrap();
        memory.add(&text(0x4000, 0x4000, 0x4000, 0x4000), &file).unwrap();
        let mut first = memory.span(0x1000, 0x1000).unwrap();
        assert!(first.join(&memory.span(0x2000, 0x2000).unwrap()) && first.length_bytes == 0x3000);
        assert!(!first.join(&memory.span(0x4000, 1).unwrap()), "another region");
        assert!(!first.join(&memory.span(0x1000, 1).unwrap()), "elsewhere");
    }

    #[test]
    fn a_region_that_is_not_in_its_file_or_meets_another_is_refused() {
        let mut memory = GuestMemory::default();
        let file = file(0x8000);
        memory.add(&text(0x10000, 0x4000, 0xa0000, 0), &file).unwrap();
        for bad in [
            text(0x20000, 0x4000, 0xb0000, 0x6000),
            text(0x13fff, 0x1000, 0xb0000, 0),
            text(0x20000, 0x4000, 0xa3fff, 0),
            text(0x20000, 0, 0xb0000, 0),
            text(0x20000, 0, 0xb0000, 0x100),
            text(u64::MAX, 2, 0xb0000, 0),
            text(0x20000, 2, u64::MAX, 0),
            text(0x20000, 0x1000, 0xb0000, u64::MAX),
        ] {
            assert_eq!(memory.add(&bad, &file), Err(Rule::BadRegion), "{bad:?}");
        }
        assert_eq!(memory.remove(&text(0x10000, 0x3000, 0xa0000, 0)), Err(Rule::BadRegion));
        assert_eq!((memory.len(), memory.remove(&text(0x10000, 0x4000, 0xa0000, 0))), (1, Ok(())));
        assert!(memory.is_empty());
        // Regions may touch, in any order.
        for at in [0x4000, 0, 0x8000] {
            memory.add(&text(at, 0x4000, at, 0), &file).unwrap();
        }
        assert!(!memory.is_empty());
        memory = GuestMemory::default();
        for place in 0..REGIONS_MAX as u64 {
            memory.add(&text(place << 12, 0x1000, place << 12, 0), &file).unwrap();
        }
        assert_eq!(memory.add(&text(1 << 40, 0x1000, 1 << 40, 0), &file), Err(Rule::BadRegion), "one too many");
    }
}
