//! Memory of another owner: a guest's pages, a device's buffer.
//!
//! A front end maps it once ([`ForeignMemory`]) and makes a [`Buffer`] of a part of it for each request. Such a buffer
//! goes to the device and back like any other, and nothing is copied because of it. The part stays mapped until the
//! buffer is dropped, which is on the worker that was given the request.
//!
//! # Why there is no slice of it
//! Its owner may write to it at any time, and no check holds once it was made. A `&[u8]` promises the compiler that its
//! bytes do not change. So safe code gets a [`BufferSlice`] or copies: read once, check the copy, use the copy. Copies
//! are made of volatile accesses, each word of 8 bytes once. Several workers may copy to the same bytes at once if the
//! owner asks for that; which bytes win is the owner's affair.
//!
//! # What devices need
//! | device | of a buffer |
//! |---|---|
//! | null, memory, nvme | nothing: they copy by [`BufferSlice`] |
//! | file through the page cache | nothing: the kernel copies |
//! | file past the page cache (O_DIRECT) | its address is a multiple of the block; it copies through a buffer of its own otherwise |
//!
//! Owned buffers are aligned for all of them.

use crate::buffer::Buffer;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering};

/// A mapping of foreign memory, and the guard that keeps it mapped.
pub struct ForeignMemory {
    start: NonNull<u8>,
    length_bytes: usize,
    /// Set when the owner took pages away (`bus_error.rs`). `None`: it was not mapped here.
    lost: Option<&'static AtomicBool>,
    /// Dropped with the last buffer of it.
    _guard: Arc<dyn Send + Sync>,
}

// SAFETY: it is an address range that any thread may access by volatile accesses; the guard is Send.
unsafe impl Send for ForeignMemory {}
// SAFETY: as above; no method gives out a reference to its bytes, and the guard is Sync.
unsafe impl Sync for ForeignMemory {}

impl ForeignMemory {
    /// Memory of `length_bytes` from `start` on.
    ///
    /// # Safety
    /// The range is mapped, readable and writable until `guard` is dropped. No Rust reference to any of its bytes
    /// exists as long as this does.
    ///
    /// # Panics
    /// If the range is longer than `isize::MAX`.
    pub unsafe fn new(start: NonNull<u8>, length_bytes: usize, guard: Arc<dyn Send + Sync>) -> Arc<ForeignMemory> {
        assert!(isize::try_from(length_bytes).is_ok(), "{length_bytes} bytes are more than an address space has");
        Arc::new(ForeignMemory { start, length_bytes, lost: None, _guard: guard })
    }

    /// Returns this memory with a count of holders of its own. A worker that makes buffers of its own view does not
    /// share a cache line with those that make buffers of theirs.
    #[must_use]
    pub fn view(self: &Arc<Self>) -> Arc<ForeignMemory> {
        let ForeignMemory { start, length_bytes, lost, .. } = **self;
        Arc::new(ForeignMemory { start, length_bytes, lost, _guard: self.clone() })
    }

    /// Maps `length_bytes` of `file` from `offset_bytes` (a multiple of the page) on, shared with its other mappings.
    /// Unmapped with the last buffer of it.
    ///
    /// If the file is cut while it is mapped, the first access behind its end replaces the whole mapping by zeroes of
    /// our own, and [`ForeignMemory::is_lost`] says so.
    ///
    /// # Errors
    /// The error of `mmap`, or EINVAL for a length of 0.
    #[cfg(feature = "uring")]
    pub fn map(
        file: std::os::fd::BorrowedFd<'_>,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> std::io::Result<Arc<ForeignMemory>> {
        ForeignMemory::map_with(file, offset_bytes, length_bytes, ())
    }

