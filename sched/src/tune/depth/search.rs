//! The search: phases at D and at a candidate in turn, until one of the two is surely better.
//!
//! Answers: which D is measured next, and what is concluded? The page is `docs/inside/depth.md`.
//! All is in integers, and a phase that the last comparison ended with begins the next one.
//!
//! # Shape
//! ```text
//!   look ──▶ trial ──▶ again ──▶ sure? ──no──▶ trial ...
//!    ▲                             │ better: D = trial
//!    └─────────────────────────────┘ worse: the other direction; after both a smaller step; after the smallest: hold
//!   hold: measure at D, 16 phases and longer each time, then try again; at once if the load has changed
//! ```
//!
//! # Sureness
//! The gain of a candidate is the difference of two means in logarithms, less `ALPHA` times that of the depth in use.
//! Two requests of the mean size at a time are free: with one alone the device idles between two, and nothing smaller
//! waits. Example: requests of 256 units alone; D = 64 lets one go at a time, which does 0.86 of the work, and two at
//! D = 257 have no price. Beside 256 times as many requests of a unit the mean is 2 units, and D = 257 has its price.
//! A mean leaves out the slower half of the phases: in those a worker may have lost its core, and more depth would only
//! cover that up. A gain is sure if it is larger than a number of standard errors, by the scatter of the phases that
//! count and by what was learnt of it before. More depth needs twice as many of them as less depth, and `ROUNDS_UP`
//! rounds: a depth that is too large by an accident makes tenants wait, and one that is too small is soon seen. Less
//! depth that does more work needs `ROUNDS_UP` rounds, too: it is more likely an accident than the device. Example:
//! 256 threads write and flush together, so one phase has writes and the next one flushes, e times fewer units. One
//! round said "82% better" at 31 than at 66, and again at 6 and at 1. Where phases scatter so, they are longer.
//!
//! The scatter of few phases is not known. So while no request waits at D, and weights do not bind, the first rounds
//! refuse a smaller D only by more than twice the range of the phases at D; elsewhere they take one only by as much.
//! Example: 64 reads on a Ceph cluster, whose phases differ by a factor of 2. One round each said "34% worse" of 31,
//! "22%" of 44 and "28%" of 50, and D stayed at 64, where no weight binds; one round each also led to 3.
//! Where phases scatter so for long, doubt alone led on from 16 to 2 in half an hour. So there a depth that has less
//! than a quarter of the units is taken only as surely as a deeper one (`DOUBT_MAX`).

use super::log::{ONE, log2_of_millionths};
use super::sample::Phase;
use core::ops::RangeInclusive;

/// Part of its relative depth that a deeper queue must earn, 65536ths. 0.15: twice the depth must do 11% more.
const ALPHA: i32 = 9830;

/// As [`ALPHA`], while large requests go in parts: 0.1, so twice the depth must do 7% more. Parts are short, but a
/// small request waits for all that the device holds: at 0.02 the commits of a database were slowed 7 times for the
/// last 5% of throughput (`ours/chain`), at 0.15 a drive of 60,000 IOPS does less than 0.87 of what it can.
const ALPHA_IN_PARTS: i32 = 6554;

/// A depth that is not deeper in fact by this earns nothing: 2%.
const DEEPER_MIN: i32 = log2_of_millionths(1_020_201);

/// Cost of such a depth: 5%.
const NOT_DEEPER: i32 = log2_of_millionths(1_051_271);

/// A request waits for a token all the time, or nearly: 80% of it, 65536ths.
const SATURATED: i32 = ONE / 5 * 4;

/// At a smaller D a request must wait for half of the time, or D was no bound; at a larger one for a fifth.
const BOUND_DOWN: i32 = ONE / 2;
const BOUND_UP: i32 = ONE / 5;

/// Standard errors by which a gain must differ from 0 to be sure; and that of a deeper candidate.
const SURE: u64 = 3;
const SURE_DEEPER: u64 = 6;

