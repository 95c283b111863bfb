//! The 64-byte submission queue entry, bit for bit, and what a valid one asks for.
//!
//! ```text
//!  dword  0   opcode 7:0 | FUSE 9:8 | PSDT 15:14 | CID 31:16         NVMe 1.3 section 4.2
//!         1   NSID
//!         4-5 MPTR   6-7 PRP1   8-9 PRP2
//!        10-11 SLBA                                                   sections 6.9, 6.14, 6.16
//!        12   NLB 15:0 (0's based) | DEAC 25 | FUA 30
//!  Dataset Management: 10 = NR 7:0 (0's based), 11 = AD 2             section 6.7
//! ```
//!
//! PRP1 and PRP2 are opaque handles of the host, since the controller moves no data. The one exception is the range
//! list of Dataset Management, which a controller must read: PRP1 is then an index into the queue's table of ranges
//! ([`crate::Controller::write_dataset_range`]).

use crate::completion::Status;
use crate::media::Work;

/// Opcodes of the NVM command set (NVMe 1.3 section 6, figure of opcodes) that the controller knows.
pub mod opcode {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}

/// The only namespace.
pub const NSID: u32 = 1;

/// "All namespaces", which Flush accepts (NVMe 1.3 section 6.1).
pub const NSID_ALL: u32 = u32::MAX;

/// Most logical blocks that one read, write or Write Zeroes can name: NLB has 16 bits and is 0's based.
pub const BLOCKS_MAX: u32 = 1 << 16;

const DEAC: u32 = 1 << 25;
const FUA: u32 = 1 << 30;
const AD: u32 = 1 << 2;

/// A submission queue entry. Fields are host-endian in memory and little-endian in [`SubmissionEntry::to_bytes`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, align(64))]
pub struct SubmissionEntry {
    dwords: [u32; 16],
}

const _: () = assert!(size_of::<SubmissionEntry>() == 64);

impl SubmissionEntry {
    /// A command with nothing but an opcode, an identifier (unique among the outstanding of its queue) and a namespace.
    pub fn new(opcode: u8, cid: u16, nsid: u32) -> SubmissionEntry {
        let mut entry = SubmissionEntry::default();
        entry.dwords[0] = u32::from(cid) << 16 | u32::from(opcode);
        entry.dwords[1] = nsid;
        entry
    }

    /// Read `blocks` logical blocks from `slba` on. `blocks` is 1..=[`BLOCKS_MAX`].
    pub fn read(cid: u16, slba: u64, blocks: u32, handle: u64) -> SubmissionEntry {
        SubmissionEntry::new(opcode::READ, cid, NSID).with_blocks(slba, blocks).with_prp1(handle)
    }

    /// Write `blocks` logical blocks from `slba` on; with `fua`, onto the medium before completion.
    pub fn write(cid: u16, slba: u64, blocks: u32, fua: bool, handle: u64) -> SubmissionEntry {
        SubmissionEntry::new(opcode::WRITE, cid, NSID).with_blocks(slba, blocks).with_fua(fua).with_prp1(handle)
    }

    /// Make `blocks` logical blocks read as zero; with `deallocate` (DEAC) the controller may release them.
    pub fn write_zeroes(cid: u16, slba: u64, blocks: u32, deallocate: bool, fua: bool) -> SubmissionEntry {
        let mut entry = SubmissionEntry::new(opcode::WRITE_ZEROES, cid, NSID).with_blocks(slba, blocks).with_fua(fua);
        entry.set(12, DEAC, deallocate);
        entry
    }

    /// Make all completed writes durable.
    pub fn flush(cid: u16) -> SubmissionEntry {
        SubmissionEntry::new(opcode::FLUSH, cid, NSID)
    }

    /// Deallocate the range at `range_index` of the queue's table. One range per command.
    pub fn deallocate(cid: u16, range_index: u16) -> SubmissionEntry {
        let mut entry = SubmissionEntry::new(opcode::DATASET_MANAGEMENT, cid, NSID).with_prp1(u64::from(range_index));
        entry.set(11, AD, true);
        entry
    }

    fn with_blocks(mut self, slba: u64, blocks: u32) -> SubmissionEntry {
        assert!((1..=BLOCKS_MAX).contains(&blocks), "{blocks} blocks do not fit into NLB (1..={BLOCKS_MAX})");
        self.dwords[10] = slba as u32;
        self.dwords[11] = (slba >> 32) as u32;
        self.dwords[12] |= blocks - 1;
        self
    }

