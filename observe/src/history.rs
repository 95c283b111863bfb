//! Activity of the last seconds: differences of successive readings.
//!
//! Answers: how many per second, how many on average, and whose share was it? One reading a second is kept for a
//! minute, and for each device one mean per minute for an hour.
//!
//! # Means without gauges
//! The sum of all times that requests spent somewhere, over an interval, is the mean number of requests there
//! (Little's law): 2 s of queue time in a second are two requests that waited on average. A request counts when it
//! completes, so a mean is that of a moment ago, by as long as a request takes.
//!
//! # Memory
//! 64 bytes for each reading of each tenant, and 88 more for each of the last 13: 5.0 KB per tenant, 50 MB for 10,000.
//! 480 bytes more for what its requests take alone (`alone.rs`), once it has any.
//!
//! # Invariants
//! H1. A reading is compared with the one of the same names: tenants and devices come and go.
//! H2. Counters that went back (a tenant is gone, and another has its name) count as no progress.

use crate::alone::{self, Alone, OPS, OpInterval, Times};
use crate::share::{Claim, asked, entitlements};
use mqfq_blk::engine::WorkerStats;
use mqfq_blk::engine::{DeviceStats, EngineStats};
use mqfq_blk::stats::FlowStats;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Readings that are kept: those of a minute, and one.
const READINGS_MAX: usize = 61;

/// Readings of which operations are told apart: those of a verdict, if some come late.
const RECENT_MAX: usize = 13;

/// Minutes of which a mean is kept.
const MINUTES_MAX: usize = 60;

const MINUTE_NS: u64 = 60_000_000_000;

/// The counters of one moment, without latencies.
#[derive(Clone, Debug, Default)]
struct Reading {
    at_ns: u64,
    devices: Vec<DeviceReading>,
    workers: Vec<WorkerStats>,
}

