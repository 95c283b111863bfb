//! A latency goal beside shares: a cap on D, while a tenant that has a goal is active.
//!
//! Answers: how far below the found D must D be, so that nine of ten small requests of a tenant complete within its
//! goal? Source: Little's law, since a request waits on the device behind D units; kyber and Seastar hold goals by the
//! same lever, without shares. The page is docs/inside/goal.md.
//!
//! # Shape
//! ```text
//!            active                 missed: cap = D x 7/8 goal / p90              every LOOK_PERIODS
//!   Off ──────────────▶ Free ────────────────────────────────────▶ Capped ─────────────────────────▶ Look
//!    ▲                   │ ▲     the period is the reference         │ ▲     no cap, new reference      │
//!    └── inactive for ───┘ └──────── the cap reaches the found D ────┘ └────────────────────────────────┘
//!        ACTIVE_NS
//! ```
//! A *period* begins after a change of D, once what was out and a quarter more has completed. It lasts until each
//! active goal has [`JUDGED`] requests, or for [`PERIOD_NS`] if one has [`JUDGED_MIN`]. A goal is missed in it if more
//! than a tenth of its requests took longer.
//!
//! | at the end of a period | then |
//! |---|---|
//! | throughput below the floor | the cap is raised to where the floor is; the cap that was too low is remembered |
//! | a goal missed, and a lower cap is above the floor | cap x 7/8 goal / p90, but no part of the cap below floor / kept |
//! | a goal missed at the lowest cap | the tightest one is out of reach, and the others decide; alone it keeps that cap |
//! | all goals met | the cap is raised by an eighth, but not to the last one that missed before that is forgotten |
//!
//! A part of D brings at least that part of the throughput (`kept`), so a step down does not fall below the floor; from
//! there on a cap is lowered by a part at a time: parts are an eighth of it, and between 1 + k parts a deeper cap only
//! makes small requests wait. Throughput, without what the tenants of the goals gained, is compared with that of the
//! found D: of the last period without a cap, or of the last look. The floor is a part of the best that is known, which
//! a depth that the search refused may have done. A look is some rounds of D without a cap, and takes a 64th of the
//! time at most, so it moves no p90. A search for D goes on while there is no cap; a cap waits for it for [`WAIT_NS`],
//! and so does the look after [`FORGET_LOOKS`] others.
//!
//! # Example
//! D = 161 is found, db has a goal of 1 ms and a p90 of 1.8 ms. 161 x 7/8 / 1.8 are 78, and 0.7 of 161 are 113: the cap
//! is 113, with 0.95 of the throughput and 1.3 ms, then 89 with 1.05 ms, and 81 with 0.97 ms at 0.8 of it: held.
//!
//! # Invariants
//! G1. Without an active goal there is no cap. A cap is 1 or more.
//! G2. A cap below the floor lasts a period. After [`FORGET_LOOKS`] looks a step below the floor is tried again.
//! G3. The only inputs are counts, the time that is passed in, and D as found: shares play no part.
//!
//! # Cost
//! A step is a comparison until the next look at the counts is due ([`GoalControl::is_due`]); no clock, float or
//! allocation after construction.

/// Largest request that a goal is about, bytes.
pub const GOAL_BYTES_MAX: u32 = 64 << 10;

/// Goals that can be set, ns: 10 us to 10 s.
pub const GOAL_NS: core::ops::RangeInclusive<u64> = 10_000..=10_000_000_000;

/// A tenant is active for so long after its last request, ns.
pub const ACTIVE_NS: u64 = 1_000_000_000;

/// Requests of a goal in a period.
const JUDGED: u64 = 64;

/// Requests of a goal in a period that is over by time.
const JUDGED_MIN: u64 = 10;

/// A period is over after this time, ns, if one goal has [`JUDGED_MIN`] requests.
const PERIOD_NS: u64 = 500_000_000;

/// Least time from one look at the counts to the next, ns, and what each word to be read adds.
const LOOK_AT_NS: u64 = 500_000;
const LOOK_AT_WORD_NS: u64 = 20;

/// Longest wait for a search for D that is under way, ns, before a cap: since the last change of the found D.
const WAIT_NS: u64 = 2_000_000_000;

/// And in all, however long the search moves D.
const WAIT_ALL_NS: u64 = 8 * WAIT_NS;

/// Periods from one look at the uncapped device to the next.
const LOOK_PERIODS: u32 = 32;

/// Time without a look after one that took some time: so many times that.
const LOOK_REST: u64 = 64;

