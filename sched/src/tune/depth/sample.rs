//! A reading of a device, and a phase: the difference of two.
//!
//! Answers: what was the rate, the depth in use and the time in the system between two moments? Invariants: all counts
//! of a [`Sample`] only grow (modulo 2^64), save `out_units` and `silence_ns`; a [`Phase`] is made of integers and
//! logarithms, so that two of them can be compared without a division.

use super::log::{ONE, log2};

/// Classes of requests by units: 1, 2, 3 to 4, 5 to 8, and so on to 65536.
pub const CLASSES: usize = 17;

/// The class of a request of `units` units, 1..=65536.
#[inline]
pub const fn class_of(units: u32) -> usize {
    (u32::BITS - units.saturating_sub(1).leading_zeros()) as usize
}

/// Work completed in one class.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Work {
    /// Units completed.
    pub units: u64,
    /// Requests completed.
    pub requests: u64,
}

/// Counters of a device at a moment, since some beginning. Sums may wrap.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sample {
    /// The moment, ns.
    pub now_ns: u64,
    /// Work completed, by [`class_of`].
    pub work: [Work; CLASSES],
    /// Units on the device, summed over time, unit x ns.
    pub device_unit_ns: u64,
    /// Units of the requests completed times how long each was in the system, submission to completion, unit x ns. Over
    /// a time long enough that is units in the system summed over time.
    pub system_unit_ns: u64,
    /// Time in which a request that fairness would admit waited for a token, ns.
    pub waiting_ns: u64,
    /// Longest time without a completion since measuring last began ([`Controller::epoch`](super::Controller::epoch)),
    /// ns; up to now if the last one is that long ago.
    pub silence_ns: u64,
    /// Units on the device now.
    pub out_units: u64,
    /// Large requests go to the device in parts now.
    pub is_in_parts: bool,
}

impl Sample {
    /// Units completed.
    pub fn units(&self) -> u64 {
        self.work.iter().fold(0, |sum, work| sum.wrapping_add(work.units))
    }

    /// Requests completed.
    pub fn requests(&self) -> u64 {
        self.work.iter().fold(0, |sum, work| sum.wrapping_add(work.requests))
    }
}

/// Counts of one worker, since some beginning. Sums may wrap.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counted {
    /// As in [`Sample`].
    pub device_unit_ns: u64,
    /// As in [`Sample`].
    pub system_unit_ns: u64,
    /// As in [`Sample`].
    pub out_units: u64,
    /// Time in which one of its requests waited for a token, up to now, ns.
    pub waited_ns: u64,
    /// Its last completion, ns.
    pub completed_ns: u64,
    /// Its longest time without a completion, from and to, ns; `None`: it has seen none of this phase
    /// ([`Controller::epoch`](super::Controller::epoch)).
    pub silent_ns: Option<(u64, u64)>,
}

/// A sample that is summed up from the counts of all workers.
///
/// The part of the time in which at least one waits is taken as if workers waited independently:
/// 1 - (1 - w1)(1 - w2)... The time that the workers' longest silences have in common was silent for all: it is exact
/// if that silence was each worker's longest.
#[derive(Clone, Copy, Debug)]
pub struct Gathering {
    sum: Sample,
    elapsed_ns: u64,
    /// Part of the time in which no worker waited, in 65536ths.
    none: u64,
    silent_ns: (u64, u64),
}

impl Gathering {
    /// Nothing yet, at `now_ns`, after the sample `before`.
    pub fn new(before: &Sample, now_ns: u64) -> Gathering {
        let sum = Sample { now_ns, waiting_ns: before.waiting_ns, ..Sample::default() };
        let elapsed_ns = now_ns.saturating_sub(before.now_ns).max(1);
        Gathering { sum, elapsed_ns, none: 1 << 16, silent_ns: (0, now_ns) }
    }

    /// Adds work completed in a class.
    #[inline]
    pub fn work(&mut self, class: usize, units: u64, requests: u64) {
        let work = &mut self.sum.work[class];
        (work.units, work.requests) = (work.units.wrapping_add(units), work.requests.wrapping_add(requests));
    }

