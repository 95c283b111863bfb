//! What a figure shows of a run: one number of its outcome, of a part of it, or one percentile of its latencies.

use super::X;
use super::keys::Keys;
use super::programs::{self, OfPrograms};
use crate::any::AnyOutcome;
use crate::outcome::{Outcome, TenantOutcome, WindowOutcome};

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
    /// The same, 90th percentile.
    P90Ns,
    /// The same, 99th percentile.
    P99Ns,
    /// The same, 99.9th percentile.
    P99_9Ns,
    /// The same, 99.99th percentile.
    P99_99Ns,
    /// The same, longest.
    MaxNs,
    /// The same, the percentile that x is.
    LatencyNs,
    /// A tenant's bytes per second, over its part by weight of those of all.
    OfIdeal,
    /// How far that is from 1.
    IdealDeviation,
    /// Part of a tenant's bytes that went to the high queues, 0..=1.
    HighShare,
    /// The same of the medium queues.
    MediumShare,
    /// The same of the low queues.
    LowShare,
    /// Weight of the high queues over that of the low ones, as last set.
    HighLowRatio,
    /// Standard deviation of a tenant's bytes in the windows that count, over their mean.
    WindowVariation,
    /// From this window's start on, each tenant has its ideal to a tenth in every window, s.
    FairFromS,
    /// Time of the cores for each request, ns.
    CpuNsPerRequest,
    /// Time of the cores for each KiB, ns.
    CpuNsPerKib,
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
    /// The D that was chosen at the end, units.
    Depth,
    /// From here on the D that was chosen is within a factor 1.6 of that at the end, s since the start.
    DepthSettledS,
    /// Of a scenario whose competitors are programs.
    Programs(OfPrograms),
}

/// Names in figure files. The second column: whose it is.
pub const KINDS: &[(&str, Whose, Kind)] = &[
    ("requests-per-s", Whose::Either, Kind::RequestsPerS),
    ("bytes-per-s", Whose::Either, Kind::BytesPerS),
    ("slowdown", Whose::Tenant, Kind::Slowdown),
    ("share", Whose::Tenant, Kind::Share),
    ("mean-ns", Whose::Tenant, Kind::MeanNs),
    ("p50-ns", Whose::Tenant, Kind::P50Ns),
    ("p90-ns", Whose::Tenant, Kind::P90Ns),
    ("p99-ns", Whose::Tenant, Kind::P99Ns),
    ("p99.9-ns", Whose::Tenant, Kind::P99_9Ns),
    ("p99.99-ns", Whose::Tenant, Kind::P99_99Ns),
    ("max-ns", Whose::Tenant, Kind::MaxNs),
    ("latency-ns", Whose::Tenant, Kind::LatencyNs),
    ("of-ideal", Whose::Tenant, Kind::OfIdeal),
    ("ideal-deviation", Whose::Either, Kind::IdealDeviation),
    ("high-share", Whose::Tenant, Kind::HighShare),
    ("medium-share", Whose::Tenant, Kind::MediumShare),
    ("low-share", Whose::Tenant, Kind::LowShare),
    ("high-low-ratio", Whose::All, Kind::HighLowRatio),
    ("window-variation", Whose::Tenant, Kind::WindowVariation),
    ("fair-from-s", Whose::All, Kind::FairFromS),
    ("cpu-ns-per-request", Whose::All, Kind::CpuNsPerRequest),
    ("cpu-ns-per-kib", Whose::All, Kind::CpuNsPerKib),
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
    ("depth", Whose::All, Kind::Depth),
    ("depth-settled-s", Whose::All, Kind::DepthSettledS),
    ("cpu-share", Whose::Tenant, Kind::Programs(OfPrograms::CpuShare)),
    ("cores-used", Whose::Either, Kind::Programs(OfPrograms::CoresUsed)),
    ("of-fair", Whose::Tenant, Kind::Programs(OfPrograms::OfFair)),
    ("of-due", Whose::Tenant, Kind::Programs(OfPrograms::OfDue)),
    ("lag", Whose::Tenant, Kind::Programs(OfPrograms::Lag)),
    ("equation-3", Whose::Tenant, Kind::Programs(OfPrograms::Equation3)),
    ("items-per-s", Whose::Tenant, Kind::Programs(OfPrograms::ItemsPerS)),
    ("speedup", Whose::Tenant, Kind::Programs(OfPrograms::Speedup)),
    ("relative-time", Whose::Tenant, Kind::Programs(OfPrograms::RelativeTime)),
    ("weighted-speedup", Whose::All, Kind::Programs(OfPrograms::WeightedSpeedup)),
    ("migrations-per-s", Whose::Either, Kind::Programs(OfPrograms::MigrationsPerS)),
    ("blocks-per-s", Whose::Either, Kind::Programs(OfPrograms::BlocksPerS)),
    ("utilisation", Whose::All, Kind::Programs(OfPrograms::Utilisation)),
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

/// What can be told of a part of a run.
pub const OF_WINDOWS: &[&str] = &["requests-per-s", "bytes-per-s", "of-ideal", "high-low-ratio"];

/// The percentiles that an outcome has, in the order of their names.
pub const PERCENTILES: &[f64] = &[50.0, 90.0, 99.0, 99.9, 99.99, 100.0];

/// How near its ideal a tenant is in a window that is called fair.
const FAIR: f64 = 0.1;

/// A factor by which a D is near another.
const NEAR: f64 = 1.6;

/// What a metric compares the run with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reference {
    /// Nothing.
    None,
    /// The same one with nobody else.
    Alone,
    /// The same scenario with other keys.
    Baseline,
}

