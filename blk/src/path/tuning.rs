//! Figures of a policy that are found while it runs: their measurements, and when they are changed.
//!
//! Answers: how does a controller ([`mqfq_sched::depth`]) learn what all workers' requests did, without a line that
//! they share on the path? One [`Tuning`] per device and policy, shared by the workers; none for a device whose figures
//! are numbers.
//!
//! # Shape
//! ```text
//!   worker 0: Meter ─ writes ─▶ Line 0 ┐
//!   worker 1: Meter ─ writes ─▶ Line 1 ├─▶ sum ─▶ Controller ─▶ Policy::set_depth
//!      ...                             ┘    └───▶ WindowRule ─▶ Policy::set_window
//!                                           whichever worker is due and finds the flag free, after a reap
//! ```
//! A worker counts on lines of its own: plain loads and stores, whose values other workers read as they find them.
//! After so many completions of its own ([`Tuning::new`]) it tries the flag once. If it gets it, it reads all lines,
//! steps the controller, and puts its answer in force. If not, another worker does so just now.
//!
//! # Approximations
//! * Lines are read while they are written, so a sum is off by the requests under way: a few requests of the hundred
//!   and more of a phase. Counts of a worker since its last run or reap are not on its line yet.
//! * *A worker waits for a token*: a worker waits for as long as its last pick answered `NoToken`, or `Throttled` while
//!   no unit was free. A throttled queue that virtual time lets go is woken only with a token, so of two workers with
//!   requests longer than T and a reader beside them none would seem to wait for a third of the time, and D would stay
//!   at 1.
//! * *Flows that wait*: those in queues whose worker's last pick was held back, at the moment of a step, a flow in two
//!   queues twice. The rule takes a mean.
//! * *Completions per reap*: those of all workers in a step over their reaps that found some. A worker
//!   that never reaps in vain is not told from one that sleeps long.
//! * *Time in the system*: where all requests are of one unit, the mean of the first one's and the last one's of a reap
//!   stands for all. One and two are exact, and so is a time that grows evenly from the first to the last.
//! * *A device that is empty when workers look*: a reap that leaves nothing of its own worker's. Other workers'
//!   commands are not looked at; if it is empty for each, it is for all.
//! * Waiting and silence of all workers: those of [`Gathering`].
//!
//! # Invariants
//! M1. A line is written by its worker alone. `Tuner` is touched by the holder of the flag alone.
//! M2. No worker waits for the flag on the path. A D put in force was computed from sums no older than the flag.
//!
//! # Cost
//! For each request its units are added to a word of the worker's own at dispatch. As many units on the device as
//! commands: all are of one unit, and the list of completions is the count. Else the units of each are compared with
//! those of the request before. For each run and each reap, stores to the own lines; for
//! each step, one in [`STEP_COMPLETIONS`] or more, a read of all lines, of which about three have changed for each
//! worker.

use crate::counters::{Counters, FlowCounters};
use crate::request::Completion;
use crate::table::Owner;
use mqfq_sched::depth::{CLASSES, Controller, Counted, Gathering, Reaps, Sample, Turns, class_of};
pub use mqfq_sched::depth::{Probe, Reason, State, Table, Tried, Verdict};
use mqfq_sched::flow::FlowId;
use mqfq_sched::goal::{Counts, GoalControl, Orders, Reading};
pub use mqfq_sched::goal::{Fares, GOAL_BYTES_MAX, GOAL_NS, GoalState};
use mqfq_sched::policy::{Kick, Policy, PolicyOptions};
use mqfq_sched::sync::{AtomicU32, AtomicU64, Ordering};
use mqfq_sched::topology::HctxId;
use mqfq_sched::window_rule::{Seen, WindowRule};
pub use mqfq_sched::window_rule::{WindowReason, WindowState};
use std::cell::UnsafeCell;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A worker steps the controller after at least so many completions of its own.
const STEP_COMPLETIONS: u32 = 32;

/// And after so many for each worker, whose lines a step reads.
const STEP_COMPLETIONS_PER_WORKER: u32 = 4;

