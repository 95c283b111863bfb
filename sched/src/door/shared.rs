//! State that workers and waiting calls share: tenants, places, permits.

use super::found::{Found, FoundPermits, Meter};
use super::refused::{BuildError, Refused};
use super::worker::Wait;
use crate::cost::{COST_MAX, Cost};
use crate::flow::{FlowId, Weight};
use crate::policy::{
    DispatchToken, Done, Entry, Grant, Handle, Mqfq, MqfqQueue, Pick, Policy, PolicyKind, PolicyOptions,
};
use crate::sync::CachePadded;
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, fence};
use crate::topology::{HCTXS_MAX, HctxId, Topology};
use crate::vtime::VSpan;
use crate::wake::WakeWord;
use alloc::boxed::Box;
use alloc::{vec, vec::Vec};
use core::task::Waker;

/// Length of a usual job of a tenant of mean weight, units of virtual time.
const JOB_SPAN: u64 = 1 << 18;

/// T for D permits: 4 usual jobs each.
pub(super) const fn window_of(depth: u32) -> VSpan {
    VSpan(4 * depth as u64 * JOB_SPAN)
}

/// Jobs after which a place looks whether the usual cost is another.
const LOOK_JOBS: u64 = 64;

/// Place without an owner.
pub(super) const FREE: u32 = 0;
/// Place of a [`Worker`](super::Worker).
pub(super) const WORKER: u32 = 1;
/// Place of calls that wait.
pub(super) const WAITING: u32 = 2;
/// Place of a worker that was passed.
pub(super) const AWAY: u32 = 3;

/// Numbers of a scheduler; the order of the calls has no meaning.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Builder {
    places: usize,
    permits: Option<u32>,
    found: Option<(u32, fn() -> u64)>,
    tenants: usize,
    jobs: usize,
    tenant_jobs: usize,
    typical_cost: Option<u64>,
    away_after_ns: u64,
}

impl Builder {
    /// Places, each for a worker or for calls that wait: 1..=1024; 1 unless set. As many as there are cores.
    pub const fn places(self, places: usize) -> Builder {
        Builder { places, ..self }
    }

    /// D: jobs under way at once, 1..=65535; 4 per place unless set.
    pub const fn permits(self, permits: u32) -> Builder {
        Builder { permits: Some(permits), ..self }
    }

    /// Finds D while jobs run, up to `most`, 1..=65535: as many permits as earn their place by more cost done in a
    /// time, from [`Builder::permits`] on. `clock`: a monotonic one, ns; it is read three times per job.
    pub const fn find_permits(self, most: u32, clock: fn() -> u64) -> Builder {
        Builder { found: Some((most, clock)), ..self }
    }

    /// Most tenants at once, 1..=2^20; 256 unless set. Each takes 128 bytes, and 40 per place.
    pub const fn tenants(self, tenants: usize) -> Builder {
        Builder { tenants, ..self }
    }

    /// Most jobs waiting at a place, 1..=2^24; 4096 unless set. Each place has memory for so many, and for as many as
    /// may be under way (D, or the most that may be found): 56 bytes each and the job itself. 64 places that may find a
    /// D of 65,535 take 250 MB.
    pub const fn jobs(self, jobs: usize) -> Builder {
        Builder { jobs, ..self }
    }

    /// Most jobs of one tenant waiting at a place, 1 or more; 1024 unless set.
    pub const fn tenant_jobs(self, jobs: usize) -> Builder {
        Builder { tenant_jobs: jobs, ..self }
    }

    /// The usual cost of a job, 1..=2^40, in the unit of costs; found unless set. The window follows it.
    pub const fn typical_cost(self, cost: u64) -> Builder {
        Builder { typical_cost: Some(cost), ..self }
    }

    /// Silence after which a worker is away, ns; 1 ms unless set. `u64::MAX`: never.
    pub const fn away_after_ns(self, away_after_ns: u64) -> Builder {
        Builder { away_after_ns, ..self }
    }

