//! Work of the threads of a program.
//!
//! A program has *roles*; all threads of a role do the same steps, over and over. What they share (mutexes, barriers,
//! semaphores, conditions) belongs to the program. Times are fixed or drawn, from a stream of the thread's own.

use crate::workload::random::Random;
use mqfq_config::duration;

/// A time, drawn anew each time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Time {
    /// Always this, ns.
    Fixed(u64),
    /// Anything between the two, ns.
    Uniform(u64, u64),
    /// Exponential with this mean, ns; at most 20 times of it.
    Exponential(u64),
}

impl Time {
    /// One of them, at least 1 ns.
    pub fn draw(self, random: &mut Random) -> u64 {
        let ns = match self {
            Time::Fixed(ns) => ns,
            Time::Uniform(least, most) => least + random.below(most - least + 1),
            Time::Exponential(mean) => (random.exponential().min(20.0) * mean as f64) as u64,
        };
        ns.max(1)
    }

    /// Around `mean_ns`, up to `percent` of it to both sides.
    pub fn around(mean_ns: u64, percent: u64) -> Time {
        let off = mean_ns * percent.min(100) / 100;
        if off == 0 { Time::Fixed(mean_ns) } else { Time::Uniform(mean_ns - off, mean_ns + off) }
    }

    /// Its mean.
    pub fn mean_ns(self) -> u64 {
        match self {
            Time::Fixed(ns) | Time::Exponential(ns) => ns,
            Time::Uniform(least, most) => (least + most) / 2,
        }
    }
}

/// How a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// It blocks at once, as pthread does.
    Block,
    /// It spins for so long, then blocks.
    SpinThenBlock(u64),
    /// It spins until it has what it waits for.
    Spin,
}

impl Waiting {
    /// How long it spins, ns.
    pub fn spin_ns(self) -> u64 {
        match self {
            Waiting::Block => 0,
            Waiting::SpinThenBlock(ns) => ns,
            Waiting::Spin => u64::MAX,
        }
    }

    /// As a scenario writes it; `None`: not so.
    pub fn parse(text: &str) -> Option<Waiting> {
        match text {
            "block" => Some(Waiting::Block),
            "spin" => Some(Waiting::Spin),
            _ => duration::parse(text.strip_prefix("spin ")?).map(Waiting::SpinThenBlock),
        }
    }
}

/// One of the things that the threads of a program share, by its number in that program, per kind.
pub type Shared = u32;

/// One step.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// It computes.
    Compute(Time),
    /// It waits for a device or a clock: off the core, and not for another thread.
    Sleep(Time),
    /// It takes one of the `count` mutexes from `first` on, drawn anew each time.
    Lock {
        /// The first.
        first: Shared,
        /// How many.
        count: u32,
    },
    /// It unlocks the mutex that it took last.
    Unlock,
    /// It waits for the condition. Meanwhile the mutex that it took last is unlocked.
    Wait(Shared),
    /// It wakes one of those that wait for the condition, if any does.
    Signal(Shared),
    /// It wakes all of them.
    Broadcast(Shared),
    /// It waits until all threads of the barrier are here.
    Barrier(Shared),
    /// It takes one from the semaphore, and waits if there is none.
    Down(Shared),
    /// It puts one.
    Up(Shared),
    /// A piece of the program's work is done.
    Done,
    /// These, so many times.
    Repeat(u32, Vec<Step>),
}

/// The threads that do the same.
#[derive(Clone, PartialEq, Debug)]
pub struct Role {
    /// How many.
    pub threads: u32,
    /// Steps of each thread, repeated.
    pub steps: Vec<Step>,
}

/// A program.
#[derive(Clone, PartialEq, Debug)]
pub struct Body {
    /// Roles of the threads, which are numbered role by role.
    pub roles: Vec<Role>,
    /// How many mutexes there are.
    pub mutexes: u32,
    /// How many conditions there are.
    pub conditions: u32,
    /// Barriers, each with the threads that must come.
    pub barriers: Vec<u32>,
    /// Semaphores, each with what it holds at first. A bounded queue between two stages is two of them: places and
    /// items.
    pub semaphores: Vec<u32>,
    /// How its threads wait for mutexes, barriers and semaphores. Conditions always block.
    pub waiting: Waiting,
    /// A mutex goes to the thread that has waited longest. Otherwise, as with pthread's on Linux, an unlocked mutex is
    /// free, the first thread to come has it, and a thread woken for it may find it taken.
    pub hand_off: bool,
}

