//! The disk as a guest sees it: features, config space, and what one request asks for.
//!
//! Source: VIRTIO 1.2, section 5.2. A request is validated completely here, on a copy of its header, before anything is
//! done: after this its operation, range and direction are as the block layer wants them.

use super::chain::{self, Chain};
use super::guest::{GuestMemory, Span};
use super::rule::Rule;
use super::wire::{
    ID_BYTES, RANGE_BYTES, RANGE_UNMAP, REQUEST_HEADER_BYTES, SECTOR_BYTES, feature, protocol, request, status,
};
use crate::export::Export;
use crate::memory::PIECE_BYTES_MAX;
use mqfq_blk::request::{Op, Status};

/// Queues of a disk, at most.
pub const QUEUES_MAX: u16 = 64;

/// Bytes of the config space up to where `write_zeroes_may_unmap` and its padding end.
pub const CONFIG_BYTES: usize = 60;

/// Where the byte lies that a guest may write: 1 if its writes may stay in a cache until it flushes.
pub const WRITEBACK_AT: usize = 32;

/// Largest range of one discard or zeroing that is announced, bytes: larger ones are taken, in pieces.
const RANGE_BYTES_MAX: u32 = 4 << 20;

/// Ranges of one discard or zeroing, at most: each is handed over by itself, and all end at once.
const RANGES_MAX: usize = 16;

/// Most segments of one request that are announced: with header and status they fit a queue of 128.
const SEGMENTS_MAX: u32 = 126;

/// Features that are offered beside the disk's own. A segment may have any length, so BLK_SIZE_MAX is not one of them:
/// SeaBIOS 1.16 keeps its product with [`SEGMENTS_MAX`] in 16 bits, and reads nothing if these are zero.
const OFFERED: u64 = feature::BLK_SEG_MAX
    | feature::BLK_BLK_SIZE
    | feature::BLK_FLUSH
    | feature::BLK_TOPOLOGY
    | feature::BLK_CONFIG_WCE
    | feature::BLK_MQ
    | feature::BLK_DISCARD
    | feature::BLK_WRITE_ZEROES
    | feature::LOG_ALL
    | feature::INDIRECT
    | feature::EVENT_IDX
    | feature::PROTOCOL_FEATURES
    | feature::VERSION_1;

/// Protocol features that are offered.
pub const PROTOCOL: u64 = protocol::MQ
    | protocol::LOG_SHMFD
    | protocol::REPLY_ACK
    | protocol::BACKEND_REQ
    | protocol::CONFIG
    | protocol::INFLIGHT_SHMFD
    | protocol::RESET_DEVICE
    | protocol::CONFIGURE_MEM_SLOTS;

/// A guest's disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    size_bytes: u64,
    offset_bytes: u64,
    block_bytes: u32,
    preferred_bytes: u32,
    /// Largest piece in which a request goes to the device, a multiple of the block.
    piece_bytes: u32,
    read_only: bool,
    id: [u8; ID_BYTES],
}

/// A further range of a request that has several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The operation, as in [`DiskRequest::Io`].
    pub op: Op,
    /// First byte, on the device.
    pub offset_bytes: u64,
    /// Length of all pieces.
    pub length_bytes: u64,
}

/// Operation that a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskRequest {
    /// `length_bytes` from `offset_bytes` of the device on; a flush has the disk's first byte and no length. A read's
    /// bytes go to the chain's memory to write, a write's come from its memory to read, behind the header. This is the
    /// first of several ranges; the others are the chain's.
    Io {
        /// The operation.
        op: Op,
        /// First byte, on the device.
        offset_bytes: u64,
        /// Length of all pieces.
        length_bytes: u64,
    },
    /// The disk's name.
    Id,
}

impl DiskRequest {
    /// Its place among the names of requests.
    pub fn place(self) -> usize {
        match self {
            DiskRequest::Io { op, .. } => op.index(),
            // No guest asks for extents.
            DiskRequest::Id => Op::Extents.index(),
        }
    }
}

