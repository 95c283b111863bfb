//! The options of all that the data path of one device does to requests besides scheduling them.
//!
//! | option | what it is about | told in |
//! |---|---|---|
//! | `split` | requests that go to the device in parts | `split.rs`, `parts.rs` |
//! | `plug` | requests that gather before they are dispatched, so that one doorbell is for many | `worker/devices.rs` |
//! | `timeout_ns`, `retries` | commands that the device does not end | `timeout.rs` |
//! | `async_writes` | what the policy is told of writes | here |
//! | `follow_writes` | what a write is charged | `write_cost_meter.rs` |
//! | `bypass` | requests that nothing stages or counts | `bypass.rs` |

use super::stage::StageLimits;
use crate::device::DeviceQueue;
use crate::request::{DeviceInfo, Submission};
use crate::split::Split;
use mqfq_sched::cost::CostModel;
use mqfq_sched::policy::Policy;
use mqfq_sched::topology::HctxId;
use std::sync::Arc;

/// The options of the data path of one device besides those of its policy: parts, the plug, timeouts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathOptions {
    /// Parts into which large reads and writes are cut.
    pub split: Split,
    /// Calls of clients that gather, from the one on that staged the first request, before their requests are
    /// dispatched; at least 1, which gathers the requests of one call. The end of a worker's turn ends it, too.
    pub plug: u32,
    /// A command that the device has not ended after this time is aborted, ns; 0: none ever is.
    pub timeout_ns: u64,
    /// Times that a request is given to the device again after resets, before it fails.
    pub retries: u8,
    /// No client waits for a write without FUA: it is a cache's that is written back. A front end cannot know. Off, all
    /// writes are waited for, as direct writes are in Linux, which is how hypervisors write for their guests.
    pub async_writes: bool,
    /// A write is charged its present cost on the device, and not for good as the cost model says.
    pub follow_writes: bool,
    /// Requests go straight to the worker's device queue: they are not staged, cut, timed or counted, and no tenant is
    /// protected from another, unless a policy names class queues for them. Only for a policy that stages nothing.
    pub bypass: bool,
    /// The device's block, bytes: parts are multiples of it. [`PathOptions::for_device`] knows it.
    pub block_bytes: u32,
}

impl PathOptions {
    /// [`PathOptions::plug`] of real workers: some microseconds of a front end's work, and enough requests for a batch.
    pub const PLUG: u32 = 32;

    /// [`PathOptions::timeout_ns`] as shipped: what Linux's block layer gives a drive.
    pub const TIMEOUT_NS: u64 = 30_000_000_000;

    /// [`PathOptions::retries`] as shipped: as many as Linux's NVMe driver makes.
    pub const RETRIES: u8 = 5;

    /// Options as shipped, but without timeouts: for time that is made up.
    pub const TIMELESS: PathOptions = PathOptions {
        split: Split::Off,
        plug: PathOptions::PLUG,
        timeout_ns: 0,
        retries: PathOptions::RETRIES,
        async_writes: false,
        follow_writes: false,
        bypass: false,
        block_bytes: 1,
    };

    /// Returns these options within the limits of the device.
    #[must_use]
    pub fn for_device(self, info: &DeviceInfo) -> PathOptions {
        PathOptions { block_bytes: info.block_bytes, ..self }
    }
}

impl Default for PathOptions {
    /// Options as shipped.
    fn default() -> PathOptions {
        PathOptions { timeout_ns: PathOptions::TIMEOUT_NS, ..PathOptions::TIMELESS }
    }
}

// Options of a context, and its answers.

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
