//! Which loads are run, and where is the knee?
//!
//! ```text
//!   random reads, each size:   depth 1, 2, 4, 8 ... until nothing is gained any more, then halves around the knee
//!   sequential reads:          depth 1, and the depth at which the random ones were fastest
//!   writes, if allowed:        the same two
//! ```
//! The knee of a size is the smallest depth measured with 97% of the best throughput. Doubling finds it to a factor of
//! 2; then the middle of the bracket is measured until its ends are within 7%, or next to each other.
//!
//! # How long
//! In wall time others disturb, for seconds at times. So each load runs for a fixed time, in [`ROUNDS`] parts: the
//! whole row of depths is gone through as often, and of each depth the part of the middle throughput counts. In virtual
//! time nothing disturbs, and a load runs once, for as long as so many requests need.

use crate::bench::{Bench, Ran};
use mqfq_demo::load::{Load, Pattern, Window};
use serde::Serialize;

/// Part of the best throughput that the knee has.
pub const KNEE_SHARE: f64 = 0.97;

/// A sweep ends after so many doublings that gain nothing.
const IDLE_DOUBLINGS: usize = 3;

/// Less than this part does not count as a gain.
const GAIN_SHARE: f64 = 0.01;

/// Parts in which a load runs in wall time; odd, for a middle one.
pub const ROUNDS: usize = 3;

/// A bracket of the knee that is as narrow as this is not halved again.
const BRACKET: f64 = 1.07;

/// Longest load of which too few requests ended, ns.
const PILOT_MAX_NS: u64 = 10_000_000_000;

/// Fewer requests in a window make it longer.
const REQUESTS_MIN: u64 = 4;

/// Requests that tell a rate.
const PILOT_REQUESTS: u64 = 32;

/// Operation of a request, and how its place is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Kind {
    /// Reads anywhere.
    #[serde(rename = "random reads")]
    RandomRead,
    /// Reads one after the other.
    #[serde(rename = "sequential reads")]
    SequentialRead,
    /// Writes anywhere.
    #[serde(rename = "random writes")]
    RandomWrite,
    /// Writes one after the other.
    #[serde(rename = "sequential writes")]
    SequentialWrite,
}

impl Kind {
    /// Reads, then writes.
    pub const ALL: [Kind; 4] = [Kind::RandomRead, Kind::SequentialRead, Kind::RandomWrite, Kind::SequentialWrite];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::RandomRead => "random reads",
            Kind::SequentialRead => "sequential reads",
            Kind::RandomWrite => "random writes",
            Kind::SequentialWrite => "sequential writes",
        }
    }

    /// Whether it changes stored bytes.
    pub const fn is_write(self) -> bool {
        matches!(self, Kind::RandomWrite | Kind::SequentialWrite)
    }

    const fn pattern(self) -> Pattern {
        match self {
            Kind::RandomRead | Kind::RandomWrite => Pattern::Random,
            Kind::SequentialRead | Kind::SequentialWrite => Pattern::Sequential,
        }
    }
}

/// How long a load runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// So many ns, in [`ROUNDS`] parts, each after a fifth of it to warm up.
    Time(u64),
    /// As long as so many requests need, after a fifth of it.
    Requests(u64),
}

/// Plan of a measurement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Sizes of requests, bytes, smallest first, at least two.
    pub sizes_bytes: Vec<u32>,
    /// Largest depth, a power of two.
    pub depth_max: u16,
    /// How long each load runs.
    pub extent: Extent,
    /// Whether writes are measured too.
    pub writes: bool,
    /// Seed of the places that requests go to.
    pub seed: u64,
}

impl Extent {
    /// Parts in which a load runs.
    fn rounds(self) -> usize {
        match self {
            Extent::Time(_) => ROUNDS,
            Extent::Requests(_) => 1,
        }
    }
}

impl Plan {
    /// Sizes of requests, bytes.
    pub const SIZES_BYTES: [u32; 4] = [4 << 10, 16 << 10, 64 << 10, 128 << 10];