impl Body {
    /// Body of `threads` threads that do `steps` and share nothing yet.
    pub fn of(threads: u32, steps: Vec<Step>) -> Body {
        Body {
            roles: vec![Role { threads, steps }],
            mutexes: 0,
            conditions: 0,
            barriers: Vec::new(),
            semaphores: Vec::new(),
            waiting: Waiting::Block,
            hand_off: false,
        }
    }

    /// Threads of all roles.
    pub fn threads(&self) -> u32 {
        self.roles.iter().map(|role| role.threads).sum()
    }

    /// # Errors
    /// One sentence: a step names what there is not, or a role would turn in circles without time passing.
    pub fn check(&self) -> Result<(), String> {
        for (number, role) in self.roles.iter().enumerate() {
            let mut takes_time = false;
            let mut held = 0;
            self.check_steps(&role.steps, &mut takes_time, &mut held).map_err(|why| format!("role {number}: {why}"))?;
            if !takes_time {
                return Err(format!("role {number} never computes and never sleeps, so no time would pass"));
            }
            if held != 0 {
                return Err(format!("role {number} takes {held} more mutexes than it lets go of"));
            }
        }
        Ok(())
    }

    fn check_steps(&self, steps: &[Step], takes_time: &mut bool, held: &mut i32) -> Result<(), String> {
        let known = |what: &str, number: u32, there: u32| match number < there {
            true => Ok(()),
            false => Err(format!("{what} {number} of {there}")),
        };
        for step in steps {
            match step {
                Step::Compute(_) | Step::Sleep(_) => *takes_time = true,
                Step::Lock { first, count } => {
                    known("mutex", first + count.max(&1) - 1, self.mutexes)?;
                    *held += 1;
                }
                Step::Unlock => *held -= 1,
                Step::Wait(condition) => {
                    known("condition", *condition, self.conditions)?;
                    if *held == 0 {
                        return Err("waits for a condition without a mutex".into());
                    }
                }
                Step::Signal(condition) | Step::Broadcast(condition) => {
                    known("condition", *condition, self.conditions)?;
                }
                Step::Barrier(barrier) => known("barrier", *barrier, self.barriers.len() as u32)?,
                Step::Down(semaphore) | Step::Up(semaphore) => {
                    known("semaphore", *semaphore, self.semaphores.len() as u32)?;
                }
                Step::Done => {}
                Step::Repeat(times, steps) => {
                    let before = *held;
                    let mut inside = false;
                    self.check_steps(steps, &mut inside, held)?;
                    *takes_time |= inside && *times > 0;
                    if *held != before {
                        return Err("takes a mutex in a repetition and lets go of it outside".into());
                    }
                }
            }
            if *held < 0 {
                return Err("lets go of a mutex that it does not have".into());
            }
        }
        Ok(())
    }
}

/// A step as the machine takes it: flat, with the shared things numbered over all programs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Op {
    Compute(Time),
    Sleep(Time),
    Lock {
        first: u32,
        count: u32,
    },
    Unlock,
    Wait(u32),
    Signal(u32),
    Broadcast(u32),
    Barrier(u32),
    Down(u32),
    Up(u32),
    Done,
    /// The loop of this depth begins.
    Begin {
        depth: u8,
    },
    /// Once more from `to` on until it was so many times.
    Again {
        depth: u8,
        times: u32,
        to: u32,
    },
    /// From the role's beginning.
    Over,
}

/// Numbers of a program's first mutex and so on.
#[derive(Clone, Copy, Default)]
pub(super) struct Bases {
    pub mutex: u32,
    pub condition: u32,
    pub barrier: u32,
    pub semaphore: u32,
}

/// Deepest repetition in repetitions.
pub(super) const DEPTH_MAX: usize = 8;

/// `steps` as operations.
pub(super) fn flatten(steps: &[Step], bases: Bases) -> Result<Vec<Op>, String> {
    let mut ops = Vec::new();
    append(steps, bases, 0, &mut ops)?;
    ops.push(Op::Over);
    Ok(ops)
}

