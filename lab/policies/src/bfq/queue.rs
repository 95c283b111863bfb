//! The requests of one process: first in offset order from where the last one was, unless one is too old.
//!
//! A process is a worker as far as one tenant uses it: all requests of a flow that come in at one hctx, sync and async
//! apart.
//!
//! # Shape
//! ```text
//!   ahead:   offsets from the sweep's place on   ── the smallest goes next
//!   behind:  smaller offsets                     ── become "ahead" when that is empty: the sweep starts again
//!   arrival: all of them, oldest first           ── goes next if its expiry has passed; the sweep stays where it is
//! ```
//! There is no seeking back (back_seek_max, back_seek_penalty): on flash it would save nothing.

use super::heap::{Heap, Linked, Links, NONE, Order};
use super::service_tree::{Entity, Scheduled};
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::Handle;
use mqfq_sched::sync::touch;
use mqfq_sched::topology::HctxId;

/// A staged request. A free one has its successor in `later`.
#[derive(Clone, Copy)]
pub(super) struct Request {
    links: Links,
    /// Index of its queue's heap that it is in.
    heap: u8,
    earlier: u32,
    later: u32,
    offset_bytes: u64,
    /// Order among equal offsets.
    arrival: u64,
    expires_ns: u64,
    pub(super) handle: Handle,
    pub(super) units: u32,
    /// Bytes that it is charged.
    pub(super) charge_bytes: u64,
}

impl Linked for Request {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

struct ByOffset;

impl Order<Request> for ByOffset {
    fn is_before(a: &Request, b: &Request) -> bool {
        (a.offset_bytes, a.arrival) < (b.offset_bytes, b.arrival)
    }
}

/// All staged requests of a device.
pub(super) struct Requests {
    all: Box<[Request]>,
    free: u32,
    arrivals: u64,
}

impl Requests {
    /// Room for so many.
    pub(super) fn new(capacity: usize) -> Requests {
        let free = |n: usize| Request {
            links: Links::OUT,
            heap: 0,
            earlier: NONE,
            later: if n + 1 == capacity { NONE } else { n as u32 + 1 },
            offset_bytes: 0,
            arrival: 0,
            expires_ns: 0,
            handle: Handle(0),
            units: 0,
            charge_bytes: 0,
        };
        Requests { all: (0..capacity).map(free).collect(), free: if capacity == 0 { NONE } else { 0 }, arrivals: 0 }
    }
}

/// A request as it comes in.
pub(super) struct Arrival {
    pub(super) offset_bytes: u64,
    pub(super) expires_ns: u64,
    pub(super) handle: Handle,
    pub(super) units: u32,
    pub(super) charge_bytes: u64,
}

/// How soon the process asks again after an answer: a mean that forgets, of times that are cut at `cap_ns`.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct ThinkTime {
    mean_ns: u64,
}

impl ThinkTime {
    pub(super) fn sample(&mut self, think_ns: u64, cap_ns: u64) {
        self.mean_ns = (self.mean_ns * 7 + think_ns.min(cap_ns)) / 8;
    }

    pub(super) fn mean_ns(&self) -> u64 {
        self.mean_ns
    }
}

/// A process's queue.
pub(super) struct Queue {
    pub(super) entity: Entity,
    pub(super) flow: FlowId,
    pub(super) hctx: HctxId,
    pub(super) is_sync: bool,
    /// Requests ahead of the sweep and behind it; the two change places when the sweep starts again.
    heaps: [Heap<ByOffset>; 2],
    ahead: u8,
    oldest: u32,
    newest: u32,
    sweep_bytes: u64,
    pub(super) staged: u32,
    pub(super) in_flight: u32,
    /// Budget that the feedback allows it in its next turn.
    pub(super) budget_bytes: u64,
    pub(super) think: ThinkTime,
    /// 0: nothing has completed.
    pub(super) completed_ns: u64,
    /// Neighbours among the spare queues, which can be given to another process.
    pub(super) spare_earlier: u32,
    pub(super) spare_later: u32,
    pub(super) is_spare: bool,
}

impl Scheduled for Queue {
    fn entity(&mut self) -> &mut Entity {
        &mut self.entity
    }
    fn entity_ref(&self) -> &Entity {
        &self.entity
    }
}

impl Queue {
    /// An empty one.
    pub(super) const fn new(flow: FlowId, hctx: HctxId, is_sync: bool, budget_bytes: u64) -> Queue {
        Queue {
            entity: Entity::new(1),
            flow,
            hctx,
            is_sync,
            heaps: [Heap::EMPTY, Heap::EMPTY],
            ahead: 0,
            oldest: NONE,
            newest: NONE,
            sweep_bytes: 0,
            staged: 0,
            in_flight: 0,
            budget_bytes,
            think: ThinkTime { mean_ns: 0 },
            completed_ns: 0,
            spare_earlier: NONE,
            spare_later: NONE,
            is_spare: false,
        }
    }

