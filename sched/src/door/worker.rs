//! A loop per core.

use super::refused::Refused;
use super::shared::{AWAY, Bell, FREE, Inner, Kicks, Permit, Scheduler, Shared, Tenant, WORKER, lock};
use crate::sync::{Arc, MutexGuard, Ordering};
use alloc::{boxed::Box, vec::Vec};

/// Handles that a worker keeps.
const HANDLES_MAX: usize = 64;

/// The owner of a place: pushes jobs of type `J` and starts them. One thread at a time uses it.
pub struct Worker<J> {
    shared: Arc<Shared>,
    at: usize,
    /// Jobs by slot.
    jobs: Box<[Option<J>]>,
    /// Handles of permits that have come back, so that a permit counts nothing.
    handles: Vec<Arc<Shared>>,
    /// Empty outside of a call.
    kicks: Kicks,
    now_ns: u64,
    look_again_ns: Option<u64>,
}

/// Names a job that waits. It is of no use with another worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct JobId {
    /// Address of the scheduler.
    scheduler: usize,
    place: u16,
    slot: u32,
    generation: u32,
}

impl JobId {
    /// As numbers, for another language.
    pub const fn words(self) -> [u64; 3] {
        [self.scheduler as u64, (self.place as u64) << 32 | self.slot as u64, self.generation as u64]
    }

    /// From [`JobId::words`]. Other numbers name no job, or another one of the same worker.
    pub const fn from_words([scheduler, at, generation]: [u64; 3]) -> JobId {
        JobId {
            scheduler: scheduler as usize,
            place: (at >> 32) as u16,
            slot: at as u32,
            generation: generation as u32,
        }
    }
}

/// Next step of a worker.
pub enum Next<J> {
    /// Run this job, then end its permit.
    Job(Permit, J),
    /// Jobs wait, and none may start: a wake will come.
    Wait(Wait),
    /// No job waits here.
    Idle,
}

/// Reason that no job may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Wait {
    /// The first job's tenant is ahead of others by more than the window.
    Window,
    /// All permits are out.
    Permits,
}

impl Scheduler {
    /// The worker of a place, 0-based.
    ///
    /// # Errors
    /// [`Refused::NoPlace`], [`Refused::PlaceTaken`].
    pub fn worker<J>(&self, place: usize) -> Result<Worker<J>, Refused> {
        let shared = self.0.clone();
        let Some(of) = shared.places.get(place) else { return Err(Refused::NoPlace(place)) };
        let mut inner = lock(&of.inner);
        // Relaxed: under the lock.
        if of.mode.load(Ordering::Relaxed) != FREE {
            return Err(Refused::PlaceTaken);
        }
        of.mode.store(WORKER, Ordering::Relaxed);
        inner.aside = None;
        let jobs = inner.jobs.iter().map(|_| None).collect();
        drop(inner);
        let (handles, kicks) = (Vec::with_capacity(HANDLES_MAX), Kicks::default());
        Ok(Worker { shared, at: place, jobs, handles, kicks, now_ns: 0, look_again_ns: None })
    }
}