    /// Adds a worker's counts. `waited_ns`: [`Counted::waited_ns`] of the sample before, which becomes that of now.
    #[inline]
    pub fn add(&mut self, of: &Counted, waited_ns: &mut u64) {
        let Gathering { sum, elapsed_ns, none, silent_ns: (silent_from_ns, silent_to_ns) } = self;
        let now_ns = sum.now_ns;
        sum.device_unit_ns = sum.device_unit_ns.wrapping_add(of.device_unit_ns);
        sum.system_unit_ns = sum.system_unit_ns.wrapping_add(of.system_unit_ns);
        sum.out_units = sum.out_units.wrapping_add(of.out_units);
        let part = part_of(of.waited_ns.saturating_sub(*waited_ns).min(*elapsed_ns), *elapsed_ns);
        *none = (*none * ((1 << 16) - part)) >> 16;
        *waited_ns = of.waited_ns;
        let (from_ns, to_ns) = match of.silent_ns {
            Some((from_ns, to_ns)) if to_ns.wrapping_sub(from_ns) > now_ns - of.completed_ns.min(now_ns) => {
                (from_ns, to_ns)
            }
            _ => (of.completed_ns, now_ns),
        };
        (*silent_from_ns, *silent_to_ns) = ((*silent_from_ns).max(from_ns), (*silent_to_ns).min(to_ns));
    }

    /// The sample.
    pub fn end(self) -> Sample {
        let Gathering { mut sum, elapsed_ns, none, silent_ns: (from_ns, to_ns) } = self;
        sum.waiting_ns =
            sum.waiting_ns.wrapping_add(elapsed_ns - ((u128::from(elapsed_ns) * u128::from(none)) >> 16) as u64);
        sum.silence_ns = to_ns.saturating_sub(from_ns);
        sum
    }
}

/// `part` of `whole`, which is not 0, in 65536ths.
fn part_of(part: u64, whole: u64) -> u64 {
    // In one word, unless that overflows: 78 hours.
    match part >> 48 {
        0 => (part << 16) / whole,
        _ => ((u128::from(part) << 16) / u128::from(whole)) as u64,
    }
}

/// Differences between two samples.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Span {
    pub elapsed_ns: u64,
    pub units: u64,
    pub requests: u64,
    pub device_unit_ns: u64,
    pub system_unit_ns: u64,
    pub waiting_ns: u64,
    /// At its end.
    pub is_in_parts: bool,
}

impl Span {
    pub fn between(from: &Sample, to: &Sample) -> Span {
        Span {
            elapsed_ns: to.now_ns.saturating_sub(from.now_ns).max(1),
            units: to.units().wrapping_sub(from.units()),
            requests: to.requests().wrapping_sub(from.requests()),
            device_unit_ns: grown(from.device_unit_ns, to.device_unit_ns),
            system_unit_ns: to.system_unit_ns.wrapping_sub(from.system_unit_ns),
            waiting_ns: to.waiting_ns.wrapping_sub(from.waiting_ns),
            is_in_parts: to.is_in_parts,
        }
    }
}

/// Growth of a sum, which may wrap. A reading takes what is out on the device to stay there; if it was back already,
/// the next one may have less: that is nothing.
fn grown(from: u64, to: u64) -> u64 {
    let grown = to.wrapping_sub(from);
    if grown as i64 >= 0 { grown } else { 0 }
}

/// One measurement at one D. Logarithms are to base 2, in 65536ths ([`super::log`]).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Phase {
    /// Units per ns.
    pub units_log: i32,
    /// Units and requests per ns: work if a request costs a unit more than its bytes.
    pub weighed_log: i32,
    /// Mean units on the device.
    pub device_log: i32,
    /// Mean units of a request.
    pub request_log: i32,
    /// Mean units of a request, rounded.
    pub request_units: u32,
    /// Mean units in the system.
    pub system_log: i32,
    /// Mean units on the device, rounded down.
    pub device_units: u64,
    /// Part of the time in which a request waited for a token, 65536ths.
    pub waiting: i32,
    /// The step of the grid ([`Sizes::step`]), units.
    pub step: u32,
    /// Logarithm of the step.
    pub step_log: i32,
    /// Large requests went to the device in parts.
    pub is_in_parts: bool,
}

