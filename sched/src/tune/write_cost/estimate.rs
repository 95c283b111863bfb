//! How much dearer is a write than a read, by phases of work? A function of what it is told, in integers.
//!
//! # The equation
//! While requests wait, the device is never idle, and a phase of `t` ns in which `R` units of reads and `W` of writes
//! ended says `a R + b W = t`: `a` ns for a unit of a read, `b` for one of a write. Two phases with different mixes
//! give both, and the cost of a write is `b / a`. Example:
//!
//! | | reads | writes | time | |
//! |---|--:|--:|--:|---|
//! | phase + | 5 MiB | 2 MiB | 13 ms | |
//! | phase - | 4 MiB | 3 MiB | 16 ms | 1 MiB more written than read takes 3 ms more, so `b - a` is 3; `a` is 1, `b` 4 |
//!
//! # Where different mixes come from
//! Two backlogged tenants that share fairly have one mix for ever, and one equation. So the cost in force is the
//! estimate and an eighth more in one phase, an eighth less in the next: the writer gets less, then more. Four phases
//! make a round, `+ - - +`, in which what drifts evenly hits both kinds alike. A round that confirms the estimate is
//! followed by a rest of [`REST`] phases with the estimate in force.
//!
//! # What it does not believe
//! * A phase for most of which no request waited: the device was not full, and time is not work.
//! * A phase in which a worker found several requests done and none left, after more than an eighth of the time: it was
//!   kept from its core or is slower than the device, which was idle meanwhile.
//! * A round whose mixes hardly differ (one tenant alone; writes that come at a rate of their own): it says nothing.
//! * A round with a solution that is not above 0: the device changed meanwhile.
//!
//! The estimate moves a quarter of the way to a round's solution, which may be noise, and three quarters if the round
//! before pointed the same way; at most to half or twice of itself.

use core::cmp::Ordering;

/// Work of a device in one phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Phase {
    /// Reads and writes that ended.
    pub requests: u64,
    /// Cost of the reads.
    pub read_units: u64,
    /// Cost of the writes, before the factor that is estimated.
    pub write_units: u64,
    /// Length of the phase.
    pub time_ns: u64,
    /// Part of it in which requests waited (of the worker where it was longest).
    pub waited_ns: u64,
    /// Part of that after which a worker found several requests done and none left on the device (of the worker where
    /// it was longest).
    pub emptied_ns: u64,
}

/// Sums of the phases with one sign.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Sums {
    read_units: u64,
    write_units: u64,
    time_ns: u64,
}

/// Signs of a round: more is charged, or less.
const ROUND: [bool; 4] = [true, false, false, true];

/// Phases with the estimate in force after a round that confirmed it.
const REST: usize = 4;

/// Value of `at` after a round and its rest: the next phase that is evidence begins a round.
const READY: u8 = (ROUND.len() + REST) as u8;

/// The estimate of a write's cost. 256 is what the cost model says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Estimate {
    estimate_256ths: u32,
    /// Phases done of the round, and of the rest after it.
    at: u8,
    /// Sums of phases that charge more, and of phases that charge less.
    sums: [Sums; 2],
    /// Place of the last solution relative to the estimate.
    last: Ordering,
    /// The phase under way began when the charge changed: requests charged before end in it.
    is_settling: bool,
}

impl Default for Estimate {
    /// A write costs what the model says.
    fn default() -> Estimate {
        Estimate {
            estimate_256ths: 256,
            at: READY,
            sums: [Sums::default(); 2],
            last: Ordering::Equal,
            is_settling: false,
        }
    }
}

impl Estimate {
    /// Bounds of the estimate, 256ths: a quarter of what the model says to 64 times that.
    pub const RANGE_256THS: core::ops::RangeInclusive<u32> = 64..=64 * 256;

    /// Requests that a phase should have: the edges of the phase and the requests of either charge are a hundredth.
    pub const PHASE_REQUESTS: u64 = 512;

    /// Longest phase, ns: a device that ends fewer requests is judged by those.
    pub const PHASE_NS_MAX: u64 = 1_000_000_000;

    /// A phase in which a worker emptied the device for more than one part in so many is no evidence.
    const EMPTIED_PART: u64 = 8;

    /// Where mixes differ by less, nothing follows: of the product of both phases' reads and writes, one part in so
    /// many.
    const DIFFERENCE: i128 = 64;

    /// The estimate, in 256ths of the model's cost.
    pub fn estimate_256ths(&self) -> u32 {
        self.estimate_256ths
    }

    /// Charge of a write now, in 256ths of the model's cost: the estimate, or an eighth more or less.
    pub fn in_force_256ths(&self) -> u32 {
        let eighth = self.estimate_256ths / 8;
        let probed = match ROUND.get(usize::from(self.at)) {
            Some(true) => self.estimate_256ths + eighth,
            Some(false) => self.estimate_256ths - eighth,
            None => self.estimate_256ths,
        };
        probed.clamp(*Self::RANGE_256THS.start(), *Self::RANGE_256THS.end())
    }