    /// As [`ForeignMemory::map`]; `held` is dropped when it has been unmapped.
    ///
    /// # Errors
    /// As [`ForeignMemory::map`].
    #[cfg(feature = "uring")]
    pub fn map_with(
        file: std::os::fd::BorrowedFd<'_>,
        offset_bytes: u64,
        length_bytes: usize,
        held: impl Send + Sync + 'static,
    ) -> std::io::Result<Arc<ForeignMemory>> {
        use std::os::fd::AsRawFd;
        let einval = || std::io::Error::from_raw_os_error(libc::EINVAL);
        let offset = i64::try_from(offset_bytes).map_err(|_| einval())?;
        let (access, descriptor) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping at an address that the kernel chooses; no memory of ours is involved.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), length_bytes, access, libc::MAP_SHARED, descriptor, offset) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(einval)?;
        let mapped_bytes = length_bytes.next_multiple_of(huge_page_bytes(descriptor).unwrap_or(1));
        let watched = crate::edge::bus_error::watch(start.as_ptr().addr(), mapped_bytes);
        let lost = Some(watched.lost());
        let start_addr = start.as_ptr() as usize;
        let guard = Arc::new(Mapping { start: start_addr, length_bytes: mapped_bytes, watched, _held: held });
        // Mapped just now for reading and writing, and unmapped by the guard alone. The mapping is new, so no reference
        // to it exists.
        Ok(Arc::new(ForeignMemory { start, length_bytes, lost, _guard: guard }))
    }

    /// True if its owner took pages of it away while it was mapped here: its content means nothing now.
    pub fn is_lost(&self) -> bool {
        // Relaxed: a sign that is looked at again and again; no memory is published through it.
        self.lost.is_some_and(|lost| lost.load(Ordering::Relaxed))
    }

    /// The two bytes at `offset_bytes` as one word that both sides access at once. `None`: that is not inside, or not
    /// aligned to 2.
    pub fn atomic_u16(&self, offset_bytes: usize) -> Option<&AtomicU16> {
        let start = self.at(offset_bytes, size_of::<AtomicU16>())?.cast::<u16>();
        // SAFETY: inside, so readable and writable as long as self lives, and aligned, checked here. The other side's
        // accesses are another process's; ours are atomic or volatile.
        start.is_aligned().then(|| unsafe { AtomicU16::from_ptr(start.as_ptr()) })
    }

    /// The byte at `offset_bytes`, as [`ForeignMemory::atomic_u16`].
    pub fn atomic_u8(&self, offset_bytes: usize) -> Option<&AtomicU8> {
        let start = self.at(offset_bytes, 1)?;
        // SAFETY: as in atomic_u16; a byte is always aligned.
        Some(unsafe { AtomicU8::from_ptr(start.as_ptr()) })
    }

    /// The `N` words at `offset_bytes`, each read once. `None`: they are not inside, or not aligned to 8.
    #[inline]
    pub fn words<const N: usize>(&self, offset_bytes: usize) -> Option<[u64; N]> {
        let start = self.at(offset_bytes, N * WORD_BYTES)?.cast::<u64>();
        if !start.is_aligned() {
            return None;
        }
        // SAFETY: inside, so readable as long as self lives, and aligned, checked above.
        Some(std::array::from_fn(|at| unsafe { start.add(at).read_volatile() }))
    }

    /// Writes words of 4 bytes to `offset_bytes`, each once. False: they are not inside, or not aligned to 4.
    #[inline]
    #[must_use]
    pub fn set_halves<const N: usize>(&self, offset_bytes: usize, halves: [u32; N]) -> bool {
        let start = self.at(offset_bytes, N * size_of::<u32>()).map(NonNull::cast::<u32>);
        let Some(start) = start.filter(|start| start.is_aligned()) else { return false };
        for (at, half) in halves.into_iter().enumerate() {
            // SAFETY: inside, so writable as long as self lives, and aligned, checked above.
            unsafe { start.add(at).write_volatile(half) };
        }
        true
    }

    /// Its length, bytes.
    pub fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// `length_bytes` from `offset_bytes` on, as the payload of a request. `None`: that is not inside, or is nothing.
    pub fn buffer(self: &Arc<Self>, offset_bytes: usize, length_bytes: usize) -> Option<Buffer> {
        let start = self.at(offset_bytes, length_bytes).filter(|_| length_bytes > 0)?;
        Some(Buffer::foreign(start, length_bytes, self.clone()))
    }

    /// Copies what stands at `offset_bytes` into `bytes`. False: that is not inside, and nothing happened.
    #[must_use]
    pub fn copy_to(&self, offset_bytes: usize, bytes: &mut [u8]) -> bool {
        let Some(start) = self.at(offset_bytes, bytes.len()) else { return false };
        // SAFETY: inside, so readable as `new` was promised.
        unsafe { copy_out(start.as_ptr(), bytes) };
        true
    }

    /// Copies `bytes` to `offset_bytes`. False: that is not inside, and nothing happened.
    #[must_use]
    pub fn copy_from(&self, offset_bytes: usize, bytes: &[u8]) -> bool {
        let Some(start) = self.at(offset_bytes, bytes.len()) else { return false };
        // SAFETY: inside, so writable as `new` was promised.
        unsafe { copy_in(start.as_ptr(), bytes) };
        true
    }

    /// The address of a range that lies inside.
    pub(crate) fn at(&self, offset_bytes: usize, length_bytes: usize) -> Option<NonNull<u8>> {
        let end_bytes = offset_bytes.checked_add(length_bytes)?;
        // SAFETY: at most the end of the mapping.
        (end_bytes <= self.length_bytes).then(|| unsafe { self.start.add(offset_bytes) })
    }
}

