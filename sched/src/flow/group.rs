//! Groups of flows: a weight at each level, and shares that stay in the family.
//!
//! Answers: at which weight does a flow compete now, given its groups and which other members want service? Source: the
//! hierarchical weights of Linux's io.cost (`block/blk-iocost.c`: active weights, and donation of what is not used);
//! the ideal is nested virtual times, as in hierarchical SFQ (Goyal, Guo, Vin, OSDI 1996).
//!
//! # Example
//! Company A has weight 100 and the teams a1 (weight 1) and a2 (weight 3); company B has weight 100 and the team b.
//!
//! | demand | a1 | a2 | b | effective weights a1, a2, b |
//! |---|---|---|---|---|
//! | all, always | 1/8 | 3/8 | 1/2 | 25, 75, 100 |
//! | a2 nothing | 1/2 | 0 | 1/2 | 100, -, 100 |
//! | a1 nothing | 0 | 1/2 | 1/2 | -, 100, 100 |
//! | b nothing | 1/4 | 3/4 | 0 | 25, 75, - |
//! | a2 only 1/8 of the device | 3/8 | 1/8 | 1/2 | 75, 75, 100 |
//!
//! The effective weights of a group's members sum to the group's weight, whichever these are. So a change in A changes
//! nothing for B, and the share of an idle team goes to its siblings. The last row is why weights that only follow
//! activity would not do: a flow at depth 1 is active and uses little, and what it leaves must stay in A, too.
//!
//! # Shape
//! ```text
//!   group A, rate 100      price for the backlogged   (sum of their weights) / (rate - what the satisfied use)
//!    ├── a1  backlogged     for the others             (sum of active weights) / rate
//!    └── a2  satisfied      interval of a request = cost / weight * price of its group
//! ```
//! There is one axis of virtual time, that of `flow/account.rs`. A group has an own axis, cost over its members'
//! weights, and the *price* is how long a piece of it is on the common one: effective weight = weight / price. A
//! request multiplies its cost with one word of its flow, as without groups; a step writes that word where it differs.
//!
//! A flow is *idle*, *satisfied* or *backlogged*, by what it did since the last step: nothing; it let virtual time pass
//! its finish tag for more than 1/64 of the step; it did not. No request counts anything for this: virtual time passes
//! the finish tag of a flow that wants less than its part, and the charge that then raises the tag, which is one at
//! most for each time that the flow ran out of requests, adds up by how much. A group wants what its members want.
//!
//! A *step* comes once per period of virtual time and is made by one worker, the one that moves virtual time there
//! while no other makes one: it reads the finish tags of all flows in groups and sets all prices. A flow that was idle
//! and submits becomes satisfied at once, and its group's prices with it, before the request is charged.
//!
//! A request of a flow in a group gets its interval when it becomes its flow's first in its queue, and not when it is
//! submitted (`StageQueue`, "deferred"): else a flow with much staged would go at its old effective weight until that
//! is through, and two that take turns would for ever use each other's. With leases the requests behind the first get
//! theirs with it, as far as one lease goes: that is a small part of a step, and the slow path runs once per lease.
//!
//! # Invariants
//! H1. Whatever the members' demands: (sum of the backlogged's effective weights) + (what the satisfied used in the
//!     last step, per virtual time) = the group's rate, if there is a backlogged one; and the satisfied members'
//!     effective weights are at least weight / (sum of active weights) of the rate. The second is at most the first's
//!     price, so being satisfied is no advantage.
//! H2. Sums, prices and effective weights are written by the thread that holds `busy`. Any thread reads the last, each
//!     as one word, and never 0. An idle member's is what it gets if it comes: its weight counts beside those of the
//!     active, or in an idle group the heaviest member would get the group's rate. A newcomer has its own at once, its
//!     siblings theirs with the next step.
//! H3. A flow in no group reads and writes nothing of this.
//!
//! # Bounds
//! While demands do not change, each flow has one effective weight, so the bound of `policy/mqfq/mod.rs` holds with
//! it, and summed over the members f of a group G of rate R, with the group's service S over an interval of length V of
//! virtual time:
//!
//! ```text
//!   V - T - sum(l_f) / R  <=  S / R  <=  V + T + sum(l_f) / R      l_f: longest request, bytes; two groups: twice that
//! ```
//! A flow is a group of one. A change of demand adds, once each, to the group that it is in and to those above:
//!
//! * *Until it is seen*: a flow that falls idle is seen at the end of the second step at the latest, and so is one that
//!   becomes backlogged. It uses at most its effective weight r too much or too little for so long: 2 P r. What is too
//!   much when it comes is too little when it goes: the backlogged get in one step what the satisfied left in the step
//!   before, so over many steps the sum of what a group used is off by what the satisfied used in the last and in the
//!   first, and a flow that comes and goes does not add up (`a_flow_that_comes_and_goes_does_not_add_up`: within 1% of
//!   the share).
//! * *What has its interval keeps it*: one request for each queue that the flow is on, and with leases what is left of
//!   one, as after any change of a weight.
//!
//! P is eight windows, and more with many flows, so that a step is a small part of the work that is done meanwhile.
//!
//! For the example with T = 64 KiB and requests of 4 KiB: while all three teams ask, A and B differ by at most 2 * 64 +
//! 2 * 4 + 4 = 140 KiB over any interval, however long. P is 512 KiB, a step every 1 MiB of both companies' service, or
//! 0.35 ms at 3 GB/s; when a2 falls silent, A may lack up to 2 * 512 * 3/4 = 768 KiB, once.
//!
//! # Why not nested virtual times
//! They are exact, also in the last row of the example and within a step. They also need, for each group, a minimum, a
//! window and a wake-up of throttled queues over all workers. A request would pass one of each per level. The prices
//! cost a request nothing at all, and differ from the exact schedule by the lag above; `sched/tests/all/hierarchy.rs`
//! compares both, and also weights that only follow activity, which leave a1 in the last row a fifth of the rest, 7/40
//! of the device and not 3/8.
//!
//! # Orderings
//! `busy` is taken by Acquire and released by Release, so the thread that makes a step sees the sums of the last. All
//! else is Relaxed: an effective weight is one word that stands for itself, and a charge that meets an old one is a
//! charge that came before.

