//! The H/L ratio of `d2fq`: the weight of the high queues over that of the low ones.
//!
//! Answers: how much slower must the low queues be, so that weights are kept and no flow waits longer than that needs?
//! Source: D2FQ section 3.2, equations 2 and 3.
//!
//! # How
//! Once per period, over what happened in it:
//! 1. If an active flow is tau_w or more ahead of global virtual time, the ratio is too small, and equation 2 says what
//!    it should have been: `ratio := floor(ratio * dvt_max / dvt_min) + 1`, with what the virtual times of the flow
//!    farthest ahead and of the one farthest behind grew by.
//! 2. Otherwise equation 3 says what would have been enough: `ratio := max of slowdown(f)`, rounded up, where slowdown
//!    is what a flow's bytes were multiplied by for lying in slower queues.
//!
//! The first is looked at first: an unfair device also has flows with little slowdown. Both are clamped to 1..=256,
//! what the device takes. The medium queues get the square root, to the nearest: high is to medium as medium to low.
//!
//! # Which flows count
//! * dvt is known of a flow that was active when the last period ended and is now, and was not put at global virtual
//!   time in between. The flow farthest ahead must be such a one; if it is not, the ratio stays for a period: a flow
//!   that was alone for half of it says nothing of the device under both.
//! * If the flow farthest behind is not such a one (it came or came back), what global virtual time itself grew by
//!   stands for its dvt: the paper takes the two to be equal. If that did not grow, nothing was learnt, and the ratio
//!   stays.
//! * A dvt_min of 0 means the largest ratio. A dvt_max of 0 means that the flow was not served at all: no ratio follows
//!   from that, it stays.
//! * Slowdown is that of flows that submitted something within the period. If none did, the ratio stays.
//!
//! Integers throughout: products of bytes and weights in 128 bits.

use super::Thresholds;
use crate::D2fqOptions;
use mqfq_sched::policy::{ClassWeights, QueueClass};
use mqfq_sched::vtime::VTime;

/// Largest ratio, and where the search begins.
const MAX: u32 = D2fqOptions::CLASS_RATIO_MAX;

/// The class queues' weights at this ratio, 1..=256.
pub(super) fn class_weights(ratio: u32) -> ClassWeights {
    let root = ratio.isqrt();
    // Nearest: (root + 1/2)^2 = root^2 + root + 1/4.
    let medium = if ratio - root * root > root { root + 1 } else { root };
    ClassWeights { high: ratio as u16, medium: medium as u16, low: 1 }
}

/// Equation 2. `grown_max` is not 0.
fn increased(ratio: u32, grown_max: u64, grown_min: u64) -> u32 {
    match (u128::from(ratio) * u128::from(grown_max)).checked_div(u128::from(grown_min)) {
        None => MAX,
        Some(product) => product.saturating_add(1).min(MAX.into()) as u32,
    }
}

/// Equation 3, rounded up. None: nothing was submitted.
fn slowdown(class_bytes: [u64; QueueClass::ALL.len()], weights: ClassWeights) -> Option<u32> {
    let [high, medium, low] = weights.by_class().map(u128::from);
    let [in_high, in_medium, in_low] = class_bytes.map(u128::from);
    let total = in_high + in_medium + in_low;
    if total == 0 {
        return None;
    }
    // All over medium * low.
    let slowed = in_high * medium * low + in_medium * high * low + in_low * high * medium;
    Some(slowed.div_ceil(total * medium * low).clamp(1, MAX.into()) as u32)
}

/// A flow at the end of a period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) vtime: VTime,
    pub(super) is_active: bool,
    /// Times that it was put at global virtual time.
    pub(super) activations: u32,
    /// Submitted so far, by class.
    pub(super) class_bytes: [u64; QueueClass::ALL.len()],
}

/// State kept from one period to the next.
pub(super) struct Adjuster {
    /// 0: found by the equations.
    fixed_ratio: u32,
    ratio: u32,
    /// Weights last given to the device.
    told: Option<ClassWeights>,
    /// Each flow when the last period ended.
    last: Box<[Sample]>,
    last_gvt: VTime,
}