/// Looks of a reader at a flag that is taken, before it gives up: the holder has panicked.
const LOOKS_MAX: u32 = 10_000;

/// Looks after those of a caller that must not go on without, and the time between two: a worker may have lost its
/// core while it held the flag.
const PARKS_MAX: u32 = 5_000;
const PARK: Duration = Duration::from_millis(1);

/// Figures in force that are found while a policy runs, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InForce {
    /// Time of this state, ns since the engine started.
    pub at_ns: u64,
    /// State of the depth D; `None`: D is a number.
    pub depth: Option<State>,
    /// Depths that were compared with D since the load changed last; none if D is a number.
    pub depths: Table,
    /// State of the window T; `None`: T is a number.
    pub window: Option<WindowState>,
}

/// Figures that were found, and what was learnt of them, for the policy when it comes back; and its options.
#[derive(Clone)]
pub struct Found {
    options: PolicyOptions,
    controller: Controller,
    window: Option<WindowRule>,
}

/// Latency goals of a device's tenants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Goals {
    /// The least throughput that a goal may leave, thousandths of what the found D brings, 1..=1000.
    pub floor_thousandths: u32,
    /// Each goal.
    pub goals: Vec<Goal>,
}

/// A latency goal of a tenant, or of the tenants of a group together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Goal {
    /// The tenant or the group.
    pub name: String,
    /// Nine of ten requests of at most [`GOAL_BYTES_MAX`] take no longer from submission to completion, ns
    /// ([`GOAL_NS`]).
    pub goal_ns: u64,
    /// The flows that have this goal; each flow has one goal at most.
    pub flows: Vec<FlowId>,
}

impl Default for Goals {
    fn default() -> Goals {
        Goals { floor_thousandths: GoalControl::FLOOR_THOUSANDTHS, goals: Vec::new() }
    }
}

/// Goals in force on a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GoalsInForce {
    /// D is at most this, for the goals' sake; `None`: it is as found.
    pub cap: Option<u32>,
    /// Work of the device at the found D, bytes per second; 0: not known.
    pub best_bytes_per_s: u64,
    /// Each goal, by name.
    pub goals: Vec<(String, GoalState)>,
}

/// Measurements of one device by its workers, and the figures found. See the module's text.
pub struct Tuning {
    /// Lines, by hctx; each worker has its own at hand.
    lines: Box<[Arc<Line>]>,
    /// Counters of the flows, by hctx, once its worker has opened the device.
    counters: Box<[OnceLock<Arc<Counters>>]>,
    /// [`Orders::part_bytes`], for the workers: of `std`, because no decision about order hangs on it.
    part_bytes: std::sync::atomic::AtomicU32,
    /// [`Controller::epoch`], for the workers.
    epoch: Padded<AtomicU32>,
    tuner: TryOnce<Tuner>,
    step_completions: u32,
    finds_depth: bool,
}

/// Counts of one worker. Only its own [`Meter`] writes them; each word for itself is right.
#[derive(Default)]
#[repr(align(128))]
struct Line {
    /// Units and requests completed, by class.
    work: [[AtomicU64; 2]; CLASSES],
    system_unit_ns: AtomicU64,
    device_unit_ns: AtomicU64,
    waiting_ns: AtomicU64,
    accounted_ns: AtomicU64,
    out_units: AtomicU64,
    /// 1: the last pick left a request waiting for a token.
    is_waiting: AtomicU64,
    /// Flows with requests here, if the last pick answered `NoToken` or `Throttled`; else 0.
    waiting_flows: AtomicU64,
    /// Reaps that found completions, and in the upper half those of them that left nothing of this worker's on the
    /// device.
    reaps: AtomicU64,
    completed_ns: AtomicU64,
    /// The longest time without a completion in `epoch`.
    silent_from_ns: AtomicU64,
    silent_to_ns: AtomicU64,
    epoch: AtomicU32,
}

#[derive(Default)]
#[repr(align(128))]
struct Padded<T>(T);

