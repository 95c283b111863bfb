//! Payload memory: owned, page-aligned, recycled per thread; or foreign ([`crate::foreign`]); or a part of another
//! buffer (`Cut`); or pages that stay in the kernel ([`crate::pages`]).
//!
//! A thread keeps at most [`KEPT_BYTES_MAX`] for its next buffers.
//!
//! # Shape
//! ```text
//!   owned     start ─▶ bytes     word = capacity, bytes: a power of two of at least 4096, so even
//!   lent      start ─▶ bytes     word = address of its Lent + 1, so odd; the Lent says whose they are
//! ```
//! 16 bytes either way, because a buffer is moved at each step of a request. An owned one pays a branch where its
//! capacity is asked for, where its bytes are, and where it is dropped. A part is foreign if its whole is.
//!
//! A buffer travels: socket to client to device and back, or device to client to socket. It is owned at each step, so
//! memory that the kernel works on cannot be freed under it. Recycled memory still holds a former tenant's bytes: code
//! that hands a buffer to a client must have written every byte of the length it states (the conformance suite checks
//! each device for that).

use crate::foreign::{BufferSlice, ForeignMemory};
use crate::pages::{self, Pages, PagesAt};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of every buffer and smallest class, bytes: the largest logical block of drives in the field, so O_DIRECT
/// takes any buffer.
pub const ALIGNMENT_BYTES: usize = 4096;

/// Classes are powers of two from 4 KiB (class 0) to 2 MiB; larger buffers are not recycled.
const CLASSES: usize = 10;

/// Most memory that a thread keeps in all classes together, bytes: 128 pieces of 128 KiB, or 4096 requests of 4 KiB.
pub const KEPT_BYTES_MAX: usize = 16 << 20;

/// Most [`Lent`] that a thread keeps for its next foreign buffers.
const LENT_MAX: usize = 4096;

/// Bytes of a payload: owned and page-aligned, or a part of foreign memory.
pub struct Buffer {
    start: NonNull<u8>,
    /// Owned: the capacity, bytes, which is even. Lent: the address of its [`Lent`] plus one.
    word: *mut Lent,
}

/// Length and lender of a foreign buffer or a part. Reused, so that a request takes no memory.
struct Lent {
    length_bytes: usize,
    lender: Lender,
}

/// Owner of the bytes of a lent buffer. Holding it keeps them.
enum Lender {
    /// No owner: kept for the next buffer.
    Nobody,
    Foreign(#[expect(dead_code, reason = "it is held, not looked at")] Arc<ForeignMemory>),
    Whole(Arc<Whole>),
    Pages {
        #[expect(dead_code, reason = "they are held, not looked at")]
        pages: Arc<Pages>,
        place: u16,
    },
}

impl Lent {
    fn place(&self) -> Option<u16> {
        match &self.lender {
            Lender::Pages { place, .. } => Some(*place),
            Lender::Whole(whole) => whole.0.as_ref()?.lender()?.place(),
            Lender::Foreign(_) | Lender::Nobody => None,
        }
    }
}

/// A buffer whose bytes were lent to parts: no code reaches them through it until all parts are gone.
#[derive(Debug, Default)]
pub(crate) struct Whole(Option<Buffer>);

// SAFETY: through a shared reference to a whole nothing can be done but ask its buffer whether it is foreign, which is
// constant while there are parts.
unsafe impl Sync for Whole {}

/// A buffer on its way into parts, which are taken off its front, so that no two of them share a byte.
#[derive(Debug)]
pub(crate) struct Cut {
    whole: Arc<Whole>,
    taken_bytes: usize,
}

impl Cut {
    /// Nothing taken off `buffer`. `spare` is memory for the whole, as [`Cut::mend`] gave it back, or new.
    pub(crate) fn new(buffer: Buffer, mut spare: Arc<Whole>) -> Cut {
        let place = Arc::get_mut(&mut spare).expect("what is spare is nobody's");
        debug_assert!(place.0.is_none(), "what is spare is empty");
        place.0 = Some(buffer);
        Cut { whole: spare, taken_bytes: 0 }
    }

