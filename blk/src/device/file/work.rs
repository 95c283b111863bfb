//! One command as a sequence of system calls: what to ask of the kernel next, as a function of what it answered.
//!
//! # Shape
//! At most one ring entry per command at a time; each arrow is an entry that ended well.
//! ```text
//!   Read    aligned      Transfer ─▶ end                       between the file and the caller's buffer
//!           not aligned  Transfer ─▶ copy ─▶ end               of the blocks around, into the bounce buffer
//!   Write   aligned      Transfer ─▶ end
//!           not aligned  PATCH ─▶ end
//!   Discard, WriteZeroes, PATCH of the bytes before the first whole block, with zeroes
//!   FastZeroes             ─▶ CLEAR of the whole blocks
//!                          ─▶ PATCH of the bytes after the last ─▶ Sync, if FUA ─▶ end
//!   Flush                Sync ─▶ end
//!
//!   Pages that stay in the kernel (pages.rs) are moved by Transfer alone: what is not aligned is refused.
//!
//!   A buffer in foreign memory that is not aligned to the block, past the page cache: as a span that is not
//!   aligned, except that no block is kept, so no block is read.
//!
//!   PATCH:  PatchHead ─▶ PatchTail ─▶ Transfer    read the first block if its start is kept, the last if its end is,
//!                                                 put the new bytes between, write all blocks
//!   CLEAR:  Punch ─▶ …            may release storage and the file system can
//!           ZeroRange ─▶ …        else, if the file system can
//!           Transfer, Transfer …  else zeroes are written, 256 KiB at a time; FastZeroes ends, unsupported
//! ```
//!
//! # Invariants
//! K1. An entry points only into the command's buffer or the bounce buffer, which this work owns until the entry ended.
//! K2. A transfer that ended early goes on where it stopped, at a whole block. A read that ends inside a block, or with
//!     nothing, has met the end of the file. Before the device's end that is an error, because the file had its full
//!     size when it was opened; behind it are only the rest of a block and no client's bytes, which are zeroes (F4).
//! K3. A work with a patch that reads holds its regions alone, one that only writes shares them ([`super::gate`]).

use super::backing::{Backing, TRANSFER_BYTES_MAX};
use super::gate::Hold;
use crate::buffer::Buffer;
use crate::device::Command;
use crate::pages;
use crate::request::{Op, Status};
use io_uring::{opcode, squeue, types};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;

/// Zeroes written at a time, bytes: large enough to be fast, small enough to hold per command.
const ZEROES_BYTES: u64 = 256 << 10;

/// EINTR and EAGAIN in a row before a command fails: a kernel without memory may say so a few times, not for ever.
const RETRIES_MAX: u8 = 100;

/// The next step.
pub(super) enum Next {
    /// Put this on the ring.
    Entry(squeue::Entry),
    /// The command ended.
    End(Status),
}

/// Operation of the entry on the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// No operation of this command was in the ring yet.
    Waiting,
    /// The command's own bytes: read, write, write of a patch, or write of zeroes.
    Transfer,
    PatchHead,
    PatchTail,
    Punch,
    ZeroRange,
    Sync,
}

/// A read or write, and how far it came.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    is_write: bool,
    offset_bytes: u64,
    memory: *mut u8,
    length_bytes: u32,
    done_bytes: u32,
}

const NO_TRANSFER: Transfer =
    Transfer { is_write: false, offset_bytes: 0, memory: std::ptr::null_mut(), length_bytes: 0, done_bytes: 0 };