    /// The scheduler. All memory is taken here and in [`Scheduler::worker`].
    ///
    /// # Errors
    /// The first number that is out of range.
    pub fn build(self) -> Result<Scheduler, BuildError> {
        let Builder { places, permits, found, tenants, jobs, tenant_jobs, typical_cost, away_after_ns } = self;
        if !(1..=HCTXS_MAX).contains(&places) {
            return Err(BuildError::Places(places));
        }
        if !(1..=1 << 20).contains(&tenants) {
            return Err(BuildError::Tenants(tenants));
        }
        if let Some(&wrong) = [jobs, tenant_jobs].iter().find(|jobs| **jobs == 0) {
            return Err(BuildError::Jobs(wrong));
        }
        if jobs > 1 << 24 {
            return Err(BuildError::Jobs(jobs));
        }
        let most = found.map(|(most, _)| most);
        let depth = permits.unwrap_or(4 * places as u32);
        let depth = if permits.is_none() { depth.min(most.unwrap_or(depth)) } else { depth };
        let most = most.unwrap_or(depth);
        if let Some(&wrong) = [depth, most].iter().find(|depth| !(1..=PolicyOptions::DEPTH_MAX).contains(*depth)) {
            return Err(BuildError::Permits(wrong));
        }
        if depth > most {
            return Err(BuildError::Permits(depth));
        }
        if let Some(cost) = typical_cost.filter(|cost| !(1..=COST_MAX.0).contains(cost)) {
            return Err(BuildError::TypicalCost(cost));
        }
        let window_least = found.map(|_| window_of(1));
        let options = PolicyOptions { depth, window: window_of(depth), ..PolicyOptions::new(PolicyKind::Mqfq) };
        let options = PolicyOptions { window_least, tokens_follow_depth: found.is_some(), ..options.relaxed(places) };
        let weights = vec![Weight::DEFAULT; tenants];
        debug_assert_eq!(options.validate_for(&weights), Ok(()), "what the door lets through, the policy takes");
        let mut mqfq = Mqfq::new(&options, &Topology::flat(places), &weights);
        // All calls are under the lock of a place.
        mqfq.charge_late(places == 1);
        let place = |at: usize| {
            CachePadded::new(Place {
                inner: Mutex::new(Inner::new(mqfq.open_queue(HctxId(at as u16), jobs), jobs + most as usize, tenants)),
                word: WakeWord::default(),
                mode: AtomicU32::new(FREE),
                active_ns: AtomicU64::new(0),
                bell: Mutex::new(None),
            })
        };
        let found = found.map(|(most, clock)| Found::new(depth, most, places, clock));
        let places = (0..places).map(place).collect();
        let roster =
            Roster { weights: vec![0; tenants], typical: typical_cost.unwrap_or(1), is_set: typical_cost.is_some() };
        Ok(Scheduler(Arc::new(Shared {
            places,
            mqfq,
            found,
            roster: Mutex::new(roster),
            generations: (0..tenants).map(|_| AtomicU32::new(0)).collect(),
            is_scaled: AtomicBool::new(typical_cost.is_some()),
            tenant_jobs: tenant_jobs.min(u32::MAX as usize) as u32,
            away_after_ns,
            turn: AtomicU32::new(0),
        })))
    }
}

/// Shares permits among tenants by weight. A clone is another handle of the same one.
#[derive(Clone)]
pub struct Scheduler(pub(super) Arc<Shared>);

impl Scheduler {
    /// Numbers to build one from, all with a default.
    pub const fn builder() -> Builder {
        Builder {
            places: 1,
            permits: None,
            found: None,
            tenants: 256,
            jobs: 4096,
            tenant_jobs: 1024,
            typical_cost: None,
            away_after_ns: 1_000_000,
        }
    }

    /// A new tenant, of a weight of 1 to 10,000: only the ratio of weights has a meaning. It starts at virtual time,
    /// without credit or debt of one that was removed before.
    ///
    /// # Errors
    /// [`Refused::WeightOutOfRange`], [`Refused::TenantsFull`].
    pub fn add_tenant(&self, weight: u32) -> Result<Tenant, Refused> {
        let shared = &self.0;
        let weight = check_weight(weight)?;
        let mut roster = lock(&shared.roster);
        let free = (0..roster.weights.len()).find(|&at| roster.weights[at] == 0 && shared.jobs_of(at) == 0);
        let Some(at) = free else { return Err(Refused::TenantsFull) };
        let flow = FlowId(at as u32);
        shared.mqfq.retire(flow);
        // Relaxed: the lock orders it.
        let generation = shared.generations[at].load(Ordering::Relaxed);
        let fresh = OfTenant { generation, ..OfTenant::default() };
        shared.places.iter().for_each(|place| lock(&place.inner).of_tenant[at] = fresh.clone());
        roster.weights[at] = weight;
        shared.set_rates(&roster);
        Ok(Tenant { shared: shared.clone(), flow, generation })
    }