/// Rounds after which a deeper candidate is taken at the earliest.
const ROUNDS_UP: u32 = 4;

/// Until then a gain counts beyond so many times the range of the phases at D, where an accident does harm.
const RANGES: u32 = 2;

/// A smaller depth that is tight is taken as surely as a deeper one, and not in doubt, where [`SURE`] standard errors
/// are more than this, 20%; and units in the system over those on the device, above which a depth is tight: 4.
const DOUBT_MAX: u64 = log2_of_millionths(1_200_000) as u64;
const TIGHT: i32 = 2 * ONE;

/// Smallest scatter that is believed, 0.2%; and what the first round must show besides, 2%.
const SCATTER_MIN: u64 = log2_of_millionths(1_002_002) as u64;
const FIRST_ROUND: u64 = log2_of_millionths(1_020_201) as u64;

/// Scatter of the phases of one depth before any was seen, 1.4%; and the number of phases that it counts for beside
/// those that are seen.
const SCATTER_START: i64 = log2_of_millionths(1_014_000) as i64;
const SCATTER_WEIGHT: i64 = 4;

/// Scatter from which on phases are longer, 7%, and how many times at most.
const SCATTER_LONG: i64 = log2_of_millionths(1_070_000) as i64;
const LONGER_MAX: i64 = 8;

/// Factors between D and a candidate, 65536ths: 2, its root, and 1.25.
const FACTORS: [u64; 3] = [131_072, 92_682, 81_920];

/// After a step down by 2 that was right the next is by this: at so large a step one round is sure.
const FACTOR_FAST: u64 = 262_144;

/// Rounds after which a comparison at that factor ends, whatever it says. Of two depths that far apart and yet alike, a
/// better one lies between: it is found by the next factor, and not by more rounds.
const ROUNDS_MAX: [u32; 3] = [24, 48, 64];

/// Phases between two searches: at first, and at most.
const HOLD: u32 = 16;
const HOLD_MAX: u32 = 128;

/// The load has changed if throughput has by this, 28%, or the size of requests by 49%.
const RATE_CHANGED: i32 = log2_of_millionths(1_284_025);
const SIZE_CHANGED: i32 = log2_of_millionths(1_491_825);

/// How a comparison ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The candidate is better.
    Better,
    /// The candidate is worse, or does not bind.
    Worse,
    /// The difference is too small to tell.
    Unsure,
    /// The load changed meanwhile, so the phases cannot be compared.
    NotComparable,
}

impl Verdict {
    /// Name in a word or two.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::Unsure => "unsure",
            Verdict::NotComparable => "not comparable",
        }
    }
}

/// One comparison of a candidate with the D in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// When it ended, ns.
    pub at_ns: u64,
    /// D then.
    pub depth: u32,
    /// The candidate.
    pub trial: u32,
    /// How it ended.
    pub verdict: Verdict,
    /// Gain of the candidate, after the price of depth, thousandths; 0 if no round was complete.
    pub gain_thousandths: i32,
    /// Rounds measured.
    pub pairs: u32,
}

/// Why D is what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Nothing was measured yet.
    Start,
    /// No request waits for a token.
    Quiet,
    /// Candidates are being tried.
    Searching,
    /// None of those tried is better.
    Found,
    /// Candidates are being tried, because the load is another one than that for which D was found.
    Changed,
    /// The device is empty whenever a worker looks ([`super::Turns`]).
    Turns,
}

impl Reason {
    /// Reason in half a sentence.
    pub const fn text(self) -> &'static str {
        match self {
            Reason::Start => "nothing is measured yet",
            Reason::Quiet => "requests wait for a token too seldom to compare depths",
            Reason::Searching => "deeper and shallower are being tried",
            Reason::Found => "deeper gains less than it costs, shallower loses work",
            Reason::Changed => "the load has changed, so deeper and shallower are being tried again",
            Reason::Turns => "the CPU is the limit and the device is empty, so a worker does more in a turn",
        }
    }

    /// Name in one word, for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Start => "start",
            Reason::Quiet => "quiet",
            Reason::Searching => "searching",
            Reason::Found => "found",
            Reason::Changed => "changed",
            Reason::Turns => "turns",
        }
    }
}