/// Names of requests, by [`DiskRequest::place`]; unknown ones and those refused last.
pub const REQUESTS: &[&str] = &["read", "write", "flush", "discard", "write_zeroes", "get_id", "refused"];

/// A request that ends at once, with a status and the rule that it breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Status told to the guest.
    pub status: u8,
    /// Rule that it broke.
    pub rule: Rule,
}

impl Disk {
    /// The disk that shows `export`, with its size and access now.
    pub fn new(export: &Export) -> Disk {
        let block = export.block;
        let mut id = [0; ID_BYTES];
        let length = export.name.len().min(ID_BYTES);
        id[..length].copy_from_slice(&export.name.as_bytes()[..length]);
        Disk {
            size_bytes: export.size_now_bytes(),
            offset_bytes: export.offset_bytes,
            block_bytes: block.min_bytes,
            preferred_bytes: block.preferred_bytes,
            piece_bytes: 1 << block.payload_bytes_max.ilog2(),
            read_only: export.is_read_only(),
            id,
        }
    }

    /// Bits for GET_FEATURES.
    pub fn features(&self) -> u64 {
        OFFERED | if self.read_only { feature::BLK_RO } else { 0 }
    }

    /// Sees anew how long `export` is, and whether it may be written to.
    pub fn look_again(&mut self, export: &Export) {
        (self.size_bytes, self.read_only) = (export.size_now_bytes(), export.is_read_only());
    }

    /// Its capacity, bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Answer to GET_ID.
    pub fn id(&self) -> &[u8; ID_BYTES] {
        &self.id
    }

    /// Largest piece of a read or write, bytes.
    pub fn piece_bytes(&self) -> u32 {
        self.piece_bytes
    }

    /// Largest piece of a read or write that is copied, bytes.
    pub fn copy_bytes(&self) -> u32 {
        self.piece_bytes.min(PIECE_BYTES_MAX).max(self.block_bytes)
    }

    /// Largest piece of a discard or zeroing, bytes.
    pub fn range_bytes(&self) -> u32 {
        RANGE_BYTES_MAX
    }