    /// Changes D, 1..=65535, from the next job on. The window stays, and the memory: at a place with more jobs under
    /// way than D was at first, each further one takes the room of one that waits.
    ///
    /// # Errors
    /// [`BuildError::Permits`]: out of range, or found ([`Builder::find_permits`]).
    pub fn set_permits(&self, permits: u32) -> Result<(), BuildError> {
        if !(1..=PolicyOptions::DEPTH_MAX).contains(&permits) || self.0.found.is_some() {
            return Err(BuildError::Permits(permits));
        }
        let mut kicks = Kicks::default();
        self.0.mqfq.set_depth(HctxId(0), permits, &mut |hctx| kicks.push(hctx));
        kicks.push(HctxId(0));
        self.0.deliver(&mut kicks, None);
        Ok(())
    }

    /// D now.
    pub fn permits(&self) -> u32 {
        self.0.mqfq.depth().unwrap_or(0)
    }

    /// D as it is found; `None`: it is a number.
    pub fn found(&self) -> Option<FoundPermits> {
        self.0.found.as_ref().map(Found::state)
    }

    /// Permits that are not out. Exact only while no other call is under way.
    pub fn free_permits(&self) -> i64 {
        self.0.mqfq.free_units()
    }
}

fn check_weight(weight: u32) -> Result<u16, Refused> {
    Weight::new(u64::from(weight)).map(Weight::get).map_err(|_| Refused::WeightOutOfRange(weight))
}

/// A tenant: jobs are charged to it. A clone is another handle of the same one.
#[derive(Clone)]
pub struct Tenant {
    pub(super) shared: Arc<Shared>,
    pub(super) flow: FlowId,
    pub(super) generation: u32,
}

/// Counts of a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Jobs that have ended.
    pub served: u64,
    /// Their cost.
    pub served_cost: u64,
    /// Jobs that wait.
    pub waiting: u64,
    /// Jobs under way.
    pub under_way: u64,
    /// Times that its job was the first of a place and was ahead of others by more than the window.
    pub held_by_window: u64,
    /// Times that its job was the first of a place and all permits were out.
    pub held_by_permits: u64,
}

impl Tenant {
    /// Another weight, 1 to 10,000, from the next job that comes to the front on.
    ///
    /// # Errors
    /// [`Refused::WeightOutOfRange`], [`Refused::TenantGone`].
    pub fn set_weight(&self, weight: u32) -> Result<(), Refused> {
        let weight = check_weight(weight)?;
        let mut roster = lock(&self.shared.roster);
        if self.is_gone() {
            return Err(Refused::TenantGone);
        }
        roster.weights[self.flow.0 as usize] = weight;
        self.shared.set_rates(&roster);
        Ok(())
    }

    /// Removes the tenant: its jobs that wait or are under way end as others do, new ones are refused. Its number is
    /// another's once they have ended. Nothing happens the second time.
    pub fn remove(&self) {
        let mut roster = lock(&self.shared.roster);
        if self.is_gone() {
            return;
        }
        let (at, next) = (self.flow.0 as usize, self.generation.wrapping_add(1));
        // Relaxed: under the lock of the roster. A place has a copy under its own lock.
        self.shared.generations[at].store(next, Ordering::Relaxed);
        self.shared.places.iter().for_each(|place| lock(&place.inner).of_tenant[at].generation = next);
        roster.weights[at] = 0;
        self.shared.set_rates(&roster);
    }

    /// Counts of the tenant over all places; all 0 once it was removed.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        if self.is_gone() {
            return sum;
        }
        for place in &self.shared.places {
            let of = &lock(&place.inner).of_tenant[self.flow.0 as usize];
            sum.served += of.served;
            sum.served_cost += of.served_cost;
            sum.waiting += u64::from(of.waiting);
            sum.under_way += u64::from(of.under_way);
            sum.held_by_window += of.held_by_window;
            sum.held_by_permits += of.held_by_permits;
        }
        sum
    }

    fn is_gone(&self) -> bool {
        // Relaxed: a removal that is under way may come after this.
        self.shared.generations[self.flow.0 as usize].load(Ordering::Relaxed) != self.generation
    }
}

