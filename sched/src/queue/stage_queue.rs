//! The requests staged in one hctx, first in order of start tag, without allocation.
//!
//! Answers: which staged request has the smallest start tag, and what is the next one's?
//! Source: MQFQ section 2.1 ("requests in each queue are sorted by start tags"). Difference from the paper: it sorts
//! requests; here each flow's requests stand in a FIFO, which is sorted already because a flow's start tags increase
//! (I9), and only the flows are sorted. A queue holds few flows and many requests.
//!
//! # Shape
//! ```text
//!   first      40 lane 2                lanes, one per flow that has requests    nodes, one per request
//!   run        55 lane 0, 90 lane 1     2: flow 9, head 5, tail 5                5: {40, ...} -> none
//!   heap       61 lane 3                0: flow 3, head 1, tail 7                1: {55, ...} -> 7 -> none
//!                                       1: flow 4, head 0, tail 0                0: {90, ...} -> none
//!                                       3: flow 8, head 2, tail 2                2: {61, ...} -> none
//!
//!   index: flow -> lane, a hash table with linear probing and backward-shift deletion, at most half full
//! ```
//! A lane exists only while its flow has a request here, so lanes, heap and index are sized by the queue's capacity and
//! not by the number of flows: 100,000 flows cost a queue nothing. The policy may keep something with a lane (`L`) for
//! as long as it exists: MQFQ keeps a lease there.
//!
//! A request may be *deferred*: it waits without an interval, behind those of its flow that have one, and gets one at
//! the latest when it is the first. Such requests hang on their lane apart from the others, and what follows the last
//! of those is no node: the check of a node's number that there is anyway is the look for them, and the common path
//! knows nothing of them.
//!
//! # Invariants
//! Q1. `peek` is the smallest (start tag, span, arrival) of all staged requests.
//! Q2. A flow's requests leave in the order they came.
//! Q3. A flow is in the index if and only if a lane is its, if and only if that lane stands once in the order (first,
//!     run and heap), keyed by its head.
//!
//! # Ties
//! "Ties are broken arbitrarily" (MQFQ section 2), but they are not rare: global virtual time *is* the lead's start
//! tag, so a flow that comes back from idleness ties with the lead each time. Of equal start tags the shorter interval
//! goes first (the earlier finish tag), then the first to arrive: a small request does not wait behind a large one that
//! started level with it. Each flow can go first at one value of the tag only once, so no flow starves.
//!
//! # Cost
//! push: a probe; for a flow that had nothing here also a place in the order. pop: the first lane's next request takes
//! a place in the order (`lane_order.rs`): two comparisons while flows advance at one pace, O(log flows staged here) at
//! most. The comparison wraps (`vtime.rs`): tags in one queue must lie within half the circle of one another.

use super::lane_order::{Key, LaneOrder, NONE};
use crate::cost::Cost;
use crate::flow::FlowId;
use crate::vtime::{VSpan, VTime};
use alloc::boxed::Box;
use alloc::vec;

/// In place of a next node: the requests behind are deferred. No node has this number.
const DEFERRED: u32 = u32::MAX - 1;

/// Deferred requests of a flow that get their intervals at once.
const AHEAD_MAX: usize = 16;

/// A staged request, as handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Staged<P> {
    /// Flow that it belongs to.
    pub flow: FlowId,
    /// Start of its interval: the smallest goes first.
    pub start_tag: VTime,
    /// Length of its interval: the shorter of two with one start tag goes first.
    pub span: VSpan,
    /// The policy's data with it.
    pub payload: P,
}

#[derive(Clone, Copy)]
struct Node<P> {
    start_tag: VTime,
    span: VSpan,
    /// Arrival number; wraps, but those staged at once are less than 2^31 apart.
    arrival: u32,
    /// Next of the same flow; of a free node, the next free one.
    next: u32,
    payload: P,
}

#[derive(Clone, Copy)]
struct Lane<L> {
    flow: FlowId,
    head: u32,
    /// Last node; of a free lane, the next free one.
    tail: u32,
    /// First deferred node. If there is one, all behind it are deferred.
    deferred: u32,
    kept: L,
}