use super::weight::{FRACTION_BITS, FlowId, Weight, units_per_cost};
use crate::cost::Cost;
use crate::sync::CachePadded;
use crate::sync::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use crate::vtime::{UNITS_PER_BYTE, VSpan, VTime};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// Names one group of a scheduler: an index, 0-based, dense.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u32);

/// A group as it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its weight among its siblings; at the top, among the other groups there and the flows in no group.
    pub weight: Weight,
    /// The group that it is in; one with a smaller number. `None`: it is at the top.
    pub parent: Option<GroupId>,
}

/// The groups of one scheduler and their members. Empty: every flow competes by itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tree {
    /// Groups, by [`GroupId`].
    pub groups: Vec<Group>,
    /// Group of each flow; flows beyond the end are in no group.
    pub of_flow: Vec<Option<GroupId>>,
}

/// A tree that cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeError {
    /// The group's parent, or a flow's group, does not come before it or does not exist.
    NoSuchGroup(GroupId),
    /// More than [`Tree::DEPTH_MAX`] groups stand in each other; the innermost.
    TooDeep(GroupId),
    /// More than [`Tree::GROUPS_MAX`] groups.
    TooMany(usize),
    /// The tree names more flows than the scheduler has.
    NoSuchFlow(usize),
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeError::NoSuchGroup(group) => write!(f, "group {} is named before it is there", group.0),
            TreeError::TooDeep(group) => {
                write!(f, "group {} lies too deep, allowed are {} groups in each other", group.0, Tree::DEPTH_MAX)
            }
            TreeError::TooMany(count) => {
                write!(f, "{count} groups are too many, allowed is up to {}", Tree::GROUPS_MAX)
            }
            TreeError::NoSuchFlow(flow) => write!(f, "flow {flow} is in a group and does not exist"),
        }
    }
}

impl core::error::Error for TreeError {}

impl Tree {
    /// Most groups around a flow; with the flow itself, four levels.
    pub const DEPTH_MAX: usize = 3;
    /// Most groups: as many as flows of one device can be named.
    pub const GROUPS_MAX: usize = 1 << 20;

    /// No flow is in a group.
    pub fn is_empty(&self) -> bool {
        self.of_flow.iter().all(Option::is_none)
    }

