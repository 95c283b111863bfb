//! Operations of the thread on a core.
//!
//! Executes its operations until one takes time or blocks it. What takes no time (finding a mutex free, waking others,
//! coming last to a barrier) happens at one instant.
//!
//! A waiting thread is in the list of the object that it waits for and does [`Doing::Waiting`], on a core (it spins) or
//! off it. [`Machine::grant`] lets it go on wherever it is: a thread that spins on a core sees it at once, one that
//! spins and was preempted sees it when it runs again, a blocked one is woken.

use super::{Doing, Machine, State, Thread};
use crate::cpu::body::Op;
use mqfq_cpu::scheduler::Scheduler;
use std::cmp::Reverse;

/// Steps that a thread may take at one instant before it is said to turn in circles.
const STEPS_MAX: u32 = 1 << 20;

/// How executing ended.
pub(super) enum Then {
    /// Something takes time.
    Runs,
    /// It waits off the core.
    Blocks,
    /// The core is to pick again.
    IsAskedFor,
}

impl<S: Scheduler> Machine<'_, S> {
    /// The running thread's steps.
    pub(super) fn execute(&mut self, at: usize) -> Result<Then, String> {
        let number = self.cores[at].running.expect("a core that runs something");
        let index = number as usize;
        for _ in 0..STEPS_MAX {
            if self.cores[at].interrupt_ns <= self.now_ns {
                return Ok(Then::IsAskedFor);
            }
            let thread = &mut self.threads[index];
            match thread.doing {
                Doing::Compute { left_ns } => return Ok(self.takes(at, left_ns)),
                Doing::Waiting { mutex, spin_ns } => {
                    let found = mutex.is_some_and(|mutex| self.mutexes[mutex as usize].try_lock(number));
                    if let (Some(mutex), true) = (mutex, found) {
                        self.mutexes[mutex as usize].forget(number);
                    }
                    if found || thread.granted {
                        thread.held.extend(mutex);
                        thread.granted = false;
                        thread.doing = Doing::Next;
                        thread.pc += 1;
                    } else if spin_ns == 0 {
                        return Ok(Then::Blocks);
                    } else {
                        return Ok(self.takes(at, spin_ns));
                    }
                }
                Doing::Take { mutex } => {
                    if self.mutexes[mutex as usize].try_lock(number) {
                        thread.held.push(mutex);
                        thread.doing = Doing::Next;
                        thread.pc += 1;
                    } else {
                        self.mutexes[mutex as usize].waiters.push_back(number);
                        self.waits(number, Some(mutex));
                    }
                }
                Doing::Next => {
                    if self.operation(at, number) {
                        return Ok(Then::Blocks);
                    }
                }
            }
        }
        let program = &self.programs[self.threads[index].program as usize].name;
        Err(format!("program {program} takes {STEPS_MAX} steps and no time passes"))
    }

    /// The thread's operation takes `ns`, after the time that the core has to pay.
    fn takes(&mut self, at: usize, ns: u64) -> Then {
        let core = &mut self.cores[at];
        core.end_ns = self.now_ns.saturating_add(core.debt_ns).saturating_add(ns);
        self.plan(at);
        Then::Runs
    }

    fn waits(&mut self, number: u32, mutex: Option<u32>) {
        let thread = &mut self.threads[number as usize];
        let spin_ns = self.scenario.programs[thread.program as usize].body.waiting.spin_ns();
        thread.doing = Doing::Waiting { mutex, spin_ns };
    }

    /// The operation at the thread's `pc`; true: it blocks.
    fn operation(&mut self, at: usize, number: u32) -> bool {
        let thread = &mut self.threads[number as usize];
        match self.codes[thread.code as usize][thread.pc as usize] {
            Op::Compute(time) => {
                thread.doing = Doing::Compute { left_ns: time.draw(&mut thread.random) };
                return false;
            }
            Op::Sleep(time) => {
                let at_ns = self.now_ns + time.draw(&mut thread.random);
                self.asleep.push(Reverse((at_ns, self.fell_asleep, number)));
                self.fell_asleep += 1;
                thread.pc += 1;
                return true;
            }
            Op::Lock { first, count } => {
                let mutex = if count == 1 { first } else { first + thread.random.below(count.into()) as u32 };
                thread.doing = Doing::Take { mutex };
                return false;
            }
            Op::Unlock => {
                let mutex = thread.held.pop().expect("checked with the body");
                self.unlock(at, number, mutex);
            }
            Op::Wait(condition) => {
                let mutex = thread.held.pop().expect("checked with the body");
                thread.doing = Doing::Take { mutex };
                self.conditions[condition as usize].waiters.push_back(number);
                self.unlock(at, number, mutex);
                return true;
            }
            Op::Signal(condition) => {
                if let Some(waiter) = self.conditions[condition as usize].waiters.pop_front() {
                    self.wake(waiter, Some(at));
                }
            }
            Op::Broadcast(condition) => {
                while let Some(waiter) = self.conditions[condition as usize].waiters.pop_front() {
                    self.wake(waiter, Some(at));
                }
            }
            Op::Barrier(barrier) => match self.barriers[barrier as usize].arrive(number) {
                None => {
                    self.waits(number, None);
                    return false;
                }
                Some(waiters) => waiters.into_iter().for_each(|waiter| self.grant(waiter, at)),
            },
            Op::Down(semaphore) => {
                if !self.semaphores[semaphore as usize].down(number) {
                    self.waits(number, None);
                    return false;
                }
            }
            Op::Up(semaphore) => {
                if let Some(waiter) = self.semaphores[semaphore as usize].up() {
                    self.grant(waiter, at);
                }
            }
            Op::Done => self.programs[thread.program as usize].items += 1,
            Op::Begin { depth } => thread.loops[usize::from(depth)] = 0,
            Op::Again { depth, times, to } => {
                let done = &mut thread.loops[usize::from(depth)];
                *done += 1;
                if *done < times {
                    thread.pc = to;
                    return false;
                }
            }
            Op::Over => {
                thread.pc = 0;
                return false;
            }
        }
        self.threads[number as usize].pc += 1;
        false
    }

    /// `waiter` has what it waits for.
    fn grant(&mut self, waiter: u32, by: usize) {
        let thread = &mut self.threads[waiter as usize];
        thread.granted = true;
        match thread.state {
            State::Running(core) => {
                // It spins, and sees it now.
                let core = core as usize;
                self.settle(core);
                self.cores[core].end_ns = self.now_ns + self.cores[core].debt_ns;
                self.plan(core);
            }
            State::Queued => {}
            State::Blocked => self.wake(waiter, Some(by)),
        }
    }

    fn unlock(&mut self, at: usize, number: u32, mutex: u32) {
        let hand_off = self.scenario.programs[self.threads[number as usize].program as usize].body.hand_off;
        let state = |threads: &[Thread], waiter: &u32| threads[*waiter as usize].state;
        let lock = &mut self.mutexes[mutex as usize];
        debug_assert_eq!(lock.owner, Some(number));
        lock.owner = None;
        let chosen = match hand_off {
            true => lock.waiters.front().copied(),
            // A thread that spins on a core sees it first.
            false => {
                let spins = |waiter: &&u32| matches!(state(&self.threads, waiter), State::Running(_));
                lock.waiters.iter().find(spins).copied()
            }
        };
        if let Some(chosen) = chosen {
            lock.owner = Some(chosen);
            lock.forget(chosen);
            self.grant(chosen, at);
            return;
        }
        let blocked = lock.waiters.iter().find(|waiter| state(&self.threads, waiter) == State::Blocked).copied();
        if let Some(blocked) = blocked {
            lock.forget(blocked);
            self.threads[blocked as usize].doing = Doing::Take { mutex };
            self.wake(blocked, Some(at));
        }
    }
}