#[derive(Clone, Debug, Default)]
struct DeviceReading {
    name: String,
    /// Names of the tenants; shared with the reading before while no tenant comes or goes.
    names: Arc<[String]>,
    busy_ns: u64,
    in_flight_ns: u64,
    throttled_ns: u64,
    no_token_ns: u64,
    /// By hctx: time held back by T, and by D, ns.
    held_ns: Vec<[u64; 2]>,
    flows: Vec<FlowReading>,
    /// Empty in a reading that is older than [`RECENT_MAX`].
    recent: Vec<RecentReading>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RecentReading {
    /// Reads, writes, flushes.
    ops: [OpInterval; OPS],
    waited: u64,
    waited_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct FlowReading {
    requests: u64,
    bytes: u64,
    cost: u64,
    active_ns: u64,
    queued_ns: u64,
    device_ns: u64,
    weight: u64,
    group: Option<u32>,
}

/// Activity of one device over an interval.
#[derive(Clone, Debug, Default)]
pub struct DeviceInterval {
    /// Its name.
    pub name: String,
    /// Names of the tenants.
    pub names: Arc<[String]>,
    /// Time with a command on the device, all workers together, ns.
    pub busy_ns: u64,
    /// Commands on the device times how long they were there, ns.
    pub in_flight_ns: u64,
    /// Time during which workers were held back by T, all together, ns.
    pub throttled_ns: u64,
    /// Time held back by D, likewise, ns.
    pub no_token_ns: u64,
    /// By hctx: time held back by T, and by D, ns.
    pub held_ns: Vec<[u64; 2]>,
    /// Cost of all that it served, bytes-equivalent.
    pub served: u64,
    /// By tenant.
    pub flows: Vec<FlowInterval>,
    /// Median of the last hour's service by minute, bytes-equivalent in a second. `None`: no minute has ended.
    pub usual_served_per_s: Option<u64>,
    /// Median of the last hour's means of a request's time on the device, ns, by minute. `None`: no minute has ended.
    pub usual_device_ns: Option<u64>,
}

/// Activity of one tenant on one device over an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowInterval {
    /// Requests completed.
    pub requests: u64,
    /// Bytes of those that ended well.
    pub bytes: u64,
    /// Their cost, bytes-equivalent.
    pub served: u64,
    /// Its entitlement ([`crate::share`]), bytes-equivalent.
    pub entitled: u64,
    /// Service that it asked for, bytes-equivalent.
    pub asked: u64,
    /// Sum of times from submission to dispatch, ns.
    pub queued_ns: u64,
    /// Sum of times from dispatch to reap, ns.
    pub device_ns: u64,
    /// Time with a request of it under way, ns. Of several workers: the sum of theirs.
    pub active_ns: u64,
    /// Its weight, in millionths.
    pub weight: u64,
    /// At least half a request of it waited here on average.
    pub is_hungry: bool,
    /// The group that it is in.
    pub group: Option<u32>,
    /// Reads, writes and flushes; zeros where the interval is longer than a verdict's.
    pub ops: [OpInterval; OPS],
    /// Requests that waited here, in such an interval.
    pub waited: u64,
    /// Time with a request waiting here, likewise, ns. Of several workers: the sum of theirs.
    pub waited_ns: u64,
    /// Time that reads, writes and flushes like these take alone.
    pub alone: [Option<Alone>; OPS],
}

/// Activity between two readings.
#[derive(Clone, Debug, Default)]
pub struct Interval {
    /// How long it is, ns; at least 1.
    pub elapsed_ns: u64,
    /// By device.
    pub devices: Vec<DeviceInterval>,
    /// By worker: for how long it wanted a core, ns, if that is known ([`WorkerStats::wanted_ns`]).
    pub wanted_ns: Vec<Option<u64>>,
}

/// The last readings.
#[derive(Debug, Default)]
pub struct History {
    readings: VecDeque<Reading>,
    /// By minute.
    minutes: VecDeque<Vec<Minute>>,
    /// At the beginning of the present minute.
    minute: Option<Reading>,
    /// By device.
    alone: Vec<AloneOn>,
}

/// A device in a minute.
#[derive(Debug)]
struct Minute {
    device: String,
    requests: u64,
    /// Their time on it, ns.
    device_ns: u64,
    served_per_s: u64,
}

/// Times that requests of the tenants of one device take alone.
#[derive(Debug)]
struct AloneOn {
    device: String,
    names: Arc<[String]>,
    times: Vec<Times>,
}

impl History {
    /// Takes a reading, later than those before.
    pub fn push(&mut self, stats: &EngineStats) {
        let last = self.readings.back();
        let device = |device: &DeviceStats| reading_of(device, last.and_then(|last| last.device(&device.name)));
        let devices = stats.devices.iter().map(device).collect();
        let reading = Reading { at_ns: stats.at_ns, devices, workers: stats.workers.clone() };
        let minute = self.minute.get_or_insert_with(|| reading.clone());
        if reading.at_ns.saturating_sub(minute.at_ns) >= MINUTE_NS {
            let none = DeviceReading::default();
            let mean = |device: &DeviceReading| {
                // By tenant: the sums of those that have gone are not in the later one.
                let before = minute.device(&device.name).unwrap_or(&none);
                let elapsed_ns = reading.at_ns.saturating_sub(minute.at_ns);
                let done = flows_between(before, device, elapsed_ns);
                let sum = |of: fn(&FlowInterval) -> u64| done.iter().map(of).sum::<u64>();
                let served = u128::from(sum(|flow| flow.served)) * 1_000_000_000 / u128::from(elapsed_ns);
                Minute {
                    device: device.name.clone(),
                    requests: sum(|flow| flow.requests),
                    device_ns: sum(|flow| flow.device_ns),
                    served_per_s: u64::try_from(served).unwrap_or(u64::MAX),
                }
            };
            let means = reading.devices.iter().map(mean).collect();
            *minute = reading.clone();
            self.minutes.push_back(means);
            if self.minutes.len() > MINUTES_MAX {
                self.minutes.pop_front();
            }
        }
        if self.readings.len() == READINGS_MAX {
            self.readings.pop_front();
        }
        if let Some(last) = self.readings.back() {
            let elapsed_ns = reading.at_ns.saturating_sub(last.at_ns);
            let found = |device: &DeviceReading| {
                let before = last.device(&device.name)?;
                Some(AloneOn::after(&mut self.alone, device, &flows_between(before, device, elapsed_ns)))
            };
            self.alone = reading.devices.iter().filter_map(found).collect();
        }
        self.readings.push_back(reading);
        if let Some(old) = self.readings.len().checked_sub(RECENT_MAX + 1) {
            self.readings[old].devices.iter_mut().for_each(|device| device.recent = Vec::new());
        }
    }

