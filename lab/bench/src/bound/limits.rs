//! The bounds that a history is held against, as integers.
//!
//! # Shape
//! For two flows f and m that stay backlogged, with r the weight, l the largest request and T the window:
//!
//! ```text
//! dispatched   2T + l_f/r_f + l_m/r_m                      proved in sched/src/policy/mqfq/mod.rs; what Theorem 1 says
//! tight        2T + l_f/r_f + l_m/r_m + d_f/r_f + d_m/r_m  for completed; d: what is on the device, D l in requests
//! Theorem 2    (D + 1) (2T + l_f/r_f + l_m/r_m)            for completed; MQFQ section 2.2
//! ```
//! If T changes, it counts as much at either end of an interval as is in effect there ([`super::checker`]); L is the
//! longest.
//!
//! Each plus one byte for the grain of tags, `k L` for a flow on k > 1 hctxs that lease L of its virtual time at once,
//! and what several threads may have half done ([`super::threads`]). All is compared in units of virtual time times
//! `r_f r_m`; a difference `x` of bytes times weight is `x * UNITS` there.
//!
//! Where costs are known at the end, `3 n e + l` of each flow more ([`late_term`]), and no leases: `n = D + k` requests
//! are charged and not ended, e is the largest error of one.
//!
//! # What is on the device
//! At most D requests. With token units at most D + u - 1 units, u those of the largest request of any flow, at most D;
//! a request that fills its units or less weighs at most `unit` bytes per unit. One larger than D units takes D of
//! them, and two of these would be 2D > D + u - 1. So a flow has at most `(D - 1) unit + max(u unit, l)` bytes there,
//! and never more than D l. Where costs are known at the end it is D l, since units are those of the announced cost.
//!
//! # The byte for the grain
//! In units, of which a byte at the default weight has 1024: T counts as 63 at least (2 * 63); what a flow's tags cover
//! and its cost over weight differ by less than a grain of 64 (2 * 64); a weight's reciprocal is rounded by 2^-33 per
//! byte of cost, 128 for each TiB that a flow is served (2 * 128). Together 638.

use super::history::FlowTerms;
use mqfq_sched::flow::TAG_GRAIN;
use mqfq_sched::policy::PolicyOptions;
use mqfq_sched::vtime::UNITS_PER_BYTE;
use mqfq_testing::oracle::late_term;

/// Units of virtual time per byte, times weight.
const UNITS: i128 = UNITS_PER_BYTE as i128 * 100;

/// For the grain of tags, see the module's text.
const GRAIN: i128 = UNITS_PER_BYTE as i128;

/// The bounds of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    depth: i128,
    window_units: i128,
    token_unit_bytes: Option<i128>,
    /// u: token units of the largest request of any flow.
    units_max: i128,
    /// L: virtual time that a queue takes of a flow's at once; 0 in the paper's form.
    lease_units: i128,
    /// Addition for overlapping operations, in requests of a flow for each of its hctxs: 0 if one thread does
    /// everything.
    under_way: i128,
    /// Costs are known at the end.
    is_late: bool,
}

/// Bounds of a pair, in units of virtual time times the product of the weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PairLimits {
    /// Bound on service dispatched.
    pub dispatched: i128,
    /// Bound on service completed, by the direct argument.
    pub tight: i128,
    /// Bound on service completed, by the paper's Theorem 2.
    pub theorem_2: i128,
    /// Bound on service completed, by the paper's Theorem 1, which is about D = 1.
    pub theorem_1: Option<i128>,
}

impl Limits {
    /// The bounds of a history that these options made, with these flows.
    pub fn new(options: &PolicyOptions, flows: &[FlowTerms]) -> Limits {
        let depth = i128::from(options.depth);
        let units = |flow: &FlowTerms, unit: i128| (i128::from(flow.largest_bytes) + unit - 1) / unit;
        let token_unit_bytes = options.token_unit_bytes.map(i128::from);
        let units_max = flows.iter().map(|flow| token_unit_bytes.map_or(1, |unit| units(flow, unit)));
        Limits {
            depth,
            window_units: i128::from(options.window.0),
            token_unit_bytes,
            units_max: units_max.max().unwrap_or(1).min(depth),
            lease_units: i128::from(options.lease.0),
            under_way: 0,
            is_late: false,
        }
    }

    /// Returns these bounds with `requests_per_hctx` of a flow more for each of its hctxs: operations half done by
    /// threads.
    pub fn with_under_way(self, requests_per_hctx: u32) -> Limits {
        Limits { under_way: i128::from(requests_per_hctx), ..self }
    }