/// A controller's current depth and step, findings and reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// D in force, which may be a candidate's.
    pub depth: u32,
    /// D as chosen.
    pub chosen: u32,
    /// Since when it is chosen, ns.
    pub chosen_ns: u64,
    /// Why.
    pub reason: Reason,
    /// n: distance of the depths that make a difference, units.
    pub step: u32,
    /// Phases measured.
    pub phases: u64,
    /// The last comparisons, the latest first.
    pub probes: [Option<Probe>; State::PROBES],
}

impl State {
    /// Comparisons that are kept.
    pub const PROBES: usize = 4;
}

/// A depth that was compared with others, beside the D that is chosen now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tried {
    /// The depth.
    pub depth: u32,
    /// Units completed in a time, over those at the chosen D: logarithm to base 2, 65536ths.
    pub work_log: i32,
    /// Time of a unit on the device, likewise (Little's law).
    pub stay_log: i32,
}

/// Depths that were compared since the load changed last.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Table([Option<Tried>; Table::PLACES]);

impl Table {
    /// Depths that are kept.
    pub const PLACES: usize = 8;

    /// Largest [`Table::best_thousandths`].
    pub const BEST_MAX: u32 = 1250;

    /// The depths, the latest first.
    pub fn tried(&self) -> impl Iterator<Item = Tried> + '_ {
        self.0.iter().flatten().copied()
    }

    /// Throughput of the best of them over that of the chosen D, thousandths: [`Table::BEST_MAX`] at most, since a
    /// depth that did more would have been chosen.
    pub fn best_thousandths(&self) -> u32 {
        let more = self.tried().map(|tried| thousandths(tried.work_log)).max().unwrap_or(0);
        1000 + more.clamp(0, Table::BEST_MAX as i32 - 1000) as u32
    }

    /// A candidate was measured beside the chosen D.
    fn put(&mut self, now: Tried) {
        let place = self.0.iter().position(|old| old.is_none_or(|old| old.depth == now.depth));
        self.0[..=place.unwrap_or(Table::PLACES - 1)].rotate_right(1);
        self.0[0] = Some(now);
    }

    /// `to`, which is in the table, is chosen in place of `from`.
    fn rebase(&mut self, from: u32, to: u32) {
        let Some(at) = self.0.iter().flatten().find(|tried| tried.depth == to).copied() else {
            return *self = Table::default();
        };
        for tried in self.0.iter_mut().flatten() {
            (tried.work_log, tried.stay_log) = (tried.work_log - at.work_log, tried.stay_log - at.stay_log);
            if tried.depth == to {
                *tried = Tried { depth: from, work_log: -at.work_log, stay_log: -at.stay_log };
            }
        }
    }
}

impl FromIterator<Tried> for Table {
    /// Those of the last [`Table::PLACES`], the last one first.
    fn from_iter<I: IntoIterator<Item = Tried>>(tried: I) -> Table {
        let mut table = Table::default();
        tried.into_iter().for_each(|tried| table.put(tried));
        table
    }
}

