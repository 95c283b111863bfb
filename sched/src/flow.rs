//! Flows: the unit of fairness. Identity, weight, and the finish tag that all queues share.
//!
//! Answers: which interval of virtual time does the next request of this flow get, whichever queue it arrives at?
//! Source: MQFQ section 2 (tags), Figure 2 ("end tag of last submitted request"), section 3.1 (one shared integer per
//! flow, advanced by fetch-and-add).
//!
//! # Shape
//! One cell of two cache lines per flow: `finish` (end tag of the last submitted request), `units_per_cost` (the weight
//! as a reciprocal, so that no request divides) and `carry` (what rounding has kept back).
//!
//! ```text
//!   start tag  = later(global virtual time, finish)            finish |--r1--|---r2---|-r3-|
//!   finish    := start tag + cost / weight                            ^ start tags tile the axis while backlogged
//! ```
//!
//! Every tag is a multiple of [`TAG_GRAIN`] (64 units, 1/16 byte at the default weight): the mindicator keeps 58 bits
//! of a tag, and a minimum that is rounded differs from the tag that it stands for, which at T = 0 would throttle even
//! the first queue for ever. The fraction that a request loses to the grain is carried to the flow's next request.
//!
//! # Invariants
//! F1. A start tag is never before the global virtual time that was passed in (I7: no credit for idleness).
//! F2. No two requests of one flow get overlapping intervals, on however many queues they arrive (I9).
//! F3. The spans of any run of requests of one flow, at constant weight, sum to cost / weight within one grain.
//! F4. A finish tag is never more than a quarter of the circle behind global virtual time:
//!     [`FlowTable::refresh_if_due`].
//!
//! # Why "max, then add" in two steps is enough
//! | step | A submits, global virtual time 100     | B submits, same flow, global virtual time 140 | finish |
//! |------|----------------------------------------|-----------------------------------------------|--------|
//! |  1   | finish := max(finish, 100)             |                                               |   100  |
//! |  2   |                                        | finish := max(finish, 140)                    |   140  |
//! |  3   |                                        | start tag := fetch_add(finish, 10) = 140      |   150  |
//! |  4   | start tag := fetch_add(finish, 10) = 150 |                                             |   160  |
//! Between A's two steps others can only raise `finish`, so A still starts at or after 100 (F1), and the add hands each
//! interval to exactly one caller (F2). The pair behaves as if it happened at the add.
//!
//! # Orderings
//! Relaxed throughout: each word is only ever changed by atomic read-modify-write and no other memory is published
//! through it. Submissions that are ordered by happens-before are ordered in `finish` by coherence.
//!
//! # Cost
//! One load and one add on a line that is shared only by the queues that serve this flow, and a multiplication; a
//! second add when cost / weight has a fraction. Refresh: one pass over all flows each time global virtual time crosses
//! an eighth of the circle (2.3e18 units: 9 days at 3 GB/s and default weight, 4 minutes at 100 GB/s and weight 1).

use crate::cost::{COST_MAX, Cost};
use crate::sync::{AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::vtime::{UNITS_PER_BYTE, VSpan, VTime};
use std::fmt;

/// Names one flow of a scheduler: an index, 0-based, dense.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowId(pub u32);

/// A configured weight, 1..=10000, default 100, as cgroup v2 `io.weight`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Weight(u16);

/// A weight outside 1..=10000.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WeightOutOfRange(pub u64);

impl fmt::Display for WeightOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weight {} is out of range, allowed is 1 to 10000", self.0)
    }
}

impl std::error::Error for WeightOutOfRange {}

impl Weight {
    /// Smallest weight.
    pub const MIN: Weight = Weight(1);
    /// Weight of a flow that says nothing.
    pub const DEFAULT: Weight = Weight(100);
    /// Largest weight.
    pub const MAX: Weight = Weight(10_000);

    /// A weight of `value`.
    ///
    /// # Errors
    /// [`WeightOutOfRange`] outside 1..=10000; never a clamp.
    pub const fn new(value: u64) -> Result<Weight, WeightOutOfRange> {
        if value >= 1 && value <= 10_000 { Ok(Weight(value as u16)) } else { Err(WeightOutOfRange(value)) }
    }

