//! The largest unfairness over every interval of a history: exact, in integers, nothing sampled.
//!
//! # What it answers
//! For each pair of flows: how far did their service over weight drift apart over any interval throughout which both
//! stayed backlogged? Once for service dispatched, once for service completed.
//!
//! # Why not every interval has to be looked at
//! Let A and B be what f and m were served since the beginning, and `x = A r_m - B r_f`: bytes times weight, an
//! integer. Over an interval from i to j the difference of service over weight is `(x_j - x_i) / (r_f r_m)`. A stretch
//! is a longest interval throughout which both are backlogged; every interval of the theorems lies in one. So the
//! largest difference over all intervals of a stretch is the largest x in it less the smallest, and one pass finds it.
//!
//! # Shape
//! ```text
//!   row f: what x reached at events of f      pair (f, m) of a stretch: row f at m, and row m at f with the sign
//!   |  m=0  |  m=1  | ... | m=n-1 |           turned; both begin at the x with which the stretch begins
//! ```
//! An event of f changes x for the pairs of f only, and those lie beside each other in memory.
//!
//! # Cost
//! O(backlogged flows) per event, O(flows squared) memory: 80 bytes for each ordered pair.

use super::history::{Event, History};

/// A measure of service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Bytes that went to the device.
    Dispatched,
    /// Bytes that the device finished.
    Completed,
}

/// Largest unfairness of one pair over every interval of a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PairUnfairness {
    /// One flow.
    pub first: u32,
    /// The other; a higher number.
    pub second: u32,
    /// In service dispatched: bytes times weight, that is `|dispatched_f r_m - dispatched_m r_f|`.
    pub dispatched: i128,
    /// In service completed, likewise.
    pub completed: i128,
}

/// What [`examine`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Examined {
    /// Pairs that were backlogged at the same time, by their numbers.
    pub pairs: Vec<PairUnfairness>,
    /// Intervals covered: per pair and stretch, every two moments of which the earlier begins and the later ends an
    /// interval. A moment is the stretch's beginning, or a dispatch or completion of one of the two.
    pub intervals: u64,
}

/// Smallest and largest x so far.
#[derive(Clone, Copy)]
struct Range {
    low: i128,
    high: i128,
}

impl Range {
    const fn at(x: i128) -> Range {
        Range { low: x, high: x }
    }

    fn include(&mut self, x: i128) {
        self.low = self.low.min(x);
        self.high = self.high.max(x);
    }

    /// From the smallest to the largest x of this range and of `mirrored`, whose signs are turned.
    fn spread_with(&self, mirrored: &Range) -> i128 {
        self.high.max(-mirrored.low) - self.low.min(-mirrored.high)
    }
}

/// A pair within a stretch, as one of the two sees it.
#[derive(Clone, Copy)]
struct Cell {
    dispatched: Range,
    completed: Range,
    /// Services of both together when the stretch began.
    services_before: u64,
}

const EMPTY: Cell = Cell { dispatched: Range::at(0), completed: Range::at(0), services_before: 0 };

struct Checker<'a> {
    history: &'a History,
    /// Bytes since the beginning.
    dispatched: Vec<i128>,
    completed: Vec<i128>,
    /// Dispatches and completions since the beginning.
    services: Vec<u64>,
    cells: Vec<Cell>,
    /// Flows that are backlogged now, in no order, and the place of each in that list.
    backlogged: Vec<u32>,
    places: Vec<Option<usize>>,
    /// Per pair `second * (second - 1) / 2 + first`, over the stretches that have ended.
    worst: Vec<Option<(i128, i128)>>,
    intervals: u64,
}

/// Evaluates every interval of the history.
///
/// # Panics
/// If the history contradicts itself: a flow that becomes backlogged twice, or drains when it is not.
pub fn examine(history: &History) -> Examined {
    let flows = history.flows.len();
    let mut checker = Checker {
        history,
        dispatched: vec![0; flows],
        completed: vec![0; flows],
        services: vec![0; flows],
        cells: vec![EMPTY; flows * flows],
        backlogged: Vec::with_capacity(flows),
        places: vec![None; flows],
        worst: vec![None; flows * flows.saturating_sub(1) / 2],
        intervals: 0,
    };
    for &event in &history.events {
        match event {
            Event::Backlogged { flow } => checker.begin(flow as usize),
            Event::Dispatched { flow, bytes } => checker.serve(flow as usize, bytes, Service::Dispatched),
            Event::Completed { flow, bytes } => checker.serve(flow as usize, bytes, Service::Completed),
            Event::Drained { flow } => checker.end(flow as usize),
        }
    }
    while let Some(&flow) = checker.backlogged.last() {
        checker.end(flow as usize);
    }
    checker.result()
}

