//! The server's half of the transmission phase: replies gathered into one send.
//!
//! All replies of one turn of the worker's loop leave together, unless they are long. Headers are packed one behind the
//! other in a vector that is used again after the send; the data of a read are sent from the buffer that the device
//! filled.
//!
//! ```text
//! parts:  [ header header header ][ data ][ header ][ data ][ header header ]
//! ```
//!
//! With structured replies agreed on, every reply is structured: an error then carries a sentence, and the stream can
//! be understood without knowing the requests. A reply is one chunk; a read longer than a piece has a chunk for each
//! piece, in the order in which the device ends them, and the last one says that it is.
//!
//! # Streams
//! A simple reply has one header, and its data must follow without a gap. A long read is therefore a stream: it begins
//! with the first piece, other replies wait behind it, and they leave when it ends.
//!
//! Replies that have not left are handed over to another process as their bytes, with the number of replies that end in
//! each part.
//!
//! ```text
//! gathered: [ header ][ piece 0 ][ piece 1 ] …            behind: [ header header ][ data ] …
//! ```

use super::validate::Session;
use super::wire::{self, Errno, chunk, put_chunk, put_extended_chunk, put_simple_reply};
use crate::memory::Account;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::Part;
use mqfq_blk::extents::{Extent, Stored};
use mqfq_blk::hctx::CLIENT_BYTES;
use mqfq_blk::state::{StateFault, StateReader, StateWriter, demand};

/// Payload that one send carries, bytes; the rest waits for its end. The kernel copies as long as the client makes
/// room, on the worker's time: a send of a MiB would keep the worker from other clients for most of a millisecond. As
/// much as a turn gives to one client while tenants compete, so that all of it leaves.
const SEND_BYTES_MAX: usize = CLIENT_BYTES as usize;

/// Vectors kept for headers; more come only from a burst of reads longer than any queue in the field.
const SPARE_MAX: usize = 256;

/// Largest vector kept for headers, bytes: the headers of several hundred replies. A long list of exports is freed.
const SPARE_BYTES_MAX: usize = 16 << 10;

/// Answers of the handshake that may wait before no more options are read, bytes. As many again may be in a send.
const HANDSHAKE_UNSENT_BYTES_MAX: usize = 16 << 10;

/// Extent flags of base:allocation. Data have none of them.
const fn flags_of(stored: Stored) -> u32 {
    match stored {
        Stored::Data => 0,
        Stored::Zeroes => wire::STATE_ZERO,
        Stored::Hole => wire::STATE_HOLE | wire::STATE_ZERO,
    }
}

/// Content of a send.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sent {
    /// Replies to requests.
    pub replies: usize,
    /// Memory of read buffers, now free, bytes.
    pub data_bytes: u64,
}

impl Sent {
    fn add(&mut self, other: Sent) {
        self.replies += other.replies;
        self.data_bytes += other.data_bytes;
    }
}

/// Form of the replies.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Form {
    /// A header, and the data of a read.
    #[default]
    Simple,
    /// Chunks.
    Structured,
    /// Chunks with extended headers.
    Extended,
}

impl Form {
    /// Form that a session has agreed on.
    pub fn of(session: &Session) -> Form {
        match (session.extended, session.structured) {
            (true, _) => Form::Extended,
            (false, true) => Form::Structured,
            (false, false) => Form::Simple,
        }
    }
}

/// Replies on their way to one client.
#[derive(Debug, Default)]
pub struct Replies {
    form: Form,
    gathered: Gathered,
    /// A simple reply is being streamed: other replies wait in `behind`.
    streaming: bool,
    behind: Gathered,
    /// Content of the send in flight.
    sending: Option<Sent>,
    spare_bytes: Vec<Vec<u8>>,
    spare_parts: Vec<Part>,
}

impl Replies {
    /// Empty, for simple replies.
    pub fn new() -> Replies {
        Replies::default()
    }

    /// From now on replies have this form.
    pub fn set_form(&mut self, form: Form) {
        self.form = form;
    }

    /// Nothing is gathered, nothing waits behind a stream, and nothing is being sent.
    pub fn is_empty(&self) -> bool {
        self.gathered.is_empty() && self.behind.is_empty() && !self.streaming && self.sending.is_none()
    }