    /// The number, 1..=10000.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Weight::DEFAULT
    }
}

/// Every start and finish tag is a multiple of this many units, and so must be the virtual time that a scheduler starts
/// at. Equals the resolution of a mindicator node.
pub const TAG_GRAIN: VSpan = VSpan(64);

/// Bits of fraction in `units_per_cost`.
const FRACTION_BITS: u32 = 32;

/// log2 of the grain, in the fixed point of `carry`.
const GRAIN_BITS: u32 = FRACTION_BITS + TAG_GRAIN.0.trailing_zeros();

const _: () = assert!(TAG_GRAIN.0.is_power_of_two());
// The longest interval, 1 TiB at weight 1, is below 2^57 units: a 64th of what compares.
const _: () = assert!((COST_MAX.0 as u128 * units_per_cost(Weight::MIN) as u128) >> FRACTION_BITS < 1 << 57);

/// Units of virtual time per unit of cost, in 2^-32ths, rounded to nearest: off by less than 3e-11 of its value.
pub(crate) const fn units_per_cost(weight: Weight) -> u64 {
    let numerator = (UNITS_PER_BYTE * Weight::DEFAULT.0 as u64) << FRACTION_BITS;
    (numerator + weight.0 as u64 / 2) / weight.0 as u64
}

/// The part of the circle that a point lies in, 0..=7.
const fn octant(point: VTime) -> u64 {
    point.raw() >> 61
}

/// A request's interval of virtual time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// Where it starts: the request's place in its queue.
    pub start_tag: VTime,
    /// Where it ends, and the flow's next request starts if it comes soon enough.
    pub finish_tag: VTime,
}

/// One flow's shared words. Two lines, because processors fetch lines in pairs.
#[repr(align(128))]
struct FlowCell {
    finish: AtomicU64,
    units_per_cost: AtomicU64,
    /// Sum of the fractions below the grain; only the low `GRAIN_BITS` bits mean something.
    carry: AtomicU64,
    weight: AtomicU32,
}

/// All flows of one scheduler.
pub struct FlowTable {
    cells: Box<[FlowCell]>,
    /// Octant of global virtual time at the last refresh.
    refreshed: AtomicU64,
}

