//! State of all paths of a context: the policy, the table of requests, the commands on the device, the counters.
//!
//! A path decides when a request goes to the device. How it is admitted (`admit.rs`), becomes a command (`dispatch.rs`)
//! and completes (`complete.rs`) is the same on every path with a block layer.

use super::admit::Charges;
use super::context::{HwCtxOptions, capacity_requests};
use super::context_counters::ContextCounters;
use super::dispatch::Commands;
use super::fair_intake::FairIntake;
use super::parts::Splitting;
use super::timeout::Expiry;
use super::write_cost_meter::WriteCostMeter;
use crate::stage::Staging;
use crate::table::RequestTable;
use crate::tuning::Meter;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::Policy;
use mqfq_sched::topology::HctxId;
use std::sync::Arc;

/// State common to all paths of a context.
pub(super) struct RequestPath<P: Policy> {
    pub(super) id: HctxId,
    pub(super) policy: Arc<P>,
    pub(super) queue: P::Queue,
    pub(super) charges: Charges,
    pub(super) staging: Staging,
    pub(super) requests: RequestTable,
    pub(super) commands: Commands,
    /// Nothing if no request is ever cut.
    pub(super) splitting: Option<Box<Splitting>>,
    /// Not 0: a completion takes the slow path. Parts under way, and one more while every end is counted.
    pub(super) slow_completions: usize,
    pub(super) expiry: Expiry,
    pub(super) intake: FairIntake,
    /// Flows that were refused, have room, and are to be told.
    pub(super) room: Vec<FlowId>,
    pub(super) counters: ContextCounters,
    /// Measurements for figures that are found while the policy runs; off if the figures are numbers.
    pub(super) meter: Meter,
    /// `None`: a write is charged as the cost model says, for good.
    pub(super) write_cost: Option<WriteCostMeter>,
}

impl<P: Policy> RequestPath<P> {
    pub(super) fn new(options: HwCtxOptions<P>) -> RequestPath<P> {
        let HwCtxOptions { id, policy, device, queue_depth, limits, cost, path } = options;
        let staged_max = capacity_requests(&limits);
        let staging = Staging::new(&limits);
        let places = staged_max + queue_depth as usize;
        let splitting = Splitting::new(path.split, path.block_bytes, places);
        RequestPath {
            id,
            queue: policy.open_queue(id, staged_max),
            policy,
            charges: Charges::new(&cost, path.async_writes),
            requests: RequestTable::new(places),
            commands: Commands::new(device, queue_depth),
            splitting,
            slow_completions: 0,
            expiry: Expiry::new(&path),
            intake: FairIntake::default(),
            room: Vec::with_capacity(staging.flows()),
            staging,
            counters: ContextCounters::new(limits.len()),
            meter: Meter::off(),
            write_cost: None,
        }
    }
}