/// A number of an outcome, times `scale`.
#[derive(Clone, Debug)]
pub struct Metric {
    /// The quantity that is shown.
    pub kind: Kind,
    /// Whose: a tenant's or a program's.
    pub member: Option<String>,
    /// What differs in the run with this one alone.
    pub alone: Keys,
    /// What differs in the run that this one is compared with.
    pub baseline: Keys,
    /// From the outcome's unit to the figure's.
    pub scale: f64,
}

impl Metric {
    /// As figure files write it.
    pub fn name(&self) -> &'static str {
        KINDS.iter().find(|(_, _, kind)| *kind == self.kind).map_or("", |(name, ..)| name)
    }

    /// The section of a scenario that names its members.
    pub fn section(&self) -> &'static str {
        if matches!(self.kind, Kind::Programs(_)) { "program" } else { "tenant" }
    }

    /// What it compares with.
    pub fn reference(&self) -> Reference {
        match self.kind {
            Kind::Slowdown => Reference::Alone,
            Kind::Programs(kind) => kind.reference(),
            _ => Reference::None,
        }
    }

    /// The number; `None` if it does not exist (slowdown of a tenant that got nothing). `x`: where on the axis it is
    /// shown.
    pub fn value(&self, together: &AnyOutcome, reference: Option<&AnyOutcome>, x: &X) -> Option<f64> {
        let value = match (self.kind, together, reference) {
            (Kind::Programs(kind), AnyOutcome::Cpu(run), None) => {
                programs::value(kind, self.member.as_deref(), run, None, x)?
            }
            (Kind::Programs(kind), AnyOutcome::Cpu(run), Some(AnyOutcome::Cpu(other))) => {
                programs::value(kind, self.member.as_deref(), run, Some(other), x)?
            }
            (_, AnyOutcome::Block(run), None) => self.of_tenants(run, None, x)?,
            (_, AnyOutcome::Block(run), Some(AnyOutcome::Block(alone))) => self.of_tenants(run, Some(alone), x)?,
            _ => return None,
        };
        Some(value * self.scale)
    }

    fn of_tenants(&self, together: &Outcome, alone: Option<&Outcome>, x: &X) -> Option<f64> {
        let of = |outcome: &Outcome| self.member.as_ref().and_then(|name| tenant(outcome, name).cloned());
        let whole = together;
        let requests_per_s = whole.requests_per_s;
        let total_requests: u64 = whole.tenants.iter().map(|tenant| tenant.requests).sum();
        let per_request = |count: u64| (total_requests > 0).then(|| count as f64 / total_requests as f64);
        let memory = &whole.memory;
        let value = match self.kind {
            Kind::RequestsPerS if self.member.is_some() => of(whole)?.requests_per_s,
            Kind::RequestsPerS => requests_per_s,
            Kind::BytesPerS if self.member.is_some() => of(whole)?.bytes_per_s,
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
            Kind::P90Ns => served(of(whole)?)?.p90_ns as f64,
            Kind::P99Ns => served(of(whole)?)?.p99_ns as f64,
            Kind::P99_9Ns => served(of(whole)?)?.p99_9_ns as f64,
            Kind::P99_99Ns => served(of(whole)?)?.p99_99_ns as f64,
            Kind::MaxNs => served(of(whole)?)?.max_ns as f64,
            Kind::LatencyNs => percentile(&served(of(whole)?)?, x)? as f64,
            Kind::OfIdeal => of_ideal(&of(whole)?)?,
            Kind::IdealDeviation if self.member.is_some() => (of_ideal(&of(whole)?)? - 1.0).abs(),
            Kind::IdealDeviation => {
                let of_all: Option<Vec<f64>> = whole.tenants.iter().map(of_ideal).collect();
                of_all?.into_iter().map(|part| (part - 1.0).abs()).fold(0.0, f64::max)
            }
            Kind::HighShare => class_share(&of(whole)?, 0)?,
            Kind::MediumShare => class_share(&of(whole)?, 1)?,
            Kind::LowShare => class_share(&of(whole)?, 2)?,
            Kind::HighLowRatio => ratio_at(whole, u64::MAX)?,
            Kind::WindowVariation => variation(whole, &of(whole)?)?,
            Kind::FairFromS => fair_from_s(whole)?,
            Kind::Depth => f64::from(whole.depths.last()?.depth),
            Kind::DepthSettledS => depth_settled_s(whole)?,
            Kind::CpuNsPerRequest => whole.cpu_ns_per_request?,
            Kind::CpuNsPerKib => whole.cpu_ns_per_kib?,
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
            Kind::Programs(_) => return None,
        };
        Some(value)
    }
}