    fn with_fua(mut self, fua: bool) -> SubmissionEntry {
        self.set(12, FUA, fua);
        self
    }

    /// This entry with PRP1 set.
    pub fn with_prp1(mut self, handle: u64) -> SubmissionEntry {
        self.dwords[6] = handle as u32;
        self.dwords[7] = (handle >> 32) as u32;
        self
    }

    fn set(&mut self, dword: usize, bit: u32, value: bool) {
        self.dwords[dword] = self.dwords[dword] & !bit | if value { bit } else { 0 };
    }

    /// This entry with one dword replaced, for fields without a method, valid or not.
    pub fn with_dword(mut self, dword: usize, value: u32) -> SubmissionEntry {
        self.dwords[dword] = value;
        self
    }

    /// The opcode (field OPC).
    pub fn opcode(&self) -> u8 {
        self.dwords[0] as u8
    }

    /// FUSE and PSDT as they stand in dword 0; both 0 in every command that is not part of a fused pair and uses PRPs.
    fn fuse_and_psdt(&self) -> u32 {
        self.dwords[0] & 0xc300
    }

    /// The command identifier (field CID).
    pub fn cid(&self) -> u16 {
        (self.dwords[0] >> 16) as u16
    }

    /// The namespace identifier (field NSID).
    pub fn nsid(&self) -> u32 {
        self.dwords[1]
    }

    /// PRP entry 1.
    pub fn prp1(&self) -> u64 {
        u64::from(self.dwords[7]) << 32 | u64::from(self.dwords[6])
    }

    /// PRP entry 2.
    pub fn prp2(&self) -> u64 {
        u64::from(self.dwords[9]) << 32 | u64::from(self.dwords[8])
    }

    /// SLBA: first logical block.
    pub fn slba(&self) -> u64 {
        u64::from(self.dwords[11]) << 32 | u64::from(self.dwords[10])
    }

    /// Logical blocks, 1..=65536: NLB plus one.
    pub fn blocks(&self) -> u32 {
        (self.dwords[12] & 0xffff) + 1
    }

    /// FUA of a read, write or Write Zeroes.
    pub fn fua(&self) -> bool {
        self.dwords[12] & FUA != 0
    }

    /// DEAC of a Write Zeroes.
    pub fn deac(&self) -> bool {
        self.dwords[12] & DEAC != 0
    }

    /// Number of ranges of a Dataset Management, 1..=256.
    pub fn ranges(&self) -> u32 {
        (self.dwords[10] & 0xff) + 1
    }

    /// AD of a Dataset Management: deallocate. Without it the command only gives hints.
    pub fn deallocates(&self) -> bool {
        self.dwords[11] & AD != 0
    }

    /// The bytes in a real submission ring.
    pub fn to_bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (chunk, dword) in bytes.chunks_exact_mut(4).zip(self.dwords) {
            chunk.copy_from_slice(&dword.to_le_bytes());
        }
        bytes
    }

    /// An entry from the bytes of a real submission ring.
    pub fn from_bytes(bytes: &[u8; 64]) -> SubmissionEntry {
        let mut dwords = [0; 16];
        for (dword, chunk) in dwords.iter_mut().zip(bytes.chunks_exact(4)) {
            *dword = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        }
        SubmissionEntry { dwords }
    }
}

impl std::fmt::Debug for SubmissionEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "opcode {:#04x} cid {} nsid {} slba {} ", self.opcode(), self.cid(), self.nsid(), self.slba())?;
        write!(f, "blocks {} dword12 {:#010x}", self.blocks(), self.dwords[12])
    }
}

/// One range of a Dataset Management command: dwords 1 to 3 of the 16-byte range definition (NVMe 1.3 section 6.7).
/// Its context attributes are hints and left out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DatasetRange {
    /// First logical block.
    pub slba: u64,
    /// Logical blocks; 0 is an empty range.
    pub blocks: u32,
}

/// The namespace: size and limits of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// Size, logical blocks.
    pub blocks: u64,
    /// Logical block, bytes: a power of two, 512..=4096.
    pub block_bytes: u32,
    /// MDTS: longest data transfer of one command, bytes. (NVMe 1.3 figure "Identify Controller", byte 77.)
    pub transfer_bytes_max: u32,
}