struct Tuner {
    /// `None`: D is a number.
    controller: Option<Controller>,
    /// `None`: T is a number.
    window: Option<WindowRule>,
    options: PolicyOptions,
    sample: Sample,
    /// Reaps that found completions, until the last step, and those of them that left nothing on the device.
    reaps: u32,
    empty_reaps: u32,
    /// D where the device is empty whenever a worker looks.
    turns: Turns,
    /// Time that each worker had waited at the last step, by hctx.
    waited_ns: Box<[u64]>,
    /// `None`: no tenant has a latency goal.
    goals: Option<Box<Aims>>,
    orders: Orders,
    /// D in force, where it is found.
    depth: u32,
}

/// Latency goals, and what holds them.
struct Aims {
    goals: Goals,
    control: GoalControl,
}

/// Counts of a worker between two looks at its line. Requests are counted without a look at whether the meter is on: a
/// path that is taken while it is off leaves the counting out, and on the others the counts of a meter that is off are
/// for nothing.
pub(crate) struct Meter {
    /// `None`: it is off.
    hand: Option<Hand>,
    out_units: u64,
    /// Completions that are not on the line yet, all of so many units, and their times in the system, ns.
    run_units: u32,
    run_requests: u32,
    run_total_ns: u64,
}

struct Hand {
    line: Arc<Line>,
    /// Completions until this worker's next step.
    step_after: u32,
    tuning: Arc<Tuning>,
    hctx: HctxId,
}

impl Tuning {
    /// For a policy with these options and so many workers; `None` if all its figures are numbers.
    pub fn new(options: &PolicyOptions, workers: usize) -> Option<Arc<Tuning>> {
        Tuning::resumed(options, workers, None)
    }

    /// As [`Tuning::new`], but it goes on where an earlier one of the device has ended: if units are the same, and so
    /// is the D or T to begin with.
    pub fn resumed(options: &PolicyOptions, workers: usize, found: Option<Found>) -> Option<Arc<Tuning>> {
        if !options.depth_auto && options.window_least.is_none() {
            return None;
        }
        let begins = |of: &PolicyOptions| (of.depth_auto, of.depth, of.token_unit_bytes, of.window_least, of.window);
        let found = found.filter(|found| begins(&found.options) == begins(options));
        let (before, window) = found.map(|found| (found.controller, found.window)).unzip();
        let mut controller = options.depth_auto.then(|| Controller::new(options.depth, PolicyOptions::DEPTH_MAX));
        if let (Some(controller), Some(mut before)) = (&mut controller, before) {
            before.resume();
            *controller = before;
        }
        let depth = controller.as_ref().map_or(options.depth, Controller::depth);
        let epoch = controller.as_ref().map_or(0, Controller::epoch);
        let tuner = Tuner {
            controller,
            window: window.flatten().or_else(|| options.window_least.map(|_| WindowRule::new(options, workers))),
            options: *options,
            sample: Sample::default(),
            reaps: 0,
            empty_reaps: 0,
            turns: Turns::new(workers, PolicyOptions::DEPTH_MAX),
            waited_ns: vec![0; workers].into(),
            goals: None,
            orders: Orders::NONE,
            depth,
        };
        Some(Arc::new(Tuning {
            lines: (0..workers).map(|_| Arc::default()).collect(),
            counters: (0..workers).map(|_| OnceLock::new()).collect(),
            part_bytes: std::sync::atomic::AtomicU32::new(Orders::NONE.part_bytes),
            epoch: Padded(AtomicU32::new(epoch)),
            tuner: TryOnce::new(tuner),
            finds_depth: options.depth_auto,
            step_completions: STEP_COMPLETIONS.max(STEP_COMPLETIONS_PER_WORKER * workers as u32),
        }))
    }

    /// Figures found until now; `None`: D is a number, or a worker panicked while it was about to change them.
    pub fn found(&self) -> Option<Found> {
        for _ in 0..LOOKS_MAX {
            let found = self.tuner.try_with(|tuner| {
                let Tuner { options, controller, window, .. } = tuner;
                Some(Found { options: *options, controller: controller.clone()?, window: window.clone() })
            });
            if let Some(found) = found {
                return found;
            }
            std::thread::yield_now();
        }
        None
    }

