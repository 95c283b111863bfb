//! Values for the config derived from the curves: cost, and a profile to start from.
//!
//! # Cost
//! A config counts in bytes of plain reads: a byte of a random read costs 1. With reads of `a + b * length` and writes
//! of `c + d * length` ns of the device, a read's base is `a / b` bytes, a write's `c / b`, and a byte of it `d / b`.
//! The lines are those of the random requests, which cost the device at least as much as sequential ones.
//!
//! # The knee in units
//! D counts units of 4 KiB of cost, and a request begins if one unit is free ("Units of D", docs/use/policies.md). So
//! `k` requests of `n` units are on the device together from `D = 1 + (k - 1) n` on. Example: 8 requests of 128 KiB,
//! 33 units each, need D = 232. The profile has the largest such D of all sizes: a smaller one costs throughput.

use crate::sweep::{Curve, Kind, Point};
use mqfq_blk::CostTerm;
use serde::Serialize;

/// Unit of D, bytes of cost.
pub const UNIT_BYTES: u64 = 4096;

/// Part of the cores' time from which on they are the limit and not the device.
const CORES_BUSY_SHARE: f64 = 0.9;

/// A line with a larger residual is called approximate.
const RESIDUAL_SHARE: f64 = 0.1;

/// A line with a larger residual gives no cost: the measured times are not on a line.
const RESIDUAL_SHARE_MAX: f64 = 0.5;

/// Parts of a load that differ by more were disturbed.
const SPREAD_SHARE: f64 = 0.2;

/// Largest D that a config takes.
const KNEE_MAX: u32 = 65_535;

/// Largest base of a cost that a config takes, bytes.
const BASE_BYTES_MAX: f64 = (1 << 30) as f64;

/// Largest cost of a byte that a config takes.
const PER_BYTE_MAX: f64 = 1000.0;

/// Time that requests of one kind take on a full device.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Terms {
    /// The kind.
    pub kind: Kind,
    /// The line through its sizes.
    #[serde(flatten)]
    pub line: Line,
}

/// One operation's part of `[device.NAME.cost]`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Charge {
    /// `base`.
    pub base_bytes: u64,
    /// `per-byte`.
    pub per_byte: f64,
}

impl Charge {
    /// This charge in the scheduler's form.
    pub fn term(&self) -> CostTerm {
        CostTerm { base_bytes: self.base_bytes, per_byte_256ths: (self.per_byte * 256.0).round() as u32 }
    }
}

/// `[device.NAME.profile]`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Profile {
    /// `knee`: smallest D with nearly all of the throughput for every size, units of 4 KiB of cost.
    pub knee_units: u32,
    /// `knee-requests`: the same where each request is a unit.
    pub knee_requests: u32,
    /// `latency`: of the smallest read at depth 1.
    pub latency_ns: u64,
    /// `bandwidth`: the most that random reads of any size gave.
    pub bandwidth_bytes_per_s: u64,
    /// `write-latency`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_latency_ns: Option<u64>,
    /// `write-bandwidth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bandwidth_bytes_per_s: Option<u64>,
}

/// All that was found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    /// Measured curves.
    pub curves: Vec<Curve>,
    /// Terms by measured kind.
    pub terms: Vec<Terms>,
    /// `read` of the cost. `None`: the time of a read does not grow evenly with its size.
    pub read: Option<Charge>,
    /// `write` of the cost. `None`: writes were not measured, or there is no `read`.
    pub write: Option<Charge>,
    /// The profile.
    pub profile: Profile,
    /// Sentences on what a reader should not overlook.
    pub notes: Vec<String>,
}

impl Finding {
    /// The finding from `curves`, which include random reads of two sizes at least.
    pub fn of(curves: Vec<Curve>) -> Finding {
        let of_kind = |kind| curves.iter().filter(move |curve: &&Curve| curve.kind == kind);
        let line = |kind| {
            let points: Vec<_> =
                of_kind(kind).map(|curve| (f64::from(curve.request_bytes), took_ns(curve.best()))).collect();
            Some(Terms { kind, line: Line::through(&points)? })
        };
        let terms: Vec<Terms> = Kind::ALL.into_iter().filter_map(line).collect();
        let (read, write) = charges(&terms);
        let mut profile = Profile {
            knee_units: 1,
            knee_requests: 1,
            latency_ns: alone_ns(of_kind(Kind::RandomRead)).unwrap_or(0),
            bandwidth_bytes_per_s: bandwidth(of_kind(Kind::RandomRead)).unwrap_or(0),
            write_latency_ns: alone_ns(of_kind(Kind::RandomWrite)),
            write_bandwidth_bytes_per_s: bandwidth(of_kind(Kind::RandomWrite)),
        };
        for curve in &curves {
            let Some(depth) = curve.knee_depth.map(u32::from) else { continue };
            let charge = if curve.kind.is_write() { write } else { read };
            let cost =
                charge.map_or(curve.request_bytes.into(), |charge| charge.term().cost(curve.request_bytes.into()).0);
            let units = u32::try_from(cost.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
            profile.knee_units = profile.knee_units.max((depth - 1).saturating_mul(units).saturating_add(1));
            profile.knee_requests = profile.knee_requests.max(depth);
        }
        profile.knee_units = profile.knee_units.min(KNEE_MAX);
        let notes = notes(&curves, &terms, read, write);
        Finding { curves, terms, read, write, profile, notes }
    }
}

/// Time of the full device that a request takes.
fn took_ns(point: &Point) -> f64 {
    1e9 / point.requests_per_s
}

fn alone_ns<'a>(mut curves: impl Iterator<Item = &'a Curve>) -> Option<u64> {
    // A device that completes at once still takes some time.
    curves.next().map(|curve| (curve.alone().mean_ns.round() as u64).max(1))
}