/// Reason why a command is refused before it begins; the ring does not support a question for extents. The layers above
/// have validated it; a mistake of theirs must not reach the kernel as a pointer.
pub(super) fn refusal(command: &Command, backing: &Backing) -> Option<Status> {
    let Command { op, offset_bytes, length_bytes, .. } = *command;
    let size_bytes = backing.watch.size_bytes();
    let is_inside = offset_bytes.checked_add(u64::from(length_bytes)).is_some_and(|end| end <= size_bytes);
    let is_kernel = |buffer: &Buffer| buffer.pages().is_some();
    let has_buffer = match op {
        // An operation names one place, and its bytes cannot be put beside others.
        Op::Read | Op::Write if command.buffer.as_ref().is_some_and(is_kernel) => {
            let align_bytes = u64::from(backing.align_bytes);
            let at_bytes = command.buffer.as_ref().and_then(Buffer::pages).map_or(0, |pages| pages.at_bytes as u64);
            let capacity_bytes = command.buffer.as_ref().map_or(0, Buffer::capacity_bytes);
            (offset_bytes | u64::from(length_bytes) | at_bytes).is_multiple_of(align_bytes)
                && length_bytes as usize <= capacity_bytes
                && length_bytes <= TRANSFER_BYTES_MAX
        }
        Op::Read | Op::Write => {
            let capacity_bytes = command.buffer.as_ref().map_or(0, Buffer::capacity_bytes);
            length_bytes <= TRANSFER_BYTES_MAX && length_bytes as usize <= capacity_bytes
        }
        Op::Extents if is_inside && command.buffer.as_ref().is_some_and(|buffer| !buffer.is_foreign()) => {
            return Some(Status::Unsupported);
        }
        Op::Extents => false,
        Op::Flush | Op::Discard | Op::WriteZeroes { .. } | Op::FastZeroes { .. } => true,
    };
    (!is_inside || !has_buffer).then_some(Status::Invalid)
}

/// Name of the file in entries: its descriptor, or its place among the ring's registered files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    number: i32,
    flags: squeue::Flags,
}

impl Target {
    /// Name of the file on this queue's ring.
    pub(super) fn new(backing: &Backing, registered: Option<u32>) -> Target {
        let thread = if backing.may_sleep { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        match registered {
            Some(place) => Target { number: place as i32, flags: squeue::Flags::FIXED_FILE | thread },
            None => Target { number: backing.file.as_raw_fd(), flags: thread },
        }
    }

    /// Its place among the registered files.
    pub(super) fn registered(self) -> Option<u32> {
        self.flags.contains(squeue::Flags::FIXED_FILE).then_some(self.number as u32)
    }
}

/// A command on its way.
pub(super) struct Work {
    pub(super) command: Command,
    /// Its regions at the gate; `None` if it needs none.
    pub(super) hold: Option<Hold>,
    /// An entry is with the kernel, or on its way there.
    pub(super) is_on_ring: bool,
    /// No further step begins.
    pub(super) is_aborted: bool,
    target: Target,
    stage: Stage,
    /// Number of the backing that `command` is for; its offset is within that one.
    pub(super) backing: u16,
    transfer: Transfer,
    /// Place of the command's pages, if they stay in the kernel: then `transfer` has no address of ours.
    place: Option<u16>,
    bounce: Option<Buffer>,
    /// Bytes of the file that the current patch replaces.
    patch: Range<u64>,
    /// Bytes still to be cleared, and (`tail`) to be patched with zeroes after them.
    clear: Range<u64>,
    tail: Range<u64>,
    retries: u8,
    /// A write and its sync together were told that there is no space: the write is made again alone, which tells whose
    /// answer that was. If it has space, pages were lost for want of it, and the kernel will not report them again.
    is_unsure: bool,
}

impl Work {
    /// `command` has passed [`refusal`], for the backing of this number.
    pub(super) fn new(command: Command, number: u16, backing: &Backing, target: Target) -> Work {
        let place = command.buffer.as_ref().and_then(Buffer::pages).map(|pages| pages.place);
        let mut work = Work {
            command,
            hold: None,
            is_on_ring: false,
            is_aborted: false,
            target,
            stage: Stage::Waiting,
            backing: number,
            transfer: NO_TRANSFER,
            place,
            bounce: None,
            patch: 0..0,
            clear: 0..0,
            tail: 0..0,
            retries: 0,
            is_unsure: false,
        };
        let Command { op, offset_bytes, length_bytes, .. } = work.command;
        if op != Op::Read && op != Op::Flush && length_bytes > 0 {
            let is_aligned = work.is_aligned(backing);
            work.hold = backing.gate.as_ref().map(|gate| gate.hold(offset_bytes, length_bytes, !is_aligned));
        }
        work
    }

    fn is_aligned(&self, backing: &Backing) -> bool {
        let Command { offset_bytes, length_bytes, .. } = self.command;
        (offset_bytes | u64::from(length_bytes)).is_multiple_of(u64::from(backing.align_bytes))
    }

