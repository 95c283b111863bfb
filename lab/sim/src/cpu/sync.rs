//! Synchronisation of a program's threads: mutexes, barriers, conditions, semaphores.
//!
//! Each names its owner and its waiters, in the order in which they came. How a thread waits (spinning on a core, or
//! blocked) is the machine's business: these say which thread may go on, and the machine knows how to tell it.

use std::collections::VecDeque;

/// A thread, as the machine numbers them.
pub type Thread = u32;

/// A mutex.
#[derive(Default)]
pub struct Mutex {
    /// Thread that has it.
    pub owner: Option<Thread>,
    /// Threads that want it.
    pub waiters: VecDeque<Thread>,
}

impl Mutex {
    /// `thread` has it now, if it was free.
    pub fn try_lock(&mut self, thread: Thread) -> bool {
        if self.owner.is_some() {
            return false;
        }
        self.owner = Some(thread);
        true
    }

    /// It no longer waits.
    pub fn forget(&mut self, thread: Thread) {
        self.waiters.retain(|waiter| *waiter != thread);
    }
}

/// A barrier.
pub struct Barrier {
    /// Threads that must come.
    pub parties: u32,
    /// Threads that have come.
    pub waiters: Vec<Thread>,
}

impl Barrier {
    /// `thread` is here. `Some`: it was the last one, and these may go on, in the order in which they came.
    pub fn arrive(&mut self, thread: Thread) -> Option<Vec<Thread>> {
        if self.waiters.len() as u32 + 1 < self.parties {
            self.waiters.push(thread);
            return None;
        }
        Some(std::mem::take(&mut self.waiters))
    }
}

/// A semaphore. A put unit goes to the thread that waited longest.
#[derive(Default)]
pub struct Semaphore {
    /// How many can be taken without waiting.
    pub value: u32,
    /// Threads that wait.
    pub waiters: VecDeque<Thread>,
}

impl Semaphore {
    /// One is taken; false: there is none, and `thread` waits.
    pub fn down(&mut self, thread: Thread) -> bool {
        if self.value == 0 {
            self.waiters.push_back(thread);
            return false;
        }
        self.value -= 1;
        true
    }

    /// One is put; `Some`: it is this thread's.
    pub fn up(&mut self) -> Option<Thread> {
        let first = self.waiters.pop_front();
        self.value += u32::from(first.is_none());
        first
    }
}

/// A condition: the threads that wait for it, and with which mutex.
#[derive(Default)]
pub struct Condition {
    /// In the order in which they came.
    pub waiters: VecDeque<Thread>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_at_a_barrier_releases_the_others_in_order_and_it_begins_anew() {
        let mut barrier = Barrier { parties: 3, waiters: Vec::new() };
        for round in 0..2 {
            assert_eq!(barrier.arrive(7), None);
            assert_eq!(barrier.arrive(3), None);
            assert_eq!(barrier.arrive(5), Some(vec![7, 3]), "round {round}");
        }
        let mut alone = Barrier { parties: 1, waiters: Vec::new() };
        assert_eq!(alone.arrive(1), Some(vec![]));
    }

    #[test]
    fn what_is_put_into_a_semaphore_goes_to_who_waits_and_is_not_counted_then() {
        let mut semaphore = Semaphore { value: 1, ..Semaphore::default() };
        assert!(semaphore.down(1));
        assert!(!semaphore.down(2) && !semaphore.down(3));
        assert_eq!((semaphore.up(), semaphore.up(), semaphore.up()), (Some(2), Some(3), None));
        assert_eq!(semaphore.value, 1);
    }

    #[test]
    fn a_mutex_has_one_owner() {
        let mut mutex = Mutex::default();
        assert!(mutex.try_lock(1));
        assert!(!mutex.try_lock(2));
        mutex.waiters.extend([2, 3]);
        mutex.forget(2);
        assert_eq!(mutex.waiters, [3]);
    }
}