impl Adjuster {
    pub(super) fn new(fixed_ratio: u32, flows: usize, start: VTime) -> Adjuster {
        let idle = Sample { vtime: start, is_active: false, activations: 0, class_bytes: [0; QueueClass::ALL.len()] };
        Adjuster {
            fixed_ratio,
            ratio: if fixed_ratio == 0 { MAX } else { fixed_ratio },
            told: None,
            last: vec![idle; flows].into(),
            last_gvt: start,
        }
    }

    pub(super) fn ratio(&self) -> u32 {
        self.ratio
    }

    /// A period ends: the weights of the classes from now on, if they change. `sample` is asked once for each flow.
    pub(super) fn period_ends(
        &mut self,
        gvt: VTime,
        thresholds: Thresholds,
        mut sample: impl FnMut(usize) -> Sample,
    ) -> Option<ClassWeights> {
        if self.fixed_ratio == 0 {
            let weights = class_weights(self.ratio);
            // Gap to global virtual time and growth, if known, of the flows farthest ahead and farthest behind.
            let mut ahead: Option<(i64, Option<u64>)> = None;
            let mut behind: Option<(i64, Option<u64>)> = None;
            let mut slowest = None;
            for (n, last) in self.last.iter_mut().enumerate() {
                let now = sample(n);
                if now.is_active {
                    let is_known = last.is_active && last.activations == now.activations;
                    let grown = is_known.then(|| now.vtime.since(last.vtime).max(0) as u64);
                    let gap = now.vtime.since(gvt);
                    if ahead.is_none_or(|(most, _)| gap > most) {
                        ahead = Some((gap, grown));
                    }
                    if behind.is_none_or(|(least, _)| gap < least) {
                        behind = Some((gap, grown));
                    }
                }
                // Saturating: the place of a flow that has gone may be another's, which has submitted less.
                let within = |class: usize| now.class_bytes[class].saturating_sub(last.class_bytes[class]);
                slowest = slowest.max(slowdown([within(0), within(1), within(2)], weights));
                *last = now;
            }
            let gvt_grown = u64::try_from(gvt.since(self.last_gvt)).ok().filter(|&grown| grown > 0);
            self.last_gvt = gvt;
            let next = match (ahead, behind) {
                // Before the decrease: see the file's text.
                (Some((gap, grown_max)), Some((_, grown_min))) if gap >= thresholds.unfair.0 as i64 => {
                    match (grown_max.filter(|&grown| grown > 0), grown_min.or(gvt_grown)) {
                        (Some(grown_max), Some(grown_min)) => increased(self.ratio, grown_max, grown_min),
                        _ => self.ratio,
                    }
                }
                _ => slowest.unwrap_or(self.ratio),
            };
            // The first call tells the device where the search begins; the first period begins with it.
            if self.told.is_some() {
                self.ratio = next;
            }
        }
        let weights = class_weights(self.ratio);
        (self.told.replace(weights) != Some(weights)).then_some(weights)
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    //! Equations 2 and 3 with numbers worked out by hand, and which flows count.

    use super::*;
    use mqfq_sched::vtime::VSpan;

    const KIB: u64 = 1024;

    #[test]
    fn medium_is_the_nearest_to_the_square_root() {
        // sqrt(3) = 1.73, sqrt(6) = 2.45, sqrt(7) = 2.65, sqrt(18) = 4.24, sqrt(22) = 4.69, sqrt(255) = 15.97.
        for (ratio, medium) in [(1, 1), (2, 1), (3, 2), (4, 2), (6, 2), (7, 3), (18, 4), (22, 5), (255, 16), (256, 16)]
        {
            assert_eq!(class_weights(ratio), ClassWeights { high: ratio as u16, medium, low: 1 });
        }
    }

    #[test]
    fn weights_of_classes_are_what_a_device_takes() {
        for ratio in 1..=MAX {
            let ClassWeights { high, medium, low } = class_weights(ratio);
            assert!(1 == low && low <= medium && medium <= high && high <= ClassWeights::MAX);
            // No integer is nearer: |medium - sqrt(ratio)| <= 1/2, squared to stay in integers.
            let doubled = 2 * u32::from(medium);
            assert!((doubled - 1).pow(2) <= 4 * ratio && 4 * ratio <= (doubled + 1).pow(2), "{medium} for {ratio}");
        }
    }

    #[test]
    fn one_flow_of_weight_1_and_seven_of_weight_3_need_22() {
        // Figure 6: at ratio 4 the seven share the high queues, so each gets 4/7 of what the one gets from the low
        // ones. Its virtual time grows by 7 units of service over weight 1, theirs by 4 over weight 3: widening 7 * 3 /
        // 4. 21 is needed, and 1 more to close the gap.
        let (grown_max, grown_min) = (7 * 3 * 1000, 4 * 1000);
        assert_eq!(increased(4, grown_max, grown_min), 22);
    }

    #[test]
    fn a_ratio_of_2_that_three_times_the_weight_makes_4() {
        // Section 3.1: weights 3 and 1 on queues of 2:1. The heavy flow gets 2/3 over 3, the light one 1/3 over 1: 1.5
        // times as fast. 2 * 1.5 + 1.
        assert_eq!(increased(2, 3000, 2000), 4);
        // Not rounded up where it is not whole: 2 * 1.4995 = 2.999.
        assert_eq!(increased(2, 2999, 2000), 3);
    }

    #[test]
    fn the_ratio_stays_within_what_a_device_takes() {
        assert_eq!(increased(256, 1000, 1), MAX);
        assert_eq!(increased(256, u64::MAX, 1), MAX);
        assert_eq!(increased(1, 5, 0), MAX, "who was not served at all needs the largest");
        // The gap closes by itself: half of the ratio and one would do.
        assert_eq!(increased(256, 1, 2), 129);
        assert_eq!(increased(1, 1, 1000), 1);
    }

    #[test]
    fn slowdown_is_what_bytes_were_slowed_by() {
        // Section 3.1: ratio 6, three fifths of the flow's bytes in the high queues, two fifths in the low ones: 3/5 +
        // 2/5 * 6 = 3.
        let six = ClassWeights { high: 6, medium: 2, low: 1 };
        assert_eq!(slowdown([3 * KIB, 0, 2 * KIB], six), Some(3));
        // All in one class: 1, 6/2, 6/1.
        for (class_bytes, expected) in [([7, 0, 0], 1), ([0, 7, 0], 3), ([0, 0, 7], 6)] {
            assert_eq!(slowdown(class_bytes, six), Some(expected));
        }
        // 1/3 * 1 + 1/3 * 22/5 + 1/3 * 22 = 27.4 / 3 = 9.13, rounded up.
        assert_eq!(slowdown([4, 4, 4], class_weights(22)), Some(10));
        assert_eq!(slowdown([0; 3], six), None);
        // 256 / 16 = 16 for a period of 2^60 bytes.
        assert_eq!(slowdown([0, 1 << 60, 0], class_weights(256)), Some(16));
    }

    /// tau_w of 2 MiB.
    const THRESHOLDS: Thresholds = Thresholds { medium: VSpan(512 << 20), low: VSpan(1 << 30), unfair: VSpan(2 << 30) };

    /// Flows as they stand at the end of a period.
    struct Flows {
        adjuster: Adjuster,
        now: Vec<Sample>,
        gvt: VTime,
    }

    impl Flows {
        /// Makes so many active flows at `start`; the device was told of the first ratio.
        fn new(count: usize, start: VTime) -> Flows {
            let mut flows = Flows {
                adjuster: Adjuster::new(0, count, start),
                now: vec![Sample { vtime: start, is_active: true, activations: 1, class_bytes: [0; 3] }; count],
                gvt: start,
            };
            assert_eq!(flows.period(), Some(class_weights(256)));
            flows
        }

        fn period(&mut self) -> Option<ClassWeights> {
            self.adjuster.period_ends(self.gvt, THRESHOLDS, |n| self.now[n])
        }

        /// Flow `n` is served so much of its virtual time, out of these classes.
        fn serve(&mut self, n: usize, units: u64, class_bytes: [u64; 3]) {
            let flow = &mut self.now[n];
            flow.vtime = flow.vtime.plus(VSpan(units));
            flow.class_bytes.iter_mut().zip(class_bytes).for_each(|(sum, bytes)| *sum += bytes);
        }

        fn at_ratio(count: usize, ratio: u32) -> Flows {
            let mut flows = Flows::new(count, VTime::ZERO);
            flows.adjuster.ratio = ratio;
            let _ = flows.period();
            flows
        }
    }

    #[test]
    fn the_first_call_tells_the_device_and_decides_nothing() {
        let mut adjuster = Adjuster::new(0, 1, VTime::ZERO);
        let used = Sample { vtime: VTime::ZERO, is_active: true, activations: 1, class_bytes: [1000, 0, 0] };
        assert_eq!(adjuster.period_ends(VTime::ZERO, THRESHOLDS, |_| used), Some(class_weights(256)));
        assert_eq!(adjuster.period_ends(VTime::ZERO, THRESHOLDS, |_| used), None, "nothing was submitted since");
    }

    #[test]
    fn a_fixed_ratio_is_told_once() {
        let mut adjuster = Adjuster::new(3, 1, VTime::ZERO);
        let far = Sample { vtime: VTime::from_raw(1 << 40), is_active: true, activations: 1, class_bytes: [0, 0, 1] };
        assert_eq!(adjuster.period_ends(VTime::ZERO, THRESHOLDS, |_| far), Some(class_weights(3)));
        assert_eq!((adjuster.period_ends(VTime::ZERO, THRESHOLDS, |_| far), adjuster.ratio()), (None, 3));
    }

    #[test]
    fn who_used_only_the_high_queues_brings_the_ratio_down_to_1() {
        let mut flows = Flows::new(2, VTime::ZERO);
        flows.serve(0, 1000, [4096, 0, 0]);
        flows.serve(1, 1000, [4096, 0, 0]);
        assert_eq!(flows.period(), Some(ClassWeights::EQUAL));
    }

    #[test]
    fn the_flow_that_was_slowed_most_sets_the_ratio() {
        let mut flows = Flows::at_ratio(3, 6);
        flows.serve(0, 1000, [50, 0, 0]);
        flows.serve(1, 1000, [3, 0, 2]);
        flows.serve(2, 1000, [2, 2, 0]);
        assert_eq!(flows.period(), Some(class_weights(3)));
    }

    #[test]
    fn increase_is_tested_before_decrease() {
        // Flow 1 is 4 GiUnits ahead, so equation 2 it is: 4 * (21 / 4) + 1. Equation 3 alone would say 1, as no flow
        // used slow queues much.
        let mut flows = Flows::at_ratio(2, 4);
        flows.serve(0, 4 << 30, [1000, 0, 0]);
        flows.serve(1, 21 << 30, [1000, 0, 0]);
        flows.gvt = flows.now[0].vtime;
        assert_eq!(flows.period(), Some(class_weights(22)));
    }

    #[test]
    fn at_tau_w_the_ratio_grows_and_a_unit_before_it_does_not() {
        for (gap, expected) in [(2u64 << 30, 7), ((2 << 30) - 1, 4)] {
            let mut flows = Flows::at_ratio(2, 4);
            flows.serve(0, 4 << 30, [1000, 0, 0]);
            flows.serve(1, (4 << 30) + gap, [0, 0, 1000]);
            flows.gvt = flows.now[0].vtime;
            let _ = flows.period();
            // 4 * 6 / 4 + 1 = 7; slowdown of a flow in the low queues: all of 4.
            assert_eq!(flows.adjuster.ratio(), expected);
        }
    }

    #[test]
    fn equation_2_works_across_the_wrap() {
        let mut flows = Flows::new(2, VTime::from_raw(u64::MAX - (1 << 30)));
        flows.adjuster.ratio = 4;
        let _ = flows.period();
        flows.adjuster.ratio = 4;
        flows.serve(0, 4 << 30, [1000, 0, 0]);
        flows.serve(1, 21 << 30, [1000, 0, 0]);
        flows.gvt = flows.now[0].vtime;
        assert!(flows.gvt.raw() < 1 << 40, "the test means to cross the wrap");
        assert_eq!(flows.period(), Some(class_weights(22)));
    }

    #[test]
    fn a_flow_that_came_within_the_period_does_not_set_the_ratio() {
        // Flow 1 was alone for most of the period; flow 0 has just come. That flow 1 is far ahead says nothing yet of
        // the two together.
        let mut flows = Flows::at_ratio(2, 4);
        flows.now[1].is_active = false;
        let _ = flows.period();
        flows.adjuster.ratio = 4;
        flows.now[1].is_active = true;
        flows.now[1].activations += 1;
        flows.serve(1, 21 << 30, [1000, 0, 0]);
        flows.serve(0, 4 << 30, [1000, 0, 0]);
        flows.gvt = flows.now[0].vtime;
        assert_eq!((flows.period(), flows.adjuster.ratio()), (None, 4));
        // A period later it does: 4 * 10 / 4 + 1.
        flows.serve(1, 10 << 30, [1000, 0, 0]);
        flows.serve(0, 4 << 30, [1000, 0, 0]);
        flows.gvt = flows.now[0].vtime;
        assert_eq!(flows.period(), Some(class_weights(11)));
    }

    #[test]
    fn beside_a_flow_that_comes_and_goes_global_virtual_time_says_how_far_the_others_got() {
        // Flow 0 was put at global virtual time within the period, so its own growth means nothing; gvt grew by 4.
        let mut flows = Flows::at_ratio(2, 4);
        flows.now[0].activations += 1;
        flows.now[0].vtime = VTime::from_raw(4 << 30);
        flows.gvt = flows.now[0].vtime;
        flows.serve(1, 21 << 30, [0, 0, 1000]);
        assert_eq!(flows.period(), Some(class_weights(22)));
        // It did not grow: nothing was learnt.
        flows.now[0].activations += 1;
        flows.serve(1, 21 << 30, [0, 0, 1000]);
        assert_eq!((flows.period(), flows.adjuster.ratio()), (None, 22));
    }

    #[test]
    fn inactive_flows_do_not_count() {
        // Flow 1 went away far ahead; flow 2 was never there, and its virtual time is far behind.
        let mut flows = Flows::at_ratio(3, 4);
        flows.serve(1, 100 << 30, [0, 0, 0]);
        flows.now[1].is_active = false;
        flows.now[2].is_active = false;
        flows.serve(0, 50 << 30, [3, 0, 1]);
        flows.gvt = flows.now[0].vtime;
        // Flow 0 alone: 3/4 + 1/4 * 4 = 1.75, rounded up.
        assert_eq!(flows.period(), Some(class_weights(2)));
    }

    #[test]
    fn of_a_flow_that_was_not_served_no_ratio_follows() {
        let mut flows = Flows::at_ratio(2, 16);
        flows.serve(1, 8 << 30, [0, 0, 10]);
        let _ = flows.period();
        flows.adjuster.ratio = 16;
        // Far ahead, and all it has waits in the low queues.
        flows.serve(0, 1 << 30, [1000, 0, 0]);
        flows.gvt = flows.now[0].vtime;
        let _ = flows.period();
        assert_eq!(flows.adjuster.ratio(), 16);
    }

    #[test]
    fn a_quiet_period_changes_nothing() {
        let mut flows = Flows::at_ratio(2, 9);
        assert_eq!(flows.period(), None);
        assert_eq!(flows.adjuster.ratio(), 9);
    }
}