    /// Takes in a request.
    ///
    /// # Panics
    /// If the slab is full, which the callers' capacities exclude.
    pub(super) fn push(&mut self, requests: &mut Requests, arrival: Arrival) {
        let place = requests.free;
        assert!(place != NONE, "a slab of {} requests is full", requests.all.len());
        let Arrival { offset_bytes, expires_ns, handle, units, charge_bytes } = arrival;
        requests.arrivals += 1;
        touch(&requests.all, place as usize);
        let heap = if offset_bytes < self.sweep_bytes { 1 - self.ahead } else { self.ahead };
        let request = &mut requests.all[place as usize];
        requests.free = request.later;
        *request = Request {
            links: Links::OUT,
            heap,
            earlier: self.newest,
            later: NONE,
            offset_bytes,
            arrival: requests.arrivals,
            expires_ns,
            handle,
            units,
            charge_bytes,
        };
        self.heaps[usize::from(heap)].insert(&mut requests.all, place);
        match self.newest {
            NONE => self.oldest = place,
            newest => {
                touch(&requests.all, newest as usize);
                requests.all[newest as usize].later = place;
            }
        }
        self.newest = place;
        self.staged += 1;
    }

    /// The request that goes next, and its charge; `None` if there is none.
    pub(super) fn next(&mut self, requests: &Requests, now_ns: u64) -> Option<(u32, u64)> {
        if self.oldest == NONE {
            return None;
        }
        touch(&requests.all, self.oldest as usize);
        let place = if requests.all[self.oldest as usize].expires_ns <= now_ns {
            self.oldest
        } else if let Some(place) = self.heaps[usize::from(self.ahead)].first() {
            place
        } else {
            // The sweep starts again at the smallest.
            self.ahead = 1 - self.ahead;
            self.sweep_bytes = 0;
            self.heaps[usize::from(self.ahead)].first().expect("what is staged is ahead or behind")
        };
        Some((place, requests.all[place as usize].charge_bytes))
    }

    /// Takes out what [`Queue::next`] named.
    pub(super) fn take(&mut self, requests: &mut Requests, place: u32) -> Request {
        let Request { heap, earlier, later, offset_bytes, .. } = requests.all[place as usize];
        let heap = &mut self.heaps[usize::from(heap)];
        if heap.first() == Some(place) {
            // The sweep goes on from a request ahead; requests of the other heap lie behind it.
            self.sweep_bytes = self.sweep_bytes.max(offset_bytes);
        }
        heap.remove(&mut requests.all, place);
        match earlier {
            NONE => self.oldest = later,
            _ => requests.all[earlier as usize].later = later,
        }
        match later {
            NONE => self.newest = earlier,
            _ => requests.all[later as usize].earlier = earlier,
        }
        self.staged -= 1;
        let request = requests.all[place as usize];
        requests.all[place as usize].later = requests.free;
        requests.free = place;
        request
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    /// Stages requests at these offsets and returns the order in which they go, each offset with its expiry.
    fn order(steps: &[(&[(u64, u64)], usize)], now_ns: u64) -> Vec<u64> {
        let mut requests = Requests::new(8);
        let mut queue = Queue::new(FlowId(0), HctxId(0), true, 0);
        let mut gone = Vec::new();
        for &(arrivals, takes) in steps {
            for &(offset_bytes, expires_ns) in arrivals {
                let handle = Handle(offset_bytes as u32);
                queue.push(&mut requests, Arrival { offset_bytes, expires_ns, handle, units: 1, charge_bytes: 1 });
            }
            for _ in 0..takes {
                let (place, _) = queue.next(&requests, now_ns).expect("something is staged");
                gone.push(u64::from(queue.take(&mut requests, place).handle.0));
            }
        }
        assert_eq!(queue.next(&requests, now_ns).map(|(place, _)| place), None, "all were taken");
        assert_eq!((queue.staged, queue.oldest, queue.newest), (0, NONE, NONE));
        gone
    }

    #[test]
    fn requests_go_in_offset_order_from_the_last_and_start_again_at_the_smallest() {
        let steps: &[(&[(u64, u64)], usize)] =
            &[(&[(50, 9), (10, 9), (30, 9)], 2), (&[(20, 9), (40, 9), (60, 9)], 3), (&[(5, 9)], 2)];
        assert_eq!(order(steps, 0), [10, 30, 40, 50, 60, 5, 20]);
    }

    #[test]
    fn an_expired_one_goes_first_and_the_sweep_goes_on() {
        // At time 5, 90 has expired (and then 20), which came before the rest.
        let steps: &[(&[(u64, u64)], usize)] = &[(&[(10, 9)], 1), (&[(90, 4), (20, 5), (30, 9), (40, 9)], 4)];
        assert_eq!(order(steps, 5), [10, 90, 20, 30, 40]);
    }
}
