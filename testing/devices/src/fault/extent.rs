//! Bytes by offset: the contents of a volatile cache, at any alignment, with zeroes of any length for free.
//!
//! # Shape
//! ```text
//!   offset   0        10        20        30        40
//!            [ seq 1  ][ seq 4 ]          [ seq 2   ]        pieces never overlap: a later piece cuts those before
//! ```
//! Cost: logarithmic per piece touched; a cut shares the bytes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Contents of a piece.
#[derive(Clone, Debug)]
pub(super) enum Payload {
    /// Zeroes.
    Zeroes,
    /// The bytes of `all` from `skip` on.
    Bytes { all: Arc<[u8]>, skip: usize },
}

impl Payload {
    pub(super) fn bytes(bytes: &[u8]) -> Payload {
        Payload::Bytes { all: bytes.into(), skip: 0 }
    }

    fn after(&self, more: u64) -> Payload {
        match self {
            Payload::Zeroes => Payload::Zeroes,
            Payload::Bytes { all, skip } => Payload::Bytes { all: all.clone(), skip: skip + more as usize },
        }
    }

    /// Copies the payload's start over `room`.
    pub(super) fn copy_to(&self, room: &mut [u8]) {
        match self {
            Payload::Zeroes => room.fill(0),
            Payload::Bytes { all, skip } => room.copy_from_slice(&all[*skip..*skip + room.len()]),
        }
    }
}

/// Bytes of one write, or what is left of them.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) span: Range<u64>,
    /// Larger: written later.
    pub(super) seq: u64,
    pub(super) payload: Payload,
}

impl Piece {
    /// The part of the piece inside `span`, which it meets.
    pub(super) fn clipped(&self, span: &Range<u64>) -> Piece {
        let start = self.span.start.max(span.start);
        let end = self.span.end.min(span.end);
        Piece { span: start..end, seq: self.seq, payload: self.payload.after(start - self.span.start) }
    }
}

/// Pieces of bytes that do not overlap, by the offset of their first byte.
#[derive(Default, Debug)]
pub(super) struct ExtentMap {
    by_start: BTreeMap<u64, Piece>,
}

impl ExtentMap {
    /// Puts a piece over those before it.
    pub(super) fn insert(&mut self, piece: Piece) {
        if piece.span.is_empty() {
            return;
        }
        self.remove(&piece.span, u64::MAX);
        self.by_start.insert(piece.span.start, piece);
    }

    /// Removes bytes inside `span` that are not later than `seq_max`.
    pub(super) fn remove(&mut self, span: &Range<u64>, seq_max: u64) {
        for start in self.starts(span) {
            let piece = &self.by_start[&start];
            if piece.seq > seq_max {
                continue;
            }
            let piece = self.by_start.remove(&start).expect("just seen");
            for rest in [piece.span.start..span.start, span.end..piece.span.end] {
                if rest.start < rest.end {
                    let rest = piece.clipped(&rest);
                    self.by_start.insert(rest.span.start, rest);
                }
            }
        }
    }

    /// The parts of pieces inside `span`, in order.
    pub(super) fn within(&self, span: &Range<u64>) -> Vec<Piece> {
        self.starts(span).into_iter().map(|start| self.by_start[&start].clipped(span)).collect()
    }

    /// Takes everything out.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Piece> + use<> {
        std::mem::take(&mut self.by_start).into_values()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Starts of the pieces that meet `span`.
    fn starts(&self, span: &Range<u64>) -> Vec<u64> {
        let before = self.by_start.range(..span.start).next_back().filter(|(_, piece)| piece.span.end > span.start);
        before.into_iter().chain(self.by_start.range(span.clone())).map(|(start, _)| *start).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(span: Range<u64>, seq: u64, letter: u8) -> Piece {
        let bytes = vec![letter; (span.end - span.start) as usize];
        Piece { span, seq, payload: Payload::bytes(&bytes) }
    }

    fn show(map: &ExtentMap, length: u64) -> String {
        let mut room = vec![b'.'; length as usize];
        for piece in map.within(&(0..length)) {
            piece.payload.copy_to(&mut room[piece.span.start as usize..piece.span.end as usize]);
        }
        String::from_utf8(room).unwrap().replace('\0', "0")
    }

    #[test]
    fn later_writes_cut_earlier_ones() {
        let mut map = ExtentMap::default();
        map.insert(piece(0..10, 1, b'a'));
        map.insert(piece(3..5, 2, b'b'));
        map.insert(Piece { span: 8..12, seq: 3, payload: Payload::Zeroes });
        assert_eq!(show(&map, 14), "aaabbaaa0000..");
        map.insert(piece(4..9, 4, b'c'));
        assert_eq!(show(&map, 14), "aaabccccc000..");
    }

    #[test]
    fn a_cut_piece_keeps_its_own_bytes() {
        let mut map = ExtentMap::default();
        map.insert(Piece { span: 0..6, seq: 1, payload: Payload::bytes(b"012345") });
        map.remove(&(2..3), u64::MAX);
        assert_eq!(show(&map, 6), "01.345");
        assert_eq!(map.within(&(4..6)).len(), 1);
    }

    #[test]
    fn removal_spares_what_was_written_later() {
        let mut map = ExtentMap::default();
        map.insert(piece(0..4, 1, b'a'));
        map.insert(piece(2..3, 5, b'b'));
        map.remove(&(0..4), 4);
        assert_eq!(show(&map, 4), "..b.");
    }

    #[test]
    fn agrees_with_an_array_under_random_writes_and_removals() {
        let mut random = mqfq_blk::random::Random::new(7);
        let (mut map, mut model) = (ExtentMap::default(), vec![b'.'; 64]);
        for seq in 0..2000 {
            let start = random.below(64);
            let end = start + random.below(64 - start) + 1;
            let letter = b'a' + (seq % 26) as u8;
            if random.below(3) == 0 {
                map.remove(&(start..end), u64::MAX);
                model[start as usize..end as usize].fill(b'.');
            } else {
                map.insert(piece(start..end, seq, letter));
                model[start as usize..end as usize].fill(letter);
            }
            assert_eq!(show(&map, 64).as_bytes(), model, "after step {seq}");
        }
    }
}