    /// Largest depth.
    pub const DEPTH_MAX: u16 = 512;

    /// Loads that are run at most: for the progress.
    pub fn steps_max(&self) -> usize {
        let doublings = self.depth_max.ilog2() as usize + 1;
        // Halving a bracket of a factor of 2 to 7%: four times. The other pattern has two points.
        self.sizes_bytes.len() * (doublings + 4 + 2) * self.extent.rounds() * if self.writes { 2 } else { 1 }
    }
}

/// Performance of a device at one depth.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Requests in flight.
    pub depth: u16,
    /// Throughput in requests.
    pub requests_per_s: f64,
    /// Throughput in bytes.
    pub bytes_per_s: f64,
    /// Time of a request, mean.
    pub mean_ns: f64,
    /// Time of a request, 99th percentile.
    pub p99_ns: u64,
    /// How much the parts of the load differed: fastest less slowest, of the throughput. 0: there was one.
    pub spread_share: f64,
    /// See [`Ran::core_share`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_share: Option<f64>,
}

/// Performance of a device for requests of one kind and size.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Curve {
    /// Kind of the requests.
    pub kind: Kind,
    /// Their size.
    pub request_bytes: u32,
    /// Points by depth, from 1 on.
    pub points: Vec<Point>,
    /// The knee's depth. `None`: the depths between were not measured.
    pub knee_depth: Option<u16>,
}

impl Curve {
    /// The point of the highest throughput, the shallowest of equals.
    pub fn best(&self) -> &Point {
        let better = |best: &'_ Point, other: &Point| other.requests_per_s > best.requests_per_s;
        self.points
            .iter()
            .reduce(|best, point| if better(best, point) { point } else { best })
            .expect("depth 1 is there")
    }

    /// Depth 1.
    pub fn alone(&self) -> &Point {
        &self.points[0]
    }

    /// The knee.
    pub fn knee(&self) -> Option<&Point> {
        self.points.iter().find(|point| Some(point.depth) == self.knee_depth)
    }

    /// The depths between which the knee lies: the deepest below it, and it.
    fn bracket(&self) -> (u16, u16) {
        let enough = self.best().requests_per_s * KNEE_SHARE;
        let at = self.points.iter().position(|point| point.requests_per_s >= enough).expect("the best is enough");
        (if at == 0 { 0 } else { self.points[at - 1].depth }, self.points[at].depth)
    }

    fn add(&mut self, point: Point) {
        let at = self.points.partition_point(|other| other.depth < point.depth);
        self.points.insert(at, point);
    }
}

/// Measures what `plan` says; `begin` is told before each load and ends it all with an error.
///
/// # Errors
/// As [`Bench::run`], and `begin`'s.
pub fn run(
    bench: &mut dyn Bench,
    plan: &Plan,
    begin: &mut dyn FnMut(&str) -> Result<(), String>,
) -> Result<Vec<Curve>, String> {
    let mut sweep = Sweep { bench, plan, begin };
    let mut curves = Vec::new();
    let kinds = [(Kind::RandomRead, Kind::SequentialRead), (Kind::RandomWrite, Kind::SequentialWrite)];
    for (random, sequential) in kinds.into_iter().take(if plan.writes { 2 } else { 1 }) {
        let mut of_random = Vec::new();
        for &request_bytes in &plan.sizes_bytes {
            of_random.push(sweep.over_depth(random, request_bytes)?);
        }
        let mut of_sequential = Vec::new();
        for curve in &of_random {
            of_sequential.push(sweep.at_ends(sequential, curve)?);
        }
        curves.append(&mut of_random);
        curves.append(&mut of_sequential);
    }
    Ok(curves)
}

struct Sweep<'a> {
    bench: &'a mut dyn Bench,
    plan: &'a Plan,
    begin: &'a mut dyn FnMut(&str) -> Result<(), String>,
}