    /// A phase is over.
    pub fn phase(&mut self, phase: Phase) {
        let Phase { requests, read_units, write_units, time_ns, waited_ns, emptied_ns } = phase;
        if requests == 0 || waited_ns < time_ns - time_ns / 4 || emptied_ns > time_ns / Self::EMPTIED_PART {
            // Nothing is learnt, and nothing is to be: the estimate is in force until there is evidence again.
            *self = Estimate { estimate_256ths: self.estimate_256ths, ..Estimate::default() };
            return;
        }
        if core::mem::take(&mut self.is_settling) {
            return;
        }
        let Some(&more) = ROUND.get(usize::from(self.at)) else {
            self.at += 1;
            if self.at > READY {
                (self.at, self.is_settling) = (0, true);
            }
            return;
        };
        let sums = &mut self.sums[usize::from(!more)];
        sums.read_units = sums.read_units.saturating_add(read_units);
        sums.write_units = sums.write_units.saturating_add(write_units);
        sums.time_ns = sums.time_ns.saturating_add(time_ns);
        self.at += 1;
        // The charge changes with the sign.
        self.is_settling = ROUND.get(usize::from(self.at)) != Some(&more);
        if usize::from(self.at) == ROUND.len() {
            self.conclude();
        }
    }

    /// A round is over: moves the estimate, and rests if it was right.
    fn conclude(&mut self) {
        let old = self.estimate_256ths;
        let found = solution_256ths(self.sums);
        self.sums = [Sums::default(); 2];
        let Some(found) = found else {
            // Nothing to be seen: look again after a rest.
            return;
        };
        let target = found.clamp(u64::from(old) / 2, u64::from(old) * 2) as u32;
        let halfway = old.midpoint(target);
        let is_trend = target.cmp(&old) == self.last;
        self.last = target.cmp(&old);
        let moved = if is_trend { halfway.midpoint(target) } else { old.midpoint(halfway) };
        self.estimate_256ths = moved.clamp(*Self::RANGE_256THS.start(), *Self::RANGE_256THS.end());
        if u64::from(old).abs_diff(found) > u64::from(old) / 16 {
            (self.at, self.is_settling) = (0, true);
        }
    }
}

