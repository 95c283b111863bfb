//! No block layer: from the client straight to the worker's device queue and back.
//!
//! Answers: what would be left if nothing were staged, merged or counted?
//!
//! | layer | with a policy that | it is |
//! |---|---|---|
//! | raw | is never asked (`none`) | the measure of the other layers (blk-mq section 5: "a driver which bypasses the Linux block layer as Raw"), not a way to serve tenants: nobody is protected from anybody |
//! | low-latency | names a class queue (`d2fq`) | the low-latency stack with D2FQ in it (D2FQ section 4.3, "LL-D2FQ"): fair, because the device is |
//!
//! What remains is what no user of a device queue can do without: a tag, and by tag whom to tell. A client is refused
//! only while there is no tag. Every request completes once, because its place by tag is emptied by its completion
//! (I10); one whose place is dropped full went away with its engine.

use crate::device::{Command, DeviceQueue, QueueFull, Reaped};
use crate::request::{Completion, Op, Submission};
use crate::table::Owner;
use crate::tag::TagSet;
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::QueueClass;

/// What the policy says of a request, and is told of it.
#[derive(Clone, Copy)]
pub(crate) struct Charge {
    /// Which queue it goes to.
    pub(crate) class: QueueClass,
    /// What its flow is charged.
    pub(crate) cost: Cost,
}

impl Charge {
    /// Nobody is asked or told.
    pub(crate) const NONE: Charge = Charge { class: QueueClass::Medium, cost: Cost(0) };
}

/// A request on the device.
#[derive(Clone, Copy)]
pub(crate) struct Flight {
    owner: Owner,
    cookie: u64,
    pub(crate) flow: FlowId,
    op: Op,
    length_bytes: u32,
    pub(crate) cost: Cost,
    submitted_ns: u64,
}

/// The data path of [`BlockLayer::Raw`](super::BlockLayer::Raw): requests in the device queue, by tag, and nothing
/// staged.
pub(crate) struct RawPath {
    /// Requests on the device, by tag.
    flights: Box<[Option<Flight>]>,
    /// Submitted since the last doorbell.
    fresh: usize,
    /// Flows that were refused, each once.
    refused: Vec<FlowId>,
}

impl RawPath {
    /// For a device queue of this depth.
    pub(crate) fn new(depth: usize) -> RawPath {
        RawPath { flights: vec![None; depth].into(), fresh: 0, refused: Vec::new() }
    }

    /// Hands it to the device's queue of this class, if there is a tag.
    pub(crate) fn submit(
        &mut self,
        tags: &mut TagSet,
        device: &mut dyn DeviceQueue,
        owner: Owner,
        submission: Submission,
        charge: Charge,
        now_ns: u64,
    ) -> Result<(), Submission> {
        let Some(tag) = tags.acquire_of(charge.class) else {
            if !self.refused.contains(&submission.flow) {
                self.refused.push(submission.flow);
            }
            return Err(submission);
        };
        let Submission { flow, op, offset_bytes, length_bytes, fua, buffer, cookie } = submission;
        let class = charge.class;
        let command = Command { fua, class, ..Command::new(tag, op, offset_bytes, length_bytes, buffer) };
        if let Err(QueueFull(Command { buffer, .. })) = device.submit(command) {
            // The device queue is as deep as there are tags, but may keep places to itself for a while.
            tags.release(tag);
            if !self.refused.contains(&flow) {
                self.refused.push(flow);
            }
            return Err(Submission { flow, op, offset_bytes, length_bytes, fua, buffer, cookie });
        }
        let flight = Flight { owner, cookie, flow, op, length_bytes, cost: charge.cost, submitted_ns: now_ns };
        let before = self.flights[usize::from(tag.0)].replace(flight);
        debug_assert!(before.is_none(), "{tag:?} was free, yet in use");
        self.fresh += 1;
        Ok(())
    }

    /// Rings for what was submitted since the last time; how many.
    pub(crate) fn ring(&mut self, device: &mut dyn DeviceQueue, now_ns: u64) -> usize {
        let fresh = std::mem::take(&mut self.fresh);
        if fresh > 0 {
            device.ring_doorbell(now_ns);
        }
        fresh
    }

    /// Ends what the device has finished, tells `ended` of each, and names in `room` the flows that were refused.
    pub(crate) fn complete(
        &mut self,
        tags: &mut TagSet,
        reaped: &mut Vec<Reaped>,
        now_ns: u64,
        room: &mut Vec<FlowId>,
        out: &mut Vec<(Owner, Completion)>,
        mut ended: impl FnMut(&Flight),
    ) {
        if !reaped.is_empty() && !self.refused.is_empty() {
            room.append(&mut self.refused);
        }
        for Reaped { tag, status, buffer, .. } in reaped.drain(..) {
            let flight = self.flights[usize::from(tag.0)].take();
            let flight = flight.unwrap_or_else(|| panic!("the device reaped {tag:?}, which has no request"));
            tags.release(tag);
            ended(&flight);
            let Flight { owner, cookie, op, length_bytes, submitted_ns, .. } = flight;
            let device_ns = now_ns.saturating_sub(submitted_ns);
            out.push((owner, Completion { cookie, status, op, length_bytes, buffer, queued_ns: 0, device_ns }));
        }
    }
}