/// One hctx's staged requests. `P` is the policy's data with each (a handle, units of depth), `L` its data with each
/// flow that has requests here.
pub struct StageQueue<P, L = ()> {
    nodes: Nodes<P>,
    lanes: Box<[Lane<L>]>,
    free_lane: u32,
    order: LaneOrder,
    index: FlowIndex,
}

impl<P: Copy + Default, L: Copy + Default> StageQueue<P, L> {
    /// An empty queue that can hold `capacity_requests`, 1..=2^30. All memory is taken here.
    ///
    /// # Panics
    /// If the capacity is out of range.
    pub fn new(capacity_requests: usize) -> Self {
        assert!(
            (1..=1 << 30).contains(&capacity_requests),
            "capacity {capacity_requests} is out of range, allowed is 1 to 2^30 requests"
        );
        let capacity = capacity_requests as u32;
        let next = |n: u32| if n + 1 == capacity { NONE } else { n + 1 };
        let node =
            |n| Node { start_tag: VTime::ZERO, span: VSpan(0), arrival: 0, next: next(n), payload: P::default() };
        let lane = |n| Lane { flow: FlowId(0), head: NONE, tail: next(n), deferred: NONE, kept: L::default() };
        StageQueue {
            nodes: Nodes { all: (0..capacity).map(node).collect(), first_free: 0, arrivals: 0, departures: 0 },
            lanes: (0..capacity).map(lane).collect(),
            free_lane: 0,
            order: LaneOrder::new(capacity_requests),
            index: FlowIndex::new(capacity_requests),
        }
    }

    /// Requests held.
    pub fn len(&self) -> usize {
        self.nodes.in_use() as usize
    }

    /// Flows that have requests here.
    pub fn flows(&self) -> usize {
        self.order.lanes()
    }

    /// True if nothing is held.
    pub fn is_empty(&self) -> bool {
        self.nodes.in_use() == 0
    }

    /// Requests that it can hold.
    pub fn capacity(&self) -> usize {
        self.nodes.all.len()
    }

    /// Smallest start tag, or `None` if nothing is held.
    #[inline]
    pub fn lead(&self) -> Option<VTime> {
        self.order.first_tag()
    }

    /// The request that `pop` would return.
    #[inline]
    pub fn peek(&self) -> Option<Staged<P>> {
        let key = self.order.first_key();
        // `NONE` is no lane.
        let lane = self.lanes.get(key.lane as usize)?;
        let payload = self.nodes.all[lane.head as usize].payload;
        Some(Staged { flow: lane.flow, start_tag: key.start_tag, span: key.span, payload })
    }

    /// True if the flow of the first request has no other here.
    pub fn first_is_alone(&self) -> bool {
        let lane = self.lanes.get(self.order.first_key().lane as usize);
        lane.is_some_and(|lane| lane.head == lane.tail)
    }

    /// Takes in a request. True if it became the first.
    ///
    /// # Panics
    /// If the queue is full; in debug builds, if the start tag is before that of the flow's previous request here (I9).
    pub fn push(&mut self, request: Staged<P>) -> bool {
        match self.behind(request.flow) {
            Some(behind) => {
                behind.push(request.start_tag, request.span, request.payload);
                false
            }
            None => self.push_lane(request, L::default()),
        }
    }

