//! The search: pairs of phases, until one D is surely better than another.
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
//! The difference of a pair is its gain in logarithms, less `ALPHA` times that of the depth in use. Of more than four
//! pairs the best and the worst are left out: they may be an accident. Sure is a mean of more than `Z` standard errors,
//! whose variance is learnt from all pairs so far and slowly forgotten.

use super::log::{ONE, log2_of_millionths};
use super::sample::Phase;

/// Part of its relative depth that a deeper queue must earn, 65536ths. 0.08: twice the depth must do 5.7% more.
const ALPHA: i32 = 5243;

/// As [`ALPHA`], while large requests go in parts: a quarter, so twice the depth must do 1.4% more. A part holds the
/// device no longer than a small request takes by itself, so one more in front of that is little to it, and one less
/// can be a hole in the work.
const ALPHA_IN_PARTS: i32 = ALPHA / 4;

/// A pair that is not deeper in fact by this earns nothing: 2%.
const DEEPER_MIN: i32 = log2_of_millionths(1_020_201);

/// Cost of such a pair: 5%.
const NOT_DEEPER: i32 = log2_of_millionths(1_051_271);

/// A request waits for a token all the time, or nearly: 80% of it, 65536ths.
const SATURATED: i32 = ONE / 5 * 4;

/// At a smaller D a request must wait for half of the time, or D was no bound; at a larger one for a fifth.
const BOUND_DOWN: i32 = ONE / 2;
const BOUND_UP: i32 = ONE / 5;

/// Standard errors by which a mean must differ from 0.
const Z: u64 = 2;

/// Smallest scatter that is believed, 0.2%; and what the first pair must show besides, 2%.
const SCATTER_MIN: u64 = log2_of_millionths(1_002_002) as u64;
const FIRST_PAIR: u64 = log2_of_millionths(1_020_201) as u64;

/// Scatter of a pair before any was seen: 3%.
const SCATTER_START: i64 = log2_of_millionths(1_030_455) as i64;

/// Factors between D and a candidate, 65536ths: 2, its root, and 1.25.
const FACTORS: [u64; 3] = [131_072, 92_682, 81_920];

/// After a step down by 2 that was right the next is by this: at so large a step one pair is sure.
const FACTOR_FAST: u64 = 262_144;

/// Pairs after which a comparison at that factor ends, whatever it says. Of two depths that far apart and yet alike, a
/// better one lies between: it is found by the next factor, and not by more pairs.
const PAIRS_MAX: [u32; 3] = [12, 24, 64];

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
    /// Mean gain of the candidate, after the price of depth, thousandths; 0 if no pair was complete.
    pub gain_thousandths: i32,
    /// Pairs measured.
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
            Reason::Quiet => "nobody waits for a token, so there is nothing to learn",
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

#[derive(Clone, Copy, Debug)]
enum Task {
    /// Measures D, to see what can be tried.
    Look,
    /// Measures D, which has been brought onto the grid, before the first pair.
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
    pairs: Pairs,
    scatter: Scatter,
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
}

impl Search {
    pub fn new(depth: u32, depth_max: u32) -> Search {
        Search {
            depth_max,
            base: depth,
            task: Task::Look,
            trial: depth,
            pairs: Pairs::default(),
            scatter: Scatter { variance: SCATTER_START * SCATTER_START, seen: 4 },
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
        }
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
            Task::Again { base, trial } => self.pair(&base, &trial, phase, now_ns),
            Task::Hold { left, others } => self.watch(phase, left, others, depth, now_ns),
        }
    }

    /// D was measured: what can be tried?
    fn look(&mut self, phase: &Phase, depth: u32, now_ns: u64) -> u32 {
        let is_full = phase.waiting >= SATURATED;
        if is_full {
            self.choose(on_grid(self.base.into(), phase.step, self.depth_max), now_ns);
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
        self.pairs = Pairs::default();
        self.is_fast &= is_full && !self.is_up;
        let factor = if self.is_fast { FACTOR_FAST } else { FACTORS[self.factor] };
        match candidate(from, factor, self.is_up, phase.step, self.depth_max) {
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
    fn pair(&mut self, before: &Phase, trial: &Phase, after: &Phase, now_ns: u64) -> u32 {
        let is_full = |phase: &Phase| phase.waiting >= SATURATED;
        if is_other_size(before, after) || is_full(before) != is_full(after) {
            return self.conclude(Verdict::NotComparable, None, now_ns);
        }
        let [first, second] =
            [before, after].map(|base| if self.is_up { gain(trial, base) } else { -gain(base, trial) });
        self.pairs.add((first + second) / 2);
        let mean = self.pairs.mean();
        self.scatter.take(first - second, self.pairs.last - mean);
        let limit = self.scatter.limit(self.pairs.count);
        let verdict = if u64::from(mean.unsigned_abs()) > limit {
            if mean > 0 { Verdict::Better } else { Verdict::Worse }
        } else if self.pairs.count >= PAIRS_MAX[self.factor] {
            // In doubt the smaller one.
            if mean > 0 && !self.is_up { Verdict::Better } else { Verdict::Unsure }
        } else {
            self.task = Task::Trial { base: *after };
            return self.trial;
        };
        self.conclude(verdict, Some(after), now_ns)
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
                gain_thousandths: thousandths(self.pairs.mean()),
                pairs: self.pairs.count,
            });
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
        if std::mem::take(&mut self.is_fast) {
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
            (self.base, self.chosen_ns, self.refused) = (depth, now_ns, [0; 2]);
        }
    }
}

