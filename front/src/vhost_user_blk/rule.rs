//! Every rule that a front-end or its guest can break, with the name that logs and metrics use.
//!
//! | whose | what follows |
//! |---|---|
//! | a front-end's message | refused with an answer where one was asked for, else the connection is closed |
//! | a guest's ring | that queue stops, and its error eventfd says so; the other queues go on |
//! | a guest's request | ends with the status IOERR or UNSUPP; the queue goes on |

/// A rule of the protocol, or a limit of ours.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Rule {
    /// Closed: half a message came and no more in time, or another front-end had the export all the time.
    HandshakeTooSlow,
    /// Closed: it was the oldest when there was no place for a new one.
    HandshakeCrowdedOut,
    /// Closed: the export is being drained, or its tenant may have no more connections.
    NotServed,
    /// Closed: it left in the middle of a message.
    Truncated,
    /// Closed: a header of another version, or an answer where a message should be.
    BadHeader,
    /// Closed: a payload longer than any of ours.
    MessageTooLong,
    /// A message that is not understood, or was not negotiated.
    UnknownMessage,
    /// A payload that does not fit its message.
    BadPayload,
    /// More or fewer descriptors than the message takes.
    BadDescriptors,
    /// Features that were not offered.
    UnofferedFeatures,
    /// A queue that there is not.
    NoSuchQueue,
    /// A size of a queue that is no power of two from 1 to 1024.
    BadQueueSize,
    /// A region of memory that cannot be mapped, overlaps another, or is one too many.
    BadRegion,
    /// Memory of a kind whose access may wait for another process or a device.
    UnfitMemory,
    /// Memory beyond what a guest, or all guests together, may have mapped.
    TooMuchMapped,
    /// A descriptor of another kind of file than its message takes.
    UnfitDescriptor,
    /// Closed: more descriptors of this address are open than it may have.
    TooManyDescriptors,
    /// A ring that is not in the memory, or not aligned.
    BadRing,
    /// An inflight area that does not fit the queues.
    BadInflight,
    /// A write to the config space beyond the byte that may be written.
    BadConfig,
    /// Guest: memory was taken away while it was mapped.
    MemoryLost,
    /// Guest: the index of the available ring ran more than the queue's size ahead.
    RingOverrun,
    /// Guest: a head that is no descriptor of the table, or is under way.
    BadHead,
    /// Guest: a chain with more descriptors than are taken, or with a loop.
    ChainTooLong,
    /// Guest: a descriptor's memory is not in the guest's, or wraps.
    BadDescriptorAddress,
    /// Guest: an indirect table inside another, with a next one, of a wrong length, or not negotiated.
    BadIndirect,
    /// Guest: memory to read behind memory to write.
    OutOfOrder,
    /// Guest: no byte for the status.
    NoStatus,
    /// Request: no whole header.
    NoHeader,
    /// Request: a type or flag that is not known or not offered.
    UnknownRequest,
    /// Request: past the end, unaligned, or of a length that does not fit its type.
    BadRange,
    /// Request: a change of a read-only export.
    ReadOnly,
}

impl From<Rule> for usize {
    fn from(rule: Rule) -> usize {
        rule as usize
    }
}

impl Rule {
    /// All of them; a rule's place is its number.
    pub const ALL: [Rule; 32] = [
        Rule::HandshakeTooSlow,
        Rule::HandshakeCrowdedOut,
        Rule::NotServed,
        Rule::Truncated,
        Rule::BadHeader,
        Rule::MessageTooLong,
        Rule::UnknownMessage,
        Rule::BadPayload,
        Rule::BadDescriptors,
        Rule::UnofferedFeatures,
        Rule::NoSuchQueue,
        Rule::BadQueueSize,
        Rule::BadRegion,
        Rule::UnfitMemory,
        Rule::TooMuchMapped,
        Rule::UnfitDescriptor,
        Rule::TooManyDescriptors,
        Rule::BadRing,
        Rule::BadInflight,
        Rule::BadConfig,
        Rule::MemoryLost,
        Rule::RingOverrun,
        Rule::BadHead,
        Rule::ChainTooLong,
        Rule::BadDescriptorAddress,
        Rule::BadIndirect,
        Rule::OutOfOrder,
        Rule::NoStatus,
        Rule::NoHeader,
        Rule::UnknownRequest,
        Rule::BadRange,
        Rule::ReadOnly,
    ];

    /// A sentence beside the name in the log, where the operator has to change something.
    pub const fn about(self) -> Option<&'static str> {
        match self {
            Rule::UnfitMemory => Some(
                "memory that is shared with a server must be a memfd or a file of tmpfs or hugetlbfs \
                 (memory-backend-memfd, or memory-backend-file with share=on there)",
            ),
            Rule::TooMuchMapped => {
                Some("a guest may have 8 TiB of memory in 64 regions, and all guests together 64 TiB in 16384 mappings")
            }
            Rule::UnfitDescriptor => Some(
                "a kick, call or error descriptor must be an eventfd (as /proc shows it), and the back-end's channel a \
                 unix stream socket",
            ),
            Rule::TooManyDescriptors => Some("clients of this address passed more than 2048 that are not closed yet"),
            _ => None,
        }
    }

    /// The name in logs and metrics. Stable.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::HandshakeTooSlow => "handshake_too_slow",
            Rule::HandshakeCrowdedOut => "handshake_crowded_out",
            Rule::NotServed => "not_served",
            Rule::Truncated => "truncated",
            Rule::BadHeader => "bad_header",
            Rule::MessageTooLong => "message_too_long",
            Rule::UnknownMessage => "unknown_message",
            Rule::BadPayload => "bad_payload",
            Rule::BadDescriptors => "bad_descriptors",
            Rule::UnofferedFeatures => "unoffered_features",
            Rule::NoSuchQueue => "no_such_queue",
            Rule::BadQueueSize => "bad_queue_size",
            Rule::BadRegion => "bad_region",
            Rule::UnfitMemory => "unfit_memory",
            Rule::TooMuchMapped => "too_much_mapped",
            Rule::UnfitDescriptor => "unfit_descriptor",
            Rule::TooManyDescriptors => "too_many_descriptors",
            Rule::BadRing => "bad_ring",
            Rule::BadInflight => "bad_inflight",
            Rule::BadConfig => "bad_config",
            Rule::MemoryLost => "memory_lost",
            Rule::RingOverrun => "ring_overrun",
            Rule::BadHead => "bad_head",
            Rule::ChainTooLong => "chain_too_long",
            Rule::BadDescriptorAddress => "bad_descriptor_address",
            Rule::BadIndirect => "bad_indirect",
            Rule::OutOfOrder => "out_of_order",
            Rule::NoStatus => "no_status",
            Rule::NoHeader => "no_header",
            Rule::UnknownRequest => "unknown_request",
            Rule::BadRange => "bad_range",
            Rule::ReadOnly => "read_only",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rules_number_is_its_place_and_its_name_its_own() {
        let names: std::collections::BTreeSet<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
        assert_eq!(names.len(), Rule::ALL.len());
        assert!(Rule::ALL.iter().enumerate().all(|(place, rule)| *rule as usize == place));
    }
}
