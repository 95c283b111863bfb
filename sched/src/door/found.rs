//! Permits that are found: what places count of their jobs, and when a step of the search is due.
//!
//! Answers: how many jobs should be under way at once? The search is [`crate::depth`]; here a unit is a job. A place
//! counts under its own lock. After so many ends of jobs ([`STEP_JOBS`]) the caller that has left the lock reads all
//! places, unless another one is just doing that, and puts the answer in force. The window follows D as it is chosen.

use super::shared::{Kicks, Shared, lock, window_of};
use crate::depth::{Controller, Counted, Gathering, Sample, State};
use crate::policy::{Pick, Policy, WindowTerms};
use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::topology::HctxId;
use crate::vtime::VSpan;
use alloc::{vec, vec::Vec};

/// A step after so many ends of a place, and four for each place that it reads.
const STEP_JOBS: u32 = 32;
const STEP_JOBS_PER_PLACE: u32 = 4;

/// Permits as they are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FoundPermits {
    /// D in force, which may be one that is only tried.
    pub permits: u32,
    /// D as chosen.
    pub chosen: u32,
    /// Why, in half a sentence.
    pub why: &'static str,
}

/// The search, and its clock.
pub(super) struct Found {
    clock: fn() -> u64,
    /// [`Controller::epoch`], for the places.
    epoch: AtomicU32,
    step_jobs: u32,
    tuner: Mutex<Tuner>,
}

struct Tuner {
    controller: Controller,
    sample: Sample,
    /// Time that each place had waited at the last step.
    waited_ns: Vec<u64>,
    /// D for which the window is.
    window_for: u32,
}

/// Counts of a place, under its lock. Sums wrap.
#[derive(Default)]
pub(super) struct Meter {
    jobs: u64,
    system_ns: u64,
    device_ns: u64,
    waiting_ns: u64,
    accounted_ns: u64,
    out: u64,
    /// The last pick left a job waiting for a permit.
    is_waiting: bool,
    completed_ns: u64,
    /// The longest time without an end in `epoch`.
    silent_ns: (u64, u64),
    epoch: u32,
    since_step: u32,
}

impl Meter {
    fn account(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.accounted_ns);
        self.device_ns = self.device_ns.wrapping_add(self.out.wrapping_mul(elapsed_ns));
        self.waiting_ns = self.waiting_ns.wrapping_add(u64::from(self.is_waiting) * elapsed_ns);
        self.accounted_ns = self.accounted_ns.max(now_ns);
    }

    /// The queue is empty.
    pub(super) fn emptied(&mut self) {
        self.is_waiting = false;
    }
}

impl Found {
    pub(super) fn new(depth: u32, most: u32, places: usize, clock: fn() -> u64) -> Found {
        let tuner = Tuner {
            controller: Controller::new(depth, most),
            sample: Sample::default(),
            waited_ns: vec![0; places],
            window_for: depth,
        };
        let step_jobs = STEP_JOBS.max(STEP_JOBS_PER_PLACE * places as u32);
        Found { clock, epoch: AtomicU32::new(0), step_jobs, tuner: Mutex::new(tuner) }
    }

    /// The clock now, ns.
    pub(super) fn now_ns(&self) -> u64 {
        (self.clock)()
    }

    pub(super) fn state(&self) -> FoundPermits {
        let State { depth, chosen, reason, .. } = lock(&self.tuner).controller.state();
        FoundPermits { permits: depth, chosen, why: reason.text() }
    }

    /// A pick had this answer.
    pub(super) fn picked(&self, meter: &mut Meter, pick: &Pick, policy: &impl Policy) {
        meter.account(self.now_ns());
        meter.out += u64::from(matches!(pick, Pick::Dispatch(_)));
        // A throttled queue is woken with a permit alone.
        meter.is_waiting = match pick {
            Pick::NoToken => true,
            Pick::Throttled => policy.is_out_of_units(),
            _ => false,
        };
    }

    /// A job has ended that was pushed at `pushed_ns`. True: a step is due.
    pub(super) fn ended(&self, meter: &mut Meter, pushed_ns: u64) -> bool {
        let now_ns = self.now_ns();
        meter.account(now_ns);
        meter.out = meter.out.saturating_sub(1);
        meter.jobs = meter.jobs.wrapping_add(1);
        meter.system_ns = meter.system_ns.wrapping_add(now_ns.saturating_sub(pushed_ns));
        // Relaxed: a place that sees it late counts a silence of the phase before.
        let epoch = self.epoch.load(Ordering::Relaxed);
        let (from_ns, to_ns) = meter.silent_ns;
        if meter.epoch != epoch || now_ns.saturating_sub(meter.completed_ns) > to_ns - from_ns {
            (meter.silent_ns, meter.epoch) = ((meter.completed_ns.min(now_ns), now_ns), epoch);
        }
        meter.completed_ns = now_ns;
        meter.since_step += 1;
        if meter.since_step < self.step_jobs {
            return false;
        }
        meter.since_step = 0;
        true
    }
}

impl Shared {
    /// A step of the search, without any lock held.
    #[cold]
    pub(super) fn step(&self, kicks: &mut Kicks) {
        let Some(found) = &self.found else { return };
        let Ok(mut tuner) = found.tuner.try_lock() else { return };
        let now_ns = found.now_ns();
        self.read(&mut tuner, now_ns);
        let Tuner { controller, sample, window_for, .. } = &mut *tuner;
        let depth = controller.step(sample);
        // Relaxed: see `Found::ended`.
        found.epoch.store(controller.epoch(), Ordering::Relaxed);
        let chosen = controller.state().chosen;
        if chosen != *window_for {
            *window_for = chosen;
            // Charged late: no leases (`Mqfq::charge_late`).
            let terms = WindowTerms::relaxed(window_of(chosen), self.places.len());
            self.mqfq.set_window(&WindowTerms { lease: VSpan(0), ..terms });
            (0..self.places.len()).for_each(|at| kicks.push(HctxId(at as u16)));
        }
        if self.mqfq.depth() != Some(depth) {
            self.mqfq.set_depth(HctxId(0), depth, &mut |hctx| kicks.push(hctx));
            kicks.push(HctxId(0));
        }
    }

    fn read(&self, tuner: &mut Tuner, now_ns: u64) {
        let Tuner { controller, sample, waited_ns, .. } = tuner;
        let mut sum = Gathering::new(sample, now_ns);
        for (place, waited_ns) in self.places.iter().zip(waited_ns) {
            let meter = &mut lock(&place.inner).meter;
            meter.account(now_ns);
            sum.work(0, meter.jobs, meter.jobs);
            let counted = Counted {
                device_unit_ns: meter.device_ns,
                system_unit_ns: meter.system_ns,
                out_units: meter.out,
                waited_ns: meter.waiting_ns,
                completed_ns: meter.completed_ns,
                silent_ns: (meter.epoch == controller.epoch()).then_some(meter.silent_ns),
            };
            sum.add(&counted, waited_ns);
        }
        *sample = sum.end();
    }
}