    /// Gives a policy of these options that no worker uses yet the figures that this begins with.
    pub fn put_in_force<P: Policy>(&self, policy: &P) {
        self.tuner.try_with(|tuner| {
            if tuner.depth != tuner.options.depth {
                policy.set_depth(HctxId(0), tuner.depth, &mut |_: HctxId| ());
            }
            let window = tuner.window.as_ref().map(WindowRule::window);
            if let Some(window) = window.filter(|window| policy.window_terms().is_some_and(|now| now.window != *window))
            {
                policy.set_window(&tuner.options.terms_of(window, self.lines.len()));
            }
        });
    }

    /// Figures in force now, at `at_ns`, and why. `None`: a worker panicked while it was about to change them.
    pub fn in_force(&self, at_ns: u64) -> Option<InForce> {
        for _ in 0..LOOKS_MAX {
            let state = self.try_in_force(at_ns);
            if state.is_some() {
                return state;
            }
            std::thread::yield_now();
        }
        None
    }

    /// [`Tuning::in_force`] without waiting. `None`: a worker is about to change the figures.
    pub fn try_in_force(&self, at_ns: u64) -> Option<InForce> {
        self.tuner.try_with(|tuner| InForce {
            at_ns,
            // A cap for a latency goal's sake is in force beside what was found.
            depth: tuner.controller.as_ref().map(|controller| State { depth: tuner.depth, ..controller.state() }),
            depths: tuner.controller.as_ref().map(Controller::table).unwrap_or_default(),
            window: tuner.window.as_ref().map(WindowRule::state),
        })
    }

    /// The tenants have these goals from now on, in place of those before. They are held where D is found. Waits while
    /// a worker is about to change figures; false if that worker panicked.
    pub fn set_goals(&self, goals: &Goals) -> bool {
        let flows: usize = goals.goals.iter().map(|goal| goal.flows.len()).sum();
        let words = (flows * self.lines.len() * mqfq_sched::goal::BUCKETS) as u64;
        let each_ns = goals.goals.iter().map(|goal| goal.goal_ns);
        let control = GoalControl::new(each_ns, goals.floor_thousandths, words);
        let mut aims =
            (!goals.goals.is_empty() && self.finds_depth).then(|| Box::new(Aims { goals: goals.clone(), control }));
        for look in 0..LOOKS_MAX + PARKS_MAX {
            let done = self.tuner.try_with(|tuner| {
                if tuner.goals.as_ref().is_some_and(|now| now.goals == *goals) {
                    return;
                }
                std::mem::swap(&mut tuner.goals, &mut aims);
                self.show_goals(aims.as_deref(), true);
                self.show_goals(tuner.goals.as_deref(), false);
            });
            match done {
                Some(()) => return true,
                None if look < LOOKS_MAX => std::thread::yield_now(),
                None => std::thread::park_timeout(PARK),
            }
        }
        false
    }

    /// Writes the goals to the counters of their flows, or takes them away.
    fn show_goals(&self, aims: Option<&Aims>, away: bool) {
        for goal in aims.into_iter().flat_map(|aims| &aims.goals.goals) {
            let goal_ns = if away { 0 } else { goal.goal_ns };
            for flow in &goal.flows {
                let all = self.counters.iter().filter_map(OnceLock::get);
                all.filter_map(|counters| counters.flow(*flow)).for_each(|counters| counters.set_goal(goal_ns));
            }
        }
    }

    /// Goals now. `None`: no tenant has one, or a worker panicked while it was about to change figures.
    pub fn goals(&self) -> Option<GoalsInForce> {
        for _ in 0..LOOKS_MAX {
            if let Some(state) = self.try_goals() {
                return state;
            }
            std::thread::yield_now();
        }
        None
    }