impl<J> Worker<J> {
    /// Several calls under one lock, for a loop that takes many jobs at a time. No other worker can pass this one until
    /// it is dropped, so no job is run meanwhile. `now_ns`: as in [`Worker::next`].
    #[inline(always)] // as the calls of a turn: what a call saves and restores is a tenth of what it does
    pub fn turn(&mut self, now_ns: u64) -> Turn<'_, J> {
        self.now_ns = now_ns;
        let Worker { shared, at, jobs, handles, kicks, .. } = self;
        let shared: &Arc<Shared> = shared;
        let place = &shared.places[*at];
        // Relaxed: a hint, to those that find us silent.
        place.active_ns.store(now_ns, Ordering::Relaxed);
        let mut inner = lock(&place.inner);
        if inner.aside.is_some() {
            shared.come_back(&mut inner, *at, kicks);
        }
        Turn { shared, at: *at, jobs, handles, now_ns, inner: Some(inner), kicks }
    }

    /// Lets a job of a tenant wait, of a presumed cost of 1 to 2^40.
    ///
    /// # Errors
    /// [`Refused`]; the job is dropped.
    #[inline(never)]
    pub fn try_push(&mut self, tenant: &Tenant, cost: u64, job: J) -> Result<JobId, Refused> {
        self.turn(self.now_ns).try_push(tenant, cost, job)
    }

    /// The next job to start, or why there is none. Call until it is not [`Next::Job`] before sleeping. `now_ns`: any
    /// monotonic clock, the same for all workers of the scheduler.
    #[inline(never)]
    pub fn next(&mut self, now_ns: u64) -> Next<J> {
        let next = self.turn(now_ns).next();
        if !matches!(next, Next::Job(..)) {
            self.pass();
        }
        next
    }

    /// Passes workers that are away: we have nothing to start, and one of them may be the reason. [`Worker::next`] does
    /// it; after a [`Turn`] that ended with nothing to start, the caller.
    #[inline(never)]
    pub fn pass(&mut self) {
        let now_ns = self.now_ns;
        self.look_again_ns = None;
        let shared = &self.shared;
        for (at, place) in shared.places.iter().enumerate() {
            // Relaxed, here and below: hints; the lock decides.
            if at == self.at || place.mode.load(Ordering::Relaxed) != WORKER || place.word.is_sleeping() {
                continue;
            }
            let silent_from = place.active_ns.load(Ordering::Relaxed).saturating_add(shared.away_after_ns);
            if now_ns <= silent_from {
                self.look_again_ns = Some(self.look_again_ns.map_or(silent_from, |other| other.min(silent_from)));
                continue;
            }
            // One that is inside a call is not away.
            let Ok(mut inner) = place.inner.try_lock() else { continue };
            // Relaxed: under the lock.
            if place.mode.load(Ordering::Relaxed) == WORKER {
                let mut kicks = Kicks::default();
                shared.set_aside(&mut inner, at, AWAY, &mut kicks);
                drop(inner);
                shared.deliver(&mut kicks, Some(now_ns));
            }
        }
    }

    /// Time, ns, at which a call of [`Worker::next`] may find another worker away that is not away now. A worker that
    /// sleeps wakes by then, or it may wait for one that does not come back. `None`: no other worker is awake.
    pub fn look_again_ns(&self) -> Option<u64> {
        self.look_again_ns.map(|at| at.saturating_add(1))
    }

    /// Ends a job, as [`Permit::finish`]; of a job that this worker started it is faster. Then call [`Worker::next`].
    #[inline(never)]
    pub fn finish(&mut self, permit: Permit, actual: u64) {
        self.turn(self.now_ns).finish(permit, actual);
    }

    /// Takes a job back that waits here: its tenant pays nothing for it. Then call [`Worker::next`]. `None`: it has
    /// started, or is not of this worker.
    pub fn withdraw(&mut self, job: JobId) -> Option<J> {
        if job.scheduler != Arc::as_ptr(&self.shared) as usize || job.place as usize != self.at {
            return None;
        }
        let mut kicks = Kicks::default();
        let mut inner = lock(&self.shared.places[self.at].inner);
        let found = self.shared.withdraw(&mut inner, job.slot, job.generation, &mut kicks);
        drop(inner);
        self.shared.deliver(&mut kicks, Some(self.now_ns));
        if found { self.jobs[job.slot as usize].take() } else { None }
    }

    /// Takes all jobs back that wait here, those of a tenant in the order they came.
    pub fn drain(&mut self) -> Vec<J> {
        self.empty(WORKER)
    }

    fn empty(&mut self, mode: u32) -> Vec<J> {
        let mut kicks = Kicks::default();
        let mut inner = lock(&self.shared.places[self.at].inner);
        self.shared.set_aside(&mut inner, self.at, mode, &mut kicks);
        let slots = inner.aside.take().unwrap_or_default();
        for &slot in &slots {
            let job = &mut inner.jobs[slot as usize];
            job.is_waiting = false;
            let flow = job.flow;
            inner.of_tenant[flow as usize].waiting -= 1;
            inner.vacate(slot);
        }
        drop(inner);
        self.shared.deliver(&mut kicks, Some(self.now_ns));
        slots.into_iter().filter_map(|slot| self.jobs[slot as usize].take()).collect()
    }

    /// Rings `bell` when a wake comes for this worker while it sleeps: from any thread, at most once per sleep.
    pub fn on_wake(&mut self, bell: impl Fn() + Send + Sync + 'static) {
        let bell: Bell = Arc::new(bell);
        *lock(&self.shared.places[self.at].bell) = Some(bell);
    }

    /// True: the worker may sleep on what its bell wakes, and calls [`Worker::woke`] then. False: a wake has come, call
    /// [`Worker::next`] again.
    pub fn may_sleep(&self) -> bool {
        self.shared.places[self.at].word.may_sleep()
    }

    /// The worker does not sleep any more.
    pub fn woke(&self) {
        self.shared.places[self.at].word.woke();
    }
}

