//! Figures of the last second for the page and `top`.
//!
//! A [`Snapshot`] is one object of JSON, sent once a second on `/v1/live` and recorded by `mqfq top --record`, one to a
//! line. Units are in the names. Of a device with more than [`TENANTS_MAX`] tenants it has those that were served most
//! over the last minute.

use crate::history::{DeviceInterval, FlowInterval, Interval, ratio};
use crate::metrics::{depth, window_bytes};
use crate::why::Verdict;
use mqfq_blk::device::Health;
use mqfq_blk::engine::{DeviceStats, EngineStats, NamedFlowStats};
use mqfq_blk::latencies::Latencies;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Tenants of a device in one snapshot, at most.
pub const TENANTS_MAX: usize = 200;

/// Figures of one second.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// Since the server started, ns.
    pub at_ns: u64,
    /// In the order of the config.
    pub devices: Vec<DeviceLive>,
}

/// One device.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceLive {
    /// As configured.
    pub name: String,
    /// Its name.
    pub policy: String,
    /// `cut`, `read-only` or `failed`; empty: it is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trouble: String,
    /// D in force; `null`: the policy has none.
    pub depth_units: Option<u32>,
    /// T in force; `null`: the policy has none.
    pub window_bytes: Option<u64>,
    /// Commands on the device, mean.
    pub commands: f64,
    /// Workers that T held back, mean.
    pub throttled: f64,
    /// Workers that D held back, mean.
    pub token_waits: f64,
    /// Read and written.
    pub bytes_per_s: f64,
    /// Completed.
    pub requests_per_s: f64,
    /// Tenants that are not in the list.
    pub left_out: usize,
    /// In the order of the config.
    pub tenants: Vec<TenantLive>,
}

/// One tenant on one device (one of its exports, if exports have weights).
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct TenantLive {
    /// As configured.
    pub name: String,
    /// As last set.
    pub weight: u16,
    /// Part of the device's service that it received over the last second.
    pub share_1s: f64,
    /// Part received over the last minute.
    pub share_60s: f64,
    /// Part that it was entitled to over the last second.
    pub entitled_1s: f64,
    /// Part that it was entitled to over the last minute.
    pub entitled_60s: f64,
    /// Read and written.
    pub bytes_per_s: f64,
    /// Completed.
    pub requests_per_s: f64,
    /// Median time in the queue of requests that completed in the last second; 0: none did.
    pub queue_p50_ns: u64,
    /// 99th percentile of it.
    pub queue_p99_ns: u64,
    /// Median time on the device.
    pub device_p50_ns: u64,
    /// 99th percentile of it.
    pub device_p99_ns: u64,
    /// Requests that waited here, mean.
    pub waiting: f64,
    /// Requests on the device, mean.
    pub on_device: f64,
    /// Age of the oldest request; 0: there is none.
    pub oldest_ns: u64,
    /// Why it waits, or does not.
    pub why: String,
}

/// Recent service of one tenant by one device.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Received {
    /// The device, as configured.
    pub device: String,
    /// As configured (`TENANT/EXPORT` if exports have weights).
    pub tenant: String,
    /// Part of the device's service that it received.
    pub share: f64,
    /// Part that was its own.
    pub entitled: f64,
    /// Read and written.
    pub bytes_per_s: f64,
    /// Completed.
    pub requests_per_s: f64,
}

/// Service of each tenant by each device over an interval.
pub fn received(interval: &Interval) -> Vec<Received> {
    let of_device = |device: &DeviceInterval| {
        let flow = |(name, flow): (&String, &FlowInterval)| Received {
            device: device.name.clone(),
            tenant: name.clone(),
            share: ratio(flow.served, device.served),
            entitled: ratio(flow.entitled, device.served),
            bytes_per_s: interval.per_second(flow.bytes),
            requests_per_s: interval.per_second(flow.requests),
        };
        device.names.iter().zip(&device.flows).map(flow).collect::<Vec<_>>()
    };
    interval.devices.iter().flat_map(of_device).collect()
}

