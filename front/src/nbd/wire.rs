//! The bytes of the protocol: numbers, request headers, and the writers of replies.
//!
//! Source: NBD protocol, doc/proto.md of NetworkBlockDevice/nbd as of 2025-05-31, and of its branch
//! extension-ext-header for extended headers. All integers are big endian. Nothing
//! here decides anything; [`super::negotiate`], [`super::validate`] and [`super::reply`] do.

use mqfq_blk::request::Op;

/// First 8 bytes of a server's greeting, "NBDMAGIC".
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Then, and before each option: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Magic before each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic before each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// No request has this magic.
pub const NO_MAGIC: u64 = u64::MAX;
/// Magic before each request with an extended header.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Magic before each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic before each structured reply chunk.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// Magic before each reply chunk with an extended header.
pub const EXTENDED_CHUNK_MAGIC: u32 = 0x6e8a_278c;

/// Bytes of the client's flags.
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// Bytes of an option's header.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a request's header.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a request's extended header.
pub const EXTENDED_REQUEST_BYTES: usize = 32;
/// Bytes of a simple reply without data.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a structured reply chunk's header.
pub const CHUNK_HEADER_BYTES: usize = 20;
/// Bytes of a reply chunk's extended header.
pub const EXTENDED_CHUNK_HEADER_BYTES: usize = 32;
/// Zeroes after the reply to EXPORT_NAME, for a client that did not refuse them.
pub const EXPORT_NAME_ZEROES_BYTES: usize = 124;

/// Handshake flags, the same bits from the server and in the client's answer.
pub mod handshake {
    /// Options other than EXPORT_NAME may be used.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No zeroes after the reply to EXPORT_NAME.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options of a client.
pub mod option {
    /// Choose an export and begin; cannot fail but by closing.
    pub const EXPORT_NAME: u32 = 1;
    /// Give up.
    pub const ABORT: u32 = 2;
    /// Name all exports.
    pub const LIST: u32 = 3;
    /// Encrypt.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and begin.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Name the metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use headers with lengths of 64 bits.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export.
    pub const SERVER: u32 = 2;
    /// One fact of an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Unknown option.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The server's policy forbids it.
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    /// The option makes no sense.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// Nothing but TLS and leaving before TLS.
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The option is too long.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
    /// Extended headers go before.
    pub const ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;
}

/// Kinds of facts in INFO replies.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's own name.
    pub const NAME: u16 = 1;
    /// Text for humans.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and largest sizes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Flags of an export's abilities.
pub mod transmission {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Nothing may be changed.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag works.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// The FAST_ZERO flag works.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Flags of requests.
pub mod request {
    /// Stable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES: do not release storage.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ: one chunk of data.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS: one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES: fail unless it takes less time than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// With extended headers: so many bytes as the length follow.
    pub const PAYLOAD: u16 = 1 << 5;
}

/// Types of structured reply chunks.
pub mod chunk {
    /// Flag of the last chunk of a reply.
    pub const DONE: u16 = 1;
    /// No payload.
    pub const NONE: u16 = 0;
    /// Offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// Metadata context and extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// BLOCK_STATUS with extended headers.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// Error number and text.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// The one metadata context we know.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Extent flag of base:allocation: nothing is stored.
pub const STATE_HOLE: u32 = 1 << 0;
/// Extent flag of base:allocation: reads as zero.
pub const STATE_ZERO: u32 = 1 << 1;
/// Our number for base:allocation.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// Commands that the protocol defines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum Command {
    /// Read bytes.
    Read = 0,
    /// Write the bytes that follow the header.
    Write = 1,
    /// Close the connection.
    Disconnect = 2,
    /// Make completed writes stable.
    Flush = 3,
    /// Forget bytes.
    Trim = 4,
    /// Prefetch. Not supported here.
    Cache = 5,
    /// Write zeroes.
    WriteZeroes = 6,
    /// Describe a range.
    BlockStatus = 7,
}

impl Command {
    /// All of them, in the order of their numbers.
    pub const ALL: [Command; 8] = [
        Command::Read,
        Command::Write,
        Command::Disconnect,
        Command::Flush,
        Command::Trim,
        Command::Cache,
        Command::WriteZeroes,
        Command::BlockStatus,
    ];

    /// The command that asks for an operation.
    pub const fn of(op: Op) -> Command {
        match op {
            Op::Read => Command::Read,
            Op::Write => Command::Write,
            Op::Flush => Command::Flush,
            Op::Discard => Command::Trim,
            Op::WriteZeroes { .. } | Op::FastZeroes { .. } => Command::WriteZeroes,
            Op::Extents => Command::BlockStatus,
        }
    }

