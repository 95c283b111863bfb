//! A request longer than a piece: which piece comes next, and what its end means for the whole.
//!
//! No I/O and no memory: bytes of bookkeeping. A read, write, discard or write zeroes of any length goes to the block
//! layer as pieces. A request has [`PIECES_EACH`] of them under way, and [`PIECES_OUT_MAX`] if its connection has no
//! more. So a large request is scheduled piece by piece, as many small ones would be, and holds memory for a few pieces
//! however long it is; and a client with many large requests has pieces of all of them waiting, as its weight needs:
//! with 16 requests of 256 KiB all of 4 MiB.
//!
//! # How it ends
//! | state | next |
//! |---|---|
//! | every piece ended well | answered with success |
//! | a piece failed | no piece more is handed over; when those under way have ended: answered with the first error |
//! | cut: the client left, or the server drains, before a write has come in full | the same, without an answer |
//!
//! An unfinished one is handed over to another process without pieces under way, and with the bytes that were read and
//! not sent.
//!
//! A request that fails may have been carried out in part, as with any drive (NBD protocol, "error values", says
//! nothing of what a failed write left). A flush or FUA covers what was acknowledged, and a failed request is not.

use super::transmit::piece_length;
use crate::export::Export;
use crate::memory::{Account, PIECE_BYTES_MAX};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::request::{Op, Status};
use mqfq_blk::state::{EXTENDED_SINCE, StateFault, StateReader, StateWriter, demand};

/// Pieces that each large request of a connection may have under way, whatever the others have.
pub const PIECES_EACH: usize = 2;

/// Pieces of all a connection's large requests together, at most: 8 MiB of 128 KiB, half of what its memory may be.
pub const PIECES_ALL_MAX: usize = 64;

/// Pieces of one request that are under way, or ended and not yet taken by its reply, if its connection has no others.
/// Four of 128 KiB keep a drive of 3 GB/s busy whose reads take 170 us. More would only wait on the drive before the
/// next small request of another tenant: on the modelled flash-460k its p99 is 114 us alone, 308 us beside four and
/// 477 us beside eight, which get 2.5 and 2.7 GB/s.
pub const PIECES_OUT_MAX: usize = 4;

/// Largest piece of a request without payload (discard, write zeroes), bytes: zeroing so much memory takes a core about
/// 0.4 ms.
pub const RANGE_PIECE_BYTES: u32 = 4 << 20;

/// A piece to be handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextPiece {
    /// Its place, which its end names again.
    pub place: u32,
    /// First byte, in the export.
    pub offset_bytes: u64,
    /// Length, not 0.
    pub length_bytes: u32,
}

#[derive(Debug, Default)]
enum PieceState {
    #[default]
    Free,
    Out {
        offset_bytes: u64,
    },
    /// Read, and its turn in the stream has not come.
    Ready {
        offset_bytes: u64,
        length_bytes: u32,
        buffer: Buffer,
    },
}

/// The progress of one large request: the pieces that are under way and those that are to come.
#[derive(Debug)]
pub struct Large {
    /// Read, write, discard or write zeroes.
    pub op: Op,
    /// Stable before the reply: then every piece is.
    pub fua: bool,
    /// First byte, in the export.
    pub offset_bytes: u64,
    /// Length of the whole request, bytes.
    pub length_bytes: u64,
    piece_bytes: u32,
    /// Bytes of pieces that were handed over.
    issued_bytes: u64,
    places: [PieceState; PIECES_OUT_MAX],
    failed: Option<Status>,
    cut: bool,
    /// Bytes that have gone into the stream, if the reply is one.
    streamed_bytes: u64,
}

impl Large {
    /// Nothing handed over. `piece_bytes`: a power of two.
    pub fn new(op: Op, fua: bool, offset_bytes: u64, length_bytes: u64, piece_bytes: u32) -> Large {
        let places = Default::default();
        let (issued_bytes, failed, cut, streamed_bytes) = (0, None, false, 0);
        Large { op, fua, offset_bytes, length_bytes, piece_bytes, issued_bytes, places, failed, cut, streamed_bytes }
    }