    /// Lets `write` append bytes of the handshake.
    pub fn append<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let result = write(self.bytes());
        // Nothing written is nothing to send.
        self.gathered.drop_empty();
        result
    }

    /// Buffers that the next reply goes to.
    fn target(&mut self) -> (&mut Gathered, &mut Vec<Vec<u8>>) {
        match self.streaming {
            false => (&mut self.gathered, &mut self.spare_bytes),
            true => (&mut self.behind, &mut self.spare_bytes),
        }
    }

    fn bytes(&mut self) -> &mut Vec<u8> {
        let (gathered, spare) = self.target();
        gathered.bytes(spare)
    }

    /// More answers wait than a client of the handshake has any reason to leave unread.
    pub fn handshake_backs_up(&self) -> bool {
        self.gathered.parts.iter().map(|part| part.as_slice().len()).sum::<usize>() > HANDSHAKE_UNSENT_BYTES_MAX
    }

    /// Appends the header of a chunk about a request at `offset_bytes`, in a form that has chunks.
    #[inline(always)]
    fn put_chunk(&mut self, flags: u16, kind: u16, cookie: u64, offset_bytes: u64, length_bytes: u32) -> &mut Vec<u8> {
        let is_extended = self.form == Form::Extended;
        let out = self.bytes();
        match is_extended {
            false => put_chunk(out, flags, kind, cookie, length_bytes),
            true => put_extended_chunk(out, flags, kind, cookie, offset_bytes, length_bytes),
        }
        out
    }

    /// Success, without data, of a request at `offset_bytes`.
    pub fn done(&mut self, cookie: u64, offset_bytes: u64) {
        match self.form {
            Form::Simple => put_simple_reply(self.bytes(), 0, cookie),
            _ => drop(self.put_chunk(chunk::DONE, chunk::NONE, cookie, offset_bytes, 0)),
        }
        self.target().0.ends_reply();
    }

    /// Failure of a request at `offset_bytes`. The sentence is sent if the form of reply has room for one.
    pub fn error(&mut self, cookie: u64, offset_bytes: u64, errno: Errno, sentence: &str) {
        if self.form == Form::Simple {
            put_simple_reply(self.bytes(), errno as u32, cookie);
            return self.target().0.ends_reply();
        }
        let length_bytes = 4 + 2 + sentence.len() as u32;
        let out = self.put_chunk(chunk::DONE, chunk::ERROR, cookie, offset_bytes, length_bytes);
        out.extend((errno as u32).to_be_bytes());
        out.extend((sentence.len() as u16).to_be_bytes());
        out.extend_from_slice(sentence.as_bytes());
        self.target().0.ends_reply();
    }

    /// The first `length_bytes` of `buffer`, read at `offset_bytes` of the export: all that was asked for.
    pub fn data(&mut self, cookie: u64, offset_bytes: u64, length_bytes: u32, buffer: Buffer) {
        match self.form {
            Form::Simple => put_simple_reply(self.bytes(), 0, cookie),
            _ => self.put_data_chunk(chunk::DONE, cookie, offset_bytes, offset_bytes, length_bytes),
        }
        self.target().0.payload(buffer, length_bytes, true);
    }

    /// Appends the header of data at `offset_bytes`, of a request at `asked_bytes`.
    #[inline(always)]
    fn put_data_chunk(&mut self, flags: u16, cookie: u64, asked_bytes: u64, offset_bytes: u64, length_bytes: u32) {
        let out = self.put_chunk(flags, chunk::OFFSET_DATA, cookie, asked_bytes, 8 + length_bytes);
        out.extend_from_slice(&offset_bytes.to_be_bytes());
    }

    /// A piece of a long read at `asked_bytes`, as a chunk of a structured reply. `is_last`: the reply ends with it.
    pub fn piece(
        &mut self,
        (cookie, asked_bytes): (u64, u64),
        offset_bytes: u64,
        length_bytes: u32,
        buffer: Buffer,
        is_last: bool,
    ) {
        assert!(self.form != Form::Simple, "a simple reply has no chunks");
        let flags = if is_last { chunk::DONE } else { 0 };
        self.put_data_chunk(flags, cookie, asked_bytes, offset_bytes, length_bytes);
        self.gathered.payload(buffer, length_bytes, is_last);
    }

    /// Begins a simple reply to a long read: its data follow by [`Replies::stream`], and nothing else leaves before
    /// they do.
    pub fn begin_stream(&mut self, cookie: u64) {
        assert!(self.form == Form::Simple && !self.streaming, "one stream at a time, of simple replies");
        put_simple_reply(self.bytes(), 0, cookie);
        self.streaming = true;
    }

    /// The next `length_bytes` of the stream. `is_last`: it ends, and what waited behind it leaves.
    pub fn stream(&mut self, length_bytes: u32, buffer: Buffer, is_last: bool) {
        assert!(self.streaming, "a stream has begun");
        self.gathered.payload(buffer, length_bytes, is_last);
        if is_last {
            self.streaming = false;
            self.gathered.append(&mut self.behind);
        }
    }

    /// Extents of a block status at `offset_bytes`, at least one.
    pub fn block_status(&mut self, cookie: u64, offset_bytes: u64, extents: impl Iterator<Item = Extent>) {
        let is_extended = self.form == Form::Extended;
        let kind = if is_extended { chunk::BLOCK_STATUS_EXT } else { chunk::BLOCK_STATUS };
        let out = self.put_chunk(chunk::DONE, kind, cookie, offset_bytes, 0);
        let payload_at = out.len();
        out.extend_from_slice(&wire::BASE_ALLOCATION_ID.to_be_bytes());
        if is_extended {
            out.extend_from_slice(&[0; 4]);
        }
        let mut count: u32 = 0;
        for Extent { length_bytes, stored } in extents {
            count += 1;
            if is_extended {
                out.extend_from_slice(&length_bytes.to_be_bytes());
                out.extend_from_slice(&u64::from(flags_of(stored)).to_be_bytes());
            } else {
                // An answer is no longer than its question.
                out.extend_from_slice(&(length_bytes as u32).to_be_bytes());
                out.extend_from_slice(&flags_of(stored).to_be_bytes());
            }
        }
        if is_extended {
            out[payload_at + 4..payload_at + 8].copy_from_slice(&count.to_be_bytes());
        }
        // The length's lower half ends either header.
        let payload_bytes = (out.len() - payload_at) as u32;
        out[payload_at - 4..payload_at].copy_from_slice(&payload_bytes.to_be_bytes());
        self.target().0.ends_reply();
    }

    /// Parts to send now, unless a send is in flight or nothing is gathered: all of them, or as many as have
    /// `SEND_BYTES_MAX`, and one at least.
    pub fn begin_send(&mut self) -> Option<Vec<Part>> {
        if self.sending.is_some() || self.gathered.is_empty() {
            return None;
        }
        let (parts, count) = self.gathered.take(std::mem::take(&mut self.spare_parts));
        self.sending = Some(count);
        Some(parts)
    }

    /// [`Replies::begin_send`] under TLS: `seal` turns the plain parts into the parts to send, also if there are none.
    pub fn begin_sealed_send(&mut self, seal: impl FnOnce(&[Part]) -> Vec<Part>) -> Option<Vec<Part>> {
        if self.sending.is_some() {
            return None;
        }
        let (plain, count) = self.gathered.take(std::mem::take(&mut self.spare_parts));
        let parts = seal(&plain);
        self.keep(plain);
        self.sending = (!parts.is_empty()).then_some(count);
        (!parts.is_empty()).then_some(parts)
    }

    /// A send has not ended.
    pub fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    /// The send ended. Its parts are taken apart and used again.
    pub fn end_send(&mut self, parts: Vec<Part>) -> Sent {
        self.keep(parts);
        self.sending.take().unwrap_or_default()
    }

    fn keep(&mut self, mut parts: Vec<Part>) {
        for part in parts.drain(..) {
            if let Part::Bytes(mut bytes) = part
                && self.spare_bytes.len() < SPARE_MAX
                && bytes.capacity() <= SPARE_BYTES_MAX
            {
                bytes.clear();
                self.spare_bytes.push(bytes);
            }
        }
        self.spare_parts = parts;
    }

    /// The connection is broken: drop the gathered replies.
    pub fn abandon(&mut self) {
        (self.gathered, self.behind) = (Gathered::default(), Gathered::default());
        self.streaming = false;
    }
}