    /// Checks it for so many flows.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self, flows: usize) -> Result<(), TreeError> {
        if self.groups.len() > Tree::GROUPS_MAX {
            return Err(TreeError::TooMany(self.groups.len()));
        }
        let mut depths: Vec<usize> = Vec::with_capacity(self.groups.len());
        for (group, of) in (0..).map(GroupId).zip(&self.groups) {
            let depth = match of.parent {
                None => 1,
                Some(parent) => 1 + *depths.get(parent.0 as usize).ok_or(TreeError::NoSuchGroup(parent))?,
            };
            if depth > Tree::DEPTH_MAX {
                return Err(TreeError::TooDeep(group));
            }
            depths.push(depth);
        }
        for (flow, group) in self.of_flow.iter().enumerate().filter_map(|(flow, group)| Some((flow, (*group)?))) {
            if flow >= flows {
                return Err(TreeError::NoSuchFlow(flow));
            }
            if group.0 as usize >= self.groups.len() {
                return Err(TreeError::NoSuchGroup(group));
            }
        }
        Ok(())
    }
}

/// A flow's weight as it competes now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EffectiveWeight {
    /// Weight in millionths; for a flow in no group its own weight.
    pub millionths: u64,
    /// The flow has wanted service lately. Shares are parts of the sum over flows that have.
    pub competes: bool,
}

/// Demand of a flow, as the last step saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Demand {
    Idle = 0,
    Satisfied = 1,
    Backlogged = 2,
}

impl Demand {
    const fn of(word: u64) -> Demand {
        match word {
            0 => Demand::Idle,
            1 => Demand::Satisfied,
            _ => Demand::Backlogged,
        }
    }
}

/// The factor from a group's axis to the common one: a mantissa of 32 bits and how many bits of it are a fraction, in
/// one word. From 2^-46 to 2^32, to 2^-30 of its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Price(u64);

/// Longest interval of a flow in a group: 2^57 units, as of the longest request at weight 1 (`flow/account.rs`), in
/// 2^-32ths.
const SPAN_MAX_FIXED: u128 = 1 << (57 + FRACTION_BITS);

/// The lightest that a flow can effectively be: 5e-5 of a weight.
const UNITS_PER_COST_MAX: u64 = 1 << 63;

impl Price {
    const SHIFT_MAX: i32 = 46;

    /// `over / under`, or the nearest there is. `over` is below 2^76.
    fn ratio(over: u128, under: u128) -> Price {
        let under = under.max(1);
        let bits = |number: u128| 128 - number.leading_zeros() as i32;
        // The quotient gets 31 or 32 bits.
        let shift = (31 + bits(under) - bits(over)).clamp(0, Price::SHIFT_MAX);
        let mantissa = ((over << shift) / under).clamp(1, u128::from(u32::MAX)) as u64;
        Price(mantissa | (shift as u64) << 32)
    }

    /// Price of members whose weights share a rate.
    fn of_parts((rate, weights): (u64, u64)) -> Price {
        Price::ratio(u128::from(weights) << RATE_BITS, rate.into())
    }

    const fn mantissa(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    const fn shift(self) -> u64 {
        self.0 >> 32
    }

    /// Units per cost at this price, if there are so many at price 1; both in 2^-32ths.
    const fn of(self, units_per_cost: u64) -> u64 {
        let units = (units_per_cost as u128 * self.mantissa() as u128) >> self.shift();
        if units > UNITS_PER_COST_MAX as u128 { UNITS_PER_COST_MAX } else { units as u64 }
    }
}

/// State of a flow in a group; not used for a flow in no group.
#[derive(Debug)]
pub(crate) struct Member {
    /// Units per cost at its effective weight, in 2^-32ths: the factor of a charge.
    units_per_cost: AtomicU64,
    /// Its group, if it is in one.
    group: u32,
    demand: AtomicU32,
}

/// Value of a field without a group or parent.
const NOBODY: u32 = u32::MAX;

impl Member {
    /// State of a flow in no group.
    pub(crate) fn nobody() -> Member {
        Member { units_per_cost: AtomicU64::new(0), group: NOBODY, demand: AtomicU32::new(0) }
    }

    /// State of a flow of `group`.
    pub(crate) fn of(group: GroupId) -> Member {
        Member { group: group.0, ..Member::nobody() }
    }