    /// The next piece, unless as many as there may be are under way, all were handed over, or one failed.
    pub fn next(&self) -> Option<NextPiece> {
        let left_bytes = self.length_bytes - self.issued_bytes;
        if left_bytes == 0 || self.failed.is_some() || self.cut {
            return None;
        }
        let place = self.places.iter().position(|place| matches!(place, PieceState::Free))? as u32;
        let offset_bytes = self.offset_bytes + self.issued_bytes;
        Some(NextPiece { place, offset_bytes, length_bytes: piece_length(offset_bytes, left_bytes, self.piece_bytes) })
    }

    /// Pieces of it that were handed over and have not been taken by its reply.
    pub fn pieces_out(&self) -> usize {
        self.places.iter().filter(|place| !matches!(place, PieceState::Free)).count()
    }

    /// It may have one more under way, where its connection has `all`.
    pub fn may_have_more(&self, all: usize) -> bool {
        all < PIECES_OUT_MAX || (all < PIECES_ALL_MAX && self.pieces_out() < PIECES_EACH)
    }

    /// `piece` was handed over.
    pub fn issued(&mut self, piece: NextPiece) {
        self.places[piece.place as usize] = PieceState::Out { offset_bytes: piece.offset_bytes };
        self.issued_bytes += u64::from(piece.length_bytes);
    }

    /// `length_bytes` of a write came that are not handed over, because it has failed.
    pub fn dropped(&mut self, length_bytes: u32) {
        self.issued_bytes += u64::from(length_bytes);
    }

    /// A piece ended. Its first byte, in the export.
    ///
    /// # Panics
    /// If the place is not under way: a piece would have ended twice.
    pub fn ended(&mut self, place: u32) -> u64 {
        match std::mem::take(&mut self.places[place as usize]) {
            PieceState::Out { offset_bytes } => offset_bytes,
            other => panic!("piece {place} ended, and was {other:?}"),
        }
    }

    /// The first failure is what the client is told.
    pub fn fail(&mut self, status: Status) {
        self.failed.get_or_insert(status);
    }

    /// It has failed.
    pub fn failed(&self) -> Option<Status> {
        self.failed
    }

    /// The rest of a write will not come, or is not waited for.
    pub fn cut(&mut self) {
        self.cut = true;
        self.fail(Status::Shutdown);
    }

    /// It was cut, and is not answered.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Nothing of it is under way and nothing will be: it is to be answered.
    pub fn is_over(&self) -> bool {
        // A write that failed is answered when all of it has come, or the client would not listen.
        let all_issued = self.issued_bytes == self.length_bytes || self.cut;
        let no_more = all_issued || (self.failed.is_some() && self.op != Op::Write);
        no_more && !self.places.iter().any(|place| matches!(place, PieceState::Out { .. }))
    }

    /// Keeps the bytes read until their turn in the stream.
    pub fn keep(&mut self, place: u32, offset_bytes: u64, length_bytes: u32, buffer: Buffer) {
        self.places[place as usize] = PieceState::Ready { offset_bytes, length_bytes, buffer };
    }

    /// The stream has begun.
    pub fn is_streaming(&self) -> bool {
        self.streamed_bytes > 0
    }

    /// Next piece of the stream, if it was read; and whether it is the last.
    pub fn next_in_stream(&mut self) -> Option<(u32, Buffer, bool)> {
        let next_bytes = self.offset_bytes + self.streamed_bytes;
        let is_next = |piece: &&mut PieceState| match piece {
            PieceState::Ready { offset_bytes, .. } => *offset_bytes == next_bytes,
            _ => false,
        };
        let PieceState::Ready { length_bytes, buffer, .. } = std::mem::take(self.places.iter_mut().find(is_next)?)
        else {
            unreachable!("found as such")
        };
        self.streamed_bytes += u64::from(length_bytes);
        Some((length_bytes, buffer, self.streamed_bytes == self.length_bytes))
    }

