//! How Prometheus gets it: the text of `/metrics`, in the OpenMetrics format.
//!
//! Names have the prefix `mqfq_`, base units (seconds, bytes, ratios from 0 to 1) and `_total` for what only grows.
//! Where a rate is meant there is an integral and no gauge: the rate of `mqfq_device_commands_seconds_total` is the
//! mean number of commands on the device. Time in the queue and time on the device are two histograms.
//! docs/use/metrics.md has the table, which a test compares with what is encoded.
//!
//! Buckets of histograms end at powers of two of the counters' own buckets, so a scrape adds nothing to their error:
//! 16 us to 4.3 s, each four times the one before up to 1 ms and twice from there. A time that is exactly a boundary
//! counts in the bucket above.

use crate::history::{DeviceInterval, FlowInterval, Interval, ratio};
use mqfq_blk::device::Health;
use mqfq_blk::engine::{DeviceStats, EngineStats, NamedFlowStats};
use mqfq_blk::latencies::Latencies;
use mqfq_blk::stats::HctxStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt::Error;

/// What `/metrics` is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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

const OPERATIONS: [&str; 5] = ["read", "write", "flush", "discard", "write_zeroes"];

/// All that one scrape shows.
#[derive(Debug)]
pub struct Scrape {
    /// Counters.
    pub stats: EngineStats,
    /// The last second and the last minute, with the labels that they have.
    pub intervals: Vec<(&'static str, Interval)>,
}

impl Scrape {
    /// The text.
    pub fn text(self) -> String {
        let mut registry = Registry::with_prefix("mqfq");
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        text::encode(&mut out, &registry).expect("a String takes everything");
        out
    }

    fn flows(&self) -> impl Iterator<Item = (&DeviceStats, &NamedFlowStats)> {
        self.stats.devices.iter().flat_map(|device| device.flows.iter().map(move |flow| (device, flow)))
    }
}

/// One family's name, text and type.
struct Family<'a> {
    name: &'a str,
    help: &'a str,
    unit: Option<Unit>,
    kind: MetricType,
}

const fn counter<'a>(name: &'a str, help: &'a str, unit: Option<Unit>) -> Family<'a> {
    Family { name, help, unit, kind: MetricType::Counter }
}

const fn gauge<'a>(name: &'a str, help: &'a str, unit: Option<Unit>) -> Family<'a> {
    Family { name, help, unit, kind: MetricType::Gauge }
}

impl Family<'_> {
    fn encode(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        each: impl FnOnce(&mut MetricEncoder<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        each(&mut encoder.encode_descriptor(self.name, self.help, self.unit.as_ref(), self.kind)?)
    }
}

fn put_count(metric: &mut MetricEncoder<'_>, labels: &[(&str, &str)], value: u64) -> Result<(), Error> {
    metric.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, f64>(&value, None)
}

fn put_seconds(metric: &mut MetricEncoder<'_>, labels: &[(&str, &str)], ns: u64) -> Result<(), Error> {
    metric.encode_family(&labels)?.encode_counter::<NoLabelSet, f64, f64>(&seconds(ns), None)
}

fn put_gauge(metric: &mut MetricEncoder<'_>, labels: &[(&str, &str)], value: f64) -> Result<(), Error> {
    metric.encode_family(&labels)?.encode_gauge(&value)
}

fn put_histogram(
    metric: &mut MetricEncoder<'_>,
    labels: &[(&str, &str)],
    seen: &Latencies,
    sum_ns: u64,
) -> Result<(), Error> {
    let mut below = 0;
    let mut bucket = |end_ns: u64| {
        let now = seen.up_to(end_ns - 1);
        (seconds(end_ns), now - std::mem::replace(&mut below, now))
    };
    let mut buckets: Vec<(f64, u64)> = BUCKET_ENDS_NS.into_iter().map(&mut bucket).collect();
    let all = seen.len();
    buckets.push((f64::INFINITY, all - below));
    metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(seconds(sum_ns), all, &buckets, None)
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// What a family takes of a tenant, or of what it did over an interval.
type OfTenant<T> = fn(&NamedFlowStats) -> T;
type OfLatencies = fn(&NamedFlowStats) -> (&Latencies, u64);
type OfGauge<'a> = &'a dyn Fn(&NamedFlowStats) -> f64;
type OfInterval = fn(&FlowInterval) -> u64;

/// Counts of a device's workers: name, text, which.
type OfWorkers = (&'static str, &'static str, fn(&HctxStats) -> u64);

const COUNTS: [OfWorkers; 14] = [
    ("device_dispatched_requests", "Requests handed to the device", |hctx| hctx.dispatched),
    ("device_commands", "Commands handed to the device", |hctx| hctx.commands),
    ("device_doorbells", "Doorbells rung", |hctx| hctx.doorbells),
    ("device_merged_requests", "Requests that joined another's command", |hctx| hctx.merged),
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

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.encode_devices(&mut encoder)?;
        self.encode_tenants(&mut encoder)?;
        self.encode_shares(&mut encoder)
    }
}