    /// The kernel can move the command's bytes where they are. An owned buffer is aligned for every drive; a foreign
    /// one or a part need not be.
    fn memory_is_aligned(&self, backing: &Backing) -> bool {
        let is_aligned = |buffer: &Buffer| buffer.as_ptr().addr().is_multiple_of(backing.align_bytes as usize);
        self.command.buffer.iter().all(is_aligned)
    }

    fn span(&self) -> Range<u64> {
        self.command.offset_bytes..self.command.offset_bytes + u64::from(self.command.length_bytes)
    }

    /// The first step, once the gate let us in.
    pub(super) fn start(&mut self, backing: &Backing) -> Next {
        if self.is_to_be_stable() && backing.has_lost_writes() {
            return Next::End(Status::Io);
        }
        if backing.hanging.is_some() {
            return Next::End(Status::TimedOut);
        }
        if backing.refuses(self.command.op) || self.span().end > backing.watch.ends_at_bytes() {
            return Next::End(Status::Io);
        }
        match self.command.op {
            Op::Flush => self.sync(),
            _ if self.command.length_bytes == 0 => Next::End(Status::Ok),
            Op::Read => self.start_read(backing),
            Op::Write if self.is_aligned(backing) && self.memory_is_aligned(backing) => {
                let memory = self.memory();
                self.transfer(true, self.span(), memory)
            }
            Op::Write => self.start_patch(backing, self.span()),
            Op::Extents => unreachable!("refused before"),
            Op::Discard | Op::WriteZeroes { .. } | Op::FastZeroes { .. } => {
                let span = self.span();
                let align_bytes = u64::from(backing.clear_align_bytes);
                // If no whole block lies inside, everything is before the first or after the last.
                let start = span.start.next_multiple_of(align_bytes).min(span.end);
                let end = round_down(span.end, align_bytes).max(start);
                (self.clear, self.tail) = (start..end, end..span.end);
                // Nothing may change before the kernel has said that it is fast.
                if self.is_fast() && (span.start < start || self.clear.is_empty()) {
                    return Next::End(Status::Unsupported);
                }
                if span.start < start { self.start_patch(backing, span.start..start) } else { self.zero_next(backing) }
            }
        }
    }

    fn is_fast(&self) -> bool {
        matches!(self.command.op, Op::FastZeroes { .. })
    }

    /// It may end well only if the bytes that it covers survive a loss of power.
    pub(super) fn is_to_be_stable(&self) -> bool {
        self.command.fua || self.command.op == Op::Flush
    }

    /// Through the page cache, a write and a sync of it in one step.
    fn is_synced_write(&self, backing: &Backing) -> bool {
        backing.align_bytes == 1 && self.command.fua && self.command.op == Op::Write && !self.is_unsure
    }

    /// The entry on the ring ended with `result`.
    pub(super) fn ended(&mut self, backing: &Backing, result: i32) -> Next {
        match self.step_ended(backing, result) {
            // Linux tells one of two syncs that overlap of a lost page, and the other that all is well (`syncs.rs`). Or
            // the file was cut meanwhile.
            Next::End(Status::Ok) if self.is_to_be_stable() && backing.has_lost_writes() => Next::End(Status::Io),
            next => next,
        }
    }

    fn step_ended(&mut self, backing: &Backing, result: i32) -> Next {
        if self.is_aborted && [-libc::ECANCELED, -libc::EINTR, -libc::EAGAIN].contains(&result) {
            return Next::End(Status::TimedOut);
        }
        if result == -libc::EINTR || result == -libc::EAGAIN {
            self.retries += 1;
            if self.retries > RETRIES_MAX {
                return Next::End(Status::Io);
            }
            return Next::Entry(self.entry());
        }
        self.retries = 0;
        if result == -libc::ENODEV || result == -libc::ENXIO {
            // The drive was pulled out, or its driver has given it up.
            backing.note_failed();
        }
        match self.stage {
            Stage::Transfer | Stage::PatchHead | Stage::PatchTail => match self.transferred(backing, result) {
                None => self.transfer_done(backing),
                Some(next) => next,
            },
            Stage::Punch | Stage::ZeroRange => self.cleared(backing, result),
            Stage::Sync if result < 0 => {
                self.note_lost_writes(backing);
                Next::End(backing.status_of(-result))
            }
            Stage::Sync => Next::End(Status::Ok),
            Stage::Waiting => unreachable!("{:?} has nothing on the ring", self.command.tag),
        }
    }