impl Sweep<'_> {
    /// Depth by depth until nothing is gained, then the knee.
    fn over_depth(&mut self, kind: Kind, request_bytes: u32) -> Result<Curve, String> {
        let mut curve = self.begun(kind, request_bytes)?;
        let mut idle_doublings = 0;
        while idle_doublings < IDLE_DOUBLINGS
            && let Some(deepest) = curve.points.last().copied()
            && deepest.depth < self.plan.depth_max
        {
            let before = curve.best().requests_per_s;
            let point = self.part(kind, request_bytes, deepest.depth * 2, deepest.requests_per_s * 2.0)?;
            idle_doublings = if point.requests_per_s > before * (1.0 + GAIN_SHARE) { 0 } else { idle_doublings + 1 };
            curve.add(point);
        }
        let mut rounds: Vec<Vec<Point>> = curve.points.iter().map(|point| vec![*point]).collect();
        for _ in 1..self.plan.extent.rounds() {
            for parts in &mut rounds {
                let Point { depth, requests_per_s, .. } = parts[0];
                parts.push(self.part(kind, request_bytes, depth, requests_per_s)?);
            }
        }
        curve.points = rounds.into_iter().map(middle).collect();
        loop {
            let (below, knee) = curve.bracket();
            if knee - below <= 1 || f64::from(knee) <= f64::from(below) * BRACKET {
                curve.knee_depth = Some(knee);
                return Ok(curve);
            }
            let point = self.point(kind, request_bytes, below.midpoint(knee), curve.best().requests_per_s)?;
            curve.add(point);
        }
    }

    /// Depth 1 and the depth at which `other` is fastest.
    fn at_ends(&mut self, kind: Kind, other: &Curve) -> Result<Curve, String> {
        let mut curve = self.begun(kind, other.request_bytes)?;
        let mut alones = curve.points.clone();
        let best = other.best();
        if best.depth > 1 {
            let point = self.point(kind, other.request_bytes, best.depth, best.requests_per_s)?;
            curve.add(point);
        }
        let alone = curve.points[0];
        for _ in 1..self.plan.extent.rounds() {
            alones.push(self.part(kind, other.request_bytes, 1, alone.requests_per_s)?);
        }
        curve.points[0] = middle(alones);
        Ok(curve)
    }

    /// Depth 1, for the first time.
    fn begun(&mut self, kind: Kind, request_bytes: u32) -> Result<Curve, String> {
        let rate = self.rate(kind, request_bytes)?;
        let points = vec![self.part(kind, request_bytes, 1, rate)?];
        Ok(Curve { kind, request_bytes, points, knee_depth: None })
    }

    /// All parts of a load.
    fn point(&mut self, kind: Kind, request_bytes: u32, depth: u16, rate: f64) -> Result<Point, String> {
        let rounds = self.plan.extent.rounds();
        let parts: Result<_, String> = (0..rounds).map(|_| self.part(kind, request_bytes, depth, rate)).collect();
        Ok(middle(parts?))
    }

    /// Requests per second at depth 1, roughly; 0 where the extent is a time, which does not need it.
    fn rate(&mut self, kind: Kind, request_bytes: u32) -> Result<f64, String> {
        let mut window = Window { warm_up_ns: 0, end_ns: 10_000_000 };
        while let Extent::Requests(_) = self.plan.extent {
            let Ran { counted, .. } = self.bench.run(&self.load(kind, request_bytes, 1), window)?;
            if counted.requests >= PILOT_REQUESTS || window.end_ns >= PILOT_MAX_NS {
                return Ok(counted.requests_per_s().max(0.1));
            }
            window.end_ns *= 4;
        }
        Ok(0.0)
    }

    fn load(&self, kind: Kind, request_bytes: u32, depth: u16) -> Load {
        // As many workers as share the depth evenly.
        let connections = (1..=self.bench.workers().min(depth)).rev().find(|n| depth.is_multiple_of(*n)).unwrap_or(1);
        Load {
            connections,
            depth: depth / connections,
            request_bytes,
            write_percent: if kind.is_write() { 100 } else { 0 },
            pattern: kind.pattern(),
            chain: &[],
            seed: self.plan.seed,
        }
    }

    /// One part of a load. `rate`: requests per second that it will have at most, or so.
    fn part(&mut self, kind: Kind, request_bytes: u32, depth: u16, rate: f64) -> Result<Point, String> {
        (self.begin)(&format!("{} of {} KiB, depth {depth}", kind.name(), request_bytes >> 10))?;
        let mut measured_ns = match self.plan.extent {
            Extent::Time(ns) => ns / ROUNDS as u64,
            // At least a millisecond: the edges of the window must not count.
            Extent::Requests(requests) => ((requests as f64 / rate * 1e9) as u64).max(1_000_000),
        };
        let (counted, core_share) = loop {
            let warm_up_ns = measured_ns / 5;
            let window = Window { warm_up_ns, end_ns: warm_up_ns + measured_ns };
            let Ran { counted, core_share } = self.bench.run(&self.load(kind, request_bytes, depth), window)?;
            match counted.requests {
                // A slow device: its rate is not that of one or two requests.
                0..REQUESTS_MIN if measured_ns < PILOT_MAX_NS => measured_ns *= 4,
                0 => return Err(format!("no request of {request_bytes} bytes ended within {PILOT_MAX_NS} ns")),
                _ => break (counted, core_share),
            }
        };
        Ok(Point {
            depth,
            requests_per_s: counted.requests_per_s(),
            bytes_per_s: counted.bytes_per_s(),
            mean_ns: counted.total_ns.mean(),
            p99_ns: counted.p99_ns(),
            spread_share: 0.0,
            core_share,
        })
    }
}

