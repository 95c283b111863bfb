//! The upper edge: a client (one connection of a front end) that lives on a worker and shares its loop.
//!
//! blk knows no protocol. A front end implements [`Client`]; the worker calls it when a socket operation ended, when a
//! request completed, and once at the end of each turn of its loop, and never from another thread. Everything a client
//! wants done it asks of its [`Context`], which is a trait so that a protocol is tested without a ring.

use crate::buffer::Buffer;
use crate::device::DeviceInfo;
use crate::request::{Completion, Submission};
use std::os::fd::{OwnedFd, RawFd};

/// Names a device of the engine: index into the list it was started with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceIndex(pub u16);

/// A piece of outgoing bytes, owned while the kernel reads it.
#[derive(Debug)]
pub enum Part {
    /// Protocol bytes.
    Bytes(Vec<u8>),
    /// `length_bytes` of a request's buffer, from its start.
    Payload {
        /// The bytes.
        buffer: Buffer,
        /// How many of them.
        length_bytes: usize,
    },
}

impl Part {
    /// The bytes to send.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Part::Bytes(bytes) => bytes,
            Part::Payload { buffer, length_bytes } => &buffer.as_slice()[..*length_bytes],
        }
    }
}

/// Makes a client on the worker where it will live.
pub type MakeClient = Box<dyn FnOnce() -> Box<dyn Client> + Send>;

/// A socket operation ended, or a timer.
#[derive(Debug)]
pub enum Event {
    /// A [`Context::accept`] ended.
    Accepted {
        /// As given.
        user: u32,
        /// The connection, or the errno.
        result: Result<OwnedFd, i32>,
    },
    /// A [`Context::receive`] ended.
    Received {
        /// As given.
        user: u32,
        /// The buffer given.
        buffer: Buffer,
        /// Bytes received from `start` on (0: the peer closed), or the errno.
        result: Result<usize, i32>,
    },
    /// A [`Context::send`] ended: everything was sent, or the connection is broken.
    Sent {
        /// As given.
        user: u32,
        /// The parts given, for reuse.
        parts: Vec<Part>,
        /// The errno of a broken connection.
        result: Result<(), i32>,
    },
    /// The time of a [`Context::timer`] has come: [`Context::now_ns`] is not before it.
    Timer {
        /// As given.
        user: u32,
    },
}

/// Why a submission came back.
#[derive(Debug)]
pub enum Refused {
    /// The flow has as many requests staged here as it may. Stop reading from the client; [`Client::room`] will come.
    TenantFull(Submission),
}

/// What a worker offers to the client it is calling.
pub trait Context {
    /// Nanoseconds since the engine started, read once per turn of the loop.
    fn now_ns(&self) -> u64;

    /// A device of the engine.
    fn device(&self, device: DeviceIndex) -> DeviceInfo;

    /// Hands a request to the block layer. The caller has validated it: inside the device, aligned, not too long. Its
    /// completion comes by [`Client::completed`], never from inside this call.
    ///
    /// # Errors
    /// [`Refused`], with the submission.
    fn submit(&mut self, device: DeviceIndex, submission: Submission) -> Result<(), Refused>;

    /// Receives into `buffer` from byte `start` to byte `end`; some bytes are enough. One receive at a time per socket.
    fn receive(&mut self, socket: RawFd, buffer: Buffer, start: usize, end: usize, user: u32);

    /// Sends all parts in order, however many system calls it takes. One send at a time per socket.
    fn send(&mut self, socket: RawFd, parts: Vec<Part>, user: u32);

    /// Accepts one connection on a listening socket; ends with [`Event::Accepted`].
    fn accept(&mut self, listener: RawFd, user: u32);

    /// Makes a new client live on some worker (the engine chooses, round robin). `make` runs on that worker's thread.
    fn attach(&mut self, make: MakeClient);

    /// Shuts the socket down in both directions: operations on it end soon.
    fn shutdown(&mut self, socket: RawFd);

    /// Asks for one [`Event::Timer`] at `at_ns` or as soon after it as the worker can (at once if that is past), never
    /// from inside this call. Any number at a time, each costs the worker an operation until then. A timer is not taken
    /// back: a client that no longer cares ignores its event. It does not keep a client that is done: see
    /// [`Client::is_done`].
    fn timer(&mut self, at_ns: u64, user: u32);
}

/// One connection, living on one worker.
pub trait Client {
    /// First call, on the worker's thread: start receiving.
    fn start(&mut self, context: &mut dyn Context);

    /// A socket operation ended, or a timer.
    fn event(&mut self, context: &mut dyn Context, event: Event);

    /// A request completed.
    fn completed(&mut self, context: &mut dyn Context, completion: Completion);

    /// End of a turn of the loop in which this client was called: send what has gathered, in one batch.
    fn turn_end(&mut self, context: &mut dyn Context);

    /// There is room again for the flow whose submission was refused.
    fn room(&mut self, context: &mut dyn Context);

    /// The engine shuts down: read no more requests, answer those admitted, then be done.
    fn drain(&mut self, context: &mut dyn Context);

    /// Nothing is left to do. The worker drops the client once this is true and neither a socket operation nor a
    /// request of it is in flight. Its timers do not count: they are cancelled with it.
    fn is_done(&self) -> bool;
}
