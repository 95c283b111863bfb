//! Options of a context, and its answers.

use super::path_options::PathOptions;
use super::stage::StageLimits;
use crate::device::DeviceQueue;
use crate::request::Submission;
use mqfq_sched::cost::CostModel;
use mqfq_sched::policy::Policy;
use mqfq_sched::topology::HctxId;
use std::sync::Arc;

/// Most requests that one [`HwCtx::run`](super::hctx::HwCtx::run) dispatches: bounds how long a worker stays away from
/// its sockets. 64 is the depth D of the paper's drive (MQFQ section 4), so one batch can fill it.
pub(super) const BATCH_MAX: usize = 64;

/// Parts of a context.
pub struct HwCtxOptions<P: Policy> {
    /// Number of the context.
    pub id: HctxId,
    /// The device's policy, shared with the other workers.
    pub policy: Arc<P>,
    /// This worker's queue of the device.
    pub device: Box<dyn DeviceQueue>,
    /// Commands on the device queue at once, 1..=65535; the device queue must be as deep.
    pub queue_depth: u16,
    /// Bound of what each flow may stage here, by [`FlowId`](mqfq_sched::flow::FlowId).
    pub limits: Vec<StageLimits>,
    /// Costs of requests.
    pub cost: CostModel,
    /// Options of the path besides scheduling.
    pub path: PathOptions,
}

/// Result of a [`HwCtx::run`](super::hctx::HwCtx::run).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Requests handed to the device.
    pub dispatched: usize,
    /// There may be more to dispatch: call again before sleeping.
    pub again: bool,
}

/// The submission that was refused.
#[derive(Debug)]
pub struct Full(pub Submission);

/// Requests that a queue of a context with these limits must be able to stage.
pub(super) fn capacity_requests(limits: &[StageLimits]) -> usize {
    // A queue that holds nothing cannot be asked for; where no flow submits, one place is not used.
    limits.iter().map(|limit| limit.requests_max as usize).sum::<usize>().max(1)
}
