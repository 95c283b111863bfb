//! Operations that a client asks of its worker's loop.
//!
//! ```text
//!   client ── Context::ask ──▶ worker: counts ── Host::ask ────▶ host: starts
//!   client ◀─ Client::event ── worker: counts ◀─ Host::resolve ─ host: has ended
//! ```
//! A client writes `context.receive(socket, buffer, start, end, user)`: the functions of `dyn Context` here make the
//! [`Ask`], a worker counts it ([`CountedAs`]), and its host has one `match` over all of them.
//!
//! A descriptor must stay open until the operations on it ended, were taken back, or went with the client.

use crate::buffer::Buffer;
use crate::client::{Context, Event, MakeClient, Part};
use crate::command::Command;
use std::os::fd::{OwnedFd, RawFd};

/// An operation. `user` is the client's number for it, which its event has as well.
///
/// | operation | ends with | counted as |
/// |---|---|---|
/// | `Receive` | [`Event::Received`] | operation |
/// | `Send` | [`Event::Sent`], [`Event::SentInPart`] | operation |
/// | `Accept` | [`Event::Accepted`] | operation |
/// | `Signal` | [`Event::Signalled`] | operation |
/// | `Poll` | [`Event::Ready`] | wait |
/// | `Count` | [`Event::Counted`] | wait |
/// | `Timer` | [`Event::Timer`] | wait |
/// | `Command` | [`Event::Commanded`] | wait |
/// | `Attach`, `Shutdown`, `Interrupt` | no event | nothing |
pub enum Ask {
    /// Receives; some bytes are enough. One receive at a time per socket.
    Receive {
        /// A stream socket.
        socket: RawFd,
        /// Memory for the bytes.
        buffer: Buffer,
        /// First byte of the buffer that is written.
        start: usize,
        /// The byte after the last that may be written; more than `start`, at most the buffer's capacity.
        end: usize,
        /// Takes up to [`DESCRIPTORS_MAX`](crate::client::DESCRIPTORS_MAX) descriptors that come with the bytes,
        /// close-on-exec. The socket is a unix socket then.
        with_descriptors: bool,
        /// As above.
        user: u32,
    },
    /// Sends all parts in order, however many system calls it takes. One send at a time per socket.
    Send {
        /// A stream socket.
        socket: RawFd,
        /// The bytes.
        parts: Vec<Part>,
        /// At most [`DESCRIPTORS_MAX`](crate::client::DESCRIPTORS_MAX), which go with the first byte of `parts` and are
        /// closed here when the send has ended. With any, `parts` has a byte and the socket is a unix socket.
        descriptors: Vec<OwnedFd>,
        /// As above.
        user: u32,
    },
    /// Accepts one connection.
    Accept {
        /// A listening socket.
        listener: RawFd,
        /// As above.
        user: u32,
    },
    /// Adds 1 to an eventfd. Ends at once: a process that shares the eventfd may keep it full.
    Signal {
        /// The eventfd. One that does not block (O_NONBLOCK: set it where the descriptor is taken).
        event: RawFd,
        /// As above.
        user: u32,
    },
    /// Waits once until a descriptor can be read without waiting.
    Poll {
        /// Any that can be polled.
        descriptor: RawFd,
        /// As above.
        user: u32,
    },
    /// Waits once until an eventfd is not 0, and reads it, which sets it to 0. The read is done by the worker's ring: a
    /// client that is kicked makes no system call of its own.
    Count {
        /// The eventfd.
        event: RawFd,
        /// As above.
        user: u32,
    },
    /// Waits once until a time, and ends as soon after it as the worker can: in its next turn if that is past. Any
    /// number at a time; one that is not past costs the worker an operation. It is not taken back: a client that no
    /// longer cares ignores the event.
    Timer {
        /// Nanoseconds since the engine started.
        at_ns: u64,
        /// As above.
        user: u32,
    },
    /// Gives a driver a command, which ends when the driver wants, perhaps never. It cannot be taken back, and its end
    /// is not reported to a client that was dropped; the ring keeps the memory that the driver may touch.
    Command {
        /// The command.
        command: Command,
        /// As above.
        user: u32,
    },
    /// Makes a new client live on some worker, which the engine chooses, round robin.
    Attach {
        /// Runs on the thread of that worker.
        make: MakeClient,
    },
    /// Shuts a socket down in both directions: operations on it end soon.
    Shutdown {
        /// The socket.
        socket: RawFd,
    },
    /// Ends the receives, accepts and sends of this client where they stand. Each ends soon, by its event: with what it
    /// had done (a send by [`Event::SentInPart`]), or with ECANCELED if that is nothing. No byte is lost or taken
    /// twice.
    Interrupt,
}

