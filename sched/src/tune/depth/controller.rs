//! The controller: measurements, one after the other, and the search that says at which D.
//!
//! Answers: when is a measurement at this D over? The rule for phases follows BBR's "long
//! enough to see what was out come back".
//!
//! # A phase
//! After a change of D, 1.25 times what is out completes first, so that what was dispatched under the old D is gone.
//! Then at least `REQUESTS_MIN` requests complete, 32 of the large ones' units, and twice what is out. All of this
//! counts completions and none of it time: 10 s of silence are no measurement (R5).
//!
//! # Cost
//! Between the ends of phases a few subtractions per step; at the end of one some logarithms of 16 multiplications.

use super::sample::{Phase, Sample, Sizes, Span};
use super::search::{Reason, Search, State, Table};

/// A phase has this many requests at least.
const REQUESTS_MIN: u64 = 128;

/// A phase has this many times the units of a large request at least.
const LARGE_MIN: u64 = 32;

/// In a phase the units out complete so many times at least.
const ROUNDS_MIN: u128 = 2;

/// A phase is thrown away if it was silent for one part in this many.
const SILENT_PART: u64 = 4;

/// Voids in a row, at most: a device that is always silent is slow, and not away.
const VOIDS_MAX: u32 = 3;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Controller {
    depth: u32,
    stage: Stage,
    epoch: u32,
    voids: u32,
    sizes: Sizes,
    search: Search,
}

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one per device, and never moved")]
enum Stage {
    /// No sample was seen yet.
    New,
    /// Until the units completed are so many.
    Settling(u64),
    /// Since this sample.
    Measuring(Sample),
}

impl Controller {
    /// A controller that starts at D = `depth` and goes up to `depth_max`.
    ///
    /// # Panics
    /// If not 1 <= `depth` <= `depth_max`.
    pub fn new(depth: u32, depth_max: u32) -> Controller {
        assert!((1..=depth_max).contains(&depth), "a depth of {depth} is out of range, allowed is 1 to {depth_max}");
        let search = Search::new(depth, depth_max);
        Controller { depth, stage: Stage::New, epoch: 0, voids: 0, sizes: Sizes::new(), search }
    }

    /// D to be in force now.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// How often measuring has begun. [`Sample::silence_ns`] starts anew whenever this changes.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Current depth and step, findings and reason.
    pub fn state(&self) -> State {
        State { depth: self.depth, step: self.sizes.step(), ..self.search.state() }
    }

    /// Depths that were compared, beside the one that is chosen.
    pub fn table(&self) -> Table {
        *self.search.table()
    }

    /// Takes in what is known of the device now, and returns the D to be in force from now on. Call it after
    /// completions, the more often the better; calls without news do nothing.
    pub fn step(&mut self, sample: &Sample) -> u32 {
        match &self.stage {
            Stage::New => self.settle(sample),
            Stage::Settling(until_units) => {
                if sample.units().wrapping_sub(*until_units) as i64 >= 0 {
                    self.measure(sample);
                }
            }
            Stage::Measuring(from) => {
                let span = Span::between(from, sample);
                if self.is_over(&span) {
                    self.sizes.take(from, sample);
                    self.end(&span, sample);
                }
            }
        }
        self.depth
    }

    /// D is at least `depth` from now on, whatever was measured: the device is empty whenever a worker looks. What
    /// happens meanwhile is not measured; the next [`Controller::step`] begins anew at the D that is in force then.
    /// Returns that.
    pub fn hold(&mut self, depth: u32, now_ns: u64) -> u32 {
        self.depth = self.search.state().chosen.max(depth);
        self.search.begin_at(self.depth, Reason::Turns, now_ns);
        self.stage = Stage::New;
        self.depth
    }