    /// State of a flow in no group that is charged late, at its own weight.
    pub(crate) fn alone(weight: Weight) -> Member {
        Member { units_per_cost: AtomicU64::new(units_per_cost(weight)), ..Member::nobody() }
    }

    /// Its flow is in no group.
    pub(crate) fn is_alone(&self) -> bool {
        self.group == NOBODY
    }

    /// Another rate of a flow in no group.
    pub(crate) fn set_alone(&self, units_per_cost: u64) {
        // Relaxed: whichever of two rates a charge meets, it is charged at one.
        self.units_per_cost.store(units_per_cost, Relaxed);
    }

    /// `cost / effective weight` in 2^-32ths of a unit.
    #[inline]
    pub(crate) fn span_fixed(&self, cost: Cost) -> u128 {
        span_fixed_at(self.units_per_cost(), cost)
    }

    /// The weight at which it competes.
    pub(crate) fn effective_weight(&self) -> EffectiveWeight {
        let at_weight_1 = u128::from(units_per_cost(Weight::MIN)) * 1_000_000;
        let millionths = at_weight_1 / u128::from(self.units_per_cost().max(1));
        EffectiveWeight { millionths: millionths as u64, competes: self.demand() != Demand::Idle }
    }

    /// The effective weight in 2^-40ths.
    fn rate(&self) -> u64 {
        let at_weight_1 = u128::from(units_per_cost(Weight::MIN)) << RATE_BITS;
        let rate = at_weight_1 / u128::from(self.units_per_cost().max(1));
        rate.min(u128::from(Weight::MAX.get()) << RATE_BITS) as u64
    }

    /// Factor of a charge now, in 2^-32ths.
    #[inline]
    pub(crate) fn units_per_cost(&self) -> u64 {
        // Relaxed: a report, under `busy`, or whichever of two effective weights we meet, a request is charged at one.
        self.units_per_cost.load(Relaxed)
    }

    fn demand(&self) -> Demand {
        // Relaxed: says whether to wake it; the waker looks again under `busy`.
        Demand::of(self.demand.load(Relaxed).into())
    }

    /// As [`Member::demand`], on the path.
    #[inline(always)]
    fn is_idle(&self) -> bool {
        // Relaxed: as `demand`.
        self.demand.load(Relaxed) == Demand::Idle as u32
    }

    fn set_demand(&self, demand: Demand) {
        // Relaxed: under `busy`.
        self.demand.store(demand as u32, Relaxed);
    }
}

/// Interval of a flow in a group, in 2^-32ths of a unit: `cost` at `units_per_cost`, in the same fraction.
#[inline]
pub(crate) fn span_fixed_at(units_per_cost: u64, cost: Cost) -> u128 {
    let span = u128::from(cost.0) * u128::from(units_per_cost);
    if span < SPAN_MAX_FIXED { span } else { SPAN_MAX_FIXED }
}

/// One group: a line that its members' charges read, and one for the thread that makes a step.
struct Cell {
    prices: CachePadded<Prices>,
    sums: CachePadded<Sums>,
}

/// [`Price`]s of the members that compete.
struct Prices {
    backlogged: AtomicU64,
    others: AtomicU64,
}

/// Held together by `busy`, but for the weight, which is set at any time and read by the next step.
struct Sums {
    parent: u32,
    weight: AtomicU64,
    /// [`Demand`] of the whole group.
    demand: AtomicU64,
    backlogged_weight: AtomicU64,
    satisfied_weight: AtomicU64,
    /// Use of the satisfied members per unit of virtual time, as a rate.
    satisfied_use: AtomicU64,
    /// Largest weight of any member.
    heaviest: AtomicU64,
    /// Effective weight of the whole group, in 2^-40ths.
    rate: AtomicU64,
}

/// Fraction bits of a rate: the largest weight is below 2^54, the smallest rate that counts is 2^-40.
const RATE_BITS: u32 = 40;

/// The part of a step that a backlogged flow may let pass: requests that end and others that come are never quite at
/// once.
const BACKLOGGED_PART: u64 = 64;

/// The groups of a scheduler at work. See the file's text.
pub(crate) struct Hierarchy {
    cells: Box<[Cell]>,
    /// The flows in groups.
    flows: Box<[u32]>,
    /// Lines of their own: charges read them, and a step or a flow that wakes writes them.
    steps: CachePadded<Steps>,
}

/// Steps of the prices: whether one is being made, and when.
struct Steps {
    /// See [`Hierarchy::set_period`].
    base_period: AtomicU64,
    busy: AtomicU32,
    /// When the last step was, and when the next is due.
    last: AtomicU64,
    next: AtomicU64,
}

impl Hierarchy {
    /// A step is worth 16 KiB of service for each flow that it looks at.
    const BYTES_PER_FLOW: u64 = 16 << 10;

