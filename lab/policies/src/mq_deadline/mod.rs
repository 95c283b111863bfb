//! Policy `mq-deadline`: sector order in batches, reads before writes, and times after which a request waits no longer.
//!
//! Answers: what does the elevator that most distributions give a drive do for tenants? Source: the kernel's
//! documentation of deadline-iosched (what a batch is, how reads are preferred, what expires), and of the priority
//! classes and their ageing that mq-deadline added. Written from that; where it leaves a choice, or we have no
//! counterpart, this text says what is done here.
//!
//! # Shape
//! A central queue (`central.rs`). Its order, per priority class:
//! ```text
//!                 by arrival (= by expiry)        by offset (offset_order.rs)     next offset
//!   reads         17 ── 21 ── 22                   22 · 17 · 21                    1 MiB: where the last read ended
//!   writes        18 ── 19                         19 · 18                         none yet
//! ```
//! and before all of them the flushes, by arrival: a flush has no place on the device, and every tenant behind it may
//! wait for it. Discards stand among the writes.
//!
//! # Order of dispatch
//! 1. A flush.
//! 2. A request that a higher class has kept waiting for `prio_aging_expire`: the oldest of the best such class.
//! 3. Of the best class that has any, by batch: the next in sector order, as long as the batch has fewer than
//!    `fifo_batch` requests and there is one at or after the place where the last of its direction ended. Else a batch
//!    begins, of reads if there are any, unless writes wait and `writes_starved` batches of reads have passed them. It
//!    begins at the oldest request if that has expired or nothing lies ahead, else with the next in sector order.
//!
//! While a class has requests staged or on the device, the lower ones wait (but for 2). If that is all that keeps them,
//! a worker is told when the first of them will have waited long enough (`Pick::Later`).
//!
//! # Differences from Linux's
//! * The class is the tenant's (`set_class`), not the process's: an I/O from a socket has no process.
//! * Merging is the block layer's, for all policies (`front_merges` is not here). So is the bound on staged requests:
//!   what `async_depth` takes from asynchronous requests there, tenants' own bounds take here.
//! * D bounds what is on the device; there the number of the device's tags does. Batches, directions and counters are
//!   per class.
//!
//! # Invariants
//! C1 to C3 of `central.rs`, and
//! D1. A staged request stands in one list by arrival, and unless it is a flush in one tree, those of its class and
//!     direction.
//! D2. A class counts as on the device the requests of the flows that have it *now*, so it goes to 0 whenever the
//!     device is empty.
//! D3. If a unit is free and anything is staged, a request goes, or a higher class has one on the device and a time is
//!     told.
//!
//! # Cost
//! A lock per operation; under it O(log staged), on average.

mod options;

pub use options::MqDeadlineOptions;

use crate::central::{Central, CentralQueue, Next, Waiting};
use crate::offset_order::{OffsetOrder, OffsetTree};
use mqfq_sched::class::PriorityClass;
use mqfq_sched::cost::CostKind;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{
    Descriptor, DispatchToken, Done, Entry, Kick, NotDirect, Pick, Policy, PolicyError, PolicyOptions, Registered,
};
use mqfq_sched::topology::{HctxId, Topology};

/// "No request".
const NONE: u32 = u32::MAX;

kind!(MqDeadline);

/// The deadline elevator: one central queue under one lock, in batches of sector order, with an expiry per direction.
pub struct MqDeadline {
    options: PolicyOptions,
    own: MqDeadlineOptions,
    central: Central<Deadlines>,
}

/// Direction in which a request moves bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Read,
    Write,
}

#[derive(Clone, Copy)]
struct Request {
    flow: FlowId,
    waiting: Waiting,
    submitted_ns: u64,
    end_bytes: u64,
    /// Neighbours by arrival; of a free place, `next` is the next free one.
    previous: u32,
    next: u32,
}

/// Requests by arrival.
#[derive(Clone, Copy)]
struct Line {
    first: u32,
    last: u32,
}

/// The staged requests of one class in one direction.
#[derive(Clone, Copy)]
struct List {
    line: Line,
    tree: OffsetTree,
    /// End of the last request of them that was dispatched.
    position_bytes: Option<u64>,
}

#[derive(Clone, Copy)]
struct Class {
    reads: List,
    writes: List,
    /// Direction of the batch.
    direction: Direction,
    /// Requests of it that were dispatched.
    in_batch: u32,
    /// Batches of reads since the last of writes, while writes waited.
    starved: u32,
    /// Requests on the device or granted.
    on_device: u32,
}

