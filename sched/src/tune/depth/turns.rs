//! D where the device is empty whenever a worker looks.
//!
//! Answers: which D where nothing is learnt by comparing depths, because the device gives back all of what it gets
//! before a worker looks? Source: none; the cost of D there was measured in the simulator (docs/inside/depth.md).
//!
//! Such a device waits for the workers, and not they for it. D then bounds what a worker does in a turn, and a longer
//! turn saves wake-ups. So while reaps find two completions and more and leave nothing on the device, as means, D is at
//! least [`UNITS_PER_WORKER`] for each worker: half of what a turn dispatches at most. No request waits for that on the
//! device, which is empty. One completion per reap says nothing: so it is with D = 1 on any device.
//!
//! # Invariants
//! U1. A device that works while a worker looks gets no D from here: one reap in two that leaves something ends it.

/// D for each worker, units.
const UNITS_PER_WORKER: u32 = 32;

/// Means are kept in 65536ths, and move by this part of the difference in each step.
const ONE: u64 = 1 << 16;
const MEAN_STEPS: i64 = 32;

/// Completions per reap from which on workers are behind, and until which.
const FOUND_ENTER: u64 = 2 * ONE;
const FOUND_LEAVE: u64 = ONE / 2 * 3;

/// Part of reaps that leave nothing on the device, from which on it is empty, and below which it is no longer.
const EMPTY_ENTER: u64 = ONE / 8 * 7;
const EMPTY_LEAVE: u64 = ONE / 2;

/// Reaps since the last step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reaps {
    /// Reaps that found completions.
    pub all: u64,
    /// Reaps among them that left nothing on the device.
    pub empty: u64,
    /// Completions that they found.
    pub completed: u64,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Turns {
    depth: u32,
    /// Completions per reap, and the part of the reaps that leave nothing on the device: means over the steps.
    found: u64,
    empty: u64,
    is_on: bool,
}

impl Turns {
    /// A rule for so many workers, and a D of `depth_max` at most.
    pub fn new(workers: usize, depth_max: u32) -> Turns {
        let depth = (workers as u64 * u64::from(UNITS_PER_WORKER)).min(depth_max.into()) as u32;
        Turns { depth, found: ONE, empty: 0, is_on: false }
    }

    /// D is at least this now. `None`: the device works, or the workers keep up with it.
    pub fn step(&mut self, reaps: Reaps) -> Option<u32> {
        let Reaps { all, empty, completed } = reaps;
        let mean_of = |count: u64| (count.min(1 << 32) * ONE).checked_div(all);
        if let (Some(empty), Some(found)) = (mean_of(empty), mean_of(completed)) {
            follow(&mut self.empty, empty.min(ONE));
            follow(&mut self.found, found);
            let (found_min, empty_min) =
                if self.is_on { (FOUND_LEAVE, EMPTY_LEAVE) } else { (FOUND_ENTER, EMPTY_ENTER) };
            self.is_on = self.found >= found_min && self.empty >= empty_min;
        }
        self.is_on.then_some(self.depth)
    }
}

fn follow(mean: &mut u64, now: u64) {
    *mean = mean.saturating_add_signed((now as i64 - *mean as i64) / MEAN_STEPS);
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    fn settled(turns: &mut Turns, reaps: Reaps) -> Option<u32> {
        (0..400).map(|_| turns.step(reaps)).last().expect("400 steps")
    }

    #[test]
    fn a_device_that_is_empty_whenever_workers_look_lets_each_do_half_a_turn() {
        let empty = Reaps { all: 10, empty: 10, completed: 40 };
        for (workers, depth) in [(1, 32), (2, 64), (16, 512), (4096, 65_535)] {
            let mut turns = Turns::new(workers, 65_535);
            assert_eq!(turns.step(empty), None, "a single step says nothing");
            assert_eq!(settled(&mut turns, empty), Some(depth));
            // A step without reaps changes nothing; less than all, but more than half, is no end.
            assert_eq!(settled(&mut turns, Reaps { all: 0, ..empty }), Some(depth));
            assert_eq!(settled(&mut turns, Reaps { empty: 6, ..empty }), Some(depth));
            assert_eq!(settled(&mut turns, Reaps { empty: 4, ..empty }), None, "the device works");
            assert_eq!(settled(&mut turns, Reaps { empty: 6, ..empty }), None, "and no beginning");
            assert_eq!(settled(&mut turns, Reaps { completed: 22, ..empty }), Some(depth));
            assert_eq!(settled(&mut turns, Reaps { completed: 16, ..empty }), Some(depth), "1.6 are no end");
            assert_eq!(settled(&mut turns, Reaps { completed: 14, ..empty }), None, "workers keep up");
            assert_eq!(settled(&mut turns, Reaps { completed: 18, ..empty }), None, "and no beginning");
        }
    }
}
