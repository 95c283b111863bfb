//! The front door of `mqfq-sched` for C. `mqfq.h` documents each function; here stands how it keeps its word.
//!
//! | handle in C | here |
//! |---|---|
//! | `mqfq_scheduler *` | an [`Arc`] of [`Root`] |
//! | `mqfq_worker *` | a [`WorkerCell`], which one call at a time may enter |
//! | `mqfq_tenant`, `mqfq_permit` | numbers: the scheduler's and that of a use of a row in its [`Rows`] |
//! | `mqfq_job` | the words of a [`JobId`] |
//!
//! So a tenant or permit that is used twice, or with another scheduler, is found and refused. A panic does not cross
//! the border: [`border`] makes it `MQFQ_INTERNAL`.

mod rows;

use mqfq_sched::door::{BuildError, Counters, JobId, Next, Permit, Refused, Scheduler, Tenant, Wait, Worker};
use rows::Rows;
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Codes of mqfq.h, below 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Code {
    /// A pointer is NULL.
    Null = -1,
    /// A number is out of range.
    Range = -2,
    /// The tenant has as many jobs waiting as it may.
    TenantFull = -3,
    /// As many jobs wait at the place as it holds.
    PlaceFull = -4,
    /// The tenant was removed, the permit has ended, or the job has started.
    Gone = -5,
    /// The handle is of another scheduler.
    Other = -6,
    /// There are as many tenants as there may be.
    TenantsFull = -7,
    /// The place has an owner, or none is left for calls that wait.
    PlaceTaken = -8,
    /// Something is in use.
    Busy = -9,
    /// The time is over.
    Timeout = -10,
    /// A fault of the library.
    Internal = -11,
}

impl Code {
    /// All, in order.
    pub const ALL: [Code; 11] = [
        Code::Null,
        Code::Range,
        Code::TenantFull,
        Code::PlaceFull,
        Code::Gone,
        Code::Other,
        Code::TenantsFull,
        Code::PlaceTaken,
        Code::Busy,
        Code::Timeout,
        Code::Internal,
    ];

    const fn text(self) -> &'static std::ffi::CStr {
        match self {
            Code::Null => c"a pointer is NULL",
            Code::Range => c"a number is out of range",
            Code::TenantFull => c"the tenant has as many jobs waiting as it may",
            Code::PlaceFull => c"as many jobs wait at this place as it holds",
            Code::Gone => c"the tenant was removed, the permit has ended, or the job has started",
            Code::Other => c"the handle is of another scheduler",
            Code::TenantsFull => c"there are as many tenants as there may be",
            Code::PlaceTaken => c"the place has an owner",
            Code::Busy => c"it is in use",
            Code::Timeout => c"the time is over",
            Code::Internal => c"a fault of libmqfq",
        }
    }
}

impl From<Refused> for Code {
    fn from(refused: Refused) -> Code {
        match refused {
            Refused::TenantFull => Code::TenantFull,
            Refused::PlaceFull => Code::PlaceFull,
            Refused::TenantGone => Code::Gone,
            Refused::OtherScheduler => Code::Other,
            Refused::TenantsFull => Code::TenantsFull,
            Refused::PlaceTaken => Code::PlaceTaken,
            Refused::CostOutOfRange(_) | Refused::WeightOutOfRange(_) | Refused::NoPlace(_) => Code::Range,
            _ => Code::Internal,
        }
    }
}

impl From<BuildError> for Code {
    fn from(_: BuildError) -> Code {
        Code::Range
    }
}

/// As in mqfq.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, reason = "mqfq.h documents them")]
pub struct Options {
    pub places: u32,
    pub permits: u32,
    pub tenants: u32,
    pub jobs: u32,
    pub tenant_jobs: u32,
    pub find_permits: u32,
    pub typical_cost: u64,
    pub away_after_ns: u64,
    pub reserved: [u64; 4],
}

/// `mqfq_tenant` and `mqfq_permit`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, reason = "mqfq.h documents them")]
pub struct Name {
    pub scheduler: u64,
    pub number: u64,
}

/// `mqfq_job`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, reason = "mqfq.h documents them")]
pub struct JobName {
    pub word: [u64; 3],
}

/// As in mqfq.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, reason = "mqfq.h documents them")]
pub struct CountersOut {
    pub served: u64,
    pub served_cost: u64,
    pub waiting: u64,
    pub under_way: u64,
    pub held_by_window: u64,
    pub held_by_permits: u64,
}