/// Gain of the deeper of two phases over the other, 65536ths of a doubling, after the price of its depth.
fn gain(deep: &Phase, shallow: &Phase) -> i32 {
    let deeper = deep.device_log - shallow.device_log;
    if deeper < DEEPER_MIN {
        return -NOT_DEEPER;
    }
    let is_in_parts = deep.is_in_parts && shallow.is_in_parts;
    let earned = if deep.waiting >= SATURATED && is_in_parts {
        // Parts count as requests, and are no tenant's; small requests have their turn between them.
        deep.units_log - shallow.units_log
    } else if deep.waiting >= SATURATED {
        // More work, whatever a command costs (R3).
        (deep.units_log - shallow.units_log).min(deep.weighed_log - shallow.weighed_log)
    } else {
        // The deeper one is not saturated: the total time in the system (R4).
        (shallow.system_log - shallow.units_log) - (deep.system_log - deep.units_log)
    };
    let alpha = if is_in_parts { ALPHA_IN_PARTS } else { ALPHA };
    earned - ((i64::from(deeper) * i64::from(alpha)) >> 16) as i32
}

fn is_other_size(a: &Phase, b: &Phase) -> bool {
    (a.step_log - b.step_log).abs() > SIZE_CHANGED
}

/// The depth nearest to `depth` at which requests of `step` units make a step: one more of them goes (R1).
fn on_grid(depth: u64, step: u32, depth_max: u32) -> u32 {
    let step = u64::from(step);
    let depth = depth.clamp(1, depth_max.into());
    (1 + (depth - 1 + step / 2) / step * step).min(depth_max.into()) as u32
}

/// The D to try from `depth`: by `factor`, 65536ths, and at least one step.
fn candidate(depth: u32, factor: u64, is_up: bool, step: u32, depth_max: u32) -> Option<u32> {
    let depth_wide = u64::from(depth);
    if is_up {
        let trial = ((depth_wide * factor) >> 16).max(depth_wide + u64::from(step));
        return (depth < depth_max).then(|| on_grid(trial, step, depth_max));
    }
    let by_factor = (depth_wide << 16) / factor;
    let trial = by_factor.min(depth_wide.saturating_sub(step.into()));
    let trial = on_grid(trial, step, depth_max).min(depth.saturating_sub(1));
    (trial >= 1).then_some(trial)
}

/// Factor less 1, in thousandths, of a small logarithm to base 2 in 65536ths.
fn thousandths(log: i32) -> i32 {
    ((i64::from(log) * 693) >> 16) as i32
}

/// The gains of one comparison.
#[derive(Clone, Copy, Default, Debug)]
struct Pairs {
    count: u32,
    sum: i32,
    least: i32,
    most: i32,
    last: i32,
}

impl Pairs {
    fn add(&mut self, gain: i32) {
        if self.count == 0 {
            (self.least, self.most) = (gain, gain);
        }
        (self.least, self.most) = (self.least.min(gain), self.most.max(gain));
        self.count += 1;
        self.sum += gain;
        self.last = gain;
    }

    fn mean(&self) -> i32 {
        match self.count {
            0 => 0,
            count @ 1..=4 => self.sum / count as i32,
            count => (self.sum - self.least - self.most) / (count as i32 - 2),
        }
    }
}

/// How far pairs lie apart that should be equal.
#[derive(Clone, Copy, Debug)]
struct Scatter {
    /// Variance of a pair, in 65536ths squared.
    variance: i64,
    seen: u32,
}

impl Scatter {
    /// Takes in a pair: its halves differ by `within`, and it lies off the mean by `off`.
    fn take(&mut self, within: i32, off: i32) {
        let square = |x: i32| i64::from(x) * i64::from(x);
        self.seen = self.seen.saturating_add(1);
        // The mean of all at first, later of the last 20.
        self.variance += ((square(within) / 4).max(square(off)) - self.variance) / i64::from(self.seen.min(20));
    }

    /// The mean of so many pairs is sure beyond this.
    fn limit(&self, pairs: u32) -> u64 {
        let scatter = self.variance.max(0).unsigned_abs().isqrt().max(SCATTER_MIN);
        let root_256ths = (u64::from(pairs) << 16).isqrt();
        Z * scatter * 256 / root_256ths + if pairs == 1 { FIRST_PAIR } else { 0 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
