//! The context without a block layer ([`RawPath`](crate::queues::RawPath)): from submit to the device's queue, from
//! reap to the client.
//!
//! A policy that stages nothing may still name the class queue of each request (block layer low-latency); any other is
//! never asked.

use super::{Full, HwCtx, cost_kind};
use crate::queues::Charge;
use crate::request::{Completion, Submission};
use crate::table::Owner;
use mqfq_sched::policy::Policy;

impl<P: Policy> HwCtx<P> {
    /// [`HwCtx::submit`], there.
    pub(super) fn submit_raw(&mut self, owner: Owner, submission: Submission, now_ns: u64) -> Result<(), Full> {
        let flow = submission.flow;
        let charge = if self.direct.is_on {
            let cost = self.cost.cost(cost_kind(submission.op), u64::from(submission.length_bytes));
            Charge { class: self.policy.class_of(&self.queue, flow, now_ns), cost }
        } else {
            Charge::NONE
        };
        let Self { raw, tags, device, .. } = self;
        let raw = raw.as_mut().expect("asked only of a context without a block layer");
        match raw.submit(tags, &mut **device, owner, submission, charge, now_ns) {
            Ok(()) if self.direct.is_on => {
                self.policy.dispatched(&mut self.queue, flow, charge.cost, charge.class, now_ns);
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(submission) => {
                self.stats.refused += 1;
                Err(Full(submission))
            }
        }
    }

    /// What [`HwCtx::run`] does there; how many went to the device.
    pub(super) fn ring_raw(&mut self, now_ns: u64) -> usize {
        let Self { raw, device, .. } = self;
        let dispatched = raw.as_mut().map_or(0, |raw| raw.ring(&mut **device, now_ns));
        self.stats.doorbells += u64::from(dispatched > 0);
        self.stats.dispatched += dispatched as u64;
        dispatched
    }

    /// What [`HwCtx::reap`] does there with what the device has finished.
    pub(super) fn complete_raw(&mut self, now_ns: u64, out: &mut Vec<(Owner, Completion)>) {
        let Self { raw, tags, reaped, room, policy, queue, direct, .. } = self;
        let raw = raw.as_mut().expect("asked only of a context without a block layer");
        if reaped.is_empty() {
            return;
        }
        if !direct.is_on {
            return raw.complete(tags, reaped, now_ns, room, out, |_| {});
        }
        raw.complete(tags, reaped, now_ns, room, out, |flight| policy.ended(queue, flight.flow, flight.cost, now_ns));
        self.adjust(now_ns);
    }
}