    /// The next `length_bytes`, which must be left.
    ///
    /// # Panics
    /// If they are not.
    pub(crate) fn part(&mut self, length_bytes: usize) -> Buffer {
        let buffer = self.whole.0.as_ref().expect("a whole has its buffer while it is cut");
        let end_bytes = self.taken_bytes + length_bytes;
        assert!(end_bytes <= buffer.capacity_bytes(), "a part to {end_bytes} of {buffer:?}");
        // Inside, checked above; not `add`, because pages in the kernel have no bytes here.
        let start = buffer.start.as_ptr().wrapping_add(self.taken_bytes);
        let start = NonNull::new(start).expect("an address behind that of a buffer");
        self.taken_bytes = end_bytes;
        Buffer::lent(start, length_bytes, Lender::Whole(self.whole.clone()))
    }

    /// The whole buffer again, once every part of it is gone; and the memory for the next cut. `None`: a part is not,
    /// and the last one will free the bytes.
    pub(crate) fn mend(mut self) -> Option<(Buffer, Arc<Whole>)> {
        // This is the only reference, so no part is left, and none can come.
        let buffer = Arc::get_mut(&mut self.whole)?.0.take()?;
        Some((buffer, self.whole))
    }
}

// SAFETY: a Buffer owns its bytes alone, or may reach them by volatile accesses from any thread (`ForeignMemory` is
// Send and Sync); nothing about them is tied to the thread that made it.
unsafe impl Send for Buffer {}

/// Memory that a thread keeps for its next buffers, by class.
struct FreeBuffers {
    classes: [Vec<Buffer>; CLASSES],
    bytes: usize,
    #[expect(clippy::vec_box, reason = "a buffer holds the address of one, and takes it as it is")]
    lent: Vec<Box<Lent>>,
}

impl FreeBuffers {
    fn take(&mut self, class: usize) -> Option<Buffer> {
        let buffer = self.classes[class].pop()?;
        self.bytes -= buffer.capacity_bytes();
        Some(buffer)
    }

    /// Keeps it, or hands it back if there is too much already.
    fn keep(&mut self, class: usize, buffer: Buffer) -> Option<Buffer> {
        if self.bytes + buffer.capacity_bytes() > KEPT_BYTES_MAX {
            return Some(buffer);
        }
        self.bytes += buffer.capacity_bytes();
        self.classes[class].push(buffer);
        None
    }
}

thread_local! {
    static FREE_BUFFERS: RefCell<FreeBuffers> =
        const { RefCell::new(FreeBuffers { classes: [const { Vec::new() }; CLASSES], bytes: 0, lent: Vec::new() }) };
}

impl Buffer {
    /// A buffer of at least `length_bytes` (rounded up to a power of two, at least 4 KiB). Its bytes are initialised
    /// but arbitrary.
    pub fn new(length_bytes: usize) -> Buffer {
        let capacity_bytes = Self::capacity_for(length_bytes);
        let class = class_of(capacity_bytes);
        let kept = (class < CLASSES)
            .then(|| FREE_BUFFERS.try_with(|kept| kept.borrow_mut().take(class)).ok().flatten())
            .flatten();
        kept.unwrap_or_else(|| Self::allocate(capacity_bytes))
    }

    /// A part of `memory`, which is as long and begins at `start`: see [`ForeignMemory::buffer`].
    pub(crate) fn foreign(start: NonNull<u8>, length_bytes: usize, memory: Arc<ForeignMemory>) -> Buffer {
        Buffer::lent(start, length_bytes, Lender::Foreign(memory))
    }