impl Checker<'_> {
    fn weight(&self, flow: usize) -> i128 {
        i128::from(self.history.flows[flow].weight)
    }

    /// The flow's stretch with each of those that are backlogged begins.
    fn begin(&mut self, flow: usize) {
        assert_eq!(self.places[flow], None, "flow {flow} was backlogged already");
        let flows = self.places.len();
        for at in 0..self.backlogged.len() {
            let other = self.backlogged[at] as usize;
            let x = |service: &[i128]| service[flow] * self.weight(other) - service[other] * self.weight(flow);
            let (dispatched, completed) = (x(&self.dispatched), x(&self.completed));
            let services_before = self.services[flow] + self.services[other];
            let cell = |sign: i128| Cell {
                dispatched: Range::at(sign * dispatched),
                completed: Range::at(sign * completed),
                services_before,
            };
            self.cells[flow * flows + other] = cell(1);
            self.cells[other * flows + flow] = cell(-1);
        }
        self.places[flow] = Some(self.backlogged.len());
        self.backlogged.push(flow as u32);
    }

    /// The flow got service, backlogged or not.
    fn serve(&mut self, flow: usize, bytes: u64, service: Service) {
        let flows = self.places.len();
        self.services[flow] += 1;
        let totals = match service {
            Service::Dispatched => &mut self.dispatched,
            Service::Completed => &mut self.completed,
        };
        totals[flow] += i128::from(bytes);
        if self.places[flow].is_none() {
            return;
        }
        let (total, weight) = (totals[flow], i128::from(self.history.flows[flow].weight));
        let row = &mut self.cells[flow * flows..][..flows];
        // The flow itself is among them; its own cell is never read.
        for &other in &self.backlogged {
            let other = other as usize;
            let x = total * i128::from(self.history.flows[other].weight) - totals[other] * weight;
            match service {
                Service::Dispatched => row[other].dispatched.include(x),
                Service::Completed => row[other].completed.include(x),
            }
        }
    }

    /// The flow's stretch with each of the others ends.
    fn end(&mut self, flow: usize) {
        let place = self.places[flow].take().unwrap_or_else(|| panic!("flow {flow} was not backlogged"));
        self.backlogged.swap_remove(place);
        if let Some(&moved) = self.backlogged.get(place) {
            self.places[moved as usize] = Some(place);
        }
        let flows = self.places.len();
        for &other in &self.backlogged {
            let other = other as usize;
            let (own, mirrored) = (&self.cells[flow * flows + other], &self.cells[other * flows + flow]);
            let dispatched = own.dispatched.spread_with(&mirrored.dispatched);
            let completed = own.completed.spread_with(&mirrored.completed);
            let moments = 1 + self.services[flow] + self.services[other] - own.services_before;
            self.intervals += moments * (moments - 1) / 2;
            let worst = &mut self.worst[pair_index(flow, other)];
            *worst = Some(worst.map_or((dispatched, completed), |(d, c)| (d.max(dispatched), c.max(completed))));
        }
    }

    fn result(self) -> Examined {
        let mut pairs = Vec::new();
        for second in 1..self.places.len() {
            for first in 0..second {
                if let Some((dispatched, completed)) = self.worst[pair_index(first, second)] {
                    pairs.push(PairUnfairness { first: first as u32, second: second as u32, dispatched, completed });
                }
            }
        }
        Examined { pairs, intervals: self.intervals }
    }
}

/// Place of a pair among all, whichever comes first.
fn pair_index(a: usize, b: usize) -> usize {
    let (first, second) = (a.min(b), a.max(b));
    second * (second - 1) / 2 + first
}

/// A point of a pair's trajectory: `x / (r_f r_m)`, in bytes at the default weight.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// Events of the history so far.
    pub at: usize,
    /// Service completed of the first less that of the second, each over its weight, times the default weight.
    pub difference_bytes: f64,
    /// Both are backlogged.
    pub both_backlogged: bool,
}

