//! Requests that were admitted and not yet completed: the ledger that lets none be forgotten.
//!
//! A [`Request`] lives in one worker's [`RequestTable`] from admission to completion, and never moves: it is written in
//! its place and completed from there. Taking it ([`RequestTable::take`]) is the only way to complete it, and dropping
//! a request taken but not completed panics in debug builds (in release it is counted by [`lost_requests`], because a
//! panic in a daemon would take every other tenant along).

use crate::buffer::Buffer;
use crate::request::{Completion, Op, Status, Submission};
use crate::tag::Tag;
use mqfq_sched::cost::{Cost, CostKind};
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{DispatchToken, Done, Handle};
use std::sync::atomic::{AtomicU64, Ordering};

static LOST: AtomicU64 = AtomicU64::new(0);

/// Requests of this process that were dropped without completion. Anything but 0 is a bug.
pub fn lost_requests() -> u64 {
    // Relaxed: a count that nothing else is ordered by.
    LOST.load(Ordering::Relaxed)
}

/// Submitter of a request: the worker's name for one of its clients.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner(pub u32);

/// Stage of a request.
#[derive(PartialEq, Eq, Debug)]
pub enum State {
    /// Nowhere: no request has this place in the table.
    Free,
    /// Staged in the policy's queue.
    Staged,
    /// On the device.
    Dispatched {
        /// Tag of the command that carries it.
        tag: Tag,
        /// Token, which goes back when the command is reaped.
        token: DispatchToken,
    },
}

/// An admitted request.
#[derive(Debug)]
pub struct Request {
    /// Submission of its client. It has the payload while the request is staged; on the device the command has it.
    pub submission: Submission,
    /// Client that gets the completion.
    pub owner: Owner,
    /// Charge for it.
    pub charge: Charge,
    /// Its state.
    pub state: State,
    /// Time of its admission.
    pub submitted_ns: u64,
    /// Time at which it went to the device.
    pub dispatched_ns: u64,
    /// Times that it went to the device again after a reset.
    pub retries: u8,
    /// In a free place: the free place that is used after it.
    next_free: Handle,
}

/// Charge for a submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Charge {
    /// Cost charged to its flow.
    pub cost: Cost,
    /// Kind of operation that the policy is told.
    pub kind: CostKind,
    /// A client waits for it.
    pub is_sync: bool,
    /// Bytes of memory that it holds while it is staged.
    pub staged_bytes: u32,
}

/// Submission in a free place.
fn nothing() -> Submission {
    Submission { flow: FlowId(0), op: Op::Flush, offset_bytes: 0, length_bytes: 0, fua: false, buffer: None, cookie: 0 }
}

impl Request {
    /// A place without a request; `next_free` is the free one to be used after it.
    fn free(next_free: Handle) -> Request {
        Request {
            submission: nothing(),
            owner: Owner(0),
            charge: Charge { cost: Cost(0), kind: CostKind::Flush, is_sync: false, staged_bytes: 0 },
            state: State::Free,
            submitted_ns: 0,
            dispatched_ns: 0,
            retries: 0,
            next_free,
        }
    }

    #[inline(always)]
    fn is_free(&self) -> bool {
        matches!(self.state, State::Free)
    }

    /// The request's end as the policy sees it, with the cost charged to its flow.
    #[inline(always)]
    pub fn done(&self, handle: Handle) -> Done {
        let &Request { submission: Submission { flow, length_bytes, .. }, charge, submitted_ns, dispatched_ns, .. } =
            self;
        let Charge { cost, kind, is_sync, .. } = charge;
        Done { flow, handle, kind, is_sync, length_bytes, cost, submitted_ns, dispatched_ns }
    }
}

/// One worker's admitted requests on one device. All memory is taken at construction, and by [`RequestTable::grow`].
#[derive(Debug)]
pub struct RequestTable {
    places: Box<[Request]>,
    vacancies: Vacancies,
}

/// The free places: a list through `Request::next_free`, whose end names no place.
#[derive(Debug)]
struct Vacancies {
    next: Handle,
    in_use: usize,
}

impl RequestTable {
    /// A table with room for `capacity_requests`.
    pub fn new(capacity_requests: usize) -> RequestTable {
        let capacity = u32::try_from(capacity_requests).expect("a table of fewer than 2^32 requests");
        let places = (0..capacity).map(|at| Request::free(Handle(at + 1))).collect();
        RequestTable { places, vacancies: Vacancies { next: Handle(0), in_use: 0 } }
    }

    /// Room for `capacity_requests`, if that is more; those that are held keep their names. Takes memory, so it is not
    /// for the data path.
    pub fn grow(&mut self, capacity_requests: usize) {
        let held = self.places.len();
        let capacity = u32::try_from(capacity_requests).expect("a table of fewer than 2^32 requests");
        let mut places = std::mem::take(&mut self.places).into_vec();
        // The list of free places ends with the number of the first new one.
        places.extend((held as u32..capacity).map(|at| Request::free(Handle(at + 1))));
        self.places = places.into();
    }

