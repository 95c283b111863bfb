//! The 16-byte completion queue entry and its status field.
//!
//! ```text
//!  dword 0  command specific (0 for every command here)      NVMe 1.3 section 4.6
//!        1  reserved
//!        2  SQHD 15:0 | SQID 31:16
//!        3  CID 15:0 | P 16 | status 31:17 = SC 7:0, SCT 10:8, M 13, DNR 14      section 4.6.1
//! ```

use std::fmt;

/// Status field of a completion: type (SCT), code (SC), and whether a retry is useless (DNR).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

const DNR: u16 = 1 << 14;

impl Status {
    /// Generic, 00h.
    pub const SUCCESS: Status = Status::generic(0x00, false);
    /// Generic, 01h: the opcode is not known.
    pub const INVALID_OPCODE: Status = Status::generic(0x01, true);
    /// Generic, 02h: a field has a value that is reserved or not supported.
    pub const INVALID_FIELD: Status = Status::generic(0x02, true);
    /// Generic, 04h: data or a list could not be transferred.
    pub const DATA_TRANSFER_ERROR: Status = Status::generic(0x04, true);
    /// Generic, 07h: an Abort command named this command.
    pub const ABORT_REQUESTED: Status = Status::generic(0x07, false);
    /// Generic, 08h: the submission queue of this command was deleted. Never posted: see
    /// [`crate::Controller::delete_io_queue_pair`].
    pub const ABORTED_SQ_DELETION: Status = Status::generic(0x08, false);
    /// Generic, 0Bh: no such namespace.
    pub const INVALID_NAMESPACE: Status = Status::generic(0x0b, true);
    /// Generic, 80h: beyond the end of the namespace.
    pub const LBA_OUT_OF_RANGE: Status = Status::generic(0x80, true);
    /// Command specific, 01h: Create I/O Queue with an identifier beyond what the controller has, or Delete I/O Queue
    /// with one that does not exist.
    pub const INVALID_QUEUE_IDENTIFIER: Status = Status::new(1, 0x01, true);
    /// Command specific, 02h: Create I/O Queue with a size of 0 or beyond the controller's limit.
    pub const INVALID_QUEUE_SIZE: Status = Status::new(1, 0x02, true);
    /// Command specific, 0Dh: Set Features asked to save a feature that cannot be saved.
    pub const FEATURE_NOT_SAVEABLE: Status = Status::new(1, 0x0d, true);

    const fn generic(code: u8, do_not_retry: bool) -> Status {
        Status::new(0, code, do_not_retry)
    }

    const fn new(code_type: u8, code: u8, do_not_retry: bool) -> Status {
        assert!(code_type < 8);
        Status((code_type as u16) << 8 | code as u16 | if do_not_retry { DNR } else { 0 })
    }

    /// SCT: 0 generic, 1 command specific, 2 media and data integrity.
    pub const fn code_type(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// SC, within its type.
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// DNR: the same command would fail again.
    pub const fn do_not_retry(self) -> bool {
        self.0 & DNR != 0
    }

    /// Success?
    pub const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status {{ {self}, sct {}, sc {:#04x} }}", self.code_type(), self.code())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Status::SUCCESS => "success",
            Status::INVALID_OPCODE => "invalid command opcode",
            Status::INVALID_FIELD => "invalid field in command",
            Status::DATA_TRANSFER_ERROR => "data transfer error",
            Status::ABORT_REQUESTED => "command abort requested",
            Status::ABORTED_SQ_DELETION => "command aborted due to SQ deletion",
            Status::INVALID_NAMESPACE => "invalid namespace or format",
            Status::LBA_OUT_OF_RANGE => "LBA out of range",
            Status::INVALID_QUEUE_IDENTIFIER => "invalid queue identifier",
            Status::FEATURE_NOT_SAVEABLE => "feature identifier not saveable",
            Status::INVALID_QUEUE_SIZE => "invalid queue size",
            _ => "unknown status",
        })
    }
}

impl std::error::Error for Status {}

/// A completion queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C, align(16))]
pub struct CompletionEntry {
    dwords: [u32; 4],
}

const _: () = assert!(size_of::<CompletionEntry>() == 16);

impl CompletionEntry {
    /// An entry; `submission_head` is the controller's head of submission queue `submission_queue`.
    pub fn new(cid: u16, submission_queue: u16, submission_head: u16, status: Status, phase: bool) -> CompletionEntry {
        let status = u32::from(status.0) << 17 | u32::from(phase) << 16;
        let queue = u32::from(submission_queue) << 16 | u32::from(submission_head);
        CompletionEntry { dwords: [0, 0, queue, status | u32::from(cid)] }
    }

    /// CID of the command that ended.
    pub fn cid(&self) -> u16 {
        self.dwords[3] as u16
    }

    /// SQHD: slots before it may be used again.
    pub fn submission_head(&self) -> u16 {
        self.dwords[2] as u16
    }

    /// The submission queue that the command came from (field SQID).
    pub fn submission_queue(&self) -> u16 {
        (self.dwords[2] >> 16) as u16
    }

    /// P: inverted on each pass through the ring, so that a new entry differs from what lay there before.
    pub fn phase(&self) -> bool {
        self.dwords[3] >> 16 & 1 == 1
    }

    /// The status field.
    pub fn status(&self) -> Status {
        Status((self.dwords[3] >> 17) as u16)
    }

    /// The bytes in a real completion ring.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        for (chunk, dword) in bytes.chunks_exact_mut(4).zip(self.dwords) {
            chunk.copy_from_slice(&dword.to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_specification_puts_them() {
        let entry = CompletionEntry::new(0xbeef, 3, 17, Status::LBA_OUT_OF_RANGE, true);
        let bytes = entry.to_bytes();
        assert_eq!(bytes[8..12], [17, 0, 3, 0], "SQHD, then SQID, in dword 2");
        // Bytes 15:14: P in bit 0, SC = 80h in bits 8:1, SCT = 0, DNR in bit 15: 1 | 0x80 << 1 | 1 << 15 = 0x8101.
        assert_eq!(bytes[12..16], [0xef, 0xbe, 0x01, 0x81]);
        assert_eq!((entry.cid(), entry.phase(), entry.submission_head()), (0xbeef, true, 17));
        assert_eq!(entry.status(), Status::LBA_OUT_OF_RANGE);
        assert_eq!(entry.submission_queue(), 3);
    }

    #[test]
    fn type_and_code_are_apart() {
        let status = Status::INVALID_QUEUE_SIZE;
        assert_eq!((status.code_type(), status.code(), status.do_not_retry()), (1, 2, true));
        assert!(!status.is_success());
        assert!(Status::SUCCESS.is_success() && !Status::SUCCESS.do_not_retry());
    }
}
