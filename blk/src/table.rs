//! Requests that were admitted and not yet completed: the ledger that lets none be forgotten.
//!
//! A [`Request`] lives in one worker's [`RequestTable`] from admission to completion. Taking it out is the only way to
//! complete it, and dropping one that was taken but not completed panics in debug builds (in release it is counted by
//! [`lost_requests`], because a panic in a daemon would take every other tenant along).

use crate::buffer::Buffer;
use crate::device::Tag;
use crate::request::{Completion, Op, Status, Submission};
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{DispatchToken, Handle};
use std::sync::atomic::{AtomicU64, Ordering};

static LOST: AtomicU64 = AtomicU64::new(0);

/// Requests of this process that were dropped without completion. Anything but 0 is a bug.
pub fn lost_requests() -> u64 {
    // Relaxed: a count that nothing else is ordered by.
    LOST.load(Ordering::Relaxed)
}

/// Who submitted a request: the worker's name for one of its clients.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner(pub u32);

/// Where a request is.
#[derive(PartialEq, Eq, Debug)]
pub enum State {
    /// Staged in the policy's queue.
    Staged,
    /// On the device.
    Dispatched {
        /// The device's name for it.
        tag: Tag,
        /// Goes back when it is reaped.
        token: DispatchToken,
    },
}

/// An admitted request.
#[derive(Debug)]
pub struct Request {
    /// Who gets the completion.
    pub owner: Owner,
    /// The owner's name for it.
    pub cookie: u64,
    /// Who is charged.
    pub flow: FlowId,
    /// What it does.
    pub op: Op,
    /// First byte on the device.
    pub offset_bytes: u64,
    /// Length of the request, bytes.
    pub length_bytes: u32,
    /// What its flow is charged.
    pub cost: Cost,
    /// Stable before completion.
    pub fua: bool,
    /// Payload while the request is staged; on the device the command holds it.
    pub buffer: Option<Buffer>,
    /// Where it is.
    pub state: State,
    /// When it was admitted.
    pub submitted_ns: u64,
    /// When it went to the device.
    pub dispatched_ns: u64,
    /// The request of the same command that follows it on the device.
    pub next: Option<Handle>,
    /// Times that it went to the device again after a reset.
    pub retries: u8,
    must_complete: MustComplete,
}

/// Its drop is the alarm for a forgotten request.
#[derive(Debug)]
struct MustComplete {
    armed: bool,
}

impl Drop for MustComplete {
    fn drop(&mut self) {
        if self.armed {
            // Relaxed: see lost_requests.
            LOST.fetch_add(1, Ordering::Relaxed);
            debug_assert!(std::thread::panicking(), "a request was dropped without completion");
        }
    }
}

impl Request {
    /// The request of a submission admitted at `now_ns`.
    #[inline(always)]
    pub fn admit(owner: Owner, submission: Submission, cost: Cost, now_ns: u64) -> Request {
        let Submission { flow, op, offset_bytes, length_bytes, fua, buffer, cookie } = submission;
        Request {
            owner,
            cookie,
            flow,
            op,
            offset_bytes,
            length_bytes,
            cost,
            fua,
            buffer,
            state: State::Staged,
            submitted_ns: now_ns,
            dispatched_ns: now_ns,
            next: None,
            retries: 0,
            must_complete: MustComplete { armed: true },
        }
    }

    /// Ends the request. Returns whom to tell, what to tell, and the token that must go back to the policy (none if it
    /// was still staged).
    #[inline(always)]
    pub fn complete(
        mut self,
        status: Status,
        buffer: Option<Buffer>,
        now_ns: u64,
    ) -> (Owner, Completion, Option<DispatchToken>) {
        self.must_complete.armed = false;
        let (queued_ns, device_ns, token) = match self.state {
            State::Staged => (now_ns.saturating_sub(self.submitted_ns), 0, None),
            State::Dispatched { token, .. } => (
                self.dispatched_ns.saturating_sub(self.submitted_ns),
                now_ns.saturating_sub(self.dispatched_ns),
                Some(token),
            ),
        };
        let completion = Completion {
            cookie: self.cookie,
            status,
            op: self.op,
            length_bytes: self.length_bytes,
            buffer: buffer.or(self.buffer),
            queued_ns,
            device_ns,
        };
        (self.owner, completion, token)
    }
}

