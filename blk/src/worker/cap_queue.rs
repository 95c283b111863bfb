//! Which clients of this worker wait for a cap, and whose turn is it when there is room?
//!
//! Clients with the same caps (`cap.rs`) pass one cap queue of their worker. Only its first request waits: it has a
//! *reservation*, its place in the cap's time, which no other worker can take. The clients behind it have none. They
//! read no more from their sockets, and are told one after another when the reservation is due, as clients are that met
//! a full stage.
//!
//! ```text
//!   submit ─▶ reservation at the export's cap ─▶ due ─▶ reservation at the tenant's cap ─▶ due ─▶ staged
//!             └────────── refused: the client keeps its request and waits ──────────┘
//! ```
//! * A worker never waits: the earliest reservation is a time at which it must look again.
//! * One reservation per cap queue, and reservations of a cap have their turns in the order in which they were made: at
//!   one request per second each worker with clients gets its turn.
//! * A reservation is for the request that made it. If another client comes in its place, the difference is settled
//!   with the cap. If none comes, it is given back.
//!
//! Cost: nothing to a client without caps but a comparison. With caps two read-modify-writes for each limit, of a word
//! that the workers share. Memory is taken when a client learns of its caps.

use crate::cap::{Capped, Caps, Due};
use crate::request::{Op, Submission};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

/// CapQueue of a client that has no caps, or none with a limit.
pub(super) const NO_CAP_QUEUE: u32 = u32::MAX;

/// The place of one request in the time of a cap.
#[derive(Clone, Copy, Debug)]
struct Reservation {
    /// Index in [`Caps::in_order`].
    stage: usize,
    due: Due,
    bytes: u32,
    /// Time since which it waits for `stage`, and for which limit at first; `None`: it need not, or no more.
    since: Option<(u64, Capped)>,
}

struct CapQueue {
    caps: Arc<Caps>,
    /// Clients that pass here.
    clients: u32,
    reservation: Option<Reservation>,
    /// Clients that were refused, in the order of their turns.
    waiting: VecDeque<u32>,
    /// It is in the list of cap queues that are due some time.
    is_listed: bool,
}

impl CapQueue {
    /// The reservation, if it is not due yet at any of its caps. `None`: the client may pass.
    fn hold_up(&mut self, bytes: u32, now_ns: u64) -> Option<Reservation> {
        let caps = self.caps.in_order();
        let reservation_at = |stage: usize, bytes: u32| {
            let due = caps[stage].take(bytes, now_ns);
            let since = Some((now_ns, due.why)).filter(|_| due.at_ns > now_ns);
            since.iter().for_each(|(_, why)| caps[stage].hold(*why, true, now_ns));
            Reservation { stage, due, bytes, since }
        };
        let mut reservation = self.reservation.take().unwrap_or_else(|| reservation_at(0, bytes));
        while reservation.due.at_ns <= now_ns {
            if let Some((since_ns, why)) = reservation.since.take() {
                caps[reservation.stage].waited(reservation.due.why, now_ns.saturating_sub(since_ns));
                caps[reservation.stage].hold(why, false, now_ns);
            }
            if reservation.stage + 1 == caps.len() {
                self.reservation = Some(reservation);
                return None;
            }
            reservation = reservation_at(reservation.stage + 1, reservation.bytes);
        }
        self.reservation = Some(reservation);
        self.reservation
    }

    fn give_back(&mut self, now_ns: u64) {
        if let Some(reservation) = self.take_reservation(now_ns) {
            let Reservation { stage, bytes, .. } = reservation;
            self.caps.in_order()[..=stage].iter().for_each(|cap| cap.give_back(bytes));
        }
    }

    /// Takes the reservation and ends its wait.
    fn take_reservation(&mut self, now_ns: u64) -> Option<Reservation> {
        let reservation = self.reservation.take()?;
        if let Some((_, why)) = reservation.since {
            self.caps.in_order()[reservation.stage].hold(why, false, now_ns);
        }
        Some(reservation)
    }
}

/// The cap queues of one worker.
#[derive(Default)]
pub(super) struct CapQueues {
    all: Vec<CapQueue>,
    free: Vec<u32>,
    /// Times to look at cap queues. A time may be that of an earlier reservation.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    /// The client that is told of room, and need not wait behind others.
    told: Option<u32>,
    /// All clients pass: the worker drains, or pauses.
    is_open: bool,
}

impl CapQueues {
    /// Adds a client to the cap queue of these caps; returns its number.
    pub(super) fn enter(&mut self, caps: &Arc<Caps>) -> u32 {
        if let Some(known) = self.all.iter().position(|of| of.clients > 0 && Arc::ptr_eq(&of.caps, caps)) {
            let of = &mut self.all[known];
            of.clients += 1;
            of.waiting.reserve(of.clients as usize - of.waiting.len());
            return known as u32;
        }
        let waiting = VecDeque::with_capacity(1);
        let new = CapQueue { caps: caps.clone(), clients: 1, reservation: None, waiting, is_listed: false };
        let place = match self.free.pop() {
            Some(place) => {
                self.all[place as usize] = new;
                place
            }
            None => {
                self.all.push(new);
                self.all.len() as u32 - 1
            }
        };
        self.due.reserve(self.all.len() - self.due.len());
        place
    }