/// A look measures so many times the units of the largest requests, and so many times what is out.
const LOOK_LARGE: u64 = 64;
const LOOK_ROUNDS: u64 = 4;

/// Looks after which a cap below the floor, and a goal out of reach, are tried again.
const FORGET_LOOKS: u32 = 8;

/// Periods after which a cap that missed may be tried again, at first and at most: twice as many after each miss.
const HIGH_PERIODS: u32 = 16;
const HIGH_PERIODS_MAX: u32 = 256;

/// Buckets of times relative to a goal: eighths of it up to the goal, then eight for each doubling.
pub const BUCKETS: usize = 32;

/// Buckets of times within the goal.
const MET: usize = 8;

/// The bucket of a time under a goal that is not 0.
#[inline]
pub const fn bucket_of(total_ns: u64, goal_ns: u64) -> usize {
    let eighths = total_ns.saturating_sub(1).saturating_mul(8) / goal_ns;
    if eighths < MET as u64 {
        return eighths as usize;
    }
    let doubling = eighths.ilog2() as usize - 3;
    let index = (doubling + 1) * MET + (eighths >> doubling) as usize - MET;
    if index < BUCKETS { index } else { BUCKETS - 1 }
}

/// The middle of a bucket in sixteenths of the goal.
const fn middle_of(bucket: usize) -> u64 {
    if bucket < MET {
        return 2 * bucket as u64 + 1;
    }
    let doubling = bucket / MET - 1;
    (2 * (bucket % MET + MET) as u64 + 1) << doubling
}

/// Requests by [`bucket_of`], since some beginning.
pub type Counts = [u64; BUCKETS];

/// A reading of the device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Reading {
    /// The moment, ns.
    pub now_ns: u64,
    /// Units completed since some beginning; may wrap.
    pub units: u64,
    /// Units of these that were read and written by tenants with a goal.
    pub own_units: u64,
    /// Units on the device now.
    pub out_units: u64,
    /// D as found, units.
    pub found: u32,
    /// Throughput of the best depth that is known over that of the found D, thousandths; 1000 or more.
    pub best_thousandths: u32,
    /// No other D is being tried now.
    pub is_settled: bool,
    /// Units of the largest requests that matter, 1 or more.
    pub step: u32,
    /// Bytes of a unit.
    pub unit_bytes: u32,
}

/// Orders of a [`GoalControl`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Orders {
    /// D is at most this; `None`: as found.
    pub cap: Option<u32>,
    /// Large requests go in parts of at most so many bytes; `u32::MAX`: no goal asks for parts.
    pub part_bytes: u32,
}

impl Orders {
    /// No goal is active.
    pub const NONE: Orders = Orders { cap: None, part_bytes: u32::MAX };
}

/// How a goal fares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fares {
    /// No request for [`ACTIVE_NS`].
    Inactive,
    /// Not judged yet, or missed in the last period and a lower D is tried next.
    Trying,
    /// Met in the last period.
    Met,
    /// Missed at the lowest D that the floor allows, and not met since.
    OutOfReach,
}

impl Fares {
    /// Name in one word or two, for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Fares::Inactive => "inactive",
            Fares::Trying => "trying",
            Fares::Met => "met",
            Fares::OutOfReach => "out of reach",
        }
    }
}

/// A goal's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GoalState {
    /// The goal, ns.
    pub goal_ns: u64,
    /// The p90 of the last judged period, ns, to a sixteenth of the goal; 0: none was judged.
    pub p90_ns: u64,
    /// How it fares.
    pub fares: Fares,
    /// D in the last judged period, units.
    pub depth: u32,
    /// Throughput of that period, without what the goals' tenants gained, over that of the found D, thousandths; 1000
    /// without a cap.
    pub kept_thousandths: u32,
    /// Periods judged, and those of them that met the goal.
    pub periods: u64,
    /// Periods that met the goal.
    pub met: u64,
}

#[derive(Clone, Debug)]
struct Goal {
    state: GoalState,
    /// Counts at the beginning of the period, and now.
    from: Counts,
    now: Counts,
    last_ns: u64,
    is_active: bool,
    is_out_of_reach: bool,
    /// It was missed in the last period.
    is_missed: bool,
}

impl Goal {
    fn new(goal_ns: u64) -> Goal {
        let fares = Fares::Inactive;
        let state = GoalState { goal_ns, p90_ns: 0, fares, depth: 0, kept_thousandths: 1000, periods: 0, met: 0 };
        let (from, now) = ([0; BUCKETS], [0; BUCKETS]);
        Goal { state, from, now, last_ns: 0, is_active: false, is_out_of_reach: false, is_missed: false }
    }

