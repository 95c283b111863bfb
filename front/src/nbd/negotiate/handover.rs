//! How is a handshake handed over to another process in the middle of itself?

use super::{HANDSHAKE_BYTES_MAX, Negotiation, OPTION_BYTES_MAX, OPTIONS_MAX, Stage};
use crate::export::ExportTable;
use crate::nbd::wire;
use mqfq_blk::state::{LISTING_SINCE, StateFault, StateReader, StateWriter, demand};
use std::collections::VecDeque;
use std::sync::Arc;

impl Negotiation {
    /// A state of this version has a place for all of it.
    pub fn can_be_handed_over(&self, version: u16) -> bool {
        self.listing.is_none() || version >= LISTING_SINCE
    }

    /// Writes what [`Negotiation::unpack`] reads.
    pub fn pack(&self, writer: &mut StateWriter) {
        let (stage, option, bytes) = match self.stage {
            Stage::Flags => (0, 0, 0),
            Stage::Header => (1, 0, 0),
            Stage::Data { option, length_bytes } => (2, option, length_bytes),
            Stage::Skip { option, left_bytes } => (3, option, left_bytes),
            Stage::Over => (4, 0, 0),
        };
        writer.u8(stage);
        writer.u32(option);
        writer.u32(bytes as u32);
        writer.bytes(&self.gathered);
        [self.fixed_newstyle, self.no_zeroes, self.structured].into_iter().for_each(|flag| writer.flag(flag));
        writer.flag(self.block_status_of.is_some());
        writer.bytes(self.block_status_of.as_ref().map_or(&[][..], |export| export.name.as_bytes()));
        writer.u32(self.options);
        writer.u32(self.bytes_left as u32);
        writer.since(LISTING_SINCE, |writer| {
            writer.flag(self.listing.is_some());
            writer.u32(self.listing.as_ref().map_or(0, VecDeque::len) as u32);
            self.listing.iter().flatten().for_each(|export| writer.bytes(export.name.as_bytes()));
        });
    }

    /// The handshake, about `exports`.
    ///
    /// # Errors
    /// What no handshake can be.
    pub fn unpack(reader: &mut StateReader<'_>, exports: Arc<ExportTable>) -> Result<Negotiation, StateFault> {
        let (stage, option, bytes) = (reader.u8()?, reader.u32()?, reader.u32()? as usize);
        let gathered = reader.bytes()?;
        let (stage, gathered_max) = match stage {
            0 => (Stage::Flags, wire::CLIENT_FLAGS_BYTES),
            1 => (Stage::Header, wire::OPTION_HEADER_BYTES),
            2 if bytes <= OPTION_BYTES_MAX => (Stage::Data { option, length_bytes: bytes }, bytes.max(1)),
            3 if bytes <= HANDSHAKE_BYTES_MAX => (Stage::Skip { option, left_bytes: bytes }, 1),
            4 => (Stage::Over, 1),
            _ => return Err(StateFault("has a handshake at no stage")),
        };
        demand(gathered.len() < gathered_max, "has more of a message than the message has")?;
        let [fixed_newstyle, no_zeroes, structured] = [reader.flag()?, reader.flag()?, reader.flag()?];
        let (has_chosen, chosen) = (reader.flag()?, reader.text()?);
        // A missing export has no block status.
        let block_status_of = if has_chosen { exports.lookup(chosen) } else { None };
        let block_status_of = block_status_of.filter(|export| export.name == chosen);
        let (options, bytes_left) = (reader.u32()?, reader.u32()? as usize);
        let is_short = options <= OPTIONS_MAX && bytes_left <= HANDSHAKE_BYTES_MAX;
        demand(is_short, "has a handshake longer than there can be")?;
        let mut listing = None;
        if reader.version() >= LISTING_SINCE {
            let is_listing = reader.flag()?;
            let mut left = VecDeque::new();
            for _ in 0..reader.u32()? {
                let name = reader.text()?;
                left.extend(exports.lookup(name).filter(|export| export.name == name));
            }
            demand(is_listing || left.is_empty(), "has exports of a list that there is not")?;
            listing = is_listing.then_some(left);
        }
        let gathered = gathered.to_vec();
        let of = Negotiation::new(exports);
        Ok(Negotiation {
            stage,
            gathered,
            fixed_newstyle,
            no_zeroes,
            structured,
            block_status_of,
            options,
            bytes_left,
            listing,
            ..of
        })
    }
}