    /// The place behind the flow's last request here, if it has any.
    #[inline]
    pub fn behind(&mut self, flow: FlowId) -> Option<Behind<'_, P, L>> {
        let lane = &mut self.lanes[self.index.find(flow)? as usize];
        debug_assert_eq!(lane.flow, flow, "the index names a lane of another flow");
        Some(Behind { lane, nodes: &mut self.nodes })
    }

    /// Takes in a request of a flow that has no other here, and what to keep with the flow. True if it became the
    /// first.
    ///
    /// # Panics
    /// If the queue is full.
    pub fn push_lane(&mut self, request: Staged<P>, kept: L) -> bool {
        let Staged { flow, start_tag, span, payload } = request;
        let (node, arrival) = self.nodes.take(start_tag, span, payload);
        // There are as many lanes as nodes and each in use holds a node, so with a node free a lane is free too.
        let lane = self.free_lane;
        self.free_lane = self.lanes[lane as usize].tail;
        self.lanes[lane as usize] = Lane { flow, head: node, tail: node, deferred: NONE, kept };
        self.index.insert(flow, lane);
        self.order.insert(Key { start_tag, span, arrival, lane })
    }

    /// Removes the first request (Q1).
    ///
    /// # Panics
    /// If a deferred one of its flow waits.
    pub fn pop(&mut self) -> Option<Staged<P>> {
        let first = self.peek()?;
        self.drop_first(|_, _| ());
        Some(first)
    }

    /// Removes the first request, which the caller has seen by [`StageQueue::peek`]. If it was the last of its flow
    /// here, `leave` is called with the kept state. Nothing happens if nothing is held.
    ///
    /// # Panics
    /// As [`StageQueue::pop`].
    #[inline(always)]
    pub fn drop_first(&mut self, leave: impl FnOnce(FlowId, L)) {
        self.drop_first_and(|flow, _, _| panic!("a request of flow {} is deferred", flow.0), |(), _, _| None, leave);
    }

    /// As [`StageQueue::drop_first`], and if the flow's next request was deferred, `promote` gives it an interval, of
    /// its cost: start tag and length. Then `ahead` is asked for the requests behind, up to [`AHEAD_MAX`] and until it
    /// has none. Returns the smallest start tag now; `None` if the request was the last of its flow here: then
    /// [`StageQueue::lead`] tells.
    ///
    /// # Panics
    /// In debug builds, if that start tag is before that of the request that is removed (I9).
    #[inline(always)] // the common path of `pick`; what is rare in it is not inlined
    pub fn drop_first_and<A>(
        &mut self,
        promote: impl FnOnce(FlowId, Cost, &mut L) -> (VTime, VSpan, A),
        ahead: impl Fn(&A, Cost, &mut L) -> Option<(VTime, VSpan)>,
        leave: impl FnOnce(FlowId, L),
    ) -> Option<VTime> {
        let first = self.order.first_key().lane;
        let lane = self.lanes.get_mut(first as usize)?;
        let next = self.nodes.free(lane.head);
        // Neither `NONE` nor `DEFERRED` is a node.
        match self.nodes.all.get(next as usize) {
            Some(&Node { start_tag, span, arrival, .. }) => {
                lane.head = next;
                self.order.replace_first(Key { start_tag, span, arrival, lane: first });
            }
            None if next == DEFERRED => self.promote_first(first, promote, ahead),
            None => {
                self.drop_lane(first, leave);
                return None;
            }
        }
        Some(self.order.first_key().start_tag)
    }

    /// The first lane has only deferred requests any more.
    #[inline(never)]
    fn promote_first<A>(
        &mut self,
        first: u32,
        promote: impl FnOnce(FlowId, Cost, &mut L) -> (VTime, VSpan, A),
        ahead: impl Fn(&A, Cost, &mut L) -> Option<(VTime, VSpan)>,
    ) {
        let before = self.order.first_key().start_tag;
        let mut key = self.promote_lane(first, promote, ahead);
        // A request taken back on another queue may have given an interval back before one of length 0, which has the
        // same end: a request costs less than a grain then. Order is kept here (I9), the axis has its own.
        if key.start_tag.is_before(before) {
            key.start_tag = before;
        }
        self.order.replace_first(key);
    }

    /// Gives the first deferred request of a lane that has no others an interval, and some behind it. Returns the
    /// lane's key.
    #[inline(always)] // into the two that need it
    fn promote_lane<A>(
        &mut self,
        of: u32,
        promote: impl FnOnce(FlowId, Cost, &mut L) -> (VTime, VSpan, A),
        ahead: impl Fn(&A, Cost, &mut L) -> Option<(VTime, VSpan)>,
    ) -> Key {
        let Lane { flow, head, deferred, kept, .. } = &mut self.lanes[of as usize];
        let node = &mut self.nodes.all[*deferred as usize];
        let (start_tag, span, at) = promote(*flow, Cost(node.span.0), kept);
        (node.start_tag, node.span) = (start_tag, span);
        let key = Key { start_tag, span, arrival: node.arrival, lane: of };
        *head = *deferred;
        let mut last = core::mem::replace(deferred, node.next);
        for _ in 1..AHEAD_MAX {
            // `NONE` is no node.
            let Some(node) = self.nodes.all.get_mut(*deferred as usize) else { break };
            let Some((start_tag, span)) = ahead(&at, Cost(node.span.0), kept) else { break };
            (node.start_tag, node.span) = (start_tag, span);
            last = core::mem::replace(deferred, node.next);
        }
        if *deferred != NONE {
            self.nodes.all[last as usize].next = DEFERRED;
        }
        key
    }

    /// The first lane has no requests any more.
    #[inline(never)]
    fn drop_lane(&mut self, lane: u32, leave: impl FnOnce(FlowId, L)) {
        self.order.remove_first();
        let (flow, kept) = self.vacate(lane);
        leave(flow, kept);
    }

    /// Frees a lane that has no requests and stands nowhere in the order.
    fn vacate(&mut self, lane: u32) -> (FlowId, L) {
        let Lane { flow, kept, .. } = self.lanes[lane as usize];
        self.index.remove(flow);
        self.lanes[lane as usize] = Lane { flow, head: NONE, tail: self.free_lane, deferred: NONE, kept: L::default() };
        self.free_lane = lane;
        (flow, kept)
    }
}