fn bandwidth<'a>(curves: impl Iterator<Item = &'a Curve>) -> Option<u64> {
    curves.map(|curve| curve.best().bytes_per_s as u64).max()
}

/// The charges of a random read and a random write, in bytes of random reads.
fn charges(terms: &[Terms]) -> (Option<Charge>, Option<Charge>) {
    let line = |kind| {
        let of_kind = terms.iter().find(|terms| terms.kind == kind).map(|terms| terms.line);
        of_kind.filter(|line| line.residual_share <= RESIDUAL_SHARE_MAX)
    };
    let Some(unit_ns) = line(Kind::RandomRead).map(|line| line.per_byte_ns).filter(|ns| *ns > 0.0) else {
        return (None, None);
    };
    let charge = |kind| {
        let Line { per_request_ns, per_byte_ns, .. } = line(kind)?;
        let (base, per_byte) = (per_request_ns / unit_ns, per_byte_ns / unit_ns);
        let fits = base <= BASE_BYTES_MAX && per_byte <= PER_BYTE_MAX;
        // To a thousandth, which is finer than the config keeps it.
        fits.then(|| Charge { base_bytes: base.round() as u64, per_byte: (per_byte * 1000.0).round() / 1000.0 })
    };
    let read = charge(Kind::RandomRead);
    (read, read.and_then(|_| charge(Kind::RandomWrite)))
}

fn notes(curves: &[Curve], terms: &[Terms], read: Option<Charge>, write: Option<Charge>) -> Vec<String> {
    let mut notes = Vec::new();
    for curve in curves {
        let (best, what) = (curve.best(), format!("{} of {} KiB", curve.kind.name(), curve.request_bytes >> 10));
        if let Some(share) = best.core_share.filter(|share| *share >= CORES_BUSY_SHARE) {
            notes.push(format!(
                "{what}: the cores worked {:.0}% of the time, so this is what they can do and not what the device can",
                share * 100.0
            ));
        }
        if curve.knee_depth.is_some()
            && Some(best.depth) == curve.points.last().map(|point| point.depth)
            && best.depth >= crate::sweep::Plan::DEPTH_MAX
        {
            notes.push(format!("{what}: throughput still grew at the largest depth measured, {}", best.depth));
        }
    }
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let disturbed = points().filter(|point| point.spread_share > SPREAD_SHARE).count();
    if disturbed * 4 > points().count() {
        notes.push(format!(
            "of {} loads {disturbed} differed by more than {:.0}% from one part to the next: somebody else uses the \
             device or the cores, and another run will find other numbers",
            points().count(),
            SPREAD_SHARE * 100.0
        ));
    }
    for Terms { kind, line } in terms.iter().filter(|terms| terms.line.residual_share > RESIDUAL_SHARE) {
        notes.push(format!(
            "{}: the line is up to {:.0}% off, so {}",
            kind.name(),
            line.residual_share * 100.0,
            if line.residual_share > RESIDUAL_SHARE_MAX { "it is no cost" } else { "the cost is approximate" }
        ));
    }
    if read.is_none() {
        notes.push("no cost follows: the time of a random read does not grow evenly with its size".to_string());
    }
    match terms.iter().any(|terms| terms.kind.is_write()) {
        false => notes.push("writes were not measured, so there is no cost of a write".to_string()),
        true if write.is_none() => notes.push("no cost of a write follows".to_string()),
        true => {}
    }
    notes
}