/// One worker's admitted requests on one device. All memory is taken at construction.
#[derive(Debug)]
pub struct RequestTable {
    slots: Vec<Option<Request>>,
    free: Vec<Handle>,
}

impl RequestTable {
    /// Room for `capacity_requests`.
    pub fn new(capacity_requests: usize) -> RequestTable {
        let capacity = u32::try_from(capacity_requests).expect("a table of fewer than 2^32 requests");
        RequestTable { slots: (0..capacity).map(|_| None).collect(), free: (0..capacity).rev().map(Handle).collect() }
    }

    /// Takes a request in, if there is room. Its name is valid until [`RequestTable::take`].
    #[inline(always)]
    pub fn insert(&mut self, request: Request) -> Result<Handle, Request> {
        let Some(handle) = self.free.pop() else { return Err(request) };
        debug_assert!(self.slots[handle.0 as usize].is_none(), "{handle:?} is free, yet in use");
        self.slots[handle.0 as usize] = Some(request);
        Ok(handle)
    }

    /// A request in the table.
    ///
    /// # Panics
    /// If there is none of this name: a policy or device handed out a name that is not its own.
    pub fn get_mut(&mut self, handle: Handle) -> &mut Request {
        self.slots[handle.0 as usize].as_mut().unwrap_or_else(|| panic!("no request has the name {handle:?}"))
    }

    /// Takes a request out, to complete it.
    ///
    /// # Panics
    /// As [`RequestTable::get_mut`]: this is what makes a second completion of one request impossible.
    #[inline(always)]
    pub fn take(&mut self, handle: Handle) -> Request {
        let request = self.slots[handle.0 as usize].take();
        let request = request.unwrap_or_else(|| panic!("no request has the name {handle:?}"));
        self.free.push(handle);
        request
    }

    /// Requests held, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = &Request> {
        self.slots.iter().flatten()
    }

    /// Room left, in requests.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Requests held.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// No request is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for RequestTable {
    /// The engine is going away with requests on it, and their clients with it: this ends them without telling anybody,
    /// which is the one place where that is right.
    fn drop(&mut self) {
        for request in self.slots.drain(..).flatten() {
            let (_, _, token) = request.complete(Status::Shutdown, None, 0);
            token.map(DispatchToken::into_units);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        let submission = Submission {
            flow: FlowId(0),
            op: Op::Flush,
            offset_bytes: 0,
            length_bytes: 0,
            fua: false,
            buffer: None,
            cookie: 7,
        };
        Request::admit(Owner(1), submission, Cost(4096), 100)
    }

    #[test]
    fn a_request_is_completed_once_with_its_times() {
        let mut table = RequestTable::new(1);
        let handle = table.insert(request()).unwrap();
        let back = table.insert(request()).unwrap_err();
        let _ = back.complete(Status::Shutdown, None, 100);
        table.get_mut(handle).state = State::Dispatched { tag: Tag(0), token: DispatchToken::new(1) };
        table.get_mut(handle).dispatched_ns = 130;
        let (owner, completion, token) = table.take(handle).complete(Status::Ok, None, 180);
        assert_eq!((owner, completion.cookie, completion.queued_ns, completion.device_ns), (Owner(1), 7, 30, 50));
        assert_eq!(token.map(DispatchToken::into_units), Some(1));
        assert!(table.is_empty());
    }

    #[test]
    #[should_panic(expected = "no request has the name")]
    fn completing_twice_is_our_bug() {
        let mut table = RequestTable::new(1);
        let handle = table.insert(request()).unwrap();
        let _ = table.take(handle).complete(Status::Ok, None, 0);
        table.take(handle);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "dropped without completion")]
    fn a_forgotten_request_is_noticed() {
        drop(request());
    }
}