mod withdraw;

pub use withdraw::Left;

/// The place behind a flow's last request in a queue.
pub struct Behind<'a, P, L> {
    lane: &'a mut Lane<L>,
    nodes: &'a mut Nodes<P>,
}

impl<P: Copy + Default, L> Behind<'_, P, L> {
    /// The policy's data with the flow.
    #[inline]
    pub fn kept_mut(&mut self) -> &mut L {
        &mut self.lane.kept
    }

    /// One of the flow's requests waits here.
    #[inline]
    pub fn is_second(&self) -> bool {
        self.lane.head == self.lane.tail
    }

    /// Some of the flow's requests are deferred, and so must be new ones.
    #[inline]
    pub fn has_deferred(&self) -> bool {
        self.lane.deferred != NONE
    }

    /// Takes in a request there. It does not become the queue's first.
    ///
    /// # Panics
    /// As [`StageQueue::push`].
    #[inline]
    pub fn push(self, start_tag: VTime, span: VSpan, payload: P) {
        let (node, _) = self.nodes.take(start_tag, span, payload);
        let last = &mut self.nodes.all[self.lane.tail as usize];
        debug_assert!(
            !start_tag.is_before(last.start_tag),
            "start tag {start_tag:?} of flow {} goes back, the last was {:?}",
            self.lane.flow.0,
            last.start_tag
        );
        // The flow's first stays, so the order of lanes does too.
        last.next = node;
        self.lane.tail = node;
    }

    /// Takes in a request there that gets its interval later. Requests behind it must be deferred, too.
    ///
    /// # Panics
    /// As [`StageQueue::push`], and if the cost is out of range.
    #[inline]
    pub fn defer(self, cost: Cost, payload: P) {
        crate::flow::check(cost);
        let (node, _) = self.nodes.take(VTime::ZERO, VSpan(cost.0), payload);
        let last = &mut self.nodes.all[self.lane.tail as usize];
        if self.lane.deferred == NONE {
            (last.next, self.lane.deferred) = (DEFERRED, node);
        } else {
            last.next = node;
        }
        self.lane.tail = node;
    }
}

/// All requests of a queue, and the free places.
struct Nodes<P> {
    all: Box<[Node<P>]>,
    first_free: u32,
    /// Both wrap; never more apart than there are nodes.
    arrivals: u32,
    departures: u32,
}

impl<P: Copy> Nodes<P> {
    #[inline]
    fn in_use(&self) -> u32 {
        self.arrivals.wrapping_sub(self.departures)
    }

    /// Fills a free node. Returns it and its arrival number.
    #[inline]
    fn take(&mut self, start_tag: VTime, span: VSpan, payload: P) -> (u32, u32) {
        let node = self.first_free;
        // `NONE` is no node.
        let Some(free) = self.all.get_mut(node as usize) else { self.panic_full() };
        self.first_free = free.next;
        let arrival = self.arrivals;
        self.arrivals = arrival.wrapping_add(1);
        *free = Node { start_tag, span, arrival, next: NONE, payload };
        (node, arrival)
    }

    #[cold]
    #[inline(never)]
    fn panic_full(&self) -> ! {
        panic!("a stage queue of {} requests is full", self.all.len());
    }

    /// Frees a node. Returns what came behind it.
    #[inline]
    fn free(&mut self, node: u32) -> u32 {
        self.departures = self.departures.wrapping_add(1);
        let next = core::mem::replace(&mut self.all[node as usize].next, self.first_free);
        self.first_free = node;
        next
    }
}

