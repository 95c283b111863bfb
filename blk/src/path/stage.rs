//! Bounded staging: how much of each flow one worker holds before it tells the client to wait.
//!
//! The *order* of staged requests is the policy's (`mqfq_sched::stage_queue`). Here is only the bound: a flow that has
//! its share of requests or bytes staged is refused, its clients stop reading their sockets, and no other flow notices.
//! Bytes are bounded too, because 256 requests of 32 MiB are 8 GiB.
//!
//! Cost: 40 bytes for each flow that may submit here, 4 for each that may not: of 100,000 tenants on 256 workers, most
//! are nothing to most workers.

use mqfq_sched::flow::FlowId;

/// Bounds for one flow on one worker. A flow that may submit at all may always stage one request, however long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StageLimits {
    /// Requests. 0: the flow never submits here. A request of it is refused, it is never told of room, and
    /// nothing is kept for it.
    pub requests_max: u32,
    /// Payload bytes.
    pub bytes_max: u64,
}

impl StageLimits {
    /// 256 requests and 64 MiB: two of the deepest queues in the papers, or two requests of the largest NBD size.
    pub const DEFAULT: StageLimits = StageLimits { requests_max: 256, bytes_max: 64 << 20 };
}

/// Times in a row that a flow is not held back, at most: a tenant whose sockets never have more pays for a look in 64.
const HELD_BACK_MAX: u8 = 63;

#[derive(Debug)]
struct Held {
    limits: StageLimits,
    requests: u32,
    bytes: u64,
    refused: bool,
    /// Said to have room, and its clients have not been told yet.
    listed: bool,
    /// Times that its last request will not be held back, and how many there were of late.
    free: u8,
    free_last: u8,
}

impl Held {
    /// State of a flow that may stage nothing, and has nothing staged.
    const NONE: Held = Held {
        limits: StageLimits { requests_max: 0, bytes_max: 0 },
        requests: 0,
        bytes: 0,
        refused: false,
        listed: false,
        free: 0,
        free_last: 0,
    };

    /// True if a flow that was refused has room now and that is to be told.
    #[cold]
    fn has_room(&mut self) -> bool {
        let StageLimits { requests_max, bytes_max } = self.limits;
        let few = self.requests <= requests_max - requests_max.div_ceil(4) && self.bytes <= bytes_max - bytes_max / 4;
        if !few && self.requests > 0 {
            return false;
        }
        self.refused = false;
        !std::mem::replace(&mut self.listed, true)
    }
}

/// One worker's count of the staged requests of each flow.
#[derive(Debug)]
pub struct Staging {
    /// By flow: its place in `held`. 0: it has none.
    places: Vec<u32>,
    /// The first is of no flow, and always full.
    held: Vec<Held>,
}

impl Staging {
    /// Counts of nothing staged, with the limits of each flow.
    pub fn new(limits: &[StageLimits]) -> Staging {
        let held = |limits| Held { limits, ..Held::NONE };
        // Zeroes as the allocator has them, written only where a flow has a place.
        let mut staging = Staging { places: vec![0; limits.len()], held: Vec::new() };
        staging.held.push(held(StageLimits { requests_max: 0, bytes_max: 0 }));
        for (flow, &limits) in limits.iter().enumerate().filter(|(_, limits)| limits.requests_max > 0) {
            staging.places[flow] = staging.held.len() as u32;
            staging.held.push(held(limits));
        }
        staging
    }

    /// Sets the limits of a flow for requests admitted from now on; its staged requests stay. A flow that had none and
    /// gets some takes memory.
    ///
    /// # Panics
    /// If the flow is unknown.
    pub fn set_limits(&mut self, flow: FlowId, limits: StageLimits) {
        let place = &mut self.places[flow.0 as usize];
        if *place == 0 && limits.requests_max > 0 {
            *place = self.held.len() as u32;
            self.held.push(Held { limits, ..Held::NONE });
        }
        if *place > 0 {
            self.held[*place as usize].limits = limits;
        }
    }

    /// Room for so many flows, if that is more; the new ones may stage nothing.
    pub fn grow(&mut self, flows: usize) {
        self.places.resize(flows.max(self.places.len()), 0);
    }