    /// D is another one from now on for another reason, and nothing is measured until [`Controller::step`] is called
    /// again. A comparison that is under way begins anew then, at the D that was chosen.
    pub fn pause(&mut self, now_ns: u64) {
        let State { chosen, reason, .. } = self.search.state();
        if self.depth != chosen {
            self.search.begin_at(chosen, reason, now_ns);
            self.depth = chosen;
        }
        self.stage = Stage::New;
    }

    /// The device is measured by other counters from now on, which begin anew: what was found by the ones before is
    /// where the search goes on. Returns the D that was chosen.
    pub fn resume(&mut self) -> u32 {
        self.depth = self.search.resume();
        (self.stage, self.voids) = (Stage::New, 0);
        self.depth
    }

    fn is_over(&self, span: &Span) -> bool {
        let longer = self.search.longer();
        let large = longer * LARGE_MIN * u64::from(self.sizes.step());
        span.requests >= longer * REQUESTS_MIN
            && span.units >= large
            && u128::from(span.units) * u128::from(span.elapsed_ns) >= ROUNDS_MIN * u128::from(span.device_unit_ns)
    }

    fn end(&mut self, span: &Span, sample: &Sample) {
        if sample.silence_ns > span.elapsed_ns / SILENT_PART && self.voids < VOIDS_MAX {
            self.voids += 1;
            return self.measure(sample);
        }
        self.voids = 0;
        let depth = self.search.learn(&Phase::new(span, self.sizes.step()), self.depth, sample.now_ns);
        if depth == self.depth {
            return self.measure(sample);
        }
        self.depth = depth;
        self.settle(sample);
    }

    fn settle(&mut self, sample: &Sample) {
        let out = sample.out_units.max(1);
        self.stage = Stage::Settling(sample.units().wrapping_add(out + out.div_ceil(4)));
    }