/// `b / a` in 256ths; `None` if the two say nothing, or nothing that can be.
fn solution_256ths([more, less]: [Sums; 2]) -> Option<u64> {
    let [plus, minus] = [more, less].map(|Sums { read_units, write_units, time_ns }| {
        // Products of two of them, times 256, fit: costs of 2^60 bytes in a few seconds are no device's.
        [read_units, write_units, time_ns].map(|number| i128::from(number.min(1 << 58)))
    });
    let ([r, w, t], [s, v, u]) = (plus, minus);
    let determinant = r * v - s * w;
    if determinant == 0 || determinant.abs() < r.max(1) * v.max(1) / Estimate::DIFFERENCE {
        return None;
    }
    // Cramer's rule, with the determinant's sign.
    let (a, b) = ((t * v - u * w) * determinant.signum(), (r * u - s * t) * determinant.signum());
    if a <= 0 || b <= 0 {
        return None;
    }
    u64::try_from(b * 256 / a).ok()
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn sums(read_units: u64, write_units: u64, time_ns: u64) -> Sums {
        Sums { read_units, write_units, time_ns }
    }

    /// Backlogged tenants, one that reads and one that writes, with equal shares of what is charged, on a device where
    /// a unit of a read takes 1 ns and one of a write `times` of that in 256ths.
    struct Device {
        estimate: Estimate,
        times_256ths: u64,
        /// Noise of a phase's time: up to so many thousandths.
        noise: u64,
        random: u64,
    }

    impl Device {
        fn new(times_256ths: u64) -> Device {
            Device { estimate: Estimate::default(), times_256ths, noise: 0, random: 1 }
        }

        fn phase(&mut self) {
            let in_force = u64::from(self.estimate.in_force_256ths());
            // Equal charges: R = in_force x W. 20 ms of work.
            let write_units = 20_000_000 * 256 / (in_force + self.times_256ths);
            let read_units = write_units * in_force / 256;
            let mut time_ns = read_units + write_units * self.times_256ths / 256;
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            time_ns += time_ns * ((self.random >> 33) % (2 * self.noise + 1)) / 1000;
            self.estimate.phase(Phase {
                requests: 1000,
                read_units,
                write_units,
                time_ns,
                waited_ns: time_ns,
                emptied_ns: 0,
            });
        }

        fn phases(&mut self, count: usize) -> u64 {
            (0..count).for_each(|_| self.phase());
            self.estimate.estimate_256ths().into()
        }
    }

    #[test]
    fn two_mixes_tell_both_costs() {
        // The example of the file's text: 4 times.
        let ms = |ms: u64| ms * MIB;
        assert_eq!(solution_256ths([sums(5 * MIB, 2 * MIB, ms(13)), sums(4 * MIB, 3 * MIB, ms(16))]), Some(1024));
        // In the other order.
        assert_eq!(solution_256ths([sums(4 * MIB, 3 * MIB, ms(16)), sums(5 * MIB, 2 * MIB, ms(13))]), Some(1024));
        // Reads alone, then writes alone, each of its own time.
        assert_eq!(solution_256ths([sums(4 * MIB, 0, ms(4)), sums(0, 2 * MIB, ms(5))]), Some(640));
    }

    #[test]
    fn mixes_that_hardly_differ_and_times_that_cannot_be_say_nothing() {
        assert_eq!(solution_256ths([sums(1000, 500, 2000), sums(1000, 501, 2002)]), None);
        assert_eq!(solution_256ths([sums(1000, 0, 1000), sums(2000, 0, 2000)]), None, "no writes");
        assert_eq!(solution_256ths([sums(0, 0, 0), sums(0, 0, 0)]), None);
        assert_eq!(
            solution_256ths([sums(u64::MAX, 1, u64::MAX), sums(1, u64::MAX, u64::MAX)]),
            Some(256),
            "no overflow"
        );
        // More of both in less time.
        assert_eq!(solution_256ths([sums(1000, 100, 1000), sums(2000, 1000, 500)]), None);
    }

    #[test]
    fn it_finds_a_cost_from_any_other_and_follows_it() {
        for times_256ths in [64, 128, 256, 673, 2048, 16 * 256, 64 * 256] {
            let mut device = Device::new(times_256ths);
            // A round is 6 phases with those in which charges settle.
            let found = device.phases(40 * 6);
            assert!(found.abs_diff(times_256ths) * 32 <= times_256ths, "{found} is not {times_256ths}");
            device.times_256ths = 3 * 256;
            let found = device.phases(40 * 6);
            assert!(found.abs_diff(3 * 256) <= 24, "{found} is not 768 after {times_256ths}");
        }
    }

    #[test]
    fn noise_averages_out() {
        let mut device = Device { noise: 10, ..Device::new(3 * 256) };
        device.phases(100);
        let (mut least, mut most, mut sum) = (u64::MAX, 0, 0);
        for _ in 0..500 {
            let found = device.phases(1);
            (least, most, sum) = (least.min(found), most.max(found), sum + found);
        }
        // Each time up to 2% longer: the estimate stays within a sixth of what it is, and its mean within 3%.
        assert!(least >= 768 * 5 / 6 && most <= 768 * 7 / 6, "{least} to {most}");
        assert!((sum / 500).abs_diff(768) <= 23, "{}", sum / 500);
    }

    #[test]
    fn it_stays_within_its_bounds() {
        let mut device = Device::new(1000 * 256);
        assert_eq!(device.phases(300), 64 * 256);
        assert!(Estimate::RANGE_256THS.contains(&device.estimate.in_force_256ths()), "W1, with an eighth more as well");
        device.times_256ths = 1;
        assert_eq!(device.phases(300), 64);
        assert!(Estimate::RANGE_256THS.contains(&device.estimate.in_force_256ths()), "W1");
    }

    #[test]
    fn what_is_right_is_left_alone_half_of_the_time() {
        let mut device = Device::new(256);
        device.phases(20);
        // 4 phases of a round and 3 in which charges settle; then one in which they settle, 4 of rest, and the next.
        let probed = (0..10 * 13).filter(|_| {
            device.phase();
            device.estimate.in_force_256ths() != device.estimate.estimate_256ths()
        });
        assert_eq!(probed.count(), 10 * 7);
    }

    #[test]
    fn phases_in_which_workers_were_kept_from_their_cores_are_no_evidence() {
        let mut device = Device::new(3 * 256);
        let found = device.phases(300);
        // Whenever more is charged, the device stands still for a fifth of the time.
        let stopped = |emptied_ns| Phase {
            requests: 1000,
            read_units: 15_000,
            write_units: 5_000,
            time_ns: 36_000,
            waited_ns: 36_000,
            emptied_ns,
        };
        for _ in 0..300 {
            device.estimate.phase(stopped(7_000));
            assert_eq!(u64::from(device.estimate.estimate_256ths()), found);
            device.phase();
        }
        device.phases(300);
        let phases_of_work = device.estimate;
        device.estimate.phase(stopped(4_500));
        assert_ne!(device.estimate, phases_of_work, "an eighth is evidence");
    }

    #[test]
    fn a_phase_in_which_nobody_waited_is_no_evidence() {
        let mut device = Device::new(256);
        device.phases(40);
        // Reads one at a time: 100 times as long for what they do. Every other phase is full.
        for _ in 0..100 {
            let idle = Phase {
                requests: 600,
                read_units: 1000,
                write_units: 10,
                time_ns: 100_000,
                waited_ns: 10_000,
                emptied_ns: 0,
            };
            device.estimate.phase(idle);
            device.phase();
        }
        assert_eq!(device.estimate.estimate_256ths(), 256, "W2");
    }
}