    /// The first `length_bytes` of a request whose pages stay in the kernel, at the place `at` of `pages`.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn of_pages(pages: &Arc<Pages>, at: u16, length_bytes: usize) -> Buffer {
        let start = NonNull::new(pages::nowhere(0)).expect("it is not 0");
        Buffer::lent(start, length_bytes, Lender::Pages { pages: pages.clone(), place: pages.number(at) })
    }

    /// A buffer of `length_bytes` that begin at `start` and that `lender` keeps.
    fn lent(start: NonNull<u8>, length_bytes: usize, lender: Lender) -> Buffer {
        let kept = FREE_BUFFERS.try_with(|kept| kept.borrow_mut().lent.pop()).ok().flatten();
        let mut lent = kept.unwrap_or_else(|| Box::new(Lent { length_bytes, lender: Lender::Nobody }));
        (lent.length_bytes, lent.lender) = (length_bytes, lender);
        Buffer { start, word: Box::into_raw(lent).wrapping_byte_add(1) }
    }

    /// Memory that a buffer for `length_bytes` takes, bytes.
    pub fn memory_bytes(length_bytes: u32) -> u64 {
        Self::capacity_for(length_bytes as usize) as u64
    }

    fn capacity_for(length_bytes: usize) -> usize {
        length_bytes.max(ALIGNMENT_BYTES).next_power_of_two()
    }

    fn allocate(capacity_bytes: usize) -> Buffer {
        let layout = layout(capacity_bytes);
        // SAFETY: the layout's size is at least 4096, not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Buffer { start, word: std::ptr::without_provenance_mut(capacity_bytes) }
    }

    /// The lender, if the bytes have another owner.
    #[inline]
    fn lender(&self) -> Option<&Lent> {
        // SAFETY: the address of the Lent that `lent` put there, which this buffer alone has.
        (self.word.addr() & 1 != 0).then(|| unsafe { &*self.word.wrapping_byte_sub(1) })
    }

    /// True for a part of foreign memory: there is no slice of it, only its [`Buffer::room`].
    #[inline]
    pub fn is_foreign(&self) -> bool {
        self.lender().is_some_and(|lent| match &lent.lender {
            Lender::Whole(whole) => whole.0.as_ref().is_some_and(Buffer::is_foreign),
            Lender::Foreign(_) | Lender::Pages { .. } | Lender::Nobody => true,
        })
    }

    /// Place of the pages that stay in the kernel; their bytes cannot be reached by the buffer's address.
    #[inline]
    pub fn pages(&self) -> Option<PagesAt> {
        let place = self.lender()?.place()?;
        Some(PagesAt { place, at_bytes: pages::at_bytes(self.start.as_ptr()) })
    }