    /// [`Tuning::goals`] without waiting. Outer `None`: a worker is about to change the figures.
    pub fn try_goals(&self) -> Option<Option<GoalsInForce>> {
        self.tuner.try_with(|tuner| {
            let Aims { goals, control } = tuner.goals.as_deref()?;
            let unit_bytes = u128::from(tuner.options.token_unit_bytes.unwrap_or(0));
            let best = (u128::from(control.reference()) * unit_bytes * 1_000_000_000) >> 30;
            Some(GoalsInForce {
                cap: control.cap(),
                best_bytes_per_s: u64::try_from(best).unwrap_or(u64::MAX),
                goals: goals.goals.iter().map(|goal| goal.name.clone()).zip(control.states()).collect(),
            })
        })
    }

    /// Counters of the flows on a worker, for their goals.
    pub(crate) fn read_counters(&self, hctx: HctxId, counters: &Arc<Counters>) {
        // With the same tuning the same counters come again.
        let _ = self.counters[hctx.index()].set(counters.clone());
    }

    pub(crate) fn meter(self: &Arc<Tuning>, hctx: HctxId, now_ns: u64) -> Meter {
        // Relaxed: as all that is written to a line.
        let line = self.lines[hctx.index()].clone();
        line.accounted_ns.store(now_ns, Ordering::Relaxed);
        line.completed_ns.store(now_ns, Ordering::Relaxed);
        let hand = Hand { line, step_after: self.step_completions, tuning: self.clone(), hctx };
        Meter { hand: Some(hand), ..Meter::off() }
    }

    /// Sums up, steps the controller, and puts its answer in force. Returns whether anything has changed.
    #[inline(never)]
    fn step<P: Policy>(&self, policy: &P, from: HctxId, is_in_parts: bool, now_ns: u64, kick: &mut impl Kick) -> bool {
        let changed = self.tuner.try_with(|tuner| {
            let (completed, reaps, empty) = (tuner.sample.requests(), tuner.reaps, tuner.empty_reaps);
            let waiting = self.read(tuner, now_ns);
            let completed = tuner.sample.requests().wrapping_sub(completed);
            let (all, empty) = (tuner.reaps.wrapping_sub(reaps).into(), tuner.empty_reaps.wrapping_sub(empty).into());
            let (seen, reaps) = (Seen { waiting, completed, reaps: all }, Reaps { all, empty, completed });
            tuner.sample.is_in_parts = is_in_parts;
            // Here, and not after the flag is free: the next step may already want others.
            let has_another_depth = self.step_depth(tuner, reaps, policy, from, kick);
            let has_another_window = self.step_window(tuner, seen, policy, now_ns);
            has_another_depth || has_another_window
        });
        changed.unwrap_or(false)
    }

    fn step_depth<P: Policy>(
        &self,
        tuner: &mut Tuner,
        reaps: Reaps,
        policy: &P,
        from: HctxId,
        kick: &mut impl Kick,
    ) -> bool {
        let Tuner { controller: Some(controller), turns, sample, goals, orders, .. } = tuner else { return false };
        let emptied = turns.step(reaps);
        // While a goal's cap binds nothing is learnt about D.
        if orders.cap.is_none() {
            match emptied {
                Some(depth) => controller.hold(depth, sample.now_ns),
                None => controller.step(sample),
            };
        }
        // Relaxed: a number by which a worker sees that a time begins; late is as good.
        self.epoch.0.store(controller.epoch(), Ordering::Relaxed);
        let now = match goals {
            Some(aims) if aims.control.is_due(sample.now_ns) => {
                self.step_goals(aims, controller, &tuner.options, sample)
            }
            Some(_) => *orders,
            None => Orders::NONE,
        };
        if now.cap.is_some() && orders.cap.is_none() {
            controller.pause(sample.now_ns);
        }
        // Relaxed: a size that nothing else is ordered by.
        self.part_bytes.store(now.part_bytes, Ordering::Relaxed);
        *orders = now;
        let depth = now.cap.map_or(controller.depth(), |cap| cap.min(controller.depth()));
        let has_changed = depth != tuner.depth && policy.set_depth(from, depth, kick);
        tuner.depth = depth;
        has_changed
    }

