//! Ways to misuse the front door, and what each does: an error, or what was lost comes back. None panics, stops other
//! tenants, or changes their shares. Those of the first row do not compile (`DoesNotCompile` in `src/lib.rs`).
//!
//! | | misuse | now |
//! |---|---|---|
//! | 1-6 | a permit is ended twice, copied, made up; a worker is used by two threads, or beside its turn; a policy of one's own | does not compile |
//! | 7, 8 | a permit is dropped; it ends with a cost of 0 or of 2^64 | its job has ended, as announced; at 0, at 2^40 |
//! | 9-11 | a permit ends at another worker, after its worker, its tenant or every handle of its scheduler has gone | it goes home |
//! | 12 | a permit is forgotten | its job runs for ever: D is one less, and `under_way` tells |
//! | 13-15 | a worker is dropped with jobs; a place is taken twice, or does not exist | the place is free; refused |
//! | 16-18 | a worker stops calling, is forgotten, or is called with a clock that goes back | it is passed; nothing |
//! | 19-22 | a tenant is of another scheduler, removed with jobs, removed twice, used after that | refused; they end in order; nothing; refused |
//! | 23 | every handle of a tenant is dropped | its jobs run |
//! | 24-26 | a job is withdrawn twice, while it runs, or elsewhere; its words are made up | not found |
//! | 27-29 | a future is dropped at any time, polled after it was ready, or finds no place | gives back; asks anew; refused |
//! | 30, 31 | a weight, cost or number is out of range; a bell or a waker calls the scheduler | refused; it may |

use mqfq_sched::door::{JobId, Next, Permit, Refused, Scheduler, Tenant, Wait, Worker};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A scheduler of so many places with two permits, a tenant, and the worker of place 0.
fn one(places: usize) -> (Scheduler, Tenant, Worker<u32>) {
    let scheduler = Scheduler::builder().places(places).permits(2).build().unwrap();
    let tenant = scheduler.add_tenant(1).unwrap();
    let worker = scheduler.worker(0).unwrap();
    (scheduler, tenant, worker)
}

fn start(worker: &mut Worker<u32>, tenant: &Tenant, now_ns: u64) -> Permit {
    worker.try_push(tenant, 10, 0).unwrap();
    let Next::Job(permit, 0) = worker.next(now_ns) else { panic!("a permit is free") };
    permit
}

#[test]
fn misuse_7_8_permits_that_are_dropped_or_end_with_any_number() {
    let (scheduler, tenant, mut worker) = one(1);
    drop(start(&mut worker, &tenant, 0));
    assert_eq!((scheduler.free_permits(), tenant.counters().served_cost), (2, 10));
    start(&mut worker, &tenant, 1).finish(0);
    let permit = start(&mut worker, &tenant, 2);
    worker.finish(permit, u64::MAX);
    assert_eq!((scheduler.free_permits(), tenant.counters().served_cost), (2, 10 + (1 << 40)));
}

#[test]
fn misuse_9_to_11_permits_that_end_elsewhere_or_late() {
    let (scheduler, tenant, mut worker) = one(2);
    let mut other = scheduler.worker::<u32>(1).unwrap();
    let permit = start(&mut worker, &tenant, 0);
    other.finish(permit, 10);
    assert_eq!(scheduler.free_permits(), 2);
    let (first, last) = (start(&mut worker, &tenant, 0), start(&mut other, &tenant, 0));
    drop(worker);
    tenant.remove();
    first.finish(10);
    assert_eq!(scheduler.free_permits(), 1);
    drop((scheduler, tenant, other));
    last.finish(10);
}

#[test]
fn misuse_12_a_permit_that_is_forgotten() {
    let (scheduler, tenant, mut worker) = one(1);
    std::mem::forget(start(&mut worker, &tenant, 0));
    assert_eq!((scheduler.free_permits(), tenant.counters().under_way), (1, 1));
    for now_ns in 1..100 {
        start(&mut worker, &tenant, now_ns).finish(10);
    }
}