#[derive(Clone, Copy, Debug)]
enum Task {
    /// Measures D, to see what can be tried.
    Look,
    /// Measures D, which has been brought onto the grid, before the first round.
    First,
    /// Measures a candidate; `base` is what D measured before it.
    Trial { base: Phase },
    /// Measures D again, after this at the candidate.
    Again { base: Phase, trial: Phase },
    /// Measures D for so many phases; of the phases before, so many in a row were of another load.
    Hold { left: u32, others: u32 },
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Search {
    depth_max: u32,
    /// D as chosen.
    base: u32,
    task: Task,
    trial: u32,
    /// Phases at D, and at the candidate.
    at_base: Phases,
    at_trial: Phases,
    gain: i32,
    /// Variance of the phases of one depth, in 65536ths squared: what was learnt of it in earlier comparisons.
    pub(super) variance: i64,
    is_up: bool,
    /// Candidates that were not better than D, the last shallower and the last deeper one; 0: none. A smaller factor
    /// may come to the same one on a coarse grid.
    refused: [u32; 2],
    fails: u32,
    factor: usize,
    /// The last step was one down by 2 or more, and right.
    is_fast: bool,
    hold: u32,
    /// The load for which D was found.
    found: Option<Phase>,
    chosen_ns: u64,
    reason: Reason,
    phases: u64,
    probes: [Option<Probe>; State::PROBES],
    table: Table,
}

impl Search {
    pub fn new(depth: u32, depth_max: u32) -> Search {
        Search {
            depth_max,
            base: depth,
            task: Task::Look,
            trial: depth,
            at_base: Phases::NONE,
            at_trial: Phases::NONE,
            gain: 0,
            variance: SCATTER_START * SCATTER_START,
            is_up: true,
            refused: [0; 2],
            fails: 0,
            factor: 0,
            is_fast: false,
            hold: HOLD,
            found: None,
            chosen_ns: 0,
            reason: Reason::Start,
            phases: 0,
            probes: [None; State::PROBES],
            table: Table::default(),
        }
    }