/// Which line describes the time of a request by its size?
///
/// On a full device a request takes `per_request_ns + per_byte_ns * length` of its time (Linux's io.cost has the same
/// model, `block/blk-iocost.c`, "Cost Model"). Two numbers of a line through three or more measured sizes: least
/// squares of the *relative* errors, because a nanosecond counts for more at 4 KiB than at 128 KiB.
///
/// Example: 4 KiB take 2174 ns and 128 KiB take 47522 ns. The line is 711 ns + 0.357 ns per byte, and a request costs
/// as much as 711 / 0.357 = 1991 bytes before its first byte.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Line {
    /// Time per request, at least 0.
    pub per_request_ns: f64,
    /// Time per byte, at least 0.
    pub per_byte_ns: f64,
    /// How far the farthest of the measured times lies from the line, as a part of the time.
    pub residual_share: f64,
}

impl Line {
    /// The line through `(length in bytes, time in ns)` of at least two sizes. A line that would fall, or begin below
    /// 0, is replaced by the best one that does neither. `None`: fewer sizes, or a time that is not above 0.
    pub fn through(points: &[(f64, f64)]) -> Option<Line> {
        let is_spread = points.iter().any(|(bytes, _)| *bytes != points[0].0);
        if !is_spread || points.iter().any(|&(_, ns)| !(ns.is_finite() && ns > 0.0)) {
            return None;
        }
        // Rows (1/t, s/t) and 1 on the other side: the normal equations of a and b in a/t + b s/t = 1.
        let sum =
            |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|&(bytes, ns)| of(1.0 / ns, bytes / ns)).sum::<f64>();
        let (uu, us, ss) = (sum(&|u, _| u * u), sum(&|u, s| u * s), sum(&|_, s| s * s));
        let (u, s) = (sum(&|u, _| u), sum(&|_, s| s));
        let determinant = uu * ss - us * us;
        let (mut a, mut b) = ((u * ss - s * us) / determinant, (s * uu - u * us) / determinant);
        if b < 0.0 {
            (a, b) = (u / uu, 0.0);
        } else if a < 0.0 {
            (a, b) = (0.0, s / ss);
        }
        let off = |&(bytes, ns): &(f64, f64)| ((a + b * bytes) / ns - 1.0).abs();
        let residual_share = points.iter().map(off).fold(0.0, f64::max);
        Some(Line { per_request_ns: a, per_byte_ns: b, residual_share })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Depth 1, and the depth at which the device is full, where a request takes `took_ns` of it.
    fn curve(kind: Kind, request_bytes: u32, alone_ns: f64, full: u16, took_ns: f64) -> Curve {
        let point = |depth: u16, requests_per_s: f64| Point {
            depth,
            requests_per_s,
            bytes_per_s: requests_per_s * f64::from(request_bytes),
            mean_ns: f64::from(depth) / requests_per_s * 1e9,
            p99_ns: 0,
            spread_share: 0.0,
            core_share: Some(0.2),
        };
        let points = vec![point(1, 1e9 / alone_ns), point(full, 1e9 / took_ns)];
        Curve { kind, request_bytes, points, knee_depth: Some(full) }
    }

    /// Reads of 711 ns + length / 2.8 GB/s, writes of 3666 ns + length / 2 GB/s.
    fn curves() -> Vec<Curve> {
        let of = |kind, depths: [u16; 2], per_request_ns: f64, per_byte_ns: f64| {
            let sizes = [(4096, depths[0]), (131_072, depths[1])];
            sizes.map(|(bytes, full)| curve(kind, bytes, 1e5, full, per_request_ns + f64::from(bytes) * per_byte_ns))
        };
        let reads = of(Kind::RandomRead, [60, 5], 711.0, 1.0 / 2.8);
        reads.into_iter().chain(of(Kind::RandomWrite, [6, 2], 3666.0, 0.5)).collect()
    }

    #[test]
    fn cost_counts_in_bytes_of_reads() {
        let found = Finding::of(curves());
        // 711 x 2.8 = 1991 bytes; 3666 x 2.8 = 10265 bytes; 0.5 x 2.8 = 1.4.
        assert_eq!(found.read, Some(Charge { base_bytes: 1991, per_byte: 1.0 }));
        assert_eq!(found.write, Some(Charge { base_bytes: 10265, per_byte: 1.4 }));
        assert_eq!((found.notes.len(), found.profile.latency_ns), (0, 100_000));
    }

    #[test]
    fn the_knee_in_units_is_enough_for_every_size() {
        let profile = Finding::of(curves()).profile;
        // 4 KiB: 6087 bytes of cost, 2 units: 1 + 59 x 2 = 119. 128 KiB: 133063 bytes, 33 units: 1 + 4 x 33 = 133.
        // Writes: of 4 KiB 15999 bytes, 4 units: 21; of 128 KiB 193765 bytes, 48 units: 49.
        assert_eq!((profile.knee_units, profile.knee_requests), (133, 60));
        assert_eq!(profile.bandwidth_bytes_per_s, (131_072.0 * 1e9 / (711.0 + 131_072.0 / 2.8)) as u64);
    }