/// Calls of a worker under one lock. Kicks of other workers go out when it is dropped.
pub struct Turn<'w, J> {
    shared: &'w Arc<Shared>,
    at: usize,
    jobs: &'w mut [Option<J>],
    handles: &'w mut Vec<Arc<Shared>>,
    now_ns: u64,
    /// `None`: it is over.
    inner: Option<MutexGuard<'w, Inner>>,
    kicks: &'w mut Kicks,
}

impl<J> Turn<'_, J> {
    /// As [`Worker::try_push`].
    ///
    /// # Errors
    /// As that.
    #[inline(always)]
    pub fn try_push(&mut self, tenant: &Tenant, cost: u64, job: J) -> Result<JobId, Refused> {
        if !Arc::ptr_eq(&tenant.shared, self.shared) {
            return Err(Refused::OtherScheduler);
        }
        if !self.shared.is_cost(cost)? {
            self.first_cost(cost);
        }
        let Turn { inner: Some(inner), kicks, .. } = self else { return Err(Refused::PlaceTaken) };
        let (slot, generation) = self.shared.push(inner, tenant.flow, tenant.generation, cost, kicks)?;
        self.jobs[slot as usize] = Some(job);
        Ok(JobId { scheduler: Arc::as_ptr(self.shared) as usize, place: self.at as u16, slot, generation })
    }

    /// The usual cost is not known: its lock comes before that of a place.
    #[cold]
    fn first_cost(&mut self, cost: u64) {
        self.inner = None;
        self.shared.set_typical(cost);
        self.inner = Some(lock(&self.shared.places[self.at].inner));
    }

    /// As [`Worker::next`].
    #[inline(always)]
    #[allow(clippy::should_implement_trait, reason = "there may be a next one after none")]
    pub fn next(&mut self) -> Next<J> {
        let Turn { inner: Some(inner), kicks, .. } = self else { return Next::Idle };
        match self.shared.pick(inner, kicks) {
            Ok(slot) => {
                let shared = self.handles.pop().unwrap_or_else(|| self.shared.clone());
                let permit = Permit { shared: Some(shared), place: self.at as u16, slot };
                match self.jobs[slot as usize].take() {
                    Some(job) => Next::Job(permit, job),
                    None => Next::Idle,
                }
            }
            Err(Some(wait)) => Next::Wait(wait),
            Err(None) => Next::Idle,
        }
    }

    /// As [`Worker::finish`].
    #[inline(always)]
    pub fn finish(&mut self, mut permit: Permit, actual: u64) {
        let is_own = permit.shared.as_ref().is_some_and(|shared| Arc::ptr_eq(shared, self.shared));
        if permit.place as usize != self.at || !is_own {
            return self.finish_elsewhere(permit, actual);
        }
        let Turn { inner: Some(inner), kicks, .. } = self else { return };
        let Some(shared) = permit.shared.take() else { return };
        let slot = permit.slot;
        // It has gone back: spares the look of its drop.
        core::mem::forget(permit);
        self.shared.end(inner, slot, Some(actual), kicks);
        if self.handles.len() < HANDLES_MAX {
            self.handles.push(shared);
        }
    }

    /// Two places' locks are not held at once.
    #[cold]
    fn finish_elsewhere(&mut self, permit: Permit, actual: u64) {
        self.inner = None;
        permit.finish(actual);
        self.inner = Some(lock(&self.shared.places[self.at].inner));
    }
}

impl<J> Drop for Turn<'_, J> {
    #[inline]
    fn drop(&mut self) {
        self.inner = None;
        self.shared.deliver(self.kicks, Some(self.now_ns));
    }
}

impl<J> Drop for Worker<J> {
    /// Jobs that wait are dropped, and the place is free.
    fn drop(&mut self) {
        *lock(&self.shared.places[self.at].bell) = None;
        self.empty(FREE);
    }
}
