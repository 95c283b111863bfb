//! How do a client's receives, accepts and sends end where they stand, so that another process can go on with them?
//!
//! The kernel is asked to cancel each. Source: io_uring_enter(2), IORING_OP_ASYNC_CANCEL, and the kernel's
//! `io_sendrecv_fail`: an operation that has moved bytes before it was cancelled reports them, and no error.
//!
//! | the kernel reports | of a receive or accept | of a send |
//! |---|---|---|
//! | bytes, or a connection | it was faster: a normal end | all: a normal end; a part: [`Event::SentInPart`] |
//! | ECANCELED | nothing has come | [`Event::SentInPart`] with what earlier steps had sent |
//! | another error | a normal end | a normal end |
//!
//! So no byte is lost: bytes that the kernel took off a socket are in an event, and the others stay there.
//!
//! [`Event::SentInPart`]: crate::client::Event::SentInPart

use super::{KIND_CLIENT, KIND_REMOVAL, Operation, Ring, Send};
use crate::client::Part;
use io_uring::opcode;

impl Ring {
    /// See [`crate::ask::Ask::Interrupt`].
    pub(super) fn interrupt(&mut self, client: u32) {
        for index in 0..self.operations.len() {
            let is_meant = match &mut self.operations[index] {
                Some(Operation::Receive { client: whose, .. } | Operation::Accept { client: whose, .. }) => {
                    *whose == client
                }
                Some(Operation::ReceiveMessage(message)) => message.client == client,
                Some(Operation::Send(send)) if send.client == client => {
                    send.is_cut = true;
                    true
                }
                _ => false,
            };
            if is_meant {
                // One that has ended by then is not found, which is as good.
                let entry = opcode::AsyncCancel::new(KIND_CLIENT << 56 | index as u64).build();
                self.push(entry.user_data(KIND_REMOVAL << 56));
            }
        }
    }
}

impl Send {
    /// Number of bytes that had left when it was cut, if it was and bytes are left; `result` is its last one.
    pub(super) fn cut_at_bytes(&self, result: i32) -> Option<usize> {
        let left_bytes: usize = self.vectors[self.first..].iter().map(|vector| vector.iov_len).sum();
        let is_no_error = result >= 0 || [libc::ECANCELED, libc::EINTR, libc::EAGAIN].contains(&-result);
        let is_cut = self.is_cut && left_bytes > 0 && is_no_error;
        is_cut.then(|| self.parts.iter().map(Part::length_bytes).sum::<usize>() - left_bytes)
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use crate::ask::Ask;
    use crate::buffer::Buffer;
    use crate::client::Event;
    use crate::edge::ask::HostEvent;
    use crate::worker::bell::Bell;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    /// Collects events until no operation of a client is in flight.
    fn events(ring: &mut Ring) -> Vec<Event> {
        let (mut ended, mut events) = (Vec::new(), Vec::new());
        while ring.free.len() < ring.operations.len() {
            // The limit is for the day on which this fails.
            ring.enter_and_wait(Some(10_000_000_000)).unwrap();
            ring.collect(&mut ended);
            assert!(!ended.is_empty(), "an operation is still in flight");
            for ended in ended.drain(..) {
                if let Some(HostEvent::Client { event, .. }) = ring.resolve(ended) {
                    events.push(event);
                }
            }
        }
        events
    }

    #[test]
    fn a_receive_and_an_accept_end_without_a_byte_or_a_client_taken() {
        let bell = Bell::new().unwrap();
        let mut ring = Ring::new(bell.event()).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let path = std::env::temp_dir().join(format!("mqfq-interrupt-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let (socket, buffer) = (ours.as_raw_fd(), Buffer::new(4096));
        ring.ask(1, Ask::Receive { socket, buffer, start: 0, end: 4096, with_descriptors: false, user: 7 });
        ring.ask(1, Ask::Accept { listener: listener.as_raw_fd(), user: 8 });
        ring.enter().unwrap();
        ring.interrupt(2);
        ring.interrupt(1);
        let events = events(&mut ring);
        assert!(
            matches!(
                events[..],
                [
                    Event::Received { user: 7, result: Err(libc::ECANCELED), .. },
                    Event::Accepted { user: 8, result: Err(libc::ECANCELED) }
                ]
            ),
            "{events:?}"
        );
        theirs.write_all(b"later").unwrap();
        let mut bytes = [0; 5];
        (&ours).read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"later");
        let _client = UnixStream::connect(&path).unwrap();
        listener.accept().unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    /// Without the cancellation the kernel tries the accept again 128 times before it asks another thread for its end.
    #[test]
    fn an_accept_that_is_cancelled_before_its_socket_is_shut_down_is_not_tried_again() {
        let bell = Bell::new().unwrap();
        let mut ring = Ring::new(bell.event()).unwrap();
        let path = std::env::temp_dir().join(format!("mqfq-interrupt-shut-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        ring.ask(1, Ask::Accept { listener: listener.as_raw_fd(), user: 8 });
        ring.enter().unwrap();
        ring.interrupt(1);
        super::super::shutdown(listener.as_raw_fd());
        let events = events(&mut ring);
        assert!(matches!(events[..], [Event::Accepted { user: 8, result: Err(libc::ECANCELED) }]), "{events:?}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_send_into_a_full_socket_says_what_has_left_and_the_rest_can_follow() {
        let bell = Bell::new().unwrap();
        let mut ring = Ring::new(bell.event()).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        // Several parts and one part are sent by different system calls.
        for lengths in [&[70_000, 4_000_000][..], &[4_000_000]] {
            let parts: Vec<Part> = lengths
                .iter()
                .map(|length| Part::Bytes((0..*length).map(|at: u32| (at / 7) as u8).collect()))
                .collect();
            let all: Vec<u8> = parts.iter().flat_map(|part| part.as_slice()).copied().collect();
            ring.send(1, ours.as_raw_fd(), parts, Vec::new(), 9);
            ring.enter().unwrap();
            ring.interrupt(1);
            let mut events = events(&mut ring);
            let Some(Event::SentInPart { user: 9, parts, sent_bytes }) = events.pop() else { panic!("{events:?}") };
            assert!(sent_bytes > 0 && sent_bytes < all.len(), "{sent_bytes} of {}", all.len());
            let given_back: Vec<u8> = parts.iter().flat_map(|part| part.as_slice()).copied().collect();
            assert!(given_back == all);
            let mut read = vec![0; sent_bytes];
            theirs.read_exact(&mut read).unwrap();
            assert!(read == all[..sent_bytes]);
            theirs.set_nonblocking(true).unwrap();
            assert_eq!(theirs.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "no byte more");
            theirs.set_nonblocking(false).unwrap();
        }
    }

    #[test]
    fn a_send_that_was_faster_ends_as_ever_and_the_next_one_is_not_cut() {
        let bell = Bell::new().unwrap();
        let mut ring = Ring::new(bell.event()).unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ring.send(1, ours.as_raw_fd(), vec![Part::Bytes(b"short".to_vec())], Vec::new(), 1);
        ring.interrupt(1);
        assert!(matches!(events(&mut ring)[..], [Event::Sent { user: 1, result: Ok(()), .. }]));
        // The state of the send is used again.
        ring.send(1, ours.as_raw_fd(), vec![Part::Bytes(b"short".to_vec())], Vec::new(), 2);
        assert!(matches!(&ring.operations[..], [Some(Operation::Send(send))] if !send.is_cut));
        assert!(matches!(events(&mut ring)[..], [Event::Sent { user: 2, result: Ok(()), .. }]));
    }
}
