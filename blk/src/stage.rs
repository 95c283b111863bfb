//! Bounded staging: how much of each flow one worker holds before it tells the client to wait.
//!
//! The *order* of staged requests is the policy's (`mqfq_sched::stage_queue`). Here is only the bound: a flow that has
//! its share of requests or bytes staged is refused, its clients stop reading their sockets, and nobody else notices.
//! Bytes are bounded too, because 256 requests of 32 MiB are 8 GiB.

use mqfq_sched::flow::FlowId;

/// Bounds for one flow on one worker. A flow may always stage one request, however long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StageLimits {
    /// Requests, at least 1.
    pub requests_max: u32,
    /// Payload bytes.
    pub bytes_max: u64,
}

impl StageLimits {
    /// 256 requests and 64 MiB: two of the deepest queues in the papers, or two requests of the largest NBD size.
    pub const DEFAULT: StageLimits = StageLimits { requests_max: 256, bytes_max: 64 << 20 };
}

#[derive(Debug)]
struct Held {
    limits: StageLimits,
    requests: u32,
    bytes: u64,
    refused: bool,
    /// Said to have room, and nobody has been told yet.
    listed: bool,
}

/// One worker's count of what each flow has staged.
#[derive(Debug)]
pub struct Staging {
    flows: Vec<Held>,
}

impl Staging {
    /// Nothing staged; one entry a flow.
    pub fn new(limits: impl IntoIterator<Item = StageLimits>) -> Staging {
        let held = |limits| Held { limits, requests: 0, bytes: 0, refused: false, listed: false };
        Staging { flows: limits.into_iter().map(held).collect() }
    }

    /// Counts a request in, or remembers that the flow was refused.
    pub fn admit(&mut self, flow: FlowId, length_bytes: u32) -> bool {
        let held = &mut self.flows[flow.0 as usize];
        let full = held.requests >= held.limits.requests_max
            || (held.requests > 0 && held.bytes + u64::from(length_bytes) > held.limits.bytes_max);
        held.refused |= full;
        if !full {
            held.requests += 1;
            held.bytes += u64::from(length_bytes);
        }
        !full
    }

    /// Remembers that the flow was refused for want of another resource.
    pub fn refuse(&mut self, flow: FlowId) {
        self.flows[flow.0 as usize].refused = true;
    }

    /// Counts a request out. True: the flow was refused and now has room (three quarters of its bound or less are in
    /// use: a client that is woken for a single place would be woken for each).
    pub fn leave(&mut self, flow: FlowId, length_bytes: u32) -> bool {
        let held = &mut self.flows[flow.0 as usize];
        held.requests -= 1;
        held.bytes -= u64::from(length_bytes);
        let few = held.requests <= held.limits.requests_max - held.limits.requests_max.div_ceil(4)
            && held.bytes <= held.limits.bytes_max - held.limits.bytes_max / 4;
        let room = held.refused && (few || held.requests == 0);
        if room {
            held.refused = false;
        }
        room && !std::mem::replace(&mut held.listed, true)
    }

    /// The clients of a flow that [`Staging::leave`] said has room are being told: from now on it may say so again. Until
    /// then it does not, so that a list of such flows is never longer than there are flows.
    pub fn told(&mut self, flow: FlowId) {
        self.flows[flow.0 as usize].listed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staging(requests_max: u32, bytes_max: u64) -> Staging {
        Staging::new([StageLimits { requests_max, bytes_max }; 2])
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
    fn a_bound_of_one_request_opens_again() {
        let mut staging = staging(1, 0);
        assert!(staging.admit(FlowId(0), 4096));
        assert!(!staging.admit(FlowId(0), 4096));
        assert!(staging.leave(FlowId(0), 4096));
        assert!(staging.admit(FlowId(0), 4096));
    }
}