// It is built where a client asks and moved once to its host.
const _: () = assert!(size_of::<Ask>() <= 64);

/// Effect of an operation under way on the client that asked for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountedAs {
    /// The worker keeps a client that is done until it has ended.
    Operation,
    /// A client that is done is dropped, and the wait is cancelled with it.
    Wait,
    /// No event ends it, so it is not counted.
    Nothing,
}

impl Ask {
    /// Count that has it while it is under way.
    #[inline]
    pub fn counted_as(&self) -> CountedAs {
        match self {
            Ask::Receive { .. } | Ask::Send { .. } | Ask::Accept { .. } | Ask::Signal { .. } => CountedAs::Operation,
            Ask::Poll { .. } | Ask::Count { .. } | Ask::Timer { .. } | Ask::Command { .. } => CountedAs::Wait,
            Ask::Attach { .. } | Ask::Shutdown { .. } | Ask::Interrupt => CountedAs::Nothing,
        }
    }
}

impl Event {
    /// Count that had the operation that it ends.
    #[inline]
    pub fn counted_as(&self) -> CountedAs {
        match self {
            Event::Received { .. } | Event::Sent { .. } | Event::SentInPart { .. } => CountedAs::Operation,
            Event::Accepted { .. } | Event::Signalled { .. } => CountedAs::Operation,
            Event::Ready { .. } | Event::Counted { .. } => CountedAs::Wait,
            Event::Timer { .. } | Event::Commanded { .. } => CountedAs::Wait,
        }
    }
}

impl dyn Context + '_ {
    /// Asks for [`Ask::Receive`] of bytes alone.
    #[inline]
    pub fn receive(&mut self, socket: RawFd, buffer: Buffer, start: usize, end: usize, user: u32) {
        self.ask(Ask::Receive { socket, buffer, start, end, with_descriptors: false, user });
    }

    /// Asks for [`Ask::Receive`] with descriptors.
    #[inline]
    pub fn receive_with_descriptors(&mut self, socket: RawFd, buffer: Buffer, start: usize, end: usize, user: u32) {
        self.ask(Ask::Receive { socket, buffer, start, end, with_descriptors: true, user });
    }

    /// Asks for [`Ask::Send`] of bytes alone.
    #[inline]
    pub fn send(&mut self, socket: RawFd, parts: Vec<Part>, user: u32) {
        self.ask(Ask::Send { socket, parts, descriptors: Vec::new(), user });
    }

    /// Asks for [`Ask::Send`].
    #[inline]
    pub fn send_with_descriptors(&mut self, socket: RawFd, parts: Vec<Part>, descriptors: Vec<OwnedFd>, user: u32) {
        self.ask(Ask::Send { socket, parts, descriptors, user });
    }

    /// Asks for [`Ask::Accept`].
    #[inline]
    pub fn accept(&mut self, listener: RawFd, user: u32) {
        self.ask(Ask::Accept { listener, user });
    }

    /// Asks for [`Ask::Signal`].
    #[inline]
    pub fn signal(&mut self, event: RawFd, user: u32) {
        self.ask(Ask::Signal { event, user });
    }

    /// Asks for [`Ask::Poll`].
    #[inline]
    pub fn poll(&mut self, descriptor: RawFd, user: u32) {
        self.ask(Ask::Poll { descriptor, user });
    }

    /// Asks for [`Ask::Count`].
    #[inline]
    pub fn count(&mut self, event: RawFd, user: u32) {
        self.ask(Ask::Count { event, user });
    }

    /// Asks for [`Ask::Timer`].
    #[inline]
    pub fn timer(&mut self, at_ns: u64, user: u32) {
        self.ask(Ask::Timer { at_ns, user });
    }

    /// Asks for [`Ask::Command`].
    #[inline]
    pub fn command(&mut self, command: Command, user: u32) {
        self.ask(Ask::Command { command, user });
    }

    /// Asks for [`Ask::Attach`].
    #[inline]
    pub fn attach(&mut self, make: MakeClient) {
        self.ask(Ask::Attach { make });
    }

    /// Asks for [`Ask::Shutdown`].
    #[inline]
    pub fn shutdown(&mut self, socket: RawFd) {
        self.ask(Ask::Shutdown { socket });
    }

    /// Asks for [`Ask::Interrupt`].
    #[inline]
    pub fn interrupt(&mut self) {
        self.ask(Ask::Interrupt);
    }
}