/// `mqfq_scheduler`.
pub struct Root {
    number: u64,
    scheduler: Scheduler,
    tenants: RwLock<Rows<Tenant>>,
    /// Permits that are out: a table per place, so that workers do not meet.
    permits: Box<[Line<Mutex<Rows<Permit>>>]>,
    /// Workers, and calls that wait.
    users: AtomicUsize,
}

/// On cache lines of its own.
#[repr(align(128))]
struct Line<T>(T);

static SCHEDULERS: AtomicU64 = AtomicU64::new(1);
static THREADS: AtomicUsize = AtomicUsize::new(0);

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// Number of the thread, which chooses its table of permits.
    // Relaxed: a number that differs.
    static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    /// Wakes the thread.
    static WAKER: Waker = Waker::from(Arc::new(Unpark(std::thread::current())));
}

/// The guard, also after a panic elsewhere: a row is complete or free.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Time since the first call, ns.
fn clock() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Bits of a number of a permit that choose its table.
const TABLE_SHIFT: u32 = 54;

impl Root {
    fn name(&self, number: u64) -> Name {
        Name { scheduler: self.number, number }
    }

    fn own(&self, name: Name) -> Result<u64, Code> {
        if name.scheduler == self.number { Ok(name.number) } else { Err(Code::Other) }
    }

    fn tenant(&self, name: Name) -> Result<Tenant, Code> {
        let number = self.own(name)?;
        let rows = self.tenants.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        rows.get(number).cloned().ok_or(Code::Gone)
    }

    fn keep(&self, at: usize, permit: Permit) -> Name {
        let at = at % self.permits.len();
        let number = lock(&self.permits[at].0).put(permit);
        self.name((at as u64) << TABLE_SHIFT | number)
    }

    fn take(&self, name: Name) -> Result<Permit, Code> {
        let number = self.own(name)?;
        let table = self.permits.get((number >> TABLE_SHIFT) as usize).ok_or(Code::Gone)?;
        lock(&table.0).take(number & ((1 << TABLE_SHIFT) - 1)).ok_or(Code::Gone)
    }

    fn acquire(&self, tenant: &Tenant, cost: u64, timeout_ns: u64) -> Result<Permit, Code> {
        let waker = WAKER.with(Waker::clone);
        let mut context = Context::from_waker(&waker);
        let mut acquire = pin!(tenant.acquire(cost));
        let mut until = None;
        loop {
            if let Poll::Ready(permit) = acquire.as_mut().poll(&mut context) {
                return permit.map_err(Code::from);
            }
            match timeout_ns {
                0 => return Err(Code::Timeout),
                u64::MAX => std::thread::park(),
                _ => {
                    let now = Instant::now();
                    let until = *until.get_or_insert_with(|| now.checked_add(Duration::from_nanos(timeout_ns)));
                    match until.map(|until| until.saturating_duration_since(now)) {
                        None => std::thread::park(),
                        Some(Duration::ZERO) => return Err(Code::Timeout),
                        Some(left) => std::thread::park_timeout(left),
                    }
                }
            }
        }
    }
}

/// A call that waits, while this is there.
struct User<'r>(&'r Root);

impl User<'_> {
    fn of(root: &Root) -> User<'_> {
        // Relaxed: it guards nothing; a call beside `mqfq_scheduler_free` is the caller's fault by mqfq.h.
        root.users.fetch_add(1, Ordering::Relaxed);
        User(root)
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `mqfq_scheduler_free`.
        self.0.users.fetch_sub(1, Ordering::Release);
    }
}

/// A job of the caller.
struct Job(*mut c_void);

/// `mqfq_worker`.
pub struct WorkerCell {
    is_in_use: AtomicBool,
    inner: UnsafeCell<WorkerInner>,
}

struct WorkerInner {
    root: Arc<Root>,
    place: usize,
    worker: Worker<Job>,
    /// Tenants that it has met, by row, with their numbers.
    tenants: Vec<Option<(u64, Tenant)>>,
}

impl Drop for WorkerInner {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `mqfq_scheduler_free`.
        self.root.users.fetch_sub(1, Ordering::Release);
    }
}

impl WorkerInner {
    fn push(&mut self, name: Name, cost: u64, job: *mut c_void) -> Result<JobId, Code> {
        let number = self.root.own(name)?;
        let row = rows::row_of(number);
        let is_known = self.tenants.get(row).is_some_and(|known| known.as_ref().is_some_and(|known| known.0 == number));
        if !is_known {
            let tenant = self.root.tenant(name)?;
            if self.tenants.len() <= row {
                self.tenants.resize_with(row + 1, || None);
            }
            self.tenants[row] = Some((number, tenant));
        }
        let Some((_, tenant)) = &self.tenants[row] else { return Err(Code::Internal) };
        Ok(self.worker.try_push(tenant, cost, Job(job))?)
    }
}

