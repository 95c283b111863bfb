//! Validation of descriptors.
//!
//! A descriptor was copied once before it comes here. After this its operation, range and direction are as the block
//! layer wants them, in bytes of the device.

use crate::export::Export;
use mqfq_blk::request::{Op, Status};
use mqfq_ublk::abi::{Descriptor, op};

/// Bytes of a sector, whatever the device's block is.
pub const SECTOR_BYTES: u64 = 512;

/// Largest discard or zeroing, bytes: one request, as long as a worker's other requests wait for it at most.
pub const RANGE_BYTES_MAX: u32 = 4 << 20;

/// Names of requests, by [`Op::index`]; refused ones last.
pub const REQUESTS: &[&str] = &["read", "write", "flush", "discard", "write_zeroes", "refused"];

/// The place of refused requests among the names: the driver does not ask for extents.
pub const REFUSED: usize = Op::Extents.index();

/// A rule that a request breaks, or that the driver does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Rule {
    /// An operation that was not announced.
    UnknownOperation,
    /// A read or write longer than its room, or a range longer than was announced, or of nothing.
    BadLength,
    /// The range is not of whole blocks.
    Unaligned,
    /// It ends behind the export, which may have become smaller.
    OutOfRange,
    /// It changes an export that may not be written to.
    ReadOnly,
    /// The driver refused to take a tag back.
    TagRefused,
}

impl Rule {
    /// Every rule, by place.
    pub const ALL: [Rule; 6] =
        [Rule::UnknownOperation, Rule::BadLength, Rule::Unaligned, Rule::OutOfRange, Rule::ReadOnly, Rule::TagRefused];

    /// Name in logs and metrics. Stable.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::UnknownOperation => "unknown_operation",
            Rule::BadLength => "bad_length",
            Rule::Unaligned => "unaligned",
            Rule::OutOfRange => "out_of_range",
            Rule::ReadOnly => "read_only",
            Rule::TagRefused => "tag_refused",
        }
    }
}

impl From<Rule> for usize {
    fn from(rule: Rule) -> usize {
        rule as usize
    }
}

/// Operation that a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// The operation.
    pub op: Op,
    /// First byte, on the device.
    pub offset_bytes: u64,
    /// Length, 0 for a flush.
    pub length_bytes: u32,
    /// Stable before its end.
    pub fua: bool,
}

/// A request that ends at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Status told to the kernel.
    pub status: Status,
    /// Rule that it broke.
    pub rule: Rule,
}

/// Operation that a request of `export` asks for. Its bytes have a room of `room_bytes`; its place on the device is a
/// multiple of `align_bytes`, too.
///
/// # Errors
/// The request is refused.
pub fn validate(
    descriptor: Descriptor,
    export: &Export,
    room_bytes: usize,
    align_bytes: u32,
) -> Result<Operation, Refused> {
    let invalid = |rule| Refused { status: Status::Invalid, rule };
    let op = match descriptor.op() {
        op::READ => Op::Read,
        op::WRITE => Op::Write,
        op::FLUSH => {
            let offset_bytes = export.offset_bytes;
            return Ok(Operation { op: Op::Flush, offset_bytes, length_bytes: 0, fua: false });
        }
        op::DISCARD => Op::Discard,
        op::WRITE_ZEROES => Op::WriteZeroes { may_unmap: descriptor.op_flags & op::NO_UNMAP == 0 },
        _ => return Err(Refused { status: Status::Unsupported, rule: Rule::UnknownOperation }),
    };
    let length_bytes = u64::from(descriptor.sectors) * SECTOR_BYTES;
    let most_bytes = match op {
        Op::Read | Op::Write => (room_bytes as u64).min(export.block.payload_bytes_max.into()),
        _ => RANGE_BYTES_MAX.into(),
    };
    if length_bytes == 0 || length_bytes > most_bytes {
        return Err(invalid(Rule::BadLength));
    }
    let start_bytes = descriptor.start_sector.checked_mul(SECTOR_BYTES);
    let offset_bytes = start_bytes.and_then(|start| start.checked_add(export.offset_bytes));
    let (Some(start_bytes), Some(offset_bytes)) = (start_bytes, offset_bytes) else {
        return Err(invalid(Rule::OutOfRange));
    };
    // A power of two, so its lower bits are what may not be set.
    if (start_bytes | length_bytes) & (u64::from(export.block.min_bytes.max(align_bytes)) - 1) != 0 {
        return Err(invalid(Rule::Unaligned));
    }
    if offset_bytes.checked_add(length_bytes).is_none() {
        return Err(invalid(Rule::OutOfRange));
    }
    // At most RANGE_BYTES_MAX, or the room's.
    let length_bytes = length_bytes as u32;
    if let Some(status) = export.refusal(op, offset_bytes, length_bytes) {
        let rule = if op != Op::Read && export.is_read_only() { Rule::ReadOnly } else { Rule::OutOfRange };
        return Err(Refused { status, rule });
    }
    Ok(Operation { op, offset_bytes, length_bytes, fua: descriptor.op_flags & op::FUA != 0 && op != Op::Read })
}

#[cfg(test)]
pub(in crate::ublk) mod tests {
    use super::*;
    use crate::export::{BlockSizes, ExportId, ExportState, TenantId};
    use crate::memory::TenantMemory;
    use mqfq_blk::FlowId;
    use mqfq_blk::client::DeviceIndex;
    use mqfq_blk::slots::Slot;