    /// Block that pieces are multiples of, bytes.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// The config space.
    pub fn config(&self, writeback: bool) -> [u8; CONFIG_BYTES] {
        let logical_bytes = self.block_bytes.max(SECTOR_BYTES as u32);
        // The smallest write without a read before it; the exponent is of logical blocks.
        let physical_exp = (self.preferred_bytes / logical_bytes).max(1).ilog2().min(15) as u8;
        let range_sectors = RANGE_BYTES_MAX / SECTOR_BYTES as u32;
        let mut config = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.size_bytes / SECTOR_BYTES).to_le_bytes());
        put(12, &SEGMENTS_MAX.to_le_bytes());
        put(20, &logical_bytes.to_le_bytes());
        put(24, &[physical_exp, 0]);
        // Least and best I/O, in logical blocks.
        put(26, &1u16.to_le_bytes());
        put(28, &(self.preferred_bytes / logical_bytes).max(1).to_le_bytes());
        put(WRITEBACK_AT, &[u8::from(writeback), 0]);
        put(34, &QUEUES_MAX.to_le_bytes());
        put(36, &range_sectors.to_le_bytes());
        put(40, &(RANGES_MAX as u32).to_le_bytes());
        put(44, &(logical_bytes / SECTOR_BYTES as u32).to_le_bytes());
        put(48, &range_sectors.to_le_bytes());
        put(52, &(RANGES_MAX as u32).to_le_bytes());
        put(56, &[1]);
        config
    }

    /// Operation that a chain asks for, with the status byte, which is taken off the end of its memory to write.
    ///
    /// # Errors
    /// The rule that a chain without a status byte breaks; inside, the refusal of a request.
    pub fn ask(&self, memory: &GuestMemory, chain: &mut Chain) -> Result<(Span, Result<DiskRequest, Refused>), Rule> {
        let last = chain.writable.last_mut().ok_or(Rule::NoStatus)?;
        let status = last.part(last.length_bytes - 1, 1);
        if last.length_bytes == 1 {
            chain.writable.pop();
        } else {
            *last = last.part(0, last.length_bytes - 1);
        }
        Ok((status, self.validate(memory, chain)))
    }

    fn validate(&self, memory: &GuestMemory, chain: &mut Chain) -> Result<DiskRequest, Refused> {
        let ioerr = |rule| Refused { status: status::IOERR, rule };
        let unsupported = Refused { status: status::UNSUPP, rule: Rule::UnknownRequest };
        let readable = chain::length_bytes(&chain.readable);
        let out = readable.checked_sub(REQUEST_HEADER_BYTES as u64).ok_or(ioerr(Rule::NoHeader))?;
        let into = chain::length_bytes(&chain.writable);
        let [kind, sector] = header(memory, &chain.readable);
        let kind = kind as u32;
        let changes = matches!(kind, request::OUT | request::DISCARD | request::WRITE_ZEROES);
        if changes && self.read_only {
            return Err(ioerr(Rule::ReadOnly));
        }
        match kind {
            request::IN | request::OUT => {
                let (op, length, other) = if changes { (Op::Write, out, into) } else { (Op::Read, into, out) };
                if other > 0 || u32::try_from(length).is_err() {
                    return Err(ioerr(Rule::BadRange));
                }
                self.range(op, sector, length).ok_or(ioerr(Rule::BadRange))
            }
            request::FLUSH => Ok(DiskRequest::Io { op: Op::Flush, offset_bytes: self.offset_bytes, length_bytes: 0 }),
            request::GET_ID if into >= ID_BYTES as u64 => Ok(DiskRequest::Id),
            request::GET_ID => Err(ioerr(Rule::BadRange)),
            request::DISCARD | request::WRITE_ZEROES => {
                let count = out as usize / RANGE_BYTES;
                if out % RANGE_BYTES as u64 != 0 || !(1..=RANGES_MAX).contains(&count) || into > 0 {
                    return Err(ioerr(Rule::BadRange));
                }
                // The last first: they are taken off the end, and of the first is what remains. A chain has none when
                // it was read.
                for number in (0..count).rev() {
                    let mut range = [0; RANGE_BYTES];
                    let at = REQUEST_HEADER_BYTES + number * RANGE_BYTES;
                    chain::copy_to(memory, &chain.readable, at as u32, &mut range);
                    let sector = u64::from_le_bytes(*range.first_chunk().expect("16 bytes"));
                    let sectors = u32::from_le_bytes([range[8], range[9], range[10], range[11]]);
                    let flags = u32::from_le_bytes(*range.last_chunk().expect("16 bytes"));
                    let op = match (kind, flags) {
                        (request::DISCARD, 0) => Op::Discard,
                        (request::WRITE_ZEROES, 0 | RANGE_UNMAP) => Op::WriteZeroes { may_unmap: flags == RANGE_UNMAP },
                        _ => return Err(unsupported),
                    };
                    let asked = self.range(op, sector, u64::from(sectors) * SECTOR_BYTES);
                    let Some(DiskRequest::Io { op, offset_bytes, length_bytes }) = asked else {
                        return Err(ioerr(Rule::BadRange));
                    };
                    chain.ranges.push(Range { op, offset_bytes, length_bytes });
                }
                let Range { op, offset_bytes, length_bytes } = chain.ranges.pop().expect("one at least");
                Ok(DiskRequest::Io { op, offset_bytes, length_bytes })
            }
            _ => Err(unsupported),
        }
    }

    /// A range of the disk, on the device.
    fn range(&self, op: Op, sector: u64, length_bytes: u64) -> Option<DiskRequest> {
        let from = sector.checked_mul(SECTOR_BYTES)?;
        let end = from.checked_add(length_bytes)?;
        // A power of two, so its lower bits are what may not be set.
        let block_bytes = u64::from(self.block_bytes).max(SECTOR_BYTES);
        let is_aligned = (from | length_bytes) & (block_bytes - 1) == 0;
        let fits = length_bytes > 0 && is_aligned && end <= self.size_bytes;
        fits.then_some(DiskRequest::Io { op, offset_bytes: self.offset_bytes + from, length_bytes })
    }
}