    /// The command of this number.
    pub fn from_number(number: u16) -> Option<Command> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Command::Read => "read",
            Command::Write => "write",
            Command::Disconnect => "disconnect",
            Command::Flush => "flush",
            Command::Trim => "trim",
            Command::Cache => "cache",
            Command::WriteZeroes => "write_zeroes",
            Command::BlockStatus => "block_status",
        }
    }
}

/// Error numbers that a reply may carry. Source: NBD protocol, "error values".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Errno {
    /// The client lacks the right.
    Perm = 1,
    /// The device failed.
    Io = 5,
    /// The request makes no sense.
    Inval = 22,
    /// No space, or past the end.
    NoSpc = 28,
    /// Too long.
    Overflow = 75,
    /// Zeroing would be slow.
    NotSup = 95,
    /// The server goes away.
    Shutdown = 108,
}

/// A request's header, as it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHeader {
    /// Bits of [`request`].
    pub flags: u16,
    /// A [`Command`], if it is one.
    pub command: u16,
    /// The client's name for the request.
    pub cookie: u64,
    /// First byte, in the export.
    pub offset_bytes: u64,
    /// Length of the request, bytes; below 2^32 without extended headers.
    pub length_bytes: u64,
}

impl RequestHeader {
    /// The magic and the fields, of which `length` reads the last.
    #[inline]
    fn read<'a>(bytes: &'a [u8], length: impl FnOnce(&mut Reader<'a>) -> Option<u64>) -> Option<(u32, RequestHeader)> {
        let mut reader = Reader(bytes);
        let magic = reader.u32()?;
        let (flags, command, cookie) = (reader.u16()?, reader.u16()?, reader.u64()?);
        let (offset_bytes, length_bytes) = (reader.u64()?, length(&mut reader)?);
        Some((magic, RequestHeader { flags, command, cookie, offset_bytes, length_bytes }))
    }

    /// Reads a header; `None` if it does not begin with the magic `expected`: [`REQUEST_MAGIC`], or [`NO_MAGIC`].
    pub fn decode(bytes: &[u8; REQUEST_BYTES], expected: u64) -> Option<RequestHeader> {
        let (magic, header) = RequestHeader::read(bytes, |reader| Some(reader.u32()?.into()))?;
        (u64::from(magic) == expected).then_some(header)
    }

    /// Reads an extended header; `None` if it does not begin with the magic.
    pub fn decode_extended(bytes: &[u8; EXTENDED_REQUEST_BYTES]) -> Option<RequestHeader> {
        let (magic, header) = RequestHeader::read(bytes, Reader::u64)?;
        (magic == EXTENDED_REQUEST_MAGIC).then_some(header)
    }

    /// Appends the extended header.
    pub fn encode_extended(&self, out: &mut Vec<u8>) {
        out.extend(EXTENDED_REQUEST_MAGIC.to_be_bytes());
        out.extend(self.flags.to_be_bytes());
        out.extend(self.command.to_be_bytes());
        [self.cookie, self.offset_bytes, self.length_bytes].iter().for_each(|number| out.extend(number.to_be_bytes()));
    }

    /// Appends the header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend(REQUEST_MAGIC.to_be_bytes());
        out.extend(self.flags.to_be_bytes());
        out.extend(self.command.to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
        out.extend(self.offset_bytes.to_be_bytes());
        out.extend((self.length_bytes as u32).to_be_bytes());
    }
}

/// Takes integers and byte strings off the front of a slice; `None` where it ends too early.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    /// The next 16-bit integer.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 32-bit integer.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 64-bit integer.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A 32-bit length and as many bytes.
    pub fn counted(&mut self) -> Option<&'a [u8]> {
        let count = self.u32()?;
        self.bytes(count as usize)
    }
}

/// Appends a reply to an option, its data in pieces.
pub fn put_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let length_bytes: usize = data.iter().map(|piece| piece.len()).sum();
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((length_bytes as u32).to_be_bytes());
    data.iter().for_each(|piece| out.extend(*piece));
}

/// Appends a simple reply; `error` 0 means success, and then the data of a read must follow.
pub fn put_simple_reply(out: &mut Vec<u8>, error: u32, cookie: u64) {
    let mut reply = [0; SIMPLE_REPLY_BYTES];
    reply[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    reply[4..8].copy_from_slice(&error.to_be_bytes());
    reply[8..16].copy_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&reply);
}

/// Appends the header of the last chunk of a structured reply; `length_bytes` of payload must follow.
pub fn put_last_chunk(out: &mut Vec<u8>, kind: u16, cookie: u64, length_bytes: u32) {
    put_chunk(out, chunk::DONE, kind, cookie, length_bytes);
}