    pub(in crate::ublk) fn export() -> Export {
        Export {
            id: ExportId(Slot::first(0)),
            name: "data".to_owned(),
            description: String::new(),
            device: DeviceIndex(0),
            flow: FlowId(0),
            tenant: TenantId(Slot::first(0)),
            state: ExportState::default(),
            offset_bytes: 8192,
            size_bytes: 1 << 20,
            read_only: false,
            block: BlockSizes {
                min_bytes: 4096,
                preferred_bytes: 4096,
                payload_bytes_max: 64 << 10,
                pages_align_bytes: 0,
            },
            memory: TenantMemory::unbounded(),
            caps: mqfq_blk::cap::Caps::none(),
        }
    }

    fn of(operation: u8, flags: u32, start_sector: u64, sectors: u32) -> Descriptor {
        Descriptor { op_flags: u32::from(operation) | flags, sectors, start_sector }
    }

    #[test]
    fn a_request_is_moved_to_its_place_on_the_device() {
        let export = export();
        let ask = |descriptor| validate(descriptor, &export, 128 << 10, 1).unwrap();
        let asked = |op, offset_bytes, length_bytes, fua| Operation { op, offset_bytes, length_bytes, fua };
        assert_eq!(ask(of(op::READ, op::FUA, 8, 8)), asked(Op::Read, 12288, 4096, false));
        assert_eq!(ask(of(op::WRITE, op::FUA, 0, 128)), asked(Op::Write, 8192, 65536, true));
        assert_eq!(ask(of(op::FLUSH, 0, u64::MAX, u32::MAX)), asked(Op::Flush, 8192, 0, false));
        assert_eq!(ask(of(op::DISCARD, 0, 2040, 8)), asked(Op::Discard, 8192 + (1 << 20) - 4096, 4096, false));
        let zeroes = |may_unmap| asked(Op::WriteZeroes { may_unmap }, 8192, 1 << 20, false);
        assert_eq!(ask(of(op::WRITE_ZEROES, 0, 0, 2048)), zeroes(true));
        assert_eq!(ask(of(op::WRITE_ZEROES, op::NO_UNMAP, 0, 2048)), zeroes(false));
        // Hints are no commands.
        assert_eq!(ask(of(op::READ, 0x1_0f00, 0, 8)).op, Op::Read);
    }

    #[test]
    fn nothing_leaves_the_export_whatever_a_descriptor_says() {
        let export = export();
        let refused = |descriptor| validate(descriptor, &export, 128 << 10, 1).unwrap_err();
        assert_eq!(refused(of(op::READ, 0, 2048, 8)).rule, Rule::OutOfRange);
        let beyond = refused(of(op::WRITE, 0, 2040, 16));
        assert_eq!((beyond.rule, beyond.status), (Rule::OutOfRange, Status::NoSpace));
        for start in [u64::MAX, u64::MAX / 512, u64::MAX / 512 - 7, 1 << 55] {
            let rule = refused(of(op::DISCARD, 0, start & !7, 8)).rule;
            assert_eq!(rule, Rule::OutOfRange, "from sector {start}");
        }
        assert_eq!(refused(of(op::READ, 0, 1, 8)).rule, Rule::Unaligned);
        assert_eq!(refused(of(op::READ, 0, 0, 1)).rule, Rule::Unaligned);
        let cached = Export { block: BlockSizes { min_bytes: 1, ..export.block }, ..export.clone() };
        assert!(validate(of(op::READ, 0, 1, 1), &cached, 4096, 512).is_ok());
        assert_eq!(validate(of(op::READ, 0, 1, 1), &cached, 4096, 4096).unwrap_err().rule, Rule::Unaligned);
        assert_eq!(refused(of(op::READ, 0, 0, 0)).rule, Rule::BadLength);
        assert_eq!(refused(of(op::WRITE, 0, 0, 136)).rule, Rule::BadLength, "longer than the export's largest");
        assert_eq!(refused(of(op::WRITE, 0, 0, u32::MAX)).rule, Rule::BadLength);
        assert_eq!(refused(of(op::WRITE_ZEROES, 0, 0, 8200)).rule, Rule::BadLength);
        assert_eq!(
            validate(of(op::READ, 0, 0, 16), &export, 4096, 1).unwrap_err().rule,
            Rule::BadLength,
            "a small room"
        );
        for operation in [4, 6, 10, 18, 255] {
            let refused = refused(of(operation, 0, 0, 8));
            assert_eq!((refused.rule, refused.status), (Rule::UnknownOperation, Status::Unsupported));
        }
    }

    #[test]
    fn an_export_that_shrank_or_may_no_longer_be_written_to_says_so_at_once() {
        let export = export();
        export.state.resize(8192);
        assert_eq!(validate(of(op::READ, 0, 16, 8), &export, 4096, 1).unwrap_err().rule, Rule::OutOfRange);
        export.state.set_read_only(true);
        for operation in [op::WRITE, op::DISCARD, op::WRITE_ZEROES] {
            assert_eq!(validate(of(operation, 0, 0, 8), &export, 4096, 1).unwrap_err().rule, Rule::ReadOnly);
        }
        assert!(validate(of(op::READ, 0, 8, 8), &export, 4096, 1).is_ok());
    }

    #[test]
    fn a_rules_number_is_its_place_and_its_name_its_own() {
        let names: std::collections::BTreeSet<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
        assert_eq!(names.len(), Rule::ALL.len());
        assert!(Rule::ALL.into_iter().enumerate().all(|(place, rule)| usize::from(rule) == place));
    }
}
