//! Payloads that stay in the kernel. Here memory of the test is registered in the place of a driver's pages: the kernel
//! then counts from its address and not from 0, so a buffer's part begins there.

use super::*;
use crate::buffer::Cut;
use crate::pages::{PLACES, Pages};
use std::ops::Range;

const READ_FIXED: u8 = 4;
const WRITE_FIXED: u8 = 5;

/// Memory that is registered with the ring of `hand` at a place, as if it were a request's pages.
struct Lent {
    pages: Arc<Pages>,
    bytes: Buffer,
}

impl Lent {
    fn new(hand: &Hand, bytes: &[u8]) -> Lent {
        let mut lent = Lent { pages: Pages::take(2, PLACES).unwrap(), bytes: Buffer::new(bytes.len()) };
        lent.bytes.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        let vector = libc::iovec { iov_base: lent.bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let place = lent.pages.number(0).into();
        let submitter = hand.uring.submitter();
        submitter.register_buffers_sparse(PLACES.into()).unwrap();
        // SAFETY: the bytes outlive the ring's operations, each of which the test waits for.
        unsafe { submitter.register_buffers_update(place, &[vector], None) }.unwrap();
        lent
    }

    /// The part of the place `at` that is registered as `range` of the bytes.
    fn buffer(&self, at: u16, range: Range<usize>) -> Buffer {
        let ahead = self.bytes.as_ptr().addr() + range.start;
        let mut cut = Cut::new(Buffer::of_pages(&self.pages, at, ahead + range.len()), Arc::default());
        cut.part(ahead);
        cut.part(range.len())
    }

    fn command(&self, op: Op, offset_bytes: u64, range: Range<usize>) -> Command {
        Command::new(Tag(0), op, offset_bytes, range.len() as u32, Some(self.buffer(0, range)))
    }
}

/// Length of an entry, and its offset in the pages.
fn said(pushed: &Pushed) -> (u32, u64) {
    // SAFETY: as in `Hand::pushed`: addr in 16..24, len in 24..28.
    let bytes: [u8; 64] = unsafe { std::mem::transmute_copy(&pushed.entry) };
    let addr = u64::from_ne_bytes(bytes[16..24].try_into().unwrap());
    (u32::from_ne_bytes(bytes[24..28].try_into().unwrap()), addr)
}

#[test]
fn bytes_move_between_the_pages_and_the_file_and_stable_writes_say_so() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ours: Vec<u8> = (0..16384u32).map(|at| (at / 512) as u8).collect();
    let devices = [direct_device(&folder, 65536), Some(buffered_device(&other, 65536))];
    for (device, path) in devices.into_iter().flatten() {
        let mut hand = Hand::new(&device, 1);
        let lent = Lent::new(&hand, &ours);
        for (fua, flags) in [(false, 0), (true, libc::RWF_DSYNC as u32)] {
            hand.submit(0, Command { fua, ..lent.command(Op::Write, 8192, 4096..12288) });
            let write = hand.one_pushed(WRITE_FIXED);
            assert_eq!(write.flags, flags);
            hand.carry_out(&write);
            assert_eq!(hand.reap_one(0).0, Status::Ok);
        }
        assert_eq!(bytes_at(&path, 4096, 4096), [0xaa; 4096]);
        assert_eq!(bytes_at(&path, 8192, 8192), ours[4096..12288]);
        assert_eq!(bytes_at(&path, 16384, 4096), [0xaa; 4096]);
        hand.submit(0, lent.command(Op::Read, 8192 + 4096, 0..4096));
        let read = hand.one_pushed(READ_FIXED);
        hand.carry_out(&read);
        let (status, buffer) = hand.reap_one(0);
        assert!(status == Status::Ok && buffer.unwrap().pages().is_some());
        assert_eq!(lent.bytes.as_slice()[..4096], ours[8192..12288]);
        assert_eq!(lent.bytes.as_slice()[4096..16384], ours[4096..], "nothing else of the pages");
        // A place without a request: an error, and no client's bytes.
        hand.submit(0, Command::new(Tag(0), Op::Read, 0, 4096, Some(lent.buffer(1, 0..4096))));
        let read = hand.one_pushed(READ_FIXED);
        hand.carry_out(&read);
        assert_eq!(hand.reap_one(0).0, Status::Io);
        // Behind the pages' end.
        hand.submit(0, lent.command(Op::Write, 0, 12288..20480));
        let write = hand.one_pushed(WRITE_FIXED);
        hand.carry_out(&write);
        assert_eq!(hand.reap_one(0).0, Status::Io);
        assert_eq!(bytes_at(&path, 0, 4096), [0xaa; 4096]);
    }
}