impl std::fmt::Debug for ForeignMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ForeignMemory({} bytes)", self.length_bytes)
    }
}

/// The size of the pages of a file that is made of huge ones: `mmap` rounds up to it by itself, `munmap` demands it.
#[cfg(feature = "uring")]
fn huge_page_bytes(file: std::os::fd::RawFd) -> Option<usize> {
    let mut about = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel writes the struct, and only that it says so is looked at.
    let known = unsafe { libc::fstatfs(file, about.as_mut_ptr()) } == 0;
    // SAFETY: written, if the call succeeded.
    let about = known.then(|| unsafe { about.assume_init() })?;
    let is_huge = about.f_type == libc::HUGETLBFS_MAGIC;
    usize::try_from(about.f_bsize).ok().filter(|bytes| is_huge && *bytes > 0)
}

/// A mapping of ours; unmapped when dropped.
#[cfg(feature = "uring")]
struct Mapping<T> {
    start: usize,
    length_bytes: usize,
    watched: crate::edge::bus_error::Watched,
    /// Dropped when the memory is unmapped.
    _held: T,
}

#[cfg(feature = "uring")]
impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // First: once it is unmapped, the address may be another mapping's.
        self.watched.end();
        // SAFETY: mapped by `map` with this length, and this is dropped after the last buffer of it.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.length_bytes) };
    }
}

/// The bytes of a buffer, as a device moves them: owned or foreign.
pub struct BufferSlice<'a> {
    start: NonNull<u8>,
    length_bytes: usize,
    is_foreign: bool,
    buffer: PhantomData<&'a mut [u8]>,
}

impl<'a> From<&'a mut [u8]> for BufferSlice<'a> {
    #[inline]
    fn from(bytes: &'a mut [u8]) -> BufferSlice<'a> {
        let length_bytes = bytes.len();
        BufferSlice { start: NonNull::from(bytes).cast(), length_bytes, is_foreign: false, buffer: PhantomData }
    }
}