/// Permission for one job to run. Goes back by [`Permit::finish`], or by being dropped.
#[must_use = "a permit that is dropped ends its job"]
pub struct Permit {
    /// `None`: it went back.
    pub(super) shared: Option<Arc<Shared>>,
    pub(super) place: u16,
    pub(super) slot: u32,
}

impl Permit {
    /// Ends the job: it has cost `actual` (0 to 2^40; more counts as that). Its tenant pays the difference to what was
    /// announced, or gets it back. From any thread.
    pub fn finish(mut self, actual: u64) {
        self.end(Some(actual));
    }

    fn end(&mut self, actual: Option<u64>) {
        let Some(shared) = self.shared.take() else { return };
        let at = self.place as usize;
        let mut kicks = Kicks::default();
        let mut inner = lock(&shared.places[at].inner);
        shared.end(&mut inner, self.slot, actual, &mut kicks);
        shared.pump(&mut inner, at, &mut kicks);
        drop(inner);
        shared.deliver(&mut kicks, None);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.end(None);
    }
}

/// Everything.
pub(super) struct Shared {
    pub(super) places: Box<[CachePadded<Place>]>,
    pub(super) mqfq: Mqfq,
    /// `None`: D is a number.
    pub(super) found: Option<Found>,
    /// Taken before the lock of a place, never after.
    roster: Mutex<Roster>,
    /// Per tenant's number: how often it was removed. Written under the lock of `roster`.
    generations: Box<[AtomicU32]>,
    /// The usual cost is known.
    is_scaled: AtomicBool,
    tenant_jobs: u32,
    pub(super) away_after_ns: u64,
    /// Place of the next call that waits.
    pub(super) turn: AtomicU32,
}

/// Weights, and the usual cost.
struct Roster {
    /// 0: none.
    weights: Vec<u16>,
    typical: u64,
    /// `typical` was set and stays.
    is_set: bool,
}

/// One place.
pub(super) struct Place {
    pub(super) inner: Mutex<Inner>,
    pub(super) word: WakeWord,
    /// Owner.
    pub(super) mode: AtomicU32,
    /// Time of the last call of its worker, ns.
    pub(super) active_ns: AtomicU64,
    pub(super) bell: Mutex<Option<Bell>>,
}

/// Wakes a worker that sleeps.
pub(super) type Bell = Arc<dyn Fn() + Send + Sync>;

/// State that one thread at a time looks at.
pub(super) struct Inner {
    pub(super) queue: MqfqQueue,
    pub(super) jobs: Vec<Job>,
    /// First free slot, each of which names the next; [`NO_SLOT`]: none is free.
    free: u32,
    pub(super) of_tenant: Vec<OfTenant>,
    /// Jobs of a queue that stands aside, in the order they came.
    pub(super) aside: Option<Vec<u32>>,
    costs: u64,
    looked: u64,
    pub(super) meter: Meter,
}

/// No slot.
const NO_SLOT: u32 = u32::MAX;

/// A job, under its handle.
#[derive(Default)]
pub(super) struct Job {
    /// The tenant's number; while the slot is free, the next free one.
    pub(super) flow: u32,
    /// Uses of the handle before.
    pub(super) generation: u32,
    pub(super) cost: u64,
    pub(super) is_waiting: bool,
    /// Time of the push, where D is found.
    pushed_ns: u64,
    /// A call that waits has its permit, and has not looked.
    pub(super) is_granted: bool,
    pub(super) waker: Option<Waker>,
}

impl Job {
    /// Makes its slot the first free one.
    #[inline]
    fn vacate(&mut self, free: &mut u32, slot: u32) {
        self.generation = self.generation.wrapping_add(1);
        self.flow = core::mem::replace(free, slot);
    }
}

/// Counts of a tenant at a place.
#[derive(Clone, Default)]
pub(super) struct OfTenant {
    /// Copy of the tenant's in [`Shared::generations`].
    generation: u32,
    pub(super) waiting: u32,
    under_way: u32,
    served: u64,
    served_cost: u64,
    held_by_window: u64,
    held_by_permits: u64,
}

impl Inner {
    fn new(queue: MqfqQueue, slots: usize, tenants: usize) -> Inner {
        let next = |slot: u32| if slot + 1 < slots as u32 { slot + 1 } else { NO_SLOT };
        Inner {
            queue,
            jobs: (0..slots as u32).map(|slot| Job { flow: next(slot), ..Job::default() }).collect(),
            free: 0,
            of_tenant: vec![OfTenant::default(); tenants],
            aside: None,
            costs: 0,
            looked: 0,
            meter: Meter::default(),
        }
    }