impl Metric {
    /// The number of one window, of those that [`OF_WINDOWS`] names.
    pub fn of_window(&self, outcome: &Outcome, at: usize) -> Option<f64> {
        let window_ns = outcome.window_ns?;
        let chosen = |tenant: &&TenantOutcome| self.member.as_ref().is_none_or(|name| tenant.name == *name);
        let sum = |of: fn(&WindowOutcome) -> u64| {
            let tenants = outcome.tenants.iter().filter(chosen);
            let total: u64 = tenants.filter_map(|tenant| tenant.windows.get(at)).map(of).sum();
            total as f64 * 1e9 / window_ns as f64
        };
        let value = match self.kind {
            Kind::RequestsPerS => sum(|window| window.requests),
            Kind::BytesPerS => sum(|window| window.bytes),
            Kind::OfIdeal => {
                let tenant = outcome.tenants.iter().find(chosen)?;
                window_of_ideal(outcome, tenant, at)?
            }
            Kind::HighLowRatio => ratio_at(outcome, (at as u64 + 1) * window_ns)?,
            other => unreachable!("{other:?} is refused where the figure is read"),
        };
        Some(value * self.scale)
    }
}

/// A tenant's latency at the percentile that `x` is.
fn percentile(tenant: &TenantOutcome, x: &X) -> Option<u64> {
    let &TenantOutcome { p50_ns, p90_ns, p99_ns, p99_9_ns, p99_99_ns, max_ns, .. } = tenant;
    let X::Number(asked) = x else { return None };
    let at = PERCENTILES.iter().position(|known| known == asked)?;
    Some([p50_ns, p90_ns, p99_ns, p99_9_ns, p99_99_ns, max_ns][at])
}

