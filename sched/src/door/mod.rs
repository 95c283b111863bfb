//! The front door: shares by weight in any program.
//!
//! A [`Scheduler`] shares `permits` among [`Tenant`]s. A job of a tenant waits until it gets a [`Permit`], which goes
//! back with what the job really cost. Tenants that have jobs waiting get cost in proportion to their weights; what one
//! does not use, the others have. Costs are in any unit (bytes, nanoseconds, tokens): their usual size is found from
//! what is pushed, and window and rates follow it, so only the ratio of weights and of costs has a meaning.
//!
//! | use | call |
//! |---|---|
//! | a loop per core | [`Scheduler::worker`], then [`Worker::try_push`], [`Worker::next`], [`Worker::finish`] |
//! | any async runtime | [`Tenant::acquire`], a future that may be dropped at any time |
//! | threads | [`Tenant::acquire_blocking`] |
//!
//! A loop per core is the fast one: it takes no lock that another worker takes, but where one is away, and a [`Turn`]
//! takes its own once for many calls.
//!
//! ```
//! use mqfq_sched::door::{Next, Scheduler};
//!
//! let scheduler = Scheduler::builder().permits(4).build()?;
//! let tenants = [scheduler.add_tenant(1)?, scheduler.add_tenant(3)?];
//! let mut worker = scheduler.worker(0)?;
//! let mut served = [0, 0];
//! for round in 0..4000 {
//!     for (name, tenant) in tenants.iter().enumerate() {
//!         while tenant.counters().waiting < 8 {
//!             worker.try_push(tenant, 500, name)?;
//!         }
//!     }
//!     if let Next::Job(permit, name) = worker.next(round) {
//!         served[name] += 1;
//!         worker.finish(permit, 500);
//!     }
//! }
//! let ratio = f64::from(served[1]) / f64::from(served[0]);
//! assert!((2.9..3.1).contains(&ratio));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Why does it wait?
//! [`Tenant::counters`] tells how often a worker found the tenant's job first and could not start it: *held by the
//! window* (it is ahead of others by its weight) or *held by permits* (all are out).
//!
//! # A worker that is away
//! A worker that does not call [`Worker::next`] for [`Builder::away_after_ns`], while another has nothing to start, is
//! passed: its jobs stand aside and delay no others. Its next call puts them back, at virtual time: it has no credit
//! for the time away, and no debt. This needs a clock: pass `now_ns` of any monotonic one to [`Worker::next`]. A
//! worker that sleeps by [`Worker::may_sleep`] is not away.
//!
//! # Invariants
//! D1. A permit goes back once: by `finish`, or as its job was announced when it is dropped.
//! D2. A place has one owner: one `Worker`, or the calls of `acquire`.
//! D3. A kick is answered: by the worker of the place, or by a pick of the kicker if there is none or it stands aside.
//!
//! D3 against passing, two threads that both write, fence, look:
//!
//! | kicker | passer |
//! |---|---|
//! | puts a token on the path, **fence** | place is *away*, **fence** |
//! | reads whether the place is away: picks for it | empties the queue and picks for it |

mod acquire;
mod found;
mod refused;
mod shared;
mod worker;

pub use acquire::PermitFuture;
pub use found::FoundPermits;
pub use refused::{BuildError, Refused};
pub use shared::{Builder, Counters, Permit, Scheduler, Tenant};
pub use worker::{JobId, Next, Turn, Wait, Worker};

/// Model checks of what the door adds to the parts: locks of places, modes, kicks that go to words and bells. Each
/// leaves a job that waits; at the end its worker or its call has been told, or it would wait for ever (D3), and all
/// permits are there (D1).
///
/// Run: `cargo xtask loom`
#[cfg(all(test, mqfq_loom))]
mod loom_tests {
    use super::*;
    use crate::sync::model::{Builder, thread};
    use crate::sync::{Arc, AtomicBool, Ordering::Relaxed};
    use alloc::boxed::Box;
    use core::future::Future;
    use core::pin::pin;
    use core::task::{Context, Poll, Waker};

    /// A scheduler of one permit for two tenants.
    fn scheduler(places: usize) -> (Scheduler, [Tenant; 2]) {
        let numbers = Scheduler::builder().places(places).permits(1).tenants(2).jobs(2).tenant_jobs(2);
        let scheduler = numbers.typical_cost(1).away_after_ns(1).build().unwrap();
        let tenants = [0; 2].map(|_| scheduler.add_tenant(1).unwrap());
        (scheduler, tenants)
    }