    fn step_goals(&self, aims: &mut Aims, controller: &Controller, options: &PolicyOptions, sample: &Sample) -> Orders {
        let State { chosen, step, reason, .. } = controller.state();
        let Aims { goals, control } = aims;
        let flows = goals.goals.iter().flat_map(|goal| &goal.flows);
        let counters = |flow: FlowId| self.counters.iter().filter_map(move |counters| counters.get()?.flow(flow));
        let own_bytes: u64 = flows.flat_map(|flow| counters(*flow)).map(FlowCounters::moved_bytes).sum();
        let unit_bytes = options.token_unit_bytes.unwrap_or(1);
        let reading = Reading {
            now_ns: sample.now_ns,
            units: sample.units(),
            own_units: own_bytes / u64::from(unit_bytes),
            out_units: sample.out_units,
            found: chosen,
            best_thousandths: controller.table().best_thousandths(),
            is_settled: !matches!(reason, Reason::Start | Reason::Searching | Reason::Changed),
            step,
            unit_bytes,
        };
        control.step(&reading, |index, counts: &mut Counts| {
            let Goal { goal_ns, flows, .. } = &goals.goals[index];
            for flow in flows {
                for counters in counters(*flow) {
                    // A worker may have cleared it, or opened the device since.
                    counters.set_goal(*goal_ns);
                    counters.read_goal(counts);
                }
            }
        })
    }

    /// T follows D as it was chosen: a candidate is in force for moments.
    fn step_window<P: Policy>(&self, tuner: &mut Tuner, seen: Seen, policy: &P, now_ns: u64) -> bool {
        let Tuner { controller, window: Some(rule), options, orders, .. } = tuner else { return false };
        let depth = controller.as_ref().map_or(options.depth, |controller| controller.state().chosen);
        let depth = orders.cap.map_or(depth, |cap| cap.min(depth));
        let window = rule.step(depth, seen, now_ns);
        if policy.window_terms().is_none_or(|terms| terms.window == window) {
            return false;
        }
        policy.set_window(&options.terms_of(window, self.lines.len()));
        true
    }

    /// Reads all lines. Returns the number of flows that wait, as the rule for T counts them.
    fn read(&self, tuner: &mut Tuner, now_ns: u64) -> u32 {
        let Tuner { controller, sample, reaps, empty_reaps, waited_ns, .. } = tuner;
        (*reaps, *empty_reaps) = (0, 0);
        let epoch = controller.as_ref().map_or(0, Controller::epoch);
        let (mut waiting_flows, mut waiting_queues) = (0u32, 0u32);
        let mut sum = Gathering::new(sample, now_ns);
        for (line, waited_ns) in self.lines.iter().zip(waited_ns) {
            // Relaxed: each word for itself; see "Approximations".
            let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
            for (class, [units, requests]) in line.work.iter().enumerate() {
                sum.work(class, get(units), get(requests));
            }
            let (out_units, since_ns) = (get(&line.out_units), now_ns.saturating_sub(get(&line.accounted_ns)));
            let device_unit_ns = get(&line.device_unit_ns).wrapping_add(out_units.wrapping_mul(since_ns));
            let system_unit_ns = get(&line.system_unit_ns);
            let found = get(&line.reaps);
            *reaps = reaps.wrapping_add(found as u32);
            *empty_reaps = empty_reaps.wrapping_add((found >> 32) as u32);
            let flows = get(&line.waiting_flows) as u32;
            (waiting_flows, waiting_queues) = (waiting_flows + flows, waiting_queues + u32::from(flows > 0));
            let waited = get(&line.waiting_ns) + if get(&line.is_waiting) == 1 { since_ns } else { 0 };
            // Relaxed: as above.
            let is_of_this_phase = line.epoch.load(Ordering::Relaxed) == epoch;
            let completed_ns = get(&line.completed_ns);
            let silent_ns = (get(&line.silent_from_ns), get(&line.silent_to_ns));
            let silent_ns = is_of_this_phase.then_some(silent_ns);
            let counted =
                Counted { device_unit_ns, system_unit_ns, out_units, waited_ns: waited, completed_ns, silent_ns };
            sum.add(&counted, waited_ns);
        }
        *sample = sum.end();
        // One queue is never ahead of itself, whatever its flows.
        if waiting_queues > 1 { waiting_flows } else { waiting_queues }
    }
}

