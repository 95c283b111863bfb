//! May this request be executed? Every rule in order, before anything is done about it.
//!
//! The order says which rule is named when several are broken: first what the request is, then whether it may be made
//! at all, then its numbers. A request that passes is inside the export, aligned, and neither empty nor too long. Only
//! the export's size and access are looked at again, when it is handed over: they may have changed since.

use super::rule::Rule;
use super::wire::{Command, RequestHeader, request};
use crate::export::Export;
use mqfq_blk::request::Op;
use std::sync::Arc;

/// Agreement of the handshake.
#[derive(Clone, Debug)]
pub struct Session {
    /// The export chosen.
    pub export: Arc<Export>,
    /// Replies are structured.
    pub structured: bool,
    /// Headers are extended, and replies structured.
    pub extended: bool,
    /// The client chose base:allocation and may ask for block status.
    pub block_status: bool,
}

/// Action that a valid request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A request for the device.
    Execute {
        /// Operation.
        op: Op,
        /// Stable before the reply. Set only on operations that change data: elsewhere the flag is allowed and means
        /// nothing.
        fua: bool,
    },
    /// A question for extents.
    BlockStatus {
        /// One extent alone.
        one: bool,
    },
    /// No reply; close when all others are answered.
    Disconnect,
}

/// Applies the rules.
///
/// # Errors
/// The first rule that the request breaks.
pub fn validate(session: &Session, header: &RequestHeader) -> Result<Action, Rule> {
    let export = &*session.export;
    let command = Command::from_number(header.command).ok_or(Rule::UnknownCommand)?;
    let (action, own_flags) = match command {
        // The protocol wants its range and flags to be zero; the client is gone whatever we think of them.
        Command::Disconnect => return Ok(Action::Disconnect),
        Command::Cache => return Err(Rule::UnknownCommand),
        Command::Read => (execute(Op::Read, false), if session.structured { request::DF } else { 0 }),
        Command::Write => (execute(Op::Write, header.flags & request::FUA != 0), 0),
        Command::Flush => (execute(Op::Flush, false), 0),
        Command::Trim => (execute(Op::Discard, header.flags & request::FUA != 0), 0),
        Command::WriteZeroes => {
            let may_unmap = header.flags & request::NO_HOLE == 0;
            let is_fast = header.flags & request::FAST_ZERO != 0;
            let op = if is_fast { Op::FastZeroes { may_unmap } } else { Op::WriteZeroes { may_unmap } };
            (execute(op, header.flags & request::FUA != 0), request::NO_HOLE | request::FAST_ZERO)
        }
        Command::BlockStatus => (Action::BlockStatus { one: header.flags & request::REQ_ONE != 0 }, request::REQ_ONE),
    };
    if header.flags & !(own_flags | request::FUA) != 0 {
        return Err(Rule::UnknownFlags);
    }
    if export.is_read_only() && matches!(command, Command::Write | Command::Trim | Command::WriteZeroes) {
        return Err(Rule::ReadOnly);
    }
    if command == Command::BlockStatus && !session.block_status {
        return Err(Rule::NeedsMetaContext);
    }
    if command == Command::Flush {
        let no_range = header.offset_bytes == 0 && header.length_bytes == 0;
        return if no_range { Ok(action) } else { Err(Rule::FlushHasNoRange) };
    }
    if header.length_bytes == 0 {
        return Err(Rule::ZeroLength);
    }
    let payload_bytes_max = u64::from(export.block.payload_bytes_max);
    if matches!(command, Command::Read | Command::Write) && header.length_bytes > payload_bytes_max {
        return Err(Rule::PayloadOverMax);
    }
    let end_bytes = header.offset_bytes.checked_add(header.length_bytes);
    if end_bytes.is_none_or(|end_bytes| end_bytes > export.size_now_bytes()) {
        return Err(Rule::OutOfRange);
    }
    // A power of two, so its lower bits are what may not be set.
    let below_block = u64::from(export.block.min_bytes) - 1;
    if (header.offset_bytes | header.length_bytes) & below_block != 0 {
        return Err(Rule::Unaligned);
    }
    Ok(action)
}

const fn execute(op: Op, fua: bool) -> Action {
    Action::Execute { op, fua }
}

#[cfg(test)]
mod tests {
    use super::super::wire::Errno;
    use super::*;
    use crate::export::BlockSizes;
    use crate::memory::TenantMemory;
    use mqfq_blk::FlowId;
    use mqfq_blk::client::DeviceIndex;

    const MIB: u64 = 1 << 20;

