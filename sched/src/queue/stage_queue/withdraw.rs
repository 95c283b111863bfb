//! Requests that leave the queue without being the first.
//!
//! Answers: where does a request stand that its caller gives up, and what is its flow's first then? Invariants: Q1 to
//! Q3 hold after each. Cost: a walk over the flow's requests here, and over the lanes if it was the flow's first.

use super::{DEFERRED, Lane, NONE, StageQueue};
use crate::cost::Cost;
use crate::flow::FlowId;
use crate::queue::lane_order::Key;
use crate::vtime::{VSpan, VTime};

/// A request that left without being dispatched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// Start tag and length; `None`: it was deferred.
    pub interval: Option<(VTime, VSpan)>,
    /// No request of its flow behind it here has an interval.
    pub is_last: bool,
}

impl<P: Copy + Default, L: Copy + Default> StageQueue<P, L> {
    /// Removes the first request of `flow` for which `is_it` is true; false: there is none. `give` gets what the flow
    /// keeps here; `promote`, `ahead` and `leave` are as in [`StageQueue::drop_first_and`].
    pub fn withdraw<A>(
        &mut self,
        flow: FlowId,
        is_it: impl Fn(&P) -> bool,
        give: impl FnOnce(Left, &mut L),
        (promote, ahead): (
            impl FnOnce(FlowId, Cost, &mut L) -> (VTime, VSpan, A),
            impl Fn(&A, Cost, &mut L) -> Option<(VTime, VSpan)>,
        ),
        leave: impl FnOnce(FlowId, L),
    ) -> bool {
        let Some(number) = self.index.find(flow) else { return false };
        let Some((before, node, is_deferred)) = self.find(number, is_it) else { return false };
        let (start_tag, span) = (self.nodes.all[node as usize].start_tag, self.nodes.all[node as usize].span);
        let next = self.nodes.free(node);
        let lane = &mut self.lanes[number as usize];
        if node == lane.tail {
            lane.tail = before;
        }
        let is_last = is_deferred || next == NONE || next == DEFERRED;
        let interval = (!is_deferred).then_some((start_tag, span));
        if is_deferred && node == lane.deferred {
            lane.deferred = next;
        }
        if before != NONE {
            let link = &mut self.nodes.all[before as usize].next;
            // The last one with an interval points to no node, whichever of the deferred ones is the first.
            if *link != DEFERRED || next == NONE {
                *link = next;
            }
            give(Left { interval, is_last }, &mut lane.kept);
            return true;
        }
        give(Left { interval, is_last }, &mut lane.kept);
        if next == NONE {
            self.order.remove(number);
            let (flow, kept) = self.vacate(number);
            leave(flow, kept);
        } else if next == DEFERRED {
            let key = self.promote_lane(number, promote, ahead);
            self.order.replace(key);
        } else {
            lane.head = next;
            let node = &self.nodes.all[next as usize];
            let key = Key { start_tag: node.start_tag, span: node.span, arrival: node.arrival, lane: number };
            self.order.replace(key);
        }
        true
    }

    /// Removes all requests, those of a flow in the order they came. `give` gets each with what its flow keeps here,
    /// and `leave` the latter when the flow's last is gone.
    pub fn drain(&mut self, mut give: impl FnMut(FlowId, P, Left, &mut L), mut leave: impl FnMut(FlowId, L)) {
        while let Some(&Lane { flow, head, .. }) = self.lanes.get(self.order.first_key().lane as usize) {
            let number = self.order.first_key().lane;
            let (mut node, mut is_deferred) = (head, false);
            while let Some(it) = self.nodes.all.get(node as usize) {
                let (payload, interval) = (it.payload, (!is_deferred).then_some((it.start_tag, it.span)));
                let next = self.nodes.free(node);
                let lane = &mut self.lanes[number as usize];
                let is_last = is_deferred || next == NONE || next == DEFERRED;
                give(flow, payload, Left { interval, is_last }, &mut lane.kept);
                (node, is_deferred) = if next == DEFERRED { (lane.deferred, true) } else { (next, is_deferred) };
            }
            self.order.remove_first();
            let (flow, kept) = self.vacate(number);
            leave(flow, kept);
        }
    }