    fn measure(&mut self, sample: &Sample) {
        self.epoch = self.epoch.wrapping_add(1);
        self.stage = Stage::Measuring(*sample);
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::super::Work;
    use super::*;

    /// A device with 8 units out, at some moment.
    fn sample(now_ns: u64, units: u64, requests: u64) -> Sample {
        let mut sample = Sample { now_ns, out_units: 8, ..Sample::default() };
        sample.work[0] = Work { units, requests };
        sample
    }

    /// A controller that measures since 1000 ns, when 10 units were done.
    fn measuring() -> Controller {
        let mut controller = Controller::new(8, 64);
        controller.step(&sample(0, 0, 0));
        controller.step(&sample(1000, 10, 10));
        controller
    }

    #[test]
    fn what_was_out_and_a_quarter_more_completes_before_measuring_begins() {
        let mut controller = Controller::new(8, 64);
        assert_eq!((controller.depth(), controller.state().depth, controller.epoch()), (8, 8, 0));
        for (units, epoch) in [(0, 0), (9, 0), (10, 1), (11, 1)] {
            controller.step(&sample(1000, units, units));
            assert_eq!(controller.epoch(), epoch, "{units} units");
        }
        // Also across the end of the counter.
        let mut controller = Controller::new(8, 64);
        for (units, epoch) in [(u64::MAX - 4, 0), (4, 0), (5, 1)] {
            controller.step(&sample(1000, units, 1));
            assert_eq!(controller.epoch(), epoch, "{units} units");
        }
    }

    #[test]
    fn a_phase_is_over_after_enough_requests_units_and_rounds() {
        // 128 requests; 32 units of the step, which is 1; what was out completes twice.
        let ends = |units: u64, requests: u64, device_unit_ns: u64| {
            let mut controller = measuring();
            let mut end = sample(2000, 10 + units, 10 + requests);
            end.device_unit_ns = device_unit_ns;
            controller.step(&end);
            controller.state().phases == 1
        };
        assert!(ends(128, 128, 64_000) && !ends(128, 127, 64_000), "requests");
        assert!(ends(32, 128, 16_000) && !ends(31, 128, 15_000), "units of the largest");
        assert!(ends(128, 128, 64_000) && !ends(128, 128, 64_001), "128 units in 1000 ns are two rounds of 64");
        assert!(!ends(31, 1000, 0) && !ends(1000, 127, 0));
    }

    #[test]
    fn a_load_in_bursts_makes_a_phase_longer() {
        // Phases scatter by a third: eight times the requests and the units.
        let ends = |units: u64, requests: u64| {
            let mut controller = measuring();
            controller.search.variance = 1 << 30;
            controller.step(&sample(2000, 10 + units, 10 + requests));
            controller.state().phases == 1
        };
        assert!(ends(1024, 1024) && !ends(1024, 1023), "requests");
        assert!(ends(256, 1024) && !ends(255, 1024), "units of the largest");
    }

    #[test]
    fn large_requests_make_a_phase_longer() {
        let mut controller = measuring();
        // 128 requests of 32 units: the step is 32 from here on, and 1024 units make a phase.
        let after = |small: u64| {
            let mut sample = sample(2000 + small, 10 + small, 10 + small);
            sample.work[crate::depth::class_of(32)] = Work { units: 32 * 128, requests: 128 };
            sample
        };
        let phases = [0, 128, 1023, 1024].map(|small| {
            controller.step(&after(small));
            controller.state().phases
        });
        assert_eq!((phases, controller.depth()), ([1, 1, 1, 2], 8));
    }

    #[test]
    fn a_depth_that_is_held_is_no_smaller_and_is_measured_anew() {
        let mut controller = measuring();
        assert_eq!((controller.hold(40, 2000), controller.hold(40, 2100), controller.hold(4, 2200)), (40, 40, 40));
        assert_eq!((controller.state().reason, controller.state().chosen_ns), (Reason::Turns, 2000));
        // Much was done meanwhile: nothing of it is in a phase. What is out completes, and then a phase is measured.
        for (units, epoch, phases) in [(5000, 1, 0), (5009, 1, 0), (5010, 2, 0), (5137, 2, 0), (5138, 3, 1)] {
            controller.step(&sample(units * 100, units, units));
            assert_eq!((controller.epoch(), controller.state().phases), (epoch, phases), "{units} units");
        }
        assert_eq!((controller.depth(), controller.state().reason), (40, Reason::Quiet));
    }

    #[test]
    fn nothing_of_a_pause_is_in_a_phase() {
        let mut controller = measuring();
        controller.pause(2000);
        assert_eq!((controller.depth(), controller.state().reason), (8, Reason::Start));
        // What is out at the next step completes first, and then a phase is measured.
        for (units, epoch, phases) in [(5000, 1, 0), (5009, 1, 0), (5010, 2, 0), (5137, 2, 0), (5138, 3, 1)] {
            controller.step(&sample(units * 100, units, units));
            assert_eq!((controller.epoch(), controller.state().phases), (epoch, phases), "{units} units");
        }
    }

    #[test]
    fn a_phase_that_was_silent_for_a_quarter_is_thrown_away_three_times_in_a_row() {
        let mut controller = measuring();
        let mut units = 10;
        let mut phase = |silence_ns| {
            units += 128;
            // Each takes 1000 ns, as the first did.
            let end = Sample { silence_ns, ..sample(1000 + (units - 10) / 128 * 1000, units, units) };
            controller.step(&end);
            // No request waits, so D stays and nothing has to settle.
            (controller.epoch(), controller.state().phases)
        };
        assert_eq!(phase(250), (2, 1), "a quarter is no more than a quarter");
        assert_eq!([phase(251), phase(251), phase(251)], [(3, 1), (4, 1), (5, 1)]);
        assert_eq!(phase(251), (6, 2), "a device that is always so is slow");
        assert_eq!([phase(251), phase(0), phase(251)], [(7, 2), (8, 3), (9, 3)]);
        assert_eq!([phase(251), phase(251), phase(251)], [(10, 3), (11, 3), (12, 4)]);
    }
}