    /// Takes the bytes that were read and will not be sent.
    pub fn take_ready(&mut self) -> impl Iterator<Item = Buffer> + '_ {
        self.places.iter_mut().filter_map(|place| match std::mem::take(place) {
            PieceState::Ready { buffer, .. } => Some(buffer),
            other => {
                *place = other;
                None
            }
        })
    }
}

/// Operations by their number in a state; the last two since [`EXTENDED_SINCE`].
const OPS: [Op; 8] = [
    Op::Read,
    Op::Write,
    Op::Discard,
    Op::WriteZeroes { may_unmap: false },
    Op::WriteZeroes { may_unmap: true },
    Op::Flush,
    Op::FastZeroes { may_unmap: false },
    Op::FastZeroes { may_unmap: true },
];

/// Writes the number of an operation. A process that knows no fast zeroes carries them out however long it takes.
///
/// # Panics
/// If the operation does not travel: an answer to a question for extents is not waited for.
pub fn pack_op(op: Op, writer: &mut StateWriter) {
    let op = match op {
        Op::FastZeroes { may_unmap } if writer.version() < EXTENDED_SINCE => Op::WriteZeroes { may_unmap },
        op => op,
    };
    writer.u8(OPS.iter().position(|known| *known == op).expect("it has all that travel") as u8);
}

/// The operation that [`pack_op`] has written.
///
/// # Errors
/// A number of none.
pub fn unpack_op(reader: &mut StateReader<'_>) -> Result<Op, StateFault> {
    OPS.get(usize::from(reader.u8()?)).copied().ok_or(StateFault("has a request of no kind"))
}

/// Failures by their number in a state, from 1 on; 0 is no failure.
const FAILURES: [Status; 6] =
    [Status::Io, Status::NoSpace, Status::Invalid, Status::Unsupported, Status::Shutdown, Status::TimedOut];

impl Large {
    /// Writes what [`Large::unpack`] reads.
    ///
    /// # Panics
    /// If a piece is under way.
    pub fn pack(&self, writer: &mut StateWriter) {
        pack_op(self.op, writer);
        writer.flag(self.fua);
        writer.u64(self.offset_bytes);
        let lengths = [self.length_bytes, self.piece_bytes.into(), self.issued_bytes, self.streamed_bytes];
        // Before, none was longer.
        lengths.iter().for_each(|bytes| writer.u32(*bytes as u32));
        writer.since(EXTENDED_SINCE, |writer| lengths.iter().for_each(|bytes| writer.u32((*bytes >> 32) as u32)));
        let failure = |status| FAILURES.iter().position(|failure| *failure == status).expect("a failure is not Ok");
        writer.u8(self.failed.map_or(0, |status| failure(status) as u8 + 1));
        writer.flag(self.cut);
        writer.u8(self.pieces_out() as u8);
        for place in &self.places {
            match place {
                PieceState::Free => {}
                PieceState::Out { .. } => unreachable!("a paused connection has no piece under way"),
                PieceState::Ready { offset_bytes, length_bytes, buffer } => {
                    writer.u64(*offset_bytes);
                    writer.bytes(&buffer.as_slice()[..*length_bytes as usize]);
                }
            }
        }
    }