/// Leaves the worker when it goes.
struct Entered<'c>(&'c WorkerCell);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `enter`.
        self.0.is_in_use.store(false, Ordering::Release);
    }
}

impl WorkerCell {
    fn enter<T>(&self, call: impl FnOnce(&mut WorkerInner) -> Result<T, Code>) -> Result<T, Code> {
        // Acquire: pairs with the Release of the call before.
        if self.is_in_use.swap(true, Ordering::Acquire) {
            return Err(Code::Busy);
        }
        let _entered = Entered(self);
        // SAFETY: the flag was not set, so no other call has a reference until `_entered` goes.
        call(unsafe { &mut *self.inner.get() })
    }
}

/// Runs a call from C: a value of 0 or more, or a code. A panic is a code.
fn border(call: impl FnOnce() -> Result<c_int, Code>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.unwrap_or_else(|code| code as c_int),
        Err(panic) => {
            // Its drop may panic, too.
            std::mem::forget(panic);
            Code::Internal as c_int
        }
    }
}

/// The object behind a handle.
///
/// # Safety
/// The handle is NULL, or came from its constructor and was not freed.
unsafe fn object<'h, T>(handle: *const T) -> Result<&'h T, Code> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or(Code::Null)
}

/// Writes a result.
///
/// # Safety
/// The place is NULL, or may be written.
unsafe fn put<T>(place: *mut T, value: T) -> Result<c_int, Code> {
    if place.is_null() {
        return Err(Code::Null);
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(0)
}

fn need<T>(place: *const T) -> Result<(), Code> {
    if place.is_null() { Err(Code::Null) } else { Ok(()) }
}

/// `MQFQ_...` in words.
#[unsafe(no_mangle)]
pub extern "C" fn mqfq_strerror(code: c_int) -> *const c_char {
    match Code::ALL.into_iter().find(|known| *known as c_int == code) {
        Some(code) => code.text().as_ptr(),
        None if code >= 0 => c"no error".as_ptr(),
        None => c"no code of libmqfq".as_ptr(),
    }
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_scheduler_new(options: *const Options, scheduler: *mut *const Root) -> c_int {
    border(|| {
        need(scheduler)?;
        // SAFETY: NULL or a struct of the caller's.
        let options = unsafe { options.as_ref() }.copied().unwrap_or_default();
        if options.reserved != [0; 4] {
            return Err(Code::Range);
        }
        let mut builder = Scheduler::builder();
        let places = options.places.max(1) as usize;
        builder = builder.places(places);
        if options.permits != 0 {
            builder = builder.permits(options.permits);
        }
        if options.find_permits != 0 {
            builder = builder.find_permits(options.find_permits, clock);
        }
        if options.tenants != 0 {
            builder = builder.tenants(options.tenants as usize);
        }
        if options.jobs != 0 {
            builder = builder.jobs(options.jobs as usize);
        }
        if options.tenant_jobs != 0 {
            builder = builder.tenant_jobs(options.tenant_jobs as usize);
        }
        if options.typical_cost != 0 {
            builder = builder.typical_cost(options.typical_cost);
        }
        if options.away_after_ns != 0 {
            builder = builder.away_after_ns(options.away_after_ns);
        }
        let built = builder.build()?;
        let root = Root {
            // Relaxed: a number that differs.
            number: SCHEDULERS.fetch_add(1, Ordering::Relaxed),
            scheduler: built,
            tenants: RwLock::new(Rows::new()),
            permits: (0..places).map(|_| Line(Mutex::new(Rows::new()))).collect(),
            users: AtomicUsize::new(0),
        };
        // SAFETY: not NULL, and the caller's.
        unsafe { put(scheduler, Arc::into_raw(Arc::new(root))) }
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_scheduler_free(scheduler: *const Root) -> c_int {
    border(|| {
        // SAFETY: mqfq.h.
        let root = unsafe { object(scheduler) }?;
        // Acquire: pairs with the Release of the last one that went.
        let is_used = root.users.load(Ordering::Acquire) != 0;
        if is_used || root.permits.iter().any(|table| !lock(&table.0).is_empty()) {
            return Err(Code::Busy);
        }
        // SAFETY: it came from `into_raw` and, by mqfq.h, no other call uses it.
        drop(unsafe { Arc::from_raw(scheduler) });
        Ok(0)
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_set_permits(scheduler: *const Root, permits: u32) -> c_int {
    // SAFETY: mqfq.h.
    border(|| Ok(unsafe { object(scheduler) }?.scheduler.set_permits(permits).map(|()| 0)?))
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_permits(scheduler: *const Root, permits: *mut u32) -> c_int {
    // SAFETY: mqfq.h.
    border(|| unsafe { put(permits, object(scheduler)?.scheduler.permits()) })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_free_permits(scheduler: *const Root, free: *mut i64) -> c_int {
    // SAFETY: mqfq.h.
    border(|| unsafe { put(free, object(scheduler)?.scheduler.free_permits()) })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_tenant_add(scheduler: *const Root, weight: u32, tenant: *mut Name) -> c_int {
    border(|| {
        // SAFETY: mqfq.h.
        let root = unsafe { object(scheduler) }?;
        need(tenant)?;
        let added = root.scheduler.add_tenant(weight)?;
        let number = root.tenants.write().unwrap_or_else(|poisoned| poisoned.into_inner()).put(added);
        // SAFETY: not NULL, and the caller's.
        unsafe { put(tenant, root.name(number)) }
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_tenant_set_weight(scheduler: *const Root, tenant: Name, weight: u32) -> c_int {
    // SAFETY: mqfq.h.
    border(|| Ok(unsafe { object(scheduler) }?.tenant(tenant)?.set_weight(weight).map(|()| 0)?))
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_tenant_remove(scheduler: *const Root, tenant: Name) -> c_int {
    border(|| {
        // SAFETY: mqfq.h.
        let root = unsafe { object(scheduler) }?;
        let number = root.own(tenant)?;
        let taken = root.tenants.write().unwrap_or_else(|poisoned| poisoned.into_inner()).take(number);
        taken.ok_or(Code::Gone)?.remove();
        Ok(0)
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_tenant_counters(
    scheduler: *const Root,
    tenant: Name,
    counters: *mut CountersOut,
) -> c_int {
    border(|| {
        // SAFETY: mqfq.h.
        let root = unsafe { object(scheduler) }?;
        let Counters { served, served_cost, waiting, under_way, held_by_window, held_by_permits, .. } =
            root.tenant(tenant)?.counters();
        let out = CountersOut { served, served_cost, waiting, under_way, held_by_window, held_by_permits };
        // SAFETY: NULL, or the caller's.
        unsafe { put(counters, out) }
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_acquire(
    scheduler: *const Root,
    tenant: Name,
    cost: u64,
    timeout_ns: u64,
    permit: *mut Name,
) -> c_int {
    border(|| {
        // SAFETY: mqfq.h.
        let root = unsafe { object(scheduler) }?;
        need(permit)?;
        let of = root.tenant(tenant)?;
        let _user = User::of(root);
        let granted = root.acquire(&of, cost, timeout_ns)?;
        // SAFETY: not NULL, and the caller's.
        unsafe { put(permit, root.keep(THREAD.with(|thread| *thread), granted)) }
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_finish(scheduler: *const Root, permit: Name, actual: u64) -> c_int {
    border(|| {
        // SAFETY: mqfq.h.
        let root = unsafe { object(scheduler) }?;
        root.take(permit)?.finish(actual);
        Ok(0)
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_worker_new(scheduler: *const Root, place: u32, worker: *mut *const WorkerCell) -> c_int {
    border(|| {
        // SAFETY: mqfq.h.
        let root = unsafe { object(scheduler) }?;
        need(worker)?;
        let of_place = root.scheduler.worker(place as usize)?;
        // SAFETY: it came from `into_raw`, and lives: the reference stands for the worker's own.
        let root = unsafe {
            Arc::increment_strong_count(scheduler);
            Arc::from_raw(scheduler)
        };
        // Relaxed: as in `User::of`.
        root.users.fetch_add(1, Ordering::Relaxed);
        let inner = WorkerInner { root, place: place as usize, worker: of_place, tenants: Vec::new() };
        let cell = WorkerCell { is_in_use: AtomicBool::new(false), inner: UnsafeCell::new(inner) };
        // SAFETY: not NULL, and the caller's.
        unsafe { put(worker, Box::into_raw(Box::new(cell)).cast_const()) }
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_worker_free(worker: *const WorkerCell) -> c_int {
    border(|| {
        // SAFETY: mqfq.h.
        let cell = unsafe { object(worker) }?;
        // Acquire: pairs with the Release of the call before.
        if cell.is_in_use.swap(true, Ordering::Acquire) {
            return Err(Code::Busy);
        }
        // SAFETY: it came from `into_raw`, and no call is inside.
        drop(unsafe { Box::from_raw(worker.cast_mut()) });
        Ok(0)
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_push(
    worker: *const WorkerCell,
    tenant: Name,
    cost: u64,
    job: *mut c_void,
    name: *mut JobName,
) -> c_int {
    border(|| {
        // SAFETY: mqfq.h.
        let id = unsafe { object(worker) }?.enter(|inner| inner.push(tenant, cost, job))?;
        if !name.is_null() {
            // SAFETY: not NULL, and the caller's.
            unsafe { name.write(JobName { word: id.words() }) };
        }
        Ok(0)
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_next(
    worker: *const WorkerCell,
    now_ns: u64,
    permit: *mut Name,
    job: *mut *mut c_void,
) -> c_int {
    border(|| {
        need(permit)?;
        need(job)?;
        // SAFETY: mqfq.h.
        unsafe { object(worker) }?.enter(|inner| match inner.worker.next(now_ns) {
            Next::Job(granted, Job(of_caller)) => {
                let name = inner.root.keep(inner.place, granted);
                // SAFETY: not NULL, and the caller's.
                unsafe { put(permit, name).and(put(job, of_caller)) }
            }
            Next::Idle => Ok(1),
            Next::Wait(Wait::Window) => Ok(2),
            // Permits.
            Next::Wait(_) => Ok(3),
        })
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_worker_finish(worker: *const WorkerCell, permit: Name, actual: u64) -> c_int {
    border(|| {
        // SAFETY: mqfq.h.
        unsafe { object(worker) }?.enter(|inner| {
            let taken = inner.root.take(permit)?;
            inner.worker.finish(taken, actual);
            Ok(0)
        })
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_withdraw(worker: *const WorkerCell, name: JobName, job: *mut *mut c_void) -> c_int {
    border(|| {
        need(job)?;
        // SAFETY: mqfq.h.
        let Job(of_caller) = unsafe { object(worker) }?
            .enter(|inner| inner.worker.withdraw(JobId::from_words(name.word)).ok_or(Code::Gone))?;
        // SAFETY: not NULL, and the caller's.
        unsafe { put(job, of_caller) }
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_drain(
    worker: *const WorkerCell,
    each: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    context: *mut c_void,
) -> c_int {
    border(|| {
        // SAFETY: mqfq.h.
        let cell = unsafe { object(worker) }?;
        let each = each.ok_or(Code::Null)?;
        let jobs = cell.enter(|inner| Ok(inner.worker.drain()))?;
        // SAFETY: a function of the caller's, by mqfq.h; the worker is left, so it may use it.
        jobs.iter().for_each(|Job(job)| unsafe { each(*job, context) });
        Ok(0)
    })
}

/// The caller's word for its bell and what it rings.
struct Bell(unsafe extern "C" fn(*mut c_void), *mut c_void);

// SAFETY: by mqfq.h any thread may ring.
unsafe impl Send for Bell {}
// SAFETY: as above.
unsafe impl Sync for Bell {}

impl Bell {
    fn ring(&self) {
        // SAFETY: by mqfq.h it may be called until the scheduler is freed.
        unsafe { (self.0)(self.1) };
    }
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_on_wake(
    worker: *const WorkerCell,
    bell: Option<unsafe extern "C" fn(*mut c_void)>,
    context: *mut c_void,
) -> c_int {
    border(|| {
        // SAFETY: mqfq.h.
        let cell = unsafe { object(worker) }?;
        let bell = Bell(bell.ok_or(Code::Null)?, context);
        cell.enter(|inner| {
            inner.worker.on_wake(move || bell.ring());
            Ok(0)
        })
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_may_sleep(worker: *const WorkerCell) -> c_int {
    // SAFETY: mqfq.h.
    border(|| unsafe { object(worker) }?.enter(|inner| Ok(c_int::from(inner.worker.may_sleep()))))
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_woke(worker: *const WorkerCell) -> c_int {
    border(|| {
        // SAFETY: mqfq.h.
        unsafe { object(worker) }?.enter(|inner| {
            inner.worker.woke();
            Ok(0)
        })
    })
}

/// # Safety
/// As mqfq.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mqfq_look_again_ns(worker: *const WorkerCell, at_ns: *mut u64) -> c_int {
    border(|| {
        // SAFETY: mqfq.h.
        let at = unsafe { object(worker) }?.enter(|inner| Ok(inner.worker.look_again_ns()))?;
        // SAFETY: NULL, or the caller's.
        unsafe { put(at_ns, at.unwrap_or(u64::MAX)) }
    })
}
