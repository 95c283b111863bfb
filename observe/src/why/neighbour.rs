//! The wait of a tenant behind its neighbours on the device, and the gain of less depth.
//!
//! # How it is known
//! The time of a request less what it takes alone ([`crate::alone`]) is the neighbours'. Of a tenant that was never
//! seen alone there is a bound: the least that it took beside others; and where it has little on the device, its time
//! shrinks as that of a unit did at the least depth that the search for D has measured.
//!
//! The price of a goal is read from the same measurements: a depth at which a unit was on the device for 0.6 times as
//! long brings a small request 0.6 times its time there, and costs what the device did less at that depth.

use super::{Case, SLOW_LEAST_NS, part, tenths, time};
use crate::alone::{Alone, OPS};
use mqfq_blk::tuning::{Goals, Table, Tried};

/// A tenant is slowed if so much of its time is its neighbours', percent.
const SLOWED_PERCENT: u64 = 25;

/// And if neighbours have so much of the work on the device, percent.
const NEIGHBOURS_PERCENT: u64 = 10;

/// A tenant has little on the device if it has at most so much of the work there, percent.
const LITTLE_PERCENT: u64 = 25;

/// Neighbours hold the device if they have so much of the work on it, percent; and one of them is named for all if it
/// has so much of theirs.
const HOLD_PERCENT: u64 = 50;
const MOST_PERCENT: u64 = 67;

/// An operation whose part of the time is at most this counts as not slowed if its time alone is not known, percent.
const SMALL_PERCENT: u64 = 5;

/// The part of the queue in a wait is told apart from this on, percent.
const QUEUE_PERCENT: u64 = 10;

/// A goal is about the p90, which is taken to be so much of the mean, percent; and it must be below the present mean by
/// so much.
const P90_PERCENT: u64 = 125;
const WORTH_PERCENT: u64 = 5;

/// A commit is told if so many flushes are in the interval, each with at most so many writes.
const FLUSHES_MIN: u64 = 8;
const WRITES_MAX: u64 = 64;

/// Neighbours of a tenant.
#[derive(Clone, Debug, Default)]
pub struct Neighbours {
    /// The neighbour with most of the work on the device, and its part of all, percent.
    pub most: Option<(String, u64)>,
    /// Part of all neighbours together, percent.
    pub percent: u64,
    /// Service of the device to all, bytes-equivalent.
    pub served: u64,
    /// The policy bounds what is on the device.
    pub has_depth: bool,
    /// D in force, units.
    pub depth: u32,
    /// Depths that were compared; `None`: D is a number.
    pub found: Option<Table>,
    /// The tenant has a latency goal.
    pub has_goal: bool,
}

impl Neighbours {
    /// They hold the device.
    pub fn hold_most(&self) -> bool {
        self.percent >= HOLD_PERCENT && self.most.is_some()
    }

    /// One of them stands for all.
    fn is_one(&self) -> bool {
        self.most.as_ref().is_some_and(|(_, percent)| percent * 100 >= self.percent * MOST_PERCENT)
    }

    fn names(&self) -> String {
        let name = self.most.as_ref().map_or("", |(name, _)| name);
        if self.is_one() { name.to_owned() } else { format!("{name} and others") }
    }

    fn requests(&self) -> String {
        let names = self.names();
        if self.is_one() { format!("{names}'s requests") } else { format!("requests of {names}") }
    }

    fn shown_depth(&self) -> String {
        if self.has_depth { format!(" (D = {})", self.depth) } else { String::new() }
    }
}

/// A ratio of a logarithm to base 2 in 65536ths.
fn ratio(log: i32) -> f64 {
    (f64::from(log) / 65536.0).exp2()
}

fn times(ns: u64, ratio: f64) -> u64 {
    (ns as f64 * ratio) as u64
}