    /// Requests of this period, those of them that took longer than the goal, and the p90 in sixteenths of the goal.
    fn judge(&self) -> (u64, u64, u64) {
        let count = |bucket: usize| self.now[bucket].saturating_sub(self.from[bucket]);
        let all: u64 = (0..BUCKETS).map(count).sum();
        let missed = (MET..BUCKETS).map(count).sum();
        let (rank, mut below) = ((all * 9).div_ceil(10), 0);
        for bucket in 0..BUCKETS {
            below += count(bucket);
            if below >= rank {
                return (all, missed, middle_of(bucket));
            }
        }
        (all, missed, middle_of(BUCKETS - 1))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Off,
    /// Since this time, ns.
    Free(u64),
    Capped,
    /// Since this time, ns.
    Look(u64),
}

/// A moment from which something is measured.
#[derive(Clone, Copy, Debug)]
struct From {
    ns: u64,
    units: u64,
    own_units: u64,
    /// Measuring begins when so many units have completed; before that those above are nothing.
    settled_units: Option<u64>,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct GoalControl {
    goals: alloc::boxed::Box<[Goal]>,
    floor_thousandths: u32,
    /// The floor, a part of the best throughput that is known, over the found D's: thousandths, 1000 at most.
    least_thousandths: u32,
    look_at_ns: u64,
    next_ns: u64,
    mode: Mode,
    cap: u32,
    from: From,
    /// Throughput of the found D, units in 2^30 ns; 0: not known.
    reference: u64,
    /// The part of it of tenants with a goal.
    reference_own: u64,
    /// Highest cap that was below the floor; 0: none.
    low: u32,
    /// Lowest cap of the last periods that missed; `u32::MAX`: none.
    high: u32,
    high_periods: u32,
    /// So many periods it is remembered the next time.
    high_next: u32,
    periods: u32,
    looks: u32,
    /// No look begins before this, ns.
    rest_ns: u64,
    /// As of the last reading.
    found: u32,
    /// Since when there was no cap the last time, ns.
    free_ns: u64,
}

impl GoalControl {
    /// The default floor of throughput, thousandths.
    pub const FLOOR_THOUSANDTHS: u32 = 700;

    /// A control for these goals, ns, and a floor of throughput in thousandths, 1 to 1000. `words`: how many counters
    /// a look at all counts reads.
    pub fn new(goals_ns: impl IntoIterator<Item = u64>, floor_thousandths: u32, words: u64) -> GoalControl {
        GoalControl {
            goals: goals_ns.into_iter().map(Goal::new).collect(),
            floor_thousandths: floor_thousandths.clamp(1, 1000),
            least_thousandths: floor_thousandths.clamp(1, 1000),
            look_at_ns: LOOK_AT_NS.saturating_add(words.saturating_mul(LOOK_AT_WORD_NS)),
            next_ns: 0,
            mode: Mode::Off,
            cap: u32::MAX,
            from: From { ns: 0, units: 0, own_units: 0, settled_units: None },
            reference: 0,
            reference_own: 0,
            low: 0,
            high: u32::MAX,
            high_periods: 0,
            high_next: HIGH_PERIODS,
            periods: 0,
            looks: 0,
            rest_ns: 0,
            found: 0,
            free_ns: 0,
        }
    }

    /// Whether it is time for [`GoalControl::step`].
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// States of the goals, in their order.
    pub fn states(&self) -> impl Iterator<Item = GoalState> + '_ {
        self.goals.iter().map(|goal| goal.state)
    }

    /// The cap in force; `None`: D is as found.
    pub fn cap(&self) -> Option<u32> {
        matches!(self.mode, Mode::Capped).then_some(self.cap)
    }

    /// Units in 2^30 ns at the found D; 0: not known.
    pub fn reference(&self) -> u64 {
        self.reference
    }

    /// Whether D is to be searched for now: not while a cap binds.
    pub fn lets_search(&self) -> bool {
        !matches!(self.mode, Mode::Capped)
    }

