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

#[cfg(all(test, not(loom)))]
mod tests;