    /// How many times longer than at first a phase is, 1 to [`LONGER_MAX`]: so many have the variance of
    /// [`SCATTER_LONG`] together.
    pub fn longer(&self) -> u64 {
        let times = self.variance / (SCATTER_LONG * SCATTER_LONG);
        times.clamp(1, LONGER_MAX).unsigned_abs()
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    pub fn state(&self) -> State {
        State {
            depth: self.base,
            chosen: self.base,
            chosen_ns: self.chosen_ns,
            reason: self.reason,
            step: 1,
            phases: self.phases,
            probes: self.probes,
        }
    }

    /// D is `depth` for another reason than what was measured. What is measured next is compared with that.
    pub fn begin_at(&mut self, depth: u32, reason: Reason, now_ns: u64) {
        self.choose(depth, now_ns);
        (self.task, self.factor, self.found, self.hold) = (Task::Look, 0, None, HOLD);
        (self.is_up, self.is_fast, self.fails, self.reason) = (true, false, 0, reason);
    }

    /// The device is measured anew, perhaps under another load: D and what was learnt stay, and a comparison that was
    /// under way begins again. A D that was found is tested again as soon as one that was found just now. Returns D.
    pub fn resume(&mut self) -> u32 {
        self.hold = HOLD;
        self.task = match self.task {
            Task::Hold { left, .. } => Task::Hold { left: left.min(HOLD), others: 0 },
            _ => Task::Look,
        };
        self.base
    }

    /// Takes in a phase at `depth` and says which D to measure next.
    pub fn learn(&mut self, phase: &Phase, depth: u32, now_ns: u64) -> u32 {
        self.phases += 1;
        match self.task {
            Task::Look => self.look(phase, depth, now_ns),
            Task::First => {
                self.task = Task::Trial { base: *phase };
                self.trial
            }
            Task::Trial { base } => {
                if phase.waiting < if self.is_up { BOUND_UP } else { BOUND_DOWN } {
                    // Deeper than the demand; or shallower, and yet no request waited: it did not bind.
                    let verdict = if self.is_up { Verdict::Worse } else { Verdict::NotComparable };
                    return self.conclude(verdict, None, now_ns);
                }
                self.task = Task::Again { base, trial: *phase };
                self.base
            }
            Task::Again { base, trial } => self.round(&base, &trial, phase, now_ns),
            Task::Hold { left, others } => self.watch(phase, left, others, depth, now_ns),
        }
    }

    /// D was measured: what can be tried?
    fn look(&mut self, phase: &Phase, depth: u32, now_ns: u64) -> u32 {
        let is_full = phase.waiting >= SATURATED;
        let depth_min = least(phase.request_units, self.depth_max);
        if is_full {
            self.choose(on_grid(self.base.into(), phase.step, self.depth_max).max(depth_min), now_ns);
        }
        if !is_full && (phase.waiting > BOUND_UP || phase.device_units < 2 * u64::from(phase.step)) {
            // Little or changing demand says nothing.
            self.reason = Reason::Quiet;
            self.task = Task::Look;
            return self.base;
        }
        if !is_full {
            // No request waits: only less than the depth in use can be tried.
            self.is_up = false;
        }
        self.reason = match self.reason {
            _ if !is_full => Reason::Quiet,
            Reason::Changed => Reason::Changed,
            _ => Reason::Searching,
        };
        let from = if is_full { self.base } else { self.base.min(phase.device_units.min(1 << 31) as u32) };
        (self.at_base.count, self.at_trial.count, self.gain) = (0, 0, 0);
        self.is_fast &= is_full && !self.is_up;
        let factor = if self.is_fast { FACTOR_FAST } else { FACTORS[self.factor] };
        match candidate(from, factor, self.is_up, phase.step, depth_min..=self.depth_max) {
            Some(trial) if trial != self.base && trial != self.refused[usize::from(self.is_up)] => {
                self.trial = trial;
                if depth != self.base {
                    // Brought onto the grid: what was measured is another D.
                    self.task = Task::First;
                    return self.base;
                }
                self.task = Task::Trial { base: *phase };
                self.trial
            }
            _ => {
                self.trial = self.base;
                self.conclude(Verdict::Worse, Some(phase), now_ns)
            }
        }
    }

    /// D, candidate, D were measured.
    fn round(&mut self, before: &Phase, trial: &Phase, after: &Phase, now_ns: u64) -> u32 {
        let is_full = |phase: &Phase| phase.waiting >= SATURATED;
        if is_other_size(before, after) || is_full(before) != is_full(after) {
            let begins_parts = after.is_in_parts && !before.is_in_parts;
            let verdict =
                if begins_parts && self.is_deeper_surely() { Verdict::Better } else { Verdict::NotComparable };
            return self.conclude(verdict, None, now_ns);
        }
        if self.at_base.count == 0 {
            self.at_base.add(before);
        }
        self.at_trial.add(trial);
        self.at_base.add(after);
        let (deep, shallow) =
            if self.is_up { (&self.at_trial, &self.at_base) } else { (&self.at_base, &self.at_trial) };
        let Compared { of, gain, variance, earned } = compare(deep, shallow, self.variance);
        self.gain = if self.is_up { gain } else { -gain };
        let rounds = self.at_trial.count as u32;
        let is_early = rounds < ROUNDS_UP && if self.is_up { gain > 0 } else { earned < -(FIRST_ROUND as i32) };
        // An accident refuses no smaller D where no request waits, and takes none elsewhere (R4).
        let is_taken = gain < 0 && !self.is_up;
        let is_guarded = is_taken
            && is_full(after)
            && shallow.is_tight()
            && limit(rounds.max(ROUNDS_UP), variance, SURE) > DOUBT_MAX;
        let errors = if gain > 0 || is_guarded { SURE_DEEPER } else { SURE };
        let is_scatter = rounds < ROUNDS_UP
            && if is_full(after) { is_taken } else { gain > 0 }
            && gain.unsigned_abs() <= RANGES * self.at_base.range(of);
        let is_sure = !is_early && !is_scatter && u64::from(gain.unsigned_abs()) > limit(rounds, variance, errors);
        let verdict = if is_sure {
            if self.gain > 0 { Verdict::Better } else { Verdict::Worse }
        } else if rounds >= ROUNDS_MAX[self.factor] {
            // In doubt the smaller one.
            if is_taken && !is_guarded { Verdict::Better } else { Verdict::Unsure }
        } else {
            self.task = Task::Trial { base: *after };
            return self.trial;
        };
        self.variance = variance;
        self.conclude(verdict, Some(after), now_ns)
    }

    /// The rounds so far say for sure that the deeper candidate is better. It is taken where large requests begin to go
    /// in parts before the last round: at a D far too small for parts that ends each comparison, and D would stay.
    fn is_deeper_surely(&self) -> bool {
        let rounds = self.at_trial.count as u32;
        self.is_up && rounds > 0 && {
            let Compared { gain, variance, .. } = compare(&self.at_trial, &self.at_base, self.variance);
            gain > 0 && u64::from(gain.unsigned_abs()) > limit(rounds, variance, SURE_DEEPER)
        }
    }

    /// A comparison has ended; `last` was measured at D.
    fn conclude(&mut self, verdict: Verdict, last: Option<&Phase>, now_ns: u64) -> u32 {
        if self.trial != self.base {
            self.probes.rotate_right(1);
            self.probes[0] = Some(Probe {
                at_ns: now_ns,
                depth: self.base,
                trial: self.trial,
                verdict,
                gain_thousandths: thousandths(self.gain),
                pairs: self.at_trial.count as u32,
            });
        }
        if self.trial != self.base && self.at_trial.count > 0 && verdict != Verdict::NotComparable {
            self.table.put(self.at_trial.beside(&self.at_base, self.trial));
        }
        self.task = Task::Look;
        match verdict {
            Verdict::Better => {
                self.choose(self.trial, now_ns);
                (self.fails, self.found, self.hold, self.refused) = (0, None, HOLD, [0; 2]);
                self.is_fast = !self.is_up && self.factor == 0;
                return self.base;
            }
            Verdict::NotComparable => {
                self.is_fast = false;
                return self.base;
            }
            Verdict::Worse | Verdict::Unsure => {}
        }
        if core::mem::take(&mut self.is_fast) {
            // Too far; by 2 it may yet be right.
            return match last {
                Some(phase) => self.look(phase, self.base, now_ns),
                None => self.base,
            };
        }
        if self.trial != self.base {
            self.refused[usize::from(self.is_up)] = self.trial;
        }
        self.is_up = !self.is_up;
        self.fails += 1;
        if self.fails == 2 {
            self.fails = 0;
            if self.factor + 1 == FACTORS.len() {
                (self.reason, self.refused) = (Reason::Found, [0; 2]);
                self.task = Task::Hold { left: self.hold, others: 0 };
                return self.base;
            }
            self.factor += 1;
        }
        match last {
            Some(phase) => self.look(phase, self.base, now_ns),
            None => self.base,
        }
    }

    /// D was measured once more while it is held.
    fn watch(&mut self, phase: &Phase, left: u32, others: u32, depth: u32, now_ns: u64) -> u32 {
        let found = *self.found.get_or_insert(*phase);
        let (is_full, was_full) = (phase.waiting >= SATURATED, found.waiting >= SATURATED);
        let is_other = is_other_size(phase, &found)
            || is_full != was_full
            || is_full && (phase.units_log - found.units_log).abs() > RATE_CHANGED;
        let others = if is_other { others + 1 } else { 0 };
        if others == 2 {
            (self.factor, self.found, self.hold, self.is_up, self.fails) = (0, None, HOLD, true, 0);
            self.reason = Reason::Changed;
            self.table = Table::default();
            return self.look(phase, depth, now_ns);
        }
        if left > 1 {
            self.task = Task::Hold { left: left - 1, others };
            return self.base;
        }
        self.hold = (2 * self.hold).min(HOLD_MAX);
        self.look(phase, depth, now_ns)
    }

    fn choose(&mut self, depth: u32, now_ns: u64) {
        if depth != self.base {
            self.table.rebase(self.base, depth);
            (self.base, self.chosen_ns, self.refused) = (depth, now_ns, [0; 2]);
        }
    }
}

/// A deeper and a shallower depth, compared.
struct Compared {
    /// The number that they are compared by.
    of: Of,
    /// Gain of the deeper one, 65536ths of a doubling, after the price of its depth.
    gain: i32,
    /// Variance of the phases of one depth.
    variance: i64,
    /// Work that the deeper one does more, likewise, without the price.
    earned: i32,
}

/// Compares the phases of two depths; `variance` is what is known of their scatter.
fn compare(deep: &Phases, shallow: &Phases, variance: i64) -> Compared {
    let earned = |of: Of| deep.mean(of) - shallow.mean(of);
    let is_in_parts = deep.is_in_parts && shallow.is_in_parts;
    let of = if deep.waiting / i64::from(deep.count) < i64::from(SATURATED) {
        // The deeper one is not saturated: the total time in the system (R4).
        Of::Stay
    } else if is_in_parts || earned(Of::Units) <= earned(Of::Weighed) {
        // Parts count as requests, and are no tenant's; small requests have their turn between them.
        Of::Units
    } else {
        // More work, whatever a command costs (R3).
        Of::Weighed
    };
    let deeper = deep.device_log() - shallow.device_log();
    let free = shallow.request_log() + ONE;
    let priced = deep.device_log().max(free) - shallow.device_log().max(free);
    let alpha = if is_in_parts { ALPHA_IN_PARTS } else { ALPHA };
    let gain = match deeper >= DEEPER_MIN {
        true => earned(of) - ((i64::from(priced) * i64::from(alpha)) >> 16) as i32,
        false => -NOT_DEEPER,
    };
    let squares = SCATTER_WEIGHT * variance + deep.squares(of) + shallow.squares(of);
    let freedom = (deep.counted() + shallow.counted()) as i64 - 2;
    Compared { of, gain, variance: squares / (SCATTER_WEIGHT + freedom), earned: earned(of) }
}

/// The gain of so many rounds is sure beyond this, by so many standard errors.
fn limit(rounds: u32, variance: i64, errors: u64) -> u64 {
    let scatter = variance.max(0).unsigned_abs().isqrt().max(SCATTER_MIN);
    let root_256ths = (u64::from(rounds.div_ceil(2)) << 16).isqrt();
    errors * scatter * 256 / root_256ths + if rounds == 1 { FIRST_ROUND } else { 0 }
}

fn is_other_size(a: &Phase, b: &Phase) -> bool {
    (a.step_log - b.step_log).abs() > SIZE_CHANGED
}

/// The smallest depth that is tried where requests have `mean` units: two of them go at a time. At a smaller one a
/// device idles between two, and nothing smaller waits less; every depth up to `mean` does the same.
fn least(mean: u32, depth_max: u32) -> u32 {
    mean.saturating_add(1).min(depth_max)
}

/// The depth nearest to `depth` at which requests of `step` units make a step: one more of them goes (R1).
fn on_grid(depth: u64, step: u32, depth_max: u32) -> u32 {
    let step = u64::from(step);
    let depth = depth.clamp(1, depth_max.into());
    (1 + (depth - 1 + step / 2) / step * step).min(depth_max.into()) as u32
}

/// The D to try from `depth`: by `factor`, 65536ths, and at least one step; one of `depths`.
fn candidate(depth: u32, factor: u64, is_up: bool, step: u32, depths: RangeInclusive<u32>) -> Option<u32> {
    let (depth_wide, depth_max) = (u64::from(depth), *depths.end());
    if is_up {
        let trial = ((depth_wide * factor) >> 16).max(depth_wide + u64::from(step));
        return (depth < depth_max).then(|| on_grid(trial, step, depth_max));
    }
    let by_factor = (depth_wide << 16) / factor;
    let trial = by_factor.min(depth_wide.saturating_sub(step.into()));
    let trial = on_grid(trial, step, depth_max).min(depth.saturating_sub(1)).max(*depths.start());
    (trial < depth).then_some(trial)
}

/// Factor less 1, in thousandths, of a small logarithm to base 2 in 65536ths.
fn thousandths(log: i32) -> i32 {
    ((i64::from(log) * 693) >> 16) as i32
}

/// A number of a phase that depths are compared by.
#[derive(Clone, Copy, Debug)]
enum Of {
    Units,
    Weighed,
    /// The time in the system of a unit, negative.
    Stay,
}

/// Phases of one depth in one comparison.
#[derive(Clone, Copy, Debug)]
struct Phases {
    count: u16,
    is_in_parts: bool,
    /// Sums of `device_log`, `system_log`, `request_log` and `waiting`.
    device_log: i64,
    system_log: i64,
    request_log: i64,
    waiting: i64,
    /// By [`Of`], the largest first.
    logs: [[i32; Phases::MAX]; 3],
}

impl Phases {
    /// Those at D are one more than the rounds.
    const MAX: usize = ROUNDS_MAX[2] as usize + 1;

