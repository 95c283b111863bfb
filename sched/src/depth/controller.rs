//! The controller: measurements, one after the other, and the search that says at which D.
//!
//! Answers: when is a measurement at this D over? Source: the model of issue 16; its rule for phases follows BBR's
//! "long enough to see what was out come back".
//!
//! # A phase
//! After a change of D, 1.25 times what is out completes first, so that what was dispatched under the old D is gone.
//! Then at least `REQUESTS_MIN` requests complete, 32 of the large ones' units, and twice what is out. All of this
//! counts completions and none of it time: 10 s of silence are no measurement (R5).
//!
//! # Cost
//! Between the ends of phases a few subtractions per step; at the end of one some logarithms of 16 multiplications.

use super::sample::{Phase, Sample, Sizes, Span};
use super::search::{Search, State};

/// A phase has this many requests at least.
const REQUESTS_MIN: u64 = 128;

/// And this many times the units of a large request.
const LARGE_MIN: u64 = 32;

/// And what is out completes so many times.
const ROUNDS_MIN: u128 = 2;

/// A phase is thrown away if it was silent for one part in this many.
const SILENT_PART: u64 = 4;

/// But not more often than this in a row: a device that is always so is slow, and not away.
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

    /// What it does, has found and why.
    pub fn state(&self) -> State {
        State { depth: self.depth, step: self.sizes.step(), ..self.search.state() }
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

    fn is_over(&self, span: &Span) -> bool {
        let large = LARGE_MIN * u64::from(self.sizes.step());
        span.requests >= REQUESTS_MIN
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