    /// The ring entry of the current stage.
    fn entry(&mut self) -> squeue::Entry {
        let file = types::Fd(self.target.number);
        let clear = self.clear.clone();
        let fallocate =
            |mode: i32| opcode::Fallocate::new(file, clear.end - clear.start).offset(clear.start).mode(mode).build();
        let entry = match self.stage {
            Stage::Punch => fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE),
            Stage::ZeroRange => fallocate(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE),
            Stage::Sync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            Stage::Transfer | Stage::PatchHead | Stage::PatchTail => {
                let Transfer { is_write, offset_bytes, memory, length_bytes, done_bytes } = self.transfer;
                let memory = memory.wrapping_add(done_bytes as usize);
                let (offset_bytes, left_bytes) = (offset_bytes + u64::from(done_bytes), length_bytes - done_bytes);
                if let Some(place) = self.place {
                    self.fixed_entry(place, offset_bytes, memory, left_bytes)
                } else if is_write {
                    // Zeroes are followed by a sync of their own, once for all pieces.
                    let is_stable = self.command.fua && self.command.op == Op::Write && !self.is_unsure;
                    let flags = if is_stable { libc::RWF_DSYNC } else { 0 };
                    opcode::Write::new(file, memory, left_bytes).offset(offset_bytes).rw_flags(flags).build()
                } else {
                    opcode::Read::new(file, memory, left_bytes).offset(offset_bytes).build()
                }
            }
            Stage::Waiting => unreachable!("{:?} has no step to ask for", self.command.tag),
        };
        entry.flags(self.target.flags)
    }

    /// A transfer between the file and pages that stay in the kernel; the address is how far into them it begins.
    fn fixed_entry(&self, place: u16, offset_bytes: u64, memory: *mut u8, left_bytes: u32) -> squeue::Entry {
        let (file, at) = (types::Fd(self.target.number), pages::at_bytes(memory));
        let at = std::ptr::without_provenance_mut(at);
        if self.transfer.is_write {
            let flags = if self.command.fua { libc::RWF_DSYNC } else { 0 };
            opcode::WriteFixed::new(file, at, left_bytes, place).offset(offset_bytes).rw_flags(flags).build()
        } else {
            opcode::ReadFixed::new(file, at, left_bytes, place).offset(offset_bytes).build()
        }
    }

    /// Where an aligned transfer goes: the command's buffer.
    fn memory(&mut self) -> *mut u8 {
        self.command.buffer.as_mut().expect("checked by refusal").as_mut_ptr()
    }

    fn step(&mut self, stage: Stage) -> Next {
        self.stage = stage;
        Next::Entry(self.entry())
    }

    fn sync(&mut self) -> Next {
        self.step(Stage::Sync)
    }

    fn transfer(&mut self, is_write: bool, span: Range<u64>, memory: *mut u8) -> Next {
        self.set_transfer(is_write, span, memory);
        self.step(Stage::Transfer)
    }

    fn set_transfer(&mut self, is_write: bool, span: Range<u64>, memory: *mut u8) {
        let length_bytes = (span.end - span.start) as u32;
        self.transfer = Transfer { is_write, offset_bytes: span.start, memory, length_bytes, done_bytes: 0 };
    }