impl Scrape {
    fn encode_devices(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let sum = |device: &DeviceStats, of: fn(&HctxStats) -> u64| device.hctxs.iter().map(of).sum::<u64>();
        for (name, help, of) in COUNTS {
            counter(name, help, None).encode(encoder, |metric| {
                self.stats
                    .devices
                    .iter()
                    .try_for_each(|device| put_count(metric, &[("device", &device.name)], sum(device, of)))
            })?;
        }
        for (name, help, of) in TIMES {
            counter(name, help, Some(Unit::Seconds)).encode(encoder, |metric| {
                self.stats
                    .devices
                    .iter()
                    .try_for_each(|device| put_seconds(metric, &[("device", &device.name)], sum(device, of)))
            })?;
        }
        gauge("device_depth_units", "D in force", None).encode(encoder, |metric| {
            self.stats.devices.iter().try_for_each(|device| match depth(device) {
                Some(depth) => put_gauge(metric, &[("device", &device.name)], depth.into()),
                None => Ok(()),
            })
        })?;
        gauge("device_window", "T in force", Some(Unit::Bytes)).encode(encoder, |metric| {
            self.stats.devices.iter().try_for_each(|device| match window_bytes(device) {
                Some(bytes) => put_gauge(metric, &[("device", &device.name)], bytes as f64),
                None => Ok(()),
            })
        })?;
        gauge("device_health", "1 for the state that the device is in, 0 for the others", None).encode(
            encoder,
            |metric| {
                self.stats.devices.iter().try_for_each(|device| {
                    Health::ALL.into_iter().try_for_each(|health| {
                        let is_so = f64::from(u8::from(device.health == health));
                        put_gauge(metric, &[("device", &device.name), ("state", health.name())], is_so)
                    })
                })
            },
        )?;
        let help = "Cost of what was completed, in bytes of plain reads";
        counter("device_service", help, Some(Unit::Bytes)).encode(encoder, |metric| {
            self.stats.devices.iter().try_for_each(|device| {
                let served: u64 = device.flows.iter().map(|flow| flow.stats.cost).sum();
                // A counter never goes back: those that are gone count on.
                put_count(metric, &[("device", &device.name)], served + sum(device, |hctx| hctx.gone_cost))
            })
        })
    }