    /// A place for another request, if there is room.
    #[inline(always)]
    pub fn vacant(&mut self) -> Option<Vacant<'_>> {
        let RequestTable { places, vacancies } = self;
        let place = places.get_mut(vacancies.next.0 as usize)?;
        Some(Vacant { place, vacancies })
    }

    /// A request in the table.
    ///
    /// # Panics
    /// If there is none of this name: a policy or device handed out a name that is not its own.
    #[inline]
    pub fn get_mut(&mut self, handle: Handle) -> &mut Request {
        match self.places.get_mut(handle.0 as usize) {
            Some(request) if !request.is_free() => request,
            _ => panic_no_request(handle),
        }
    }

    /// Takes a request that is on the device, to complete it.
    ///
    /// # Panics
    /// If there is none of this name: this is what makes a second completion of one request impossible.
    #[inline(always)]
    pub fn take(&mut self, handle: Handle) -> Taken<'_> {
        let RequestTable { places, vacancies } = self;
        match places.get_mut(handle.0 as usize) {
            Some(request) if matches!(request.state, State::Dispatched { .. }) => {
                Taken { request, vacancies, handle, must_complete: MustComplete }
            }
            _ => panic_no_request(handle),
        }
    }

    /// Requests held, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = &Request> {
        // Places that came free last are used next, so those in use lie in front of a table that is mostly free.
        self.places.iter().filter(|request| !request.is_free()).take(self.len())
    }

    /// A request of `owner` that is staged, in place `from` or behind it. `seen` counts requests found in use; none is
    /// behind the last one.
    pub fn staged_of(&self, owner: Owner, from: usize, seen: &mut usize) -> Option<Handle> {
        for (at, request) in self.places.iter().enumerate().skip(from) {
            if *seen >= self.len() {
                return None;
            }
            *seen += usize::from(!request.is_free());
            if matches!(request.state, State::Staged) && request.owner == owner {
                return Some(Handle(at as u32));
            }
        }
        None
    }

    /// Adds the requests in places `from` to `from + places` to `found`. `None`: there can be none in further places.
    pub fn sweep(&self, from: usize, places: usize, found: &mut Swept) -> Option<usize> {
        let end = (from + places).min(self.places.len());
        for request in self.places[from.min(end)..end].iter().filter(|request| !request.is_free()) {
            found.seen += 1;
            let Some(flow) = found.flows.get_mut(request.submission.flow.0 as usize) else { continue };
            flow.requests += 1;
            flow.oldest_ns = flow.oldest_ns.min(request.submitted_ns);
        }
        (found.seen < self.len() && end < self.places.len()).then_some(end)
    }

    /// Room left, in requests.
    pub fn room(&self) -> usize {
        self.places.len() - self.len()
    }

    /// Requests held.
    pub fn len(&self) -> usize {
        self.vacancies.in_use
    }

    /// True if no request is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cold]
#[inline(never)]
fn panic_no_request(handle: Handle) -> ! {
    panic!("no request has the name {handle:?}");
}

impl Drop for RequestTable {
    /// The engine is going away with requests on it, and their clients with it: this ends them without a completion,
    /// which is the one place where that is right.
    fn drop(&mut self) {
        for request in &mut self.places {
            if let State::Dispatched { token, .. } = std::mem::replace(&mut request.state, State::Free) {
                token.into_units();
            }
        }
    }
}

/// Result until now of a sweep over the requests of one context.
#[derive(Clone, Debug, Default)]
pub struct Swept {
    /// By flow; as long as the asking thread makes it.
    pub flows: Vec<UnderWay>,
    /// Commands on the device when it began.
    pub in_flight: u64,
    /// Requests in the policy's queue when it began.
    pub staged: u64,
    seen: usize,
}

/// Requests of one flow that are admitted and not completed; a cut request counts as its parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnderWay {
    /// Number of requests.
    pub requests: u64,
    /// When the oldest of them was submitted, ns; the largest number if there is none.
    pub oldest_ns: u64,
}

impl UnderWay {
    /// No requests.
    pub const NONE: UnderWay = UnderWay { requests: 0, oldest_ns: u64::MAX };
}

impl Swept {
    /// Empty counts for so many flows.
    pub fn new(flows: usize) -> Swept {
        Swept { flows: vec![UnderWay::NONE; flows], ..Swept::default() }
    }
}

/// A free place of a table.
#[derive(Debug)]
pub struct Vacant<'a> {
    place: &'a mut Request,
    vacancies: &'a mut Vacancies,
}