    /// The flow that was is gone, and the next in its place has never been refused.
    ///
    /// # Panics
    /// If something of it is staged.
    pub fn forget(&mut self, flow: FlowId) {
        let place = self.places[flow.0 as usize] as usize;
        let held = &mut self.held[place];
        assert_eq!(held.requests, 0, "flow {} has requests staged", flow.0);
        // A flow that is listed as having room is told, and no client listens.
        *held = Held { limits: held.limits, listed: held.listed, ..Held::NONE };
    }

    /// Flows that may submit.
    pub fn flows(&self) -> usize {
        self.held.len() - 1
    }

    #[inline]
    fn of(&mut self, flow: FlowId) -> &mut Held {
        &mut self.held[self.places[flow.0 as usize] as usize]
    }

    /// Counts a request in, or remembers that the flow was refused.
    #[inline]
    pub fn admit(&mut self, flow: FlowId, length_bytes: u32) -> bool {
        let held = self.of(flow);
        let bytes = held.bytes + u64::from(length_bytes);
        let is_full = held.requests >= held.limits.requests_max || (bytes > held.limits.bytes_max && held.requests > 0);
        if is_full {
            held.refused = true;
            return false;
        }
        held.requests += 1;
        held.bytes = bytes;
        true
    }

    /// Counts in a request of `parts` that leave one by one, as so many requests; or remembers that the flow was
    /// refused. They may be no more than [`Staging::requests_max`].
    pub fn admit_several(&mut self, flow: FlowId, length_bytes: u32, parts: u32) -> bool {
        let held = self.of(flow);
        let (requests, bytes) = (held.requests + parts, held.bytes + u64::from(length_bytes));
        let is_full = requests > held.limits.requests_max || bytes > held.limits.bytes_max;
        if is_full && held.requests > 0 {
            held.refused = true;
            return false;
        }
        (held.requests, held.bytes) = (requests, bytes);
        true
    }

    /// Requests that the flow may stage.
    pub fn requests_max(&self, flow: FlowId) -> u32 {
        self.held[self.places[flow.0 as usize] as usize].limits.requests_max
    }

    /// Remembers that the flow was refused for want of another resource.
    pub fn refuse(&mut self, flow: FlowId) {
        self.of(flow).refused = true;
    }

    /// The flow is left with its last request while others compete. True: it stays staged until the sockets were looked
    /// at, and [`Staging::held_back`] follows.
    pub fn hold_back(&mut self, flow: FlowId) -> bool {
        let held = self.of(flow);
        let holds = held.free == 0;
        held.free -= u8::from(!holds);
        holds
    }

    /// The sockets were looked at. If that brought nothing, the flow is not held back the next times: once, then three
    /// times, then seven, up to [`HELD_BACK_MAX`].
    pub fn held_back(&mut self, flow: FlowId) {
        let held = self.of(flow);
        held.free_last = if held.requests > 1 { 0 } else { (held.free_last * 2 + 1).min(HELD_BACK_MAX) };
        held.free = held.free_last;
    }

    /// Requests of the flow that are counted in.
    pub fn staged(&self, flow: FlowId) -> usize {
        self.held[self.places[flow.0 as usize] as usize].requests as usize
    }

    /// Counts a request out. True: the flow was refused and now has room (three quarters of its bound or less are in
    /// use: a client that is woken for a single place would be woken for each).
    #[inline]
    pub fn leave(&mut self, flow: FlowId, length_bytes: u32) -> bool {
        let held = self.of(flow);
        held.requests -= 1;
        held.bytes -= u64::from(length_bytes);
        held.refused && held.has_room()
    }

