//! Calls that wait for a permit: as a future, or on a thread.

use super::refused::Refused;
use super::shared::{FREE, Kicks, Permit, Tenant, WAITING, lock};
use crate::sync::Ordering;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

impl Tenant {
    /// Waits for a permit for a job of this cost, 1 to 2^40. Dropped before it is ready, it takes its place back; a
    /// permit that has come meanwhile goes to another. It needs a place without a worker, and no runtime: a permit that
    /// ends wakes the next.
    ///
    /// The future's errors: [`Refused`].
    pub fn acquire(&self, cost: u64) -> PermitFuture {
        PermitFuture { tenant: self.clone(), cost, at: None }
    }

    /// As [`Tenant::acquire`]; the thread is parked until then.
    ///
    /// # Errors
    /// [`Refused`].
    #[cfg(feature = "std")]
    pub fn acquire_blocking(&self, cost: u64) -> Result<Permit, Refused> {
        struct Unpark(std::thread::Thread);
        impl alloc::task::Wake for Unpark {
            fn wake(self: crate::sync::Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(crate::sync::Arc::new(Unpark(std::thread::current())));
        let mut acquire = core::pin::pin!(self.acquire(cost));
        loop {
            match acquire.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(permit) => return permit,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

/// Future of a permit.
#[must_use = "futures do nothing unless polled"]
pub struct PermitFuture {
    tenant: Tenant,
    cost: u64,
    /// Place, slot and use of the slot, from the first poll until it is ready.
    at: Option<(usize, u32, u32)>,
}

impl PermitFuture {
    /// A place without a worker.
    fn place(&self) -> Result<usize, Refused> {
        let shared = &self.tenant.shared;
        let count = shared.places.len();
        // Relaxed: any will do.
        let turn = shared.turn.fetch_add(1, Ordering::Relaxed) as usize;
        for at in (0..count).map(|n| (turn + n) % count) {
            let place = &shared.places[at];
            // Relaxed: a hint; the lock decides.
            if place.mode.load(Ordering::Relaxed) == FREE {
                let mut inner = lock(&place.inner);
                // Relaxed: under the lock.
                if place.mode.load(Ordering::Relaxed) == FREE {
                    place.mode.store(WAITING, Ordering::Relaxed);
                    inner.aside = None;
                }
            }
            // Relaxed: a place for all stays one. Another call may have taken it between the two looks above.
            if place.mode.load(Ordering::Relaxed) == WAITING {
                return Ok(at);
            }
        }
        Err(Refused::PlaceTaken)
    }

    fn take(&mut self, waker: &Waker) -> Poll<Result<Permit, Refused>> {
        let shared = self.tenant.shared.clone();
        let mut kicks = Kicks::default();
        let (at, slot) = match self.at {
            Some((at, slot, _)) => (at, slot),
            None => {
                match shared.is_cost(self.cost) {
                    Err(refused) => return Poll::Ready(Err(refused)),
                    Ok(true) => (),
                    Ok(false) => shared.set_typical(self.cost),
                }
                let at = match self.place() {
                    Ok(at) => at,
                    Err(refused) => return Poll::Ready(Err(refused)),
                };
                let mut inner = lock(&shared.places[at].inner);
                let Tenant { flow, generation, .. } = self.tenant;
                let pushed = shared.push(&mut inner, flow, generation, self.cost, &mut kicks);
                shared.pump(&mut inner, at, &mut kicks);
                let (slot, generation) = match pushed {
                    Ok(pushed) => pushed,
                    Err(refused) => {
                        drop(inner);
                        shared.deliver(&mut kicks, None);
                        return Poll::Ready(Err(refused));
                    }
                };
                self.at = Some((at, slot, generation));
                (at, slot)
            }
        };
        // A waker that is replaced is dropped without the lock: it may own a task with calls of its own.
        let (is_granted, _replaced) = {
            let job = &mut lock(&shared.places[at].inner).jobs[slot as usize];
            let is_granted = core::mem::take(&mut job.is_granted);
            (is_granted, if is_granted { None } else { job.waker.replace(waker.clone()) })
        };
        shared.deliver(&mut kicks, None);
        if !is_granted {
            return Poll::Pending;
        }
        self.at = None;
        Poll::Ready(Ok(Permit { shared: Some(shared), place: at as u16, slot }))
    }
}

impl Future for PermitFuture {
    type Output = Result<Permit, Refused>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.take(context.waker())
    }
}

impl Drop for PermitFuture {
    fn drop(&mut self) {
        let Some((at, slot, generation)) = self.at.take() else { return };
        let shared = &self.tenant.shared;
        let mut kicks = Kicks::default();
        let mut inner = lock(&shared.places[at].inner);
        // Dropped without the lock, as in `take`.
        let waker = inner.jobs[slot as usize].waker.take();
        if core::mem::take(&mut inner.jobs[slot as usize].is_granted) {
            // Nothing ran.
            shared.end(&mut inner, slot, Some(0), &mut kicks);
        } else {
            shared.withdraw(&mut inner, slot, generation, &mut kicks);
        }
        shared.pump(&mut inner, at, &mut kicks);
        drop(inner);
        drop(waker);
        shared.deliver(&mut kicks, None);
    }
}