    /// Activity over the last `seconds`, or since the first reading that is kept. `None`: there are not two readings.
    pub fn over(&self, seconds: u64) -> Option<Interval> {
        let now = self.readings.back()?;
        let from_ns = now.at_ns.saturating_sub(seconds * 1_000_000_000);
        // The one nearest to the beginning.
        let before = self.readings.iter().rev().skip(1).min_by_key(|reading| reading.at_ns.abs_diff(from_ns))?;
        let none = DeviceReading::default();
        let device = |device: &DeviceReading| {
            let elapsed_ns = now.at_ns.saturating_sub(before.at_ns);
            let interval = between(before.device(&device.name).unwrap_or(&none), device, elapsed_ns);
            let mut interval = DeviceInterval {
                usual_device_ns: self.usual_device_ns(&device.name),
                usual_served_per_s: self.usual_served_per_s(&device.name),
                ..interval
            };
            if let Some(known) = self.alone.iter().find(|known| known.device == device.name) {
                interval.flows.iter_mut().zip(&known.times).for_each(|(flow, times)| flow.alone = times.of(flow));
            }
            interval
        };
        let devices = now.devices.iter().map(device).collect();
        let wanted = |(now, before): (&WorkerStats, &WorkerStats)| now.wanted_ns?.checked_sub(before.wanted_ns?);
        let wanted_ns = now.workers.iter().zip(&before.workers).map(wanted).collect();
        Some(Interval { elapsed_ns: now.at_ns.saturating_sub(before.at_ns).max(1), devices, wanted_ns })
    }

    /// As [`History::over`], with the moment at which it ends, ns.
    pub fn last_over(&self, seconds: u64) -> Option<(u64, Interval)> {
        Some((self.readings.back()?.at_ns, self.over(seconds)?))
    }

    fn usual_device_ns(&self, device: &str) -> Option<u64> {
        median(self.minutes_of(device).filter_map(|minute| minute.device_ns.checked_div(minute.requests)))
    }

    fn usual_served_per_s(&self, device: &str) -> Option<u64> {
        median(self.minutes_of(device).filter(|minute| minute.requests > 0).map(|minute| minute.served_per_s))
    }

