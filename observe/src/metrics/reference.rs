//! Metrics text by `prometheus-client`, which formats each line of each metric anew: slow, and right by its own tests.

use super::*;
use crate::history::ratio;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt::Error;

/// All of `scrape`.
pub(super) fn text(scrape: Scrape) -> String {
    let mut registry = Registry::with_prefix("mqfq");
    registry.register_collector(Box::new(scrape));
    let mut out = String::new();
    text::encode(&mut out, &registry).expect("a String takes everything");
    out
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

/// The value of a goal.
type OfGoal = fn(&families::GoalState) -> f64;

type OfTenant<T> = fn(&NamedFlowStats) -> T;
type OfLatencies = fn(&NamedFlowStats) -> (&Latencies, u64);
type OfGauge<'a> = &'a dyn Fn(&NamedFlowStats) -> f64;
type OfInterval = fn(&FlowInterval) -> u64;

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.encode_devices(&mut encoder)?;
        self.encode_tenants(&mut encoder)?;
        self.encode_shares(&mut encoder)?;
        self.encode_workers(&mut encoder)
    }
}

impl Scrape {
    fn flows(&self) -> impl Iterator<Item = (&DeviceStats, &NamedFlowStats)> {
        self.stats.devices.iter().flat_map(|device| device.flows.iter().map(move |flow| (device, flow)))
    }

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
        gauge("device_depth_cap_units", families::CAP_HELP, None).encode(encoder, |metric| {
            self.stats.devices.iter().try_for_each(|device| match device.depth_cap {
                Some(cap) => put_gauge(metric, &[("device", &device.name)], cap.into()),
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
        gauge("device_ailing_backings", "Backings that fail requests", None).encode(encoder, |metric| {
            self.stats
                .devices
                .iter()
                .try_for_each(|device| put_gauge(metric, &[("device", &device.name)], device.ailing.len() as f64))
        })?;
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
        let by_operation = |metric: &mut MetricEncoder<'_>, of: fn(&NamedFlowStats) -> &[u64; Op::COUNT]| {
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
                self.flows().try_for_each(|(device, flow)| {
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
        let of_goals: [(&str, &str, Option<Unit>, OfGoal); 3] = [
            ("tenant_latency_goal", families::GOAL_HELP, Some(Unit::Seconds), |goal| seconds(goal.goal_ns)),
            ("tenant_latency_p90", families::P90_HELP, Some(Unit::Seconds), |goal| seconds(goal.p90_ns)),
            ("tenant_latency_goal_met", families::MET_HELP, None, |goal| families::is_met(goal) as f64),
        ];
        for (name, help, unit, of) in of_goals {
            gauge(name, help, unit).encode(encoder, |metric| {
                self.flows().try_for_each(|(device, flow)| match &flow.goal {
                    Some(goal) => put_gauge(metric, &[("device", &device.name), ("tenant", &flow.name)], of(goal)),
                    None => Ok(()),
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

    fn encode_workers(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let workers =
            || (0..).zip(&self.stats.workers).map(|(number, worker): (usize, _)| (number.to_string(), worker));
        counter("worker_in_vain", families::IN_VAIN_HELP, Some(Unit::Seconds)).encode(encoder, |metric| {
            workers().try_for_each(|(number, worker)| put_seconds(metric, &[("worker", &number)], worker.in_vain_ns))
        })?;
        gauge("worker_poll", families::POLL_HELP, Some(Unit::Seconds)).encode(encoder, |metric| {
            workers()
                .try_for_each(|(number, worker)| put_gauge(metric, &[("worker", &number)], seconds(worker.poll_ns)))
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