/// Lanes by flow: open addressing, linear probing, never more than half full, no tombstones.
struct FlowIndex {
    /// (flow, lane); lane `NONE` is an empty place.
    places: Box<[(u32, u32)]>,
    /// Shifts a 32-bit hash down to a place.
    shift: u32,
}

impl FlowIndex {
    fn new(flows_max: usize) -> Self {
        let size = (2 * flows_max).next_power_of_two();
        FlowIndex { places: vec![(0, NONE); size].into_boxed_slice(), shift: 32 - size.trailing_zeros() }
    }

    /// Start of the flow's probe. Multiplying by 2^32 / golden ratio spreads the dense numbers that flows have.
    #[inline]
    fn home(&self, flow: u32) -> usize {
        (flow.wrapping_mul(0x9E37_79B1) >> self.shift) as usize
    }

    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    #[inline]
    fn find(&self, flow: FlowId) -> Option<u32> {
        let mut place = self.home(flow.0);
        loop {
            match self.places[place] {
                (_, NONE) => return None,
                (other, lane) if other == flow.0 => return Some(lane),
                _ => place = self.next(place),
            }
        }
    }

    /// The flow is not there yet.
    fn insert(&mut self, flow: FlowId, lane: u32) {
        let mut place = self.home(flow.0);
        while self.places[place].1 != NONE {
            place = self.next(place);
        }
        self.places[place] = (flow.0, lane);
    }