/// The part of the middle throughput, of one at least.
fn middle(mut parts: Vec<Point>) -> Point {
    parts.sort_by(|one, other| one.requests_per_s.total_cmp(&other.requests_per_s));
    let middle = parts[parts.len() / 2];
    let spread = parts[parts.len() - 1].requests_per_s - parts[0].requests_per_s;
    Point { spread_share: spread / middle.requests_per_s, ..middle }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::device::Device;
    use mqfq_blk::device::DeviceInfo;
    use mqfq_blk::device::null::NullDevice;
    use mqfq_demo::load::Counted;

    /// A device of which `full` requests together are all that it does, at 1 MB/s for each.
    struct Paper {
        full: f64,
        loads: Vec<Load>,
    }

    impl Paper {
        fn new(full: f64) -> Paper {
            Paper { full, loads: Vec::new() }
        }
    }

    impl Bench for Paper {
        fn info(&self) -> DeviceInfo {
            NullDevice::new(1 << 30).info()
        }

        fn workers(&self) -> u16 {
            4
        }

        fn run(&mut self, load: &Load, window: Window) -> Result<Ran, String> {
            self.loads.push(*load);
            let depth = f64::from(load.connections) * f64::from(load.depth);
            let rate = depth.min(self.full) * 1000.0;
            let mut counted = Counted::new(window);
            let requests = (rate * window.measured_s()).round() as u64;
            (0..requests)
                .for_each(|_| counted.record(window.warm_up_ns, (depth / rate * 1e9) as u64, load.request_bytes));
            Ok(Ran { counted, core_share: Some(0.5) })
        }
    }

    fn plan() -> Plan {
        let sizes_bytes = vec![4096, 16384];
        Plan { sizes_bytes, depth_max: 64, extent: Extent::Time(900_000_000), writes: false, seed: 1 }
    }

    #[test]
    fn the_knee_is_the_smallest_depth_that_has_nearly_all() {
        // 0.97 x 20 = 19.4: depth 20 has it, 19 has not.
        let mut bench = Paper::new(20.0);
        let mut told = Vec::new();
        let mut begin = |what: &str| {
            told.push(what.to_string());
            Ok(())
        };
        let curves = run(&mut bench, &plan(), &mut begin).unwrap();
        let depths = |curve: &Curve| curve.points.iter().map(|point| point.depth).collect::<Vec<_>>();
        assert_eq!((curves[0].kind, curves[0].knee_depth), (Kind::RandomRead, Some(20)));
        // Doubled to 64, which is the largest: then the middles of 16 and 32, 16 and 24, and so on.
        assert_eq!(depths(&curves[0]), [1, 2, 4, 8, 16, 18, 19, 20, 24, 32, 64]);
        assert_eq!(curves[0].knee().unwrap().requests_per_s.round(), 20_000.0);
        // Sequential: its two ends.
        assert_eq!((curves[2].kind, depths(&curves[2])), (Kind::SequentialRead, vec![1, 20]));
        assert!(told.len() <= plan().steps_max() && told[1] == "random reads of 4 KiB, depth 2", "{told:?}");
        assert!(bench.loads.iter().all(|load| load.write_percent == 0), "reads only unless writes are allowed");
        // Four workers share a depth that four divide, three one of 18, and one does 19.
        let shared = |depth: u16| bench.loads.iter().find(|load| load.connections * load.depth == depth).unwrap();
        assert_eq!([2, 24, 18, 19].map(|depth| shared(depth).connections), [2, 4, 3, 1]);
    }

    #[test]
    fn a_device_that_one_request_fills_has_its_knee_there() {
        let mut bench = Paper::new(1.0);
        let curves = run(&mut bench, &plan(), &mut |_| Ok(())).unwrap();
        assert_eq!((curves[0].knee_depth, curves[0].points.len()), (Some(1), 4), "1, and three that gain nothing");
        assert_eq!(curves[2].points.len(), 1, "its best is at depth 1 as well");
    }

    #[test]
    fn a_slow_device_is_given_time() {
        // 1000 requests a second: one in a millisecond, four in the next length that is tried.
        let mut bench = Paper::new(1.0);
        let curves = run(&mut bench, &Plan { extent: Extent::Time(3_000_000), ..plan() }, &mut |_| Ok(())).unwrap();
        assert_eq!(curves[0].alone().requests_per_s.round(), 1000.0);
        assert_eq!(bench.loads[..3].iter().map(|load| load.depth).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn who_disturbs_one_round_disturbs_nothing() {
        /// A device that does a fifth in every tenth load.
        struct Disturbed(Paper);

        impl Bench for Disturbed {
            fn info(&self) -> DeviceInfo {
                self.0.info()
            }

            fn workers(&self) -> u16 {
                1
            }

            fn run(&mut self, load: &Load, window: Window) -> Result<Ran, String> {
                let full = self.0.full;
                self.0.full = if self.0.loads.len() % 10 == 9 { full / 5.0 } else { full };
                let ran = self.0.run(load, window);
                self.0.full = full;
                ran
            }
        }

        let mut bench = Disturbed(Paper::new(20.0));
        let curves = run(&mut bench, &plan(), &mut |_| Ok(())).unwrap();
        assert_eq!(curves[0].knee_depth, Some(20));
        assert!(curves.iter().all(|curve| curve.best().requests_per_s.round() == 20_000.0), "{curves:?}");
        let spreads: Vec<f64> = curves[0].points.iter().map(|point| point.spread_share).collect();
        assert!(spreads.contains(&0.0) && spreads.iter().any(|spread| (0.7..0.9).contains(spread)), "{spreads:?}");
    }

    #[test]
    fn who_is_told_before_a_load_can_end_it_all() {
        let mut bench = Paper::new(8.0);
        let mut left = 3;
        let stopped = run(&mut bench, &plan(), &mut |_| {
            left -= 1;
            if left == 0 { Err("interrupted".to_string()) } else { Ok(()) }
        });
        assert_eq!((stopped, bench.loads.len()), (Err("interrupted".to_string()), 2));
    }

    #[test]
    fn writes_are_measured_if_they_are_allowed() {
        let mut bench = Paper::new(4.0);
        let curves = run(&mut bench, &Plan { writes: true, ..plan() }, &mut |_| Ok(())).unwrap();
        assert_eq!(curves.iter().map(|curve| curve.kind).step_by(2).collect::<Vec<_>>(), Kind::ALL);
        assert!(bench.loads.iter().any(|load| load.write_percent == 100));
    }
}