    /// The job was taken back.
    pub(super) fn vacate(&mut self, slot: u32) {
        self.jobs[slot as usize].vacate(&mut self.free, slot);
    }
}

/// Kicked places that [`Kicks`] holds without memory of its own.
const KICKS_FEW: usize = 6;

/// Work that is left for when no lock is held: kicked places, calls that go on, and looks that are due.
#[derive(Default)]
pub(super) struct Kicks {
    is_any: bool,
    /// A step of the search for D is due.
    is_step_due: bool,
    count: u16,
    few: [u16; KICKS_FEW],
    /// Mean cost to look at; 0: none.
    mean: u64,
    more: Option<Box<MoreKicks>>,
}

#[derive(Default)]
struct MoreKicks {
    places: Vec<u16>,
    wakers: Vec<Waker>,
}

impl Kicks {
    #[cold] // and so out of the way of what a request costs
    #[inline(never)]
    pub(super) fn push(&mut self, hctx: HctxId) {
        self.is_any = true;
        match self.few.get_mut(self.count as usize) {
            Some(place) => {
                *place = hctx.0;
                self.count += 1;
            }
            None => self.more.get_or_insert_default().places.push(hctx.0),
        }
    }

    fn pop(&mut self) -> Option<u16> {
        if let Some(place) = self.more.as_mut().and_then(|more| more.places.pop()) {
            return Some(place);
        }
        self.count = self.count.checked_sub(1)?;
        Some(self.few[self.count as usize])
    }

    fn wake(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.is_any = true;
            self.more.get_or_insert_default().wakers.push(waker);
        }
    }
}