impl Vacant<'_> {
    /// Takes in the request of a submission admitted at `now_ns`. Its name is valid until it is completed.
    #[inline(always)]
    pub fn fill(self, owner: Owner, submission: Submission, charge: Charge, now_ns: u64) -> Handle {
        let Vacant { place, vacancies } = self;
        debug_assert!(place.is_free(), "{:?} is free, yet in use", vacancies.next);
        debug_assert!(place.submission.buffer.is_none(), "{:?} was freed with its payload", vacancies.next);
        let handle = std::mem::replace(&mut vacancies.next, place.next_free);
        vacancies.in_use += 1;
        // Nothing is left in a free place that could be dropped; to look for it, the submission would be copied twice.
        std::mem::forget(std::mem::replace(&mut place.submission, submission));
        place.owner = owner;
        place.charge = charge;
        std::mem::forget(std::mem::replace(&mut place.state, State::Staged));
        (place.submitted_ns, place.dispatched_ns) = (now_ns, now_ns);
        place.retries = 0;
        handle
    }
}

/// A request that is being completed, still in its place.
#[derive(Debug)]
pub struct Taken<'a> {
    request: &'a mut Request,
    vacancies: &'a mut Vacancies,
    handle: Handle,
    must_complete: MustComplete,
}

/// Its drop is the alarm for a forgotten request.
#[derive(Debug)]
struct MustComplete;

impl Drop for MustComplete {
    fn drop(&mut self) {
        // Relaxed: see lost_requests.
        LOST.fetch_add(1, Ordering::Relaxed);
        debug_assert!(std::thread::panicking(), "a request was dropped without completion");
    }
}

/// A request that has ended.
#[derive(Debug)]
pub struct Completed<'a> {
    /// Client to tell.
    pub owner: Owner,
    /// Completion to tell.
    pub completion: Completion,
    /// Must go back to the policy.
    pub token: DispatchToken,
    /// The request. Its place is free for another.
    pub request: &'a Request,
}

impl<'a> Taken<'a> {
    /// Ends the request, with the payload from `buffer` if it came back there.
    #[inline(always)]
    pub fn complete(self, status: Status, buffer: &mut Option<Buffer>, now_ns: u64) -> Completed<'a> {
        let Taken { request, vacancies, handle, must_complete } = self;
        std::mem::forget(must_complete);
        let State::Dispatched { token, .. } = std::mem::replace(&mut request.state, State::Free) else {
            unreachable!("{handle:?} was taken from the device");
        };
        request.next_free = std::mem::replace(&mut vacancies.next, handle);
        vacancies.in_use -= 1;
        let &mut Request { ref submission, owner, submitted_ns, dispatched_ns, .. } = request;
        debug_assert!(submission.buffer.is_none(), "the command has the buffer, and so has the request");
        let buffer = buffer.take();
        let queued_ns = dispatched_ns.saturating_sub(submitted_ns);
        let device_ns = now_ns.saturating_sub(dispatched_ns);
        let &Submission { cookie, op, length_bytes, .. } = submission;
        let completion = Completion { cookie, status, op, length_bytes, buffer, queued_ns, device_ns };
        Completed { owner, completion, token, request }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    const CHARGE: Charge = Charge { cost: Cost(4096), kind: CostKind::Flush, is_sync: true, staged_bytes: 0 };

    fn insert(table: &mut RequestTable) -> Option<Handle> {
        let submission = Submission { cookie: 7, ..nothing() };
        Some(table.vacant()?.fill(Owner(1), submission, CHARGE, 100))
    }

    fn dispatch(table: &mut RequestTable, handle: Handle, units: u32) {
        table.get_mut(handle).state = State::Dispatched { tag: Tag(0), token: DispatchToken::new(units) };
    }

    fn complete(table: &mut RequestTable, handle: Handle) {
        let Completed { token, .. } = table.take(handle).complete(Status::Ok, &mut None, 0);
        assert_eq!(token.into_units(), 0);
    }

    #[test]
    fn a_request_is_completed_once_with_its_times() {
        let mut table = RequestTable::new(1);
        let handle = insert(&mut table).unwrap();
        assert_eq!(insert(&mut table), None, "a full table has no place");
        dispatch(&mut table, handle, 1);
        table.get_mut(handle).dispatched_ns = 130;
        let done = table.get_mut(handle).done(handle);
        assert_eq!((done.flow, done.handle, done.kind, done.is_sync), (FlowId(0), handle, CostKind::Flush, true));
        assert_eq!((done.cost, done.submitted_ns, done.dispatched_ns), (Cost(4096), 100, 130));
        let Completed { owner, completion, token, .. } = table.take(handle).complete(Status::Ok, &mut None, 180);
        assert_eq!((owner, completion.cookie, completion.queued_ns, completion.device_ns), (Owner(1), 7, 30, 50));
        assert_eq!(token.into_units(), 1);
        assert!(table.is_empty());
    }

