//! How Prometheus gets it: the text of `/metrics`, in the OpenMetrics format or Prometheus's own ([`Format`]).
//!
//! Names have the prefix `mqfq_`, base units (seconds, bytes, ratios from 0 to 1) and `_total` for what only grows.
//! Where a rate is meant there is an integral and no gauge: the rate of `mqfq_device_commands_seconds_total` is the
//! mean number of commands on the device. Time in the queue and time on the device are two histograms.
//! docs/use/metrics.md has the table, which a test compares with what is encoded.
//!
//! Buckets of histograms end at powers of two of the counters' own buckets, so a scrape adds nothing to their error:
//! 16 us to 4.3 s, each four times the one before up to 1 ms and twice from there. A time that is exactly a boundary
//! counts in the bucket above.
//!
//! # Cost
//! Ten thousand tenants are half a million lines. So a line is put together of parts that are ready: the name with all
//! that stands before the labels, once for each family; the labels, once for each tenant; and the digits of a number.
//! It comes in slices ([`Text::slice`]), so that the thread that renders can pause, and never holds all of it
//! (`every_line_is_as_prometheus_client_writes_it`).

use crate::history::{DeviceInterval, FlowInterval, Interval};
use mqfq_blk::device::Health;
use mqfq_blk::engine::{DeviceStats, EngineStats, NamedFlowStats, WorkerStats};
use mqfq_blk::latencies::{Latencies, index_of};
use mqfq_blk::request::Op;
use mqfq_blk::stats::HctxStats;

mod families;
mod format;

pub use format::Format;

/// A slice of the text ends after the first tenant that ends beyond so many bytes: a tenth of a millisecond of work.
const SLICE_BYTES: usize = 128 << 10;

/// Ends of the buckets, ns.
const BUCKET_ENDS_NS: [u64; 16] = [
    1 << 14,
    1 << 16,
    1 << 18,
    1 << 20,
    1 << 21,
    1 << 22,
    1 << 23,
    1 << 24,
    1 << 25,
    1 << 26,
    1 << 27,
    1 << 28,
    1 << 29,
    1 << 30,
    1 << 31,
    1 << 32,
];

const OPERATIONS: [&str; Op::COUNT] = ["read", "write", "flush", "discard", "write_zeroes", "extents"];

/// Data of one scrape.
#[derive(Debug)]
pub struct Scrape {
    /// Counters.
    pub stats: EngineStats,
    /// The last second and the last minute, with the labels that they have.
    pub intervals: Vec<(&'static str, Interval)>,
}

impl Scrape {
    /// The text, slice by slice.
    pub fn into_text(self, format: Format) -> Text {
        Text::new(self, format)
    }

