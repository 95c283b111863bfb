//! How an unfinished large request is handed over to another process: without pieces under way, and with the bytes that
//! were read and not sent.

use super::{Large, PIECES_OUT_MAX, PieceState, RANGE_PIECE_BYTES};
use crate::export::Export;
use crate::memory::{Account, PIECE_BYTES_MAX};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::request::{Op, Status};
use mqfq_blk::state::{StateFault, StateReader, StateWriter, demand};

/// Operations by their number in a state.
pub const OPS: [Op; 6] = [
    Op::Read,
    Op::Write,
    Op::Discard,
    Op::WriteZeroes { may_unmap: false },
    Op::WriteZeroes { may_unmap: true },
    Op::Flush,
];

/// Failures by their number in a state, from 1 on; 0 is no failure.
const FAILURES: [Status; 6] =
    [Status::Io, Status::NoSpace, Status::Invalid, Status::Unsupported, Status::Shutdown, Status::TimedOut];

impl Large {
    /// Writes what [`Large::unpack`] reads.
    ///
    /// # Panics
    /// If a piece is under way.
    pub fn pack(&self, writer: &mut StateWriter) {
        let op = OPS.iter().position(|op| *op == self.op).expect("a large request is one of these");
        writer.u8(op as u8);
        writer.flag(self.fua);
        writer.u64(self.offset_bytes);
        let lengths = [self.length_bytes, self.piece_bytes, self.issued_bytes, self.streamed_bytes];
        lengths.into_iter().for_each(|bytes| writer.u32(bytes));
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
        let op = *OPS.get(usize::from(reader.u8()?)).ok_or(StateFault("has a large request of no kind"))?;
        demand(op != Op::Flush, "has a large request of no kind")?;
        let fua = reader.flag()?;
        let offset_bytes = reader.u64()?;
        let [length_bytes, piece_bytes, issued_bytes, streamed_bytes] =
            [reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?];
        let failed = match usize::from(reader.u8()?) {
            0 => None,
            number => Some(*FAILURES.get(number - 1).ok_or(StateFault("has a failure of no kind"))?),
        };
        let cut = reader.flag()?;
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
        let mut from_bytes = offset_bytes + u64::from(streamed_bytes);
        let to_bytes = offset_bytes + u64::from(issued_bytes);
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
    pub fn issued_bytes(&self) -> u32 {
        self.issued_bytes
    }
}