/// `extents`, which begin at `offset_bytes`, with ends at whole blocks: a block of which a byte is data is data.
/// `offset_bytes` is a multiple of `block_bytes`, a power of two, and so is the length that was asked about.
pub fn whole_blocks(
    offset_bytes: u64,
    block_bytes: u64,
    mut extents: impl Iterator<Item = Extent>,
) -> impl Iterator<Item = Extent> {
    let below_block = block_bytes - 1;
    // Up to where extents were taken, and up to where they were given; the one that was taken and not given.
    let (mut taken, mut given, mut ready) = (offset_bytes, offset_bytes, None);
    std::iter::from_fn(move || {
        loop {
            let Some(Extent { length_bytes, stored }) = ready.take().or_else(|| extents.next()) else {
                // The rest of a block is asked about again, unless nothing was given: the block was asked about.
                let least = if given == offset_bytes { block_bytes } else { 0 };
                let length_bytes = (taken & !below_block).saturating_sub(given).max(least);
                given += length_bytes;
                return (length_bytes > 0).then_some(Extent { length_bytes, stored: Stored::Data });
            };
            let (start, end) = ((taken + below_block) & !below_block, (taken + length_bytes) & !below_block);
            if stored == Stored::Data || start >= end {
                taken += length_bytes;
                continue;
            }
            if given < start {
                // First the data before it.
                ready = Some(Extent { length_bytes, stored });
                let length_bytes = start - given;
                given = start;
                return Some(Extent { length_bytes, stored: Stored::Data });
            }
            taken += length_bytes;
            given = end;
            return Some(Extent { length_bytes: end - start, stored });
        }
    })
}