    /// The text.
    pub fn text(self, format: Format) -> String {
        let (mut text, mut all) = (self.into_text(format), Vec::new());
        while text.slice(&mut all) {}
        String::from_utf8(all).expect("names are text, and so is all else")
    }
}

/// Counts of a device's workers: name, text, which.
type OfWorkers = (&'static str, &'static str, fn(&HctxStats) -> u64);

const COUNTS: [OfWorkers; 12] = [
    ("device_dispatched_requests", "Requests handed to the device", |hctx| hctx.dispatched),
    ("device_doorbells", "Doorbells rung", |hctx| hctx.doorbells),
    ("device_split_requests", "Requests that went to the device in parts", |hctx| hctx.split),
    ("device_refused_requests", "Submissions refused because the tenant had its bound staged", |hctx| hctx.refused),
    ("device_throttled", "Times that the window T held a worker back", |hctx| hctx.throttled),
    ("device_token_waits", "Times that the depth D held a worker back", |hctx| hctx.no_token),
    ("device_kicks", "Kicks sent to other workers", |hctx| hctx.kicks),
    ("device_timeouts", "Commands that were on the device for longer than the timeout", |hctx| hctx.timeouts),
    ("device_aborts", "Of those, commands that the device could be asked to give up", |hctx| hctx.aborts),
    ("device_resets", "Resets of device queues", |hctx| hctx.resets),
    ("device_replays", "Requests that went to the device again after a reset", |hctx| hctx.replays),
    ("device_stuck_commands", "Commands that timed out and were never given back", |hctx| hctx.stuck),
];

const TIMES: [OfWorkers; 4] = [
    ("device_busy", "Time with a command on the device, all workers together", |hctx| hctx.busy_ns),
    ("device_commands_time", "Commands on the device times how long they were there", |hctx| hctx.in_flight_ns),
    ("device_throttled_time", "Time during which T held workers back, all together", |hctx| hctx.throttled_ns),
    ("device_token_wait_time", "Time during which D held workers back, all together", |hctx| hctx.no_token_ns),
];

/// Source of a family's values.
#[derive(Clone, Copy)]
enum Of {
    /// A count of a device's workers.
    Workers(fn(&HctxStats) -> u64),
    /// A time of a device's workers, ns.
    WorkersTime(fn(&HctxStats) -> u64),
    /// Service of all tenants, removed ones included.
    Served,
    /// A number that a device may have.
    Device(fn(&DeviceStats) -> Option<u64>),
    /// 1 or 0 for each state of a device.
    Health,
    /// A count of a tenant for each operation that was used.
    Operations(fn(&NamedFlowStats) -> &[u64; Op::COUNT]),
    /// A count of a tenant.
    Tenant(fn(&NamedFlowStats) -> u64),
    /// A gauge of a tenant, which is whole.
    TenantNow(fn(&NamedFlowStats) -> u64),
    /// A number of a tenant that has a latency goal; true: a time, ns.
    Goal(fn(&families::GoalState) -> u64, bool),
    /// Age of a tenant's oldest request.
    Age,
    /// Times of a tenant, and their sum, ns.
    Histogram(fn(&NamedFlowStats) -> (&Latencies, u64)),
    /// A tenant's part of what its device served.
    Interval(fn(&FlowInterval) -> u64),
    /// Sum over all tenants of a device.
    IntervalOfAll(fn(&FlowInterval) -> u64),
    /// A time of a worker, ns; true: it is a counter.
    Worker(fn(&WorkerStats) -> u64, bool),
}

impl Of {
    fn kind(self) -> &'static str {
        match self {
            Of::Workers(_) | Of::WorkersTime(_) | Of::Served | Of::Operations(_) | Of::Tenant(_) => "counter",
            Of::Worker(_, true) => "counter",
            Of::Histogram(_) => "histogram",
            _ => "gauge",
        }
    }
}

/// One family's name, text, unit, and where its numbers come from.
struct Family {
    name: &'static str,
    help: &'static str,
    unit: Option<&'static str>,
    of: Of,
}

const fn family(name: &'static str, help: &'static str, unit: Option<&'static str>, of: Of) -> Family {
    Family { name, help, unit, of }
}

const SECONDS: Option<&str> = Some("seconds");
const BYTES: Option<&str> = Some("bytes");
const RATIO: Option<&str> = Some("ratio");

/// All of them, in the order of the text.
fn families() -> Vec<Family> {
    let counts = COUNTS.into_iter().map(|(name, help, of)| family(name, help, None, Of::Workers(of)));
    let times = TIMES.into_iter().map(|(name, help, of)| family(name, help, SECONDS, Of::WorkersTime(of)));
    let of_interval = "Sum of the tenants' entitlements over what the device served";
    let others = [
        family("device_depth_units", "D in force", None, Of::Device(|device| depth(device).map(u64::from))),
        families::cap(),
        family("device_window", "T in force", BYTES, Of::Device(window_bytes)),
        family("device_health", "1 for the state that the device is in, 0 for the others", None, Of::Health),
        family("device_ailing_backings", "Backings that fail requests", None, Of::Device(crate::live::ailing)),
        family("device_service", "Cost of what was completed, in bytes of plain reads", BYTES, Of::Served),
        family("tenant_requests", "Requests completed", None, Of::Operations(|flow| &flow.stats.completed)),
        family(
            "tenant_transferred",
            "Bytes of requests that ended well",
            BYTES,
            Of::Operations(|flow| &flow.stats.bytes),
        ),
        family(
            "tenant_failed_requests",
            "Requests that ended with an error",
            None,
            Of::Tenant(|flow| flow.stats.failed),
        ),
        family(
            "tenant_service",
            "Cost of what was completed, in bytes of plain reads",
            BYTES,
            Of::Tenant(|flow| flow.stats.cost),
        ),
        family(
            "tenant_queue",
            "Time from submission to dispatch: waited here",
            SECONDS,
            Of::Histogram(|flow| (&flow.stats.queued_ns, flow.stats.queued_ns_sum)),
        ),
        family(
            "tenant_device",
            "Time from dispatch to completion: the device's",
            SECONDS,
            Of::Histogram(|flow| (&flow.stats.device_ns, flow.stats.device_ns_sum)),
        ),
        family("tenant_weight", "Weight, as last set", None, Of::TenantNow(|flow| flow.weight.get().into())),
        family(
            "tenant_requests_under_way",
            "Requests admitted and not completed",
            None,
            Of::TenantNow(|flow| flow.stats.under_way),
        ),
        family("tenant_oldest_request_age", "Time since its oldest request was submitted", SECONDS, Of::Age),
        families::goal(),
        families::p90(),
        families::met(),
        family(
            "tenant_share",
            "Part of the device's service that it received",
            RATIO,
            Of::Interval(|flow| flow.served),
        ),
        family(
            "tenant_entitlement",
            "Part of the device's service that was its own",
            RATIO,
            Of::Interval(|flow| flow.entitled),
        ),
        family("device_entitlement", of_interval, RATIO, Of::IntervalOfAll(|flow| flow.entitled)),
    ];
    counts.chain(times).chain(others).chain(families::of_workers()).collect()
}