    /// Takes note of how far the transfer came. `None`: all the way.
    fn transferred(&mut self, backing: &Backing, result: i32) -> Option<Next> {
        let Transfer { is_write, offset_bytes, memory, length_bytes, done_bytes: before } = self.transfer;
        let Ok(moved) = u32::try_from(result) else {
            let status = backing.status_of(-result);
            // A write that must be stable also reports pages that were lost before it, or by it.
            if is_write && self.command.fua && status == Status::Io {
                self.note_lost_writes(backing);
            }
            if is_write && self.is_synced_write(backing) && [libc::ENOSPC, libc::EDQUOT].contains(&-result) {
                self.is_unsure = true;
                return Some(Next::Entry(self.entry()));
            }
            return Some(Next::End(status));
        };
        if self.is_unsure && moved > 0 {
            self.note_lost_writes(backing);
            return Some(Next::End(Status::NoSpace));
        }
        let reached = before + moved;
        if reached >= length_bytes {
            return None;
        }
        // A drive moves whole blocks; the page cache any number of bytes (align 1).
        let whole = reached / backing.align_bytes * backing.align_bytes;
        self.transfer.done_bytes = whole;
        if is_write && whole > before || !is_write && moved > 0 && whole == reached {
            return Some(Next::Entry(self.entry()));
        }
        if is_write {
            return Some(Next::End(Status::Io));
        }
        let ends_at_bytes = offset_bytes + u64::from(reached);
        if ends_at_bytes < backing.watch.size_bytes() {
            backing.note_cut(ends_at_bytes);
            return Some(Next::End(Status::Io));
        }
        if self.place.is_some() {
            // It lies inside the device and is aligned (`refusal`), so it cannot end behind the device's end.
            return Some(Next::End(Status::Io));
        }
        let rest = (length_bytes - reached) as usize;
        // SAFETY: memory has room for length_bytes (start_read, start_patch; not of a command with several buffers,
        // which lies inside the device and so has ended above), of which `reached` are read; the entry ended, so the
        // kernel no longer touches it.
        unsafe { memory.wrapping_add(reached as usize).write_bytes(0, rest) };
        None
    }

    fn transfer_done(&mut self, backing: &Backing) -> Next {
        match (self.stage, self.command.op) {
            (Stage::PatchHead, _) => self.patch_tail(backing),
            (Stage::PatchTail, _) => self.patch_write(backing),
            (_, Op::Read) => {
                self.copy_out();
                Next::End(Status::Ok)
            }
            (_, Op::Write) => Next::End(Status::Ok),
            _ => {
                // Zeroes: of a patch before the whole blocks, of the whole blocks, or of the patch after them.
                let reached = self.transfer.offset_bytes + u64::from(self.transfer.length_bytes);
                self.clear.start = self.clear.start.max(reached.min(self.clear.end));
                self.tail.start = self.tail.start.max(reached.min(self.tail.end));
                self.zero_next(backing)
            }
        }
    }

    // Reads that are not aligned.

    fn start_read(&mut self, backing: &Backing) -> Next {
        let memory_is_aligned = self.memory_is_aligned(backing);
        let align_bytes = u64::from(backing.align_bytes);
        let cover = round_out(self.span(), align_bytes);
        let buffer = self.command.buffer.as_mut().expect("checked by refusal");
        // A start on a block's start needs no detour if there is room for the rest of the last block behind it.
        // Behind the bytes of a foreign one nothing is ours, even if it is longer.
        let room_bytes = if buffer.is_foreign() { self.command.length_bytes as usize } else { buffer.capacity_bytes() };
        let fits = memory_is_aligned
            && cover.start == self.command.offset_bytes
            && cover.end - cover.start <= room_bytes as u64;
        let memory = if fits {
            buffer.as_mut_ptr()
        } else {
            self.bounce.insert(Buffer::new((cover.end - cover.start) as usize)).as_mut_ptr()
        };
        self.transfer(false, cover, memory)
    }

    fn copy_out(&mut self) {
        let Work { bounce: Some(bounce), command, transfer, .. } = self else { return };
        let start_bytes = transfer.offset_bytes;
        let (skip, length) = ((command.offset_bytes - start_bytes) as usize, command.length_bytes as usize);
        command.room().copy_from(&bounce.as_slice()[skip..skip + length]);
    }

    // A patch: some bytes of whole blocks are replaced, the others kept.

    fn start_patch(&mut self, backing: &Backing, patch: Range<u64>) -> Next {
        let align_bytes = u64::from(backing.align_bytes);
        let cover = round_out(patch.clone(), align_bytes);
        let bounce = self.bounce.insert(Buffer::new((cover.end - cover.start) as usize));
        let memory = bounce.as_mut_ptr();
        let keeps_start = !patch.start.is_multiple_of(align_bytes);
        let keeps_end_of_only_block = !patch.end.is_multiple_of(align_bytes) && cover.end - cover.start == align_bytes;
        self.patch = patch;
        if keeps_start || keeps_end_of_only_block {
            self.set_transfer(false, cover.start..cover.start + align_bytes, memory);
            return self.step(Stage::PatchHead);
        }
        self.patch_tail(backing)
    }

