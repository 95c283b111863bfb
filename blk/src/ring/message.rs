//! Messages with descriptors (SCM_RIGHTS): the parts that the kernel reads and writes besides their bytes.
//!
//! Source: unix(7), cmsg(3). One control message of one kind: a header and up to [`DESCRIPTORS_MAX`] descriptors.

use crate::buffer::Buffer;
use crate::client::{DESCRIPTORS_MAX, Descriptors};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Room for the largest control message: its header and its descriptors, in whole words.
const CONTROL_BYTES: usize = size_of::<libc::cmsghdr>() + (DESCRIPTORS_MAX * size_of::<RawFd>()).next_multiple_of(8);

/// Memory of a control message.
#[repr(C, align(8))]
pub(super) struct Control([u8; CONTROL_BYTES]);

impl Control {
    pub(super) fn new() -> Control {
        Control([0; CONTROL_BYTES])
    }

    /// Makes `header` take the control message here.
    pub(super) fn receive_by(&mut self, header: &mut libc::msghdr) {
        header.msg_control = self.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_BYTES;
    }

    /// Makes `header` send `descriptors`, at least one.
    ///
    /// # Panics
    /// If there are more than [`DESCRIPTORS_MAX`].
    pub(super) fn send_by(&mut self, header: &mut libc::msghdr, descriptors: &[OwnedFd]) {
        assert!(descriptors.len() <= DESCRIPTORS_MAX, "{} descriptors in one message", descriptors.len());
        let bytes = size_of_val(descriptors) as u32;
        header.msg_control = self.0.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE and CMSG_LEN compute. The control buffer has room for a header and the descriptors
        // (asserted above), is aligned for the header, and is ours; descriptors are written as they are read.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
            let first = &mut *libc::CMSG_FIRSTHDR(header);
            (first.cmsg_level, first.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            first.cmsg_len = libc::CMSG_LEN(bytes) as usize;
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            for (at, descriptor) in descriptors.iter().enumerate() {
                data.add(at).write_unaligned(descriptor.as_raw_fd());
            }
        }
    }
}

/// A receive with descriptors in flight.
pub(super) struct ReceiveMessage {
    pub(super) client: u32,
    pub(super) user: u32,
    pub(super) socket: RawFd,
    pub(super) buffer: Option<Buffer>,
    vector: libc::iovec,
    header: libc::msghdr,
    control: Control,
}

impl ReceiveMessage {
    pub(super) fn new() -> Box<ReceiveMessage> {
        Box::new(ReceiveMessage {
            client: 0,
            user: 0,
            socket: -1,
            buffer: None,
            vector: libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 },
            // SAFETY: msghdr is a C struct of integers and pointers, for which all-zero is a valid "nothing".
            header: unsafe { std::mem::zeroed() },
            control: Control::new(),
        })
    }

    /// Receives `length_bytes` to `start`, which lies in `buffer`. The header to give to the kernel: it and what it
    /// points to stay where they are, in the box, until the operation ended.
    pub(super) fn begin(
        self: &mut Box<Self>,
        buffer: Buffer,
        start: *mut u8,
        length_bytes: usize,
    ) -> *mut libc::msghdr {
        let ReceiveMessage { vector, header, control, .. } = &mut **self;
        *vector = libc::iovec { iov_base: start.cast(), iov_len: length_bytes };
        (header.msg_iov, header.msg_iovlen, header.msg_flags) = (vector, 1, 0);
        control.receive_by(header);
        self.buffer = Some(buffer);
        &raw mut self.header
    }

    /// Takes the descriptors that came with the bytes of a receive that ended well. Once.
    pub(super) fn take_descriptors(&mut self) -> Descriptors {
        let header = &self.header;
        let mut descriptors = Vec::new();
        // SAFETY: the kernel has filled the control buffer and stated in the header how far; the macros stay inside.
        // The descriptors there are new and have no other owner.
        unsafe {
            let mut next = libc::CMSG_FIRSTHDR(header);
            while let Some(message) = next.as_ref() {
                if (message.cmsg_level, message.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                    let data = libc::CMSG_DATA(message).cast::<RawFd>();
                    let count = (message.cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                    descriptors.extend((0..count).map(|at| OwnedFd::from_raw_fd(data.add(at).read_unaligned())));
                }
                next = libc::CMSG_NXTHDR(header, message);
            }
        }
        Descriptors::new(descriptors, header.msg_flags & libc::MSG_CTRUNC != 0)
    }
}