#[derive(Clone, Copy)]
struct Flow {
    class: PriorityClass,
    on_device: u32,
}

/// State under the lock.
struct Deadlines {
    requests: Box<[Request]>,
    first_free: u32,
    arrivals: u64,
    /// The latest time that a worker has brought.
    now_ns: u64,
    order: OffsetOrder,
    flushes: Line,
    classes: [Class; PriorityClass::ALL.len()],
    flows: Box<[Flow]>,
}

impl MqDeadline {
    /// A scheduler for `hctx_count` queues. The options have been validated.
    pub(super) fn new(options: &PolicyOptions, hctx_count: usize, flows: usize) -> Self {
        let order = Deadlines::new(0, vec![Flow { class: PriorityClass::default(), on_device: 0 }; flows].into());
        let central = Central::new(options.depth, hctx_count, order);
        MqDeadline { options: *options, own: options.own.get(), central }
    }

    /// Units of D that are neither on the device nor granted. Negative while a debt is paid off.
    pub fn free_units(&self) -> i64 {
        self.central.free_units()
    }
}

impl Line {
    const EMPTY: Line = Line { first: NONE, last: NONE };
}

impl List {
    const EMPTY: List = List { line: Line::EMPTY, tree: OffsetTree::EMPTY, position_bytes: None };

    fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }
}

impl Class {
    const EMPTY: Class = Class {
        reads: List::EMPTY,
        writes: List::EMPTY,
        direction: Direction::Read,
        in_batch: 0,
        starved: 0,
        on_device: 0,
    };

    fn list(&self, direction: Direction) -> &List {
        match direction {
            Direction::Read => &self.reads,
            Direction::Write => &self.writes,
        }
    }

    fn list_mut(&mut self, direction: Direction) -> &mut List {
        match direction {
            Direction::Read => &mut self.reads,
            Direction::Write => &mut self.writes,
        }
    }

    fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }
}

impl Deadlines {
    fn new(capacity_requests: usize, flows: Box<[Flow]>) -> Deadlines {
        let capacity = u32::try_from(capacity_requests).ok().filter(|&capacity| capacity < NONE);
        let capacity = capacity.expect("fewer than 2^32 - 1 requests are staged on a device");
        let next = |n: u32| if n + 1 == capacity { NONE } else { n + 1 };
        let request = |n| Request {
            flow: FlowId(0),
            waiting: Waiting::default(),
            submitted_ns: 0,
            end_bytes: 0,
            previous: NONE,
            next: next(n),
        };
        Deadlines {
            requests: (0..capacity).map(request).collect(),
            first_free: if capacity == 0 { NONE } else { 0 },
            arrivals: 0,
            now_ns: 0,
            order: OffsetOrder::new(capacity_requests),
            flushes: Line::EMPTY,
            classes: [Class::EMPTY; PriorityClass::ALL.len()],
            flows,
        }
    }

    fn is_empty(&self) -> bool {
        self.flushes.first == NONE && self.classes.iter().all(Class::is_empty)
    }

    fn stage(&mut self, entry: Entry, waiting: Waiting, now_ns: u64) {
        let Entry { flow, kind, offset_bytes, length_bytes, .. } = entry;
        let request = self.first_free;
        let place = &mut self.requests[request as usize];
        self.first_free = place.next;
        let end_bytes = offset_bytes.saturating_add(length_bytes.into());
        *place = Request { flow, waiting, submitted_ns: now_ns, end_bytes, previous: NONE, next: NONE };
        let Some(direction) = direction(kind) else {
            return append(&mut self.requests, &mut self.flushes, request);
        };
        let list = self.classes[self.flows[flow.0 as usize].class as usize].list_mut(direction);
        append(&mut self.requests, &mut list.line, request);
        self.arrivals += 1;
        self.order.insert(&mut list.tree, request, offset_bytes, self.arrivals);
    }

