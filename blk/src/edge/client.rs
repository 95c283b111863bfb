//! The upper edge: a client (a connection or a queue of a front end) that lives on a worker and shares its loop.
//!
//! blk knows no protocol. A front end implements [`Client`]; the worker calls it when an operation ended, when a
//! request completed, and once at the end of each turn of its loop in which it was called, and never from another
//! thread. Everything a client wants done it asks of its [`Context`] (operations by an [`Ask`]), which is a trait so
//! that a protocol is tested without a ring.
//!
//! # A client without a socket
//! A guest's queue has no socket: an eventfd says that there are requests, they and their payloads lie in the guest's
//! memory, completions are written there, and another eventfd says so. Such a client
//!
//! 1. asks for [`Ask::Count`] of the first eventfd,
//! 2. at [`Event::Counted`] reads the ring, submits with buffers of [`crate::foreign::ForeignMemory`], and asks again,
//! 3. at [`Client::completed`] notes the completion,
//! 4. at [`Client::turn_end`] writes the completions of the turn to the ring and asks for one [`Ask::Signal`].
//!
//! [`Client::turn_end`] is the place for work that is done once for many calls: it comes in the same turn of the loop,
//! after all of them. Work for a later turn asks for an [`Ask::Timer`] at a time that is past.

use crate::ask::Ask;
use crate::buffer::Buffer;
use crate::cap::Caps;
use crate::request::DeviceInfo;
use crate::request::{Completion, Submission};
use crate::slots::Slot;
use mqfq_sched::flow::FlowId;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Names a device of the engine: index into the list it was started with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceIndex(pub u16);

impl From<Slot> for DeviceIndex {
    /// # Panics
    /// Beyond the 65,535 devices of an engine.
    fn from(slot: Slot) -> DeviceIndex {
        DeviceIndex(u16::try_from(slot.place()).expect("an engine has at most 65,535 devices"))
    }
}

/// A piece of outgoing bytes, owned while the kernel reads it.
#[derive(Debug)]
pub enum Part {
    /// Protocol bytes.
    Bytes(Vec<u8>),
    /// The first `length_bytes` of a request's buffer.
    Payload {
        /// The bytes.
        buffer: Buffer,
        /// Number of bytes to send.
        length_bytes: usize,
    },
}

impl Part {
    /// Number of bytes that it sends.
    pub fn length_bytes(&self) -> usize {
        match self {
            Part::Bytes(bytes) => bytes.len(),
            Part::Payload { length_bytes, .. } => *length_bytes,
        }
    }

    /// The first of its bytes, for system calls.
    ///
    /// # Panics
    /// If a payload is longer than its buffer.
    pub fn as_ptr(&self) -> *const u8 {
        match self {
            Part::Bytes(bytes) => bytes.as_ptr(),
            Part::Payload { buffer, length_bytes } => {
                let capacity_bytes = buffer.capacity_bytes();
                assert!(*length_bytes <= capacity_bytes, "{length_bytes} bytes of a buffer of {capacity_bytes}");
                buffer.as_ptr()
            }
        }
    }

    /// The bytes to send.
    ///
    /// # Panics
    /// If they are a foreign buffer's, of which there is no slice.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Part::Bytes(bytes) => bytes,
            Part::Payload { buffer, length_bytes } => &buffer.as_slice()[..*length_bytes],
        }
    }
}

/// Most descriptors that one message brings or takes: as many as the kernel sends at once. With less room the kernel
/// would close the rest on the worker that receives, and such a close may wait (`passed.rs`).
///
/// Source: Linux' SCM_MAX_FD.
pub const DESCRIPTORS_MAX: usize = 253;

/// Descriptors that came with a message (SCM_RIGHTS). Those not taken are closed.
#[derive(Debug, Default)]
pub struct Descriptors(Option<Box<Passed>>);

#[derive(Debug)]
struct Passed {
    descriptors: Vec<OwnedFd>,
    is_cut: bool,
}

impl Descriptors {
    /// No descriptors.
    pub const NONE: Descriptors = Descriptors(None);

    /// Holds `descriptors`, of which the kernel closed some if `is_cut`.
    pub fn new(descriptors: Vec<OwnedFd>, is_cut: bool) -> Descriptors {
        let is_none = descriptors.is_empty() && !is_cut;
        Descriptors((!is_none).then(|| Box::new(Passed { descriptors, is_cut })))
    }

    /// Number of descriptors, at most [`DESCRIPTORS_MAX`].
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |passed| passed.descriptors.len())
    }

    /// True without descriptors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// More came than [`DESCRIPTORS_MAX`], or than this process may have; the rest is closed.
    pub fn is_cut(&self) -> bool {
        self.0.as_ref().is_some_and(|passed| passed.is_cut)
    }

    /// The descriptors, in the order in which they were sent.
    pub fn into_vec(self) -> Vec<OwnedFd> {
        self.0.map_or(Vec::new(), |passed| passed.descriptors)
    }
}

/// Names that a front end gives a client, so that it can be drained without the others: numbers of the front end's
/// choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Label {
    /// This client, or it and its siblings (a guest's queues).
    pub client: Option<u64>,
    /// The export that it uses now.
    pub export: Option<u64>,
}