    /// The groups of `tree`, which has been validated, at virtual time `start`. A step comes once per `period` or more.
    pub(crate) fn new(tree: &Tree, period: VSpan, start: VTime) -> Hierarchy {
        let cell = |group: &Group| Cell {
            prices: CachePadded::new(Prices { backlogged: AtomicU64::new(0), others: AtomicU64::new(0) }),
            sums: CachePadded::new(Sums {
                parent: group.parent.map_or(NOBODY, |parent| parent.0),
                weight: AtomicU64::new(group.weight.get().into()),
                demand: AtomicU64::new(0),
                backlogged_weight: AtomicU64::new(0),
                satisfied_weight: AtomicU64::new(0),
                satisfied_use: AtomicU64::new(0),
                heaviest: AtomicU64::new(0),
                rate: AtomicU64::new(0),
            }),
        };
        let flows = tree.of_flow.iter().zip(0..).filter_map(|(group, flow)| group.map(|_| flow)).collect();
        Hierarchy {
            cells: tree.groups.iter().map(cell).collect(),
            flows,
            steps: CachePadded::new(Steps {
                base_period: AtomicU64::new(period.0),
                busy: AtomicU32::new(0),
                last: AtomicU64::new(start.raw()),
                next: AtomicU64::new(start.raw()),
            }),
        }
    }

    fn price(&self, member: &Member, weight: Weight) -> Price {
        let Cell { prices, sums } = &self.cells[member.group as usize];
        match member.demand() {
            Demand::Backlogged => Price(get(&prices.backlogged)),
            Demand::Satisfied => Price(get(&prices.others)),
            Demand::Idle => sums.newcomers_price(weight),
        }
    }

    /// The effective weight of a member, from the price that it pays.
    fn set_effective(&self, member: &Member, weight: Weight) {
        let units = self.price(member, weight).of(units_per_cost(weight));
        // Relaxed: see "Orderings". Not written if it is so: charges of other workers read it.
        if member.units_per_cost() != units {
            member.units_per_cost.store(units, Relaxed);
        }
    }

    /// A member submits that may have nothing staged anywhere: an idle one competes from now on.
    #[inline(always)]
    pub(crate) fn wants(&self, member: &Member, weight: Weight) {
        if member.is_idle() {
            self.wake(member, weight);
        }
    }

    #[inline(never)]
    fn wake(&self, member: &Member, weight: Weight) {
        if !self.enter() {
            // Idle for one more request, or until the next step.
            self.hasten();
            return;
        }
        if member.demand() != Demand::Idle {
            // Another worker was here first.
            return self.leave();
        }
        member.set_demand(Demand::Satisfied);
        let mut chain = [NOBODY; Tree::DEPTH_MAX];
        let (mut at, mut added) = (member.group, u64::from(weight.get()));
        for link in &mut chain {
            *link = at;
            let sums = &self.cells[at as usize].sums;
            add(&sums.satisfied_weight, added);
            if sums.demand() != Demand::Idle {
                break;
            }
            put(&sums.demand, Demand::Satisfied as u64);
            (at, added) = (sums.parent, get(&sums.weight));
            if at == NOBODY {
                break;
            }
        }
        chain.iter().rev().filter(|group| **group != NOBODY).for_each(|group| self.set_prices(*group as usize));
        self.set_effective(member, weight);
        self.leave();
    }