#[test]
fn a_transfer_that_ended_early_goes_on_where_it_stopped_and_one_that_cannot_fails() {
    let folder = tempfile::tempdir().unwrap();
    let (device, path) = buffered_device(&folder, 65536);
    let mut hand = Hand::new(&device, 1);
    let lent = Lent::new(&hand, &[7; 8192]);
    let address = lent.bytes.as_ptr().addr() as u64;
    for (op, opcode) in [(Op::Write, WRITE_FIXED), (Op::Read, READ_FIXED)] {
        hand.submit(0, lent.command(op, 4096, 0..8192));
        let first = hand.one_pushed(opcode);
        assert_eq!(said(&first), (8192, address));
        hand.answer(&first, 1000);
        let second = hand.one_pushed(opcode);
        assert_eq!(said(&second), (7192, address + 1000));
        hand.answer(&second, -libc::EAGAIN);
        let third = hand.one_pushed(opcode);
        assert_eq!(said(&third), (7192, address + 1000));
        hand.carry_out(&third);
        assert_eq!(hand.reap_one(0).0, Status::Ok);
    }
    assert_eq!(bytes_at(&path, 4096, 1000), [0xaa; 1000], "the test said that these were written");
    assert_eq!(bytes_at(&path, 5096, 7192), [7; 7192]);
    // The file ends in the middle of the read: no old bytes of the pages are reported as read.
    File::options().write(true).open(&path).unwrap().set_len(10000).unwrap();
    hand.submit(0, lent.command(Op::Read, 8192, 0..8192));
    hand.carry_out_all();
    assert_eq!(hand.reap_one(0).0, Status::Io);
    for errno in [libc::EFAULT, libc::EIO, libc::EINVAL] {
        hand.submit(0, lent.command(Op::Write, 0, 0..4096));
        let write = hand.one_pushed(WRITE_FIXED);
        hand.answer(&write, -errno);
        assert_eq!(hand.reap_one(0).0, status_of_errno(errno));
    }
}

#[test]
fn what_cannot_be_one_operation_on_the_pages_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut opened = open::open(&FileOptions::new(file_of(&folder, 1 << 20))).unwrap();
    opened.backing.align_bytes = 4096;
    let pages = Pages::take(1, PLACES).unwrap();
    let command = |op, offset_bytes, length_bytes, buffer| Command::new(Tag(0), op, offset_bytes, length_bytes, buffer);
    let of = |offset_bytes, length_bytes| {
        command(Op::Write, offset_bytes, length_bytes, Some(Buffer::of_pages(&pages, 0, 16384)))
    };
    let refused = |command: &Command| work::refusal(command, &opened.backing);
    assert_eq!(refused(&of(8192, 16384)), None);
    for (offset_bytes, length_bytes) in [(512, 4096), (0, 512), (0, 4097), (4096, 20480), ((1 << 20) - 4096, 8192)] {
        let context = format!("{length_bytes} at {offset_bytes}");
        assert_eq!(refused(&of(offset_bytes, length_bytes)), Some(Status::Invalid), "{context}");
    }
    let mut cut = Cut::new(Buffer::of_pages(&pages, 0, 16384), Arc::default());
    let (_, odd) = (cut.part(512), cut.part(4096));
    assert_eq!(refused(&command(Op::Read, 0, 4096, Some(odd))), Some(Status::Invalid), "not at a block of the pages");
}