impl Phase {
    pub fn new(span: &Span, step: u32) -> Phase {
        let time_log = log2(span.elapsed_ns);
        Phase {
            units_log: log2(span.units) - time_log,
            weighed_log: log2(span.units.wrapping_add(span.requests)) - time_log,
            device_log: log2(span.device_unit_ns) - time_log,
            request_log: log2(span.units) - log2(span.requests),
            request_units: mean_of(span.units, span.requests),
            system_log: log2(span.system_unit_ns) - time_log,
            device_units: span.device_unit_ns / span.elapsed_ns,
            waiting: (u128::from(span.waiting_ns.min(span.elapsed_ns)) * ONE as u128 / u128::from(span.elapsed_ns))
                as i32,
            step,
            step_log: log2(step.into()),
            is_in_parts: span.is_in_parts,
        }
    }
}

/// Mean units of a request, rounded, at most the largest request's.
fn mean_of(units: u64, requests: u64) -> u32 {
    let requests = requests.max(1);
    (units.wrapping_add(requests / 2) / requests).min(1 << (CLASSES - 1)) as u32
}

/// Sizes that complete, averaged over some phases: the step of the grid follows from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Part of the work, 65536ths, by class.
    share: [i64; CLASSES],
    /// Mean units of a request of the class, rounded up, as last seen.
    mean: [u32; CLASSES],
    step: u32,
}

impl Sizes {
    pub const fn new() -> Sizes {
        Sizes { share: [0; CLASSES], mean: [1; CLASSES], step: 1 }
    }