    fn started(next: Next<u32>) -> Option<(Permit, u32)> {
        match next {
            Next::Job(permit, job) => Some((permit, job)),
            _ => None,
        }
    }

    /// The worker has found nothing to start, and goes to sleep unless it was woken: then it has its job now.
    fn wakes(worker: &mut Worker<u32>, now_ns: u64) -> (Permit, u32) {
        assert!(!worker.may_sleep(), "a permit is free and a job waits, yet its worker sleeps");
        started(worker.next(now_ns)).expect("a permit is free")
    }

    fn permit(came: Poll<Result<Permit, Refused>>) -> Permit {
        let Poll::Ready(Ok(permit)) = came else { panic!("it is free") };
        permit
    }

    /// Race: a call's permit goes back and calls the worker A, which is away and does not answer, while B, which has
    /// found none, passes A (D3). Then A is back.
    /// Shown to fail without the fence in `deliver_all`; if the kicker does not pick for a place that is away; if that
    /// is said after the queue was emptied; if `step_aside` does not pick; and if the passer's kicks are not delivered.
    #[test]
    fn loom_door_a_permit_that_calls_a_worker_beside_its_passer_is_passed_on() {
        Builder::new().check(|| {
            let (scheduler, [of_a, of_b]) = scheduler(3);
            let [mut a, mut b] = [0, 1].map(|place| scheduler.worker(place).unwrap());
            let permit = permit(pin!(of_b.acquire(1)).poll(&mut Context::from_waker(Waker::noop())));
            a.try_push(&of_a, 1, 1).unwrap();
            assert!(matches!(a.next(1), Next::Wait(Wait::Permits)));
            b.try_push(&of_b, 1, 2).unwrap();
            let other = thread::spawn(move || permit.finish(1));
            let found = started(b.next(9));
            other.join().unwrap();
            let (permit, job) = found.unwrap_or_else(|| wakes(&mut b, 9));
            assert_eq!(job, 2);
            b.finish(permit, 1);
            assert!(started(b.next(9)).is_none());
            let (permit, job) = started(a.next(9)).expect("it is back");
            assert_eq!((job, scheduler.free_permits()), (1, 0));
            a.finish(permit, 1);
            assert!(started(a.next(9)).is_none());
            assert_eq!(scheduler.free_permits(), 1);
        });
    }

    /// Race: a permit of A's is dropped on another thread while A is, with a job that waits and is due before B's.
    /// Shown to fail if the kicks of a worker that is dropped are not delivered.
    #[test]
    fn loom_door_a_permit_that_outlives_its_worker_wakes_another() {
        Builder::new().check(|| {
            let (scheduler, [tenant, _]) = scheduler(2);
            let [mut a, mut b] = [0, 1].map(|place| scheduler.worker(place).unwrap());
            a.try_push(&tenant, 1, 0).unwrap();
            a.try_push(&tenant, 1, 1).unwrap();
            let (permit, _) = started(a.next(1)).unwrap();
            b.try_push(&tenant, 1, 2).unwrap();
            assert!(matches!(b.next(1), Next::Wait(Wait::Permits)));
            let other = thread::spawn(move || drop(permit));
            drop(a);
            other.join().unwrap();
            let (permit, job) = wakes(&mut b, 1);
            assert_eq!(job, 2);
            b.finish(permit, 1);
            assert!(started(b.next(1)).is_none());
            assert_eq!((scheduler.free_permits(), tenant.counters().waiting), (1, 0));
        });
    }

