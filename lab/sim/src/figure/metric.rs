//! Numbers that a figure shows of a run: one of its outcome, of a part of it, or one percentile of its latencies.

use super::X;
use super::keys::Keys;
use super::programs;
use crate::any::AnyOutcome;
use crate::cpu::{self, outcome::ProgramOutcome};
use crate::outcome::{Outcome, TenantOutcome, WindowOutcome};
use Whose::{All, Either, Tenant};

/// A kind of number.
#[derive(Debug)]
pub struct Kind {
    /// As figure files write it; times in ns or s, parts 0..=1.
    pub name: &'static str,
    /// Whose it is.
    pub whose: Whose,
    /// Run to compare with.
    pub reference: Reference,
    of: Of,
}

/// How it is taken; `None`: it does not exist.
#[derive(Debug)]
enum Of {
    Tenants(fn(&OfTenants<'_>) -> Option<f64>),
    Programs(fn(&OfPrograms<'_>) -> Option<f64>),
}

/// Source of a number: a run and one of its members.
pub struct Taken<'a, R, M> {
    /// The run.
    pub run: &'a R,
    /// Member that is named.
    pub own: Option<&'a M>,
    /// Run to compare with.
    pub other: Option<&'a R>,
    /// Where on the axis it is shown.
    pub x: &'a X,
}

/// A run of tenants.
type OfTenants<'a> = Taken<'a, Outcome, TenantOutcome>;

/// A run of programs.
pub type OfPrograms<'a> = Taken<'a, cpu::Outcome, ProgramOutcome>;

const fn kind(name: &'static str, whose: Whose, of: fn(&OfTenants<'_>) -> Option<f64>) -> Kind {
    Kind { name, whose, reference: Reference::None, of: Of::Tenants(of) }
}

/// A kind of programs.
pub const fn of_programs(
    name: &'static str,
    whose: Whose,
    reference: Reference,
    of: fn(&OfPrograms<'_>) -> Option<f64>,
) -> Kind {
    Kind { name, whose, reference, of: Of::Programs(of) }
}

/// Kinds of tenants; latencies are from arrival to completion.
static KINDS: &[Kind] = &[
    kind("requests-per-s", Either, |on| Some(on.own.map_or(on.run.requests_per_s, |own| own.requests_per_s))),
    kind("bytes-per-s", Either, |on| Some(on.own.map_or(on.run.bytes_per_s, |own| own.bytes_per_s))),
    // Bytes per second alone, over those together with the others.
    Kind {
        reference: Reference::Alone,
        ..kind("slowdown", Tenant, |on| quotient(tenant(on.other?, &on.own?.name)?.bytes_per_s, on.own?.bytes_per_s))
    },
    // Part of all bytes.
    kind("share", Tenant, |on| quotient(on.own?.bytes_per_s, on.run.bytes_per_s)),
    // Part of the bytes that are dispatched while all tenants wait; and that part of the time.
    kind("backlogged-share", Tenant, |on| {
        let at = on.run.tenants.iter().position(|tenant| Some(&tenant.name) == on.own.map(|own| &own.name))?;
        on.run.backlog.as_ref()?.shares.get(at).copied()
    }),
    kind("backlogged", All, |on| Some(on.run.backlog.as_ref()?.time_part)),
    kind("mean-ns", Tenant, |on| Some(on.served()?.mean_ns)),
    kind("p50-ns", Tenant, |on| Some(on.served()?.p50_ns as f64)),
    kind("p90-ns", Tenant, |on| Some(on.served()?.p90_ns as f64)),
    kind("p99-ns", Tenant, |on| Some(on.served()?.p99_ns as f64)),
    kind("p99.9-ns", Tenant, |on| Some(on.served()?.p99_9_ns as f64)),
    kind("p99.99-ns", Tenant, |on| Some(on.served()?.p99_99_ns as f64)),
    kind("max-ns", Tenant, |on| Some(on.served()?.max_ns as f64)),
    // The percentile that x is.
    kind(PERCENTILE, Tenant, |on| Some(percentile(on.served()?, on.x)? as f64)),
    // Bytes per second, over the part by weight of those of all; and how far that is from 1.
    kind("of-ideal", Tenant, |on| of_ideal(on.own?)),
    kind("ideal-deviation", Either, |on| {
        let off = |tenant| Some((of_ideal(tenant)? - 1.0).abs());
        match on.own {
            Some(own) => off(own),
            None => on.run.tenants.iter().map(off).try_fold(0.0f64, |most, off| Some(f64::max(most, off?))),
        }
    }),
    // Parts of the bytes that went to queues of a class.
    kind("high-share", Tenant, |on| class_share(on.own?, 0)),
    kind("medium-share", Tenant, |on| class_share(on.own?, 1)),
    kind("low-share", Tenant, |on| class_share(on.own?, 2)),
    // Weight of the high queues over that of the low ones, as last set.
    kind("high-low-ratio", All, |on| ratio_at(on.run, u64::MAX)),
    // Standard deviation of the bytes in the windows that count, over their mean.
    kind("window-variation", Tenant, |on| variation(on.run, on.own?)),
    // From this window's start on, each tenant has its ideal to a tenth in every window.
    kind("fair-from-s", All, |on| fair_from_s(on.run)),
    // Time of the cores.
    kind("cpu-ns-per-request", All, |on| on.run.cpu_ns_per_request),
    kind("cpu-ns-per-kib", All, |on| on.run.cpu_ns_per_kib),
    // How far one of a tenant's `count` is from their mean.
    kind("share-deviation-max", Tenant, |on| Some(on.own?.share_deviation_max)),
    // Kicks of sleepers; runs of workers that were throttled; picks that ended at the window, or without a token.
    kind("kicks-per-s", All, |on| Some(on.run.kicks_per_s)),
    kind("reschedules-per-s", All, |on| Some(on.run.reschedules_per_s)),
    kind("throttled-per-s", All, |on| Some(on.run.throttled_per_s)),
    kind("no-token-per-s", All, |on| Some(on.run.no_token_per_s)),
    // Part of the cores' time that was not slept.
    kind("busy-share", All, |on| Some(on.run.busy_share)),
    // Lines that came from another core, and from another socket.
    kind("transfers-per-request", All, |on| {
        let memory = &on.run.memory;
        on.per_request(memory.transfers_same_core + memory.transfers_same_socket + memory.transfers_other_socket)
    }),
    kind("far-transfers-per-request", All, |on| on.per_request(on.run.memory.transfers_other_socket)),
    // Waiting for a line on its way to another core, and for a lock.
    kind("line-wait-ns-per-request", All, |on| on.per_request(on.run.memory.waited_for_line_ns)),
    kind("lock-wait-ns-per-request", All, |on| on.per_request(on.run.memory.waited_for_lock_ns)),
    // The D that was chosen at the end, units; and the time since the start from which it is within a factor 1.6 of
    // that.
    kind("depth", All, |on| Some(f64::from(on.run.depths.last()?.depth))),
    kind("depth-settled-s", All, |on| depth_settled_s(on.run)),
    // Changes of D's direction in the time that counts.
    kind("depth-turns", All, |on| depth_turns(on.run)),
];

/// Name of the kind that is a percentile.
pub const PERCENTILE: &str = "latency-ns";

/// All kinds.
pub fn kinds() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().chain(programs::KINDS)
}

impl Kind {
    /// The section of a scenario that names its members.
    pub fn section(&self) -> &'static str {
        if matches!(self.of, Of::Programs(_)) { "program" } else { "tenant" }
    }
}

impl<'a> OfTenants<'a> {
    /// A latency exists only for a tenant that was served.
    fn served(&self) -> Option<&'a TenantOutcome> {
        self.own.filter(|own| own.requests > 0)
    }