    fn minutes_of<'a>(&'a self, device: &'a str) -> impl Iterator<Item = &'a Minute> {
        self.minutes.iter().flatten().filter(move |minute| minute.device == device)
    }
}

impl AloneOn {
    /// Knowledge of a device after `flows` were served in a second, of which `all` has what was known before.
    fn after(all: &mut [AloneOn], device: &DeviceReading, flows: &[FlowInterval]) -> AloneOn {
        let before = all.iter_mut().find(|known| known.device == device.name);
        let mut times = match before {
            Some(before) if Arc::ptr_eq(&before.names, &device.names) => std::mem::take(&mut before.times),
            Some(before) => {
                let named = before.names.iter().map(String::as_str).zip(std::mem::take(&mut before.times));
                let mut named: HashMap<&str, Times> = named.collect();
                device.names.iter().map(|name| named.remove(&**name).unwrap_or_default()).collect()
            }
            None => vec![Times::default(); device.names.len()],
        };
        let held = alone::held(flows);
        let all = held.iter().sum();
        for ((times, flow), held) in times.iter_mut().zip(flows).zip(held).filter(|(_, held)| *held > 0) {
            times.learn(flow, alone::is_alone(held, all));
        }
        AloneOn { device: device.name.clone(), names: device.names.clone(), times }
    }
}

fn median(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

impl Reading {
    fn device(&self, name: &str) -> Option<&DeviceReading> {
        self.devices.iter().find(|device| device.name == name)
    }
}

fn reading_of(device: &DeviceStats, last: Option<&DeviceReading>) -> DeviceReading {
    let names = || device.flows.iter().map(|flow| &flow.name);
    let same = last.filter(|last| last.names.iter().eq(names()));
    let flow = |flow: &mqfq_blk::engine::NamedFlowStats| FlowReading {
        requests: flow.stats.requests(),
        bytes: flow.stats.transferred_bytes(),
        cost: flow.stats.cost,
        active_ns: flow.stats.active_ns,
        queued_ns: flow.stats.queued_ns_sum,
        device_ns: flow.stats.device_ns_sum,
        weight: match flow.effective_weight.filter(|effective| effective.competes) {
            Some(effective) => effective.millionths,
            None => u64::from(flow.weight.get()) * 1_000_000,
        },
        group: flow.group.map(|group| group.0),
    };
    let recent = |flow: &mqfq_blk::engine::NamedFlowStats| {
        let FlowStats { completed, total_ns_sum, bytes, waited, waited_ns, .. } = flow.stats;
        let op = |op: usize| OpInterval { requests: completed[op], total_ns: total_ns_sum[op], bytes: bytes[op] };
        RecentReading { ops: std::array::from_fn(op), waited, waited_ns }
    };
    let sum = |of: fn(&mqfq_blk::stats::HctxStats) -> u64| device.hctxs.iter().map(of).sum();
    DeviceReading {
        name: device.name.clone(),
        names: same.map_or_else(|| names().cloned().collect(), |last| last.names.clone()),
        busy_ns: sum(|hctx| hctx.busy_ns),
        in_flight_ns: sum(|hctx| hctx.in_flight_ns),
        throttled_ns: sum(|hctx| hctx.throttled_ns),
        no_token_ns: sum(|hctx| hctx.no_token_ns),
        held_ns: device.hctxs.iter().map(|hctx| [hctx.throttled_ns, hctx.no_token_ns]).collect(),
        flows: device.flows.iter().map(flow).collect(),
        recent: device.flows.iter().map(recent).collect(),
    }
}

/// Activity of the tenants, without entitlements.
fn flows_between(before: &DeviceReading, now: &DeviceReading, elapsed_ns: u64) -> Vec<FlowInterval> {
    let none = FlowReading::default();
    // If no tenant came or went, places are as good as names.
    let is_same = Arc::ptr_eq(&before.names, &now.names);
    let places: HashMap<&str, usize> = match is_same {
        true => HashMap::new(),
        false => before.names.iter().map(String::as_str).zip(0..).collect(),
    };
    let flow = |(at, now_flow): (usize, &FlowReading)| {
        let place = if is_same { Some(at) } else { places.get(&*now.names[at]).copied() };
        let recent_before = match place {
            Some(place) => before.recent.get(place).copied(),
            None => Some(RecentReading::default()),
        };
        let recent = recent_before.zip(now.recent.get(at)).map(|(before, now)| now.since(&before)).unwrap_or_default();
        let before = place.and_then(|place| before.flows.get(place)).unwrap_or(&none);
        let now = now_flow;
        let queued_ns = now.queued_ns.saturating_sub(before.queued_ns);
        let device_ns = now.device_ns.saturating_sub(before.device_ns);
        let served = now.cost.saturating_sub(before.cost);
        FlowInterval {
            requests: now.requests.saturating_sub(before.requests),
            bytes: now.bytes.saturating_sub(before.bytes),
            served,
            entitled: 0,
            asked: asked(served, queued_ns, device_ns),
            queued_ns,
            device_ns,
            active_ns: now.active_ns.saturating_sub(before.active_ns),
            weight: now.weight,
            is_hungry: queued_ns > 0 && queued_ns >= elapsed_ns / 2,
            group: now.group,
            ops: recent.ops,
            waited: recent.waited,
            waited_ns: recent.waited_ns,
            alone: [None; OPS],
        }
    };
    now.flows.iter().enumerate().map(flow).collect()
}

fn between(before: &DeviceReading, now: &DeviceReading, elapsed_ns: u64) -> DeviceInterval {
    let mut flows = flows_between(before, now, elapsed_ns);
    let claims: Vec<Claim> = flows.iter().map(FlowInterval::claim).collect();
    flows.iter_mut().zip(entitlements(&claims)).for_each(|(flow, entitled)| flow.entitled = entitled);
    DeviceInterval {
        name: now.name.clone(),
        names: now.names.clone(),
        busy_ns: now.busy_ns.saturating_sub(before.busy_ns),
        in_flight_ns: now.in_flight_ns.saturating_sub(before.in_flight_ns),
        throttled_ns: now.throttled_ns.saturating_sub(before.throttled_ns),
        no_token_ns: now.no_token_ns.saturating_sub(before.no_token_ns),
        held_ns: now.held_ns.iter().enumerate().map(|(hctx, now)| held_since(now, before.held_ns.get(hctx))).collect(),
        served: flows.iter().map(|flow| flow.served).sum(),
        flows,
        usual_device_ns: None,
        usual_served_per_s: None,
    }
}

fn held_since(now: &[u64; 2], before: Option<&[u64; 2]>) -> [u64; 2] {
    let before = before.copied().unwrap_or_default();
    [now[0].saturating_sub(before[0]), now[1].saturating_sub(before[1])]
}

impl RecentReading {
    fn since(&self, before: &RecentReading) -> RecentReading {
        let op = |op: usize| {
            let (now, before) = (&self.ops[op], &before.ops[op]);
            OpInterval {
                requests: now.requests.saturating_sub(before.requests),
                total_ns: now.total_ns.saturating_sub(before.total_ns),
                bytes: now.bytes.saturating_sub(before.bytes),
            }
        };
        RecentReading {
            ops: std::array::from_fn(op),
            waited: self.waited.saturating_sub(before.waited),
            waited_ns: self.waited_ns.saturating_sub(before.waited_ns),
        }
    }
}

impl FlowInterval {
    /// Service, demand and weight.
    pub(crate) fn claim(&self) -> Claim {
        Claim { served: self.served, asked: self.asked, weight: self.weight }
    }
}

impl Interval {
    /// Returns this interval with devices and tenants in the order of `stats`, which may be of another moment; a tenant
    /// without a reading at the interval's end has done nothing in it.
    #[must_use]
    pub fn of(&self, stats: &EngineStats) -> Interval {
        let device = |device: &DeviceStats| {
            let Some(done) = self.devices.iter().find(|done| done.name == device.name) else {
                return DeviceInterval {
                    flows: vec![FlowInterval::default(); device.flows.len()],
                    ..Default::default()
                };
            };
            if done.names.iter().eq(device.flows.iter().map(|flow| &flow.name)) {
                return done.clone();
            }
            let places: HashMap<&str, usize> = done.names.iter().map(String::as_str).zip(0..).collect();
            let flow = |name: &str| places.get(name).map(|&place| done.flows[place]).unwrap_or_default();
            DeviceInterval {
                names: device.flows.iter().map(|flow| flow.name.clone()).collect(),
                flows: device.flows.iter().map(|named| flow(&named.name)).collect(),
                ..done.clone()
            }
        };
        let devices = stats.devices.iter().map(device).collect();
        Interval { elapsed_ns: self.elapsed_ns, devices, wanted_ns: self.wanted_ns.clone() }
    }

    /// Per second.
    pub fn per_second(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.elapsed_ns as f64
    }

    /// The mean number of something that took so long altogether.
    pub fn mean(&self, sum_ns: u64) -> f64 {
        sum_ns as f64 / self.elapsed_ns as f64
    }
}

/// A part of a whole; 0 of nothing.
pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use mqfq_blk::engine::NamedFlowStats;
    use mqfq_blk::split::{Split, SplitControl};
    use mqfq_blk::stats::HctxStats;
    use mqfq_blk::{PolicyKind, PolicyOptions, Weight};

    pub const SECOND_NS: u64 = 1_000_000_000;

    /// A tenant with so many requests of 4 KiB, each of which took so long in the queue and on the device.
    pub fn tenant(name: &str, weight: u64, requests: u64, queued_ns: u64, device_ns: u64) -> NamedFlowStats {
        let active_ns = requests * (queued_ns + device_ns);
        let mut stats = FlowStats { cost: requests * 4096, active_ns, ..FlowStats::default() };
        (stats.completed[0], stats.bytes[0]) = (requests, requests * 4096);
        stats.total_ns_sum[0] = requests * (queued_ns + device_ns);
        (stats.queued_ns_sum, stats.device_ns_sum) = (requests * queued_ns, requests * device_ns);
        if requests > 0 {
            stats.queued_ns.record_n(queued_ns, requests);
            stats.device_ns.record_n(device_ns, requests);
            stats.total_ns.record_n(queued_ns + device_ns, requests);
        }
        NamedFlowStats {
            name: name.to_owned(),
            stats,
            last_ns: Vec::new(),
            class_bytes: None,
            weight: Weight::new(weight).unwrap(),
            effective_weight: None,
            goal: None,
            group: None,
        }
    }

    /// One device with these tenants.
    pub fn stats(at_s: u64, flows: Vec<NamedFlowStats>) -> EngineStats {
        let hctx = HctxStats { busy_ns: at_s * SECOND_NS, in_flight_ns: 4 * at_s * SECOND_NS, ..HctxStats::default() };
        let device = DeviceStats {
            name: "fast".into(),
            policy: "mqfq",
            options: PolicyOptions::new(PolicyKind::Mqfq),
            class_weights: None,
            in_force: None,
            depth_cap: None,
            write_cost_256ths: None,
            split: SplitControl::new(Split::Off, 1).state(),
            health: Default::default(),
            ailing: Vec::new(),
            flows,
            groups: Vec::new(),
            hctxs: vec![hctx],
        };
        EngineStats { at_ns: at_s * SECOND_NS, devices: vec![device], workers: Vec::new() }
    }

    #[test]
    fn an_interval_is_the_difference_of_two_readings_and_the_last_seconds_are_told_apart() {
        let mut history = History::default();
        assert!(history.over(1).is_none());
        // 100 requests a second for a minute, then 1000 in the last second, each a millisecond on the device.
        for second in 0..=60u64 {
            let requests = if second < 60 { second * 100 } else { 5900 + 1000 };
            history.push(&stats(second, vec![tenant("a", 100, requests, 0, 1_000_000)]));
        }
        let requests = |seconds| history.over(seconds).unwrap().devices[0].flows[0].requests;
        assert_eq!((requests(1), requests(2), requests(60), requests(600)), (1000, 1100, 6900, 6900));
        let last = history.over(1).unwrap();
        assert_eq!((last.per_second(1000), last.mean(last.devices[0].flows[0].device_ns)), (1000.0, 1.0));
        assert_eq!((last.devices[0].busy_ns, last.mean(last.devices[0].in_flight_ns)), (SECOND_NS, 4.0));
        assert_eq!(history.over(1).unwrap().devices[0].usual_device_ns, Some(1_000_000), "one minute has ended");
    }

    #[test]
    fn whoever_waits_is_entitled_to_its_part_by_weight_of_what_others_leave() {
        let mut history = History::default();
        history.push(&stats(0, vec![tenant("a", 100, 0, 0, 0), tenant("b", 300, 0, 0, 0), tenant("c", 100, 0, 0, 0)]));
        // a and b wait, 10 and 9 ms each of 900 and 100 requests; c gets 100 requests without waiting.
        let flows = vec![
            tenant("a", 100, 900, 10_000_000, 1_000_000),
            tenant("b", 300, 100, 9_000_000, 1_000_000),
            tenant("c", 100, 100, 0, 1_000_000),
        ];
        history.push(&stats(1, flows));
        let interval = history.over(1).unwrap();
        let entitled: Vec<u64> = interval.devices[0].flows.iter().map(|flow| flow.entitled / 4096).collect();
        assert_eq!(entitled, [250, 750, 100]);
        let hungry: Vec<bool> = interval.devices[0].flows.iter().map(|flow| flow.is_hungry).collect();
        assert_eq!(hungry, [true, true, false]);
    }

    #[test]
    fn what_is_usual_is_the_median_of_a_device_s_own_minutes_and_of_an_hour_of_them() {
        // The requests of each minute take so long on the device, ms; the other device is always slower.
        let usual = |means_ms: &[u64]| {
            let mut history = History::default();
            let (mut requests, mut flow) = (0, tenant("a", 100, 0, 0, 0));
            for minute in 0..=means_ms.len() as u64 {
                let mut now = stats(60 * minute, vec![flow.clone()]);
                let mut other = now.devices[0].clone();
                (other.name, other.flows) = ("other".into(), vec![tenant("a", 100, 10 * minute, 0, 9_000_000)]);
                now.devices.insert(0, other);
                history.push(&now);
                requests += 100;
                flow.stats.completed[0] = requests;
                flow.stats.device_ns_sum += means_ms.get(minute as usize).map_or(0, |ms| 100 * ms * 1_000_000);
            }
            let devices = history.over(60).unwrap().devices;
            [&devices[0], &devices[1]].map(|device| device.usual_device_ns.unwrap() / 1_000_000)
        };
        assert_eq!(usual(&[5, 1, 4]), [9, 4]);
        let hours: Vec<u64> = std::iter::repeat_n(1, 60).chain(std::iter::repeat_n(8, 31)).collect();
        assert_eq!(usual(&hours), [9, 8], "29 of the last sixty minutes were fast");
    }

    #[test]
    fn an_interval_has_the_time_groups_and_cores_of_its_own_readings() {
        let mut history = History::default();
        for second in 0..=100u64 {
            // Half a request waits, a little less, and one thousandth.
            let waiting = |name: &str, ns| tenant(name, 100, second, ns, 1_000_000);
            let flows = vec![waiting("a", 500_000_000), waiting("b", 499_999_999), waiting("c", 1_000_000)];
            let mut now = stats(second, flows);
            now.devices[0].flows[1].group = Some(mqfq_blk::GroupId(3));
            now.devices.push(DeviceStats { name: "other".into(), ..now.devices[0].clone() });
            let wanted =
                |part: u64| WorkerStats { wanted_ns: Some(second * SECOND_NS / part), ..WorkerStats::default() };
            now.workers = vec![wanted(2), wanted(4), WorkerStats { wanted_ns: None, ..WorkerStats::default() }];
            history.push(&now);
        }
        let minute = history.over(600).unwrap();
        assert_eq!(minute.elapsed_ns, 60 * SECOND_NS, "readings of a minute are kept");
        let now = stats(100, vec![tenant("c", 100, 0, 0, 0), tenant("b", 100, 0, 0, 0)]);
        let mut now = EngineStats { devices: vec![now.devices[0].clone(), now.devices[0].clone()], ..now };
        now.devices[0].name = "other".into();
        now.devices.push(DeviceStats { name: "new".into(), ..now.devices[0].clone() });
        let told = history.over(10).unwrap().of(&now);
        assert_eq!(told.elapsed_ns, 10 * SECOND_NS);
        assert_eq!(told.wanted_ns, [Some(5 * SECOND_NS), Some(5 * SECOND_NS / 2), None]);
        assert_eq!(told.devices.iter().map(|device| &*device.name).collect::<Vec<_>>()[..2], ["other", "fast"]);
        for device in &told.devices[..2] {
            assert_eq!(device.names[..], ["c", "b"]);
            let of = |flow: &FlowInterval| (flow.requests, flow.active_ns, flow.group, flow.is_hungry);
            let active_ns = [10 * 2_000_000, 10 * 500_999_999];
            let expected = [(10, active_ns[0], None, false), (10, active_ns[1], Some(3), false)];
            assert_eq!(device.flows.iter().map(of).collect::<Vec<_>>(), expected);
        }
        assert_eq!(told.devices[2].flows, [FlowInterval::default(); 2], "nothing is known of a device that has come");
        assert!(history.over(1).unwrap().devices[0].flows[0].is_hungry, "half a request is enough");
    }

    #[test]
    fn tenants_that_come_and_go_are_told_apart_by_name() {
        let mut history = History::default();
        history.push(&stats(0, vec![tenant("a", 100, 500, 10, 10), tenant("b", 100, 20, 10, 10)]));
        history.push(&stats(1, vec![tenant("b", 100, 25, 10, 10), tenant("c", 100, 7, 10, 10)]));
        let requests = |history: &History, at: usize| history.over(1).unwrap().devices[0].flows[at].requests;
        assert_eq!((requests(&history, 0), requests(&history, 1)), (5, 7), "c is new");
        history.push(&stats(2, vec![tenant("b", 100, 3, 10, 10), tenant("c", 100, 9, 10, 10)]));
        assert_eq!((requests(&history, 0), requests(&history, 1)), (0, 2), "another b");
    }

    #[test]
    fn an_interval_is_told_by_the_names_of_who_is_there_now() {
        let mut history = History::default();
        history.push(&stats(0, vec![tenant("a", 100, 0, 10, 10), tenant("b", 100, 0, 10, 10)]));
        history.push(&stats(1, vec![tenant("a", 100, 500, 10, 10), tenant("b", 100, 20, 10, 10)]));
        let now = stats(2, vec![tenant("b", 100, 25, 10, 10), tenant("c", 100, 7, 10, 10)]);
        let interval = history.over(1).unwrap().of(&now);
        let requests: Vec<u64> = interval.devices[0].flows.iter().map(|flow| flow.requests).collect();
        assert_eq!(requests, [20, 0], "a has gone, c has come");
    }

    #[test]
    fn what_is_usual_on_a_device_is_not_told_by_who_has_gone() {
        let mut history = History::default();
        let slow = |requests| tenant("slow", 100, requests, 0, 2_000_000);
        history.push(&stats(0, vec![tenant("quick", 100, 1000, 0, 1000), slow(10)]));
        history.push(&stats(60, vec![slow(110)]));
        assert_eq!(history.over(60).unwrap().devices[0].usual_device_ns, Some(2_000_000));
    }
}
