//! How is the stream of requests handed over to another process in the middle of a request? With the bytes of its
//! payload that have come.

use super::{Limits, Memory, Payload, SKIPPED_BYTES_MAX, Stage, Transmission};
use crate::memory::Account;
use crate::nbd::large::Large;
use crate::nbd::validate::Session;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::state::{StateFault, StateReader, StateWriter, demand};

impl Transmission {
    /// Writes what [`Transmission::unpack`] reads.
    ///
    /// # Panics
    /// If the buffer of a payload is lent.
    pub fn pack(&self, writer: &mut StateWriter) {
        // Once: the server is shutting down.
        writer.flag(false);
        match &self.stage {
            Stage::Header => writer.u8(0),
            Stage::Payload(payload) => {
                writer.u8(1);
                payload.pack(writer);
            }
            Stage::Skip { left_bytes } => {
                writer.u8(2);
                writer.u32(*left_bytes as u32);
            }
            Stage::Over => writer.u8(3),
        }
    }

    /// The stream of a connection that agreed on `session` and holds `account`, with `requests` that were taken and
    /// whose replies have not left, a payload in progress not among them. `writing` is the large write whose pieces
    /// come.
    ///
    /// # Errors
    /// What no stream can be.
    pub fn unpack(
        reader: &mut StateReader<'_>,
        session: Session,
        limits: Limits,
        account: Account,
        requests: usize,
        writing: Option<&Large>,
    ) -> Result<Transmission, StateFault> {
        assert!(limits.piece_bytes.is_power_of_two(), "pieces of {} bytes have no boundaries", limits.piece_bytes);
        reader.flag()?;
        let mut transmission = Transmission { session, limits, stage: Stage::Header, requests, account };
        transmission.stage = match reader.u8()? {
            0 => Stage::Header,
            1 => Stage::Payload(transmission.unpack_payload(reader, writing)?),
            2 => {
                let left_bytes = reader.u32()?;
                demand(left_bytes <= SKIPPED_BYTES_MAX, "skips more than is skipped of any payload")?;
                Stage::Skip { left_bytes: left_bytes as usize }
            }
            3 => Stage::Over,
            _ => return Err(StateFault("has a stream of requests at no stage")),
        };
        let is_large = transmission.in_large_write();
        demand(writing.is_none() || is_large, "has a large write of which nothing comes")?;
        Ok(transmission)
    }

    fn unpack_payload(&mut self, reader: &mut StateReader<'_>, writing: Option<&Large>) -> Result<Payload, StateFault> {
        let cookie = reader.u64()?;
        let fua = reader.flag()?;
        let (offset_bytes, length_bytes) = (reader.u64()?, reader.u32()?);
        let after_bytes = if reader.flag()? { Some(reader.u32()?) } else { None };
        let has_memory = reader.flag()?;
        let filled = reader.bytes()?;
        let export = &self.session.export;
        let all_bytes = length_bytes.checked_add(after_bytes.unwrap_or(0)).unwrap_or(0);
        let are_blocks = export.could_hold(offset_bytes, all_bytes) && length_bytes > 0;
        demand(are_blocks, "has a write that is no blocks of any device")?;
        demand(all_bytes <= export.block.payload_bytes_max, "has a write longer than its export takes")?;
        let is_filled = filled.len() <= length_bytes as usize && (has_memory || filled.is_empty());
        demand(is_filled, "has more of a payload than there is")?;
        if let Some(large) = writing {
            let at_bytes = large.offset_bytes + u64::from(large.issued_bytes());
            let is_next = at_bytes == offset_bytes && large.issued_bytes() + all_bytes == large.length_bytes;
            demand(is_next && after_bytes.is_some(), "has a piece that is not the next of its write")?;
        }
        let memory = match has_memory {
            false => Memory::None,
            true => {
                self.account.carry(Buffer::memory_bytes(length_bytes));
                let mut buffer = Buffer::new(length_bytes as usize);
                buffer.as_mut_slice()[..filled.len()].copy_from_slice(filled);
                Memory::Here(buffer)
            }
        };
        // A large one counts among those that are not answered.
        self.requests += usize::from(after_bytes.is_none());
        demand(after_bytes.is_some() || has_memory, "has a write without memory")?;
        Ok(Payload { cookie, fua, offset_bytes, length_bytes, filled_bytes: filled.len(), after_bytes, memory })
    }
}

impl Payload {
    fn pack(&self, writer: &mut StateWriter) {
        writer.u64(self.cookie);
        writer.flag(self.fua);
        writer.u64(self.offset_bytes);
        writer.u32(self.length_bytes);
        writer.flag(self.after_bytes.is_some());
        self.after_bytes.iter().for_each(|bytes| writer.u32(*bytes));
        let filled = match &self.memory {
            Memory::None => None,
            Memory::Here(buffer) => Some(&buffer.as_slice()[..self.filled_bytes]),
            Memory::Lent => unreachable!("a paused connection receives nothing"),
        };
        writer.flag(filled.is_some());
        writer.bytes(filled.unwrap_or(&[]));
    }
}