    /// The node before, the node, and whether it is deferred.
    fn find(&self, lane: u32, is_it: impl Fn(&P) -> bool) -> Option<(u32, u32, bool)> {
        let lane = &self.lanes[lane as usize];
        let (mut before, mut node, mut is_deferred) = (NONE, lane.head, false);
        loop {
            if node == DEFERRED {
                (node, is_deferred) = (lane.deferred, true);
            }
            let it = self.nodes.all.get(node as usize)?;
            if is_it(&it.payload) {
                return Some((before, node, is_deferred));
            }
            (before, node) = (node, it.next);
        }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use crate::base::random::{Random, for_seeds};
    use crate::stage_queue::Staged;

    const FLOWS: usize = 5;

    /// A queue beside lists: per flow (payload, interval, `None` while deferred). A flow's tags go up by 10.
    struct Pair {
        queue: StageQueue<u32, u32>,
        lists: Vec<Vec<(u32, Option<u64>)>>,
        next_tag: Vec<u64>,
        came: u32,
    }

    fn step(next_tag: &mut u64) -> u64 {
        *next_tag += 10;
        *next_tag
    }

    impl Pair {
        fn push(&mut self, flow: usize, defer: bool) {
            let payload = self.came;
            self.came += 1;
            let id = FlowId(flow as u32);
            let has_deferred = self.lists[flow].iter().any(|(_, tag)| tag.is_none());
            match self.queue.behind(id) {
                Some(behind) if defer || has_deferred => {
                    behind.defer(Cost(1), payload);
                    self.lists[flow].push((payload, None));
                }
                _ => {
                    let tag = step(&mut self.next_tag[flow]);
                    let request = Staged { flow: id, start_tag: VTime::from_raw(tag), span: VSpan(64), payload };
                    self.queue.push(request);
                    self.lists[flow].push((payload, Some(tag)));
                }
            }
        }

        /// A list whose first is deferred gets an interval for it, as the queue does.
        fn promote(&mut self, flow: usize) {
            if let Some((_, tag @ None)) = self.lists[flow].first_mut() {
                *tag = Some(self.next_tag[flow]);
            }
        }

        fn withdraw(&mut self, flow: usize, payload: u32) -> bool {
            let at = self.lists[flow].iter().position(|&(other, _)| other == payload);
            let (mut given, mut left) = (None, false);
            let next_tag = &mut self.next_tag[flow];
            let found = self.queue.withdraw(
                FlowId(flow as u32),
                |&other| other == payload,
                |gone, _| given = Some(gone),
                (|_, _, _: &mut u32| (VTime::from_raw(step(next_tag)), VSpan(64), ()), |(), _, _: &mut u32| None),
                |_, _| left = true,
            );
            assert_eq!(found, at.is_some());
            let Some(at) = at else { return false };
            let (_, tag) = self.lists[flow].remove(at);
            let gone = given.expect("given");
            assert_eq!(gone.interval.map(|(tag, _)| tag.raw()), tag);
            assert_eq!(gone.is_last, self.lists[flow].iter().skip(at).all(|(_, tag)| tag.is_none()));
            assert_eq!(left, self.lists[flow].is_empty());
            self.promote(flow);
            true
        }

        fn pop(&mut self) {
            let smallest = self.lists.iter().filter_map(|list| list.first()).filter_map(|&(_, tag)| tag).min();
            let first = self.queue.peek();
            assert_eq!(first.map(|first| first.start_tag.raw()), smallest, "Q1");
            let Some(first) = first else { return };
            let flow = first.flow.0 as usize;
            assert_eq!(self.lists[flow].remove(0).0, first.payload, "Q2");
            let next_tag = &mut self.next_tag[flow];
            self.queue.drop_first_and(
                |_, _, _| (VTime::from_raw(step(next_tag)), VSpan(64), ()),
                |(), _, _| None,
                |_, _| (),
            );
            self.promote(flow);
        }
    }

    #[test]
    fn withdrawn_from_anywhere_the_others_leave_in_order() {
        for_seeds(300, |random: &mut Random| {
            let mut pair = Pair {
                queue: StageQueue::new(24),
                lists: vec![Vec::new(); FLOWS],
                next_tag: (0..FLOWS).map(|_| 1000 + random.below(100)).collect(),
                came: 0,
            };
            for _ in 0..400 {
                let flow = random.index(FLOWS);
                match random.index(5) {
                    0 | 1 if pair.queue.len() < 24 => pair.push(flow, random.chance(2)),
                    2 | 3 => {
                        if let Some(&(payload, _)) = pair.lists[flow].get(random.index(6)) {
                            assert!(pair.withdraw(flow, payload));
                        }
                    }
                    _ => pair.pop(),
                }
                assert_eq!(pair.queue.len(), pair.lists.iter().map(Vec::len).sum::<usize>());
                assert_eq!(pair.queue.flows(), pair.lists.iter().filter(|list| !list.is_empty()).count());
            }
            assert!(!pair.withdraw(0, u32::MAX), "one that is not there");
            let mut left: Vec<Vec<(u32, Option<u64>)>> = vec![Vec::new(); FLOWS];
            let mut gone = 0;
            pair.queue.drain(
                |flow, payload, it, _| left[flow.0 as usize].push((payload, it.interval.map(|(tag, _)| tag.raw()))),
                |_, _| gone += 1,
            );
            assert_eq!(left, pair.lists);
            assert_eq!(gone, left.iter().filter(|list| !list.is_empty()).count());
            assert!(pair.queue.is_empty() && pair.queue.flows() == 0 && pair.queue.peek().is_none());
        });
    }
}