#[test]
fn misuse_13_to_15_places() {
    let (scheduler, tenant, mut worker) = one(1);
    assert_eq!(scheduler.worker::<u32>(0).err(), Some(Refused::PlaceTaken));
    assert_eq!(scheduler.worker::<u32>(1).err(), Some(Refused::NoPlace(1)));
    worker.try_push(&tenant, 10, 1).unwrap();
    drop(worker);
    let mut next = scheduler.worker(0).unwrap();
    assert!(matches!(next.next(0), Next::Idle));
    start(&mut next, &tenant, 0).finish(10);
}

#[test]
fn misuse_16_17_workers_that_stop_calling_or_are_forgotten() {
    for is_forgotten in [false, true] {
        let (scheduler, tenant, mut silent) = one(2);
        let neighbour = scheduler.add_tenant(1).unwrap();
        let mut worker = scheduler.worker(1).unwrap();
        for _ in 0..100 {
            silent.try_push(&tenant, 10, 0).unwrap();
        }
        let _silent = if is_forgotten {
            std::mem::forget(silent);
            None
        } else {
            Some(silent)
        };
        let (mut served, mut waits) = (0, 0);
        for round in 0..300 {
            worker.try_push(&neighbour, 10, 0).unwrap();
            match worker.next(round * 100_000) {
                Next::Job(permit, _) => {
                    served += 1;
                    worker.finish(permit, 10);
                }
                Next::Wait(Wait::Window) => waits += 1,
                _ => panic!("permits are free"),
            }
        }
        assert!(served >= 280 && waits <= 20, "{served} of 300 served, {waits} waits");
    }
}

#[test]
fn misuse_18_a_clock_that_goes_back() {
    let (scheduler, tenant, mut worker) = one(2);
    let mut other = scheduler.worker(1).unwrap();
    for now_ns in [u64::MAX, 0, 1 << 63, 7, u64::MAX] {
        start(&mut worker, &tenant, now_ns).finish(10);
        start(&mut other, &tenant, !now_ns).finish(10);
        assert!(matches!(worker.next(now_ns), Next::Idle));
    }
    assert_eq!((scheduler.free_permits(), tenant.counters().served), (2, 10));
}

#[test]
fn misuse_19_to_23_tenants() {
    let (_here, tenant, mut worker) = one(1);
    let (_there, stranger, _) = one(1);
    assert_eq!(worker.try_push(&stranger, 10, 0).err(), Some(Refused::OtherScheduler));
    for job in 0..3 {
        worker.try_push(&tenant, 10, job).unwrap();
    }
    tenant.remove();
    tenant.remove();
    assert_eq!(worker.try_push(&tenant, 10, 3).err(), Some(Refused::TenantGone));
    assert_eq!(tenant.set_weight(2), Err(Refused::TenantGone));
    drop(tenant);
    for name in 0..3 {
        let Next::Job(permit, job) = worker.next(0) else { panic!("job {name} runs") };
        assert_eq!(job, name);
        permit.finish(10);
    }
}

#[test]
fn misuse_24_to_26_jobs() {
    let (_, tenant, mut worker) = one(2);
    let (_, stranger, mut elsewhere) = one(2);
    elsewhere.try_push(&stranger, 10, 8).unwrap();
    let id = worker.try_push(&tenant, 10, 7).unwrap();
    assert_eq!(elsewhere.withdraw(id), None);
    assert_eq!((worker.withdraw(id), worker.withdraw(id)), (Some(7), None));
    let id = worker.try_push(&tenant, 10, 7).unwrap();
    let Next::Job(permit, 7) = worker.next(0) else { panic!("it starts") };
    assert_eq!(worker.withdraw(id), None);
    permit.finish(10);
    let [scheduler, ..] = id.words();
    for words in [[0; 3], [u64::MAX; 3], [scheduler, u64::MAX, 0], [scheduler, 0, u64::MAX], [scheduler, 1 << 32, 0]] {
        assert_eq!(worker.withdraw(JobId::from_words(words)), None, "{words:?}");
    }
}

