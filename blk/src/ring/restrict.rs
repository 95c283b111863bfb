//! Restrictions of a worker's ring.
//!
//! A filter of system calls does not see a ring's operations, so a ring has a list of its own, which cannot grow: it is
//! made disabled, restricted once, and then enabled. Source: io_uring_register(2), IORING_REGISTER_RESTRICTIONS; Linux
//! 5.10. Other operations of a device or a front end must be added here.

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue};
use std::io;

/// Operations that a worker's ring does: those that this crate submits. A client's bytes never choose one; the kernel
/// ends any other with EACCES, so that a writer to the ring's memory can do no more than that.
const OPERATIONS: [u8; 16] = [
    opcode::Accept::CODE,
    opcode::AsyncCancel::CODE,
    opcode::Fallocate::CODE,
    opcode::Fsync::CODE,
    opcode::PollAdd::CODE,
    opcode::Read::CODE,
    opcode::ReadFixed::CODE,
    opcode::Recv::CODE,
    opcode::RecvMsg::CODE,
    opcode::Send::CODE,
    opcode::SendMsg::CODE,
    opcode::Timeout::CODE,
    opcode::TimeoutRemove::CODE,
    opcode::UringCmd16::CODE,
    opcode::Write::CODE,
    opcode::WriteFixed::CODE,
];

/// Registrations with the ring: files (2), others in their places (6), none (3); the most threads that the kernel may
/// make for it (19). Source: linux/io_uring.h, `io_uring_register_op`.
const REGISTRATIONS: [u8; 4] = [2, 3, 6, 19];

/// The ring, which was made disabled, may do so much and is enabled.
pub(super) fn restricted(ring: IoUring) -> io::Result<IoUring> {
    let operations = OPERATIONS.iter().map(|code| Restriction::sqe_op(*code));
    let registrations = REGISTRATIONS.iter().map(|code| Restriction::register_op(*code));
    let flags = Restriction::sqe_flags_allowed((squeue::Flags::FIXED_FILE | squeue::Flags::ASYNC).bits());
    let mut all: Vec<Restriction> = operations.chain(registrations).chain([flags]).collect();
    ring.submitter().register_restrictions(&mut all)?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::super::Ring;
    use super::*;
    use crate::worker::bell::Bell;

    #[test]
    fn a_ring_refuses_what_no_worker_does_and_what_would_register_more() {
        let bell = Bell::new().unwrap();
        let mut ring = Ring::new(bell.event()).unwrap();
        let path = c"/etc/passwd";
        let elsewhere = io_uring::types::Fd(libc::AT_FDCWD);
        let open = opcode::OpenAt::new(elsewhere, path.as_ptr()).build().user_data(7);
        // SAFETY: the path is static.
        unsafe { ring.uring.submission().push(&open) }.unwrap();
        ring.uring.submit_and_wait(1).unwrap();
        let ended: Vec<_> = ring.uring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        assert_eq!(ended, [(7, -libc::EACCES)]);
        let refused = ring.uring.submitter().register_eventfd(bell.event()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
        let again = ring.uring.submitter().register_restrictions(&mut []).unwrap_err();
        assert!(again.raw_os_error().is_some(), "once is for good: {again}");
    }
}