    /// 1 MiB, blocks of 512, payloads up to 64 KiB; structured replies and base:allocation agreed.
    fn session() -> Session {
        let block =
            BlockSizes { min_bytes: 512, preferred_bytes: 4096, payload_bytes_max: 65536, pages_align_bytes: 0 };
        let export = Export {
            name: "a".to_owned(),
            description: String::new(),
            device: DeviceIndex(0),
            flow: FlowId(0),
            id: crate::export::ExportId(mqfq_blk::slots::Slot::first(0)),
            tenant: crate::export::TenantId(mqfq_blk::slots::Slot::first(0)),
            state: crate::export::ExportState::default(),
            offset_bytes: 0,
            size_bytes: MIB,
            read_only: false,
            block,
            memory: TenantMemory::unbounded(),
            caps: mqfq_blk::cap::Caps::none(),
        };
        Session { export: Arc::new(export), structured: true, extended: false, block_status: true }
    }

    fn read_only(mut session: Session) -> Session {
        Arc::make_mut(&mut session.export).read_only = true;
        session
    }

    fn header(command: Command, flags: u16, offset_bytes: u64, length_bytes: u32) -> RequestHeader {
        RequestHeader { flags, command: command as u16, cookie: 1, offset_bytes, length_bytes: length_bytes.into() }
    }

    fn refused(session: &Session, header: RequestHeader) -> (Rule, Errno) {
        let rule = validate(session, &header).unwrap_err();
        (rule, rule.errno(Command::from_number(header.command), session.structured))
    }

    #[test]
    fn each_command_does_what_it_says() {
        let does = |header| validate(&session(), &header).unwrap();
        assert_eq!(does(header(Command::Read, 0, 0, 512)), execute(Op::Read, false));
        assert_eq!(does(header(Command::Read, request::DF, MIB - 512, 512)), execute(Op::Read, false));
        assert_eq!(does(header(Command::Write, 0, 0, 65536)), execute(Op::Write, false));
        assert_eq!(does(header(Command::Write, request::FUA, 0, 512)), execute(Op::Write, true));
        assert_eq!(does(header(Command::Flush, 0, 0, 0)), execute(Op::Flush, false));
        assert_eq!(does(header(Command::Trim, request::FUA, 0, MIB as u32)), execute(Op::Discard, true));
        let zeroes = |flags| does(header(Command::WriteZeroes, flags, 0, MIB as u32));
        assert_eq!(zeroes(0), execute(Op::WriteZeroes { may_unmap: true }, false));
        assert_eq!(zeroes(request::NO_HOLE), execute(Op::WriteZeroes { may_unmap: false }, false));
        assert_eq!(zeroes(request::FUA), execute(Op::WriteZeroes { may_unmap: true }, true));
        assert_eq!(zeroes(request::FAST_ZERO), execute(Op::FastZeroes { may_unmap: true }, false));
        let kept = zeroes(request::FAST_ZERO | request::NO_HOLE | request::FUA);
        assert_eq!(kept, execute(Op::FastZeroes { may_unmap: false }, true));
        let status = |flags| does(header(Command::BlockStatus, flags, 0, MIB as u32));
        assert_eq!(status(request::REQ_ONE), Action::BlockStatus { one: true });
        assert_eq!(status(0), Action::BlockStatus { one: false });
        assert_eq!(does(header(Command::Disconnect, 0xffff, 7, 7)), Action::Disconnect);
    }

    #[test]
    fn fua_is_taken_and_ignored_where_nothing_is_written() {
        let does = |header| validate(&session(), &header).unwrap();
        assert_eq!(does(header(Command::Read, request::FUA, 0, 512)), execute(Op::Read, false));
        assert_eq!(does(header(Command::Flush, request::FUA, 0, 0)), execute(Op::Flush, false));
        assert_eq!(does(header(Command::BlockStatus, request::FUA, 0, 512)), Action::BlockStatus { one: false });
    }

    #[test]
    fn unknown_commands_are_einval() {
        let unknown = RequestHeader { command: 8, ..header(Command::Read, 0, 0, 512) };
        assert_eq!(refused(&session(), unknown), (Rule::UnknownCommand, Errno::Inval));
        let unknown = RequestHeader { command: u16::MAX, ..unknown };
        assert_eq!(refused(&session(), unknown), (Rule::UnknownCommand, Errno::Inval));
        assert_eq!(refused(&session(), header(Command::Cache, 0, 0, 512)), (Rule::UnknownCommand, Errno::Inval));
    }

