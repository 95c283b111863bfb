//! Permits that are found: what places count of their jobs, and when a step of the search is due.
//!
//! Answers: how many jobs should be under way at once? The search is [`crate::depth`]. D counts jobs, the work done
//! counts cost, so that a tenant whose jobs are larger or smaller than others' is no change of throughput. A unit of
//! work is the cost of a mean job at the start; if the mean is far from it one day, the unit becomes that and the
//! measurement under way begins anew. A place counts under its own lock. After so many ends of jobs ([`STEP_JOBS`]) the
//! caller that has left the lock reads all places, unless another one is just doing that, and puts the answer in force.
//! The window follows D as it is chosen.

use super::shared::{Kicks, Place, Shared, lock, window_of};
use crate::depth::{Controller, Counted, Gathering, Sample, State};
use crate::policy::{Pick, Policy, WindowTerms};
use crate::sync::CachePadded;
use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::topology::HctxId;
use crate::vtime::VSpan;
use alloc::{vec, vec::Vec};

/// A step after so many ends of a place, and four for each place that it reads.
const STEP_JOBS: u32 = 32;
const STEP_JOBS_PER_PLACE: u32 = 4;

/// Ends of jobs whose mean cost is looked at.
const MEAN_JOBS: u64 = 128;

/// The mean is so many times the unit, or so small a part of it, when it becomes the unit. Between that the search is
/// right, and its phases are longer or shorter in jobs; a unit that followed tenants that come and go would end them.
const OTHER_UNIT: u64 = 32;

/// Permits as they are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FoundPermits {
    /// D in force, perhaps a D that is only tried.
    pub permits: u32,
    /// D as chosen.
    pub chosen: u32,
    /// Reason, in half a sentence.
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
    /// Cost of a unit of work; 0: no job has ended.
    unit: u64,
    /// Jobs and their cost when the mean was looked at.
    looked: (u64, u128),
    /// D for which the window is.
    window_for: u32,
}

/// Counts of a place, under its lock. Sums of 64 bits wrap; those of 128 do not come so far.
#[derive(Default)]
pub(super) struct Meter {
    jobs: u64,
    cost: u128,
    /// Cost of each job times its time from pushed to ended.
    system_cost_ns: u128,
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
            unit: 0,
            looked: (0, 0),
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

    /// A job has ended that was pushed at `pushed_ns` and has cost `actual`. True: a step is due.
    pub(super) fn ended(&self, meter: &mut Meter, pushed_ns: u64, actual: u64) -> bool {
        let now_ns = self.now_ns();
        meter.account(now_ns);
        meter.out = meter.out.saturating_sub(1);
        meter.jobs = meter.jobs.wrapping_add(1);
        meter.cost += u128::from(actual);
        meter.system_cost_ns += u128::from(actual) * u128::from(now_ns.saturating_sub(pushed_ns));
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
        tuner.look(self.done(), now_ns);
        let Tuner { controller, sample, waited_ns, unit, .. } = tuner;
        let unit = u128::from((*unit).max(1));
        let mut sum = Gathering::new(sample, now_ns);
        for (place, waited_ns) in self.places.iter().zip(waited_ns) {
            let meter = &mut lock(&place.inner).meter;
            meter.account(now_ns);
            // In two classes: a job takes one permit whatever it costs, so the grid of the search is 1.
            sum.work(0, 0, meter.jobs);
            sum.work(1, (meter.cost / unit) as u64, 0);
            let counted = Counted {
                device_unit_ns: meter.device_ns,
                system_unit_ns: (meter.system_cost_ns / unit) as u64,
                out_units: meter.out,
                waited_ns: meter.waiting_ns,
                completed_ns: meter.completed_ns,
                silent_ns: (meter.epoch == controller.epoch()).then_some(meter.silent_ns),
            };
            sum.add(&counted, waited_ns);
        }
        *sample = sum.end();
    }

    /// Jobs that have ended, and their cost.
    fn done(&self) -> (u64, u128) {
        let of_place = |(jobs, cost): (u64, u128), place: &CachePadded<Place>| {
            let meter = &lock(&place.inner).meter;
            (jobs.wrapping_add(meter.jobs), cost + meter.cost)
        };
        self.places.iter().fold((0, 0), of_place)
    }
}

impl Tuner {
    /// Takes the mean cost of the last jobs as the unit if it is far from the unit ([`OTHER_UNIT`]).
    fn look(&mut self, (jobs, cost): (u64, u128), now_ns: u64) {
        let ended = jobs.wrapping_sub(self.looked.0);
        if ended == 0 || ended < MEAN_JOBS && self.unit != 0 {
            return;
        }
        let mean = ((cost - self.looked.1) / u128::from(ended)).max(1) as u64;
        self.looked = (jobs, cost);
        if mean < self.unit / OTHER_UNIT || mean / OTHER_UNIT > self.unit || self.unit == 0 {
            self.unit = mean;
            self.controller.pause(now_ns);
        }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_unit_of_work_is_the_cost_of_a_mean_job_until_that_is_far_from_it() {
        let found = Found::new(4, 64, 1, || 0);
        let tuner = &mut *lock(&found.tuner);
        let mut done = (0, 0);
        // Jobs, the cost of each, the unit then.
        for (jobs, each, unit) in [
            (0, 0, 0),
            (1, 100, 100),
            (127, 4000, 100),
            (1, 4000, 4000),
            (128, 125, 4000),
            (128, 124, 124),
            (128, 32 * 125 - 1, 124),
            (128, 32 * 125, 4000),
            (128, 0, 1),
        ] {
            done = (done.0 + jobs, done.1 + u128::from(jobs * each));
            tuner.look(done, 0);
            assert_eq!(tuner.unit, unit, "after {jobs} of {each}");
        }
    }
}