    /// The request, of a connection whose memory is `account`.
    ///
    /// # Errors
    /// What no such request can be: no blocks of a device, beyond its own length, or over.
    pub fn unpack(reader: &mut StateReader<'_>, export: &Export, account: &mut Account) -> Result<Large, StateFault> {
        let op = unpack_op(reader)?;
        demand(op != Op::Flush, "has a large request of no kind")?;
        let fua = reader.flag()?;
        let offset_bytes = reader.u64()?;
        let mut lengths = [0_u64; 4];
        for bytes in &mut lengths {
            *bytes = reader.u32()?.into();
        }
        if reader.version() >= EXTENDED_SINCE {
            for bytes in &mut lengths {
                *bytes |= u64::from(reader.u32()?) << 32;
            }
        }
        let [length_bytes, piece_bytes, issued_bytes, streamed_bytes] = lengths;
        let piece_bytes = u32::try_from(piece_bytes).unwrap_or(u32::MAX);
        let failed = match usize::from(reader.u8()?) {
            0 => None,
            number => Some(*FAILURES.get(number - 1).ok_or(StateFault("has a failure of no kind"))?),
        };
        let cut = reader.flag()?;
        let is_long = op == Op::Read || op == Op::Write;
        let longest_bytes = if is_long { export.block.payload_bytes_max.into() } else { u64::MAX };
        demand(length_bytes <= longest_bytes, "has a large request longer than its export takes")?;
        demand(export.could_hold(offset_bytes, length_bytes), "has a large request that is no blocks of any device")?;
        let is_piece = piece_bytes.is_power_of_two() && piece_bytes >= export.block.min_bytes;
        demand(is_piece, "has a large request in pieces that are no power of two")?;
        let most_bytes = if matches!(op, Op::Read | Op::Write) { PIECE_BYTES_MAX } else { RANGE_PIECE_BYTES };
        demand(piece_bytes <= most_bytes, "has a large request in pieces that are too large")?;
        let are_in_order = streamed_bytes <= issued_bytes && issued_bytes <= length_bytes;
        demand(are_in_order, "has a large request that is beyond its end")?;
        demand(!cut || failed.is_some(), "has a large request that was cut and has not failed")?;
        let mut large = Large {
            op,
            fua,
            offset_bytes,
            length_bytes,
            piece_bytes,
            issued_bytes,
            places: Default::default(),
            failed,
            cut,
            streamed_bytes,
        };
        let ready = usize::from(reader.u8()?);
        demand(ready <= PIECES_OUT_MAX && (ready == 0 || op == Op::Read), "has pieces that nobody has read")?;
        // In the order of the stream, so that no byte is in two of them.
        let mut pieces = Vec::new();
        for _ in 0..ready {
            pieces.push((reader.u64()?, reader.bytes()?));
        }
        pieces.sort_by_key(|(offset_bytes, _)| *offset_bytes);
        let mut from_bytes = offset_bytes + streamed_bytes;
        let to_bytes = offset_bytes + issued_bytes;
        for (place, (offset_bytes, bytes)) in large.places.iter_mut().zip(pieces) {
            let end_bytes = offset_bytes.saturating_add(bytes.len() as u64);
            let is_inside = offset_bytes >= from_bytes && end_bytes <= to_bytes && !bytes.is_empty();
            demand(is_inside, "has pieces that are not of their request")?;
            from_bytes = end_bytes;
            let length_bytes = bytes.len() as u32;
            account.carry(Buffer::memory_bytes(length_bytes));
            let mut buffer = Buffer::new(bytes.len());
            buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
            *place = PieceState::Ready { offset_bytes, length_bytes, buffer };
        }
        demand(!large.is_over(), "has a large request that is over and was not answered")?;
        Ok(large)
    }