    /// Race: D grows while a worker finds no permit and falls asleep.
    /// Shown to fail if the setter's kicks are not delivered, and if no bell rings.
    #[test]
    fn loom_door_a_larger_depth_beside_falling_asleep_is_not_lost() {
        Builder::new().check(|| {
            let (scheduler, [of_a, of_b]) = scheduler(2);
            let [mut a, mut b] = [0, 1].map(|place| scheduler.worker(place).unwrap());
            a.try_push(&of_a, 1, 0).unwrap();
            let (first, _) = started(a.next(1)).unwrap();
            b.try_push(&of_b, 1, 1).unwrap();
            let rung = Arc::new(AtomicBool::new(false));
            let rings = rung.clone();
            b.on_wake(move || rings.store(true, Relaxed));
            let setter = scheduler.clone();
            let other = thread::spawn(move || setter.set_permits(2).unwrap());
            let found = started(b.next(1));
            let found = found.or_else(|| if b.may_sleep() { None } else { started(b.next(1)) });
            other.join().unwrap();
            // It sleeps, or found nothing although it was woken: then it has been rung, which ends the sleep.
            let (second, _) = found.unwrap_or_else(|| {
                assert!(rung.load(Relaxed), "a permit was made and a job waits, yet its worker sleeps");
                b.woke();
                started(b.next(1)).expect("two permits")
            });
            // And back: of two that are out, one goes.
            scheduler.set_permits(1).unwrap();
            a.finish(first, 1);
            b.finish(second, 1);
            assert!(started(a.next(1)).is_none() && started(b.next(1)).is_none());
            assert_eq!(scheduler.free_permits(), 1);
        });
    }

    /// A call that waits: what wakes it says so.
    #[derive(Default)]
    struct Told(AtomicBool);

    impl alloc::task::Wake for Told {
        fn wake(self: Arc<Self>) {
            // Relaxed: read when its thread has ended.
            self.0.store(true, Relaxed);
        }
    }

    /// Race: a permit is dropped while a call comes to wait for it, and finds no waker yet.
    /// Shown to fail if a permit's end does not pick for the calls; if a call that comes does not look; and if a grant
    /// wakes no call.
    #[test]
    fn loom_door_a_permit_dropped_beside_a_call_that_comes_goes_to_it() {
        Builder::new().check(|| {
            let (scheduler, [of_a, of_b]) = scheduler(1);
            let permit = permit(pin!(of_a.acquire(1)).poll(&mut Context::from_waker(Waker::noop())));
            let other = thread::spawn(move || drop(permit));
            let told = Arc::new(Told::default());
            let waker = Waker::from(told.clone());
            let mut call = pin!(of_b.acquire(1));
            let came = call.as_mut().poll(&mut Context::from_waker(&waker));
            other.join().unwrap();
            let came = if came.is_pending() {
                assert!(told.0.load(Relaxed), "the permit is there, and the call waits");
                call.as_mut().poll(&mut Context::from_waker(&waker))
            } else {
                came
            };
            assert_eq!(scheduler.free_permits(), 0);
            drop(self::permit(came));
            assert_eq!(scheduler.free_permits(), 1);
        });
    }

    /// Race: the first two calls, which both find the only place without an owner. Neither is refused (D2).
    /// Shown to fail if a call goes on to the next place where another one has just taken a place for all.
    #[test]
    fn loom_door_two_first_calls_share_the_only_place() {
        Builder::new().check(|| {
            let (_scheduler, [of_a, of_b]) = scheduler(1);
            let call = |tenant: Tenant| {
                drop(pin!(tenant.acquire(1)).poll(&mut Context::from_waker(Waker::noop())).map(Result::unwrap))
            };
            let other = thread::spawn(move || call(of_a));
            call(of_b);
            other.join().unwrap();
        });
    }

    /// Race: a call is given up while the permit that it waits for goes back. Another call waits behind it.
    /// Shown to fail if a call that is given up keeps a permit that has come, or does not pick.
    #[test]
    fn loom_door_a_call_given_up_beside_its_permit_passes_it_on() {
        Builder::new().check(|| {
            let (scheduler, [of_a, of_b]) = scheduler(1);
            let mut silent = Context::from_waker(Waker::noop());
            let permit = permit(pin!(of_a.acquire(1)).poll(&mut silent));
            let mut given_up = Box::pin(of_b.acquire(1));
            assert!(given_up.as_mut().poll(&mut silent).is_pending());
            let told = Arc::new(Told::default());
            let waker = Waker::from(told.clone());
            let mut call = pin!(of_b.acquire(1));
            assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let other = thread::spawn(move || permit.finish(1));
            drop(given_up);
            other.join().unwrap();
            assert!(told.0.load(Relaxed), "the permit is there, and the call waits");
            drop(self::permit(call.as_mut().poll(&mut Context::from_waker(&waker))));
            assert_eq!((scheduler.free_permits(), of_b.counters().under_way), (1, 0));
        });
    }
}