    /// The client passes no more. True: it was waiting.
    pub(super) fn leave(&mut self, cap_queue: u32, client: u32, now_ns: u64) -> bool {
        let of = &mut self.all[cap_queue as usize];
        let waited = of.waiting.len();
        of.waiting.retain(|waiting| *waiting != client);
        let was_waiting = of.waiting.len() < waited;
        of.clients -= 1;
        if of.waiting.is_empty() {
            of.give_back(now_ns);
            // The time at which to look was that claim's: the next claim here, of other caps perhaps, is due earlier.
            if std::mem::take(&mut of.is_listed) {
                self.due.retain(|Reverse((_, listed))| *listed != cap_queue);
            }
        }
        if of.clients == 0 {
            self.free.push(cap_queue);
        }
        was_waiting
    }

    /// True if a request may be staged now; if not, its client waits, and is told. `is_told`: its client has waited for
    /// room in the stage, and is not behind the clients that wait here.
    pub(super) fn pass(&mut self, cap_queue: u32, client: u32, is_told: bool, bytes: u32, now_ns: u64) -> bool {
        if self.is_open {
            return true;
        }
        let of = &mut self.all[cap_queue as usize];
        let is_behind = !is_told && self.told != Some(client) && !of.waiting.is_empty();
        if is_behind || of.hold_up(bytes, now_ns).is_some() {
            if !of.waiting.contains(&client) {
                of.waiting.push_back(client);
            }
            self.list(cap_queue);
            return false;
        }
        true
    }

    /// The request that passed has been staged: the reservation is used. Without this call it stays, for the request
    /// that did not fit the stage.
    pub(super) fn passed(&mut self, cap_queue: u32, bytes: u32, now_ns: u64) {
        let of = &mut self.all[cap_queue as usize];
        if let Some(reservation) = of.take_reservation(now_ns) {
            of.caps.in_order().iter().for_each(|cap| cap.settle(reservation.bytes, bytes, now_ns));
        }
    }

    /// Puts it into the list, once, by the time of its reservation.
    fn list(&mut self, cap_queue: u32) {
        let of = &mut self.all[cap_queue as usize];
        if !std::mem::replace(&mut of.is_listed, true) {
            let at_ns = of.reservation.map_or(0, |reservation| reservation.due.at_ns);
            self.due.push(Reverse((at_ns, cap_queue)));
        }
    }

    /// Time of the next look. `None`: no client waits.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// A cap queue at which to look now, and how many wait there. Each is answered once.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<(u32, usize)> {
        let &Reverse((at_ns, cap_queue)) = self.due.peek()?;
        if at_ns > now_ns && !self.is_open {
            return None;
        }
        self.due.pop();
        let of = &mut self.all[cap_queue as usize];
        of.is_listed = false;
        Some((cap_queue, of.waiting.len()))
    }

    /// The next client whose turn it is, to be told. `None`: none waits, or its time has not come.
    pub(super) fn tell(&mut self, cap_queue: u32, now_ns: u64) -> Option<u32> {
        let of = &mut self.all[cap_queue as usize];
        if of.waiting.is_empty() {
            return None;
        }
        // With no reservation the next client makes its own.
        let bytes = of.reservation.map(|reservation| reservation.bytes);
        if !self.is_open && bytes.is_some_and(|bytes| of.hold_up(bytes, now_ns).is_some()) {
            return None;
        }
        self.told = of.waiting.pop_front();
        self.told
    }

    /// All that could be told at this cap queue have been.
    pub(super) fn told(&mut self, cap_queue: u32, now_ns: u64) {
        self.told = None;
        let of = &mut self.all[cap_queue as usize];
        if of.waiting.is_empty() {
            of.give_back(now_ns);
        } else {
            self.list(cap_queue);
        }
    }

    /// Limits have changed: every reservation is made anew.
    pub(super) fn give_back_unused(&mut self, now_ns: u64) {
        self.due.clear();
        for cap_queue in 0..self.all.len() as u32 {
            let of = &mut self.all[cap_queue as usize];
            of.is_listed = false;
            if let Some(Reservation { stage, bytes, since, .. }) = of.reservation {
                let cap = &of.caps.in_order()[stage];
                cap.give_back(bytes);
                of.reservation = Some(Reservation { stage, due: cap.take(bytes, now_ns), bytes, since });
            }
            if !of.waiting.is_empty() {
                self.list(cap_queue);
            }
        }
    }

    /// If open, every client passes from now on, and those that wait are due.
    pub(super) fn open(&mut self, is_open: bool) {
        self.is_open = is_open;
    }
}

/// Bytes of a request that a cap counts: its payload.
pub(super) fn capped_bytes(submission: &Submission) -> u32 {
    match submission.op {
        Op::Read | Op::Write => submission.length_bytes,
        _ => 0,
    }
}
