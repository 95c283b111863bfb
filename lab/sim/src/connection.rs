//! One connection as a client of the block layer: it takes requests from a [`Socket`], stages them, and sends replies.
//!
//! It behaves as the NBD connection does (front/src/nbd/connection.rs), and uses the same doors of the worker:
//!
//! * a receive is in flight only when every whole request was taken, and brings [`RECEIVE_BYTES`] at most;
//! * it stops while a request is held because the tenant's staging is full, and while [`REQUESTS_MAX`] have no sent
//!   reply;
//! * at the end of a turn it sends the replies that have gathered, as many as one send carries, one send at a time.

use crate::socket::Socket;
use crate::workload::Ask;
use mqfq_blk_watched::buffer::Buffer;
use mqfq_blk_watched::cap::Caps;
use mqfq_blk_watched::client::{Client, Context, DeviceIndex, Event, Refused};
use mqfq_blk_watched::request::{Completion, Op, Submission};
use std::cell::RefCell;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;

/// Receive buffer, bytes. Source: `NbdOptions::receive_buffer_bytes`.
const RECEIVE_BYTES: usize = 128 << 10;

/// Requests without a sent reply. Source: `NbdOptions::requests_in_flight_max`.
const REQUESTS_MAX: usize = 256;

/// Names of socket operations.
const RECEIVE: u32 = 0;
const SEND: u32 = 1;

/// One connection.
pub struct Connection {
    socket: Rc<RefCell<Socket>>,
    /// The place of the socket among those of the host.
    number: RawFd,
    /// By cookie: what was asked.
    under_way: Vec<Option<Ask>>,
    free: Vec<u32>,
    held: Option<Submission>,
    receiving: bool,
    /// Replies that have gathered, and those of the send in flight.
    gathered: Vec<Ask>,
    sending: Option<usize>,
    send_bytes: u32,
    caps: Option<Arc<Caps>>,
}

impl Connection {
    /// On a socket, which its host knows by `number`. One send carries `send_bytes` of payload, or the reply that goes
    /// beyond. It passes `caps`, if there are any.
    pub fn new(socket: Rc<RefCell<Socket>>, number: RawFd, send_bytes: u32, caps: Option<Arc<Caps>>) -> Connection {
        Connection {
            socket,
            number,
            under_way: vec![None; REQUESTS_MAX],
            free: (0..REQUESTS_MAX as u32).rev().collect(),
            held: None,
            receiving: false,
            gathered: Vec::with_capacity(REQUESTS_MAX),
            sending: None,
            send_bytes,
            caps,
        }
    }

    fn pump(&mut self, context: &mut dyn Context) {
        while self.held.is_none() && !self.receiving {
            let unsent = self.gathered.len() + self.sending.unwrap_or(0);
            if self.free.len() <= unsent {
                return;
            }
            let Some(ask) = self.socket.borrow_mut().take() else {
                self.receiving = true;
                // No bytes move: it need not be as long as what is received.
                return context.receive(self.number, Buffer::new(1), 0, RECEIVE_BYTES, RECEIVE);
            };
            let place = self.free.pop().expect("there are more than replies that were not sent");
            self.under_way[place as usize] = Some(ask);
            let submission = Submission {
                flow: self.socket.borrow().identity().flow,
                op: ask.op,
                offset_bytes: ask.offset_bytes,
                length_bytes: ask.length_bytes,
                fua: false,
                buffer: None,
                cookie: place.into(),
            };
            self.hand_over(context, submission);
        }
    }

    fn hand_over(&mut self, context: &mut dyn Context, submission: Submission) {
        if let Err(Refused::TenantFull(submission)) = context.submit(DeviceIndex(0), submission) {
            self.held = Some(submission);
        }
    }
}

impl Client for Connection {
    fn start(&mut self, context: &mut dyn Context) {
        self.caps.iter().for_each(|caps| context.cap_by(caps));
        self.pump(context);
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        match event {
            Event::Received { .. } => self.receiving = false,
            Event::Sent { .. } => self.sending = None,
            other => unreachable!("it asked for nothing that ends like this: {other:?}"),
        }
        self.pump(context);
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        let place = completion.cookie as u32;
        let ask = self.under_way[place as usize].take().expect("it was asked");
        self.free.push(place);
        self.socket.borrow().count_failure(completion.status);
        self.gathered.push(ask);
        self.pump(context);
    }

    fn turn_end(&mut self, context: &mut dyn Context) {
        if self.sending.is_some() || self.gathered.is_empty() {
            return;
        }
        let (mut bytes, send_bytes) = (0, self.send_bytes);
        let fits = |ask: &&Ask| {
            let before = bytes;
            bytes += if ask.op == Op::Read { ask.length_bytes } else { 0 };
            before < send_bytes
        };
        let count = self.gathered.iter().take_while(fits).count();
        let mut socket = self.socket.borrow_mut();
        self.gathered.drain(..count).for_each(|ask| socket.reply(ask));
        self.sending = Some(count);
        // As above: the host looks at the socket.
        context.send(self.number, Vec::new(), SEND);
    }

    fn room(&mut self, context: &mut dyn Context) {
        if let Some(submission) = self.held.take() {
            self.hand_over(context, submission);
        }
        self.pump(context);
    }

    fn drain(&mut self, _: &mut dyn Context) {}

    fn is_done(&self) -> bool {
        false
    }
}
