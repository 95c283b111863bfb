//! The path without a block layer: from the client straight to the worker's device queue and back.
//!
//! Answers: what would be left if nothing were staged, merged or counted?
//!
//! | layer | with a policy that | it is |
//! |---|---|---|
//! | raw | is never asked (`none`) | the measure of the other layers (blk-mq section 5: "a driver which bypasses the Linux block layer as Raw"), not a way to serve tenants: no tenant is protected from another |
//! | low-latency | names a class queue (`d2fq`) | the low-latency stack with D2FQ in it (D2FQ section 4.3, "LL-D2FQ"): fair, because the device is |
//!
//! Only the needs of every user of a device queue remain: a tag, and by tag the client to tell. A client is refused
//! only while there is no tag. Every request completes once, because its place by tag is emptied by its completion
//! (I10); one whose place is dropped full went away with its engine.

use super::direct;
use super::path_options::{Full, Run};
use super::request_path::RequestPath;
use crate::device::{Command, QueueFull, Reaped};
use crate::request::{Completion, Op, Submission};
use crate::table::Owner;
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{DirectPolicy, Policy, QueueClass};

#[derive(Clone, Copy)]
struct Flight {
    owner: Owner,
    cookie: u64,
    flow: FlowId,
    op: Op,
    length_bytes: u32,
    cost: Cost,
    submitted_ns: u64,
}

/// State of this path alone: requests in the device queue, by tag, and nothing staged.
pub(super) struct BypassPath {
    /// The policy is direct. The policy knows so itself, but its answer lies on another cache line.
    is_direct: bool,
    flights: Box<[Option<Flight>]>,
    /// Requests submitted since the last doorbell.
    fresh: usize,
    /// Flows that were refused, each once.
    refused: Vec<FlowId>,
}

impl BypassPath {
    /// A path for so many tags, and a policy that is direct or is not asked.
    pub(super) fn new(tags: usize, is_direct: bool) -> BypassPath {
        BypassPath { is_direct, flights: vec![None; tags].into(), fresh: 0, refused: Vec::new() }
    }

    /// Hands a request to the device's queue, if there is a tag: of the class that the policy names, if it is direct.
    pub(super) fn submit<P: Policy>(
        &mut self,
        shared: &mut RequestPath<P>,
        owner: Owner,
        submission: Submission,
        now_ns: u64,
    ) -> Result<(), Full> {
        let RequestPath { policy, queue, commands, charges, counters, .. } = shared;
        let direct = if self.is_direct { policy.as_direct() } else { None };
        let (class, cost) = match direct {
            Some(direct) => (direct.class_of(queue, submission.flow, now_ns), charges.of(&submission).cost),
            None => (QueueClass::Medium, Cost(0)),
        };
        let Some(tag) = commands.tags.acquire_of(class) else {
            counters.stats().refused.add(1);
            return self.refuse(submission);
        };
        let Submission { flow, op, offset_bytes, length_bytes, fua, buffer, cookie } = submission;
        let command = Command { fua, class, ..Command::new(tag, op, offset_bytes, length_bytes, buffer) };
        if let Err(QueueFull(Command { buffer, .. })) = commands.device.submit(command) {
            // The device queue is as deep as there are tags, but may keep places to itself for a while.
            commands.tags.release(tag);
            counters.stats().refused.add(1);
            return self.refuse(Submission { flow, op, offset_bytes, length_bytes, fua, buffer, cookie });
        }
        let flight = Flight { owner, cookie, flow, op, length_bytes, cost, submitted_ns: now_ns };
        let before = self.flights[usize::from(tag.0)].replace(flight);
        debug_assert!(before.is_none(), "{tag:?} was free, yet in use");
        self.fresh += 1;
        if let Some(direct) = direct {
            direct.dispatched(queue, flow, cost, class, now_ns);
        }
        Ok(())
    }

    /// There is no place: the flow will be told when there is one again.
    #[cold]
    fn refuse(&mut self, submission: Submission) -> Result<(), Full> {
        if !self.refused.contains(&submission.flow) {
            self.refused.push(submission.flow);
        }
        Err(Full(submission))
    }

    /// A request that was submitted by then is on the device: of this flow, or whosever.
    pub(super) fn has_any(&self, flow: Option<FlowId>, until_ns: u64) -> bool {
        let is_meant = |flight: &Flight| flow.is_none_or(|flow| flight.flow == flow) && flight.submitted_ns <= until_ns;
        self.flights.iter().flatten().any(is_meant)
    }

    /// Rings for the requests submitted since the last time.
    pub(super) fn run<P: Policy>(&mut self, shared: &mut RequestPath<P>, now_ns: u64) -> Run {
        let dispatched = std::mem::take(&mut self.fresh);
        if dispatched > 0 {
            shared.commands.device.ring_doorbell(now_ns);
            shared.counters.stats().doorbells.add(1);
            shared.counters.stats().dispatched.add(dispatched as u64);
        }
        Run { dispatched, again: false }
    }

    /// Completes all that the device has finished, and names the flows that were refused.
    pub(super) fn complete_all<P: Policy>(
        &mut self,
        shared: &mut RequestPath<P>,
        now_ns: u64,
        out: &mut Vec<(Owner, Completion)>,
    ) {
        let RequestPath { policy, queue, commands, room, .. } = shared;
        if commands.reaped.is_empty() {
            return;
        }
        room.append(&mut self.refused);
        let direct = if self.is_direct { policy.as_direct() } else { None };
        for Reaped { tag, status, buffer, .. } in commands.reaped.drain(..) {
            let flight = self.flights[usize::from(tag.0)].take();
            let flight = flight.unwrap_or_else(|| panic!("the device reaped {tag:?}, which has no request"));
            commands.tags.release(tag);
            let Flight { owner, cookie, flow, op, length_bytes, cost, submitted_ns } = flight;
            if let Some(direct) = direct {
                direct.ended(queue, flow, cost, now_ns);
            }
            let device_ns = now_ns.saturating_sub(submitted_ns);
            out.push((owner, Completion { cookie, status, op, length_bytes, buffer, queued_ns: 0, device_ns }));
        }
        if direct.is_some() {
            direct::adjust(shared, now_ns);
        }
    }
}