/// How the difference of one pair went, for a picture.
pub fn trajectory(history: &History, first: u32, second: u32) -> Vec<Point> {
    let weight = |flow: u32| f64::from(history.flows[flow as usize].weight) / 100.0;
    let (mut difference_bytes, mut backlogged) = (0.0, [false; 2]);
    let mut points = Vec::new();
    for (at, &event) in history.events.iter().enumerate() {
        let side = |flow| if flow == first { Some(0) } else { (flow == second).then_some(1) };
        match event {
            Event::Completed { flow, bytes } if side(flow).is_some() => {
                let share = bytes as f64 / weight(flow);
                difference_bytes += if flow == first { share } else { -share };
            }
            Event::Backlogged { flow } if side(flow).is_some() => backlogged[side(flow).unwrap_or(0)] = true,
            Event::Drained { flow } if side(flow).is_some() => backlogged[side(flow).unwrap_or(0)] = false,
            _ => continue,
        }
        points.push(Point { at, difference_bytes, both_backlogged: backlogged[0] && backlogged[1] });
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_nvme::random::Random;

    /// Every interval of every pair, one by one.
    fn one_by_one(history: &History) -> Examined {
        let flows = history.flows.len();
        let mut pairs = Vec::new();
        let mut intervals = 0;
        for second in 0..flows as u32 {
            for first in 0..second {
                let weight = |flow: u32| i128::from(history.flows[flow as usize].weight);
                let mut backlogged = [false; 2];
                let mut served = [[0i128; 2]; 2];
                // The moments of the stretch that we are in: x dispatched, x completed.
                let mut moments: Vec<[i128; 2]> = Vec::new();
                let mut worst: Option<[i128; 2]> = None;
                let mut finish = |moments: &mut Vec<[i128; 2]>| {
                    if !moments.is_empty() {
                        worst.get_or_insert([0, 0]);
                    }
                    for j in 0..moments.len() {
                        for i in 0..j {
                            intervals += 1;
                            for service in 0..2 {
                                let found = (moments[j][service] - moments[i][service]).abs();
                                let worst = worst.as_mut().expect("set above");
                                worst[service] = worst[service].max(found);
                            }
                        }
                    }
                    moments.clear();
                };
                for &event in &history.events {
                    let (flow, change) = match event {
                        Event::Backlogged { flow } => (flow, None),
                        Event::Drained { flow } => (flow, None),
                        Event::Dispatched { flow, bytes } => (flow, Some((0, bytes))),
                        Event::Completed { flow, bytes } => (flow, Some((1, bytes))),
                    };
                    if flow != first && flow != second {
                        continue;
                    }
                    let side = usize::from(flow == second);
                    match change {
                        Some((service, bytes)) => served[service][side] += i128::from(bytes),
                        None => backlogged[side] = matches!(event, Event::Backlogged { .. }),
                    }
                    if backlogged == [true, true] {
                        moments.push(served.map(|[a, b]| a * weight(second) - b * weight(first)));
                    } else {
                        finish(&mut moments);
                    }
                }
                finish(&mut moments);
                if let Some([dispatched, completed]) = worst {
                    pairs.push(PairUnfairness { first, second, dispatched, completed });
                }
            }
        }
        Examined { pairs, intervals }
    }

    /// Anything that can happen, in any order: no scheduler behind it.
    fn random_history(random: &mut Random) -> History {
        let flows = 1 + random.below(5) as u32;
        let mut history = History::new((0..flows).map(|_| (1 + random.below(10_000) as u16, 1)));
        let mut on_device = Vec::new();
        for _ in 0..random.below(120) {
            let flow = random.below(u64::from(flows)) as u32;
            match random.below(4) {
                0 | 1 => history.submitted(flow),
                2 if history.waiting(flow) > 0 => {
                    let bytes = 512 << random.below(13);
                    history.dispatched(flow, bytes);
                    on_device.push((flow, bytes));
                }
                _ if !on_device.is_empty() => {
                    let (flow, bytes) = on_device.swap_remove(random.below(on_device.len() as u64) as usize);
                    history.completed(flow, bytes);
                }
                _ => {}
            }
        }
        history
    }

    #[test]
    fn one_pass_finds_what_every_interval_one_by_one_does() {
        for seed in 0..400 {
            let history = random_history(&mut Random::new(seed));
            assert_eq!(examine(&history), one_by_one(&history), "seed {seed}");
        }
    }

    #[test]
    fn a_stretch_ends_where_one_of_the_two_is_drained() {
        // Weights 100 and 200. Both backlogged: f gets 3 KiB over a weight of 100, m nothing. Then m drains with a
        // dispatch of 2 KiB, which still counts: x falls by 2 KiB * 100. f's further 8 KiB are in no stretch.
        let mut history = History::new([(100, 1), (200, 1)]);
        history.submitted(1);
        (0..12).for_each(|_| history.submitted(0));
        (0..3).for_each(|_| history.dispatched(0, 1024));
        history.dispatched(1, 2048);
        (0..8).for_each(|_| history.dispatched(0, 1024));
        let examined = examine(&history);
        // Moments: the beginning, three dispatches of f, one of m: 5 * 4 / 2 intervals.
        assert_eq!(examined.intervals, 10);
        assert_eq!(examined.pairs[0].dispatched, 3 * 1024 * 200);
        assert_eq!(examined.pairs[0].completed, 0);
    }

    #[test]
    fn two_that_were_never_backlogged_together_are_no_pair() {
        let mut history = History::new([(100, 1), (100, 1)]);
        for flow in [0, 1] {
            history.submitted(flow);
            history.dispatched(flow, 4096);
        }
        assert_eq!(examine(&history), Examined { pairs: vec![], intervals: 0 });
    }
}