impl<'a> BufferSlice<'a> {
    /// # Safety
    /// The range is readable and writable for `'a`. If `is_foreign`, no reference to it exists; otherwise it is
    /// borrowed mutably for `'a`.
    #[inline]
    pub(crate) unsafe fn new(start: NonNull<u8>, length_bytes: usize, is_foreign: bool) -> BufferSlice<'a> {
        BufferSlice { start, length_bytes, is_foreign, buffer: PhantomData }
    }

    /// Its length, bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length_bytes
    }

    /// True if it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length_bytes == 0
    }

    /// The first byte, for system calls.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Takes the first `length_bytes` off.
    ///
    /// # Panics
    /// If it has fewer.
    #[inline]
    pub fn take_front(&mut self, length_bytes: usize) -> BufferSlice<'a> {
        assert!(length_bytes <= self.length_bytes, "{length_bytes} bytes of {}", self.length_bytes);
        let front = BufferSlice { start: self.start, length_bytes, is_foreign: self.is_foreign, buffer: PhantomData };
        // SAFETY: inside, checked above. From here on the two share no byte.
        self.start = unsafe { self.start.add(length_bytes) };
        self.length_bytes -= length_bytes;
        front
    }

    /// The bytes, if they are owned.
    #[inline]
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        // SAFETY: owned bytes are borrowed mutably for 'a (`new`, `from`), and this borrows self.
        (!self.is_foreign).then(|| unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length_bytes) })
    }

    /// Sets every byte.
    #[inline]
    pub fn fill(&mut self, value: u8) {
        match self.as_mut_slice() {
            Some(bytes) => bytes.fill(value),
            // SAFETY: writable, says `new`.
            None => unsafe { fill(self.start.as_ptr(), self.length_bytes, value) },
        }
    }

    /// Copies `bytes` into the room.
    ///
    /// # Panics
    /// If the lengths differ; so does [`BufferSlice::copy_to`].
    #[inline]
    pub fn copy_from(&mut self, bytes: &[u8]) {
        match self.as_mut_slice() {
            Some(room) => room.copy_from_slice(bytes),
            None => {
                assert_eq!(bytes.len(), self.length_bytes, "a copy of another length");
                // SAFETY: as long as `bytes`, checked above, and writable, says `new`.
                unsafe { copy_in(self.start.as_ptr(), bytes) }
            }
        }
    }

    /// Copies the room into `bytes`.
    #[inline]
    pub fn copy_to(&mut self, bytes: &mut [u8]) {
        match self.as_mut_slice() {
            Some(room) => bytes.copy_from_slice(room),
            None => {
                assert_eq!(bytes.len(), self.length_bytes, "a copy of another length");
                // SAFETY: as long as `bytes`, checked above, and readable, says `new`.
                unsafe { copy_out(self.start.as_ptr(), bytes) }
            }
        }
    }
}

/// Bytes before the first aligned word of `length_bytes` bytes at `start`.
fn head_bytes(start: *const u8, length_bytes: usize) -> usize {
    (start.addr().wrapping_neg() % WORD_BYTES).min(length_bytes)
}

const WORD_BYTES: usize = size_of::<u64>();

/// Words from which on a string instruction is worth its start: 256 bytes.
const STRING_WORDS: usize = 32;

/// Copies `words` words by the processor's string instruction, if it has one: several words a cycle, where volatile
/// accesses are one. To the compiler assembly is an access to any memory, neither repeated nor left out, as they are.
///
/// # Safety
/// `from` is readable for them, `to` writable; they do not overlap.
#[inline]
unsafe fn copy_string(from: *const u8, to: *mut u8, words: usize) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: as this function's caller promises; the direction flag is clear wherever Rust runs.
        unsafe {
            std::arch::asm!(
                "rep movsq",
                inout("rcx") words => _, inout("rsi") from => _, inout("rdi") to => _,
                options(nostack, preserves_flags)
            );
        }
        true
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = (from, to, words);
        false
    }
}

/// Sets `words` words in the same way.
///
/// # Safety
/// `to` is writable for them.
#[inline]
unsafe fn fill_string(to: *mut u64, words: usize, word: u64) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: as in `copy_string`.
        unsafe {
            std::arch::asm!(
                "rep stosq",
                inout("rcx") words => _, inout("rdi") to => _, in("rax") word,
                options(nostack, preserves_flags)
            );
        }
        true
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = (to, words, word);
        false
    }
}