/// Choice of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientFilter {
    /// All clients with this [`Label::client`].
    Client(u64),
    /// All clients with this [`Label::export`].
    Export(u64),
}

impl ClientFilter {
    /// A client that is called `label` is meant.
    pub fn includes(self, label: Label) -> bool {
        match self {
            ClientFilter::Client(client) => label.client == Some(client),
            ClientFilter::Export(export) => label.export == Some(export),
        }
    }
}

/// State that goes from one process to the one that takes its place: bytes that the giver's code wrote and the taker's
/// code of the same kind reads, and copies of descriptors.
#[derive(Debug, Default)]
pub struct Packed {
    /// In the format that its kind says.
    pub state: Vec<u8>,
    /// In the order that its kind says.
    pub descriptors: Vec<OwnedFd>,
}

/// A client on its way to another process.
#[derive(Debug)]
pub struct PackedClient {
    /// The front end's number of the listener that it is, or that it came by.
    pub listener: u64,
    /// True: the listener itself; false: a connection.
    pub is_listener: bool,
    /// State of the client.
    pub packed: Packed,
}

/// Requests that must be gone before their flow or their bytes get another owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remains {
    /// Requests of a flow.
    Flow(FlowId),
    /// All requests of the device.
    All,
    /// Requests that touch these bytes of the device: the first, and the one after the last.
    Bytes(u64, u64),
}

impl Remains {
    /// True for a request that is one of them. A flush touches the first byte of what it is for.
    pub fn includes(self, submission: &Submission) -> bool {
        let &Submission { flow, offset_bytes, length_bytes, .. } = submission;
        match self {
            Remains::All => true,
            Remains::Flow(one) => flow == one,
            Remains::Bytes(start, end) => offset_bytes < end && offset_bytes + u64::from(length_bytes.max(1)) > start,
        }
    }
}

/// Makes a client on the worker where it will live.
pub type MakeClient = Box<dyn FnOnce() -> Box<dyn Client> + Send>;

/// End of an operation.
#[derive(Debug)]
pub enum Event {
    /// An [`Ask::Accept`] ended.
    Accepted {
        /// As given.
        user: u32,
        /// The connection, or the errno.
        result: Result<OwnedFd, i32>,
    },
    /// An [`Ask::Receive`] ended.
    Received {
        /// As given.
        user: u32,
        /// The buffer given.
        buffer: Buffer,
        /// Bytes received from `start` on (0: the peer closed), or the errno.
        result: Result<usize, i32>,
        /// Descriptors that came with the first of the bytes, if they were asked for.
        descriptors: Descriptors,
    },
    /// An [`Ask::Send`] ended: everything was sent, or the connection is broken.
    Sent {
        /// As given.
        user: u32,
        /// The parts given, for reuse.
        parts: Vec<Part>,
        /// The errno of a broken connection.
        result: Result<(), i32>,
    },
    /// An [`Ask::Send`] was ended by [`Ask::Interrupt`] before all of it had left.
    SentInPart {
        /// As given.
        user: u32,
        /// The parts given.
        parts: Vec<Part>,
        /// Number of their bytes that have left, fewer than there are.
        sent_bytes: usize,
    },
    /// The time of an [`Ask::Timer`] has come: [`Context::now_ns`] is not before it.
    Timer {
        /// As given.
        user: u32,
    },
    /// An [`Ask::Poll`] ended: a read would not wait. (It may find the end, or an error.)
    Ready {
        /// As given.
        user: u32,
        /// The errno; ECANCELED if the grace time of a drain is over.
        result: Result<(), i32>,
    },
    /// An [`Ask::Count`] ended.
    Counted {
        /// As given.
        user: u32,
        /// Value of the eventfd, which is 0 now, or the errno; ECANCELED as above, EINVAL: it is not an eventfd.
        result: Result<u64, i32>,
    },
    /// An [`Ask::Command`] ended.
    Commanded {
        /// As given.
        user: u32,
        /// Result as the driver states it; below 0: an errno.
        result: i32,
    },
    /// An [`Ask::Signal`] ended.
    Signalled {
        /// As given.
        user: u32,
        /// The errno. EAGAIN: the eventfd is full, which its reader notices as well, or it blocks.
        result: Result<(), i32>,
    },
}

/// Reason why a submission came back.
#[derive(Debug)]
pub enum Refused {
    /// The flow has as many requests staged here as it may, or the client waits for a cap ([`Context::cap_by`]). Stop
    /// reading from the client; [`Client::room`] will come.
    TenantFull(Submission),
}

/// Least of [`Context::poll_ns`], ns: what a sleep and a wake-up take with the system calls around them.
pub const POLL_NS_MIN: u64 = 50_000;

/// Requests that a client takes in a turn unless flows compete. So a guest of 32 requests that sleeps is signalled when
/// 16 have ended, and the other 16 are served while it wakes.
pub const TAKEN_MAX: u32 = 16;

/// Services that a worker offers to the client it is calling.
pub trait Context {
    /// Nanoseconds since the engine started, read when a turn of the loop begins, and now and then in it: when a timer
    /// has ended, and for each round of the devices.
    fn now_ns(&self) -> u64;

