//! Destaging: one flush or FUA write of the volatile cache, as commands to the inner device: write the cached bytes,
//! then flush.

use super::cache::Cache;
use super::extent::{Payload, Piece};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::{Command, DeviceInfo};
use mqfq_blk::request::{Op, Status};
use mqfq_blk::tag::Tag;
use std::collections::VecDeque;
use std::ops::Range;

/// Commands to the inner device at once.
pub(super) const TAGS: u16 = 8;

/// Longest write of zeroes at once, bytes: a multiple of every block.
const ZEROES_BYTES_MAX: u64 = 1 << 30;

/// A destage under way; it has the device's turn (V2).
pub(super) struct Destage {
    /// Bytes of the device that it covers.
    span: Range<u64>,
    seq: u64,
    /// Power cuts when it began.
    epoch: u64,
    left: VecDeque<Piece>,
    free: Vec<u16>,
    first_tag: u16,
    has_flushed: bool,
    status: Status,
}

impl Destage {
    /// Tags `first_tag..first_tag + TAGS` of the inner queue are its own.
    pub(super) fn new(cache: &Cache, span: Range<u64>, epoch: u64, first_tag: u16, info: &DeviceInfo) -> Destage {
        let (pieces, seq) = cache.destage_begins(&span);
        let left = pieces.into_iter().flat_map(|piece| cut(piece, u64::from(info.transfer_bytes_max))).collect();
        let free = (first_tag..first_tag + TAGS).collect();
        Destage { span, seq, epoch, left, free, first_tag, has_flushed: false, status: Status::Ok }
    }

    pub(super) fn owns(&self, tag: Tag) -> bool {
        (self.first_tag..self.first_tag + TAGS).contains(&tag.0)
    }

    /// The next command for the inner device, if one can go now. `epoch`: power cuts so far; after one of them, or
    /// after an error, no more is written.
    pub(super) fn next(&mut self, epoch: u64) -> Option<Command> {
        if self.epoch != epoch {
            self.status = Status::Io;
        }
        if self.status != Status::Ok {
            self.left.clear();
            self.has_flushed = true;
        }
        let is_idle = self.free.len() == TAGS as usize;
        if let Some(piece) = self.left.pop_front_if(|_| !self.free.is_empty()) {
            return Some(write(piece, Tag(self.free.pop().expect("checked"))));
        }
        if self.left.is_empty() && is_idle && !self.has_flushed {
            self.has_flushed = true;
            let tag = Tag(self.free.pop().expect("idle: all are free"));
            return Some(Command::new(tag, Op::Flush, 0, 0, None));
        }
        None
    }

    /// One of its commands ended.
    pub(super) fn ended(&mut self, tag: Tag, status: Status) {
        self.free.push(tag.0);
        if status != Status::Ok && self.status == Status::Ok {
            self.status = status;
        }
    }

    /// Its status, once it has ended.
    pub(super) fn end(&mut self, cache: &mut Cache, epoch: u64) -> Option<Status> {
        if self.free.len() < TAGS as usize || !self.left.is_empty() || !self.has_flushed {
            return None;
        }
        if self.epoch != epoch {
            return Some(Status::Io);
        }
        if self.status == Status::Ok {
            cache.destage_ended(&self.span, self.seq);
        }
        Some(self.status)
    }
}

fn write(piece: Piece, tag: Tag) -> Command {
    let length_bytes = (piece.span.end - piece.span.start) as u32;
    let (op, buffer) = match piece.payload {
        Payload::Zeroes => (Op::WriteZeroes { may_unmap: true }, None),
        payload @ Payload::Bytes { .. } => {
            let mut buffer = Buffer::new(length_bytes as usize);
            payload.copy_to(&mut buffer.as_mut_slice()[..length_bytes as usize]);
            (Op::Write, Some(buffer))
        }
    };
    Command::new(tag, op, piece.span.start, length_bytes, buffer)
}

/// `piece` in lengths that one command may have.
fn cut(piece: Piece, transfer_bytes_max: u64) -> Vec<Piece> {
    let step = if matches!(piece.payload, Payload::Zeroes) { ZEROES_BYTES_MAX } else { transfer_bytes_max };
    let Range { start, end } = piece.span;
    (start..end).step_by(step as usize).map(|from| piece.clipped(&(from..(from + step).min(end)))).collect()
}
