//! Outcome of a run: in all, by tenant, and by part of the run.

use serde::Serialize;

/// A whole run. The same scenario gives the same outcome to the last bit.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Outcome {
    /// By tenant of the scenario; those of a `count` are one entry (and `share_deviation_max` tells them apart).
    pub tenants: Vec<TenantOutcome>,
    /// Length of what was counted.
    pub measured_ns: u64,
    /// Requests of all tenants per second.
    pub requests_per_s: f64,
    /// Bytes of all tenants per second.
    pub bytes_per_s: f64,
    /// Latencies of all tenants' requests together.
    #[serde(skip)]
    pub together: Together,
    /// Discrete events: accesses that were ordered, wake-ups, arrivals, completions.
    pub events: u64,
    /// Kicks of workers that slept, per second.
    pub kicks_per_s: f64,
    /// Kicks that the policy made, of workers that slept and of others, per second.
    pub policy_kicks_per_s: f64,
    /// Times that a worker ran because its throttle said so (a kick or a poll), per second.
    pub reschedules_per_s: f64,
    /// Times that a pick ended because the lead was more than T ahead, per second.
    pub throttled_per_s: f64,
    /// Times that a pick ended because no token was free, per second.
    pub no_token_per_s: f64,
    /// Part of the cores' time that was not slept, 0..=1.
    pub busy_share: f64,
    /// Time that cores were not asleep for each request that completed, ns; `null` if none did.
    pub cpu_ns_per_request: Option<f64>,
    /// CPU time for each KiB, ns.
    pub cpu_ns_per_kib: Option<f64>,
    /// Costs of memory.
    pub memory: MemoryOutcome,
    /// Length of each of the tenants' `windows`; `null` if the scenario asks for none.
    pub window_ns: Option<u64>,
    /// Weights set on the device's class queues, in the order of time.
    pub class_weights: Vec<WeightsOutcome>,
    /// Choices of D where a controller finds it, in the order of time; the last entry is the run's end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub depths: Vec<DepthAt>,
    /// Parts into which large requests are cut at the end, and why; only of a scenario with `split`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// Choices of T where a rule finds it, in the order of time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub found_windows: Vec<WindowAt>,
    /// Service while all tenants wait; only of a scenario with `backlog`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<BacklogOutcome>,
    /// Latency goals at the end, of tenants that have one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub goals: Vec<GoalOutcome>,
}

/// Service while each tenant has a request that waits for its dispatch.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct BacklogOutcome {
    /// Part of the measured time, 0..=1.
    pub time_part: f64,
    /// By tenant: part of the bytes dispatched in it.
    pub shares: Vec<f64>,
}

/// A latency goal at the end of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct GoalOutcome {
    /// Name of the tenant.
    pub tenant: String,
    /// The goal.
    pub goal_ns: u64,
    /// Met, out of reach, ...
    pub fares: &'static str,
    /// p90 of the last period that was judged.
    pub p90_ns: u64,
    /// D in that period.
    pub depth: u32,
    /// Its throughput, thousandths of that at the found D.
    pub kept_thousandths: u32,
    /// Periods judged, and those that met the goal.
    pub periods: u64,
    /// Periods that met the goal.
    pub met: u64,
    /// Cap on D at the end; `null`: none.
    pub cap: Option<u32>,
}

/// Latencies of a whole run; what a run prints has them by tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Together {
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
}

/// A window T that was set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct WindowAt {
    /// When, since the start of the run.
    pub at_ns: u64,
    /// T at the default weight.
    pub window_bytes: u64,
}

/// A depth that was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct DepthAt {
    /// When, since the start of the run.
    pub at_ns: u64,
    /// D, units.
    pub depth: u32,
}

/// One tenant, or the sum of as many as its `count` says.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct TenantOutcome {
    /// Its name.
    pub name: String,
    /// Weight of each.
    pub weight: u32,
    /// Completed.
    pub requests: u64,
    /// Read and written.
    pub bytes: u64,
    /// Completed per second.
    pub requests_per_s: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Arrival to completion (of an open loop: from when it should have come).
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p99_9_ns: u64,
    /// 99.99th percentile.
    pub p99_99_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// Its part, by weight, of the bytes per second of all.
    pub ideal_bytes_per_s: f64,
    /// Bytes sent to the high, medium and low queues; 0 if the policy does not choose among them.
    pub class_bytes: [u64; 3],
    /// Requests completed in each part of the run, warm-up included, from its start.
    pub windows: Vec<WindowOutcome>,
    /// Largest deviation of one of `count` tenants from their mean service, of that mean; 0 for one.
    pub share_deviation_max: f64,
}

/// A part of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct WindowOutcome {
    /// Completed.
    pub requests: u64,
    /// Read and written.
    pub bytes: u64,
}

/// Weights of the class queues, from a moment on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct WeightsOutcome {
    /// Since the start of the run.
    pub at_ns: u64,
    /// Weight of the high queues.
    pub high: u16,
    /// Weight of the medium queues.
    pub medium: u16,
    /// Weight of the low queues.
    pub low: u16,
}

/// Accesses to lines that workers share.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct MemoryOutcome {
    /// Accesses in all.
    pub accesses: u64,
    /// Lines that came from the other thread of the core.
    pub transfers_same_core: u64,
    /// Lines that came from another core of the socket.
    pub transfers_same_socket: u64,
    /// Lines that came from another socket.
    pub transfers_other_socket: u64,
    /// Time that cores waited for a line that was on its way to another, ns.
    pub waited_for_line_ns: u64,
    /// Time that cores waited for a lock, ns.
    pub waited_for_lock_ns: u64,
}