/// The text of a scrape, of which the beginning is rendered.
pub struct Text {
    scrape: Scrape,
    format: Format,
    families: std::vec::IntoIter<Family>,
    /// The one that is rendered, and its next row.
    present: Option<(Family, Heads, usize)>,
    /// Device and tenant there, of all.
    flows: Vec<(u32, u32)>,
    /// By device, and by place in `flows`: what stands between the braces.
    device_labels: Vec<Vec<u8>>,
    flow_labels: Vec<Vec<u8>>,
    is_over: bool,
}

/// Beginnings of a family's lines.
struct Heads {
    /// Up to the labels.
    plain: Vec<u8>,
    /// Up to the labels, for histograms.
    sum: Vec<u8>,
    count: Vec<u8>,
    buckets: Vec<Vec<u8>>,
}

impl Text {
    fn new(scrape: Scrape, format: Format) -> Text {
        let devices = || (0u32..).zip(&scrape.stats.devices);
        let flows: Vec<(u32, u32)> =
            devices().flat_map(|(at, device)| (0..device.flows.len() as u32).map(move |flow| (at, flow))).collect();
        let label = |name: &str, value: &str| {
            let mut text = format!("{name}=\"").into_bytes();
            put_escaped(&mut text, value);
            text.push(b'"');
            text
        };
        let device_labels: Vec<Vec<u8>> = devices().map(|(_, device)| label("device", &device.name)).collect();
        let of_flow = |(at, flow): &(u32, u32)| {
            let device = &scrape.stats.devices[*at as usize];
            [&*device_labels[*at as usize], b",", &label("tenant", &device.flows[*flow as usize].name)].concat()
        };
        let flow_labels = flows.iter().map(of_flow).collect();
        let families = families().into_iter();
        Text { scrape, format, families, present: None, flows, device_labels, flow_labels, is_over: false }
    }

    /// Adds the next lines to `out`; false: there were none left.
    pub fn slice(&mut self, out: &mut Vec<u8>) -> bool {
        if self.is_over {
            return false;
        }
        out.reserve(SLICE_BYTES + SLICE_BYTES / 8);
        let end = out.len() + SLICE_BYTES;
        while out.len() < end {
            let (family, heads, row) = match self.present.take() {
                Some(present) => present,
                None => match self.families.next() {
                    Some(family) => {
                        let heads = family.begin(self.format, out);
                        (family, heads, 0)
                    }
                    None => {
                        if self.format == Format::OpenMetrics {
                            out.extend_from_slice(b"# EOF\n");
                        }
                        self.is_over = true;
                        return true;
                    }
                },
            };
            let rows = self.rows(family.of);
            let mut row = row;
            while row < rows && out.len() < end {
                self.put_row(family.of, &heads, row, out);
                row += 1;
            }
            if row < rows {
                self.present = Some((family, heads, row));
            }
        }
        true
    }

