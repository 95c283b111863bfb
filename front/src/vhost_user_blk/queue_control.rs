//! Orders of a connection to its queues, each on a worker of its own, their states, and access to an export, which one
//! connection has at a time.
//!
//! ```text
//!   connection ── Start, Stop, Leave ──▶ queue        by an eventfd of the queue's
//!              ◀── Quiet, Gone ─────────              by an eventfd of the connection's
//! ```
//!
//! Locks are held for a few instructions, on the control path: a queue that is running takes none.

use super::run::Start;
use mqfq_blk::passed::Door;
use rustix::event::EventfdFlags;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Order to a queue.
pub enum Order {
    /// Run on this ring.
    Start(Box<Start>),
    /// Take no more heads, end those under way, say so.
    Stop,
    /// Stop, and go.
    Leave,
    /// As [`Order::Leave`]; the front-end has gone: what waits is given up, if an area keeps it for the next session.
    GiveUp,
}

/// State of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The last order counts.
    Busy {
        /// The order is to stop, or to go.
        is_stopping: bool,
    },
    /// It has stopped here, as GET_VRING_BASE says it.
    Quiet(u16),
    /// The queue is no more.
    Gone,
}

/// An eventfd that does not block; `None` if the process has no descriptor left.
pub fn bell() -> Option<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()
}

/// Rings without a worker's ring: where a client is dropped, and has none.
pub fn ring(bell: &OwnedFd) {
    // Full means rung.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// The way between a connection and one queue.
pub struct QueueControl {
    queue_bell: OwnedFd,
    connection_bell: Arc<OwnedFd>,
    orders: Mutex<VecDeque<Order>>,
    state: Mutex<State>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The state behind the lock is whole after each statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl QueueControl {
    /// Nothing ordered. `None`: no descriptor is left.
    pub fn new(connection_bell: Arc<OwnedFd>) -> Option<Arc<QueueControl>> {
        let state = Mutex::new(State::Quiet(0));
        Some(Arc::new(QueueControl { queue_bell: bell()?, connection_bell, orders: Mutex::default(), state }))
    }

    /// The queue's bell, which the connection signals after an order and the queue waits for.
    pub fn queue_bell(&self) -> RawFd {
        self.queue_bell.as_raw_fd()
    }

    /// The connection's bell, which the queue signals when its state is another.
    pub fn connection_bell(&self) -> RawFd {
        self.connection_bell.as_raw_fd()
    }

    /// Has the queue do something, once its bell is signalled.
    pub fn order(&self, order: Order) {
        let mut state = locked(&self.state);
        if *state != State::Gone {
            *state = State::Busy { is_stopping: !matches!(order, Order::Start(_)) };
            locked(&self.orders).push_back(order);
        }
    }

    /// The next order.
    pub fn take(&self) -> Option<Order> {
        locked(&self.orders).pop_front()
    }

    /// State of the queue.
    pub fn state(&self) -> State {
        *locked(&self.state)
    }

    /// The queue has stopped, if nothing new was ordered meanwhile.
    pub fn quiet(&self, base: u16) {
        let mut state = locked(&self.state);
        if locked(&self.orders).is_empty() && matches!(*state, State::Busy { .. }) {
            *state = State::Quiet(base);
        }
    }

    /// The queue is no more, with whatever was ordered.
    pub fn gone(&self) {
        *locked(&self.state) = State::Gone;
        locked(&self.orders).clear();
        ring(&self.connection_bell);
    }
}

/// The one place at an export's socket: two front-ends at once would each take the other's rings for its own, and one
/// that comes back after a fault must wait until its former self's last request has ended.
#[derive(Default)]
pub struct ExclusiveAccess {
    taken: Mutex<Taken>,
    /// By which descriptors come to the socket.
    door: Arc<Door>,
}

#[derive(Default)]
struct Taken {
    is_taken: bool,
    /// Its connection goes as soon as its requests have ended.
    is_leaving: bool,
    waiting: Vec<Arc<OwnedFd>>,
}

/// The place, free again when the last holder drops it.
pub struct ExclusiveClient(Arc<ExclusiveAccess>);

impl ExclusiveAccess {
    /// By which descriptors come to the socket.
    pub fn door(&self) -> &Arc<Door> {
        &self.door
    }

    /// The place, or none: then `bell` is rung when it is free.
    pub fn take(self: &Arc<ExclusiveAccess>, bell: &Arc<OwnedFd>) -> Option<Arc<ExclusiveClient>> {
        let mut taken = locked(&self.taken);
        if std::mem::replace(&mut taken.is_taken, true) {
            if !taken.waiting.iter().any(|other| Arc::ptr_eq(other, bell)) {
                taken.waiting.push(bell.clone());
            }
            return None;
        }
        Some(Arc::new(ExclusiveClient(self.clone())))
    }

    /// The connection that has the export takes nothing more, and will free it.
    pub fn leave(&self) {
        let mut taken = locked(&self.taken);
        taken.is_leaving = taken.is_taken;
    }

    /// The export is taken by a connection that will free it.
    pub fn is_leaving(&self) -> bool {
        locked(&self.taken).is_leaving
    }

    /// Rings `bell` no more.
    pub fn forget(&self, bell: &Arc<OwnedFd>) {
        locked(&self.taken).waiting.retain(|other| !Arc::ptr_eq(other, bell));
    }
}

impl Drop for ExclusiveClient {
    fn drop(&mut self) {
        let mut taken = locked(&self.0.taken);
        (taken.is_taken, taken.is_leaving) = (false, false);
        taken.waiting.drain(..).for_each(|bell| ring(&bell));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rung(bell: &OwnedFd) -> bool {
        rustix::io::read(bell, &mut [0; 8]).is_ok()
    }

    #[test]
    fn the_place_goes_to_one_and_the_next_is_told() {
        let access = Arc::new(ExclusiveAccess::default());
        let (first, second) = (Arc::new(bell().unwrap()), Arc::new(bell().unwrap()));
        let exclusive = access.take(&first).unwrap();
        let queues = exclusive.clone();
        assert!(access.take(&second).is_none() && access.take(&second).is_none());
        drop(exclusive);
        assert!(!rung(&second), "a queue of the first is still there");
        drop(queues);
        assert!(rung(&second) && !rung(&first));
        assert!(access.take(&second).is_some());
    }

    #[test]
    fn whoever_is_gone_takes_no_orders() {
        let connection = Arc::new(bell().unwrap());
        let control = QueueControl::new(connection.clone()).unwrap();
        control.order(Order::Stop);
        control.quiet(7);
        assert_eq!(control.state(), State::Busy { is_stopping: true }, "it was told to stop, and has not looked");
        assert!(matches!(control.take(), Some(Order::Stop)));
        control.quiet(7);
        assert_eq!(control.state(), State::Quiet(7));
        control.gone();
        control.order(Order::Stop);
        assert!(control.take().is_none() && rung(&connection));
        assert_eq!(control.state(), State::Gone);
    }
}
