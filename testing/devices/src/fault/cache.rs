//! A volatile write cache in front of the inner device, and its state after a power cut.
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
use mqfq_blk::random::Random;
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