    /// Takes in a reading and the counts of each goal, and returns what is to be in force from now on.
    pub fn step(&mut self, reading: &Reading, counts: impl FnMut(usize, &mut Counts)) -> Orders {
        self.next_ns = reading.now_ns.saturating_add(self.look_at_ns);
        let is_early = reading.now_ns.saturating_sub(self.free_ns) < WAIT_ALL_NS;
        if matches!(self.mode, Mode::Free(_)) && self.found != reading.found && is_early {
            // The search is on its way: a cap waits for it anew.
            self.mode = Mode::Free(reading.now_ns);
        }
        self.found = reading.found;
        let least = u64::from(self.floor_thousandths) * u64::from(reading.best_thousandths.max(1000)) / 1000;
        self.least_thousandths = least.min(1000) as u32;
        let is_any_active = self.count(reading.now_ns, counts);
        let mode = self.mode;
        match mode {
            Mode::Off if is_any_active => self.enter(Mode::Free(reading.now_ns), reading),
            Mode::Off => {}
            _ if !is_any_active => self.enter(Mode::Off, reading),
            _ if self.is_settling(reading) => {}
            Mode::Look(since_ns) => self.look(since_ns, reading),
            Mode::Free(_) | Mode::Capped => {
                if self.is_over(reading.now_ns) {
                    self.end(reading);
                }
            }
        }
        self.orders(reading)
    }

    fn orders(&self, reading: &Reading) -> Orders {
        match self.cap() {
            Some(cap) => Orders { cap: Some(cap), part_bytes: part_bytes(cap, reading.unit_bytes) },
            None => Orders::NONE,
        }
    }

    /// Reads the counts. True if a goal is active.
    fn count(&mut self, now_ns: u64, mut counts: impl FnMut(usize, &mut Counts)) -> bool {
        let mut is_any_active = false;
        for (index, goal) in self.goals.iter_mut().enumerate() {
            let before = goal.now;
            goal.now = [0; BUCKETS];
            counts(index, &mut goal.now);
            if goal.now != before {
                goal.last_ns = now_ns;
            }
            // A goal that was never seen has no last time.
            let was_active = goal.is_active;
            goal.is_active = goal.last_ns > 0 && now_ns.saturating_sub(goal.last_ns) <= ACTIVE_NS;
            match (was_active, goal.is_active) {
                (false, true) => (goal.state.fares, goal.is_out_of_reach) = (Fares::Trying, false),
                (true, false) => {
                    goal.state.fares = Fares::Inactive;
                    // Perhaps it was the one that missed.
                    (self.high, self.high_next) = (u32::MAX, HIGH_PERIODS);
                }
                _ => {}
            }
            is_any_active |= goal.is_active;
        }
        is_any_active
    }

    fn enter(&mut self, mode: Mode, reading: &Reading) {
        let was_off = self.mode == Mode::Off;
        self.mode = mode;
        if let Mode::Free(since_ns) = mode {
            self.free_ns = since_ns;
        }
        match mode {
            Mode::Off => {
                (self.cap, self.low, self.periods, self.looks) = (u32::MAX, 0, 0, 0);
                (self.high, self.high_next) = (u32::MAX, HIGH_PERIODS);
            }
            // D stays as it was: what is measured next needs no settling.
            Mode::Free(_) if was_off => self.begin(reading),
            _ => self.settle(reading),
        }
    }

    fn settle(&mut self, reading: &Reading) {
        let out = reading.out_units.max(1);
        self.from.settled_units = Some(reading.units.wrapping_add(out + out.div_ceil(4)));
    }

    /// Whether what was dispatched under another D is still out.
    fn is_settling(&mut self, reading: &Reading) -> bool {
        let Some(units) = self.from.settled_units else { return false };
        if reading.units.wrapping_sub(units) as i64 >= 0 {
            self.begin(reading);
        }
        true
    }

    fn begin(&mut self, reading: &Reading) {
        let Reading { now_ns: ns, units, own_units, .. } = *reading;
        self.from = From { ns, units, own_units, settled_units: None };
        self.goals.iter_mut().for_each(|goal| goal.from = goal.now);
    }

    /// Units in 2^30 ns since the beginning, and those of tenants with a goal.
    fn throughput(&self, reading: &Reading) -> (u64, u64) {
        let elapsed_ns = u128::from(reading.now_ns.saturating_sub(self.from.ns).max(1));
        let rate = |units: u64| u64::try_from((u128::from(units) << 30) / elapsed_ns).unwrap_or(u64::MAX);
        // Counts of a tenant that has gone are not there any more.
        let own = reading.own_units.saturating_sub(self.from.own_units);
        (rate(reading.units.wrapping_sub(self.from.units)), rate(own))
    }