/// Mean time alone of the requests of the interval, and whether it was seen.
fn alone(case: &Case) -> Option<Alone> {
    let flow = &case.flow;
    let total_ns = flow.queued_ns + flow.device_ns;
    let (mut sum_ns, mut is_sure) = (total_ns, true);
    for (op, alone) in flow.ops.iter().zip(flow.alone) {
        match alone {
            _ if op.requests == 0 => {}
            Some(alone) => {
                sum_ns = sum_ns.saturating_sub(op.total_ns) + alone.ns * op.requests;
                is_sure &= alone.is_sure;
            }
            None if op.total_ns * 100 <= total_ns * SMALL_PERCENT => {}
            None => return None,
        }
    }
    Some(Alone { ns: sum_ns / flow.requests, is_sure })
}

/// [`alone`], or a bound by what smaller depths brought.
fn bound(case: &Case, queue_ns: u64, device_ns: u64) -> Option<Alone> {
    let seen = alone(case);
    if seen.is_some_and(|seen| seen.is_sure) || 100 - case.neighbours.percent.min(100) > LITTLE_PERCENT {
        return seen;
    }
    let least = shallower(&case.neighbours).map(|tried| tried.stay_log).min();
    let by_depth = least.map(|log| queue_ns + times(device_ns, ratio(log.min(0))));
    let ns = seen.map(|seen| seen.ns).into_iter().chain(by_depth).min()?;
    Some(Alone { ns, is_sure: false })
}

/// Depths below D that were compared with it.
fn shallower(neighbours: &Neighbours) -> impl Iterator<Item = Tried> + '_ {
    let tried = neighbours.found.iter().flat_map(Table::tried);
    tried.filter(|tried| tried.depth < neighbours.depth)
}

/// "db waits 1.8 of 2.6 ms behind bulk's requests on the device (D = 161); a goal of 2.0 ms would cost bulk 18%".
/// `None`: it is not known to be slowed.
pub(super) fn sentence(case: &Case, queue_ns: u64, device_ns: u64) -> Option<String> {
    let Case { tenant, neighbours, .. } = case;
    let total_ns = queue_ns + device_ns;
    let alone = bound(case, queue_ns, device_ns)?;
    let wait_ns = total_ns.saturating_sub(alone.ns);
    if wait_ns * 100 < total_ns * SLOWED_PERCENT || wait_ns < SLOW_LEAST_NS || neighbours.percent < NEIGHBOURS_PERCENT {
        return None;
    }
    let at_least = if alone.is_sure { "" } else { "at least " };
    let (whose, depth) = (neighbours.names(), neighbours.shown_depth());
    let queued_ns = queue_ns.min(wait_ns);
    let mut sentence = format!("{tenant} waits {at_least}{} behind ", part(wait_ns, total_ns));
    if queued_ns * 100 < wait_ns * QUEUE_PERCENT {
        sentence += &format!("{} on the device{depth}", neighbours.requests());
    } else {
        let by = case.held_by().map_or("".into(), |by| format!(", mostly for {by}"));
        let on_device = time(wait_ns - queued_ns);
        sentence += &format!("{whose}: {} in the queue{by}, and {on_device} on the device{depth}", time(queued_ns));
    }
    sentence.extend(price(case, queue_ns, device_ns, alone));
    Some(sentence)
}