impl FlowTable {
    /// Flows `0..weights.len()`, none of which has been served. `start` is rounded down to [`TAG_GRAIN`].
    pub fn new(weights: &[Weight], start: VTime) -> Self {
        let start = align(start);
        let cell = |&weight: &Weight| FlowCell {
            finish: AtomicU64::new(start.raw()),
            units_per_cost: AtomicU64::new(units_per_cost(weight)),
            carry: AtomicU64::new(0),
            weight: AtomicU32::new(u32::from(weight.0)),
        };
        FlowTable { cells: weights.iter().map(cell).collect(), refreshed: AtomicU64::new(octant(start)) }
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Takes the flow's next interval, of length `cost / weight`, at or after `global_vtime`.
    ///
    /// # Panics
    /// If the flow is unknown, or the cost is 0 or more than [`COST_MAX`]: a free request would let a tenant submit
    /// without end at one start tag.
    pub fn charge(&self, flow: FlowId, cost: Cost, global_vtime: VTime) -> Interval {
        assert!(cost.0 >= 1 && cost <= COST_MAX, "cost {} is out of range, allowed is 1 to {}", cost.0, COST_MAX.0);
        let cell = self.cell(flow);
        // Relaxed: whichever of two concurrent weights we meet, the request is charged at one of them.
        let span_fixed = u128::from(cost.0) * u128::from(cell.units_per_cost.load(Relaxed));
        let mut grains = (span_fixed >> GRAIN_BITS) as u64;
        let fraction = span_fixed as u64 & FRACTION_MASK;
        if fraction != 0 {
            // Relaxed: a sum of which each adder takes the overflow that it caused, in whatever order they come. That
            // the word itself wraps is harmless: 2^64 is a multiple of the grain.
            let before = cell.carry.fetch_add(fraction, Relaxed) & FRACTION_MASK;
            grains += (before + fraction) >> GRAIN_BITS;
        }
        let span = grains * TAG_GRAIN.0;
        raise(&cell.finish, global_vtime);
        // Relaxed: see the module's table.
        let start_tag = VTime::from_raw(cell.finish.fetch_add(span, Relaxed));
        Interval { start_tag, finish_tag: start_tag.plus(VSpan(span)) }
    }

    /// Changes a weight, from the next request on.
    ///
    /// # Panics
    /// If the flow is unknown.
    pub fn set_weight(&self, flow: FlowId, weight: Weight) {
        let cell = self.cell(flow);
        // Relaxed: two words that nobody reads together; `weight` is only what `FlowTable::weight` reports.
        cell.weight.store(u32::from(weight.0), Relaxed);
        cell.units_per_cost.store(units_per_cost(weight), Relaxed);
    }

    /// The weight set last.
    ///
    /// # Panics
    /// If the flow is unknown.
    pub fn weight(&self, flow: FlowId) -> Weight {
        // Relaxed: a report.
        Weight(self.cell(flow).weight.load(Relaxed) as u16)
    }

    /// Finish tag of the last request submitted.
    ///
    /// # Panics
    /// If the flow is unknown.
    pub fn finish_tag(&self, flow: FlowId) -> VTime {
        // Relaxed: a report.
        VTime::from_raw(self.cell(flow).finish.load(Relaxed))
    }

    /// Keeps idle flows comparable (F4). Call whenever global virtual time was looked at; costs one load unless it has
    /// crossed into the next octant of the circle, and then one caller passes over all flows.
    ///
    /// A flow whose finish tag lies before global virtual time starts at global virtual time anyway, so raising the
    /// finish tag there changes nothing that the flow gets. Left alone, the tag of a flow that sleeps for half a circle
    /// would one day look as if it lay in the future, and the flow would be throttled until virtual time got there.
    pub fn refresh_if_due(&self, global_vtime: VTime) {
        let now = octant(global_vtime);
        // Relaxed: only elects the one who refreshes. Whoever sees an old octant tries and loses.
        let seen = self.refreshed.load(Relaxed);
        let ahead = now.wrapping_sub(seen) & 7;
        // 5..=7 ahead is 1..=3 behind: a worker that looked at global virtual time before the one that refreshed last.
        if ahead != 0 && ahead < 5 && self.refreshed.compare_exchange(seen, now, Relaxed, Relaxed).is_ok() {
            for cell in &self.cells {
                raise(&cell.finish, global_vtime);
            }
        }
    }

    fn cell(&self, flow: FlowId) -> &FlowCell {
        let count = self.cells.len();
        self.cells.get(flow.0 as usize).unwrap_or_else(|| panic!("flow {} does not exist, there are {count}", flow.0))
    }
}

const FRACTION_MASK: u64 = (1 << GRAIN_BITS) - 1;

/// The last multiple of [`TAG_GRAIN`] at or before `point`.
pub(crate) const fn align(point: VTime) -> VTime {
    VTime::from_raw(point.raw() & !(TAG_GRAIN.0 - 1))
}

/// `word := later(word, point)`, atomically.
fn raise(word: &AtomicU64, point: VTime) {
    // Relaxed: see the module's text.
    let mut seen = word.load(Relaxed);
    while VTime::from_raw(seen).is_before(point) {
        match word.compare_exchange_weak(seen, point.raw(), Relaxed, Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FLOW: FlowId = FlowId(0);

    fn table(weight: u64, start: VTime) -> FlowTable {
        FlowTable::new(&[Weight::new(weight).unwrap()], start)
    }

    #[test]
    fn backlogged_requests_tile_the_axis() {
        // 4096 bytes at weight 100 are 4096 * 1024 units; global virtual time stays at 0.
        let flows = table(100, VTime::ZERO);
        for n in 0..4 {
            let interval = flows.charge(FLOW, Cost(4096), VTime::ZERO);
            assert_eq!(interval.start_tag.raw(), n * 4096 * 1024);
            assert_eq!(interval.finish_tag.raw(), (n + 1) * 4096 * 1024);
        }
    }

    #[test]
    fn idle_flow_gets_no_credit() {
        let flows = table(100, VTime::ZERO);
        let interval = flows.charge(FLOW, Cost(1), VTime::from_raw(1 << 30));
        assert_eq!(interval.start_tag.raw(), 1 << 30);
    }

    #[test]
    fn smallest_requests_at_the_largest_weight_still_cost() {
        // 512 bytes at weight 10000 are 512 * 10.24 = 5242.88 units = 81.92 grains. 100 of them: 524288 units exactly,
        // less at most one grain that is still carried.
        let flows = table(10_000, VTime::ZERO);
        let mut finish = VTime::ZERO;
        for _ in 0..100 {
            let interval = flows.charge(FLOW, Cost(512), VTime::ZERO);
            assert!(interval.finish_tag.since(interval.start_tag) >= 81 * 64);
            finish = interval.finish_tag;
        }
        assert!((524_288 - 64..=524_288).contains(&finish.raw()), "{finish:?}");
    }

    #[test]
    fn carry_survives_idleness() {
        // A flow that always returns after global virtual time passed it pays in full too: cost 3 at weight 700 is
        // 438.86 units = 6.857 grains, so 7000 of them are 48000 grains less at most one, wherever they start.
        let flows = table(700, VTime::ZERO);
        let mut paid = 0;
        for n in 0..7000 {
            let interval = flows.charge(FLOW, Cost(3), VTime::from_raw(n * 6400));
            paid += interval.finish_tag.since(interval.start_tag);
        }
        assert!((48_000 * 64 - 64..=48_000 * 64).contains(&paid), "{paid}");
    }

    #[test]
    fn weight_changes_from_the_next_request_on() {
        let flows = table(100, VTime::ZERO);
        let first = flows.charge(FLOW, Cost(1000), VTime::ZERO);
        flows.set_weight(FLOW, Weight::new(200).unwrap());
        let second = flows.charge(FLOW, Cost(1000), VTime::ZERO);
        assert_eq!(first.finish_tag.since(first.start_tag), 1_024_000);
        assert_eq!((second.start_tag, second.finish_tag.since(second.start_tag)), (first.finish_tag, 512_000));
        assert_eq!(flows.weight(FLOW).get(), 200);
    }

    #[test]
    fn tags_cross_the_wrap() {
        let start = VTime::from_raw(u64::MAX - 1000);
        let flows = table(100, start);
        let first = flows.charge(FLOW, Cost(4), align(start));
        let second = flows.charge(FLOW, Cost(4), align(start));
        assert!(first.start_tag.is_before(second.start_tag));
        assert_eq!(second.start_tag.since(align(start)), 4096);
        assert!(second.start_tag.raw() < first.start_tag.raw(), "the test means to cross the wrap");
    }

    #[test]
    fn stale_finish_tag_does_not_come_back_from_the_future() {
        // The flow sleeps while virtual time goes once around. Without the refresh its finish tag would, from half a
        // circle on, compare as later than global virtual time.
        let flows = table(100, VTime::ZERO);
        let _ = flows.charge(FLOW, Cost(1), VTime::ZERO);
        let mut now = VTime::ZERO;
        for _ in 0..16 {
            now = now.plus(VSpan(1 << 60));
            flows.refresh_if_due(now);
            let gap = now.since(flows.finish_tag(FLOW));
            assert!((0..1 << 62).contains(&gap), "finish tag is {gap} units behind, F4 allows a quarter circle");
        }
        let interval = flows.charge(FLOW, Cost(1), now.plus(VSpan(64)));
        assert_eq!(interval.start_tag, now.plus(VSpan(64)));
    }

    #[test]
    fn worker_with_an_old_view_does_not_turn_the_refresh_back() {
        let flows = table(100, VTime::ZERO);
        flows.refresh_if_due(VTime::from_raw(1 << 61));
        flows.refresh_if_due(VTime::from_raw((1 << 61) - 64));
        assert_eq!(flows.refreshed.load(Relaxed), 1);
    }

    #[test]
    #[should_panic(expected = "flow 1 does not exist, there are 1")]
    fn unknown_flow_is_named() {
        let _ = table(100, VTime::ZERO).charge(FlowId(1), Cost(1), VTime::ZERO);
    }
}