    fn is_over(&self, now_ns: u64) -> bool {
        let mut active = self.goals.iter().filter(|goal| goal.is_active).map(|goal| goal.judge().0);
        let is_late = now_ns.saturating_sub(self.from.ns) >= PERIOD_NS;
        match is_late {
            true => active.any(|all| all >= JUDGED_MIN),
            false => active.all(|all| all >= JUDGED),
        }
    }

    /// A look measures the reference; now and then it waits for a search that is under way.
    fn look(&mut self, since_ns: u64, reading: &Reading) {
        let units = reading.units.wrapping_sub(self.from.units);
        let least = (LOOK_LARGE * u64::from(reading.step)).max(LOOK_ROUNDS * reading.out_units);
        let waits = self.looks >= FORGET_LOOKS && !reading.is_settled;
        if units < least || waits && reading.now_ns.saturating_sub(since_ns) < WAIT_NS {
            return;
        }
        let (now, own) = self.throughput(reading);
        let is_another = now.abs_diff(self.reference) > self.reference / 8;
        if is_another || self.looks >= FORGET_LOOKS {
            // On the same device a step lower is tried, and not all of them again.
            self.low = if is_another { 0 } else { self.low.saturating_sub(grid(self.low, reading)) };
            (self.looks, self.high_next) = (0, HIGH_PERIODS);
            self.goals.iter_mut().for_each(|goal| goal.is_out_of_reach = false);
        }
        (self.reference, self.reference_own) = (now, own);
        let took_ns = reading.now_ns.saturating_sub(since_ns);
        self.rest_ns = reading.now_ns.saturating_add(took_ns.saturating_mul(LOOK_REST));
        let mode = if self.cap < reading.found { Mode::Capped } else { Mode::Free(reading.now_ns) };
        self.enter(mode, reading);
    }

    /// The period is over.
    fn end(&mut self, reading: &Reading) {
        let (throughput, own) = self.throughput(reading);
        let depth = self.cap().unwrap_or(reading.found);
        let kept = match self.cap() {
            // The gain of the goals' own tenants does not count as throughput that others keep.
            Some(_) => {
                let gained = own.saturating_sub(self.reference_own);
                kept_thousandths(throughput.saturating_sub(gained), self.reference)
            }
            None => 1000,
        };
        // Largest need for less: p90 over the goal, in sixteenths, of those that are not out of reach.
        let (mut missed, mut worst) = (false, 0);
        let are_all_out = self.goals.iter().all(|goal| !goal.is_active || goal.is_out_of_reach);
        for goal in self.goals.iter_mut().filter(|goal| goal.is_active) {
            let (all, over, p90) = goal.judge();
            if all < JUDGED_MIN {
                continue;
            }
            let is_met = over * 10 <= all;
            let p90_ns = (u128::from(goal.state.goal_ns) * u128::from(p90) / 16) as u64;
            let fares = match (is_met, goal.is_out_of_reach) {
                (true, _) => Fares::Met,
                // A goal that is tried again is out of reach until it is met.
                (false, false) if goal.state.fares != Fares::OutOfReach => Fares::Trying,
                (false, _) => Fares::OutOfReach,
            };
            goal.is_missed = !is_met;
            let periods = goal.state.periods + 1;
            let met = goal.state.met + u64::from(is_met);
            goal.state = GoalState { p90_ns, fares, depth, kept_thousandths: kept, periods, met, ..goal.state };
            if !goal.is_out_of_reach || are_all_out {
                (missed, worst) = (missed | !is_met, worst.max(p90));
            }
        }
        self.periods += 1;
        self.high_periods = self.high_periods.saturating_sub(1);
        if self.high_periods == 0 {
            self.high = u32::MAX;
        }
        match self.mode {
            Mode::Free(since_ns) => {
                let may = reading.is_settled || reading.now_ns.saturating_sub(since_ns) >= WAIT_NS;
                (self.reference, self.reference_own) = (throughput, own);
                if missed && may {
                    return self.lower(depth, worst, kept, reading);
                }
            }
            Mode::Capped if kept < self.least_thousandths => {
                self.low = self.low.max(self.cap);
                // Where the floor is, if throughput grows as the cap does.
                let to = u64::from(self.cap) * u64::from(self.least_thousandths) / u64::from(kept.max(1));
                return self.put(to.clamp(1, u32::MAX.into()) as u32, true, reading);
            }
            Mode::Capped if missed => return self.lower(depth, worst, kept, reading),
            Mode::Capped => {
                let to = self.cap.saturating_add((self.cap / 8).max(1));
                let to = on_grid(to, grid(to, reading), true);
                // Three quarters of the goal; or a step that was not tried lately.
                if to < self.high && (worst <= 12 || self.high == u32::MAX) {
                    return self.put(to, true, reading);
                }
            }
            Mode::Off | Mode::Look(_) => {}
        }
        self.go_on(reading);
    }

