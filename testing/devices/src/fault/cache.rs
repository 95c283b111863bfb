//! A volatile write cache in front of the inner device, its state after a power cut, and below its destaging.
//!
//! # Shape
//! ```text
//!   read    =  inner device  ◀ covered by ◀  kept  ◀ covered by ◀  cached
//!
//!   write   ─▶ cached          acknowledged at once; lost by a power cut, or not, sector by sector
//!   cut     ─▶ some of cached moves to kept, the rest is gone      (a drive may have written any part of it by then)
//!   destage ─▶ kept and cached are written to the inner device, which is flushed; then they are dropped here
//! ```
//!
//! # Invariants
//! V1. Bytes that a destage covered which ended well are on the inner device: no cut takes them back.
//! V2. One destage at a time on the device. Two could each write an older and a newer version of the same bytes, in
//!     either order, after which the newer is dropped here.
//! V3. A piece written while a destage is under way has a larger `seq` than the destage and is not dropped by its end.

use super::extent::{ExtentMap, Payload, Piece};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::{Command, DeviceInfo};
use mqfq_blk::random::Random;
use mqfq_blk::request::{Op, Status};
use mqfq_blk::tag::Tag;
use std::collections::VecDeque;
use std::ops::Range;

/// Smallest sector, bytes.
pub(super) const SECTOR_BYTES: u64 = 512;

/// Longest piece whose sectors a cut tosses a coin for one by one, bytes; longer ones are only cut in two.
const COINS_BYTES_MAX: u64 = 1 << 20;

/// The writes that a volatile cache holds (`cached`), and those that a power cut has left of it (`kept`).
#[derive(Default, Debug)]
pub(super) struct Cache {
    cached: ExtentMap,
    kept: ExtentMap,
    seq: u64,
}

impl Cache {
    pub(super) fn write(&mut self, span: Range<u64>, payload: Payload) {
        self.seq += 1;
        self.cached.insert(Piece { span, seq: self.seq, payload });
    }

    /// Pieces that cover `span` of the inner device, in the order to lay them over it.
    pub(super) fn cover(&self, span: &Range<u64>) -> Vec<Piece> {
        let mut pieces = self.kept.within(span);
        pieces.extend(self.cached.within(span));
        pieces
    }

    /// Pieces that a destage of `span` must write, without overlaps, and the `seq` to report at its end.
    pub(super) fn destage_begins(&self, span: &Range<u64>) -> (Vec<Piece>, u64) {
        let mut merged = ExtentMap::default();
        self.cover(span).into_iter().for_each(|piece| merged.insert(piece));
        (merged.take().collect(), self.seq)
    }

    /// The inner device has stored what [`Cache::destage_begins`] answered.
    pub(super) fn destage_ended(&mut self, span: &Range<u64>, seq: u64) {
        self.kept.remove(span, seq);
        self.cached.remove(span, seq);
    }

    /// Loses the cached bytes, except for those that chance had already brought to the medium, in units of
    /// `sector_bytes`.
    pub(super) fn cut(&mut self, random: &mut Random, sector_bytes: u64) {
        for piece in self.cached.take() {
            let Range { start, end } = piece.span;
            let middle = start + random.below(end - start + 1);
            let middle = (middle / sector_bytes * sector_bytes).max(start);
            let one = |survivor: Range<u64>| std::iter::once(survivor).collect();
            let survivors: Vec<Range<u64>> = match random.below(4) {
                0 => Vec::new(),
                1 => one(start..end),
                2 if end - start <= COINS_BYTES_MAX => {
                    sectors(start..end, sector_bytes).filter(|_| random.chance(32768)).collect()
                }
                2 => one(middle..end),
                _ => one(start..middle),
            };
            let mut whole = ExtentMap::default();
            whole.insert(piece);
            for span in survivors {
                whole.within(&span).into_iter().for_each(|survivor| self.kept.insert(survivor));
            }
        }
    }

    /// A reader sees these bytes at `offset_bytes`, and a cut may lose them.
    pub(super) fn may_lose(&self, offset_bytes: u64, bytes: &[u8]) -> bool {
        let mut left = bytes;
        let mut room = Vec::new();
        for Piece { span, payload, .. } in self.cached.within(&(offset_bytes..offset_bytes + bytes.len() as u64)) {
            let Some((here, rest)) = left.split_at_checked((span.end - span.start) as usize) else { return false };
            room.resize(here.len(), 0);
            payload.copy_to(&mut room);
            if room != here {
                return false;
            }
            left = rest;
        }
        left.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cached.is_empty() && self.kept.is_empty()
    }
}

/// `span` cut at multiples of the sector.
fn sectors(span: Range<u64>, sector_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let end = span.end;
    let cut = move |start: u64| (start / sector_bytes + 1) * sector_bytes;
    std::iter::successors(Some(span.start), move |&start| Some(cut(start)).filter(|&next| next < end))
        .map(move |start| start..cut(start).min(end))
}

// Destaging: one flush or FUA write of the volatile cache, as commands to the inner device: write the cached bytes,
// then flush.

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

#[cfg(test)]
mod tests {
    use super::*;

    /// The 4 KiB block 0 as a reader sees it over an inner device full of '.'.
    fn look(cache: &Cache) -> Vec<u8> {
        let mut room = vec![b'.'; 4096];
        for piece in cache.cover(&(0..4096)) {
            piece.payload.copy_to(&mut room[piece.span.start as usize..piece.span.end as usize]);
        }
        room
    }

    #[test]
    fn a_cut_keeps_or_loses_whole_sectors_and_over_many_seeds_does_both() {
        let (mut lost, mut kept, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let mut cache = Cache::default();
            cache.write(0..4096, Payload::bytes(&[b'a'; 4096]));
            cache.cut(&mut Random::new(seed), 512);
            let block = look(&cache);
            let sectors: Vec<&[u8]> = block.chunks(512).collect();
            assert!(sectors.iter().all(|sector| sector.iter().all(|byte| *byte == sector[0])), "seed {seed}");
            match sectors.iter().filter(|sector| sector[0] == b'a').count() {
                0 => lost += 1,
                8 => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(lost > 0 && kept > 0 && torn > 0, "lost {lost}, kept {kept}, torn {torn}");
    }

    #[test]
    fn what_one_cut_kept_the_next_does_not_lose() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let mut cache = Cache::default();
            cache.write(0..4096, Payload::bytes(&[b'a'; 4096]));
            cache.cut(&mut random, 512);
            let after_first = look(&cache);
            cache.cut(&mut random, 512);
            assert_eq!(look(&cache), after_first, "seed {seed}");
        }
    }

    #[test]
    fn a_write_during_a_destage_is_still_cached_after_it() {
        let mut cache = Cache::default();
        cache.write(0..4096, Payload::bytes(&[b'a'; 4096]));
        let (pieces, seq) = cache.destage_begins(&(0..4096));
        assert_eq!(pieces.len(), 1);
        cache.write(512..1024, Payload::bytes(&[b'b'; 512]));
        cache.destage_ended(&(0..4096), seq);
        assert_eq!(look(&cache), [vec![b'.'; 512], vec![b'b'; 512], vec![b'.'; 3072]].concat());
        assert!(!cache.is_empty());
    }

    #[test]
    fn an_unaligned_span_is_cut_at_sectors() {
        assert_eq!(sectors(500..1100, 512).collect::<Vec<_>>(), [500..512, 512..1024, 1024..1100]);
        assert!(sectors(0..512, 512).eq(std::iter::once(0..512)));
    }
}