    /// Makes a step if one is due. `look` gives a flow's member and weight, `skipped` by how much virtual time has
    /// passed its finish tag since it was asked last, and whether that tag is ahead of virtual time now.
    pub(crate) fn step_if_due<'a>(
        &self,
        now: VTime,
        look: impl Fn(FlowId) -> (&'a Member, Weight),
        skipped: impl Fn(FlowId) -> (VSpan, bool),
    ) {
        if now.is_before(VTime::from_raw(get(&self.steps.next))) || !self.enter() {
            return;
        }
        // Another may have made the step between the look and the entry.
        let passed = now.since(VTime::from_raw(get(&self.steps.last)));
        if passed > 0 {
            let passed = passed as u64;
            self.sum(look, |flow, member| {
                let (VSpan(skipped), is_ahead) = skipped(flow);
                let skipped = skipped.min(passed);
                let demand = match skipped {
                    all if all == passed && !is_ahead => Demand::Idle,
                    some if some > passed / BACKLOGGED_PART => Demand::Satisfied,
                    _ => Demand::Backlogged,
                };
                member.set_demand(demand);
                (u128::from(member.rate()) * u128::from(passed - skipped) / u128::from(passed)) as u64
            });
            put(&self.steps.last, now.raw());
            put(&self.steps.next, now.plus(self.period()).raw());
        }
        self.leave();
    }

    /// A weight has changed: the prices follow at once, or with the next step if another thread is at them. `look` as
    /// above.
    pub(crate) fn reweigh<'a>(&self, look: impl Fn(FlowId) -> (&'a Member, Weight)) {
        if !self.enter() {
            self.hasten();
            return;
        }
        // Use is not known between steps. Taken for nothing until the next, the backlogged get more, as after each
        // newcomer.
        self.sum(look, |_, _| 0);
        self.leave();
    }

    /// A step comes once per `period` or more, from the next one on.
    pub(crate) fn set_period(&self, period: VSpan) {
        put(&self.steps.base_period, period.0);
    }

    /// Changes a group's weight; [`Hierarchy::reweigh`] comes next.
    ///
    /// # Panics
    /// If there is no such group.
    pub(crate) fn set_weight(&self, group: GroupId, weight: Weight) {
        put(&self.cells[group.0 as usize].sums.weight, weight.get().into());
    }

    /// The weight at which a whole group competes.
    ///
    /// # Panics
    /// If there is no such group.
    pub(crate) fn effective_weight_of(&self, group: GroupId) -> EffectiveWeight {
        let sums = &self.cells[group.0 as usize].sums;
        let millionths = ((u128::from(get(&sums.rate)) * 1_000_000) >> RATE_BITS) as u64;
        EffectiveWeight { millionths, competes: sums.demand() != Demand::Idle }
    }

    /// Number of groups.
    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Sets all sums, prices and effective weights anew. `used` returns a flow's use, as a rate.
    fn sum<'a>(&self, look: impl Fn(FlowId) -> (&'a Member, Weight), used: impl Fn(FlowId, &Member) -> u64) {
        for cell in &self.cells {
            let sums = &cell.sums;
            for word in [&sums.backlogged_weight, &sums.satisfied_weight, &sums.satisfied_use, &sums.heaviest] {
                put(word, 0);
            }
        }
        for &flow in &self.flows {
            let (member, weight) = look(FlowId(flow));
            let used = used(FlowId(flow), member);
            self.cells[member.group as usize].sums.admit(member.demand(), u64::from(weight.get()), used);
        }
        // From the leaves: a group has a larger number than its parent.
        for sums in self.cells.iter().rev().map(|cell| &cell.sums) {
            let demand = if get(&sums.backlogged_weight) > 0 {
                Demand::Backlogged
            } else if get(&sums.satisfied_weight) > 0 {
                Demand::Satisfied
            } else {
                Demand::Idle
            };
            put(&sums.demand, demand as u64);
            if let Some(parent) = self.cells.get(sums.parent as usize) {
                parent.sums.admit(demand, get(&sums.weight), get(&sums.satisfied_use));
            }
        }
        (0..self.cells.len()).for_each(|group| self.set_prices(group));
        for &flow in &self.flows {
            let (member, weight) = look(FlowId(flow));
            self.set_effective(member, weight);
        }
    }

    /// The rate and the prices of a group, from its parent's (H1).
    fn set_prices(&self, group: usize) {
        let Cell { prices, sums } = &self.cells[group];
        let weight = get(&sums.weight);
        let rate = match self.cells.get(sums.parent as usize) {
            None => weight << RATE_BITS,
            Some(parent) => {
                let Parts { backlogged, others } = parent.sums.parts();
                let (rate, weights) = match sums.demand() {
                    Demand::Idle => (others.0, others.1 + weight),
                    Demand::Satisfied => others,
                    Demand::Backlogged => backlogged,
                };
                (u128::from(rate) * u128::from(weight) / u128::from(weights)) as u64
            }
        };
        put(&sums.rate, rate.max(1));
        let Parts { backlogged, others } = sums.parts();
        for (word, parts) in [(&prices.backlogged, backlogged), (&prices.others, others)] {
            put(word, Price::of_parts(parts).0);
        }
    }

    /// Virtual time from one step to the next.
    fn period(&self) -> VSpan {
        // A light group is served a byte for a long piece of virtual time.
        let tops = self.cells.iter().filter(|cell| cell.sums.parent == NOBODY);
        let lightest = tops.map(|cell| get(&cell.sums.weight)).min().unwrap_or(1);
        let bytes = self.flows.len() as u64 * Hierarchy::BYTES_PER_FLOW;
        let units = bytes * UNITS_PER_BYTE * u64::from(Weight::DEFAULT.get()) / lightest;
        VSpan(get(&self.steps.base_period).max(units))
    }

    fn enter(&self) -> bool {
        // Acquire: pairs with the Release in `leave`. Relaxed: a look, and nothing is read if another is inside.
        self.steps.busy.load(Relaxed) == 0 && self.steps.busy.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }

    fn leave(&self) {
        // Release: pairs with the Acquire in `enter`.
        self.steps.busy.store(0, Release);
    }

    /// The next look finds a step due.
    fn hasten(&self) {
        // A step under way may overwrite it, and has then seen the newcomer or leaves it to the next.
        put(&self.steps.next, get(&self.steps.last));
    }
}

