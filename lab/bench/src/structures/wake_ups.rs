//! Cost of releasing a throttled queue: the throttle wheel and its kicks against polling, with real sleeps.
//!
//! Source of the comparison: MQFQ section 4.3.2 and figure 10.
//!
//! # The load
//! One worker dispatches 4 KiB every 2 us (500,000 requests per second) and never sleeps: virtual time moves at its
//! pace. Each other worker has one queue with requests of 192 to 320 KiB. After each of them its lead is far ahead, so
//! it is throttled and sleeps until virtual time has come within T = 64 KiB of its lead:
//!
//! | structure | sleeps in | is woken by |
//! |---|---|---|
//! | `wheel` | a read of an eventfd | the worker that turns the wheel past its slot: one write, if it sleeps ([`WakeWord`]) |
//! | `poll-1us`, `poll-5us` | `clock_nanosleep` of that length | the timer; then it looks at virtual time, and sleeps again if it is too early |
//!
//! # What is measured
//! *Delay*: from the moment virtual time had come far enough (taken right after by the mover) until the sleeper
//! runs and knows it. *CPU share*: CPU time of a sleeping worker over the time that passed. *Reschedules*: how often a
//! sleeper ran, and how often for nothing. *Step*: what the moving worker spends per dispatch, with the turn of the
//! wheel and the writes to eventfds in it (and two looks at the clock). *Held up*: how much of the time the moving
//! worker was itself T ahead, because a sleeper had not come back yet: lost throughput, figure 10 (left).
//!
//! # What differs from the paper
//! The paper's timer is an hrtimer that reschedules the dispatch routine in the kernel, its wake-up an interprocessor
//! interrupt. Here both go to a thread that sleeps in a system call: `clock_nanosleep` is an hrtimer too (with the
//! thread's timer slack at its least, 1 ns), but its thread has to be switched to, and so has that of the eventfd. So
//! the period of polling is its interval and a wake-up: the reschedules per second tell what it came to.

use super::threads::{self, Stop};
use hdrhistogram::Histogram;
use mqfq_blk::random::Random;
use mqfq_blk::worker::cores::Cpu;
use mqfq_sched::mindicator::Mindicator;
use mqfq_sched::throttle_wheel::ThrottleWheel;
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_sched::vtime::{VSpan, VTime};
use mqfq_sched::wake::WakeWord;
use mqfq_sim::rivals::word::Padded;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::thread::{clock_nanosleep_relative, set_current_timer_slack};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// T.
pub(super) const WINDOW: VSpan = VSpan::from_bytes(64 * 1024);
/// Request of the worker that moves virtual time, and its period.
pub(super) const STEP: VSpan = VSpan::from_bytes(4096);
pub(super) const STEP_NS: u64 = 2000;
/// Request of a throttled worker: 192 to 320 KiB, in units that no slot of the wheel is a multiple of.
pub(super) fn jump(random: &mut Random) -> VSpan {
    VSpan::from_bytes(192 * 1024 + 512 * random.below(257))
}

/// How a throttled worker comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The wheel kicks it.
    Wheel,
    /// It looks by itself, this often.
    Poll {
        /// Length of a sleep.
        interval_ns: u64,
    },
}

impl Way {
    /// All of them, ours first.
    pub const ALL: [Way; 3] = [Way::Wheel, Way::Poll { interval_ns: 1000 }, Way::Poll { interval_ns: 5000 }];

    /// Its name in the report.
    pub fn name(self) -> String {
        match self {
            Way::Wheel => "wheel".into(),
            Way::Poll { interval_ns } => format!("poll-{}us", interval_ns / 1000),
        }
    }
}

/// Results of one run.
pub struct Measured {
    /// Delays of wake-ups, ns.
    pub delays_ns: Histogram<u64>,
    /// Length of the run.
    pub elapsed_ns: u64,
    /// Dispatches of the moving worker.
    pub steps: u64,
    /// Time spent on them.
    pub step_busy_ns: u64,
    /// How long it was T ahead itself.
    pub held_up_ns: u64,
    /// CPU time of all sleepers.
    pub sleepers_cpu_ns: u64,
    /// How often a sleeper ran.
    pub reschedules: u64,
    /// How often among those its queue was still too far ahead.
    pub spurious: u64,
}