/// Latencies in the queue and on the device until a moment, by device, then by tenant.
pub type Until = HashMap<String, HashMap<String, (Latencies, Latencies)>>;

/// The tenants of a device that a snapshot has: those that were served most over `minute`, in the order of the config.
pub fn shown(device: usize, flows: usize, minute: &Interval) -> Vec<usize> {
    let mut all: Vec<usize> = (0..flows).collect();
    if flows > TENANTS_MAX {
        let served = |flow: usize| minute.devices.get(device).and_then(|done| Some(done.flows.get(flow)?.served));
        all.sort_by_key(|&flow| std::cmp::Reverse(served(flow)));
        all.truncate(TENANTS_MAX);
        all.sort_unstable();
    }
    all
}

/// The snapshot of `stats`, where `before` is what [`until`] said a second ago. `second` and `minute` are the intervals
/// that end with it; `verdicts` those of the shown tenants.
pub fn snapshot(
    stats: &EngineStats,
    before: &Until,
    second: &Interval,
    minute: &Interval,
    verdicts: &[Verdict],
) -> Snapshot {
    let device = |(at, device): (usize, &DeviceStats)| {
        let (none, nothing) = (DeviceInterval::default(), FlowInterval::default());
        let (now, long) = (second.devices.get(at).unwrap_or(&none), minute.devices.get(at).unwrap_or(&none));
        let shown = shown(at, device.flows.len(), minute);
        let tenant = |flow: usize| {
            let named = &device.flows[flow];
            let (done, slow) = (now.flows.get(flow).unwrap_or(&nothing), long.flows.get(flow).unwrap_or(&nothing));
            let earlier = before.get(&device.name).and_then(|flows| flows.get(&named.name));
            let since = |now: &Latencies, of: fn(&(Latencies, Latencies)) -> &Latencies| match earlier {
                Some(before) => now.since(of(before)),
                None => Latencies::default(),
            };
            let queue = since(&named.stats.queued_ns, |(queue, _)| queue);
            let on_device = since(&named.stats.device_ns, |(_, device)| device);
            let verdict = verdicts.iter().find(|verdict| verdict.device == device.name && verdict.tenant == named.name);
            TenantLive {
                name: named.name.clone(),
                weight: named.weight.get(),
                share_1s: ratio(done.served, now.served),
                share_60s: ratio(slow.served, long.served),
                entitled_1s: ratio(done.entitled, now.served),
                entitled_60s: ratio(slow.entitled, long.served),
                bytes_per_s: second.per_second(done.bytes),
                requests_per_s: second.per_second(done.requests),
                queue_p50_ns: queue.at_millionths(500_000),
                queue_p99_ns: queue.at_millionths(990_000),
                device_p50_ns: on_device.at_millionths(500_000),
                device_p99_ns: on_device.at_millionths(990_000),
                waiting: second.mean(done.queued_ns),
                on_device: second.mean(done.device_ns),
                oldest_ns: named.stats.oldest_ns.map_or(0, |ns| stats.at_ns.saturating_sub(ns)),
                why: verdict.map(|verdict| verdict.sentence.clone()).unwrap_or_default(),
            }
        };
        let sum = |of: fn(&FlowInterval) -> u64| now.flows.iter().map(of).sum();
        DeviceLive {
            name: device.name.clone(),
            policy: device.policy.to_owned(),
            trouble: match (&device.ailing[..], device.health) {
                ([], Health::Well) => String::new(),
                ([], health) => health.name().to_owned(),
                ([one], _) => format!("{}: {}", one.part, one.state),
                (many, _) => format!("{} backings ail", many.len()),
            },
            depth_units: depth(device),
            window_bytes: window_bytes(device),
            commands: second.mean(now.in_flight_ns),
            throttled: second.mean(now.throttled_ns),
            token_waits: second.mean(now.no_token_ns),
            bytes_per_s: second.per_second(sum(|flow| flow.bytes)),
            requests_per_s: second.per_second(sum(|flow| flow.requests)),
            left_out: device.flows.len() - shown.len(),
            tenants: shown.into_iter().map(tenant).collect(),
        }
    };
    Snapshot { at_ns: stats.at_ns, devices: stats.devices.iter().enumerate().map(device).collect() }
}

