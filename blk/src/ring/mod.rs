//! The worker's io_uring: sockets, the bell and real devices in one loop.
//!
//! Each operation in flight owns its memory: the ring keeps the buffers, message headers, vectors and times of a
//! client's operation in [`Operation`] until the kernel's completion, and a device queue keeps those of its own (see
//! [`DeviceRing::push`]). So nothing that the kernel may still touch is ever freed, however a client ends.
//!
//! # user_data
//! ```text
//!   63      56 55        48 47          32 31                 0
//!   │  kind   │ device use │ device index │ operation or user  │
//! ```

mod command;
mod door;
mod interrupt;
mod message;
mod restrict;

use crate::ask::Ask;
use crate::buffer::Buffer;
use crate::client::{Descriptors, Event, Part};
use crate::edge::ask::{Ended, HostEvent};
use command::InFlight;
pub use door::{DeviceRing, Pending, device_and_user};
use door::{Files, KIND_DEVICE, Pushed};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use message::{Control, ReceiveMessage};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Submission entries: more than a turn of the loop usually makes; a longer turn submits in between.
const SUBMISSION_ENTRIES: u32 = 512;

/// Completion entries: most that one look brings. The kernel keeps the rest (IORING_FEAT_NODROP), so this is not a
/// bound on clients.
pub(crate) const COMPLETION_ENTRIES: u32 = 4096;

/// Parts of one sendmsg: Linux' UIO_MAXIOV.
const SEND_PARTS_MAX: usize = 1024;

const KIND_CLIENT: u64 = 1;
const KIND_BELL: u64 = 3;
/// A wait was taken off the kernel, or had ended already.
const KIND_REMOVAL: u64 = 4;

/// Amount that a signal adds to an eventfd.
static ONE: u64 = 1;

/// Length of a read from an eventfd and of a write to it, bytes.
const COUNT_BYTES: u32 = 8;

/// A client's operation in flight, with all memory that the kernel may touch.
enum Operation {
    Receive { client: u32, user: u32, socket: RawFd, buffer: Buffer },
    Send(Box<Send>),
    ReceiveMessage(Box<ReceiveMessage>),
    Accept { client: u32, user: u32, socket: RawFd },
    Signal { client: u32, user: u32 },
    Wait(Wait),
    Command(InFlight),
}

/// A timer, poll or count.
struct Wait {
    client: u32,
    user: u32,
    /// Its end is not reported.
    is_cancelled: bool,
    what: WaitFor,
}

enum WaitFor {
    /// For the next turn: the kernel knows nothing of it.
    Turn,
    Time {
        #[expect(dead_code, reason = "the kernel reads it, when the entry is submitted")]
        wait: Box<types::Timespec>,
    },
    Ready,
    Count {
        /// The kernel writes it.
        value: Box<u64>,
        event: RawFd,
        /// A poll before the read is under way, not the read itself.
        is_polling: bool,
    },
}

impl WaitFor {
    /// For a time, which no descriptor brings.
    fn is_time(&self) -> bool {
        matches!(self, WaitFor::Turn | WaitFor::Time { .. })
    }
}

struct Send {
    client: u32,
    user: u32,
    socket: RawFd,
    parts: Vec<Part>,
    /// Bytes left to send; points into `parts`.
    vectors: Vec<libc::iovec>,
    /// First of `vectors` with bytes left.
    first: usize,
    header: libc::msghdr,
    /// Until the first byte has left.
    descriptors: Vec<OwnedFd>,
    /// Made for the first send with descriptors.
    control: Option<Box<Control>>,
    /// It is not to go on: see `interrupt.rs`.
    is_cut: bool,
}

/// Reason why there is no ring, and what hinders it.
pub(crate) fn cannot_set_up(error: &io::Error) -> String {
    const FILTER: &str = "a seccomp filter, such as a container's";
    let why = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            format!("it is forbidden here, by the sysctl kernel.io_uring_disabled or by {FILTER}")
        }
        Some(libc::ENOSYS) => format!("the kernel has none, or {FILTER}, hides it"),
        Some(libc::ENOMEM) => format!("{error}; before Linux 5.12 its memory counts against RLIMIT_MEMLOCK"),
        _ => error.to_string(),
    };
    format!("cannot set up io_uring: {why}")
}