    fn rows(&self, of: Of) -> usize {
        let (devices, intervals) = (self.device_labels.len(), self.scrape.intervals.len());
        match of {
            Of::Workers(_) | Of::WorkersTime(_) | Of::Served | Of::Device(_) | Of::Health => devices,
            Of::Interval(_) => intervals * self.flows.len(),
            Of::IntervalOfAll(_) => intervals * devices,
            Of::Worker(..) => self.scrape.stats.workers.len(),
            _ => self.flows.len(),
        }
    }

    fn put_row(&self, of: Of, heads: &Heads, row: usize, out: &mut Vec<u8>) {
        let stats = &self.scrape.stats;
        let head = &heads.plain;
        let flow = |row: usize| {
            let (device, flow) = self.flows[row];
            (&stats.devices[device as usize].flows[flow as usize], &*self.flow_labels[row])
        };
        let device = |row: usize| (&stats.devices[row], &*self.device_labels[row]);
        match of {
            Of::Workers(of) => {
                let (device, labels) = device(row);
                put_count(out, head, labels, device.hctxs.iter().map(of).sum());
            }
            Of::WorkersTime(of) => {
                let (device, labels) = device(row);
                put_billionths(out, head, labels, device.hctxs.iter().map(of).sum());
            }
            Of::Served => {
                let (device, labels) = device(row);
                // A counter never goes back: those that are gone count on.
                let gone: u64 = device.hctxs.iter().map(|hctx| hctx.gone_cost).sum();
                put_count(out, head, labels, device.flows.iter().map(|flow| flow.stats.cost).sum::<u64>() + gone);
            }
            Of::Device(of) => {
                let (device, labels) = device(row);
                of(device).into_iter().for_each(|value| put_whole(out, head, labels, value));
            }
            Of::Health => {
                let (device, labels) = device(row);
                for health in Health::ALL {
                    let labels = [labels, b",state=\"", health.name().as_bytes(), b"\""].concat();
                    put_whole(out, head, &labels, u64::from(device.health == health));
                }
            }
            Of::Operations(of) => {
                let (flow, labels) = flow(row);
                for (operation, count) in OPERATIONS.iter().zip(of(flow)).filter(|(_, count)| **count > 0) {
                    out.extend_from_slice(head);
                    out.extend_from_slice(labels);
                    out.extend_from_slice(b",operation=\"");
                    out.extend_from_slice(operation.as_bytes());
                    out.push(b'"');
                    put_count(out, &[], &[], *count);
                }
            }
            Of::Tenant(of) => {
                let (flow, labels) = flow(row);
                put_count(out, head, labels, of(flow));
            }
            Of::TenantNow(of) => {
                let (flow, labels) = flow(row);
                put_whole(out, head, labels, of(flow));
            }
            Of::Goal(of, is_time) => {
                let ((flow, labels), put) = (flow(row), if is_time { put_billionths } else { put_whole });
                flow.goal.iter().for_each(|goal| put(out, head, labels, of(goal)));
            }
            Of::Age => {
                let (flow, labels) = flow(row);
                let age_ns = flow.stats.oldest_ns.map_or(0, |ns| stats.at_ns.saturating_sub(ns));
                put_billionths(out, head, labels, age_ns);
            }
            Of::Histogram(of) => {
                let (flow, labels) = flow(row);
                let (seen, sum_ns) = of(flow);
                put_histogram(out, heads, labels, seen, sum_ns);
            }
            Of::Interval(of) => {
                let (window, interval) = &self.scrape.intervals[row / self.flows.len()];
                let (device, flow) = self.flows[row % self.flows.len()];
                let done = interval.devices.get(device as usize);
                if let Some((done, flow)) = done.and_then(|done| Some((done, done.flows.get(flow as usize)?))) {
                    out.extend_from_slice(head);
                    out.extend_from_slice(&self.flow_labels[row % self.flows.len()]);
                    put_window(out, window);
                    put_billionths(out, &[], &[], billionths(of(flow), done.served));
                }
            }
            Of::Worker(of, _) => put_billionths(out, head, &families::label(row), of(&stats.workers[row])),
            Of::IntervalOfAll(of) => {
                let (window, interval) = &self.scrape.intervals[row / self.device_labels.len()];
                let device = row % self.device_labels.len();
                if let Some(DeviceInterval { flows, served, .. }) = interval.devices.get(device) {
                    out.extend_from_slice(head);
                    out.extend_from_slice(&self.device_labels[device]);
                    put_window(out, window);
                    put_billionths(out, &[], &[], billionths(flows.iter().map(of).sum(), *served));
                }
            }
        }
    }
}