    fn per_request(&self, count: u64) -> Option<f64> {
        quotient(count as f64, self.run.tenants.iter().map(|tenant| tenant.requests).sum::<u64>() as f64)
    }
}

/// Whether a metric is told of one tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// It needs a tenant.
    Tenant,
    /// It is the whole run's.
    All,
    /// A tenant's if one is named.
    Either,
}

/// Names of the metrics that a part of a run has.
pub const OF_WINDOWS: &[&str] = &["requests-per-s", "bytes-per-s", "of-ideal", "high-low-ratio"];

/// The percentiles that an outcome has, in the order of their names.
pub const PERCENTILES: &[f64] = &[50.0, 90.0, 99.0, 99.9, 99.99, 100.0];

/// How near its ideal a tenant is in a window that is called fair.
const FAIR: f64 = 0.1;

/// A factor by which a D is near another.
const NEAR: f64 = 1.6;

/// Run to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reference {
    /// Nothing.
    None,
    /// The scenario with one competitor alone.
    Alone,
    /// A baseline: the scenario with other keys.
    Baseline,
}

/// A number of an outcome, times `scale`.
#[derive(Clone, Debug)]
pub struct Metric {
    /// The quantity that is shown.
    pub kind: &'static Kind,
    /// Name of its tenant or program.
    pub member: Option<String>,
    /// Keys changed in the run with this one alone.
    pub alone: Keys,
    /// Keys changed in the run it is compared with.
    pub baseline: Keys,
    /// From the outcome's unit to the figure's.
    pub scale: f64,
}

