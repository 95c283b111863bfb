//! Counters of a running server, as a table for people and as JSON for programs.

use crate::in_force::{self, Rates, WindowReport};
use mqfq_blk::engine::{DeviceStats, EngineStats, NamedFlowStats};
use mqfq_blk::latencies::Latencies;
use mqfq_blk::stats::FlowStats;
use mqfq_blk::tuning::{Probe, State};
use mqfq_blk::{EffectiveWeight, GroupId};
use mqfq_front::stats::Counts;
use serde::Serialize;
use std::collections::BTreeMap;

/// All counters, by device and by address.
#[derive(Serialize)]
pub struct StatsReport {
    devices: Vec<DeviceReport>,
    listeners: Vec<ListenerReport>,
}

#[derive(Serialize)]
struct ListenerReport {
    address: String,
    connections: usize,
    connections_total: u64,
    connections_refused: u64,
    requests: BTreeMap<&'static str, u64>,
    read_bytes: u64,
    written_bytes: u64,
    /// Counts of rules that were broken.
    broken_rules: BTreeMap<&'static str, u64>,
    /// Counters of its front end alone.
    #[serde(flatten)]
    own: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct DeviceReport {
    name: String,
    policy: &'static str,
    /// `well`, `cut`, `read-only` or `failed`.
    health: &'static str,
    /// Weights of the device's class queues; `null`: the policy names none.
    class_weights: Option<ByClass>,
    /// D, T and the throughput; `null`: the policy has neither.
    in_force: Option<InForceReport>,
    /// Current cost of a write, times the config's; `null`: that is not followed.
    write_cost_times: Option<f64>,
    /// Operations of all tenants together.
    operations: Operations,
    tenants: Vec<TenantReport>,
    /// Groups of the tenants.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<GroupReport>,
    hctxs: Vec<HctxReport>,
}

/// D and T in force on a device.
#[derive(Serialize)]
struct InForceReport {
    /// D, T and their reasons, as a person reads them.
    sentence: String,
    /// Throughput of all tenants since the last report or the start; `null`: no time has passed.
    bytes_per_s: Option<f64>,
    /// `null`: D is a number.
    depth: Option<DepthReport>,
    /// `null`: T is a number, or there is none.
    window: Option<WindowReport>,
}

#[derive(Serialize)]
struct DepthReport {
    /// The chosen D.
    units: u32,
    /// D in force now; a candidate's while that is measured.
    units_now: u32,
    /// Time since it was chosen.
    age_ns: u64,
    /// One word, and half a sentence.
    state: &'static str,
    reason: &'static str,
    /// Distance of the depths that make a difference.
    step_units: u32,
    phases: u64,
    /// The last comparisons, the latest first.
    probes: Vec<ProbeReport>,
}

#[derive(Serialize)]
struct ProbeReport {
    age_ns: u64,
    units: u32,
    candidate_units: u32,
    verdict: &'static str,
    gain_thousandths: i32,
    pairs: u32,
}

impl InForceReport {
    fn new(device: &DeviceStats, bytes_per_s: Option<f64>) -> Option<InForceReport> {
        let found = device.in_force.as_ref();
        Some(InForceReport {
            sentence: in_force::now(device, bytes_per_s)?,
            bytes_per_s,
            depth: found.and_then(|found| Some(DepthReport::new(&found.depth?, found.at_ns))),
            window: found.and_then(|found| Some(WindowReport::new(&found.window?, found.at_ns))),
        })
    }
}

impl DepthReport {
    fn new(state: &State, at_ns: u64) -> DepthReport {
        let &State { depth, chosen, chosen_ns, reason, step, phases, probes } = state;
        let age_ns = |then_ns: u64| at_ns.saturating_sub(then_ns);
        let probe = |probe: Probe| ProbeReport {
            age_ns: age_ns(probe.at_ns),
            units: probe.depth,
            candidate_units: probe.trial,
            verdict: probe.verdict.name(),
            gain_thousandths: probe.gain_thousandths,
            pairs: probe.pairs,
        };
        DepthReport {
            units: chosen,
            units_now: depth,
            age_ns: age_ns(chosen_ns),
            state: reason.name(),
            reason: reason.text(),
            step_units: step,
            phases,
            probes: probes.into_iter().flatten().map(probe).collect(),
        }
    }
}

#[derive(Serialize)]
struct GroupReport {
    name: String,
    /// The group that it is in.
    group: Option<String>,
    #[serde(flatten)]
    standing: Standing,
}

/// A weight, and its effect now.
#[derive(Serialize)]
struct Standing {
    weight: u16,
    /// Part of the device among those that compete now; 0 of one that does not; `null` under a policy that knows of no
    /// groups.
    effective_share: Option<f64>,
}

impl Standing {
    /// The standing of a weight, where the effective weights of all flows that compete sum to `all`.
    fn new(weight: u16, effective: Option<EffectiveWeight>, all: u64) -> Standing {
        let share = |of: EffectiveWeight| if of.competes { of.millionths as f64 / all.max(1) as f64 } else { 0.0 };
        Standing { weight, effective_share: effective.map(share) }
    }
}

#[derive(Serialize, Clone, Copy)]
struct ByClass {
    high: u64,
    medium: u64,
    low: u64,
}

impl From<[u64; 3]> for ByClass {
    fn from([high, medium, low]: [u64; 3]) -> ByClass {
        ByClass { high, medium, low }
    }
}

#[derive(Serialize)]
struct TenantReport {
    name: String,
    /// Set where a tenant is in a group.
    #[serde(flatten)]
    standing: Option<Standing>,
    requests: u64,
    failed: u64,
    reads: u64,
    writes: u64,
    flushes: u64,
    discards: u64,
    write_zeroes: u64,
    transferred_bytes: u64,
    /// Bytes of cost that went to each class since the policy was made.
    class_bytes: Option<ByClass>,
    operations: Operations,
    queued_ns: LatencyReport,
    device_ns: LatencyReport,
    total_ns: LatencyReport,
}

/// By operation, in the spirit of /proc/diskstats.
#[derive(Serialize, Clone, Copy, Default)]
struct Operations {
    read: Operation,
    write: Operation,
    flush: Operation,
    discard: Operation,
    write_zeroes: Operation,
    extents: Operation,
}

#[derive(Serialize, Clone, Copy, Default)]
struct Operation {
    /// Completed.
    requests: u64,
    /// Bytes of requests that ended well.
    bytes: u64,
    /// Sum of the times from submission to completion.
    total_ns: u64,
}

impl Operations {
    fn of(stats: &FlowStats) -> Operations {
        let operation = |index: usize| Operation {
            requests: stats.completed[index],
            bytes: stats.bytes[index],
            total_ns: stats.total_ns_sum[index],
        };
        let [read, write, flush, discard, write_zeroes, extents] = [0, 1, 2, 3, 4, 5].map(operation);
        Operations { read, write, flush, discard, write_zeroes, extents }
    }
}

#[derive(Serialize)]
struct LatencyReport {
    mean: u64,
    p50: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

#[derive(Serialize)]
struct HctxReport {
    in_flight: u64,
    staged: u64,
    busy_ns: u64,
    in_flight_ns: u64,
    dispatched: u64,
    doorbells: u64,
    throttled: u64,
    no_token: u64,
    later: u64,
    idle: u64,
    refused: u64,
    kicks: u64,
    split: u64,
    parts: u64,
    timeouts: u64,
    aborts: u64,
    resets: u64,
    replays: u64,
    stuck: u64,
    late_completions: u64,
}

impl LatencyReport {
    /// Summarizes latencies whose sum is `sum_ns`.
    fn new(seen: &Latencies, sum_ns: u64) -> LatencyReport {
        LatencyReport {
            mean: sum_ns.checked_div(seen.len()).unwrap_or(0),
            p50: seen.at_millionths(500_000),
            p99: seen.at_millionths(990_000),
            p999: seen.at_millionths(999_000),
            max: seen.max_ns(),
        }
    }
}

impl From<&NamedFlowStats> for TenantReport {
    fn from(flow: &NamedFlowStats) -> Self {
        let [reads, writes, flushes, discards, write_zeroes, _] = flow.stats.completed;
        TenantReport {
            name: flow.name.clone(),
            standing: None,
            requests: flow.stats.requests(),
            failed: flow.stats.failed,
            reads,
            writes,
            flushes,
            discards,
            write_zeroes,
            transferred_bytes: flow.stats.transferred_bytes(),
            class_bytes: flow.class_bytes.map(ByClass::from),
            operations: Operations::of(&flow.stats),
            queued_ns: LatencyReport::new(&flow.stats.queued_ns, flow.stats.queued_ns_sum),
            device_ns: LatencyReport::new(&flow.stats.device_ns, flow.stats.device_ns_sum),
            total_ns: LatencyReport::new(&flow.stats.total_ns, flow.stats.total_ns_sum.iter().sum()),
        }
    }
}

impl DeviceReport {
    fn new(device: &DeviceStats, bytes_per_s: Option<f64>) -> Self {
        let mut all = FlowStats::default();
        device.flows.iter().for_each(|flow| all.merge(&flow.stats));
        let hctxs = device.hctxs.iter().map(|hctx| HctxReport {
            in_flight: hctx.in_flight,
            staged: hctx.staged,
            busy_ns: hctx.busy_ns,
            in_flight_ns: hctx.in_flight_ns,
            dispatched: hctx.dispatched,
            doorbells: hctx.doorbells,
            throttled: hctx.throttled,
            no_token: hctx.no_token,
            later: hctx.later,
            idle: hctx.idle,
            refused: hctx.refused,
            kicks: hctx.kicks,
            split: hctx.split,
            parts: hctx.parts,
            timeouts: hctx.timeouts,
            aborts: hctx.aborts,
            resets: hctx.resets,
            replays: hctx.replays,
            stuck: hctx.stuck,
            late_completions: hctx.late_completions,
        });
        let competes = |effective: Option<EffectiveWeight>| effective.filter(|effective| effective.competes);
        let effective = device.flows.iter().filter_map(|flow| competes(flow.effective_weight));
        let sum: u64 = effective.map(|effective| effective.millionths).sum();
        let tenant = |flow: &NamedFlowStats| {
            let standing = || Standing::new(flow.weight.get(), flow.effective_weight, sum);
            TenantReport { standing: (!device.groups.is_empty()).then(standing), ..TenantReport::from(flow) }
        };
        let name_of = |GroupId(group): GroupId| device.groups[group as usize].name.clone();
        let groups = device.groups.iter().map(|group| GroupReport {
            name: group.name.clone(),
            group: group.parent.map(name_of),
            standing: Standing::new(group.weight.get(), group.effective_weight, sum),
        });
        DeviceReport {
            name: device.name.clone(),
            policy: device.policy,
            health: device.health.name(),
            class_weights: device.class_weights.map(|weights| weights.by_class().map(u64::from).into()),
            in_force: InForceReport::new(device, bytes_per_s),
            write_cost_times: device.write_cost_256ths.map(|times| f64::from(times) / 256.0),
            operations: Operations::of(&all),
            tenants: device.flows.iter().map(tenant).collect(),
            groups: groups.collect(),
            hctxs: hctxs.collect(),
        }
    }
}

impl ListenerReport {
    fn new(address: String, counts: Counts) -> Self {
        ListenerReport {
            address,
            connections: counts.connections,
            connections_total: counts.connections_total,
            connections_refused: counts.connections_refused,
            requests: counts.requests.into_iter().collect(),
            read_bytes: counts.read_bytes,
            written_bytes: counts.written_bytes,
            broken_rules: counts.broken_rules.into_iter().filter(|(_, times)| *times > 0).collect(),
            own: counts.own.into_iter().collect(),
        }
    }
}

impl StatsReport {
    /// The counters of `stats`, and those of each listener by its address.
    /// `rates` remembers the last report.
    pub fn new(stats: &EngineStats, rates: &mut Rates, listeners: impl IntoIterator<Item = (String, Counts)>) -> Self {
        let rates = rates.since_last(&stats.devices, stats.at_ns);
        StatsReport {
            devices: stats.devices.iter().zip(rates).map(|(device, rate)| DeviceReport::new(device, rate)).collect(),
            listeners: listeners.into_iter().map(|(address, counts)| ListenerReport::new(address, counts)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::stats::HctxStats;
    use mqfq_blk::tuning::{InForce, Reason, Verdict};
    use mqfq_blk::{ClassWeights, PolicyOptions, Weight};
    use mqfq_policies::SFQD;

    #[test]
    fn a_report_says_what_was_counted() {
        let mut stats = FlowStats::default();
        (stats.completed, stats.failed, stats.bytes) = ([7, 3, 1, 0, 0, 0], 2, [28_672, 12_288, 0, 0, 0, 0]);
        stats.total_ns.record_n(2000, 11);
        let hctx = HctxStats { dispatched: 11, doorbells: 5, ..Default::default() };
        let flows = vec![NamedFlowStats {
            last_ns: Vec::new(),
            name: "alice".into(),
            stats,
            class_bytes: Some([5, 6, 7]),
            weight: Weight::DEFAULT,
            effective_weight: None,
            goal: None,
            group: None,
        }];
        let class_weights = Some(ClassWeights { high: 16, medium: 4, low: 1 });
        let probe = Probe {
            at_ns: 7_000_000_000,
            depth: 65,
            trial: 129,
            verdict: Verdict::Worse,
            gain_thousandths: -45,
            pairs: 2,
        };
        let depth = State {
            depth: 129,
            chosen: 65,
            chosen_ns: 5_500_000_000,
            reason: Reason::Found,
            step: 32,
            phases: 90,
            probes: [Some(probe), None, None, None],
        };
        let in_force =
            Some(InForce { at_ns: 17_500_000_000, depth: Some(depth), depths: Default::default(), window: None });
        let write_cost_256ths = Some(640);
        let split = mqfq_blk::split::SplitControl::new(Default::default(), 1).state();
        let options = PolicyOptions::new(SFQD);
        let device = DeviceStats {
            name: "fast".into(),
            policy: "d2fq",
            options,
            class_weights,
            in_force,
            depth_cap: None,
            write_cost_256ths,
            split,
            health: Default::default(),
            ailing: Vec::new(),
            flows,
            groups: vec![],
            hctxs: vec![hctx],
        };
        let listener = Counts {
            connections: 1,
            connections_total: 4,
            connections_refused: 0,
            requests: vec![("read", 7)],
            read_bytes: 28_672,
            written_bytes: 12_288,
            broken_rules: vec![("unaligned", 2), ("out_of_range", 0)],
            own: Vec::new(),
        };
        let stats = EngineStats { at_ns: 1_000_000, devices: vec![device], workers: Vec::new() };
        let report = StatsReport::new(&stats, &mut Rates::default(), [("unix:/a".to_owned(), listener)]);

        let json: serde_json::Value = serde_json::to_value(&report).unwrap();
        let alice = &json["devices"][0]["tenants"][0];
        assert_eq!(alice["requests"], 11, "7 reads + 3 writes + 1 flush");
        assert_eq!(alice["reads"], 7);
        assert_eq!(alice["transferred_bytes"], 40_960);
        assert!(alice["total_ns"]["p99"].as_u64().unwrap().abs_diff(2000) <= 20, "1% of 2000");
        assert_eq!(json["devices"][0]["hctxs"][0]["doorbells"], 5);
        for operations in [&alice["operations"], &json["devices"][0]["operations"]] {
            assert_eq!((&operations["read"]["requests"], &operations["write"]["bytes"]), (&7.into(), &12_288.into()));
        }

        assert_eq!(
            serde_json::to_string(&report.listeners[0]).unwrap(),
            "{\"address\":\"unix:/a\",\"connections\":1,\"connections_total\":4,\"connections_refused\":0,\
             \"requests\":{\"read\":7},\"read_bytes\":28672,\"written_bytes\":12288,\"broken_rules\":{\"unaligned\":2}}"
        );

        assert_eq!(alice["class_bytes"], serde_json::json!({"high": 5, "medium": 6, "low": 7}));
        assert_eq!(json["devices"][0]["class_weights"], serde_json::json!({"high": 16, "medium": 4, "low": 1}));

        let depth = &json["devices"][0]["in_force"]["depth"];
        assert_eq!((&depth["units"], &depth["units_now"], &depth["state"]), (&65.into(), &129.into(), &"found".into()));
        assert_eq!(
            (&depth["age_ns"], &depth["probes"][0]["candidate_units"]),
            (&12_000_000_000u64.into(), &129.into())
        );

        assert_eq!(json["devices"][0]["write_cost_times"], 2.5);
        let sentence = "D 65 requests, found 12 s ago (deeper gains less than it costs, shallower loses work); \
                        41.0 MB/s; split off: configured";
        assert_eq!(json["devices"][0]["in_force"]["sentence"], sentence);
        assert_eq!(json["devices"][0]["in_force"]["bytes_per_s"], 40_960_000.0);

        let mut with_own = report;
        with_own.listeners[0].own.insert("kicks", 9);
        assert_eq!(serde_json::to_value(&with_own).unwrap()["listeners"][0]["kicks"], 9);
    }
}