/// Parts for the next sends, each with the replies that end in it and the memory that its end frees.
#[derive(Debug, Default)]
struct Gathered {
    parts: Vec<Part>,
    counts: Vec<Sent>,
}

impl Gathered {
    fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The vector of headers that it ends with, made if there is none.
    fn bytes(&mut self, spare: &mut Vec<Vec<u8>>) -> &mut Vec<u8> {
        if !matches!(self.parts.last(), Some(Part::Bytes(_))) {
            self.parts.push(Part::Bytes(spare.pop().unwrap_or_default()));
            self.counts.push(Sent::default());
        }
        match self.parts.last_mut() {
            Some(Part::Bytes(bytes)) => bytes,
            _ => unreachable!("pushed above"),
        }
    }

    fn drop_empty(&mut self) {
        if self.parts.pop_if(|part| part.as_slice().is_empty()).is_some() {
            self.counts.pop();
        }
    }

    /// A reply ends with the last part.
    fn ends_reply(&mut self) {
        self.counts.last_mut().expect("the reply was put").replies += 1;
    }

    fn payload(&mut self, buffer: Buffer, length_bytes: u32, ends_reply: bool) {
        self.counts.push(Sent { replies: usize::from(ends_reply), data_bytes: buffer.capacity_bytes() as u64 });
        self.parts.push(Part::Payload { buffer, length_bytes: length_bytes as usize });
    }

    fn append(&mut self, behind: &mut Gathered) {
        self.parts.append(&mut behind.parts);
        self.counts.append(&mut behind.counts);
    }