/// Latencies until now, for the next snapshot.
pub fn until(stats: &EngineStats) -> Until {
    let flow =
        |flow: &NamedFlowStats| (flow.name.clone(), (flow.stats.queued_ns.clone(), flow.stats.device_ns.clone()));
    let device = |device: &DeviceStats| (device.name.clone(), device.flows.iter().map(flow).collect());
    stats.devices.iter().map(device).collect()
}

/// Number of a pool's backings that do not carry out all operations.
pub(crate) fn ailing(device: &DeviceStats) -> Option<u64> {
    Some(device.ailing.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;
    use crate::history::tests::{stats, tenant};

    #[test]
    fn a_second_has_its_own_latencies_and_not_those_since_the_start() {
        let mut history = History::default();
        let old = stats(1, vec![tenant("a", 100, 1000, 8_000_000, 100_000)]);
        history.push(&old);
        let mut a = tenant("a", 100, 1000, 8_000_000, 100_000);
        a.stats.completed[0] += 10;
        a.stats.queued_ns.record_n(16_000, 10);
        a.stats.device_ns.record_n(90_000, 10);
        let now = stats(2, vec![a, tenant("new", 300, 5, 1000, 1000)]);
        history.push(&now);
        let second = history.over(1).unwrap();
        let live = snapshot(&now, &until(&old), &second, &second, &[]);
        let [a, new] = &live.devices[0].tenants[..] else { panic!("{live:?}") };
        assert!(a.queue_p99_ns.abs_diff(16_000) <= 1000 && a.device_p50_ns.abs_diff(90_000) <= 6000, "{a:?}");
        assert_eq!((a.requests_per_s, new.requests_per_s, new.weight, new.queue_p50_ns), (10.0, 5.0, 300, 0));
        assert_eq!(live.devices[0].depth_units, Some(64));
        let json = serde_json::to_string(&live).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&json).unwrap(), live);
    }

    #[test]
    fn each_number_of_a_tenant_is_that_of_its_device_and_of_the_interval_in_its_name() {
        // Two devices with a tenant of one name, at 0, 59 and 60 s: the last second is unlike the minute before it.
        let at = |second: u64| {
            let (busy, rare) = [(0, 0), (5_900, 100), (6_000, 400)][second.saturating_sub(58) as usize];
            let mut stats = stats(second, vec![tenant("web", 100, busy, 0, 1_000), tenant("db", 300, rare, 0, 2_000)]);
            let mut other = stats.devices[0].clone();
            other.name = "slow".into();
            other.health = Health::Failed;
            other.flows = vec![tenant("web", 200, rare, 3_000_000, 4_000_000), tenant("db", 100, busy, 0, 5_000)];
            other.hctxs[0].in_flight_ns = 7 * second * 1_000_000_000;
            (other.hctxs[0].throttled_ns, other.hctxs[0].no_token_ns) = (second * 500_000_000, second * 250_000_000);
            // Fewer of its latencies are of the last second than of the time before.
            let web = &mut other.flows[0].stats;
            (web.queued_ns, web.device_ns) = Default::default();
            for (ns, times) in [((3_000_000, 4_000_000), 100), ((16_000, 90_000), 90 * (second / 60))] {
                web.queued_ns.record_n(ns.0, times);
                web.device_ns.record_n(ns.1, times);
            }
            other.flows[0].stats.oldest_ns = Some(second * 1_000_000_000 - second.min(1) * 30_000);
            stats.devices.push(other);
            stats
        };
        let mut history = History::default();
        [0, 59, 60].into_iter().for_each(|second| history.push(&at(second)));
        let verdict = |device: &str, tenant: &str| Verdict {
            device: device.into(),
            tenant: tenant.into(),
            row: crate::why::Row::Idle,
            sentence: format!("{tenant} of {device}"),
        };
        let verdicts =
            [("fast", "web"), ("fast", "db"), ("slow", "web")].map(|(device, tenant)| verdict(device, tenant));
        let (second, minute) = (history.over(1).unwrap(), history.over(60).unwrap());
        let live = snapshot(&at(60), &until(&at(59)), &second, &minute, &verdicts);
        let of = |device: usize, tenant: usize| live.devices[device].tenants[tenant].clone();
        let shares = |shown: &TenantLive| [shown.share_1s, shown.share_60s, shown.entitled_1s, shown.entitled_60s];
        // 100 and 300 requests in the second, 6000 and 400 in the minute; no tenant waits on the first device.
        assert_eq!(shares(&of(0, 0)), [0.25, 0.9375, 0.25, 0.9375]);
        assert_eq!(shares(&of(0, 1)), [0.75, 0.0625, 0.75, 0.0625]);
        assert_eq!((of(0, 1).requests_per_s, of(0, 1).bytes_per_s), (300.0, 300.0 * 4096.0));
        assert_eq!(
            [of(0, 0).why, of(0, 1).why, of(1, 0).why, of(1, 1).why],
            ["web of fast", "db of fast", "web of slow", ""]
        );
        let slow = of(1, 0);
        let near = |ns: u64, exact: u64| assert!(ns.abs_diff(exact) * 16 <= exact, "{ns}, not {exact}");
        near(slow.queue_p50_ns, 16_000);
        near(slow.queue_p99_ns, 16_000);
        near(slow.device_p50_ns, 90_000);
        near(slow.device_p99_ns, 90_000);
        // 300 requests in a second.
        assert_eq!([slow.waiting, slow.on_device].map(|mean| (mean * 1000.0).round()), [900.0, 1200.0]);
        assert_eq!((slow.weight, slow.oldest_ns, of(0, 0).oldest_ns), (200, 30_000, 0));
        let device = &live.devices[1];
        assert_eq!((device.commands, device.throttled, device.token_waits), (7.0, 0.5, 0.25));
        assert_eq!((device.requests_per_s, device.bytes_per_s), (400.0, 400.0 * 4096.0));
        assert_eq!((device.name.as_str(), device.policy.as_str(), device.left_out), ("slow", "mqfq", 0));
        assert_eq!([&live.devices[0].trouble, &device.trouble], ["", Health::Failed.name()]);
        assert_eq!((live.at_ns, device.window_bytes.is_some()), (60_000_000_000, true));
        near(of(0, 1).device_p50_ns, 2_000);
        let received = received(&minute);
        let of = |at: usize| (&*received[at].device, &*received[at].tenant, received[at].share, received[at].entitled);
        assert_eq!([of(0), of(1)], [("fast", "web", 0.9375, 0.9375), ("fast", "db", 0.0625, 0.0625)]);
        assert_eq!([of(2).0, of(3).0, of(2).1, of(3).1], ["slow", "slow", "web", "db"]);
        let rates = received.iter().map(|it| (it.requests_per_s * 60.0, it.bytes_per_s * 60.0 / 4096.0));
        let rates: Vec<_> = rates.map(|(requests, bytes)| (requests.round(), bytes.round())).collect();
        assert_eq!(rates, [(6000.0, 6000.0), (400.0, 400.0), (400.0, 400.0), (6000.0, 6000.0)]);
    }

    #[test]
    fn of_many_tenants_those_are_shown_that_were_served_most() {
        let mut history = History::default();
        let flows = |second: u64| {
            (0..300u64).map(|n| tenant(&n.to_string(), 100, if n >= 250 { second * n } else { 0 }, 0, 1)).collect()
        };
        history.push(&stats(1, flows(1)));
        let now = stats(2, flows(2));
        history.push(&now);
        let second = history.over(1).unwrap();
        let live = snapshot(&now, &Until::new(), &second, &second, &[]);
        let device = &live.devices[0];
        assert_eq!((device.tenants.len(), device.left_out), (TENANTS_MAX, 100));
        assert!((250..300).all(|n: u32| device.tenants.iter().any(|tenant| tenant.name == n.to_string())));
        let numbers: Vec<u32> = device.tenants.iter().map(|tenant| tenant.name.parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "in the order of the config: {numbers:?}");
    }
}