    /// Bytes of it that were handed over.
    pub fn issued_bytes(&self) -> u64 {
        self.issued_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u32 = 1 << 10;

    fn read(offset_bytes: u64, length_bytes: u32) -> Large {
        Large::new(Op::Read, false, offset_bytes, length_bytes.into(), 64 * KIB)
    }

    fn issue(large: &mut Large) -> Vec<(u32, u64, u32)> {
        let mut all = Vec::new();
        while let Some(piece) = large.next() {
            large.issued(piece);
            all.push((piece.place, piece.offset_bytes / 1024, piece.length_bytes / KIB));
        }
        all
    }

    #[test]
    fn pieces_end_at_multiples_of_their_size_and_four_are_under_way() {
        // From 60 KiB to 400 KiB: 4, then 64 each, then 16.
        let mut large = read(60 << 10, 340 * KIB);
        assert_eq!(issue(&mut large), [(0, 60, 4), (1, 64, 64), (2, 128, 64), (3, 192, 64)]);
        assert_eq!(large.ended(2), 128 << 10);
        assert_eq!(issue(&mut large), [(2, 256, 64)]);
        (0..4).for_each(|place| assert!(large.ended(place) >= 60 << 10));
        assert!(!large.is_over(), "from 320 KiB on nothing was handed over");
        assert_eq!(issue(&mut large), [(0, 320, 64), (1, 384, 16)]);
        large.ended(1);
        assert!(!large.is_over());
        large.ended(0);
        assert!(large.is_over() && large.failed().is_none());
    }

    #[test]
    fn a_failure_ends_it_when_what_is_under_way_has_ended_and_the_first_is_told() {
        let mut large = read(0, 1024 * KIB);
        issue(&mut large);
        large.ended(1);
        large.fail(Status::Io);
        assert!(large.next().is_none() && !large.is_over());
        large.ended(0);
        large.fail(Status::NoSpace);
        large.ended(2);
        assert!(!large.is_over());
        large.ended(3);
        assert!(large.is_over());
        assert_eq!(large.failed(), Some(Status::Io));
    }

    #[test]
    fn a_write_that_failed_is_over_when_all_of_it_has_come_or_it_is_cut() {
        let write = || {
            let mut large = Large::new(Op::Write, true, 0, u64::from(192 * KIB), 64 * KIB);
            large.issued(large.next().unwrap());
            large.ended(0);
            large.fail(Status::Io);
            large
        };
        let mut large = write();
        large.dropped(64 * KIB);
        assert!(!large.is_over());
        large.dropped(64 * KIB);
        assert!(large.is_over());
        let mut large = write();
        large.cut();
        assert!(large.is_over());
        assert_eq!(large.failed(), Some(Status::Io));
    }

    #[test]
    fn what_was_read_out_of_order_is_streamed_in_order() {
        let mut large = read(0, 192 * KIB);
        issue(&mut large);
        let keep = |large: &mut Large, place: u32| {
            let offset_bytes = large.ended(place);
            large.keep(place, offset_bytes, 64 * KIB, Buffer::new(1));
        };
        keep(&mut large, 1);
        assert!(large.next_in_stream().is_none() && !large.is_streaming());
        keep(&mut large, 0);
        let mut streamed = || large.next_in_stream().map(|(length, _, is_last)| (length / KIB, is_last));
        assert_eq!([streamed(), streamed(), streamed()], [Some((64, false)), Some((64, false)), None]);
        keep(&mut large, 2);
        assert!(large.is_streaming());
        assert_eq!(large.next_in_stream().map(|(_, _, is_last)| is_last), Some(true));
        assert!(large.is_over());
    }

    #[test]
    fn a_connection_has_four_pieces_of_one_request_or_two_of_each_up_to_sixty_four() {
        let mut large = read(0, 1024 * KIB);
        let mut expected = vec![(3, true), (4, true), (63, true), (64, false)];
        for pieces_out in 0..4 {
            assert_eq!(large.pieces_out(), pieces_out);
            if pieces_out == PIECES_EACH {
                expected = vec![(3, true), (4, false), (63, false)];
            }
            for (all, may) in &expected {
                assert_eq!(large.may_have_more(*all), *may, "{pieces_out} of {all}");
            }
            large.issued(large.next().unwrap());
        }
    }

    #[test]
    fn what_was_read_and_will_not_be_sent_is_taken_and_what_is_under_way_stays() {
        let mut large = read(0, 192 * KIB);
        issue(&mut large);
        let offset_bytes = large.ended(1);
        large.keep(1, offset_bytes, 64 * KIB, Buffer::new(1));
        assert_eq!((large.take_ready().count(), large.take_ready().count(), large.pieces_out()), (1, 0, 2));
        assert_eq!((large.ended(0), large.ended(2)), (0, 128 << 10));
    }

    #[test]
    fn a_range_beyond_4_gib_goes_in_pieces_to_its_end() {
        let mut large = Large::new(Op::Discard, false, 0, (5 << 32) + 512, 1 << 30);
        let mut lengths = Vec::new();
        while let Some(piece) = large.next() {
            assert_eq!(piece.offset_bytes, (lengths.len() as u64) << 30);
            large.issued(piece);
            large.ended(piece.place);
            lengths.push(piece.length_bytes);
        }
        assert_eq!((lengths.len(), lengths.last()), (21, Some(&512)));
        assert!(large.is_over());
    }
}