/// The guard, also after a panic of another thread: no call of ours leaves a place half changed.
#[inline]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Shared {
    /// Stages a job: its slot and the use of it. The place is its caller's.
    #[inline(always)]
    pub(super) fn push(
        &self,
        inner: &mut Inner,
        flow: FlowId,
        generation: u32,
        cost: u64,
        kicks: &mut Kicks,
    ) -> Result<(u32, u32), Refused> {
        let Inner { queue, jobs, free, of_tenant, .. } = inner;
        let of = &mut of_tenant[flow.0 as usize];
        if of.generation != generation {
            return Err(Refused::TenantGone);
        }
        if of.waiting >= self.tenant_jobs {
            return Err(Refused::TenantFull);
        }
        let slot = *free;
        // `NO_SLOT` is no slot.
        let Some(job) = jobs.get_mut(slot as usize).filter(|_| self.mqfq.staged(queue) < queue.capacity()) else {
            return Err(Refused::PlaceFull);
        };
        of.waiting += 1;
        *free = core::mem::replace(&mut job.flow, flow.0);
        (job.cost, job.is_waiting) = (cost, true);
        if let Some(found) = &self.found {
            job.pushed_ns = found.now_ns();
        }
        let entry = Entry::read(flow, Cost(cost), Handle(slot));
        self.mqfq.submit(queue, entry, 0, &mut |hctx| kicks.push(hctx));
        Ok((slot, job.generation))
    }

    /// Checks a cost. False: the usual one is not known yet ([`Shared::set_typical`]).
    #[inline]
    pub(super) fn is_cost(&self, cost: u64) -> Result<bool, Refused> {
        if cost == 0 || cost > COST_MAX.0 {
            return Err(Refused::CostOutOfRange(cost));
        }
        // Relaxed: the lock in `set_typical` decides.
        Ok(self.is_scaled.load(Ordering::Relaxed))
    }

    /// The slot of the next job that may start, with its permit; or why the first one is held back, `None`: no job
    /// waits.
    #[inline(always)]
    pub(super) fn pick(&self, inner: &mut Inner, kicks: &mut Kicks) -> Result<u32, Option<Wait>> {
        let pick = self.mqfq.pick(&mut inner.queue, 0, &mut |hctx| kicks.push(hctx));
        if let Some(found) = &self.found {
            found.picked(&mut inner.meter, &pick, &self.mqfq);
        }
        let Pick::Dispatch(Grant { handle, flow, token }) = pick else { return Err(self.held(inner, &pick)) };
        // Its slot stands for the unit until the job ends.
        let units = token.into_units();
        debug_assert_eq!(units, 1, "a job takes one permit");
        let of = &mut inner.of_tenant[flow.0 as usize];
        of.waiting -= 1;
        of.under_way += 1;
        inner.jobs[handle.0 as usize].is_waiting = false;
        Ok(handle.0)
    }

    /// Counts why the first job's tenant is held back, if it is.
    #[inline(never)]
    fn held(&self, inner: &mut Inner, pick: &Pick) -> Option<Wait> {
        let wait = match pick {
            Pick::Throttled => Wait::Window,
            Pick::NoToken => Wait::Permits,
            _ => return None,
        };
        if let Some(flow) = self.mqfq.first_flow(&inner.queue) {
            let of = &mut inner.of_tenant[flow.0 as usize];
            match wait {
                Wait::Window => of.held_by_window += 1,
                Wait::Permits => of.held_by_permits += 1,
            }
        }
        Some(wait)
    }

    /// A job has ended. The caller picks after it, or lets the worker.
    #[inline(always)]
    pub(super) fn end(&self, inner: &mut Inner, slot: u32, actual: Option<u64>, kicks: &mut Kicks) {
        let job = &mut inner.jobs[slot as usize];
        let Job { flow, cost, pushed_ns, .. } = *job;
        job.vacate(&mut inner.free, slot);
        let actual = actual.unwrap_or(cost).min(COST_MAX.0);
        let id = FlowId(flow);
        if actual != cost {
            self.mqfq.correct(id, Cost(cost), Cost(actual));
        }
        let of = &mut inner.of_tenant[flow as usize];
        of.under_way -= 1;
        of.served += 1;
        of.served_cost += actual;
        inner.costs += actual;
        inner.looked += 1;
        if inner.looked >= LOOK_JOBS {
            (kicks.mean, kicks.is_any) = ((inner.costs / inner.looked).max(1), true);
            (inner.costs, inner.looked) = (0, 0);
        }
        if self.found.as_ref().is_some_and(|found| found.ended(&mut inner.meter, pushed_ns, actual)) {
            (kicks.is_step_due, kicks.is_any) = (true, true);
        }
        let done = Done::read(id, Handle(slot));
        self.mqfq.complete(&mut inner.queue, done, DispatchToken::new(1), 0, &mut |hctx| kicks.push(hctx));
    }

    /// The usual cost is `mean`, unless it was set or is about that already.
    #[inline(never)]
    pub(super) fn set_typical(&self, mean: u64) {
        let mut roster = lock(&self.roster);
        // Relaxed: under the lock.
        let is_first = !self.is_scaled.swap(true, Ordering::Relaxed);
        let is_near = mean / 2 <= roster.typical && roster.typical / 2 <= mean;
        if roster.is_set || (is_near && !is_first) {
            return;
        }
        roster.typical = mean.clamp(1, COST_MAX.0);
        self.set_rates(&roster);
    }

    /// Rates of all tenants: a usual job of the mean weight is `JOB_SPAN` long.
    fn set_rates(&self, roster: &Roster) {
        let weights = || roster.weights.iter().enumerate().filter(|(_, weight)| **weight != 0);
        let (count, sum) =
            weights().fold((0u128, 0u128), |(count, sum), (_, &weight)| (count + 1, sum + u128::from(weight)));
        for (at, &weight) in weights() {
            let rate = (u128::from(JOB_SPAN) << crate::flow::FRACTION_BITS) * sum
                / (count * u128::from(weight) * u128::from(roster.typical));
            self.mqfq.set_rate(FlowId(at as u32), rate.clamp(1, 1 << 63) as u64);
        }
    }

    /// Jobs of a tenant's number that wait or are under way.
    fn jobs_of(&self, at: usize) -> u64 {
        let of_place = |place: &CachePadded<Place>| {
            let inner = lock(&place.inner);
            u64::from(inner.of_tenant[at].waiting) + u64::from(inner.of_tenant[at].under_way)
        };
        self.places.iter().map(of_place).sum()
    }

    /// Answers for a place that has no worker: picks, and grants the jobs to the calls that wait. For a place with
    /// a worker that is there, the worker is kicked.
    pub(super) fn pump(&self, inner: &mut Inner, at: usize, kicks: &mut Kicks) {
        // Relaxed: under the lock of the place, in which it changes.
        if self.places[at].mode.load(Ordering::Relaxed) == WORKER {
            kicks.push(HctxId(at as u16));
            return;
        }
        while let Ok(slot) = self.pick(inner, kicks) {
            let job = &mut inner.jobs[slot as usize];
            job.is_granted = true;
            let waker = job.waker.take();
            kicks.wake(waker);
        }
    }

    /// Does the remaining work, without any lock held. `now_ns`: the caller's, if it has one.
    #[inline]
    pub(super) fn deliver(&self, kicks: &mut Kicks, now_ns: Option<u64>) {
        if kicks.is_any {
            self.deliver_all(kicks, now_ns);
        }
    }

    #[inline(never)]
    fn deliver_all(&self, kicks: &mut Kicks, now_ns: Option<u64>) {
        kicks.is_any = false;
        if core::mem::take(&mut kicks.is_step_due) {
            self.step(kicks);
        }
        // Pairs with the fence of a passer: D3.
        fence(Ordering::SeqCst);
        while let Some(at) = kicks.pop() {
            let place = &self.places[at as usize];
            // Relaxed: the fence orders it.
            if place.mode.load(Ordering::Relaxed) == WORKER {
                if place.word.kick() {
                    // Relaxed: a hint. A worker that slept was not away until now.
                    let now_ns = now_ns.unwrap_or_else(|| self.latest_ns());
                    place.active_ns.fetch_max(now_ns, Ordering::Relaxed);
                    let bell = lock(&place.bell).clone();
                    if let Some(bell) = bell {
                        bell();
                    }
                }
            } else {
                let mut inner = lock(&place.inner);
                self.pump(&mut inner, at as usize, kicks);
            }
        }
        kicks.more.take().into_iter().flat_map(|more| more.wakers).for_each(Waker::wake);
        match core::mem::take(&mut kicks.mean) {
            0 => (),
            mean => self.set_typical(mean),
        }
    }

    fn latest_ns(&self) -> u64 {
        // Relaxed: a hint.
        self.places.iter().map(|place| place.active_ns.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// Empties the queue of a place, whose jobs stand aside until its owner is back.
    pub(super) fn set_aside(&self, inner: &mut Inner, at: usize, mode: u32, kicks: &mut Kicks) {
        // Relaxed: the fence orders it against kickers, the lock against all others.
        self.places[at].mode.store(mode, Ordering::Relaxed);
        // Pairs with the fence of a kicker: D3.
        fence(Ordering::SeqCst);
        inner.meter.emptied();
        let Inner { queue, jobs, aside, .. } = inner;
        let mut slots = aside.take().unwrap_or_default();
        let each = |_: FlowId, handle: Handle| {
            slots.push(handle.0);
            Cost(jobs[handle.0 as usize].cost)
        };
        self.mqfq.step_aside(queue, each, &mut |hctx| kicks.push(hctx));
        *aside = Some(slots);
    }

    /// Puts the jobs that stand aside back.
    #[inline(never)]
    pub(super) fn come_back(&self, inner: &mut Inner, at: usize, kicks: &mut Kicks) {
        // Relaxed: as in `set_aside`; a kicker that reads the old one picks for us, which harms nothing.
        self.places[at].mode.store(WORKER, Ordering::Relaxed);
        for slot in inner.aside.take().unwrap_or_default() {
            let Job { flow, cost, .. } = inner.jobs[slot as usize];
            let entry = Entry::read(FlowId(flow), Cost(cost), Handle(slot));
            self.mqfq.submit(&mut inner.queue, entry, 0, &mut |hctx| kicks.push(hctx));
        }
    }

    /// Takes a job back that waits. False: it does not, or is of another use of the handle.
    pub(super) fn withdraw(&self, inner: &mut Inner, slot: u32, generation: u32, kicks: &mut Kicks) -> bool {
        let Some(job) = inner.jobs.get(slot as usize) else { return false };
        if !job.is_waiting || job.generation != generation {
            return false;
        }
        let (flow, cost) = (job.flow, job.cost);
        if let Some(aside) = &mut inner.aside {
            aside.retain(|&other| other != slot);
        } else {
            let name = (FlowId(flow), Handle(slot), Cost(cost));
            self.mqfq.withdraw(&mut inner.queue, name, &mut |hctx| kicks.push(hctx));
        }
        inner.jobs[slot as usize].is_waiting = false;
        inner.of_tenant[flow as usize].waiting -= 1;
        inner.vacate(slot);
        true
    }
}