impl Metric {
    /// The number; `None` if it does not exist (slowdown of a tenant that got nothing). `x`: where on the axis it is
    /// shown.
    pub fn value(&self, together: &AnyOutcome, reference: Option<&AnyOutcome>, x: &X) -> Option<f64> {
        let name = self.member.as_deref();
        let value = match (&self.kind.of, together) {
            (Of::Programs(of), AnyOutcome::Cpu(run)) => {
                let find = |name| run.programs.iter().find(|program| program.name == name);
                let own = if let Some(name) = name { Some(find(name)?) } else { None };
                let other = if let Some(AnyOutcome::Cpu(other)) = reference { Some(&**other) } else { None };
                of(&Taken { run: &**run, own, other, x })?
            }
            (Of::Tenants(of), AnyOutcome::Block(run)) => {
                let own = if let Some(name) = name { Some(tenant(run, name)?) } else { None };
                let other = if let Some(AnyOutcome::Block(other)) = reference { Some(&**other) } else { None };
                of(&Taken { run: &**run, own, other, x })?
            }
            _ => return None,
        };
        Some(value * self.scale)
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
        let value = match self.kind.name {
            "requests-per-s" => sum(|window| window.requests),
            "bytes-per-s" => sum(|window| window.bytes),
            "of-ideal" => {
                let tenant = outcome.tenants.iter().find(chosen)?;
                window_of_ideal(outcome, tenant, at)?
            }
            "high-low-ratio" => ratio_at(outcome, (at as u64 + 1) * window_ns)?,
            other => unreachable!("{other} is refused where the figure is read"),
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

/// Service over part by weight.
fn of_ideal(tenant: &TenantOutcome) -> Option<f64> {
    quotient(tenant.bytes_per_s, tenant.ideal_bytes_per_s)
}

/// Service in one window over the part by weight of all service then.
fn window_of_ideal(outcome: &Outcome, tenant: &TenantOutcome, at: usize) -> Option<f64> {
    let bytes = |tenant: &TenantOutcome| tenant.windows.get(at).map_or(0, |window| window.bytes) as f64;
    let (all, of_run) = (outcome.tenants.iter().map(bytes).sum::<f64>(), outcome.bytes_per_s);
    let ideal = all * tenant.ideal_bytes_per_s / of_run;
    quotient(bytes(tenant), ideal)
}

fn class_share(tenant: &TenantOutcome, class: usize) -> Option<f64> {
    let all: u64 = tenant.class_bytes.iter().sum();
    quotient(tenant.class_bytes[class] as f64, all as f64)
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
    let last = outcome.depths.last()?.depth;
    // The choice before it stayed near was in force until the next one.
    let far = outcome.depths.iter().rposition(|at| !is_near(at.depth, last));
    Some(far.map_or(0, |far| outcome.depths[far + 1].at_ns) as f64 * 1e-9)
}

/// Whether a D is within a factor [`NEAR`] of another.
fn is_near(depth: u32, other: u32) -> bool {
    let (depth, other) = (f64::from(depth), f64::from(other));
    depth <= other * NEAR && depth * NEAR >= other
}

/// Nothing where D is a number.
fn depth_turns(outcome: &Outcome) -> Option<f64> {
    let from_ns = outcome.depths.last()?.at_ns.saturating_sub(outcome.measured_ns);
    let pairs = outcome.depths.windows(2).filter(|pair| pair[1].at_ns >= from_ns);
    let mut steps: Vec<_> = pairs.map(|pair| pair[0].depth.cmp(&pair[1].depth)).filter(|step| step.is_ne()).collect();
    steps.dedup();
    Some(steps.len().saturating_sub(1) as f64)
}

fn tenant<'a>(outcome: &'a Outcome, name: &str) -> Option<&'a TenantOutcome> {
    outcome.tenants.iter().find(|tenant| tenant.name == name)
}

/// Nothing where the denominator is.
pub fn quotient(numerator: f64, denominator: f64) -> Option<f64> {
    (denominator > 0.0).then(|| numerator / denominator)
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
            value("depth-settled-s", None, &Outcome { depths, ..Outcome::default() })
        };
        assert_eq!(settled(&[(0, 8), (100, 33), (500, 65), (600, 97), (700, 65), (900, 65)]), Some(0.5));
        assert_eq!(settled(&[(10, 50), (900, 50)]), Some(0.0), "from the start");
        assert_eq!(settled(&[]), None, "a number");
    }

    #[test]
    fn a_turn_of_the_depth_is_another_direction_than_before() {
        let turns = |depths: &[u32], measured_ns| {
            let depths = (0..).zip(depths).map(|(at_ns, &depth)| DepthAt { at_ns, depth }).collect();
            value("depth-turns", None, &Outcome { depths, measured_ns, ..Outcome::default() })
        };
        assert_eq!(turns(&[8, 64, 32, 64, 97, 97, 65, 33, 33], 8), Some(3.0), "up, down, up, down");
        assert_eq!(turns(&[8, 64, 32, 64, 97, 97, 65, 33, 33], 5), Some(1.0), "up, down");
        assert_eq!(turns(&[], 5), None, "a number");
    }

    #[test]
    fn a_share_while_all_wait_is_that_of_the_tenant_named() {
        let backlog = Some(crate::outcome::BacklogOutcome { time_part: 0.4, shares: vec![0.7, 0.3] });
        let outcome = Outcome { backlog, ..two(&[50, 50]) };
        let of = |tenant| value("backlogged-share", Some(tenant), &outcome);
        assert_eq!([of("a"), of("b"), value("backlogged", None, &outcome)], [Some(0.7), Some(0.3), Some(0.4)]);
        assert_eq!(value("backlogged", None, &two(&[50, 50])), None);
    }

    fn value(name: &str, tenant: Option<&str>, outcome: &Outcome) -> Option<f64> {
        let (alone, baseline) = (Keys::default(), Keys::default());
        let kind = kinds().find(|kind| kind.name == name).unwrap();
        let metric = Metric { kind, member: tenant.map(str::to_string), alone, baseline, scale: 1.0 };
        metric.value(&outcome.clone().into(), None, &X::Number(0.0))
    }

    #[test]
    fn it_is_fair_from_the_first_window_after_which_nobody_is_a_tenth_off() {
        let from = |first: &[u64]| value("fair-from-s", None, &two(first));
        assert_eq!(from(&[90, 80, 54, 46, 50]), Some(2.0));
        assert_eq!(from(&[50, 50, 50, 56, 50]), Some(4.0), "56 of 50 is more than a tenth off");
        assert_eq!(from(&[50, 50, 60]), None, "not at the end");
        assert_eq!(from(&[50, 50, 50]), Some(1.0), "warm-up does not count");
    }

    #[test]
    fn deviation_variation_and_classes() {
        let outcome = two(&[99, 60, 40, 80]);
        assert_eq!(value("of-ideal", Some("a"), &outcome), Some(1.2), "180 of 150");
        let close = |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() < 1e-12;
        assert!(close(value("ideal-deviation", Some("b"), &outcome), 0.2), "120 of 150");
        assert!(close(value("ideal-deviation", None, &outcome), 0.2));
        // Mean 60, deviations 0, 20, 20.
        assert!(close(value("window-variation", Some("a"), &outcome), (800.0f64 / 3.0).sqrt() / 60.0));
        assert_eq!(value("high-share", Some("a"), &outcome), Some(0.3));
        assert_eq!(value("low-share", Some("a"), &outcome), Some(0.6));
        assert_eq!(value("high-low-ratio", None, &outcome), None, "never set");
    }
}