/// # Safety
/// `from` is readable for `to.len()` bytes.
unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    let (head, rest) = to.split_at_mut(head_bytes(from, to.len()));
    let (words, tail) = rest.as_chunks_mut::<WORD_BYTES>();
    // SAFETY: the three parts lie one behind the other in `to`, which is as long as what is readable; the words begin
    // where the address is aligned.
    unsafe {
        let word_from = from.add(head.len());
        let tail_from = word_from.add(words.len() * WORD_BYTES);
        for (at, byte) in head.iter_mut().enumerate() {
            *byte = from.add(at).read_volatile();
        }
        if words.len() < STRING_WORDS || !copy_string(word_from, words.as_mut_ptr().cast(), words.len()) {
            for (at, word) in words.iter_mut().enumerate() {
                *word = word_from.cast::<u64>().add(at).read_volatile().to_ne_bytes();
            }
        }
        for (at, byte) in tail.iter_mut().enumerate() {
            *byte = tail_from.add(at).read_volatile();
        }
    }
}

/// # Safety
/// `to` is writable for `from.len()` bytes.
unsafe fn copy_in(to: *mut u8, from: &[u8]) {
    let (head, rest) = from.split_at(head_bytes(to, from.len()));
    let (words, tail) = rest.as_chunks::<WORD_BYTES>();
    // SAFETY: as in `copy_out`.
    unsafe {
        let word_to = to.add(head.len());
        let tail_to = word_to.add(words.len() * WORD_BYTES);
        for (at, byte) in head.iter().enumerate() {
            to.add(at).write_volatile(*byte);
        }
        if words.len() < STRING_WORDS || !copy_string(words.as_ptr().cast(), word_to, words.len()) {
            for (at, word) in words.iter().enumerate() {
                word_to.cast::<u64>().add(at).write_volatile(u64::from_ne_bytes(*word));
            }
        }
        for (at, byte) in tail.iter().enumerate() {
            tail_to.add(at).write_volatile(*byte);
        }
    }
}

/// # Safety
/// `to` is writable for `length_bytes`.
unsafe fn fill(to: *mut u8, length_bytes: usize, value: u8) {
    let head = head_bytes(to, length_bytes);
    let words = (length_bytes - head) / WORD_BYTES;
    // SAFETY: as in `copy_out`.
    unsafe {
        (0..head).for_each(|at| to.add(at).write_volatile(value));
        let (word_to, word) = (to.add(head).cast::<u64>(), u64::from_ne_bytes([value; WORD_BYTES]));
        if words < STRING_WORDS || !fill_string(word_to, words, word) {
            (0..words).for_each(|at| word_to.add(at).write_volatile(word));
        }
        (head + words * WORD_BYTES..length_bytes).for_each(|at| to.add(at).write_volatile(value));
    }
}

#[cfg(all(test, not(mqfq_loom)))]
pub(crate) mod tests {
    use super::*;

    /// Zeroed pages of the test's own that play foreign memory.
    pub(crate) struct Pages {
        words: Box<[std::cell::UnsafeCell<u64>]>,
    }

    // SAFETY: its bytes are reached through `ForeignMemory` alone.
    unsafe impl Send for Pages {}
    // SAFETY: as above.
    unsafe impl Sync for Pages {}

    /// `length_bytes` (a multiple of 8) of memory, and its guard, whose count says how many hold it.
    pub(crate) fn memory(length_bytes: usize) -> (Arc<ForeignMemory>, Arc<Pages>) {
        let pages = Arc::new(Pages { words: (0..length_bytes / 8).map(|_| 0.into()).collect() });
        let start = NonNull::new(pages.words.as_ptr().cast_mut().cast::<u8>()).unwrap();
        // SAFETY: `pages` holds the bytes, and no other code makes a reference to one: cells give out pointers only.
        (unsafe { ForeignMemory::new(start, length_bytes, pages.clone()) }, pages)
    }