/// Checks an entry and returns its command. `range` reads the queue's range table (`None`: no such index).
///
/// # Errors
/// The status of the command. The order of the checks is the controller's choice (NVMe 1.3 section 4.6.1 leaves it
/// open); here: opcode, general fields, namespace, command fields, LBA range.
pub fn decode(
    entry: &SubmissionEntry,
    namespace: &Namespace,
    range: impl FnOnce(u64) -> Option<DatasetRange>,
) -> Result<Work, Status> {
    match entry.opcode() {
        opcode::FLUSH | opcode::WRITE | opcode::READ | opcode::WRITE_ZEROES | opcode::DATASET_MANAGEMENT => {}
        // Section 4.6.1.2.1: an opcode that is reserved or not supported ends with Invalid Command Opcode.
        _ => return Err(Status::INVALID_OPCODE),
    }
    // Section 4.2: fused operations are optional (FUSES = 0 here), and PSDT other than 00b means SGLs (SGLS = 0 here).
    if entry.fuse_and_psdt() != 0 {
        return Err(Status::INVALID_FIELD);
    }
    // Section 6.1: a command names an active namespace, or ends with Invalid Namespace or Format.
    let all = entry.opcode() == opcode::FLUSH && entry.nsid() == NSID_ALL;
    if entry.nsid() != NSID && !all {
        return Err(Status::INVALID_NAMESPACE);
    }
    match entry.opcode() {
        opcode::FLUSH => Ok(Work::Flush),
        opcode::READ => transfer(entry, namespace).map(|bytes| Work::Read { bytes }),
        opcode::WRITE => transfer(entry, namespace).map(|bytes| Work::Write { bytes, fua: entry.fua() }),
        opcode::WRITE_ZEROES => {
            // Section 6.16: no data is transferred, so MDTS does not apply; only the range is checked.
            inside(namespace, entry.slba(), u64::from(entry.blocks()))?;
            Ok(Work::WriteZeroes)
        }
        _ => dataset(entry, namespace, range),
    }
}

/// Bytes of a read or write.
fn transfer(entry: &SubmissionEntry, namespace: &Namespace) -> Result<u32, Status> {
    let bytes = u64::from(entry.blocks()) * u64::from(namespace.block_bytes);
    // Identify Controller, MDTS: a longer transfer is aborted with Invalid Field in Command.
    if bytes > u64::from(namespace.transfer_bytes_max) {
        return Err(Status::INVALID_FIELD);
    }
    inside(namespace, entry.slba(), u64::from(entry.blocks()))?;
    Ok(bytes as u32)
}

fn dataset(
    entry: &SubmissionEntry,
    namespace: &Namespace,
    range: impl FnOnce(u64) -> Option<DatasetRange>,
) -> Result<Work, Status> {
    // Section 6.7 allows 256 ranges and lets no controller refuse some; revisions after 1.4 added a limit (DMRL), which
    // is 1 here, and a status code of their own. In terms of 1.3 the field is invalid.
    if entry.ranges() > 1 {
        return Err(Status::INVALID_FIELD);
    }
    if !entry.deallocates() {
        return Ok(Work::Hint);
    }
    // Section 4.6.1.2.1, Data Transfer Error: the range list could not be read.
    let range = range(entry.prp1()).ok_or(Status::DATA_TRANSFER_ERROR)?;
    inside(namespace, range.slba, u64::from(range.blocks))?;
    Ok(Work::Deallocate)
}