impl Meter {
    /// A meter without a reader.
    pub(crate) const fn off() -> Meter {
        Meter { hand: None, out_units: 0, run_units: 1, run_requests: 0, run_total_ns: 0 }
    }

    /// True if the counts are read.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.hand.is_some()
    }

    /// True if D is found, and not T alone.
    pub(crate) fn finds_depth(&self) -> bool {
        self.hand.as_ref().is_some_and(|hand| hand.tuning.finds_depth)
    }

    /// Counts the time since the last call for the units on the device, and as waiting time if one waited.
    #[inline]
    pub(crate) fn account(&mut self, now_ns: u64) {
        if let Some(hand) = &self.hand {
            self.account_on(&hand.line, now_ns);
        }
    }

    fn account_on(&self, line: &Line, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(own(&line.accounted_ns));
        if elapsed_ns > 0 {
            add(&line.device_unit_ns, self.out_units.wrapping_mul(elapsed_ns));
            add(&line.waiting_ns, own(&line.is_waiting) * elapsed_ns);
            set(&line.accounted_ns, now_ns);
        }
    }

    /// Ends a run. Its last pick left a request waiting for a token, or not; that or the window held so many flows
    /// back.
    pub(crate) fn picked(&mut self, is_waiting: bool, waiting_flows: u64) {
        let Some(Hand { line, .. }) = &self.hand else { return };
        set(&line.is_waiting, is_waiting.into());
        set(&line.waiting_flows, waiting_flows);
        set(&line.out_units, self.out_units);
    }

    /// A request of so many units goes to the device.
    #[inline(always)]
    pub(crate) fn dispatched(&mut self, units: u32) {
        self.out_units = self.out_units.wrapping_add(u64::from(units));
    }

    /// True if so many units are on the device.
    #[inline(always)]
    pub(crate) fn has_out(&self, units: u64) -> bool {
        self.out_units == units
    }

    /// A request of so many units is back; submission to now is `total_ns`.
    #[inline(always)]
    pub(crate) fn completed(&mut self, units: u32, total_ns: u64) {
        if units != self.run_units {
            self.begin_run(units);
        }
        // In a meter that is off these are never taken back.
        self.run_requests = self.run_requests.wrapping_add(1);
        self.run_total_ns = self.run_total_ns.wrapping_add(total_ns);
    }

    /// A request of so many units is back and was not carried out: that says nothing about the device.
    #[cold]
    pub(crate) fn given_back(&mut self, units: u32) {
        // In a meter that is off this is never read.
        self.out_units = self.out_units.wrapping_sub(u64::from(units));
    }

    #[inline(never)]
    fn begin_run(&mut self, units: u32) {
        self.end_run();
        self.run_units = units;
    }

    /// Requests of one unit each are back, all of a reap. Nothing else was counted since the last one.
    #[inline(always)]
    pub(crate) fn completed_ones(&mut self, ended: &[(Owner, Completion)]) {
        let (Some(Hand { line, .. }), [(_, first), ..], [.., (_, last)]) = (&self.hand, ended, ended) else { return };
        let requests = ended.len() as u64;
        let ends_ns = first.queued_ns + first.device_ns + last.queued_ns + last.device_ns;
        self.out_units = self.out_units.wrapping_sub(requests);
        put(line, 0, requests, requests, ends_ns.wrapping_mul(requests) / 2, self.out_units);
    }

    /// Puts the completions on the line.
    pub(crate) fn end_run(&mut self) {
        let (requests, total_ns) = (std::mem::take(&mut self.run_requests), std::mem::take(&mut self.run_total_ns));
        let Some(Hand { line, .. }) = &self.hand else { return };
        let size = u64::from(self.run_units);
        let (requests, units) = (u64::from(requests), size * u64::from(requests));
        self.out_units = self.out_units.wrapping_sub(units);
        put(line, class_of(self.run_units), units, requests, size.wrapping_mul(total_ns), self.out_units);
    }

    /// So many requests were reaped and counted. True: it is time for [`Meter::step`].
    #[inline(always)]
    pub(crate) fn reaped(&mut self, requests: usize, now_ns: u64) -> bool {
        if requests == 0 {
            return false;
        }
        let Some(Hand { line, step_after, tuning, .. }) = &mut self.hand else { return false };
        // Relaxed: see `Tuning::step`.
        let epoch = tuning.epoch.0.load(Ordering::Relaxed);
        let before_ns = own(&line.completed_ns);
        // Relaxed: our own word.
        let is_first = line.epoch.load(Ordering::Relaxed) != epoch;
        let longest_ns = own(&line.silent_to_ns).wrapping_sub(own(&line.silent_from_ns));
        if is_first || now_ns.saturating_sub(before_ns) > longest_ns {
            set(&line.silent_from_ns, before_ns);
            set(&line.silent_to_ns, now_ns);
            // Relaxed: like all writes to a line.
            line.epoch.store(epoch, Ordering::Relaxed);
        }
        set(&line.completed_ns, now_ns);
        // One of 2^32 reaps is counted in the upper half, too.
        add(&line.reaps, 1 + (u64::from(self.out_units == 0) << 32));
        *step_after = step_after.saturating_sub(requests as u32);
        *step_after == 0
    }

    /// Largest part of a large request that a latency goal leaves, bytes; `u32::MAX`: any.
    pub(crate) fn part_bytes(&self) -> u32 {
        // Relaxed: see `Tuning::step_depth`.
        self.hand.as_ref().map_or(u32::MAX, |hand| hand.tuning.part_bytes.load(Ordering::Relaxed))
    }

    /// Steps the controller; large requests go in parts now, or whole. True if that changed anything. The caller picks
    /// after it.
    pub(crate) fn step<P: Policy>(&mut self, is_in_parts: bool, policy: &P, now_ns: u64, kick: &mut impl Kick) -> bool {
        let Some(Hand { step_after, tuning, hctx, .. }) = &mut self.hand else { return false };
        *step_after = tuning.step_completions;
        tuning.step(policy, *hctx, is_in_parts, now_ns, kick)
    }
}