    /// The request that goes, by the rules of the file's text.
    fn next(&mut self, options: &MqDeadlineOptions) -> Next {
        if self.flushes.first != NONE {
            let flush = self.flushes.first;
            unlink(&mut self.requests, &mut self.flushes, flush);
            return self.leave(flush);
        }
        // `ahead`: a class above this one has requests, staged or on the device.
        let (mut first, mut ahead, mut later_ns) = (None, false, None);
        for class in 0..self.classes.len() {
            if !self.classes[class].is_empty() {
                if !ahead {
                    first = Some(class);
                } else {
                    let (direction, submitted_ns) = self.oldest(class);
                    let at_ns = submitted_ns.saturating_add(options.prio_aging_expire_ns);
                    if at_ns <= self.now_ns {
                        return self.dispatch(class, direction, self.classes[class].list(direction).line.first);
                    }
                    later_ns = Some(later_ns.map_or(at_ns, |earlier: u64| earlier.min(at_ns)));
                }
            }
            ahead |= !self.classes[class].is_empty() || self.classes[class].on_device > 0;
        }
        match (first, later_ns) {
            (Some(class), _) => self.next_of(class, options),
            (None, Some(at_ns)) => Next::Later(at_ns),
            (None, None) => Next::Nothing,
        }
    }

    /// The direction and the time of the oldest request of a class that has some.
    fn oldest(&self, class: usize) -> (Direction, u64) {
        let Class { reads, writes, .. } = &self.classes[class];
        let submitted_ns = |list: &List| self.requests.get(list.line.first as usize).map(|first| first.submitted_ns);
        match (submitted_ns(reads), submitted_ns(writes)) {
            (Some(read_ns), Some(write_ns)) if write_ns < read_ns => (Direction::Write, write_ns),
            (Some(read_ns), _) => (Direction::Read, read_ns),
            (None, Some(write_ns)) => (Direction::Write, write_ns),
            (None, None) => unreachable!("class {class} has nothing staged"),
        }
    }

    /// The next request of a class that has some: goes on with the batch, or begins one.
    fn next_of(&mut self, class: usize, options: &MqDeadlineOptions) -> Next {
        let Class { direction, in_batch, starved, .. } = self.classes[class];
        if (1..options.fifo_batch).contains(&in_batch)
            && let Some(request) = self.ahead(self.classes[class].list(direction))
        {
            self.classes[class].in_batch += 1;
            return self.dispatch(class, direction, request);
        }
        let (reads, writes) = (!self.classes[class].reads.is_empty(), !self.classes[class].writes.is_empty());
        let direction = if reads && (!writes || starved < options.writes_starved) {
            self.classes[class].starved += u32::from(writes);
            Direction::Read
        } else {
            self.classes[class].starved = 0;
            Direction::Write
        };
        let expire_ns = match direction {
            Direction::Read => options.read_expire_ns,
            Direction::Write => options.write_expire_ns,
        };
        let list = self.classes[class].list(direction);
        let oldest = list.line.first;
        let has_expired = self.requests[oldest as usize].submitted_ns.saturating_add(expire_ns) <= self.now_ns;
        let request = if has_expired { oldest } else { self.ahead(list).unwrap_or(oldest) };
        self.classes[class].direction = direction;
        self.classes[class].in_batch = 1;
        self.dispatch(class, direction, request)
    }

    /// The next in sector order from where the last one ended.
    fn ahead(&self, list: &List) -> Option<u32> {
        list.position_bytes.and_then(|position_bytes| self.order.at_or_after(&list.tree, position_bytes))
    }

    fn dispatch(&mut self, class: usize, direction: Direction, request: u32) -> Next {
        let list = self.classes[class].list_mut(direction);
        list.position_bytes = Some(self.requests[request as usize].end_bytes);
        unlink(&mut self.requests, &mut list.line, request);
        self.order.remove(&mut list.tree, request);
        self.leave(request)
    }

    /// A request that is in no list any more goes to the device; its place is free.
    fn leave(&mut self, request: u32) -> Next {
        let place = &mut self.requests[request as usize];
        let Request { flow, waiting, .. } = *place;
        place.next = self.first_free;
        self.first_free = request;
        let of = &mut self.flows[flow.0 as usize];
        of.on_device += 1;
        self.classes[of.class as usize].on_device += 1;
        Next::Request(flow, waiting)
    }

    fn done(&mut self, flow: FlowId) {
        let flow = &mut self.flows[flow.0 as usize];
        flow.on_device -= 1;
        self.classes[flow.class as usize].on_device -= 1;
    }

    /// Staged requests stay where they are; requests on the device count for the new class from now on (D2).
    fn set_class(&mut self, flow: FlowId, class: PriorityClass) {
        let flow = &mut self.flows[flow.0 as usize];
        self.classes[flow.class as usize].on_device -= flow.on_device;
        self.classes[class as usize].on_device += flow.on_device;
        flow.class = class;
    }
}