    /// The flow is there. Entries behind it move up if the hole would cut them off from where their probe begins.
    fn remove(&mut self, flow: FlowId) {
        let mut hole = self.home(flow.0);
        while self.places[hole].0 != flow.0 || self.places[hole].1 == NONE {
            hole = self.next(hole);
        }
        let mask = self.places.len() - 1;
        let mut place = self.next(hole);
        while self.places[place].1 != NONE {
            let home = self.home(self.places[place].0);
            // Distances are cyclic: the entry may move into the hole unless its home lies after the hole.
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(hole) & mask {
                self.places[hole] = self.places[place];
                hole = place;
            }
            place = self.next(place);
        }
        self.places[hole] = (0, NONE);
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use core::cell::Cell;
    use proptest::prelude::*;

    type Queue = StageQueue<u32>;

    fn staged(flow: u32, tag: u64, payload: u32) -> Staged<u32> {
        Staged { flow: FlowId(flow), start_tag: VTime::from_raw(tag), span: VSpan(64), payload }
    }

    #[test]
    fn requests_leave_by_start_tag_across_the_wrap() {
        // Tags MAX-1 < MAX < 0 < 1 on the circle, pushed out of order by four flows.
        let mut queue = Queue::new(4);
        assert!(queue.push(staged(0, 1, 0)));
        assert!(queue.push(staged(1, u64::MAX, 1)));
        assert!(!queue.push(staged(2, 0, 2)));
        assert!(queue.push(staged(3, u64::MAX - 1, 3)));
        let order: Vec<u32> = core::iter::from_fn(|| queue.pop()).map(|request| request.payload).collect();
        assert_eq!(order, [3, 1, 2, 0]);
    }

    #[test]
    fn a_queue_tells_how_many_flows_and_requests_it_has() {
        let mut queue = Queue::new(4);
        assert_eq!((queue.is_empty(), queue.flows(), queue.len(), queue.capacity()), (true, 0, 0, 4));
        for request in [staged(0, 100, 0), staged(0, 200, 1), staged(3, 150, 2)] {
            queue.push(request);
        }
        assert_eq!((queue.is_empty(), queue.flows(), queue.len()), (false, 2, 3));
        let left = core::iter::from_fn(|| queue.pop().map(|_| (queue.flows(), queue.first_is_alone())));
        // Flow 0 has one more behind 3's only one.
        assert_eq!(left.collect::<Vec<_>>(), [(2, true), (1, true), (0, false)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn deferred_requests_get_their_intervals_one_after_another_as_they_become_first() {
        let mut queue = Queue::new(8);
        queue.push(staged(0, 100, 0));
        for (cost, payload) in [(5, 1), (6, 2), (7, 3)] {
            queue.behind(FlowId(0)).expect("it has a request here").defer(Cost(cost), payload);
        }
        queue.push(staged(1, 250, 9));
        let mut order = Vec::new();
        while let Some(first) = queue.peek() {
            order.push((first.payload, first.start_tag.raw(), first.span.0));
            // Each begins 100 after the one before it, and is as long as it costs.
            let tag = VTime::from_raw(first.start_tag.raw() + 100);
            queue.drop_first_and(
                |flow, cost, ()| {
                    assert_eq!(flow, FlowId(0));
                    (tag, VSpan(cost.0), ())
                },
                |(), _, ()| None,
                |_, ()| (),
            );
        }
        assert_eq!(order, [(0, 100, 64), (1, 200, 5), (9, 250, 64), (2, 300, 6), (3, 400, 7)]);
    }

    #[test]
    fn requests_go_behind_a_promoted_one_wherever_on_the_circle_it_starts() {
        let mut queue = Queue::new(4);
        let tag = 1 << 63;
        queue.push(staged(0, tag, 0));
        let behind = queue.behind(FlowId(0)).expect("it has one");
        assert!(behind.is_second());
        behind.defer(Cost(1), 1);
        assert!(!queue.behind(FlowId(0)).expect("it has two").is_second());
        queue.drop_first_and(|_, _, ()| (VTime::from_raw(tag + 10), VSpan(64), ()), |(), _, ()| None, |_, ()| ());
        queue.push(staged(0, tag + 20, 2));
        let order: Vec<u64> =
            core::iter::from_fn(|| queue.pop()).map(|request| request.start_tag.raw() - tag).collect();
        assert_eq!(order, [10, 20]);
    }

    #[test]
    fn a_promoted_request_goes_behind_an_equal_one_that_came_before_it() {
        let mut queue = Queue::new(4);
        queue.push(staged(0, 100, 0));
        queue.push(staged(1, 200, 1));
        queue.behind(FlowId(0)).expect("it has one").defer(Cost(64), 2);
        queue.drop_first_and(|_, _, ()| (VTime::from_raw(200), VSpan(64), ()), |(), _, ()| None, |_, ()| ());
        assert_eq!(core::iter::from_fn(|| queue.pop()).map(|request| request.payload).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn some_deferred_requests_get_their_intervals_together_and_more_may_be_deferred_behind() {
        let mut queue = Queue::new(64);
        queue.push(staged(0, 100, 0));
        let mut order = Vec::new();
        let (tag, asked) = (Cell::new(100), Cell::new(0));
        let next_tag = || {
            tag.set(tag.get() + 10);
            VTime::from_raw(tag.get())
        };
        let defer = |queue: &mut Queue, payload| {
            let behind = queue.behind(FlowId(0)).expect("it has a request here");
            assert_eq!(behind.has_deferred(), payload > 1);
            behind.defer(Cost(1), payload);
        };
        (1..40).for_each(|payload| defer(&mut queue, payload));
        while let Some(first) = queue.peek() {
            order.push((first.payload, first.start_tag.raw()));
            queue.drop_first_and(
                |_, cost, ()| {
                    asked.set(0);
                    (next_tag(), VSpan(cost.0), ())
                },
                |(), cost, ()| {
                    // Five at a time, and then as many as go.
                    asked.set(asked.get() + 1);
                    (asked.get() < 5 || order.len() >= 12).then(|| (next_tag(), VSpan(cost.0)))
                },
                |_, ()| (),
            );
            if order.len() == 20 {
                assert!(queue.behind(FlowId(0)).expect("20 are left").has_deferred());
                queue.behind(FlowId(0)).expect("it has a request here").defer(Cost(1), 40);
            }
            if order.len() == 35 {
                let behind = queue.behind(FlowId(0)).expect("5 are left");
                assert!(!behind.has_deferred());
                behind.push(next_tag(), VSpan(1), 41);
            }
        }
        let payloads: Vec<u32> = order.iter().map(|&(payload, _)| payload).collect();
        assert_eq!(payloads, (0..42).collect::<Vec<_>>());
        assert!(order.iter().map(|&(_, tag)| tag).is_sorted());
    }

    #[test]
    #[should_panic(expected = "is out of range, allowed is 1 to")]
    fn a_deferred_request_of_a_cost_beyond_the_largest_is_refused() {
        let mut queue = Queue::new(4);
        queue.push(staged(0, 100, 0));
        queue.behind(FlowId(0)).expect("it has a request here").defer(Cost(crate::cost::COST_MAX.0 + 1), 1);
    }

    #[test]
    fn equal_tags_leave_the_shorter_first() {
        let mut queue = Queue::new(2);
        assert!(queue.push(Staged { span: VSpan(128 << 10), ..staged(0, 64, 0) }));
        assert!(queue.push(Staged { span: VSpan(4 << 10), ..staged(1, 64, 1) }));
        assert_eq!([queue.pop().unwrap().payload, queue.pop().unwrap().payload], [1, 0]);
    }

    #[test]
    fn equal_intervals_leave_in_order_of_arrival() {
        let mut queue = Queue::new(8);
        for n in 0..8 {
            queue.push(staged(7 - n, 64, n));
        }
        let order: Vec<u32> = core::iter::from_fn(|| queue.pop()).map(|request| request.payload).collect();
        assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn only_a_new_first_is_announced() {
        let mut queue = Queue::new(4);
        assert!(queue.push(staged(0, 100, 0)));
        assert!(!queue.push(staged(0, 200, 1)), "behind its own flow's request");
        assert!(!queue.push(staged(1, 100, 2)), "a tie is not earlier");
        assert!(queue.push(staged(2, 99, 3)));
        assert_eq!(queue.lead(), Some(VTime::from_raw(99)));
    }

    #[test]
    fn dense_flow_numbers_are_found_with_a_probe_or_two() {
        let mut index = FlowIndex::new(1024);
        (0..1024).for_each(|flow| index.insert(FlowId(flow), flow));
        let taken = (0..).zip(&index.places).filter(|(_, (_, lane))| *lane != NONE);
        let probes: usize = taken.map(|(place, (flow, _))| 1 + usize::abs_diff(place, index.home(*flow))).sum();
        assert!(probes < 2 * 1024, "{probes} probes for 1024 flows");
    }

    #[test]
    #[should_panic(expected = "a stage queue of 2 requests is full")]
    fn more_than_capacity_is_refused() {
        let mut queue = Queue::new(2);
        for n in 0..3 {
            queue.push(staged(n, 0, n));
        }
    }

    proptest! {
        // Agreement with a sorted vector, with flow ids that collide in the index (16 homes, 40 ids), tags around the
        // wrap, and a queue small enough to be full often.
        #[test]
        fn agrees_with_a_sorted_list(steps in prop::collection::vec((any::<bool>(), 0u32..40, 0u64..5), 1..400)) {
            let mut queue = Queue::new(8);
            let mut model: Vec<(u64, u64, u32, u32)> = Vec::new();
            let start = VTime::from_raw(u64::MAX - 20);
            let mut last = [0u64; 40];
            for (n, (push, flow, step)) in steps.into_iter().enumerate() {
                let n = n as u32;
                if push && model.len() < 8 {
                    last[flow as usize] += step;
                    let offset = last[flow as usize];
                    // Three lengths, one per flow: those of one flow stay in order, those of others tie.
                    let span = u64::from(flow % 3);
                    let first = model.iter().all(|&(other, other_span, ..)| (offset, span) < (other, other_span));
                    let start_tag = start.plus(VSpan(offset));
                    let request = Staged { flow: FlowId(flow), start_tag, span: VSpan(span), payload: n };
                    prop_assert_eq!(queue.push(request), first);
                    model.push((offset, span, n, flow));
                    model.sort();
                } else {
                    let expected = if model.is_empty() { None } else { Some(model.remove(0)) };
                    let peeked = queue.peek();
                    let popped = queue.pop();
                    prop_assert_eq!(peeked, popped);
                    let popped = popped.map(|r| (r.start_tag.since(start) as u64, r.span.0, r.payload, r.flow.0));
                    prop_assert_eq!(popped, expected);
                }
                prop_assert_eq!(queue.len(), model.len());
                let flows: std::collections::BTreeSet<u32> = model.iter().map(|request| request.3).collect();
                prop_assert_eq!((queue.flows(), queue.is_empty()), (flows.len(), model.is_empty()));
                prop_assert_eq!(queue.lead().map(|lead| lead.since(start) as u64), model.first().map(|m| m.0));
            }
        }
    }
}