/// Adds completions of one class to the own line.
#[inline(always)]
fn put(line: &Line, class: usize, units: u64, requests: u64, system_unit_ns: u64, out_units: u64) {
    let [units_word, requests_word] = &line.work[class];
    add(units_word, units);
    add(requests_word, requests);
    add(&line.system_unit_ns, system_unit_ns);
    set(&line.out_units, out_units);
}

#[inline(always)]
fn own(word: &AtomicU64) -> u64 {
    // Relaxed: no other thread writes it (M1).
    word.load(Ordering::Relaxed)
}

#[inline(always)]
fn set(word: &AtomicU64, value: u64) {
    // Relaxed: readers take each word as they find it.
    word.store(value, Ordering::Relaxed);
}

#[inline(always)]
fn add(word: &AtomicU64, more: u64) {
    set(word, own(word).wrapping_add(more));
}

/// A value that one thread at a time may touch; one that comes meanwhile goes on without it.
struct TryOnce<T> {
    /// 1 while a thread is inside.
    taken: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through `try_with`, by one thread at a time, ordered by `taken`.
unsafe impl<T: Send> Sync for TryOnce<T> {}

impl<T> TryOnce<T> {
    fn new(value: T) -> TryOnce<T> {
        TryOnce { taken: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// The answer of `action`, unless another thread is inside. If `action` panics, no thread gets in any more.
    fn try_with<R>(&self, action: impl FnOnce(&mut T) -> R) -> Option<R> {
        // Relaxed load: a hint. Acquire: pairs with the Release below, so that we see the writes of the last one.
        if self.taken.load(Ordering::Relaxed) != 0
            || self.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return None;
        }
        // SAFETY: the exchange let us in, and no other thread gets in before the store below.
        let result = action(unsafe { &mut *self.value.get() });
        // Release: pairs with the Acquire above.
        self.taken.store(0, Ordering::Release);
        Some(result)
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests;