/// Section 4.6.1.2.1, LBA Out of Range: the command refers to a logical block beyond the namespace.
fn inside(namespace: &Namespace, slba: u64, blocks: u64) -> Result<(), Status> {
    match slba.checked_add(blocks) {
        Some(end) if end <= namespace.blocks => Ok(()),
        _ => Err(Status::LBA_OUT_OF_RANGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: Namespace = Namespace { blocks: 1000, block_bytes: 512, transfer_bytes_max: 128 << 10 };

    fn decoded(entry: SubmissionEntry) -> Result<Work, Status> {
        decode(&entry, &NAMESPACE, |_| None)
    }

    #[test]
    fn fields_lie_where_the_specification_puts_them() {
        let entry = SubmissionEntry::write(0xbeef, 0x0123_4567_89ab_cdef, 8, true, 0x1122_3344_5566_7788);
        let bytes = entry.to_bytes();
        assert_eq!(bytes[0], 0x01, "opcode of Write");
        assert_eq!(bytes[2..4], [0xef, 0xbe], "CID in bits 31:16 of dword 0, little-endian");
        assert_eq!(bytes[4..8], [1, 0, 0, 0], "NSID in dword 1");
        assert_eq!(bytes[24..32], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11], "PRP1 in bytes 31:24");
        assert_eq!(bytes[40..48], [0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01], "SLBA in dwords 10 and 11");
        assert_eq!(bytes[48..52], [7, 0, 0, 0x40], "NLB 0's based, FUA bit 30 of dword 12");
        assert_eq!(SubmissionEntry::from_bytes(&bytes), entry);
    }

    #[test]
    fn write_zeroes_has_deac_in_bit_25_and_deallocate_has_ad_in_bit_2() {
        assert_eq!(SubmissionEntry::write_zeroes(0, 0, 1, true, false).to_bytes()[48..52], [0, 0, 0, 0x02]);
        assert_eq!(SubmissionEntry::deallocate(0, 5).to_bytes()[40..48], [0, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(SubmissionEntry::deallocate(0, 5).prp1(), 5);
    }

    #[test]
    fn valid_commands_say_how_much_they_move() {
        assert_eq!(decoded(SubmissionEntry::read(0, 992, 8, 0)), Ok(Work::Read { bytes: 4096 }));
        assert_eq!(decoded(SubmissionEntry::write(0, 0, 256, true, 0)), Ok(Work::Write { bytes: 131072, fua: true }));
        assert_eq!(decoded(SubmissionEntry::write_zeroes(0, 0, 1000, true, false)), Ok(Work::WriteZeroes));
        assert_eq!(decoded(SubmissionEntry::flush(0)), Ok(Work::Flush));
        assert_eq!(decoded(SubmissionEntry::new(opcode::FLUSH, 0, NSID_ALL)), Ok(Work::Flush));
        assert_eq!(decoded(SubmissionEntry::new(opcode::DATASET_MANAGEMENT, 0, NSID)), Ok(Work::Hint));
        let whole = |_| Some(DatasetRange { slba: 0, blocks: 1000 });
        assert_eq!(decode(&SubmissionEntry::deallocate(0, 0), &NAMESPACE, whole), Ok(Work::Deallocate));
    }

    #[test]
    fn an_unknown_opcode_is_refused_before_anything_else_is_looked_at() {
        // 0x05 is Compare: optional, and this controller has none.
        assert_eq!(decoded(SubmissionEntry::new(0x05, 0, 77)), Err(Status::INVALID_OPCODE));
    }

    #[test]
    fn a_command_past_the_end_is_out_of_range() {
        // 1000 blocks: 993 + 8 = 1001.
        assert_eq!(decoded(SubmissionEntry::read(0, 993, 8, 0)), Err(Status::LBA_OUT_OF_RANGE));
        assert_eq!(decoded(SubmissionEntry::write(0, u64::MAX, 8, false, 0)), Err(Status::LBA_OUT_OF_RANGE));
        assert_eq!(decoded(SubmissionEntry::write_zeroes(0, 1, 1000, false, false)), Err(Status::LBA_OUT_OF_RANGE));
        let long = |_| Some(DatasetRange { slba: 1, blocks: 1000 });
        assert_eq!(decode(&SubmissionEntry::deallocate(0, 0), &NAMESPACE, long), Err(Status::LBA_OUT_OF_RANGE));
    }

    #[test]
    fn invalid_fields_are_named_by_their_status() {
        // MDTS is 128 KiB = 256 blocks of 512.
        assert_eq!(decoded(SubmissionEntry::read(0, 0, 257, 0)), Err(Status::INVALID_FIELD));
        let read = SubmissionEntry::read(9, 0, 1, 0);
        let sgl = read.with_dword(0, 9 << 16 | 1 << 14 | 0x02);
        assert_eq!(decoded(sgl), Err(Status::INVALID_FIELD));
        let fused = read.with_dword(0, 9 << 16 | 1 << 8 | 0x02);
        assert_eq!(decoded(fused), Err(Status::INVALID_FIELD));
        assert_eq!(decoded(read.with_dword(1, 2)), Err(Status::INVALID_NAMESPACE));
        assert_eq!(decoded(read.with_dword(1, NSID_ALL)), Err(Status::INVALID_NAMESPACE));
        let two_ranges = SubmissionEntry::deallocate(0, 0).with_dword(10, 1);
        assert_eq!(decoded(two_ranges), Err(Status::INVALID_FIELD));
        assert_eq!(decoded(SubmissionEntry::deallocate(0, 0)), Err(Status::DATA_TRANSFER_ERROR));
    }
}