    /// Returns these bounds for flows whose costs are corrected at the end, and whose requests are withdrawn.
    pub fn charged_late(self) -> Limits {
        Limits { is_late: true, token_unit_bytes: None, ..self }
    }

    /// Most bytes that a flow can have on the device.
    fn on_device_bytes(&self, flow: &FlowTerms) -> i128 {
        let largest = i128::from(flow.largest_bytes);
        let by_requests = self.depth * largest;
        match self.token_unit_bytes {
            None => by_requests,
            Some(unit) => by_requests.min((self.depth - 1) * unit + largest.max(self.units_max * unit)),
        }
    }

    /// Bounds of a pair.
    pub fn of(&self, f: &FlowTerms, m: &FlowTerms) -> PairLimits {
        let (r_f, r_m) = (i128::from(f.weight), i128::from(m.weight));
        let over_weight = |f_bytes: i128, m_bytes: i128| UNITS * (f_bytes * r_m + m_bytes * r_f);
        let largest = over_weight(f.largest_bytes.into(), m.largest_bytes.into());
        let windows = 2 * self.window_units * r_f * r_m;
        let leases = |flow: &FlowTerms| match (flow.hctxs, self.lease_units) {
            (0 | 1, _) | (_, 0) => 0,
            // And what each queue's lease keeps back of the grain.
            (hctxs, lease) => i128::from(hctxs) * (lease + TAG_GRAIN.0 as i128),
        };
        // In every bound, the paper's too.
        let half_done = |flow: &FlowTerms| self.under_way * i128::from(flow.hctxs) * i128::from(flow.largest_bytes);
        let late = |flow: &FlowTerms| match self.is_late {
            false => 0,
            true => late_term(self.depth + i128::from(flow.hctxs), flow.error_bytes.into(), flow.largest_bytes.into()),
        };
        let added = over_weight(half_done(f) + late(f), half_done(m) + late(m))
            + (leases(f) + leases(m)) * r_f * r_m
            + GRAIN * r_f * r_m;
        let dispatched = windows + largest + added;
        PairLimits {
            dispatched,
            tight: dispatched + over_weight(self.on_device_bytes(f), self.on_device_bytes(m)),
            theorem_2: (self.depth + 1) * (windows + largest) + added,
            theorem_1: (self.depth == 1).then_some(dispatched),
        }
    }

    /// An unfairness of `bytes_times_weight` in the units of [`PairLimits`].
    pub const fn scaled(bytes_times_weight: i128) -> i128 {
        bytes_times_weight * UNITS
    }