// The end of an operation that a worker has asked of its surroundings.

/// An operation that ended, as the host names it, and its result. [`Host::resolve`](crate::worker::host::Host::resolve)
/// says what it means.
pub type Ended = (u64, i32);

/// Meaning of an operation's end to the loop.
#[derive(Debug)]
pub enum HostEvent {
    /// A client's operation or timer ended.
    Client {
        /// The client, as given when the operation was asked for.
        client: u32,
        /// The event.
        event: Event,
    },
    /// A device queue's operation ended.
    Device {
        /// Index of the device.
        device: u16,
        /// The device queue's name for it.
        user: u32,
        /// Result as the kernel states it.
        result: i32,
    },
    /// The worker was kicked.
    Bell,
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_operation_and_its_end_are_counted_alike() {
        let user = 0;
        let buffer = || Buffer::new(1);
        let receive = Ask::Receive { socket: 0, buffer: buffer(), start: 0, end: 1, with_descriptors: false, user };
        let send = || Ask::Send { socket: 0, parts: Vec::new(), descriptors: Vec::new(), user };
        let received =
            Event::Received { user, buffer: buffer(), result: Ok(1), descriptors: crate::client::Descriptors::NONE };
        let operations = [
            (receive, received),
            (send(), Event::Sent { user, parts: Vec::new(), result: Ok(()) }),
            (send(), Event::SentInPart { user, parts: Vec::new(), sent_bytes: 0 }),
            (Ask::Accept { listener: 0, user }, Event::Accepted { user, result: Err(1) }),
            (Ask::Signal { event: 0, user }, Event::Signalled { user, result: Ok(()) }),
        ];
        let waits = [
            (Ask::Poll { descriptor: 0, user }, Event::Ready { user, result: Ok(()) }),
            (Ask::Count { event: 0, user }, Event::Counted { user, result: Ok(1) }),
            (Ask::Timer { at_ns: 0, user }, Event::Timer { user }),
        ];
        for (pairs, counted_as) in [(&operations[..], CountedAs::Operation), (&waits, CountedAs::Wait)] {
            for (ask, end) in pairs {
                assert_eq!((ask.counted_as(), end.counted_as()), (counted_as, counted_as), "{end:?}");
            }
        }
        // A command may last for ever.
        assert_eq!(Event::Commanded { user, result: 0 }.counted_as(), CountedAs::Wait);
        for ask in [Ask::Shutdown { socket: 0 }, Ask::Interrupt] {
            assert_eq!(ask.counted_as(), CountedAs::Nothing);
        }
    }
}
