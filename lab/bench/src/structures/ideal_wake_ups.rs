//! Wake-ups on a machine where sleeping, waking and computing take no time: the costs and delays of the structures
//! themselves, counted.
//!
//! One thread plays all workers in virtual nanoseconds, with the load of `wake_ups.rs`. A kicked worker runs at
//! once, a timer fires exactly when it should. So a poller's delay is what is left of its interval, and the wheel's the
//! length of a slot at most; everything beyond that on a real machine is what sleeping and waking cost there.

use super::lines::{Counted, Directory};
use super::wake_ups::{self, STEP, STEP_NS, WINDOW, Way};
use mqfq_blk::random::Random;
use mqfq_sched::topology::Topology;
use mqfq_sched_watched::mindicator::Mindicator;
use mqfq_sched_watched::throttle_wheel::{ThrottleWheel, WheelSlot};
use mqfq_sched_watched::topology::HctxId;
use mqfq_sched_watched::vtime::{VSpan, VTime};
use mqfq_sched_watched::watched::{self, Access};

/// Steps of the moving worker that are counted: 10 ms.
const STEPS: u64 = 5000;

/// Counts.
pub struct Ideal {
    /// Per step of the moving worker, with all that the others did meanwhile.
    pub counted: Counted,
    /// Delays of wake-ups, virtual ns, ascending.
    pub delays_ns: Vec<u64>,
    /// How often a sleeper ran.
    pub reschedules: u64,
}

/// Plays one worker that moves virtual time and `topology.hctx_count() - 1` that are throttled.
pub fn play(way: Way, topology: &Topology) -> Ideal {
    let workers = topology.hctx_count();
    let mut play = Play {
        way,
        virtual_time: Mindicator::new(&super::counted_topology(topology), VTime::ZERO),
        wheel: ThrottleWheel::new(workers, VSpan(WINDOW.0), VTime::ZERO),
        sleepers: (1..workers)
            .map(|worker| {
                let lead = first_lead(worker, workers);
                let next_poll_ns = match way {
                    Way::Wheel => u64::MAX,
                    // Timers that were not set together.
                    Way::Poll { interval_ns } => interval_ns * worker as u64 / workers as u64,
                };
                Sleeper { lead, random: Random::new(worker as u64), place: None, due_since_ns: None, next_poll_ns }
            })
            .collect(),
        next_poller: 0,
        woken: Vec::new(),
        lines: Directory::default(),
        accesses: Vec::new(),
        delays_ns: Vec::new(),
        reschedules: 0,
    };
    play.run();
    play.delays_ns.sort_unstable();
    Ideal { counted: play.lines.counted(), delays_ns: play.delays_ns, reschedules: play.reschedules }
}

fn first_lead(worker: usize, workers: usize) -> VTime {
    VTime::from_raw(wake_ups::first_lead(worker, workers).raw())
}

struct Sleeper {
    lead: VTime,
    random: Random,
    place: Option<WheelSlot>,
    due_since_ns: Option<u64>,
    next_poll_ns: u64,
}

struct Play {
    way: Way,
    virtual_time: Mindicator,
    wheel: ThrottleWheel,
    sleepers: Vec<Sleeper>,
    next_poller: usize,
    woken: Vec<usize>,
    lines: Directory,
    accesses: Vec<Access>,
    delays_ns: Vec<u64>,
    reschedules: u64,
}

impl Play {
    fn run(&mut self) {
        let mut lead = VTime::ZERO;
        self.counted(0, |play| play.announce(0, VTime::ZERO));
        for worker in 1..=self.sleepers.len() {
            let lead = self.sleepers[worker - 1].lead;
            self.counted(worker, |play| play.announce(worker, lead));
            self.counted(worker, |play| play.throttle(worker));
        }
        for step in 1..=STEPS {
            let now_ns = step * STEP_NS;
            self.poll_until(now_ns);
            let is_due = self.counted(0, |play| play.wheel.is_due(lead, play.virtual_time.global_vtime()));
            assert!(is_due, "nobody is late on this machine, so nobody is held up");
            lead = lead.plus(VSpan(STEP.0));
            self.counted(0, |play| play.announce(0, lead));
            self.stamp(now_ns);
            while let Some(worker) = self.woken.pop() {
                self.reschedule(worker, now_ns);
            }
            self.lines.end_operation();
        }
    }