/// Of its part by weight.
fn of_ideal(tenant: &TenantOutcome) -> Option<f64> {
    (tenant.ideal_bytes_per_s > 0.0).then(|| tenant.bytes_per_s / tenant.ideal_bytes_per_s)
}

/// The same of one window: its part of what all got then.
fn window_of_ideal(outcome: &Outcome, tenant: &TenantOutcome, at: usize) -> Option<f64> {
    let bytes = |tenant: &TenantOutcome| tenant.windows.get(at).map_or(0, |window| window.bytes) as f64;
    let (all, of_run) = (outcome.tenants.iter().map(bytes).sum::<f64>(), outcome.bytes_per_s);
    let ideal = all * tenant.ideal_bytes_per_s / of_run;
    (ideal > 0.0).then(|| bytes(tenant) / ideal)
}

fn class_share(tenant: &TenantOutcome, class: usize) -> Option<f64> {
    let all: u64 = tenant.class_bytes.iter().sum();
    (all > 0).then(|| tenant.class_bytes[class] as f64 / all as f64)
}

/// As set last before `before_ns`.
fn ratio_at(outcome: &Outcome, before_ns: u64) -> Option<f64> {
    let set = outcome.class_weights.iter().rfind(|weights| weights.at_ns < before_ns)?;
    Some(f64::from(set.high) / f64::from(set.low))
}

/// The windows that lie in the measured time, by number.
fn counted_windows(outcome: &Outcome) -> Option<std::ops::Range<usize>> {
    let window_ns = outcome.window_ns?;
    let all = outcome.tenants.iter().map(|tenant| tenant.windows.len()).max()?;
    let warm_up = all - ((outcome.measured_ns / window_ns) as usize).min(all);
    Some(warm_up..all)
}

fn variation(outcome: &Outcome, tenant: &TenantOutcome) -> Option<f64> {
    let windows = tenant.windows.get(counted_windows(outcome)?)?;
    let count = windows.len() as f64;
    let mean = windows.iter().map(|window| window.bytes as f64).sum::<f64>() / count;
    let square = |window: &WindowOutcome| (window.bytes as f64 - mean) * (window.bytes as f64 - mean);
    let squares: f64 = windows.iter().map(square).sum();
    (mean > 0.0).then(|| (squares / count).sqrt() / mean)
}

fn fair_from_s(outcome: &Outcome) -> Option<f64> {
    let windows = counted_windows(outcome)?;
    let is_fair = |at: usize| {
        let near = |tenant| window_of_ideal(outcome, tenant, at).is_some_and(|part| (part - 1.0).abs() <= FAIR);
        outcome.tenants.iter().all(near)
    };
    let first = windows.clone().rev().take_while(|&at| is_fair(at)).last()?;
    Some(first as f64 * outcome.window_ns? as f64 * 1e-9)
}

/// Nothing where D is a number.
fn depth_settled_s(outcome: &Outcome) -> Option<f64> {
    let last = f64::from(outcome.depths.last()?.depth);
    let is_near = |depth: u32| f64::from(depth) <= last * NEAR && f64::from(depth) * NEAR >= last;
    // What was chosen last before it stayed near was in force until the next choice.
    let far = outcome.depths.iter().rposition(|at| !is_near(at.depth));
    Some(far.map_or(0, |far| outcome.depths[far + 1].at_ns) as f64 * 1e-9)
}

fn tenant<'a>(outcome: &'a Outcome, name: &str) -> Option<&'a TenantOutcome> {
    outcome.tenants.iter().find(|tenant| tenant.name == name)
}

