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
//! # A window that changes
//! What such an interval is allowed depends on its ends: T at either of them, as it is in effect there
//! ([`Event::Ahead`]). With `a` for how much that is more than the T of the bounds, the bound is broken if
//! `|x_j - x_i| - a_j - a_i` is too large for any i and j of a stretch. So the largest `x - a` less the smallest `x +
//! a` is what is found. A dispatch changes x and may move virtual time, after which `a` is less: the event of the new
//! `a` comes second, and each service looks at the x before it with the `a` that has come to be since.
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
use super::limits::Limits;

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
    /// In service dispatched: `|dispatched_f r_m - dispatched_m r_f|`, in the units of [`super::limits::PairLimits`],
    /// less what the window in effect allows beyond the bounds' T.
    pub dispatched: i128,
    /// In service completed, likewise.
    pub completed: i128,
}

/// Results of [`examine`].
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
    const fn at(x: i128, more: i128) -> Range {
        Range { low: x + more, high: x - more }
    }

    /// An x at which the window allows `more` than the T of the bounds.
    fn include(&mut self, x: i128, more: i128) {
        self.low = self.low.min(x + more);
        self.high = self.high.max(x - more);
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

const EMPTY: Cell = Cell { dispatched: Range::at(0, 0), completed: Range::at(0, 0), services_before: 0 };

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
    /// The last [`Event::Ahead`].
    more_units: i128,
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
        more_units: 0,
    };
    for &event in &history.events {
        match event {
            Event::Backlogged { flow } => checker.begin(flow as usize),
            Event::Dispatched { flow, bytes } => checker.serve(flow as usize, bytes, Service::Dispatched),
            Event::Completed { flow, bytes } => checker.serve(flow as usize, bytes, Service::Completed),
            Event::Drained { flow } => checker.end(flow as usize),
            Event::Ahead { more_units } => checker.more_units = more_units.into(),
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
            let (r_f, r_m) = (self.weight(flow), self.weight(other));
            let x = |service: &[i128]| Limits::scaled(service[flow] * r_m - service[other] * r_f);
            let (dispatched, completed) = (x(&self.dispatched), x(&self.completed));
            let more = self.more_units * r_f * r_m;
            let services_before = self.services[flow] + self.services[other];
            let cell = |sign: i128| Cell {
                dispatched: Range::at(sign * dispatched, more),
                completed: Range::at(sign * completed, more),
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
        let before = totals[flow];
        let total = before + i128::from(bytes);
        totals[flow] = total;
        if self.places[flow].is_none() {
            return;
        }
        let (weight, more_units) = (i128::from(self.history.flows[flow].weight), self.more_units);
        let row = &mut self.cells[flow * flows..][..flows];
        // The flow itself is among them; its own cell is never read.
        for &other in &self.backlogged {
            let other = other as usize;
            let r_m = i128::from(self.history.flows[other].weight);
            let (x, more) =
                (|total: i128| Limits::scaled(total * r_m - totals[other] * weight), more_units * weight * r_m);
            let range = match service {
                Service::Dispatched => &mut row[other].dispatched,
                Service::Completed => &mut row[other].completed,
            };
            if more_units != 0 {
                range.include(x(before), more);
            }
            range.include(x(total), more);
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
    use mqfq_blk::random::Random;

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
                let mut ahead = 0;
                // Moments of the present stretch, per service: x, and what is allowed more there.
                let mut moments: [Vec<(i128, i128)>; 2] = Default::default();
                let mut count = 0;
                let mut worst: Option<[i128; 2]> = None;
                let mut finish = |moments: &mut [Vec<(i128, i128)>; 2], count: &mut u64| {
                    for (service, moments) in moments.iter_mut().enumerate() {
                        for (x_j, a_j) in &*moments {
                            for (x_i, a_i) in &*moments {
                                let found = Limits::scaled((x_j - x_i).abs()) - a_j - a_i;
                                let worst = worst.get_or_insert([i128::MIN; 2]);
                                worst[service] = worst[service].max(found);
                            }
                        }
                        moments.clear();
                    }
                    intervals += *count * count.saturating_sub(1) / 2;
                    *count = 0;
                };
                for &event in &history.events {
                    let (flow, change) = match event {
                        Event::Backlogged { flow } => (flow, None),
                        Event::Drained { flow } => (flow, None),
                        Event::Dispatched { flow, bytes } => (flow, Some((0, bytes))),
                        Event::Completed { flow, bytes } => (flow, Some((1, bytes))),
                        Event::Ahead { more_units } => {
                            ahead = i128::from(more_units) * weight(first) * weight(second);
                            continue;
                        }
                    };
                    if flow != first && flow != second {
                        continue;
                    }
                    let x = |[a, b]: [i128; 2]| a * weight(second) - b * weight(first);
                    let side = usize::from(flow == second);
                    let before = served;
                    match change {
                        Some((service, bytes)) => served[service][side] += i128::from(bytes),
                        None => backlogged[side] = matches!(event, Event::Backlogged { .. }),
                    }
                    if backlogged != [true, true] {
                        finish(&mut moments, &mut count);
                        continue;
                    }
                    count += 1;
                    for (service, moments) in moments.iter_mut().enumerate() {
                        match change {
                            Some((changed, _)) if changed != service => {}
                            Some(_) => moments.extend([before, served].map(|served| (x(served[service]), ahead))),
                            None => moments.push((x(served[service]), ahead)),
                        }
                    }
                }
                finish(&mut moments, &mut count);
                if let Some([dispatched, completed]) = worst {
                    pairs.push(PairUnfairness { first, second, dispatched, completed });
                }
            }
        }
        Examined { pairs, intervals }
    }

    /// Anything that can happen, in any order: no scheduler behind it.
    fn random_history(random: &mut Random, window_changes: bool) -> History {
        let flows = 1 + random.below(5) as u32;
        let mut history = History::new((0..flows).map(|_| (1 + random.below(10_000) as u16, 1)));
        let mut on_device = Vec::new();
        for _ in 0..random.below(120) {
            let flow = random.below(u64::from(flows)) as u32;
            if window_changes && random.below(8) == 0 {
                history.push(Event::Ahead { more_units: random.below(1 << 24) as i64 - (1 << 23) });
            }
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
            for window_changes in [false, true] {
                let history = random_history(&mut Random::new(seed), window_changes);
                assert_eq!(examine(&history), one_by_one(&history), "seed {seed}");
            }
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
        assert_eq!(examined.pairs[0].dispatched, Limits::scaled(3 * 1024 * 200));
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