    /// Runs `body` as `worker`.
    fn counted<R>(&mut self, worker: usize, body: impl FnOnce(&mut Play) -> R) -> R {
        let mut accesses = std::mem::take(&mut self.accesses);
        let result = watched::record(&mut accesses, || body(self));
        self.lines.count(worker, &accesses);
        self.accesses = accesses;
        result
    }

    /// The polls before `end_ns`, in the order of their time.
    fn poll_until(&mut self, end_ns: u64) {
        let Way::Poll { interval_ns } = self.way else { return };
        // Equal intervals, and the first polls are in the order of the workers: so are all others.
        while self.sleepers[self.next_poller].next_poll_ns < end_ns {
            let at = self.next_poller;
            self.next_poller = (at + 1) % self.sleepers.len();
            let now_ns = self.sleepers[at].next_poll_ns;
            self.sleepers[at].next_poll_ns += interval_ns;
            self.reschedule(at + 1, now_ns);
        }
    }

    /// A sleeper runs: dispatches if it is due, and sleeps again.
    fn reschedule(&mut self, worker: usize, now_ns: u64) {
        self.reschedules += 1;
        let is_due = self.counted(worker, |play| {
            let (hctx, sleeper) = (HctxId(worker as u16), &mut play.sleepers[worker - 1]);
            if let Some(place) = sleeper.place.take() {
                play.wheel.withdraw(hctx, place);
            }
            play.wheel.is_due(sleeper.lead, play.virtual_time.global_vtime())
        });
        if is_due {
            let sleeper = &mut self.sleepers[worker - 1];
            self.delays_ns.push(now_ns - sleeper.due_since_ns.take().expect("it is due since some step"));
            sleeper.lead = sleeper.lead.plus(VSpan(wake_ups::jump(&mut sleeper.random).0));
            let lead = sleeper.lead;
            self.counted(worker, |play| play.announce(worker, lead));
            self.stamp(now_ns);
        }
        self.counted(worker, |play| play.throttle(worker));
    }

    /// Notes sleepers that have become due. Not an access of a worker.
    fn stamp(&mut self, now_ns: u64) {
        let gvt = self.virtual_time.global_vtime();
        for sleeper in &mut self.sleepers {
            if sleeper.due_since_ns.is_none() && self.wheel.is_due(sleeper.lead, gvt) {
                sleeper.due_since_ns = Some(now_ns);
            }
        }
    }

    fn announce(&mut self, worker: usize, lead: VTime) {
        self.virtual_time.publish(HctxId(worker as u16), lead);
        let now = self.virtual_time.query();
        if self.way == Way::Wheel {
            self.wheel.turn(now, |hctx| self.woken.push(hctx.index()));
        }
    }

    fn throttle(&mut self, worker: usize) {
        if self.way == Way::Wheel {
            let sleeper = &mut self.sleepers[worker - 1];
            let place = self.wheel.throttle(HctxId(worker as u16), sleeper.lead, || self.virtual_time.global_vtime());
            sleeper.place = place;
            if place.is_none() {
                self.woken.push(worker);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wheel_wakes_once_and_polling_looks_in_vain() {
        let [wheel, fast, slow] = Way::ALL.map(|way| play(way, &Topology::flat(4)));
        // 10 ms of 2 GB/s against jumps of 256 KiB on the average: 78 for each of 3 sleepers, off by how the jumps
        // fall.
        for ideal in [&wheel, &fast, &slow] {
            assert!((220..=245).contains(&ideal.delays_ns.len()), "{} wake-ups", ideal.delays_ns.len());
        }
        // A lead is farther ahead than the wheel's last bucket only if it is more than 64 slots of T/8 away: never
        // here.
        assert_eq!(wheel.reschedules, wheel.delays_ns.len() as u64);
        // One look per interval, three sleepers, 10 ms.
        assert!((29_900..=30_000).contains(&fast.reschedules), "{}", fast.reschedules);
        assert!((5900..=6000).contains(&slow.reschedules), "{}", slow.reschedules);
        // A slot is T/8 = 8 KiB, two steps of 2 us each; a poller waits for the rest of its interval.
        let latest = |ideal: &Ideal| *ideal.delays_ns.last().unwrap();
        assert!(latest(&wheel) <= 2 * STEP_NS && latest(&fast) <= 1000 && latest(&slow) <= 5000);
        assert!(wheel.counted.line_transfers_per_operation < fast.counted.line_transfers_per_operation);
    }
}