/// Status told to a guest about an end.
pub fn status_of(status: Status) -> u8 {
    match status {
        Status::Ok => status::OK,
        Status::Unsupported => status::UNSUPP,
        Status::Io | Status::NoSpace | Status::Invalid | Status::Shutdown | Status::TimedOut | Status::Recalled => {
            status::IOERR
        }
    }
}

/// The header of a request, which `readable` has: its kind in the lower half of the first word, its sector.
fn header(memory: &GuestMemory, readable: &[Span]) -> [u64; 2] {
    let first = readable.first().filter(|span| span.length_bytes as usize >= REQUEST_HEADER_BYTES);
    let lying = first.and_then(|span| {
        let (memory, offset) = memory.memory(span);
        memory.words(offset)
    });
    let words = lying.unwrap_or_else(|| {
        // In several places, or at an odd address.
        let mut bytes = [0; REQUEST_HEADER_BYTES];
        chain::copy_to(memory, readable, 0, &mut bytes);
        let (words, _) = bytes.as_chunks::<8>();
        [u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])]
    });
    words.map(u64::from_le)
}

#[cfg(test)]
pub(in crate::vhost_user_blk) mod tests {
    use super::super::split::tests::{queue, write};
    use super::*;
    use crate::export::{BlockSizes, ExportId, ExportState, TenantId};
    use crate::memory::TenantMemory;
    use mqfq_blk::FlowId;
    use mqfq_blk::client::DeviceIndex;
    use mqfq_blk::slots::Slot;

    /// An export of 1 MiB from byte 4096 of its device on.
    pub(in crate::vhost_user_blk) fn export() -> Export {
        Export {
            id: ExportId(Slot::first(0)),
            name: "alice-root".to_owned(),
            description: String::new(),
            device: DeviceIndex(0),
            flow: FlowId(0),
            tenant: TenantId(Slot::first(0)),
            state: ExportState::default(),
            offset_bytes: 4096,
            size_bytes: 1 << 20,
            read_only: false,
            block: BlockSizes {
                min_bytes: 1,
                preferred_bytes: 4096,
                payload_bytes_max: 256 << 10,
                pages_align_bytes: 0,
            },
            memory: TenantMemory::unbounded(),
            caps: mqfq_blk::cap::Caps::none(),
        }
    }