    /// The clients of a flow that [`Staging::leave`] said has room are being told: from now on it may say so again.
    /// Until then it does not, so that a list of such flows is never longer than there are flows.
    pub fn told(&mut self, flow: FlowId) {
        self.of(flow).listed = false;
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    fn staging(requests_max: u32, bytes_max: u64) -> Staging {
        Staging::new(&[StageLimits { requests_max, bytes_max }; 2])
    }

    #[test]
    fn a_flow_with_a_bound_of_nothing_is_refused_and_takes_no_place() {
        let limits = |requests_max| StageLimits { requests_max, bytes_max: 1 << 20 };
        let mut staging = Staging::new(&[limits(0), limits(1), limits(0), limits(2)]);
        assert_eq!(staging.flows(), 2);
        let all = [0, 1, 2, 3, 3, 1, 3].map(|flow| staging.admit(FlowId(flow), 4096));
        assert_eq!(all, [false, true, false, true, true, false, false]);
        assert!(staging.leave(FlowId(1), 4096) && staging.admit(FlowId(1), 4096), "the others are as ever");
    }

    #[test]
    fn a_full_flow_is_refused_and_another_is_not() {
        let mut staging = staging(2, 1 << 30);
        assert!(staging.admit(FlowId(0), 1) && staging.admit(FlowId(0), 1));
        assert!(!staging.admit(FlowId(0), 1));
        assert!(staging.admit(FlowId(1), 1));
    }

    #[test]
    fn room_is_told_once_and_not_for_a_single_place() {
        // 8 at most: room is 6 or fewer.
        let mut staging = staging(8, 1 << 30);
        (0..8).for_each(|_| assert!(staging.admit(FlowId(0), 1)));
        assert!(!staging.admit(FlowId(0), 1));
        let told: Vec<bool> = (0..4).map(|_| staging.leave(FlowId(0), 1)).collect();
        assert_eq!(told, [false, true, false, false]);
        // The flow was told, and not refused since.
        staging.told(FlowId(0));
        assert!(!staging.leave(FlowId(0), 1));
    }

    #[test]
    fn room_is_room_for_bytes_too() {
        // 1000 at most: room is 750 or fewer, however few requests hold them.
        let mut staging = staging(64, 1000);
        assert!(staging.admit(FlowId(0), 751) && staging.admit(FlowId(0), 100) && staging.admit(FlowId(0), 0));
        assert!(!staging.admit(FlowId(0), 200));
        assert!(!staging.leave(FlowId(0), 100) && !staging.leave(FlowId(0), 0));
        assert!(staging.admit(FlowId(0), 1) && staging.leave(FlowId(0), 751));
        assert!(staging.admit(FlowId(1), 750) && staging.admit(FlowId(1), 250) && !staging.admit(FlowId(1), 1));
        assert!(staging.leave(FlowId(1), 250), "750 are few enough");
    }

    #[test]
    fn room_is_not_told_again_before_somebody_was_told() {
        let mut staging = staging(1, 1 << 30);
        let mut refuse_and_leave = |told: bool| {
            assert!(staging.admit(FlowId(0), 1) && !staging.admit(FlowId(0), 1));
            let room = staging.leave(FlowId(0), 1);
            if told {
                staging.told(FlowId(0));
            }
            room
        };
        assert_eq!([false, false, true, false].map(&mut refuse_and_leave), [true, false, false, true]);
    }

    #[test]
    fn one_request_is_always_taken_however_long() {
        let mut staging = staging(8, 1000);
        assert!(staging.admit(FlowId(0), 32 << 20));
        assert!(!staging.admit(FlowId(0), 1));
        assert!(staging.leave(FlowId(0), 32 << 20));
    }

    #[test]
    fn the_bytes_of_a_new_request_count() {
        let mut staging = staging(8, 1000);
        assert!(staging.admit(FlowId(0), 600));
        assert!(!staging.admit(FlowId(0), 600), "1200 of 1000");
        assert!(!staging.admit(FlowId(0), 401), "1001 of 1000");
        assert!(staging.admit(FlowId(0), 400), "exactly as many as there may be");
        assert!(!staging.admit(FlowId(0), 1) && staging.admit(FlowId(0), 0), "a flush holds no bytes");
    }

    #[test]
    fn parts_count_as_requests_and_one_request_is_always_taken() {
        let mut staging = staging(8, 1000);
        assert!(staging.admit_several(FlowId(0), 500, 5) && !staging.admit_several(FlowId(0), 40, 4), "9 of 8");
        assert!(staging.admit_several(FlowId(0), 30, 3) && !staging.admit(FlowId(0), 1));
        assert!(staging.admit_several(FlowId(1), 1001, 8) && !staging.admit(FlowId(1), 0));
        // Room is 6 of 8 or fewer, and 750 of 1000 bytes.
        let told: Vec<bool> = (0..3).map(|_| staging.leave(FlowId(0), 100)).collect();
        assert_eq!((told, staging.requests_max(FlowId(0))), (vec![false, true, false], 8));
        // Room where parts alone were refused, and a bound in bytes that is just reached.
        let mut staging = self::staging(8, 1000);
        assert!(staging.admit(FlowId(0), 600) && staging.admit_several(FlowId(0), 400, 6));
        assert!(!staging.admit_several(FlowId(0), 0, 2));
        assert_eq!([600, 100].map(|bytes| staging.leave(FlowId(0), bytes)), [true, false]);
    }

    #[test]
    fn a_flow_that_comes_later_has_the_bound_that_it_is_told() {
        let limits = |requests_max, bytes_max| StageLimits { requests_max, bytes_max };
        let mut staging = staging(1, 1000);
        staging.grow(3);
        staging.grow(1);
        staging.set_limits(FlowId(2), limits(0, 1000));
        assert_eq!((staging.flows(), staging.requests_max(FlowId(2)), staging.admit(FlowId(2), 1)), (2, 0, false));
        staging.set_limits(FlowId(2), limits(4, 1000));
        assert_eq!((staging.flows(), staging.requests_max(FlowId(2))), (3, 4));
        assert_eq!([(); 5].map(|()| staging.admit(FlowId(2), 1)), [true, true, true, true, false]);
        assert!(staging.admit(FlowId(0), 1) && staging.admit(FlowId(1), 1), "the others have theirs");
        // With a smaller limit staged requests stay, and there is room when one of two is left.
        staging.set_limits(FlowId(2), limits(2, 1000));
        let told: Vec<bool> = (0..3).map(|_| staging.leave(FlowId(2), 1)).collect();
        assert_eq!((told, staging.staged(FlowId(2)), staging.flows()), (vec![false, false, true], 1, 3));
    }

    #[test]
    fn a_flow_starts_with_nothing_of_the_one_that_had_its_place() {
        let mut staging = staging(8, 1000);
        let comes_and_goes = |staging: &mut Staging| staging.admit(FlowId(0), 1) && staging.leave(FlowId(0), 1);
        staging.refuse(FlowId(0));
        assert!(comes_and_goes(&mut staging), "who was refused is told of room");
        staging.refuse(FlowId(0));
        staging.held_back(FlowId(0));
        staging.forget(FlowId(0));
        assert!(staging.hold_back(FlowId(0)) && !comes_and_goes(&mut staging));
        // The list that the other was put on has not been read, and has it once.
        staging.refuse(FlowId(0));
        assert!(!comes_and_goes(&mut staging));
        staging.told(FlowId(0));
        staging.refuse(FlowId(0));
        assert!(comes_and_goes(&mut staging) && staging.requests_max(FlowId(0)) == 8);
    }

    #[test]
    #[should_panic(expected = "flow 1 has requests staged")]
    fn a_flow_with_requests_staged_is_not_forgotten() {
        let mut staging = staging(8, 1000);
        staging.admit(FlowId(1), 1);
        staging.forget(FlowId(1));
    }

    #[test]
    fn a_flow_whose_sockets_have_nothing_is_held_back_more_and_more_rarely_until_they_have() {
        let mut staging = staging(8, 1000);
        assert!(staging.admit(FlowId(0), 1));
        let goes_between = |staging: &mut Staging| {
            let goes = (0..1000).take_while(|_| !staging.hold_back(FlowId(0))).count();
            staging.held_back(FlowId(0));
            goes
        };
        assert_eq!([(); 8].map(|()| goes_between(&mut staging)), [0, 1, 3, 7, 15, 31, 63, 63]);
        assert!(staging.hold_back(FlowId(1)), "another flow has its own");
        assert!(staging.admit(FlowId(0), 1));
        assert_eq!([(); 2].map(|()| goes_between(&mut staging)), [63, 0], "another request came");
    }

    #[test]
    fn a_bound_of_one_request_opens_again() {
        let mut staging = staging(1, 0);
        assert!(staging.admit(FlowId(0), 4096));
        assert!(!staging.admit(FlowId(0), 4096));
        assert!(staging.leave(FlowId(0), 4096));
        assert!(staging.admit(FlowId(0), 4096));
    }
}
