//! Changes to a context while it serves: flows come and go, their bounds change, its tables grow.
//!
//! Answers: is anything left here of a flow, or of a range of the device's bytes, that is to get another owner? And how
//! does a context with requests under way get room for more flows?
//!
//! All of it is asked by mail, between two turns of the worker's loop, and may take memory or look through the whole
//! table of requests. The data path pays nothing for it.

use super::hctx::{HwCtx, Path};
use super::path_options::capacity_requests;
use crate::client::Remains;
use crate::stage::StageLimits;
use crate::table::Request;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::Policy;

impl<P: Policy> HwCtx<P> {
    /// A request that was admitted by `until_ns`, and has not completed, is one of `whose`. Without a block layer the
    /// bytes of a request are not known, and each one counts.
    pub fn has_any(&self, whose: Remains, until_ns: u64) -> bool {
        if let Path::Bypass(bypass) = &self.path {
            let flow = if let Remains::Flow(flow) = whose { Some(flow) } else { None };
            return bypass.has_any(flow, until_ns);
        }
        let is_meant = |request: &Request| request.submitted_ns <= until_ns && whose.includes(&request.submission);
        self.shared.requests.iter().any(is_meant)
    }

    /// Sets the bounds of a flow for requests admitted from now on. They are at most those that the context has room
    /// for ([`HwCtx::new`], [`HwCtx::grow`]).
    pub fn set_limits(&mut self, flow: FlowId, limits: StageLimits) {
        self.shared.staging.set_limits(flow, limits);
        let more = self.shared.staging.flows().saturating_sub(self.shared.room.len());
        self.shared.room.reserve(more);
    }

    /// Gives the place of a flow to another, which has done nothing: the counts of the one before go.
    ///
    /// # Panics
    /// If something of it is staged here.
    pub fn forget(&mut self, flow: FlowId) {
        self.shared.staging.forget(flow);
        self.shared.counters.published.clear(flow);
    }

    /// Room for `limits.len()` flows that stage as much as that; the new ones stage nothing until they are told their
    /// bounds. Only while it is frozen and before another policy is
    /// given to it, with a queue for [`HwCtx::capacity_requests`] of these limits ([`HwCtx::thaw`]).
    ///
    /// # Panics
    /// If it is not quiet, or has no block layer.
    pub fn grow(&mut self, limits: &[StageLimits]) {
        assert!(self.is_quiet(), "{:?} is to grow with requests under way", self.shared.id);
        assert!(!matches!(self.path, Path::Bypass(_)), "{:?}: no block layer, no table of requests", self.shared.id);
        let shared = &mut self.shared;
        let places = capacity_requests(limits) + shared.commands.tags.all();
        shared.requests.grow(places);
        shared.splitting.iter_mut().for_each(|splitting| splitting.grow(places));
        shared.staging.grow(limits.len());
        shared.counters.published.grow(limits.len());
        shared.room.reserve(shared.staging.flows());
        if let Some(held) = &mut self.frozen {
            held.reserve(places);
        }
    }
}