    /// n: the cost of the largest requests that matter. Those of at least this cost are a quarter of the work.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// Takes in what completed between two samples; a quarter of the average is new.
    pub fn take(&mut self, from: &Sample, to: &Sample) {
        let units = to.units().wrapping_sub(from.units()).max(1);
        let mut total = 0;
        for (class, (share, mean)) in self.share.iter_mut().zip(&mut self.mean).enumerate() {
            let (before, now) = (from.work[class], to.work[class]);
            let (done, requests) = (now.units.wrapping_sub(before.units), now.requests.wrapping_sub(before.requests));
            if requests > 0 {
                *mean = done.div_ceil(requests).clamp(1, 1 << 16) as u32;
            }
            let part = (u128::from(done) * ONE as u128 / u128::from(units)) as i64;
            *share += (part - *share) / 4;
            total += *share;
        }
        let mut above = 0;
        for (share, mean) in self.share.iter().zip(self.mean).rev() {
            above += share;
            if above * 4 >= total {
                self.step = mean;
                return;
            }
        }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_a_doubling_of_units() {
        let classes = [1, 2, 3, 4, 5, 8, 9, 32, 33, 65_535].map(class_of);
        assert_eq!(classes, [0, 1, 2, 2, 3, 3, 4, 5, 6, 16]);
        assert_eq!(class_of(0), 0, "a request without units is of the smallest class");
    }

    #[test]
    fn the_step_is_the_size_from_which_on_a_quarter_of_the_work_comes() {
        let mut to = Sample::default();
        // 1000 units in requests of one, 400 in requests of 32: more than a quarter.
        to.work[0] = Work { units: 1000, requests: 1000 };
        to.work[class_of(32)] = Work { units: 400, requests: 400 / 32 };
        let mut sizes = Sizes::new();
        sizes.take(&Sample::default(), &to);
        assert_eq!(sizes.step(), 400u32.div_ceil(400 / 32));
        // With 200 units of these it is less.
        to.work[class_of(32)] = Work { units: 192, requests: 6 };
        let mut sizes = Sizes::new();
        sizes.take(&Sample::default(), &to);
        assert_eq!(sizes.step(), 1);
    }

    #[test]
    fn counts_that_wrapped_make_the_same_span() {
        let (device_unit_ns, system_unit_ns, waiting_ns) = (u64::MAX - 10, u64::MAX - 11, u64::MAX - 12);
        let mut from = Sample { now_ns: 5, device_unit_ns, system_unit_ns, waiting_ns, ..Sample::default() };
        from.work[0].units = u64::MAX;
        from.work[0].requests = u64::MAX - 1;
        let mut to = Sample { now_ns: 25, device_unit_ns: 29, system_unit_ns: 38, waiting_ns: 47, ..from };
        (to.work[0].units, to.work[0].requests, to.is_in_parts) = (19, 8, true);
        let (elapsed_ns, units, requests, device_unit_ns) = (20, 20, 10, 40);
        let (system_unit_ns, waiting_ns, is_in_parts) = (50, 60, true);
        let span = Span { elapsed_ns, units, requests, device_unit_ns, system_unit_ns, waiting_ns, is_in_parts };
        assert_eq!(Span::between(&from, &to), span);
    }

    #[test]
    fn what_was_taken_to_be_out_and_was_back_already_is_no_depth() {
        let from = Sample { device_unit_ns: 1000, ..Sample::default() };
        let to = Sample { device_unit_ns: 999, now_ns: 10, ..Sample::default() };
        assert_eq!(Span::between(&from, &to).device_unit_ns, 0);
    }

    #[test]
    fn a_phase_is_in_logarithms_of_a_mean_over_its_time() {
        let span = Span {
            elapsed_ns: 1000,
            units: 64_000,
            requests: 64_000,
            device_unit_ns: 8000,
            system_unit_ns: 32_000,
            waiting_ns: 250,
            is_in_parts: true,
        };
        let phase = Phase::new(&span, 4);
        let time = log2(1000);
        assert_eq!((phase.units_log, phase.weighed_log), (log2(64_000) - time, log2(128_000) - time));
        assert_eq!((phase.device_log, phase.system_log), (log2(8000) - time, log2(32_000) - time));
        assert_eq!((phase.device_units, phase.waiting, phase.request_units), (8, ONE / 4, 1));
        assert_eq!((phase.step, phase.step_log, phase.is_in_parts), (4, 2 * ONE, true));
        let mean = |units, requests| Phase::new(&Span { units, requests, ..span }, 4).request_units;
        assert_eq!([mean(23, 10), mean(25, 10), mean(7, 0), mean(1 << 40, 2)], [2, 3, 7, 1 << 16]);
        assert_eq!(Phase::new(&Span { waiting_ns: 5000, ..span }, 4).waiting, ONE, "no more than all of the time");
    }

    #[test]
    fn sizes_are_an_average_of_which_a_quarter_is_new() {
        let done = |small: u64, large: u64| {
            let mut to = Sample::default();
            to.work[0] = Work { units: small, requests: small };
            to.work[class_of(32)] = Work { units: 32 * large, requests: large };
            to
        };
        let mut sizes = Sizes::new();
        sizes.take(&Sample::default(), &done(64, 0));
        assert_eq!((sizes.share[0], sizes.step()), (i64::from(ONE) / 4, 1));
        // Half of the work: an eighth, beside (1/4 + (1/2 - 1/4) / 4) of the small ones. A quarter of 7/16 is less.
        sizes.take(&Sample::default(), &done(64, 2));
        assert_eq!((sizes.share[0], sizes.share[5]), (i64::from(ONE) * 5 / 16, i64::from(ONE) / 8));
        assert_eq!(sizes.step(), 32);
        // None any more: it fades, and is what matters as long as it is a quarter of the average.
        let mut steps = Vec::new();
        for _ in 0..3 {
            sizes.take(&Sample::default(), &done(64, 0));
            steps.push((sizes.share[5], sizes.step()));
        }
        let eighth = i64::from(ONE) / 8;
        assert_eq!(steps, [(eighth * 3 / 4, 1), (eighth * 9 / 16, 1), (eighth * 27 / 64, 1)]);
        // Exactly a quarter counts.
        let mut sizes = Sizes::new();
        sizes.take(&Sample::default(), &done(96, 1));
        assert_eq!((sizes.share[0], sizes.share[5], sizes.step()), (i64::from(ONE) * 3 / 16, i64::from(ONE) / 16, 32));
    }

    #[test]
    fn a_part_is_the_same_in_one_word_and_in_two() {
        let wide = |part: u64, whole: u64| ((u128::from(part) << 16) / u128::from(whole)) as u64;
        for whole in [1, 3, 1_000, (1 << 48) - 1, 1 << 48, (1 << 48) + 1, u64::MAX] {
            for part in [0, 1, whole / 3, whole / 2, whole - 1, whole] {
                assert_eq!(part_of(part, whole), wide(part, whole), "{part} of {whole}");
            }
        }
        assert_eq!(part_of(u64::MAX, u64::MAX), 1 << 16);
    }
}