impl Family {
    /// Writes the family's header and returns the beginnings of its lines.
    fn begin(&self, format: Format, out: &mut Vec<u8>) -> Heads {
        let Family { name, help, unit, of } = self;
        let kind = of.kind();
        let name = unit.map_or_else(|| format!("mqfq_{name}"), |unit| format!("mqfq_{name}_{unit}"));
        let plain = if kind == "counter" { "_total" } else { "" };
        let titled = if format == Format::Prometheus { format!("{name}{plain}") } else { name.clone() };
        out.extend_from_slice(format!("# HELP {titled} {help}\n# TYPE {titled} {kind}\n").as_bytes());
        if let Some(unit) = unit.filter(|_| format == Format::OpenMetrics) {
            out.extend_from_slice(format!("# UNIT {name} {unit}\n").as_bytes());
        }
        let head = |suffix: &str| format!("{name}{suffix}{{").into_bytes();
        let bucket = |end_ns: &u64| {
            let mut text = head("_bucket");
            text.extend_from_slice(b"le=\"");
            put_point(&mut text, *end_ns);
            text.extend_from_slice(b"\",");
            text
        };
        let mut buckets = Vec::new();
        if kind == "histogram" {
            buckets.extend(BUCKET_ENDS_NS.iter().map(bucket));
            buckets.push([&*head("_bucket"), b"le=\"+Inf\","].concat());
        }
        Heads { plain: head(plain), sum: head("_sum"), count: head("_count"), buckets }
    }
}

/// Part of a whole in billionths, rounded to the nearest; 0 of nothing.
fn billionths(part: u64, whole: u64) -> u64 {
    let whole = u128::from(whole);
    let nearest = (u128::from(part) * 1_000_000_000 + whole / 2).checked_div(whole).unwrap_or(0);
    u64::try_from(nearest).unwrap_or(u64::MAX)
}

fn put_escaped(out: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'"' => out.extend_from_slice(b"\\\""),
            b'\n' => out.extend_from_slice(b"\\n"),
            byte => out.push(byte),
        }
    }
}

fn put_window(out: &mut Vec<u8>, window: &str) {
    out.extend_from_slice(b",window=\"");
    out.extend_from_slice(window.as_bytes());
    out.push(b'"');
}

/// A line with a count.
#[inline]
fn put_count(out: &mut Vec<u8>, head: &[u8], labels: &[u8], value: u64) {
    out.extend_from_slice(head);
    out.extend_from_slice(labels);
    out.extend_from_slice(b"} ");
    put_digits(out, value);
    out.push(b'\n');
}

/// A line with a number that is whole, where others need not be.
fn put_whole(out: &mut Vec<u8>, head: &[u8], labels: &[u8], value: u64) {
    out.extend_from_slice(head);
    out.extend_from_slice(labels);
    out.extend_from_slice(b"} ");
    put_digits(out, value);
    out.extend_from_slice(b".0\n");
}

/// A line with a number of billionths: seconds of nanoseconds.
fn put_billionths(out: &mut Vec<u8>, head: &[u8], labels: &[u8], value: u64) {
    out.extend_from_slice(head);
    out.extend_from_slice(labels);
    out.extend_from_slice(b"} ");
    put_point(out, value);
    out.push(b'\n');
}

fn put_histogram(out: &mut Vec<u8>, heads: &Heads, labels: &[u8], seen: &Latencies, sum_ns: u64) {
    put_billionths(out, &heads.sum, labels, sum_ns);
    let counts = seen.counts();
    put_count(out, &heads.count, labels, counts.iter().sum());
    let (mut below, mut next) = (0, 0);
    let ends = BUCKET_ENDS_NS.into_iter().map(|end_ns| index_of(end_ns - 1) + 1).chain([usize::MAX]);
    for (head, end) in heads.buckets.iter().zip(ends) {
        let end = end.min(counts.len());
        below += counts[next..end.max(next)].iter().sum::<u64>();
        next = end.max(next);
        put_count(out, head, labels, below);
    }
}