/// Runs one worker that moves virtual time and `cpus.len() - 1` that are throttled, at least one.
///
/// # Errors
/// One sentence.
pub fn measure(way: Way, cpus: &[Cpu], topology: &Topology, milliseconds: u64) -> Result<Measured, String> {
    let stage = Stage::new(way, topology)?;
    let work = |worker: usize, stop: &Stop| match worker {
        0 => Worked::Moved(stage.move_virtual_time(stop)),
        _ => Worked::Slept(stage.sleep_and_dispatch(worker, stop)),
    };
    let (results, elapsed_ns) = threads::run(cpus, milliseconds, work, || stage.ring_all())?;
    let delays_ns = Histogram::new(3).map_err(|error| format!("cannot make a histogram: {error}"))?;
    let mut measured = Measured {
        delays_ns,
        elapsed_ns,
        steps: 0,
        step_busy_ns: 0,
        held_up_ns: 0,
        sleepers_cpu_ns: 0,
        reschedules: 0,
        spurious: 0,
    };
    for result in results {
        match result {
            Worked::Moved(moved) => {
                (measured.steps, measured.step_busy_ns, measured.held_up_ns) =
                    (moved.steps, moved.busy_ns, moved.held_up_ns);
            }
            Worked::Slept(slept) => {
                let slept = slept?;
                measured.sleepers_cpu_ns += slept.cpu_ns;
                measured.reschedules += slept.reschedules;
                measured.spurious += slept.spurious;
                for delay_ns in slept.delays_ns {
                    measured.delays_ns.record(delay_ns).expect("a histogram that grows");
                }
            }
        }
    }
    Ok(measured)
}

enum Worked {
    Moved(Moved),
    Slept(Result<Slept, String>),
}

#[derive(Default)]
struct Moved {
    steps: u64,
    busy_ns: u64,
    held_up_ns: u64,
}

#[derive(Default)]
struct Slept {
    delays_ns: Vec<u64>,
    cpu_ns: u64,
    reschedules: u64,
    spurious: u64,
}

struct Stage {
    way: Way,
    start: Instant,
    virtual_time: Mindicator,
    wheel: ThrottleWheel,
    bells: Box<[Padded<Bell>]>,
    watches: Box<[Padded<Watch>]>,
}

/// Measures one sleeper's delay.
///
/// `since` is 0, or `ARMED` and a number while the sleeper waits, or the time at which virtual time was found to have
/// come far enough. The number is another for each sleep, so no worker writes the time of one sleep into the next.
#[derive(Default)]
struct Watch {
    due: AtomicU64,
    since: AtomicU64,
}

const ARMED: u64 = 1 << 63;

/// Bell of a sleeper: as in the block layer, but the eventfd is read in place of being waited for in a ring.
struct Bell {
    word: WakeWord,
    event: OwnedFd,
}

impl Bell {
    fn ring(&self) {
        if self.word.kick() {
            // It cannot fail: the eventfd blocks, and its count is 0 or 1.
            let written = rustix::io::write(&self.event, &1u64.to_ne_bytes());
            debug_assert_eq!(written, Ok(8));
        }
    }

    fn sleep(&self) {
        if self.word.may_sleep() {
            // A signal would end the read early, and the sleeper looks for nothing.
            let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
            self.word.woke();
        }
    }
}

impl Stage {
    fn new(way: Way, topology: &Topology) -> Result<Stage, String> {
        let workers = topology.hctx_count();
        let mut bells = Vec::new();
        for _ in 0..workers {
            let event =
                eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| format!("cannot make an eventfd: {error}"))?;
            bells.push(Padded(Bell { word: WakeWord::default(), event }));
        }
        let stage = Stage {
            way,
            start: Instant::now(),
            virtual_time: Mindicator::new(topology, VTime::ZERO),
            wheel: ThrottleWheel::new(workers, WINDOW, VTime::ZERO),
            bells: bells.into(),
            watches: (0..workers).map(|_| Padded::default()).collect(),
        };
        for worker in 0..workers {
            stage.virtual_time.publish(HctxId(worker as u16), first_lead(worker, workers));
        }
        Ok(stage)
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn ring_all(&self) {
        self.bells.iter().for_each(|bell| bell.ring());
    }

    fn is_due(&self, lead: VTime) -> bool {
        self.wheel.is_due(lead, self.virtual_time.global_vtime())
    }

    /// `worker` has a new lead.
    fn announce(&self, worker: usize, lead: VTime) {
        self.virtual_time.publish(HctxId(worker as u16), lead);
        let now = self.virtual_time.query();
        self.stamp(now);
        if self.way == Way::Wheel {
            self.wheel.turn(now, |hctx| self.bells[hctx.index()].ring());
        }
    }