    fn encode_tenants(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let by_operation = |metric: &mut MetricEncoder<'_>, of: fn(&NamedFlowStats) -> &[u64; 5]| {
            self.flows().try_for_each(|(device, flow)| {
                let used = OPERATIONS.iter().zip(of(flow)).filter(|(_, count)| **count > 0);
                used.into_iter().try_for_each(|(operation, count)| {
                    let labels = [("device", &*device.name), ("tenant", &*flow.name), ("operation", *operation)];
                    put_count(metric, &labels, *count)
                })
            })
        };
        counter("tenant_requests", "Requests completed", None)
            .encode(encoder, |metric| by_operation(metric, |flow| &flow.stats.completed))?;
        counter("tenant_transferred", "Bytes of requests that ended well", Some(Unit::Bytes))
            .encode(encoder, |metric| by_operation(metric, |flow| &flow.stats.bytes))?;
        let counts: [(&str, &str, Option<Unit>, OfTenant<u64>); 2] = [
            ("tenant_failed_requests", "Requests that ended with an error", None, |flow| flow.stats.failed),
            ("tenant_service", "Cost of what was completed, in bytes of plain reads", Some(Unit::Bytes), |flow| {
                flow.stats.cost
            }),
        ];
        for (name, help, unit, of) in counts {
            counter(name, help, unit).encode(encoder, |metric| {
                self.flows().try_for_each(|(device, flow)| {
                    put_count(metric, &[("device", &device.name), ("tenant", &flow.name)], of(flow))
                })
            })?;
        }
        let histograms: [(&str, &str, OfLatencies); 2] = [
            ("tenant_queue", "Time from submission to dispatch: waited here", |flow| {
                (&flow.stats.queued_ns, flow.stats.queued_ns_sum)
            }),
            ("tenant_device", "Time from dispatch to completion: the device's", |flow| {
                (&flow.stats.device_ns, flow.stats.device_ns_sum)
            }),
        ];
        for (name, help, of) in histograms {
            let family = Family { name, help, unit: Some(Unit::Seconds), kind: MetricType::Histogram };
            family.encode(encoder, |metric| {
                self.flows().filter(|(_, flow)| flow.stats.requests() > 0).try_for_each(|(device, flow)| {
                    let (seen, sum_ns) = of(flow);
                    put_histogram(metric, &[("device", &device.name), ("tenant", &flow.name)], seen, sum_ns)
                })
            })?;
        }
        let at_ns = self.stats.at_ns;
        let gauges: [(&str, &str, Option<Unit>, OfGauge<'_>); 3] = [
            ("tenant_weight", "Weight, as last set", None, &|flow| f64::from(flow.weight.get())),
            ("tenant_requests_under_way", "Requests admitted and not completed", None, &|flow| {
                flow.stats.under_way as f64
            }),
            (
                "tenant_oldest_request_age",
                "Time since its oldest request was submitted",
                Some(Unit::Seconds),
                &|flow| flow.stats.oldest_ns.map_or(0.0, |ns| seconds(at_ns.saturating_sub(ns))),
            ),
        ];
        for (name, help, unit, of) in gauges {
            gauge(name, help, unit).encode(encoder, |metric| {
                self.flows().try_for_each(|(device, flow)| {
                    put_gauge(metric, &[("device", &device.name), ("tenant", &flow.name)], of(flow))
                })
            })?;
        }
        Ok(())
    }

    fn encode_shares(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let families: [(&str, &str, OfInterval); 2] = [
            ("tenant_share", "Part of the device's service that it received", |flow| flow.served),
            ("tenant_entitlement", "Part of the device's service that was its own", |flow| flow.entitled),
        ];
        for (name, help, of) in families {
            gauge(name, help, Some(Unit::Other("ratio".into()))).encode(encoder, |metric| {
                self.each_interval(&mut |window, device, done| {
                    let flows = device.flows.iter().zip(&done.flows);
                    flows.into_iter().try_for_each(|(named, flow)| {
                        let labels = [("device", &*device.name), ("tenant", &*named.name), ("window", window)];
                        put_gauge(metric, &labels, ratio(of(flow), done.served))
                    })
                })
            })?;
        }
        let help = "Sum of the tenants' entitlements over what the device served";
        gauge("device_entitlement", help, Some(Unit::Other("ratio".into()))).encode(encoder, |metric| {
            self.each_interval(&mut |window, device, done| {
                let entitled = done.flows.iter().map(|flow| flow.entitled).sum();
                let labels = [("device", &*device.name), ("window", window)];
                put_gauge(metric, &labels, ratio(entitled, done.served))
            })
        })
    }

    fn each_interval(
        &self,
        each: &mut dyn FnMut(&str, &DeviceStats, &DeviceInterval) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.intervals.iter().try_for_each(|(window, interval)| {
            let mut devices = self.stats.devices.iter().zip(&interval.devices);
            devices.try_for_each(|(device, done)| each(window, device, done))
        })
    }
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
mod tests {
    use super::*;
    use crate::history::History;
    use crate::history::tests::{stats, tenant};
    use std::time::Instant;

    fn scrape(tenants: usize) -> Scrape {
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
        let text = scrape(2).text();
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
    fn what_a_device_served_counts_tenants_that_have_gone() {
        let mut now = stats(1, vec![tenant("a", 100, 1, 10, 10)]);
        now.devices[0].hctxs[0].gone_cost = 1000;
        let text = Scrape { stats: now, intervals: Vec::new() }.text();
        assert!(text.contains("mqfq_device_service_bytes_total{device=\"fast\"} 5096\n"), "{text}");
    }

    #[test]
    fn every_family_has_a_line_in_the_table_of_the_page_and_the_other_way_round() {
        let page = include_str!("../../docs/use/metrics.md");
        let text = scrape(1).text();
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
        let (start, scrape) = (Instant::now(), scrape(10_000));
        let made = start.elapsed();
        let text = scrape.text();
        println!("10,000 tenants: {} MB of text in {:?}, after {made:?}", text.len() / 1_000_000, start.elapsed());
        assert!(text.len() < 64 << 20, "{}", text.len());
    }
}