fn append(steps: &[Step], bases: Bases, depth: u8, ops: &mut Vec<Op>) -> Result<(), String> {
    for step in steps {
        let op = match step {
            Step::Compute(time) => Op::Compute(*time),
            Step::Sleep(time) => Op::Sleep(*time),
            Step::Lock { first, count } => Op::Lock { first: bases.mutex + first, count: (*count).max(1) },
            Step::Unlock => Op::Unlock,
            Step::Wait(condition) => Op::Wait(bases.condition + condition),
            Step::Signal(condition) => Op::Signal(bases.condition + condition),
            Step::Broadcast(condition) => Op::Broadcast(bases.condition + condition),
            Step::Barrier(barrier) => Op::Barrier(bases.barrier + barrier),
            Step::Down(semaphore) => Op::Down(bases.semaphore + semaphore),
            Step::Up(semaphore) => Op::Up(bases.semaphore + semaphore),
            Step::Done => Op::Done,
            Step::Repeat(times, inner) => {
                if usize::from(depth) == DEPTH_MAX {
                    return Err(format!("repetitions in repetitions, allowed are {DEPTH_MAX} levels"));
                }
                if *times == 0 {
                    continue;
                }
                ops.push(Op::Begin { depth });
                let to = ops.len() as u32;
                append(inner, bases, depth + 1, ops)?;
                Op::Again { depth, times: *times, to }
            }
        };
        ops.push(op);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_body_names_must_be_there() {
        let refusal = |steps: Vec<Step>| Body { mutexes: 1, ..Body::of(1, steps) }.check().unwrap_err();
        let compute = Step::Compute(Time::Fixed(1));
        let lock = Step::Lock { first: 0, count: 1 };
        assert_eq!(refusal(vec![compute.clone(), Step::Barrier(0)]), "role 0: barrier 0 of 0");
        assert_eq!(refusal(vec![Step::Lock { first: 0, count: 2 }]), "role 0: mutex 1 of 1");
        assert_eq!(refusal(vec![Step::Done]), "role 0 never computes and never sleeps, so no time would pass");
        assert_eq!(refusal(vec![compute.clone(), lock.clone()]), "role 0 takes 1 more mutexes than it lets go of");
        assert_eq!(refusal(vec![Step::Unlock]), "role 0: lets go of a mutex that it does not have");
        assert_eq!(refusal(vec![Step::Repeat(0, vec![compute.clone()])]).split(' ').next_back(), Some("pass"));
        assert_eq!(Body { mutexes: 1, ..Body::of(1, vec![lock, compute, Step::Unlock]) }.check(), Ok(()));
    }

    #[test]
    fn a_repetition_is_a_jump_back() {
        let compute = Step::Compute(Time::Fixed(1));
        let ops = flatten(&[Step::Repeat(3, vec![compute, Step::Done])], Bases::default()).unwrap();
        let right = [
            Op::Begin { depth: 0 },
            Op::Compute(Time::Fixed(1)),
            Op::Done,
            Op::Again { depth: 0, times: 3, to: 1 },
            Op::Over,
        ];
        assert_eq!(ops, right);
    }

    #[test]
    fn drawn_times_stay_in_their_range_and_have_their_mean() {
        let mut random = Random::of(1, 2, 3, 4);
        let mut mean = |time: Time, range: std::ops::RangeInclusive<u64>| {
            let drawn: Vec<u64> = (0..20_000).map(|_| time.draw(&mut random)).collect();
            assert!(drawn.iter().all(|ns| range.contains(ns)), "{time:?}");
            drawn.iter().sum::<u64>() as f64 / drawn.len() as f64
        };
        assert_eq!(mean(Time::Fixed(7), 7..=7), 7.0);
        assert!((mean(Time::around(1_000, 20), 800..=1_200) - 1_000.0).abs() < 5.0);
        assert!((mean(Time::Exponential(1_000), 1..=20_000) - 1_000.0).abs() < 30.0);
    }

    #[test]
    fn waiting_is_written_in_three_ways() {
        assert_eq!(Waiting::parse("block"), Some(Waiting::Block));
        assert_eq!(Waiting::parse("spin"), Some(Waiting::Spin));
        assert_eq!(Waiting::parse("spin 10us"), Some(Waiting::SpinThenBlock(10_000)));
        assert_eq!(Waiting::parse("spin forever"), None);
    }
}