/// Gain and cost of a latency goal, as the end of a sentence.
fn price(case: &Case, queue_ns: u64, device_ns: u64, alone: Alone) -> Option<String> {
    let neighbours = &case.neighbours;
    if neighbours.has_goal || !neighbours.has_depth {
        return None;
    }
    if neighbours.found.is_none() {
        return Some("; D is a number, so a latency goal would change nothing".to_owned());
    }
    if shallower(neighbours).next().is_none() {
        return Some("; the price of a latency goal is not known yet".to_owned());
    }
    let total_ns = queue_ns + device_ns;
    let least_ns = if alone.is_sure { alone.ns } else { 0 };
    let brought = |tried: Tried| {
        let ns = (queue_ns + times(device_ns, ratio(tried.stay_log))).max(least_ns);
        (ns * P90_PERCENT / 100, ratio(tried.work_log).min(1.0))
    };
    let is_worth = |goal_ns: u64| goal_ns * 100 <= total_ns * (100 - WORTH_PERCENT);
    let worth = shallower(neighbours).map(brought).filter(|(goal_ns, _)| is_worth(*goal_ns));
    let (whose, others) = (neighbours.names(), neighbours.served.saturating_sub(case.flow.served));
    let others = others as f64 / neighbours.served.max(1) as f64;
    let cost = |kept: f64| match ((1.0 - kept) / others.max(0.01) * 100.0).min(100.0).round() as u64 {
        0 => "less than 1%".to_owned(),
        percent => format!("{percent}%"),
    };
    // The floor of the device may be another one: a tenant without a goal does not know it.
    let floor = f64::from(Goals::default().floor_thousandths);
    let is_allowed = |kept: f64| kept * 1000.0 >= floor;
    let (allowed, refused): (Vec<_>, Vec<_>) = worth.partition(|(_, kept)| is_allowed(*kept));
    if let Some((goal_ns, kept)) = allowed.into_iter().min_by_key(|(goal_ns, _)| *goal_ns) {
        return Some(format!("; a goal of {} would cost {whose} {}", time(goal_ns), cost(kept)));
    }
    let dear = refused.into_iter().max_by_key(|(goal_ns, _)| *goal_ns);
    let text = match dear {
        Some((goal_ns, kept)) => {
            format!(
                "; a goal of {} would cost {whose} {}, more than the default floor allows",
                time(goal_ns),
                cost(kept)
            )
        }
        None => "; of the depths that were tried none would bring much".to_owned(),
    };
    Some(text)
}

/// Whose requests the device works at, where it is not known how long a request takes alone.
pub(super) fn beside(case: &Case) -> Option<String> {
    let neighbours = &case.neighbours;
    let (name, percent) = neighbours.most.as_ref().filter(|_| neighbours.hold_most())?;
    let is_known = alone(case).is_some_and(|alone| alone.is_sure);
    let depth = neighbours.shown_depth();
    let text = format!(
        "; {name} has {percent}% of the work on the device{depth}, and how long a request takes alone is not known yet"
    );
    (!is_known).then_some(text)
}

/// Writes and the flush after them as one chain, as the end of a sentence, if the tenant flushes.
pub(super) fn chain(case: &Case) -> Option<String> {
    let flow = &case.flow;
    let [_, write, flush] = flow.ops;
    if flush.requests < FLUSHES_MIN || write.requests == 0 || write.requests > flush.requests * WRITES_MAX {
        return None;
    }
    let writes = tenths(write.requests, flush.requests);
    let in_flight = (flow.queued_ns + flow.device_ns).saturating_mul(100) / flow.active_ns.max(1);
    if in_flight > super::ONE_HUNDREDTHS {
        let [write_ns, flush_ns] = [write, flush].map(|op| time(op.total_ns / op.requests));
        return Some(format!("; a flush takes {flush_ns} and the {writes} writes before it {write_ns} each"));
    }
    let ns = (write.total_ns + flush.total_ns) / flush.requests;
    let [_, write_alone, flush_alone]: [Option<Alone>; OPS] = flow.alone;
    let alone_ns = write_alone.zip(flush_alone).filter(|(write, flush)| write.is_sure && flush.is_sure);
    let alone_ns = alone_ns
        .map(|(of_write, of_flush)| (of_write.ns * write.requests + of_flush.ns * flush.requests) / flush.requests);
    let times = alone_ns.filter(|alone_ns| *alone_ns > 0).map(|alone_ns| tenths(ns.max(alone_ns), alone_ns));
    let times = times.map_or("".into(), |times| format!(", {times} times as long as alone"));
    Some(format!("; a flush and the {writes} writes before it take {} one after another{times}", time(ns)))
}