/// "0.016384" of 16 384 000 billionths: at least one digit after the point, and no 0 that says nothing.
fn put_point(out: &mut Vec<u8>, billionths: u64) {
    put_digits(out, billionths / 1_000_000_000);
    out.push(b'.');
    let mut rest = billionths % 1_000_000_000;
    let mut digits = 9;
    while digits > 1 && rest.is_multiple_of(10) {
        rest /= 10;
        digits -= 1;
    }
    let at = out.len();
    out.resize(at + digits, b'0');
    for place in out[at..].iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// Pairs of digits from 00 to 99.
const PAIRS: [u8; 200] = {
    let mut pairs = [0; 200];
    let mut number = 0;
    while number < 100 {
        pairs[2 * number] = b'0' + (number / 10) as u8;
        pairs[2 * number + 1] = b'0' + (number % 10) as u8;
        number += 1;
    }
    pairs
};

/// A whole number.
#[inline]
fn put_digits(out: &mut Vec<u8>, mut number: u64) {
    if number < 10 {
        return out.push(b'0' + number as u8);
    }
    // From the back: two digits at a time.
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    while number >= 10 {
        let pair = 2 * (number % 100) as usize;
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
        number /= 100;
    }
    if number > 0 {
        at -= 1;
        digits[at] = b'0' + number as u8;
    }
    out.extend_from_slice(&digits[at..]);
}

/// D in force, of a policy that has one.
pub(crate) fn depth(device: &DeviceStats) -> Option<u32> {
    let found = device.in_force.as_ref().and_then(|found| found.depth.as_ref()).map(|state| state.depth);
    device.options.kind.has_depth().then(|| found.unwrap_or(device.options.depth))
}

/// T in force, of a policy that has one.
pub(crate) fn window_bytes(device: &DeviceStats) -> Option<u64> {
    let found = device.in_force.as_ref().and_then(|found| found.window.as_ref()).map(|state| state.window_bytes);
    device.options.kind.has_window().then(|| found.unwrap_or(device.options.window.bytes()))
}

#[cfg(test)]
mod reference;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::history::History;
    use crate::history::tests::{stats, tenant};

    pub(super) fn scrape(tenants: usize) -> Scrape {
        let mut history = History::default();
        let named = |n: usize, requests: u64| tenant(&format!("tenant-{n}"), 100, requests, 3_000_000, 100_000);
        history.push(&stats(1, (0..tenants).map(|n| named(n, 0)).collect()));
        let now = stats(2, (0..tenants).map(|n| named(n, 1000)).collect());
        history.push(&now);
        let intervals = [("1s", 1), ("60s", 60)].map(|(label, seconds)| (label, history.over(seconds).unwrap()));
        Scrape { stats: now, intervals: intervals.into() }
    }

    #[test]
    fn queue_and_device_are_two_histograms_with_the_sums_of_the_counters() {
        let text = scrape(2).text(Format::OpenMetrics);
        let has = |line: &str| assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        has("# TYPE mqfq_tenant_queue_seconds histogram");
        has("mqfq_tenant_queue_seconds_sum{device=\"fast\",tenant=\"tenant-1\"} 3.0");
        has("mqfq_tenant_queue_seconds_count{device=\"fast\",tenant=\"tenant-1\"} 1000");
        // 3 ms lie between 2^21 and 2^22 ns, 100 us between 2^16 and 2^18.
        has("mqfq_tenant_queue_seconds_bucket{le=\"0.002097152\",device=\"fast\",tenant=\"tenant-1\"} 0");
        has("mqfq_tenant_queue_seconds_bucket{le=\"0.004194304\",device=\"fast\",tenant=\"tenant-1\"} 1000");
        has("mqfq_tenant_device_seconds_bucket{le=\"0.000262144\",device=\"fast\",tenant=\"tenant-1\"} 1000");
        has("mqfq_tenant_device_seconds_bucket{le=\"+Inf\",device=\"fast\",tenant=\"tenant-1\"} 1000");
        has("mqfq_tenant_requests_total{device=\"fast\",tenant=\"tenant-0\",operation=\"read\"} 1000");
        has("mqfq_tenant_share_ratio{device=\"fast\",tenant=\"tenant-0\",window=\"1s\"} 0.5");
        has("mqfq_device_commands_time_seconds_total{device=\"fast\"} 8.0");
        has("mqfq_device_health{device=\"fast\",state=\"well\"} 1.0");
        has("mqfq_device_health{device=\"fast\",state=\"failed\"} 0.0");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn histograms_of_a_tenant_without_requests_are_zeros() {
        let now = stats(1, vec![tenant("new", 100, 0, 0, 0)]);
        let text = Scrape { stats: now, intervals: Vec::new() }.text(Format::OpenMetrics);
        for name in ["mqfq_tenant_queue_seconds", "mqfq_tenant_device_seconds"] {
            let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(name)).collect();
            assert_eq!(lines.len(), BUCKET_ENDS_NS.len() + 3, "a sum, a count, each bucket and that of all: {lines:?}");
            assert!(lines.iter().all(|line| line.ends_with(" 0") || line.ends_with(" 0.0")), "{lines:?}");
        }
    }

    /// A line's number apart from the rest.
    fn parts(line: &str) -> (&str, f64) {
        let (rest, number) = line.rsplit_once(' ').unwrap();
        (rest, number.parse().unwrap())
    }

    #[test]
    fn every_line_is_as_prometheus_client_writes_it() {
        let named = |n: u64| {
            let name = ["a", "a \"b\"", "c\\d\ne", "t/x", "\u{e4}"][(n % 5) as usize].to_owned() + &n.to_string();
            let mut one = tenant(&name, 1 + n, n * n * 7919, n * 1_234_567, n * 97);
            (0..n).for_each(|more| one.stats.queued_ns.record_n(1 << (more % 40), more));
            one.stats.oldest_ns = (n % 3 == 1).then_some(n);
            (one.stats.under_way, one.stats.failed, one.stats.completed[2]) = (n, u64::MAX / (n + 1), n % 2);
            one
        };
        let scrape = || {
            let mut history = History::default();
            history.push(&stats(1, (0..40).map(|n| tenant(&named(n).name, 100, 0, 0, 0)).collect()));
            let mut now = stats(2, (0..40).map(named).collect());
            let mut other = now.devices[0].clone();
            other.name = "slow".into();
            now.devices.push(other);
            now.workers = families::tests::two();
            history.push(&now);
            // Nothing is known of a tenant that has just come.
            now.devices[0].flows.push(named(41));
            let over = |label, seconds| (label, history.over(seconds).unwrap());
            Scrape { stats: now, intervals: vec![over("1s", 1), over("60s", 60)] }
        };
        let (ours, theirs) = (scrape().text(Format::OpenMetrics), reference::text(scrape()));
        assert_eq!(ours.lines().count(), theirs.lines().count());
        for (one, other) in ours.lines().zip(theirs.lines()) {
            if one.starts_with('#') {
                assert_eq!(one, other);
                continue;
            }
            let ((line, number), (other_line, other_number)) = (parts(one), parts(other));
            assert_eq!(line, other_line);
            assert!((number - other_number).abs() <= 1e-9 + other_number * 1e-15, "{one}, and there {other}");
        }
        let (mut text, mut slices) = (scrape().into_text(Format::OpenMetrics), 0);
        let mut all = Vec::new();
        while text.slice(&mut all) {
            slices += 1;
        }
        assert!(slices > 1 && all == ours.into_bytes(), "{slices} slices of it are it");
    }

    #[test]
    fn numbers_are_written_as_others_write_them() {
        let shown = |put: fn(&mut Vec<u8>, u64), number| {
            let mut out = Vec::new();
            put(&mut out, number);
            String::from_utf8(out).unwrap()
        };
        let powers = (0..20).flat_map(|power| [10u64.pow(power) - 1, 10u64.pow(power), 10u64.pow(power) + 1]);
        for number in powers.chain([u64::MAX, 1 << 63, 12, 101, 1234567]) {
            assert_eq!(shown(put_digits, number), number.to_string());
            let point = shown(put_point, number);
            let full = format!("{}.{:09}", number / 1_000_000_000, number % 1_000_000_000);
            let short = full.trim_end_matches('0');
            assert_eq!(point, if short.ends_with('.') { format!("{short}0") } else { short.to_owned() });
        }
        assert_eq!([billionths(1, 3), billionths(2, 3), billionths(7, 0)], [333_333_333, 666_666_667, 0]);
    }

    #[test]
    fn each_counter_has_its_own_family() {
        // All numbers are different, and so their sums of two workers.
        let mut now = stats(1, vec![tenant("a", 300, 0, 0, 0)]);
        let hctx = HctxStats {
            dispatched: 1 << 1,
            doorbells: 1 << 3,
            split: 1 << 5,
            refused: 1 << 6,
            throttled: 1 << 7,
            no_token: 1 << 8,
            kicks: 1 << 9,
            timeouts: 1 << 10,
            aborts: 1 << 11,
            resets: 1 << 12,
            replays: 1 << 13,
            stuck: 1 << 14,
            busy_ns: 500_000_000,
            in_flight_ns: 1_500_000_000,
            throttled_ns: 2_500_000_000,
            no_token_ns: 3_500_000_000,
            ..HctxStats::default()
        };
        now.devices[0].hctxs = vec![hctx; 2];
        let flow = &mut now.devices[0].flows[0];
        (flow.stats.completed, flow.stats.bytes) = ([1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16]);
        (flow.stats.failed, flow.stats.cost, flow.stats.under_way) = (21, 22, 23);
        (flow.stats.queued_ns_sum, flow.stats.device_ns_sum) = (24_000_000_000, 25_000_000_000);
        flow.stats.oldest_ns = Some(250_000_000);
        let text = Scrape { stats: now, intervals: Vec::new() }.text(Format::OpenMetrics);
        for (family, number) in [
            ("device_dispatched_requests_total", "4"),
            ("device_doorbells_total", "16"),
            ("device_split_requests_total", "64"),
            ("device_refused_requests_total", "128"),
            ("device_throttled_total", "256"),
            ("device_token_waits_total", "512"),
            ("device_kicks_total", "1024"),
            ("device_timeouts_total", "2048"),
            ("device_aborts_total", "4096"),
            ("device_resets_total", "8192"),
            ("device_replays_total", "16384"),
            ("device_stuck_commands_total", "32768"),
            ("device_busy_seconds_total", "1.0"),
            ("device_commands_time_seconds_total", "3.0"),
            ("device_throttled_time_seconds_total", "5.0"),
            ("device_token_wait_time_seconds_total", "7.0"),
        ] {
            let line = format!("mqfq_{family}{{device=\"fast\"}} {number}\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        let operations = OPERATIONS.iter().enumerate().flat_map(|(at, operation)| {
            let labels = format!(",operation=\"{operation}\"");
            let (requests, bytes) = ((at + 1).to_string(), (at + 11).to_string());
            [("requests_total", labels.clone(), requests), ("transferred_bytes_total", labels, bytes)]
        });
        let plain = [
            ("failed_requests_total", "21"),
            ("service_bytes_total", "22"),
            ("requests_under_way", "23.0"),
            ("queue_seconds_sum", "24.0"),
            ("device_seconds_sum", "25.0"),
            ("weight", "300.0"),
            ("oldest_request_age_seconds", "0.75"),
        ];
        let plain = plain.map(|(family, number)| (family, String::new(), number.to_owned()));
        for (family, labels, number) in operations.chain(plain) {
            let line = format!("mqfq_tenant_{family}{{device=\"fast\",tenant=\"a\"{labels}}} {number}\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn what_a_device_served_counts_tenants_that_have_gone() {
        let mut now = stats(1, vec![tenant("a", 100, 1, 10, 10)]);
        now.devices[0].hctxs[0].gone_cost = 1000;
        let text = Scrape { stats: now, intervals: Vec::new() }.text(Format::OpenMetrics);
        assert!(text.contains("mqfq_device_service_bytes_total{device=\"fast\"} 5096\n"), "{text}");
    }

    #[test]
    fn every_family_has_a_line_in_the_table_of_the_page_and_the_other_way_round() {
        let page = include_str!("../../docs/use/metrics.md");
        let text = scrape(1).text(Format::OpenMetrics);
        let encoded: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let told: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `mqfq_")?.split('`').next())
            .map(|name| name.trim_end_matches("_total"))
            .collect();
        assert_eq!(encoded.iter().map(|name| name.strip_prefix("mqfq_").unwrap()).collect::<Vec<_>>(), told);
        assert!(encoded.len() > 25, "{encoded:?}");
    }

    /// Memory is what the page says; time is printed and not asserted.
    #[test]
    fn ten_thousand_tenants_fit_the_memory_that_the_page_states() {
        let text = scrape(10_000).text(Format::OpenMetrics);
        assert!(text.len() < 64 << 20, "{}", text.len());
    }
}
