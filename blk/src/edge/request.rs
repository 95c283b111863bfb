//! The nouns of the block layer: operation, buffer, submission, completion, status.

use mqfq_sched::flow::FlowId;
use std::fmt;

/// Operation of a request.
// A byte that is its index: counters and costs are looked up by it for each request.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Read `length` bytes into the buffer.
    Read,
    /// Write the buffer.
    Write,
    /// Make every write that completed before this was submitted survive a crash.
    Flush,
    /// The bytes are no longer needed; they read as zero afterwards.
    Discard,
    /// The bytes read as zero afterwards.
    WriteZeroes {
        /// Storage may be released. Without it the range stays allocated.
        may_unmap: bool,
    },
    /// As [`Op::WriteZeroes`] if that takes less time than to write zeroes; else [`Status::Unsupported`] at once, and
    /// no byte has changed.
    FastZeroes {
        /// As for [`Op::WriteZeroes`].
        may_unmap: bool,
    },
    /// Which of the bytes are stored? The answer goes into the buffer ([`crate::extents`]).
    Extents,
}

impl Op {
    /// Number of operations, zeroes that must be fast and others together.
    pub const COUNT: usize = 6;

    /// Position in counters by operation: read, write, flush, discard, write zeroes, extents.
    #[inline]
    pub const fn index(self) -> usize {
        match self {
            Op::Read => 0,
            Op::Write => 1,
            Op::Flush => 2,
            Op::Discard => 3,
            Op::WriteZeroes { .. } | Op::FastZeroes { .. } => 4,
            Op::Extents => 5,
        }
    }
}

/// Error with which a request ended. The few that a front end can express; Linux errno values in [`Status::errno`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// Success.
    Ok,
    /// The device or medium failed.
    Io,
    /// No space is left below.
    NoSpace,
    /// The request makes no sense to the device (alignment, range).
    Invalid,
    /// The device cannot do this operation.
    Unsupported,
    /// The device or engine is going away.
    Shutdown,
    /// The device did not end it in time, and gave it up.
    TimedOut,
    /// It was not begun, or not all of it, and its client has it back: another process may take this one's place
    /// ([`Client::takes_back`](crate::client::Client::takes_back)).
    Recalled,
}

impl Status {
    /// The Linux errno value; 0 for [`Status::Ok`].
    pub const fn errno(self) -> u32 {
        match self {
            Status::Ok => 0,
            Status::Io => 5,
            Status::NoSpace => 28,
            Status::Invalid => 22,
            Status::Unsupported => 95,
            Status::Shutdown => 108,
            Status::TimedOut => 110,
            Status::Recalled => 125,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Ok => "ok",
            Status::Io => "I/O error",
            Status::NoSpace => "no space left on the device",
            Status::Invalid => "invalid request",
            Status::Unsupported => "operation not supported",
            Status::Shutdown => "device is shutting down",
            Status::TimedOut => "the device did not answer in time",
            Status::Recalled => "given back to its client",
        })
    }
}

/// A client's request. Offsets are the device's, not the export's.
#[derive(Debug)]
pub struct Submission {
    /// Flow that is charged.
    pub flow: FlowId,
    /// Operation.
    pub op: Op,
    /// First byte, on the device; for [`Op::Flush`] the first byte of its client's export.
    pub offset_bytes: u64,
    /// Length; 0 for [`Op::Flush`].
    pub length_bytes: u32,
    /// Operations that change bytes: stable before completion, as if a flush followed.
    pub fua: bool,
    /// Bytes to write, or room for the bytes read (`length_bytes` of it), or for extents ([`crate::extents::ask`]);
    /// `None` for the other operations.
    pub buffer: Option<crate::buffer::Buffer>,
    /// The client's own name for the request, handed back.
    pub cookie: u64,
}

/// A request's end, handed to the client that submitted it, exactly once.
#[derive(Debug)]
pub struct Completion {
    /// The name given at submission.
    pub cookie: u64,
    /// Its outcome.
    pub status: Status,
    /// Operation of the submission.
    pub op: Op,
    /// Length asked for.
    pub length_bytes: u32,
    /// The buffer of the submission, filled if it was a read or a question for extents that ended well.
    pub buffer: Option<crate::buffer::Buffer>,
    /// Time from submission to dispatch.
    pub queued_ns: u64,
    /// Time from dispatch to reap.
    pub device_ns: u64,
}

// Description of a device, shared by devices, the data path and clients.

/// Properties of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Size; requests beyond it are refused above.
    pub size_bytes: u64,
    /// Offsets and lengths must be multiples of this, a power of two; 1 = any.
    pub block_bytes: u32,
    /// Best size and alignment of a request, a power of two, at least `block_bytes`.
    pub preferred_bytes: u32,
    /// Largest read or write, bytes.
    pub transfer_bytes_max: u32,
    /// A completed write may be lost in a crash until a flush completes.
    pub volatile_cache: bool,
    /// It takes payloads that stay in the kernel ([`crate::pages`]), of requests whose offset and length are multiples
    /// of this, a power of two; 0: it takes none.
    pub pages_align_bytes: u32,
}