/// The rate and the weights that share it, for the two kinds of members.
struct Parts {
    backlogged: (u64, u64),
    others: (u64, u64),
}

impl Sums {
    fn demand(&self) -> Demand {
        Demand::of(get(&self.demand))
    }

    fn admit(&self, demand: Demand, weight: u64, used: u64) {
        match demand {
            Demand::Idle => {}
            Demand::Satisfied => {
                add(&self.satisfied_weight, weight);
                add(&self.satisfied_use, used);
            }
            Demand::Backlogged => add(&self.backlogged_weight, weight),
        }
        put(&self.heaviest, get(&self.heaviest).max(weight));
    }

    fn parts(&self) -> Parts {
        let rate = get(&self.rate);
        let (backlogged, satisfied) = (get(&self.backlogged_weight), get(&self.satisfied_weight));
        if backlogged + satisfied == 0 {
            // No member wants anything: a newcomer while the sums cannot be changed gets no more than all.
            let all = (rate, get(&self.heaviest).max(1));
            return Parts { backlogged: all, others: all };
        }
        let others = (rate, backlogged + satisfied);
        // Not more than what the satisfied may use; the rest is not their doing.
        let may_use = (u128::from(rate) * u128::from(satisfied) / u128::from(backlogged + satisfied)) as u64;
        let left = rate - get(&self.satisfied_use).min(may_use);
        Parts { backlogged: if backlogged == 0 { others } else { (left, backlogged) }, others }
    }

    /// Price of an idle member of this weight, if it comes while the sums cannot be changed.
    fn newcomers_price(&self, weight: Weight) -> Price {
        let active = get(&self.backlogged_weight) + get(&self.satisfied_weight);
        match active {
            0 => Price::of_parts(self.parts().others),
            _ => Price::of_parts((get(&self.rate), active + u64::from(weight.get()))),
        }
    }
}

/// A word that is changed under `busy` alone, or stands for itself.
fn get(word: &AtomicU64) -> u64 {
    // Relaxed: `busy` orders it, or nothing is read by it ("Orderings").
    word.load(Relaxed)
}

fn put(word: &AtomicU64, value: u64) {
    // Relaxed: as `get`.
    word.store(value, Relaxed);
}

fn add(word: &AtomicU64, more: u64) {
    put(word, get(word) + more);
}

#[cfg(all(test, mqfq_loom))]
mod loom_tests;
#[cfg(all(test, not(mqfq_loom), not(watched)))]
mod tests;