/// Counts wakes, and asks for a tenant's counters in each and at its end.
struct Asks(Tenant, AtomicUsize);

impl Drop for Asks {
    fn drop(&mut self) {
        self.0.counters();
    }
}

impl Wake for Asks {
    fn wake(self: Arc<Self>) {
        self.0.counters();
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn misuse_27_to_29_futures() {
    let scheduler = Scheduler::builder().permits(1).build().unwrap();
    let tenant = scheduler.add_tenant(1).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut first = pin!(tenant.acquire(10));
    let Poll::Ready(Ok(permit)) = first.as_mut().poll(&mut context) else { panic!("a permit is free") };
    for polls in 0..3 {
        let mut other = Box::pin(tenant.acquire(10));
        (0..polls).for_each(|_| assert!(other.as_mut().poll(&mut context).is_pending()));
    }
    assert_eq!(tenant.counters().waiting, 0);
    assert!(first.as_mut().poll(&mut context).is_pending(), "it asks anew");
    drop(permit);
    assert!(matches!(first.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    assert_eq!(scheduler.free_permits(), 1);
    // A waker that is replaced, or left behind, is dropped where its owner's calls do not lock themselves out.
    let permit = tenant.acquire_blocking(10).unwrap();
    let mut second = Box::pin(tenant.acquire(10));
    for _ in 0..2 {
        let waker = Waker::from(Arc::new(Asks(tenant.clone(), AtomicUsize::new(0))));
        assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    drop((second, permit));
    assert_eq!((tenant.counters().waiting, scheduler.free_permits()), (0, 1));
    let (_, tenant, _worker) = one(1);
    assert_eq!(tenant.acquire_blocking(10).err(), Some(Refused::PlaceTaken));
}

#[test]
fn misuse_30_numbers_out_of_range() {
    // Others in `door.rs`: `numbers_out_of_range_are_refused_and_setters_have_no_order`.
    let (scheduler, tenant, mut worker) = one(1);
    for weight in [0, 10_001, u32::MAX] {
        assert_eq!(scheduler.add_tenant(weight).err(), Some(Refused::WeightOutOfRange(weight)));
        assert_eq!(tenant.set_weight(weight), Err(Refused::WeightOutOfRange(weight)));
    }
    for cost in [0, (1 << 40) + 1, u64::MAX] {
        assert_eq!(worker.try_push(&tenant, cost, 0).err(), Some(Refused::CostOutOfRange(cost)));
        assert!(matches!(
            pin!(tenant.acquire(cost)).poll(&mut Context::from_waker(Waker::noop())),
            Poll::Ready(Err(_))
        ));
    }
    for permits in [0, 65_536] {
        assert!(scheduler.set_permits(permits).is_err());
    }
    for (places, permits) in [(1024, 1), (1, 65_535)] {
        let most = Scheduler::builder().places(places).permits(permits).jobs(1).tenants(1).build();
        assert_eq!(most.unwrap().free_permits(), i64::from(permits));
    }
}

#[test]
fn misuse_31_bells_and_wakers_that_call_the_scheduler() {
    let (scheduler, tenant, mut worker) = one(2);
    let held = [0, 1].map(|now_ns| start(&mut worker, &tenant, now_ns));
    worker.try_push(&tenant, 10, 5).unwrap();
    let asks = Arc::new(Asks(tenant.clone(), AtomicUsize::new(0)));
    let bell = asks.clone();
    worker.on_wake(move || bell.clone().wake());
    assert!(matches!(worker.next(1), Next::Wait(Wait::Permits)) && worker.may_sleep());
    let waker = Waker::from(asks.clone());
    let mut future = pin!(tenant.acquire(10));
    assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(held);
    assert_eq!(asks.1.load(Ordering::Relaxed), 2, "the bell, and the waker");
    worker.woke();
    assert!(matches!(worker.next(2), Next::Job(_, 5)));
    assert!(matches!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(_))));
    assert_eq!(scheduler.free_permits(), 2);
}
