//! How are replies that have not left handed over to another process? As their bytes, with the number of
//! replies that end in each part.

use super::{Gathered, Replies, Sent};
use crate::memory::Account;
use mqfq_blk::client::Part;
use mqfq_blk::state::{StateFault, StateReader, StateWriter, demand};

/// Replies of one part, at most: far more than requests that a connection may have under way.
const REPLIES_MAX: usize = 1 << 16;

impl Replies {
    /// A send was ended after `sent_bytes` of its parts. The rest leaves first with the next one; the replies of the
    /// send and its memory count until all of the rest has left.
    pub fn end_send_in_part(&mut self, parts: &[Part], sent_bytes: usize) {
        let mut skipped_bytes = sent_bytes;
        let mut rest = Vec::new();
        for part in parts {
            let bytes = part.as_slice();
            let skip = skipped_bytes.min(bytes.len());
            skipped_bytes -= skip;
            rest.extend_from_slice(&bytes[skip..]);
        }
        let sent = self.sending.take().unwrap_or_default();
        self.gathered.parts.insert(0, Part::Bytes(rest));
        self.gathered.counts.insert(0, sent);
    }

    /// Replies that have not left, or not in full.
    pub fn unsent(&self) -> usize {
        let of = |gathered: &Gathered| gathered.counts.iter().map(|sent| sent.replies).sum::<usize>();
        of(&self.gathered) + of(&self.behind) + self.sending.map_or(0, |sent| sent.replies)
    }

    /// Writes what [`Replies::unpack`] reads.
    ///
    /// # Panics
    /// If a send is in flight.
    pub fn pack(&self, writer: &mut StateWriter) {
        assert!(self.sending.is_none(), "a paused connection sends nothing");
        writer.flag(self.streaming);
        for gathered in [&self.gathered, &self.behind] {
            writer.u32(gathered.parts.len() as u32);
            for (part, sent) in gathered.parts.iter().zip(&gathered.counts) {
                writer.u32(sent.replies as u32);
                writer.bytes(part.as_slice());
            }
        }
    }

    /// The replies.
    ///
    /// # Errors
    /// What no replies can be.
    pub fn unpack(reader: &mut StateReader<'_>) -> Result<Replies, StateFault> {
        let streaming = reader.flag()?;
        let mut both = [Gathered::default(), Gathered::default()];
        for gathered in &mut both {
            for _ in 0..reader.u32()? {
                let replies = reader.u32()? as usize;
                let bytes = reader.bytes()?;
                demand(!bytes.is_empty(), "has a reply of no bytes")?;
                demand(replies <= REPLIES_MAX, "has more replies than there can be")?;
                gathered.parts.push(Part::Bytes(bytes.to_vec()));
                gathered.counts.push(Sent { replies, data_bytes: bytes.len() as u64 });
            }
        }
        let [gathered, behind] = both;
        demand(streaming || behind.is_empty(), "has replies behind a stream that there is not")?;
        Ok(Replies { streaming, gathered, behind, ..Replies::default() })
    }

    /// Counts the memory of replies that came from another process.
    pub fn carry(&self, account: &mut Account) {
        let all = self.gathered.counts.iter().chain(&self.behind.counts);
        account.carry(all.map(|sent| sent.data_bytes).sum());
    }

    /// A simple reply is being streamed.
    pub fn is_streaming(&self) -> bool {
        self.streaming
    }

    /// Replies of the handshake carry no memory of an account.
    pub fn forget_memory(&mut self) {
        self.gathered.counts.iter_mut().for_each(|sent| sent.data_bytes = 0);
    }
}