/// A latency is told only of who was served.
fn served(tenant: TenantOutcome) -> Option<TenantOutcome> {
    (tenant.requests > 0).then_some(tenant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::DepthAt;

    /// Two equal tenants; in windows of 1 s, of which the first is warm-up, the first of them gets so many bytes
    /// of 100.
    fn two(first: &[u64]) -> Outcome {
        let tenant = |name: &str, bytes: Vec<u64>| TenantOutcome {
            name: name.into(),
            bytes_per_s: bytes[1..].iter().sum::<u64>() as f64,
            ideal_bytes_per_s: 50.0 * (first.len() - 1) as f64,
            class_bytes: [30, 10, 60],
            windows: bytes.into_iter().map(|bytes| WindowOutcome { requests: 1, bytes }).collect(),
            ..TenantOutcome::default()
        };
        let others = first.iter().map(|bytes| 100 - bytes).collect();
        Outcome {
            tenants: vec![tenant("a", first.to_vec()), tenant("b", others)],
            bytes_per_s: 100.0 * (first.len() - 1) as f64,
            measured_ns: (first.len() - 1) as u64 * 1_000_000_000,
            window_ns: Some(1_000_000_000),
            ..Outcome::default()
        }
    }

    #[test]
    fn a_depth_has_settled_once_it_stays_near_the_last_one() {
        let settled = |depths: &[(u64, u32)]| {
            let depths = depths.iter().map(|&(ms, depth)| DepthAt { at_ns: ms * 1_000_000, depth }).collect();
            value(Kind::DepthSettledS, None, &Outcome { depths, ..Outcome::default() })
        };
        assert_eq!(settled(&[(0, 8), (100, 33), (500, 65), (600, 97), (700, 65), (900, 65)]), Some(0.5));
        assert_eq!(settled(&[(10, 50), (900, 50)]), Some(0.0), "from the start");
        assert_eq!(settled(&[]), None, "a number");
    }

    fn value(kind: Kind, tenant: Option<&str>, outcome: &Outcome) -> Option<f64> {
        let (alone, baseline) = (Keys::default(), Keys::default());
        let metric = Metric { kind, member: tenant.map(str::to_string), alone, baseline, scale: 1.0 };
        metric.value(&outcome.clone().into(), None, &X::Number(0.0))
    }

    #[test]
    fn it_is_fair_from_the_first_window_after_which_nobody_is_a_tenth_off() {
        let from = |first: &[u64]| value(Kind::FairFromS, None, &two(first));
        assert_eq!(from(&[90, 80, 54, 46, 50]), Some(2.0));
        assert_eq!(from(&[50, 50, 50, 56, 50]), Some(4.0), "56 of 50 is more than a tenth off");
        assert_eq!(from(&[50, 50, 60]), None, "not at the end");
        assert_eq!(from(&[50, 50, 50]), Some(1.0), "warm-up does not count");
    }

    #[test]
    fn deviation_variation_and_classes() {
        let outcome = two(&[99, 60, 40, 80]);
        assert_eq!(value(Kind::OfIdeal, Some("a"), &outcome), Some(1.2), "180 of 150");
        let close = |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() < 1e-12;
        assert!(close(value(Kind::IdealDeviation, Some("b"), &outcome), 0.2), "120 of 150");
        assert!(close(value(Kind::IdealDeviation, None, &outcome), 0.2));
        // Mean 60, deviations 0, 20, 20.
        assert!(close(value(Kind::WindowVariation, Some("a"), &outcome), (800.0f64 / 3.0).sqrt() / 60.0));
        assert_eq!(value(Kind::HighShare, Some("a"), &outcome), Some(0.3));
        assert_eq!(value(Kind::LowShare, Some("a"), &outcome), Some(0.6));
        assert_eq!(value(Kind::HighLowRatio, None, &outcome), None, "never set");
    }
}