    /// All bytes of a buffer that is not foreign.
    ///
    /// # Panics
    /// If it is foreign; so does [`Buffer::as_mut_slice`]. Code that may meet foreign buffers uses [`Buffer::room`].
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` is valid for its capacity, initialised at allocation, and owned by self; no other code
        // reaches the bytes of a part (`Cut`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.owned_bytes()) }
    }

    /// All bytes of a buffer that is not foreign.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in as_slice; &mut self makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.owned_bytes()) }
    }

    /// The capacity of a buffer that is not foreign.
    #[inline]
    fn owned_bytes(&self) -> usize {
        assert!(!self.is_foreign(), "the bytes of foreign memory change at any time: there is no slice of them");
        self.capacity_bytes()
    }

    /// Room of the first `length_bytes`, for a device.
    ///
    /// # Panics
    /// If it has fewer, or they are not here ([`Buffer::pages`]).
    #[inline]
    pub fn room(&mut self, length_bytes: usize) -> BufferSlice<'_> {
        let capacity_bytes = self.capacity_bytes();
        assert!(length_bytes <= capacity_bytes, "{length_bytes} bytes of a buffer of {capacity_bytes}");
        assert!(self.pages().is_none(), "the bytes of {self:?} are in the kernel");
        // SAFETY: inside, checked above; owned bytes are borrowed with self, and foreign ones have no reference.
        unsafe { BufferSlice::new(self.start, length_bytes, self.is_foreign()) }
    }

    /// First byte, for system calls; stays where it is when the buffer is moved. Aligned to [`ALIGNMENT_BYTES`] unless
    /// the buffer is foreign or a part.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// As [`Buffer::as_ptr`].
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Capacity, bytes; of a foreign buffer or a part its length.
    #[inline]
    pub fn capacity_bytes(&self) -> usize {
        self.lender().map_or(self.word.addr(), |lent| lent.length_bytes)
    }

    /// The end of a lent buffer: its lender may go now.
    #[cold]
    fn give_back(&mut self) {
        // SAFETY: as in capacity_bytes; this is called once, by drop.
        let mut lent = unsafe { Box::from_raw(self.word.wrapping_byte_sub(1)) };
        // Not while the thread's memory is borrowed: it may run any code.
        drop(std::mem::replace(&mut lent.lender, Lender::Nobody));
        // A thread that ends keeps nothing.
        let _ = FREE_BUFFERS.try_with(|kept| {
            if let Ok(mut kept) = kept.try_borrow_mut()
                && kept.lent.len() < LENT_MAX
            {
                kept.lent.push(lent);
            }
        });
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let whose = if self.is_foreign() { "foreign " } else { "" };
        write!(f, "Buffer({whose}{} bytes)", self.capacity_bytes())
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        if self.word.addr() & 1 != 0 {
            return self.give_back();
        }
        let capacity_bytes = self.word.addr();
        let class = class_of(capacity_bytes);
        // Kept or not, this drop does not run again for it.
        let mut own = Some(ManuallyDrop::new(Buffer { start: self.start, word: self.word }));
        if class < CLASSES {
            let kept = FREE_BUFFERS.try_with(|kept| {
                let Ok(mut kept) = kept.try_borrow_mut() else { return };
                let Some(buffer) = own.take() else { return };
                own = kept.keep(class, ManuallyDrop::into_inner(buffer)).map(ManuallyDrop::new);
            });
            if kept.is_ok() && own.is_none() {
                return;
            }
        }
        // SAFETY: allocated by `allocate` with this very layout; not kept, so this is its end.
        unsafe { dealloc(self.start.as_ptr(), layout(capacity_bytes)) }
    }
}

fn class_of(capacity_bytes: usize) -> usize {
    (capacity_bytes / ALIGNMENT_BYTES).trailing_zeros() as usize
}

fn layout(capacity_bytes: usize) -> Layout {
    Layout::from_size_align(capacity_bytes, ALIGNMENT_BYTES).expect("a power of two of at least 4096 below isize::MAX")
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_large_enough() {
        for length_bytes in [0, 1, 4096, 4097, 1 << 20, (8 << 20) + 1] {
            let mut buffer = Buffer::new(length_bytes);
            assert!(buffer.capacity_bytes() >= length_bytes);
            assert_eq!(buffer.as_mut_ptr() as usize % ALIGNMENT_BYTES, 0);
        }
    }

    #[test]
    fn a_dropped_buffer_is_used_again() {
        let mut first = Buffer::new(5000);
        let address = first.as_mut_ptr();
        drop(first);
        assert_eq!(Buffer::new(8192).as_mut_ptr(), address);
    }

    #[test]
    fn a_foreign_buffer_has_its_length_and_no_slice_and_is_moved_like_another() {
        assert_eq!(size_of::<Option<Buffer>>(), 16);
        let (memory, pages) = crate::foreign::tests::memory(4096);
        let mut buffer = memory.buffer(8, 100).unwrap();
        assert_eq!((buffer.capacity_bytes(), buffer.is_foreign()), (100, true));
        assert_eq!(format!("{buffer:?}"), "Buffer(foreign 100 bytes)");
        assert!(buffer.room(100).as_mut_slice().is_none());
        std::thread::spawn(move || buffer.room(3).copy_from(b"abc")).join().unwrap();
        assert_eq!(crate::foreign::tests::bytes(&memory, 7, 5), b"\0abc\0");
        let buffer = memory.buffer(0, 1).unwrap();
        let slice = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buffer.as_slice().len()));
        assert!(slice.is_err(), "no slice of it");
        drop(memory);
        drop(buffer);
        assert_eq!(Arc::strong_count(&pages), 1, "it was unmapped");
    }

    #[test]
    fn parts_share_no_byte_and_the_whole_comes_back_when_all_are_gone() {
        let mut buffer = Buffer::new(12288);
        let (start, capacity_bytes) = (buffer.as_ptr(), buffer.capacity_bytes());
        buffer.as_mut_slice().fill(b'w');
        let mut cut = Cut::new(buffer, Arc::default());
        let mut parts = [4096, 8000].map(|length_bytes| cut.part(length_bytes));
        for (part, letter) in parts.iter_mut().zip(*b"ab") {
            part.as_mut_slice().fill(letter);
            part.room(4096).fill(letter.to_ascii_uppercase());
        }
        assert_eq!(parts[1].capacity_bytes(), 8000);
        let [first, second] = parts;
        drop(first);
        std::thread::spawn(move || drop(second)).join().unwrap();
        let (buffer, spare) = cut.mend().expect("no part is left");
        assert_eq!((buffer.as_ptr(), buffer.capacity_bytes()), (start, capacity_bytes));
        let expected = [vec![b'A'; 4096], vec![b'B'; 4096], vec![b'b'; 3904], vec![b'w'; 4288]].concat();
        assert!(buffer.as_slice() == expected, "each part wrote its own bytes");
        assert!(Cut::new(buffer, spare).mend().is_some(), "the memory of the whole is used again");
    }

    #[test]
    fn a_whole_that_is_given_up_lives_as_long_as_its_last_part() {
        let mut cut = Cut::new(Buffer::new(8192), Arc::default());
        let mut part = cut.part(4096);
        assert!(cut.mend().is_none(), "a part is left");
        part.as_mut_slice().fill(7);
        assert_eq!(part.as_slice(), [7; 4096]);
    }

    #[test]
    fn a_part_of_foreign_memory_has_no_slice() {
        let (memory, pages) = crate::foreign::tests::memory(8192);
        let mut cut = Cut::new(memory.buffer(0, 8192).unwrap(), Arc::default());
        let mut part = cut.part(4096);
        assert!(part.is_foreign() && part.room(8).as_mut_slice().is_none());
        drop((part, memory));
        drop(cut.mend().expect("no part is left"));
        assert_eq!(Arc::strong_count(&pages), 1, "it was unmapped");
    }

    #[test]
    #[should_panic(expected = "a part to 8193")]
    fn a_part_beyond_the_end_is_our_bug() {
        let mut cut = Cut::new(Buffer::new(8192), Arc::default());
        let _parts = [4096, 4097].map(|length_bytes| cut.part(length_bytes));
    }

    #[test]
    fn a_thread_keeps_no_more_than_its_share() {
        drop((0..20).map(|_| Buffer::new(2 << 20)).collect::<Vec<_>>());
        let kept = FREE_BUFFERS.with(|kept| kept.borrow().classes[class_of(2 << 20)].len());
        assert_eq!(kept, 8, "16 MiB / 2 MiB");
        drop(Buffer::new(4096));
        let small = FREE_BUFFERS.with(|kept| (kept.borrow().classes[0].len(), kept.borrow().bytes));
        assert_eq!(small, (0, 16 << 20), "all classes share what a thread keeps");
        drop(Buffer::new(2 << 20));
        assert_eq!(FREE_BUFFERS.with(|kept| kept.borrow().bytes), 16 << 20);
    }
}
