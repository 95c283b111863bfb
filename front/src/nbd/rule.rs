//! Every rule that a client can break, with the name that logs and metrics use and the sentence that the client reads.
//!
//! The consequence is decided where the rule is checked: the handshake answers or closes ([`super::negotiate`]), the
//! transmission phase answers with [`Rule::errno`] or closes ([`super::transmit`]).

use super::wire::{Command, Errno};
use mqfq_blk::request::{Op, Status};

/// A rule of the protocol, or a limit of ours.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Rule {
    /// Handshake, closes: client flags we never offered.
    UnknownClientFlags,
    /// Handshake, closes: an option that does not begin with its magic.
    BadOptionMagic,
    /// Handshake, closes: an option besides EXPORT_NAME from a client that did not say fixed newstyle.
    NeedsFixedNewstyle,
    /// Handshake, closes: more options, or more bytes of them, than a handshake needs.
    HandshakeTooLong,
    /// Handshake, closes at once: it has not come to an end in time.
    HandshakeTooSlow,
    /// Handshake, closes at once: it was the oldest when there was no place for a new one.
    HandshakeCrowdedOut,
    /// Handshake: the export's tenant may have no more connections here. Closes after EXPORT_NAME, which has no other
    /// way to say so.
    TooManyConnections,
    /// Handshake: an option we do not speak.
    OptionUnsupported,
    /// Handshake: an option with more data than we keep.
    OptionTooBig,
    /// Handshake: an option's data do not fit its form.
    OptionMalformed,
    /// Handshake: data where none are allowed.
    OptionTakesNoData,
    /// Handshake: a name that is no string of at most 4096 bytes.
    BadExportName,
    /// Handshake: no such export. Closes after EXPORT_NAME, which has no other way to say so.
    UnknownExport,
    /// Handshake: an export that this client may not have. The client gets the answer for an unknown export.
    ForbiddenExport,
    /// Handshake: this address takes nothing but TLS. Closes after EXPORT_NAME, which has no other way to say so.
    TlsRequired,
    /// Handshake: STARTTLS over TLS.
    TlsAlready,
    /// Handshake, closes: bytes that came behind STARTTLS and before its answer, so in the clear.
    BytesBeforeTls,
    /// Either phase, closes: TLS that is none, or a certificate that is not good.
    TlsBroken,
    /// Handshake: metadata contexts before structured replies.
    NeedsStructuredReplies,
    /// Handshake: structured replies after extended headers, or EXPORT_NAME, which closes.
    ExtendedAlready,
    /// Transmission, closes: a request that does not begin with its magic.
    BadRequestMagic,
    /// Transmission, closes: a refused write too long to be skipped.
    PayloadTooLong,
    /// Not the client's fault. Transmission, closes: the device failed when a part of a simple reply had left.
    FailedInTheMiddle,
    /// Either phase: the client went away in the middle of a message.
    Truncated,
    /// Transmission: a command that is unknown or not offered.
    UnknownCommand,
    /// Transmission: a flag that is unknown, not offered, or not one of this command.
    UnknownFlags,
    /// Transmission, extended headers: a write without a payload, or another command with one.
    PayloadMismatch,
    /// Transmission: a change of a read-only export.
    ReadOnly,
    /// Transmission: BLOCK_STATUS without a metadata context.
    NeedsMetaContext,
    /// Transmission: FLUSH with an offset or a length.
    FlushHasNoRange,
    /// Transmission: a length of 0.
    ZeroLength,
    /// Transmission: a read or write above the largest payload.
    PayloadOverMax,
    /// Transmission: a read that asks for one chunk and is longer than a piece.
    TooLongForOneChunk,
    /// Transmission: past the end of the export.
    OutOfRange,
    /// Transmission: offset or length is not a multiple of the minimum block.
    Unaligned,
    /// Transmission, closes at once: the client took no reply, or sent half of a request and no more, for too long.
    Stalled,
}

impl From<Rule> for usize {
    fn from(rule: Rule) -> usize {
        rule as usize
    }
}