    /// Writes the time into the watches of sleepers that are due now.
    fn stamp(&self, now: VTime) {
        let mut time_ns = None;
        for watch in &self.watches[1..] {
            // Acquire: pairs with the Release in `Watch::arm`: the due time is that of this sleep or of a later one.
            let since = watch.since.load(Ordering::Acquire);
            // Relaxed: if it is a later one's, the exchange fails.
            if since & ARMED == 0 || now.is_before(VTime::from_raw(watch.due.load(Ordering::Relaxed))) {
                continue;
            }
            let time_ns = *time_ns.get_or_insert_with(|| self.now_ns());
            // Relaxed: only the time is handed over; the first worker to come writes it.
            let _ = watch.since.compare_exchange(since, time_ns, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Worker 0: dispatches at its pace. What it missed it does not make up for: the device was idle.
    fn move_virtual_time(&self, stop: &Stop) -> Moved {
        let mut moved = Moved::default();
        let mut lead = first_lead(0, self.bells.len());
        let mut next_ns = self.now_ns();
        while !stop.is_due() {
            if self.now_ns() < next_ns {
                std::hint::spin_loop();
                continue;
            }
            if !self.is_due(lead) {
                let began_ns = self.now_ns();
                while !self.is_due(lead) && !stop.is_due() {
                    std::hint::spin_loop();
                }
                moved.held_up_ns += self.now_ns() - began_ns;
                continue;
            }
            lead = lead.plus(STEP);
            let began_ns = self.now_ns();
            self.announce(0, lead);
            let ended_ns = self.now_ns();
            moved.busy_ns += ended_ns - began_ns;
            moved.steps += 1;
            next_ns = (next_ns + STEP_NS).max(ended_ns);
        }
        // A worker throttled until virtual time moves must not wait for a queue that has gone.
        self.virtual_time.depart(HctxId(0));
        moved
    }

    /// Another worker: dispatches, is throttled, sleeps, and so on.
    fn sleep_and_dispatch(&self, worker: usize, stop: &Stop) -> Result<Slept, String> {
        set_current_timer_slack(NonZeroU64::new(1)).map_err(|error| format!("cannot set the timer slack: {error}"))?;
        let cpu_at_start_ns = thread_cpu_ns();
        let mut slept = Slept::default();
        let mut lead = first_lead(worker, self.bells.len());
        let mut random = Random::new(worker as u64);
        let mut number = 0;
        while !stop.is_due() {
            number += 1;
            let watch = &self.watches[worker];
            watch.arm(lead.minus(self.wheel.window()), number);
            let waited = match self.way {
                Way::Wheel => self.wait_for_the_wheel(worker, lead, &mut slept, stop),
                Way::Poll { interval_ns } => self.poll(lead, interval_ns, &mut slept, stop),
            };
            let noticed_ns = self.now_ns();
            if stop.is_due() {
                break;
            }
            if waited {
                slept.delays_ns.push(noticed_ns.saturating_sub(watch.time_ns(stop)));
            }
            watch.disarm();
            lead = lead.plus(jump(&mut random));
            self.announce(worker, lead);
        }
        slept.cpu_ns = thread_cpu_ns() - cpu_at_start_ns;
        Ok(slept)
    }

    /// Until `lead` is due or it is time to stop. False if it was due without a sleep.
    fn wait_for_the_wheel(&self, worker: usize, lead: VTime, slept: &mut Slept, stop: &Stop) -> bool {
        let hctx = HctxId(worker as u16);
        let mut waited = false;
        while let Some(place) = self.wheel.throttle(hctx, lead, || self.virtual_time.global_vtime()) {
            self.bells[worker].sleep();
            self.wheel.withdraw(hctx, place);
            if stop.is_due() {
                break;
            }
            waited = true;
            slept.reschedules += 1;
            slept.spurious += u64::from(!self.is_due(lead));
        }
        waited
    }

    /// As `wait_for_the_wheel`.
    fn poll(&self, lead: VTime, interval_ns: u64, slept: &mut Slept, stop: &Stop) -> bool {
        let interval = Timespec { tv_sec: 0, tv_nsec: interval_ns as i64 };
        let mut waited = false;
        while !self.is_due(lead) && !stop.is_due() {
            // A signal would end the sleep early: one look more.
            let _ = clock_nanosleep_relative(ClockId::Monotonic, &interval);
            waited = true;
            slept.reschedules += 1;
            slept.spurious += u64::from(!self.is_due(lead));
        }
        waited
    }
}

impl Watch {
    fn arm(&self, due: VTime, number: u64) {
        // Relaxed: ordered by the Release below.
        self.due.store(due.raw(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `Stage::stamp`.
        self.since.store(ARMED | number, Ordering::Release);
    }

    fn disarm(&self) {
        // Relaxed: ends what `arm` began; a stamper that has seen the armed word fails now.
        self.since.store(0, Ordering::Relaxed);
    }

    /// Stamped time. If it is missing, the worker that moved virtual time far enough is about to write it; a sleeper
    /// that finds out so early has no delay.
    fn time_ns(&self, stop: &Stop) -> u64 {
        loop {
            // Relaxed: the time is all that is handed over.
            let since = self.since.load(Ordering::Relaxed);
            if since & ARMED == 0 {
                return since;
            }
            if stop.is_due() {
                return u64::MAX;
            }
            std::hint::spin_loop();
        }
    }
}

/// The mover starts at virtual time, the sleepers beyond the window and spread over the length of a jump, so that they
/// do not all wake at once.
pub(super) fn first_lead(worker: usize, workers: usize) -> VTime {
    if worker == 0 {
        return VTime::ZERO;
    }
    VTime::ZERO.plus(WINDOW).plus(VSpan(4 * WINDOW.0 / workers as u64 * worker as u64))
}

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
