//! A connection's two kernel buffers, and the thread at its other end: where requests wait before a worker has read
//! them.
//!
//! ```text
//!   thread of the tenant                network             kernel of the worker            the worker
//!   source ── ask ── its computing ──▶ so long ──▶ receive buffer (bytes) ──▶ a receive ──▶ connection.rs
//!   source ◀─ read ◀────────────────── so long ◀── send buffer (bytes) ◀───── a send   ◀──
//! ```
//! What is asked and what is answered are lengths: no bytes move. A read is [`REQUEST_BYTES`] long on the way in, a
//! write as much and its payload; replies are [`REPLY_BYTES`] and the payload of a read, as in NBD.
//!
//! The tenant's thread runs on a core of its own and only its requests wait for it. It takes in a reply when it
//! does not compute; until then the reply fills the send buffer. It asks as long as its source says so and nothing
//! refuses: what does not fit the receive buffer waits at its end, and follows once there is room.
//!
//! # Invariants
//! * The thread's time never goes back, and is at most the time of its worker: what it does later is not known, because
//!   a reply may come before it.
//! * A receive brings what had come when the ring was entered. None that is in flight ends without bytes.

use crate::client::{Identity, Recorder};
use crate::workload::{Ask, Source, Step};
use mqfq_blk_watched::request::{Op, Status};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Length of a request's header, bytes. Source: NBD protocol, "Request message".
pub const REQUEST_BYTES: u64 = 28;

/// Length of a reply's header, bytes. Source: NBD protocol, "Simple reply message".
pub const REPLY_BYTES: u64 = 16;

/// Bytes of a request on its way in.
fn request_bytes(ask: &Ask) -> u64 {
    REQUEST_BYTES + if ask.op == Op::Write { u64::from(ask.length_bytes) } else { 0 }
}

/// Bytes of its reply.
fn reply_bytes(ask: &Ask) -> u64 {
    REPLY_BYTES + if ask.op == Op::Read { u64::from(ask.length_bytes) } else { 0 }
}

/// A request and when it is somewhere, ns.
struct At {
    at_ns: u64,
    ask: Ask,
}

/// A connection as its worker's kernel has it.
pub struct Socket {
    identity: Identity,
    source: Box<dyn Source>,
    recorder: Rc<RefCell<Recorder>>,
    buffer_bytes: u64,
    network_ns: u64,
    /// Requests in the order in which they reach the worker's kernel.
    coming: VecDeque<At>,
    /// Bytes of them that were received, beyond those of requests that were taken.
    received_bytes: u64,
    /// The receive buffer was taken empty, and what waited for room in it comes after this, ns.
    more_at_ns: u64,
    /// Replies that were handed over and not copied.
    unsent: VecDeque<Ask>,
    /// Replies sent, and when each reaches the thread.
    answered: VecDeque<At>,
    /// Bytes that were sent and not read.
    unread_bytes: u64,
    /// The source wants to be asked again, ns.
    wakes_ns: Option<u64>,
    /// Until then the thread computes, ns.
    busy_until_ns: u64,
    is_over: bool,
}

impl Socket {
    /// Before its thread has begun.
    pub fn new(
        identity: Identity,
        source: Box<dyn Source>,
        recorder: Rc<RefCell<Recorder>>,
        buffer_bytes: u64,
        network_ns: u64,
    ) -> Socket {
        Socket {
            wakes_ns: Some(identity.start_ns),
            identity,
            source,
            recorder,
            buffer_bytes,
            network_ns,
            coming: VecDeque::new(),
            received_bytes: 0,
            more_at_ns: 0,
            unsent: VecDeque::new(),
            answered: VecDeque::new(),
            unread_bytes: 0,
            busy_until_ns: 0,
            is_over: false,
        }
    }

    /// Owner of the socket.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The status of a request that ended.
    pub fn count_failure(&self, status: Status) {
        self.recorder.borrow_mut().failed += u64::from(status != Status::Ok);
    }

    /// When the thread does something next, as far as is known, ns.
    fn thread_ns(&self) -> Option<u64> {
        let reads_ns = self.answered.front().map(|reply| reply.at_ns.max(self.busy_until_ns));
        [reads_ns, self.wakes_ns].into_iter().flatten().min()
    }