    /// Asks for `kind` with `out` behind the header and `into` bytes to write.
    fn ask(disk: &Disk, kind: u32, sector: u64, out: &[u8], into: u32) -> Result<DiskRequest, Refused> {
        let (memory, _) = queue(4, false);
        write(&memory, 0x20000, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes(), out].concat());
        let mut chain = Chain::default();
        chain.readable.push(memory.span(0x20000, 16 + out.len() as u32).unwrap());
        chain.writable.push(memory.span(0x30000, into + 1).unwrap());
        let (status, asked) = disk.ask(&memory, &mut chain).unwrap();
        assert_eq!((status.guest_addr, status.length_bytes), (0x30000 + u64::from(into), 1));
        assert_eq!(chain::length_bytes(&chain.writable), u64::from(into));
        asked
    }

    fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
        [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
    }

    #[test]
    fn several_ranges_are_validated_before_the_first_is_done() {
        let disk = Disk::new(&export());
        let (memory, _) = queue(4, false);
        let ranges = [range(0, 1, 0), range(8, 2, RANGE_UNMAP), range(16, 1, 0)].concat();
        let header = [&request::WRITE_ZEROES.to_le_bytes()[..], &[0; 12]].concat();
        write(&memory, 0x20000, &[header, ranges].concat());
        let mut chain = Chain::default();
        chain.readable.push(memory.span(0x20000, 16 + 48).unwrap());
        chain.writable.push(memory.span(0x30000, 1).unwrap());
        let zero = |may_unmap| Op::WriteZeroes { may_unmap };
        assert_eq!(disk.ask(&memory, &mut chain).unwrap().1, io(zero(false), 4096, 512));
        let further = |op, offset_bytes, length_bytes| Range { op, offset_bytes, length_bytes };
        assert_eq!(chain.ranges, [further(zero(false), 4096 + 8192, 512), further(zero(true), 8192, 1024)]);
    }

    fn io(op: Op, offset_bytes: u64, length_bytes: u64) -> Result<DiskRequest, Refused> {
        Ok(DiskRequest::Io { op, offset_bytes, length_bytes })
    }

    #[test]
    fn each_kind_is_understood() {
        let disk = Disk::new(&export());
        assert_eq!(ask(&disk, request::IN, 1, &[], 1024), io(Op::Read, 4096 + 512, 1024));
        assert_eq!(ask(&disk, request::OUT, 2047, &[0; 512], 0), io(Op::Write, (1 << 20) + 4096 - 512, 512));
        assert_eq!(ask(&disk, request::FLUSH, 0, &[], 0), io(Op::Flush, 4096, 0));
        assert_eq!(ask(&disk, request::GET_ID, 0, &[], 20), Ok(DiskRequest::Id));
        assert_eq!(ask(&disk, request::DISCARD, 0, &range(8, 2040, 0), 0), io(Op::Discard, 8192, 2040 * 512));
        let zero = |may_unmap| io(Op::WriteZeroes { may_unmap }, 4096, 512);
        assert_eq!(ask(&disk, request::WRITE_ZEROES, 0, &range(0, 1, 0), 0), zero(false));
        assert_eq!(ask(&disk, request::WRITE_ZEROES, 0, &range(0, 1, RANGE_UNMAP), 0), zero(true));
        assert_eq!(&disk.id()[..11], b"alice-root\0");
    }

    #[test]
    fn what_is_not_in_the_disk_or_does_not_fit_its_kind_is_refused() {
        let disk = Disk::new(&export());
        let ioerr = |rule| Err(Refused { status: status::IOERR, rule });
        let unsupported = Err(Refused { status: status::UNSUPP, rule: Rule::UnknownRequest });
        for (kind, sector, out, into) in [
            (request::IN, 2048, vec![], 512),
            (request::IN, 2047, vec![], 1024),
            (request::IN, u64::MAX, vec![], 512),
            (request::IN, 1 << 55, vec![], 512),
            (request::IN, 0, vec![], 511),
            (request::IN, 0, vec![], 0),
            (request::IN, 0, vec![0; 512], 512),
            (request::OUT, 0, vec![0; 512], 1),
            (request::OUT, 2048, vec![0; 512], 0),
            (request::GET_ID, 0, vec![], 19),
            (request::DISCARD, 0, range(2047, 2, 0), 0),
            (request::DISCARD, 0, range(u64::MAX, u32::MAX, 0), 0),
            (request::DISCARD, 0, range(0, 0, 0), 0),
            (request::DISCARD, 0, vec![0; 15], 0),
            (request::DISCARD, 0, vec![0; 32], 0),
            (request::DISCARD, 0, [range(0, 1, 0), range(2048, 1, 0)].concat(), 0),
            (request::DISCARD, 0, range(0, 1, 0).repeat(17), 0),
        ] {
            assert_eq!(ask(&disk, kind, sector, &out, into), ioerr(Rule::BadRange), "{kind} at {sector}, {into}");
        }
        assert_eq!(ask(&disk, request::DISCARD, 0, &range(0, 1, RANGE_UNMAP), 0), unsupported);
        assert_eq!(ask(&disk, request::WRITE_ZEROES, 0, &range(0, 1, 2), 0), unsupported);
        assert_eq!(ask(&disk, 14, 0, &[], 0), unsupported);
        let read_only = Disk::new(&Export { read_only: true, ..export() });
        for kind in [request::OUT, request::DISCARD, request::WRITE_ZEROES] {
            assert_eq!(ask(&read_only, kind, 0, &range(0, 1, 0), 0), ioerr(Rule::ReadOnly));
        }
        assert_eq!(ask(&read_only, request::IN, 0, &[], 512), io(Op::Read, 4096, 512));
        assert!(read_only.features() & feature::BLK_RO != 0 && disk.features() & feature::BLK_RO == 0);
        let block = BlockSizes { min_bytes: 4096, ..export().block };
        let large_blocks = Disk::new(&Export { block, ..export() });
        assert_eq!(ask(&large_blocks, request::IN, 1, &[], 4096), ioerr(Rule::BadRange));
        assert_eq!(ask(&large_blocks, request::IN, 8, &[], 4096), io(Op::Read, 8192, 4096));
    }

    #[test]
    fn the_config_space_is_as_the_specification_lays_it_out() {
        let config = Disk::new(&export()).config(true);
        let word = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
        assert_eq!(u64::from_le_bytes(config[..8].try_into().unwrap()), 2048, "sectors");
        assert_eq!([word(8), word(12), word(20)], [0, 126, 512], "size_max, seg_max, blk_size");
        assert_eq!((config[24], config[WRITEBACK_AT], config[34]), (3, 1, 64), "4096 is 2^3 logical blocks; 64 queues");
        assert_eq!([word(36), word(40), word(48), word(52), config[56].into()], [8192, 16, 8192, 16, 1]);
        // With blocks of 4 KiB and pieces of 64 KiB: logical blocks, best I/O in them, and the alignment of discards in
        // sectors.
        for (preferred_bytes, exponent, best) in [(4096, 0, 1), (16384, 2, 4)] {
            let payload_bytes_max = 65536 + 4096;
            let block = BlockSizes { min_bytes: 4096, preferred_bytes, payload_bytes_max, ..export().block };
            let disk = Disk::new(&Export { block, ..export() });
            let config = disk.config(false);
            let word = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
            assert_eq!([word(20), word(28), word(44)], [4096, best, 8]);
            assert_eq!((config[24], config[26], config[WRITEBACK_AT]), (exponent, 1, 0));
            let pieces = [disk.piece_bytes(), disk.copy_bytes(), disk.range_bytes(), disk.block_bytes()];
            assert_eq!(pieces, [65536, 65536, 512 * word(36), 4096], "as it is told");
        }
    }

    #[test]
    fn a_header_is_read_wherever_it_lies() {
        let disk = Disk::new(&export());
        let (memory, _) = queue(4, false);
        let header = [&request::IN.to_le_bytes()[..], &[0; 4], &8u64.to_le_bytes()].concat();
        // Whole, with data behind it that are not its own, in two places, and at an odd address.
        for (first, second) in [((0x20000, 16), None), ((0x21000, 10), Some(0x23000)), ((0x22003, 16), None)] {
            let (at, length) = first;
            write(&memory, at, &[&header[..length as usize], &[0xff; 16]].concat());
            let mut chain = Chain::default();
            chain.readable.push(memory.span(at, length).unwrap());
            if let Some(at) = second {
                write(&memory, at, &header[length as usize..]);
                chain.readable.push(memory.span(at, 16 - length).unwrap());
            }
            chain.writable.push(memory.span(0x30000, 513).unwrap());
            assert_eq!(disk.ask(&memory, &mut chain).unwrap().1, io(Op::Read, 4096 + 8 * 512, 512), "at {at:#x}");
        }
    }

    #[test]
    fn a_guest_is_told_how_its_request_ended() {
        assert_eq!([Status::Ok, Status::Unsupported].map(status_of), [status::OK, status::UNSUPP]);
        let others =
            [Status::Io, Status::NoSpace, Status::Invalid, Status::Shutdown, Status::TimedOut, Status::Recalled];
        assert_eq!(others.map(status_of), [status::IOERR; 6]);
    }
}