    /// Such a number as bytes at the default weight, for people.
    pub fn bytes(scaled: i128, f: &FlowTerms, m: &FlowTerms) -> f64 {
        scaled as f64 / (f64::from(f.weight) * f64::from(m.weight)) / UNITS_PER_BYTE as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_sched::policy::PolicyKind;
    use mqfq_sched::vtime::VSpan;

    const KIB: u64 = 1024;

    fn flow(weight: u16, largest_bytes: u64) -> FlowTerms {
        FlowTerms { weight, largest_bytes, hctxs: 1, error_bytes: 0 }
    }

    fn options(depth: u32, window_bytes: u64, token_unit_bytes: Option<u32>) -> PolicyOptions {
        let window = VSpan::from_bytes(window_bytes);
        PolicyOptions { depth, window, token_unit_bytes, ..PolicyOptions::new(PolicyKind::Mqfq) }
    }

    #[test]
    fn the_bounds_are_those_of_the_proofs() {
        // D = 3, T = 64 KiB, 4 KiB at weight 100 and 16 KiB at weight 200, which counts as 8 KiB there.
        let pair = [flow(100, 4 * KIB), flow(200, 16 * KIB)];
        let limits = Limits::new(&options(3, 64 * KIB, None), &pair).of(&pair[0], &pair[1]);
        let bytes = |scaled| Limits::bytes(scaled, &pair[0], &pair[1]);
        assert_eq!(bytes(limits.dispatched), (128.0 + 4.0 + 8.0) * 1024.0 + 1.0);
        assert_eq!(bytes(limits.tight), (128.0 + 4.0 * 12.0) * 1024.0 + 1.0);
        assert_eq!(bytes(limits.theorem_2), 4.0 * 140.0 * 1024.0 + 1.0);
        assert_eq!(limits.theorem_1, None);
    }

    #[test]
    fn theorem_1_is_about_one_request_on_the_device() {
        let pair = [flow(100, 4 * KIB), flow(100, 4 * KIB)];
        let limits = Limits::new(&options(1, 0, None), &pair).of(&pair[0], &pair[1]);
        assert_eq!(limits.theorem_1, Some(limits.dispatched));
        assert_eq!(Limits::bytes(limits.dispatched, &pair[0], &pair[1]), 8.0 * 1024.0 + 1.0);
    }

    #[test]
    fn token_units_bound_what_is_on_the_device() {
        let on_device = |depth, largest, others: &[FlowTerms]| {
            let flow = flow(100, largest);
            let flows: Vec<FlowTerms> = others.iter().copied().chain([flow]).collect();
            Limits::new(&options(depth, 0, Some(4096)), &flows).on_device_bytes(&flow)
        };
        let kib = i128::from(KIB);
        // D = 8 units of 4 KiB, requests of 12 KiB = 3 units: D + u - 1 = 10 units.
        assert_eq!(on_device(8, 12 * KIB, &[]), 40 * kib);
        // Requests of 512 bytes take a unit each and D of them are all.
        assert_eq!(on_device(8, 512, &[]), 8 * 512);
        // A request of 1 MiB takes all 8 units; beside it at most 7 more, of 4 KiB each.
        assert_eq!(on_device(8, 1024 * KIB, &[]), (1024 + 28) * kib);
        // Another flow's large request may leave the debt: 8 + 8 - 1 units.
        assert_eq!(on_device(8, 4 * KIB, &[flow(1, 1024 * KIB)]), 8 * 4 * kib, "and never more than D requests");
        assert_eq!(on_device(8, 8 * KIB, &[flow(1, 1024 * KIB)]), 60 * kib);
    }

    #[test]
    fn a_flow_on_several_hctxs_adds_its_leases() {
        let one = flow(100, 4 * KIB);
        let three = FlowTerms { hctxs: 3, ..one };
        let faithful = options(2, 64 * KIB, None);
        let relaxed = PolicyOptions { lease: VSpan::from_bytes(16 * KIB), ..faithful };
        let [before, after] = [faithful, relaxed].map(|options| Limits::new(&options, &[one, three]));
        let more = |f: &FlowTerms, m: &FlowTerms| Limits::bytes(after.of(f, m).tight - before.of(f, m).tight, f, m);
        // Each lease and a grain, a sixteenth of a byte.
        assert_eq!(more(&one, &one), 0.0);
        assert_eq!(more(&one, &three), 3.0 * (16.0 * 1024.0 + 1.0 / 16.0));
        assert_eq!(more(&three, &three), 6.0 * (16.0 * 1024.0 + 1.0 / 16.0));
    }

    #[test]
    fn costs_known_at_the_end_add_their_errors() {
        // D = 2: three requests of a flow on one hctx, 3 * 3 KiB each, and its l; four of the flow on two, right ones.
        let wrong = FlowTerms { error_bytes: 3 * KIB, ..flow(100, 4 * KIB) };
        let right = FlowTerms { hctxs: 2, ..flow(200, 4 * KIB) };
        let before = Limits::new(&options(2, 64 * KIB, Some(512)), &[wrong, right]).of(&wrong, &right);
        let after = Limits::new(&options(2, 64 * KIB, None), &[wrong, right]).charged_late().of(&wrong, &right);
        let more = |after: i128, before: i128| Limits::bytes(after - before, &wrong, &right);
        assert_eq!(more(after.dispatched, before.dispatched), (27.0 + 4.0 + 2.0) * 1024.0);
        assert_eq!(more(after.tight - after.dispatched, 0), (8.0 + 4.0) * 1024.0, "D requests, whatever the units");
    }

    #[test]
    fn what_threads_have_half_done_is_added_to_every_bound() {
        // Three requests for each hctx of a flow: 3 * 4 KiB, and 2 * 3 * 4 KiB of the one on two hctxs.
        let pair = [flow(100, 4 * KIB), FlowTerms { hctxs: 2, ..flow(100, 4 * KIB) }];
        let limits = Limits::new(&options(2, 0, None), &pair);
        let (alone, racing) = (limits.of(&pair[0], &pair[1]), limits.with_under_way(3).of(&pair[0], &pair[1]));
        let more = |after: i128, before: i128| Limits::bytes(after - before, &pair[0], &pair[1]);
        assert_eq!(more(racing.dispatched, alone.dispatched), 36.0 * 1024.0);
        assert_eq!(more(racing.tight, alone.tight), 36.0 * 1024.0);
        assert_eq!(more(racing.theorem_2, alone.theorem_2), 36.0 * 1024.0);
    }
}