    /// The thread does what it does up to `now_ns`.
    fn advance(&mut self, now_ns: u64) {
        while let Some(at_ns) = self.thread_ns().filter(|at_ns| *at_ns <= now_ns) {
            if self.wakes_ns.is_some_and(|wakes_ns| wakes_ns <= at_ns) {
                self.wakes_ns = None;
            } else if let Some(At { ask, .. }) = self.answered.pop_front() {
                self.unread_bytes -= reply_bytes(&ask);
                let arrived_ns = self.source.completed(at_ns).then_some(ask.arrived_ns);
                self.recorder.borrow_mut().completed(&self.identity, ask.length_bytes, arrived_ns, at_ns);
            }
            self.ask(at_ns);
        }
    }

    fn ask(&mut self, now_ns: u64) {
        while !self.is_over {
            if now_ns >= self.identity.stop_ns {
                self.is_over = true;
                return;
            }
            match self.source.next(now_ns) {
                Step::Ask(ask) => {
                    self.recorder.borrow_mut().in_flight += 1;
                    self.busy_until_ns = self.busy_until_ns.max(now_ns) + self.identity.cpu_ns;
                    self.coming.push_back(At { at_ns: self.busy_until_ns + self.network_ns, ask });
                }
                Step::WaitUntil(at_ns) => {
                    self.wakes_ns = (at_ns < self.identity.stop_ns).then_some(at_ns.max(now_ns + 1));
                    return;
                }
                Step::WaitForCompletion => return,
                Step::Done => self.is_over = true,
            }
        }
    }

    /// When there will be bytes to receive if nothing more is sent, or the thread must be looked at, ns.
    pub fn readable_ns(&self) -> Option<u64> {
        let mut bytes = 0;
        let first = self.coming.iter().find(|coming| {
            bytes += request_bytes(&coming.ask);
            bytes > self.received_bytes
        });
        let bytes_ns = first.map(|first| first.at_ns.max(self.more_at_ns));
        let asks_ns = self.thread_ns().map(|at_ns| at_ns + self.network_ns);
        [bytes_ns, asks_ns].into_iter().flatten().min()
    }

    /// When a reply is read, so that a send that waits for room may go on, ns.
    pub fn read_ns(&self) -> Option<u64> {
        self.answered.front().map(|reply| reply.at_ns.max(self.busy_until_ns))
    }

    /// Bytes that a receive of `most` at `now_ns` brings; 0: it waits.
    pub fn receive(&mut self, now_ns: u64, most: u64) -> u64 {
        self.advance(now_ns);
        if now_ns < self.more_at_ns {
            return 0;
        }
        let come = self.coming.iter().take_while(|coming| coming.at_ns <= now_ns);
        let come_bytes: u64 = come.map(|coming| request_bytes(&coming.ask)).sum();
        let waiting_bytes = come_bytes - self.received_bytes;
        let bytes = waiting_bytes.min(most).min(self.buffer_bytes);
        if bytes < waiting_bytes && bytes == self.buffer_bytes {
            self.more_at_ns = now_ns + self.network_ns;
        }
        self.received_bytes += bytes;
        bytes
    }

    /// The next request that has been received in full.
    pub fn take(&mut self) -> Option<Ask> {
        let bytes = self.coming.front().map(|coming| request_bytes(&coming.ask))?;
        if bytes > self.received_bytes {
            return None;
        }
        self.received_bytes -= bytes;
        self.coming.pop_front().map(|coming| coming.ask)
    }

    /// A reply is to be sent.
    pub fn reply(&mut self, ask: Ask) {
        self.unsent.push_back(ask);
    }

    /// Copies replies into the send buffer until it is full: a reply is copied whole, as long as there is any room. The
    /// bytes copied, and whether all replies were.
    pub fn send(&mut self, now_ns: u64) -> (u64, bool) {
        self.advance(now_ns);
        let mut copied_bytes = 0;
        while self.unread_bytes < self.buffer_bytes
            && let Some(ask) = self.unsent.pop_front()
        {
            copied_bytes += reply_bytes(&ask);
            self.unread_bytes += reply_bytes(&ask);
            self.answered.push_back(At { at_ns: now_ns + self.network_ns, ask });
        }
        (copied_bytes, self.unsent.is_empty())
    }
}