/// Appends the header of a chunk of a structured reply; `flags` 0: more chunks of it follow.
pub fn put_chunk(out: &mut Vec<u8>, flags: u16, kind: u16, cookie: u64, length_bytes: u32) {
    let mut header = [0; CHUNK_HEADER_BYTES];
    header[0..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&flags.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..20].copy_from_slice(&length_bytes.to_be_bytes());
    out.extend_from_slice(&header);
}

/// Appends the extended header of a chunk of a reply to a request at `offset_bytes`.
#[cold]
pub fn put_extended_chunk(out: &mut Vec<u8>, flags: u16, kind: u16, cookie: u64, offset_bytes: u64, length_bytes: u32) {
    let mut header = [0; EXTENDED_CHUNK_HEADER_BYTES];
    header[0..4].copy_from_slice(&EXTENDED_CHUNK_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&flags.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..24].copy_from_slice(&offset_bytes.to_be_bytes());
    header[24..32].copy_from_slice(&u64::from(length_bytes).to_be_bytes());
    out.extend_from_slice(&header);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_header_is_28_bytes_in_the_order_of_the_protocol() {
        let header =
            RequestHeader { flags: 0x0102, command: 0x0304, cookie: 5, offset_bytes: 6, length_bytes: 0x0708_090a };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        let expected = [
            &[0x25, 0x60, 0x95, 0x13, 1, 2, 3, 4][..],
            &[0, 0, 0, 0, 0, 0, 0, 5],
            &[0, 0, 0, 0, 0, 0, 0, 6],
            &[7, 8, 9, 10],
        ];
        assert_eq!(bytes, expected.concat());
        assert_eq!(RequestHeader::decode(bytes.as_slice().try_into().unwrap(), REQUEST_MAGIC.into()), Some(header));
        assert_eq!(RequestHeader::decode(bytes.as_slice().try_into().unwrap(), NO_MAGIC), None);
    }

    #[test]
    fn an_extended_header_is_32_bytes_with_a_length_of_64_bits() {
        let header = RequestHeader { flags: 0x0102, command: 3, cookie: 4, offset_bytes: 5, length_bytes: 6 << 32 };
        let mut bytes = Vec::new();
        header.encode_extended(&mut bytes);
        let [four, five, six] = [4_u64, 5, 6 << 32].map(u64::to_be_bytes);
        assert_eq!(bytes, [&[0x21, 0xe4, 0x1c, 0x71, 1, 2, 0, 3][..], &four, &five, &six].concat());
        let mut bytes: [u8; EXTENDED_REQUEST_BYTES] = bytes.try_into().unwrap();
        assert_eq!(RequestHeader::decode_extended(&bytes), Some(header));
        bytes[0] = 0x25;
        assert_eq!(RequestHeader::decode_extended(&bytes), None);
        let mut out = Vec::new();
        put_extended_chunk(&mut out, chunk::DONE, chunk::NONE, 4, 5, 6);
        let [four, five, six] = [4_u64, 5, 6].map(u64::to_be_bytes);
        assert_eq!(out, [&[0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 0][..], &four, &five, &six].concat());
    }

    #[test]
    fn another_magic_is_not_a_request() {
        // The magic of extended requests, which were not negotiated.

        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&0x21e4_1c71_u32.to_be_bytes());
        assert_eq!(RequestHeader::decode(&bytes, REQUEST_MAGIC.into()), None);
    }

    #[test]
    fn a_commands_number_is_its_place() {
        for (number, command) in Command::ALL.into_iter().enumerate() {
            assert_eq!(command as usize, number);
            assert_eq!(Command::from_number(number as u16), Some(command));
        }
        assert_eq!(Command::from_number(8), None);
    }

    #[test]
    fn replies_have_the_lengths_of_the_protocol() {
        let mut out = Vec::new();
        put_simple_reply(&mut out, 22, 7);
        assert_eq!(out, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 0, 7]);
        out.clear();
        put_last_chunk(&mut out, chunk::ERROR, 7, 6);
        assert_eq!(out, [0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 6]);
        out.clear();
        put_option_reply(&mut out, option::LIST, option_reply::ERR_INVALID, &[b"no", b"!"]);
        let expected =
            [&[0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9][..], &[0, 0, 0, 3], &[0x80, 0, 0, 3], &[0, 0, 0, 3], b"no!"];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn a_reader_never_reads_past_the_end() {
        let mut reader = Reader(&[0, 0, 0, 2, b'a']);
        assert_eq!(reader.counted(), None, "two bytes promised, one there");
        let mut reader = Reader(&[0, 0, 0, 1, b'a', 0]);
        assert_eq!(reader.counted(), Some(&b"a"[..]));
        assert_eq!(reader.u16(), None);
        assert_eq!(reader.0, [0], "a failed read takes nothing");
    }
}
