//! What a figure shows of a run: one number of its outcome.

use super::keys::Keys;
use crate::outcome::{Outcome, TenantOutcome};

/// Which number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Requests per second, of a tenant or of all.
    RequestsPerS,
    /// Bytes per second, of a tenant or of all.
    BytesPerS,
    /// A tenant's bytes per second alone, over those together with the others.
    Slowdown,
    /// A tenant's part of all bytes, 0..=1.
    Share,
    /// Arrival to completion of a tenant's requests, mean, ns.
    MeanNs,
    /// The same, median.
    P50Ns,
    /// The same, 99th percentile.
    P99Ns,
    /// How far one of a tenant's `count` is from their mean.
    ShareDeviationMax,
    /// Kicks of sleepers per second.
    KicksPerS,
    /// Runs of workers that were throttled, per second.
    ReschedulesPerS,
    /// Picks that ended at the window, per second.
    ThrottledPerS,
    /// Picks that ended without a token, per second.
    NoTokenPerS,
    /// Part of the cores' time that was not slept, 0..=1.
    BusyShare,
    /// Lines that came from another core, per request.
    TransfersPerRequest,
    /// Lines that came from another socket, per request.
    FarTransfersPerRequest,
    /// Waiting for a line on its way to another core, ns per request.
    LineWaitNsPerRequest,
    /// Waiting for a lock, ns per request.
    LockWaitNsPerRequest,
}

/// Names in figure files. The second column: whose it is.
pub const KINDS: &[(&str, Whose, Kind)] = &[
    ("requests-per-s", Whose::Either, Kind::RequestsPerS),
    ("bytes-per-s", Whose::Either, Kind::BytesPerS),
    ("slowdown", Whose::Tenant, Kind::Slowdown),
    ("share", Whose::Tenant, Kind::Share),
    ("mean-ns", Whose::Tenant, Kind::MeanNs),
    ("p50-ns", Whose::Tenant, Kind::P50Ns),
    ("p99-ns", Whose::Tenant, Kind::P99Ns),
    ("share-deviation-max", Whose::Tenant, Kind::ShareDeviationMax),
    ("kicks-per-s", Whose::All, Kind::KicksPerS),
    ("reschedules-per-s", Whose::All, Kind::ReschedulesPerS),
    ("throttled-per-s", Whose::All, Kind::ThrottledPerS),
    ("no-token-per-s", Whose::All, Kind::NoTokenPerS),
    ("busy-share", Whose::All, Kind::BusyShare),
    ("transfers-per-request", Whose::All, Kind::TransfersPerRequest),
    ("far-transfers-per-request", Whose::All, Kind::FarTransfersPerRequest),
    ("line-wait-ns-per-request", Whose::All, Kind::LineWaitNsPerRequest),
    ("lock-wait-ns-per-request", Whose::All, Kind::LockWaitNsPerRequest),
];

/// Whether a metric is told of one tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// It needs a tenant.
    Tenant,
    /// It is the whole run's.
    All,
    /// Of a tenant if one is named.
    Either,
}

/// A number of an outcome, times `scale`.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Which.
    pub kind: Kind,
    /// Whose.
    pub tenant: Option<String>,
    /// What differs in the run with this tenant alone; slowdown only.
    pub alone: Keys,
    /// From the outcome's unit to the figure's.
    pub scale: f64,
}

impl Metric {
    /// It compares with the tenant alone.
    pub fn needs_alone(&self) -> bool {
        self.kind == Kind::Slowdown
    }

    /// The number; `None` if it does not exist (slowdown of a tenant that got nothing).
    pub fn value(&self, together: &Outcome, alone: Option<&Outcome>) -> Option<f64> {
        let of = |outcome: &Outcome| self.tenant.as_ref().and_then(|name| tenant(outcome, name).cloned());
        let whole = together;
        let requests_per_s = whole.requests_per_s;
        let total_requests: u64 = whole.tenants.iter().map(|tenant| tenant.requests).sum();
        let per_request = |count: u64| (total_requests > 0).then(|| count as f64 / total_requests as f64);
        let memory = &whole.memory;
        let value = match self.kind {
            Kind::RequestsPerS if self.tenant.is_some() => of(whole)?.requests_per_s,
            Kind::RequestsPerS => requests_per_s,
            Kind::BytesPerS if self.tenant.is_some() => of(whole)?.bytes_per_s,
            Kind::BytesPerS => whole.bytes_per_s,
            Kind::Slowdown => {
                let shared = of(whole)?.bytes_per_s;
                (shared > 0.0).then(|| of(alone?).map(|alone| alone.bytes_per_s / shared)).flatten()?
            }
            Kind::Share => {
                (whole.bytes_per_s > 0.0).then(|| of(whole).map(|own| own.bytes_per_s / whole.bytes_per_s)).flatten()?
            }
            Kind::MeanNs => served(of(whole)?)?.mean_ns,
            Kind::P50Ns => served(of(whole)?)?.p50_ns as f64,
            Kind::P99Ns => served(of(whole)?)?.p99_ns as f64,
            Kind::ShareDeviationMax => of(whole)?.share_deviation_max,
            Kind::KicksPerS => whole.kicks_per_s,
            Kind::ReschedulesPerS => whole.reschedules_per_s,
            Kind::ThrottledPerS => whole.throttled_per_s,
            Kind::NoTokenPerS => whole.no_token_per_s,
            Kind::BusyShare => whole.busy_share,
            Kind::TransfersPerRequest => {
                per_request(memory.transfers_same_core + memory.transfers_same_socket + memory.transfers_other_socket)?
            }
            Kind::FarTransfersPerRequest => per_request(memory.transfers_other_socket)?,
            Kind::LineWaitNsPerRequest => per_request(memory.waited_for_line_ns)?,
            Kind::LockWaitNsPerRequest => per_request(memory.waited_for_lock_ns)?,
        };
        Some(value * self.scale)
    }
}

fn tenant<'a>(outcome: &'a Outcome, name: &str) -> Option<&'a TenantOutcome> {
    outcome.tenants.iter().find(|tenant| tenant.name == name)
}

/// A latency is told only of who was served.
fn served(tenant: TenantOutcome) -> Option<TenantOutcome> {
    (tenant.requests > 0).then_some(tenant)
}