    #[test]
    fn what_was_not_measured_is_not_recommended() {
        let reads = curves().into_iter().filter(|curve| !curve.kind.is_write()).collect();
        let found = Finding::of(reads);
        assert_eq!((found.write, found.profile.write_latency_ns), (None, None));
        assert_eq!(found.notes, ["writes were not measured, so there is no cost of a write"]);
    }

    #[test]
    fn a_device_that_does_not_know_sizes_has_no_cost() {
        let flat = [4096, 131_072].map(|bytes| curve(Kind::RandomRead, bytes, 1e5, 8, 5000.0));
        let found = Finding::of(flat.into());
        assert_eq!((found.read, found.write), (None, None));
        assert!(found.notes[0].starts_with("no cost follows"), "{:?}", found.notes);
        // Without a cost a byte is a byte: 1 + 7 x 32.
        assert_eq!(found.profile.knee_units, 225);
        let deep = [4096, 32 << 20].map(|bytes| curve(Kind::RandomRead, bytes, 0.0, 512, 5000.0));
        let profile = Finding::of(deep.into()).profile;
        assert_eq!((profile.knee_units, profile.latency_ns), (65_535, 1), "as far as a config goes");
    }

    #[test]
    fn what_is_no_line_is_no_cost() {
        // Writes of 64 KiB take a tenth of what those of 4 KiB take.
        let mut curves = curves();
        curves.push(curve(Kind::RandomWrite, 65_536, 1e5, 2, 500.0));
        let found = Finding::of(curves);
        assert!(found.read.is_some() && found.write.is_none());
        assert!(
            found.notes[0].starts_with("random writes: the line is up to") && found.notes[0].ends_with("it is no cost")
        );
        assert_eq!(found.notes[1], "no cost of a write follows");
    }

    #[test]
    fn a_device_that_others_use_is_said() {
        let mut curves = curves();
        curves[0].points[1].spread_share = 0.3;
        assert!(Finding::of(curves.clone()).notes.is_empty(), "one of eight");
        curves.iter_mut().for_each(|curve| curve.points[1].spread_share = 0.3);
        let notes = Finding::of(curves).notes;
        assert!(notes[0].starts_with("of 8 loads 4 differed by more than 20% from one part to the next"), "{notes:?}");
    }

    #[test]
    fn a_limit_of_the_cores_is_said() {
        let mut curves = curves();
        curves[0].points[1].core_share = Some(0.97);
        let notes = Finding::of(curves).notes;
        assert!(notes[0].starts_with("random reads of 4 KiB: the cores worked 97% of the time"), "{notes:?}");
    }

    const SIZES: [f64; 4] = [4096.0, 16384.0, 65536.0, 131_072.0];

    fn line(of: impl Fn(f64) -> f64) -> Line {
        Line::through(&SIZES.map(|bytes| (bytes, of(bytes)))).unwrap()
    }

    #[test]
    fn a_line_is_found_as_it_is() {
        let found = line(|bytes| 711.0 + bytes / 2.8);
        assert!((found.per_request_ns - 711.0).abs() < 1e-6 && (found.per_byte_ns - 1.0 / 2.8).abs() < 1e-12);
        assert!(found.residual_share < 1e-12);
    }

    #[test]
    fn what_is_off_the_line_is_the_residual() {
        // The second size takes a tenth longer.
        let found = line(|bytes| (711.0 + bytes / 2.8) * if bytes == 16384.0 { 1.1 } else { 1.0 });
        assert!((0.04..0.10).contains(&found.residual_share), "{found:?}");
    }

    #[test]
    fn neither_term_is_below_zero() {
        // Larger requests take less per byte than a line through 0 has, and then no longer than small ones.
        let from_below = line(|bytes| bytes * (0.3 + bytes * 1e-6));
        assert_eq!(from_below.per_request_ns, 0.0);
        assert!(from_below.per_byte_ns > 0.3 && from_below.residual_share > 0.05, "{from_below:?}");
        let falling = line(|bytes| 10_000.0 - bytes * 0.01);
        assert_eq!(falling.per_byte_ns, 0.0);
        assert!((9_000.0..10_000.0).contains(&falling.per_request_ns), "{falling:?}");
    }

    #[test]
    fn one_size_or_a_time_of_nothing_is_no_line() {
        assert_eq!(Line::through(&[(4096.0, 10.0), (4096.0, 11.0)]), None);
        assert_eq!(Line::through(&[(4096.0, 10.0), (8192.0, 0.0)]), None);
        assert_eq!(Line::through(&[]), None);
    }
}