    /// Number of this turn of the loop: all its calls have the same number, those of the next another. As it stands
    /// here: a context whose time stands still for a turn.
    fn turn(&self) -> u64 {
        self.now_ns()
    }

    /// Longest time that looking for a client's next request pays before a kick is waited for, ns.
    fn poll_ns(&self) -> u64 {
        POLL_NS_MIN
    }

    /// The worker looked for requests of the client for so long, ns, and none came.
    fn looked_in_vain(&mut self, ns: u64) {
        let _ = ns;
    }

    /// Flows compete for a device, or for this worker.
    fn is_contended(&self, device: DeviceIndex) -> bool {
        let _ = device;
        false
    }

    /// A client that has taken so many requests in this turn takes another now, and not in the next turn: up to
    /// [`TAKEN_MAX`], and all while flows compete, because the policy orders only requests that it has.
    fn takes_more(&self, device: DeviceIndex, taken: u32) -> bool {
        taken < TAKEN_MAX || self.is_contended(device)
    }

    /// A device of the engine.
    fn device(&self, device: DeviceIndex) -> DeviceInfo;

    /// Hands a request to the block layer. The caller has validated it: inside the device, aligned, not too long. Its
    /// completion comes by [`Client::completed`], never from inside this call.
    ///
    /// # Errors
    /// [`Refused`], with the submission.
    fn submit(&mut self, device: DeviceIndex, submission: Submission) -> Result<(), Refused>;

    /// Starts an operation. Its event comes by [`Client::event`], never from inside this call. The functions of
    /// `dyn Context` in [`crate::ask`] make the value.
    fn ask(&mut self, ask: Ask);

    /// Takes back every [`Ask::Poll`] and [`Ask::Count`] of this client that was given `user`: no event comes of them,
    /// and their descriptors may be closed. A count may have been read by then, and is lost.
    fn take_back(&mut self, user: u32);

    /// Gives this client's requests up: those that wait for a device end with
    /// [`Status::Recalled`](crate::request::Status::Recalled), uncharged, after this turn. Those on a device go on.
    /// As it stands here: a context whose requests all go on.
    fn withdraw(&mut self) {}

    /// From now on this client's requests pass `caps`, and no others that it named before. A request that must wait is
    /// refused as one of a full tenant is, and [`Client::room`] comes. As it stands here: a context without caps.
    fn cap_by(&mut self, caps: &Arc<Caps>) {
        let _ = caps;
    }
}

/// One connection or queue, living on one worker.
pub trait Client {
    /// First call, on the worker's thread: start receiving.
    fn start(&mut self, context: &mut dyn Context);

    /// An operation ended.
    fn event(&mut self, context: &mut dyn Context, event: Event);

    /// A request completed.
    fn completed(&mut self, context: &mut dyn Context, completion: Completion);

    /// End of a turn of the loop in which this client was called: send or post all that has gathered, in one batch.
    fn turn_end(&mut self, context: &mut dyn Context);

    /// The flow whose submission was refused has room again.
    fn room(&mut self, context: &mut dyn Context);

    /// The engine shuts down, or this client alone shall go: read no more requests, answer those admitted, then be
    /// done. May come more than once.
    fn drain(&mut self, context: &mut dyn Context);

    /// The time to drain is over: end without the requests that are still under way. The host has shut down the sockets
    /// of operations in flight; a client that has none in flight hears of the end by this call alone.
    fn abort(&mut self, _context: &mut dyn Context) {}

    /// Nothing is left to do. The worker drops the client once this is true, its requests have completed, and no
    /// operation that keeps it is under way ([`crate::ask::CountedAs`]).
    fn is_done(&self) -> bool;

    /// Another process is to take this one's place (`engine/pause.rs`): ask for nothing more but
    /// [`Ask::Interrupt`], and let what is under way end. Then comes [`Client::pack`], or [`Client::resume`], or
    /// both in this order. As it stands here: a client that cannot travel, and drains.
    fn pause(&mut self, context: &mut dyn Context) {
        self.drain(context);
    }

    /// While it is paused its requests may end with [`Status::Recalled`](crate::request::Status::Recalled): it keeps
    /// them, hands them over again when it is resumed, and they travel with it. Asked just before it is paused.
    fn takes_back(&self) -> bool {
        false
    }

    /// It was paused, and asks for nothing until it is resumed; or it is done.
    fn is_paused(&self) -> bool {
        self.is_done()
    }

    /// State that another process needs to go on with this client, while it is paused; it keeps its own. `None`:
    /// nothing of it travels. `version`: of the state ([`crate::state`]).
    ///
    /// # Errors
    /// No descriptor is left for a copy of one.
    fn pack(&self, version: u16) -> io::Result<Option<PackedClient>> {
        let _ = version;
        Ok(None)
    }

    /// Goes on as if it had not been paused: no other process takes its place.
    fn resume(&mut self, context: &mut dyn Context) {
        let _ = context;
    }

    /// Its label now. Asked for when some clients are to drain.
    fn label(&self) -> Label {
        Label::default()
    }
}