/// `None`: it has no place on the device.
fn direction(kind: CostKind) -> Option<Direction> {
    match kind {
        CostKind::Read => Some(Direction::Read),
        CostKind::Write | CostKind::Discard => Some(Direction::Write),
        CostKind::Flush => None,
    }
}

fn append(requests: &mut [Request], line: &mut Line, request: u32) {
    requests[request as usize].previous = line.last;
    match requests.get_mut(line.last as usize) {
        Some(last) => last.next = request,
        None => line.first = request,
    }
    line.last = request;
}

fn unlink(requests: &mut [Request], line: &mut Line, request: u32) {
    let Request { previous, next, .. } = requests[request as usize];
    match requests.get_mut(previous as usize) {
        Some(previous) => previous.next = next,
        None => line.first = next,
    }
    match requests.get_mut(next as usize) {
        Some(next) => next.previous = previous,
        None => line.last = previous,
    }
}

impl Policy for MqDeadline {
    type Queue = CentralQueue;
    type Direct<'a> = NotDirect;

    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> CentralQueue {
        self.central.open_queue(hctx, capacity_requests, |order, capacity| {
            assert!(order.is_empty(), "hctx {} opens its queue after requests were staged", hctx.0);
            *order = Deadlines::new(capacity, std::mem::take(&mut order.flows));
        })
    }

    fn submit(&self, queue: &mut CentralQueue, entry: Entry, now_ns: u64, _kick: &mut impl Kick) {
        let units = self.options.units_of(&entry);
        self.central.submit(queue, |order, hctx| {
            order.now_ns = order.now_ns.max(now_ns);
            order.stage(entry, Waiting { handle: entry.handle, units, hctx }, now_ns);
        });
    }

    fn pick(&self, queue: &mut CentralQueue, now_ns: u64, kick: &mut impl Kick) -> Pick {
        self.central.pick(queue, kick, |order| {
            order.now_ns = order.now_ns.max(now_ns);
            order.next(&self.own)
        })
    }

    fn complete(
        &self,
        _queue: &mut CentralQueue,
        done: Done,
        token: DispatchToken,
        _now_ns: u64,
        _kick: &mut impl Kick,
    ) {
        self.central.complete(token, |order, _| order.done(done.flow));
    }

    fn pause(&self, queue: &mut CentralQueue, kick: &mut impl Kick) {
        self.central.pause(queue, kick, |order| order.next(&self.own));
    }

    fn set_weight(&self, _flow: FlowId, _weight: Weight) {}

    fn retire(&self, flow: FlowId) -> bool {
        self.set_class(flow, PriorityClass::default());
        true
    }

    fn set_class(&self, flow: FlowId, class: PriorityClass) {
        self.central.with(|order| order.set_class(flow, class));
    }

    fn staged(&self, queue: &CentralQueue) -> usize {
        queue.staged()
    }
}

impl Registered for MqDeadline {
    const ABOUT: Descriptor = Descriptor {
        has_depth: true,
        is_elevator: true,
        ..Descriptor::new("mq-deadline", "sector order in batches, and expiry times; one queue, one lock")
    };

    type Options = MqDeadlineOptions;

    fn make(options: &PolicyOptions, topology: &Topology, flows: &[Weight]) -> Result<Self, PolicyError> {
        Ok(MqDeadline::new(options, topology.hctx_count(), flows.len()))
    }

    fn free_units(&self) -> Option<i64> {
        Some(self.free_units())
    }
}

#[cfg(all(test, mqfq_loom))]
mod loom_tests {
    //! Model check of the grant to another worker, with what wakes that worker.
    //!
    //! Run: `cargo xtask loom`.

    use super::*;
    use crate::MQ_DEADLINE;
    use crate::sleeper_model::{one_token_passes_to_a_worker_that_falls_asleep, options};
    use mqfq_sched::sync::model::Builder;

    /// Race: A completes, picks, and grants B's request, while B, which has just found no token, falls asleep (C2).
    /// Shown to fail if `Central::pick` does not kick the owner of a grant.
    #[test]
    fn loom_grant_by_deadline_to_another_worker_meets_it_falling_asleep() {
        Builder::new().check(|| {
            let options = options(MQ_DEADLINE);
            one_token_passes_to_a_worker_that_falls_asleep(MqDeadline::new(&options, 2, 2));
        });
    }
}