    const NONE: Phases = Phases {
        count: 0,
        is_in_parts: true,
        device_log: 0,
        system_log: 0,
        request_log: 0,
        waiting: 0,
        logs: [[0; Phases::MAX]; 3],
    };

    fn add(&mut self, phase: &Phase) {
        if self.count == 0 {
            (self.is_in_parts, self.device_log, self.system_log) = (true, 0, 0);
            (self.request_log, self.waiting) = (0, 0);
        }
        let of_phase = [phase.units_log, phase.weighed_log, phase.units_log - phase.system_log];
        for (logs, log) in self.logs.iter_mut().zip(of_phase) {
            let mut place = usize::from(self.count);
            while place > 0 && logs[place - 1] < log {
                logs[place] = logs[place - 1];
                place -= 1;
            }
            logs[place] = log;
        }
        self.count += 1;
        self.is_in_parts &= phase.is_in_parts;
        self.device_log += i64::from(phase.device_log);
        self.system_log += i64::from(phase.system_log);
        self.request_log += i64::from(phase.request_log);
        self.waiting += i64::from(phase.waiting);
    }

    /// Work and time on the device of these, at `depth`, over those of `base`.
    fn beside(&self, base: &Phases, depth: u32) -> Tried {
        let work_log = self.mean(Of::Units) - base.mean(Of::Units);
        Tried { depth, work_log, stay_log: self.device_log() - base.device_log() - work_log }
    }