impl Rule {
    /// All of them; a rule's place is its number.
    pub const ALL: [Rule; 36] = [
        Rule::UnknownClientFlags,
        Rule::BadOptionMagic,
        Rule::NeedsFixedNewstyle,
        Rule::HandshakeTooLong,
        Rule::HandshakeTooSlow,
        Rule::HandshakeCrowdedOut,
        Rule::TooManyConnections,
        Rule::OptionUnsupported,
        Rule::OptionTooBig,
        Rule::OptionMalformed,
        Rule::OptionTakesNoData,
        Rule::BadExportName,
        Rule::UnknownExport,
        Rule::ForbiddenExport,
        Rule::TlsRequired,
        Rule::TlsAlready,
        Rule::BytesBeforeTls,
        Rule::TlsBroken,
        Rule::NeedsStructuredReplies,
        Rule::ExtendedAlready,
        Rule::BadRequestMagic,
        Rule::PayloadTooLong,
        Rule::FailedInTheMiddle,
        Rule::Truncated,
        Rule::UnknownCommand,
        Rule::UnknownFlags,
        Rule::PayloadMismatch,
        Rule::ReadOnly,
        Rule::NeedsMetaContext,
        Rule::FlushHasNoRange,
        Rule::ZeroLength,
        Rule::PayloadOverMax,
        Rule::TooLongForOneChunk,
        Rule::OutOfRange,
        Rule::Unaligned,
        Rule::Stalled,
    ];

    /// Stable, for logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::UnknownClientFlags => "unknown_client_flags",
            Rule::BadOptionMagic => "bad_option_magic",
            Rule::NeedsFixedNewstyle => "needs_fixed_newstyle",
            Rule::HandshakeTooLong => "handshake_too_long",
            Rule::HandshakeTooSlow => "handshake_too_slow",
            Rule::HandshakeCrowdedOut => "handshake_crowded_out",
            Rule::TooManyConnections => "too_many_connections",
            Rule::OptionUnsupported => "option_unsupported",
            Rule::OptionTooBig => "option_too_big",
            Rule::OptionMalformed => "option_malformed",
            Rule::OptionTakesNoData => "option_takes_no_data",
            Rule::BadExportName => "bad_export_name",
            Rule::UnknownExport => "unknown_export",
            Rule::ForbiddenExport => "forbidden_export",
            Rule::TlsRequired => "tls_required",
            Rule::TlsAlready => "tls_already",
            Rule::BytesBeforeTls => "bytes_before_tls",
            Rule::TlsBroken => "tls_broken",
            Rule::NeedsStructuredReplies => "needs_structured_replies",
            Rule::ExtendedAlready => "extended_already",
            Rule::BadRequestMagic => "bad_request_magic",
            Rule::PayloadTooLong => "payload_too_long",
            Rule::FailedInTheMiddle => "failed_in_the_middle",
            Rule::Truncated => "truncated",
            Rule::UnknownCommand => "unknown_command",
            Rule::UnknownFlags => "unknown_flags",
            Rule::PayloadMismatch => "payload_mismatch",
            Rule::ReadOnly => "read_only",
            Rule::NeedsMetaContext => "needs_meta_context",
            Rule::FlushHasNoRange => "flush_has_no_range",
            Rule::ZeroLength => "zero_length",
            Rule::PayloadOverMax => "payload_over_max",
            Rule::TooLongForOneChunk => "too_long_for_one_chunk",
            Rule::OutOfRange => "out_of_range",
            Rule::Unaligned => "unaligned",
            Rule::Stalled => "stalled",
        }
    }

    /// Sentence for the client's user.
    pub const fn sentence(self) -> &'static str {
        match self {
            Rule::UnknownClientFlags => "the client set handshake flags that were not offered",
            Rule::BadOptionMagic => "an option did not begin with IHAVEOPT",
            Rule::NeedsFixedNewstyle => "the client uses options without having agreed to fixed newstyle",
            Rule::HandshakeTooLong => "the handshake has too many options or too much data",
            Rule::HandshakeTooSlow => "the handshake did not come to an end in time",
            Rule::HandshakeCrowdedOut => "the handshake was the oldest of too many and was closed for a new one",
            Rule::TooManyConnections => {
                "the export's tenant has as many connections to this address as it may, the other places are kept for others"
            }
            Rule::OptionUnsupported => "this server does not know the option",
            Rule::OptionTooBig => "the option has too much data",
            Rule::OptionMalformed => "the option's data do not have the form that the protocol gives them",
            Rule::OptionTakesNoData => "the option takes no data",
            Rule::BadExportName => "an export name is UTF-8 without NUL, of at most 4096 bytes",
            // One sentence for both: a client that may not have an export does not learn that there is one.
            Rule::UnknownExport | Rule::ForbiddenExport => "there is no export of that name here",
            Rule::TlsRequired => "this address needs TLS first",
            Rule::TlsAlready => "the connection is under TLS already",
            Rule::BytesBeforeTls => "bytes came between STARTTLS and its answer",
            Rule::TlsBroken => "the TLS session cannot be",
            Rule::NeedsStructuredReplies => "metadata contexts need structured replies, which were not asked for",
            Rule::ExtendedAlready => {
                "extended headers were agreed on, which need GO and take the place of structured replies"
            }
            Rule::BadRequestMagic => "a request did not begin with the magic number of requests",
            Rule::PayloadTooLong => "a refused write was too long to be skipped",
            Rule::FailedInTheMiddle => "the device failed when a part of a simple reply had been sent",
            Rule::Truncated => "the client went away in the middle of a message",
            Rule::UnknownCommand => "this export does not know the command",
            Rule::UnknownFlags => "the command has a flag that is unknown, not offered, or not for this command",
            Rule::PayloadMismatch => "a write has a payload and says so, and no other command has one",
            Rule::ReadOnly => "the export is read-only",
            Rule::NeedsMetaContext => "block status needs a metadata context, and none was chosen",
            Rule::FlushHasNoRange => "a flush has offset 0 and length 0",
            Rule::ZeroLength => "the length is 0",
            Rule::PayloadOverMax => "the length is above the largest payload that was advertised",
            Rule::TooLongForOneChunk => "a read that must not be fragmented is at most 128 KiB long",
            Rule::OutOfRange => "the range ends past the end of the export",
            Rule::Unaligned => "offset or length is not a multiple of the minimum block size",
            Rule::Stalled => "the client took no reply, or did not send the rest of a request, in time",
        }
    }

    /// Error answered to a request that broke this rule. Source: NBD protocol, "error values": a write past the end is
    /// ENOSPC and any other range EINVAL; a change of a read-only export is EPERM; a read too long may be EOVERFLOW,
    /// but only where the don't-fragment flag exists, that is with structured replies.
    pub fn errno(self, command: Option<Command>, structured: bool) -> Errno {
        match (self, command) {
            (Rule::ReadOnly, _) => Errno::Perm,
            (Rule::OutOfRange, Some(Command::Write | Command::WriteZeroes)) => Errno::NoSpc,
            (Rule::TooLongForOneChunk, _) => Errno::Overflow,
            (Rule::PayloadOverMax, Some(Command::Read)) if structured => Errno::Overflow,
            _ => Errno::Inval,
        }
    }
}