    fn patch_tail(&mut self, backing: &Backing) -> Next {
        let align_bytes = u64::from(backing.align_bytes);
        let cover = round_out(self.patch.clone(), align_bytes);
        if self.patch.end.is_multiple_of(align_bytes) || cover.end - cover.start == align_bytes {
            return self.patch_write(backing);
        }
        let last = cover.end - align_bytes;
        let bounce = self.bounce.as_mut().expect("a patch has its blocks there");
        let memory = bounce.as_mut_slice()[(last - cover.start) as usize..].as_mut_ptr();
        self.set_transfer(false, last..cover.end, memory);
        self.step(Stage::PatchTail)
    }

    fn patch_write(&mut self, backing: &Backing) -> Next {
        let cover = round_out(self.patch.clone(), u64::from(backing.align_bytes));
        let Work { bounce, command, patch, .. } = self;
        let bounce = bounce.as_mut().expect("a patch has its blocks there");
        if command.op == Op::Write {
            let (within, length) = ((command.offset_bytes - cover.start) as usize, command.length_bytes as usize);
            command.room().copy_to(&mut bounce.as_mut_slice()[within..within + length]);
        } else {
            let within = (patch.start - cover.start) as usize..(patch.end - cover.start) as usize;
            bounce.as_mut_slice()[within].fill(0);
        }
        let memory = bounce.as_mut_ptr();
        self.transfer(true, cover, memory)
    }

    // Zeroes.

    /// The next piece of a discard or of zeroes.
    fn zero_next(&mut self, backing: &Backing) -> Next {
        if !self.clear.is_empty() {
            return self.clear(backing);
        }
        if !self.tail.is_empty() {
            return self.start_patch(backing, self.tail.clone());
        }
        if self.command.fua { self.sync() } else { Next::End(Status::Ok) }
    }

    fn clear(&mut self, backing: &Backing) -> Next {
        let may_unmap = matches!(
            self.command.op,
            Op::Discard | Op::WriteZeroes { may_unmap: true } | Op::FastZeroes { may_unmap: true }
        );
        // Relaxed, both: hints, see `Backing`.
        if may_unmap && !backing.punch_unsupported.load(Relaxed) {
            return self.step(Stage::Punch);
        }
        let may_zero_range = !self.is_fast() || !backing.zero_range_may_write;
        if may_zero_range && !backing.zero_range_unsupported.load(Relaxed) {
            return self.step(Stage::ZeroRange);
        }
        if self.is_fast() {
            return Next::End(Status::Unsupported);
        }
        let length_bytes = ZEROES_BYTES.max(u64::from(backing.align_bytes)).min(self.clear.end - self.clear.start);
        let mut zeroes = Buffer::new(length_bytes as usize);
        zeroes.as_mut_slice()[..length_bytes as usize].fill(0);
        let memory = self.bounce.insert(zeroes).as_mut_ptr();
        self.transfer(true, self.clear.start..self.clear.start + length_bytes, memory)
    }

    fn cleared(&mut self, backing: &Backing, result: i32) -> Next {
        let unsupported =
            if self.stage == Stage::Punch { &backing.punch_unsupported } else { &backing.zero_range_unsupported };
        match -result {
            ..=0 => {
                self.clear.start = self.clear.end;
                self.zero_next(backing)
            }
            libc::EOPNOTSUPP | libc::ENOSYS => {
                // Relaxed: a hint, see `Backing`.
                unsupported.store(true, Relaxed);
                self.clear(backing)
            }
            errno => Next::End(backing.status_of(errno)),
        }
    }

    /// The page cache reports a write that it lost to one caller, once, and then takes the page for clean: a later
    /// flush would end well and be a lie. (A drive keeps its cache after a failed flush, so there the next may
    /// succeed.)
    fn note_lost_writes(&self, backing: &Backing) {
        if backing.align_bytes == 1 {
            backing.note_lost_writes();
        }
    }
}

fn round_down(value: u64, align: u64) -> u64 {
    value / align * align
}

fn round_out(span: Range<u64>, align: u64) -> Range<u64> {
    round_down(span.start, align)..span.end.next_multiple_of(align)
}
