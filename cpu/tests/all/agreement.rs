//! The ideal scheduler against a version as on paper, which adds up each thread's run time and looks through all
//! waiting threads.

use crate::history;

use history::{Habit, History, Levels, tasks};
use mqfq_cpu::ideal::{Ideal, IdealOptions, Preemption};
use mqfq_cpu::scheduler::{CoreId, Effects, Machine, ProgramId, Run, Scheduler, Stop, Tasks, ThreadId};
use mqfq_testing::Random;
use std::collections::BTreeMap;

/// Weights are powers of two up to this, the default, so that tags are whole nanoseconds.
const WEIGHT_MAX: u32 = Tasks::WEIGHT_DEFAULT;

/// State of a program, in nanoseconds times `WEIGHT_MAX` over weight.
#[derive(Clone, Default)]
struct Account {
    weight: u32,
    /// The point to which it was aligned, plus its run since.
    charged: u128,
    /// Longest run of each of its requests in service.
    in_service: BTreeMap<CoreId, (u64, u64)>,
    /// Waiting requests in order: arrival, thread, rest of the quantum.
    waiting: Vec<(u64, ThreadId, u64)>,
}

impl Account {
    fn cost(&self, ns: u64) -> u128 {
        u128::from(ns) * u128::from(WEIGHT_MAX / self.weight)
    }

    fn finish(&self) -> u128 {
        self.charged + self.in_service.values().map(|(granted_ns, _)| self.cost(*granted_ns)).sum::<u128>()
    }
}

/// Holds the one against the other.
struct Both {
    ideal: Ideal,
    options: IdealOptions,
    tasks: Tasks,
    accounts: Vec<Account>,
    arrivals: u64,
    picks: u64,
}

impl Both {
    fn new(cores: usize, habits: &[Habit], options: IdealOptions) -> Both {
        let tasks = tasks(habits);
        let ideal = Ideal::new(&Machine::new(cores, 1).unwrap(), &tasks, options).unwrap();
        let accounts = habits.iter().map(|habit| Account { weight: habit.weight, ..Account::default() }).collect();
        Both { ideal, options, tasks, accounts, arrivals: 0, picks: 0 }
    }

    fn account(&mut self, thread: ThreadId) -> &mut Account {
        self.arrivals += 1;
        &mut self.accounts[self.tasks.program_of(thread).index()]
    }

    fn check(&self) {
        for (program, account) in self.accounts.iter().enumerate() {
            let tag = self.ideal.finish_tag(ProgramId(program as u16)).whole_ns();
            assert_eq!(u128::from(tag), account.finish(), "finish tag of {program}");
        }
    }
}

impl Scheduler for Both {
    fn wake(&mut self, thread: ThreadId, waker: Option<CoreId>, now_ns: u64, out: &mut dyn Effects) {
        let program = self.tasks.program_of(thread);
        let quantum_ns = self.options.quantum_ns;
        self.ideal.wake(thread, waker, now_ns, out);
        // Where it was aligned to is the other's word; that it is v is tested elsewhere.
        let aligned = u128::from(self.ideal.finish_tag(program).whole_ns());
        let account = self.account(thread);
        if account.in_service.is_empty() && account.waiting.is_empty() {
            assert!(aligned >= account.charged, "it went back");
            account.charged = aligned;
        }
        let arrival = self.arrivals;
        self.account(thread).waiting.push((arrival, thread, quantum_ns));
    }

    fn stop(&mut self, core: CoreId, thread: ThreadId, why: Stop, ran_ns: u64, now_ns: u64, out: &mut dyn Effects) {
        let (quantum_ns, worth_ns) = (self.options.quantum_ns, self.options.min_slice_ns.max(1));
        self.ideal.stop(core, thread, why, ran_ns, now_ns, out);
        let account = self.account(thread);
        let (_, left_ns) = account.in_service.remove(&core).unwrap();
        account.charged += account.cost(ran_ns);
        let arrival = self.arrivals;
        let account = self.account(thread);
        if why.is_runnable() && left_ns - ran_ns >= worth_ns {
            account.waiting.insert(0, (arrival, thread, left_ns - ran_ns));
        } else if why.is_runnable() {
            account.waiting.push((arrival, thread, quantum_ns));
        }
        self.check();
    }

    fn pick(&mut self, core: CoreId, now_ns: u64, out: &mut dyn Effects) -> Option<Run> {
        let picked = self.ideal.pick(core, now_ns, out);
        let waits = self.accounts.iter_mut().filter(|account| !account.waiting.is_empty());
        let first = waits.min_by_key(|account| (account.finish(), account.waiting[0].0));
        assert_eq!(picked.is_some(), first.is_some(), "somebody waits");
        if let Some(account) = first {
            let (_, thread, left_ns) = account.waiting.remove(0);
            let granted_ns = left_ns.min(self.options.slice_ns());
            assert_eq!(picked, Some(Run { thread, until_ns: Some(now_ns + granted_ns) }));
            account.in_service.insert(core, (granted_ns, left_ns));
            self.picks += 1;
        }
        self.check();
        picked
    }

    fn next_timer_ns(&self) -> Option<u64> {
        self.ideal.next_timer_ns()
    }

    fn timer(&mut self, now_ns: u64, out: &mut dyn Effects) {
        self.ideal.timer(now_ns, out);
    }
}

impl Levels for Both {
    fn are_level(&self, _: ProgramId, _: ProgramId, _: u64) -> bool {
        true
    }
}

#[test]
fn the_ideal_scheduler_picks_whom_one_would_pick_on_paper() {
    let (mut picks, mut preempted) = (0, 0);
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let cores = random.between(1, 6) as usize;
        let programs = random.between(2, 5);
        let habits: Vec<Habit> = (0..programs)
            .map(|_| Habit {
                computes_ns: (random.scaled(4) != 0).then_some((1, 1 + random.scaled(3000))),
                sleeps_ns: (1, 1 + random.scaled(3000)),
                begins_ns: (0, random.scaled(20_000)),
                ..Habit::hog(1 << random.scaled(11), random.between(1, 2 * cores as u64) as usize)
            })
            .collect();
        let preemption = [Preemption::Never, Preemption::OnArrival, Preemption::EverySlice][random.scaled(3) as usize];
        let options = IdealOptions { quantum_ns: 1024, min_slice_ns: random.between(1, 1024), preemption };
        let mut history = History::new(Both::new(cores, &habits, options), cores, &habits, seed);
        history.run_to(200_000);
        picks += history.scheduler.picks;
        preempted += history.scheduler.ideal.preempted();
    }
    println!("{picks} picks, {preempted} preempted");
    assert!(picks > 50_000 && preempted > 500, "{picks} picks, {preempted} preempted");
}