    #[test]
    fn flags_that_are_unknown_or_another_commands_are_einval() {
        for (command, flags) in [
            (Command::Read, request::NO_HOLE),
            (Command::Read, request::REQ_ONE),
            (Command::Write, request::DF),
            (Command::Write, request::PAYLOAD),
            (Command::Flush, request::DF),
            (Command::Trim, request::NO_HOLE),
            (Command::Trim, request::FAST_ZERO),
            (Command::WriteZeroes, request::PAYLOAD),
            (Command::WriteZeroes, request::DF),
            (Command::BlockStatus, request::DF),
            (Command::BlockStatus, request::PAYLOAD),
            (Command::Read, 1 << 15),
        ] {
            let header = header(command, flags, 0, if command == Command::Flush { 0 } else { 512 });
            assert_eq!(refused(&session(), header), (Rule::UnknownFlags, Errno::Inval), "{command:?} {flags:#x}");
        }
        let simple = Session { structured: false, block_status: false, ..session() };
        let header = header(Command::Read, request::DF, 0, 512);
        assert_eq!(refused(&simple, header), (Rule::UnknownFlags, Errno::Inval), "DF needs structured replies");
    }

    #[test]
    fn a_read_only_export_refuses_changes_and_nothing_else() {
        let session = read_only(session());
        for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
            assert_eq!(refused(&session, header(command, 0, 0, 512)), (Rule::ReadOnly, Errno::Perm));
        }
        for header in [header(Command::Read, 0, 0, 512), header(Command::Flush, 0, 0, 0)] {
            assert!(validate(&session, &header).is_ok());
        }
    }

    #[test]
    fn past_the_end_is_enospc_for_writes_and_einval_for_the_rest() {
        for (command, errno) in [
            (Command::Write, Errno::NoSpc),
            (Command::WriteZeroes, Errno::NoSpc),
            (Command::Read, Errno::Inval),
            (Command::Trim, Errno::Inval),
            (Command::BlockStatus, Errno::Inval),
        ] {
            for offset_bytes in [MIB - 512, MIB, u64::MAX - 511] {
                let header = header(command, 0, offset_bytes, 1024);
                assert_eq!(refused(&session(), header), (Rule::OutOfRange, errno), "{command:?} at {offset_bytes}");
            }
        }
    }

    #[test]
    fn numbers_off_the_minimum_block_are_einval() {
        for command in [Command::Read, Command::Write, Command::Trim, Command::WriteZeroes, Command::BlockStatus] {
            for (offset_bytes, length_bytes) in [(1, 512), (0, 511), (256, 256)] {
                let header = header(command, 0, offset_bytes, length_bytes);
                assert_eq!(refused(&session(), header), (Rule::Unaligned, Errno::Inval), "{command:?}");
            }
        }
    }

    #[test]
    fn empty_requests_are_einval() {
        for command in [Command::Read, Command::Write, Command::Trim, Command::WriteZeroes, Command::BlockStatus] {
            assert_eq!(refused(&session(), header(command, 0, 0, 0)), (Rule::ZeroLength, Errno::Inval));
        }
    }

    #[test]
    fn the_largest_payload_binds_reads_and_writes_only() {
        // One block above 64 KiB.
        let length_bytes = 65536 + 512;
        assert_eq!(
            refused(&session(), header(Command::Write, 0, 0, length_bytes)),
            (Rule::PayloadOverMax, Errno::Inval)
        );
        let read = header(Command::Read, 0, 0, length_bytes);
        assert_eq!(refused(&session(), read), (Rule::PayloadOverMax, Errno::Overflow), "smaller ones may work");
        let simple = Session { structured: false, ..session() };
        assert_eq!(refused(&simple, read), (Rule::PayloadOverMax, Errno::Inval));
        for command in [Command::Trim, Command::WriteZeroes, Command::BlockStatus] {
            assert!(validate(&session(), &header(command, 0, 0, length_bytes)).is_ok());
        }
    }

    #[test]
    fn a_flush_has_no_range() {
        for (offset_bytes, length_bytes) in [(512, 0), (0, 512)] {
            let header = header(Command::Flush, 0, offset_bytes, length_bytes);
            assert_eq!(refused(&session(), header), (Rule::FlushHasNoRange, Errno::Inval));
        }
    }

    #[test]
    fn block_status_needs_its_context() {
        let session = Session { block_status: false, ..session() };
        let header = header(Command::BlockStatus, 0, 0, 512);
        assert_eq!(refused(&session, header), (Rule::NeedsMetaContext, Errno::Inval));
    }
}
