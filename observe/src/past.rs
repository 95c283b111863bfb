//! Activity over the last hour.
//!
//! The page begins with this. A point is the mean of a second or of ten: the last two minutes are kept by the second,
//! the last hour by ten. Of each device a point has the tenants that were served most, [`TENANTS_MAX`] of them.
//!
//! # Memory
//! 480 points of 16 tenants of 32 bytes: a quarter of a MiB for each device, however many tenants it has.

use crate::history::{DeviceInterval, History, Interval, ratio};
use serde::{Serialize, Serializer};
use std::collections::VecDeque;
use std::sync::Arc;

/// Tenants of a device in a point, at most.
pub const TENANTS_MAX: usize = 16;

/// Points of a second that are kept: two minutes.
const SECONDS_MAX: usize = 120;

/// Seconds of a longer point.
const LONG_S: u64 = 10;

/// Longer points that are kept: an hour.
const LONG_MAX: usize = 360;

/// The kept points.
#[derive(Debug, Default)]
pub struct Past {
    seconds: VecDeque<Arc<Point>>,
    long: VecDeque<Arc<Point>>,
    readings: u64,
}

/// One interval.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Its end, since the server started, ns.
    pub at_ns: u64,
    /// Its length, ns.
    pub elapsed_ns: u64,
    /// In the order of the config.
    pub devices: Vec<PastDevice>,
}

/// One device in an interval.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PastDevice {
    /// As configured.
    #[serde(serialize_with = "text")]
    pub name: Arc<str>,
    /// Read and written.
    #[serde(serialize_with = "whole")]
    pub bytes_per_s: f64,
    /// Tenants that were served, most first.
    pub tenants: Vec<PastTenant>,
}

/// One tenant on a device in an interval.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PastTenant {
    /// As configured (`TENANT/EXPORT` if exports have weights).
    #[serde(serialize_with = "text")]
    pub name: Arc<str>,
    /// Part of the device's service that it received.
    #[serde(serialize_with = "four_digits")]
    pub share: f64,
    /// Part that was its own.
    #[serde(serialize_with = "four_digits")]
    pub entitled: f64,
}

fn text<S: Serializer>(value: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(value)
}

fn whole<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(*value as u64)
}

fn four_digits<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64((value * 1e4).round() / 1e4)
}

impl Past {
    /// Takes the last reading of `history`, one a second.
    pub fn push(&mut self, history: &History) {
        self.readings += 1;
        let keep = |points: &mut VecDeque<Arc<Point>>, seconds, most| {
            let Some((at_ns, interval)) = history.last_over(seconds) else { return };
            if points.len() == most {
                points.pop_front();
            }
            let point = point(at_ns, &interval, points.back().map(|point| &**point));
            points.push_back(Arc::new(point));
        };
        keep(&mut self.seconds, 1, SECONDS_MAX);
        if self.readings.is_multiple_of(LONG_S) {
            keep(&mut self.long, LONG_S, LONG_MAX);
        }
    }

    /// All points, the oldest first: longer ones, then those of a second.
    pub fn points(&self) -> Vec<Arc<Point>> {
        let begin_ns = self.seconds.front().map_or(u64::MAX, |first| first.at_ns - first.elapsed_ns);
        let older = self.long.iter().filter(|point| point.at_ns <= begin_ns);
        older.chain(&self.seconds).cloned().collect()
    }
}

/// `before`: an earlier point, which has most of the names.
fn point(at_ns: u64, interval: &Interval, before: Option<&Point>) -> Point {
    let device = |done: &DeviceInterval| {
        let before = before.and_then(|before| before.devices.iter().find(|device| *device.name == *done.name));
        let mut most: Vec<usize> = (0..done.flows.len()).filter(|&flow| done.flows[flow].served > 0).collect();
        let by_service = |flow: &usize| std::cmp::Reverse(done.flows[*flow].served);
        if most.len() > TENANTS_MAX {
            most.select_nth_unstable_by_key(TENANTS_MAX, by_service);
            most.truncate(TENANTS_MAX);
        }
        most.sort_by_key(by_service);
        let tenant = |flow: usize| {
            let name = &done.names[flow];
            let known = before.and_then(|before| before.tenants.iter().find(|tenant| *tenant.name == **name));
            PastTenant {
                name: known.map_or_else(|| name.as_str().into(), |known| known.name.clone()),
                share: ratio(done.flows[flow].served, done.served),
                entitled: ratio(done.flows[flow].entitled, done.served),
            }
        };
        PastDevice {
            name: before.map_or_else(|| done.name.as_str().into(), |before| before.name.clone()),
            bytes_per_s: interval.per_second(done.flows.iter().map(|flow| flow.bytes).sum()),
            tenants: most.into_iter().map(tenant).collect(),
        }
    };
    Point { at_ns, elapsed_ns: interval.elapsed_ns, devices: interval.devices.iter().map(device).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::tests::{SECOND_NS, stats, tenant};

    /// A history of so many seconds, in which the tenant `n` of `tenants` had `n` requests in each second.
    fn past(seconds: u64, tenants: u64) -> Past {
        let (mut history, mut past) = (History::default(), Past::default());
        for second in 0..=seconds {
            history.push(&stats(second, (0..tenants).map(|n| tenant(&n.to_string(), 100, n * second, 0, 1)).collect()));
            past.push(&history);
        }
        past
    }

    #[test]
    fn an_hour_is_kept_by_ten_seconds_and_its_end_by_the_second_and_no_more() {
        let points = past(2 * 3600, 3).points();
        assert_eq!(points.last().unwrap().at_ns, 2 * 3600 * SECOND_NS);
        let first = points.first().unwrap();
        let covered_s = (points.last().unwrap().at_ns - first.at_ns + first.elapsed_ns) / SECOND_NS;
        assert!((3590..=3610).contains(&covered_s), "{covered_s}");
        assert!(points.len() <= SECONDS_MAX + LONG_MAX);
        for pair in points.windows(2) {
            let gap_ns = pair[1].at_ns - pair[1].elapsed_ns - pair[0].at_ns;
            assert!(gap_ns < LONG_S * SECOND_NS, "each begins where the one before ends: {pair:?}");
        }
        let by_the_second = points.iter().filter(|point| point.elapsed_ns == SECOND_NS).count();
        assert_eq!(by_the_second, SECONDS_MAX);
    }

    #[test]
    fn a_point_has_the_tenants_that_were_served_most_with_their_shares() {
        let points = past(30, 40).points();
        let device = &points.last().unwrap().devices[0];
        let names: Vec<&str> = device.tenants.iter().map(|tenant| &*tenant.name).collect();
        assert_eq!((names[0], names[15], names.len()), ("39", "24", TENANTS_MAX));
        assert!((device.tenants[0].share - 39.0 / 780.0).abs() < 1e-9, "{device:?}");
        assert_eq!(device.bytes_per_s, 780.0 * 4096.0);
        let json = serde_json::to_value(&**points.last().unwrap()).unwrap();
        assert_eq!(json["devices"][0]["tenants"][0]["share"], 0.05);
        // A name is kept once, however many points have it.
        let earlier = &points[points.len() - 2].devices[0].tenants[0];
        assert!(Arc::ptr_eq(&earlier.name, &device.tenants[0].name));
    }

    #[test]
    fn one_reading_is_no_point() {
        assert!(past(0, 3).points().is_empty());
    }
}
