//! The calls whose instructions are counted, as functions that callgrind can tell apart.
//!
//! [`crate::overhead::callgrind`] finds them by name in its profile: what is executed inside the first three, less what
//! is executed inside the last three, is what the block layer and its policy take of a request. What the drive's model
//! computes is no cost of a drive's.

use mqfq_blk::device::{Command, DeviceQueue, QueueFull, Reaped};
use mqfq_blk::hctx::{HwCtx, Run};
use mqfq_blk::request::{Completion, Submission};
use mqfq_blk::table::Owner;
use mqfq_sched::policy::{AnyPolicy, ClassWeights, Kick};

/// Admission and staging.
///
/// # Panics
/// If the flow has no room: the caller's bounds are its depth.
#[inline(never)]
pub fn schedulers_submit(
    hctx: &mut HwCtx<AnyPolicy>,
    owner: Owner,
    submission: Submission,
    now_ns: u64,
    kick: &mut impl Kick,
) {
    let taken = hctx.submit(owner, submission, now_ns, kick);
    assert!(taken.is_ok(), "the bound of a flow is all that its tenant can have in flight");
}

/// Picking and dispatch.
#[inline(never)]
pub fn schedulers_run(hctx: &mut HwCtx<AnyPolicy>, now_ns: u64, kick: &mut impl Kick) -> Run {
    hctx.run(now_ns, kick)
}

/// Completion.
#[inline(never)]
pub fn schedulers_reap(
    hctx: &mut HwCtx<AnyPolicy>,
    now_ns: u64,
    kick: &mut impl Kick,
    out: &mut Vec<(Owner, Completion)>,
) -> usize {
    hctx.reap(now_ns, kick, out)
}

/// A device queue whose calls are functions of their own. Policies see offsets on a large drive; the drive's model, to
/// which no place is farther than another, stores [`STORED_BYTES`] of it: to fill 64 GiB of memory with zeroes would
/// take longer than the rest.
pub struct WatchedQueue(pub Box<dyn DeviceQueue>);

/// Bytes that the drive's model stores: a multiple of every request's size here.
pub const STORED_BYTES: u64 = 1 << 20;

impl DeviceQueue for WatchedQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        schedulers_device_submit(&mut *self.0, command)
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        schedulers_device_doorbell(&mut *self.0, now_ns);
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        schedulers_device_reap(&mut *self.0, now_ns, out);
    }

    fn next_event_ns(&self) -> Option<u64> {
        self.0.next_event_ns()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn set_class_weights(&mut self, weights: ClassWeights, now_ns: u64) -> bool {
        schedulers_device_weights(&mut *self.0, weights, now_ns)
    }
}

#[inline(never)]
fn schedulers_device_submit(queue: &mut dyn DeviceQueue, command: Command) -> Result<(), QueueFull> {
    queue.submit(Command { offset_bytes: command.offset_bytes % STORED_BYTES, ..command })
}

#[inline(never)]
fn schedulers_device_doorbell(queue: &mut dyn DeviceQueue, now_ns: u64) {
    queue.ring_doorbell(now_ns);
}

#[inline(never)]
fn schedulers_device_weights(queue: &mut dyn DeviceQueue, weights: ClassWeights, now_ns: u64) -> bool {
    queue.set_class_weights(weights, now_ns)
}

#[inline(never)]
fn schedulers_device_reap(queue: &mut dyn DeviceQueue, now_ns: u64, out: &mut Vec<Reaped>) {
    queue.reap(now_ns, out);
}