pub(crate) struct Ring {
    uring: IoUring,
    operations: Vec<Option<Operation>>,
    free: Vec<u32>,
    /// Send states for reuse: their vectors keep their memory.
    #[expect(
        clippy::vec_box,
        reason = "the kernel holds a pointer to the header of a send in flight: it may not move"
    )]
    spare_sends: Vec<Box<Send>>,
    #[expect(clippy::vec_box, reason = "as above")]
    spare_messages: Vec<Box<ReceiveMessage>>,
    /// Memory where the kernel writes counts.
    #[expect(clippy::vec_box, reason = "as above")]
    spare_counts: Vec<Box<u64>>,
    /// Timers that are due at once: their ends are found by the next `collect`.
    due: Vec<Ended>,
    pending: Pending,
    /// The kernel's own most threads, and how many it was told to make besides ([`Pushed::threads`]).
    threads: (u32, u32),
    /// By device index: how many had it before, below 256. What the device of an earlier use has asked for is no event.
    uses: Vec<u8>,
    bell: RawFd,
    bell_bytes: Box<[u8; 8]>,
}

impl Ring {
    /// A ring that listens to the bell.
    ///
    /// # Errors
    /// The kernel's, most often ENOSYS or EPERM where io_uring is missing or forbidden.
    pub(crate) fn new(bell: RawFd) -> io::Result<Ring> {
        // One thread submits and reaps, and completions are processed when that thread asks (DEFER_TASKRUN): no
        // interrupts of the scheduling code, and batches by themselves. Older kernels get the plain ring.
        let modern = IoUring::builder()
            .setup_cqsize(COMPLETION_ENTRIES)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_r_disabled()
            .build(SUBMISSION_ENTRIES)
            .and_then(|uring| {
                // Empty, and filled by drivers alone: before the list of what may be registered is closed.
                if uring.submitter().register_buffers_sparse(crate::pages::PLACES.into()).is_err() {
                    crate::pages::note_missing();
                }
                restrict::restricted(uring)
            });
        let uring = match modern {
            Ok(uring) => uring,
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                crate::pages::note_missing();
                IoUring::builder().setup_cqsize(COMPLETION_ENTRIES).build(SUBMISSION_ENTRIES)?
            }
            Err(error) => return Err(error),
        };
        let mut ring = Ring {
            uring,
            operations: Vec::new(),
            free: Vec::new(),
            spare_sends: Vec::new(),
            spare_messages: Vec::new(),
            spare_counts: Vec::new(),
            due: Vec::new(),
            pending: Pending::default(),
            threads: (0, 0),
            uses: Vec::new(),
            bell,
            bell_bytes: Box::new([0; 8]),
        };
        ring.pending.0.borrow_mut().files = Some(Files::new(ring.uring.as_raw_fd()));
        ring.listen_to_bell();
        Ok(ring)
    }

    /// The door for a device queue of this worker.
    pub(crate) fn device_ring(&self, device: u16) -> DeviceRing {
        let mut door = self.pending.door(device);
        door.earlier = self.uses.get(usize::from(device)).copied().unwrap_or(0);
        door
    }

    /// The device of this index goes: nothing that it has asked for is an event any more.
    pub(crate) fn close_device(&mut self, device: u16) {
        let index = usize::from(device);
        self.uses.resize(self.uses.len().max(index + 1), 0);
        self.uses[index] = self.uses[index].wrapping_add(1);
    }

    fn push(&mut self, entry: squeue::Entry) {
        loop {
            // SAFETY: what the entry points to is owned by `operations`, by `bell_bytes`, or vouched for by the caller
            // of DeviceRing::push, until its completion is taken in `collect`.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
            self.submit_some();
        }
    }

    /// Submits in the middle of a turn, as much as the kernel takes now.
    #[cold]
    fn submit_some(&mut self) {
        if let Err(error) = self.uring.submit() {
            // EBUSY: completions overflow until we collect, which a caller in the middle of a turn cannot do; the
            // kernel takes entries again once it has flushed some, which GETEVENTS (set by submit) asks it to.
            let transient = [libc::EBUSY, libc::EAGAIN, libc::EINTR];
            assert!(transient.contains(&error.raw_os_error().unwrap_or(0)), "io_uring_enter failed: {error}");
        }
    }

    fn listen_to_bell(&mut self) {
        let entry = opcode::Read::new(types::Fd(self.bell), self.bell_bytes.as_mut_ptr(), 8).build();
        self.push(entry.user_data(KIND_BELL << 56));
    }

    fn start(&mut self, operation: Operation) -> u32 {
        if let Some(index) = self.free.pop() {
            self.operations[index as usize] = Some(operation);
            return index;
        }
        self.operations.push(Some(operation));
        (self.operations.len() - 1) as u32
    }

    /// Starts an operation. Inlined: copies of its arguments would cost more than the rest.
    #[inline(always)]
    fn begin(&mut self, operation: Operation, entry: squeue::Entry) {
        let index = self.start(operation);
        self.push(entry.user_data(KIND_CLIENT << 56 | u64::from(index)));
    }

    /// See [`crate::worker::host::Host::ask`].
    ///
    /// # Panics
    /// At operations that are not the ring's.
    pub(crate) fn ask(&mut self, client: u32, ask: Ask) {
        match ask {
            Ask::Receive { socket, mut buffer, start, end, with_descriptors: false, user } => {
                let (memory, length_bytes) = room_in(&mut buffer, start..end);
                let entry = opcode::Recv::new(types::Fd(socket), memory, length_bytes as u32).build();
                self.begin(Operation::Receive { client, user, socket, buffer }, entry);
            }
            Ask::Receive { socket, mut buffer, start, end, with_descriptors: true, user } => {
                let mut message = self.spare_messages.pop().unwrap_or_else(ReceiveMessage::new);
                (message.client, message.user, message.socket) = (client, user, socket);
                let (memory, length_bytes) = room_in(&mut buffer, start..end);
                let header = message.begin(buffer, memory, length_bytes);
                let flags = libc::MSG_CMSG_CLOEXEC as u32;
                let entry = opcode::RecvMsg::new(types::Fd(socket), header).flags(flags).build();
                self.begin(Operation::ReceiveMessage(message), entry);
            }
            Ask::Send { socket, parts, descriptors, user } => self.send(client, socket, parts, descriptors, user),
            Ask::Accept { listener, user } => {
                let entry = opcode::Accept::new(types::Fd(listener), std::ptr::null_mut(), std::ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC)
                    .build();
                self.begin(Operation::Accept { client, user, socket: listener }, entry);
            }
            Ask::Signal { event, user } => {
                // A signal owns nothing. Without this, the compiler calls the drop of all kinds; so for the next two.
                std::mem::forget(ask);
                // Never waits: another process shares the counter, and may keep it full.
                let entry = opcode::Write::new(types::Fd(event), (&raw const ONE).cast(), COUNT_BYTES);
                self.begin(Operation::Signal { client, user }, entry.rw_flags(libc::RWF_NOWAIT).build());
            }
            Ask::Poll { descriptor, user } => {
                std::mem::forget(ask);
                let wait = Wait { client, user, is_cancelled: false, what: WaitFor::Ready };
                self.begin(Operation::Wait(wait), poll_in(descriptor));
            }
            Ask::Count { event, user } => {
                std::mem::forget(ask);
                // A read, which takes the file when it is submitted; see `read_again`.
                let mut value = self.spare_counts.pop().unwrap_or_default();
                *value = 0;
                let entry = opcode::Read::new(types::Fd(event), (&raw mut *value).cast(), COUNT_BYTES).build();
                let what = WaitFor::Count { value, event, is_polling: false };
                self.begin(Operation::Wait(Wait { client, user, is_cancelled: false, what }), entry);
            }
            Ask::Command { command, user } => {
                let (operation, entry) = command::begun(client, command, user);
                self.begin(operation, entry);
            }
            Ask::Shutdown { socket } => shutdown(socket),
            Ask::Interrupt => self.interrupt(client),
            Ask::Attach { .. } | Ask::Timer { .. } => unreachable!("a ring has no other workers and no clock"),
        }
    }

    /// An [`Ask::Timer`]; `wait` begins when the entry is submitted. None at all costs no operation of the kernel, and
    /// no sleep comes before its end: so a client may look at something again and again.
    pub(crate) fn timer(&mut self, client: u32, wait: Duration, user: u32) {
        if wait.is_zero() {
            let wait = Wait { client, user, is_cancelled: false, what: WaitFor::Turn };
            let index = self.start(Operation::Wait(wait));
            self.due.push((KIND_CLIENT << 56 | u64::from(index), -libc::ETIME));
            return;
        }
        let wait = Box::new(types::Timespec::from(wait));
        let entry = opcode::Timeout::new(&raw const *wait).build();
        let what = WaitFor::Time { wait };
        self.begin(Operation::Wait(Wait { client, user, is_cancelled: false, what }), entry);
    }

    /// A count whose eventfd was 0, on a kernel that lets no read of one that is not blocking wait: a poll, and
    /// the read again once that has ended. True: it goes on, with another operation of the same name. They are not
    /// linked: the kernel would look for the second one's file when the first has ended, and by then its number may be
    /// another client's.
    fn read_again(&mut self, index: u32, result: i32) -> bool {
        let Some(Operation::Wait(Wait { is_cancelled: false, what, .. })) = &mut self.operations[index as usize] else {
            return false;
        };
        let WaitFor::Count { value, event, is_polling } = what else { return false };
        let entry = match (*is_polling, result) {
            (false, result) if result == -libc::EAGAIN => poll_in(*event),
            (true, 0..) => opcode::Read::new(types::Fd(*event), (&raw mut **value).cast(), COUNT_BYTES).build(),
            _ => return false,
        };
        *is_polling = !*is_polling;
        self.push(entry.user_data(KIND_CLIENT << 56 | u64::from(index)));
        true
    }

    /// See [`crate::worker::host::Host::cancel_waits`]. The kernel reports the end of each soon, which is then nothing.
    pub(crate) fn cancel_waits(&mut self, client: u32) {
        self.forget_commands(client);
        self.cancel(|wait| wait.client == client);
    }

    /// See [`crate::client::Context::take_back`].
    pub(crate) fn take_back(&mut self, client: u32, user: u32) -> u32 {
        self.cancel(|wait| wait.client == client && wait.user == user && !wait.what.is_time())
    }

    /// Cancels waits, whose ends are not reported then; returns how many there were.
    fn cancel(&mut self, is_meant: impl Fn(&Wait) -> bool) -> u32 {
        let mut count = 0;
        let mut has_descriptor = false;
        for index in 0..self.operations.len() {
            if let Some(Operation::Wait(wait)) = &mut self.operations[index]
                && is_meant(wait)
                && !std::mem::replace(&mut wait.is_cancelled, true)
            {
                count += 1;
                has_descriptor |= !wait.what.is_time();
                self.end_wait(index as u32);
            }
        }
        if has_descriptor {
            // The kernel has seen the waits now. Otherwise one could come to wait on another file, to which the
            // descriptor's number was given meanwhile.
            while !self.uring.submission().is_empty() {
                self.submit_some();
            }
        }
        count
    }

    fn end_wait(&mut self, index: u32) {
        let Some(Operation::Wait(wait)) = &self.operations[index as usize] else { return };
        let user_data = KIND_CLIENT << 56 | u64::from(index);
        let entry = match wait.what {
            WaitFor::Turn => return,
            WaitFor::Time { .. } => opcode::TimeoutRemove::new(user_data).build(),
            WaitFor::Ready | WaitFor::Count { .. } => opcode::AsyncCancel::new(user_data).build(),
        };
        self.push(entry.user_data(KIND_REMOVAL << 56));
    }

    fn send(&mut self, client: u32, socket: RawFd, parts: Vec<Part>, descriptors: Vec<OwnedFd>, user: u32) {
        let mut send = self.spare_sends.pop().unwrap_or_else(|| {
            // SAFETY: msghdr is a C struct of integers and pointers, for which all-zero is a valid "nothing".
            let header = unsafe { std::mem::zeroed() };
            let (parts, vectors, descriptors) = (Vec::new(), Vec::new(), Vec::new());
            let (first, control, is_cut) = (0, None, false);
            Box::new(Send { client, user, socket, parts, vectors, first, header, descriptors, control, is_cut })
        });
        (send.client, send.user, send.socket, send.parts, send.first) = (client, user, socket, parts, 0);
        (send.descriptors, send.is_cut) = (descriptors, false);
        send.vectors.clear();
        let Send { vectors, parts, .. } = &mut *send;
        vectors.extend(
            parts
                .iter()
                .filter(|part| part.length_bytes() > 0)
                .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.length_bytes() }),
        );
        let index = self.start(Operation::Send(send));
        self.continue_send(index);
    }

    fn continue_send(&mut self, index: u32) {
        let Some(Operation::Send(send)) = &mut self.operations[index as usize] else {
            unreachable!("operation {index} is a send");
        };
        let has_descriptors = !send.descriptors.is_empty();
        let Send { socket, vectors, first, header, descriptors, control, .. } = &mut **send;
        let left = &mut vectors[*first..];
        // Without WAITALL where there are descriptors: the kernel would send them again with the rest of the bytes.
        let flags = libc::MSG_NOSIGNAL | if has_descriptors { 0 } else { libc::MSG_WAITALL };
        let entry = if let ([only], false) = (&mut *left, has_descriptors) {
            opcode::Send::new(types::Fd(*socket), only.iov_base.cast(), only.iov_len as u32).flags(flags).build()
        } else {
            header.msg_iov = left.as_mut_ptr();
            header.msg_iovlen = left.len().min(SEND_PARTS_MAX);
            if has_descriptors {
                control.get_or_insert_with(|| Box::new(Control::new())).send_by(header, descriptors);
            } else {
                (header.msg_control, header.msg_controllen) = (std::ptr::null_mut(), 0);
            }
            opcode::SendMsg::new(types::Fd(*socket), &raw const *header).flags(flags as u32).build()
        };
        self.push(entry.user_data(KIND_CLIENT << 56 | u64::from(index)));
    }

    /// Puts the operations of device queues on the ring. Call before entering the kernel.
    pub(crate) fn push_pending(&mut self) {
        let pending = self.pending.clone();
        let Pushed { entries, threads, .. } = &mut *pending.0.borrow_mut();
        if entries.is_empty() {
            return;
        }
        if *threads != self.threads.1 {
            self.allow_threads(*threads);
        }
        // SAFETY: the caller of DeviceRing::push vouches for the memory of the entries until their ends are reported.
        if unsafe { self.uring.submission().push_multiple(entries) }.is_err() {
            // Not all of them fit, and none was taken: one by one, submitting in between.
            entries.iter().for_each(|entry| self.push(entry.clone()));
        }
        entries.clear();
    }

    /// The kernel may make `more` threads besides those that it would make by itself. One that is too old to be asked
    /// (before Linux 5.15) makes its own.
    #[cold]
    fn allow_threads(&mut self, more: u32) {
        let (mut own, _) = self.threads;
        let submitter = self.uring.submitter();
        if own == 0 {
            // A zero changes nothing and asks.
            let mut limits = [0, 0];
            own = submitter.register_iowq_max_workers(&mut limits).map_or(0, |()| limits[0]);
        }
        if own > 0 {
            let _ = submitter.register_iowq_max_workers(&mut [own.saturating_add(more), 0]);
        }
        self.threads = (own, more);
    }

    /// Submits, and collects ended operations without waiting.
    pub(crate) fn enter(&mut self) -> io::Result<()> {
        self.push_pending();
        let mut submission = self.uring.submission();
        submission.sync();
        if submission.is_empty() && !submission.taskrun() && !submission.cq_overflow() {
            return Ok(());
        }
        drop(submission);
        match self.uring.submit() {
            Err(error) if !is_transient(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Submits, and sleeps until something ended or `wait_ns` passed.
    pub(crate) fn enter_and_wait(&mut self, wait_ns: Option<u64>) -> io::Result<()> {
        if !self.due.is_empty() {
            return self.enter();
        }
        self.push_pending();
        let result = match wait_ns {
            None => self.uring.submit_and_wait(1),
            Some(wait_ns) => {
                let time = types::Timespec::new().sec(wait_ns / 1_000_000_000).nsec((wait_ns % 1_000_000_000) as u32);
                self.uring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&time))
            }
        };
        match result {
            Err(error) if !is_transient(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// True if something has ended that `collect` would find, perhaps after an `enter`.
    pub(crate) fn has_ended(&mut self) -> bool {
        !self.due.is_empty() || !self.uring.completion().is_empty() || self.uring.submission().taskrun()
    }

    /// Moves ended operations into `out`.
    pub(crate) fn collect(&mut self, out: &mut Vec<Ended>) {
        out.extend(self.uring.completion().map(|entry: cqueue::Entry| (entry.user_data(), entry.result())));
        out.append(&mut self.due);
    }

    /// Meaning of an ended operation. `None`: a client's operation goes on.
    #[inline]
    pub(crate) fn resolve(&mut self, (user_data, result): Ended) -> Option<HostEvent> {
        match user_data >> 56 {
            KIND_DEVICE => {
                let (device, user) = device_and_user(user_data);
                let now = self.uses.get(usize::from(device)).copied().unwrap_or(0);
                ((user_data >> 48) as u8 == now).then_some(HostEvent::Device { device, user, result })
            }
            KIND_CLIENT => self.client_ended(user_data as u32, result),
            KIND_REMOVAL => None,
            _ => {
                self.listen_to_bell();
                Some(HostEvent::Bell)
            }
        }
    }

    fn client_ended(&mut self, index: u32, result: i32) -> Option<HostEvent> {
        if let Some(Operation::Send(send)) = &mut self.operations[index as usize]
            && send.is_unfinished(result)
            && !send.is_cut
        {
            self.continue_send(index);
            return None;
        }
        if self.read_again(index, result) {
            return None;
        }
        let operation = self.operations[index as usize].take().expect("the kernel completes an operation once");
        self.free.push(index);
        let length = || if result < 0 { Err(-result) } else { Ok(result as usize) };
        let (client, event) = match operation {
            Operation::Receive { client, user, buffer, .. } => {
                (client, Event::Received { user, buffer, result: length(), descriptors: Descriptors::NONE })
            }
            Operation::ReceiveMessage(mut message) => {
                let descriptors = if result < 0 { Descriptors::NONE } else { message.take_descriptors() };
                let buffer = message.buffer.take().expect("begin has put it there");
                let (client, user) = (message.client, message.user);
                self.spare_messages.push(message);
                (client, Event::Received { user, buffer, result: length(), descriptors })
            }
            Operation::Accept { client, user, .. } => {
                // SAFETY: a non-negative result of accept is a descriptor with no other owner.
                let result = length().map(|socket| unsafe { OwnedFd::from_raw_fd(socket as RawFd) });
                (client, Event::Accepted { user, result })
            }
            Operation::Command(InFlight { client: None, .. }) => return None,
            Operation::Command(InFlight { client: Some(client), user, .. }) => {
                (client, Event::Commanded { user, result })
            }
            Operation::Signal { client, user } => (client, Event::Signalled { user, result: length().map(|_| ()) }),
            Operation::Wait(Wait { client, user, is_cancelled, what }) => {
                let event = match what {
                    WaitFor::Turn | WaitFor::Time { .. } => Event::Timer { user },
                    WaitFor::Ready => Event::Ready { user, result: length().map(|_| ()) },
                    WaitFor::Count { value, .. } => {
                        let count = *value;
                        self.spare_counts.push(value);
                        // An eventfd gives its 8 bytes; whatever gives less is none.
                        let whole = |bytes| if bytes == COUNT_BYTES as usize { Ok(count) } else { Err(libc::EINVAL) };
                        Event::Counted { user, result: length().and_then(whole) }
                    }
                };
                if is_cancelled {
                    return None;
                }
                (client, event)
            }
            Operation::Send(mut send) => {
                let cut = send.cut_at_bytes(result);
                let parts = std::mem::take(&mut send.parts);
                send.descriptors = Vec::new();
                let (client, user) = (send.client, send.user);
                self.spare_sends.push(send);
                let event = match cut {
                    Some(sent_bytes) => Event::SentInPart { user, parts, sent_bytes },
                    None => Event::Sent { user, parts, result: length().map(|_| ()) },
                };
                (client, event)
            }
        };
        Some(HostEvent::Client { client, event })
    }

    /// See [`crate::worker::host::Host::abort`].
    pub(crate) fn abort(&mut self, client: Option<u32>) {
        for index in 0..self.operations.len() {
            let Some(operation) = &self.operations[index] else { continue };
            let (whose, socket) = match operation {
                Operation::Receive { client, socket, .. } | Operation::Accept { client, socket, .. } => {
                    (*client, Some(*socket))
                }
                Operation::ReceiveMessage(message) => (message.client, Some(message.socket)),
                Operation::Send(send) => (send.client, Some(send.socket)),
                Operation::Wait(wait) if !wait.what.is_time() => (wait.client, None),
                Operation::Wait(_) | Operation::Signal { .. } | Operation::Command(_) => continue,
            };
            if client.is_some_and(|client| client != whose) {
                continue;
            }
            match socket {
                Some(socket) => shutdown(socket),
                None => self.end_wait(index as u32),
            }
        }
    }
}

/// Where `range` of a buffer lies, and how long it is.
///
/// # Panics
/// If it does not lie inside.
fn room_in(buffer: &mut Buffer, range: Range<usize>) -> (*mut u8, usize) {
    let mut room = buffer.room(range.end);
    room.take_front(range.start);
    (room.as_mut_ptr(), room.len())
}

fn poll_in(descriptor: RawFd) -> squeue::Entry {
    opcode::PollAdd::new(types::Fd(descriptor), libc::POLLIN as u32).build()
}

/// Shuts a socket down in both directions, which ends the operations on it. On an unconnected or dead one: nothing.
fn shutdown(socket: RawFd) {
    // SAFETY: no memory is involved; a descriptor that is no socket gives an error, which means there is nothing to
    // end.
    unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
}

fn is_transient(error: &io::Error) -> bool {
    [libc::ETIME, libc::EINTR, libc::EAGAIN, libc::EBUSY].contains(&error.raw_os_error().unwrap_or(0))
}

impl Send {
    /// Takes note of `result` bytes sent. True: bytes are left and the socket took some.
    fn is_unfinished(&mut self, result: i32) -> bool {
        if result == -libc::EINTR || result == -libc::EAGAIN {
            return true;
        }
        let Ok(mut sent) = usize::try_from(result) else { return false };
        // They went with the first byte.
        self.descriptors.clear();
        while let Some(vector) = self.vectors.get_mut(self.first) {
            if sent < vector.iov_len {
                // SAFETY: sent is inside the part that this vector points into.
                vector.iov_base = unsafe { vector.iov_base.add(sent) };
                vector.iov_len -= sent;
                return true;
            }
            sent -= vector.iov_len;
            self.first += 1;
        }
        false
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel takes a closed ring apart some tens of milliseconds later, on a thread of its own, and whatever is
        // registered with the ring stays open until then: the file system below could not be unmounted when the process
        // has long ended. An error means that nothing is registered. While the worker panics, operations may still be
        // under way, for which older kernels would wait here.
        let files = self.pending.0.borrow_mut().files.take();
        if files.is_some_and(|files| files.is_there()) && !std::thread::panicking() {
            drop(self.uring.submitter().unregister_files());
        }
        // The worker drops its ring only when no client operation is in flight, or while it panics. In the second case
        // the kernel may still write to these buffers, so they must outlive the ring: leak them.
        for operation in self.operations.drain(..).flatten() {
            std::mem::forget(operation);
        }
        std::mem::forget(std::mem::take(&mut self.bell_bytes));
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests;