    pub(crate) fn bytes(memory: &ForeignMemory, offset_bytes: usize, length_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; length_bytes];
        assert!(memory.copy_to(offset_bytes, &mut bytes));
        bytes
    }

    #[test]
    fn copies_and_fills_are_exact_at_every_alignment() {
        let (memory, _) = memory(64);
        for start in 0..17 {
            for length in 1..=32 {
                assert!(memory.copy_from(0, &[0xee; 64]));
                let new: Vec<u8> = (1..=length as u8).collect();
                let mut buffer = memory.buffer(start, length).unwrap();
                buffer.room(length).copy_from(&new);
                let around = [&vec![0xee; start][..], &new, &vec![0xee; 64 - start - length]].concat();
                assert_eq!(bytes(&memory, 0, 64), around, "{length} at {start}");
                let mut back = vec![0; length];
                buffer.room(length).copy_to(&mut back);
                assert_eq!(back, new);
                buffer.room(length).fill(7);
                let filled = [vec![0xee; start], vec![7; length], vec![0xee; 64 - start - length]];
                assert_eq!(bytes(&memory, 0, 64), filled.concat(), "{length} at {start}");
            }
        }
    }

    #[test]
    fn long_copies_and_fills_are_exact_as_well() {
        let (memory, _) = memory(4096);
        for (start, length) in [(0, 256), (1, 263), (7, 272), (8, 2048), (13, 4000)] {
            assert!(memory.copy_from(0, &[0xee; 4096]));
            let new: Vec<u8> = (0..length).map(|at| (at / 3) as u8).collect();
            let mut buffer = memory.buffer(start, length).unwrap();
            buffer.room(length).copy_from(&new);
            let around = [&vec![0xee; start][..], &new, &vec![0xee; 4096 - start - length]].concat();
            assert!(bytes(&memory, 0, 4096) == around, "{length} at {start}");
            let mut back = vec![0; length];
            buffer.room(length).copy_to(&mut back);
            assert!(back == new, "{length} at {start}");
            buffer.room(length).fill(7);
            let filled = [vec![0xee; start], vec![7; length], vec![0xee; 4096 - start - length]].concat();
            assert!(bytes(&memory, 0, 4096) == filled, "{length} at {start}");
        }
    }

    #[test]
    fn what_is_not_inside_is_refused() {
        let (memory, _) = memory(64);
        assert!(memory.buffer(0, 64).is_some() && memory.buffer(63, 1).is_some());
        for (offset, length) in [(0, 65), (64, 1), (usize::MAX, 2), (1, usize::MAX), (10, 0)] {
            assert!(memory.buffer(offset, length).is_none(), "{length} at {offset}");
        }
        assert!(!memory.copy_to(60, &mut [0; 5]) && !memory.copy_from(60, &[0; 5]));
    }

    #[test]
    fn the_guard_goes_with_the_last_buffer() {
        let (memory, pages) = memory(64);
        let (first, second) = (memory.buffer(0, 8).unwrap(), memory.buffer(8, 8).unwrap());
        drop(memory);
        drop(first);
        assert_eq!(Arc::strong_count(&pages), 2, "the second buffer holds it");
        drop(second);
        assert_eq!(Arc::strong_count(&pages), 1);
    }

    #[cfg(feature = "uring")]
    #[test]
    fn a_mapped_file_is_seen_by_both_sides() {
        use std::os::fd::AsFd;
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let memory = ForeignMemory::map(file.as_fd(), 4096, 4096).unwrap();
        file.write_all_at(b"from the file", 4100).unwrap();
        assert_eq!(bytes(&memory, 4, 13), b"from the file");
        assert!(memory.copy_from(4090, b"mapped"));
        let mut back = [0; 6];
        file.read_exact_at(&mut back, 8186).unwrap();
        assert_eq!(&back, b"mapped");
        assert!(ForeignMemory::map(file.as_fd(), 0, 0).is_err());
        assert!(ForeignMemory::map(file.as_fd(), 1, 4096).is_err(), "not a page's start");
    }

    #[cfg(feature = "uring")]
    #[test]
    fn a_file_that_is_cut_while_it_is_mapped_costs_its_owner_its_bytes_and_nobody_else_anything() {
        use std::os::fd::AsFd;
        let (cut, whole) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        cut.set_len(1 << 20).unwrap();
        whole.set_len(8192).unwrap();
        let memory = ForeignMemory::map(cut.as_fd(), 0, 1 << 20).unwrap();
        let view = memory.view();
        let other = ForeignMemory::map(whole.as_fd(), 0, 8192).unwrap();
        assert!(memory.copy_from(0, b"kept") && other.copy_from(0, b"kept"));
        cut.set_len(4096).unwrap();
        assert!(!memory.is_lost(), "nobody has looked");
        assert_eq!(bytes(&view, 1 << 19, 4), [0; 4], "this would have raised SIGBUS");
        assert!(memory.is_lost() && view.is_lost() && !other.is_lost());
        assert!(memory.copy_from((1 << 20) - 4, b"more"), "a write as well");
        assert_eq!(bytes(&memory, 0, 4), [0; 4], "all of it is lost");
        assert_eq!(bytes(&other, 0, 4), b"kept");
        drop((memory, view));
        let again = ForeignMemory::map(whole.as_fd(), 4096, 4096).unwrap();
        assert!(!again.is_lost(), "a mapping that comes later is whole");
    }

    #[cfg(feature = "uring")]
    #[test]
    fn a_bus_error_elsewhere_still_ends_the_process() {
        use std::os::fd::AsFd;
        use std::os::unix::process::ExitStatusExt;
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        if let Some(how) = std::env::var_os("MQFQ_TEST_BUS_ERROR") {
            let _watched = ForeignMemory::map(file.as_fd(), 0, 4096).unwrap();
            let other = tempfile::tempfile().unwrap();
            other.set_len(4096).unwrap();
            // SAFETY: an unwatched mapping of a file that is cut before it is read; the read ends the process. raise
            // takes no pointer.
            unsafe {
                if how == "raise" {
                    libc::raise(libc::SIGBUS);
                }
                let descriptor = std::os::fd::AsRawFd::as_raw_fd(&other);
                let start = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, descriptor, 0);
                other.set_len(0).unwrap();
                start.cast::<u8>().read_volatile();
            }
            unreachable!("the signal ends the process");
        }
        let name = "edge::foreign::tests::a_bus_error_elsewhere_still_ends_the_process";
        for how in ["raise", "fault"] {
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args([name, "--exact"])
                .env("MQFQ_TEST_BUS_ERROR", how)
                .output()
                .unwrap();
            assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{how}");
        }
    }

    #[test]
    fn words_are_reached_where_they_are_inside_and_aligned() {
        let (memory, _) = memory(64);
        memory.atomic_u16(62).unwrap().store(0x0102, Ordering::Relaxed);
        assert_eq!(bytes(&memory, 62, 2), 0x0102u16.to_ne_bytes());
        memory.atomic_u8(63).unwrap().fetch_or(0xf0, Ordering::Relaxed);
        assert_eq!(bytes(&memory, 63, 1)[0] & 0xf0, 0xf0);
        assert!(memory.copy_from(48, &[1; 8]) && memory.copy_from(56, &[2; 8]));
        assert_eq!(memory.words(48), Some([0x0101_0101_0101_0101, 0x0202_0202_0202_0202]));
        assert!(memory.set_halves(52, [3, 4]) && !memory.set_halves(53, [5]) && !memory.set_halves(60, [5, 6]));
        assert_eq!(bytes(&memory, 52, 8), [3u32.to_ne_bytes(), 4u32.to_ne_bytes()].concat());
        assert!(memory.words::<1>(57).is_none() && memory.words::<2>(56).is_none(), "not aligned, not inside");
        assert!(memory.atomic_u16(1).is_none() && memory.atomic_u16(64).is_none() && memory.atomic_u8(64).is_none());
    }
}
