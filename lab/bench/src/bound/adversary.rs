//! Histories made by hand to come as close to a bound as they can.
//!
//! Two flows, each on an hctx of its own. The next worker and the next completion are chosen to put one flow as far
//! ahead as the scheduler lets it when an interval begins, and as far behind when it ends.

use super::history::History;
use super::machine::{Machine, Step};
use mqfq_sched::flow::Weight;
use mqfq_sched::policy::PolicyOptions;
use mqfq_sched::topology::Topology;
use serde::Deserialize;

/// One of the two flows. Flow n submits at hctx n.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Side {
    /// 1..=10000.
    pub weight: u64,
    /// Its usual request, bytes.
    pub bytes: u64,
    /// The request with which it fills the device up.
    pub last_bytes: u64,
    /// Cost that each of its requests is announced to have; `None`: the right one.
    #[serde(default)]
    pub announced: Option<u64>,
}

/// Costs are known at the end.
pub fn is_late(sides: &[Side; 2]) -> bool {
    sides.iter().any(|side| side.announced.is_some())
}

/// Kind of history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scene {
    /// In turn, one of the two runs until it is throttled while the other's worker sleeps: what one gets while the
    /// other gets nothing is `2T` and a request of each.
    AheadThenBehind,
    /// In turn, the device is filled with requests of the one, as far behind as it can be, while the other is as far
    /// ahead as it can be with the one place that is left. Then the device finishes what it holds.
    DeviceFullOfEach,
    /// A request of the one is on the device, its next waits, and the other's first arrives: both start level, for
    /// virtual time is the smallest start tag that *waits*. The one goes first again.
    LevelWithTheNext,
}

impl Scene {
    /// Plays the scene `rounds` times.
    ///
    /// # Errors
    /// One sentence: options that no policy can be built from.
    pub fn play(self, options: &PolicyOptions, sides: [Side; 2], rounds: u64) -> Result<History, String> {
        let mut weights = Vec::new();
        for side in sides {
            weights.push((Weight::new(side.weight).map_err(|error| error.to_string())?, 1));
        }
        let mut machine = Machine::new(options, &Topology::flat(2), &weights, 64)?;
        if is_late(&sides) {
            machine.charge_late(true);
        }
        let mut stage = Stage { machine, sides, depth: options.depth as usize };
        match self {
            Scene::AheadThenBehind => stage.ahead_then_behind(rounds),
            Scene::DeviceFullOfEach => stage.device_full_of_each(rounds),
            Scene::LevelWithTheNext => stage.level_with_the_next(rounds),
        }
        Ok(stage.machine.into_history())
    }
}

struct Stage {
    machine: Machine,
    sides: [Side; 2],
    depth: usize,
}

impl Stage {
    fn submit(&mut self, side: u16, bytes: u64) {
        let announced = self.sides[usize::from(side)].announced.unwrap_or(bytes);
        let is_staged = self.machine.submit_announced(u32::from(side), side, announced, bytes);
        assert!(is_staged, "a scene stages a few requests only");
    }

    /// One pick, and the flow stays backlogged: the request behind the one that may go has `next_bytes`. True: it went.
    fn step(&mut self, side: u16, next_bytes: u64) -> bool {
        while self.machine.waiting_at(u32::from(side), side) < 2 {
            self.submit(side, next_bytes);
        }
        self.machine.step(side) != Step::Sleeps
    }

    /// The worker runs until it is throttled; each of its requests is finished at once.
    fn run_ahead(&mut self, side: u16) {
        while self.step(side, self.sides[usize::from(side)].bytes) {
            self.machine.complete(self.machine.device().len() - 1);
        }
    }

    fn ahead_then_behind(&mut self, rounds: u64) {
        self.submit(1, self.sides[1].bytes);
        for round in 0..rounds {
            self.run_ahead((round % 2) as u16);
        }
    }

    fn device_full_of_each(&mut self, rounds: u64) {
        self.submit(0, self.sides[0].bytes);
        self.submit(1, self.sides[1].bytes);
        for round in 0..rounds {
            let holder = (round % 2) as u16;
            let runner = 1 - holder;
            let Side { bytes, last_bytes, .. } = self.sides[usize::from(holder)];
            // All places but one, and the runner moves virtual time on with that one where the holder is too far ahead.
            let mut held = 0;
            while held + 1 < self.depth {
                if self.step(holder, if held + 2 == self.depth { last_bytes } else { bytes }) {
                    held += 1;
                } else if self.step(runner, self.sides[usize::from(runner)].bytes) {
                    self.machine.complete(self.machine.device().len() - 1);
                } else {
                    break;
                }
            }
            self.run_ahead(runner);
            self.step(holder, bytes);
            // Now the device is full of the holder's. It finishes them, and the holder runs as long as it may: its
            // worker picks after each completion, as it must.
            while !self.machine.device().is_empty() {
                self.machine.complete(0);
                while self.step(holder, bytes) {}
            }
        }
    }

    fn level_with_the_next(&mut self, rounds: u64) {
        let [one, other] = self.sides;
        for _ in 0..rounds {
            (0..4).for_each(|_| self.submit(0, one.bytes));
            assert_ne!(self.machine.step(0), Step::Sleeps, "nothing else waits");
            (0..2).for_each(|_| self.submit(1, other.bytes));
            self.machine.complete(0);
            self.machine.step(0);
            // All of it goes, so that the next round begins as this one did.
            while !self.machine.device().is_empty() {
                self.machine.complete(0);
                while let Some(&hctx) = self.machine.awake().first() {
                    self.machine.step(hctx);
                }
            }
        }
    }
}