    /// Takes what one send carries; `into` is empty.
    fn take(&mut self, mut into: Vec<Part>) -> (Vec<Part>, Sent) {
        let mut bytes = 0;
        let fits = |part: &&Part| {
            let before = bytes;
            bytes += part.as_slice().len();
            before < SEND_BYTES_MAX
        };
        let count = self.parts.iter().take_while(fits).count();
        let mut sent = Sent::default();
        self.counts.drain(..count).for_each(|part| sent.add(part));
        if count == self.parts.len() {
            std::mem::swap(&mut self.parts, &mut into);
        } else {
            into.extend(self.parts.drain(..count));
        }
        (into, sent)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(parts: &[Part]) -> Vec<u8> {
        parts.iter().flat_map(|part| part.as_slice()).copied().collect()
    }

    fn filled(byte: u8, length_bytes: usize) -> Buffer {
        let mut buffer = Buffer::new(length_bytes);
        buffer.as_mut_slice().fill(byte);
        buffer
    }

    #[test]
    fn a_simple_read_is_16_bytes_and_the_data() {
        let mut replies = Replies::new();
        replies.data(7, 4096, 3, filled(b'x', 3));
        let parts = replies.begin_send().unwrap();
        assert_eq!(bytes(&parts), b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x07xxx");
        assert_eq!(replies.end_send(parts), Sent { replies: 1, data_bytes: 4096 }, "memory of a buffer for 3 bytes");
    }

    #[test]
    fn a_structured_read_is_one_last_chunk_with_offset_and_data() {
        let mut replies = Replies::new();
        replies.set_form(Form::Structured);
        replies.data(7, 4096, 3, filled(b'x', 3));
        let header = b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\0\x0b";
        let expected = [&header[..], b"\0\0\0\0\0\0\x10\0", b"xxx"].concat();
        assert_eq!(bytes(&replies.begin_send().unwrap()), expected, "payload is 8 bytes of offset and 3 of data");
    }

    #[test]
    fn a_structured_error_has_number_and_sentence() {
        let mut replies = Replies::new();
        replies.set_form(Form::Structured);
        replies.error(7, 0, Errno::NoSpc, "full");
        let header = b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x07\0\0\0\x0a";
        let expected = [&header[..], b"\0\0\0\x1c", b"\0\x04", b"full"].concat();
        assert_eq!(bytes(&replies.begin_send().unwrap()), expected);
    }

    #[test]
    fn block_status_is_a_chunk_of_extents_with_their_flags() {
        let mut replies = Replies::new();
        replies.set_form(Form::Structured);
        replies.done(6, 0);
        let extents = [(65536, Stored::Data), (512, Stored::Hole), (1, Stored::Zeroes)];
        replies.block_status(7, 0, extents.into_iter().map(|(length_bytes, stored)| Extent { length_bytes, stored }));
        let header = b"\x66\x8e\x33\xef\0\x01\0\x05\0\0\0\0\0\0\0\x07\0\0\0\x1c\0\0\0\x01";
        let extents = b"\0\x01\0\0\0\0\0\0\0\0\x02\0\0\0\0\x03\0\0\0\x01\0\0\0\x02";
        let sent = bytes(&replies.begin_send().unwrap());
        assert_eq!(sent[wire::CHUNK_HEADER_BYTES..], [&header[..], extents].concat(), "context 1 and three extents");
    }

    #[test]
    fn extended_replies_name_the_offset_of_their_request_and_have_lengths_of_64_bits() {
        let mut replies = Replies::new();
        replies.set_form(Form::Extended);
        replies.done(1, 4096);
        replies.error(2, 4096, Errno::NotSup, "slow");
        replies.piece((3, 4096), 8192, 2, filled(b'x', 2), true);
        let extents = [(65536, Stored::Data), (1 << 31, Stored::Hole)];
        let extents = extents.into_iter().map(|(length_bytes, stored)| Extent { length_bytes, stored });
        replies.block_status(4, 4096, extents);
        let header = |kind: [u8; 2], cookie: u64, length_bytes: u64| {
            let numbers = [cookie, 4096, length_bytes].map(u64::to_be_bytes).concat();
            [b"\x6e\x8a\x27\x8c\0\x01", &kind[..], &numbers].concat()
        };
        let status = [1 << 32 | 2, 65536, 0, 1 << 31, 3].map(u64::to_be_bytes).concat();
        let expected = [
            header([0, 0], 1, 0),
            header([0x80, 1], 2, 10),
            b"\0\0\0\x5f\0\x04slow".to_vec(),
            header([0, 1], 3, 10),
            b"\0\0\0\0\0\0\x20\0xx".to_vec(),
            header([0, 6], 4, 40),
            status,
        ];
        assert_eq!(bytes(&replies.begin_send().unwrap()), expected.concat());
    }

    #[test]
    fn extents_end_at_whole_blocks_and_a_block_with_a_byte_of_data_is_data() {
        use Stored::{Data, Hole, Zeroes};
        let given = |block_bytes, extents: &[(u64, Stored)]| -> Vec<(u64, Stored)> {
            let extents = extents.iter().map(|&(length_bytes, stored)| Extent { length_bytes, stored });
            whole_blocks(4096, block_bytes, extents).map(|extent| (extent.length_bytes, extent.stored)).collect()
        };
        let plain = [(1, Data), (2, Hole), (3, Zeroes), (4, Data), (5, Hole)];
        assert_eq!(given(1, &plain), plain);
        let mixed = [(1, Data), (10, Hole), (1, Data), (4, Zeroes)];
        assert_eq!(given(4, &mixed), [(4, Data), (4, Hole), (4, Data), (4, Zeroes)]);
        let rest = "the rest of a block is asked about again";
        assert_eq!(given(4, &[(9, Hole), (9, Zeroes)]), [(8, Hole), (4, Data), (4, Zeroes)], "{rest}");
        assert_eq!(given(4, &[(3, Hole), (3, Zeroes), (2, Hole)]), [(8, Data)]);
        assert_eq!(given(4096, &[(512, Hole)]), [(4096, Data)], "an answer covers something");
        assert_eq!(given(512, &[(5, Hole), (2000, Data)]), [(1536, Data)]);
    }

    #[test]
    fn replies_of_a_turn_leave_in_one_send_with_their_headers_packed() {
        let mut replies = Replies::new();
        replies.done(1, 0);
        replies.error(2, 0, Errno::Io, "not sent in a simple reply");
        replies.data(3, 0, 4096, filled(0, 4096));
        replies.done(4, 0);
        let parts = replies.begin_send().unwrap();
        // done, error and the header of the read; the data; done.
        assert_eq!(parts.iter().map(|part| part.as_slice().len()).collect::<Vec<_>>(), [48, 4096, 16]);
        replies.done(5, 0);
        assert!(replies.begin_send().is_none(), "one send at a time");
        assert_eq!(replies.end_send(parts), Sent { replies: 4, data_bytes: 4096 });
        assert_eq!(bytes(&replies.begin_send().unwrap()).len(), 16);
    }

    #[test]
    fn pieces_are_chunks_of_one_reply_and_the_last_says_so() {
        let mut replies = Replies::new();
        replies.set_form(Form::Structured);
        replies.piece((7, 0), 4, 3, filled(b'b', 3), false);
        replies.piece((7, 0), 1, 3, filled(b'a', 3), true);
        let chunk = |flags: u8, offset: u8, data: &[u8]| {
            let header = [b"\x66\x8e\x33\xef\0", &[flags][..], b"\0\x01\0\0\0\0\0\0\0\x07\0\0\0\x0b"].concat();
            [&header[..], b"\0\0\0\0\0\0\0", &[offset], data].concat()
        };
        let parts = replies.begin_send().unwrap();
        assert_eq!(bytes(&parts), [chunk(0, 4, b"bbb"), chunk(1, 1, b"aaa")].concat());
        assert_eq!(replies.end_send(parts), Sent { replies: 1, data_bytes: 8192 });
    }

    #[test]
    fn nothing_comes_between_the_data_of_a_stream() {
        let mut replies = Replies::new();
        replies.done(1, 0);
        replies.begin_stream(2);
        replies.stream(2, filled(b'a', 2), false);
        replies.done(3, 0);
        replies.data(4, 0, 1, filled(b'x', 1));
        let parts = replies.begin_send().unwrap();
        assert_eq!(bytes(&parts)[16..], [&b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x02"[..], b"aa"].concat());
        assert_eq!(replies.end_send(parts), Sent { replies: 1, data_bytes: 4096 });
        assert!(replies.begin_send().is_none() && !replies.is_empty(), "two wait behind the stream");
        replies.stream(1, filled(b'b', 1), true);
        let parts = replies.begin_send().unwrap();
        let sent = bytes(&parts);
        assert_eq!((sent[0], sent.len()), (b'b', 1 + 16 + 16 + 1));
        assert_eq!(replies.end_send(parts), Sent { replies: 3, data_bytes: 8192 });
        assert!(replies.is_empty());
    }

    #[test]
    fn long_replies_leave_in_several_sends_and_are_counted_where_they_end() {
        let mut replies = Replies::new();
        replies.set_form(Form::Structured);
        let piece = |replies: &mut Replies, is_last| replies.piece((1, 0), 0, 64 << 10, filled(0, 64 << 10), is_last);
        (0..4).for_each(|_| piece(&mut replies, false));
        replies.done(2, 0);
        piece(&mut replies, true);
        // Three pieces reach 192 KiB; the fourth and, with it, the fifth; the rest of a header is never left behind its
        // data.
        let mut sends = Vec::new();
        while let Some(parts) = replies.begin_send() {
            let Sent { replies: ended, data_bytes } = replies.end_send(parts);
            sends.push((ended, data_bytes >> 10));
        }
        assert_eq!(sends, [(0, 192), (2, 128)]);
        assert!(replies.is_empty());
    }

    #[test]
    fn memory_of_a_send_is_used_again() {
        let mut replies = Replies::new();
        replies.done(1, 0);
        let parts = replies.begin_send().unwrap();
        let (vector, header) = (parts.as_ptr(), parts[0].as_slice().as_ptr());
        replies.end_send(parts);
        // The first send left an empty spare list behind; the list of this one is gathered into after the next.
        replies.done(2, 0);
        let parts = replies.begin_send().unwrap();
        assert_eq!(parts[0].as_slice().as_ptr(), header);
        replies.end_send(parts);
        replies.done(3, 0);
        let parts = replies.begin_send().unwrap();
        assert_eq!(parts.as_ptr(), vector);
    }

    #[test]
    fn memory_of_a_long_answer_is_not_kept() {
        let mut replies = Replies::new();
        for (answer_bytes, kept) in [(SPARE_BYTES_MAX, 1), (SPARE_BYTES_MAX + 1, 0)] {
            replies.append(|out| {
                *out = Vec::with_capacity(answer_bytes);
                out.push(1);
            });
            let parts = replies.begin_send().unwrap();
            replies.end_send(parts);
            assert_eq!(replies.spare_bytes.len(), kept, "{answer_bytes} bytes");
            replies.spare_bytes.clear();
        }
    }

    #[test]
    fn nothing_is_left_when_all_was_sent_or_the_connection_is_broken() {
        let mut replies = Replies::new();
        assert!(replies.is_empty());
        replies.done(1, 0);
        assert!(!replies.is_empty(), "gathered");
        let parts = replies.begin_send().unwrap();
        assert!(!replies.is_empty(), "being sent");
        replies.end_send(parts);
        assert!(replies.is_empty());
        replies.begin_stream(2);
        let parts = replies.begin_send().unwrap();
        replies.end_send(parts);
        assert!(!replies.is_empty(), "a stream's data are to come");
        replies.stream(1, filled(b'a', 1), false);
        replies.done(3, 0);
        replies.abandon();
        assert!(replies.is_empty() && replies.begin_send().is_none());
        replies.done(4, 0);
        assert_eq!(
            replies.begin_send().map(|parts| bytes(&parts).len()),
            Some(16),
            "and nothing waits behind a stream"
        );
    }

    #[test]
    fn a_handshake_backs_up_beyond_16_kib() {
        let mut replies = Replies::new();
        replies.append(|out| out.resize(HANDSHAKE_UNSENT_BYTES_MAX, 0));
        assert!(!replies.handshake_backs_up());
        replies.append(|out| out.push(0));
        assert!(replies.handshake_backs_up());
    }

    #[test]
    fn a_send_that_has_as_much_as_it_may_takes_no_part_more() {
        let mut replies = Replies::new();
        replies.begin_stream(1);
        let rest = SEND_BYTES_MAX - wire::SIMPLE_REPLY_BYTES;
        replies.stream(rest as u32, filled(0, rest), false);
        replies.stream(1, filled(0, 1), true);
        for length in [SEND_BYTES_MAX, 1] {
            let parts = replies.begin_send().unwrap();
            assert_eq!(bytes(&parts).len(), length);
            replies.end_send(parts);
        }
    }

    #[test]
    fn what_is_kept_for_the_next_sends_is_bounded_and_is_kept_under_tls_too() {
        let mut replies = Replies::new();
        replies.keep((0..SPARE_MAX + 10).map(|_| Part::Bytes(vec![1])).collect());
        assert_eq!(replies.spare_bytes.len(), SPARE_MAX);
        assert!(replies.spare_parts.is_empty() && replies.spare_parts.capacity() >= SPARE_MAX);
        let mut replies = Replies::new();
        replies.done(1, 0);
        let sealed = replies.begin_sealed_send(|plain| vec![Part::Bytes(vec![0; bytes(plain).len()])]).unwrap();
        assert_eq!((bytes(&sealed), replies.spare_bytes.len()), (vec![0; 16], 1));
        assert_eq!(replies.end_send(sealed).replies, 1);
    }
}