    /// D stays: another period, or a look.
    fn go_on(&mut self, reading: &Reading) {
        if matches!(self.mode, Mode::Capped) && self.periods >= LOOK_PERIODS && reading.now_ns >= self.rest_ns {
            (self.periods, self.looks) = (0, self.looks + 1);
            return self.enter(Mode::Look(reading.now_ns), reading);
        }
        self.begin(reading);
    }

    /// A goal was missed at `depth`, with a p90 of so many sixteenths of it and so much of the throughput.
    fn lower(&mut self, depth: u32, sixteenths: u64, kept: u32, reading: &Reading) {
        (self.high, self.high_periods) = (depth, self.high_next);
        self.high_next = (self.high_next * 2).min(HIGH_PERIODS_MAX);
        let whole = u64::from(depth);
        let wanted = (whole * 14 / sixteenths.max(1)).clamp(1, whole) as u32;
        // A part of D brings at least that part of the throughput: this one is above the floor.
        let safe = (whole * u64::from(self.least_thousandths)).div_ceil(u64::from(kept.max(1))).max(whole / 2);
        let on = |depth: u32, up: bool| on_grid(depth, grid(depth, reading), up);
        let mut to = on(wanted, false).max(on(safe.min(whole) as u32, true).min(on(depth - 1, false)));
        if to <= self.low {
            to = on(self.low + 1, true);
        }
        if to < depth {
            (self.cap, self.mode) = (to, Mode::Capped);
            return self.settle(reading);
        }
        // The lowest D that the floor allows: of the goals that count, the tightest one is out of reach.
        let tightest = self
            .goals
            .iter_mut()
            .filter(|goal| goal.is_active && !goal.is_out_of_reach && goal.is_missed)
            .min_by_key(|goal| goal.state.goal_ns);
        if let Some(goal) = tightest {
            (goal.is_out_of_reach, goal.state.fares) = (true, Fares::OutOfReach);
        }
        self.go_on(reading);
    }

    /// Another cap, higher than this one.
    fn put(&mut self, to: u32, up: bool, reading: &Reading) {
        let to = to.max(self.cap.saturating_add(1));
        let to = on_grid(to, grid(to, reading), up);
        if to >= reading.found {
            self.cap = u32::MAX;
            return self.enter(Mode::Free(reading.now_ns), reading);
        }
        self.cap = to;
        self.settle(reading);
    }
}

/// Smallest part that is asked for, bytes.
const AUTO_PART_BYTES_MIN: u32 = 16 << 10;

/// Largest part that is asked for, bytes.
const AUTO_PART_BYTES_MAX: u32 = 128 << 10;

/// Distance of caps that make a difference near `cap`, units: what a part has, or a whole request.
fn grid(cap: u32, reading: &Reading) -> u32 {
    let unit_bytes = reading.unit_bytes.max(1);
    match reading.step < AUTO_PART_BYTES_MIN / unit_bytes {
        true => reading.step.max(1),
        false => (part_bytes(cap, unit_bytes) / unit_bytes).max(1),
    }
}

/// Parts under a cap: the largest power of two of which eight fit beside a unit.
fn part_bytes(cap: u32, unit_bytes: u32) -> u32 {
    let eighth = u64::from(cap.saturating_sub(1)) * u64::from(unit_bytes) / 8;
    let part = if eighth == 0 { 0 } else { 1u64 << eighth.ilog2() };
    part.clamp(AUTO_PART_BYTES_MIN.into(), AUTO_PART_BYTES_MAX.into()) as u32
}

/// The nearest of 1 + k step, at least 1: above or below.
fn on_grid(depth: u32, step: u32, up: bool) -> u32 {
    let above = depth.saturating_sub(1);
    let steps = if up { above.div_ceil(step) } else { above / step };
    1u32.saturating_add(steps.saturating_mul(step))
}

fn kept_thousandths(throughput: u64, reference: u64) -> u32 {
    match reference {
        0 => 1000,
        _ => (u128::from(throughput) * 1000 / u128::from(reference)).min(u32::MAX.into()) as u32,
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests;