    #[test]
    fn a_place_that_came_free_last_is_used_next() {
        let mut table = RequestTable::new(3);
        let handles = [(); 3].map(|()| insert(&mut table).unwrap());
        assert_eq!((handles, table.len(), table.room()), ([0, 1, 2].map(Handle), 3, 0));
        for handle in [1, 0].map(Handle) {
            dispatch(&mut table, handle, 0);
            complete(&mut table, handle);
        }
        assert_eq!((table.iter().count(), table.room()), (1, 2));
        assert_eq!([(); 2].map(|()| insert(&mut table).unwrap()), [0, 1].map(Handle));
        assert_eq!(insert(&mut table), None);
    }

    #[test]
    #[should_panic(expected = "no request has the name")]
    fn completing_twice_is_our_bug() {
        let mut table = RequestTable::new(1);
        let handle = insert(&mut table).unwrap();
        dispatch(&mut table, handle, 0);
        complete(&mut table, handle);
        complete(&mut table, handle);
    }

    #[test]
    fn a_forgotten_request_is_noticed() {
        let mut table = RequestTable::new(1);
        let handle = insert(&mut table).unwrap();
        dispatch(&mut table, handle, 0);
        let before = lost_requests();
        // Counted in any build, and a panic in those for tests.
        let forgets = std::panic::AssertUnwindSafe(|| drop(table.take(handle)));
        let panics = std::panic::catch_unwind(forgets).is_err();
        assert_eq!((lost_requests() - before, panics), (1, cfg!(debug_assertions)));
    }

    #[test]
    fn a_place_keeps_nothing_of_the_request_before() {
        let mut table = RequestTable::new(1);
        let handle = insert(&mut table).unwrap();
        dispatch(&mut table, handle, 0);
        let request = table.get_mut(handle);
        (request.retries, request.dispatched_ns) = (3, 500);
        complete(&mut table, handle);
        assert_eq!(insert(&mut table), Some(handle));
        let Request { retries, submitted_ns, dispatched_ns, state, .. } = table.get_mut(handle);
        assert_eq!((*retries, *submitted_ns, *dispatched_ns, state), (0, 100, 100, &mut State::Staged));
    }

    #[test]
    fn a_table_that_grows_keeps_its_requests_and_uses_the_new_places_when_the_old_are_taken() {
        let mut table = RequestTable::new(2);
        let first = insert(&mut table).unwrap();
        table.grow(5);
        assert_eq!((table.len(), table.room(), table.get_mut(first).submission.cookie), (1, 4, 7));
        assert_eq!(std::iter::from_fn(|| insert(&mut table)).collect::<Vec<_>>(), [1, 2, 3, 4].map(Handle));
        table.grow(3);
        assert_eq!((table.len(), table.room(), insert(&mut table)), (5, 0, None), "no place is taken away");
    }

    #[test]
    fn a_sweep_in_pieces_finds_what_one_look_does_and_ends_with_the_last_request() {
        let mut table = RequestTable::new(8);
        let handles = [(0, 100), (1, 90), (1, 10), (0, 80), (2, 70)].map(|(flow, now_ns)| {
            let submission = Submission { flow: FlowId(flow), ..nothing() };
            table.vacant().unwrap().fill(Owner(0), submission, CHARGE, now_ns)
        });
        dispatch(&mut table, handles[2], 0);
        complete(&mut table, handles[2]);
        for places in 1..10 {
            let mut found = Swept::new(2);
            let looks = std::iter::successors(Some(0), |&from| table.sweep(from, places, &mut found)).count();
            let under_way = |requests, oldest_ns| UnderWay { requests, oldest_ns };
            assert_eq!(found.flows, [under_way(2, 80), under_way(1, 90)], "the third flow is not asked for");
            assert_eq!(looks, 5_usize.div_ceil(places), "nothing lies behind the fifth place");
        }
        // A count that begins here finds fewer requests than there are: it ends with the places all the same.
        assert_eq!([5, 8, 20].map(|from| table.sweep(from, 3, &mut Swept::new(2))), [None; 3]);
    }

    #[test]
    fn a_table_that_goes_away_with_requests_on_the_device_loses_no_token() {
        let mut table = RequestTable::new(2);
        assert!(table.is_empty());
        let handle = insert(&mut table).unwrap();
        dispatch(&mut table, handle, 3);
        assert!(!table.is_empty());
        drop(table);
    }

    #[test]
    #[should_panic(expected = "no request has the name")]
    fn a_free_place_has_no_name() {
        let mut table = RequestTable::new(2);
        insert(&mut table).unwrap();
        table.get_mut(Handle(1));
    }

    #[test]
    #[should_panic(expected = "no request has the name")]
    fn what_is_still_staged_is_not_completed() {
        let mut table = RequestTable::new(1);
        let handle = insert(&mut table).unwrap();
        complete(&mut table, handle);
    }
}