/// Error answered to a request that the device could not do; `None` for success. The protocol has no number for an
/// operation that a device lacks: ENOTSUP is kept for zeroing that would be slow.
pub fn errno_of(op: Op, status: Status) -> Option<Errno> {
    match status {
        Status::Unsupported if matches!(op, Op::FastZeroes { .. }) => Some(Errno::NotSup),
        Status::Ok => None,
        // A request is never recalled to a client that takes none back.
        Status::Io | Status::TimedOut | Status::Recalled => Some(Errno::Io),
        Status::NoSpace => Some(Errno::NoSpc),
        Status::Invalid | Status::Unsupported => Some(Errno::Inval),
        Status::Shutdown => Some(Errno::Shutdown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_zeroes_that_must_be_fast_are_not_supported() {
        let (fast, plain) = (Op::FastZeroes { may_unmap: true }, Op::WriteZeroes { may_unmap: true });
        assert_eq!(errno_of(fast, Status::Unsupported), Some(Errno::NotSup));
        assert_eq!(errno_of(plain, Status::Unsupported), Some(Errno::Inval));
        assert_eq!((errno_of(fast, Status::NoSpace), errno_of(fast, Status::Ok)), (Some(Errno::NoSpc), None));
    }

    #[test]
    fn a_rules_number_is_its_place_and_its_name_is_its_own() {
        for (number, rule) in Rule::ALL.into_iter().enumerate() {
            assert_eq!(rule as usize, number);
            assert!(Rule::ALL[..number].iter().all(|other| other.name() != rule.name()));
            assert!(rule.sentence().len() < 4096, "longest string of the protocol");
        }
    }
}