    /// Whether less than a quarter of the units in the system are on the device, so that weights bind.
    fn is_tight(&self) -> bool {
        self.system_log - self.device_log > i64::from(TIGHT) * i64::from(self.count)
    }

    /// Phases that count: the faster half.
    fn counted(&self) -> usize {
        usize::from(self.count.div_ceil(2))
    }

    fn device_log(&self) -> i32 {
        (self.device_log / i64::from(self.count)) as i32
    }

    fn request_log(&self) -> i32 {
        (self.request_log / i64::from(self.count)) as i32
    }

    /// Mean of the phases that count.
    fn mean(&self, of: Of) -> i32 {
        let counted = &self.logs[of as usize][..self.counted()];
        (counted.iter().map(|&log| i64::from(log)).sum::<i64>() / counted.len() as i64) as i32
    }

    /// The largest less the smallest of all phases.
    fn range(&self, of: Of) -> u32 {
        let logs = &self.logs[of as usize];
        logs[0].abs_diff(logs[usize::from(self.count) - 1])
    }

    /// Sum of the squares of their distances from their mean.
    fn squares(&self, of: Of) -> i64 {
        let logs = &self.logs[of as usize][..self.counted()];
        let mean = logs.iter().map(|&log| i64::from(log)).sum::<i64>() / logs.len() as i64;
        logs.iter().map(|&log| (i64::from(log) - mean) * (i64::from(log) - mean)).sum()
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests;
